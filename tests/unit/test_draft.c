/* What a text proposes, against a search through all of it; and how many of it a step tries, on machines of several
 * kinds. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>

#include "unit/rng.h"
#include "unit/sched_util.h"

/* The longest run, up to `most`, of the text's last tokens that ends earlier too; its length. */
static uint32_t search(const int32_t *t, uint32_t n, uint32_t most)
{
    uint32_t best = 0;
    for (uint32_t at = 0; at + 1 < n; at++) {
        uint32_t len = 0;
        while (len < most && len <= at && t[at - len] == t[n - 1 - len])
            len++;
        best = len > best ? len : best;
    }
    return best;
}

static void test_text(void **state)
{
    (void)state;
    const int32_t text[] = {1, 2, 3, 4, 5, 6, 7, 2, 3, 4};
    infer_draft d;
    assert_true(infer_draft_create(&d, 32));
    infer_draft_take(&d, text, 7);
    assert_int_equal(d.len, 0);
    infer_draft_take(&d, text, 8);
    assert_int_equal(d.len, 1);
    infer_draft_take(&d, text, 10);
    assert_int_equal(d.len, 3);
    static const int32_t next[] = {5, 6, 7, 2, 3, 4, 5, 6, 7, 2}; /* then what it proposed */
    for (uint32_t i = 0; i < 10; i++)
        assert_int_equal(infer_draft_token(&d, text, i), next[i]);
    infer_draft_destroy(&d);
    /* the place read last counts, not the first one */
    const int32_t again[] = {1, 2, 3, 1, 2, 4, 1, 2};
    assert_true(infer_draft_create(&d, 32));
    infer_draft_take(&d, again, 8);
    assert_int_equal(infer_draft_token(&d, again, 0), 4);
    infer_draft_destroy(&d);
}

/* On texts of all kinds: what it claims is so, and it misses hardly a run that a search finds. */
static void test_search(void **state)
{
    (void)state;
    enum { N = 1500 };
    uint64_t missed = 0, found = 0;
    rng r = {3};
    for (int kind = 0; kind < 40; kind++) {
        int32_t t[N];
        const uint32_t ids = 2u << kind % 12, period = 1 + rng_below(&r, 60),
                       noise = kind % 5 ? 1 + rng_below(&r, 30) : 0;
        infer_draft d;
        assert_true(infer_draft_create(&d, N));
        for (uint32_t n = 1; n <= N; n++) {
            const int copies = n > period && noise && rng_below(&r, noise);
            t[n - 1] = copies ? t[n - 1 - period] : (int32_t)rng_below(&r, ids);
            if (rng_below(&r, 3) == 0 && n < N)
                continue; /* several at once */
            infer_draft_take(&d, t, n);
            assert_int_equal(d.n, n);
            const uint32_t len = search(t, n, INFER_DRAFT_NGRAM), mine = d.len < len ? d.len : len;
            found += len;
            missed += len - mine;
            if (!d.len)
                continue;
            assert_true(d.at + 1 < n && d.len <= d.at + 1);
            for (uint32_t k = 0; k < d.len; k++)
                assert_int_equal(t[d.at - k], t[n - 1 - k]);
            int32_t more[N + 40];
            memcpy(more, t, n * sizeof *t);
            for (uint32_t k = 0; k < 40; k++) {
                more[n + k] = more[d.at + 1 + k];
                assert_int_equal(infer_draft_token(&d, t, k), more[n + k]);
            }
        }
        infer_draft_destroy(&d);
    }
    print_message("%llu of %llu tokens of runs missed\n", (unsigned long long)missed, (unsigned long long)found);
    assert_true(missed * 10 < found);
}

/* ---- How many -------------------------------------------------------------------------------------------------- */

/* Nanoseconds of a step of n rows. */
typedef double machine(double n);

static double flat(double n) /* memory-bound: rows cost next to nothing */
{
    return 10e6 + 0.1e6 * n;
}

static double steep(double n) /* each row as much as the first */
{
    return 10e6 * n;
}

static double stairs(double n) /* kernels for 1, 4, 16 rows */
{
    return n <= 1 ? 10e6 : n <= 4 ? 14e6 : n <= 16 ? 30e6 : 3e6 * n;
}

/* A request's steps on a machine, with a text of which each token copies what stood a period before with probability
 * `copies`, beside `others` that decode. Tokens of all a nanosecond, over those without drafts. */
static double gain_of(machine *m, double copies, uint32_t others, infer_spec *x, double *drafts)
{
    enum { N = 4000, PERIOD = 37 };
    static int32_t t[N];
    infer_spec_text text = {{0}, {{0}, {0}}};
    rng r = {9};
    for (uint32_t i = 0; i < N; i++)
        t[i] = i >= PERIOD && rng_below(&r, 1000) < 1000 * copies ? t[i - PERIOD] : (int32_t)rng_below(&r, 1000000);
    assert_true(infer_draft_create(&text.draft, N));
    infer_spec_init(x, INFER_SPECULATIVE_NGRAM, 0, 0, 512);
    infer_draft_take(&text.draft, t, 100);
    double ns = 0, made = 0;
    uint64_t steps = 0, tried = 0;
    for (uint64_t n = 100; n + 20 < N; steps++) {
        double g;
        x->rows = 1 + others;
        x->tokens = x->rows;
        const uint32_t k = steps % 64 ? infer_spec_choose(x, &text, 0, 100, &g) : 0;
        uint32_t right = 0;
        assert_true(k <= INFER_SPEC_MOST);
        while (right < k && infer_draft_token(&text.draft, t, right) == t[n + right])
            right++;
        n += right + 1;
        infer_spec_read(x, &text, t, n);
        const double took = m(1 + others + k) * (0.9 + 0.2 * (double)rng_below(&r, 1000) / 1000);
        infer_spec_note(x, 1 + others + k, (uint64_t)took);
        ns += took;
        made += 1 + right + others;
        tried += k;
    }
    infer_draft_destroy(&text.draft);
    *drafts = (double)tried / (double)steps;
    return made / ns * m(1 + others) / (1 + others);
}

static void test_pays(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        machine *m;
        double copies;
        uint32_t others;
        double least, most; /* gain */
    } rows[] = {
        {"flat, copies", flat, 0.97, 0, 5, 17},      {"flat, copies half", flat, 0.5, 0, 1.1, 3},
        {"flat, never", flat, 0, 0, 0.99, 1.01},     {"steep, copies", steep, 0.99, 0, 0.97, 1.05},
        {"steep, half", steep, 0.5, 0, 0.97, 1.05},  {"steep, never", steep, 0, 7, 0.99, 1.01},
        {"stairs, copies", stairs, 0.97, 0, 2, 6},   {"stairs, half", stairs, 0.5, 0, 0.98, 1.6},
        {"stairs, never", stairs, 0, 3, 0.99, 1.01}, {"flat, copies, in company", flat, 0.97, 15, 1.1, 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        infer_spec x;
        double drafts;
        const double gain = gain_of(rows[i].m, rows[i].copies, rows[i].others, &x, &drafts);
        print_message("%-28s %.2f drafts a step, %.2f times as fast\n", rows[i].name, drafts, gain);
        assert_true(gain >= rows[i].least && gain <= rows[i].most);
    }
}

/* It is off where it does not pay, and on again when the text, or the machine, changes. */
static void test_changes(void **state)
{
    (void)state;
    enum { N = 3000 };
    static int32_t t[N];
    infer_spec x;
    infer_spec_text text = {{0}, {{0}, {0}}};
    rng r = {4};
    uint32_t tried[3] = {0};
    double g;
    for (uint32_t i = 0; i < N; i++) /* pairs that promise and do not keep, then the same over and over */
        t[i] = i < N / 2 ? (int32_t)(i % 2 ? 7 : rng_below(&r, 100000)) : (int32_t)(i % 50);
    assert_true(infer_draft_create(&text.draft, N));
    infer_spec_init(&x, INFER_SPECULATIVE_NGRAM, 4, 0, 512);
    infer_spec_note(&x, 1, 10000000);
    infer_spec_note(&x, 5, 11000000);
    for (uint64_t n = 1; n < N; n++) {
        x.rows = 1;
        x.tokens = 1;
        const uint32_t k = infer_spec_choose(&x, &text, 0, 100, &g);
        assert_true(k <= 4);
        tried[n > 200 && n < N / 2 ? 0 : n > N / 2 + 200 ? 1 : 2] += k;
        infer_spec_read(&x, &text, t, n);
    }
    assert_true(tried[0] < N / 2 / 20);
    assert_true(tried[1] > (N / 2 - 200) * 3);
    /* as many as streams have time for */
    x.times.target_ns = 10600000;
    assert_in_range(infer_spec_choose(&x, &text, 0, 100, &g), 1, 2);
    x.times.target_ns = 9000000;
    assert_int_equal(infer_spec_choose(&x, &text, 0, 100, &g), 0);
    x.times.target_ns = 0;
    assert_int_equal(infer_spec_choose(&x, &text, 0, 100, &g), 4);
    /* rows that cost more than steps: off; then what they cost is forgotten, and they are tried again */
    for (int i = 0; i < 20; i++) {
        infer_spec_note(&x, 1, 10000000);
        for (uint32_t k = 1; k <= 4; k++)
            infer_spec_note(&x, 1 + k, 15000000 * (1 + k));
    }
    assert_int_equal(infer_spec_choose(&x, &text, 0, 100, &g), 0);
    int again = 0;
    for (int i = 0; i < 400 && !again; i++) {
        infer_spec_note(&x, 1, 10000000);
        again = infer_spec_choose(&x, &text, 0, 100, &g) > 0;
    }
    assert_true(again);
    infer_draft_destroy(&text.draft);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_search),
        cmocka_unit_test(test_pays),
        cmocka_unit_test(test_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
