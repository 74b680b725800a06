/*
 * infer-probe: devices and backends, checks of model files, and what a plan would be. Loads no weights.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <errno.h>
#include <string.h>

#include "chat.h"
#include "probe.h"

static const cli_program program = {
    .name = "infer-probe",
    .bit = PROG_PROBE,
    .usage = "infer-probe [--json] [-m MODEL [-c CTX] [-np N] …]\n       infer-probe --check-model FILE",
    .what = "Shows the devices and backends of this machine, and with -m where a model would lie and why.",
};

static int print_json(json_t *o)
{
    int bad = !o || json_dumpf(o, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(12)) < 0;
    json_decref(o);
    putchar('\n');
    return bad ? cli_fail(EXIT_OTHER, "write the result: %s", strerror(errno ? errno : ENOMEM)) : EXIT_DONE;
}

/* Everything that loading would read of the file but the weights' values. */
static int check_model(const opts *o, const char *path)
{
    session s;
    chat_format c = {0};
    infer_error err = {0}, tmpl = {0};
    int code;
    char a[32], b[32];
    session_wish w = {.model = path};
    infer_status st = session_open(&s, o, &w, SESSION_FILE, NULL, &code, &err);
    if (opt_int(o, OPT_JSON) && (st < 0 && code == EXIT_BAD_MODEL)) {
        print_json(json_pack("{s:o, s:b, s:o}", "file", utf8_json(path), "ok", 0, "error", utf8_json(err.text)));
        return cli_finish(code);
    }
    if (st < 0) {
        cli_fail(code, "%s", err.text);
        return code;
    }
    const infer_file_info *in = &s.info;
    st = chat_create(&c, o, s.file, s.tokenizer, &tmpl);
    if (opt_int(o, OPT_JSON)) {
        code = print_json(json_pack("{s:o, s:b, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:o?}", "file", utf8_json(path),
                                    "ok", 1, "arch", in->arch, "type", in->type, "bytes", (json_int_t)in->bytes,
                                    "n_params", (json_int_t)in->n_params, "n_layers", (json_int_t)in->n_layers,
                                    "n_vocab", (json_int_t)in->n_vocab, "n_ctx_train", (json_int_t)in->n_ctx_train,
                                    "warning", st < 0 ? utf8_json(tmpl.text) : NULL));
    } else {
        printf("%s: ok: %s, %s parameters, %s, %s in %u tensors, %u layers, vocabulary of %u, context of %u\n", path,
               in->arch, cli_count(a, in->n_params), in->type, cli_bytes(b, in->bytes), in->n_tensors, in->n_layers,
               in->n_vocab, in->n_ctx_train);
        if (st < 0)
            printf("%s: its chat template cannot be used: %s\n", path, tmpl.text);
        else if (!c.tmpl)
            printf("%s: has no chat template\n", path);
    }
    chat_destroy(&c);
    session_close(&s);
    return cli_finish(code);
}

/* The plan of -m as JSON in *plan; the exit code otherwise, with the cause in err. */
static int make_plan(const opts *o, const session *machine, json_t **plan, infer_error *err)
{
    session s;
    session_wish w = {.measure = 1};
    int code;
    char *text;
    *plan = NULL;
    if (session_open(&s, o, &w, SESSION_PLAN, machine, &code, err) < 0)
        return code;
    if (infer_plan_json(s.plan, &text, err) < 0) {
        code = cli_exit_code(err->status);
    } else {
        *plan = json_loads(text, 0, NULL);
        infer_text_free(text);
    }
    session_close(&s);
    return code;
}

static int probe(const opts *o)
{
    session s;
    infer_error err = {0}, plan_err = {0};
    int code, plan_code = EXIT_DONE;
    json_t *plan = NULL;
    if (session_open(&s, o, NULL, SESSION_RUNTIME, NULL, &code, &err) < 0)
        return cli_fail_err(&err);
    if (infer_runtime_probe(s.runtime, &err) < 0) {
        session_close(&s);
        return cli_fail_err(&err);
    }
    json_t *all = probe_json(s.runtime);
    if (opt_str(o, OPT_MODEL))
        plan_code = make_plan(o, &s, &plan, &plan_err);
    if (opt_int(o, OPT_JSON)) {
        if (opt_str(o, OPT_MODEL))
            json_object_set_new(all, "plan", plan ? json_incref(plan) : json_null());
        if (plan_code)
            json_object_set_new(all, "error", utf8_json(plan_err.text));
        code = print_json(json_incref(all));
    } else if (all) {
        probe_print(all, stdout);
        if (plan)
            probe_print_plan(plan, stdout);
    }
    if (plan_code)
        code = cli_fail(plan_code, "%s", plan_err.text);
    json_decref(all);
    json_decref(plan);
    session_close(&s);
    return cli_finish(code);
}

int main(int argc, char **argv)
{
    opts o;
    int code = cli_start(&program, &o, argc, argv);
    if (code < 0 && opt_str(&o, OPT_CHECK_MODEL) && opt_str(&o, OPT_MODEL))
        code = cli_fail(EXIT_USAGE, "--check-model and -m: give one of them");
    if (code < 0)
        code = opt_str(&o, OPT_CHECK_MODEL) ? check_model(&o, opt_str(&o, OPT_CHECK_MODEL)) : probe(&o);
    opts_free(&o);
    return code;
}
