/*
 * Perplexity and Kullback-Leibler divergence from logits.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "eval.h"
#include "logsum.h"

void ppl_add(ppl *p, double nll)
{
    p->nll += nll;
    p->nll2 += nll * nll;
    p->n++;
}

double ppl_value(const ppl *p)
{
    return p->n ? exp(p->nll / (double)p->n) : 0;
}

double ppl_error(const ppl *p)
{
    if (p->n < 2)
        return 0;
    double mean = p->nll / (double)p->n, var = p->nll2 / (double)p->n - mean * mean;
    return var > 0 ? sqrt(var / (double)(p->n - 1)) * ppl_value(p) : 0;
}

static uint32_t arg_max(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

infer_status kld_add(kld *k, const float *reference, const float *tested, uint32_t n_vocab, int32_t next,
                     infer_error *err)
{
    if (k->n == k->cap) {
        uint64_t cap = k->cap ? k->cap * 2 : 1024;
        float *v = realloc(k->values, cap * sizeof *v);
        if (!v)
            return infer_error_set(err, INFER_E_NO_MEMORY, "keeping divergences: out of memory");
        k->values = v;
        k->cap = cap;
    }
    double zr = logits_log_sum_exp(reference, n_vocab), zt = logits_log_sum_exp(tested, n_vocab), sum = 0;
    for (uint32_t i = 0; i < n_vocab; i++) {
        double lr = reference[i] - zr, p = exp(lr);
        if (p > 0)
            sum += p * (lr - (tested[i] - zt));
    }
    if (!isfinite(sum))
        return infer_error_set(err, INFER_E_INVALID, "the logits hold values that are not finite");
    k->values[k->n++] = sum > 0 ? (float)sum : 0; /* rounding can make it a little negative */
    k->n_same_top += arg_max(reference, n_vocab) == arg_max(tested, n_vocab);
    ppl_add(&k->reference, zr - reference[next]);
    ppl_add(&k->tested, zt - tested[next]);
    return INFER_OK;
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* The q-quantile of sorted values, between neighbours in proportion. */
static double quantile(const float *v, uint64_t n, double q)
{
    double at = q * (double)(n - 1);
    uint64_t i = (uint64_t)at;
    double part = at - (double)i;
    return i + 1 < n ? v[i] * (1 - part) + v[i + 1] * part : v[i];
}

void kld_summarise(kld *k, kld_summary *s)
{
    memset(s, 0, sizeof *s);
    if (!k->n)
        return;
    double n = (double)k->n, sum = 0, sq = 0;
    qsort(k->values, k->n, sizeof *k->values, by_value);
    for (uint64_t i = 0; i < k->n; i++) {
        sum += k->values[i];
        sq += (double)k->values[i] * k->values[i];
    }
    s->mean = sum / n;
    double var = sq / n - s->mean * s->mean;
    s->mean_error = k->n > 1 && var > 0 ? sqrt(var / (n - 1)) : 0;
    s->median = quantile(k->values, k->n, 0.5);
    s->p90 = quantile(k->values, k->n, 0.9);
    s->p99 = quantile(k->values, k->n, 0.99);
    s->max = k->values[k->n - 1];
    s->same_top = (double)k->n_same_top / n;
    s->same_top_error = k->n > 1 ? sqrt(s->same_top * (1 - s->same_top) / (n - 1)) : 0;
}

void kld_free(kld *k)
{
    free(k->values);
    memset(k, 0, sizeof *k);
}
