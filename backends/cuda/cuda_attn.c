/* Attention: how the context is cut (kernels/attn.cu). SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "cuda.h"

/* SPLIT: keys of a part. With one sequence of 1,000 tokens and 8 KV heads that makes 64 blocks; a join costs one read
 * of the results. PART_ROWS, PART_BYTES: more rows fill a device without parts of their own, and have no scratch. */
enum { SPLIT = 128, THREADS = 128, WIDE_THREADS = 256, PART_ROWS = 64 };
#define PART_BYTES ((uint64_t)256 << 20)

static int64_t parts_of(const lp_attn *p)
{
    return cuda_div_up((int64_t)p->table_width * p->block_size, SPLIT);
}

/* Bytes of one row's partial results. */
static uint64_t row_bytes(int64_t heads, int64_t parts, int64_t dv)
{
    return (uint64_t)heads * (uint64_t)parts * (uint64_t)LP_ATTN_PART(dv) * 4;
}

static int64_t rows_in_parts(int64_t cap, uint64_t bytes)
{
    int64_t fit = bytes ? (int64_t)(PART_BYTES / bytes) : 0;
    fit = fit < PART_ROWS ? fit : PART_ROWS;
    return cap < fit ? cap : fit;
}

static uint32_t threads_for(int64_t dv)
{
    return dv > 256 ? WIDE_THREADS : THREADS;
}

static uint64_t shared_for(int gt, int64_t d, int64_t dv)
{
    return 4 * (uint64_t)((int64_t)gt * ((d + 7) / 8 * 8 + SPLIT + dv + 2) + 4 * SPLIT + 8 * (int64_t)threads_for(dv));
}

/* Query heads of a block: all that share a KV head, 8 at most, as many as shared memory has room for; 0: not one. */
static int heads_of_block(const infer_device *dev, int64_t group, int64_t d, int64_t dv)
{
    int gt = 1;
    while (gt < group && gt < 8)
        gt *= 2;
    while (gt && shared_for(gt, d, dv) > dev->tune.shared_per_block)
        gt /= 2;
    return gt;
}

void cuda_check_attn(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    const infer_tensor_desc *q = launch_tensor_desc(op, 0), *k = launch_tensor_desc(op, 1),
                            *y = launch_tensor_desc(op, op->n_in);
    int mla = op->op == INFER_OP_MLA_PAGED;
    for (uint32_t i = 1; i < (mla ? 2u : 3u); i++) {
        infer_format f = launch_tensor_desc(op, i)->format;
        if (!launch_is_cache(f)) {
            launch_no(a, INFER_WHY_FORMAT, i);
            return;
        }
    }
    int64_t d = q->shape[2], dv = y->shape[2];
    if (!dev->kernels[CUDA_K_attention_1] || !dev->kernels[CUDA_K_attention_join])
        launch_no(a, INFER_WHY_OP, 0);
    else if (dv > 8 * (int64_t)threads_for(dv) || !heads_of_block(dev, q->shape[1] / k->shape[1], d, dv))
        launch_no(a, INFER_WHY_SHAPE, 0);
    else if (op->op != INFER_OP_ATTN_DENSE) {
        const infer_tensor_desc *table = launch_tensor_desc(op, mla ? 2 : 3);
        uint64_t bytes = row_bytes(q->shape[1], cuda_div_up(table->shape[1] * k->shape[2], SPLIT), dv);
        a->scratch_bytes = bytes * (uint64_t)rows_in_parts(q->shape[0], bytes);
    }
}

infer_status cuda_run_attn(launch_call *c)
{
    cuda_launch l;
    lp_attn p;
    int list[10];
    launch_fill_attn(c, &p, list);
    int64_t group = p.heads / p.kv_heads, d = p.k.width, dv = p.y.width, all = parts_of(&p);
    int gt = heads_of_block(c->dev, group, d, dv);
    uint64_t bytes = row_bytes(p.heads, all, dv);
    p.split = SPLIT;
    if (all > 1 && p.rows.cap <= rows_in_parts(p.rows.cap, bytes)) {
        p.parts = (int32_t)all;
        p.part_off = c->scratch_off;
    }
    int which[11];
    memcpy(which, list, sizeof list);
    which[10] = -3;
    uint32_t k = gt == 1   ? CUDA_K_attention_1
                 : gt == 2 ? CUDA_K_attention_2
                 : gt == 4 ? CUDA_K_attention_4
                           : CUDA_K_attention_8;
    cuda_launch_init(&l, c, k, which, 11, &p, sizeof p);
    l.shared = (uint32_t)shared_for(gt, d, dv);
    infer_status s = cuda_emit(c, &l, p.parts ? (uint32_t)p.parts : 1, (uint32_t)p.kv_heads * cuda_div_up(group, gt),
                               cuda_walked(p.rows.cap), threads_for(dv), 1, 1);
    if (s || !p.parts)
        return s;
    const int join[] = {list[3], list[4], list[5], list[6], list[8], -1, -3};
    cuda_launch_init(&l, c, CUDA_K_attention_join, join, 7, &p, sizeof p);
    return cuda_emit(c, &l, (uint32_t)p.heads, cuda_walked(p.rows.cap), 1, THREADS, 1, 1);
}
