/* What the products of many rows share: which part of which tile a block makes, and a tile's way out. Weights are the
 * rows of a tile (M: 128 of one weight, or 64 of gate and the same 64 of up), x's rows its columns (N).
 *
 * Tiles that fill the grid wave by wave are made whole, in an order in which blocks that run at once share weights and
 * x. The rest (all, where there are few) is cut into as many pieces along K as there are blocks: a block makes the end
 * of one tile, the begin of another and what lies between. A tile's pieces are put in scratch, and the block that
 * comes last adds them in K's order, so that sums do not depend on which that is. SPDX-License-Identifier: Apache-2.0 */
#ifndef GEMM_CUH
#define GEMM_CUH

#include "wgmma.cuh"
#include "product.cuh"
#include "../gemm.h"
#include "../packed.h"

#if defined(WGMMA)

#define GEMM_GROUP 16 /* tiles along M that follow each other before the next along N */
#define GEMM_LEAST 4  /* steps of K that are worth a block */
#define GEMM_CHUNK 32 /* columns that go out at a time */
#define GEMM_LINE  68 /* floats of a column's 64 rows in shared memory: free of conflicts */

/* Barriers by number. */
#define GEMM_BOTH 3 /* 1 and 2: of one warpgroup of products */

struct gemm_bases {
    const uchar *w[3], *bias[3], *e[LP_MAX_EPI];
    uchar *y[3];
};

struct gemm_plan {
    int tiles[3];              /* along M, up to and with each weight */
    int tm, tn, steps, blocks; /* tiles along M, along N; steps of K */
    int whole;                 /* tiles that every block makes whole, one after the other */
    int makers;                /* blocks that take part in the rest */
    int64_t units;             /* steps of the rest */
};

DEV gemm_plan gemm_plan_of(const gemm_block &p, int rows, int tile_n, int steps)
{
    gemm_plan g;
    int edge = p.kind == LP_MMS_GLU ? 64 : 128;
    g.tiles[0] = (p.n[0] + edge - 1) / edge;
    g.tiles[1] = g.tiles[0] + (p.kind == LP_MMS_GLU ? 0 : (p.n[1] + 127) / 128);
    g.tiles[2] = g.tiles[1] + (p.kind == LP_MMS_GLU ? 0 : (p.n[2] + 127) / 128);
    g.tm = g.tiles[2];
    g.tn = (rows + tile_n - 1) / tile_n;
    g.steps = steps;
    g.blocks = (int)gridDim.x;
    int all = g.tm * g.tn;
    g.whole = all / g.blocks;
    if (g.whole && all % g.blocks)
        g.whole--;
    g.units = (int64_t)(all - g.whole * g.blocks) * steps;
    int64_t most = (g.units + GEMM_LEAST - 1) / GEMM_LEAST;
    g.makers = (int)(most < g.blocks ? most : g.blocks);
    return g;
}

/* The first unit of a block's piece, and whose piece a unit is in. */
DEV int64_t gemm_begin(const gemm_plan &g, int block)
{
    return block * g.units / g.makers;
}

DEV int gemm_maker(const gemm_plan &g, int64_t unit)
{
    return (int)(((unit + 1) * g.makers - 1) / g.units);
}

/* A block's work, piece by piece. */
struct gemm_work {
    int tile, k0, k1; /* steps of K */
    int turn;
    int64_t at;
};

DEV gemm_work gemm_first(const gemm_plan &g)
{
    gemm_work w = {0, 0, 0, 0, -1};
    (void)g;
    return w;
}

/* The next piece; 0: that was all. */
DEV int gemm_next(const gemm_plan &g, gemm_work &w)
{
    int block = (int)blockIdx.x;
    if (w.turn < g.whole) {
        w.tile = block + w.turn++ * g.blocks;
        w.k0 = 0;
        w.k1 = g.steps;
        return 1;
    }
    if (block >= g.makers)
        return 0;
    if (w.at < 0)
        w.at = gemm_begin(g, block);
    int64_t end = gemm_begin(g, block + 1);
    if (w.at >= end)
        return 0;
    int tile = (int)(w.at / g.steps);
    w.tile = g.whole * g.blocks + tile;
    w.k0 = (int)(w.at - (int64_t)tile * g.steps);
    int64_t left = end - w.at;
    w.k1 = left < g.steps - w.k0 ? w.k0 + (int)left : g.steps;
    w.at += w.k1 - w.k0;
    return 1;
}

/* Where a tile lies: the weight, its first row there, the tile along N. */
struct gemm_spot {
    int weight, row, col;
};

DEV gemm_spot gemm_spot_of(const gemm_plan &g, const gemm_block &p, int tile)
{
    gemm_spot s;
    int group = tile / (GEMM_GROUP * g.tn), m0 = group * GEMM_GROUP;
    int gm = g.tm - m0 < GEMM_GROUP ? g.tm - m0 : GEMM_GROUP, r = tile - m0 * g.tn;
    int m = m0 + r % gm;
    s.col = r / gm;
    s.weight = m < g.tiles[0] ? 0 : m < g.tiles[1] ? 1 : 2;
    m -= s.weight == 0 ? 0 : g.tiles[s.weight - 1];
    s.row = m * (p.kind == LP_MMS_GLU ? 64 : 128);
    return s;
}

template <class T> DEV T gemm_pick(const T v[3], int i)
{
    return i == 0 ? v[0] : i == 1 ? v[1] : v[2];
}

/* Where panel i of 8 of a tile begins; one past the weight's end is its last one again. */
DEV const uchar *gemm_panel(const gemm_block &p, const gemm_bases &b, const gemm_spot &s, int i, int64_t panel_bytes)
{
    int glu = p.kind == LP_MMS_GLU, weight = glu ? i / 4 : s.weight;
    int panel = s.row / PACKED_ROWS + (glu ? i % 4 : i);
    int panels = (gemm_pick(p.n, glu ? 0 : weight) + PACKED_ROWS - 1) / PACKED_ROWS;
    return gemm_pick(b.w, weight) + gemm_pick(p.w_off, weight) + (panel < panels ? panel : panels - 1) * panel_bytes;
}

/* ---- A tile's way out ----------------------------------------------------------------------------------------------
 */

DEV void st4(uchar *y, int fmt, int i, int n, const float v[4])
{
    if (i + 4 <= n && is_aligned(y + i * plain_bytes(fmt), 4 * plain_bytes(fmt))) {
        if (fmt == INFER_FMT_F32) {
            st_16((float *)y + i, bits_of(v[0]), bits_of(v[1]), bits_of(v[2]), bits_of(v[3]));
        } else {
            uint2 u;
            u.x = pack_two(v[0], v[1], fmt);
            u.y = pack_two(v[2], v[3], fmt);
            *(uint2 *)((uint16_t *)y + i) = u;
        }
        return;
    }
    for (int k = 0; k < 4 && i + k < n; k++)
        st(y, fmt, i + k, v[k]);
}

/* Four elements of an operand's row; 0 past the end. */
DEV void ld4(const uchar *e, int fmt, int i, int n, float v[4])
{
    if (i + 4 <= n) {
        x4(e, fmt, i, is_aligned(e + i * plain_bytes(fmt), 4 * plain_bytes(fmt)), v);
        return;
    }
    for (int k = 0; k < 4; k++)
        v[k] = i + k < n ? ld(e, fmt, i + k) : 0.0f;
}

/* Scale, bias and epilogue steps on rows c to c + 3 of a weight of n, for x's row r: `finish` for four. */
DEV void finish4(const gemm_block &p, const gemm_bases &b, int weight, int n, int r, int c, float v[4])
{
    float o[4];
    const lp_tensor &bias = p.bias[weight];
    for (int k = 0; k < 4; k++)
        v[k] = mul(v[k], p.scale);
    if (bias.fmt) {
        ld4(gemm_pick(b.bias, weight) + bias.off, bias.fmt, c, n, o);
        for (int k = 0; k < 4; k++)
            v[k] = add(v[k], o[k]);
    }
    UNROLL
    for (int s = 0; s < LP_MAX_EPI; s++) {
        const lp_epi &e = p.epi[s];
        if (s >= p.n_epi)
            break;
        if (e.kind == INFER_EPI_ACT || e.kind == INFER_EPI_SCALE) {
            for (int k = 0; k < 4; k++)
                v[k] = e.kind == INFER_EPI_ACT ? activate(e.arg, v[k]) : mul(v[k], e.factor);
            continue;
        }
        ld4(b.e[s] + (e.kind == INFER_EPI_BIAS ? (int64_t)e.t.off : at(e.t, r)), e.t.fmt, c, n, o);
        for (int k = 0; k < 4; k++)
            v[k] = e.kind == INFER_EPI_MUL ? mul(v[k], o[k]) : add(v[k], o[k]);
    }
}

/* Sums of both warpgroups to their places. lines: shared memory of both, GEMM_LINES(N) floats each. */
#define GEMM_COLUMNS(N) ((N) < GEMM_CHUNK ? (N) : GEMM_CHUNK)
#define GEMM_LINES(N)   (GEMM_COLUMNS(N) * GEMM_LINE)
template <int N>
DEV void gemm_out(const gemm_block &p, const gemm_bases &b, const gemm_spot &s, int rows, const float *x_scale,
                  const float d[WG_SUMS(N)], float *lines)
{
    const int C = GEMM_COLUMNS(N), PER = WG_SUMS(C); /* sums of a thread in a chunk */
    int t = thread_id() % 128, half = thread_id() / 128 - 1, l = t % 32, glu = p.kind == LP_MMS_GLU;
    float *mine = lines + half * GEMM_LINES(N), *to = mine + l % 4 * 2 * GEMM_LINE + t / 32 * 16 + l / 4;
    int c = s.row + (glu ? 0 : 64 * half) + t % 16 * 4, n = gemm_pick(p.n, s.weight);
    int first = glu ? half * 8 + t / 16 : t / 16, stride = glu ? 16 : 8;
    const lp_tensor &y = p.y[s.weight];
    uchar *out = gemm_pick(b.y, s.weight);
    int left = rows - s.col * N; /* columns that are there */
    for (int chunk = 0; chunk < N / C && chunk * C < left; chunk++) {
        UNROLL
        for (int q = 0; q < N / C; q++) /* sums are in registers: constant numbers */
            if (q == chunk) {
                UNROLL
                for (int i = 0; i < PER; i++)
                    to[(i / 4 * 8 + i % 2) * GEMM_LINE + i % 4 / 2 * 8] = d[q * PER + i];
            }
        part_sync(glu ? GEMM_BOTH : 1 + half, glu ? 256 : 128);
        for (int i = first; i < C && chunk * C + i < left && c < n; i += stride) {
            int r = s.col * N + chunk * C + i;
            float v[4], u[4], k = x_scale ? x_scale[r] : 1.0f;
            const float *from = (glu ? lines : mine) + i * GEMM_LINE + t % 16 * 4;
            x4((const uchar *)from, INFER_FMT_F32, 0, 1, v);
            for (int e = 0; e < 4 && x_scale; e++)
                v[e] = mul(v[e], k);
            if (glu) {
                x4((const uchar *)(from + GEMM_LINES(N)), INFER_FMT_F32, 0, 1, u);
                for (int e = 0; e < 4; e++)
                    v[e] = gated(p.act, p.limit, v[e], 1, x_scale ? mul(u[e], k) : u[e]);
            } else {
                finish4(p, b, s.weight, n, r, c, v);
            }
            st4(out + at(y, r), y.fmt, c, n, v);
        }
        part_sync(glu ? GEMM_BOTH : 1 + half, glu ? 256 : 128);
    }
}

/* A piece of a tile: puts the sums in scratch; 1: all pieces are there, and d has their sum. */
template <int N>
DEV int gemm_join(const gemm_plan &g, const gemm_work &w, float d[WG_SUMS(N)], uint32_t *counters, float *parts,
                  uint32_t *seen)
{
    int me = thread_id() - 128, tile = w.tile - g.whole * g.blocks;
    int64_t unit = (int64_t)tile * g.steps;
    int first = gemm_maker(g, unit), last = gemm_maker(g, unit + g.steps - 1), block = (int)blockIdx.x;
    float *to = parts + (int64_t)(2 * block + (block == first)) * (128 * N) + 4 * me;
    UNROLL
    for (int i = 0; i < WG_SUMS(N) / 4; i++)
        st_16(to + i * 1024, bits_of(d[4 * i]), bits_of(d[4 * i + 1]), bits_of(d[4 * i + 2]), bits_of(d[4 * i + 3]));
    device_fence();
    part_sync(GEMM_BOTH, 256);
    if (me == 0)
        *seen = atomicAdd(&counters[tile], 1u);
    part_sync(GEMM_BOTH, 256);
    if (*seen != (uint32_t)(last - first))
        return 0;
    device_fence();
    for (int k = first; k <= last; k++) {
        const float *from = parts + (int64_t)(2 * k + (k == first)) * (128 * N) + 4 * me;
        UNROLL
        for (int i = 0; i < WG_SUMS(N) / 4; i++) {
            uint4 v = ld_16(from + i * 1024);
            d[4 * i] = k == first ? float_of(v.x) : d[4 * i] + float_of(v.x);
            d[4 * i + 1] = k == first ? float_of(v.y) : d[4 * i + 1] + float_of(v.y);
            d[4 * i + 2] = k == first ? float_of(v.z) : d[4 * i + 2] + float_of(v.z);
            d[4 * i + 3] = k == first ? float_of(v.w) : d[4 * i + 3] + float_of(v.w);
        }
    }
    return 1;
}

#define GEMM_ARGS                                                                                                      \
    const uchar *w0, const uchar *w1, const uchar *w2, const uchar *b0, const uchar *s0, const uchar *s1, uchar *y0,   \
        uchar *s2, uchar *s3, uchar *scratch, const uchar *counts, const gemm_block p
/* s0 to s3: operands of the epilogue's steps with one weight; with several the others' biases and outputs. */
#define GEMM_BASES                                                                                                     \
    {                                                                                                                  \
        {w0, w1, w2}, {b0, s0, s1}, {s0, s1, s2, s3},                                                                  \
        {                                                                                                              \
            y0, s2, s3                                                                                                 \
        }                                                                                                              \
    }

#endif
#endif
