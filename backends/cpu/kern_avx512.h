/*
 * AVX-512 with VNNI, what the files for it share: codes and scales of panels (panel.h) in vectors, and a tile's sums.
 * All inline, for a shape that is constant where it is used. SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_CPU_KERN_AVX512_H
#define INFER_CPU_KERN_AVX512_H

#include <immintrin.h>
#include <string.h>

#include "kern_avx2.h"
#include "panel.h"

/* ---- Codes and scales -------------------------------------------------------------------------------------------- */

INLINE __m512i load(const uint8_t *p)
{
    return _mm512_loadu_si512((const void *)p);
}

/* The block's eight vectors of codes. */
INLINE void codes(const shape f, const uint8_t *p, __m512i q[PANEL_STEPS])
{
    const __m512i low = _mm512_set1_epi8((char)((1 << f.low) - 1));
    if (f.low == 8)
        UNROLL
    for (int t = 0; t < 8; t++)
        q[t] = load(p + 64 * t);
    if (f.low == 4)
        UNROLL
    for (int j = 0; j < 4; j++) {
        __m512i v = load(p + 64 * j);
        q[j] = _mm512_and_si512(v, low);
        q[j + 4] = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
    }
    if (f.low == 2)
        UNROLL
    for (int j = 0; j < 2; j++) {
        __m512i v = load(p + 64 * j);
        q[j] = _mm512_and_si512(v, low);
        q[j + 2] = _mm512_and_si512(_mm512_srli_epi16(v, 2), low);
        q[j + 4] = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
        q[j + 6] = _mm512_and_si512(_mm512_srli_epi16(v, 6), low);
    }
    p += 64 * f.low;
    if (f.high == 1) {
        __m512i v = load(p), bit = _mm512_set1_epi8((char)(1 << f.low));
        UNROLL
        for (int t = 0; t < 8; t++) { /* q | (v moved so that bit t is bit `low`) & bit */
            __m512i s = t < f.low ? _mm512_slli_epi16(v, f.low - t) : _mm512_srli_epi16(v, t - f.low);
            q[t] = _mm512_ternarylogic_epi32(q[t], s, bit, 0xF8);
        }
    }
    if (f.high == 2)
        UNROLL
    for (int j = 0; j < 2; j++) {
        __m512i v = load(p + 64 * j), bits = _mm512_set1_epi8((char)(3 << f.low));
        UNROLL
        for (int s = 0; s < 4; s++) {
            __m512i w = 2 * s < f.low ? _mm512_slli_epi16(v, f.low - 2 * s) : _mm512_srli_epi16(v, 2 * s - f.low);
            q[j + 2 * s] = _mm512_ternarylogic_epi32(q[j + 2 * s], w, bits, 0xF8);
        }
    }
    if (f.lut) {
        const __m512i lut = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)f.lut));
        UNROLL
        for (int t = 0; t < 8; t++)
            q[t] = _mm512_shuffle_epi8(lut, q[t]);
    }
}

INLINE __m512 halves(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}

INLINE __m512 negated(__m512 v)
{
    return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(v), _mm512_set1_epi32(INT32_MIN)));
}

INLINE __m512 bytes(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p)));
}

/* As panel_scales: the same operations, sixteen at a time. */
INLINE void scales(const shape f, const uint8_t *head, const uint8_t *block, int h, __m512 *scale, __m512 *min)
{
    const uint8_t *half = block + PANEL_ROWS * h;
    switch (f.scale) {
    case PANEL_F16:
        *scale = halves(block);
        break;
    case PANEL_F16_MIN:
        *scale = halves(block);
        *min = halves(block + 2 * PANEL_ROWS);
        break;
    case PANEL_E8M0: {
        /* 2^(e - 128): the exponent field is e - 1; 0 and 1 are subnormal there, 255 is no number. */
        __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)block)), one = _mm512_set1_epi32(1);
        __m512i v = _mm512_slli_epi32(_mm512_sub_epi32(e, one), 23);
        v = _mm512_mask_sllv_epi32(v, _mm512_cmple_epi32_mask(e, one), _mm512_set1_epi32(1 << 21), e);
        v = _mm512_mask_mov_epi32(v, _mm512_cmpeq_epi32_mask(e, _mm512_set1_epi32(255)), _mm512_set1_epi32(0x7FC00000));
        *scale = _mm512_castsi512_ps(v);
        break;
    }
    case PANEL_K_MIN:
        *scale = _mm512_mul_ps(halves(head), bytes(block));
        *min = _mm512_mul_ps(negated(halves(head + 2 * PANEL_ROWS)), bytes(block + PANEL_ROWS));
        break;
    case PANEL_K4_MIN: {
        __m512i v = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)half));
        *scale = _mm512_mul_ps(halves(head), _mm512_cvtepi32_ps(_mm512_and_si512(v, _mm512_set1_epi32(15))));
        *min = _mm512_mul_ps(negated(halves(head + 2 * PANEL_ROWS)), _mm512_cvtepi32_ps(_mm512_srli_epi32(v, 4)));
        break;
    }
    case PANEL_K_I8:
        *scale =
            _mm512_mul_ps(halves(head), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)half))));
        break;
    }
}

/* ---- The sum ----------------------------------------------------------------------------------------------------- */

INLINE __m512i int_at(const uint8_t *p)
{
    int32_t v;
    memcpy(&v, p, sizeof v);
    return _mm512_set1_epi32(v);
}

INLINE __m512 float_at(const uint8_t *p)
{
    return _mm512_castsi512_ps(int_at(p));
}

/* Half h of one block, or all of it, of P panels and rows r0 .. r0 + N of a tile of R: into their sums acc[N][P].
 * q: each panel's vectors of codes, here or in memory. */
INLINE void add(const shape f, const int P, const int N, const int R, const int r0, const __m512i *const *q,
                const uint8_t *tile, int h, const __m512 *scale, const __m512 *min, __m512 *acc)
{
    const int t0 = f.sub == 16 ? 4 * h : 0, t1 = f.sub == 16 ? 4 * h + 4 : 8;
    const int n = zero_at(f, h), ds = sum_at(f, h);
    const int C = N * P <= 1   ? 4
                  : N * P <= 6 ? 2
                               : 1; /* chains of products, so that few sums do not wait for each other */
    __m512i s[PANEL_TILE], sum[4][PANEL_TILE];
    UNROLL
    for (int i = 0; i < C * N * P; i++)
        sum[i / (N * P)][i % (N * P)] = _mm512_setzero_si512();
    UNROLL
    for (int t = t0; t < t1; t++)
        UNROLL
    for (int r = 0; r < N; r++) {
        const __m512i x = int_at(tile + PANEL_X_HI * R + (t * R + r0 + r) * 4);
        const int c = C == 4 ? 2 * (t % 2) : 0;
        UNROLL
        for (int p = 0; p < P; p++)
            sum[c][r * P + p] = _mm512_dpbusd_epi32(sum[c][r * P + p], q[p][t], x);
    }
    UNROLL
    for (int i = 0; i < N * P; i++) {
        s[i] = _mm512_slli_epi32(C == 4 ? _mm512_add_epi32(sum[0][i], sum[2][i]) : sum[0][i], 8);
        sum[C == 4 ? 3 : 0][i] = sum[C == 1 ? 0 : 1][i] = C == 1 ? s[i] : _mm512_setzero_si512();
    }
    UNROLL
    for (int t = t0; t < t1; t++)
        UNROLL
    for (int r = 0; r < N; r++) {
        const __m512i x = int_at(tile + PANEL_X_LO * R + (t * R + r0 + r) * 4);
        const int c = C == 4 ? 1 + 2 * (t % 2) : C - 1;
        UNROLL
        for (int p = 0; p < P; p++)
            sum[c][r * P + p] = _mm512_dpbusd_epi32(sum[c][r * P + p], q[p][t], x);
    }
    UNROLL
    for (int i = 0; i < N * P; i++) {
        s[i] = C == 1 ? sum[0][i] : _mm512_add_epi32(s[i], sum[1][i]);
        if (C == 4)
            s[i] = _mm512_add_epi32(s[i], sum[3][i]);
        if (!has_min(f))
            s[i] = _mm512_add_epi32(s[i], int_at(tile + n * R + 4 * (r0 + i / P)));
    }
    UNROLL
    for (int r = 0; r < N; r++)
        UNROLL
    for (int p = 0; p < P; p++) {
        acc[r * P + p] =
            _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[r * P + p]),
                            _mm512_mul_ps(scale[p], float_at(tile + PANEL_X_D * R + 4 * (r0 + r))), acc[r * P + p]);
        if (has_min(f))
            acc[r * P + p] = _mm512_fmadd_ps(min[p], float_at(tile + ds * R + 4 * (r0 + r)), acc[r * P + p]);
    }
}

/* Asks for a block that comes later. One row is faster without: the processor's own guesses keep up with it. */
INLINE void ask_ahead(const shape f, const uint8_t *w)
{
    enum { AHEAD = 4096 };
    UNROLL
    for (int a = 0; a < f.block_bytes; a += 64)
        _mm_prefetch((const char *)w + AHEAD + a, _MM_HINT_T1);
}

/* Few rows: R of them against blocks as they lie. */
INLINE void few(const shape f, const int R, const uint8_t *w, const uint8_t *x, int64_t nb, float *c, int64_t ldc)
{
    const int64_t per = f.unit / PANEL_BLOCK;
    __m512 acc[PANEL_FEW_TILE];
    UNROLL
    for (int r = 0; r < R; r++)
        acc[r] = _mm512_loadu_ps(c + r * ldc);
    for (int64_t b = 0; b < nb;) {
        const uint8_t *head = w;
        w += f.head_bytes;
        for (int64_t i = 0; i < per; i++, b++, w += f.block_bytes, x += R * PANEL_X_BYTES) {
            __m512i q[PANEL_STEPS];
            const __m512i *const one = q;
            __m512 scale, min = _mm512_setzero_ps();
            if (R > 1)
                ask_ahead(f, w);
            codes(f, w + f.scale_bytes, q);
            scales(f, head, w, 0, &scale, &min);
            add(f, 1, R, R, 0, &one, x, 0, &scale, &min, acc);
            if (f.sub == 16) {
                scales(f, head, w, 1, &scale, &min);
                add(f, 1, R, R, 0, &one, x, 1, &scale, &min, acc);
            }
        }
    }
    UNROLL
    for (int r = 0; r < R; r++)
        _mm512_storeu_ps(c + r * ldc, acc[r]);
}

/* Codes, scales and minima of up to CHUNK blocks. */
enum { CHUNK = 8 };
typedef struct chunk {
    __m512i q[CHUNK][PANEL_STEPS];
    __m512 scale[CHUNK][2], min[CHUNK][2];
} chunk;

INLINE const uint8_t *unpack(const shape f, const uint8_t *w, int64_t n, chunk *u)
{
    const int64_t per = f.unit / PANEL_BLOCK;
    for (int64_t b = 0; b < n;) {
        const uint8_t *head = w;
        w += f.head_bytes;
        for (int64_t i = 0; i < per; i++, b++, w += f.block_bytes) {
            codes(f, w + f.scale_bytes, u->q[b]);
            for (int h = 0; h < 32 / f.sub; h++)
                scales(f, head, w, h, &u->scale[b][h], &u->min[b][h]);
        }
    }
    return w;
}

/* m rows of x, in tiles of PANEL_FEW_TILE and less, against n_panels from block b0 on, which is at w. */
INLINE void few_rows(const shape f, const uint8_t *w, int64_t bytes, int64_t n_panels, const uint8_t *x, int64_t m,
                     int64_t b0, int64_t nb, int64_t row_blocks, float *c, int64_t ldc)
{
    for (int64_t p = 0; p < n_panels; p++, w += bytes, c += PANEL_ROWS)
        for (int64_t i = 0, rows; i < m; i += rows) {
            rows = panel_tile_rows(m - i, PANEL_FEW_TILE);
            const uint8_t *tile = x + (i * row_blocks + b0 * rows) * PANEL_X_BYTES;
            if (rows == PANEL_FEW_TILE)
                few(f, PANEL_FEW_TILE, w, tile, nb, c + i * ldc, ldc);
            else
                PANEL_BY_FEW(rows, few, f, w, tile, nb, c + i * ldc, ldc);
        }
}

/* ---- Activations ------------------------------------------------------------------------------------------------- */

/* As panel_quantize; in_rows: the bytes of a row lie together, [rows][32], instead of in words by step. */
INLINE void quantize_rows(const float *x, int64_t k, int32_t zero, uint8_t *tile, int64_t rows, int64_t r,
                          const int in_rows)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
    for (int64_t b = 0; b < k / PANEL_BLOCK; b++, x += PANEL_BLOCK, tile += rows * PANEL_X_BYTES) {
        __m512 v[2] = {_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)};
        uint32_t bits =
            (uint32_t)_mm512_reduce_max_epi32(_mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(v[0]), magnitude),
                                                               _mm512_and_si512(_mm512_castps_si512(v[1]), magnitude)));
        float d, inverse;
        panel_step(bits, &d, &inverse);
        int32_t sum[2];
        _Alignas(16) uint8_t hi[PANEL_BLOCK], lo[PANEL_BLOCK];
        UNROLL
        for (int h = 0; h < 2; h++) {
            __m512i a = inverse == 0 ? _mm512_setzero_si512()
                                     : _mm512_cvtps_epi32(_mm512_mul_ps(v[h], _mm512_set1_ps(inverse)));
            __m512i up = _mm512_srai_epi32(_mm512_add_epi32(a, _mm512_set1_epi32(128)), 8);
            _mm_store_si128((void *)(hi + 16 * h), _mm512_cvtepi32_epi8(up));
            _mm_store_si128((void *)(lo + 16 * h), _mm512_cvtepi32_epi8(_mm512_sub_epi32(a, _mm512_slli_epi32(up, 8))));
            sum[h] = _mm512_reduce_add_epi32(a);
        }
        if (in_rows) {
            memcpy(tile + PANEL_X_HI * rows + PANEL_BLOCK * r, hi, sizeof hi);
            memcpy(tile + PANEL_X_LO * rows + PANEL_BLOCK * r, lo, sizeof lo);
        }
        for (int t = 0; t < PANEL_STEPS && !in_rows; t++) {
            memcpy(tile + PANEL_X_HI * rows + (t * rows + r) * 4, hi + 4 * t, 4);
            memcpy(tile + PANEL_X_LO * rows + (t * rows + r) * 4, lo + 4 * t, 4);
        }
        panel_put_numbers(tile, rows, r, d, sum[0], sum[1], zero);
    }
}

#endif
