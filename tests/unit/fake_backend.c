/* The bendable backend. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "unit/fake_backend.h"

fake_plugin fake_plugins[FAKE_BACKENDS];
fake_behaviour fake;

struct infer_device {
    const infer_host *host;
};

struct infer_buffer {
    uint8_t *p;
    uint64_t bytes;
};

enum { PENDING_MAX = 1024 };

struct infer_queue {
    infer_device *dev;
    struct {
        uint8_t *to;
        const uint8_t *from;
        uint64_t bytes;
    } pending[PENDING_MAX];
    uint32_t n;
};

struct infer_timeline {
    _Atomic uint64_t value;
    _Atomic int32_t failed;
};

struct infer_weight {
    int unused;
};

struct infer_program {
    uint32_t n_slots;
    const infer_host *host;
    const infer_graph_view *kept;
};

struct infer_exec {
    infer_range first;
};

static infer_status detail(const infer_host *host, infer_status s)
{
    if (s < 0)
        host->status_detail(host->ctx, s, "fake says no");
    return s;
}

static infer_status backend_init(const infer_host *host)
{
    (void)host;
    fake.inits++;
    return INFER_OK;
}

static void backend_fini(void)
{
    fake.inits--;
}

static infer_status probe(const infer_host *host, infer_device_info *out, uint32_t cap, uint32_t *n)
{
    if (fake.probe_status)
        return detail(host, fake.probe_status);
    const fake_plugin *p = fake_plugins;
    /* Which backend asks: its settings say so. */
    const char *which = host->config_get(host->ctx, "which");
    if (which)
        p += atoi(which);
    *n = p->n_rows;
    for (uint32_t i = 0; i < p->n_rows && i < cap; i++) {
        uint32_t size = out->struct_size;
        *out = p->rows[i];
        out->struct_size = size;
        out++;
    }
    return INFER_OK;
}

static infer_status dev_open(const infer_host *host, uint32_t index, infer_device **out)
{
    (void)index;
    if (fake.open_status)
        return detail(host, fake.open_status);
    infer_device *d = host->alloc(host->ctx, sizeof *d, 16);
    if (!d)
        return detail(host, INFER_E_NO_MEMORY);
    d->host = host;
    fake.devices++;
    *out = d;
    return INFER_OK;
}

static void dev_close(infer_device *dev)
{
    fake.devices--;
    dev->host->free(dev->host->ctx, dev);
}

static infer_status dev_props(infer_device *dev, infer_device_props *out)
{
    (void)dev;
    out->flags = fake.prop_flags;
    out->buffer_align = 16;
    out->n_queues = 1;
    out->max_buffer = fake.max_buffer;
    return detail(dev->host, fake.prop_status);
}

static infer_status dev_heaps(infer_device *dev, infer_heap_info *out, uint32_t cap, uint32_t *n)
{
    (void)dev;
    *n = 1;
    if (cap) {
        out->size = 1 << 20;
        out->granularity = fake.granularity;
        out->align = 16;
    }
    return INFER_OK;
}

static infer_status dev_heap_stats(infer_device *dev, uint32_t heap, infer_heap_stats *out)
{
    (void)dev;
    (void)heap;
    out->budget.value = out->total.value = 1 << 20;
    out->ours.value = (uint64_t)fake.bytes;
    return INFER_OK;
}

static infer_status buf_alloc(infer_device *dev, uint32_t heap, uint64_t bytes, infer_buffer **out)
{
    (void)heap;
    if (fake.alloc_status)
        return detail(dev->host, fake.alloc_status);
    infer_buffer *b = dev->host->alloc(dev->host->ctx, sizeof *b, 16);
    uint8_t *p = dev->host->alloc(dev->host->ctx, bytes, 64);
    if (!b || !p) {
        dev->host->free(dev->host->ctx, b);
        dev->host->free(dev->host->ctx, p);
        return detail(dev->host, INFER_E_NO_MEMORY);
    }
    *b = (infer_buffer){.p = p, .bytes = bytes};
    fake.buffers++;
    fake.bytes += (int64_t)bytes;
    *out = b;
    return INFER_OK;
}

static void buf_free(infer_device *dev, infer_buffer *b)
{
    fake.buffers--;
    fake.bytes -= (int64_t)b->bytes;
    dev->host->free(dev->host->ctx, b->p);
    dev->host->free(dev->host->ctx, b);
}

static infer_status queue_create(infer_device *dev, uint32_t classes, infer_queue **out)
{
    (void)classes;
    infer_queue *q = dev->host->alloc(dev->host->ctx, sizeof *q, 16);
    if (!q)
        return detail(dev->host, INFER_E_NO_MEMORY);
    q->dev = dev;
    q->n = 0;
    fake.queues++;
    *out = q;
    return INFER_OK;
}

static void queue_destroy(infer_device *dev, infer_queue *q)
{
    fake.queues--;
    dev->host->free(dev->host->ctx, q);
}

static infer_status queue_wait(infer_queue *q, infer_timeline *tl, uint64_t value)
{
    fake.waits++;
    if (fake.wait_status)
        return fake.wait_status;
    return q->dev->host->tl_wait(q->dev->host->ctx, tl, value, UINT64_MAX);
}

static infer_status native_wait(infer_queue *q, infer_timeline *tl, uint64_t value)
{
    (void)q;
    fake.waits++;
    if (fake.wait_status)
        return fake.wait_status;
    while (tl->value < value && !tl->failed)
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    return tl->failed;
}

static void flush(infer_queue *q)
{
    for (uint32_t i = 0; i < q->n; i++)
        memcpy(q->pending[i].to, q->pending[i].from, (size_t)q->pending[i].bytes);
    q->n = 0;
}

static int busy(void)
{
    if (!fake.again)
        return 0;
    fake.again--;
    return 1;
}

static infer_status queue_signal(infer_queue *q, infer_timeline *tl, uint64_t value)
{
    fake.signals++;
    if (busy())
        return INFER_AGAIN;
    flush(q);
    q->dev->host->tl_advance(q->dev->host->ctx, tl, value);
    return INFER_OK;
}

static infer_status native_signal(infer_queue *q, infer_timeline *tl, uint64_t value)
{
    fake.signals++;
    flush(q);
    tl->value = value;
    return INFER_OK;
}

static infer_status cmd_copy(infer_queue *q, const infer_copy_end *dst, const infer_copy_end *src,
                             const infer_copy_region *r, uint32_t n)
{
    if (busy())
        return INFER_AGAIN;
    if (fake.copy_status)
        return detail(q->dev->host, fake.copy_status);
    for (uint32_t i = 0; i < n; i++)
        for (uint64_t k = 0; k < r[i].rows; k++) {
            if (q->n == PENDING_MAX)
                return INFER_AGAIN;
            q->pending[q->n].to =
                (dst->buffer ? dst->buffer->p : (uint8_t *)dst->host) + r[i].dst_offset + k * r[i].dst_pitch;
            q->pending[q->n].from =
                (src->buffer ? src->buffer->p : (const uint8_t *)src->host) + r[i].src_offset + k * r[i].src_pitch;
            q->pending[q->n++].bytes = r[i].bytes;
        }
    return INFER_OK;
}

static infer_status cmd_fill(infer_queue *q, const infer_range *dst, uint32_t pattern, uint32_t pattern_bytes)
{
    flush(q);
    for (uint64_t i = 0; i < dst->size; i++)
        dst->buffer->p[dst->offset + i] = (uint8_t)(pattern >> 8 * (i % pattern_bytes));
    return INFER_OK;
}

static infer_status op_query(infer_device *dev, const infer_op_desc *ops, uint32_t op_size, uint32_t n,
                             infer_op_answer *out, uint32_t answer_size)
{
    (void)dev;
    if (op_size != sizeof *ops || answer_size != sizeof *out)
        return INFER_E_INVALID;
    for (uint32_t i = 0; i < n; i++) {
        out[i].level = ops[i].op == INFER_OP_SOFTMAX ? INFER_LEVEL_NO : INFER_LEVEL_NATIVE;
        out[i].n_epilogue = 99;
        out[i].scratch_bytes = 1000 + ops[i].op;
    }
    return INFER_OK;
}

static infer_status cmd_op(infer_queue *q, const infer_op_desc *op, const infer_op_args *args)
{
    fake.comm = args->comm;
    fake.last_op = op->op;
    fake.last_offset = args->operands[args->n_operands - 1].offset;
    fake.drawn++;
    return detail(q->dev->host, fake.copy_status);
}

/* ---- Native timelines ---- */

static infer_status tl_create(infer_device *dev, infer_timeline **out)
{
    infer_timeline *t = dev->host->alloc(dev->host->ctx, sizeof *t, 16);
    if (!t)
        return detail(dev->host, INFER_E_NO_MEMORY);
    t->value = 0;
    t->failed = 0;
    fake.timelines++;
    *out = t;
    return INFER_OK;
}

static void tl_destroy(infer_device *dev, infer_timeline *t)
{
    fake.timelines--;
    dev->host->free(dev->host->ctx, t);
}

static infer_status tl_query(infer_timeline *t, uint64_t *value)
{
    if (t->failed)
        return t->failed;
    *value = t->value;
    return INFER_OK;
}

static infer_status tl_wait(infer_timeline *t, uint64_t value, uint64_t timeout_ns)
{
    struct timespec tick = {.tv_nsec = 100000};
    for (uint64_t waited = 0; t->value < value && !t->failed; waited += 100000) {
        if (waited >= timeout_ns)
            return INFER_PENDING;
        nanosleep(&tick, NULL);
    }
    return t->value >= value ? INFER_OK : t->failed;
}

static infer_status tl_signal_host(infer_timeline *t, uint64_t value)
{
    t->value = value;
    return INFER_OK;
}

void fake_add_timelines(fake_plugin *p)
{
    p->ops.tl_create = tl_create;
    p->ops.tl_destroy = tl_destroy;
    p->ops.tl_query = tl_query;
    p->ops.tl_wait = tl_wait;
    p->ops.tl_signal_host = tl_signal_host;
    p->ops.queue_wait = native_wait;
    p->ops.queue_signal = native_signal;
}

/* ---- Weights: appended bytes are kept ---- */

static infer_status weight_plan(infer_device *dev, const infer_weight_desc *desc, infer_weight_plan *out)
{
    (void)dev;
    (void)desc;
    out->layout = 7;
    out->align = 16;
    out->packed_bytes = 64;
    out->format = INFER_FMT_I8;
    return INFER_OK;
}

static infer_status weight_begin(infer_device *dev, const infer_weight_desc *desc, const infer_weight_plan *plan,
                                 const infer_range *dst, infer_weight **out)
{
    (void)desc;
    (void)dst;
    static infer_weight w;
    if (plan->layout != 7)
        return detail(dev->host, INFER_E_INVALID);
    fake.n_packed = fake.largest_append = 0;
    fake.buffers++;
    *out = &w;
    return INFER_OK;
}

static infer_status weight_append(infer_weight *w, uint32_t plane, const void *data, uint64_t bytes)
{
    (void)w;
    (void)plane;
    if (bytes > fake.largest_append)
        fake.largest_append = bytes;
    if (fake.n_packed + bytes <= sizeof fake.packed)
        memcpy(fake.packed + fake.n_packed, data, (size_t)bytes);
    fake.n_packed += bytes;
    return INFER_OK;
}

static infer_status weight_finish(infer_weight *w)
{
    (void)w;
    return INFER_OK;
}

static void weight_destroy(infer_weight *w)
{
    (void)w;
    fake.buffers--;
}

void fake_add_weights(fake_plugin *p)
{
    p->ops.weight_plan = weight_plan;
    p->ops.weight_begin = weight_begin;
    p->ops.weight_append = weight_append;
    p->ops.weight_finish = weight_finish;
    p->ops.weight_destroy = weight_destroy;
}

/* ---- Programs: a run adds one to the first byte of slot 0 ---- */

static infer_status prog_build(infer_device *dev, const infer_graph_view *view, infer_program **out,
                               infer_program_info *info)
{
    const infer_host *host = dev->host;
    infer_program *p = calloc(1, sizeof *p);
    p->n_slots = view->n_slots;
    p->host = host;
    if (fake.capture && !(p->kept = host->view_keep(host->ctx, view))) {
        free(p);
        return detail(host, INFER_E_NO_MEMORY);
    }
    info->code_bytes = 300;
    info->scratch_bytes = 44;
    fake.programs++;
    *out = p;
    return INFER_OK;
}

static infer_status prog_instantiate(infer_program *p, infer_queue *q, const infer_range *slots, uint32_t n,
                                     infer_exec **out)
{
    if (n != p->n_slots)
        return INFER_E_INVALID;
    infer_status s = p->kept ? p->host->replay(p->host->ctx, p->kept, slots, q) : INFER_OK;
    if (s)
        return s;
    infer_exec *x = calloc(1, sizeof *x);
    x->first = slots[0];
    fake.execs++;
    *out = x;
    return INFER_OK;
}

static infer_status prog_update(infer_exec *x, uint32_t slot, const infer_range *range)
{
    if (fake.rebuild) {
        fake.rebuilds++;
        return INFER_REBUILD;
    }
    if (!slot)
        x->first = *range;
    return INFER_OK;
}

static infer_status prog_submit(infer_exec *x, infer_queue *q)
{
    if (busy())
        return INFER_AGAIN;
    flush(q);
    x->first.buffer->p[x->first.offset]++;
    return INFER_OK;
}

static void exec_destroy(infer_exec *x)
{
    fake.execs--;
    free(x);
}

static void prog_destroy(infer_program *p)
{
    fake.programs--;
    p->host->view_drop(p->host->ctx, p->kept);
    free(p);
}

void fake_add_programs(fake_plugin *p)
{
    p->ops.prog_build = prog_build;
    p->ops.prog_instantiate = prog_instantiate;
    p->ops.prog_update = prog_update;
    p->ops.prog_submit = prog_submit;
    p->ops.exec_destroy = exec_destroy;
    p->ops.prog_destroy = prog_destroy;
}

/* ---- Queries ---- */

static const infer_plugin_desc *answer(int i, const infer_host *host)
{
    fake_plugin *p = &fake_plugins[i];
    if (!p->decline)
        return &p->desc;
    host->log(host->ctx, 1, p->decline);
    return NULL;
}

static const infer_plugin_desc *query0(const infer_host *host, const infer_abi_range *range)
{
    (void)range;
    return answer(0, host);
}

static const infer_plugin_desc *query1(const infer_host *host, const infer_abi_range *range)
{
    (void)range;
    return answer(1, host);
}

static const infer_plugin_desc *query2(const infer_host *host, const infer_abi_range *range)
{
    (void)range;
    return answer(2, host);
}

const infer_plugin_query_fn fake_queries[FAKE_BACKENDS] = {query0, query1, query2};

void fake_reset(void)
{
    static const char *const names[FAKE_BACKENDS] = {"fakea", "fakeb", "fakec"};
    memset(&fake, 0, sizeof fake);
    fake.granularity = 256;
    for (int i = 0; i < FAKE_BACKENDS; i++) {
        fake_plugin *p = &fake_plugins[i];
        memset(p, 0, sizeof *p);
        p->ops = (infer_backend_ops){.struct_size = sizeof p->ops,
                                     .probe = probe,
                                     .dev_open = dev_open,
                                     .dev_close = dev_close,
                                     .dev_props = dev_props,
                                     .dev_heaps = dev_heaps,
                                     .dev_heap_stats = dev_heap_stats,
                                     .buf_alloc = buf_alloc,
                                     .buf_free = buf_free,
                                     .queue_create = queue_create,
                                     .queue_destroy = queue_destroy,
                                     .queue_wait = queue_wait,
                                     .queue_signal = queue_signal,
                                     .cmd_copy = cmd_copy,
                                     .cmd_fill = cmd_fill,
                                     .op_query = op_query,
                                     .cmd_op = cmd_op,
                                     .backend_init = backend_init,
                                     .backend_fini = backend_fini};
        p->desc = (infer_plugin_desc){.struct_size = sizeof p->desc,
                                      .abi_major = INFER_ABI_MAJOR,
                                      .abi_minor = INFER_ABI_MINOR,
                                      .min_host_minor = INFER_ABI_MINOR,
                                      .name = names[i],
                                      .vendor = "test",
                                      .version = "1",
                                      .build_id = "1",
                                      .device_prefix = names[i],
                                      .ops = &p->ops};
        p->n_rows = 1;
        p->rows[0] = (infer_device_info){.kind = INFER_KIND_GPU, .numa_node = -1};
        snprintf(p->rows[0].name, sizeof p->rows[0].name, "Fake %d", i);
    }
}
