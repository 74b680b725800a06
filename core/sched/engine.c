/* The engine object: the step loop, and the API around it. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/hash.h"
#include "sched/events.h"
#include "sched/places.h"
#include "sched/private.h"

typedef struct cancellation {
    uint64_t id, n_begun; /* steps that had begun when it was asked for */
} cancellation;

struct infer_engine {
    infer_model *m;
    const infer_tokenizer *tok; /* NULL: the file has none; then there is no text and no end token */
    infer_runner *runner;
    infer_sched sched;
    infer_step steps[2], *under_way; /* under_way: begun and not done, or NULL */
    infer_req *dead[2];              /* ended with rows in a step: they go when it is done */
    uint64_t gap_ns, waited_ns;      /* waited_ns: processor time that waiting for steps took */
    uint64_t t_begun;                /* when the step under way began, or the one before it ended */
    infer_events events;
    uint32_t n_vocab, n_embd, max_queue;
    uint64_t secret[2]; /* of the salts' hashes */
    infer_event told;   /* the last TOKEN; what such a one lacks stays 0 */
    infer_logprob top[INFER_MAX_TOP];
    void (*on_step)(void *user, const infer_step_info *step);
    void *step_user;
    uint64_t n_told; /* steps */
    pthread_t thread;
    int started;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t work;
    infer_req *inbox, **inbox_end;
    uint32_t n_inbox;
    uint64_t next_id;
    cancellation *cancels; /* in order of asking */
    uint64_t n_begun;      /* steps */
    uint32_t n_cancels, cap_cancels;
    int stop;
    infer_engine_stats stats;
    char fatal_text[INFER_ERROR_TEXT]; /* for stats.fatal */
};

/* ---- Ending requests --------------------------------------------------------------------------------------------- */

static void note_tier(const infer_sched *s, uint32_t tier, uint32_t capacity, infer_tier_stats *out)
{
    infer_prefix_counts c;
    infer_prefix_get_counts(s->prefix, tier, &c);
    *out = (infer_tier_stats){capacity, c.nodes, c.stored, c.hits, c.evicted, c.lost};
}

/* What the scheduler's state says, for those who ask. e->lock is held. */
static void note_state(infer_engine *e)
{
    infer_engine_stats *st = &e->stats;
    const infer_sched *s = &e->sched;
    st->n_running = s->n_running;
    st->n_waiting = s->queue.n + s->tier.n_aside;
    st->under_way = e->under_way != NULL;
    st->preemptions = s->preemptions;
    st->prefix_queries = s->prefix_queries;
    st->prefix_hits = s->prefix_hits;
    st->blocks_swapped_out = s->swap.n_out;
    st->blocks_swapped_in = s->swap.n_in;
    st->spec_drafts = s->spec.n_drafts;
    st->spec_draft_tokens = s->spec.n_draft_tokens;
    st->spec_accepted_tokens = s->spec.n_accepted;
    st->blocks_used = infer_kv_pool_total(s->pool) - infer_sched_free_blocks(s);
    st->blocks_cached = infer_kv_pool_idle(s->pool);
    if (s->prefix) {
        note_tier(s, INFER_TIER_HOST, s->tier.n_places, &st->tier_host);
        note_tier(s, INFER_TIER_FILE, s->tier.n_slots, &st->tier_file);
    }
    /* Blocks may be shared: what is not filled, at the end of each sequence, is not. */
    const uint64_t slots = st->blocks_used * st->block_size, slack = infer_kv_pool_slack(s->pool);
    st->kv_tokens_used = slots > slack ? slots - slack : 0; /* beams that are about to part share a slack */
}

/* Ends a request that the scheduler knows: its blocks go back, its held text leaves with the last event. The events are
 * held. */
static void finish(infer_engine *e, infer_req *r, uint32_t how, infer_status s, const char *error)
{
    const char *text = "", *tail = "";
    size_t n = 0, n_tail = 0;
    /* A step that runs or is built reads what the request holds; the one that ends last frees it. */
    const int in[2] = {r->in[0] != NULL, r->in[1] != NULL};
    uint64_t n_generated = r->n_made - r->n_prompt;
    for (uint32_t i = 0; r->beams && i < r->beams->n_told; i++)
        n_generated = (i ? n_generated : 0) + r->beams->search.hyps[i].len;
    infer_sched_remove(&e->sched, r);
    if (r->detok && how != INFER_FINISH_ERROR) {
        if (infer_detok_flush(r->detok, &tail, &n_tail) != INFER_OK)
            n_tail = 0;
        infer_req_flush(r, tail, n_tail, &text, &n);
    }
    const uint64_t now = infer_clock_ns();
    infer_event ev = {.id = r->id,
                      .user = r->user,
                      .type = INFER_EVENT_DONE,
                      .finish = how,
                      .status = s,
                      .token = -1,
                      .text = text,
                      .n_text = n,
                      .error = error,
                      .n_prompt = r->n_prompt,
                      .n_cached = r->n_cached,
                      .n_generated = n_generated,
                      .t_submit = r->t_submit,
                      .t_first_run = r->t_first_run,
                      .t_first_token = r->t_first_token,
                      .t_end = now,
                      .t = now};
    pthread_mutex_lock(&e->lock);
    e->stats.finished += how == INFER_FINISH_STOP || how == INFER_FINISH_LENGTH;
    e->stats.cancelled += how == INFER_FINISH_CANCELLED;
    e->stats.failed += how == INFER_FINISH_ERROR;
    note_state(e);
    pthread_mutex_unlock(&e->lock);
    infer_events_push(&e->events, &ev);
    if (!in[0] && !in[1]) {
        infer_req_destroy(r);
        return;
    }
    const int last = in[0] && in[1] ? e->under_way != &e->steps[1] : in[1];
    r->next_dead = e->dead[last];
    e->dead[last] = r;
}

/* A step is done, or does not begin. */
static void bury(infer_engine *e, const infer_step *st)
{
    for (infer_req *r = e->dead[st->number], *next; r; r = next) {
        next = r->next_dead;
        infer_req_destroy(r);
    }
    e->dead[st->number] = NULL;
}

static void finish_all(infer_engine *e, uint32_t how, infer_status s, const char *error)
{
    infer_events_hold(&e->events);
    while (e->sched.n_running)
        finish(e, infer_beams_leader(e->sched.running[e->sched.n_running - 1]), how, s, error);
    for (infer_req *r; (r = infer_queue_head(&e->sched.queue));)
        finish(e, r, how, s, error);
    while (e->sched.tier.n_aside)
        finish(e, e->sched.tier.aside[0], how, s, error);
    infer_events_tell(&e->events);
}

/* Processor time of this thread. */
static uint64_t thread_time(void)
{
    struct timespec t = {0};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- After a step ------------------------------------------------------------------------------------------------ */

/* Rows of prompt positions to who asked for them. Sums are in order of positions, so that chunks do not matter. */
static void give_rows(infer_engine *e, const infer_step *st, const infer_batch_entry *b, const infer_step_result *res)
{
    const infer_step_image *im = st->im;
    infer_req *r = b->r;
    for (uint32_t i = 0; i < b->n_logits; i++) {
        uint32_t row = b->first_logit + i;
        uint64_t pos = (uint64_t)im->pos[im->logit_rows[row]];
        if (pos < r->n_rows_given || pos >= r->n_prompt) /* computed again after a preemption, or output */
            continue;
        r->n_rows_given = pos + 1;
        int logits = r->output == INFER_OUTPUT_LOGITS;
        uint32_t n = logits ? e->n_vocab : e->n_embd;
        const float *x = (logits ? res->logits : res->hidden) + (size_t)row * n;
        if (r->output == INFER_OUTPUT_POOLED) {
            for (uint32_t k = 0; k < n; k++)
                r->sum[k] += (double)x[k];
            if (pos + 1 < r->n_prompt)
                continue;
            for (uint32_t k = 0; k < n; k++)
                r->pooled[k] = (float)(r->sum[k] / (double)r->n_prompt);
            x = r->pooled;
        }
        r->on_row(r->row_user, pos, x, n);
    }
}

/* How a request goes on after a token; status and error go with INFER_FINISH_ERROR. */
typedef struct outcome {
    uint32_t finish; /* 0: it goes on */
    infer_status status;
    const char *error;
} outcome;

static outcome failed(infer_status s, const char *error)
{
    return (outcome){INFER_FINISH_ERROR, s, error};
}

/* Without a wish of the request's it is not the request's fault. */
static outcome no_token(const infer_req *r)
{
    return r->sampling.n_bias || r->min_tokens
               ? failed(INFER_E_INVALID, "sampling: every token is forbidden, or no logit is a number")
               : failed(INFER_E_PROGRAM, "sampling: no logit is a number: broken weights, or a device that errs");
}

/* Takes the token of a row in, which is the next one: gives out its text, and counts it once it is told. */
static outcome take_token(infer_engine *e, infer_req *r, uint32_t row, const infer_step_result *res, uint64_t now)
{
    int32_t id = res->ids[row];
    if (id < 0 || (uint32_t)id >= e->n_vocab)
        return no_token(r);
    if (!r->t_first_token)
        r->t_first_token = now;
    if (infer_req_is_end(r, e->tok, id))
        return (outcome){INFER_FINISH_STOP, INFER_OK, NULL};
    const char *text = "", *given = "";
    size_t n_text = 0, n_given = 0;
    infer_status s = INFER_OK;
    /* A row of the output matrix past the vocabulary has no text. */
    if (r->detok && (uint32_t)id < infer_tokenizer_n_tokens(e->tok) &&
        (s = infer_detok_push(r->detok, id, &text, &n_text)) == INFER_OK)
        s = infer_req_text(r, text, n_text, &given, &n_given, &r->text_stopped);
    if (s != INFER_OK)
        return failed(s, "text of a token: no host memory");
    for (uint32_t i = 0; i < r->n_top; i++)
        e->top[i] = (infer_logprob){res->top_ids[(size_t)row * res->n_top + i],
                                    res->top_logprobs[(size_t)row * res->n_top + i]};
    infer_event *ev = &e->told;
    ev->id = r->id;
    ev->user = r->user;
    ev->token = id;
    ev->logprob = res->logprobs[row];
    ev->n_top = r->n_top;
    ev->text = given;
    ev->n_text = n_given;
    ev->t = now;
    if ((s = infer_events_push(&e->events, ev)) != INFER_OK)
        return failed(s, "events: no host memory for another token");
    r->tokens[r->n_made++] = id;
    if (r->text_stopped)
        return (outcome){INFER_FINISH_STOP, INFER_OK, NULL};
    return (outcome){r->n_made >= r->cap_tokens ? INFER_FINISH_LENGTH : 0, INFER_OK, NULL};
}

/* Takes what a request samples: its token, and those behind drafts that were right. */
static outcome take_tokens(infer_engine *e, const infer_step *step, infer_batch_entry *b, const infer_step_result *res,
                           uint64_t now)
{
    infer_req *r = b->r;
    const uint32_t first = b->first_logit + b->n_logits - 1 - b->n_drafts;
    const uint32_t n_accepted = infer_spec_accepted(step, b, res->ids);
    outcome o = take_token(e, r, first, res, now);
    for (uint32_t i = 1; i <= n_accepted && !o.finish; i++) {
        pthread_mutex_lock(&e->lock);
        e->stats.generated_tokens++;
        pthread_mutex_unlock(&e->lock);
        o = take_token(e, r, first + i, res, now);
    }
    if (r->spec && o.finish != INFER_FINISH_ERROR)
        infer_spec_read(&e->sched.spec, r->spec, r->tokens, r->n_made);
    infer_spec_settle(&e->sched, b, n_accepted);
    return o;
}

/* Beams of a step that is done choose who goes on, so that they can join the next one before it begins. Those that are
 * over end here: nothing of them is in a step any more. */
static void turn_beams(infer_engine *e, infer_step *step, const infer_step_result *res)
{
    for (uint32_t i = 0; i < step->n_batch; i++) {
        infer_batch_entry *b = &step->batch[i];
        if (!b->r || !b->r->beams)
            continue;
        step->beam_prompt += b->prompt_rows;
        step->beam_made += b->samples != 0;
        infer_sched_finish(&e->sched, step, b);
        const size_t at = (size_t)(b->first_logit + b->n_logits - 1) * res->n_top;
        if (b->samples)
            infer_beams_report(b->r, res->top_ids + at, res->top_logprobs + at, res->n_top);
    }
    infer_events_hold(&e->events);
    for (uint32_t i = 0; i < step->n_batch; i++) {
        if (!step->batch[i].r || !step->batch[i].r->beams)
            continue;
        infer_req *r = infer_beams_leader(step->batch[i].r);
        infer_beams *g = r->beams;
        for (uint32_t k = i; k < step->n_batch; k++)
            if (step->batch[k].r && step->batch[k].r->beams == g)
                step->batch[k].r = NULL;
        infer_beams_turn(g, e->sched.pool, e->tok);
        if (g->search.len && !r->t_first_token)
            r->t_first_token = infer_clock_ns();
        outcome o = {0};
        if (g->no_number || (g->search.done && !g->search.n_hyps))
            o = no_token(r);
        else if (g->search.done)
            o = infer_beams_tell(g, e->tok, &e->events) == INFER_OK
                    ? (outcome){g->search.hyps[0].finish, INFER_OK, NULL}
                    : failed(INFER_E_NO_MEMORY, "events: no host memory for a hypothesis");
        if (o.finish == INFER_FINISH_ERROR)
            infer_beams_taint(r);
        if (o.finish)
            finish(e, r, o.finish, o.status, o.error);
    }
    infer_events_tell(&e->events);
}

static void after_step(infer_engine *e, infer_step *step, const infer_step_result *res, uint64_t step_ns)
{
    infer_sched *s = &e->sched;
    uint64_t now = infer_clock_ns(), prompt = step->beam_prompt, made = step->beam_made;
    infer_tier_done(s, step, 1);
    /* The step's figures stand before anybody hears of its tokens. */
    for (uint32_t i = 0; i < step->n_batch; i++) {
        const infer_batch_entry *b = &step->batch[i];
        prompt += b->r ? b->prompt_rows : 0;
        made += (uint64_t)(b->r && b->samples);
    }
    pthread_mutex_lock(&e->lock);
    infer_engine_stats *st = &e->stats;
    st->steps++;
    st->prompt_tokens += prompt;
    st->generated_tokens += made;
    st->device_busy_ns += res->busy_ns;
    st->copy_bytes += res->copy_bytes;
    st->step_ns += step_ns;
    st->gap_ns = e->gap_ns;
    st->host_ns = thread_time() - e->waited_ns;
    st->fallback_ops += e->m->plan->compiled.n_fallback;
    if (made)
        st->last_token_ns = now;
    pthread_mutex_unlock(&e->lock);
    /* While nothing is held: a caller may do as it likes with its rows. */
    for (uint32_t i = 0; i < step->n_batch && (step->x.want_logits || step->x.want_hidden); i++)
        if (step->batch[i].r && step->batch[i].r->on_row)
            give_rows(e, step, &step->batch[i], res);
    infer_events_hold(&e->events);
    for (uint32_t i = 0; i < step->n_batch; i++) {
        infer_batch_entry *b = &step->batch[i];
        infer_req *r = b->r;
        outcome o = {0};
        infer_step_foresee(step, i, res, e->tok);
        if (!r)
            continue;
        if (b->samples)
            o = take_tokens(e, step, b, res, now);
        else if (b->first + b->rows == r->n_tokens)
            o.finish = INFER_FINISH_LENGTH;
        if (o.finish == INFER_FINISH_ERROR) /* then what was computed is nobody else's to use */
            r->tainted = 1;
        infer_sched_finish(s, step, b);
        if (o.finish)
            finish(e, r, o.finish, o.status, o.error);
    }
    infer_events_tell(&e->events);
    bury(e, step);
}

/* ---- The loop ---------------------------------------------------------------------------------------------------- */

/* Requests that were left by other threads go to the scheduler. e->lock is held. */
static void take_requests(infer_engine *e)
{
    infer_req *in = e->inbox;
    e->inbox = NULL;
    e->inbox_end = &e->inbox;
    e->n_inbox = 0;
    while (in) {
        infer_req *next = in->next;
        infer_sched_enqueue(&e->sched, in);
        in = next;
    }
}

static void take_cancels(infer_engine *e)
{
    pthread_mutex_lock(&e->lock);
    while (e->n_cancels) {
        const cancellation c = e->cancels[--e->n_cancels];
        take_requests(e); /* it may have come just before its cancellation */
        infer_req *r = infer_queue_find(&e->sched.queue, c.id);
        if (!r)
            continue;
        if (e->stats.cancel_steps < e->n_begun - c.n_begun)
            e->stats.cancel_steps = e->n_begun - c.n_begun;
        pthread_mutex_unlock(&e->lock);
        infer_events_hold(&e->events);
        finish(e, r, INFER_FINISH_CANCELLED, INFER_E_CANCELLED, NULL);
        infer_events_tell(&e->events);
        pthread_mutex_lock(&e->lock);
    }
    pthread_mutex_unlock(&e->lock);
}

/* Takes what other threads left: new requests and cancellations. Waits when there is nothing to do. 0: stop. */
static int take_inbox(infer_engine *e)
{
    pthread_mutex_lock(&e->lock);
    note_state(e);
    while (!e->stop && !e->inbox && !e->n_cancels && !e->sched.n_running && !e->sched.queue.n && !e->under_way &&
           !infer_tier_ready(&e->sched.tier))
        pthread_cond_wait(&e->work, &e->lock);
    take_requests(e);
    note_state(e); /* submitters count on it */
    int go = !e->stop;
    pthread_mutex_unlock(&e->lock);
    take_cancels(e);
    return go;
}

/* A failure of a request's or a program's radius ends those that were in the step. Any other ends the engine's work:
 * its queue, with all that lies in the devices' memory, cannot be trusted any more. */
static void step_failed(infer_engine *e, infer_step *step, infer_status s, const char *why)
{
    if (infer_status_radius(s) < infer_status_radius(INFER_E_QUEUE)) {
        infer_events_hold(&e->events);
        for (uint32_t i = step->n_batch; i-- > 0;) {
            infer_req *r = step->batch[i].r;
            if (!r)
                continue;
            infer_beams_taint(r);
            finish(e, infer_beams_leader(r), INFER_FINISH_ERROR, s, why);
        }
        infer_events_tell(&e->events);
    } else {
        pthread_mutex_lock(&e->lock);
        e->stats.fatal = s; /* nothing is taken in from here on */
        snprintf(e->fatal_text, sizeof e->fatal_text, "%s", why);
        take_requests(e);
        pthread_mutex_unlock(&e->lock);
        finish_all(e, INFER_FINISH_ERROR, s, why);
        infer_events_fatal(&e->events, s);
    }
    infer_swap_failed(&e->sched, step);
    infer_tier_done(&e->sched, step, 0);
    bury(e, step);
}

static void begin_step(infer_engine *e, infer_step *st)
{
    st->t_begin = infer_clock_ns();
    if (!e->under_way) /* else once that is done */
        e->under_way = st;
    pthread_mutex_lock(&e->lock);
    note_state(e);
    e->stats.step_tokens_last = st->im->n_tokens;
    e->stats.step_seqs_last = st->n_batch;
    e->n_begun++;
    pthread_mutex_unlock(&e->lock);
    infer_runner_begin(e->runner, st->number, &st->x);
    infer_sched_begin(&e->sched, st);
}

/* A step that is done, or failed; its image and times stay until a step of the same image is built. */
static void tell_step(infer_engine *e, const infer_step *st, uint64_t t_end, infer_status status)
{
    if (!e->on_step)
        return;
    infer_step_info info = {.struct_size = sizeof info,
                            .status = status,
                            .number = ++e->n_told,
                            .t_build = st->t_build,
                            .t_built = st->t_built,
                            .t_begin = st->t_begin,
                            .t_end = t_end,
                            .n_seqs = st->n_batch,
                            .n_tokens = st->im->n_tokens,
                            .n_block_copies = st->x.n_copies,
                            .n_running = e->sched.n_running,
                            .n_waiting = e->sched.queue.n};
    for (uint32_t i = 0; i < st->n_batch; i++)
        info.n_sampled += st->batch[i].samples != 0;
    infer_runner_describe(e->runner, st->number, &info);
    e->on_step(e->step_user, &info);
}

/* Whether a step begins behind the one under way, before that one's ids are known. Prompts alone wait, so that who
 * comes meanwhile joins them; so does what moves between the pool and host memory. */
static int goes_ahead(const infer_engine *e, const infer_step *next)
{
    return infer_runner_feeds(e->runner) && !e->under_way->beams && next->x.n_late && !next->preempted &&
           !next->x.n_ins;
}

/* The step under way failed; `next` (NULL: none) was built on it, and may have begun. */
static void both_fail(infer_engine *e, infer_step *next, int begun, uint64_t t_end, infer_status st, infer_error *err)
{
    infer_step *step = e->under_way;
    infer_step_result none;
    infer_error why = {0};
    const infer_status after = begun ? infer_runner_finish(e->runner, next->number, &none, &why) : INFER_OK;
    if (infer_status_radius(after) > infer_status_radius(st)) {
        st = after;
        *err = why;
    }
    if (next) {
        infer_sched_undo(&e->sched, next);
        bury(e, next);
    }
    e->under_way = NULL;
    tell_step(e, step, t_end, st); /* a void one is not told */
    step_failed(e, step, st, err->text);
}

/* The step under way ends, and then there is time for its texts. `next`, which was built meanwhile, begins: behind it
 * where it can, else with its ids. NULL: none is built before this one's tokens are taken. */
static void end_step(infer_engine *e, infer_step *next)
{
    infer_step *step = e->under_way;
    infer_step_result res;
    infer_error err = {0};
    const int ahead = next && goes_ahead(e, next);
    if (ahead)
        begin_step(e, next);
    const uint64_t spun = thread_time();
    infer_status st = infer_runner_finish(e->runner, step->number, &res, &err);
    e->waited_ns += thread_time() - spun;
    const uint64_t now = infer_clock_ns(), step_ns = res.t_end - e->t_begun;
    e->t_begun = res.t_end;
    if (ahead && next->t_begin < res.t_end) /* it was submitted earlier */
        next->t_begin = res.t_end;
    if (st != INFER_OK) {
        both_fail(e, next, ahead, res.t_end, st, &err);
        return;
    }
    infer_sched_note_time(&e->sched, step->im, step_ns);
    /* What came while the step ran joins the next one, if it has not begun. Who was cancelled leaves: its blocks are
     * others' only in a step that is built later, and its rows are nobody's. */
    if (!ahead) {
        pthread_mutex_lock(&e->lock);
        const int came = e->inbox != NULL;
        take_requests(e);
        pthread_mutex_unlock(&e->lock);
        if (step->beams) {
            infer_tier_done(&e->sched, step, 1); /* else after the next one has begun */
            turn_beams(e, step, &res);
            if (next)
                infer_sched_go_on(&e->sched, next);
        }
        if (came && next)
            infer_sched_top_up(&e->sched, next, now);
    }
    take_cancels(e);
    const int follows = next && next->im->n_tokens;
    if (!ahead && follows) {
        infer_sched_fill_ids(next, res.ids, e->n_vocab);
        begin_step(e, next);
        e->gap_ns += infer_clock_ns() - now;
    }
    e->under_way = follows ? next : NULL;
    tell_step(e, step, res.t_end, st);
    after_step(e, step, &res, step_ns);
}

static void *engine_main(void *arg)
{
    infer_engine *e = arg;
    pthread_setname_np(pthread_self(), "engine");
    for (uint32_t k = 0; take_inbox(e); k = 1 - k) {
        infer_step *next = &e->steps[k];
        const int waits = e->under_way && infer_spec_waits(&e->sched, e->under_way);
        if (waits)
            end_step(e, NULL);
        next->t_build = infer_clock_ns();
        e->sched.spec.ready = !e->under_way;
        infer_sched_build(&e->sched, next, next->t_build);
        next->t_built = infer_clock_ns();
        if (e->under_way) {
            end_step(e, next);
        } else if (next->im->n_tokens) {
            if (!waits)
                e->t_begun = infer_clock_ns();
            begin_step(e, next);
            if (waits)
                e->gap_ns += next->t_begin - e->t_begun;
        }
    }
    if (e->under_way) {
        infer_step_result res;
        const infer_status st = infer_runner_finish(e->runner, e->under_way->number, &res, NULL);
        tell_step(e, e->under_way, res.t_end, st);
    }
    finish_all(e, INFER_FINISH_CANCELLED, INFER_E_CANCELLED, NULL); /* with those that came before the stop */
    bury(e, &e->steps[0]);
    bury(e, &e->steps[1]);
    return NULL;
}

/* The store has done something. On its thread. */
static void wake(void *user)
{
    infer_engine *e = user;
    pthread_mutex_lock(&e->lock);
    pthread_cond_signal(&e->work);
    pthread_mutex_unlock(&e->lock);
}

/* ---- API --------------------------------------------------------------------------------------------------------- */

infer_status infer_engine_create(infer_model *m, const infer_engine_options *opt, infer_engine **out, infer_error *err)
{
    infer_engine_options o = {0};
    if (opt)
        memcpy(&o, opt, opt->struct_size < sizeof o ? opt->struct_size : sizeof o);
    infer_engine *e = infer_calloc(1, sizeof *e);
    if (!e)
        return infer_error_set(err, INFER_E_NO_MEMORY, "engine: no host memory");
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->work, NULL);
    infer_events_init(&e->events);
    e->m = m;
    e->told = (infer_event){.type = INFER_EVENT_TOKEN, .top = e->top};
    e->inbox_end = &e->inbox;
    e->next_id = 1;
    e->n_vocab = m->plan->file->hp.n_vocab;
    e->n_embd = m->plan->file->hp.n_embd;
    e->max_queue = infer_sched_max_queue(&o);
    e->on_step = o.on_step;
    e->step_user = o.step_user;
    e->cap_cancels = e->max_queue + m->plan->opt.n_parallel;
    infer_error why = {0};
    infer_status s = infer_file_tokenizer(m->plan->file, &e->tok, &why);
    if (s == INFER_E_NOT_FOUND) { /* then there is no text */
        s = INFER_OK;
    } else if (s != INFER_OK) {
        infer_error_set(err, s, "%s", why.text);
        goto fail;
    }
    if (getrandom(e->secret, sizeof e->secret, 0) != sizeof e->secret) {
        s = infer_error_set(err, INFER_E_INTERNAL, "engine: the system gives no random bytes");
        goto fail;
    }
    if (!(e->cancels = infer_calloc(e->cap_cancels, sizeof *e->cancels))) {
        s = infer_error_set(err, INFER_E_NO_MEMORY, "engine: no host memory");
        goto fail;
    }
    if ((s = infer_sched_create(&e->sched, m->plan, &o, err)) != INFER_OK ||
        (s = infer_runner_create(m, e->sched.swap.n_places + e->sched.tier.n_places, &e->runner, err)) != INFER_OK ||
        (s = infer_places_measure(infer_runner_places(e->runner), &e->sched.swap.out_ns, &e->sched.swap.in_ns, err)) !=
            INFER_OK ||
        (e->sched.prefix && (s = infer_tier_open(&e->sched.tier, infer_runner_places(e->runner), e->sched.swap.n_places,
                                                 &o, wake, e, err)) != INFER_OK) ||
        (s = infer_step_create(&e->steps[0], &e->sched, 0, infer_runner_image(e->runner, 0), err)) != INFER_OK ||
        (s = infer_step_create(&e->steps[1], &e->sched, 1, infer_runner_image(e->runner, 1), err)) != INFER_OK)
        goto fail;
    e->sched.n_vocab = e->n_vocab;
    for (uint32_t i = 0; e->tok && i < e->n_vocab; i++)
        if (infer_tokenizer_is_end(e->tok, (int32_t)i) && e->sched.n_end_ids < INFER_MAX_END_IDS)
            e->sched.end_ids[e->sched.n_end_ids++] = (int32_t)i;
    e->stats = (infer_engine_stats){.struct_size = sizeof e->stats,
                                    .block_size = m->plan->block_size,
                                    .blocks_total = m->plan->n_blocks,
                                    .tier_host = {.capacity = e->sched.tier.n_places},
                                    .tier_file = {.capacity = e->sched.tier.n_slots},
                                    .host_blocks_bytes = (e->sched.swap.n_places + (uint64_t)e->sched.tier.n_places) *
                                                         infer_plan_block_bytes(m->plan)};
    if (pthread_create(&e->thread, NULL, engine_main, e) != 0) {
        s = infer_error_set(err, INFER_E_NO_MEMORY, "engine: no thread");
        goto fail;
    }
    e->started = 1;
    *out = e;
    return INFER_OK;
fail:
    infer_engine_destroy(e);
    return s;
}

void infer_engine_destroy(infer_engine *e)
{
    if (!e)
        return;
    if (e->started) {
        pthread_mutex_lock(&e->lock);
        e->stop = 1;
        pthread_cond_broadcast(&e->work);
        pthread_mutex_unlock(&e->lock);
        pthread_join(e->thread, NULL);
    }
    infer_tier_close(&e->sched.tier); /* its thread is at the runner's places */
    infer_runner_destroy(e->runner);
    infer_step_destroy(&e->steps[0]);
    infer_step_destroy(&e->steps[1]);
    infer_sched_destroy(&e->sched);
    infer_events_destroy(&e->events);
    infer_free(e->cancels);
    pthread_cond_destroy(&e->work);
    pthread_mutex_destroy(&e->lock);
    infer_free(e);
}

/* Who shares prefixes with whom: equal adapters and salts. All zero: neither. */
static infer_prefix_key key_of(const infer_engine *e, const infer_request *req)
{
    infer_prefix_key key = {{0}};
    const int has_salt = req->struct_size >= offsetof(infer_request, cache_salt) + sizeof req->cache_salt;
    const char *salt = has_salt && req->cache_salt ? req->cache_salt : "";
    if (*salt)
        infer_hash_secret(salt, strlen(salt), e->secret, key.w);
    if (req->adapter) {
        const uint64_t both[] = {key.w[0], key.w[1], req->adapter};
        infer_hash_secret(both, sizeof both, e->secret, key.w);
    }
    return key;
}

/* Whose share of the service a request is of. */
static uint64_t tenant_of(const infer_engine *e, const infer_request *req)
{
    const int has = req->struct_size >= offsetof(infer_request, tenant) + sizeof req->tenant;
    uint64_t h[2] = {0};
    if (has && req->tenant && *req->tenant)
        infer_hash_secret(req->tenant, strlen(req->tenant), e->secret, h);
    return h[0];
}

infer_status infer_engine_submit(infer_engine *e, const infer_request *req, uint64_t *id, infer_error *err)
{
    infer_req *r;
    INFER_TRY(infer_req_create(req, e->tok, e->n_vocab, e->n_embd, infer_engine_ctx_size(e), &r, err));
    r->key = key_of(e, req);
    r->tenant = tenant_of(e, req);
    infer_status s = infer_kv_seq_init(e->sched.pool, &r->seq, r->cap_tokens, err);
    if (s == INFER_OK && !infer_spec_join(&e->sched, r))
        s = infer_error_set(err, INFER_E_NO_MEMORY, "request: no host memory for what its text proposes");
    if (s == INFER_OK && r->beams)
        s = infer_beams_open(r, e->sched.pool, e->sched.max_running, err);
    if (s == INFER_OK && !r->beams && e->sched.swap.n_places &&
        !(r->places = infer_malloc((r->cap_tokens / infer_kv_pool_block_size(e->sched.pool) + 1) * sizeof *r->places)))
        s = infer_error_set(err, INFER_E_NO_MEMORY, "request: no host memory for its block table");
    if (s == INFER_OK && e->sched.tier.store && !(r->nodes = infer_malloc(e->sched.tier.max_path * sizeof *r->nodes)))
        s = infer_error_set(err, INFER_E_NO_MEMORY, "request: no host memory for its block table");
    if (s != INFER_OK)
        goto fail;
    if ((s = infer_events_reserve(&e->events)) != INFER_OK) {
        infer_error_set(err, s, "request: no host memory for its events");
        goto fail;
    }
    pthread_mutex_lock(&e->lock);
    uint32_t waiting = e->n_inbox + e->stats.n_waiting;
    if (e->stats.fatal != INFER_OK)
        s = infer_error_set(err, e->stats.fatal, "engine: stopped by an earlier failure: %s", e->fatal_text);
    else if (waiting >= e->max_queue)
        s = infer_error_set(err, INFER_E_BUSY, "queue: %u requests are waiting, no more are taken", waiting);
    if (s == INFER_OK) {
        *id = r->id = e->next_id++;
        *e->inbox_end = r;
        e->inbox_end = &r->next;
        e->n_inbox++;
        pthread_cond_signal(&e->work);
    }
    pthread_mutex_unlock(&e->lock);
    if (s == INFER_OK)
        return s;
    infer_events_unreserve(&e->events);
fail:
    infer_free(r->seq.blocks);
    infer_req_destroy(r);
    return s;
}

void infer_engine_cancel(infer_engine *e, uint64_t id)
{
    pthread_mutex_lock(&e->lock);
    int known = id == 0 || id >= e->next_id; /* nobody's: not kept until somebody has it */
    for (uint32_t i = 0; i < e->n_cancels && !known; i++)
        known = e->cancels[i].id == id;
    /* More cancellations than there can be requests name unknown ones: the oldest is dropped. */
    if (!known && e->n_cancels == e->cap_cancels)
        memmove(e->cancels, e->cancels + 1, --e->n_cancels * sizeof *e->cancels);
    if (!known)
        e->cancels[e->n_cancels++] = (cancellation){id, e->n_begun};
    pthread_cond_signal(&e->work);
    pthread_mutex_unlock(&e->lock);
}

infer_status infer_engine_poll(infer_engine *e, int32_t timeout_ms, const infer_event **events, uint32_t *n)
{
    return infer_events_poll(&e->events, timeout_ms, events, n);
}

void infer_engine_wake(infer_engine *e)
{
    infer_events_wake(&e->events);
}

void infer_engine_get_stats(infer_engine *e, infer_engine_stats *out)
{
    pthread_mutex_lock(&e->lock);
    infer_engine_stats st = e->stats;
    st.n_waiting += e->n_inbox;
    pthread_mutex_unlock(&e->lock);
    uint32_t size = out->struct_size < sizeof st ? out->struct_size : (uint32_t)sizeof st;
    st.struct_size = size;
    memcpy(out, &st, size);
}

uint64_t infer_engine_now(void)
{
    return infer_clock_ns();
}

uint32_t infer_engine_ctx_size(const infer_engine *e)
{
    return e->m->plan->opt.ctx_size;
}

infer_model *infer_engine_model(const infer_engine *e)
{
    return e->m;
}
