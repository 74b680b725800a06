/*
 * Measures through the engine API alone: times are those of the events, not of their arrival here.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stdlib.h>

#include "bench.h"
#include "load/load.h"

#define TRIES 50 /* a busy machine turns a difference round every other time */

typedef struct wave {
    infer_engine *engine;
    uint32_t n_seq;
    uint64_t *ids;    /* of the requests */
    uint8_t *started; /* has its first token */
    uint32_t n_started, n_done;
    uint64_t t_submit, t_all_started; /* when the last sequence had its first token */
    uint64_t counted, t_counted;      /* tokens since then, and when the last of `wanted` came */
    uint64_t wanted;
    infer_engine_stats from, to; /* as they were then, or a little later */
} wave;

/* A token that is no control token: any will do for speed. */
static int32_t random_token(const infer_tokenizer *tok, uint64_t *random)
{
    uint32_t n = infer_tokenizer_n_tokens(tok);
    for (int i = 0; i < 64; i++) {
        int32_t id = (int32_t)(load_random(random) % n);
        if (infer_tokenizer_type(tok, id) == INFER_TOKEN_NORMAL)
            return id;
    }
    return 0;
}

/* Tokens of slack a request needs: while later prompts are still read, earlier sequences go on. */
static uint32_t slack(const bench_test *t, uint32_t step_tokens)
{
    uint64_t reading = (uint64_t)t->n_seq * ((uint64_t)t->depth + 1) / (step_tokens ? step_tokens : 1) + t->n_seq + 4;
    return reading > 65536 ? 65536 : (uint32_t)reading;
}

uint64_t bench_ctx(const bench_test *t, uint32_t step_tokens)
{
    return t->n_prompt ? (uint64_t)t->depth + t->n_prompt + 2
                       : (uint64_t)t->depth + 1 + t->n_gen + slack(t, step_tokens) + 2;
}

/* Submits n_seq requests with `prompt` random tokens each. */
static infer_status start(wave *w, const session *s, uint32_t prompt, int64_t max_tokens, uint64_t *random,
                          infer_error *err)
{
    int32_t *ids = malloc(prompt * sizeof *ids);
    if (!ids)
        return infer_error_set(err, INFER_E_NO_MEMORY, "making prompts: out of memory");
    infer_status st = INFER_OK;
    w->t_submit = infer_engine_now();
    for (uint32_t i = 0; i < w->n_seq && st >= 0; i++) {
        for (uint32_t k = 0; k < prompt; k++)
            ids[k] = random_token(s->tokenizer, random);
        infer_request r = {.struct_size = sizeof r, .flags = INFER_REQ_IGNORE_EOS, .prompt = ids, .n_prompt = prompt};
        r.max_tokens = max_tokens;
        st = infer_engine_submit(w->engine, &r, &w->ids[i], err);
        if (st < 0)
            w->n_done += w->n_seq - i; /* those were never there */
    }
    free(ids);
    return st;
}

static infer_status take(wave *w, const infer_event *e, infer_error *err)
{
    uint32_t i = 0;
    while (i < w->n_seq && w->ids[i] != e->id)
        i++;
    if (i == w->n_seq)
        return INFER_OK;
    if (e->type == INFER_EVENT_DONE) {
        w->n_done++;
        if (e->finish == INFER_FINISH_ERROR)
            return infer_error_set(err, e->status < 0 ? e->status : INFER_E_INTERNAL, "measuring: %s",
                                   e->error && *e->error ? e->error : infer_status_name(e->status));
        return INFER_OK;
    }
    if (!w->started[i]) {
        w->started[i] = 1;
        if (++w->n_started == w->n_seq)
            w->t_all_started = e->t;
    } else if (w->n_started == w->n_seq && w->counted < w->wanted && ++w->counted == w->wanted) {
        w->t_counted = e->t;
    }
    return INFER_OK;
}

static infer_engine_stats stats_of(const wave *w)
{
    infer_engine_stats st = {.struct_size = sizeof st};
    infer_engine_get_stats(w->engine, &st);
    return st;
}

static void cancel_all(const wave *w)
{
    for (uint32_t i = 0; i < w->n_seq; i++)
        infer_engine_cancel(w->engine, w->ids[i]);
}

/* Runs a wave until `wanted` tokens were counted after every sequence had started, then lets it end. INFER_AGAIN: this
 * thread was kept from submitting for so long that the first sequences had filled their contexts before the last came.
 */
static infer_status run_wave(wave *w, const session *s, uint32_t n_seq, uint32_t prompt, int64_t max_tokens,
                             uint64_t wanted, uint64_t *random, infer_error *err)
{
    *w = (wave){.engine = s->engine, .n_seq = n_seq, .wanted = wanted};
    w->ids = calloc(n_seq, sizeof *w->ids);
    w->started = calloc(n_seq, 1);
    infer_status st = w->ids && w->started
                          ? start(w, s, prompt, max_tokens, random, err)
                          : infer_error_set(err, INFER_E_NO_MEMORY, "measuring %u sequences: out of memory", n_seq);
    int cancelled = 0;
    while (w->ids && w->started && w->n_done < n_seq) {
        const infer_event *events;
        uint32_t n;
        if (!cancelled && (st < 0 || (w->n_started == n_seq && w->counted == wanted))) {
            cancel_all(w);
            cancelled = 1;
        }
        infer_status p = infer_engine_poll(w->engine, -1, &events, &n);
        if (p < 0) {
            st = infer_error_set(err, p, "measuring: the engine failed: %s", infer_status_name(p));
            break;
        }
        for (uint32_t i = 0; i < n; i++) {
            infer_status t = take(w, &events[i], st >= 0 ? err : NULL);
            if (t < 0)
                st = t;
        }
        if (w->n_started == n_seq && !w->from.struct_size)
            w->from = stats_of(w);
        if (w->counted == wanted && !cancelled)
            w->to = stats_of(w);
    }
    free(w->ids);
    free(w->started);
    if (st >= 0 && (w->n_started < n_seq || w->counted < wanted))
        st = INFER_AGAIN;
    return st;
}

static infer_status time_prompt(session *s, uint32_t n_seq, uint32_t prompt, uint64_t *random, double *seconds,
                                infer_error *err)
{
    wave w;
    infer_status st = run_wave(&w, s, n_seq, prompt, 1, 0, random, err);
    if (st == INFER_OK)
        *seconds = (double)(w.t_all_started - w.t_submit) / 1e9;
    return st;
}

infer_status bench_measure(session *s, bench_result *r, uint64_t *random, int count, double *rate, infer_error *err)
{
    const bench_test *t = &r->test;
    wave w = {0};
    double with = 0, without = 0, tokens = (double)(t->n_prompt ? t->n_prompt : t->n_gen) * t->n_seq;
    infer_status st = INFER_OK;
    /* A short test at a depth is the difference of two short times, which noise can turn round: try again then, and
     * where sequences ended too early. */
    for (int i = 0; i < TRIES && with <= without && st >= 0; i++) {
        if (t->n_prompt) {
            st = time_prompt(s, t->n_seq, t->depth + t->n_prompt, random, &with, err);
            if (st >= 0 && t->depth)
                st = time_prompt(s, t->n_seq, t->depth, random, &without, err);
        } else {
            st = run_wave(&w, s, t->n_seq, t->depth + 1, -1, (uint64_t)t->n_gen * t->n_seq, random, err);
            with = st == INFER_OK ? (double)(w.t_counted - w.t_all_started) / 1e9 : 0;
        }
    }
    if (st >= 0 && with <= without)
        st = infer_error_set(err, INFER_E_INTERNAL, "measuring: too short to time; ask for more tokens");
    if (st >= 0)
        *rate = tokens / (with - without);
    if (st >= 0 && count) {
        r->steps += w.to.steps - w.from.steps;
        r->host_ns += w.to.host_ns - w.from.host_ns;
    }
    return st;
}
