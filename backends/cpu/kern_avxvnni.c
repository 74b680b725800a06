/*
 * AVX-VNNI: products with weights in panels (panel.h) on processors that have vpdpbusd, but not AVX-512; what is not
 * here comes from the AVX2 table. With the instruction's AVX-512 form the same source is compiled a second time, for
 * the tests only: that runs on processors without AVX-VNNI. Its own speed is not known.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stddef.h>

#include "kern.h"

#if defined(__AVXVNNI__) || (defined(__AVX512VL__) && defined(__AVX512VNNI__))

#include "kern_avx2_panel.h"

#ifdef __AVXVNNI__
#define PANELS    kern_avxvnni_panels
#define DOT_BYTES _mm256_dpbusd_avx_epi32
#else
#define PANELS    kern_avxvnni_test_panels
#define DOT_BYTES _mm256_dpbusd_epi32
extern const kern_panels PANELS;
#endif

/* High and low bytes apart, so that neither waits for the other. */
INLINE __m256i row_sum(const shape f, const int R, const __m256i *q, const uint8_t *tile, int r, int t0, int t1)
{
    __m256i hi = _mm256_setzero_si256(), lo = hi;
    (void)f;
    UNROLL
    for (int t = t0; t < t1; t++) {
        hi = DOT_BYTES(hi, q[t], int_at(tile + PANEL_X_HI * R + (t * R + r) * 4));
        lo = DOT_BYTES(lo, q[t], int_at(tile + PANEL_X_LO * R + (t * R + r) * 4));
    }
    return _mm256_add_epi32(_mm256_slli_epi32(hi, 8), lo);
}

PANEL_SHAPES(PANEL_DOT)
#define ROW(id, name, ...) [INFER_FMT_##id] = dot_##name,
static const panel_dot_fn dots[INFER_FMT_COUNT] = {PANEL_SHAPES(ROW)};

const kern_panels PANELS = {PANEL_TILE, 96, 0, quantize, dots, NULL};

#else

const kern_panels kern_avxvnni_panels = {0, 0, 0, NULL, NULL, NULL};

#endif
