/*
 * The fault decorator over sim, and the core's way through every failure it can deliver: a small life of a device is
 * walked, failing the n-th call of each class until a run delivers nothing.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include "unit/unit.h"

#include <stdatomic.h>

#include "base/clock.h"
#include "hal/hal.h"
#include "ops/ops.h"
#include "plugins/fault/fault.h"

const infer_plugin_desc *infer_sim_query(const infer_host *host, const infer_abi_range *range);
const infer_plugin_desc *infer_fault_query(const infer_host *host, const infer_abi_range *range);

typedef struct setting {
    const char *key, *value;
} setting;

static const setting *settings; /* ended by a NULL key */

static const char *config(void *user, const char *backend, const char *key)
{
    (void)user;
    (void)backend;
    if (!strcmp(key, "scratch_bytes"))
        return "0";
    for (const setting *s = settings; s && s->key; s++)
        if (!strcmp(s->key, key))
            return s->value;
    return NULL;
}

static infer_hal *hal_make(const setting *s)
{
    infer_error e = {0};
    infer_hal *h = NULL;
    settings = s;
    const infer_hal_options o = {.allow = "ref", .backend_path = "", .config = config, .validate = 1};
    if (infer_hal_create(&o, &h, &e))
        fail_msg("%s", e.text);
    infer_fault_control()->reset();
    infer_fault_control()->wrap(infer_sim_query);
    if (infer_hal_add(h, infer_fault_query, "fault over sim", &e))
        fail_msg("%s", e.text);
    return h;
}

/* ---- A device's life ------------------------------------------------------------------------------------- */

enum { N = 64 };

typedef struct work {
    infer_hal_job job;
    infer_hal_dev *d;
    infer_hal_tl *tl;
    infer_hal_exec *exec;
    infer_range b;
    infer_status s;
} work;

static void run_drain(infer_hal_job *job)
{
    (void)infer_hal_drain(((work *)(void *)job)->d);
}

/* b = 2 everywhere, y = a + b, a signal. */
static void run_work(infer_hal_job *job)
{
    work *w = (work *)(void *)job;
    const float two = 2;
    uint32_t pattern;
    memcpy(&pattern, &two, 4);
    w->s = infer_hal_fill(w->d, &w->b, pattern, 4);
    if (!w->s)
        w->s = infer_hal_exec_submit(w->exec);
    if (!w->s)
        w->s = infer_hal_signal(w->d, w->tl, 1);
}

static infer_status build(infer_hal_dev *d, infer_hal_prog **prog, infer_error *e)
{
    infer_tensor_desc t[3];
    infer_operand operands[3] = {{.size = N * 4}, {.slot = 1, .size = N * 4}, {.slot = 2, .size = N * 4}};
    infer_slot_desc slots[3];
    for (int i = 0; i < 3; i++) {
        t[i] = infer_tensor_make(INFER_FMT_F32, 2, 1, N, 1, 1);
        slots[i] = (infer_slot_desc){.kind = INFER_SLOT_ARENA, .size = N * 4};
    }
    const infer_op_desc op = {.struct_size = sizeof(op),
                              .op = INFER_OP_ADD,
                              .rows_from = INFER_ROWS_STATIC,
                              .rows_mul = 1,
                              .n_in = 2,
                              .n_out = 1,
                              .tensor_size = sizeof(t[0]),
                              .tensors = t};
    const infer_node node = {
        .op = &op, .operands = operands, .counts.slot = INFER_SLOT_ABSENT, .scratch.slot = INFER_SLOT_ABSENT};
    const infer_graph_view view = {.struct_size = sizeof(view),
                                   .nodes = &node,
                                   .slots = slots,
                                   .n_nodes = 1,
                                   .node_size = sizeof(node),
                                   .n_slots = 3,
                                   .slot_size = sizeof(slots[0]),
                                   .bucket = 1};
    infer_program_info info = {.struct_size = sizeof(info)};
    return infer_hal_prog_build(d, &view, prog, &info, e);
}

/* Everything from opening to closing. OK with the right sums in y, or the first failure; never half done. */
static infer_status life(infer_hal *h, float *y)
{
    infer_hal_dev *d = NULL;
    infer_hal_buf buf[3] = {{0}};
    infer_hal_prog *prog = NULL;
    work w = {.job.run = run_work};
    infer_range r[3];
    infer_error e = {0};
    float a[N];
    infer_status s = infer_hal_open(h, "fault0", &d, &e);
    if (s)
        return s;
    for (int i = 0; i < 3 && !s; i++) {
        s = infer_hal_buf_alloc(d, sizeof(a), INFER_LEDGER_ACTIVATIONS, &buf[i], &e);
        r[i] = (infer_range){buf[i].h, 0, sizeof(a)};
    }
    if (!s)
        s = infer_hal_tl_create(d, &w.tl, &e);
    if (!s)
        s = build(d, &prog, &e);
    if (!s)
        s = infer_hal_exec_create(prog, r, 3, &w.exec, &e);
    if (s)
        goto out;
    for (int i = 0; i < N; i++)
        a[i] = (float)i;
    s = infer_hal_write(d, &r[0], a, sizeof(a), &e);
    if (s)
        goto out;
    w.d = d;
    w.b = r[1];
    infer_hal_run(d, &w.job);
    s = w.s;
    if (!s)
        s = infer_hal_tl_wait(w.tl, 1, 20000000000u);
    if (!s)
        s = infer_hal_read(d, &r[2], y, sizeof(a), &e);
out:
    w.d = d;
    w.job.run = run_drain; /* a failed call may leave earlier ones at work */
    infer_hal_run(d, &w.job);
    if (w.exec)
        infer_hal_exec_destroy(w.exec);
    if (prog)
        infer_hal_prog_destroy(prog);
    infer_hal_tl_destroy(w.tl);
    for (int i = 0; i < 3; i++)
        infer_hal_buf_free(&buf[i]);
    infer_hal_close(d);
    return s;
}

static int right(const float *y)
{
    for (int i = 0; i < N; i++)
        if (y[i] != (float)i + 2)
            return 0;
    return 1;
}

/* ---- Tests ----------------------------------------------------------------------------------------------- */

static void test_pass_through(void **state)
{
    (void)state;
    const infer_fault_api *f = infer_fault_control();
    infer_hal *h = hal_make(NULL);
    float y[N] = {0};
    assert_int_equal(life(h, y), INFER_OK);
    assert_true(right(y));
    assert_int_equal(f->injected(), 0);
    assert_int_equal(f->calls(INFER_FAULT_ALLOC), 3);
    assert_int_equal(f->calls(INFER_FAULT_OP), 1);
    assert_true(f->calls(INFER_FAULT_ANY) > 8);
    infer_hal_destroy(h);
}

/* Fails call 0, 1, 2, … of a class, each in a life of its own, until none is reached any more. */
static uint64_t walk(const setting *s, uint32_t cls, infer_status status)
{
    const infer_fault_api *f = infer_fault_control();
    infer_hal *h = hal_make(s);
    float y[N];
    for (int64_t n = 0; n < 1000; n++) {
        memset(y, 0, sizeof(y));
        f->reset();
        f->arm(cls, n, status);
        infer_status got = life(h, y);
        if (!f->injected()) {
            assert_int_equal(got, INFER_OK);
            assert_true(right(y));
            infer_hal_destroy(h);
            return (uint64_t)n;
        }
        assert_int_equal(f->injected(), 1);
        if (got == INFER_OK) /* a failure may be survived, but then the result is right */
            assert_true(right(y));
        else
            assert_true(got < 0);
    }
    fail_msg("class %u still fails after 1000 steps", cls);
    return 0;
}

static void test_walk(void **state)
{
    (void)state;
    static const setting native[] = {{"native_timelines", "1"}, {NULL, NULL}};
    const uint32_t classes[] = {INFER_FAULT_OPEN, INFER_FAULT_QUERY, INFER_FAULT_ALLOC,
                                INFER_FAULT_COPY, INFER_FAULT_OP,    INFER_FAULT_SIGNAL,
                                INFER_FAULT_HOST, INFER_FAULT_DONE,  INFER_FAULT_ANY};
    for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++)
        assert_true(walk(NULL, classes[i], 0) > 0);
    assert_true(walk(native, INFER_FAULT_OPEN, 0) > 0);
    assert_true(walk(native, INFER_FAULT_TIMELINE, 0) > 0);
}

static void test_walk_lost(void **state)
{
    (void)state;
    static const setting native[] = {{"native_timelines", "1"}, {NULL, NULL}};
    assert_true(walk(NULL, INFER_FAULT_ANY, INFER_E_DEVICE_LOST) > 0);
    assert_true(walk(NULL, INFER_FAULT_DONE, INFER_E_DEVICE_LOST) > 0);
    assert_true(walk(native, INFER_FAULT_ANY, INFER_E_DEVICE_LOST) > 0);
    assert_true(walk(native, INFER_FAULT_TIMELINE, INFER_E_DEVICE_LOST) > 0);
}

/* Lost is lost: later calls fail too, also those that were not armed. */
static void test_sticky(void **state)
{
    (void)state;
    const infer_fault_api *f = infer_fault_control();
    infer_hal *h = hal_make(NULL);
    infer_hal_dev *d = NULL;
    infer_hal_buf a = {0}, b = {0};
    infer_error e = {0};
    uint8_t data[16] = {1};
    assert_int_equal(infer_hal_open(h, "fault0", &d, &e), INFER_OK);
    assert_int_equal(infer_hal_buf_alloc(d, 16, INFER_LEDGER_KV, &a, &e), INFER_OK);
    f->arm(INFER_FAULT_COPY, 0, INFER_E_DEVICE_LOST);
    infer_range r = {a.h, 0, 16};
    assert_int_equal(infer_hal_write(d, &r, data, 16, &e), INFER_E_DEVICE_LOST);
    assert_non_null(strstr(e.text, "class copy"));
    assert_int_equal(infer_hal_buf_alloc(d, 16, INFER_LEDGER_KV, &b, &e), INFER_E_DEVICE_LOST);
    infer_health health = {.struct_size = sizeof(health)};
    assert_int_equal(infer_hal_dev_health(d, &health), INFER_OK);
    assert_int_equal(health.state, INFER_HEALTH_LOST);
    assert_int_equal(f->injected(), 1);
    infer_hal_buf_free(&a);
    infer_hal_close(d);
    infer_hal_destroy(h);
}

static void test_delay(void **state)
{
    (void)state;
    const infer_fault_api *f = infer_fault_control();
    infer_hal *h = hal_make(NULL);
    float y[N] = {0};
    f->delay(INFER_FAULT_OP, 50000000);
    uint64_t start = infer_clock_ns();
    assert_int_equal(life(h, y), INFER_OK);
    assert_true(infer_clock_ns() - start >= 50000000);
    assert_true(right(y));
    infer_hal_destroy(h);
}

/* The same through settings, as programs give them. */
static void test_settings(void **state)
{
    (void)state;
    static const setting fail[] = {{"fail", "alloc:1"}, {"delay", "op:1000"}, {NULL, NULL}};
    static const setting lose[] = {{"fail", "op:0:-401"}, {NULL, NULL}};
    static const setting wrong[] = {{"fail", "cheese:1"}, {NULL, NULL}};
    float y[N];
    infer_hal *h = hal_make(fail);
    assert_int_equal(life(h, y), INFER_E_NO_MEMORY);
    infer_hal_destroy(h);
    h = hal_make(lose);
    assert_int_equal(life(h, y), INFER_E_DEVICE_LOST);
    infer_hal_destroy(h);
    h = hal_make(wrong);
    assert_int_equal(life(h, y), INFER_E_INVALID);
    infer_hal_destroy(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pass_through), cmocka_unit_test(test_walk),  cmocka_unit_test(test_walk_lost),
        cmocka_unit_test(test_sticky),       cmocka_unit_test(test_delay), cmocka_unit_test(test_settings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
