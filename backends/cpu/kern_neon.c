/*
 * NEON with dot products (ARMv8.2): products with weights in panels (panel.h), four of a panel's rows at a time; what
 * is not here is portable C. Run in emulation only so far: right, its speed is not known. SPDX-License-Identifier:
 * Apache-2.0
 */
#include "config.h"

#include <stddef.h>

#include "kern.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)

#include <arm_neon.h>
#include <string.h>

#include "kern_panel.h"

enum { QUARTER = PANEL_ROWS / 4, QUARTERS = 4 };

/* ---- Codes and scales -------------------------------------------------------------------------------------------- */

INLINE uint8x16_t right(uint8x16_t v, int n)
{
    return n ? vshlq_u8(v, vdupq_n_s8((int8_t)-n)) : v;
}

INLINE uint8x16_t left(uint8x16_t v, int n)
{
    return n ? vshlq_u8(v, vdupq_n_s8((int8_t)n)) : v;
}

/* The block's eight vectors of codes of four rows, as signed bytes; p is the first plane's part for them. Codes of 8
 * bits come less 128, the others as they are. */
INLINE void codes(const shape f, const uint8_t *p, int8x16_t q[PANEL_STEPS])
{
    const int per = 8 / f.low;
    const uint8x16_t low = vdupq_n_u8((uint8_t)((1 << f.low) - 1));
    uint8x16_t u[PANEL_STEPS];
    UNROLL
    for (int j = 0; j < f.low; j++) {
        uint8x16_t v = vld1q_u8(p + 64 * j);
        UNROLL
        for (int s = 0; s < per; s++)
            u[j + f.low * s] = f.low == 8 ? veorq_u8(v, vdupq_n_u8(128)) : vandq_u8(right(v, f.low * s), low);
    }
    p += 64 * f.low;
    if (f.high) {
        const uint8x16_t mask = vdupq_n_u8((uint8_t)((1 << f.high) - 1));
        UNROLL
        for (int j = 0; j < f.high; j++) {
            uint8x16_t v = vld1q_u8(p + 64 * j);
            UNROLL
            for (int s = 0; s < 8 / f.high; s++)
                u[j + f.high * s] = vorrq_u8(u[j + f.high * s], left(vandq_u8(right(v, f.high * s), mask), f.low));
        }
    }
    UNROLL
    for (int t = 0; t < PANEL_STEPS; t++)
        q[t] = f.lut ? vqtbl1q_s8(vld1q_s8(f.lut), u[t]) : vreinterpretq_s8_u8(u[t]);
}

INLINE float32x4_t halves(const uint8_t *p)
{
    uint16x4_t v;
    memcpy(&v, p, sizeof v);
    return vcvt_f32_f16(vreinterpret_f16_u16(v));
}

INLINE uint32x4_t bytes(const uint8_t *p)
{
    uint32_t w;
    memcpy(&w, p, sizeof w);
    return vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(w)))));
}

INLINE int32x4_t signed_bytes(const uint8_t *p)
{
    uint32_t w;
    memcpy(&w, p, sizeof w);
    return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(w)))));
}

/* As panel_scales, for the four rows from `row`: the same operations. */
INLINE void scales(const shape f, const uint8_t *head, const uint8_t *block, int h, int row, float32x4_t *scale,
                   float32x4_t *min)
{
    const uint8_t *half = block + PANEL_ROWS * h + row, *d = head + 2 * row, *dmin = d + 2 * PANEL_ROWS;
    switch (f.scale) {
    case PANEL_F16:
        *scale = halves(block + 2 * row);
        break;
    case PANEL_F16_MIN:
        *scale = halves(block + 2 * row);
        *min = halves(block + 2 * (PANEL_ROWS + row));
        break;
    case PANEL_E8M0: {
        uint32x4_t e = bytes(half), one = vdupq_n_u32(1);
        uint32x4_t v = vshlq_n_u32(vsubq_u32(e, one), 23); /* subnormal: 2^(e - 128) is bit 21 + e */
        v = vbslq_u32(vcleq_u32(e, one), vshlq_u32(vdupq_n_u32(1 << 21), vreinterpretq_s32_u32(e)), v);
        v = vbslq_u32(vceqq_u32(e, vdupq_n_u32(255)), vdupq_n_u32(0x7FC00000), v);
        *scale = vreinterpretq_f32_u32(v);
        break;
    }
    case PANEL_K_MIN:
        *scale = vmulq_f32(halves(d), vcvtq_f32_u32(bytes(block + row)));
        *min = vnegq_f32(vmulq_f32(halves(dmin), vcvtq_f32_u32(bytes(block + PANEL_ROWS + row))));
        break;
    case PANEL_K4_MIN: {
        uint32x4_t v = bytes(half);
        *scale = vmulq_f32(halves(d), vcvtq_f32_u32(vandq_u32(v, vdupq_n_u32(15))));
        *min = vnegq_f32(vmulq_f32(halves(dmin), vcvtq_f32_u32(vshrq_n_u32(v, 4))));
        break;
    }
    case PANEL_K_I8:
        *scale = vmulq_f32(halves(d), vcvtq_f32_s32(signed_bytes(half)));
        break;
    }
}

/* ---- The sum ----------------------------------------------------------------------------------------------------- */

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

/* R rows' halves h of one block, or all of it, into their sums of four weight rows. */
INLINE void add(const shape f, const int R, const int8x16_t *q, const uint8_t *tile, int h, float32x4_t scale,
                float32x4_t min, float32x4_t *acc)
{
    const int t0 = f.sub == 16 ? 4 * h : 0, t1 = f.sub == 16 ? 4 * h + 4 : 8;
    const int n = zero_at(f, h), ds = sum_at(f, h);
    UNROLL
    for (int r = 0; r < R; r++) {
        int32x4_t s = vdupq_n_s32(0);
        UNROLL
        for (int t = t0; t < t1; t++)
            s = vdotq_s32(s, q[t], vreinterpretq_s8_s32(vdupq_n_s32(int_at(tile + PANEL_X_HI * R + (t * R + r) * 4))));
        s = vshlq_n_s32(s, 8);
        UNROLL
        for (int t = t0; t < t1; t++)
            s = vdotq_s32(s, q[t], vreinterpretq_s8_s32(vdupq_n_s32(int_at(tile + PANEL_X_LO * R + (t * R + r) * 4))));
        if (!has_min(f) && f.low != 8)
            s = vaddq_s32(s, vdupq_n_s32(int_at(tile + n * R + 4 * r)));
        acc[r] = vfmaq_f32(acc[r], vcvtq_f32_s32(s), vmulq_n_f32(scale, float_at(tile + PANEL_X_D * R + 4 * r)));
        if (has_min(f))
            acc[r] = vfmaq_f32(acc[r], min, vdupq_n_f32(float_at(tile + ds * R + 4 * r)));
    }
}

/* R rows of a tile against n blocks as they lie, a quarter of the panel after the other. */
INLINE void rows(const shape f, const int R, const uint8_t *w, const uint8_t *x, int64_t n, float *c, int64_t ldc)
{
    const int64_t per = f.unit / PANEL_BLOCK;
    float32x4_t acc[QUARTERS][PANEL_TILE];
    for (int p = 0; p < QUARTERS; p++)
        for (int r = 0; r < R; r++)
            acc[p][r] = vld1q_f32(c + r * ldc + QUARTER * p);
    for (int64_t b = 0; b < n;) {
        const uint8_t *head = w;
        w += f.head_bytes;
        for (int64_t i = 0; i < per; i++, b++, w += f.block_bytes, x += R * PANEL_X_BYTES)
            UNROLL
        for (int p = 0; p < QUARTERS; p++) {
            int8x16_t q[PANEL_STEPS];
            float32x4_t scale, min = vdupq_n_f32(0);
            codes(f, w + f.scale_bytes + 16 * p, q);
            scales(f, head, w, 0, QUARTER * p, &scale, &min);
            add(f, R, q, x, 0, scale, min, acc[p]);
            if (f.sub == 16) {
                scales(f, head, w, 1, QUARTER * p, &scale, &min);
                add(f, R, q, x, 1, scale, min, acc[p]);
            }
        }
    }
    for (int p = 0; p < QUARTERS; p++)
        for (int r = 0; r < R; r++)
            vst1q_f32(c + r * ldc + QUARTER * p, acc[p][r]);
}

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

PANEL_SHAPES(PANEL_DOT)
#define ROW(id, name, ...) [INFER_FMT_##id] = dot_##name,
static const panel_dot_fn dots[INFER_FMT_COUNT] = {PANEL_SHAPES(ROW)};

const kern_panels kern_neon_panels = {PANEL_TILE, panel_quantize, dots};

#else

const kern_panels kern_neon_panels = {0, NULL, NULL};

#endif
