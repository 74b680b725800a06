/* Speculative decoding changes no token: greedy and drawn, alone and in company, preempted, swapped, from the prefix
 * cache, with every kind of end inside a run of accepted tokens; what is drawn has the model's distribution; blocks
 * come back. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>

#include "e2e/rig.h"
#include "unit/rng.h"

enum { VOCAB = 264, CTX = 128, WISHES = 32, LIKED = 4 };

/* Answers of few different tokens, so that texts often repeat themselves, and often do not. */
typedef struct wish {
    infer_request q;
    int32_t prompt[64];
    infer_sample_bias bias[LIKED];
} wish;

static wish wishes[WISHES];
static int n_wishes = WISHES;

static void make_wishes(void)
{
    static const float temperatures[] = {0, 0.4f, 1, 1.6f};
    rng r = {11};
    for (int i = 0; i < WISHES; i++) {
        wish *w = &wishes[i];
        const uint32_t period = 2 + rng_below(&r, 6);
        for (int k = 0; k < LIKED; k++)
            w->bias[k] = (infer_sample_bias){97 + (int32_t)rng_below(&r, 26), 6 + (float)rng_below(&r, 4)};
        w->q = (infer_request){.prompt = w->prompt,
                               .n_prompt = 1 + rng_below(&r, 50),
                               .max_tokens = 30 + (int64_t)rng_below(&r, 20),
                               .min_tokens = i % 5 ? 0 : 9,
                               .flags = i % 3 ? INFER_REQ_IGNORE_EOS : 0,
                               .n_top_logprobs = i % 4 ? 0 : 3,
                               .sampling = {.temperature = temperatures[i % 4],
                                            .top_k = i % 7 ? 0 : 5,
                                            .top_p = i % 6 ? 0 : 0.9f,
                                            .repetition_penalty = i % 16 == 9 ? 1.2f : 0,
                                            .seed = 100 + (uint64_t)i,
                                            .n_bias = i % 8 ? LIKED : 0,
                                            .bias = i % 8 ? w->bias : NULL}};
        for (uint64_t k = 0; k < w->q.n_prompt; k++)
            w->prompt[k] = k >= period && rng_below(&r, 8) ? w->prompt[k - period] : w->bias[rng_below(&r, LIKED)].id;
    }
}

static rig_options options(const char *devices, uint32_t drafts)
{
    return (rig_options){.model = rig_golden("llama"),
                         .devices = devices,
                         .split = strchr(devices, ',') ? "1,1" : NULL,
                         .ctx = CTX,
                         .parallel = 8,
                         .block = 8,
                         .batched = 128,
                         .logit_rows = 64,
                         .speculative = drafts ? INFER_SPECULATIVE_ALWAYS : INFER_SPECULATIVE_OFF,
                         .drafts = drafts};
}

static void ask(rig *r, infer_request *q, answer *a)
{
    answer *list[] = {a};
    rig_submit(r, q, a);
    assert_int_equal(rig_collect(r, list, 1), INFER_OK);
}

static void compare(const answer *want, const answer *got, const char *where, int i)
{
    const uint32_t n = want->n < got->n ? want->n : got->n;
    for (uint32_t k = 0; k < n; k++)
        if (want->ids[k] != got->ids[k] || memcmp(&want->logprobs[k], &got->logprobs[k], sizeof(float)))
            fail_msg("%s: request %d, token %u: %d (%.9g), without drafts %d (%.9g)", where, i, k, got->ids[k],
                     (double)got->logprobs[k], want->ids[k], (double)want->logprobs[k]);
    assert_int_equal(got->n, want->n);
    assert_int_equal(got->finish, want->finish);
    assert_string_equal(got->text, want->text);
    assert_int_equal(got->n_generated, want->n_generated);
    assert_int_equal(got->n_top, want->n_top);
    assert_memory_equal(got->top, want->top, want->n_top * sizeof *want->top);
}

/* ---- Same tokens ----------------------------------------------------------------------------------------------- */

typedef struct variant {
    const char *name;
    uint32_t drafts, parallel, logit_rows, chunk, step_tokens, kv_tokens, swap;
    int measured; /* as many drafts as pay, else always */
} variant;

static const variant variants[] = {
    {"alone", 16, 1, 17, 0, 0, 0, 0, 0},
    {"alone, one draft", 1, 1, 2, 0, 0, 0, 0, 0},
    {"8 at once", 16, 8, 64, 0, 0, 0, 0, 0},
    {"8 at once, as many as pay", 0, 8, 64, 0, 0, 0, 0, 1},
    {"8 at once, few rows for drafts", 4, 8, 11, 7, 20, 0, 0, 0},
    {"a quarter of the blocks", 16, 8, 64, 0, 0, 2 * CTX, 0, 0},
    {"a quarter of the blocks, swapped", 16, 8, 64, 7, 24, 2 * CTX, 1, 0},
};

static void check_same(const char *devices)
{
    answer want[WISHES], got[WISHES], *list[WISHES];
    rig r;
    rig_options o = options(devices, 0);
    rig_open(&r, &o);
    for (int i = 0; i < n_wishes; i++)
        ask(&r, &wishes[i].q, &want[i]);
    assert_int_equal(rig_stats(&r).spec_drafts, 0);
    rig_close(&r);
    for (size_t k = 0; k < sizeof variants / sizeof variants[0]; k++) {
        const variant *v = &variants[k];
        char where[100];
        snprintf(where, sizeof where, "%s, %s", devices, v->name);
        o = options(devices, v->drafts);
        if (v->measured)
            o.speculative = INFER_SPECULATIVE_NGRAM;
        o.parallel = v->parallel;
        o.logit_rows = v->logit_rows;
        o.chunk = v->chunk;
        o.step_tokens = v->step_tokens;
        o.kv_memory = v->kv_tokens ? rig_cache_bytes(&o, v->kv_tokens) : 0;
        o.swap = v->swap << 24;
        o.preemption = v->swap ? INFER_PREEMPTION_SWAP : INFER_PREEMPTION_AUTO;
        rig_open(&r, &o);
        for (int i = 0; i < n_wishes; i++) {
            list[i] = &got[i];
            rig_submit(&r, &wishes[i].q, &got[i]);
        }
        assert_int_equal(rig_collect(&r, list, (uint32_t)n_wishes), INFER_OK);
        rig_idle(&r);
        const infer_engine_stats st = rig_stats(&r);
        uint64_t made = 0;
        for (int i = 0; i < n_wishes; i++) {
            compare(&want[i], &got[i], where, i);
            made += got[i].n + (got[i].finish == INFER_FINISH_STOP);
            answer_free(&got[i]);
        }
        printf("%-50s %llu steps, %llu tokens, drafts %llu in %llu, %llu right, %llu preemptions, %llu swapped\n",
               where, (unsigned long long)st.steps, (unsigned long long)st.generated_tokens,
               (unsigned long long)st.spec_draft_tokens, (unsigned long long)st.spec_drafts,
               (unsigned long long)st.spec_accepted_tokens, (unsigned long long)st.preemptions,
               (unsigned long long)st.blocks_swapped_in);
        assert_true(st.generated_tokens == made || v->kv_tokens); /* who gives way may make one twice */
        assert_true(v->measured || st.spec_accepted_tokens > 50);
        assert_true(v->measured || st.spec_draft_tokens > st.spec_accepted_tokens + 50);
        assert_true(!v->kv_tokens || st.preemptions);
        assert_true(!v->swap || st.blocks_swapped_in);
        rig_close(&r);
    }
    for (int i = 0; i < n_wishes; i++)
        answer_free(&want[i]);
}

static void test_same(void **state)
{
    (void)state;
    if (rig_has("cpu0"))
        check_same("cpu0");
    check_same("sim0");
    check_same("sim0,ref0"); /* steps wait for each other anyway */
}

/* ---- Ends ------------------------------------------------------------------------------------------------------ */

/* A text that goes round, so that long runs are accepted: ends of every kind at each of its tokens, then what follows
 * it from the prefix cache. */
static void check_ends(const char *devices, uint64_t seed)
{
    rig off, on;
    rig_options o = options(devices, 0);
    rig_open(&off, &o);
    o = options(devices, 8);
    rig_open(&on, &o);
    wish w = wishes[1];
    w.q.prompt = w.prompt;
    w.q.n_prompt = 20;
    w.q.max_tokens = 40;
    w.q.flags = INFER_REQ_IGNORE_EOS;
    w.q.sampling = (infer_sampling){.temperature = seed ? 0.3f : 0, .seed = seed, .n_bias = LIKED, .bias = w.bias};
    for (int k = 0; k < 20; k++)
        w.prompt[k] = w.bias[k % LIKED].id;
    answer whole, want, got;
    ask(&off, &w.q, &whole);
    assert_int_equal(whole.n, 40);
    for (uint32_t k = 0; k < whole.n; k++) {
        for (int way = 0; way < 5; way++) {
            infer_request q = w.q;
            char stop[8] = "";
            const char *stops[] = {stop};
            int32_t text[CTX];
            if (way == 0)
                q.max_tokens = k + 1;
            if (way == 1 || way == 2) {
                q.stop_ids = &whole.ids[k];
                q.n_stop_ids = 1;
                q.min_tokens = way == 2 ? k / 2 : 0;
            }
            if (way == 3) {
                snprintf(stop, sizeof stop, "%.*s", (int)(2 + k % 3), whole.text + k);
                q.stop = stops;
                q.n_stop = stop[1] ? 1 : 0;
                q.flags |= k % 2 ? INFER_REQ_ECHO_STOP : 0;
            }
            if (way == 4) { /* goes on from a text of which not all that was computed was accepted */
                memcpy(text, w.prompt, 20 * sizeof *text);
                memcpy(text + 20, whole.ids, (k + 1) * sizeof *text);
                text[20 + k] = (text[20 + k] + (k % 2 ? 1 : 0)) % 256;
                q.prompt = text;
                q.n_prompt = 20 + k + 1;
                q.max_tokens = 12;
            }
            ask(&off, &q, &want);
            ask(&on, &q, &got);
            compare(&want, &got, devices, (int)k * 5 + way);
            answer_free(&want);
            answer_free(&got);
        }
        /* cancelled after about so many */
        infer_request q = w.q;
        rig_submit(&on, &q, &got);
        while (got.n < k && !got.done)
            assert_int_equal(rig_poll(&on, -1), INFER_OK);
        infer_engine_cancel(on.engine, got.id);
        answer *list[] = {&got};
        assert_int_equal(rig_collect(&on, list, 1), INFER_OK);
        for (uint32_t i = 0; i < got.n; i++)
            assert_int_equal(got.ids[i], whole.ids[i]);
        answer_free(&got);
        rig_idle(&on);
    }
    const infer_engine_stats st = rig_stats(&on);
    printf("%s: %llu of %llu drafts right\n", devices, (unsigned long long)st.spec_accepted_tokens,
           (unsigned long long)st.spec_draft_tokens);
    assert_true(st.spec_accepted_tokens > 500);
    answer_free(&whole);
    rig_close(&on);
    rig_close(&off);
}

static void test_ends(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 2; seed++) {
        check_ends("sim0", seed);
        if (rig_has("cpu0"))
            check_ends("cpu0", seed);
    }
}

/* ---- Distribution ---------------------------------------------------------------------------------------------- */

enum { TOKENS = 4, IDS = 3, CELLS = 81, SEEDS = 6000 };

typedef struct last_row {
    uint64_t pos;
    float x[VOCAB];
} last_row;

static void keep_row(void *user, uint64_t pos, const float *row, uint32_t n)
{
    last_row *l = user;
    assert_int_equal(n, VOCAB);
    l->pos = pos;
    memcpy(l->x, row, sizeof l->x);
}

/* Probabilities of the liked ids after a text, and of all others together. */
static void probabilities(rig *r, const int32_t *text, uint64_t n, const infer_sampling *s, double *p)
{
    last_row row;
    answer a;
    infer_request q = {.prompt = text,
                       .n_prompt = n,
                       .max_tokens = 0,
                       .flags = INFER_REQ_PROMPT_ROWS,
                       .output = INFER_OUTPUT_LOGITS,
                       .on_row = keep_row,
                       .row_user = &row};
    ask(r, &q, &a);
    answer_free(&a);
    assert_int_equal(row.pos, n - 1);
    double sum = 0, x[VOCAB], most = -INFINITY;
    for (int i = 0; i < VOCAB; i++)
        x[i] = (double)row.x[i];
    for (uint32_t i = 0; i < s->n_bias; i++)
        x[s->bias[i].id] += (double)s->bias[i].bias;
    for (int i = 0; i < VOCAB; i++)
        most = fmax(most, x[i]);
    for (int i = 0; i < VOCAB; i++)
        sum += x[i] = exp((x[i] - most) / (double)s->temperature);
    for (int i = 0; i < IDS; i++)
        p[i] = x[s->bias[i].id] / sum;
}

/* Four tokens over many seeds, of which the last three are mostly drawn behind drafts, against what the logits say. */
static void test_distribution(void **state)
{
    (void)state;
    const char *devices = rig_has("cpu0") ? "cpu0" : "ref0";
    const infer_sample_bias bias[IDS] = {{97, 60}, {98, 61}, {99, 59}};
    const infer_sampling s = {.temperature = 3, .n_bias = IDS, .bias = bias};
    const int32_t prompt[] = {97, 98, 99, 97, 98, 99, 97, 97, 98, 97, 99, 98};
    enum { N = sizeof prompt / sizeof prompt[0] };
    rig r;
    rig_options o = options(devices, 8);
    rig_open(&r, &o);
    double expected[CELLS];
    uint32_t seen[CELLS] = {0}, others = 0;
    for (int cell = 0; cell < CELLS; cell++)
        expected[cell] = SEEDS;
    for (int len = 0, texts = 1, below = CELLS / IDS; len < TOKENS; len++, texts *= IDS, below /= IDS) {
        for (int t = 0; t < texts; t++) {
            int32_t text[N + TOKENS];
            double p[IDS];
            memcpy(text, prompt, sizeof prompt);
            for (int k = len, x = t; k-- > 0; x /= IDS)
                text[N + k] = bias[x % IDS].id;
            probabilities(&r, text, N + (uint64_t)len, &s, p);
            for (int i = 0; i < IDS * below; i++)
                expected[t * IDS * below + i] *= p[i / below];
        }
    }
    for (uint64_t seed = 0; seed < SEEDS; seed += 8) {
        answer a[8], *list[8];
        infer_request q = {.prompt = prompt, .n_prompt = N, .max_tokens = TOKENS, .flags = INFER_REQ_IGNORE_EOS};
        q.sampling = s;
        for (uint64_t i = 0; i < 8; i++) {
            q.sampling.seed = seed + i;
            list[i] = &a[i];
            rig_submit(&r, &q, &a[i]);
        }
        assert_int_equal(rig_collect(&r, list, 8), INFER_OK);
        for (int i = 0; i < 8; i++) {
            int cell = 0;
            assert_int_equal(a[i].n, TOKENS);
            for (int k = 0; k < TOKENS; k++)
                cell = a[i].ids[k] < 97 || a[i].ids[k] > 99 || cell < 0 ? -1 : cell * IDS + a[i].ids[k] - 97;
            if (cell < 0)
                others++;
            else
                seen[cell]++;
            answer_free(&a[i]);
        }
    }
    double chi = 0, total = 0;
    for (int cell = 0; cell < CELLS; cell++) {
        chi += (seen[cell] - expected[cell]) * (seen[cell] - expected[cell]) / expected[cell];
        total += expected[cell];
        assert_true(expected[cell] > 5);
    }
    const infer_engine_stats st = rig_stats(&r);
    printf("chi-square %.1f of %d cells, %u others; %llu of %llu drafts right\n", chi, CELLS, others,
           (unsigned long long)st.spec_accepted_tokens, (unsigned long long)st.spec_draft_tokens);
    assert_true(total > 0.999 * SEEDS && others < 10);
    assert_true(st.spec_accepted_tokens > SEEDS / 4 && st.spec_draft_tokens > SEEDS);
    assert_true(chi < 130); /* 80 degrees of freedom: one of 3000 is above 125 */
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_distribution),
    };
    make_wishes();
    rig_watchdog(300);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
