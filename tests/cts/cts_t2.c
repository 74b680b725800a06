/*
 * T2, storage formats of weights: for each one, products, gathers and experts with blocks that no quantiser would make
 * (all-zero scales, extreme codes, subnormal and negative scales), streams cut anywhere, shards, images copied to
 * another place. What a device answers NO to is skipped; a format in dev_props.formats must be taken by something.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "cts_t1.h"
#include "ops/cases_make.h"
#include "ops/ref.h"
#include "quant/quant.h"

#define NO_F16 0xFFFFu

/* A format: how it is stored, where a block has its F16 scales, and the largest factor on them. */
typedef struct t2_format {
    const char *name;
    infer_quant q;
    uint32_t f16_at[2];
    float top;
} t2_format;

static const t2_format formats[] = {
    {"f32", {.format = INFER_FMT_F32}, {NO_F16, NO_F16}, 1},
    {"f16", {.format = INFER_FMT_F16}, {NO_F16, NO_F16}, 1},
    {"bf16", {.format = INFER_FMT_BF16}, {NO_F16, NO_F16}, 1},
    {"f8_e4m3", {.format = INFER_FMT_F8_E4M3}, {NO_F16, NO_F16}, 1},
    {"f8_e5m2", {.format = INFER_FMT_F8_E5M2}, {NO_F16, NO_F16}, 1},
    {"q4_0", {.format = INFER_FMT_Q4_0}, {0, NO_F16}, 8},
    {"q4_1", {.format = INFER_FMT_Q4_1}, {0, 2}, 15},
    {"q5_0", {.format = INFER_FMT_Q5_0}, {0, NO_F16}, 16},
    {"q5_1", {.format = INFER_FMT_Q5_1}, {0, 2}, 31},
    {"q8_0", {.format = INFER_FMT_Q8_0}, {0, NO_F16}, 128},
    {"q2_k", {.format = INFER_FMT_Q2_K}, {80, 82}, 45},
    {"q3_k", {.format = INFER_FMT_Q3_K}, {108, NO_F16}, 128},
    {"q4_k", {.format = INFER_FMT_Q4_K}, {0, 2}, 945},
    {"q5_k", {.format = INFER_FMT_Q5_K}, {0, 2}, 1953},
    {"q6_k", {.format = INFER_FMT_Q6_K}, {208, NO_F16}, 4096},
    {"mxfp4", {.format = INFER_FMT_MXFP4}, {NO_F16, NO_F16}, 6},
    {"f8_tensor", {INFER_FMT_F8_E4M3, INFER_FMT_F32, 0, 0, 0, 0}, {NO_F16, NO_F16}, 448},
    {"f8_channel", {INFER_FMT_F8_E4M3, INFER_FMT_F32, 0, 0, 1, 0}, {NO_F16, NO_F16}, 448},
    {"f8_block", {INFER_FMT_F8_E4M3, INFER_FMT_F32, 0, 0, 128, 128}, {NO_F16, NO_F16}, 448},
    {"i8_channel", {INFER_FMT_I8, INFER_FMT_F32, 0, 0, 1, 0}, {NO_F16, NO_F16}, 128},
    {"u4_zero", {INFER_FMT_U4, INFER_FMT_F16, INFER_FMT_U4, 0, 1, 128}, {NO_F16, NO_F16}, 15},
    {"u4_sym", {INFER_FMT_U4, INFER_FMT_F16, 0, 8, 1, 128}, {NO_F16, NO_F16}, 8},
    {"u4_bf16", {INFER_FMT_U4, INFER_FMT_BF16, 0, 8, 1, 64}, {NO_F16, NO_F16}, 8},
};

/* Contents. */
enum { RANDOM, ZERO, EXTREME, SMALL, NEGATIVE, UNEVEN, N_MODES };
static const char *const mode_names[N_MODES] = {"random", "zero_scale", "extreme", "small_scale", "negative", "uneven"};

typedef struct t2_arg {
    const t2_format *f;
    uint32_t mode;
} t2_arg;

/* ---- Content --------------------------------------------------------------------------------------------- */

/* A scale for content of about `size`, of block number i. */
static float scale_of(case_maker *m, uint32_t mode, float size, float top, uint64_t i)
{
    float s = size / top * (0.5f + infer_case_uniform(m));
    if (mode == ZERO)
        return 0;
    if (mode == NEGATIVE || (mode == RANDOM && infer_case_random(m) % 4 == 0))
        s = -s;
    if (mode == SMALL)
        s *= 0x1p-12f;
    return mode == UNEVEN && i % 2 ? s * 0x1p-8f : s;
}

/* The same as F16; small ones are subnormal. */
static uint16_t half_of(case_maker *m, uint32_t mode, float size, float top, uint64_t i)
{
    if (mode == SMALL)
        return (uint16_t)(1 + infer_case_random(m) % 1023);
    return infer_f32_to_f16(scale_of(m, mode, size, top, i));
}

static void random_bytes(case_maker *m, uint8_t *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        p[i] = (uint8_t)(infer_case_random(m) >> 24);
}

static void fill_blocks(case_maker *m, const t2_arg *a, uint8_t *p, uint64_t n, float size)
{
    const infer_format_info *info = infer_format_get(a->f->q.format);
    for (uint64_t i = 0; i < n; i++, p += info->block_bytes) {
        random_bytes(m, p, info->block_bytes);
        if (a->mode == EXTREME)
            memset(p, i % 2 ? 0 : 0xFF, info->block_bytes);
        for (int s = 0; s < 2; s++) {
            uint32_t at = a->f->f16_at[s];
            if (at == NO_F16)
                continue;
            uint16_t h = half_of(m, a->mode, size, a->f->top, i);
            p[at] = (uint8_t)h;
            p[at + 1] = (uint8_t)(h >> 8);
        }
        if (a->f->q.format != INFER_FMT_MXFP4)
            continue;
        p[0] = (uint8_t)(127 + (int)floorf(log2f(size / 6)) + (int)(infer_case_random(m) % 3));
        if (a->mode == SMALL)
            p[0] = (uint8_t)(113 + infer_case_random(m) % 3);
        if (a->mode == UNEVEN && i % 2)
            p[0] -= 8;
        for (int b = 1; b < 17 && a->mode == ZERO; b++)
            p[b] &= 0x88; /* zeros of both signs */
        for (int b = 1; b < 17 && a->mode == NEGATIVE; b++)
            p[b] |= 0x88;
    }
}

static void fill_floats(case_maker *m, const t2_arg *a, infer_format format, uint8_t *p, uint64_t n, float size)
{
    const infer_format_info *info = infer_format_get(format);
    float top = format == INFER_FMT_F8_E4M3 ? 448 : format == INFER_FMT_F8_E5M2 ? 57344 : 4096;
    for (uint64_t i = 0; i < n; i++) {
        float x = infer_case_normal(m) * size;
        if (a->mode == ZERO)
            x = i % 2 ? 0.0f : -0.0f;
        else if (a->mode == EXTREME)
            x = infer_case_random(m) & 1 ? top : -top;
        else if (a->mode == SMALL) /* subnormal in F16 and both F8 */
            x = (float)(1 + (int)(infer_case_random(m) % 3)) * (format == INFER_FMT_F8_E4M3   ? 0x1p-9f
                                                                : format == INFER_FMT_F8_E5M2 ? 0x1p-16f
                                                                                              : 0x1p-20f);
        else if (a->mode == NEGATIVE)
            x = -fabsf(x);
        else if (a->mode == UNEVEN)
            x *= i / 8 % 2 ? 0x1p-6f : 1;
        info->pack(&x, p + i * info->block_bytes, 1);
    }
}

/* Codes without a scale of their own; no NaN. */
static void fill_codes(case_maker *m, const t2_arg *a, uint8_t *p, uint64_t n)
{
    random_bytes(m, p, n);
    for (uint64_t i = 0; i < n; i++) {
        if (a->mode == EXTREME)
            p[i] = a->f->q.format == INFER_FMT_I8 ? (i % 2 ? 0x80 : 0x7F) : i / 16 % 2 ? 0 : 0xFF;
        if (a->f->q.format == INFER_FMT_F8_E4M3 && (p[i] & 0x7F) == 0x7F)
            p[i]--;
    }
}

static void fill_scales(case_maker *m, const t2_arg *a, uint8_t *p, uint64_t bytes, float size)
{
    infer_format f = a->f->q.scale_format;
    const infer_format_info *info = infer_format_get(f);
    for (uint64_t i = 0; i < bytes / info->block_bytes; i++) {
        float s = scale_of(m, a->mode, size, a->f->top, i);
        if (f == INFER_FMT_F16 && a->mode == SMALL)
            s = (float)(1 + infer_case_random(m) % 1023) * 0x1p-24f;
        info->pack(&s, p + i * info->block_bytes, 1);
    }
}

/* A weight operand of the format, of rank 2 [s0][s1] or 3 [s0][s1][s2]. */
static uint32_t weight(case_maker *m, const t2_arg *a, uint32_t rank, int64_t s0, int64_t s1, int64_t s2)
{
    const infer_quant *q = &a->f->q;
    uint32_t i = infer_case_weight(m, q->format, q->scale_format ? q : NULL, rank, s0, s1, s2);
    if (m->status)
        return i;
    const infer_tensor_desc *t = &m->c->tensors[i];
    uint8_t *p = m->c->data[i];
    float size = 1 / sqrtf((float)t->shape[rank - 1]);
    if (q->scale_format) {
        uint64_t at[3], each[3], bytes, e = rank == 3 ? (uint64_t)s0 : 1;
        m->status = infer_tensor_planes(t, at, each, &bytes);
        if (m->status)
            return i;
        fill_codes(m, a, p + at[0], e * each[0]);
        fill_scales(m, a, p + at[1], e * each[1], size);
        random_bytes(m, p + at[2], e * each[2]);
    } else if (infer_format_get(q->format)->is_float) {
        fill_floats(m, a, q->format, p, infer_tensor_elems(t), size);
    } else {
        fill_blocks(m, a, p, infer_tensor_elems(t) / infer_format_get(q->format)->block_elems, size);
    }
    infer_case_label(m, " %s %s", a->f->name, mode_names[a->mode]);
    return i;
}

/* ---- Cases ----------------------------------------------------------------------------------------------- */

/* Columns that one block or group takes; odd where nothing forbids it. */
static int64_t unit(const t2_format *f)
{
    int64_t block = infer_format_get(f->q.format)->block_elems;
    return f->q.scale_format ? 128 : block > 1 ? block : 33;
}

/* Products may use activations of 8 bits: T1's bounds (cases_rows.c). */
static void tol_product(case_maker *m)
{
    infer_case_tol_set(m, 1e-5, "a sum in float of at most 1000 terms");
    m->c->tol_i8.rel = 0;
    m->c->tol_i8.abs += 0.1;
    m->c->tol_i8.nrms += 0.02;
}

static case_maker begin(cts *c, infer_op_case *k, infer_op_id op)
{
    return infer_op_case_begin(k, op, cts_rand(c));
}

static void matmul(case_maker *m, const t2_arg *a, int64_t rows, int64_t n, int64_t k)
{
    infer_case_fill(m, infer_case_in(m, INFER_FMT_F32, 0, 2, rows, k, 1, 1), 1);
    weight(m, a, 2, n, k, 1);
    infer_case_out(m, INFER_FMT_F32, 0, 2, rows, n, 1, 1);
    infer_case_label(m, " n%d K%d N%d", (int)rows, (int)k, (int)n);
    tol_product(m);
}

static void gather(case_maker *m, const t2_arg *a, int64_t rows, int64_t v, int64_t d)
{
    weight(m, a, 2, v, d, 1);
    infer_case_ints(m, rows, 0, (int32_t)v - 1);
    infer_case_out(m, INFER_FMT_F32, 0, 2, rows, d, 1, 1);
    m->c->tol = m->c->tol_i8 = (infer_case_tol){0x1p-21, 0x1p-20, 0x1p-21, "scale, code and minimum in float"};
}

static void experts(case_maker *m, const t2_arg *a, int64_t rows, int64_t e, int64_t n, int64_t k)
{
    infer_case_fill(m, infer_case_in(m, INFER_FMT_F32, 0, 2, rows, k, 1, 1), 1);
    weight(m, a, 3, e, n, k);
    uint32_t ids = infer_case_in(m, INFER_FMT_I32, 0, 2, rows, 2, 1, 1);
    for (int64_t i = 0; !m->status && i < rows * 2; i++)
        infer_case_i32(m, ids)[i] = (int32_t)((i + i / 2) % e);
    infer_case_out(m, INFER_FMT_F32, 0, 3, rows, 2, n, 1);
    tol_product(m);
}

/* 0: the case was not made, and has failed. */
static int made(cts *c, const case_maker *m)
{
    if (m->status)
        cts_fail(c, "making %s: %s", m->c->label, infer_status_name(m->status));
    return !m->status;
}

static void product_case(cts *c)
{
    static const int64_t shapes[][3] = {{1, 17, 1}, {3, 33, 4}, {17, 65, 2}, {2, 1, 3}};
    const t2_arg *a = c->arg;
    uint32_t taken = 0, why = 0;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]) && !c->failed; i++) {
        infer_op_case k;
        case_maker m = begin(c, &k, INFER_OP_MATMUL);
        matmul(&m, a, shapes[i][0], shapes[i][1], shapes[i][2] * unit(a->f));
        if (made(c, &m))
            taken += (uint32_t)cts_op_check(c, &k, i == 1 ? CTS_CHECK_ALL : 0, &why);
        infer_op_case_free(&k);
    }
    if (!taken)
        cts_skip(c, "no product: answered NO for %s", cts_why_name(why));
}

static void gather_case(cts *c)
{
    t2_arg a = *(const t2_arg *)c->arg;
    uint32_t taken = 0, why = 0;
    for (a.mode = 0; a.mode < N_MODES && !c->failed; a.mode++) {
        infer_op_case k;
        case_maker m = begin(c, &k, INFER_OP_GATHER_ROWS);
        gather(&m, &a, 7, 11, 2 * unit(a.f));
        if (made(c, &m))
            taken += (uint32_t)cts_op_check(c, &k, 0, &why);
        infer_op_case_free(&k);
    }
    if (!taken)
        cts_skip(c, "no gather: answered NO for %s", cts_why_name(why));
}

static void experts_case(cts *c)
{
    t2_arg a = *(const t2_arg *)c->arg;
    uint32_t taken = 0, why = 0;
    for (a.mode = 0; a.mode < N_MODES && !c->failed; a.mode += 2) {
        infer_op_case k;
        case_maker m = begin(c, &k, INFER_OP_MOE_MATMUL);
        experts(&m, &a, 5, 3, 33, 2 * unit(a.f));
        if (made(c, &m))
            taken += (uint32_t)cts_op_check(c, &k, 0, &why);
        infer_op_case_free(&k);
    }
    if (!taken)
        cts_skip(c, "no experts: answered NO for %s", cts_why_name(why));
}

/* Rows first .. first + cap of a case's x, of which `count` are there. 1: the device takes them and calls rows
 * invariant; j has run then. */
static int some_rows(cts *c, const infer_op_case *k, int64_t first, int64_t cap, int32_t count, cts_job *j)
{
    char label[220];
    cts_job_from(j, k);
    for (uint32_t i = 0; i < 3; i += 2) {
        uint64_t row = k->bytes[i] / (uint64_t)k->tensors[i].shape[0];
        j->t[i].shape[0] = cap;
        j->o[i].data += (uint64_t)first * row;
        j->o[i].bytes = (uint64_t)cap * row;
    }
    j->desc.rows_from = INFER_COUNT_TOKENS;
    j->counts[INFER_COUNT_TOKENS] = count;
    snprintf(label, sizeof(label), "%s: %d rows from %lld on, room for %lld", k->label, (int)count, (long long)first,
             (long long)cap);
    return cts_job_plan(c, j) && cts_job_query(c, j) && j->answer.row_invariant && cts_job_run(c, j, label);
}

/* Compares parts of a batch of `rows` with the whole. Returns how many were compared. */
static uint32_t parts_of_batch(cts *c, const infer_op_case *k, int64_t rows)
{
    const struct {
        int64_t first, cap, count;
    } parts[] = {{0, 1, 1}, {rows - 1, 1, 1}, {rows - 4, 4, 4}, {rows / 2, rows / 4 + 1, rows / 4 + 1}, {0, rows, 3}};
    cts_job all, j;
    uint32_t n = 0;
    if (!some_rows(c, k, 0, rows, (int32_t)rows, &all))
        goto out;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]) && !c->failed; i++) {
        const uint64_t row = (uint64_t)k->tensors[2].shape[1] * 4;
        if (some_rows(c, k, parts[i].first, parts[i].cap, (int32_t)parts[i].count, &j)) {
            int64_t d = cts_differ(cts_job_result(&all, 2) + (uint64_t)parts[i].first * row, cts_job_result(&j, 2),
                                   (uint64_t)parts[i].count * row);
            if (d >= 0)
                cts_fail(c,
                         "%s: %lld rows from %lld on, with room for %lld: byte %lld is not that among all %lld rows, "
                         "though claimed invariant",
                         k->label, (long long)parts[i].count, (long long)parts[i].first, (long long)parts[i].cap,
                         (long long)d, (long long)rows);
            n++;
        }
        cts_job_free(&j);
    }
out:
    cts_job_free(&all);
    return n;
}

/* Where the device says that rows do not depend on each other: the same bits in batches of any size and place, and
 * where there is room for more; with so long a K that a device may cut it. */
static void company_case(cts *c)
{
    infer_op_case k;
    case_maker m = begin(c, &k, INFER_OP_MATMUL);
    matmul(&m, c->arg, 70, 33, 1280);
    if (made(c, &m) && !(parts_of_batch(c, &k, 70) + parts_of_batch(c, &k, 4)) && !c->failed)
        cts_skip(c, "no two sizes of a batch are taken and called invariant");
    infer_op_case_free(&k);
}

/* A format that dev_props names is taken in a product, a gather or a conversion. */
static void claim_case(cts *c)
{
    const t2_arg *a = c->arg;
    uint32_t why = 0;
    int taken = 0;
    if (!(c->props->formats >> a->f->q.format & 1)) {
        cts_skip(c, "dev_props does not name the format as native");
        return;
    }
    for (int i = 0; i < 3 && !taken && !c->failed; i++) {
        infer_op_case k;
        case_maker m = begin(c, &k, i == 0 ? INFER_OP_MATMUL : i == 1 ? INFER_OP_GATHER_ROWS : INFER_OP_COPY);
        if (i == 0)
            matmul(&m, a, 3, 32, 2 * unit(a->f));
        else if (i == 1)
            gather(&m, a, 3, 5, 2 * unit(a->f));
        else {
            infer_case_fill(&m, infer_case_in(&m, a->f->q.format, 0, 2, 3, 2 * unit(a->f), 1, 1), 1);
            infer_case_out(&m, INFER_FMT_F32, 0, 2, 3, 2 * unit(a->f), 1, 1);
            m.c->tol_i8 = (infer_case_tol){0x1p-21, 0x1p-20, 0x1p-21, "scale, code and minimum in float"};
        }
        if (made(c, &m))
            taken = cts_op_check(c, &k, 0, &why);
        infer_op_case_free(&k);
    }
    if (!taken && !c->failed)
        cts_fail(c, "dev_props names %s as computed natively, but no product, gather or copy of it is taken",
                 a->f->name);
}

/* ---- Weights on their way -------------------------------------------------------------------------------- */

/* Runs a job of k with its weight brought as `how` says, and compares it with the reference and with the bits of
 * `first` (NULL: none yet; set to a copy). 1: taken. */
static int run_weight(cts *c, const infer_op_case *k, const cts_operand *how, uint8_t **first, uint32_t *why)
{
    cts_job j;
    cts_job_from(&j, k);
    j.o[1].piece = how->piece;
    j.o[1].moved = how->moved;
    int taken = 0;
    if (!cts_job_plan(c, &j))
        goto out;
    if (!cts_job_query(c, &j)) {
        *why = j.answer.why;
        goto out;
    }
    taken = 1;
    uint32_t y = k->desc.n_in;
    if (!cts_job_run(c, &j, k->label) || !cts_compare(c, k, &j, how->moved ? "image moved: " : ""))
        goto out;
    if (!*first) {
        *first = infer_malloc(k->bytes[y]);
        NEED(*first, "no host memory");
        memcpy(*first, cts_job_result(&j, y), k->bytes[y]);
    }
    int64_t at = cts_differ(*first, cts_job_result(&j, y), k->bytes[y]);
    NEED(at < 0, "%s: %s: byte %lld of the result is another", k->label,
         how->moved ? "the image was copied to another place" : "the stream was cut elsewhere", (long long)at);
out:
    cts_job_free(&j);
    return taken;
}

/* Pieces of one byte, a block less one byte, a prime, all at once: the same image, as far as results tell. */
static void pieces_case(cts *c)
{
    const t2_arg *a = c->arg;
    uint32_t block = infer_format_get(a->f->q.format)->block_bytes, why = 0;
    const uint64_t pieces[] = {1, block > 1 ? block - 1 : 3, 251, UINT64_MAX};
    for (int e = 0; e < 2 && !c->failed && !c->skipped; e++) {
        infer_op_case k;
        uint8_t *first = NULL;
        case_maker m = begin(c, &k, e ? INFER_OP_MOE_MATMUL : INFER_OP_MATMUL);
        if (e)
            experts(&m, a, 2, 3, 7, 2 * unit(a->f));
        else
            matmul(&m, a, 2, 35, 2 * unit(a->f));
        for (size_t i = 0; made(c, &m) && i < sizeof(pieces) / sizeof(pieces[0]) && !c->failed; i++)
            if (!run_weight(c, &k, &(cts_operand){.piece = pieces[i]}, &first, &why) && !c->failed && !e)
                cts_skip(c, "no product: answered NO for %s", cts_why_name(why));
        infer_free(first);
        infer_op_case_free(&k);
    }
}

static void moved_case(cts *c)
{
    const t2_arg *a = c->arg;
    infer_op_case k;
    uint8_t *first = NULL;
    uint32_t why = 0;
    case_maker m = begin(c, &k, INFER_OP_MATMUL);
    matmul(&m, a, 3, 65, 2 * unit(a->f));
    for (int i = 0; made(c, &m) && i < 2 && !c->failed; i++)
        if (!run_weight(c, &k, &(cts_operand){.moved = i}, &first, &why))
            cts_skip(c, "no product: answered NO for %s", cts_why_name(why));
    infer_free(first);
    infer_op_case_free(&k);
}

/* Floats of part [first, first + count) of `of` along axis (0 rows, 1 columns, 2 experts) of the weight t at p. */
static void part_of(case_maker *m, const infer_tensor_desc *t, void *p, const infer_shard *s, float *out)
{
    infer_ref_weight w;
    int64_t n = t->shape[t->rank - 2], k = t->shape[t->rank - 1], e = t->rank == 3 ? t->shape[0] : 1;
    float *row = infer_realloc_array(NULL, (size_t)k, sizeof(*row));
    m->status = row ? infer_ref_weight_open(&w, t, p) : INFER_E_NO_MEMORY;
    int64_t len[3] = {n, k, e}, from[3] = {0, 0, 0}, to[3] = {n, k, e};
    from[s->axis] = len[s->axis] / s->of * s->first;
    to[s->axis] = from[s->axis] + len[s->axis] / s->of * s->count;
    for (int64_t x = from[2]; x < to[2]; x++)
        for (int64_t r = from[0]; r < to[0] && !m->status; r++) {
            const float *v;
            m->status = infer_ref_weight_row(&w, x, r, row, &v);
            if (!m->status)
                memcpy(out, v + from[1], (size_t)(to[1] - from[1]) * sizeof(*out));
            out += to[1] - from[1];
        }
    infer_free(row);
}

/* One shard: the core cuts the source, the device packs the part; the reference has the part as floats. 1: taken. */
static int shard_once(cts *c, const t2_arg *a, const infer_shard *s, uint32_t *why)
{
    infer_op_case whole, part;
    cts_job j = {.n = 0};
    int moe = s->axis == 2, taken = 0;
    int64_t n = a->f->q.group_n > 1 ? (int64_t)a->f->q.group_n * 4 : 68, k = (a->f->q.zero_format ? 8 : 4) * unit(a->f),
            e = 4;
    case_maker m = begin(c, &whole, moe ? INFER_OP_MOE_MATMUL : INFER_OP_MATMUL);
    weight(&m, a, moe ? 3 : 2, moe ? e : n, moe ? n : k, k);
    if (moe)
        e = e / s->of * s->count;
    else if (s->axis)
        k = k / s->of * s->count;
    else
        n = n / s->of * s->count;
    case_maker mp = begin(c, &part, moe ? INFER_OP_MOE_MATMUL : INFER_OP_MATMUL);
    t2_arg plain = {&formats[0], RANDOM};
    if (moe)
        experts(&mp, &plain, 3, e, n, k);
    else
        matmul(&mp, &plain, 3, n, k);
    if (made(c, &m) && made(c, &mp))
        part_of(&mp, &whole.tensors[0], whole.data[0], s, (float *)(void *)part.data[1]);
    if (!made(c, &m) || !made(c, &mp))
        goto out;
    snprintf(part.label, sizeof(part.label), "%s axis %u, %u+%u of %u", a->f->name, s->axis, s->first, s->count, s->of);
    cts_job_from(&j, &part);
    j.t[1] = whole.tensors[0];
    memcpy(j.t[1].shape, part.tensors[1].shape, sizeof(j.t[1].shape));
    j.o[1] = (cts_operand){.data = whole.data[0], .bytes = whole.bytes[0], .same_as = -1, .shard = *s};
    memcpy(j.o[1].whole, whole.tensors[0].shape, sizeof(j.o[1].whole));
    if (!cts_job_plan(c, &j))
        goto out;
    taken = cts_job_query(c, &j);
    *why = j.answer.why;
    if (taken && cts_job_run(c, &j, part.label))
        cts_compare(c, &part, &j, "");
out:
    cts_job_free(&j);
    infer_op_case_free(&part);
    infer_op_case_free(&whole);
    return taken;
}

static void shards_case(cts *c)
{
    static const infer_shard shards[] = {{0, 0, 1, 2}, {0, 1, 1, 2}, {0, 1, 2, 4}, {1, 0, 1, 2}, {1, 1, 1, 2},
                                         {1, 1, 3, 4}, {2, 0, 1, 2}, {2, 1, 1, 2}, {2, 1, 2, 4}};
    const t2_arg *a = c->arg;
    uint32_t taken = 0, why = 0;
    for (size_t i = 0; i < sizeof(shards) / sizeof(shards[0]) && !c->failed; i++)
        taken += (uint32_t)shard_once(c, a, &shards[i], &why);
    if (!taken)
        cts_skip(c, "no product: answered NO for %s", cts_why_name(why));
}

void cts_t2(cts_run *r)
{
    static const struct {
        const char *name;
        cts_fn fn;
    } others[] = {{"gather", gather_case}, {"experts", experts_case}, {"pieces", pieces_case}, {"moved", moved_case},
                  {"shards", shards_case}, {"company", company_case}, {"claim", claim_case}};
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        char name[64];
        t2_arg a = {.f = &formats[i]};
        for (a.mode = 0; a.mode < N_MODES; a.mode++) {
            snprintf(name, sizeof(name), "t2.%s.%s", a.f->name, mode_names[a.mode]);
            cts_case_run(r, 2, name, product_case, 1, &a);
        }
        a.mode = RANDOM;
        for (size_t k = 0; k < sizeof(others) / sizeof(others[0]); k++) {
            snprintf(name, sizeof(name), "t2.%s.%s", a.f->name, others[k].name);
            if (others[k].fn != claim_case || !a.f->q.scale_format) /* schemes have no bit */
                cts_case_run(r, 2, name, others[k].fn, 1, &a);
        }
    }
}
