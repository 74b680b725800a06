/* Beam search: the choice, and the group that follows it. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "sched/events.h"
#include "sched/private.h"

/* ---- The choice -------------------------------------------------------------------------------------------------- */

/* Keeps a hypothesis if it is among the best `width`. */
static void keep(infer_beam *b, infer_beam_turn *out, const infer_beam_kept *text, double sum, uint64_t len,
                 uint64_t counted, uint32_t finish)
{
    infer_beam_hyp h = {sum, sum / pow((double)counted, b->length_penalty), len, b->n_hyps, finish};
    if (b->n_hyps == b->width) {
        if (!(h.score > b->hyps[b->n_hyps - 1].score))
            return;
        h.place = b->hyps[--b->n_hyps].place;
    }
    uint32_t i = b->n_hyps++;
    for (; i > 0 && h.score > b->hyps[i - 1].score; i--)
        b->hyps[i] = b->hyps[i - 1];
    b->hyps[i] = h;
    out->kept[out->n_kept++] = (infer_beam_kept){text->parent, h.place, text->id};
}

/* Whether no live one can come to a better score than the worst that is kept. best: the largest sum of this turn. */
static int is_settled(const infer_beam *b, double best)
{
    if (b->n_hyps < b->width)
        return 0;
    if (b->early_stopping == INFER_BEAM_STOP_FIRST)
        return 1;
    const int longest = b->early_stopping == INFER_BEAM_STOP_NEVER && b->length_penalty > 0;
    return b->hyps[b->n_hyps - 1].score >= best / pow((double)(longest ? b->max_len : b->len), b->length_penalty);
}

void infer_beam_choose(infer_beam *b, const infer_logprob *top, uint32_t n_top, int (*is_end)(void *ctx, int32_t id),
                       void *ctx, infer_beam_turn *out)
{
    uint32_t first[INFER_MAX_BEAMS] = {0}, n_next = 0; /* first: of each list, what was not looked at */
    double sum[INFER_MAX_BEAMS], best = -INFINITY;
    out->n_kept = 0;
    for (uint32_t rank = 0; n_next < b->width; rank++) {
        int32_t from = -1;
        double most = -INFINITY;
        for (uint32_t i = 0; i < b->n_live; i++) {
            const infer_logprob *c = &top[i * INFER_MAX_TOP + first[i]];
            if (first[i] < n_top && c->id >= 0 && b->sum[i] + (double)c->logprob > most) {
                most = b->sum[i] + (double)c->logprob;
                from = (int32_t)i;
            }
        }
        if (from < 0)
            break;
        const int32_t id = top[(uint32_t)from * INFER_MAX_TOP + first[from]++].id;
        best = rank ? best : most;
        if (!is_end(ctx, id)) {
            sum[n_next] = most;
            out->next[n_next++] = (infer_beam_child){(uint32_t)from, id};
        } else if (rank < b->width) {
            const infer_beam_kept text = {(uint32_t)from, 0, -1};
            keep(b, out, &text, most, b->len, b->len + 1, INFER_FINISH_STOP);
        }
    }
    b->n_live = n_next;
    b->len++;
    memcpy(b->sum, sum, n_next * sizeof *sum);
    b->done = is_settled(b, best) || !n_next;
    if (b->done || b->len < b->max_len)
        return;
    for (uint32_t i = 0; i < n_next; i++) {
        const infer_beam_kept text = {out->next[i].parent, 0, out->next[i].id};
        keep(b, out, &text, sum[i], b->len, b->len, INFER_FINISH_LENGTH);
    }
    b->done = 1;
}

/* ---- The group --------------------------------------------------------------------------------------------------- */

static infer_status check(const infer_req *r, const infer_request *q, infer_error *err)
{
    const infer_sampling *s = &q->sampling;
    const struct {
        const char *name;
        int given;
    } rows[] = {
        {"temperature", s->temperature != 0},
        {"penalties", r->counts != NULL},
        {"stop", q->n_stop != 0},
        {"top_logprobs", q->n_top_logprobs != 0},
        {"prompt rows", r->on_row != NULL},
        {"max_tokens 0", r->cap_tokens == r->n_prompt},
    };
    if (q->beam_width > INFER_MAX_BEAMS)
        return infer_error_set(err, INFER_E_INVALID, "beam_width = %u: at most %u", q->beam_width, INFER_MAX_BEAMS);
    if (q->beam_best > q->beam_width)
        return infer_error_set(err, INFER_E_INVALID, "beam_best = %u: of %u hypotheses", q->beam_best, q->beam_width);
    if (q->early_stopping > INFER_BEAM_STOP_NEVER)
        return infer_error_set(err, INFER_E_INVALID, "early_stopping = %u: no such rule", q->early_stopping);
    if (!(q->length_penalty >= -10 && q->length_penalty <= 10))
        return infer_error_set(err, INFER_E_INVALID, "length_penalty = %g: must lie in -10..10",
                               (double)q->length_penalty);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].given)
            return infer_error_set(err, INFER_E_INVALID, "beam_width: does not go with %s", rows[i].name);
    return INFER_OK;
}

/* A member with what it borrows of the first one's, and a text of its own. */
static infer_req *member_of(const infer_req *r, uint32_t i)
{
    infer_req *m = infer_req_alloc();
    int32_t *tokens = infer_malloc(r->cap_tokens * sizeof *tokens);
    if (!m || !tokens) {
        infer_req_free(m);
        infer_free(tokens);
        return NULL;
    }
    *m = (infer_req){.beams = r->beams,
                     .beam = i,
                     .flags = r->flags,
                     .priority = r->priority,
                     .tokens = tokens,
                     .n_prompt = r->n_prompt,
                     .cap_tokens = r->cap_tokens,
                     .min_tokens = r->min_tokens,
                     .slot = -1,
                     .sampling = r->sampling,
                     .bias = r->bias,
                     .stop_ids = r->stop_ids,
                     .n_stop_ids = r->n_stop_ids,
                     .n_top = r->n_top,
                     .adapter = r->adapter};
    return m;
}

infer_status infer_beams_create(infer_req *r, const infer_request *q, infer_error *err)
{
    INFER_TRY(check(r, q, err));
    infer_beams *g = r->beams = infer_calloc(1, sizeof *g);
    if (!g)
        return infer_error_set(err, INFER_E_NO_MEMORY, "request: no host memory");
    g->n_best = q->beam_best ? q->beam_best : 1;
    g->search = (infer_beam){.width = 1,
                             .early_stopping = q->early_stopping,
                             .length_penalty = (double)q->length_penalty,
                             .max_len = r->cap_tokens - r->n_prompt,
                             .n_live = 1};
    g->member[0] = r;
    r->n_top = INFER_MAX_TOP;
    g->ids = infer_malloc(q->beam_width * g->search.max_len * sizeof *g->ids);
    for (; g->ids && g->search.width < q->beam_width; g->search.width++)
        if (!(g->member[g->search.width] = member_of(r, g->search.width)))
            break;
    return g->search.width == q->beam_width && g->ids
               ? INFER_OK
               : infer_error_set(err, INFER_E_NO_MEMORY, "request: no host memory for %u beams", q->beam_width);
}

infer_status infer_beams_open(infer_req *r, const infer_kv_pool *pool, uint32_t max_running, infer_error *err)
{
    const uint32_t size = infer_kv_pool_block_size(pool), total = infer_kv_pool_total(pool),
                   width = infer_beams_width(r);
    if (width > max_running)
        return infer_error_set(err, INFER_E_TOO_LARGE, "beam_width = %u: at most %u requests run at once", width,
                               max_running);
    /* Whole blocks of the prompt are shared, all else is each one's own: then a group alone always has room. */
    const uint64_t shared = r->n_prompt / size, own = (r->cap_tokens - shared * size + size - 1) / size;
    if (shared + width * own > total)
        return infer_error_set(
            err, INFER_E_TOO_LARGE,
            "beam_width = %u: hypotheses of %llu tokens need %llu blocks of cache, there are %u: ask "
            "for fewer tokens, or give more cache",
            width, (unsigned long long)(r->cap_tokens - r->n_prompt), (unsigned long long)(shared + width * own),
            total);
    for (uint32_t i = 1; i < width; i++) {
        infer_req *m = r->beams->member[i];
        m->key = r->key;
        INFER_TRY(infer_kv_seq_init(pool, &m->seq, m->cap_tokens, err));
    }
    return INFER_OK;
}

void infer_beams_destroy(infer_beams *g)
{
    if (!g)
        return;
    for (uint32_t i = 1; i < g->search.width; i++) {
        infer_free(g->member[i]->seq.blocks);
        infer_free(g->member[i]->tokens);
        infer_req_free(g->member[i]);
    }
    infer_free(g->ids);
    infer_free(g);
}

uint32_t infer_beams_width(const infer_req *r)
{
    return r->beams ? r->beams->search.width : 1;
}

infer_req *infer_beams_member(infer_req *r, uint32_t i)
{
    return r->beams ? r->beams->member[i] : r;
}

infer_req *infer_beams_leader(infer_req *r)
{
    return infer_beams_member(r, 0);
}

uint32_t infer_beams_blocks(const infer_req *r, uint32_t block_size)
{
    const uint64_t own = r->n_tokens + 1 - r->n_prompt / block_size * block_size;
    return (infer_beams_width(r) - 1) * (uint32_t)((own + block_size - 1) / block_size);
}

void infer_beams_taint(infer_req *r)
{
    for (uint32_t i = 0; i < infer_beams_width(r); i++)
        infer_beams_member(r, i)->tainted = 1;
}

void infer_beams_forget(infer_req *r)
{
    infer_beams *g = r->beams;
    for (uint32_t i = 0; g && i < g->search.width; i++) {
        if (g->have[i])
            g->member[i]->n_tokens = g->member[i]->n_made;
        g->have[i] = 0;
    }
}

void infer_beams_report(infer_req *r, const int32_t *ids, const float *logprobs, uint32_t n)
{
    infer_beams *g = r->beams;
    for (uint32_t i = 0; i < INFER_MAX_TOP; i++)
        g->top[r->beam][i] = i < n ? (infer_logprob){ids[i], logprobs[i]} : (infer_logprob){-1, -INFINITY};
    g->have[r->beam] = 1;
}

/* ---- A turn ------------------------------------------------------------------------------------------------------ */

typedef struct ends {
    const infer_req *r;
    const infer_tokenizer *tok;
} ends;

static int is_end(void *ctx, int32_t id)
{
    const ends *e = ctx;
    return infer_req_is_end(e->r, e->tok, id);
}

/* Its text and blocks become those of another one, which may have none of the latter. */
static void take_over(infer_kv_pool *pool, infer_req *m, const infer_req *from)
{
    memcpy(m->tokens, from->tokens, from->n_made * sizeof *m->tokens);
    m->n_made = m->n_tokens = from->n_made;
    infer_kv_seq_truncate(pool, &m->seq, 0);
    infer_kv_seq_fork(pool, &from->seq, &m->seq);
    m->n_computed = from->n_computed;
    m->n_done = from->n_done;
    m->n_known = from->n_known;
    m->tainted = from->tainted;
}

static void let_go(infer_kv_pool *pool, infer_req *m)
{
    infer_kv_seq_truncate(pool, &m->seq, 0);
    m->n_tokens = m->n_made = m->n_computed = m->n_done = 0;
    m->n_known = 0;
}

/* The first child of each live one stays with its member, the others go to members that have none. */
static void move(infer_beams *g, infer_kv_pool *pool, const infer_beam_turn *t)
{
    const uint32_t n = g->search.n_live, width = g->search.width;
    uint32_t at[INFER_MAX_BEAMS], last = 0, spare = 0;
    uint8_t used[INFER_MAX_BEAMS] = {0}, stays[INFER_MAX_BEAMS] = {0};
    for (uint32_t i = 0; i < n; i++) {
        at[i] = g->at[t->next[i].parent];
        stays[i] = !used[at[i]];
        used[at[i]] = 1;
    }
    for (uint32_t m = 0; m < width; m++)
        if (!used[m])
            let_go(pool, g->member[m]);
    for (uint32_t i = 0; i < n; i++) {
        if (stays[i]) {
            last = i;
            continue;
        }
        while (used[spare])
            spare++;
        take_over(pool, g->member[spare], g->member[at[i]]);
        used[at[i] = spare] = 1;
    }
    if (n && !used[0]) { /* only where fewer than width are live */
        take_over(pool, g->member[0], g->member[at[last]]);
        let_go(pool, g->member[at[last]]);
        at[last] = 0;
    }
    for (uint32_t i = 0; i < n; i++) {
        infer_req *m = g->member[at[i]];
        m->tokens[m->n_made++] = t->next[i].id;
        m->n_tokens = m->n_made;
    }
    memcpy(g->at, at, sizeof at);
}

void infer_beams_turn(infer_beams *g, infer_kv_pool *pool, const infer_tokenizer *tok)
{
    infer_logprob top[INFER_MAX_BEAMS][INFER_MAX_TOP];
    infer_beam *b = &g->search;
    infer_req *leader = g->member[0];
    infer_beam_turn t;
    ends ctx = {leader, tok};
    for (uint32_t i = 0; i < b->n_live; i++) {
        if (!g->have[g->at[i]]) {
            if (leader->slot < 0)
                infer_beams_forget(leader);
            return;
        }
        memcpy(top[i], g->top[g->at[i]], sizeof top[i]);
        g->no_number |= top[i][0].id < 0;
    }
    if (g->no_number)
        return;
    infer_beams_forget(leader);
    infer_beam_choose(b, top[0], INFER_MAX_TOP, is_end, &ctx, &t);
    for (uint32_t i = 0; i < t.n_kept; i++) {
        const infer_beam_kept *k = &t.kept[i];
        const infer_req *m = g->member[g->at[k->parent]];
        int32_t *to = g->ids + k->place * b->max_len;
        const uint64_t n = m->n_made - m->n_prompt;
        memcpy(to, m->tokens + m->n_prompt, n * sizeof *to);
        if (k->id >= 0)
            to[n] = k->id;
    }
    if (!b->done)
        move(g, pool, &t);
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

/* All text of some ids; ids past the vocabulary have none. */
static infer_status text_of(infer_req *r, const infer_tokenizer *tok, const int32_t *ids, uint64_t n_ids)
{
    infer_buf_clear(&r->held);
    for (uint64_t k = 0; r->detok && k <= n_ids; k++) {
        const char *text = "";
        size_t n = 0;
        if (k == n_ids)
            INFER_TRY(infer_detok_flush(r->detok, &text, &n));
        else if ((uint32_t)ids[k] < infer_tokenizer_n_tokens(tok))
            INFER_TRY(infer_detok_push(r->detok, ids[k], &text, &n));
        infer_buf_append(&r->held, text, n);
    }
    return r->held.failed ? INFER_E_NO_MEMORY : INFER_OK;
}

infer_status infer_beams_tell(infer_beams *g, const infer_tokenizer *tok, infer_events *events)
{
    infer_req *r = g->member[0];
    for (; g->n_told < g->n_best && g->n_told < g->search.n_hyps; g->n_told++) {
        const infer_beam_hyp *h = &g->search.hyps[g->n_told];
        const int32_t *ids = g->ids + h->place * g->search.max_len;
        INFER_TRY(text_of(r, tok, ids, h->len));
        const infer_event ev = {.id = r->id,
                                .user = r->user,
                                .type = INFER_EVENT_HYPOTHESIS,
                                .finish = h->finish,
                                .token = -1,
                                .text = r->held.p,
                                .n_text = r->held.n,
                                .t = infer_clock_ns(),
                                .ids = ids,
                                .n_ids = h->len,
                                .sum = h->sum,
                                .score = h->score};
        INFER_TRY(infer_events_push(events, &ev));
    }
    infer_buf_clear(&r->held);
    return INFER_OK;
}
