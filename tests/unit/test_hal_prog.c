/* core/hal programs and weights: the stock program against the reference, plugins' own programs, shards, and a walk
 * over every failing allocation. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "unit/unit.h"

#include "base/alloc.h"
#include "hal/hal.h"
#include "ops/ops.h"
#include "quant/quant.h"
#include "unit/fake_backend.h"

static infer_hal *make_hal(infer_error *err)
{
    infer_hal_options opt = {.backend_path = "", .allow = "ref", .validate = 1};
    opt.topo_xml = "synthetic:numa:1 core:2 pu:1";
    infer_hal *h = NULL;
    return infer_hal_create(&opt, &h, err) ? NULL : h;
}

static infer_hal *the_hal;

static int setup(void **state)
{
    (void)state;
    fake_reset();
    the_hal = make_hal(NULL);
    return the_hal == NULL;
}

static int teardown(void **state)
{
    (void)state;
    infer_hal_destroy(the_hal);
    return fake.devices || fake.queues || fake.buffers || fake.bytes || fake.programs || fake.execs || fake.inits;
}

static infer_hal_dev *open_dev(const char *id)
{
    infer_hal_dev *d = NULL;
    infer_error e = {0};
    if (!strcmp(id, "fakea0") && infer_hal_add(the_hal, fake_queries[0], "test", &e))
        fail_msg("%s", e.text);
    if (infer_hal_open(the_hal, id, &d, &e))
        fail_msg("open %s: %s", id, e.text);
    return d;
}

/* ---- A small graph: y = x W^T + b; z = rms_norm(y) * w; slot 0 activations, 1 weights, 2 step ------------------- */

enum { ROWS = 5, K = 32, N = 24, USED = 3 };
enum { OFF_X = 0, OFF_Y = OFF_X + ROWS * K * 4, OFF_Z = OFF_Y + ROWS * N * 4, ACTS = OFF_Z + ROWS * N * 4 };
enum { OFF_W = 0, OFF_B = OFF_W + N * K * 4, OFF_NORM = OFF_B + N * 4, WEIGHTS = OFF_NORM + N * 4, STEP = 64 };

typedef struct small_graph {
    infer_tensor_desc t1[4], t2[3];
    infer_attrs_matmul mm;
    infer_attrs_norm norm;
    infer_epilogue epi;
    infer_op_desc op[2];
    infer_operand o1[4], o2[3];
    infer_node node[2];
    infer_slot_desc slot[3];
    infer_graph_view view;
} small_graph;

static infer_operand at(uint32_t slot, uint64_t offset, uint64_t size)
{
    return (infer_operand){.slot = slot, .offset = offset, .size = size};
}

static void make_graph(small_graph *g)
{
    memset(g, 0, sizeof *g);
    g->t1[0] = infer_tensor_make(INFER_FMT_F32, 2, ROWS, K, 1, 1);
    g->t1[1] = infer_tensor_make(INFER_FMT_F32, 2, N, K, 1, 1);
    g->t1[1].flags = INFER_TENSOR_WEIGHT;
    g->t1[2] = infer_tensor_make(INFER_FMT_F32, 1, N, 1, 1, 1);
    g->t1[3] = infer_tensor_make(INFER_FMT_F32, 2, ROWS, N, 1, 1);
    g->mm = (infer_attrs_matmul){.struct_size = sizeof g->mm, .act_format = INFER_FMT_F32, .scale = 0.5f};
    g->epi = (infer_epilogue){.kind = INFER_EPI_ACT, .arg = INFER_ACT_SILU};
    g->op[0] = (infer_op_desc){.struct_size = sizeof g->op[0],
                               .op = INFER_OP_MATMUL,
                               .rows_from = INFER_COUNT_TOKENS,
                               .rows_mul = 1,
                               .n_in = 3,
                               .n_out = 1,
                               .tensor_size = sizeof g->t1[0],
                               .tensors = g->t1,
                               .attrs_size = sizeof g->mm,
                               .attrs = &g->mm,
                               .n_epilogue = 1,
                               .epilogue_size = sizeof g->epi,
                               .epilogue = &g->epi};
    g->t2[0] = g->t2[2] = g->t1[3];
    g->t2[1] = g->t1[2];
    g->norm = (infer_attrs_norm){.struct_size = sizeof g->norm, .eps = 1e-5f};
    g->op[1] = g->op[0];
    g->op[1].op = INFER_OP_RMS_NORM;
    g->op[1].n_in = 2;
    g->op[1].tensors = g->t2;
    g->op[1].attrs = &g->norm;
    g->op[1].attrs_size = sizeof g->norm;
    g->op[1].n_epilogue = 0;
    g->op[1].epilogue = NULL;
    g->o1[0] = at(0, OFF_X, ROWS * K * 4);
    g->o1[1] = at(1, OFF_W, N * K * 4);
    g->o1[2] = at(1, OFF_B, N * 4);
    g->o1[3] = g->o2[0] = at(0, OFF_Y, ROWS * N * 4);
    g->o2[1] = at(1, OFF_NORM, N * 4);
    g->o2[2] = at(0, OFF_Z, ROWS * N * 4);
    for (int i = 0; i < 2; i++)
        g->node[i] = (infer_node){.op = &g->op[i],
                                  .operands = i ? g->o2 : g->o1,
                                  .counts = at(2, 0, STEP),
                                  .scratch = at(INFER_SLOT_ABSENT, 0, 0)};
    g->slot[0] = (infer_slot_desc){.kind = INFER_SLOT_ARENA, .rebindable = 1, .size = ACTS};
    g->slot[1] = (infer_slot_desc){.kind = INFER_SLOT_WEIGHT, .size = WEIGHTS};
    g->slot[2] = (infer_slot_desc){.kind = INFER_SLOT_STEP, .size = STEP};
    g->view = (infer_graph_view){.struct_size = sizeof g->view,
                                 .nodes = g->node,
                                 .slots = g->slot,
                                 .n_nodes = 2,
                                 .node_size = sizeof g->node[0],
                                 .n_slots = 3,
                                 .slot_size = sizeof g->slot[0],
                                 .bucket = ROWS};
}

static void fill_floats(float *p, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        p[i] = (float)(int32_t)seed / 2147483648.0f;
    }
}

typedef struct run_job {
    infer_hal_job job;
    infer_hal_dev *d;
    infer_hal_exec *x;
    infer_status status;
    infer_error err;
    uint64_t allocations;
} run_job;

static void run_exec(infer_hal_job *job)
{
    run_job *r = (run_job *)(void *)job;
    uint64_t before = infer_alloc_count();
    r->status = infer_hal_exec_submit(r->x);
    r->allocations = infer_alloc_count() - before;
    if (!r->status)
        r->status = infer_hal_drain(r->d);
    if (r->status)
        infer_hal_fail(r->d, r->status, &r->err, "submit");
}

static infer_status run_on(infer_hal_dev *d, infer_hal_exec *x, infer_error *err)
{
    run_job r = {.job.run = run_exec, .d = d, .x = x};
    infer_hal_run(d, &r.job);
    if (r.status && err)
        *err = r.err;
    return r.status;
}

static void test_stock_program(void **state)
{
    (void)state;
    infer_hal_dev *d = open_dev("ref0");
    small_graph *g = malloc(sizeof *g);
    make_graph(g);
    infer_error e = {0};
    infer_hal_prog *p = NULL;
    infer_hal_exec *x = NULL;
    infer_program_info info = {.struct_size = sizeof info};
    if (infer_hal_prog_build(d, &g->view, &p, &info, &e))
        fail_msg("%s", e.text);
    memset(g, 0xA5, sizeof *g); /* the view was copied */

    infer_hal_buf acts = {0}, acts2 = {0}, weights = {0}, step = {0};
    assert_int_equal(infer_hal_buf_alloc(d, ACTS + 64, INFER_LEDGER_ACTIVATIONS, &acts, &e), INFER_OK);
    assert_int_equal(infer_hal_buf_alloc(d, ACTS, INFER_LEDGER_ACTIVATIONS, &acts2, &e), INFER_OK);
    assert_int_equal(infer_hal_buf_alloc(d, WEIGHTS, INFER_LEDGER_WEIGHTS, &weights, &e), INFER_OK);
    assert_int_equal(infer_hal_buf_alloc(d, STEP, INFER_LEDGER_WORKSPACE, &step, &e), INFER_OK);
    infer_range slots[3] = {{.buffer = acts.h, .offset = 64, .size = ACTS},
                            {.buffer = weights.h, .size = WEIGHTS},
                            {.buffer = step.h, .size = STEP}};
    static float a[ACTS / 4], w[WEIGHTS / 4], got[ACTS / 4];
    int32_t counts[INFER_COUNT_MAX] = {[INFER_COUNT_TOKENS] = USED};
    fill_floats(a, ACTS / 4, 1);
    fill_floats(w, WEIGHTS / 4, 2);
    assert_int_equal(infer_hal_write(d, &slots[1], w, WEIGHTS, &e), INFER_OK);
    assert_int_equal(infer_hal_write(d, &slots[2], counts, STEP, &e), INFER_OK);

    assert_int_equal(infer_hal_exec_create(p, slots, 2, &x, &e), INFER_E_INVALID);
    infer_range wrong[3] = {slots[0], slots[1], slots[2]};
    wrong[0].offset = 68; /* not aligned to 8 */
    assert_int_equal(infer_hal_exec_create(p, wrong, 3, &x, &e), INFER_E_INVALID);
    wrong[0] = slots[0];
    wrong[0].offset = 128; /* beyond the buffer's end */
    assert_int_equal(infer_hal_exec_create(p, wrong, 3, &x, &e), INFER_E_INVALID);
    assert_int_equal(infer_hal_exec_create(p, slots, 3, &x, &e), INFER_OK);

    /* What it should give: the same ops by hand. */
    static float want[ACTS / 4];
    memcpy(want, a, ACTS);
    small_graph ref;
    make_graph(&ref);
    char *wp = (char *)w, *ap = (char *)want;
    void *d1[4] = {ap + OFF_X, wp + OFF_W, wp + OFF_B, ap + OFF_Y};
    void *d2[3] = {ap + OFF_Y, wp + OFF_NORM, ap + OFF_Z};
    assert_int_equal(infer_op_ref(&ref.op[0], d1, counts), INFER_OK);
    assert_int_equal(infer_op_ref(&ref.op[1], d2, counts), INFER_OK);
    assert_memory_not_equal(want, a, ACTS);

    for (int pass = 0; pass < 2; pass++) {
        if (pass) { /* elsewhere, by rebinding */
            slots[0] = (infer_range){.buffer = acts2.h, .size = ACTS};
            assert_int_equal(infer_hal_exec_update(x, 1, &slots[0], &e), INFER_E_INVALID);
            assert_int_equal(infer_hal_exec_update(x, 3, &slots[0], &e), INFER_E_INVALID);
            assert_int_equal(infer_hal_exec_update(x, 0, &slots[0], &e), INFER_OK);
        }
        assert_int_equal(infer_hal_write(d, &slots[0], a, ACTS, &e), INFER_OK);
        if (run_on(d, x, &e))
            fail_msg("%s", e.text);
        assert_int_equal(infer_hal_read(d, &slots[0], got, ACTS, &e), INFER_OK);
        assert_memory_equal(got, want, ACTS); /* rows beyond USED untouched */
    }
    infer_hal_exec_destroy(x);
    infer_hal_prog_destroy(p);
    infer_hal_buf_free(&acts);
    infer_hal_buf_free(&acts2);
    infer_hal_buf_free(&weights);
    infer_hal_buf_free(&step);
    free(g);
    infer_hal_close(d);
}

static void test_bad_views(void **state)
{
    (void)state;
    infer_hal_dev *d = open_dev("ref0");
    small_graph g;
    infer_hal_prog *p = NULL;
    infer_error e = {0};
    make_graph(&g);
    g.o1[2].slot = 3;
    assert_int_equal(infer_hal_prog_build(d, &g.view, &p, NULL, &e), INFER_E_INVALID);
    assert_non_null(strstr(e.text, "node 0: operand 2"));
    make_graph(&g);
    g.o2[2].offset = ACTS - 4;
    assert_int_equal(infer_hal_prog_build(d, &g.view, &p, NULL, &e), INFER_E_INVALID);
    assert_non_null(strstr(e.text, "node 1: operand 2"));
    make_graph(&g);
    g.node[1].counts.size = STEP + 4;
    assert_int_equal(infer_hal_prog_build(d, &g.view, &p, NULL, &e), INFER_E_INVALID);
    /* found by validation only: too small an operand, a descriptor that the table refuses */
    make_graph(&g);
    g.o2[2].size -= 4;
    assert_int_equal(infer_hal_prog_build(d, &g.view, &p, NULL, &e), INFER_E_INVALID);
    assert_non_null(strstr(e.text, "its tensor needs"));
    make_graph(&g);
    g.o1[0].offset += 4;
    assert_int_equal(infer_hal_prog_build(d, &g.view, &p, NULL, &e), INFER_E_INVALID);
    assert_non_null(strstr(e.text, "not aligned to 8"));
    make_graph(&g);
    g.t1[3].shape[1] = N + 1;
    assert_int_equal(infer_hal_prog_build(d, &g.view, &p, NULL, &e), INFER_E_INVALID);
    make_graph(&g);
    g.op[0].must_understand = UINT64_C(1) << 60;
    assert_int_equal(infer_hal_prog_build(d, &g.view, &p, NULL, &e), INFER_E_UNSUPPORTED);
    assert_null(p);
    infer_hal_close(d);
}

/* A failing op names itself and stops the program. */
static void test_failing_op(void **state)
{
    (void)state;
    infer_hal_dev *d = open_dev("fakea0");
    small_graph g;
    make_graph(&g);
    g.node[1].comm = (infer_comm *)(void *)&g;
    infer_error e = {0};
    infer_hal_prog *p = NULL;
    infer_hal_exec *x = NULL;
    infer_hal_buf b[3] = {0};
    infer_range slots[3];
    const uint64_t size[3] = {ACTS, WEIGHTS, STEP};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(infer_hal_buf_alloc(d, size[i], INFER_LEDGER_KV, &b[i], &e), INFER_OK);
        slots[i] = (infer_range){.buffer = b[i].h, .size = size[i]};
    }
    assert_int_equal(infer_hal_prog_build(d, &g.view, &p, NULL, &e), INFER_OK);
    assert_int_equal(infer_hal_exec_create(p, slots, 3, &x, &e), INFER_OK);
    run_job r = {.job.run = run_exec, .d = d, .x = x};
    infer_hal_run(d, &r.job);
    assert_int_equal(r.status, INFER_OK);
    assert_int_equal(r.allocations, 0);
    assert_ptr_equal(fake.comm, &g); /* a node's communicator comes to its op */
    assert_int_equal(fake.drawn, 2);
    fake.copy_status = INFER_E_NO_MEMORY;
    assert_int_equal(run_on(d, x, &e), INFER_E_NO_MEMORY);
    assert_string_equal(e.text, "submit on fakea0: op 0 (matmul): fake says no");
    assert_int_equal(fake.drawn, 3);
    infer_hal_exec_destroy(x);
    infer_hal_prog_destroy(p);
    for (int i = 0; i < 3; i++)
        infer_hal_buf_free(&b[i]);
    infer_hal_close(d);
}

/* A plugin that captures: the view outlives prog_build by a copy, and is replayed when the program is bound. */
static void test_captured_program(void **state)
{
    (void)state;
    fake_add_programs(&fake_plugins[0]);
    fake.capture = 1;
    infer_hal_dev *d = open_dev("fakea0");
    small_graph *g = malloc(sizeof *g);
    int comm;
    make_graph(g);
    g->node[1].comm = (infer_comm *)(void *)&comm;
    infer_error e = {0};
    infer_hal_prog *p = NULL;
    infer_hal_exec *x = NULL;
    infer_hal_buf b[3] = {0};
    infer_range slots[3];
    const uint64_t size[3] = {ACTS + 64, WEIGHTS, STEP};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(infer_hal_buf_alloc(d, size[i], INFER_LEDGER_KV, &b[i], &e), INFER_OK);
        slots[i] = (infer_range){.buffer = b[i].h, .size = size[i]};
    }
    slots[0].offset = 64;
    slots[0].size = ACTS;
    if (infer_hal_prog_build(d, &g->view, &p, NULL, &e))
        fail_msg("%s", e.text);
    memset(g, 0xA5, sizeof *g);
    free(g);
    assert_int_equal(fake.drawn, 0);
    if (infer_hal_exec_create(p, slots, 3, &x, &e))
        fail_msg("%s", e.text);
    assert_int_equal(fake.drawn, 2);
    assert_int_equal(fake.last_op, INFER_OP_RMS_NORM);
    assert_int_equal(fake.last_offset, 64 + OFF_Z);
    assert_ptr_equal(fake.comm, &comm);
    infer_hal_exec_destroy(x);
    x = NULL;
    fake.copy_status = INFER_E_UNSUPPORTED; /* an op that fails while it is captured */
    assert_int_equal(infer_hal_exec_create(p, slots, 3, &x, &e), INFER_E_UNSUPPORTED);
    assert_non_null(strstr(e.text, "op 0 (matmul)"));
    infer_hal_prog_destroy(p);
    for (int i = 0; i < 3; i++)
        infer_hal_buf_free(&b[i]);
    infer_hal_close(d);
}

static void test_plugin_program(void **state)
{
    (void)state;
    fake_add_programs(&fake_plugins[0]);
    infer_hal_dev *d = open_dev("fakea0");
    small_graph g;
    make_graph(&g);
    infer_error e = {0};
    infer_hal_prog *p = NULL;
    infer_hal_exec *x = NULL;
    infer_program_info info = {.struct_size = sizeof info};
    infer_hal_buf b[3] = {0}, other = {0};
    infer_range slots[3];
    const uint64_t size[3] = {ACTS, WEIGHTS, STEP};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(infer_hal_buf_alloc(d, size[i], INFER_LEDGER_KV, &b[i], &e), INFER_OK);
        slots[i] = (infer_range){.buffer = b[i].h, .size = size[i]};
    }
    assert_int_equal(infer_hal_buf_alloc(d, ACTS, INFER_LEDGER_KV, &other, &e), INFER_OK);
    infer_range there = {.buffer = other.h, .size = ACTS};
    static uint8_t zero[ACTS];
    assert_int_equal(infer_hal_write(d, &slots[0], zero, ACTS, &e), INFER_OK);
    assert_int_equal(infer_hal_write(d, &there, zero, ACTS, &e), INFER_OK);
    assert_int_equal(infer_hal_prog_build(d, &g.view, &p, &info, &e), INFER_OK);
    assert_true(info.code_bytes == 300);
    assert_true(infer_hal_ledger(d, INFER_LEDGER_CONTEXT) == 344);
    assert_int_equal(infer_hal_exec_create(p, slots, 3, &x, &e), INFER_OK);
    fake.again = 3;
    assert_int_equal(run_on(d, x, &e), INFER_OK);
    assert_int_equal(run_on(d, x, &e), INFER_OK);
    assert_int_equal(infer_hal_exec_update(x, 0, &there, &e), INFER_OK);
    assert_int_equal(run_on(d, x, &e), INFER_OK);
    fake.rebuild = 1;
    assert_int_equal(infer_hal_exec_update(x, 0, &slots[0], &e), INFER_OK);
    assert_int_equal(fake.rebuilds, 1);
    assert_int_equal(fake.execs, 1);
    assert_int_equal(run_on(d, x, &e), INFER_OK);
    uint8_t first = 0, second = 0;
    assert_int_equal(infer_hal_read(d, &slots[0], &first, 1, &e), INFER_OK);
    assert_int_equal(infer_hal_read(d, &there, &second, 1, &e), INFER_OK);
    assert_int_equal(first, 3);
    assert_int_equal(second, 1);
    infer_hal_exec_destroy(x);
    infer_hal_prog_destroy(p);
    assert_true(infer_hal_ledger(d, INFER_LEDGER_CONTEXT) == 0);
    for (int i = 0; i < 3; i++)
        infer_hal_buf_free(&b[i]);
    infer_hal_buf_free(&other);
    infer_hal_close(d);
}

/* ---- Weights ------------------------------------------------------------------------------------------------------
 */

/* One [E][rows][cols] weight with side planes, its bytes numbered, and the same cut by hand. */
typedef struct weight_case {
    infer_quant q;
    int64_t e, n, k;
    infer_shard shard;
    infer_status want;
} weight_case;

static uint64_t ceil_div(uint64_t a, uint64_t b)
{
    return b ? (a + b - 1) / b : 1;
}

/* Appends the part of a plane of [e][rows][row_bytes] that the shard keeps; step: elements a unit along an axis. */
static uint64_t cut_by_hand(const uint8_t *src, uint8_t *dst, const weight_case *c, uint64_t rows, uint64_t row_bytes,
                            int rows_cut, int cols_cut)
{
    uint64_t n = 0;
    const infer_shard *s = &c->shard;
    for (uint64_t e = 0; e < (uint64_t)c->e; e++)
        for (uint64_t r = 0; r < rows; r++)
            for (uint64_t b = 0; b < row_bytes; b++) {
                uint64_t i = 0, of = 1;
                if (s->of && s->axis == 0 && rows_cut)
                    i = r, of = rows;
                if (s->of && s->axis == 1 && cols_cut)
                    i = b, of = row_bytes;
                if (s->of && s->axis == 2)
                    i = e, of = (uint64_t)c->e;
                if (of > 1 || (s->of && s->axis == 2)) {
                    uint64_t unit = of / s->of;
                    if (i < unit * s->first || i >= unit * (s->first + s->count))
                        continue;
                }
                dst[n++] = src[(e * rows + r) * row_bytes + b];
            }
    return n;
}

static void check_weight(infer_hal_dev *d, const weight_case *c)
{
    infer_error e = {0};
    infer_weight_desc desc = {.struct_size = sizeof desc, .quant = c->q, .rank = 3, .shard = c->shard};
    desc.shape[0] = c->e;
    desc.shape[1] = c->n;
    desc.shape[2] = c->k;
    uint64_t bytes[3];
    assert_int_equal(infer_quant_bytes(&c->q, (uint64_t)c->n, (uint64_t)c->k, bytes), INFER_OK);
    uint8_t *src[3] = {0};
    const void *planes[3];
    for (int i = 0; i < 3; i++) {
        bytes[i] *= (uint64_t)c->e;
        src[i] = malloc(bytes[i] + 1);
        for (uint64_t k = 0; k < bytes[i]; k++)
            src[i][k] = (uint8_t)(k * 13 + (uint64_t)i * 101 + k / 256);
        planes[i] = bytes[i] ? src[i] : NULL;
    }
    infer_weight_plan plan = {.struct_size = sizeof plan};
    assert_int_equal(infer_hal_weight_plan(d, &desc, &plan, &e), c->want);
    if (c->want)
        goto done;
    uint8_t *want = calloc(1, bytes[0] + bytes[1] + bytes[2] + 1024), *got = calloc(1, plan.packed_bytes);
    uint64_t rows = c->q.group_n ? ceil_div((uint64_t)c->n, c->q.group_n) : 1, end = 0;
    for (int i = 0; i < 3; i++) {
        if (!bytes[i])
            continue;
        end = (end + 255) / 256 * 256;
        uint64_t r = i ? rows : (uint64_t)c->n, row_bytes = bytes[i] / (uint64_t)c->e / r;
        end += cut_by_hand(src[i], want + end, c, r, row_bytes, !i || c->q.group_n, !i || c->q.group_k);
    }
    assert_true(plan.packed_bytes == end);
    infer_hal_buf b = {0};
    assert_int_equal(infer_hal_buf_alloc(d, end + 256, INFER_LEDGER_WEIGHTS, &b, &e), INFER_OK);
    infer_range dst = {.buffer = b.h, .offset = 256, .size = end};
    assert_int_equal(infer_hal_fill(d, &dst, 0, 1), INFER_E_INVALID); /* not on this thread */
    assert_int_equal(infer_hal_write(d, &dst, got, end, &e), INFER_OK);
    if (infer_hal_weight_load(d, &desc, &plan, &dst, planes, bytes, &e))
        fail_msg("%s", e.text);
    assert_int_equal(infer_hal_read(d, &dst, got, end, &e), INFER_OK);
    assert_memory_equal(got, want, end);
    dst.size--;
    assert_int_equal(infer_hal_weight_load(d, &desc, &plan, &dst, planes, bytes, &e), INFER_E_INVALID);
    dst.size++;
    bytes[0]--;
    assert_int_equal(infer_hal_weight_load(d, &desc, &plan, &dst, planes, bytes, &e), INFER_E_INVALID);
    infer_hal_buf_free(&b);
    free(want);
    free(got);
done:
    for (int i = 0; i < 3; i++)
        free(src[i]);
}

static void test_weights(void **state)
{
    (void)state;
    infer_hal_dev *d = open_dev("ref0");
    const infer_quant f32 = {.format = INFER_FMT_F32}, q8 = {.format = INFER_FMT_Q8_0};
    const infer_quant u4 = {.format = INFER_FMT_U4,
                            .scale_format = INFER_FMT_F16,
                            .zero_format = INFER_FMT_U4,
                            .group_n = 1,
                            .group_k = 32};
    const infer_quant i8 = {.format = INFER_FMT_I8, .scale_format = INFER_FMT_F32, .group_n = 1};
    const infer_quant f8 = {.format = INFER_FMT_F8_E4M3, .scale_format = INFER_FMT_F32, .group_n = 16, .group_k = 64};
    const infer_quant f8_tensor = {.format = INFER_FMT_F8_E4M3, .scale_format = INFER_FMT_F32};
    const weight_case cases[] = {
        {f32, 1, 7, 5, {0}, INFER_OK},
        {f32, 1, 8, 6, {0, 1, 2, 4}, INFER_OK},
        {f32, 3, 8, 6, {1, 2, 1, 3}, INFER_OK},
        {f32, 4, 8, 6, {2, 1, 3, 4}, INFER_OK},
        {f32, 1, 8, 6, {0, 0, 4, 4}, INFER_OK},
        {f32, 1, 7, 6, {0, 0, 1, 2}, INFER_E_INVALID},
        {f32, 1, 8, 6, {0, 3, 2, 4}, INFER_E_INVALID},
        {f32, 1, 8, 6, {3, 0, 1, 2}, INFER_E_INVALID},
        {q8, 2, 4, 128, {1, 1, 3, 4}, INFER_OK},
        {q8, 2, 4, 96, {1, 0, 1, 2}, INFER_E_INVALID}, /* half a block */
        {u4, 1, 6, 128, {0}, INFER_OK},
        {u4, 2, 6, 128, {0, 1, 2, 3}, INFER_OK},
        {u4, 2, 6, 128, {1, 1, 1, 2}, INFER_OK},
        {u4, 4, 6, 128, {2, 0, 1, 4}, INFER_OK},
        {u4, 2, 6, 128, {1, 0, 1, 8}, INFER_E_INVALID}, /* half a group */
        {i8, 1, 6, 10, {0, 1, 1, 2}, INFER_OK},
        {i8, 1, 6, 10, {1, 1, 1, 2}, INFER_OK}, /* scales are whole on both */
        {f8, 1, 64, 128, {0, 1, 1, 4}, INFER_OK},
        {f8, 1, 64, 128, {1, 1, 1, 2}, INFER_OK},
        {f8, 1, 64, 128, {0, 1, 1, 8}, INFER_E_INVALID},
        {f8_tensor, 1, 64, 128, {0, 1, 1, 8}, INFER_OK},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_weight(d, &cases[i]);
    infer_weight_desc desc = {.struct_size = sizeof desc, .quant = q8, .rank = 2, .shape = {4, 64}};
    infer_weight_plan plan = {.struct_size = sizeof plan};
    assert_int_equal(infer_hal_weight_plan(d, &desc, &plan, NULL), INFER_OK);
    assert_int_equal(plan.flags, INFER_WEIGHT_IN_PLACE);
    desc.shard = (infer_shard){0, 0, 1, 2};
    assert_int_equal(infer_hal_weight_plan(d, &desc, &plan, NULL), INFER_OK);
    assert_int_equal(plan.flags, 0);
    infer_hal_close(d);
}

static void test_weight_stream(void **state)
{
    (void)state;
    fake_add_weights(&fake_plugins[0]);
    infer_hal_dev *d = open_dev("fakea0");
    infer_error e = {0};
    infer_weight_desc desc = {.struct_size = sizeof desc, .quant.format = INFER_FMT_I8, .rank = 2};
    desc.shape[0] = 33;
    desc.shape[1] = 1 << 20;
    infer_weight_plan plan = {.struct_size = sizeof plan};
    assert_int_equal(infer_hal_weight_plan(d, &desc, &plan, &e), INFER_OK);
    assert_int_equal(plan.layout, 7);
    infer_hal_buf b = {0};
    assert_int_equal(infer_hal_buf_alloc(d, 64, INFER_LEDGER_WEIGHTS, &b, &e), INFER_OK);
    infer_range dst = {.buffer = b.h, .size = 64};
    uint64_t bytes[3] = {33u << 20, 0, 0};
    uint8_t *data = calloc(1, bytes[0]);
    const void *planes[3] = {data, NULL, NULL};
    assert_int_equal(infer_hal_weight_load(d, &desc, &plan, &dst, planes, bytes, &e), INFER_OK);
    assert_true(fake.n_packed == bytes[0] && fake.largest_append == 16u << 20);
    /* Short runs of a cut arrive gathered, in order. */
    desc.shape[0] = 8;
    desc.shape[1] = 6;
    desc.shard = (infer_shard){1, 1, 1, 3};
    bytes[0] = 48;
    for (int i = 0; i < 48; i++)
        data[i] = (uint8_t)i;
    assert_int_equal(infer_hal_weight_load(d, &desc, &plan, &dst, planes, bytes, &e), INFER_OK);
    assert_true(fake.n_packed == 16 && fake.largest_append == 16);
    for (int i = 0; i < 16; i++)
        assert_int_equal(fake.packed[i], i / 2 * 6 + 2 + i % 2);
    free(data);
    infer_hal_buf_free(&b);
    infer_hal_close(d);
}

/* ---- Every allocation fails once -----------------------------------------------------------------------------------
 */

static infer_status use_device(infer_hal *h, const char *id, infer_error *err)
{
    infer_hal_dev *d = NULL;
    infer_hal_prog *p = NULL;
    infer_hal_exec *x = NULL;
    infer_hal_tl *tl = NULL;
    infer_hal_buf b[3] = {0};
    infer_range slots[3];
    small_graph g;
    static uint8_t data[ACTS + WEIGHTS];
    const uint64_t size[3] = {ACTS, WEIGHTS, STEP};
    make_graph(&g);
    infer_status s = infer_hal_open(h, id, &d, err);
    if (s)
        return s;
    for (int i = 0; i < 3 && !s; i++) {
        s = infer_hal_buf_alloc(d, size[i], INFER_LEDGER_KV, &b[i], err);
        slots[i] = (infer_range){.buffer = b[i].h, .size = size[i]};
        if (!s)
            s = infer_hal_write(d, &slots[i], data, size[i], err);
    }
    infer_weight_desc w = {.struct_size = sizeof w, .quant.format = INFER_FMT_F32, .rank = 2, .shape = {4, 8}};
    w.shard = (infer_shard){1, 0, 1, 2};
    infer_weight_plan plan = {.struct_size = sizeof plan};
    const void *planes[3] = {data, NULL, NULL};
    const uint64_t bytes[3] = {128, 0, 0};
    if (!s)
        s = infer_hal_weight_plan(d, &w, &plan, err);
    if (!s)
        s = infer_hal_weight_load(d, &w, &plan, &slots[1], planes, bytes, err);
    if (!s)
        s = infer_hal_tl_create(d, &tl, err);
    if (!s)
        s = infer_hal_prog_build(d, &g.view, &p, NULL, err);
    if (!s)
        s = infer_hal_exec_create(p, slots, 3, &x, err);
    if (!s)
        s = run_on(d, x, err);
    infer_hal_exec_destroy(x);
    infer_hal_prog_destroy(p);
    infer_hal_tl_destroy(tl);
    for (int i = 0; i < 3; i++)
        infer_hal_buf_free(&b[i]);
    for (int i = 0; i < INFER_LEDGER_KINDS; i++)
        assert_true(infer_hal_ledger(d, (infer_ledger_kind)i) == 0);
    infer_hal_close(d);
    return s;
}

static infer_status everything(infer_error *err)
{
    infer_hal *h = make_hal(err);
    if (!h)
        return err->status;
    infer_status s = infer_hal_add(h, fake_queries[0], "test", err);
    if (!s)
        s = use_device(h, "ref0", err);
    if (!s)
        s = use_device(h, "fakea0", err);
    infer_hal_destroy(h);
    return s;
}

static void test_allocation_failures(void **state)
{
    (void)state;
    for (int for_good = 0; for_good < 2; for_good++) {
        fake_reset();
        int failures = 0;
        for (int64_t n = 0;; n++) {
            infer_error e = {0};
            infer_alloc_fail_after(n, for_good);
            infer_status s = everything(&e);
            int delivered = infer_alloc_fail_after(-1, 0);
            if (!delivered) {
                if (s)
                    fail_msg("without a failure: %s", e.text);
                break;
            }
            if (s) {
                failures++;
                if (s != INFER_E_NO_MEMORY || !e.text[0])
                    fail_msg("allocation %d: status %d, \"%s\"", (int)n, s, e.text);
            }
            assert_int_equal(fake.devices + fake.queues + fake.timelines + fake.inits, 0);
            assert_true(fake.buffers == 0 && fake.bytes == 0);
        }
        assert_true(failures > 50);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_stock_program, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_views, setup, teardown),
        cmocka_unit_test_setup_teardown(test_failing_op, setup, teardown),
        cmocka_unit_test_setup_teardown(test_captured_program, setup, teardown),
        cmocka_unit_test_setup_teardown(test_plugin_program, setup, teardown),
        cmocka_unit_test_setup_teardown(test_weights, setup, teardown),
        cmocka_unit_test_setup_teardown(test_weight_stream, setup, teardown),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
