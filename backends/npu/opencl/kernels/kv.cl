/* Rotation, writing into a paged cache, moving its blocks. SPDX-License-Identifier: Apache-2.0 */

/* 32 elements of a head from e0 on, by one item or by 32 lanes: rotated where dims is not 0. Where live is 0, nothing;
 * no lane of a group may stay away. */
void write_32(const lp_rope *p, const G uchar *x, int fmt, int width, int dims, const G uchar *pos, const G uchar *freq,
              G uchar *y, int to, int e0, int live, L float *all)
{
    int n = min(32, width - e0), packed = to == FMT_Q8_0 || to == FMT_Q4_0;
#if LANES == 1
    float v[32];
    for (int i = 0; i < n && live; i++) {
        v[i] = turned(p, x, fmt, dims, pos, freq, e0 + i);
        if (!packed)
            st_plain(y, to, e0 + i, v[i]);
    }
    if (packed && live && n > 0)
        pack32(y, to, e0 / 32, v);
#else
    int i = get_local_id(0);
    float u = live && i < n ? turned(p, x, fmt, dims, pos, freq, e0 + i) : 0.0f;
    all[i] = u;
    FENCE();
    if (!packed && live && i < n)
        st_plain(y, to, e0 + i, u);
    if (packed && live && i == 0 && n > 0) {
        float v[32];
        for (int k = 0; k < 32; k++)
            v[k] = all[k];
        pack32(y, to, e0 / 32, v);
    }
#endif
}

#if LANES == 1
#define SCRATCH_32(name) L float *name = 0
#define GROUP_OF_32
#else
#define SCRATCH_32(name) L float name[32]
#define GROUP_OF_32      __attribute__((reqd_work_group_size(32, 1, 1)))
#endif

/* Heads rotated where dims is not 0, to rows (no slots) or to a plane of the cache. Dimension 0: groups of 32 elements,
 * 1: heads, 2: rows. */
__kernel GROUP_OF_32 void rope_write(const G uchar *x, const G uchar *pos, const G uchar *freq, const G uchar *slots,
                                     G uchar *y, const G uchar *counts, const lp_rope p)
{
    SCRATCH_32(all);
    int head = get_global_id(1), row = get_global_id(2), live = row < rows_of(counts, &p.rows) && head < p.heads;
    long to = live ? goes_to(&p, &p.y, p.slots.fmt, p.heads, slots, row, head) : -1;
    live = to >= 0;
    write_32(&p, x + (live ? at(&p.x, (long)row * p.heads + head) : 0), p.x.fmt, p.x.width, p.dims,
             pos + (p.dims && live ? at(&p.pos, row) : 0), freq + p.freq.off, y + (live ? to : 0), p.y.fmt,
             32 * (int)get_group_id(0), live, all);
}

/* The same of K, V and perhaps Q in one launch: dimension 1 has the heads of Q, then K's, then V's. */
__kernel GROUP_OF_32 void rope_writes(const G uchar *k, const G uchar *pos, const G uchar *freq, const G uchar *slots,
                                      G uchar *k_to, const G uchar *v, G uchar *v_to, const G uchar *q, G uchar *q_to,
                                      const G uchar *counts, const lp_rope_kvq p)
{
    SCRATCH_32(all);
    int head = get_global_id(1), row = get_global_id(2), is_q = head < p.q_heads, heads = is_q ? p.q_heads : p.k.heads;
    head -= is_q ? 0 : p.q_heads;
    int is_k = !is_q && head < heads, live = row < rows_of(counts, &p.k.rows);
    head -= is_q || is_k ? 0 : heads;
    live &= head < heads;
    long from = 0, to = -1, n = (long)row * heads + head;
    if (live) {
        from = is_q ? at(&p.q, n) : is_k ? at(&p.k.x, n) : at(&p.v, n);
        to = is_q   ? goes_to(&p.k, &p.q_to, 0, heads, slots, row, head)
             : is_k ? goes_to(&p.k, &p.k.y, 1, heads, slots, row, head)
                    : goes_to(&p.k, &p.v_to, 1, heads, slots, row, head);
    }
    live = to >= 0;
    int dims = is_q || is_k ? p.k.dims : 0, at_pos = dims && live;
    write_32(&p.k, (is_q ? q : is_k ? k : v) + from, is_q ? p.q.fmt : is_k ? p.k.x.fmt : p.v.fmt,
             is_q ? p.q.width : is_k ? p.k.x.width : p.v.width, dims, pos + (at_pos ? at(&p.k.pos, row) : 0),
             freq + p.k.freq.off, (is_q ? q_to : is_k ? k_to : v_to) + (live ? to : 0),
             is_q ? p.q_to.fmt : is_k ? p.k.y.fmt : p.v_to.fmt, 32 * (int)get_group_id(0), live, all);
}

/* One byte column of a head: lists are walked in order. Dimension 0: bytes, 1: heads, 2: list entries (mode 2: one). */
__kernel void kv_move(const G uchar *a, G uchar *y, const G uchar *src, const G uchar *dst, const G uchar *counts,
                      const lp_move p)
{
    int e0 = FIRST, e1 = LAST(p.bytes), head = get_global_id(1), row = get_global_id(2), n = rows_of(counts, &p.rows);
    const G int *from = (const G int *)(src + p.src.off), *to = (const G int *)(dst + p.dst.off);
    if (p.mode == 2) {
        for (int i = 0; i < n; i++) {
            long s = from[i] < 0 ? -1 : token(&p.a, p.n_blocks, from[i] / p.block_size, from[i] % p.block_size, head);
            long d = to[i] < 0 ? -1 : token(&p.y, p.n_blocks, to[i] / p.block_size, to[i] % p.block_size, head);
            if (s < 0 || d < 0)
                continue;
            for (int e = e0; e < e1; e++)
                y[d + e] = y[s + e];
        }
        return;
    }
    int entry = row / p.block_size, offset = row % p.block_size;
    if (entry >= n)
        return;
    int block = from[entry];
    long pool = p.mode == 0 ? token(&p.a, p.n_blocks, block, offset, head) : token(&p.y, p.n_blocks, block, offset, head);
    if (p.mode == 0) {
        long d = token(&p.y, n, entry, offset, head);
        for (int e = e0; e < e1; e++)
            y[d + e] = pool < 0 ? 0 : a[pool + e];
    } else if (pool >= 0) {
        long s = token(&p.a, n, entry, offset, head);
        for (int e = e0; e < e1; e++)
            y[pool + e] = a[s + e];
    }
}

/* Whole slots [S][...]: vector VECTOR() of each, in list order. heads: slots, block_size: vectors of a slot. */
__kernel void state_copy(G uchar *y, const G uchar *src, const G uchar *dst, const G uchar *counts, const lp_move p)
{
    int v = VECTOR(), n = v < p.block_size ? rows_of(counts, &p.rows) : 0;
    const G int *from = (const G int *)(src + p.src.off), *to = (const G int *)(dst + p.dst.off);
    for (int i = 0; i < n; i++) {
        if (from[i] < 0 || from[i] >= p.heads || to[i] < 0 || to[i] >= p.heads)
            continue;
        long s = at(&p.y, (long)from[i] * p.block_size + v), d = at(&p.y, (long)to[i] * p.block_size + v);
        for (int e = FIRST; e < LAST(p.bytes); e++)
            y[d + e] = y[s + e];
    }
}
