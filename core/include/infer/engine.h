/*
 * The engine: requests in, tokens out. One engine thread runs the step loop; these functions may be called from any
 * thread, concurrently, unless noted. Times are nanoseconds of infer_engine_now.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_ENGINE_H
#define INFER_ENGINE_H

#include <infer/error.h>
#include <infer/model.h>
#include <infer/text.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct infer_engine infer_engine;

/* In what order waiting requests start. */
#define INFER_POLICY_FAIR     0u /* by priority; among equals the tenant who was served least; then first come */
#define INFER_POLICY_FCFS     1u /* first come, whatever the priority */
#define INFER_POLICY_PRIORITY 2u /* by priority, then first come */
#define INFER_POLICY_PREFIX   3u /* as FAIR, but of a tenant's first 32 the one whose prompt is known furthest */

/* What becomes of a request's cache when it gives way for want of blocks. */
#define INFER_PREEMPTION_AUTO      0u /* of the next two what is measured to be cheaper */
#define INFER_PREEMPTION_RECOMPUTE 1u
#define INFER_PREEMPTION_SWAP      2u /* into host memory and back, as far as swap_bytes go */

/* Whether a step tries several tokens of a request, which its own text proposes. The answer is the same. */
#define INFER_SPECULATIVE_OFF    0u
#define INFER_SPECULATIVE_NGRAM  1u /* where the end of the text was in it before, as many as pay by measurement */
#define INFER_SPECULATIVE_ALWAYS 2u /* as many as may be wherever it was, whether it pays or not: for tests */

/* When what the prefix cache keeps below the pool is brought back. */
#define INFER_PREFIX_FETCH_AUTO   0u /* where that is measured to be cheaper than computing it again */
#define INFER_PREFIX_FETCH_ALWAYS 1u

/* What a step was, for traces and figures by device. A part is one program on one device; a copy a value that crosses
 * devices. Times of copies are of the host: on a device with queues of its own their bytes may move later, within the
 * part. */
typedef struct infer_step_part {
    const char *device;
    uint32_t sample, reserved; /* 1: it samples, 0: it computes layers */
    uint64_t t_begin, t_end;
} infer_step_part;

typedef struct infer_step_copy {
    const char *src, *dst; /* devices */
    uint32_t src_part, dst_part;
    uint64_t bytes; /* 0: nothing crossed in this step, and no time below is set */
    uint64_t t_send, t_sent;
    uint64_t t_wait, t_receive, t_received; /* waits for the sender, then takes it */
} infer_step_copy;

typedef struct infer_step_info {
    uint32_t struct_size;
    infer_status status;
    uint64_t number;           /* of steps so far; from 1 */
    uint64_t t_build, t_built; /* scheduling, mostly while the step before runs */
    uint64_t t_begin, t_end;   /* devices; not before the step before ends */
    uint32_t n_seqs, n_tokens, n_sampled, n_block_copies;
    uint32_t n_running, n_waiting;
    uint32_t n_parts, n_copies;
    const infer_step_part *parts;
    const infer_step_copy *copies;
} infer_step_info;

typedef struct infer_engine_options {
    uint32_t struct_size;
    uint32_t max_queue;       /* waiting requests before submit answers INFER_E_BUSY; 0: 1024 */
    uint32_t prefill_chunk;   /* most prompt tokens of one request in a step; 0: the step's whole budget */
    uint32_t max_step_tokens; /* token budget of a step, at most the plan's max_batched_tokens; 0: that */
    uint32_t no_prefix_cache; /* nothing computed for one request is used for another */
    uint32_t policy;          /* INFER_POLICY_* */
    uint64_t target_itl_ns;   /* prompts share a step with running streams only as far as this time between two of a
                               * stream's tokens allows, by measured times; 0: whatever it takes */
    uint64_t swap_bytes;      /* host memory for what gives way (used where it is needed); 0: none */
    uint32_t preemption;      /* INFER_PREEMPTION_* */
    uint32_t speculative;     /* INFER_SPECULATIVE_*. Drafts take the rows of max_logit_rows that the others leave */
    /* After each step, before its tokens are told (the next one may have begun); valid during the call. On the engine
     * thread: return soon. */
    void (*on_step)(void *user, const infer_step_info *step);
    void *step_user;
    uint32_t max_draft_tokens; /* most tokens that are tried for a request in a step; 0: 8 */
    uint32_t prefix_fetch;     /* INFER_PREFIX_FETCH_* */
    /* Where what the prefix cache cannot keep in the pool goes, in this order; 0 and NULL: nowhere. Host memory, used
     * where it is needed; and a file without a name, made with all its room in a folder that is the user's and that
     * nobody else may write. A file takes host memory too: two steps' blocks, or a context's up to 256 MiB. */
    uint64_t prefix_host_bytes;
    const char *prefix_file_dir;
    uint64_t prefix_file_bytes;
} infer_engine_options;

/* Makes the programs, the block pool and the engine thread. */
INFER_API infer_status infer_engine_create(infer_model *m, const infer_engine_options *opt, infer_engine **out,
                                           infer_error *err);
/* Cancels what runs, joins the thread. No other call may be under way. */
INFER_API void infer_engine_destroy(infer_engine *e);

/* Order of work: penalties, bias, (log-probabilities; greedy choice), temperature, top_k, top_p, min_p, draw. */
typedef struct infer_sampling {
    float temperature;        /* 0: greedy */
    float top_p;              /* (0, 1]; 0 is read as 1 */
    float min_p;              /* [0, 1) */
    int32_t top_k;            /* 0: off */
    float repetition_penalty; /* > 0; 0 is read as 1 */
    float presence_penalty, frequency_penalty;
    uint32_t n_bias;
    uint64_t seed;                 /* the same seed and request give the same tokens */
    const infer_sample_bias *bias; /* n_bias entries, copied; at most 300 */
} infer_sampling;

#define INFER_REQ_IGNORE_EOS  1u /* end tokens do not end it */
#define INFER_REQ_PROMPT_ROWS 2u /* on_row gets what `output` says of the prompt */
#define INFER_REQ_ECHO_STOP   4u /* the matched stop string stays in the text */

/* Kinds of rows that the prompt gives, in floats. */
#define INFER_OUTPUT_LOGITS 0u /* for every position: n_vocab logits of the token after it */
#define INFER_OUTPUT_HIDDEN 1u /* for every position: n_embd numbers, the last layer's output after the last norm */
#define INFER_OUTPUT_POOLED 2u /* once, with the last position: the mean of the hidden rows */

#define INFER_MAX_BEAMS 10u

/* When a beam search is over: once beam_width hypotheses have ended and ... */
#define INFER_BEAM_STOP_LIKELY 0u /* no live one would be better if it ended now (a heuristic) */
#define INFER_BEAM_STOP_FIRST  1u /* at once */
#define INFER_BEAM_STOP_NEVER  2u /* no live one can become better at any length */

typedef struct infer_request {
    uint32_t struct_size;
    uint32_t flags;        /* INFER_REQ_* */
    void *user;            /* comes back in every event */
    const int32_t *prompt; /* n_prompt token ids, at least 1; copied */
    uint64_t n_prompt;
    int64_t max_tokens; /* < 0: until the context is full; 0: none (prompt rows only) */
    int64_t min_tokens; /* end tokens are forbidden before */
    infer_sampling sampling;
    const char *const *stop; /* n_stop strings that end the text; copied; at most 16 of at most 256 bytes */
    const int32_t *stop_ids; /* n_stop_ids ids that end it; at most 256 */
    uint32_t n_stop, n_stop_ids;
    uint32_t n_top_logprobs; /* 0..20 alternatives with each token */
    int32_t priority;        /* lower first */
    uint32_t output;         /* INFER_OUTPUT_* */
    uint32_t adapter;        /* 0: none; others are INFER_E_NOT_FOUND, as none can be loaded yet */
    uint32_t reserved;
    /* With INFER_REQ_PROMPT_ROWS: a row of n floats of prompt position `pos`, in order, each once; valid during the
     * call. On the engine thread: return soon. */
    void (*on_row)(void *user, uint64_t pos, const float *row, uint32_t n);
    void *row_user;
    /* Only requests of equal salts share what was computed for equal beginnings of prompts, so that nobody can tell
     * from the time whether another's prompt began like his. NULL or "": no salt. Copied. */
    const char *cache_salt;
    /* Whose request it is: tenants of one priority get equal shares, counted in tokens (a prompt's as 1, an answer's as
     * 2). NULL or "": all those without one are one tenant. Copied. */
    const char *tenant;
    /* An earlier request of this engine with the same prompt, adapter and salt (another choice of one question): this
     * one waits until that one's prompt is computed and shares its cache, which is copied where the two part. One that
     * ended, gave way or has another prompt is no matter. 0: none. */
    uint64_t fork_of;
    /* Beam search: beam_width hypotheses go on at once, 1..INFER_MAX_BEAMS; 0: none. No token is told; at the end come
     * the beam_best (0: 1) best as INFER_EVENT_HYPOTHESIS, then DONE. A hypothesis's score is the sum of its tokens'
     * log-probabilities, an end token's included, over its length (likewise) to the power of length_penalty (0: the
     * sum itself; transformers and vLLM take 1), as BeamHypotheses of transformers 4.x has it. They share the prompt's
     * cache, and each takes the place of a running request. Greedy: temperature, penalties, stop strings,
     * top_logprobs and prompt rows do not go with it (bias, min_tokens and stop ids do). INFER_E_TOO_LARGE: more than
     * may run at once, or more cache than there is at full length. */
    uint32_t beam_width, beam_best;
    float length_penalty;
    uint32_t early_stopping; /* INFER_BEAM_STOP_* */
} infer_request;

/* INFER_E_INVALID (an id out of range, a sampling value; the text names it), INFER_E_TOO_LARGE (prompt + 1 over the
 * context: never truncated), INFER_E_BUSY (queue full), INFER_E_NO_MEMORY, or the engine's own fatal status. */
INFER_API infer_status infer_engine_submit(infer_engine *e, const infer_request *req, uint64_t *id, infer_error *err);
/* The request ends with INFER_FINISH_CANCELLED at the next step not yet submitted. An unknown id is ignored. */
INFER_API void infer_engine_cancel(infer_engine *e, uint64_t id);

#define INFER_EVENT_TOKEN      1u
#define INFER_EVENT_DONE       2u
#define INFER_EVENT_HYPOTHESIS 3u /* of a beam search, best first */

#define INFER_FINISH_STOP      1u /* an end token, stop id or stop string */
#define INFER_FINISH_LENGTH    2u
#define INFER_FINISH_CANCELLED 3u
#define INFER_FINISH_ERROR     4u /* status says what */

typedef struct infer_logprob {
    int32_t id;
    float logprob;
} infer_logprob;

typedef struct infer_event {
    uint64_t id;
    void *user;
    uint32_t type;   /* INFER_EVENT_* */
    uint32_t finish; /* DONE, HYPOTHESIS: INFER_FINISH_* */
    infer_status status;
    int32_t token; /* TOKEN: the id; an end token is not reported */
    float logprob;
    uint32_t n_top;
    const infer_logprob *top;
    /* Text that became certain with this event (complete UTF-8, no part of a stop string); may be empty. DONE carries
     * what was held back, HYPOTHESIS all of it. */
    const char *text;
    uint64_t n_text;
    uint64_t t; /* when it came to be, however late it is polled; of tokens, when their step was
                 * known to be done: those of one request do not fall */
    /* DONE only */
    const char *error; /* text for status */
    /* n_cached: prompt tokens that the prefix cache had when it started; n_generated: of a beam search, of all
     * hypotheses that were told */
    uint64_t n_prompt, n_cached, n_generated;
    uint64_t t_submit, t_first_run, t_first_token, t_end; /* 0: never */
    /* HYPOTHESIS only */
    const int32_t *ids; /* n_ids of them, without the end token */
    uint64_t n_ids;
    double sum, score; /* see infer_request.length_penalty */
} infer_event;

/* Waits up to timeout_ms (-1: for ever) for events; *n of them at *events, borrowed until the next poll. One polling
 * thread. Events of one request come in order. A fatal engine failure ends every request with its status, then poll
 * returns that status. */
INFER_API infer_status infer_engine_poll(infer_engine *e, int32_t timeout_ms, const infer_event **events, uint32_t *n);
/* Makes a waiting poll return (with n = 0 if there is nothing). */
INFER_API void infer_engine_wake(infer_engine *e);

/* Blocks in a tier of the prefix cache below the pool, and what became of those that were, so far. */
typedef struct infer_tier_stats {
    uint64_t capacity, blocks;
    uint64_t stored;  /* were copied there */
    uint64_t hits;    /* were brought back into the pool from there */
    uint64_t evicted; /* left it for good, as others were worth more */
    uint64_t lost;    /* could not be stored or read, or go on from one that is gone */
} infer_tier_stats;

typedef struct infer_engine_stats {
    uint32_t struct_size;
    uint32_t n_running, n_waiting;
    uint32_t block_size;
    uint64_t blocks_total, blocks_used;
    uint64_t kv_tokens_used; /* filled slots in used blocks */
    uint64_t steps, prompt_tokens, generated_tokens, preemptions, finished, cancelled, failed;
    uint64_t step_tokens_last, step_seqs_last;
    uint64_t device_busy_ns, step_ns; /* sums over steps */
    uint64_t last_token_ns;           /* when a token was last made, 0: never */
    uint64_t fallback_ops;            /* ops run on the host for a device that lacks them, so far */
    uint64_t copy_bytes;              /* between devices, so far */
    infer_status fatal;
    uint32_t under_way;                   /* 1: a step runs; it may be for requests that have all ended */
    uint64_t prefix_queries, prefix_hits; /* prompt tokens of requests that started; those that the prefix cache had */
    uint64_t blocks_cached;               /* of those not used, blocks that the prefix cache holds */
    uint64_t blocks_swapped_out, blocks_swapped_in;
    uint64_t cancel_steps; /* steps that began between a cancellation and its blocks' return: the most so far */
    uint64_t host_ns; /* sum over steps: the engine thread's processor time but for waiting, most while a step runs */
    uint64_t gap_ns;  /* sum over steps that another follows at once: from its end to the other's beginning; none
                         where the other was submitted while it ran */
    uint64_t spec_drafts, spec_draft_tokens, spec_accepted_tokens; /* requests in steps for which tokens were tried;
                                                                      those tokens; those of them that were right */
    infer_tier_stats tier_host, tier_file;
    uint64_t host_blocks_bytes; /* of host memory set aside for blocks of the cache, used where it is needed */
} infer_engine_stats;
/* A consistent copy; out->struct_size is the caller's, fields beyond it are left out. */
INFER_API void infer_engine_get_stats(infer_engine *e, infer_engine_stats *out);
/* The monotonic clock that all times are of. */
INFER_API uint64_t infer_engine_now(void);
/* The context a request may use, prompt and output together. */
INFER_API uint32_t infer_engine_ctx_size(const infer_engine *e);
INFER_API infer_model *infer_engine_model(const infer_engine *e);

#ifdef __cplusplus
}
#endif
#endif
