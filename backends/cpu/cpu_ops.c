/* Dispatch: which op ids this backend runs, with what limits; operands of a call; splitting of work.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "op.h"

enum { PIECE_COST = 16384 };

typedef struct op_row {
    cpu_op_fn run;
    cpu_query_fn query;
    uint32_t rows_of; /* the operand whose axis 0 is [n] */
} op_row;

#define OP(ID, name, rows_of) [INFER_OP_##ID] = {cpu_run_##name, cpu_query_##name, rows_of}
static const op_row table[INFER_OP_COUNT] = {
    OP(COPY, copy, 0),
    OP(GATHER_ROWS, gather_rows, 1),
    OP(CONCAT_ROWS, concat_rows, 0),
    OP(ADD, elementwise, 0),
    OP(MUL, elementwise, 0),
    OP(SCALE, elementwise, 0),
    OP(GLU, elementwise, 0),
    OP(ACT, elementwise, 0),
    OP(SOFTMAX, softmax, 0),
    OP(ARGMAX, argmax, 0),
    OP(RMS_NORM, norm, 0),
    OP(LAYER_NORM, norm, 0),
    OP(ADD_RMS_NORM, norm, 0),
    OP(MATMUL, matmul, 0),
    OP(MOE_ROUTE, moe_route, 0),
    OP(MOE_MATMUL, moe_matmul, 0),
    OP(MOE_COMBINE, moe_combine, 0),
    OP(GATED_MLP, gated_mlp, 0),
    OP(QKV, qkv, 0),
    OP(ROPE, rope, 0),
    OP(KV_WRITE, kv_write, 0),
    OP(ROPE_KV_WRITE, rope_kv_write, 0),
    OP(ATTN_PAGED, attention, 0),
    OP(MLA_PAGED, attention, 0),
    OP(ATTN_DENSE, attention, 0),
    OP(KV_PACK, kv_blocks, 1),
    OP(KV_UNPACK, kv_blocks, 1),
    OP(KV_MOVE, kv_move, 1),
    OP(STATE_COPY, state_copy, 1),
    OP(SAMPLE, sample, 0),
    OP(IDS_SELECT, ids_select, 0),
    OP(ROWS_SELECT, rows_select, 0),
    OP(LORA_SHRINK, lora, 0),
    OP(LORA_EXPAND_ADD, lora, 0),
};

/* ---- Query ----------------------------------------------------------------------------------------------------- */

/* The host's check, which knows no layout but the canonical: panels pass only where the op reads them. Whether there
 * are kernels for their format is the query's to say. */
static infer_status check_op(const infer_host *host, const infer_op_desc *op)
{
    infer_tensor_desc t[INFER_OP_MAX_OPERANDS];
    infer_op_desc as = *op;
    const uint32_t size = op->tensor_size < sizeof *t ? op->tensor_size : sizeof *t;
    if (op->n_in + op->n_out > INFER_OP_MAX_OPERANDS)
        return INFER_E_INVALID;
    memset(t, 0, sizeof t);
    for (uint32_t i = 0; i < op->n_in + op->n_out; i++) {
        memcpy(&t[i], cpu_tensor(op, i), size);
        if (t[i].layout == CPU_LAYOUT_PANELS && cpu_reads_panels(op->op, i))
            t[i].layout = INFER_LAYOUT_CANONICAL;
    }
    as.tensors = t;
    as.tensor_size = sizeof *t;
    return host->op_check(host->ctx, &as);
}

static void answer_op(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    a->level = INFER_LEVEL_NO;
    if (op->op >= INFER_OP_COUNT || !table[op->op].run) {
        a->why = INFER_WHY_OP;
        return;
    }
    if (op->must_understand || op->revision) {
        a->why = INFER_WHY_UNKNOWN_BITS;
        return;
    }
    infer_status s = check_op(dev->host, op);
    if (s != INFER_OK) {
        a->why = s == INFER_E_UNSUPPORTED ? INFER_WHY_FORMAT : INFER_WHY_SHAPE;
        return;
    }
    a->level = INFER_LEVEL_NATIVE;
    a->row_invariant = 1;
    a->scratch_align = 64;
    table[op->op].query(dev, op, a);
}

infer_status cpu_op_query(infer_device *dev, const infer_op_desc *ops, uint32_t op_size, uint32_t n,
                          infer_op_answer *out, uint32_t answer_size)
{
    for (uint32_t i = 0; i < n; i++) {
        infer_op_answer a = {.struct_size = sizeof a};
        answer_op(dev, (const infer_op_desc *)(const void *)((const uint8_t *)ops + (size_t)i * op_size), &a);
        memcpy((uint8_t *)out + (size_t)i * answer_size, &a, answer_size < sizeof a ? answer_size : sizeof a);
    }
    return INFER_OK;
}

/* ---- Run ------------------------------------------------------------------------------------------------------- */

uint64_t cpu_bytes(const infer_device *dev, infer_format f, int64_t n)
{
    const kern_format *k = f < INFER_FMT_COUNT ? &dev->kern->format[f] : &dev->kern->format[0];
    return k->unpack ? (uint64_t)(n / k->block_elems) * k->block_bytes : (uint64_t)n * 8; /* 64-bit integers */
}

static void view_of(const infer_device *dev, const infer_tensor_desc *t, const infer_range *r, cpu_view *v)
{
    if (t->flags & INFER_TENSOR_ABSENT || !r->buffer) {
        v->p = NULL;
        v->rank = 0;
        return;
    }
    v->p = r->buffer->p + r->offset;
    v->format = t->format;
    v->rank = t->rank;
    v->width = t->shape[t->rank - 1];
    v->per_row = 1;
    int dense = 1;
    for (uint32_t i = 0; i < 4; i++) {
        v->shape[i] = t->shape[i];
        v->stride[i] = t->stride[i];
        dense &= i + 1 >= t->rank || t->stride[i] == 0;
    }
    int64_t span = dense && t->rank > 1 ? (int64_t)cpu_bytes(dev, t->format, v->width) : 0;
    for (uint32_t i = t->rank - 1; i-- > 0;) {
        if (dense)
            v->stride[i] = span;
        span *= t->shape[i];
        v->per_row *= i ? t->shape[i] : 1;
    }
}

infer_status cpu_cmd_op(infer_queue *queue, const infer_op_desc *op, const infer_op_args *args)
{
    const infer_host *host = queue->dev->host;
    cpu_call c = {.dev = queue->dev, .queue = queue, .k = queue->dev->kern, .op = op};
    if (op->op >= INFER_OP_COUNT || !table[op->op].run)
        return cpu_fail(host, INFER_E_UNSUPPORTED, "cpu: op %u", op->op);
    if (op->n_in + op->n_out > INFER_OP_MAX_OPERANDS || args->n_operands < op->n_in + op->n_out)
        return cpu_fail(host, INFER_E_INVALID, "cpu: op %u with %u operands", op->op, args->n_operands);
    for (uint32_t i = 0; i < op->n_in + op->n_out; i++)
        view_of(c.dev, cpu_tensor(op, i), &args->operands[i], &c.v[i]);
    c.rows = c.v[table[op->op].rows_of].shape[0];
    if (op->rows_from < INFER_COUNT_MAX) {
        if (!args->counts.buffer)
            return cpu_fail(host, INFER_E_INVALID, "cpu: op %u without its counts", op->op);
        int32_t count;
        memcpy(&count, args->counts.buffer->p + args->counts.offset + sizeof count * op->rows_from, sizeof count);
        int64_t rows = count > 0 ? (int64_t)count * op->rows_mul : 0;
        c.rows = rows < c.rows ? rows : c.rows;
    }
    if (c.rows == 0)
        return INFER_OK;
    if (args->scratch.buffer) {
        c.scratch = args->scratch.buffer->p + args->scratch.offset;
        c.scratch_bytes = args->scratch.size;
    }
    return table[op->op].run(&c);
}

/* ---- Rows as floats -------------------------------------------------------------------------------------------- */

const float *cpu_load(const cpu_call *c, const cpu_view *v, const uint8_t *row, int64_t at, int64_t n, float *buf)
{
    if (v->format == INFER_FMT_F32)
        return (const float *)(const void *)row + at;
    c->k->format[v->format].unpack(row + cpu_bytes(c->dev, v->format, at), buf, n);
    return buf;
}

float *cpu_target(const cpu_view *v, uint8_t *row, int64_t at, float *buf)
{
    return v->format == INFER_FMT_F32 ? (float *)(void *)row + at : buf;
}

infer_status cpu_store(const cpu_call *c, const cpu_view *v, uint8_t *row, int64_t at, int64_t n, const float *from)
{
    if (v->format == INFER_FMT_F32) {
        float *to = (float *)(void *)row + at;
        if (to != from)
            memcpy(to, from, (size_t)n * sizeof *to);
        return INFER_OK;
    }
    return cpu_pack(c->dev, v->format, from, row + cpu_bytes(c->dev, v->format, at), n);
}

float cpu_float_at(const cpu_call *c, const cpu_view *v, int64_t i)
{
    float x;
    return cpu_load(c, v, v->p, i, 1, &x)[0];
}

infer_status cpu_pack(const infer_device *dev, infer_format f, const float *src, void *dst, int64_t n)
{
    kern_pack_fn pack = f < INFER_FMT_COUNT ? dev->kern->format[f].pack : NULL;
    if (!pack)
        return dev->host->pack(dev->host->ctx, f, src, dst, (uint64_t)n);
    pack(src, dst, n);
    return INFER_OK;
}

/* ---- Splitting ------------------------------------------------------------------------------------------------- */

typedef struct split {
    cpu_piece_fn fn;
    void *ctx;
    int64_t n, per;
} split;

static void split_chunk(void *ctx, int64_t chunk, uint32_t worker)
{
    const split *s = ctx;
    int64_t first = chunk * s->per, end = s->n - first < s->per ? s->n : first + s->per;
    s->fn(s->ctx, first, end, worker);
}

void cpu_split(infer_device *dev, int64_t n, int64_t cost, cpu_piece_fn fn, void *ctx)
{
    int64_t threads = cpu_team_size(dev->team), per = cost >= PIECE_COST ? 1 : PIECE_COST / (cost > 0 ? cost : 1);
    if (per < n / (threads * 8))
        per = n / (threads * 8);
    if (threads == 1 || n <= per) {
        fn(ctx, 0, n, 0);
        return;
    }
    split s = {fn, ctx, n, per};
    cpu_team_run(dev->team, (n + per - 1) / per, split_chunk, &s);
}
