/* Reference of the ops on paged cache planes, canonical layout [block][head][offset][width].
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "ops/ops.h"
#include "ops/ref.h"

uint8_t *infer_ref_kv_at(const infer_view *pool, int64_t block, int64_t head, int64_t offset)
{
    if (block < 0 || block >= pool->shape[0])
        return NULL;
    return pool->p + block * pool->stride[0] + head * pool->stride[1] + offset * pool->stride[2];
}

uint64_t infer_ref_kv_bytes(const infer_view *pool)
{
    uint64_t bytes = 0;
    (void)infer_format_bytes(pool->format, (uint64_t)pool->width, &bytes); /* checked: whole blocks */
    return bytes;
}

void infer_ref_kv_put(const infer_view *pool, const int32_t *slots, const infer_rows *x, int64_t rows)
{
    int64_t heads = pool->shape[1], size = pool->shape[2];
    for (int64_t i = 0; i < rows; i++) {
        if (slots[i] < 0 || slots[i] / size >= pool->shape[0])
            continue;
        for (int64_t h = 0; h < heads; h++)
            infer_ref_pack(pool->format, x->p[i * heads + h],
                           infer_ref_kv_at(pool, slots[i] / size, h, slots[i] % size), pool->width);
    }
}

INFER_REF(kv_write)
{
    infer_status st = INFER_OK;
    for (uint32_t side = 0; side < 2 && st == INFER_OK; side++) {
        infer_view xv = infer_ref_in(op, data, side), pool = infer_ref_out(op, data, side);
        infer_rows x = {0};
        st = infer_rows_load(&x, &xv, rows * xv.per_row);
        if (st == INFER_OK)
            infer_ref_kv_put(&pool, data[2], &x, rows);
        infer_rows_free(&x);
    }
    return st;
}

/* Between pool block blocks[i] and image block i. */
static infer_status copy_blocks(const infer_view *pool, const infer_view *image, const int32_t *blocks, int64_t rows,
                                int unpack)
{
    uint64_t bytes = infer_ref_kv_bytes(pool);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t h = 0; h < pool->shape[1]; h++)
            for (int64_t t = 0; t < pool->shape[2]; t++) {
                uint8_t *p = infer_ref_kv_at(pool, blocks[i], h, t), *q = infer_ref_kv_at(image, i, h, t);
                if (unpack && p)
                    memcpy(p, q, bytes);
                else if (!unpack && p)
                    memcpy(q, p, bytes);
                else if (!unpack)
                    memset(q, 0, bytes);
            }
    return INFER_OK;
}

INFER_REF(kv_pack)
{
    infer_view pool = infer_ref_in(op, data, 0), image = infer_ref_out(op, data, 0);
    return copy_blocks(&pool, &image, data[1], rows, 0);
}

INFER_REF(kv_unpack)
{
    infer_view image = infer_ref_in(op, data, 0), pool = infer_ref_out(op, data, 0);
    return copy_blocks(&pool, &image, data[1], rows, 1);
}

INFER_REF(kv_move)
{
    infer_view pool = infer_ref_out(op, data, 0);
    const int32_t *src = data[1], *dst = data[2];
    int64_t size = pool.shape[2];
    uint64_t bytes = infer_ref_kv_bytes(&pool);
    if (data[0] != data[op->n_in])
        return INFER_E_INVALID;
    for (int64_t i = 0; i < rows; i++) {
        if (src[i] < 0 || dst[i] < 0 || src[i] / size >= pool.shape[0] || dst[i] / size >= pool.shape[0])
            continue;
        for (int64_t h = 0; h < pool.shape[1]; h++)
            memmove(infer_ref_kv_at(&pool, dst[i] / size, h, dst[i] % size),
                    infer_ref_kv_at(&pool, src[i] / size, h, src[i] % size), bytes);
    }
    return INFER_OK;
}
