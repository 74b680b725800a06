/* Reference of rotary position embedding (Su et al. 2021, arXiv:2104.09864), angles in double.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "ops/ops.h"
#include "ops/ref.h"

void infer_ref_angles(const infer_attrs_rope *a, const int32_t *pos, const float *inv_freq, double *sine,
                      double *cosine)
{
    double magnitude = a->magnitude == 0 ? 1 : a->magnitude;
    uint32_t which = 0, left = a->section[0];
    for (uint32_t i = 0; i < a->n_dims / 2; i++) {
        while (a->n_pos > 1 && !left)
            left = a->section[++which];
        left -= a->n_pos > 1;
        double angle = (double)pos[which] * inv_freq[i];
        sine[i] = sin(angle) * magnitude;
        cosine[i] = cos(angle) * magnitude;
    }
}

void infer_ref_rotate(const infer_attrs_rope *a, const double *sine, const double *cosine, const float *src, float *dst,
                      int64_t d)
{
    uint32_t pairs = a->n_dims / 2;
    for (uint32_t i = 0; i < pairs; i++) {
        uint32_t p = a->kind == INFER_ROPE_PAIRS ? 2 * i : i, q = a->kind == INFER_ROPE_PAIRS ? p + 1 : i + pairs;
        double x = src[p], y = src[q];
        dst[p] = (float)(x * cosine[i] - y * sine[i]);
        dst[q] = (float)(x * sine[i] + y * cosine[i]);
    }
    if (dst != src)
        memcpy(dst + a->n_dims, src + a->n_dims, (size_t)(d - a->n_dims) * sizeof *dst);
}

/* Rotates the heads of rows x into y. pos is operand `at`, the frequencies the one after it. */
static infer_status rotate_rows(const infer_op_desc *op, void *const *data, const infer_attrs_rope *a, uint32_t at,
                                const infer_rows *x, const infer_rows *y, int64_t rows)
{
    infer_view pos = infer_ref_in(op, data, at), fv = infer_ref_in(op, data, at + 1);
    infer_view xv = infer_ref_in(op, data, 0);
    infer_rows freq = {0};
    double *angles = infer_realloc_array(NULL, a->n_dims, sizeof *angles);
    infer_status st = angles ? infer_rows_load(&freq, &fv, 1) : INFER_E_NO_MEMORY;
    for (int64_t i = 0; st == INFER_OK && i < rows; i++) {
        double *sine = angles, *cosine = angles + a->n_dims / 2;
        infer_ref_angles(a, (const int32_t *)(const void *)infer_view_at(&pos, i), freq.p[0], sine, cosine);
        for (int64_t k = i * xv.per_row; k < (i + 1) * xv.per_row; k++)
            infer_ref_rotate(a, sine, cosine, x->p[k], y->p[k], xv.width);
    }
    infer_rows_free(&freq);
    infer_free(angles);
    return st;
}

INFER_REF(rope)
{
    infer_view xv = infer_ref_in(op, data, 0), yv = infer_ref_out(op, data, 0);
    infer_rows x = {0}, y = {0};
    infer_attrs_rope a;
    int64_t n = rows * xv.per_row;
    infer_op_attrs(op, &a, sizeof a);
    infer_status st = infer_rows_load(&x, &xv, n);
    if (st == INFER_OK)
        st = infer_rows_target(&y, &yv, n);
    if (st == INFER_OK)
        st = rotate_rows(op, data, &a, 1, &x, &y, rows);
    if (st == INFER_OK)
        infer_rows_store(&y, &yv, n);
    infer_rows_free(&x);
    infer_rows_free(&y);
    return st;
}

INFER_REF(rope_kv_write)
{
    infer_view kv = infer_ref_in(op, data, 0), vv = infer_ref_in(op, data, 1);
    infer_view kpool = infer_ref_out(op, data, 0), vpool = infer_ref_out(op, data, 1);
    infer_rows k = {0}, v = {0}, turned = {0};
    infer_attrs_rope_kv a;
    infer_op_attrs(op, &a, sizeof a);
    infer_status st = infer_rows_load(&k, &kv, rows * kv.per_row);
    if (st == INFER_OK)
        st = infer_rows_load(&v, &vv, rows * vv.per_row);
    if (st == INFER_OK)
        st = infer_rows_scratch(&turned, rows * kv.per_row, kv.width);
    if (st == INFER_OK)
        st = rotate_rows(op, data, &a.rope, 2, &k, &turned, rows);
    if (st == INFER_OK) {
        infer_ref_kv_put(&kpool, data[4], &turned, rows);
        infer_ref_kv_put(&vpool, data[4], &v, rows);
    }
    infer_rows_free(&k);
    infer_rows_free(&v);
    infer_rows_free(&turned);
    return st;
}
