/*
 * AMX: products of 16 and more rows with weights in panels; fewer are AVX-512's, and so are formats with a scale for 16
 * elements, which would use a quarter of the tile unit. A panel's vectors of codes are the second operand as the tile
 * unit wants it, and the rows of a tile of 16 lie one after another, so that they are the first. Each block of 32 is
 * two products, for the two bytes of the activations, and then vector work on 256 sums. Sums reach the vectors through
 * memory, which bounds it: of 41 ns a block (Sapphire Rapids) products and their stores take 20 to 25 and vectors 15,
 * and these do not overlap, in whatever order they are written. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stddef.h>

#include "kern.h"

#if defined(__AMX_INT8__) && defined(__AVX512VNNI__)

#include "kern_avx512.h"

enum { TILE = 16, FEW_ROWS = 15 };

/* Shapes of the tiles: 0 and 1 sums for the two bytes, 4 and 5 those bytes of 16 rows, 6 codes. */
typedef struct tile_config {
    uint8_t palette, start, zero[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} tile_config;
static const tile_config config = {.palette = 1,
                                   .bytes = {64, 64, 0, 0, PANEL_BLOCK, PANEL_BLOCK, 64},
                                   .rows = {TILE, TILE, 0, 0, TILE, TILE, PANEL_STEPS}};
/* The sums of one block of 16 rows to acc: hi and lo are the two products [row][16]. */
INLINE void finish(const shape f, const int32_t *hi, const int32_t *lo, const uint8_t *tile, __m512 scale, __m512 min,
                   __m512 *acc)
{
    const int n = zero_at(f, 0), ds = sum_at(f, 0);
    UNROLL
    for (int r = 0; r < TILE; r++) {
        __m512i s = _mm512_add_epi32(_mm512_slli_epi32(load((const uint8_t *)(hi + TILE * r)), 8),
                                     load((const uint8_t *)(lo + TILE * r)));
        if (!has_min(f))
            s = _mm512_add_epi32(s, int_at(tile + n * TILE + 4 * r));
        acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s), _mm512_mul_ps(scale, float_at(tile + PANEL_X_D * TILE + 4 * r)),
                                 acc[r]);
        if (has_min(f))
            acc[r] = _mm512_fmadd_ps(min, float_at(tile + ds * TILE + 4 * r), acc[r]);
    }
}

/* A tile of 16 rows against a chunk of n blocks. The tile unit is LAG products ahead of the vectors that read its sums,
 * as what it stores takes that long to arrive. */
INLINE void chunk_tile(const shape f, const chunk *u, const uint8_t *x, int64_t n, float *c, int64_t ldc)
{
    enum { LAG = 2, RING = 4 };
    _Alignas(64) int32_t sums[RING][2][TILE * TILE];
    __m512 acc[TILE];
    UNROLL
    for (int r = 0; r < TILE; r++)
        acc[r] = _mm512_loadu_ps(c + r * ldc);
    for (int64_t b = 0; b < n + LAG; b++) {
        if (b < n) {
            const uint8_t *tile = x + b * (TILE * PANEL_X_BYTES);
            _tile_loadd(6, &u->q[b][0], 64);
            _tile_loadd(4, tile + PANEL_X_HI * TILE, PANEL_BLOCK);
            _tile_loadd(5, tile + PANEL_X_LO * TILE, PANEL_BLOCK);
            _tile_zero(0);
            _tile_zero(1);
            _tile_dpbsud(0, 4, 6);
            _tile_dpbsud(1, 5, 6);
            _tile_stored(0, sums[b % RING][0], 64);
            _tile_stored(1, sums[b % RING][1], 64);
        }
        if (b >= LAG) {
            const int64_t d = b - LAG;
            finish(f, sums[d % RING][0], sums[d % RING][1], x + d * (TILE * PANEL_X_BYTES), u->scale[d][0],
                   u->min[d][0], acc);
        }
    }
    UNROLL
    for (int r = 0; r < TILE; r++)
        _mm512_storeu_ps(c + r * ldc, acc[r]);
}

INLINE void dot(const shape f, const uint8_t *panels, int64_t bytes, int64_t n_panels, const uint8_t *x, int64_t m,
                int64_t b0, int64_t nb, int64_t row_blocks, float *c, int64_t ldc)
{
    const int64_t whole = m <= FEW_ROWS ? 0 : m / TILE * TILE;
    const uint8_t *first = unit_at(f, panels, b0), *w = first;
    chunk u;
    if (whole)
        _tile_loadconfig(&config);
    /* All panels before the next part of x, which then stays in the first-level cache. */
    for (int64_t at = 0, n; at < nb && whole; at += n) {
        const uint8_t *next = w;
        n = nb - at < CHUNK ? nb - at : CHUNK;
        for (int64_t p = 0; p < n_panels; p++) {
            const uint8_t *end = unpack(f, w + p * bytes, n, &u);
            next = p ? next : end;
            for (int64_t i = 0; i < whole; i += TILE)
                chunk_tile(f, &u, x + (i * row_blocks + (b0 + at) * TILE) * PANEL_X_BYTES, n,
                           c + i * ldc + PANEL_ROWS * p, ldc);
        }
        w = next;
    }
    if (whole)
        _tile_release();
    few_rows(f, first, bytes, n_panels, x + whole * row_blocks * PANEL_X_BYTES, m - whole, b0, nb, row_blocks,
             c + whole * ldc, ldc);
}

PANEL_SHAPES_32(PANEL_DOTS)
#define ROW(id, name, ...) [INFER_FMT_##id] = dot_##name,
static const panel_dot_fn dots[INFER_FMT_COUNT] = {PANEL_SHAPES_32(ROW)};

static void quantize(const float *x, int64_t k, int32_t zero, uint8_t *tile, int64_t rows, int64_t r)
{
    quantize_rows(x, k, zero, tile, rows, r, rows == TILE);
}

const kern_panels kern_amx_panels = {TILE, 48, FEW_ROWS, quantize, dots, &kern_avx512_pair_panels};

#else

const kern_panels kern_amx_panels = {0, 0, 0, NULL, NULL, NULL};

#endif
