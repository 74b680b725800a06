/* y = x W^T for few rows. A wave takes C columns (or a part of K of them), neighbouring lanes neighbouring groups of 8
 * elements of a row of W, U groups of C columns under way together; x is read as float. A row's sums are in one order
 * whatever R is, so that its result does not depend on its company. Bound by reading W; from four rows on, by the
 * first-level cache (x once for each C columns).
 *
 * mvR_F     R rows of 1 2 4 8 (with ids: 1), F a format's name; arguments as the OpenCL kernels mv1 and mvr.
 * mvsR_F    several weights of one format (lp_mms): q, k, v numbered through, or gate and up with act(gate) * up.
 *   block   (WAVE, parts of K, column groups): four waves; parts of K may depend on K only: 1 below 2048, 2
 *           below 4096, else 4
 *   grid    x ceil(columns / MV_COLUMNS / blockDim.z), y rows / R (walked). Columns: n; SIDE n[0] + n[1] + n[2]; GLU
 *           2 * n[0].
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MATVEC_CUH
#define MATVEC_CUH

#include "product.cuh"

/* Columns of a wave; block: 1 for block formats, 0 for plain ones. */
#define MV_COLUMNS(block, r) ((block) && (r) <= 2 ? 4 : 2)

/* s[r][c] += x[r] . W[c] over group g. */
template <class F, int R, int C>
DEV void mac_group(const typename F::raw *raw, int g, const uchar *const *xr, int x_fmt, int x_wide, float s[R][C])
{
    float a[C][8];
    for (int c = 0; c < C; c++)
        F::unpack(raw[c], g, a[c]);
    for (int r = 0; r < R; r++) {
        float v[8];
        x4(xr[r], x_fmt, F::first(g), x_wide, v);
        x4(xr[r], x_fmt, F::second(g), x_wide, v + 4);
        for (int i = 0; i < 8; i++)
            for (int c = 0; c < C; c++)
                s[r][c] = fmaf(a[c][i], v[i], s[r][c]);
    }
}

/* This thread's share of R rows by C columns. lane of lanes: along K. */
template <class F, int R, int C>
DEV void dots(const uchar *const *row, const uchar *const *xr, int x_fmt, int k, int wide, int lane, int lanes,
              float s[R][C])
{
    const int U = R > 2 ? 1 : R == 2 || sizeof(typename F::raw) > 12 ? 2 : 4;
    int x_wide = 1, whole = F::PLAIN && !wide ? 0 : k / 8, g = lane;
    for (int r = 0; r < R; r++)
        x_wide &= is_aligned(xr[r], 16);
    for (; g + (U - 1) * lanes < whole; g += U * lanes) {
        typename F::raw raw[U][C];
        for (int u = 0; u < U; u++)
            for (int c = 0; c < C; c++)
                raw[u][c] = F::load(row[c], g + u * lanes);
        UNROLL
        for (int u = 0; u < U; u++)
            mac_group<F, R, C>(raw[u], g + u * lanes, xr, x_fmt, x_wide, s);
    }
    for (; U > 1 && g < whole; g += lanes) {
        typename F::raw raw[C];
        for (int c = 0; c < C; c++)
            raw[c] = F::load(row[c], g);
        mac_group<F, R, C>(raw, g, xr, x_fmt, x_wide, s);
    }
    if (F::PLAIN) /* what is left of K, or all of it where rows lie anyhow */
        for (int i = 8 * whole + lane; i < k; i += lanes)
            for (int c = 0; c < C; c++) {
                float v = F::one(row[c], i);
                for (int r = 0; r < R; r++)
                    s[r][c] = fmaf(v, ld(xr[r], x_fmt, i), s[r][c]);
            }
}

/* Sums over a wave, then over the parts of K, which come to shared memory: red[blockDim.z][parts][R * C]. */
#define MV_RED (4 * 16)
template <int R, int C> DEV void gather_sums(float *red, float s[R][C])
{
    int lane = (int)threadIdx.x, parts = (int)blockDim.y;
    float *mine = red + ((int)threadIdx.z * parts + (int)threadIdx.y) * (R * C);
    __syncthreads();
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) {
            float v = wave_sum(s[r][c]);
            if (lane == 0)
                mine[r * C + c] = v;
        }
    __syncthreads();
}

template <int R, int C> DEV float joined(const float *red, int i)
{
    int parts = (int)blockDim.y;
    float v = red[(int)threadIdx.z * parts * (R * C) + i];
    for (int k = 1; k < parts; k++)
        v += red[((int)threadIdx.z * parts + k) * (R * C) + i];
    return v;
}

template <class F, int R>
DEV void mv(const uchar *x, const uchar *w, const uchar *ids, const uchar *bias, const epi_bases &e, uchar *y,
            const uchar *counts, const lp_mm &p)
{
    const int C = MV_COLUMNS(!F::PLAIN, R);
    SHARED(float, red, MV_RED);
    int rows = rows_of(counts, p.rows) * p.choices, lanes = WAVE * (int)blockDim.y;
    int lane = (int)threadIdx.x + WAVE * (int)threadIdx.y, me = (int)threadIdx.x;
    int c0 = ((int)blockIdx.x * (int)blockDim.z + (int)threadIdx.z) * C;
    for (int r0 = (int)blockIdx.y * R; r0 < rows; r0 += (int)gridDim.y * R) {
        int m = rows - r0 < R ? rows - r0 : R, expert = 0;
        const uchar *xr[R], *row[C];
        float s[R][C];
        if (p.ids.fmt)
            expert = ((const int *)(ids + at(p.ids, r0 / p.choices)))[r0 % p.choices];
        int have = expert >= 0 && expert < p.n_experts;
        for (int r = 0; r < R; r++)
            xr[r] = x + at(p.x, r0 + (r < m ? r : m - 1));
        for (int c = 0; c < C; c++)
            row[c] = w + p.w_off + (have ? expert : 0) * p.w_expert +
                     (c0 + c < p.n ? c0 + c : p.n - 1) * p.w_row; /* past the end: the last column again */
        for (int r = 0; r < R; r++)
            for (int c = 0; c < C; c++)
                s[r][c] = 0;
        if (have)
            dots<F, R, C>(row, xr, p.x.fmt, p.k, p.wide, lane, lanes, s);
        gather_sums<R, C>(red, s);
        int r = me / C, c = c0 + me % C;
        if (threadIdx.y == 0 && r < m && c < p.n)
            st(y + at(p.y, r0 + r), p.y.fmt, c, finish(p, joined<R, C>(red, me), r0 + r, c, bias, e));
    }
}

/* Which weight and column of it a numbered column is; 0: none. */
DEV int column_of(const lp_mms &p, int j, int &w, int &c)
{
    if (p.kind == LP_MMS_GLU) {
        w = j % 2;
        c = j / 2;
        return c < p.n[0];
    }
    w = j < p.n[0] ? 0 : j < p.n[0] + p.n[1] ? 1 : 2;
    c = j - (w == 0 ? 0 : w == 1 ? p.n[0] : p.n[0] + p.n[1]);
    return j < p.n[0] + p.n[1] + p.n[2];
}

template <class F, int R>
DEV void mvs(const uchar *x, const uchar *w0, const uchar *w1, const uchar *w2, const uchar *b0, const uchar *b1,
             const uchar *b2, uchar *y0, uchar *y1, uchar *y2, const uchar *counts, const lp_mms &p)
{
    const int C = MV_COLUMNS(!F::PLAIN, R);
    SHARED(float, red, MV_RED);
    int rows = rows_of(counts, p.rows), lanes = WAVE * (int)blockDim.y, w, c;
    int lane = (int)threadIdx.x + WAVE * (int)threadIdx.y, me = (int)threadIdx.x;
    int j0 = ((int)blockIdx.x * (int)blockDim.z + (int)threadIdx.z) * C;
    const uchar *row[C];
    UNROLL
    for (int i = 0; i < C; i++) {
        if (!column_of(p, j0 + i, w, c)) /* past the end: the first column again */
            w = c = 0;
        row[i] = third(w, w0 + p.w_off[0], w1 + p.w_off[1], w2 + p.w_off[2]) +
                 c * third(w, p.w_row[0], p.w_row[1], p.w_row[2]);
    }
    for (int r0 = (int)blockIdx.y * R; r0 < rows; r0 += (int)gridDim.y * R) {
        int m = rows - r0 < R ? rows - r0 : R;
        const uchar *xr[R];
        float s[R][C];
        for (int r = 0; r < R; r++)
            xr[r] = x + at(p.x, r0 + (r < m ? r : m - 1));
        for (int r = 0; r < R; r++)
            for (int i = 0; i < C; i++)
                s[r][i] = 0;
        dots<F, R, C>(row, xr, p.x.fmt, p.k, p.wide, lane, lanes, s);
        gather_sums<R, C>(red, s);
        int r = me / C, have = column_of(p, j0 + me % C, w, c);
        if (threadIdx.y || r >= m || !have || (p.kind == LP_MMS_GLU && w))
            continue;
        float v = joined<R, C>(red, me);
        if (p.kind == LP_MMS_GLU) {
            st(y0 + at(p.y[0], r0 + r), p.y[0].fmt, c, gated(p.act, p.limit, v, 1, joined<R, C>(red, me + 1)));
            continue;
        }
        UNROLL
        for (int i = 0; i < 3; i++) {
            if (i != w)
                continue;
            if (p.bias[i].fmt)
                v = add(v, ld(third(i, b0, b1, b2) + p.bias[i].off, p.bias[i].fmt, c));
            st(third(i, y0, y1, y2) + at(p.y[i], r0 + r), p.y[i].fmt, c, v);
        }
    }
}

#define MV(f, R)                                                                                                       \
    extern "C" __global__ void __launch_bounds__(4 * WAVE)                                                             \
        mv##R##_##f(const uchar *x, const uchar *w, const uchar *ids, const uchar *bias, const uchar *e0,              \
                    const uchar *e1, const uchar *e2, const uchar *e3, uchar *y, const uchar *counts, const lp_mm p)   \
    {                                                                                                                  \
        epi_bases e = {{e0, e1, e2, e3}};                                                                              \
        mv<fmt_##f, R>(x, w, ids, bias, e, y, counts, p);                                                              \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(4 * WAVE) mvs##R##_##f(                                               \
        const uchar *x, const uchar *w0, const uchar *w1, const uchar *w2, const uchar *b0, const uchar *b1,           \
        const uchar *b2, uchar *y0, uchar *y1, uchar *y2, const uchar *counts, const lp_mms p)                         \
    {                                                                                                                  \
        mvs<fmt_##f, R>(x, w0, w1, w2, b0, b1, b2, y0, y1, y2, counts, p);                                             \
    }
#define MV_ALL(f) MV(f, 1) MV(f, 2) MV(f, 4) MV(f, 8)

#endif
