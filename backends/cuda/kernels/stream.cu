/* y = x W^T for up to 8 rows and weights in bf16, through matrix units: bound by reading W. A block makes 16 columns, its
 * eight waves take 32 of K each in turn. Lane 4 g + t reads 16 bytes, elements 8 t and on, of columns g and g + 8: as
 * products may be added in any order of k, those are the fragment's as they come. A row of x is two columns of the other
 * fragment, x rounded and what that left off, so that 16 bits of x count; a row's sums do not depend on its company.
 *
 * streamN_bf16   N rows of 4 8 (walked in y); arguments as mvR_F (matvec.cuh) without ids.
 * streamsN_bf16  arguments as mvsR_F; SIDE.  streamgN_bf16: GLU, gate and up in one block.
 *   needs   k % 32 == 0, wide
 *   block   (32, 8)
 *   grid    x tiles of 16 columns (SIDE: of each weight for itself), y ceil(rows / N)
 * SPDX-License-Identifier: Apache-2.0 */
#include "mma.cuh"
#include "product.cuh"

#if WAVE == 32

#define STEP   32 /* of K, a wave's turn */
#define WAVES  8
#define EDGE   16 /* columns of a block */
#define RED(R) (WAVES * (R) * EDGE)

/* Eight elements of a row as plane 0 (rounded) or 1 (the rest, rounded) of pairs. */
DEV void plane_of(const float v[8], int plane, uint32_t b[4])
{
    for (int i = 0; i < 4; i++) {
        uint32_t hi = pack_two(v[2 * i], v[2 * i + 1], INFER_FMT_BF16);
        float h0 = float_of(hi << 16), h1 = float_of(hi & 0xFFFF0000u);
        float r0 = v[2 * i] == h0 ? 0.0f : v[2 * i] - h0; /* an infinity leaves no rest */
        float r1 = v[2 * i + 1] == h1 ? 0.0f : v[2 * i + 1] - h1;
        uint32_t lo = pack_two(r0, r1, INFER_FMT_BF16);
        b[i] = plane ? lo : hi;
    }
}

/* What a lane reads of x: NT fragments of 4 rows. */
template <int NT> struct x_lane {
    const uchar *row[NT];
    int have[NT], wide[NT], fmt, plane, quick; /* quick: floats in whole lines, for every lane */
};

template <int NT> DEV void x_of(x_lane<NT> &x, const uchar *base, const lp_tensor &t, int r0, int rows)
{
    int g = (int)threadIdx.x / 4;
    x.fmt = t.fmt;
    x.plane = g % 2;
    x.quick = t.fmt == INFER_FMT_F32 && is_aligned(base, 16) && (t.off | (lp_u64)t.s0 | (lp_u64)t.s1 | (lp_u64)t.s2) % 16 == 0;
    for (int i = 0; i < NT; i++) {
        int r = r0 + 4 * i + g / 2;
        x.have[i] = r < rows;
        x.row[i] = base + at(t, x.have[i] ? r : r0);
        x.wide[i] = is_aligned(x.row[i], 16);
    }
}

/* Sums of W weights' 16 columns, of this wave's part of K. w: this lane's rows of each weight, g and g + 8. */
template <int NT, int W, bool QUICK>
DEV void sums_of(const uchar *const w[W][2], const x_lane<NT> &x, int k, float d[W][NT][FRAG])
{
    const int AHEAD = 4 / W; /* turns whose loads are under way together */
    int t = (int)threadIdx.x % 4, turns = k / STEP, first = (int)threadIdx.y;
    for (int c0 = first; c0 < turns; c0 += AHEAD * WAVES) {
        uint4 a[AHEAD][W][2], xv[AHEAD][NT][2];
        UNROLL
        for (int u = 0; u < AHEAD; u++) {
            int c = c0 + u * WAVES < turns ? c0 + u * WAVES : c0; /* past the end: a turn that is not counted */
            UNROLL
            for (int i = 0; i < W; i++) {
                a[u][i][0] = ld_16(w[i][0] + 2 * (STEP * c + 8 * t));
                a[u][i][1] = ld_16(w[i][1] + 2 * (STEP * c + 8 * t));
            }
            UNROLL
            for (int n = 0; n < NT && QUICK; n++) {
                const uint4 none = {0, 0, 0, 0};
                const float *v = (const float *)x.row[n] + STEP * c + 8 * t;
                int read = x.have[n] && c0 + u * WAVES < turns;
                xv[u][n][0] = read ? ld_16(v) : none;
                xv[u][n][1] = read ? ld_16(v + 4) : none;
            }
        }
        UNROLL
        for (int u = 0; u < AHEAD; u++) {
            int c = c0 + u * WAVES, counted = c < turns;
            UNROLL
            for (int n = 0; n < NT; n++) {
                float v[8];
                uint32_t b[4];
                if (QUICK) {
                    const uint4 &lo = xv[u][n][0], &hi = xv[u][n][1];
                    v[0] = float_of(lo.x), v[1] = float_of(lo.y), v[2] = float_of(lo.z), v[3] = float_of(lo.w);
                    v[4] = float_of(hi.x), v[5] = float_of(hi.y), v[6] = float_of(hi.z), v[7] = float_of(hi.w);
                } else {
                    for (int i = 0; i < 8; i++)
                        v[i] = 0;
                    if (x.have[n] && counted)
                        ld8(x.row[n], x.fmt, STEP * c + 8 * t, x.wide[n], v);
                }
                plane_of(v, x.plane, b);
                UNROLL
                for (int i = 0; i < W; i++) {
                    frag_a<INFER_FMT_BF16> fa;
                    frag_b<INFER_FMT_BF16> fb;
                    const uint4 &g = a[u][i][0], &h = a[u][i][1];
                    fa.v[0] = g.x, fa.v[1] = h.x, fa.v[2] = g.y, fa.v[3] = h.y;
                    fb.v[0] = b[0], fb.v[1] = b[1];
                    mma(d[i][n], fa, fb);
                    fa.v[0] = g.z, fa.v[1] = h.z, fa.v[2] = g.w, fa.v[3] = h.w;
                    fb.v[0] = b[2], fb.v[1] = b[3];
                    mma(d[i][n], fa, fb);
                }
            }
        }
    }
}

template <int NT, int W>
DEV void stream_sums(const uchar *const w[W][2], const x_lane<NT> &x, int k, float d[W][NT][FRAG])
{
    if (x.quick)
        sums_of<NT, W, true>(w, x, k, d);
    else
        sums_of<NT, W, false>(w, x, k, d);
}

/* red[wave][row][column] of the wave's sums: both planes of a row are one lane's. */
template <int NT> DEV void put_sums(float *red, const float d[NT][FRAG])
{
    int g = (int)threadIdx.x / 4, t = (int)threadIdx.x % 4;
    for (int n = 0; n < NT; n++) {
        float *to = red + ((int)threadIdx.y * (4 * NT) + 4 * n + t) * EDGE;
        to[g] = d[n][0] + d[n][1];
        to[g + 8] = d[n][2] + d[n][3];
    }
}

/* The waves' sums of W weights for the rows from r0 on, in red one weight after the other. */
template <int NT, int W>
DEV void tile_sums(float *red, const uchar *const w[W][2], const uchar *x, const lp_tensor &tx, int r0, int rows, int k)
{
    x_lane<NT> xl;
    float d[W][NT][FRAG] = {};
    x_of<NT>(xl, x, tx, r0, rows);
    stream_sums<NT, W>(w, xl, k, d);
    __syncthreads();
    for (int i = 0; i < W; i++)
        put_sums<NT>(red + i * RED(4 * NT), d[i]);
    __syncthreads();
}

/* Sum i (row i / 16, column i % 16) over the waves, in their order. */
template <int NT> DEV float joined(const float *red, int i)
{
    float v = red[i];
    for (int w = 1; w < WAVES; w++)
        v += red[w * (4 * NT * EDGE) + i];
    return v;
}

/* The lane's two columns of a weight, the last one again past the end. */
DEV void columns_at(const uchar *w, int64_t row_bytes, int c0, int n, const uchar *to[2])
{
    int g = c0 + (int)threadIdx.x / 4;
    to[0] = w + (g < n ? g : n - 1) * row_bytes;
    to[1] = w + (g + 8 < n ? g + 8 : n - 1) * row_bytes;
}

template <int NT>
DEV void stream(const uchar *x, const uchar *w, const uchar *bias, const epi_bases &e, uchar *y, const uchar *counts,
                const lp_mm &p)
{
    SHARED(float, red, RED(4 * NT));
    int rows = rows_of(counts, p.rows), c0 = (int)blockIdx.x * EDGE, me = (int)(threadIdx.y * 32 + threadIdx.x);
    const uchar *at_w[1][2];
    columns_at(w + p.w_off, p.w_row, c0, p.n, at_w[0]);
    for (int r0 = (int)blockIdx.y * 4 * NT; r0 < rows; r0 += (int)gridDim.y * 4 * NT) {
        tile_sums<NT, 1>(red, at_w, x, p.x, r0, rows, p.k);
        int r = r0 + me / EDGE, c = c0 + me % EDGE;
        if (me < 4 * NT * EDGE && r < rows && c < p.n)
            st(y + at(p.y, r), p.y.fmt, c, finish(p, joined<NT>(red, me), r, c, bias, e));
    }
}

DEV int tiles_of(int n)
{
    return (n + EDGE - 1) / EDGE;
}

template <int NT>
DEV void streams(const uchar *x, const uchar *w0, const uchar *w1, const uchar *w2, const uchar *b0, const uchar *b1,
                 const uchar *b2, uchar *y0, uchar *y1, uchar *y2, const uchar *counts, const lp_mms &p)
{
    SHARED(float, red, RED(4 * NT));
    int rows = rows_of(counts, p.rows), me = (int)(threadIdx.y * 32 + threadIdx.x), tile = (int)blockIdx.x, i = 0;
    for (; i < 2 && tile >= tiles_of(third(i, p.n[0], p.n[1], p.n[2])); i++)
        tile -= tiles_of(third(i, p.n[0], p.n[1], p.n[2]));
    int c0 = tile * EDGE, n = third(i, p.n[0], p.n[1], p.n[2]);
    const uchar *at_w[1][2], *bias = third(i, b0, b1, b2);
    const lp_tensor &ty = p.y[i], &tb = p.bias[i];
    uchar *y = third(i, y0, y1, y2);
    columns_at(third(i, w0 + p.w_off[0], w1 + p.w_off[1], w2 + p.w_off[2]), third(i, p.w_row[0], p.w_row[1], p.w_row[2]),
               c0, n, at_w[0]);
    for (int r0 = (int)blockIdx.y * 4 * NT; r0 < rows; r0 += (int)gridDim.y * 4 * NT) {
        tile_sums<NT, 1>(red, at_w, x, p.x, r0, rows, p.k);
        int r = r0 + me / EDGE, c = c0 + me % EDGE;
        if (me < 4 * NT * EDGE && r < rows && c < n) {
            float v = joined<NT>(red, me);
            if (tb.fmt)
                v = add(v, ld(bias + tb.off, tb.fmt, c));
            st(y + at(ty, r), ty.fmt, c, v);
        }
    }
}

template <int NT>
DEV void streamg(const uchar *x, const uchar *w0, const uchar *w1, uchar *y, const uchar *counts, const lp_mms &p)
{
    SHARED(float, red, 2 * RED(4 * NT));
    int rows = rows_of(counts, p.rows), c0 = (int)blockIdx.x * EDGE, me = (int)(threadIdx.y * 32 + threadIdx.x);
    const uchar *at_w[2][2];
    columns_at(w0 + p.w_off[0], p.w_row[0], c0, p.n[0], at_w[0]);
    columns_at(w1 + p.w_off[1], p.w_row[1], c0, p.n[0], at_w[1]);
    for (int r0 = (int)blockIdx.y * 4 * NT; r0 < rows; r0 += (int)gridDim.y * 4 * NT) {
        tile_sums<NT, 2>(red, at_w, x, p.x, r0, rows, p.k);
        int r = r0 + me / EDGE, c = c0 + me % EDGE;
        if (me < 4 * NT * EDGE && r < rows && c < p.n[0])
            st(y + at(p.y[0], r), p.y[0].fmt, c,
               gated(p.act, p.limit, joined<NT>(red, me), 1, joined<NT>(red + RED(4 * NT), me)));
    }
}

#define STREAM(N)                                                                                                      \
    extern "C" __global__ void __launch_bounds__(256, 2)                                                               \
        stream##N##_bf16(const uchar *x, const uchar *w, const uchar *, const uchar *bias, const uchar *e0,            \
                         const uchar *e1, const uchar *e2, const uchar *e3, uchar *y, const uchar *counts,             \
                         const lp_mm p)                                                                                \
    {                                                                                                                  \
        epi_bases e = {{e0, e1, e2, e3}};                                                                              \
        stream<N / 4>(x, w, bias, e, y, counts, p);                                                                    \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 2)                                                               \
        streams##N##_bf16(const uchar *x, const uchar *w0, const uchar *w1, const uchar *w2, const uchar *b0,          \
                          const uchar *b1, const uchar *b2, uchar *y0, uchar *y1, uchar *y2, const uchar *counts,      \
                          const lp_mms p)                                                                              \
    {                                                                                                                  \
        streams<N / 4>(x, w0, w1, w2, b0, b1, b2, y0, y1, y2, counts, p);                                              \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 2)                                                               \
        streamg##N##_bf16(const uchar *x, const uchar *w0, const uchar *w1, const uchar *, const uchar *,              \
                          const uchar *, const uchar *, uchar *y0, uchar *, uchar *, const uchar *counts,              \
                          const lp_mms p)                                                                              \
    {                                                                                                                  \
        streamg<N / 4>(x, w0, w1, y0, counts, p);                                                                      \
    }
STREAM(4)
STREAM(8)

#endif
