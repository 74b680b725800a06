/*
 * The CUDA backend's host side on a driver in host memory, where the conformance kit does not look: programs as graphs,
 * failures and how far they reach, what a driver refuses, streams that wait for what does not come.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include "unit/unit.h"

#include <dlfcn.h>
#include <pthread.h>
#include <time.h>

#include "cuda.h"
#include "hal/hal.h"
#include "ops/ops.h"
#include "packed.h"
#include "quant/quant.h"

#define SECOND 1000000000u

enum { ROWS = 6, WIDTH = 40, BYTES = ROWS * WIDTH * 4 };

static char driver[512];
static const char *packed; /* the setting */
static void (*configure)(const char *text);
static void (*counts_of)(unsigned *graphs, unsigned *kernels);

static const char *config(void *user, const char *backend, const char *key)
{
    (void)user;
    (void)backend;
    return !strcmp(key, "driver") ? driver : !strcmp(key, "packed") ? packed : NULL;
}

/* A device through the core, with a queue of the test's own beside the core's. */
typedef struct rig {
    infer_hal *hal;
    infer_hal_dev *d[2];
    infer_device *h[2];
    const infer_backend_ops *ops;
    infer_queue *q[2];
    infer_timeline *tl[2];
    uint64_t value[2];
} rig;

static infer_hal *hal_make(void)
{
    infer_error e = {0};
    infer_hal *h = NULL;
    const infer_hal_options o = {.allow = "ref", .backend_path = "", .config = config, .validate = 1};
    if (infer_hal_create(&o, &h, &e) || infer_hal_add(h, infer_plugin_query, "in process", &e))
        fail_msg("%s", e.text);
    return h;
}

static void rig_open(rig *r, const char *how)
{
    infer_error e = {0};
    *r = (rig){.hal = hal_make()};
    for (int i = 0; i < 2; i++) {
        if (infer_hal_open(r->hal, i ? "cuda1" : "cuda0", &r->d[i], &e))
            fail_msg("%s", e.text);
        r->h[i] = infer_hal_dev_handle(r->d[i]);
        r->ops = infer_hal_dev_ops(r->d[i]);
        assert_int_equal(r->ops->queue_create(r->h[i], INFER_QUEUE_COMPUTE, &r->q[i]), INFER_OK);
        assert_int_equal(r->ops->tl_create(r->h[i], &r->tl[i]), INFER_OK);
    }
    configure(how);
}

static void rig_close(rig *r)
{
    for (int i = 0; i < 2; i++)
        if (r->q[i])
            r->ops->queue_destroy(r->h[i], r->q[i]);
    for (int i = 0; i < 2; i++) {
        r->ops->tl_destroy(r->h[i], r->tl[i]);
        infer_hal_close(r->d[i]);
    }
    infer_hal_destroy(r->hal);
    configure("");
}

static infer_status settle(rig *r, int i)
{
    infer_status s = r->ops->queue_signal(r->q[i], r->tl[i], ++r->value[i]);
    return s ? s : r->ops->tl_wait(r->tl[i], r->value[i], 20ull * SECOND);
}

static infer_buffer *buffer(rig *r, int i, uint64_t bytes)
{
    infer_buffer *b = NULL;
    assert_int_equal(r->ops->buf_alloc(r->h[i], 0, bytes, &b), INFER_OK);
    return b;
}

static void put(rig *r, int i, infer_buffer *b, const void *data, uint64_t bytes)
{
    const infer_copy_end to = {b, NULL}, from = {NULL, (void *)(uintptr_t)data};
    const infer_copy_region g = {.bytes = bytes, .rows = 1};
    assert_int_equal(r->ops->cmd_copy(r->q[i], &to, &from, &g, 1), INFER_OK);
    assert_int_equal(settle(r, i), INFER_OK);
}

static void get(rig *r, int i, infer_buffer *b, void *data, uint64_t bytes)
{
    const infer_copy_end to = {NULL, data}, from = {b, NULL};
    const infer_copy_region g = {.bytes = bytes, .rows = 1};
    assert_int_equal(r->ops->cmd_copy(r->q[i], &to, &from, &g, 1), INFER_OK);
    assert_int_equal(settle(r, i), INFER_OK);
}

/* ---- Ops and programs ------------------------------------------------------------------------------------------ */

typedef struct sum {
    infer_op_desc op;
    infer_tensor_desc t[3];
    infer_operand at[3];
    infer_node node;
} sum;

/* Slot a + slot b -> slot y, as many rows as the counts in slot 3 say. */
static void sum_make(sum *s, uint32_t a, uint32_t b, uint32_t y)
{
    *s = (sum){.op = {.struct_size = sizeof(s->op),
                      .op = INFER_OP_ADD,
                      .rows_from = INFER_COUNT_TOKENS,
                      .rows_mul = 1,
                      .n_in = 2,
                      .n_out = 1,
                      .tensor_size = sizeof(s->t[0]),
                      .tensors = s->t,
                      .epilogue_size = sizeof(infer_epilogue)}};
    const uint32_t slot[3] = {a, b, y};
    for (int i = 0; i < 3; i++) {
        s->t[i] = infer_tensor_make(INFER_FMT_F32, 2, ROWS, WIDTH, 1, 1);
        s->at[i] = (infer_operand){.slot = slot[i], .size = BYTES};
    }
    s->node = (infer_node){
        .op = &s->op, .operands = s->at, .counts = {.slot = 3, .size = 64}, .scratch.slot = INFER_SLOT_ABSENT};
}

static void launch(rig *r, int i, infer_buffer *b)
{
    sum s;
    const infer_range o[3] = {{b, 0, BYTES}, {b, 0, BYTES}, {b, 0, BYTES}};
    const infer_op_args args = {.struct_size = sizeof(args), .n_operands = 3, .operands = o};
    sum_make(&s, 0, 0, 0);
    s.op.rows_from = INFER_ROWS_STATIC;
    infer_status st = r->ops->cmd_op(r->q[i], &s.op, &args);
    assert_true(st == INFER_OK || infer_status_radius(st) >= 3);
}

static void check_rows(const float *y, int rows, float want)
{
    for (int i = 0; i < ROWS * WIDTH; i++)
        if (y[i] != (i < rows * WIDTH ? want : 0))
            fail_msg("element %d is %g, not %g", i, (double)y[i], (double)(i < rows * WIDTH ? want : 0));
}

/* Two nodes, y = (x + x) + x, run as one launch of a graph; a rebound slot by an update, or by a new instance where the
 * driver takes none. */
static void program(const char *how, infer_status updated)
{
    rig r;
    sum s[2];
    float x[ROWS * WIDTH], y[ROWS * WIDTH];
    int32_t counts[16] = {4};
    unsigned graphs, kernels, g0, k0;
    rig_open(&r, how);
    infer_buffer *b[5];
    for (int i = 0; i < 5; i++) {
        b[i] = buffer(&r, 0, BYTES);
        const infer_range all = {b[i], 0, BYTES};
        assert_int_equal(r.ops->cmd_fill(r.q[0], &all, 0, 1), INFER_OK);
    }
    for (int i = 0; i < ROWS * WIDTH; i++)
        x[i] = 1.5f;
    put(&r, 0, b[0], x, BYTES);
    put(&r, 0, b[3], counts, sizeof(counts));
    sum_make(&s[0], 0, 0, 1);
    sum_make(&s[1], 1, 0, 2);
    const infer_node nodes[2] = {s[0].node, s[1].node};
    const infer_slot_desc slots[4] = {
        {INFER_SLOT_IO, 0, BYTES}, {INFER_SLOT_ARENA, 0, BYTES}, {INFER_SLOT_IO, 1, BYTES}, {INFER_SLOT_STEP, 0, 64}};
    infer_range ranges[4] = {{b[0], 0, BYTES}, {b[1], 0, BYTES}, {b[2], 0, BYTES}, {b[3], 0, 64}};
    infer_graph_view v = {.struct_size = sizeof(v),
                          .nodes = nodes,
                          .slots = slots,
                          .n_nodes = 2,
                          .node_size = sizeof(nodes[0]),
                          .n_slots = 4,
                          .slot_size = sizeof(slots[0]),
                          .bucket = ROWS};
    infer_program *p = NULL;
    infer_exec *e = NULL;
    infer_program_info info = {.struct_size = sizeof(info)};
    assert_int_equal(r.ops->prog_build(r.h[0], &v, &p, &info), INFER_OK);
    counts_of(&g0, &k0);
    assert_int_equal(r.ops->prog_instantiate(p, r.q[0], ranges, 4, &e), INFER_OK);
    assert_int_equal(r.ops->prog_submit(e, r.q[0]), INFER_OK);
    get(&r, 0, b[2], y, BYTES);
    check_rows(y, 4, 4.5f);
    counts_of(&graphs, &kernels);
    assert_int_equal(graphs - g0, 1);
    assert_int_equal(kernels - k0, 0); /* recorded, not run beside the graph */

    const infer_range other = {b[4], 0, BYTES};
    assert_int_equal(r.ops->prog_update(e, 2, &other), updated);
    assert_int_equal(r.ops->prog_submit(e, r.q[0]), INFER_OK);
    get(&r, 0, b[4], y, BYTES);
    check_rows(y, updated ? 0 : 4, 4.5f); /* after REBUILD the instance is as it was */
    assert_int_equal(r.ops->prog_update(e, 4, &other), INFER_E_INVALID);
    r.ops->exec_destroy(e);

    v.n_nodes = 0; /* nothing to run is no failure */
    infer_program *none = NULL;
    assert_int_equal(r.ops->prog_build(r.h[0], &v, &none, &info), INFER_OK);
    assert_int_equal(r.ops->prog_instantiate(none, r.q[0], ranges, 4, &e), INFER_OK);
    assert_int_equal(r.ops->prog_submit(e, r.q[0]), INFER_OK);
    assert_int_equal(r.ops->prog_update(e, 2, &other), INFER_OK);
    r.ops->exec_destroy(e);
    r.ops->prog_destroy(none);

    s[1].op.op = INFER_OP_COUNT; /* no op: the recording ends, and the next one begins */
    const infer_node odd[2] = {s[0].node, s[1].node};
    v.n_nodes = 2;
    v.nodes = odd;
    assert_int_equal(r.ops->prog_build(r.h[0], &v, &none, &info), INFER_OK);
    assert_int_equal(r.ops->prog_instantiate(none, r.q[0], ranges, 4, &e), INFER_E_UNSUPPORTED);
    r.ops->prog_destroy(none);
    assert_int_equal(r.ops->prog_instantiate(p, r.q[0], ranges, 4, &e), INFER_OK);
    r.ops->exec_destroy(e);
    r.ops->prog_destroy(p);
    for (int i = 0; i < 5; i++)
        r.ops->buf_free(r.h[0], b[i]);
    rig_close(&r);
}

static void test_program(void **state)
{
    (void)state;
    program("", INFER_OK);
}

static void test_program_rebuild(void **state)
{
    (void)state;
    program("update=0", INFER_REBUILD);
}

/* ---- Copies that take several turns of the ring -------------------------------------------------------------------
 */

static void test_big_pitched(void **state)
{
    (void)state;
    enum { R = 2000, W = 6007, PITCH = 6100 };
    rig r;
    rig_open(&r, "");
    uint8_t *src = malloc((size_t)R * W), *back = malloc((size_t)R * PITCH);
    infer_buffer *b = buffer(&r, 0, (uint64_t)R * PITCH);
    const infer_range all = {b, 0, (uint64_t)R * PITCH};
    assert_non_null(src);
    assert_non_null(back);
    for (size_t i = 0; i < (size_t)R * W; i++)
        src[i] = (uint8_t)(i * 2654435761u >> 13);
    assert_int_equal(r.ops->cmd_fill(r.q[0], &all, 0x5A, 1), INFER_OK);
    const infer_copy_end dev = {b, NULL}, from = {NULL, src}, to = {NULL, back};
    const infer_copy_region up = {.bytes = W, .rows = R, .src_pitch = W, .dst_pitch = PITCH};
    const infer_copy_region down = {.bytes = PITCH, .rows = R, .src_pitch = PITCH, .dst_pitch = PITCH};
    assert_int_equal(r.ops->cmd_copy(r.q[0], &dev, &from, &up, 1), INFER_OK);
    assert_int_equal(r.ops->cmd_copy(r.q[0], &to, &dev, &down, 1), INFER_OK);
    assert_int_equal(settle(&r, 0), INFER_OK);
    for (size_t i = 0; i < R; i++) {
        assert_memory_equal(back + i * PITCH, src + i * W, W);
        for (size_t k = W; k < PITCH; k++)
            assert_int_equal(back[i * PITCH + k], 0x5A);
    }
    free(src);
    free(back);
    r.ops->buf_free(r.h[0], b);
    rig_close(&r);
}

/* ---- Failures -------------------------------------------------------------------------------------------------------
 */

static void why(rig *r, int i, infer_status s, char text[INFER_ERROR_TEXT])
{
    infer_error e = {0};
    infer_hal_fail(r->d[i], s, &e, "test");
    memcpy(text, e.text, INFER_ERROR_TEXT);
}

/* A fault in a kernel takes its device and nothing else; what was reached before stays reached; a new start works. */
static void test_lost_device(void **state)
{
    (void)state;
    rig r;
    char text[INFER_ERROR_TEXT];
    uint64_t v = 0;
    infer_health health = {.struct_size = sizeof(health)};
    rig_open(&r, "");
    infer_timeline *idle = NULL;
    infer_buffer *b[2] = {buffer(&r, 0, BYTES), buffer(&r, 1, BYTES)};
    assert_int_equal(r.ops->tl_create(r.h[0], &idle), INFER_OK);
    assert_int_equal(settle(&r, 0), INFER_OK);
    configure("lose=1");
    launch(&r, 0, b[0]);
    infer_status s = settle(&r, 0);
    why(&r, 0, s, text);
    assert_int_equal(s, INFER_E_DEVICE_LOST);
    assert_non_null(strstr(text, "CUDA_ERROR_ILLEGAL_ADDRESS"));
    assert_int_equal(r.ops->tl_wait(r.tl[0], 1, 0), INFER_OK);
    assert_int_equal(r.ops->tl_wait(r.tl[0], 2, 0), INFER_E_DEVICE_LOST);
    assert_int_equal(r.ops->tl_query(r.tl[0], &v), INFER_E_DEVICE_LOST);
    assert_int_equal(r.ops->tl_wait(idle, 1, 0), INFER_E_DEVICE_LOST); /* that no queue ever signalled */
    assert_int_equal(r.ops->tl_query(idle, &v), INFER_E_DEVICE_LOST);
    r.ops->tl_destroy(r.h[0], idle);
    assert_int_equal(r.ops->queue_signal(r.q[0], r.tl[0], 3), INFER_E_DEVICE_LOST);
    infer_buffer *more = NULL;
    s = r.ops->buf_alloc(r.h[0], 0, 64, &more);
    assert_int_equal(s, INFER_E_DEVICE_LOST);
    assert_int_equal(r.ops->dev_health(r.h[0], &health), INFER_OK);
    assert_int_equal(health.state, INFER_HEALTH_LOST);
    launch(&r, 1, b[1]); /* the neighbour */
    assert_int_equal(settle(&r, 1), INFER_OK);
    for (int i = 0; i < 2; i++)
        r.ops->buf_free(r.h[i], b[i]);
    rig_close(&r);
    rig_open(&r, "");
    b[0] = buffer(&r, 0, BYTES);
    launch(&r, 0, b[0]);
    assert_int_equal(settle(&r, 0), INFER_OK);
    r.ops->buf_free(r.h[0], b[0]);
    rig_close(&r);
}

/* A queue that waits for a device that is lost fails itself, is destroyed without hanging, and leaves its device well.
 */
static void test_far_wait_fails(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, "lose=1");
    infer_buffer *b[2] = {buffer(&r, 0, BYTES), buffer(&r, 1, BYTES)};
    launch(&r, 0, b[0]);
    infer_status s = r.ops->queue_signal(r.q[0], r.tl[0], 1);
    assert_true(s == INFER_OK || s == INFER_E_DEVICE_LOST);
    s = r.ops->queue_wait(r.q[1], r.tl[0], 1);
    if (s == INFER_OK) { /* not known yet, as a rule */
        const infer_range all = {b[1], 0, BYTES};
        assert_int_equal(r.ops->cmd_fill(r.q[1], &all, 1, 1), INFER_OK);
        s = settle(&r, 1); /* nobody else asks the other device */
        assert_int_equal(s, INFER_E_QUEUE);
        assert_int_equal(r.ops->tl_wait(r.tl[0], 1, 20ull * SECOND), INFER_E_DEVICE_LOST);
        assert_int_equal(r.ops->queue_signal(r.q[1], r.tl[1], 9), INFER_E_QUEUE);
    } else
        assert_int_equal(s, INFER_E_DEVICE_LOST);
    r.ops->queue_destroy(r.h[1], r.q[1]);
    r.ops->tl_destroy(r.h[1], r.tl[1]);
    r.value[1] = 0;
    assert_int_equal(r.ops->queue_create(r.h[1], INFER_QUEUE_COMPUTE, &r.q[1]), INFER_OK);
    assert_int_equal(r.ops->tl_create(r.h[1], &r.tl[1]), INFER_OK);
    launch(&r, 1, b[1]);
    assert_int_equal(settle(&r, 1), INFER_OK);
    for (int i = 0; i < 2; i++)
        r.ops->buf_free(r.h[i], b[i]);
    rig_close(&r);
}

/* A queue is destroyed while it waits for a signal of the host's that was given up. */
static void test_gate_given_up(void **state)
{
    (void)state;
    rig r;
    infer_timeline *gate = NULL;
    uint64_t v = 0;
    rig_open(&r, "");
    infer_buffer *b = buffer(&r, 0, BYTES);
    assert_int_equal(r.ops->tl_create(r.h[0], &gate), INFER_OK);
    assert_int_equal(r.ops->tl_signal_host(gate, 3), INFER_OK);
    assert_int_equal(r.ops->queue_wait(r.q[0], gate, 7), INFER_OK);
    launch(&r, 0, b);
    assert_int_equal(r.ops->queue_signal(r.q[0], r.tl[0], ++r.value[0]), INFER_OK);
    assert_int_equal(r.ops->tl_wait(r.tl[0], 1, 3000000), INFER_PENDING);
    r.ops->queue_destroy(r.h[0], r.q[0]);
    r.q[0] = NULL;
    assert_int_equal(r.ops->tl_wait(gate, 3, 0), INFER_OK); /* and no further */
    assert_int_equal(r.ops->tl_wait(gate, 7, 0), INFER_E_QUEUE);
    assert_int_equal(r.ops->tl_query(gate, &v), INFER_E_QUEUE);
    r.ops->tl_destroy(r.h[0], gate);
    r.ops->buf_free(r.h[0], b);
    rig_close(&r);
}

/* More waits than a queue keeps are the core's to wait for; reached ones cost none. */
static void test_many_waits(void **state)
{
    (void)state;
    rig r;
    infer_timeline *gate[CUDA_MAX_WAITS + 1];
    rig_open(&r, "");
    for (int i = 0; i <= CUDA_MAX_WAITS; i++)
        assert_int_equal(r.ops->tl_create(r.h[1], &gate[i]), INFER_OK);
    for (int i = 0; i < CUDA_MAX_WAITS; i++)
        assert_int_equal(r.ops->queue_wait(r.q[0], gate[i], 1), INFER_OK);
    assert_int_equal(r.ops->queue_wait(r.q[0], gate[CUDA_MAX_WAITS], 1), INFER_E_UNSUPPORTED);
    for (int i = 0; i < CUDA_MAX_WAITS; i++)
        assert_int_equal(r.ops->tl_signal_host(gate[i], 1), INFER_OK);
    assert_int_equal(r.ops->queue_wait(r.q[0], gate[CUDA_MAX_WAITS], 1), INFER_OK);
    assert_int_equal(r.ops->tl_signal_host(gate[CUDA_MAX_WAITS], 1), INFER_OK);
    assert_int_equal(settle(&r, 0), INFER_OK);
    for (int i = 0; i <= CUDA_MAX_WAITS; i++)
        r.ops->tl_destroy(r.h[1], gate[i]);
    rig_close(&r);
}

/* The backend's own functions, with nothing of the core between. */
static infer_backend_ops table(infer_hal *hal, const infer_host **host)
{
    infer_hal_backend_info info;
    infer_abi_range range = {.struct_size = sizeof(range), .minor_min = INFER_ABI_MINOR, .minor_max = INFER_ABI_MINOR};
    infer_error e = {0};
    assert_int_equal(infer_hal_probe(hal, &e), INFER_OK);
    infer_hal_backend(hal, infer_hal_n_backends(hal) - 1, &info);
    *host = info.host;
    return *infer_plugin_query(info.host, &range)->ops;
}

/* Every kernel of the list is in the emulation: without its kernel an op may be answered NO, or go another way. */
static void test_kernels(void **state)
{
    (void)state;
    static const char *const names[CUDA_N_KERNELS] = {
#define X(file, kernel)     #kernel,
#define ALL(file, id, name) CUDA_FORMAT_KERNELS(X, file, name)
        CUDA_PLAIN_KERNELS(X) CUDA_FORMATS(ALL)
#undef ALL
#undef X
    };
    infer_hal *hal = hal_make();
    infer_device *dev = NULL;
    const infer_host *host;
    const infer_backend_ops t = table(hal, &host);
    assert_int_equal(t.dev_open(host, 0, &dev), INFER_OK);
    for (int i = 0; i < CUDA_N_KERNELS; i++)
        if (!dev->kernels[i])
            fail_msg("tests/simt/kernels_*.cpp do not have %s", names[i]);
    t.dev_close(dev);
    infer_hal_destroy(hal);
}

/* The n-th allocation that the driver is asked for is refused, until none is. What was made before is given back: the
 * driver looks when its context ends. */
static void test_refused(void **state)
{
    (void)state;
    infer_hal *hal = hal_make();
    const infer_host *host;
    const infer_backend_ops t = table(hal, &host);
    int refused = 1, n = 0;
    while (refused) {
        char how[32];
        infer_device *dev = NULL;
        infer_queue *q = NULL;
        infer_timeline *tl = NULL;
        infer_buffer *b = NULL;
        snprintf(how, sizeof(how), "alloc=%d", ++n);
        assert_true(n < 30);
        configure(how);
        infer_status s = t.dev_open(host, 0, &dev);
        s = s ? s : t.queue_create(dev, INFER_QUEUE_COPY, &q);
        s = s ? s : t.tl_create(dev, &tl);
        s = s ? s : t.buf_alloc(dev, 0, 100, &b);
        refused = s != INFER_OK;
        if (refused)
            assert_int_equal(s, INFER_E_NO_MEMORY);
        if (q)
            t.queue_destroy(dev, q);
        if (b)
            t.buf_free(dev, b);
        if (tl)
            t.tl_destroy(dev, tl);
        if (dev)
            t.dev_close(dev);
    }
    assert_true(n > 4);
    configure("");
    infer_hal_destroy(hal);
}

/* ---- Packed weights ------------------------------------------------------------------------------------------------
 */

static infer_weight_desc weight_desc(infer_format f, int64_t n, int64_t k)
{
    return (infer_weight_desc){.struct_size = sizeof(infer_weight_desc),
                               .quant.format = f,
                               .rank = 2,
                               .use = INFER_OP_MATMUL,
                               .shape = {n, k}};
}

static infer_weight_plan weight_plan(const rig *r, const infer_weight_desc *d, infer_status want)
{
    infer_weight_plan p = {.struct_size = sizeof(p)};
    assert_int_equal(r->ops->weight_plan(r->h[0], d, &p), want);
    return p;
}

/* A weight that stays as it is, of that many bytes. */
static void stays(const rig *r, const infer_weight_desc *d, uint64_t bytes)
{
    infer_weight_plan p = weight_plan(r, d, INFER_OK);
    assert_int_equal(p.layout, INFER_LAYOUT_CANONICAL);
    assert_int_equal(p.flags, INFER_WEIGHT_STREAM);
    assert_int_equal(p.packed_bytes, bytes);
}

/* The image by pieces of that many bytes. */
static uint8_t *image_of(rig *r, const infer_weight_desc *d, const uint8_t *rows, uint64_t bytes, uint64_t piece,
                         uint64_t *image_bytes)
{
    infer_weight *w = NULL;
    infer_weight_plan p = weight_plan(r, d, INFER_OK);
    infer_buffer *b = buffer(r, 0, p.packed_bytes + 512);
    const infer_range all = {b, 0, p.packed_bytes + 512}, dst = {b, 256, p.packed_bytes};
    uint8_t *out = malloc(p.packed_bytes + 512);
    assert_non_null(out);
    assert_int_equal(r->ops->cmd_fill(r->q[0], &all, 0x6B, 1), INFER_OK);
    assert_int_equal(settle(r, 0), INFER_OK);
    assert_int_equal(r->ops->weight_begin(r->h[0], d, &p, &dst, &w), INFER_OK);
    for (uint64_t at = 0; at < bytes; at += piece) {
        uint64_t n = bytes - at < piece ? bytes - at : piece;
        uint8_t *own = malloc(n); /* read during the call */
        assert_non_null(own);
        memcpy(own, rows + at, n);
        assert_int_equal(r->ops->weight_append(w, 0, own, n), INFER_OK);
        memset(own, 0, n);
        free(own);
    }
    assert_int_equal(r->ops->weight_finish(w), INFER_OK);
    r->ops->weight_destroy(w);
    get(r, 0, b, out, p.packed_bytes + 512);
    for (int i = 0; i < 256; i++)
        assert_true(out[i] == 0x6B && out[256 + p.packed_bytes + (uint64_t)i] == 0x6B);
    memmove(out, out + 256, p.packed_bytes);
    r->ops->buf_free(r->h[0], b);
    *image_bytes = p.packed_bytes;
    return out;
}

/* Pieces that end anywhere give the same image; of more than one batch too. What the kernels make of rows is
 * tests/simt's to show. */
static void test_weight_pieces(void **state)
{
    (void)state;
    static const struct {
        infer_format f;
        int64_t n, k;
        uint64_t pieces[3];
    } cases[] = {
        {INFER_FMT_BF16, 37, 72, {1, 7, 4097}},           {INFER_FMT_F16, 5, 333, {1, 7, 4097}},
        {INFER_FMT_F8_E4M3, 33, 131, {1, 7, 4097}},       {INFER_FMT_Q8_0, 37, 96, {1, 7, 4097}},
        {INFER_FMT_Q4_0, 16, 96, {1, 7, 4097}},           {INFER_FMT_Q4_1, 50, 32, {1, 7, 4097}},
        {INFER_FMT_Q4_K, 37, 512, {1, 7, 4097}},          {INFER_FMT_Q6_K, 17, 256, {1, 7, 4097}},
        {INFER_FMT_BF16, 100, 24576, {4097, 1 << 20, 1}}, /* five batches of 2 MiB */
        {INFER_FMT_Q8_0, 300, 12288, {4097, 40000, 1}},   {INFER_FMT_Q5_K, 3, 512, {1, 7, 4097}}, /* as it is */
        {INFER_FMT_BF16, 18, 81920, {4097, 40000, 1}}, /* rows that no block can hold */
        {INFER_FMT_Q5_K, 7, 256, {1, 7, 4097}},           {INFER_FMT_F32, 1, 1234567, {4097, 1 << 20, 1}},
    };
    rig r;
    packed = "1";
    rig_open(&r, "");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t bytes, size = 0, x = i;
        infer_weight_desc d = weight_desc(cases[i].f, cases[i].n, cases[i].k);
        assert_int_equal(infer_format_bytes(cases[i].f, (uint64_t)(cases[i].n * cases[i].k), &bytes), INFER_OK);
        uint8_t *rows = malloc(bytes);
        assert_non_null(rows);
        for (uint64_t b = 0; b < bytes; b++)
            rows[b] = (uint8_t)((x = x * 6364136223846793005u + 1442695040888963407u) >> 56);
        uint8_t *whole = image_of(&r, &d, rows, bytes, bytes, &size);
        assert_int_equal(size, i < 10 ? packed_bytes(cases[i].f, cases[i].n, cases[i].k) : bytes);
        assert_true(i < 10 || !memcmp(whole, rows, bytes));
        for (int p = 0; p < 3; p++) {
            if (cases[i].pieces[p] == 1 && bytes > 100000)
                continue;
            uint8_t *cut = image_of(&r, &d, rows, bytes, cases[i].pieces[p], &size);
            if (memcmp(whole, cut, size))
                fail_msg("case %zu: pieces of %llu bytes give another image", i,
                         (unsigned long long)cases[i].pieces[p]);
            free(cut);
        }
        free(whole);
        free(rows);
    }
    rig_close(&r);
    packed = NULL;
}

typedef struct streamer {
    pthread_t thread;
    rig *r;
    infer_buffer *b;
    infer_weight_desc d;
    const uint8_t *rows;
    uint64_t bytes, size;
    infer_status status;
} streamer;

static void *stream_some(void *arg)
{
    enum { TIMES = 5, PIECE = 100001 };
    streamer *s = arg;
    const infer_backend_ops *ops = s->r->ops;
    infer_weight_plan p = {.struct_size = sizeof(p)};
    for (int i = 0; i < TIMES && !s->status; i++) {
        infer_weight *w = NULL;
        s->status = ops->weight_plan(s->r->h[0], &s->d, &p);
        const infer_range dst = {s->b, 0, p.packed_bytes};
        s->size = p.packed_bytes;
        if (!s->status)
            s->status = ops->weight_begin(s->r->h[0], &s->d, &p, &dst, &w);
        for (uint64_t at = 0; at < s->bytes && !s->status; at += PIECE)
            s->status = ops->weight_append(w, 0, s->rows + at, s->bytes - at < PIECE ? s->bytes - at : PIECE);
        if (!s->status)
            s->status = ops->weight_finish(w);
        if (w)
            ops->weight_destroy(w);
    }
    return NULL;
}

/* Several streams at once, packed and as they are: each its own image. */
static void test_weight_threads(void **state)
{
    (void)state;
    enum { N = 4, ROWS_OF = 48, K = 4096 };
    static uint8_t rows[ROWS_OF * K * 4];
    static const infer_format f[N] = {INFER_FMT_BF16, INFER_FMT_F32, INFER_FMT_Q8_0, INFER_FMT_Q4_K};
    rig r;
    streamer s[N];
    packed = "1";
    rig_open(&r, "");
    for (size_t i = 0; i < sizeof(rows); i++)
        rows[i] = (uint8_t)(i * 2654435761u >> 13);
    for (int i = 0; i < N; i++) {
        s[i] = (streamer){.r = &r, .d = weight_desc(f[i], ROWS_OF, K), .rows = rows, .b = buffer(&r, 0, sizeof(rows))};
        assert_int_equal(infer_format_bytes(f[i], ROWS_OF * K, &s[i].bytes), INFER_OK);
    }
    for (int i = 0; i < N; i++)
        assert_int_equal(pthread_create(&s[i].thread, NULL, stream_some, &s[i]), 0);
    for (int i = 0; i < N; i++)
        assert_int_equal(pthread_join(s[i].thread, NULL), 0);
    for (int i = 0; i < N; i++) {
        uint64_t size;
        assert_int_equal(s[i].status, INFER_OK);
        uint8_t *want = image_of(&r, &s[i].d, rows, s[i].bytes, s[i].bytes, &size), *got = malloc(size);
        assert_non_null(got);
        assert_int_equal(s[i].size, size);
        get(&r, 0, s[i].b, got, size);
        assert_memory_equal(got, want, size);
        r.ops->buf_free(r.h[0], s[i].b);
        free(want);
        free(got);
    }
    rig_close(&r);
    packed = NULL;
}

/* An op of n_in operands and a result. */
static infer_op_desc op_desc(uint32_t op, const infer_tensor_desc *t, uint32_t n_in)
{
    return (infer_op_desc){.struct_size = sizeof(infer_op_desc),
                           .op = op,
                           .rows_from = INFER_ROWS_STATIC,
                           .rows_mul = 1,
                           .n_in = n_in,
                           .n_out = 1,
                           .tensor_size = sizeof(*t),
                           .tensors = t,
                           .epilogue_size = sizeof(infer_epilogue)};
}

/* What stays canonical; streams that end early, late or in the middle; an op that cannot read what is packed. */
static void test_weight_refused(void **state)
{
    (void)state;
    static const uint8_t zero[3000];
    rig r;
    packed = "0";
    rig_open(&r, "");
    infer_weight_desc d = weight_desc(INFER_FMT_Q8_0, 20, 64);
    stays(&r, &d, 20 * 68); /* by the setting */
    rig_close(&r);
    packed = "1";
    rig_open(&r, "");
    infer_weight_plan p = weight_plan(&r, &d, INFER_OK);
    d.use = INFER_OP_GATHER_ROWS;
    stays(&r, &d, 20 * 68);
    d = weight_desc(INFER_FMT_Q8_0, 3, 20);
    d.use = INFER_OP_QKV;
    d.rank = 3;
    d.shape[2] = 64;
    stays(&r, &d, 60 * 68);
    d.shard = (infer_shard){.axis = 2, .first = 1, .count = 2, .of = 3};
    stays(&r, &d, 40 * 68);
    d = weight_desc(INFER_FMT_Q8_0, 20, 80);
    weight_plan(&r, &d, INFER_E_UNSUPPORTED);
    d = weight_desc(INFER_FMT_Q5_K, 20, 256);
    stays(&r, &d, 20 * 176);
    d = weight_desc(INFER_FMT_F8_E4M3, 20,
                    64); /* scales behind the panels, one a row, also where there is one in all */
    d.quant.scale_format = INFER_FMT_F32;
    p = weight_plan(&r, &d, INFER_OK);
    assert_int_equal(p.packed_bytes, packed_bytes(INFER_FMT_F8_E4M3, 20, 64) + 20 * 4);
    d.quant.group_n = 1;
    p = weight_plan(&r, &d, INFER_OK);
    assert_int_equal(p.packed_bytes, packed_bytes(INFER_FMT_F8_E4M3, 20, 64) + 20 * 4);
    d.quant.group_n = d.quant.group_k = 128;
    weight_plan(&r, &d, INFER_E_UNSUPPORTED);
    d.quant = (infer_quant){.format = INFER_FMT_F8_E4M3, .scale_format = INFER_FMT_F32, .group_n = 1};
    d.use = INFER_OP_GATHER_ROWS;
    weight_plan(&r, &d, INFER_E_UNSUPPORTED);
    d = weight_desc(INFER_FMT_U4, 20, 300);
    weight_plan(&r, &d, INFER_E_UNSUPPORTED);
    d.quant = (infer_quant){INFER_FMT_U4, INFER_FMT_F16, INFER_FMT_U4, 0, 1, 128};
    p = weight_plan(&r, &d, INFER_OK);
    assert_int_equal(p.packed_bytes, packed_bytes(INFER_FMT_U4, 20, 300));
    const infer_quant others[] = {{INFER_FMT_U4, INFER_FMT_F16, 0, 16, 1, 128},
                                  {INFER_FMT_U4, INFER_FMT_BF16, 0, 8, 1, 128},
                                  {INFER_FMT_U4, INFER_FMT_F16, 0, 8, 1, 64},
                                  {INFER_FMT_I8, INFER_FMT_F32, 0, 0, 1, 0}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        d.quant = others[i];
        weight_plan(&r, &d, INFER_E_UNSUPPORTED);
    }
    d = weight_desc(INFER_FMT_BF16, (int64_t)1 << 31, 64);
    stays(&r, &d, (uint64_t)1 << 38);
    d = weight_desc(INFER_FMT_BF16, (int64_t)1 << 58, 64);
    weight_plan(&r, &d, INFER_E_UNSUPPORTED);
    d = weight_desc(INFER_FMT_Q8_0, 80, 128);
    d.shard = (infer_shard){.axis = 1, .first = 1, .count = 1, .of = 2};
    p = weight_plan(&r, &d, INFER_OK);
    assert_int_equal(p.packed_bytes, packed_bytes(INFER_FMT_Q8_0, 80, 64));

    d = weight_desc(INFER_FMT_Q8_0, 20, 64);
    p = weight_plan(&r, &d, INFER_OK);
    infer_buffer *b = buffer(&r, 0, p.packed_bytes);
    infer_range dst = {b, 0, p.packed_bytes};
    infer_weight *w = NULL;
    assert_int_equal(r.ops->weight_begin(r.h[0], &d, &p, &dst, &w), INFER_OK);
    assert_int_equal(r.ops->weight_append(w, 0, zero, 1000), INFER_OK);
    assert_int_equal(r.ops->weight_finish(w), INFER_E_INVALID); /* of 1360 */
    assert_int_equal(r.ops->weight_append(w, 0, zero, 361), INFER_E_INVALID);
    assert_int_equal(r.ops->weight_append(w, 1, zero, 1), INFER_E_INVALID);
    assert_int_equal(r.ops->weight_append(w, 0, zero, 360), INFER_OK);
    r.ops->weight_destroy(w);
    r.ops->buf_free(r.h[0], b);

    /* planes come in order, each whole, and all of them */
    d = weight_desc(INFER_FMT_U4, 20, 300);
    d.quant = (infer_quant){INFER_FMT_U4, INFER_FMT_F16, INFER_FMT_U4, 0, 1, 128};
    p = weight_plan(&r, &d, INFER_OK);
    b = buffer(&r, 0, p.packed_bytes);
    dst = (infer_range){b, 0, p.packed_bytes};
    assert_int_equal(r.ops->weight_begin(r.h[0], &d, &p, &dst, &w), INFER_OK);
    assert_int_equal(r.ops->weight_append(w, 1, zero, 1), INFER_E_INVALID);
    assert_int_equal(r.ops->weight_append(w, 0, zero, 20 * 150 - 1), INFER_OK);
    assert_int_equal(r.ops->weight_append(w, 1, zero, 1), INFER_E_INVALID);
    assert_int_equal(r.ops->weight_append(w, 0, zero, 1), INFER_OK);
    assert_int_equal(r.ops->weight_append(w, 2, zero, 1), INFER_E_INVALID);
    assert_int_equal(r.ops->weight_finish(w), INFER_E_INVALID);
    assert_int_equal(r.ops->weight_append(w, 1, zero, 20 * 3 * 2), INFER_OK);
    assert_int_equal(r.ops->weight_append(w, 1, zero, 1), INFER_E_INVALID);
    assert_int_equal(r.ops->weight_finish(w), INFER_E_INVALID);
    assert_int_equal(r.ops->weight_append(w, 2, zero, 31), INFER_E_INVALID);
    assert_int_equal(r.ops->weight_append(w, 2, zero, 30), INFER_OK);
    assert_int_equal(r.ops->weight_append(w, 3, zero, 1), INFER_E_INVALID);
    assert_int_equal(r.ops->weight_finish(w), INFER_OK);
    r.ops->weight_destroy(w);
    r.ops->buf_free(r.h[0], b);

    d = weight_desc(INFER_FMT_Q8_0, 20, 64);
    p = weight_plan(&r, &d, INFER_OK);
    b = buffer(&r, 0, p.packed_bytes);
    dst = (infer_range){b, 0, p.packed_bytes};
    dst.size--;
    assert_int_equal(r.ops->weight_begin(r.h[0], &d, &p, &dst, &w), INFER_E_INVALID);
    r.ops->buf_free(r.h[0], b);

    infer_tensor_desc t[4] = {infer_tensor_make(INFER_FMT_F32, 2, 3, 64, 1, 1),
                              infer_tensor_make(INFER_FMT_Q8_0, 2, 20, 64, 1, 1),
                              {.flags = INFER_TENSOR_ABSENT},
                              infer_tensor_make(INFER_FMT_F32, 2, 3, 20, 1, 1)};
    infer_op_desc op = op_desc(INFER_OP_MATMUL, t, 3);
    infer_op_answer a = {.struct_size = sizeof(a)};
    assert_int_equal(r.ops->op_query(r.h[0], &op, sizeof(op), 1, &a, sizeof(a)), INFER_OK);
    assert_int_equal(a.level, INFER_LEVEL_NATIVE);
    t[1].layout = CUDA_LAYOUT_PACKED + 1;
    assert_int_equal(r.ops->op_query(r.h[0], &op, sizeof(op), 1, &a, sizeof(a)), INFER_OK);
    assert_int_equal(a.level, INFER_LEVEL_NO);
    assert_int_equal(a.why, INFER_WHY_LAYOUT);
    assert_int_equal(a.which, 1);
    t[1].layout = INFER_LAYOUT_CANONICAL;
    t[0].layout = CUDA_LAYOUT_PACKED;
    assert_int_equal(r.ops->op_query(r.h[0], &op, sizeof(op), 1, &a, sizeof(a)), INFER_OK);
    assert_int_equal(a.why, INFER_WHY_LAYOUT);
    assert_int_equal(a.which, 0);
    rig_close(&r);
    packed = NULL;
}

/* Kernels count a vector's bytes by 32 bits. */
static void test_long_vectors(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, "");
    for (int64_t n = (1 << 29) - 1; n <= 1 << 29; n++) {
        infer_tensor_desc t[2] = {infer_tensor_make(INFER_FMT_F32, 2, 1, n, 1, 1),
                                  infer_tensor_make(INFER_FMT_F32, 2, 1, n, 1, 1)};
        infer_op_desc op = op_desc(INFER_OP_COPY, t, 1);
        infer_op_answer a = {.struct_size = sizeof(a)};
        assert_int_equal(r.ops->op_query(r.h[0], &op, sizeof(op), 1, &a, sizeof(a)), INFER_OK);
        assert_int_equal(a.level, n < 1 << 29 ? INFER_LEVEL_NATIVE : INFER_LEVEL_NO);
    }
    rig_close(&r);
}

/* A refused allocation in the middle, and a device that is lost under a weight. */
static void test_weight_failures(void **state)
{
    (void)state;
    static const uint8_t zero[1360];
    const infer_weight_desc d = weight_desc(INFER_FMT_Q8_0, 20, 64);
    packed = "1";
    for (int n = 1; n <= 5; n++) {
        rig r;
        char how[32];
        infer_weight *w = NULL;
        rig_open(&r, "");
        infer_weight_plan p = weight_plan(&r, &d, INFER_OK);
        infer_buffer *b = buffer(&r, 0, p.packed_bytes);
        const infer_range dst = {b, 0, p.packed_bytes};
        snprintf(how, sizeof(how), n < 5 ? "alloc=%d" : "lose=1", n);
        configure(how);
        infer_status s = r.ops->weight_begin(r.h[0], &d, &p, &dst, &w);
        if (n < 5) {
            assert_int_equal(s, INFER_E_NO_MEMORY);
            configure("");
            s = r.ops->weight_begin(r.h[0], &d, &p, &dst, &w);
        }
        assert_int_equal(s, INFER_OK);
        s = r.ops->weight_append(w, 0, zero, sizeof(zero));
        s = s ? s : r.ops->weight_finish(w);
        assert_int_equal(s, n < 5 ? INFER_OK : INFER_E_DEVICE_LOST);
        r.ops->weight_destroy(w);
        r.ops->buf_free(r.h[0], b);
        rig_close(&r);
    }
    packed = NULL;
}

int main(void)
{
    const char *build = getenv("INFER_BUILDDIR");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernels),         cmocka_unit_test(test_program),
        cmocka_unit_test(test_program_rebuild), cmocka_unit_test(test_big_pitched),
        cmocka_unit_test(test_lost_device),     cmocka_unit_test(test_far_wait_fails),
        cmocka_unit_test(test_gate_given_up),   cmocka_unit_test(test_many_waits),
        cmocka_unit_test(test_refused),         cmocka_unit_test(test_weight_pieces),
        cmocka_unit_test(test_weight_threads),  cmocka_unit_test(test_weight_refused),
        cmocka_unit_test(test_weight_failures), cmocka_unit_test(test_long_vectors),
    };
    snprintf(driver, sizeof(driver), "%s/tests/plugins/fakecuda/.libs/libfakecuda.so", build ? build : ".");
    void *lib = dlopen(driver, RTLD_NOW);
    if (!lib) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    void *a = dlsym(lib, "fakecuda_configure"), *b = dlsym(lib, "fakecuda_counts");
    memcpy(&configure, &a, sizeof(configure));
    memcpy(&counts_of, &b, sizeof(counts_of));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
