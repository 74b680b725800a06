/* The engine API: how requests end, limits, cancellation, events, threads, several models, failing devices.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>
#include <pthread.h>
#include <semaphore.h>

#include "e2e/rig.h"
#include "plugins/fault/fault.h"

enum { VOCAB = 264, CTX = 96 };

static const int32_t prompt[] = {72, 101, 108, 108, 111, 32, 119, 111, 114, 108, 100};
enum { N_PROMPT = sizeof prompt / sizeof prompt[0] };

static rig_options options(void)
{
    return (rig_options){.model = rig_golden("llama"), .devices = "ref0", .ctx = CTX, .parallel = 4, .batched = 64};
}

static infer_request request(int64_t max_tokens)
{
    return (infer_request){.prompt = prompt, .n_prompt = N_PROMPT, .max_tokens = max_tokens};
}

static void ask(rig *r, infer_request q, answer *a)
{
    answer *list[] = {a};
    rig_submit(r, &q, a);
    assert_int_equal(rig_collect(r, list, 1), INFER_OK);
}

static infer_status refused(rig *r, infer_request q, const char *word)
{
    infer_error e = {0};
    uint64_t id = 77;
    q.struct_size = sizeof q;
    infer_status s = infer_engine_submit(r->engine, &q, &id, &e);
    assert_int_not_equal(s, INFER_OK);
    assert_int_equal(e.status, s);
    assert_int_equal(id, 77);
    if (!strstr(e.text, word))
        fail_msg("\"%s\" does not say %s", e.text, word);
    return s;
}

/* ---- How a request ends --------------------------------------------------------------------------------------- */

static void test_stop_strings(void **state)
{
    (void)state;
    rig r;
    answer whole, a;
    rig_options o = options();
    rig_open(&r, &o);
    infer_request q = request(60);
    q.flags = INFER_REQ_IGNORE_EOS;
    q.sampling = (infer_sampling){.temperature = 1.5f, .seed = 11};
    ask(&r, q, &whole);
    assert_int_equal(whole.n, 60);
    assert_true(whole.n_text > 40);
    /* every place where a character begins, with stop strings of one to seven bytes more */
    uint32_t tried = 0, wide = 0;
    for (size_t from = 0; from < whole.n_text; from++) {
        char stop[16];
        const char *stops[] = {"never in the text", stop};
        size_t to = from + 1 + from % 7;
        while (to < whole.n_text && ((unsigned char)whole.text[to] & 0xC0) == 0x80)
            to++;
        if (((unsigned char)whole.text[from] & 0xC0) == 0x80 || to > whole.n_text ||
            memchr(whole.text + from, 0, to - from))
            continue;
        memcpy(stop, whole.text + from, to - from);
        stop[to - from] = 0;
        const char *at = strstr(whole.text, stop);
        q.stop = stops;
        q.n_stop = 2;
        q.flags = from % 2 ? INFER_REQ_IGNORE_EOS : INFER_REQ_IGNORE_EOS | INFER_REQ_ECHO_STOP;
        ask(&r, q, &a);
        size_t want = (size_t)(at - whole.text) + (from % 2 ? 0 : to - from);
        assert_int_equal(a.finish, INFER_FINISH_STOP);
        assert_int_equal(a.n_text, want);
        assert_memory_equal(a.text, whole.text, want);
        for (uint32_t i = 0; i < a.n; i++)
            assert_int_equal(a.ids[i], whole.ids[i]);
        answer_free(&a);
        tried++;
        wide += (unsigned char)stop[0] >= 0x80;
    }
    assert_true(tried > 30 && wide > 5);
    answer_free(&whole);
    rig_close(&r);
}

static void test_end_tokens(void **state)
{
    (void)state;
    rig r;
    answer a;
    rig_options o = options();
    const infer_tokenizer *tok;
    rig_open(&r, &o);
    assert_int_equal(infer_file_tokenizer(r.file, &tok, NULL), INFER_OK);
    int32_t eos = infer_tokenizer_eos(tok);
    assert_true(eos >= 0);
    infer_sample_bias push[] = {{eos, 1000}, {65, 500}};
    infer_request q = request(10);
    q.sampling.bias = push;
    q.sampling.n_bias = 1;
    ask(&r, q, &a); /* at once, and the end token is not told */
    assert_int_equal(a.finish, INFER_FINISH_STOP);
    assert_int_equal(a.n, 0);
    assert_int_equal(a.n_text, 0);
    answer_free(&a);
    q.min_tokens = 4; /* forbidden until then, however strong */
    ask(&r, q, &a);
    assert_int_equal(a.finish, INFER_FINISH_STOP);
    assert_int_equal(a.n, 4);
    for (uint32_t i = 0; i < a.n; i++)
        assert_int_not_equal(a.ids[i], eos);
    answer_free(&a);
    q.min_tokens = 0;
    q.flags = INFER_REQ_IGNORE_EOS;
    ask(&r, q, &a); /* a token like others, without a text */
    assert_int_equal(a.finish, INFER_FINISH_LENGTH);
    assert_int_equal(a.n, 10);
    for (uint32_t i = 0; i < a.n; i++)
        assert_int_equal(a.ids[i], eos);
    assert_int_equal(a.n_text, 0);
    answer_free(&a);
    /* a stop id, with min_tokens */
    int32_t stop_ids[] = {65};
    q = request(10);
    q.sampling.bias = push + 1;
    q.sampling.n_bias = 1;
    q.stop_ids = stop_ids;
    q.n_stop_ids = 1;
    q.flags = INFER_REQ_IGNORE_EOS;
    q.min_tokens = 3;
    ask(&r, q, &a);
    assert_int_equal(a.finish, INFER_FINISH_STOP);
    assert_int_equal(a.n, 3);
    answer_free(&a);
    /* more of min_tokens than of max_tokens */
    q.min_tokens = 50;
    ask(&r, q, &a);
    assert_int_equal(a.finish, INFER_FINISH_LENGTH);
    assert_int_equal(a.n, 10);
    answer_free(&a);
    rig_close(&r);
}

static void test_lengths(void **state)
{
    (void)state;
    rig r;
    answer a;
    int32_t full[CTX + 1];
    rig_options o = options();
    rig_open(&r, &o);
    assert_int_equal(infer_engine_ctx_size(r.engine), CTX);
    assert_ptr_equal(infer_engine_model(r.engine), r.model);
    for (int i = 0; i <= CTX; i++)
        full[i] = i % 250;
    infer_request q = request(0);
    ask(&r, q, &a);
    assert_int_equal(a.finish, INFER_FINISH_LENGTH);
    assert_int_equal(a.n, 0);
    assert_int_equal(a.t_first_token, 0);
    answer_free(&a);
    q.max_tokens = 1;
    ask(&r, q, &a);
    assert_int_equal(a.n, 1);
    answer_free(&a);
    q = request(-1); /* until the context is full */
    q.flags = INFER_REQ_IGNORE_EOS;
    ask(&r, q, &a);
    assert_int_equal(a.finish, INFER_FINISH_LENGTH);
    assert_int_equal(a.n, CTX - N_PROMPT);
    assert_int_equal(a.n_prompt, N_PROMPT);
    answer_free(&a);
    q.max_tokens = 1000;
    ask(&r, q, &a);
    assert_int_equal(a.n, CTX - N_PROMPT);
    answer_free(&a);
    q.prompt = full;
    q.n_prompt = CTX - 1;
    ask(&r, q, &a);
    assert_int_equal(a.n, 1);
    answer_free(&a);
    q.n_prompt = CTX;
    assert_int_equal(refused(&r, q, "context of 96"), INFER_E_TOO_LARGE);
    q.max_tokens = 0;
    ask(&r, q, &a); /* the logits of a whole context */
    assert_int_equal(a.finish, INFER_FINISH_LENGTH);
    answer_free(&a);
    q.n_prompt = CTX + 1;
    assert_int_equal(refused(&r, q, "context of 96"), INFER_E_TOO_LARGE);
    q = request(3);
    q.n_prompt = 0;
    assert_int_equal(refused(&r, q, "prompt"), INFER_E_INVALID);
    q = request(3);
    q.sampling.temperature = NAN;
    assert_int_equal(refused(&r, q, "temperature"), INFER_E_INVALID);
    rig_idle(&r);
    rig_close(&r);
}

/* Forbidding everything is one request's own failure. */
static void test_nothing_allowed(void **state)
{
    (void)state;
    rig r;
    answer a, b, *list[] = {&a, &b};
    rig_options o = options();
    rig_open(&r, &o);
    infer_sample_bias none[VOCAB];
    for (int i = 0; i < VOCAB; i++)
        none[i] = (infer_sample_bias){i, -INFINITY};
    infer_request bad = request(5), good = request(5);
    bad.sampling.bias = none;
    bad.sampling.n_bias = VOCAB;
    rig_submit(&r, &good, &b);
    rig_submit(&r, &bad, &a);
    assert_int_equal(rig_collect(&r, list, 2), INFER_OK);
    assert_int_equal(a.finish, INFER_FINISH_ERROR);
    assert_int_equal(a.status, INFER_E_INVALID);
    assert_non_null(strstr(a.error, "sampling"));
    assert_int_equal(b.n, 5);
    assert_int_equal(rig_stats(&r).failed, 1);
    answer_free(&a);
    answer_free(&b);
    rig_idle(&r);
    rig_close(&r);
}

static void test_logprobs(void **state)
{
    (void)state;
    rig r;
    answer a;
    rig_options o = options();
    rig_open(&r, &o);
    for (uint32_t n = 0; n <= 20; n += 5) {
        infer_request q = request(6);
        q.n_top_logprobs = n;
        ask(&r, q, &a);
        assert_int_equal(a.n_top, n);
        for (uint32_t i = 0; i < a.n_top; i++) {
            assert_true(a.top[i].logprob <= 0 && isfinite(a.top[i].logprob));
            assert_true(i == 0 || a.top[i].logprob <= a.top[i - 1].logprob);
        }
        if (n) {
            assert_int_equal(a.top[0].id, a.ids[a.n - 1]); /* greedy */
            assert_float_equal(a.top[0].logprob, a.logprobs[a.n - 1], 0);
        }
        answer_free(&a);
    }
    infer_request q = request(6);
    q.n_top_logprobs = 21;
    assert_int_equal(refused(&r, q, "top_logprobs"), INFER_E_INVALID);
    rig_close(&r);
}

/* ---- The engine thread held up in on_row ------------------------------------------------------------------- */

typedef struct gate {
    sem_t reached, go;
    uint64_t at; /* the position where it waits */
} gate;

static void wait_there(void *user, uint64_t pos, const float *logits, uint32_t n_vocab)
{
    gate *g = user;
    (void)logits;
    (void)n_vocab;
    if (pos != g->at)
        return;
    sem_post(&g->reached);
    sem_wait(&g->go);
}

static void gate_init(gate *g, uint64_t at)
{
    sem_init(&g->reached, 0, 0);
    sem_init(&g->go, 0, 0);
    g->at = at;
}

/* A request whose prompt stops the engine after position `at`. */
static infer_request gated(gate *g, uint64_t at, int64_t max_tokens)
{
    infer_request q = request(max_tokens);
    gate_init(g, at);
    q.flags = INFER_REQ_PROMPT_ROWS | INFER_REQ_IGNORE_EOS;
    q.on_row = wait_there;
    q.row_user = g;
    return q;
}

static void test_queue_limit(void **state)
{
    (void)state;
    enum { QUEUE = 5 };
    rig r;
    gate g;
    answer first, waiting[QUEUE], *list[QUEUE + 1];
    rig_options o = options();
    o.queue = QUEUE;
    o.parallel = 1;
    rig_open(&r, &o);
    infer_request q = gated(&g, 0, 2);
    rig_submit(&r, &q, &first);
    sem_wait(&g.reached);
    q = request(2);
    for (int i = 0; i < QUEUE; i++) {
        rig_submit(&r, &q, &waiting[i]);
        list[i] = &waiting[i];
    }
    assert_int_equal(refused(&r, q, "5 requests are waiting"), INFER_E_BUSY);
    assert_int_equal(rig_stats(&r).n_waiting, QUEUE);
    assert_int_equal(rig_stats(&r).n_running, 1);
    sem_post(&g.go);
    list[QUEUE] = &first;
    assert_int_equal(rig_collect(&r, list, QUEUE + 1), INFER_OK);
    for (int i = 0; i < QUEUE; i++) {
        assert_int_equal(waiting[i].finish, INFER_FINISH_LENGTH);
        assert_true(!i || waiting[i].t_first_run >= waiting[i - 1].t_end); /* in order */
        assert_int_equal(waiting[i].n, 2);
    }
    for (int i = 0; i <= QUEUE; i++)
        answer_free(list[i]);
    rig_idle(&r);
    rig_close(&r);
}

/* Cancelled while it waits, in the middle of its prompt, among its tokens, after its end; and ids that nobody has. */
static void test_cancel(void **state)
{
    (void)state;
    rig r;
    gate g;
    answer a, b, c, *list[] = {&a, &b, &c};
    rig_options o = options();
    o.parallel = 1;
    o.chunk = 3;
    rig_open(&r, &o);
    infer_engine_cancel(r.engine, 0);
    infer_engine_cancel(r.engine, 1); /* the id that the next request will have */
    infer_engine_cancel(r.engine, UINT64_MAX);
    infer_request q = gated(&g, 4, 5), plain = request(5);
    plain.flags = INFER_REQ_IGNORE_EOS;
    rig_submit(&r, &q, &a);
    sem_wait(&g.reached);
    rig_submit(&r, &plain, &b);
    rig_submit(&r, &plain, &c);
    infer_engine_stats st = rig_stats(&r);
    assert_int_equal(st.n_running, 1);
    assert_true(st.blocks_used > 0);
    infer_engine_cancel(r.engine, a.id); /* in its prompt */
    infer_engine_cancel(r.engine, a.id);
    infer_engine_cancel(r.engine, b.id); /* not yet started */
    sem_post(&g.go);
    assert_int_equal(rig_collect(&r, list, 3), INFER_OK);
    assert_int_equal(a.finish, INFER_FINISH_CANCELLED);
    assert_int_equal(a.n, 0);
    assert_int_equal(b.finish, INFER_FINISH_CANCELLED);
    assert_int_equal(b.t_first_run, 0);
    assert_int_equal(c.finish, INFER_FINISH_LENGTH);
    assert_int_equal(c.n, 5);
    infer_engine_cancel(r.engine, c.id); /* over already */
    rig_idle(&r);
    for (int i = 0; i < 3; i++)
        answer_free(list[i]);
    /* among its tokens: what came before stays, text included */
    plain.max_tokens = -1;
    rig_submit(&r, &plain, &a);
    while (a.n < 5)
        assert_int_equal(rig_poll(&r, -1), INFER_OK);
    infer_engine_cancel(r.engine, a.id);
    assert_int_equal(rig_collect(&r, list, 1), INFER_OK);
    assert_true(a.finish == INFER_FINISH_CANCELLED || a.n == CTX - N_PROMPT);
    assert_true(a.n >= 5);
    answer_free(&a);
    rig_idle(&r);
    st = rig_stats(&r);
    assert_int_equal(st.finished + st.cancelled, 4);
    assert_true(st.cancelled >= 2);
    rig_close(&r);
}

/* Destroyed while requests run and wait, with events that nobody polled. */
static void test_destroy(void **state)
{
    (void)state;
    static const char *const devices[] = {"ref0", "sim0", "ref0,sim0"};
    for (int i = 0; i < 3; i++) {
        rig r;
        answer a[12];
        rig_options o = options();
        o.devices = devices[i];
        rig_open(&r, &o);
        infer_request q = request(-1);
        for (int k = 0; k < 12; k++)
            rig_submit(&r, &q, &a[k]);
        if (i == 1)
            rig_poll(&r, 20);
        rig_close(&r);
        for (int k = 0; k < 12; k++)
            answer_free(&a[k]);
    }
}

/* Prefixes: a cancelled request's text is there for the next one, a failed one's is not; a caller's struct from before
 * salts is read to its end only. */
static void test_prefix(void **state)
{
    (void)state;
    enum { MANY = 48 };
    rig r;
    answer a, *list[] = {&a};
    int32_t text[MANY];
    infer_sample_bias bias[264];
    rig_options o = options();
    o.chunk = 5;
    rig_open(&r, &o);
    for (int i = 0; i < MANY; i++)
        text[i] = (i * 11 + i * i) % 250;
    gate g;
    infer_request q = gated(&g, 30, 5);
    q.prompt = text;
    q.n_prompt = MANY;
    rig_submit(&r, &q, &a);
    sem_wait(&g.reached); /* some of it is computed */
    infer_engine_cancel(r.engine, a.id);
    sem_post(&g.go);
    assert_int_equal(rig_collect(&r, list, 1), INFER_OK);
    assert_int_equal(a.finish, INFER_FINISH_CANCELLED);
    answer_free(&a);
    rig_idle(&r);
    q = request(2);
    q.prompt = text;
    q.n_prompt = MANY;
    ask(&r, q, &a);
    assert_true(a.n_cached >= 30 && a.n_cached < MANY);
    answer_free(&a);
    ask(&r, q, &a);
    assert_int_equal(a.n_cached, MANY - 1);
    answer_free(&a);
    q.cache_salt = "someone";
    ask(&r, q, &a);
    assert_int_equal(a.n_cached, 0);
    answer_free(&a);
    infer_error e = {0};
    memset(&a, 0, sizeof a);
    q.struct_size = (uint32_t)offsetof(infer_request, cache_salt);
    q.user = &a;
    assert_int_equal(infer_engine_submit(r.engine, &q, &a.id, &e), INFER_OK);
    assert_int_equal(rig_collect(&r, list, 1), INFER_OK);
    assert_int_equal(a.n_cached, MANY - 1);
    answer_free(&a);
    /* every token forbidden: it fails once its prompt is read */
    text[0] = 251;
    for (int i = 0; i < 264; i++)
        bias[i] = (infer_sample_bias){i, -INFINITY};
    q.sampling.bias = bias;
    q.sampling.n_bias = 264;
    q.n_prompt = 5;
    for (int i = 0; i < 2; i++) {
        ask(&r, q, &a);
        assert_int_equal(a.finish, INFER_FINISH_ERROR);
        assert_int_equal(a.n_cached, 0);
        answer_free(&a);
    }
    rig_idle(&r);
    rig_close(&r);
}

static void test_stats_and_times(void **state)
{
    (void)state;
    enum { N = 6 };
    rig r;
    answer a[N], *list[N];
    rig_options o = options();
    rig_open(&r, &o);
    infer_engine_stats st = rig_stats(&r);
    assert_int_equal(st.blocks_total, 4 * ((CTX + st.block_size - 1) / st.block_size));
    assert_int_equal(st.last_token_ns, 0);
    uint64_t before = infer_engine_now();
    for (int i = 0; i < N; i++) {
        infer_request q = request(7);
        q.flags = INFER_REQ_IGNORE_EOS;
        rig_submit(&r, &q, &a[i]);
        list[i] = &a[i];
    }
    assert_int_equal(rig_collect(&r, list, N), INFER_OK);
    uint64_t after = infer_engine_now();
    st = rig_stats(&r);
    assert_int_equal(st.prompt_tokens + st.prefix_hits, N * N_PROMPT);
    assert_int_equal(st.prefix_hits, 2 * (N_PROMPT - 1)); /* four at once, then two that find all but the last token */
    assert_int_equal(st.prefix_queries, N * N_PROMPT);
    assert_int_equal(st.generated_tokens, N * 7);
    assert_int_equal(st.finished, N);
    assert_int_equal(st.fatal, INFER_OK);
    assert_true(st.steps >= 14 && st.steps <= 7 * N);
    assert_true(st.step_ns > 0 && st.step_ns <= after - before);
    assert_true(st.device_busy_ns > 0);
    assert_true(st.last_token_ns > before && st.last_token_ns <= after);
    assert_int_equal(st.copy_bytes, 0);
    assert_int_equal(st.fallback_ops, 0);
    for (int i = 0; i < N; i++) {
        assert_true(before <= a[i].t_submit && a[i].t_submit <= a[i].t_first_run);
        assert_true(a[i].t_first_run < a[i].t_first_token && a[i].t_first_token <= a[i].t_end && a[i].t_end <= after);
        answer_free(&a[i]);
    }
    /* an older program's struct: nothing beyond it is written */
    infer_engine_stats old;
    memset(&old, 0x5A, sizeof old);
    old.struct_size = offsetof(infer_engine_stats, steps);
    infer_engine_get_stats(r.engine, &old);
    assert_int_equal(old.block_size, st.block_size);
    assert_int_equal(old.steps, 0x5A5A5A5A5A5A5A5A);
    rig_idle(&r);
    rig_close(&r);
}

/* ---- Threads -------------------------------------------------------------------------------------------------- */

static void *wake_later(void *arg)
{
    rig *r = arg;
    infer_engine_wake(r->engine);
    return NULL;
}

static void test_wake(void **state)
{
    (void)state;
    rig r;
    pthread_t t;
    rig_options o = options();
    rig_open(&r, &o);
    const infer_event *ev;
    uint32_t n = 9;
    assert_int_equal(infer_engine_poll(r.engine, 0, &ev, &n), INFER_OK);
    assert_int_equal(n, 0);
    assert_int_equal(infer_engine_poll(r.engine, 10, &ev, &n), INFER_OK);
    pthread_create(&t, NULL, wake_later, &r);
    assert_int_equal(infer_engine_poll(r.engine, -1, &ev, &n), INFER_OK);
    assert_int_equal(n, 0);
    pthread_join(t, NULL);
    rig_close(&r);
}

/* A polling thread that comes late learns when each token was made all the same. */
static void test_event_times(void **state)
{
    enum { N = 12 };
    (void)state;
    rig r;
    rig_options o = options();
    rig_open(&r, &o);
    infer_request q = request(N);
    q.struct_size = sizeof q;
    q.flags = INFER_REQ_IGNORE_EOS;
    const infer_event *ev;
    uint64_t id, last = infer_engine_now();
    uint32_t n = 0;
    assert_int_equal(infer_engine_submit(r.engine, &q, &id, NULL), INFER_OK);
    for (int i = 0; i < 10000 && !rig_stats(&r).finished; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    rig_idle(&r);
    assert_int_equal(infer_engine_poll(r.engine, -1, &ev, &n), INFER_OK);
    assert_int_equal(n, N + 1); /* all at once */
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(ev[i].type, INFER_EVENT_TOKEN);
        assert_true(ev[i].t > last);
        last = ev[i].t;
    }
    assert_true(ev[N].t >= last && ev[N].t == ev[N].t_end && ev[N].t <= infer_engine_now());
    assert_true(ev[0].t >= ev[N].t_first_token && ev[0].t < ev[1].t);
    rig_close(&r);
}

enum { SUBMITTERS = 6, EACH = 15 };

typedef struct submitter {
    pthread_t thread;
    rig *r;
    int number;
    answer answers[EACH];
} submitter;

static infer_request request_of(int i)
{
    infer_request q = request(1 + i % 9);
    q.n_prompt = 1 + (uint64_t)i % N_PROMPT;
    q.sampling = (infer_sampling){.temperature = 1, .seed = (uint64_t)i};
    return q;
}

static void *submit_many(void *arg)
{
    submitter *s = arg;
    for (int i = 0; i < EACH; i++) {
        infer_request q = request_of(s->number * EACH + i);
        q.struct_size = sizeof q;
        q.user = &s->answers[i];
        infer_status st;
        while ((st = infer_engine_submit(s->r->engine, &q, &s->answers[i].id, NULL)) == INFER_E_BUSY)
            infer_engine_wake(s->r->engine);
        if (st)
            abort();
        if (i % 5 == 4)
            infer_engine_cancel(s->r->engine, s->answers[i - 1].id);
        rig_stats(s->r);
    }
    return NULL;
}

/* Events may arrive before the submitting thread knows the id, so the polling side goes by `user`. */
static void test_submitters(void **state)
{
    (void)state;
    rig r;
    rig_options o = options();
    o.queue = 8;
    rig_open(&r, &o);
    submitter *s = calloc(SUBMITTERS, sizeof *s);
    uint32_t done = 0, cancelled = 0, tokens[SUBMITTERS * EACH] = {0};
    int32_t ids[SUBMITTERS * EACH][9];
    for (int i = 0; i < SUBMITTERS; i++) {
        s[i].r = &r;
        s[i].number = i;
        pthread_create(&s[i].thread, NULL, submit_many, &s[i]);
    }
    while (done < SUBMITTERS * EACH) {
        const infer_event *ev;
        uint32_t n;
        assert_int_equal(infer_engine_poll(r.engine, -1, &ev, &n), INFER_OK);
        for (uint32_t i = 0; i < n; i++) {
            int who = 0;
            while (!((answer *)ev[i].user >= s[who].answers && (answer *)ev[i].user < s[who].answers + EACH))
                who++;
            long k = who * EACH + ((answer *)ev[i].user - s[who].answers);
            if (ev[i].type == INFER_EVENT_TOKEN)
                ids[k][tokens[k]++] = ev[i].token;
            done += ev[i].type == INFER_EVENT_DONE;
            cancelled += ev[i].finish == INFER_FINISH_CANCELLED;
        }
    }
    for (int i = 0; i < SUBMITTERS; i++)
        pthread_join(s[i].thread, NULL);
    rig_idle(&r);
    infer_engine_stats st = rig_stats(&r);
    assert_int_equal(st.finished + st.cancelled, SUBMITTERS * EACH);
    assert_int_equal(st.cancelled, cancelled);
    uint64_t seen[SUBMITTERS * EACH + 1] = {0};
    for (int i = 0; i < SUBMITTERS * EACH; i++) {
        uint64_t id = s[i / EACH].answers[i % EACH].id;
        assert_true(id >= 1 && id <= SUBMITTERS * EACH);
        assert_int_equal(seen[id]++, 0);
    }
    /* and each as if it had been alone */
    for (int i = 0; i < SUBMITTERS * EACH; i += 7) {
        answer a;
        ask(&r, request_of(i), &a);
        assert_true(tokens[i] <= a.n);
        for (uint32_t k = 0; k < tokens[i]; k++)
            assert_int_equal(ids[i][k], a.ids[k]);
        answer_free(&a);
    }
    free(s);
    rig_close(&r);
}

/* ---- Several of everything ------------------------------------------------------------------------------------ */

static void *one_rig(void *arg)
{
    rig r;
    answer a, *list[] = {&a};
    rig_open(&r, arg);
    for (int i = 0; i < 10; i++) {
        infer_request q = request_of(i);
        rig_submit(&r, &q, &a);
        assert_int_equal(rig_collect(&r, list, 1), INFER_OK);
        answer_free(&a);
    }
    rig_close(&r);
    return NULL;
}

static void test_two_processes_worth(void **state)
{
    (void)state;
    pthread_t t[2];
    rig_options o[] = {options(), options()};
    o[0].model = rig_golden("qwen2");
    o[1].model = rig_golden("qwen3");
    for (int i = 0; i < 2; i++)
        pthread_create(&t[i], NULL, one_rig, &o[i]);
    for (int i = 0; i < 2; i++)
        pthread_join(t[i], NULL);
}

/* Two models on one device of one runtime, and two engines on one of them: each as if alone, each with its own books.
 */
static void test_two_models(void **state)
{
    (void)state;
    rig a, b = {0};
    answer want[3], got[3], *list[3];
    rig_options o = options();
    rig_open(&a, &o);
    infer_memory_row before[64], after[64];
    uint32_t n = infer_model_memory(a.model, before, 64);
    for (int i = 0; i < 3; i++)
        ask(&a, request_of(i), &want[i]);
    infer_plan_options po = {.struct_size = sizeof po, .ctx_size = 64, .n_parallel = 2, .devices = "ref0"};
    assert_int_equal(infer_file_open(rig_golden("qwen2"), &b.file, NULL), INFER_OK);
    assert_int_equal(infer_plan_create(a.rt, b.file, &po, &b.plan, NULL), INFER_OK);
    assert_int_equal(infer_model_load(b.plan, NULL, NULL, &b.model, NULL), INFER_OK);
    assert_int_equal(infer_engine_create(b.model, NULL, &b.engine, NULL), INFER_OK);
    assert_int_equal(infer_model_memory(a.model, after, 64), n);
    assert_memory_equal(before, after, n * sizeof *before);
    rig second = {0}; /* another engine on model a */
    assert_int_equal(infer_engine_create(a.model, NULL, &second.engine, NULL), INFER_OK);
    infer_request other = request(-1);
    answer noise, *noisy[] = {&noise};
    rig_submit(&b, &other, &noise);
    for (int i = 0; i < 3; i++) {
        infer_request q = request_of(i);
        rig_submit(i % 2 ? &a : &second, &q, &got[i]);
        list[i] = &got[i];
    }
    assert_int_equal(rig_collect(&a, list + 1, 1), INFER_OK);
    answer *twice[] = {list[0], list[2]};
    assert_int_equal(rig_collect(&second, twice, 2), INFER_OK);
    assert_int_equal(rig_collect(&b, noisy, 1), INFER_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(got[i].n, want[i].n);
        assert_memory_equal(got[i].ids, want[i].ids, want[i].n * sizeof *want[i].ids);
        assert_memory_equal(got[i].logprobs, want[i].logprobs, want[i].n * sizeof *want[i].logprobs);
        answer_free(&got[i]);
        answer_free(&want[i]);
    }
    answer_free(&noise);
    infer_engine_destroy(second.engine);
    rig_close(&b);
    rig_close(&a);
}

/* ---- Failing devices ------------------------------------------------------------------------------------------ */

/* fault0 decorates sim: after n more calls of a class that make one fails. */
static void open_failing(rig *r, const char *devices, uint32_t parallel, uint32_t cls, int64_t n, infer_status s)
{
    const infer_fault_api *fault = rig_fault();
    const char *settings[] = {rig_wrap("sim"), NULL};
    rig_options o = options();
    o.devices = devices;
    o.split = strchr(devices, ',') ? "1,1" : NULL;
    o.settings = settings;
    o.parallel = parallel;
    rig_open(r, &o);
    fault->arm(cls, n, s);
}

static void test_device_lost(void **state)
{
    (void)state;
    enum { N = 8 };
    static const char *const devices[] = {"fault0", "ref0,fault0", "fault0,ref0"};
    for (int d = 0; d < 3; d++) {
        rig r;
        answer a[N], *list[N];
        open_failing(&r, devices[d], 4, INFER_FAULT_DONE, 10, INFER_E_DEVICE_LOST);
        infer_request q = request(-1);
        q.flags = INFER_REQ_IGNORE_EOS;
        for (int i = 0; i < N; i++) {
            rig_submit(&r, &q, &a[i]);
            list[i] = &a[i];
        }
        assert_int_equal(rig_collect(&r, list, N), INFER_OK); /* every end is told */
        for (int i = 0; i < N; i++) {
            assert_int_equal(a[i].finish, INFER_FINISH_ERROR);
            assert_int_equal(a[i].status, INFER_E_DEVICE_LOST);
            if (!strstr(a[i].error, "fault0"))
                fail_msg("\"%s\" does not name the device", a[i].error);
            answer_free(&a[i]);
        }
        assert_int_equal(rig_poll(&r, -1), INFER_E_DEVICE_LOST); /* then the status, for ever */
        assert_int_equal(rig_poll(&r, 0), INFER_E_DEVICE_LOST);
        assert_int_equal(refused(&r, q, "fault0"), INFER_E_DEVICE_LOST);
        infer_engine_stats st = rig_stats(&r);
        assert_int_equal(st.fatal, INFER_E_DEVICE_LOST);
        assert_int_equal(st.failed, N);
        assert_int_equal(st.n_running + st.n_waiting, 0);
        assert_int_equal(st.blocks_used, 0);
        rig_close(&r);
    }
}

/* A failure of a smaller radius ends those that were in the step; the engine goes on. */
static void test_step_failure(void **state)
{
    (void)state;
    rig r;
    answer a, b, c;
    open_failing(&r, "fault0", 1, INFER_FAULT_OP, 120, INFER_E_NO_MEMORY);
    infer_request q = request(20);
    q.flags = INFER_REQ_IGNORE_EOS;
    rig_submit(&r, &q, &a);
    rig_submit(&r, &q, &b); /* waits meanwhile */
    answer *list[] = {&a, &b};
    assert_int_equal(rig_collect(&r, list, 2), INFER_OK);
    assert_int_equal(a.finish, INFER_FINISH_ERROR);
    assert_int_equal(a.status, INFER_E_NO_MEMORY);
    assert_non_null(strstr(a.error, "injected"));
    assert_int_equal(b.finish, INFER_FINISH_LENGTH);
    ask(&r, q, &c);
    assert_int_equal(c.finish, INFER_FINISH_LENGTH);
    assert_int_equal(c.n, 20);
    assert_memory_equal(b.ids, c.ids, 20 * sizeof *b.ids);
    assert_int_equal(rig_stats(&r).failed, 1);
    answer_free(&a);
    answer_free(&b);
    answer_free(&c);
    rig_idle(&r);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stop_strings),
        cmocka_unit_test(test_end_tokens),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_nothing_allowed),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_queue_limit),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_destroy),
        cmocka_unit_test(test_stats_and_times),
        cmocka_unit_test(test_prefix),
        cmocka_unit_test(test_wake),
        cmocka_unit_test(test_event_times),
        cmocka_unit_test(test_submitters),
        cmocka_unit_test(test_two_processes_worth),
        cmocka_unit_test(test_two_models),
        cmocka_unit_test(test_device_lost),
        cmocka_unit_test(test_step_failure),
    };
    rig_watchdog(300);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
