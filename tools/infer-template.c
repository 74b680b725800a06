/*
 * infer-template: renders a model's chat template, a line of JSON for a conversation, so that it can be compared with a
 * reference. Changes nothing in what it is given: no message is checked or rewritten.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <unistd.h>

#include <infer/infer.h>

#include "cli.h"
#include "lines.h"
#include "opt.h"
#include "sbuf.h"

static const cli_program program = {
    "infer-template",
    PROG_TEMPLATE,
    "infer-template (-m MODEL | --config tokenizer_config.json | --template FILE) [--date YYYY-MM-DD]",
    "Reads {\"messages\", \"tools\", \"add_generation_prompt\", \"extra\"} a line, answers {\"prompt\"} or "
    "{\"error\"}.",
    0,
    0,
};

typedef struct templates {
    infer_template *usual, *tools; /* tools: for conversations with tools; NULL: the usual one */
    json_t *vars;                  /* texts of special tokens by name */
    infer_template_options opt;
} templates;

static infer_status no_memory(const char *what, infer_error *err)
{
    return infer_error_set(err, INFER_E_NO_MEMORY, "%s: out of memory", what);
}

static infer_status compile(const char *what, const char *src, size_t n, infer_template **out, infer_error *err)
{
    infer_status s = infer_template_create(src, n, out, err);
    return s == INFER_OK ? s : infer_error_prefix(err, s, "%s", what);
}

/* ---- Where templates come from ------------------------------------------------------------------------------- */

static infer_status load_file(const char *path, infer_template **out, infer_error *err)
{
    sbuf b = {0};
    infer_status s = sbuf_read_file(&b, path, err);
    if (s == INFER_OK)
        s = b.failed ? no_memory(path, err) : compile(path, b.p ? b.p : "", b.n, out, err);
    sbuf_free(&b);
    return s;
}

static infer_status load_gguf(const char *path, templates *t, infer_error *err)
{
    infer_chat_source c;
    infer_status s = infer_chat_source_open(path, &c, err);
    if (s != INFER_OK)
        return s;
    if (!c.source)
        s = infer_error_set(err, INFER_E_NOT_FOUND, "%s: the file has no chat template", path);
    if (s == INFER_OK)
        s = compile(path, c.source, c.source_n, &t->usual, err);
    if (s == INFER_OK && c.tool_use)
        s = compile(path, c.tool_use, c.tool_use_n, &t->tools, err);
    if (s == INFER_OK && ((c.bos && json_object_set_new(t->vars, "bos_token", json_stringn(c.bos, c.bos_n)) < 0) ||
                          (c.eos && json_object_set_new(t->vars, "eos_token", json_stringn(c.eos, c.eos_n)) < 0)))
        s = no_memory(path, err);
    infer_chat_source_free(&c);
    return s;
}

/* A template of the configuration: text, or a list of {name, template}. */
static infer_status load_chat_template(const char *path, const json_t *ct, templates *t, infer_error *err)
{
    size_t i;
    json_t *row;
    if (json_is_string(ct))
        return compile(path, json_string_value(ct), json_string_length(ct), &t->usual, err);
    json_array_foreach (ct, i, row) {
        const json_t *text = json_object_get(row, "template");
        const char *name = json_string_value(json_object_get(row, "name"));
        if (!name || !json_is_string(text))
            return infer_error_set(err, INFER_E_BAD_FILE, "%s: chat_template[%zu]: needs a name and a template", path,
                                   i);
        infer_template **to = !strcmp(name, "default") ? &t->usual : !strcmp(name, "tool_use") ? &t->tools : NULL;
        infer_status s = INFER_OK;
        if (to && !*to)
            s = compile(path, json_string_value(text), json_string_length(text), to, err);
        if (s != INFER_OK)
            return s;
    }
    return t->usual ? INFER_OK
                    : infer_error_set(err, INFER_E_BAD_FILE, "%s: chat_template: no template named \"default\"", path);
}

static infer_status load_config(const char *path, templates *t, infer_error *err)
{
    static const char *const special[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                          "pad_token", "cls_token", "mask_token"};
    sbuf text = {0}, beside = {0};
    json_error_t e;
    json_t *root = NULL;
    infer_status s = sbuf_read_file(&text, path, err);
    if (s != INFER_OK)
        return s;
    /* Numbers such as model_max_length = 10^30 are not looked at. */
    root = json_loadb(text.p ? text.p : "", text.n, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &e);
    if (!json_is_object(root)) {
        s = infer_error_set(err, INFER_E_BAD_FILE, "%s: not a JSON object: %s", path, root ? "another value" : e.text);
        goto out;
    }
    for (size_t i = 0; i < sizeof special / sizeof special[0]; i++) {
        json_t *v = json_object_get(root, special[i]);
        if (json_is_object(v))
            v = json_object_get(v, "content");
        if (json_is_string(v) && json_object_set(t->vars, special[i], v) < 0) {
            s = no_memory(path, err);
            goto out;
        }
    }
    const json_t *ct = json_object_get(root, "chat_template");
    if (json_is_string(ct) || json_is_array(ct)) {
        s = load_chat_template(path, ct, t, err);
        goto out;
    }
    const char *slash = strrchr(path, '/');
    sbuf_add(&beside, path, slash ? (size_t)(slash - path) + 1 : 0);
    sbuf_puts(&beside, "chat_template.jinja");
    if (beside.failed)
        s = no_memory(path, err);
    else if (access(beside.p, F_OK) != 0)
        s = infer_error_set(err, INFER_E_NOT_FOUND, "%s: no chat_template, and no chat_template.jinja beside it", path);
    else
        s = load_file(beside.p, &t->usual, err);
out:
    json_decref(root);
    sbuf_free(&text);
    sbuf_free(&beside);
    return s;
}

static infer_status load(const opts *o, templates *t, infer_error *err)
{
    /* A model without one of them has an empty text there, as infer-run and infer-serve have it. */
    if (!(t->vars = json_pack("{s:s, s:s}", "bos_token", "", "eos_token", "")))
        return no_memory("variables", err);
    if (opt_set(o, OPT_MODEL))
        return load_gguf(opt_str(o, OPT_MODEL), t, err);
    if (opt_set(o, OPT_TOKENIZER_CONFIG))
        return load_config(opt_str(o, OPT_TOKENIZER_CONFIG), t, err);
    return load_file(opt_str(o, OPT_TEMPLATE), &t->usual, err);
}

/* Noon of a day, as seconds of the epoch; 0 where it is no date. */
static int64_t noon(const char *date)
{
    struct tm tm = {.tm_hour = 12}, back;
    char again[32];
    const char *end = strptime(date, "%Y-%m-%d", &tm);
    time_t t = end && !*end ? timegm(&tm) : 0;
    /* 2025-02-30 would become another day. */
    if (!t || !gmtime_r(&t, &back) || !strftime(again, sizeof again, "%Y-%m-%d", &back) || strcmp(again, date) != 0)
        return 0;
    return (int64_t)t;
}

/* ---- Line protocol --------------------------------------------------------------------------------------------- */

/* The variables of a request, as transformers passes them. NULL with err. */
static json_t *variables(const templates *t, const json_t *in, infer_error *err)
{
    json_t *messages = json_object_get(in, "messages"), *tools = json_object_get(in, "tools");
    json_t *add = json_object_get(in, "add_generation_prompt"), *extra = json_object_get(in, "extra");
    const char *wrong = !json_is_array(messages)       ? "\"messages\" is not an array"
                        : add && !json_is_boolean(add) ? "\"add_generation_prompt\" is no boolean"
                        : extra && !json_is_object(extra) && !json_is_null(extra) ? "\"extra\" is not an object"
                                                                                  : NULL;
    if (wrong) {
        infer_error_set(err, INFER_E_INVALID, "%s", wrong);
        return NULL;
    }
    json_t *v = json_copy(t->vars);
    if (!v || json_object_set(v, "messages", messages) < 0 ||
        json_object_set_new(v, "tools", tools ? json_incref(tools) : json_null()) < 0 ||
        json_object_set_new(v, "documents", json_null()) < 0 ||
        json_object_set_new(v, "add_generation_prompt", json_boolean(json_is_true(add))) < 0 ||
        (json_is_object(extra) && json_object_update(v, extra) < 0)) {
        json_decref(v);
        no_memory("variables", err);
        return NULL;
    }
    return v;
}

/* The answer to one request (lines.h); bad is a line that is no request. */
static json_t *answer(void *user, const char *line, size_t n, int *bad)
{
    const templates *t = user;
    infer_error why = {0}, *err = &why;
    json_error_t e;
    json_t *in = json_loadb(line, n, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &e), *vars = NULL, *out;
    char *text = NULL, *prompt = NULL;
    size_t n_prompt;
    infer_status s = INFER_E_INVALID;
    if (!in)
        infer_error_set(err, s, "not JSON: %s", e.text);
    else
        vars = variables(t, in, err);
    *bad |= !vars;
    if (vars && !(text = json_dumps(vars, JSON_COMPACT)))
        s = no_memory("variables", err);
    if (text) {
        const json_t *tools = json_object_get(vars, "tools");
        int with_tools = t->tools && !json_is_null(tools) && !(json_is_array(tools) && !json_array_size(tools));
        s = infer_template_render(with_tools ? t->tools : t->usual, text, strlen(text), &t->opt, &prompt, &n_prompt,
                                  err);
    }
    if (s == INFER_OK)
        out = json_pack("{s:s%}", "prompt", prompt, n_prompt);
    else
        out = json_pack("{s:o}", "error", utf8_json(err->text));
    infer_text_free(prompt);
    free(text);
    json_decref(vars);
    json_decref(in);
    return out;
}

int main(int argc, char **argv)
{
    opts o = {0};
    infer_error err = {0};
    templates t = {0};
    int code = cli_start(&program, &o, argc, argv);
    if (code >= 0)
        goto out;
    if (opt_set(&o, OPT_MODEL) + opt_set(&o, OPT_TOKENIZER_CONFIG) + opt_set(&o, OPT_TEMPLATE) != 1) {
        code = cli_fail(EXIT_USAGE, "one of --model, --config and --template is needed (see --help)");
        goto out;
    }
    if (opt_set(&o, OPT_DATE) && !(t.opt.now = noon(opt_str(&o, OPT_DATE)))) {
        code = cli_fail(EXIT_USAGE, "--date %s: not a day written YYYY-MM-DD", opt_str(&o, OPT_DATE));
        goto out;
    }
    if (load(&o, &t, &err) != INFER_OK) {
        code = cli_fail_err(&err);
        goto out;
    }
    code = cli_finish(lines_answer(answer, &t));
out:
    infer_template_destroy(t.usual);
    infer_template_destroy(t.tools);
    json_decref(t.vars);
    opts_free(&o);
    return code;
}
