/* Reductions over a vector by one block of whole waves: norms, softmax, arg-max. Grid: x, a block a vector. The block's
 * size may depend on the vector's width only, as it decides the order of sums: 16 elements a thread are kept in
 * registers (norm), longer vectors are read again. Bound by memory; at few rows by latency.
 * SPDX-License-Identifier: Apache-2.0 */
#include "async.cuh"

#define KEEP 2 /* groups of 8 that a thread keeps */

/* Group g of 8 of a vector of d, zeros past its end. */
DEV void ld_group(const uchar *x, int fmt, int g, int d, int wide, float v[8])
{
    if (8 * g + 8 <= d) {
        ld8(x, fmt, 8 * (int64_t)g, wide, v);
        return;
    }
    for (int i = 0; i < 8; i++)
        v[i] = 8 * g + i < d ? ld(x, fmt, 8 * (int64_t)g + i) : 0.0f;
}

DEV void st_group(uchar *y, int fmt, int g, int d, int wide, const float v[8])
{
    if (8 * g + 8 <= d) {
        st8(y, fmt, 8 * (int64_t)g, wide, v);
        return;
    }
    for (int i = 0; i < 8; i++)
        if (8 * g + i < d)
            st(y, fmt, 8 * (int64_t)g + i, v[i]);
}

/* A group of 8 from what memory has of it. */
template <int FMT> DEV void floats_of(const uint4 *u, float v[8])
{
    if (FMT == INFER_FMT_F32) {
        v[0] = float_of(u[0].x), v[1] = float_of(u[0].y), v[2] = float_of(u[0].z), v[3] = float_of(u[0].w);
        u++;
        v[4] = float_of(u->x), v[5] = float_of(u->y), v[6] = float_of(u->z), v[7] = float_of(u->w);
    } else {
        two_floats(u->x, FMT, v);
        two_floats(u->y, FMT, v + 2);
        two_floats(u->z, FMT, v + 4);
        two_floats(u->w, FMT, v + 6);
    }
}

/* What a number is after it was stored in a format. */
DEV float stored(float v, int fmt)
{
    return fmt == INFER_FMT_F32   ? v
           : fmt == INFER_FMT_F16 ? half_to_float(float_to_half(v))
                                  : bf16_to_float(float_to_bf16(v));
}

struct norm_in {
    const uchar *x, *r;
    int fmt, r_fmt, s_fmt, d, wide, r_wide;
};

/* Group g of what is normed; the sum of two operands is normed as it is stored. */
DEV void ld_normed(const norm_in &in, int g, float v[8])
{
    ld_group(in.x, in.fmt, g, in.d, in.wide, v);
    if (in.r) {
        float r[8];
        ld_group(in.r, in.r_fmt, g, in.d, in.r_wide, r);
        for (int i = 0; i < 8; i++)
            v[i] = stored(v[i] + r[i], in.s_fmt);
    }
}

/* The sum over the block, once a launch for each N: its shared memory is nobody else's. */
template <int N> DEV float sum_once(float v)
{
    SHARED(float, part, MAX_WAVES);
    int t = thread_id(), waves = block_threads() / WAVE;
    v = wave_sum(v);
    if (waves == 1)
        return v;
    if (t % WAVE == 0)
        part[t / WAVE] = v;
    __syncthreads();
    v = part[0];
    for (int i = 1; i < waves; i++)
        v += part[i];
    return v;
}

extern "C" __global__ void __launch_bounds__(1024)
    norm_rows(const uchar *x, const uchar *w, const uchar *b, uchar *y, uchar *s, const uchar *counts, const lp_norm p)
{
    int k = (int)blockIdx.x, t = (int)threadIdx.x, n = (int)blockDim.x, d = p.x.width, groups = (d + 7) / 8;
    norm_in in = {x + at(p.x, k), 0, p.x.fmt, 0, 0, d, 0, 0};
    if (p.kind == LP_NORM_ADD) {
        in.r = b + at(p.b, k);
        in.r_fmt = p.b.fmt;
        in.s_fmt = p.s.fmt;
        in.r_wide = is_aligned(in.r, 16);
        s += at(p.s, k);
    }
    in.wide = is_aligned(in.x, 16);
    y += at(p.y, k);
    w += p.w.off;
    int y_wide = is_aligned(y, 16), w_wide = is_aligned(w, 16), s_wide = is_aligned(s, 16);
    float kept[KEEP][8], f[8], v[8], mean = 0, sum = 0;
    grid_go();
    if (p.w.fmt && t < groups)
        fetch_ahead(w + 8 * (int64_t)t * plain_bytes(p.w.fmt));
    grid_wait();
    UNROLL
    for (int j = 0; j < KEEP; j++) { /* all on their way at once, the count of rows too: the memory is there */
        for (int i = 0; i < 8; i++)
            kept[j][i] = 0;
        if (t + j * n < groups) {
            ld_normed(in, t + j * n, kept[j]);
            if (j == 0 && p.w.fmt)
                ld_group(w, p.w.fmt, t, d, w_wide, f);
        }
    }
    if (k >= rows_of(counts, p.rows) * p.per_row)
        return;
    if (p.kind == LP_NORM_LAYER) {
        UNROLL
        for (int j = 0; j < KEEP; j++)
            for (int i = 0; i < 8; i++)
                sum += kept[j][i];
        for (int g = t + KEEP * n; g < groups; g += n) {
            ld_normed(in, g, v);
            for (int i = 0; i < 8; i++)
                sum += v[i];
        }
        mean = sum_once<0>(sum) / (float)d;
        sum = 0;
    }
    UNROLL
    for (int j = 0; j < KEEP; j++)
        for (int i = 0; i < 8; i++) {
            float c = 8 * (t + j * n) + i < d ? kept[j][i] - mean : 0.0f;
            sum = fmaf(c, c, sum);
        }
    for (int g = t + KEEP * n; g < groups; g += n) {
        ld_normed(in, g, v);
        for (int i = 0; i < 8; i++) {
            float c = 8 * g + i < d ? v[i] - mean : 0.0f;
            sum = fmaf(c, c, sum);
        }
    }
    float scale = 1.0f / sqrtf(sum_once<1>(sum) / (float)d + p.eps);
    UNROLL
    for (int j = 0; j < KEEP; j++)
        if (t + j * n < groups) {
            int g = t + j * n;
            float o[8];
            if (in.r)
                st_group(s, p.s.fmt, g, d, s_wide, kept[j]);
            if (j && p.w.fmt)
                ld_group(w, p.w.fmt, g, d, w_wide, f);
            for (int i = 0; i < 8; i++) {
                o[i] = mul(kept[j][i] - mean, scale);
                if (p.w.fmt)
                    o[i] = mul(o[i], add(f[i], p.offset));
            }
            if (p.kind == LP_NORM_LAYER && p.b.fmt) {
                ld_group(b + p.b.off, p.b.fmt, g, d, is_aligned(b + p.b.off, 16), v);
                for (int i = 0; i < 8; i++)
                    o[i] = add(o[i], v[i]);
            }
            st_group(y, p.y.fmt, g, d, y_wide, o);
        }
    for (int g = t + KEEP * n; g < groups; g += n) {
        ld_normed(in, g, v);
        if (in.r)
            st_group(s, p.s.fmt, g, d, s_wide, v);
        for (int i = 0; i < 8; i++) {
            if (8 * g + i >= d)
                break;
            float o = mul(v[i] - mean, scale);
            if (p.w.fmt)
                o = mul(o, add(ld(w, p.w.fmt, 8 * g + i), p.offset));
            if (p.kind == LP_NORM_LAYER && p.b.fmt)
                o = add(o, ld(b + p.b.off, p.b.fmt, 8 * g + i));
            st(y, p.y.fmt, 8 * g + i, o);
        }
    }
}

/* RMS_NORM and ADD_RMS_NORM as they mostly are: x (with r and s) in one format, weights F32, all at multiples of 16,
 * two groups of 8 a thread, the threads width / 16. One row is a matter of latency: all loads are on their way before
 * the first is used, the count of rows too, and there is little code to fetch. */
template <int FMT>
DEV void norm_quick(const uchar *x, const uchar *w, const uchar *b, uchar *y, uchar *s, const uchar *counts,
                    const lp_norm &p)
{
    SHARED(float, part, MAX_WAVES);
    const int G = 2, words = FMT == INFER_FMT_F32 ? 2 : 1, bytes = FMT == INFER_FMT_F32 ? 4 : 2;
    int k = (int)blockIdx.x, t = (int)threadIdx.x, n = (int)blockDim.x, groups = p.x.width / 8,
        both = p.kind == LP_NORM_ADD;
    const uchar *xk = x + at(p.x, k), *rk = both ? b + at(p.b, k) : xk, *wk = w + p.w.off;
    uint4 xr[G][words], rr[G][words], wr[G][2];
    float v[G][8], sum = 0;
    grid_go();
    UNROLL
    for (int j = 0; j < G; j++)
        if (t + j * n < groups)
            fetch_ahead(wk + 32 * (t + j * n));
    grid_wait();
    UNROLL
    for (int j = 0; j < G; j++) {
        int g = t + j * n < groups ? t + j * n : 0;
        UNROLL
        for (int i = 0; i < words; i++) {
            xr[j][i] = ld_16(xk + 8 * bytes * g + 16 * i);
            rr[j][i] = xr[j][i];
            if (both)
                rr[j][i] = ld_16(rk + 8 * bytes * g + 16 * i);
        }
        wr[j][0] = ld_16(wk + 32 * g);
        wr[j][1] = ld_16(wk + 32 * g + 16);
    }
    int rows = rows_of(counts, p.rows) * p.per_row;
    UNROLL
    for (int j = 0; j < G; j++) {
        floats_of<FMT>(xr[j], v[j]);
        if (both) {
            float r[8];
            floats_of<FMT>(rr[j], r);
            for (int i = 0; i < 8; i++)
                v[j][i] += r[i];
            if (FMT != INFER_FMT_F32) { /* is normed as it is stored */
                for (int i = 0; i < 4; i++)
                    two_floats(pack_two(v[j][2 * i], v[j][2 * i + 1], FMT), FMT, v[j] + 2 * i);
            }
        }
        for (int i = 0; i < 8; i++)
            sum = t + j * n < groups ? fmaf(v[j][i], v[j][i], sum) : sum;
    }
    if (k >= rows)
        return;
    sum = wave_sum(sum);
    if (t % WAVE == 0)
        part[t / WAVE] = sum;
    __syncthreads();
    sum = part[0];
    for (int i = 1; i < n / WAVE; i++)
        sum += part[i];
    float scale = 1.0f / sqrtf(sum / (float)p.x.width + p.eps);
    UNROLL
    for (int j = 0; j < G; j++) {
        int g = t + j * n;
        float f[8];
        if (g >= groups)
            break;
        if (both)
            st8(s + at(p.s, k), FMT, 8 * g, 1, v[j]);
        floats_of<INFER_FMT_F32>(wr[j], f);
        for (int i = 0; i < 8; i++)
            f[i] = mul(mul(v[j][i], scale), add(f[i], p.offset));
        st8(y + at(p.y, k), p.y.fmt, 8 * g, 1, f);
    }
}

#define NORM(name, FMT)                                                                                                \
    extern "C" __global__ void __launch_bounds__(1024)                                                                 \
        name(const uchar *x, const uchar *w, const uchar *b, uchar *y, uchar *s, const uchar *counts, const lp_norm p) \
    {                                                                                                                  \
        norm_quick<FMT>(x, w, b, y, s, counts, p);                                                                     \
    }
NORM(norm_f32, INFER_FMT_F32)
NORM(norm_bf16, INFER_FMT_BF16)

/* A row of nothing but -INFINITY gives zeros. */
extern "C" __global__ void __launch_bounds__(1024)
    softmax(const uchar *x, uchar *y, const uchar *counts, const lp_row p)
{
    int k = (int)blockIdx.x, t = (int)threadIdx.x, n = (int)blockDim.x, d = p.x.width, groups = (d + 7) / 8;
    grid_go();
    grid_wait();
    if (k >= rows_of(counts, p.rows) * p.per_row)
        return;
    x += at(p.x, k);
    y += at(p.y, k);
    int wide = is_aligned(x, 16), y_wide = is_aligned(y, 16);
    float v[8], most = -INFINITY, sum = 0;
    for (int g = t; g < groups; g += n) {
        ld_group(x, p.x.fmt, g, d, wide, v);
        for (int i = 0; i < 8; i++)
            most = 8 * g + i < d ? fmaxf(most, mul(v[i], p.scale)) : most;
    }
    most = block_max(most);
    for (int g = t; g < groups && most != -INFINITY; g += n) {
        ld_group(x, p.x.fmt, g, d, wide, v);
        for (int i = 0; i < 8; i++)
            sum += 8 * g + i < d ? expf(mul(v[i], p.scale) - most) : 0.0f;
    }
    sum = block_sum(sum);
    for (int g = t; g < groups; g += n) {
        ld_group(x, p.x.fmt, g, d, wide, v);
        for (int i = 0; i < 8; i++)
            v[i] = sum == 0 ? 0.0f : expf(mul(v[i], p.scale) - most) / sum;
        st_group(y, p.y.fmt, g, d, y_wide, v);
    }
}

extern "C" __global__ void __launch_bounds__(1024) argmax(const uchar *x, uchar *y, const uchar *counts, const lp_row p)
{
    int k = (int)blockIdx.x, t = (int)threadIdx.x, n = (int)blockDim.x, d = p.x.width, groups = (d + 7) / 8, best = -1;
    grid_go();
    grid_wait();
    if (k >= rows_of(counts, p.rows))
        return;
    x += at(p.x, k);
    float v[8], most = 0;
    int wide = is_aligned(x, 16);
    for (int g = t; g < groups; g += n) {
        ld_group(x, p.x.fmt, g, d, wide, v);
        for (int i = 0; i < 8; i++)
            if (8 * g + i < d && !isnan(v[i]))
                better(most, best, v[i], 8 * g + i);
    }
    block_best(most, best);
    if (t == 0)
        ((int *)(y + p.y.off))[k] = best;
}
