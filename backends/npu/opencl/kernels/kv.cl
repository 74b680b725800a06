/* Rotation, writing into a paged cache, moving its blocks. SPDX-License-Identifier: Apache-2.0 */

/* Sine and cosine of pos * freq: the product's error and two parts of 2 pi keep the angle exact to a float's last
 * bits however far the position. */
float2 turn(int pos, float freq)
{
    float hi = (float)pos * freq, lo = fma((float)pos, freq, -hi);
    float n = rint(hi * 0.15915494309189535f);
    float r = fma(-n, 6.28318548202514648f, hi);
    r = fma(n, 1.74845553146e-7f, r) + lo;
    return (float2)(sin(r), cos(r));
}

/* Element e of a head after rotation. */
float turned(const lp_rope *p, const G uchar *x, const G uchar *pos, const G uchar *freq, int e)
{
    if (e >= p->dims)
        return ld(x, p->x.fmt, e);
    int half_n = p->dims / 2, i = p->kind ? e % half_n : e / 2, second = p->kind ? e >= half_n : e & 1;
    int a = p->kind ? i : 2 * i, b = p->kind ? i + half_n : 2 * i + 1, which = 0;
    if (p->n_pos > 1) /* the position that pair i uses: sections in order */
        for (int end = p->section[0]; which < p->n_pos - 1 && i >= end; end += p->section[which])
            which++;
    float2 sc = turn(((const G int *)pos)[which], ld(freq, p->freq.fmt, i)) * p->magnitude;
    float u = ld(x, p->x.fmt, a), v = ld(x, p->x.fmt, b);
    return second ? fma(u, sc.x, v * sc.y) : fma(u, sc.y, -(v * sc.x));
}

/* 32 elements of a head, by one item or by 32 lanes: rotated where dims is not 0, to rows (no slots) or to a plane of
 * the cache. */
__kernel void rope_write(const G uchar *x, const G uchar *pos, const G uchar *freq, const G uchar *slots, G uchar *y,
                         const G uchar *counts, const lp_rope p)
{
    int e0 = 32 * get_group_id(0), head = get_global_id(1), row = get_global_id(2), n = min(32, p.x.width - e0);
    int slot = 0, live = row < rows_of(counts, &p.rows) && head < p.heads;
    x += at(&p.x, live ? (long)row * p.heads + head : 0);
    pos += p.dims && live ? at(&p.pos, row) : 0;
    freq += p.freq.off;
    if (live && p.slots.fmt) {
        slot = *(const G int *)(slots + at(&p.slots, row));
        live = slot >= 0 && slot / p.block_size < p.n_blocks;
    }
    if (!p.slots.fmt)
        y += at(&p.y, live ? (long)row * p.heads + head : 0);
    else if (live)
        y += p.y.off + slot / p.block_size * p.y.s0 + head * p.y.s1 + slot % p.block_size * p.y.s2;
    int packed = p.y.fmt == FMT_Q8_0 || p.y.fmt == FMT_Q4_0;
#if LANES == 1
    float v[32];
    for (int i = 0; i < n && live; i++) {
        v[i] = turned(&p, x, pos, freq, e0 + i);
        if (!packed)
            st_plain(y, p.y.fmt, e0 + i, v[i]);
    }
    if (packed && live)
        pack32(y, p.y.fmt, e0 / 32, v);
#else
    L float all[32];
    int i = get_local_id(0);
    float u = live && i < n ? turned(&p, x, pos, freq, e0 + i) : 0.0f;
    all[i] = u;
    FENCE();
    if (!packed && live && i < n)
        st_plain(y, p.y.fmt, e0 + i, u);
    if (packed && live && i == 0) {
        float v[32];
        for (int k = 0; k < 32; k++)
            v[k] = all[k];
        pack32(y, p.y.fmt, e0 / 32, v);
    }
#endif
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
