/*
 * Storage formats with AVX2, FMA and F16C: to floats, and the canonical sum of kern.h with four rows of weights as they
 * lie. Both use the same decoder of 8 elements at a time, so both see the same values. SPDX-License-Identifier:
 * Apache-2.0
 */
#include "config.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include <immintrin.h>
#include <string.h>

#include "kern_avx2.h"
#include "kern_unpack.h"

/* ---- Pieces ---------------------------------------------------------------------------------------------------- */

/* Asks for `bytes` of the four rows after these ahead of time. The rows of a tile follow one another, and one row alone
 * is too short for the processor to find out by itself. */
INLINE void fetch(const uint8_t *p, int bytes)
{
    UNROLL
    for (int at = 0; at < bytes; at += 64)
        _mm_prefetch((const char *)p + at, _MM_HINT_T1);
}

/* A binary16 in every lane. */
INLINE __m256 half8(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_set1_epi16((short)kern_load_u16(p)));
}

INLINE __m256i unsigned8(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}

INLINE __m256 signed8(const int8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}

INLINE __m256i bytes32(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

/* 32 signed bytes as floats. */
INLINE void spread(__m256i bytes, __m256 v[4])
{
    __m128i lo = _mm256_castsi256_si128(bytes), hi = _mm256_extracti128_si256(bytes, 1);
    v[0] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(lo));
    v[1] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(lo, lo)));
    v[2] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(hi));
    v[3] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(hi, hi)));
}

INLINE __m256i low4(__m256i x)
{
    return _mm256_and_si256(x, _mm256_set1_epi8(15));
}

INLINE __m256i high4(__m256i x)
{
    return low4(_mm256_srli_epi16(x, 4));
}

/* 16 bytes of nibbles as 32 bytes: the low halves, then the high ones. */
INLINE __m256i nibbles16(const uint8_t *p)
{
    __m128i q = _mm_loadu_si128((const __m128i *)(const void *)p);
    return low4(_mm256_inserti128_si256(_mm256_castsi128_si256(q), _mm_srli_epi16(q, 4), 1));
}

/* 0x10 in byte i where bit i is set. */
INLINE __m256i fifth_bits(const uint8_t *p)
{
    const __m256i which = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201u);
    __m256i b = _mm256_shuffle_epi8(_mm256_set1_epi32((int)kern_load_u32(p)), which);
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(b, bit), bit), _mm256_set1_epi8(16));
}

/* ---- Blocks of 32: get_NAME gives the four vectors of a block -------------------------------------------------- */

INLINE void get_q4_0(const uint8_t *p, __m256 v[4])
{
    __m256 d = half8(p), m = _mm256_mul_ps(d, _mm256_set1_ps(-8)); /* (q - 8) d, exact either way */
    UNROLL
    for (int i = 0; i < 2; i++) {
        __m256i u = unsigned8(p + 2 + 8 * i);
        v[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_and_si256(u, _mm256_set1_epi32(15))), d, m);
        v[i + 2] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_srli_epi32(u, 4)), d, m);
    }
}

INLINE void get_q4_1(const uint8_t *p, __m256 v[4])
{
    __m256 d = half8(p), m = half8(p + 2);
    UNROLL
    for (int i = 0; i < 2; i++) {
        __m256i u = unsigned8(p + 4 + 8 * i);
        v[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_and_si256(u, _mm256_set1_epi32(15))), d, m);
        v[i + 2] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_srli_epi32(u, 4)), d, m);
    }
}

INLINE void get_q5_0(const uint8_t *p, __m256 v[4])
{
    __m256 d = half8(p);
    spread(_mm256_sub_epi8(_mm256_or_si256(nibbles16(p + 6), fifth_bits(p + 2)), _mm256_set1_epi8(16)), v);
    UNROLL
    for (int i = 0; i < 4; i++)
        v[i] = _mm256_mul_ps(v[i], d);
}

INLINE void get_q5_1(const uint8_t *p, __m256 v[4])
{
    __m256 d = half8(p), m = half8(p + 2);
    spread(_mm256_or_si256(nibbles16(p + 8), fifth_bits(p + 4)), v);
    UNROLL
    for (int i = 0; i < 4; i++)
        v[i] = _mm256_fmadd_ps(v[i], d, m);
}

INLINE void get_q8_0(const uint8_t *p, __m256 v[4])
{
    __m256 d = half8(p);
    UNROLL
    for (int i = 0; i < 4; i++)
        v[i] = _mm256_mul_ps(signed8((const int8_t *)p + 2 + 8 * i), d);
}

/* Twice the FP4 values are whole numbers. */
INLINE void get_mxfp4(const uint8_t *p, __m256 v[4])
{
    const __m256i twice =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
    /* E8M0: 2^(e - 127), 0 a subnormal, 255 NaN */
    int bits = p[0] == 255 ? 0x7FC00000 : p[0] ? p[0] << 23 : 0x00400000;
    __m256 d = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_set1_epi32(bits)), _mm256_set1_ps(0.5f));
    spread(_mm256_shuffle_epi8(twice, nibbles16(p + 1)), v);
    UNROLL
    for (int i = 0; i < 4; i++)
        v[i] = _mm256_mul_ps(v[i], d);
}

INLINE void store4(const __m256 v[4], float *dst)
{
    UNROLL
    for (int i = 0; i < 4; i++)
        _mm256_storeu_ps(dst + 8 * i, v[i]);
}

/* ---- Loops around the decoders: R = 1, 2 or 3 rows of x ------------------------------------------------------ */

#define DOT_HEAD(name, R)                                                                                              \
    INLINE void dot_##name##_##R(const uint8_t *const w[KERN_TILE], const float *const *x, int64_t k, float *out,      \
                                 int64_t ld)                                                                           \
    {                                                                                                                  \
        const uint8_t *next = w[0] + 4 * (w[1] - w[0]);                                                                \
        __m128 sum[R];                                                                                                 \
        UNROLL                                                                                                         \
        for (int q = 0; q < R; q++)                                                                                    \
            sum[q] = _mm_setzero_ps();                                                                                 \
        for (int64_t k0 = 0; k0 < k; k0 += KERN_CHUNK) {                                                               \
            int64_t end = k - k0 < KERN_CHUNK ? k : k0 + KERN_CHUNK;                                                   \
            __m256 acc[R][4];                                                                                          \
            UNROLL                                                                                                     \
            for (int q = 0; q < R; q++)                                                                                \
                acc[q][0] = acc[q][1] = acc[q][2] = acc[q][3] = _mm256_setzero_ps();

#define DOT_TAIL(R)                                                                                                    \
    UNROLL                                                                                                             \
    for (int q = 0; q < R; q++)                                                                                        \
        sum[q] = _mm_add_ps(sum[q], kern_avx2_reduce(acc[q][0], acc[q][1], acc[q][2], acc[q][3]));                     \
    }                                                                                                                  \
    UNROLL                                                                                                             \
    for (int q = 0; q < R; q++)                                                                                        \
        _mm_storeu_ps(out + q * ld, sum[q]);                                                                           \
    }

/* acc[q][r] takes in the n vectors v of weight row r, with row q of x from element i. */
#define DOT_STEP(R, n, i)                                                                                              \
    UNROLL                                                                                                             \
    for (int q = 0; q < R; q++)                                                                                        \
        UNROLL                                                                                                         \
    for (int j = 0; j < n; j++)                                                                                        \
        acc[q][r] = _mm256_fmadd_ps(v[j], _mm256_loadu_ps(x[q] + (i) + 8 * j), acc[q][r]);

#define DOT_ROWS(name)                                                                                                 \
    static void dot_##name(const uint8_t *const w[KERN_TILE], const float *const *x, int rows, int64_t k, float *out,  \
                           int64_t ld)                                                                                 \
    {                                                                                                                  \
        if (rows == 1)                                                                                                 \
            dot_##name##_1(w, x, k, out, ld);                                                                          \
        else if (rows == 2)                                                                                            \
            dot_##name##_2(w, x, k, out, ld);                                                                          \
        else                                                                                                           \
            dot_##name##_3(w, x, k, out, ld);                                                                          \
    }

/* C columns of the weighted sum for R rows; each element one chain of fused products in the order of keys, as in
 * kern_avx2.c. `load` puts C / 8 vectors of the key at `at` into v. */
#define WEIGH_COLUMNS(R, C, load)                                                                                      \
    do {                                                                                                               \
        __m256 acc[R][(C) / 8], v[(C) / 8];                                                                            \
        UNROLL                                                                                                         \
        for (int q = 0; q < R; q++)                                                                                    \
            UNROLL                                                                                                     \
        for (int c = 0; c < (C) / 8; c++)                                                                              \
            acc[q][c] = _mm256_loadu_ps(o + q * ldo + j + 8 * c);                                                      \
        for (int64_t t = 0; t < n; t++) {                                                                              \
            const uint8_t *at = where[t];                                                                              \
            load;                                                                                                      \
            UNROLL                                                                                                     \
            for (int q = 0; q < R; q++) {                                                                              \
                __m256 f = _mm256_broadcast_ss(p + q * ldp + t);                                                       \
                UNROLL                                                                                                 \
                for (int c = 0; c < (C) / 8; c++)                                                                      \
                    acc[q][c] = _mm256_fmadd_ps(f, v[c], acc[q][c]);                                                   \
            }                                                                                                          \
        }                                                                                                              \
        UNROLL                                                                                                         \
        for (int q = 0; q < R; q++)                                                                                    \
            UNROLL                                                                                                     \
        for (int c = 0; c < (C) / 8; c++)                                                                              \
            _mm256_storeu_ps(o + q * ldo + j + 8 * c, acc[q][c]);                                                      \
    } while (0)

#define WEIGH_ROWS(name)                                                                                               \
    static void weigh_##name(const uint8_t *const *where, int64_t n, const float *p, int64_t ldp, int rows, float *o,  \
                             int64_t ldo, int64_t dv)                                                                  \
    {                                                                                                                  \
        if (rows == 1)                                                                                                 \
            weigh_##name##_1(where, n, p, ldp, o, ldo, dv);                                                            \
        else if (rows == 2)                                                                                            \
            weigh_##name##_2(where, n, p, ldp, o, ldo, dv);                                                            \
        else                                                                                                           \
            weigh_##name##_3(where, n, p, ldp, o, ldo, dv);                                                            \
    }

#define DOT32(name, bytes, R)                                                                                          \
    DOT_HEAD(name, R)                                                                                                  \
    int64_t b = k0 / 32 * (bytes);                                                                                     \
    for (int64_t i = k0; i < end; i += 32, b += (bytes)) {                                                             \
        fetch(next + 4 * b, 4 * (bytes));                                                                              \
        UNROLL                                                                                                         \
        for (int r = 0; r < KERN_TILE; r++) {                                                                          \
            __m256 v[4];                                                                                               \
            get_##name(w[r] + b, v);                                                                                   \
            DOT_STEP(R, 4, i)                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    DOT_TAIL(R)

#define WEIGH32(name, bytes, R)                                                                                        \
    INLINE void weigh_##name##_##R(const uint8_t *const *where, int64_t n, const float *p, int64_t ldp, float *o,      \
                                   int64_t ldo, int64_t dv)                                                            \
    {                                                                                                                  \
        for (int64_t j = 0; j < dv; j += 32)                                                                           \
            WEIGH_COLUMNS(R, 32, get_##name(at + j / 32 * (bytes), v));                                                \
    }

#define BLOCK32(name, bytes)                                                                                           \
    static void unpack_##name(const void *src, float *dst, int64_t n)                                                  \
    {                                                                                                                  \
        const uint8_t *p = src;                                                                                        \
        for (int64_t b = 0; b < n; b += 32, p += (bytes)) {                                                            \
            __m256 v[4];                                                                                               \
            get_##name(p, v);                                                                                          \
            store4(v, dst + b);                                                                                        \
        }                                                                                                              \
    }                                                                                                                  \
    DOT32(name, bytes, 1)                                                                                              \
    DOT32(name, bytes, 2)                                                                                              \
    DOT32(name, bytes, 3)                                                                                              \
    DOT_ROWS(name)                                                                                                     \
    WEIGH32(name, bytes, 1)                                                                                            \
    WEIGH32(name, bytes, 2)                                                                                            \
    WEIGH32(name, bytes, 3)                                                                                            \
    WEIGH_ROWS(name)

BLOCK32(q4_0, 18)
BLOCK32(q4_1, 20)
BLOCK32(q5_0, 22)
BLOCK32(q5_1, 24)
BLOCK32(q8_0, 34)
BLOCK32(mxfp4, 17)

/* ---- Blocks of 256: head_NAME reads the scales, get_NAME the eight vectors of 64 elements ---------------------- */

/* Scales and minima as products with the block's own; how many stand for a block differs. */
typedef struct head {
    float d[16], m[16];
} head;

INLINE void scales12(const uint8_t *p, head *h)
{
    uint32_t a, b, c;
    memcpy(&a, p + 4, 4);
    memcpy(&b, p + 8, 4);
    memcpy(&c, p + 12, 4);
    uint64_t s = (a & 0x3F3F3F3Fu) | (uint64_t)((c & 0x0F0F0F0Fu) | (a >> 2 & 0x30303030u)) << 32;
    uint64_t m = (b & 0x3F3F3F3Fu) | (uint64_t)((c >> 4 & 0x0F0F0F0Fu) | (b >> 2 & 0x30303030u)) << 32;
    __m256 sf = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)s)));
    __m256 mf = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)m)));
    _mm256_storeu_ps(h->d, _mm256_mul_ps(half8(p), sf));
    _mm256_storeu_ps(h->m, _mm256_mul_ps(half8(p + 2), mf));
}

INLINE void head_q4_k(const uint8_t *p, head *h)
{
    scales12(p, h);
}

/* Part g of four: 32 bytes whose low halves are the first 32 elements and whose high halves are the others. */
INLINE void get_q4_k(const uint8_t *p, const head *h, int g, __m256 v[8])
{
    __m256 d0 = _mm256_broadcast_ss(&h->d[2 * g]), m0 = _mm256_broadcast_ss(&h->m[2 * g]);
    __m256 d1 = _mm256_broadcast_ss(&h->d[2 * g + 1]), m1 = _mm256_broadcast_ss(&h->m[2 * g + 1]);
    UNROLL
    for (int i = 0; i < 4; i++) {
        __m256i u = unsigned8(p + 16 + 32 * g + 8 * i);
        v[i] = _mm256_fmsub_ps(_mm256_cvtepi32_ps(_mm256_and_si256(u, _mm256_set1_epi32(15))), d0, m0);
        v[i + 4] = _mm256_fmsub_ps(_mm256_cvtepi32_ps(_mm256_srli_epi32(u, 4)), d1, m1);
    }
}

INLINE void head_q5_k(const uint8_t *p, head *h)
{
    scales12(p, h);
}

INLINE void get_q5_k(const uint8_t *p, const head *h, int g, __m256 v[8])
{
    __m256i q = bytes32(p + 48 + 32 * g), bits = _mm256_srl_epi16(bytes32(p + 16), _mm_cvtsi32_si128(2 * g));
    __m256i one = _mm256_set1_epi8(16);
    spread(_mm256_or_si256(low4(q), _mm256_and_si256(_mm256_slli_epi16(bits, 4), one)), v);
    spread(_mm256_or_si256(high4(q), _mm256_and_si256(_mm256_slli_epi16(bits, 3), one)), v + 4);
    UNROLL
    for (int i = 0; i < 8; i++)
        v[i] =
            _mm256_fmsub_ps(v[i], _mm256_broadcast_ss(&h->d[2 * g + i / 4]), _mm256_broadcast_ss(&h->m[2 * g + i / 4]));
}

INLINE void head_q6_k(const uint8_t *p, head *h)
{
    __m256 d = half8(p + 208);
    _mm256_storeu_ps(h->d, _mm256_mul_ps(signed8((const int8_t *)p + 192), d));
    _mm256_storeu_ps(h->d + 8, _mm256_mul_ps(signed8((const int8_t *)p + 200), d));
}

/* Parts 2 j and 2 j + 1 share 64 bytes of low halves and 32 of bit pairs: the even part takes the low nibbles. */
INLINE void get_q6_k(const uint8_t *p, const head *h, int g, __m256 v[8])
{
    const uint8_t *low = p + g / 2 * 64;
    __m256i pairs = _mm256_srl_epi16(bytes32(p + 128 + g / 2 * 32), _mm_cvtsi32_si128(g % 2 * 4));
    __m256i top = _mm256_set1_epi8(0x30), q0 = bytes32(low), q1 = bytes32(low + 32);
    q0 = g % 2 ? high4(q0) : low4(q0);
    q1 = g % 2 ? high4(q1) : low4(q1);
    q0 = _mm256_or_si256(q0, _mm256_and_si256(_mm256_slli_epi16(pairs, 4), top));
    q1 = _mm256_or_si256(q1, _mm256_and_si256(_mm256_slli_epi16(pairs, 2), top));
    spread(_mm256_sub_epi8(q0, _mm256_set1_epi8(32)), v);
    spread(_mm256_sub_epi8(q1, _mm256_set1_epi8(32)), v + 4);
    UNROLL
    for (int i = 0; i < 8; i++)
        v[i] = _mm256_mul_ps(v[i], _mm256_broadcast_ss(&h->d[4 * g + i / 2]));
}

INLINE void head_q2_k(const uint8_t *p, head *h)
{
    __m256 d = half8(p + 80), m = half8(p + 82);
    UNROLL
    for (int i = 0; i < 2; i++) {
        __m256i u = unsigned8(p + 8 * i);
        __m256i low = _mm256_and_si256(u, _mm256_set1_epi32(15)), high = _mm256_srli_epi32(u, 4);
        _mm256_storeu_ps(h->d + 8 * i, _mm256_mul_ps(_mm256_cvtepi32_ps(low), d));
        _mm256_storeu_ps(h->m + 8 * i, _mm256_mul_ps(_mm256_cvtepi32_ps(high), m));
    }
}

INLINE void get_q2_k(const uint8_t *p, const head *h, int g, __m256 v[8])
{
    __m256i q = _mm256_srl_epi16(bytes32(p + 16 + g / 2 * 32), _mm_cvtsi32_si128(g % 2 * 4));
    spread(_mm256_and_si256(q, _mm256_set1_epi8(3)), v);
    spread(_mm256_and_si256(_mm256_srli_epi16(q, 2), _mm256_set1_epi8(3)), v + 4);
    UNROLL
    for (int i = 0; i < 8; i++)
        v[i] =
            _mm256_fmsub_ps(v[i], _mm256_broadcast_ss(&h->d[4 * g + i / 2]), _mm256_broadcast_ss(&h->m[4 * g + i / 2]));
}

/* Low nibbles of the sixteen scales in bytes 0..7 (8..15 in their high halves), upper pairs in bytes 8..11. */
INLINE void head_q3_k(const uint8_t *p, head *h)
{
    uint64_t low;
    uint32_t high;
    memcpy(&low, p + 96, 8);
    memcpy(&high, p + 104, 4);
    const uint64_t nib = 0x0F0F0F0F0F0F0F0Fu;
    uint64_t wide = high | (uint64_t)high << 32, even = wide << 4 & 0x30303030u, odd = wide << 2 & 0x3030303000000000u;
    uint64_t a = (low & nib) | even | odd;
    even = wide & 0x30303030u;
    odd = wide >> 2 & 0x3030303000000000u;
    uint64_t b = (low >> 4 & nib) | even | odd;
    __m256 d = half8(p + 108), bias = _mm256_set1_ps(32);
    __m256 s0 = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)a)));
    __m256 s1 = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)b)));
    _mm256_storeu_ps(h->d, _mm256_mul_ps(_mm256_sub_ps(s0, bias), d));
    _mm256_storeu_ps(h->d + 8, _mm256_mul_ps(_mm256_sub_ps(s1, bias), d));
}

INLINE void get_q3_k(const uint8_t *p, const head *h, int g, __m256 v[8])
{
    __m256i q = _mm256_srl_epi16(bytes32(p + 32 + g / 2 * 32), _mm_cvtsi32_si128(g % 2 * 4));
    __m256i bits = _mm256_srl_epi16(bytes32(p), _mm_cvtsi32_si128(2 * g)), four = _mm256_set1_epi8(4);
    __m256i q0 = _mm256_and_si256(q, _mm256_set1_epi8(3));
    __m256i q1 = _mm256_and_si256(_mm256_srli_epi16(q, 2), _mm256_set1_epi8(3));
    q0 = _mm256_or_si256(q0, _mm256_and_si256(_mm256_slli_epi16(bits, 2), four));
    q1 = _mm256_or_si256(q1, _mm256_and_si256(_mm256_slli_epi16(bits, 1), four));
    spread(_mm256_sub_epi8(q0, four), v);
    spread(_mm256_sub_epi8(q1, four), v + 4);
    UNROLL
    for (int i = 0; i < 8; i++)
        v[i] = _mm256_mul_ps(v[i], _mm256_broadcast_ss(&h->d[4 * g + i / 2]));
}

#define UNPACK_PART(name, g)                                                                                           \
    do {                                                                                                               \
        __m256 v[8];                                                                                                   \
        get_##name(p, &h, g, v);                                                                                       \
        store4(v, dst + b + 64 * (g));                                                                                 \
        store4(v + 4, dst + b + 64 * (g) + 32);                                                                        \
    } while (0)

#define PART(name, g, bytes, R)                                                                                        \
    do {                                                                                                               \
        fetch(next + 4 * b + (g) * (bytes), bytes);                                                                    \
        UNROLL                                                                                                         \
        for (int r = 0; r < KERN_TILE; r++) {                                                                          \
            __m256 v[8];                                                                                               \
            get_##name(w[r] + b, &h[r], g, v);                                                                         \
            DOT_STEP(R, 8, i + 64 * (g))                                                                               \
        }                                                                                                              \
    } while (0)

#define DOT256(name, bytes, R)                                                                                         \
    DOT_HEAD(name, R)                                                                                                  \
    int64_t b = k0 / 256 * (bytes);                                                                                    \
    for (int64_t i = k0; i < end; i += 256, b += (bytes)) {                                                            \
        head h[KERN_TILE];                                                                                             \
        UNROLL                                                                                                         \
        for (int r = 0; r < KERN_TILE; r++)                                                                            \
            head_##name(w[r] + b, &h[r]);                                                                              \
        PART(name, 0, bytes, R);                                                                                       \
        PART(name, 1, bytes, R);                                                                                       \
        PART(name, 2, bytes, R);                                                                                       \
        PART(name, 3, bytes, R);                                                                                       \
    }                                                                                                                  \
    DOT_TAIL(R)

#define BLOCK256(name, bytes)                                                                                          \
    static void unpack_##name(const void *src, float *dst, int64_t n)                                                  \
    {                                                                                                                  \
        const uint8_t *p = src;                                                                                        \
        head h;                                                                                                        \
        for (int64_t b = 0; b < n; b += 256, p += (bytes)) {                                                           \
            head_##name(p, &h);                                                                                        \
            UNPACK_PART(name, 0);                                                                                      \
            UNPACK_PART(name, 1);                                                                                      \
            UNPACK_PART(name, 2);                                                                                      \
            UNPACK_PART(name, 3);                                                                                      \
        }                                                                                                              \
    }                                                                                                                  \
    DOT256(name, bytes, 1)                                                                                             \
    DOT256(name, bytes, 2)                                                                                             \
    DOT256(name, bytes, 3)                                                                                             \
    DOT_ROWS(name)

BLOCK256(q2_k, 84)
BLOCK256(q3_k, 110)
BLOCK256(q4_k, 144)
BLOCK256(q5_k, 176)
BLOCK256(q6_k, 210)

/* ---- Plain formats --------------------------------------------------------------------------------------------- */

INLINE __m256 get_f32(const uint8_t *p)
{
    return _mm256_loadu_ps((const float *)(const void *)p);
}

INLINE __m256 get_f16(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

INLINE __m256 get_bf16(const uint8_t *p)
{
    __m256i u = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
}

/* The bits as those of f16, which makes 2^-8 of it, subnormals too. */
INLINE __m256 get_e4m3(const uint8_t *p)
{
    const __m128i bits = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)p)), 7);
    const __m128i most = _mm_set1_epi16(0x3F80), is_nan = _mm_cmpeq_epi16(_mm_and_si128(bits, most), most);
    const __m128i half = _mm_xor_si128(_mm_and_si128(bits, _mm_set1_epi16((short)0xBFFF)),
                                       _mm_and_si128(is_nan, _mm_set1_epi16(0x3F80 ^ 0x7E00)));
    return _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256));
}

#define DOT8(name, bytes, R)                                                                                           \
    DOT_HEAD(name, R)                                                                                                  \
    for (int64_t i = k0; i < end; i += 8) {                                                                            \
        fetch(next + 4 * (bytes)*i, 32 * (bytes));                                                                     \
        UNROLL                                                                                                         \
        for (int r = 0; r < KERN_TILE; r++) {                                                                          \
            const __m256 v[1] = {get_##name(w[r] + (bytes)*i)};                                                        \
            DOT_STEP(R, 1, i)                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    DOT_TAIL(R)

#define LOAD4(name, bytes)                                                                                             \
    v[0] = get_##name(at + (bytes)*j);                                                                                 \
    v[1] = get_##name(at + (bytes) * (j + 8));                                                                         \
    v[2] = get_##name(at + (bytes) * (j + 16));                                                                        \
    v[3] = get_##name(at + (bytes) * (j + 24))

#define WEIGH8(name, bytes, R)                                                                                         \
    INLINE void weigh_##name##_##R(const uint8_t *const *where, int64_t n, const float *p, int64_t ldp, float *o,      \
                                   int64_t ldo, int64_t dv)                                                            \
    {                                                                                                                  \
        int64_t j = 0;                                                                                                 \
        for (; j + 32 <= dv; j += 32)                                                                                  \
            WEIGH_COLUMNS(R, 32, LOAD4(name, bytes));                                                                  \
        for (; j < dv; j += 8)                                                                                         \
            WEIGH_COLUMNS(R, 8, v[0] = get_##name(at + (bytes)*j));                                                    \
    }

#define DOTS(name, bytes)                                                                                              \
    DOT8(name, bytes, 1)                                                                                               \
    DOT8(name, bytes, 2)                                                                                               \
    DOT8(name, bytes, 3)                                                                                               \
    DOT_ROWS(name)
#define PLAIN(name, bytes)                                                                                             \
    DOTS(name, bytes)                                                                                                  \
    WEIGH8(name, bytes, 1)                                                                                             \
    WEIGH8(name, bytes, 2)                                                                                             \
    WEIGH8(name, bytes, 3)                                                                                             \
    WEIGH_ROWS(name)

PLAIN(f32, 4)
PLAIN(f16, 2)
PLAIN(bf16, 2)
PLAIN(e4m3, 1)

static void unpack_e4m3(const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(dst + i, get_e4m3(p + i));
    kern_unpack_e4m3(p + i, dst + i, n - i);
}

static void unpack_f16(const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(dst + i, get_f16(p + 2 * i));
    for (; i < n; i++)
        dst[i] = _cvtsh_ss(kern_load_u16(p + 2 * i));
}

static void pack_f16(const float *src, void *dst, int64_t n)
{
    uint8_t *p = dst;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(void *)(p + 2 * i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < n; i++)
        kern_store_u16(p + 2 * i, (uint16_t)_cvtss_sh(src[i], _MM_FROUND_TO_NEAREST_INT));
}

static void unpack_bf16(const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(dst + i, get_bf16(p + 2 * i));
    kern_unpack_bf16(p + 2 * i, dst + i, n - i);
}

static void pack_bf16(const float *src, void *dst, int64_t n)
{
    uint8_t *p = dst;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 x = _mm256_loadu_ps(src + i);
        __m256i u = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
        __m256i near = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
        __m256i nan = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
        __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
        u = _mm256_srli_epi32(_mm256_blendv_epi8(near, nan, is_nan), 16);
        u = _mm256_permute4x64_epi64(_mm256_packus_epi32(u, u), 0x08);
        _mm_storeu_si128((__m128i *)(void *)(p + 2 * i), _mm256_castsi256_si128(u));
    }
    kern_pack_bf16(src + i, p + 2 * i, n - i);
}

static void pack_q8_0(const float *src, void *dst, int64_t n)
{
    const __m256 absolute = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF)), zero = _mm256_setzero_ps();
    uint8_t *p = dst;
    for (int64_t b = 0; b < n; b += 32, p += 34) {
        __m256 x[4], m = zero;
        __m256i q[4];
        UNROLL
        for (int i = 0; i < 4; i++) {
            x[i] = _mm256_loadu_ps(src + b + 8 * i);
            m = _mm256_max_ps(_mm256_and_ps(x[i], absolute), m); /* the second operand where NaN */
        }
        __m128 h = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
        h = _mm_max_ps(h, _mm_movehl_ps(h, h));
        float d = _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h))) / 127.0f;
        __m256 inverse = _mm256_set1_ps(d != 0 ? 1.0f / d : 0);
        kern_store_u16(p, (uint16_t)_cvtss_sh(d, _MM_FROUND_TO_NEAREST_INT));
        UNROLL
        for (int i = 0; i < 4; i++) { /* see kern_pack_q8_0 */
            __m256 v = _mm256_mul_ps(_mm256_and_ps(x[i], absolute), inverse);
            v = _mm256_max_ps(_mm256_min_ps(_mm256_set1_ps(127), v), zero);
            __m256 whole = _mm256_floor_ps(v);
            __m256 up = _mm256_cmp_ps(_mm256_sub_ps(v, whole), _mm256_set1_ps(0.5f), _CMP_GE_OQ);
            __m256i a = _mm256_sub_epi32(_mm256_cvttps_epi32(whole), _mm256_castps_si256(up));
            __m256i sign = _mm256_srai_epi32(_mm256_castps_si256(x[i]), 31);
            q[i] = _mm256_sub_epi32(_mm256_xor_si256(a, sign), sign);
        }
        __m256i words = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
        words = _mm256_permutevar8x32_epi32(words, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)); /* packs go by halves */
        _mm256_storeu_si256((__m256i *)(void *)(p + 2), words);
    }
}

/* ---- Table ----------------------------------------------------------------------------------------------------- */

#define UNPACK_ROW(id, name, elems, bytes) [INFER_FMT_##id] = {elems, bytes, kern_unpack_##name, NULL, NULL, NULL},
#define BLOCK_ROW(id, name, elems, bytes)                                                                              \
    [INFER_FMT_##id] = {elems, bytes, unpack_##name, NULL, dot_##name, weigh_##name},
#define DOT_ROW(id, name, elems, bytes) [INFER_FMT_##id] = {elems, bytes, unpack_##name, NULL, dot_##name, NULL},
const kern_format kern_avx2_formats[INFER_FMT_COUNT] = {
    [INFER_FMT_F32] = {1, 4, kern_unpack_f32, kern_pack_f32, dot_f32, weigh_f32},
    [INFER_FMT_F16] = {1, 2, unpack_f16, pack_f16, dot_f16, weigh_f16},
    [INFER_FMT_BF16] = {1, 2, unpack_bf16, pack_bf16, dot_bf16, weigh_bf16},
    [INFER_FMT_Q8_0] = {32, 34, unpack_q8_0, pack_q8_0, dot_q8_0, weigh_q8_0},
    KERN_SMALL_FORMATS(BLOCK_ROW) KERN_NUMBER_FORMATS(UNPACK_ROW) KERN_BLOCK32_FORMATS(BLOCK_ROW)
        KERN_BLOCK256_FORMATS(DOT_ROW)};

#else
typedef int kern_avx2_formats_absent; /* a file needs a declaration */
#endif
