/* Programs: a copy of the view; an instance is a graph of its launches, recorded from a stream in capture mode, so that
 * a run is one call. A changed slot is a recording anew, with which the graph is updated in place.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "cuda.h"

struct infer_program {
    infer_device *dev;
    const infer_graph_view *view;
    /* What launches of later nodes have to do with each node. Of a norm: how many of the next one's make it by
     * themselves; of a rotation or a write: whether the next one's does it too; of attention: in tiles of which size,
     * as a power of two, the next one wants its result. 0: nothing. */
    uint8_t *joined;
};

struct infer_exec {
    infer_program *prog;
    cu_graph_exec graph; /* NULL: nothing to run */
    uint32_t n_slots;
    infer_range slots[];
};

/* ---- What later launches do ---------------------------------------------------------------------------------- */

/* How many launches of the next node make a norm by themselves, 0: none. Its weights are read before x is there, which
 * launch_norm_goes has looked at. */
static uint32_t kept(infer_device *dev, const infer_graph_view *v, uint32_t i)
{
    return launch_norm_goes(v, i) ? cuda_makes_norm(dev, launch_node(v, i)->op, launch_node(v, i + 1)->op) : 0;
}

/* Whether the attention behind them does both: it reads their results and is the last to, the rotated queries are
 * nobody else's, and what they read is still there while it writes. Which keys are those of the write, slots say while
 * it runs. */
static int left(infer_device *dev, const infer_graph_view *v, uint32_t i)
{
    const infer_node *rope = launch_node(v, i), *write = launch_node(v, i + 1);
    const infer_node *attn = i + 2 < v->n_nodes ? launch_node(v, i + 2) : NULL;
    const infer_operand *y = &rope->operands[3];
    if (!attn || attn->op->op != INFER_OP_ATTN_PAGED || !cuda_makes_ropes(dev, rope->op, write->op, attn->op) ||
        !launch_in_arena(v, y) || !launch_same(y, &attn->operands[0]) ||
        !launch_same(&write->operands[5], &attn->operands[1]) ||
        !launch_same(&write->operands[6], &attn->operands[2]) || !launch_same(&write->counts, &attn->counts) ||
        !launch_apart(attn, rope) || !launch_apart(attn, write))
        return 0;
    for (uint32_t k = 3; k < attn->op->n_in; k++) /* is read before the kernel before has ended */
        if (!launch_is_given(v, &attn->operands[k]))
            return 0;
    for (uint32_t k = 2; k < 5; k++)
        if (!launch_is_given(v, &write->operands[k]))
            return 0;
    if (!launch_is_given(v, &attn->counts))
        return 0;
    for (uint32_t k = 1; k < attn->op->n_in; k++)
        if (launch_overlap(&attn->operands[k], y) ||
            (k > 2 && launch_overlap(&attn->operands[k], &write->operands[5])) ||
            (k > 2 && launch_overlap(&attn->operands[k], &write->operands[6])))
            return 0;
    return launch_last_read(v, i + 2, y);
}

/* ---- Attention whose result is x of the product behind it -------------------------------------------------------- */

/* In tiles of which size, as a power of two, attention writes what is the x of the next node alone; 0: as rows. The
 * place is the same: nobody else reads it, and what the product writes lies elsewhere, as its blocks read x while
 * others have ended. */
static uint32_t hands_over(infer_device *dev, const infer_graph_view *v, uint32_t i)
{
    const infer_node *n = launch_node(v, i), *next = i + 1 < v->n_nodes ? launch_node(v, i + 1) : NULL;
    if (!next || n->op->op != INFER_OP_ATTN_PAGED || n->op->n_out != 1)
        return 0;
    const infer_operand *y = &n->operands[n->op->n_in];
    if (!launch_in_arena(v, y) || !launch_same(y, &next->operands[0]) || !launch_same(&n->counts, &next->counts) ||
        !launch_apart(n, n) || launch_overlap(y, &n->scratch) || launch_overlap(y, &next->scratch))
        return 0;
    for (uint32_t k = 1; k < next->op->n_in + next->op->n_out; k++)
        if (launch_overlap(&next->operands[k], y))
            return 0;
    return launch_last_read(v, i + 1, y) ? cuda_hands_over(dev, n->op, next->op, y->size) : 0;
}

static void join_of(infer_device *dev, const infer_graph_view *v, uint32_t i, uint8_t *joined)
{
    joined[i] |= (uint8_t)(kept(dev, v, i) | hands_over(dev, v, i));
    if (i + 1 >= v->n_nodes || !launch_ropes_join(launch_node(v, i), launch_node(v, i + 1)))
        return;
    joined[i] = 1;
    joined[i + 1] = (uint8_t)left(dev, v, i);
}

infer_status cuda_prog_build(infer_device *dev, const infer_graph_view *view, infer_program **out,
                             infer_program_info *info)
{
    const infer_host *host = dev->host;
    infer_program *p = host->alloc(host->ctx, sizeof *p, _Alignof(infer_program));
    const infer_graph_view *copy = p ? host->view_keep(host->ctx, view) : NULL;
    uint8_t *joined = copy ? host->alloc(host->ctx, (uint64_t)copy->n_nodes + 1, 1) : NULL;
    if (!joined) {
        host->view_drop(host->ctx, copy);
        host->free(host->ctx, p);
        return cuda_fail(host, INFER_E_NO_MEMORY, "cuda: no host memory for a program");
    }
    *p = (infer_program){dev, copy, joined};
    memset(joined, 0, copy->n_nodes);
    for (uint32_t i = 0; i < copy->n_nodes; i++)
        join_of(dev, copy, i, joined);
    infer_program_info i = {0};
    launch_put(info, &i, sizeof i);
    *out = p;
    return INFER_OK;
}

void cuda_prog_destroy(infer_program *prog)
{
    const infer_host *host = prog->dev->host;
    host->view_drop(host->ctx, prog->view);
    host->free(host->ctx, prog->joined);
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
    dev->capture.joined = p->joined;
    dev->capture.op = 0;
    s = host->replay(host->ctx, p->view, slots, &dev->capture);
    dev->capture.joined = NULL;
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
