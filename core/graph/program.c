/* From a part of the compiled graph to a program on its device. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "base/alloc.h"
#include "graph/compile.h"
#include "ops/ops.h"

static const infer_operand absent = {.slot = INFER_SLOT_ABSENT};

/* What infer_graph_view_build asks for an operand of a program. */
typedef struct bound {
    const infer_compiled *c;
    const infer_graph_binding *b;
} bound;

static infer_status operand_of(void *user, const infer_gnode *n, infer_val v, const infer_tensor_desc *desc,
                               infer_operand *out)
{
    const infer_compiled *c = ((const bound *)user)->c;
    const infer_graph_binding *b = ((const bound *)user)->b;
    const infer_value *val = &c->g->vals[v];
    uint64_t bytes;
    switch (val->kind) {
    case INFER_VAL_WEIGHT:
        return b->weight(b->user, n->dev, val->ref, n->op, out);
    case INFER_VAL_KV:
        return b->kv(b->user, n->dev, val->ref, out);
    case INFER_VAL_STEP:
    case INFER_VAL_STATE:
    case INFER_VAL_ACT:
        break;
    }
    INFER_TRY(infer_tensor_bytes(desc, &bytes));
    *out = (infer_operand){.size = bytes, .offset = val->ref};
    if (val->kind == INFER_VAL_STEP)
        out->slot = INFER_SLOT_I_STEP;
    else if (val->kind == INFER_VAL_STATE)
        out->slot = INFER_SLOT_I_STATE;
    else {
        out->slot = INFER_SLOT_I_ARENA;
        out->offset = c->place[(size_t)n->dev * c->g->n_vals + (size_t)infer_graph_root(c->g, v)];
    }
    return INFER_OK;
}

/* Rows that follow the token count shrink to the bucket, and so do those whose logits are wanted, which are some of
 * them; the other axes stay. */
static void shrink(const infer_graph *g, const infer_gnode *n, uint32_t bucket, infer_tensor_desc *tensors)
{
    for (uint32_t k = 0; k < (uint32_t)n->n_in + n->n_out; k++) {
        infer_val v = k < n->n_in ? n->in[k] : n->out[k - n->n_in];
        if (v < 0 || (g->vals[v].rows_from != INFER_COUNT_TOKENS && g->vals[v].rows_from != INFER_COUNT_LOGITS))
            continue;
        int64_t rows = (int64_t)bucket * g->vals[v].rows_mul;
        if (tensors[k].shape[0] > rows)
            tensors[k].shape[0] = rows;
    }
}

/* Whether all who read a node's result are in its part, and it is no output of the graph. */
static int is_inner(const infer_compiled *c, const infer_part *p, infer_val v)
{
    const infer_graph *g = c->g;
    const infer_val root = infer_graph_root(g, v);
    if (g->vals[root].kind != INFER_VAL_ACT)
        return 0;
    for (uint32_t i = 0; i < g->n_vals; i++)
        if (g->vals[i].keep && infer_graph_root(g, (infer_val)i) == root)
            return 0;
    for (uint32_t i = 0; i < c->n_order; i++) {
        const infer_gnode *n = &g->nodes[c->order[i]];
        for (uint32_t k = 0; (i < p->first || i >= p->first + p->count) && k < n->n_in; k++)
            if (n->in[k] >= 0 && infer_graph_root(g, n->in[k]) == root)
                return 0;
    }
    return 1;
}

void infer_view_free(infer_view_store *st)
{
    infer_free(st->ops);
    infer_free(st->tensors);
    infer_free(st->operands);
    infer_free(st->nodes);
    memset(st, 0, sizeof *st);
}

infer_status infer_graph_view_build(const infer_compiled *c, const infer_graph_target *t, uint32_t part,
                                    uint32_t bucket, infer_operand_fn operand, void *user, infer_view_store *out,
                                    infer_error *err)
{
    enum { PER_NODE = INFER_OP_MAX_OPERANDS + 4 };
    const infer_part *p = &c->parts[part];
    infer_view_store st = {
        infer_calloc(p->count, sizeof *st.ops), infer_calloc(p->count, PER_NODE * sizeof *st.tensors),
        infer_calloc(p->count, PER_NODE * sizeof *st.operands), infer_calloc(p->count, sizeof *st.nodes)};
    infer_status s = INFER_OK;
    if (!st.ops || !st.tensors || !st.operands || !st.nodes)
        s = infer_error_set(err, INFER_E_NO_MEMORY, "program: no host memory for %u nodes", p->count);
    for (uint32_t i = 0; i < p->count && s == INFER_OK; i++) {
        const infer_gnode *n = &c->g->nodes[c->order[p->first + i]];
        infer_tensor_desc *tensors = &st.tensors[(size_t)i * PER_NODE];
        infer_operand *operands = &st.operands[(size_t)i * PER_NODE];
        s = infer_graph_desc_on(c->g, t, n, n->dev, &st.ops[i], tensors, err);
        if (s == INFER_OK)
            shrink(c->g, n, bucket, tensors);
        for (uint32_t k = 0; s == INFER_OK && k < (uint32_t)n->n_in + n->n_out; k++) {
            infer_val v = k < n->n_in ? n->in[k] : n->out[k - n->n_in];
            operands[k] = absent;
            if (v >= 0 && (s = operand(user, n, v, &tensors[k], &operands[k])) != INFER_OK)
                infer_error_set(err, s, "program: a weight or cache plane of layer %d is not on %s", n->layer,
                                infer_hal_dev_id(t->devs[n->dev]));
            if (c->place && k >= n->n_in && v >= 0 && is_inner(c, p, v)) /* parts are as they will run */
                operands[k].flags |= INFER_OPERAND_INNER;
        }
        uint64_t at = c->scratch ? c->scratch[p->first + i] : UINT64_MAX;
        st.nodes[i] = (infer_node){
            .op = &st.ops[i],
            .operands = operands,
            .counts = {.slot = INFER_SLOT_I_STEP, .size = INFER_COUNT_MAX * sizeof(int32_t)},
            .scratch = at == UINT64_MAX
                           ? absent
                           : (infer_operand){.slot = INFER_SLOT_I_ARENA, .offset = at, .size = n->answer.scratch_bytes},
        };
    }
    if (s == INFER_OK)
        *out = st;
    else
        infer_view_free(&st);
    return s;
}

uint32_t infer_graph_slot_kind(uint32_t i)
{
    static const uint32_t kinds[] = {INFER_SLOT_ARENA, INFER_SLOT_STEP, INFER_SLOT_STATE, INFER_SLOT_KV};
    return i < INFER_SLOT_I_WEIGHT0 ? kinds[i] : INFER_SLOT_WEIGHT;
}

infer_status infer_graph_program(const infer_compiled *c, const infer_graph_target *t, uint32_t part, uint32_t bucket,
                                 const infer_graph_binding *b, infer_hal_prog **prog, infer_hal_exec **exec,
                                 infer_error *err)
{
    infer_slot_desc slots[INFER_GRAPH_MAX_SLOTS];
    infer_program_info info = {.struct_size = sizeof info};
    infer_hal_dev *dev = t->devs[c->parts[part].dev];
    infer_hal_prog *made = NULL;
    infer_view_store st;
    bound user = {c, b};
    INFER_TRY(infer_graph_view_build(c, t, part, bucket, operand_of, &user, &st, err));
    for (uint32_t i = 0; i < b->n_slots; i++)
        slots[i] = (infer_slot_desc){
            .kind = infer_graph_slot_kind(i), .rebindable = i == INFER_SLOT_I_STEP, .size = b->ranges[i].size};
    infer_graph_view view = {.struct_size = sizeof view,
                             .nodes = st.nodes,
                             .slots = slots,
                             .n_nodes = c->parts[part].count,
                             .node_size = sizeof *st.nodes,
                             .n_slots = b->n_slots,
                             .slot_size = sizeof *slots,
                             .bucket = bucket};
    infer_status s = infer_hal_prog_build(dev, &view, &made, &info, err);
    if (s == INFER_OK)
        s = infer_hal_exec_create(made, b->ranges, b->n_slots, exec, err);
    if (s == INFER_OK) {
        *prog = made;
        made = NULL;
    }
    infer_hal_prog_destroy(made);
    infer_view_free(&st);
    return s;
}
