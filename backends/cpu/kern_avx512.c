/*
 * AVX-512 with VNNI: products with weights in panels (panel.h); what is not here comes from the AVX2 table. Up to eight
 * rows are a pass over a panel: one row is bound by reading memory, eight by vpdpbusd, two for 64 products of 16 rows,
 * of which they reach 80 to 90 percent (Zen 4). Codes are made anew for every pass, which costs less than keeping them.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stddef.h>

#include "kern.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512VNNI__)

#include "kern_avx512.h"

INLINE void dot(const shape f, const uint8_t *panels, int64_t bytes, int64_t n_panels, const uint8_t *x, int64_t m,
                int64_t b0, int64_t nb, int64_t row_blocks, float *c, int64_t ldc)
{
    few_rows(f, unit_at(f, panels, b0), bytes, n_panels, x, m, b0, nb, row_blocks, c, ldc);
}

PANEL_SHAPES(PANEL_DOTS)
#define ROW(id, name, ...) [INFER_FMT_##id] = dot_##name,
static const panel_dot_fn dots[INFER_FMT_COUNT] = {PANEL_SHAPES(ROW)};

static void quantize(const float *x, int64_t k, int32_t zero, uint8_t *tile, int64_t rows, int64_t r)
{
    quantize_rows(x, k, zero, tile, rows, r, 0);
}

const kern_panels kern_avx512_panels = {PANEL_FEW_TILE, 48, 0, quantize, dots, NULL};

#else

const kern_panels kern_avx512_panels = {0, 0, 0, NULL, NULL, NULL};

#endif
