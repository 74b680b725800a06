/*
 * Completion parameters: a table for the plain ones, a function each for stop, logit_bias and what is refused.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <sys/random.h>

#include "field.h"
#include "gen.h"
#include "params.h"
#include "respond.h"

#define I31   2147483647.0
#define I63   9223372036854775807.0
#define AT(f) offsetof(params, f)

static const field shared[] = {
    {"temperature", FIELD_NUMBER, 0, 2, AT(temperature)},
    {"top_p", FIELD_NUMBER, 0, 1, AT(top_p)},
    {"min_p", FIELD_NUMBER, 0, 0.9999, AT(min_p)},
    {"top_k", FIELD_INT, -1, I31, AT(top_k)},
    {"presence_penalty", FIELD_NUMBER, -2, 2, AT(presence_penalty)},
    {"frequency_penalty", FIELD_NUMBER, -2, 2, AT(frequency_penalty)},
    {"repetition_penalty", FIELD_NUMBER, 0.01, 100, AT(repetition_penalty)},
    {"seed", FIELD_INT, -I63, I63, AT(seed)},
    {"n", FIELD_INT, 1, 128, AT(n)},
    {"best_of", FIELD_INT, 1, 20, AT(best_of)},
    {"use_beam_search", FIELD_BOOL, 0, 0, AT(use_beam_search)},
    {"length_penalty", FIELD_NUMBER, -10, 10, AT(length_penalty)},
    {"min_tokens", FIELD_INT, 0, I31, AT(min_tokens)},
    {"priority", FIELD_INT, -I31, I31, AT(priority)},
    {"stream", FIELD_BOOL, 0, 0, AT(stream)},
    {"ignore_eos", FIELD_BOOL, 0, 0, AT(ignore_eos)},
    {"add_special_tokens", FIELD_BOOL, 0, 0, AT(add_special_tokens)},
};
static const field for_chat[] = {
    {"max_tokens", FIELD_INT, 1, I31, AT(max_tokens)},
    {"max_completion_tokens", FIELD_INT, 1, I31, AT(max_completion_tokens)},
    {"logprobs", FIELD_BOOL, 0, 0, AT(logprobs_on)},
    {"top_logprobs", FIELD_INT, 0, 20, AT(top_logprobs)},
    {"add_generation_prompt", FIELD_BOOL, 0, 0, AT(add_generation_prompt)},
};
static const field for_text[] = {
    {"max_tokens", FIELD_INT, 0, I31, AT(max_tokens)},
    {"logprobs", FIELD_INT, 0, 5, AT(logprobs)},
    {"echo", FIELD_BOOL, 0, 0, AT(echo)},
};
static const field of_stream[] = {{"include_usage", FIELD_BOOL, 0, 0, AT(include_usage)}};
#define COUNT(a) (sizeof a / sizeof a[0])

static int not_built(call *c, const char *name)
{
    respond_error(c, 400, "unsupported_parameter", name, "Unsupported parameter: '%s' is not built yet.", name);
    return -1;
}

/* What would change the answer and is not built is refused, never ignored. */
static int refuse(call *c, const json_t *body, int chat)
{
    static const char *const names[] = {
        "guided_json", "guided_regex",           "guided_choice",         "guided_grammar", "grammar",
        "suffix",      "continue_final_message", "structured_outputs",    "functions",      "function_call",
        "audio",       "prompt_logprobs",        "truncate_prompt_tokens"};
    for (size_t i = 0; i < COUNT(names); i++) {
        const json_t *v = json_object_get(body, names[i]);
        if (v && !json_is_null(v) && !json_is_false(v) && !(json_is_string(v) && !json_string_length(v)))
            return not_built(c, names[i]);
    }
    json_t *format, *type, *tools, *modalities;
    if (field_get(c, body, "response_format", JSON_OBJECT, &format) < 0)
        return -1;
    type = json_object_get(format, "type");
    if (format && !json_is_string(type))
        return field_wrong_type(c, "response_format.type", "a string", type ? type : json_null());
    if (format && strcmp(json_string_value(type), "text"))
        return not_built(c, "response_format");
    if (!chat)
        return 0;
    if (field_get(c, body, "tools", JSON_ARRAY, &tools) < 0 ||
        field_get(c, body, "modalities", JSON_ARRAY, &modalities) < 0)
        return -1;
    const char *choice = json_string_value(json_object_get(body, "tool_choice"));
    if (tools && json_array_size(tools) && !(choice && !strcmp(choice, "none")))
        return not_built(c, "tools");
    size_t i;
    json_t *m;
    json_array_foreach (modalities, i, m)
        if (!json_is_string(m) || strcmp(json_string_value(m), "text"))
            return not_built(c, "modalities");
    return 0;
}

/* false, true or "never". */
static int read_early_stopping(call *c, const json_t *body, params *p)
{
    const json_t *v = json_object_get(body, "early_stopping");
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_boolean(v) && !(json_is_string(v) && !strcmp(json_string_value(v), "never")))
        return field_wrong_type(c, "early_stopping", "a boolean or \"never\"", v);
    p->early_stopping = json_is_string(v) ? INFER_BEAM_STOP_NEVER
                        : json_is_true(v) ? INFER_BEAM_STOP_FIRST
                                          : INFER_BEAM_STOP_LIKELY;
    return 0;
}

/* Beams are greedy, and no hypothesis is final before the end. */
static int check_beams(call *c, const json_t *body, params *p)
{
    const json_t *stop = json_object_get(body, "stop"), *t = json_object_get(body, "temperature");
    const int64_t width = p->best_of ? p->best_of : p->n;
    const struct {
        const char *name, *must;
        int wrong;
    } rows[] = {
        {"stream", "be false: hypotheses are not final until the end", p->stream},
        {"temperature", "be 0 or absent", t && !json_is_null(t) && p->temperature != 0},
        {p->best_of ? "best_of" : "n", "be at most 10", width > INFER_MAX_BEAMS},
        {"logprobs", "be absent", p->logprobs_on || p->logprobs >= 0},
        {"presence_penalty", "be 0", p->presence_penalty != 0},
        {"frequency_penalty", "be 0", p->frequency_penalty != 0},
        {"repetition_penalty", "be 1", p->repetition_penalty != 1},
        {"max_tokens", "be at least 1", p->max_tokens == 0},
        {"stop", "be absent", json_array_size(stop) || json_string_length(stop)},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        if (rows[i].wrong) {
            respond_error(c, 400, "invalid_value", rows[i].name, "Invalid '%s': with 'use_beam_search' it must %s.",
                          rows[i].name, rows[i].must);
            return -1;
        }
    }
    p->temperature = 0;
    return 0;
}

int params_read(call *c, const json_t *body, int chat, params *p)
{
    *p = (params){.temperature = 1,
                  .top_p = 1,
                  .repetition_penalty = 1,
                  .n = 1,
                  .length_penalty = 1,
                  .max_tokens = chat ? -1 : 16,
                  .max_completion_tokens = -1,
                  .logprobs = -1,
                  .top_logprobs = -1,
                  .add_generation_prompt = 1,
                  .add_special_tokens = 1};
    if (fields_read(c, body, shared, COUNT(shared), p) < 0 ||
        fields_read(c, body, chat ? for_chat : for_text, chat ? COUNT(for_chat) : COUNT(for_text), p) < 0 ||
        read_early_stopping(c, body, p) < 0 || refuse(c, body, chat) < 0)
        return -1;
    json_t *options, *seed = json_object_get(body, "seed");
    if (field_get(c, body, "stream_options", JSON_OBJECT, &options) < 0)
        return -1;
    if (options && !p->stream) {
        respond_error(c, 400, "invalid_value", "stream_options",
                      "The 'stream_options' parameter is only allowed when 'stream' is enabled.");
        return -1;
    }
    if (options && fields_read(c, options, of_stream, 1, p) < 0)
        return -1;
    if (p->max_completion_tokens >= 0)
        p->max_tokens = p->max_completion_tokens;
    if (p->best_of && (p->best_of < p->n || (p->stream && p->best_of != p->n))) {
        respond_error(c, 400, "invalid_value", "best_of",
                      p->best_of < p->n ? "'best_of' must not be less than 'n'."
                                        : "'best_of' must be 'n' where the choices are streamed.");
        return -1;
    }
    if (p->use_beam_search && check_beams(c, body, p) < 0)
        return -1;
    if (p->top_logprobs >= 0 && !p->logprobs_on) {
        respond_error(c, 400, "invalid_value", "top_logprobs",
                      "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.");
        return -1;
    }
    p->has_seed = seed && !json_is_null(seed);
    if (!p->has_seed && opt_set(c->server->o, OPT_SEED)) {
        p->seed = opt_int(c->server->o, OPT_SEED);
        p->has_seed = 1;
    }
    if (!p->has_seed && getrandom(&p->seed, sizeof p->seed, 0) != sizeof p->seed)
        p->seed = (int64_t)infer_engine_now();
    return 0;
}

/* ---- Lists ------------------------------------------------------------------------------------------------- */

static int out_of_memory(call *c)
{
    respond_error(c, 500, NULL, NULL, "out of memory");
    return -1;
}

static int add_stop(call *c, gen_group *g, const json_t *v)
{
    if (!json_is_string(v))
        return field_wrong_type(c, "stop", "a string or an array of strings", v);
    size_t n = json_string_length(v);
    if (!n)
        return 0;
    if (n > 256 || memchr(json_string_value(v), 0, n)) {
        respond_error(c, 400, "invalid_value", "stop",
                      "Invalid 'stop': a stop string has at most 256 bytes and no NUL.");
        return -1;
    }
    if (!(g->stop[g->n_stop] = strdup(json_string_value(v))))
        return out_of_memory(c);
    g->n_stop++;
    return 0;
}

static int read_stop(call *c, const json_t *body, gen_group *g)
{
    json_t *v = json_object_get(body, "stop"), *item;
    size_t i;
    if (!v || json_is_null(v))
        return 0;
    if (json_array_size(v) > 16) {
        respond_error(c, 400, "array_above_max_length", "stop", "Invalid 'stop': at most 16 strings.");
        return -1;
    }
    if (!(g->stop = calloc(16, sizeof *g->stop)))
        return out_of_memory(c);
    if (!json_is_array(v))
        return add_stop(c, g, v);
    json_array_foreach (v, i, item)
        if (add_stop(c, g, item) < 0)
            return -1;
    return 0;
}

static int read_stop_ids(call *c, const json_t *body, gen_group *g)
{
    json_t *v, *item;
    size_t i;
    if (field_get(c, body, "stop_token_ids", JSON_ARRAY, &v) < 0)
        return -1;
    if (!v || !json_array_size(v))
        return 0;
    if (json_array_size(v) > 256) { /* what the engine takes */
        respond_error(c, 400, "array_above_max_length", "stop_token_ids", "Invalid 'stop_token_ids': at most 256.");
        return -1;
    }
    if (!(g->stop_ids = calloc(json_array_size(v), sizeof *g->stop_ids)))
        return out_of_memory(c);
    json_array_foreach (v, i, item) {
        if (!json_is_integer(item))
            return field_wrong_type(c, "stop_token_ids", "an array of integers", item);
        json_int_t id = json_integer_value(item);
        if (id < 0 || id >= infer_tokenizer_n_tokens(c->server->session.tokenizer)) {
            respond_error(c, 400, "invalid_value", "stop_token_ids", "Invalid 'stop_token_ids': %lld is no token id.",
                          (long long)id);
            return -1;
        }
        g->stop_ids[g->n_stop_ids++] = (int32_t)id;
    }
    return 0;
}

static int read_bias(call *c, json_t *body, gen_group *g)
{
    json_t *v, *value;
    const char *key;
    if (field_get(c, body, "logit_bias", JSON_OBJECT, &v) < 0)
        return -1;
    size_t n = json_object_size(v);
    if (!v || !n)
        return 0;
    if (n > 300) { /* what the engine takes */
        respond_error(c, 400, "invalid_value", "logit_bias", "Invalid 'logit_bias': at most 300 entries.");
        return -1;
    }
    infer_sample_bias *bias = calloc(n, sizeof *bias);
    if (!bias)
        return out_of_memory(c);
    g->sampling.bias = bias;
    uint32_t n_tokens = infer_tokenizer_n_tokens(c->server->session.tokenizer);
    json_object_foreach (v, key, value) {
        char *end;
        long id = strtol(key, &end, 10);
        double b = json_number_value(value);
        if (end == key || *end || id < 0 || (unsigned long)id >= n_tokens) {
            respond_error(c, 400, "invalid_value", "logit_bias", "Invalid key in 'logit_bias': '%.40s' is no token id.",
                          key);
            return -1;
        }
        if (!json_is_number(value) || b < -100 || b > 100) {
            respond_error(c, 400, "invalid_value", "logit_bias",
                          "Invalid 'logit_bias': the value for %ld must be a number from -100 to 100.", id);
            return -1;
        }
        bias[g->sampling.n_bias++] = (infer_sample_bias){.id = (int32_t)id, .bias = (float)b};
    }
    return 0;
}

static int read_salt(call *c, const json_t *body, gen_group *g)
{
    json_t *v;
    if (field_get(c, body, "cache_salt", JSON_STRING, &v) < 0)
        return -1;
    const char *salt = json_string_value(v);
    if (!v)
        return 0;
    if (!*salt || strlen(salt) != json_string_length(v)) {
        respond_error(c, 400, "invalid_value", "cache_salt",
                      "Invalid 'cache_salt': a salt is a string that is not empty and has no NUL.");
        return -1;
    }
    return (g->cache_salt = strdup(salt)) ? 0 : out_of_memory(c);
}

size_t params_choices(const params *p)
{
    return (size_t)(p->best_of && !p->use_beam_search ? p->best_of : p->n); /* beams are the engine's affair */
}

int params_apply(call *c, const json_t *body, const params *p)
{
    gen_group *g = c->gens;
    infer_sampling *s = &g->sampling;
    s->temperature = (float)p->temperature;
    s->top_p = p->top_p > 0 ? (float)p->top_p : 1e-9f; /* 0: only the likeliest */
    s->min_p = (float)p->min_p;
    s->top_k = p->top_k > 0 ? (int32_t)p->top_k : 0;
    s->repetition_penalty = (float)p->repetition_penalty;
    s->presence_penalty = (float)p->presence_penalty;
    s->frequency_penalty = (float)p->frequency_penalty;
    s->seed = (uint64_t)p->seed;
    g->beam_width = (uint32_t)(p->use_beam_search ? (p->best_of ? p->best_of : p->n) : 0);
    g->length_penalty = (float)p->length_penalty;
    g->early_stopping = p->early_stopping;
    g->max_tokens = p->max_tokens;
    g->min_tokens = p->min_tokens;
    g->priority = (int32_t)p->priority;
    g->flags = p->ignore_eos ? INFER_REQ_IGNORE_EOS : 0;
    g->stream = p->stream;
    g->include_usage = p->include_usage;
    g->echo = p->echo;
    g->logprobs = p->logprobs_on || p->logprobs >= 0;
    g->n_top =
        (uint32_t)(p->logprobs_on ? (p->top_logprobs > 0 ? p->top_logprobs : 0) : (p->logprobs > 0 ? p->logprobs : 0));
    return read_salt(c, body, g) < 0 || read_stop(c, body, g) < 0 || read_stop_ids(c, body, g) < 0 ||
                   read_bias(c, (json_t *)(uintptr_t)body, g) < 0
               ? -1
               : 0;
}
