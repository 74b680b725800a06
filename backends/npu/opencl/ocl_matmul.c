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

/* Of those, the ones that lanes read by eights (kernels/eights.cl). */
static const uint8_t by_eights[INFER_FMT_COUNT] = {
    [INFER_FMT_F32] = 1,  [INFER_FMT_F16] = 1,  [INFER_FMT_BF16] = 1, [INFER_FMT_F8_E4M3] = 1, [INFER_FMT_Q4_0] = 1,
    [INFER_FMT_Q4_1] = 1, [INFER_FMT_Q8_0] = 1, [INFER_FMT_Q4_K] = 1, [INFER_FMT_Q6_K] = 1,
};

/* Which kernels a program of products has in lanes. */
static const char *const makes_one = "MV", *const makes_several = "MVS", *const makes_gated = "MVG";

/* wide: rows of x, and of a plain weight, begin at multiples of 16 bytes. */
static infer_status program_of(infer_device *dev, const infer_tensor_desc *t, infer_format x, const char *makes,
                               int wide, const ocl_program **out)
{
    char options[160];
    const infer_format w = t->format;
    const size_t cap = sizeof options;
    size_t n = (size_t)snprintf(options, cap, "-DUNPACK=unpack_%s -DXF=%u", unpack_of[w], x);
    if (launch_format_block(w) == 1)
        n += (size_t)snprintf(options + n, cap - n, " -DPLAIN=%u", w);
    if (dev->tune->mv_lanes > 1)
        n += (size_t)snprintf(options + n, cap - n, " -DMAKES_%s -DWIDE=%d", makes, wide);
    if (t->layout == OCL_LAYOUT_PLANES)
        snprintf(options + n, cap - n, " -DPLANES -DEIGHT=planes_%s -DEIGHTS=%d", unpack_of[w],
                 w == INFER_FMT_Q8_0 ? 2 : 1);
    else if (by_eights[w] && dev->tune->mv_lanes > 1)
        snprintf(options + n, cap - n, " -DEIGHT=eight_%s", unpack_of[w]);
    return ocl_program_get(dev, OCL_SOURCE_MATMUL, options, out);
}

/* Whether a product of these operands is possible; builds its program, as rows that lie one behind the other want it. 0
 * with the answer turned to NO. */
static int product_ok(infer_device *dev, const infer_op_desc *op, uint32_t weight, infer_format x, const char *makes,
                      infer_op_answer *a)
{
    const infer_tensor_desc *t = launch_tensor_desc(op, weight);
    const ocl_program *program;
    if (t->format >= INFER_FMT_COUNT || !unpack_of[t->format]) {
        launch_no(a, INFER_WHY_FORMAT, weight);
        return 0;
    }
    const uint64_t k = (uint64_t)t->shape[t->rank - 1];
    const int wide = !((launch_format_bytes(x, k) | launch_format_bytes(t->format, k)) % 16);
    if (program_of(dev, t, x, makes, wide, &program)) {
        launch_no(a, INFER_WHY_OP, 0);
        return 0;
    }
    return 1;
}

/* ---- The norm of a row of x, by each work-group for itself ---- */

/* Elements of local memory: the row, and the sums of the norm's lanes from a multiple of 8 on (norm_x in kernels). */
static uint64_t norm_room(int64_t k, uint32_t lanes)
{
    return ((uint64_t)k + 7) / 8 * 8 + lanes;
}

/* The norm that the products of x make, if any. */
static const ocl_launch *norm_of(const launch_call *c)
{
    return ((const ocl_sink *)c->to)->held;
}

/* Turns a launch of one row, whose parameters begin with the place of x, into one of the kernel that makes x. */
static void take_norm(ocl_launch *l, const ocl_launch *norm, const char *name, int32_t k)
{
    lp_norm n;
    memcpy(&n, norm->params, sizeof n);
    const uint64_t places = n.x.off | (uint64_t)n.x.s0 | n.w.off;
    const lp_norm_of more = {.w_off = n.w.off,
                             .w_fmt = n.w.fmt,
                             .lanes = (int32_t)norm->program->lanes,
                             .wide =
                                 n.x.fmt == INFER_FMT_F32 && n.w.fmt == INFER_FMT_F32 && !(places % 16) && k % 4 == 0,
                             .eps = n.eps,
                             .offset = n.offset};
    l->name = name;
    l->mem[0] = norm->mem[0];
    l->mem[l->n_mem++] = norm->mem[1];
    memcpy(l->params, &n.x, sizeof n.x);
    ocl_launch_block(l, &more, sizeof more);
    l->n_local = 1;
    l->local[0] = norm_room(k, norm->program->lanes) * sizeof(float);
}

/* ---- One product ---- */

static int uses_tiles(const infer_device *dev, const lp_mm *p)
{
    return dev->tune->tile && !p->ids.fmt && p->choices == 1 && p->rows.cap >= dev->tile_from;
}

/* Emits a launch over n columns of so many rows. one: each by itself. Groups that make a norm take several sets of
 * columns in turns, as many each, where there are more than the device runs at a time. */
static infer_status emit_columns(launch_call *c, ocl_launch *l, size_t n, size_t rows, int one)
{
    const ocl_tune *t = c->dev->tune;
    size_t columns = t->mv_columns * t->mv_serial, each = one ? 1 : t->mv_rows;
    size_t groups = (n + columns - 1) / columns, most = (size_t)c->dev->units * t->mv_groups;
    size_t turns = l->n_local ? (groups + most - 1) / most : 1;
    groups = (groups + turns - 1) / turns;
    return ocl_emit(c, l, groups, (rows + each - 1) / each, 1, t->mv_lanes * t->mv_columns, 1);
}

/* norm: the launch of what makes x, NULL: x is there. */
static infer_status multiply(launch_call *c, const launch_product *m, const ocl_launch *norm)
{
    const ocl_tune *t = c->dev->tune;
    const ocl_program *program;
    ocl_launch l;
    lp_mm p;
    int which[10];
    launch_fill_product(c, m, &p, which);
    infer_status s = program_of(c->dev, launch_tensor_desc(c->op, (uint32_t)m->w), (infer_format)p.x.fmt, makes_one,
                                p.wide, &program);
    if (s)
        return s;
    int tiles = uses_tiles(c->dev, &p), one = m->ids >= 0 || p.rows.cap == 1;
    ocl_launch_init(&l, c, program, tiles ? "tile" : one ? "mv1" : "mvr", which, 10, &p, sizeof p);
    size_t rows = (size_t)p.rows.cap * (size_t)p.choices, n = (size_t)p.n;
    if (tiles)
        return ocl_emit(c, &l, (n + t->tile - 1) / t->tile, (rows + t->tile - 1) / t->tile, 1, 256, 1);
    if (norm)
        take_norm(&l, norm, "mv1_norm", p.k);
    return emit_columns(c, &l, n, rows, one);
}

/* Whether the n weights from operand 1 on go in one launch: of one format and layout, met by few rows. */
static int joins(const infer_device *dev, const infer_op_desc *op, uint32_t n)
{
    for (uint32_t i = 2; i <= n; i++)
        if (launch_tensor_desc(op, i)->format != launch_tensor_desc(op, 1)->format ||
            launch_tensor_desc(op, i)->layout != launch_tensor_desc(op, 1)->layout)
            return 0;
    return dev->tune->mv_lanes > 1 && !(dev->tune->tile && launch_tensor_desc(op, 0)->shape[0] >= dev->tile_from);
}

static infer_status multiply_joined(launch_call *c, uint32_t n, int bias)
{
    const ocl_program *program;
    ocl_launch l;
    lp_mms p;
    int which[11];
    launch_fill_products(c, n, bias, (int)c->op->n_in, NULL, &p, which);
    infer_status s =
        program_of(c->dev, launch_tensor_desc(c->op, 1), (infer_format)p.x.fmt, makes_several, p.wide, &program);
    if (s)
        return s;
    ocl_launch_init(&l, c, program, p.rows.cap == 1 ? "mvs1" : "mvsr", which, 11, &p, sizeof p);
    if (norm_of(c))
        take_norm(&l, norm_of(c), "mvs1_norm", p.k);
    return emit_columns(c, &l, (size_t)p.n[0] + (size_t)p.n[1] + (size_t)p.n[2], (size_t)p.rows.cap, p.rows.cap == 1);
}

/* Gate and up, and to scratch what the gate makes of it. */
static infer_status multiply_gated(launch_call *c, const lp_tensor *hidden, const infer_attrs_act *act)
{
    const ocl_program *program;
    ocl_launch l;
    lp_mms p;
    int which[11];
    launch_fill_products(c, 2, -2, -3, (const lp_tensor[]){*hidden, *hidden}, &p, which);
    p.kind = LP_MMS_GLU;
    p.act = (int32_t)act->act;
    p.limit = act->limit;
    infer_status s =
        program_of(c->dev, launch_tensor_desc(c->op, 1), (infer_format)p.x.fmt, makes_gated, p.wide, &program);
    if (s)
        return s;
    ocl_launch_init(&l, c, program, p.rows.cap == 1 ? "mvg1" : "mvgr", (const int[]){0, 1, 2, -3, -1}, 5, &p, sizeof p);
    if (norm_of(c))
        take_norm(&l, norm_of(c), "mvg1_norm", p.k);
    return emit_columns(c, &l, 2 * (size_t)p.n[0], (size_t)p.rows.cap, p.rows.cap == 1);
}

int ocl_makes_norm(infer_device *dev, const infer_op_desc *norm, const infer_op_desc *product)
{
    const infer_tensor_desc *x = launch_tensor_desc(norm, 0), *y = launch_tensor_desc(norm, norm->n_in),
                            *in = launch_tensor_desc(product, 0);
    const ocl_tune *t = dev->tune;
    const ocl_program *rows;
    int one = product->op == INFER_OP_MATMUL || (product->op == INFER_OP_QKV && joins(dev, product, 3)) ||
              (product->op == INFER_OP_GATED_MLP && joins(dev, product, 2));
    if (!one || t->mv_lanes == 1 || x->rank != 2 || x->shape[0] != 1 || in->rank != 2 || in->shape[0] != 1 ||
        in->shape[1] != x->shape[1] || y->format != INFER_FMT_F32 || in->format != INFER_FMT_F32 ||
        ocl_program_rows(dev, &rows))
        return 0;
    uint64_t red = (uint64_t)t->mv_columns * t->mv_serial * t->mv_lanes;
    return (norm_room(x->shape[1], rows->lanes) + red) * sizeof(float) <= dev->local_bytes;
}

/* Tiles add along K in another order than the kernels for few rows. */
static void invariance(const infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    if (a->level && dev->tune->tile && launch_tensor_desc(op, 0)->shape[0] >= dev->tile_from)
        a->row_invariant = 0;
}

void ocl_check_matmul(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    if (!product_ok(dev, op, 1, launch_tensor_desc(op, 0)->format, makes_one, a))
        return;
    int lora = op->op == INFER_OP_LORA_EXPAND_ADD;
    a->n_epilogue = lora ? 0 : launch_epilogue_prefix(op);
    if (op->op == INFER_OP_MATMUL)
        invariance(dev, op, a);
}

infer_status ocl_run_matmul(launch_call *c)
{
    launch_product m;
    launch_product_of(c, &m);
    return multiply(c, &m, norm_of(c));
}

/* ---- Several products
 * ------------------------------------------------------------------------------------------------- */

void ocl_check_qkv(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    /* as one op from few rows on, so that the core joins the three; programs for many rows are three products then */
    a->level = dev->tune->mv_lanes > 1 ? INFER_LEVEL_NATIVE : INFER_LEVEL_COMPOSED;
    for (uint32_t i = 1; i <= 3; i++)
        if (!product_ok(dev, op, i, launch_tensor_desc(op, 0)->format, joins(dev, op, 3) ? makes_several : makes_one,
                        a))
            return;
    invariance(dev, op, a);
}

int ocl_joins_qkv(const infer_device *dev, const infer_op_desc *qkv)
{
    return joins(dev, qkv, 3);
}

infer_status ocl_run_qkv(launch_call *c)
{
    infer_status s = INFER_OK;
    if (joins(c->dev, c->op, 3))
        return multiply_joined(c, 3, 4);
    for (int i = 0; i < 3 && !s; i++) {
        int bias = 4 + i;
        int biased = bias < (int)c->op->n_in && launch_present(c->op, (uint32_t)bias);
        const launch_product m = {
            .x = 0, .w = 1 + i, .bias = biased ? bias : -2, .ids = -2, .y = (int)c->op->n_in + i, .scale = 1};
        s = multiply(c, &m, NULL);
    }
    return s;
}

/* Rows of the hidden width, in scratch: gate, then up. */
static uint64_t hidden_bytes(const infer_op_desc *op)
{
    uint64_t bytes = (uint64_t)launch_tensor_desc(op, 0)->shape[0] * (uint64_t)launch_tensor_desc(op, 1)->shape[0] * 4;
    return (bytes + OCL_BIND_ALIGN - 1) / OCL_BIND_ALIGN * OCL_BIND_ALIGN;
}

void ocl_check_gated_mlp(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    const ocl_program *program;
    /* said to be one op, as QKV is, so that the core joins it: gate and up are one launch */
    a->level = dev->tune->mv_lanes > 1 ? INFER_LEVEL_NATIVE : INFER_LEVEL_COMPOSED;
    for (uint32_t i = 1; i <= 3; i++)
        if (!product_ok(dev, op, i, i == 3 ? INFER_FMT_F32 : launch_tensor_desc(op, 0)->format,
                        i < 3 && joins(dev, op, 2) ? makes_gated : makes_one, a))
            return;
    if (ocl_program_ops(dev, &program)) {
        launch_no(a, INFER_WHY_OP, 0);
        return;
    }
    a->scratch_bytes = 2 * hidden_bytes(op);
    a->n_epilogue = launch_epilogue_prefix(op);
    invariance(dev, op, a);
}

infer_status ocl_run_gated_mlp(launch_call *c)
{
    const infer_op_desc *op = c->op;
    const ocl_program *program;
    int32_t width = (int32_t)launch_tensor_desc(op, 1)->shape[0];
    lp_tensor gate = {
        .off = c->scratch_off, .s0 = (int64_t)width * 4, .n1 = 1, .n2 = 1, .width = width, .fmt = INFER_FMT_F32};
    lp_tensor up = gate;
    infer_attrs_act act;
    up.off += hidden_bytes(op);
    const launch_product first = {.x = 0, .w = 1, .bias = -2, .ids = -2, .y = -3, .yt = gate, .scale = 1};
    const launch_product second = {.x = 0, .w = 2, .bias = -2, .ids = -2, .y = -3, .yt = up, .scale = 1};
    const launch_product last = {
        .x = -3, .w = 3, .bias = -2, .ids = -2, .y = (int)op->n_in, .xt = gate, .epilogue = 1, .scale = 1};
    infer_status s = ocl_program_ops(c->dev, &program);
    if (s)
        return s;
    launch_attrs(op, &act, sizeof act);
    if (joins(c->dev, op, 2)) {
        s = multiply_gated(c, &gate, &act);
        return s ? s : multiply(c, &last, NULL);
    }
    s = multiply(c, &first, NULL);
    if (!s)
        s = multiply(c, &second, NULL);
    if (s)
        return s;
    lp_each p = {.a = gate,
                 .b = up,
                 .y = gate,
                 .rows = c->rows,
                 .op = LP_EACH_GLU,
                 .per_row = 1,
                 .act = (int32_t)act.act,
                 .limit = act.limit};
    s = launch_emit(c, LAUNCH_K_each, (const int[]){-3, -3, -3, -1}, 4, &p, sizeof p, width, c->rows.cap, 1);
    return s ? s : multiply(c, &last, NULL);
}
