/* Packed weights for tests of kernels that read them: random images, and an element's value by the text of packed.h.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef SIMT_PACKED_TEXT_H
#define SIMT_PACKED_TEXT_H

#include "simt.h"

#include <vector>

#include <infer/ops.h>
#include "../../backends/cuda/packed.h"

namespace
{
uint64_t state = 1;

uint32_t random_bits()
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

float random_float() /* -1 to 1 */
{
    return (float)(random_bits() % 20001) / 10000.0f - 1.0f;
}

/* A format's steps: elements, bytes. */
struct packed_format {
    infer_format f;
    int unit, step;
};

/* What of a step are codes; the rest are f16. */
int codes_of(infer_format f)
{
    return f == INFER_FMT_Q8_0   ? 1024
           : f == INFER_FMT_Q4_K ? 4 * 512 + 4 * 64
           : f == INFER_FMT_Q6_K ? 4 * 512 + 4 * 256 + 4 * 64
           : f == INFER_FMT_U4   ? 4 * 512
                                 : 512;
}

/* Random content of a weight's steps, each number of a plain size. */
void fill(const packed_format &f, std::vector<unsigned char> &w)
{
    for (size_t i = 0; i < w.size(); i += 2) {
        float v = random_float();
        uint32_t u;
        memcpy(&u, &v, 4);
        uint16_t h = (uint16_t)random_bits();
        if (f.f == INFER_FMT_BF16)
            h = (uint16_t)(u >> 16);
        else if (f.f == INFER_FMT_F16)
            h = simt_float_to_half(v);
        else if (f.f == INFER_FMT_F8_E4M3) /* magnitudes below 2 */
            h = (uint16_t)((h & 0x8080u) | (h & 0x3F3Fu));
        else if ((int)(i % f.step) >= codes_of(f.f) && !(f.f == INFER_FMT_U4 && i % f.step >= 2112)) /* zero points */
            h = simt_float_to_half(0.25f * v);
        else if (f.f == INFER_FMT_Q4_K && i % f.step >= 2048) /* scales and minima have six bits */
            h &= 0x3F3Fu;
        memcpy(&w[i], &h, 2);
    }
}

double half_at(const unsigned char *p)
{
    return simt_half_to_float((uint16_t)(p[0] | p[1] << 8));
}

double e4m3_at(unsigned u)
{
    int e = u >> 3 & 15, m = u & 7;
    double v = e ? std::ldexp(8 + m, e - 10) : std::ldexp(m, -9);
    return u & 128 ? -v : v;
}

/* Nibble of element e of 64 of row r of 16. Pairs of 32 elements: P0 (2 t, 2 t + 1) and P1 (2 t + 8, 2 t + 9) of the
 * first 16, P2 and P3 of the others. */
struct pair_place {
    int lane, i, second, nibble; /* nibble: P0, P2, P1, P3 */
    pair_place(int r, int e)
        : lane(4 * (r % 8) + e % 8 / 2), i(e % 32 / 16 * 2 + e % 16 / 8), second(e % 2), nibble(i % 2 * 2 + i / 2)
    {
    }
};

int nibble_at(const unsigned char *codes, int r, int e)
{
    pair_place p(r, e);
    uint32_t w;
    memcpy(&w, codes + 16 * p.lane + 4 * (e / 32 * 2 + r / 8), 4);
    return (int)(w >> 4 * (p.nibble + 4 * p.second) & 15u);
}

double quant_at(infer_format f, const unsigned char *s, int r, int e)
{
    int g = r % 8, half = r / 8, block = e % 64 / 32, q = e / 64;
    pair_place p(r, e);
    const unsigned char *scale = s + codes_of(f) + 8 * g + 4 * block + 2 * half;
    if (f == INFER_FMT_Q8_0)
        return (s[512 * block + 16 * p.lane + 8 * half + 2 * p.i + p.second] - 128) * half_at(scale);
    if (f == INFER_FMT_Q4_0)
        return (nibble_at(s, r, e) - 8) * half_at(scale);
    if (f == INFER_FMT_Q4_1)
        return nibble_at(s, r, e) * half_at(scale) + half_at(scale + 64);
    int low = nibble_at(s + 512 * q, r, e % 64);
    if (f == INFER_FMT_Q4_K) {
        const unsigned char *sm = s + 2048 + 64 * q + 8 * g + 4 * half + 2 * block, *d = s + 2304 + 4 * r;
        return half_at(d) * sm[0] * low - half_at(d + 2) * sm[1];
    }
    if (f == INFER_FMT_U4)
        return half_at(s + 2048 + 8 * g + 4 * (q / 2) + 2 * half) * (low - (s[2112 + 2 * g + q / 2] >> 4 * half & 15));
    uint32_t w;
    memcpy(&w, s + 2048 + 256 * q + 8 * p.lane + 4 * block, 4);
    int high = (int)(w >> (8 * (p.i % 2 + 2 * p.second) + 4 * (p.i / 2) + 2 * half) & 3u) ^ 2;
    return half_at(s + 3328 + 2 * r) * (signed char)s[3072 + 64 * q + 8 * g + 4 * half + e % 64 / 16] *
           (low + 16 * high - 32);
}

double element(const packed_format &f, const std::vector<unsigned char> &w, int k_all, int n, int k)
{
    int steps = (k_all + f.unit - 1) / f.unit, r = n % 16, g = r % 8, half = r / 8, e = k % f.unit;
    const unsigned char *s = &w[((size_t)(n / 16) * steps + k / f.unit) * f.step];
    if (f.step != 2048)
        return quant_at(f.f, s, r, e);
    int b = e * (f.f == INFER_FMT_F8_E4M3 ? 1 : 2);
    const unsigned char *p = s + half * 1024 + g * 128 + ((b / 16) ^ g) * 16 + b % 16;
    if (f.f == INFER_FMT_F8_E4M3)
        return e4m3_at(*p);
    return f.f == INFER_FMT_F16 ? half_at(p) : (double)__uint_as_float((uint32_t)(p[0] << 16 | p[1] << 24));
}
} // namespace

#endif
