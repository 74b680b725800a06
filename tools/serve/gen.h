/*
 * Generation for a call: one engine request for each choice, or one for all choices of a beam search, their events
 * gathered until the reply or stream takes them. SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_SERVE_GEN_H
#define INFER_SERVE_GEN_H

#include "server.h"

typedef struct gen_token {
    int32_t id;
    float logprob;
    size_t top;     /* index of its first alternative in gen.tops */
    uint32_t n_top; /* as many follow */
    uint32_t known; /* the log-probability means something (not so for a prompt's first token) */
} gen_token;

typedef struct gen_tokens {
    gen_token *p;
    size_t n, cap;
    infer_logprob *tops;
    size_t n_tops, cap_tops;
    int failed; /* out of memory */
} gen_tokens;

/* How far an event brought a choice: a stream sends each event's news as a piece of its own, as clients expect. */
typedef struct gen_mark {
    size_t text, tokens; /* bytes of text and tokens after it */
} gen_mark;

/* One choice. Everything but the prompt is under the call's lock. */
typedef struct gen {
    call *c;
    uint32_t index, prompt_index;
    uint64_t id; /* the engine's; 0: not submitted yet */
    int under_way, done;
    sbuf text;
    size_t text_sent;
    gen_tokens tokens;
    size_t tokens_sent;
    gen_mark *marks; /* streams only */
    size_t n_marks, cap_marks, marks_sent;
    int marks_failed;  /* out of memory */
    gen_tokens echoed; /* the prompt's tokens; the engine thread's until done */
    int echo_sent, final_sent;
    uint32_t finish; /* INFER_FINISH_* */
    infer_status status;
    char error[256];
    uint64_t n_prompt, n_cached, n_generated;
    double logprob;  /* sum over its tokens */
    uint32_t n_hyps; /* of a beam search, which the first choice of a prompt stands for: hypotheses that came */
    uint64_t t_submit, t_last;
} gen;

typedef struct gen_prompt {
    int32_t *ids; /* owned, as ids_from_malloc says */
    size_t n;
    char *text; /* for echo; owned, as text_from_malloc says; or NULL */
    size_t n_text;
    int ids_from_malloc, text_from_malloc; /* 0: the tokenizer's */
} gen_prompt;

/* What a reply needs to know. Set before gen_submit. */
typedef struct gen_group {
    gen_prompt *prompts;
    size_t n_prompts;
    gen *gens;
    size_t n;      /* n_prompts times the choices of each */
    size_t n_told; /* of each prompt's choices, the likeliest are in the reply */
    size_t n_live;
    int aborted; /* a later submit failed: the error is the reply */
    int chat, stream, include_usage, echo, logprobs;
    uint32_t n_top;
    int role_sent, usage_sent, done_sent, error_sent;
    char id[64];
    int64_t created;
    int64_t max_tokens;
    infer_sampling sampling; /* bias owned */
    uint32_t flags;          /* INFER_REQ_* */
    int64_t min_tokens;
    int32_t priority;
    char **stop; /* owned */
    uint32_t n_stop;
    int32_t *stop_ids;   /* owned */
    char *cache_salt;    /* owned; NULL: none */
    uint32_t beam_width; /* 0: none */
    float length_penalty;
    uint32_t early_stopping; /* INFER_BEAM_STOP_* */
    uint32_t n_stop_ids;
} gen_group;

/* A group of n_prompts x n choices owned by the call; prompts are filled by the caller. NULL without memory. */
gen_group *gen_new(call *c, size_t n_prompts, size_t n);
/* Submits every choice. On failure those submitted are cancelled, and the cause is in err. */
infer_status gen_submit(call *c, infer_error *err);
void gen_free(call *c);
/* Tokens of the choices that ended. 0: none has. */
int gen_counts(call *c, uint64_t *prompt, uint64_t *made);
/* The client has hung up: what runs is cancelled. Any thread. */
void gen_client_gone(call *c);

/* The pump: hands the engine's events to calls until stopped or the engine fails for good. */
infer_status pump_start(server *s, infer_error *err);
void pump_stop(server *s);
/* Cancels every engine request under way (the drain's deadline). */
void pump_cancel_all(server *s);
/* Ends every choice under way with an error now, without the engine, which hangs; what it may still bring is dropped.
 */
void pump_fail_all(server *s, const char *why);

#endif
