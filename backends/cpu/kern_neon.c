/*
 * NEON with dot products (ARMv8.2): products with weights in panels (panel.h); what is not here is portable C. A row's
 * bytes lie together, so that one load serves four steps. Run in emulation only so far: right, its speed is not known.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stddef.h>

#include "kern.h"

#include "kern_neon_panel.h"

/* Signed bytes: codes of 8 bits less 128, which is their zero, the others as they are. */
INLINE void arrange(const shape f, const int R, uint8x16_t q[PANEL_STEPS])
{
    (void)R;
    if (f.low == 8)
        UNROLL
    for (int t = 0; t < PANEL_STEPS; t++)
        q[t] = veorq_u8(q[t], vdupq_n_u8(128));
}

/* s and four vectors' products with a row's next 16 bytes. */
INLINE int32x4_t four(int32x4_t s, const uint8x16_t *q, const uint8_t *x)
{
    const int8x16_t a = vreinterpretq_s8_u8(vld1q_u8(x));
    s = vdotq_laneq_s32(s, vreinterpretq_s8_u8(q[0]), a, 0);
    s = vdotq_laneq_s32(s, vreinterpretq_s8_u8(q[1]), a, 1);
    s = vdotq_laneq_s32(s, vreinterpretq_s8_u8(q[2]), a, 2);
    return vdotq_laneq_s32(s, vreinterpretq_s8_u8(q[3]), a, 3);
}

INLINE void add(const shape f, const int R, const uint8x16_t *q, const uint8_t *tile, int h, float32x4_t scale,
                float32x4_t min, float32x4_t *acc)
{
    UNROLL
    for (int r = 0; r < R; r++) {
        const uint8_t *own = tile + PANEL_BLOCK * r + 16 * h;
        int32x4_t hi = four(vdupq_n_s32(0), q + 4 * h, own + PANEL_X_HI * R);
        int32x4_t lo = vdupq_n_s32(has_min(f) || f.low == 8 ? 0 : int_at(tile + zero_at(f, h) * R + 4 * r));
        lo = four(lo, q + 4 * h, own + PANEL_X_LO * R);
        if (f.sub == 32) {
            hi = four(hi, q + 4, own + PANEL_X_HI * R + 16);
            lo = four(lo, q + 4, own + PANEL_X_LO * R + 16);
        }
        acc[r] = to_floats(f, R, tile, h, r, joined(hi, lo), scale, min, acc[r]);
    }
}

PANEL_SHAPES(PANEL_DOT)
#define ROW(id, name, ...) [INFER_FMT_##id] = dot_##name,
static const panel_dot_fn dots[INFER_FMT_COUNT] = {PANEL_SHAPES(ROW)};

static void quantize(const float *x, int64_t k, int32_t zero, uint8_t *tile, int64_t rows_, int64_t r)
{
    quantize_rows(x, k, zero, tile, rows_, r, PANEL_BLOCK);
}

const kern_panels kern_neon_panels = {PANEL_TILE, 96, 0, quantize, dots, NULL};
