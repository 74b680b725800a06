/* Reference of the normalisations. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>

#include "ops/ops.h"
#include "ops/ref.h"

/* Zhang and Sennrich 2019, arXiv:1910.07467: y = x / sqrt(mean(x^2) + eps) * (w + offset). */
static void rms_norm(const infer_attrs_norm *a, const float *x, const float *w, float *y, int64_t d)
{
    double scale = 1 / sqrt(infer_ref_dot(x, x, d) / (double)d + a->eps);
    for (int64_t i = 0; i < d; i++)
        y[i] = (float)(x[i] * scale * (w ? (double)w[i] + a->weight_offset : 1));
}

/* Ba, Kiros and Hinton 2016, arXiv:1607.06450: y = (x - mean) / sqrt(var + eps) * (w + offset) + b. */
static void layer_norm(const infer_attrs_norm *a, const float *x, const float *w, const float *b, float *y, int64_t d)
{
    double mean = 0, var = 0;
    for (int64_t i = 0; i < d; i++)
        mean += x[i];
    mean /= (double)d;
    for (int64_t i = 0; i < d; i++)
        var += (x[i] - mean) * (x[i] - mean);
    double scale = 1 / sqrt(var / (double)d + a->eps);
    for (int64_t i = 0; i < d; i++)
        y[i] = (float)((x[i] - mean) * scale * (w ? (double)w[i] + a->weight_offset : 1) + (b ? b[i] : 0));
}

static infer_status norm(const infer_op_desc *op, void *const *data, int64_t rows, int centred)
{
    infer_view xv = infer_ref_in(op, data, 0), wv = infer_ref_in(op, data, 1), bv = {0};
    infer_view yv = infer_ref_out(op, data, 0);
    infer_rows x = {0}, w = {0}, b = {0}, y = {0};
    infer_attrs_norm a;
    int64_t n = rows * xv.per_row;
    infer_op_attrs(op, &a, sizeof a);
    if (centred)
        bv = infer_ref_in(op, data, 2);
    infer_status st = infer_rows_load(&x, &xv, n);
    if (st == INFER_OK)
        st = infer_rows_load(&w, &wv, 1);
    if (st == INFER_OK)
        st = infer_rows_load(&b, &bv, 1);
    if (st == INFER_OK)
        st = infer_rows_target(&y, &yv, n);
    if (st == INFER_OK) {
        for (int64_t k = 0; k < n; k++) {
            if (centred)
                layer_norm(&a, x.p[k], w.p ? w.p[0] : NULL, b.p ? b.p[0] : NULL, y.p[k], xv.width);
            else
                rms_norm(&a, x.p[k], w.p ? w.p[0] : NULL, y.p[k], xv.width);
        }
        infer_rows_store(&y, &yv, n);
    }
    infer_rows_free(&x);
    infer_rows_free(&w);
    infer_rows_free(&b);
    infer_rows_free(&y);
    return st;
}

INFER_REF(rms_norm)
{
    return norm(op, data, rows, 0);
}

INFER_REF(layer_norm)
{
    return norm(op, data, rows, 1);
}

INFER_REF(add_rms_norm)
{
    infer_view xv = infer_ref_in(op, data, 0), rv = infer_ref_in(op, data, 1), wv = infer_ref_in(op, data, 2);
    infer_view yv = infer_ref_out(op, data, 0), sv = infer_ref_out(op, data, 1);
    infer_rows x = {0}, r = {0}, w = {0}, y = {0}, s = {0};
    infer_attrs_norm a;
    infer_op_attrs(op, &a, sizeof a);
    infer_status st = infer_rows_load(&x, &xv, rows);
    if (st == INFER_OK)
        st = infer_rows_load(&r, &rv, rows);
    if (st == INFER_OK)
        st = infer_rows_load(&w, &wv, 1);
    if (st == INFER_OK)
        st = infer_rows_target(&y, &yv, rows);
    if (st == INFER_OK)
        st = infer_rows_target(&s, &sv, rows);
    if (st == INFER_OK) {
        for (int64_t k = 0; k < rows; k++)
            for (int64_t i = 0; i < xv.width; i++)
                s.p[k][i] = (float)((double)x.p[k][i] + r.p[k][i]);
        infer_rows_store(&s, &sv, rows);
        for (int64_t k = 0; k < rows; k++) {
            infer_ref_unpack(sv.format, infer_view_at(&sv, k), s.p[k], sv.width); /* as stored */
            rms_norm(&a, s.p[k], w.p[0], y.p[k], xv.width);
        }
        infer_rows_store(&y, &yv, rows);
    }
    infer_rows_free(&x);
    infer_rows_free(&r);
    infer_rows_free(&w);
    infer_rows_free(&y);
    infer_rows_free(&s);
    return st;
}
