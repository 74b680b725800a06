/* Descriptors, answers, operands in place. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "launch.h"

#define X(name, work) [LAUNCH_K_##name] = #name,
const char *const launch_name[LAUNCH_N_KERNELS] = {LAUNCH_KERNELS(X)};
#undef X
#define X(name, work) [LAUNCH_K_##name] = LAUNCH_##work,
const uint8_t launch_work[LAUNCH_N_KERNELS] = {LAUNCH_KERNELS(X)};
#undef X

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

uint32_t launch_format_block(infer_format f)
{
    if (f >= INFER_FMT_COUNT || !block_of[f].bytes)
        return 0;
    return block_of[f].elems ? 8u * block_of[f].elems : 1;
}

uint64_t launch_format_bytes(infer_format f, uint64_t n)
{
    uint32_t block = launch_format_block(f);
    return block ? n / block * block_of[f].bytes : 0;
}

int launch_is_plain(infer_format f)
{
    return f == INFER_FMT_F32 || f == INFER_FMT_F16 || f == INFER_FMT_BF16;
}

int launch_is_cache(infer_format f)
{
    return launch_is_plain(f) || f == INFER_FMT_F8_E4M3 || f == INFER_FMT_Q8_0 || f == INFER_FMT_Q4_0;
}

/* Also of integers, which are indices or moved as they are. */
uint64_t launch_any_bytes(infer_format f, uint64_t n)
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
        return launch_format_bytes(f, n);
    }
}

/* ---- Descriptors ---------------------------------------------------------------------------------------------- */

const infer_tensor_desc *launch_tensor_desc(const infer_op_desc *op, uint32_t i)
{
    return (const infer_tensor_desc *)(const void *)((const uint8_t *)op->tensors + (size_t)i * op->tensor_size);
}

const infer_epilogue *launch_epilogue(const infer_op_desc *op, uint32_t i)
{
    return (const infer_epilogue *)(const void *)((const uint8_t *)op->epilogue + (size_t)i * op->epilogue_size);
}

int launch_present(const infer_op_desc *op, uint32_t i)
{
    return i < op->n_in + op->n_out && !(launch_tensor_desc(op, i)->flags & INFER_TENSOR_ABSENT);
}

void launch_attrs(const infer_op_desc *op, void *out, uint32_t size)
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

int64_t launch_per_row(const infer_op_desc *op, uint32_t i)
{
    const infer_tensor_desc *t = launch_tensor_desc(op, i);
    int64_t n = 1;
    for (uint32_t a = 1; a + 1 < t->rank; a++)
        n *= t->shape[a];
    return n;
}

void launch_no(infer_op_answer *a, uint32_t why, uint32_t which)
{
    a->level = INFER_LEVEL_NO;
    a->why = why;
    a->which = which;
    a->row_invariant = 0;
    a->scratch_bytes = 0;
}

void launch_need(infer_device *dev, infer_op_answer *a, launch_kernel k)
{
    if (a->level && !launch_ready(dev, k))
        launch_no(a, INFER_WHY_OP, 0);
}

/* Kernels number vectors, and elements and bytes of one, by 32 bits. */
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
    return !t->rank || launch_any_bytes(t->format, (uint64_t)t->shape[t->rank - 1]) <= INT32_MAX;
}

/* The host's check, which knows no layout but the canonical: an operand passes in another where its reader is there. */
static int check_op(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    const infer_host *host = launch_host(dev);
    const uint32_t n = op->n_in + op->n_out;
    infer_tensor_desc t[INFER_OP_MAX_OPERANDS] = {0};
    infer_op_desc as = *op;
    for (uint32_t i = 0; i < n && n <= INFER_OP_MAX_OPERANDS; i++) {
        memcpy(&t[i], launch_tensor_desc(op, i), op->tensor_size < sizeof *t ? op->tensor_size : sizeof *t);
        if (t[i].layout == INFER_LAYOUT_CANONICAL || !launch_present(op, i))
            continue;
        if (!launch_reads(dev, op, i)) {
            launch_no(a, INFER_WHY_LAYOUT, i);
            return 0;
        }
        t[i].layout = INFER_LAYOUT_CANONICAL;
        as.tensors = t;
        as.tensor_size = sizeof *t;
    }
    infer_status s = host->op_check(host->ctx, &as);
    if (s)
        launch_no(a, s == INFER_E_UNSUPPORTED ? INFER_WHY_FORMAT : INFER_WHY_SHAPE, 0);
    return !s;
}

static void answer(infer_device *dev, const launch_op *table, uint32_t align, const infer_op_desc *op,
                   infer_op_answer *a)
{
    if (op->op >= INFER_OP_COUNT || !table[op->op].check) {
        launch_no(a, INFER_WHY_OP, 0);
        return;
    }
    if (op->must_understand || op->revision) {
        launch_no(a, INFER_WHY_UNKNOWN_BITS, 0);
        return;
    }
    if (!check_op(dev, op, a))
        return;
    for (uint32_t i = 0; i < op->n_in + op->n_out; i++) {
        if (!launch_present(op, i))
            continue;
        const infer_tensor_desc *t = launch_tensor_desc(op, i);
        if (t->quant.scale_format &&
            t->layout == INFER_LAYOUT_CANONICAL) { /* a layout of its own has them as it likes */
            launch_no(a, INFER_WHY_FORMAT, i);
            return;
        }
        if (!fits(t)) {
            launch_no(a, INFER_WHY_SHAPE, i);
            return;
        }
    }
    a->level = INFER_LEVEL_NATIVE;
    a->row_invariant = 1;
    a->scratch_align = align;
    table[op->op].check(dev, op, a);
}

void launch_put(void *dst, void *src, uint32_t size)
{
    uint32_t have;
    memcpy(&have, dst, sizeof have);
    memcpy(src, &have, sizeof have); /* the caller's size stays */
    memcpy(dst, src, have < size ? have : size);
}

void launch_query(infer_device *dev, const launch_op *table, uint32_t align, const infer_op_desc *ops, uint32_t op_size,
                  uint32_t n, infer_op_answer *out, uint32_t answer_size)
{
    for (uint32_t i = 0; i < n; i++) {
        infer_op_answer a = {.struct_size = sizeof a};
        answer(dev, table, align, (const infer_op_desc *)(const void *)((const uint8_t *)ops + (size_t)i * op_size),
               &a);
        launch_put((uint8_t *)out + (size_t)i * answer_size, &a, answer_size < sizeof a ? answer_size : sizeof a);
    }
}

uint64_t launch_weight_extents(const infer_weight_desc *d, int64_t x[3])
{
    const infer_shard *s = &d->shard;
    const int64_t block = d->quant.format == INFER_FMT_U4 ? 2 : launch_format_block(d->quant.format);
    uint64_t bytes;
    if (!block || d->rank < 1 || d->rank > 3 || s->axis > 2)
        return 0;
    x[0] = d->rank > 2 ? d->shape[0] : 1;
    x[1] = d->rank > 1 ? d->shape[d->rank - 2] : 1;
    x[2] = d->shape[d->rank - 1];
    if (s->of) {
        int64_t *cut = s->axis == 0 ? &x[1] : s->axis == 1 ? &x[2] : &x[0];
        *cut = *cut / s->of * s->count;
    }
    if (x[0] <= 0 || x[1] <= 0 || x[2] <= 0 || x[2] > INT32_MAX || x[2] % block ||
        __builtin_mul_overflow((uint64_t)x[0], (uint64_t)x[1], &bytes) ||
        __builtin_mul_overflow(bytes, launch_any_bytes(d->quant.format, (uint64_t)x[2]), &bytes))
        return 0;
    return bytes;
}

/* ---- Operands in place ------------------------------------------------------------------------------------------ */

static void place(const infer_tensor_desc *t, const infer_range *r, lp_tensor *out)
{
    int dense = 1;
    uint64_t span = launch_any_bytes(t->format, (uint64_t)t->shape[t->rank - 1]);
    int64_t stride[3] = {0};
    for (uint32_t i = 0; i + 1 < t->rank; i++)
        dense &= !t->stride[i];
    for (uint32_t i = t->rank - 1; i-- > 0;) {
        stride[i] = dense ? (int64_t)span : t->stride[i];
        span *= (uint64_t)t->shape[i];
    }
    *out = (lp_tensor){.off = r->offset,
                       .s0 = stride[0],
                       .s1 = stride[1],
                       .s2 = stride[2],
                       .n1 = t->rank > 2 ? (int32_t)t->shape[1] : 1,
                       .n2 = t->rank > 3 ? (int32_t)t->shape[2] : 1,
                       .width = (int32_t)t->shape[t->rank - 1],
                       .fmt = (int32_t)t->format};
}

static infer_status invalid(infer_device *dev, infer_status s, const infer_op_desc *op, const char *why)
{
    const infer_host *host = launch_host(dev);
    char text[96];
    snprintf(text, sizeof text, "%s: op %u%s", launch_backend, op->op, why);
    host->status_detail(host->ctx, s, text);
    return s;
}

infer_status launch_op_run(infer_device *dev, const launch_op *table, const infer_op_desc *op,
                           const infer_op_args *args, void *to)
{
    launch_call c = {.dev = dev, .op = op, .to = to};
    uint32_t n = op->n_in + op->n_out;
    if (op->op >= INFER_OP_COUNT || !table[op->op].run)
        return invalid(dev, INFER_E_UNSUPPORTED, op, " is not here");
    if (n > INFER_OP_MAX_OPERANDS || args->n_operands < n)
        return invalid(dev, INFER_E_INVALID, op, " without its operands");
    for (uint32_t i = 0; i < n; i++) {
        c.mem[i] = launch_nothing(dev);
        if (!launch_present(op, i) || !args->operands[i].buffer)
            continue;
        c.mem[i] = launch_memory(args->operands[i].buffer);
        place(launch_tensor_desc(op, i), &args->operands[i], &c.t[i]);
    }
    const infer_tensor_desc *rows = launch_tensor_desc(op, table[op->op].rows_of);
    c.rows = (lp_rows){.cap = (int32_t)rows->shape[0], .from = -1, .mul = op->rows_mul};
    c.counts = c.scratch = launch_nothing(dev);
    if (op->rows_from < INFER_COUNT_MAX) {
        if (!args->counts.buffer)
            return invalid(dev, INFER_E_INVALID, op, " without its counts");
        c.rows.from = (int32_t)op->rows_from;
        c.rows.off = args->counts.offset;
        c.counts = launch_memory(args->counts.buffer);
    }
    if (args->scratch.buffer) {
        c.scratch = launch_memory(args->scratch.buffer);
        c.scratch_off = args->scratch.offset;
    }
    return table[op->op].run(&c);
}

void launch_operands(const launch_call *c, const int *which, uint32_t n, void **mem)
{
    for (uint32_t i = 0; i < n; i++)
        mem[i] = which[i] >= 0    ? c->mem[which[i]]
                 : which[i] == -1 ? c->counts
                 : which[i] == -3 ? c->scratch
                                  : launch_nothing(c->dev);
}
