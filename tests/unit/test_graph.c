/* core/graph: random graphs, cut over several devices, fused, claimed and planned in every way, give bit for bit what
 * their nodes give one by one on memory of their own. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "unit/unit.h"

#include <ctype.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "graph/compile.h"
#include "graph/graph.h"
#include "ops/ops.h"
#include "unit/ref_like.h"
#include "unit/rng.h"

enum { N = 6, D = 16, H = 4, V = 10, LAYERS = 6, MAX_NODES = 256, MAX_WEIGHTS = 400 };

static infer_hal *hal;
static infer_hal_dev *like[REF_LIKE_DEVS];

static int group_setup(void **state)
{
    (void)state;
    infer_hal_options opt = {.backend_path = "", .allow = "ref", .topo_xml = "synthetic:numa:1 core:2 pu:1"};
    opt.validate = 1;
    ref_like_reset();
    if (infer_hal_create(&opt, &hal, NULL) || infer_hal_add(hal, ref_like_query, "test", NULL))
        return 1;
    for (int i = 0; i < REF_LIKE_DEVS; i++) {
        char id[16];
        snprintf(id, sizeof id, "like%d", i);
        if (infer_hal_open(hal, id, &like[i], NULL))
            return 1;
    }
    return 0;
}

static int group_teardown(void **state)
{
    (void)state;
    for (int i = 0; i < REF_LIKE_DEVS; i++)
        infer_hal_close(like[i]);
    infer_hal_destroy(hal);
    return 0;
}

/* ---- A random graph ------------------------------------------------------------------------------------------- */

typedef struct weight {
    infer_tensor_desc desc;
    uint64_t offset, bytes;
} weight;

typedef struct rgraph {
    infer_graph g;
    weight w[MAX_WEIGHTS];
    uint32_t n_w;
    uint64_t w_bytes;
    uint8_t *w_data;
} rgraph;

static infer_tensor_desc f32(uint32_t rank, int64_t a, int64_t b, int64_t c)
{
    return infer_tensor_make(INFER_FMT_F32, rank, a, b, c, 1);
}

static infer_val weight_of(rgraph *x, infer_tensor_desc d)
{
    weight *w = &x->w[x->n_w];
    assert_true(x->n_w < MAX_WEIGHTS);
    w->desc = d;
    w->desc.flags |= INFER_TENSOR_WEIGHT;
    assert_int_equal(infer_tensor_bytes(&d, &w->bytes), INFER_OK);
    w->offset = x->w_bytes;
    x->w_bytes += (w->bytes + 63) / 64 * 64;
    return infer_graph_value(&x->g, INFER_VAL_WEIGHT, x->n_w++, &w->desc, INFER_ROWS_STATIC, 1, "w");
}

static infer_val op(rgraph *x, infer_op_id id, int32_t layer, infer_val a, infer_val b, const void *attrs,
                    uint32_t size, infer_tensor_desc d)
{
    infer_val in[] = {a, b};
    infer_graph_node(&x->g, id, layer, in, 2, attrs, size);
    return infer_graph_out(&x->g, &d, INFER_COUNT_TOKENS, 1, "act");
}

static infer_val norm(rgraph *x, int32_t layer, infer_val v, infer_val w)
{
    infer_attrs_norm a = {.struct_size = sizeof a, .eps = 1e-5f};
    if (v < 0) /* without memory */
        return -1;
    return op(x, INFER_OP_RMS_NORM, layer, v, w, &a, sizeof a, x->g.vals[v].desc);
}

static void fill_weights(rgraph *x, rng *r)
{
    x->w_data = malloc(x->w_bytes);
    for (uint64_t i = 0; i < x->w_bytes / 4; i++)
        ((float *)(void *)x->w_data)[i] = (float)(int32_t)(rng_next(r) >> 40) / (1 << 23) - 0.5f;
}

/* Rows of a table, then `n` nodes over earlier values, then a last one over all that nobody read. */
static void random_graph(rgraph *x, rng *r, uint32_t n)
{
    infer_val vals[MAX_NODES];
    uint32_t n_vals = 0, kept = 0;
    memset(x, 0, sizeof *x);
    infer_tensor_desc di = infer_tensor_make(INFER_FMT_I32, 1, N, 1, 1, 1), dx = f32(2, N, D, 1);
    infer_val ids = infer_graph_value(&x->g, INFER_VAL_STEP, 256, &di, INFER_COUNT_TOKENS, 1, "ids");
    vals[n_vals++] = op(x, INFER_OP_GATHER_ROWS, -1, weight_of(x, f32(2, V, D, 1)), ids, NULL, 0, dx);
    for (uint32_t i = 0; i < n; i++) {
        int32_t layer = (int32_t)(i * LAYERS / n);
        /* mostly recent values, so that lifetimes are short; some old ones */
        infer_val a = vals[n_vals - 1 - rng_below(r, n_vals < 4 ? n_vals : 4)], b = vals[rng_below(r, n_vals)], y;
        infer_attrs_act act = {.struct_size = sizeof act, .act = INFER_ACT_SILU};
        infer_attrs_matmul mm = {.struct_size = sizeof mm};
        switch (rng_below(r, 10)) {
        case 9: { /* what QKV is made of, or nearly */
            infer_val part[3];
            for (int j = 0; j < 3; j++) {
                infer_val in[] = {rng_below(r, 12) ? a : b, weight_of(x, f32(2, D, D, 1)),
                                  rng_below(r, 2) ? -1 : weight_of(x, f32(1, D, 1, 1))};
                infer_graph_node(&x->g, INFER_OP_MATMUL, layer, in, 3, &mm, sizeof mm);
                part[j] = infer_graph_out(&x->g, &dx, INFER_COUNT_TOKENS, 1, "part");
                if (rng_below(r, 3) == 0) /* others between them */
                    vals[n_vals++] = op(x, INFER_OP_ADD, layer, part[j], b, NULL, 0, dx);
            }
            vals[n_vals++] = op(x, INFER_OP_ADD, layer, part[0], part[1], NULL, 0, dx);
            y = op(x, INFER_OP_ADD, layer, part[2], a, NULL, 0, dx);
            break;
        }
        case 7: { /* what GATED_MLP is made of, or nearly */
            infer_val part[3], bias = rng_below(r, 6) ? -1 : weight_of(x, f32(1, D, 1, 1));
            const infer_attrs_matmul half = {.struct_size = sizeof half, .scale = 0.5f};
            for (int j = 0; j < 3; j++) {
                infer_val from = j < 2 ? (j && rng_below(r, 8) == 0 ? b : a)
                                       : op(x, INFER_OP_GLU, layer, part[0], part[1], &act, sizeof act, dx);
                infer_val in[] = {from, weight_of(x, f32(2, D, D, 1)), j == 1 ? bias : -1};
                infer_graph_node(&x->g, INFER_OP_MATMUL, layer, in, 3, rng_below(r, 12) ? &mm : &half, sizeof mm);
                part[j] = infer_graph_out(&x->g, &dx, INFER_COUNT_TOKENS, 1, "part");
                if (j == 2 && rng_below(r, 6) == 0)
                    vals[n_vals++] = from; /* somebody else may read what lies between */
                if (rng_below(r, 10) == 0)
                    vals[n_vals++] = part[j];
            }
            y = rng_below(r, 2) ? part[2] : op(x, INFER_OP_ADD, layer, part[2], b, NULL, 0, dx);
            break;
        }
        case 0:
        case 1:
            y = op(x, INFER_OP_ADD, layer, a, b, NULL, 0, dx);
            if (rng_below(r, 2)) { /* what ADD_RMS_NORM is made of */
                vals[n_vals++] = y;
                y = norm(x, layer, y, weight_of(x, f32(1, D, 1, 1)));
            }
            break;
        case 2:
            y = op(x, INFER_OP_GLU, layer, a, b, &act, sizeof act, dx);
            break;
        case 3:
        case 4: {
            infer_val in[] = {a, weight_of(x, f32(2, D, D, 1)), rng_below(r, 2) ? weight_of(x, f32(1, D, 1, 1)) : -1};
            infer_graph_node(&x->g, INFER_OP_MATMUL, layer, in, 3, &mm, sizeof mm);
            y = infer_graph_out(&x->g, &dx, INFER_COUNT_TOKENS, 1, "product");
            if (rng_below(r, 3)) { /* what a residual is made of */
                if (rng_below(r, 4) == 0)
                    vals[n_vals++] = y; /* but somebody else may read the product too */
                y = rng_below(r, 2) ? op(x, INFER_OP_ADD, layer, y, b, NULL, 0, dx)
                                    : op(x, INFER_OP_ADD, layer, b, y, NULL, 0, dx);
            }
            break;
        }
        case 5: { /* each head alone, through views */
            infer_tensor_desc dh = f32(3, N, H, D / H);
            infer_val v = infer_graph_view_of(&x->g, a, &dh, INFER_COUNT_TOKENS, 1);
            v = norm(x, layer, v, rng_below(r, 2) ? weight_of(x, f32(1, D / H, 1, 1)) : -1);
            y = infer_graph_view_of(&x->g, v, &dx, INFER_COUNT_TOKENS, 1);
            break;
        }
        case 6:
            y = norm(x, layer, a, weight_of(x, f32(1, D, 1, 1)));
            break;
        default:
            y = op(x, INFER_OP_MUL, layer, a, b, NULL, 0, dx);
            break;
        }
        assert_true(y >= 0);
        vals[n_vals++] = y;
        if (rng_below(r, 6) == 0) {
            x->g.vals[infer_graph_root(&x->g, y)].keep = 1;
            kept++;
        }
    }
    x->g.program = INFER_PROGRAM_SAMPLE;
    infer_val last = op(x, INFER_OP_ADD, LAYERS, vals[n_vals - 1], vals[0], NULL, 0, dx);
    x->g.vals[last].keep = 1;
    assert_false(x->g.failed);
    fill_weights(x, r);
}

static void rgraph_free(rgraph *x)
{
    infer_graph_free(&x->g);
    free(x->w_data);
}

/* ---- One by one ----------------------------------------------------------------------------------------------- */

/* Every root value on memory of its own, by the reference. Result: [value][N * D] */
static float *expected(const rgraph *x, const int32_t *counts, const int32_t *ids)
{
    const infer_graph *g = &x->g;
    float *mem = calloc((size_t)g->n_vals * N * D, sizeof *mem);
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const infer_gnode *n = &g->nodes[i];
        infer_op_desc desc;
        infer_tensor_desc tensors[INFER_OP_MAX_OPERANDS + 4];
        void *data[INFER_OP_MAX_OPERANDS + 4] = {0};
        infer_graph_desc(g, n, &desc, tensors);
        for (uint32_t k = 0; k < (uint32_t)n->n_in + n->n_out; k++) {
            infer_val v = k < n->n_in ? n->in[k] : n->out[k - n->n_in];
            if (v < 0)
                continue;
            const infer_value *val = &g->vals[v];
            data[k] = val->kind == INFER_VAL_WEIGHT ? (void *)(x->w_data + x->w[val->ref].offset)
                      : val->kind == INFER_VAL_STEP ? (void *)(uintptr_t)ids
                                                    : (void *)(mem + (size_t)infer_graph_root(g, v) * N * D);
        }
        infer_error e = {0};
        if (infer_op_check(&desc, &e))
            fail_msg("node %u: %s", i, e.text);
        assert_int_equal(infer_op_ref(&desc, data, counts), INFER_OK);
    }
    return mem;
}

/* ---- On devices ----------------------------------------------------------------------------------------------- */

typedef struct run {
    const rgraph *x;
    infer_graph_target t;
    infer_compiled c;
    int32_t home[LAYERS + 2], kv_home[LAYERS];
    infer_hal_buf arena[REF_LIKE_DEVS], step[REF_LIKE_DEVS], weights[REF_LIKE_DEVS];
    infer_hal_prog *prog[MAX_NODES * 2];
    infer_hal_exec *exec[MAX_NODES * 2];
    uint8_t *stage;
} run;

static infer_status weight_desc(void *user, int32_t dev, uint64_t ref, infer_op_id use, infer_tensor_desc *desc,
                                infer_error *err)
{
    (void)user;
    (void)dev;
    (void)ref;
    (void)use;
    (void)desc;
    (void)err;
    return INFER_OK;
}

static infer_status bind_weight(void *user, int32_t dev, uint64_t ref, infer_op_id use, infer_operand *out)
{
    const run *r = user;
    (void)dev;
    (void)use;
    *out = (infer_operand){.slot = INFER_SLOT_I_WEIGHT0, .offset = r->x->w[ref].offset, .size = r->x->w[ref].bytes};
    return INFER_OK;
}

static void target_of(run *r, const rgraph *x, uint32_t n_devs, int32_t host, rng *rnd)
{
    memset(r, 0, sizeof *r);
    r->x = x;
    for (uint32_t i = 0; i < n_devs; i++)
        r->t.devs[i] = like[i];
    r->t.n_devs = n_devs;
    r->t.host = host;
    r->t.home = r->home;
    r->t.kv_home = r->kv_home;
    r->t.n_layers = LAYERS;
    r->t.weight_desc = weight_desc;
    for (int i = 0; rnd && i < LAYERS + 2; i++)
        r->home[i] = (int32_t)rng_below(rnd, n_devs);
}

static infer_hal_buf buffer(infer_hal_dev *d, uint64_t bytes)
{
    infer_hal_buf b = {0};
    infer_error e = {0};
    if (infer_hal_buf_alloc(d, bytes, INFER_LEDGER_ACTIVATIONS, &b, &e))
        fail_msg("%s", e.text);
    return b;
}

static void write_to(const infer_hal_buf *b, uint64_t at, const void *p, uint64_t n)
{
    infer_range r = {b->h, at, n};
    if (!n)
        return;
    assert_int_equal(infer_hal_write(b->dev, &r, p, n, NULL), INFER_OK);
}

static void read_from(const infer_hal_buf *b, uint64_t at, void *p, uint64_t n)
{
    infer_range r = {b->h, at, n};
    assert_int_equal(infer_hal_read(b->dev, &r, p, n, NULL), INFER_OK);
}

static void prepare(run *r, const int32_t *counts, const int32_t *ids)
{
    for (uint32_t i = 0; i < r->t.n_devs; i++) {
        uint64_t bytes = r->c.arena_bytes[i] ? r->c.arena_bytes[i] : 64;
        uint8_t *junk = malloc(bytes);
        memset(junk, 0xFF, bytes); /* NaN */
        r->arena[i] = buffer(like[i], bytes);
        write_to(&r->arena[i], 0, junk, r->c.arena_bytes[i]);
        free(junk);
        r->step[i] = buffer(like[i], 1024);
        write_to(&r->step[i], 0, counts, INFER_COUNT_MAX * 4);
        write_to(&r->step[i], 256, ids, N * 4);
        r->weights[i] = buffer(like[i], r->x->w_bytes);
        write_to(&r->weights[i], 0, r->x->w_data, r->x->w_bytes);
    }
    r->stage = malloc(r->c.stage_bytes + 1);
}

static void build(run *r, uint32_t bucket)
{
    for (uint32_t p = 0; p < r->c.n_parts; p++) {
        int32_t d = r->c.parts[p].dev;
        infer_error e = {0};
        infer_graph_binding b = {.n_slots = INFER_SLOT_I_WEIGHT0 + 1, .weight = bind_weight, .user = r};
        b.ranges[INFER_SLOT_I_ARENA] = (infer_range){r->arena[d].h, 0, r->arena[d].size};
        b.ranges[INFER_SLOT_I_STEP] = (infer_range){r->step[d].h, 0, r->step[d].size};
        b.ranges[INFER_SLOT_I_WEIGHT0] = (infer_range){r->weights[d].h, 0, r->weights[d].size};
        if (infer_graph_program(&r->c, &r->t, p, bucket, &b, &r->prog[p], &r->exec[p], &e))
            fail_msg("part %u: %s", p, e.text);
        assert_int_equal(e.status, 0);
    }
}

typedef struct submit_job {
    infer_hal_job job;
    infer_hal_exec *exec;
    infer_status status;
} submit_job;

static void run_submit(infer_hal_job *job)
{
    submit_job *j = (submit_job *)(void *)job;
    j->status = infer_hal_exec_submit(j->exec);
}

/* Part by part, with the transfers at the moments that graph.h states. */
static void execute(run *r, const int32_t *counts)
{
    for (uint32_t p = 0; p < r->c.n_parts; p++) {
        for (uint32_t i = 0; i < r->c.n_xfers; i++) {
            const infer_transfer *x = &r->c.xfers[i];
            assert_true(!i || x[-1].dst_part <= x->dst_part);
            if (x->dst_part == p)
                write_to(&r->arena[x->dst_dev], x->dst_offset, r->stage + x->stage_offset,
                         x->row_bytes * (uint64_t)counts[x->rows_from] * x->rows_mul);
        }
        submit_job j = {.job.run = run_submit, .exec = r->exec[p]};
        infer_hal_run(like[r->c.parts[p].dev], &j.job);
        assert_int_equal(j.status, INFER_OK);
        for (uint32_t i = 0; i < r->c.n_xfers; i++) {
            const infer_transfer *x = &r->c.xfers[i];
            if (x->src_part == p)
                read_from(&r->arena[x->src_dev], x->src_offset, r->stage + x->stage_offset,
                          x->row_bytes * (uint64_t)counts[x->rows_from] * x->rows_mul);
        }
    }
}

static void run_free(run *r)
{
    for (uint32_t p = 0; p < r->c.n_parts; p++) {
        infer_hal_exec_destroy(r->exec[p]);
        infer_hal_prog_destroy(r->prog[p]);
    }
    for (uint32_t i = 0; i < r->t.n_devs; i++) {
        infer_hal_buf_free(&r->arena[i]);
        infer_hal_buf_free(&r->step[i]);
        infer_hal_buf_free(&r->weights[i]);
    }
    free(r->stage);
    infer_compiled_free(&r->c);
}

/* Kept values, on whichever device made them, equal what stands in `want`. */
static void compare(const run *r, const float *want, uint32_t rows)
{
    const infer_graph *g = &r->x->g;
    uint32_t compared = 0;
    for (uint32_t i = 0; i < r->c.n_order; i++) {
        const infer_gnode *n = &g->nodes[r->c.order[i]];
        for (uint32_t k = 0; k < n->n_out; k++) {
            infer_val v = infer_graph_root(g, n->out[k]);
            if (!g->vals[v].keep)
                continue;
            float got[N * D];
            uint64_t at = r->c.place[(size_t)n->dev * g->n_vals + (size_t)v];
            read_from(&r->arena[n->dev], at, got, sizeof(float) * D * rows);
            assert_memory_equal(got, want + (size_t)v * N * D, sizeof(float) * D * rows);
            compared++;
        }
    }
    assert_true(compared > 0);
}

static void check_stage(const run *r)
{
    for (uint32_t i = 0; i < r->c.n_xfers; i++) {
        const infer_transfer *a = &r->c.xfers[i];
        assert_true(infer_range_ok(a->stage_offset, a->max_bytes, r->c.stage_bytes));
        assert_true(a->src_dev != a->dst_dev && a->src_part < a->dst_part);
        for (uint32_t k = 0; k < i; k++) {
            const infer_transfer *b = &r->c.xfers[k];
            assert_true(a->stage_offset >= b->stage_offset + b->max_bytes ||
                        b->stage_offset >= a->stage_offset + a->max_bytes);
            assert_false(a->val == b->val && a->dst_dev == b->dst_dev); /* once is enough */
        }
    }
}

/* Compiles and runs; the graph must be freshly built. */
static void check_run(rgraph *x, uint32_t n_devs, int32_t host, rng *rnd, const float *want, const int32_t *counts,
                      const int32_t *ids, uint32_t bucket, uint32_t *n_removed)
{
    run r;
    infer_error e = {0};
    target_of(&r, x, n_devs, host, rnd);
    if (infer_graph_compile(&x->g, &r.t, &r.c, &e))
        fail_msg("%s", e.text);
    assert_int_equal(e.status, 0);
    *n_removed = x->g.n_nodes - r.c.n_order;
    check_stage(&r);
    prepare(&r, counts, ids);
    build(&r, bucket);
    for (int twice = 0; twice < 2; twice++) {
        execute(&r, counts);
        compare(&r, want, (uint32_t)counts[INFER_COUNT_TOKENS]);
    }
    run_free(&r);
}

static void test_random(void **state)
{
    (void)state;
    uint32_t removed[4] = {0}, gated[4] = {0}, qkv[4] = {0}, fallbacks = 0;
    for (int seed = 0; seed < 150; seed++) {
        for (uint32_t how = 0; how < 4; how++) { /* no fusion, all of it, several devices, refusals and claims too */
            rng r = {(uint64_t)seed + 1}, choice = {(uint64_t)seed * 4 + how};
            rgraph x;
            int32_t counts[INFER_COUNT_MAX] = {0}, ids[N];
            uint32_t rows = 1 + rng_below(&choice, N), n_removed;
            random_graph(&x, &r, 4 + rng_below(&r, 30));
            for (int i = 0; i < N; i++)
                ids[i] = (int32_t)rng_below(&r, V);
            counts[INFER_COUNT_TOKENS] = (int32_t)rows;
            float *want = expected(&x, counts, ids);
            ref_like_reset();
            for (int d = 0; d < REF_LIKE_DEVS; d++) {
                ref_like_behaviour *b = &ref_like[d];
                b->max_epilogue = how != 0;
                b->deny[INFER_OP_ADD_RMS_NORM] = b->deny[INFER_OP_GATED_MLP] = b->deny[INFER_OP_QKV] = how == 0;
                for (uint32_t i = 1; how && i < INFER_OP_COUNT; i++)
                    b->scratch[i] = rng_below(&choice, 3) ? 0 : 1 + rng_below(&choice, 3000);
                for (uint32_t i = 1; how == 3 && i < INFER_OP_COUNT; i++) {
                    b->deny[i] = d != 1 && rng_below(&choice, 5) == 0;
                    b->claim[i] = (int32_t)rng_below(&choice, 4);
                }
            }
            uint32_t devs = how < 2 ? 1 : 2 + rng_below(&choice, REF_LIKE_DEVS - 1);
            uint32_t bucket = rows + rng_below(&choice, N - rows + 1);
            check_run(&x, devs, devs > 1 ? 1 : -1, &choice, want, counts, ids, bucket, &n_removed);
            removed[how] += n_removed;
            for (uint32_t i = 0; i < x.g.n_nodes; i++) {
                gated[how] += x.g.nodes[i].op == INFER_OP_GATED_MLP;
                qkv[how] += x.g.nodes[i].op == INFER_OP_QKV;
            }
            fallbacks += how == 3;
            free(want);
            rgraph_free(&x);
        }
    }
    assert_int_equal(removed[0], 0);
    assert_true(removed[1] > 300); /* fusions happen, and change nothing */
    assert_true(removed[2] > 100);
    assert_true(gated[0] == 0 && gated[1] > 100);
    assert_true(qkv[0] == 0 && qkv[1] > 100);
    assert_true(fallbacks > 0);
    ref_like_reset();
}

/* ---- Single facts --------------------------------------------------------------------------------------------- */

/* x -> norm -> matmul -> add x -> ... , the chain of a decoder; layer i on home[i + 1] */
static infer_val chain(rgraph *x, uint32_t n)
{
    infer_tensor_desc di = infer_tensor_make(INFER_FMT_I32, 1, N, 1, 1, 1), dx = f32(2, N, D, 1);
    memset(x, 0, sizeof *x);
    infer_val ids = infer_graph_value(&x->g, INFER_VAL_STEP, 256, &di, INFER_COUNT_TOKENS, 1, "ids");
    infer_val v = op(x, INFER_OP_GATHER_ROWS, -1, weight_of(x, f32(2, V, D, 1)), ids, NULL, 0, dx);
    for (uint32_t i = 0; i < n; i++) {
        infer_attrs_matmul mm = {.struct_size = sizeof mm};
        infer_val h = norm(x, (int32_t)i, v, weight_of(x, f32(1, D, 1, 1)));
        infer_val in[] = {h, weight_of(x, f32(2, D, D, 1)), -1};
        infer_graph_node(&x->g, INFER_OP_MATMUL, (int32_t)i, in, 3, &mm, sizeof mm);
        h = infer_graph_out(&x->g, &dx, INFER_COUNT_TOKENS, 1, "product");
        v = op(x, INFER_OP_ADD, (int32_t)i, h, v, NULL, 0, dx);
    }
    rng r = {8};
    fill_weights(x, &r);
    if (v >= 0)
        x->g.vals[v].keep = 1;
    return v;
}

static void compile_ok(rgraph *x, run *r)
{
    infer_error e = {0};
    if (infer_graph_compile(&x->g, &r->t, &r->c, &e))
        fail_msg("%s", e.text);
}

/* Memory does not grow with depth, and every refused or foreign range shows. */
static void test_arena(void **state)
{
    (void)state;
    uint64_t bytes[2];
    for (int i = 0; i < 2; i++) {
        rgraph x;
        run r;
        ref_like_reset();
        chain(&x, i ? 6 : 2);
        target_of(&r, &x, 1, -1, NULL);
        compile_ok(&x, &r);
        bytes[i] = r.c.arena_bytes[0];
        assert_int_equal(r.c.n_parts, 1);
        assert_int_equal(r.c.n_xfers, 0);
        infer_compiled_free(&r.c);
        rgraph_free(&x);
    }
    assert_int_equal(bytes[0], bytes[1]);
    assert_true(bytes[1] <= 4 * N * D * 4);
}

static void test_refusals(void **state)
{
    (void)state;
    rgraph x;
    run r;
    infer_error e = {0};
    ref_like_reset();
    chain(&x, 3);
    /* nobody else: an error that names layer, device, op and reason */
    target_of(&r, &x, 2, -1, NULL);
    ref_like[0].deny[INFER_OP_RMS_NORM] = 1;
    ref_like[0].deny[INFER_OP_ADD_RMS_NORM] = 1;
    assert_int_equal(infer_graph_compile(&x.g, &r.t, &r.c, &e), INFER_E_UNSUPPORTED);
    assert_string_equal(e.text, "layer 0: like0 does not run rms_norm (shape of operand 2)");
    assert_int_equal(r.c.kv_refused_dev, -1);
    /* with a host: three fallbacks, a part each, and the way there and back */
    r.t.host = 1;
    compile_ok(&x, &r);
    assert_int_equal(r.c.n_fallback, 3);
    uint32_t parts = 0;
    for (uint32_t i = 0; i < r.c.n_parts; i++)
        parts += (uint32_t)r.c.parts[i].fallback;
    assert_int_equal(parts, 3);
    assert_int_equal(r.c.n_parts, 7);
    assert_int_equal(r.c.n_xfers, 6);
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(r.c.xfers[i].row_bytes, D * 4);
        assert_int_equal(r.c.xfers[i].max_bytes, N * D * 4);
    }
    infer_compiled_free(&r.c);
    /* the host refuses too */
    ref_like[1].deny[INFER_OP_RMS_NORM] = 1;
    assert_int_equal(infer_graph_compile(&x.g, &r.t, &r.c, &e), INFER_E_UNSUPPORTED);
    assert_non_null(strstr(e.text, "like1"));
    rgraph_free(&x);
    ref_like_reset();
}

/* A target that is deterministic takes no op whose rows depend on each other, fused or not; any other does. */
static void test_deterministic(void **state)
{
    (void)state;
    rgraph x;
    run r;
    infer_error e = {0};
    ref_like_reset();
    chain(&x, 3);
    target_of(&r, &x, 2, -1, NULL);
    ref_like[0].mingles[INFER_OP_RMS_NORM] = 1;
    ref_like[0].mingles[INFER_OP_ADD_RMS_NORM] = 1;
    compile_ok(&x, &r);
    assert_int_equal(r.c.n_fallback, 0);
    infer_compiled_free(&r.c);
    rgraph_free(&x);
    chain(&x, 3);
    target_of(&r, &x, 2, -1, NULL);
    r.t.deterministic = 1;
    assert_int_equal(infer_graph_compile(&x.g, &r.t, &r.c, &e), INFER_E_UNSUPPORTED);
    assert_string_equal(e.text, "layer 0: like0 does not run rms_norm (a row's result depends on the batch)");
    r.t.host = 1;
    compile_ok(&x, &r);
    assert_int_equal(r.c.n_fallback, 3);
    for (uint32_t i = 0; i < x.g.n_nodes; i++)
        if (x.g.nodes[i].op == INFER_OP_RMS_NORM || x.g.nodes[i].op == INFER_OP_ADD_RMS_NORM)
            assert_int_equal(x.g.nodes[i].dev, 1);
    infer_compiled_free(&r.c);
    rgraph_free(&x);
    ref_like_reset();
}

/* Writes heads k and v of n tokens into the two planes of layer 0. */
static void kv_write(rgraph *x, infer_val k, infer_val v)
{
    infer_attrs_kv kv = {.struct_size = sizeof kv,
                         .k_format = INFER_FMT_F16,
                         .v_format = INFER_FMT_F16,
                         .n_kv_heads = H,
                         .k_width = D / H,
                         .v_width = D / H,
                         .block_size = 8,
                         .n_blocks = 4};
    infer_tensor_desc dk = infer_tensor_make(INFER_FMT_F16, 4, 4, H, 8, D / H);
    infer_tensor_desc di = infer_tensor_make(INFER_FMT_I32, 1, N, 1, 1, 1);
    infer_val in[] = {k, v, infer_graph_value(&x->g, INFER_VAL_STEP, 512, &di, INFER_COUNT_TOKENS, 1, "slots")};
    infer_graph_node(&x->g, INFER_OP_KV_WRITE, 0, in, 3, &kv, sizeof kv);
    for (uint64_t p = 0; p < 2; p++)
        infer_graph_out_value(&x->g, infer_graph_value(&x->g, INFER_VAL_KV, p, &dk, INFER_ROWS_STATIC, 1, "pool"));
    x->g.nodes[x->g.n_nodes - 1].rows_from = INFER_COUNT_TOKENS;
    x->g.nodes[x->g.n_nodes - 1].rows_mul = 1;
}

/* Rotation joins the cache's write when nothing else reads the rotated keys. */
static void test_rope_kv(void **state)
{
    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        rgraph x;
        run r;
        infer_val v = chain(&x, 1);
        infer_tensor_desc dh = f32(3, N, H, D / H), di = infer_tensor_make(INFER_FMT_I32, 2, N, 1, 1, 1);
        infer_attrs_rope rope = {.struct_size = sizeof rope, .n_dims = D / H, .n_pos = 1};
        infer_val heads = infer_graph_view_of(&x.g, v, &dh, INFER_COUNT_TOKENS, 1);
        infer_val pos = infer_graph_value(&x.g, INFER_VAL_STEP, 768, &di, INFER_COUNT_TOKENS, 1, "pos");
        infer_val in[] = {heads, pos, weight_of(&x, f32(1, D / H / 2, 1, 1))};
        infer_graph_node(&x.g, INFER_OP_ROPE, 0, in, 3, &rope, sizeof rope);
        infer_val k = infer_graph_out(&x.g, &dh, INFER_COUNT_TOKENS, 1, "k");
        kv_write(&x, k, shared ? k : heads);
        ref_like_reset();
        target_of(&r, &x, 1, -1, NULL);
        compile_ok(&x, &r);
        const infer_gnode *last = &x.g.nodes[x.g.n_nodes - 1];
        assert_int_equal(last->op, shared ? INFER_OP_KV_WRITE : INFER_OP_ROPE_KV_WRITE);
        assert_int_equal(x.g.nodes[x.g.n_nodes - 2].removed, !shared);
        if (!shared) {
            assert_int_equal(last->n_in, 5);
            assert_int_equal(last->in[0], heads);
            assert_int_equal(last->in[2], pos);
            assert_int_equal(last->attrs.rope_kv.rope.n_dims, D / H);
            assert_int_equal(last->attrs.rope_kv.kv.block_size, 8);
        }
        infer_compiled_free(&r.c);
        rgraph_free(&x);
    }
}

static infer_status nowhere(void *user, const infer_gnode *n, infer_val v, const infer_tensor_desc *desc,
                            infer_operand *out)
{
    (void)user, (void)n, (void)v, (void)desc;
    *out = (infer_operand){0};
    return INFER_OK;
}

/* In a program for two tokens, rows of tokens and rows whose logits are wanted are at most two. */
static void test_bucket_rows(void **state)
{
    (void)state;
    rgraph x;
    run r;
    infer_view_store st = {0};
    infer_error e = {0};
    infer_val v = chain(&x, 1);
    infer_tensor_desc di = infer_tensor_make(INFER_FMT_I32, 1, N, 1, 1, 1), dx = f32(2, N, D, 1);
    infer_val in[] = {v, infer_graph_value(&x.g, INFER_VAL_STEP, 512, &di, INFER_COUNT_LOGITS, 1, "rows")};
    infer_graph_node(&x.g, INFER_OP_GATHER_ROWS, 0, in, 2, NULL, 0);
    x.g.vals[infer_graph_out(&x.g, &dx, INFER_COUNT_LOGITS, 1, "last")].keep = 1;
    ref_like_reset();
    target_of(&r, &x, 1, -1, NULL);
    compile_ok(&x, &r);
    assert_int_equal(infer_graph_view_build(&r.c, &r.t, 0, 2, nowhere, NULL, &st, &e), INFER_OK);
    const infer_op_desc *last = st.nodes[r.c.parts[0].count - 1].op;
    assert_int_equal(last->op, INFER_OP_GATHER_ROWS);
    assert_int_equal(last->tensors[0].shape[0], 2);
    assert_int_equal(last->tensors[1].shape[0], 2);
    assert_int_equal(last->tensors[2].shape[0], 2);
    infer_view_free(&st);
    infer_compiled_free(&r.c);
    rgraph_free(&x);
}

/* A cache op that its home refuses is never moved silently: the caller learns which device. */
static void test_cache_refused(void **state)
{
    (void)state;
    rgraph x;
    run r;
    infer_error e = {0};
    infer_val v = chain(&x, 1);
    infer_tensor_desc dh = f32(3, N, H, D / H);
    infer_val heads = infer_graph_view_of(&x.g, v, &dh, INFER_COUNT_TOKENS, 1);
    kv_write(&x, heads, heads);
    ref_like_reset();
    target_of(&r, &x, 2, 1, NULL);
    ref_like[0].deny[INFER_OP_KV_WRITE] = 1;
    assert_int_equal(infer_graph_compile(&x.g, &r.t, &r.c, &e), INFER_E_UNSUPPORTED);
    assert_int_equal(r.c.kv_refused_dev, 0);
    assert_non_null(strstr(e.text, "like0 does not run kv_write"));
    r.kv_home[0] = 1; /* as the plan then does */
    compile_ok(&x, &r);
    assert_int_equal(r.c.n_fallback, 0);
    assert_int_equal(x.g.nodes[r.c.order[r.c.n_order - 1]].dev, 1);
    infer_compiled_free(&r.c);
    rgraph_free(&x);
    ref_like_reset();
}

/* Runs of one claimed set are programs of their own; what lies between, too. */
static void test_claims(void **state)
{
    (void)state;
    rgraph x;
    run r;
    int32_t counts[INFER_COUNT_MAX] = {3}, ids[N] = {1, 2, 3};
    ref_like_reset();
    infer_val v = chain(&x, 3);
    float *want = expected(&x, counts, ids);
    ref_like[0].max_epilogue = 0;
    ref_like[0].deny[INFER_OP_ADD_RMS_NORM] = 1;
    ref_like[0].claim[INFER_OP_MATMUL] = ref_like[0].claim[INFER_OP_ADD] = 5;
    target_of(&r, &x, 1, -1, NULL);
    compile_ok(&x, &r);
    assert_int_equal(ref_like[0].n_claims, 1);
    /* gather+norm | matmul+add | norm | matmul+add | norm | matmul+add */
    const uint32_t sizes[] = {2, 2, 1, 2, 1, 2};
    assert_int_equal(r.c.n_parts, 6);
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(r.c.parts[i].count, sizes[i]);
        assert_int_equal(r.c.parts[i].claimed, i % 2);
        assert_int_equal(r.c.parts[i].first, i ? r.c.parts[i - 1].first + r.c.parts[i - 1].count : 0);
    }
    assert_int_equal(r.c.n_xfers, 0);
    prepare(&r, counts, ids);
    build(&r, N);
    execute(&r, counts);
    compare(&r, want, 3);
    (void)v;
    run_free(&r);
    /* a plugin that fails to answer is an error with its device */
    infer_error e = {0};
    ref_like[0].claim_status = INFER_E_UNSUPPORTED;
    assert_int_equal(infer_graph_compile(&x.g, &r.t, &r.c, &e), INFER_E_UNSUPPORTED);
    assert_non_null(strstr(e.text, "claim nodes on like0"));
    free(want);
    rgraph_free(&x);
    ref_like_reset();
}

static void test_print(void **state)
{
    (void)state;
    rgraph x;
    run r;
    infer_buf b = {0};
    ref_like_reset();
    chain(&x, 1);
    target_of(&r, &x, 2, 1, NULL);
    ref_like[0].deny[INFER_OP_RMS_NORM] = 1;
    ref_like[0].claim[INFER_OP_GATHER_ROWS] = 1;
    compile_ok(&x, &r);
    infer_compiled_print(&r.c, &r.t, &b);
    assert_string_equal(b.p, "part 0 on like0, claimed\n"
                             "   0 gather_rows    layer -1 native act f32[6][16]\n"
                             "part 1 on like1, fallback\n"
                             "   1 rms_norm       layer 0 native act f32[6][16]\n"
                             "part 2 on like0\n"
                             "   2 matmul         layer 0 native +1 act f32[6][16]\n");
    infer_buf_free(&b);
    infer_compiled_free(&r.c);
    rgraph_free(&x);
    ref_like_reset();
}

static void test_reasons(void **state)
{
    (void)state;
    char text[80];
    for (uint32_t why = INFER_WHY_NONE; why <= INFER_WHY_MEMORY + 1; why++) {
        infer_op_answer a = {.why = why, .which = 7};
        text[0] = 0;
        infer_answer_reason(&a, text, sizeof text);
        assert_true(strlen(text) > 3);
        int numbered = why == INFER_WHY_FORMAT || why == INFER_WHY_SHAPE || why == INFER_WHY_LAYOUT ||
                       why == INFER_WHY_ATTR || why == INFER_WHY_EPILOGUE;
        assert_int_equal(strchr(text, '7') != NULL, numbered);
    }
}

/* Values of the model that are wrong together: no crash, a status that says what. */
static void test_bad_graphs(void **state)
{
    (void)state;
    rgraph x;
    run r;
    infer_error e = {0};
    memset(&x, 0, sizeof x);
    ref_like_reset();
    target_of(&r, &x, 1, -1, NULL);
    assert_int_equal(infer_graph_compile(&x.g, &r.t, &r.c, &e), INFER_E_INVALID);
    chain(&x, 1);
    r.t.n_devs = 0;
    assert_int_equal(infer_graph_compile(&x.g, &r.t, &r.c, &e), INFER_E_INVALID);
    r.t.n_devs = 1;
    /* a value that nobody made */
    infer_tensor_desc dx = f32(2, N, D, 1);
    infer_val orphan = infer_graph_value(&x.g, INFER_VAL_ACT, 0, &dx, INFER_COUNT_TOKENS, 1, "orphan");
    op(&x, INFER_OP_ADD, 0, orphan, orphan, NULL, 0, dx);
    assert_int_equal(infer_graph_compile(&x.g, &r.t, &r.c, &e), INFER_E_INTERNAL);
    assert_non_null(strstr(e.text, "orphan"));
    /* the largest attributes of an op fit a node, larger ones do not: sticky, as all that follows */
    static const infer_attrs_rope_kv fused = {.struct_size = sizeof fused, .kv.n_blocks = 77};
    const infer_gnode *n = infer_graph_node(&x.g, INFER_OP_ROPE_KV_WRITE, 0, &orphan, 1, &fused, sizeof fused);
    assert_non_null(n);
    assert_int_equal(n->attrs.rope_kv.kv.n_blocks, 77);
    static const char huge[sizeof n->attrs + 1];
    assert_null(infer_graph_node(&x.g, INFER_OP_ADD, 0, &orphan, 1, huge, sizeof huge));
    assert_true(x.g.failed);
    x.g.failed = 0;
    op(&x, INFER_OP_ADD, 0, orphan, orphan, NULL, 0, dx);
    for (int i = 1; i < 5; i++)
        infer_graph_out_value(&x.g, orphan);
    assert_true(x.g.failed);
    x.g.failed = 0;
    /* more operands than an op can have */
    infer_val many[INFER_OP_MAX_OPERANDS + 1] = {0};
    assert_null(infer_graph_node(&x.g, INFER_OP_ADD, 0, many, INFER_OP_MAX_OPERANDS + 1, NULL, 0));
    assert_true(x.g.failed);
    assert_null(infer_graph_node(&x.g, INFER_OP_ADD, 0, many, 2, NULL, 0));
    assert_int_equal(infer_graph_out(&x.g, &dx, 0, 1, NULL), -1);
    assert_int_equal(infer_graph_view_of(&x.g, 0, &dx, 0, 1), -1);
    assert_int_equal(infer_graph_compile(&x.g, &r.t, &r.c, &e), INFER_E_NO_MEMORY);
    rgraph_free(&x);
}

/* Every host allocation of building and compiling fails once. */
static void test_no_memory(void **state)
{
    (void)state;
    int n = 0;
    ref_like_reset();
    ref_like[0].scratch[INFER_OP_MATMUL] = 100;
    for (;; n++) {
        rgraph x;
        run r;
        infer_error e = {0};
        rng rnd = {4};
        infer_status s = INFER_E_NO_MEMORY;
        infer_alloc_fail_after(n, 0);
        memset(&x, 0, sizeof x);
        chain(&x, 6);
        target_of(&r, &x, 3, 2, &rnd);
        s = infer_graph_compile(&x.g, &r.t, &r.c, &e);
        int hit = infer_alloc_fail_after(-1, 0);
        if (s)
            assert_non_null(strstr(e.text, "memory"));
        else
            infer_compiled_free(&r.c);
        rgraph_free(&x);
        assert_int_equal(s, hit ? INFER_E_NO_MEMORY : INFER_OK);
        if (!hit)
            break;
    }
    assert_true(n > 15);
    ref_like_reset();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),        cmocka_unit_test(test_arena),         cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_deterministic), cmocka_unit_test(test_cache_refused), cmocka_unit_test(test_claims),
        cmocka_unit_test(test_print),         cmocka_unit_test(test_rope_kv),       cmocka_unit_test(test_bucket_rows),
        cmocka_unit_test(test_reasons),       cmocka_unit_test(test_bad_graphs),    cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
