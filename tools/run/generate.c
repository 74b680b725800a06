/*
 * One request from the options, its events gathered into an answer.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include <sys/random.h>

#include "run.h"

/* How long a poll may sleep before the interrupt flag is looked at. */
#define POLL_MS 100

volatile sig_atomic_t run_interrupted;

static void on_interrupt(int sig)
{
    (void)sig;
    run_interrupted = 1;
}

void run_catch_interrupts(void)
{
    struct sigaction sa = {.sa_handler = on_interrupt}; /* without SA_RESTART: reading a line ends, too */
    sigemptyset(&sa.sa_mask);
    sigaction(SIGINT, &sa, NULL);
}

const char *answer_finish(const answer *a)
{
    static const char *const names[] = {"error", "stop", "length", "cancelled", "error"};
    return names[a->finish <= INFER_FINISH_ERROR ? a->finish : 0];
}

void answer_free(answer *a)
{
    sbuf_free(&a->text);
    free(a->tokens);
    memset(a, 0, sizeof *a);
}

static infer_status take_token(answer *a, const infer_event *e, infer_error *err)
{
    if (a->n == a->cap) {
        size_t cap = a->cap ? a->cap * 2 : 64;
        answer_token *p = realloc(a->tokens, cap * sizeof *p);
        if (!p)
            return infer_error_set(err, INFER_E_NO_MEMORY, "gathering the answer: out of memory");
        a->tokens = p;
        a->cap = cap;
    }
    answer_token *t = &a->tokens[a->n++];
    t->id = e->token;
    t->logprob = e->logprob;
    t->n_top = e->n_top <= 20 ? e->n_top : 20;
    if (t->n_top)
        memcpy(t->top, e->top, t->n_top * sizeof *t->top);
    return INFER_OK;
}

static uint64_t seed_of(const opts *o)
{
    uint64_t seed = (uint64_t)opt_int(o, OPT_SEED);
    if (!opt_set(o, OPT_SEED) && getrandom(&seed, sizeof seed, 0) != sizeof seed)
        seed = infer_engine_now();
    return seed;
}

static void fill_request(const runner *r, const int32_t *ids, size_t n_ids, infer_request *req)
{
    const opts *o = r->o;
    double top_p = opt_num(o, OPT_TOP_P);
    req->struct_size = sizeof *req;
    req->flags = opt_int(o, OPT_IGNORE_EOS) ? INFER_REQ_IGNORE_EOS : 0;
    req->prompt = ids;
    req->n_prompt = n_ids;
    req->max_tokens = opt_int(o, OPT_N_PREDICT);
    req->sampling.temperature = (float)opt_num(o, OPT_TEMPERATURE);
    req->sampling.top_k = (int32_t)opt_int(o, OPT_TOP_K);
    req->sampling.top_p = top_p > 0 ? (float)top_p : 1e-9f; /* 0: only the likeliest */
    req->sampling.min_p = (float)opt_num(o, OPT_MIN_P);
    req->sampling.repetition_penalty = (float)opt_num(o, OPT_REPETITION_PENALTY);
    req->sampling.presence_penalty = (float)opt_num(o, OPT_PRESENCE_PENALTY);
    req->sampling.frequency_penalty = (float)opt_num(o, OPT_FREQUENCY_PENALTY);
    req->sampling.seed = seed_of(o);
    req->stop = (const char *const *)o->v[OPT_STOP].list;
    req->n_stop = (uint32_t)o->v[OPT_STOP].n;
    req->n_top_logprobs = r->n_top;
}

infer_status run_generate(runner *r, const int32_t *ids, size_t n_ids, answer *a, infer_error *err)
{
    infer_engine *engine = r->s->engine;
    infer_request req = {0};
    uint64_t id;
    memset(a, 0, sizeof *a);
    fill_request(r, ids, n_ids, &req);
    infer_status st = infer_engine_submit(engine, &req, &id, err), bad = INFER_OK;
    if (st < 0)
        return st;
    int cancelled = 0;
    while (!a->finish) {
        const infer_event *events;
        uint32_t n;
        if (!cancelled && (run_interrupted || bad < 0)) {
            infer_engine_cancel(engine, id);
            cancelled = 1;
        }
        if ((st = infer_engine_poll(engine, POLL_MS, &events, &n)) < 0)
            return infer_error_set(err, st, "generating: the engine failed: %s", infer_status_name(st));
        for (uint32_t i = 0; i < n && events[i].id == id; i++) {
            const infer_event *e = &events[i];
            if (e->type == INFER_EVENT_TOKEN && bad >= 0)
                bad = take_token(a, e, err);
            if (e->n_text) {
                sbuf_add(&a->text, e->text, e->n_text);
                if (r->stream)
                    fwrite(e->text, 1, e->n_text, r->stream);
            }
            if (e->type == INFER_EVENT_DONE) {
                a->finish = e->finish;
                a->end = *e;
                if (e->finish == INFER_FINISH_ERROR && bad >= 0)
                    bad = infer_error_set(err, e->status < 0 ? e->status : INFER_E_INTERNAL, "generating: %s",
                                          e->error && *e->error ? e->error : infer_status_name(e->status));
            }
        }
        if (r->stream) {
            fflush(r->stream);
            if (ferror(r->stream) && bad >= 0) /* such as a reader that has seen enough */
                bad = infer_error_set(err, INFER_E_IO, "write the answer: %s", strerror(errno));
        }
    }
    if (a->text.failed && bad >= 0)
        bad = infer_error_set(err, INFER_E_NO_MEMORY, "gathering the answer: out of memory");
    return bad;
}
