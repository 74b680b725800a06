/* RMS_NORM, LAYER_NORM, ADD_RMS_NORM: sums in double over a row, which is alone. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>

#include "op.h"

typedef struct norm_ctx {
    const cpu_call *c;
    infer_attrs_norm a;
    const cpu_view *x, *r, *w, *b, *y, *s; /* r and s: ADD_RMS_NORM only */
    int centred;
} norm_ctx;

static void norm_row(const norm_ctx *n, int64_t row)
{
    const cpu_call *c = n->c;
    const kern_table *k = c->k;
    float xbuf[CPU_SEGMENT], wbuf[CPU_SEGMENT], bbuf[CPU_SEGMENT];
    const uint8_t *x = cpu_row(n->x, row);
    const cpu_view *xv = n->x;
    int64_t d = n->x->width;
    double mean = 0, squares = 0;
    if (n->r) { /* s = x + r, then the norm of s as stored */
        const uint8_t *r = cpu_row(n->r, row);
        uint8_t *s = cpu_row(n->s, row);
        for (int64_t at = 0; at < d; at += CPU_SEGMENT) {
            int64_t m = cpu_min(CPU_SEGMENT, d - at);
            float *to = cpu_target(n->s, s, at, bbuf);
            k->add(cpu_load(c, n->x, x, at, m, xbuf), cpu_load(c, n->r, r, at, m, wbuf), to, m);
            cpu_store(c, n->s, s, at, m, to);
        }
        x = s;
        xv = n->s;
    }
    if (n->centred) {
        for (int64_t at = 0; at < d; at += CPU_SEGMENT) {
            int64_t m = cpu_min(CPU_SEGMENT, d - at);
            mean += k->sum(cpu_load(c, xv, x, at, m, xbuf), m);
        }
        mean /= (double)d;
    }
    for (int64_t at = 0; at < d; at += CPU_SEGMENT) {
        int64_t m = cpu_min(CPU_SEGMENT, d - at);
        squares += k->sum_squares(cpu_load(c, xv, x, at, m, xbuf), mean, m);
    }
    float factor = (float)(1 / sqrt(squares / (double)d + (double)n->a.eps));
    uint8_t *y = cpu_row(n->y, row);
    for (int64_t at = 0; at < d; at += CPU_SEGMENT) {
        int64_t m = cpu_min(CPU_SEGMENT, d - at);
        const float *w = n->w ? cpu_load(c, n->w, n->w->p, at, m, wbuf) : NULL;
        const float *b = n->b ? cpu_load(c, n->b, n->b->p, at, m, bbuf) : NULL;
        const float *from = cpu_load(c, xv, x, at, m, xbuf);
        float *to = cpu_target(n->y, y, at, xbuf);
        k->norm(from, (float)mean, factor, w, n->a.weight_offset, b, to, m);
        cpu_store(c, n->y, y, at, m, to);
    }
}

static void norm_piece(void *ctx, int64_t first, int64_t end, uint32_t worker)
{
    (void)worker;
    for (int64_t r = first; r < end; r++)
        norm_row(ctx, r);
}

static const cpu_view *given(const cpu_view *v)
{
    return v->p ? v : NULL;
}

infer_status cpu_run_norm(cpu_call *c)
{
    int add = c->op->op == INFER_OP_ADD_RMS_NORM;
    norm_ctx n = {.c = c, .x = cpu_in(c, 0), .y = cpu_out(c, 0), .centred = c->op->op == INFER_OP_LAYER_NORM};
    cpu_attrs(c->op, &n.a, sizeof n.a);
    n.w = given(cpu_in(c, add ? 2 : 1));
    if (add) {
        n.r = cpu_in(c, 1);
        n.s = cpu_out(c, 1);
    }
    if (n.centred)
        n.b = given(cpu_in(c, 2));
    cpu_split(c->dev, c->rows * n.x->per_row, n.x->width * 2, norm_piece, &n);
    return INFER_OK;
}

void cpu_query_norm(const infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    (void)dev;
    if (cpu_tensor(op, 0)->rank == 1) { /* rows would be elements */
        a->level = INFER_LEVEL_NO;
        a->why = INFER_WHY_SHAPE;
    }
}
