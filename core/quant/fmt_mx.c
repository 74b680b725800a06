/* OCP Microscaling (MX) 1.0: E8M0 scales and MXFP4 blocks. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "quant/fmt.h"

void infer_unpack_e8m0(const void *src, float *dst, uint64_t n)
{
    const uint8_t *p = src;
    for (uint64_t i = 0; i < n; i++)
        dst[i] = infer_f32_from_bits(p[i] == 255 ? 0x7FC00000u : p[i] ? (uint32_t)p[i] << 23 : 0x00400000u);
}

/* Nearest power of two, ties to the even exponent code; zero and negative numbers become the smallest. */
void infer_pack_e8m0(const float *src, void *dst, uint64_t n)
{
    uint8_t *p = dst;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t u = infer_f32_bits(src[i]), code = u >> 23;
        if (isnan(src[i])) {
            p[i] = 255;
            continue;
        }
        if (u >> 31) {
            p[i] = 0;
            continue;
        }
        uint32_t fraction = u & 0x7FFFFFu;
        if (!code) /* subnormal: between 0 and 2^-126, the candidates are 2^-127 and 2^-126 */
            code = fraction > 0x600000u;
        else if (fraction > 0x400000u || (fraction == 0x400000u && (code & 1)))
            code++;
        p[i] = (uint8_t)(code > 254 ? 254 : code);
    }
}

/* One byte of scale 2^(e-127), then 16 bytes, element i in the low half and i + 16 in the high half of byte i: E2M1
 * codes. The values are kept doubled, times half the scale; code 8 is 0, and e = 255 has no special meaning, both as
 * in the GGUF reference. */
static float half_scale(uint8_t e)
{
    return infer_f32_from_bits(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

void infer_unpack_mxfp4(const void *src, float *dst, uint64_t n)
{
    static const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const uint8_t *p = src;
    for (uint64_t b = 0; b < n; b += 32, p += 17, dst += 32) {
        float d = half_scale(p[0]);
        for (int i = 0; i < 16; i++) {
            dst[i] = (float)doubled[p[1 + i] & 15] * d;
            dst[i + 16] = (float)doubled[p[1 + i] >> 4] * d;
        }
    }
}

/* The scale puts the largest magnitude's binade on E2M1's highest (MX specification 6.3), what exceeds 6 saturates. */
void infer_pack_mxfp4(const float *src, void *dst, uint64_t n)
{
    uint8_t *p = dst;
    for (uint64_t b = 0; b < n; b += 32, p += 17) {
        const float *x = src + b;
        float peak = 0;
        for (int i = 0; i < 32; i++)
            peak = fmaxf(peak, fabsf(x[i]));
        int e = (int)(infer_f32_bits(peak) >> 23) - 2;
        e = e < 0 ? 0 : e;
        p[0] = (uint8_t)e;
        /* 2^(127 - e) in two exact factors: it may lie beyond binary32 */
        float inverse = infer_f32_from_bits((uint32_t)(127 + (127 - e) / 2) << 23);
        float inverse2 = infer_f32_from_bits((uint32_t)(127 + (127 - e) - (127 - e) / 2) << 23);
        uint8_t q[32];
        for (int i = 0; i < 32; i++) {
            float v = x[i] * inverse * inverse2;
            uint32_t code = isnan(v) ? 0 : infer_small_float_encode(v, 1, 1);
            code = code > 7 ? 7 : code;
            q[i] = (uint8_t)(code && signbit(v) ? code | 8 : code);
        }
        for (int i = 0; i < 16; i++)
            p[1 + i] = (uint8_t)(q[i] | q[i + 16] << 4);
    }
}
