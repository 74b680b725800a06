/* Small copies to the host on the CUDA backend: they do not wait for the queue, and their bytes are there for whoever
 * has seen reached what is signalled behind them, on any timeline, or uses the host memory in a later copy.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <dlfcn.h>
#include <stdlib.h>

#include "cuda.h"
#include "hal/hal.h"
#include "unit/unit.h"

enum { BYTES = 1024 };
#define SECOND 1000000000ull

static char driver[600];

static const char *config(void *user, const char *backend, const char *key)
{
    (void)user;
    (void)backend;
    return !strcmp(key, "driver") ? driver : NULL;
}

typedef struct rig {
    infer_hal *hal;
    infer_hal_dev *d[2];
    infer_device *h[2];
    const infer_backend_ops *ops;
    infer_queue *q[2];
    infer_timeline *tl[2], *gate;
    infer_buffer *b;
} rig;

static void rig_open(rig *r)
{
    infer_error e = {0};
    const infer_hal_options o = {.allow = "ref", .backend_path = "", .config = config, .validate = 1};
    *r = (rig){0};
    if (infer_hal_create(&o, &r->hal, &e) || infer_hal_add(r->hal, infer_plugin_query, "in process", &e))
        fail_msg("%s", e.text);
    for (int i = 0; i < 2; i++) {
        if (infer_hal_open(r->hal, i ? "cuda1" : "cuda0", &r->d[i], &e))
            fail_msg("%s", e.text);
        r->h[i] = infer_hal_dev_handle(r->d[i]);
        r->ops = infer_hal_dev_ops(r->d[i]);
        assert_int_equal(r->ops->queue_create(r->h[i], INFER_QUEUE_COMPUTE, &r->q[i]), INFER_OK);
        assert_int_equal(r->ops->tl_create(r->h[i], &r->tl[i]), INFER_OK);
    }
    assert_int_equal(r->ops->tl_create(r->h[0], &r->gate), INFER_OK);
    assert_int_equal(r->ops->buf_alloc(r->h[0], 0, 1 << 20, &r->b), INFER_OK);
}

static void rig_close(rig *r)
{
    r->ops->buf_free(r->h[0], r->b);
    for (int i = 0; i < 2; i++) {
        if (r->q[i])
            r->ops->queue_destroy(r->h[i], r->q[i]);
        r->ops->tl_destroy(r->h[i], r->tl[i]);
    }
    r->ops->tl_destroy(r->h[0], r->gate);
    for (int i = 0; i < 2; i++)
        infer_hal_close(r->d[i]);
    infer_hal_destroy(r->hal);
}

static void fill(rig *r, uint64_t at, uint8_t byte)
{
    const infer_range range = {r->b, at, BYTES};
    assert_int_equal(r->ops->cmd_fill(r->q[0], &range, byte, 1), INFER_OK);
}

static void copy(rig *r, void *host, uint64_t at, uint64_t bytes, int up)
{
    const infer_copy_end dev = {r->b, NULL}, mem = {NULL, host};
    const infer_copy_region g = {.bytes = bytes, .rows = 1, .src_offset = up ? 0 : at, .dst_offset = up ? at : 0};
    assert_int_equal(r->ops->cmd_copy(r->q[0], up ? &dev : &mem, up ? &mem : &dev, &g, 1), INFER_OK);
}

static int all_are(const uint8_t *p, uint8_t byte)
{
    for (int i = 0; i < BYTES; i++)
        if (p[i] != byte)
            return 0;
    return 1;
}

/* Copies that are called before the queue may go on return; they land with either timeline, in order. */
static void test_later(void **state)
{
    (void)state;
    for (int far = 0; far < 2; far++) {
        rig r;
        uint8_t a[BYTES] = {0}, b[BYTES] = {0};
        rig_open(&r);
        assert_int_equal(r.ops->queue_wait(r.q[0], r.gate, 1), INFER_OK);
        for (uint8_t i = 1; i <= CUDA_LANDINGS / 2; i++) {
            fill(&r, 0, i);
            copy(&r, a, 0, BYTES, 0);
            fill(&r, BYTES, (uint8_t)(100 + i));
            copy(&r, b, BYTES, BYTES, 0);
        }
        assert_int_equal(r.ops->queue_signal(r.q[0], r.tl[0], 1), INFER_OK);
        if (far) { /* who waits hears of another queue, which waits for this one */
            assert_int_equal(r.ops->queue_wait(r.q[1], r.tl[0], 1), INFER_OK);
            assert_int_equal(r.ops->queue_signal(r.q[1], r.tl[1], 1), INFER_OK);
        }
        assert_int_equal(r.ops->tl_wait(r.tl[far], 1, 2000000), INFER_PENDING);
        assert_true(all_are(a, 0) && all_are(b, 0));
        assert_int_equal(r.ops->tl_signal_host(r.gate, 1), INFER_OK);
        assert_int_equal(r.ops->tl_wait(r.tl[far], 1, 20ull * SECOND), INFER_OK);
        assert_true(all_are(a, CUDA_LANDINGS / 2) && all_are(b, 100 + CUDA_LANDINGS / 2));
        rig_close(&r);
    }
}

/* The memory that a copy is on its way to is read, and written, by the next ones; a timeline goes before its bytes. */
static void test_order(void **state)
{
    (void)state;
    rig r;
    uint8_t a[BYTES] = {0}, big[2 * CUDA_LANDING] = {0};
    rig_open(&r);
    fill(&r, 0, 7);
    copy(&r, a, 0, BYTES, 0);
    copy(&r, a, BYTES, BYTES, 1); /* what came, up again to another place */
    fill(&r, 0, 8);
    copy(&r, big + 5, 0, BYTES, 0);
    fill(&r, 0, 9);
    copy(&r, big + 5, 0, CUDA_LANDING + 1, 0); /* a large one, over the small one */
    memset(a, 0, BYTES);
    copy(&r, a, BYTES, BYTES, 0);
    infer_timeline *other;
    assert_int_equal(r.ops->tl_create(r.h[0], &other), INFER_OK);
    assert_int_equal(r.ops->queue_signal(r.q[0], other, 1), INFER_OK);
    r.ops->tl_destroy(r.h[0], other);
    assert_int_equal(r.ops->queue_signal(r.q[0], r.tl[0], 1), INFER_OK);
    assert_int_equal(r.ops->tl_wait(r.tl[0], 1, 20ull * SECOND), INFER_OK);
    assert_true(all_are(a, 7));
    assert_true(all_are(big + 5, 9));
    /* more than there is room for, through the whole ring */
    static uint8_t many[4 * CUDA_LANDINGS][BYTES];
    for (uint32_t i = 0; i < 4 * CUDA_LANDINGS; i++) {
        fill(&r, 0, (uint8_t)(i + 1));
        copy(&r, many[i], 0, BYTES, 0);
        copy(&r, big, 2 * BYTES, sizeof big, 1);
    }
    assert_int_equal(r.ops->queue_signal(r.q[0], r.tl[0], 2), INFER_OK);
    assert_int_equal(r.ops->tl_wait(r.tl[0], 2, 20ull * SECOND), INFER_OK);
    for (uint32_t i = 0; i < 4 * CUDA_LANDINGS; i++)
        assert_true(all_are(many[i], (uint8_t)(i + 1)));
    rig_close(&r);
}

/* A queue goes with copies that nobody waits for: nothing is written afterwards. */
static void test_gone(void **state)
{
    (void)state;
    rig r;
    uint8_t a[BYTES] = {0};
    rig_open(&r);
    fill(&r, 0, 3);
    copy(&r, a, 0, BYTES, 0);
    assert_int_equal(r.ops->queue_signal(r.q[0], r.tl[0], 1), INFER_OK);
    r.ops->queue_destroy(r.h[0], r.q[0]);
    r.q[0] = NULL;
    assert_int_equal(r.ops->tl_wait(r.tl[0], 1, 20ull * SECOND), INFER_OK);
    assert_true(all_are(a, 0));
    rig_close(&r);
}

int main(void)
{
    const char *build = getenv("INFER_BUILDDIR");
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_later), cmocka_unit_test(test_order),
                                       cmocka_unit_test(test_gone)};
    snprintf(driver, sizeof(driver), "%s/tests/plugins/fakecuda/.libs/libfakecuda.so", build ? build : ".");
    if (!dlopen(driver, RTLD_NOW)) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
