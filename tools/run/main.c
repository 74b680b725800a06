/*
 * infer-run: one prompt answered on stdout, or a chat in the terminal.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "run.h"

static const cli_program program = {
    .name = "infer-run",
    .bit = PROG_RUN,
    .usage = "infer-run -m MODEL [-p TEXT | -f FILE] [-n N] [--temp T] [--seed S] [--raw] [--json]",
    .what = "Answers a prompt, or chats when it is started on a terminal without one.",
};

static json_t *ids_json(const int32_t *ids, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer(ids[i]));
    return list;
}

/* A token's own text; bytes that are no UTF-8 by themselves as U+FFFD. */
static json_t *token_json(const infer_tokenizer *tok, int32_t id)
{
    char small[256];
    size_t n = infer_tokenizer_token_bytes(tok, id, small, sizeof small);
    return utf8_json_n(small, n < sizeof small ? n : sizeof small);
}

static json_t *logprobs_json(const infer_tokenizer *tok, const answer *a)
{
    json_t *list = json_array();
    for (size_t i = 0; i < a->n; i++) {
        const answer_token *t = &a->tokens[i];
        json_t *top = json_array();
        for (uint32_t k = 0; k < t->n_top; k++)
            json_array_append_new(top, json_pack("{s:i, s:o, s:f}", "id", t->top[k].id, "token",
                                                 token_json(tok, t->top[k].id), "logprob", (double)t->top[k].logprob));
        json_array_append_new(list, json_pack("{s:i, s:o, s:f, s:o}", "id", t->id, "token", token_json(tok, t->id),
                                              "logprob", (double)t->logprob, "top", top));
    }
    return list;
}

static double ms(uint64_t from, uint64_t to)
{
    return from && to > from ? (double)(to - from) / 1e6 : 0;
}

static int print_json(const runner *r, const int32_t *prompt, size_t n_prompt, const answer *a)
{
    const infer_event *e = &a->end;
    json_t *ids = json_array();
    for (size_t i = 0; i < a->n; i++)
        json_array_append_new(ids, json_integer(a->tokens[i].id));
    json_t *o = json_pack("{s:o, s:o, s:o}", "text", json_stringn(a->text.p ? a->text.p : "", a->text.n), "ids", ids,
                          "prompt_ids", ids_json(prompt, n_prompt));
    if (opt_set(r->o, OPT_LOGPROBS))
        json_object_set_new(o, "logprobs", logprobs_json(r->s->tokenizer, a));
    uint64_t first = e->t_first_token ? e->t_first_token : e->t_end;
    json_object_set_new(o, "timings",
                        json_pack("{s:f, s:I, s:f, s:I, s:f}", "load_ms", (double)r->s->load_ns / 1e6, "prompt_n",
                                  (json_int_t)e->n_prompt, "prompt_ms", ms(e->t_first_run, first), "predicted_n",
                                  (json_int_t)a->n, "predicted_ms", ms(first, e->t_end)));
    if (opt_int(r->o, OPT_SPECULATIVE)) {
        infer_engine_stats st = {.struct_size = sizeof st};
        infer_engine_get_stats(r->s->engine, &st);
        json_object_update_new(json_object_get(o, "timings"),
                               json_pack("{s:I, s:I}", "draft_n", (json_int_t)st.spec_draft_tokens, "draft_n_accepted",
                                         (json_int_t)st.spec_accepted_tokens));
    }
    json_object_set_new(o, "finish_reason", json_string(answer_finish(a)));
    if (!o || json_dumpf(o, stdout, JSON_REAL_PRECISION(9)) < 0) {
        json_decref(o);
        return cli_fail(EXIT_OTHER, "write the answer: %s", strerror(errno ? errno : ENOMEM));
    }
    putchar('\n');
    json_decref(o);
    return EXIT_DONE;
}

static void log_timings(const runner *r, const answer *a)
{
    const infer_event *e = &a->end;
    uint64_t first = e->t_first_token ? e->t_first_token : e->t_end;
    double p = ms(e->t_first_run, first), g = ms(first, e->t_end);
    cli_log(2, "run",
            "load %.0f ms, prompt %llu tokens in %.1f ms (%.1f a second), answer %zu tokens in %.1f ms (%.1f a second)",
            (double)r->s->load_ns / 1e6, (unsigned long long)e->n_prompt, p, p > 0 ? (double)e->n_prompt * 1e3 / p : 0,
            a->n, g, g > 0 && a->n > 1 ? (double)(a->n - 1) * 1e3 / g : 0);
}

/* The prompt's ids: as it is, or as the one message of a conversation. */
static infer_status encode_prompt(const runner *r, const char *text, size_t n, int32_t **ids, size_t *n_ids,
                                  infer_error *err)
{
    if (opt_int(r->o, OPT_RAW))
        return chat_encode(r->s->tokenizer, text, n, 1, 0, ids, n_ids, err);
    char *rendered = NULL;
    size_t rendered_n;
    const char *system = opt_str(r->o, OPT_SYSTEM);
    json_t *messages = json_array();
    if (system)
        json_array_append_new(messages, json_pack("{s:s, s:o}", "role", "system", "content", utf8_json(system)));
    json_array_append_new(messages, json_pack("{s:s, s:o}", "role", "user", "content", utf8_json_n(text, n)));
    infer_status st = chat_render(r->c, messages, NULL, 1, NULL, &rendered, &rendered_n, err);
    json_decref(messages);
    if (st >= 0) {
        st = chat_encode(r->s->tokenizer, rendered, rendered_n, 1, 1, ids, n_ids, err);
        infer_text_free(rendered);
    }
    return st;
}

static int answer_once(runner *r, const char *text, size_t n)
{
    infer_error err = {0};
    int32_t *ids = NULL;
    size_t n_ids = 0;
    answer a = {0};
    int json = opt_int(r->o, OPT_JSON) != 0, code = EXIT_DONE;
    infer_status st = encode_prompt(r, text, n, &ids, &n_ids, &err);
    if (st >= 0 && !n_ids)
        st = infer_error_set(&err, INFER_E_INVALID,
                             "the prompt is empty and the model wants no BOS: nothing to go on from");
    r->stream = json ? NULL : stdout;
    if (st >= 0) {
        run_catch_interrupts();
        st = run_generate(r, ids, n_ids, &a, &err);
    }
    if (a.finish && !json && a.text.n && a.text.p[a.text.n - 1] != '\n')
        putchar('\n');
    if (a.finish && json)
        code = print_json(r, ids, n_ids, &a);
    if (a.finish)
        log_timings(r, &a);
    if (st < 0)
        code = cli_fail_err(&err);
    else if (a.finish == INFER_FINISH_CANCELLED)
        code = 130;
    answer_free(&a);
    if (ids)
        infer_ids_free(ids);
    return code;
}

/* The prompt of -p or -f, or of a standard input that is no terminal; *chat when there is none and a chat is due. */
static infer_status find_prompt(const opts *o, sbuf *prompt, int *have, infer_error *err)
{
    const char *text = opt_str(o, OPT_PROMPT), *path = opt_str(o, OPT_FILE);
    *have = 1;
    if (text) {
        sbuf_puts(prompt, text);
        return prompt->failed ? infer_error_set(err, INFER_E_NO_MEMORY, "reading the prompt: out of memory") : INFER_OK;
    }
    if (path)
        return sbuf_read_file(prompt, path, err);
    *have = !opt_int(o, OPT_INTERACTIVE) && !isatty(STDIN_FILENO);
    return *have ? sbuf_read_file(prompt, "-", err) : INFER_OK;
}

static int check_usage(const opts *o)
{
    if (opt_set(o, OPT_PROMPT) && opt_set(o, OPT_FILE))
        return cli_fail(EXIT_USAGE, "-p and -f: give one of them");
    if (opt_int(o, OPT_INTERACTIVE) && (opt_int(o, OPT_RAW) || opt_int(o, OPT_JSON)))
        return cli_fail(EXIT_USAGE, "--interactive: is neither --raw nor --json");
    if (opt_int(o, OPT_INTERACTIVE) && opt_set(o, OPT_FILE) && !strcmp(opt_str(o, OPT_FILE), "-"))
        return cli_fail(EXIT_USAGE, "-f -: standard input is the chat");
    if (opt_set(o, OPT_LOGPROBS) && !opt_int(o, OPT_JSON))
        return cli_fail(EXIT_USAGE, "--logprobs: needs --json");
    if (opt_set(o, OPT_SYSTEM) && opt_int(o, OPT_RAW))
        return cli_fail(EXIT_USAGE, "--system: has no place with --raw");
    if (o->v[OPT_STOP].n > 16)
        return cli_fail(EXIT_USAGE, "--stop: at most 16");
    return -1;
}

int main(int argc, char **argv)
{
    opts o;
    session s;
    chat_format c = {0};
    sbuf prompt = {0};
    infer_error err = {0};
    int have = 0, code = cli_start(&program, &o, argc, argv);
    if (code < 0)
        code = session_preflight(&o);
    if (code < 0)
        code = check_usage(&o);
    if (code < 0 && find_prompt(&o, &prompt, &have, &err) < 0)
        code = cli_fail_err(&err);
    if (code < 0 && !have && (opt_int(&o, OPT_RAW) || opt_int(&o, OPT_JSON)))
        code = cli_fail(EXIT_USAGE, "which prompt? give -p TEXT or -f FILE");
    if (code >= 0)
        goto no_session;
    if (session_open(&s, &o, NULL, SESSION_ENGINE, NULL, &code, &err) < 0) {
        cli_fail_err(&err);
        goto no_session;
    }
    if (!opt_int(&o, OPT_RAW) && chat_create(&c, &o, s.file, s.tokenizer, &err) < 0) {
        code = cli_fail_err(&err);
    } else if (!opt_int(&o, OPT_RAW) && !c.tmpl) {
        code = cli_fail(EXIT_USAGE, "%s: has no chat template: give --raw or --chat-template-file", s.info.path);
    } else {
        runner r = {.o = &o, .s = &s, .c = &c, .n_top = (uint32_t)opt_int(&o, OPT_LOGPROBS), .stream = stdout};
        if (have && !opt_int(&o, OPT_INTERACTIVE))
            code = answer_once(&r, prompt.p ? prompt.p : "", prompt.n);
        else
            code = run_chat(&r, have ? prompt.p : NULL);
    }
    chat_destroy(&c);
    session_close(&s);
    code = cli_finish(code);
no_session:
    sbuf_free(&prompt);
    opts_free(&o);
    return code;
}
