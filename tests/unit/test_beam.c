/* Beam search's choice, on tables of transition probabilities: against a plain search that keeps whole texts and sorts
 * all of their continuations, and, where the beams hold everything, against all texts there are.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>

#include "sched/beam.h"
#include "unit/rng.h"
#include "unit/unit.h"

enum { VOCAB = 12, LEN = 8, MAX_TEXTS = INFER_MAX_BEAMS * VOCAB };

/* logp[last][next]; the first `ends` tokens end a text. A text begins after token VOCAB - 1. */
typedef struct table {
    uint32_t n_vocab, ends;
    float logp[VOCAB][VOCAB];
} table;

typedef struct text {
    int32_t ids[LEN + 1];
    uint64_t n; /* with its end token */
    double sum, score;
    int ended;
} text;

static int is_end(void *ctx, int32_t id)
{
    return (uint32_t)id < ((const table *)ctx)->ends;
}

static table random_table(rng *r, uint32_t n_vocab, uint32_t ends)
{
    table t = {.n_vocab = n_vocab, .ends = ends};
    for (uint32_t a = 0; a < VOCAB; a++) {
        double sum = 0, p[VOCAB];
        for (uint32_t b = 0; b < n_vocab; b++)
            sum += p[b] = exp(4.0 * (double)rng_below(r, 1u << 20) / (1 << 20));
        for (uint32_t b = 0; b < n_vocab; b++)
            t.logp[a][b] = (float)log(p[b] / sum);
    }
    return t;
}

static int by_sum(const void *a, const void *b)
{
    const double x = ((const text *)a)->sum, y = ((const text *)b)->sum;
    return x < y ? 1 : x > y ? -1 : 0;
}

static int by_score(const void *a, const void *b)
{
    const double x = ((const text *)a)->score, y = ((const text *)b)->score;
    return x < y ? 1 : x > y ? -1 : 0;
}

static text longer(const table *t, const text *from, int32_t id)
{
    text x = *from;
    x.sum += (double)t->logp[x.n ? x.ids[x.n - 1] : VOCAB - 1][id];
    x.ids[x.n++] = id;
    x.ended = (uint32_t)id < t->ends;
    return x;
}

/* Whole texts, all continuations sorted. Returns how many finished ones there are, best first, at most width. */
static uint32_t plain_search(const table *t, const infer_beam *rules, text *out)
{
    text live[INFER_MAX_BEAMS] = {{.n = 0}};
    static text all[MAX_TEXTS], done[LEN * MAX_TEXTS];
    uint32_t n_live = 1, n_done = 0;
    for (uint64_t len = 1; len <= rules->max_len && n_live; len++) {
        uint32_t n = 0, k = 0;
        for (uint32_t i = 0; i < n_live; i++)
            for (uint32_t id = 0; id < t->n_vocab; id++)
                all[n++] = longer(t, &live[i], (int32_t)id);
        qsort(all, n, sizeof *all, by_sum);
        for (uint32_t rank = 0; rank < n && k < rules->width; rank++) {
            if (!all[rank].ended) {
                live[k++] = all[rank];
            } else if (rank < rules->width) {
                done[n_done] = all[rank];
                done[n_done].score = all[rank].sum / pow((double)len, rules->length_penalty);
                n_done++;
                qsort(done, n_done, sizeof *done, by_score);
                n_done = n_done > rules->width ? rules->width : n_done;
            }
        }
        n_live = k;
        if (n_done < rules->width)
            continue;
        double bound = rules->early_stopping == INFER_BEAM_STOP_NEVER && rules->length_penalty > 0
                           ? (double)rules->max_len
                           : (double)len;
        if (rules->early_stopping == INFER_BEAM_STOP_FIRST ||
            done[n_done - 1].score >= all[0].sum / pow(bound, rules->length_penalty))
            n_live = 0;
    }
    for (uint32_t i = 0; i < n_live; i++) {
        done[n_done] = live[i];
        done[n_done].score = live[i].sum / pow((double)rules->max_len, rules->length_penalty);
        n_done++;
    }
    qsort(done, n_done, sizeof *done, by_score);
    n_done = n_done > rules->width ? rules->width : n_done;
    memcpy(out, done, n_done * sizeof *out);
    return n_done;
}

/* The search under test, with texts kept as the group keeps them. */
static uint32_t run(const table *t, infer_beam b, text *out)
{
    int32_t texts[INFER_MAX_BEAMS][LEN] = {{0}}, kept[INFER_MAX_BEAMS][LEN];
    b.n_live = 1;
    while (!b.done) {
        infer_logprob top[INFER_MAX_BEAMS][INFER_MAX_TOP];
        infer_beam_turn turn;
        const uint64_t n = b.len;
        assert_true(n < b.max_len);
        for (uint32_t i = 0; i < b.n_live; i++) {
            const float *p = t->logp[n ? texts[i][n - 1] : VOCAB - 1];
            for (uint32_t k = 0; k < INFER_MAX_TOP; k++) {
                infer_logprob best = {-1, -INFINITY};
                for (uint32_t id = 0; id < t->n_vocab; id++) {
                    int taken = 0;
                    for (uint32_t j = 0; j < k; j++)
                        taken |= top[i][j].id == (int32_t)id;
                    if (!taken && p[id] > best.logprob)
                        best = (infer_logprob){(int32_t)id, p[id]};
                }
                top[i][k] = best;
            }
        }
        infer_beam_choose(&b, top[0], INFER_MAX_TOP, is_end, (void *)(uintptr_t)t, &turn);
        assert_true(turn.n_kept <= 2 * INFER_MAX_BEAMS && b.n_live <= b.width);
        for (uint32_t i = 0; i < turn.n_kept; i++) {
            memcpy(kept[turn.kept[i].place], texts[turn.kept[i].parent], n * sizeof(int32_t));
            if (turn.kept[i].id >= 0)
                kept[turn.kept[i].place][n] = turn.kept[i].id;
        }
        int32_t next[INFER_MAX_BEAMS][LEN];
        for (uint32_t i = 0; i < b.n_live; i++) {
            memcpy(next[i], texts[turn.next[i].parent], sizeof next[i]);
            next[i][n] = turn.next[i].id;
        }
        memcpy(texts, next, b.n_live * sizeof *texts);
    }
    for (uint32_t i = 0; i < b.n_hyps; i++) {
        out[i] = (text){.n = b.hyps[i].len, .sum = b.hyps[i].sum, .score = b.hyps[i].score};
        memcpy(out[i].ids, kept[b.hyps[i].place], out[i].n * sizeof(int32_t));
    }
    return b.n_hyps;
}

static void same(const text *want, const text *got, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(got[i].n, want[i].n - (uint64_t)want[i].ended);
        assert_memory_equal(got[i].ids, want[i].ids, got[i].n * sizeof(int32_t));
        assert_true(fabs(got[i].sum - want[i].sum) < 1e-9);
        assert_true(fabs(got[i].score - want[i].score) < 1e-9);
    }
}

static void test_against_plain(void **state)
{
    static const double penalties[] = {0, 1, 0.6, 2, -1};
    rng r = {5};
    uint32_t early = 0, full = 0;
    (void)state;
    for (int round = 0; round < 3000; round++) {
        const uint32_t width = 1 + rng_below(&r, INFER_MAX_BEAMS), ends = rng_below(&r, 3);
        const uint32_t least = ends + 1 > 2 ? ends + 1 : 2;
        const table t = random_table(&r, least + rng_below(&r, VOCAB - least + 1), ends);
        const infer_beam rules = {.width = width,
                                  .early_stopping = rng_below(&r, 3),
                                  .length_penalty = penalties[rng_below(&r, 5)],
                                  .max_len = 1 + rng_below(&r, LEN)};
        text want[INFER_MAX_BEAMS], got[INFER_MAX_BEAMS];
        const uint32_t n = plain_search(&t, &rules, want);
        assert_int_equal(run(&t, rules, got), n);
        same(want, got, n);
        early += n && got[0].n < rules.max_len;
        full += n == width;
    }
    assert_true(early > 500 && full > 2000);
}

/* Two tokens and an end, three turns: ten beams leave none out. */
static void all_texts(const table *t, const text *from, uint64_t max, double penalty, text *out, uint32_t *n)
{
    for (uint32_t id = 0; id < t->n_vocab; id++) {
        text x = longer(t, from, (int32_t)id);
        if (!x.ended && x.n < max) {
            all_texts(t, &x, max, penalty, out, n);
            continue;
        }
        x.score = x.sum / pow((double)x.n, penalty);
        out[(*n)++] = x;
    }
}

static void test_against_all(void **state)
{
    rng r = {9};
    (void)state;
    for (int round = 0; round < 200; round++) {
        const table t = random_table(&r, 3, 1);
        const infer_beam rules = {
            .width = INFER_MAX_BEAMS, .early_stopping = INFER_BEAM_STOP_NEVER, .length_penalty = 1, .max_len = 3};
        text want[64], got[INFER_MAX_BEAMS];
        const text none = {.n = 0};
        uint32_t n = 0;
        all_texts(&t, &none, rules.max_len, 1, want, &n);
        assert_int_equal(n, 15);
        qsort(want, n, sizeof *want, by_score);
        assert_int_equal(run(&t, rules, got), INFER_MAX_BEAMS);
        same(want, got, 5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_plain),
        cmocka_unit_test(test_against_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
