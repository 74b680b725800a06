/* Reference of the mixture-of-experts ops. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "ops/ops.h"
#include "ops/ref.h"

/* exp(x - most) / sum over i < n, in place; zeros where no element is above -INFINITY. */
static void softmax(double *x, int64_t n)
{
    double most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, x[i]);
    for (int64_t i = 0; i < n; i++) {
        x[i] = most == -INFINITY ? 0 : exp(x[i] - most);
        sum += x[i];
    }
    for (int64_t i = 0; i < n && sum > 0; i++)
        x[i] /= sum;
}

/* One row: scores of all experts in `score` (a NaN logit counts as -INFINITY), the k best to ids and w. */
static void route(const infer_attrs_route *a, double *score, int64_t n, int32_t *ids, double *w)
{
    if (a->scoring == INFER_ROUTE_SOFTMAX)
        softmax(score, n);
    for (int64_t i = 0; i < n && a->scoring == INFER_ROUTE_SIGMOID; i++)
        score[i] = infer_ref_act(INFER_ACT_SIGMOID, score[i]);
    for (uint32_t j = 0; j < a->k; j++) {
        int64_t best = -1;
        for (int64_t i = 0; i < n; i++)
            if (!isnan(score[i]) && (best < 0 || score[i] > score[best]))
                best = i;
        ids[j] = (int32_t)best;
        w[j] = 0;
        if (best < 0) /* the others' scores are NaN: infinite logits under softmax */
            continue;
        w[j] = score[best];
        score[best] = NAN; /* taken */
    }
    if (a->scoring == INFER_ROUTE_SOFTMAX_TOPK)
        softmax(w, a->k);
    double sum = 0, scale = a->scale == 0 ? 1 : a->scale;
    for (uint32_t j = 0; j < a->k; j++)
        sum += w[j];
    if (a->normalise && sum > 0)
        scale /= sum;
    for (uint32_t j = 0; j < a->k; j++)
        w[j] *= scale;
}

INFER_REF(moe_route)
{
    infer_view xv = infer_ref_in(op, data, 0), iv = infer_ref_out(op, data, 0), wv = infer_ref_out(op, data, 1);
    infer_rows x = {0}, w = {0};
    infer_attrs_route a;
    int64_t n = xv.width;
    infer_op_attrs(op, &a, sizeof a);
    double *score = infer_realloc_array(NULL, (size_t)n + a.k, sizeof *score);
    infer_status st = score ? INFER_OK : INFER_E_NO_MEMORY;
    if (st == INFER_OK)
        st = infer_rows_load(&x, &xv, rows);
    if (st == INFER_OK)
        st = infer_rows_target(&w, &wv, rows);
    if (st == INFER_OK) {
        for (int64_t i = 0; i < rows; i++) {
            for (int64_t e = 0; e < n; e++)
                score[e] = isnan(x.p[i][e]) ? -INFINITY : x.p[i][e];
            route(&a, score, n, (int32_t *)(void *)infer_view_at(&iv, i), score + n);
            for (uint32_t j = 0; j < a.k; j++)
                w.p[i][j] = (float)score[n + j];
        }
        infer_rows_store(&w, &wv, rows);
    }
    infer_free(score);
    infer_rows_free(&x);
    infer_rows_free(&w);
    return st;
}

/* One expert at a time over the (row, choice) pairs that chose it. */
INFER_REF(moe_matmul)
{
    infer_view xv = infer_ref_in(op, data, 0), iv = infer_ref_in(op, data, 2), yv = infer_ref_out(op, data, 0);
    infer_rows x = {0}, y = {0};
    infer_ref_weight w;
    infer_attrs_matmul a;
    int64_t k = iv.width, n = rows * k;
    infer_op_attrs(op, &a, sizeof a);
    float **xs = infer_realloc_array(NULL, (size_t)n, sizeof *xs);
    float **ys = infer_realloc_array(NULL, (size_t)n, sizeof *ys);
    infer_status st = xs && ys ? infer_ref_weight_open(&w, infer_op_in(op, 1), data[1]) : INFER_E_NO_MEMORY;
    if (st == INFER_OK)
        st = infer_rows_load(&x, &xv, rows * xv.per_row);
    if (st == INFER_OK)
        st = infer_rows_target(&y, &yv, n);
    for (int64_t i = 0; st == INFER_OK && i < n; i++)
        memset(y.p[i], 0, (size_t)yv.width * sizeof(float)); /* what an id out of range leaves */
    for (int64_t e = 0; st == INFER_OK && e < w.e; e++) {
        int64_t m = 0;
        for (int64_t i = 0; i < n; i++)
            if (((const int32_t *)(const void *)infer_view_at(&iv, i / k))[i % k] == e) {
                xs[m] = x.p[xv.rank == 3 ? i : i / k];
                ys[m++] = y.p[i];
            }
        if (m)
            st = infer_ref_product(&w, e, xs, ys, m, a.scale == 0 ? 1 : a.scale, NULL);
    }
    if (st == INFER_OK)
        infer_rows_store(&y, &yv, n);
    infer_free(xs);
    infer_free(ys);
    infer_rows_free(&x);
    infer_rows_free(&y);
    return st;
}

INFER_REF(moe_combine)
{
    infer_view xv = infer_ref_in(op, data, 0), wv = infer_ref_in(op, data, 1), yv = infer_ref_out(op, data, 0);
    infer_rows x = {0}, w = {0}, y = {0};
    int64_t k = xv.per_row;
    infer_status st = infer_rows_load(&x, &xv, rows * k);
    if (st == INFER_OK)
        st = infer_rows_load(&w, &wv, rows);
    if (st == INFER_OK)
        st = infer_rows_target(&y, &yv, rows);
    if (st == INFER_OK) {
        for (int64_t i = 0; i < rows; i++)
            for (int64_t d = 0; d < yv.width; d++) {
                double sum = 0;
                for (int64_t j = 0; j < k; j++)
                    sum += (double)w.p[i][j] * x.p[i * k + j][d];
                y.p[i][d] = (float)sum;
            }
        infer_rows_store(&y, &yv, rows);
    }
    infer_rows_free(&x);
    infer_rows_free(&w);
    infer_rows_free(&y);
    return st;
}
