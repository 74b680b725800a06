/*
 * Health, readiness, version, properties, metrics, and the text tools (tokenize, detokenize, apply-template).
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "field.h"
#include "respond.h"
#include "route.h"

/* ---- State ------------------------------------------------------------------------------------------------- */

/* Sets the 503 of a server that cannot serve. 1 when it can. */
static int alive(call *c)
{
    switch (atomic_load(&c->server->state)) {
    case SERVER_LOADING:
        c->retry_after = 1;
        respond_error(c, 503, "loading", NULL, "The model is still loading.");
        return 0;
    case SERVER_FAILED:
        respond_error(c, 503, "failed", NULL, "The engine has failed: %s.",
                      infer_status_name(atomic_load(&c->server->fatal)));
        return 0;
    default:
        return 1;
    }
}

enum route_result api_health(call *c)
{
    if (alive(c))
        respond_json(c, 200, json_pack("{s:s}", "status", "ok"));
    return ROUTE_REPLY;
}

enum route_result api_ready(call *c)
{
    server *s = c->server;
    if (!alive(c))
        return ROUTE_REPLY;
    if (atomic_load(&s->state) == SERVER_DRAINING)
        respond_error(c, 503, "draining", NULL, "The server is shutting down.");
    else if (atomic_load(&s->stall))
        respond_error(c, 503, "stalled", NULL, "No step was made for a while although requests wait.");
    else
        respond_json(c, 200, json_pack("{s:s}", "status", "ready"));
    return ROUTE_REPLY;
}

enum route_result api_version(call *c)
{
    respond_json(c, 200, json_pack("{s:s}", "version", INFER_VERSION_STRING));
    return ROUTE_REPLY;
}

static json_t *token_text(const infer_tokenizer *tok, int32_t id)
{
    size_t n = 0;
    const char *s = id >= 0 ? infer_tokenizer_piece(tok, id, &n) : NULL;
    return s ? utf8_json_n(s, n) : json_string("");
}

enum route_result api_props(call *c)
{
    server *s = c->server;
    const infer_tokenizer *tok = s->session.tokenizer;
    char *text;
    json_t *plan = NULL;
    if (infer_plan_json(s->session.plan, &text, NULL) >= 0) {
        plan = json_loads(text, 0, NULL);
        infer_text_free(text);
    }
    json_t *tmpl = s->chat.source ? utf8_json_n(s->chat.source, s->chat.source_n) : json_null();
    respond_json(c, 200,
                 json_pack("{s:s, s:o, s:I, s:I, s:o, s:o, s:o, s:b, s:s, s:o}", "model_alias", s->model, "model_path",
                           utf8_json(s->session.info.path), "total_slots", (json_int_t)opt_int(s->o, OPT_PARALLEL),
                           "n_ctx", (json_int_t)infer_engine_ctx_size(s->session.engine), "chat_template", tmpl,
                           "bos_token", token_text(tok, infer_tokenizer_bos(tok)), "eos_token",
                           token_text(tok, infer_tokenizer_eos(tok)), "add_bos_token", s->adds_bos, "build_info",
                           "infer-" INFER_VERSION_STRING, "plan", plan ? plan : json_null()));
    return ROUTE_REPLY;
}

enum route_result api_metrics(call *c)
{
    metrics_print(c->server, "infer_", &c->reply);
    if (opt_int(c->server->o, OPT_METRICS_COMPAT) == 1)
        metrics_print(c->server, "vllm:", &c->reply);
    if (c->reply.failed) {
        sbuf_free(&c->reply);
        respond_error(c, 500, NULL, NULL, "out of memory");
        return ROUTE_REPLY;
    }
    c->status = 200;
    c->content_type = "text/plain; version=0.0.4; charset=utf-8";
    return ROUTE_REPLY;
}

/* ---- Text tools -------------------------------------------------------------------------------------------- */

typedef struct tool_flags {
    int add_special, parse_special, with_pieces, add_generation_prompt;
} tool_flags;

#define AT(f) offsetof(tool_flags, f)
static const field tool_fields[] = {
    {"add_special", FIELD_BOOL, 0, 0, AT(add_special)},
    {"add_special_tokens", FIELD_BOOL, 0, 0, AT(add_special)},
    {"parse_special", FIELD_BOOL, 0, 0, AT(parse_special)},
    {"with_pieces", FIELD_BOOL, 0, 0, AT(with_pieces)},
    {"add_generation_prompt", FIELD_BOOL, 0, 0, AT(add_generation_prompt)},
};

/* The rendered conversation of a body, or NULL with the reply set. */
static char *render(call *c, const json_t *body, const tool_flags *f, size_t *n)
{
    json_t *messages, *tools, *extra;
    infer_error err = {0};
    char *text;
    if (field_get(c, body, "messages", JSON_ARRAY, &messages) < 0 ||
        field_get(c, body, "tools", JSON_ARRAY, &tools) < 0 ||
        field_get(c, body, "chat_template_kwargs", JSON_OBJECT, &extra) < 0)
        return NULL;
    if (chat_render(&c->server->chat, messages, tools, f->add_generation_prompt, extra, &text, n, &err) < 0) {
        respond_status(c, &err, "messages");
        return NULL;
    }
    return text;
}

static json_t *ids_json(const infer_tokenizer *tok, const int32_t *ids, size_t n, int with_pieces)
{
    char piece[512];
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        if (!with_pieces) {
            json_array_append_new(list, json_integer(ids[i]));
            continue;
        }
        size_t k = infer_tokenizer_token_bytes(tok, ids[i], piece, sizeof piece);
        if (k > sizeof piece)
            k = sizeof piece;
        json_t *text;
        if (utf8_valid(piece, k)) {
            text = json_stringn(piece, k);
        } else {
            text = json_array();
            for (size_t j = 0; j < k; j++)
                json_array_append_new(text, json_integer((unsigned char)piece[j]));
        }
        json_array_append_new(list, json_pack("{s:i, s:o}", "id", ids[i], "piece", text));
    }
    return list;
}

/* Takes "content" (llama.cpp's name), "prompt" (vLLM's) or "messages". */
static void tokenize(call *c, const json_t *body)
{
    const infer_tokenizer *tok = c->server->session.tokenizer;
    json_t *text;
    infer_error err = {0};
    int32_t *ids = NULL;
    size_t n_ids = 0, n;
    infer_status st;
    int vllm = json_object_get(body, "prompt") != NULL;
    tool_flags f = {.add_special = vllm, .parse_special = 1, .add_generation_prompt = 1};
    if (fields_read(c, body, tool_fields, sizeof tool_fields / sizeof tool_fields[0], &f) < 0)
        return;
    if (json_object_get(body, "messages")) {
        char *rendered = render(c, body, &f, &n);
        if (!rendered)
            return;
        st = chat_encode(tok, rendered, n, 1, 1, &ids, &n_ids, &err);
        infer_text_free(rendered);
    } else {
        const char *name = vllm ? "prompt" : "content";
        if (field_get(c, body, name, JSON_STRING, &text) < 0)
            return;
        if (!text) {
            respond_error(c, 400, "missing_required_parameter", "content", "Missing required parameter: 'content'.");
            return;
        }
        st = infer_tokenizer_encode(tok, json_string_value(text), json_string_length(text),
                                    (f.add_special ? INFER_ENCODE_ADD_SPECIAL : 0) |
                                        (f.parse_special ? INFER_ENCODE_PARSE_SPECIAL : 0),
                                    &ids, &n_ids, &err);
    }
    if (st < 0) {
        respond_status(c, &err, NULL);
        return;
    }
    respond_json(c, 200,
                 json_pack("{s:o, s:I, s:I}", "tokens", ids_json(tok, ids, n_ids, f.with_pieces), "count",
                           (json_int_t)n_ids, "max_model_len",
                           (json_int_t)infer_engine_ctx_size(c->server->session.engine)));
    infer_ids_free(ids);
}

static void detokenize(call *c, const json_t *body)
{
    const infer_tokenizer *tok = c->server->session.tokenizer;
    json_t *list, *v;
    infer_error err = {0};
    size_t i, n;
    char *text;
    if (field_get(c, body, "tokens", JSON_ARRAY, &list) < 0)
        return;
    if (!list) {
        respond_error(c, 400, "missing_required_parameter", "tokens", "Missing required parameter: 'tokens'.");
        return;
    }
    int32_t *ids = malloc((json_array_size(list) + 1) * sizeof *ids);
    if (!ids) {
        respond_error(c, 500, NULL, NULL, "out of memory");
        return;
    }
    json_array_foreach (list, i, v) {
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v)) {
            field_wrong_type(c, "tokens", "an array of integers", v);
            goto done;
        }
        if (id < 0 || id >= infer_tokenizer_n_tokens(tok)) {
            respond_error(c, 400, "invalid_value", "tokens", "Invalid 'tokens': %lld is no token id.", (long long)id);
            goto done;
        }
        ids[i] = (int32_t)id;
    }
    if (infer_tokenizer_decode(tok, ids, json_array_size(list), 0, &text, &n, &err) < 0) {
        respond_status(c, &err, "tokens");
        goto done;
    }
    respond_json(c, 200, json_pack("{s:o, s:o}", "content", json_stringn(text, n), "prompt", json_stringn(text, n)));
    infer_text_free(text);
done:
    free(ids);
}

static void apply_template(call *c, const json_t *body)
{
    tool_flags f = {.add_generation_prompt = 1};
    size_t n;
    if (fields_read(c, body, tool_fields, sizeof tool_fields / sizeof tool_fields[0], &f) < 0)
        return;
    char *text = render(c, body, &f, &n);
    if (!text)
        return;
    respond_json(c, 200, json_pack("{s:o}", "prompt", json_stringn(text, n)));
    infer_text_free(text);
}

static enum route_result with_body(call *c, void (*fn)(call *c, const json_t *body))
{
    json_t *body = respond_parse(c);
    if (body)
        fn(c, body);
    json_decref(body);
    return ROUTE_REPLY;
}

enum route_result api_tokenize(call *c)
{
    return with_body(c, tokenize);
}

enum route_result api_detokenize(call *c)
{
    return with_body(c, detokenize);
}

enum route_result api_apply_template(call *c)
{
    return with_body(c, apply_template);
}
