/*
 * sim: a simulated accelerator, to read and to test against. It has its own memory, which the host cannot address,
 * in-order queues that really run on other threads, and a virtual clock; ops run by the host's reference on that
 * memory. It is not fast, and it optimises nothing. Read top to bottom: configuration, memory, clock, commands, queues,
 * ops, table.
 *
 * Settings (host->config_get; sizes take K, M or G; zero speeds take no time):
 *   devices 1            how many devices probe shows        heap_bytes 1G        memory of each
 *   bytes_per_s 100G     memory rate                         flops 10T            arithmetic rate
 *   link_bytes_per_s 16G copies that touch host memory       launch_ns 2000       fixed cost of a command
 *   block_multiple 8     KV block sizes must divide by it    deny_ops a,b         op names answered NO
 *   epilogues 1          longest epilogue prefix taken       scratch_bytes 256    asked (and scribbled on) by every op
 *   native_timelines 0   1: own timelines, not the host's    stream_bytes 1M      command stream of a queue
 *   pace 0               1: commands also take their virtual time on the wall clock
 *   private_weights 1    0: no matrix lies in sim's own layout (sim_weight.c)
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "sim.h"

/* ---- Configuration --------------------------------------------------------------------------------------- */

infer_status sim_fail(const infer_host *host, infer_status s, const char *text)
{
    host->status_detail(host->ctx, s, text);
    return s;
}

/* A number with an optional K, M, G or T (powers of 1024 where `binary`, of 1000 elsewhere), or `def` where not set. */
static infer_status sim_number(const infer_host *host, const char *key, double def, int binary, double *out)
{
    const char *s = host->config_get(host->ctx, key);
    if (!s) {
        *out = def;
        return INFER_OK;
    }
    char *end;
    double v = strtod(s, &end);
    static const char units[] = "KMGT";
    const char *unit = *end ? strchr(units, *end) : NULL;
    for (ptrdiff_t i = 0; unit && i <= unit - units; i++)
        v *= binary ? 1024 : 1000;
    if (end == s || end[unit != NULL] || !(v >= 0) || v > 1e18) {
        char text[128];
        snprintf(text, sizeof(text), "sim: setting %s: \"%.40s\" is not a number", key, s);
        return sim_fail(host, INFER_E_INVALID, text);
    }
    *out = v;
    return INFER_OK;
}

static infer_status sim_configure(const infer_host *host, sim_config *c)
{
    double heap, stream, scratch, multiple, epilogues, pace, native, packs;
    const struct {
        const char *key;
        double def;
        int binary;
        double *out;
    } numbers[] = {
        {"bytes_per_s", 100e9, 0, &c->bytes_per_s},
        {"link_bytes_per_s", 16e9, 0, &c->link_bytes_per_s},
        {"flops", 10e12, 0, &c->flops},
        {"launch_ns", 2000, 0, &c->launch_ns},
        {"heap_bytes", 1 << 30, 1, &heap},
        {"stream_bytes", 1 << 20, 1, &stream},
        {"scratch_bytes", 256, 1, &scratch},
        {"block_multiple", 8, 0, &multiple},
        {"epilogues", 1, 0, &epilogues},
        {"pace", 0, 0, &pace},
        {"native_timelines", 0, 0, &native},
        {"private_weights", 1, 0, &packs},
    };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        infer_status s = sim_number(host, numbers[i].key, numbers[i].def, numbers[i].binary, numbers[i].out);
        if (s)
            return s;
    }
    c->heap_bytes = (uint64_t)heap;
    c->stream_bytes = stream < 65536 ? 65536 : (uint64_t)stream & ~(uint64_t)63;
    c->scratch_bytes = (uint64_t)scratch;
    c->block_multiple = multiple < 1 ? 1 : (uint32_t)multiple;
    c->epilogues = epilogues > SIM_MAX_EPI ? SIM_MAX_EPI : (uint32_t)epilogues;
    c->pace = pace != 0;
    c->native = native != 0;
    c->private_weights = packs != 0;
    const char *deny = host->config_get(host->ctx, "deny_ops");
    while (deny && *deny) {
        size_t n = strcspn(deny, ",");
        infer_op_id id = sim_op_by_name(deny, n);
        if (id == INFER_OP_NONE)
            return sim_fail(host, INFER_E_INVALID, "sim: setting deny_ops names an unknown op");
        c->denied[id] = 1;
        deny += n + (deny[n] == ',');
    }
    return INFER_OK;
}

/* ---- Memory ---------------------------------------------------------------------------------------------- */

uint8_t *sim_resolve(infer_device *dev, const infer_buffer *handle, uint64_t offset, uint64_t size)
{
    uint64_t at = (uint64_t)(uintptr_t)handle - (uint64_t)(uintptr_t)dev->window;
    if (at % SIM_SLOT || at / SIM_SLOT >= SIM_MAX_BUFFERS)
        return NULL;
    const sim_buffer *b = &dev->buffers[at / SIM_SLOT];
    if (!b->data || offset > b->size || size > b->size - offset)
        return NULL;
    return b->data + offset;
}

static infer_status sim_buf_alloc(infer_device *dev, uint32_t heap, uint64_t bytes, infer_buffer **out)
{
    const infer_host *host = dev->host;
    if (heap != 0 || bytes == 0)
        return sim_fail(host, INFER_E_INVALID, "sim: buf_alloc: heap 0 and at least one byte");
    uint64_t booked = bytes + (SIM_ALIGN - bytes % SIM_ALIGN) % SIM_ALIGN;
    infer_status s = INFER_OK;
    pthread_mutex_lock(&dev->lock);
    if (booked < bytes || booked > dev->cfg.heap_bytes - dev->used || dev->n_buffers == SIM_MAX_BUFFERS) {
        s = sim_fail(host, INFER_E_NO_MEMORY, "sim: buf_alloc: the heap has no room");
        goto out_lock;
    }
    uint8_t *data = host->alloc(host->ctx, bytes, SIM_ALIGN);
    if (!data) {
        s = sim_fail(host, INFER_E_NO_MEMORY, "sim: buf_alloc: no host memory to simulate with");
        goto out_lock;
    }
    memset(data, 0xFF, bytes); /* undefined content: NaN as any float, -1 as an id */
    uint32_t i = dev->hint;
    while (dev->buffers[i].data)
        i = (i + 1) % SIM_MAX_BUFFERS;
    dev->buffers[i] = (sim_buffer){data, bytes};
    dev->hint = (i + 1) % SIM_MAX_BUFFERS; /* a freed handle is reused as late as possible */
    dev->used += booked;
    dev->n_buffers++;
    *out = (infer_buffer *)(void *)(dev->window + (uint64_t)i * SIM_SLOT);
out_lock:
    pthread_mutex_unlock(&dev->lock);
    return s;
}

static void sim_buf_free(infer_device *dev, infer_buffer *buf)
{
    if (!sim_resolve(dev, buf, 0, 0)) {
        dev->host->log(dev->host->ctx, 0, "sim: buf_free of something that is no buffer of this device");
        return;
    }
    pthread_mutex_lock(&dev->lock);
    sim_buffer *b = &dev->buffers[((uint8_t *)(void *)buf - dev->window) / SIM_SLOT];
    dev->host->free(dev->host->ctx, b->data);
    dev->used -= b->size + (SIM_ALIGN - b->size % SIM_ALIGN) % SIM_ALIGN;
    dev->n_buffers--;
    *b = (sim_buffer){0};
    pthread_mutex_unlock(&dev->lock);
}

void sim_take(void *dst, uint32_t size, const void *src, uint32_t have)
{
    memset(dst, 0, size);
    memcpy(dst, src, have < size ? have : size);
}

void sim_put(void *dst, void *src, uint32_t size)
{
    uint32_t n;
    memcpy(&n, dst, sizeof(n));
    memcpy(src, &n, sizeof(n));
    memcpy(dst, src, n < size ? n : size);
}

static infer_status sim_dev_heaps(infer_device *dev, infer_heap_info *out, uint32_t cap, uint32_t *n)
{
    if (cap > 0) {
        infer_heap_info h = {.flags = INFER_HEAP_DEVICE_LOCAL,
                             .size = dev->cfg.heap_bytes,
                             .granularity = SIM_ALIGN,
                             .align = SIM_ALIGN,
                             .numa_node = -1};
        sim_put(out, &h, sizeof(h));
    }
    *n = 1;
    return INFER_OK;
}

static infer_status sim_dev_heap_stats(infer_device *dev, uint32_t heap, infer_heap_stats *out)
{
    if (heap != 0)
        return sim_fail(dev->host, INFER_E_INVALID, "sim: there is only heap 0");
    pthread_mutex_lock(&dev->lock);
    uint64_t total = dev->cfg.heap_bytes, used = dev->used;
    pthread_mutex_unlock(&dev->lock);
    infer_heap_stats st = {.total = {.value = total},
                           .budget = {.value = total},
                           .ours = {.value = used},
                           .largest_free = {.value = total - used}};
    sim_put(out, &st, sizeof(st));
    return INFER_OK;
}

/* ---- Clock ----------------------------------------------------------------------------------------------- */

void sim_tick(infer_queue *q, const char *name, double ns)
{
    infer_device *dev = q->dev;
    pthread_mutex_lock(&dev->lock);
    double begin = dev->now_ns;
    dev->now_ns += ns;
    if (dev->prof && dev->prof_n < SIM_PROF_RING) {
        infer_prof_record *r = &dev->prof[(dev->prof_first + dev->prof_n++) % SIM_PROF_RING];
        *r = (infer_prof_record){.begin_ns = (uint64_t)begin, .end_ns = (uint64_t)dev->now_ns, .queue = q->number};
        snprintf(r->name, sizeof(r->name), "%s", name);
    }
    pthread_mutex_unlock(&dev->lock);
    if (dev->cfg.pace) {
        struct timespec t = {(time_t)(ns / 1e9), (long)((uint64_t)ns % 1000000000u)};
        nanosleep(&t, NULL);
    }
}

static void sim_tick_copy(infer_queue *q, const char *name, double bytes, int host_side)
{
    double rate = host_side ? q->dev->cfg.link_bytes_per_s : q->dev->cfg.bytes_per_s / 2;
    sim_tick(q, name, q->dev->cfg.launch_ns + (rate > 0 ? bytes / rate * 1e9 : 0));
}

static infer_status sim_prof_begin(infer_device *dev)
{
    const infer_host *host = dev->host;
    infer_status s = INFER_OK;
    pthread_mutex_lock(&dev->lock);
    if (!dev->prof)
        dev->prof = host->alloc(host->ctx, SIM_PROF_RING * sizeof(*dev->prof), 64);
    if (!dev->prof)
        s = sim_fail(host, INFER_E_NO_MEMORY, "sim: prof_begin: no host memory for the records");
    dev->prof_first = dev->prof_n = 0;
    pthread_mutex_unlock(&dev->lock);
    return s;
}

static infer_status sim_prof_read(infer_device *dev, infer_prof_record *out, uint32_t cap, uint32_t *n)
{
    uint32_t i = 0;
    pthread_mutex_lock(&dev->lock);
    for (; i < cap && dev->prof_n > 0; i++, dev->prof_n--) {
        out[i] = dev->prof[dev->prof_first];
        dev->prof_first = (dev->prof_first + 1) % SIM_PROF_RING;
    }
    pthread_mutex_unlock(&dev->lock);
    *n = i;
    return INFER_OK;
}

/* ---- Commands -------------------------------------------------------------------------------------------- */

static void sim_run_copy(infer_queue *q, const sim_copy *c)
{
    double bytes = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        const infer_copy_region *r = &c->regions[i];
        for (uint64_t row = 0; row < r->rows && r->bytes > 0; row++)
            memmove(c->dst + r->dst_offset + row * r->dst_pitch, c->src + r->src_offset + row * r->src_pitch, r->bytes);
        bytes += (double)r->bytes * (double)r->rows;
    }
    sim_tick_copy(q, "copy", bytes, (int)c->host_side);
}

static void sim_run_fill(infer_queue *q, const sim_fill *f)
{
    for (uint64_t i = 0; i < f->size; i++)
        f->dst[i] = (uint8_t)(f->pattern >> 8 * (i % f->pattern_bytes));
    sim_tick_copy(q, "fill", (double)f->size, 0);
}

/* ---- Timelines ------------------------------------------------------------------------------------------- */

/* By default sim has no tl_* slots and the host gives it software timelines; with native_timelines these are its own.
 */

static infer_status sim_tl_create(infer_device *dev, infer_timeline **out)
{
    infer_timeline *tl = dev->host->alloc(dev->host->ctx, sizeof(*tl), 16);
    if (!tl)
        return sim_fail(dev->host, INFER_E_NO_MEMORY, "sim: tl_create: no host memory");
    pthread_mutex_lock(&dev->lock);
    *tl = (infer_timeline){.dev = dev, .next = dev->timelines};
    dev->timelines = tl;
    pthread_mutex_unlock(&dev->lock);
    *out = tl;
    return INFER_OK;
}

static void sim_tl_destroy(infer_device *dev, infer_timeline *tl)
{
    pthread_mutex_lock(&dev->lock);
    infer_timeline **p = &dev->timelines;
    while (*p && *p != tl)
        p = &(*p)->next;
    if (*p)
        *p = tl->next;
    pthread_mutex_unlock(&dev->lock);
    dev->host->free(dev->host->ctx, tl);
}

static infer_status sim_tl_query(infer_timeline *tl, uint64_t *value)
{
    pthread_mutex_lock(&tl->dev->lock);
    infer_status s = tl->failed;
    if (!s)
        *value = tl->value;
    pthread_mutex_unlock(&tl->dev->lock);
    return s;
}

static infer_status sim_tl_wait(infer_timeline *tl, uint64_t value, uint64_t timeout_ns)
{
    infer_device *dev = tl->dev;
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    uint64_t ns = (uint64_t)end.tv_nsec + timeout_ns % 1000000000u;
    end.tv_sec += (time_t)(timeout_ns / 1000000000u + ns / 1000000000u);
    end.tv_nsec = (long)(ns % 1000000000u);
    int late = 0;
    pthread_mutex_lock(&dev->lock);
    while (!tl->failed && tl->value < value && !late) {
        if (timeout_ns >= (uint64_t)1 << 62) /* for ever */
            pthread_cond_wait(&dev->changed, &dev->lock);
        else
            late = pthread_cond_timedwait(&dev->changed, &dev->lock, &end) != 0;
    }
    infer_status s = tl->failed ? tl->failed : tl->value >= value ? INFER_OK : INFER_PENDING;
    pthread_mutex_unlock(&dev->lock);
    return s;
}

static infer_status sim_tl_set(infer_timeline *tl, uint64_t value, infer_status failed)
{
    infer_status s = INFER_OK;
    pthread_mutex_lock(&tl->dev->lock);
    if (failed)
        tl->failed = failed;
    else if (value < tl->value)
        s = INFER_E_INVALID;
    else
        tl->value = value;
    pthread_cond_broadcast(&tl->dev->changed);
    pthread_mutex_unlock(&tl->dev->lock);
    return s;
}

static infer_status sim_tl_signal_host(infer_timeline *tl, uint64_t value)
{
    infer_status s = sim_tl_set(tl, value, INFER_OK);
    return s ? sim_fail(tl->dev->host, s, "sim: tl_signal_host: a timeline does not go back") : s;
}

/* The worker's side of a signal and of a wait. */
static void sim_run_signal(infer_queue *q, const sim_sync *c)
{
    const infer_host *host = q->dev->host;
    if (q->dev->cfg.native)
        sim_tl_set(c->tl, c->value, q->failed);
    else if (q->failed)
        host->tl_fail(host->ctx, c->tl, q->failed);
    else
        host->tl_advance(host->ctx, c->tl, c->value);
}

static infer_status sim_run_wait(infer_queue *q, const sim_sync *c)
{
    const infer_host *host = q->dev->host;
    for (;;) { /* in slices, so that a queue can be destroyed while the host never signals */
        infer_status s = q->dev->cfg.native ? sim_tl_wait(c->tl, c->value, 20000000)
                                            : host->tl_wait(host->ctx, c->tl, c->value, 20000000);
        if (s != INFER_PENDING)
            return s;
        pthread_mutex_lock(&q->lock);
        int stop = q->stop;
        pthread_mutex_unlock(&q->lock);
        if (stop)
            return INFER_E_CANCELLED;
    }
}

/* ---- Queues ---------------------------------------------------------------------------------------------- */

static infer_status sim_run(infer_queue *q, const sim_cmd *cmd)
{
    if (cmd->kind == CMD_SIGNAL)
        sim_run_signal(q, (const sim_sync *)(const void *)cmd);
    else if (q->failed)
        return q->failed; /* after a failure nothing runs any more, but signals still fail their timelines */
    else if (cmd->kind == CMD_COPY)
        sim_run_copy(q, (const sim_copy *)(const void *)cmd);
    else if (cmd->kind == CMD_FILL)
        sim_run_fill(q, (const sim_fill *)(const void *)cmd);
    else if (cmd->kind == CMD_OP)
        return sim_run_op(q, (const sim_op *)(const void *)cmd) ? INFER_E_QUEUE : INFER_OK;
    else if (cmd->kind == CMD_WAIT)
        return sim_run_wait(q, (const sim_sync *)(const void *)cmd);
    return INFER_OK;
}

static void *sim_worker(void *arg)
{
    infer_queue *q = arg;
    pthread_mutex_lock(&q->lock);
    for (;;) {
        while (q->head == q->tail && !q->stop)
            pthread_cond_wait(&q->more, &q->lock);
        if (q->head == q->tail)
            break;
        const sim_cmd *cmd = (const void *)(q->stream + q->head % q->dev->cfg.stream_bytes);
        uint64_t bytes = cmd->bytes;
        pthread_mutex_unlock(&q->lock);
        infer_status s = sim_run(q, cmd);
        if (s && !q->failed)
            q->failed = s;
        pthread_mutex_lock(&q->lock);
        q->head += bytes;
        pthread_cond_signal(&q->room);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

void *sim_begin(infer_queue *q, uint32_t kind, uint64_t bytes, int may_wait)
{
    uint64_t size = q->dev->cfg.stream_bytes, at;
    bytes = (bytes + 63) & ~(uint64_t)63;
    pthread_mutex_lock(&q->lock);
    for (;;) {
        at = q->tail % size;
        uint64_t skip = bytes > size - at ? size - at : 0; /* records do not wrap around */
        if (q->tail + skip + bytes - q->head <= size) {
            if (skip)
                *(sim_cmd *)(void *)(q->stream + at) = (sim_cmd){.kind = CMD_SKIP, .bytes = skip};
            q->tail += skip;
            break;
        }
        if (!may_wait) {
            pthread_mutex_unlock(&q->lock);
            return NULL;
        }
        pthread_cond_wait(&q->room, &q->lock);
    }
    sim_cmd *cmd = (void *)(q->stream + q->tail % size);
    *cmd = (sim_cmd){.kind = kind, .bytes = bytes};
    return cmd;
}

void sim_end(infer_queue *q, const void *record)
{
    const sim_cmd *cmd = record;
    q->tail += cmd->bytes;
    pthread_cond_signal(&q->more);
    pthread_mutex_unlock(&q->lock);
}

static infer_status sim_queue_create(infer_device *dev, uint32_t classes, infer_queue **out)
{
    const infer_host *host = dev->host;
    if (!classes || classes & ~(INFER_QUEUE_COMPUTE | INFER_QUEUE_COPY))
        return sim_fail(host, INFER_E_INVALID, "sim: queue_create: unknown classes");
    infer_queue *q = host->alloc(host->ctx, sizeof(*q), 64);
    if (!q)
        goto err;
    memset(q, 0, sizeof(*q));
    q->dev = dev;
    q->stream = host->alloc(host->ctx, dev->cfg.stream_bytes, 64);
    if (!q->stream)
        goto err_queue;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->more, NULL);
    pthread_cond_init(&q->room, NULL);
    pthread_mutex_lock(&dev->lock);
    q->number = dev->n_queues++;
    pthread_mutex_unlock(&dev->lock);
    sigset_t all, old; /* the process's signals are not for the worker */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&q->thread, NULL, sim_worker, q);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc)
        goto err_stream;
    *out = q;
    return INFER_OK;
err_stream:
    pthread_cond_destroy(&q->room);
    pthread_cond_destroy(&q->more);
    pthread_mutex_destroy(&q->lock);
    host->free(host->ctx, q->stream);
err_queue:
    host->free(host->ctx, q);
err:
    return sim_fail(host, INFER_E_NO_MEMORY, "sim: queue_create: no host memory or thread");
}

static void sim_queue_destroy(infer_device *dev, infer_queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->stop = 1;
    pthread_cond_signal(&q->more);
    pthread_mutex_unlock(&q->lock);
    pthread_join(q->thread, NULL);
    pthread_cond_destroy(&q->room);
    pthread_cond_destroy(&q->more);
    pthread_mutex_destroy(&q->lock);
    dev->host->free(dev->host->ctx, q->stream);
    dev->host->free(dev->host->ctx, q);
}

static infer_status sim_sync_push(infer_queue *q, uint32_t kind, infer_timeline *tl, uint64_t value)
{
    infer_device *dev = q->dev;
    if (dev->cfg.native) {
        pthread_mutex_lock(&dev->lock);
        const infer_timeline *p = dev->timelines;
        while (p && p != tl)
            p = p->next;
        pthread_mutex_unlock(&dev->lock);
        if (!p)
            return sim_fail(dev->host, INFER_E_UNSUPPORTED, "sim: not a timeline of this device");
    }
    sim_sync *c = sim_begin(q, kind, sizeof(*c), 0);
    if (!c)
        return INFER_AGAIN;
    c->tl = tl;
    c->value = value;
    sim_end(q, c);
    return INFER_OK;
}

static infer_status sim_queue_wait(infer_queue *q, infer_timeline *tl, uint64_t value)
{
    return sim_sync_push(q, CMD_WAIT, tl, value);
}

static infer_status sim_queue_signal(infer_queue *q, infer_timeline *tl, uint64_t value)
{
    return sim_sync_push(q, CMD_SIGNAL, tl, value);
}

/* Whether bytes x rows from offset on lie within a side of a copy. */
static int sim_side_ok(infer_device *dev, const infer_copy_end *end, uint64_t offset, uint64_t bytes, uint64_t rows,
                       uint64_t pitch)
{
    uint64_t span = 0;
    if (rows > 1 && (__builtin_mul_overflow(rows - 1, pitch, &span) || span + bytes < span))
        return 0;
    return !end->buffer || sim_resolve(dev, end->buffer, offset, span + bytes) != NULL;
}

static infer_status sim_cmd_copy(infer_queue *q, const infer_copy_end *dst, const infer_copy_end *src,
                                 const infer_copy_region *regions, uint32_t n)
{
    infer_device *dev = q->dev;
    for (uint32_t i = 0; i < n; i++) {
        const infer_copy_region *r = &regions[i];
        if (!sim_side_ok(dev, dst, r->dst_offset, r->bytes, r->rows, r->dst_pitch) ||
            !sim_side_ok(dev, src, r->src_offset, r->bytes, r->rows, r->src_pitch))
            return sim_fail(dev->host, INFER_E_INVALID, "sim: cmd_copy: a region outside a buffer of this device");
    }
    uint32_t most = (uint32_t)((dev->cfg.stream_bytes / 4 - sizeof(sim_copy)) / sizeof(infer_copy_region));
    for (int begun = 0; n > 0; begun = 1) { /* back-pressure only while nothing of the list is submitted */
        uint32_t part = n < most ? n : most;
        sim_copy *c = sim_begin(q, CMD_COPY, sizeof(*c) + part * sizeof(*regions), begun);
        if (!c)
            return INFER_AGAIN;
        c->dst = dst->buffer ? sim_resolve(dev, dst->buffer, 0, 0) : dst->host;
        c->src = src->buffer ? sim_resolve(dev, src->buffer, 0, 0) : src->host;
        c->host_side = !dst->buffer || !src->buffer;
        c->n = part;
        memcpy(c->regions, regions, part * sizeof(*regions));
        sim_end(q, c);
        regions += part;
        n -= part;
    }
    return INFER_OK;
}

static infer_status sim_cmd_fill(infer_queue *q, const infer_range *dst, uint32_t pattern, uint32_t pattern_bytes)
{
    infer_device *dev = q->dev;
    uint8_t *p = sim_resolve(dev, dst->buffer, dst->offset, dst->size);
    if (!p || (pattern_bytes != 1 && pattern_bytes != 2 && pattern_bytes != 4) || dst->size % pattern_bytes)
        return sim_fail(dev->host, INFER_E_INVALID, "sim: cmd_fill: range or pattern");
    sim_fill *c = sim_begin(q, CMD_FILL, sizeof(*c), 0);
    if (!c)
        return INFER_AGAIN;
    c->dst = p;
    c->size = dst->size;
    c->pattern = pattern;
    c->pattern_bytes = pattern_bytes;
    sim_end(q, c);
    return INFER_OK;
}

/* Paged groups only; blocks must be a multiple of the configured size, so that the core has a common multiple to find.
 */
static infer_status sim_kv_query(infer_device *dev, const infer_kv_spec *given, infer_kv_answer *out)
{
    infer_kv_spec spec;
    sim_take(&spec, sizeof(spec), given, given->struct_size);
    infer_kv_answer a = {.level = INFER_LEVEL_NO};
    if (spec.kind < INFER_GROUP_FULL || spec.kind > INFER_GROUP_LATENT) {
        a.why = INFER_WHY_ATTR;
        a.which = 1;
        goto done;
    }
    for (uint32_t i = 0; i < spec.n_planes && i < 4; i++) {
        const infer_kv_plane *p = &spec.planes[i];
        if (!sim_format_bytes(p->format)) {
            a.why = INFER_WHY_FORMAT;
            a.which = i;
            goto done;
        }
        a.block_bytes[i] = (uint64_t)(p->per_head ? spec.n_heads : 1) * 2 * dev->cfg.block_multiple * p->width *
                           sim_format_bytes(p->format) / 256;
    }
    a.level = INFER_LEVEL_NATIVE;
    a.block_multiple = dev->cfg.block_multiple;
    a.block_best = 2 * dev->cfg.block_multiple;
    a.layout = INFER_LAYOUT_CANONICAL;
    a.align = SIM_ALIGN;
done:
    sim_put(out, &a, sizeof(a));
    return INFER_OK;
}

/* ---- Devices --------------------------------------------------------------------------------------------- */

static infer_status sim_probe(const infer_host *host, infer_device_info *out, uint32_t cap, uint32_t *n)
{
    sim_config cfg = {0};
    double devices;
    infer_status s = sim_number(host, "devices", 1, 0, &devices);
    if (!s)
        s = sim_configure(host, &cfg);
    if (s)
        return s;
    uint32_t count = devices > 64 ? 64 : (uint32_t)devices;
    uint64_t stride = cap ? out->struct_size : 0;
    for (uint32_t i = 0; i < count && i < cap; i++) {
        infer_device_info d = {
            .kind = INFER_KIND_SOFTWARE, .index = i, .numa_node = -1, .memory_total = cfg.heap_bytes};
        snprintf(d.name, sizeof(d.name), "Simulated accelerator %u", (unsigned)i);
        snprintf(d.uuid, sizeof(d.uuid), "51500000-0000-4000-8000-%012u", (unsigned)i);
        snprintf(d.driver, sizeof(d.driver), "sim %s", PACKAGE_VERSION);
        snprintf(d.arch, sizeof(d.arch), "sim");
        infer_device_info *to = (void *)((char *)out + i * stride);
        to->struct_size = (uint32_t)stride;
        sim_put(to, &d, sizeof(d));
    }
    *n = count;
    return INFER_OK;
}

static infer_status sim_dev_open(const infer_host *host, uint32_t index, infer_device **out)
{
    double devices;
    infer_status s = sim_number(host, "devices", 1, 0, &devices);
    if (s)
        return s;
    if (index >= devices)
        return sim_fail(host, INFER_E_NO_DEVICE, "sim: dev_open: no device of this index");
    infer_device *dev = host->alloc(host->ctx, sizeof(*dev), 64);
    if (!dev)
        return sim_fail(host, INFER_E_NO_MEMORY, "sim: dev_open: no host memory");
    *dev = (infer_device){.host = host, .index = index};
    s = sim_configure(host, &dev->cfg);
    if (s)
        goto err_dev;
    s = INFER_E_NO_MEMORY;
    dev->buffers = host->alloc(host->ctx, SIM_MAX_BUFFERS * sizeof(*dev->buffers), 64);
    if (!dev->buffers) {
        sim_fail(host, s, "sim: dev_open: no host memory");
        goto err_dev;
    }
    memset(dev->buffers, 0, SIM_MAX_BUFFERS * sizeof(*dev->buffers));
    dev->window =
        mmap(NULL, (size_t)SIM_MAX_BUFFERS * SIM_SLOT, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (dev->window == MAP_FAILED) {
        sim_fail(host, s, "sim: dev_open: mmap of the address window");
        goto err_buffers;
    }
    pthread_mutex_init(&dev->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&dev->changed, &attr);
    pthread_condattr_destroy(&attr);
    *out = dev;
    return INFER_OK;
err_buffers:
    host->free(host->ctx, dev->buffers);
err_dev:
    host->free(host->ctx, dev);
    return s;
}

static void sim_dev_close(infer_device *dev)
{
    const infer_host *host = dev->host;
    if (dev->n_buffers || dev->timelines)
        host->log(host->ctx, 0, "sim: dev_close: buffers or timelines are left");
    for (uint32_t i = 0; i < SIM_MAX_BUFFERS && dev->n_buffers; i++)
        if (dev->buffers[i].data) {
            host->free(host->ctx, dev->buffers[i].data);
            dev->n_buffers--;
        }
    pthread_cond_destroy(&dev->changed);
    pthread_mutex_destroy(&dev->lock);
    munmap(dev->window, (size_t)SIM_MAX_BUFFERS * SIM_SLOT);
    host->free(host->ctx, dev->prof);
    host->free(host->ctx, dev->buffers);
    host->free(host->ctx, dev);
}

static infer_status sim_dev_props(infer_device *dev, infer_device_props *out)
{
    infer_device_props p = {.flags = INFER_PROP_ROW_INVARIANT | INFER_PROP_PARALLEL_LOAD,
                            .buffer_align = SIM_BIND_ALIGN,
                            .n_queues = 2,
                            .max_buffer = dev->cfg.heap_bytes,
                            .read_bytes_per_s = dev->cfg.bytes_per_s,
                            .f32_flops = dev->cfg.flops,
                            .f16_flops = dev->cfg.flops,
                            .i8_ops = dev->cfg.flops,
                            .launch_ns = dev->cfg.launch_ns,
                            .n_cores = 1,
                            .simd_width = 4,
                            .isa = "reference"};
    for (uint32_t i = 0; i < INFER_FMT_COUNT; i++)
        p.formats |= (uint64_t)(sim_format_bytes(i) != 0) << i;
    sim_put(out, &p, sizeof(p));
    return INFER_OK;
}

/* ---- The plugin ------------------------------------------------------------------------------------------ */

#define SIM_SLOTS                                                                                                      \
    .struct_size = sizeof(infer_backend_ops), .probe = sim_probe, .dev_open = sim_dev_open,                            \
    .dev_close = sim_dev_close, .dev_props = sim_dev_props, .dev_heaps = sim_dev_heaps,                                \
    .dev_heap_stats = sim_dev_heap_stats, .buf_alloc = sim_buf_alloc, .buf_free = sim_buf_free,                        \
    .queue_create = sim_queue_create, .queue_destroy = sim_queue_destroy, .queue_wait = sim_queue_wait,                \
    .queue_signal = sim_queue_signal, .cmd_copy = sim_cmd_copy, .cmd_fill = sim_cmd_fill, .op_query = sim_op_query,    \
    .cmd_op = sim_cmd_op, .weight_plan = sim_weight_plan, .weight_begin = sim_weight_begin,                            \
    .weight_append = sim_weight_append, .weight_finish = sim_weight_finish, .weight_destroy = sim_weight_destroy,      \
    .kv_query = sim_kv_query, .prof_begin = sim_prof_begin, .prof_read = sim_prof_read

static const infer_backend_ops sim_table = {SIM_SLOTS};
static const infer_backend_ops sim_table_native = {
    SIM_SLOTS,
    .tl_create = sim_tl_create,
    .tl_destroy = sim_tl_destroy,
    .tl_query = sim_tl_query,
    .tl_wait = sim_tl_wait,
    .tl_signal_host = sim_tl_signal_host,
};

#define SIM_DESC(table)                                                                                                \
    {                                                                                                                  \
        .struct_size = sizeof(infer_plugin_desc), .abi_major = INFER_ABI_MAJOR, .abi_minor = INFER_ABI_MINOR,          \
        .min_host_minor = INFER_ABI_MINOR, .name = "sim", .vendor = "infer", .version = PACKAGE_VERSION,               \
        .build_id = PACKAGE_VERSION, .device_prefix = "sim", .rank = -100, .ops = &(table)                             \
    }

const infer_plugin_desc *infer_plugin_query(const infer_host *host, const infer_abi_range *range)
{
    static const infer_plugin_desc desc = SIM_DESC(sim_table), desc_native = SIM_DESC(sim_table_native);
    if (range->major != INFER_ABI_MAJOR || range->minor_min > INFER_ABI_MINOR || range->minor_max < INFER_ABI_MINOR) {
        host->log(host->ctx, 2, "sim: written for another ABI than this host's");
        return NULL;
    }
    const char *native = host->config_get(host->ctx, "native_timelines");
    return native && native[0] == '1' ? &desc_native : &desc;
}
