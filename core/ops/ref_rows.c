/* Reference of the ops that move, choose or reduce whole rows. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "ops/ops.h"
#include "ops/ref.h"

/* Rows of a matrix with side planes, unpacked into y. */
static infer_status copy_planes(const infer_op_desc *op, void *const *data, int64_t rows)
{
    infer_view yv = infer_ref_out(op, data, 0);
    infer_ref_weight w;
    INFER_TRY(infer_ref_weight_open(&w, infer_op_in(op, 0), data[0]));
    float *tmp = infer_realloc_array(NULL, (size_t)w.k, sizeof *tmp);
    infer_status st = tmp ? INFER_OK : INFER_E_NO_MEMORY;
    for (int64_t k = 0; st == INFER_OK && k < rows * yv.per_row; k++) {
        const float *row;
        st = infer_ref_weight_row(&w, k / w.n, k % w.n, tmp, &row);
        if (st == INFER_OK)
            infer_ref_pack(yv.format, row, infer_view_at(&yv, k), yv.width);
    }
    infer_free(tmp);
    return st;
}

INFER_REF(copy)
{
    infer_view xv = infer_ref_in(op, data, 0), yv = infer_ref_out(op, data, 0);
    int64_t n = rows * xv.per_row, width = xv.width;
    uint64_t bytes;
    if (infer_op_in(op, 0)->quant.format)
        return copy_planes(op, data, rows);
    if (xv.rank == 1) { /* the rows are the elements */
        width = rows;
        n = 1;
    }
    if (xv.format == yv.format) {
        INFER_TRY(infer_format_bytes(xv.format, (uint64_t)width, &bytes));
        for (int64_t k = 0; k < n; k++)
            memcpy(infer_view_at(&yv, k), infer_view_at(&xv, k), bytes);
        return INFER_OK;
    }
    float *tmp = infer_realloc_array(NULL, (size_t)width, sizeof *tmp);
    if (!tmp)
        return INFER_E_NO_MEMORY;
    for (int64_t k = 0; k < n; k++) {
        infer_ref_unpack(xv.format, infer_view_at(&xv, k), tmp, width);
        infer_ref_pack(yv.format, tmp, infer_view_at(&yv, k), width);
    }
    infer_free(tmp);
    return INFER_OK;
}

INFER_REF(gather_rows)
{
    const int32_t *ids = data[1];
    infer_view yv = infer_ref_out(op, data, 0);
    infer_ref_weight w;
    INFER_TRY(infer_ref_weight_open(&w, infer_op_in(op, 0), data[0]));
    float *tmp = infer_realloc_array(NULL, (size_t)w.k, sizeof *tmp);
    infer_status st = tmp ? INFER_OK : INFER_E_NO_MEMORY;
    for (int64_t i = 0; st == INFER_OK && i < rows; i++) {
        const float *row = tmp;
        if (ids[i] < 0 || ids[i] >= w.n)
            memset(tmp, 0, (size_t)w.k * sizeof *tmp);
        else
            st = infer_ref_weight_row(&w, 0, ids[i], tmp, &row);
        if (st == INFER_OK)
            infer_ref_pack(yv.format, row, infer_view_at(&yv, i), w.k);
    }
    infer_free(tmp);
    return st;
}

INFER_REF(concat_rows)
{
    infer_view av = infer_ref_in(op, data, 0), bv = infer_ref_in(op, data, 1), yv = infer_ref_out(op, data, 0);
    infer_rows y = {0};
    INFER_TRY(infer_rows_target(&y, &yv, rows));
    for (int64_t i = 0; i < rows; i++) {
        infer_ref_unpack(av.format, infer_view_at(&av, i), y.p[i], av.width);
        infer_ref_unpack(bv.format, infer_view_at(&bv, i), y.p[i] + av.width, bv.width);
    }
    infer_rows_store(&y, &yv, rows);
    infer_rows_free(&y);
    return INFER_OK;
}

/* Largest first, so that no exponential overflows; a row of nothing but -INFINITY gives zeros. */
static void softmax(const float *x, float *y, int64_t n, double scale)
{
    double most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, x[i] * scale);
    for (int64_t i = 0; i < n; i++)
        sum += most == -INFINITY ? 0 : exp(x[i] * scale - most);
    for (int64_t i = 0; i < n; i++)
        y[i] = sum == 0 ? 0 : (float)(exp(x[i] * scale - most) / sum);
}

INFER_REF(softmax)
{
    infer_view xv = infer_ref_in(op, data, 0), yv = infer_ref_out(op, data, 0);
    infer_rows x = {0}, y = {0};
    infer_attrs_scale a;
    int64_t n = rows * xv.per_row;
    infer_op_attrs(op, &a, sizeof a);
    infer_status st = infer_rows_load(&x, &xv, n);
    if (st == INFER_OK)
        st = infer_rows_target(&y, &yv, n);
    if (st == INFER_OK) {
        for (int64_t k = 0; k < n; k++)
            softmax(x.p[k], y.p[k], xv.width, a.scale == 0 ? 1 : a.scale);
        infer_rows_store(&y, &yv, n);
    }
    infer_rows_free(&x);
    infer_rows_free(&y);
    return st;
}

INFER_REF(argmax)
{
    infer_view xv = infer_ref_in(op, data, 0);
    int32_t *ids = data[op->n_in];
    infer_rows x = {0};
    INFER_TRY(infer_rows_load(&x, &xv, rows));
    for (int64_t i = 0; i < rows; i++) {
        int64_t best = -1;
        for (int64_t j = 0; j < xv.width; j++)
            if (!isnan(x.p[i][j]) && (best < 0 || x.p[i][j] > x.p[i][best]))
                best = j;
        ids[i] = (int32_t)best; /* -1: every element is NaN */
    }
    infer_rows_free(&x);
    return INFER_OK;
}

INFER_REF(ids_select)
{
    const int32_t *host = data[0], *from = data[1], *sampled = data[2];
    int64_t m = infer_op_in(op, 2)->shape[0];
    int32_t *ids = data[op->n_in];
    for (int64_t i = 0; i < rows; i++)
        ids[i] = from[i] < 0 ? host[i] : from[i] < m ? sampled[from[i]] : -1;
    return INFER_OK;
}

INFER_REF(rows_select)
{
    infer_view av = infer_ref_in(op, data, 0), bv = infer_ref_in(op, data, 2), yv = infer_ref_out(op, data, 0);
    const int32_t *from = data[1];
    infer_rows y = {0};
    INFER_TRY(infer_rows_target(&y, &yv, rows));
    for (int64_t i = 0; i < rows; i++) {
        if (from[i] < 0)
            infer_ref_unpack(av.format, infer_view_at(&av, i), y.p[i], yv.width);
        else if (from[i] < bv.shape[0])
            infer_ref_unpack(bv.format, infer_view_at(&bv, from[i]), y.p[i], yv.width);
        else
            memset(y.p[i], 0, (size_t)yv.width * sizeof *y.p[i]);
    }
    infer_rows_store(&y, &yv, rows);
    infer_rows_free(&y);
    return INFER_OK;
}

INFER_REF(state_copy)
{
    infer_view v = infer_ref_out(op, data, 0);
    const int32_t *src = data[1], *dst = data[2];
    uint64_t bytes;
    if (data[0] != data[op->n_in])
        return INFER_E_INVALID;
    INFER_TRY(infer_format_bytes(v.format, (uint64_t)v.width, &bytes));
    for (int64_t i = 0; i < rows; i++) {
        if (src[i] < 0 || src[i] >= v.shape[0] || dst[i] < 0 || dst[i] >= v.shape[0])
            continue;
        for (int64_t k = 0; k < v.per_row; k++)
            memmove(infer_view_at(&v, dst[i] * v.per_row + k), infer_view_at(&v, src[i] * v.per_row + k), bytes);
    }
    return INFER_OK;
}
