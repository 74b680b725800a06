/* The step's budget: it meets the target on machines of several kinds, uses what the target leaves, follows change, and
 * lets prompts go on in any case. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>

#include "unit/sched_world.h"

/* Machines: nanoseconds of a step of so many rows. */
static double affine(uint32_t rows)
{
    return 5e6 + 2e4 * rows;
}

static double flat(uint32_t rows) /* bound by the weights' bytes, then by arithmetic */
{
    return rows < 256 ? 8e6 + 1e3 * rows : 8e6 + 256e3 + 3e4 * (rows - 256);
}

static double stairs(uint32_t rows) /* tiles */
{
    return 4e6 + 2.5e6 * ((rows + 127) / 128);
}

static double steep(uint32_t rows)
{
    return 1e6 + 4e5 * rows;
}

typedef double machine(uint32_t rows);

static uint32_t best(machine *m, double target, uint32_t decodes)
{
    uint32_t n = decodes;
    while (n < 2048 && m(n + 1) <= target)
        n++;
    return n;
}

typedef struct run_of {
    double rows;          /* mean */
    double late, longest; /* part of the steps over the target; the longest, as a multiple of it */
} run_of;

/* n steps in which `decodes` streams run and there are always prompts to read. */
static run_of run(infer_budget *b, machine *m, double scale, uint32_t decodes, uint32_t n, double noise, rng *r)
{
    run_of out = {0};
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t rows = infer_budget_rows(b, decodes);
        assert_true(rows >= decodes + b->least && rows <= b->max_rows);
        const double ns = scale * m(rows) * (1 + noise * ((double)rng_below(r, 2001) / 1000 - 1));
        infer_budget_note(b, rows, (uint64_t)ns);
        out.rows += (double)rows / n;
        out.late += ns > (double)b->target_ns ? 1.0 / n : 0;
        out.longest = fmax(out.longest, ns / (double)b->target_ns);
    }
    return out;
}

static void test_converges(void **state)
{
    (void)state;
    static machine *const machines[] = {affine, flat, stairs};
    for (size_t k = 0; k < 3; k++) {
        for (int noisy = 0; noisy < 2; noisy++) {
            infer_budget b;
            rng r = {k};
            infer_budget_init(&b, 20000000, 2048);
            for (uint32_t i = 0; i < 4; i++) /* the streams alone */
                infer_budget_note(&b, 16, (uint64_t)machines[k](16));
            run(&b, machines[k], 1, 16, 40, noisy * 0.04, &r);
            const run_of x = run(&b, machines[k], 1, 16, 500, noisy * 0.04, &r);
            const double most = best(machines[k], 20e6, 16);
            print_message("machine %u, noise %d %%: %.0f rows of %.0f, %.1f %% late, longest %.2f\n", (unsigned)k,
                          noisy * 4, x.rows, most, 100 * x.late, x.longest);
            assert_true(x.rows > 0.75 * most);
            assert_true(x.late < 0.05 && x.longest < 1.3);
        }
    }
}

/* Where the target cannot be met prompts go on at the least rate, and there the target stays out of reach. */
static void test_out_of_reach(void **state)
{
    (void)state;
    infer_budget b;
    rng r = {1};
    infer_budget_init(&b, 2000000, 2048);
    run(&b, steep, 1, 8, 20, 0, &r);
    assert_int_equal(infer_budget_rows(&b, 8), 8 + b.least);
    infer_budget_init(&b, 0, 2048); /* no target, no limit */
    run(&b, steep, 1, 8, 20, 0, &r);
    assert_int_equal(infer_budget_rows(&b, 8), 2048);
}

/* A machine that slows down by half, and back; one hiccup of a hundred times a step's time. */
static void test_follows(void **state)
{
    (void)state;
    infer_budget b;
    rng r = {1};
    infer_budget_init(&b, 20000000, 2048);
    run(&b, affine, 1, 16, 60, 0, &r);
    run(&b, affine, 1.5, 16, 20, 0, &r);
    run_of x = run(&b, affine, 1.5, 16, 200, 0, &r);
    assert_true(x.late < 0.05);
    run(&b, affine, 1, 16, 600, 0, &r);
    x = run(&b, affine, 1, 16, 200, 0, &r);
    assert_true(x.late < 0.05 && x.rows > 0.75 * best(affine, 20e6, 16));
    infer_budget_note(&b, infer_budget_rows(&b, 16), 2000000000);
    run(&b, affine, 1, 16, 300, 0, &r);
    x = run(&b, affine, 1, 16, 50, 0, &r);
    assert_true(x.late < 0.05 && x.rows > 0.75 * best(affine, 20e6, 16));
}

/* In the scheduler, on a virtual clock: streams go on while prompts come, and every prompt is read. */
static void test_streams(void **state)
{
    (void)state;
    double longest[2];
    for (int on = 0; on < 2; on++) {
        rng r = {5};
        world *w = world_of((shape){.blocks = 1024, .block = 16, .parallel = 16, .batched = 1024, .ctx = 500});
        infer_budget_init(&w->s.budget, on ? 12000000 : 0, 1024);
        uint32_t started = 0;
        longest[on] = 0;
        for (uint32_t i = 0; i < 400; i++) {
            while (i > 20 && w->s.queue.n < 4)
                submit_n(w, 300 + rng_below(&r, 100), 20, 0);
            while (w->s.n_running + w->s.queue.n < 8)
                submit_n(w, 4, 400, 0);
            const uint32_t rows = build(w);
            check_image(w, rows);
            uint32_t streams = 0;
            for (uint32_t k = 0; k < w->st->n_batch; k++) {
                streams += w->st->batch[k].rows == 1;
                started += w->st->batch[k].samples && w->st->batch[k].rows > 1;
            }
            const double ns = affine(rows);
            infer_sched_note_time(&w->s, w->st->im, (uint64_t)ns);
            if (i > 40 && streams)
                longest[on] = fmax(longest[on], ns);
            finish_step(w, &r);
        }
        print_message("target %s: longest step %.1f ms, %u prompts read\n", on ? "12 ms" : "none", longest[on] / 1e6,
                      started);
        assert_true(started > 50);
        drain(w, &r);
        world_free(w);
    }
    assert_true(longest[1] < 12.5e6 && longest[0] > 20e6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_converges),
        cmocka_unit_test(test_out_of_reach),
        cmocka_unit_test(test_follows),
        cmocka_unit_test(test_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
