/* Matrix products: one program for each pair of formats, which kernel for how many rows, epilogues, and the ops that
 * are several products. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "ocl.h"

/* Formats that a product reads, by the name that kernels have for them. */
static const char *const unpack_of[INFER_FMT_COUNT] = {
    [INFER_FMT_F32] = "f32",   [INFER_FMT_F16] = "f16",   [INFER_FMT_BF16] = "bf16",   [INFER_FMT_F8_E4M3] = "e4m3",
    [INFER_FMT_Q4_0] = "q4_0", [INFER_FMT_Q4_1] = "q4_1", [INFER_FMT_Q5_0] = "q5_0",   [INFER_FMT_Q5_1] = "q5_1",
    [INFER_FMT_Q8_0] = "q8_0", [INFER_FMT_Q2_K] = "q2_k", [INFER_FMT_Q3_K] = "q3_k",   [INFER_FMT_Q4_K] = "q4_k",
    [INFER_FMT_Q5_K] = "q5_k", [INFER_FMT_Q6_K] = "q6_k", [INFER_FMT_MXFP4] = "mxfp4",
};

/* Of those, the ones that lanes read by eights (kernels/matmul_lanes.cl). */
static const uint8_t by_eights[INFER_FMT_COUNT] = {
    [INFER_FMT_F32] = 1,  [INFER_FMT_F16] = 1,  [INFER_FMT_BF16] = 1, [INFER_FMT_Q4_0] = 1,
    [INFER_FMT_Q4_1] = 1, [INFER_FMT_Q8_0] = 1, [INFER_FMT_Q4_K] = 1, [INFER_FMT_Q6_K] = 1,
};

static infer_status program_of(infer_device *dev, infer_format w, infer_format x, const ocl_program **out)
{
    char options[120];
    int n = snprintf(options, sizeof options, "-DUNPACK=unpack_%s -DXF=%u", unpack_of[w], x);
    if (ocl_format_block(w) == 1)
        n += snprintf(options + n, sizeof options - (size_t)n, " -DPLAIN=%u", w);
    if (by_eights[w] && dev->tune->mv_lanes > 1)
        snprintf(options + n, sizeof options - (size_t)n, " -DEIGHT=eight_%s", unpack_of[w]);
    return ocl_program_get(dev, OCL_SOURCE_MATMUL, options, out);
}

/* Whether a product of these operands is possible; builds its program. 0 with the answer turned to NO. */
static int product_ok(infer_device *dev, const infer_op_desc *op, uint32_t weight, infer_format x, infer_op_answer *a)
{
    infer_format w = ocl_tensor_desc(op, weight)->format;
    const ocl_program *program;
    if (w >= INFER_FMT_COUNT || !unpack_of[w]) {
        ocl_no(a, INFER_WHY_FORMAT, weight);
        return 0;
    }
    if (program_of(dev, w, x, &program)) {
        ocl_no(a, INFER_WHY_OP, 0);
        return 0;
    }
    return 1;
}

/* ---- Epilogues ----------------------------------------------------------------------------------------------------
 */

static int takes(const infer_epilogue *e)
{
    return e->kind >= INFER_EPI_BIAS && e->kind <= INFER_EPI_CONVERT;
}

static uint32_t epilogue_prefix(const infer_op_desc *op)
{
    uint32_t n = 0, slots = 0;
    for (; n < op->n_epilogue; n++) {
        const infer_epilogue *e = ocl_epilogue(op, n);
        if (!takes(e) || (e->kind != INFER_EPI_CONVERT && slots++ == OCL_MAX_EPI))
            break;
    }
    return n;
}

/* Into the block; mem: which buffers the steps' operands are, as indices. */
static void epilogue_put(const ocl_call *c, ocl_mm *p, int mem[OCL_MAX_EPI])
{
    for (int i = 0; i < OCL_MAX_EPI; i++)
        mem[i] = -2;
    for (uint32_t i = 0; i < c->op->n_epilogue; i++) {
        const infer_epilogue *e = ocl_epilogue(c->op, i);
        if (e->kind == INFER_EPI_CONVERT || p->n_epi == OCL_MAX_EPI)
            break; /* the store converts */
        ocl_epi *to = &p->epi[p->n_epi];
        *to = (ocl_epi){.kind = (int32_t)e->kind, .arg = (int32_t)e->arg, .factor = e->factor};
        if (e->kind == INFER_EPI_BIAS || e->kind == INFER_EPI_RESIDUAL || e->kind == INFER_EPI_MUL) {
            to->t = c->t[e->operand];
            mem[p->n_epi] = (int)e->operand;
        }
        p->n_epi++;
    }
}

/* ---- One product ----------------------------------------------------------------------------------------------------
 */

/* Where things of a product are: operand indices, -2 for none. */
typedef struct product {
    int x, w, bias, ids, y;
    ocl_tensor xt, yt; /* places of x and y, where they are scratch (x or y -3) */
    int epilogue;
    float scale;
} product;

static int uses_tiles(const infer_device *dev, const ocl_mm *p)
{
    return dev->tune->tile && !p->ids.fmt && p->choices == 1 && p->rows.cap >= (int32_t)dev->tune->tile_from;
}

/* Whether every row of x begins at a multiple of 16 bytes; buffers do. */
static int wide(const ocl_tensor *x)
{
    return !((x->off | (uint64_t)x->s0 | (uint64_t)x->s1 | (uint64_t)x->s2) % 16);
}

static infer_status multiply(ocl_call *c, const product *m)
{
    const infer_tensor_desc *w = ocl_tensor_desc(c->op, (uint32_t)m->w);
    const ocl_tune *t = c->dev->tune;
    const ocl_program *program;
    int epi[OCL_MAX_EPI] = {-2, -2, -2, -2};
    ocl_launch l;
    ocl_mm p = {.x = m->x >= 0 ? c->t[m->x] : m->xt,
                .y = m->y >= 0 ? c->t[m->y] : m->yt,
                .rows = c->rows,
                .w_off = c->t[m->w].off,
                .w_row = w->rank == 3 ? c->t[m->w].s1 : c->t[m->w].s0,
                .w_expert = w->rank == 3 ? c->t[m->w].s0 : 0,
                .k = (int32_t)w->shape[w->rank - 1],
                .n = (int32_t)w->shape[w->rank - 2],
                .choices = 1,
                .n_experts = w->rank == 3 ? (int32_t)w->shape[0] : 1,
                .scale = m->scale};
    if (m->bias >= 0)
        p.bias = c->t[m->bias];
    if (m->ids >= 0) {
        p.ids = c->t[m->ids];
        if (ocl_tensor_desc(c->op, (uint32_t)m->ids)->rank == 1) {
            p.ids.s0 = 4; /* one a row */
        } else {
            p.choices = p.ids.width;
            if (ocl_tensor_desc(c->op, 0)->rank == 2) /* one x for all choices of a row */
                p.x.n1 = p.choices;
        }
    }
    p.wide = wide(&p.x) && !((p.w_off | (uint64_t)p.w_row | (uint64_t)p.w_expert) % 16);
    if (m->epilogue)
        epilogue_put(c, &p, epi);
    infer_status s = program_of(c->dev, w->format, (infer_format)p.x.fmt, &program);
    if (s)
        return s;
    const int which[] = {m->x >= 0 ? m->x : -2, m->w, m->ids, m->bias, epi[0], epi[1], epi[2], epi[3],
                         m->y >= 0 ? m->y : -2, -1};
    int tiles = uses_tiles(c->dev, &p), one = m->ids >= 0 || p.rows.cap == 1;
    ocl_launch_init(&l, c, program, tiles ? "tile" : one ? "mv1" : "mvr", which, 10, &p, sizeof p);
    if (m->x < 0)
        l.mem[0] = c->scratch;
    if (m->y < 0)
        l.mem[8] = c->scratch;
    size_t rows = (size_t)p.rows.cap * (size_t)p.choices, n = (size_t)p.n;
    if (tiles)
        return ocl_emit(c, &l, (n + t->tile - 1) / t->tile, (rows + t->tile - 1) / t->tile, 1, 256, 1);
    size_t columns = t->mv_columns * t->mv_serial, each = one ? 1 : t->mv_rows;
    return ocl_emit(c, &l, (n + columns - 1) / columns, (rows + each - 1) / each, 1, t->mv_lanes * t->mv_columns, 1);
}

/* Up to three products of operand 0, in one launch: weights first .. first + n - 1 of one format and K. */
static int joins(const infer_device *dev, const infer_op_desc *op, uint32_t first, uint32_t n)
{
    const infer_tensor_desc *w = ocl_tensor_desc(op, first);
    for (uint32_t i = 1; i < n; i++)
        if (ocl_tensor_desc(op, first + i)->format != w->format)
            return 0;
    return dev->tune->mv_lanes > 1 && !(dev->tune->tile && ocl_tensor_desc(op, 0)->shape[0] >= dev->tune->tile_from);
}

/* y: operand of the first product's output, or -3: rows of scratch, out[i]. bias: operand of the first, -2: none. */
static infer_status multiply_joined(ocl_call *c, uint32_t n, int bias, int y, const ocl_tensor *out)
{
    const infer_tensor_desc *w0 = ocl_tensor_desc(c->op, 1);
    const ocl_tune *t = c->dev->tune;
    const ocl_program *program;
    ocl_launch l;
    ocl_mms p = {.x = c->t[0], .rows = c->rows, .k = (int32_t)w0->shape[1], .wide = wide(&c->t[0])};
    int which[] = {0, -2, -2, -2, -2, -2, -2, -2, -2, -2, -1};
    size_t columns = t->mv_columns * t->mv_serial, total = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t b = (uint32_t)bias + i;
        which[1 + i] = 1 + (int)i;
        p.w_off[i] = c->t[1 + i].off;
        p.w_row[i] = c->t[1 + i].s0;
        p.n[i] = (int32_t)ocl_tensor_desc(c->op, 1 + i)->shape[0];
        p.y[i] = y >= 0 ? c->t[y + (int)i] : out[i];
        p.wide &= !((p.w_off[i] | (uint64_t)p.w_row[i]) % 16);
        if (bias >= 0 && b < c->op->n_in && ocl_present(c->op, b)) {
            p.bias[i] = c->t[b];
            which[4 + i] = (int)b;
        }
        which[7 + i] = y >= 0 ? y + (int)i : -2;
        total += (size_t)p.n[i];
    }
    infer_status s = program_of(c->dev, w0->format, (infer_format)p.x.fmt, &program);
    if (s)
        return s;
    int one = p.rows.cap == 1;
    ocl_launch_init(&l, c, program, one ? "mvs1" : "mvsr", which, 11, &p, sizeof p);
    for (uint32_t i = 0; i < n && y < 0; i++)
        l.mem[7 + i] = c->scratch;
    size_t rows = (size_t)p.rows.cap, each = one ? 1 : t->mv_rows;
    return ocl_emit(c, &l, (total + columns - 1) / columns, (rows + each - 1) / each, 1, t->mv_lanes * t->mv_columns,
                    1);
}

/* Tiles add along K in another order than the kernels for few rows. */
static void invariance(const infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    if (a->level && dev->tune->tile && ocl_tensor_desc(op, 0)->shape[0] >= dev->tune->tile_from)
        a->row_invariant = 0;
}

void ocl_check_matmul(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    if (!product_ok(dev, op, 1, ocl_tensor_desc(op, 0)->format, a))
        return;
    int lora = op->op == INFER_OP_LORA_EXPAND_ADD;
    a->n_epilogue = lora ? 0 : epilogue_prefix(op);
    if (op->op == INFER_OP_MATMUL)
        invariance(dev, op, a);
}

infer_status ocl_run_matmul(ocl_call *c)
{
    const infer_op_desc *op = c->op;
    infer_attrs_matmul attrs;
    product m = {.x = 0, .w = 1, .bias = -2, .ids = -2, .y = (int)op->n_in, .epilogue = 1, .scale = 1};
    if (op->op == INFER_OP_MATMUL || op->op == INFER_OP_MOE_MATMUL) {
        ocl_attrs(op, &attrs, sizeof attrs);
        m.scale = attrs.scale == 0 ? 1 : attrs.scale;
    }
    if (op->op == INFER_OP_MATMUL) {
        if (op->n_in > 2 && ocl_present(op, 2))
            m.bias = 2;
        return multiply(c, &m);
    }
    m.ids = 2;
    if (op->op != INFER_OP_LORA_EXPAND_ADD)
        return multiply(c, &m);
    /* y = base + t: base is the one step of an epilogue */
    const infer_epilogue add = {.kind = INFER_EPI_RESIDUAL, .operand = 3};
    infer_op_desc with = *op;
    with.n_epilogue = 1;
    with.epilogue = &add;
    with.epilogue_size = sizeof add;
    c->op = &with;
    infer_status s = multiply(c, &m);
    c->op = op;
    return s;
}

/* ---- Several products
 * ------------------------------------------------------------------------------------------------- */

void ocl_check_qkv(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    /* as one op from few rows on, so that the core joins the three; programs for many rows are three products then */
    a->level = dev->tune->mv_lanes > 1 ? INFER_LEVEL_NATIVE : INFER_LEVEL_COMPOSED;
    for (uint32_t i = 1; i <= 3; i++)
        if (!product_ok(dev, op, i, ocl_tensor_desc(op, 0)->format, a))
            return;
    invariance(dev, op, a);
}

infer_status ocl_run_qkv(ocl_call *c)
{
    infer_status s = INFER_OK;
    if (joins(c->dev, c->op, 1, 3))
        return multiply_joined(c, 3, 4, (int)c->op->n_in, NULL);
    for (int i = 0; i < 3 && !s; i++) {
        int bias = 4 + i;
        int biased = bias < (int)c->op->n_in && ocl_present(c->op, (uint32_t)bias);
        const product m = {
            .x = 0, .w = 1 + i, .bias = biased ? bias : -2, .ids = -2, .y = (int)c->op->n_in + i, .scale = 1};
        s = multiply(c, &m);
    }
    return s;
}

/* Rows of the hidden width, in scratch: gate, then up. */
static uint64_t hidden_bytes(const infer_op_desc *op)
{
    uint64_t bytes = (uint64_t)ocl_tensor_desc(op, 0)->shape[0] * (uint64_t)ocl_tensor_desc(op, 1)->shape[0] * 4;
    return (bytes + OCL_BIND_ALIGN - 1) / OCL_BIND_ALIGN * OCL_BIND_ALIGN;
}

void ocl_check_gated_mlp(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    const ocl_program *program;
    a->level = INFER_LEVEL_COMPOSED;
    for (uint32_t i = 1; i <= 3; i++)
        if (!product_ok(dev, op, i, i == 3 ? INFER_FMT_F32 : ocl_tensor_desc(op, 0)->format, a))
            return;
    if (ocl_program_ops(dev, &program)) {
        ocl_no(a, INFER_WHY_OP, 0);
        return;
    }
    a->scratch_bytes = 2 * hidden_bytes(op);
    a->n_epilogue = epilogue_prefix(op);
    invariance(dev, op, a);
}

infer_status ocl_run_gated_mlp(ocl_call *c)
{
    const infer_op_desc *op = c->op;
    const ocl_program *program;
    int32_t width = (int32_t)ocl_tensor_desc(op, 1)->shape[0];
    ocl_tensor gate = {
        .off = c->scratch_off, .s0 = (int64_t)width * 4, .n1 = 1, .n2 = 1, .width = width, .fmt = INFER_FMT_F32};
    ocl_tensor up = gate;
    infer_attrs_act act;
    ocl_launch l;
    up.off += hidden_bytes(op);
    const product first = {.x = 0, .w = 1, .bias = -2, .ids = -2, .y = -3, .yt = gate, .scale = 1};
    const product second = {.x = 0, .w = 2, .bias = -2, .ids = -2, .y = -3, .yt = up, .scale = 1};
    const product last = {
        .x = -3, .w = 3, .bias = -2, .ids = -2, .y = (int)op->n_in, .xt = gate, .epilogue = 1, .scale = 1};
    infer_status s = ocl_program_ops(c->dev, &program);
    if (s)
        return s;
    if (joins(c->dev, op, 1, 2)) {
        s = multiply_joined(c, 2, -2, -3, (const ocl_tensor[]){gate, up});
    } else {
        s = multiply(c, &first);
        if (!s)
            s = multiply(c, &second);
    }
    if (s)
        return s;
    ocl_attrs(op, &act, sizeof act);
    ocl_each p = {.a = gate,
                  .b = up,
                  .y = gate,
                  .rows = c->rows,
                  .op = OCL_EACH_GLU,
                  .per_row = 1,
                  .act = (int32_t)act.act,
                  .limit = act.limit};
    ocl_launch_init(&l, c, program, "each", (const int[]){-2, -2, -2, -1}, 4, &p, sizeof p);
    l.mem[0] = l.mem[1] = l.mem[2] = c->scratch;
    s = ocl_emit_each(c, &l, width, c->rows.cap);
    return s ? s : multiply(c, &last);
}
