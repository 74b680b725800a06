/* Random weights directly as blocks: random bits, then the scales set so that values have RMS 0.02.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>
#include <string.h>

#include "mkmodel.h"
#include "quant/quant.h"

#define SIGMA 0.02

void random_seed(random_bits *r, uint64_t seed)
{
    for (int i = 0; i < 2; i++) { /* splitmix64, so that near seeds differ */
        uint64_t z = seed += 0x9E3779B97F4A7C15u;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
        z = (z ^ z >> 27) * 0x94D049BB133111EBu;
        r->s[i] = z ^ z >> 31;
    }
}

static inline uint64_t next(random_bits *r)
{
    uint64_t a = r->s[0], b = r->s[1];
    r->s[0] = b;
    a ^= a << 23;
    r->s[1] = a ^ b ^ a >> 18 ^ b >> 5;
    return r->s[1] + b;
}

static void fill_bits(random_bits *r, uint8_t *p, size_t n)
{
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t v = next(r);
        memcpy(p, &v, 8);
    }
    uint64_t v = next(r);
    memcpy(p, &v, n);
}

/* Where a block has its f16 scale and minimum (-1: none), the RMS of its values at scale 1 when every other field is
 * uniform, and what the minimum is for a mean of 0 (q*_1: negative, added; k-quants: positive, subtracted, times the
 * sub-block's level, which is set equal to its scale). */
static const struct {
    infer_format format;
    int scale_at, min_at;
    double rms, min;
} block_rules[] = {
    {INFER_FMT_Q4_0, 0, -1, 4.637, 0},    {INFER_FMT_Q4_1, 0, 2, 4.610, -7.5}, {INFER_FMT_Q5_0, 0, -1, 9.247, 0},
    {INFER_FMT_Q5_1, 0, 2, 9.233, -15.5}, {INFER_FMT_Q8_0, 0, -1, 73.90, 0},   {INFER_FMT_Q2_K, 80, 82, 9.844, 1.5},
    {INFER_FMT_Q3_K, 108, -1, 43.33, 0},  {INFER_FMT_Q4_K, 0, 2, 168.3, 7.5},  {INFER_FMT_Q5_K, 0, 2, 337.2, 15.5},
    {INFER_FMT_Q6_K, 208, -1, 1365.7, 0},
};

static void store_f16(uint8_t *p, uint16_t v)
{
    memcpy(p, &v, 2);
}

/* Sub-block minima equal to the scales. */
static void copy_levels(infer_format format, uint8_t *block)
{
    if (format == INFER_FMT_Q2_K)
        for (int i = 0; i < 16; i++)
            block[i] = (uint8_t)((block[i] & 15) * 17);
    if (format == INFER_FMT_Q4_K || format == INFER_FMT_Q5_K) {
        memcpy(block + 8, block + 4, 4);
        for (int i = 12; i < 16; i++)
            block[i] = (uint8_t)((block[i] & 15) * 17);
    }
}

static infer_status fill_blocks(infer_format format, random_bits *r, uint8_t *p, uint64_t blocks, uint32_t size)
{
    enum { JITTER = 64 }; /* scales from 0.75 to 1.25 of the mean */
    uint16_t scale[JITTER], min[JITTER];
    size_t k = 0;
    while (k < sizeof block_rules / sizeof block_rules[0] && block_rules[k].format != format)
        k++;
    if (k == sizeof block_rules / sizeof block_rules[0])
        return INFER_E_UNSUPPORTED;
    for (int i = 0; i < JITTER; i++) {
        double d = SIGMA / block_rules[k].rms * (0.75 + i * 0.5 / (JITTER - 1));
        scale[i] = infer_f32_to_f16((float)d);
        min[i] = infer_f32_to_f16((float)(infer_f16_to_f32(scale[i]) * block_rules[k].min));
    }
    fill_bits(r, p, (size_t)(blocks * size));
    uint64_t pick = 0;
    for (uint64_t b = 0; b < blocks; b++, p += size, pick >>= 6) {
        if (b % 10 == 0)
            pick = next(r);
        store_f16(p + block_rules[k].scale_at, scale[pick % JITTER]);
        if (block_rules[k].min_at >= 0)
            store_f16(p + block_rules[k].min_at, min[pick % JITTER]);
        copy_levels(format, p);
    }
    return INFER_OK;
}

/* MXFP4's codes have an RMS of 2.93, so scales around 2^-7.2. */
static void fill_mxfp4(random_bits *r, uint8_t *p, uint64_t blocks)
{
    fill_bits(r, p, (size_t)(blocks * 17));
    for (uint64_t b = 0; b < blocks; b++, p += 17)
        p[0] = (uint8_t)(p[0] < 192 ? 120 : 119);
}

/* Plain floats: uniform, from a table of 4096 values. */
static void fill_floats(infer_format format, random_bits *r, uint8_t *p, uint64_t n)
{
    enum { STEPS = 4096 };
    float table[STEPS];
    uint16_t half[STEPS];
    for (int i = 0; i < STEPS; i++) {
        table[i] = (float)(SIGMA * sqrt(3.0) * ((2 * i + 1) / (double)STEPS - 1));
        half[i] = format == INFER_FMT_F16 ? infer_f32_to_f16(table[i]) : infer_f32_to_bf16(table[i]);
    }
    uint64_t pick = 0;
    for (uint64_t i = 0; i < n; i++, pick >>= 12) {
        if (i % 5 == 0)
            pick = next(r);
        if (format == INFER_FMT_F32)
            memcpy(p + 4 * i, &table[pick % STEPS], 4);
        else
            memcpy(p + 2 * i, &half[pick % STEPS], 2);
    }
}

infer_status fill_random(infer_format format, random_bits *r, void *dst, uint64_t n)
{
    const infer_format_info *f = infer_format_get(format);
    if (format == INFER_FMT_F32 || format == INFER_FMT_F16 || format == INFER_FMT_BF16)
        fill_floats(format, r, dst, n);
    else if (format == INFER_FMT_MXFP4)
        fill_mxfp4(r, dst, n / 32);
    else if (f)
        return fill_blocks(format, r, dst, n / f->block_elems, f->block_bytes);
    else
        return INFER_E_UNSUPPORTED;
    return INFER_OK;
}
