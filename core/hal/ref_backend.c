/*
 * The backend "ref": the reference ops on plain host memory. It is the smallest complete plugin, and the first thing to
 * read for a new one: it uses nothing but the plugin headers and the host's services. Work runs inside the submitting
 * call, so its queue has no state and its timelines are the host's. It is never chosen unasked and never fast.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <infer/backend.h>

#include "hal/internal.h"

enum { ALIGN = 64, BINDING_ALIGN = 8, BLOCK_BEST = 32 };

struct infer_device {
    const infer_host *host;
    uint64_t memory;       /* bytes that may be allocated */
    _Atomic uint64_t used; /* of these */
    struct infer_queue *queue;
};

struct infer_queue {
    infer_device *dev;
};

struct infer_buffer {
    uint8_t *p;
    uint64_t bytes;
    int imported;
};

static infer_status fail(const infer_host *host, infer_status s, const char *text)
{
    host->status_detail(host->ctx, s, text);
    return s;
}

/* Fills a caller's struct, who may know fewer fields than this file: the first word is its size, which stays. */
static void put(void *dst, void *src, uint32_t size)
{
    uint32_t n;
    memcpy(&n, dst, sizeof n);
    memcpy(src, &n, sizeof n);
    memcpy(dst, src, n < size ? n : size);
}

/* ---- Device ------------------------------------------------------------------------------------------------- */

static uint64_t host_memory(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 0;
}

static infer_status probe(const infer_host *host, infer_device_info *out, uint32_t cap, uint32_t *n)
{
    (void)host;
    *n = 1;
    if (!cap)
        return INFER_OK;
    infer_device_info d = {.kind = INFER_KIND_SOFTWARE, .numa_node = -1, .memory_total = host_memory()};
    snprintf(d.name, sizeof d.name, "reference operations in plain C");
    snprintf(d.driver, sizeof d.driver, "infer %s", INFER_VERSION_STRING);
    put(out, &d, sizeof d);
    return INFER_OK;
}

static infer_status dev_open(const infer_host *host, uint32_t index, infer_device **out)
{
    if (index)
        return fail(host, INFER_E_NO_DEVICE, "there is only device 0");
    infer_device *dev = host->alloc(host->ctx, sizeof *dev, ALIGN);
    if (!dev)
        return fail(host, INFER_E_NO_MEMORY, "no host memory for the device");
    memset(dev, 0, sizeof *dev);
    dev->host = host;
    dev->memory = host_memory();
    *out = dev;
    return INFER_OK;
}

static void dev_close(infer_device *dev)
{
    dev->host->free(dev->host->ctx, dev);
}

static infer_status dev_props(infer_device *dev, infer_device_props *out)
{
    infer_device_props p = {.flags = INFER_PROP_ROW_INVARIANT | INFER_PROP_HOST_MEMORY | INFER_PROP_INLINE |
                                     INFER_PROP_PARALLEL_LOAD,
                            .buffer_align = BINDING_ALIGN,
                            .n_queues = 1,
                            .formats = ~(uint64_t)1, /* op_query has the exact answer */
                            .max_buffer = dev->memory,
                            .n_cores = 1,
                            .isa = "c"};
    put(out, &p, sizeof p);
    return INFER_OK;
}

static infer_status dev_heaps(infer_device *dev, infer_heap_info *out, uint32_t cap, uint32_t *n)
{
    *n = 1;
    if (!cap)
        return INFER_OK;
    infer_heap_info h = {.flags = INFER_HEAP_HOST_VISIBLE | INFER_HEAP_COHERENT | INFER_HEAP_DEVICE_LOCAL,
                         .size = dev->memory,
                         .granularity = ALIGN,
                         .align = ALIGN,
                         .numa_node = -1};
    put(out, &h, sizeof h);
    return INFER_OK;
}

static infer_status dev_heap_stats(infer_device *dev, uint32_t heap, infer_heap_stats *out)
{
    if (heap)
        return INFER_E_INVALID;
    infer_heap_stats st = {.total = {.value = dev->memory, .quality = INFER_KNOWN_EXACT},
                           .budget = {.value = dev->memory, .quality = INFER_KNOWN_ESTIMATE},
                           .ours = {.value = atomic_load(&dev->used), .quality = INFER_KNOWN_EXACT},
                           .others = {.quality = INFER_KNOWN_NOT},
                           .largest_free = {.quality = INFER_KNOWN_NOT}};
    put(out, &st, sizeof st);
    return INFER_OK;
}

/* ---- Memory ------------------------------------------------------------------------------------------------- */

static infer_status make_buffer(infer_device *dev, uint8_t *p, uint64_t bytes, int imported, infer_buffer **out)
{
    infer_buffer *buf = dev->host->alloc(dev->host->ctx, sizeof *buf, ALIGN);
    if (!buf)
        return fail(dev->host, INFER_E_NO_MEMORY, "no host memory for a buffer");
    *buf = (infer_buffer){.p = p, .bytes = bytes, .imported = imported};
    *out = buf;
    return INFER_OK;
}

static infer_status buf_alloc(infer_device *dev, uint32_t heap, uint64_t bytes, infer_buffer **out)
{
    if (heap || !bytes)
        return INFER_E_INVALID;
    if (atomic_fetch_add(&dev->used, bytes) + bytes > dev->memory) {
        atomic_fetch_sub(&dev->used, bytes);
        return fail(dev->host, INFER_E_NO_MEMORY, "more than the machine has");
    }
    uint8_t *p = dev->host->alloc(dev->host->ctx, bytes, ALIGN);
    infer_status s = p ? make_buffer(dev, p, bytes, 0, out) : fail(dev->host, INFER_E_NO_MEMORY, "no host memory");
    if (s) {
        dev->host->free(dev->host->ctx, p);
        atomic_fetch_sub(&dev->used, bytes);
    }
    return s;
}

static infer_status buf_import_host(infer_device *dev, void *p, uint64_t bytes, infer_buffer **out)
{
    return make_buffer(dev, p, bytes, 1, out);
}

static void buf_free(infer_device *dev, infer_buffer *buf)
{
    if (!buf->imported) {
        atomic_fetch_sub(&dev->used, buf->bytes);
        dev->host->free(dev->host->ctx, buf->p);
    }
    dev->host->free(dev->host->ctx, buf);
}

static infer_status buf_map(infer_device *dev, const infer_range *range, void **out)
{
    (void)dev;
    *out = range->buffer->p + range->offset;
    return INFER_OK;
}

static void buf_unmap(infer_device *dev, const infer_range *range, void *p)
{
    (void)dev;
    (void)range;
    (void)p;
}

/* ---- Queue: everything is done when the call returns ------------------------------------------------------- */

static infer_status queue_create(infer_device *dev, uint32_t classes, infer_queue **out)
{
    if (!classes)
        return fail(dev->host, INFER_E_INVALID, "a queue needs a class of work");
    infer_queue *q = dev->host->alloc(dev->host->ctx, sizeof *q, ALIGN);
    if (!q)
        return fail(dev->host, INFER_E_NO_MEMORY, "no host memory for the queue");
    q->dev = dev;
    *out = q;
    return INFER_OK;
}

static void queue_destroy(infer_device *dev, infer_queue *queue)
{
    dev->host->free(dev->host->ctx, queue);
}

static infer_status queue_wait(infer_queue *queue, infer_timeline *tl, uint64_t value)
{
    const infer_host *host = queue->dev->host;
    return host->tl_wait(host->ctx, tl, value, UINT64_MAX);
}

static infer_status queue_signal(infer_queue *queue, infer_timeline *tl, uint64_t value)
{
    const infer_host *host = queue->dev->host;
    host->tl_advance(host->ctx, tl, value);
    return INFER_OK;
}

static infer_status cmd_copy(infer_queue *queue, const infer_copy_end *dst, const infer_copy_end *src,
                             const infer_copy_region *regions, uint32_t n)
{
    (void)queue;
    uint8_t *to = dst->buffer ? dst->buffer->p : dst->host;
    const uint8_t *from = src->buffer ? src->buffer->p : src->host;
    for (const infer_copy_region *r = regions; r < regions + n; r++)
        for (uint64_t i = 0; i < r->rows; i++)
            memmove(to + r->dst_offset + i * r->dst_pitch, from + r->src_offset + i * r->src_pitch, (size_t)r->bytes);
    return INFER_OK;
}

static infer_status cmd_fill(infer_queue *queue, const infer_range *dst, uint32_t pattern, uint32_t pattern_bytes)
{
    (void)queue;
    uint8_t *p = dst->buffer->p + dst->offset, bytes[4];
    for (uint32_t i = 0; i < 4; i++)
        bytes[i] = (uint8_t)(pattern >> 8 * i);
    for (uint64_t i = 0; i < dst->size; i++)
        p[i] = bytes[i % pattern_bytes];
    return INFER_OK;
}

/* ---- Ops: whatever the reference takes --------------------------------------------------------------------- */

static infer_status op_query(infer_device *dev, const infer_op_desc *ops, uint32_t op_size, uint32_t n,
                             infer_op_answer *out, uint32_t answer_size)
{
    for (uint32_t i = 0; i < n; i++) {
        const infer_op_desc *op = (const infer_op_desc *)(const void *)((const char *)ops + (uint64_t)i * op_size);
        infer_op_answer *a = (infer_op_answer *)(void *)((char *)out + (uint64_t)i * answer_size);
        if (dev->host->op_check(dev->host->ctx, op)) {
            a->level = INFER_LEVEL_NO;
            a->why = INFER_WHY_OP;
            continue;
        }
        a->level = INFER_LEVEL_NATIVE;
        a->n_epilogue = op->n_epilogue; /* ref_op does the whole list */
        a->row_invariant = 1;
    }
    return INFER_OK;
}

static infer_status cmd_op(infer_queue *queue, const infer_op_desc *op, const infer_op_args *args)
{
    const infer_host *host = queue->dev->host;
    void *data[INFER_OP_MAX_OPERANDS];
    if (args->n_operands > INFER_OP_MAX_OPERANDS || args->n_operands != op->n_in + op->n_out)
        return fail(host, INFER_E_INVALID, "wrong number of operands");
    for (uint32_t i = 0; i < args->n_operands; i++) {
        const infer_range *r = &args->operands[i];
        data[i] = r->buffer ? r->buffer->p + r->offset : NULL;
    }
    const infer_range *counts = &args->counts;
    return host->ref_op(host->ctx, op, data,
                        counts->buffer ? (const int32_t *)(const void *)(counts->buffer->p + counts->offset) : NULL);
}

/* ---- Cache groups: the default, and the quantised formats --------------------------------------------------- */

static int holds(infer_format f)
{
    return f == INFER_FMT_F32 || f == INFER_FMT_F16 || f == INFER_FMT_BF16 || f == INFER_FMT_F8_E4M3 ||
           f == INFER_FMT_Q8_0 || f == INFER_FMT_Q4_0;
}

static infer_status kv_query(infer_device *dev, const infer_kv_spec *spec, infer_kv_answer *out)
{
    out->level = INFER_LEVEL_NO;
    if (spec->kind < INFER_GROUP_FULL || spec->kind > INFER_GROUP_ENCODER) {
        out->why = INFER_WHY_ATTR;
        out->which = 1;
        return INFER_OK;
    }
    for (uint32_t i = 0; i < spec->n_planes; i++)
        if (!holds(spec->planes[i].format)) {
            out->why = INFER_WHY_FORMAT;
            out->which = i;
            return INFER_OK;
        }
    out->block_multiple = 1;
    out->block_best = spec->kind == INFER_GROUP_RECURRENT ? 1 : BLOCK_BEST;
    out->align = BINDING_ALIGN;
    infer_status s = hal_kv_canonical_bytes(spec, out);
    if (s)
        return fail(dev->host, s, "a plane's width is no whole number of its format's blocks");
    out->level = INFER_LEVEL_NATIVE;
    return INFER_OK;
}

/* ---- The table ---------------------------------------------------------------------------------------------- */

static const infer_backend_ops table = {
    .struct_size = sizeof table,
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
    /* optional from here; everything absent is the core's default */
    .buf_map = buf_map,
    .buf_unmap = buf_unmap,
    .buf_import_host = buf_import_host,
    .kv_query = kv_query,
};

const infer_plugin_desc *infer_plugin_query_ref(const infer_host *host, const infer_abi_range *range)
{
    static const infer_plugin_desc desc = {
        .struct_size = sizeof desc,
        .abi_major = INFER_ABI_MAJOR,
        .abi_minor = INFER_ABI_MINOR,
        .min_host_minor = INFER_ABI_MINOR,
        .name = "ref",
        .vendor = "infer",
        .version = INFER_VERSION_STRING,
        .build_id = INFER_VERSION_STRING,
        .device_prefix = "ref",
        .rank = -100,
        .ops = &table,
    };
    if (range->major != INFER_ABI_MAJOR || range->minor_min > INFER_ABI_MINOR || range->minor_max < INFER_ABI_MINOR) {
        host->log(host->ctx, 0, "ref: no common plugin interface");
        return NULL;
    }
    return &desc;
}
