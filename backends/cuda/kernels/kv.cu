/* Rotation, writing into a paged cache, moving its blocks. Bound by memory; at few rows by the launch.
 * SPDX-License-Identifier: Apache-2.0 */
#include "unpack.cuh"

/* Sine and cosine of pos * freq: the product's error and two parts of 2 pi keep the angle exact to a float's last
 * bits however far the position. */
DEV void turn(int pos, float freq, float &sine, float &cosine)
{
    float hi = mul((float)pos, freq), lo = fmaf((float)pos, freq, -hi);
    float n = rintf(mul(hi, 0.15915494309189535f));
    float r = fmaf(-n, 6.28318548202514648f, hi);
    r = add(fmaf(n, 1.74845553146e-7f, r), lo);
    sine = sinf(r);
    cosine = cosf(r);
}

/* Element e of a head after rotation. */
DEV float turned(const lp_rope &p, const uchar *x, const uchar *pos, const uchar *freq, int e)
{
    if (e >= p.dims)
        return ld(x, p.x.fmt, e);
    int half_n = p.dims / 2, i = p.kind ? e % half_n : e / 2, second = p.kind ? e >= half_n : e & 1;
    int a = p.kind ? i : 2 * i, b = p.kind ? i + half_n : 2 * i + 1, which = 0;
    if (p.n_pos > 1) /* the position that pair i uses: sections in order */
        for (int end = p.section[0]; which < p.n_pos - 1 && i >= end; end += p.section[which])
            which++;
    float sine, cosine;
    turn(((const int *)pos)[which], ld(freq, p.freq.fmt, i), sine, cosine);
    sine = mul(sine, p.magnitude);
    cosine = mul(cosine, p.magnitude);
    float u = ld(x, p.x.fmt, a), v = ld(x, p.x.fmt, b);
    return second ? fmaf(u, sine, mul(v, cosine)) : fmaf(u, cosine, -mul(v, sine));
}

/* One thread an element, 32 neighbours a group; rotated where dims is not 0, to rows (no slots) or to a plane of the
 * cache. `item` numbers the groups of a row: (head, group). All threads of a wave come along. */
DEV void write_group(const uchar *x, const uchar *pos, const uchar *freq, const uchar *slots, uchar *y,
                     const lp_rope &p, int row, int item)
{
    int groups = (p.x.width + 31) / 32, head = item / groups, g = item % groups, e = 32 * g + (int)threadIdx.x % 32;
    int keep = head < p.heads && e < p.x.width;
    head = head < p.heads ? head : 0;
    x += at(p.x, (int64_t)row * p.heads + head);
    pos += p.dims ? at(p.pos, row) : 0;
    freq += p.freq.off;
    if (p.slots.fmt) {
        int slot = *(const int *)(slots + at(p.slots, row));
        if (slot < 0 || slot / p.block_size >= p.n_blocks)
            keep = slot = 0;
        y += p.y.off + slot / p.block_size * p.y.s0 + head * p.y.s1 + slot % p.block_size * p.y.s2;
    } else {
        y += at(p.y, (int64_t)row * p.heads + head);
    }
    float v = keep ? turned(p, x, pos, freq, e) : 0.0f;
    if (p.y.fmt == INFER_FMT_Q8_0 || p.y.fmt == INFER_FMT_Q4_0)
        pack32(y, p.y.fmt, g, v, keep);
    else if (keep)
        st_plain(y, p.y.fmt, e, v);
}

/* Groups of a row: heads * ceil(width / 32). Grid: x over them, blockDim.x / 32 a block, y over rows (walked). */
extern "C" __global__ void rope_write(const uchar *x, const uchar *pos, const uchar *freq, const uchar *slots, uchar *y,
                                      const uchar *counts, const lp_rope p)
{
    int n = rows_of(counts, p.rows), item = (int)((blockIdx.x * blockDim.x + threadIdx.x) / 32);
    FOR_VECTORS(row, n)
    {
        write_group(x, pos, freq, slots, y, p, row, item);
    }
}

/* K (rotated) and V of the same rows in one launch: gridDim.z is 2. */
extern "C" __global__ void rope_write2(const uchar *x, const uchar *pos, const uchar *freq, const uchar *slots,
                                       uchar *y, const uchar *v, uchar *vy, const uchar *counts, const lp_rope p,
                                       const lp_rope pv)
{
    int n = rows_of(counts, p.rows), item = (int)((blockIdx.x * blockDim.x + threadIdx.x) / 32);
    FOR_VECTORS(row, n)
    {
        if (blockIdx.z == 0)
            write_group(x, pos, freq, slots, y, p, row, item);
        else
            write_group(v, pos, freq, slots, vy, pv, row, item);
    }
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
