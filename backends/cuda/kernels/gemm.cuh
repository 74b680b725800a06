/* What the products of many rows share: which part of which tile a block makes, and a tile's way out. Weights are the
 * rows of a tile (M: 128 of one weight, or 64 of gate and the same 64 of up, times the blocks
 * of a cluster, which share x), x's rows its columns (N).
 *
 * As many tiles as go evenly over the clusters are made whole, in an order in which blocks that run at once share
 * weights and x. The rest (all, where there are few) comes first and is cut into pieces along K, as many as there are
 * clusters: a cluster makes the end of one tile and the begin of the next. A tile's pieces are put in scratch, and the
 * block that comes last adds them in K's order, so that sums do not depend on which that is. Where the cut goes depends
 * on how many rows there are; with p.whole no tile is cut, and a row's sums are the same in any company.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef GEMM_CUH
#define GEMM_CUH

#include "wgmma.cuh"
#include "product.cuh"
#include "../gemm.h"
#include "../packed.h"

#if defined(WGMMA)

#define GEMM_GROUP 8 /* tiles along M that follow each other before the next along N */
#if !defined(GEMM_LEAST)
#define GEMM_LEAST 4 /* steps of K that are worth a block */
#endif
#define GEMM_CHUNK 32 /* columns that go out at a time */

/* Barriers by number. */
#define GEMM_BOTH 3 /* 1 and 2: of one warpgroup of products */

/* Pieces that are there, of each tile that is cut. All 0 between launches: who comes last sets its own to 0. An opened
 * device has one queue for ops (backend.h, queue_create), which runs one launch after the other. */
#if defined(SIMT_H)
static uint32_t gemm_done[GEMM_BLOCKS];
#else
__device__ uint32_t gemm_done[GEMM_BLOCKS];
#endif

struct gemm_bases {
    const uchar *x, *w[3], *bias[3], *e[LP_MAX_EPI];
    uchar *y[3];
};

struct gemm_plan {
    int tiles[3];              /* along M, up to and with each weight */
    int tm, tn, steps, blocks; /* tiles along M, along N; steps of K; clusters of the grid */
    int rest, whole;           /* tiles that are cut, the first; tiles that every cluster then makes whole */
    uint32_t makers;           /* clusters that take part in the rest */
    uint32_t units;            /* steps of the rest */
};

DEV gemm_plan gemm_plan_of(const gemm_block &p, int rows, int tile_n, int steps)
{
    gemm_plan g;
    const int EDGE = 64 * WG_CLUSTER; /* of a tile of gate and up; others' is twice that. Divisions take their time. */
    int glu = p.kind == LP_MMS_GLU;
    g.tiles[0] = glu ? (p.n[0] + EDGE - 1) / EDGE : (p.n[0] + 2 * EDGE - 1) / (2 * EDGE);
    g.tiles[1] = g.tiles[0] + (glu ? 0 : (p.n[1] + 2 * EDGE - 1) / (2 * EDGE));
    g.tiles[2] = g.tiles[1] + (glu ? 0 : (p.n[2] + 2 * EDGE - 1) / (2 * EDGE));
    g.tm = g.tiles[2];
    g.tn = (rows + tile_n - 1) / tile_n;
    g.steps = steps;
    g.blocks = (int)gridDim.x / WG_CLUSTER;
    int all = g.tm * g.tn;
    g.whole = all / g.blocks;
    g.rest = all - g.whole * g.blocks;
    g.units = (uint32_t)(g.rest * steps); /* times clusters well below 2^32 */
    g.makers = (uint32_t)g.rest;
    if (p.whole)
        return g;
    uint32_t most = (g.units + GEMM_LEAST - 1) / GEMM_LEAST;
    g.makers = most < (uint32_t)g.blocks ? most : (uint32_t)g.blocks;
    /* Where nearly all clusters have one piece of one tile each, so be it: who has two makes others wait. */
    int per = g.rest ? (int)g.makers / g.rest : 0;
    if (g.rest * per * 16 >= (int)g.makers * 15)
        g.makers = (uint32_t)(g.rest * per);
    return g;
}

/* The first unit of a cluster's piece, and whose piece a unit is in. */
DEV uint32_t gemm_begin(const gemm_plan &g, uint32_t block)
{
    return block * g.units / g.makers;
}

DEV uint32_t gemm_maker(const gemm_plan &g, uint32_t unit)
{
    return ((unit + 1) * g.makers - 1) / g.units;
}

/* A cluster's work, piece by piece. */
struct gemm_work {
    int tile, k0, k1; /* steps of K */
    int turn;
    uint32_t at, end; /* at > end: not begun */
};

DEV gemm_work gemm_first()
{
    gemm_work w = {0, 0, 0, 0, 1, 0};
    return w;
}

/* The next piece; 0: that was all. */
DEV int gemm_next(const gemm_plan &g, gemm_work &w)
{
    uint32_t block = blockIdx.x / WG_CLUSTER;
    if (w.at > w.end && block < g.makers) {
        w.at = gemm_begin(g, block);
        w.end = gemm_begin(g, block + 1);
    }
    if (w.at >= w.end) {
        if (w.turn == g.whole)
            return 0;
        w.tile = g.rest + (int)block + w.turn++ * g.blocks;
        w.k0 = 0;
        w.k1 = g.steps;
        return 1;
    }
    int tile = (int)(w.at / (uint32_t)g.steps), left = (int)(w.end - w.at);
    w.tile = tile;
    w.k0 = (int)(w.at - (uint32_t)(tile * g.steps));
    w.k1 = left < g.steps - w.k0 ? w.k0 + left : g.steps;
    w.at += (uint32_t)(w.k1 - w.k0);
    return 1;
}

/* Where this block's part of a tile lies: the weight, its first row there, the tile along N. */
struct gemm_spot {
    int weight, row, col;
};

DEV gemm_spot gemm_spot_of(const gemm_plan &g, const gemm_block &p, int tile)
{
    gemm_spot s;
    int m = tile;
    s.col = 0;
    if (g.tn > 1) {
        int group = tile / (GEMM_GROUP * g.tn), m0 = group * GEMM_GROUP;
        int gm = g.tm - m0 < GEMM_GROUP ? g.tm - m0 : GEMM_GROUP, r = tile - m0 * g.tn;
        m = m0 + r % gm;
        s.col = r / gm;
    }
    s.weight = m < g.tiles[0] ? 0 : m < g.tiles[1] ? 1 : 2;
    m -= s.weight == 0 ? 0 : g.tiles[s.weight - 1];
    s.row = (m * WG_CLUSTER + cluster_rank()) * (p.kind == LP_MMS_GLU ? 64 : 128);
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

/* A position in the ring of stages. */
struct ring_at {
    int stage, phase;
};

template <int STAGES> DEV void ring_step(ring_at &r)
{
    if (++r.stage == STAGES) {
        r.stage = 0;
        r.phase ^= 1;
    }
}

/* The rows of x that plans count with. Where one tile has room for all, they do not matter, and weights may be read
 * before the predecessor has ended. */
template <int N> DEV int gemm_rows(const gemm_block &p, const uchar *counts)
{
    if (p.rows.cap <= N)
        return p.rows.cap;
    grid_wait();
    return rows_of(counts, p.rows);
}

/* Whether rows lie at one distance, and four elements of each, from a multiple of four on, together and aligned. */
DEV int gemm_fours(const lp_tensor &t, const uchar *base)
{
    return t.n1 <= 1 && t.n2 <= 1 &&
           !(((uint64_t)(uintptr_t)base | t.off | (uint64_t)t.s0) % (uint64_t)(4 * plain_bytes(t.fmt)));
}

/* Whether the epilogue is at most a residual in floats: what is worth a way of its own. */
DEV int gemm_light(const gemm_block &p, const gemm_bases &b)
{
    return p.n_epi == 0 || (p.n_epi == 1 && p.epi[0].kind == INFER_EPI_RESIDUAL && p.epi[0].t.fmt == INFER_FMT_F32 &&
                            gemm_fours(p.epi[0].t, b.e[0]));
}

/* Lines of a tile's residual come to the second-level cache while the tile is made: 16 lanes, a line each a step. */
DEV void fetch_residual(const gemm_block &p, const gemm_bases &b, const gemm_spot &s, int tile_n, int rows, int step)
{
    int i = step * 16 + thread_id() % 16, r = s.col * tile_n + i / 4; /* four lines have 128 floats of a row */
    if (i < 4 * tile_n && r < rows && s.row + i % 4 * 32 < p.n[0])
        prefetch_line(b.e[0] + (int64_t)p.epi[0].t.off + r * p.epi[0].t.s0 + s.row * 4 + i % 4 * 128);
}

/* A wave brings x: this block's share of each step (`per` of x for one of weights), to all blocks of the cluster. to:
 * the first stage's place. */
template <int N, int STAGES>
DEV void gemm_bring_x(const gemm_plan &g, const gemm_block &p, const gemm_bases &b, int rows, int per, uchar *to,
                      int stage_bytes, mbar *full, mbar *empty)
{
    const int SHARE = 128 * N / WG_CLUSTER;
    int lane = thread_id() % 32, residual = p.kind != LP_MMS_GLU && p.n_epi == 1 && gemm_light(p, b);
    gemm_work w = gemm_first();
    ring_at r = {0, 1};
    grid_wait();
    while (gemm_next(g, w)) {
        gemm_spot s = gemm_spot_of(g, p, w.tile);
        const uchar *from = b.x + p.x_off + (int64_t)s.col * g.steps * per * (128 * N) + cluster_rank() * SHARE;
        for (int k = per * w.k0; k < per * w.k1; k++) {
            mbar_wait(empty + r.stage, r.phase);
            if (lane == 0) {
                mbar_expect(full + r.stage, 128 * N);
                cluster_copy(to + r.stage * stage_bytes + cluster_rank() * SHARE, from + (int64_t)k * (128 * N), SHARE,
                             full + r.stage);
            }
            if (residual && lane >= 16)
                fetch_residual(p, b, s, N, rows, k);
            ring_step<STAGES>(r);
        }
    }
}

/* ---- A tile's way out ----------------------------------------------------------------------------------------------
 */

/* `gated` with SILU by fast functions: a few units in the last place. */
DEV float gemm_silu(float limit, float x, float u)
{
    if (limit > 0) {
        x = x > limit ? limit : x;
        u = u > limit ? limit : u < -limit ? -limit : u;
    }
#if defined(SIMT_H)
    return mul(activate(INFER_ACT_SILU, x), u);
#else
    return mul(__fdividef(x, 1.0f + __expf(-x)), u);
#endif
}

DEV void st4(uchar *y, int fmt, int i, const float v[4])
{
    if (fmt == INFER_FMT_F32) {
        st_16((float *)y + i, bits_of(v[0]), bits_of(v[1]), bits_of(v[2]), bits_of(v[3]));
    } else {
        uint2 u;
        u.x = pack_two(v[0], v[1], fmt);
        u.y = pack_two(v[2], v[3], fmt);
        *(uint2 *)((uint16_t *)y + i) = u;
    }
}

/* Scale, bias and epilogue steps on one value: `finish` for this block of parameters. */
DEV float gemm_finish(const gemm_block &p, const gemm_bases &b, int weight, int r, int c, float v)
{
    const lp_tensor &bias = p.bias[weight];
    v = mul(v, p.scale);
    if (bias.fmt)
        v = add(v, ld(gemm_pick(b.bias, weight) + bias.off, bias.fmt, c));
    return epi_steps(v, p.epi, p.n_epi, r, c, b.e);
}

/* Sums of both warpgroups to their places. lines: shared memory of both, GEMM_LINES(N) floats each (GEMM_LINE a column:
 * free of conflicts). PANELS: what gate and up make may go out in panels. */
#define GEMM_COLUMNS(N) ((N) < GEMM_CHUNK ? (N) : GEMM_CHUNK)
template <int N, bool E4M3, bool PANELS>
DEV void gemm_out(const gemm_block &p, const gemm_bases &b, const gemm_spot &s, int rows, const float *x_scale,
                  const float d[WG_SUMS(N)], float *lines)
{
    const int C = GEMM_COLUMNS(N), PER = WG_SUMS(C), TURNS = C / 8; /* sums of a thread in a chunk; columns of it */
    int t = thread_id() % 128, half = thread_id() / 128 - 1, l = t % 32, glu = p.kind == LP_MMS_GLU;
    float *mine = lines + half * GEMM_LINES(N), *to = mine + l % 4 * 2 * GEMM_LINE + t / 32 * 16 + l / 4;
    int c = s.row + (glu ? 0 : 64 * half) + t % 16 * 4, n = gemm_pick(p.n, s.weight);
    int barrier = glu ? GEMM_BOTH : 1 + half, threads = glu ? 256 : 128, has_bias = p.bias[s.weight].fmt;
    const lp_tensor &y = p.y[s.weight];
    uchar *out = gemm_pick(b.y, s.weight);
    int left = rows - s.col * N; /* columns that are there */
    const bool panels = PANELS && glu && p.panels.turn;
    const int end = panels ? (n + 63) / 64 * 64 : n; /* of what is written: zeros behind the last one */
    int fours = n % 4 == 0 && gemm_fours(y, out), light = fours && !glu && gemm_light(p, b);
    float by_row[2] = {1, 1};
    if (E4M3 && p.by_row) { /* of the two rows of weights whose sums a thread has */
        const int weight = glu ? half : s.weight, row = s.row + (glu ? 0 : 64 * half) + t / 32 * 16 + l / 4;
        const float *scale = (const float *)(gemm_pick(b.w, weight) + gemm_pick(p.w_off, weight) +
                                             (int64_t)packed_bytes(INFER_FMT_F8_E4M3, n, p.k));
        by_row[0] = row < n ? scale[row] : 1.0f;
        by_row[1] = row + 8 < n ? scale[row + 8] : 1.0f;
    }
    float bv[4] = {0, 0, 0, 0};
    for (int k = 0; k < 4 && light && has_bias && c < n; k++)
        bv[k] = ld(gemm_pick(b.bias, s.weight) + p.bias[s.weight].off, has_bias, c + k);
    NO_UNROLL
    for (int chunk = 0; chunk < N / C && chunk * C < left; chunk++) {
        uint4 o[TURNS];
        int r0 = s.col * N + chunk * C;
        UNROLL
        for (int q = 0; q < N / C; q++) /* sums are in registers: constant numbers */
            if (q == chunk) {
                UNROLL
                for (int i = 0; i < PER; i++)
                    to[(i / 4 * 8 + i % 2) * GEMM_LINE + i % 4 / 2 * 8] =
                        E4M3 ? mul(d[q * PER + i], by_row[i % 4 / 2]) : d[q * PER + i];
            }
        if (light && p.n_epi && c < n) { /* on its way during the wait */
            UNROLL
            for (int i = 0; i < TURNS; i++) {
                int r = r0 + t / 16 + 8 * i;
                o[i] = ld_16(b.e[0] + (int64_t)p.epi[0].t.off + (r < rows ? r : r0) * p.epi[0].t.s0 + 4 * c);
            }
        }
        part_sync(barrier, threads);
        if (light) {
            UNROLL
            for (int i = 0; i < TURNS; i++) {
                int r = r0 + t / 16 + 8 * i;
                if (r >= rows || c >= n)
                    continue;
                uint4 f = ld_16(mine + (t / 16 + 8 * i) * GEMM_LINE + t % 16 * 4);
                float v[4] = {float_of(f.x), float_of(f.y), float_of(f.z), float_of(f.w)};
                float z[4] = {float_of(o[i].x), float_of(o[i].y), float_of(o[i].z), float_of(o[i].w)};
                for (int k = 0; k < 4; k++) {
                    v[k] = mul(x_scale ? mul(v[k], x_scale[r]) : v[k], p.scale);
                    if (has_bias)
                        v[k] = add(v[k], bv[k]);
                    if (p.n_epi)
                        v[k] = add(v[k], z[k]);
                }
                st4(out + (int64_t)y.off + r * y.s0, y.fmt, c, v);
            }
        } else if (glu && fours && p.act == INFER_ACT_SILU) {
            UNROLL
            for (int i = 0; i < TURNS / 2; i++) {
                int line = half * 8 + t / 16 + 16 * i, r = r0 + line;
                if (r >= rows || c >= end)
                    continue;
                const float *from = lines + line * GEMM_LINE + t % 16 * 4;
                uint4 f = ld_16(from), h = ld_16(from + GEMM_LINES(N));
                float v[4] = {float_of(f.x), float_of(f.y), float_of(f.z), float_of(f.w)};
                float u[4] = {float_of(h.x), float_of(h.y), float_of(h.z), float_of(h.w)};
                for (int k = 0; k < 4; k++)
                    v[k] = gemm_silu(p.limit, x_scale ? mul(v[k], x_scale[r]) : v[k],
                                     x_scale ? mul(u[k], x_scale[r]) : u[k]);
                uchar *to = out + (int64_t)y.off + r * y.s0;
                if (panels) {
                    for (int k = 0; k < 4; k++)
                        v[k] = c < n ? v[k] : 0.0f;
                    st4(to + panel_at(p.panels, r, c), INFER_FMT_BF16, panel_e(p.panels, r, c), v);
                } else {
                    st4(to, y.fmt, c, v);
                }
            }
        } else {
            int first = glu ? thread_id() - 128 : t, column = s.row + (glu ? 0 : 64 * half);
            NO_UNROLL
            for (int i = first; i < 64 * C; i += threads) {
                int r = r0 + i / 64, e = column + i % 64;
                if (r >= rows || e >= end)
                    continue;
                const float *from = (glu ? lines : mine) + i / 64 * GEMM_LINE + i % 64;
                float k = x_scale ? x_scale[r] : 1.0f, v = mul(*from, k);
                v = glu ? gated(p.act, p.limit, v, 1, mul(from[GEMM_LINES(N)], k))
                        : gemm_finish(p, b, s.weight, r, e, v);
                uchar *to = out + at(y, r);
                if (panels)
                    st(to + panel_at(p.panels, r, e), INFER_FMT_BF16, panel_e(p.panels, r, e), e < n ? v : 0.0f);
                else
                    st(to, y.fmt, e, v);
            }
        }
        part_sync(barrier, threads);
    }
}

/* A piece of a tile: puts the sums in scratch; 1: all pieces are there, and d has their sum. */
template <int N>
DEV int gemm_join(const gemm_plan &g, const gemm_work &w, float d[WG_SUMS(N)], float *parts, uint32_t *seen)
{
    /* 16 bytes of a thread, of them at once; pieces on their way */
    const int S = WG_SUMS(N) / 4, MOST = S < 8 ? S : 8, AHEAD = N < 128 ? 128 / N : 1;
    int me = thread_id() - 128, rank = cluster_rank();
    uint32_t tile = (uint32_t)w.tile, unit = tile * (uint32_t)g.steps;
    int first = (int)gemm_maker(g, unit), last = (int)gemm_maker(g, unit + (uint32_t)g.steps - 1);
    int block = (int)blockIdx.x / WG_CLUSTER;
    float *to = parts + (int64_t)(2 * (int)blockIdx.x + (block == first)) * (128 * N) + 4 * me;
    UNROLL
    for (int i = 0; i < S; i++)
        st_16(to + i * 1024, bits_of(d[4 * i]), bits_of(d[4 * i + 1]), bits_of(d[4 * i + 2]), bits_of(d[4 * i + 3]));
    part_sync(GEMM_BOTH, 256);
    if (me == 0)
        *seen = device_count(&gemm_done[tile * WG_CLUSTER + rank]);
    part_sync(GEMM_BOTH, 256);
    if (*seen != (uint32_t)(last - first))
        return 0;
    if (me == 0)
        gemm_done[tile * WG_CLUSTER + rank] = 0;
    for (int i = 0; i < WG_SUMS(N); i++)
        d[i] = 0;
    for (int k = first; k <= last; k += AHEAD) {
        UNROLL
        for (int i0 = 0; i0 < S; i0 += MOST) {
            uint4 v[AHEAD][MOST];
            UNROLL
            for (int a = 0; a < AHEAD; a++) {
                int from = k + a <= last ? k + a : last;
                const float *p =
                    parts + (int64_t)(2 * (WG_CLUSTER * from + rank) + (from == first)) * (128 * N) + 4 * me;
                UNROLL
                for (int i = 0; i < MOST; i++)
                    v[a][i] = ld_16(p + (i0 + i) * 1024);
            }
            UNROLL
            for (int a = 0; a < AHEAD; a++)
                if (k + a <= last) {
                    UNROLL
                    for (int i = 0; i < MOST; i++) {
                        float *to = d + 4 * (i0 + i);
                        to[0] += float_of(v[a][i].x);
                        to[1] += float_of(v[a][i].y);
                        to[2] += float_of(v[a][i].z);
                        to[3] += float_of(v[a][i].w);
                    }
                }
            wgmma_pin<1>(d); /* no more loads on their way than have registers */
        }
    }
    return 1;
}

/* Registers: few rows leave room for others' blocks; many have all, which warpgroups then share out among them. */
#if defined(SIMT_H)
#define REGISTERS(n)
#else
#define REGISTERS(n) __maxnreg__(n)
#endif
#define GEMM_FEW  REGISTERS(112)
#define GEMM_MANY __launch_bounds__(GEMM_THREADS, 1)

#define GEMM_ARGS                                                                                                      \
    const uchar *w0, const uchar *w1, const uchar *w2, const uchar *b0, const uchar *s0, const uchar *s1, uchar *y0,   \
        uchar *s2, uchar *s3, const uchar *x, uchar *scratch, const uchar *counts, const gemm_block p
/* s0 to s3: operands of the epilogue's steps with one weight; with several the others' biases and outputs. */
#define GEMM_BASES                                                                                                     \
    {                                                                                                                  \
        x, {w0, w1, w2}, {b0, s0, s1}, {s0, s1, s2, s3},                                                               \
        {                                                                                                              \
            y0, s2, s3                                                                                                 \
        }                                                                                                              \
    }

#endif
#endif
