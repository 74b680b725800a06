/* Cases of the ops on rows: copies, element-wise ops, norms, matrix products, experts, adapters. Sizes are odd on
 * purpose: 1, 3, 7, 17, 33, 65, 100. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "ops/cases_make.h"
#include "quant/quant.h"

#define F32  INFER_FMT_F32
#define F16  INFER_FMT_F16
#define BF16 INFER_FMT_BF16

#define WHY_ONCE  "one or two operations in float"
#define WHY_SUM   "a sum in float of at most 1000 terms"
#define WHY_EXP   "exponentials in float, some units in the last place each"
#define WHY_EXACT "moves values only"

static const char *name(infer_format f)
{
    const infer_format_info *i = infer_format_get(f);
    return i ? i->name : "none";
}

static uint32_t pad_of(const case_par *p)
{
    return p->flags & CASE_PAD ? 5 : 0;
}

/* A rank 2 operand [n][d], or [n][h][d] where the case has h. */
static uint32_t rows_in(case_maker *m, const case_par *p, infer_format f)
{
    uint32_t i = p->h ? infer_case_in(m, f, pad_of(p), 3, p->n, p->h, p->d, 1)
                      : infer_case_in(m, f, pad_of(p), 2, p->n, p->d, 1, 1);
    infer_case_fill(m, i, 1);
    return i;
}

static void rows_out(case_maker *m, const case_par *p, infer_format f)
{
    if (p->h)
        infer_case_out(m, f, pad_of(p), 3, p->n, p->h, p->d, 1);
    else
        infer_case_out(m, f, pad_of(p), 2, p->n, p->d, 1, 1);
}

static void label_rows(case_maker *m, const case_par *p)
{
    infer_case_label(m, " n%" PRId64, p->n);
    if (p->h)
        infer_case_label(m, " h%" PRId64, p->h);
    infer_case_label(m, " d%" PRId64 " %s %s%s", p->d, name(p->f0), name(p->f1), p->flags & CASE_PAD ? " strided" : "");
}

/* ---- Copies ----------------------------------------------------------------------------------------------- */

/* f0 -> f1 */
static void gen_copy(case_maker *m, const case_par *p)
{
    const infer_format_info *to = infer_format_get(p->f1);
    rows_in(m, p, p->f0);
    rows_out(m, p, p->f1);
    label_rows(m, p);
    infer_case_tol_set(m, 0, "one rounding to the output's format");
    if (p->f0 == p->f1 || p->f1 == F32)
        m->c->tol = m->c->tol_i8 = (infer_case_tol){0, 0, 0, WHY_EXACT};
    else if (to->block_elems > 1) /* the step of a code is at most 2 / 7 of the RMS of normal numbers in 4 bits */
        m->c->tol = m->c->tol_i8 = (infer_case_tol){
            0, 0.35, 0.02, "a code may fall to either side of a tie, or a scale differ in its last bit"};
}

static const case_par copy_list[] = {
    {.n = 1, .d = 1, .f0 = F32, .f1 = F32},
    {.n = 7, .d = 33, .f0 = F32, .f1 = F16, .flags = CASE_PAD},
    {.n = 3, .h = 3, .d = 17, .f0 = F16, .f1 = F32, .flags = CASE_DYN},
    {.n = 17, .d = 65, .f0 = F32, .f1 = BF16, .flags = CASE_DYN | CASE_PAD},
    {.n = 3, .d = 100, .f0 = BF16, .f1 = F16},
    {.n = 3, .d = 64, .f0 = F32, .f1 = INFER_FMT_Q8_0},
    {.n = 3, .d = 64, .f0 = F32, .f1 = INFER_FMT_Q4_0, .flags = CASE_DYN},
};

/* Every format with a conversion, dequantised. */
static uint32_t weight_formats(infer_format *list)
{
    uint32_t n = 0;
    for (infer_format f = 1; f < INFER_FMT_COUNT; f++) {
        const infer_format_info *i = infer_format_get(f);
        if (!i || !i->unpack || !i->pack || !(i->is_float || i->block_elems >= 32))
            continue;
        if (list)
            list[n] = f;
        n++;
    }
    return n;
}

static uint32_t count_formats(void)
{
    return weight_formats(NULL);
}

static infer_format nth_format(uint32_t i)
{
    infer_format list[INFER_FMT_COUNT];
    weight_formats(list);
    return list[i];
}

static void copy_format(uint32_t i, case_par *p)
{
    *p = (case_par){.n = 3, .d = 512, .f0 = nth_format(i), .f1 = F32};
}

/* table [k][d] of f0, y of f1. CASE_EDGE: some ids out of range. */
static void gen_gather(case_maker *m, const case_par *p)
{
    infer_case_weight(m, p->f0, NULL, 2, p->k, p->d, 1);
    uint32_t ids = infer_case_ints(m, p->n, 0, (int32_t)p->k - 1);
    if (p->flags & CASE_EDGE && m->status == INFER_OK) {
        const int32_t bad[] = {-1, (int32_t)p->k, INT32_MAX, INT32_MIN};
        for (int i = 0; i < 4 && i < p->n; i++)
            infer_case_i32(m, ids)[p->n - 1 - i] = bad[i];
    }
    rows_out(m, p, p->f1);
    label_rows(m, p);
    infer_case_tol_set(m, 0, "one rounding to the output's format");
    if (p->f1 == F32)
        m->c->tol = m->c->tol_i8 = (infer_case_tol){0, 0, 0, WHY_EXACT};
}

static const case_par gather_list[] = {
    {.n = 1, .k = 1, .d = 1, .f0 = F32, .f1 = F32},
    {.n = 17, .k = 7, .d = 33, .f0 = F32, .f1 = F32, .flags = CASE_EDGE},
    {.n = 7, .k = 100, .d = 65, .f0 = BF16, .f1 = BF16, .flags = CASE_DYN},
    {.n = 7, .k = 33, .d = 100, .f0 = F16, .f1 = F32, .flags = CASE_PAD},
    {.n = 33, .k = 17, .d = 64, .f0 = INFER_FMT_Q8_0, .f1 = F16, .flags = CASE_DYN | CASE_EDGE},
};

static void gather_format(uint32_t i, case_par *p)
{
    *p = (case_par){.n = 5, .k = 3, .d = 256, .f0 = nth_format(i), .f1 = F32};
}

/* a [n][d] of f0, b [n][e] of f1, y of f2 */
static void gen_concat(case_maker *m, const case_par *p)
{
    infer_case_fill(m, infer_case_in(m, p->f0, pad_of(p), 2, p->n, p->d, 1, 1), 1);
    infer_case_fill(m, infer_case_in(m, p->f1, pad_of(p), 2, p->n, p->e, 1, 1), 1);
    infer_case_out(m, p->f2, pad_of(p), 2, p->n, p->d + p->e, 1, 1);
    label_rows(m, p);
    infer_case_tol_set(m, 0, "one rounding to the output's format");
}

static const case_par concat_list[] = {
    {.n = 1, .d = 1, .e = 1, .f0 = F32, .f1 = F32, .f2 = F32},
    {.n = 7, .d = 33, .e = 17, .f0 = F32, .f1 = F32, .f2 = F32, .flags = CASE_DYN},
    {.n = 3, .d = 65, .e = 100, .f0 = F16, .f1 = F32, .f2 = F32, .flags = CASE_PAD},
    {.n = 3, .d = 64, .e = 64, .f0 = BF16, .f1 = BF16, .f2 = BF16},
};

static void gen_ids_select(case_maker *m, const case_par *p)
{
    infer_case_ints(m, p->n, 0, 1000);
    infer_case_ints(m, p->n, -2, (int32_t)p->k);
    infer_case_ints(m, p->k, 2000, 3000);
    infer_case_out(m, INFER_FMT_I32, 0, 1, p->n, 1, 1, 1);
    infer_case_label(m, " n%" PRId64 " m%" PRId64, p->n, p->k);
}

static const case_par ids_select_list[] = {
    {.n = 1, .k = 1},
    {.n = 33, .k = 7},
    {.n = 100, .k = 65, .flags = CASE_DYN},
};

/* a [n][d] of f0, b [k][d] of f1, y of f2 */
static void gen_rows_select(case_maker *m, const case_par *p)
{
    infer_case_fill(m, infer_case_in(m, p->f0, pad_of(p), 2, p->n, p->d, 1, 1), 1);
    infer_case_ints(m, p->n, -2, (int32_t)p->k);
    infer_case_fill(m, infer_case_in(m, p->f1, pad_of(p), 2, p->k, p->d, 1, 1), 1);
    infer_case_out(m, p->f2, pad_of(p), 2, p->n, p->d, 1, 1);
    label_rows(m, p);
    infer_case_tol_set(m, 0, "one rounding to the output's format");
}

static const case_par rows_select_list[] = {
    {.n = 1, .d = 1, .k = 1, .f0 = F32, .f1 = F32, .f2 = F32},
    {.n = 33, .d = 17, .k = 7, .f0 = F32, .f1 = F16, .f2 = F32, .flags = CASE_DYN},
    {.n = 7, .d = 65, .k = 3, .f0 = BF16, .f1 = F32, .f2 = BF16, .flags = CASE_PAD},
};

/* state [k][d] of f0, n pairs. CASE_EDGE: some slots out of range. */
static void gen_state_copy(case_maker *m, const case_par *p)
{
    int32_t lo = p->flags & CASE_EDGE ? -1 : 0, hi = (int32_t)p->k - (p->flags & CASE_EDGE ? 0 : 1);
    infer_case_fill(m, infer_case_in(m, p->f0, pad_of(p), 2, p->k, p->d, 1, 1), 1);
    infer_case_ints(m, p->n, lo, hi);
    infer_case_ints(m, p->n, lo, hi);
    infer_case_out_same(m, 0);
    label_rows(m, p);
    m->c->tol = m->c->tol_i8 = (infer_case_tol){0, 0, 0, WHY_EXACT};
}

static const case_par state_copy_list[] = {
    {.n = 1, .k = 3, .d = 1, .f0 = F32},
    {.n = 7, .k = 17, .d = 33, .f0 = F32, .flags = CASE_EDGE},
    {.n = 17, .k = 7, .d = 100, .f0 = F16, .flags = CASE_DYN | CASE_PAD},
};

/* ---- Element-wise ----------------------------------------------------------------------------------------- */

#define CASE_ROW (CASE_LAST << 0) /* the second operand is one row for all */

static void gen_binary(case_maker *m, const case_par *p)
{
    rows_in(m, p, p->f0);
    if (p->flags & CASE_ROW)
        infer_case_fill(m, infer_case_in(m, p->f1, 0, 1, p->d, 1, 1, 1), 1);
    else
        rows_in(m, p, p->f1);
    rows_out(m, p, p->f2);
    label_rows(m, p);
    infer_case_tol_set(m, 0, WHY_ONCE);
}

static const case_par binary_list[] = {
    {.n = 1, .d = 1, .f0 = F32, .f1 = F32, .f2 = F32},
    {.n = 7, .d = 33, .f0 = F32, .f1 = F32, .f2 = F32, .flags = CASE_DYN | CASE_PAD},
    {.n = 3, .h = 7, .d = 17, .f0 = F32, .f1 = F32, .f2 = F32},
    {.n = 17, .d = 100, .f0 = F32, .f1 = F32, .f2 = F32, .flags = CASE_ROW | CASE_DYN},
    {.n = 7, .d = 65, .f0 = F16, .f1 = F16, .f2 = F16},
    {.n = 7, .d = 64, .f0 = BF16, .f1 = F32, .f2 = BF16},
    {.n = 3, .h = 3, .d = 33, .f0 = F16, .f1 = F32, .f2 = F32, .flags = CASE_ROW},
};

static void gen_scale(case_maker *m, const case_par *p)
{
    infer_attrs_scale a = {.struct_size = sizeof a, .scale = 1.75f, .bias = p->mode ? -0.375f : 0};
    rows_in(m, p, p->f0);
    rows_out(m, p, p->f1);
    infer_case_attrs(m, &a, sizeof a);
    label_rows(m, p);
    infer_case_tol_set(m, 0x1p-22, WHY_ONCE);
}

static const case_par scale_list[] = {
    {.n = 1, .d = 1, .f0 = F32, .f1 = F32},
    {.n = 7, .d = 33, .f0 = F32, .f1 = F32, .mode = 1, .flags = CASE_DYN | CASE_PAD},
    {.n = 3, .h = 3, .d = 65, .f0 = F16, .f1 = F16, .mode = 1},
    {.n = 17, .d = 100, .f0 = BF16, .f1 = F32},
};

/* mode: activation; k: tenths of the limit */
static void gen_act(case_maker *m, const case_par *p)
{
    infer_attrs_act a = {.struct_size = sizeof a, .act = p->mode, .limit = (float)p->k / 10};
    rows_in(m, p, p->f0);
    if (m->c->desc.op == INFER_OP_GLU)
        rows_in(m, p, p->f1);
    rows_out(m, p, p->f2);
    infer_case_attrs(m, &a, sizeof a);
    label_rows(m, p);
    infer_case_label(m, " act %u", p->mode);
    infer_case_tol_set(m, 1e-5, WHY_EXP ", or 1 + erf near -1");
}

static const case_par act_list[] = {
    {.n = 1, .d = 1, .f0 = F32, .f1 = F32, .f2 = F32, .mode = INFER_ACT_SILU},
    {.n = 7, .d = 33, .f0 = F32, .f1 = F32, .f2 = F32, .mode = INFER_ACT_SILU, .flags = CASE_DYN | CASE_PAD},
    {.n = 3, .d = 100, .f0 = F32, .f1 = F32, .f2 = F32, .mode = INFER_ACT_GELU},
    {.n = 3, .d = 65, .f0 = F32, .f1 = F32, .f2 = F32, .mode = INFER_ACT_GELU_TANH},
    {.n = 17, .d = 17, .f0 = F32, .f1 = F32, .f2 = F32, .mode = INFER_ACT_RELU},
    {.n = 7, .d = 33, .f0 = F32, .f1 = F32, .f2 = F32, .mode = INFER_ACT_SIGMOID},
    {.n = 7, .d = 33, .f0 = F32, .f1 = F32, .f2 = F32, .mode = INFER_ACT_SILU, .k = 5},
    {.n = 3, .h = 3, .d = 64, .f0 = F16, .f1 = F16, .f2 = F16, .mode = INFER_ACT_SILU},
    {.n = 3, .d = 64, .f0 = BF16, .f1 = BF16, .f2 = BF16, .mode = INFER_ACT_GELU_TANH, .flags = CASE_DYN},
};

/* mode 1: with a scale; 2: logits that overflow an exponential; 3: a row with -INFINITY */
static void gen_softmax(case_maker *m, const case_par *p)
{
    infer_attrs_scale a = {.struct_size = sizeof a, .scale = 0.125f};
    uint32_t x = rows_in(m, p, p->f0);
    if (m->status == INFER_OK && p->mode == 2)
        infer_case_fill(m, x, 200);
    if (m->status == INFER_OK && p->mode == 3)
        ((float *)(void *)m->c->data[x])[0] = -INFINITY;
    rows_out(m, p, p->f1);
    if (p->mode == 1)
        infer_case_attrs(m, &a, sizeof a);
    label_rows(m, p);
    infer_case_tol_set(m, 1e-5, WHY_EXP);
    if (p->mode == 2) /* the exponent of a small share has an error of up to 2^-24 of its size */
        m->c->tol.rel = m->c->tol_i8.rel = 1e-4;
}

static const case_par softmax_list[] = {
    {.n = 1, .d = 1, .f0 = F32, .f1 = F32},
    {.n = 7, .d = 33, .f0 = F32, .f1 = F32, .flags = CASE_DYN | CASE_PAD},
    {.n = 3, .h = 3, .d = 65, .f0 = F32, .f1 = F32, .mode = 1},
    {.n = 3, .d = 1000, .f0 = F32, .f1 = F32, .mode = 2},
    {.n = 3, .d = 7, .f0 = F32, .f1 = F32, .mode = 3},
    {.n = 7, .d = 100, .f0 = F16, .f1 = F16},
    {.n = 3, .d = 17, .f0 = BF16, .f1 = F32},
};

/* mode 1: ties and NaN */
static void gen_argmax(case_maker *m, const case_par *p)
{
    uint32_t x = rows_in(m, p, p->f0);
    if (m->status == INFER_OK && p->mode) {
        float *v = (float *)(void *)m->c->data[x];
        for (int64_t i = 0; i < p->n; i++) {
            float *r = v + i * p->d;
            r[infer_case_int(m, 0, (int32_t)p->d - 1)] = 100;
            r[infer_case_int(m, 0, (int32_t)p->d - 1)] = 100;
            r[infer_case_int(m, 0, (int32_t)p->d - 1)] = NAN;
        }
    }
    infer_case_out(m, INFER_FMT_I32, 0, 1, p->n, 1, 1, 1);
    label_rows(m, p);
}

static const case_par argmax_list[] = {
    {.n = 1, .d = 1, .f0 = F32},
    {.n = 7, .d = 1000, .f0 = F32, .flags = CASE_DYN},
    {.n = 33, .d = 65, .f0 = F32, .mode = 1},
    {.n = 3, .d = 33, .f0 = F16, .flags = CASE_PAD},
    {.n = 3, .d = 100, .f0 = BF16},
};

/* ---- Norms ------------------------------------------------------------------------------------------------ */

/* x of f0, weights of f1, y of f2; mode 1: weight offset 1 */
static void gen_norm(case_maker *m, const case_par *p)
{
    infer_attrs_norm a = {.struct_size = sizeof a, .eps = 1e-5f, .weight_offset = p->mode ? 1.0f : 0};
    int layer = m->c->desc.op == INFER_OP_LAYER_NORM, both = m->c->desc.op == INFER_OP_ADD_RMS_NORM;
    rows_in(m, p, p->f0);
    if (both)
        rows_in(m, p, p->f0);
    for (int i = 0; i < 1 + layer; i++) {
        if (p->flags & CASE_ABSENT)
            infer_case_absent(m, 0);
        else
            infer_case_fill(m, infer_case_in(m, p->f1, 0, 1, p->d, 1, 1, 1), 1);
    }
    rows_out(m, p, p->f2);
    if (both)
        rows_out(m, p, p->f2);
    infer_case_attrs(m, &a, sizeof a);
    label_rows(m, p);
    infer_case_label(m, "%s%s", p->mode ? " offset 1" : "", p->flags & CASE_ABSENT ? " no weights" : "");
    infer_case_tol_set(m, layer ? 1e-5 : 4e-6, WHY_SUM);
}

static const case_par norm_list[] = {
    {.n = 1, .d = 1, .f0 = F32, .f1 = F32, .f2 = F32},
    {.n = 7, .d = 33, .f0 = F32, .f1 = F32, .f2 = F32, .flags = CASE_DYN | CASE_PAD},
    {.n = 3, .d = 576, .f0 = F32, .f1 = F32, .f2 = F32, .mode = 1},
    {.n = 3, .h = 7, .d = 65, .f0 = F32, .f1 = F32, .f2 = F32, .flags = CASE_DYN},
    {.n = 17, .d = 100, .f0 = F32, .f1 = F32, .f2 = F32, .flags = CASE_ABSENT},
    {.n = 3, .d = 64, .f0 = F16, .f1 = F16, .f2 = F16},
    {.n = 3, .d = 128, .f0 = BF16, .f1 = F32, .f2 = BF16},
};

static const case_par add_norm_list[] = {
    {.n = 1, .d = 1, .f0 = F32, .f1 = F32, .f2 = F32},
    {.n = 7, .d = 33, .f0 = F32, .f1 = F32, .f2 = F32, .flags = CASE_DYN | CASE_PAD},
    {.n = 3, .d = 576, .f0 = F32, .f1 = F32, .f2 = F32, .mode = 1},
    {.n = 3, .d = 64, .f0 = F16, .f1 = F16, .f2 = F16},
    {.n = 3, .d = 128, .f0 = BF16, .f1 = F32, .f2 = BF16},
};

/* ---- Matrix products -------------------------------------------------------------------------------------- */

/* Ways to keep scales and zero points in planes; index 0 is none. */
static const infer_quant schemes[] = {
    {0},
    {INFER_FMT_F8_E4M3, INFER_FMT_F32, 0, 0, 0, 0},
    {INFER_FMT_F8_E4M3, INFER_FMT_F32, 0, 0, 1, 0},
    {INFER_FMT_F8_E4M3, INFER_FMT_F32, 0, 0, 128, 128},
    {INFER_FMT_I8, INFER_FMT_F32, 0, 0, 1, 0},
    {INFER_FMT_U4, INFER_FMT_F16, INFER_FMT_U4, 0, 1, 128},
    {INFER_FMT_U4, INFER_FMT_F16, 0, 8, 1, 128},
    {INFER_FMT_U4, INFER_FMT_BF16, 0, 8, 1, 64},
};
enum { N_SCHEMES = sizeof schemes / sizeof schemes[0] };

/* Bounds of a product: x may become 8-bit integers with a scale for each row. */
static void tol_product(case_maker *m, const infer_attrs_matmul *a, int stages)
{
    infer_case_tol_set(m, 1e-5, WHY_SUM " (the same products in another order)");
    if (a && a->act_format == F32)
        return;
    m->c->tol_i8.rel = 0;
    m->c->tol_i8.abs += 0.1 * stages;
    m->c->tol_i8.nrms += 0.02 * stages;
    m->c->tol_i8.why = "steps of absmax / 127 of a row are 0.009 RMS of normal numbers; twice that a product, one "
                       "element five times its RMS";
}

/* x [n][k] of f0, W [e][k] of f1 (mode: scheme), y of f2. h: which epilogue steps follow, d: act_format F32. */
static void gen_matmul(case_maker *m, const case_par *p)
{
    infer_attrs_matmul a = {.struct_size = sizeof a, .act_format = p->d ? F32 : 0, .scale = p->g ? 0.5f : 0};
    const infer_quant *q = p->mode ? &schemes[p->mode] : NULL;
    infer_op_desc *d = &m->c->desc;
    infer_case_fill(m, infer_case_in(m, p->f0, pad_of(p), 2, p->n, p->k, 1, 1), 1);
    infer_case_weight(m, q ? q->format : p->f1, q, 2, p->e, p->k, 1);
    if (p->flags & CASE_ABSENT)
        infer_case_absent(m, 0);
    else
        infer_case_fill(m, infer_case_in(m, F32, 0, 1, p->e, 1, 1, 1), 1);
    /* the steps in order; a case has the first h of them */
    const uint32_t kinds[] = {INFER_EPI_BIAS, INFER_EPI_ACT, INFER_EPI_MUL, INFER_EPI_RESIDUAL};
    for (int64_t i = 0; i < p->h && m->status == INFER_OK; i++) {
        infer_epilogue *e = &m->c->epilogue[d->n_epilogue++];
        *e = (infer_epilogue){.kind = kinds[i], .arg = INFER_ACT_SILU, .operand = d->n_in};
        if (e->kind == INFER_EPI_BIAS)
            infer_case_fill(m, infer_case_in(m, F32, 0, 1, p->e, 1, 1, 1), 1);
        else if (e->kind != INFER_EPI_ACT)
            infer_case_fill(m, infer_case_in(m, p->f2, 0, 2, p->n, p->e, 1, 1), 1);
    }
    infer_case_out(m, p->f2, pad_of(p), 2, p->n, p->e, 1, 1);
    if (p->g || p->d)
        infer_case_attrs(m, &a, sizeof a);
    infer_case_label(m, " n%" PRId64 " k%" PRId64 " N%" PRId64 " %s %s", p->n, p->k, p->e, name(p->f0),
                     name(q ? q->format : p->f1));
    if (q)
        infer_case_label(m, " scales %s %ux%u", name(q->scale_format), q->group_n, q->group_k);
    infer_case_label(m, "%s%s %s", p->d ? " act f32" : "", p->flags & CASE_ABSENT ? "" : " bias", name(p->f2));
    if (p->h)
        infer_case_label(m, " epilogue %" PRId64, p->h);
    tol_product(m, &a, 1);
}

#define NB CASE_ABSENT
static const case_par matmul_list[] = {
    {.n = 1, .k = 1, .e = 1, .f0 = F32, .f1 = F32, .f2 = F32},
    {.n = 1, .k = 576, .e = 33, .f0 = F32, .f1 = F32, .f2 = F32, .flags = NB},
    {.n = 7, .k = 33, .e = 17, .f0 = F32, .f1 = F32, .f2 = F32, .d = 1},
    {.n = 17, .k = 100, .e = 65, .f0 = F32, .f1 = F32, .f2 = F32, .flags = CASE_DYN | CASE_PAD},
    {.n = 33, .k = 65, .e = 7, .f0 = F32, .f1 = F16, .f2 = F32, .flags = NB, .g = 1},
    {.n = 3, .k = 64, .e = 100, .f0 = F16, .f1 = F16, .f2 = F16, .flags = CASE_DYN},
    {.n = 3, .k = 128, .e = 33, .f0 = BF16, .f1 = BF16, .f2 = BF16, .flags = NB},
    {.n = 3, .k = 128, .e = 33, .f0 = BF16, .f1 = BF16, .f2 = F32, .flags = NB | CASE_PAD},
    {.n = 65, .k = 256, .e = 65, .f0 = F32, .f1 = INFER_FMT_Q4_0, .f2 = F32, .flags = NB | CASE_DYN},
    {.n = 1, .k = 512, .e = 100, .f0 = F32, .f1 = INFER_FMT_Q4_0, .f2 = F32, .flags = NB},
    {.n = 1, .k = 512, .e = 100, .f0 = F32, .f1 = INFER_FMT_Q4_K, .f2 = F32, .flags = NB, .d = 1},
    {.n = 17, .k = 96, .e = 17, .f0 = F16, .f1 = INFER_FMT_Q8_0, .f2 = F16, .flags = NB},
    {.n = 7, .k = 64, .e = 33, .f0 = F32, .f1 = F32, .f2 = F32, .h = 1, .flags = NB},
    {.n = 7, .k = 64, .e = 33, .f0 = F32, .f1 = INFER_FMT_Q8_0, .f2 = F32, .h = 2, .flags = NB},
    {.n = 7, .k = 64, .e = 33, .f0 = F32, .f1 = F32, .f2 = F32, .h = 3, .flags = NB | CASE_DYN},
    {.n = 7, .k = 64, .e = 33, .f0 = F32, .f1 = F16, .f2 = F16, .h = 4},
    {.n = 7, .k = 64, .e = 33, .f0 = F32, .f1 = F32, .f2 = F32, .h = 4, .flags = CASE_DYN, .d = 1},
};

/* One row and several for each storage format, then the schemes. */
static uint32_t count_matmul(void)
{
    return 2 * (count_formats() + N_SCHEMES - 1);
}

static void matmul_format(uint32_t i, case_par *p)
{
    *p = (case_par){.n = i % 2 ? 17 : 1, .k = 256, .e = 17, .f0 = F32, .f2 = F32, .flags = NB};
    if (i / 2 < count_formats())
        p->f1 = nth_format(i / 2);
    else
        p->mode = i / 2 - count_formats() + 1;
}

/* x [n][k], three weights of f1, hidden width e, y [n][d]; g: tenths of the activation's limit */
static void gen_gated_mlp(case_maker *m, const case_par *p)
{
    infer_attrs_act a = {.struct_size = sizeof a, .act = p->mode, .limit = (float)p->g / 10};
    infer_case_fill(m, infer_case_in(m, p->f0, 0, 2, p->n, p->k, 1, 1), 1);
    infer_case_weight(m, p->f1, NULL, 2, p->e, p->k, 1);
    infer_case_weight(m, p->f1, NULL, 2, p->e, p->k, 1);
    infer_case_weight(m, p->f1, NULL, 2, p->d, p->e, 1);
    infer_case_out(m, p->f2, 0, 2, p->n, p->d, 1, 1);
    infer_case_attrs(m, &a, sizeof a);
    infer_case_label(m, " n%" PRId64 " k%" PRId64 " f%" PRId64 " %s %s %s", p->n, p->k, p->e, name(p->f0), name(p->f1),
                     name(p->f2));
    tol_product(m, NULL, 2);
}

static const case_par gated_mlp_list[] = {
    {.n = 1, .k = 7, .e = 17, .d = 7, .f0 = F32, .f1 = F32, .f2 = F32},
    {.n = 7, .k = 64, .e = 96, .d = 33, .f0 = F32, .f1 = INFER_FMT_Q8_0, .f2 = F32, .flags = CASE_DYN},
    {.n = 3, .k = 256, .e = 256, .d = 17, .f0 = F32, .f1 = INFER_FMT_Q4_K, .f2 = F32, .mode = INFER_ACT_GELU_TANH},
    {.n = 3, .k = 64, .e = 100, .d = 65, .f0 = BF16, .f1 = BF16, .f2 = BF16},
    {.n = 5, .k = 64, .e = 96, .d = 33, .g = 7, .f0 = F32, .f1 = F32, .f2 = F32},
};

/* x [n][k], three weights of f1: e, d and g outputs; h: how many have a bias */
static void gen_qkv(case_maker *m, const case_par *p)
{
    const int64_t out[3] = {p->e, p->d, p->g};
    infer_case_fill(m, infer_case_in(m, p->f0, pad_of(p), 2, p->n, p->k, 1, 1), 1);
    for (int i = 0; i < 3; i++)
        infer_case_weight(m, p->f1, NULL, 2, out[i], p->k, 1);
    for (int i = 0; i < 3; i++) {
        if (i < p->h)
            infer_case_fill(m, infer_case_in(m, F32, 0, 1, out[i], 1, 1, 1), 1);
        else
            infer_case_absent(m, 0);
    }
    for (int i = 0; i < 3; i++)
        infer_case_out(m, p->f2, pad_of(p), 2, p->n, out[i], 1, 1);
    infer_case_label(m,
                     " n%" PRId64 " k%" PRId64 " of %" PRId64 " %" PRId64 " %" PRId64 " %s %s %s, %" PRId64 " biased",
                     p->n, p->k, p->e, p->d, (int64_t)p->g, name(p->f0), name(p->f1), name(p->f2), p->h);
    tol_product(m, NULL, 1);
}

static const case_par qkv_list[] = {
    {.n = 1, .k = 7, .e = 17, .d = 7, .g = 3, .f0 = F32, .f1 = F32, .f2 = F32},
    {.n = 7, .k = 64, .e = 96, .d = 33, .g = 32, .h = 3, .f0 = F32, .f1 = INFER_FMT_Q8_0, .f2 = F32, .flags = CASE_DYN},
    {.n = 100, .k = 256, .e = 256, .d = 64, .g = 17, .h = 2, .f0 = F32, .f1 = INFER_FMT_Q4_K, .f2 = F32},
    {.n = 1, .k = 256, .e = 100, .d = 64, .g = 33, .h = 1, .f0 = F32, .f1 = INFER_FMT_Q6_K, .f2 = F32},
    {.n = 17, .k = 96, .e = 65, .d = 65, .g = 65, .h = 3, .f0 = BF16, .f1 = BF16, .f2 = BF16, .flags = CASE_PAD},
};

/* ---- Experts ---------------------------------------------------------------------------------------------- */

#define CASE_INFINITE (CASE_LAST << 0)

/* logits [n][e], k chosen; mode: scoring, g: normalise, h: scale; CASE_EDGE: equal logits and NaN; CASE_INFINITE: one
 * is infinite */
static void gen_route(case_maker *m, const case_par *p)
{
    infer_attrs_route a = {.struct_size = sizeof a,
                           .k = (uint32_t)p->k,
                           .scoring = p->mode,
                           .normalise = (uint32_t)p->g,
                           .scale = (float)p->h * 2.5f};
    uint32_t x = infer_case_in(m, p->f0, 0, 2, p->n, p->e, 1, 1);
    infer_case_fill(m, x, 1);
    if (p->flags & CASE_EDGE && m->status == INFER_OK) {
        float *v = (float *)(void *)m->c->data[x];
        for (int64_t i = 0; i < p->n; i++) {
            v[i * p->e + 1] = v[i * p->e + p->e - 1] = 4;
            v[i * p->e] = NAN;
        }
    }
    for (int64_t i = 0; p->flags & CASE_INFINITE && m->status == INFER_OK && i < p->n; i++)
        ((float *)(void *)m->c->data[x])[i * p->e + i % p->e] = INFINITY;
    infer_case_out(m, INFER_FMT_I32, 0, 2, p->n, p->k, 1, 1);
    infer_case_out(m, F32, 0, 2, p->n, p->k, 1, 1);
    infer_case_attrs(m, &a, sizeof a);
    infer_case_label(m, " n%" PRId64 " of %" PRId64 " take %" PRId64 " scoring %u%s", p->n, p->e, p->k, p->mode,
                     p->g ? " normalised" : "");
    infer_case_tol_set(m, 1e-5, WHY_EXP);
}

static const case_par route_list[] = {
    {.n = 1, .e = 3, .k = 1, .f0 = F32, .mode = INFER_ROUTE_SOFTMAX},
    {.n = 7, .e = 33, .k = 3, .f0 = F32, .mode = INFER_ROUTE_SOFTMAX, .g = 1, .flags = CASE_DYN},
    {.n = 17, .e = 128, .k = 8, .f0 = F32, .mode = INFER_ROUTE_SOFTMAX, .g = 1},
    {.n = 7, .e = 17, .k = 4, .f0 = F32, .mode = INFER_ROUTE_SOFTMAX_TOPK},
    {.n = 7, .e = 17, .k = 4, .f0 = F32, .mode = INFER_ROUTE_SIGMOID, .g = 1, .h = 1},
    {.n = 7, .e = 7, .k = 7, .f0 = F32, .mode = INFER_ROUTE_SIGMOID, .h = 1},
    {.n = 3, .e = 17, .k = 3, .f0 = F32, .mode = INFER_ROUTE_SOFTMAX, .flags = CASE_EDGE},
    {.n = 3, .e = 17, .k = 3, .f0 = F32, .mode = INFER_ROUTE_SOFTMAX_TOPK, .flags = CASE_EDGE},
    {.n = 3, .e = 4, .k = 4, .f0 = F32, .mode = INFER_ROUTE_SOFTMAX, .g = 1, .flags = CASE_INFINITE},
};

/* x [n][k], or [n][h][k] (mode 1); W [g][e][k] of f1; h choices a row. CASE_EDGE: ids out of range; CASE_LAST: scaled.
 */
static void gen_moe_matmul(case_maker *m, const case_par *p)
{
    if (p->mode)
        infer_case_fill(m, infer_case_in(m, p->f0, 0, 3, p->n, p->h, p->k, 1), 1);
    else
        infer_case_fill(m, infer_case_in(m, p->f0, 0, 2, p->n, p->k, 1, 1), 1);
    const infer_quant *q = p->d ? &schemes[p->d] : NULL;
    infer_case_weight(m, q ? q->format : p->f1, q, 3, p->g, p->e, p->k);
    uint32_t ids = infer_case_in(m, INFER_FMT_I32, 0, 2, p->n, p->h, 1, 1);
    for (int64_t i = 0; m->status == INFER_OK && i < p->n; i++)
        for (int64_t j = 0; j < p->h; j++)
            infer_case_i32(m, ids)[i * p->h + j] =
                (int32_t)((infer_case_random(m) % 97 + (uint64_t)j) % (uint64_t)p->g);
    if (p->flags & CASE_EDGE && m->status == INFER_OK) {
        infer_case_i32(m, ids)[0] = -1;
        infer_case_i32(m, ids)[p->n * p->h - 1] = (int32_t)p->g;
    }
    infer_case_out(m, p->f2, 0, 3, p->n, p->h, p->e, 1);
    const infer_attrs_matmul a = {.struct_size = sizeof a, .scale = 0.5f};
    if (p->flags & CASE_LAST)
        infer_case_attrs(m, &a, sizeof a);
    infer_case_label(m, " n%" PRId64 " take %" PRId64 " of %" PRId64 " k%" PRId64 " N%" PRId64 " %s %s %s", p->n, p->h,
                     p->g, p->k, p->e, name(p->f0), name(q ? q->format : p->f1), name(p->f2));
    tol_product(m, NULL, 1);
}

static const case_par moe_matmul_list[] = {
    {.n = 1, .h = 1, .g = 1, .k = 7, .e = 3, .f0 = F32, .f1 = F32, .f2 = F32},
    {.n = 7, .h = 2, .g = 5, .k = 33, .e = 17, .f0 = F32, .f1 = F32, .f2 = F32, .flags = CASE_EDGE},
    {.n = 17, .h = 3, .g = 8, .k = 64, .e = 33, .f0 = F32, .f1 = INFER_FMT_Q4_0, .f2 = F32, .flags = CASE_DYN},
    {.n = 7, .h = 3, .g = 8, .k = 256, .e = 17, .f0 = F32, .f1 = INFER_FMT_Q6_K, .f2 = F32, .mode = 1},
    {.n = 3, .h = 2, .g = 3, .k = 128, .e = 17, .f0 = F32, .d = 3, .f2 = F32, .mode = 1},
    {.n = 3, .h = 2, .g = 3, .k = 128, .e = 17, .f0 = F32, .d = 5, .f2 = F32},
    {.n = 3, .h = 2, .g = 7, .k = 64, .e = 65, .f0 = BF16, .f1 = BF16, .f2 = BF16},
    {.n = 5, .h = 2, .g = 4, .k = 64, .e = 33, .f0 = F32, .f1 = F32, .f2 = F32, .flags = CASE_LAST},
};

static void gen_moe_combine(case_maker *m, const case_par *p)
{
    infer_case_fill(m, infer_case_in(m, p->f0, 0, 3, p->n, p->k, p->d, 1), 1);
    infer_case_fill(m, infer_case_in(m, F32, 0, 2, p->n, p->k, 1, 1), 0.5f);
    infer_case_out(m, p->f1, 0, 2, p->n, p->d, 1, 1);
    label_rows(m, p);
    infer_case_tol_set(m, 2e-6, WHY_SUM);
}

static const case_par moe_combine_list[] = {
    {.n = 1, .k = 1, .d = 1, .f0 = F32, .f1 = F32},
    {.n = 7, .k = 3, .d = 33, .f0 = F32, .f1 = F32, .flags = CASE_DYN},
    {.n = 3, .k = 8, .d = 100, .f0 = F16, .f1 = F16},
    {.n = 3, .k = 2, .d = 65, .f0 = BF16, .f1 = F32},
};

/* ---- Adapters --------------------------------------------------------------------------------------------- */

/* x [n][k], weights [g][e][k] of f1, adapter rows -1..g-1 (CASE_EDGE: and g) */
static void gen_lora(case_maker *m, const case_par *p)
{
    infer_case_fill(m, infer_case_in(m, p->f0, 0, 2, p->n, p->k, 1, 1), 1);
    infer_case_weight(m, p->f1, NULL, 3, p->g, p->e, p->k);
    infer_case_ints(m, p->n, -1, (int32_t)p->g - (p->flags & CASE_EDGE ? 0 : 1));
    if (m->c->desc.op == INFER_OP_LORA_EXPAND_ADD) {
        infer_case_fill(m, infer_case_in(m, p->f2, 0, 2, p->n, p->e, 1, 1), 1);
        if (p->mode)
            infer_case_out_same(m, 3);
    }
    if (!p->mode || m->c->desc.op == INFER_OP_LORA_SHRINK)
        infer_case_out(m, p->f2, 0, 2, p->n, p->e, 1, 1);
    infer_case_label(m, " n%" PRId64 " k%" PRId64 " N%" PRId64 " of %" PRId64 " %s %s %s%s", p->n, p->k, p->e, p->g,
                     name(p->f0), name(p->f1), name(p->f2), p->mode ? " in place" : "");
    tol_product(m, NULL, 1);
}

static const case_par lora_list[] = {
    {.n = 1, .k = 7, .e = 3, .g = 1, .f0 = F32, .f1 = F32, .f2 = F32},
    {.n = 17, .k = 33, .e = 8, .g = 3, .f0 = F32, .f1 = F32, .f2 = F32, .flags = CASE_EDGE | CASE_DYN},
    {.n = 7, .k = 16, .e = 65, .g = 3, .f0 = F32, .f1 = F16, .f2 = F32, .mode = 1},
    {.n = 3, .k = 64, .e = 16, .g = 2, .f0 = BF16, .f1 = BF16, .f2 = BF16},
};

/* ---- The list --------------------------------------------------------------------------------------------- */

#define SET(OP, gen, list)                                                                                             \
    {                                                                                                                  \
        INFER_OP_##OP, gen, list, sizeof list / sizeof list[0], NULL, NULL                                             \
    }
#define SET_MORE(OP, gen, list, more, pr)                                                                              \
    {                                                                                                                  \
        INFER_OP_##OP, gen, list, sizeof list / sizeof list[0], more, pr                                               \
    }

const case_set infer_case_sets_rows[] = {
    SET_MORE(COPY, gen_copy, copy_list, count_formats, copy_format),
    SET_MORE(GATHER_ROWS, gen_gather, gather_list, count_formats, gather_format),
    SET(CONCAT_ROWS, gen_concat, concat_list),
    SET(IDS_SELECT, gen_ids_select, ids_select_list),
    SET(ROWS_SELECT, gen_rows_select, rows_select_list),
    SET(STATE_COPY, gen_state_copy, state_copy_list),
    SET(ADD, gen_binary, binary_list),
    SET(MUL, gen_binary, binary_list),
    SET(SCALE, gen_scale, scale_list),
    SET(GLU, gen_act, act_list),
    SET(ACT, gen_act, act_list),
    SET(SOFTMAX, gen_softmax, softmax_list),
    SET(ARGMAX, gen_argmax, argmax_list),
    SET(RMS_NORM, gen_norm, norm_list),
    SET(LAYER_NORM, gen_norm, norm_list),
    SET(ADD_RMS_NORM, gen_norm, add_norm_list),
    SET_MORE(MATMUL, gen_matmul, matmul_list, count_matmul, matmul_format),
    SET(GATED_MLP, gen_gated_mlp, gated_mlp_list),
    SET(QKV, gen_qkv, qkv_list),
    SET(MOE_ROUTE, gen_route, route_list),
    SET(MOE_MATMUL, gen_moe_matmul, moe_matmul_list),
    SET(MOE_COMBINE, gen_moe_combine, moe_combine_list),
    SET(LORA_SHRINK, gen_lora, lora_list),
    SET(LORA_EXPAND_ADD, gen_lora, lora_list),
};
const uint32_t infer_case_n_sets_rows = sizeof infer_case_sets_rows / sizeof infer_case_sets_rows[0];
