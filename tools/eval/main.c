/*
 * infer-eval: perplexity of a text, and divergence from a reference.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "eval.h"
#include "logsum.h"
#include "sbuf.h"

static const cli_program program = {
    .name = "infer-eval",
    .bit = PROG_EVAL,
    .usage = "infer-eval perplexity -m MODEL -f TEXT [--save-logits FILE]\n"
             "       infer-eval kld -m MODEL (--ref FILE | -f TEXT (--ref-device ID | --ref-model MODEL))",
    .what = "Measures quality: perplexity of a text, or KL divergence and top-1 agreement with a reference.",
    .min_args = 1,
    .max_args = 1,
};

/* Rows whose logits a step gives: more make a step larger, and need memory. */
#define LOGIT_ROWS 128

static session_wish wish_for(const windows *w, uint32_t n_ctx)
{
    uint32_t ctx = w ? w->n_ctx : n_ctx;
    return (session_wish){.ctx_size = ctx + 1, .n_parallel = 1, .max_logit_rows = ctx < LOGIT_ROWS ? ctx : LOGIT_ROWS};
}

static int print_json(json_t *o)
{
    int bad = !o || json_dumpf(o, stdout, JSON_REAL_PRECISION(12)) < 0;
    json_decref(o);
    putchar('\n');
    return bad ? cli_fail(EXIT_OTHER, "write the result: %s", strerror(errno ? errno : ENOMEM)) : EXIT_DONE;
}

static infer_status read_windows(const opts *o, const session *s, windows *w, infer_error *err)
{
    sbuf text = {0};
    infer_status st = sbuf_read_file(&text, opt_str(o, OPT_FILE), err);
    if (st >= 0)
        st = windows_from_text(w, s->tokenizer, text.p ? text.p : "", text.n, (uint32_t)opt_int(o, OPT_CTX_SIZE),
                               opt_int(o, OPT_CHUNKS), err);
    sbuf_free(&text);
    return st;
}

/* ---- Perplexity -------------------------------------------------------------------------------------------- */

typedef struct ppl_run {
    ppl p;
    logits_file *save;
} ppl_run;

static infer_status ppl_position(void *user, uint32_t position, const float *logits, uint32_t n_vocab, int32_t next,
                                 infer_error *err)
{
    ppl_run *r = user;
    (void)position;
    ppl_add(&r->p, logits_log_sum_exp(logits, n_vocab) - logits[next]);
    return r->save ? logits_append(r->save, logits, err) : INFER_OK;
}

static infer_status measure_ppl(const session *s, const windows *w, ppl_run *r, infer_error *err)
{
    cli_progress progress;
    infer_status st = INFER_OK;
    cli_progress_begin(&progress, "perplexity", 0);
    for (uint32_t i = 0; i < w->n && st >= 0; i++) {
        st = windows_run(s, w, i, ppl_position, r, err);
        if (st >= 0)
            cli_log(2, "eval", "window %u of %u: perplexity so far %.4f", i + 1, w->n, ppl_value(&r->p));
        cli_progress_update(&progress, i + 1, w->n);
    }
    cli_progress_end(&progress);
    return st;
}

static int print_ppl(const opts *o, const windows *w, const ppl *p)
{
    if (opt_int(o, OPT_JSON))
        return print_json(json_pack("{s:f, s:f, s:f, s:I, s:I, s:I}", "perplexity", ppl_value(p), "error", ppl_error(p),
                                    "nll", p->nll / (double)p->n, "tokens", (json_int_t)p->n, "windows",
                                    (json_int_t)w->n, "ctx_size", (json_int_t)w->n_ctx));
    printf("perplexity %.4f ± %.5f  (%llu tokens in %u windows of %u)\n", ppl_value(p), ppl_error(p),
           (unsigned long long)p->n, w->n, w->n_ctx);
    return EXIT_DONE;
}

static int perplexity(const opts *o)
{
    session s;
    windows w = {0};
    ppl_run r = {0};
    infer_error err = {0}, late = {0};
    int code;
    if (!opt_str(o, OPT_FILE))
        return cli_fail(EXIT_USAGE, "perplexity: of which text? give -f FILE");
    if (opt_set(o, OPT_REF) || opt_set(o, OPT_REF_MODEL) || opt_set(o, OPT_REF_DEVICE))
        return cli_fail(EXIT_USAGE, "perplexity: has no reference (kld has)");
    session_wish wish = wish_for(NULL, (uint32_t)opt_int(o, OPT_CTX_SIZE));
    if (session_open(&s, o, &wish, SESSION_ENGINE, NULL, &code, &err) < 0)
        return cli_fail(code, "%s", err.text);
    infer_status st = read_windows(o, &s, &w, &err);
    if (st >= 0 && opt_str(o, OPT_SAVE_LOGITS))
        st = logits_create(opt_str(o, OPT_SAVE_LOGITS), &w, s.info.n_vocab, &r.save, &err);
    if (st >= 0)
        st = measure_ppl(&s, &w, &r, &err);
    if (logits_close(r.save, &late) < 0 && st >= 0) {
        st = late.status;
        err = late;
    }
    code = st < 0 ? cli_fail_err(&err) : print_ppl(o, &w, &r.p);
    windows_free(&w);
    session_close(&s);
    return cli_finish(code);
}

/* ---- KL divergence ----------------------------------------------------------------------------------------- */

typedef struct kld_run {
    kld k;
    const windows *w;
    uint32_t window;
    logits_file *file;      /* the reference's logits, or */
    const session *session; /* its engine, whose logits of the window are kept at */
    float *kept;            /* [n_counted][n_vocab] */
    uint32_t n_vocab;
} kld_run;

static infer_status keep_position(void *user, uint32_t position, const float *logits, uint32_t n_vocab, int32_t next,
                                  infer_error *err)
{
    kld_run *r = user;
    (void)next;
    (void)err;
    memcpy(r->kept + (size_t)position * n_vocab, logits, n_vocab * sizeof *logits);
    return INFER_OK;
}

static infer_status compare_position(void *user, uint32_t position, const float *logits, uint32_t n_vocab, int32_t next,
                                     infer_error *err)
{
    kld_run *r = user;
    const float *reference = r->kept + (r->kept ? (size_t)position * n_vocab : 0);
    if (r->file) {
        infer_status st = logits_row(r->file, r->window, position, &reference, err);
        if (st < 0)
            return st;
    }
    return kld_add(&r->k, reference, logits, n_vocab, next, err);
}

static infer_status measure_kld(const session *s, kld_run *r, infer_error *err)
{
    cli_progress progress;
    infer_status st = INFER_OK;
    const windows *w = r->w;
    if (r->n_vocab != s->info.n_vocab)
        return infer_error_set(err, INFER_E_INVALID, "kld: the reference has a vocabulary of %u, the model of %u",
                               r->n_vocab, s->info.n_vocab);
    if (r->session && !(r->kept = malloc((size_t)w->n_counted * r->n_vocab * sizeof *r->kept)))
        return infer_error_set(err, INFER_E_NO_MEMORY, "keeping the reference's logits: out of memory");
    cli_progress_begin(&progress, "divergence", 0);
    for (r->window = 0; r->window < w->n && st >= 0; r->window++) {
        if (r->session)
            st = windows_run(r->session, w, r->window, keep_position, r, err);
        if (st >= 0)
            st = windows_run(s, w, r->window, compare_position, r, err);
        cli_progress_update(&progress, r->window + 1, w->n);
    }
    cli_progress_end(&progress);
    return st;
}

static int print_kld(const opts *o, kld_run *r)
{
    kld_summary s;
    kld_summarise(&r->k, &s);
    const ppl *a = &r->k.reference, *b = &r->k.tested;
    if (opt_int(o, OPT_JSON))
        return print_json(json_pack(
            "{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:{s:f, s:f}, s:{s:f, s:f}, s:I, s:I, s:I}", "mean", s.mean,
            "mean_error", s.mean_error, "median", s.median, "p90", s.p90, "p99", s.p99, "max", s.max, "top1_agreement",
            s.same_top, "top1_error", s.same_top_error, "perplexity", "value", ppl_value(b), "error", ppl_error(b),
            "reference_perplexity", "value", ppl_value(a), "error", ppl_error(a), "tokens", (json_int_t)r->k.n,
            "windows", (json_int_t)r->w->n, "ctx_size", (json_int_t)r->w->n_ctx));
    printf("KL divergence    mean %.3e ± %.1e  median %.3e  90%% %.3e  99%% %.3e  max %.3e\n", s.mean, s.mean_error,
           s.median, s.p90, s.p99, s.max);
    printf("top-1 agreement  %.4f %% ± %.4f %%\n", 100 * s.same_top, 100 * s.same_top_error);
    printf("perplexity       %.4f ± %.5f  reference %.4f ± %.5f\n", ppl_value(b), ppl_error(b), ppl_value(a),
           ppl_error(a));
    printf("over             %llu positions in %u windows of %u\n", (unsigned long long)r->k.n, r->w->n, r->w->n_ctx);
    return EXIT_DONE;
}

/* With saved logits: the text is theirs. */
static int kld_of_file(const opts *o)
{
    session s;
    windows w = {0};
    kld_run r = {.w = &w};
    infer_error err = {0};
    int code;
    if (logits_open(opt_str(o, OPT_REF), &w, &r.file, &err) < 0) {
        cli_fail_err(&err);
        return EXIT_OTHER;
    }
    r.n_vocab = logits_n_vocab(r.file);
    int64_t chunks = opt_int(o, OPT_CHUNKS);
    if (chunks > 0 && chunks < w.n)
        w.n = (uint32_t)chunks;
    session_wish wish = wish_for(&w, 0);
    if (session_open(&s, o, &wish, SESSION_ENGINE, NULL, &code, &err) < 0) {
        cli_fail(code, "%s", err.text);
    } else {
        code = measure_kld(&s, &r, &err) < 0 ? cli_fail_err(&err) : print_kld(o, &r);
        session_close(&s);
    }
    kld_free(&r.k);
    logits_close(r.file, NULL);
    windows_free(&w);
    return cli_finish(code);
}

/* With a second engine: window by window, the reference first. */
static int kld_of_engine(const opts *o)
{
    session s, ref;
    windows w = {0};
    kld_run r = {.w = &w, .session = &ref};
    infer_error err = {0};
    int code;
    session_wish wish = wish_for(NULL, (uint32_t)opt_int(o, OPT_CTX_SIZE));
    if (session_open(&s, o, &wish, SESSION_ENGINE, NULL, &code, &err) < 0)
        return cli_fail(code, "%s", err.text);
    wish.model = opt_str(o, OPT_REF_MODEL);
    wish.devices = opt_str(o, OPT_REF_DEVICE);
    if (session_open(&ref, o, &wish, SESSION_ENGINE, &s, &code, &err) < 0) {
        cli_fail(code, "the reference: %s", err.text);
        session_close(&s);
        return code;
    }
    r.n_vocab = ref.info.n_vocab;
    infer_status st = read_windows(o, &s, &w, &err);
    if (st >= 0)
        st = measure_kld(&s, &r, &err);
    code = st < 0 ? cli_fail_err(&err) : print_kld(o, &r);
    free(r.kept);
    kld_free(&r.k);
    windows_free(&w);
    session_close(&ref);
    session_close(&s);
    return cli_finish(code);
}

static int run_kld(const opts *o)
{
    int file = opt_set(o, OPT_REF), engine = opt_set(o, OPT_REF_MODEL) || opt_set(o, OPT_REF_DEVICE);
    if (file + engine != 1)
        return cli_fail(EXIT_USAGE,
                        "kld: against what? give --ref FILE alone, or --ref-device ID, --ref-model FILE or both");
    if (opt_set(o, OPT_SAVE_LOGITS))
        return cli_fail(EXIT_USAGE, "--save-logits: belongs to perplexity");
    if (file && (opt_set(o, OPT_FILE) || opt_set(o, OPT_CTX_SIZE)))
        return cli_fail(EXIT_USAGE, "--ref: holds text and window already; leave -f and -c out");
    if (engine && !opt_str(o, OPT_FILE))
        return cli_fail(EXIT_USAGE, "kld: on which text? give -f FILE");
    return file ? kld_of_file(o) : kld_of_engine(o);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *verb;
        int (*run)(const opts *o); /* NULL: not built yet */
    } verbs[] = {{"perplexity", perplexity}, {"kld", run_kld}, {"verify", NULL}};
    opts o;
    size_t i = 0;
    int code = cli_start(&program, &o, argc, argv);
    while (code < 0 && i < 3 && strcmp(verbs[i].verb, o.args[0]))
        i++;
    if (code < 0 && i == 3)
        code = cli_fail(EXIT_USAGE, "\"%s\": no such measurement (perplexity, kld)", o.args[0]);
    else if (code < 0 && !verbs[i].run)
        code = cli_fail(EXIT_USAGE, "%s: not built yet", verbs[i].verb);
    if (code < 0)
        code = session_preflight(&o);
    if (code < 0 && !opt_int(&o, OPT_CHUNKS))
        code = cli_fail(EXIT_USAGE, "--chunks 0: leaves nothing to evaluate; -1 takes all windows");
    if (code < 0)
        code = verbs[i].run(&o);
    opts_free(&o);
    return code;
}
