/*
 * Beam search. A group is one request with `width` members, each a request of the scheduler with its own text and block
 * table: what they have in common they share by the pool's reference counts, and where they part a step copies the last
 * block. They start, give way and come back together; each runs whenever it has room, and once every live one's row is
 * there the next hypotheses are chosen. So ids are not known before a step is done, and nothing is built upon them.
 *
 * The rule is that of transformers' beam search (BeamSearchScorer and BeamHypotheses, generation/beam_search.py of
 * 4.x): of all continuations in order of their sums the first `width` that do not end go on; one that ends counts if it
 * stands among the first `width`; score = sum / length ^ length_penalty, where the length counts made tokens and the
 * end token. vLLM's LLM.beam_search has the same sums; its length counts the prompt too, and not the end token.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_SCHED_BEAM_H
#define INFER_SCHED_BEAM_H

#include <infer/engine.h>

#include "kv/kv.h"

#define INFER_MAX_TOP 20u /* most probable tokens that a step gives of a row */

struct infer_req;
struct infer_events;

/* ---- The choice: of log-probabilities alone ---------------------------------------------------------------------- */

/* A hypothesis that ended, in the place of that number among the texts kept. */
typedef struct infer_beam_hyp {
    double sum, score;
    uint64_t len;           /* tokens, without the end token */
    uint32_t place, finish; /* INFER_FINISH_STOP or INFER_FINISH_LENGTH */
} infer_beam_hyp;

typedef struct infer_beam {
    uint32_t width, early_stopping; /* INFER_BEAM_* */
    double length_penalty;
    uint64_t max_len; /* tokens that a hypothesis may have */
    /* The state; zeroed, with n_live = 1, at the beginning. */
    uint32_t n_live, n_hyps;
    uint64_t len; /* tokens of each live one */
    int done;
    double sum[INFER_MAX_BEAMS];          /* of the live ones */
    infer_beam_hyp hyps[INFER_MAX_BEAMS]; /* best first */
} infer_beam;

/* A live one of the next turn: the text of a live one of this turn, and a token. */
typedef struct infer_beam_child {
    uint32_t parent;
    int32_t id;
} infer_beam_child;

/* A text to be kept: of a live one, and a token unless id < 0. In order: a later one may take an earlier one's place.
 */
typedef struct infer_beam_kept {
    uint32_t parent, place;
    int32_t id;
} infer_beam_kept;

typedef struct infer_beam_turn {
    infer_beam_child next[INFER_MAX_BEAMS]; /* n_live of them */
    infer_beam_kept kept[2 * INFER_MAX_BEAMS];
    uint32_t n_kept;
} infer_beam_turn;

/* One turn: from top[i * INFER_MAX_TOP] on are n_top continuations of live i in falling order (id < 0: no more), width
 * plus the number of end tokens at least, or fewer beams than width may go on. */
void infer_beam_choose(infer_beam *b, const infer_logprob *top, uint32_t n_top, int (*is_end)(void *ctx, int32_t id),
                       void *ctx, infer_beam_turn *out);

/* ---- The group --------------------------------------------------------------------------------------------------- */

typedef struct infer_beams {
    infer_beam search;
    uint32_t n_best;                           /* hypotheses that are told */
    struct infer_req *member[INFER_MAX_BEAMS]; /* search.width; the first is the request itself, and always live */
    uint32_t at[INFER_MAX_BEAMS];              /* live i is this member */
    infer_logprob top[INFER_MAX_BEAMS][INFER_MAX_TOP]; /* of members whose row is there */
    uint8_t have[INFER_MAX_BEAMS];
    int32_t *ids;    /* kept texts: max_len in each place */
    uint32_t n_told; /* hypotheses that were told */
    int no_number;   /* a row had no token that is allowed, or no number */
} infer_beams;

/* Makes a request that is otherwise complete the first member of a group. INFER_E_INVALID: an option that beams do not
 * go with; its name is in the text. */
infer_status infer_beams_create(struct infer_req *r, const infer_request *q, infer_error *err);
/* Block tables of the other members, and their keys; INFER_E_TOO_LARGE where a pool could not hold all hypotheses at
 * their full length, or fewer than width requests may run. */
infer_status infer_beams_open(struct infer_req *r, const infer_kv_pool *pool, uint32_t max_running, infer_error *err);
void infer_beams_destroy(infer_beams *g);

/* The same for requests without beams: one member, itself. */
uint32_t infer_beams_width(const struct infer_req *r);
struct infer_req *infer_beams_member(struct infer_req *r, uint32_t i);
struct infer_req *infer_beams_leader(struct infer_req *r);
/* Blocks that the members but the first will want for their known text and a token. */
uint32_t infer_beams_blocks(const struct infer_req *r, uint32_t block_size);
/* What lies in their blocks is nobody's to use. */
void infer_beams_taint(struct infer_req *r);
/* The group stopped running: rows that are there are forgotten, to be computed again. */
void infer_beams_forget(struct infer_req *r);

/* The row of a member: its continuations in falling order. */
void infer_beams_report(struct infer_req *r, const int32_t *ids, const float *logprobs, uint32_t n);
/* If all rows are there: chooses, and members take over texts and blocks. Of a group that runs no more, rows are
 * forgotten if they are not all there. */
void infer_beams_turn(infer_beams *g, infer_kv_pool *pool, const infer_tokenizer *tok);

/* The best hypotheses as events. */
infer_status infer_beams_tell(infer_beams *g, const infer_tokenizer *tok, struct infer_events *events);

#endif
