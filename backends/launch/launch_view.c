/* Which nodes of a program go in one launch, by what their operands say: the places are those in slots, so that it
 * holds wherever slots are bound to. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "launch.h"

const infer_node *launch_node(const infer_graph_view *v, uint32_t i)
{
    return (const infer_node *)(const void *)((const uint8_t *)v->nodes + (size_t)i * v->node_size);
}

/* ---- Memory --------------------------------------------------------------------------------------------------- */

int launch_overlap(const infer_operand *a, const infer_operand *b)
{
    return a->slot != INFER_SLOT_ABSENT && a->slot == b->slot && a->offset < b->offset + b->size &&
           b->offset < a->offset + a->size;
}

int launch_same(const infer_operand *a, const infer_operand *b)
{
    return a->slot == b->slot && a->offset == b->offset && a->size == b->size;
}

int launch_last_read(const infer_graph_view *v, uint32_t i, const infer_operand *a)
{
    for (i++; i < v->n_nodes; i++) {
        const infer_node *n = launch_node(v, i);
        for (uint32_t k = 0; k < n->op->n_in; k++)
            if (launch_overlap(&n->operands[k], a))
                return 0;
        for (uint32_t k = n->op->n_in; k < n->op->n_in + n->op->n_out; k++)
            if (launch_overlap(&n->operands[k], a))
                return 1;
    }
    return (a->flags & INFER_OPERAND_INNER) != 0;
}

int launch_in_arena(const infer_graph_view *v, const infer_operand *a)
{
    return a->slot != INFER_SLOT_ABSENT &&
           ((const infer_slot_desc *)(const void *)((const uint8_t *)v->slots + (size_t)a->slot * v->slot_size))
                   ->kind == INFER_SLOT_ARENA;
}

int launch_is_given(const infer_graph_view *v, const infer_operand *a)
{
    return a->slot == INFER_SLOT_ABSENT || !launch_in_arena(v, a);
}

int launch_is_dense(const infer_tensor_desc *t)
{
    int64_t bytes = (int64_t)launch_format_bytes(t->format, (uint64_t)t->shape[t->rank - 1]);
    int none = 1, same = 1;
    for (uint32_t i = t->rank - 1; i-- > 0; bytes *= t->shape[i]) {
        none &= !t->stride[i];
        same &= t->stride[i] == bytes;
    }
    return none || same;
}

int launch_apart(const infer_node *i, const infer_node *k)
{
    const infer_op_desc *a = i->op, *b = k->op;
    for (uint32_t y = a->n_in; y < a->n_in + a->n_out; y++)
        for (uint32_t x = 0; x < b->n_in; x++)
            if (launch_overlap(&i->operands[y], &k->operands[x]))
                return 0;
    for (uint32_t x = 0; x < b->n_in; x++)
        if (launch_overlap(&i->scratch, &k->operands[x]))
            return 0;
    return 1;
}

/* ---- Nodes ---------------------------------------------------------------------------------------------------- */

int launch_norm_goes(const infer_graph_view *v, uint32_t i)
{
    if (i + 1 >= v->n_nodes)
        return 0;
    const infer_node *n = launch_node(v, i), *next = launch_node(v, i + 1);
    const infer_operand *y = &n->operands[n->op->n_in];
    if (n->op->op != INFER_OP_RMS_NORM || n->op->n_out != 1 || n->op->n_epilogue || !launch_in_arena(v, y) ||
        !launch_is_given(v, &n->operands[1]) || next->operands[0].slot != y->slot ||
        next->operands[0].offset != y->offset)
        return 0;
    for (uint32_t k = 1; k < next->op->n_in; k++)
        if (launch_overlap(&next->operands[k], y))
            return 0;
    for (uint32_t k = next->op->n_in; k < next->op->n_in + next->op->n_out && next->op->op != INFER_OP_GATED_MLP; k++)
        if (launch_overlap(&next->operands[k], &n->operands[0])) /* blocks read it while others have ended */
            return 0;
    return !launch_overlap(&next->scratch, &n->operands[0]) && launch_last_read(v, i + 1, y);
}

int launch_ropes_join(const infer_node *rope, const infer_node *write)
{
    const infer_op_desc *a = rope->op, *b = write->op;
    infer_attrs_rope one, two;
    infer_attrs_rope_kv both;
    if (a->op != INFER_OP_ROPE || b->op != INFER_OP_ROPE_KV_WRITE || a->rows_from != b->rows_from ||
        a->rows_mul != b->rows_mul || launch_tensor_desc(a, 0)->shape[0] != launch_tensor_desc(b, 0)->shape[0])
        return 0;
    launch_attrs(a, &one, sizeof one);
    launch_attrs(b, &both, sizeof both);
    two = both.rope;
    two.struct_size = one.struct_size;
    for (uint32_t i = 0; i < 2; i++) { /* positions, frequencies */
        const infer_tensor_desc *x = launch_tensor_desc(a, 1 + i), *y = launch_tensor_desc(b, 2 + i);
        if (!launch_same(&rope->operands[1 + i], &write->operands[2 + i]) || x->format != y->format ||
            memcmp(x->shape, y->shape, x->rank * sizeof *x->shape) ||
            memcmp(x->stride, y->stride, x->rank * sizeof *x->stride))
            return 0;
    }
    return !memcmp(&one, &two, sizeof one) && launch_same(&rope->counts, &write->counts) && launch_apart(rope, rope) &&
           launch_apart(rope, write) && launch_apart(write, rope) && launch_apart(write, write) &&
           !launch_overlap(&rope->operands[3], &write->operands[5]) &&
           !launch_overlap(&rope->operands[3], &write->operands[6]);
}

/* Whether an operand lies on nothing that a node reads from operand k on. */
static int spares(const infer_operand *a, const infer_node *n, uint32_t k)
{
    for (; k < n->op->n_in; k++)
        if (launch_overlap(&n->operands[k], a))
            return 0;
    return 1;
}

int launch_qkv_goes(const infer_graph_view *v, uint32_t i, const infer_node *norm)
{
    if (i + 2 >= v->n_nodes || launch_node(v, i)->op->op != INFER_OP_QKV)
        return 0;
    const infer_node *qkv = launch_node(v, i), *rope = launch_node(v, i + 1), *write = launch_node(v, i + 2);
    if (!launch_ropes_join(rope, write) || qkv->op->rows_from != rope->op->rows_from ||
        qkv->op->rows_mul != rope->op->rows_mul || !launch_same(&qkv->counts, &rope->counts))
        return 0;
    const infer_operand *made = &qkv->operands[qkv->op->n_in];
    const infer_operand *read[3] = {&rope->operands[0], &write->operands[0], &write->operands[1]};
    const infer_operand *to[3] = {&rope->operands[3], &write->operands[5], &write->operands[6]};
    for (uint32_t m = 0; m < 3; m++) {
        if (!launch_same(&made[m], read[m]) || !launch_in_arena(v, &made[m]) || !launch_last_read(v, i + 2, &made[m]))
            return 0;
        for (uint32_t k = 0; k < rope->op->n_in + write->op->n_in; k++) {
            const infer_operand *o = k < rope->op->n_in ? &rope->operands[k] : &write->operands[k - rope->op->n_in];
            if (o != read[m] && launch_overlap(o, &made[m]))
                return 0;
        }
        if (!spares(to[m], qkv, norm ? 1 : 0) || (norm && !spares(to[m], norm, 0)))
            return 0;
    }
    return 1;
}
