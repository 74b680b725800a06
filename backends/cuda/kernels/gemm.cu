/* y = x W^T for many rows and packed weights in 16 and 8 bits: a warpgroup brings panels of W and lines of x to shared
 * memory by bulk copies, in the layout in which both lie in memory, two warpgroups multiply 64 rows of W each by all
 * rows of the tile of x. Bound by the matrix units where there are many rows, by reading W where there are few.
 *
 * gemm_x_F      x of any plain format as F (bf16, f16, e4m3) has it: see gemm.h. Row scales: a block a row of x
 *   grid  bf16: x ceil(k / 512), y groups of 8 rows (walked), 256 threads; others: x rows, 512 threads
 * gemmN_F       N rows of x a tile
 *   grid  any, best one block a multiprocessor; GEMM_THREADS threads, dynamic memory GEMM_SHARED(N)
 * Launched behind each other, with early begin or without. SPDX-License-Identifier: Apache-2.0 */
#include "gemm.cuh"

#if defined(WGMMA)

#define STEP_BYTES 2048 /* of a panel */
#define A_BYTES    (8 * STEP_BYTES)

template <int N> struct gemm_shape {
    static const int STAGE = A_BYTES + 128 * N;
    static const int STAGES = 196608 / STAGE < 10 ? 196608 / STAGE : 10;
    static const int LINES = STAGE * STAGES;               /* where what goes out begins */
    static const int BARS = LINES + 2 * 4 * GEMM_LINES(N); /* full, empty, then a word */
};

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

template <int N, int FMT> DEV void gemm(const gemm_bases &b, uchar *scratch, const uchar *counts, const gemm_block &p)
{
    typedef gemm_shape<N> S;
    const int UNIT = FMT == INFER_FMT_F8_E4M3 ? 128 : 64;
    SHARED_DYN(raw);
    uchar *mem = raw + (1024 - (uintptr_t)raw % 1024) % 1024;
    mbar *full = (mbar *)(mem + S::BARS), *empty = full + S::STAGES;
    uint32_t *seen = (uint32_t *)(empty + S::STAGES);
    int wave = wave_from(thread_id() / 32, 0), lane = thread_id() % 32, steps = (p.k + UNIT - 1) / UNIT;
    int early = p.rows.cap <= N, rows; /* early: the work is known without the number of rows */
    if (thread_id() == 0) {
        for (int i = 0; i < S::STAGES; i++) {
            mbar_init(full + i, 1);
            mbar_init(empty + i, 8);
        }
        mbar_made();
    }
    grid_go();
    __syncthreads();
    if (!early)
        grid_wait();
    gemm_plan g = gemm_plan_of(p, early ? p.rows.cap : rows_of(counts, p.rows), N, steps);
    if (wave < 4) {
        registers_shrink<24>();
        if (wave == 0) {
            const int64_t panel = (int64_t)steps * STEP_BYTES;
            const uchar *x = scratch + p.x_off;
            /* Early, the first stages' weights come before the wait for x. Pass 0: those; pass 1: everything else. */
            for (int pass = !early, sent = 0; pass < 2; pass++) {
                gemm_work w = gemm_first(g);
                ring_at r = {0, 1};
                int n = 0;
                if (pass && early)
                    grid_wait();
                while ((pass || n < S::STAGES) && gemm_next(g, w)) {
                    gemm_spot s = gemm_spot_of(g, p, w.tile);
                    const uchar *from =
                        lane < 8 ? gemm_panel(p, b, s, lane, panel) : x + (int64_t)s.col * steps * (128 * N);
                    for (int k = w.k0; k < w.k1 && (pass || n < S::STAGES); k++, n++) {
                        uchar *to = mem + r.stage * S::STAGE;
                        int both = pass && n >= sent;
                        mbar_wait(empty + r.stage, r.phase);
                        if (lane == 0 && (both || !pass))
                            mbar_expect(full + r.stage, S::STAGE);
                        wave_sync();
                        if (lane < 8 && (both || !pass))
                            bulk_copy(to + lane * STEP_BYTES, from + (int64_t)k * STEP_BYTES, STEP_BYTES,
                                      full + r.stage, early);
                        else if (lane == 8 && pass)
                            bulk_copy(to + A_BYTES, from + (int64_t)k * (128 * N), 128 * N, full + r.stage, false);
                        ring_step<S::STAGES>(r);
                    }
                }
                sent = n;
            }
        }
    } else {
        registers_grow<240>();
        int half = wave / 4 - 1;
        ring_at r = {0, 0};
        gemm_work w = gemm_first(g);
        grid_wait();
        rows = rows_of(counts, p.rows);
        while (gemm_next(g, w)) {
            float d[WG_SUMS(N)];
            int last = -1;
            UNROLL
            for (int i = 0; i < WG_SUMS(N); i++)
                d[i] = 0;
            wgmma_pin<WG_SUMS(N)>(d);
            for (int k = w.k0; k < w.k1; k++) {
                const uchar *from = mem + r.stage * S::STAGE;
                mbar_wait(full + r.stage, r.phase);
                wg_place a = wg_at(from + half * (A_BYTES / 2)), x = wg_at(from + A_BYTES);
                wgmma_fence();
                UNROLL
                for (int i = 0; i < 4; i++)
                    wgmma_shared<N, FMT>(d, wg_next(a, i), wg_next(x, i), 1);
                wgmma_commit();
                if (last >= 0) {
                    wgmma_wait<1>();
                    if (lane == 0)
                        mbar_arrive(empty + last);
                }
                last = r.stage;
                ring_step<S::STAGES>(r);
            }
            wgmma_wait<0>();
            wgmma_pin<WG_SUMS(N)>(d);
            if (lane == 0)
                mbar_arrive(empty + last);
            if (w.k1 - w.k0 < g.steps &&
                !gemm_join<N>(g, w, d, (uint32_t *)(scratch + p.count_off), (float *)(scratch + p.part_off), seen))
                continue;
            gemm_out<N>(p, b, gemm_spot_of(g, p, w.tile), rows,
                        FMT == INFER_FMT_BF16 ? NULL : (const float *)(scratch + p.scale_off), d,
                        (float *)(mem + S::LINES));
        }
    }
}

/* ---- x --------------------------------------------------------------------------------------------------------------
 */

/* Eight elements of a row, zero from K on. */
DEV void gemm_x8(const uchar *row, const gemm_x_block &p, int i, float v[8])
{
    if (i + 8 <= p.k) {
        ld8(row, p.x.fmt, i, is_aligned(row, 16), v);
        return;
    }
    for (int k = 0; k < 8; k++)
        v[k] = i + k < p.k ? ld(row, p.x.fmt, i + k) : 0.0f;
}

/* Where 16 bytes of row r lie: piece c of step s. */
DEV uchar *gemm_x_at(uchar *to, const gemm_x_block &p, int steps, int r, int s, int c)
{
    int t = r / p.tile, line = r % p.tile;
    return to + ((int64_t)t * steps + s) * (128 * p.tile) + line / 8 * 1024 + line % 8 * 128 + (c ^ line % 8) * 16;
}

DEV void gemm_x_counters(uchar *scratch, const gemm_x_block &p, int from, int stride)
{
    for (int i = from; i < p.counters; i += stride)
        ((uint32_t *)(scratch + p.count_off))[i] = 0;
}

extern "C" __global__ void __launch_bounds__(256)
    gemm_x_bf16(const uchar *x, uchar *scratch, const uchar *counts, const gemm_x_block p)
{
    int steps = (p.k + 63) / 64, piece = (int)blockIdx.x * 64 + thread_id() % 64;
    grid_go();
    grid_wait();
    int rows = rows_of(counts, p.rows);
    if (blockIdx.x == 0 && blockIdx.y == 0)
        gemm_x_counters(scratch, p, thread_id(), 256);
    for (int r0 = 8 * (int)blockIdx.y; r0 < rows && piece < 8 * steps; r0 += 8 * (int)gridDim.y)
        for (int r = r0 + thread_id() / 64; r < rows && r < r0 + 8; r += 4) {
            float v[8];
            gemm_x8(x + at(p.x, r), p, 8 * piece, v);
            st8(gemm_x_at(scratch + p.to_off, p, steps, r, piece / 8, piece % 8), INFER_FMT_BF16, 0, 1, v);
        }
}

#define GEMM(N, name, FMT)                                                                                             \
    extern "C" __global__ void __launch_bounds__(GEMM_THREADS, 1) gemm##N##_##name(GEMM_ARGS)                          \
    {                                                                                                                  \
        const gemm_bases b = GEMM_BASES;                                                                               \
        gemm<N, FMT>(b, scratch, counts, p);                                                                           \
    }
#define GEMM_ALL(name, FMT)                                                                                            \
    GEMM(16, name, FMT) GEMM(32, name, FMT) GEMM(64, name, FMT) GEMM(128, name, FMT) GEMM(256, name, FMT)
GEMM_ALL(bf16, INFER_FMT_BF16)

#endif
