/* A row of x into shared memory for ring.cu: by an RMS norm's weights where it has one, then in the form of the format
 * (ring_step.cuh), by 16 waves. SPDX-License-Identifier: Apache-2.0 */
#ifndef RING_X_CUH
#define RING_X_CUH

#include "ring_step.cuh"

#if defined(ASYNC) && WAVE == 32

#define ADDERS (RING_WAVES * 32)
#define X_HELD 4 /* times eight elements that a thread keeps, where a row has one scale */

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

/* What waves leave of a row: RING_WAVES each. */
struct x_part {
    float *squares, *most;
};

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

/* A row's sum of squares, of which each wave leaves its own; x_norm_factor joins them when they are needed. */
DEV void x_squares(float *part, float squares)
{
    squares = wave_sum(squares);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = squares;
}

/* What the norm multiplies a row by. Whole waves call it. */
DEV float x_norm_factor(const float *part, const lp_ring &p)
{
    float squares = part[threadIdx.x % RING_WAVES];
    for (int m = RING_WAVES / 2; m > 0; m >>= 1)
        squares += wave_xor(squares, m);
    return 1.0f / sqrtf(squares / (float)p.k + p.eps);
}

/* By what a row is to be multiplied for its planes of f16. */
DEV float x_scale(float *part, float most)
{
    most = wave_max(most);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = most;
    part_sync(1, ADDERS);
    most = part[threadIdx.x % RING_WAVES];
    for (int m = RING_WAVES / 2; m > 0; m >>= 1)
        most = fmaxf(most, wave_xor(most, m));
    return scale_for(most);
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
 * scale. An infinity or what is no number becomes the scale, so that it shows. alone: as ring_alone.cuh reads them. */
template <int FMT> DEV void x_bytes(uchar *to, int blocks, const float v[8], int b, bool there, bool alone)
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
    to += alone ? RING_X(b) + 8 * t : RING_X(b / 2 * 2) + 16 * t + b % 2 * 8;
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
        *(uint2 *)(to + (alone ? 32 : 64) * plane) = u;
    }
}

/* Any row, any length: read twice where a row has one scale. */
template <int FMT>
NOT_INLINED float x_row_any(uchar *to, const x_part &part, const uchar *row, const uchar *norm, const lp_ring &p,
                            int blocks)
{
    typedef ring_of<FMT> F;
    x_stat stat = {0, 0};
    float scale = 1;
    const int t = (int)threadIdx.x % 4;
    for (int turn = F::ONE_SCALE ? 0 : 1; turn < 2; turn++) {
        stat.squares = 0;
        for (int b0 = 0; b0 < blocks; b0 += ADDERS / 4) {
            const int b = b0 + (int)threadIdx.x / 4;
            float v[8], f[8];
            for (int i = 0; i < 8; i++) {
                int e = 32 * b + pair_at<FMT>(t, i / 2) + i % 2;
                v[i] = e < p.k ? ld(row, p.x.fmt, e) : 0.0f;
                f[i] = e < p.k && p.norm.fmt ? ld(norm, p.norm.fmt, e) : 0.0f;
            }
            x_count(v, stat, f, p.norm.fmt != 0, p.offset);
            if (F::CODES)
                x_bytes<FMT>(to, blocks, v, b, b < blocks, is_alone<FMT>(p));
            else if (turn)
                x_planes<FMT>(to, v, b, b < blocks, scale);
        }
        if (!turn)
            scale = x_scale(part.most, stat.most);
    }
    x_squares(part.squares, stat.squares);
    return 1.0f / scale;
}

/* Eight elements of a line of floats: a norm's weights for a thread come while x is not there yet. */
struct x_eight {
    float v[8];
};

/* Floats, at a multiple of 16 bytes. */
DEV bool in_lines(const lp_line &l, const uchar *at)
{
    return l.fmt == INFER_FMT_F32 && is_aligned(at, 16);
}

template <int FMT> DEV void eight_ld(float f[8], const uchar *line, int b)
{
    UNROLL
    for (int j = 0; j < 4; j++) {
        uint2 two = ld_8((const float *)line + 32 * b + pair_at<FMT>((int)threadIdx.x % 4, j));
        f[2 * j] = float_of(two.x), f[2 * j + 1] = float_of(two.y);
    }
}

/* A row in lines, for planes that want no scale: once through. Few instructions: they are fetched anew each time. */
template <int FMT>
DEV void x_row_once(uchar *to, float *part, const uchar *row, const uchar *norm, const lp_ring &p, int blocks,
                    x_eight f)
{
    const int had = p.k / 32;
    int b = (int)threadIdx.x / 4;
    float v[8] = {}, squares = 0;
    if (b < had)
        eight_ld<FMT>(v, row, b);
    NO_UNROLL
    for (int base = 0; base < blocks; base += ADDERS / 4) {
        const int next = b + ADDERS / 4;
        float x[8], g[8];
        UNROLL
        for (int i = 0; i < 8; i++) {
            x[i] = v[i], g[i] = f.v[i];
            v[i] = 0;
        }
        if (next < had) {
            eight_ld<FMT>(v, row, next);
            if (p.norm.fmt)
                eight_ld<FMT>(f.v, norm, next);
        }
        if (p.has_norm) {
            UNROLL
            for (int i = 0; i < 8; i++) {
                squares = fmaf(x[i], x[i], squares);
                x[i] = p.norm.fmt ? x[i] * (g[i] + p.offset) : x[i];
            }
        }
        if (ring_of<FMT>::CODES)
            x_bytes<FMT>(to, blocks, x, b, b < blocks, is_alone<FMT>(p));
        else
            x_planes<FMT>(to, x, b, b < blocks, 1);
        b = next;
    }
    if (p.has_norm)
        x_squares(part, squares);
}

/* A row in lines of at most X_HELD * ADDERS / 4 blocks, for planes of f16. */
template <int FMT>
DEV float x_row_scaled(uchar *to, const x_part &part, const uchar *row, const uchar *norm, const lp_ring &p, int blocks,
                       const x_eight &first)
{
    const int b0 = (int)threadIdx.x / 4, had = p.k / 32;
    float v[X_HELD][8] = {};
    x_stat stat = {0, 0};
    UNROLL
    for (int i = 0; i < X_HELD; i++)
        if (b0 + i * (ADDERS / 4) < had)
            eight_ld<FMT>(v[i], row, b0 + i * (ADDERS / 4));
    UNROLL
    for (int i = 0; i < X_HELD; i++) {
        const int b = b0 + i * (ADDERS / 4);
        if (i && i * (ADDERS / 4) >= had)
            break;
        float f[8];
        UNROLL
        for (int j = 0; j < 8; j++)
            f[j] = first.v[j];
        if (i && p.norm.fmt && b < had)
            eight_ld<FMT>(f, norm, b);
        x_count(v[i], stat, f, p.norm.fmt != 0 && b < had, p.offset);
    }
    const float scale = x_scale(part.most, stat.most);
    UNROLL
    for (int i = 0; i < X_HELD; i++) {
        const int b = b0 + i * (ADDERS / 4);
        if (i && i * (ADDERS / 4) >= blocks)
            break;
        x_planes<FMT>(to, v[i], b, b < blocks, scale);
    }
    if (p.has_norm)
        x_squares(part.squares, stat.squares);
    return 1.0f / scale;
}

/* A row of x into shared memory; what its sums are to be multiplied by, but for the norm's factor. first: of the norm's
 * weights, where they are in lines. */
template <int FMT>
DEV float x_row(uchar *to, const x_part &part, const uchar *row, const uchar *norm, const lp_ring &p, int blocks,
                const x_eight &first)
{
    typedef ring_of<FMT> F;
    if (!in_lines(p.x, row) || p.k % 32 || (F::ONE_SCALE && blocks > X_HELD * ADDERS / 4) ||
        (p.norm.fmt && !in_lines(p.norm, norm)))
        return x_row_any<FMT>(to, part, row, norm, p, blocks);
    if (F::ONE_SCALE)
        return x_row_scaled<FMT>(to, part, row, norm, p, blocks, first);
    x_row_once<FMT>(to, part.squares, row, norm, p, blocks, first);
    return 1;
}

#endif
#endif
