/*
 * Products with weights in panels (panel.h) in vectors of 32 bytes, eight of a panel's rows at a time: all but the
 * integer sum itself, which the files that include this supply. All inline, for a shape that is constant where it is
 * used. SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_CPU_KERN_AVX2_PANEL_H
#define INFER_CPU_KERN_AVX2_PANEL_H

#include <string.h>

#include "kern_avx2.h"

enum { HALF = PANEL_ROWS / 2 };

/* ---- Codes and scales -------------------------------------------------------------------------------------------- */

INLINE __m256i load(const uint8_t *p)
{
    return _mm256_loadu_si256((const void *)p);
}

/* The block's eight vectors of codes of eight rows; p is the first plane's part for them, planes being 64 bytes apart.
 */
INLINE void codes(const shape f, const uint8_t *p, __m256i q[PANEL_STEPS])
{
    const __m256i low = _mm256_set1_epi8((char)((1 << f.low) - 1));
    if (f.low == 8)
        UNROLL
    for (int t = 0; t < 8; t++)
        q[t] = load(p + 64 * t);
    if (f.low == 4)
        UNROLL
    for (int j = 0; j < 4; j++) {
        __m256i v = load(p + 64 * j);
        q[j] = _mm256_and_si256(v, low);
        q[j + 4] = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
    }
    if (f.low == 2)
        UNROLL
    for (int j = 0; j < 2; j++) {
        __m256i v = load(p + 64 * j);
        q[j] = _mm256_and_si256(v, low);
        q[j + 2] = _mm256_and_si256(_mm256_srli_epi16(v, 2), low);
        q[j + 4] = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
        q[j + 6] = _mm256_and_si256(_mm256_srli_epi16(v, 6), low);
    }
    p += 64 * f.low;
    if (f.high == 1) {
        __m256i v = load(p), bit = _mm256_set1_epi8((char)(1 << f.low));
        UNROLL
        for (int t = 0; t < 8; t++) {
            __m256i s = t < f.low ? _mm256_slli_epi16(v, f.low - t) : _mm256_srli_epi16(v, t - f.low);
            q[t] = _mm256_or_si256(q[t], _mm256_and_si256(s, bit));
        }
    }
    if (f.high == 2)
        UNROLL
    for (int j = 0; j < 2; j++) {
        __m256i v = load(p + 64 * j), bits = _mm256_set1_epi8((char)(3 << f.low));
        UNROLL
        for (int s = 0; s < 4; s++) {
            int up = f.low - 2 * s;
            __m256i w = up > 0 ? _mm256_slli_epi16(v, up) : _mm256_srli_epi16(v, -up);
            q[j + 2 * s] = _mm256_or_si256(q[j + 2 * s], _mm256_and_si256(w, bits));
        }
    }
    if (f.lut) {
        const __m256i lut = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)f.lut));
        UNROLL
        for (int t = 0; t < 8; t++)
            q[t] = _mm256_shuffle_epi8(lut, q[t]);
    }
}

INLINE __m256 halves(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const void *)p));
}

INLINE __m256i bytes(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p));
}

INLINE __m256 negated(__m256 v)
{
    return _mm256_xor_ps(v, _mm256_set1_ps(-0.0f));
}

/* As panel_scales, for the eight rows from `row`: the same operations. */
INLINE void scales(const shape f, const uint8_t *head, const uint8_t *block, int h, int row, __m256 *scale, __m256 *min)
{
    const uint8_t *half = block + PANEL_ROWS * h + row, *d = head + 2 * row, *dmin = d + 2 * PANEL_ROWS;
    switch (f.scale) {
    case PANEL_F16:
        *scale = halves(block + 2 * row);
        break;
    case PANEL_F16_MIN:
        *scale = halves(block + 2 * row);
        *min = halves(block + 2 * (PANEL_ROWS + row));
        break;
    case PANEL_E8M0: {
        __m256i e = bytes(half), one = _mm256_set1_epi32(1), none = _mm256_cmpeq_epi32(e, _mm256_set1_epi32(255));
        __m256i small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e); /* subnormal: 2^(e - 128) is bit 21 + e */
        __m256i v = _mm256_slli_epi32(_mm256_sub_epi32(e, one), 23);
        v = _mm256_blendv_epi8(v, _mm256_sllv_epi32(_mm256_set1_epi32(1 << 21), e), small);
        *scale = _mm256_castsi256_ps(_mm256_blendv_epi8(v, _mm256_set1_epi32(0x7FC00000), none));
        break;
    }
    case PANEL_K_MIN:
        *scale = _mm256_mul_ps(halves(d), _mm256_cvtepi32_ps(bytes(block + row)));
        *min = _mm256_mul_ps(negated(halves(dmin)), _mm256_cvtepi32_ps(bytes(block + PANEL_ROWS + row)));
        break;
    case PANEL_K4_MIN: {
        __m256i v = bytes(half);
        *scale = _mm256_mul_ps(halves(d), _mm256_cvtepi32_ps(_mm256_and_si256(v, _mm256_set1_epi32(15))));
        *min = _mm256_mul_ps(negated(halves(dmin)), _mm256_cvtepi32_ps(_mm256_srli_epi32(v, 4)));
        break;
    }
    case PANEL_K_I8:
        *scale =
            _mm256_mul_ps(halves(d), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)half))));
        break;
    }
}

/* ---- The sum ----------------------------------------------------------------------------------------------------- */

INLINE __m256i int_at(const uint8_t *p)
{
    int32_t v;
    memcpy(&v, p, sizeof v);
    return _mm256_set1_epi32(v);
}

INLINE __m256 float_at(const uint8_t *p)
{
    return _mm256_castsi256_ps(int_at(p));
}

/* Sum of the products of vectors t0 .. t1 of codes with row r of a tile, exact; by the file that includes this. */
INLINE __m256i row_sum(const shape f, const int R, const __m256i *q, const uint8_t *tile, int r, int t0, int t1);

/* R rows' halves h of one block, or all of it, into their sums of eight weight rows, 2 apart. */
INLINE void add(const shape f, const int R, const __m256i *q, const uint8_t *tile, int h, __m256 scale, __m256 min,
                __m256 *acc)
{
    const int t0 = f.sub == 16 ? 4 * h : 0, t1 = f.sub == 16 ? 4 * h + 4 : 8;
    const int n = zero_at(f, h), ds = sum_at(f, h);
    UNROLL
    for (int r = 0; r < R; r++) {
        __m256i s = row_sum(f, R, q, tile, r, t0, t1);
        if (!has_min(f))
            s = _mm256_add_epi32(s, int_at(tile + n * R + 4 * r));
        acc[2 * r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s),
                                     _mm256_mul_ps(scale, float_at(tile + PANEL_X_D * R + 4 * r)), acc[2 * r]);
        if (has_min(f))
            acc[2 * r] = _mm256_fmadd_ps(min, float_at(tile + ds * R + 4 * r), acc[2 * r]);
    }
}

/* One block and R rows: both halves of the panel. */
INLINE void block_rows(const shape f, const int R, const uint8_t *head, const uint8_t *block, const uint8_t *tile,
                       __m256 *acc)
{
    UNROLL
    for (int half = 0; half < 2; half++) {
        __m256i q[PANEL_STEPS];
        __m256 scale, min = _mm256_setzero_ps();
        codes(f, block + f.scale_bytes + 32 * half, q);
        scales(f, head, block, 0, HALF * half, &scale, &min);
        add(f, R, q, tile, 0, scale, min, acc + half);
        if (f.sub == 16) {
            scales(f, head, block, 1, HALF * half, &scale, &min);
            add(f, R, q, tile, 1, scale, min, acc + half);
        }
    }
}

/* R rows of a tile against blocks as they lie. */
INLINE void rows(const shape f, const int R, const uint8_t *w, const uint8_t *x, int64_t nb, float *c, int64_t ldc)
{
    enum { AHEAD = 2048 }; /* bytes that are asked for before they are needed */
    const int64_t per = f.unit / PANEL_BLOCK;
    __m256 acc[2 * 4];
    UNROLL
    for (int r = 0; r < 2 * R; r++)
        acc[r] = _mm256_loadu_ps(c + r / 2 * ldc + r % 2 * HALF);
    for (int64_t b = 0; b < nb;) {
        const uint8_t *head = w;
        w += f.head_bytes;
        for (int64_t i = 0; i < per; i++, b++, w += f.block_bytes, x += R * PANEL_X_BYTES) {
            UNROLL
            for (int a = 0; a < f.block_bytes; a += 64)
                _mm_prefetch((const char *)w + AHEAD + a, _MM_HINT_T0);
            block_rows(f, R, head, w, x, acc);
        }
    }
    UNROLL
    for (int r = 0; r < 2 * R; r++)
        _mm256_storeu_ps(c + r / 2 * ldc + r % 2 * HALF, acc[r]);
}

/* ---- Many rows --------------------------------------------------------------------------------------------------- */

/* Codes, scales and minima of up to CHUNK blocks, by half of the panel. */
enum { CHUNK = 8 };
typedef struct chunk {
    __m256i q[CHUNK][2][PANEL_STEPS];
    __m256 scale[CHUNK][2][2], min[CHUNK][2][2];
} chunk;

INLINE const uint8_t *unpack(const shape f, const uint8_t *w, int64_t n, chunk *u)
{
    const int64_t per = f.unit / PANEL_BLOCK;
    for (int64_t b = 0; b < n;) {
        const uint8_t *head = w;
        w += f.head_bytes;
        for (int64_t i = 0; i < per; i++, b++, w += f.block_bytes)
            for (int half = 0; half < 2; half++) {
                codes(f, w + f.scale_bytes + 32 * half, u->q[b][half]);
                for (int h = 0; h < 32 / f.sub; h++)
                    scales(f, head, w, h, HALF * half, &u->scale[b][half][h], &u->min[b][half][h]);
            }
    }
    return w;
}

INLINE void chunk_rows(const shape f, const int R, const chunk *u, const uint8_t *x, int64_t n, float *c, int64_t ldc)
{
    for (int half = 0; half < 2; half++) {
        __m256 acc[2 * PANEL_TILE];
        const uint8_t *tile = x;
        UNROLL
        for (int r = 0; r < R; r++)
            acc[2 * r] = _mm256_loadu_ps(c + r * ldc + HALF * half);
        for (int64_t b = 0; b < n; b++, tile += R * PANEL_X_BYTES)
            for (int h = 0; h < 32 / f.sub; h++)
                add(f, R, u->q[b][half], tile, h, u->scale[b][half][h], u->min[b][half][h], acc);
        UNROLL
        for (int r = 0; r < R; r++)
            _mm256_storeu_ps(c + r * ldc + HALF * half, acc[2 * r]);
    }
}

INLINE void dot(const shape f, const uint8_t *panel, const uint8_t *x, int64_t m, int64_t b0, int64_t nb,
                int64_t row_blocks, float *c, int64_t ldc)
{
    const uint8_t *w = unit_at(f, panel, b0);
    if (m <= 4) {
        PANEL_BY_FEW(m, rows, f, w, x + b0 * m * PANEL_X_BYTES, nb, c, ldc);
        return;
    }
    chunk u;
    for (int64_t at = 0; at < nb; at += CHUNK) {
        int64_t n = nb - at < CHUNK ? nb - at : CHUNK;
        w = unpack(f, w, n, &u);
        for (int64_t i = 0, R; i < m; i += R) {
            R = panel_tile_rows(m - i, PANEL_TILE);
            const uint8_t *tile = x + (i * row_blocks + (b0 + at) * R) * PANEL_X_BYTES;
            PANEL_BY_ROWS(R, chunk_rows, f, &u, tile, n, c + i * ldc, ldc);
        }
    }
}

/* ---- Activations ------------------------------------------------------------------------------------------------- */

INLINE int32_t sum8(__m256i v)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1)));
}

static void quantize(const float *x, int64_t k, int32_t zero, uint8_t *tile, int64_t R, int64_t r)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
    /* After the two packs, which work in 128-bit lanes, the words of four bytes are in this order. */
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (int64_t b = 0; b < k / PANEL_BLOCK; b++, x += PANEL_BLOCK, tile += R * PANEL_X_BYTES) {
        __m256 v[4];
        __m256i most = _mm256_setzero_si256(), up[4], down[4], sums[2];
        UNROLL
        for (int i = 0; i < 4; i++) {
            v[i] = _mm256_loadu_ps(x + 8 * i);
            most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
        }
        __m128i m = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
        m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
        m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1));
        uint32_t bits = (uint32_t)_mm_cvtsi128_si32(m);
        float d, inverse;
        panel_step(bits, &d, &inverse);
        UNROLL
        for (int i = 0; i < 4; i++) {
            __m256i a = inverse == 0 ? _mm256_setzero_si256()
                                     : _mm256_cvtps_epi32(_mm256_mul_ps(v[i], _mm256_set1_ps(inverse)));
            up[i] = _mm256_srai_epi32(_mm256_add_epi32(a, _mm256_set1_epi32(128)), 8);
            down[i] = _mm256_sub_epi32(a, _mm256_slli_epi32(up[i], 8));
            sums[i / 2] = i % 2 ? _mm256_add_epi32(sums[i / 2], a) : a;
        }
        _Alignas(32) uint8_t hi[PANEL_BLOCK], lo[PANEL_BLOCK];
        __m256i h = _mm256_packs_epi16(_mm256_packs_epi32(up[0], up[1]), _mm256_packs_epi32(up[2], up[3]));
        __m256i l = _mm256_packs_epi16(_mm256_packs_epi32(down[0], down[1]), _mm256_packs_epi32(down[2], down[3]));
        _mm256_store_si256((void *)hi, _mm256_permutevar8x32_epi32(h, order));
        _mm256_store_si256((void *)lo, _mm256_permutevar8x32_epi32(l, order));
        for (int t = 0; t < PANEL_STEPS; t++) {
            memcpy(tile + PANEL_X_HI * R + (t * R + r) * 4, hi + 4 * t, 4);
            memcpy(tile + PANEL_X_LO * R + (t * R + r) * 4, lo + 4 * t, 4);
        }
        panel_put_numbers(tile, R, r, d, sum8(sums[0]), sum8(sums[1]), zero);
    }
}

#endif
