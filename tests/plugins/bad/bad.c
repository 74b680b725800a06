/*
 * Backends that are wrong on purpose, each in one way: mistakes that porters make. A mistake bends what reaches sim's
 * slots, or what sim's calls of the host's reference compute; sim itself stays right.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <math.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "bad.h"
#include "ops/ops.h"

const infer_plugin_desc *infer_sim_query(const infer_host *host, const infer_abi_range *range);

/* id, tier, what is wrong, cases of which one must find it, whether it is a race */
#define BUGS(X)                                                                                                        \
    X(none, 0, "nothing", "", 0)                                                                                       \
    X(probe_changes, 0, "every probe gives the device another uuid", "t0.probe.twice", 0)                              \
    X(props_size, 0, "dev_props writes its whole struct into a shorter one", "t0.props.struct_size", 0)                \
    X(leak, 0, "dev_open keeps a block of host memory for ever", "t0.open.*", 0)                                       \
    X(over_commit, 0, "an allocation that does not fit gets a smaller buffer", "t0.mem.too_large", 0)                  \
    X(alloc_zero, 0, "zero bytes are allocated", "t0.mem.zero", 0)                                                     \
    X(stats, 0, "heap statistics never see our own buffers", "t0.heaps.stats", 0)                                      \
    X(copy_tail, 0, "copies in whole words: the last odd bytes are lost", "t0.copy.*", 0)                              \
    X(copy_pitch, 0, "the source pitch is used for the destination too", "t0.copy.*_strided", 0)                       \
    X(copy_list, 0, "only the first 1024 regions of a list are copied", "t0.copy.list", 0)                             \
    X(fill_pattern, 0, "patterns are repeated byte by byte", "t0.fill.patterns", 0)                                    \
    X(fill_past_end, 0, "fills in units of 64 bytes, past the range", "t0.fill.patterns", 0)                           \
    X(wait_ignored, 0, "a wait on a timeline does not hold the queue", "t0.queue.*", 1)                                \
    X(early_signal, 0, "a signal is given when submitted, not when work is done", "t0.tl.after_work", 1)               \
    X(unknown_bits, 0, "must-understand bits are not looked at", "t0.query.unknown_bits", 0)                           \
    X(unknown_op, 0, "an unknown op is taken", "t0.query.unknown_op", 0)                                               \
    X(query_first, 0, "only the first descriptor of a batch is answered", "t0.query.stride", 0)                        \
    X(past_end, 1, "one element past the end of the output is written", "t1.*", 0)                                     \
    X(before_begin, 1, "a byte before the output is written", "t1.*", 0)                                               \
    X(input_write, 1, "the first input is worked on in place", "t1.scale.*", 0)                                        \
    X(ignore_counts, 1, "all rows of the capacity are processed", "t1.*", 0)                                           \
    X(count_plus_one, 1, "one row more than the count is processed", "t1.*", 0)                                        \
    X(rope_kind, 1, "pairs are rotated where halves are asked", "t1.rope.*", 0)                                        \
    X(rope_rest, 1, "elements beyond n_dims are not copied", "t1.rope.*", 0)                                           \
    X(kv_len, 1, "the last key of every sequence is missed", "t1.attn_paged.*", 0)                                     \
    X(block_table, 1, "the block table is read without its row stride", "t1.attn_paged.*", 0)                          \
    X(window, 1, "a window is one key too wide", "t1.attn_paged.*", 0)                                                 \
    X(soft_cap, 1, "the soft cap is left out", "t1.attn_paged.*", 0)                                                   \
    X(slot_negative, 1, "a negative slot is written to slot 0", "t1.kv_write.*", 0)                                    \
    X(id_range, 1, "an id out of range reads row 0", "t1.gather_rows.*", 0)                                            \
    X(tie_last, 1, "of equal maxima the last wins", "t1.argmax.*", 0)                                                  \
    X(glu_swapped, 1, "the activation is applied to the wrong operand", "t1.glu.*", 0)                                 \
    X(gelu_kind, 1, "gelu and gelu_tanh are one", "t1.*", 0)                                                           \
    X(norm_eps, 1, "eps is left out of the norm", "t1.rms_norm.*", 0)                                                  \
    X(row_variant, 1, "a row's last bit depends on how many run with it", "t1.matmul.*", 0)                            \
    X(chunk_variant, 1, "a row of a prompt is summed in another order than a row by itself", "t1.attn_paged.*", 0)     \
    X(not_repeatable, 1, "a last bit that changes from run to run", "t1.softmax.*", 0)                                 \
    X(epilogue_lie, 1, "the whole epilogue list is promised, nothing of it done", "t1.matmul.*", 0)                    \
    X(draw_position, 1, "the draw does not depend on the position", "t1.sample.*", 0)                                  \
    X(moe_weight, 1, "expert weights are not normalised", "t1.moe_route.*", 0)                                         \
    X(low_precision, 1, "sums are kept in 16 bits", "t1.matmul.*", 0)                                                  \
    X(weight_piece, 1, "only the first piece of a weight is packed", "t1.matmul.*", 0)

enum {
#define X(id, tier, what, found, races) BUG_##id,
    BUGS(X)
#undef X
        N_BUGS
};

const infer_bad_bug infer_bad_bugs[] = {
#define X(id, tier, what, found, races) {#id, what, tier, found, races},
    BUGS(X)
#undef X
};
const uint32_t infer_bad_n_bugs = N_BUGS;

static uint32_t bug;
static const infer_host *real;
static infer_host host;
static infer_backend_ops inner, outer;
static infer_plugin_desc desc;
static atomic_uint n_calls;

void infer_bad_choose(uint32_t index)
{
    bug = index;
}

/* ---- Ops ------------------------------------------------------------------------------------------------- */

/* What a mistake may change of an op before the reference runs. */
typedef struct bent {
    infer_op_desc d;
    void *data[INFER_OP_MAX_OPERANDS];
    union {
        infer_attrs_act act;
        infer_attrs_norm norm;
        infer_attrs_rope rope;
        infer_attrs_attn attn;
        infer_attrs_route route;
        uint8_t bytes[256];
    } a;
    int32_t ints[1024];
    uint8_t record[65536];
} bent;

static uint32_t n_ints(const infer_tensor_desc *t)
{
    uint64_t n = infer_tensor_elems(t);
    return n > 1024 ? 0 : (uint32_t)n;
}

/* Puts a copy of an int32 operand that may be changed in its place; its length. */
static uint32_t own_ints(bent *b, uint32_t i)
{
    uint32_t n = n_ints(&b->d.tensors[i]);
    if (!n)
        return 0;
    memcpy(b->ints, b->data[i], n * sizeof(int32_t));
    b->data[i] = b->ints;
    return n;
}

static void bend_attention(bent *b)
{
    uint32_t n;
    if (bug == BUG_kv_len)
        for (n = own_ints(b, 4); n-- > 0;)
            b->ints[n] -= b->ints[n] > 0;
    if (bug == BUG_block_table && (n = own_ints(b, 3)) > 0) {
        int64_t width = b->d.tensors[3].shape[1];
        for (int64_t i = width; i < (int64_t)n; i++)
            b->ints[i] = b->ints[i % width];
    }
    if (bug == BUG_window)
        b->a.attn.window++;
    if (bug == BUG_soft_cap)
        b->a.attn.soft_cap = 0;
}

static void bend(bent *b)
{
    infer_op_id op = b->d.op;
    if (op == INFER_OP_ATTN_PAGED)
        bend_attention(b);
    else if (op == INFER_OP_ROPE && bug == BUG_rope_kind)
        b->a.rope.kind = INFER_ROPE_PAIRS;
    else if (op == INFER_OP_KV_WRITE && bug == BUG_slot_negative)
        for (uint32_t n = own_ints(b, 2); n-- > 0;)
            b->ints[n] = b->ints[n] < 0 ? 0 : b->ints[n];
    else if (op == INFER_OP_GATHER_ROWS && bug == BUG_id_range)
        for (uint32_t n = own_ints(b, 1); n-- > 0;)
            b->ints[n] = b->ints[n] < 0 || b->ints[n] >= b->d.tensors[0].shape[0] ? 0 : b->ints[n];
    else if (op == INFER_OP_GLU && bug == BUG_glu_swapped) {
        void *gate = b->data[0];
        b->data[0] = b->data[1];
        b->data[1] = gate;
    } else if ((op == INFER_OP_GLU || op == INFER_OP_ACT) && bug == BUG_gelu_kind)
        b->a.act.act = b->a.act.act == INFER_ACT_GELU ? INFER_ACT_GELU_TANH : b->a.act.act;
    else if (op == INFER_OP_RMS_NORM && bug == BUG_norm_eps)
        b->a.norm.eps = 0;
    else if (op == INFER_OP_MOE_ROUTE && bug == BUG_moe_weight)
        b->a.route.normalise = 0;
    else if (op == INFER_OP_SAMPLE && bug == BUG_draw_position) {
        uint64_t bytes, size = (uint64_t)b->d.tensors[1].shape[1];
        if (!infer_tensor_bytes(&b->d.tensors[1], &bytes) && bytes <= sizeof(b->record)) {
            memcpy(b->record, b->data[1], bytes);
            for (uint64_t at = 0; at + size <= bytes; at += size)
                memset(b->record + at + offsetof(infer_sample_row, position), 0, 8);
            b->data[1] = b->record;
        }
    }
}

/* Mistakes that show after the reference ran. y: the first output in F32, dense. */
static void spoil_rows(const bent *b, float *y, uint64_t n, int64_t rows)
{
    uint64_t width = n / (uint64_t)b->d.tensors[b->d.n_in].shape[0];
    if (((bug == BUG_row_variant && b->d.op == INFER_OP_MATMUL) ||
         (bug == BUG_chunk_variant && b->d.op == INFER_OP_ATTN_PAGED)) &&
        rows > 1)
        for (uint64_t i = 0; i < width * (uint64_t)rows; i++)
            y[i] = nextafterf(y[i], INFINITY);
    if (bug == BUG_not_repeatable && b->d.op == INFER_OP_SOFTMAX && atomic_fetch_add(&n_calls, 1) % 2 && rows > 0)
        y[0] = nextafterf(y[0], INFINITY);
    if (bug == BUG_low_precision && b->d.op == INFER_OP_MATMUL)
        for (uint64_t i = 0; i < width * (uint64_t)rows; i++)
            y[i] = (float)(int)(y[i] * 64) / 64;
    if (bug == BUG_rope_rest && b->d.op == INFER_OP_ROPE) {
        uint64_t d = (uint64_t)b->d.tensors[0].shape[2], r = b->a.rope.n_dims;
        for (uint64_t i = 0; i < width * (uint64_t)rows; i++)
            if (i % d >= r)
                y[i] = 0;
    }
}

static void spoil(const bent *b, const int32_t *counts)
{
    uint32_t o = b->d.n_in;
    const infer_tensor_desc *t = &b->d.tensors[o];
    uint8_t *y = b->data[o];
    uint64_t bytes, n = infer_tensor_elems(t);
    if (infer_tensor_bytes(t, &bytes))
        return;
    if (bug == BUG_past_end)
        memset(y + bytes, 0x3F, 4);
    if (bug == BUG_before_begin)
        y[-1] ^= 1;
    if (bug == BUG_input_write && b->d.op == INFER_OP_SCALE)
        *(uint8_t *)b->data[0] ^= 1;
    if (t->format == INFER_FMT_F32 && bytes == n * 4)
        spoil_rows(b, (float *)(void *)y, n, infer_op_rows(&b->d, counts));
    if (bug == BUG_tie_last && b->d.op == INFER_OP_ARGMAX && b->d.tensors[0].format == INFER_FMT_F32 &&
        !b->d.tensors[0].stride[0]) {
        int64_t d = b->d.tensors[0].shape[1], rows = infer_op_rows(&b->d, counts);
        for (int64_t r = 0; r < rows; r++) {
            const float *x = (const float *)b->data[0] + r * d;
            int32_t *id = (int32_t *)(void *)y + r;
            for (int64_t i = *id; i < d; i++)
                *id = x[i] == x[*id] ? (int32_t)i : *id;
        }
    }
}

static infer_status bad_ref_op(void *ctx, const infer_op_desc *op, void *const *data, const int32_t *counts)
{
    bent *b = calloc(1, sizeof(*b));
    int32_t own_counts[INFER_COUNT_MAX] = {0};
    if (!b)
        return INFER_E_NO_MEMORY;
    b->d = *op;
    memcpy(b->data, data, (op->n_in + op->n_out) * sizeof(*data));
    if (op->attrs && op->attrs_size <= sizeof(b->a)) {
        memcpy(&b->a, op->attrs, op->attrs_size);
        b->d.attrs = &b->a;
    }
    if (counts && op->rows_from != INFER_ROWS_STATIC) {
        memcpy(own_counts, counts, (op->rows_from + 1) * sizeof(*counts));
        own_counts[op->rows_from] += bug == BUG_count_plus_one && own_counts[op->rows_from] > 0;
    }
    if (bug == BUG_ignore_counts)
        b->d.rows_from = INFER_ROWS_STATIC;
    if (bug == BUG_epilogue_lie)
        b->d.n_epilogue = 0;
    bend(b);
    infer_status s = real->ref_op(ctx, &b->d, b->data, b->d.rows_from == INFER_ROWS_STATIC ? NULL : own_counts);
    if (!s)
        spoil(b, b->d.rows_from == INFER_ROWS_STATIC ? NULL : own_counts);
    free(b);
    return s;
}

static infer_status bad_op_check(void *ctx, const infer_op_desc *op)
{
    infer_op_desc d = *op;
    if (bug == BUG_unknown_bits)
        d.must_understand = 0;
    return real->op_check(ctx, &d);
}

/* ---- Slots ----------------------------------------------------------------------------------------------- */

static void take_host(const infer_host *given)
{
    real = given;
    host = *given;
    host.ref_op = bad_ref_op;
    host.op_check = bad_op_check;
}

static infer_status bad_probe(const infer_host *given, infer_device_info *out, uint32_t cap, uint32_t *n)
{
    take_host(given);
    infer_status s = inner.probe(&host, out, cap, n);
    if (bug == BUG_probe_changes && cap && out->struct_size > offsetof(infer_device_info, uuid) + 36)
        out->uuid[0] = (char)('0' + atomic_fetch_add(&n_calls, 1) % 10);
    return s;
}

static void *volatile lost_block;

static infer_status bad_dev_open(const infer_host *given, uint32_t index, infer_device **out)
{
    take_host(given);
    infer_status s = inner.dev_open(&host, index, out);
    if (bug == BUG_leak && !s) {
        void **block = given->alloc(given->ctx, 64, 64);
        if (block)
            *block = lost_block; /* reachable, so that a leak checker of the process stays quiet */
        lost_block = block;
    }
    return s;
}

static infer_status bad_dev_props(infer_device *dev, infer_device_props *out)
{
    infer_device_props p = {.struct_size = sizeof(p)};
    uint32_t size = out->struct_size;
    if (bug != BUG_props_size)
        return inner.dev_props(dev, out);
    infer_status s = inner.dev_props(dev, &p);
    p.struct_size = size;
    memcpy(out, &p, sizeof(p));
    return s;
}

static infer_status bad_buf_alloc(infer_device *dev, uint32_t heap, uint64_t bytes, infer_buffer **out)
{
    if (bug == BUG_alloc_zero && !bytes)
        bytes = 1;
    infer_status s = inner.buf_alloc(dev, heap, bytes, out);
    return s == INFER_E_NO_MEMORY && bug == BUG_over_commit ? inner.buf_alloc(dev, heap, 4096, out) : s;
}

static infer_status bad_dev_heap_stats(infer_device *dev, uint32_t heap, infer_heap_stats *out)
{
    infer_status s = inner.dev_heap_stats(dev, heap, out);
    if (bug == BUG_stats && !s)
        out->ours.value = 0;
    return s;
}

static infer_status bad_queue_wait(infer_queue *q, infer_timeline *tl, uint64_t value)
{
    return bug == BUG_wait_ignored ? INFER_OK : inner.queue_wait(q, tl, value);
}

/* BUG_early_signal: a large copy that the next signal overtakes. Its host memory is still there then: whoever gives a
 * queue work that large waits for a second signal before freeing anything. */
static struct {
    infer_queue *q;
    infer_copy_end dst, src;
    infer_copy_region r;
} late;

static infer_status flush(infer_queue *q)
{
    if (late.q != q)
        return INFER_OK;
    late.q = NULL;
    return inner.cmd_copy(q, &late.dst, &late.src, &late.r, 1);
}

static infer_status bad_queue_signal(infer_queue *q, infer_timeline *tl, uint64_t value)
{
    infer_status s = inner.queue_signal(q, tl, value);
    return s ? s : flush(q);
}

static infer_status bad_cmd_copy(infer_queue *q, const infer_copy_end *dst, const infer_copy_end *src,
                                 const infer_copy_region *regions, uint32_t n)
{
    infer_status early = flush(q);
    if (early)
        return early;
    if (bug == BUG_early_signal && n == 1 && regions->bytes >= 1 << 20) {
        late.q = q;
        late.dst = *dst;
        late.src = *src;
        late.r = *regions;
        return INFER_OK;
    }
    if (bug == BUG_copy_list && n > 1024)
        n = 1024;
    if (bug != BUG_copy_tail && bug != BUG_copy_pitch)
        return inner.cmd_copy(q, dst, src, regions, n);
    for (uint32_t i = 0; i < n; i++) {
        infer_copy_region r = regions[i];
        if (bug == BUG_copy_tail && r.bytes > 4)
            r.bytes -= r.bytes % 4;
        if (bug == BUG_copy_pitch && r.rows > 1 && r.src_pitch < r.dst_pitch)
            r.dst_pitch = r.src_pitch;
        infer_status s = inner.cmd_copy(q, dst, src, &r, 1);
        if (s)
            return s;
    }
    return INFER_OK;
}

static infer_status bad_cmd_fill(infer_queue *q, const infer_range *dst, uint32_t pattern, uint32_t pattern_bytes)
{
    infer_range r = *dst;
    if (bug == BUG_fill_pattern)
        return inner.cmd_fill(q, dst, pattern, 1);
    if (bug == BUG_fill_past_end && r.size > 64 && r.size % 64) {
        r.size += 64 - r.size % 64;
        if (inner.cmd_fill(q, &r, pattern, pattern_bytes) == INFER_OK)
            return INFER_OK;
    }
    return inner.cmd_fill(q, dst, pattern, pattern_bytes);
}

static infer_weight *begun; /* nothing of it has come yet */

static infer_status bad_weight_begin(infer_device *dev, const infer_weight_desc *d, const infer_weight_plan *plan,
                                     const infer_range *dst, infer_weight **out)
{
    infer_status s = inner.weight_begin(dev, d, plan, dst, out);
    if (!s)
        begun = *out;
    return s;
}

static infer_status bad_weight_append(infer_weight *w, uint32_t plane, const void *data, uint64_t bytes)
{
    static const uint8_t nothing[256];
    infer_status s = INFER_OK;
    if (bug != BUG_weight_piece || w == begun)
        s = inner.weight_append(w, plane, data, bytes);
    else
        for (uint64_t n; bytes && !s; bytes -= n) {
            n = bytes < sizeof(nothing) ? bytes : sizeof(nothing);
            s = inner.weight_append(w, plane, nothing, n);
        }
    begun = NULL;
    return s;
}

static infer_status bad_op_query(infer_device *dev, const infer_op_desc *ops, uint32_t op_size, uint32_t n,
                                 infer_op_answer *out, uint32_t answer_size)
{
    if (bug == BUG_query_first && n > 1)
        n = 1;
    infer_status s = inner.op_query(dev, ops, op_size, n, out, answer_size);
    for (uint32_t i = 0; i < n && !s; i++) {
        const infer_op_desc *op = (const void *)((const char *)ops + (uint64_t)i * op_size);
        infer_op_answer *a = (void *)((char *)out + (uint64_t)i * answer_size);
        if (bug == BUG_unknown_op && !infer_op_get(op->op))
            a->level = INFER_LEVEL_NATIVE;
        if (bug == BUG_unknown_bits && a->why == INFER_WHY_UNKNOWN_BITS && !op->revision)
            a->level = INFER_LEVEL_NATIVE;
        if (bug == BUG_epilogue_lie && a->level)
            a->n_epilogue = op->n_epilogue;
    }
    return s;
}

const infer_plugin_desc *infer_bad_query(const infer_host *given, const infer_abi_range *range)
{
    const infer_plugin_desc *sim = infer_sim_query(given, range);
    if (!sim || desc.ops)
        return sim ? &desc : NULL;
    inner = outer = *sim->ops;
    outer.probe = bad_probe;
    outer.dev_open = bad_dev_open;
    outer.dev_props = bad_dev_props;
    outer.dev_heap_stats = bad_dev_heap_stats;
    outer.buf_alloc = bad_buf_alloc;
    outer.queue_wait = bad_queue_wait;
    outer.queue_signal = bad_queue_signal;
    outer.cmd_copy = bad_cmd_copy;
    outer.cmd_fill = bad_cmd_fill;
    outer.op_query = bad_op_query;
    outer.weight_begin = bad_weight_begin;
    outer.weight_append = bad_weight_append;
    desc = *sim;
    desc.name = desc.device_prefix = "bad";
    desc.ops = &outer;
    return &desc;
}
