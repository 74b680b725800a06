/* Reference of the matrix products: weights as unpacked rows, a dot product in double for every output.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "base/alloc.h"
#include "ops/ops.h"
#include "ops/ref.h"

infer_status infer_ref_weight_open(infer_ref_weight *w, const infer_tensor_desc *t, void *p)
{
    infer_ref_weight out = {.v = infer_view_of(t, p), .quant = t->quant, .e = t->rank == 3 ? t->shape[0] : 1};
    out.n = t->shape[t->rank - 2];
    out.k = t->shape[t->rank - 1];
    if (t->quant.format) {
        uint64_t offset[3], bytes;
        INFER_TRY(infer_tensor_planes(t, offset, out.plane_bytes, &bytes));
        for (int i = 0; i < 3; i++)
            out.plane[i] = out.plane_bytes[i] ? (const uint8_t *)p + offset[i] : NULL;
    }
    *w = out;
    return INFER_OK;
}

infer_status infer_ref_weight_row(const infer_ref_weight *w, int64_t e, int64_t r, float *tmp, const float **row)
{
    if (w->quant.format) {
        const uint8_t *at[3];
        for (int i = 0; i < 3; i++)
            at[i] = w->plane[i] ? w->plane[i] + (uint64_t)e * w->plane_bytes[i] : NULL;
        const infer_quant_planes planes = {at[0], at[1], at[2]};
        INFER_TRY(infer_quant_unpack_row(&w->quant, &planes, (uint64_t)w->n, (uint64_t)w->k, (uint64_t)r, tmp));
        *row = tmp;
        return INFER_OK;
    }
    const uint8_t *at = infer_view_at(&w->v, e * w->n + r);
    *row = tmp;
    if (w->v.format == INFER_FMT_F32)
        *row = (const float *)(const void *)at;
    else
        infer_ref_unpack(w->v.format, at, tmp, w->k);
    return INFER_OK;
}

infer_status infer_ref_product(const infer_ref_weight *w, int64_t e, float *const *x, float *const *y, int64_t m,
                               double scale, const float *bias)
{
    infer_status st = INFER_OK;
    float *tmp = infer_realloc_array(NULL, (size_t)w->k, sizeof *tmp);
    if (!tmp)
        return INFER_E_NO_MEMORY;
    for (int64_t r = 0; st == INFER_OK && r < w->n; r++) {
        const float *row;
        st = infer_ref_weight_row(w, e, r, tmp, &row);
        if (st == INFER_OK)
            for (int64_t j = 0; j < m; j++)
                y[j][r] = (float)(scale * infer_ref_dot(x[j], row, w->k) + (bias ? bias[r] : 0));
    }
    infer_free(tmp);
    return st;
}

/* Output `out` = scale * x W^T + bias, x the first input, W and bias of these inputs. */
static infer_status one_product(const infer_op_desc *op, void *const *data, int64_t rows, uint32_t weight,
                                uint32_t bias, uint32_t out, float scale)
{
    infer_view xv = infer_ref_in(op, data, 0), bv = infer_ref_in(op, data, bias), yv = infer_ref_out(op, data, out);
    infer_rows x = {0}, b = {0}, y = {0};
    infer_ref_weight w;
    infer_status st = infer_ref_weight_open(&w, infer_op_in(op, weight), data[weight]);
    if (st == INFER_OK)
        st = infer_rows_load(&x, &xv, rows);
    if (st == INFER_OK)
        st = infer_rows_load(&b, &bv, 1);
    if (st == INFER_OK)
        st = infer_rows_target(&y, &yv, rows);
    if (st == INFER_OK)
        st = infer_ref_product(&w, 0, x.p, y.p, rows, scale, b.p ? b.p[0] : NULL);
    if (st == INFER_OK)
        infer_rows_store(&y, &yv, rows);
    infer_rows_free(&x);
    infer_rows_free(&b);
    infer_rows_free(&y);
    return st;
}

INFER_REF(matmul)
{
    infer_attrs_matmul a;
    infer_op_attrs(op, &a, sizeof a);
    return one_product(op, data, rows, 1, 2, 0, a.scale == 0 ? 1 : a.scale);
}

INFER_REF(qkv)
{
    infer_status st = INFER_OK;
    for (uint32_t i = 0; i < 3 && st == INFER_OK; i++)
        st = one_product(op, data, rows, 1 + i, 4 + i, i, 1);
    return st;
}

/* The composition MATMUL, MATMUL, GLU, MATMUL with F32 rows between. */
INFER_REF(gated_mlp)
{
    infer_view xv = infer_ref_in(op, data, 0), yv = infer_ref_out(op, data, 0);
    infer_rows x = {0}, gate = {0}, up = {0}, y = {0};
    infer_ref_weight w[3] = {{.e = 0}};
    infer_attrs_act a;
    infer_status st = INFER_OK;
    infer_op_attrs(op, &a, sizeof a);
    for (uint32_t i = 0; i < 3 && st == INFER_OK; i++)
        st = infer_ref_weight_open(&w[i], infer_op_in(op, 1 + i), data[1 + i]);
    if (st == INFER_OK)
        st = infer_rows_load(&x, &xv, rows);
    if (st == INFER_OK)
        st = infer_rows_scratch(&gate, rows, w[0].n);
    if (st == INFER_OK)
        st = infer_rows_scratch(&up, rows, w[1].n);
    if (st == INFER_OK)
        st = infer_rows_target(&y, &yv, rows);
    if (st == INFER_OK)
        st = infer_ref_product(&w[0], 0, x.p, gate.p, rows, 1, NULL);
    if (st == INFER_OK)
        st = infer_ref_product(&w[1], 0, x.p, up.p, rows, 1, NULL);
    if (st == INFER_OK) {
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < w[0].n; j++)
                gate.p[i][j] = (float)infer_ref_glu(&a, gate.p[i][j], &up.p[i][j]);
        st = infer_ref_product(&w[2], 0, gate.p, y.p, rows, 1, NULL);
    }
    if (st == INFER_OK)
        infer_rows_store(&y, &yv, rows);
    infer_rows_free(&x);
    infer_rows_free(&gate);
    infer_rows_free(&up);
    infer_rows_free(&y);
    return st;
}

/* The rows of one adapter at a time, in place of row lists x and y; rows of no adapter are left out. */
static infer_status by_adapter(const infer_ref_weight *w, const int32_t *adapter, int64_t rows, float *const *x,
                               float *const *y)
{
    float **xs = infer_realloc_array(NULL, (size_t)rows, sizeof *xs);
    float **ys = infer_realloc_array(NULL, (size_t)rows, sizeof *ys);
    infer_status st = xs && ys ? INFER_OK : INFER_E_NO_MEMORY;
    for (int64_t e = 0; st == INFER_OK && e < w->e; e++) {
        int64_t m = 0;
        for (int64_t i = 0; i < rows; i++)
            if (adapter[i] == e) {
                xs[m] = x[i];
                ys[m++] = y[i];
            }
        if (m)
            st = infer_ref_product(w, e, xs, ys, m, 1, NULL);
    }
    infer_free(xs);
    infer_free(ys);
    return st;
}

/* t = x A^T of the row's adapter, then y = t, or y = base + t. */
static infer_status lora(const infer_op_desc *op, void *const *data, int64_t rows, int add)
{
    infer_view xv = infer_ref_in(op, data, 0), yv = infer_ref_out(op, data, 0), base_v = {0};
    infer_rows x = {0}, y = {0}, t = {0}, base = {0};
    infer_ref_weight w;
    infer_status st = infer_ref_weight_open(&w, infer_op_in(op, 1), data[1]);
    if (add)
        base_v = infer_ref_in(op, data, 3);
    if (st == INFER_OK)
        st = infer_rows_load(&x, &xv, rows);
    if (st == INFER_OK)
        st = infer_rows_load(&base, &base_v, rows);
    if (st == INFER_OK)
        st = infer_rows_scratch(&t, rows, w.n);
    if (st == INFER_OK)
        st = infer_rows_target(&y, &yv, rows);
    if (st == INFER_OK) {
        memset(t.mem, 0, (size_t)(rows * w.n) * sizeof(float));
        st = by_adapter(&w, data[2], rows, x.p, t.p);
    }
    if (st == INFER_OK) {
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < w.n; j++)
                y.p[i][j] = add ? (float)((double)base.p[i][j] + t.p[i][j]) : t.p[i][j];
        infer_rows_store(&y, &yv, rows);
    }
    infer_rows_free(&x);
    infer_rows_free(&y);
    infer_rows_free(&t);
    infer_rows_free(&base);
    return st;
}

INFER_REF(lora_shrink)
{
    return lora(op, data, rows, 0);
}

INFER_REF(lora_expand_add)
{
    return lora(op, data, rows, 1);
}
