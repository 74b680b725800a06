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
        PANEL_BY_FEW(m, few, f, w, x + b0 * m * PANEL_X_BYTES, nb, c, ldc);
        return;
    }
    chunk u;
    for (int64_t at = 0; at < nb; at += CHUNK) {
        int64_t n = nb - at < CHUNK ? nb - at : CHUNK;
        w = unpack(f, w, n, &u);
        for (int64_t i = 0, rows; i < m; i += rows) {
            rows = panel_tile_rows(m - i, PANEL_TILE);
            const uint8_t *tile = x + (i * row_blocks + (b0 + at) * rows) * PANEL_X_BYTES;
            PANEL_BY_ROWS(rows, chunk_rows, f, &u, tile, n, c + i * ldc, ldc);
        }
    }
}

PANEL_SHAPES(PANEL_DOT)
#define ROW(id, name, ...) [INFER_FMT_##id] = dot_##name,
static const panel_dot_fn dots[INFER_FMT_COUNT] = {PANEL_SHAPES(ROW)};

static void quantize(const float *x, int64_t k, int32_t zero, uint8_t *tile, int64_t rows, int64_t r)
{
    quantize_rows(x, k, zero, tile, rows, r, 0);
}

const kern_panels kern_avx512_panels = {PANEL_TILE, quantize, dots};

#else

const kern_panels kern_avx512_panels = {0, NULL, NULL};

#endif
