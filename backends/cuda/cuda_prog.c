/* Programs: a copy of the view; an instance is a graph of its launches, recorded from a stream in capture mode, so that
 * a run is one call. A changed slot is a recording anew, with which the graph is updated in place.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "cuda.h"

struct infer_program {
    infer_device *dev;
    const infer_graph_view *view;
    uint8_t
        *keep; /* of each node: launches of the next one that make this norm by themselves; whether the next one's
                  launch does this rotation or write, too; in which tiles the next one wants this attention's result */
};

struct infer_exec {
    infer_program *prog;
    cu_graph_exec graph; /* NULL: nothing to run */
    uint32_t n_slots;
    infer_range slots[];
};

/* ---- Norms that the product after them makes by itself -------------------------------------------------------- */

static const infer_node *node_of(const infer_graph_view *v, uint32_t i)
{
    return (const infer_node *)(const void *)((const uint8_t *)v->nodes + (size_t)i * v->node_size);
}

static int overlap(const infer_operand *a, const infer_operand *b)
{
    return a->slot != INFER_SLOT_ABSENT && a->slot == b->slot && a->offset < b->offset + b->size &&
           b->offset < a->offset + a->size;
}

/* Whether nobody reads an output's memory after node i before it is written anew. What is not written anew may be a
 * result of the program's, unless it is said not to be. */
static int last_read(const infer_graph_view *v, uint32_t i, const infer_operand *a)
{
    for (i++; i < v->n_nodes; i++) {
        const infer_node *n = node_of(v, i);
        for (uint32_t k = 0; k < n->op->n_in; k++)
            if (overlap(&n->operands[k], a))
                return 0;
        for (uint32_t k = n->op->n_in; k < n->op->n_in + n->op->n_out; k++)
            if (overlap(&n->operands[k], a))
                return 1;
    }
    return (a->flags & INFER_OPERAND_INNER) != 0;
}

/* Whether memory ends with the program. */
static int in_arena(const infer_graph_view *v, const infer_operand *a)
{
    return a->slot != INFER_SLOT_ABSENT &&
           ((const infer_slot_desc *)(const void *)((const uint8_t *)v->slots + (size_t)a->slot * v->slot_size))
                   ->kind == INFER_SLOT_ARENA;
}

/* Whether memory is not written in this program. */
static int is_given(const infer_graph_view *v, const infer_operand *a)
{
    return a->slot == INFER_SLOT_ABSENT || !in_arena(v, a);
}

/* How many launches of the next node make a norm of x by themselves, 0: none. An RMS norm of whole rows whose result is
 * the x of the next node alone, in memory that ends with the program; its weights are
 * read before x is there, so nothing in the program writes them. */
static uint32_t kept(infer_device *dev, const infer_graph_view *v, uint32_t i)
{
    if (i + 1 >= v->n_nodes)
        return 0;
    const infer_node *n = node_of(v, i), *next = node_of(v, i + 1);
    const infer_operand *y = &n->operands[n->op->n_in];
    if (n->op->op != INFER_OP_RMS_NORM || n->op->n_out != 1 || n->op->n_epilogue || !in_arena(v, y) ||
        !is_given(v, &n->operands[1]) || next->operands[0].slot != y->slot || next->operands[0].offset != y->offset)
        return 0;
    for (uint32_t k = 1; k < next->op->n_in; k++)
        if (overlap(&next->operands[k], y))
            return 0;
    for (uint32_t k = next->op->n_in; k < next->op->n_in + next->op->n_out && next->op->op != INFER_OP_GATED_MLP; k++)
        if (overlap(&next->operands[k], &n->operands[0])) /* blocks read it while others have ended */
            return 0;
    return last_read(v, i + 1, y) ? cuda_makes_norm(dev, n->op, next->op) : 0;
}

/* ---- Rotations and cache writes that a later launch does -------------------------------------------------------- */

static int same(const infer_operand *a, const infer_operand *b)
{
    return a->slot == b->slot && a->offset == b->offset && a->size == b->size;
}

/* Whether one launch may write what node i writes and read what node k reads, in no order. */
static int apart(const infer_node *i, const infer_node *k)
{
    const infer_op_desc *a = i->op, *b = k->op;
    for (uint32_t y = a->n_in; y < a->n_in + a->n_out; y++)
        for (uint32_t x = 0; x < b->n_in; x++)
            if (overlap(&i->operands[y], &k->operands[x]))
                return 0;
    for (uint32_t x = 0; x < b->n_in; x++)
        if (overlap(&i->scratch, &k->operands[x]))
            return 0;
    return 1;
}

/* A rotation of other rows' heads in the same way, and a write behind it: one launch does both. */
static int joins(const infer_node *rope, const infer_node *write)
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
        if (!same(&rope->operands[1 + i], &write->operands[2 + i]) || x->format != y->format ||
            memcmp(x->shape, y->shape, x->rank * sizeof *x->shape) ||
            memcmp(x->stride, y->stride, x->rank * sizeof *x->stride))
            return 0;
    }
    return !memcmp(&one, &two, sizeof one) && same(&rope->counts, &write->counts) && apart(rope, rope) &&
           apart(rope, write) && apart(write, rope) && apart(write, write) &&
           !overlap(&rope->operands[3], &write->operands[5]) && !overlap(&rope->operands[3], &write->operands[6]);
}

/* Whether the attention behind them does both: it reads their results and is the last to, the rotated queries are
 * nobody else's, and what they read is still there while it writes. Which keys are those of the write, slots say while
 * it runs. */
static int left(infer_device *dev, const infer_graph_view *v, uint32_t i)
{
    const infer_node *rope = node_of(v, i), *write = node_of(v, i + 1);
    const infer_node *attn = i + 2 < v->n_nodes ? node_of(v, i + 2) : NULL;
    const infer_operand *y = &rope->operands[3];
    if (!attn || attn->op->op != INFER_OP_ATTN_PAGED || !cuda_makes_ropes(dev, rope->op, write->op, attn->op) ||
        !in_arena(v, y) || !same(y, &attn->operands[0]) || !same(&write->operands[5], &attn->operands[1]) ||
        !same(&write->operands[6], &attn->operands[2]) || !same(&write->counts, &attn->counts) || !apart(attn, rope) ||
        !apart(attn, write))
        return 0;
    for (uint32_t k = 3; k < attn->op->n_in; k++) /* is read before the kernel before has ended */
        if (!is_given(v, &attn->operands[k]))
            return 0;
    for (uint32_t k = 2; k < 5; k++)
        if (!is_given(v, &write->operands[k]))
            return 0;
    if (!is_given(v, &attn->counts))
        return 0;
    for (uint32_t k = 1; k < attn->op->n_in; k++)
        if (overlap(&attn->operands[k], y) || (k > 2 && overlap(&attn->operands[k], &write->operands[5])) ||
            (k > 2 && overlap(&attn->operands[k], &write->operands[6])))
            return 0;
    return last_read(v, i + 2, y);
}

/* ---- Attention whose result is x of the product behind it -------------------------------------------------------- */

/* In tiles of which size, as a power of two, attention writes what is the x of the next node alone; 0: as rows. The
 * place is the same: nobody else reads it, and what the product writes lies elsewhere, as its blocks read x while
 * others have ended. */
static uint32_t hands_over(infer_device *dev, const infer_graph_view *v, uint32_t i)
{
    const infer_node *n = node_of(v, i), *next = i + 1 < v->n_nodes ? node_of(v, i + 1) : NULL;
    if (!next || n->op->op != INFER_OP_ATTN_PAGED || n->op->n_out != 1)
        return 0;
    const infer_operand *y = &n->operands[n->op->n_in];
    if (!in_arena(v, y) || !same(y, &next->operands[0]) || !same(&n->counts, &next->counts) || !apart(n, n) ||
        overlap(y, &n->scratch) || overlap(y, &next->scratch))
        return 0;
    for (uint32_t k = 1; k < next->op->n_in + next->op->n_out; k++)
        if (overlap(&next->operands[k], y))
            return 0;
    return last_read(v, i + 1, y) ? cuda_hands_over(dev, n->op, next->op, y->size) : 0;
}

static void keep_of(infer_device *dev, const infer_graph_view *v, uint32_t i, uint8_t *keep)
{
    keep[i] |= (uint8_t)(kept(dev, v, i) | hands_over(dev, v, i));
    if (i + 1 >= v->n_nodes || !joins(node_of(v, i), node_of(v, i + 1)))
        return;
    keep[i] = 1;
    keep[i + 1] = (uint8_t)left(dev, v, i);
}

infer_status cuda_prog_build(infer_device *dev, const infer_graph_view *view, infer_program **out,
                             infer_program_info *info)
{
    const infer_host *host = dev->host;
    infer_program *p = host->alloc(host->ctx, sizeof *p, _Alignof(infer_program));
    const infer_graph_view *copy = p ? host->view_keep(host->ctx, view) : NULL;
    uint8_t *keep = copy ? host->alloc(host->ctx, (uint64_t)copy->n_nodes + 1, 1) : NULL;
    if (!keep) {
        host->view_drop(host->ctx, copy);
        host->free(host->ctx, p);
        return cuda_fail(host, INFER_E_NO_MEMORY, "cuda: no host memory for a program");
    }
    *p = (infer_program){dev, copy, keep};
    memset(keep, 0, copy->n_nodes);
    for (uint32_t i = 0; i < copy->n_nodes; i++)
        keep_of(dev, copy, i, keep);
    infer_program_info i = {0};
    launch_put(info, &i, sizeof i);
    *out = p;
    return INFER_OK;
}

void cuda_prog_destroy(infer_program *prog)
{
    const infer_host *host = prog->dev->host;
    host->view_drop(host->ctx, prog->view);
    host->free(host->ctx, prog->keep);
    host->free(host->ctx, prog);
}

/* Records all launches. Thread-local: other threads may allocate meanwhile. */
static infer_status record(infer_program *p, const infer_range *slots, cu_graph *out)
{
    infer_device *dev = p->dev;
    const infer_host *host = dev->host;
    cu_graph graph = NULL;
    cuda_enter(dev);
    cu_result e = dev->cu->StreamBeginCapture(dev->capture.stream, CU_CAPTURE_THREAD_LOCAL);
    infer_status s = cuda_status(dev, e, INFER_E_PROGRAM, "begin a recording");
    if (s)
        return s;
    dev->capture.keep = p->keep;
    dev->capture.op = 0;
    s = host->replay(host->ctx, p->view, slots, &dev->capture);
    dev->capture.keep = NULL;
    dev->capture.norm.kept = dev->capture.ropes.kept = 0;
    dev->capture.handed = 0;
    e = dev->cu->StreamEndCapture(dev->capture.stream, &graph); /* in any case, or the stream stays in that mode */
    s = s ? s : cuda_status(dev, e, INFER_E_PROGRAM, "end a recording");
    if (s && graph)
        (void)dev->cu->GraphDestroy(graph);
    if (!s)
        *out = graph;
    return s;
}

infer_status cuda_prog_instantiate(infer_program *prog, infer_queue *queue, const infer_range *slots, uint32_t n_slots,
                                   infer_exec **out)
{
    infer_device *dev = prog->dev;
    const infer_host *host = dev->host;
    cu_graph graph = NULL;
    if (n_slots != prog->view->n_slots)
        return cuda_fail(host, INFER_E_INVALID, "cuda: %u slots, not %u", n_slots, prog->view->n_slots);
    infer_exec *x = host->alloc(host->ctx, sizeof *x + n_slots * sizeof *slots, _Alignof(infer_exec));
    if (!x)
        return cuda_fail(host, INFER_E_NO_MEMORY, "cuda: no host memory for an instance");
    *x = (infer_exec){.prog = prog, .n_slots = n_slots};
    if (n_slots)
        memcpy(x->slots, slots, n_slots * sizeof *slots);
    infer_status s = prog->view->n_nodes ? record(prog, slots, &graph) : INFER_OK;
    if (!s && graph) {
        s = cuda_status(dev, dev->cu->GraphInstantiate(&x->graph, graph, 0), INFER_E_NO_MEMORY, "make a graph");
        (void)dev->cu->GraphDestroy(graph);
        if (!s) /* now and not in the first run */
            s = cuda_status(dev, dev->cu->GraphUpload(x->graph, queue->stream), INFER_E_NO_MEMORY, "make a graph");
    }
    if (s) {
        cuda_exec_destroy(x);
        return s;
    }
    *out = x;
    return INFER_OK;
}

infer_status cuda_prog_update(infer_exec *exec, uint32_t slot, const infer_range *range)
{
    infer_device *dev = exec->prog->dev;
    cu_graph graph = NULL;
    cu_graph_update info = {0};
    if (slot >= exec->n_slots)
        return cuda_fail(dev->host, INFER_E_INVALID, "cuda: there is no slot %u", slot);
    infer_range was = exec->slots[slot];
    exec->slots[slot] = *range;
    infer_status s = exec->graph ? record(exec->prog, exec->slots, &graph) : INFER_OK;
    if (!s && graph) {
        cu_result e = dev->cu->GraphExecUpdate(exec->graph, graph, &info);
        if (e == CU_E_GRAPH_UPDATE_FAILURE || (!e && info.result))
            s = INFER_REBUILD;
        else
            s = cuda_status(dev, e, INFER_E_PROGRAM, "change a graph");
        (void)dev->cu->GraphDestroy(graph);
    }
    if (s)
        exec->slots[slot] = was;
    return s;
}

infer_status cuda_prog_submit(infer_exec *exec, infer_queue *queue)
{
    infer_status s = cuda_queue_enter(queue);
    if (s || !exec->graph)
        return s;
    return cuda_status(queue->dev, queue->dev->cu->GraphLaunch(exec->graph, queue->stream), INFER_E_QUEUE,
                       "run a graph");
}

void cuda_exec_destroy(infer_exec *exec)
{
    infer_device *dev = exec->prog->dev;
    cuda_enter(dev);
    if (exec->graph)
        (void)dev->cu->GraphExecDestroy(exec->graph);
    dev->host->free(dev->host->ctx, exec);
}
