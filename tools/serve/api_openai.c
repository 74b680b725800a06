/*
 * OpenAI's chat and text completions and models: from a request's body to a submitted group.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <sys/random.h>

#include "field.h"
#include "gen.h"
#include "params.h"
#include "reply.h"
#include "respond.h"
#include "route.h"

#define MAX_CHOICES 128

/* ---- Common ------------------------------------------------------------------------------------------------ */

static int check_model(call *c, const json_t *body)
{
    json_t *model;
    if (field_get(c, body, "model", JSON_STRING, &model) < 0)
        return -1;
    if (model && c->server->strict_model && strcmp(json_string_value(model), c->server->model)) {
        respond_error(c, 404, "model_not_found", "model", "The model '%.200s' does not exist; this server has '%s'.",
                      json_string_value(model), c->server->model);
        return -1;
    }
    return 0;
}

static void name_group(gen_group *g, const char *prefix)
{
    uint64_t r[2] = {0, 0};
    if (getrandom(r, sizeof r, GRND_NONBLOCK) != sizeof r)
        r[0] = infer_engine_now();
    snprintf(g->id, sizeof g->id, "%s-%016llx%016llx", prefix, (unsigned long long)r[0], (unsigned long long)r[1]);
    g->created = (int64_t)time(NULL);
}

/* A prompt that cannot fit is refused here with its figures; the engine checks again. */
static int check_length(call *c, const gen_group *g)
{
    uint32_t ctx = infer_engine_ctx_size(c->server->session.engine);
    for (size_t i = 0; i < g->n_prompts; i++) {
        if (!g->prompts[i].n) {
            respond_error(c, 400, "invalid_value", g->chat ? "messages" : "prompt", "The prompt has no tokens.");
            return -1;
        }
        if (g->prompts[i].n + (g->max_tokens != 0) > ctx) {
            respond_error(c, 400, "context_length_exceeded", g->chat ? "messages" : "prompt",
                          "This model's maximum context length is %u tokens. However, your %s resulted in %zu tokens. "
                          "Please reduce the length.",
                          ctx, g->chat ? "messages" : "prompt", g->prompts[i].n);
            return -1;
        }
    }
    return 0;
}

static enum route_result submit(call *c)
{
    infer_error err = {0};
    gen_group *g = c->gens;
    if (check_length(c, g) < 0)
        return ROUTE_REPLY;
    int stream = g->stream; /* the group may be the pump's once submitted */
    c->finish = reply_finish;
    c->stream_next = reply_stream_next;
    if (gen_submit(c, &err) < 0) {
        if (err.status == INFER_E_TOO_LARGE && g->beam_width)
            respond_error(c, 400, "invalid_value", "best_of", "%s", err.text);
        else if (err.status == INFER_E_TOO_LARGE)
            respond_error(c, 400, "context_length_exceeded", g->chat ? "messages" : "prompt", "%s", err.text);
        else
            respond_status(c, &err, g->chat ? "messages" : "prompt");
        return ROUTE_REPLY;
    }
    if (!stream)
        return ROUTE_WAIT;
    c->status = 200;
    c->content_type = "text/event-stream";
    c->streams = 1;
    return ROUTE_REPLY;
}

/* ---- Chat -------------------------------------------------------------------------------------------------- */

static enum route_result chat_completions(call *c, const json_t *body)
{
    server *s = c->server;
    params p;
    json_t *messages, *extra;
    infer_error err = {0};
    if (check_model(c, body) < 0 || params_read(c, body, 1, &p) < 0 ||
        field_get(c, body, "messages", JSON_ARRAY, &messages) < 0 ||
        field_get(c, body, "chat_template_kwargs", JSON_OBJECT, &extra) < 0)
        return ROUTE_REPLY;
    if (!messages) {
        respond_error(c, 400, "missing_required_parameter", "messages", "Missing required parameter: 'messages'.");
        return ROUTE_REPLY;
    }
    gen_group *g = gen_new(c, 1, params_choices(&p));
    if (!g) {
        respond_error(c, 500, NULL, NULL, "out of memory");
        return ROUTE_REPLY;
    }
    g->chat = 1;
    g->n_told = (size_t)p.n;
    name_group(g, "chatcmpl");
    if (params_apply(c, body, &p) < 0)
        return ROUTE_REPLY;
    char *text;
    size_t n;
    infer_status st = chat_render(&s->chat, messages, NULL, p.add_generation_prompt, extra, &text, &n, &err);
    if (st >= 0) {
        st = chat_encode(s->session.tokenizer, text, n, 1, 1, &g->prompts[0].ids, &g->prompts[0].n, &err);
        infer_text_free(text);
    }
    if (st < 0) {
        respond_status(c, &err, "messages");
        return ROUTE_REPLY;
    }
    return submit(c);
}

enum route_result api_chat_completions(call *c)
{
    json_t *body = respond_parse(c);
    enum route_result r = body ? chat_completions(c, body) : ROUTE_REPLY;
    json_decref(body);
    return r;
}

/* ---- Text -------------------------------------------------------------------------------------------------- */

static const char prompt_types[] = "a string, an array of strings, an array of token ids or an array of such arrays";

static int out_of_memory(call *c)
{
    respond_error(c, 500, NULL, NULL, "out of memory");
    return -1;
}

/* A prompt given as token ids; with echo their text. */
static int read_ids(call *c, const json_t *list, int echo, gen_prompt *p)
{
    const infer_tokenizer *tok = c->server->session.tokenizer;
    infer_error err = {0};
    json_t *v;
    size_t i;
    if (!(p->ids = malloc((json_array_size(list) + 1) * sizeof *p->ids)))
        return out_of_memory(c);
    p->ids_from_malloc = 1;
    json_array_foreach (list, i, v) {
        if (!json_is_integer(v))
            return field_wrong_type(c, "prompt", prompt_types, v);
        json_int_t id = json_integer_value(v);
        if (id < 0 || id >= infer_tokenizer_n_tokens(tok)) {
            respond_error(c, 400, "invalid_value", "prompt", "Invalid 'prompt': %lld is no token id.", (long long)id);
            return -1;
        }
        p->ids[p->n++] = (int32_t)id;
    }
    if (echo && infer_tokenizer_decode(tok, p->ids, p->n, 0, &p->text, &p->n_text, &err) < 0) {
        respond_status(c, &err, "prompt");
        return -1;
    }
    return 0;
}

static int read_text(call *c, const json_t *v, const params *p, gen_prompt *to)
{
    const char *text = json_string_value(v);
    size_t n = json_string_length(v);
    infer_error err = {0};
    if (chat_encode(c->server->session.tokenizer, text, n, p->add_special_tokens, 0, &to->ids, &to->n, &err) < 0) {
        respond_status(c, &err, "prompt");
        return -1;
    }
    if (p->echo) {
        if (!(to->text = malloc(n + 1)))
            return out_of_memory(c);
        to->text_from_malloc = 1;
        memcpy(to->text, text, n);
        to->text[n] = 0;
        to->n_text = n;
    }
    return 0;
}

static int read_prompt(call *c, const json_t *v, const params *p, gen_prompt *to)
{
    if (json_is_string(v))
        return read_text(c, v, p, to);
    if (json_is_array(v))
        return read_ids(c, v, p->echo, to);
    return field_wrong_type(c, "prompt", prompt_types, v);
}

static enum route_result completions(call *c, const json_t *body)
{
    params p;
    if (check_model(c, body) < 0 || params_read(c, body, 0, &p) < 0)
        return ROUTE_REPLY;
    json_t *prompt = json_object_get(body, "prompt");
    if (!prompt || json_is_null(prompt)) {
        respond_error(c, 400, "missing_required_parameter", "prompt", "Missing required parameter: 'prompt'.");
        return ROUTE_REPLY;
    }
    /* An array of integers is one prompt; any other array is a list of prompts. */
    int one = !json_is_array(prompt) || json_is_integer(json_array_get(prompt, 0));
    size_t n = one ? 1 : json_array_size(prompt);
    const size_t each = params_choices(&p);
    if (!n || n * each > MAX_CHOICES) {
        respond_error(c, 400, "invalid_value", "prompt",
                      "Invalid 'prompt': %zu prompts for %zu choices each; there may "
                      "be 1 to %d choices in all.",
                      n, each, MAX_CHOICES);
        return ROUTE_REPLY;
    }
    gen_group *g = gen_new(c, n, each);
    if (!g) {
        out_of_memory(c);
        return ROUTE_REPLY;
    }
    g->n_told = (size_t)p.n;
    name_group(g, "cmpl");
    if (params_apply(c, body, &p) < 0)
        return ROUTE_REPLY;
    for (size_t i = 0; i < n; i++)
        if (read_prompt(c, one ? prompt : json_array_get(prompt, i), &p, &g->prompts[i]) < 0)
            return ROUTE_REPLY;
    return submit(c);
}

enum route_result api_completions(call *c)
{
    json_t *body = respond_parse(c);
    enum route_result r = body ? completions(c, body) : ROUTE_REPLY;
    json_decref(body);
    return r;
}

/* ---- Models ------------------------------------------------------------------------------------------------ */

static json_t *model_json(const server *s)
{
    const infer_file_info *in = &s->session.info;
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:I, s:{s:s, s:s, s:I, s:I, s:I, s:I, s:I}}", "id", s->model, "object",
                     "model", "created", (json_int_t)s->created, "owned_by", "infer", "root", s->model, "max_model_len",
                     (json_int_t)infer_engine_ctx_size(s->session.engine), "meta", "arch", in->arch, "type", in->type,
                     "n_params", (json_int_t)in->n_params, "size", (json_int_t)in->tensor_bytes, "n_vocab",
                     (json_int_t)in->n_vocab, "n_embd", (json_int_t)in->n_embd, "n_ctx_train",
                     (json_int_t)in->n_ctx_train);
}

enum route_result api_models(call *c)
{
    respond_json(c, 200, json_pack("{s:s, s:[o]}", "object", "list", "data", model_json(c->server)));
    return ROUTE_REPLY;
}

enum route_result api_model(call *c)
{
    if (strcmp(c->path_rest, c->server->model))
        respond_error(c, 404, "model_not_found", "model", "The model '%.200s' does not exist", c->path_rest);
    else
        respond_json(c, 200, model_json(c->server));
    return ROUTE_REPLY;
}
