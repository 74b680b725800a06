/* Private to core/quant: prototypes of the conversions that table.c lists, and arithmetic that several formats share.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_QUANT_FMT_H
#define INFER_QUANT_FMT_H

#include <math.h>
#include <string.h>

#include "quant/quant.h"

#define INFER_FMT_DECLARE(name)                                                                                        \
    void infer_unpack_##name(const void *src, float *dst, uint64_t n);                                                 \
    void infer_pack_##name(const float *src, void *dst, uint64_t n)

INFER_FMT_DECLARE(f32);
INFER_FMT_DECLARE(f16);
INFER_FMT_DECLARE(bf16);
INFER_FMT_DECLARE(f64);
INFER_FMT_DECLARE(i8);
INFER_FMT_DECLARE(u8);
INFER_FMT_DECLARE(i16);
INFER_FMT_DECLARE(u16);
INFER_FMT_DECLARE(i32);
INFER_FMT_DECLARE(u32);
INFER_FMT_DECLARE(e4m3);
INFER_FMT_DECLARE(e5m2);
INFER_FMT_DECLARE(u4);
INFER_FMT_DECLARE(e8m0);
INFER_FMT_DECLARE(q4_0);
INFER_FMT_DECLARE(q4_1);
INFER_FMT_DECLARE(q5_0);
INFER_FMT_DECLARE(q5_1);
INFER_FMT_DECLARE(q8_0);
INFER_FMT_DECLARE(q2_k);
INFER_FMT_DECLARE(q3_k);
INFER_FMT_DECLARE(q4_k);
INFER_FMT_DECLARE(q5_k);
INFER_FMT_DECLARE(q6_k);
INFER_FMT_DECLARE(mxfp4);

static inline uint32_t infer_f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float infer_f32_from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Values stored in blocks have no alignment. */
static inline uint16_t infer_load_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static inline void infer_store_u16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

/* A code of a small binary float without its sign, all exponents finite: `mbits` of mantissa, exponent bias `bias`.
 * Exact in binary32 for every format here. */
static inline float infer_small_float_decode(uint32_t code, int mbits, int bias)
{
    uint32_t exponent = code >> mbits, mantissa = code & ((1u << mbits) - 1);
    if (exponent)
        return infer_f32_from_bits((exponent + 127u - (uint32_t)bias) << 23 | mantissa << (23 - mbits));
    return (float)mantissa * infer_f32_from_bits((uint32_t)(128 - bias - mbits) << 23);
}

/* The nearest such code (ties to even) of |f|, f not NaN; it may exceed the format's largest, which the caller maps. */
static inline uint32_t infer_small_float_encode(float f, int mbits, int bias)
{
    uint32_t u = infer_f32_bits(f) & 0x7FFFFFFFu;
    int exponent = (int)(u >> 23) - 127;
    uint32_t significand = (u & 0x7FFFFFu) | 0x800000u;
    if (u < 0x800000u) {
        exponent = -126;
        significand = u;
    }
    int lowest = 1 - bias;
    int shift = 23 - mbits + (exponent < lowest ? lowest - exponent : 0);
    if (shift > 25)
        return 0;
    uint32_t code = significand >> shift, rest = significand & ((1u << shift) - 1), half = 1u << (shift - 1);
    if (rest > half || (rest == half && (code & 1)))
        code++;
    return exponent > lowest ? code + ((uint32_t)(exponent - lowest) << mbits) : code;
}

/* The largest integer not above v, in [lo, hi]; NaN becomes lo. */
static inline int infer_floor_clamp(float v, int lo, int hi)
{
    if (!(v > (float)lo))
        return lo;
    if (v >= (float)hi)
        return hi;
    int r = (int)v;
    return r - ((float)r > v);
}

/* Nearest integer in [lo, hi]; halves go up, NaN becomes lo. */
static inline int infer_round_clamp(float v, int lo, int hi)
{
    int r = infer_floor_clamp(v, lo, hi);
    return r + (r < hi && v - (float)r >= 0.5f);
}

#endif
