/* Programs: a copy of the view; an instance is a graph of its launches, recorded from a stream in capture mode, so that
 * a run is one call. A changed slot is a recording anew, with which the graph is updated in place.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "cuda.h"

struct infer_program {
    infer_device *dev;
    const infer_graph_view *view;
};

struct infer_exec {
    infer_program *prog;
    cu_graph_exec graph; /* NULL: nothing to run */
    uint32_t n_slots;
    infer_range slots[];
};

infer_status cuda_prog_build(infer_device *dev, const infer_graph_view *view, infer_program **out,
                             infer_program_info *info)
{
    const infer_host *host = dev->host;
    infer_program *p = host->alloc(host->ctx, sizeof *p, _Alignof(infer_program));
    const infer_graph_view *kept = p ? host->view_keep(host->ctx, view) : NULL;
    if (!kept) {
        host->free(host->ctx, p);
        return cuda_fail(host, INFER_E_NO_MEMORY, "cuda: no host memory for a program");
    }
    *p = (infer_program){dev, kept};
    infer_program_info i = {0};
    launch_put(info, &i, sizeof i);
    *out = p;
    return INFER_OK;
}

void cuda_prog_destroy(infer_program *prog)
{
    const infer_host *host = prog->dev->host;
    host->view_drop(host->ctx, prog->view);
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
    s = host->replay(host->ctx, p->view, slots, &dev->capture);
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
