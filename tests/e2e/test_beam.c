/* Beam search in the engine against one that computes each hypothesis from scratch, by requests for one token each:
 * the same texts and sums bit for bit, alone and in company, preempted, cancelled, on few blocks, over two devices.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>

#include "e2e/rig.h"
#include "plugins/fault/fault.h"
#include "unit/rng.h"

enum { CTX = 128, BLOCK = 8, WISHES = 7, MOST = 24, ENDS = 3 };

typedef struct wish {
    infer_request q;
    int32_t prompt[CTX], ends[ENDS];
} wish;

/* What a search is to come to; ids is without the end token. */
typedef struct found {
    int32_t ids[MOST];
    uint64_t n;
    double sum, score;
    uint32_t finish;
} found;

static wish wishes[WISHES];
static found wanted[WISHES][INFER_MAX_BEAMS];
static uint32_t n_wanted[WISHES];

static void make_wishes(void)
{
    static const struct {
        uint32_t prompt, width, best, out, ends, early;
        float penalty;
    } rows[WISHES] = {
        {1, 2, 2, 10, 0, INFER_BEAM_STOP_LIKELY, 1},     {8, 4, 4, 12, 3, INFER_BEAM_STOP_LIKELY, 1},
        {13, 10, 10, 9, 2, INFER_BEAM_STOP_FIRST, 0},    {61, 4, 2, MOST, 3, INFER_BEAM_STOP_NEVER, 0.5f},
        {30, 3, 3, 17, 3, INFER_BEAM_STOP_LIKELY, 2},    {16, 1, 1, 12, 0, INFER_BEAM_STOP_FIRST, 1},
        {23, 5, 5, 1, 1, INFER_BEAM_STOP_LIKELY, -0.5f},
    };
    rng r = {11};
    for (int i = 0; i < WISHES; i++) {
        wish *w = &wishes[i];
        for (uint32_t k = 0; k < rows[i].prompt; k++)
            w->prompt[k] = (int32_t)rng_below(&r, 256);
        w->q = (infer_request){.prompt = w->prompt,
                               .n_prompt = rows[i].prompt,
                               .max_tokens = rows[i].out,
                               .stop_ids = w->ends,
                               .n_stop_ids = rows[i].ends,
                               .flags = INFER_REQ_IGNORE_EOS,
                               .beam_width = rows[i].width,
                               .beam_best = rows[i].best,
                               .early_stopping = rows[i].early,
                               .length_penalty = rows[i].penalty};
    }
}

/* ---- The search that computes all from scratch ------------------------------------------------------------------- */

/* The most probable tokens after a text. */
static void ask(rig *r, const wish *w, const found *f, infer_logprob top[20])
{
    int32_t text[CTX + MOST];
    answer a, *list[] = {&a};
    infer_request q = {.prompt = text,
                       .n_prompt = w->q.n_prompt + f->n,
                       .max_tokens = 1,
                       .flags = INFER_REQ_IGNORE_EOS,
                       .n_top_logprobs = 20};
    memcpy(text, w->prompt, w->q.n_prompt * sizeof *text);
    memcpy(text + w->q.n_prompt, f->ids, f->n * sizeof *text);
    rig_submit(r, &q, &a);
    assert_int_equal(rig_collect(r, list, 1), INFER_OK);
    assert_int_equal(a.n_top, 20);
    memcpy(top, a.top, sizeof a.top);
    answer_free(&a);
}

static int by_sum(const void *a, const void *b)
{
    const double x = ((const found *)a)->sum, y = ((const found *)b)->sum;
    return x < y ? 1 : x > y ? -1 : 0;
}

static int by_score(const void *a, const void *b)
{
    const double x = ((const found *)a)->score, y = ((const found *)b)->score;
    return x < y ? 1 : x > y ? -1 : 0;
}

static uint32_t search(rig *r, const wish *w, found *out)
{
    static found all[INFER_MAX_BEAMS * 20], live[INFER_MAX_BEAMS], done[2 * INFER_MAX_BEAMS * (MOST + 1)];
    const infer_request *q = &w->q;
    const uint32_t width = q->beam_width;
    uint32_t n_live = 1, n_done = 0;
    live[0] = (found){.n = 0};
    for (uint64_t len = 1; n_live; len++) {
        uint32_t n = 0, k = 0;
        for (uint32_t i = 0; i < n_live; i++) {
            infer_logprob top[20];
            ask(r, w, &live[i], top);
            for (int j = 0; j < 20; j++) {
                all[n] = live[i];
                all[n].sum += (double)top[j].logprob;
                all[n++].ids[live[i].n] = top[j].id; /* not counted yet */
            }
        }
        qsort(all, n, sizeof *all, by_sum);
        for (uint32_t rank = 0; rank < n && k < width; rank++) {
            found *f = &all[rank];
            int ends = 0;
            for (uint32_t e = 0; e < q->n_stop_ids; e++)
                ends |= f->ids[f->n] == q->stop_ids[e];
            if (!ends) {
                live[k] = *f;
                live[k++].n++;
            } else if (rank < width) {
                f->score = f->sum / pow((double)len, (double)q->length_penalty);
                f->finish = INFER_FINISH_STOP;
                done[n_done++] = *f;
            }
        }
        n_live = k;
        qsort(done, n_done, sizeof *done, by_score);
        n_done = n_done < width ? n_done : width;
        const int far = q->early_stopping == INFER_BEAM_STOP_NEVER && q->length_penalty > 0;
        const double bound = far ? (double)q->max_tokens : (double)len;
        if (n_done == width && (q->early_stopping == INFER_BEAM_STOP_FIRST ||
                                done[width - 1].score >= all[0].sum / pow(bound, (double)q->length_penalty)))
            break;
        for (uint32_t i = 0; i < n_live && len == (uint64_t)q->max_tokens; i++) {
            live[i].score = live[i].sum / pow((double)len, (double)q->length_penalty);
            live[i].finish = INFER_FINISH_LENGTH;
            done[n_done++] = live[i];
        }
        if (len == (uint64_t)q->max_tokens)
            break;
    }
    qsort(done, n_done, sizeof *done, by_score);
    n_done = n_done < q->beam_best ? n_done : q->beam_best;
    memcpy(out, done, n_done * sizeof *out);
    return n_done;
}

/* Tokens that are often among the best become end tokens, so that hypotheses of all lengths end. */
static void choose_ends(rig *r)
{
    for (int i = 0; i < WISHES; i++) {
        infer_logprob top[20];
        found f = {.n = 0};
        for (int e = 0; e < ENDS; e++) {
            ask(r, &wishes[i], &f, top);
            wishes[i].ends[e] = top[2 + e].id;
            f.ids[f.n++] = top[0].id;
        }
    }
}

static void want(const rig_options *base)
{
    rig r;
    rig_open(&r, base);
    choose_ends(&r);
    uint32_t ended = 0, lengths = 0;
    for (int i = 0; i < WISHES; i++) {
        n_wanted[i] = search(&r, &wishes[i], wanted[i]);
        for (uint32_t k = 0; k < n_wanted[i]; k++) {
            ended += wanted[i][k].finish == INFER_FINISH_STOP;
            lengths += wanted[i][k].finish == INFER_FINISH_LENGTH;
        }
    }
    assert_true(ended >= 3 && lengths >= 3);
    rig_close(&r);
}

static void compare(int i, const answer *a, const char *where)
{
    if (a->finish != wanted[i][0].finish || a->n_hyps != n_wanted[i])
        fail_msg("%s, wish %d: ended by %u (%s) with %u hypotheses, not by %u with %u", where, i, a->finish, a->error,
                 a->n_hyps, wanted[i][0].finish, n_wanted[i]);
    for (uint32_t k = 0; k < a->n_hyps; k++) {
        const found *w = &wanted[i][k];
        const hypothesis *h = &a->hyps[k];
        if (h->n != w->n || memcmp(h->ids, w->ids, w->n * sizeof *w->ids) || h->sum != w->sum || h->score != w->score ||
            h->finish != w->finish)
            fail_msg("%s, wish %d, hypothesis %u: %llu tokens, score %.9g, not %llu with %.9g", where, i, k,
                     (unsigned long long)h->n, h->score, (unsigned long long)w->n, w->score);
    }
}

static rig_options options(const char *model, const char *devices, const char *split)
{
    return (rig_options){
        .model = model, .devices = devices, .split = split, .ctx = CTX, .parallel = 16, .batched = 64, .block = BLOCK};
}

/* ---- Alone ------------------------------------------------------------------------------------------------------- */

static void alone(rig_options o, const char *where)
{
    for (uint32_t v = 0; v < 3; v++) {
        rig r;
        o.no_prefix_cache = v == 1;
        o.chunk = v == 2 ? 3 : 0;
        o.step_tokens = v == 2 ? 4 : 0; /* so that beams do not all fit a step */
        rig_open(&r, &o);
        for (int i = 0; i < WISHES; i++) {
            answer a, *list[] = {&a};
            rig_submit(&r, &wishes[i].q, &a);
            assert_int_equal(rig_collect(&r, list, 1), INFER_OK);
            compare(i, &a, where);
            assert_true(a.t_first_token && a.t_first_run);
            answer_free(&a);
        }
        rig_idle(&r);
        rig_close(&r);
    }
}

/* ---- In company ---------------------------------------------------------------------------------------------------
 */

/* All wishes at once, among plain requests that come and go; others are cancelled, beams too. The pool holds as little
 * as it may. */
static uint64_t crowded(rig_options o, uint32_t kv_tokens, uint64_t seed, const char *where)
{
    enum { OTHERS = 24 };
    rig r;
    answer got[WISHES], others[OTHERS] = {0}, *list[WISHES], *rest[OTHERS]; /* id 0: nobody to cancel */
    int32_t prompt[70];
    rng x = {seed};
    if (kv_tokens)
        o.kv_memory = rig_cache_bytes(&o, kv_tokens);
    rig_open(&r, &o);
    for (int i = 0, k = 0; i < WISHES || k < OTHERS;) {
        if (i < WISHES && rng_below(&x, 3) == 0) {
            rig_submit(&r, &wishes[i].q, list[i] = &got[i]);
            i++;
        }
        if (k < OTHERS && rng_below(&x, 2)) {
            infer_request q = {.prompt = prompt,
                               .n_prompt = 1 + rng_below(&x, 60),
                               .max_tokens = (int64_t)rng_below(&x, 50),
                               .sampling = {.temperature = (float)rng_below(&x, 2), .seed = x.x}};
            for (int t = 0; t < 70; t++)
                prompt[t] = (int32_t)rng_below(&x, 256);
            if (k % 4 == 3) {
                q.sampling.temperature = 0;
                q.max_tokens = 20;
                q.beam_width = 1 + rng_below(&x, 4);
            }
            rig_submit(&r, &q, rest[k] = &others[k]);
            k++;
        }
        if (k && rng_below(&x, 3) == 0)
            infer_engine_cancel(r.engine, others[rng_below(&x, (uint32_t)k) | 1u].id);
        if (rng_below(&x, 2) == 0)
            assert_int_equal(rig_poll(&r, 1), INFER_OK);
    }
    assert_int_equal(rig_collect(&r, list, WISHES), INFER_OK);
    assert_int_equal(rig_collect(&r, rest, OTHERS), INFER_OK);
    rig_idle(&r);
    const uint64_t preemptions = rig_stats(&r).preemptions;
    for (int i = 0; i < WISHES; i++) {
        compare(i, &got[i], where);
        answer_free(&got[i]);
    }
    for (int k = 0; k < OTHERS; k++)
        answer_free(&others[k]);
    rig_close(&r);
    return preemptions;
}

static void check(const char *model, const char *devices, const char *split)
{
    char where[64];
    uint64_t preempted = 0;
    snprintf(where, sizeof where, "%s", devices);
    const rig_options o = options(model, devices, split);
    want(&o);
    alone(o, where);
    crowded(o, 0, 1, where);
    for (uint64_t seed = 2; seed < 6; seed++) {
        rig_options few = o;
        few.no_prefix_cache = seed % 2 != 0;
        few.swap = seed < 4 ? 0 : 1 << 24;
        few.preemption = seed < 4 ? INFER_PREEMPTION_AUTO : INFER_PREEMPTION_SWAP;
        preempted += crowded(few, 3 * CTX / 2, seed, where);
    }
    assert_true(preempted > 0);
    printf("%-12s %llu preemptions\n", where, (unsigned long long)preempted);
}

static void test_reference(void **state)
{
    (void)state;
    check(rig_golden("llama"), "ref0", NULL);
    check(rig_golden("llama"), "ref0,sim0", "1,1");
}

static void test_cpu(void **state)
{
    (void)state;
    if (!rig_has("cpu0"))
        skip();
    check(rig_golden("llama"), "cpu0", NULL);
    check(rig_golden("qwen3moe"), "cpu0", NULL);
    if (rig_has("opencl0"))
        check(rig_golden("llama"), "opencl0", NULL);
}

/* ---- What follows from it ---------------------------------------------------------------------------------------- */

static const char *fast(void)
{
    return rig_has("cpu0") ? "cpu0" : "ref0";
}

static void test_greedy(void **state)
{
    (void)state;
    rig r;
    rig_options o = options(rig_golden("llama"), fast(), NULL);
    rig_open(&r, &o);
    for (int i = 0; i < WISHES; i++) {
        answer a[2], *list[] = {&a[0], &a[1]};
        infer_request q = wishes[i].q;
        q.beam_width = q.beam_best = 1;
        q.early_stopping = INFER_BEAM_STOP_FIRST;
        rig_submit(&r, &q, &a[0]);
        q.beam_width = q.beam_best = 0;
        rig_submit(&r, &q, &a[1]);
        assert_int_equal(rig_collect(&r, list, 2), INFER_OK);
        assert_int_equal(a[0].n_hyps, 1);
        assert_int_equal(a[0].hyps[0].n, a[1].n);
        assert_memory_equal(a[0].hyps[0].ids, a[1].ids, a[1].n * sizeof(int32_t));
        assert_string_equal(a[0].hyps[0].text, a[1].text);
        assert_int_equal(a[0].finish, a[1].finish);
        answer_free(&a[0]);
        answer_free(&a[1]);
    }
    rig_close(&r);
}

typedef struct watch {
    rig *r;
    uint64_t most, copies;
} watch;

static void watch_step(void *user, const infer_step_info *step)
{
    watch *w = user;
    const infer_engine_stats st = rig_stats(w->r);
    w->most = st.blocks_used > w->most ? st.blocks_used : w->most;
    w->copies += step->n_block_copies;
}

/* The prompt's blocks are there once. */
static void test_blocks(void **state)
{
    (void)state;
    enum { PROMPT = 100, WIDTH = 8, OUT = 20 };
    rig r;
    watch w = {&r, 0, 0};
    int32_t prompt[PROMPT];
    answer a, *list[] = {&a};
    rig_options o = options(rig_golden("llama"), fast(), NULL);
    o.on_step = watch_step;
    o.step_user = &w;
    o.no_prefix_cache = 1;
    rig_open(&r, &o);
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = (i * 31 + 7) % 256;
    infer_request q = {.prompt = prompt,
                       .n_prompt = PROMPT,
                       .max_tokens = OUT,
                       .flags = INFER_REQ_IGNORE_EOS,
                       .beam_width = WIDTH,
                       .beam_best = WIDTH};
    rig_submit(&r, &q, &a);
    assert_int_equal(rig_collect(&r, list, 1), INFER_OK);
    assert_int_equal(a.n_hyps, WIDTH);
    for (uint32_t i = 1; i < a.n_hyps; i++)
        assert_true(a.hyps[i].score <= a.hyps[i - 1].score);
    rig_idle(&r);
    assert_true(w.most >= PROMPT / BLOCK + WIDTH);
    assert_true(w.most <= PROMPT / BLOCK + WIDTH * (OUT / BLOCK + 2) && w.copies >= WIDTH - 1);
    assert_true(rig_stats(&r).generated_tokens <= 1 + WIDTH * (OUT - 1));
    printf("%llu blocks at most, %d for the prompt; %llu copies\n", (unsigned long long)w.most, PROMPT / BLOCK + 1,
           (unsigned long long)w.copies);
    answer_free(&a);
    rig_close(&r);
}

/* At every number of steps: nothing is left, and the next one is as if nothing had been. */
static void test_cancel(void **state)
{
    (void)state;
    rig r;
    rig_options o = options(rig_golden("llama"), fast(), NULL);
    want(&o);
    rig_open(&r, &o);
    for (uint64_t steps = 0; steps < 16; steps++) {
        answer a, *list[] = {&a};
        infer_request q = wishes[3].q;
        const uint64_t until = rig_stats(&r).steps + steps;
        rig_submit(&r, &q, &a);
        while (!a.done && rig_stats(&r).steps < until)
            assert_int_equal(rig_poll(&r, 1), INFER_OK);
        infer_engine_cancel(r.engine, a.id);
        assert_int_equal(rig_collect(&r, list, 1), INFER_OK);
        assert_true(a.finish == INFER_FINISH_CANCELLED ? a.n_hyps == 0 : a.n_hyps == n_wanted[3]);
        rig_idle(&r);
        answer_free(&a);
    }
    answer a, *list[] = {&a};
    rig_submit(&r, &wishes[3].q, &a);
    assert_int_equal(rig_collect(&r, list, 1), INFER_OK);
    compare(3, &a, "after cancellations");
    answer_free(&a);
    rig_close(&r);
}

/* A copy or an op of a step fails: the group ends with the cause, its blocks go back, others and later ones are right.
 */
static void test_failing(void **state)
{
    (void)state;
    const infer_fault_api *fault = rig_fault();
    const char *const settings[] = {rig_wrap("sim"), NULL};
    rig_options o = options(rig_golden("llama"), "fault0", NULL);
    o.settings = settings;
    want(&o);
    rig r;
    rig_open(&r, &o);
    uint32_t failed = 0;
    for (uint64_t k = 0; k < 24; k++) {
        answer a[2], *list[] = {&a[0], &a[1]};
        infer_request q = wishes[0].q;
        rig_submit(&r, &wishes[1].q, &a[0]);
        q.beam_width = q.beam_best = 0;
        rig_submit(&r, &q, &a[1]);
        fault->arm(k % 2 ? INFER_FAULT_OP : INFER_FAULT_COPY, (int64_t)(k % 2 ? 50 + 40 * k : 10 + 6 * k),
                   INFER_E_NO_MEMORY);
        assert_int_equal(rig_collect(&r, list, 2), INFER_OK);
        failed += a[0].finish == INFER_FINISH_ERROR;
        assert_true(a[0].finish != INFER_FINISH_ERROR || a[0].n_hyps == 0);
        if (a[0].finish != INFER_FINISH_ERROR)
            compare(1, &a[0], "beside a failure");
        fault->reset();
        rig_idle(&r);
        answer_free(&a[0]);
        answer_free(&a[1]);
        rig_submit(&r, &wishes[1].q, &a[0]);
        assert_int_equal(rig_collect(&r, list, 1), INFER_OK);
        compare(1, &a[0], "after a failure");
        answer_free(&a[0]);
    }
    printf("%u failed\n", failed);
    assert_true(failed > 6);
    rig_close(&r);
}

static void refuses(rig *r, infer_request q, infer_status s, const char *says)
{
    uint64_t id;
    infer_error e = {0};
    q.struct_size = sizeof q;
    assert_int_equal(infer_engine_submit(r->engine, &q, &id, &e), s);
    if (!strstr(e.text, says))
        fail_msg("\"%s\" does not say \"%s\"", e.text, says);
}

static void test_refused(void **state)
{
    (void)state;
    static const int32_t prompt[] = {1, 2, 3};
    static const char *const stops[] = {"x"};
    const infer_request good = {.prompt = prompt, .n_prompt = 3, .max_tokens = 4, .beam_width = 4};
    rig r;
    rig_options o = options(rig_golden("llama"), fast(), NULL);
    o.parallel = 6;
    o.kv_memory = rig_cache_bytes(&o, CTX);
    rig_open(&r, &o);
#define WITH(field, value, status, says)                                                                               \
    do {                                                                                                               \
        infer_request q = good;                                                                                        \
        q.field = value;                                                                                               \
        refuses(&r, q, status, says);                                                                                  \
    } while (0)
    WITH(beam_width, 11, INFER_E_INVALID, "beam_width = 11: at most 10");
    WITH(beam_width, 7, INFER_E_TOO_LARGE, "at most 6 requests");
    WITH(beam_best, 5, INFER_E_INVALID, "beam_best");
    WITH(early_stopping, 3, INFER_E_INVALID, "early_stopping");
    WITH(length_penalty, NAN, INFER_E_INVALID, "length_penalty");
    WITH(sampling.temperature, 1, INFER_E_INVALID, "temperature");
    WITH(sampling.frequency_penalty, 1, INFER_E_INVALID, "penalties");
    WITH(n_top_logprobs, 2, INFER_E_INVALID, "top_logprobs");
    WITH(max_tokens, 0, INFER_E_INVALID, "max_tokens");
    WITH(max_tokens, 100, INFER_E_TOO_LARGE, "blocks of cache");
    infer_request q = good;
    q.stop = stops;
    q.n_stop = 1;
    refuses(&r, q, INFER_E_INVALID, "stop");
    rig_idle(&r);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference), cmocka_unit_test(test_cpu),    cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_blocks),    cmocka_unit_test(test_cancel), cmocka_unit_test(test_failing),
        cmocka_unit_test(test_refused),
    };
    rig_watchdog(600);
    make_wishes();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
