/*
 * Engine requests of calls, and the thread that hands events to them. Formats nothing.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gen.h"
#include "http.h"
#include "logsum.h"
#include "work.h"

struct pump {
    pthread_t thread;
    _Atomic int stop;
    _Atomic int cancelled; /* all: also who has no id yet */
    /* Choices under way, for pump_cancel_all. */
    pthread_mutex_t lock;
    gen **live;
    size_t n, cap;
};

/* ---- Tokens ------------------------------------------------------------------------------------------------ */

static void *grow(void *p, size_t *cap, size_t need, size_t size, int *failed)
{
    size_t n = *cap ? *cap : 32;
    while (n < need)
        n *= 2;
    void *q = n > SIZE_MAX / size ? NULL : realloc(p, n * size);
    if (!q) {
        *failed = 1;
        return p;
    }
    *cap = n;
    return q;
}

static void add_token(gen_tokens *t, int32_t id, float logprob, uint32_t known, const infer_logprob *top,
                      uint32_t n_top)
{
    if (t->n == t->cap)
        t->p = grow(t->p, &t->cap, t->n + 1, sizeof *t->p, &t->failed);
    if (t->n_tops + n_top > t->cap_tops)
        t->tops = grow(t->tops, &t->cap_tops, t->n_tops + n_top, sizeof *t->tops, &t->failed);
    if (t->failed)
        return;
    if (n_top)
        memcpy(t->tops + t->n_tops, top, n_top * sizeof *top);
    t->p[t->n++] = (gen_token){.id = id, .logprob = logprob, .top = t->n_tops, .n_top = n_top, .known = known};
    t->n_tops += n_top;
}

static void free_tokens(gen_tokens *t)
{
    free(t->p);
    free(t->tops);
}

/* ---- Groups ------------------------------------------------------------------------------------------------ */

gen_group *gen_new(call *c, size_t n_prompts, size_t n)
{
    gen_group *g = calloc(1, sizeof *g);
    if (!g)
        return NULL;
    g->prompts = calloc(n_prompts, sizeof *g->prompts);
    g->gens = calloc(n_prompts * n, sizeof *g->gens);
    g->n_prompts = n_prompts;
    g->n = n_prompts * n;
    g->n_told = n;
    if (!g->prompts || !g->gens) {
        free(g->prompts);
        free(g->gens);
        free(g);
        return NULL;
    }
    for (size_t i = 0; i < g->n; i++) {
        g->gens[i].c = c;
        g->gens[i].index = (uint32_t)i;
        g->gens[i].prompt_index = (uint32_t)(i / n);
    }
    pthread_mutex_lock(&c->lock); /* a client that leaves is looked after on another thread */
    c->gens = g;
    pthread_mutex_unlock(&c->lock);
    return g;
}

void gen_free(call *c)
{
    gen_group *g = c->gens;
    if (!g)
        return;
    for (size_t i = 0; i < g->n; i++) {
        sbuf_free(&g->gens[i].text);
        free(g->gens[i].marks);
        free_tokens(&g->gens[i].tokens);
        free_tokens(&g->gens[i].echoed);
    }
    for (size_t i = 0; i < g->n_prompts; i++) {
        gen_prompt *p = &g->prompts[i];
        if (p->ids_from_malloc)
            free(p->ids);
        else if (p->ids)
            infer_ids_free(p->ids);
        if (p->text_from_malloc)
            free(p->text);
        else if (p->text)
            infer_text_free(p->text);
    }
    for (uint32_t i = 0; i < g->n_stop; i++)
        free(g->stop[i]);
    free(g->stop);
    free(g->stop_ids);
    free(g->cache_salt);
    free((void *)(uintptr_t)g->sampling.bias);
    free(g->prompts);
    free(g->gens);
    free(g);
    c->gens = NULL;
}

static int enlist(struct pump *p, gen *g)
{
    int failed = 0;
    pthread_mutex_lock(&p->lock);
    if (p->n == p->cap)
        p->live = grow(p->live, &p->cap, p->n + 1, sizeof *p->live, &failed);
    if (!failed)
        p->live[p->n++] = g;
    pthread_mutex_unlock(&p->lock);
    return !failed;
}

static void discharge(struct pump *p, const gen *g)
{
    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < p->n; i++) {
        if (p->live[i] == g) {
            p->live[i] = p->live[--p->n];
            break;
        }
    }
    pthread_mutex_unlock(&p->lock);
}

/* Cancels the group's choices under way. With the call's lock held. */
static void cancel_group(call *c)
{
    for (size_t i = 0; c->gens && i < c->gens->n; i++) {
        gen *g = &c->gens->gens[i];
        if (g->under_way && !g->done && g->id)
            infer_engine_cancel(c->server->session.engine, g->id);
    }
}

void gen_client_gone(call *c)
{
    pthread_mutex_lock(&c->lock);
    c->gone = 1;
    cancel_group(c);
    pthread_mutex_unlock(&c->lock);
}

int gen_counts(call *c, uint64_t *prompt, uint64_t *made)
{
    int any = 0;
    *prompt = *made = 0;
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; c->gens && i < c->gens->n; i++) {
        any |= c->gens->gens[i].done;
        *prompt += c->gens->gens[i].n_prompt;
        *made += c->gens->gens[i].n_generated;
    }
    pthread_mutex_unlock(&c->lock);
    return any;
}

/* ---- Log-probabilities of a prompt ------------------------------------------------------------------------- */

/* On the engine thread. logits follow prompt token `pos`, so they say how likely token pos + 1 was. */
static void on_prompt_logits(void *user, uint64_t pos, const float *logits, uint32_t n_vocab)
{
    gen *g = user;
    const gen_group *group = g->c->gens;
    const gen_prompt *p = &group->prompts[g->prompt_index];
    if (pos + 1 >= p->n || pos + 1 != g->echoed.n) /* the last, or once more after a preemption */
        return;
    double norm = logits_log_sum_exp(logits, n_vocab);
    infer_logprob top[20];
    uint32_t n = 0, want = group->n_top < n_vocab ? group->n_top : n_vocab;
    for (uint32_t i = 0; want && i < n_vocab; i++) {
        if (n == want && logits[i] <= top[n - 1].logprob)
            continue;
        uint32_t k = n < want ? n++ : n - 1;
        for (; k && top[k - 1].logprob < logits[i]; k--)
            top[k] = top[k - 1];
        top[k] = (infer_logprob){.id = (int32_t)i, .logprob = logits[i]};
    }
    for (uint32_t i = 0; i < n; i++)
        top[i].logprob = (float)(top[i].logprob - norm);
    int32_t id = p->ids[pos + 1];
    add_token(&g->echoed, id, (float)(logits[id] - norm), 1, top, n);
}

/* ---- Submitting -------------------------------------------------------------------------------------------- */

static infer_status submit_one(gen *g, infer_error *err)
{
    call *c = g->c;
    gen_group *group = c->gens;
    const gen_prompt *p = &group->prompts[g->prompt_index];
    infer_request r = {.struct_size = sizeof r, .flags = group->flags, .user = g};
    r.prompt = p->ids;
    r.n_prompt = p->n;
    r.max_tokens = group->max_tokens;
    r.min_tokens = group->min_tokens;
    r.sampling = group->sampling;
    r.sampling.seed += g->index;
    r.stop = (const char *const *)group->stop;
    r.n_stop = group->n_stop;
    r.stop_ids = group->stop_ids;
    r.n_stop_ids = group->n_stop_ids;
    r.n_top_logprobs = group->n_top;
    r.priority = group->priority;
    r.cache_salt = group->cache_salt;
    r.tenant = c->key->name;
    r.beam_width = group->beam_width;
    r.beam_best = group->beam_width ? (uint32_t)group->n_told : 0;
    r.length_penalty = group->length_penalty;
    r.early_stopping = group->early_stopping;
    r.fork_of = group->gens[g->index - g->index % (group->n / group->n_prompts)].id; /* the first choice's, or 0 */
    if (group->echo && group->logprobs) {
        add_token(&g->echoed, p->ids[0], 0, 0, NULL, 0);
        r.flags |= INFER_REQ_PROMPT_ROWS;
        r.on_row = on_prompt_logits;
        r.row_user = g;
    }
    if (!enlist(c->server->pump, g))
        return infer_error_set(err, INFER_E_NO_MEMORY, "starting a request: out of memory");
    call_ref(c); /* the engine's */
    pthread_mutex_lock(&c->lock);
    g->under_way = 1;
    g->t_submit = infer_engine_now();
    pthread_mutex_unlock(&c->lock);
    uint64_t id = 0;
    infer_status st = infer_engine_submit(c->server->session.engine, &r, &id, err);
    pthread_mutex_lock(&c->lock);
    if (st < 0)
        g->under_way = 0;
    else
        g->id = id;
    if (st >= 0 && (c->gone || g->done || atomic_load(&c->server->pump->cancelled)))
        infer_engine_cancel(c->server->session.engine, id);
    pthread_mutex_unlock(&c->lock);
    if (st < 0) {
        discharge(c->server->pump, g);
        call_unref(c);
    }
    return st;
}

infer_status gen_submit(call *c, infer_error *err)
{
    gen_group *g = c->gens;
    infer_status st = INFER_OK;
    const size_t step = g->beam_width ? g->n_told : 1; /* a beam search brings all of a prompt's choices */
    g->n_live = g->n / step;
    for (size_t i = 0; i < g->n; i += step) {
        if ((st = submit_one(&g->gens[i], err)) < 0) {
            pthread_mutex_lock(&c->lock);
            g->aborted = 1;
            cancel_group(c);
            pthread_mutex_unlock(&c->lock);
            break;
        }
    }
    if (st >= 0)
        for (size_t i = 0; i < g->n_prompts; i++)
            auth_spend(&c->server->auth, c->key, (double)g->prompts[i].n, infer_engine_now());
    if (st >= 0)
        metrics_params(&c->server->metrics, g->n / g->n_prompts, g->max_tokens);
    return st;
}

/* ---- The pump ---------------------------------------------------------------------------------------------- */

static void on_token(server *s, gen *g, const infer_event *e, uint64_t now)
{
    const gen_group *group = g->c->gens;
    if (!g->t_last)
        metrics_observe(&s->metrics, METRIC_TTFT, (double)(now - g->t_submit) / 1e9);
    else
        metrics_observe(&s->metrics, METRIC_ITL, (double)(now - g->t_last) / 1e9);
    g->t_last = now;
    g->logprob += e->logprob;
    auth_spend(&s->auth, g->c->key, 1, now);
    if (group->logprobs)
        add_token(&g->tokens, e->token, e->logprob, 1, e->top, e->n_top);
}

/* The next choice of a prompt's, whole. */
static void on_hypothesis(server *s, gen *first, const infer_event *e)
{
    gen *g = first + first->n_hyps++;
    g->done |= g != first;
    g->finish = e->finish;
    g->n_generated = e->n_ids;
    sbuf_add(&g->text, e->text, e->n_text);
    auth_spend(&s->auth, g->c->key, (double)e->n_ids, e->t);
}

/* Notes what an event brought. Returns whether it was anything to send. */
static int add_mark(gen *g)
{
    const gen_mark *last = g->n_marks ? &g->marks[g->n_marks - 1] : &(gen_mark){0, 0};
    if (g->text.n == last->text && g->tokens.n == last->tokens)
        return 0;
    if (g->n_marks == g->cap_marks)
        g->marks = grow(g->marks, &g->cap_marks, g->n_marks + 1, sizeof *g->marks, &g->marks_failed);
    if (!g->marks_failed)
        g->marks[g->n_marks++] = (gen_mark){g->text.n, g->tokens.n};
    return 1;
}

static double seconds(uint64_t from, uint64_t to)
{
    return from && to > from ? (double)(to - from) / 1e9 : 0;
}

static void observe_done(server *s, const infer_event *e)
{
    metrics *m = &s->metrics;
    metrics_finished(m, e->finish);
    if (e->finish != INFER_FINISH_STOP && e->finish != INFER_FINISH_LENGTH)
        return;
    uint64_t first = e->t_first_token ? e->t_first_token : e->t_end;
    double decode = seconds(first, e->t_end);
    metrics_observe(m, METRIC_E2E, seconds(e->t_submit, e->t_end));
    metrics_observe(m, METRIC_QUEUE, seconds(e->t_submit, e->t_first_run));
    metrics_observe(m, METRIC_PREFILL, seconds(e->t_first_run, first));
    metrics_observe(m, METRIC_DECODE, decode);
    metrics_observe(m, METRIC_INFERENCE, seconds(e->t_first_run, e->t_end));
    metrics_observe(m, METRIC_PROMPT_TOKENS, (double)e->n_prompt);
    metrics_observe(m, METRIC_GENERATION_TOKENS, (double)e->n_generated);
    metrics_observe(m, METRIC_COMPUTED_TOKENS, (double)(e->n_prompt - e->n_cached));
    if (e->n_generated > 1)
        metrics_observe(m, METRIC_TPOT, decode / (double)(e->n_generated - 1));
}

/* The last event of a choice. Returns 1 when it was the call's last and its reply is due. */
static int on_done(server *s, gen *g, const infer_event *e)
{
    gen_group *group = g->c->gens;
    g->done = 1;
    g->finish = e->finish;
    g->status = e->status;
    g->n_prompt = e->n_prompt;
    g->n_cached = e->n_cached;
    if (!g->n_hyps) /* else it is the first hypothesis's */
        g->n_generated = e->n_generated;
    snprintf(g->error, sizeof g->error, "%s", e->error && *e->error ? e->error : infer_status_name(e->status));
    observe_done(s, e);
    trace_request(s->trace, e, g->c->request_id, g->index);
    if (--group->n_live)
        return 0;
    uint64_t most = 0;
    for (size_t i = 0; i < group->n; i++)
        most = group->gens[i].n_generated > most ? group->gens[i].n_generated : most;
    metrics_observe(&s->metrics, METRIC_MAX_GENERATION_TOKENS, (double)most);
    return !group->aborted && !group->stream;
}

/* Returns 1 when the call's reply is due. With its lock held. */
static int note_event(server *s, gen *g, const infer_event *e)
{
    call *c = g->c;
    int last = e->type == INFER_EVENT_DONE, reply = 0;
    if (e->type == INFER_EVENT_TOKEN)
        on_token(s, g, e, e->t);
    if (e->type == INFER_EVENT_HYPOTHESIS)
        on_hypothesis(s, g, e);
    else if (e->n_text)
        sbuf_add(&g->text, e->text, e->n_text);
    if (last)
        reply = on_done(s, g, e);
    if (c->gens->stream && (add_mark(g) || last))
        http_resume_locked(c);
    return reply;
}

static void take_event(server *s, const infer_event *e)
{
    gen *g = e->user;
    call *c = g->c;
    int last = e->type == INFER_EVENT_DONE, reply = 0;
    pthread_mutex_lock(&c->lock);
    if (!g->done) /* else pump_fail_all was here */
        reply = note_event(s, g, e);
    pthread_mutex_unlock(&c->lock);
    if (!last)
        return;
    discharge(s->pump, g);
    if (reply && work_push(s, c->finish, c) < 0)
        c->finish(c);
    call_unref(c);
}

static void *run(void *arg)
{
    server *s = arg;
    while (!atomic_load(&s->pump->stop)) {
        const infer_event *events;
        uint32_t n = 0;
        infer_status st = infer_engine_poll(s->session.engine, -1, &events, &n);
        if (st < 0) {
            cli_log(0, "engine", "failed for good: %s", infer_status_name(st));
            atomic_store(&s->fatal, st);
            atomic_store(&s->state, SERVER_FAILED);
            server_wake(s);
            break;
        }
        for (uint32_t i = 0; i < n; i++)
            take_event(s, &events[i]);
    }
    return NULL;
}

infer_status pump_start(server *s, infer_error *err)
{
    struct pump *p = calloc(1, sizeof *p);
    if (!p)
        return infer_error_set(err, INFER_E_NO_MEMORY, "starting the pump: out of memory");
    pthread_mutex_init(&p->lock, NULL);
    s->pump = p;
    int cause = pthread_create(&p->thread, NULL, run, s);
    if (cause) {
        pthread_mutex_destroy(&p->lock);
        free(p);
        s->pump = NULL;
        return infer_error_set(err, INFER_E_NO_MEMORY, "starting the pump: %s", strerror(cause));
    }
    return INFER_OK;
}

void pump_stop(server *s)
{
    struct pump *p = s->pump;
    if (!p)
        return;
    atomic_store(&p->stop, 1);
    infer_engine_wake(s->session.engine);
    pthread_join(p->thread, NULL);
    pthread_mutex_destroy(&p->lock);
    free(p->live);
    free(p);
    s->pump = NULL;
}

void pump_cancel_all(server *s)
{
    struct pump *p = s->pump;
    if (!p)
        return;
    atomic_store(&p->cancelled, 1);
    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < p->n; i++) {
        call *c = p->live[i]->c;
        pthread_mutex_lock(&c->lock);
        if (p->live[i]->id)
            infer_engine_cancel(s->session.engine, p->live[i]->id);
        pthread_mutex_unlock(&c->lock);
    }
    pthread_mutex_unlock(&p->lock);
}

void pump_fail_all(server *s, const char *why)
{
    struct pump *p = s->pump;
    infer_event e = {.type = INFER_EVENT_DONE, .finish = INFER_FINISH_ERROR, .status = INFER_E_CANCELLED, .error = why};
    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < p->n; i++) {
        gen *g = p->live[i];
        call *c = g->c;
        int reply = 0;
        pthread_mutex_lock(&c->lock);
        if (!g->done) {
            if (g->id)
                infer_engine_cancel(s->session.engine, g->id);
            e.t_submit = g->t_submit;
            e.t_end = infer_engine_now();
            e.n_prompt = c->gens->prompts[g->prompt_index].n;
            reply = note_event(s, g, &e);
        }
        pthread_mutex_unlock(&c->lock);
        if (reply && work_push(s, c->finish, c) < 0)
            c->finish(c);
    }
    pthread_mutex_unlock(&p->lock);
}
