/* A row of x into shared memory for ring.cu: by an RMS norm's weights where it has one, then in the form of the format
 * (ring_step.cuh), by 16 waves. SPDX-License-Identifier: Apache-2.0 */
#ifndef RING_X_CUH
#define RING_X_CUH

#include "ring_step.cuh"

#if defined(ASYNC) && WAVE == 32

#define ADDERS (RING_WAVES * 32)
#define X_HELD 4 /* times eight elements that a thread keeps */

/* A lane has eight elements of 32, the fragments' pairs: where pair i begins. */
template <int FMT> DEV int pair_at(int t, int i)
{
    return FMT == INFER_FMT_F8_E4M3 ? 16 * (i / 2) + 4 * t + 2 * (i % 2) : 8 * i + 2 * t;
}

/* The largest of a wave. */
DEV uint32_t wave_most(uint32_t v)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    return __reduce_max_sync(0xFFFFFFFFu, v);
#else
    for (int m = 16; m > 0; m /= 2) {
        uint32_t o = wave_xor(v, m);
        v = o > v ? o : v;
    }
    return v;
#endif
}

/* a / b, to a few units in the last place, for b below 2^126. */
DEV float quotient(float a, float b)
{
#if defined(__CUDA_ARCH__)
    return __fdividef(a, b);
#else
    return a / b;
#endif
}

DEV int nearest(float v)
{
#if defined(__CUDA_ARCH__)
    return __float2int_rn(v);
#else
    return (int)rintf(v);
#endif
}

/* Finite magnitudes and squares of what a thread has of a row. */
struct x_stat {
    float most, squares;
};

DEV void x_count(float v[8], x_stat &stat, const float f[8], bool by_norm, float offset)
{
    UNROLL
    for (int i = 0; i < 8; i++) {
        stat.squares = fmaf(v[i], v[i], stat.squares);
        if (by_norm)
            v[i] *= f[i] + offset;
        float m = fabsf(v[i]);
        stat.most = m < 3.4028235e38f ? fmaxf(stat.most, m) : stat.most;
    }
}

/* The power of two that brings v near 2^13, its inverse a float too. */
DEV float scale_for(float v)
{
    int e = (int)(bits_of(v) >> 23 & 255u); /* 2^(e - 127) <= v */
    int s = e ? 127 + 13 - (e - 127) : 127;
    return float_of((uint32_t)(s < 230 ? s : 230) << 23);
}

/* By what x is to be multiplied for its planes, and (by) sums after it. part: 2 RING_WAVES floats. Codes have scales of
 * their own and want the norm's factor at most. */
template <int FMT> DEV float x_scale(x_stat &stat, float *part, const lp_ring &p, float *by)
{
    enum { ONE_SCALE = ring_of<FMT>::ONE_SCALE };
    float scale = 1, inv = 1;
    if (ONE_SCALE || p.has_norm) {
        const int wave = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
        for (int m = 16; m > 0; m >>= 1) {
            stat.most = fmaxf(stat.most, wave_xor(stat.most, m));
            stat.squares += wave_xor(stat.squares, m);
        }
        if (lane == 0) {
            part[wave] = stat.most;
            part[RING_WAVES + wave] = stat.squares;
        }
        part_sync(1, ADDERS);
        stat.most = part[lane % RING_WAVES];
        stat.squares = part[RING_WAVES + lane % RING_WAVES];
        for (int m = RING_WAVES / 2; m > 0; m >>= 1) {
            stat.most = fmaxf(stat.most, wave_xor(stat.most, m));
            stat.squares += wave_xor(stat.squares, m);
        }
        if (p.has_norm)
            inv = 1.0f / sqrtf(stat.squares / (float)p.k + p.eps);
        if (ONE_SCALE)
            scale = scale_for(stat.most);
    }
    *by = inv / scale;
    return scale;
}

/* A lane's elements of block b, times `by`, as pairs of two planes. Whole waves call it; there: the block is the row's.
 */
template <int FMT> DEV void x_planes(uchar *to, const float v[8], int b, bool there, float by)
{
    const int act = ring_of<FMT>::ACT, t = (int)threadIdx.x % 4;
    uint32_t hi[4], lo[4];
    UNROLL
    for (int i = 0; i < 4; i++) {
        float x0 = v[2 * i] * by, x1 = v[2 * i + 1] * by, h[2];
        hi[i] = pack_two(x0, x1, act);
        two_floats(hi[i], act, h);
        lo[i] =
            pack_two(x0 == h[0] ? 0.0f : x0 - h[0], x1 == h[1] ? 0.0f : x1 - h[1], act); /* an infinity leaves none */
    }
    if (there) {
        st_16(to + RING_X(b) + 16 * t, hi[0], hi[1], hi[2], hi[3]);
        st_16(to + RING_X(b) + 64 + 16 * t, lo[0], lo[1], lo[2], lo[3]);
    }
}

#define X_MOST 0x7E000000 /* 126 times 2^24: bytes have signs */

/* Byte i of four numbers, in order. */
DEV uint32_t four_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d, int i)
{
    const uint32_t both = 0x0040u + 0x0011u * (uint32_t)i;
    return bytes_of(bytes_of(a, b, both), bytes_of(c, d, both), 0x5410u);
}

/* The same as four planes of bytes, each with its sign, the highest first: a wave has 256 elements, which have one
 * scale. An infinity or what is no number becomes the scale, so that it shows. */
template <int FMT> DEV void x_bytes(uchar *to, int blocks, const float v[8], int b, bool there)
{
    const int t = (int)threadIdx.x % 4;
    const uint32_t infinity = 0x7F800000u;
    uint32_t most = 0, q[8];
    float sum = 0;
    UNROLL
    for (int i = 0; i < 8; i++) {
        const uint32_t m = bits_of(v[i]) & 0x7FFFFFFFu;
        most = m > most ? m : most;
    }
    most = wave_most(most);
    float scale = float_of(most);
    if (most < infinity) {
        scale = fmaxf(scale, 1e-28f);
        const float by = quotient(0.25f * X_MOST, 0.25f * scale);
        UNROLL
        for (int i = 0; i < 8; i++)
            q[i] = (uint32_t)nearest(v[i] * by);
    } else {
        for (int i = 0; i < 8; i++)
            q[i] = bits_of(v[i]) == infinity ? X_MOST : bits_of(v[i]) == (infinity | 0x80000000u) ? -X_MOST : 0;
    }
    if (FMT == INFER_FMT_Q4_K || FMT == INFER_FMT_Q4_1 || FMT == INFER_FMT_U4) {
        UNROLL
        for (int i = 0; i < 8; i++)
            sum += (float)(int)q[i];
        sum += wave_xor(sum, 1);
        sum += wave_xor(sum, 2);
        sum *= 1.0f / 65536; /* as the two higher bytes count */
    }
    if (!there)
        return;
    scale *= 1.0f / X_MOST / RING_CODE_UNIT(FMT);
    uchar *sums = to + RING_X(blocks);
    if (t == 0 && FMT == INFER_FMT_Q4_K) { /* of 256 elements eight, f16, and what that left; times 2^-6 */
        uint16_t *pair = (uint16_t *)sums + b / 8 * 16 + b % 8;
        sum *= 0.015625f;
        pair[0] = float_to_half(sum);
        pair[8] = float_to_half(sum - half_to_float(pair[0]));
    } else if (t == 0 && (FMT == INFER_FMT_Q4_1 || FMT == INFER_FMT_U4)) {
        ((float *)sums)[b] = sum * scale;
    }
    if (threadIdx.x % 32 == 0)
        ((float *)(to + RING_SCALES(blocks)))[b / 8] = scale;
    UNROLL
    for (int i = 0; i < 8; i++)
        q[i] = (q[i] + 0x00808080u) ^ 0x00808080u;
    to += RING_X(b / 2 * 2) + 16 * t + b % 2 * 8;
    UNROLL
    for (int plane = 0; plane < 4; plane++) {
        uint2 u;
        if (FMT == INFER_FMT_Q8_0) {
            u.x = four_bytes(q[0], q[1], q[2], q[3], 3 - plane);
            u.y = four_bytes(q[4], q[5], q[6], q[7], 3 - plane);
        } else { /* as nibbles lie in a word */
            u.x = four_bytes(q[0], q[2], q[1], q[3], 3 - plane);
            u.y = four_bytes(q[4], q[6], q[5], q[7], 3 - plane);
        }
        *(uint2 *)(to + 64 * plane) = u;
    }
}

/* Any row, any length: read twice, once for codes. */
template <int FMT>
NOT_INLINED float x_row_any(uchar *to, float *part, const uchar *row, const uchar *norm, const lp_ring &p, int blocks)
{
    x_stat stat = {0, 0};
    float by = 1, scale = 1;
    const int t = (int)threadIdx.x % 4, codes = ring_of<FMT>::CODES;
    for (int turn = 0; turn < 2; turn++) {
        for (int b0 = 0; b0 < blocks && !(turn && codes); b0 += ADDERS / 4) {
            const int b = b0 + (int)threadIdx.x / 4;
            float v[8], f[8];
            for (int i = 0; i < 8; i++) {
                int e = 32 * b + pair_at<FMT>(t, i / 2) + i % 2;
                v[i] = e < p.k ? ld(row, p.x.fmt, e) : 0.0f;
                f[i] = e < p.k && p.norm.fmt ? ld(norm, p.norm.fmt, e) : 0.0f;
            }
            x_count(v, stat, f, p.norm.fmt != 0, p.offset);
            if (codes)
                x_bytes<FMT>(to, blocks, v, b, b < blocks);
            else if (turn)
                x_planes<FMT>(to, v, b, b < blocks, scale);
        }
        if (!turn)
            scale = x_scale<FMT>(stat, part, p, &by);
    }
    return by;
}

/* A row of x into shared memory; what its sums are to be multiplied by. */
template <int FMT>
DEV float x_row(uchar *to, float *part, const uchar *row, const uchar *norm, const lp_ring &p, int blocks)
{
    if (p.x.fmt != INFER_FMT_F32 || p.k % 32 || blocks > X_HELD * ADDERS / 4 || !is_aligned(row, 16) ||
        (p.norm.fmt && (p.norm.fmt != INFER_FMT_F32 || !is_aligned(norm, 16))))
        return x_row_any<FMT>(to, part, row, norm, p, blocks);
    const int t = (int)threadIdx.x % 4, b0 = (int)threadIdx.x / 4, had = p.k / 32;
    float v[X_HELD][8] = {}, by;
    x_stat stat = {0, 0};
    UNROLL
    for (int i = 0; i < X_HELD; i++) {
        const int b = b0 + i * (ADDERS / 4);
        if (b < had) {
            UNROLL
            for (int j = 0; j < 4; j++) {
                uint2 two = ld_8((const float *)row + 32 * b + pair_at<FMT>(t, j));
                v[i][2 * j] = float_of(two.x), v[i][2 * j + 1] = float_of(two.y);
            }
        }
    }
    UNROLL
    for (int i = 0; i < X_HELD; i++) {
        const int b = b0 + i * (ADDERS / 4);
        if (i && i * (ADDERS / 4) >= had)
            break;
        float f[8];
        if (p.norm.fmt && b < had) {
            UNROLL
            for (int j = 0; j < 4; j++) {
                uint2 two = ld_8((const float *)norm + 32 * b + pair_at<FMT>(t, j));
                f[2 * j] = float_of(two.x), f[2 * j + 1] = float_of(two.y);
            }
        }
        if (ring_of<FMT>::ONE_SCALE || p.has_norm)
            x_count(v[i], stat, f, p.norm.fmt != 0 && b < had, p.offset);
    }
    const float scale = ring_of<FMT>::CODES ? 1.0f : x_scale<FMT>(stat, part, p, &by);
    UNROLL
    for (int i = 0; i < X_HELD; i++) {
        const int b = b0 + i * (ADDERS / 4);
        if (i && i * (ADDERS / 4) >= blocks)
            break;
        if (ring_of<FMT>::CODES)
            x_bytes<FMT>(to, blocks, v[i], b, b < blocks);
        else
            x_planes<FMT>(to, v[i], b, b < blocks, scale);
    }
    if (ring_of<FMT>::CODES)
        (void)x_scale<FMT>(stat, part, p, &by);
    return by;
}

#endif
#endif
