/*
 * Log-probabilities as JSON, in the shapes of chat and of text completions.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <string.h>

#include "gen.h"
#include "reply.h"

#define TOKEN_BYTES 512

/* The bytes of one token's own text. */
static size_t token_bytes(const infer_tokenizer *tok, int32_t id, char *buf)
{
    size_t n = infer_tokenizer_token_bytes(tok, id, buf, TOKEN_BYTES);
    return n < TOKEN_BYTES ? n : TOKEN_BYTES;
}

static json_t *clean_string(const char *s, size_t n, size_t *n_chars)
{
    sbuf b = {0};
    sbuf_add_utf8(&b, s, n);
    json_t *v = json_stringn(b.p ? b.p : "", b.n);
    for (size_t i = 0; n_chars && i < b.n; i++)
        *n_chars += (b.p[i] & 0xC0) != 0x80;
    sbuf_free(&b);
    return v;
}

static json_t *chat_entry(const infer_tokenizer *tok, int32_t id, float logprob)
{
    char s[TOKEN_BYTES];
    size_t n = token_bytes(tok, id, s);
    json_t *bytes = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(bytes, json_integer((unsigned char)s[i]));
    return json_pack("{s:o, s:f, s:o}", "token", clean_string(s, n, NULL), "logprob", (double)logprob, "bytes", bytes);
}

json_t *logprobs_chat(const infer_tokenizer *tok, const gen *g, size_t from, size_t to)
{
    json_t *content = json_array();
    for (size_t i = from; i < to; i++) {
        const gen_token *t = &g->tokens.p[i];
        json_t *entry = chat_entry(tok, t->id, t->logprob), *top = json_array();
        for (uint32_t k = 0; k < t->n_top; k++) {
            const infer_logprob *l = &g->tokens.tops[t->top + k];
            json_array_append_new(top, chat_entry(tok, l->id, l->logprob));
        }
        json_object_set_new(entry, "top_logprobs", top);
        json_array_append_new(content, entry);
    }
    return json_pack("{s:o, s:n}", "content", content, "refusal");
}

typedef struct text_lists {
    json_t *tokens, *logprobs, *top, *offsets;
} text_lists;

/* Tokens of the same text share an entry: the likelier one's. */
static void add_alternative(json_t *top, const infer_tokenizer *tok, int32_t id, float logprob)
{
    char s[TOKEN_BYTES];
    sbuf key = {0};
    sbuf_add_utf8(&key, s, token_bytes(tok, id, s));
    if (key.p && !key.failed && strlen(key.p) == key.n && !json_object_get(top, key.p))
        json_object_set_new(top, key.p, json_real((double)logprob));
    sbuf_free(&key);
}

static void add_tokens(text_lists *l, const infer_tokenizer *tok, const gen_tokens *t, size_t from, size_t to,
                       size_t *offset)
{
    char s[TOKEN_BYTES];
    for (size_t i = from; i < to; i++) {
        const gen_token *one = &t->p[i];
        json_array_append_new(l->offsets, json_integer((json_int_t)*offset));
        json_array_append_new(l->tokens, clean_string(s, token_bytes(tok, one->id, s), offset));
        json_array_append_new(l->logprobs, one->known ? json_real((double)one->logprob) : json_null());
        json_t *top = one->known ? json_object() : json_null();
        int has_own = !one->known || !one->n_top;
        for (uint32_t k = 0; k < one->n_top; k++) {
            has_own |= t->tops[one->top + k].id == one->id;
            add_alternative(top, tok, t->tops[one->top + k].id, t->tops[one->top + k].logprob);
        }
        if (!has_own) /* the token itself is always among them */
            add_alternative(top, tok, one->id, one->logprob);
        json_array_append_new(l->top, top);
    }
}

json_t *logprobs_text(const infer_tokenizer *tok, const gen *g, size_t from, size_t to, int echo, size_t *offset)
{
    text_lists l = {json_array(), json_array(), json_array(), json_array()};
    if (echo && from == 0)
        add_tokens(&l, tok, &g->echoed, 0, g->echoed.n, offset);
    add_tokens(&l, tok, &g->tokens, from, to, offset);
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", l.tokens, "token_logprobs", l.logprobs, "top_logprobs", l.top,
                     "text_offset", l.offsets);
}
