/* Rotation, writing into a paged cache, moving its blocks. Bound by memory; at few rows by the launch.
 * SPDX-License-Identifier: Apache-2.0 */
#include "async.cuh"
#include "rope.cuh"
#include "unpack.cuh"

/* Element e of a head after rotation. */
DEV float turned(const lp_rope &p, const uchar *x, const uchar *pos, const uchar *freq, int e)
{
    if (e >= p.dims)
        return ld(x, p.x.fmt, e);
    int half_n = p.dims / 2, i = p.kind ? e % half_n : e / 2, second = p.kind ? e >= half_n : e & 1;
    float sine, cosine, a, b;
    turn(((const int *)pos)[which_pos(p, i)], ld(freq, p.freq.fmt, i), sine, cosine);
    turn_pair(ld(x, p.x.fmt, p.kind ? i : 2 * i), ld(x, p.x.fmt, p.kind ? i + half_n : 2 * i + 1),
              mul(sine, p.magnitude), mul(cosine, p.magnitude), a, b);
    return second ? b : a;
}

/* Where head 0 of a row goes, and from one head to the next; false: to no place of the cache. */
DEV bool row_to(const lp_rope &p, int64_t row, int slot, int64_t &to, int64_t &step)
{
    if (!p.slots.fmt) {
        to = (int64_t)p.y.off + row * p.y.s0;
        step = p.y.s1;
        return true;
    }
    int block = slot / p.block_size;
    to = (int64_t)p.y.off + block * p.y.s0 + slot % p.block_size * p.y.s2;
    step = p.y.s1;
    return slot >= 0 && block < p.n_blocks;
}

/* A row in groups of 32 neighbours, one thread an element, for blocks of such groups. item: (head, group), the same for
 * 32 threads; all of a wave come along. */
DEV void write_group(const uchar *x, const uchar *pos, const uchar *freq, const uchar *slots, uchar *y,
                     const lp_rope &p, int row, int item)
{
    int groups = (p.x.width + 31) / 32, head = item / groups, g = item % groups, e = 32 * g + (int)threadIdx.x % 32;
    int keep = head < p.heads && e < p.x.width;
    int64_t to, step;
    head = head < p.heads ? head : 0;
    keep &= row_to(p, row, p.slots.fmt ? *(const int *)(slots + at(p.slots, row)) : 0, to, step);
    x += (int64_t)p.x.off + row * p.x.s0 + head * p.x.s1;
    float v = keep ? turned(p, x, p.dims ? pos + at(p.pos, row) : pos, freq + p.freq.off, e) : 0.0f;
    pack32(y + (keep ? to + head * step : 0), p.y.fmt, g, v, keep);
}

/* Heads that a thread takes a pair of: one angle serves all. */
#define ROPE_HEADS 4

/* A row pair by pair: item is (heads, pair). n: rows as the counts say, asked for when all else is on its way. */
DEV void write_pairs(const uchar *x, const uchar *pos, const uchar *freq, const uchar *slots, uchar *y,
                     const lp_rope &p, int row, int item, int count)
{
    int pairs = (p.x.width + 1) / 2, i = item % pairs, h0 = item / pairs * ROPE_HEADS, half_n = p.dims / 2;
    int a = 2 * i, b = 2 * i + 1, slot = 0, where = 0;
    float f = 0, u[ROPE_HEADS] = {}, v[ROPE_HEADS] = {};
    bool rotate = i < half_n;
    if (h0 >= p.heads)
        return;
    if (rotate && p.kind) {
        a = i;
        b = i + half_n;
    }
    x += (int64_t)p.x.off + row * p.x.s0 + h0 * p.x.s1;
    UNROLL
    for (int h = 0; h < ROPE_HEADS; h++)
        if (h0 + h < p.heads) {
            u[h] = ld(x + h * p.x.s1, p.x.fmt, a);
            v[h] = b < p.x.width ? ld(x + h * p.x.s1, p.x.fmt, b) : 0.0f;
        }
    if (p.slots.fmt)
        slot = *(const int *)(slots + p.slots.off + row * p.slots.s0);
    if (rotate) {
        where = ((const int *)(pos + at(p.pos, row)))[which_pos(p, i)];
        f = ld(freq + p.freq.off, p.freq.fmt, i);
    }
    int64_t to, step;
    if (row >= rows_of_count(count, p.rows) || !row_to(p, row, slot, to, step))
        return;
    if (rotate) {
        float sine, cosine;
        turn(where, f, sine, cosine);
        sine = mul(sine, p.magnitude);
        cosine = mul(cosine, p.magnitude);
        UNROLL
        for (int h = 0; h < ROPE_HEADS; h++) {
            float s = u[h], t = v[h];
            turn_pair(s, t, sine, cosine, u[h], v[h]);
        }
    }
    UNROLL
    for (int h = 0; h < ROPE_HEADS; h++)
        if (h0 + h < p.heads) {
            st_plain(y + to + (h0 + h) * step, p.y.fmt, a, u[h]);
            if (b < p.x.width)
                st_plain(y + to + (h0 + h) * step, p.y.fmt, b, v[h]);
        }
}

DEV void write_rows(const uchar *x, const uchar *pos, const uchar *freq, const uchar *slots, uchar *y,
                    const uchar *counts, const lp_rope &p)
{
    int thread = (int)(blockIdx.x * blockDim.x + threadIdx.x), count = count_of(counts, p.rows);
    bool groups = p.y.fmt == INFER_FMT_Q8_0 || p.y.fmt == INFER_FMT_Q4_0;
    FOR_VECTORS(row, p.rows.cap)
    {
        if (!groups)
            write_pairs(x, pos, freq, slots, y, p, row, thread, count);
        else if (row < rows_of_count(count, p.rows))
            write_group(x, pos, freq, slots, y, p, row, thread / 32);
    }
}

/* Rotated where dims is not 0, to rows (no slots) or to a plane of the cache. Grid: x over threads, a row's
 * LP_ROPE_PAIRS or LP_ROPE_BLOCKS, y over rows (walked). */
extern "C" __global__ void rope_write(const uchar *x, const uchar *pos, const uchar *freq, const uchar *slots, uchar *y,
                                      const uchar *counts, const lp_rope p)
{
    grid_go();
    grid_wait();
    write_rows(x, pos, freq, slots, y, counts, p);
}

/* Several of the same rows in one launch, gridDim.z of them: K (rotated) and V, and perhaps Q. */
extern "C" __global__ void rope_writes(const uchar *k, const uchar *pos, const uchar *freq, const uchar *slots,
                                       uchar *ky, const uchar *v, uchar *vy, const uchar *q, uchar *qy,
                                       const uchar *counts, const GRID_CONSTANT lp_ropes p)
{
    int z = (int)blockIdx.z;
    grid_go();
    grid_wait();
    write_rows(z == 0 ? k : z == 1 ? v : q, pos, freq, slots, z == 0 ? ky : z == 1 ? vy : qy, counts, p.of[z]);
}

/* Token (block, offset) of head h in a plane; -1: there is none. */
DEV int64_t token(const lp_tensor &t, int n_blocks, int block, int offset, int head)
{
    if (block < 0 || block >= n_blocks)
        return -1;
    return (int64_t)t.off + block * t.s0 + head * t.s1 + offset * t.s2;
}

/* 16 bytes at e, fewer at the end n; from NULL: zeros. */
DEV void move_16(uchar *to, const uchar *from, int e, int n)
{
    if (e + 16 <= n && is_aligned(to, 16) && is_aligned(from, 16)) {
        uint4 v = {0, 0, 0, 0};
        if (from)
            v = ld_16(from + e);
        st_16(to + e, v.x, v.y, v.z, v.w);
        return;
    }
    for (int i = e; i < e + 16 && i < n; i++)
        to[i] = from ? from[i] : 0;
}

#define FOR_SIXTEENS(e, n)                                                                                             \
    for (int e = 16 * (int)(blockIdx.x * blockDim.x + threadIdx.x); e < (n); e += 16 * (int)(gridDim.x * blockDim.x))

/* A thread owns 16 bytes of a head, so that lists are walked in order. Grid: x over bytes / 16, y heads (exactly), z
 * list entries * block_size (walked; mode 2: one). */
extern "C" __global__ void kv_move(const uchar *a, uchar *y, const uchar *src, const uchar *dst, const uchar *counts,
                                   const lp_move p)
{
    grid_go();
    grid_wait();
    int head = (int)blockIdx.y, n = rows_of(counts, p.rows);
    const int *from = (const int *)(src + p.src.off), *to = (const int *)(dst + p.dst.off);
    if (p.mode == 2) {
        if (blockIdx.z)
            return;
        for (int i = 0; i < n; i++) {
            int f = from[i], t = to[i];
            int64_t s = f < 0 ? -1 : token(p.a, p.n_blocks, f / p.block_size, f % p.block_size, head);
            int64_t d = t < 0 ? -1 : token(p.y, p.n_blocks, t / p.block_size, t % p.block_size, head);
            if (s < 0 || d < 0 || s == d)
                continue;
            FOR_SIXTEENS(e, p.bytes)
            {
                move_16(y + d, y + s, e, p.bytes);
            }
        }
        return;
    }
    for (int64_t row = blockIdx.z; row < (int64_t)n * p.block_size; row += gridDim.z) {
        int entry = (int)(row / p.block_size), offset = (int)(row % p.block_size), block = from[entry];
        int64_t pool = token(p.mode == 0 ? p.a : p.y, p.n_blocks, block, offset, head);
        int64_t image = token(p.mode == 0 ? p.y : p.a, n, entry, offset, head);
        if (p.mode == 1 && pool < 0)
            continue;
        uchar *d = y + (p.mode == 0 ? image : pool);
        const uchar *s = p.mode == 1 ? a + image : pool < 0 ? 0 : a + pool;
        FOR_SIXTEENS(e, p.bytes)
        {
            move_16(d, s, e, p.bytes);
        }
    }
}

/* Whole slots [S][...]: vectors of each (y, walked), in list order. heads: slots, block_size: vectors of a slot. */
extern "C" __global__ void state_copy(uchar *y, const uchar *src, const uchar *dst, const uchar *counts,
                                      const lp_move p)
{
    grid_go();
    grid_wait();
    int n = rows_of(counts, p.rows);
    const int *from = (const int *)(src + p.src.off), *to = (const int *)(dst + p.dst.off);
    FOR_VECTORS(v, p.block_size)
    {
        for (int i = 0; i < n; i++) {
            if (from[i] < 0 || from[i] >= p.heads || to[i] < 0 || to[i] >= p.heads || from[i] == to[i])
                continue;
            int64_t s = at(p.y, (int64_t)from[i] * p.block_size + v), d = at(p.y, (int64_t)to[i] * p.block_size + v);
            FOR_SIXTEENS(e, p.bytes)
            {
                move_16(y + d, y + s, e, p.bytes);
            }
        }
    }
}
