/* Rotation, the paged cache's writes and moves. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "ocl.h"

static void need_ops(infer_device *dev, infer_op_answer *a)
{
    const ocl_program *program;
    if (a->level && ocl_program_ops(dev, &program))
        ocl_no(a, INFER_WHY_OP, 0);
}

void ocl_check_rope(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    for (uint32_t i = 0; i < op->n_out && op->op != INFER_OP_ROPE; i++) {
        const infer_tensor_desc *t = ocl_tensor_desc(op, op->n_in + i);
        if (!ocl_format_block(t->format))
            ocl_no(a, INFER_WHY_FORMAT, op->n_in + i);
    }
    need_ops(dev, a);
}

/* One operand of heads: x to y, rotated where rope is given, through slots where there are. */
static infer_status write_heads(ocl_call *c, const ocl_program *program, int x, int y, int slots, int pos,
                                const infer_attrs_rope *rope)
{
    ocl_rope p = {.x = c->t[x], .y = c->t[y], .rows = c->rows};
    ocl_launch l;
    const infer_tensor_desc *from = ocl_tensor_desc(c->op, (uint32_t)x);
    p.heads = (int32_t)from->shape[1];
    if (rope) {
        p.pos = c->t[pos];
        p.freq = c->t[pos + 1];
        p.kind = (int32_t)rope->kind;
        p.dims = (int32_t)rope->n_dims;
        p.n_pos = (int32_t)rope->n_pos;
        p.magnitude = rope->magnitude == 0 ? 1 : rope->magnitude;
        for (int i = 0; i < 4; i++)
            p.section[i] = (int32_t)rope->section[i];
    }
    if (slots >= 0) {
        const infer_tensor_desc *pool = ocl_tensor_desc(c->op, (uint32_t)y);
        p.slots = c->t[slots];
        p.slots.s0 = 4;
        p.n_blocks = (int32_t)pool->shape[0];
        p.block_size = (int32_t)pool->shape[2];
    }
    const int which[] = {x, rope ? pos : -2, rope ? pos + 1 : -2, slots >= 0 ? slots : -2, y, -1};
    ocl_launch_init(&l, c, program, "rope_write", which, 6, &p, sizeof p);
    return ocl_emit(c, &l, ((size_t)p.x.width + 31) / 32, (size_t)p.heads, (size_t)p.rows.cap,
                    c->dev->tune->lanes == 1 ? 1 : 32, 1);
}

infer_status ocl_run_rope(ocl_call *c)
{
    const infer_op_desc *op = c->op;
    const ocl_program *program;
    infer_status s = ocl_program_ops(c->dev, &program);
    infer_attrs_rope rope;
    infer_attrs_rope_kv both;
    int out = (int)op->n_in;
    if (s)
        return s;
    ocl_attrs(op, &rope, sizeof rope);
    ocl_attrs(op, &both, sizeof both);
    switch (op->op) {
    case INFER_OP_ROPE:
        return write_heads(c, program, 0, out, -1, 1, &rope);
    case INFER_OP_KV_WRITE:
        s = write_heads(c, program, 0, out, 2, -1, NULL);
        return s ? s : write_heads(c, program, 1, out + 1, 2, -1, NULL);
    default:
        s = write_heads(c, program, 0, out, 4, 2, &both.rope);
        return s ? s : write_heads(c, program, 1, out + 1, 4, -1, NULL);
    }
}

/* ---- Moves ------------------------------------------------------------------------------------------------------ */

void ocl_check_move(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    if (!ocl_format_block(ocl_tensor_desc(op, 0)->format))
        ocl_no(a, INFER_WHY_FORMAT, 0);
    need_ops(dev, a);
}

static infer_status copy_states(ocl_call *c, const ocl_program *program)
{
    const infer_tensor_desc *t = ocl_tensor_desc(c->op, 0);
    ocl_move p = {.y = c->t[c->op->n_in], .src = c->t[1], .dst = c->t[2], .rows = c->rows};
    ocl_launch l;
    p.heads = (int32_t)t->shape[0];
    p.block_size = (int32_t)ocl_per_row(c->op, 0);
    p.bytes = (int32_t)ocl_format_bytes(t->format, (uint64_t)t->shape[t->rank - 1]);
    if (t->rank == 1) { /* a slot is an element */
        p.bytes = (int32_t)ocl_format_bytes(t->format, 1);
        p.y.s0 = p.bytes;
    }
    ocl_launch_init(&l, c, program, "state_copy", (const int[]){(int)c->op->n_in, 1, 2, -1}, 4, &p, sizeof p);
    return ocl_emit_each(c, &l, p.bytes, p.block_size);
}

infer_status ocl_run_move(ocl_call *c)
{
    const infer_op_desc *op = c->op;
    const ocl_program *program;
    infer_status s = ocl_program_ops(c->dev, &program);
    int out = (int)op->n_in, move = op->op == INFER_OP_KV_MOVE;
    const infer_tensor_desc *pool = ocl_tensor_desc(op, op->op == INFER_OP_KV_PACK ? 0 : op->n_in);
    ocl_launch l;
    if (s)
        return s;
    if (op->op == INFER_OP_STATE_COPY)
        return copy_states(c, program);
    ocl_move p = {.a = move ? c->t[out] : c->t[0],
                  .y = c->t[out],
                  .src = c->t[1],
                  .dst = move ? c->t[2] : c->t[1],
                  .rows = c->rows,
                  .mode = op->op == INFER_OP_KV_PACK     ? 0
                          : op->op == INFER_OP_KV_UNPACK ? 1
                                                         : 2,
                  .heads = (int32_t)pool->shape[1],
                  .block_size = (int32_t)pool->shape[2],
                  .n_blocks = (int32_t)pool->shape[0],
                  .bytes = (int32_t)ocl_format_bytes(pool->format, (uint64_t)pool->shape[3])};
    ocl_launch_init(&l, c, program, "kv_move", (const int[]){move ? out : 0, out, 1, move ? 2 : 1, -1}, 5, &p,
                    sizeof p);
    size_t each = c->dev->tune->each, lanes = c->dev->tune->lanes == 1 ? 1 : 64,
           items = ((size_t)p.bytes + each - 1) / each;
    return ocl_emit(c, &l, (items + lanes - 1) / lanes, (size_t)p.heads,
                    move ? 1 : (size_t)p.rows.cap * (size_t)p.block_size, lanes, 1);
}
