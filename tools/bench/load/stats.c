/*
 * From records to figures; percentiles are of all samples. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "load.h"

double load_percentile(const double *sorted, size_t n, double p)
{
    double at = p * (double)(n - 1);
    size_t i = (size_t)at;
    if (i + 1 >= n)
        return sorted[n - 1];
    return sorted[i] + (sorted[i + 1] - sorted[i]) * (at - (double)i);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void sum_up(load_dist *d)
{
    if (!d->n)
        return;
    double sum = 0;
    qsort(d->v, d->n, sizeof *d->v, by_size);
    for (size_t i = 0; i < d->n; i++)
        sum += d->v[i];
    d->mean = sum / (double)d->n;
    d->p50 = load_percentile(d->v, d->n, 0.50);
    d->p90 = load_percentile(d->v, d->n, 0.90);
    d->p99 = load_percentile(d->v, d->n, 0.99);
    d->max = d->v[d->n - 1];
}

static void add_ms(load_dist *d, double ns)
{
    d->v[d->n++] = ns / 1e6;
}

static int by_number(const void *a, const void *b)
{
    const load_failure *x = a, *y = b;
    return x->n != y->n ? (x->n < y->n) - (x->n > y->n) : strcmp(x->kind, y->kind);
}

/* 0 without memory. */
static int count_failure(load_summary *s, const load_record *r)
{
    for (uint32_t i = 0; i < s->n_kinds; i++) {
        if (!strcmp(s->failures[i].kind, r->kind)) {
            s->failures[i].n++;
            return 1;
        }
    }
    load_failure *p = realloc(s->failures, (s->n_kinds + 1) * sizeof *p);
    if (!p)
        return 0;
    s->failures = p;
    load_failure *f = &p[s->n_kinds++];
    *f = (load_failure){.n = 1};
    snprintf(f->kind, sizeof f->kind, "%s", r->kind);
    snprintf(f->why, sizeof f->why, "%s", r->why);
    return 1;
}

static void add_record(load_summary *s, const load_record *r, const load_request *q)
{
    s->n_ok++;
    s->n_prompt += r->n_prompt;
    s->n_cached += r->n_cached;
    s->n_out += r->n_out;
    s->n_by_pieces += r->counted == LOAD_BY_PIECES;
    s->n_short += r->n_out < q->n_out;
    add_ms(&s->d[LOAD_TTFT], (double)(r->t_first - r->t_sent));
    add_ms(&s->d[LOAD_E2E], (double)(r->t_end - r->t_sent));
    if (r->n_out > 1)
        add_ms(&s->d[LOAD_TPOT], (double)(r->t_last - r->t_first) / (double)(r->n_out - 1));
    for (uint32_t k = 0; k + 1 < r->n_pieces; k++)
        add_ms(&s->d[LOAD_ITL], (double)r->gaps[k]);
}

infer_status load_summary_make(const load_run *run, load_summary *out, infer_error *err)
{
    const uint32_t n = run->list->n;
    size_t gaps = 0;
    int memory = 1;
    *out = (load_summary){.n = n};
    for (uint32_t i = 0; i < n; i++)
        gaps += run->records[i].n_pieces;
    for (int m = 0; m < LOAD_N_MEASURES; m++)
        memory &= (out->d[m].v = calloc((m == LOAD_ITL ? gaps : n) + 1, sizeof(double))) != NULL;
    for (uint32_t i = 0; i < n && memory; i++) {
        const load_record *r = &run->records[i];
        if (r->t_sent)
            add_ms(&out->d[LOAD_LATE], (double)(r->t_sent - r->t_due));
        if (*r->kind)
            memory = count_failure(out, r);
        else
            add_record(out, r, &run->list->r[i]);
    }
    if (!memory) {
        load_summary_free(out);
        return infer_error_set(err, INFER_E_NO_MEMORY, "summing up: out of memory");
    }
    for (int m = 0; m < LOAD_N_MEASURES; m++)
        sum_up(&out->d[m]);
    if (out->n_kinds)
        qsort(out->failures, out->n_kinds, sizeof *out->failures, by_number);
    out->seconds = (double)(run->t_end - run->t_start) / 1e9;
    if (out->seconds > 0) {
        out->requests_per_s = out->n_ok / out->seconds;
        out->out_per_s = (double)out->n_out / out->seconds;
        out->total_per_s = (double)(out->n_out + out->n_prompt) / out->seconds;
        out->client_busy = (double)run->cpu_ns / 1e9 / out->seconds;
    }
    return INFER_OK;
}

void load_summary_free(load_summary *s)
{
    for (int m = 0; m < LOAD_N_MEASURES; m++)
        free(s->d[m].v);
    free(s->failures);
    *s = (load_summary){0};
}
