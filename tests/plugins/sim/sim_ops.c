/*
 * sim, the ops: which are offered, how a descriptor is read, answered and run, and what it costs in virtual time. The
 * arithmetic itself is the host's reference.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <string.h>

#include "sim.h"

/* Names for "deny_ops" and for the records of the clock. An op that is not listed runs as well, without a name. */
static const struct {
    infer_op_id id;
    const char *name;
} sim_ops[] = {
    {INFER_OP_COPY, "copy"},
    {INFER_OP_GATHER_ROWS, "gather_rows"},
    {INFER_OP_CONCAT_ROWS, "concat_rows"},
    {INFER_OP_ADD, "add"},
    {INFER_OP_MUL, "mul"},
    {INFER_OP_SCALE, "scale"},
    {INFER_OP_GLU, "glu"},
    {INFER_OP_ACT, "act"},
    {INFER_OP_SOFTMAX, "softmax"},
    {INFER_OP_ARGMAX, "argmax"},
    {INFER_OP_RMS_NORM, "rms_norm"},
    {INFER_OP_LAYER_NORM, "layer_norm"},
    {INFER_OP_ADD_RMS_NORM, "add_rms_norm"},
    {INFER_OP_MATMUL, "matmul"},
    {INFER_OP_MOE_ROUTE, "moe_route"},
    {INFER_OP_MOE_MATMUL, "moe_matmul"},
    {INFER_OP_MOE_COMBINE, "moe_combine"},
    {INFER_OP_GATED_MLP, "gated_mlp"},
    {INFER_OP_QKV, "qkv"},
    {INFER_OP_ROPE, "rope"},
    {INFER_OP_KV_WRITE, "kv_write"},
    {INFER_OP_ROPE_KV_WRITE, "rope_kv_write"},
    {INFER_OP_ATTN_PAGED, "attn_paged"},
    {INFER_OP_MLA_PAGED, "mla_paged"},
    {INFER_OP_ATTN_DENSE, "attn_dense"},
    {INFER_OP_KV_PACK, "kv_pack"},
    {INFER_OP_KV_UNPACK, "kv_unpack"},
    {INFER_OP_KV_MOVE, "kv_move"},
    {INFER_OP_STATE_COPY, "state_copy"},
    {INFER_OP_SAMPLE, "sample"},
    {INFER_OP_IDS_SELECT, "ids_select"},
    {INFER_OP_ROWS_SELECT, "rows_select"},
    {INFER_OP_LORA_SHRINK, "lora_shrink"},
    {INFER_OP_LORA_EXPAND_ADD, "lora_expand_add"},
};
#define SIM_N_OPS (sizeof(sim_ops) / sizeof(sim_ops[0]))

static const char *sim_op_name(infer_op_id id)
{
    for (size_t i = 0; i < SIM_N_OPS; i++)
        if (sim_ops[i].id == id)
            return sim_ops[i].name;
    return "op";
}

/* Bytes of 256 elements of each format. */
static const uint32_t sim_bytes_256[INFER_FMT_COUNT] = {
    [INFER_FMT_F32] = 1024, [INFER_FMT_F16] = 512,     [INFER_FMT_BF16] = 512, [INFER_FMT_F8_E4M3] = 256,
    [INFER_FMT_F64] = 2048, [INFER_FMT_F8_E5M2] = 256, [INFER_FMT_I8] = 256,   [INFER_FMT_U8] = 256,
    [INFER_FMT_I16] = 512,  [INFER_FMT_U16] = 512,     [INFER_FMT_I32] = 1024, [INFER_FMT_U32] = 1024,
    [INFER_FMT_I64] = 2048, [INFER_FMT_U4] = 128,      [INFER_FMT_E8M0] = 256, [INFER_FMT_Q4_0] = 144,
    [INFER_FMT_Q4_1] = 160, [INFER_FMT_Q5_0] = 176,    [INFER_FMT_Q5_1] = 192, [INFER_FMT_Q8_0] = 272,
    [INFER_FMT_Q2_K] = 84,  [INFER_FMT_Q3_K] = 110,    [INFER_FMT_Q4_K] = 144, [INFER_FMT_Q5_K] = 176,
    [INFER_FMT_Q6_K] = 210, [INFER_FMT_MXFP4] = 136,
};

/* ---- Cost ---- */

uint32_t sim_format_bytes(infer_format format)
{
    return format < INFER_FMT_COUNT ? sim_bytes_256[format] : 0;
}

infer_op_id sim_op_by_name(const char *name, size_t n)
{
    for (size_t i = 0; i < SIM_N_OPS; i++)
        if (strlen(sim_ops[i].name) == n && !strncmp(sim_ops[i].name, name, n))
            return sim_ops[i].id;
    return INFER_OP_NONE;
}

static double sim_elems(const infer_tensor_desc *t)
{
    double n = 1;
    for (uint32_t i = 0; i < t->rank && i < 4; i++)
        n *= (double)t->shape[i];
    return n;
}

/* Arithmetic of an op at its full shape: products are told apart, everything else counts its results. */
static double sim_op_flops(const infer_op_desc *op)
{
    const infer_tensor_desc *x = &op->tensors[0], *y = &op->tensors[op->n_in];
    double k = (double)x->shape[x->rank - 1];
    switch (op->op) {
    case INFER_OP_MATMUL:
    case INFER_OP_MOE_MATMUL:
        return 2 * sim_elems(y) * k;
    case INFER_OP_QKV:
        return 2 * k * (sim_elems(y) + sim_elems(y + 1) + sim_elems(y + 2));
    case INFER_OP_GATED_MLP:
        return 6 * (double)x->shape[0] * sim_elems(&op->tensors[1]);
    case INFER_OP_ATTN_PAGED: {
        infer_attrs_attn a;
        memcpy(&a, op->attrs, sizeof(a));
        return 4 * sim_elems(x) * (double)op->tensors[3].shape[1] * a.kv.block_size;
    }
    case INFER_OP_ATTN_DENSE:
        return 4 * sim_elems(x) * (double)op->tensors[1].shape[0];
    default:
        return sim_elems(y);
    }
}

/* Virtual time of an op of which `rows` of the first axis are done; operands as long as the first one count in
 * proportion. */
static double sim_op_ns(const sim_config *c, const infer_op_desc *op, int64_t rows, double *bytes)
{
    double all = (double)op->tensors[0].shape[0], part = all > 0 ? (double)rows / all : 1;
    *bytes = 0;
    for (uint32_t i = 0; i < op->n_in + op->n_out; i++) {
        const infer_tensor_desc *t = &op->tensors[i];
        if (t->flags & INFER_TENSOR_ABSENT || !sim_format_bytes(t->format))
            continue;
        double b = sim_elems(t) * sim_format_bytes(t->format) / 256;
        *bytes += (double)t->shape[0] == all ? b * part : b;
    }
    double memory = c->bytes_per_s > 0 ? *bytes / c->bytes_per_s * 1e9 : 0;
    double arithmetic = c->flops > 0 ? sim_op_flops(op) * part / c->flops * 1e9 : 0;
    return c->launch_ns + (memory > arithmetic ? memory : arithmetic);
}

/* ---- Reading ---- */

/* Copies a descriptor with all that it points to, by the element sizes that the producer states. INFER_WHY_NONE, or why
 * sim cannot take it. */
static uint32_t sim_read_op(const infer_op_desc *src, sim_op *op)
{
    infer_op_desc *d = &op->desc;
    sim_take(d, sizeof(*d), src, src->struct_size);
    d->struct_size = sizeof(*d);
    if (d->op == INFER_OP_NONE || d->op >= INFER_OP_COUNT)
        return INFER_WHY_OP;
    if (d->must_understand || d->revision)
        return INFER_WHY_UNKNOWN_BITS;
    if (d->n_in > INFER_OP_MAX_OPERANDS || d->n_out > INFER_OP_MAX_OPERANDS - d->n_in || d->n_in + d->n_out == 0)
        return INFER_WHY_SHAPE;
    if (d->n_epilogue > SIM_MAX_EPI)
        return INFER_WHY_EPILOGUE;
    if (d->attrs_size > SIM_MAX_ATTRS)
        return INFER_WHY_ATTR;
    for (uint32_t i = 0; i < d->n_in + d->n_out; i++)
        sim_take(&op->tensors[i], sizeof(op->tensors[i]), (const char *)d->tensors + (uint64_t)i * d->tensor_size,
                 d->tensor_size);
    for (uint32_t i = 0; i < d->n_epilogue; i++)
        sim_take(&op->epilogue[i], sizeof(op->epilogue[i]), (const char *)d->epilogue + (uint64_t)i * d->epilogue_size,
                 d->epilogue_size);
    memset(op->attrs, 0, sizeof(op->attrs));
    if (d->attrs)
        memcpy(op->attrs, d->attrs, d->attrs_size);
    d->next = NULL;
    d->tensors = op->tensors;
    d->tensor_size = sizeof(op->tensors[0]);
    d->epilogue = d->n_epilogue ? op->epilogue : NULL;
    d->epilogue_size = sizeof(op->epilogue[0]);
    d->attrs = d->attrs ? op->attrs : NULL;
    return INFER_WHY_NONE;
}

/* The cache geometry in an op's attributes, or NULL. */
static const infer_attrs_kv *sim_op_kv(const sim_op *op)
{
    const void *a = op->attrs;
    switch (op->desc.op) {
    case INFER_OP_ATTN_PAGED:
    case INFER_OP_MLA_PAGED:
        return &((const infer_attrs_attn *)a)->kv;
    case INFER_OP_ROPE_KV_WRITE:
        return &((const infer_attrs_rope_kv *)a)->kv;
    case INFER_OP_KV_WRITE:
    case INFER_OP_KV_PACK:
    case INFER_OP_KV_UNPACK:
    case INFER_OP_KV_MOVE:
        return a;
    default:
        return NULL;
    }
}

/* Whether operand 1 is a matrix in sim's own layout. */
static int sim_is_packed(const infer_op_desc *op, sim_matrix *m)
{
    const infer_tensor_desc *w = &op->tensors[1];
    return (op->op == INFER_OP_MATMUL || op->op == INFER_OP_MOE_MATMUL) && op->n_in > 1 && w->layout == SIM_LAYOUT &&
           !(w->flags & INFER_TENSOR_ABSENT) && sim_matrix_of(w, m);
}

/* Scratch of an op: the configured bytes, then the unpacked matrix. */
static uint64_t sim_scratch_bytes(const sim_config *c, const sim_matrix *m)
{
    uint64_t first = (c->scratch_bytes + SIM_BIND_ALIGN - 1) & ~(uint64_t)(SIM_BIND_ALIGN - 1);
    return m ? first + sim_matrix_bytes(m) : c->scratch_bytes;
}

static void sim_answer(infer_device *dev, const infer_op_desc *src, infer_op_answer *out)
{
    const infer_host *host = dev->host;
    sim_matrix m;
    sim_op op;
    out->level = INFER_LEVEL_NO;
    out->why = sim_read_op(src, &op);
    if (out->why)
        return;
    if (dev->cfg.denied[op.desc.op]) {
        out->why = INFER_WHY_OP;
        return;
    }
    int packed = sim_is_packed(&op.desc, &m);
    if (packed)
        op.tensors[1].layout = INFER_LAYOUT_CANONICAL; /* as the reference will see it */
    for (uint32_t i = 0; i < op.desc.n_in + op.desc.n_out; i++) {
        const infer_tensor_desc *t = &op.tensors[i];
        if (t->flags & INFER_TENSOR_ABSENT)
            continue;
        if (t->rank < 1 || t->rank > 4 || t->layout != INFER_LAYOUT_CANONICAL || !sim_format_bytes(t->format)) {
            out->why = t->layout ? INFER_WHY_LAYOUT : t->rank < 1 || t->rank > 4 ? INFER_WHY_SHAPE : INFER_WHY_FORMAT;
            out->which = i;
            return;
        }
    }
    infer_status s = host->op_check(host->ctx, &op.desc);
    if (s) {
        out->why = s == INFER_E_UNSUPPORTED ? INFER_WHY_OP : INFER_WHY_SHAPE;
        return;
    }
    const infer_attrs_kv *kv = sim_op_kv(&op);
    if (kv && kv->block_size % dev->cfg.block_multiple) {
        out->why = INFER_WHY_ATTR;
        out->which = 7; /* block_size, in infer_attrs_kv */
        return;
    }
    out->level = INFER_LEVEL_NATIVE;
    out->n_epilogue = op.desc.n_epilogue < dev->cfg.epilogues ? op.desc.n_epilogue : dev->cfg.epilogues;
    out->row_invariant = 1;
    out->scratch_bytes = sim_scratch_bytes(&dev->cfg, packed ? &m : NULL);
    out->scratch_align = SIM_BIND_ALIGN;
    out->est_ns = sim_op_ns(&dev->cfg, &op.desc, op.tensors[0].shape[0], &out->est_bytes);
}

infer_status sim_op_query(infer_device *dev, const infer_op_desc *ops, uint32_t op_size, uint32_t n,
                          infer_op_answer *out, uint32_t answer_size)
{
    for (uint32_t i = 0; i < n; i++) {
        infer_op_answer a = {.struct_size = answer_size};
        sim_answer(dev, (const void *)((const char *)ops + (uint64_t)i * op_size), &a);
        memcpy((char *)out + (uint64_t)i * answer_size, &a, answer_size < sizeof(a) ? answer_size : sizeof(a));
    }
    return INFER_OK;
}

/* Least bytes that an operand takes, its side planes not counted. */
static uint64_t sim_tensor_bytes(const infer_tensor_desc *t)
{
    uint64_t last = (uint64_t)t->shape[t->rank - 1] * sim_format_bytes(t->format) / 256, n = last;
    int strided = 0;
    for (uint32_t i = 0; i < t->rank; i++) {
        strided |= i + 1 < t->rank && t->stride[i] != 0;
        if (t->shape[i] <= 0)
            return 0;
    }
    for (uint32_t i = 0; i + 1 < t->rank; i++)
        n = strided ? n + (uint64_t)(t->shape[i] - 1) * (uint64_t)t->stride[i] : n * (uint64_t)t->shape[i];
    return n;
}

/* The memory of a binding, or NULL with a detail: outside, too small, or not aligned as dev_props says. */
static void *sim_bind(infer_device *dev, const infer_range *r, uint64_t need)
{
    void *p = sim_resolve(dev, r->buffer, r->offset, r->size);
    if (!p || r->size < need || r->offset % SIM_BIND_ALIGN) {
        sim_fail(dev->host, INFER_E_INVALID, "sim: cmd_op: a binding is outside its buffer, too small or unaligned");
        return NULL;
    }
    return p;
}

infer_status sim_cmd_op(infer_queue *q, const infer_op_desc *src, const infer_op_args *given)
{
    infer_device *dev = q->dev;
    infer_op_args args;
    sim_take(&args, sizeof(args), given, given->struct_size);
    sim_op op = {0};
    if (sim_read_op(src, &op) || dev->cfg.denied[op.desc.op])
        return sim_fail(dev->host, INFER_E_UNSUPPORTED, "sim: cmd_op: an op that op_query refuses");
    infer_op_desc *d = &op.desc;
    if (args.n_operands != d->n_in + d->n_out)
        return sim_fail(dev->host, INFER_E_INVALID, "sim: cmd_op: number of operands");
    for (uint32_t i = 0; i < args.n_operands; i++) {
        const infer_tensor_desc *t = &op.tensors[i];
        if (t->flags & INFER_TENSOR_ABSENT)
            continue;
        if (t->rank < 1 || t->rank > 4 || !sim_format_bytes(t->format))
            return sim_fail(dev->host, INFER_E_INVALID, "sim: cmd_op: rank or format of an operand");
        op.data[i] = sim_bind(dev, &args.operands[i], sim_tensor_bytes(t));
        if (!op.data[i])
            return INFER_E_INVALID;
    }
    if (d->rows_from != INFER_ROWS_STATIC) {
        if (d->rows_from >= INFER_COUNT_MAX)
            return sim_fail(dev->host, INFER_E_INVALID, "sim: cmd_op: rows_from");
        op.counts = sim_bind(dev, &args.counts, ((uint64_t)d->rows_from + 1) * sizeof(int32_t));
        if (!op.counts)
            return INFER_E_INVALID;
    }
    sim_matrix m;
    int packed = sim_is_packed(d, &m);
    uint64_t scratch = sim_scratch_bytes(&dev->cfg, packed ? &m : NULL);
    if (scratch) {
        op.scratch = sim_bind(dev, &args.scratch, scratch);
        if (!op.scratch)
            return INFER_E_INVALID;
    }
    if (packed) {
        op.packed = op.data[1];
        op.data[1] = op.scratch + scratch - sim_matrix_bytes(&m);
        op.tensors[1].layout = INFER_LAYOUT_CANONICAL;
    }
    sim_op *c = sim_begin(q, CMD_OP, sizeof(*c), 0);
    if (!c)
        return INFER_AGAIN;
    op.cmd = c->cmd;
    *c = op;
    c->desc.tensors = c->tensors; /* the copy points to its own parts */
    c->desc.epilogue = d->epilogue ? c->epilogue : NULL;
    c->desc.attrs = d->attrs ? c->attrs : NULL;
    sim_end(q, c);
    return INFER_OK;
}

infer_status sim_run_op(infer_queue *q, const sim_op *op)
{
    const infer_op_desc *d = &op->desc;
    const infer_host *host = q->dev->host;
    int64_t rows = d->tensors[0].shape[0];
    if (d->rows_from != INFER_ROWS_STATIC) {
        int64_t want = (int64_t)op->counts[d->rows_from] * d->rows_mul;
        rows = want < 0 ? 0 : want < rows ? want : rows;
    }
    if (op->scratch)
        memset(op->scratch, 0xA5, q->dev->cfg.scratch_bytes); /* it is ours during the op: nobody may rely on it */
    sim_matrix m;
    if (op->packed && sim_matrix_of(&op->tensors[1], &m))
        sim_unpack(&m, op->packed, op->data[1]);
    double bytes, ns = sim_op_ns(&q->dev->cfg, d, rows, &bytes);
    infer_status s = host->ref_op(host->ctx, d, op->data, op->counts);
    if (s)
        host->log(host->ctx, 0, "sim: the reference refused an op that op_query had taken; the queue is lost");
    sim_tick(q, sim_op_name(d->op), ns);
    return s;
}
