/* The sampling part of a completion request. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_SERVE_PARAMS_H
#define INFER_SERVE_PARAMS_H

#include <jansson.h>

#include "server.h"

typedef struct params {
    double temperature, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty;
    double length_penalty;
    int64_t top_k, seed, n, max_tokens, max_completion_tokens, min_tokens, priority, best_of;
    int64_t logprobs;     /* completions: -1 off; chat: see top_logprobs */
    int64_t top_logprobs; /* chat: -1 not given */
    int logprobs_on;      /* chat */
    int stream, echo, ignore_eos, add_generation_prompt, add_special_tokens;
    int include_usage;
    int has_seed;
    int use_beam_search;
    uint32_t early_stopping; /* INFER_BEAM_STOP_* */
} params;

/* Reads and checks what chat and completions share, and refuses by name what is not built. -1 with the reply set. */
int params_read(call *c, const json_t *body, int chat, params *p);

/* Choices that are made for a prompt. */
size_t params_choices(const params *p);

/* Fills the call's group (gen_new was called) from params and the fields stop, stop_token_ids, logit_bias. */
int params_apply(call *c, const json_t *body, const params *p);

#endif
