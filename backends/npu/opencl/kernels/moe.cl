/* Routing to experts and joining their outputs. SPDX-License-Identifier: Apache-2.0 */

/* score: local memory for one row of logits and k weights. */
__kernel void moe_route(const G uchar *x, G uchar *ids, G uchar *w, const G uchar *counts, const lp_route p,
                        L float *score)
{
    SCRATCH_F(tmp);
    SCRATCH_I(tmi);
    int row = get_group_id(0), lane = get_local_id(0), n = p.x.width;
    int live = row < rows_of(counts, &p.rows); /* no return before a barrier: some compilers lose the lane's number */
    L float *chosen = score + n;
    x += at(&p.x, live ? row : 0);
    float most = -INFINITY, sum = 0;
    for (int i = lane; i < n; i += LANES) {
        float v = ld(x, p.x.fmt, i);
        score[i] = isnan(v) ? -INFINITY : v;
        most = fmax(most, score[i]);
    }
    most = group_max(most, tmp); /* needed or not: no barrier stands under a condition */
    for (int i = lane; i < n; i += LANES) {
        float v = score[i];
        if (p.scoring == ROUTE_SOFTMAX)
            v = most == -INFINITY ? 0.0f : exp(v - most);
        else if (p.scoring == ROUTE_SIGMOID)
            v = activate(ACT_SIGMOID, v);
        score[i] = v;
        sum += v;
    }
    sum = group_sum(sum, tmp);
    for (int i = lane; i < n; i += LANES)
        score[i] = p.scoring == ROUTE_SOFTMAX && sum > 0 ? score[i] / sum : score[i];
    FENCE();
    for (int j = 0; j < p.k; j++) {
        int best = -1;
        float top = 0;
        for (int i = lane; i < n; i += LANES)
            if (!isnan(score[i]) && (best < 0 || score[i] > top)) {
                top = score[i];
                best = i;
            }
        best = group_best(top, best, tmp, tmi);
        if (get_local_id(0) == 0 && live) {
            ((G int *)(ids + at(&p.ids, row)))[j] = best;
            chosen[j] = best < 0 ? 0.0f : score[best]; /* none: infinite logits under softmax */
            if (best >= 0)
                score[best] = NAN;
        }
        FENCE();
    }
    if (get_local_id(0) || !live)
        return;
    if (p.scoring == ROUTE_SOFTMAX_TOPK) {
        float m = -INFINITY, t = 0;
        for (int j = 0; j < p.k; j++)
            m = fmax(m, chosen[j]);
        for (int j = 0; j < p.k; j++) {
            chosen[j] = m == -INFINITY ? 0.0f : exp(chosen[j] - m);
            t += chosen[j];
        }
        for (int j = 0; j < p.k && t > 0; j++)
            chosen[j] /= t;
    }
    float total = 0, scale = p.scale;
    for (int j = 0; j < p.k; j++)
        total += chosen[j];
    if (p.normalise && total > 0)
        scale /= total;
    for (int j = 0; j < p.k; j++)
        st(w + at(&p.w, row), p.w.fmt, j, chosen[j] * scale);
}

__kernel void moe_combine(const G uchar *x, const G uchar *w, G uchar *y, const G uchar *counts, const lp_combine p)
{
    int row = VECTOR();
    if (row >= rows_of(counts, &p.rows))
        return;
    w += at(&p.w, row);
    y += at(&p.y, row);
    for (int i = FIRST; i < LAST(p.y.width); i++) {
        float sum = 0;
        for (int j = 0; j < p.k; j++)
            sum = fma(ld(w, p.w.fmt, j), ld(x + at(&p.x, (long)row * p.k + j), p.x.fmt, i), sum);
        st(y, p.y.fmt, i, sum);
    }
}
