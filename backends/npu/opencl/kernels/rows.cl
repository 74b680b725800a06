/* Reductions over a vector by one work-group: norms, softmax, arg-max. SPDX-License-Identifier: Apache-2.0 */

__kernel GROUP_OF_LANES void norm_rows(const G uchar *x, const G uchar *w, const G uchar *b, G uchar *y, G uchar *s, const G uchar *counts,
                   const lp_norm p)
{
    SCRATCH_F(tmp);
    int k = get_group_id(0), lane = get_local_id(0), d = p.x.width, whole = d / 8 * 8;
    if (k >= rows_of(counts, &p.rows) * p.per_row)
        return;
    x += at(&p.x, k);
    y += at(&p.y, k);
    w += p.w.off;
    int fmt = p.x.fmt;
    if (p.kind == LP_NORM_ADD) { /* the sum as stored is what is normed */
        const G uchar *r = b + at(&p.b, k);
        s += at(&p.s, k);
        for (int i = lane; i < d; i += LANES)
            st(s, p.s.fmt, i, ld(x, fmt, i) + ld(r, p.b.fmt, i));
#if LANES > 1
        barrier(CLK_GLOBAL_MEM_FENCE);
#endif
        x = s;
        fmt = p.s.fmt;
    }
    float mean = 0;
    if (p.kind == LP_NORM_LAYER) {
        float8 t = 0;
        float rest = 0;
        for (int i = 8 * lane; i < whole; i += 8 * LANES)
            t += ld8(x, fmt, i);
        for (int i = whole + lane; i < d; i += LANES)
            rest += ld(x, fmt, i);
        mean = group_sum(sum8(t) + rest, tmp) / (float)d;
    }
    float8 t = 0;
    float rest = 0;
    for (int i = 8 * lane; i < whole; i += 8 * LANES) {
        float8 v = ld8(x, fmt, i) - mean;
        t = fma(v, v, t);
    }
    for (int i = whole + lane; i < d; i += LANES) {
        float v = ld(x, fmt, i) - mean;
        rest = fma(v, v, rest);
    }
    float scale = 1.0f / sqrt(group_sum(sum8(t) + rest, tmp) / (float)d + p.eps);
    for (int i = lane; i < d; i += LANES) {
        float v = (ld(x, fmt, i) - mean) * scale;
        if (p.w.fmt)
            v *= ld(w, p.w.fmt, i) + p.offset;
        if (p.kind == LP_NORM_LAYER && p.b.fmt)
            v += ld(b + p.b.off, p.b.fmt, i);
        st(y, p.y.fmt, i, v);
    }
}

/* A row of nothing but -INFINITY gives zeros. */
__kernel GROUP_OF_LANES void softmax(const G uchar *x, G uchar *y, const G uchar *counts, const lp_row p)
{
    SCRATCH_F(tmp);
    int k = get_group_id(0), lane = get_local_id(0), d = p.x.width;
    if (k >= rows_of(counts, &p.rows) * p.per_row)
        return;
    x += at(&p.x, k);
    y += at(&p.y, k);
    float most = -INFINITY, sum = 0;
    for (int i = lane; i < d; i += LANES)
        most = fmax(most, ld(x, p.x.fmt, i) * p.scale);
    most = group_max(most, tmp);
    if (most != -INFINITY)
        for (int i = lane; i < d; i += LANES)
            sum += exp(ld(x, p.x.fmt, i) * p.scale - most);
    sum = group_sum(sum, tmp);
    for (int i = lane; i < d; i += LANES)
        st(y, p.y.fmt, i, sum == 0 ? 0.0f : exp(ld(x, p.x.fmt, i) * p.scale - most) / sum);
}

__kernel GROUP_OF_LANES void argmax(const G uchar *x, G uchar *y, const G uchar *counts, const lp_row p)
{
    SCRATCH_F(tmp);
    SCRATCH_I(tmi);
    int k = get_group_id(0), lane = get_local_id(0);
    if (k >= rows_of(counts, &p.rows))
        return;
    x += at(&p.x, k);
    float most = 0;
    int best = -1;
    for (int i = lane; i < p.x.width; i += LANES) {
        float v = ld(x, p.x.fmt, i);
        if (!isnan(v) && (best < 0 || v > most)) {
            most = v;
            best = i;
        }
    }
    best = group_best(most, best, tmp, tmi);
    if (lane == 0)
        ((G int *)(y + p.y.off))[k] = best;
}
