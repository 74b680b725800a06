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

INLINE void dot(const shape f, const uint8_t *panels, int64_t bytes, int64_t n_panels, const uint8_t *x, int64_t m,
                int64_t b0, int64_t nb, int64_t row_blocks, float *c, int64_t ldc)
{
    int64_t p = 0;
    if (m <= FEW_ROWS) {
        for (; p < n_panels; p++)
            PANEL_BY_FEW(m, few, f, unit_at(f, panels + p * bytes, b0), x + b0 * m * PANEL_X_BYTES, nb,
                         c + PANEL_ROWS * p, ldc);
        return;
    }
    for (; p + 2 <= n_panels; p += 2)
        many(f, 2, PANEL_TILE, panels + p * bytes, bytes, x, m, b0, nb, row_blocks, c + PANEL_ROWS * p, ldc);
    if (p < n_panels)
        many(f, 1, PANEL_TILE, panels + p * bytes, bytes, x, m, b0, nb, row_blocks, c + PANEL_ROWS * p, ldc);
}

PANEL_SHAPES(PANEL_DOTS)
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
