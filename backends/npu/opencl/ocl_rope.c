/* Writes of keys and values: both in one launch, with the rotation of the queries before them where a program has put
 * it by (ocl_prog.c). SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "ocl.h"

void ocl_check_ropes(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    launch_check_rope(dev, op, a);
}

infer_status ocl_run_ropes(launch_call *c)
{
    const ocl_launch *q = ((const ocl_sink *)c->to)->held;
    const ocl_program *program;
    lp_rope of[3];
    int w[2][6];
    ocl_launch l;
    infer_status s = ocl_program_ops(c->dev, &program);
    if (s)
        return s;
    (void)launch_fill_rope(c, of, w);
    lp_rope_kvq p = {.k = of[0], .v = of[1].x, .v_to = of[1].y};
    int32_t width = of[0].x.width > of[1].x.width ? of[0].x.width : of[1].x.width;
    if (q) {
        memcpy(&of[2], q->params, sizeof of[2]);
        p.q = of[2].x;
        p.q_to = of[2].y;
        p.q_heads = of[2].heads;
        width = of[2].x.width > width ? of[2].x.width : width;
    }
    const int which[] = {w[0][0], w[0][1], w[0][2], w[0][3], w[0][4], w[1][0], w[1][4], -2, -2, -1};
    ocl_launch_init(&l, c, program, "rope_writes", which, 10, &p, sizeof p);
    if (q) {
        l.mem[7] = q->mem[0];
        l.mem[8] = q->mem[4];
    }
    return ocl_emit(c, &l, ((size_t)width + 31) / 32, (size_t)p.q_heads + 2 * (size_t)p.k.heads, (size_t)p.k.rows.cap,
                    c->dev->tune->lanes == 1 ? 1 : 32, 1);
}
