/*
 * NEON: products with weights in panels (panel.h), four of a panel's rows at a time: all but the integer sums, which
 * the files that include this supply. All inline, for a shape that is constant where it is used.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_CPU_KERN_NEON_PANEL_H
#define INFER_CPU_KERN_NEON_PANEL_H

#include "kern_neon.h"

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

/* The block's eight vectors of codes of four rows; p is the first plane's part for them. */
INLINE void codes(const shape f, const uint8_t *p, uint8x16_t q[PANEL_STEPS])
{
    const int per = 8 / f.low;
    const uint8x16_t low = vdupq_n_u8((uint8_t)((1 << f.low) - 1));
    UNROLL
    for (int j = 0; j < f.low; j++) {
        uint8x16_t v = vld1q_u8(p + 64 * j);
        UNROLL
        for (int s = 0; s < per; s++)
            q[j + f.low * s] = s + 1 < per ? vandq_u8(right(v, f.low * s), low) : right(v, f.low * s);
    }
    p += 64 * f.low;
    if (f.high) {
        const int per_high = 8 / f.high;
        const uint8x16_t mask = vdupq_n_u8((uint8_t)((1 << f.high) - 1));
        UNROLL
        for (int j = 0; j < f.high; j++) {
            uint8x16_t v = vld1q_u8(p + 64 * j);
            UNROLL
            for (int s = 0; s < per_high; s++)
                q[j + f.high * s] = vorrq_u8(q[j + f.high * s], left(vandq_u8(right(v, f.high * s), mask), f.low));
        }
    }
    if (f.lut) {
        const uint8x16_t lut = vreinterpretq_u8_s8(vld1q_s8(f.lut));
        UNROLL
        for (int t = 0; t < PANEL_STEPS; t++)
            q[t] = vqtbl1q_u8(lut, q[t]);
    }
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

/* Row r's exact sums of half h of a block, or of all of it, into its sums of four weight rows, as panel.h has it. */
INLINE float32x4_t to_floats(const shape f, const int R, const uint8_t *tile, int h, int r, int32x4_t s,
                             float32x4_t scale, float32x4_t min, float32x4_t acc)
{
    acc = vfmaq_f32(acc, vcvtq_f32_s32(s), vmulq_n_f32(scale, float_at(tile + PANEL_X_D * R + 4 * r)));
    return has_min(f) ? vfmaq_f32(acc, min, vdupq_n_f32(float_at(tile + sum_at(f, h) * R + 4 * r))) : acc;
}

INLINE int32x4_t joined(int32x4_t hi, int32x4_t lo)
{
    return vaddq_s32(vshlq_n_s32(hi, 8), lo);
}

/* By the files that include this. The codes of a block in the order that `add` wants for R rows; and the products of
 * half h, or of all where scales are of 32 elements, with R rows of a tile into their sums of four weight rows. */
INLINE void arrange(const shape f, const int R, uint8x16_t q[PANEL_STEPS]);
INLINE void add(const shape f, const int R, const uint8x16_t *q, const uint8_t *tile, int h, float32x4_t scale,
                float32x4_t min, float32x4_t *acc);

/* R rows of a tile against n blocks as they lie, a quarter of the panel after the other: its sums stay in registers. */
INLINE void rows(const shape f, const int R, const uint8_t *w, const uint8_t *x, int64_t n, float *c, int64_t ldc)
{
    const int64_t per = f.unit / PANEL_BLOCK;
    const int parts = PANEL_BLOCK / f.sub;
    for (int p = 0; p < QUARTERS; p++) {
        float32x4_t acc[PANEL_TILE];
        const uint8_t *at = w, *tile = x;
        UNROLL
        for (int r = 0; r < R; r++)
            acc[r] = vld1q_f32(c + r * ldc + QUARTER * p);
        for (int64_t b = 0; b < n;) {
            const uint8_t *head = at;
            at += f.head_bytes;
            for (int64_t i = 0; i < per; i++, b++, at += f.block_bytes, tile += R * PANEL_X_BYTES) {
                uint8x16_t q[PANEL_STEPS];
                codes(f, at + f.scale_bytes + 16 * p, q);
                arrange(f, R, q);
                UNROLL
                for (int h = 0; h < parts; h++) {
                    float32x4_t scale, min = vdupq_n_f32(0);
                    scales(f, head, at, h, QUARTER * p, &scale, &min);
                    add(f, R, q, tile, h, scale, min, acc);
                }
            }
        }
        UNROLL
        for (int r = 0; r < R; r++)
            vst1q_f32(c + r * ldc + QUARTER * p, acc[r]);
    }
}

#endif
