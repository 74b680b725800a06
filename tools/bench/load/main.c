/*
 * infer-bench serve: options to a load, its run, its report. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "chat.h"
#include "load.h"
#include "session.h"

static const cli_program program = {
    .name = "infer-bench",
    .bit = PROG_LOAD,
    .usage = "infer-bench serve --url http://HOST:PORT [--concurrency N | --rate R] [--workload KIND] …\n"
             "       infer-bench serve -m MODEL …",
    .what = "Sends requests to a server, or with -m alone to an engine of its own, and measures how they are answered.",
    .min_args = 1,
    .max_args = 1,
};

static const char *const workloads[] = {"random", "prefix", "turns", "sharegpt"};

/* INFER_E_INVALID for options that do not go together. */
static infer_status read_spec(const opts *o, load_spec *s, infer_error *err)
{
    const char *path = opt_str(o, OPT_DATASET);
    *s = (load_spec){.workload = (enum load_workload)opt_int(o, OPT_WORKLOAD),
                     .n_requests = (uint32_t)opt_int(o, OPT_REQUESTS),
                     .n_in = (uint32_t)opt_int(o, OPT_INPUT_TOKENS),
                     .n_out = (uint32_t)opt_int(o, OPT_OUTPUT_TOKENS),
                     .sigma = opt_num(o, OPT_LENGTH_SIGMA),
                     .n_prefix = (uint32_t)opt_int(o, OPT_PREFIX_TOKENS),
                     .n_prefixes = (uint32_t)opt_int(o, OPT_PREFIXES),
                     .n_turns = (uint32_t)opt_int(o, OPT_TURNS),
                     .dataset = path,
                     .max_in = (uint32_t)opt_int(o, OPT_MAX_INPUT),
                     .rate = opt_num(o, OPT_RATE),
                     .seed = (uint64_t)opt_int(o, OPT_SEED)};
    if (path && !opt_set(o, OPT_WORKLOAD))
        s->workload = LOAD_SHAREGPT;
    if (s->workload == LOAD_SHAREGPT && !path)
        return infer_error_set(err, INFER_E_INVALID, "--workload sharegpt: which file? give --dataset FILE");
    if (s->workload != LOAD_SHAREGPT && path)
        return infer_error_set(err, INFER_E_INVALID, "--dataset: belongs to --workload sharegpt");
    if (s->workload == LOAD_SHAREGPT && !opt_set(o, OPT_OUTPUT_TOKENS))
        s->n_out = 0;
    if (opt_set(o, OPT_TURNS) && s->workload != LOAD_TURNS && s->workload != LOAD_SHAREGPT)
        return infer_error_set(err, INFER_E_INVALID, "--turns: belongs to --workload turns or sharegpt");
    if (!opt_set(o, OPT_TURNS))
        s->n_turns = s->workload == LOAD_TURNS ? 4 : 1;
    return INFER_OK;
}

static infer_status read_key(const opts *o, sbuf *key, infer_error *err)
{
    const char *path = opt_str(o, OPT_API_KEY_FILE), *given = opt_str(o, OPT_API_KEY);
    if (given) {
        sbuf_puts(key, given);
        return INFER_OK;
    }
    infer_status st = path ? sbuf_read_file(key, path, err) : INFER_OK;
    if (st >= 0 && key->n)
        key->p[strcspn(key->p, " \t\r\n")] = 0; /* a server's file has words after it */
    return st;
}

/* The engine with its devices, for the report. */
static void name_engine(const session *s, const opts *o, char *buf, size_t cap)
{
    const char *slash = strrchr(s->info.path, '/'), *device = opt_str(o, OPT_DEVICE);
    snprintf(buf, cap, "engine, %s%s%s, -np %lld", slash ? slash + 1 : s->info.path, device ? " on " : "",
             device ? device : "", (long long)opt_int(o, OPT_PARALLEL));
}

static infer_status drive(const opts *o, load_run *run, session *s, const sbuf *key, infer_error *err)
{
    if (opt_str(o, OPT_URL)) {
        const load_target t = {.url = opt_str(o, OPT_URL),
                               .api_key = key->n ? key->p : NULL,
                               .model = opt_str(o, OPT_SERVED_MODEL_NAME),
                               .timeout_s = (uint32_t)opt_int(o, OPT_TIMEOUT)};
        return load_drive_http(run, &t, err);
    }
    chat_format chat = {0};
    infer_status st = run->chat ? chat_create(&chat, o, s->file, s->tokenizer, err) : INFER_OK;
    if (st >= 0)
        st = load_drive_engine(run, s->engine, s->tokenizer, &chat, err);
    if (run->chat)
        chat_destroy(&chat);
    return st;
}

static infer_status report(const opts *o, const load_title *t, const load_run *run, int *all_failed, infer_error *err)
{
    load_summary sum;
    infer_status st = load_summary_make(run, &sum, err);
    if (st < 0)
        return st;
    *all_failed = !sum.n_ok;
    if (sum.client_busy > 0.8)
        cli_log(1, "bench", "the client itself was busy %.0f %% of the time: it may be what is measured",
                100 * sum.client_busy);
    if (load_report_print((enum load_form)opt_int(o, OPT_OUTPUT), t, run, &sum, opt_int(o, OPT_SAMPLES) != 0, stdout) <
        0)
        st = infer_error_set(err, INFER_E_NO_MEMORY, "the report: out of memory");
    else if (opt_str(o, OPT_SVG))
        st = load_svg_write(opt_str(o, OPT_SVG), t, run, &sum, err);
    load_summary_free(&sum);
    return st;
}

static int run_list(const opts *o, const load_spec *spec, const load_list *list, session *s, const sbuf *key)
{
    char engine[512];
    infer_error err = {0};
    load_run run = {.chat = opt_int(o, OPT_ENDPOINT) == 1,
                    .temperature = opt_num(o, OPT_TEMPERATURE),
                    .ignore_eos = opt_int(o, OPT_IGNORE_EOS) != 0};
    load_title t = {.target = opt_str(o, OPT_URL),
                    .endpoint = run.chat ? "chat" : "completions",
                    .workload = workloads[spec->workload],
                    .spec = spec,
                    .concurrency = (uint32_t)opt_int(o, OPT_CONCURRENCY)};
    if (spec->rate > 0 && !opt_set(o, OPT_CONCURRENCY))
        t.concurrency = 0;
    if (!t.target) {
        name_engine(s, o, engine, sizeof engine);
        t.target = engine;
    }
    if (list->n < spec->n_requests)
        cli_log(1, "bench", "%s: has %u requests of the %u that were asked for", spec->dataset, list->n,
                spec->n_requests);
    int all_failed = 0;
    infer_status st = load_run_create(&run, list, t.concurrency, &err);
    if (st >= 0)
        st = drive(o, &run, s, key, &err);
    if (st >= 0)
        st = report(o, &t, &run, &all_failed, &err);
    load_run_destroy(&run);
    if (st < 0)
        return cli_fail_err(&err);
    return all_failed ? cli_fail(EXIT_OTHER, "no request went well") : EXIT_DONE;
}

static int serve(const opts *o)
{
    load_spec spec;
    load_list list = {0};
    session s = {0};
    sbuf key = {0};
    infer_error err = {0};
    int code = EXIT_DONE, opened = 0;
    const char *url = opt_str(o, OPT_URL), *model = opt_str(o, OPT_MODEL);
    const int print = opt_int(o, OPT_PRINT_REQUESTS) != 0;
    if (!url && !model && !print)
        return cli_fail(EXIT_USAGE, "which server? give --url http://HOST:PORT, or -m FILE for an engine (see --help)");
    if (read_spec(o, &spec, &err) < 0 || read_key(o, &key, &err) < 0) {
        code = cli_fail_err(&err);
        goto done;
    }
    if (model) {
        const enum session_stage stage = url || print ? SESSION_FILE : SESSION_ENGINE;
        if (session_open(&s, o, NULL, stage, NULL, &code, &err) < 0) {
            code = cli_fail(code, "%s", err.text);
            goto done;
        }
        opened = 1;
        spec.tokenizer = s.tokenizer;
    }
    if (load_list_make(&spec, &list, &err) < 0)
        code = cli_fail(err.status == INFER_E_BAD_FILE ? EXIT_OTHER : cli_exit_code(err.status), "%s", err.text);
    else if (print)
        load_list_print(&list, stdout);
    else
        code = run_list(o, &spec, &list, &s, &key);
done:
    load_list_free(&list);
    if (opened)
        session_close(&s);
    sbuf_free(&key);
    return cli_finish(code);
}

int load_main(int argc, char **argv)
{
    opts o;
    int code = cli_start(&program, &o, argc, argv);
    if (code < 0 && strcmp(o.args[0], "serve"))
        code = cli_fail(EXIT_USAGE, "\"%s\": not expected here (see --help)", o.args[0]);
    if (code < 0 && opt_int(&o, OPT_LIST_DEVICES))
        code = session_preflight(&o);
    if (code < 0)
        code = serve(&o);
    opts_free(&o);
    return code;
}
