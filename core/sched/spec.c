/* Which requests have drafts, how many, and what becomes of them. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "sched/private.h"

#define MARGIN 1.05 /* so much better than none: steps with drafts wait for each other */
#define LEAST  0.02 /* what is less likely is not looked at */

enum { OWN = 16, ALL = 64 }; /* tokens that a mean is over, at most: a request's, everybody's */

/* ---- The policy ------------------------------------------------------------------------------------------------ */

void infer_spec_init(infer_spec *x, uint32_t mode, uint32_t most, uint64_t target_ns, uint32_t max_rows)
{
    static const float first[INFER_SPEC_RUNS] = {0.3f, 0.5f, 0.7f, 0.8f};
    *x = (infer_spec){.mode = mode, .most = most ? most : INFER_SPEC_MOST};
    memcpy(x->rate.p, first, sizeof first);
    infer_budget_init(&x->times, target_ns, max_rows);
}

void infer_spec_note(infer_spec *x, uint32_t rows, uint64_t ns)
{
    infer_budget_note(&x->times, rows, ns);
}

static uint32_t run_of(uint32_t len)
{
    return len <= 2 ? 0 : len <= 4 ? 1 : len <= 8 ? 2 : 3;
}

/* How likely what is proposed behind a run of this length is. */
static double likely(const infer_spec *x, const infer_spec_text *t, uint32_t len)
{
    const uint32_t k = run_of(len);
    return (double)(t->rate.n[k] ? t->rate.p[k] : x->rate.p[k]);
}

static void learn(infer_spec_rate *r, uint32_t run, int right, float begin, uint32_t most)
{
    if (!r->n[run])
        r->p[run] = begin;
    if (r->n[run] < 255)
        r->n[run]++;
    const uint32_t n = r->n[run] + 3u < most ? r->n[run] + 3u : most;
    r->p[run] += ((float)right - r->p[run]) / (float)n;
}

void infer_spec_read(infer_spec *x, infer_spec_text *t, const int32_t *tokens, uint64_t n)
{
    while (t->draft.n < n) {
        if (t->draft.len) {
            const uint32_t run = run_of(t->draft.len);
            const int right = infer_draft_token(&t->draft, tokens, 0) == tokens[t->draft.n];
            learn(&t->rate, run, right, x->rate.p[run], OWN);
            learn(&x->rate, run, right, x->rate.p[run], ALL);
        }
        infer_draft_take(&t->draft, tokens, t->draft.n + 1);
    }
}

/* What a step of so many rows takes; as if no row more than were measured cost anything. */
static double time_of(const infer_budget *b, uint32_t rows)
{
    const double most = infer_budget_most(b);
    return infer_budget_predict(b, rows < most ? rows : (uint32_t)most);
}

uint32_t infer_spec_choose(const infer_spec *x, const infer_spec_text *t, uint32_t skip, uint32_t most, double *gain)
{
    *gain = 0;
    if (!t->draft.len)
        return 0;
    if (most > x->most)
        most = x->most;
    if (x->mode == INFER_SPECULATIVE_ALWAYS)
        return most;
    if (!(infer_budget_least(&x->times) <= 1.25 * x->rows)) /* what it takes without is to be measured first */
        return 0;
    uint32_t best = 0;
    double g = 0, p = 1, best_rate = MARGIN * x->tokens / time_of(&x->times, x->rows);
    for (uint32_t k = 1; k <= most && (p *= likely(x, t, t->draft.len + skip + k - 1)) >= LEAST; k++) {
        g += p;
        const double time = time_of(&x->times, x->rows + k), rate = (x->tokens + g) / time;
        if (x->times.target_ns && time > (double)x->times.target_ns)
            break;
        if (rate > best_rate) {
            best = k;
            best_rate = rate;
            *gain = g;
        }
    }
    return best;
}

/* ---- Requests -------------------------------------------------------------------------------------------------- */

int infer_spec_join(const infer_sched *s, infer_req *r)
{
    if (s->spec.mode == INFER_SPECULATIVE_OFF || r->counts || r->beams || !s->group_reuse ||
        r->cap_tokens < r->n_prompt + 2)
        return 1;
    if (!(r->spec = infer_calloc(1, sizeof *r->spec)) || !infer_draft_create(&r->spec->draft, r->cap_tokens))
        return 0;
    infer_draft_take(&r->spec->draft, r->tokens, r->n_prompt);
    return 1;
}

void infer_spec_begin(infer_sched *s)
{
    infer_spec *x = &s->spec;
    x->rows = 0;
    for (uint32_t i = 0; x->mode != INFER_SPECULATIVE_OFF && i < s->n_running; i++)
        x->rows += s->running[i]->n_tokens - s->running[i]->n_computed == 1;
    x->tokens = x->rows;
    if (x->n_with >= INFER_SPEC_EVERY && x->mode != INFER_SPECULATIVE_ALWAYS)
        x->ready = 0;
}

/* Rows that are left where everybody who runs, or may start in this step, has one. */
static uint32_t left_of(const infer_sched *s, uint32_t all, uint32_t used)
{
    const uint64_t more = (uint64_t)s->n_running + s->queue.n;
    const uint32_t others = more < s->max_running ? (uint32_t)more : s->max_running;
    return all > used + others ? all - used - others : 0;
}

uint32_t infer_spec_drafts(infer_sched *s, const infer_step *st, const infer_req *r)
{
    infer_spec *x = &s->spec;
    if (!x->ready || !r->spec || r->n_made < r->n_tokens)
        return 0;
    uint64_t most = r->cap_tokens - r->n_tokens - 1;
    const uint32_t rows = left_of(s, st->max_rows, st->im->n_tokens),
                   logits = left_of(s, s->max_logits, st->im->n_logits);
    most = most < rows ? most : rows;
    most = most < logits ? most : logits;
    double gain;
    uint32_t k = infer_spec_choose(x, r->spec, 0, (uint32_t)most, &gain);
    while (k && infer_kv_seq_need(s->pool, &r->seq, 1 + k) + s->n_running > infer_sched_free_blocks(s) &&
           infer_kv_seq_need(s->pool, &r->seq, 1 + k) > infer_kv_seq_need(s->pool, &r->seq, 1))
        k--;
    x->rows += k;
    x->tokens += gain;
    return k;
}

int infer_spec_waits(infer_sched *s, const infer_step *under_way)
{
    infer_spec *x = &s->spec;
    if (x->mode == INFER_SPECULATIVE_OFF)
        return 0;
    if (under_way->n_drafts)
        return 1;
    const uint32_t rows = left_of(s, s->max_tokens, 0), logits = left_of(s, s->max_logits, 0);
    const uint32_t most = rows < logits ? rows : logits;
    x->rows = s->n_running;
    x->tokens = x->rows;
    for (uint32_t i = 0; i < s->n_running; i++) {
        const infer_req *r = s->running[i];
        double gain;
        if (r->spec && r->n_computed + 1 == r->n_tokens && r->n_tokens + 1 < r->cap_tokens &&
            infer_spec_choose(x, r->spec, (uint32_t)(r->n_tokens - r->n_made), most, &gain))
            return 1;
    }
    return 0;
}

uint32_t infer_spec_accepted(const infer_step *st, const infer_batch_entry *b, const int32_t *ids)
{
    const infer_step_image *im = st->im;
    uint32_t n = 0;
    /* A row that samples stands behind the draft before it: its draft is the next row's id. */
    for (; n < b->n_drafts; n++)
        if (ids[b->first_logit + n] != im->ids[im->logit_rows[b->first_logit + n] + 1])
            break;
    return n;
}

void infer_spec_settle(infer_sched *s, infer_batch_entry *b, uint32_t n_accepted)
{
    infer_req *r = b->r;
    if (!b->n_drafts)
        return;
    s->spec.n_drafts++;
    s->spec.n_draft_tokens += b->n_drafts;
    s->spec.n_accepted += n_accepted;
    uint64_t end = b->first + b->rows - (b->n_drafts - n_accepted);
    if (end > r->n_made) /* it ended before its last one */
        end = r->n_made;
    b->rows = (uint32_t)(end - b->first);
    r->n_tokens = r->n_made;
    r->n_computed = end;
    infer_kv_seq_truncate(s->pool, &r->seq, end);
}
