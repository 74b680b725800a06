/*
 * Completion objects and stream pieces. What the pieces of a stream say together equals the whole object's text.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <string.h>

#include "gen.h"
#include "http.h"
#include "reply.h"
#include "respond.h"

#define FINGERPRINT "infer-" INFER_VERSION_STRING

static json_t *text_json(const char *p, size_t n)
{
    return json_stringn(p ? p : "", n);
}

static json_t *finish_reason(const gen *g)
{
    return json_string(g->finish == INFER_FINISH_STOP ? "stop" : "length");
}

static json_t *usage_json(const gen_group *g)
{
    json_int_t prompt = 0, made = 0, cached = 0;
    size_t per_prompt = g->n / g->n_prompts;
    for (size_t i = 0; i < g->n; i++) {
        made += (json_int_t)g->gens[i].n_generated;
        if (i % per_prompt == 0) {
            prompt += (json_int_t)g->prompts[g->gens[i].prompt_index].n;
            cached += (json_int_t)g->gens[i].n_cached;
        }
    }
    return json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", prompt, "completion_tokens", made, "total_tokens",
                     prompt + made, "prompt_tokens_details", "cached_tokens", cached);
}

/* The object around choices; takes the reference. */
static json_t *envelope(const call *c, const char *object, json_t *choices)
{
    const gen_group *g = c->gens;
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:o}", "id", g->id, "object", object, "created", (json_int_t)g->created,
                     "model", c->server->model, "system_fingerprint", FINGERPRINT, "choices", choices);
}

/* ---- Whole ------------------------------------------------------------------------------------------------- */

/* Only the end of the server or of the client's interest cancels; a client that is half gone may read this. */
static const char *why_cancelled(const call *c)
{
    return atomic_load(&c->server->state) >= SERVER_DRAINING
               ? "The request was cancelled because the server shuts down."
               : "The request was cancelled because the client closed its side of the connection.";
}

/* Sets the error reply of a choice that did not end well. 1 when it did. */
static int choice_ended_well(call *c, const gen *g)
{
    if (g->text.failed || g->tokens.failed || g->echoed.failed) {
        respond_error(c, 500, NULL, NULL, "out of memory");
        return 0;
    }
    if (g->finish == INFER_FINISH_STOP || g->finish == INFER_FINISH_LENGTH)
        return 1;
    if (g->finish == INFER_FINISH_CANCELLED)
        respond_error(c, 503, "cancelled", NULL, "%s", why_cancelled(c));
    else
        respond_error(c, respond_http_status(g->status), NULL, NULL, "%s", g->error);
    return 0;
}

static json_t *chat_choice(const call *c, const gen *g)
{
    json_t *logprobs = c->gens->logprobs ? logprobs_chat(c->server->session.tokenizer, g, 0, g->tokens.n) : json_null();
    return json_pack("{s:i, s:{s:s, s:o, s:n}, s:o, s:o}", "index", (int)g->index, "message", "role", "assistant",
                     "content", text_json(g->text.p, g->text.n), "refusal", "logprobs", logprobs, "finish_reason",
                     finish_reason(g));
}

static json_t *text_choice(const call *c, const gen *g)
{
    const gen_group *group = c->gens;
    const gen_prompt *p = &group->prompts[g->prompt_index];
    sbuf text = {0};
    size_t offset = 0;
    if (group->echo && p->text)
        sbuf_add(&text, p->text, p->n_text);
    if (g->text.n)
        sbuf_add(&text, g->text.p, g->text.n);
    json_t *logprobs = group->logprobs
                           ? logprobs_text(c->server->session.tokenizer, g, 0, g->tokens.n, group->echo, &offset)
                           : json_null();
    json_t *choice = json_pack("{s:i, s:o, s:o, s:o}", "index", (int)g->index, "text", text_json(text.p, text.n),
                               "logprobs", logprobs, "finish_reason", finish_reason(g));
    sbuf_free(&text);
    return choice;
}

/* Log-probability a token. */
static double likelihood(const gen *g)
{
    return g->n_generated ? g->logprob / (double)g->n_generated : 0;
}

/* Of a prompt's choices that are not told yet, the next: in order where all are told, else the likeliest. */
static gen *next_told(const gen_group *g, gen *of, size_t n)
{
    gen *best = NULL;
    for (size_t i = 0; i < n; i++) {
        if (of[i].final_sent)
            continue;
        if (!best || (g->n_told < n && likelihood(&of[i]) > likelihood(best)))
            best = &of[i];
    }
    best->final_sent = 1;
    return best;
}

/* How many choices of a prompt there are; the first one always, with how it ended. */
static size_t told_of(const gen_group *g, const gen *first)
{
    return !g->beam_width ? g->n / g->n_prompts : first->n_hyps ? first->n_hyps : 1;
}

void reply_finish(call *c)
{
    gen_group *g = c->gens;
    const size_t each = g->n / g->n_prompts;
    for (size_t i = 0; i < g->n; i++) {
        if (i % each >= told_of(g, &g->gens[i - i % each])) /* a beam search found fewer */
            continue;
        if (!choice_ended_well(c, &g->gens[i])) {
            http_ready(c);
            return;
        }
    }
    json_t *choices = json_array();
    for (size_t i = 0; i < g->n_prompts * g->n_told; i++) {
        gen *of = &g->gens[i / g->n_told * each];
        if (g->beam_width && i % g->n_told >= told_of(g, of))
            continue;
        gen *x = next_told(g, of, each);
        x->index = (uint32_t)json_array_size(choices);
        json_array_append_new(choices, g->chat ? chat_choice(c, x) : text_choice(c, x));
    }
    json_t *o = envelope(c, g->chat ? "chat.completion" : "text_completion", choices);
    if (o)
        json_object_set_new(o, "usage", usage_json(g));
    respond_json(c, 200, o);
    http_ready(c);
}

/* ---- Streams ----------------------------------------------------------------------------------------------- */

/* Writes one event to the call's `out`; takes the reference. */
static int put_event(call *c, json_t *o)
{
    sbuf_puts(&c->out, "data: ");
    if (!o || json_dump_callback(o, sbuf_json, &c->out, JSON_COMPACT | JSON_REAL_PRECISION(9)) < 0)
        c->out.failed = 1;
    sbuf_puts(&c->out, "\n\n");
    json_decref(o);
    return 1;
}

/* One piece of a choice: text (or NULL), log-probabilities (or NULL), finish reason (or NULL); takes the references. */
static int put_choice(call *c, const gen *g, json_t *text, json_t *logprobs, json_t *finish)
{
    const gen_group *group = c->gens;
    json_t *choice;
    if (!logprobs)
        logprobs = json_null();
    if (!finish)
        finish = json_null();
    if (group->chat) {
        json_t *delta = json_object();
        if (text)
            json_object_set_new(delta, "content", text);
        choice = json_pack("[{s:i, s:o, s:o, s:o}]", "index", (int)g->index, "delta", delta, "logprobs", logprobs,
                           "finish_reason", finish);
    } else {
        choice = json_pack("[{s:i, s:o, s:o, s:o}]", "index", (int)g->index, "text", text ? text : json_string(""),
                           "logprobs", logprobs, "finish_reason", finish);
    }
    json_t *o = envelope(c, group->chat ? "chat.completion.chunk" : "text_completion", choice);
    if (o && group->include_usage)
        json_object_set_new(o, "usage", json_null());
    return put_event(c, o);
}

/* The roles of all choices, before anything else. */
static int put_roles(call *c)
{
    gen_group *group = c->gens;
    for (size_t i = 0; i < group->n; i++) {
        json_t *o = envelope(c, "chat.completion.chunk",
                             json_pack("[{s:i, s:{s:s, s:s}, s:n, s:n}]", "index", (int)i, "delta", "role", "assistant",
                                       "content", "", "logprobs", "finish_reason"));
        if (o && group->include_usage)
            json_object_set_new(o, "usage", json_null());
        put_event(c, o);
    }
    return 1;
}

/* Characters (not bytes) of a text. */
static size_t n_chars(const char *p, size_t n)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        k += (p[i] & 0xC0) != 0x80;
    return k;
}

/* The prompt of a choice with echo. Its log-probabilities are complete when the first token (or the end) is there. */
static int put_echo(call *c, gen *g)
{
    const gen_group *group = c->gens;
    const gen_prompt *p = &group->prompts[g->prompt_index];
    size_t offset = 0;
    if (group->logprobs && !g->t_last && !g->done)
        return 0;
    g->echo_sent = 1;
    json_t *logprobs = group->logprobs ? logprobs_text(c->server->session.tokenizer, g, 0, 0, 1, &offset) : NULL;
    return put_choice(c, g, text_json(p->text, p->n_text), logprobs, NULL);
}

/* What the next event that was not sent brought; all of them as one piece for a reader who is far behind. */
static int put_news(call *c, gen *g)
{
    enum { FAR = 32 };
    const gen_group *group = c->gens;
    const gen_prompt *p = &group->prompts[g->prompt_index];
    if (g->marks_sent == g->n_marks)
        return 0;
    g->marks_sent = g->n_marks - g->marks_sent > FAR ? g->n_marks : g->marks_sent + 1;
    const gen_mark *mark = &g->marks[g->marks_sent - 1];
    size_t from = g->tokens_sent, to = mark->tokens;
    json_t *logprobs = NULL;
    if (to > from && group->chat) {
        logprobs = logprobs_chat(c->server->session.tokenizer, g, from, to);
    } else if (to > from) {
        size_t offset = (group->echo ? n_chars(p->text, p->n_text) : 0) + n_chars(g->text.p, g->text_sent);
        logprobs = logprobs_text(c->server->session.tokenizer, g, from, to, 0, &offset);
    }
    json_t *text = text_json(g->text.p ? g->text.p + g->text_sent : "", mark->text - g->text_sent);
    g->text_sent = mark->text;
    g->tokens_sent = to;
    return put_choice(c, g, text, logprobs, NULL);
}

static int put_error(call *c, const gen *g)
{
    c->gens->error_sent = 1;
    int cancelled = g->finish == INFER_FINISH_CANCELLED;
    unsigned status = cancelled ? 503 : g->finish == INFER_FINISH_ERROR ? respond_http_status(g->status) : 500;
    return put_event(c, respond_error_object(respond_type(status), cancelled ? "cancelled" : NULL, NULL,
                                             cancelled                         ? why_cancelled(c)
                                             : g->finish == INFER_FINISH_ERROR ? g->error
                                                                               : "out of memory"));
}

/* The next piece of one choice: 1 written, 0 nothing yet. */
static int choice_next(call *c, gen *g)
{
    const gen_group *group = c->gens;
    if (group->echo && !g->echo_sent)
        return put_echo(c, g);
    if (put_news(c, g))
        return 1;
    if (!g->done || g->final_sent)
        return 0;
    g->final_sent = 1;
    int failed = g->text.failed || g->tokens.failed || g->echoed.failed || g->marks_failed;
    if (failed || (g->finish != INFER_FINISH_STOP && g->finish != INFER_FINISH_LENGTH))
        return put_error(c, g);
    return put_choice(c, g, NULL, NULL, finish_reason(g));
}

int reply_stream_next(call *c)
{
    gen_group *group = c->gens;
    int all_done = 1;
    if (group->done_sent)
        return -1;
    if (group->chat && !group->role_sent) {
        group->role_sent = 1;
        return put_roles(c);
    }
    for (size_t i = 0; i < group->n; i++) {
        if (choice_next(c, &group->gens[i]))
            return 1;
        all_done &= group->gens[i].final_sent;
    }
    if (!all_done)
        return 0;
    if (group->include_usage && !group->usage_sent && !group->error_sent) {
        group->usage_sent = 1;
        json_t *o = envelope(c, group->chat ? "chat.completion.chunk" : "text_completion", json_array());
        if (o)
            json_object_set_new(o, "usage", usage_json(group));
        return put_event(c, o);
    }
    group->done_sent = 1;
    sbuf_puts(&c->out, "data: [DONE]\n\n");
    return 1;
}
