/* MOE_ROUTE and MOE_COMBINE. Scores are few: double, as the reference has them. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>

#include "op.h"

/* x = exp(x - largest) / sum; zeros where nothing is above -INFINITY. */
static void softmax(double *x, int64_t n)
{
    double most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++)
        most = x[i] > most ? x[i] : most;
    for (int64_t i = 0; i < n; i++) {
        x[i] = most == -INFINITY ? 0 : exp(x[i] - most);
        sum += x[i];
    }
    for (int64_t i = 0; i < n && sum > 0; i++)
        x[i] /= sum;
}

/* score has room for n + k. */
static void route_row(const cpu_call *c, const infer_attrs_route *a, int64_t row, double *score)
{
    const cpu_view *xv = cpu_in(c, 0), *wv = cpu_out(c, 1);
    int32_t *ids = (int32_t *)(void *)cpu_row(cpu_out(c, 0), row);
    const uint8_t *x = cpu_row(xv, row);
    int64_t n = xv->width;
    double *w = score + n;
    for (int64_t at = 0; at < n; at += CPU_SEGMENT) {
        float buf[CPU_SEGMENT];
        int64_t m = n - at < CPU_SEGMENT ? n - at : CPU_SEGMENT;
        const float *from = cpu_load(c, xv, x, at, m, buf);
        for (int64_t i = 0; i < m; i++)
            score[at + i] = from[i] != from[i] ? -INFINITY : (double)from[i];
    }
    if (a->scoring == INFER_ROUTE_SOFTMAX)
        softmax(score, n);
    for (int64_t i = 0; i < n && a->scoring == INFER_ROUTE_SIGMOID; i++)
        score[i] = 1 / (1 + exp(-score[i]));
    for (uint32_t j = 0; j < a->k; j++) {
        int64_t best = -1;
        for (int64_t i = 0; i < n; i++)
            if (score[i] == score[i] && (best < 0 || score[i] > score[best]))
                best = i;
        ids[j] = (int32_t)best;
        w[j] = 0;
        if (best < 0) /* the others' scores are NaN: infinite logits under softmax */
            continue;
        w[j] = score[best];
        score[best] = NAN; /* taken */
    }
    if (a->scoring == INFER_ROUTE_SOFTMAX_TOPK)
        softmax(w, a->k);
    double sum = 0, scale = a->scale == 0 ? 1 : (double)a->scale;
    for (uint32_t j = 0; j < a->k; j++)
        sum += w[j];
    if (a->normalise && sum > 0)
        scale /= sum;
    for (uint32_t j = 0; j < a->k; j++) {
        float v = (float)(w[j] * scale);
        cpu_store(c, wv, cpu_row(wv, row), j, 1, &v);
    }
}

typedef struct route_ctx {
    const cpu_call *c;
    infer_attrs_route a;
} route_ctx;

static int64_t route_elems(int64_t n, int64_t k)
{
    return (n + k + 7) / 8 * 8;
}

static void route_piece(void *ctx, int64_t first, int64_t end, uint32_t worker)
{
    const route_ctx *x = ctx;
    double *score = (double *)(void *)x->c->scratch + worker * route_elems(cpu_in(x->c, 0)->width, x->a.k);
    for (int64_t r = first; r < end; r++)
        route_row(x->c, &x->a, r, score);
}

infer_status cpu_run_moe_route(cpu_call *c)
{
    route_ctx x = {.c = c};
    cpu_attrs(c->op, &x.a, sizeof x.a);
    cpu_split(c->dev, c->rows, cpu_in(c, 0)->width * (x.a.k + 8), route_piece, &x);
    return INFER_OK;
}

void cpu_query_moe_route(const infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    infer_attrs_route r;
    cpu_attrs(op, &r, sizeof r);
    a->scratch_bytes =
        sizeof(double) * (uint64_t)route_elems(cpu_tensor(op, 0)->shape[1], r.k) * cpu_team_size(dev->team);
}

static void combine_piece(void *ctx, int64_t first, int64_t end, uint32_t worker)
{
    const cpu_call *c = ctx;
    const cpu_view *xv = cpu_in(c, 0), *wv = cpu_in(c, 1), *yv = cpu_out(c, 0);
    int64_t k = xv->per_row;
    (void)worker;
    for (int64_t r = first; r < end; r++) {
        const uint8_t *wrow = cpu_row(wv, r);
        uint8_t *y = cpu_row(yv, r);
        for (int64_t at = 0; at < yv->width; at += CPU_SEGMENT) {
            float sum[CPU_SEGMENT], buf[CPU_SEGMENT];
            int64_t n = yv->width - at < CPU_SEGMENT ? yv->width - at : CPU_SEGMENT;
            memset(sum, 0, (size_t)n * sizeof *sum);
            for (int64_t j = 0; j < k; j++) {
                float w;
                w = cpu_load(c, wv, wrow, j, 1, &w)[0];
                c->k->axpy(w, cpu_load(c, xv, cpu_row(xv, r * k + j), at, n, buf), sum, n);
            }
            cpu_store(c, yv, y, at, n, sum);
        }
    }
}

infer_status cpu_run_moe_combine(cpu_call *c)
{
    cpu_split(c->dev, c->rows, cpu_in(c, 0)->per_row * cpu_out(c, 0)->width, combine_piece, c);
    return INFER_OK;
}

void cpu_query_moe_combine(const infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    (void)dev;
    (void)op;
    (void)a;
}
