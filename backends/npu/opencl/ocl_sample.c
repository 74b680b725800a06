/* Sampling: operands and scratch. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "ocl.h"

void ocl_check_sample(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    const ocl_program *program;
    const infer_tensor_desc *x = launch_tensor_desc(op, 0);
    if (ocl_program_sample(dev, &program)) {
        launch_no(a, INFER_WHY_OP, 0);
        return;
    }
    /* logits after penalties, and shares */
    a->scratch_bytes = 2 * (uint64_t)x->shape[0] * (uint64_t)x->shape[1] * sizeof(float);
}

infer_status ocl_run_sample(launch_call *c)
{
    const ocl_program *program;
    infer_status s = ocl_program_sample(c->dev, &program);
    lp_sample p;
    int which[11], out = (int)c->op->n_in;
    ocl_launch l;
    if (s)
        return s;
    launch_fill_sample(c, &p, which);
    ocl_launch_init(&l, c, program, "sample", which, 11, &p, sizeof p);
    s = ocl_emit(c, &l, (size_t)p.rows.cap, 1, 1, program->lanes, 1);
    if (s || !p.counts.fmt || p.rows.cap == 1) /* one row counts by itself */
        return s;
    ocl_launch_init(&l, c, program, "count_ids", (const int[]){1, 2, out, -1}, 4, &p, sizeof p);
    return ocl_emit(c, &l, 1, 1, 1, 1, 1);
}
