/* Programs: a copy of the view's ops; an instance is a list of kernel objects whose arguments are set, so that a run
 * only enqueues them. A changed slot sets them again. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "ocl.h"

typedef struct prog_node {
    infer_op_desc op;
    const infer_operand *operands; /* n_in + n_out */
    infer_operand counts, scratch;
} prog_node;

struct infer_program {
    infer_device *dev;
    uint32_t n_nodes, n_slots;
    prog_node *nodes;
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

/* ---- Copying a view into one block: without memory it only counts ------------------------------------------- */

typedef struct bump {
    char *base;
    uint64_t used;
} bump;

static void *take(bump *b, uint64_t n)
{
    void *p = b->base ? b->base + b->used : NULL;
    b->used += (n + 15) / 16 * 16;
    return p;
}

static const void *keep(bump *b, const void *src, uint64_t n)
{
    void *p = src && n ? take(b, n) : NULL;
    if (p)
        memcpy(p, src, (size_t)n);
    return p;
}

static infer_program *keep_view(bump *b, const infer_graph_view *view)
{
    infer_program *p = take(b, sizeof *p);
    prog_node *nodes = take(b, view->n_nodes * sizeof *nodes);
    for (uint32_t i = 0; i < view->n_nodes; i++) {
        const infer_node *from =
            (const infer_node *)(const void *)((const char *)view->nodes + (uint64_t)i * view->node_size);
        const infer_op_desc *op = from->op;
        uint32_t n = op->n_in + op->n_out;
        prog_node to = {.counts = from->counts, .scratch = from->scratch};
        memcpy(&to.op, op, op->struct_size < sizeof to.op ? op->struct_size : sizeof to.op);
        to.op.next = NULL; /* no kernel reads an extension */
        to.op.tensors = keep(b, op->tensors, (uint64_t)n * op->tensor_size);
        to.op.attrs = keep(b, op->attrs, op->attrs_size);
        to.op.epilogue = keep(b, op->epilogue, (uint64_t)op->n_epilogue * op->epilogue_size);
        to.operands = keep(b, from->operands, n * sizeof *from->operands);
        if (nodes)
            nodes[i] = to;
    }
    if (p)
        *p = (infer_program){.n_nodes = view->n_nodes, .n_slots = view->n_slots, .nodes = nodes};
    return p;
}

/* ---- Emitting all of a program -------------------------------------------------------------------------------- */

static infer_range place(const infer_operand *o, const infer_range *slots)
{
    if (o->slot == INFER_SLOT_ABSENT)
        return (infer_range){0};
    return (infer_range){slots[o->slot].buffer, slots[o->slot].offset + o->offset, o->size};
}

static infer_status emit_all(const infer_program *p, const infer_range *slots, const ocl_sink *sink)
{
    for (uint32_t i = 0; i < p->n_nodes; i++) {
        const prog_node *node = &p->nodes[i];
        infer_range operands[INFER_OP_MAX_OPERANDS];
        uint32_t n = node->op.n_in + node->op.n_out;
        if (n > INFER_OP_MAX_OPERANDS)
            return ocl_fail(p->dev->host, INFER_E_INVALID, "opencl: node %u has %u operands", i, n);
        for (uint32_t k = 0; k < n; k++)
            operands[k] = place(&node->operands[k], slots);
        const infer_op_args args = {.struct_size = sizeof args,
                                    .n_operands = n,
                                    .operands = operands,
                                    .counts = place(&node->counts, slots),
                                    .scratch = place(&node->scratch, slots)};
        infer_status s = ocl_op_emit(p->dev, &node->op, &args, sink);
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
    bump b = {0};
    keep_view(&b, view);
    b.base = dev->host->alloc(dev->host->ctx, b.used, 16);
    if (!b.base)
        return ocl_fail(dev->host, INFER_E_NO_MEMORY, "opencl: no host memory for a program");
    b.used = 0;
    *out = keep_view(&b, view);
    (*out)->dev = dev;
    infer_program_info i = {0};
    launch_put(info, &i, sizeof i);
    return INFER_OK;
}

void ocl_prog_destroy(infer_program *prog)
{
    prog->dev->host->free(prog->dev->host->ctx, prog);
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
    infer_status s = n_slots == prog->n_slots
                         ? emit_all(prog, slots, &(ocl_sink){count, &n})
                         : ocl_fail(dev->host, INFER_E_INVALID, "opencl: %u slots, not %u", n_slots, prog->n_slots);
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
    s = emit_all(prog, x->slots, &(ocl_sink){record, &r});
    if (s) {
        ocl_exec_destroy(x);
        return s;
    }
    *out = x;
    return INFER_OK;
}

infer_status ocl_prog_update(infer_exec *exec, uint32_t slot, const infer_range *range)
{
    infer_range was = exec->slots[slot];
    recorder r = {.x = exec};
    exec->slots[slot] = *range;
    infer_status s = emit_all(exec->prog, exec->slots, &(ocl_sink){record, &r});
    if (s) { /* as it was; what fails here fails for want of host memory */
        recorder back = {.x = exec};
        exec->slots[slot] = was;
        (void)emit_all(exec->prog, exec->slots, &(ocl_sink){record, &back});
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
