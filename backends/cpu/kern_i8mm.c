/*
 * NEON with products of 8-bit matrices (FEAT_I8MM): products with weights in panels (panel.h); what is not here is
 * portable C. Two rows at a time take usmmla, which multiplies two rows of 8 codes with two rows of 8 activations; a
 * row alone takes usdot. Run in emulation only so far: right, its speed is not known.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stddef.h>

#include "kern.h"

#include "kern_neon_panel.h"

enum { GROUP = 8 };

/* For pairs of rows: vector t of 4 elements and 4 rows, and the next, become 8 elements of two rows, and of the other
 * two. */
INLINE void arrange(const shape f, const int R, uint8x16_t q[PANEL_STEPS])
{
    (void)f;
    if (R > 1)
        UNROLL
    for (int t = 0; t < PANEL_STEPS; t += 2) {
        const uint32x4_t a = vreinterpretq_u32_u8(q[t]), b = vreinterpretq_u32_u8(q[t + 1]);
        q[t] = vreinterpretq_u8_u32(vzip1q_u32(a, b));
        q[t + 1] = vreinterpretq_u8_u32(vzip2q_u32(a, b));
    }
}

/* s and four vectors' products with a row's next 16 bytes. */
INLINE int32x4_t four(int32x4_t s, const uint8x16_t *q, const uint8_t *x)
{
    const int8x16_t a = vreinterpretq_s8_u8(vld1q_u8(x));
    s = vusdotq_laneq_s32(s, q[0], a, 0);
    s = vusdotq_laneq_s32(s, q[1], a, 1);
    s = vusdotq_laneq_s32(s, q[2], a, 2);
    return vusdotq_laneq_s32(s, q[3], a, 3);
}

INLINE int32x4_t row_alone(const shape f, const uint8x16_t *q, const uint8_t *tile, int h)
{
    int32x4_t hi = four(vdupq_n_s32(0), q + 4 * h, tile + PANEL_X_HI + 16 * h);
    int32x4_t lo = vdupq_n_s32(has_min(f) ? 0 : int_at(tile + zero_at(f, h)));
    lo = four(lo, q + 4 * h, tile + PANEL_X_LO + 16 * h);
    if (f.sub == 32) {
        hi = four(hi, q + 4, tile + PANEL_X_HI + 16);
        lo = four(lo, q + 4, tile + PANEL_X_LO + 16);
    }
    return joined(hi, lo);
}

/* An odd number of rows ends with a pair whose first row is left alone. */
INLINE void add(const shape f, const int R, const uint8x16_t *q, const uint8_t *tile, int h, float32x4_t scale,
                float32x4_t min, float32x4_t *acc)
{
    const int t0 = 4 * h, t1 = f.sub == 16 ? t0 + 4 : PANEL_STEPS;
    if (R == 1) {
        acc[0] = to_floats(f, R, tile, h, 0, row_alone(f, q, tile, h), scale, min, acc[0]);
        return;
    }
    UNROLL
    for (int i = 0; i < R; i += 2) {
        const int r = i + 2 > R ? R - 2 : i;
        int32x4_t hi[2] = {vdupq_n_s32(0), vdupq_n_s32(0)}, lo[2] = {hi[0], hi[0]};
        if (!has_min(f)) {
            const int32x2_t n = vreinterpret_s32_u8(vld1_u8(tile + zero_at(f, h) * R + 4 * r));
            lo[0] = lo[1] = vcombine_s32(n, n);
        }
        UNROLL
        for (int t = t0; t < t1; t += 2) {
            const uint8_t *x = tile + (t / 2 * R + r) * GROUP;
            const int8x16_t up = vreinterpretq_s8_u8(vld1q_u8(x + PANEL_X_HI * R));
            const int8x16_t down = vreinterpretq_s8_u8(vld1q_u8(x + PANEL_X_LO * R));
            hi[0] = vusmmlaq_s32(hi[0], q[t], up);
            hi[1] = vusmmlaq_s32(hi[1], q[t + 1], up);
            lo[0] = vusmmlaq_s32(lo[0], q[t], down);
            lo[1] = vusmmlaq_s32(lo[1], q[t + 1], down);
        }
        const int32x4_t a = joined(hi[0], lo[0]), b = joined(hi[1], lo[1]);
        if (r == i)
            acc[r] = to_floats(f, R, tile, h, r, vuzp1q_s32(a, b), scale, min, acc[r]);
        acc[r + 1] = to_floats(f, R, tile, h, r + 1, vuzp2q_s32(a, b), scale, min, acc[r + 1]);
    }
}

PANEL_SHAPES(PANEL_DOT)
#define ROW(id, name, ...) [INFER_FMT_##id] = dot_##name,
static const panel_dot_fn dots[INFER_FMT_COUNT] = {PANEL_SHAPES(ROW)};

static void quantize(const float *x, int64_t k, int32_t zero, uint8_t *tile, int64_t rows_, int64_t r)
{
    quantize_rows(x, k, zero, tile, rows_, r, GROUP);
}

const kern_panels kern_i8mm_panels = {PANEL_TILE, 96, 0, quantize, dots, NULL};
