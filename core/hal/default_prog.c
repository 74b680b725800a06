/*
 * The stock program: a copy of the view, run as a list of cmd_op. What every plugin without a program compiler gets,
 * and what host->replay plays onto a queue that is being captured. Does not reorder, merge or check ops.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stddef.h>
#include <string.h>

#include "base/alloc.h"
#include "hal/internal.h"
#include "ops/ops.h"

typedef struct stock_node {
    infer_op_desc *op;
    infer_operand *operands;
    infer_operand counts, scratch;
    infer_comm *comm;
    uint32_t n_operands;
} stock_node;

struct hal_stock {
    stock_node *nodes;
    uint32_t n_nodes, n_slots;
    uint64_t n_operands; /* of all nodes */
};

/* ---- Copying a view into one block ------------------------------------------------------------------------- */

/* Runs twice: without memory it only counts. */
typedef struct bump {
    char *base;
    uint64_t used;
} bump;

static void *take(bump *b, uint64_t n)
{
    void *p = b->base ? b->base + b->used : NULL;
    b->used += (n + 7) / 8 * 8;
    return p;
}

static void *keep(bump *b, const void *src, uint64_t n)
{
    if (!src || !n)
        return NULL;
    void *p = take(b, n);
    if (p)
        memcpy(p, src, (size_t)n);
    return p;
}

static const infer_ext *keep_chain(bump *b, const infer_ext *e)
{
    const infer_ext *first = NULL;
    const infer_ext **link = &first;
    for (; e; e = e->next) {
        infer_ext *copy = keep(b, e, e->size);
        if (!copy)
            continue;
        *link = copy;
        link = &copy->next;
    }
    return first;
}

static infer_op_desc *keep_op(bump *b, const infer_op_desc *op)
{
    infer_op_desc *copy = take(b, sizeof *copy);
    const void *tensors = keep(b, op->tensors, (uint64_t)(op->n_in + op->n_out) * op->tensor_size);
    const void *attrs = keep(b, op->attrs, op->attrs_size);
    const void *epilogue = keep(b, op->epilogue, (uint64_t)op->n_epilogue * op->epilogue_size);
    const infer_ext *next = keep_chain(b, op->next);
    if (copy) {
        *copy = (infer_op_desc){0};
        memcpy(copy, op, op->struct_size < sizeof *copy ? op->struct_size : sizeof *copy);
        copy->struct_size = sizeof *copy;
        copy->tensors = tensors;
        copy->attrs = attrs;
        copy->epilogue = epilogue;
        copy->next = next;
    }
    return copy;
}

static const infer_node *node_at(const infer_graph_view *view, uint32_t i)
{
    return (const infer_node *)(const void *)((const char *)view->nodes + (uint64_t)i * view->node_size);
}

/* A plugin that replays may know shorter nodes than we do. */
static infer_comm *comm_of(const infer_graph_view *view, const infer_node *n)
{
    return view->node_size >= offsetof(infer_node, comm) + sizeof n->comm ? n->comm : NULL;
}

static hal_stock *keep_view(bump *b, const infer_graph_view *view)
{
    hal_stock *p = take(b, sizeof *p);
    stock_node *nodes = take(b, view->n_nodes * sizeof *nodes);
    uint64_t n_operands = 0;
    for (uint32_t i = 0; i < view->n_nodes; i++) {
        const infer_node *from = node_at(view, i);
        uint32_t n = from->op->n_in + from->op->n_out;
        infer_op_desc *op = keep_op(b, from->op);
        infer_operand *operands = keep(b, from->operands, n * sizeof *operands);
        n_operands += n;
        if (nodes)
            nodes[i] = (stock_node){.op = op,
                                    .operands = operands,
                                    .counts = from->counts,
                                    .scratch = from->scratch,
                                    .comm = comm_of(view, from),
                                    .n_operands = n};
    }
    if (p)
        *p = (hal_stock){.nodes = nodes, .n_nodes = view->n_nodes, .n_slots = view->n_slots, .n_operands = n_operands};
    return p;
}

infer_status hal_stock_build(const infer_graph_view *view, hal_stock **out)
{
    bump b = {0};
    keep_view(&b, view);
    b.base = infer_malloc((size_t)b.used);
    if (!b.base)
        return INFER_E_NO_MEMORY;
    b.used = 0;
    *out = keep_view(&b, view);
    return INFER_OK;
}

/* What a newer producer has beyond our structs is not copied: the sizes say so. */
static infer_graph_view *copy_view(bump *b, const infer_graph_view *view)
{
    infer_graph_view *v = take(b, sizeof *v);
    infer_node *nodes = take(b, view->n_nodes * sizeof *nodes);
    infer_slot_desc *slots = take(b, view->n_slots * sizeof *slots);
    const infer_ext *next = keep_chain(b, view->next);
    for (uint32_t i = 0; i < view->n_nodes; i++) {
        const infer_node *from = node_at(view, i);
        const infer_op_desc *op = keep_op(b, from->op);
        const infer_operand *operands =
            keep(b, from->operands, (uint64_t)(from->op->n_in + from->op->n_out) * sizeof *operands);
        if (nodes)
            nodes[i] = (infer_node){.op = op,
                                    .operands = operands,
                                    .counts = from->counts,
                                    .scratch = from->scratch,
                                    .comm = comm_of(view, from)};
    }
    for (uint32_t i = 0; slots && i < view->n_slots; i++) {
        slots[i] = (infer_slot_desc){0};
        memcpy(&slots[i], (const char *)view->slots + (uint64_t)i * view->slot_size,
               view->slot_size < sizeof *slots ? view->slot_size : sizeof *slots);
    }
    if (v)
        *v = (infer_graph_view){.struct_size = sizeof *v,
                                .flags = view->flags,
                                .next = next,
                                .nodes = nodes,
                                .slots = slots,
                                .n_nodes = view->n_nodes,
                                .node_size = sizeof *nodes,
                                .n_slots = view->n_slots,
                                .slot_size = sizeof *slots,
                                .bucket = view->bucket};
    return v;
}

infer_graph_view *hal_view_keep(const infer_graph_view *view)
{
    bump b = {0};
    copy_view(&b, view);
    b.base = infer_malloc((size_t)b.used);
    if (!b.base)
        return NULL;
    b.used = 0;
    return copy_view(&b, view);
}

void hal_stock_destroy(hal_stock *p)
{
    infer_free(p);
}

/* ---- Binding and running ----------------------------------------------------------------------------------- */

struct hal_stock_exec {
    const hal_stock *p;
    infer_range *slots;
    infer_range *operands;
    infer_op_args *args; /* of each node */
};

static infer_range place(const infer_operand *o, const infer_range *slots)
{
    if (o->slot == INFER_SLOT_ABSENT)
        return (infer_range){0};
    return (infer_range){.buffer = slots[o->slot].buffer, .offset = slots[o->slot].offset + o->offset, .size = o->size};
}

static void bind_all(hal_stock_exec *x)
{
    infer_range *r = x->operands;
    for (uint32_t i = 0; i < x->p->n_nodes; i++) {
        const stock_node *n = &x->p->nodes[i];
        x->args[i] = (infer_op_args){.struct_size = sizeof x->args[i],
                                     .n_operands = n->n_operands,
                                     .operands = r,
                                     .counts = place(&n->counts, x->slots),
                                     .scratch = place(&n->scratch, x->slots),
                                     .comm = n->comm};
        for (uint32_t k = 0; k < n->n_operands; k++)
            *r++ = place(&n->operands[k], x->slots);
    }
}

infer_status hal_stock_bind(const hal_stock *p, const infer_range *slots, hal_stock_exec **out)
{
    bump b = {0};
    for (int pass = 0;; pass++) {
        hal_stock_exec *x = take(&b, sizeof *x);
        infer_range *own = take(&b, p->n_slots * sizeof *own);
        infer_range *operands = take(&b, p->n_operands * sizeof *operands);
        infer_op_args *args = take(&b, p->n_nodes * sizeof *args);
        if (pass) {
            if (p->n_slots)
                memcpy(own, slots, p->n_slots * sizeof *own);
            *x = (hal_stock_exec){.p = p, .slots = own, .operands = operands, .args = args};
            bind_all(x);
            *out = x;
            return INFER_OK;
        }
        b.base = infer_malloc((size_t)b.used);
        if (!b.base)
            return INFER_E_NO_MEMORY;
        b.used = 0;
    }
}

void hal_stock_rebind(hal_stock_exec *x, uint32_t slot, const infer_range *range)
{
    x->slots[slot] = *range;
    bind_all(x);
}

void hal_stock_unbind(hal_stock_exec *x)
{
    infer_free(x);
}

/* The plugin's text, with which op of the list it was. */
static void name_op(hal_backend *b, infer_status s, const infer_op_desc *op, uint32_t i)
{
    char why[200];
    const infer_op_info *info = infer_op_get(op->op);
    strncpy(why, hal_detail_get(b, s, 0), sizeof why - 1);
    why[sizeof why - 1] = 0;
    hal_detail(b, s, "op %u (%s): %s", i, info ? info->name : "?", *why ? why : infer_status_name(s));
}

infer_status hal_stock_submit(infer_hal_dev *d, const hal_stock_exec *x)
{
    for (uint32_t i = 0; i < x->p->n_nodes; i++) {
        const infer_op_desc *op = x->p->nodes[i].op;
        uint32_t tries = 0;
        infer_status s;
        while ((s = d->ops->cmd_op(d->queue, op, &x->args[i])) == INFER_AGAIN)
            INFER_TRY(hal_again(d, &tries));
        if (s) {
            name_op(d->b, s, op, i);
            return hal_note(d, s);
        }
    }
    return INFER_OK;
}

infer_status hal_replay(hal_backend *b, const infer_graph_view *view, const infer_range *slots, infer_queue *queue)
{
    for (uint32_t i = 0; i < view->n_nodes; i++) {
        const infer_node *n = node_at(view, i);
        infer_range operands[INFER_OP_MAX_OPERANDS];
        uint32_t count = n->op->n_in + n->op->n_out;
        if (count > INFER_OP_MAX_OPERANDS)
            return INFER_E_INVALID;
        for (uint32_t k = 0; k < count; k++)
            operands[k] = place(&n->operands[k], slots);
        infer_op_args args = {.struct_size = sizeof args,
                              .n_operands = count,
                              .operands = operands,
                              .counts = place(&n->counts, slots),
                              .scratch = place(&n->scratch, slots),
                              .comm = comm_of(view, n)};
        infer_status s = b->ops.cmd_op(queue, n->op, &args);
        if (s) {
            name_op(b, s, n->op, i);
            return s;
        }
    }
    return INFER_OK;
}
