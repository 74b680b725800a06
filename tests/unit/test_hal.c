/* core/hal on an opened device: memory and ledger, timelines, submission, updates, failures, weights, edges.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "unit/unit.h"

#include <pthread.h>
#include <time.h>

#include "base/clock.h"
#include "hal/hal.h"
#include "unit/fake_backend.h"

static infer_hal *the_hal;
static infer_hal_dev *the_dev;

static void make_hal(void)
{
    infer_hal_options opt = {.backend_path = "", .allow = "ref", .validate = 1};
    opt.topo_xml = "synthetic:numa:1 core:2 pu:1";
    assert_int_equal(infer_hal_create(&opt, &the_hal, NULL), INFER_OK);
}

static infer_hal_dev *open_dev(const char *id)
{
    infer_hal_dev *d = NULL;
    infer_error e = {0};
    if (infer_hal_open(the_hal, id, &d, &e))
        fail_msg("open %s: %s", id, e.text);
    return d;
}

/* The fake device as a test has bent it. */
static infer_hal_dev *open_fake(void)
{
    assert_int_equal(infer_hal_add(the_hal, fake_queries[0], "test", NULL), INFER_OK);
    return the_dev = open_dev("fakea0");
}

static int setup(void **state)
{
    (void)state;
    fake_reset();
    make_hal();
    the_dev = NULL;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    infer_hal_close(the_dev);
    infer_hal_destroy(the_hal);
    return fake.devices || fake.queues || fake.buffers || fake.bytes || fake.timelines || fake.inits;
}

static infer_range range_of(const infer_hal_buf *b, uint64_t offset, uint64_t size)
{
    return (infer_range){.buffer = b->h, .offset = offset, .size = size};
}

static infer_hal_buf alloc_buf(infer_hal_dev *d, uint64_t bytes)
{
    infer_hal_buf b = {0};
    infer_error e = {0};
    if (infer_hal_buf_alloc(d, bytes, INFER_LEDGER_ACTIVATIONS, &b, &e))
        fail_msg("%s", e.text);
    return b;
}

/* ---- Memory --------------------------------------------------------------------------------------------------- */

static void test_ledger(void **state)
{
    (void)state;
    infer_hal_dev *d = open_fake();
    infer_error e = {0};
    infer_hal_buf b[INFER_LEDGER_KINDS] = {0};
    for (int round = 0; round < 2; round++) {
        for (int k = 0; k < INFER_LEDGER_KINDS; k++)
            assert_int_equal(infer_hal_buf_alloc(d, 100 + 300 * (uint64_t)k, (infer_ledger_kind)k, &b[k], &e),
                             INFER_OK);
        uint64_t sum = 0;
        for (int k = 0; k < INFER_LEDGER_KINDS; k++) {
            assert_true(infer_hal_ledger(d, (infer_ledger_kind)k) == infer_hal_buf_bytes(d, 100 + 300 * (uint64_t)k));
            sum += infer_hal_ledger(d, (infer_ledger_kind)k);
        }
        infer_heap_stats st;
        assert_int_equal(infer_hal_dev_heap_stats(d, &st), INFER_OK);
        assert_true(st.ours.value == sum && sum % 256 == 0);
        for (int k = INFER_LEDGER_KINDS; k-- > 0;)
            infer_hal_buf_free(&b[k]);
        infer_hal_buf_free(&b[0]);
        for (int k = 0; k < INFER_LEDGER_KINDS; k++)
            assert_true(infer_hal_ledger(d, (infer_ledger_kind)k) == 0);
    }
    assert_string_equal(infer_ledger_kind_name(INFER_LEDGER_KV), "kv");
}

static void test_no_memory(void **state)
{
    (void)state;
    fake.max_buffer = 4096;
    infer_hal_dev *d = open_fake();
    infer_error e = {0};
    infer_hal_buf b = {0}, used = alloc_buf(d, 1024);
    assert_int_equal(infer_hal_buf_alloc(d, 0, INFER_LEDGER_KV, &b, &e), INFER_E_INVALID);
    assert_int_equal(infer_hal_buf_alloc(d, 5000, INFER_LEDGER_KV, &b, &e), INFER_E_TOO_LARGE);
    assert_non_null(strstr(e.text, "at most 4096"));
    assert_int_equal(infer_hal_buf_alloc(d, UINT64_MAX - 3, INFER_LEDGER_KV, &b, &e), INFER_E_TOO_LARGE);
    fake.alloc_status = INFER_E_NO_MEMORY;
    assert_int_equal(infer_hal_buf_alloc(d, 2000, INFER_LEDGER_KV, &b, &e), INFER_E_NO_MEMORY);
    assert_string_equal(e.text, "allocate kv on fakea0: wanted 2048 bytes, about 1047552 are free: fake says no");
    assert_null(b.dev);
    assert_true(infer_hal_ledger(d, INFER_LEDGER_KV) == 0);
    fake.alloc_status = INFER_OK;
    infer_hal_buf_free(&used);
    char host[64];
    assert_int_equal(infer_hal_buf_import(d, host, sizeof host, INFER_LEDGER_WEIGHTS, &b, &e), INFER_E_UNSUPPORTED);
}

static void test_import(void **state)
{
    (void)state;
    infer_hal_dev *d = open_dev("ref0");
    static uint8_t host[96];
    for (size_t i = 0; i < sizeof host; i++)
        host[i] = (uint8_t)i;
    infer_hal_buf b = {0};
    infer_error e = {0};
    assert_int_equal(infer_hal_buf_import(d, host, sizeof host, INFER_LEDGER_WEIGHTS, &b, &e), INFER_OK);
    assert_true(infer_hal_ledger(d, INFER_LEDGER_WEIGHTS) == 0);
    uint8_t out[16];
    infer_range r = range_of(&b, 32, 16);
    assert_int_equal(infer_hal_read(d, &r, out, 16, &e), INFER_OK);
    assert_memory_equal(out, host + 32, 16);
    infer_hal_buf_free(&b);
    infer_hal_close(d);
}

static void test_ranges(void **state)
{
    (void)state;
    infer_hal_dev *d = open_fake();
    infer_error e = {0};
    infer_hal_buf a = alloc_buf(d, 256), b = alloc_buf(d, 512), gone = alloc_buf(d, 256);
    infer_range r = range_of(&a, 200, 57);
    uint8_t data[64] = {0};
    assert_int_equal(infer_hal_write(d, &r, data, 57, &e), INFER_E_INVALID);
    assert_non_null(strstr(e.text, "of a buffer of 256"));
    r = range_of(&a, UINT64_MAX - 8, 16);
    assert_int_equal(infer_hal_write(d, &r, data, 16, &e), INFER_E_INVALID);
    r = range_of(&b, 0, 32);
    assert_int_equal(infer_hal_write(d, &r, data, 33, &e), INFER_E_INVALID);
    r = range_of(&gone, 0, 32);
    infer_hal_buf_free(&gone);
    assert_int_equal(infer_hal_write(d, &r, data, 32, &e), INFER_E_INVALID);
    assert_non_null(strstr(e.text, "no buffer of this device"));
    infer_hal_buf_free(&a);
    infer_hal_buf_free(&b);
}

/* ---- Timelines -------------------------------------------------------------------------------------------------- */

typedef struct waiter {
    infer_hal_tl *tl;
    uint64_t value;
    infer_status status;
} waiter;

static void *wait_main(void *arg)
{
    waiter *w = arg;
    w->status = infer_hal_tl_wait(w->tl, w->value, UINT64_MAX);
    return NULL;
}

static void test_software_timeline(void **state)
{
    (void)state;
    infer_hal_tl *tl = NULL;
    uint64_t v = 77;
    assert_int_equal(infer_hal_tl_create(NULL, &tl, NULL), INFER_OK);
    assert_int_equal(infer_hal_tl_query(tl, &v), INFER_OK);
    assert_true(v == 0);
    assert_int_equal(infer_hal_tl_wait(tl, 0, 0), INFER_OK);
    assert_int_equal(infer_hal_tl_wait(tl, 1, 0), INFER_PENDING);
    uint64_t before = infer_clock_ns();
    assert_int_equal(infer_hal_tl_wait(tl, 1, 20000000), INFER_PENDING);
    assert_true(infer_clock_ns() - before >= 20000000);
    waiter w[4];
    pthread_t t[4];
    for (uint64_t i = 0; i < 4; i++) {
        w[i] = (waiter){.tl = tl, .value = 10 * (i + 1), .status = -1};
        pthread_create(&t[i], NULL, wait_main, &w[i]);
    }
    assert_int_equal(infer_hal_tl_signal_host(tl, UINT64_C(1) << 40), INFER_OK);
    assert_int_equal(infer_hal_tl_signal_host(tl, 3), INFER_E_INVALID);
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], NULL);
        assert_int_equal(w[i].status, INFER_OK);
    }
    assert_int_equal(infer_hal_tl_query(tl, &v), INFER_OK);
    assert_true(v == UINT64_C(1) << 40);
    infer_hal_tl_destroy(tl);
}

static void test_failed_timeline(void **state)
{
    (void)state;
    infer_hal_dev *d = open_fake();
    infer_hal_tl *tl = NULL;
    assert_int_equal(infer_hal_tl_create(d, &tl, NULL), INFER_OK);
    assert_int_equal(infer_hal_tl_signal_host(tl, 5), INFER_OK);
    waiter w = {.tl = tl, .value = 6, .status = 1};
    pthread_t t;
    pthread_create(&t, NULL, wait_main, &w);
    infer_hal_backend_info info;
    infer_hal_backend(the_hal, 1, &info);
    info.host->tl_fail(info.host->ctx, infer_hal_tl_handle(tl), INFER_E_QUEUE);
    pthread_join(t, NULL);
    assert_int_equal(w.status, INFER_E_QUEUE);
    uint64_t v = 99;
    assert_int_equal(infer_hal_tl_query(tl, &v), INFER_E_QUEUE);
    assert_true(v == 99);
    assert_int_equal(infer_hal_tl_wait(tl, 5, 0), INFER_OK); /* it had been reached */
    assert_int_equal(infer_hal_tl_signal_host(tl, 9), INFER_E_QUEUE);
    assert_int_equal(infer_hal_tl_wait(tl, 9, 0), INFER_E_QUEUE);
    infer_hal_tl_destroy(tl);
}

/* ---- Jobs on the submit thread ---------------------------------------------------------------------------------- */

typedef struct work {
    infer_hal_job job;
    infer_hal_dev *d;
    void (*fn)(struct work *w);
    infer_status status;
    infer_error err;
    int number;
    infer_range range, other;
    infer_hal_tl *tl;
    uint64_t value;
    uint8_t *data;
    uint64_t bytes;
} work;

static void run_work(infer_hal_job *job)
{
    work *w = (work *)(void *)job;
    w->fn(w);
    if (w->status < 0)
        infer_hal_fail(w->d, w->status, &w->err, "work");
}

/* Runs fn on the submit thread and gives its status. */
static infer_status on_thread(infer_hal_dev *d, work *w, void (*fn)(work *w))
{
    w->job.run = run_work;
    w->d = d;
    w->fn = fn;
    infer_hal_run(d, &w->job);
    return w->status;
}

enum { PRODUCERS = 4, JOBS = 500 };
static work jobs[PRODUCERS][JOBS];
static int seen[PRODUCERS], out_of_order, total;

static void count_job(work *w)
{
    int who = w->number / JOBS, which = w->number % JOBS;
    if (seen[who]++ != which)
        out_of_order++;
    total++;
}

static void *produce(void *arg)
{
    work *list = arg;
    for (int i = 0; i < JOBS; i++)
        infer_hal_post(list[i].d, &list[i].job);
    return NULL;
}

static void nothing(work *w)
{
    w->number++;
}

static void nested(work *w)
{
    work inner = {0};
    w->status = on_thread(w->d, &inner, nothing); /* from the thread itself: at once */
    w->number = inner.number;
}

static void test_order(void **state)
{
    (void)state;
    infer_hal_dev *d = open_fake();
    memset(seen, 0, sizeof seen);
    out_of_order = total = 0;
    pthread_t t[PRODUCERS];
    for (int p = 0; p < PRODUCERS; p++)
        for (int i = 0; i < JOBS; i++)
            jobs[p][i] = (work){.job.run = run_work, .d = d, .fn = count_job, .number = p * JOBS + i};
    for (int p = 0; p < PRODUCERS; p++)
        pthread_create(&t[p], NULL, produce, jobs[p]);
    for (int p = 0; p < PRODUCERS; p++)
        pthread_join(t[p], NULL);
    work last = {0};
    assert_int_equal(on_thread(d, &last, nothing), INFER_OK);
    assert_int_equal(last.number, 1);
    assert_int_equal(total, PRODUCERS * JOBS);
    assert_int_equal(out_of_order, 0);
    assert_int_equal(on_thread(d, &last, nested), INFER_OK);
    assert_int_equal(last.number, 1);
    /* What is posted before closing still runs. */
    jobs[0][0].number = 0;
    seen[0] = 0;
    infer_hal_post(d, &jobs[0][0].job);
    infer_hal_close(d);
    the_dev = NULL;
    assert_int_equal(total, PRODUCERS * JOBS + 1);
    /* Under validation, work from elsewhere is refused. */
    d = the_dev = open_dev("fakea0");
    infer_error e = {0};
    assert_int_equal(infer_hal_fail(d, infer_hal_drain(d), &e, "drain"), INFER_E_INVALID);
    assert_non_null(strstr(e.text, "submit thread"));
}

/* Many short updates from one buffer that is overwritten at once: the device reads them later. */
static void many_updates(work *w)
{
    for (uint32_t i = 0; i < 3000 && !w->status; i++) {
        uint32_t word[16];
        for (uint32_t k = 0; k < 16; k++)
            word[k] = i * 100 + k;
        infer_range r = {.buffer = w->range.buffer, .offset = (i % 64) * 64, .size = 64};
        w->status = infer_hal_update(w->d, &r, word, 64);
        memset(word, 0xEE, sizeof word);
    }
    if (!w->status) { /* longer than the whole staging area */
        w->status = infer_hal_update(w->d, &w->other, w->data, w->bytes);
        memset(w->data, 0xEE, (size_t)w->bytes);
    }
    if (!w->status)
        w->status = infer_hal_drain(w->d);
}

static void test_updates(void **state)
{
    (void)state;
    infer_hal_dev *d = open_fake();
    infer_error e = {0};
    enum { LONG = 300 * 1024 };
    infer_hal_buf a = alloc_buf(d, 4096), b = alloc_buf(d, LONG);
    uint8_t *data = malloc(LONG), *back = malloc(LONG), *want = malloc(LONG);
    for (size_t i = 0; i < LONG; i++)
        data[i] = want[i] = (uint8_t)(i * 31 + i / 251);
    fake.again = 7; /* a full queue now and then */
    work w = {.range = range_of(&a, 0, 4096), .other = range_of(&b, 0, LONG), .data = data, .bytes = LONG};
    assert_int_equal(on_thread(d, &w, many_updates), INFER_OK);
    infer_range r = range_of(&b, 0, LONG);
    assert_int_equal(infer_hal_read(d, &r, back, LONG, &e), INFER_OK);
    assert_memory_equal(back, want, LONG);
    uint32_t words[1024];
    r = range_of(&a, 0, 4096);
    assert_int_equal(infer_hal_read(d, &r, words, 4096, &e), INFER_OK);
    for (uint32_t i = 0; i < 1024; i++)
        assert_int_equal(words[i], (3000 - 64 + (i / 16 + 64 - 3000 % 64) % 64) * 100 + i % 16);
    assert_int_equal(fake.again, 0);
    free(data);
    free(back);
    free(want);
    infer_hal_buf_free(&a);
    infer_hal_buf_free(&b);
}

static void copies(work *w)
{
    infer_hal_dev *d = w->d;
    w->status = infer_hal_fill(d, &w->range, 0x11223344, 4);
    uint8_t host[64];
    for (int i = 0; i < 64; i++)
        host[i] = (uint8_t)i;
    infer_copy_end dev = {.buffer = w->range.buffer}, mem = {.host = host};
    /* four rows of 4 bytes, 8 apart here and 16 apart there */
    infer_copy_region r = {.src_offset = 1, .dst_offset = 2, .bytes = 4, .rows = 4, .src_pitch = 8, .dst_pitch = 16};
    if (!w->status)
        w->status = infer_hal_copy(d, &dev, &mem, &r, 1);
    if (!w->status)
        w->status = infer_hal_drain(d);
    w->value = 0;
    /* refused: out of range, overlapping, no buffer, wrong pattern */
    infer_copy_region bad = r;
    bad.dst_pitch = 100;
    w->value += infer_hal_copy(d, &dev, &mem, &bad, 1) != INFER_E_INVALID;
    bad.dst_pitch = UINT64_MAX / 2;
    w->value += infer_hal_copy(d, &dev, &mem, &bad, 1) != INFER_E_INVALID;
    infer_copy_region two[2] = {r, r};
    two[1].dst_offset = 4;
    w->value += infer_hal_copy(d, &dev, &mem, two, 2) != INFER_E_INVALID;
    two[1].dst_offset = 6;
    w->value += infer_hal_copy(d, &dev, &mem, two, 2) != INFER_OK;
    w->value += infer_hal_copy(d, &mem, &mem, &r, 1) != INFER_E_INVALID;
    w->value += infer_hal_fill(d, &w->range, 0, 3) != INFER_E_INVALID;
    w->value += infer_hal_drain(d) != INFER_OK;
}

static void test_copies(void **state)
{
    (void)state;
    for (int pass = 0; pass < 2; pass++) {
        infer_hal_dev *d = pass ? open_dev("ref0") : open_fake();
        infer_error e = {0};
        infer_hal_buf a = alloc_buf(d, 256);
        uint8_t back[256];
        work w = {.range = range_of(&a, 0, 256)};
        assert_int_equal(on_thread(d, &w, copies), INFER_OK);
        assert_int_equal(w.value, 0);
        assert_int_equal(infer_hal_read(d, &w.range, back, 256, &e), INFER_OK);
        for (int i = 0; i < 64; i++) {
            int row = (i - 2) / 16, at = (i - 2) % 16;
            int from_host = i >= 2 && row < 4 && at < 4, second = i >= 6 && (i - 6) / 16 < 4 && (i - 6) % 16 < 4;
            int want = from_host ? 1 + row * 8 + at
                       : second  ? 1 + (i - 6) / 16 * 8 + (i - 6) % 16
                                 : 0x44 - i % 4 * 0x11;
            assert_int_equal(back[i], want);
        }
        infer_hal_buf_free(&a);
        if (pass)
            infer_hal_close(d);
    }
}

/* ---- Waiting across devices -------------------------------------------------------------------------------------- */

static void wait_work(work *w)
{
    w->status = infer_hal_wait(w->d, w->tl, w->value);
}

static void signal_work(work *w)
{
    w->status = infer_hal_signal(w->d, w->tl, w->value);
}

static void test_bridges(void **state)
{
    (void)state;
    fake_add_timelines(&fake_plugins[0]);
    infer_hal_dev *d = open_fake();
    infer_hal_tl *native = NULL, *host = NULL;
    assert_int_equal(infer_hal_tl_create(d, &native, NULL), INFER_OK);
    assert_int_equal(infer_hal_tl_create(NULL, &host, NULL), INFER_OK);
    assert_int_equal(infer_hal_tl_signal_host(native, 3), INFER_OK);
    assert_int_equal(infer_hal_tl_signal_host(host, 3), INFER_OK);
    /* Its own goes through the queue; one that the queue refuses, or does not know, through the host. */
    work w = {.tl = native, .value = 3};
    assert_int_equal(on_thread(d, &w, wait_work), INFER_OK);
    assert_int_equal(fake.waits, 1);
    fake.wait_status = INFER_E_UNSUPPORTED;
    assert_int_equal(on_thread(d, &w, wait_work), INFER_OK);
    assert_int_equal(fake.waits, 2);
    w.tl = host;
    assert_int_equal(on_thread(d, &w, wait_work), INFER_OK);
    assert_int_equal(fake.waits, 2);
    w.value = 8;
    assert_int_equal(on_thread(d, &w, signal_work), INFER_OK);
    uint64_t v = 0;
    assert_int_equal(infer_hal_tl_query(host, &v), INFER_OK);
    assert_true(v == 8);
    assert_int_equal(infer_hal_tl_wait(native, 4, 1000000), INFER_PENDING);
    infer_hal_tl_destroy(native);
    infer_hal_tl_destroy(host);
}

/* ---- Failures ---------------------------------------------------------------------------------------------------- */

static void copy_in(work *w)
{
    infer_copy_end dev = {.buffer = w->range.buffer}, mem = {.host = w->data};
    infer_copy_region r = {.bytes = 16, .rows = 1};
    w->status = infer_hal_copy(w->d, &dev, &mem, &r, 1);
    if (!w->status)
        w->status = infer_hal_drain(w->d);
}

static void test_request_failure(void **state)
{
    (void)state;
    infer_hal_dev *d = open_fake();
    infer_hal_buf a = alloc_buf(d, 256);
    uint8_t data[16] = {0};
    work w = {.range = range_of(&a, 0, 256), .data = data};
    fake.copy_status = INFER_E_UNSUPPORTED;
    assert_int_equal(on_thread(d, &w, copy_in), INFER_E_UNSUPPORTED);
    assert_string_equal(w.err.text, "work on fakea0: fake says no");
    fake.copy_status = INFER_OK;
    assert_int_equal(on_thread(d, &w, copy_in), INFER_OK);
    infer_health health;
    assert_int_equal(infer_hal_dev_health(d, &health), INFER_OK);
    assert_int_equal(health.state, INFER_HEALTH_OK);
    infer_hal_buf_free(&a);
}

/* A queue that failed takes no more work, and is gone before the memory that it may still use. */
static void test_queue_failure(void **state)
{
    (void)state;
    infer_hal_dev *d = open_fake();
    infer_hal_buf a = alloc_buf(d, 256), b = {0};
    uint8_t data[16] = {0};
    work w = {.range = range_of(&a, 0, 256), .data = data};
    fake.copy_status = INFER_E_QUEUE;
    assert_int_equal(on_thread(d, &w, copy_in), INFER_E_QUEUE);
    fake.copy_status = INFER_OK;
    assert_int_equal(on_thread(d, &w, copy_in), INFER_E_QUEUE);
    assert_int_equal(infer_hal_buf_alloc(d, 16, INFER_LEDGER_KV, &b, NULL), INFER_E_QUEUE);
    infer_health health;
    assert_int_equal(infer_hal_dev_health(d, &health), INFER_OK);
    assert_int_equal(health.state, INFER_HEALTH_DEGRADED);
    infer_hal_buf_free(&a);
    infer_hal_close(d);
    d = the_dev = open_dev("fakea0"); /* its device goes on */
    a = alloc_buf(d, 256);
    w = (work){.range = range_of(&a, 0, 256), .data = data};
    assert_int_equal(on_thread(d, &w, copy_in), INFER_OK);
    infer_hal_buf_free(&a);
}

static void test_lost(void **state)
{
    (void)state;
    for (int native = 0; native < 2; native++) {
        if (native) {
            infer_hal_destroy(the_hal);
            fake_reset();
            make_hal();
            fake_add_timelines(&fake_plugins[0]);
        }
        infer_hal_dev *d = open_fake();
        infer_hal_buf a = alloc_buf(d, 256), b = {0};
        infer_hal_tl *tl = NULL;
        assert_int_equal(infer_hal_tl_create(d, &tl, NULL), INFER_OK);
        waiter wt = {.tl = tl, .value = 1, .status = 1};
        pthread_t t;
        pthread_create(&t, NULL, wait_main, &wt);
        uint8_t data[16] = {0};
        work w = {.range = range_of(&a, 0, 256), .data = data};
        fake.copy_status = INFER_E_DEVICE_LOST;
        assert_int_equal(on_thread(d, &w, copy_in), INFER_E_DEVICE_LOST);
        fake.copy_status = INFER_OK;
        pthread_join(t, NULL); /* nobody waits for a lost device */
        assert_int_equal(wt.status, INFER_E_DEVICE_LOST);
        /* Sticky, with the first text, without another call of the plugin. */
        infer_error e = {0};
        int drawn = fake.signals;
        assert_int_equal(infer_hal_buf_alloc(d, 16, INFER_LEDGER_KV, &b, &e), INFER_E_DEVICE_LOST);
        assert_string_equal(e.text, "allocate on fakea0: the device was lost: fake says no");
        assert_int_equal(infer_hal_read(d, &w.range, data, 16, &e), INFER_E_DEVICE_LOST);
        assert_int_equal(on_thread(d, &w, copy_in), INFER_E_DEVICE_LOST);
        assert_int_equal(fake.signals, drawn);
        infer_op_desc op = {.struct_size = sizeof op, .op = INFER_OP_ADD};
        const infer_op_desc *ops = &op;
        infer_op_answer answer;
        infer_hal_op_query(d, &ops, 1, &answer);
        assert_int_equal(answer.level, INFER_LEVEL_NO);
        infer_health health;
        assert_int_equal(infer_hal_dev_health(d, &health), INFER_OK);
        assert_int_equal(health.state, INFER_HEALTH_LOST);
        assert_int_equal(health.status, INFER_E_DEVICE_LOST);
        assert_string_equal(health.reason, "fake says no");
        infer_hal_tl_destroy(tl);
        infer_hal_buf_free(&a);
        infer_hal_close(d);
        the_dev = NULL;
    }
}

static void test_backend_lost(void **state)
{
    (void)state;
    fake_plugins[0].n_rows = 2;
    fake_plugins[0].rows[1] = fake_plugins[0].rows[0];
    fake_plugins[0].rows[1].index = 1;
    infer_hal_dev *d = open_fake(), *other = open_dev("fakea1"), *ref = open_dev("ref0");
    infer_error e = {0};
    assert_int_equal(infer_hal_fail(d, INFER_E_BACKEND_LOST, &e, "step"), INFER_E_BACKEND_LOST);
    infer_hal_buf b = {0};
    assert_int_equal(infer_hal_buf_alloc(other, 16, INFER_LEDGER_KV, &b, &e), INFER_E_BACKEND_LOST);
    assert_int_equal(infer_hal_buf_alloc(ref, 16, INFER_LEDGER_KV, &b, &e), INFER_OK);
    infer_hal_buf_free(&b);
    infer_hal_close(other);
    infer_hal_close(ref);
    assert_int_equal(infer_hal_open(the_hal, "fakea1", &other, &e), INFER_E_BACKEND_LOST);
    assert_string_equal(e.text, "open fakea1: its backend was lost; start anew");
}

/* ---- Queries, edges ------------------------------------------------------------------------------------------- */

static void test_queries(void **state)
{
    (void)state;
    infer_hal_dev *d = open_fake();
    infer_op_desc op[40];
    const infer_op_desc *list[40];
    infer_op_answer answer[40];
    for (uint32_t i = 0; i < 40; i++) {
        op[i] = (infer_op_desc){.struct_size = sizeof op[i], .op = i % 20, .n_epilogue = 3};
        list[i] = &op[i];
    }
    infer_hal_op_query(d, list, 40, answer);
    for (uint32_t i = 0; i < 40; i++) {
        assert_int_equal(answer[i].level, i % 20 == INFER_OP_SOFTMAX ? INFER_LEVEL_NO : INFER_LEVEL_NATIVE);
        assert_true(answer[i].scratch_bytes == 1000 + i % 20);
        assert_int_equal(answer[i].n_epilogue, 3); /* it claims 99 */
    }
    infer_kv_spec spec = {.struct_size = sizeof spec, .kind = INFER_GROUP_FULL, .n_layers = 2, .n_heads = 3};
    spec.n_planes = 2;
    spec.planes[0] = (infer_kv_plane){.format = INFER_FMT_F16, .width = 64, .per_head = 1};
    spec.planes[1] = (infer_kv_plane){.format = INFER_FMT_F32, .width = 8};
    infer_kv_answer kv;
    infer_error e = {0};
    assert_int_equal(infer_hal_kv_query(d, &spec, &kv, &e), INFER_OK);
    assert_int_equal(kv.level, INFER_LEVEL_NATIVE);
    assert_int_equal(kv.block_multiple, 1);
    assert_true(kv.block_bytes[0] == 3ull * kv.block_best * 64 * 2 && kv.block_bytes[1] == 8ull * kv.block_best * 4);
    spec.planes[1].format = INFER_FMT_Q8_0;
    assert_int_equal(infer_hal_kv_query(d, &spec, &kv, &e), INFER_OK);
    assert_int_equal(kv.level, INFER_LEVEL_NO);
    assert_int_equal(kv.why, INFER_WHY_FORMAT);
    assert_int_equal(kv.which, 1);
    infer_hal_dev *ref = open_dev("ref0");
    assert_int_equal(infer_hal_kv_query(ref, &spec, &kv, &e), INFER_E_INVALID); /* 8 elements are no block of 32 */
    spec.planes[1].width = 64;
    assert_int_equal(infer_hal_kv_query(ref, &spec, &kv, &e), INFER_OK);
    assert_int_equal(kv.level, INFER_LEVEL_NATIVE);
    assert_true(kv.block_bytes[1] == 2ull * 34 * kv.block_best);
    spec.n_planes = 5;
    assert_int_equal(infer_hal_kv_query(ref, &spec, &kv, &e), INFER_E_INVALID);
    infer_edge_info edge;
    assert_int_equal(infer_hal_edge(d, ref, &edge), INFER_OK);
    assert_int_equal(edge.mode, INFER_EDGE_STAGED);
    assert_int_equal(infer_hal_edge(d, d, &edge), INFER_OK);
    assert_int_equal(edge.mode, INFER_EDGE_NATIVE);
    infer_hal_close(ref);
}

static infer_status dma_edge(infer_device *dev, uint32_t peer, infer_edge_info *out)
{
    (void)dev;
    out->mode = peer == 1 ? INFER_EDGE_DMA : INFER_EDGE_NONE;
    return INFER_OK;
}

static void test_edges(void **state)
{
    (void)state;
    fake_plugins[0].n_rows = 2;
    fake_plugins[0].rows[1] = fake_plugins[0].rows[0];
    fake_plugins[0].rows[1].index = 1;
    fake_plugins[0].ops.dev_edge = dma_edge;
    infer_hal_dev *d = open_fake(), *peer = open_dev("fakea1"), *ref = open_dev("ref0");
    infer_edge_info edge;
    assert_int_equal(infer_hal_edge(ref, d, &edge), INFER_OK);
    assert_int_equal(edge.mode, INFER_EDGE_STAGED);
    assert_int_equal(infer_hal_edge(d, peer, &edge), INFER_OK);
    assert_int_equal(edge.mode, INFER_EDGE_DMA);
    assert_int_equal(infer_hal_edge(peer, d, &edge), INFER_OK);
    assert_int_equal(edge.mode, INFER_EDGE_STAGED);
    infer_hal_close(ref);
    infer_hal_close(peer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_ledger, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(test_import, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ranges, setup, teardown),
        cmocka_unit_test_setup_teardown(test_software_timeline, setup, teardown),
        cmocka_unit_test_setup_teardown(test_failed_timeline, setup, teardown),
        cmocka_unit_test_setup_teardown(test_order, setup, teardown),
        cmocka_unit_test_setup_teardown(test_updates, setup, teardown),
        cmocka_unit_test_setup_teardown(test_copies, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bridges, setup, teardown),
        cmocka_unit_test_setup_teardown(test_request_failure, setup, teardown),
        cmocka_unit_test_setup_teardown(test_queue_failure, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lost, setup, teardown),
        cmocka_unit_test_setup_teardown(test_backend_lost, setup, teardown),
        cmocka_unit_test_setup_teardown(test_queries, setup, teardown),
        cmocka_unit_test_setup_teardown(test_edges, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
