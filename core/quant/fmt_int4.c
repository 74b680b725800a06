/* 4- and 5-bit integers: U4 and the 32-element blocks of the GGUF specification with one scale (q*_0) or a scale and a
 * minimum (q*_1). SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "quant/fmt.h"

void infer_unpack_u4(const void *src, float *dst, uint64_t n)
{
    const uint8_t *p = src;
    for (uint64_t i = 0; i < n; i++)
        dst[i] = (float)(p[i / 2] >> (i % 2 * 4) & 15);
}

/* Nearest even, by what a sum with 2^23 is rounded to. */
static inline uint32_t u4_code(float v)
{
    v = v > 0 ? v : 0; /* NaN too */
    v = v < 15 ? v : 15;
    return infer_f32_bits(v + 8388608.0f) & 15u;
}

void infer_pack_u4(const float *src, void *dst, uint64_t n)
{
    uint8_t *p = dst;
    for (uint64_t i = 0; i + 1 < n; i += 2)
        p[i / 2] = (uint8_t)(u4_code(src[i]) | u4_code(src[i + 1]) << 4);
}

/* A block is: scale f16, minimum f16 (has_min), high bits u32 (bits 5), then nibbles, element i in the low half and
 * i + 16 in the high half of byte i. */
static void unpack32(const uint8_t *p, float *dst, uint64_t n, int bits, int has_min)
{
    int offset = has_min ? 0 : 1 << (bits - 1);
    for (uint64_t b = 0; b < n; b += 32, dst += 32) {
        float d = infer_f16_to_f32(infer_load_u16(p)), m = 0;
        uint32_t high = 0;
        p += 2;
        if (has_min) {
            m = infer_f16_to_f32(infer_load_u16(p));
            p += 2;
        }
        if (bits == 5) {
            high = infer_load_u16(p) | (uint32_t)infer_load_u16(p + 2) << 16;
            p += 4;
        }
        for (int i = 0; i < 16; i++) {
            int lo = (p[i] & 15) | (int)(high >> i & 1) << 4;
            int hi = p[i] >> 4 | (int)(high >> (i + 16) & 1) << 4;
            float x = (float)(lo - offset) * d, y = (float)(hi - offset) * d;
            dst[i] = has_min ? x + m : x;
            dst[i + 16] = has_min ? y + m : y;
        }
        p += 16;
    }
}

/* With a minimum the codes span [min, max]. Without, the element of largest magnitude (the first of equals) gets the
 * most negative code, which has one step more than the positive side. */
static void pack32(const float *src, uint8_t *p, uint64_t n, int bits, int has_min)
{
    int top = (1 << bits) - 1, offset = has_min ? 0 : 1 << (bits - 1);
    for (uint64_t b = 0; b < n; b += 32, src += 32) {
        float lo = src[0], hi = src[0], peak = src[0];
        for (int i = 1; i < 32; i++) {
            lo = src[i] < lo ? src[i] : lo;
            hi = src[i] > hi ? src[i] : hi;
            peak = fabsf(src[i]) > fabsf(peak) ? src[i] : peak;
        }
        float d = has_min ? (hi - lo) / (float)top : peak / (float)-offset;
        float inverse = d != 0 ? 1.0f / d : 0, base = has_min ? lo : 0;
        uint32_t high = 0;
        uint8_t q[32];
        for (int i = 0; i < 32; i++) {
            q[i] = (uint8_t)infer_floor_clamp((src[i] - base) * inverse + ((float)offset + 0.5f), 0, top);
            high |= (uint32_t)(q[i] >> 4) << i;
        }
        infer_store_u16(p, infer_f32_to_f16(d));
        p += 2;
        if (has_min) {
            infer_store_u16(p, infer_f32_to_f16(lo));
            p += 2;
        }
        if (bits == 5) {
            infer_store_u16(p, (uint16_t)high);
            infer_store_u16(p + 2, (uint16_t)(high >> 16));
            p += 4;
        }
        for (int i = 0; i < 16; i++)
            *p++ = (uint8_t)((q[i] & 15) | q[i + 16] << 4);
    }
}

#define BLOCK32(name, bits, has_min)                                                                                   \
    void infer_unpack_##name(const void *src, float *dst, uint64_t n)                                                  \
    {                                                                                                                  \
        unpack32(src, dst, n, bits, has_min);                                                                          \
    }                                                                                                                  \
    void infer_pack_##name(const float *src, void *dst, uint64_t n)                                                    \
    {                                                                                                                  \
        pack32(src, dst, n, bits, has_min);                                                                            \
    }

BLOCK32(q4_0, 4, 0)
BLOCK32(q4_1, 4, 1)
BLOCK32(q5_0, 5, 0)
BLOCK32(q5_1, 5, 1)
