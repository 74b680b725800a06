/*
 * The simulated accelerator where the conformance kit does not look: that nothing can reach its memory, what its clock
 * says, its limits and settings.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include "unit/unit.h"

#include <errno.h>
#include <math.h>
#include <unistd.h>

#include "hal/hal.h"
#include "ops/ops.h"
#include "plugins/sim/sim.h"

const infer_plugin_desc *infer_sim_query(const infer_host *host, const infer_abi_range *range);

typedef struct setting {
    const char *key, *value;
} setting;

static const setting *settings; /* ended by a NULL key */

static const char *config(void *user, const char *backend, const char *key)
{
    (void)user;
    (void)backend;
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
    if (infer_hal_create(&o, &h, &e) || infer_hal_add(h, infer_sim_query, "in process", &e))
        fail_msg("%s", e.text);
    return h;
}

static infer_hal_dev *dev_open(infer_hal *h, const char *id)
{
    infer_error e = {0};
    infer_hal_dev *d = NULL;
    if (infer_hal_open(h, id, &d, &e))
        fail_msg("%s", e.text);
    return d;
}

/* Names are those of the core's table. */
static void test_names(void **state)
{
    (void)state;
    uint32_t n = 0;
    for (infer_op_id id = 0; id < INFER_OP_COUNT; id++) {
        const infer_op_info *info = infer_op_get(id);
        infer_op_id named = info ? sim_op_by_name(info->name, strlen(info->name)) : INFER_OP_NONE;
        n += named != INFER_OP_NONE;
        if (named != INFER_OP_NONE)
            assert_int_equal(named, id);
    }
    assert_true(n >= 30);
    assert_int_equal(sim_op_by_name("cheese", 6), INFER_OP_NONE);
    assert_int_equal(sim_op_by_name("ad", 2), INFER_OP_NONE);
}

/* A handle is no address of anything: the kernel refuses to read it, as a processor would. */
static void test_memory_is_its_own(void **state)
{
    (void)state;
    infer_hal *h = hal_make(NULL);
    infer_hal_dev *d = dev_open(h, "sim0");
    infer_hal_buf b = {0};
    infer_error e = {0};
    int fds[2];
    assert_int_equal(infer_hal_buf_alloc(d, 8192, INFER_LEDGER_KV, &b, &e), INFER_OK);
    assert_int_equal(pipe(fds), 0);
    for (uintptr_t at = 0; at < 8192; at += 4096) {
        errno = 0;
        assert_int_equal(write(fds[1], (const void *)((uintptr_t)b.h + at), 1), -1);
        assert_int_equal(errno, EFAULT);
    }
    close(fds[0]);
    close(fds[1]);
    assert_false(infer_hal_dev_props(d)->flags & INFER_PROP_HOST_MEMORY);
    infer_hal_buf_free(&b);
    infer_hal_close(d);
    infer_hal_destroy(h);
}

/* A buffer means nothing to the device next to its own. */
static void test_devices_are_apart(void **state)
{
    (void)state;
    static const setting two[] = {{"devices", "2"}, {NULL, NULL}};
    infer_hal *h = hal_make(two);
    infer_hal_dev *d[2] = {dev_open(h, "sim0"), dev_open(h, "sim1")};
    const infer_backend_ops *ops = infer_hal_dev_ops(d[0]);
    infer_buffer *b[2] = {NULL, NULL};
    infer_queue *q = NULL;
    for (int i = 0; i < 2; i++)
        assert_int_equal(ops->buf_alloc(infer_hal_dev_handle(d[i]), 0, 4096, &b[i]), INFER_OK);
    assert_int_equal(ops->queue_create(infer_hal_dev_handle(d[0]), INFER_QUEUE_COPY, &q), INFER_OK);
    infer_copy_end mine = {b[0], NULL}, other = {b[1], NULL}, wild = {(infer_buffer *)(void *)&mine, NULL};
    infer_copy_region r = {.bytes = 16, .rows = 1};
    assert_int_equal(ops->cmd_copy(q, &mine, &other, &r, 1), INFER_E_INVALID);
    assert_int_equal(ops->cmd_copy(q, &other, &mine, &r, 1), INFER_E_INVALID);
    assert_int_equal(ops->cmd_copy(q, &mine, &wild, &r, 1), INFER_E_INVALID);
    r.src_offset = 4090;
    r.dst_offset = 0;
    assert_int_equal(ops->cmd_copy(q, &mine, &mine, &r, 1), INFER_E_INVALID);
    r.src_offset = UINT64_MAX - 4;
    assert_int_equal(ops->cmd_copy(q, &mine, &mine, &r, 1), INFER_E_INVALID);
    r = (infer_copy_region){.bytes = 16, .rows = 3, .src_pitch = UINT64_MAX / 2, .dst_pitch = 16};
    assert_int_equal(ops->cmd_copy(q, &mine, &mine, &r, 1), INFER_E_INVALID);
    ops->queue_destroy(infer_hal_dev_handle(d[0]), q);
    for (int i = 0; i < 2; i++)
        ops->buf_free(infer_hal_dev_handle(d[i]), b[i]);
    infer_hal_close(d[0]);
    infer_hal_close(d[1]);
    infer_hal_destroy(h);
}

static void test_heap(void **state)
{
    (void)state;
    static const setting small[] = {{"heap_bytes", "1M"}, {NULL, NULL}};
    infer_hal *h = hal_make(small);
    infer_hal_dev *d = dev_open(h, "sim0");
    const infer_backend_ops *ops = infer_hal_dev_ops(d);
    infer_device *dev = infer_hal_dev_handle(d);
    infer_buffer *a = NULL, *b = NULL;
    assert_int_equal(ops->buf_alloc(dev, 0, (1 << 20) - 256, &a), INFER_OK);
    assert_int_equal(ops->buf_alloc(dev, 0, 257, &b), INFER_E_NO_MEMORY);
    assert_int_equal(ops->buf_alloc(dev, 0, 256, &b), INFER_OK);
    infer_heap_stats st = {.struct_size = sizeof(st)};
    assert_int_equal(ops->dev_heap_stats(dev, 0, &st), INFER_OK);
    assert_int_equal(st.ours.value, 1 << 20);
    assert_int_equal(st.largest_free.value, 0);
    ops->buf_free(dev, a);
    ops->buf_free(dev, b);
    infer_hal_close(d);
    infer_hal_destroy(h);
}

/* ---- Weights in a layout of its own ----------------------------------------------------------------------- */

/* A product's matrix comes as columns, also a part of it; what other ops read is the core's, as is all when it is
 * switched off. */
static void test_private_weights(void **state)
{
    (void)state;
    static const setting off[] = {{"private_weights", "0"}, {NULL, NULL}};
    static const struct {
        infer_op_id use;
        infer_shard shard;
        const setting *set;
        uint32_t layout;
        uint64_t n;
        uint8_t want[12]; /* of the 3 x 4 bytes 0, 1, 2, … */
    } cases[] = {
        {INFER_OP_MATMUL, {0}, NULL, SIM_LAYOUT, 12, {0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}},
        {INFER_OP_MATMUL, {0, 1, 2, 3}, NULL, SIM_LAYOUT, 8, {4, 8, 5, 9, 6, 10, 7, 11}},
        {INFER_OP_MATMUL, {1, 1, 1, 2}, NULL, SIM_LAYOUT, 6, {2, 6, 10, 3, 7, 11}},
        {INFER_OP_GATHER_ROWS, {0}, NULL, INFER_LAYOUT_CANONICAL, 12, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}},
        {INFER_OP_MATMUL, {0}, off, INFER_LAYOUT_CANONICAL, 12, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}},
    };
    uint8_t source[12], got[12];
    const void *planes[3] = {source, NULL, NULL};
    const uint64_t bytes[3] = {12, 0, 0};
    for (uint8_t i = 0; i < 12; i++)
        source[i] = i;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        infer_hal *h = hal_make(cases[i].set);
        infer_hal_dev *d = dev_open(h, "sim0");
        infer_hal_buf b = {0};
        infer_error e = {0};
        infer_weight_plan plan = {.struct_size = sizeof(plan)};
        infer_weight_desc desc = {.struct_size = sizeof(desc),
                                  .quant = {.format = INFER_FMT_U8},
                                  .rank = 2,
                                  .use = cases[i].use,
                                  .shape = {3, 4, 1, 1},
                                  .shard = cases[i].shard};
        assert_int_equal(infer_hal_weight_plan(d, &desc, &plan, &e), INFER_OK);
        assert_int_equal(plan.layout, cases[i].layout);
        assert_int_equal(plan.packed_bytes, cases[i].n);
        assert_int_equal(infer_hal_buf_alloc(d, 12, INFER_LEDGER_WEIGHTS, &b, &e), INFER_OK);
        infer_range dst = {b.h, 0, cases[i].n};
        assert_int_equal(infer_hal_weight_load(d, &desc, &plan, &dst, planes, bytes, &e), INFER_OK);
        assert_int_equal(infer_hal_read(d, &dst, got, cases[i].n, &e), INFER_OK);
        assert_memory_equal(got, cases[i].want, cases[i].n);
        infer_hal_buf_free(&b);
        infer_hal_close(d);
        infer_hal_destroy(h);
    }
}

/* A stream takes the bytes of its weight, no fewer and no more. */
static void test_weight_stream(void **state)
{
    (void)state;
    infer_hal *h = hal_make(NULL);
    infer_hal_dev *d = dev_open(h, "sim0");
    const infer_backend_ops *ops = infer_hal_dev_ops(d);
    infer_buffer *b = NULL;
    infer_weight *w = NULL;
    uint8_t data[32] = {0};
    infer_weight_plan plan = {.struct_size = sizeof(plan)};
    infer_weight_desc desc = {.struct_size = sizeof(desc),
                              .quant = {.format = INFER_FMT_F32},
                              .rank = 2,
                              .use = INFER_OP_MATMUL,
                              .shape = {2, 3, 1, 1}};
    assert_int_equal(ops->weight_plan(infer_hal_dev_handle(d), &desc, &plan), INFER_OK);
    assert_int_equal(ops->buf_alloc(infer_hal_dev_handle(d), 0, 24, &b), INFER_OK);
    infer_range dst = {b, 0, 24}, low = {b, 8, 16};
    assert_int_equal(ops->weight_begin(infer_hal_dev_handle(d), &desc, &plan, &low, &w), INFER_E_INVALID);
    assert_int_equal(ops->weight_begin(infer_hal_dev_handle(d), &desc, &plan, &dst, &w), INFER_OK);
    assert_int_equal(ops->weight_append(w, 0, data, 20), INFER_OK);
    assert_int_equal(ops->weight_append(w, 0, data, 5), INFER_E_INVALID);
    assert_int_equal(ops->weight_append(w, 1, data, 4), INFER_E_INVALID);
    assert_int_equal(ops->weight_finish(w), INFER_E_INVALID);
    assert_int_equal(ops->weight_append(w, 0, data, 4), INFER_OK);
    assert_int_equal(ops->weight_finish(w), INFER_OK);
    ops->weight_destroy(w);
    ops->buf_free(infer_hal_dev_handle(d), b);
    infer_hal_close(d);
    infer_hal_destroy(h);
}

/* ---- Clock ----------------------------------------------------------------------------------------------- */

typedef struct fills {
    infer_hal_job job;
    infer_hal_dev *d;
    infer_range r;
    infer_status s;
} fills;

static void run_fills(infer_hal_job *job)
{
    fills *f = (fills *)(void *)job;
    for (int i = 0; i < 3 && !f->s; i++)
        f->s = infer_hal_fill(f->d, &f->r, 0, 1);
    if (!f->s)
        f->s = infer_hal_drain(f->d);
}

/* Time is what the settings say, to the nanosecond, and stands still between commands. */
static void test_clock(void **state)
{
    (void)state;
    static const setting slow[] = {{"bytes_per_s", "2M"}, {"launch_ns", "500"}, {NULL, NULL}};
    infer_hal *h = hal_make(slow);
    infer_hal_dev *d = dev_open(h, "sim0");
    const infer_backend_ops *ops = infer_hal_dev_ops(d);
    infer_hal_buf b = {0};
    infer_error e = {0};
    infer_prof_record rec[8];
    uint32_t n = 0;
    assert_int_equal(infer_hal_buf_alloc(d, 1000, INFER_LEDGER_KV, &b, &e), INFER_OK);
    assert_int_equal(ops->prof_begin(infer_hal_dev_handle(d)), INFER_OK);
    fills f = {.job.run = run_fills, .d = d, .r = {b.h, 0, 1000}};
    infer_hal_run(d, &f.job);
    assert_int_equal(f.s, INFER_OK);
    assert_int_equal(ops->prof_read(infer_hal_dev_handle(d), rec, 8, &n), INFER_OK);
    assert_int_equal(n, 3);
    for (uint32_t i = 0; i < 3; i++) {
        assert_string_equal(rec[i].name, "fill");
        assert_int_equal(rec[i].end_ns - rec[i].begin_ns, 500 + 1000000); /* 1000 bytes written at half of 2 MB/s */
        assert_int_equal(rec[i].begin_ns, i * 1000500u);
    }
    infer_hal_buf_free(&b);
    infer_hal_close(d);
    infer_hal_destroy(h);
}

/* What op_query predicts is what the clock will say: a product of 2 x 3 x 4, memory at 1 kB/s, arithmetic far faster.
 */
static void test_estimate(void **state)
{
    (void)state;
    static const setting s[] = {{"bytes_per_s", "1K"}, {"flops", "1G"}, {"launch_ns", "0"}, {NULL, NULL}};
    static const setting flops[] = {{"bytes_per_s", "0"}, {"flops", "1K"}, {"launch_ns", "7"}, {NULL, NULL}};
    infer_tensor_desc t[3] = {infer_tensor_make(INFER_FMT_F32, 2, 2, 4, 1, 1),
                              infer_tensor_make(INFER_FMT_F32, 2, 3, 4, 1, 1),
                              infer_tensor_make(INFER_FMT_F32, 2, 2, 3, 1, 1)};
    infer_attrs_matmul attrs = {.struct_size = sizeof(attrs)};
    infer_op_desc op = {.struct_size = sizeof(op),
                        .op = INFER_OP_MATMUL,
                        .rows_from = INFER_ROWS_STATIC,
                        .rows_mul = 1,
                        .n_in = 2,
                        .n_out = 1,
                        .tensor_size = sizeof(t[0]),
                        .tensors = t,
                        .attrs = &attrs,
                        .attrs_size = sizeof(attrs)};
    const infer_op_desc *ops[] = {&op};
    for (int i = 0; i < 2; i++) {
        infer_hal *h = hal_make(i ? flops : s);
        infer_hal_dev *d = dev_open(h, "sim0");
        infer_op_answer a = {.struct_size = sizeof(a)};
        infer_hal_op_query(d, ops, 1, &a);
        assert_int_equal(a.level, INFER_LEVEL_NATIVE);
        assert_int_equal((int)a.est_bytes, 4 * (2 * 4 + 3 * 4 + 2 * 3));
        assert_true(fabs(a.est_ns - (i ? 7 + 2 * 2 * 3 * 4 * 1e6 : a.est_bytes * 1e6)) < 1);
        infer_hal_close(d);
        infer_hal_destroy(h);
    }
}

/* ---- Settings -------------------------------------------------------------------------------------------- */

static void test_settings(void **state)
{
    (void)state;
    static const setting deny[] = {{"deny_ops", "matmul,add"}, {NULL, NULL}};
    static const setting none[] = {{"devices", "0"}, {NULL, NULL}};
    static const setting bad[][2] = {{{"deny_ops", "matmul,cheese"}, {NULL, NULL}},
                                     {{"heap_bytes", "many"}, {NULL, NULL}},
                                     {{"heap_bytes", "1Q"}, {NULL, NULL}},
                                     {{"launch_ns", "-1"}, {NULL, NULL}},
                                     {{"flops", ""}, {NULL, NULL}}};
    infer_error e = {0};
    infer_tensor_desc t[3];
    for (int i = 0; i < 3; i++)
        t[i] = infer_tensor_make(INFER_FMT_F32, 2, 2, 4, 1, 1);
    infer_op_desc op = {.struct_size = sizeof(op),
                        .op = INFER_OP_ADD,
                        .rows_from = INFER_ROWS_STATIC,
                        .rows_mul = 1,
                        .n_in = 2,
                        .n_out = 1,
                        .tensor_size = sizeof(t[0]),
                        .tensors = t};
    const infer_op_desc *ops[] = {&op};
    infer_op_answer a = {.struct_size = sizeof(a)};
    infer_hal *h = hal_make(deny);
    infer_hal_dev *d = dev_open(h, "sim0");
    infer_hal_op_query(d, ops, 1, &a);
    assert_int_equal(a.level, INFER_LEVEL_NO);
    assert_int_equal(a.why, INFER_WHY_OP);
    op.op = INFER_OP_MUL;
    infer_hal_op_query(d, ops, 1, &a);
    assert_int_equal(a.level, INFER_LEVEL_NATIVE);
    infer_hal_close(d);
    infer_hal_destroy(h);
    h = hal_make(none);
    assert_int_equal(infer_hal_probe(h, &e), INFER_OK);
    assert_int_equal(infer_hal_find(h, "sim0"), -1);
    infer_hal_destroy(h);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        infer_hal_backend_info info;
        h = hal_make(bad[i]);
        infer_hal_probe(h, &e);
        infer_hal_backend(h, infer_hal_n_backends(h) - 1, &info);
        assert_int_equal(info.status, INFER_E_INVALID);
        assert_non_null(strstr(info.reason, "sim: "));
        infer_hal_destroy(h);
    }
}

/* A stream that is full answers AGAIN, and takes more when some was run. */
static void test_again(void **state)
{
    (void)state;
    static const setting small[] = {{"stream_bytes", "64K"}, {NULL, NULL}};
    infer_hal *h = hal_make(small);
    infer_hal_dev *d = dev_open(h, "sim0");
    const infer_backend_ops *ops = infer_hal_dev_ops(d);
    infer_hal_tl *gate = NULL, *done = NULL;
    infer_hal_buf b = {0};
    infer_queue *q = NULL;
    infer_error e = {0};
    assert_int_equal(infer_hal_tl_create(d, &gate, &e), INFER_OK);
    assert_int_equal(infer_hal_tl_create(d, &done, &e), INFER_OK);
    assert_int_equal(infer_hal_buf_alloc(d, 64, INFER_LEDGER_KV, &b, &e), INFER_OK);
    assert_int_equal(ops->queue_create(infer_hal_dev_handle(d), INFER_QUEUE_COPY, &q), INFER_OK);
    assert_int_equal(ops->queue_wait(q, infer_hal_tl_handle(gate), 1), INFER_OK);
    infer_range r = {b.h, 0, 64};
    infer_status s = INFER_OK;
    int n = 0;
    while (!s && n < 100000) {
        s = ops->cmd_fill(q, &r, 0, 1);
        n++;
    }
    assert_int_equal(s, INFER_AGAIN);
    assert_true(n > 500);
    assert_int_equal(infer_hal_tl_signal_host(gate, 1), INFER_OK);
    do
        s = ops->queue_signal(q, infer_hal_tl_handle(done), 1);
    while (s == INFER_AGAIN);
    assert_int_equal(s, INFER_OK);
    assert_int_equal(infer_hal_tl_wait(done, 1, 20000000000u), INFER_OK);
    ops->queue_destroy(infer_hal_dev_handle(d), q);
    infer_hal_tl_destroy(gate);
    infer_hal_tl_destroy(done);
    infer_hal_buf_free(&b);
    infer_hal_close(d);
    infer_hal_destroy(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_memory_is_its_own),
        cmocka_unit_test(test_devices_are_apart),
        cmocka_unit_test(test_heap),
        cmocka_unit_test(test_private_weights),
        cmocka_unit_test(test_weight_stream),
        cmocka_unit_test(test_clock),
        cmocka_unit_test(test_estimate),
        cmocka_unit_test(test_again),
        cmocka_unit_test(test_settings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
