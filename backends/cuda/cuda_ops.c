/* Dispatch: which ops there are, operands in place, launches. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "cuda.h"

typedef struct op_row {
    cuda_check_fn check;
    cuda_run_fn run;
    uint32_t rows_of; /* the operand whose axis 0 is [n] */
    uint32_t kernel;  /* without which the op is not there */
} op_row;

#define OP(ID, name, rows_of, kernel) [INFER_OP_##ID] = {cuda_check_##name, cuda_run_##name, rows_of, CUDA_K_##kernel}
static const op_row table[INFER_OP_COUNT] = {
    OP(ADD, each, 0, probe_add),
    OP(SCALE, each, 0, probe_add),
};

/* ---- Descriptors ---------------------------------------------------------------------------------------------- */

const infer_tensor_desc *cuda_tensor_desc(const infer_op_desc *op, uint32_t i)
{
    return (const infer_tensor_desc *)(const void *)((const uint8_t *)op->tensors + (size_t)i * op->tensor_size);
}

int cuda_present(const infer_op_desc *op, uint32_t i)
{
    return i < op->n_in + op->n_out && !(cuda_tensor_desc(op, i)->flags & INFER_TENSOR_ABSENT);
}

void cuda_attrs(const infer_op_desc *op, void *out, uint32_t size)
{
    uint32_t have = 0;
    memset(out, 0, size);
    if (op->attrs && op->attrs_size >= sizeof have)
        memcpy(&have, op->attrs, sizeof have);
    if (have > op->attrs_size)
        have = op->attrs_size;
    if (have)
        memcpy(out, op->attrs, have < size ? have : size);
}

void cuda_no(infer_op_answer *a, uint32_t why, uint32_t which)
{
    a->level = INFER_LEVEL_NO;
    a->why = why;
    a->which = which;
    a->row_invariant = 0;
    a->scratch_bytes = 0;
}

static void answer(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    if (op->op >= INFER_OP_COUNT || !table[op->op].run || !dev->kernels[table[op->op].kernel]) {
        cuda_no(a, INFER_WHY_OP, 0);
        return;
    }
    if (op->must_understand || op->revision) {
        cuda_no(a, INFER_WHY_UNKNOWN_BITS, 0);
        return;
    }
    infer_status s = dev->host->op_check(dev->host->ctx, op);
    if (s) {
        cuda_no(a, s == INFER_E_UNSUPPORTED ? INFER_WHY_FORMAT : INFER_WHY_SHAPE, 0);
        return;
    }
    a->level = INFER_LEVEL_NATIVE;
    a->row_invariant = 1;
    a->scratch_align = CUDA_BIND_ALIGN;
    table[op->op].check(dev, op, a);
}

infer_status cuda_op_query(infer_device *dev, const infer_op_desc *ops, uint32_t op_size, uint32_t n,
                           infer_op_answer *out, uint32_t answer_size)
{
    for (uint32_t i = 0; i < n; i++) {
        infer_op_answer a = {.struct_size = sizeof a};
        answer(dev, (const infer_op_desc *)(const void *)((const uint8_t *)ops + (size_t)i * op_size), &a);
        cuda_put((uint8_t *)out + (size_t)i * answer_size, &a, answer_size < sizeof a ? answer_size : sizeof a);
    }
    return INFER_OK;
}

/* ---- Runs ------------------------------------------------------------------------------------------------------ */

static cu_deviceptr place(const infer_range *r)
{
    return r->buffer ? r->buffer->at + r->offset : 0;
}

infer_status cuda_cmd_op(infer_queue *queue, const infer_op_desc *op, const infer_op_args *args)
{
    const infer_host *host = queue->dev->host;
    cuda_call c = {.queue = queue, .dev = queue->dev, .op = op, .rows_from = -1, .rows_mul = op->rows_mul};
    uint32_t n = op->n_in + op->n_out;
    infer_status s = cuda_queue_enter(queue);
    if (s)
        return s;
    if (op->op >= INFER_OP_COUNT || !table[op->op].run)
        return cuda_fail(host, INFER_E_UNSUPPORTED, "cuda: op %u", op->op);
    if (n > INFER_OP_MAX_OPERANDS || args->n_operands < n)
        return cuda_fail(host, INFER_E_INVALID, "cuda: op %u with %u operands", op->op, args->n_operands);
    for (uint32_t i = 0; i < n; i++)
        c.ptr[i] = cuda_present(op, i) ? place(&args->operands[i]) : 0;
    c.rows_cap = (int32_t)cuda_tensor_desc(op, table[op->op].rows_of)->shape[0];
    if (op->rows_from < INFER_COUNT_MAX) {
        if (!args->counts.buffer)
            return cuda_fail(host, INFER_E_INVALID, "cuda: op %u without its counts", op->op);
        c.rows_from = (int32_t)op->rows_from;
        c.counts = place(&args->counts);
    }
    c.scratch = place(&args->scratch);
    return table[op->op].run(&c);
}

infer_status cuda_emit(cuda_call *c, const cuda_launch *l)
{
    void *args[CUDA_MAX_PTR + 1];
    uint32_t n = 0;
    cu_function fn = c->dev->kernels[l->kernel];
    if (!fn)
        return cuda_fail(c->dev->host, INFER_E_UNSUPPORTED, "cuda: %s has no kernel number %u", c->dev->name,
                         l->kernel);
    if (!l->grid[0] || !l->grid[1] || !l->grid[2])
        return INFER_OK;
    for (; n < l->n_ptr; n++)
        args[n] = (void *)(uintptr_t)&l->ptr[n];
    if (l->params_bytes)
        args[n] = (void *)(uintptr_t)l->params;
    cu_result e = c->dev->cu->LaunchKernel(fn, l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1],
                                           l->block[2], l->shared, c->queue->stream, args, NULL);
    return cuda_status(c->dev, e, INFER_E_QUEUE, "launch a kernel");
}
