/*
 * Weights in panels (backends/cpu/panel.h): the layout against the formats themselves, every instruction set's product
 * against the portable one bit by bit, and ops on packed weights. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <math.h>

#include "unit/cpu_fixture.h"

#include "cpu.h"

/* The kernels for AVX-VNNI compiled to AVX-512's form of its instruction, where that runs. */
static const kern_table *avxvnni_as_avx512(void)
{
#ifdef __x86_64__
    extern const kern_panels kern_avxvnni_test_panels;
    static kern_table t;
    if (!kern_avx512())
        return NULL;
    t = *kern_avx2();
    t.isa = "avxvnni as avx512";
    t.panel = &kern_avxvnni_test_panels;
    return &t;
#else
    return NULL;
#endif
}

/* What AMX takes for the formats that it leaves out, without AMX. */
static const kern_table *avx512_pairs(void)
{
    static kern_table t;
    if (!kern_avx512())
        return NULL;
    t = *kern_avx512();
    t.isa = "avx512 in pairs";
    t.panel = &kern_avx512_pair_panels;
    return &t;
}

static const kern_table *const *tables(void)
{
    static const kern_table *t[11];
    int n = 0;
    const kern_table *all[] = {kern_avx2(), avxvnni_as_avx512(), kern_avxvnni(), kern_avx512(), avx512_pairs(),
                               kern_amx(),  kern_neon(),         kern_i8mm(),    kern_sve(),    kern_svei8mm()};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i] && all[i]->panel)
            t[n++] = all[i];
    return t; /* ends with NULL */
}

static const infer_format formats[] = {
    INFER_FMT_Q4_0, INFER_FMT_Q4_1, INFER_FMT_Q5_0, INFER_FMT_Q5_1, INFER_FMT_Q8_0, INFER_FMT_MXFP4,
    INFER_FMT_Q2_K, INFER_FMT_Q3_K, INFER_FMT_Q4_K, INFER_FMT_Q5_K, INFER_FMT_Q6_K,
};
enum { N_FORMATS = sizeof formats / sizeof *formats };

/* n rows in panels, and as floats. */
typedef struct packed {
    const panel_format *f;
    uint64_t row_bytes, panel_bytes;
    uint8_t *rows, *panel;
    float *w;
} packed;

static packed pack(infer_format fmt, int64_t n, int64_t k, uint64_t seed)
{
    packed p = {.f = &panel_formats[fmt]};
    assert_int_equal(infer_format_bytes(fmt, (uint64_t)k, &p.row_bytes), INFER_OK);
    p.rows = random_weights(fmt, n * k, seed);
    p.panel_bytes = panel_bytes(p.f, k);
    p.panel = room((uint64_t)(n + PANEL_ROWS - 1) / PANEL_ROWS * p.panel_bytes);
    p.w = room((size_t)(n * k) * sizeof *p.w);
    infer_format_get(fmt)->unpack(p.rows, p.w, (uint64_t)(n * k));
    for (int64_t r = 0; r < n; r += PANEL_ROWS)
        panel_pack(fmt, p.rows + (uint64_t)r * p.row_bytes, p.row_bytes, n - r < PANEL_ROWS ? n - r : PANEL_ROWS, k,
                   p.panel + (uint64_t)(r / PANEL_ROWS) * p.panel_bytes);
    return p;
}

static void unpack(packed *p)
{
    free(p->rows);
    free(p->panel);
    free(p->w);
}

/* Codes, scales and minima give the format's own values; rows that are not there are zero. */
static void test_layout(void **state)
{
    enum { N = 13, K = 768 };
    (void)state;
    for (int i = 0; i < N_FORMATS; i++) {
        packed p = pack(formats[i], N, K, 3 + (uint64_t)i);
        const int64_t per = p.f->unit / PANEL_BLOCK, unit_bytes = p.f->head_bytes + per * p.f->block_bytes;
        for (int64_t b = 0; b < K / PANEL_BLOCK; b++) {
            const uint8_t *head = p.panel + b / per * unit_bytes;
            const uint8_t *block = head + p.f->head_bytes + b % per * p.f->block_bytes;
            uint8_t codes[PANEL_CODE_BYTES];
            panel_codes(p.f, block + p.f->scale_bytes, codes);
            for (int e = 0; e < PANEL_BLOCK; e++) {
                float scale[PANEL_ROWS], min[PANEL_ROWS];
                panel_scales(p.f, head, block, p.f->sub == 16 ? (uint32_t)e / 16 : 0, scale, min);
                for (int r = 0; r < PANEL_ROWS; r++) {
                    double code = codes[(e / 4 * PANEL_ROWS + r) * 4 + e % 4] - p.f->zero;
                    double got = (double)scale[r] * code + (double)min[r];
                    double want = r < N ? (double)p.w[r * K + b * PANEL_BLOCK + e] : 0;
                    double size = fabs((double)scale[r] * code) + fabs((double)min[r]);
                    if (r < N ? fabs(got - want) > 1e-6 * size : got != 0)
                        fail_msg("%s: row %d, element %lld: %g, not %g", infer_format_get(formats[i])->name, r,
                                 (long long)b * PANEL_BLOCK + e, got, want);
                }
            }
        }
        unpack(&p);
    }
}

/* What prepare in op_matmul.c relies on. */
static void test_blocks(void **state)
{
    (void)state;
    for (const kern_table *const *t = tables(); *t; t++)
        for (const kern_panels *p = (*t)->panel; p; p = p->below) {
            assert_in_range(p->block, 1, PANEL_BLOCK_MAX);
            assert_int_equal(p->block % p->tile, 0);
            assert_int_equal(p->block, (*t)->panel->block);
        }
}

static void test_tiles(void **state)
{
    (void)state;
    for (int64_t m = 1; m < 200; m++)
        for (int64_t at = 0, n, most = m % 2 ? PANEL_TILE : 16; at < m; at += n) {
            n = panel_tile_rows(m - at, most);
            assert_in_range(n, 1, most);
            for (int64_t i = at; i < at + n; i++) {
                int64_t first, rows;
                panel_tile(most, m, i, &first, &rows);
                assert_int_equal(first, at);
                assert_int_equal(rows, n);
            }
        }
}

static void quantize_all(const kern_panels *t, const float *x, int64_t m, int64_t k, int32_t zero, uint8_t *to)
{
    for (int64_t i = 0; i < m; i++) {
        int64_t first, rows;
        panel_tile(kern_panels_tile(t, m), m, i, &first, &rows);
        t->quantize(x + i * k, k, zero, to + first * (k / PANEL_BLOCK) * PANEL_X_BYTES, rows, i - first);
    }
}

static float number(const uint8_t *p)
{
    float v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Within half a step of the value; the numbers that are none; the same bytes from every instruction set. */
static void test_quantize(void **state)
{
    enum { B = 12, K = B * PANEL_BLOCK };
    float x[K];
    uint8_t *want = room(B * PANEL_X_BYTES), *got = room(B * PANEL_X_BYTES);
    (void)state;
    fill_noise(x, K, 5);
    for (int e = 0; e < PANEL_BLOCK; e++) {
        x[0 * PANEL_BLOCK + e] = 0;
        x[1 * PANEL_BLOCK + e] *= 1e-31f;
        x[2 * PANEL_BLOCK + e] *= 3e38f;
        x[3 * PANEL_BLOCK + e] = e == 9 ? NAN : x[3 * PANEL_BLOCK + e];
        x[4 * PANEL_BLOCK + e] = e == 31 ? -INFINITY : x[4 * PANEL_BLOCK + e];
        x[5 * PANEL_BLOCK + e] = e == 16 ? -1.0f : 0.0f;
        x[6 * PANEL_BLOCK + e] = 1.0f;
        x[7 * PANEL_BLOCK + e] *= 2e-30f;
        x[8 * PANEL_BLOCK + e] = e == 3 ? 1000.0f : x[8 * PANEL_BLOCK + e];
    }
    panel_quantize(x, K, 8, want, 1, 0);
    for (int b = 0; b < B; b++) {
        const uint8_t *p = want + b * PANEL_X_BYTES;
        float d = number(p + PANEL_X_D);
        int32_t sum = 0, n;
        for (int e = 0; e < PANEL_BLOCK; e++) {
            int32_t a = 256 * (int8_t)p[PANEL_X_HI + e] + (int8_t)p[PANEL_X_LO + e];
            double v = (double)x[b * PANEL_BLOCK + e];
            sum += a;
            assert_in_range(a + 32512, 0, 65024);
            assert_true(b == 3 || b == 4 ? isnan(d) && a == 0
                                         : fabs((double)d * a - v) <= (b == 1 ? 1e-30 : (double)d * 0.5001));
        }
        memcpy(&n, p + PANEL_X_N, sizeof n);
        assert_int_equal(n, -8 * sum);
        assert_true(isnan(d) || number(p + PANEL_X_DS) == d * (float)sum);
    }
    for (const kern_table *const *t = tables(); *t; t++) {
        (*t)->panel->quantize(x, K, 8, got, 1, 0);
        for (int b = 0; b < B; b++) /* which NaN is not said */
            for (int i = 0; i < PANEL_X_BYTES; i += 4)
                assert_true(
                    memcmp(want + b * PANEL_X_BYTES + i, got + b * PANEL_X_BYTES + i, 4) == 0 ||
                    (isnan(number(want + b * PANEL_X_BYTES + i)) && isnan(number(got + b * PANEL_X_BYTES + i))));
    }
    free(want);
    free(got);
}

/* The portable product against double arithmetic; then every other one, for all numbers of rows, of panels and parts of
 * K, against the portable one's bits for each row alone. */
static void test_product(void **state)
{
    enum { M = 41, K = 1536, NB = K / PANEL_BLOCK, PANELS = 3, N = PANELS * PANEL_ROWS, LD = N + 4 };
    static float x[M * K], alone[M * N], c[M * LD];
    uint8_t *tiles = room(M * NB * PANEL_X_BYTES);
    (void)state;
    fill_noise(x, M * K, 11);
    for (const kern_table *const *t = tables(); *t; t++)
        print_message("with %s, vectors of %u bytes\n", (*t)->isa, (*t)->simd_bytes);
    for (int i = 0; i < N_FORMATS; i++) {
        const char *name = infer_format_get(formats[i])->name;
        packed p = pack(formats[i], N, K, 20 + (uint64_t)i);
        const int64_t bytes = (int64_t)p.panel_bytes;
        memset(alone, 0, sizeof alone);
        for (int64_t m = 0; m < M; m++) {
            panel_quantize(x + m * K, K, p.f->zero, tiles, 1, 0);
            panel_generic_dots[formats[i]](p.panel, bytes, PANELS, tiles, 1, 0, NB, NB, alone + m * N, N);
            for (int r = 0; r < N; r++) {
                double want = 0, size = 0;
                for (int64_t k = 0; k < K; k++) {
                    double t = (double)p.w[r * K + k] * (double)x[m * K + k];
                    want += t;
                    size += fabs(t);
                }
                if (fabs((double)alone[m * N + r] - want) > 4e-6 * size)
                    fail_msg("%s: row %lld, weight row %d: %g, not %g", name, (long long)m, r, (double)alone[m * N + r],
                             want);
            }
        }
        for (const kern_table *const *t = tables(); *t; t++)
            for (int64_t m = 1; m <= M && (*t)->panel->dots[formats[i]]; m++)
                for (int64_t part = NB; part >= 8; part -= m == M ? 8 : NB) {
                    const int64_t n_panels = 1 + (m + part) % PANELS;
                    quantize_all((*t)->panel, x, m, K, p.f->zero, tiles);
                    memset(c, 0, sizeof c);
                    for (int64_t b = 0; b < NB; b += part)
                        (*t)->panel->dots[formats[i]](p.panel, bytes, n_panels, tiles, m, b,
                                                      NB - b < part ? NB - b : part, NB, c, LD);
                    for (int64_t j = 0; j < M * LD; j++) {
                        float want = j / LD < m && j % LD < n_panels * PANEL_ROWS ? alone[j / LD * N + j % LD] : 0;
                        if (memcmp(&c[j], &want, sizeof want) != 0)
                            fail_msg("%s %s: %lld rows, %lld panels in parts of %lld, at %lld: %g, not %g", (*t)->isa,
                                     name, (long long)m, (long long)n_panels, (long long)part, (long long)j,
                                     (double)c[j], (double)want);
                    }
                }
        unpack(&p);
    }
    free(tiles);
}

/* ---- Through the backend's functions --------------------------------------------------------------------------- */

/* Packs [e][n][k] in uneven pieces; the image, or NULL where this device keeps weights as they are. */
static uint8_t *load(fixture *f, infer_format fmt, infer_op_id use, const uint8_t *rows, int64_t e, int64_t n,
                     int64_t k, uint32_t *layout)
{
    infer_weight_desc d = {.struct_size = sizeof d, .quant.format = fmt, .rank = 3, .use = use, .shape = {e, n, k}};
    infer_weight_plan plan = {.struct_size = sizeof plan};
    infer_weight *w;
    infer_buffer *b;
    uint64_t bytes;
    if (f->ops->weight_plan(f->dev, &d, &plan) == INFER_E_UNSUPPORTED)
        return NULL;
    assert_int_equal(infer_format_bytes(fmt, (uint64_t)(e * n * k), &bytes), INFER_OK);
    uint8_t *image = room(plan.packed_bytes);
    memset(image, 0xA5, plan.packed_bytes + 64);
    assert_int_equal(f->ops->buf_import_host(f->dev, image, plan.packed_bytes, &b), INFER_OK);
    infer_range dst = {b, 0, plan.packed_bytes};
    assert_int_equal(f->ops->weight_begin(f->dev, &d, &plan, &dst, &w), INFER_OK);
    assert_int_equal(f->ops->weight_append(w, 0, rows, bytes / 2), INFER_OK);
    assert_int_equal(f->ops->weight_finish(w), INFER_E_INVALID); /* half is missing */
    f->ops->weight_destroy(w);
    assert_int_equal(f->ops->weight_begin(f->dev, &d, &plan, &dst, &w), INFER_OK);
    for (uint64_t at = 0, step = 1; at < bytes; at += step) {
        step = step * 7 % 20011 + 1;
        step = step < bytes - at ? step : bytes - at;
        assert_int_equal(f->ops->weight_append(w, 0, rows + at, step), INFER_OK);
    }
    assert_int_equal(f->ops->weight_append(w, 0, rows, 1), INFER_E_INVALID);
    assert_int_equal(f->ops->weight_append(w, 1, rows, 1), INFER_E_INVALID);
    assert_int_equal(f->ops->weight_finish(w), INFER_OK);
    f->ops->weight_destroy(w);
    for (int i = 0; i < 64; i++)
        assert_int_equal(image[plan.packed_bytes + (uint64_t)i], 0xA5);
    f->ops->buf_free(f->dev, b);
    *layout = plan.layout;
    return image;
}

/* Rows of experts by their choice, many at once and one by one: near the exact result, and the same bits. */
static void test_experts(void **state)
{
    enum { M = 230, TOP = 2, E = 3, N = 72, K = 512 };
    static const char *const threads[] = {"1", "3"};
    static float x[M * K], y[M * TOP * N], one[TOP * N], full[E * N * K];
    static int32_t ids[M * TOP];
    (void)state;
    fill_noise(x, M * K, 1);
    uint64_t s = 5;
    for (int i = 0; i < M * TOP; i++)
        ids[i] = (int32_t)(noise(&s) * 1.9f + 1.9f); /* now and then out of range */
    for (int i = 0; i < N_FORMATS * 2; i++) {
        fixture f;
        infer_format fmt = formats[i / 2];
        uint32_t layout = 0;
        const infer_attrs_matmul a = {.struct_size = sizeof a};
        assert_true(fixture_open(&f, "auto", threads[i % 2]));
        uint8_t *rows = random_weights(fmt, E * N * K, 2);
        uint8_t *image = load(&f, fmt, INFER_OP_MOE_MATMUL, rows, E, N, K, &layout);
        if (image) {
            infer_format_get(fmt)->unpack(rows, full, E * N * K);
            operand o[4] = {tensor(INFER_FMT_F32, x, 2, M, K, 1, 1), tensor(fmt, image, 3, E, N, K, 1),
                            tensor(INFER_FMT_I32, ids, 2, M, TOP, 1, 1), tensor(INFER_FMT_F32, y, 3, M, TOP, N, 1)};
            o[1].desc.layout = layout;
            run_op(&f, INFER_OP_MOE_MATMUL, &a, sizeof a, o, 3, 1, -1);
            for (int r = 0; r < M; r++) {
                o[0] = tensor(INFER_FMT_F32, x + r * K, 2, 1, K, 1, 1);
                o[2] = tensor(INFER_FMT_I32, ids + r * TOP, 2, 1, TOP, 1, 1);
                o[3] = tensor(INFER_FMT_F32, one, 3, 1, TOP, N, 1);
                run_op(&f, INFER_OP_MOE_MATMUL, &a, sizeof a, o, 3, 1, -1);
                assert_memory_equal(one, y + r * TOP * N, sizeof one);
                for (int j = 0; j < TOP * N && r % 16 == 0; j++) {
                    int32_t e = ids[r * TOP + j / N];
                    double want = 0, size = 0;
                    for (int k = 0; k < K && e >= 0 && e < E; k++) {
                        double t = (double)x[r * K + k] * (double)full[((int64_t)e * N + j % N) * K + k];
                        want += t;
                        size += fabs(t);
                    }
                    assert_true(fabs((double)one[j] - want) <= 4e-6 * size);
                }
            }
        }
        free(image);
        free(rows);
        fixture_close(&f);
    }
}

/* Gate and up with panels of two kinds, as where AMX is: their blocks of rows must be the same. */
static void test_two_kinds(void **state)
{
    enum { M = 100, K = 512, F = 96, D = 32, W = 3 };
    static const infer_format fmt[W] = {INFER_FMT_Q4_K, INFER_FMT_Q6_K, INFER_FMT_Q4_0};
    const int64_t n[W] = {F, F, D}, k[W] = {K, K, F};
    static float x[M * K], y[M * D], one[D];
    static panel_dot_fn dots[INFER_FMT_COUNT];
    fixture f;
    (void)state;
    if (!fixture_open(&f, "avx512", "3"))
        return;
    memcpy(dots, kern_avx512_panels.dots, sizeof dots);
    dots[INFER_FMT_Q6_K] = NULL;
    kern_panels first = kern_avx512_panels;
    first.dots = dots;
    first.below = &kern_avx512_pair_panels;
    kern_table t = *f.dev->kern;
    t.panel = &first;
    f.dev->kern = &t;
    infer_attrs_act a = {.struct_size = sizeof a, .act = INFER_ACT_SILU};
    operand o[2 + W];
    uint8_t *rows[W], *image[W];
    fill_noise(x, M * K, 1);
    for (int i = 0; i < W; i++) {
        uint32_t layout = 0;
        rows[i] = random_weights(fmt[i], n[i] * k[i], 2 + (uint64_t)i);
        image[i] = load(&f, fmt[i], INFER_OP_GATED_MLP, rows[i], 1, n[i], k[i], &layout);
        assert_non_null(image[i]);
        o[1 + i] = tensor(fmt[i], image[i], 2, n[i], k[i], 1, 1);
        o[1 + i].desc.layout = layout;
    }
    o[0] = tensor(INFER_FMT_F32, x, 2, M, K, 1, 1);
    o[1 + W] = tensor(INFER_FMT_F32, y, 2, M, D, 1, 1);
    run_op(&f, INFER_OP_GATED_MLP, &a, sizeof a, o, 1 + W, 1, -1);
    for (int r = 0; r < M; r++) {
        o[0] = tensor(INFER_FMT_F32, x + r * K, 2, 1, K, 1, 1);
        o[1 + W] = tensor(INFER_FMT_F32, one, 2, 1, D, 1, 1);
        run_op(&f, INFER_OP_GATED_MLP, &a, sizeof a, o, 1 + W, 1, -1);
        assert_memory_equal(one, y + r * D, sizeof one);
    }
    for (int i = 0; i < W; i++) {
        free(rows[i]);
        free(image[i]);
    }
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout),    cmocka_unit_test(test_blocks),  cmocka_unit_test(test_tiles),
        cmocka_unit_test(test_quantize),  cmocka_unit_test(test_product), cmocka_unit_test(test_experts),
        cmocka_unit_test(test_two_kinds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
