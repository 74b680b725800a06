/*
 * infer-bench: speed of prompt processing and generation.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "load/load.h"

static const cli_program program = {
    .name = "infer-bench",
    .bit = PROG_BENCH,
    .usage = "infer-bench -m MODEL [-p 512] [-n 128] [-d 0,4096] [-np 1,8] [-r 5] [-o md|json|csv]\n"
             "       infer-bench serve …   (load on a server; see infer-bench serve --help)",
    .what = "Measures tokens a second: ppN reads prompts of N tokens, tgN makes N tokens.",
    .max_args = 1,
};

typedef struct plan_of_tests {
    bench_test tests[2 * OPT_MAX_INTS * OPT_MAX_INTS];
    size_t n;
} plan_of_tests;

static void add_tests(plan_of_tests *p, const opt_value *lengths, int prompt, uint32_t depth, uint32_t n_seq)
{
    for (size_t i = 0; i < lengths->n; i++) {
        if (!lengths->ints[i] || p->n == sizeof p->tests / sizeof p->tests[0])
            continue;
        bench_test *t = &p->tests[p->n++];
        *t = (bench_test){.depth = depth, .n_seq = n_seq};
        *(prompt ? &t->n_prompt : &t->n_gen) = (uint32_t)lengths->ints[i];
    }
}

static void make_tests(const opts *o, plan_of_tests *p)
{
    const opt_value *np = &o->v[OPT_PARALLEL_LIST], *d = &o->v[OPT_N_DEPTH];
    for (size_t i = 0; i < np->n; i++) {
        for (size_t k = 0; k < d->n; k++) {
            add_tests(p, &o->v[OPT_N_PROMPT], 1, (uint32_t)d->ints[k], (uint32_t)np->ints[i]);
            add_tests(p, &o->v[OPT_N_GEN], 0, (uint32_t)d->ints[k], (uint32_t)np->ints[i]);
        }
    }
}

static void summarise(bench_result *r)
{
    double sum = 0, sq = 0;
    for (uint32_t i = 0; i < r->n; i++)
        sum += r->samples[i];
    r->mean = sum / r->n;
    for (uint32_t i = 0; i < r->n; i++)
        sq += (r->samples[i] - r->mean) * (r->samples[i] - r->mean);
    r->sd = r->n > 1 ? sqrt(sq / (r->n - 1)) : 0;
}

/* Bytes that were read a second: each step reads the weights once and the cache of every sequence, which is half full
 * of the test's own tokens on average. */
static void rate_reads(const bench_reads *reads, double limit, bench_result *r)
{
    const bench_test *t = &r->test;
    double held = (double)t->depth + 1 + (double)t->n_gen / 2;
    r->read = r->mean / t->n_seq * (reads->weights + reads->kv * held * t->n_seq);
    r->read_limit = limit;
}

static infer_status run_test(session *s, const opts *o, const bench_reads *reads, const bench_ceiling *c,
                             bench_result *r, infer_error *err)
{
    /* Sequences that choose different experts read more than one token does: by how much, nobody counts. */
    const int limited = c && r->test.n_gen && !(r->test.n_seq > 1 && s->info.n_experts);
    double before = limited ? bench_ceiling_read(c) : 0;
    uint64_t random = (uint64_t)opt_int(o, OPT_SEED);
    uint32_t warm = opt_int(o, OPT_WARMUP) != 0, n = (uint32_t)opt_int(o, OPT_REPETITIONS);
    cli_progress progress;
    char name[64];
    bench_name(&r->test, name, sizeof name);
    if (!(r->samples = calloc(n, sizeof *r->samples)))
        return infer_error_set(err, INFER_E_NO_MEMORY, "measuring: out of memory");
    cli_progress_begin(&progress, name, 0);
    infer_status st = INFER_OK;
    for (uint32_t i = 0; i < n + warm && st >= 0; i++) {
        double rate;
        st = bench_measure(s, r, &random, i >= warm, &rate, err);
        if (st >= 0 && i >= warm)
            r->samples[r->n++] = rate;
        cli_progress_update(&progress, i + 1, n + warm);
    }
    cli_progress_end(&progress);
    if (st >= 0)
        summarise(r);
    if (st >= 0 && limited)
        rate_reads(reads, (before + bench_ceiling_read(c)) / 2, r);
    return st;
}

static int bench(const opts *o, const plan_of_tests *p)
{
    session s;
    session_wish w = {.max_batched_tokens = (uint32_t)opt_int(o, OPT_MAX_BATCHED_TOKENS)};
    infer_error err = {0};
    int code = EXIT_DONE;
    enum bench_form form = (enum bench_form)opt_int(o, OPT_OUTPUT);
    for (size_t i = 0; i < p->n; i++) {
        uint64_t ctx = bench_ctx(&p->tests[i], w.max_batched_tokens);
        if (ctx > UINT32_MAX)
            return cli_fail(EXIT_USAGE, "-d with -p or -n: a context of %llu tokens is out of range",
                            (unsigned long long)ctx);
        w.ctx_size = ctx > w.ctx_size ? (uint32_t)ctx : w.ctx_size;
        w.n_parallel = p->tests[i].n_seq > w.n_parallel ? p->tests[i].n_seq : w.n_parallel;
    }
    if (session_open(&s, o, &w, SESSION_ENGINE, NULL, &code, &err) < 0)
        return cli_fail(code, "%s", err.text);
    bench_reads reads;
    bench_get_reads(&s, &reads);
    bench_ceiling *c = reads.host && reads.weights > 0 ? bench_ceiling_create(reads.n_threads) : NULL;
    bench_print_head(form, stdout);
    for (size_t i = 0; i < p->n && !code; i++) {
        bench_result r = {.test = p->tests[i]};
        if (run_test(&s, o, &reads, c, &r, &err) < 0)
            code = cli_fail_err(&err);
        else
            bench_print_row(form, &s, o, &r, i == 0, stdout);
        free(r.samples);
    }
    bench_print_foot(form, stdout);
    bench_ceiling_destroy(c);
    session_close(&s);
    return cli_finish(code);
}

int main(int argc, char **argv)
{
    opts o;
    static plan_of_tests tests;
    if (argc > 1 && !strcmp(argv[1], "serve"))
        return load_main(argc, argv);
    int code = cli_start(&program, &o, argc, argv);
    if (code < 0 && o.n_args)
        code = cli_fail(EXIT_USAGE, "\"%s\": not expected here%s (see --help)", o.args[0],
                        strcmp(o.args[0], "serve") ? "" : ", but as the first word");
    if (code < 0)
        code = session_preflight(&o);
    if (code < 0) {
        make_tests(&o, &tests);
        code = tests.n ? bench(&o, &tests) : cli_fail(EXIT_USAGE, "nothing to measure: -p and -n are both 0");
    }
    opts_free(&o);
    return code;
}
