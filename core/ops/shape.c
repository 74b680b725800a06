/* Sizes and places of operands, rows of a run, access to a descriptor's arrays. Validation is check.c.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "base/checked.h"
#include "ops/ops.h"
#include "ops/ref.h"
#include "quant/quant.h"

#define PLANE_ALIGN 256u /* of data, scale and zero in an image (ops.h, infer_tensor_desc.quant) */

static const infer_tensor_desc *tensor_at(const infer_op_desc *op, uint32_t i)
{
    const uint8_t *base = (const uint8_t *)op->tensors;
    const infer_tensor_desc *t = (const infer_tensor_desc *)(const void *)(base + (size_t)i * op->tensor_size);
    return t->flags & INFER_TENSOR_ABSENT ? NULL : t;
}

const infer_tensor_desc *infer_op_in(const infer_op_desc *op, uint32_t i)
{
    return i < op->n_in ? tensor_at(op, i) : NULL;
}

const infer_tensor_desc *infer_op_out(const infer_op_desc *op, uint32_t i)
{
    return i < op->n_out ? tensor_at(op, op->n_in + i) : NULL;
}

void infer_op_attrs(const infer_op_desc *op, void *out, uint32_t size)
{
    memset(out, 0, size);
    if (!op->attrs || op->attrs_size < sizeof(uint32_t))
        return;
    uint32_t have;
    memcpy(&have, op->attrs, sizeof have);
    if (have > op->attrs_size)
        have = op->attrs_size;
    memcpy(out, op->attrs, have < size ? have : size);
}

static int contiguous(const infer_tensor_desc *t)
{
    for (uint32_t i = 0; i + 1 < t->rank; i++)
        if (t->stride[i])
            return 0;
    return 1;
}

infer_status infer_tensor_planes(const infer_tensor_desc *t, uint64_t offset[3], uint64_t each[3], uint64_t *bytes)
{
    uint64_t planes[3], at = 0, end = 0, starts[3] = {0};
    int64_t count = t->rank == 3 ? t->shape[0] : 1;
    if ((t->rank != 2 && t->rank != 3) || t->quant.format != t->format || !contiguous(t))
        return INFER_E_INVALID;
    INFER_TRY(infer_quant_bytes(&t->quant, (uint64_t)t->shape[t->rank - 2], (uint64_t)t->shape[t->rank - 1], planes));
    for (int i = 0; i < 3; i++) {
        uint64_t all;
        if (!planes[i])
            continue;
        if (!infer_round_up_u64(end, PLANE_ALIGN, &at) || !infer_mul_u64(planes[i], (uint64_t)count, &all) ||
            !infer_add_u64(at, all, &end))
            return INFER_E_TOO_LARGE;
        starts[i] = at;
    }
    if (end > INT64_MAX)
        return INFER_E_TOO_LARGE;
    memcpy(offset, starts, sizeof starts);
    memcpy(each, planes, sizeof planes);
    *bytes = end;
    return INFER_OK;
}

infer_status infer_tensor_bytes(const infer_tensor_desc *t, uint64_t *bytes)
{
    const infer_format_info *f = infer_format_get(t->format);
    if (t->rank < 1 || t->rank > 4)
        return INFER_E_INVALID;
    if (!f)
        return INFER_E_UNSUPPORTED;
    for (uint32_t i = 0; i < 4; i++)
        if (t->shape[i] < 1 || (i >= t->rank && t->shape[i] != 1))
            return INFER_E_INVALID;
    if (t->quant.format) {
        uint64_t offset[3], each[3];
        return infer_tensor_planes(t, offset, each, bytes);
    }
    uint64_t span;
    INFER_TRY(infer_format_bytes(t->format, (uint64_t)t->shape[t->rank - 1], &span));
    int dense = contiguous(t);
    for (uint32_t i = t->rank - 1; i-- > 0;) {
        uint64_t step = dense ? span : (uint64_t)t->stride[i], rest;
        /* the scalars of a plain format stay aligned */
        if (!dense &&
            (t->stride[i] < 0 || (t->shape[i] > 1 && step < span) || (f->block_elems == 1 && step % f->block_bytes)))
            return INFER_E_INVALID;
        if (!infer_mul_u64(step, (uint64_t)t->shape[i] - 1, &rest) || !infer_add_u64(rest, span, &span))
            return INFER_E_TOO_LARGE;
    }
    if (span > INT64_MAX)
        return INFER_E_TOO_LARGE;
    *bytes = span;
    return INFER_OK;
}

uint64_t infer_tensor_elems(const infer_tensor_desc *t)
{
    uint64_t n = 1;
    for (uint32_t i = 0; i < t->rank && i < 4; i++)
        if (t->shape[i] < 0 || !infer_mul_u64(n, (uint64_t)t->shape[i], &n))
            return 0;
    return n;
}

infer_tensor_desc infer_tensor_make(infer_format format, uint32_t rank, int64_t s0, int64_t s1, int64_t s2, int64_t s3)
{
    infer_tensor_desc t = {.format = format, .rank = rank, .shape = {s0, s1, s2, s3}};
    for (uint32_t i = rank; i < 4; i++)
        t.shape[i] = 1;
    return t;
}

int64_t infer_op_rows(const infer_op_desc *op, const int32_t *counts)
{
    const infer_op_info *info = infer_op_get(op->op);
    const infer_tensor_desc *t = info ? infer_op_in(op, info->rows_of) : NULL;
    int64_t cap = t ? t->shape[0] : 0;
    if (!counts || op->rows_from >= INFER_COUNT_MAX)
        return cap;
    int64_t n = counts[op->rows_from], mul = op->rows_mul; /* at most 2^31 * 2^32 */
    if (n <= 0)
        return 0;
    return n * mul < cap ? n * mul : cap;
}
