/*
 * NEON: activations for panels (panel.h) with a row's bytes together in groups as the product wants them. All inline.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_CPU_KERN_NEON_H
#define INFER_CPU_KERN_NEON_H

#include <arm_neon.h>
#include <string.h>

#include "kern_panel.h"

INLINE int32_t int_at(const uint8_t *p)
{
    int32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE float float_at(const uint8_t *p)
{
    float v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* As panel_quantize; `group` elements of a row lie together, [32 / group][rows][group]. */
INLINE void quantize_rows(const float *x, int64_t k, int32_t zero, uint8_t *tile, int64_t rows, int64_t r,
                          const int group)
{
    enum { VECTORS = PANEL_BLOCK / 4 };
    for (int64_t b = 0; b < k / PANEL_BLOCK; b++, x += PANEL_BLOCK, tile += rows * PANEL_X_BYTES) {
        float32x4_t v[VECTORS];
        uint32x4_t most = vdupq_n_u32(0);
        int16x4_t up[VECTORS], down[VECTORS];
        int32x4_t sums[2] = {vdupq_n_s32(0), vdupq_n_s32(0)};
        UNROLL
        for (int i = 0; i < VECTORS; i++) {
            v[i] = vld1q_f32(x + 4 * i);
            most = vmaxq_u32(most, vreinterpretq_u32_f32(vabsq_f32(v[i])));
        }
        const uint32_t bits = vmaxvq_u32(most);
        float d, inverse; /* what is no number times 0 is none, which is converted to 0 */
        panel_step(bits, &d, &inverse);
        UNROLL
        for (int i = 0; i < VECTORS; i++) {
            const int32x4_t a = vcvtnq_s32_f32(vmulq_n_f32(v[i], inverse));
            const int32x4_t high = vshrq_n_s32(vaddq_s32(a, vdupq_n_s32(128)), 8);
            up[i] = vmovn_s32(high);
            down[i] = vmovn_s32(vsubq_s32(a, vshlq_n_s32(high, 8)));
            sums[i / (VECTORS / 2)] = vaddq_s32(sums[i / (VECTORS / 2)], a);
        }
        int8_t hi[PANEL_BLOCK], lo[PANEL_BLOCK];
        UNROLL
        for (int i = 0; i < VECTORS; i += 2) {
            vst1_s8(hi + 4 * i, vmovn_s16(vcombine_s16(up[i], up[i + 1])));
            vst1_s8(lo + 4 * i, vmovn_s16(vcombine_s16(down[i], down[i + 1])));
        }
        for (int e = 0; e < PANEL_BLOCK; e += group) {
            memcpy(tile + PANEL_X_HI * rows + e * rows + group * r, hi + e, (size_t)group);
            memcpy(tile + PANEL_X_LO * rows + e * rows + group * r, lo + e, (size_t)group);
        }
        panel_put_numbers(tile, rows, r, d, vaddvq_s32(sums[0]), vaddvq_s32(sums[1]), zero);
    }
}

/* By the files that include this: R rows of a tile against n blocks as they lie. */
INLINE void rows(const shape f, const int R, const uint8_t *w, const uint8_t *x, int64_t n, float *c, int64_t ldc);

INLINE void dot(const shape f, const uint8_t *panel, const uint8_t *x, int64_t m, int64_t b0, int64_t nb,
                int64_t row_blocks, float *c, int64_t ldc)
{
    enum { PART = 8 }; /* blocks that meet all tiles before the next, so that they stay in the cache */
    for (int64_t at = 0; at < nb; at += PART) {
        const int64_t n = nb - at < PART ? nb - at : PART;
        const uint8_t *w = unit_at(f, panel, b0 + at);
        for (int64_t i = 0, R; i < m; i += R) {
            R = panel_tile_rows(m - i, PANEL_TILE);
            const uint8_t *tile = x + (i * row_blocks + (b0 + at) * R) * PANEL_X_BYTES;
            PANEL_BY_ROWS(R, rows, f, w, tile, n, c + i * ldc, ldc);
        }
    }
}

#endif
