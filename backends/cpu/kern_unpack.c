/*
 * Portable conversion of every storage format to float, and of the plain ones back. The formats' bytes are those of
 * infer/quant.h (GGUF specification, OCP FP8 and MX); values equal the reference's bit for bit.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <string.h>

#include "kern_unpack.h"

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static float of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* Subnormals are made by adding their mantissa below 1 bit of a normal number and taking that away again. */
float kern_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, body = h & 0x7FFFu;
    if (body >= 0x7C00u)
        return of_bits(sign | 0x7F800000u | (body & 0x3FFu) << 13);
    if (body >= 0x400u)
        return of_bits(sign | ((body << 13) + (112u << 23)));
    return of_bits(sign | bits_of(of_bits((113u << 23) | body << 13) - of_bits(113u << 23)));
}

/* Round to nearest even; overflow to infinity. */
uint16_t kern_f32_to_f16(float f)
{
    uint32_t u = bits_of(f), sign = u >> 16 & 0x8000u;
    u &= 0x7FFFFFFFu;
    if (u > 0x7F800000u)
        return (uint16_t)(sign | 0x7E00u | (u >> 13 & 0x3FFu));
    if (u >= 0x47800000u)
        return (uint16_t)(sign | 0x7C00u);
    if (u < 0x38800000u) /* subnormal: the addition rounds at the right bit */
        return (uint16_t)(sign | (bits_of(of_bits(u) + 0.5f) - bits_of(0.5f)));
    u += 0xFFFu + (u >> 13 & 1u);
    return (uint16_t)(sign | (u - (112u << 23)) >> 13);
}

uint16_t kern_f32_to_bf16(float f)
{
    uint32_t u = bits_of(f);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7FFFu + (u >> 16 & 1u)) >> 16);
}

/* ---- Plain formats ------------------------------------------------------------------------------------------- */

void kern_unpack_f32(const void *src, float *dst, int64_t n)
{
    memcpy(dst, src, (size_t)n * 4);
}

void kern_pack_f32(const float *src, void *dst, int64_t n)
{
    memcpy(dst, src, (size_t)n * 4);
}

void kern_unpack_f16(const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    for (int64_t i = 0; i < n; i++)
        dst[i] = kern_f16_to_f32(kern_load_u16(p + 2 * i));
}

void kern_pack_f16(const float *src, void *dst, int64_t n)
{
    uint8_t *p = dst;
    for (int64_t i = 0; i < n; i++)
        kern_store_u16(p + 2 * i, kern_f32_to_f16(src[i]));
}

void kern_unpack_bf16(const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    for (int64_t i = 0; i < n; i++)
        dst[i] = of_bits((uint32_t)kern_load_u16(p + 2 * i) << 16);
}

void kern_pack_bf16(const float *src, void *dst, int64_t n)
{
    uint8_t *p = dst;
    for (int64_t i = 0; i < n; i++)
        kern_store_u16(p + 2 * i, kern_f32_to_bf16(src[i]));
}

void kern_unpack_e4m3(const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    for (int64_t i = 0; i < n; i++) {
        uint32_t sign = (uint32_t)(p[i] & 0x80u) << 24, body = p[i] & 0x7Fu;
        float f = body >= 8 ? of_bits((body << 20) + (120u << 23)) : (float)body * (1.0f / 512.0f);
        dst[i] = of_bits(sign | (body == 0x7Fu ? 0x7FC00000u : bits_of(f)));
    }
}

void kern_unpack_e5m2(const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    for (int64_t i = 0; i < n; i++)
        dst[i] = kern_f16_to_f32((uint16_t)(p[i] << 8));
}

#define UNPACK_NUMBER(name, type)                                                                                      \
    void kern_unpack_##name(const void *src, float *dst, int64_t n)                                                    \
    {                                                                                                                  \
        const uint8_t *p = src;                                                                                        \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            type v;                                                                                                    \
            memcpy(&v, p + (size_t)i * sizeof v, sizeof v);                                                            \
            dst[i] = (float)v;                                                                                         \
        }                                                                                                              \
    }
UNPACK_NUMBER(f64, double)
UNPACK_NUMBER(i8, int8_t)
UNPACK_NUMBER(u8, uint8_t)
UNPACK_NUMBER(i16, int16_t)
UNPACK_NUMBER(u16, uint16_t)
UNPACK_NUMBER(i32, int32_t)
UNPACK_NUMBER(u32, uint32_t)

void kern_unpack_u4(const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    for (int64_t i = 0; i < n; i++)
        dst[i] = (float)(p[i / 2] >> (i % 2 * 4) & 15);
}

static float e8m0(uint8_t e)
{
    return e == 255 ? of_bits(0x7FC00000u) : e == 0 ? of_bits(0x00400000u) : of_bits((uint32_t)e << 23);
}

void kern_unpack_e8m0(const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    for (int64_t i = 0; i < n; i++)
        dst[i] = e8m0(p[i]);
}

/* ---- Blocks of 32 -------------------------------------------------------------------------------------------- */

/* Element i in the low half and i + 16 in the high half of byte i; fifth bits, if any, at bit i of `high`. */
static inline void nibbles32(const uint8_t *q, uint32_t high, float d, const float *m, int offset, float *dst)
{
    for (int i = 0; i < 16; i++) {
        int lo = (q[i] & 15) | (int)(high >> i & 1) << 4;
        int hi = q[i] >> 4 | (int)(high >> (i + 16) & 1) << 4;
        float x = (float)(lo - offset) * d, y = (float)(hi - offset) * d;
        dst[i] = m ? x + *m : x;
        dst[i + 16] = m ? y + *m : y;
    }
}

void kern_unpack_q4_0(const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    for (int64_t b = 0; b < n; b += 32, p += 18)
        nibbles32(p + 2, 0, kern_half(p), NULL, 8, dst + b);
}

void kern_unpack_q4_1(const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    for (int64_t b = 0; b < n; b += 32, p += 20) {
        float m = kern_half(p + 2);
        nibbles32(p + 4, 0, kern_half(p), &m, 0, dst + b);
    }
}

void kern_unpack_q5_0(const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    for (int64_t b = 0; b < n; b += 32, p += 22)
        nibbles32(p + 6, kern_load_u32(p + 2), kern_half(p), NULL, 16, dst + b);
}

void kern_unpack_q5_1(const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    for (int64_t b = 0; b < n; b += 32, p += 24) {
        float m = kern_half(p + 2);
        nibbles32(p + 8, kern_load_u32(p + 4), kern_half(p), &m, 0, dst + b);
    }
}

void kern_unpack_q8_0(const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    for (int64_t b = 0; b < n; b += 32, p += 34) {
        float d = kern_half(p);
        for (int i = 0; i < 32; i++)
            dst[b + i] = (float)(int8_t)p[2 + i] * d;
    }
}

/* One f16 scale, largest magnitude / 127; codes to the nearest, halves away from zero; a NaN becomes 0. */
void kern_pack_q8_0(const float *src, void *dst, int64_t n)
{
    uint8_t *p = dst;
    for (int64_t b = 0; b < n; b += 32, p += 34) {
        float peak = 0;
        for (int i = 0; i < 32; i++) {
            float v = of_bits(bits_of(src[b + i]) & 0x7FFFFFFFu);
            peak = v > peak ? v : peak;
        }
        float d = peak / 127.0f, inverse = d != 0 ? 1.0f / d : 0;
        kern_store_u16(p, kern_f32_to_f16(d));
        for (int i = 0; i < 32; i++) {
            uint32_t u = bits_of(src[b + i]);
            float v = of_bits(u & 0x7FFFFFFFu) * inverse;
            int q = v > 0 ? v < 127 ? (int)v : 127 : 0;
            q += q < 127 && v - (float)q >= 0.5f;
            p[2 + i] = (uint8_t)(u >> 31 ? -q : q);
        }
    }
}

void kern_unpack_mxfp4(const void *src, float *dst, int64_t n)
{
    static const float value[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    const uint8_t *p = src;
    for (int64_t b = 0; b < n; b += 32, p += 17) {
        float d = e8m0(p[0]);
        for (int i = 0; i < 16; i++) {
            dst[b + i] = value[p[1 + i] & 15] * d;
            dst[b + i + 16] = value[p[1 + i] >> 4] * d;
        }
    }
}

/* ---- Blocks of 256 ------------------------------------------------------------------------------------------- */

void kern_unpack_q2_k(const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    for (int64_t b = 0; b < n; b += 256, p += 84)
        for (int g = 0; g < 16; g++) { /* 16 elements */
            float d = kern_half(p + 80) * (float)(p[g] & 15), m = kern_half(p + 82) * (float)(p[g] >> 4);
            const uint8_t *q = p + 16 + g / 8 * 32 + g % 2 * 16;
            for (int i = 0; i < 16; i++)
                dst[b + 16 * g + i] = d * (float)(q[i] >> (g % 8 / 2 * 2) & 3) - m;
        }
}

void kern_unpack_q3_k(const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    for (int64_t b = 0; b < n; b += 256, p += 110)
        for (int g = 0; g < 16; g++) {
            const uint8_t *s = p + 96, *q = p + 32 + g / 8 * 32 + g % 2 * 16, *h = p + g % 2 * 16;
            int scale = (s[g % 8] >> (g / 8 * 4) & 15) | (s[8 + g % 4] >> (g / 4 * 2) & 3) << 4;
            float d = kern_half(p + 108) * (float)(scale - 32);
            for (int i = 0; i < 16; i++)
                dst[b + 16 * g + i] = d * (float)((q[i] >> (g % 8 / 2 * 2) & 3) - (h[i] >> (g / 2) & 1 ? 0 : 4));
        }
}

void kern_unpack_q4_k(const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    for (int64_t b = 0; b < n; b += 256, p += 144) {
        float d[8], m[8];
        kern_scales12(p, d, m);
        for (int g = 0; g < 8; g++) { /* 32 elements */
            const uint8_t *q = p + 16 + g / 2 * 32;
            for (int i = 0; i < 32; i++)
                dst[b + 32 * g + i] = d[g] * (float)(q[i] >> (g % 2 * 4) & 15) - m[g];
        }
    }
}

void kern_unpack_q5_k(const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    for (int64_t b = 0; b < n; b += 256, p += 176) {
        float d[8], m[8];
        kern_scales12(p, d, m);
        for (int g = 0; g < 8; g++) {
            const uint8_t *q = p + 48 + g / 2 * 32;
            for (int i = 0; i < 32; i++)
                dst[b + 32 * g + i] = d[g] * (float)((q[i] >> (g % 2 * 4) & 15) | (p[16 + i] >> g & 1) << 4) - m[g];
        }
    }
}

void kern_unpack_q6_k(const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    for (int64_t b = 0; b < n; b += 256, p += 210) {
        float d = kern_half(p + 208);
        for (int g = 0; g < 16; g++) { /* 16 elements */
            const uint8_t *low = p + g / 8 * 64 + g % 4 * 16, *high = p + 128 + g / 8 * 32 + g % 2 * 16;
            float s = d * (float)(int8_t)p[192 + g];
            for (int i = 0; i < 16; i++) {
                int q = (low[i] >> (g % 8 / 4 * 4) & 15) | (high[i] >> (g % 8 / 2 * 2) & 3) << 4;
                dst[b + 16 * g + i] = s * (float)(q - 32);
            }
        }
    }
}

#define UNPACK_ROW(id, name, elems, bytes)                                                                             \
    [INFER_FMT_##id] = {.block_elems = elems, .block_bytes = bytes, .unpack = kern_unpack_##name},
#define PACK_ROW(id, name, elems, bytes)                                                                               \
    [INFER_FMT_##id] = {elems, bytes, kern_unpack_##name, kern_pack_##name, NULL, NULL},
const kern_format kern_generic_formats[INFER_FMT_COUNT] = {KERN_PACKED_FORMATS(PACK_ROW) KERN_SMALL_FORMATS(
    UNPACK_ROW) KERN_NUMBER_FORMATS(UNPACK_ROW) KERN_BLOCK32_FORMATS(UNPACK_ROW) KERN_BLOCK256_FORMATS(UNPACK_ROW)};
