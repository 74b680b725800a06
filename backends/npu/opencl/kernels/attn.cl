/* Attention over a paged cache or dense keys: one work-group for a row and a head walks the keys in chunks, softmax on
 * line (Milakov and Gimelshein 2018, arXiv:1805.02867). Chunks begin at multiples of their size whatever the batch, so
 * that a row's result depends on its own keys only. KF, VF: formats of keys and values. Here what all kernels of it
 * share, and the one for devices that run a work-item as a loop. SPDX-License-Identifier: Apache-2.0 */

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

/* What a row sees: keys first to end - 1 of a sequence, of which those from newest on are the step's own. */
typedef struct reach {
    long first, end, newest;
    const G int *blocks;
    const G uint *tree;
} reach;

reach reach_of(const lp_attn *p, int row, int live, const G uchar *table, const G uchar *len_p, const G uchar *start_p,
               const G uchar *tree_p)
{
    reach r = {0, 0, 0, 0, 0};
    long n, where; /* keys, this row's position */
    if (p->table_width) {
        const G int *q_start = (const G int *)(start_p + p->start_off);
        int s = owner(q_start, p->n_seqs, row);
        n = s < 0 ? 0 : ((const G int *)(len_p + p->len_off))[s];
        r.newest = s < 0 ? 0 : n - (q_start[s + 1] - q_start[s]);
        where = s < 0 ? -1 : r.newest + row - q_start[s];
        n = clamp(n, 0L, (long)p->table_width * p->block_size);
        r.blocks = (const G int *)(table + at(&p->table, s < 0 ? 0 : s));
    } else {
        n = r.newest = p->dense_m;
        where = (long)p->dense_m - p->dense_n + row;
    }
    r.end = !live ? 0 : p->mask == MASK_CAUSAL || p->mask == MASK_WINDOW ? min(n, where + 1) : n;
    if (p->mask == MASK_WINDOW)
        r.first = max(0L, where + 1 - p->window);
    r.tree = p->tree.fmt ? (const G uint *)(tree_p + at(&p->tree, row)) : 0;
    return r;
}

/* Where key t lies, and in v its value; -1: it is not seen, or there is none. */
long spot_of(const lp_attn *p, const reach *r, long t, int kv_head, long *v)
{
    int see = t >= r->first && t < r->end;
    *v = -1;
    if (see && r->tree && t >= r->newest) {
        int bit = (int)(t - r->newest);
        see = bit / 32 < p->tree.width && (r->tree[bit / 32] >> (bit % 32) & 1);
    }
    if (!see)
        return -1;
    int block = r->blocks ? r->blocks[t / p->block_size] : (int)t, offset = r->blocks ? (int)(t % p->block_size) : 0;
    long k = token(&p->k, p->n_blocks, block, offset, kv_head);
    if (k >= 0)
        *v = token(&p->v, p->n_blocks, block, offset, kv_head);
    return k;
}

float score_of(const lp_attn *p, float dot_of)
{
    float s = dot_of * p->scale;
    return p->soft_cap > 0 ? p->soft_cap * tanh(s / p->soft_cap) : s;
}

/* What the sums are multiplied by in the end: total is that of exp(score - most); a sink is one more score without a
 * value. */
float last_factor(const lp_attn *p, const G uchar *sinks, int head, float most, float total)
{
    if (!(total > 0) && !isnan(total))
        return 0;
    float sink = p->sinks.fmt ? ld(sinks + p->sinks.off, p->sinks.fmt, head) : -INFINITY;
    float m = fmax(most, sink), keep = exp(most - m);
    return keep / (total * keep + (p->sinks.fmt ? exp(sink - m) : 0.0f));
}

/* Element i of a value. */
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

#if LANES == 1

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
    for (; i + 8 <= n; i += 8)
        s = fma(vload8(0, q + i), ld8(k, fmt, i), s);
    for (; i < n; i++)
        rest = fma(q[i], ld(k, fmt, i), rest);
    return sum8(s) + rest;
}

/* acc += p * value. */
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

/* q_at, acc: local memory for one query and one output. */
__kernel void attention(const G uchar *q, const G uchar *kp, const G uchar *vp, const G uchar *table, const G uchar *len_p,
                        const G uchar *start_p, const G uchar *sinks, const G uchar *tree_p, G uchar *y,
                        const G uchar *counts, const lp_attn p, L float *q_at, L float *acc)
{
    float prob[TK];
    long value[TK];
    int head = get_group_id(0), row = get_group_id(1), d = p.k.width, dv = p.y.width;
    if (row >= rows_of(counts, &p.rows))
        return;
    reach r = reach_of(&p, row, 1, table, len_p, start_p, tree_p);
    q += at(&p.q, (long)row * p.heads + head);
    y += at(&p.y, (long)row * p.heads + head);
    for (int i = 0; i < d; i++)
        q_at[i] = ld(q, p.q.fmt, i);
    for (int i = 0; i < dv; i++)
        acc[i] = 0;
    float most = -INFINITY, total = 0;
    for (long t0 = r.first / TK * TK; t0 < r.end; t0 += TK) {
        float m = most, sum = 0;
        for (int j = 0; j < TK; j++) {
            long k = spot_of(&p, &r, t0 + j, head / (p.heads / p.kv_heads), &value[j]);
            prob[j] = k < 0 ? -INFINITY : score_of(&p, key_dot(q_at, kp + k, d));
            m = k < 0 ? m : fmax(m, prob[j]);
        }
        float keep = total > 0 ? exp(most - m) : 1.0f;
        for (int j = 0; j < TK; j++) {
            prob[j] = value[j] < 0 ? 0.0f : exp(prob[j] - m);
            sum += prob[j];
        }
        total = total * keep + sum;
        most = m;
        for (int i = 0; i < dv && keep != 1.0f; i++)
            acc[i] *= keep;
        for (int j = 0; j < TK; j++)
            if (value[j] >= 0)
                add_value(acc, vp + value[j], prob[j], dv);
    }
    float factor = last_factor(&p, sinks, head, most, total);
    for (int i = 0; i < dv; i++)
        st(y, p.y.fmt, i, factor == 0 ? 0.0f : acc[i] * factor);
}

#endif
