/* y = x W^T for up to 4 rows at a time by packed weights (packed.h): bound by reading W. A block walks panels of 16
 * columns. One wave has weights copied into a ring in shared memory and waits for nothing but room, also not for the
 * kernel before: while that ends and while x is made ready, the ring fills. Sixteen waves add, a step of K each,
 * through matrix units; two waves join sums and put them to their places.
 *
 * A row of x is two columns of the fragment: x rounded to 16 bits, and what that left off, so that all of its bits that
 * matter count; by integer codes and f16, x is f16 times a power of two of the row. A row's sums do not depend on its
 * company. Before it x may pass an RMS norm.
 *
 * What a launch runs for the first time it fetches from memory, behind the copies: at one row, few instructions before
 * the first sum are as good as few bytes. So a kernel is one format's, and x in whole lines has a way of its own.
 *
 * ring_F   arguments: x; weights; biases or the first's bias and epilogue operands; outputs; norm's weights; counts.
 *   block  RING_THREADS
 *   grid   x walks panels: as many blocks as are resident together
 *   shared RING_FIXED + held * (RING_SUMS + RING_SIZE) + slots * RING_STEPS * step
 * SPDX-License-Identifier: Apache-2.0 */
#include "async.cuh"
#include "packed.cuh"
#include "product.cuh"

#include "../ring.h"

#if defined(ASYNC) && WAVE == 32

/* ---- Formats ------------------------------------------------------------------------------------------------------
 */

template <int FMT> struct ring_of {
    enum {
        BYTES = packed_of<FMT>::BYTES,
        K32 = packed_of<FMT>::UNIT / 32,
        PARTS = RING_PARTS(BYTES),
        STEPS = RING_STEPS(BYTES),
        ACT = FMT == INFER_FMT_BF16 ? INFER_FMT_BF16 : INFER_FMT_F16
    };
};

/* What a lane reads of x. */
struct x_place {
    const uchar *x, *sum; /* its 16 bytes of the first 32 elements, its sums */
    int have;
};

DEV uint4 x_32(const x_place &x, int b)
{
    const uint4 none = {0, 0, 0, 0};
    return x.have ? ld_16(x.x + RING_X(b)) : none;
}

/* first: d is made, not added to. */
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

/* Adds a step's products, or a part's, to d; b: its first block of 32 elements of x. */
template <int FMT> DEV void step(const uchar *w, const x_place &x, int b, int part, float d[4])
{
    const int l = (int)threadIdx.x % 32, g = l / 4;
    if (FMT == INFER_FMT_BF16 || FMT == INFER_FMT_F16) {
        const uchar *row = w + l / 8 % 2 * 1024 + l % 8 * 128;
        uint32_t a[2][8];
        float t[4];
        UNROLL
        for (int i = 0; i < 4; i++)
            ldmatrix_4(a[i / 2] + i % 2 * 4, row + ((2 * i + l / 16) ^ l % 8) * 16);
        uint4 x0 = x_32(x, b), x1 = x_32(x, b + 1);
        mma_32<ring_of<FMT>::ACT>(d, a[0], x0);
        mma_32<ring_of<FMT>::ACT>(t, a[1], x1, true);
        UNROLL
        for (int i = 0; i < 4; i++)
            d[i] += t[i];
        return;
    }
    if (FMT == INFER_FMT_F8_E4M3) {
        const uchar *row = w + l / 8 % 2 * 1024 + l % 8 * 128;
        UNROLL
        for (int i = 0; i < 4; i++) { /* 32 elements: two pieces of 16 */
            uint32_t r[4], a[8];
            ldmatrix_4(r, row + ((2 * i + l / 16) ^ l % 8) * 16);
            UNROLL
            for (int j = 0; j < 4; j++) { /* r: rows g and g + 8 of the first 16, then of the second */
                a[j / 2 * 4 + j % 2] = e4m3_pair(r[j]);
                a[j / 2 * 4 + j % 2 + 2] = e4m3_pair(r[j] >> 16);
            }
            mma_32<INFER_FMT_F16>(d, a, x_32(x, b + i));
        }
        return;
    }
    if (FMT == INFER_FMT_Q8_0) {
        uint2 s = ld_8(w + 1024 + 8 * g);
        UNROLL
        for (int i = 0; i < 2; i++) {
            uint4 c = ld_16(w + 512 * i + 16 * l);
            uint32_t a[8];
            float t[4], v[2];
            codes_8(c, a);
            mma_32<INFER_FMT_F16>(t, a, x_32(x, b + i), true);
            two_floats(i ? s.y : s.x, INFER_FMT_F16, v);
            d[0] = fmaf(t[0], v[0], d[0]), d[1] = fmaf(t[1], v[0], d[1]);
            d[2] = fmaf(t[2], v[1], d[2]), d[3] = fmaf(t[3], v[1], d[3]);
        }
        return;
    }
    if (FMT == INFER_FMT_Q4_0 || FMT == INFER_FMT_Q4_1) {
        uint4 c = ld_16(w + 16 * l);
        uint2 s = ld_8(w + 512 + 8 * g), m = {0, 0};
        if (FMT == INFER_FMT_Q4_1)
            m = ld_8(w + 576 + 8 * g);
        UNROLL
        for (int i = 0; i < 2; i++) {
            uint32_t a[8];
            float t[4], v[2];
            codes_4<FMT == INFER_FMT_Q4_0 ? 8 : 0>(i ? c.z : c.x, i ? c.w : c.y, a);
            mma_32<INFER_FMT_F16>(t, a, x_32(x, b + i), true);
            two_floats(i ? s.y : s.x, INFER_FMT_F16, v);
            d[0] = fmaf(t[0], v[0], d[0]), d[1] = fmaf(t[1], v[0], d[1]);
            d[2] = fmaf(t[2], v[1], d[2]), d[3] = fmaf(t[3], v[1], d[3]);
            if (FMT == INFER_FMT_Q4_1) {
                float sum = ((const float *)x.sum)[b + i];
                two_floats(i ? m.y : m.x, INFER_FMT_F16, v);
                d[0] = fmaf(sum, v[0], d[0]);
                d[2] = fmaf(sum, v[1], d[2]);
            }
        }
        return;
    }
    if (FMT ==
        INFER_FMT_Q4_K) { /* scales go into the fragment, minima are one of their own: eight by eight sums of x */
        float e[4], low[4], dm[2][2];
        const int t = l % 4;
        uint2 m = ld_8(w + 2048 + 64 * t + 8 * g), sums = {0, 0};
        frag_a<INFER_FMT_F16> fa;
        frag_b<INFER_FMT_F16> fb;
        fa.v[0] = byte_pair(m.x, 1, 3), fa.v[1] = byte_pair(m.y, 1, 3), fa.v[2] = fa.v[3] = 0;
        if (x.have)
            sums.x = ld_u32(x.sum + b / 8 * 32);
        fb.v[0] = sums.x, fb.v[1] = 0;
        mma_first(low, fa, fb);
        UNROLL
        for (int i = 0; i < 4; i++) {
            uint4 c = ld_16(w + 512 * i + 16 * l);
            uint2 s = ld_8(w + 2048 + 64 * i + 8 * g);
            UNROLL
            for (int j = 0; j < 2; j++) {
                uint32_t a[8];
                codes_4_by(j ? c.z : c.x, j ? c.w : c.y, byte_pair(s.x, 2 * j, 2 * j), byte_pair(s.y, 2 * j, 2 * j), a);
                mma_32<INFER_FMT_F16>(e, a, x_32(x, b + 2 * i + j), i + j == 0);
            }
        }
        two_floats(ld_u32(w + 2304 + 4 * g), INFER_FMT_F16, dm[0]);
        two_floats(ld_u32(w + 2304 + 4 * g + 32), INFER_FMT_F16, dm[1]);
        UNROLL
        for (int h = 0; h < 4; h++) /* sums are of 2^6 less */
            d[h] = fmaf(e[h], dm[h / 2][0], fmaf(low[h], -64.0f * dm[h / 2][1], d[h]));
        return;
    }
    if (FMT == INFER_FMT_Q6_K) {
        float e[4] = {0, 0, 0, 0};
        UNROLL
        for (int n = 0; n < 2; n++) { /* a half of the step */
            const int i = 2 * part + n;
            uint4 c = ld_16(w + 512 * i + 16 * l);
            uint2 h = ld_8(w + 2048 + 256 * i + 8 * l), s = ld_8(w + 3072 + 64 * i + 8 * g);
            UNROLL
            for (int j = 0; j < 2; j++) {
                uint32_t a[8];
                uint4 xv = x_32(x, b + 2 * i + j);
                codes_6(j ? c.z : c.x, j ? c.w : c.y, j ? h.y : h.x, a);
                UNROLL
                for (int k = 0; k < 2; k++) {
                    float t[4], s0 = signed_float(s.x, 2 * j + k), s1 = signed_float(s.y, 2 * j + k);
                    frag_a<INFER_FMT_F16> fa;
                    frag_b<INFER_FMT_F16> fb;
                    fa.v[0] = a[4 * k], fa.v[1] = a[4 * k + 1], fa.v[2] = a[4 * k + 2], fa.v[3] = a[4 * k + 3];
                    fb.v[0] = k ? xv.z : xv.x, fb.v[1] = k ? xv.w : xv.y;
                    mma_first(t, fa, fb);
                    e[0] = fmaf(t[0], s0, e[0]), e[1] = fmaf(t[1], s0, e[1]);
                    e[2] = fmaf(t[2], s1, e[2]), e[3] = fmaf(t[3], s1, e[3]);
                }
            }
        }
        float d0 = half_to_float((uint16_t)ld_u16(w + 3328 + 2 * g)),
              d1 = half_to_float((uint16_t)ld_u16(w + 3344 + 2 * g));
        d[0] = fmaf(e[0], d0, d[0]), d[1] = fmaf(e[1], d0, d[1]);
        d[2] = fmaf(e[2], d1, d[2]), d[3] = fmaf(e[3], d1, d[3]);
    }
}

/* ---- x ------------------------------------------------------------------------------------------------------------
 */

#define ADDERS (RING_WAVES * 32)
#define X_HELD 4 /* times eight elements that a thread keeps */
#define X_STEP (8 * ADDERS)

/* A lane has eight elements of 32, the fragments' pairs: where pair i begins. */
template <int FMT> DEV int pair_at(int t, int i)
{
    return FMT == INFER_FMT_F8_E4M3 ? 16 * (i / 2) + 4 * t + 2 * (i % 2) : 8 * i + 2 * t;
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

/* By what x is to be multiplied for its planes, and (by) sums after it. part: 2 RING_WAVES floats. */
template <int FMT> DEV float x_scale(x_stat &stat, float *part, const lp_ring &p, float *by)
{
    float scale = 1, inv = 1;
    if (FMT != INFER_FMT_BF16 || p.has_norm) {
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
        if (FMT != INFER_FMT_BF16)
            scale = scale_for(stat.most);
    }
    *by = inv / scale;
    return scale;
}

/* A lane's elements of block b, times `by`, as pairs of two planes. Whole waves call it; there: the block is the row's.
 */
template <int FMT> DEV void x_planes(uchar *to, uchar *sums, float v[8], int b, bool there, float by)
{
    const int act = FMT == INFER_FMT_BF16 ? INFER_FMT_BF16 : INFER_FMT_F16, t = (int)threadIdx.x % 4;
    uint32_t hi[4], lo[4];
    float sum = 0;
    UNROLL
    for (int i = 0; i < 4; i++) {
        float x0 = v[2 * i] * by, x1 = v[2 * i + 1] * by, h[2];
        sum += x0 + x1;
        hi[i] = pack_two(x0, x1, act);
        two_floats(hi[i], act, h);
        lo[i] =
            pack_two(x0 == h[0] ? 0.0f : x0 - h[0], x1 == h[1] ? 0.0f : x1 - h[1], act); /* an infinity leaves none */
    }
    if (FMT == INFER_FMT_Q4_K || FMT == INFER_FMT_Q4_1) {
        sum += wave_xor(sum, 1);
        sum += wave_xor(sum, 2);
        if (t == 0 && there && FMT == INFER_FMT_Q4_K) { /* of 256 elements eight, f16, and what that left; times 2^-6 */
            uint16_t *pair = (uint16_t *)sums + b / 8 * 16 + b % 8;
            sum *= 0.015625f;
            pair[0] = float_to_half(sum);
            pair[8] = float_to_half(sum - half_to_float(pair[0]));
        } else if (t == 0 && there) {
            ((float *)sums)[b] = sum;
        }
    }
    if (there) {
        st_16(to + RING_X(b) + 16 * t, hi[0], hi[1], hi[2], hi[3]);
        st_16(to + RING_X(b) + 64 + 16 * t, lo[0], lo[1], lo[2], lo[3]);
    }
}

/* Any row, any length: read twice. */
template <int FMT>
NOT_INLINED float x_row_any(uchar *to, float *part, const uchar *row, const uchar *norm, const lp_ring &p, int blocks)
{
    x_stat stat = {0, 0};
    float by, scale = 1;
    const int t = (int)threadIdx.x % 4;
    for (int turn = 0; turn < 2; turn++) {
        for (int b0 = 0; b0 < blocks; b0 += ADDERS / 4) {
            const int b = b0 + (int)threadIdx.x / 4;
            float v[8], f[8];
            for (int i = 0; i < 8; i++) {
                int e = 32 * b + pair_at<FMT>(t, i / 2) + i % 2;
                v[i] = e < p.k ? ld(row, p.x.fmt, e) : 0.0f;
                f[i] = e < p.k && p.norm.fmt ? ld(norm, p.norm.fmt, e) : 0.0f;
            }
            x_count(v, stat, f, p.norm.fmt != 0, p.offset);
            if (turn)
                x_planes<FMT>(to, to + RING_X(blocks), v, b, b < blocks, scale);
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
        if (FMT != INFER_FMT_BF16 || p.has_norm)
            x_count(v[i], stat, f, p.norm.fmt != 0 && b < had, p.offset);
    }
    const float scale = x_scale<FMT>(stat, part, p, &by);
    UNROLL
    for (int i = 0; i < X_HELD; i++) {
        if (i && i * (ADDERS / 4) >= blocks)
            break;
        x_planes<FMT>(to, to + RING_X(blocks), v[i], b0 + i * (ADDERS / 4), b0 + i * (ADDERS / 4) < blocks, scale);
    }
    return by;
}

/* ---- The kernel ---------------------------------------------------------------------------------------------------
 */

DEV int panels_of(int n)
{
    return (n + PACKED_ROWS - 1) / PACKED_ROWS;
}

/* The weight and panel that unit u, part h is. */
DEV int weight_of(const lp_ring &p, int u, int h, int *panel)
{
    *panel = u;
    if (p.kind != RING_SIDE)
        return h;
    int first = panels_of(p.n[0]), second = panels_of(p.n[1]);
    if (u < first)
        return 0;
    *panel = u - first < second ? u - first : u - first - second;
    return u - first < second ? 1 : 2;
}

struct ring_args {
    const uchar *x, *w[3], *b[5], *norm, *counts;
    uchar *y[3];
};

/* What the waves of a block share. */
struct ring_block {
    mbar *full, *empty, *sums_full, *sums_empty;
    float *part, *sums; /* sums: [slot][wave][row of x][16] */
    uchar *x, *slots;
    int held, units, parts, steps; /* rows of x that there is room for; units: a panel, or gate's and up's */
};

/* Scale, bias and epilogue on a sum. */
DEV float ring_finish(const lp_ring &p, float v, float bias, const float e[LP_MAX_EPI])
{
    v = mul(v, p.scale);
    if (p.b[0].fmt)
        v = add(v, bias);
    UNROLL
    for (int s = 0; s < LP_MAX_EPI; s++) {
        if (s >= p.n_epi)
            break;
        v = epi_step(p.epi_kind[s], p.epi_arg[s], p.epi_factor[s], v, e[s]);
    }
    return v;
}

/* Nobody takes what was copied, but a block may not end before it is there: the first n slots. */
DEV void copies_end(const ring_block &b, int n)
{
    for (int i = 0; i < n; i++)
        mbar_wait(b.full + i, 0);
}

template <int FMT> DEV void copier(const ring_block &b, const ring_args &a, const lp_ring &p)
{
    typedef ring_of<FMT> F;
    int s = 0, turn = 1, rows = -1, first = p.slots;
    for (int r0 = 0; r0 == 0 || r0 < rows; r0 += b.held) {
        for (int u = (int)blockIdx.x; u < b.units; u += (int)gridDim.x)
            for (int h = 0; h < b.parts; h++) {
                int panel, i = weight_of(p, u, h, &panel);
                const uchar *w = third(i, a.w[0], a.w[1], a.w[2]) + third(i, p.w_off[0], p.w_off[1], p.w_off[2]) +
                                 (int64_t)panel * b.steps * F::BYTES;
                for (int k = 0; k < b.steps; k += F::STEPS) {
                    int n = (b.steps - k < F::STEPS ? b.steps - k : F::STEPS) * F::BYTES;
                    if (first-- == 0) { /* the ring is full: now there is time to ask */
                        rows = rows_of(a.counts, p.rows);
                        if (rows <= 0)
                            return copies_end(b, p.slots);
                    }
                    mbar_wait(b.empty + s, turn);
                    mbar_expect(b.full + s, n);
                    bulk_copy(b.slots + s * F::STEPS * F::BYTES, w + k * F::BYTES, n, b.full + s, true);
                    if (++s == p.slots) {
                        s = 0;
                        turn ^= 1;
                    }
                }
            }
        if (rows < 0) {
            rows = rows_of(a.counts, p.rows);
            if (rows <= 0)
                return copies_end(b, p.slots - first);
        }
    }
}

/* Puts sums to their places: every RING_ENDS-th unit. A lane has a row of x and a column, in two turns where there are
 * more than two rows. */
DEV void ender(const ring_block &b, const ring_args &a, const lp_ring &p, int me)
{
    const int lane = (int)threadIdx.x % 32, rows = rows_of(a.counts, p.rows);
    int turn = 0, count = 0;
    grid_wait();
    for (int r0 = 0; r0 < rows; r0 += b.held)
        for (int u = (int)blockIdx.x; u < b.units; u += (int)gridDim.x) {
            if (count++ % RING_ENDS != me)
                continue;
            float gate0 = 0, gate1 = 0;
            for (int h = 0; h < b.parts; h++) {
                int panel, i = weight_of(p, u, h, &panel), slot = 2 * me + h;
                const float *from = b.sums + slot * (RING_WAVES * 16) * b.held + lane;
                const int col = panel * PACKED_ROWS + lane % 16;
                const bool column = col < p.n[i];
                for (int k = 0; k < b.held; k += 2) {
                    const int r = r0 + k + lane / 16;
                    const bool there = column && k + lane / 16 < b.held && r < rows;
                    float bias = 0, e[LP_MAX_EPI] = {}, v = 0;
                    if (there && p.kind != RING_GLU) { /* before the sums are there */
                        if (p.b[i].fmt)
                            bias = ld(third(i, a.b[0], a.b[1], a.b[2]) + p.b[i].off, p.b[i].fmt, col);
                        if (p.kind == RING_ONE) {
                            UNROLL
                            for (int s = 0; s < LP_MAX_EPI; s++)
                                if (s < p.n_epi && p.b[1 + s].fmt)
                                    e[s] = ld(a.b[1 + s] + p.b[1 + s].off + r * p.b[1 + s].step, p.b[1 + s].fmt, col);
                        }
                    }
                    if (k == 0)
                        mbar_wait(b.sums_full + slot, turn);
                    if (!there)
                        continue;
                    UNROLL
                    for (int w = 0; w < RING_WAVES; w++)
                        v += from[w * 16 * b.held + 16 * k];
                    if (p.kind == RING_GLU && h == 0) {
                        gate0 = k ? gate0 : v;
                        gate1 = k ? v : gate1;
                        continue;
                    }
                    v = p.kind == RING_GLU   ? gated(p.act, p.limit, k ? gate1 : gate0, 1, v)
                        : p.kind == RING_ONE ? ring_finish(p, v, bias, e)
                                             : add(v, bias);
                    const int out = p.kind == RING_GLU ? 0 : i;
                    st(third(out, a.y[0], a.y[1], a.y[2]) + p.y[out].off + r * p.y[out].step, p.y[out].fmt, col, v);
                }
                wave_sync();
                if (lane == 0)
                    mbar_arrive(b.sums_empty + slot);
            }
            turn ^= 1;
        }
}

template <int FMT> DEV void adder(const ring_block &b, const ring_args &a, const lp_ring &p)
{
    typedef ring_of<FMT> F;
    const int wave = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int blocks = b.steps * F::K32, size = RING_SIZE(blocks), rows = rows_of(a.counts, p.rows);
    float *scales = b.part + 4 * RING_WAVES;
    int slot = 0, turn = 0, sums = 0, sums_turn = 1;
    grid_wait();
    for (int r0 = 0; r0 < rows; r0 += b.held) {
        const int n_rows = rows - r0 < b.held ? rows - r0 : b.held;
        if (r0)
            part_sync(1, ADDERS); /* nobody reads x of before */
        for (int r = 0; r < n_rows; r++) {
            float by = x_row<FMT>(b.x + r * size, b.part + r % 2 * 2 * RING_WAVES, a.x + p.x.off + (r0 + r) * p.x.step,
                                  a.norm + p.norm.off, p, blocks);
            if (threadIdx.x == 0)
                scales[r] = by;
        }
        part_sync(1, ADDERS);
        const x_place x = {
            b.x + g / 2 * size + g % 2 * 64 + t * 16,
            b.x + RING_X(blocks) +
                (FMT == INFER_FMT_Q4_K ? g / 2 * size + g % 2 * 16 + t * 4 : (t < n_rows ? t : 0) * size),
            g / 2 < n_rows};
        const float by = t < n_rows ? scales[t] : 0.0f;
        for (int u = (int)blockIdx.x; u < b.units; u += (int)gridDim.x) {
            for (int h = 0; h < b.parts; h++) {
                float d[4] = {0, 0, 0, 0};
                for (int k = 0; k < b.steps; k += F::STEPS) {
                    const int n = (b.steps - k < F::STEPS ? b.steps - k : F::STEPS) * F::PARTS;
                    mbar_wait(b.full + slot, turn);
                    for (int i = wave; i < n; i += RING_WAVES)
                        step<FMT>(b.slots + slot * F::STEPS * F::BYTES + i / F::PARTS * F::BYTES, x,
                                  (k + i / F::PARTS) * F::K32, i % F::PARTS, d);
                    wave_sync();
                    if (lane == 0)
                        mbar_arrive(b.empty + slot);
                    if (++slot == p.slots) {
                        slot = 0;
                        turn ^= 1;
                    }
                }
                mbar_wait(b.sums_empty + 2 * sums + h, sums_turn);
                if (t < b.held) {
                    float *to = b.sums + ((2 * sums + h) * RING_WAVES + wave) * 16 * b.held + t * 16 + g;
                    to[0] = (d[0] + d[1]) * by;
                    to[8] = (d[2] + d[3]) * by;
                }
                wave_sync();
                if (lane == 0)
                    mbar_arrive(b.sums_full + 2 * sums + h);
            }
            if (++sums == RING_ENDS) {
                sums = 0;
                sums_turn ^= 1;
            }
        }
    }
}

template <int FMT> DEV void ring(const ring_args &a, const lp_ring &p)
{
    typedef ring_of<FMT> F;
    SHARED_DYN(mem);
    const int wave = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    ring_block b;
    b.full = (mbar *)mem;
    b.empty = b.full + RING_SLOTS;
    b.sums_full = b.empty + RING_SLOTS;
    b.sums_empty = b.sums_full + 2 * RING_ENDS;
    b.part = (float *)(mem + 512);
    b.sums = (float *)(mem + RING_FIXED);
    b.held = p.held;
    b.units = panels_of(p.n[0]) + (p.kind == RING_SIDE ? panels_of(p.n[1]) + panels_of(p.n[2]) : 0);
    b.parts = p.kind == RING_GLU ? 2 : 1;
    b.steps = (p.k + 32 * F::K32 - 1) / (32 * F::K32);
    b.x = mem + RING_FIXED + b.held * RING_SUMS;
    b.slots = b.x + b.held * RING_SIZE(b.steps * F::K32);
    if (wave == RING_WAVES + RING_ENDS) {
        if (lane < RING_SLOTS) {
            mbar_init(b.full + lane, 1);
            mbar_init(b.empty + lane, RING_WAVES);
        } else if (lane < RING_SLOTS + 2 * RING_ENDS) {
            mbar_init(b.sums_full + lane - RING_SLOTS, RING_WAVES);
            mbar_init(b.sums_empty + lane - RING_SLOTS, 1);
        }
        mbar_made();
    }
    __syncthreads();
    grid_go();
    if (wave < RING_WAVES)
        adder<FMT>(b, a, p);
    else if (wave < RING_WAVES + RING_ENDS)
        ender(b, a, p, wave - RING_WAVES);
    else if (lane == 0)
        copier<FMT>(b, a, p);
}

#define RING(F, ID)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(RING_THREADS, 1)                                                      \
        ring_##F(const uchar *x, const uchar *w0, const uchar *w1, const uchar *w2, const uchar *b0, const uchar *b1,  \
                 const uchar *b2, const uchar *b3, const uchar *b4, uchar *y0, uchar *y1, uchar *y2,                   \
                 const uchar *norm, const uchar *counts, GRID_CONSTANT const lp_ring p)                                \
    {                                                                                                                  \
        ring_args a = {x, {w0, w1, w2}, {b0, b1, b2, b3, b4}, norm, counts, {y0, y1, y2}};                             \
        ring<INFER_FMT_##ID>(a, p);                                                                                    \
    }
RING(bf16, BF16)
RING(f16, F16)
RING(e4m3, F8_E4M3)
RING(q8_0, Q8_0)
RING(q4_0, Q4_0)
RING(q4_1, Q4_1)
RING(q4_k, Q4_K)
RING(q6_k, Q6_K)

#endif
