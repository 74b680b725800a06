/* Reference of the element-wise ops: each element alone, in double, rounded to float once.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "ops/ops.h"
#include "ops/ref.h"

typedef double (*element_fn)(const void *attrs, double x, const float *y);

/* y = fn(a, b) over all vectors; b may be absent, or one vector for all. */
static infer_status each(const infer_op_desc *op, void *const *data, int64_t rows, element_fn fn, const void *attrs)
{
    infer_view av = infer_ref_in(op, data, 0), bv = {0}, yv = infer_ref_out(op, data, 0);
    infer_rows a = {0}, b = {0}, y = {0};
    int64_t n = rows * av.per_row;
    if (op->n_in > 1)
        bv = infer_ref_in(op, data, 1);
    int one = bv.p && bv.rank < av.rank;
    infer_status st = infer_rows_load(&a, &av, n);
    if (st == INFER_OK)
        st = infer_rows_load(&b, &bv, one ? 1 : n);
    if (st == INFER_OK)
        st = infer_rows_target(&y, &yv, n);
    if (st == INFER_OK) {
        for (int64_t k = 0; k < n; k++) {
            const float *bk = b.p ? b.p[one ? 0 : k] : NULL;
            for (int64_t i = 0; i < yv.width; i++)
                y.p[k][i] = (float)fn(attrs, a.p[k][i], bk ? bk + i : NULL);
        }
        infer_rows_store(&y, &yv, n);
    }
    infer_rows_free(&a);
    infer_rows_free(&b);
    infer_rows_free(&y);
    return st;
}

static double add(const void *attrs, double x, const float *y)
{
    (void)attrs;
    return x + *y;
}

static double mul(const void *attrs, double x, const float *y)
{
    (void)attrs;
    return x * *y;
}

static double scale(const void *attrs, double x, const float *y)
{
    const infer_attrs_scale *a = attrs;
    (void)y;
    return x * a->scale + a->bias;
}

static double glu(const void *attrs, double x, const float *y)
{
    return infer_ref_glu(attrs, x, y);
}

double infer_ref_glu(const infer_attrs_act *a, double gate, const float *up)
{
    double u = up ? *up : 1, limit = a->limit;
    if (limit > 0) {
        gate = gate > limit ? limit : gate;
        if (up)
            u = u > limit ? limit : u < -limit ? -limit : u;
    }
    return infer_ref_act(a->act, gate) * u;
}

INFER_REF(add)
{
    return each(op, data, rows, add, NULL);
}

INFER_REF(mul)
{
    return each(op, data, rows, mul, NULL);
}

INFER_REF(scale)
{
    infer_attrs_scale a;
    infer_op_attrs(op, &a, sizeof a);
    return each(op, data, rows, scale, &a);
}

INFER_REF(glu_op)
{
    infer_attrs_act a;
    infer_op_attrs(op, &a, sizeof a);
    return each(op, data, rows, glu, &a);
}

INFER_REF(act_op)
{
    infer_attrs_act a;
    infer_op_attrs(op, &a, sizeof a);
    return each(op, data, rows, glu, &a);
}
