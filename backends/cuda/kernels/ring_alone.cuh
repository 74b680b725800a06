/* A step of codes times one row of x (ring_step.cuh has the ways for more): a row fills four of the fragment's eight
 * columns with its bytes. So the upper four take what the lower four do not: the other block of 32 of a pair, or the
 * other half of a block, whose sums have other scales. Each lane then has half as many sums to scale as it would with a
 * second row beside it; both halves are added at a panel's end. SPDX-License-Identifier: Apache-2.0 */
#ifndef RING_ALONE_CUH
#define RING_ALONE_CUH

#include "ring_step.cuh"

#if defined(ASYNC) && WAVE == 32

/* What a lane reads of the row. A lane of the other half of columns has zeros there, wherever it reads. */
struct x_alone {
    const uchar *low, *high;
    int low_by, high_by; /* bytes a block of 32 */
    const uchar *sum;    /* sums of blocks */
    int sum_by;          /* Q4_K: bytes 256 elements */
    const float *scale;
};

/* zeros: RING_ZEROS bytes. */
template <int FMT> DEV x_alone x_alone_of(const uchar *x, const uchar *zeros, int blocks)
{
    const int l = (int)threadIdx.x % 32, g = l / 4, t = l % 4, place = g % 4 * 32 + t * 8;
    const bool pairs = FMT != INFER_FMT_Q6_K && FMT != INFER_FMT_U4; /* lower columns have a pair's first block */
    x_alone p;
    p.low = g < 4 ? x + place : zeros;
    p.low_by = g < 4 ? RING_X(1) : 0;
    p.high = g < 4 ? zeros : x + place + (pairs ? RING_X(1) : 0);
    p.high_by = g < 4 ? 0 : RING_X(1);
    p.sum = x + RING_X(blocks);
    p.sum_by = 0;
    if (FMT == INFER_FMT_Q4_K) {
        p.sum = g < 2 ? p.sum + g * 16 + t * 4 : zeros;
        p.sum_by = g < 2 ? 32 : 0;
    }
    p.scale = (const float *)(x + RING_SCALES(blocks));
    return p;
}

/* A block's eight bytes and the next one's. */
DEV uint4 two_eights(const uchar *p)
{
    const uint2 a = ld_8(p), b = ld_8(p + RING_X(1));
    const uint4 v = {a.x, a.y, b.x, b.y};
    return v;
}

/* The upper columns' sums are so many times too large. */
template <int FMT> DEV float alone_factor()
{
    return FMT == INFER_FMT_U4 && threadIdx.x % 4 > 1 ? 0.0625f : 1.0f;
}

/* 64 elements of Q4_0, Q4_1: a lane has one of both blocks. */
template <int FMT> DEV void alone_blocks(const uchar *w, const x_alone &x, int b, float d[4])
{
    const int l = (int)threadIdx.x % 32, g = l / 4, t = l % 4;
    const uint2 xl = ld_8(x.low + b * x.low_by), xh = ld_8(x.high + b * x.high_by);
    const uint4 c = ld_16(w + 16 * l);
    const uint32_t s = ld_u32(w + 512 + 8 * g + t / 2 * 4),
                   m = FMT == INFER_FMT_Q4_1 ? ld_u32(w + 576 + 8 * g + t / 2 * 4) : s;
    const uint32_t b0[2] = {xl.x, xl.y}, b1[2] = {xh.x, xh.y};
    int e[4];
    float v[2], least[2] = {0, 0};
    uint32_t a0[4], a1[4];
    nibbles_of<FMT>(a0, c.x, c.y);
    nibbles_of<FMT>(a1, c.z, c.w);
    mma_bytes<32>(e, a0, b0);
    mma_bytes_on(e, a1, b1);
    if (FMT == INFER_FMT_Q4_1) {
        const float sum = l % 2 ? 0.0f : ((const float *)x.sum)[b + t / 2]; /* once */
        two_floats(m, INFER_FMT_F16, v);
        least[0] = sum * v[0], least[1] = sum * v[1];
    }
    two_floats(s, INFER_FMT_F16, v);
    const float y[2] = {both_bytes(e) * v[0], both_bytes(e + 2) * v[1]};
    blocks_end(d, y, least, x.scale[b / 8]);
}

/* 256 elements: as step_q4_k, a lane has every other block. */
DEV void alone_q4_k(const uchar *w, const x_alone &x, int b, float d[4])
{
    const int l = (int)threadIdx.x % 32, g = l / 4, t = l % 4;
    const uint32_t mine = 0x4440u | (uint32_t)(t / 2 * 2); /* that byte, above it zeros */
    const uchar *xl = x.low + b * x.low_by, *xh = x.high + b * x.high_by;
    float low[4];
    int e[4] = {0, 0, 0, 0};
    q4_k_minima(low, w, ld_u32(x.sum + b / 8 * x.sum_by));
    UNROLL
    for (int i = 0; i < 4; i++) {
        const uint4 c = ld_16(w + 512 * i + 16 * l);
        const uint2 x0 = ld_8(xl + RING_X(2 * i)), x1 = ld_8(xh + RING_X(2 * i)), s = ld_8(w + 2048 + 64 * i + 8 * g);
        const uint32_t b0[2] = {x0.x, x0.y}, b1[2] = {x1.x, x1.y};
        const int sg = (int)bytes_of(s.x, 0, mine), sh = (int)bytes_of(s.y, 0, mine);
        uint32_t a0[4], a1[4];
        int p[4];
        nibbles_of<INFER_FMT_Q4_K>(a0, c.x, c.y);
        nibbles_of<INFER_FMT_Q4_K>(a1, c.z, c.w);
        mma_bytes<32>(p, a0, b0);
        mma_bytes_on(p, a1, b1);
        e[0] += p[0] * sg, e[1] += p[1] * sg, e[2] += p[2] * sh, e[3] += p[3] * sh;
    }
    q4_k_end(d, e, low, w, x.scale[b / 8]);
}

/* 128 of 256 elements: as step_q6_k, a lane has every other 16. */
DEV void alone_q6_k(const uchar *w, const x_alone &x, int b, int part, float d[4])
{
    const int l = (int)threadIdx.x % 32, g = l / 4, half = l % 4 / 2;
    const uchar *xl = x.low + b * x.low_by, *xh = x.high + b * x.high_by;
    int e[4] = {0, 0, 0, 0};
    UNROLL
    for (int n = 0; n < 2; n++) {
        const int i = 2 * part + n;
        const uint4 c = ld_16(w + 512 * i + 16 * l), x0 = two_eights(xl + RING_X(2 * i)),
                    x1 = two_eights(xh + RING_X(2 * i));
        const uint2 high = ld_8(w + 2048 + 256 * i + 8 * l), s = ld_8(w + 3072 + 64 * i + 8 * g);
        UNROLL
        for (int j = 0; j < 2; j++) {
            const uint32_t rg = j ? c.z : c.x, rh = j ? c.w : c.y, u = j ? high.y : high.x;
            const uint32_t a[4] = {q6_k_codes(rg, u, 6, 0), q6_k_codes(rh, u, 4, 0), q6_k_codes(rg, u, 6, 1),
                                   q6_k_codes(rh, u, 4, 1)};
            const uint32_t both[2] = {j ? x0.z : x0.x, j ? x1.w : x1.y};
            const int sg = (int)(s.x << (24 - 16 * j - 8 * half)) >> 24,
                      sh = (int)(s.y << (24 - 16 * j - 8 * half)) >> 24;
            int p[4];
            mma_bytes<32>(p, a, both);
            e[0] += p[0] * sg, e[1] += p[1] * sg, e[2] += p[2] * sh, e[3] += p[3] * sh;
        }
    }
    q6_k_end(d, e, w, x.scale[b / 8]);
}

/* 256 elements: as step_u4, a lane has low nibbles or, sixteenfold, high ones: their sums of 64 by bytes are below
 * 2^29. */
DEV void alone_u4(const uchar *w, const x_alone &x, int b, float d[4])
{
    const int l = (int)threadIdx.x % 32, g = l / 4;
    const uchar *xl = x.low + b * x.low_by, *xh = x.high + b * x.high_by;
    const uint2 s = ld_8(w + 2048 + 8 * g);
    const uint32_t zeros = ld_u16(w + 2112 + 2 * g);
    float y[2] = {0, 0}, least[2] = {0, 0};
    UNROLL
    for (int i = 0; i < 2; i++) {
        int e[4] = {0, 0, 0, 0};
        UNROLL
        for (int j = 0; j < 2; j++) {
            const uint4 c = ld_16(w + 512 * (2 * i + j) + 16 * l), x0 = two_eights(xl + RING_X(4 * i + 2 * j)),
                        x1 = two_eights(xh + RING_X(4 * i + 2 * j));
            UNROLL
            for (int k = 0; k < 2; k++) {
                const uint32_t rg = k ? c.z : c.x, rh = k ? c.w : c.y, both[2] = {k ? x0.z : x0.x, k ? x1.w : x1.y},
                               a[4] = {rg & LOW_NIBBLES, rh & LOW_NIBBLES, rg & HIGH_NIBBLES, rh & HIGH_NIBBLES};
                mma_bytes_on<true>(e, a, both);
            }
        }
        u4_group(y, least, e, i, s, zeros, x.sum + 4 * b, l % 4 == 0);
    }
    blocks_end(d, y, least, x.scale[b / 8]);
}

template <int FMT> DEV void step_alone(const uchar *w, const x_alone &x, int b, int part, float d[4])
{
    if (FMT == INFER_FMT_Q4_K)
        alone_q4_k(w, x, b, d);
    else if (FMT == INFER_FMT_Q6_K)
        alone_q6_k(w, x, b, part, d);
    else if (FMT == INFER_FMT_U4)
        alone_u4(w, x, b, d);
    else
        alone_blocks<FMT>(w, x, b, d);
}

#endif
#endif
