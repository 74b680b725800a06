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
        for (int64_t p = 0; p < n_panels; p++)
            PANEL_BY_FEW(m, few, f, w + p * bytes, x + b0 * m * PANEL_X_BYTES, nb, c + PANEL_ROWS * p, ldc);
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

PANEL_SHAPES(PANEL_DOTS)
#define ROW(id, name, ...) [INFER_FMT_##id] = dot_##name,
static const panel_dot_fn dots[INFER_FMT_COUNT] = {PANEL_SHAPES(ROW)};

static void quantize(const float *x, int64_t k, int32_t zero, uint8_t *tile, int64_t rows, int64_t r)
{
    quantize_rows(x, k, zero, tile, rows, r, 0);
}

const kern_panels kern_avx512_panels = {PANEL_TILE, 48, quantize, dots, NULL};

#else

const kern_panels kern_avx512_panels = {0, 0, NULL, NULL, NULL};

#endif
