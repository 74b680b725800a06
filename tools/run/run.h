/* One generation on an engine, and the chat loop. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TOOLS_RUN_H
#define INFER_TOOLS_RUN_H

#include <signal.h>
#include <stdio.h>

#include "chat.h"
#include "session.h"

typedef struct answer_token {
    int32_t id;
    float logprob;
    infer_logprob top[20];
    uint32_t n_top;
} answer_token;

typedef struct answer {
    sbuf text;
    answer_token *tokens;
    size_t n, cap;
    uint32_t finish; /* INFER_FINISH_* */
    infer_event end; /* the DONE event; its pointers are not valid */
} answer;

typedef struct runner {
    const opts *o;
    session *s;
    chat_format *c;
    uint32_t n_top; /* alternatives wanted */
    FILE *stream;   /* text goes here as it comes; NULL: nowhere */
} runner;

/* Set by SIGINT while run_catch_interrupts is on. */
extern volatile sig_atomic_t run_interrupted;
void run_catch_interrupts(void);

/* Generates from ids as the options say, until the end or an interrupt. A failure of the request is an error. */
infer_status run_generate(runner *r, const int32_t *ids, size_t n_ids, answer *a, infer_error *err);
void answer_free(answer *a);
const char *answer_finish(const answer *a);

/* The chat loop on stdin and stdout; first (or NULL) is the first message. Returns the exit code. */
int run_chat(runner *r, const char *first);

#endif
