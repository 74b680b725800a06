/*
 * Speculative decoding without a second model: a request whose text repeats itself (draft.h) is given rows for the next
 * k tokens besides its one, and all of them sample. Since a draw is a function of (seed, position) and a row's result
 * of the tokens before it, row i samples exactly what would be sampled there if the drafts before it are what was
 * sampled: the longest such beginning is accepted, with the token after it, and is token for token what a run without
 * drafts gives, greedy or drawn. The rest is forgotten (infer_kv_seq_truncate).
 *
 * How many: of all k the one that makes most tokens a time,
 *
 *     (n + g + p1 + p1 p2 + ... + p1 ... pk) / T(r + k)
 *
 * for a step that has n requests that decode, r rows so far and g drafts expected among them. T is measured: a budget.h
 * of the steps in which every row samples; what no step was as large as is taken to cost nothing more, so that it is
 * tried, and what is forgotten there after a while is tried again. pi is how often tokens that were proposed behind a
 * run of that length came: measured for each request, drafts or not, since what a text proposes next is known either
 * way; a new request begins with what the others had. So where it does not pay there is no draft, at no cost, and there
 * is one again once it would have been right. k has to be better than none by 5 %, and T within the time that streams
 * are promised (--target-itl-ms). One in 64 steps goes without.
 *
 * Who never has drafts: beams, requests with penalties (their counts are those of the tokens before, which the device
 * keeps by request, not by row), and models with a state that cannot go back (infer_kv_group_serves).
 *
 * A step after one with drafts, and one that may have drafts, cannot be built before the tokens are there: the engine
 * waits (infer_spec_waits). Everybody else's steps go ahead as ever. One thread (the engine's), but for
 * infer_spec_join. SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_SCHED_SPEC_H
#define INFER_SCHED_SPEC_H

#include "sched/budget.h"
#include "sched/draft.h"

#define INFER_SPEC_MOST  8u  /* drafts of a request in a step, where nobody says how many */
#define INFER_SPEC_RUNS  4u  /* classes of a run's length: to 2, 4, 8, longer */
#define INFER_SPEC_EVERY 64u /* a step without drafts among so many, so that its time stays known */

/* How often what was proposed came, by the length of the run before it. */
typedef struct infer_spec_rate {
    float p[INFER_SPEC_RUNS];
    uint8_t n[INFER_SPEC_RUNS]; /* of how many it is; counted up to 255 */
} infer_spec_rate;

/* A request's. */
typedef struct infer_spec_text {
    infer_draft draft;
    infer_spec_rate rate;
} infer_spec_text;

/* The scheduler's. */
typedef struct infer_spec {
    uint32_t mode, most; /* INFER_SPECULATIVE_*; drafts of a request in a step */
    int ready;           /* the step to be built may have drafts: no other is under way */
    uint32_t rows;       /* of that step so far, with all that decode */
    double tokens;       /* expected of them */
    uint32_t n_with;     /* steps with drafts since one without */
    infer_spec_rate rate;
    infer_budget times;
    uint64_t n_drafts, n_draft_tokens, n_accepted; /* a request in a step; rows; those that were right */
} infer_spec;

/* most 0: INFER_SPEC_MOST. target_ns: of a step with drafts, 0: none. */
void infer_spec_init(infer_spec *x, uint32_t mode, uint32_t most, uint64_t target_ns, uint32_t max_rows);
/* A step in which every row samples took so long. */
void infer_spec_note(infer_spec *x, uint32_t rows, uint64_t ns);
/* Drafts for a text, `skip` tokens further on than it is known, in a step that has x->rows and x->tokens: at most
 * `most`. *gain: tokens expected of them. */
uint32_t infer_spec_choose(const infer_spec *x, const infer_spec_text *t, uint32_t skip, uint32_t most, double *gain);
/* A text, known so far to t->draft.n, is known to n tokens: what came of what it proposed. */
void infer_spec_read(infer_spec *x, infer_spec_text *t, const int32_t *tokens, uint64_t n);

struct infer_req;
struct infer_sched;
struct infer_step;
struct infer_batch_entry;

/* Makes room for a new request's proposals and reads its prompt, if it may have drafts. Returns 0 where there is no
 * memory. Any thread. */
int infer_spec_join(const struct infer_sched *s, struct infer_req *r);
/* A step is about to be built. */
void infer_spec_begin(struct infer_sched *s);
/* Drafts that a request gets besides its one row. Nobody gives way for them, and whoever else decodes has room. */
uint32_t infer_spec_drafts(struct infer_sched *s, const struct infer_step *st, const struct infer_req *r);
/* Whether the next step is to be built once the one under way is done. */
int infer_spec_waits(struct infer_sched *s, const struct infer_step *under_way);
/* How many of the drafts of a request's rows are what was sampled in their place. */
uint32_t infer_spec_accepted(const struct infer_step *st, const struct infer_batch_entry *b, const int32_t *ids);
/* After its tokens were taken (some may not be: it may have ended): so many rows count as computed, the others are
 * nobody's. Before infer_sched_finish. */
void infer_spec_settle(struct infer_sched *s, struct infer_batch_entry *b, uint32_t n_accepted);

#endif
