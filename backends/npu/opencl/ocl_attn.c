/* Attention: which operands go where. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "ocl.h"

/* Local memory of a work-group: the query, the sums, scores and places of a chunk, scratch of the lanes. */
static uint64_t local_bytes(const infer_device *dev, int64_t d, int64_t dv)
{
    return (uint64_t)(d + dv + dev->tune->lanes) * 4 + (uint64_t)dev->tune->chunk * 12;
}

/* A program for each pair of formats. */
static infer_status program_of(infer_device *dev, infer_format k, infer_format v, const ocl_program **out)
{
    char options[48];
    snprintf(options, sizeof options, "-DKF=%u -DVF=%u", k, v);
    return ocl_program_get(dev, OCL_SOURCE_ATTN, options, out);
}

void ocl_check_attn(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    const ocl_program *program;
    const infer_tensor_desc *q = ocl_tensor_desc(op, 0), *y = ocl_tensor_desc(op, op->n_in);
    for (uint32_t i = 1; i < (op->op == INFER_OP_MLA_PAGED ? 2u : 3u); i++) {
        infer_format f = ocl_tensor_desc(op, i)->format;
        if (!ocl_is_plain(f) && f != INFER_FMT_F8_E4M3 && f != INFER_FMT_Q8_0 && f != INFER_FMT_Q4_0) {
            ocl_no(a, INFER_WHY_FORMAT, i);
            return;
        }
    }
    if (local_bytes(dev, q->shape[2], y->shape[2]) > dev->local_bytes)
        ocl_no(a, INFER_WHY_SHAPE, 0);
    else if (program_of(dev, ocl_tensor_desc(op, 1)->format,
                        ocl_tensor_desc(op, op->op == INFER_OP_MLA_PAGED ? 1 : 2)->format, &program))
        ocl_no(a, INFER_WHY_OP, 0);
}

infer_status ocl_run_attn(ocl_call *c)
{
    const infer_op_desc *op = c->op;
    const ocl_program *program;
    int dense = op->op == INFER_OP_ATTN_DENSE, mla = op->op == INFER_OP_MLA_PAGED, out = (int)op->n_in;
    int v = mla ? 1 : 2, table = dense ? -2 : v + 1, sinks = dense || mla ? -2 : 6, tree = dense ? -2 : mla ? 5 : 7;
    const infer_tensor_desc *k = ocl_tensor_desc(op, 1);
    infer_attrs_attn attrs;
    ocl_launch l;
    infer_status s = program_of(c->dev, k->format, ocl_tensor_desc(op, (uint32_t)v)->format, &program);
    if (s)
        return s;
    if (sinks >= 0 && (sinks >= out || !ocl_present(op, (uint32_t)sinks)))
        sinks = -2;
    if (tree >= 0 && (tree >= out || !ocl_present(op, (uint32_t)tree)))
        tree = -2;
    ocl_attrs(op, &attrs, sizeof attrs);
    ocl_attn p = {.q = c->t[0],
                  .k = c->t[1],
                  .v = c->t[v],
                  .y = c->t[out],
                  .rows = c->rows,
                  .heads = (int32_t)ocl_tensor_desc(op, 0)->shape[1],
                  .kv_heads = (int32_t)k->shape[1],
                  .n_blocks = (int32_t)k->shape[0],
                  .block_size = 1,
                  .mask = (int32_t)attrs.mask,
                  .window = (int32_t)(attrs.window < INT32_MAX ? attrs.window : INT32_MAX),
                  .scale = attrs.scale,
                  .soft_cap = attrs.soft_cap};
    if (dense) {
        p.dense_n = (int32_t)ocl_tensor_desc(op, 0)->shape[0];
        p.dense_m = (int32_t)k->shape[0];
    } else {
        p.block_size = (int32_t)k->shape[2];
        p.table = c->t[table];
        p.table_width = p.table.width;
        p.n_seqs = (int32_t)ocl_tensor_desc(op, (uint32_t)table)->shape[0];
        p.len_off = c->t[table + 1].off;
        p.start_off = c->t[table + 2].off;
    }
    if (sinks >= 0)
        p.sinks = c->t[sinks];
    if (tree >= 0)
        p.tree = c->t[tree];
    const int which[] = {0, 1, v, table, dense ? -2 : table + 1, dense ? -2 : table + 2, sinks, tree, out, -1};
    ocl_launch_init(&l, c, program, "attention", which, 10, &p, sizeof p);
    l.n_local = 2;
    l.local[0] = (size_t)p.k.width * 4;
    l.local[1] = (size_t)p.y.width * 4;
    return ocl_emit(c, &l, (size_t)p.heads, (size_t)p.rows.cap, 1, c->dev->tune->lanes, 1);
}
