/* Programs: a copy of the view, and which of its nodes go in one launch; an instance is a list of kernel objects whose
 * arguments are set, so that a run only enqueues them. A changed slot sets them again. SPDX-License-Identifier:
 * Apache-2.0 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "ocl.h"

struct infer_program {
    infer_device *dev;
    const infer_graph_view *view;
    uint8_t *goes; /* of each node: how many later is the one whose launches do what it does, 0: its own */
};

typedef struct kept {
    cl_kernel kernel;
    const char *name;
    cl_uint dims;
    size_t global[3], group[3];
} kept;

struct infer_exec {
    infer_program *prog;
    infer_range *slots;
    uint32_t n; /* launches that have a kernel */
    kept list[];
};

/* ---- What goes together ----------------------------------------------------------------------------------------- */

/* How many nodes after node i is the one whose launches do what it does; 0: its own do. Decided once for a program, by
 * what launch_view.c proves from the operands of its view, so that an instance has the same launches wherever its slots
 * are bound to. before: the same of node i - 1. */
static int goes(infer_device *dev, const infer_graph_view *v, uint32_t i, int before)
{
    if (!dev->merge || i + 1 >= v->n_nodes)
        return 0;
    const infer_node *a = launch_node(v, i), *b = launch_node(v, i + 1);
    if (launch_ropes_join(a, b))
        return 1;
    if (launch_qkv_goes(v, i, before == 1 ? launch_node(v, i - 1) : NULL) &&
        ocl_makes_ropes(dev, a->op, b->op, launch_node(v, i + 2)->op))
        return 2;
    return launch_norm_goes(v, i) && ocl_makes_norm(dev, a->op, b->op);
}

/* ---- Emitting all of a program -------------------------------------------------------------------------------- */

static infer_range place(const infer_operand *o, const infer_range *slots)
{
    if (o->slot == INFER_SLOT_ABSENT)
        return (infer_range){0};
    return (infer_range){slots[o->slot].buffer, slots[o->slot].offset + o->offset, o->size};
}

static infer_status hold(void *ctx, const ocl_launch *l)
{
    memcpy(ctx, l, sizeof *l);
    return INFER_OK;
}

/* What goes with a later node is one launch, which is held until then. */
static infer_status emit_all(const infer_program *p, const infer_range *slots, const ocl_sink *sink)
{
    infer_device *dev = p->dev;
    ocl_launch held[3];
    for (uint32_t i = 0; i < p->view->n_nodes; i++) {
        const infer_node *node = launch_node(p->view, i);
        infer_range operands[INFER_OP_MAX_OPERANDS];
        uint32_t n = node->op->n_in + node->op->n_out;
        if (n > INFER_OP_MAX_OPERANDS)
            return ocl_fail(dev->host, INFER_E_INVALID, "opencl: node %u has %u operands", i, n);
        for (uint32_t k = 0; k < n; k++)
            operands[k] = place(&node->operands[k], slots);
        const infer_op_args args = {.struct_size = sizeof args,
                                    .n_operands = n,
                                    .operands = operands,
                                    .counts = place(&node->counts, slots),
                                    .scratch = place(&node->scratch, slots)};
        const ocl_launch *before = i && p->goes[i - 1] == 1 ? &held[(i - 1) % 3] : NULL,
                         *before2 = i > 1 && p->goes[i - 2] == 2 ? &held[(i - 2) % 3] : NULL;
        const ocl_sink later = {hold, &held[i % 3], before, before2}, now = {sink->take, sink->ctx, before, before2};
        infer_status s = ocl_op_emit(dev, node->op, &args, p->goes[i] ? &later : &now);
        if (s)
            return s;
    }
    return INFER_OK;
}

static infer_status count(void *ctx, const ocl_launch *l)
{
    (void)l;
    ++*(uint32_t *)ctx;
    return INFER_OK;
}

infer_status ocl_prog_build(infer_device *dev, const infer_graph_view *view, infer_program **out,
                            infer_program_info *info)
{
    const infer_host *host = dev->host;
    infer_program *p = host->alloc(host->ctx, sizeof *p + view->n_nodes, _Alignof(infer_program));
    const infer_graph_view *copy = p ? host->view_keep(host->ctx, view) : NULL;
    if (!copy) {
        host->free(host->ctx, p);
        return ocl_fail(host, INFER_E_NO_MEMORY, "opencl: no host memory for a program");
    }
    *p = (infer_program){dev, copy, (uint8_t *)(p + 1)};
    for (uint32_t i = 0; i < copy->n_nodes; i++)
        p->goes[i] = (uint8_t)goes(dev, copy, i, i ? p->goes[i - 1] : 0);
    infer_program_info i = {0};
    launch_put(info, &i, sizeof i);
    *out = p;
    return INFER_OK;
}

void ocl_prog_destroy(infer_program *prog)
{
    const infer_host *host = prog->dev->host;
    host->view_drop(host->ctx, prog->view);
    host->free(host->ctx, prog);
}

/* ---- Instances ------------------------------------------------------------------------------------------------ */

typedef struct recorder {
    infer_exec *x;
    uint32_t at;
} recorder;

/* The launch at hand gets a kernel where it has none, and its arguments. */
static infer_status record(void *ctx, const ocl_launch *l)
{
    recorder *r = ctx;
    infer_exec *x = r->x;
    infer_device *dev = x->prog->dev;
    kept *k = &x->list[r->at++];
    if (r->at > x->n) {
        infer_status s = ocl_kernel_make(dev, l, &k->kernel);
        if (s)
            return s;
        x->n = r->at;
        k->name = l->name;
    }
    k->dims = l->dims;
    memcpy(k->global, l->global, sizeof k->global);
    memcpy(k->group, l->group, sizeof k->group);
    return ocl_kernel_bind(dev, k->kernel, l);
}

infer_status ocl_prog_instantiate(infer_program *prog, infer_queue *queue, const infer_range *slots, uint32_t n_slots,
                                  infer_exec **out)
{
    infer_device *dev = prog->dev;
    uint32_t n = 0;
    (void)queue;
    infer_status s = n_slots == prog->view->n_slots ? emit_all(prog, slots, &(ocl_sink){count, &n, NULL, NULL})
                                                    : ocl_fail(dev->host, INFER_E_INVALID, "opencl: %u slots, not %u",
                                                               n_slots, prog->view->n_slots);
    if (s)
        return s;
    uint64_t head = (sizeof(infer_exec) + n * sizeof(kept) + 15) / 16 * 16;
    infer_exec *x = dev->host->alloc(dev->host->ctx, head + n_slots * sizeof *slots, 16);
    if (!x)
        return ocl_fail(dev->host, INFER_E_NO_MEMORY, "opencl: no host memory for %u launches", n);
    memset(x, 0, head);
    x->prog = prog;
    x->slots = (infer_range *)(void *)((char *)x + head);
    if (n_slots)
        memcpy(x->slots, slots, n_slots * sizeof *slots);
    recorder r = {.x = x};
    s = emit_all(prog, x->slots, &(ocl_sink){record, &r, NULL, NULL});
    if (s) {
        ocl_exec_destroy(x);
        return s;
    }
    char line[96];
    snprintf(line, sizeof line, "a program of %u ops for %u rows: %u launches", prog->view->n_nodes, prog->view->bucket,
             x->n);
    dev->host->log(dev->host->ctx, 3, line);
    *out = x;
    return INFER_OK;
}

infer_status ocl_prog_update(infer_exec *exec, uint32_t slot, const infer_range *range)
{
    infer_range was = exec->slots[slot];
    recorder r = {.x = exec};
    exec->slots[slot] = *range;
    infer_status s = emit_all(exec->prog, exec->slots, &(ocl_sink){record, &r, NULL, NULL});
    if (s) { /* as it was; what fails here fails for want of host memory */
        recorder back = {.x = exec};
        exec->slots[slot] = was;
        (void)emit_all(exec->prog, exec->slots, &(ocl_sink){record, &back, NULL, NULL});
    }
    return s;
}

infer_status ocl_prog_submit(infer_exec *exec, infer_queue *queue)
{
    infer_device *dev = queue->dev;
    for (uint32_t i = 0; i < exec->n; i++) {
        const kept *k = &exec->list[i];
        cl_int e =
            dev->cl->EnqueueNDRangeKernel(queue->q, k->kernel, k->dims, NULL, k->global, k->group, 0, NULL, NULL);
        if (e)
            return ocl_status(dev, e, INFER_E_QUEUE, k->name);
    }
    return INFER_OK;
}

void ocl_exec_destroy(infer_exec *exec)
{
    infer_device *dev = exec->prog->dev;
    for (uint32_t i = 0; i < exec->n; i++)
        dev->cl->ReleaseKernel(exec->list[i].kernel);
    dev->host->free(dev->host->ctx, exec);
}
