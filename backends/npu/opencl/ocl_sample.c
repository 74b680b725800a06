/* Sampling: operands and scratch. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "ocl.h"

void ocl_check_sample(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    const ocl_program *program;
    const infer_tensor_desc *x = ocl_tensor_desc(op, 0);
    if (ocl_program_long(dev, &program)) {
        ocl_no(a, INFER_WHY_OP, 0);
        return;
    }
    /* logits after penalties, and shares */
    a->scratch_bytes = 2 * (uint64_t)x->shape[0] * (uint64_t)x->shape[1] * sizeof(float);
}

infer_status ocl_run_sample(ocl_call *c)
{
    const infer_op_desc *op = c->op;
    const ocl_program *program;
    infer_status s = ocl_program_long(c->dev, &program);
    int out = (int)op->n_in, in[5];
    infer_attrs_sample attrs;
    ocl_launch l;
    if (s)
        return s;
    ocl_attrs(op, &attrs, sizeof attrs);
    for (int i = 0; i < 5; i++)
        in[i] = i < out && ocl_present(op, (uint32_t)i) ? i : -2;
    ocl_sample p = {.x = c->t[0],
                    .params = c->t[1],
                    .rows = c->rows,
                    .ids_off = c->t[out].off,
                    .lp_off = c->t[out + 1].off,
                    .lp_fmt = c->t[out + 1].fmt,
                    .z_off = c->scratch_off,
                    .n_top = (int32_t)attrs.n_top};
    if (in[2] >= 0) {
        p.counts = c->t[2];
        p.n_counts = (int32_t)ocl_tensor_desc(op, 2)->shape[0];
    }
    if (in[3] >= 0) {
        p.bias = c->t[3];
        p.n_bias = (int32_t)ocl_tensor_desc(op, 3)->shape[0];
    }
    if (in[4] >= 0)
        p.mask = c->t[4];
    if (p.n_top) {
        p.top_ids = c->t[out + 2];
        p.top_lp = c->t[out + 3];
    }
    const int which[] = {0,  1, in[2], in[3], in[4], out, out + 1, p.n_top ? out + 2 : -2, p.n_top ? out + 3 : -2,
                         -2, -1};
    ocl_launch_init(&l, c, program, "sample", which, 11, &p, sizeof p);
    l.mem[9] = c->scratch;
    s = ocl_emit(c, &l, (size_t)p.rows.cap, 1, 1, c->dev->row_lanes, 1);
    if (s || in[2] < 0)
        return s;
    ocl_launch_init(&l, c, program, "count_ids", (const int[]){1, 2, out, -1}, 4, &p, sizeof p);
    return ocl_emit(c, &l, 1, 1, 1, 1, 1);
}
