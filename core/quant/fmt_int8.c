/* q8_0: 32 signed bytes with one f16 scale. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "quant/fmt.h"

void infer_unpack_q8_0(const void *src, float *dst, uint64_t n)
{
    const uint8_t *p = src;
    for (uint64_t b = 0; b < n; b += 32, p += 34) {
        float d = infer_f16_to_f32(infer_load_u16(p));
        for (int i = 0; i < 32; i++)
            dst[b + (uint64_t)i] = (float)(int8_t)p[2 + i] * d;
    }
}

void infer_pack_q8_0(const float *src, void *dst, uint64_t n)
{
    uint8_t *p = dst;
    for (uint64_t b = 0; b < n; b += 32, p += 34) {
        const float *x = src + b;
        float peak = 0;
        for (int i = 0; i < 32; i++) {
            float a = fabsf(x[i]);
            peak = a > peak ? a : peak;
        }
        float d = peak / 127.0f, inverse = d != 0 ? 1.0f / d : 0;
        infer_store_u16(p, infer_f32_to_f16(d));
        for (int i = 0; i < 32; i++) { /* halves away from zero; a NaN becomes 0 */
            float v = fabsf(x[i]) * inverse;
            v = v > 0 ? v : 0;
            v = v < 127 ? v : 127;
            int q = (int)v;
            q += v - (float)q >= 0.5f;
            p[2 + i] = (uint8_t)(signbit(x[i]) ? -q : q);
        }
    }
}
