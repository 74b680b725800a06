/*
 * Mutants: mistakes of slots other than ops and programs. Each slot passes on to sim's, bent where the chosen mutant
 * says so. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mutant.h"

#define IS(id)      mutant_is(MUT_##id)
#define IN          mutant_inner
#define SIM_PRIVATE 0x51u /* sim.h: SIM_LAYOUT */

static const infer_host *given_host; /* the core's, or a case's */

uint32_t mutant_slots_list(infer_mutant *out, uint32_t cap)
{
    static const struct {
        const char *name;
        uint32_t tier;
        const char *only, *what;
    } rows[] = {
#define X(id, tier, only, what) {#id, tier, only, what},
        MUTANT_SLOTS(X)
#undef X
    };
    uint32_t n = 0;
    for (; n < MUT_N && n < cap; n++) {
        out[n] = (infer_mutant){.tier = rows[n].tier, .what = rows[n].what, .group = MUTANT_SLOT, .target = n};
        snprintf(out[n].name, sizeof(out[n].name), "slot.%s", rows[n].name);
        snprintf(out[n].only, sizeof(out[n].only), "%s", rows[n].only);
    }
    return n;
}

/* ---- Which device something belongs to --------------------------------------------------------------------- */

typedef struct owner {
    const void *what;
    uint32_t device;
} owner;

static owner owners[256];
static uint32_t n_owners;
static pthread_mutex_t owners_lock = PTHREAD_MUTEX_INITIALIZER;

static void own_by(const void *what, uint32_t device)
{
    pthread_mutex_lock(&owners_lock);
    owners[n_owners++ % 256] = (owner){what, device};
    pthread_mutex_unlock(&owners_lock);
}

/* The newest answer, or 99. */
static uint32_t owner_of(const void *what)
{
    uint32_t d = 99;
    pthread_mutex_lock(&owners_lock);
    for (uint32_t i = 0; i < 256 && i < n_owners && d == 99; i++)
        if (owners[(n_owners - 1 - i) % 256].what == what)
            d = owners[(n_owners - 1 - i) % 256].device;
    pthread_mutex_unlock(&owners_lock);
    return d;
}

/* ---- Devices and memory ------------------------------------------------------------------------------------ */

static infer_status m_probe(const infer_host *host, infer_device_info *out, uint32_t cap, uint32_t *n)
{
    given_host = host;
    infer_status s = IN.probe(mutant_host(host), out, cap, n);
    if (!s && !cap && IS(probe_count)) {
        ++*n;
        mutant_changed();
    }
    if (!s && cap > 1 && *n > 1 && IS(probe_index)) {
        ((infer_device_info *)(void *)((char *)out + out->struct_size))->index = 0;
        mutant_changed();
    }
    return s;
}

static void *volatile lost;

static void lose_block(void)
{
    void **block = given_host->alloc(given_host->ctx, 64, 64);
    if (block)
        *block = lost; /* reachable, so that a leak checker of the process stays quiet */
    lost = block;
    mutant_changed();
}

static infer_status m_dev_open(const infer_host *host, uint32_t index, infer_device **out)
{
    given_host = host;
    if (IS(open_index) && index > 8) {
        index = 0;
        mutant_changed();
    }
    infer_status s = IN.dev_open(mutant_host(host), index, out);
    if (!s)
        own_by(*out, index);
    if (s && IS(alloc_output)) {
        *out = NULL;
        mutant_changed();
    }
    if (!s && IS(open_leak))
        lose_block();
    return s;
}

static infer_status m_dev_props(infer_device *dev, infer_device_props *out)
{
    infer_device_props p = {.struct_size = sizeof(p)};
    uint32_t size = out->struct_size;
    infer_status s = IN.dev_props(dev, out);
    if (s)
        return s;
    if (IS(props_size) && size < sizeof(p) && !IN.dev_props(dev, &p)) {
        p.struct_size = size;
        memcpy(out, &p, sizeof(p));
        mutant_changed();
    }
    if (IS(props_align)) {
        out->buffer_align = 48;
        mutant_changed();
    }
    return s;
}

static infer_status m_dev_heaps(infer_device *dev, infer_heap_info *out, uint32_t cap, uint32_t *n)
{
    infer_status s = IN.dev_heaps(dev, out, cap, n);
    if (!s && !cap && IS(heaps_count)) {
        ++*n;
        mutant_changed();
    }
    if (!s && cap && IS(heaps_align) && out->struct_size > offsetof(infer_heap_info, align)) {
        out->align = 96;
        mutant_changed();
    }
    return s;
}

static infer_status m_dev_heap_stats(infer_device *dev, uint32_t heap, infer_heap_stats *out)
{
    if (IS(stats_heap) && heap) {
        heap = 0;
        mutant_changed();
    }
    infer_status s = IN.dev_heap_stats(dev, heap, out);
    if (!s && IS(stats_ours)) {
        out->ours.value = 0;
        mutant_changed();
    }
    return s;
}

static atomic_int heap_full; /* the last allocation did not fit */

static infer_status m_buf_alloc(infer_device *dev, uint32_t heap, uint64_t bytes, infer_buffer **out)
{
    if (IS(buf_alloc_zero) && !bytes) {
        bytes = 64;
        mutant_changed();
    }
    infer_status s = IN.buf_alloc(dev, heap, bytes, out);
    heap_full = s == INFER_E_NO_MEMORY;
    if (!s)
        return s;
    if (IS(buf_alloc_over) && s == INFER_E_NO_MEMORY) {
        mutant_changed();
        return IN.buf_alloc(dev, heap, 4096, out);
    }
    if (IS(buf_alloc_writes)) {
        *out = NULL;
        mutant_changed();
    }
    if (IS(alloc_leak))
        lose_block();
    return s;
}

static void m_buf_free(infer_device *dev, infer_buffer *b)
{
    heap_full = 0;
    if (IS(buf_free_kept))
        mutant_changed();
    else
        IN.buf_free(dev, b);
}

/* ---- Queues ------------------------------------------------------------------------------------------------ */

static infer_status m_queue_create(infer_device *dev, uint32_t classes, infer_queue **out)
{
    infer_status s = IN.queue_create(dev, classes, out);
    if (!s)
        own_by(*out, owner_of(dev));
    if (s == INFER_E_NO_MEMORY && IS(alloc_status)) {
        mutant_changed();
        return INFER_E_QUEUE;
    }
    return s;
}

static atomic_int live_bufs_hint; /* a buffer was bound since the last queue was made */

static void m_queue_destroy(infer_device *dev, infer_queue *q)
{
    IN.queue_destroy(dev, q);
    if (IS(close_leak) && live_bufs_hint)
        lose_block();
    live_bufs_hint = 0;
}

static infer_status m_queue_wait(infer_queue *q, infer_timeline *tl, uint64_t value)
{
    if (IS(early_unwaited))
        return INFER_E_UNSUPPORTED;
    if (IS(wait_ignored)) {
        mutant_changed();
        return INFER_OK;
    }
    if (IS(wait_less) && value) {
        value--;
        mutant_changed();
    }
    uint32_t by = owner_of(tl);
    if (IS(wait_foreign) && by != 99 && by != owner_of(q)) {
        mutant_changed();
        return INFER_OK;
    }
    return IN.queue_wait(q, tl, value);
}

/* A large copy that the next signal overtakes. Its host memory is still there then: whoever gives a queue work that
 * large waits for a second signal before freeing anything. */
static struct {
    infer_queue *q;
    infer_copy_end dst, src;
    infer_copy_region r;
} late;

static infer_status flush(infer_queue *q)
{
    if (late.q != q || !q)
        return INFER_OK;
    late.q = NULL;
    mutant_changed();
    return IN.cmd_copy(q, &late.dst, &late.src, &late.r, 1);
}

static infer_status m_queue_signal(infer_queue *q, infer_timeline *tl, uint64_t value)
{
    own_by(tl, owner_of(q));
    if (IS(signal_past)) {
        value++;
        mutant_changed();
    }
    infer_status s = IN.queue_signal(q, tl, value);
    return s ? s : flush(q);
}

/* One region as the mutant has it; 0: left out. */
static int bend_region(infer_copy_region *r, infer_queue *q, int on_device)
{
    infer_copy_region was = *r;
    if (IS(copy_tail) && r->bytes > 4)
        r->bytes -= r->bytes % 4;
    if (IS(copy_more) && on_device) /* host memory may end there */
        r->bytes++;
    if (IS(copy_src_pitch) && r->rows > 1 && r->src_pitch < r->dst_pitch)
        r->dst_pitch = r->src_pitch;
    if (IS(copy_dst_pitch) && r->rows > 1 && r->dst_pitch < r->src_pitch)
        r->src_pitch = r->dst_pitch;
    if (IS(copy_rows) && r->rows > 1)
        r->rows--;
    if (IS(copy_src_offset))
        r->src_offset = 0;
    if (IS(copy_dst_offset))
        r->dst_offset &= ~(uint64_t)3;
    if (IS(second_copies) && owner_of(q) == 1 && r->bytes > 1)
        r->bytes--;
    if (memcmp(&was, r, sizeof(was)))
        mutant_changed();
    return 1;
}

static int bends_regions(void)
{
    return IS(copy_tail) || IS(copy_more) || IS(copy_src_pitch) || IS(copy_dst_pitch) || IS(copy_rows) ||
           IS(copy_src_offset) || IS(copy_dst_offset) || IS(second_copies);
}

static infer_status m_cmd_copy(infer_queue *q, const infer_copy_end *dst, const infer_copy_end *src,
                               const infer_copy_region *regions, uint32_t n)
{
    infer_status s = flush(q);
    uint32_t all = n;
    live_bufs_hint = 1;
    if (s)
        return s;
    if (IS(signal_early) && n == 1 && regions->bytes >= 1 << 20 && regions->rows == 1) {
        late.q = q;
        late.dst = *dst;
        late.src = *src;
        late.r = *regions;
        return INFER_OK;
    }
    n = IS(copy_list) && n > 1000 ? 1000 : IS(copy_first) && n > 1 ? 1 : IS(copy_last) && n > 1 ? n - 1 : n;
    if (n != all)
        mutant_changed();
    if (!bends_regions())
        return IN.cmd_copy(q, dst, src, regions, n);
    for (uint32_t i = 0; i < n; i++) {
        infer_copy_region r = regions[i];
        bend_region(&r, q, dst->buffer && src->buffer);
        s = IN.cmd_copy(q, dst, src, &r, 1);
        if (s == INFER_E_INVALID) /* beyond the buffer: a device would not have noticed */
            s = IN.cmd_copy(q, dst, src, &regions[i], 1);
        if (s)
            return s;
    }
    return INFER_OK;
}

static infer_status m_cmd_fill(infer_queue *q, const infer_range *dst, uint32_t pattern, uint32_t w)
{
    infer_range r = *dst;
    live_bufs_hint = 1;
    if (IS(full_fill) && heap_full) {
        mutant_changed();
        return INFER_OK;
    }
    if (IS(fill_byte) && w > 1) {
        w = 1;
        mutant_changed();
    }
    if (IS(fill_short) && r.size > w)
        r.size -= w;
    if (IS(fill_long))
        r.size += w;
    if (IS(fill_offset))
        r.offset &= ~(uint64_t)3;
    if (memcmp(&r, dst, sizeof(r)))
        mutant_changed();
    infer_status s = IN.cmd_fill(q, &r, pattern, w);
    return s == INFER_E_INVALID ? IN.cmd_fill(q, dst, pattern, w) : s;
}

/* ---- Ops --------------------------------------------------------------------------------------------------- */

static void bend_answer(const infer_op_desc *op, infer_op_answer *a)
{
    infer_op_answer was = *a;
    if (IS(query_unknown) && op->op >= 68)
        a->level = INFER_LEVEL_NATIVE;
    if (IS(query_bits) && op->must_understand && a->why == INFER_WHY_UNKNOWN_BITS)
        a->level = INFER_LEVEL_NATIVE;
    if (IS(query_revision) && op->revision && a->why == INFER_WHY_UNKNOWN_BITS)
        a->level = INFER_LEVEL_NATIVE;
    if (IS(query_reason) && op->op == INFER_OP_SCALE)
        a->level = a->why = 0;
    if (IS(query_scratch))
        a->scratch_bytes /= 2;
    if (IS(query_epilogue) && a->level)
        a->n_epilogue = op->n_epilogue;
    if (IS(query_estimate))
        a->est_ns = NAN;
    for (uint32_t i = 0; IS(props_formats) && i < op->n_in; i++)
        if (op->tensors[i].format == INFER_FMT_Q3_K) {
            a->level = INFER_LEVEL_NO;
            a->why = INFER_WHY_FORMAT;
        }
    if (memcmp(&was, a, sizeof(was)))
        mutant_changed();
}

static infer_status m_op_query(infer_device *dev, const infer_op_desc *ops, uint32_t op_size, uint32_t n,
                               infer_op_answer *out, uint32_t answer_size)
{
    if (IS(query_first) && n > 1) {
        n = 1;
        mutant_changed();
    }
    infer_status s = IN.op_query(dev, ops, op_size, n, out, answer_size);
    for (uint32_t i = 0; i < n && !s && answer_size >= sizeof(*out); i++)
        bend_answer((const void *)((const char *)ops + (uint64_t)i * op_size),
                    (void *)((char *)out + (uint64_t)i * answer_size));
    return s;
}

static infer_range packed_at; /* where the last weight was packed */

static infer_status m_cmd_op(infer_queue *q, const infer_op_desc *op, const infer_op_args *args)
{
    static uint32_t n;
    infer_op_desc d = *op;
    infer_op_args a = *args;
    infer_range r[INFER_OP_MAX_OPERANDS];
    if (IS(op_dropped) && ++n % 20 == 0) {
        mutant_changed();
        return INFER_OK;
    }
    if (IS(second_op) && owner_of(q) == 1) {
        mutant_changed();
        return INFER_OK;
    }
    if (IS(op_allocates)) {
        given_host->free(given_host->ctx, given_host->alloc(given_host->ctx, 64, 64));
        mutant_changed();
    }
    if (IS(query_epilogue) && d.n_epilogue > 1) {
        d.n_epilogue = 0;
        mutant_changed();
    }
    if (IS(image_place) && d.n_in > 1 && d.tensors[1].layout == SIM_PRIVATE && packed_at.buffer) {
        memcpy(r, args->operands, args->n_operands * sizeof(*r));
        if (r[1].buffer != packed_at.buffer || r[1].offset != packed_at.offset)
            mutant_changed();
        r[1] = packed_at;
        a.operands = r;
    }
    if (mutant_early())
        mutant_early_read(q, &d, &a);
    infer_status s = IN.cmd_op(q, &d, &a);
    if (mutant_early())
        mutant_early_submitted(s);
    return s;
}

/* ---- Weights ----------------------------------------------------------------------------------------------- */

static infer_status m_weight_plan(infer_device *dev, const infer_weight_desc *desc, infer_weight_plan *out)
{
    static uint32_t n;
    infer_status s = IN.weight_plan(dev, desc, out);
    if (s)
        return s;
    if (IS(plan_unsteady) && ++n % 2) {
        out->align *= 2;
        mutant_changed();
    }
    if (IS(plan_short) && out->packed_bytes > 64) {
        out->packed_bytes -= 64;
        mutant_changed();
    }
    return s;
}

static infer_weight *begun;

static infer_status m_weight_begin(infer_device *dev, const infer_weight_desc *desc, const infer_weight_plan *plan,
                                   const infer_range *dst, infer_weight **out)
{
    infer_weight_desc d = *desc;
    if (IS(begin_shard) && d.shard.of && d.shard.axis == 1) {
        d.shard.axis = 0;
        mutant_changed();
    }
    infer_status s = IN.weight_begin(dev, &d, plan, dst, out);
    if (!s) {
        begun = *out;
        packed_at = *dst;
    }
    return s;
}

static infer_status m_weight_append(infer_weight *w, uint32_t plane, const void *data, uint64_t bytes)
{
    uint8_t *p = malloc(bytes ? bytes : 1);
    if (!p)
        return INFER_E_NO_MEMORY;
    memcpy(p, data, bytes);
    if (IS(append_piece) && w != begun)
        memset(p, 0, bytes);
    if (IS(append_tail))
        memset(p + bytes / 17 * 17, 0, bytes % 17);
    if (IS(append_small) && bytes < 16)
        memset(p, 0, bytes);
    for (uint64_t i = 0; IS(append_swap) && i + 1 < bytes; i += 2) {
        uint8_t x = p[i];
        p[i] = p[i + 1];
        p[i + 1] = x;
    }
    if (memcmp(p, data, bytes))
        mutant_changed();
    begun = NULL;
    infer_status s = IN.weight_append(w, plane, p, bytes);
    free(p);
    return s;
}

/* ---- Cache, edges ------------------------------------------------------------------------------------------ */

static infer_status m_kv_query(infer_device *dev, const infer_kv_spec *spec, infer_kv_answer *out)
{
    infer_status s = IN.kv_query(dev, spec, out);
    infer_kv_answer was = *out;
    if (s || !out->level)
        return s;
    for (int i = 0; i < 4 && IS(kv_bytes); i++)
        out->block_bytes[i] /= 2;
    if (IS(kv_multiple))
        out->block_multiple = 0;
    if (IS(kv_best))
        out->block_best = out->block_multiple = 12, out->block_best = 18;
    if (IS(kv_plane))
        out->block_bytes[1] = out->block_bytes[0];
    if (memcmp(&was, out, sizeof(was)))
        mutant_changed();
    return s;
}

static infer_status m_dev_edge(infer_device *dev, uint32_t peer, infer_edge_info *out)
{
    (void)dev;
    (void)peer;
    infer_edge_info e = {.struct_size = out->struct_size, .mode = INFER_EDGE_STAGED};
    if (IS(edge_native))
        e.mode = INFER_EDGE_NATIVE;
    if (IS(edge_import)) {
        e.mode = INFER_EDGE_IMPORT;
        e.handle_kinds = 1;
    }
    if (IS(edge_figures))
        e.bytes_per_s = NAN;
    if (IS(edge_native) || IS(edge_import) || IS(edge_figures))
        mutant_changed();
    memcpy(out, &e, out->struct_size < sizeof(e) ? out->struct_size : sizeof(e));
    return INFER_OK;
}

static infer_status m_host_tl_wait(void *ctx, infer_timeline *tl, uint64_t value, uint64_t timeout_ns)
{
    infer_status s = given_host->tl_wait(ctx, tl, value, timeout_ns);
    if (s < 0 && IS(failed_wait)) {
        mutant_changed();
        return INFER_OK;
    }
    return s;
}

void mutant_host_slots(infer_host *h, const infer_host *given)
{
    (void)given;
    h->tl_wait = m_host_tl_wait;
}

void mutant_slots_install(infer_backend_ops *t)
{
    t->probe = m_probe;
    t->dev_open = m_dev_open;
    t->dev_props = m_dev_props;
    t->dev_heaps = m_dev_heaps;
    t->dev_heap_stats = m_dev_heap_stats;
    t->buf_alloc = m_buf_alloc;
    t->buf_free = m_buf_free;
    t->queue_create = m_queue_create;
    t->queue_destroy = m_queue_destroy;
    t->queue_wait = m_queue_wait;
    t->queue_signal = m_queue_signal;
    t->cmd_copy = m_cmd_copy;
    t->cmd_fill = m_cmd_fill;
    t->op_query = m_op_query;
    t->cmd_op = m_cmd_op;
    t->weight_plan = m_weight_plan;
    t->weight_begin = m_weight_begin;
    t->weight_append = m_weight_append;
    t->kv_query = m_kv_query;
    t->dev_edge = m_dev_edge;
}
