/* The load generator's parts: the list, the pacer, HTTP and event readers, answers, statistics.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>
#include <unistd.h>

#include "unit.h"

#include <infer/infer.h>

#include "bench/load/answer.h"
#include "bench/load/client.h"
#include "bench/load/http.h"
#include "bench/load/load.h"

/* ---- The list ---------------------------------------------------------------------------------------------- */

static const load_spec plain = {.workload = LOAD_RANDOM,
                                .n_requests = 60,
                                .n_in = 30,
                                .n_out = 20,
                                .n_turns = 1,
                                .n_prefix = 40,
                                .n_prefixes = 3,
                                .max_in = 1024,
                                .seed = 7};

static load_list make(const load_spec *s)
{
    load_list l;
    infer_error err = {0};
    if (load_list_make(s, &l, &err) != INFER_OK)
        fail_msg("%s", err.text);
    return l;
}

static void test_list_repeats(void **state)
{
    (void)state;
    for (int w = LOAD_RANDOM; w <= LOAD_TURNS; w++) {
        load_spec s = plain;
        s.workload = (enum load_workload)w;
        s.sigma = 0.7;
        s.rate = 5;
        s.n_turns = w == LOAD_TURNS ? 4 : 1;
        load_list a = make(&s), b = make(&s);
        assert_int_equal(a.n, s.n_requests);
        assert_int_equal(a.hash, b.hash);
        for (uint32_t i = 0; i < a.n; i++) {
            assert_string_equal(a.r[i].text, b.r[i].text);
            assert_int_equal(a.r[i].n_out, b.r[i].n_out);
            assert_int_equal(a.r[i].due, b.r[i].due);
        }
        load_list_free(&b);
        /* More requests, or another rate, leave those that were there as they are. */
        s.n_requests += 11;
        s.rate = 50;
        b = make(&s);
        assert_int_not_equal(a.hash, b.hash);
        for (uint32_t i = 0; i < a.n; i++)
            assert_string_equal(a.r[i].text, b.r[i].text);
        load_list_free(&b);
        s.seed++;
        b = make(&s);
        int same = 0;
        for (uint32_t i = 0; i < a.n; i++)
            same += !strcmp(a.r[i].text, b.r[i].text);
        assert_true(same < 3);
        load_list_free(&a);
        load_list_free(&b);
    }
}

static void test_lengths(void **state)
{
    (void)state;
    enum { N = 40000 };
    uint64_t random = 3;
    double sum = 0, logs = 0, squares = 0;
    for (int i = 0; i < N; i++) {
        double x = load_random_length(&random, 300, 0.8);
        assert_true(x >= 1);
        sum += x;
        logs += log(x);
        squares += log(x) * log(x);
    }
    const double mean_log = logs / N;
    assert_true(fabs(sum / N / 300 - 1) < 0.02);
    assert_true(fabs(sqrt(squares / N - mean_log * mean_log) - 0.8) < 0.02);
    assert_int_equal(load_random_length(&random, 300, 0), 300);
    assert_int_equal(load_random_length(&random, 0, 0), 1);

    load_spec s = plain;
    s.n_requests = 5000;
    s.n_in = 1;
    s.rate = 20;
    load_list l = make(&s);
    double gaps = 0, gaps2 = 0, last = 0;
    for (uint32_t i = 0; i < l.n; i++) {
        double gap = (double)l.r[i].due / 1e9 - last;
        assert_true(gap >= 0);
        last += gap;
        gaps += gap;
        gaps2 += gap * gap;
    }
    double mean = gaps / l.n;
    assert_true(fabs(mean * 20 - 1) < 0.05);
    assert_true(fabs(sqrt(gaps2 / l.n - mean * mean) / mean - 1) < 0.06); /* exponential: deviation = mean */
    load_list_free(&l);
}

static void test_shapes(void **state)
{
    (void)state;
    load_spec s = plain;
    s.workload = LOAD_PREFIX;
    load_list l = make(&s);
    int seen[3] = {0}, kinds = 0;
    const char *first[3] = {0};
    size_t n_first = 0;
    for (uint32_t i = 0; i < l.n; i++) {
        assert_int_equal(l.r[i].n_in, 70); /* words, as there is no tokenizer */
        const char *p = l.r[i].text;
        for (int k = 0; k < 40; k++)
            p = strchr(p, ' ') + 1;
        n_first = (size_t)(p - l.r[i].text);
        int k = 0;
        while (k < kinds && strncmp(first[k], l.r[i].text, n_first))
            k++;
        assert_true(k < 3);
        if (k == kinds)
            first[kinds++] = l.r[i].text;
        seen[k]++;
    }
    assert_int_equal(kinds, 3);
    assert_true(seen[0] > 8 && seen[1] > 8 && seen[2] > 8);
    load_list_free(&l);

    s.workload = LOAD_TURNS;
    s.n_turns = 7;
    l = make(&s);
    assert_int_equal(l.n_conversations, 9);
    for (uint32_t i = 0; i < l.n; i++) {
        assert_int_equal(l.r[i].conversation, i / 7);
        assert_int_equal(l.r[i].turn, i % 7);
    }
    load_list_free(&l);
}

static void test_words(void **state)
{
    (void)state;
    char path[1024];
    infer_error err = {0};
    infer_file *file;
    const infer_tokenizer *tok;
    const char *src = getenv("INFER_SRCDIR");
    snprintf(path, sizeof path, "%s/tests/golden/tiny-llama.gguf", src ? src : "..");
    assert_int_equal(infer_file_open(path, &file, &err), INFER_OK);
    assert_int_equal(infer_file_tokenizer(file, &tok, &err), INFER_OK);
    load_words *w = load_words_create(tok);
    uint64_t random = 1;
    for (uint32_t n = 1; n < 150; n++) {
        int32_t *ids;
        size_t n_ids;
        sbuf text = {0};
        assert_int_equal(load_words_add(w, &random, n, &text), n);
        assert_int_equal(infer_tokenizer_encode(tok, text.p, text.n, 0, &ids, &n_ids, &err), INFER_OK);
        assert_int_equal(n_ids, n);
        infer_ids_free(ids);
        assert_int_equal(load_words_add(w, &random, 10, &text), 10); /* more of it */
        assert_int_equal(load_words_count(w, text.p, text.n), n + 10);
        sbuf_free(&text);
    }
    load_words_destroy(w);
    infer_file_destroy(file);
}

/* ---- ShareGPT ---------------------------------------------------------------------------------------------- */

static infer_status read_text(const char *text, load_spec *s, load_list *l, infer_error *err)
{
    char path[] = "/tmp/infer-load-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    s->workload = LOAD_SHAREGPT;
    s->dataset = path;
    infer_status st = load_list_make(s, l, err);
    unlink(path);
    return st;
}

static void test_sharegpt(void **state)
{
    (void)state;
    static const char text[] =
        "[{\"conversations\":[{\"from\":\"human\",\"value\":\"one question\"},{\"from\":\"gpt\",\"value\":\"twelve "
        "bytes\"},"
        "{\"from\":\"human\",\"value\":\"and another\"},{\"from\":\"gpt\",\"value\":\"answer\"}]},"
        "{\"messages\":[{\"role\":\"system\",\"content\":\"be good\"},{\"role\":\"user\",\"content\":\"ask\"},"
        "{\"role\":\"assistant\",\"content\":\"told\"}]},"
        "{\"conversations\":[{\"from\":\"gpt\",\"value\":\"only an answer\"}]},"
        "{\"conversations\":[{\"from\":\"human\",\"value\":\"NUL \\u0000\"},{\"from\":\"gpt\",\"value\":\"x\"}]},"
        "{\"conversations\":[{\"from\":\"human\",\"value\":\"no answer\"}]},"
        "{\"conversations\":[{\"from\":\"human\",\"value\":5},{\"from\":\"gpt\",\"value\":\"x\"}]},"
        "{\"conversations\":[{\"from\":\"human\",\"value\":\"this one is far too long to be taken by this test\"},"
        "{\"from\":\"gpt\",\"value\":\"x\"}]}, 7, null, {\"conversations\":\"none\"}]";
    load_spec s = plain;
    load_list l;
    infer_error err = {0};
    s.n_out = 0;
    s.max_in = 10;
    assert_int_equal(read_text(text, &s, &l, &err), INFER_OK);
    assert_int_equal(l.n, 2);
    assert_int_equal(l.n_left_out, 8);
    uint32_t one = l.r[0].text[0] == 'o' ? 0 : 1;
    assert_string_equal(l.r[one].text, "one question");
    assert_int_equal(l.r[one].n_out, 3); /* four bytes a token */
    assert_string_equal(l.r[1 - one].text, "ask");
    load_list_free(&l);
    s.n_turns = 5;
    s.n_out = 9;
    assert_int_equal(read_text(text, &s, &l, &err), INFER_OK);
    assert_int_equal(l.n, 3);
    assert_int_equal(l.n_conversations, 2);
    one = l.r[0].text[0] == 'o' ? 0 : 1;
    assert_string_equal(l.r[one + 1].text, "and another");
    assert_int_equal(l.r[one + 1].turn, 1);
    assert_int_equal(l.r[one + 1].n_out, 9);
    load_list_free(&l);
    s.n_requests = 1;
    assert_int_equal(read_text(text, &s, &l, &err), INFER_OK);
    assert_int_equal(l.n, 1);
    load_list_free(&l);

    static const char *const broken[] = {"", "{", "[{]", "{}", "[]", "5", "[1,2]", "[{\"conversations\":[]}]"};
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        assert_int_equal(read_text(broken[i], &s, &l, &err), INFER_E_BAD_FILE);
        assert_null(l.r);
    }
    s.dataset = "/nosuch/file";
    assert_int_equal(load_list_make(&s, &l, &err), INFER_E_IO);
}

/* ---- The pacer --------------------------------------------------------------------------------------------- */

static void test_pacer(void **state)
{
    (void)state;
    load_spec s = plain;
    uint64_t wait, due;
    s.workload = LOAD_TURNS;
    s.n_turns = 3;
    s.n_requests = 8; /* 0-2, 3-5, 6-7 */
    load_list l = make(&s);
    load_pacer *p = load_pacer_create(&l, 2);
    assert_int_equal(load_pacer_next(p, 0, &due, &wait), 0);
    assert_int_equal(load_pacer_next(p, 0, &due, &wait), 3);
    assert_int_equal(load_pacer_next(p, 0, &due, &wait), -1);
    assert_true(wait == UINT64_MAX);
    assert_int_equal(load_pacer_ended(p, 3, 1, 50), 0);
    assert_int_equal(load_pacer_next(p, 60, &due, &wait), 4); /* the next turn before the next conversation */
    assert_int_equal(due, 50);
    assert_int_equal(load_pacer_ended(p, 0, 0, 70), 2); /* 1 and 2 are given up */
    assert_int_equal(load_pacer_next(p, 80, &due, &wait), 6);
    assert_int_equal(due, 70);
    assert_int_equal(load_pacer_ended(p, 4, 1, 90), 0);
    assert_int_equal(load_pacer_next(p, 90, &due, &wait), 5);
    assert_int_equal(load_pacer_ended(p, 6, 1, 95), 0);
    assert_int_equal(load_pacer_next(p, 95, &due, &wait), 7);
    assert_int_equal(load_pacer_ended(p, 7, 0, 99), 0);
    assert_false(load_pacer_done(p));
    assert_int_equal(load_pacer_next(p, 99, &due, &wait), -1);
    assert_int_equal(load_pacer_ended(p, 5, 1, 99), 0);
    assert_true(load_pacer_done(p));
    load_pacer_destroy(p);
    load_list_free(&l);

    s = plain;
    s.rate = 100;
    s.n_requests = 5;
    l = make(&s);
    p = load_pacer_create(&l, 0);
    assert_int_equal(load_pacer_next(p, 0, &due, &wait), -1);
    assert_int_equal(wait, l.r[0].due);
    assert_int_equal(load_pacer_next(p, l.r[1].due, &due, &wait), 0);
    assert_int_equal(due, l.r[0].due);
    assert_int_equal(load_pacer_next(p, l.r[1].due, &due, &wait), 1);
    assert_int_equal(load_pacer_next(p, l.r[1].due, &due, &wait), -1);
    assert_int_equal(wait, l.r[2].due - l.r[1].due);
    load_pacer_destroy(p);
    load_list_free(&l);
}

/* ---- HTTP -------------------------------------------------------------------------------------------------- */

static void keep(void *user, const char *p, size_t n)
{
    sbuf_add(user, p, n);
}

/* Feeds text in pieces that end at `cut`, or byte by byte (cut 0). */
static size_t feed(http_answer *a, const char *text, size_t n, size_t cut, sbuf *body)
{
    size_t used = 0;
    http_answer_reset(a);
    body->n = 0;
    if (cut) {
        used = http_answer_push(a, text, cut, keep, body);
        if (used == cut)
            used += http_answer_push(a, text + cut, n - cut, keep, body);
        return used;
    }
    for (size_t i = 0; i < n && used == i; i++)
        used += http_answer_push(a, text + i, 1, keep, body);
    return used;
}

static void test_http(void **state)
{
    (void)state;
    static const struct {
        const char *text, *body;
        unsigned status;
        int keep_alive, event_stream, by_eof;
    } good[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello", 200, 1, 0, 0},
        {"HTTP/1.1 200\r\ncontent-length:0\r\n\r\n", "", 200, 1, 0, 0},
        {"HTTP/1.1 429 Too Many\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}", "{}", 429, 0, 0, 0},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream; charset=utf-8\r\n\r\n"
         "3\r\nabc\r\n00A;x=\"y\"\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n",
         "abc0123456789", 200, 1, 1, 0},
        {"HTTP/1.1 100 Continue\r\nX: y\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nz", "z", 200, 1, 0, 0},
        {"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nz", "z", 200, 0, 0, 0},
        {"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 1\r\n\r\nz", "z", 200, 1, 0, 0},
        {"HTTP/1.1 204 No Content\r\n\r\n", "", 204, 1, 0, 0},
        {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nxyz", "xyz", 200, 1, 0, 0},
        {"HTTP/1.1 500 Oh\r\nContent-Type: text/event-streams\r\n\r\nuntil the end", "until the end", 500, 0, 0, 1},
    };
    static http_answer a;
    sbuf body = {0};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        const char *text = good[i].text;
        const size_t n = strlen(text);
        for (size_t cut = 0; cut <= n; cut++) {
            assert_int_equal(feed(&a, text, n, cut, &body), n);
            if (good[i].by_eof) {
                assert_int_equal(a.state, HTTP_BODY_CLOSE);
                http_answer_eof(&a);
            }
            assert_int_equal(a.state, HTTP_DONE);
            assert_int_equal(a.status, good[i].status);
            assert_int_equal(a.keep_alive, good[i].keep_alive);
            assert_int_equal(a.event_stream, good[i].event_stream);
            assert_int_equal(body.n, strlen(good[i].body));
            assert_true(!body.n || !memcmp(body.p, good[i].body, body.n));
        }
        /* Cut anywhere it is never whole. */
        for (size_t k = 0; k < n && !good[i].by_eof; k++) {
            feed(&a, text, k, 0, &body);
            assert_true(a.state != HTTP_DONE);
            http_answer_eof(&a);
            assert_int_equal(a.state, HTTP_BAD);
            assert_non_null(a.why);
        }
    }
    /* What follows an answer is not its own. */
    assert_int_equal(feed(&a, "HTTP/1.1 204 X\r\n\r\nHTTP/1.1 200", 30, 7, &body), 18);
    sbuf_free(&body);
}

static void test_http_malformed(void **state)
{
    (void)state;
#define OK_HEAD "HTTP/1.1 200 OK\r\n"
#define CHUNKED OK_HEAD "Transfer-Encoding: chunked\r\n\r\n"
    static const char *const broken[] = {
        "HTTP/2.0 200 OK\r\n",
        "HTTP/1.1 20 OK\r\n",
        "HTTP/1.1 2000 OK\r\n",
        "HTTP/1.1 099 OK\r\n",
        "HTTP/1.1\r\n",
        "\r\n",
        "<html>\r\n",
        "HTTP/1.1 200 OK\n",
        "HTTP/1.1 200 O\rK\r\n",
        OK_HEAD "No colon\r\n",
        OK_HEAD ": no name\r\n",
        OK_HEAD " folded: line\r\n",
        OK_HEAD "Name : value\r\n",
        OK_HEAD "Content-Length: -1\r\n",
        OK_HEAD "Content-Length: 1x\r\n",
        OK_HEAD "Content-Length:\r\n",
        OK_HEAD "Content-Length: 5, 5\r\n",
        OK_HEAD "Content-Length: 99999999999999999999\r\n",
        OK_HEAD "Content-Length: 5\r\nContent-Length: 6\r\n",
        OK_HEAD "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        OK_HEAD "Transfer-Encoding: gzip\r\n",
        OK_HEAD "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "HTTP/1.1 101 Switching\r\n\r\n",
        CHUNKED "\r\n",
        CHUNKED "x\r\n",
        CHUNKED "-5\r\n",
        CHUNKED "5 6\r\n",
        CHUNKED "0x5\r\n",
        CHUNKED "5\n",
        CHUNKED "FFFFFFFFFFFFFFFFF\r\n",
        CHUNKED "3\r\nabcd\r\n",
        CHUNKED "3\r\nabc\n",
        CHUNKED "0\r\nx\n",
    };
    static http_answer a;
    sbuf body = {0}, text = {0};
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        const size_t n = strlen(broken[i]);
        for (size_t cut = 0; cut < n; cut++) {
            feed(&a, broken[i], n, cut, &body);
            if (a.state != HTTP_BAD)
                fail_msg("taken as well-formed: %s", broken[i]);
            assert_non_null(a.why);
            assert_int_equal(a.keep_alive, 0);
        }
    }
    static const char with_nul[] = "HTTP/1.1 200 OK\r\nX: a\0b\r\n";
    feed(&a, with_nul, sizeof with_nul - 1, 3, &body);
    assert_int_equal(a.state, HTTP_BAD);
    /* A line, a head and a trailer without end. */
    static const char *const begins[] = {"HTTP/1.1 200 ", OK_HEAD, CHUNKED "0\r\n", CHUNKED};
    for (size_t i = 0; i < sizeof begins / sizeof begins[0]; i++) {
        for (int lines = 0; lines < 2; lines++) {
            text.n = 0;
            sbuf_puts(&text, begins[i]);
            while (text.n < 3 * HTTP_MAX_HEAD)
                sbuf_puts(&text, lines ? "name: a value of some length\r\n" : "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
            feed(&a, text.p, text.n, 100, &body);
            assert_int_equal(a.state, HTTP_BAD);
        }
    }
    sbuf_free(&body);
    sbuf_free(&text);
}

static void note_event(void *user, const char *data, size_t n)
{
    sbuf_add(user, "<", 1);
    sbuf_add(user, data, n);
    sbuf_add(user, ">", 1);
}

static void test_sse(void **state)
{
    (void)state;
    static const char text[] = "\xEF\xBB\xBF"
                               "data: one\n\n"
                               ": comment\r\ndata:two\r\n\r\n"
                               "event: x\rdata: three\rdata\rdata:  four\r\rid: 5\n\n\n"
                               "dat: no\ndatas: no\n\n"
                               "data: {\"a\": 1}\n\ndata: unfinished\n";
    static const char want[] = "<one><two><three\n\n four><{\"a\": 1}>";
    for (size_t cut = 0; cut < sizeof text - 1; cut++) {
        sse_reader r = {0};
        sbuf got = {0};
        if (cut) {
            sse_reader_push(&r, text, cut, note_event, &got);
            sse_reader_push(&r, text + cut, sizeof text - 1 - cut, note_event, &got);
        } else {
            for (size_t i = 0; i < sizeof text - 1; i++)
                sse_reader_push(&r, text + i, 1, note_event, &got);
        }
        assert_string_equal(got.p, want);
        assert_false(r.bad);
        sse_reader_reset(&r);
        got.n = 0;
        sse_reader_push(&r, "data\n\n", 6, note_event, &got);
        assert_string_equal(got.p, "<>");
        sse_reader_free(&r);
        sbuf_free(&got);
    }
    /* No event is without bound. */
    static char much[1 << 16];
    sse_reader r = {0};
    sbuf got = {0};
    memset(much, 'x', sizeof much);
    sse_reader_push(&r, "data: ", 6, note_event, &got);
    for (int i = 0; i < 400; i++)
        sse_reader_push(&r, much, sizeof much, note_event, &got);
    assert_true(r.bad);
    assert_int_equal(got.n, 0);
    sse_reader_free(&r);
}

/* ---- Answers ----------------------------------------------------------------------------------------------- */

/* The record of a body that comes in pieces of `step` bytes, one each 10 ns from 100 on. */
static load_record record_of(const char *body, size_t step, unsigned status, int stream, const char *cut, sbuf *text)
{
    load_record r = {.t_sent = 50};
    load_answer a = {.record = &r, .keep_text = 1};
    uint64_t now = 100;
    const size_t n = strlen(body);
    for (size_t i = 0; i < n; i += step, now += 10)
        load_answer_body(&a, status, stream, body + i, n - i < step ? n - i : step, now);
    load_answer_end(&a, status, stream, LOAD_KIND_CUT, cut, now);
    if (text) {
        text->n = 0;
        sbuf_add(text, a.text.p ? a.text.p : "", a.text.n);
    }
    load_answer_free(&a);
    return r;
}

#define ROLE    "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n"
#define CHAT(t) "data: {\"choices\":[{\"delta\":{\"content\":\"" t "\"},\"finish_reason\":null}]}\n\n"
#define TEXT(t) "data: {\"choices\":[{\"text\":\"" t "\",\"finish_reason\":null}],\"usage\":null}\n\n"
#define END     "data: {\"choices\":[{\"delta\":{},\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n"
#define USAGE(n)                                                                                                       \
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":" n                                   \
    ",\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n"
#define DONE "data: [DONE]\n\n"

static void test_answers(void **state)
{
    (void)state;
    static const struct {
        const char *body, *kind, *text;
        uint32_t pieces;
        uint64_t n_out;
        enum load_counted counted;
    } rows[] = {
        {TEXT("a") TEXT("b") TEXT("c") END USAGE("5") DONE, "", "abc", 3, 5, LOAD_BY_USAGE},
        {ROLE CHAT("a") CHAT("") CHAT("b") END USAGE("2") DONE, "", "ab", 2, 2, LOAD_BY_USAGE},
        {ROLE CHAT("a") CHAT("b") END DONE, "", "ab", 2, 2, LOAD_BY_PIECES},
        {"data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"}}]}\n\n" CHAT("a") END DONE, "", "a", 2, 2,
         LOAD_BY_PIECES},
        {TEXT("a") END USAGE("-5") DONE, "", "a", 1, 1, LOAD_BY_PIECES},
        {TEXT("a") END, LOAD_KIND_CUT, "a", 1, 1, LOAD_BY_PIECES},
        {TEXT("a") DONE, LOAD_KIND_CUT, "a", 1, 1, LOAD_BY_PIECES},
        {TEXT("a") "data: {\"choi", LOAD_KIND_CUT, "a", 1, 1, LOAD_BY_PIECES},
        {"", LOAD_KIND_CUT, "", 0, 0, LOAD_BY_PIECES},
        {END USAGE("0") DONE, "empty", "", 0, 0, LOAD_BY_USAGE},
        {TEXT("a") "data: {oops}\n\n" END DONE, "stream", "a", 1, 1, LOAD_BY_PIECES},
        {TEXT("a") "data: [1]\n\n" END DONE, "stream", "a", 1, 1, LOAD_BY_PIECES},
        {TEXT("a") END DONE TEXT("b"), "stream", "a", 1, 1, LOAD_BY_PIECES},
        {TEXT("a") "data: {\"error\":{\"message\":\"lost\"}}\n\n" DONE, "error in stream", "a", 1, 1, LOAD_BY_PIECES},
        {TEXT("a") "data: {\"object\":\"error\",\"message\":\"lost\"}\n\n" END DONE, "error in stream", "a", 1, 1,
         LOAD_BY_PIECES},
    };
    sbuf text = {0};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (size_t step = 1; step < 200; step += step < 10 ? 1 : 37) {
            load_record r = record_of(rows[i].body, step, 200, 1, NULL, &text);
            if (strcmp(r.kind, rows[i].kind))
                fail_msg("row %zu: failed as \"%s\" (%s), not as \"%s\"", i, r.kind, r.why, rows[i].kind);
            assert_int_equal(r.n_pieces, rows[i].pieces);
            assert_int_equal(r.n_out, rows[i].n_out);
            assert_int_equal(r.counted, rows[i].counted);
            assert_string_equal(text.p, rows[i].text);
            if (r.counted == LOAD_BY_USAGE)
                assert_true(r.n_prompt == 11 && r.n_cached == 4);
            free(r.gaps);
        }
    }
    /* A piece's time is that of the bytes that completed its event. */
    load_record r = record_of(TEXT("a") TEXT("b") END DONE, 1, 200, 1, NULL, NULL);
    assert_int_equal(r.t_first, 100 + 10 * (strlen(TEXT("a")) - 1));
    assert_int_equal(r.gaps[0], 10 * strlen(TEXT("b")));
    assert_int_equal(r.t_last - r.t_first, r.gaps[0]);
    free(r.gaps);

    static const struct {
        const char *body;
        unsigned status;
        int stream;
        const char *cut, *kind, *why;
    } whole[] = {
        {"{\"error\":{\"message\":\"slow down\"}}", 429, 0, NULL, "HTTP 429", "slow down"},
        {"{\"error\":\"oh\"}", 500, 0, NULL, "HTTP 500", "oh"},
        {"{\"detail\":\"lost\"}", 404, 0, NULL, "HTTP 404", "lost"},
        {"<html>", 502, 0, NULL, "HTTP 502", "<html>"},
        {"", 503, 0, NULL, "HTTP 503", "no message"},
        {TEXT("a") END DONE, 503, 1, NULL, "HTTP 503", "data"},
        {"{\"choices\":[{\"text\":\"abc\",\"finish_reason\":\"stop\"}]}", 200, 0, NULL, "no stream", "no event stream"},
        {TEXT("a") END, 200, 1, "reset", LOAD_KIND_CUT, "reset"},
        {"", 0, 0, "reset", LOAD_KIND_CUT, "reset"},
        {TEXT("a") END DONE, 200, 1, "reset", "", ""}, /* all of it was there */
    };
    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++) {
        r = record_of(whole[i].body, 7, whole[i].status, whole[i].stream, whole[i].cut, NULL);
        assert_string_equal(r.kind, whole[i].kind);
        assert_non_null(strstr(r.why, whole[i].why));
        free(r.gaps);
    }
    sbuf_free(&text);
}

static void test_url(void **state)
{
    (void)state;
    static const struct {
        const char *url, *host, *port, *path, *authority; /* host NULL: refused */
    } rows[] = {
        {"http://localhost:8080", "localhost", "8080", "", "localhost:8080"},
        {"http://a.b/", "a.b", "80", "", "a.b:80"},
        {"http://a.b:1/v1/", "a.b", "1", "/v1", "a.b:1"},
        {"http://a.b/x:y/v1", "a.b", "80", "/x:y/v1", "a.b:80"},
        {"http://[::1]:8000/v1", "::1", "8000", "/v1", "[::1]:8000"},
        {"https://a.b", 0, 0, 0, 0},
        {"a.b:80", 0, 0, 0, 0},
        {"http://", 0, 0, 0, 0},
        {"http://:80", 0, 0, 0, 0},
        {"http://a:", 0, 0, 0, 0},
        {"http://a:0", 0, 0, 0, 0},
        {"http://a:65536", 0, 0, 0, 0},
        {"http://a:8x", 0, 0, 0, 0},
        {"http://a:123456", 0, 0, 0, 0},
        {"http://[::1", 0, 0, 0, 0},
        {"http://[::1]x", 0, 0, 0, 0},
        {"http://me@a", 0, 0, 0, 0},
        {"http://a/\r\nX: y", 0, 0, 0, 0},
        {"http://a/?q", 0, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        client_url u;
        infer_error err = {0};
        infer_status st = client_url_parse(rows[i].url, &u, &err);
        if (st != (rows[i].host ? INFER_OK : INFER_E_INVALID))
            fail_msg("%s: %s", rows[i].url, st < 0 ? err.text : "is taken");
        if (!rows[i].host)
            continue;
        assert_string_equal(u.host, rows[i].host);
        assert_string_equal(u.port, rows[i].port);
        assert_string_equal(u.path, rows[i].path);
        assert_string_equal(u.authority, rows[i].authority);
    }
}

/* ---- Statistics -------------------------------------------------------------------------------------------- */

static void test_percentiles(void **state)
{
    (void)state;
    static const double v[] = {1, 2, 4, 8, 16};
    assert_true(load_percentile(v, 5, 0) == 1);
    assert_true(load_percentile(v, 5, 0.5) == 4);
    assert_true(load_percentile(v, 5, 1) == 16);
    assert_true(fabs(load_percentile(v, 5, 0.9) - (8 + 8 * 0.6)) < 1e-12);
    assert_true(fabs(load_percentile(v, 5, 0.1) - 1.4) < 1e-12);
    assert_true(load_percentile(v, 1, 0.99) == 1);
    assert_true(fabs(load_percentile(v, 2, 0.99) - 1.99) < 1e-12);
    enum { N = 1001 };
    static double many[N];
    for (int i = 0; i < N; i++)
        many[i] = i;
    assert_true(fabs(load_percentile(many, N, 0.99) - 990) < 1e-9);
    assert_true(fabs(load_percentile(many, N, 0.999) - 999) < 1e-9);
}

static void test_summary(void **state)
{
    (void)state;
    load_spec s = plain;
    s.n_requests = 4;
    load_list l = make(&s);
    load_run run = {0};
    infer_error err = {0};
    assert_int_equal(load_run_create(&run, &l, 0, &err), INFER_OK);
    const uint64_t ms = 1000000;
    run.t_start = 1000 * ms;
    run.t_end = 3000 * ms;
    run.cpu_ns = 500 * ms;
    for (uint32_t i = 0; i < 4; i++) {
        load_record *r = &run.records[i];
        r->t_due = 1000 * ms;
        r->t_sent = (1001 + i) * ms;
        if (i == 3)
            break;
        load_record_piece(r, r->t_sent + 10 * ms);
        load_record_piece(r, r->t_sent + 20 * ms);
        load_record_piece(r, r->t_sent + 50 * ms);
        snprintf(r->finish, sizeof r->finish, "length");
        r->n_prompt = 100;
        r->n_out = i == 1 ? 5 : 20;
        r->counted = LOAD_BY_USAGE;
        if (i == 2) /* tokens of a failed request are in no sum */
            load_record_fail(r, "cut", "broke");
        load_record_end(r, r->t_sent + 60 * ms);
    }
    load_record_fail(&run.records[3], "HTTP 429", "full");
    load_record_end(&run.records[3], 1100 * ms);
    load_summary sum;
    assert_int_equal(load_summary_make(&run, &sum, &err), INFER_OK);
    assert_int_equal(sum.n_ok, 2);
    assert_int_equal(sum.n_short, 1);
    assert_int_equal(sum.n_prompt, 200);
    assert_int_equal(sum.n_out, 25);
    assert_int_equal(sum.n_kinds, 2);
    assert_string_equal(sum.failures[0].kind, "HTTP 429");
    assert_string_equal(sum.failures[1].why, "broke");
    assert_true(fabs(sum.requests_per_s - 1) < 1e-12 && fabs(sum.out_per_s - 12.5) < 1e-12);
    assert_true(fabs(sum.total_per_s - 112.5) < 1e-12 && fabs(sum.client_busy - 0.25) < 1e-12);
    assert_int_equal(sum.d[LOAD_TTFT].n, 2);
    assert_true(fabs(sum.d[LOAD_TTFT].mean - 10) < 1e-9 && fabs(sum.d[LOAD_E2E].max - 60) < 1e-9);
    assert_int_equal(sum.d[LOAD_ITL].n, 4);
    assert_true(fabs(sum.d[LOAD_ITL].mean - 20) < 1e-9 && fabs(sum.d[LOAD_ITL].max - 30) < 1e-9);
    assert_true(fabs(sum.d[LOAD_TPOT].max - 10) < 1e-9); /* 40 ms for the four tokens after the first */
    assert_int_equal(sum.d[LOAD_LATE].n, 4);
    assert_true(fabs(sum.d[LOAD_LATE].max - 4) < 1e-9);
    load_summary_free(&sum);
    load_run_destroy(&run);
    load_list_free(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list_repeats), cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_shapes),       cmocka_unit_test(test_words),
        cmocka_unit_test(test_sharegpt),     cmocka_unit_test(test_pacer),
        cmocka_unit_test(test_http),         cmocka_unit_test(test_http_malformed),
        cmocka_unit_test(test_sse),          cmocka_unit_test(test_answers),
        cmocka_unit_test(test_url),          cmocka_unit_test(test_percentiles),
        cmocka_unit_test(test_summary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
