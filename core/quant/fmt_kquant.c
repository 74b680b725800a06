/* The 256-element blocks ("k-quants") of the GGUF specification. A block has sub-blocks whose scales (and minima) are
 * themselves quantised against one or two f16 numbers. Unpack follows the specification's order of operations; pack
 * is our own fit: candidate scales a sub-block, each improved by weighted least squares, the best kept.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "quant/fmt.h"

enum { SUPER = 256, MAX_SUB = 16, CANDIDATES = 9 };

/* ---- Layout -------------------------------------------------------------------------------------------------- */

/* Eight 6-bit scales and eight 6-bit minima in 12 bytes: the first four of each in the low six bits of bytes 0..3 and
 * 4..7, the last four as nibbles in bytes 8..11 with their upper bits on top of bytes 0..7. */
static void scales12_get(const uint8_t p[12], uint8_t scale[8], uint8_t min[8])
{
    for (int i = 0; i < 4; i++) {
        scale[i] = p[i] & 63;
        min[i] = p[i + 4] & 63;
        scale[i + 4] = (uint8_t)((p[i + 8] & 15) | p[i] >> 6 << 4);
        min[i + 4] = (uint8_t)(p[i + 8] >> 4 | p[i + 4] >> 6 << 4);
    }
}

static void scales12_put(const uint8_t scale[8], const uint8_t min[8], uint8_t p[12])
{
    for (int i = 0; i < 4; i++) {
        p[i] = (uint8_t)(scale[i] | scale[i + 4] >> 4 << 6);
        p[i + 4] = (uint8_t)(min[i] | min[i + 4] >> 4 << 6);
        p[i + 8] = (uint8_t)((scale[i + 4] & 15) | min[i + 4] << 4);
    }
}

/* Sixteen 6-bit scales (stored plus 32) in 12 bytes: low nibbles of scales 0..7 in the low halves of bytes 0..7 and of
 * 8..15 in the high halves; the upper two bits of scale i at bit 2 (i / 4) of byte 8 + i % 4. */
static int scale6_get(const uint8_t p[12], int i)
{
    int low = p[i % 8] >> (i / 8 * 4) & 15, high = p[8 + i % 4] >> (i / 4 * 2) & 3;
    return (low | high << 4) - 32;
}

static void scale6_put(uint8_t p[12], int i, int scale)
{
    p[i % 8] = (uint8_t)(p[i % 8] | ((scale + 32) & 15) << (i / 8 * 4));
    p[8 + i % 4] = (uint8_t)(p[8 + i % 4] | (scale + 32) >> 4 << (i / 4 * 2));
}

/* Where element i's two-bit part sits when 128 elements share 32 bytes, 32 elements a bit pair. */
static int pair_byte(int i)
{
    return i / 128 * 32 + i % 32;
}

static int pair_shift(int i)
{
    return i % 128 / 32 * 2;
}

/* ---- Unpack -------------------------------------------------------------------------------------------------- */

/* 16 bytes of scale and minimum nibbles, 64 bytes of pairs, d, dmin. */
void infer_unpack_q2_k(const void *src, float *dst, uint64_t n)
{
    const uint8_t *p = src;
    for (uint64_t b = 0; b < n; b += SUPER, p += 84, dst += SUPER) {
        float d = infer_f16_to_f32(infer_load_u16(p + 80)), dmin = infer_f16_to_f32(infer_load_u16(p + 82));
        for (int i = 0; i < SUPER; i++) {
            uint8_t sm = p[i / 16];
            float scale = d * (float)(sm & 15), min = dmin * (float)(sm >> 4);
            dst[i] = scale * (float)(p[16 + pair_byte(i)] >> pair_shift(i) & 3) - min;
        }
    }
}

/* 32 bytes of high bits (element i at bit i / 32 of byte i % 32; clear means minus 4), 64 of pairs, 12 of scales, d. */
void infer_unpack_q3_k(const void *src, float *dst, uint64_t n)
{
    const uint8_t *p = src;
    for (uint64_t b = 0; b < n; b += SUPER, p += 110, dst += SUPER) {
        float d = infer_f16_to_f32(infer_load_u16(p + 108));
        for (int i = 0; i < SUPER; i++) {
            int q = (p[32 + pair_byte(i)] >> pair_shift(i) & 3) - (p[i % 32] >> (i / 32) & 1 ? 0 : 4);
            dst[i] = d * (float)scale6_get(p + 96, i / 16) * (float)q;
        }
    }
}

/* d, dmin, 12 bytes of scales, (q5_k: 32 bytes of high bits,) 128 bytes of nibbles: 64 elements share 32 bytes. */
static void unpack_q45_k(const uint8_t *p, float *dst, uint64_t n, int bits)
{
    for (uint64_t b = 0; b < n; b += SUPER, dst += SUPER) {
        float d = infer_f16_to_f32(infer_load_u16(p)), dmin = infer_f16_to_f32(infer_load_u16(p + 2));
        const uint8_t *high = p + 16, *low = bits == 5 ? p + 48 : p + 16;
        uint8_t scale[8], min[8];
        scales12_get(p + 4, scale, min);
        for (int i = 0; i < SUPER; i++) {
            int q = low[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15;
            if (bits == 5)
                q |= (high[i % 32] >> (i / 32) & 1) << 4;
            dst[i] = d * (float)scale[i / 32] * (float)q - dmin * (float)min[i / 32];
        }
        p = low + 128;
    }
}

void infer_unpack_q4_k(const void *src, float *dst, uint64_t n)
{
    unpack_q45_k(src, dst, n, 4);
}

void infer_unpack_q5_k(const void *src, float *dst, uint64_t n)
{
    unpack_q45_k(src, dst, n, 5);
}

/* 128 bytes of low nibbles (128 elements share 64 bytes), 64 bytes of upper pairs, 16 signed scales, d. */
void infer_unpack_q6_k(const void *src, float *dst, uint64_t n)
{
    const uint8_t *p = src;
    for (uint64_t b = 0; b < n; b += SUPER, p += 210, dst += SUPER) {
        float d = infer_f16_to_f32(infer_load_u16(p + 208));
        for (int i = 0; i < SUPER; i++) {
            int q = p[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4) & 15;
            q |= (p[128 + pair_byte(i)] >> pair_shift(i) & 3) << 4;
            dst[i] = d * (float)(int8_t)p[192 + i / 16] * (float)(q - 32);
        }
    }
}

/* ---- Pack ---------------------------------------------------------------------------------------------------- */

/* An error counts more where the weight is large, and nowhere nothing. */
static void fill_weights(const float *x, int n, float *w)
{
    float sum = 0;
    for (int i = 0; i < n; i++)
        sum += x[i] * x[i];
    float rms = sqrtf(sum / (float)n);
    for (int i = 0; i < n; i++)
        w[i] = rms + fabsf(x[i]);
}

/* Scale s so that s * q, q in [-top, top - 1], is near x. Each candidate puts the peak at another fraction of a code
 * beyond the most negative one; s is then the least-squares scale of the codes found. */
static float fit_scale(const float *x, int n, int top)
{
    float w[32], peak = 0, best = 0, best_gain = 0;
    fill_weights(x, n, w);
    for (int i = 0; i < n; i++)
        peak = fabsf(x[i]) > fabsf(peak) ? x[i] : peak;
    if (!(fabsf(peak) > 1e-30f))
        return 0;
    for (int c = -CANDIDATES; c <= CANDIDATES; c++) {
        float inverse = -((float)top + 0.1f * (float)c) / peak, xq = 0, qq = 0;
        for (int i = 0; i < n; i++) {
            float q = (float)infer_round_clamp(x[i] * inverse, -top, top - 1);
            xq += w[i] * x[i] * q;
            qq += w[i] * q * q;
        }
        if (qq > 0 && xq * xq > best_gain * qq) {
            best_gain = xq * xq / qq;
            best = xq / qq;
        }
    }
    return best;
}

/* Scale s >= 0 and minimum m >= 0 so that s * q - m, q in [0, top], is near x. */
static void fit_scale_min(const float *x, int n, int top, float *scale, float *min)
{
    float w[32], lo = 0, hi = x[0], best_error = INFINITY;
    fill_weights(x, n, w);
    for (int i = 0; i < n; i++) {
        lo = x[i] < lo ? x[i] : lo;
        hi = x[i] > hi ? x[i] : hi;
    }
    *scale = 0;
    *min = -lo;
    if (!(hi - lo > 1e-30f))
        return;
    for (int c = -CANDIDATES; c <= CANDIDATES; c++) {
        float inverse = ((float)top + 0.1f * (float)c) / (hi - lo);
        float sw = 0, sx = 0, sq = 0, sxq = 0, sqq = 0;
        for (int i = 0; i < n; i++) {
            float q = (float)infer_round_clamp((x[i] - lo) * inverse, 0, top);
            sw += w[i];
            sx += w[i] * x[i];
            sq += w[i] * q;
            sxq += w[i] * x[i] * q;
            sqq += w[i] * q * q;
        }
        if (!(sqq > 0))
            continue;
        float det = sw * sqq - sq * sq, s = sxq / sqq, m = 0;
        if (det > 1e-4f * sw * sqq)
            m = (sq * sxq - sqq * sx) / det;
        if (m > 0)
            s = (sw * sxq - sx * sq) / det;
        else
            m = 0; /* no negative minimum: the scale alone */
        float error = 0;
        float per = 1.0f / s;
        for (int i = 0; i < n && s > 0; i++) {
            float e = s * (float)infer_round_clamp((x[i] + m) * per, 0, top) - m - x[i];
            error += w[i] * e * e;
        }
        if (s > 0 && error < best_error) {
            best_error = error;
            *scale = s;
            *min = m;
        }
    }
}

typedef struct super_block {
    uint16_t d, dmin; /* f16 */
    int scale[MAX_SUB], min[MAX_SUB];
    uint8_t q[SUPER]; /* codes from 0 */
} super_block;

/* Sub-blocks with a scale only: codes q - top, scales in [-scale_top, scale_top - 1]. */
static void fit_symmetric(const float *x, int top, int scale_top, super_block *s)
{
    float sub[MAX_SUB], peak = 0;
    for (int j = 0; j < 16; j++) {
        sub[j] = fit_scale(x + 16 * j, 16, top);
        peak = fabsf(sub[j]) > fabsf(peak) ? sub[j] : peak;
    }
    s->d = infer_f32_to_f16(peak / (float)-scale_top);
    float d = infer_f16_to_f32(s->d), inverse = d != 0 ? 1.0f / d : 0;
    for (int j = 0; j < 16; j++) {
        s->scale[j] = infer_round_clamp(sub[j] * inverse, -scale_top, scale_top - 1);
        float step = d * (float)s->scale[j], per = step != 0 ? 1.0f / step : 0;
        for (int i = 16 * j; i < 16 * j + 16; i++)
            s->q[i] = (uint8_t)(infer_round_clamp(x[i] * per, -top, top - 1) + top);
    }
}

/* Sub-blocks with scale and minimum: codes in [0, top], both levels in [0, level_top]. */
static void fit_with_min(const float *x, int subs, int top, int level_top, super_block *s)
{
    float scale[MAX_SUB], min[MAX_SUB], scale_peak = 0, min_peak = 0;
    int size = SUPER / subs;
    for (int j = 0; j < subs; j++) {
        fit_scale_min(x + size * j, size, top, &scale[j], &min[j]);
        scale_peak = fmaxf(scale_peak, scale[j]);
        min_peak = fmaxf(min_peak, min[j]);
    }
    s->d = infer_f32_to_f16(scale_peak / (float)level_top);
    s->dmin = infer_f32_to_f16(min_peak / (float)level_top);
    float d = infer_f16_to_f32(s->d), dmin = infer_f16_to_f32(s->dmin);
    for (int j = 0; j < subs; j++) {
        s->scale[j] = d != 0 ? infer_round_clamp(scale[j] / d, 0, level_top) : 0;
        s->min[j] = dmin != 0 ? infer_round_clamp(min[j] / dmin, 0, level_top) : 0;
        float step = d * (float)s->scale[j], per = step != 0 ? 1.0f / step : 0, m = dmin * (float)s->min[j];
        for (int i = size * j; i < size * (j + 1); i++)
            s->q[i] = (uint8_t)infer_round_clamp((x[i] + m) * per, 0, top);
    }
}

void infer_pack_q2_k(const float *src, void *dst, uint64_t n)
{
    uint8_t *p = dst;
    super_block s;
    for (uint64_t b = 0; b < n; b += SUPER, p += 84) {
        fit_with_min(src + b, 16, 3, 15, &s);
        memset(p, 0, 84);
        for (int j = 0; j < 16; j++)
            p[j] = (uint8_t)(s.scale[j] | s.min[j] << 4);
        for (int i = 0; i < SUPER; i++)
            p[16 + pair_byte(i)] = (uint8_t)(p[16 + pair_byte(i)] | s.q[i] << pair_shift(i));
        infer_store_u16(p + 80, s.d);
        infer_store_u16(p + 82, s.dmin);
    }
}

void infer_pack_q3_k(const float *src, void *dst, uint64_t n)
{
    uint8_t *p = dst;
    super_block s;
    for (uint64_t b = 0; b < n; b += SUPER, p += 110) {
        fit_symmetric(src + b, 4, 32, &s);
        memset(p, 0, 110);
        for (int j = 0; j < 16; j++)
            scale6_put(p + 96, j, s.scale[j]);
        for (int i = 0; i < SUPER; i++) {
            p[i % 32] = (uint8_t)(p[i % 32] | s.q[i] >> 2 << (i / 32));
            p[32 + pair_byte(i)] = (uint8_t)(p[32 + pair_byte(i)] | (s.q[i] & 3) << pair_shift(i));
        }
        infer_store_u16(p + 108, s.d);
    }
}

static void pack_q45_k(const float *src, uint8_t *p, uint64_t n, int bits)
{
    super_block s;
    for (uint64_t b = 0; b < n; b += SUPER) {
        uint8_t *high = p + 16, *low = bits == 5 ? p + 48 : p + 16, scale[8], min[8];
        fit_with_min(src + b, 8, (1 << bits) - 1, 63, &s);
        for (int j = 0; j < 8; j++) {
            scale[j] = (uint8_t)s.scale[j];
            min[j] = (uint8_t)s.min[j];
        }
        infer_store_u16(p, s.d);
        infer_store_u16(p + 2, s.dmin);
        scales12_put(scale, min, p + 4);
        memset(high, 0, (size_t)(low + 128 - high));
        for (int i = 0; i < SUPER; i++) {
            uint8_t *at = &low[i / 64 * 32 + i % 32];
            *at = (uint8_t)(*at | (s.q[i] & 15) << (i % 64 / 32 * 4));
            if (bits == 5)
                high[i % 32] = (uint8_t)(high[i % 32] | s.q[i] >> 4 << (i / 32));
        }
        p = low + 128;
    }
}

void infer_pack_q4_k(const float *src, void *dst, uint64_t n)
{
    pack_q45_k(src, dst, n, 4);
}

void infer_pack_q5_k(const float *src, void *dst, uint64_t n)
{
    pack_q45_k(src, dst, n, 5);
}

void infer_pack_q6_k(const float *src, void *dst, uint64_t n)
{
    uint8_t *p = dst;
    super_block s;
    for (uint64_t b = 0; b < n; b += SUPER, p += 210) {
        fit_symmetric(src + b, 32, 128, &s);
        memset(p, 0, 210);
        for (int j = 0; j < 16; j++)
            p[192 + j] = (uint8_t)s.scale[j];
        for (int i = 0; i < SUPER; i++) {
            uint8_t *at = &p[i / 128 * 64 + i % 64], *pair = &p[128 + pair_byte(i)];
            *at = (uint8_t)(*at | (s.q[i] & 15) << (i % 128 / 64 * 4));
            *pair = (uint8_t)(*pair | s.q[i] >> 4 << pair_shift(i));
        }
        infer_store_u16(p + 208, s.d);
    }
}
