/*
 * Which launches the CUDA backend makes of a rotation of queries, a write of keys and values and an attention: one, two
 * or three, by what a program's operands say; and whether attention puts its result in the layout of a product behind
 * it. Each time the same bytes as the nodes one by one, on the driver in host memory.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include "plugins/graph_fixture.h"

#include <dlfcn.h>

#include "cuda.h"
#include "packed.h"

enum { HEADS = 4, KV = 2, D = 64, BLOCK = 16, BLOCKS = 8, SEQS = 2, TABLE = 4, COUNT = 3, CAP = 4, MOST = 17 };
enum { CROWD = 40, CROWD_COUNT = 25, WIDTH = 192 }; /* room for rows, rows, columns of the product */
enum { ARENA, CACHE, STEP, WEIGHT, N_SLOTS };
/* places in the arena, in the cache, in the step */
enum { Q = 0, K = 0x10000, V = 0x20000, QR = 0x30000, Y = 0x40000, SUM = 0x50000, OUT = 0x60000, SCRATCH = 0x70000 };
enum { PLANE = BLOCKS * KV * BLOCK * D * 2 };
enum {
    COUNTS = 0,
    POS = 0x100,
    SLOTS = 0x200,
    TABLES = 0x300,
    LENS = 0x400,
    STARTS = 0x500,
    FREQ = 0x600,
    FREQ2 = 0x700
};

static char driver[512];
static const char *panels; /* the setting */
static unsigned (*runs_of)(const char *begin);

static const char *config(void *user, const char *backend, const char *key)
{
    (void)user;
    (void)backend;
    return !strcmp(key, "driver") ? driver : !strcmp(key, "panels") ? panels : NULL;
}

typedef struct graph {
    int64_t rows;
    fx_graph f;
} graph;

static void dev_open(fx_dev *d, uint64_t scratch)
{
    const infer_hal_options o = {.allow = "ref", .backend_path = "", .config = config, .validate = 1};
    infer_error e = {0};
    const uint64_t sizes[N_SLOTS] = {SCRATCH + scratch, 4 * PLANE, 0x800, WIDTH * HEADS * D * 2};
    *d = (fx_dev){0};
    if (infer_hal_create(&o, &d->hal, &e) || infer_hal_add(d->hal, infer_plugin_query, "in process", &e) ||
        infer_hal_open(d->hal, "cuda0", &d->d, &e))
        fail_msg("%s", e.text);
    fx_dev_make(d, sizes, N_SLOTS);
}

/* Two sequences, of two rows and of one; a fourth row that the counts do not count. Or many: of 20 rows, which have a
 * kernel of their own, and of 3; two rows of none, and no more. */
static void fill(fx_dev *d, int crowd)
{
    static const int32_t table[] = {5, 2, 1, 1, 7, 0, 0, 0};
    int32_t pos[CROWD] = {17, 18, 6, 40}, lens[] = {19, 7}, starts[] = {0, 2, 3}, count = COUNT;
    int32_t slots[CROWD] = {2 * BLOCK + 1, 2 * BLOCK + 2, 7 * BLOCK + 6, 3 * BLOCK};
    uint32_t seed = 7;
    if (crowd) {
        count = CROWD_COUNT;
        lens[0] = 37;
        lens[1] = 18;
        starts[1] = 20;
        starts[2] = 23;
        for (int i = 0; i < CROWD; i++) {
            const int s = i >= starts[1];
            pos[i] = lens[s] - starts[s + 1] + i;
            slots[i] = i < starts[2] ? table[s * TABLE + pos[i] / BLOCK] * BLOCK + pos[i] % BLOCK : -1;
        }
    }
    for (uint64_t i = 0; i < d->size[ARENA] / 4; i++)
        ((float *)(void *)d->was[ARENA])[i] =
            (float)(int32_t)((seed = seed * 1664525u + 1013904223u) >> 8) / 8388608.0f - 1;
    for (uint64_t i = 0; i < d->size[CACHE] / 2; i++)
        ((uint16_t *)(void *)d->was[CACHE])[i] =
            (uint16_t)(0x3000 + ((seed = seed * 1664525u + 1013904223u) >> 20) % 0xC00);
    uint8_t *s = d->was[STEP];
    memcpy(s + COUNTS, &count, 4);
    for (uint64_t i = 0; i < d->size[WEIGHT] / 2; i++) {
        seed = seed * 1664525u + 1013904223u;
        ((uint16_t *)(void *)d->was[WEIGHT])[i] = (uint16_t)(0x3D00 + (seed >> 20) % 0x200 + (seed >> 31 << 15));
    }
    memcpy(s + POS, pos, sizeof pos);
    memcpy(s + LENS, lens, sizeof lens);
    memcpy(s + STARTS, starts, sizeof starts);
    memcpy(s + SLOTS, slots, sizeof slots);
    memcpy(s + TABLES, table, sizeof table);
    for (int i = 0; i < D / 2; i++) {
        ((float *)(void *)(s + FREQ))[i] = 1.0f / (float)(1 + i);
        ((float *)(void *)(s + FREQ2))[i] = 1.0f / (float)(1 + i);
    }
    for (int i = 0; i < N_SLOTS; i++)
        fx_copy(d, (uint32_t)i, NULL, d->was[i]);
}

static infer_tensor_desc heads_of(const graph *g, int64_t heads)
{
    return infer_tensor_make(INFER_FMT_F32, 3, g->rows, heads, D, 1);
}

static void graph_make(graph *g, int64_t rows, uint32_t kind)
{
    const infer_tensor_desc pos = infer_tensor_make(INFER_FMT_I32, 2, rows, 1, 1, 1),
                            freq = infer_tensor_make(INFER_FMT_F32, 1, D / 2, 1, 1, 1),
                            pool = infer_tensor_make(INFER_FMT_F16, 4, BLOCKS, KV, BLOCK, D);
    infer_attrs_rope_kv both = {.struct_size = sizeof both};
    both.rope =
        (infer_attrs_rope){.struct_size = sizeof both.rope, .kind = kind, .n_dims = D, .magnitude = 1, .n_pos = 1};
    both.kv = (infer_attrs_kv){.struct_size = sizeof both.kv,
                               .k_format = INFER_FMT_F16,
                               .v_format = INFER_FMT_F16,
                               .n_kv_heads = KV,
                               .k_width = D,
                               .v_width = D,
                               .block_size = BLOCK,
                               .n_blocks = BLOCKS};
    const infer_attrs_attn attn = {
        .struct_size = sizeof attn, .mask = INFER_MASK_CAUSAL, .scale = 0.25f, .n_heads = HEADS, .kv = both.kv};
    *g = (graph){.rows = rows, .f.counts = {.slot = STEP, .offset = COUNTS, .size = 64}};
    fx_begin(&g->f, INFER_OP_ROPE, &both.rope, sizeof both.rope);
    fx_operand(&g->f, 0, heads_of(g, HEADS), ARENA, Q);
    fx_operand(&g->f, 0, pos, STEP, POS);
    fx_operand(&g->f, 0, freq, STEP, FREQ);
    fx_operand(&g->f, 1, heads_of(g, HEADS), ARENA, QR)->flags = INFER_OPERAND_INNER;
    fx_begin(&g->f, INFER_OP_ROPE_KV_WRITE, &both, sizeof both);
    fx_operand(&g->f, 0, heads_of(g, KV), ARENA, K);
    fx_operand(&g->f, 0, heads_of(g, KV), ARENA, V);
    fx_operand(&g->f, 0, pos, STEP, POS);
    fx_operand(&g->f, 0, freq, STEP, FREQ);
    fx_operand(&g->f, 0, infer_tensor_make(INFER_FMT_I32, 1, rows, 1, 1, 1), STEP, SLOTS);
    fx_operand(&g->f, 1, pool, CACHE, 0);
    fx_operand(&g->f, 1, pool, CACHE, PLANE);
    fx_begin(&g->f, INFER_OP_ATTN_PAGED, &attn, sizeof attn);
    fx_operand(&g->f, 0, heads_of(g, HEADS), ARENA, QR);
    fx_operand(&g->f, 0, pool, CACHE, 0);
    fx_operand(&g->f, 0, pool, CACHE, PLANE);
    fx_operand(&g->f, 0, infer_tensor_make(INFER_FMT_I32, 2, SEQS, TABLE, 1, 1), STEP, TABLES);
    fx_operand(&g->f, 0, infer_tensor_make(INFER_FMT_I32, 1, SEQS, 1, 1, 1), STEP, LENS);
    fx_operand(&g->f, 0, infer_tensor_make(INFER_FMT_I32, 1, SEQS + 1, 1, 1, 1), STEP, STARTS);
    fx_operand(&g->f, 1, heads_of(g, HEADS), ARENA, Y);
}

static void add_node(graph *g, uint64_t from, uint64_t to)
{
    const infer_tensor_desc t = infer_tensor_make(INFER_FMT_F32, 2, g->rows, HEADS * D, 1, 1);
    fx_begin(&g->f, INFER_OP_ADD, NULL, 0);
    fx_operand(&g->f, 0, t, ARENA, from);
    fx_operand(&g->f, 0, t, ARENA, from);
    fx_operand(&g->f, 1, t, ARENA, to);
}

/* Attention's result by packed weights. */
static void product_node(graph *g)
{
    const infer_attrs_matmul attrs = {.struct_size = sizeof attrs};
    infer_tensor_desc w = infer_tensor_make(INFER_FMT_BF16, 2, WIDTH, HEADS * D, 1, 1);
    g->f.node[2].at[6].flags = INFER_OPERAND_INNER;
    fx_begin(&g->f, INFER_OP_MATMUL, &attrs, sizeof attrs);
    fx_operand(&g->f, 0, infer_tensor_make(INFER_FMT_F32, 2, g->rows, HEADS * D, 1, 1), ARENA, Y);
    fx_operand(&g->f, 0, w, WEIGHT, 0);
    g->f.node[3].t[1].layout = CUDA_LAYOUT_PACKED;
    fx_operand(&g->f, 1, infer_tensor_make(INFER_FMT_F32, 2, g->rows, WIDTH, 1, 1), ARENA, OUT);
}

/* Puts a node's scratch at a place; where it ends. */
static uint64_t scratch_at(const fx_dev *d, graph *g, uint32_t i, uint64_t at)
{
    infer_op_answer a = {.struct_size = sizeof a};
    assert_int_equal(d->ops->op_query(d->h, &g->f.node[i].op, sizeof g->f.node[i].op, 1, &a, sizeof a), INFER_OK);
    assert_int_not_equal(a.level, INFER_LEVEL_NO);
    assert_in_range(a.scratch_bytes, 0, d->size[ARENA] - at);
    if (a.scratch_bytes)
        g->f.nodes[i].scratch = (infer_operand){.slot = ARENA, .offset = at, .size = a.scratch_bytes};
    return at + (a.scratch_bytes + 255) / 256 * 256;
}

static void node_by_node(fx_dev *d, const graph *g)
{
    fill(d, g->rows == CROWD);
    for (uint32_t i = 0; i < g->f.n_nodes; i++)
        fx_run_node(d, &g->f, i);
    for (uint32_t i = 0; i < N_SLOTS; i++)
        fx_copy(d, i, d->one[i], NULL);
}

static void as_program(fx_dev *d, const graph *g)
{
    static const infer_slot_desc kinds[N_SLOTS] = {
        {.kind = INFER_SLOT_ARENA}, {.kind = INFER_SLOT_KV}, {.kind = INFER_SLOT_STEP}, {.kind = INFER_SLOT_WEIGHT}};
    infer_range ranges[N_SLOTS];
    infer_exec *e = NULL;
    fill(d, g->rows == CROWD);
    infer_program *p = fx_build(d, &g->f, kinds, (uint32_t)g->rows, ranges);
    assert_int_equal(d->ops->prog_instantiate(p, d->q, ranges, N_SLOTS, &e), INFER_OK);
    assert_int_equal(d->ops->prog_submit(e, d->q), INFER_OK);
    for (uint32_t i = 0; i < N_SLOTS; i++)
        fx_copy(d, i, d->all[i], NULL);
    d->ops->exec_destroy(e);
    d->ops->prog_destroy(p);
}

/* ---- What a program may differ in ------------------------------------------------------------------------------- */

typedef void (*change_fn)(graph *g);

static void as_it_is(graph *g)
{
    (void)g;
}

static void queries_are_a_result(graph *g)
{
    g->f.node[0].at[3].flags = 0;
}

static void queries_are_written_anew(graph *g)
{
    g->f.node[0].at[3].flags = 0;
    add_node(g, Y, QR);
}

static void queries_are_read_later(graph *g)
{
    add_node(g, QR, SUM);
}

static void attention_reads_another_cache(graph *g)
{
    g->f.node[2].at[1].offset = 2 * PLANE;
    g->f.node[2].at[2].offset = 3 * PLANE;
}

static void values_go_to_another_cache(graph *g)
{
    g->f.node[1].at[6].offset = 3 * PLANE;
}

static void attention_reads_other_queries(graph *g)
{
    g->f.node[2].at[0].offset = SUM;
}

static void result_over_queries(graph *g)
{
    g->f.node[2].at[6].offset = Q;
}

static void result_over_values(graph *g)
{
    g->f.node[2].at[6].offset = V - 0x100;
}

static void scratch_over_keys(graph *g)
{
    g->f.node[1].at[0].offset = SCRATCH + 0x400;
}

static void queries_at_an_odd_place(graph *g)
{
    g->f.node[0].at[0].offset = SUM + 4;
}

static void frequencies_elsewhere(graph *g)
{
    g->f.node[0].at[2].offset = FREQ2;
}

static void another_magnitude(graph *g)
{
    g->f.node[0].attrs.rope.magnitude = 2;
}

static void counted_by_others(graph *g)
{
    g->f.node[2].op.rows_from = INFER_ROWS_STATIC;
}

static void rotated_over_keys(graph *g)
{
    g->f.node[1].at[0].offset = QR + 0x100;
}

static const struct change {
    const char *what;
    change_fn change;
    int64_t rows;
    unsigned alone, joined, made; /* launches: of queries alone, of all three at once, within attention */
} changes[] = {
    {"as it is", as_it_is, CAP, 0, 0, 1},
    {"one row", as_it_is, 1, 0, 0, 1},
    {"queries are written anew", queries_are_written_anew, CAP, 0, 0, 1},
    {"too many rows", as_it_is, MOST, 0, 1, 0},
    {"queries are a result", queries_are_a_result, CAP, 0, 1, 0},
    {"queries are read later", queries_are_read_later, CAP, 0, 1, 0},
    {"attention reads another cache", attention_reads_another_cache, CAP, 0, 1, 0},
    {"values go to another cache", values_go_to_another_cache, CAP, 0, 1, 0},
    {"attention reads other queries", attention_reads_other_queries, CAP, 0, 1, 0},
    {"the result is where queries were", result_over_queries, CAP, 0, 1, 0},
    {"the result is where values were", result_over_values, CAP, 0, 1, 0},
    {"scratch is where keys were", scratch_over_keys, CAP, 0, 1, 0},
    {"queries at an odd place", queries_at_an_odd_place, CAP, 0, 1, 0},
    {"rows are counted by something else", counted_by_others, CAP, 0, 1, 0},
    {"frequencies are elsewhere", frequencies_elsewhere, CAP, 1, 1, 0},
    {"another magnitude", another_magnitude, CAP, 1, 1, 0},
    {"rotated queries are where keys were", rotated_over_keys, CAP, 1, 1, 0},
};

static void test_launches(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2 * (sizeof changes / sizeof *changes); i++) {
        const struct change *c = &changes[i / 2];
        graph g;
        fx_dev d;
        graph_make(&g, c->rows, i % 2 ? INFER_ROPE_HALVES : INFER_ROPE_PAIRS);
        dev_open(&d, 1 << 20);
        assert_true(scratch_at(&d, &g, 2, SCRATCH) > SCRATCH);
        c->change(&g);
        node_by_node(&d, &g);
        const unsigned writes = runs_of("rope_writes"), both = runs_of("rope_write"), made = runs_of("few_rope_");
        as_program(&d, &g);
        const unsigned joined = runs_of("rope_writes") - writes, alone = runs_of("rope_write") - both - joined;
        printf("%s: %u %u %u\n", c->what, alone, joined, runs_of("few_rope_") - made);
        assert_int_equal(alone, c->alone);
        assert_int_equal(joined, c->joined);
        assert_int_equal(runs_of("few_rope_") - made, c->made);
        if (c->made) /* rotated queries are nowhere */
            memcpy(d.all[ARENA] + QR, d.one[ARENA] + QR, Y - QR);
        assert_memory_equal(d.one[CACHE], d.all[CACHE], d.size[CACHE]);
        assert_memory_equal(d.one[ARENA], d.all[ARENA], SCRATCH);
        assert_memory_not_equal(d.was[CACHE], d.all[CACHE], d.size[CACHE]);
        fx_dev_close(&d);
    }
}

/* ---- Attention and the product behind it ------------------------------------------------------------------------- */

static void result_is_read_elsewhere(graph *g)
{
    g->f.node[2].at[6].flags = 0;
}

static void result_is_written_anew(graph *g)
{
    g->f.node[2].at[6].flags = 0;
    add_node(g, OUT, Y);
}

static void result_is_read_later(graph *g)
{
    add_node(g, Y, SUM);
}

static void product_reads_something_else(graph *g)
{
    g->f.node[3].at[0].offset = SUM;
}

static void product_is_counted_otherwise(graph *g)
{
    g->f.node[3].op.rows_from = INFER_ROWS_STATIC;
}

static void product_adds_its_x(graph *g)
{
    static const infer_epilogue add = {.kind = INFER_EPI_RESIDUAL, .operand = 3};
    fx_node *n = &g->f.node[3];
    n->t[3] = n->t[4] = n->t[2];
    n->at[3] = n->at[4] = n->at[2];
    n->at[3].offset = Y;
    n->t[2] = infer_tensor_make(INFER_FMT_F32, 1, WIDTH, 1, 1, 1); /* no bias */
    n->t[2].flags = INFER_TENSOR_ABSENT;
    n->at[2] = (infer_operand){.slot = INFER_SLOT_ABSENT};
    n->op.n_in = 4;
    n->op.n_epilogue = 1;
    n->op.epilogue = &add;
}

static void product_keeps_all_bits(graph *g)
{
    g->f.node[3].attrs.matmul.act_format = INFER_FMT_F32;
}

static void result_of_product_over_it(graph *g)
{
    g->f.node[3].at[2].offset = Y + 0x100;
}

static void result_at_an_odd_place(graph *g)
{
    g->f.node[2].at[6].offset = g->f.node[3].at[0].offset = Y + 64;
}

static void result_where_queries_were(graph *g)
{
    g->f.node[2].at[6].offset = g->f.node[3].at[0].offset = Q;
}

static void result_over_its_queries(graph *g)
{
    g->f.node[2].at[6].offset = g->f.node[3].at[0].offset = QR;
}

static const struct hand {
    const char *what;
    change_fn change;
    int64_t rows;
    unsigned x; /* launches that put it in the layout */
    const char *panels;
} hands[] = {
    {"as it is", as_it_is, CROWD, 0, NULL},
    {"rotations within attention", as_it_is, 8, 0, NULL},
    {"turned off", as_it_is, CROWD, 1, "0"},
    {"too few rows for a whole tile", as_it_is, CAP, 1, NULL},
    {"written anew", result_is_written_anew, CROWD, 0, NULL},
    {"where queries were before they were rotated", result_where_queries_were, CROWD, 0, NULL},
    {"read elsewhere", result_is_read_elsewhere, CROWD, 1, NULL},
    {"read later", result_is_read_later, CROWD, 1, NULL},
    {"the product reads something else", product_reads_something_else, CROWD, 1, NULL},
    {"the product's rows are counted otherwise", product_is_counted_otherwise, CROWD, 1, NULL},
    {"the product adds its x", product_adds_its_x, CROWD, 1, NULL},
    {"the product keeps all bits", product_keeps_all_bits, CROWD, 0, NULL},
    {"the product writes over it", result_of_product_over_it, CROWD, 1, NULL},
    {"at an odd place", result_at_an_odd_place, CROWD, 1, NULL},
    {"over attention's queries", result_over_its_queries, CROWD, 1, NULL},
};

static void test_handed(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof hands / sizeof *hands; i++) {
        const struct hand *c = &hands[i];
        graph g;
        fx_dev d;
        graph_make(&g, c->rows, INFER_ROPE_HALVES);
        product_node(&g);
        panels = c->panels;
        dev_open(&d, 2 << 20);
        c->change(&g);
        (void)scratch_at(&d, &g, 3, scratch_at(&d, &g, 2, SCRATCH));
        node_by_node(&d, &g);
        const unsigned x = runs_of("gemm_x_"), many = runs_of("many_");
        as_program(&d, &g);
        printf("%s: %u\n", c->what, runs_of("gemm_x_") - x);
        assert_int_equal(runs_of("gemm_x_") - x, c->x);
        assert_int_equal(runs_of("many_") - many, c->rows == CROWD);
        uint64_t y = g.f.node[2].at[6].offset;
        const uint64_t end = y + g.f.node[2].at[6].size;
        if (c->change == result_is_written_anew) /* but for rows that are not there */
            y += CROWD_COUNT * HEADS * D * 4;
        if (!c->x && c->change != product_keeps_all_bits) /* x of another layout is there */
            memcpy(d.all[ARENA] + y, d.one[ARENA] + y, end - y);
        memcpy(d.all[ARENA] + QR, d.one[ARENA] + QR, Y - QR); /* rotated queries may be nowhere */
        assert_memory_equal(d.one[CACHE], d.all[CACHE], d.size[CACHE]);
        assert_memory_equal(d.one[ARENA], d.all[ARENA], SCRATCH);
        const uint64_t out = g.f.node[3].at[g.f.node[3].op.n_in].offset;
        assert_memory_not_equal(d.was[ARENA] + out, d.one[ARENA] + out, 0x1000);
        fx_dev_close(&d);
    }
    panels = NULL;
}

int main(void)
{
    const char *build = getenv("INFER_BUILDDIR");
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_launches), cmocka_unit_test(test_handed)};
    snprintf(driver, sizeof driver, "%s/tests/plugins/fakecuda/.libs/libfakecuda.so", build ? build : ".");
    void *lib = dlopen(driver, RTLD_NOW), *f = lib ? dlsym(lib, "fakecuda_runs") : NULL;
    if (!f) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    memcpy(&runs_of, &f, sizeof runs_of);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
