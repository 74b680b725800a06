/* A step of packed weights (packed.h) times x, for ring.cu: a wave's sums through matrix units, weights the 16 rows of
 * the fragment, x its columns, so that nothing of x is rounded that would show.
 *
 * Numbers (BF16, F16, E4M3 as f16): x rounded to 16 bits, and what that left off, two of the eight columns a row; of
 * f16 times a power of two of the row. Codes (the others): x as integers of 32 bits, of 256 elements with a scale, a
 * column a byte, so that two rows go at a time. Products are exact, their sums too, and by the scales of weights that
 * are integers. A block of 32 takes one instruction of the matrix units, where floats take two and each pair of weights
 * two to be made: 150 instructions a step of Q4_K, of some 480 until memory has brought the next;
 * fewer where there is one row (ring_alone.cuh).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RING_STEP_CUH
#define RING_STEP_CUH

#include "async.cuh"
#include "packed.cuh"
#include "product.cuh"

#include "../ring.h"

#if defined(ASYNC) && WAVE == 32

template <int FMT> struct ring_of {
    enum {
        BYTES = packed_of<FMT>::BYTES,
        CODES = packed_of<FMT>::CODES,
        ALONE = RING_ALONE(FMT),
        ONE_SCALE = !CODES && FMT != INFER_FMT_BF16, /* a row of x has one */
        ROWS = CODES ? 2 : 4,                        /* of x that the columns take */
        K32 = packed_of<FMT>::UNIT / 32,
        PARTS = RING_PARTS(BYTES),
        STEPS = RING_STEPS(BYTES),
        AHEAD = BYTES > 2048 ? 1 : 2, /* copies under way until the ring is full for the first time */
        ACT = FMT == INFER_FMT_BF16 ? INFER_FMT_BF16 : INFER_FMT_F16
    };
};

/* Whether rows of x come one at a time and are laid out for that. */
template <int FMT> DEV bool is_alone(const lp_ring &p)
{
    return ring_of<FMT>::ALONE && p.alone;
}

/* What a lane reads of x: of its column's row, and of the row whose sums it has. */
struct x_place {
    const uchar *x;     /* its 16 bytes of the first 32 elements, or of 64 in codes */
    const uchar *sum;   /* codes: sums of blocks */
    const float *scale; /* codes: of 256 elements each; where there is no such row, another's */
    int have;           /* its column is a row's */
};

/* x: of all rows. */
template <int FMT> DEV x_place x_place_of(const uchar *x, int blocks, int n_rows)
{
    enum { CODES = ring_of<FMT>::CODES };
    const int l = (int)threadIdx.x % 32, g = l / 4, t = l % 4, size = RING_SIZE(blocks), r = CODES ? g / 4 : g / 2;
    const uchar *mine = x + (t / 2 < n_rows ? t / 2 : 0) * size;
    x_place p;
    x += r * size;
    p.x = x + (CODES ? g % 4 : g % 2) * 64 + t * 16;
    p.sum = FMT == INFER_FMT_Q4_K ? x + RING_X(blocks) + g % 4 * 16 + t * 4 : mine + RING_X(blocks);
    p.scale = (const float *)(mine + RING_SCALES(blocks));
    p.have = r < n_rows;
    return p;
}

/* Of the rows after those, in codes. */
template <int FMT> DEV x_place x_place_next(const x_place &x, int blocks, int n_rows)
{
    const int t = (int)threadIdx.x % 4, more = ring_of<FMT>::ROWS * RING_SIZE(blocks);
    const int mine = ring_of<FMT>::ROWS + t / 2 < n_rows ? more : 0;
    x_place p;
    p.x = x.x + more;
    p.sum = x.sum + (FMT == INFER_FMT_Q4_K ? more : mine);
    p.scale = (const float *)((const uchar *)x.scale + mine);
    p.have = ring_of<FMT>::ROWS + (int)threadIdx.x % 32 / 16 < n_rows;
    return p;
}

DEV uint4 x_at(const x_place &x, int at)
{
    const uint4 none = {0, 0, 0, 0};
    return x.have ? ld_16(x.x + at) : none;
}

/* ---- Numbers ---- */

/* 32 elements; first: d is made, not added to. */
template <int FMT> DEV void mma_32(float d[4], const uint32_t a[8], const uint4 &x, bool first = false)
{
    frag_a<FMT> fa;
    frag_b<FMT> fb;
    fa.v[0] = a[0], fa.v[1] = a[1], fa.v[2] = a[2], fa.v[3] = a[3];
    fb.v[0] = x.x, fb.v[1] = x.y;
    if (first)
        mma_first(d, fa, fb);
    else
        mma(d, fa, fb);
    fa.v[0] = a[4], fa.v[1] = a[5], fa.v[2] = a[6], fa.v[3] = a[7];
    fb.v[0] = x.z, fb.v[1] = x.w;
    mma(d, fa, fb);
}

/* A lane's place in 16 rows of 128 bytes, for ldmatrix: piece i of eight. */
DEV const uchar *line_at(const uchar *w, int i)
{
    const int l = (int)threadIdx.x % 32;
    return w + l / 8 % 2 * 1024 + l % 8 * 128 + ((2 * i + l / 16) ^ l % 8) * 16;
}

template <int FMT> DEV void step_halves(const uchar *w, const x_place &x, int b, float d[4])
{
    uint32_t a[2][8];
    float t[4];
    UNROLL
    for (int i = 0; i < 4; i++)
        ldmatrix_4(a[i / 2] + i % 2 * 4, line_at(w, i));
    uint4 x0 = x_at(x, RING_X(b)), x1 = x_at(x, RING_X(b + 1));
    mma_32<ring_of<FMT>::ACT>(d, a[0], x0);
    mma_32<ring_of<FMT>::ACT>(t, a[1], x1, true);
    UNROLL
    for (int i = 0; i < 4; i++)
        d[i] += t[i];
}

DEV void step_e4m3(const uchar *w, const x_place &x, int b, float d[4])
{
    UNROLL
    for (int i = 0; i < 4; i++) { /* 32 elements: two pieces of 16 */
        uint32_t r[4], a[8];
        ldmatrix_4(r, line_at(w, i));
        UNROLL
        for (int j = 0; j < 4; j++) { /* r: rows g and g + 8 of the first 16, then of the second */
            a[j / 2 * 4 + j % 2] = e4m3_pair(r[j]);
            a[j / 2 * 4 + j % 2 + 2] = e4m3_pair(r[j] >> 16);
        }
        mma_32<INFER_FMT_F16>(d, a, x_at(x, RING_X(b + i)));
    }
}

/* ---- Codes ---- */

#define LOW_NIBBLES  0x0F0F0F0Fu
#define HIGH_NIBBLES 0xF0F0F0F0u
#define SIGNS        0x80808080u

/* Sums of 32 products in whole numbers: of rows g and g + 8, a higher byte's column and the next one's. */
DEV void block_sums(int d[4], uint32_t g0, uint32_t h0, uint32_t g1, uint32_t h1, uint32_t x0, uint32_t x1)
{
    const uint32_t a[4] = {g0, h0, g1, h1}, x[2] = {x0, x1};
    mma_bytes<32>(d, a, x);
}

/* The matrix units' registers of 32 codes of rows g and g + 8 that are nibbles, low ones first. */
template <int FMT> DEV void nibbles_of(uint32_t a[4], uint32_t g, uint32_t h)
{
    if (FMT == INFER_FMT_Q4_0) {
        a[0] = and_xor(g << 4, HIGH_NIBBLES, SIGNS), a[1] = and_xor(h << 4, HIGH_NIBBLES, SIGNS);
        a[2] = and_xor(g, HIGH_NIBBLES, SIGNS), a[3] = and_xor(h, HIGH_NIBBLES, SIGNS);
    } else {
        a[0] = g & LOW_NIBBLES, a[1] = h & LOW_NIBBLES;
        a[2] = g >> 4 & LOW_NIBBLES, a[3] = h >> 4 & LOW_NIBBLES;
    }
}

template <int FMT> DEV void nibble_sums(int d[4], uint32_t g, uint32_t h, uint32_t x0, uint32_t x1)
{
    uint32_t a[4];
    const uint32_t x[2] = {x0, x1};
    nibbles_of<FMT>(a, g, h);
    mma_bytes<32>(d, a, x);
}

/* The same of 16: one register of each row, one of x. */
DEV void half_sums(int d[4], uint32_t g, uint32_t h, uint32_t xv)
{
    const uint32_t a[2] = {g, h}, x[1] = {xv};
    mma_bytes<16>(d, a, x);
}

/* Both columns' sums as one number; of 32 products they fit. */
DEV float both_bytes(const int *d)
{
    return (float)(d[0] * 256 + d[1]);
}

/* Ends of steps, here and in ring_alone.cuh: sums times what their weights and x have. */
DEV void blocks_end(float d[4], const float y[2], const float least[2], float by)
{
    d[0] = fmaf(y[0], by, d[0] + least[0]);
    d[2] = fmaf(y[1], by, d[2] + least[1]);
}

/* Minima of 256 elements by sums of x, two of which a lane has. */
DEV void q4_k_minima(float low[4], const uchar *w, uint32_t sums)
{
    const int l = (int)threadIdx.x % 32, g = l / 4, t = l % 4;
    const uint2 m = ld_8(w + 2048 + 64 * t + 8 * g);
    frag_a<INFER_FMT_F16> fa;
    frag_b<INFER_FMT_F16> fb;
    fa.v[0] = byte_pair(m.x, 1, 3), fa.v[1] = byte_pair(m.y, 1, 3), fa.v[2] = fa.v[3] = 0;
    fb.v[0] = sums, fb.v[1] = 0;
    mma_first(low, fa, fb);
}

DEV void q4_k_end(float d[4], const int e[4], const float low[4], const uchar *w, float by)
{
    const int g = (int)threadIdx.x % 32 / 4;
    float dm[2][2];
    two_floats(ld_u32(w + 2304 + 4 * g), INFER_FMT_F16, dm[0]);
    two_floats(ld_u32(w + 2304 + 4 * g + 32), INFER_FMT_F16, dm[1]);
    UNROLL
    for (int h = 0; h < 2; h++) {
        const float sum = fmaf((float)e[2 * h], 256.0f, (float)e[2 * h + 1]), least = low[2 * h] + low[2 * h + 1];
        d[2 * h] = fmaf(fmaf(sum, dm[h][0], -64.0f * dm[h][1] * least), by, d[2 * h]);
    }
}

/* Four codes of Q6_K: low or high nibbles of r, above them bits of u, which lie `left` lower. */
DEV uint32_t q6_k_codes(uint32_t r, uint32_t u, int left, int high)
{
    return and_or(u << (left - 4 * high), 0xC0C0C0C0u, (high ? r >> 2 : r << 2) & 0x3C3C3C3Cu);
}

DEV void q6_k_end(float d[4], const int e[4], const uchar *w, float by)
{
    const int g = (int)threadIdx.x % 32 / 4;
    UNROLL
    for (int h = 0; h < 2; h++) {
        const float sum = fmaf((float)e[2 * h], 256.0f, (float)e[2 * h + 1]);
        d[2 * h] = fmaf(sum * half_to_float((uint16_t)ld_u16(w + 3328 + 2 * g + 16 * h)), by, d[2 * h]);
    }
}

/* Group i of two of 128, scales s; mine: this lane is the one that brings a row's sums of x. */
DEV void u4_group(float y[2], float least[2], const int e[4], int i, const uint2 &s, uint32_t zeros, const uchar *sums,
                  bool mine)
{
    float v[2], sum = 0;
    if (mine) {
        const uint4 four = ld_16(sums + 16 * i);
        sum = float_of(four.x) + float_of(four.y) + (float_of(four.z) + float_of(four.w));
    }
    two_floats(i ? s.y : s.x, INFER_FMT_F16, v);
    y[0] = fmaf(both_bytes(e), v[0], y[0]);
    y[1] = fmaf(both_bytes(e + 2), v[1], y[1]);
    least[0] = fmaf(-(float)(zeros >> 8 * i & 15u) * v[0], sum, least[0]);
    least[1] = fmaf(-(float)(zeros >> (8 * i + 4) & 15u) * v[1], sum, least[1]);
}

/* Two blocks of 32, each with a scale of its own, and in Q4_1 a minimum. Codes of Q4_0 are there sixteenfold
 * (RING_CODE_UNIT). */
template <int FMT> DEV void step_blocks(const uchar *w, const x_place &x, int b, float d[4])
{
    const int l = (int)threadIdx.x % 32, g = l / 4, CODES_AT = FMT == INFER_FMT_Q8_0 ? 1024 : 512;
    const uint4 xv = x_at(x, RING_X(b));
    uint4 c = ld_16(w + 16 * l);
    const uint2 s = ld_8(w + CODES_AT + 8 * g), m = FMT == INFER_FMT_Q4_1 ? ld_8(w + 576 + 8 * g) : s;
    float y[2] = {0, 0}, least[2] = {0, 0};
    UNROLL
    for (int i = 0; i < 2; i++) {
        const uint32_t x0 = i ? xv.z : xv.x, x1 = i ? xv.w : xv.y;
        uint32_t rg = i ? c.z : c.x, rh = i ? c.w : c.y;
        int t[4];
        float v[2];
        if (FMT == INFER_FMT_Q8_0) {
            if (i)
                c = ld_16(w + 512 + 16 * l);
            block_sums(t, c.x ^ SIGNS, c.z ^ SIGNS, c.y ^ SIGNS, c.w ^ SIGNS, x0, x1);
        } else {
            nibble_sums<FMT>(t, rg, rh, x0, x1);
        }
        two_floats(i ? s.y : s.x, INFER_FMT_F16, v);
        y[0] = fmaf(both_bytes(t), v[0], y[0]);
        y[1] = fmaf(both_bytes(t + 2), v[1], y[1]);
        if (FMT == INFER_FMT_Q4_1) {
            const float sum = l % 2 ? 0.0f : ((const float *)x.sum)[b + i]; /* once */
            two_floats(i ? m.y : m.x, INFER_FMT_F16, v);
            least[0] = fmaf(sum, v[0], least[0]);
            least[1] = fmaf(sum, v[1], least[1]);
        }
    }
    blocks_end(d, y, least, x.scale[b / 8]);
}

/* 256 elements: sums by scales of six bits are below 2^25, minima are a product of their own, eight by eight sums of x
 * of 2^6 less. */
DEV void step_q4_k(const uchar *w, const x_place &x, int b, float d[4])
{
    const int l = (int)threadIdx.x % 32, g = l / 4;
    float low[4];
    int e[4] = {0, 0, 0, 0};
    q4_k_minima(low, w, x.have && g % 4 < 2 ? ld_u32(x.sum + b / 8 * 32) : 0);
    UNROLL
    for (int i = 0; i < 4; i++) {
        const uint4 c = ld_16(w + 512 * i + 16 * l), xv = x_at(x, RING_X(b + 2 * i));
        const uint2 s = ld_8(w + 2048 + 64 * i + 8 * g);
        UNROLL
        for (int j = 0; j < 2; j++) {
            const uint32_t rg = j ? c.z : c.x, rh = j ? c.w : c.y;
            const int sg = (int)(s.x >> 16 * j & 255u), sh = (int)(s.y >> 16 * j & 255u);
            int p[4];
            nibble_sums<INFER_FMT_Q4_K>(p, rg, rh, j ? xv.z : xv.x, j ? xv.w : xv.y);
            e[0] += p[0] * sg, e[1] += p[1] * sg, e[2] += p[2] * sh, e[3] += p[3] * sh;
        }
    }
    q4_k_end(d, e, low, w, x.scale[b / 8]);
}

/* 256 elements: sums of 128 are below 2^26, a group's scale is for the code less its zero point. */
DEV void step_u4(const uchar *w, const x_place &x, int b, float d[4])
{
    const int l = (int)threadIdx.x % 32, g = l / 4;
    const uint2 s = ld_8(w + 2048 + 8 * g);
    const uint32_t zeros = ld_u16(w + 2112 + 2 * g);
    float y[2] = {0, 0}, least[2] = {0, 0};
    UNROLL
    for (int i = 0; i < 2; i++) {
        int e[4] = {0, 0, 0, 0};
        UNROLL
        for (int j = 0; j < 2; j++) {
            const uint4 c = ld_16(w + 512 * (2 * i + j) + 16 * l), xv = x_at(x, RING_X(b + 4 * i + 2 * j));
            UNROLL
            for (int k = 0; k < 2; k++) {
                const uint32_t rg = k ? c.z : c.x, rh = k ? c.w : c.y;
                int p[4];
                nibble_sums<INFER_FMT_U4>(p, rg, rh, k ? xv.z : xv.x, k ? xv.w : xv.y);
                e[0] += p[0], e[1] += p[1], e[2] += p[2], e[3] += p[3];
            }
        }
        u4_group(y, least, e, i, s, zeros, x.sum + 4 * b, l % 2 == 0);
    }
    blocks_end(d, y, least, x.scale[b / 8]);
}

/* 256 elements, a half of them each call (part); codes are there fourfold (RING_CODE_UNIT), sums by scales below 2^30.
 */
DEV void step_q6_k(const uchar *w, const x_place &x, int b, int part, float d[4])
{
    const int l = (int)threadIdx.x % 32, g = l / 4;
    int e[4] = {0, 0, 0, 0};
    UNROLL
    for (int n = 0; n < 2; n++) {
        const int i = 2 * part + n;
        const uint4 c = ld_16(w + 512 * i + 16 * l), xv = x_at(x, RING_X(b + 2 * i));
        const uint2 high = ld_8(w + 2048 + 256 * i + 8 * l), s = ld_8(w + 3072 + 64 * i + 8 * g);
        UNROLL
        for (int j = 0; j < 2; j++) {
            const uint32_t rg = j ? c.z : c.x, rh = j ? c.w : c.y, u = j ? high.y : high.x;
            UNROLL
            for (int k = 0; k < 2; k++) { /* low nibbles and 16 elements, high ones */
                const int sg = (int)(signed char)(s.x >> 8 * (2 * j + k)),
                          sh = (int)(signed char)(s.y >> 8 * (2 * j + k));
                int p[4];
                half_sums(p, q6_k_codes(rg, u, 6, k), q6_k_codes(rh, u, 4, k),
                          j ? (k ? xv.w : xv.z) : (k ? xv.y : xv.x));
                e[0] += p[0] * sg, e[1] += p[1] * sg, e[2] += p[2] * sh, e[3] += p[3] * sh;
            }
        }
    }
    q6_k_end(d, e, w, x.scale[b / 8]);
}

/* Adds a step's products, or a part's, to d, a row's in two places; b: its first block of 32 elements of x. */
template <int FMT> DEV void step(const uchar *w, const x_place &x, int b, int part, float d[4])
{
    if (FMT == INFER_FMT_F8_E4M3)
        step_e4m3(w, x, b, d);
    else if (!packed_of<FMT>::CODES)
        step_halves<FMT>(w, x, b, d);
    else if (FMT == INFER_FMT_Q4_K)
        step_q4_k(w, x, b, d);
    else if (FMT == INFER_FMT_Q6_K)
        step_q6_k(w, x, b, part, d);
    else if (FMT == INFER_FMT_U4)
        step_u4(w, x, b, d);
    else
        step_blocks<FMT>(w, x, b, d);
}

#endif
#endif
