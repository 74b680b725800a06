/* Plain element types: IEEE floats, bfloat16, integers as numbers. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "quant/fmt.h"

float infer_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, code = h & 0x7FFFu;
    if (code >= 0x7C00u)
        return infer_f32_from_bits(sign | 0x7F800000u | (code & 0x3FFu) << 13);
    return infer_f32_from_bits(sign | infer_f32_bits(infer_small_float_decode(code, 10, 15)));
}

uint16_t infer_f32_to_f16(float f)
{
    uint32_t u = infer_f32_bits(f), code;
    if ((u & 0x7FFFFFFFu) > 0x7F800000u)
        code = 0x7E00u | (u >> 13 & 0x3FFu);
    else
        code = infer_small_float_encode(f, 10, 15);
    if ((u & 0x7FFFFFFFu) <= 0x7F800000u && code > 0x7C00u)
        code = 0x7C00u;
    return (uint16_t)((u >> 16 & 0x8000u) | code);
}

float infer_bf16_to_f32(uint16_t h)
{
    return infer_f32_from_bits((uint32_t)h << 16);
}

uint16_t infer_f32_to_bf16(float f)
{
    uint32_t u = infer_f32_bits(f);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7FFFu + (u >> 16 & 1u)) >> 16);
}

void infer_unpack_f32(const void *src, float *dst, uint64_t n)
{
    if (n)
        memcpy(dst, src, (size_t)n * sizeof *dst);
}

void infer_pack_f32(const float *src, void *dst, uint64_t n)
{
    if (n)
        memcpy(dst, src, (size_t)n * sizeof *src);
}

void infer_unpack_f16(const void *src, float *dst, uint64_t n)
{
    const uint8_t *p = src;
    for (uint64_t i = 0; i < n; i++)
        dst[i] = infer_f16_to_f32(infer_load_u16(p + 2 * i));
}

void infer_pack_f16(const float *src, void *dst, uint64_t n)
{
    uint8_t *p = dst;
    for (uint64_t i = 0; i < n; i++)
        infer_store_u16(p + 2 * i, infer_f32_to_f16(src[i]));
}

void infer_unpack_bf16(const void *src, float *dst, uint64_t n)
{
    const uint8_t *p = src;
    for (uint64_t i = 0; i < n; i++)
        dst[i] = infer_bf16_to_f32(infer_load_u16(p + 2 * i));
}

void infer_pack_bf16(const float *src, void *dst, uint64_t n)
{
    uint8_t *p = dst;
    for (uint64_t i = 0; i < n; i++)
        infer_store_u16(p + 2 * i, infer_f32_to_bf16(src[i]));
}

void infer_unpack_f64(const void *src, float *dst, uint64_t n)
{
    const uint8_t *p = src;
    for (uint64_t i = 0; i < n; i++) {
        double v;
        memcpy(&v, p + 8 * i, 8);
        dst[i] = (float)v;
    }
}

void infer_pack_f64(const float *src, void *dst, uint64_t n)
{
    uint8_t *p = dst;
    for (uint64_t i = 0; i < n; i++) {
        double v = src[i];
        memcpy(p + 8 * i, &v, 8);
    }
}

/* Integers: nearest (ties to even), saturating; NaN becomes 0. In double, which holds every 32-bit value. */
#define PLAIN_INT(name, type, lo, hi)                                                                                  \
    void infer_unpack_##name(const void *src, float *dst, uint64_t n)                                                  \
    {                                                                                                                  \
        const uint8_t *p = src;                                                                                        \
        for (uint64_t i = 0; i < n; i++) {                                                                             \
            type v;                                                                                                    \
            memcpy(&v, p + sizeof v * i, sizeof v);                                                                    \
            dst[i] = (float)v;                                                                                         \
        }                                                                                                              \
    }                                                                                                                  \
    void infer_pack_##name(const float *src, void *dst, uint64_t n)                                                    \
    {                                                                                                                  \
        uint8_t *p = dst;                                                                                              \
        for (uint64_t i = 0; i < n; i++) {                                                                             \
            double r = isnan(src[i]) ? 0 : rint((double)src[i]);                                                       \
            type v = r <= (double)(lo) ? (type)(lo) : r >= (double)(hi) ? (type)(hi) : (type)r;                        \
            memcpy(p + sizeof v * i, &v, sizeof v);                                                                    \
        }                                                                                                              \
    }

PLAIN_INT(i8, int8_t, INT8_MIN, INT8_MAX)
PLAIN_INT(u8, uint8_t, 0, UINT8_MAX)
PLAIN_INT(i16, int16_t, INT16_MIN, INT16_MAX)
PLAIN_INT(u16, uint16_t, 0, UINT16_MAX)
PLAIN_INT(i32, int32_t, INT32_MIN, INT32_MAX)
PLAIN_INT(u32, uint32_t, 0, UINT32_MAX)
