/*
 * Conversations of a file in ShareGPT's form: an array of {"conversations": [{"from", "value"}, …]}, or with "messages"
 * of {"role", "content"}. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "load.h"

enum speaker { NOBODY, USER, ASSISTANT };

/* Text of a message, NULL where it has none that can be sent on. */
static const char *message(const json_t *m, enum speaker *who)
{
    static const struct {
        const char *name;
        enum speaker who;
    } rows[] = {{"human", USER},          {"user", USER},      {"gpt", ASSISTANT}, {"chatgpt", ASSISTANT},
                {"assistant", ASSISTANT}, {"bing", ASSISTANT}, {"bard", ASSISTANT}};
    const char *from = json_string_value(json_object_get(m, "from"));
    const json_t *text = json_object_get(m, "value");
    *who = NOBODY;
    if (!from)
        from = json_string_value(json_object_get(m, "role"));
    if (!text)
        text = json_object_get(m, "content");
    for (size_t i = 0; from && i < sizeof rows / sizeof rows[0]; i++)
        if (!strcmp(from, rows[i].name))
            *who = rows[i].who;
    const char *s = json_string_value(text);
    return s && *s && strlen(s) == json_string_length(text) ? s : NULL;
}

static uint32_t length(const load_spec *spec, const load_words *w, const char *text)
{
    size_t n = strlen(text);
    uint32_t k = spec->tokenizer ? load_words_count(w, text, n) : n / 4 > 1 << 30 ? 1 << 30 : (uint32_t)(n / 4);
    return k ? k : 1;
}

/* Adds the conversation's questions that have answers, at most n_turns and what is missing to n_requests. A question
 * that is too long ends it. */
static infer_status add_conversation(const load_spec *spec, const load_words *w, const json_t *c, load_list *out,
                                     infer_error *err)
{
    const json_t *list = json_object_get(c, "conversations");
    if (!json_is_array(list))
        list = json_object_get(c, "messages");
    const uint32_t conversation = out->n_conversations;
    uint32_t turn = 0;
    enum speaker who, next;
    size_t i = 0, n = json_array_size(list);
    infer_status st = INFER_OK;
    /* Some begin with an answer, or with instructions: the first question is looked for. */
    while (i < n && (message(json_array_get(list, i), &who), who != USER))
        i++;
    for (; i + 1 < n && turn < spec->n_turns && out->n < spec->n_requests && st >= 0; i += 2) {
        const char *question = message(json_array_get(list, i), &who);
        const char *answer = message(json_array_get(list, i + 1), &next);
        if (!question || who != USER || !answer || next != ASSISTANT)
            break;
        load_request r = {.conversation = conversation, .turn = turn, .n_in = length(spec, w, question)};
        if (r.n_in > spec->max_in)
            break;
        r.n_out = spec->n_out ? spec->n_out : length(spec, w, answer);
        r.text = strdup(question);
        st = load_list_add(out, &r, err);
        turn++;
    }
    if (st >= 0 && !turn)
        out->n_left_out++;
    return st;
}

infer_status load_sharegpt_read(const load_spec *spec, const load_words *w, load_list *out, infer_error *err)
{
    json_error_t e;
    sbuf text = {0};
    infer_status st = sbuf_read_file(&text, spec->dataset, err);
    if (st < 0)
        return st;
    json_t *all = json_loadb(text.p ? text.p : "", text.n, JSON_ALLOW_NUL, &e);
    sbuf_free(&text);
    if (!all)
        return infer_error_set(err, INFER_E_BAD_FILE, "%s: line %d, column %d: %s", spec->dataset, e.line, e.column,
                               e.text);
    size_t n = json_array_size(all);
    size_t *order = n ? malloc(n * sizeof *order) : NULL;
    if (!json_is_array(all))
        st = infer_error_set(err, INFER_E_BAD_FILE, "%s: not an array of conversations", spec->dataset);
    else if (n && !order)
        st = infer_error_set(err, INFER_E_NO_MEMORY, "%s: out of memory", spec->dataset);
    uint64_t random = spec->seed;
    for (size_t i = 0; order && i < n; i++) { /* Fisher and Yates, from the inside out */
        size_t k = (size_t)(load_random(&random) % (i + 1));
        order[i] = order[k];
        order[k] = i;
    }
    for (size_t i = 0; order && i < n && out->n < spec->n_requests && st >= 0; i++)
        st = add_conversation(spec, w, json_array_get(all, order[i]), out, err);
    if (st >= 0 && !out->n)
        st = infer_error_set(err, INFER_E_BAD_FILE,
                             "%s: none of %zu entries is a conversation with a question of at most %u tokens and its "
                             "answer",
                             spec->dataset, n, spec->max_in);
    free(order);
    json_decref(all);
    return st;
}
