/* Ops that move, convert or combine rows element by element, and those that reduce a row to a choice.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>

#include "op.h"

/* ---- COPY ------------------------------------------------------------------------------------------------------ */

typedef struct copy_ctx {
    const cpu_call *c;
    cpu_weight w;
    int64_t width;
    _Atomic infer_status status;
} copy_ctx;

static infer_status copy_row(copy_ctx *x, int64_t r)
{
    const cpu_call *c = x->c;
    const cpu_view *xv = cpu_in(c, 0), *yv = cpu_out(c, 0);
    uint8_t *y = cpu_row(yv, r);
    if (!x->w.p && xv->format == yv->format) {
        memmove(y, cpu_row(xv, r), cpu_bytes(c->dev, xv->format, x->width));
        return INFER_OK;
    }
    const uint8_t *src = x->w.p ? NULL : cpu_row(xv, r);
    for (int64_t at = 0; at < x->width; at += CPU_SEGMENT) {
        float buf[CPU_SEGMENT];
        const float *from = buf;
        int64_t n = cpu_min(CPU_SEGMENT, x->width - at);
        if (x->w.p)
            cpu_weight_part(&x->w, r / x->w.n, r % x->w.n, at, n, buf);
        else
            from = cpu_load(c, xv, src, at, n, buf);
        infer_status s = cpu_store(c, yv, y, at, n, from);
        if (s != INFER_OK)
            return s;
    }
    return INFER_OK;
}

static void copy_piece(void *ctx, int64_t first, int64_t end, uint32_t worker)
{
    copy_ctx *x = ctx;
    (void)worker;
    for (int64_t r = first; r < end; r++) {
        infer_status s = copy_row(x, r);
        if (s != INFER_OK)
            x->status = s;
    }
}

infer_status cpu_run_copy(cpu_call *c)
{
    const cpu_view *xv = cpu_in(c, 0);
    copy_ctx x = {.c = c, .width = xv->width, .status = INFER_OK};
    int64_t n = c->rows * xv->per_row;
    if (cpu_tensor(c->op, 0)->quant.scale_format)
        cpu_weight_open(&x.w, c, 0);
    if (xv->rank == 1) { /* the rows are the elements */
        x.width = c->rows;
        n = 1;
    }
    cpu_split(c->dev, n, x.width, copy_piece, &x);
    return x.status;
}

void cpu_query_copy(const infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    const infer_tensor_desc *x = cpu_tensor(op, 0), *y = cpu_tensor(op, op->n_in);
    int same = x->format == y->format && !x->quant.scale_format;
    if (!same && !cpu_weight_known(dev, x)) {
        a->level = INFER_LEVEL_NO;
        a->why = INFER_WHY_FORMAT;
    }
}

/* ---- GATHER_ROWS, CONCAT_ROWS ---------------------------------------------------------------------------------- */

static void gather_piece(void *ctx, int64_t first, int64_t end, uint32_t worker)
{
    copy_ctx *x = ctx;
    const cpu_call *c = x->c;
    const cpu_view *yv = cpu_out(c, 0);
    const int32_t *ids = (const int32_t *)(const void *)cpu_in(c, 1)->p;
    (void)worker;
    for (int64_t r = first; r < end; r++) {
        uint8_t *y = cpu_row(yv, r);
        for (int64_t at = 0; at < x->width; at += CPU_SEGMENT) {
            float buf[CPU_SEGMENT], *to = cpu_target(yv, y, at, buf);
            int64_t n = cpu_min(CPU_SEGMENT, x->width - at);
            if (ids[r] < 0 || ids[r] >= x->w.n)
                memset(to, 0, (size_t)n * sizeof *to);
            else
                cpu_weight_part(&x->w, 0, ids[r], at, n, to);
            infer_status s = cpu_store(c, yv, y, at, n, to);
            if (s != INFER_OK)
                x->status = s;
        }
    }
}

infer_status cpu_run_gather_rows(cpu_call *c)
{
    copy_ctx x = {.c = c, .width = cpu_in(c, 0)->width, .status = INFER_OK};
    cpu_weight_open(&x.w, c, 0);
    cpu_split(c->dev, c->rows, x.width, gather_piece, &x);
    return x.status;
}

void cpu_query_gather_rows(const infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    if (!cpu_weight_known(dev, cpu_tensor(op, 0))) {
        a->level = INFER_LEVEL_NO;
        a->why = INFER_WHY_FORMAT;
    }
}

static void concat_piece(void *ctx, int64_t first, int64_t end, uint32_t worker)
{
    const cpu_call *c = ctx;
    const cpu_view *yv = cpu_out(c, 0);
    (void)worker;
    for (int64_t r = first; r < end; r++) {
        uint8_t *y = cpu_row(yv, r);
        int64_t base = 0;
        for (uint32_t i = 0; i < 2; i++) {
            const cpu_view *xv = cpu_in(c, i);
            for (int64_t at = 0; at < xv->width; at += CPU_SEGMENT) {
                float buf[CPU_SEGMENT];
                int64_t n = cpu_min(CPU_SEGMENT, xv->width - at);
                cpu_store(c, yv, y, base + at, n, cpu_load(c, xv, cpu_row(xv, r), at, n, buf));
            }
            base += xv->width;
        }
    }
}

infer_status cpu_run_concat_rows(cpu_call *c)
{
    cpu_split(c->dev, c->rows, cpu_out(c, 0)->width, concat_piece, c);
    return INFER_OK;
}

void cpu_query_concat_rows(const infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    (void)dev;
    (void)op;
    (void)a;
}

static void select_piece(void *ctx, int64_t first, int64_t end, uint32_t worker)
{
    const cpu_call *c = ctx;
    const cpu_view *yv = cpu_out(c, 0), *bv = cpu_in(c, 2);
    const int32_t *from = (const int32_t *)(const void *)cpu_in(c, 1)->p;
    static const float zeros[CPU_SEGMENT];
    (void)worker;
    for (int64_t r = first; r < end; r++) {
        const cpu_view *xv = from[r] < 0 ? cpu_in(c, 0) : bv;
        int64_t row = from[r] < 0 ? r : from[r];
        for (int64_t at = 0; at < yv->width; at += CPU_SEGMENT) {
            float buf[CPU_SEGMENT];
            int64_t n = cpu_min(CPU_SEGMENT, yv->width - at);
            const float *x = row < xv->shape[0] ? cpu_load(c, xv, cpu_row(xv, row), at, n, buf) : zeros;
            cpu_store(c, yv, cpu_row(yv, r), at, n, x);
        }
    }
}

infer_status cpu_run_rows_select(cpu_call *c)
{
    cpu_split(c->dev, c->rows, cpu_out(c, 0)->width, select_piece, c);
    return INFER_OK;
}

void cpu_query_rows_select(const infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    (void)dev;
    (void)op;
    (void)a;
}

/* ---- ADD, MUL, SCALE, GLU, ACT --------------------------------------------------------------------------------- */

typedef struct element_ctx {
    const cpu_call *c;
    infer_attrs_scale scale;
    infer_attrs_act act;
    int one; /* operand 1 is one vector for all */
} element_ctx;

static void element_piece(void *ctx, int64_t first, int64_t end, uint32_t worker)
{
    const element_ctx *x = ctx;
    const cpu_call *c = x->c;
    const cpu_view *av = cpu_in(c, 0), *bv = cpu_in(c, 1), *yv = cpu_out(c, 0);
    const kern_table *k = c->k;
    (void)worker;
    for (int64_t r = first; r < end; r++) {
        const uint8_t *arow = cpu_row(av, r), *brow = !bv->p ? NULL : x->one ? bv->p : cpu_row(bv, r);
        uint8_t *yrow = cpu_row(yv, r);
        for (int64_t at = 0; at < yv->width; at += CPU_SEGMENT) {
            float abuf[CPU_SEGMENT], bbuf[CPU_SEGMENT], ybuf[CPU_SEGMENT];
            int64_t n = cpu_min(CPU_SEGMENT, yv->width - at);
            const float *a = cpu_load(c, av, arow, at, n, abuf);
            const float *b = brow ? cpu_load(c, bv, brow, at, n, bbuf) : NULL;
            float *y = cpu_target(yv, yrow, at, ybuf);
            switch (c->op->op) {
            case INFER_OP_ADD:
                k->add(a, b, y, n);
                break;
            case INFER_OP_MUL:
                k->mul(a, b, y, n);
                break;
            case INFER_OP_SCALE:
                k->scale(a, x->scale.scale, x->scale.bias, y, n);
                break;
            default: /* GLU, ACT */
                k->act(x->act.act, x->act.limit, a, b, y, n);
                break;
            }
            cpu_store(c, yv, yrow, at, n, y);
        }
    }
}

infer_status cpu_run_elementwise(cpu_call *c)
{
    element_ctx x = {.c = c, .one = cpu_in(c, 1)->rank < cpu_in(c, 0)->rank};
    int64_t cost = cpu_out(c, 0)->width;
    if (c->op->op == INFER_OP_SCALE)
        cpu_attrs(c->op, &x.scale, sizeof x.scale);
    if (c->op->op == INFER_OP_GLU || c->op->op == INFER_OP_ACT) {
        cpu_attrs(c->op, &x.act, sizeof x.act);
        cost *= 2;
    }
    cpu_split(c->dev, c->rows * cpu_in(c, 0)->per_row, cost, element_piece, &x);
    return INFER_OK;
}

void cpu_query_elementwise(const infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    (void)dev;
    if (cpu_tensor(op, 0)->rank == 1) { /* rows would be elements */
        a->level = INFER_LEVEL_NO;
        a->why = INFER_WHY_SHAPE;
    }
}

/* ---- SOFTMAX, ARGMAX ------------------------------------------------------------------------------------------- */

static void softmax_piece(void *ctx, int64_t first, int64_t end, uint32_t worker)
{
    const element_ctx *x = ctx;
    const cpu_call *c = x->c;
    const cpu_view *xv = cpu_in(c, 0), *yv = cpu_out(c, 0);
    float scale = x->scale.scale == 0 ? 1 : x->scale.scale, buf[CPU_SEGMENT], out[CPU_SEGMENT];
    (void)worker;
    for (int64_t r = first; r < end; r++) {
        const uint8_t *row = cpu_row(xv, r);
        uint8_t *yrow = cpu_row(yv, r);
        float most = -INFINITY;
        double sum = 0;
        for (int64_t at = 0; at < xv->width; at += CPU_SEGMENT) {
            int64_t n = cpu_min(CPU_SEGMENT, xv->width - at);
            c->k->scale(cpu_load(c, xv, row, at, n, buf), scale, 0, out, n);
            float m = c->k->max(out, n);
            most = m > most ? m : most;
        }
        /* Twice through the exponentials, so that no row-sized scratch is needed and y may be any format. */
        for (int pass = 0; pass < 2; pass++)
            for (int64_t at = 0; at < xv->width; at += CPU_SEGMENT) {
                int64_t n = cpu_min(CPU_SEGMENT, xv->width - at);
                if (most == -INFINITY) {
                    memset(out, 0, (size_t)n * sizeof *out);
                } else {
                    c->k->scale(cpu_load(c, xv, row, at, n, buf), scale, 0, out, n);
                    float s = c->k->exp_sum(out, 1, most, n);
                    sum += pass ? 0 : (double)s;
                }
                if (pass) {
                    c->k->scale(out, sum > 0 || sum != sum ? (float)(1 / sum) : 0, 0, out, n);
                    cpu_store(c, yv, yrow, at, n, out);
                }
            }
    }
}

infer_status cpu_run_softmax(cpu_call *c)
{
    element_ctx x = {.c = c};
    cpu_attrs(c->op, &x.scale, sizeof x.scale);
    cpu_split(c->dev, c->rows * cpu_in(c, 0)->per_row, cpu_in(c, 0)->width * 4, softmax_piece, &x);
    return INFER_OK;
}

void cpu_query_softmax(const infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    cpu_query_elementwise(dev, op, a);
}

static void argmax_piece(void *ctx, int64_t first, int64_t end, uint32_t worker)
{
    const cpu_call *c = ctx;
    const cpu_view *xv = cpu_in(c, 0);
    int32_t *ids = (int32_t *)(void *)cpu_out(c, 0)->p;
    (void)worker;
    for (int64_t r = first; r < end; r++) {
        const uint8_t *row = cpu_row(xv, r);
        int64_t best = -1;
        float most = -INFINITY;
        for (int64_t at = 0; at < xv->width; at += CPU_SEGMENT) {
            float buf[CPU_SEGMENT];
            int64_t n = cpu_min(CPU_SEGMENT, xv->width - at);
            const float *x = cpu_load(c, xv, row, at, n, buf);
            /* A segment is looked at closely only when it has a new maximum, or nothing was found yet (an infinity of
             * the wrong sign, or NaNs). */
            if (best >= 0 && !(c->k->max(x, n) > most))
                continue;
            for (int64_t i = 0; i < n; i++)
                if (x[i] > most || (best < 0 && x[i] == x[i])) {
                    best = at + i;
                    most = x[i];
                }
        }
        ids[r] = (int32_t)best;
    }
}

infer_status cpu_run_argmax(cpu_call *c)
{
    cpu_split(c->dev, c->rows, cpu_in(c, 0)->width, argmax_piece, c);
    return INFER_OK;
}

void cpu_query_argmax(const infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    (void)dev;
    if (cpu_tensor(op, 0)->shape[1] > INT32_MAX) {
        a->level = INFER_LEVEL_NO;
        a->why = INFER_WHY_SHAPE;
    }
}

/* ---- IDS_SELECT, STATE_COPY ------------------------------------------------------------------------------------- */

infer_status cpu_run_ids_select(cpu_call *c)
{
    const int32_t *host = (const int32_t *)(const void *)cpu_in(c, 0)->p;
    const int32_t *from = (const int32_t *)(const void *)cpu_in(c, 1)->p;
    const int32_t *sampled = (const int32_t *)(const void *)cpu_in(c, 2)->p;
    int32_t *ids = (int32_t *)(void *)cpu_out(c, 0)->p;
    int64_t m = cpu_in(c, 2)->shape[0];
    for (int64_t i = 0; i < c->rows; i++)
        ids[i] = from[i] < 0 ? host[i] : from[i] < m ? sampled[from[i]] : -1;
    return INFER_OK;
}

void cpu_query_ids_select(const infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    (void)dev;
    (void)op;
    (void)a;
}

/* In list order, so not split. */
infer_status cpu_run_state_copy(cpu_call *c)
{
    const cpu_view *v = cpu_out(c, 0);
    const int32_t *src = (const int32_t *)(const void *)cpu_in(c, 1)->p;
    const int32_t *dst = (const int32_t *)(const void *)cpu_in(c, 2)->p;
    uint64_t bytes = cpu_bytes(c->dev, v->format, v->width);
    for (int64_t i = 0; i < c->rows; i++) {
        if (src[i] < 0 || src[i] >= v->shape[0] || dst[i] < 0 || dst[i] >= v->shape[0])
            continue;
        for (int64_t k = 0; k < v->per_row; k++)
            memmove(cpu_row(v, dst[i] * v->per_row + k), cpu_row(v, src[i] * v->per_row + k), bytes);
    }
    return INFER_OK;
}

void cpu_query_state_copy(const infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    (void)dev;
    (void)op;
    (void)a;
}
