/* Routing to experts: one wave a row, without a barrier of the block. Bound by latency.
 * Grid: x, a row a block of one wave; dynamic shared memory: (experts + k) floats. SPDX-License-Identifier: Apache-2.0
 */
#include "dev.cuh"

extern "C" __global__ void moe_route(const uchar *x, uchar *ids, uchar *w, const uchar *counts, const lp_route p)
{
    SHARED_DYN(dyn);
    int row = (int)blockIdx.x, lane = (int)threadIdx.x, n = p.x.width;
    float *score = (float *)dyn, *chosen = score + n;
    if (row >= rows_of(counts, p.rows))
        return;
    x += at(p.x, row);
    float most = -INFINITY, sum = 0;
    for (int i = lane; i < n; i += WAVE) {
        float v = ld(x, p.x.fmt, i);
        v = isnan(v) ? -INFINITY : v;
        score[i] = v;
        most = fmaxf(most, v);
    }
    most = wave_max(most);
    for (int i = lane; i < n; i += WAVE) {
        float v = score[i];
        if (p.scoring == INFER_ROUTE_SOFTMAX)
            v = most == -INFINITY ? 0.0f : expf(v - most);
        else if (p.scoring == INFER_ROUTE_SIGMOID)
            v = activate(INFER_ACT_SIGMOID, v);
        score[i] = v;
        sum += v;
    }
    sum = wave_sum(sum);
    for (int i = lane; i < n; i += WAVE)
        if (p.scoring == INFER_ROUTE_SOFTMAX && sum > 0)
            score[i] /= sum;
    for (int j = 0; j < p.k; j++) {
        int best = -1;
        float top = 0;
        for (int i = lane; i < n; i += WAVE) /* a lane reads what it wrote itself */
            if (!isnan(score[i]))
                better(top, best, score[i], i);
        wave_best(top, best);
        if (lane == 0) {
            ((int *)(ids + at(p.ids, row)))[j] = best;
            chosen[j] = best < 0 ? 0.0f : top; /* none: infinite logits under softmax */
        }
        if (best >= 0 && best % WAVE == lane)
            score[best] = QUIET_NAN;
    }
    if (lane)
        return;
    if (p.scoring == INFER_ROUTE_SOFTMAX_TOPK) {
        float m = -INFINITY, t = 0;
        for (int j = 0; j < p.k; j++)
            m = fmaxf(m, chosen[j]);
        for (int j = 0; j < p.k; j++) {
            chosen[j] = m == -INFINITY ? 0.0f : expf(chosen[j] - m);
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
        st(w + at(p.w, row), p.w.fmt, j, chosen[j] * scale);
}
