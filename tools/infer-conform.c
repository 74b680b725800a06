/*
 * infer-conform: runs the conformance kit on a backend and prints the level it reaches. The kit itself is in the
 * library; this is the command line and the two forms of the result.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include <infer/conform.h>

#include "cli.h"
#include "sbuf.h"

typedef struct program {
    opts o;
    int verbose;
    int unwritten;      /* a line of the result could not be kept */
    json_t *lists[4];   /* by outcome; of passes those with figures */
    uint32_t passed[8]; /* by tier */
    uint32_t run[8];
} program;

/* One row for a case of the JSON result. */
static json_t *row(const infer_conform_case *c)
{
    static const char *const keys[] = {"case", "case", "case", "op"};
    json_t *r = json_pack("{ss%}", keys[c->outcome], c->name, strlen(c->name));
    if (r && c->outcome != INFER_CONFORM_FALLBACK)
        json_object_set_new(r, "tier", json_sprintf("T%u", c->tier));
    sbuf clean = {0};
    sbuf_add_utf8(&clean, c->detail, strlen(c->detail));
    if (r && !clean.failed)
        json_object_set_new(
            r, c->outcome == INFER_CONFORM_SKIP || c->outcome == INFER_CONFORM_FALLBACK ? "reason" : "detail",
            json_stringn(clean.p ? clean.p : "", clean.n));
    sbuf_free(&clean);
    if (r && c->outcome == INFER_CONFORM_FAIL)
        json_object_set_new(r, "seed", json_integer((json_int_t)c->seed));
    return r;
}

static void report(void *user, const infer_conform_case *c)
{
    static const char *const words[] = {"pass", "FAIL", "skip", "fallback"};
    program *p = user;
    if (c->outcome != INFER_CONFORM_FALLBACK && c->outcome != INFER_CONFORM_SKIP) {
        p->run[c->tier]++;
        p->passed[c->tier] += c->outcome == INFER_CONFORM_PASS;
    }
    int figures = c->outcome == INFER_CONFORM_PASS && *c->detail; /* of T7 */
    if (opt_int(&p->o, OPT_JSON)) {
        if ((figures || c->outcome != INFER_CONFORM_PASS) && json_array_append_new(p->lists[c->outcome], row(c)))
            p->unwritten = 1;
        return;
    }
    if (c->outcome == INFER_CONFORM_FAIL)
        printf("%-8s %s --seed %llu: %s\n", words[c->outcome], c->name, (unsigned long long)c->seed, c->detail);
    else if (p->verbose || figures || c->outcome == INFER_CONFORM_FALLBACK)
        printf("%-8s %s%s%s\n", words[c->outcome], c->name, *c->detail ? ": " : "", c->detail);
}

static const char *setting(void *user, const char *backend, const char *key)
{
    const program *p = user;
    size_t n = strlen(key);
    (void)backend; /* only the backend under test is loaded beside the built-in reference, which has none */
    const opt_value *v = &p->o.v[OPT_SET];
    for (size_t i = v->n; i-- > 0;)
        if (!strncmp(v->list[i], key, n) && v->list[i][n] == '=')
            return v->list[i] + n + 1;
    return NULL;
}

static int print_result(program *p, const infer_conform_verdict *v);

/* A case that does not end: nothing else can be done than to say so and to go. */
static void hang(void *user, const infer_conform_case *c, const infer_conform_verdict *v)
{
    report(user, c);
    int code = print_result(user, v);
    if (!code)
        code = cli_fail(EXIT_DEVICE_LOST, "%s --seed %llu: %s", c->name, (unsigned long long)c->seed, c->detail);
    _exit(cli_finish(code));
}

/* Failures are what is looked for here, and provoked: the backend's own words come with -v only. */
static void log_line(void *user, int level, const char *area, const char *text)
{
    const program *p = user;
    if (p->verbose)
        cli_log_sink(NULL, level, area, text);
}

static void level_name(char buf[8], int32_t level)
{
    snprintf(buf, 8, level < 0 ? "none" : "T%d", (int)level);
}

static int print_json(program *p, const infer_conform_verdict *v)
{
    char level[8];
    level_name(level, v->level);
    json_t *j =
        json_pack("{so,ss,ss,ss,ss,sI,sI,so,sO,sO,sO,sO}", "level", v->level < 0 ? json_null() : json_string(level),
                  "backend", v->backend, "version", v->version, "device", v->device, "device_name", v->device_name,
                  "seed", (json_int_t)opt_int(&p->o, OPT_SEED), "passed", (json_int_t)v->n_pass, "hung",
                  v->hung[0] ? json_string(v->hung) : json_null(), "failures", p->lists[INFER_CONFORM_FAIL], "skipped",
                  p->lists[INFER_CONFORM_SKIP], "fallbacks", p->lists[INFER_CONFORM_FALLBACK], "speed",
                  p->lists[INFER_CONFORM_PASS]);
    char *text = j && !p->unwritten ? json_dumps(j, JSON_INDENT(1)) : NULL;
    if (text)
        puts(text);
    free(text);
    json_decref(j);
    return text ? EXIT_DONE : cli_fail(EXIT_OTHER, "print the result: no memory");
}

static void print_text(const program *p, const infer_conform_verdict *v)
{
    char level[8];
    uint32_t max_tier = (uint32_t)opt_int(&p->o, OPT_MAX_TIER);
    for (uint32_t t = 0; t <= max_tier; t++)
        if (p->run[t])
            printf("T%u: %u of %u cases pass\n", t, p->passed[t], p->run[t]);
        else if (!opt_set(&p->o, OPT_CASE))
            printf("T%u: no case ran\n", t);
    level_name(level, v->level);
    printf("%u skipped, %u ops fall back to the host\n", v->n_skip, v->n_fallback);
    printf("%s (backend %s %s, %s): level %s\n", v->device, v->backend, v->version, v->device_name, level);
}

static int print_result(program *p, const infer_conform_verdict *v)
{
    if (opt_int(&p->o, OPT_JSON))
        return print_json(p, v);
    print_text(p, v);
    return EXIT_DONE;
}

int main(int argc, char **argv)
{
    static const cli_program what = {
        .name = "infer-conform",
        .bit = PROG_CONFORM,
        .usage = "infer-conform (--backend NAME | --plugin FILE.so) [--device ID] [--json] [OPTION]…",
        .what = "Runs the conformance kit on a backend and prints the level that it reaches."};
    program p = {0};
    infer_error err = {0};
    infer_conform_verdict v = {.struct_size = sizeof(v)};
    int code = cli_start(&what, &p.o, argc, argv);
    if (code >= 0)
        goto out;
    const opt_value *set = &p.o.v[OPT_SET];
    for (size_t i = 0; i < set->n; i++) {
        const char *eq = strchr(set->list[i], '=');
        if (eq && eq > set->list[i])
            continue;
        code = cli_fail(EXIT_USAGE, "--set: \"%s\" is not KEY=VALUE", set->list[i]);
        goto out;
    }
    if (opt_set(&p.o, OPT_BACKEND) == opt_set(&p.o, OPT_PLUGIN)) {
        code = cli_fail(EXIT_USAGE, "either --backend or --plugin says what to test");
        goto out;
    }
    p.verbose = cli_log_level > 1;
    setvbuf(stdout, NULL, _IOLBF, 0); /* so that a device that ends the process leaves the names of its cases */
    for (int i = 0; i <= (int)INFER_CONFORM_FALLBACK; i++)
        p.lists[i] = json_array();
    infer_conform_options opt = {.struct_size = sizeof(opt),
                                 .max_tier = (uint32_t)opt_int(&p.o, OPT_MAX_TIER),
                                 .backend = opt_set(&p.o, OPT_BACKEND) ? opt_str(&p.o, OPT_BACKEND) : NULL,
                                 .plugin = opt_set(&p.o, OPT_PLUGIN) ? opt_str(&p.o, OPT_PLUGIN) : NULL,
                                 .device = opt_set(&p.o, OPT_DEVICE) ? opt_str(&p.o, OPT_DEVICE) : NULL,
                                 .backend_path =
                                     opt_set(&p.o, OPT_BACKEND_PATH) ? opt_str(&p.o, OPT_BACKEND_PATH) : NULL,
                                 .only = opt_set(&p.o, OPT_CASE) ? opt_str(&p.o, OPT_CASE) : NULL,
                                 .lists = opt_set(&p.o, OPT_LISTS) ? opt_str(&p.o, OPT_LISTS) : NULL,
                                 .seed = (uint64_t)opt_int(&p.o, OPT_SEED),
                                 .setting = setting,
                                 .report = report,
                                 .log = log_line,
                                 .user = &p,
                                 .case_timeout_s = (uint32_t)opt_int(&p.o, OPT_CASE_TIMEOUT),
                                 .hang = hang,
                                 .trace_calls = opt_str(&p.o, OPT_TRACE_CALLS)};
    if (infer_conform_run(&opt, &v, &err)) {
        code = err.status == INFER_E_BAD_FILE ? cli_fail(EXIT_USAGE, "%s", err.text) : cli_fail_err(&err);
        goto out;
    }
    if (opt.only && !v.n_pass && !v.n_fail && !v.n_skip) {
        code = cli_fail(EXIT_USAGE, "no case matches \"%s\"", opt.only);
        goto out;
    }
    code = print_result(&p, &v);
    if (!code && v.hung[0])
        code = cli_fail(EXIT_DEVICE_LOST, "the device hung in %s; what came after it was not run", v.hung);
    else if (!code && v.level < (int32_t)opt.max_tier)
        code = EXIT_OTHER;
    code = cli_finish(code);
    if (v.hung[0])
        _exit(code); /* the device may still be at work */
out:
    for (int i = 0; i < 4; i++)
        json_decref(p.lists[i]);
    opts_free(&p.o);
    return code;
}
