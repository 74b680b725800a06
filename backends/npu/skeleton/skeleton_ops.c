/*
 * skeleton: its ops. A row of the table below is an op: which descriptors it takes, and how it runs. What has no row is
 * answered NO, and the core computes it on the host and moves the operands. Written for reading; HERE is where kernels
 * or calls of an operator library go.
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <string.h>

#include "skeleton.h"

/* ---- Descriptors ----------------------------------------------------------------------------------------------- */

/* Arrays are walked by the element size that the producer states: a newer host has longer elements. */
static const infer_tensor_desc *tensor(const infer_op_desc *op, uint32_t i)
{
    return (const infer_tensor_desc *)(const void *)((const char *)op->tensors + (uint64_t)i * op->tensor_size);
}

static int present(const infer_op_desc *op, uint32_t i)
{
    return i < op->n_in && !(tensor(op, i)->flags & INFER_TENSOR_ABSENT);
}

/* A shorter struct of an older producer means zero in the fields that it lacks. */
static void attributes(const infer_op_desc *op, void *out, uint32_t size)
{
    memset(out, 0, size);
    if (op->attrs)
        memcpy(out, op->attrs, op->attrs_size < size ? op->attrs_size : size);
}

static uint64_t elem_bytes(infer_format f)
{
    return f == INFER_FMT_F32 ? 4 : 2;
}

/* ---- Operands as rows of floats ---------------------------------------------------------------------------------- */

/* One operand of a call: `width` elements of the last axis are a row, per_row rows for each index of axis 0. */
typedef struct view {
    uint8_t *p; /* NULL: absent */
    infer_format format;
    uint32_t rank;
    int64_t width, per_row;
    int64_t shape[4], stride[4];
} view;

typedef struct call {
    const infer_host *host;
    const infer_op_desc *op;
    int64_t rows; /* of axis 0 that this run has */
    view v[INFER_OP_MAX_OPERANDS];
} call;

static view view_of(const infer_tensor_desc *t, const infer_range *r)
{
    view v = {.format = t->format, .rank = t->rank};
    if ((t->flags & INFER_TENSOR_ABSENT) || !r->buffer)
        return v;
    v.p = r->buffer->p + r->offset;
    v.width = t->shape[t->rank - 1];
    v.per_row = 1;
    int dense = 1; /* all strides zero: contiguous */
    for (uint32_t i = 0; i + 1 < t->rank; i++)
        dense &= t->stride[i] == 0;
    int64_t step = v.width * (int64_t)elem_bytes(t->format);
    for (uint32_t i = t->rank - 1; i-- > 0; step *= t->shape[i], v.per_row *= i ? t->shape[i] : 1) {
        v.shape[i] = t->shape[i];
        v.stride[i] = dense ? step : t->stride[i];
    }
    return v;
}

/* Row i of rows * per_row; a vector (rank 1) is the same row for all. */
static uint8_t *row(const view *v, int64_t i)
{
    uint8_t *p = v->p;
    for (uint32_t a = v->rank - 1; a-- > 0; i /= v->shape[a])
        p += (a ? i % v->shape[a] : i) * v->stride[a];
    return p;
}

/* Values are worked on in pieces, so that nothing is allocated. */
enum { PIECE = 256 };

/* n elements from `at` of a row as floats: in place, or converted into buf. */
static const float *load(const call *c, const view *v, const uint8_t *row, int64_t at, int64_t n, float *buf)
{
    const uint8_t *p = row + (uint64_t)at * elem_bytes(v->format);
    if (v->format == INFER_FMT_F32)
        return (const float *)(const void *)p;
    c->host->unpack(c->host->ctx, v->format, p, buf, (uint64_t)n);
    return buf;
}

static void store(const call *c, const view *v, uint8_t *row, int64_t at, int64_t n, const float *from)
{
    c->host->pack(c->host->ctx, v->format, from, row + (uint64_t)at * elem_bytes(v->format), (uint64_t)n);
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- ADD, MUL ---------------------------------------------------------------------------------------------------- */

/* HERE, and in the two functions below: launch a kernel. */
static void run_add_mul(const call *c)
{
    const view *a = &c->v[0], *b = &c->v[1], *y = &c->v[c->op->n_in];
    float abuf[PIECE], bbuf[PIECE], out[PIECE];
    for (int64_t r = 0; r < c->rows * a->per_row; r++)
        for (int64_t at = 0; at < a->width; at += PIECE) {
            int64_t n = least(PIECE, a->width - at);
            const float *p = load(c, a, row(a, r), at, n, abuf);
            const float *q = load(c, b, row(b, r), at, n, bbuf);
            for (int64_t i = 0; i < n; i++)
                out[i] = c->op->op == INFER_OP_ADD ? p[i] + q[i] : p[i] * q[i];
            store(c, y, row(y, r), at, n, out);
        }
}

/* ---- RMS_NORM ---------------------------------------------------------------------------------------------------- */

static void run_rms_norm(const call *c)
{
    const view *x = &c->v[0], *w = present(c->op, 1) ? &c->v[1] : NULL, *y = &c->v[c->op->n_in];
    infer_attrs_norm a;
    float xbuf[PIECE], wbuf[PIECE], out[PIECE];
    attributes(c->op, &a, sizeof a);
    for (int64_t r = 0; r < c->rows * x->per_row; r++) {
        double sum = 0;
        for (int64_t at = 0; at < x->width; at += PIECE) {
            int64_t n = least(PIECE, x->width - at);
            const float *p = load(c, x, row(x, r), at, n, xbuf);
            for (int64_t i = 0; i < n; i++)
                sum += (double)p[i] * p[i];
        }
        double scale = 1 / sqrt(sum / (double)x->width + a.eps);
        for (int64_t at = 0; at < x->width; at += PIECE) {
            int64_t n = least(PIECE, x->width - at);
            const float *p = load(c, x, row(x, r), at, n, xbuf);
            const float *q = w ? load(c, w, w->p, at, n, wbuf) : NULL;
            for (int64_t i = 0; i < n; i++)
                out[i] = (float)(p[i] * scale * (q ? (double)q[i] + a.weight_offset : 1));
            store(c, y, row(y, r), at, n, out);
        }
    }
}

/* ---- MATMUL ------------------------------------------------------------------------------------------------------ */

/* y[n][N] = scale * (x[n][K] W[N][K]^T) + bias[N]. The order of a sum must not depend on the number of rows: that is
 * what row_invariant promises, and why a request's tokens do not depend on who else is served. */
static void run_matmul(const call *c)
{
    const view *x = &c->v[0], *w = &c->v[1], *y = &c->v[c->op->n_in];
    const view *bias = present(c->op, 2) ? &c->v[2] : NULL;
    infer_attrs_matmul a;
    float xbuf[PIECE], wbuf[PIECE], b;
    attributes(c->op, &a, sizeof a);
    double scale = a.scale != 0 ? (double)a.scale : 1;
    for (int64_t r = 0; r < c->rows; r++)
        for (int64_t o = 0; o < y->width; o++) {
            double sum = 0;
            for (int64_t at = 0; at < x->width; at += PIECE) {
                int64_t n = least(PIECE, x->width - at);
                const float *p = load(c, x, row(x, r), at, n, xbuf);
                const float *q = load(c, w, row(w, o), at, n, wbuf);
                for (int64_t i = 0; i < n; i++)
                    sum += (double)p[i] * q[i];
            }
            sum = sum * scale + (bias ? (double)*load(c, bias, bias->p, o, 1, &b) : 0);
            float out = (float)sum;
            store(c, y, row(y, r), o, 1, &out);
        }
}

/* ---- The table of ops and what is answered for each ------------------------------------------------------------- */

static const struct {
    void (*run)(const call *c);
    uint32_t n_operands; /* inputs that are read, from the first */
} table[INFER_OP_COUNT] = {
    [INFER_OP_ADD] = {run_add_mul, 2},
    [INFER_OP_MUL] = {run_add_mul, 2},
    [INFER_OP_RMS_NORM] = {run_rms_norm, 2},
    [INFER_OP_MATMUL] = {run_matmul, 3},
};

static int plain_float(infer_format f)
{
    return f == INFER_FMT_F32 || f == INFER_FMT_F16 || f == INFER_FMT_BF16;
}

static void refuse(infer_op_answer *a, uint32_t why, uint32_t which)
{
    a->level = INFER_LEVEL_NO;
    a->why = why;
    a->which = which;
}

/* A YES is a promise that the conformance kit tries to disprove; a NO costs speed only. */
static void answer(const infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    if (op->op >= INFER_OP_COUNT || !table[op->op].run) {
        refuse(a, INFER_WHY_OP, 0);
        return;
    }
    if (op->must_understand || op->revision) { /* a newer host means something that this file does not know */
        refuse(a, INFER_WHY_UNKNOWN_BITS, 0);
        return;
    }
    for (uint32_t i = 0; i < op->n_in + op->n_out; i++) {
        const infer_tensor_desc *t = tensor(op, i);
        if ((i < op->n_in && i >= table[op->op].n_operands) || (t->flags & INFER_TENSOR_ABSENT))
            continue; /* operands of an epilogue, which is not done */
        if (t->layout != INFER_LAYOUT_CANONICAL) {
            refuse(a, INFER_WHY_LAYOUT, i);
            return;
        }
        if (!plain_float(t->format) || t->quant.scale_format) { /* here the quantised weights go to the host */
            refuse(a, INFER_WHY_FORMAT, i);
            return;
        }
    }
    if (dev->host->op_check(dev->host->ctx, op) || tensor(op, 0)->rank < 2) { /* ranks, shapes, attributes */
        refuse(a, INFER_WHY_SHAPE, 0);
        return;
    }
    a->level = INFER_LEVEL_NATIVE;
    a->n_epilogue = 0; /* the core then does the list as ops of their own */
    a->row_invariant = 1;
}

infer_status skeleton_op_query(infer_device *dev, const infer_op_desc *ops, uint32_t op_size, uint32_t n,
                               infer_op_answer *out, uint32_t answer_size)
{
    for (uint32_t i = 0; i < n; i++) {
        infer_op_answer a = {.struct_size = answer_size};
        answer(dev, (const infer_op_desc *)(const void *)((const char *)ops + (uint64_t)i * op_size), &a);
        memcpy((char *)out + (uint64_t)i * answer_size, &a, answer_size < sizeof a ? answer_size : sizeof a);
    }
    return INFER_OK;
}

infer_status skeleton_cmd_op(infer_queue *queue, const infer_op_desc *op, const infer_op_args *args)
{
    const infer_host *host = queue->dev->host;
    call c = {.host = host, .op = op};
    uint32_t n = op->n_in + op->n_out;
    if (op->op >= INFER_OP_COUNT || !table[op->op].run)
        return skeleton_fail(host, INFER_E_UNSUPPORTED, "skeleton: cmd_op: an op that was answered NO");
    if (n > INFER_OP_MAX_OPERANDS || args->n_operands < n)
        return skeleton_fail(host, INFER_E_INVALID, "skeleton: cmd_op: wrong number of operands");
    for (uint32_t i = 0; i < n; i++)
        c.v[i] = view_of(tensor(op, i), &args->operands[i]);
    /* The descriptor's shape is a capacity. How many rows are real stands in device memory, written by the step: a
     * kernel reads it there (the host cannot know it when a captured program is replayed). */
    c.rows = tensor(op, 0)->shape[0];
    if (op->rows_from < INFER_COUNT_MAX) {
        if (!args->counts.buffer)
            return skeleton_fail(host, INFER_E_INVALID, "skeleton: cmd_op: no counts");
        int32_t count;
        memcpy(&count, args->counts.buffer->p + args->counts.offset + op->rows_from * sizeof count, sizeof count);
        c.rows = least(c.rows, count > 0 ? (int64_t)count * op->rows_mul : 0);
    }
    table[op->op].run(&c);
    return INFER_OK;
}
