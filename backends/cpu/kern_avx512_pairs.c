/*
 * AVX-512 with VNNI for the formats that AMX leaves out, those with a scale for 16 elements. Processors with AMX start
 * two vpdpbusd a cycle and are bound by loads, so from 17 rows on two panels at a time share what is loaded of the
 * activations, and their codes are made once for all rows of a block: Q6_K prompts got 890 tokens/s instead of 730 on a
 * Xeon with AMX. Where one vpdpbusd is started a cycle, kern_avx512.c is faster. It is what every machine without AMX
 * gets, Xeons too: there the two have not been compared. The same bits. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stddef.h>

#include "kern.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512VNNI__)

#include "kern_avx512.h"

enum { FEW_ROWS = 16 };

/* Half h of block b. */
INLINE void add_half(const shape f, const int P, const int N, const int R, const int r0, const chunk *u, int64_t b,
                     const uint8_t *tile, const int h, __m512 *acc)
{
    const __m512i *q[2] = {u[0].q[b], u[P - 1].q[b]};
    const __m512 scale[2] = {u[0].scale[b][h], u[P - 1].scale[b][h]}, min[2] = {u[0].min[b][h], u[P - 1].min[b][h]};
    add(f, P, N, R, r0, q, tile, h, scale, min, acc);
}

/* Rows r0 .. r0 + N of a tile of R against n blocks of P panels u[p], 16 columns of c each. */
INLINE void chunk_part(const shape f, const int P, const int N, const int R, const int r0, const chunk *u,
                       const uint8_t *x, int64_t n, float *c, int64_t ldc)
{
    __m512 acc[PANEL_TILE];
    UNROLL
    for (int r = 0; r < N; r++)
        UNROLL
    for (int p = 0; p < P; p++)
        acc[r * P + p] = _mm512_loadu_ps(c + (r0 + r) * ldc + PANEL_ROWS * p);
    for (int64_t b = 0; b < n; b++, x += R * PANEL_X_BYTES) {
        add_half(f, P, N, R, r0, u, b, x, 0, acc);
        add_half(f, P, N, R, r0, u, b, x, 1, acc);
    }
    UNROLL
    for (int r = 0; r < N; r++)
        UNROLL
    for (int p = 0; p < P; p++)
        _mm512_storeu_ps(c + (r0 + r) * ldc + PANEL_ROWS * p, acc[r * P + p]);
}

/* A tile of R rows against n blocks of one panel or two. Two share what is loaded of the activations, so that products
 * and not loads are the bound: their rows go in parts of up to six, whose sums fill the registers. */
INLINE void chunk_rows(const shape f, const int R, const int P, const chunk *u, const uint8_t *x, int64_t n, float *c,
                       int64_t ldc)
{
    const int N = P == 1 || R <= 4 ? R : R % 6 ? 4 : 6;
    UNROLL
    for (int r0 = 0; r0 < R; r0 += N)
        chunk_part(f, P, N, R, r0, u, x, n, c, ldc);
}

/* n blocks of P panels with all rows; x is at the first of the blocks. Gives the end of the first panel's. */
INLINE const uint8_t *meet(const shape f, const int P, const uint8_t *w, int64_t bytes, const uint8_t *x, int64_t m,
                           int64_t b, int64_t n, int64_t row_blocks, float *c, int64_t ldc)
{
    chunk u[2];
    const uint8_t *end = unpack(f, w, n, &u[0]);
    if (P == 2)
        unpack(f, w + bytes, n, &u[1]);
    for (int64_t i = 0, rows; i < m; i += rows) {
        rows = panel_tile_rows(m - i, PANEL_TILE);
        const uint8_t *tile = x + (i * row_blocks + b * rows) * PANEL_X_BYTES;
        PANEL_BY_ROWS(rows, chunk_rows, f, P, u, tile, n, c + i * ldc, ldc);
    }
    return end;
}

INLINE void dot(const shape f, const uint8_t *panels, int64_t bytes, int64_t n_panels, const uint8_t *x, int64_t m,
                int64_t b0, int64_t nb, int64_t row_blocks, float *c, int64_t ldc)
{
    const uint8_t *w = unit_at(f, panels, b0);
    if (m <= FEW_ROWS) {
        few_rows(f, w, bytes, n_panels, x, m, b0, nb, row_blocks, c, ldc);
        return;
    }
    /* All panels before the next part of x, which then stays in a near cache. */
    for (int64_t b = b0, n; b < b0 + nb; b += n) {
        const uint8_t *next = w;
        n = b0 + nb - b < CHUNK ? b0 + nb - b : CHUNK;
        for (int64_t p = 0; p < n_panels; p += 2) {
            const uint8_t *end =
                p + 1 < n_panels ? meet(f, 2, w + p * bytes, bytes, x, m, b, n, row_blocks, c + PANEL_ROWS * p, ldc)
                                 : meet(f, 1, w + p * bytes, bytes, x, m, b, n, row_blocks, c + PANEL_ROWS * p, ldc);
            next = p ? next : end;
        }
        w = next;
    }
}

PANEL_SHAPES_16(PANEL_DOTS)
#define ROW(id, name, ...) [INFER_FMT_##id] = dot_##name,
static const panel_dot_fn dots[INFER_FMT_COUNT] = {PANEL_SHAPES_16(ROW)};

static void quantize(const float *x, int64_t k, int32_t zero, uint8_t *tile, int64_t rows, int64_t r)
{
    quantize_rows(x, k, zero, tile, rows, r, 0);
}

const kern_panels kern_avx512_pair_panels = {PANEL_TILE, 48, FEW_ROWS, quantize, dots, NULL};

#else

const kern_panels kern_avx512_pair_panels = {0, 0, 0, NULL, NULL, NULL};

#endif
