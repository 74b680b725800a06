/* core/sched without devices: requests and their text, and the event queue. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "unit/sched_util.h"

#include <math.h>

#include "base/alloc.h"
#include "sched/events.h"
#include "unit/rng.h"

/* ---- Requests ------------------------------------------------------------------------------------------------- */

static void refused(const infer_request *r, infer_status want, const char *word)
{
    infer_req *x = NULL;
    infer_error e = {0};
    assert_int_equal(infer_req_create(r, NULL, VOCAB, EMBD, 16, &x, &e), want);
    assert_null(x);
    if (!strstr(e.text, word))
        fail_msg("\"%s\" does not name %s", e.text, word);
}

static void test_request_checks(void **state)
{
    (void)state;
    infer_request r = plain();
    int32_t ids[16] = {0};
    r.n_prompt = 0;
    refused(&r, INFER_E_INVALID, "prompt");
    r = plain();
    r.prompt = NULL;
    refused(&r, INFER_E_INVALID, "prompt");
    r = plain();
    r.prompt = ids;
    r.n_prompt = 16;
    refused(&r, INFER_E_TOO_LARGE, "context of 16");
    r.n_prompt = UINT64_MAX; /* with the one to generate: none */
    refused(&r, INFER_E_TOO_LARGE, "context of 16");
    ids[2] = VOCAB;
    r.n_prompt = 3;
    refused(&r, INFER_E_INVALID, "id 40 at 2");
    ids[2] = -1;
    refused(&r, INFER_E_INVALID, "id -1 at 2");

    const struct {
        size_t at;
        float bad;
        const char *name;
    } floats[] = {
        {offsetof(infer_sampling, temperature), -1, "temperature"},
        {offsetof(infer_sampling, temperature), NAN, "temperature"},
        {offsetof(infer_sampling, top_p), 1.5f, "top_p"},
        {offsetof(infer_sampling, min_p), -0.1f, "min_p"},
        {offsetof(infer_sampling, repetition_penalty), -2, "repetition_penalty"},
        {offsetof(infer_sampling, presence_penalty), INFINITY, "presence_penalty"},
        {offsetof(infer_sampling, frequency_penalty), -101, "frequency_penalty"},
    };
    for (size_t i = 0; i < sizeof floats / sizeof floats[0]; i++) {
        r = plain();
        memcpy((char *)&r.sampling + floats[i].at, &floats[i].bad, sizeof(float));
        refused(&r, INFER_E_INVALID, floats[i].name);
    }
    r = plain();
    r.sampling.top_k = -1;
    refused(&r, INFER_E_INVALID, "top_k");
    infer_sample_bias bias[INFER_MAX_BIAS + 1] = {{0}};
    r = plain();
    r.sampling.bias = bias;
    r.sampling.n_bias = INFER_MAX_BIAS + 1;
    refused(&r, INFER_E_INVALID, "logit_bias");
    r.sampling.n_bias = 2;
    bias[1].id = VOCAB;
    refused(&r, INFER_E_INVALID, "entry 1");
    bias[1] = (infer_sample_bias){1, NAN};
    refused(&r, INFER_E_INVALID, "entry 1");
    r.sampling.bias = NULL;
    refused(&r, INFER_E_INVALID, "logit_bias");

    char longer[INFER_MAX_STOP_LEN + 2];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    const char *stops[INFER_MAX_STOPS + 1];
    for (uint32_t i = 0; i <= INFER_MAX_STOPS; i++)
        stops[i] = "a";
    r = plain();
    r.stop = stops;
    r.n_stop = INFER_MAX_STOPS + 1;
    refused(&r, INFER_E_INVALID, "stop");
    r.n_stop = 2;
    stops[1] = "";
    refused(&r, INFER_E_INVALID, "string 1");
    stops[1] = longer;
    refused(&r, INFER_E_INVALID, "string 1");
    stops[1] = NULL;
    refused(&r, INFER_E_INVALID, "string 1");
    r.stop = NULL;
    refused(&r, INFER_E_INVALID, "stop");
    r = plain();
    r.stop_ids = ids;
    r.n_stop_ids = INFER_MAX_STOP_IDS + 1;
    refused(&r, INFER_E_INVALID, "stop ids");
    ids[0] = VOCAB;
    r.n_stop_ids = 1;
    refused(&r, INFER_E_INVALID, "stop ids");
    r = plain();
    r.n_top_logprobs = INFER_MAX_TOP + 1;
    refused(&r, INFER_E_INVALID, "top_logprobs");
    r = plain();
    r.flags = INFER_REQ_PROMPT_ROWS;
    refused(&r, INFER_E_INVALID, "prompt rows");
    r = plain();
    r.output = INFER_OUTPUT_POOLED + 1;
    refused(&r, INFER_E_INVALID, "output = 3");
    r = plain();
    r.adapter = 2;
    refused(&r, INFER_E_NOT_FOUND, "adapter 2");
}

static void test_request_limits(void **state)
{
    (void)state;
    infer_request r = plain();
    const struct {
        int64_t max;
        uint64_t cap;
    } rows[] = {{5, 8}, {0, 3}, {13, 16}, {14, 16}, {INT64_MAX, 16}, {-1, 16}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        r.max_tokens = rows[i].max;
        infer_req *x = make(&r, 16);
        assert_int_equal(x->cap_tokens, rows[i].cap);
        assert_int_equal(x->n_tokens, 3);
        infer_req_destroy(x);
    }
    int32_t full[16] = {0};
    r.prompt = full;
    r.n_prompt = 16;
    r.max_tokens = 0; /* the logits of a prompt that fills the context */
    infer_req *x = make(&r, 16);
    assert_int_equal(x->cap_tokens, 16);
    infer_req_destroy(x);
    /* an older program's shorter struct */
    r = plain();
    r.struct_size = offsetof(infer_request, sampling);
    r.sampling.temperature = -5;
    x = make(&r, 16);
    assert_float_equal(x->sampling.temperature, 0, 0);
    assert_float_equal(x->sampling.top_p, 1, 0);
    assert_null(x->counts);
    infer_req_destroy(x);
}

static void test_request_no_memory(void **state)
{
    (void)state;
    const char *stops[] = {"one", "two"};
    int32_t ids[] = {1};
    infer_sample_bias bias[] = {{1, 2}};
    infer_request r = plain();
    r.stop = stops;
    r.n_stop = 2;
    r.stop_ids = ids;
    r.n_stop_ids = 1;
    r.sampling.bias = bias;
    r.sampling.n_bias = 1;
    r.sampling.presence_penalty = 1;
    r.flags = INFER_REQ_PROMPT_ROWS;
    r.output = INFER_OUTPUT_POOLED;
    r.on_row = on_logits;
    int n = 0;
    for (;; n++) {
        infer_req *x = NULL;
        infer_error e = {0};
        infer_alloc_fail_after(n, 0);
        infer_status s = infer_req_create(&r, NULL, VOCAB, EMBD, 16, &x, &e);
        if (!infer_alloc_fail_after(-1, 0)) {
            assert_int_equal(s, INFER_OK);
            infer_req_destroy(x);
            break;
        }
        assert_int_equal(s, INFER_E_NO_MEMORY);
        assert_non_null(strstr(e.text, "memory"));
    }
    assert_true(n >= 10);
}

static void test_counts(void **state)
{
    (void)state;
    infer_request r = plain();
    r.sampling.frequency_penalty = 0.5f;
    r.max_tokens = -1;
    infer_req *x = make(&r, 70000);
    x->tokens[x->n_made++] = 2;
    x->tokens[x->n_made++] = 7;
    x->tokens[x->n_made++] = 7;
    x->counts_stale = 0;
    infer_req_count(x, VOCAB);
    assert_int_equal(x->counts_stale, 1);
    assert_int_equal(x->counts[1], 0x8000);
    assert_int_equal(x->counts[2], 0x8001);
    assert_int_equal(x->counts[7], 2);
    assert_int_equal(x->counts[8], 0);
    while (x->n_made < 40000)
        x->tokens[x->n_made++] = 2;
    infer_req_count(x, VOCAB);
    assert_int_equal(x->counts[2], 0xFFFF); /* does not overflow into the prompt's bit */
    infer_req_destroy(x);
}

/* ---- Text ----------------------------------------------------------------------------------------------------- */

/* Feeds `text` cut as the bits of `cuts` say (bit i: a new piece starts after byte i) and returns all that was given
 * out; *stopped: whether a stop string ended it. */
static void feed(infer_req *r, const char *text, uint64_t cuts, char *out, int *stopped)
{
    size_t n = strlen(text), from = 0, at = 0;
    const char *p;
    size_t k;
    *stopped = 0;
    for (size_t i = 1; i <= n && !*stopped; i++) {
        if (i < n && !(cuts >> (i - 1) & 1))
            continue;
        assert_int_equal(infer_req_text(r, text + from, i - from, &p, &k, stopped), INFER_OK);
        memcpy(out + at, p, k);
        at += k;
        from = i;
    }
    r->text_stopped = *stopped;
    infer_req_flush(r, "", 0, &p, &k);
    if (*stopped)
        assert_int_equal(k, 0);
    memcpy(out + at, p, k);
    out[at + k] = 0;
}

static void test_stop_strings(void **state)
{
    (void)state;
    const struct {
        const char *stops[4];
        uint32_t flags;
        const char *text, *want;
        int stopped;
    } rows[] = {
        {{"end"}, 0, "the end of it", "the ", 1},
        {{"end"}, INFER_REQ_ECHO_STOP, "the end of it", "the end", 1},
        {{"end"}, 0, "en enen", "en enen", 0},      /* what is held back at the end leaves */
        {{"aab"}, 0, "aaaab!", "aa", 1},            /* overlapping beginnings */
        {{"abab", "bb"}, 0, "abaabbab", "abaa", 1}, /* the second one is complete first */
        {{"bcd", "c"}, 0, "abcde", "ab", 1},        /* inside the other, complete earlier */
        {{"cd", "bcd"}, 0, "abcde", "a", 1},        /* complete at once: the longer */
        {{"cd", "bcd"}, INFER_REQ_ECHO_STOP, "abcde", "abcd", 1},
        {{"\xC3\xA9"}, 0, "caf\xC3\xA9s", "caf", 1}, /* a character of two bytes */
        {{"\xE2\x82\xAC", "\xC3\xA9"}, 0, "\xE2\x82\xA9\xC3\xA8\xE2\x82\xAC", "\xE2\x82\xA9\xC3\xA8", 1},
        {{"x"}, 0, "x", "", 1},
        {{"zzzzzzzz"}, 0, "zzzzzzz", "zzzzzzz", 0},
    };
    char out[64];
    int stopped;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        infer_request q = plain();
        q.stop = rows[i].stops;
        q.flags = rows[i].flags;
        while (q.n_stop < 4 && rows[i].stops[q.n_stop])
            q.n_stop++;
        size_t n = strlen(rows[i].text);
        for (uint64_t cuts = 0; cuts < (uint64_t)1 << (n - 1); cuts++) {
            infer_req *r = make(&q, 16);
            feed(r, rows[i].text, cuts, out, &stopped);
            assert_string_equal(out, rows[i].want);
            assert_int_equal(stopped, rows[i].stopped);
            infer_req_destroy(r);
        }
    }
}

/* The longest stop strings, and the last text of a request given with its end. */
static void test_held_text(void **state)
{
    (void)state;
    char stop[INFER_MAX_STOP_LEN + 1], text[INFER_MAX_STOP_LEN + 8];
    memset(stop, 'a', INFER_MAX_STOP_LEN);
    stop[INFER_MAX_STOP_LEN] = 0;
    const char *stops[] = {stop};
    infer_request q = plain();
    q.stop = stops;
    q.n_stop = 1;
    memset(text, 'a', sizeof text);
    const char *p;
    size_t n;
    int stopped;
    infer_req *r = make(&q, 16);
    uint64_t before = infer_alloc_count();
    for (int i = 0; i < 100; i++) { /* never complete: nothing is given out of the last 255 */
        assert_int_equal(infer_req_text(r, text, 255, &p, &n, &stopped), INFER_OK);
        assert_int_equal(stopped, 0);
        assert_int_equal(infer_req_text(r, "b", 1, &p, &n, &stopped), INFER_OK);
        assert_int_equal(n, 256);
    }
    assert_int_equal(infer_alloc_count(), before); /* room was made when the request was */
    infer_req_text(r, text, 200, &p, &n, &stopped);
    infer_req_flush(r, "end", 3, &p, &n);
    assert_int_equal(n, 203);
    assert_memory_equal(p + 200, "end", 3);
    infer_req_destroy(r);
    /* the last text completes the stop string */
    r = make(&q, 16);
    infer_req_text(r, text, 255, &p, &n, &stopped);
    infer_req_flush(r, "ab", 2, &p, &n);
    assert_int_equal(n, 0);
    infer_req_destroy(r);
}

/* ---- Events --------------------------------------------------------------------------------------------------- */

static infer_event token_event(uint64_t id, int32_t token, const char *text)
{
    return (infer_event){.id = id, .type = INFER_EVENT_TOKEN, .token = token, .text = text, .n_text = strlen(text)};
}

static infer_event done_event(uint64_t id, const char *text, const char *error)
{
    return (infer_event){.id = id, .type = INFER_EVENT_DONE, .text = text, .n_text = strlen(text), .error = error};
}

static infer_status push(infer_events *q, const infer_event *e)
{
    infer_events_hold(q);
    const infer_status s = infer_events_push(q, e);
    infer_events_tell(q);
    return s;
}

static void test_events(void **state)
{
    (void)state;
    infer_events q;
    const infer_event *ev;
    uint32_t n = 7;
    infer_events_init(&q);
    assert_int_equal(infer_events_poll(&q, 0, &ev, &n), INFER_OK);
    assert_int_equal(n, 0);
    assert_int_equal(infer_events_poll(&q, 5, &ev, &n), INFER_OK);
    infer_events_wake(&q);
    assert_int_equal(infer_events_poll(&q, -1, &ev, &n), INFER_OK);
    assert_int_equal(n, 0);
    uint64_t seen = 0, sent = 0, done = 0, ended = 0;
    rng r = {5};
    for (int round = 0; round < 300; round++) {
        uint32_t k = rng_below(&r, 40);
        for (uint32_t i = 0; i < k; i++, sent++) {
            char text[32];
            infer_logprob top[3] = {{(int32_t)sent, -1}, {2, -2}, {3, -3}};
            snprintf(text, sizeof text, "%0*d", (int)rng_below(&r, 20) + 1, (int)sent);
            infer_event e = token_event(sent, (int32_t)sent, text);
            e.top = top;
            e.n_top = rng_below(&r, 4);
            assert_int_equal(push(&q, &e), INFER_OK);
        }
        for (uint32_t i = rng_below(&r, 9); i > 0; i--, done++)
            assert_int_equal(infer_events_reserve(&q), INFER_OK);
        for (uint32_t i = done > ended ? rng_below(&r, (uint32_t)(done - ended) + 1) : 0; i > 0; i--, ended++) {
            infer_event e = done_event(sent, "last", i % 2 ? "why" : NULL);
            assert_int_equal(push(&q, &e), INFER_OK);
        }
        if (round % 3 == 0)
            continue;
        assert_int_equal(infer_events_poll(&q, 0, &ev, &n), INFER_OK);
        for (uint32_t i = 0; i < n; i++) {
            if (ev[i].type == INFER_EVENT_DONE) {
                assert_memory_equal(ev[i].text, "last", 4);
                assert_true(!ev[i].error || !strcmp(ev[i].error, "why"));
                continue;
            }
            assert_int_equal(ev[i].token, (int32_t)seen);
            assert_int_equal(strtoul(ev[i].text, NULL, 10), seen);
            assert_int_equal(ev[i].text[ev[i].n_text], 0);
            assert_true(!ev[i].n_top || ev[i].top[0].id == (int32_t)seen);
            seen++;
        }
    }
    infer_events_fatal(&q, INFER_E_DEVICE_LOST);
    infer_events_fatal(&q, INFER_E_QUEUE); /* the first one stays */
    infer_event e = token_event(0, 0, "after");
    assert_int_equal(push(&q, &e), INFER_OK);
    assert_int_equal(infer_events_poll(&q, 0, &ev, &n), INFER_OK); /* what there is comes first */
    assert_true(n > 0);
    assert_int_equal(infer_events_poll(&q, -1, &ev, &n), INFER_E_DEVICE_LOST);
    assert_int_equal(n, 0);
    infer_events_destroy(&q);
}

/* With every allocation failing: what was set aside is enough for every request's last event. */
static void test_events_no_memory(void **state)
{
    (void)state;
    enum { REQUESTS = 200 };
    char text[INFER_MAX_STOP_LEN], why[INFER_ERROR_TEXT];
    memset(text, 't', sizeof text);
    memset(why, 'w', sizeof why);
    why[sizeof why - 1] = 0;
    for (int poll_between = 0; poll_between < 2; poll_between++) {
        infer_events q;
        const infer_event *ev;
        uint32_t n, dropped = 0, got = 0, tokens = 0;
        infer_events_init(&q);
        for (int i = 0; i < REQUESTS; i++) {
            assert_int_equal(infer_events_reserve(&q), INFER_OK);
            if (poll_between && i == REQUESTS / 2)
                assert_int_equal(infer_events_poll(&q, 0, &ev, &n), INFER_OK);
        }
        infer_alloc_fail_after(0, 1);
        assert_int_equal(infer_events_reserve(&q), INFER_OK); /* pages grow by doubling: there is some room */
        infer_events_unreserve(&q);
        for (int i = 0; i < REQUESTS; i++) {
            for (int k = 0; k < 20; k++) {
                infer_event e = token_event((uint64_t)i, k, "some text of a token");
                infer_status s = push(&q, &e);
                assert_true(s == INFER_OK || s == INFER_E_NO_MEMORY);
                *(s ? &dropped : &tokens) += 1;
            }
            infer_event e = i % 2 ? done_event((uint64_t)i, "", why) : done_event((uint64_t)i, text, NULL);
            e.n_text = i % 2 ? 0 : sizeof text;
            assert_int_equal(push(&q, &e), INFER_OK);
            if (poll_between && i % 30 == 0) {
                assert_int_equal(infer_events_poll(&q, 0, &ev, &n), INFER_OK);
                for (uint32_t k = 0; k < n; k++)
                    got += ev[k].type == INFER_EVENT_DONE;
            }
        }
        assert_int_equal(infer_events_poll(&q, 0, &ev, &n), INFER_OK);
        infer_alloc_fail_after(-1, 0);
        for (uint32_t k = 0; k < n; k++) {
            got += ev[k].type == INFER_EVENT_DONE;
            if (ev[k].type == INFER_EVENT_DONE && ev[k].id % 2)
                assert_string_equal(ev[k].error, why);
            if (ev[k].type == INFER_EVENT_DONE && ev[k].id % 2 == 0)
                assert_memory_equal(ev[k].text, text, sizeof text);
        }
        assert_int_equal(got, REQUESTS);
        assert_true(dropped > 0 && tokens > 0);
        infer_events_destroy(&q);
    }
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_request_checks),
        cmocka_unit_test(test_request_limits),
        cmocka_unit_test(test_request_no_memory),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_stop_strings),
        cmocka_unit_test(test_held_text),
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_events_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
