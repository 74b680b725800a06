/* 8-bit floats of the OCP specification "OFP8" 1.0. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "quant/fmt.h"

float infer_e4m3_to_f32(uint8_t v)
{
    uint32_t sign = (uint32_t)(v & 0x80u) << 24, code = v & 0x7Fu;
    if (code == 0x7Fu)
        return infer_f32_from_bits(sign | 0x7FC00000u);
    return infer_f32_from_bits(sign | infer_f32_bits(infer_small_float_decode(code, 3, 7)));
}

uint8_t infer_f32_to_e4m3(float f)
{
    uint32_t sign = infer_f32_bits(f) >> 24 & 0x80u, code = 0x7Fu;
    if (!isnan(f)) {
        code = infer_small_float_encode(f, 3, 7);
        if (code > 0x7Eu)
            code = 0x7Eu;
    }
    return (uint8_t)(sign | code);
}

void infer_unpack_e4m3(const void *src, float *dst, uint64_t n)
{
    const uint8_t *p = src;
    for (uint64_t i = 0; i < n; i++)
        dst[i] = infer_e4m3_to_f32(p[i]);
}

/* The same as infer_f32_to_e4m3 without branches. Normal codes: rounded to nearest even at bit 20 of the float. Below
 * 2^-6 codes are multiples of 2^-9: what a sum with 2^14 is rounded to. */
static inline uint32_t e4m3_code(float f)
{
    uint32_t u = infer_f32_bits(f), a = u & 0x7FFFFFFFu;
    uint32_t normal = ((a + 0x7FFFFu + (a >> 20 & 1u)) >> 20) - (120u << 3);
    uint32_t small = infer_f32_bits(infer_f32_from_bits(a) + 16384.0f) - 0x46800000u;
    uint32_t code = (int32_t)a < 0x3C800000 ? small : normal;
    code = (int32_t)a >= 0x43E00000 ? 0x7Eu : code; /* 448 and above */
    return (u >> 24 & 0x80u) | code | ((int32_t)a > 0x7F800000 ? 0x7Fu : 0);
}

void infer_pack_e4m3(const float *src, void *dst, uint64_t n)
{
    enum { LANES = 16 }; /* which a compiler takes at once */
    uint8_t *p = dst;
    uint64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++)
            p[i + (uint64_t)k] = (uint8_t)e4m3_code(src[i + (uint64_t)k]);
    for (; i < n; i++)
        p[i] = (uint8_t)e4m3_code(src[i]);
}

/* E5M2 is the upper byte of a binary16. */
void infer_unpack_e5m2(const void *src, float *dst, uint64_t n)
{
    const uint8_t *p = src;
    for (uint64_t i = 0; i < n; i++)
        dst[i] = infer_f16_to_f32((uint16_t)(p[i] << 8));
}

void infer_pack_e5m2(const float *src, void *dst, uint64_t n)
{
    uint8_t *p = dst;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t sign = infer_f32_bits(src[i]) >> 24 & 0x80u, code = 0x7Fu;
        if (!isnan(src[i])) {
            code = infer_small_float_encode(src[i], 2, 15);
            if (code > 0x7Cu)
                code = 0x7Cu;
        }
        p[i] = (uint8_t)(sign | code);
    }
}
