/* y = x W^T for many rows: 128 x 128 outputs a block of 256 threads, 32 of K a turn through two buffers in shared
 * memory, matrix fragments in bf16 or f16 with float sums. What lies in memory as the fragments want it is copied in
 * the background; all else is fetched into registers before the products of the turn and unpacked after them. Rows past
 * the end are the last one again. Bound by the matrix units for long K, by unpacking for the block formats.
 *
 * tile_F_bf16, tile_F_f16: arguments as the OpenCL kernel tile (no ids, choices 1).
 *   grid  x ceil(n / 128), y ceil(rows / 128) (walked), 256 threads
 * x and W are rounded to the fragments' format: 8 or 11 bits. f16 has no room above 65504. SPDX-License-Identifier:
 * Apache-2.0 */
#include "mma.cuh"
#include "product.cuh"

#define TILE   128
#define DEPTH  32
#define STRIDE 40 /* of a row of 32 in shared memory: fragments are read without conflicts */
#define GROUPS (TILE * DEPTH / 8 / 256)
#define WAVES  (256 / WAVE)
#define OUT    (TILE + 4) /* of a row of sums */

/* Waves stand WAVES_M by WAVES_N, each with 16 * FM by 8 * FN outputs. */
#define WAVES_M 2
#define WAVES_N (WAVES / WAVES_M)
#define FM      (TILE / WAVES_M / 16)
#define FN      (TILE / WAVES_N / 8)

template <int FMT> DEV void put8(uint16_t *to, const float *v)
{
    st_16(to, pack_two(v[0], v[1], FMT), pack_two(v[2], v[3], FMT), pack_two(v[4], v[5], FMT),
          pack_two(v[6], v[7], FMT));
}

/* A thread's i-th group of 8 of a turn: which row of the tile, which group of it. x and W lie in shared memory in the
 * order in which W's format groups elements; a sum over K does not mind. */
DEV int line_of(int i)
{
    return (thread_id() + 256 * i) / (DEPTH / 8);
}

DEV int group_of_turn(int i, int turn)
{
    return turn * (DEPTH / 8) + (thread_id() + 256 * i) % (DEPTH / 8);
}

template <class F, int FMT>
DEV void tile(const uchar *x, const uchar *w, const uchar *bias, const epi_bases &e, uchar *y, const uchar *counts,
              const lp_mm &p)
{
    SHARED(uint16_t, both, 4 * TILE * STRIDE);
    uint16_t *xs = both, *ws = both + 2 * TILE * STRIDE;
    float *out = (float *)both; /* at the end: [TILE / WAVES_M][OUT] */
    int t = thread_id(), wave = t / WAVE, c0 = (int)blockIdx.x * TILE, rows = rows_of(counts, p.rows);
    int wm = wave / WAVES_N * 16 * FM, wn = wave % WAVES_N * 8 * FN, turns = (p.k + DEPTH - 1) / DEPTH;
    int whole = p.wide && p.k % DEPTH == 0, w_copy = F::ID == FMT && whole;
    int x_copy = p.x.fmt == FMT && whole && F::second(0) == 4;
    w += p.w_off;
    for (int r0 = (int)blockIdx.y * TILE; r0 < rows; r0 += (int)gridDim.y * TILE) {
        float s[FM][FN][FRAG];
        UNROLL
        for (int i = 0; i < FM * FN * FRAG; i++)
            s[i / FRAG / FN][i / FRAG % FN][i % FRAG] = 0;
        const uchar *xr[GROUPS], *wr[GROUPS];
        for (int i = 0; i < GROUPS; i++) {
            int n = line_of(i), r = r0 + n;
            xr[i] = x + at(p.x, r < rows ? r : rows - 1);
            wr[i] = w + (c0 + n < p.n ? c0 + n : p.n - 1) * p.w_row;
        }
        float xv[GROUPS][8];
        typename F::raw raw[GROUPS];
        for (int turn = 0; turn <= turns; turn++) {
            int fetch = turn < turns, buf = turn % 2;
            __syncthreads();
            if (fetch) { /* begin: the background's part, and what goes through registers */
                UNROLL
                for (int i = 0; i < GROUPS; i++) {
                    int g = group_of_turn(i, turn), to = (buf * TILE + line_of(i)) * STRIDE + g % 4 * 8;
                    int all = 8 * g + 8 <= p.k;
                    if (x_copy) {
                        copy_16(xs + to, xr[i] + 16 * (int64_t)g);
                    } else if (all) {
                        x4(xr[i], p.x.fmt, F::first(g), is_aligned(xr[i], 16), xv[i]);
                        x4(xr[i], p.x.fmt, F::second(g), is_aligned(xr[i], 16), xv[i] + 4);
                    } else {
                        for (int k = 0; k < 8; k++)
                            xv[i][k] = 8 * g + k < p.k ? ld(xr[i], p.x.fmt, 8 * g + k) : 0.0f;
                    }
                    if (w_copy)
                        copy_16(ws + to, wr[i] + 16 * (int64_t)g);
                    else if (!F::PLAIN || (p.wide && all))
                        raw[i] = F::load(wr[i], g);
                }
                copy_commit();
            }
            if (turn) { /* the products of the turn before */
                const uint16_t *xa = xs + ((buf ^ 1) * TILE + wm) * STRIDE, *wb = ws + ((buf ^ 1) * TILE + wn) * STRIDE;
                UNROLL
                for (int k = 0; k < DEPTH; k += 16) {
                    frag_a<FMT> a[FM];
                    frag_b<FMT> b;
                    UNROLL
                    for (int i = 0; i < FM; i++)
                        frag_load(a[i], xa + 16 * i * STRIDE + k, STRIDE);
                    UNROLL
                    for (int j = 0; j < FN; j++) {
                        frag_load(b, wb + 8 * j * STRIDE + k, STRIDE);
                        UNROLL
                        for (int i = 0; i < FM; i++)
                            mma<FMT>(s[i][j], a[i], b);
                    }
                }
            }
            if (fetch) { /* end */
                UNROLL
                for (int i = 0; i < GROUPS; i++) {
                    int g = group_of_turn(i, turn), to = (buf * TILE + line_of(i)) * STRIDE + g % 4 * 8;
                    if (!x_copy)
                        put8<FMT>(xs + to, xv[i]);
                    if (w_copy)
                        continue;
                    float v[8];
                    if (!F::PLAIN || (p.wide && 8 * g + 8 <= p.k))
                        F::unpack(raw[i], g, v);
                    else
                        for (int k = 0; k < 8; k++)
                            v[k] = 8 * g + k < p.k ? F::one(wr[i], 8 * g + k) : 0.0f;
                    put8<FMT>(ws + to, v);
                }
                copy_wait<0>();
            }
        }
        /* out through shared memory, one row of waves at a time: stores are whole lines, and the sums stay in registers
         */
        for (int part = 0; part < WAVES_M; part++) {
            __syncthreads();
            if (wave / WAVES_N == part) {
                UNROLL
                for (int i = 0; i < FM; i++) {
                    UNROLL
                    for (int j = 0; j < FN; j++) {
                        UNROLL
                        for (int k = 0; k < FRAG; k++)
                            out[(16 * i + frag_row(k)) * OUT + wn + 8 * j + frag_col(k)] = s[i][j][k];
                    }
                }
            }
            __syncthreads();
            for (int i = t; i < TILE / WAVES_M * TILE; i += 256) {
                int r = r0 + part * (TILE / WAVES_M) + i / TILE, c = c0 + i % TILE;
                if (r < rows && c < p.n)
                    st(y + at(p.y, r), p.y.fmt, c, finish(p, out[i / TILE * OUT + i % TILE], r, c, bias, e));
            }
        }
    }
}

#define TILE_KERNEL(f, name, FMT)                                                                                      \
    extern "C" __global__ void __launch_bounds__(256) tile_##f##_##name(                                               \
        const uchar *x, const uchar *w, const uchar *, const uchar *bias, const uchar *e0, const uchar *e1,            \
        const uchar *e2, const uchar *e3, uchar *y, const uchar *counts, const lp_mm p)                                \
    {                                                                                                                  \
        epi_bases e = {{e0, e1, e2, e3}};                                                                              \
        tile<fmt_##f, FMT>(x, w, bias, e, y, counts, p);                                                               \
    }
#define TILE_BOTH(F, f) TILE_KERNEL(f, bf16, INFER_FMT_BF16) TILE_KERNEL(f, f16, INFER_FMT_F16)
FOR_FORMATS(TILE_BOTH)
