/* y = x W^T for many rows and packed weights of 4 to 8 bits: as gemm.cu, but the warpgroups that multiply read codes
 * from shared memory, where they lie as fragments want them, and make f16 of them in registers, from which the products
 * take them; x is f16 with a scale a row. Weights and x come through rings of their own: a stage of weights is 256 of
 * K, one of x is 64. Bound by the matrix units from about 64 rows on, below by unpacking and reading W.
 *
 * A format is a struct: PER steps of STEP bytes are 256 of K, and frags gives the fragments of four times 16 of K, for
 * quarter q of them; panel: those steps of this wave's panel, l the lane. SPDX-License-Identifier: Apache-2.0 */
#ifndef GEMM_QUANT_CUH
#define GEMM_QUANT_CUH

#include "gemm.cuh"
#include "packed.cuh"

#if defined(WGMMA)

/* ---- Pairs of f16 ---- */

/* Half i of v, twice: free where an operand may be read so. */
DEV uint32_t h2_both(uint32_t v, int i)
{
#if defined(SIMT_H)
    return bytes_of(v, 0, i ? 0x3232u : 0x1010u);
#else
    uint32_t r;
    if (i)
        asm("{\n.reg .b16 a, b;\nmov.b32 {a, b}, %1;\nmov.b32 %0, {b, b};\n}" : "=r"(r) : "r"(v));
    else
        asm("{\n.reg .b16 a, b;\nmov.b32 {a, b}, %1;\nmov.b32 %0, {a, a};\n}" : "=r"(r) : "r"(v));
    return r;
#endif
}

/* Pairs of small numbers n as f16: those of 1024 + n are n's bits under 0x6400, and what is added takes 1024 off. */
#define H2_1024       0x64006400u
#define H2_LESS(n)    (0xE400E400u + (n)*0x10001u) /* -1024 - n */
#define H2_SIXTEENTH  0x2C002C00u
#define H2_LESS_64(n) (0xD400D400u + (n)*0x100010u) /* -64 - n */

/* The four pairs of a word of nibbles, `less` of each taken off. */
DEV void nibble_pairs(uint32_t w, uint32_t less, uint32_t v[4])
{
    uint32_t high = w >> 8;
    v[0] = half2_add(and_or(w, 0x000F000Fu, H2_1024), H2_LESS(less));
    v[2] = half2_fma(and_or(w, 0x00F000F0u, H2_1024), H2_SIXTEENTH, H2_LESS_64(less));
    v[1] = half2_add(and_or(high, 0x000F000Fu, H2_1024), H2_LESS(less));
    v[3] = half2_fma(and_or(high, 0x00F000F0u, H2_1024), H2_SIXTEENTH, H2_LESS_64(less));
}

/* Pairs 0 to 3 of row g + 8 h to their places in the fragments of 16 of K: a of the block's first. */
DEV void put_pairs(uint32_t (*a)[4], int h, const uint32_t v[4])
{
    a[0][h] = v[0], a[0][2 + h] = v[1], a[1][h] = v[2], a[1][2 + h] = v[3];
}

/* ---- Formats
 * ---------------------------------------------------------------------------------------------------------
 */

struct gemm_q8_0 {
    static const int STEP = 1088, PER = 4;
    static const bool E4M3 = false;
    DEV void frags(const uchar *panel, int q, int l, uint32_t a[4][4])
    {
        const uchar *s = panel + q * STEP;
        uint2 d = ld_8(s + 1024 + l / 4 * 8); /* block 0 rows g, g + 8; block 1 */
        for (int b = 0; b < 2; b++) {
            uint4 c = ld_16(s + b * 512 + l * 16);
            const uint32_t w[4] = {c.x, c.y, c.z, c.w};
            for (int h = 0; h < 2; h++) {
                uint32_t scale = h2_both(b ? d.y : d.x, h), v[4];
                for (int i = 0; i < 4; i++)
                    v[i] = half2_mul(
                        half2_add(bytes_of(w[2 * h + i / 2], 0x64646464u, i % 2 ? 0x4342u : 0x4140u), H2_LESS(128)),
                        scale);
                put_pairs(a + 2 * b, h, v);
            }
        }
    }
};

template <int MINIMA> struct gemm_q4 {
    static const int STEP = MINIMA ? 640 : 576, PER = 4;
    static const bool E4M3 = false;
    DEV void frags(const uchar *panel, int q, int l, uint32_t a[4][4])
    {
        const uchar *s = panel + q * STEP;
        uint4 c = ld_16(s + l * 16);
        uint2 d = ld_8(s + 512 + l / 4 * 8), m = MINIMA ? ld_8(s + 576 + l / 4 * 8) : d;
        const uint32_t w[4] = {c.x, c.y, c.z, c.w};
        for (int i = 0; i < 4; i++) { /* block i / 2, row g + i % 2 * 8 */
            uint32_t scale = h2_both(i / 2 ? d.y : d.x, i % 2), v[4];
            uint32_t least = h2_both(i / 2 ? m.y : m.x, i % 2);
            nibble_pairs(w[i], MINIMA ? 0 : 8, v);
            for (int k = 0; k < 4; k++)
                v[k] = MINIMA ? half2_fma(v[k], scale, least) : half2_mul(v[k], scale);
            put_pairs(a + i / 2 * 2, i % 2, v);
        }
    }
};
typedef gemm_q4<0> gemm_q4_0;
typedef gemm_q4<1> gemm_q4_1;

struct gemm_q4_k {
    static const int STEP = 2368, PER = 1;
    static const bool E4M3 = false;
    DEV void frags(const uchar *panel, int q, int l, uint32_t a[4][4])
    {
        uint4 c = ld_16(panel + q * 512 + l * 16);
        uint2 sm = ld_8(panel + 2048 + q * 64 + l / 4 * 8); /* rows g, g + 8: scale, minimum, of two blocks */
        const uint32_t w[4] = {c.x, c.y, c.z, c.w};
        for (int h = 0; h < 2; h++) {
            uint32_t d = ld_u32(panel + 2304 + (l / 4 + 8 * h) * 4) ^ 0x80000000u; /* d, -dmin */
            for (int b = 0; b < 2; b++) {
                uint32_t v[4], both = bytes_of(h ? sm.y : sm.x, 0x64646464u, b ? 0x4342u : 0x4140u);
                both = half2_mul(half2_add(both, H2_LESS(0)), d);
                uint32_t scale = h2_both(both, 0), least = h2_both(both, 1);
                nibble_pairs(w[2 * b + h], 0, v);
                for (int k = 0; k < 4; k++)
                    v[k] = half2_fma(v[k], scale, least);
                put_pairs(a + 2 * b, h, v);
            }
        }
    }
};

struct gemm_u4 {
    static const int STEP = 2128, PER = 1;
    static const bool E4M3 = false;
    DEV void frags(const uchar *panel, int q, int l, uint32_t a[4][4])
    {
        uint4 c = ld_16(panel + q * 512 + l * 16);
        uint32_t d = ld_u32(panel + 2048 + l / 4 * 8 + q / 2 * 4), zeros = panel[2112 + l / 4 * 2 + q / 2];
        const uint32_t w[4] = {c.x, c.y, c.z, c.w};
        for (int h = 0; h < 2; h++) {
            uint32_t scale = h2_both(d, h), zero = zeros >> 4 * h & 15u;
            for (int b = 0; b < 2; b++) {
                uint32_t v[4];
                nibble_pairs(w[2 * b + h], zero, v); /* exact, so that a weight is rounded once */
                for (int k = 0; k < 4; k++)
                    v[k] = half2_mul(v[k], scale);
                put_pairs(a + 2 * b, h, v);
            }
        }
    }
};

struct gemm_q6_k {
    static const int STEP = 3360, PER = 1;
    static const bool E4M3 = false;
    DEV void frags(const uchar *panel, int q, int l, uint32_t a[4][4])
    {
        uint4 c = ld_16(panel + q * 512 + l * 16);
        uint2 high = ld_8(panel + 2048 + q * 256 + l * 8), sc = ld_8(panel + 3072 + q * 64 + l / 4 * 8);
        const uint32_t w[4] = {c.x, c.y, c.z, c.w};
        for (int h = 0; h < 2; h++) {
            uint32_t d = h2_both(ld_u16(panel + 3328 + (l / 4 + 8 * h) * 2), 0);
            uint32_t four = (h ? sc.y : sc.x) ^ 0x80808080u; /* scales + 128 */
            for (int b = 0; b < 2; b++) {
                uint32_t two = half2_add(bytes_of(four, 0x64646464u, b ? 0x4342u : 0x4140u), H2_LESS(128)), v[4];
                two = half2_mul(two, d);
                /* the bits above, the upper one turned round */
                uint32_t u = b ? high.y : high.x, n = w[2 * b + h], up = u << (4 - 2 * h), down = u >> 2 * h;
                v[0] = and_xor(up, 0x00300030u, and_or(n, 0x000F000Fu, H2_1024 + 0x00200020u));
                v[1] = and_xor(up >> 8, 0x00300030u, and_or(n >> 8, 0x000F000Fu, H2_1024 + 0x00200020u));
                v[2] = and_xor(down, 0x00300030u, and_or(n >> 4, 0x000F000Fu, H2_1024 + 0x00200020u));
                v[3] = and_xor(down >> 8, 0x00300030u, and_or(n >> 12, 0x000F000Fu, H2_1024 + 0x00200020u));
                for (int k = 0; k < 4; k++)
                    v[k] = half2_mul(half2_add(v[k], H2_LESS(32)), h2_both(two, k / 2));
                put_pairs(a + 2 * b, h, v);
            }
        }
    }
};

/* Codes in the order of memory: of 64 elements, a lane has 16 that lie together of row g and of g + 8, four of them a
 * fragment; x is put in that order. */
struct gemm_e4m3w {
    static const int STEP = 2048, PER = 2;
    static const bool E4M3 = true;
    DEV void frags(const uchar *panel, int q, int l, uint32_t a[4][4])
    {
        for (int h = 0; h < 2; h++) {
            int g = l / 4;
            uint4 c = ld_16(panel + q / 2 * STEP + h * 1024 + g * 128 + ((q % 2 * 4 + l % 4) ^ g) * 16);
            const uint32_t w[4] = {c.x, c.y, c.z, c.w};
            for (int i = 0; i < 4; i++) {
                a[i][h] = e4m3_pair(w[i] & 0xFFFFu);
                a[i][2 + h] = e4m3_pair(w[i] >> 16);
            }
        }
    }
};

/* ---- The product
 * -----------------------------------------------------------------------------------------------------
 */

template <int N, class F>
DEV void gemm_quant(const gemm_bases &b, uchar *scratch, const uchar *counts, const gemm_block &p)
{
    const int PANEL = F::STEP * F::PER, X_STAGES = GEMM_X_STAGES(N), W_STAGES = GEMM_W_STAGES(N, PANEL);
    const int W_AT = 128 * N * X_STAGES, LINES_AT = W_AT + 8 * PANEL * W_STAGES;
    SHARED_DYN(raw);
    uchar *mem = raw + (1024 - (uintptr_t)raw % 1024) % 1024;
    mbar *x_full = (mbar *)(mem + LINES_AT + 8 * GEMM_LINES(N)), *x_empty = x_full + X_STAGES;
    mbar *w_full = x_empty + X_STAGES, *w_empty = w_full + W_STAGES;
    uint32_t *seen = (uint32_t *)(w_empty + W_STAGES);
    int wave = wave_from(thread_id() / 32, 0), lane = thread_id() % 32, steps = (p.k + 255) / 256;
    if (thread_id() == 0) {
        for (int i = 0; i < X_STAGES; i++) {
            mbar_init(x_full + i, 1);
            mbar_init(x_empty + i, 8 * WG_CLUSTER);
        }
        for (int i = 0; i < W_STAGES; i++) {
            mbar_init(w_full + i, 1);
            mbar_init(w_empty + i, 8);
        }
        mbar_made();
    }
    grid_go();
    cluster_sync();
    int rows = gemm_rows<N>(p, counts);
    gemm_plan g = gemm_plan_of(p, rows, N, steps);
    if (wave < 4) {
        registers_shrink<24>();
        if (wave == 0) {
            /* Steps of K: the last stage may have fewer; the last one stands for what is not there, for which x is 0.
             */
            const int own = (p.k + 256 / F::PER - 1) / (256 / F::PER), once = p.rows.cap <= N;
            gemm_work w = gemm_first();
            ring_at r = {0, 1};
            while (gemm_next(g, w)) {
                const uchar *from = gemm_panel(p, b, gemm_spot_of(g, p, w.tile), lane % 8, (int64_t)own * F::STEP);
                for (int k = w.k0; k < w.k1; k++) {
                    uchar *to = mem + W_AT + r.stage * (8 * PANEL) + lane % 8 * PANEL;
                    mbar_wait(w_empty + r.stage, r.phase);
                    if (lane == 0)
                        mbar_expect(w_full + r.stage, 8 * PANEL);
                    if ((k + 1) * F::PER <= own) {
                        if (lane < 8)
                            bulk_copy(to, from + (int64_t)k * PANEL, PANEL, w_full + r.stage, once);
                    } else if (lane < 8 * F::PER) {
                        int s = k * F::PER + lane / 8;
                        bulk_copy(to + lane / 8 * F::STEP, from + (int64_t)(s < own ? s : own - 1) * F::STEP, F::STEP,
                                  w_full + r.stage, once);
                    }
                    ring_step<W_STAGES>(r);
                }
            }
        } else if (wave == 1) {
            gemm_bring_x<N, X_STAGES>(g, p, b, rows, 4, mem, 128 * N, x_full, x_empty);
        }
    } else {
        registers_grow<240>();
        const uchar *mine = mem + W_AT + (wave - 4) * PANEL;
        ring_at x = {0, 0}, r = {0, 0};
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
                uint32_t a[2][4][4]; /* a quarter's fragments are made while the products of the one before run */
                mbar_wait(w_full + r.stage, r.phase);
                UNROLL
                for (int q = 0; q < 4; q++) {
                    F::frags(mine + r.stage * (8 * PANEL), q, lane, a[q % 2]);
                    if (q == 3) {
                        wave_sync();
                        if (lane == 0)
                            mbar_arrive(w_empty + r.stage);
                    }
                    mbar_wait(x_full + x.stage, x.phase);
                    wg_place at_x = wg_at(mem + x.stage * (128 * N));
                    wgmma_fence();
                    UNROLL
                    for (int i = 0; i < 4; i++)
                        wgmma_regs<N>(d, a[q % 2][i], wg_next(at_x, i), 1);
                    wgmma_commit();
                    if (last >= 0) {
                        wgmma_wait<1>();
                        if (lane < WG_CLUSTER)
                            cluster_arrive(x_empty + last, lane);
                    }
                    last = x.stage;
                    ring_step<X_STAGES>(x);
                }
                ring_step<W_STAGES>(r);
            }
            wgmma_wait<0>();
            wgmma_pin<WG_SUMS(N)>(d);
            if (lane < WG_CLUSTER)
                cluster_arrive(x_empty + last, lane);
            if (w.k1 - w.k0 < g.steps && !gemm_join<N>(g, w, d, (float *)(scratch + p.part_off), seen))
                continue;
            gemm_out<N, F::E4M3, false>(p, b, gemm_spot_of(g, p, w.tile), rows, (const float *)(scratch + p.scale_off),
                                        d, (float *)(mem + LINES_AT));
        }
    }
    cluster_sync();
}

#define GEMM_QUANT(N, name, F)                                                                                         \
    extern "C" __global__ void CLUSTERED GEMM_MANY gemm##N##_##name(GEMM_ARGS)                                         \
    {                                                                                                                  \
        const gemm_bases b = GEMM_BASES;                                                                               \
        gemm_quant<N, F>(b, scratch, counts, p);                                                                       \
    }
#define GEMM_QUANT_ALL(name)                                                                                           \
    GEMM_QUANT(16, name, gemm_##name)                                                                                  \
    GEMM_QUANT(32, name, gemm_##name) GEMM_QUANT(64, name, gemm_##name) GEMM_QUANT(128, name, gemm_##name)

#endif
#endif
