/* Routing to experts; their products are in ocl_matmul.c. SPDX-License-Identifier: Apache-2.0 */
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
    if (route_bytes(dev, launch_tensor_desc(op, 0)->shape[1], launch_tensor_desc(op, op->n_in)->shape[1]) >
        dev->local_bytes)
        launch_no(a, INFER_WHY_SHAPE, 0);
    else if (ocl_program_ops(dev, &program))
        launch_no(a, INFER_WHY_OP, 0);
}

infer_status ocl_run_route(launch_call *c)
{
    const ocl_program *program;
    infer_status s = ocl_program_ops(c->dev, &program);
    lp_route p;
    ocl_launch l;
    if (s)
        return s;
    launch_fill_route(c, &p);
    ocl_launch_init(&l, c, program, "moe_route", (const int[]){0, 1, 2, -1}, 4, &p, sizeof p);
    l.n_local = 1;
    l.local[0] = (size_t)(p.x.width + p.k) * 4;
    return ocl_emit(c, &l, (size_t)p.rows.cap, 1, 1, c->dev->tune->lanes, 1);
}
