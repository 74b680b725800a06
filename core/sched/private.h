/* What the files of core/sched share: the runner (steps on devices), requests, the scheduler, the engine object.
 * All of it belongs to the engine thread, except what engine.c guards by its lock. SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_SCHED_PRIVATE_H
#define INFER_SCHED_PRIVATE_H

#include <pthread.h>

#include <infer/engine.h>

#include "kv/prefix.h"
#include "model/private.h"
#include "sched/beam.h"
#include "sched/budget.h"
#include "sched/queue.h"
#include "sched/spec.h"
#include "sched/swap.h"
#include "sched/tier.h"

/* ---- Runner: one step on the plan's devices ------------------------------------------------------------------ */

typedef struct infer_runner infer_runner;

/* Host image of the step block; the scheduler writes it in place between steps (layout: infer_step_layout). */
typedef struct infer_step_image {
    int32_t *counts, *ids, *pos, *slots, *adapter_row, *logit_rows, *kv_len, *q_start, *block_table;
    infer_sample_row *sample_rows;
    infer_sample_bias *bias;
    uint32_t n_tokens, n_seqs, n_logits, n_bias;
} infer_step_image;

/* A row of the sampling counts to be set before the step samples. */
typedef struct infer_counts_init {
    uint32_t row;
    const uint16_t *counts; /* n_vocab entries; valid until the step is done */
} infer_counts_init;

/* A row whose id is the one that the step before samples. */
typedef struct infer_late_id {
    uint32_t row, logit; /* in this step; in the step before */
} infer_late_id;

/* What is to be done besides the image. Arrays are the caller's, valid until the step is finished. */
typedef struct infer_step_extra {
    infer_kv_move *outs, *ins; /* before the copies; after them */
    uint32_t n_outs, n_ins;
    infer_kv_copy *copies;
    uint32_t n_copies;
    infer_counts_init *inits;
    uint32_t n_inits;
    infer_late_id *late; /* ids that the image lacks */
    uint32_t n_late;
    int want_sample, want_top, want_logits, want_hidden;
} infer_step_extra;

typedef struct infer_step_result {
    const int32_t *ids;     /* n_logits */
    const float *logprobs;  /* n_logits */
    const int32_t *top_ids; /* n_logits x n_top, with want_top */
    const float *top_logprobs;
    const float *logits; /* n_logits x n_vocab, with want_logits */
    const float *hidden; /* n_logits x n_embd, with want_hidden */
    uint32_t n_top;
    uint64_t busy_ns, copy_bytes;
    uint64_t t_end; /* of its last part; also of a step that failed */
} infer_step_result;

/* Allocates the plan's cache, arenas and step blocks, builds and instantiates all programs. n_places: blocks that host
 * memory is to have room for (touched where one is filled). */
infer_status infer_runner_create(infer_model *m, uint32_t n_places, infer_runner **out, infer_error *err);
/* The host memory for blocks: n_places. */
const struct infer_places *infer_runner_places(const infer_runner *r);
/* Bytes of a block over all devices. */
uint64_t infer_plan_block_bytes(const infer_plan *p);
void infer_runner_destroy(infer_runner *r);
/* The step's image, 0 or 1: one is filled while the other runs. */
infer_step_image *infer_runner_image(infer_runner *r, uint32_t which);
/* Whether a step may begin while the one before runs: where one device's queue orders both, and so the device hands ids
 * on by itself. */
int infer_runner_feeds(const infer_runner *r);
/* Begins the step of an image: posts a job a part to the devices' submit threads. No allocation. One at a time, or,
 * where infer_runner_feeds, two; only the later one of two may lack ids. If the earlier one fails, its result is void.
 */
void infer_runner_begin(infer_runner *r, uint32_t which, const infer_step_extra *x);
/* Waits for the end of the image's step; of two, the earlier one's first. The result is valid until a step of the same
 * image begins. A failure's status has its blast radius. */
infer_status infer_runner_finish(infer_runner *r, uint32_t which, infer_step_result *out, infer_error *err);
/* Parts and copies of the image's step that is finished, also of one that failed. Valid as its result is. */
void infer_runner_describe(const infer_runner *r, uint32_t which, infer_step_info *out);

/* ---- Requests ------------------------------------------------------------------------------------------------ */

#define INFER_MAX_STOPS    16u
#define INFER_MAX_STOP_LEN 256u

struct infer_batch_entry;

typedef struct infer_req {
    /* What each step reads or writes of each request is together, up to `next`, by lines of 64 bytes, on which it lies
     * as well: hundreds of them do not stay in a processor's cache (infer_step_foresee). */
    struct infer_batch_entry *in[2]; /* its rows in the steps of both images; NULL: none */
    int32_t *tokens;                 /* prompt, then output */
    /* n_tokens counts also the one that a step under way is making (it is -1 until then), n_made does not. */
    uint64_t n_prompt, n_tokens, n_made, cap_tokens;
    uint64_t n_computed; /* tokens whose keys and values are in the cache once all steps that have begun are done */

    uint64_t n_done; /* those of steps that are done */
    infer_kv_seq seq;
    uint32_t n_known;   /* leading blocks of seq that are the prefix cache's */
    int32_t slot;       /* among the running ones: its row of the sampling counts; -1: not running */
    uint32_t step_rows; /* in the step that is built, until that begins */
    uint32_t flags;

    infer_beams *beams;    /* NULL: no beam search; the first member's, which owns it */
    infer_spec_text *spec; /* owned; NULL: it has no drafts */
    void (*on_row)(void *user, uint64_t pos, const float *row, uint32_t n);
    infer_detok *detok;
    infer_lane *lane;
    uint16_t *counts; /* n_vocab, owned; NULL: no penalties */
    uint32_t n_top, n_stops, n_stop_ids;
    uint32_t adapter; /* 0: none */

    uint64_t admission; /* number among all that started */
    uint64_t min_tokens;
    uint64_t t_first_token;
    uint64_t id;
    void *user;
    infer_sampling sampling; /* on into the next line */
    uint32_t output;         /* INFER_OUTPUT_* */
    int text_stopped;        /* a stop string ended the text */
    int32_t *stop_ids;
    infer_sample_bias *bias; /* sampling.n_bias, owned */

    /* Requests at their beginning and end, and those that ask for more. */
    struct infer_req *next, *prev; /* among those that wait; next: also in the inbox */
    struct infer_req *id_chain;
    infer_lane *lane_record;  /* NULL: not known to the queue; owned until the queue takes it for a new lane */
    uint64_t arrival;         /* number among all that came */
    uint64_t fork_of;         /* the request whose prompt it shares, 0: none */
    uint32_t beam;            /* its number among the members */
    uint64_t tenant;          /* a hash; 0: nobody's in particular */
    uint32_t waits, n_passed; /* n_passed: others who were taken from behind it */
    int32_t priority;
    int tainted;           /* a step failed: what lies in its blocks is nobody's to use */
    uint64_t n_rows_given; /* prompt positions whose rows the caller has, or the sum */
    infer_prefix_key key;  /* what it shares prefixes under */
    uint64_t n_cached;     /* prompt tokens that the prefix cache had when it first started */
    int32_t *places;       /* in host memory, of its blocks; owned; NULL: it is never swapped */
    uint32_t n_places;
    uint64_t n_swapped; /* tokens in them */
    /* Nodes of the prefix tree that it had read from the file, or waits for; owned, NULL: there is no file. n_seen: the
     * first of them are there. aside: waits for them, out of the queue; was: since it last ran. */
    infer_prefix_ref *nodes;
    uint32_t n_nodes, n_seen;
    int is_aside, was_aside;
    int counts_stale; /* the device's row must be set before the next sample */
    char *stops[INFER_MAX_STOPS];
    infer_buf held; /* text given out by the last call, then text that may begin a stop string */
    size_t n_held;  /* bytes at its end that are not given out */
    void *row_user;
    double *sum;   /* INFER_OUTPUT_POOLED: of the rows so far, n_embd, owned */
    float *pooled; /* their mean, owned */
    uint64_t t_submit, t_first_run;
    struct infer_req *next_dead;
} infer_req;

/* Checks and copies a request. Errors as infer_engine_submit. Called on the submitting thread. */
infer_status infer_req_create(const infer_request *r, const infer_tokenizer *tok, uint32_t n_vocab, uint32_t n_embd,
                              uint32_t ctx_size, infer_req **out, infer_error *err);
/* The blocks must have been given back. */
void infer_req_destroy(infer_req *r);
/* Memory of a request alone, zeroed, on a cache line; NULL: there is none. */
infer_req *infer_req_alloc(void);
void infer_req_free(infer_req *r);
/* Whether generation ends at this id by an end token or a stop id. */
int infer_req_is_end(const infer_req *r, const infer_tokenizer *tok, int32_t id);
/* Takes text in; gives out what is certain (*p, *n: valid until the next call, and no longer than `text`) and whether a
 * stop string ended it. */
infer_status infer_req_text(infer_req *r, const char *text, size_t n_text, const char **p, size_t *n, int *stopped);
/* What is still held at the end, with the last text of all (none where a stop string ended it). Valid as above. */
void infer_req_flush(infer_req *r, const char *tail, size_t n_tail, const char **p, size_t *n);
/* Rebuilds `counts` from the tokens so far. */
void infer_req_count(infer_req *r, uint32_t n_vocab);

/* ---- A step -------------------------------------------------------------------------------------------------- */

/* A request's rows in a step. */
typedef struct infer_batch_entry {
    infer_req *r;       /* NULL: it ended meanwhile, and what its rows give is nobody's */
    uint64_t first;     /* position of its first row */
    uint64_t token_at;  /* position of the token that it samples */
    uint64_t admission; /* of the request when the step was built */
    uint32_t rows, first_logit, n_logits;
    uint32_t prompt_rows; /* of its rows, those that read the prompt */
    uint32_t n_drafts;    /* of its rows, the last ones: tokens that are proposed. It samples behind each */
    int samples;
} infer_batch_entry;

/* What a row of an image's block table holds: as many blocks of a sequence's edition. */
typedef struct infer_table_row {
    uint64_t edition;
    uint32_t n_blocks;
} infer_table_row;

/* A step: built while the one before it runs, begun, done. Two are used by turns. */
typedef struct infer_step {
    uint32_t number; /* 0 or 1 */
    infer_step_image *im;
    infer_step_extra x;
    infer_batch_entry *batch; /* in order of the image */
    infer_table_row *tables;  /* as well; they stay from one step to the next */
    uint32_t n_batch;
    uint32_t max_rows;               /* of this one */
    uint32_t n_drafts;               /* rows of all */
    int preempted;                   /* requests gave way for it: it admits none */
    int beams;                       /* rows of beams are in it: the next one waits for what they choose */
    uint64_t beam_prompt, beam_made; /* their tokens */
    uint64_t t_build, t_built, t_begin;
} infer_step;

/* ---- Scheduler ----------------------------------------------------------------------------------------------- */

typedef struct infer_sched {
    infer_kv_pool *pool;
    infer_prefix *prefix; /* NULL: off */
    uint64_t group_reuse; /* tokens of a prefix that every cache group can go on from */
    infer_queue queue;    /* all requests, and who starts next */
    infer_req **running;  /* in order of admission */
    uint32_t n_running, max_running;
    int32_t *free_slots; /* max_running, a stack */
    uint32_t n_free_slots;
    uint64_t n_admitted; /* so far */
    /* The head of the queue did not start for want of blocks: so many must be free before it is tried again, or so many
     * steps go by, as somebody may have computed what it begins with. */
    uint64_t blocked_id;
    uint32_t blocked_free, blocked_steps;
    infer_budget budget;
    infer_swap swap;
    infer_spec spec;
    infer_tier tier;
    uint32_t max_tokens, max_logits, prefill_chunk, max_blocks, n_vocab;
    int32_t end_ids[INFER_MAX_END_IDS]; /* ids that end generation by themselves */
    uint32_t n_end_ids;
    infer_req **order; /* the running ones as a pass goes through them */
    uint64_t preemptions, prefix_queries, prefix_hits;
} infer_sched;

/* The capacities of a plan, narrowed by the engine's options. Requests must be removed before destroy. */
infer_status infer_sched_create(infer_sched *s, const infer_plan *p, const infer_engine_options *o, infer_error *err);
void infer_sched_destroy(infer_sched *s);
/* Places in host memory, by the options: at most one for each block. */
uint32_t infer_sched_places(const infer_plan *p, const infer_engine_options *o);
/* Requests that may wait, by the options. */
uint32_t infer_sched_max_queue(const infer_engine_options *o);
/* A request comes in: id, tenant and priority are set. */
void infer_sched_enqueue(infer_sched *s, infer_req *r);
/* Takes a running or waiting request out and gives its blocks back; the prefix cache keeps what is computed in them,
 * unless it is tainted. Its rows in steps not yet done stay there as nobody's: devices run steps in order, so that a
 * block is another's only in a later one. */
void infer_sched_remove(infer_sched *s, infer_req *r);

/* The arrays of a step, for an image. */
infer_status infer_step_create(infer_step *st, const infer_sched *s, uint32_t number, infer_step_image *im,
                               infer_error *err);
void infer_step_destroy(infer_step *st);

/* Chooses the rows of the next step and writes the image, as if the step under way had succeeded: decodes first, then
 * prompt chunks, each in order of admission, then newly admitted requests, under the token budget (so never more run
 * than it has rows). When blocks run out, who came last (among the lowest priority) is preempted, to be computed again.
 * Returns the rows; 0 only when no request is known, or all that are wait for their last token. The step that was built
 * before it has begun or is undone: its requests have their rows (step_rows) until then. */
uint32_t infer_sched_build(infer_sched *s, infer_step *st, uint64_t now);
/* Adds requests that came since it was built. Returns the rows. */
uint32_t infer_sched_top_up(infer_sched *s, infer_step *st, uint64_t now);
/* Adds rows of beams, whose ids are known by now. */
void infer_sched_go_on(infer_sched *s, infer_step *st);
/* Ids that the step before it sampled, into the image. */
void infer_sched_fill_ids(infer_step *st, const int32_t *sampled, uint32_t n_vocab);
/* The step of an image took so long, with what the host did between it and the one before. */
void infer_sched_note_time(infer_sched *s, const infer_step_image *im, uint64_t ns);
/* The step begins: requests count its rows as computed, and its tokens as there. */
void infer_sched_begin(infer_sched *s, infer_step *st);
/* For who takes the tokens of a step that is done, entry by entry, and is at entry i: asks memory for what entries
 * further on will read. Hundreds of requests do not stay in a cache, and the texts of their ids are anywhere. tok: NULL
 * without texts. */
void infer_step_foresee(const infer_step *st, uint32_t i, const infer_step_result *res, const infer_tokenizer *tok);
/* A request's rows of a step are computed: blocks that they filled are others' to share. */
void infer_sched_finish(infer_sched *s, infer_step *st, infer_batch_entry *b);
/* A step that was built does not begin, or is void: its requests start again. */
void infer_sched_undo(infer_sched *s, infer_step *st);
/* Blocks that nobody needs: free ones and what only the prefix cache holds. */
uint32_t infer_sched_free_blocks(const infer_sched *s);

#endif
