/* y = x W^T for up to 4 rows at a time by packed weights (packed.h): bound by reading W. A block walks panels of 16
 * columns. One wave has weights copied into a ring in shared memory and waits for nothing but room, also not for the
 * kernel before: while that ends and while x is made ready, the ring fills. Sixteen waves add, a step of K each,
 * through matrix units (ring_step.cuh, ring_alone.cuh); two waves join sums and put them to their places. Before it x
 * may pass an RMS norm (ring_x.cuh). A row's sums do not depend on the other rows of its launch; codes of a program
 * with room for one row are added in an order of their own.
 *
 * What a launch runs for the first time it fetches from memory, behind the copies: at one row, few instructions before
 * the first sum are as good as few bytes. So a kernel is one format's, and x in whole lines has a way of its own.
 *
 * ring_F   arguments: x; weights; biases or the first's bias and epilogue operands; outputs; norm's weights; counts.
 * ring_F_G   the third weight is of format G: the first p.split blocks do the others
 *   block  RING_THREADS
 *   grid   x walks panels: as many blocks as are resident together
 *   shared RING_FIXED + held * (RING_SUMS + RING_SIZE) + slots * RING_STEPS * step
 * SPDX-License-Identifier: Apache-2.0 */
#include "ring_alone.cuh"
#include "ring_x.cuh"

#if defined(ASYNC) && WAVE == 32

/* ---- The kernel ---------------------------------------------------------------------------------------------------
 */

DEV int panels_of(int n)
{
    return (n + PACKED_ROWS - 1) / PACKED_ROWS;
}

/* The weight and panel that unit u, part h is. third: of that weight alone. */
DEV int weight_of(const lp_ring &p, int third, int u, int h, int *panel)
{
    *panel = u;
    if (third)
        return 2;
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
    const uchar *zeros;
    uchar *x, *slots;
    int held, units, parts, steps;  /* rows of x that there is room for; units: a panel, or gate's and up's */
    int me, blocks, third, n_slots; /* this block among those that share the units; of the third weight alone */
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
    int s = 0, turn = 1, rows = -1, first = b.n_slots;
    for (int r0 = 0; r0 == 0 || r0 < rows; r0 += b.held) {
        for (int u = b.me; u < b.units; u += b.blocks)
            for (int h = 0; h < b.parts; h++) {
                int panel, i = weight_of(p, b.third, u, h, &panel);
                const uchar *w = third(i, a.w[0], a.w[1], a.w[2]) + third(i, p.w_off[0], p.w_off[1], p.w_off[2]) +
                                 (int64_t)panel * b.steps * F::BYTES;
                for (int k = 0; k < b.steps; k += F::STEPS) {
                    int n = (b.steps - k < F::STEPS ? b.steps - k : F::STEPS) * F::BYTES;
                    if (first > 0 && first <= b.n_slots - F::AHEAD) /* more under way would be in x's way */
                        mbar_wait(b.full + b.n_slots - first - F::AHEAD, 0);
                    if (first-- == 0) { /* the ring is full: now there is time to ask */
                        rows = rows_of(a.counts, p.rows);
                        if (rows <= 0)
                            return copies_end(b, b.n_slots);
                    }
                    mbar_wait(b.empty + s, turn);
                    mbar_expect(b.full + s, n);
                    bulk_copy(b.slots + s * F::STEPS * F::BYTES, w + k * F::BYTES, n, b.full + s, true);
                    if (++s == b.n_slots) {
                        s = 0;
                        turn ^= 1;
                    }
                }
            }
        if (rows < 0) {
            rows = rows_of(a.counts, p.rows);
            if (rows <= 0)
                return copies_end(b, b.n_slots - first);
        }
    }
}

/* Puts sums to their places: every RING_ENDS-th unit. A lane has a row of x and a column, in two turns where there are
 * more than two rows. */
template <int FMT> DEV void ender(const ring_block &b, const ring_args &a, const lp_ring &p, int me)
{
    typedef ring_of<FMT> F;
    const int lane = (int)threadIdx.x % 32, rows = rows_of(a.counts, p.rows);
    int turn = 0, count = 0;
    grid_wait();
    for (int r0 = 0; r0 < rows; r0 += b.held)
        for (int u = b.me; u < b.units; u += b.blocks) {
            if (count++ % RING_ENDS != me)
                continue;
            float gate0 = 0, gate1 = 0;
            for (int h = 0; h < b.parts; h++) {
                int panel, i = weight_of(p, b.third, u, h, &panel), slot = 2 * me + h;
                const float *from = b.sums + slot * (RING_WAVES * 16) * b.held + lane;
                const int col = panel * PACKED_ROWS + lane % 16;
                const bool column = col < p.n[i];
                float by_row = 1;
                if (FMT == INFER_FMT_F8_E4M3 && p.by_row && column) {
                    const uchar *w = third(i, a.w[0], a.w[1], a.w[2]) + third(i, p.w_off[0], p.w_off[1], p.w_off[2]);
                    by_row = ((const float *)(w + (int64_t)panels_of(p.n[i]) * b.steps * F::BYTES))[col];
                }
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
                    v = FMT == INFER_FMT_F8_E4M3 ? mul(v, by_row) : v;
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
    enum { GROUPS = RING_ROWS / F::ROWS };
    const int blocks = b.steps * F::K32, size = RING_SIZE(blocks), rows = rows_of(a.counts, p.rows);
    const bool alone = is_alone<FMT>(p);
    float *scales = b.part + (RING_ROWS + 2) * RING_WAVES; /* behind what waves leave of rows */
    int slot = 0, turn = 0, sums = 0, sums_turn = 1;
    x_eight norm = {};
    if (in_lines(p.norm, a.norm + p.norm.off) && (int)threadIdx.x / 4 < p.k / 32)
        eight_ld<FMT>(norm.v, a.norm + p.norm.off, (int)threadIdx.x / 4);
    grid_wait();
    for (int r0 = 0; r0 < rows; r0 += b.held) {
        const int n_rows = rows - r0 < b.held ? rows - r0 : b.held;
        if (r0)
            part_sync(1, ADDERS); /* nobody reads x of before */
        for (int r = 0; r < n_rows; r++) {
            const x_part part = {b.part + r * RING_WAVES, b.part + (RING_ROWS + r % 2) * RING_WAVES};
            float by = x_row<FMT>(b.x + r * size, part, a.x + p.x.off + (r0 + r) * p.x.step, a.norm + p.norm.off, p,
                                  blocks, norm);
            if (threadIdx.x == 0)
                scales[r] = by;
        }
        part_sync(1, ADDERS);
        const x_place x = x_place_of<FMT>(b.x, blocks, n_rows);
        const x_alone own = x_alone_of<FMT>(b.x, b.zeros, blocks);
        float by[GROUPS];
        UNROLL
        for (int i = 0; i < GROUPS; i++) {
            const int r = i * F::ROWS + t * F::ROWS / 4;
            by[i] = r < n_rows ? scales[r] * (F::CODES && t % 2 == 0 ? 65536.0f : 1.0f) : 0.0f;
        }
        if (alone)
            by[0] = scales[0] * (t % 2 == 0 ? 65536.0f : 1.0f) * alone_factor<FMT>();
        for (int u = b.me; u < b.units; u += b.blocks) {
            for (int h = 0; h < b.parts; h++) {
                float d[GROUPS][4] = {};
                for (int k = 0; k < b.steps; k += F::STEPS) {
                    const int n = (b.steps - k < F::STEPS ? b.steps - k : F::STEPS) * F::PARTS;
                    mbar_wait(b.full + slot, turn);
                    for (int i = wave; i < n; i += RING_WAVES) {
                        const uchar *w = b.slots + slot * F::STEPS * F::BYTES + i / F::PARTS * F::BYTES;
                        const int at = (k + i / F::PARTS) * F::K32;
                        if (alone) {
                            step_alone<FMT>(w, own, at, i % F::PARTS, d[0]);
                            continue;
                        }
                        if (GROUPS == 1) {
                            step<FMT>(w, x, at, i % F::PARTS, d[0]);
                            continue;
                        }
                        x_place group = x;
                        NO_UNROLL
                        for (int first = 0;;) { /* one text for all: registers are few */
                            float e[4] = {0, 0, 0, 0};
                            step<FMT>(w, group, at, i % F::PARTS, e);
                            UNROLL
                            for (int v = 0; v < 4; v += 2) {
                                d[0][v] += first ? 0.0f : e[v];
                                d[GROUPS - 1][v] += first ? e[v] : 0.0f;
                            }
                            first += F::ROWS;
                            if (first >= n_rows)
                                break;
                            group = x_place_next<FMT>(group, blocks, n_rows);
                        }
                    }
                    wave_sync();
                    if (lane == 0)
                        mbar_arrive(b.empty + slot);
                    if (++slot == b.n_slots) {
                        slot = 0;
                        turn ^= 1;
                    }
                }
                if (p.has_norm && u == b.me && h == 0) { /* squares are there since x is; here it delays no first sum */
                    NO_UNROLL
                    for (int r = 0; r < n_rows; r++) {
                        const float factor = x_norm_factor(b.part + r * RING_WAVES, p);
                        UNROLL
                        for (int i = 0; i < GROUPS; i++)
                            by[i] *= alone || r == i * F::ROWS + t * F::ROWS / 4 ? factor : 1.0f;
                    }
                }
                mbar_wait(b.sums_empty + 2 * sums + h, sums_turn);
                UNROLL
                for (int i = 0; i < GROUPS; i++) {
                    const int r = i * F::ROWS + t * F::ROWS / 4;
                    float v0 = (d[i][0] + d[i][1]) * by[i], v1 = (d[i][2] + d[i][3]) * by[i];
                    if (F::CODES) { /* the other two bytes */
                        v0 += wave_xor(v0, 1);
                        v1 += wave_xor(v1, 1);
                    }
                    if (alone) { /* the other half of the columns */
                        v0 += wave_xor(v0, 2);
                        v1 += wave_xor(v1, 2);
                    }
                    if (r < b.held) {
                        float *to = b.sums + ((2 * sums + h) * RING_WAVES + wave) * 16 * b.held + r * 16 + g;
                        to[0] = v0;
                        to[8] = v1;
                    }
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

/* third: the blocks from p.split on, which have the third weight; others have all that these do not. */
template <int FMT> DEV void ring(const ring_args &a, const lp_ring &p, int third = 0)
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
    b.zeros = mem + RING_FIXED - RING_ZEROS;
    b.sums = (float *)(mem + RING_FIXED);
    b.held = p.held;
    b.third = third;
    b.me = (int)blockIdx.x - (third ? p.split : 0);
    b.blocks = third ? (int)gridDim.x - p.split : p.split ? p.split : (int)gridDim.x;
    b.n_slots = third ? p.last_slots : p.slots;
    const int last = p.kind == RING_SIDE && (third || !p.split) ? panels_of(p.n[2]) : 0;
    b.units = third ? last : panels_of(p.n[0]) + (p.kind == RING_SIDE ? panels_of(p.n[1]) : 0) + last;
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
    } else if (threadIdx.x < RING_ZEROS / 16) {
        st_16(mem + RING_FIXED - RING_ZEROS + 16 * threadIdx.x, 0, 0, 0, 0);
    }
    __syncthreads();
    grid_go();
    if (wave < RING_WAVES)
        adder<FMT>(b, a, p);
    else if (wave < RING_WAVES + RING_ENDS)
        ender<FMT>(b, a, p, wave - RING_WAVES);
    else if (lane == 0)
        copier<FMT>(b, a, p);
}

#define RING_KERNEL(name, ...)                                                                                         \
    extern "C" __global__ void __launch_bounds__(RING_THREADS, 1)                                                      \
        name(const uchar *x, const uchar *w0, const uchar *w1, const uchar *w2, const uchar *b0, const uchar *b1,      \
             const uchar *b2, const uchar *b3, const uchar *b4, uchar *y0, uchar *y1, uchar *y2, const uchar *norm,    \
             const uchar *counts, GRID_CONSTANT const lp_ring p)                                                       \
    {                                                                                                                  \
        ring_args a = {x, {w0, w1, w2}, {b0, b1, b2, b3, b4}, norm, counts, {y0, y1, y2}};                             \
        __VA_ARGS__;                                                                                                   \
    }
#define RING(F, ID) RING_KERNEL(ring_##F, ring<INFER_FMT_##ID>(a, p))
RING(bf16, BF16)
RING(f16, F16)
RING(e4m3, F8_E4M3)
RING(q8_0, Q8_0)
RING(q4_0, Q4_0)
RING(q4_1, Q4_1)
RING(q4_k, Q4_K)
RING(q6_k, Q6_K)
RING(u4, U4)
RING_KERNEL(ring_q4_k_q6_k, (int)blockIdx.x < p.split ? ring<INFER_FMT_Q4_K>(a, p) : ring<INFER_FMT_Q6_K>(a, p, 1))

#endif
