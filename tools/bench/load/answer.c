/*
 * A streamed completion's events. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <string.h>

#include "answer.h"

enum { MAX_BODY = 1 << 20, MAX_TEXT = 1 << 24 };

/* What an error says: {"error": "…"}, {"error": {"message"}}, {"message"} or {"detail"}; NULL: nothing. */
static const char *error_text(const json_t *o)
{
    const json_t *e = json_object_get(o, "error");
    if (json_is_string(e))
        return json_string_value(e);
    if (!json_is_object(e))
        e = o;
    const char *text = json_string_value(json_object_get(e, "message"));
    return text ? text : json_string_value(json_object_get(e, "detail"));
}

static int is_error(const json_t *o)
{
    const json_t *e = json_object_get(o, "error");
    const char *object = json_string_value(json_object_get(o, "object"));
    return (e && !json_is_null(e)) || (object && !strcmp(object, "error"));
}

static void add_text(load_answer *a, const json_t *text, int *piece)
{
    size_t n = json_string_length(text);
    if (!n)
        return;
    *piece = 1;
    if (a->keep_text && a->text.n < MAX_TEXT)
        sbuf_add(&a->text, json_string_value(text), n);
}

static void take_choice(load_answer *a, const json_t *choice, int *piece)
{
    const json_t *delta = json_object_get(choice, "delta");
    const char *finish = json_string_value(json_object_get(choice, "finish_reason"));
    add_text(a, json_object_get(choice, "text"), piece);
    add_text(a, json_object_get(delta, "content"), piece);
    int thought = 0; /* tokens all the same, but no part of the answer that the next turn repeats */
    const int keep = a->keep_text;
    a->keep_text = 0;
    add_text(a, json_object_get(delta, "reasoning_content"), &thought);
    if (!thought)
        add_text(a, json_object_get(delta, "reasoning"), &thought);
    a->keep_text = keep;
    *piece |= thought;
    if (finish)
        snprintf(a->record->finish, sizeof a->record->finish, "%s", finish);
}

static void take_usage(load_record *r, const json_t *usage)
{
    const json_t *prompt = json_object_get(usage, "prompt_tokens"), *out = json_object_get(usage, "completion_tokens");
    const json_t *cached = json_object_get(json_object_get(usage, "prompt_tokens_details"), "cached_tokens");
    if (!json_is_integer(out) || json_integer_value(out) < 0)
        return;
    r->n_out = (uint64_t)json_integer_value(out);
    if (json_is_integer(prompt) && json_integer_value(prompt) >= 0)
        r->n_prompt = (uint64_t)json_integer_value(prompt);
    if (json_is_integer(cached) && json_integer_value(cached) >= 0)
        r->n_cached = (uint64_t)json_integer_value(cached);
    r->counted = LOAD_BY_USAGE;
}

static void take_event(void *user, const char *data, size_t n)
{
    load_answer *a = user;
    load_record *r = a->record;
    if (n == 6 && !memcmp(data, "[DONE]", 6)) {
        a->done = 1;
        return;
    }
    if (a->done) {
        load_record_fail(r, "stream", "an event after [DONE]");
        return;
    }
    json_error_t e;
    json_t *o = json_loadb(data, n, JSON_ALLOW_NUL, &e), *choice;
    if (!json_is_object(o)) {
        load_record_fail(r, "stream", "an event is no JSON object: %.60s", o ? "" : e.text);
        json_decref(o);
        return;
    }
    const char *why = error_text(o);
    size_t i;
    int piece = 0;
    if (is_error(o))
        load_record_fail(r, "error in stream", "%s", why ? why : "no message");
    json_array_foreach (json_object_get(o, "choices"), i, choice)
        take_choice(a, choice, &piece);
    if (piece)
        load_record_piece(r, a->now);
    take_usage(r, json_object_get(o, "usage"));
    json_decref(o);
}

void load_answer_body(load_answer *a, unsigned status, int event_stream, const char *p, size_t n, uint64_t now)
{
    a->now = now;
    if (status != 200 || !event_stream) {
        if (a->body.n < MAX_BODY)
            sbuf_add(&a->body, p, n < MAX_BODY - a->body.n ? n : MAX_BODY - a->body.n);
        return;
    }
    sse_reader_push(&a->sse, p, n, take_event, a);
    if (a->sse.bad)
        load_record_fail(a->record, "stream", "an event is too long");
}

static void fail_whole(load_answer *a, unsigned status)
{
    char kind[32];
    json_t *o = json_loadb(a->body.p ? a->body.p : "", a->body.n, 0, NULL);
    const char *text = error_text(o);
    snprintf(kind, sizeof kind, status == 200 ? "no stream" : "HTTP %u", status);
    if (!text)
        text = status == 200 ? "the answer is no event stream" : a->body.n ? a->body.p : "no message";
    load_record_fail(a->record, kind, "%s", text);
    json_decref(o);
}

void load_answer_end(load_answer *a, unsigned status, int event_stream, const char *kind, const char *cut, uint64_t now)
{
    if (cut && !a->done) /* what comes after [DONE] is the connection's matter */
        load_record_fail(a->record, kind, "%s", cut);
    else if (status != 200 || !event_stream)
        fail_whole(a, status);
    else if (!a->done)
        load_record_fail(a->record, LOAD_KIND_CUT, "the stream ended without [DONE]");
    if (a->text.failed || a->body.failed)
        load_record_fail(a->record, "client", "out of memory");
    load_record_end(a->record, now);
}

void load_answer_free(load_answer *a)
{
    sse_reader_free(&a->sse);
    sbuf_free(&a->text);
    sbuf_free(&a->body);
}
