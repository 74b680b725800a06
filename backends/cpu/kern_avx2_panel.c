/*
 * AVX2: products with weights in panels (panel.h), eight of a panel's rows at a time. Byte products come in pairs as
 * 16-bit sums, which hold as many steps as the width of the codes allows before they are widened. One row is bound by
 * these instructions (about 90 for 512 weights), not by memory; many rows are no faster than float products would be.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stddef.h>

#include "kern.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "kern_avx2_panel.h"

/* How many sums of two products of a code and a signed byte fit into 16 bits: 2 * 128 * the largest code each. */
INLINE int steps_of(const shape f)
{
    return f.lut ? 4 : f.low + f.high <= 4 ? 8 : f.low + f.high == 5 ? 4 : 2;
}

/* Sum of products of vectors t0 .. t1 with a row's bytes, which start at x and are 4 R apart. */
INLINE __m256i byte_sum(int steps, const int R, const __m256i *q, const uint8_t *x, int t0, int t1)
{
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sum = _mm256_setzero_si256();
    UNROLL
    for (int t = t0; t < t1; t += steps) {
        __m256i pairs = _mm256_setzero_si256();
        UNROLL
        for (int s = 0; s < steps; s++)
            if (t + s < t1)
                pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(q[t + s], int_at(x + 4 * R * (t + s))));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
    }
    return sum;
}

INLINE __m256i row_sum(const shape f, const int R, const __m256i *q, const uint8_t *tile, int r, int t0, int t1)
{
    const __m256i hi = byte_sum(steps_of(f), R, q, tile + PANEL_X_HI * R + 4 * r, t0, t1);
    return _mm256_add_epi32(_mm256_slli_epi32(hi, 8),
                            byte_sum(steps_of(f), R, q, tile + PANEL_X_LO * R + 4 * r, t0, t1));
}

PANEL_SHAPES_BELOW_8(PANEL_DOT)
#define ROW(id, name, ...) [INFER_FMT_##id] = dot_##name,
static const panel_dot_fn dots[INFER_FMT_COUNT] = {PANEL_SHAPES_BELOW_8(ROW)};

const kern_panels kern_avx2_panels = {PANEL_TILE, 96, 0, quantize, dots, NULL};

#endif
