/* OpenAI's completion objects from a group's choices, whole and as stream pieces. SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_SERVE_REPLY_H
#define INFER_SERVE_REPLY_H

#include <jansson.h>

#include "server.h"

struct gen;
struct gen_group;

/* Builds the whole reply of a call whose choices are all done (call.finish). */
void reply_finish(call *c);
/* The next server-sent event (call.stream_next). */
int reply_stream_next(call *c);

/* Tokens [from, to) of a choice's answer as a chat log-probability list. */
json_t *logprobs_chat(const infer_tokenizer *tok, const struct gen *g, size_t from, size_t to);
/* The same in the older form of text completions, with the prompt's tokens first when echo is set and from is 0.
 * offset is where the first token's text begins, in characters. */
json_t *logprobs_text(const infer_tokenizer *tok, const struct gen *g, size_t from, size_t to, int echo,
                      size_t *offset);

#endif
