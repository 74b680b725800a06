/* Cases beyond the kit's, of sizes at which kernels are cut in more than one piece. SPDX-License-Identifier: Apache-2.0
 */
#include "more.h"

#include <cmath>
extern "C" {
#include "ops/cases_make.h"
}

namespace
{
const infer_case_tol exact = {0, 0, 0, "whole numbers"};

void attrs_scale(case_maker *m, float scale)
{
    infer_attrs_scale a = {sizeof a, scale, 0, 0};
    infer_case_attrs(m, &a, sizeof a);
}

/* Rows that draw in different ways from v logits. */
void sample(case_maker *m, int64_t n, int64_t v, float spread, uint32_t top)
{
    infer_attrs_sample a = {sizeof a, top, 0, 0};
    uint32_t x = infer_case_in(m, INFER_FMT_F32, 0, 2, n, v, 1, 1);
    infer_case_fill(m, x, spread);
    uint32_t params = infer_case_in(m, INFER_FMT_U8, 0, 2, n, sizeof(infer_sample_row), 1, 1);
    for (int64_t i = 0; m->status == INFER_OK && i < n; i++) {
        infer_sample_row r = {};
        r.temperature = i == 0 ? 0.0f : i == 4 ? 50.0f : 0.7f;
        r.top_k = i == 1 || i == 2 ? 40 : 0;
        r.top_p = i == 2 || i == 5 ? 0.9f : 1.0f;
        r.min_p = i == 3 ? 0.02f : 0.0f;
        r.counts_row = -1;
        r.seed = 77 + (uint64_t)i;
        r.position = (uint64_t)(3 * i);
        ((infer_sample_row *)(void *)m->c->data[params])[i] = r;
    }
    for (int i = 0; i < 3; i++)
        infer_case_absent(m, 0);
    infer_case_out(m, INFER_FMT_I32, 0, 1, n, 1, 1, 1);
    infer_case_out(m, INFER_FMT_F32, 0, 1, n, 1, 1, 1);
    if (top) {
        infer_case_out(m, INFER_FMT_I32, 0, 2, n, top, 1, 1);
        infer_case_out(m, INFER_FMT_F32, 0, 2, n, top, 1, 1);
    }
    infer_case_attrs(m, &a, sizeof a);
    infer_case_label(m, " v%d spread %g top %u", (int)v, (double)spread, top);
    infer_case_tol tol = {1e-5, 2e-5, 1e-5, "a logarithm of a sum of exponentials in float"};
    m->c->tol = m->c->tol_i8 = tol;
}

void matmul(case_maker *m, int64_t n, int64_t k, int64_t rows, infer_format x, infer_format w, int whole)
{
    uint32_t xi = infer_case_in(m, x, 0, 2, n, k, 1, 1), wi;
    infer_case_fill(m, xi, 1);
    if (whole) {
        wi = infer_case_in(m, w, 0, 2, rows, k, 1, 1);
        for (int64_t i = 0; m->status == INFER_OK && i < n * k; i++)
            ((float *)(void *)m->c->data[xi])[i] = (float)infer_case_int(m, -9, 9);
        for (int64_t i = 0; m->status == INFER_OK && i < rows * k; i++)
            ((float *)(void *)m->c->data[wi])[i] = (float)infer_case_int(m, -9, 9);
    } else {
        infer_case_weight(m, w, nullptr, 2, rows, k, 1);
    }
    infer_case_absent(m, 0);
    infer_case_out(m, INFER_FMT_F32, 0, 2, n, rows, 1, 1);
    infer_case_label(m, " n%d k%d N%d w %u%s", (int)n, (int)k, (int)rows, w, whole ? " whole numbers" : "");
    infer_case_tol_set(m, 1e-5, "sums in another order");
    if (whole)
        m->c->tol = m->c->tol_i8 = exact;
}

void wide_row(case_maker *m, int64_t n, int64_t d)
{
    infer_case_fill(m, infer_case_in(m, INFER_FMT_F32, 0, 2, n, d, 1, 1), 1);
    infer_op_id op = m->c->desc.op;
    if (op == INFER_OP_LAYER_NORM || op == INFER_OP_RMS_NORM || op == INFER_OP_ADD_RMS_NORM) {
        infer_attrs_norm a = {sizeof a, 1e-5f, 0, 0};
        if (op == INFER_OP_ADD_RMS_NORM)
            infer_case_fill(m, infer_case_in(m, INFER_FMT_F16, 0, 2, n, d, 1, 1), 1);
        infer_case_fill(m, infer_case_in(m, INFER_FMT_F32, 0, 1, d, 1, 1, 1), 1);
        if (op == INFER_OP_LAYER_NORM)
            infer_case_fill(m, infer_case_in(m, INFER_FMT_F16, 0, 1, d, 1, 1, 1), 1);
        infer_case_attrs(m, &a, sizeof a);
    } else if (op == INFER_OP_SOFTMAX) {
        attrs_scale(m, 2);
    }
    if (op == INFER_OP_ARGMAX)
        infer_case_out(m, INFER_FMT_I32, 0, 1, n, 1, 1, 1);
    else
        infer_case_out(m, INFER_FMT_F32, 0, 2, n, d, 1, 1);
    if (op == INFER_OP_ADD_RMS_NORM)
        infer_case_out(m, INFER_FMT_BF16, 0, 2, n, d, 1, 1);
    infer_case_label(m, " n%d d%d", (int)n, (int)d);
    infer_case_tol_set(m, 2e-5, "sums in another order; what is normed is the sum as stored, rounding and all");
}

/* One row over 700 keys, five (or `rows`) over 300, as many over their own; the first block of the second sequence is
 * out of range. */
void attention(case_maker *m, int64_t heads, int64_t kv, int64_t d, infer_format kf, infer_format vf, uint32_t mask,
               int32_t rows)
{
    const int32_t more = rows, five = rows ? rows : 5;
    const int64_t n = 2 + five + more, size = 16, blocks = 64, table = 45, seqs = 3;
    const int32_t len[] = {700, 300, more}, start[] = {0, 1, 1 + five, 1 + five + more};
    infer_attrs_attn a = {};
    a.struct_size = sizeof a;
    a.mask = mask;
    a.window = mask == INFER_MASK_WINDOW ? 130 : 0;
    a.scale = 0.1f;
    a.n_heads = (uint32_t)heads;
    a.kv.k_format = kf;
    a.kv.v_format = vf;
    a.kv.n_kv_heads = (uint32_t)kv;
    a.kv.k_width = a.kv.v_width = (uint32_t)d;
    a.kv.block_size = (uint32_t)size;
    a.kv.n_blocks = (uint64_t)blocks;
    infer_case_fill(m, infer_case_in(m, INFER_FMT_F32, 0, 3, n, heads, d, 1), 1);
    infer_case_fill(m, infer_case_in(m, kf, 0, 4, blocks, kv, size, d), 1);
    infer_case_fill(m, infer_case_in(m, vf, 0, 4, blocks, kv, size, d), 1);
    uint32_t t = infer_case_in(m, INFER_FMT_I32, 0, 2, seqs, table, 1, 1);
    uint32_t l = infer_case_in(m, INFER_FMT_I32, 0, 1, seqs, 1, 1, 1);
    uint32_t s = infer_case_in(m, INFER_FMT_I32, 0, 1, seqs + 1, 1, 1, 1);
    for (int64_t i = 0; m->status == INFER_OK && i < seqs * table; i++)
        infer_case_i32(m, t)[i] = i == table ? -1 : (int32_t)(i * 37 % blocks);
    for (int64_t i = 0; m->status == INFER_OK && i <= seqs; i++) {
        infer_case_i32(m, s)[i] = start[i];
        if (i < seqs)
            infer_case_i32(m, l)[i] = len[i];
    }
    infer_case_absent(m, 0);
    infer_case_absent(m, 0);
    infer_case_out(m, INFER_FMT_F32, 0, 3, n, heads, d, 1);
    infer_case_attrs(m, &a, sizeof a);
    infer_case_label(m, " long h%d/%d d%d formats %u %u mask %u rows %d", (int)heads, (int)kv, (int)d, kf, vf, mask,
                     (int)n);
    infer_case_tol_set(m, 2e-5, "sums in another order");
}
} // namespace

int more_case(uint32_t i, infer_op_case *c)
{
    struct row {
        infer_op_id op;
        int64_t a, b, d;
        infer_format f, g;
        uint32_t mode;
        int32_t rows;
    };
    static const row rows[] = {
        {INFER_OP_SAMPLE, 6, 130001, 3, 0, 0, 0, 0},
        {INFER_OP_SAMPLE, 6, 20000, 3, 0, 0, 40, 0},
        {INFER_OP_SAMPLE, 6, 5000, 0, 0, 0, 64, 0}, /* all equal: more in a bin than are listed */
        {INFER_OP_MATMUL, 3, 2048, 9, INFER_FMT_F32, INFER_FMT_Q4_K, 0, 0},
        {INFER_OP_MATMUL, 5, 4096, 7, INFER_FMT_BF16, INFER_FMT_Q8_0, 0, 0},
        {INFER_OP_MATMUL, 1, 4352, 5, INFER_FMT_F16, INFER_FMT_Q6_K, 0, 0},
        {INFER_OP_MATMUL, 2, 4099, 5, INFER_FMT_F32, INFER_FMT_F16, 0, 0},
        {INFER_OP_MATMUL, 130, 96, 140, INFER_FMT_F32, INFER_FMT_F32, 1, 0},
        {INFER_OP_MATMUL, 3, 37, 130, INFER_FMT_F32, INFER_FMT_F32, 1, 0},
        {INFER_OP_RMS_NORM, 2, 20000, 0, 0, 0, 0, 0},
        {INFER_OP_LAYER_NORM, 2, 9001, 0, 0, 0, 0, 0},
        {INFER_OP_ADD_RMS_NORM, 2, 9004, 0, 0, 0, 0, 0},
        {INFER_OP_SOFTMAX, 2, 9001, 0, 0, 0, 0, 0},
        {INFER_OP_ARGMAX, 3, 33000, 0, 0, 0, 0, 0},
        {INFER_OP_ATTN_PAGED, 8, 2, 128, INFER_FMT_F16, INFER_FMT_F16, INFER_MASK_CAUSAL, 0},
        {INFER_OP_ATTN_PAGED, 6, 2, 64, INFER_FMT_Q8_0, INFER_FMT_Q4_0, INFER_MASK_WINDOW, 0},
        {INFER_OP_ATTN_PAGED, 3, 1, 80, INFER_FMT_BF16, INFER_FMT_F32, INFER_MASK_FULL, 0},
        {INFER_OP_ATTN_PAGED, 12, 2, 64, INFER_FMT_BF16, INFER_FMT_BF16, INFER_MASK_WINDOW, 0},
        {INFER_OP_ATTN_PAGED, 2, 2, 128, INFER_FMT_F16, INFER_FMT_F16, INFER_MASK_FULL, 0},
        {INFER_OP_ATTN_PAGED, 4, 1, 128, INFER_FMT_F16, INFER_FMT_F16, INFER_MASK_CAUSAL, 70},
        {INFER_OP_ATTN_PAGED, 3, 1, 64, INFER_FMT_BF16, INFER_FMT_BF16, INFER_MASK_WINDOW, 45},
    };
    if (i >= sizeof rows / sizeof *rows)
        return 0;
    const row &r = rows[i];
    case_maker m = infer_op_case_begin(c, r.op, 1000 + i);
    if (r.op == INFER_OP_SAMPLE)
        sample(&m, r.a, r.b, (float)r.d, r.mode);
    else if (r.op == INFER_OP_MATMUL)
        matmul(&m, r.a, r.b, r.d, r.f, r.g, (int)r.mode);
    else if (r.op == INFER_OP_ATTN_PAGED)
        attention(&m, r.a, r.b, r.d, r.f, r.g, r.mode, r.rows);
    else
        wide_row(&m, r.a, r.b);
    return m.status == INFER_OK ? 1 : -1;
}
