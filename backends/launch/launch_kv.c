/* Caches: how they lie, rotation, writes and moves. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "launch.h"

enum { BLOCK_BEST = 32 };

void launch_kv_query(const infer_kv_spec *spec, uint32_t align, infer_kv_answer *out)
{
    infer_kv_answer a = {.level = INFER_LEVEL_NATIVE, .block_multiple = 1, .block_best = BLOCK_BEST, .align = align};
    if (spec->kind != INFER_GROUP_FULL && spec->kind != INFER_GROUP_WINDOW && spec->kind != INFER_GROUP_LATENT &&
        spec->kind != INFER_GROUP_ENCODER) {
        a.level = INFER_LEVEL_NO;
        a.why = INFER_WHY_ATTR;
        a.which = 1;
    }
    for (uint32_t i = 0; i < spec->n_planes && i < 4 && a.level; i++) {
        const infer_kv_plane *p = &spec->planes[i];
        if (!launch_is_cache(p->format) || p->width % launch_format_block(p->format)) {
            a.level = INFER_LEVEL_NO;
            a.why = launch_is_cache(p->format) ? INFER_WHY_SHAPE : INFER_WHY_FORMAT;
            a.which = i;
            break;
        }
        a.block_bytes[i] =
            (p->per_head ? spec->n_heads : 1) * (uint64_t)BLOCK_BEST * launch_format_bytes(p->format, p->width);
    }
    launch_put(out, &a, sizeof a);
}

void launch_check_rope(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    for (uint32_t i = 0; i < op->n_out && op->op != INFER_OP_ROPE; i++) {
        const infer_tensor_desc *t = launch_tensor_desc(op, op->n_in + i);
        if (!launch_format_block(t->format))
            launch_no(a, INFER_WHY_FORMAT, op->n_in + i);
    }
    launch_need(dev, a, LAUNCH_K_rope_write);
}

/* One operand of heads: x to y, rotated where rope is given, through slots where there are. */
static void fill_heads(const launch_call *c, int x, int y, int slots, int pos, const infer_attrs_rope *rope, lp_rope *p,
                       int which[6])
{
    const infer_tensor_desc *from = launch_tensor_desc(c->op, (uint32_t)x);
    *p = (lp_rope){.x = c->t[x], .y = c->t[y], .rows = c->rows, .heads = (int32_t)from->shape[1]};
    if (rope) {
        p->pos = c->t[pos];
        p->freq = c->t[pos + 1];
        p->kind = (int32_t)rope->kind;
        p->dims = (int32_t)rope->n_dims;
        p->n_pos = (int32_t)rope->n_pos;
        p->magnitude = rope->magnitude == 0 ? 1 : rope->magnitude;
        for (int i = 0; i < 4; i++)
            p->section[i] = (int32_t)rope->section[i];
    }
    if (slots >= 0) {
        const infer_tensor_desc *pool = launch_tensor_desc(c->op, (uint32_t)y);
        p->slots = c->t[slots];
        p->slots.s0 = 4;
        p->n_blocks = (int32_t)pool->shape[0];
        p->block_size = (int32_t)pool->shape[2];
    }
    const int list[6] = {x, rope ? pos : -2, rope ? pos + 1 : -2, slots >= 0 ? slots : -2, y, -1};
    memcpy(which, list, sizeof list);
}

uint32_t launch_fill_rope(const launch_call *c, lp_rope p[2], int which[2][6])
{
    infer_attrs_rope rope;
    infer_attrs_rope_kv both;
    int out = (int)c->op->n_in;
    launch_attrs(c->op, &rope, sizeof rope);
    launch_attrs(c->op, &both, sizeof both);
    switch (c->op->op) {
    case INFER_OP_ROPE:
        fill_heads(c, 0, out, -1, 1, &rope, &p[0], which[0]);
        return 1;
    case INFER_OP_KV_WRITE:
        fill_heads(c, 0, out, 2, -1, NULL, &p[0], which[0]);
        fill_heads(c, 1, out + 1, 2, -1, NULL, &p[1], which[1]);
        return 2;
    default:
        fill_heads(c, 0, out, 4, 2, &both.rope, &p[0], which[0]);
        fill_heads(c, 1, out + 1, 4, -1, NULL, &p[1], which[1]);
        return 2;
    }
}

infer_status launch_run_rope(launch_call *c)
{
    lp_rope p[2];
    int which[2][6];
    uint32_t n = launch_fill_rope(c, p, which);
    infer_status s = INFER_OK;
    for (uint32_t i = 0; i < n && !s; i++)
        s = launch_emit(c, LAUNCH_K_rope_write, which[i], 6, &p[i], sizeof p[i], ((int64_t)p[i].x.width + 31) / 32,
                        p[i].heads, p[i].rows.cap);
    return s;
}

/* ---- Moves ------------------------------------------------------------------------------------------------------ */

void launch_check_move(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    if (!launch_format_block(launch_tensor_desc(op, 0)->format))
        launch_no(a, INFER_WHY_FORMAT, 0);
    launch_need(dev, a, op->op == INFER_OP_STATE_COPY ? LAUNCH_K_state_copy : LAUNCH_K_kv_move);
}

static infer_status copy_states(launch_call *c)
{
    const infer_tensor_desc *t = launch_tensor_desc(c->op, 0);
    lp_move p = {.y = c->t[c->op->n_in], .src = c->t[1], .dst = c->t[2], .rows = c->rows};
    p.heads = (int32_t)t->shape[0];
    p.block_size = (int32_t)launch_per_row(c->op, 0);
    p.bytes = (int32_t)launch_format_bytes(t->format, (uint64_t)t->shape[t->rank - 1]);
    if (t->rank == 1) { /* a slot is an element */
        p.bytes = (int32_t)launch_format_bytes(t->format, 1);
        p.y.s0 = p.bytes;
    }
    return launch_emit(c, LAUNCH_K_state_copy, (const int[]){(int)c->op->n_in, 1, 2, -1}, 4, &p, sizeof p, p.bytes,
                       p.block_size, 1);
}

infer_status launch_run_move(launch_call *c)
{
    const infer_op_desc *op = c->op;
    int out = (int)op->n_in, move = op->op == INFER_OP_KV_MOVE;
    const infer_tensor_desc *pool = launch_tensor_desc(op, op->op == INFER_OP_KV_PACK ? 0 : op->n_in);
    if (op->op == INFER_OP_STATE_COPY)
        return copy_states(c);
    lp_move p = {.a = move ? c->t[out] : c->t[0],
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
                 .bytes = (int32_t)launch_format_bytes(pool->format, (uint64_t)pool->shape[3])};
    return launch_emit(c, LAUNCH_K_kv_move, (const int[]){move ? out : 0, out, 1, move ? 2 : 1, -1}, 5, &p, sizeof p,
                       p.bytes, p.heads, move ? 1 : (int64_t)p.rows.cap * p.block_size);
}
