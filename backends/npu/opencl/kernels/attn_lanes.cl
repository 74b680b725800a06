/* Attention on devices with lanes (attn.cl has what they share). A chunk is LANES keys. KL neighbours share a key, so
 * that it is read in whole lines, and as many as a value has eights share a value; lanes that have the same eight of
 * different values add up in registers, and join in the end. Bound by the latency of memory where a sequence is short, else by
 * what one work-group can have under way. SPDX-License-Identifier: Apache-2.0 */
#if LANES > 1

#define KL 4

raw8 raw_any(int fmt, const G uchar *row, int i, int wide)
{
    switch (fmt) {
    case FMT_F32:
        return raw_eight_f32(row, i, wide);
    case FMT_F16:
        return raw_eight_f16(row, i, wide);
    case FMT_BF16:
        return raw_eight_bf16(row, i, wide);
    case FMT_Q8_0:
        return raw_eight_q8_0(row, i, wide);
    case FMT_Q4_0:
        return raw_eight_q4_0(row, i, wide);
    default:
        return raw_eight_e4m3(row, i, wide);
    }
}

float8 eight_any(int fmt, raw8 r, int i, int wide, float *d)
{
    switch (fmt) {
    case FMT_F32:
        return eight_f32(r, i, wide, d);
    case FMT_F16:
        return eight_f16(r, i, wide, d);
    case FMT_BF16:
        return eight_bf16(r, i, wide, d);
    case FMT_Q8_0:
        return eight_q8_0(r, i, wide, d);
    case FMT_Q4_0:
        return eight_q4_0(r, i, wide, d);
    default:
        return eight_e4m3(r, i, wide, d);
    }
}

float add_key_eight(float s, const L float *q, raw8 r, int g, int wide)
{
    float d;
    float8 k = eight_any(KF, r, g, wide, &d);
    return fma(mac8(k, vload8(g, q), 0), d, s);
}

/* This lane's part of q . key, of n elements: whole blocks where the format has any. */
float dot_part(const L float *q, const G uchar *k, int n, int part, int wide)
{
    int whole = n / 8, last = whole - 1;
    float s = 0;
    for (int g = part; g < whole; g += 4 * KL) {
        int g1 = g + KL, g2 = g + 2 * KL, g3 = g + 3 * KL;
        raw8 r0 = raw_any(KF, k, g, wide), r1 = raw_any(KF, k, min(g1, last), wide),
             r2 = raw_any(KF, k, min(g2, last), wide), r3 = raw_any(KF, k, min(g3, last), wide);
        s = add_key_eight(s, q, r0, g, wide);
        s = g1 < whole ? add_key_eight(s, q, r1, g1, wide) : s;
        s = g2 < whole ? add_key_eight(s, q, r2, g2, wide) : s;
        s = g3 < whole ? add_key_eight(s, q, r3, g3, wide) : s;
    }
    for (int i = 8 * whole; i < n && part == 0; i++)
        s = fma(q[i], ld_plain(k, KF, i), s);
    return s;
}

/* a += prob * eight g of a value; where < 0: there is none. */
float8 add_value_eight(float8 a, raw8 r, int g, int wide, long where, float prob)
{
    float d;
    float8 v = eight_any(VF, r, g, wide, &d);
    return where < 0 ? a : fma(v, (float8)(prob * d), a);
}

/* a += the chunk's values first, first + step, ... below n, this lane's eight g of them. */
float8 add_values(float8 a, const G uchar *vp, const L long *where, const L float *prob, int first, int step, int n, int g,
                  int wide)
{
    for (int j = first; j < n; j += 4 * step) {
        int j1 = j + step, j2 = j + 2 * step, j3 = j + 3 * step, last = n - 1;
        long w0 = where[j], w1 = where[min(j1, last)], w2 = where[min(j2, last)], w3 = where[min(j3, last)];
        raw8 r0 = raw_any(VF, vp + max(w0, 0L), g, wide), r1 = raw_any(VF, vp + max(w1, 0L), g, wide),
             r2 = raw_any(VF, vp + max(w2, 0L), g, wide), r3 = raw_any(VF, vp + max(w3, 0L), g, wide);
        a = add_value_eight(a, r0, g, wide, w0, prob[j]);
        a = j1 < n ? add_value_eight(a, r1, g, wide, w1, prob[j1]) : a;
        a = j2 < n ? add_value_eight(a, r2, g, wide, w2, prob[j2]) : a;
        a = j3 < n ? add_value_eight(a, r3, g, wide, w3, prob[j3]) : a;
    }
    return a;
}

/* The same of an eight of which a value has m elements only. */
float8 add_ends(float8 a, const G uchar *vp, const L long *where, const L float *prob, int first, int step, int n, int g,
                int m)
{
    for (int j = first; j < n; j += step) {
        float v[8];
        for (int i = 0; i < 8; i++)
            v[i] = where[j] >= 0 && i < m ? value_at(vp + where[j], 8 * g + i) : 0.0f;
        a = fma(vload8(0, v), (float8)(prob[j]), a);
    }
    return a;
}

/* Over the lanes of the group in two steps, 16 and the rest, in a fixed order. tmp: LANES + LANES / 16 elements. */
float over_lanes(float v, int add, L float *tmp)
{
    int l = get_local_id(0);
    float r = 0;
    FENCE();
    tmp[l] = v;
    FENCE();
    if (l < LANES / 16) {
        float16 a = vload16(l, tmp);
        float8 b = add ? a.lo + a.hi : fmax(a.lo, a.hi);
        float4 c = add ? b.lo + b.hi : fmax(b.lo, b.hi);
        tmp[LANES + l] = add ? (c.x + c.y) + (c.z + c.w) : fmax(fmax(c.x, c.y), fmax(c.z, c.w));
    }
    FENCE();
    r = tmp[LANES];
    for (int i = 1; i < LANES / 16; i++)
        r = add ? r + tmp[LANES + i] : fmax(r, tmp[LANES + i]);
    return r;
}

/* Whether vectors begin at multiples of 16 bytes, for formats that are read otherwise then. */
int is_wide(int fmt, const G uchar *base, const lp_tensor *t)
{
    return (fmt == FMT_F32 || fmt == FMT_F16 || fmt == FMT_BF16) &&
           !(((ulong)(uintptr_t)base | t->off | (ulong)t->s0 | (ulong)t->s1 | (ulong)t->s2) % 16);
}

/* q_at: local memory for one query. */
__kernel GROUP_OF_LANES void attention(const G uchar *q, const G uchar *kp, const G uchar *vp, const G uchar *table,
                                       const G uchar *len_p, const G uchar *start_p, const G uchar *sinks,
                                       const G uchar *tree_p, G uchar *y, const G uchar *counts, const lp_attn p,
                                       L float *q_at)
{
    L float tmp[LANES + LANES / 16], prob[LANES], parts[LANES * 8]; /* parts: of scores, and in the end of values */
    L long key[LANES], value[LANES];
    int head = get_group_id(0), row = get_group_id(1), lane = get_local_id(0), d = p.k.width, dv = p.y.width;
    int live = row < rows_of(counts, &p.rows); /* no return before a barrier: some compilers lose the lane's number */
    int k_wide = is_wide(KF, kp, &p.k), v_wide = is_wide(VF, vp, &p.v);
    int eights = (dv + 7) / 8, groups = LANES / eights, g = lane % eights, group = lane / eights;
    int m = group < groups ? min(8, dv - 8 * g) : 0; /* elements that this lane adds up */
    reach r = reach_of(&p, row, live, table, len_p, start_p, tree_p);
    q += at(&p.q, (long)row * p.heads + head);
    y += at(&p.y, (long)row * p.heads + head);
    for (int i = lane; i < d && live; i += LANES)
        q_at[i] = ld(q, p.q.fmt, i);
    float8 a = 0;
    float most = -INFINITY, total = 0;
    for (long t0 = r.first / LANES * LANES; t0 < r.end; t0 += LANES) {
        int n = (int)min((long)LANES, r.end - t0);
        long spot;
        key[lane] = spot_of(&p, &r, t0 + lane, head / (p.heads / p.kv_heads), &spot);
        value[lane] = spot;
        FENCE();
        for (int j = lane / KL; j < n; j += LANES / KL)
            if (key[j] >= 0)
                parts[j * KL + lane % KL] = k_wide ? dot_part(q_at, kp + key[j], d, lane % KL, 1)
                                                   : dot_part(q_at, kp + key[j], d, lane % KL, 0);
        FENCE();
        float s = -INFINITY;
        if (key[lane] >= 0) {
            float4 sum = vload4(lane, parts);
            s = score_of(&p, (sum.x + sum.y) + (sum.z + sum.w));
        }
        float now = fmax(most, over_lanes(s, 0, tmp)), keep = total > 0 ? exp(most - now) : 1.0f;
        float e = value[lane] < 0 ? 0.0f : exp(s - now);
        prob[lane] = e;
        total = total * keep + over_lanes(e, 1, tmp); /* its barriers are prob's too */
        most = now;
        a *= keep;
        if (m == 8)
            a = v_wide ? add_values(a, vp, value, prob, group, groups, n, g, 1)
                       : add_values(a, vp, value, prob, group, groups, n, g, 0);
        else if (m > 0)
            a = add_ends(a, vp, value, prob, group, groups, n, g, m);
        FENCE();
    }
    if (m > 0)
        vstore8(a, lane, parts);
    FENCE();
    float factor = last_factor(&p, sinks, head, most, total);
    for (int i = lane; live && i < dv; i += LANES) {
        float v = 0;
        for (int k = 0; k < groups; k++)
            v += parts[(k * eights + i / 8) * 8 + i % 8];
        st(y, p.y.fmt, i, factor == 0 ? 0.0f : v * factor);
    }
}
#endif
