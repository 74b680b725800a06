/*
 * The report of a load: markdown for people, JSON, CSV. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stdarg.h>
#include <string.h>

#include "load.h"

static const struct {
    const char *name, *title;
} measures[LOAD_N_MEASURES] = {
    [LOAD_TTFT] = {"ttft_ms", "time to first token"},   [LOAD_TPOT] = {"tpot_ms", "time per output token"},
    [LOAD_ITL] = {"itl_ms", "inter-token latency"},     [LOAD_E2E] = {"e2e_ms", "end to end"},
    [LOAD_LATE] = {"late_ms", "sent after it was due"},
};

/* How the tokens were counted, in words. */
static const char *counted(const load_run *run, const load_summary *s)
{
    enum load_counted first = LOAD_NOT_COUNTED;
    for (uint32_t i = 0; i < run->list->n && first == LOAD_NOT_COUNTED; i++)
        if (!*run->records[i].kind)
            first = run->records[i].counted;
    if (first == LOAD_NOT_COUNTED)
        return "nothing";
    if (s->n_by_pieces == s->n_ok)
        return "pieces of the stream";
    if (s->n_by_pieces)
        return "the server's usage, pieces of the stream where it gave none";
    return first == LOAD_BY_ENGINE ? "the engine" : "the server's usage";
}

/* Text of others in a cell: no control characters, no cell's end. */
static void put_cell(const char *s, FILE *f)
{
    for (; *s; s++)
        fputc((unsigned char)*s < ' ' || *s == 127 ? ' ' : *s == '|' ? '/' : *s, f);
}

static void describe_lengths(const load_title *t, char *buf, size_t cap)
{
    const load_spec *p = t->spec;
    const char *unit = p->tokenizer ? "tokens" : "words";
    char spread[48] = "";
    size_t n = 0;
    if (p->sigma > 0 && p->workload != LOAD_SHAREGPT)
        snprintf(spread, sizeof spread, " (means; log-normal, sigma %g)", p->sigma);
    if (p->workload == LOAD_SHAREGPT)
        n = (size_t)snprintf(buf, cap, "%s of %s", p->n_turns > 1 ? "conversations" : "questions", p->dataset);
    else if (p->workload == LOAD_PREFIX)
        n = (size_t)snprintf(buf, cap, "one of %u beginnings of %u and %u %s more", p->n_prefixes, p->n_prefix, p->n_in,
                             unit);
    else
        n = (size_t)snprintf(buf, cap, "%u %s%s", p->n_in, unit, p->workload == LOAD_TURNS ? " a turn" : "");
    if (p->n_turns > 1 && n < cap)
        n += (size_t)snprintf(buf + n, cap - n, ", %u turns", p->n_turns);
    if (p->n_out && n < cap)
        n += (size_t)snprintf(buf + n, cap - n, ", %u tokens out", p->n_out);
    if (n < cap)
        snprintf(buf + n, cap - n, "%s", spread);
}

static void describe_arrivals(const load_title *t, char *buf, size_t cap)
{
    const char *what = t->spec->n_turns > 1 ? "conversations" : "requests";
    size_t n = 0;
    *buf = 0;
    if (t->spec->rate > 0)
        n = (size_t)snprintf(buf, cap, "Poisson, %g %s/s%s", t->spec->rate, what, t->concurrency ? ", " : "");
    if (t->concurrency && n < cap)
        snprintf(buf + n, cap - n, t->spec->rate > 0 ? "at most %u at once" : "%u clients", t->concurrency);
    else if (!(t->spec->rate > 0))
        snprintf(buf, cap, "all at once");
}

static void row(FILE *f, const char *name, const char *fmt, ...) INFER_PRINTF(3, 4);
static void row(FILE *f, const char *name, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fprintf(f, "| %-22s | ", name);
    put_cell(text, f);
    fputs(" |\n", f);
}

static void print_md(const load_title *t, const load_run *run, const load_summary *s, FILE *f)
{
    char lengths[512], arrivals[128];
    describe_lengths(t, lengths, sizeof lengths);
    describe_arrivals(t, arrivals, sizeof arrivals);
    fprintf(f, "| load                   | value |\n| ---------------------- | ----- |\n");
    row(f, "target", "%s, %s", t->target, t->endpoint);
    row(f, "workload", "%s: %s", t->workload, lengths);
    row(f, "arrivals", "%s", arrivals);
    row(f, "list", "%u requests, seed %llu, hash %016llx", s->n, (unsigned long long)t->spec->seed,
        (unsigned long long)run->list->hash);
    row(f, "duration", "%.3f s", s->seconds);
    row(f, "went well", "%u of %u", s->n_ok, s->n);
    for (uint32_t i = 0; i < s->n_kinds; i++)
        row(f, "failed", "%u: %s: %s", s->failures[i].n, s->failures[i].kind, s->failures[i].why);
    if (s->n_short)
        row(f, "shorter than asked for", "%u", s->n_short);
    row(f, "requests/s", "%.3f", s->requests_per_s);
    row(f, "prompt tokens", "%llu, %llu of them cached", (unsigned long long)s->n_prompt,
        (unsigned long long)s->n_cached);
    row(f, "output tokens", "%llu, counted by %s", (unsigned long long)s->n_out, counted(run, s));
    row(f, "output tokens/s", "%.2f", s->out_per_s);
    row(f, "total tokens/s", "%.2f", s->total_per_s);
    row(f, "client busy", "%.1f %%", 100 * s->client_busy);
    if (run->n_reconnects)
        row(f, "sent anew", "%u, as a kept connection was closed", run->n_reconnects);
    fprintf(f,
            "\n| ms                     |       mean |        p50 |        p90 |        p99 |        max |  samples |\n"
            "| ---------------------- | ---------: | ---------: | ---------: | ---------: | ---------: | -------: |\n");
    for (int m = 0; m < LOAD_N_MEASURES; m++) {
        const load_dist *d = &s->d[m];
        if (m != LOAD_LATE || t->spec->rate > 0)
            fprintf(f, "| %-22s | %10.3f | %10.3f | %10.3f | %10.3f | %10.3f | %8zu |\n", measures[m].title, d->mean,
                    d->p50, d->p90, d->p99, d->max, d->n);
    }
}

/* ---- JSON -------------------------------------------------------------------------------------------------- */

static json_t *dist_json(const load_dist *d)
{
    return json_pack("{s:I, s:f, s:f, s:f, s:f, s:f}", "n", (json_int_t)d->n, "mean", d->mean, "p50", d->p50, "p90",
                     d->p90, "p99", d->p99, "max", d->max);
}

static json_t *failures_json(const load_summary *s)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < s->n_kinds; i++)
        json_array_append_new(list, json_pack("{s:o, s:I, s:o}", "kind", utf8_json(s->failures[i].kind), "n",
                                              (json_int_t)s->failures[i].n, "first", utf8_json(s->failures[i].why)));
    return list;
}

static json_t *request_json(const load_run *run, const load_request *q, const load_record *r)
{
    json_t *gaps = json_array();
    for (uint32_t k = 0; k + 1 < r->n_pieces; k++)
        json_array_append_new(gaps, json_real((double)r->gaps[k] / 1e6));
    double sent = r->t_sent ? (double)(r->t_sent - run->t_start) / 1e6 : -1;
    double ttft = r->t_first ? (double)(r->t_first - r->t_sent) / 1e6 : -1;
    double e2e = r->t_end ? (double)(r->t_end - r->t_sent) / 1e6 : -1;
    return json_pack("{s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:o, s:o, s:o}", "conversation",
                     (json_int_t)q->conversation, "turn", (json_int_t)q->turn, "asked", (json_int_t)q->n_out, "sent_ms",
                     sent < 0 ? json_null() : json_real(sent), "ttft_ms", ttft < 0 ? json_null() : json_real(ttft),
                     "e2e_ms", e2e < 0 ? json_null() : json_real(e2e), "itl_ms", gaps, "prompt_tokens",
                     (json_int_t)r->n_prompt, "cached_tokens", (json_int_t)r->n_cached, "output_tokens",
                     (json_int_t)r->n_out, "finish_reason", *r->finish ? utf8_json(r->finish) : json_null(), "failure",
                     *r->kind ? utf8_json(r->kind) : json_null(), "why", *r->kind ? utf8_json(r->why) : json_null());
}

static json_t *report_json(const load_title *t, const load_run *run, const load_summary *s, int samples)
{
    const load_spec *p = t->spec;
    char hash[20];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)run->list->hash);
    json_t *o = json_pack("{s:o, s:s, s:s, s:I, s:I, s:I, s:f, s:I, s:I, s:I, s:f, s:I, s:s, s:b}", "target",
                          utf8_json(t->target), "endpoint", t->endpoint, "workload", t->workload, "input_tokens",
                          (json_int_t)p->n_in, "output_tokens", (json_int_t)p->n_out, "turns", (json_int_t)p->n_turns,
                          "length_sigma", p->sigma, "prefix_tokens", (json_int_t)p->n_prefix, "prefixes",
                          (json_int_t)p->n_prefixes, "concurrency", (json_int_t)t->concurrency, "rate", p->rate, "seed",
                          (json_int_t)p->seed, "list_hash", hash, "lengths_in_tokens", p->tokenizer != NULL);
    json_t *more = json_pack(
        "{s:I, s:I, s:o, s:I, s:I, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:s, s:I, s:f, s:I, s:b, s:b, s:{s:I, s:I}}",
        "requests", (json_int_t)s->n, "ok", (json_int_t)s->n_ok, "failures", failures_json(s), "shorter_than_asked",
        (json_int_t)s->n_short, "left_out", (json_int_t)run->list->n_left_out, "duration_s", s->seconds,
        "requests_per_s", s->requests_per_s, "output_tokens_per_s", s->out_per_s, "total_tokens_per_s", s->total_per_s,
        "total_prompt_tokens", (json_int_t)s->n_prompt, "total_cached_tokens", (json_int_t)s->n_cached,
        "total_output_tokens", (json_int_t)s->n_out, "counted_by", counted(run, s), "counted_by_pieces",
        (json_int_t)s->n_by_pieces, "client_busy", s->client_busy, "reconnects", (json_int_t)run->n_reconnects,
        "sent_ignore_eos", run->sent_ignore_eos, "sent_include_usage", run->sent_usage, "warmup", "prompt_tokens",
        (json_int_t)run->warmup.n_prompt, "output_tokens", (json_int_t)run->warmup.n_out);
    int ok = o && more && !json_object_update(o, more);
    json_decref(more);
    for (int m = 0; m < LOAD_N_MEASURES && ok; m++)
        ok = !json_object_set_new(o, measures[m].name, dist_json(&s->d[m]));
    if (ok && samples) {
        json_t *list = json_array();
        for (uint32_t i = 0; i < run->list->n && ok; i++)
            ok = !json_array_append_new(list, request_json(run, &run->list->r[i], &run->records[i]));
        ok = !json_object_set_new(o, "samples", list) && ok;
    }
    if (ok)
        return o;
    json_decref(o);
    return NULL;
}

/* ---- CSV --------------------------------------------------------------------------------------------------- */

static void print_csv(const json_t *o, FILE *f)
{
    static const char *const plain[] = {"endpoint",
                                        "workload",
                                        "input_tokens",
                                        "output_tokens",
                                        "turns",
                                        "length_sigma",
                                        "concurrency",
                                        "rate",
                                        "seed",
                                        "list_hash",
                                        "requests",
                                        "ok",
                                        "duration_s",
                                        "requests_per_s",
                                        "output_tokens_per_s",
                                        "total_tokens_per_s",
                                        "total_prompt_tokens",
                                        "total_output_tokens",
                                        "counted_by_pieces",
                                        "client_busy"};
    static const char *const parts[] = {"mean", "p50", "p90", "p99", "max"};
    enum { N_PLAIN = sizeof plain / sizeof plain[0], N_PARTS = sizeof parts / sizeof parts[0] };
    for (int i = 0; i < N_PLAIN; i++)
        fprintf(f, "%s%s", i ? "," : "", plain[i]);
    for (int i = 0; i < LOAD_N_MEASURES * N_PARTS; i++)
        fprintf(f, ",%s_%s", measures[i / N_PARTS].name, parts[i % N_PARTS]);
    fputc('\n', f);
    for (int i = 0; i < N_PLAIN; i++) {
        const json_t *v = json_object_get(o, plain[i]);
        if (i)
            fputc(',', f);
        if (json_is_string(v))
            fprintf(f, "\"%s\"", json_string_value(v));
        else
            json_dumpf(v, f, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    }
    for (int i = 0; i < LOAD_N_MEASURES * N_PARTS; i++)
        fprintf(f, ",%.6f",
                json_number_value(json_object_get(json_object_get(o, measures[i / N_PARTS].name), parts[i % N_PARTS])));
    fputc('\n', f);
}

int load_report_print(enum load_form form, const load_title *t, const load_run *run, const load_summary *s, int samples,
                      FILE *f)
{
    if (form == LOAD_MD) {
        print_md(t, run, s, f);
        return 0;
    }
    json_t *o = report_json(t, run, s, samples);
    if (!o)
        return -1;
    if (form == LOAD_CSV) {
        print_csv(o, f);
    } else {
        json_dumpf(o, f, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
        fputc('\n', f);
    }
    json_decref(o);
    return 0;
}
