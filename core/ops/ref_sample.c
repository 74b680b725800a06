/* Reference of sampling: one row at a time in the order that infer_sample_row states, all in double. It sorts whenever
 * a row draws; a device need not. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "ops/ops.h"
#include "ops/ref.h"

#define TIMES 0x7FFFu

typedef struct candidate {
    double z; /* logit after penalties, bias and mask */
    int32_t id;
} candidate;

/* One row's inputs. */
typedef struct row {
    infer_sample_row p;
    const float *logits;
    const uint16_t *counts; /* NULL: none */
    const infer_view *bias;
    const uint32_t *mask; /* NULL: none */
    int64_t n_vocab;
} row;

/* Falling logit, then rising id: a total order. */
static int before(const candidate *a, const candidate *b)
{
    return a->z != b->z ? a->z > b->z : a->id < b->id;
}

static int compare(const void *a, const void *b)
{
    return before(a, b) ? -1 : 1;
}

static void penalise(const row *r, double *z)
{
    double rep = r->p.repetition_penalty;
    for (int64_t i = 0; i < r->n_vocab; i++) {
        uint32_t entry = r->counts[i], times = entry & TIMES;
        if (entry && rep > 0 && rep != 1)
            z[i] = z[i] > 0 ? z[i] / rep : z[i] * rep;
        if (times)
            z[i] -= r->p.presence_penalty + (double)r->p.frequency_penalty * times;
    }
}

/* The logits after penalties, bias and mask; what cannot be chosen is -INFINITY. */
static void adjust(const row *r, double *z)
{
    for (int64_t i = 0; i < r->n_vocab; i++)
        z[i] = r->logits[i];
    if (r->counts)
        penalise(r, z);
    for (uint64_t i = 0; r->bias->p && i < r->p.bias_count; i++) {
        infer_sample_bias b;
        uint64_t at = r->p.bias_first + i;
        if (at >= (uint64_t)r->bias->shape[0])
            break;
        memcpy(&b, infer_view_at(r->bias, (int64_t)at), sizeof b);
        if (b.id >= 0 && b.id < r->n_vocab)
            z[b.id] += b.bias;
    }
    for (int64_t i = 0; i < r->n_vocab; i++) {
        int forbidden = r->mask && !(r->mask[i / 32] >> (i % 32) & 1);
        z[i] = forbidden || isnan(z[i]) ? -INFINITY : fmin(z[i], DBL_MAX); /* so that differences stay numbers */
    }
}

/* The `want` first candidates in order (fewer where fewer can be chosen); returns how many. */
static int64_t best(const double *z, int64_t n, int64_t want, candidate *out)
{
    int64_t have = 0;
    for (int64_t i = 0; i < n; i++) {
        candidate c = {z[i], (int32_t)i};
        if (z[i] == -INFINITY || (have == want && !before(&c, &out[have - 1])))
            continue;
        int64_t at = have < want ? have++ : have - 1;
        for (; at > 0 && before(&c, &out[at - 1]); at--)
            out[at] = out[at - 1];
        out[at] = c;
    }
    return have;
}

static double log_sum_exp(const double *z, int64_t n, double most)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += z[i] == -INFINITY ? 0 : exp(z[i] - most);
    return log(sum);
}

/* Draws from all of z. c has room for n; p for n. */
static int32_t draw(const infer_sample_row *r, const double *z, int64_t n, candidate *c, double *p)
{
    int64_t have = 0, kept = 0;
    for (int64_t i = 0; i < n; i++)
        if (z[i] != -INFINITY)
            c[have++] = (candidate){z[i], (int32_t)i};
    qsort(c, (size_t)have, sizeof *c, compare);
    if (r->top_k > 0 && r->top_k < have)
        have = r->top_k;
    double total = 0, sum = 0;
    for (int64_t i = 0; i < have; i++) {
        p[i] = exp((c[i].z - c[0].z) / r->temperature);
        total += p[i];
    }
    int cut = r->top_p < 1;
    for (; kept < have; kept++) {
        if (kept && ((cut && sum >= r->top_p * total) || p[kept] < r->min_p * p[0]))
            break;
        sum += p[kept];
    }
    double target = infer_sample_uniform(r->seed, r->position) * sum, run = 0;
    int64_t i = 0;
    for (; i < kept - 1; i++) {
        run += p[i];
        if (run > target)
            break;
    }
    return c[i].id;
}

/* Scratch of one row at a time. */
typedef struct scratch {
    double *z, *p;
    candidate *c;
} scratch;

/* One row: the id and its log-probability, the n_top best of the same distribution, if it asks for them. ids and lps
 * may be NULL. */
static void choose(const row *r, const scratch *s, uint32_t n_top, int32_t *id, float *lp, int32_t *ids, float *lps)
{
    candidate top[64];
    adjust(r, s->z);
    const uint32_t asked = r->p.flags & INFER_SAMPLE_NO_TOP ? 0 : n_top;
    int64_t have = best(s->z, r->n_vocab, asked ? asked : 1, top);
    double lse = have ? log_sum_exp(s->z, r->n_vocab, top[0].z) : 0;
    for (uint32_t t = 0; t < n_top; t++) {
        const int there = t < asked && t < have;
        ids[t] = there ? top[t].id : -1;
        lps[t] = there ? (float)(top[t].z - top[0].z - lse) : NAN;
    }
    if (!have) {
        *id = -1;
        *lp = NAN;
        return;
    }
    *id = r->p.temperature > 0 ? draw(&r->p, s->z, r->n_vocab, s->c, s->p) : top[0].id;
    *lp = (float)(s->z[*id] - top[0].z - lse);
}

/* Where counts row `which` lies; NULL where there is none. */
static uint16_t *counts_at(const infer_view *counts, int32_t which)
{
    if (!counts->p || which < 0 || which >= counts->shape[0])
        return NULL;
    return (uint16_t *)(void *)infer_view_at(counts, which);
}

INFER_REF(sample)
{
    infer_view xv = infer_ref_in(op, data, 0), params = infer_ref_in(op, data, 1);
    infer_view counts = infer_ref_in(op, data, 2), bias = infer_ref_in(op, data, 3), mask = infer_ref_in(op, data, 4);
    infer_view lv = infer_ref_out(op, data, 1), top_ids = infer_ref_out(op, data, 2);
    infer_view top_lps = infer_ref_out(op, data, 3);
    int32_t *ids = data[op->n_in];
    infer_rows x = {0}, lps = {0};
    infer_attrs_sample a;
    infer_op_attrs(op, &a, sizeof a);
    int64_t n = xv.width;
    scratch s = {.z = infer_realloc_array(NULL, (size_t)n, sizeof *s.z),
                 .p = infer_realloc_array(NULL, (size_t)n, sizeof *s.p),
                 .c = infer_realloc_array(NULL, (size_t)n, sizeof *s.c)};
    float *lp = infer_realloc_array(NULL, (size_t)rows, sizeof *lp);
    infer_status st = s.z && s.p && s.c && lp ? infer_rows_load(&x, &xv, rows) : INFER_E_NO_MEMORY;
    if (st == INFER_OK)
        st = infer_rows_target(&lps, &top_lps, rows);
    if (st != INFER_OK)
        goto out;
    for (int64_t i = 0; i < rows; i++) {
        row r = {.logits = x.p[i], .bias = &bias, .n_vocab = n};
        memcpy(&r.p, infer_view_at(&params, i), sizeof r.p);
        r.counts = counts_at(&counts, r.p.counts_row);
        if (mask.p && r.p.flags & INFER_SAMPLE_MASKED)
            r.mask = (const uint32_t *)(const void *)infer_view_at(&mask, i);
        choose(&r, &s, a.n_top, &ids[i], &lp[i], top_ids.p ? (int32_t *)(void *)infer_view_at(&top_ids, i) : NULL,
               lps.p ? lps.p[i] : NULL);
    }
    for (int64_t i = 0; i < rows; i++) { /* only now: rows may share a counts row */
        infer_sample_row p;
        memcpy(&p, infer_view_at(&params, i), sizeof p);
        uint16_t *c = counts_at(&counts, p.counts_row);
        if (c && ids[i] >= 0 && (c[ids[i]] & TIMES) < TIMES)
            c[ids[i]]++;
    }
    infer_ref_pack(lv.format, lp, lv.p, rows);
    infer_rows_store(&lps, &top_lps, rows);
out:
    infer_free(s.z);
    infer_free(s.p);
    infer_free(s.c);
    infer_free(lp);
    infer_rows_free(&x);
    infer_rows_free(&lps);
    return st;
}
