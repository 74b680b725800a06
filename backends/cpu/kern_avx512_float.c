/*
 * AVX-512: float products. Tiles for many rows, bound by fused products; rows of weights as they lie in F32,
 * F16, BF16 and E4M3 for up to four rows, bound by memory.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stddef.h>

#include "kern.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)

#include "kern_avx2.h"

enum { LANES = 16 };

/* The canonical sum's tree for four vectors: lanes l and l + 8 first. */
INLINE __m128 reduce(const __m512 v[4])
{
    __m256 h[4];
    UNROLL
    for (int i = 0; i < 4; i++)
        h[i] = _mm256_add_ps(_mm512_castps512_ps256(v[i]),
                             _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v[i]), 1)));
    return kern_avx2_reduce(h[0], h[1], h[2], h[3]);
}

INLINE __mmask16 first(int64_t n)
{
    return n >= LANES ? 0xFFFF : (__mmask16)((1 << n) - 1);
}

/* ---- Tiles ------------------------------------------------------------------------------------------------------- */

INLINE void tile_of(const int R, const float *w, int64_t ldw, const float *const *x, int64_t kc, float *c, int64_t ldc)
{
    __m512 acc[6][4], v[4];
    int64_t k = 0;
    UNROLL
    for (int i = 0; i < R; i++)
        UNROLL
    for (int r = 0; r < 4; r++)
        acc[i][r] = _mm512_setzero_ps();
    for (; k + LANES <= kc; k += LANES) {
        UNROLL
        for (int r = 0; r < 4; r++)
            v[r] = _mm512_loadu_ps(w + r * ldw + k);
        UNROLL
        for (int i = 0; i < R; i++) {
            const __m512 u = _mm512_loadu_ps(x[i] + k);
            UNROLL
            for (int r = 0; r < 4; r++)
                acc[i][r] = _mm512_fmadd_ps(v[r], u, acc[i][r]);
        }
    }
    if (k < kc) {
        UNROLL
        for (int r = 0; r < 4; r++)
            v[r] = _mm512_loadu_ps(w + r * ldw + k);
        UNROLL
        for (int i = 0; i < R; i++) {
            const __m512 u = _mm512_maskz_loadu_ps(first(kc - k), x[i] + k);
            UNROLL
            for (int r = 0; r < 4; r++)
                acc[i][r] = _mm512_fmadd_ps(v[r], u, acc[i][r]);
        }
    }
    UNROLL
    for (int i = 0; i < R; i++)
        _mm_storeu_ps(c + i * ldc, _mm_add_ps(_mm_loadu_ps(c + i * ldc), reduce(acc[i])));
}

static void tile(const float *w, int64_t ldw, const float *const *x, int64_t m, int64_t kc, float *c, int64_t ldc)
{
    int64_t i = 0;
    for (; i + 6 <= m; i += 6)
        tile_of(6, w, ldw, x + i, kc, c + i * ldc, ldc);
    for (; i + 3 <= m; i += 3)
        tile_of(3, w, ldw, x + i, kc, c + i * ldc, ldc);
    for (; i < m; i++)
        tile_of(1, w, ldw, x + i, kc, c + i * ldc, ldc);
}

/* ---- Rows as they lie -------------------------------------------------------------------------------------------- */

INLINE __m512 widen(const infer_format f, const __m256i v)
{
    return f == INFER_FMT_F16 ? _mm512_cvtph_ps(v)
                              : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}

/* E4M3's bits as those of f16, which makes 2^-8 of it, subnormals too. */
INLINE __m512 widen_e4m3(const __m128i v)
{
    const __m256i bits = _mm256_slli_epi16(_mm256_cvtepi8_epi16(v), 7), most = _mm256_set1_epi16(0x3F80);
    const __m256i is_nan = _mm256_cmpeq_epi16(_mm256_and_si256(bits, most), most);
    const __m256i half = _mm256_xor_si256(_mm256_and_si256(bits, _mm256_set1_epi16((short)0xBFFF)),
                                          _mm256_and_si256(is_nan, _mm256_set1_epi16(0x3F80 ^ 0x7E00)));
    return _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256));
}

#define BYTES_OF(f) ((f) == INFER_FMT_F32 ? 4 : (f) == INFER_FMT_F8_E4M3 ? 1 : 2)

/* Sixteen elements of an unquantized format. */
INLINE __m512 get(const infer_format f, const uint8_t *p)
{
    if (f == INFER_FMT_F32)
        return _mm512_loadu_ps(p);
    if (f == INFER_FMT_F8_E4M3)
        return widen_e4m3(_mm_loadu_si128((const void *)p));
    return widen(f, _mm256_loadu_si256((const void *)p));
}

/* kern_dot_fn for R rows of x; k a multiple of LANES. Four rows of weights share the loads of x. */
INLINE void dot_of(const infer_format f, const int R, const uint8_t *const w[KERN_TILE], const float *const *x,
                   int64_t k, float *out, int64_t ld)
{
    const int64_t bytes = BYTES_OF(f);
    const uint8_t *next = w[0] + 4 * (w[1] - w[0]);
    __m128 sum[4];
    UNROLL
    for (int i = 0; i < R; i++)
        sum[i] = _mm_setzero_ps();
    for (int64_t k0 = 0; k0 < k; k0 += KERN_CHUNK) {
        const int64_t end = k - k0 < KERN_CHUNK ? k : k0 + KERN_CHUNK;
        __m512 acc[4][4];
        UNROLL
        for (int i = 0; i < R; i++)
            UNROLL
        for (int r = 0; r < 4; r++)
            acc[i][r] = _mm512_setzero_ps();
        for (int64_t j = k0; j < end; j += LANES) {
            UNROLL
            for (int64_t b = 0; b < 4 * LANES * bytes; b += 64)
                _mm_prefetch((const char *)next + 4 * bytes * j + b, _MM_HINT_T1);
            __m512 v[4];
            UNROLL
            for (int r = 0; r < 4; r++)
                v[r] = get(f, w[r] + bytes * j);
            UNROLL
            for (int i = 0; i < R; i++) {
                const __m512 u = _mm512_loadu_ps(x[i] + j);
                UNROLL
                for (int r = 0; r < 4; r++)
                    acc[i][r] = _mm512_fmadd_ps(v[r], u, acc[i][r]);
            }
        }
        UNROLL
        for (int i = 0; i < R; i++)
            sum[i] = _mm_add_ps(sum[i], reduce(acc[i]));
    }
    UNROLL
    for (int i = 0; i < R; i++)
        _mm_storeu_ps(out + i * ld, sum[i]);
}

/* Products of elements j to `end` of a row of weights with x, lane by lane; a line of the cache is read once. */
INLINE __m512 part_of(const infer_format f, const uint8_t *w, const float *x, int64_t j, int64_t end)
{
    __m512 acc = _mm512_setzero_ps();
    for (; BYTES_OF(f) == 2 && j + 2 * LANES <= end; j += 2 * LANES) {
        const __m512i v = _mm512_loadu_si512(w + 2 * j);
        acc = _mm512_fmadd_ps(widen(f, _mm512_castsi512_si256(v)), _mm512_loadu_ps(x + j), acc);
        acc = _mm512_fmadd_ps(widen(f, _mm512_extracti64x4_epi64(v, 1)), _mm512_loadu_ps(x + j + LANES), acc);
    }
    for (; j < end; j += LANES)
        acc = _mm512_fmadd_ps(get(f, w + BYTES_OF(f) * j), _mm512_loadu_ps(x + j), acc);
    return acc;
}

/* The same for one short x, which stays in the first-level cache while rows go by: one row of weights after the other.
 * A single stream is what the processor reads ahead best by itself, but for the start of a row, which it is asked for.
 * Zen 4, one core, k = 2048: 24.2 GB/s of F16 against 22.1 with four streams; k = 3072: 11.5 against 21.3. */
enum { SHORT_BYTES = 12 << 10, SHORT_PARTS = 4 };

INLINE int is_short(int64_t bytes, int64_t k)
{
    return k <= SHORT_PARTS * KERN_CHUNK && k * (4 + bytes) <= SHORT_BYTES;
}

INLINE void dot_short(const infer_format f, const uint8_t *const w[KERN_TILE], const float *x, int64_t k, float *out)
{
    enum { START = 512 };
    __m512 part[SHORT_PARTS][KERN_TILE];
    __m128 sum = _mm_setzero_ps();
    for (int r = 0; r < KERN_TILE; r++) {
        const uint8_t *next = r + 1 < KERN_TILE ? w[r + 1] : w[r] + (w[1] - w[0]);
        for (int64_t b = 0; b < START; b += 64)
            _mm_prefetch((const char *)next + b, _MM_HINT_T1);
        for (int64_t at = 0, n = 0; at < k; at += KERN_CHUNK, n++)
            part[n][r] = part_of(f, w[r], x, at, k - at < KERN_CHUNK ? k : at + KERN_CHUNK);
    }
    for (int64_t at = 0, n = 0; at < k; at += KERN_CHUNK, n++)
        sum = _mm_add_ps(sum, reduce(part[n]));
    _mm_storeu_ps(out, sum);
}

#define PLAIN(id, name, bytes)                                                                                         \
    static void streams_##name(const uint8_t *const w[KERN_TILE], const float *const *x, int rows, int64_t k,          \
                               float *out, int64_t ld)                                                                 \
    {                                                                                                                  \
        if (rows == 1)                                                                                                 \
            dot_of(INFER_FMT_##id, 1, w, x, k, out, ld);                                                               \
        else if (rows == 2)                                                                                            \
            dot_of(INFER_FMT_##id, 2, w, x, k, out, ld);                                                               \
        else if (rows == 3)                                                                                            \
            dot_of(INFER_FMT_##id, 3, w, x, k, out, ld);                                                               \
        else                                                                                                           \
            dot_of(INFER_FMT_##id, 4, w, x, k, out, ld);                                                               \
    }                                                                                                                  \
    static void dot_##name(const uint8_t *const w[KERN_TILE], const float *const *x, int rows, int64_t k, float *out,  \
                           int64_t ld)                                                                                 \
    {                                                                                                                  \
        if (rows == 1 && is_short(bytes, k))                                                                           \
            dot_short(INFER_FMT_##id, w, x[0], k, out);                                                                \
        else                                                                                                           \
            streams_##name(w, x, rows, k, out, ld);                                                                    \
    }
PLAIN(F32, f32, 4)
PLAIN(F16, f16, 2)
PLAIN(BF16, bf16, 2)
PLAIN(F8_E4M3, e4m3, 1)

const kern_floats kern_avx512_floats = {
    .tile = tile,
    .dot = {[INFER_FMT_F32] = dot_f32,
            [INFER_FMT_F16] = dot_f16,
            [INFER_FMT_BF16] = dot_bf16,
            [INFER_FMT_F8_E4M3] = dot_e4m3},
    .streams = {[INFER_FMT_F32] = streams_f32,
                [INFER_FMT_F16] = streams_f16,
                [INFER_FMT_BF16] = streams_bf16,
                [INFER_FMT_F8_E4M3] = streams_e4m3},
};

#else

const kern_floats kern_avx512_floats = {.tile = NULL};

#endif
