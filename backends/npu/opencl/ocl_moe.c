/* Routing and joining of experts; their products are in ocl_matmul.c. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "ocl.h"

static uint64_t route_bytes(const infer_device *dev, int64_t experts, int64_t k)
{
    return (uint64_t)(experts + k + 2 * dev->tune->lanes) * 4;
}

void ocl_check_route(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    const ocl_program *program;
    if (route_bytes(dev, ocl_tensor_desc(op, 0)->shape[1], ocl_tensor_desc(op, op->n_in)->shape[1]) > dev->local_bytes)
        ocl_no(a, INFER_WHY_SHAPE, 0);
    else if (ocl_program_ops(dev, &program))
        ocl_no(a, INFER_WHY_OP, 0);
}

infer_status ocl_run_route(ocl_call *c)
{
    const ocl_program *program;
    infer_status s = ocl_program_ops(c->dev, &program);
    infer_attrs_route attrs;
    ocl_launch l;
    if (s)
        return s;
    ocl_attrs(c->op, &attrs, sizeof attrs);
    ocl_route p = {.x = c->t[0],
                   .ids = c->t[1],
                   .w = c->t[2],
                   .rows = c->rows,
                   .k = (int32_t)attrs.k,
                   .scoring = (int32_t)attrs.scoring,
                   .normalise = (int32_t)attrs.normalise,
                   .scale = attrs.scale == 0 ? 1 : attrs.scale};
    ocl_launch_init(&l, c, program, "moe_route", (const int[]){0, 1, 2, -1}, 4, &p, sizeof p);
    l.n_local = 1;
    l.local[0] = (size_t)(p.x.width + p.k) * 4;
    return ocl_emit(c, &l, (size_t)p.rows.cap, 1, 1, c->dev->tune->lanes, 1);
}

void ocl_check_combine(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    const ocl_program *program;
    (void)op;
    if (ocl_program_ops(dev, &program))
        ocl_no(a, INFER_WHY_OP, 0);
}

infer_status ocl_run_combine(ocl_call *c)
{
    const ocl_program *program;
    infer_status s = ocl_program_ops(c->dev, &program);
    ocl_combine p = {.x = c->t[0], .w = c->t[1], .y = c->t[2], .rows = c->rows, .k = (int32_t)ocl_per_row(c->op, 0)};
    ocl_launch l;
    if (s)
        return s;
    ocl_launch_init(&l, c, program, "moe_combine", (const int[]){0, 1, 2, -1}, 4, &p, sizeof p);
    return ocl_emit_each(c, &l, p.y.width, p.rows.cap);
}
