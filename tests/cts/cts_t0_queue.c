/*
 * T0, queues and timelines: order, waits, time-outs, signals by the host, many commands in flight, several queues,
 * closing in any order. Signals by the host come from another thread, so that a backend whose queue works inside the
 * submitting call passes too.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "cts.h"

#define MS 1000000u

/* ---- A host that signals later --------------------------------------------------------------------------- */

typedef struct later {
    infer_hal_tl *tl;
    uint64_t value;
    uint32_t ms;
    infer_status s;
    uint64_t at_ns; /* just before the signal */
    pthread_t thread;
    int running;
} later;

static void *later_main(void *arg)
{
    later *l = arg;
    cts_sleep_ms(l->ms);
    l->at_ns = infer_clock_ns();
    l->s = infer_hal_tl_signal_host(l->tl, l->value);
    return NULL;
}

static int later_start(cts *c, later *l, infer_hal_tl *tl, uint64_t value, uint32_t ms)
{
    *l = (later){.tl = tl, .value = value, .ms = ms};
    l->running = !pthread_create(&l->thread, NULL, later_main, l);
    if (!l->running)
        cts_fail(c, "no thread");
    return l->running;
}

static int later_join(cts *c, later *l)
{
    if (!l->running)
        return 0;
    pthread_join(l->thread, NULL);
    l->running = 0;
    return cts_ok(c, l->s, "the host's signal");
}

/* queue_wait, or 0 with the case skipped where the queue cannot wait on this timeline (the core bridges that). */
static int can_wait(cts *c, infer_queue *q, infer_hal_tl *tl, uint64_t value)
{
    infer_status s = cts_wait(c, q, tl, value);
    if (s == INFER_E_UNSUPPORTED) {
        cts_skip(c, "queue_wait answers UNSUPPORTED for this timeline");
        return 0;
    }
    return cts_ok(c, s, "queue_wait");
}

static int value_is(cts *c, infer_hal_tl *tl, uint64_t want)
{
    uint64_t v = UINT64_MAX;
    if (!cts_ok(c, infer_hal_tl_query(tl, &v), "tl_query"))
        return 0;
    if (v != want)
        cts_fail(c, "tl_query gives %llu, not %llu", (unsigned long long)v, (unsigned long long)want);
    return v == want;
}

/* ---- Timelines ------------------------------------------------------------------------------------------- */

static void tl_order(cts *c)
{
    infer_hal_tl *tl = cts_tl(c);
    infer_buffer *b = cts_buf(c, 1 << 16);
    uint64_t last = 0;
    NEED(tl && b && value_is(c, tl, 0), "start");
    for (uint64_t v = 1; v <= 50; v++) {
        NEED(cts_ok(c, cts_fill(c, c->queue, b, 0, 1 << 16, (uint32_t)v, 4), "cmd_fill"), "fill");
        NEED(cts_ok(c, cts_signal(c, c->queue, tl, v), "queue_signal"), "signal");
    }
    for (;;) {
        uint64_t v = 0;
        NEED(cts_ok(c, infer_hal_tl_query(tl, &v), "tl_query"), "query");
        NEED(v >= last, "a timeline went back from %llu to %llu", (unsigned long long)last, (unsigned long long)v);
        last = v;
        infer_status s = infer_hal_tl_wait(tl, 50, MS);
        if (s == INFER_OK)
            break;
        NEED(s == INFER_PENDING, "tl_wait: %s", infer_status_name(s));
    }
    NEED(value_is(c, tl, 50), "end");
    for (uint64_t v = 0; v <= 50; v += 7)
        NEED(cts_ok(c, infer_hal_tl_wait(tl, v, 0), "tl_wait for a value passed long ago"), "wait");
out:;
}

/* Values may skip; a wait for one in between is satisfied by the next. 64-bit values are whole. */
static void tl_values(cts *c)
{
    static const uint64_t values[] = {3, 10, (uint64_t)1 << 31, ((uint64_t)1 << 32) + 5, (uint64_t)1 << 40};
    infer_hal_tl *tl = cts_tl(c);
    NEED(tl, "timeline");
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        NEED(cts_ok(c, cts_signal(c, c->queue, tl, values[i]), "queue_signal"), "signal");
        NEED(cts_ok(c, infer_hal_tl_wait(tl, values[i] - 1, CTS_TIMEOUT_NS), "tl_wait"), "wait");
        NEED(value_is(c, tl, values[i]), "value");
    }
out:;
}

static void tl_timeout(cts *c)
{
    infer_hal_tl *tl = cts_tl(c);
    NEED(tl, "timeline");
    uint64_t start = infer_clock_ns();
    infer_status s = infer_hal_tl_wait(tl, 1, 0);
    uint64_t took = infer_clock_ns() - start;
    NEED(s == INFER_PENDING, "tl_wait without time: %s", infer_status_name(s));
    NEED(took < 2000 * (uint64_t)MS, "tl_wait without time took %llu ms", (unsigned long long)(took / MS));
    start = infer_clock_ns();
    s = infer_hal_tl_wait(tl, 1, 30 * (uint64_t)MS);
    took = infer_clock_ns() - start;
    NEED(s == INFER_PENDING, "tl_wait for a value that never comes: %s", infer_status_name(s));
    NEED(took >= 25 * (uint64_t)MS, "tl_wait of 30 ms returned after %llu us", (unsigned long long)(took / 1000));
    NEED(took < 5000 * (uint64_t)MS, "tl_wait of 30 ms took %llu ms", (unsigned long long)(took / MS));
out:;
}

static void tl_host(cts *c)
{
    infer_hal_tl *tl = cts_tl(c);
    later l = {0};
    NEED(tl, "timeline");
    NEED(cts_ok(c, infer_hal_tl_signal_host(tl, 4), "tl_signal_host") && value_is(c, tl, 4), "signal");
    NEED(later_start(c, &l, tl, 9, 20), "thread");
    infer_status s = infer_hal_tl_wait(tl, 9, CTS_TIMEOUT_NS);
    uint64_t now = infer_clock_ns();
    NEED(later_join(c, &l) && cts_ok(c, s, "tl_wait"), "wait");
    NEED(now >= l.at_ns, "tl_wait returned before the host signalled");
    NEED(value_is(c, tl, 9), "value");
out:
    later_join(c, &l);
}

/* Many timelines are independent of each other. */
static void tl_many(cts *c)
{
    enum { N = 64 };
    infer_hal_tl *tl[N];
    for (int i = 0; i < N; i++)
        NEED((tl[i] = cts_tl(c)) != NULL, "timeline");
    for (int i = 0; i < N; i += 2)
        NEED(cts_ok(c, cts_signal(c, c->queue, tl[i], (uint64_t)i + 1), "queue_signal"), "signal");
    NEED(cts_sync(c), "sync");
    for (int i = 0; i < N; i++)
        NEED(value_is(c, tl[i], i % 2 ? 0 : (uint64_t)i + 1), "timeline %d", i);
out:;
}

typedef struct watcher {
    infer_hal_tl *tl;
    uint64_t value;
    infer_status s;
    int back; /* the value went back, or the wait ended early */
    pthread_t thread;
} watcher;

static void *watcher_main(void *arg)
{
    watcher *w = arg;
    uint64_t last = 0, v = 0;
    while (!w->s && last < w->value) {
        w->s = infer_hal_tl_query(w->tl, &v);
        w->back |= v < last;
        last = v;
        infer_status s = infer_hal_tl_wait(w->tl, last + 1 < w->value ? last + 1 : w->value, CTS_TIMEOUT_NS);
        w->s = w->s ? w->s : s;
    }
    return NULL;
}

/* Several threads read one timeline and wait for it while a queue moves it. */
static void tl_threads(cts *c)
{
    enum { N = 4, LAST = 200 };
    infer_hal_tl *tl = cts_tl(c);
    infer_buffer *b = cts_buf(c, 4096);
    watcher w[N];
    int n = 0;
    NEED(tl && b, "objects");
    for (int i = 0; i < N; i++)
        w[i] = (watcher){.tl = tl, .value = LAST};
    while (n < N && !pthread_create(&w[n].thread, NULL, watcher_main, &w[n]))
        n++;
    infer_status s = INFER_OK;
    for (uint64_t v = 1; v <= LAST && !s; v++) {
        s = cts_fill(c, c->queue, b, 0, 4096, (uint32_t)v, 1);
        infer_status t = cts_signal(c, c->queue, tl, v);
        s = s ? s : t;
    }
    if (s) /* nobody else will release them */
        (void)infer_hal_tl_signal_host(tl, LAST);
    for (int i = 0; i < n; i++)
        pthread_join(w[i].thread, NULL);
    NEED(cts_ok(c, s, "submitting while others wait"), "submit");
    for (int i = 0; i < n; i++) {
        NEED(cts_ok(c, w[i].s, "waiting from several threads"), "wait");
        NEED(!w[i].back, "a timeline went back before another thread's eyes");
    }
out:;
}

/* A signal comes after all work before it: the last byte of that work is there when the host sees the value. On a busy
 * machine the host may see it late, so there are many rounds. */
static void tl_after_work(cts *c)
{
    enum { N = 4 << 20, ROUNDS = 40 };
    infer_buffer *a = cts_buf(c, N), *b = cts_buf(c, N);
    uint8_t *back = infer_malloc(N);
    NEED(a && b && back, "buffers");
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        infer_copy_region r = {.bytes = N, .rows = 1};
        memset(back, 0, N);
        NEED(cts_ok(c, cts_fill(c, c->queue, a, 0, N, round, 1), "cmd_fill"), "fill");
        NEED(cts_ok(c, cts_copy(c, c->queue, (infer_copy_end){b, NULL}, (infer_copy_end){a, NULL}, &r, 1), "cmd_copy"),
             "copy");
        NEED(cts_ok(c, cts_copy(c, c->queue, (infer_copy_end){NULL, back}, (infer_copy_end){b, NULL}, &r, 1),
                    "cmd_copy"),
             "copy");
        NEED(cts_sync(c), "sync");
        NEED(back[0] == round && back[N / 2] == round && back[N - 1] == round,
             "the timeline reached its value before the work that the signal covers was done");
    }
out:
    cts_sync(c);
    infer_free(back);
}

/* ---- Queues ---------------------------------------------------------------------------------------------- */

/* Work behind a wait does not start before the host signals. */
static void queue_host_wait(cts *c)
{
    infer_hal_tl *gate = cts_tl(c), *done = cts_tl(c);
    infer_buffer *b = cts_buf(c, 4096);
    uint8_t back[4096];
    later l = {0};
    uint64_t v = 0;
    NEED(gate && done && b, "objects");
    NEED(later_start(c, &l, gate, 7, 60), "thread");
    if (!can_wait(c, c->queue, gate, 7))
        goto out;
    NEED(cts_ok(c, cts_fill(c, c->queue, b, 0, 4096, 0x42, 1), "cmd_fill"), "fill");
    NEED(cts_ok(c, cts_signal(c, c->queue, done, 1), "queue_signal"), "signal");
    if (!(c->props->flags & INFER_PROP_INLINE)) {
        NEED(cts_ok(c, infer_hal_tl_query(done, &v), "tl_query"), "query");
        uint64_t g = 0;
        NEED(cts_ok(c, infer_hal_tl_query(gate, &g), "tl_query"), "query");
        NEED(v == 0 || g >= 7, "the queue went past a wait whose value is not reached");
        infer_status s = infer_hal_tl_wait(done, 1, 20 * (uint64_t)MS);
        uint64_t now = infer_clock_ns();
        NEED(s == INFER_PENDING || s == INFER_OK, "tl_wait: %s", infer_status_name(s));
        if (s == INFER_OK) {
            NEED(later_join(c, &l), "join");
            NEED(now >= l.at_ns, "the queue went past a wait before the host signalled");
        }
    }
    infer_status s = infer_hal_tl_wait(done, 1, CTS_TIMEOUT_NS);
    uint64_t now = infer_clock_ns();
    NEED(later_join(c, &l) || l.at_ns, "join");
    NEED(cts_ok(c, s, "work behind a wait"), "wait");
    NEED(now >= l.at_ns, "the queue went past a wait before the host signalled");
    NEED(cts_read(c, b, 0, back, 4096) && back[0] == 0x42 && back[4095] == 0x42, "the fill behind the wait is missing");
out:
    later_join(c, &l);
}

/* Hundreds of commands wait behind the gate, then run in order. */
static void queue_many(cts *c)
{
    enum { N = 300 };
    infer_hal_tl *gate = cts_tl(c);
    infer_buffer *b = cts_buf(c, N * 16), *d = cts_buf(c, N * 16);
    uint8_t *back = infer_malloc(N * 16);
    later l = {0};
    NEED(gate && b && d && back, "objects");
    NEED(cts_ok(c, cts_fill(c, c->queue, b, 0, N * 16, 0, 1), "cmd_fill"), "fill");
    NEED(later_start(c, &l, gate, 1, 40), "thread");
    if (!can_wait(c, c->queue, gate, 1))
        goto out;
    for (uint32_t i = 0; i < N; i++) { /* each overwrites the tail that the one before wrote */
        infer_copy_region r = {.src_offset = i * 16, .dst_offset = i * 16, .bytes = (N - i) * 16, .rows = 1};
        NEED(cts_ok(c, cts_fill(c, c->queue, b, i * 16, (N - i) * 16, i, 4), "cmd_fill"), "fill");
        NEED(cts_ok(c, cts_copy(c, c->queue, (infer_copy_end){d, NULL}, (infer_copy_end){b, NULL}, &r, 1), "cmd_copy"),
             "copy");
    }
    NEED(later_join(c, &l), "join");
    NEED(cts_read(c, d, 0, back, N * 16), "read");
    for (uint32_t i = 0; i < N; i++) {
        uint32_t x;
        memcpy(&x, back + i * 16 + 12, 4);
        NEED(x == i, "element %u holds what command %u wrote: not in order", i, x);
    }
out:
    later_join(c, &l);
    cts_sync(c);
    infer_free(back);
}

/* A second queue waits on the first one's timeline. */
static void queue_two(cts *c)
{
    enum { N = 1 << 20 };
    infer_hal_tl *tl = cts_tl(c), *done = cts_tl(c);
    infer_buffer *a = cts_buf(c, N), *b = cts_buf(c, N);
    infer_queue *q = NULL;
    uint8_t *back = infer_malloc(N);
    NEED(tl && done && a && b && back, "objects");
    NEED(cts_ok(c, c->ops->queue_create(c->h, INFER_QUEUE_COPY, &q), "queue_create of a copy queue"), "queue");
    for (uint32_t round = 1; round <= 8; round++) {
        infer_copy_region r = {.bytes = N, .rows = 1};
        NEED(cts_ok(c, cts_fill(c, c->queue, a, 0, N, round, 1), "cmd_fill"), "fill");
        NEED(cts_ok(c, cts_signal(c, c->queue, tl, round), "queue_signal"), "signal");
        if (!can_wait(c, q, tl, round))
            goto out;
        NEED(cts_ok(c, cts_copy(c, q, (infer_copy_end){b, NULL}, (infer_copy_end){a, NULL}, &r, 1), "cmd_copy"),
             "copy");
        NEED(cts_ok(c, cts_copy(c, q, (infer_copy_end){NULL, back}, (infer_copy_end){b, NULL}, &r, 1), "cmd_copy"),
             "copy");
        NEED(cts_ok(c, cts_signal(c, q, done, round), "queue_signal"), "signal");
        NEED(can_wait(c, c->queue, done, round), "wait"); /* and back: the next fill must not come early */
        NEED(cts_ok(c, infer_hal_tl_wait(done, round, CTS_TIMEOUT_NS), "tl_wait"), "wait");
        NEED(back[0] == round && back[N - 1] == round, "a queue did not wait for the other's timeline");
    }
out:
    cts_sync(c);
    if (q)
        c->ops->queue_destroy(c->h, q);
    infer_free(back);
}

typedef struct stream {
    cts *c;
    infer_queue *q;
    infer_hal_tl *tl;
    infer_buffer *b;
    uint32_t number;
    pthread_t thread;
    infer_status s;
    int wrong;
} stream;

static void *stream_main(void *arg)
{
    stream *t = arg;
    uint8_t data[3000], back[3000];
    for (uint32_t i = 0; i < 60 && !t->s && !t->wrong; i++) {
        infer_copy_region r = {.bytes = sizeof(data), .rows = 1};
        memset(data, (int)(t->number * 64 + i), sizeof(data));
        t->s = cts_copy(t->c, t->q, (infer_copy_end){t->b, NULL}, (infer_copy_end){NULL, data}, &r, 1);
        if (!t->s)
            t->s = cts_copy(t->c, t->q, (infer_copy_end){NULL, back}, (infer_copy_end){t->b, NULL}, &r, 1);
        if (!t->s)
            t->s = cts_signal(t->c, t->q, t->tl, i + 1);
        if (!t->s) /* a signal that was not submitted never comes */
            t->s = infer_hal_tl_wait(t->tl, i + 1, CTS_TIMEOUT_NS);
        t->wrong = !t->s && memcmp(data, back, sizeof(data)) != 0;
    }
    return NULL;
}

/* Two queues, each submitted to from a thread of its own. */
static void queue_threads(cts *c)
{
    stream t[2] = {{.c = c}, {.c = c, .number = 1}};
    int n = 0;
    for (int i = 0; i < 2; i++) {
        t[i].tl = cts_tl(c);
        t[i].b = cts_buf(c, 3000);
        NEED(t[i].tl && t[i].b, "objects");
        NEED(cts_ok(c, c->ops->queue_create(c->h, INFER_QUEUE_COMPUTE, &t[i].q), "queue_create"), "queue");
    }
    while (n < 2 && !pthread_create(&t[n].thread, NULL, stream_main, &t[n]))
        n++;
    for (int i = 0; i < n; i++)
        pthread_join(t[i].thread, NULL);
    NEED(n == 2, "no thread");
    for (int i = 0; i < 2; i++) {
        NEED(cts_ok(c, t[i].s, "work on a queue of its own thread"), "work");
        NEED(!t[i].wrong, "two queues disturb each other's buffers");
    }
out:
    for (int i = 0; i < 2; i++)
        if (t[i].q)
            c->ops->queue_destroy(c->h, t[i].q);
}

/* Once work is complete, what it used may go in any order. */
static void queue_closing(cts *c)
{
    static const char *const orders[] = {"qbt", "qtb", "bqt", "btq", "tqb", "tbq"};
    infer_error e = {0};
    for (int i = 0; i < 6; i++) {
        infer_queue *q = NULL;
        infer_buffer *b = NULL;
        infer_hal_tl *tl = NULL;
        infer_status s = c->ops->queue_create(c->h, INFER_QUEUE_COMPUTE | INFER_QUEUE_COPY, &q);
        if (!s)
            s = c->ops->buf_alloc(c->h, 0, 5000, &b);
        if (!s)
            s = infer_hal_tl_create(c->dev, &tl, &e);
        if (!s)
            s = cts_fill(c, q, b, 0, 5000, 1, 1);
        if (!s)
            s = cts_signal(c, q, tl, 1);
        if (!s)
            s = infer_hal_tl_wait(tl, 1, CTS_TIMEOUT_NS);
        for (const char *o = orders[i]; *o; o++) {
            if (*o == 'q' && q)
                c->ops->queue_destroy(c->h, q);
            if (*o == 'b' && b)
                c->ops->buf_free(c->h, b);
            if (*o == 't')
                infer_hal_tl_destroy(tl);
        }
        NEED(cts_ok(c, s, "a short-lived queue"), "queue");
    }
    infer_queue *mark = (infer_queue *)(void *)c, *q = mark;
    infer_status s = c->ops->queue_create(c->h, 0, &q);
    if (!s)
        c->ops->queue_destroy(c->h, q);
    NEED(s < 0 && q == mark, "queue_create without a class: %s", infer_status_name(s));
out:;
}

/* Timings of a device that records them. */
static void prof_records(cts *c)
{
    if (!CTS_HAS(c, prof_begin)) {
        cts_skip(c, "prof_begin is absent");
        return;
    }
    infer_prof_record *rec = infer_calloc(1024, sizeof(*rec));
    infer_buffer *b = cts_buf(c, 1 << 20);
    uint32_t n = 0;
    NEED(rec && b, "objects");
    NEED(cts_ok(c, c->ops->prof_begin(c->h), "prof_begin"), "begin");
    for (int i = 0; i < 5; i++)
        NEED(cts_ok(c, cts_fill(c, c->queue, b, 0, 1 << 20, 1, 1), "cmd_fill"), "fill");
    NEED(cts_sync(c), "sync");
    NEED(cts_ok(c, c->ops->prof_read(c->h, rec, 1024, &n), "prof_read"), "read");
    NEED(n <= 1024, "prof_read gave %u of at most 1024 records", n);
    for (uint32_t i = 0; i < n; i++) {
        NEED(memchr(rec[i].name, 0, sizeof(rec[i].name)), "record %u: its name has no end", i);
        NEED(rec[i].end_ns >= rec[i].begin_ns, "record %u ends before it begins", i);
    }
    NEED(cts_ok(c, c->ops->prof_begin(c->h), "prof_begin"), "begin");
    NEED(cts_ok(c, c->ops->prof_read(c->h, rec, 1024, &n), "prof_read") && n == 0, "%u records after a new begin", n);
out:
    infer_free(rec);
}

void cts_t0_queue(cts_run *r)
{
    static const cts_case cases[] = {
        {"t0.tl.order", tl_order},
        {"t0.tl.values", tl_values},
        {"t0.tl.timeout", tl_timeout},
        {"t0.tl.host", tl_host},
        {"t0.tl.many", tl_many},
        {"t0.tl.threads", tl_threads},
        {"t0.tl.after_work", tl_after_work},
        {"t0.queue.host_wait", queue_host_wait},
        {"t0.queue.many", queue_many},
        {"t0.queue.two", queue_two},
        {"t0.queue.threads", queue_threads},
        {"t0.queue.closing", queue_closing},
        {"t0.prof.records", prof_records},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        cts_case_run(r, 0, cases[i].name, cases[i].fn, 1, NULL);
}
