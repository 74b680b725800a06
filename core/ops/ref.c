/* Runs reference ops: operands as rows of floats, the epilogue list, numbers shared by several ops. Plain and slow by
 * intent: nothing here is tuned beyond unpacking each weight row once. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "ops/ops.h"
#include "ops/ref.h"

infer_view infer_view_of(const infer_tensor_desc *t, void *p)
{
    infer_view v = {0};
    if (!t)
        return v;
    v = (infer_view){.p = p, .format = t->format, .rank = t->rank, .per_row = 1, .width = t->shape[t->rank - 1]};
    memcpy(v.shape, t->shape, sizeof v.shape);
    uint64_t span = 0;
    int dense = 1;
    for (uint32_t i = 0; i + 1 < t->rank; i++)
        dense &= !t->stride[i];
    /* the check has ruled out partial blocks and overflow */
    (void)infer_format_bytes(t->format, (uint64_t)v.width, &span);
    for (uint32_t i = t->rank - 1; i-- > 0;) {
        v.stride[i] = dense ? (int64_t)span : t->stride[i];
        span *= (uint64_t)t->shape[i];
        v.per_row *= i ? t->shape[i] : 1;
    }
    return v;
}

infer_view infer_ref_in(const infer_op_desc *op, void *const *data, uint32_t i)
{
    const infer_tensor_desc *t = infer_op_in(op, i);
    return infer_view_of(t, t ? data[i] : NULL);
}

infer_view infer_ref_out(const infer_op_desc *op, void *const *data, uint32_t i)
{
    const infer_tensor_desc *t = infer_op_out(op, i);
    return infer_view_of(t, t ? data[op->n_in + i] : NULL);
}

uint8_t *infer_view_at(const infer_view *v, int64_t k)
{
    if (v->rank == 1)
        return v->p;
    int64_t offset = 0;
    for (uint32_t i = v->rank - 2; i > 0; i--) {
        offset += k % v->shape[i] * v->stride[i];
        k /= v->shape[i];
    }
    return v->p + offset + k * v->stride[0];
}

void infer_ref_unpack(infer_format f, const void *src, float *dst, int64_t n)
{
    infer_format_get(f)->unpack(src, dst, (uint64_t)n);
}

void infer_ref_pack(infer_format f, const float *src, void *dst, int64_t n)
{
    infer_format_get(f)->pack(src, dst, (uint64_t)n);
}

infer_status infer_rows_scratch(infer_rows *r, int64_t n, int64_t width)
{
    float **p = infer_realloc_array(NULL, (size_t)n, sizeof *p);
    float *mem = width <= 0 ? infer_malloc(1) : NULL;
    if (width > 0 && n <= INT64_MAX / width)
        mem = infer_realloc_array(NULL, (size_t)(n * width), sizeof *mem);
    if (!p || !mem) {
        infer_free(p);
        infer_free(mem);
        return INFER_E_NO_MEMORY;
    }
    for (int64_t k = 0; k < n; k++)
        p[k] = mem + k * width;
    *r = (infer_rows){p, mem};
    return INFER_OK;
}

infer_status infer_rows_target(infer_rows *r, const infer_view *v, int64_t n)
{
    if (!v->p)
        return INFER_OK;
    if (v->format != INFER_FMT_F32)
        return infer_rows_scratch(r, n, v->width);
    float **p = infer_realloc_array(NULL, (size_t)n, sizeof *p);
    if (!p)
        return INFER_E_NO_MEMORY;
    for (int64_t k = 0; k < n; k++)
        p[k] = (float *)(void *)infer_view_at(v, k);
    *r = (infer_rows){p, NULL};
    return INFER_OK;
}

infer_status infer_rows_load(infer_rows *r, const infer_view *v, int64_t n)
{
    INFER_TRY(infer_rows_target(r, v, n));
    if (r->mem)
        for (int64_t k = 0; k < n; k++)
            infer_ref_unpack(v->format, infer_view_at(v, k), r->p[k], v->width);
    return INFER_OK;
}

void infer_rows_store(const infer_rows *r, const infer_view *v, int64_t n)
{
    if (r->mem)
        for (int64_t k = 0; k < n; k++)
            infer_ref_pack(v->format, r->p[k], infer_view_at(v, k), v->width);
}

void infer_rows_free(infer_rows *r)
{
    infer_free(r->p);
    infer_free(r->mem);
    *r = (infer_rows){0};
}

double infer_ref_dot(const float *a, const float *b, int64_t n)
{
    double s0 = 0, s1 = 0, s2 = 0, s3 = 0, s4 = 0, s5 = 0, s6 = 0, s7 = 0, rest = 0; /* named, to stay in registers */
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        s0 += (double)a[i] * (double)b[i];
        s1 += (double)a[i + 1] * (double)b[i + 1];
        s2 += (double)a[i + 2] * (double)b[i + 2];
        s3 += (double)a[i + 3] * (double)b[i + 3];
        s4 += (double)a[i + 4] * (double)b[i + 4];
        s5 += (double)a[i + 5] * (double)b[i + 5];
        s6 += (double)a[i + 6] * (double)b[i + 6];
        s7 += (double)a[i + 7] * (double)b[i + 7];
    }
    for (; i < n; i++)
        rest += (double)a[i] * (double)b[i];
    return ((s0 + s4) + (s1 + s5)) + ((s2 + s6) + (s3 + s7)) + rest;
}

double infer_ref_act(uint32_t act, double x)
{
    switch (act) {
    case INFER_ACT_SILU:
        return x / (1 + exp(-x));
    case INFER_ACT_GELU: /* Hendrycks and Gimpel 2016, arXiv:1606.08415 */
        return 0.5 * x * (1 + erf(x * 0.70710678118654752440));
    case INFER_ACT_GELU_TANH: /* the same paper's approximation */
        return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
    case INFER_ACT_RELU:
        return x > 0 ? x : x < 0 ? 0 : x; /* NaN stays */
    default:
        return 1 / (1 + exp(-x)); /* INFER_ACT_SIGMOID */
    }
}

/* The list acts on float values, one step after the other, each computed in double. */
static infer_status epilogue_step(const infer_op_desc *op, void *const *data, const infer_epilogue *e,
                                  const infer_rows *y, int64_t n, int64_t width)
{
    infer_rows b = {0};
    infer_view bv = {0};
    if (e->kind == INFER_EPI_BIAS || e->kind == INFER_EPI_RESIDUAL || e->kind == INFER_EPI_MUL) {
        bv = infer_ref_in(op, data, e->operand);
        INFER_TRY(infer_rows_load(&b, &bv, e->kind == INFER_EPI_BIAS ? 1 : n));
    }
    for (int64_t k = 0; k < n; k++) {
        float *v = y->p[k];
        const float *o = b.p ? b.p[e->kind == INFER_EPI_BIAS ? 0 : k] : NULL;
        for (int64_t i = 0; i < width; i++) {
            switch (e->kind) {
            case INFER_EPI_BIAS:
            case INFER_EPI_RESIDUAL:
                v[i] = (float)((double)v[i] + o[i]);
                break;
            case INFER_EPI_MUL:
                v[i] = (float)((double)v[i] * o[i]);
                break;
            case INFER_EPI_ACT:
                v[i] = (float)infer_ref_act(e->arg, v[i]);
                break;
            case INFER_EPI_SCALE:
                v[i] = (float)((double)v[i] * e->factor);
                break;
            default: /* INFER_EPI_CONVERT: the store does it */
                break;
            }
        }
    }
    infer_rows_free(&b);
    return INFER_OK;
}

infer_status infer_ref_epilogue(const infer_op_desc *op, void *const *data, const infer_rows *y, int64_t n)
{
    infer_view v = infer_ref_out(op, data, 0);
    for (uint32_t i = 0; i < op->n_epilogue; i++) {
        const uint8_t *at = (const uint8_t *)op->epilogue + (size_t)i * op->epilogue_size;
        INFER_TRY(epilogue_step(op, data, (const infer_epilogue *)(const void *)at, y, n, v.width));
    }
    for (int64_t k = 0; k < n; k++)
        infer_ref_pack(v.format, y->p[k], infer_view_at(&v, k), v.width);
    return INFER_OK;
}

/* The op with its first output replaced by F32 rows, then the list on those. */
static infer_status run_with_epilogue(const infer_op_desc *op, const infer_op_info *info, void *const *data,
                                      int64_t rows)
{
    infer_tensor_desc tensors[INFER_OP_MAX_OPERANDS];
    void *ptrs[INFER_OP_MAX_OPERANDS];
    infer_rows y = {0};
    infer_op_desc plain = *op;
    const infer_tensor_desc *out = infer_op_out(op, 0);
    infer_view v = infer_view_of(out, NULL);
    for (uint32_t i = 0; i < op->n_in + op->n_out; i++) {
        const uint8_t *at = (const uint8_t *)op->tensors + (size_t)i * op->tensor_size;
        memcpy(&tensors[i], at, sizeof tensors[i]);
        ptrs[i] = data[i];
    }
    INFER_TRY(infer_rows_scratch(&y, v.shape[0] * v.per_row, v.width));
    tensors[op->n_in] = infer_tensor_make(INFER_FMT_F32, out->rank, v.shape[0], v.shape[1], v.shape[2], v.shape[3]);
    ptrs[op->n_in] = y.mem;
    plain.tensors = tensors;
    plain.tensor_size = sizeof tensors[0];
    plain.n_epilogue = 0;
    infer_status st = info->ref(&plain, ptrs, rows);
    if (st == INFER_OK)
        st = infer_ref_epilogue(op, data, &y, rows * v.per_row);
    infer_rows_free(&y);
    return st;
}

infer_status infer_op_ref(const infer_op_desc *op, void *const *data, const int32_t *counts)
{
    const infer_op_info *info = infer_op_get(op->op);
    if (!info || !info->ref)
        return INFER_E_UNSUPPORTED;
    if (op->rows_from != INFER_ROWS_STATIC && !counts)
        return INFER_E_INVALID;
    for (uint32_t i = 0; i < op->n_in; i++)
        if (infer_op_in(op, i) && !data[i])
            return INFER_E_INVALID;
    for (uint32_t i = 0; i < op->n_out; i++)
        if (infer_op_out(op, i) && !data[op->n_in + i])
            return INFER_E_INVALID;
    int64_t rows = infer_op_rows(op, counts);
    return op->n_epilogue ? run_with_epilogue(op, info, data, rows) : info->ref(op, data, rows);
}
