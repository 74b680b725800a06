/*
 * The conformance kit itself: it passes a right backend, finds every mistake of tests/plugins/bad at its tier, repeats
 * a case alone, and keeps its promises about exclusion lists and refusals. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include "unit/unit.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <infer/conform.h>

#include "plugins/bad/bad.h"

#define TOP_TIER 6u /* T7 only reports */

typedef struct seen {
    const char *pattern; /* of a case that must fail */
    int found;
    uint32_t fails[INFER_CONFORM_MAX_TIER + 1];
    uint32_t n_fails;
    char first[400]; /* the first failure */
    char name[64];
} seen;

static void report(void *user, const infer_conform_case *c)
{
    seen *s = user;
    if (c->outcome != INFER_CONFORM_FAIL)
        return;
    if (!s->n_fails++) {
        snprintf(s->first, sizeof(s->first), "%s: %s", c->name, c->detail);
        snprintf(s->name, sizeof(s->name), "%s", c->name);
    }
    s->fails[c->tier]++;
    s->found |= s->pattern && !fnmatch(s->pattern, c->name, 0);
}

static const char *setting(void *user, const char *backend, const char *key)
{
    (void)user;
    (void)backend;
    if (!strcmp(key, "heap_bytes"))
        return "24M";
    return !strcmp(key, "block_multiple") ? "1" : NULL;
}

static infer_conform_verdict run(uint32_t bug, seen *s, const char *only, const char *lists, uint32_t max_tier)
{
    infer_conform_options opt = {.struct_size = sizeof(opt),
                                 .max_tier = max_tier,
                                 .query = infer_bad_query,
                                 .only = only,
                                 .lists = lists,
                                 .seed = 1,
                                 .setting = setting,
                                 .report = report,
                                 .user = s};
    infer_conform_verdict v = {.struct_size = sizeof(v)};
    infer_error err = {0};
    infer_bad_choose(bug);
    if (infer_conform_run(&opt, &v, &err))
        fail_msg("%s: %s", infer_bad_bugs[bug].name, err.text);
    return v;
}

static void test_right(void **state)
{
    (void)state;
    seen s = {0};
    infer_conform_verdict v = run(0, &s, NULL, NULL, TOP_TIER);
    if (v.n_fail)
        fail_msg("%s", s.first);
    assert_int_equal(v.level, TOP_TIER);
    assert_int_equal(v.n_fallback, 0);
    assert_true(v.n_pass > 700);
    assert_string_equal(v.backend, "bad");
    assert_string_equal(v.device, "bad0");
}

/* Each mistake is found at its own tier, by the cases that are about it; only these are run, for time. */
static void test_each_bug(void **state)
{
    (void)state;
    uint32_t missed = 0;
    for (uint32_t i = 1; i < infer_bad_n_bugs; i++) {
        const infer_bad_bug *b = &infer_bad_bugs[i];
        seen s = {.pattern = b->found};
        if (b->races && strstr(INFER_SANITIZER, "thread"))
            continue; /* the mistake is a race, and would be reported as one */
        infer_conform_verdict v = run(i, &s, b->found, NULL, TOP_TIER);
        if (v.level != (int32_t)b->tier - 1 || !s.fails[b->tier] || !s.found) {
            print_error("not found: %s (%s): %u failures, first %s\n", b->name, b->what, s.fails[b->tier], s.first);
            missed++;
        } else {
            print_message("%-15s %3u failures, %.90s\n", b->name, s.fails[b->tier], s.first);
        }
    }
    assert_int_equal(missed, 0);
}

static uint32_t bug_named(const char *name)
{
    for (uint32_t i = 0; i < infer_bad_n_bugs; i++)
        if (!strcmp(infer_bad_bugs[i].name, name))
            return i;
    fail_msg("no bug %s", name);
    return 0;
}

static void test_level(void **state)
{
    (void)state;
    seen s = {0};
    infer_conform_verdict v = run(bug_named("rope_kind"), &s, NULL, NULL, 1);
    assert_int_equal(v.level, 0);
    assert_int_equal(s.fails[0], 0);
    assert_true(s.fails[1] > 0);
    s = (seen){0};
    v = run(bug_named("rope_kind"), &s, NULL, NULL, 0);
    assert_int_equal(v.level, 0);
    assert_int_equal(v.n_fail, 0);
    s = (seen){0};
    v = run(bug_named("stats"), &s, NULL, NULL, 0);
    assert_int_equal(v.level, -1);
}

/* A failure's name and seed are enough to see it again. */
static void test_repeat(void **state)
{
    (void)state;
    seen s = {0}, again = {0};
    run(bug_named("kv_len"), &s, "t1.*", NULL, 1);
    assert_true(s.name[0]);
    infer_conform_verdict v = run(bug_named("kv_len"), &again, s.name, NULL, 1);
    assert_int_equal(v.n_fail, 1);
    assert_int_equal(v.n_pass, 0);
    assert_string_equal(s.first, again.first);
}

static void write_list(const char *dir, const char *suffix, const char *text)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/bad.%s", dir, suffix);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void test_lists(void **state)
{
    (void)state;
    char dir[] = "/tmp/infer-lists-XXXXXX", path[256];
    assert_non_null(mkdtemp(dir));
    uint32_t bug = bug_named("rope_kind");
    seen s = {0};
    /* no list file: nothing is excluded */
    infer_conform_verdict v = run(bug, &s, "t1.rope.*", dir, 1);
    assert_true(v.n_fail > 0);
    uint32_t failing = v.n_fail;
    /* known failures do not count */
    write_list(dir, "never", "# what this device will never do\nt1.rope.*  pairs only, by design\n");
    v = run(bug, &(seen){0}, "t1.rope.*", dir, 1);
    assert_int_equal(v.n_fail, 0);
    assert_int_equal(v.n_pass, 0);
    assert_int_equal(v.level, 1);
    /* .notyet cases run, and those that pass are failures of the list */
    write_list(dir, "never", "");
    write_list(dir, "notyet", "t1.rope.*  halves are to come\n");
    v = run(bug, &(seen){0}, "t1.rope.*", dir, 1);
    assert_int_equal(v.n_pass, 0);
    assert_true(v.n_skip >= failing);
    assert_true(v.n_fail > 0);
    s = (seen){0};
    v = run(0, &s, "t1.rope.0", dir, 1);
    assert_int_equal(v.n_fail, 1);
    assert_non_null(strstr(s.first, "notyet"));
    /* a line without a reason is refused, by file and line */
    write_list(dir, "notyet", "\nt1.rope.1\n");
    infer_conform_options opt = {.struct_size = sizeof(opt), .query = infer_bad_query, .lists = dir};
    infer_error err = {0};
    v.struct_size = sizeof(v);
    assert_int_equal(infer_conform_run(&opt, &v, &err), INFER_E_BAD_FILE);
    assert_non_null(strstr(err.text, "bad.notyet:2"));
    snprintf(path, sizeof(path), "%s/bad.never", dir);
    unlink(path);
    snprintf(path, sizeof(path), "%s/bad.notyet", dir);
    unlink(path);
    rmdir(dir);
}

static const infer_plugin_desc *decline(const infer_host *host, const infer_abi_range *range)
{
    (void)range;
    host->log(host->ctx, 0, "not today");
    return NULL;
}

static void test_refusals(void **state)
{
    (void)state;
    infer_error err = {0};
    infer_conform_verdict v = {.struct_size = sizeof(v)};
    infer_conform_options opt = {.struct_size = sizeof(opt), .query = decline};
    assert_int_equal(infer_conform_run(&opt, &v, &err), INFER_E_ABI);
    assert_non_null(strstr(err.text, "not today"));
    opt = (infer_conform_options){.struct_size = sizeof(opt), .plugin = "/nonexistent/infer-x.so"};
    assert_int_equal(infer_conform_run(&opt, &v, &err), INFER_E_ABI);
    opt = (infer_conform_options){.struct_size = sizeof(opt), .backend = "nosuch"};
    assert_int_equal(infer_conform_run(&opt, &v, &err), INFER_E_ABI);
    opt = (infer_conform_options){.struct_size = sizeof(opt), .query = infer_bad_query, .device = "bad9"};
    assert_int_equal(infer_conform_run(&opt, &v, &err), INFER_E_NO_DEVICE);
    opt = (infer_conform_options){.struct_size = sizeof(opt)};
    assert_int_equal(infer_conform_run(&opt, &v, &err), INFER_E_INVALID);
    opt.query = infer_bad_query;
    opt.max_tier = INFER_CONFORM_MAX_TIER + 1;
    assert_int_equal(infer_conform_run(&opt, &v, &err), INFER_E_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_right),  cmocka_unit_test(test_each_bug), cmocka_unit_test(test_level),
        cmocka_unit_test(test_repeat), cmocka_unit_test(test_lists),    cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
