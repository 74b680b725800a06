/* Writes of keys and values: both in one launch, with what a program has put by (ocl_prog.c): the rotation of the
 * queries before them, and the product that makes all three. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "ocl.h"

void ocl_check_ropes(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    launch_check_rope(dev, op, a);
}

int ocl_makes_ropes(infer_device *dev, const infer_op_desc *qkv, const infer_op_desc *rope, const infer_op_desc *write)
{
    const infer_tensor_desc *heads[3] = {launch_tensor_desc(rope, 0), launch_tensor_desc(write, 0),
                                         launch_tensor_desc(write, 1)};
    const infer_tensor_desc *to[3] = {launch_tensor_desc(rope, 3), launch_tensor_desc(write, 5),
                                      launch_tensor_desc(write, 6)};
    infer_attrs_rope a;
    launch_attrs(rope, &a, sizeof a);
    if (!ocl_joins_qkv(dev, qkv) || launch_tensor_desc(qkv, 0)->format != INFER_FMT_F32)
        return 0;
    for (uint32_t i = 0; i < 3; i++) {
        const infer_tensor_desc *y = launch_tensor_desc(qkv, qkv->n_in + i);
        const int64_t width = heads[i]->shape[2];
        if (!launch_is_dense(heads[i]) || !launch_is_dense(y) || y->format != INFER_FMT_F32 ||
            heads[i]->format != INFER_FMT_F32 || y->shape[1] != heads[i]->shape[1] * width ||
            launch_format_block(to[i]->format) != 1 || width % 2 ||
            (i < 2 && width != (int64_t)a.n_dims)) /* whole heads are rotated */
            return 0;
    }
    return 1;
}

/* The launch of the product that is held, turned into one that rotates and writes what it makes. */
static infer_status emit_product(launch_call *c, const lp_rope of[2], const int k[6], int v_to)
{
    static const char *const names[][2] = {{"mvs1", "mvq1"}, {"mvsr", "mvqr"}, {"mvs1_norm", "mvq1_norm"}};
    const ocl_sink *sink = c->to;
    const ocl_launch *q = sink->held;
    enum { Y = 7 }; /* of the product's buffers, three */
    _Static_assert(sizeof(lp_mms) + sizeof(lp_norm_of) + sizeof(lp_rope) <= OCL_MAX_PARAMS, "blocks of one launch");
    ocl_launch l = *sink->held2;
    lp_mms p;
    lp_rope queries;
    memcpy(&queries, q->params, sizeof queries);
    memcpy(&p, l.params, sizeof p);
    p.y[0] = queries.y;
    p.y[1] = of[0].y;
    p.y[2] = of[1].y;
    memcpy(l.params, &p, sizeof p);
    ocl_launch_block(&l, &of[0], sizeof of[0]);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(l.name, names[i][0])) {
            l.name = names[i][1];
            break;
        }
    l.mem[Y] = q->mem[4];
    l.mem[Y + 1] = c->mem[k[4]];
    l.mem[Y + 2] = c->mem[v_to];
    for (int i = 1; i < 4; i++) /* positions, frequencies, slots */
        l.mem[l.n_mem++] = c->mem[k[i]];
    return sink->take(sink->ctx, &l);
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
    if (((const ocl_sink *)c->to)->held2)
        return emit_product(c, of, w[0], w[1][4]);
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
