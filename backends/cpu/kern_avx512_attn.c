/*
 * AVX-512: attention over tiles of keys. Scores from keys spread so that a vector holds four keys times four elements,
 * which leaves two additions within a score; the softmax with a tile's exponentials in registers; the weighted sum of
 * values as they lie, or unpacked. Knows no masks but bits, and no blocks or sequences.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <math.h>
#include <stddef.h>

#include "kern.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)

#include <string.h>

#include "kern_avx2.h"

enum { LANES = 16, PANEL = KERN_PANEL_KEYS, ROWS = 6 /* vectors in registers */ };

#define LOG2_E 1.44269504088896341f

INLINE __m256i load256(const uint8_t *p)
{
    return _mm256_loadu_si256((const void *)p);
}

INLINE __m128i load128(const uint8_t *p)
{
    return _mm_loadu_si128((const void *)p);
}

/* Asks for bytes of a row that is wanted a tile later, which only the table of blocks knows: by address one would fetch
 * other heads' and other sequences'. */
INLINE void fetch(const uint8_t *p, int64_t first, const int bytes)
{
    UNROLL
    for (int at = 0; at < bytes; at += 64)
        _mm_prefetch((const void *)((uintptr_t)p + (uintptr_t)(first + at)), _MM_HINT_T1);
}

/* A binary16, exactly. */
INLINE __m128 half(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return _mm_cvtph_ps(_mm_cvtsi32_si128(h));
}

/* ---- Keys as quads -------------------------------------------------------------------------------------------------
 */

/* Four rows become vectors of four rows times four elements: row r in lanes 4 r .. 4 r + 3. */

/* Sixteen numbers of E4M3, exactly: as binary16 they lie one bit lower and are 2^8 too small. */
INLINE __m512 widen8(__m128i v)
{
    const __m256i twice = _mm256_slli_epi16(_mm256_cvtepi8_epi16(v), 7); /* the sign in two bits */
    const __m256i half = _mm256_and_si256(twice, _mm256_set1_epi16((short)0xBFFF));
    const __mmask16 number = _mm_cmpneq_epi8_mask(_mm_or_si128(v, _mm_set1_epi8(INT8_MIN)), _mm_set1_epi8(-1));
    return _mm512_mask_mul_ps(_mm512_set1_ps(NAN), number, _mm512_cvtph_ps(half), _mm512_set1_ps(256));
}

INLINE __m512 widen(const infer_format f, __m256i v)
{
    return f == INFER_FMT_F16 ? _mm512_cvtph_ps(v)
                              : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}

/* Elements that four rows are transposed in at a time, and bytes of that many. */
INLINE int64_t step_elems(const infer_format f)
{
    return f == INFER_FMT_Q8_0 || f == INFER_FMT_Q4_0 ? 32 : 16;
}

INLINE int64_t step_bytes(const infer_format f)
{
    return f == INFER_FMT_Q8_0 ? 34 : f == INFER_FMT_Q4_0 ? 18 : f == INFER_FMT_F8_E4M3 ? 16 : 32;
}

typedef struct turned {
    __m256i q[4];
    __m512 scale;
} turned;

/* A step of four rows, `at` bytes from their start, still in the storage format. */
INLINE turned turn(const infer_format f, const uint8_t *const r[4], int64_t at)
{
    turned t;
    if (f == INFER_FMT_F16 || f == INFER_FMT_BF16) {
        const __m256i a = load256(r[0] + at), b = load256(r[1] + at), c = load256(r[2] + at), d = load256(r[3] + at);
        const __m256i ab = _mm256_unpacklo_epi64(a, b), ab1 = _mm256_unpackhi_epi64(a, b);
        const __m256i cd = _mm256_unpacklo_epi64(c, d), cd1 = _mm256_unpackhi_epi64(c, d);
        t.q[0] = _mm256_permute2x128_si256(ab, cd, 0x20);
        t.q[1] = _mm256_permute2x128_si256(ab1, cd1, 0x20);
        t.q[2] = _mm256_permute2x128_si256(ab, cd, 0x31);
        t.q[3] = _mm256_permute2x128_si256(ab1, cd1, 0x31);
        t.scale = _mm512_setzero_ps();
        return t;
    }
    t.scale = _mm512_setzero_ps();
    if (f != INFER_FMT_F8_E4M3) {
        const __m512i spread = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
        uint64_t halves = 0;
        UNROLL
        for (int j = 0; j < 4; j++) {
            uint16_t h;
            memcpy(&h, r[j] + at, sizeof h);
            halves |= (uint64_t)h << (16 * j);
        }
        const __m128 scales = _mm_cvtph_ps(_mm_cvtsi64_si128((long long)halves));
        t.scale = _mm512_permutexvar_ps(spread, _mm512_castps128_ps512(scales));
        at += sizeof(uint16_t);
    }
    if (f == INFER_FMT_Q8_0) {
        const __m256i a = load256(r[0] + at), b = load256(r[1] + at), c = load256(r[2] + at), d = load256(r[3] + at);
        const __m256i ab = _mm256_unpacklo_epi32(a, b), ab1 = _mm256_unpackhi_epi32(a, b);
        const __m256i cd = _mm256_unpacklo_epi32(c, d), cd1 = _mm256_unpackhi_epi32(c, d);
        t.q[0] = _mm256_unpacklo_epi64(ab, cd);
        t.q[1] = _mm256_unpackhi_epi64(ab, cd);
        t.q[2] = _mm256_unpacklo_epi64(ab1, cd1);
        t.q[3] = _mm256_unpackhi_epi64(ab1, cd1);
        return t;
    }
    const __m128i a = load128(r[0] + at), b = load128(r[1] + at), c = load128(r[2] + at), d = load128(r[3] + at);
    const __m128i ab = _mm_unpacklo_epi32(a, b), ab1 = _mm_unpackhi_epi32(a, b);
    const __m128i cd = _mm_unpacklo_epi32(c, d), cd1 = _mm_unpackhi_epi32(c, d);
    t.q[0] = _mm256_castsi128_si256(_mm_unpacklo_epi64(ab, cd));
    t.q[1] = _mm256_castsi128_si256(_mm_unpackhi_epi64(ab, cd));
    t.q[2] = _mm256_castsi128_si256(_mm_unpacklo_epi64(ab1, cd1));
    t.q[3] = _mm256_castsi128_si256(_mm_unpackhi_epi64(ab1, cd1));
    return t;
}

/* Elements 16 part + 4 j .. of a step as floats. */
INLINE __m512 quad(const infer_format f, const turned *t, const int part, const int j)
{
    if (f == INFER_FMT_F16 || f == INFER_FMT_BF16)
        return widen(f, t->q[j]);
    __m128i v = _mm256_castsi256_si128(t->q[j]);
    if (f == INFER_FMT_F8_E4M3)
        return widen8(v);
    if (f == INFER_FMT_Q8_0 && part)
        v = _mm256_extracti128_si256(t->q[j], 1);
    if (f == INFER_FMT_Q4_0) { /* a byte has an element of either half */
        v = _mm_and_si128(part ? _mm_srli_epi16(v, 4) : v, _mm_set1_epi8(15));
        v = _mm_sub_epi8(v, _mm_set1_epi8(8));
    }
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(v)), t->scale);
}

INLINE void keys(const infer_format f, const uint8_t *const *where, const uint8_t *const *next, int64_t dk,
                 float *panel)
{
    for (int i = 0; i < 4; i++) {
        float *to = panel + i * LANES;
        for (int64_t k = 0, at = 0; k < dk; k += step_elems(f), at += step_bytes(f)) {
            if (next) /* in the order of memory: rows mostly follow each other */
                fetch(next[4 * i], 4 * at, 4 * (int)step_bytes(f));
            const turned t = turn(f, where + 4 * i, at);
            UNROLL
            for (int part = 0; part < step_elems(f) / 16; part++)
                UNROLL
            for (int j = 0; j < 4; j++, to += 4 * LANES)
                _mm512_storeu_ps(to, quad(f, &t, part, j));
        }
    }
}

static void keys_f32(const uint8_t *const *where, const uint8_t *const *next, int64_t dk, float *panel)
{
    for (int64_t k = 0; k < dk; k += 4)
        for (int i = 0; i < 4; i++) {
            if (next)
                fetch(next[4 * i], 16 * k, 64);
            __m512 v = _mm512_castps128_ps512(_mm_loadu_ps((const void *)(where[4 * i] + 4 * k)));
            v = _mm512_insertf32x4(v, _mm_loadu_ps((const void *)(where[4 * i + 1] + 4 * k)), 1);
            v = _mm512_insertf32x4(v, _mm_loadu_ps((const void *)(where[4 * i + 2] + 4 * k)), 2);
            v = _mm512_insertf32x4(v, _mm_loadu_ps((const void *)(where[4 * i + 3] + 4 * k)), 3);
            _mm512_storeu_ps(panel + k * PANEL + i * LANES, v);
        }
}

/* ---- Scores --------------------------------------------------------------------------------------------------------
 */

/* The first step of sums of four lanes each, for two vectors. */
INLINE __m512 add_pairs(__m512 a, __m512 b)
{
    return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
}

/* The second, for vectors with the keys 0 .. 3, 4 .. 7, 8 .. 11 and 12 .. 15. */
INLINE __m512 add_fours(__m512 ab, __m512 cd)
{
    const __m512d u = _mm512_castps_pd(ab), v = _mm512_castps_pd(cd);
    const __m512 sums =
        _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(u, v)), _mm512_castpd_ps(_mm512_unpackhi_pd(u, v)));
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), sums);
}

INLINE void scores_of(const int R, const float *panel, const float *const *x, int64_t dk, float *s)
{
    __m512 acc[ROWS][4], v[4];
    UNROLL
    for (int r = 0; r < R; r++)
        UNROLL
    for (int i = 0; i < 4; i++)
        acc[r][i] = _mm512_setzero_ps();
    for (int64_t k = 0; k < dk; k += 4) {
        UNROLL
        for (int i = 0; i < 4; i++)
            v[i] = _mm512_loadu_ps(panel + k * PANEL + i * LANES);
        UNROLL
        for (int r = 0; r < R; r++) {
            const __m512 u = _mm512_broadcast_f32x4(_mm_loadu_ps(x[r] + k));
            UNROLL
            for (int i = 0; i < 4; i++)
                acc[r][i] = _mm512_fmadd_ps(v[i], u, acc[r][i]);
        }
    }
    UNROLL
    for (int r = 0; r < R; r++)
        _mm512_storeu_ps(s + r * KERN_KEYS,
                         add_fours(add_pairs(acc[r][0], acc[r][1]), add_pairs(acc[r][2], acc[r][3])));
}

/* How many of `left` vectors to take at a time, in passes of about the same size. */
INLINE int64_t share(int64_t left)
{
    const int64_t passes = (left + ROWS - 1) / ROWS;
    return (left + passes - 1) / passes;
}

static void scores(const float *panel, const float *const *x, int64_t vectors, int64_t dk, float *s)
{
    for (int64_t i = 0, n; i < vectors; i += n) {
        n = share(vectors - i);
        switch (n) {
#define CASE(R)                                                                                                        \
    case R:                                                                                                            \
        scores_of(R, panel, x + i, dk, s + i * KERN_KEYS);                                                             \
        break;
            CASE(1)
            CASE(2)
            CASE(3)
            CASE(4)
            CASE(5)
        default:
            scores_of(6, panel, x + i, dk, s + i * KERN_KEYS);
#undef CASE
        }
    }
}

/* The same sums for R vectors, up to KERN_DIRECT, from keys as they lie. */
INLINE void direct_of(const infer_format f, const int R, const uint8_t *const *where, const uint8_t *const *next,
                      const float *const *x, int64_t dk, float *s)
{
    __m512 pair[2][KERN_DIRECT];
    UNROLL
    for (int i = 0; i < 2; i++) { /* eight keys, of which two vectors share a load of x */
        const uint8_t *const *r = where + 8 * i;
        __m512 acc[KERN_DIRECT][2];
        UNROLL
        for (int n = 0; n < R; n++)
            acc[n][0] = acc[n][1] = _mm512_setzero_ps();
        for (int64_t k = 0, at = 0; k < dk; k += step_elems(f), at += step_bytes(f)) {
            fetch(next[8 * i], 8 * at, 8 * (int)step_bytes(f));
            const turned a = turn(f, r, at), b = turn(f, r + 4, at);
            UNROLL
            for (int part = 0; part < step_elems(f) / 16; part++)
                UNROLL
            for (int j = 0; j < 4; j++) {
                const __m512 u = quad(f, &a, part, j), v = quad(f, &b, part, j);
                UNROLL
                for (int n = 0; n < R; n++) {
                    const __m512 w = _mm512_broadcast_f32x4(_mm_loadu_ps(x[n] + k + 16 * part + 4 * j));
                    acc[n][0] = _mm512_fmadd_ps(u, w, acc[n][0]);
                    acc[n][1] = _mm512_fmadd_ps(v, w, acc[n][1]);
                }
            }
        }
        UNROLL
        for (int n = 0; n < R; n++)
            pair[i][n] = add_pairs(acc[n][0], acc[n][1]);
    }
    UNROLL
    for (int n = 0; n < R; n++)
        _mm512_storeu_ps(s + n * KERN_KEYS, add_fours(pair[0][n], pair[1][n]));
}

INLINE void direct(const infer_format f, const uint8_t *const *where, const uint8_t *const *next, const float *const *x,
                   int64_t vectors, int64_t dk, float *s)
{
    if (vectors == 1)
        direct_of(f, 1, where, next, x, dk, s);
    else if (vectors == 2)
        direct_of(f, 2, where, next, x, dk, s);
    else if (vectors == 3)
        direct_of(f, 3, where, next, x, dk, s);
    else
        direct_of(f, KERN_DIRECT, where, next, x, dk, s);
}

/* ---- Softmax -------------------------------------------------------------------------------------------------------
 */

/* 2^x to about an ulp for x up to 127, 0 below -126: x = n + r, |r| <= 1/2, a polynomial for 2^r whose coefficients
 * interpolate (2^r - 1) / r at Chebyshev's nodes, and n into the exponent (0 where NaN). */
INLINE __m512 exp2_16(__m512 x)
{
    x = _mm512_max_ps(_mm512_set1_ps(-126), x); /* the second operand where NaN */
    const __m512i n = _mm512_cvtps_epi32(x);
    const __m512 r = _mm512_sub_ps(x, _mm512_cvtepi32_ps(n));
    __m512 y = _mm512_set1_ps(0.0001545316294f);
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0.001339086336f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0.009618082557f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0.05550357114f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0.2402265076f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0.693147188f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1));
    y = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(y), _mm512_slli_epi32(n, 23)));
    return _mm512_sub_ps(y, _mm512_set1_ps(0x1p-126f)); /* what was cut off becomes 0, all else stays */
}

/* tanh(x): a polynomial near 0 (Cephes' tanhf, Moshier 1989), else by exp(-2 |x|). */
INLINE __m512 tanh16(__m512 x)
{
    const __m512 size = _mm512_abs_ps(x), z = _mm512_mul_ps(x, x), one = _mm512_set1_ps(1);
    __m512 p = _mm512_set1_ps(-5.70498872745e-3f);
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(2.06390887954e-2f));
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(-5.37397155531e-2f));
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(1.33314422036e-1f));
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(-3.33332819422e-1f));
    p = _mm512_fmadd_ps(_mm512_mul_ps(p, z), x, x);
    const __m512 e = exp2_16(_mm512_mul_ps(size, _mm512_set1_ps(-2 * LOG2_E)));
    const __m512 q = _mm512_div_ps(_mm512_sub_ps(one, e), _mm512_add_ps(one, e));
    const __m512i sign = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(INT32_MIN));
    const __m512 far = _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(q), sign));
    return _mm512_mask_mov_ps(p, _mm512_cmp_ps_mask(size, _mm512_set1_ps(0.625f), _CMP_GE_OQ), far);
}

/* What a vector sees of a tile, -INFINITY elsewhere. */
INLINE void load_seen(const float *s, uint64_t seen, __m512 v[4])
{
    if (seen == UINT64_MAX) {
        UNROLL
        for (int j = 0; j < 4; j++)
            v[j] = _mm512_loadu_ps(s + LANES * j);
        return;
    }
    UNROLL
    for (int j = 0; j < 4; j++)
        v[j] = _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), (__mmask16)(seen >> (LANES * j)), s + LANES * j);
}

/* s = scale * s, and through the cap. */
static void cap_scores(const kern_softmax *t, float *s)
{
    const __m512 cap = _mm512_set1_ps(t->soft_cap);
    for (int j = 0; j < KERN_KEYS; j += LANES) {
        __m512 v = _mm512_mul_ps(_mm512_loadu_ps(s + j), _mm512_set1_ps(t->scale));
        if (t->soft_cap > 0)
            v = _mm512_mul_ps(tanh16(_mm512_div_ps(v, cap)), cap);
        _mm512_storeu_ps(s + j, v);
    }
}

/* Largest scores first and then exponentials, so that the chain of one vector does not hold up the next. */
static void soften(const kern_softmax *t, int64_t vectors, float *s, uint64_t *seen, float *m, float *l, float *o)
{
    const int early = t->soft_cap > 0 || t->scale < 0; /* else the exponential takes the factor along */
    const float scale = early ? LOG2_E : t->scale * LOG2_E;
    __m512 v[4];
    for (int64_t i = 0; i < vectors; i++) {
        if (!seen[i])
            continue;
        if (early)
            cap_scores(t, s + i * KERN_KEYS);
        load_seen(s + i * KERN_KEYS, seen[i], v);
        __m512 top[2] = {_mm512_set1_ps(-INFINITY), _mm512_set1_ps(-INFINITY)};
        UNROLL
        for (int j = 0; j < 4; j++) /* the second operand where NaN */
            top[j / 2] = _mm512_max_ps(v[j], top[j / 2]);
        const float most = _mm512_reduce_max_ps(_mm512_max_ps(top[0], top[1])) * scale;
        if (most == -INFINITY) { /* nothing but -INFINITY and NaN */
            uint64_t odd = 0;
            UNROLL
            for (int j = 0; j < 4; j++)
                odd |= _mm512_cmp_ps_mask(v[j], v[j], _CMP_UNORD_Q);
            l[i] = odd ? NAN : l[i];
            seen[i] = 0;
        } else if (most > m[i]) {
            const __m512 shrink = exp2_16(_mm512_set1_ps(m[i] - most));
            l[i] *= _mm512_cvtss_f32(shrink);
            for (float *to = o + i * t->ldo; m[i] > -INFINITY && to < o + (i + 1) * t->ldo; to += LANES)
                _mm512_storeu_ps(to, _mm512_mul_ps(_mm512_loadu_ps(to), shrink));
            m[i] = most;
        }
    }
    for (int64_t i = 0; i < vectors; i++) {
        if (!seen[i])
            continue;
        load_seen(s + i * KERN_KEYS, seen[i], v);
        UNROLL
        for (int j = 0; j < 4; j++)
            v[j] = exp2_16(_mm512_fmsub_ps(v[j], _mm512_set1_ps(scale), _mm512_set1_ps(m[i])));
        if (seen[i] != UINT64_MAX)
            UNROLL
        for (int j = 0; j < 4; j++)
            v[j] = _mm512_maskz_mov_ps((__mmask16)(seen[i] >> (LANES * j)), v[j]);
        UNROLL
        for (int j = 0; j < 4; j++)
            _mm512_storeu_ps(s + i * KERN_KEYS + LANES * j, v[j]);
        l[i] += _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(v[0], v[1]), _mm512_add_ps(v[2], v[3])));
    }
}

/* ---- Values --------------------------------------------------------------------------------------------------------
 */

/* Elements j .. j + 15 of a row, j a multiple of 16. */
INLINE __m512 get(const infer_format f, const uint8_t *row, int64_t j)
{
    const __m512 ramp = _mm512_set_ps(7, 6, 5, 4, 3, 2, 1, 0, -1, -2, -3, -4, -5, -6, -7, -8);
    if (f == INFER_FMT_F32)
        return _mm512_loadu_ps((const void *)(row + 4 * j));
    if (f == INFER_FMT_F16 || f == INFER_FMT_BF16)
        return widen(f, load256(row + 2 * j));
    if (f == INFER_FMT_F8_E4M3)
        return widen8(load128(row + j));
    const uint8_t *block = row + j / 32 * (f == INFER_FMT_Q8_0 ? 34 : 18);
    const __m512 scale = _mm512_broadcastss_ps(half(block));
    if (f == INFER_FMT_Q8_0)
        return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load128(block + 2 + j % 32))), scale);
    /* Codes choose from the sixteen values; a permutation looks at four bits of an index. */
    __m512i at = _mm512_cvtepu8_epi32(load128(block + 2));
    if (j % 32)
        at = _mm512_srli_epi32(at, 4);
    return _mm512_permutexvar_ps(at, _mm512_mul_ps(ramp, scale));
}

/* Bytes of n elements of a row. */
INLINE int64_t row_bytes(const infer_format f, int64_t n)
{
    return f == INFER_FMT_F32       ? 4 * n
           : f == INFER_FMT_Q8_0    ? n / 32 * 34
           : f == INFER_FMT_Q4_0    ? n / 32 * 18
           : f == INFER_FMT_F8_E4M3 ? n
                                    : 2 * n;
}

/* C vectors of columns for R rows: each element one chain of fused products in the order of keys. */
INLINE void weigh_columns(const infer_format f, const int R, const int C, const uint8_t *const *where,
                          const uint8_t *const *next, int64_t first, int64_t n, const float *p, float *o, int64_t ldo)
{
    const int64_t width = row_bytes(f, ldo), bytes = row_bytes(f, first);
    __m512 acc[ROWS][4], v[4];
    UNROLL
    for (int i = 0; i < R; i++)
        UNROLL
    for (int c = 0; c < C; c++)
        acc[i][c] = _mm512_loadu_ps(o + i * ldo + first + LANES * c);
    for (int64_t t = 0; t < n; t++) {
        const uint8_t *row = where[t] + bytes;
        for (int64_t at = 0; next && first == 0 && at < width; at += 64)
            fetch(next[t], at, 64);
        UNROLL
        for (int c = 0; c < C; c++)
            v[c] = get(f, row, LANES * c);
        UNROLL
        for (int i = 0; i < R; i++) {
            const __m512 u = _mm512_set1_ps(p[i * KERN_KEYS + t]);
            UNROLL
            for (int c = 0; c < C; c++)
                acc[i][c] = _mm512_fmadd_ps(u, v[c], acc[i][c]);
        }
    }
    UNROLL
    for (int i = 0; i < R; i++)
        UNROLL
    for (int c = 0; c < C; c++)
        _mm512_storeu_ps(o + i * ldo + first + LANES * c, acc[i][c]);
}

INLINE void weigh_rows(const infer_format f, const int R, const uint8_t *const *where, const uint8_t *const *next,
                       int64_t n, const float *p, float *o, int64_t ldo)
{
    int64_t j = 0;
    for (; j + 4 * LANES <= ldo; j += 4 * LANES)
        weigh_columns(f, R, 4, where, next, j, n, p, o, ldo);
    for (; j + 2 * LANES <= ldo; j += 2 * LANES)
        weigh_columns(f, R, 2, where, next, j, n, p, o, ldo);
    if (f != INFER_FMT_Q8_0 && f != INFER_FMT_Q4_0 && j < ldo)
        weigh_columns(f, R, 1, where, next, j, n, p, o, ldo);
}

INLINE void weigh(const infer_format f, const uint8_t *const *where, const uint8_t *const *next, int64_t n,
                  const float *p, int64_t vectors, float *o, int64_t ldo)
{
    for (int64_t i = 0, r; i < vectors; i += r) {
        r = share(vectors - i);
        switch (r) {
#define CASE(R)                                                                                                        \
    case R:                                                                                                            \
        weigh_rows(f, R, where, i ? NULL : next, n, p + i * KERN_KEYS, o + i * ldo, ldo);                              \
        break;
            CASE(1)
            CASE(2)
            CASE(3)
            CASE(4)
            CASE(5)
        default:
            weigh_rows(f, 6, where, i ? NULL : next, n, p + i * KERN_KEYS, o + i * ldo, ldo);
#undef CASE
        }
    }
}

/* The same values as floats, for many vectors. */
INLINE void unpack(const infer_format f, const uint8_t *const *where, const uint8_t *const *next, int64_t n,
                   int64_t width, float *out, int64_t ld)
{
    const int64_t bytes = row_bytes(f, 2 * LANES);
    for (int64_t t = 0; t < n; t++, out += ld) {
        const uint8_t *row = where[t];
        int64_t j = 0;
        for (; j + 2 * LANES <= width; j += 2 * LANES, row += bytes) {
            if (next)
                fetch(next[t], row - where[t], 64);
            _mm512_storeu_ps(out + j, get(f, row, 0));
            _mm512_storeu_ps(out + j + LANES, get(f, row, LANES));
        }
        if (f != INFER_FMT_Q8_0 && f != INFER_FMT_Q4_0 && j < width)
            _mm512_storeu_ps(out + j, get(f, row, 0));
    }
}

#define FORMAT(id, name)                                                                                               \
    static void weigh_##name(const uint8_t *const *where, const uint8_t *const *next, int64_t n, const float *p,       \
                             int64_t vectors, float *o, int64_t ldo)                                                   \
    {                                                                                                                  \
        weigh(INFER_FMT_##id, where, next, n, p, vectors, o, ldo);                                                     \
    }
FORMAT(F32, f32)
FORMAT(F16, f16)
FORMAT(BF16, bf16)
FORMAT(F8_E4M3, f8)
FORMAT(Q8_0, q8_0)
FORMAT(Q4_0, q4_0)

#define STORED(id, name)                                                                                               \
    static void keys_##name(const uint8_t *const *where, const uint8_t *const *next, int64_t dk, float *panel)         \
    {                                                                                                                  \
        keys(INFER_FMT_##id, where, next, dk, panel);                                                                  \
    }                                                                                                                  \
    static void direct_##name(const uint8_t *const *where, const uint8_t *const *next, const float *const *x,          \
                              int64_t vectors, int64_t dk, float *s)                                                   \
    {                                                                                                                  \
        direct(INFER_FMT_##id, where, next, x, vectors, dk, s);                                                        \
    }                                                                                                                  \
    static void unpack_##name(const uint8_t *const *where, const uint8_t *const *next, int64_t n, int64_t width,       \
                              float *out, int64_t ld)                                                                  \
    {                                                                                                                  \
        unpack(INFER_FMT_##id, where, next, n, width, out, ld);                                                        \
    }
STORED(F16, f16)
STORED(BF16, bf16)
STORED(F8_E4M3, f8)
STORED(Q8_0, q8_0)
STORED(Q4_0, q4_0)

const kern_attn kern_avx512_attn = {
    .exp = exp2f,
    .log_e = LOG2_E,
    .rows = ROWS,
    .keys = {[INFER_FMT_F32] = keys_f32,
             [INFER_FMT_F16] = keys_f16,
             [INFER_FMT_BF16] = keys_bf16,
             [INFER_FMT_F8_E4M3] = keys_f8,
             [INFER_FMT_Q8_0] = keys_q8_0,
             [INFER_FMT_Q4_0] = keys_q4_0},
    .direct = {[INFER_FMT_F16] = direct_f16,
               [INFER_FMT_BF16] = direct_bf16,
               [INFER_FMT_F8_E4M3] = direct_f8,
               [INFER_FMT_Q8_0] = direct_q8_0,
               [INFER_FMT_Q4_0] = direct_q4_0},
    .scores = scores,
    .soften = soften,
    .weigh = {[INFER_FMT_F32] = weigh_f32,
              [INFER_FMT_F16] = weigh_f16,
              [INFER_FMT_BF16] = weigh_bf16,
              [INFER_FMT_F8_E4M3] = weigh_f8,
              [INFER_FMT_Q8_0] = weigh_q8_0,
              [INFER_FMT_Q4_0] = weigh_q4_0},
    .unpack = {[INFER_FMT_F16] = unpack_f16,
               [INFER_FMT_BF16] = unpack_bf16,
               [INFER_FMT_F8_E4M3] = unpack_f8,
               [INFER_FMT_Q8_0] = unpack_q8_0,
               [INFER_FMT_Q4_0] = unpack_q4_0},
};

#else

const kern_attn kern_avx512_attn = {.scores = NULL};

#endif
