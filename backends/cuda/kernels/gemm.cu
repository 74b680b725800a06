/* y = x W^T for many rows and packed weights in 16 and 8 bits: a warpgroup brings panels of W and lines of x to shared
 * memory by bulk copies, in the layout in which both lie in memory, two warpgroups multiply 64 rows of W each by all
 * rows of the tile of x. Bound by the matrix units where there are many rows, by reading W where there are few.
 *
 * gemm_x_F      x of any plain format as F (bf16, f16, e4m3) has it: see gemm.h. Row scales: a block a row of x
 *   grid  bf16: x ceil(k / 512), y groups of 8 rows (walked), 256 threads; others: x rows, 512 threads
 * gemm_xn_bf16  the same after an RMS norm, a block a row of x; the other formats' gemm_x_F do that too
 * gemmN_F       N rows of x a tile
 *   grid  a multiple of WG_CLUSTER, best one block a multiprocessor; GEMM_THREADS threads, dynamic memory
 * GEMM_SHARED(N) Launched behind each other, with early begin or without. SPDX-License-Identifier: Apache-2.0 */
#include "gemm.cuh"

#if defined(WGMMA)

#define STEP_BYTES 2048 /* of a panel */

/* The block's first threads bring weights (wave 0) and x (wave 1). Few rows need few registers, so that others' blocks
 * can be there too. */
template <int N, int FMT> DEV void gemm(const gemm_bases &b, uchar *scratch, const uchar *counts, const gemm_block &p)
{
    const int STAGE = GEMM_STAGE(N), STAGES = GEMM_STAGES(N), LINES_AT = STAGE * STAGES;
    const int UNIT = FMT == INFER_FMT_F8_E4M3 ? 128 : 64;
    SHARED_DYN(raw);
    uchar *mem = raw + (1024 - (uintptr_t)raw % 1024) % 1024;
    mbar *full = (mbar *)(mem + LINES_AT + 8 * GEMM_LINES(N)), *empty = full + STAGES;
    uint32_t *seen = (uint32_t *)(empty + STAGES);
    int wave = wave_from(thread_id() / 32, 0), lane = thread_id() % 32, steps = (p.k + UNIT - 1) / UNIT;
    if (thread_id() == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbar_init(full + i, 2);
            mbar_init(empty + i, 8 * WG_CLUSTER);
        }
        mbar_made();
    }
    grid_go();
    cluster_sync();
    int rows = gemm_rows<N>(p, counts);
    gemm_plan g = gemm_plan_of(p, rows, N, steps);
    if (wave < 4) {
        if (N > 64)
            registers_shrink<24>();
        if (wave == 0) {
            const int64_t panel = (int64_t)steps * STEP_BYTES;
            const int once = p.rows.cap <= N;
            gemm_work w = gemm_first();
            ring_at r = {0, 1};
            while (gemm_next(g, w)) {
                const uchar *from = gemm_panel(p, b, gemm_spot_of(g, p, w.tile), lane % 8, panel);
                for (int k = w.k0; k < w.k1; k++) {
                    mbar_wait(empty + r.stage, r.phase);
                    if (lane == 0)
                        mbar_expect(full + r.stage, GEMM_A_BYTES);
                    if (lane < 8)
                        bulk_copy(mem + r.stage * STAGE + lane * STEP_BYTES, from + (int64_t)k * STEP_BYTES, STEP_BYTES,
                                  full + r.stage, once);
                    ring_step<STAGES>(r);
                }
            }
        } else if (wave == 1) {
            gemm_bring_x<N, STAGES>(g, p, b, rows, 1, mem + GEMM_A_BYTES, STAGE, full, empty);
        }
    } else {
        if (N > 64)
            registers_grow<240>();
        int half = wave / 4 - 1;
        ring_at r = {0, 0};
        gemm_work w = gemm_first();
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
                const uchar *from = mem + r.stage * STAGE;
                mbar_wait(full + r.stage, r.phase);
                wg_place a = wg_at(from + half * (GEMM_A_BYTES / 2)), x = wg_at(from + GEMM_A_BYTES);
                wgmma_fence();
                UNROLL
                for (int i = 0; i < 4; i++)
                    wgmma_shared<N, FMT>(d, wg_next(a, i), wg_next(x, i), 1);
                wgmma_commit();
                if (last >= 0) {
                    wgmma_wait<1>();
                    if (lane < WG_CLUSTER)
                        cluster_arrive(empty + last, lane);
                }
                last = r.stage;
                ring_step<STAGES>(r);
            }
            wgmma_wait<0>();
            wgmma_pin<WG_SUMS(N)>(d);
            if (lane < WG_CLUSTER)
                cluster_arrive(empty + last, lane);
            if (w.k1 - w.k0 < g.steps && !gemm_join<N>(g, w, d, (float *)(scratch + p.part_off), seen))
                continue;
            gemm_out<N, FMT == INFER_FMT_F8_E4M3, FMT == INFER_FMT_BF16>(
                p, b, gemm_spot_of(g, p, w.tile), rows,
                FMT == INFER_FMT_BF16 ? NULL : (const float *)(scratch + p.scale_off), d, (float *)(mem + LINES_AT));
        }
    }
    cluster_sync(); /* no block leaves while another may arrive here, or copies come */
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

extern "C" __global__ void __launch_bounds__(256)
    gemm_x_bf16(const uchar *x, const uchar *, uchar *scratch, const uchar *counts, const gemm_x_block p)
{
    int steps = p.steps, piece = (int)blockIdx.x * 64 + thread_id() % 64;
    grid_go();
    grid_wait();
    int rows = rows_of(counts, p.rows);
    for (int r0 = 8 * (int)blockIdx.y; r0 < rows && piece < 8 * steps; r0 += 8 * (int)gridDim.y)
        for (int r = r0 + thread_id() / 64; r < rows && r < r0 + 8; r += 4) {
            float v[8];
            gemm_x8(x + at(p.x, r), p, 8 * piece, v);
            st8(gemm_x_at(scratch + p.to_off, p, steps, r, piece / 8, piece % 8), INFER_FMT_BF16, 0, 1, v);
        }
}

/* Nearest number of E4M3 at or below 448. */
DEV uint32_t gemm_e4m3(float v)
{
#if defined(SIMT_H)
    uint32_t sign = bits_of(v) >> 24 & 0x80u;
    float a = fabsf(v);
    if (!(a == a))
        return 0x7Fu;
    if (a >= 448.0f)
        return sign | 0x7Eu;
    int e = a < 0.015625f ? -6 : (int)(bits_of(a) >> 23) - 127;
    int q = (int)nearbyintf(ldexpf(a, 3 - e)); /* 16 carries into the exponent */
    return sign | (uint32_t)((e + 6) * 8 + q);
#else
    uint16_t two;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(0.0f), "f"(v));
    return two & 255u;
#endif
}

/* A row's scale: F16 a power of two that brings its largest number near 2^14, E4M3 what brings it to 448. */
template <int FMT> DEV float gemm_x_scale(float largest, float *back)
{
    uint32_t e = bits_of(largest) >> 23; /* sign 0 */
    if (e == 255 || largest == 0.0f) {
        *back = 1.0f;
        return 1.0f;
    }
    if (FMT == INFER_FMT_F8_E4M3) {
        float s = 448.0f / largest;
        if (s < 1e30f) {
            *back = largest / 448.0f;
            return s;
        }
    }
    e = e < 15 ? 15 : e;
    *back = float_of((e - 14) << 23);
    return float_of((268 - e) << 23);
}

/* What element i of a row is to be multiplied by after a norm's factor. */
DEV float gemm_x_weight(const gemm_x_block &p, const uchar *norm, int i)
{
    return p.norm.fmt && i < p.k ? add(ld(norm + p.norm.off, p.norm.fmt, i), p.offset) : 1.0f;
}

DEV void gemm_x_weights(const gemm_x_block &p, const uchar *norm, int i, float f[8])
{
    norm += p.norm.off;
    if (p.norm.fmt && i + 8 <= p.k)
        ld8(norm, p.norm.fmt, i, is_aligned(norm, 16), f);
    for (int k = 0; k < 8; k++)
        f[k] = p.norm.fmt && i + 8 <= p.k ? add(f[k], p.offset) : gemm_x_weight(p, norm - p.norm.off, i + k);
}

/* A row after its norm, if it has one, times its scale, if the format wants one. */
template <int FMT>
DEV void gemm_x_row(const uchar *x, const uchar *norm, uchar *scratch, const uchar *counts, const gemm_x_block &p)
{
    const int WIDE = FMT == INFER_FMT_F8_E4M3 ? 16 : 8; /* elements of a piece */
    int steps = p.steps, r = (int)blockIdx.x;
    float back, largest = 0, squares = 0, inv = 1;
    grid_go();
    grid_wait();
    if (r >= rows_of(counts, p.rows))
        return;
    const uchar *row = x + at(p.x, r);
    for (int i = 8 * thread_id(); i < p.k; i += 8 * block_threads()) {
        float v[8], f[8];
        gemm_x8(row, p, i, v);
        if (p.has_norm)
            gemm_x_weights(p, norm, i, f);
        for (int k = 0; k < 8; k++) {
            squares = fmaf(v[k], v[k], squares);
            largest = fmaxf(largest, fabsf(p.has_norm ? mul(v[k], f[k]) : v[k]));
        }
    }
    if (p.has_norm)
        inv = 1.0f / sqrtf(block_sum(squares) / (float)p.k + p.eps);
    float s = 1;
    if (FMT != INFER_FMT_BF16) {
        s = gemm_x_scale<FMT>(mul(block_max(largest), inv), &back);
        if (thread_id() == 0)
            ((float *)(scratch + p.scale_off))[r] = back;
    }
    for (int i = thread_id(); i < 8 * steps; i += block_threads()) {
        uchar *to = gemm_x_at(scratch + p.to_off, p, steps, r, i / 8, i % 8);
        float v[WIDE];
        for (int k = 0; k < 8 && p.mixed; k++) { /* of 64, fragment i / 2 % 4 of 16, its first or second half */
            int e = i / 8 * 64 + k / 2 * 16 + i % 8 / 2 * 4 + i % 2 * 2 + k % 2;
            v[k] = e < p.k ? ld(row, p.x.fmt, e) : 0.0f;
            if (p.has_norm)
                v[k] = mul(mul(v[k], inv), gemm_x_weight(p, norm, e));
        }
        for (int k = 0; k < WIDE && !p.mixed; k += 8) {
            float f[8];
            gemm_x8(row, p, WIDE * i + k, v + k);
            if (p.has_norm) {
                gemm_x_weights(p, norm, WIDE * i + k, f);
                for (int j = 0; j < 8; j++)
                    v[k + j] = mul(mul(v[k + j], inv), f[j]);
            }
        }
        for (int k = 0; k < WIDE && FMT != INFER_FMT_BF16; k++)
            v[k] = mul(v[k], s);
        if (FMT != INFER_FMT_F8_E4M3) {
            st8(to, FMT, 0, 1, v);
        } else {
            uint32_t u[4] = {0, 0, 0, 0};
            for (int k = 0; k < WIDE; k++)
                u[k / 4] |= gemm_e4m3(v[k]) << k % 4 * 8;
            st_16(to, u[0], u[1], u[2], u[3]);
        }
    }
}

#define GEMM_X(name, FMT)                                                                                              \
    extern "C" __global__ void __launch_bounds__(512)                                                                  \
        name(const uchar *x, const uchar *norm, uchar *scratch, const uchar *counts, const gemm_x_block p)             \
    {                                                                                                                  \
        gemm_x_row<FMT>(x, norm, scratch, counts, p);                                                                  \
    }
GEMM_X(gemm_xn_bf16, INFER_FMT_BF16)
GEMM_X(gemm_x_f16, INFER_FMT_F16)
GEMM_X(gemm_x_e4m3, INFER_FMT_F8_E4M3)

#define GEMM(N, name, LIMIT, FMT)                                                                                      \
    extern "C" __global__ void CLUSTERED LIMIT gemm##N##_##name(GEMM_ARGS)                                             \
    {                                                                                                                  \
        const gemm_bases b = GEMM_BASES;                                                                               \
        gemm<N, FMT>(b, scratch, counts, p);                                                                           \
    }
#define GEMM_ALL(name, FMT)                                                                                            \
    GEMM(16, name, GEMM_FEW, FMT)                                                                                      \
    GEMM(32, name, GEMM_FEW, FMT)                                                                                      \
    GEMM(64, name, GEMM_FEW, FMT) GEMM(128, name, GEMM_MANY, FMT) GEMM(256, name, GEMM_MANY, FMT)
GEMM_ALL(bf16, INFER_FMT_BF16)
GEMM_ALL(f16, INFER_FMT_F16)
GEMM_ALL(e4m3, INFER_FMT_F8_E4M3)

#endif
