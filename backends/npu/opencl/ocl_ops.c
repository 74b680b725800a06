/* Which ops there are, launches, kernel objects and their arguments. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "ocl.h"

#define OP(ID, name, rows_of)     [INFER_OP_##ID] = {ocl_check_##name, ocl_run_##name, rows_of}
#define SHARED(ID, name, rows_of) [INFER_OP_##ID] = {launch_check_##name, launch_run_##name, rows_of},
static const launch_op table[INFER_OP_COUNT] = {
    LAUNCH_OPS(SHARED) SHARED(ROPE, rope, 0) OP(MATMUL, matmul, 0),
    OP(KV_WRITE, ropes, 0),
    OP(ROPE_KV_WRITE, ropes, 0),
    OP(MOE_ROUTE, route, 0),
    OP(MOE_MATMUL, matmul, 0),
    OP(GATED_MLP, gated_mlp, 0),
    OP(QKV, qkv, 0),
    OP(ATTN_PAGED, attn, 0),
    OP(MLA_PAGED, attn, 0),
    OP(ATTN_DENSE, attn, 0),
    OP(SAMPLE, sample, 0),
    OP(LORA_SHRINK, matmul, 0),
    OP(LORA_EXPAND_ADD, matmul, 0),
};

infer_status ocl_op_query(infer_device *dev, const infer_op_desc *ops, uint32_t op_size, uint32_t n,
                          infer_op_answer *out, uint32_t answer_size)
{
    launch_query(dev, table, OCL_BIND_ALIGN, ops, op_size, n, out, answer_size);
    return INFER_OK;
}

infer_status ocl_op_emit(infer_device *dev, const infer_op_desc *op, const infer_op_args *args, const ocl_sink *sink)
{
    return launch_op_run(dev, table, op, args, (void *)(uintptr_t)sink);
}

/* ---- What the shared ops ask of a backend ---------------------------------------------------------------------- */

const char launch_backend[] = "opencl";

const infer_host *launch_host(const infer_device *dev)
{
    return dev->host;
}

void *launch_memory(const infer_buffer *buf)
{
    return buf->mem;
}

void *launch_nothing(const infer_device *dev)
{
    return dev->dummy;
}

static infer_status program_of(infer_device *dev, launch_kernel k, const ocl_program **out)
{
    return launch_work[k] == LAUNCH_VECTORS ? ocl_program_rows(dev, out) : ocl_program_ops(dev, out);
}

int launch_ready(infer_device *dev, launch_kernel k)
{
    const ocl_program *program;
    return !program_of(dev, k, &program);
}

int launch_reads(const infer_device *dev, const infer_op_desc *op, uint32_t i)
{
    uint32_t weights = op->op == INFER_OP_MATMUL || op->op == INFER_OP_MOE_MATMUL ? 1
                       : op->op == INFER_OP_QKV || op->op == INFER_OP_GATED_MLP   ? 3
                                                                                  : 0;
    return dev->tune->mv_lanes > 1 && i >= 1 && i <= weights && launch_tensor_desc(op, i)->layout == OCL_LAYOUT_PLANES;
}

/* Vectors in dimension 1, as many as it takes, go on in dimension 2 (VECTOR in kernels/common.cl). */
static void fold(const infer_device *dev, size_t *w1, size_t *w2)
{
    *w2 = (*w1 + dev->fold - 1) / dev->fold;
    *w1 = *w2 > 1 ? dev->fold : *w1;
}

infer_status launch_emit(launch_call *c, launch_kernel k, const int *which, uint32_t n, const void *params,
                         uint32_t bytes, int64_t s0, int64_t s1, int64_t s2)
{
    const ocl_tune *t = c->dev->tune;
    const ocl_program *program;
    size_t w0 = (size_t)s0, w1 = (size_t)s1, w2 = (size_t)s2, items = (w0 + t->each - 1) / t->each;
    size_t lanes = t->lanes == 1 ? 1 : 64; /* kernels test their range */
    ocl_launch l;
    infer_status s = program_of(c->dev, k, &program);
    if (s)
        return s;
    ocl_launch_init(&l, c, program, launch_name[k], which, n, params, bytes);
    switch (launch_work[k]) {
    case LAUNCH_ELEMENTS:
        fold(c->dev, &w1, &w2);
        return ocl_emit(c, &l, (items + lanes - 1) / lanes, w1, w2, lanes, 1);
    case LAUNCH_BYTES:
        return ocl_emit(c, &l, (items + lanes - 1) / lanes, w1, w2, lanes, 1);
    case LAUNCH_VECTORS:
        return ocl_emit(c, &l, w0, 1, 1, program->lanes, 1);
    case LAUNCH_HEADS:
        return ocl_emit(c, &l, w0, w1, w2, t->lanes == 1 ? 1 : 32, 1);
    default:
        fold(c->dev, &w1, &w2);
        return ocl_emit(c, &l, w0, w1, w2, 1, 1);
    }
}

/* ---- Launches -----------------------------------------------------------------------------------------------------
 */

void ocl_launch_init(ocl_launch *l, const launch_call *c, const ocl_program *program, const char *name,
                     const int *which, uint32_t n, const void *params, uint32_t bytes)
{
    void *mem[OCL_MAX_MEM];
    memset(l, 0, sizeof *l);
    l->program = program;
    l->name = name;
    l->n_mem = n;
    launch_operands(c, which, n, mem);
    for (uint32_t i = 0; i < n; i++)
        l->mem[i] = mem[i];
    ocl_launch_block(l, params, bytes);
}

void ocl_launch_block(ocl_launch *l, const void *params, uint32_t bytes)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < l->n_blocks; i++)
        at += l->block_bytes[i];
    memcpy((char *)l->params + at, params, bytes);
    l->block_bytes[l->n_blocks++] = bytes;
}

infer_status ocl_emit(launch_call *c, ocl_launch *l, size_t g0, size_t g1, size_t g2, size_t l0, size_t l1)
{
    const ocl_sink *sink = c->to;
    l->dims = g2 > 1 ? 3 : 2;
    l->group[0] = l0;
    l->group[1] = l1;
    l->group[2] = 1;
    l->global[0] = g0 * l0;
    l->global[1] = g1 * l1;
    l->global[2] = g2;
    return sink->take(sink->ctx, l);
}

infer_status ocl_kernel_make(infer_device *dev, const ocl_launch *l, cl_kernel *out)
{
    cl_int e;
    cl_kernel k = dev->cl->CreateKernel(l->program->program, l->name, &e);
    if (e)
        return ocl_status(dev, e, INFER_E_UNSUPPORTED, l->name);
    *out = k;
    return INFER_OK;
}

infer_status ocl_kernel_bind(infer_device *dev, cl_kernel k, const ocl_launch *l)
{
    cl_uint a = 0;
    cl_int e = CL_SUCCESS;
    for (uint32_t i = 0; i < l->n_mem && !e; i++)
        e = dev->cl->SetKernelArg(k, a++, sizeof l->mem[i], &l->mem[i]);
    const char *block = (const char *)l->params;
    for (uint32_t i = 0; i < l->n_blocks && !e; block += l->block_bytes[i++])
        e = dev->cl->SetKernelArg(k, a++, l->block_bytes[i], block);
    for (uint32_t i = 0; i < l->n_local && !e; i++)
        e = dev->cl->SetKernelArg(k, a++, l->local[i], NULL);
    return ocl_status(dev, e, INFER_E_INVALID, l->name);
}

infer_status ocl_kernel_run(infer_queue *queue, cl_kernel k, const ocl_launch *l)
{
    cl_int e = queue->dev->cl->EnqueueNDRangeKernel(queue->q, k, l->dims, NULL, l->global, l->group, 0, NULL, NULL);
    return ocl_status(queue->dev, e, INFER_E_QUEUE, l->name);
}

/* The queue's kernel object for a launch; made when it is first used. */
static infer_status queue_kernel(infer_queue *queue, const ocl_launch *l, cl_kernel *out)
{
    infer_device *dev = queue->dev;
    for (ocl_kernel *k = queue->kernels; k; k = k->next)
        if (k->program == l->program && k->name == l->name) {
            *out = k->kernel;
            return INFER_OK;
        }
    ocl_kernel *k = dev->host->alloc(dev->host->ctx, sizeof *k, _Alignof(ocl_kernel));
    if (!k)
        return ocl_fail(dev->host, INFER_E_NO_MEMORY, "opencl: no host memory for a kernel");
    *k = (ocl_kernel){.next = queue->kernels, .program = l->program, .name = l->name};
    infer_status s = ocl_kernel_make(dev, l, &k->kernel);
    if (s) {
        dev->host->free(dev->host->ctx, k);
        return s;
    }
    queue->kernels = k;
    *out = k->kernel;
    return INFER_OK;
}

static infer_status run_now(void *ctx, const ocl_launch *l)
{
    infer_queue *queue = ctx;
    cl_kernel k;
    infer_status s = queue_kernel(queue, l, &k);
    if (!s)
        s = ocl_kernel_bind(queue->dev, k, l);
    return s ? s : ocl_kernel_run(queue, k, l);
}

infer_status ocl_cmd_op(infer_queue *queue, const infer_op_desc *op, const infer_op_args *args)
{
    return ocl_op_emit(queue->dev, op, args, &(ocl_sink){run_now, queue, NULL, NULL});
}

infer_status ocl_fill_bytes(infer_queue *queue, const infer_range *dst, uint32_t pattern, uint32_t pattern_bytes)
{
    infer_device *dev = queue->dev;
    const ocl_program *program;
    cl_kernel k;
    infer_status s = ocl_program_ops(dev, &program);
    ocl_launch l = {.name = "fill_bytes", .n_mem = 1, .dims = 1, .global = {dst->size}, .group = {1}};
    if (s)
        return s;
    l.program = program;
    l.mem[0] = dst->buffer->mem;
    s = queue_kernel(queue, &l, &k);
    if (!s)
        s = ocl_kernel_bind(dev, k, &l);
    if (s)
        return s;
    cl_ulong off = dst->offset, n = dst->size;
    cl_int e = dev->cl->SetKernelArg(k, 1, sizeof off, &off);
    e = e ? e : dev->cl->SetKernelArg(k, 2, sizeof n, &n);
    e = e ? e : dev->cl->SetKernelArg(k, 3, sizeof pattern, &pattern);
    e = e ? e : dev->cl->SetKernelArg(k, 4, sizeof pattern_bytes, &pattern_bytes);
    return e ? ocl_status(dev, e, INFER_E_QUEUE, "fill") : ocl_kernel_run(queue, k, &l);
}
