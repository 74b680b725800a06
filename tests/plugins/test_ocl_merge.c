/*
 * How many launches a step of one row is on an OpenCL device, a layer, and that it says the same bit for bit as with
 * each node's launches by themselves. Skipped where there is no device. Sampling stays on the host: not every driver
 * that is cut in lanes runs its kernels (backends/npu/opencl/README.md).
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <dlfcn.h>

#include "e2e/rig.h"
#include "model/private.h"
#include "ocl.h"
#include "plugins/graph_fixture.h"

/* ---- The module, its launches counted ---------------------------------------------------------------------------- */

static const infer_plugin_desc *module;
static infer_backend_ops table;
static infer_plugin_desc desc;
static cl_api api, counting;    /* the driver; the same with a function that counts */
static unsigned launches, most; /* since the start of a program's run; of the largest run */

static cl_int enqueue(cl_command_queue q, cl_kernel k, cl_uint dims, const size_t *offset, const size_t *global,
                      const size_t *group, cl_uint n, const cl_event *list, cl_event *e)
{
    launches++;
    return api.EnqueueNDRangeKernel(q, k, dims, offset, global, group, n, list, e);
}

static infer_status dev_open(const infer_host *host, uint32_t index, infer_device **out)
{
    infer_status s = module->ops->dev_open(host, index, out);
    if (s)
        return s;
    api = counting = *(*out)->cl;
    counting.EnqueueNDRangeKernel = enqueue;
    (*out)->cl = &counting;
    return INFER_OK;
}

static infer_status op_query(infer_device *dev, const infer_op_desc *ops, uint32_t op_size, uint32_t n,
                             infer_op_answer *out, uint32_t answer_size)
{
    for (uint32_t i = 0; i < n; i++) {
        const infer_op_desc *op = (const infer_op_desc *)(const void *)((const uint8_t *)ops + (size_t)i * op_size);
        infer_op_answer *a = (infer_op_answer *)(void *)((uint8_t *)out + (size_t)i * answer_size);
        if (op->op == INFER_OP_SAMPLE)
            *a = (infer_op_answer){.struct_size = sizeof *a, .level = INFER_LEVEL_NO, .why = INFER_WHY_OP};
        else if (module->ops->op_query(dev, op, op_size, 1, a, answer_size))
            return INFER_E_INVALID;
    }
    return INFER_OK;
}

static infer_status prog_submit(infer_exec *exec, infer_queue *queue)
{
    launches = 0;
    infer_status s = module->ops->prog_submit(exec, queue);
    most = launches > most ? launches : most;
    return s;
}

static const infer_plugin_desc *query(const infer_host *host, const infer_abi_range *range)
{
    infer_plugin_query_fn f;
    char path[512];
    const char *build = getenv("INFER_BUILDDIR");
    snprintf(path, sizeof path, "%s/.libs/infer-opencl.so", build ? build : ".");
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL), *symbol = lib ? dlsym(lib, "infer_plugin_query") : NULL;
    if (!symbol)
        fail_msg("%s", dlerror());
    memcpy(&f, &symbol, sizeof f);
    module = f(host, range);
    assert_non_null(module);
    desc = *module;
    table = *module->ops;
    table.dev_open = dev_open;
    table.op_query = op_query;
    table.prog_submit = prog_submit;
    desc.ops = &table;
    return &desc;
}

/* ---- Whole models ------------------------------------------------------------------------------------------------ */

enum { PROMPT = 7, CONTEXT = 64 };

/* One row a step: a prompt of one token. Then a prompt of several, which few rows' kernels read. n: launches of each.
 */
static void run(const char *model, const char *cache, const char *const *settings, answer out[2], unsigned n[2])
{
    static const int32_t prompt[PROMPT] = {72, 101, 108, 108, 111, 32, 119};
    infer_runtime *rt = NULL;
    infer_runtime_options ro = {
        .struct_size = sizeof ro, .settings = settings, .backend_path = "", .allow_backends = "ref"};
    infer_error e = {0};
    rig r;
    while (settings[ro.n_settings])
        ro.n_settings++;
    if (infer_runtime_create(&ro, &rt, &e) || infer_hal_add(rt->hal, query, "in process", &e))
        fail_msg("%s", e.text);
    const rig_options o = {.model = model,
                           .devices = "opencl0",
                           .cache_type = cache,
                           .ctx = CONTEXT,
                           .parallel = 2,
                           .batched = 16,
                           .no_prefix_cache = 1,
                           .runtime = rt};
    rig_open(&r, &o);
    for (int i = 0; i < 2; i++) {
        most = 0;
        infer_request q = {
            .prompt = prompt, .n_prompt = i ? PROMPT : 1, .max_tokens = 6, .flags = INFER_REQ_IGNORE_EOS};
        answer *list[] = {&out[i]};
        rig_submit(&r, &q, &out[i]);
        assert_int_equal(rig_collect(&r, list, 1), INFER_OK);
        if (out[i].status)
            fail_msg("%s", out[i].error);
        n[i] = most;
    }
    rig_close(&r);
    infer_runtime_destroy(rt);
}

static void same(const answer *a, const answer *b)
{
    assert_int_equal(a->n, b->n);
    assert_true(a->n > 0);
    assert_memory_equal(a->ids, b->ids, a->n * sizeof *a->ids);
    assert_memory_equal(a->logprobs, b->logprobs, a->n * sizeof *a->logprobs);
}

static const struct model {
    const char *name, *args, *cache;
    unsigned lanes[2], items[2]; /* launches of a layer: of one row, of several */
} models[] = {
    {"llama, f32", "--arch llama --type f32", NULL, {5, 7}, {12, 12}},
    {"llama, q8_0", "--arch llama --type q8_0", NULL, {5, 7}, {12, 12}},
    {"llama, q8_0, cache q8_0", "--arch llama --type q8_0 --head-dim 32", "q8_0", {6, 8}, {12, 12}},
    {"qwen2, q4_0", "--arch qwen2 --type q4_0", "f32", {5, 7}, {12, 12}},
};

static void check(const struct model *m, const char *tune, const unsigned want[2])
{
    unsigned n[2][2], all[2];
    for (int i = 0; i < 2; i++) {
        char args[200], cut[40];
        answer one[2], each[2];
        snprintf(args, sizeof args, "--tiny %s --layers %d", m->args, 2 + i);
        snprintf(cut, sizeof cut, "opencl.tune=%s", tune);
        const char *model = rig_made(args);
        run(model, m->cache, (const char *const[]){cut, NULL}, one, n[i]);
        run(model, m->cache, (const char *const[]){cut, "opencl.merge=0", NULL}, each, all);
        for (int k = 0; k < 2; k++) {
            assert_true(all[k] > n[i][k]);
            same(&one[k], &each[k]);
            answer_free(&one[k]);
            answer_free(&each[k]);
        }
    }
    for (int k = 0; k < 2; k++) {
        printf("%s, %s, %s: %u launches a layer, %u beside them\n", m->name, tune, k ? "several rows" : "one row",
               n[1][k] - n[0][k], 3 * n[0][k] - 2 * n[1][k]);
        assert_int_equal(n[1][k] - n[0][k], want[k]);
    }
}

static void test_launches(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        check(&models[i], "lanes", models[i].lanes);
        check(&models[i], "items", models[i].items);
    }
}

/* ---- Programs of few nodes ----------------------------------------------------------------------------------------
 */

enum { ARENA, WEIGHTS, N_SLOTS };
/* places in the arena, caches too, and in what the program is given */
enum { X = 0, NORMED = 0x2000, Y = 0x4000, Y_STEP = 0x1000, TURNED = 0x7000, SUM = 0x8000 };
enum { K_POOL = 0xA000, V_POOL = 0xB000, SCRATCH = 0xC000, ARENA_BYTES = 0x20000 };
enum { NORM_W = 0, POS = 0x2000, SLOTS = 0x2040, FREQ = 0x2080, W = 0x4000, W_STEP = 0x80000, GIVEN = 4 * W_STEP };
enum { HEADS = 2, D = 32, BLOCK = 4, BLOCKS = 2 };

typedef struct graph {
    int64_t rows, k, n;
    infer_format x;
    fx_graph f;
} graph;

static const char *lanes(void *user, const char *backend, const char *key)
{
    (void)user, (void)backend;
    return !strcmp(key, "tune") ? "lanes" : NULL;
}

static void open_dev(fx_dev *d)
{
    const infer_hal_options o = {.allow = "ref", .backend_path = "", .config = lanes, .validate = 1};
    infer_error e = {0};
    static const uint64_t sizes[N_SLOTS] = {ARENA_BYTES, GIVEN};
    uint32_t seed = 7;
    *d = (fx_dev){0};
    if (infer_hal_create(&o, &d->hal, &e) || infer_hal_add(d->hal, query, "in process", &e) ||
        infer_hal_open(d->hal, "opencl0", &d->d, &e))
        fail_msg("%s", e.text);
    fx_dev_make(d, sizes, N_SLOTS);
    for (int i = 0; i < N_SLOTS; i++)
        for (uint64_t k = 0; k < sizes[i] / 4; k++)
            ((float *)(void *)d->was[i])[k] =
                (float)(int32_t)((seed = seed * 1664525u + 1013904223u) >> 8) / 8388608.0f - 1;
    for (int i = 0; i < 4; i++) {
        ((int32_t *)(void *)(d->was[WEIGHTS] + POS))[i] = 17 + 5 * i;
        ((int32_t *)(void *)(d->was[WEIGHTS] + SLOTS))[i] = BLOCK + 2 - 2 * i;
    }
}

static void add_row(graph *g, infer_tensor_desc t, uint64_t from, uint64_t to)
{
    fx_begin(&g->f, INFER_OP_ADD, NULL, 0);
    fx_operand(&g->f, 0, t, ARENA, from);
    fx_operand(&g->f, 0, t, ARENA, from);
    fx_operand(&g->f, 1, t, ARENA, to);
}

static infer_tensor_desc matrix(infer_format f, int64_t rows, int64_t columns)
{
    return infer_tensor_make(f, 2, rows, columns, 1, 1);
}

/* op: MATMUL, QKV, GATED_MLP. */
static void graph_make(graph *g, infer_op_id op)
{
    const infer_attrs_norm norm = {.struct_size = sizeof norm, .eps = 1e-5f, .weight_offset = 1};
    const infer_attrs_matmul product = {.struct_size = sizeof product};
    const infer_attrs_act act = {.struct_size = sizeof act, .act = INFER_ACT_SILU, .limit = 2};
    const infer_tensor_desc x = matrix(g->x, g->rows, g->k), y = matrix(INFER_FMT_F32, g->rows, g->n);
    g->f.n_nodes = 0;
    fx_begin(&g->f, INFER_OP_RMS_NORM, &norm, sizeof norm);
    fx_operand(&g->f, 0, x, ARENA, X);
    fx_operand(&g->f, 0, infer_tensor_make(INFER_FMT_F32, 1, g->k, 1, 1, 1), WEIGHTS, NORM_W);
    fx_operand(&g->f, 1, matrix(INFER_FMT_F32, g->rows, g->k), ARENA, NORMED)->flags = INFER_OPERAND_INNER;
    if (op == INFER_OP_MATMUL)
        fx_begin(&g->f, op, &product, sizeof product);
    else if (op == INFER_OP_QKV)
        fx_begin(&g->f, op, NULL, 0);
    else
        fx_begin(&g->f, op, &act, sizeof act);
    fx_operand(&g->f, 0, matrix(INFER_FMT_F32, g->rows, g->k), ARENA, NORMED);
    for (uint32_t i = 0; i < (op == INFER_OP_MATMUL ? 1 : op == INFER_OP_QKV ? 3 : 2); i++)
        fx_operand(&g->f, 0, matrix(INFER_FMT_F32, g->n, g->k), WEIGHTS, W + i * W_STEP);
    if (op == INFER_OP_GATED_MLP) {
        fx_operand(&g->f, 0, matrix(INFER_FMT_F32, g->n, g->n), WEIGHTS, W + 2 * W_STEP);
        g->f.nodes[1].scratch = (infer_operand){.slot = ARENA, .offset = SCRATCH, .size = 0x4000};
    }
    for (uint32_t i = 0; i < (op == INFER_OP_QKV ? 3u : 1u); i++)
        fx_operand(&g->f, 1, y, ARENA, Y + i * Y_STEP)->flags = INFER_OPERAND_INNER;
}

static infer_tensor_desc heads_of(const graph *g)
{
    return infer_tensor_make(INFER_FMT_F32, 3, g->rows, HEADS, D, 1);
}

/* What a decoder has behind a QKV. */
static void add_ropes(graph *g, uint32_t kind, uint32_t dims)
{
    const infer_tensor_desc pos = infer_tensor_make(INFER_FMT_I32, 2, g->rows, 1, 1, 1),
                            freq = infer_tensor_make(INFER_FMT_F32, 1, dims / 2, 1, 1, 1),
                            pool = infer_tensor_make(INFER_FMT_F16, 4, BLOCKS, HEADS, BLOCK, D);
    infer_attrs_rope_kv both = {.struct_size = sizeof both};
    both.rope = (infer_attrs_rope){
        .struct_size = sizeof both.rope, .kind = kind, .n_dims = dims, .magnitude = 1.25f, .n_pos = 1};
    both.kv = (infer_attrs_kv){.struct_size = sizeof both.kv,
                               .k_format = INFER_FMT_F16,
                               .v_format = INFER_FMT_F16,
                               .n_kv_heads = HEADS,
                               .k_width = D,
                               .v_width = D,
                               .block_size = BLOCK,
                               .n_blocks = BLOCKS};
    fx_begin(&g->f, INFER_OP_ROPE, &both.rope, sizeof both.rope);
    fx_operand(&g->f, 0, heads_of(g), ARENA, Y);
    fx_operand(&g->f, 0, pos, WEIGHTS, POS);
    fx_operand(&g->f, 0, freq, WEIGHTS, FREQ);
    fx_operand(&g->f, 1, heads_of(g), ARENA, TURNED);
    fx_begin(&g->f, INFER_OP_ROPE_KV_WRITE, &both, sizeof both);
    fx_operand(&g->f, 0, heads_of(g), ARENA, Y + Y_STEP);
    fx_operand(&g->f, 0, heads_of(g), ARENA, Y + 2 * Y_STEP);
    fx_operand(&g->f, 0, pos, WEIGHTS, POS);
    fx_operand(&g->f, 0, freq, WEIGHTS, FREQ);
    fx_operand(&g->f, 0, infer_tensor_make(INFER_FMT_I32, 1, g->rows, 1, 1, 1), WEIGHTS, SLOTS);
    fx_operand(&g->f, 1, pool, ARENA, K_POOL);
    fx_operand(&g->f, 1, pool, ARENA, V_POOL);
}

static void fill(fx_dev *d)
{
    for (uint32_t i = 0; i < N_SLOTS; i++)
        fx_copy(d, i, NULL, d->was[i]);
}

static unsigned node_by_node(fx_dev *d, const graph *g)
{
    fill(d);
    launches = 0;
    for (uint32_t i = 0; i < g->f.n_nodes; i++) {
        const infer_op_desc *op = &g->f.node[i].op;
        infer_op_answer a = {.struct_size = sizeof a};
        assert_int_equal(d->ops->op_query(d->h, op, sizeof *op, 1, &a, sizeof a), INFER_OK);
        assert_int_not_equal(a.level, INFER_LEVEL_NO);
        assert_true(a.scratch_bytes <= g->f.nodes[i].scratch.size);
        fx_run_node(d, &g->f, i);
    }
    unsigned n = launches;
    fx_copy(d, ARENA, d->one[ARENA], NULL);
    return n;
}

/* Bound elsewhere first, then to where it is: a changed slot takes all launches along. */
static unsigned as_program(fx_dev *d, const graph *g)
{
    static const infer_slot_desc kinds[N_SLOTS] = {{.kind = INFER_SLOT_ARENA, .rebindable = 1},
                                                   {.kind = INFER_SLOT_WEIGHT}};
    infer_range ranges[N_SLOTS];
    infer_exec *e = NULL;
    infer_buffer *other = NULL;
    assert_int_equal(d->ops->buf_alloc(d->h, 0, ARENA_BYTES, &other), INFER_OK);
    fill(d);
    infer_program *p = fx_build(d, &g->f, kinds, (uint32_t)g->rows, ranges);
    ranges[ARENA].buffer = other;
    assert_int_equal(d->ops->prog_instantiate(p, d->q, ranges, N_SLOTS, &e), INFER_OK);
    ranges[ARENA].buffer = d->b[ARENA];
    assert_int_equal(d->ops->prog_update(e, ARENA, &ranges[ARENA]), INFER_OK);
    assert_int_equal(d->ops->prog_submit(e, d->q), INFER_OK);
    unsigned n = launches;
    fx_copy(d, ARENA, d->all[ARENA], NULL);
    d->ops->exec_destroy(e);
    d->ops->prog_destroy(p);
    d->ops->buf_free(d->h, other);
    return n;
}

/* What a program may differ in. */
typedef void (*change_fn)(graph *g);

static void as_it_is(graph *g)
{
    (void)g;
}

static void is_a_result(graph *g)
{
    g->f.node[0].at[2].flags = 0;
}

static void is_read_later(graph *g)
{
    add_row(g, matrix(INFER_FMT_F32, g->rows, g->k), NORMED, SUM);
}

static void is_written_anew(graph *g)
{
    g->f.node[0].at[2].flags = 0;
    add_row(g, matrix(INFER_FMT_F32, g->rows, g->k), Y, NORMED);
}

static void is_of_another_row(graph *g)
{
    g->f.node[1].at[0].offset = SUM;
}

static void x_at_an_odd_place(graph *g)
{
    g->f.node[0].at[0].offset = X + 4;
}

/* The output, as wide as x, where x is. */
static void over_x(graph *g)
{
    const fx_node *n = &g->f.node[1];
    g->f.node[1].at[n->op.n_in].offset = X;
}

static void weights_are_made(graph *g)
{
    g->f.node[0].at[1].slot = ARENA;
    g->f.node[0].at[1].offset = SUM;
}

static void scratch_over_x(graph *g)
{
    g->f.nodes[1].scratch.offset = X;
    g->f.node[0].at[2].offset = g->f.node[1].at[0].offset = SUM;
}

static void with_halves(graph *g)
{
    add_ropes(g, INFER_ROPE_HALVES, D);
}

static void with_pairs(graph *g)
{
    add_ropes(g, INFER_ROPE_PAIRS, D);
}

static void with_half_of_a_head(graph *g)
{
    add_ropes(g, INFER_ROPE_HALVES, D / 2);
}

static void queries_are_a_result(graph *g)
{
    with_halves(g);
    g->f.node[1].at[4].flags = 0;
}

static void keys_are_read_later(graph *g)
{
    with_halves(g);
    add_row(g, matrix(INFER_FMT_F32, g->rows, g->n), Y + Y_STEP, SUM);
}

static void other_queries(graph *g)
{
    with_halves(g);
    g->f.node[2].at[0].offset = SUM;
}

static void keys_and_values_change_places(graph *g)
{
    with_halves(g);
    g->f.node[3].at[0].offset = Y + 2 * Y_STEP;
    g->f.node[3].at[1].offset = Y + Y_STEP;
}

static void rotated_over_x(graph *g)
{
    with_halves(g);
    g->f.node[2].at[3].offset = X;
}

static void rotated_over_normed(graph *g)
{
    with_halves(g);
    g->f.node[2].at[3].offset = NORMED;
}

static const struct change {
    const char *what;
    change_fn change;
    infer_op_id op;
    int64_t rows, k, n;
    unsigned fewer; /* launches than node by node */
} changes[] = {
    {"product", as_it_is, INFER_OP_MATMUL, 1, 128, 96, 1},
    {"product, many columns", as_it_is, INFER_OP_MATMUL, 1, 64, 520, 1},
    {"product, rows of no whole groups", as_it_is, INFER_OP_MATMUL, 1, 77, 9, 1},
    {"qkv", as_it_is, INFER_OP_QKV, 1, 128, 100, 1},
    {"gated", as_it_is, INFER_OP_GATED_MLP, 1, 128, 96, 1},
    {"long rows", as_it_is, INFER_OP_GATED_MLP, 1, 1100, 40, 1},
    {"x at an odd place", x_at_an_odd_place, INFER_OP_QKV, 1, 128, 96, 1},
    {"two rows", as_it_is, INFER_OP_QKV, 2, 128, 96, 0},
    {"a result", is_a_result, INFER_OP_MATMUL, 1, 128, 96, 0},
    {"read later", is_read_later, INFER_OP_MATMUL, 1, 128, 96, 0},
    {"written anew", is_written_anew, INFER_OP_MATMUL, 1, 128, 128, 1},
    {"of another row", is_of_another_row, INFER_OP_MATMUL, 1, 128, 96, 0},
    {"output over x", over_x, INFER_OP_MATMUL, 1, 128, 128, 0},
    {"last output over x", over_x, INFER_OP_GATED_MLP, 1, 128, 128, 1},
    {"weights are made", weights_are_made, INFER_OP_MATMUL, 1, 128, 96, 0},
    {"scratch over x", scratch_over_x, INFER_OP_GATED_MLP, 1, 128, 96, 0},
    {"rotated by halves", with_halves, INFER_OP_QKV, 1, 128, HEADS *D, 3},
    {"rotated by pairs", with_pairs, INFER_OP_QKV, 1, 77, HEADS *D, 3},
    {"rotated, three rows", with_halves, INFER_OP_QKV, 3, 128, HEADS *D, 2},
    {"rotated in part", with_half_of_a_head, INFER_OP_QKV, 1, 128, HEADS *D, 2},
    {"queries are a result", queries_are_a_result, INFER_OP_QKV, 1, 128, HEADS *D, 2},
    {"keys are read later", keys_are_read_later, INFER_OP_QKV, 1, 128, HEADS *D, 2},
    {"other queries", other_queries, INFER_OP_QKV, 1, 128, HEADS *D, 2},
    {"keys and values change places", keys_and_values_change_places, INFER_OP_QKV, 1, 128, HEADS *D, 2},
    {"rotated over x", rotated_over_x, INFER_OP_QKV, 1, 128, HEADS *D, 2},
    {"rotated over what is normed", rotated_over_normed, INFER_OP_QKV, 1, 128, HEADS *D, 3},
    {"rotated over what is normed, two rows", rotated_over_normed, INFER_OP_QKV, 2, 128, HEADS *D, 1},
};

/* What node i makes is as node by node, where only the program's nodes read it, but for what another one puts there. */
static void hide(fx_dev *d, const graph *g, uint32_t i)
{
    const fx_node *n = &g->f.node[i];
    for (uint32_t k = n->op.n_in; k < n->op.n_in + n->op.n_out; k++) {
        const infer_operand *o = &n->at[k];
        uint64_t anew = 0;
        for (uint32_t m = i + 1; m < g->f.n_nodes; m++) {
            const infer_operand *y = &g->f.node[m].at[g->f.node[m].op.n_in];
            anew = y->offset == o->offset ? y->size : anew;
        }
        if ((o->flags & INFER_OPERAND_INNER) && i + 1 < g->f.n_nodes && anew < o->size)
            memcpy(d->all[ARENA] + o->offset + anew, d->one[ARENA] + o->offset + anew, o->size - anew);
    }
}

static void test_programs(void **state)
{
    (void)state;
    fx_dev d;
    open_dev(&d);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        const struct change *c = &changes[i];
        graph g = {.f.counts.slot = INFER_SLOT_ABSENT, .rows = c->rows, .k = c->k, .n = c->n, .x = INFER_FMT_F32};
        graph_make(&g, c->op);
        c->change(&g);
        unsigned each = node_by_node(&d, &g), all = as_program(&d, &g);
        printf("%s: %u launches, %u one by one\n", c->what, all, each);
        assert_int_equal(each - all, c->fewer);
        for (uint32_t k = 0; k < 2; k++) /* what only the program's nodes read may be nowhere */
            hide(&d, &g, k);
        assert_memory_equal(d.one[ARENA], d.all[ARENA], SCRATCH);
        assert_memory_not_equal(d.was[ARENA], d.all[ARENA], SCRATCH);
    }
    fx_dev_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_programs), cmocka_unit_test(test_launches)};
    if (!rig_has("opencl0"))
        return 77;
    rig_watchdog(900);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
