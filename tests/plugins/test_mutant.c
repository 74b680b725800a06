/*
 * The conformance kit against generated mutants: each is run against the cases that are to find it, with a filter, for
 * time; with INFER_TEST_LONG=1 against all cases up to its tier. What survives, and what changes nothing where it is
 * looked for, stands with its reason in mutant/survivors.txt: one more fails, and so does one less.
 * INFER_MUTANT=PATTERN runs only some, with their first failures. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include "unit/unit.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <infer/conform.h>

#include "plugins/mutant/mutant.h"

typedef struct seen {
    uint32_t tier, fails, other;
    char first[300];
} seen;

static int native; /* sim's own timelines, for collectives */

static void report(void *user, const infer_conform_case *c)
{
    seen *s = user;
    if (c->outcome != INFER_CONFORM_FAIL)
        return;
    if (c->tier != s->tier) {
        s->other++;
        return;
    }
    if (!s->fails++)
        snprintf(s->first, sizeof(s->first), "%s: %s", c->name, c->detail);
}

static const char *setting(void *user, const char *backend, const char *key)
{
    static const char *const values[][2] = {
        {"heap_bytes", "24M"}, {"block_multiple", "1"}, {"epilogues", "4"}, {"devices", "2"}};
    (void)user;
    (void)backend;
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
        if (!strcmp(key, values[i][0]))
            return values[i][1];
    return native && !strcmp(key, "native_timelines") ? "1" : NULL;
}

static infer_status run(seen *s, const char *only, uint32_t max_tier, infer_conform_verdict *v)
{
    infer_conform_options opt = {.struct_size = sizeof(opt),
                                 .max_tier = max_tier,
                                 .query = infer_mutant_query,
                                 .only = only,
                                 .seed = 1,
                                 .setting = setting,
                                 .report = report,
                                 .user = s};
    infer_error e = {0};
    *v = (infer_conform_verdict){.struct_size = sizeof(*v)};
    infer_status st = infer_conform_run(&opt, v, &e);
    if (st)
        snprintf(s->first, sizeof(s->first), "refused: %.200s", e.text);
    return st;
}

/* Without a mistake nothing fails: with the host's timelines, and with sim's own, where collectives run too. */
static void test_right(void **state)
{
    (void)state;
    infer_mutant_choose(NULL);
    for (native = 0; native < 2; native++)
        for (uint32_t t = 4; t <= 6; t++) { /* lower tiers: test_conform has them with another decorator of sim */
            seen s = {.tier = t};
            char only[8];
            infer_conform_verdict v;
            snprintf(only, sizeof(only), "t%u.*", t);
            assert_int_equal(run(&s, only, 6, &v), INFER_OK);
            if (v.n_fail)
                fail_msg("%s", s.first);
            assert_true(v.n_pass > 0);
        }
    native = 0;
    seen s = {.tier = 4};
    infer_conform_verdict v;
    assert_int_equal(run(&s, "t4.prog.save_load", 6, &v), INFER_OK);
    assert_int_equal(v.n_pass, 1);
    assert_int_equal(run(&s, "t4.prog.claim", 6, &v), INFER_OK);
    assert_int_equal(v.n_pass, 1);
}

/* ---- Expectations ------------------------------------------------------------------------------------------ */

enum { FOUND, SURVIVES, UNCHANGED };
static const char *const words[] = {"found", "survives", "unchanged"};

typedef struct expectation {
    char pattern[64], word[16], reason[200];
    uint32_t used;
} expectation;

static expectation list[400];
static uint32_t n_list;

/* Lines: a pattern for names, "survives" or "unchanged", the reason. */
static void read_list(void)
{
    char path[1024], line[400];
    const char *dir = getenv("INFER_SRCDIR");
    snprintf(path, sizeof(path), "%s/tests/plugins/mutant/survivors.txt", dir ? dir : ".");
    FILE *f = fopen(path, "r");
    if (!f)
        fail_msg("%s is not there", path);
    while (fgets(line, sizeof(line), f)) {
        expectation *x = &list[n_list];
        if (line[0] == '#' || line[0] == '\n')
            continue;
        assert_true(n_list < sizeof(list) / sizeof(list[0]));
        if (sscanf(line, "%63s %15s %199[^\n]", x->pattern, x->word, x->reason) != 3 ||
            (strcmp(x->word, words[SURVIVES]) && strcmp(x->word, words[UNCHANGED])))
            fail_msg("%s: a line without a word or a reason: %s", path, line);
        n_list++;
    }
    fclose(f);
}

static expectation *expected(const char *name)
{
    for (uint32_t i = 0; i < n_list; i++)
        if (!fnmatch(list[i].pattern, name, 0))
            return &list[i];
    return NULL;
}

/* ---- The run ----------------------------------------------------------------------------------------------- */

static void test_mutants(void **state)
{
    (void)state;
    const infer_mutant *all;
    const char *some = getenv("INFER_MUTANT"), *long_run = getenv("INFER_TEST_LONG");
    int complete = long_run && *long_run;
    uint32_t n = infer_mutants(&all), count[3] = {0}, wrong = 0, by_tier[7][2] = {{0}};
    read_list();
    for (uint32_t i = 0; i < n; i++) {
        const infer_mutant *m = &all[i];
        seen s = {.tier = m->tier};
        infer_conform_verdict v;
        if (some && fnmatch(some, m->name, 0))
            continue;
        if (strstr(m->name, "early_unwaited") && strstr(INFER_SANITIZER, "thread"))
            continue; /* the mistake is a race, and would be reported as one */
        native = strstr(m->name, "comm_") != NULL;
        infer_mutant_choose(m);
        infer_status st = run(&s, complete ? NULL : m->only, m->tier, &v);
        int got = s.fails || st ? FOUND : infer_mutant_changes() ? SURVIVES : UNCHANGED;
        expectation *x = expected(m->name);
        count[got]++;
        by_tier[m->tier][0] += got == FOUND;
        by_tier[m->tier][1] += got != UNCHANGED;
        if (x)
            x->used++;
        if (some)
            print_message("%-28s %-9s %s\n", m->name, words[got], s.first);
        if (strcmp(words[got], x ? x->word : words[FOUND]) && !(complete && x)) {
            print_error("%s (%s, tier T%u, cases %s): %s, but expected: %s\n", m->name, m->what, m->tier, m->only,
                        words[got], x ? x->word : words[FOUND]);
            wrong++;
        }
    }
    infer_mutant_choose(NULL);
    native = 0;
    for (uint32_t t = 0; t < 7; t++)
        print_message("T%u finds %u of %u mutants that change something\n", t, by_tier[t][0], by_tier[t][1]);
    uint32_t real = count[FOUND] + count[SURVIVES];
    print_message("%u mutants: %u found, %u survive, %u change nothing where they are looked for\n", n, count[FOUND],
                  count[SURVIVES], count[UNCHANGED]);
    for (uint32_t i = 0; i < n_list && !some; i++)
        if (!list[i].used) {
            print_error("survivors.txt: nothing is called %s\n", list[i].pattern);
            wrong++;
        }
    assert_int_equal(wrong, 0);
    if (!some) {
        assert_true(real >= 100);
        assert_true(count[FOUND] * 100 >= real * 95);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_right), cmocka_unit_test(test_mutants)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
