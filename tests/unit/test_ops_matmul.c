/* core/ops: products, experts, adapters, rotation and the cache, on hand-computed numbers and by their algebra.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>

#include "unit/ops_util.h"

#include "quant/quant.h"

static void test_matmul(void **state)
{
    (void)state;
    float x[6] = {1, 2, 3, -1, 0, 1}, w[6] = {1, 0, 2, 3, -1, 0.5f}, bias[2] = {10, 20}, y[4];
    infer_attrs_matmul a = {.struct_size = sizeof a, .scale = 2};
    op_build b;
    op_begin(&b, INFER_OP_MATMUL, NULL, 0);
    OP_IN2(&b, F32, x, 2, 3);
    OP_IN2(&b, F32, w, 2, 3);
    OP_OUT2(&b, F32, y, 2, 2);
    op_run(&b);
    assert_memory_equal(y, ((float[]){7, 2.5f, 1, -2.5f}), sizeof y);
    op_begin(&b, INFER_OP_MATMUL, &a, sizeof a);
    OP_IN2(&b, F32, x, 2, 3);
    OP_IN2(&b, F32, w, 2, 3);
    OP_IN1(&b, F32, bias, 2);
    OP_OUT2(&b, F32, y, 2, 2);
    op_run(&b); /* the scale leaves the bias alone */
    assert_memory_equal(y, ((float[]){24, 25, 12, 15}), sizeof y);
}

/* Sums that cancel in float do not in double, wherever in the row they stand. */
static void test_double_sums(void **state)
{
    (void)state;
    enum { K = 37 };
    float x[K], w[K], y;
    op_build b;
    for (int at = 0; at < K - 2; at++) {
        for (int i = 0; i < K; i++)
            x[i] = w[i] = 0;
        x[at] = 1e8f;
        x[at + 1] = 1.25f;
        x[at + 2] = -1e8f;
        w[at] = w[at + 1] = w[at + 2] = 1;
        op_begin(&b, INFER_OP_MATMUL, NULL, 0);
        OP_IN2(&b, F32, x, 1, K);
        OP_IN2(&b, F32, w, 1, K);
        OP_OUT2(&b, F32, &y, 1, 1);
        op_run(&b);
        assert_true(y == 1.25f);
    }
}

/* A quantised weight is the product with its unpacked floats, to the bit; so is one with side planes. */
static void test_quantised(void **state)
{
    (void)state;
    enum { N = 5, K = 256, ROWS = 3 };
    static float x[ROWS * K], w[N * K], unpacked[N * K], y[ROWS * N], z[ROWS * N];
    static _Alignas(64) uint8_t packed[8 * N * K + 1024];
    const infer_quant q[] = {{INFER_FMT_F8_E4M3, INFER_FMT_F32, 0, 0, 1, 0},
                             {INFER_FMT_I8, INFER_FMT_F32, 0, 0, 1, 0},
                             {INFER_FMT_U4, INFER_FMT_F16, INFER_FMT_U4, 0, 1, 128}};
    op_build b;
    op_fill(x, ROWS * K, 1);
    op_fill(w, N * K, 2);
    for (infer_format f = 1; f < INFER_FMT_COUNT + 3; f++) {
        infer_tensor_desc t = infer_tensor_make(f, 2, N, K, 1, 1);
        uint64_t bytes;
        if (f < INFER_FMT_COUNT) {
            const infer_format_info *i = infer_format_get(f);
            if (!i || !i->pack || !i->unpack || (!i->is_float && i->block_elems < 32))
                continue;
            i->pack(w, packed, N * K);
            i->unpack(packed, unpacked, N * K);
        } else {
            t.quant = q[f - INFER_FMT_COUNT];
            t.format = t.quant.format;
            uint64_t plane[3];
            assert_int_equal(infer_quant_bytes(&t.quant, N, K, plane), INFER_OK);
            uint8_t *scale = packed + (plane[0] + 255) / 256 * 256, *zero = scale + (plane[1] + 255) / 256 * 256;
            assert_int_equal(infer_quant_pack(&t.quant, w, N, K, packed, scale, plane[2] ? zero : NULL), INFER_OK);
            const infer_quant_planes p = {packed, scale, plane[2] ? zero : NULL};
            for (uint64_t r = 0; r < N; r++)
                assert_int_equal(infer_quant_unpack_row(&t.quant, &p, N, K, r, unpacked + r * K), INFER_OK);
        }
        assert_int_equal(infer_tensor_bytes(&t, &bytes), INFER_OK);
        assert_true(bytes <= sizeof packed);
        op_begin(&b, INFER_OP_MATMUL, NULL, 0);
        OP_IN2(&b, F32, x, ROWS, K);
        OP_IN2(&b, F32, unpacked, N, K);
        OP_OUT2(&b, F32, y, ROWS, N);
        op_run(&b);
        b.t[1] = t;
        b.data[1] = packed;
        b.data[2] = z;
        op_run(&b);
        assert_memory_equal(y, z, sizeof y);
    }
}

static void test_gated_mlp(void **state)
{
    (void)state;
    enum { N = 3, K = 7, F = 9, D = 5 };
    float x[N * K], wg[F * K], wu[F * K], wd[D * F], g[N * F], u[N * F], h[N * F], y[N * D], z[N * D];
    infer_attrs_act a = {.struct_size = sizeof a, .act = INFER_ACT_GELU_TANH, .limit = 0.75f};
    op_build b;
    op_fill(x, N * K, 1);
    op_fill(wg, F * K, 2);
    op_fill(wu, F * K, 3);
    op_fill(wd, D * F, 4);
    op_begin(&b, INFER_OP_GATED_MLP, &a, sizeof a);
    OP_IN2(&b, F32, x, N, K);
    OP_IN2(&b, F32, wg, F, K);
    OP_IN2(&b, F32, wu, F, K);
    OP_IN2(&b, F32, wd, D, F);
    OP_OUT2(&b, F32, y, N, D);
    op_run(&b);
    float *const w[] = {wg, wu}, *const to[] = {g, u};
    for (int i = 0; i < 2; i++) {
        op_begin(&b, INFER_OP_MATMUL, NULL, 0);
        OP_IN2(&b, F32, x, N, K);
        OP_IN2(&b, F32, w[i], F, K);
        OP_OUT2(&b, F32, to[i], N, F);
        op_run(&b);
    }
    op_begin(&b, INFER_OP_GLU, &a, sizeof a);
    OP_IN2(&b, F32, g, N, F);
    OP_IN2(&b, F32, u, N, F);
    OP_OUT2(&b, F32, h, N, F);
    op_run(&b);
    op_begin(&b, INFER_OP_MATMUL, NULL, 0);
    OP_IN2(&b, F32, h, N, F);
    OP_IN2(&b, F32, wd, D, F);
    OP_OUT2(&b, F32, z, N, D);
    op_run(&b);
    assert_memory_equal(y, z, sizeof y);
}

static void test_qkv(void **state)
{
    (void)state;
    enum { N = 3, K = 7, A = 9, B = 5, C = 4 };
    const int64_t n[] = {A, B, C};
    float x[N * K], w[3][A * K], bias[3][A], y[3][N * A], z[N * A];
    op_build b;
    op_fill(x, N * K, 1);
    op_begin(&b, INFER_OP_QKV, NULL, 0);
    OP_IN2(&b, F32, x, N, K);
    for (int i = 0; i < 3; i++) {
        op_fill(w[i], A * K, 2 + (uint64_t)i);
        op_fill(bias[i], A, 5 + (uint64_t)i);
        OP_IN2(&b, F32, w[i], n[i], K);
    }
    for (int i = 0; i < 3; i++)
        OP_IN1(&b, F32, bias[i], n[i]);
    for (int i = 0; i < 3; i++)
        OP_OUT2(&b, F32, y[i], N, n[i]);
    op_run(&b);
    for (int i = 0; i < 3; i++) {
        op_begin(&b, INFER_OP_MATMUL, NULL, 0);
        OP_IN2(&b, F32, x, N, K);
        OP_IN2(&b, F32, w[i], n[i], K);
        OP_IN1(&b, F32, bias[i], n[i]);
        OP_OUT2(&b, F32, z, N, n[i]);
        op_run(&b);
        assert_memory_equal(y[i], z, (size_t)(N * n[i]) * sizeof *z);
    }
}

/* An epilogue list on a product equals the same ops one by one, to the bit. */
static void test_fused(void **state)
{
    (void)state;
    enum { N = 5, K = 33, M = 7 };
    float x[N * K], w[M * K], r[N * M], s[N * M], bias[M], y[N * M], z[N * M];
    infer_attrs_act act = {.struct_size = sizeof act, .act = INFER_ACT_SILU};
    op_build b;
    op_fill(x, N * K, 1);
    op_fill(w, M * K, 2);
    op_fill(r, N * M, 3);
    op_fill(s, N * M, 4);
    op_fill(bias, M, 5);
    op_begin(&b, INFER_OP_MATMUL, NULL, 0);
    OP_IN2(&b, F32, x, N, K);
    OP_IN2(&b, F32, w, M, K);
    op_add(&b, 0, INFER_FMT_F32, NULL, 1, M, 1, 1, 1);
    OP_IN1(&b, F32, bias, M);
    OP_IN2(&b, F32, s, N, M);
    OP_IN2(&b, F32, r, N, M);
    OP_OUT2(&b, F32, y, N, M);
    b.d.n_epilogue = 4;
    b.epi[0] = (infer_epilogue){.kind = INFER_EPI_BIAS, .operand = 3};
    b.epi[1] = (infer_epilogue){.kind = INFER_EPI_ACT, .arg = INFER_ACT_SILU};
    b.epi[2] = (infer_epilogue){.kind = INFER_EPI_MUL, .operand = 4};
    b.epi[3] = (infer_epilogue){.kind = INFER_EPI_RESIDUAL, .operand = 5};
    op_run(&b);
    op_begin(&b, INFER_OP_MATMUL, NULL, 0);
    OP_IN2(&b, F32, x, N, K);
    OP_IN2(&b, F32, w, M, K);
    OP_OUT2(&b, F32, z, N, M);
    op_run(&b);
    const struct {
        infer_op_id op;
        float *with;
        uint32_t rank;
    } steps[] = {{INFER_OP_ADD, bias, 1}, {INFER_OP_ACT, NULL, 0}, {INFER_OP_MUL, s, 2}, {INFER_OP_ADD, r, 2}};
    for (int i = 0; i < 4; i++) {
        op_begin(&b, steps[i].op, steps[i].with ? NULL : &act, steps[i].with ? 0 : sizeof act);
        OP_IN2(&b, F32, z, N, M);
        if (steps[i].rank == 1)
            OP_IN1(&b, F32, steps[i].with, M);
        else if (steps[i].with)
            OP_IN2(&b, F32, steps[i].with, N, M);
        OP_OUT2(&b, F32, z, N, M);
        op_run(&b);
    }
    assert_memory_equal(y, z, sizeof y);
}

/* ADD_RMS_NORM is ADD, then RMS_NORM of the sum as it is stored. */
static void test_add_norm(void **state)
{
    (void)state;
    enum { N = 3, M = 33 };
    float x[N * M], r[N * M], w[M], y[N * M], z[N * M];
    uint16_t s[N * M], t[N * M];
    infer_attrs_norm a = {.struct_size = sizeof a, .eps = 1e-6f};
    op_build b;
    op_fill(x, N * M, 1);
    op_fill(r, N * M, 2);
    op_fill(w, M, 3);
    op_begin(&b, INFER_OP_ADD_RMS_NORM, &a, sizeof a);
    OP_IN2(&b, F32, x, N, M);
    OP_IN2(&b, F32, r, N, M);
    OP_IN1(&b, F32, w, M);
    OP_OUT2(&b, F32, y, N, M);
    OP_OUT2(&b, BF16, s, N, M);
    op_run(&b);
    op_begin(&b, INFER_OP_ADD, NULL, 0);
    OP_IN2(&b, F32, x, N, M);
    OP_IN2(&b, F32, r, N, M);
    OP_OUT2(&b, BF16, t, N, M);
    op_run(&b);
    assert_memory_equal(s, t, sizeof s);
    op_begin(&b, INFER_OP_RMS_NORM, &a, sizeof a);
    OP_IN2(&b, BF16, t, N, M);
    OP_IN1(&b, F32, w, M);
    OP_OUT2(&b, F32, z, N, M);
    op_run(&b);
    assert_memory_equal(y, z, sizeof y);
}

static void test_route(void **state)
{
    (void)state;
    float x[4] = {0, logf(2), logf(4), 0}, w[2];
    int32_t ids[2];
    infer_attrs_route a = {.struct_size = sizeof a, .k = 2};
    op_build b;
    op_begin(&b, INFER_OP_MOE_ROUTE, &a, sizeof a);
    OP_IN2(&b, F32, x, 1, 4);
    OP_OUT2(&b, I32, ids, 1, 2);
    OP_OUT2(&b, F32, w, 1, 2);
    op_run(&b); /* shares 1/8, 2/8, 4/8, 1/8 */
    assert_true(ids[0] == 2 && ids[1] == 1 && fabs(w[0] - 0.5) < 1e-6 && fabs(w[1] - 0.25) < 1e-6);
    a.normalise = 1;
    a.scale = 3;
    op_run(&b);
    assert_true(fabs(w[0] - 2) < 1e-6 && fabs(w[1] - 1) < 1e-6);
    a = (infer_attrs_route){.struct_size = sizeof a, .k = 2, .scoring = INFER_ROUTE_SOFTMAX_TOPK};
    op_run(&b);
    assert_true(fabs(w[0] - 2.0 / 3) < 1e-6 && fabs(w[1] - 1.0 / 3) < 1e-6);
    a.scoring = INFER_ROUTE_SIGMOID;
    op_run(&b);
    assert_true(fabs(w[0] - 0.8) < 1e-6 && fabs(w[1] - 2.0 / 3) < 1e-6);
    x[1] = x[2] = 0;
    a.scoring = INFER_ROUTE_SOFTMAX;
    op_run(&b);
    assert_true(ids[0] == 0 && ids[1] == 1); /* ties: the lowest ids */
    x[0] = NAN;
    op_run(&b);
    assert_true(ids[0] == 1 && ids[1] == 2 && fabs(w[0] - 1.0 / 3) < 1e-6);
    /* never the same expert twice, even when no other has a share */
    x[0] = 5;
    x[1] = x[2] = x[3] = -INFINITY;
    for (a.scoring = INFER_ROUTE_SOFTMAX; a.scoring <= INFER_ROUTE_SIGMOID; a.scoring++) {
        op_run(&b);
        assert_true(ids[0] == 0 && ids[1] == 1 && w[1] == 0);
    }
    /* a score that is not a number is not chosen, even when that leaves none */
    float odd[4] = {0, INFINITY, 0, INFINITY}, shares[4];
    int32_t chosen[4];
    for (a = (infer_attrs_route){.struct_size = sizeof a, .k = 4}; a.normalise <= 1; a.normalise++) {
        op_begin(&b, INFER_OP_MOE_ROUTE, &a, sizeof a);
        OP_IN2(&b, F32, odd, 1, 4);
        OP_OUT2(&b, I32, chosen, 1, 4);
        OP_OUT2(&b, F32, shares, 1, 4);
        op_run(&b);
        for (int i = 0; i < 4; i++)
            assert_true(chosen[i] == (i < 2 ? 2 * i : -1) && shares[i] == 0);
    }
}

/* MOE_MATMUL is a MATMUL with the chosen expert's matrix; MOE_COMBINE the weighted sum. */
static void test_experts(void **state)
{
    (void)state;
    enum { N = 4, K = 2, E = 3, IN = 5, OUT = 6 };
    float x[N * IN], w[E * OUT * IN], y[N * K * OUT], one[OUT], weights[N * K], sum[N * OUT];
    int32_t ids[N * K] = {0, 1, 2, 0, 1, -1, 3, 2};
    op_build b;
    op_fill(x, N * IN, 1);
    op_fill(w, E * OUT * IN, 2);
    op_fill(weights, N * K, 3);
    op_begin(&b, INFER_OP_MOE_MATMUL, NULL, 0);
    OP_IN2(&b, F32, x, N, IN);
    OP_IN3(&b, F32, w, E, OUT, IN);
    OP_IN2(&b, I32, ids, N, K);
    OP_OUT3(&b, F32, y, N, K, OUT);
    op_run(&b);
    for (int i = 0; i < N * K; i++) {
        memset(one, 0, sizeof one);
        if (ids[i] >= 0 && ids[i] < E) {
            op_begin(&b, INFER_OP_MATMUL, NULL, 0);
            OP_IN2(&b, F32, x + i / K * IN, 1, IN);
            OP_IN2(&b, F32, w + ids[i] * OUT * IN, OUT, IN);
            OP_OUT2(&b, F32, one, 1, OUT);
            op_run(&b);
        }
        assert_memory_equal(one, y + i * OUT, sizeof one);
    }
    op_begin(&b, INFER_OP_MOE_COMBINE, NULL, 0);
    OP_IN3(&b, F32, y, N, K, OUT);
    OP_IN2(&b, F32, weights, N, K);
    OP_OUT2(&b, F32, sum, N, OUT);
    op_run(&b);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < OUT; j++) {
            double want =
                (double)weights[i * K] * y[i * K * OUT + j] + (double)weights[i * K + 1] * y[(i * K + 1) * OUT + j];
            assert_true(fabs(sum[i * OUT + j] - want) < 1e-6);
        }
}

static void test_lora(void **state)
{
    (void)state;
    float x[6] = {1, 2, 3, 4, 5, 6}, a[4] = {1, 1, 2, -1}, bm[6] = {1, 2, 3, 4, 5, 6}, t[3], y[9], base[9];
    int32_t rows[3] = {1, -1, 0};
    op_build b;
    op_begin(&b, INFER_OP_LORA_SHRINK, NULL, 0);
    OP_IN2(&b, F32, x, 3, 2);
    OP_IN3(&b, F32, a, 2, 1, 2);
    OP_IN1(&b, I32, rows, 3);
    OP_OUT2(&b, F32, t, 3, 1);
    op_run(&b); /* adapter 1: 2 - 2; none; adapter 0: 5 + 6 */
    assert_memory_equal(t, ((float[]){0, 0, 11}), sizeof t);
    t[0] = 1;
    t[1] = 100;
    for (int i = 0; i < 9; i++)
        base[i] = 1000;
    op_begin(&b, INFER_OP_LORA_EXPAND_ADD, NULL, 0);
    OP_IN2(&b, F32, t, 3, 1);
    OP_IN3(&b, F32, bm, 2, 3, 1);
    OP_IN1(&b, I32, rows, 3);
    OP_IN2(&b, F32, base, 3, 3);
    OP_OUT2(&b, F32, y, 3, 3);
    op_run(&b);
    assert_memory_equal(y, ((float[]){1004, 1005, 1006, 1000, 1000, 1000, 1011, 1022, 1033}), sizeof y);
    b.data[4] = base; /* in place */
    op_run(&b);
    assert_memory_equal(y, base, sizeof y);
}

static void rope_build(op_build *b, const infer_attrs_rope *a, float *x, int32_t *pos, float *freq, float *y, int64_t n,
                       int64_t h, int64_t d)
{
    op_begin(b, INFER_OP_ROPE, a, sizeof *a);
    OP_IN3(b, F32, x, n, h, d);
    OP_IN2(b, I32, pos, n, a->n_pos);
    OP_IN1(b, F32, freq, a->n_dims / 2);
    OP_OUT3(b, F32, y, n, h, d);
}

static void test_rope(void **state)
{
    (void)state;
    float x[6] = {1, 2, 3, 4, 5, 6}, freq[2] = {1, 0.5f}, y[6];
    int32_t pos[1] = {2};
    infer_attrs_rope a = {.struct_size = sizeof a, .kind = INFER_ROPE_PAIRS, .n_dims = 4, .n_pos = 1};
    op_build b;
    rope_build(&b, &a, x, pos, freq, y, 1, 1, 6);
    op_run(&b); /* pair (1, 2) by 2 radians, (3, 4) by 1; 5 and 6 stay */
    assert_true(fabs(y[0] - (cos(2) - 2 * sin(2))) < 1e-6 && fabs(y[1] - (sin(2) + 2 * cos(2))) < 1e-6);
    assert_true(fabs(y[2] - (3 * cos(1) - 4 * sin(1))) < 1e-6 && fabs(y[3] - (3 * sin(1) + 4 * cos(1))) < 1e-6);
    assert_true(y[4] == 5 && y[5] == 6);
    a.kind = INFER_ROPE_HALVES;
    a.magnitude = 2;
    op_run(&b); /* pairs (1, 3), (2, 4), twice as long */
    assert_true(fabs(y[0] - 2 * (cos(2) - 3 * sin(2))) < 1e-6 && fabs(y[2] - 2 * (sin(2) + 3 * cos(2))) < 1e-6);
    assert_true(fabs(y[1] - 2 * (2 * cos(1) - 4 * sin(1))) < 1e-6);
}

/* Lengths stay; the product of a query and a key depends on the distance of their positions only. */
static void test_rope_algebra(void **state)
{
    (void)state;
    enum { D = 64 };
    float x[2 * D], y[2 * D], freq[D / 2];
    int32_t pos[2];
    op_build b;
    op_fill(x, 2 * D, 9);
    for (int i = 0; i < D / 2; i++)
        freq[i] = (float)pow(10000, -2.0 * i / D);
    for (uint32_t kind = 0; kind < 2; kind++) {
        infer_attrs_rope a = {.struct_size = sizeof a, .kind = kind, .n_dims = D, .n_pos = 1};
        double first = 0;
        rope_build(&b, &a, x, pos, freq, y, 2, 1, D);
        for (int p = 0; p < 400; p += 37) {
            double xx = 0, yy = 0, dot = 0;
            pos[0] = p + 11;
            pos[1] = p;
            op_run(&b);
            for (int i = 0; i < D; i++) {
                xx += (double)x[i] * x[i];
                yy += (double)y[i] * y[i];
                dot += (double)y[i] * y[D + i];
            }
            assert_true(fabs(xx - yy) < 1e-5 * xx);
            if (!p)
                first = dot;
            assert_true(fabs(dot - first) < 1e-5 * xx);
        }
    }
}

/* With several positions each pair uses the one of its section; the same position everywhere changes nothing. */
static void test_rope_sections(void **state)
{
    (void)state;
    enum { D = 16 };
    float x[D], y[D], z[D], freq[D / 2];
    int32_t pos[3] = {5, 5, 5};
    infer_attrs_rope a = {.struct_size = sizeof a, .kind = INFER_ROPE_HALVES, .n_dims = D, .n_pos = 1};
    op_build b;
    op_fill(x, D, 9);
    op_fill(freq, D / 2, 10);
    rope_build(&b, &a, x, pos, freq, y, 1, 1, D);
    op_run(&b);
    a.n_pos = 3;
    a.section[0] = 2;
    a.section[1] = 0;
    a.section[2] = 6;
    rope_build(&b, &a, x, pos, freq, z, 1, 1, D);
    op_run(&b);
    assert_memory_equal(y, z, sizeof y);
    pos[1] = 99; /* of no pair */
    op_run(&b);
    assert_memory_equal(y, z, sizeof y);
    pos[2] = 0; /* pairs 2..7 stand still */
    op_run(&b);
    assert_memory_equal(y, z, 2 * sizeof *y);
    assert_memory_equal(x + 2, z + 2, 6 * sizeof *y);
    assert_memory_equal(x + 10, z + 10, 6 * sizeof *y);
}

static void test_kv_write(void **state)
{
    (void)state;
    /* 3 blocks of 2 tokens, 2 heads, widths 2 and 1 */
    float k[12], v[6], kpool[24], vpool[12];
    int32_t slots[3] = {5, -1, 0};
    infer_attrs_kv a = {.struct_size = sizeof a,
                        .k_format = INFER_FMT_F32,
                        .v_format = INFER_FMT_F32,
                        .n_kv_heads = 2,
                        .k_width = 2,
                        .v_width = 1,
                        .block_size = 2,
                        .n_blocks = 3};
    op_build b;
    for (int i = 0; i < 12; i++)
        k[i] = (float)i;
    for (int i = 0; i < 6; i++)
        v[i] = (float)(100 + i);
    for (int i = 0; i < 24; i++)
        kpool[i] = -1;
    for (int i = 0; i < 12; i++)
        vpool[i] = -1;
    op_begin(&b, INFER_OP_KV_WRITE, &a, sizeof a);
    OP_IN3(&b, F32, k, 3, 2, 2);
    OP_IN3(&b, F32, v, 3, 2, 1);
    OP_IN1(&b, I32, slots, 3);
    OP_OUT4(&b, F32, kpool, 3, 2, 2, 2);
    OP_OUT4(&b, F32, vpool, 3, 2, 2, 1);
    op_run(&b);
    /* row 0 at block 2 offset 1, row 2 at block 0 offset 0 */
    const float want_k[24] = {8, 9, -1, -1, 10, 11, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 1, -1, -1, 2, 3};
    const float want_v[12] = {104, -1, 105, -1, -1, -1, -1, -1, -1, 100, -1, 101};
    assert_memory_equal(kpool, want_k, sizeof kpool);
    assert_memory_equal(vpool, want_v, sizeof vpool);
    slots[1] = 6; /* past the end */
    slots[0] = slots[2] = INT32_MAX;
    op_run(&b);
    assert_memory_equal(kpool, want_k, sizeof kpool);

    /* move slot 5 to slot 1, then slot 1 on to slot 2 */
    int32_t src[3] = {5, 1, 9}, dst[3] = {1, 2, 0};
    a.v_format = a.v_width = 0;
    op_begin(&b, INFER_OP_KV_MOVE, &a, sizeof a);
    OP_IN4(&b, F32, kpool, 3, 2, 2, 2);
    OP_IN1(&b, I32, src, 3);
    OP_IN1(&b, I32, dst, 3);
    OP_OUT4(&b, F32, kpool, 3, 2, 2, 2);
    op_run(&b);
    assert_memory_equal(kpool, ((float[]){8, 9, 0, 1, 10, 11, 2, 3, 0, 1, -1, -1, 2, 3}), 14 * sizeof(float));

    /* blocks out and back in another order */
    float image[24], before[24];
    int32_t blocks[3] = {2, 7, 0};
    memcpy(before, kpool, sizeof before);
    op_begin(&b, INFER_OP_KV_PACK, &a, sizeof a);
    OP_IN4(&b, F32, kpool, 3, 2, 2, 2);
    OP_IN1(&b, I32, blocks, 3);
    OP_OUT4(&b, F32, image, 3, 2, 2, 2);
    op_run(&b);
    assert_memory_equal(image, before + 16, 8 * sizeof(float));
    for (int i = 8; i < 16; i++)
        assert_true(image[i] == 0);
    assert_memory_equal(image + 16, before, 8 * sizeof(float));
    for (int i = 0; i < 24; i++)
        kpool[i] = i >= 8 && i < 16 ? before[i] : 0;
    op_begin(&b, INFER_OP_KV_UNPACK, &a, sizeof a);
    OP_IN4(&b, F32, image, 3, 2, 2, 2);
    OP_IN1(&b, I32, blocks, 3);
    OP_OUT4(&b, F32, kpool, 3, 2, 2, 2);
    op_run(&b);
    assert_memory_equal(kpool, before, sizeof before);
}

/* ROPE_KV_WRITE is ROPE, then KV_WRITE, to the bit, in every cache format. */
static void test_rope_kv_write(void **state)
{
    (void)state;
    enum { N = 5, H = 2, D = 64, BLOCKS = 3, SIZE = 4 };
    static float k[N * H * D], v[N * H * D], turned[N * H * D], freq[D / 2];
    static _Alignas(64) uint8_t pools[4][BLOCKS * H * SIZE * D * 4];
    const infer_format formats[] = {INFER_FMT_F32,     INFER_FMT_F16,  INFER_FMT_BF16,
                                    INFER_FMT_F8_E4M3, INFER_FMT_Q8_0, INFER_FMT_Q4_0};
    int32_t pos[N] = {3, 4, 100, 0, 17}, slots[N] = {0, 11, 5, -1, 7};
    op_build b;
    op_fill(k, N * H * D, 1);
    op_fill(v, N * H * D, 2);
    for (int i = 0; i < D / 2; i++)
        freq[i] = (float)pow(10000, -2.0 * i / D);
    for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
        infer_attrs_rope_kv a = {
            .struct_size = sizeof a,
            .rope = {.kind = INFER_ROPE_HALVES, .n_dims = D, .n_pos = 1},
            .kv = {0, 0, formats[f], formats[f], H, D, D, SIZE, BLOCKS},
        };
        memset(pools, 0, sizeof pools);
        op_begin(&b, INFER_OP_ROPE_KV_WRITE, &a, sizeof a);
        OP_IN3(&b, F32, k, N, H, D);
        OP_IN3(&b, F32, v, N, H, D);
        OP_IN2(&b, I32, pos, N, 1);
        OP_IN1(&b, F32, freq, D / 2);
        OP_IN1(&b, I32, slots, N);
        op_add(&b, 1, formats[f], pools[0], 4, BLOCKS, H, SIZE, D);
        op_add(&b, 1, formats[f], pools[1], 4, BLOCKS, H, SIZE, D);
        op_run(&b);
        a.rope.struct_size = sizeof a.rope;
        rope_build(&b, &a.rope, k, pos, freq, turned, N, H, D);
        op_run(&b);
        a.kv.struct_size = sizeof a.kv;
        op_begin(&b, INFER_OP_KV_WRITE, &a.kv, sizeof a.kv);
        OP_IN3(&b, F32, turned, N, H, D);
        OP_IN3(&b, F32, v, N, H, D);
        OP_IN1(&b, I32, slots, N);
        op_add(&b, 1, formats[f], pools[2], 4, BLOCKS, H, SIZE, D);
        op_add(&b, 1, formats[f], pools[3], 4, BLOCKS, H, SIZE, D);
        op_run(&b);
        assert_memory_equal(pools[0], pools[2], sizeof pools[0]);
        assert_memory_equal(pools[1], pools[3], sizeof pools[1]);
        int any = 0;
        for (size_t i = 0; i < sizeof pools[0]; i++)
            any |= pools[0][i];
        assert_true(any);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matmul),        cmocka_unit_test(test_double_sums), cmocka_unit_test(test_quantised),
        cmocka_unit_test(test_gated_mlp),     cmocka_unit_test(test_qkv),         cmocka_unit_test(test_fused),
        cmocka_unit_test(test_add_norm),      cmocka_unit_test(test_route),       cmocka_unit_test(test_experts),
        cmocka_unit_test(test_lora),          cmocka_unit_test(test_rope),        cmocka_unit_test(test_rope_algebra),
        cmocka_unit_test(test_rope_sections), cmocka_unit_test(test_kv_write),    cmocka_unit_test(test_rope_kv_write),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
