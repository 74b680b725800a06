/* Dispatch: which ops there are, operands in place, kernel objects and their arguments. SPDX-License-Identifier:
 * Apache-2.0 */
#include "config.h"

#include <string.h>

#include "ocl.h"

typedef struct op_row {
    ocl_check_fn check;
    ocl_launch_fn run;
    uint32_t rows_of; /* the operand whose axis 0 is [n] */
} op_row;

#define OP(ID, name, rows_of) [INFER_OP_##ID] = {ocl_check_##name, ocl_run_##name, rows_of}
static const op_row table[INFER_OP_COUNT] = {
    OP(COPY, copy, 0),
    OP(GATHER_ROWS, copy, 1),
    OP(CONCAT_ROWS, select, 0),
    OP(ADD, each, 0),
    OP(MUL, each, 0),
    OP(SCALE, each, 0),
    OP(GLU, each, 0),
    OP(ACT, each, 0),
    OP(SOFTMAX, row, 0),
    OP(ARGMAX, row, 0),
    OP(RMS_NORM, norm, 0),
    OP(LAYER_NORM, norm, 0),
    OP(ADD_RMS_NORM, norm, 0),
    OP(MATMUL, matmul, 0),
    OP(MOE_ROUTE, route, 0),
    OP(MOE_MATMUL, matmul, 0),
    OP(MOE_COMBINE, combine, 0),
    OP(GATED_MLP, gated_mlp, 0),
    OP(QKV, qkv, 0),
    OP(ROPE, rope, 0),
    OP(KV_WRITE, rope, 0),
    OP(ROPE_KV_WRITE, rope, 0),
    OP(ATTN_PAGED, attn, 0),
    OP(MLA_PAGED, attn, 0),
    OP(ATTN_DENSE, attn, 0),
    OP(KV_PACK, move, 1),
    OP(KV_UNPACK, move, 1),
    OP(KV_MOVE, move, 1),
    OP(STATE_COPY, move, 1),
    OP(SAMPLE, sample, 0),
    OP(IDS_SELECT, select, 0),
    OP(ROWS_SELECT, select, 0),
    OP(LORA_SHRINK, matmul, 0),
    OP(LORA_EXPAND_ADD, matmul, 0),
};

/* ---- Formats ------------------------------------------------------------------------------------------------ */

static const struct {
    uint8_t elems, bytes; /* of a block, elems in units of 8 where bytes is not 0; plain: elems 0 */
} block_of[INFER_FMT_COUNT] = {
    [INFER_FMT_F32] = {0, 4},     [INFER_FMT_F16] = {0, 2},     [INFER_FMT_BF16] = {0, 2},
    [INFER_FMT_F8_E4M3] = {0, 1}, [INFER_FMT_Q4_0] = {4, 18},   [INFER_FMT_Q4_1] = {4, 20},
    [INFER_FMT_Q5_0] = {4, 22},   [INFER_FMT_Q5_1] = {4, 24},   [INFER_FMT_Q8_0] = {4, 34},
    [INFER_FMT_MXFP4] = {4, 17},  [INFER_FMT_Q2_K] = {32, 84},  [INFER_FMT_Q3_K] = {32, 110},
    [INFER_FMT_Q4_K] = {32, 144}, [INFER_FMT_Q5_K] = {32, 176}, [INFER_FMT_Q6_K] = {32, 210},
};

uint32_t ocl_format_block(infer_format f)
{
    if (f >= INFER_FMT_COUNT || !block_of[f].bytes)
        return 0;
    return block_of[f].elems ? 8u * block_of[f].elems : 1;
}

uint64_t ocl_format_bytes(infer_format f, uint64_t n)
{
    uint32_t block = ocl_format_block(f);
    return block ? n / block * block_of[f].bytes : 0;
}

int ocl_is_plain(infer_format f)
{
    return f == INFER_FMT_F32 || f == INFER_FMT_F16 || f == INFER_FMT_BF16;
}

/* Also of integers, which are indices or moved as they are. */
static uint64_t any_bytes(infer_format f, uint64_t n)
{
    switch (f) {
    case INFER_FMT_F64:
    case INFER_FMT_I64:
        return 8 * n;
    case INFER_FMT_I32:
    case INFER_FMT_U32:
        return 4 * n;
    case INFER_FMT_I16:
    case INFER_FMT_U16:
        return 2 * n;
    case INFER_FMT_U4:
        return n / 2;
    case INFER_FMT_I8:
    case INFER_FMT_U8:
    case INFER_FMT_F8_E5M2:
    case INFER_FMT_E8M0:
        return n;
    default:
        return ocl_format_bytes(f, n);
    }
}

/* ---- Descriptors ---------------------------------------------------------------------------------------------- */

const infer_tensor_desc *ocl_tensor_desc(const infer_op_desc *op, uint32_t i)
{
    return (const infer_tensor_desc *)(const void *)((const uint8_t *)op->tensors + (size_t)i * op->tensor_size);
}

const infer_epilogue *ocl_epilogue(const infer_op_desc *op, uint32_t i)
{
    return (const infer_epilogue *)(const void *)((const uint8_t *)op->epilogue + (size_t)i * op->epilogue_size);
}

int ocl_present(const infer_op_desc *op, uint32_t i)
{
    return i < op->n_in + op->n_out && !(ocl_tensor_desc(op, i)->flags & INFER_TENSOR_ABSENT);
}

void ocl_attrs(const infer_op_desc *op, void *out, uint32_t size)
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

int64_t ocl_per_row(const infer_op_desc *op, uint32_t i)
{
    const infer_tensor_desc *t = ocl_tensor_desc(op, i);
    int64_t n = 1;
    for (uint32_t a = 1; a + 1 < t->rank; a++)
        n *= t->shape[a];
    return n;
}

void ocl_no(infer_op_answer *a, uint32_t why, uint32_t which)
{
    a->level = INFER_LEVEL_NO;
    a->why = why;
    a->which = which;
    a->row_invariant = 0;
    a->scratch_bytes = 0;
}

/* Kernels number vectors and elements by 32 bits. */
static int fits(const infer_tensor_desc *t)
{
    int64_t vectors = 1;
    for (uint32_t i = 0; i < t->rank; i++) {
        if (t->shape[i] > INT32_MAX)
            return 0;
        if (i + 1 < t->rank)
            vectors *= t->shape[i];
        if (vectors > INT32_MAX)
            return 0;
    }
    return 1;
}

static void answer(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    if (op->op >= INFER_OP_COUNT || !table[op->op].run) {
        ocl_no(a, INFER_WHY_OP, 0);
        return;
    }
    if (op->must_understand || op->revision) {
        ocl_no(a, INFER_WHY_UNKNOWN_BITS, 0);
        return;
    }
    infer_status s = dev->host->op_check(dev->host->ctx, op);
    if (s) {
        ocl_no(a, s == INFER_E_UNSUPPORTED ? INFER_WHY_FORMAT : INFER_WHY_SHAPE, 0);
        return;
    }
    for (uint32_t i = 0; i < op->n_in + op->n_out; i++) {
        if (!ocl_present(op, i))
            continue;
        const infer_tensor_desc *t = ocl_tensor_desc(op, i);
        if (t->quant.format && t->quant.scale_format) {
            ocl_no(a, INFER_WHY_FORMAT, i);
            return;
        }
        if (!fits(t)) {
            ocl_no(a, INFER_WHY_SHAPE, i);
            return;
        }
    }
    a->level = INFER_LEVEL_NATIVE;
    a->row_invariant = 1;
    a->scratch_align = OCL_BIND_ALIGN;
    table[op->op].check(dev, op, a);
}

infer_status ocl_op_query(infer_device *dev, const infer_op_desc *ops, uint32_t op_size, uint32_t n,
                          infer_op_answer *out, uint32_t answer_size)
{
    for (uint32_t i = 0; i < n; i++) {
        infer_op_answer a = {.struct_size = sizeof a};
        answer(dev, (const infer_op_desc *)(const void *)((const uint8_t *)ops + (size_t)i * op_size), &a);
        ocl_put((uint8_t *)out + (size_t)i * answer_size, &a, answer_size < sizeof a ? answer_size : sizeof a);
    }
    return INFER_OK;
}

/* ---- Operands in place ------------------------------------------------------------------------------------------ */

static void place(const infer_tensor_desc *t, const infer_range *r, ocl_tensor *out)
{
    int dense = 1;
    uint64_t span = any_bytes(t->format, (uint64_t)t->shape[t->rank - 1]);
    int64_t stride[3] = {0};
    for (uint32_t i = 0; i + 1 < t->rank; i++)
        dense &= !t->stride[i];
    for (uint32_t i = t->rank - 1; i-- > 0;) {
        stride[i] = dense ? (int64_t)span : t->stride[i];
        span *= (uint64_t)t->shape[i];
    }
    *out = (ocl_tensor){.off = r->offset,
                        .s0 = stride[0],
                        .s1 = stride[1],
                        .s2 = stride[2],
                        .n1 = t->rank > 2 ? (int32_t)t->shape[1] : 1,
                        .n2 = t->rank > 3 ? (int32_t)t->shape[2] : 1,
                        .width = (int32_t)t->shape[t->rank - 1],
                        .fmt = (int32_t)t->format};
}

infer_status ocl_op_emit(infer_device *dev, const infer_op_desc *op, const infer_op_args *args, ocl_sink sink,
                         void *ctx)
{
    ocl_call c = {.dev = dev, .op = op, .sink = sink, .ctx = ctx};
    const infer_host *host = dev->host;
    uint32_t n = op->n_in + op->n_out;
    if (op->op >= INFER_OP_COUNT || !table[op->op].run)
        return ocl_fail(host, INFER_E_UNSUPPORTED, "opencl: op %u", op->op);
    if (n > INFER_OP_MAX_OPERANDS || args->n_operands < n)
        return ocl_fail(host, INFER_E_INVALID, "opencl: op %u with %u operands", op->op, args->n_operands);
    for (uint32_t i = 0; i < n; i++) {
        c.mem[i] = dev->dummy;
        if (!ocl_present(op, i) || !args->operands[i].buffer)
            continue;
        c.mem[i] = args->operands[i].buffer->mem;
        place(ocl_tensor_desc(op, i), &args->operands[i], &c.t[i]);
    }
    const infer_tensor_desc *rows = ocl_tensor_desc(op, table[op->op].rows_of);
    c.rows = (ocl_rows){.cap = (int32_t)rows->shape[0], .from = -1, .mul = op->rows_mul};
    c.counts = c.scratch = dev->dummy;
    if (op->rows_from < INFER_COUNT_MAX) {
        if (!args->counts.buffer)
            return ocl_fail(host, INFER_E_INVALID, "opencl: op %u without its counts", op->op);
        c.rows.from = (int32_t)op->rows_from;
        c.rows.off = args->counts.offset;
        c.counts = args->counts.buffer->mem;
    }
    if (args->scratch.buffer) {
        c.scratch = args->scratch.buffer->mem;
        c.scratch_off = args->scratch.offset;
    }
    return table[op->op].run(&c);
}

/* ---- Launches -----------------------------------------------------------------------------------------------------
 */

void ocl_launch_init(ocl_launch *l, const ocl_call *c, const ocl_program *program, const char *name, const int *which,
                     uint32_t n, const void *params, uint32_t bytes)
{
    memset(l, 0, sizeof *l);
    l->program = program;
    l->name = name;
    l->n_mem = n;
    for (uint32_t i = 0; i < n; i++)
        l->mem[i] = which[i] >= 0 ? c->mem[which[i]] : which[i] == -1 ? c->counts : c->dev->dummy;
    l->params_bytes = bytes;
    memcpy(l->params, params, bytes);
}

infer_status ocl_emit(ocl_call *c, ocl_launch *l, size_t g0, size_t g1, size_t g2, size_t l0, size_t l1)
{
    l->dims = g2 > 1 ? 3 : 2;
    l->group[0] = l0;
    l->group[1] = l1;
    l->group[2] = 1;
    l->global[0] = g0 * l0;
    l->global[1] = g1 * l1;
    l->global[2] = g2;
    return c->sink(c->ctx, l);
}

infer_status ocl_emit_each(ocl_call *c, ocl_launch *l, int64_t width, int64_t n)
{
    /* a work-group of 64 elements; kernels test their range */
    size_t each = c->dev->tune->each, lanes = c->dev->tune->lanes == 1 ? 1 : 64;
    size_t items = ((size_t)width + each - 1) / each;
    return ocl_emit(c, l, (items + lanes - 1) / lanes, (size_t)n, 1, lanes, 1);
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
    if (!e && l->params_bytes)
        e = dev->cl->SetKernelArg(k, a++, l->params_bytes, l->params);
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
    return ocl_op_emit(queue->dev, op, args, run_now, queue);
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
