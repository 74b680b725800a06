/*
 * infer-tokenize: text to token ids and back, as a table for people or as a line protocol for comparisons.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include <sys/stat.h>
#include <unistd.h>

#include <infer/infer.h>

#include "cli.h"
#include "lines.h"
#include "opt.h"
#include "sbuf.h"

static const cli_program program = {
    "infer-tokenize",
    PROG_TOKENIZE,
    "infer-tokenize (-m MODEL | --tokenizer tokenizer.json) [--json | --decode] [-p TEXT]",
    "Turns text into token ids, one a line with its text, or ids into text.",
    0,
    0,
};

/* tokenizer.json with its tokenizer_config.json: the one named, or one in the same folder. */
static infer_status load_json(const opts *o, const char *path, infer_tokenizer **t, infer_error *err)
{
    static const char beside[] = "tokenizer_config.json";
    const char *slash = strrchr(path, '/');
    sbuf json = {0}, config = {0}, name = {0};
    infer_status s = sbuf_read_file(&json, path, err);
    int named = opt_set(o, OPT_TOKENIZER_CONFIG);
    if (named) {
        sbuf_puts(&name, opt_str(o, OPT_TOKENIZER_CONFIG));
    } else {
        sbuf_add(&name, path, slash ? (size_t)(slash - path) + 1 : 0);
        sbuf_puts(&name, beside);
    }
    if (s == INFER_OK && (json.failed || name.failed))
        s = infer_error_set(err, INFER_E_NO_MEMORY, "%s: out of memory", path);
    if (s == INFER_OK && (named || access(name.p, F_OK) == 0))
        s = sbuf_read_file(&config, name.p, err);
    if (s == INFER_OK) {
        s = infer_tokenizer_create_json(json.p ? json.p : "", json.n, config.p, config.n, t, err);
        if (s != INFER_OK)
            infer_error_prefix(err, s, "%s", path);
    }
    sbuf_free(&json);
    sbuf_free(&config);
    sbuf_free(&name);
    return s;
}

static infer_status load(const opts *o, infer_tokenizer **t, infer_error *err)
{
    struct stat st;
    const char *path = opt_set(o, OPT_TOKENIZER) ? opt_str(o, OPT_TOKENIZER) : opt_str(o, OPT_MODEL);
    int folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    if (!folder)
        return opt_set(o, OPT_TOKENIZER) ? load_json(o, path, t, err) : infer_tokenizer_open(path, t, err);
    sbuf name = {0};
    sbuf_printf(&name, "%s/tokenizer.json", path);
    infer_status s =
        name.failed ? infer_error_set(err, INFER_E_NO_MEMORY, "%s: out of memory", path) : load_json(o, name.p, t, err);
    sbuf_free(&name);
    return s;
}

static uint32_t encode_flags(const opts *o, int add_special)
{
    return (add_special ? INFER_ENCODE_ADD_SPECIAL : 0) |
           (opt_int(o, OPT_PARSE_SPECIAL) ? INFER_ENCODE_PARSE_SPECIAL : 0);
}

/* ---- Line protocol ----------------------------------------------------------------------------------------- */

/* What the answers are made with. */
typedef struct request_context {
    const infer_tokenizer *t;
    const opts *o;
} request_context;

/* The answer to one request (lines.h); bad is every one that gets an error. */
static json_t *answer(void *user, const char *line, size_t n, int *bad)
{
    const infer_tokenizer *t = ((const request_context *)user)->t;
    const opts *o = ((const request_context *)user)->o;
    infer_error why = {0}, *err = &why;
    json_error_t e;
    json_t *in = json_loadb(line, n, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &e), *out = NULL, *list = NULL;
    const json_t *text = json_object_get(in, "text"), *add = json_object_get(in, "add_special");
    int32_t *ids = NULL;
    size_t n_ids = 0, n_decoded;
    char *decoded = NULL;
    infer_status s = INFER_E_INVALID;
    if (!in)
        infer_error_set(err, s, "not JSON: %s", e.text);
    else if (!json_is_string(text))
        infer_error_set(err, s, "\"text\" is not a string");
    else if (add && !json_is_boolean(add))
        infer_error_set(err, s, "\"add_special\" is neither true nor false");
    else
        s = infer_tokenizer_encode(t, json_string_value(text), json_string_length(text),
                                   encode_flags(o, add ? json_is_true(add) : (int)opt_int(o, OPT_ADD_SPECIAL)), &ids,
                                   &n_ids, err);
    if (s == INFER_OK)
        s = infer_tokenizer_decode(t, ids, n_ids, 0, &decoded, &n_decoded, err);
    if (s == INFER_OK) {
        list = json_array();
        for (size_t i = 0; i < n_ids; i++)
            json_array_append_new(list, json_integer(ids[i]));
        out = json_pack("{s:o, s:s%}", "ids", list, "decoded", decoded, n_decoded);
    } else {
        *bad = 1;
        out = json_pack("{s:o}", "error", utf8_json(err->text));
    }
    infer_ids_free(ids);
    infer_text_free(decoded);
    json_decref(in);
    return out;
}

/* ---- For people -------------------------------------------------------------------------------------------- */

/* Each id with what it stands for, as a JSON string. */
static int run_encode(const infer_tokenizer *t, const opts *o, const char *text, size_t n)
{
    infer_error err = {0};
    int32_t *ids;
    size_t n_ids;
    if (infer_tokenizer_encode(t, text, n, encode_flags(o, (int)opt_int(o, OPT_ADD_SPECIAL)), &ids, &n_ids, &err) !=
        INFER_OK)
        return cli_fail_err(&err);
    sbuf bytes = {0}, clean = {0};
    for (size_t i = 0; i < n_ids; i++) {
        size_t len = infer_tokenizer_token_bytes(t, ids[i], NULL, 0);
        bytes.n = clean.n = 0;
        char *to = sbuf_reserve(&bytes, len + 1);
        if (to)
            sbuf_add_utf8(&clean, to, infer_tokenizer_token_bytes(t, ids[i], to, len));
        json_t *s = to && !clean.failed ? json_stringn(clean.p ? clean.p : "", clean.n) : NULL;
        printf("%d\t", ids[i]);
        if (s)
            json_dumpf(s, stdout, JSON_ENCODE_ANY);
        putchar('\n');
        json_decref(s);
    }
    sbuf_free(&bytes);
    sbuf_free(&clean);
    infer_ids_free(ids);
    return EXIT_DONE;
}

/* Ids in the input, whatever is between them, to their text. */
static int run_decode(const infer_tokenizer *t, char *p)
{
    infer_error err = {0};
    infer_detok *d;
    const char *text;
    size_t n;
    if (infer_detok_create(t, 0, &d) != INFER_OK)
        return cli_fail(EXIT_OTHER, "decode: out of memory");
    int code = EXIT_DONE;
    infer_status s = INFER_OK;
    for (;;) {
        p += strcspn(p, "0123456789-");
        if (!*p)
            break;
        char *end;
        long id = strtol(p, &end, 10);
        s = end == p || id < 0 || id >= (long)infer_tokenizer_n_tokens(t)
                ? infer_error_set(&err, INFER_E_INVALID, "decode: \"%.20s\" is not an id from 0 to %u", p,
                                  infer_tokenizer_n_tokens(t) - 1)
                : infer_detok_push(d, (int32_t)id, &text, &n);
        if (s != INFER_OK)
            break;
        fwrite(text, 1, n, stdout);
        p = end;
    }
    if (s == INFER_OK && infer_detok_flush(d, &text, &n) == INFER_OK)
        fwrite(text, 1, n, stdout);
    if (s != INFER_OK)
        code = cli_fail_err(&err);
    infer_detok_destroy(d);
    return code;
}

static int run(const infer_tokenizer *t, const opts *o)
{
    request_context c = {t, o};
    if (opt_int(o, OPT_JSON))
        return lines_answer(answer, &c);
    sbuf text = {0};
    infer_error err = {0};
    int code;
    if (opt_set(o, OPT_PROMPT))
        sbuf_puts(&text, opt_str(o, OPT_PROMPT));
    else if (sbuf_read_file(&text, "-", &err) != INFER_OK)
        return cli_fail_err(&err);
    sbuf_add(&text, "", 0);
    if (text.failed)
        code = cli_fail(EXIT_OTHER, "reading the text: out of memory");
    else
        code = opt_int(o, OPT_DECODE) ? run_decode(t, text.p) : run_encode(t, o, text.p, text.n);
    sbuf_free(&text);
    return code;
}

int main(int argc, char **argv)
{
    opts o = {0};
    infer_error err = {0};
    infer_tokenizer *t = NULL;
    int code = cli_start(&program, &o, argc, argv);
    if (code >= 0)
        goto out;
    if (opt_set(&o, OPT_TOKENIZER) == opt_set(&o, OPT_MODEL)) {
        code = cli_fail(EXIT_USAGE, "one of --model and --tokenizer is needed (see --help)");
        goto out;
    }
    if (opt_int(&o, OPT_JSON) && (opt_int(&o, OPT_DECODE) || opt_set(&o, OPT_PROMPT))) {
        code = cli_fail(EXIT_USAGE, "--json reads lines from standard input: no --decode, no -p");
        goto out;
    }
    if (load(&o, &t, &err) != INFER_OK) {
        code = cli_fail_err(&err);
        goto out;
    }
    code = cli_finish(run(t, &o));
out:
    infer_tokenizer_destroy(t);
    opts_free(&o);
    return code;
}
