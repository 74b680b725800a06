/*
 * Chat templates and BOS handling for the programs. Parses no model output.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "chat.h"

infer_status chat_create(chat_format *c, const opts *o, infer_file *file, const infer_tokenizer *tok, infer_error *err)
{
    memset(c, 0, sizeof *c);
    c->tokenizer = tok;
    sbuf b = {0};
    infer_status st = INFER_OK;
    const char *path = opt_str(o, OPT_CHAT_TEMPLATE_FILE), *text = opt_str(o, OPT_CHAT_TEMPLATE), *from = "the model's";
    if (path) {
        from = path;
        if ((st = sbuf_read_file(&b, path, err)) < 0)
            goto fail;
    } else if (text) {
        from = "--chat-template";
        sbuf_puts(&b, text);
    } else {
        size_t n;
        if (!(text = infer_file_chat_template(file, NULL, &n)))
            return INFER_OK;
        sbuf_add(&b, text, n);
    }
    if (b.failed || !b.p) {
        st = infer_error_set(err, INFER_E_NO_MEMORY, "reading the chat template: out of memory");
        goto fail;
    }
    if ((st = infer_template_create(b.p, b.n, &c->tmpl, err)) < 0) {
        infer_error_prefix(err, st, "chat template (%s)", from);
        goto fail;
    }
    c->source = b.p;
    c->source_n = b.n;
    c->has_developer = strstr(b.p, "developer") != NULL;
    return INFER_OK;
fail:
    sbuf_free(&b);
    return st;
}

void chat_destroy(chat_format *c)
{
    if (c->tmpl)
        infer_template_destroy(c->tmpl);
    free(c->source);
    memset(c, 0, sizeof *c);
}

/* The text parts of a content array, joined by newlines; NULL with err for another kind of part. */
static json_t *join_parts(const json_t *parts, size_t message, infer_error *err)
{
    sbuf b = {0};
    json_t *out = NULL, *part;
    size_t i;
    json_array_foreach (parts, i, part) {
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *text = json_object_get(part, "text");
        if (!type || strcmp(type, "text") || !json_is_string(text)) {
            infer_error_set(err, INFER_E_INVALID,
                            "messages[%zu].content[%zu]: only parts of type text are accepted here", message, i);
            goto done;
        }
        if (i)
            sbuf_puts(&b, "\n");
        sbuf_add(&b, json_string_value(text), json_string_length(text));
    }
    if (!b.failed)
        out = json_stringn(b.p ? b.p : "", b.n);
    if (!out)
        infer_error_set(err, INFER_E_NO_MEMORY, "reading messages: out of memory");
done:
    sbuf_free(&b);
    return out;
}

/* A copy of one message with plain text as content. */
static json_t *plain_message(const chat_format *c, const json_t *m, size_t i, infer_error *err)
{
    const char *role = json_string_value(json_object_get(m, "role"));
    if (!json_is_object(m) || !role) {
        infer_error_set(err, INFER_E_INVALID, "messages[%zu]: must be an object with a role", i);
        return NULL;
    }
    const json_t *content = json_object_get(m, "content");
    if (content && !json_is_string(content) && !json_is_null(content) && !json_is_array(content)) {
        infer_error_set(err, INFER_E_INVALID, "messages[%zu].content: must be text or an array of parts", i);
        return NULL;
    }
    if (!content && !json_object_get(m, "tool_calls")) {
        infer_error_set(err, INFER_E_INVALID, "messages[%zu].content: is missing", i);
        return NULL;
    }
    json_t *copy = json_copy((json_t *)(uintptr_t)m);
    if (!copy) {
        infer_error_set(err, INFER_E_NO_MEMORY, "reading messages: out of memory");
        return NULL;
    }
    if (json_is_array(content)) {
        json_t *text = join_parts(content, i, err);
        if (!text || json_object_set_new(copy, "content", text) < 0) {
            json_decref(copy);
            return NULL;
        }
    }
    if (!strcmp(role, "developer") && !c->has_developer)
        json_object_set_new(copy, "role", json_string("system"));
    return copy;
}

static int set_token_text(json_t *vars, const char *name, const infer_tokenizer *tok, int32_t id)
{
    size_t n = 0;
    const char *s = id >= 0 ? infer_tokenizer_piece(tok, id, &n) : NULL;
    return json_object_set_new(vars, name, json_stringn(s ? s : "", s ? n : 0));
}

infer_status chat_render(const chat_format *c, const json_t *messages, const json_t *tools, int add_generation_prompt,
                         const json_t *extra, char **out, size_t *n, infer_error *err)
{
    if (!c->tmpl)
        return infer_error_set(err, INFER_E_INVALID,
                               "this model has no chat template (give one with "
                               "--chat-template-file, or use plain completions)");
    if (!json_is_array(messages) || !json_array_size(messages))
        return infer_error_set(err, INFER_E_INVALID, "messages: must be an array of at least one message");
    infer_status st = INFER_OK;
    sbuf text = {0};
    json_t *list = json_array(), *vars = json_object(), *m, *copy;
    size_t i;
    if (!list || !vars)
        goto memory;
    json_array_foreach (messages, i, m) {
        infer_error why = {0};
        if (!(copy = plain_message(c, m, i, &why))) {
            st = infer_error_set(err, why.status ? why.status : INFER_E_NO_MEMORY, "%s", why.text);
            goto done;
        }
        if (json_array_append_new(list, copy) < 0)
            goto memory;
    }
    /* The variables that transformers gives a template: tools and documents are None, not undefined. */
    if (json_object_set(vars, "messages", list) < 0 ||
        json_object_set_new(vars, "tools", tools ? json_deep_copy(tools) : json_null()) < 0 ||
        json_object_set_new(vars, "documents", json_null()) < 0 ||
        json_object_set_new(vars, "add_generation_prompt", json_boolean(add_generation_prompt)) < 0 ||
        set_token_text(vars, "bos_token", c->tokenizer, infer_tokenizer_bos(c->tokenizer)) < 0 ||
        set_token_text(vars, "eos_token", c->tokenizer, infer_tokenizer_eos(c->tokenizer)) < 0 ||
        (extra && json_object_update(vars, (json_t *)(uintptr_t)extra) < 0) ||
        json_dump_callback(vars, sbuf_json, &text, JSON_COMPACT) < 0)
        goto memory;
    st = infer_template_render(c->tmpl, text.p, text.n, NULL, out, n, err);
    goto done;
memory:
    st = infer_error_set(err, INFER_E_NO_MEMORY, "rendering the chat template: out of memory");
done:
    json_decref(list);
    json_decref(vars);
    sbuf_free(&text);
    return st;
}

int chat_adds_bos(const infer_tokenizer *tok)
{
    int32_t *ids = NULL, bos = infer_tokenizer_bos(tok);
    size_t n = 0;
    int adds = bos >= 0 && infer_tokenizer_encode(tok, "", 0, INFER_ENCODE_ADD_SPECIAL, &ids, &n, NULL) >= 0 && n &&
               ids[0] == bos;
    if (ids)
        infer_ids_free(ids);
    return adds;
}

infer_status chat_encode(const infer_tokenizer *tok, const char *text, size_t n, int add_special, int rendered,
                         int32_t **ids, size_t *n_ids, infer_error *err)
{
    int32_t bos = infer_tokenizer_bos(tok), eos = infer_tokenizer_eos(tok);
    uint32_t flags = INFER_ENCODE_PARSE_SPECIAL | (add_special ? INFER_ENCODE_ADD_SPECIAL : 0);
    size_t k = 0;
    const char *piece = bos >= 0 ? infer_tokenizer_piece(tok, bos, &k) : NULL;
    int stated = piece && k && n >= k && !memcmp(text, piece, k);
    infer_status st = infer_tokenizer_encode(tok, text, n, flags, ids, n_ids, err);
    if (st < 0 || !add_special)
        return st;
    if (stated && *n_ids > 1 && (*ids)[0] == bos && (*ids)[1] == bos)
        memmove(*ids, *ids + 1, --*n_ids * sizeof **ids);
    /* An EOS that the tokenizer adds would end the turn that the template opened. */
    piece = eos >= 0 ? infer_tokenizer_piece(tok, eos, &k) : NULL;
    if (rendered && piece && *n_ids > 1 && (*ids)[*n_ids - 1] == eos && !(n >= k && !memcmp(text + n - k, piece, k)))
        --*n_ids;
    return st;
}
