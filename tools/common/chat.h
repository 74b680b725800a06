/*
 * Conversations to prompts: renders a chat template with the model's special texts and turns prompts into ids, with
 * exactly one BOS where the tokenizer wants one. Immutable after creation: any number of threads.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_TOOLS_CHAT_H
#define INFER_TOOLS_CHAT_H

#include <jansson.h>

#include <infer/infer.h>

#include "opt.h"
#include "sbuf.h"

typedef struct chat_format {
    const infer_tokenizer *tokenizer;
    infer_template *tmpl; /* NULL: the model has none */
    char *source;         /* of the template; NULL: none */
    size_t source_n;
    int has_developer; /* the template knows the role "developer" */
} chat_format;

/* Takes --chat-template, --chat-template-file or the model's own. A template that does not compile is an error that
 * names what it needs; having none is no error (chat_render then says so). */
infer_status chat_create(chat_format *c, const opts *o, infer_file *file, const infer_tokenizer *tok, infer_error *err);
void chat_destroy(chat_format *c);

/* Renders messages (an array as in a request; content as text, null, or text parts, which are joined by newlines) to
 * *out (owned, infer_text_free) of *n bytes. extra (or NULL) is an object of more variables; tools an array or NULL.
 * INFER_E_INVALID: a message is malformed, or the template refuses (its own words). */
infer_status chat_render(const chat_format *c, const json_t *messages, const json_t *tools, int add_generation_prompt,
                         const json_t *extra, char **out, size_t *n, infer_error *err);

/* Ids of a text (owned, infer_ids_free). add_special: BOS and EOS as the tokenizer says, but no second BOS before a
 * text that already begins with it; rendered: the text comes from a template, which states its own end. */
infer_status chat_encode(const infer_tokenizer *tok, const char *text, size_t n, int add_special, int rendered,
                         int32_t **ids, size_t *n_ids, infer_error *err);

/* Whether the tokenizer puts BOS before a text. */
int chat_adds_bos(const infer_tokenizer *tok);

#endif
