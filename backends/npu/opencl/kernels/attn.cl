/* Attention over a paged cache or dense keys: one work-group for a row and a head walks the keys in chunks of TK,
 * softmax on line (Milakov and Gimelshein 2018, arXiv:1805.02867). Chunks begin at multiples of TK whatever the batch,
 * so that a row's result depends on its own keys only. KF, VF: formats of keys and values. SPDX-License-Identifier: Apache-2.0 */

/* q . key, q in local memory, n elements. */
float key_dot(const L float *q, const G uchar *k, int n)
{
    const int fmt = KF;
    float8 s = 0;
    float rest = 0;
    if (fmt == FMT_Q8_0 || fmt == FMT_Q4_0 || fmt == FMT_F8_E4M3) {
        int g = 0;
        for (; g < n / 32; g++) {
            float16 a, b;
            unpack_any(fmt, k, g, &a, &b);
            s = fma(vload8(4 * g, q), a.lo, s);
            s = fma(vload8(4 * g + 1, q), a.hi, s);
            s = fma(vload8(4 * g + 2, q), b.lo, s);
            s = fma(vload8(4 * g + 3, q), b.hi, s);
        }
        for (int i = 32 * g; i < n; i++)
            rest = fma(q[i], ld_plain(k, fmt, i), rest);
        return sum8(s) + rest;
    }
    int i = 0;
#if LANES > 1
    if (fmt == FMT_F16 && (uintptr_t)k % 16 == 0)
        _Pragma("unroll 16") for (; i + 8 <= n; i += 8)
        {
            s = fma(vload8(0, q + i), vloada_half8(0, (const G half *)k + i), s);
        }
#endif
    for (; i + 8 <= n; i += 8)
        s = fma(vload8(0, q + i), ld8(k, fmt, i), s);
    for (; i < n; i++)
        rest = fma(q[i], ld(k, fmt, i), rest);
    return sum8(s) + rest;
}

float value_at(const G uchar *v, int i)
{
    const int fmt = VF;
    if (fmt == FMT_Q8_0) {
        const G uchar *p = v + 34 * (i / 32);
        return (float)(char)p[2 + i % 32] * half_at(p);
    }
    if (fmt == FMT_Q4_0) {
        const G uchar *p = v + 18 * (i / 32);
        return (float)((p[2 + i % 16] >> (i % 32 / 16 * 4) & 15) - 8) * half_at(p);
    }
    return ld_plain(v, fmt, i);
}

/* acc += p * value, by one lane alone. */
void add_value(L float *acc, const G uchar *v, float p, int n)
{
    const int fmt = VF;
    int i = 0;
    if (fmt == FMT_Q8_0 || fmt == FMT_Q4_0 || fmt == FMT_F8_E4M3) {
        for (; i + 32 <= n; i += 32) {
            float16 a, b;
            unpack_any(fmt, v, i / 32, &a, &b);
            vstore16(fma(a, (float16)(p), vload16(0, acc + i)), 0, acc + i);
            vstore16(fma(b, (float16)(p), vload16(1, acc + i)), 1, acc + i);
        }
    } else {
        for (; i + 8 <= n; i += 8)
            vstore8(fma(ld8(v, fmt, i), (float8)(p), vload8(0, acc + i)), 0, acc + i);
    }
    for (; i < n; i++)
        acc[i] = fma(value_at(v, i), p, acc[i]);
}

/* The sequence that owns a row, -1: none. q_start rises. */
int owner(const G int *q_start, int n_seqs, int row)
{
    int lo = 0, hi = n_seqs;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (q_start[mid + 1] > row)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo < n_seqs && q_start[lo] <= row ? lo : -1;
}

/* q_at, acc: local memory for one query and one output. */
__kernel void attention(const G uchar *q, const G uchar *kp, const G uchar *vp, const G uchar *table, const G uchar *len_p,
                        const G uchar *start_p, const G uchar *sinks, const G uchar *tree_p, G uchar *y,
                        const G uchar *counts, const lp_attn p, L float *q_at, L float *acc)
{
    SCRATCH_F(tmp);
    L float prob[TK];
    L long place[TK];
    int head = get_group_id(0), row = get_group_id(1), lane = get_local_id(0), d = p.k.width, dv = p.y.width;
    int live = row < rows_of(counts, &p.rows); /* no return before a barrier: some compilers lose the lane's number */
    int kv_head = head / (p.heads / p.kv_heads);
    long n, where, newest; /* keys, this row's position, that of the sequence's first row */
    const G int *blocks = 0;
    if (p.table_width) {
        const G int *q_start = (const G int *)(start_p + p.start_off);
        int s = owner(q_start, p.n_seqs, row);
        n = s < 0 ? 0 : ((const G int *)(len_p + p.len_off))[s];
        newest = s < 0 ? 0 : n - (q_start[s + 1] - q_start[s]);
        where = s < 0 ? -1 : newest + row - q_start[s];
        n = clamp(n, 0L, (long)p.table_width * p.block_size);
        blocks = (const G int *)(table + at(&p.table, s < 0 ? 0 : s));
    } else {
        n = newest = p.dense_m;
        where = (long)p.dense_m - p.dense_n + row;
    }
    long first = 0, end = n;
    if (p.mask == MASK_CAUSAL || p.mask == MASK_WINDOW)
        end = min(end, where + 1);
    if (!live)
        end = 0;
    if (p.mask == MASK_WINDOW)
        first = max(0L, where + 1 - p.window);
    const G uint *tree = p.tree.fmt ? (const G uint *)(tree_p + at(&p.tree, row)) : 0;
    q += at(&p.q, (long)row * p.heads + head);
    y += at(&p.y, (long)row * p.heads + head);
    for (int i = lane; i < d; i += LANES)
        q_at[i] = ld(q, p.q.fmt, i);
    for (int i = lane; i < dv; i += LANES)
        acc[i] = 0;
    FENCE();
    float most = -INFINITY, total = 0;
    for (long t0 = first / TK * TK; t0 < end; t0 += TK) {
        float m = -INFINITY, sum = 0;
        for (int j = lane; j < TK; j += LANES) {
            long t = t0 + j, spot = -1;
            float s = -INFINITY;
            int see = t >= first && t < end;
            if (see && tree && t >= newest) {
                int bit = (int)(t - newest);
                see = bit / 32 < p.tree.width && (tree[bit / 32] >> (bit % 32) & 1);
            }
            if (see) {
                int block = blocks ? blocks[t / p.block_size] : (int)t, offset = blocks ? (int)(t % p.block_size) : 0;
                long k = token(&p.k, p.n_blocks, block, offset, kv_head);
                if (k >= 0) {
                    spot = token(&p.v, p.n_blocks, block, offset, kv_head);
                    s = key_dot(q_at, kp + k, d) * p.scale;
                    if (p.soft_cap > 0)
                        s = p.soft_cap * tanh(s / p.soft_cap);
                    m = fmax(m, s);
                }
            }
            prob[j] = s;
            place[j] = spot;
        }
        m = fmax(most, group_max(m, tmp));
        float keep = total > 0 ? exp(most - m) : 1.0f;
        for (int j = lane; j < TK; j += LANES) {
            float e = place[j] < 0 ? 0.0f : exp(prob[j] - m);
            prob[j] = e;
            sum += e;
        }
        total = total * keep + group_sum(sum, tmp);
        most = m;
        FENCE();
#if LANES == 1
        for (int i = 0; i < dv && keep != 1.0f; i++)
            acc[i] *= keep;
        for (int j = 0; j < TK; j++)
            if (place[j] >= 0)
                add_value(acc, vp + place[j], prob[j], dv);
#else
        for (int i = lane; i < dv; i += LANES) {
            float a = acc[i] * keep;
            int last = (int)min((long)TK, end - t0);
            _Pragma("unroll 16") for (int j = 0; j < last; j++)
            {
                float v = value_at(vp + max(place[j], 0L), i); /* no branch: loads run ahead */
                a = fma(place[j] < 0 ? 0.0f : v, prob[j], a);
            }
            acc[i] = a;
        }
#endif
        FENCE();
    }
    float factor = 0;
    if (total > 0 || isnan(total)) {
        float sink = p.sinks.fmt ? ld(sinks + p.sinks.off, p.sinks.fmt, head) : -INFINITY;
        float m = fmax(most, sink), keep = exp(most - m);
        factor = keep / (total * keep + (p.sinks.fmt ? exp(sink - m) : 0.0f));
    }
    for (int i = get_local_id(0); live && i < dv; i += LANES)
        st(y, p.y.fmt, i, factor == 0 ? 0.0f : acc[i] * factor);
}
