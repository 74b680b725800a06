/* Ops on elements: so far those that the first kernel does, dense rows of F32. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "cuda.h"
#include "kernels/probe.h"

enum { THREADS = 256 };

static int64_t elements(const infer_tensor_desc *t, uint32_t from_axis)
{
    int64_t n = 1;
    for (uint32_t i = from_axis; i < t->rank; i++)
        n *= t->shape[i];
    return n;
}

static int is_dense(const infer_tensor_desc *t)
{
    int64_t span = 4 * t->shape[t->rank - 1];
    int all_zero = 1, equal = 1;
    for (uint32_t i = t->rank - 1; i-- > 0;) {
        all_zero &= !t->stride[i];
        equal &= t->stride[i] == span;
        span *= t->shape[i];
    }
    return all_zero || equal;
}

void cuda_check_each(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    (void)dev;
    for (uint32_t i = 0; i < op->n_in + op->n_out; i++) {
        const infer_tensor_desc *t = cuda_tensor_desc(op, i);
        if (op->n_epilogue && i >= (op->op == INFER_OP_ADD ? 2u : 1u) && i < op->n_in)
            continue; /* an operand of a step that is not done here */
        if (t->format != INFER_FMT_F32)
            cuda_no(a, INFER_WHY_FORMAT, i);
        else if (!is_dense(t))
            cuda_no(a, INFER_WHY_LAYOUT, i);
        else if (elements(t, 0) > (int64_t)INT32_MAX * THREADS / 2 || t->shape[0] > INT32_MAX)
            cuda_no(a, INFER_WHY_SHAPE, i);
    }
}

infer_status cuda_run_each(cuda_call *c)
{
    const infer_tensor_desc *x = cuda_tensor_desc(c->op, 0);
    probe_params p = {.row = elements(x, 1), .cap = c->rows_cap, .from = c->rows_from, .mul = c->rows_mul, .scale = 1};
    cuda_launch l = {.kernel = CUDA_K_probe_add, .n_ptr = 4, .params_bytes = sizeof p};
    l.ptr[0] = c->ptr[0];
    l.ptr[2] = c->ptr[c->op->n_in];
    l.ptr[3] = c->counts;
    if (c->op->op == INFER_OP_ADD) {
        l.ptr[1] = c->ptr[1];
        p.b_row = elements(cuda_tensor_desc(c->op, 1), 0);
    } else {
        infer_attrs_scale scale;
        cuda_attrs(c->op, &scale, sizeof scale);
        p.scale = scale.scale;
        p.bias = scale.bias;
    }
    memcpy(l.params, &p, sizeof p);
    l.grid[0] = (uint32_t)((p.row * p.cap + THREADS - 1) / THREADS);
    l.grid[1] = l.grid[2] = l.block[1] = l.block[2] = 1;
    l.block[0] = THREADS;
    return cuda_emit(c, &l);
}
