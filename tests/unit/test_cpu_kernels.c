/*
 * The CPU backend against plain double arithmetic, and the promise that a row's result is the same bits whatever runs
 * with it: each kernel table, with one thread and with more. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <math.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "unit/cpu_fixture.h"

#include "kern.h"
#include "workers.h"

static const kern_table *tables[3];
static int n_tables;

static const infer_format weight_formats[] = {
    INFER_FMT_F32,  INFER_FMT_F16,  INFER_FMT_BF16, INFER_FMT_F8_E4M3, INFER_FMT_F8_E5M2, INFER_FMT_Q4_0,
    INFER_FMT_Q4_1, INFER_FMT_Q5_0, INFER_FMT_Q5_1, INFER_FMT_Q8_0,    INFER_FMT_Q2_K,    INFER_FMT_Q3_K,
    INFER_FMT_Q4_K, INFER_FMT_Q5_K, INFER_FMT_Q6_K, INFER_FMT_MXFP4,
};
enum { N_WEIGHT_FORMATS = sizeof weight_formats / sizeof weight_formats[0] };

static const struct {
    const char *isa, *threads;
} settings[] = {{"generic", "1"}, {"generic", "3"}, {"avx2", "1"}, {"avx2", "3"}, {"avx512", "1"}, {"avx512", "3"}};
enum { N_SETTINGS = sizeof settings / sizeof settings[0] };

#define EACH_SETTING(f)                                                                                                \
    for (int setting_ = 0; setting_ < N_SETTINGS; setting_++)                                                          \
        if (fixture_open(&(f), settings[setting_].isa, settings[setting_].threads))

static double dot_double(const float *a, const float *b, int64_t n)
{
    double s = 0;
    for (int64_t i = 0; i < n; i++)
        s += (double)a[i] * (double)b[i];
    return s;
}

/* ---- Kernels --------------------------------------------------------------------------------------------------- */

static void test_unpack(void **state)
{
    enum { N = 256 * 37 };
    (void)state;
    for (int i = 0; i < N_WEIGHT_FORMATS; i++) {
        infer_format fmt = weight_formats[i];
        const infer_format_info *info = infer_format_get(fmt);
        void *w = random_weights(fmt, N, 7 + (uint64_t)i);
        float *want = room(N * 4), *got = room(N * 4);
        info->unpack(w, want, N);
        for (int t = 0; t < n_tables; t++) {
            const kern_format *f = &tables[t]->format[fmt];
            assert_int_equal(f->block_elems, info->block_elems);
            assert_int_equal(f->block_bytes, info->block_bytes);
            f->unpack(w, got, N);
            for (int j = 0; j < N; j++)
                if (got[j] != want[j])
                    fail_msg("%s %s: element %d is %g, not %g", tables[t]->isa, info->name, j, (double)got[j],
                             (double)want[j]);
        }
        free(w);
        free(want);
        free(got);
    }
}

/* Every float16, through unpack; floats around all of them, and odd ones, through pack. */
static void test_halves(void **state)
{
    enum { N = 65536 };
    static uint16_t half[N], packed[N], reference[N];
    static float value[N];
    (void)state;
    for (int t = 0; t < n_tables; t++) {
        for (int i = 0; i < N; i++)
            half[i] = (uint16_t)i;
        tables[t]->format[INFER_FMT_F16].unpack(half, value, N);
        for (int i = 0; i < N; i++) {
            float want = infer_f16_to_f32((uint16_t)i);
            assert_true(isnan(want) ? isnan(value[i]) : memcmp(&want, &value[i], 4) == 0);
        }
        for (int step = 0; step < 4; step++) {
            for (int i = 0; i < N; i++) {
                uint32_t u = (uint32_t)i << 16 | (step == 0 ? 0 : step == 1 ? 0x1000 : step == 2 ? 0x1001 : 0x8000);
                memcpy(&value[i], &u, 4);
            }
            const infer_format formats[2] = {INFER_FMT_F16, INFER_FMT_BF16};
            for (int k = 0; k < 2; k++) {
                tables[t]->format[formats[k]].pack(value, packed, N);
                infer_format_get(formats[k])->pack(value, reference, N);
                for (int i = 0; i < N; i++)
                    assert_true(isnan(value[i]) || packed[i] == reference[i]);
            }
        }
    }
}

static int same_number(float a, float b)
{
    return isnan(a) ? isnan(b) : memcmp(&a, &b, sizeof a) == 0;
}

/* Every code of E4M3, NaN among them, as it is unpacked and as attention reads it: key and value of one element that is
 * not 0, so that sums and products are exact. */
static void test_codes(void **state)
{
    enum { D = 16, KEYS = KERN_PANEL_KEYS };
    (void)state;
    for (int t = 0; t < n_tables; t++) {
        const kern_table *k = tables[t];
        for (int c = 0; c < 256; c++) {
            uint8_t row[KEYS][D] = {{0}};
            const uint8_t *where[KEYS];
            float want, got[D], x[D], p[KERN_KEYS] = {0}, s[KERN_KEYS] = {0}, o[D] = {0};
            const float *xs[1] = {x};
            const uint8_t code = (uint8_t)c;
            const int at = c % D, key = c / D;
            infer_format_get(INFER_FMT_F8_E4M3)->unpack(&code, &want, 1);
            for (int i = 0; i < D; i++)
                x[i] = 1;
            for (int i = 0; i < KEYS; i++)
                where[i] = row[i];
            row[key][at] = code;
            p[key] = 1;
            k->format[INFER_FMT_F8_E4M3].unpack(row[key], got, D);
            assert_true(same_number(want, got[at]));
            if (!k->attn || !k->attn->direct[INFER_FMT_F8_E4M3])
                continue;
            k->attn->direct[INFER_FMT_F8_E4M3](where, where, xs, 1, D, s);
            assert_true(isnan(want) ? isnan(s[key]) : s[key] == want);
            k->attn->weigh[INFER_FMT_F8_E4M3](where, NULL, KEYS, p, 1, o, D);
            assert_true(isnan(want) ? isnan(o[at]) : o[at] == want);
        }
    }
}

/* Blocks with ties, zeros, tiny and odd numbers. */
static void test_pack_q8_0(void **state)
{
    enum { N = 32 * 200 };
    static float x[N];
    static uint8_t want[N / 32 * 34], got[N / 32 * 34];
    (void)state;
    fill_noise(x, N, 6);
    for (int i = 0; i < N; i++) {
        int b = i / 32;
        x[i] = b % 5 == 0   ? (float)(int)(x[i] * 254) * 0.5f
               : b % 5 == 1 ? x[i] * 1e-38f
               : b % 5 == 2 ? x[i] * 1e30f
                            : x[i];
        if (b % 5 == 0 && i % 32 == 7)
            x[i] = 127;
        if (b % 11 == 3)
            x[i] = 0;
        if (b % 13 == 4 && i % 9 == 0)
            x[i] = NAN;
    }
    infer_format_get(INFER_FMT_Q8_0)->pack(x, want, N);
    for (int t = 0; t < n_tables; t++) {
        tables[t]->format[INFER_FMT_Q8_0].pack(x, got, N);
        assert_memory_equal(got, want, sizeof want);
    }
}

/* The dot kernels and the tile kernel take the same sum; both are near the exact one. */
static void test_sums(void **state)
{
    static const int64_t sizes[] = {256, 512, 768, 1024, 2048, 2816};
    (void)state;
    for (int t = 0; t < n_tables; t++)
        for (int i = 0; i < N_WEIGHT_FORMATS; i++)
            for (int s = 0; s < 6; s++) {
                const kern_format *f = &tables[t]->format[weight_formats[i]];
                int64_t k = sizes[s], row_bytes = k / f->block_elems * f->block_bytes;
                uint8_t *w = random_weights(weight_formats[i], 4 * k, 11 + (uint64_t)s);
                float *x = room((size_t)k * 4), *full = room((size_t)k * 16), dot[20], sum[4] = {0};
                const uint8_t *row[4] = {w, w + row_bytes, w + 2 * row_bytes, w + 3 * row_bytes};
                fill_noise(x, (size_t)k, 5);
                f->unpack(w, full, 4 * k);
                for (int64_t k0 = 0; k0 < k; k0 += KERN_CHUNK) {
                    const float *part = x + k0;
                    tables[t]->tile(full + k0, k, &part, 1, k - k0 < KERN_CHUNK ? k - k0 : KERN_CHUNK, sum, 4);
                }
                for (int r = 0; r < 4; r++) {
                    double exact = dot_double(full + r * k, x, k), size = 0;
                    for (int64_t j = 0; j < k; j++)
                        size += fabs((double)full[r * k + j] * (double)x[j]);
                    assert_true(fabs((double)sum[r] - exact) <= size * 1e-6);
                }
                const float *same[4] = {x, x, x, x};
                for (int rows = 1; f->dot && rows <= tables[t]->dot_rows; rows++) {
                    f->dot(row, same, rows, k, dot, 5);
                    for (int r = 0; r < 4 * rows; r++)
                        assert_memory_equal(&dot[r / 4 * 5 + r % 4], &sum[r % 4], 4);
                }
                free(w);
                free(x);
                free(full);
            }
}

static void test_vectors(void **state)
{
    enum { N = 515 };
    static float x[N], y[N], z[N];
    (void)state;
    for (int t = 0; t < n_tables; t++) {
        const kern_table *k = tables[t];
        for (int n = 0; n <= N; n += n < 20 ? 1 : 99) {
            fill_noise(x, N, 3);
            fill_noise(y, N, 4);
            for (int i = 0; i < N; i++)
                x[i] *= 20;
            double sum = 0, squares = 0;
            float most = -INFINITY;
            for (int i = 0; i < n; i++) {
                sum += (double)x[i];
                squares += ((double)x[i] - 0.5) * ((double)x[i] - 0.5);
                most = fmaxf(most, x[i]);
            }
            assert_true(fabs(k->sum(x, n) - sum) < 1e-9);
            assert_true(fabs(k->sum_squares(x, 0.5, n) - squares) < 1e-8);
            assert_true(k->max(x, n) == most);
            memcpy(z, x, sizeof z);
            float total = k->exp_sum(z, 0.5f, 3, n);
            double want = 0;
            for (int i = 0; i < n; i++) {
                double e = exp((double)x[i] * 0.5 - 3);
                want += e;
                assert_true(fabs((double)z[i] - e) <= e * 2e-6);
            }
            assert_true(z[n < N ? n : 0] == (n < N ? x[n] : z[0])); /* nothing past the end */
            assert_true(fabs((double)total - want) <= want * 2e-6);
            for (uint32_t a = 0; a <= INFER_ACT_SIGMOID; a++) {
                k->act(a, 1.5f, x, y, z, n);
                for (int i = 0; i < n; i++) {
                    double v = fmin((double)x[i], 1.5), u = (double)y[i], r;
                    r = a == INFER_ACT_SILU        ? v / (1 + exp(-v))
                        : a == INFER_ACT_GELU      ? 0.5 * v * erfc(-v * 0.70710678118654752)
                        : a == INFER_ACT_GELU_TANH ? v / (1 + exp(-2 * 0.7978845608028654 * (v + 0.044715 * v * v * v)))
                        : a == INFER_ACT_RELU      ? fmax(v, 0)
                                                   : 1 / (1 + exp(-v));
                    assert_true(fabs((double)z[i] - r * u) <= 1e-6 * (1e-2 + fabs(r * u)));
                }
            }
            k->norm(x, 0.25f, 2, y, 1, x, z, n);
            for (int i = 0; i < n; i++)
                assert_true(fabsf(z[i] - ((x[i] - 0.25f) * 2 * (y[i] + 1) + x[i])) < 1e-5f * (1 + fabsf(x[i])));
        }
        double far[7] = {0, -1, -30.5, -700, -745, -INFINITY, -0.001}, copy[7], exact = 0;
        memcpy(copy, far, sizeof far);
        k->exp_all(copy, 0, 0.5, 7);
        for (int i = 0; i < 7; i++) {
            exact += exp(far[i] / 0.5);
            assert_true(fabs(copy[i] - exp(far[i] / 0.5)) <= 1e-15 * exp(far[i] / 0.5) + 1e-320);
        }
        assert_true(fabs(k->exp_total(far, 0, 0.5, 7) - exact) <= 1e-15 * exact);
        float odd[8] = {INFINITY, -INFINITY, NAN, 1, 0, -1, 100, -200};
        k->exp_sum(odd, 1, 0, 8);
        assert_true(odd[0] == INFINITY && odd[1] == 0 && isnan(odd[2]) && odd[4] == 1 && odd[6] == INFINITY &&
                    odd[7] == 0);
        float nans[9] = {NAN, NAN, 1, NAN, -3, NAN, NAN, NAN, 2};
        assert_true(k->max(nans, 9) == 2 && k->max(nans, 2) == -INFINITY && k->max(nans, 8) == 1);
    }
}

/* ---- MATMUL ---------------------------------------------------------------------------------------------------- */

static void run_matmul(fixture *f, infer_format fmt, void *w, int64_t n, int64_t k, float *x, int64_t m, float *y)
{
    const infer_attrs_matmul a = {.struct_size = sizeof a};
    const operand o[4] = {tensor(INFER_FMT_F32, x, 2, m, k, 1, 1), tensor(fmt, w, 2, n, k, 1, 1), absent(),
                          tensor(INFER_FMT_F32, y, 2, m, n, 1, 1)};
    run_op(f, INFER_OP_MATMUL, &a, sizeof a, o, 3, 1, -1);
}

static void test_matmul(void **state)
{
    enum { M = 130, N = 77 };
    static const int64_t chunks[] = {1, 2, 7, 64, 97};
    fixture f;
    (void)state;
    EACH_SETTING(f)
    {
        for (int i = 0; i < N_WEIGHT_FORMATS; i++) {
            infer_format fmt = weight_formats[i];
            int64_t k = infer_format_get(fmt)->block_elems == 256  ? 768
                        : infer_format_get(fmt)->block_elems == 32 ? 576
                                                                   : 579;
            void *w = random_weights(fmt, N * k, 21);
            float *x = room((size_t)(M * k) * 4), *y = room(M * N * 4), *part = room(M * N * 4);
            float *full = room((size_t)(N * k) * 4);
            fill_noise(x, (size_t)(M * k), 9);
            run_matmul(&f, fmt, w, N, k, x, M, y);
            infer_format_get(fmt)->unpack(w, full, (uint64_t)(N * k));
            for (int64_t r = 0; r < M; r += 43)
                for (int64_t c = 0; c < N; c++)
                    assert_true(fabs((double)y[r * N + c] - dot_double(x + r * k, full + c * k, k)) < 1e-4);
            for (int c = 0; c < 5; c++) {
                memset(part, 0xFF, M * N * 4);
                for (int64_t r = 0; r < M; r += chunks[c])
                    run_matmul(&f, fmt, w, N, k, x + r * k, M - r < chunks[c] ? M - r : chunks[c], part + r * N);
                assert_memory_equal(part, y, M * N * 4);
            }
            free(w);
            free(x);
            free(y);
            free(part);
            free(full);
        }
        fixture_close(&f);
    }
}

/* Epilogue, bias, half-precision rows, and rows beyond the count left alone. */
static void test_matmul_rows(void **state)
{
    enum { M = 9, N = 40, K = 64 };
    static float x[M * K], w[N * K], bias[N], y[M * N];
    static uint16_t xh[M * K], yh[M * N];
    fixture f;
    (void)state;
    fill_noise(x, M * K, 1);
    fill_noise(w, N * K, 2);
    fill_noise(bias, N, 3);
    infer_format_get(INFER_FMT_F16)->pack(x, xh, M * K);
    infer_format_get(INFER_FMT_F16)->unpack(xh, x, M * K);
    EACH_SETTING(f)
    {
        const infer_attrs_matmul a = {.struct_size = sizeof a, .scale = 0.5f};
        operand o[4] = {tensor(INFER_FMT_F16, xh, 2, M, K, 1, 1), tensor(INFER_FMT_F32, w, 2, N, K, 1, 1),
                        tensor(INFER_FMT_F32, bias, 1, N, 1, 1, 1), tensor(INFER_FMT_F32, y, 2, M, N, 1, 1)};
        memset(y, 0xFF, sizeof y);
        run_op(&f, INFER_OP_MATMUL, &a, sizeof a, o, 3, 1, 6);
        for (int i = 0; i < M * N; i++)
            assert_true(i < 6 * N ? fabs((double)y[i] - (0.5 * dot_double(x + i / N * K, w + i % N * K, K) +
                                                         (double)bias[i % N])) < 1e-5
                                  : isnan(y[i]));
        o[3] = tensor(INFER_FMT_F16, yh, 2, M, N, 1, 1);
        run_op(&f, INFER_OP_MATMUL, &a, sizeof a, o, 3, 1, 6);
        for (int i = 0; i < 6 * N; i++)
            assert_int_equal(yh[i], infer_f32_to_f16(y[i]));
        fixture_close(&f);
    }
}

static void test_moe(void **state)
{
    enum { M = 50, TOP = 3, E = 7, N = 36, K = 96 };
    static float x[M * K], y[M * TOP * N], part[M * TOP * N], full[E * N * K];
    static int32_t ids[M * TOP];
    fixture f;
    (void)state;
    fill_noise(x, M * K, 1);
    uint64_t s = 5;
    for (int i = 0; i < M * TOP; i++)
        ids[i] = (int32_t)(noise(&s) * 4.5f + 3.5f); /* now and then out of range */
    void *w = random_weights(INFER_FMT_Q8_0, E * N * K, 2);
    infer_format_get(INFER_FMT_Q8_0)->unpack(w, full, E * N * K);
    EACH_SETTING(f)
    {
        const infer_attrs_matmul a = {.struct_size = sizeof a};
        operand o[4] = {tensor(INFER_FMT_F32, x, 2, M, K, 1, 1), tensor(INFER_FMT_Q8_0, w, 3, E, N, K, 1),
                        tensor(INFER_FMT_I32, ids, 2, M, TOP, 1, 1), tensor(INFER_FMT_F32, y, 3, M, TOP, N, 1)};
        run_op(&f, INFER_OP_MOE_MATMUL, &a, sizeof a, o, 3, 1, -1);
        for (int i = 0; i < M * TOP * N; i++) {
            int32_t e = ids[i / N];
            double want = e < 0 || e >= E ? 0 : dot_double(x + i / N / TOP * K, full + ((int64_t)e * N + i % N) * K, K);
            assert_true(fabs((double)y[i] - want) < 1e-5);
        }
        for (int r = 0; r < M; r++) {
            o[0] = tensor(INFER_FMT_F32, x + r * K, 2, 1, K, 1, 1);
            o[2] = tensor(INFER_FMT_I32, ids + r * TOP, 2, 1, TOP, 1, 1);
            o[3] = tensor(INFER_FMT_F32, part + r * TOP * N, 3, 1, TOP, N, 1);
            run_op(&f, INFER_OP_MOE_MATMUL, &a, sizeof a, o, 3, 1, -1);
        }
        assert_memory_equal(part, y, sizeof y);
        fixture_close(&f);
    }
    free(w);
}

/* ---- Attention ------------------------------------------------------------------------------------------------- */

enum { HEADS = 6, KV = 2, BS = 16, N_BLOCKS = 128, TABLE = 48 };

/* A pool of keys and values, and how sequences lie in it. */
typedef struct world {
    infer_format format;
    int64_t d;
    void *k, *v;
    float *kf, *vf; /* the same as floats */
    int32_t table[2 * TABLE];
} world;

static void world_make(world *w, infer_format format, int64_t d)
{
    int64_t n = (int64_t)N_BLOCKS * KV * BS * d;
    *w = (world){.format = format, .d = d, .k = random_weights(format, n, 31), .v = random_weights(format, n, 32)};
    w->kf = room((size_t)n * 4);
    w->vf = room((size_t)n * 4);
    infer_format_get(format)->unpack(w->k, w->kf, (uint64_t)n);
    infer_format_get(format)->unpack(w->v, w->vf, (uint64_t)n);
    for (int i = 0; i < 2 * TABLE; i++)
        w->table[i] = (i * 37 + 5) % N_BLOCKS;
}

static void world_free(world *w)
{
    free(w->k);
    free(w->v);
    free(w->kf);
    free(w->vf);
}

/* rows [first, first + n) of q, the newest of a sequence that then has `len` keys. */
static void run_attention(fixture *f, const world *w, const infer_attrs_attn *a, const int32_t *table, float *q,
                          const int32_t *len, const int32_t *start, int32_t seqs, float *sinks, float *y)
{
    int64_t n = start[seqs];
    operand o[9] = {tensor(INFER_FMT_F32, q, 3, n, HEADS, w->d, 1),
                    tensor(w->format, w->k, 4, N_BLOCKS, KV, BS, w->d),
                    tensor(w->format, w->v, 4, N_BLOCKS, KV, BS, w->d),
                    tensor(INFER_FMT_I32, (void *)(uintptr_t)table, 2, seqs, TABLE, 1, 1),
                    tensor(INFER_FMT_I32, (void *)(uintptr_t)len, 1, seqs, 1, 1, 1),
                    tensor(INFER_FMT_I32, (void *)(uintptr_t)start, 1, seqs + 1, 1, 1, 1),
                    sinks ? tensor(INFER_FMT_F32, sinks, 1, HEADS, 1, 1, 1) : absent(),
                    absent(),
                    tensor(INFER_FMT_F32, y, 3, n, HEADS, w->d, 1)};
    run_op(f, INFER_OP_ATTN_PAGED, a, sizeof *a, o, 8, 1, -1);
}

static void exact_row(const world *w, const infer_attrs_attn *a, const int32_t *table, const float *q, int64_t pos,
                      int64_t head, const float *sinks, double *out)
{
    static double score[TABLE * BS];
    double most = sinks ? (double)sinks[head] : -INFINITY, sum = 0;
    int64_t lo = a->mask == INFER_MASK_WINDOW && pos - a->window + 1 > 0 ? pos - a->window + 1 : 0;
    for (int64_t t = lo; t <= pos; t++) {
        int64_t at = ((table[t / BS] * KV + head / (HEADS / KV)) * BS + t % BS) * w->d;
        double s = dot_double(q, w->kf + at, w->d) * (double)a->scale;
        score[t] = a->soft_cap > 0 ? (double)a->soft_cap * tanh(s / (double)a->soft_cap) : s;
        most = fmax(most, score[t]);
    }
    for (int64_t i = 0; i < w->d; i++)
        out[i] = 0;
    for (int64_t t = lo; t <= pos; t++) {
        int64_t at = ((table[t / BS] * KV + head / (HEADS / KV)) * BS + t % BS) * w->d;
        double p = exp(score[t] - most);
        sum += p;
        for (int64_t i = 0; i < w->d; i++)
            out[i] += p * (double)w->vf[at + i];
    }
    sum += sinks ? exp((double)sinks[head] - most) : 0;
    for (int64_t i = 0; i < w->d; i++)
        out[i] /= sum;
}

static void check_attention(infer_format format, int64_t d, uint32_t mask, uint32_t window, float cap, int with_sinks)
{
    enum { LEN = 700 };
    static const int32_t chunks[] = {1, 7, 64, 512};
    float sinks[HEADS] = {0.5f, -1, 2, 0, 1, 3};
    infer_attrs_attn a = {.struct_size = sizeof a, .mask = mask, .window = window, .scale = 0.3f, .soft_cap = cap};
    a.n_heads = HEADS;
    world w;
    fixture f;
    world_make(&w, format, d);
    int64_t width = HEADS * d;
    a.kv = (infer_attrs_kv){sizeof a.kv, 0, format, format, KV, (uint32_t)d, (uint32_t)d, BS, N_BLOCKS};
    size_t bytes = (size_t)(LEN * width) * 4;
    float *q = room(bytes), *y = room(bytes), *part = room(bytes);
    double *want = room((size_t)d * 8);
    fill_noise(q, (size_t)(LEN * width), 17);
    EACH_SETTING(f)
    {
        const int32_t one[2] = {0, LEN}, len = LEN;
        run_attention(&f, &w, &a, w.table, q, &len, one, 1, with_sinks ? sinks : NULL, y);
        for (int64_t r = 0; r < LEN; r += 61)
            for (int64_t h = 0; h < HEADS; h++) {
                exact_row(&w, &a, w.table, q + r * width + h * d, r, h, with_sinks ? sinks : NULL, want);
                for (int64_t i = 0; i < d; i++)
                    assert_true(fabs((double)y[r * width + h * d + i] - want[i]) < 2e-6);
            }
        /* The same rows in chunks, with another sequence in front of them in every other run. */
        for (int c = 0; c < 4; c++) {
            memset(part, 0xFF, bytes);
            for (int32_t r = 0; r < LEN;) {
                int32_t n = LEN - r < chunks[c] ? LEN - r : chunks[c], other = r % 2 ? 5 : 0;
                if (chunks[c] == 1 && r > 40 && r < 650 && r % 64 > 2) { /* enough of these */
                    memcpy(part + r * width, y + r * width, (size_t)width * 4);
                    r++;
                    continue;
                }
                const int32_t start[3] = {0, other, other + n}, lens[2] = {300, r + n};
                float *qs = room((size_t)((other + n) * width) * 4), *ys = room((size_t)((other + n) * width) * 4);
                int32_t tables_of[2 * TABLE];
                memcpy(tables_of, w.table + TABLE, TABLE * 4);
                memcpy(tables_of + TABLE, w.table, TABLE * 4);
                fill_noise(qs, (size_t)(other * width), 3);
                memcpy(qs + other * width, q + r * width, (size_t)(n * width) * 4);
                run_attention(&f, &w, &a, tables_of, qs, lens, start, 2, with_sinks ? sinks : NULL, ys);
                memcpy(part + r * width, ys + other * width, (size_t)(n * width) * 4);
                free(qs);
                free(ys);
                r += n;
            }
            assert_memory_equal(part, y, bytes);
        }
        fixture_close(&f);
    }
    world_free(&w);
    free(q);
    free(y);
    free(part);
    free(want);
}

static void test_attention(void **state)
{
    (void)state;
    check_attention(INFER_FMT_F16, 64, INFER_MASK_CAUSAL, 0, 0, 0);
    check_attention(INFER_FMT_F32, 40, INFER_MASK_WINDOW, 100, 5, 1);
    check_attention(INFER_FMT_Q8_0, 64, INFER_MASK_CAUSAL, 0, 0, 1);
    check_attention(INFER_FMT_BF16, 20, INFER_MASK_WINDOW, 3, 0, 0);
    check_attention(INFER_FMT_BF16, 64, INFER_MASK_CAUSAL, 0, 2, 0);
    check_attention(INFER_FMT_Q4_0, 96, INFER_MASK_WINDOW, 130, 0, 0);
    check_attention(INFER_FMT_F16, 128, INFER_MASK_WINDOW, 70, 0, 1);
    check_attention(INFER_FMT_F8_E4M3, 18, INFER_MASK_CAUSAL, 0, 0, 0);
    check_attention(INFER_FMT_F8_E4M3, 80, INFER_MASK_CAUSAL, 0, 0, 0);
    check_attention(INFER_FMT_F8_E4M3, 64, INFER_MASK_WINDOW, 70, 0, 1);
}

/* Keys that a row does not see may hold anything. */
static void test_unseen(void **state)
{
    enum { LEN = 90, FROM = 50, D = 64, WIDTH = HEADS * D };
    static float q[LEN * WIDTH], clean[LEN * WIDTH], got[LEN * WIDTH];
    infer_attrs_attn a = {.struct_size = sizeof a, .mask = INFER_MASK_CAUSAL, .scale = 0.3f, .n_heads = HEADS};
    a.kv = (infer_attrs_kv){sizeof a.kv, 0, INFER_FMT_F16, INFER_FMT_F16, KV, D, D, BS, N_BLOCKS};
    world w;
    fixture f;
    (void)state;
    fill_noise(q, LEN * WIDTH, 23);
    EACH_SETTING(f)
    {
        world_make(&w, INFER_FMT_F16, D);
        for (int32_t n = 1; n <= LEN; n += LEN - 1) { /* row by row, and all at once */
            const int32_t start[2] = {0, n};
            for (int32_t r = 0; r < LEN; r += n) {
                const int32_t len = r + n;
                run_attention(&f, &w, &a, w.table, q + r * WIDTH, &len, start, 1, NULL, clean + r * WIDTH);
            }
        }
        for (int64_t t = FROM; t < TABLE * BS; t++)
            for (int64_t h = 0; h < KV; h++) {
                int64_t at = ((w.table[t / BS] * KV + h) * BS + t % BS) * D;
                memset((uint16_t *)w.k + at, 0x7E, D * 2); /* NaN */
                memset((uint16_t *)w.v + at, 0x7E, D * 2);
            }
        for (int32_t n = 1; n <= LEN; n += LEN - 1) {
            const int32_t start[2] = {0, n};
            for (int32_t r = 0; r < LEN; r += n) {
                const int32_t len = r + n;
                run_attention(&f, &w, &a, w.table, q + r * WIDTH, &len, start, 1, NULL, got + r * WIDTH);
            }
            assert_memory_equal(got, clean, FROM * WIDTH * sizeof *got);
            assert_true(isnan(got[FROM * WIDTH]) && isnan(got[LEN * WIDTH - 1]));
        }
        world_free(&w);
        fixture_close(&f);
    }
}

/* ---- Workers --------------------------------------------------------------------------------------------------- */

enum { MAX_CHUNKS = 97 };
typedef struct tally {
    _Atomic int32_t seen[MAX_CHUNKS], workers;
    uint32_t size;
} tally;

static void count_chunk(void *ctx, int64_t chunk, uint32_t worker)
{
    tally *t = ctx;
    t->seen[chunk]++;
    t->workers |= worker < t->size ? 0 : 1;
}

/* Every chunk once, for thousands of jobs of all sizes, with more threads than processors. */
static void test_workers(void **state)
{
    fixture f;
    cpu_team *team;
    uint64_t random = 1;
    (void)state;
    assert_true(fixture_open(&f, "generic", "1")); /* for its host table */
    for (uint64_t spin = 0; spin <= 50000; spin += 50000) {
        assert_int_equal(cpu_team_create(&f.host, 5, CPU_BIND_NODE, spin, &team), INFER_OK);
        static tally t;
        t.size = cpu_team_size(team);
        for (int job = 0; job < 3000; job++) {
            int64_t n = (int64_t)((noise(&random) + 1) * 0.5f * (MAX_CHUNKS - 1));
            for (int i = 0; i < MAX_CHUNKS; i++)
                t.seen[i] = 0;
            cpu_team_run(team, n, count_chunk, &t);
            for (int i = 0; i < MAX_CHUNKS; i++)
                assert_int_equal(t.seen[i], i < n);
        }
        assert_int_equal(t.workers, 0);
        cpu_team_destroy(team);
    }
    fixture_close(&f);
}

/* A worker's place is in the list, also where the host has more cores than the list has room for. */
static void test_places(void **state)
{
    static const uint32_t lists[][2] = {{0, 0}, {1, 1}, {2, 1}, {8, 4}, {24, 24}, {1024, 1536}, {1024, 4000000}};
    (void)state;
    for (size_t l = 0; l < sizeof lists / sizeof *lists; l++)
        for (uint32_t threads = 1; threads <= CPU_MAX_THREADS; threads++)
            for (uint32_t i = 1, last = 0; i < threads; i++) {
                uint32_t at = cpu_worker_place(i, threads, lists[l][0], lists[l][1]);
                assert_true(lists[l][0] ? at < lists[l][0] : at == 0);
                assert_true(at > last || threads > lists[l][1]); /* no core twice */
                last = at;
            }
}

/* A team without work sleeps. */
static void test_idle(void **state)
{
    fixture f;
    (void)state;
    assert_true(fixture_open(&f, "generic", "4"));
    usleep(20000);
    clock_t before = clock();
    usleep(300000);
    assert_true((double)(clock() - before) / CLOCKS_PER_SEC < 0.03);
    fixture_close(&f);
}

int main(void)
{
    tables[n_tables++] = &kern_generic_table;
    if (kern_avx2())
        tables[n_tables++] = kern_avx2();
    if (kern_avx512())
        tables[n_tables++] = kern_avx512();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unpack),    cmocka_unit_test(test_halves),      cmocka_unit_test(test_codes),
        cmocka_unit_test(test_pack_q8_0), cmocka_unit_test(test_sums),        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_matmul),    cmocka_unit_test(test_matmul_rows), cmocka_unit_test(test_moe),
        cmocka_unit_test(test_attention), cmocka_unit_test(test_unseen),      cmocka_unit_test(test_workers),
        cmocka_unit_test(test_places),    cmocka_unit_test(test_idle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
