/* core/ops: sampling, step by step and by its frequencies. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>

#include "unit/ops_util.h"

enum { V = 40 };

static infer_sample_row off(void)
{
    return (infer_sample_row){.top_p = 1, .repetition_penalty = 1, .counts_row = -1};
}

/* One row of n logits, no optional operands. */
static int32_t choose(const float *logits, int64_t n, infer_sample_row row, float *logprob)
{
    int32_t id;
    float lp;
    op_build b;
    op_begin(&b, INFER_OP_SAMPLE, NULL, 0);
    OP_IN2(&b, F32, (void *)(uintptr_t)logits, 1, n);
    OP_IN2(&b, U8, &row, 1, sizeof row);
    OP_OUT1(&b, I32, &id, 1);
    OP_OUT1(&b, F32, &lp, 1);
    op_run(&b);
    if (logprob)
        *logprob = lp;
    return id;
}

static void test_greedy(void **state)
{
    (void)state;
    float x[5] = {0, logf(2), NAN, logf(5), -1e30f}, lp;
    assert_int_equal(choose(x, 5, off(), &lp), 3);
    assert_true(fabs(lp - log(5.0 / 8)) < 1e-6);
    x[1] = x[3] = 7; /* the lower id of two */
    assert_int_equal(choose(x, 5, off(), &lp), 1);
    assert_true(fabs(lp - log(1 / (2 + exp(-7)))) < 1e-6);
    x[4] = INFINITY;
    assert_int_equal(choose(x, 5, off(), &lp), 4);
    assert_true(lp == 0);
    infer_sample_row r = off();
    r.temperature = -1;
    x[4] = 0;
    assert_int_equal(choose(x, 5, r, NULL), 1);
    for (int i = 0; i < 5; i++)
        x[i] = i % 2 ? NAN : -INFINITY;
    r.temperature = 1;
    assert_int_equal(choose(x, 5, r, &lp), -1);
    assert_true(isnan(lp));
    r.temperature = 0;
    assert_int_equal(choose(x, 5, r, &lp), -1);
}

/* All inputs at once, on numbers that show the order of the steps. */
static void test_adjust(void **state)
{
    (void)state;
    float x[2 * 6] = {4, 3, -2, 1, 0, 2.5f, 1, 2, 3, 4, 5, 6};
    uint16_t counts[2 * 6] = {0x8000, 2, 0x8001, 0, 0, 0, 0, 0, 0, 0, 0, 0x7FFF};
    infer_sample_row rows[2] = {off(), off()};
    infer_sample_bias bias[3] = {{3, 4}, {99, 100}, {4, -INFINITY}};
    uint32_t mask[2] = {0x3D, 0}; /* id 1 is forbidden */
    int32_t ids[2], top[2 * 6];
    float lp[2], tops[2 * 6];
    infer_attrs_sample a = {.struct_size = sizeof a, .n_top = 6};
    rows[0].counts_row = 0;
    rows[0].repetition_penalty = 2;
    rows[0].presence_penalty = 0.5f;
    rows[0].frequency_penalty = 0.25f;
    rows[0].bias_count = 100; /* past the list's end */
    rows[0].flags = INFER_SAMPLE_MASKED;
    rows[1].counts_row = 1; /* counts only; the mask of nothing is not in force */
    op_build b;
    op_begin(&b, INFER_OP_SAMPLE, &a, sizeof a);
    OP_IN2(&b, F32, x, 2, 6);
    OP_IN2(&b, U8, rows, 2, sizeof rows[0]);
    OP_IN2(&b, U16, counts, 2, 6);
    OP_IN2(&b, U8, bias, 3, sizeof bias[0]);
    OP_IN2(&b, U32, mask, 2, 1);
    OP_OUT1(&b, I32, ids, 2);
    OP_OUT1(&b, F32, lp, 2);
    OP_OUT2(&b, I32, top, 2, 6);
    OP_OUT2(&b, F32, tops, 2, 6);
    op_run(&b);
    /* id 0: 4/2; 1: masked; 2: -2*2 - 0.5 - 0.25; 3: 1 + 4; 4: forbidden; 5: 2.5 */
    const double z[4] = {5, 2.5, 2, -4.75};
    const int32_t order[6] = {3, 5, 0, 2, -1, -1};
    double sum = 0;
    for (int i = 0; i < 4; i++)
        sum += exp(z[i]);
    assert_memory_equal(top, order, sizeof order);
    for (int i = 0; i < 4; i++)
        assert_true(fabs(tops[i] - (z[i] - log(sum))) < 1e-6);
    assert_true(isnan(tops[4]) && isnan(tops[5]));
    assert_int_equal(ids[0], 3);
    assert_true(lp[0] == tops[0]);
    assert_int_equal(ids[1], 5);
    /* the chosen ids are counted; a full entry stays, and keeps its other bit apart */
    assert_int_equal(counts[3], 1);
    assert_int_equal(counts[6 + 5], 0x7FFF);
    x[0] = 100;
    op_run(&b);
    assert_int_equal(ids[0], 0);
    assert_int_equal(counts[0], 0x8001);
    /* a row that does not ask for the first ones chooses as ever */
    const float was = lp[0];
    const int32_t others = top[6];
    rows[0].flags |= INFER_SAMPLE_NO_TOP;
    op_run(&b);
    assert_int_equal(ids[0], 0);
    assert_true(fabsf(lp[0] - was) < 1e-6f);
    for (int i = 0; i < 6; i++)
        assert_true(top[i] == -1 && isnan(tops[i]));
    assert_int_equal(top[6], others);
}

/* Rows that share a counts row all see it as it was, and are all counted. */
static void test_shared_counts(void **state)
{
    (void)state;
    float x[3 * 2] = {1, 0.9f, 1, 0.9f, 1, 0.9f}, lp[3];
    uint16_t counts[2] = {0, 0};
    int32_t ids[3];
    infer_sample_row rows[3] = {off(), off(), off()};
    for (int i = 0; i < 3; i++) {
        rows[i].counts_row = 0;
        rows[i].presence_penalty = 1;
    }
    rows[2].counts_row = 1; /* past the table: none */
    op_build b;
    op_begin(&b, INFER_OP_SAMPLE, NULL, 0);
    OP_IN2(&b, F32, x, 3, 2);
    OP_IN2(&b, U8, rows, 3, sizeof rows[0]);
    OP_IN2(&b, U16, counts, 1, 2);
    OP_OUT1(&b, I32, ids, 3);
    OP_OUT1(&b, F32, lp, 3);
    op_run(&b);
    assert_memory_equal(ids, ((int32_t[]){0, 0, 0}), sizeof ids);
    assert_memory_equal(counts, ((uint16_t[]){2, 0}), sizeof counts);
    op_run(&b);
    assert_memory_equal(ids, ((int32_t[]){1, 1, 0}), sizeof ids);
}

/* How often each of n ids is drawn over 20000 positions. */
static void draw_many(const float *x, int n, infer_sample_row row, double *share)
{
    enum { DRAWS = 20000 };
    for (int i = 0; i < n; i++)
        share[i] = 0;
    for (int i = 0; i < DRAWS; i++) {
        row.position = (uint64_t)i;
        int32_t id = choose(x, n, row, NULL);
        assert_true(id >= 0 && id < n);
        share[id] += 1.0 / DRAWS;
    }
}

/* Five standard deviations of a share p over 20000 draws. */
static int share_ok(double got, double p)
{
    return fabs(got - p) <= 5 * sqrt(p * (1 - p) / 20000) + 1e-12;
}

static void test_frequencies(void **state)
{
    (void)state;
    float x[5] = {logf(1), logf(4), logf(2), logf(8), logf(1)}; /* shares 1 4 2 8 1 of 16 */
    double share[5];
    infer_sample_row r = off();
    r.seed = 1234;
    r.temperature = 1;
    draw_many(x, 5, r, share);
    const double p[5] = {1, 4, 2, 8, 1};
    for (int i = 0; i < 5; i++)
        assert_true(share_ok(share[i], p[i] / 16));
    r.temperature = 0.5f; /* squares: 1 16 4 64 1 of 86 */
    draw_many(x, 5, r, share);
    for (int i = 0; i < 5; i++)
        assert_true(share_ok(share[i], p[i] * p[i] / 86));
    r.temperature = 1;
    r.top_k = 2;
    draw_many(x, 5, r, share);
    assert_true(share_ok(share[3], 8.0 / 12) && share_ok(share[1], 4.0 / 12) && share[2] == 0);
    r.top_k = 4; /* of two equal ones the lower id is kept: shares 8 4 2 1 of 15 */
    draw_many(x, 5, r, share);
    assert_true(share_ok(share[0], 1.0 / 15) && share[4] == 0);
    r.min_p = 0.24f; /* of the largest: 8, 4, 2 stay */
    draw_many(x, 5, r, share);
    assert_true(share_ok(share[3], 8.0 / 14) && share_ok(share[2], 2.0 / 14) && share[0] == 0);
    r = off();
    r.temperature = 1;
    r.top_p = 0.74f; /* 8 and 4 of 16 reach it */
    draw_many(x, 5, r, share);
    assert_true(share_ok(share[3], 8.0 / 12) && share_ok(share[1], 4.0 / 12));
    r.top_p = 0.76f;
    draw_many(x, 5, r, share);
    assert_true(share_ok(share[2], 2.0 / 14) && share[0] == 0);
    r.top_k = 2; /* of what is left, 8 and 4 of 12, the first is 0.67 */
    r.top_p = 0.66f;
    draw_many(x, 5, r, share);
    assert_true(share[3] > 0.999999);
}

static void test_top_p_edges(void **state)
{
    (void)state;
    float x[4] = {0, 0, 0, 0}; /* a quarter each */
    double share[4];
    infer_sample_row r = off();
    r.temperature = 1;
    const struct {
        float top_p;
        int kept;
    } edges[] = {{0, 1},    {-1, 1},    {1e-20f, 1}, {0.25f, 1}, {0.26f, 2},
                 {0.5f, 2}, {0.75f, 3}, {0.76f, 4},  {1, 4},     {NAN, 4}};
    for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++) {
        r.top_p = edges[i].top_p;
        draw_many(x, 4, r, share);
        for (int j = 0; j < 4; j++)
            assert_true(share_ok(share[j], j < edges[i].kept ? 1.0 / edges[i].kept : 0));
    }
    r = off();
    r.temperature = 1;
    r.min_p = 1; /* equals stay */
    draw_many(x, 4, r, share);
    assert_true(share_ok(share[3], 0.25));
    r.min_p = 2; /* one always stays */
    draw_many(x, 4, r, share);
    assert_true(share[0] > 0.999999);
    x[2] = -INFINITY;
    r.min_p = 0;
    r.top_k = 1000;
    draw_many(x, 4, r, share);
    assert_true(share[2] == 0 && share_ok(share[3], 1.0 / 3));
    r.temperature = 1e-30f; /* differences overflow: as good as greedy */
    x[1] = 0.001f;
    draw_many(x, 4, r, share);
    assert_true(share[1] > 0.999999);
}

/* A draw hangs on seed and position only; the number is the one that ops.h defines. */
static void test_counter_based(void **state)
{
    (void)state;
    float x[V], y[3 * V], lp[3];
    int32_t ids[3];
    infer_sample_row rows[3] = {off(), off(), off()};
    op_fill(x, V, 5);
    memcpy(y, x, sizeof x);
    op_fill(y + V, V, 6);
    memcpy(y + 2 * V, x, sizeof x);
    for (int i = 0; i < 3; i++) {
        rows[i].temperature = 1.5f;
        rows[i].seed = i == 1 ? 8 : 77;
        rows[i].position = 3;
    }
    op_build b;
    op_begin(&b, INFER_OP_SAMPLE, NULL, 0);
    OP_IN2(&b, F32, y, 3, V);
    OP_IN2(&b, U8, rows, 3, sizeof rows[0]);
    OP_OUT1(&b, I32, ids, 3);
    OP_OUT1(&b, F32, lp, 3);
    op_run(&b);
    assert_int_equal(ids[0], ids[2]);
    assert_int_equal(ids[0], choose(x, V, rows[0], NULL));
    int differ = 0;
    for (int i = 0; i < 20; i++) {
        rows[0].position++;
        differ += choose(x, V, rows[0], NULL) != ids[0];
    }
    assert_true(differ > 10);
    /* two equal candidates: the first below one half */
    float two[2] = {1, 1};
    for (uint64_t p = 0; p < 100; p++) {
        infer_sample_row r = off();
        r.temperature = 1;
        r.seed = 42;
        r.position = p;
        assert_int_equal(choose(two, 2, r, NULL), infer_sample_uniform(42, p) < 0.5f ? 0 : 1);
    }
    infer_sample_row half = off(); /* a sum that equals the target does not exceed it */
    half.temperature = 1;
    half.seed = 42;
    half.position = 7954382;
    assert_true(infer_sample_uniform(half.seed, half.position) == 0.5f);
    assert_int_equal(choose(two, 2, half, NULL), 1);
    double mean = 0;
    for (uint64_t p = 0; p < 10000; p++)
        mean += infer_sample_uniform(9, p) / 1e4;
    assert_true(fabs(mean - 0.5) < 0.015);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy),      cmocka_unit_test(test_adjust),      cmocka_unit_test(test_shared_counts),
        cmocka_unit_test(test_frequencies), cmocka_unit_test(test_top_p_edges), cmocka_unit_test(test_counter_based),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
