/*
 * Kernels with AVX2 and FMA: the tile product, attention's weighted sum, row functions. Formats: kern_avx2_formats.c.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stddef.h>

#include "kern.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include <cpuid.h>
#include <immintrin.h>
#include <math.h>

#include "kern_avx2.h"

/* Lanes 0 .. n-1 on. */
INLINE __m256i lanes(int64_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(n > 8 ? 8 : n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

INLINE __m256 load_part(const float *p, int64_t n)
{
    return _mm256_maskload_ps(p, lanes(n));
}

INLINE void store_part(float *p, int64_t n, __m256 v)
{
    _mm256_maskstore_ps(p, lanes(n), v);
}

/* ---- Products -------------------------------------------------------------------------------------------------- */

/* Four weight rows against R rows of x: 4 R sums, each one vector that runs along K. */
#define TILE_ROWS(R)                                                                                                   \
    INLINE void tile_##R(const float *w, int64_t ldw, const float *const *x, int64_t kc, float *c, int64_t ldc)        \
    {                                                                                                                  \
        __m256 acc[R][4];                                                                                              \
        int64_t k = 0;                                                                                                 \
        UNROLL                                                                                                         \
        for (int i = 0; i < R; i++)                                                                                    \
            UNROLL                                                                                                     \
        for (int r = 0; r < 4; r++)                                                                                    \
            acc[i][r] = _mm256_setzero_ps();                                                                           \
        for (; k + 8 <= kc; k += 8) {                                                                                  \
            __m256 v[R];                                                                                               \
            UNROLL                                                                                                     \
            for (int i = 0; i < R; i++)                                                                                \
                v[i] = _mm256_loadu_ps(x[i] + k);                                                                      \
            UNROLL                                                                                                     \
            for (int r = 0; r < 4; r++) {                                                                              \
                __m256 u = _mm256_loadu_ps(w + r * ldw + k);                                                           \
                UNROLL                                                                                                 \
                for (int i = 0; i < R; i++)                                                                            \
                    acc[i][r] = _mm256_fmadd_ps(u, v[i], acc[i][r]);                                                   \
            }                                                                                                          \
        }                                                                                                              \
        if (k < kc)                                                                                                    \
            UNROLL                                                                                                     \
        for (int i = 0; i < R; i++) {                                                                                  \
            __m256 v = load_part(x[i] + k, kc - k);                                                                    \
            UNROLL                                                                                                     \
            for (int r = 0; r < 4; r++)                                                                                \
                acc[i][r] = _mm256_fmadd_ps(_mm256_loadu_ps(w + r * ldw + k), v, acc[i][r]);                           \
        }                                                                                                              \
        UNROLL                                                                                                         \
        for (int i = 0; i < R; i++)                                                                                    \
            _mm_storeu_ps(c + i * ldc, _mm_add_ps(_mm_loadu_ps(c + i * ldc),                                           \
                                                  kern_avx2_reduce(acc[i][0], acc[i][1], acc[i][2], acc[i][3])));      \
    }
TILE_ROWS(1)
TILE_ROWS(2)
TILE_ROWS(3)

static void tile(const float *w, int64_t ldw, const float *const *x, int64_t m, int64_t kc, float *c, int64_t ldc)
{
    int64_t i = 0;
    for (; i + 3 <= m; i += 3)
        tile_3(w, ldw, x + i, kc, c + i * ldc, ldc);
    if (m - i == 2)
        tile_2(w, ldw, x + i, kc, c + i * ldc, ldc);
    else if (m - i == 1)
        tile_1(w, ldw, x + i, kc, c + i * ldc, ldc);
}

/* R rows, C vectors of their output: every element is one chain of fused products in the order of t. */
INLINE void weighted_block(int R, int C, const float *p, int64_t ldp, const float *v, int64_t ldv, int64_t n, float *o,
                           int64_t ldo)
{
    __m256 acc[6][8];
    UNROLL
    for (int i = 0; i < R; i++)
        UNROLL
    for (int j = 0; j < C; j++)
        acc[i][j] = _mm256_loadu_ps(o + i * ldo + 8 * j);
    for (int64_t t = 0; t < n; t++) {
        __m256 u[8];
        UNROLL
        for (int j = 0; j < C; j++)
            u[j] = _mm256_loadu_ps(v + t * ldv + 8 * j);
        UNROLL
        for (int i = 0; i < R; i++) {
            __m256 w = _mm256_broadcast_ss(p + i * ldp + t);
            UNROLL
            for (int j = 0; j < C; j++)
                acc[i][j] = _mm256_fmadd_ps(w, u[j], acc[i][j]);
        }
    }
    UNROLL
    for (int i = 0; i < R; i++)
        UNROLL
    for (int j = 0; j < C; j++)
        _mm256_storeu_ps(o + i * ldo + 8 * j, acc[i][j]);
}

static void weighted_6(const float *p, int64_t ldp, const float *v, int64_t ldv, int64_t n, float *o, int64_t ldo,
                       int64_t dv)
{
    int64_t j = 0;
    for (; j + 16 <= dv; j += 16)
        weighted_block(6, 2, p, ldp, v + j, ldv, n, o + j, ldo);
    for (; j + 8 <= dv; j += 8)
        weighted_block(6, 1, p, ldp, v + j, ldv, n, o + j, ldo);
}

static void weighted_3(const float *p, int64_t ldp, const float *v, int64_t ldv, int64_t n, float *o, int64_t ldo,
                       int64_t dv)
{
    int64_t j = 0;
    for (; j + 32 <= dv; j += 32)
        weighted_block(3, 4, p, ldp, v + j, ldv, n, o + j, ldo);
    for (; j + 8 <= dv; j += 8)
        weighted_block(3, 1, p, ldp, v + j, ldv, n, o + j, ldo);
}

static void weighted_1(const float *p, const float *v, int64_t ldv, int64_t n, float *o, int64_t dv)
{
    int64_t j = 0;
    for (; j + 64 <= dv; j += 64)
        weighted_block(1, 8, p, 0, v + j, ldv, n, o + j, 0);
    for (; j + 32 <= dv; j += 32)
        weighted_block(1, 4, p, 0, v + j, ldv, n, o + j, 0);
    for (; j + 8 <= dv; j += 8)
        weighted_block(1, 1, p, 0, v + j, ldv, n, o + j, 0);
}

static void weighted(const float *p, int64_t ldp, int64_t rows, const float *v, int64_t ldv, int64_t n, float *o,
                     int64_t ldo, int64_t dv)
{
    int64_t i = 0, whole = dv / 8 * 8;
    for (; i + 6 <= rows; i += 6)
        weighted_6(p + i * ldp, ldp, v, ldv, n, o + i * ldo, ldo, whole);
    for (; i + 3 <= rows; i += 3)
        weighted_3(p + i * ldp, ldp, v, ldv, n, o + i * ldo, ldo, whole);
    for (; i < rows; i++)
        weighted_1(p + i * ldp, v, ldv, n, o + i * ldo, whole);
    for (i = 0; i < rows && whole < dv; i++) {
        __m256 acc = load_part(o + i * ldo + whole, dv - whole);
        for (int64_t t = 0; t < n; t++)
            acc =
                _mm256_fmadd_ps(_mm256_broadcast_ss(p + i * ldp + t), load_part(v + t * ldv + whole, dv - whole), acc);
        store_part(o + i * ldo + whole, dv - whole, acc);
    }
}

/* ---- Element by element ---------------------------------------------------------------------------------------- */

/* exp(x) to about an ulp: x = n ln 2 + r, |r| <= ln 2 / 2, a polynomial for exp(r) (coefficients of Cephes' expf,
 * Moshier 1989), times 2^n in two steps so that the ends of the range come out right. */
INLINE __m256 exp8(__m256 x)
{
    x = _mm256_max_ps(_mm256_set1_ps(-104), _mm256_min_ps(_mm256_set1_ps(89), x)); /* the second operand where NaN */
    __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504088896341f)),
                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
    __m256 y = _mm256_set1_ps(1.9875691500e-4f);
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.3981999507e-3f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(8.3334519073e-3f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(4.1665795894e-2f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.6666665459e-1f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(5.0000001201e-1f));
    y = _mm256_add_ps(_mm256_fmadd_ps(y, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1));
    __m256i e = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(e, 1), rest = _mm256_sub_epi32(e, half);
    const __m256i bias = _mm256_set1_epi32(127);
    y = _mm256_mul_ps(y, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
    return _mm256_mul_ps(y, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23)));
}

/* y[i] = expression of lanes a, b: whole vectors, then a part. */
#define EACH(n, body_load, body_store, expression)                                                                     \
    do {                                                                                                               \
        int64_t i = 0;                                                                                                 \
        for (; i + 8 <= (n); i += 8) {                                                                                 \
            body_load(_mm256_loadu_ps, i) _mm256_storeu_ps(y + i, expression);                                         \
        }                                                                                                              \
        if (i < (n)) {                                                                                                 \
            body_load(PART_LOAD, i) store_part(y + i, (n)-i, expression);                                              \
        }                                                                                                              \
    } while (0)
#define PART_LOAD(p)    load_part((p), n - i)
#define LOAD_X(load, i) __m256 a = load(x + i);
#define LOAD_AB(load, i)                                                                                               \
    __m256 a = load(x + i);                                                                                            \
    __m256 b = load(z + i);

static void add(const float *x, const float *z, float *y, int64_t n)
{
    EACH(n, LOAD_AB, , _mm256_add_ps(a, b));
}

static void mul(const float *x, const float *z, float *y, int64_t n)
{
    EACH(n, LOAD_AB, , _mm256_mul_ps(a, b));
}

static void scale(const float *x, float s, float bias, float *y, int64_t n)
{
    __m256 sv = _mm256_set1_ps(s), bv = _mm256_set1_ps(bias);
    EACH(n, LOAD_X, , _mm256_fmadd_ps(a, sv, bv));
}

static void axpy(float s, const float *x, float *y, int64_t n)
{
    const float *z = y;
    __m256 sv = _mm256_set1_ps(s);
    EACH(n, LOAD_AB, , _mm256_fmadd_ps(a, sv, b));
}

static void norm(const float *x, float mean, float factor, const float *w, float offset, const float *b, float *y,
                 int64_t n)
{
    __m256 mv = _mm256_set1_ps(mean), fv = _mm256_set1_ps(factor), ov = _mm256_set1_ps(offset);
    for (int64_t i = 0; i < n; i += 8) {
        __m256 v = _mm256_mul_ps(_mm256_sub_ps(load_part(x + i, n - i), mv), fv);
        if (w)
            v = _mm256_mul_ps(v, _mm256_add_ps(load_part(w + i, n - i), ov));
        if (b)
            v = _mm256_add_ps(v, load_part(b + i, n - i));
        store_part(y + i, n - i, v);
    }
}

INLINE __m256 sigmoid_times(__m256 numerator, __m256 x)
{
    __m256 one = _mm256_set1_ps(1);
    return _mm256_div_ps(numerator, _mm256_add_ps(one, exp8(_mm256_xor_ps(x, _mm256_set1_ps(-0.0f)))));
}

INLINE __m256 act8(uint32_t kind, __m256 x)
{
    if (kind == INFER_ACT_SILU)
        return sigmoid_times(x, x);
    if (kind == INFER_ACT_SIGMOID)
        return sigmoid_times(_mm256_set1_ps(1), x);
    if (kind == INFER_ACT_RELU)
        return _mm256_max_ps(_mm256_setzero_ps(), x); /* the second operand where NaN */
    /* INFER_ACT_GELU_TANH, see kern_generic.c */
    __m256 cube = _mm256_mul_ps(_mm256_mul_ps(x, x), x);
    __m256 u = _mm256_fmadd_ps(cube, _mm256_set1_ps(0.044715f), x);
    return sigmoid_times(x, _mm256_mul_ps(u, _mm256_set1_ps(1.59576912160573072f)));
}

static void act(uint32_t kind, float limit, const float *x, const float *up, float *y, int64_t n)
{
    if (kind == INFER_ACT_GELU) {
        kern_generic_table.act(kind, limit, x, up, y, n);
        return;
    }
    __m256 top = _mm256_set1_ps(limit > 0 ? limit : INFINITY), bottom = _mm256_xor_ps(top, _mm256_set1_ps(-0.0f));
    for (int64_t i = 0; i < n; i += 8) {
        __m256 v = act8(kind, _mm256_min_ps(top, load_part(x + i, n - i)));
        if (up)
            v = _mm256_mul_ps(v, _mm256_max_ps(bottom, _mm256_min_ps(top, load_part(up + i, n - i))));
        store_part(y + i, n - i, v);
    }
}

static void rotate(const float *x, const float *c, const float *s, float *y, int64_t r, int64_t step, int64_t gap)
{
    const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    int64_t i = 0;
    for (; step == 1 && i + 8 <= r; i += 8) {
        __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + gap);
        __m256 cv = _mm256_loadu_ps(c + i), sv = _mm256_loadu_ps(s + i);
        _mm256_storeu_ps(y + i, _mm256_fmsub_ps(a, cv, _mm256_mul_ps(b, sv)));
        _mm256_storeu_ps(y + i + gap, _mm256_fmadd_ps(a, sv, _mm256_mul_ps(b, cv)));
    }
    for (; step == 2 && gap == 1 && i + 4 <= r; i += 4) {
        __m256 v = _mm256_loadu_ps(x + 2 * i), swapped = _mm256_permute_ps(v, 0xB1);
        __m256 cv = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(c + i)), twice);
        __m256 sv = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(s + i)), twice);
        _mm256_storeu_ps(y + 2 * i, _mm256_fmaddsub_ps(v, cv, _mm256_mul_ps(swapped, sv)));
    }
    if (i < r)
        kern_generic_table.rotate(x + i * step, c + i, s + i, y + i * step, r - i, step, gap);
}

/* ---- Over a row ------------------------------------------------------------------------------------------------ */

INLINE double sum_pd(__m256d a, __m256d b)
{
    __m256d s = _mm256_add_pd(a, b);
    __m128d h = _mm_add_pd(_mm256_castpd256_pd128(s), _mm256_extractf128_pd(s, 1));
    return _mm_cvtsd_f64(h) + _mm_cvtsd_f64(_mm_unpackhi_pd(h, h));
}

static double sum(const float *x, int64_t n)
{
    __m256d a = _mm256_setzero_pd(), b = a;
    for (int64_t i = 0; i < n; i += 8) {
        __m256 v = load_part(x + i, n - i);
        a = _mm256_add_pd(a, _mm256_cvtps_pd(_mm256_castps256_ps128(v)));
        b = _mm256_add_pd(b, _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)));
    }
    return sum_pd(a, b);
}

static double sum_squares(const float *x, double mean, int64_t n)
{
    __m256d a = _mm256_setzero_pd(), b = a, mv = _mm256_set1_pd(mean);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256d lo = _mm256_sub_pd(_mm256_cvtps_pd(_mm_loadu_ps(x + i)), mv);
        __m256d hi = _mm256_sub_pd(_mm256_cvtps_pd(_mm_loadu_ps(x + i + 4)), mv);
        a = _mm256_fmadd_pd(lo, lo, a);
        b = _mm256_fmadd_pd(hi, hi, b);
    }
    double s = sum_pd(a, b);
    for (; i < n; i++)
        s += ((double)x[i] - mean) * ((double)x[i] - mean);
    return s;
}

static float max(const float *x, int64_t n)
{
    __m256 low = _mm256_set1_ps(-INFINITY), m = low;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        m = _mm256_max_ps(_mm256_loadu_ps(x + i), m); /* the second operand where NaN */
    if (i < n)
        m = _mm256_max_ps(_mm256_blendv_ps(low, load_part(x + i, n - i), _mm256_castsi256_ps(lanes(n - i))), m);
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    h = _mm_max_ps(h, _mm_movehl_ps(h, h));
    h = _mm_max_ss(h, _mm_movehdup_ps(h));
    return _mm_cvtss_f32(h);
}

static float exp_sum(float *x, float s, float shift, int64_t n)
{
    __m256 total = _mm256_setzero_ps(), sv = _mm256_set1_ps(s), hv = _mm256_set1_ps(shift);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 e = exp8(_mm256_fmsub_ps(_mm256_loadu_ps(x + i), sv, hv));
        _mm256_storeu_ps(x + i, e);
        total = _mm256_add_ps(total, e);
    }
    if (i < n) {
        __m256 e = exp8(_mm256_fmsub_ps(load_part(x + i, n - i), sv, hv));
        store_part(x + i, n - i, e);
        total = _mm256_add_ps(total, _mm256_and_ps(e, _mm256_castsi256_ps(lanes(n - i))));
    }
    return _mm_cvtss_f32(kern_avx2_reduce(total, total, total, total));
}

/* exp(x) for x <= 0 in double: as exp8, with the rational form of Cephes' exp. */
INLINE __m256d exp4(__m256d x)
{
    x = _mm256_max_pd(_mm256_set1_pd(-746), x); /* the second operand where NaN */
    __m256d n = _mm256_round_pd(_mm256_mul_pd(x, _mm256_set1_pd(1.4426950408889634074)),
                                _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256d r = _mm256_fnmadd_pd(n, _mm256_set1_pd(6.93145751953125e-1), x);
    r = _mm256_fnmadd_pd(n, _mm256_set1_pd(1.42860682030941723212e-6), r);
    __m256d rr = _mm256_mul_pd(r, r), p = _mm256_set1_pd(1.26177193074810590878e-4);
    p = _mm256_fmadd_pd(p, rr, _mm256_set1_pd(3.02994407707441961300e-2));
    p = _mm256_mul_pd(_mm256_fmadd_pd(p, rr, _mm256_set1_pd(1)), r);
    __m256d q = _mm256_set1_pd(3.00198505138664455042e-6);
    q = _mm256_fmadd_pd(q, rr, _mm256_set1_pd(2.52448340349684104192e-3));
    q = _mm256_fmadd_pd(q, rr, _mm256_set1_pd(2.27265548208155028766e-1));
    q = _mm256_fmadd_pd(q, rr, _mm256_set1_pd(2));
    __m256d y = _mm256_div_pd(p, _mm256_sub_pd(q, p));
    y = _mm256_fmadd_pd(y, _mm256_set1_pd(2), _mm256_set1_pd(1));
    __m128i e = _mm256_cvtpd_epi32(n), half = _mm_srai_epi32(e, 1), rest = _mm_sub_epi32(e, half);
    const __m256i bias = _mm256_set1_epi64x(1023);
    __m256i a = _mm256_slli_epi64(_mm256_add_epi64(_mm256_cvtepi32_epi64(half), bias), 52);
    __m256i b = _mm256_slli_epi64(_mm256_add_epi64(_mm256_cvtepi32_epi64(rest), bias), 52);
    return _mm256_mul_pd(_mm256_mul_pd(y, _mm256_castsi256_pd(a)), _mm256_castsi256_pd(b));
}

static double exp_total(const double *x, double most, double t, int64_t n)
{
    __m256d sum = _mm256_setzero_pd(), m = _mm256_set1_pd(most), tv = _mm256_set1_pd(t);
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        sum = _mm256_add_pd(sum, exp4(_mm256_div_pd(_mm256_sub_pd(_mm256_loadu_pd(x + i), m), tv)));
    return sum_pd(sum, _mm256_setzero_pd()) + kern_generic_table.exp_total(x + i, most, t, n - i);
}

static void exp_all(double *x, double most, double t, int64_t n)
{
    __m256d m = _mm256_set1_pd(most), tv = _mm256_set1_pd(t);
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        _mm256_storeu_pd(x + i, exp4(_mm256_div_pd(_mm256_sub_pd(_mm256_loadu_pd(x + i), m), tv)));
    kern_generic_table.exp_all(x + i, most, t, n - i);
}

static const kern_table table = {
    .isa = "avx2",
    .simd_bytes = 32,
    .dot_rows = 3,
    .format = kern_avx2_formats,
    .panel = &kern_avx2_panels,
    .tile = tile,
    .add = add,
    .mul = mul,
    .scale = scale,
    .act = act,
    .axpy = axpy,
    .norm = norm,
    .sum = sum,
    .sum_squares = sum_squares,
    .max = max,
    .exp_sum = exp_sum,
    .exp_total = exp_total,
    .exp_all = exp_all,
    .weighted = weighted,
    .rotate = rotate,
};

const kern_table *kern_avx2(void)
{
    unsigned a, b, c = 0, d;
    int halves = __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C; /* not every compiler knows it by name */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && halves ? &table : NULL;
}

#else

const kern_table *kern_avx2(void)
{
    return NULL;
}

#endif
