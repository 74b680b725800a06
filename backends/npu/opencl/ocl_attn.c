/* Attention: which operands go where. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "ocl.h"

enum { EIGHT = 8 };

uint64_t ocl_attn_local(const infer_device *dev, uint32_t lanes, int64_t d, int64_t dv)
{
    if (dev->tune->lanes == 1) /* the query and the sums */
        return (uint64_t)(d + dv) * 4;
    /* the query; of reductions, a share and eight sums a lane; places of a key and a value */
    return (uint64_t)d * 4 + (uint64_t)lanes * (4 * (1 + 1 + 8) + 16) + lanes / 16 * 4;
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
    const infer_tensor_desc *q = launch_tensor_desc(op, 0), *y = launch_tensor_desc(op, op->n_in);
    for (uint32_t i = 1; i < (op->op == INFER_OP_MLA_PAGED ? 2u : 3u); i++) {
        infer_format f = launch_tensor_desc(op, i)->format;
        if (!launch_is_cache(f)) {
            launch_no(a, INFER_WHY_FORMAT, i);
            return;
        }
    }
    if (program_of(dev, launch_tensor_desc(op, 1)->format,
                   launch_tensor_desc(op, op->op == INFER_OP_MLA_PAGED ? 1 : 2)->format, &program))
        launch_no(a, INFER_WHY_OP, 0);
    else if (ocl_attn_local(dev, program->lanes, q->shape[2], y->shape[2]) > dev->local_bytes ||
             (dev->tune->lanes > 1 && y->shape[2] > EIGHT * (int64_t)program->lanes)) /* a lane has one eight */
        launch_no(a, INFER_WHY_SHAPE, 0);
}

infer_status ocl_run_attn(launch_call *c)
{
    const ocl_program *program;
    lp_attn p;
    int which[10];
    ocl_launch l;
    launch_fill_attn(c, &p, which);
    infer_status s = program_of(c->dev, (infer_format)p.k.fmt, (infer_format)p.v.fmt, &program);
    if (s)
        return s;
    ocl_launch_init(&l, c, program, "attention", which, 10, &p, sizeof p);
    l.n_local = c->dev->tune->lanes == 1 ? 2 : 1;
    l.local[0] = (size_t)p.k.width * 4;
    l.local[1] = (size_t)p.y.width * 4;
    return ocl_emit(c, &l, (size_t)p.heads, (size_t)p.rows.cap, 1, program->lanes, 1);
}
