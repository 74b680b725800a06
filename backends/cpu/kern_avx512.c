/*
 * AVX-512 with VNNI: products with weights in panels (panel.h); what is not here comes from the AVX2 table.
 * One to four rows take codes straight from memory and are bound by reading them; more rows share codes unpacked for
 * 256 elements of K and are bound by vpdpbusd, two for 64 products of 16 rows. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stddef.h>

#include "kern.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512VNNI__)

#include "kern_avx512.h"

INLINE void dot(const shape f, const uint8_t *panel, const uint8_t *x, int64_t m, int64_t b0, int64_t nb,
                int64_t row_blocks, float *c, int64_t ldc)
{
    const uint8_t *w = unit_at(f, panel, b0);
    if (m <= FEW_ROWS) {
        few_rows(f, m, w, x + b0 * m * PANEL_X_BYTES, nb, c, ldc);
        return;
    }
    chunk u;
    for (int64_t at = 0; at < nb; at += CHUNK) {
        int64_t n = nb - at < CHUNK ? nb - at : CHUNK;
        w = unpack(f, w, n, &u);
        for (int64_t i = 0, rows; i < m; i += rows) {
            rows = panel_tile_rows(m - i, PANEL_TILE);
            tile_rows(f, rows, &u, x + (i * row_blocks + (b0 + at) * rows) * PANEL_X_BYTES, n, c + i * ldc, ldc);
        }
    }
}

#define DOT(id, name, ...)                                                                                             \
    static void dot_##name(const uint8_t *panel, const uint8_t *x, int64_t m, int64_t b0, int64_t nb,                  \
                           int64_t row_blocks, float *c, int64_t ldc)                                                  \
    {                                                                                                                  \
        const shape f = __VA_ARGS__;                                                                                   \
        dot(f, panel, x, m, b0, nb, row_blocks, c, ldc);                                                               \
    }
PANEL_SHAPES(DOT)

#define ROW(id, name, ...) [INFER_FMT_##id] = dot_##name,
static const panel_dot_fn dots[INFER_FMT_COUNT] = {PANEL_SHAPES(ROW)};

static void quantize(const float *x, int64_t k, int32_t zero, uint8_t *tile, int64_t rows, int64_t r)
{
    quantize_rows(x, k, zero, tile, rows, r, 0);
}

/* ---- Float products ---------------------------------------------------------------------------------------------- */

/* The canonical sum's eight lanes of two weight rows side by side. */
INLINE __m512 two(const float *a, const float *b)
{
    __m512d low = _mm512_castpd256_pd512(_mm256_loadu_pd((const double *)(const void *)a));
    return _mm512_castpd_ps(_mm512_insertf64x4(low, _mm256_loadu_pd((const double *)(const void *)b), 1));
}

INLINE __m512 twice(__m256 x)
{
    return _mm512_castpd_ps(_mm512_broadcast_f64x4(_mm256_castps_pd(x)));
}

INLINE __m256 upper(__m512 v)
{
    return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1));
}

/* kern_table.tile for R rows of x. */
INLINE void tile_of(const int R, const float *w, int64_t ldw, const float *const *x, int64_t kc, float *c, int64_t ldc)
{
    __m512 acc[8][2];
    UNROLL
    for (int i = 0; i < R; i++)
        acc[i][0] = acc[i][1] = _mm512_setzero_ps();
    int64_t k = 0;
    for (; k + KERN_LANES <= kc; k += KERN_LANES) {
        const __m512 a = two(w + k, w + ldw + k), b = two(w + 2 * ldw + k, w + 3 * ldw + k);
        UNROLL
        for (int i = 0; i < R; i++) {
            __m512 v = twice(_mm256_loadu_ps(x[i] + k));
            acc[i][0] = _mm512_fmadd_ps(a, v, acc[i][0]);
            acc[i][1] = _mm512_fmadd_ps(b, v, acc[i][1]);
        }
    }
    if (k < kc) {
        const __m512 a = two(w + k, w + ldw + k), b = two(w + 2 * ldw + k, w + 3 * ldw + k);
        UNROLL
        for (int i = 0; i < R; i++) {
            __m512 v = twice(_mm256_maskz_loadu_ps((__mmask8)((1 << (kc - k)) - 1), x[i] + k));
            acc[i][0] = _mm512_fmadd_ps(a, v, acc[i][0]);
            acc[i][1] = _mm512_fmadd_ps(b, v, acc[i][1]);
        }
    }
    UNROLL
    for (int i = 0; i < R; i++)
        _mm_storeu_ps(c + i * ldc, _mm_add_ps(_mm_loadu_ps(c + i * ldc),
                                              kern_avx2_reduce(_mm512_castps512_ps256(acc[i][0]), upper(acc[i][0]),
                                                               _mm512_castps512_ps256(acc[i][1]), upper(acc[i][1]))));
}

static void tile(const float *w, int64_t ldw, const float *const *x, int64_t m, int64_t kc, float *c, int64_t ldc)
{
    int64_t i = 0;
    for (; i + 8 <= m; i += 8)
        tile_of(8, w, ldw, x + i, kc, c + i * ldc, ldc);
    for (; i + 4 <= m; i += 4)
        tile_of(4, w, ldw, x + i, kc, c + i * ldc, ldc);
    for (; i < m; i++)
        tile_of(1, w, ldw, x + i, kc, c + i * ldc, ldc);
}

const kern_panels kern_avx512_panels = {PANEL_TILE, quantize, dots};
const kern_tile_fn kern_avx512_tile = tile;

#else

const kern_panels kern_avx512_panels = {0, NULL, NULL};
const kern_tile_fn kern_avx512_tile = NULL;

#endif
