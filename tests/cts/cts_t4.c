/*
 * T4, programs: a small graph with weights, dynamic rows and lasting state, built and bound through the core (the
 * plugin's own compiler, or the stock program where it has none), replayed with changing inputs and counts, rebound,
 * instantiated twice, built for several capacities, saved and loaded. The reference runs the same list on the host.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "cts_t1.h"
#include "ops/ops.h"

/* s, the state, keeps half of what it was and half of the newest result: a run too many or too few shows for the next
 * twenty. Activations are F32 [rows][WIDTH]. */
enum { WIDTH = 36, N_NODES = 6, MAX_ROWS = 33 };
enum { SLOT_X, SLOT_Y, SLOT_WEIGHT, SLOT_ARENA, SLOT_STEP, SLOT_STATE, N_SLOTS };
static const uint32_t slot_kinds[N_SLOTS] = {INFER_SLOT_IO,    INFER_SLOT_IO,   INFER_SLOT_WEIGHT,
                                             INFER_SLOT_ARENA, INFER_SLOT_STEP, INFER_SLOT_STATE};

typedef struct t4_node {
    infer_op_desc op;
    infer_tensor_desc t[4];
    infer_operand at[4];
    infer_any_attrs attrs;
} t4_node;

/* A graph, the memory of one instance, and the reference's copy of it. */
typedef struct t4 {
    cts *c;
    int64_t rows; /* capacity */
    t4_node n[N_NODES];
    infer_node nodes[N_NODES];
    infer_slot_desc slots[N_SLOTS];
    infer_graph_view view;
    uint64_t size[N_SLOTS];
    uint64_t row_bytes, part; /* of one row; of one activation tensor in the arena, aligned */
    infer_weight_desc source;
    infer_weight_plan plan;
    infer_hal_buf buf[N_SLOTS];
    infer_range range[N_SLOTS];
    infer_hal_prog *prog;
    infer_hal_exec *exec;
    float w[WIDTH * WIDTH], norm[WIDTH], half[WIDTH];
    int square;                                                          /* in place of the activation */
    float x[MAX_ROWS * WIDTH], y[MAX_ROWS * WIDTH], s[MAX_ROWS * WIDTH]; /* the reference's */
    int32_t counts[INFER_COUNT_MAX];
} t4;

static float number(cts *c)
{
    return (float)(int32_t)(cts_rand(c) & 0xFFFF) / 32768.0f - 1;
}

/* ---- The graph ------------------------------------------------------------------------------------------- */

static uint64_t up(uint64_t n, uint64_t align)
{
    return (n + align - 1) / align * align;
}

static void node(t4 *g, uint32_t i, infer_op_id op, const void *attrs, uint32_t attrs_size)
{
    t4_node *n = &g->n[i];
    if (attrs_size)
        memcpy(&n->attrs, attrs, attrs_size);
    n->op = (infer_op_desc){.struct_size = sizeof(n->op),
                            .op = op,
                            .rows_from = INFER_COUNT_TOKENS,
                            .rows_mul = 1,
                            .tensor_size = sizeof(n->t[0]),
                            .tensors = n->t,
                            .attrs_size = attrs_size,
                            .attrs = attrs_size ? &n->attrs : NULL,
                            .epilogue_size = sizeof(infer_epilogue)};
}

static void operand(t4 *g, uint32_t i, int output, const infer_tensor_desc *t, uint32_t slot, uint64_t offset,
                    uint64_t size)
{
    t4_node *n = &g->n[i];
    uint32_t k = n->op.n_in + n->op.n_out;
    n->t[k] = *t;
    n->at[k] = (infer_operand){.slot = slot, .offset = offset, .size = size};
    if (output)
        n->op.n_out++;
    else
        n->op.n_in++;
}

/* An activation operand: slot, and which tensor of the arena. */
static void rows_operand(t4 *g, uint32_t i, int output, uint32_t slot, uint32_t tensor)
{
    infer_tensor_desc t = infer_tensor_make(INFER_FMT_F32, 2, g->rows, WIDTH, 1, 1);
    operand(g, i, output, &t, slot, slot == SLOT_ARENA ? tensor * g->part : 0, g->row_bytes * (uint64_t)g->rows);
}

static int plan_weight(t4 *g)
{
    infer_error e = {0};
    g->source = (infer_weight_desc){.struct_size = sizeof(g->source),
                                    .quant.format = INFER_FMT_F32,
                                    .rank = 2,
                                    .use = INFER_OP_MATMUL,
                                    .shape = {WIDTH, WIDTH, 1, 1}};
    g->plan = (infer_weight_plan){.struct_size = sizeof(g->plan)};
    if (infer_hal_weight_plan(g->c->dev, &g->source, &g->plan, &e))
        cts_fail(g->c, "%s", e.text);
    return !g->c->failed;
}

/* Places of the vectors behind the matrix. */
static uint64_t norm_at(const t4 *g)
{
    return up(g->plan.packed_bytes, 256);
}

static uint64_t half_at(const t4 *g)
{
    return up(norm_at(g) + sizeof(g->norm), 256);
}

/* Whether the device takes node i as it is; an answer that is wrong is found by ask_all. */
static int takes(t4 *g, uint32_t i)
{
    infer_op_answer a = {.struct_size = sizeof(a)};
    return !g->c->ops->op_query(g->c->h, &g->n[i].op, sizeof(g->n[i].op), 1, &a, sizeof(a)) && a.level;
}

/* x -> norm -> product -> silu -> + x = y; (state + y) / 2 -> state. Where the device has no ACT, the square stands for
 * silu; where it has no SCALE, a product with a vector halves. */
static void nodes_of(t4 *g)
{
    const infer_attrs_norm norm = {.struct_size = sizeof(norm), .eps = 1e-5f};
    const infer_attrs_matmul product = {.struct_size = sizeof(product), .act_format = INFER_FMT_F32};
    const infer_attrs_act act = {.struct_size = sizeof(act), .act = INFER_ACT_SILU};
    const infer_attrs_scale half = {.struct_size = sizeof(half), .scale = 0.5f};
    infer_tensor_desc norm_w = infer_tensor_make(INFER_FMT_F32, 1, WIDTH, 1, 1, 1);
    infer_tensor_desc w = infer_tensor_make(INFER_FMT_F32, 2, WIDTH, WIDTH, 1, 1);
    w.flags = INFER_TENSOR_WEIGHT;
    w.format = g->plan.format;
    w.layout = g->plan.layout;
    norm_w.flags = INFER_TENSOR_WEIGHT;
    node(g, 0, INFER_OP_RMS_NORM, &norm, sizeof(norm));
    rows_operand(g, 0, 0, SLOT_X, 0);
    operand(g, 0, 0, &norm_w, SLOT_WEIGHT, norm_at(g), WIDTH * sizeof(float));
    rows_operand(g, 0, 1, SLOT_ARENA, 0);
    node(g, 1, INFER_OP_MATMUL, &product, sizeof(product));
    rows_operand(g, 1, 0, SLOT_ARENA, 0);
    operand(g, 1, 0, &w, SLOT_WEIGHT, 0, g->plan.packed_bytes);
    rows_operand(g, 1, 1, SLOT_ARENA, 1);
    node(g, 2, INFER_OP_ACT, &act, sizeof(act));
    rows_operand(g, 2, 0, SLOT_ARENA, 1);
    rows_operand(g, 2, 1, SLOT_ARENA, 0);
    g->square = !takes(g, 2);
    if (g->square) {
        node(g, 2, INFER_OP_MUL, NULL, 0);
        rows_operand(g, 2, 0, SLOT_ARENA, 1);
        rows_operand(g, 2, 0, SLOT_ARENA, 1);
        rows_operand(g, 2, 1, SLOT_ARENA, 0);
    }
    node(g, 3, INFER_OP_ADD, NULL, 0);
    rows_operand(g, 3, 0, SLOT_ARENA, 0);
    rows_operand(g, 3, 0, SLOT_X, 0);
    rows_operand(g, 3, 1, SLOT_Y, 0);
    node(g, 4, INFER_OP_ADD, NULL, 0);
    rows_operand(g, 4, 0, SLOT_STATE, 0);
    rows_operand(g, 4, 0, SLOT_Y, 0);
    rows_operand(g, 4, 1, SLOT_ARENA, 1);
    node(g, 5, INFER_OP_SCALE, &half, sizeof(half));
    rows_operand(g, 5, 0, SLOT_ARENA, 1);
    rows_operand(g, 5, 1, SLOT_STATE, 0);
    if (!takes(g, 5)) {
        node(g, 5, INFER_OP_MUL, NULL, 0);
        rows_operand(g, 5, 0, SLOT_ARENA, 1);
        operand(g, 5, 0, &norm_w, SLOT_WEIGHT, half_at(g), sizeof(g->half));
        rows_operand(g, 5, 1, SLOT_STATE, 0);
    }
}

/* Asks for each node; 0: skipped or failed. Sizes the arena's scratch. */
static int ask_all(t4 *g)
{
    cts *c = g->c;
    uint64_t scratch = 0, at = up(2 * g->part, 4096);
    for (uint32_t i = 0; i < N_NODES; i++) {
        infer_op_answer a = {.struct_size = sizeof(a)};
        if (!cts_ok(c, c->ops->op_query(c->h, &g->n[i].op, sizeof(g->n[i].op), 1, &a, sizeof(a)), "op_query"))
            return 0;
        if (!a.level) {
            cts_skip(c, "%s in F32: answered NO for %s", infer_op_get(g->n[i].op.op)->name, cts_why_name(a.why));
            return 0;
        }
        g->nodes[i] = (infer_node){.op = &g->n[i].op,
                                   .operands = g->n[i].at,
                                   .counts = {.slot = SLOT_STEP, .size = sizeof(g->counts)},
                                   .scratch = {.slot = INFER_SLOT_ABSENT}};
        if (a.scratch_bytes)
            g->nodes[i].scratch = (infer_operand){.slot = SLOT_ARENA, .offset = at, .size = a.scratch_bytes};
        scratch = a.scratch_bytes > scratch ? a.scratch_bytes : scratch;
    }
    g->size[SLOT_ARENA] = at + scratch + 256;
    return 1;
}

static int allocate(t4 *g)
{
    cts *c = g->c;
    infer_error e = {0};
    for (uint32_t i = 0; i < N_SLOTS; i++) {
        NEED(!infer_hal_buf_alloc(c->dev, g->size[i], INFER_LEDGER_WORKSPACE, &g->buf[i], &e), "%s", e.text);
        g->range[i] = (infer_range){g->buf[i].h, 0, g->size[i]};
        NEED(cts_ok(c, cts_fill(c, c->queue, g->buf[i].h, 0, g->size[i], 0, 1), "cmd_fill"), "fill");
    }
    NEED(cts_sync(c), "sync");
    infer_range w = {g->buf[SLOT_WEIGHT].h, 0, g->plan.packed_bytes};
    const void *planes[3] = {g->w, NULL, NULL};
    const uint64_t bytes[3] = {sizeof(g->w), 0, 0};
    NEED(!infer_hal_weight_load(c->dev, &g->source, &g->plan, &w, planes, bytes, &e), "%s", e.text);
    return cts_write(c, g->buf[SLOT_WEIGHT].h, norm_at(g), g->norm, sizeof(g->norm)) &&
           cts_write(c, g->buf[SLOT_WEIGHT].h, half_at(g), g->half, sizeof(g->half));
out:
    return 0;
}

/* 1: a graph of that capacity with its memory and, where `build` says so, its program and an instance. */
static int begin(cts *c, t4 *g, int64_t rows, int build)
{
    infer_error e = {0};
    memset(g, 0, sizeof(*g));
    g->c = c;
    g->rows = rows;
    g->row_bytes = WIDTH * sizeof(float);
    g->part = up(g->row_bytes * (uint64_t)rows, 256);
    for (int i = 0; i < WIDTH * WIDTH; i++)
        g->w[i] = number(c) / 3;
    for (int i = 0; i < WIDTH; i++)
        g->norm[i] = 1 + number(c) / 2;
    for (int i = 0; i < WIDTH; i++)
        g->half[i] = 0.5f;
    if (!plan_weight(g))
        return 0;
    nodes_of(g);
    if (!ask_all(g))
        return 0;
    g->size[SLOT_X] = g->size[SLOT_Y] = g->size[SLOT_STATE] = g->part;
    g->size[SLOT_WEIGHT] = half_at(g) + sizeof(g->half);
    g->size[SLOT_STEP] = 256;
    for (uint32_t i = 0; i < N_SLOTS; i++)
        g->slots[i] =
            (infer_slot_desc){.kind = slot_kinds[i], .rebindable = i == SLOT_X || i == SLOT_Y, .size = g->size[i]};
    g->view = (infer_graph_view){.struct_size = sizeof(g->view),
                                 .nodes = g->nodes,
                                 .slots = g->slots,
                                 .n_nodes = N_NODES,
                                 .node_size = sizeof(g->nodes[0]),
                                 .n_slots = N_SLOTS,
                                 .slot_size = sizeof(g->slots[0]),
                                 .bucket = (uint32_t)rows};
    if (!allocate(g) || !build)
        return !c->failed;
    infer_program_info info = {.struct_size = sizeof(info)};
    NEED(!infer_hal_prog_build(c->dev, &g->view, &g->prog, &info, &e), "%s", e.text);
    NEED(isfinite(info.est_ns) && info.est_ns >= 0, "prog_build: an estimate that is negative or not finite");
    NEED(!infer_hal_exec_create(g->prog, g->range, N_SLOTS, &g->exec, &e), "%s", e.text);
    return 1;
out:
    return 0;
}

static void end(t4 *g)
{
    if (g->c->run->dead[0])
        return;
    if (g->exec)
        infer_hal_exec_destroy(g->exec);
    if (g->prog)
        infer_hal_prog_destroy(g->prog);
    for (uint32_t i = 0; i < N_SLOTS; i++)
        infer_hal_buf_free(&g->buf[i]);
}

/* One run on the host. */
static void reference(t4 *g)
{
    int32_t n = g->counts[INFER_COUNT_TOKENS];
    for (int32_t r = 0; r < n && r < g->rows; r++) {
        const float *x = g->x + r * WIDTH;
        double ss = 0, t[WIDTH];
        for (int i = 0; i < WIDTH; i++)
            ss += (double)x[i] * x[i];
        double f = 1 / sqrt(ss / WIDTH + 1e-5);
        for (int i = 0; i < WIDTH; i++)
            t[i] = x[i] * f * g->norm[i];
        for (int o = 0; o < WIDTH; o++) {
            double sum = 0;
            for (int i = 0; i < WIDTH; i++)
                sum += t[i] * g->w[o * WIDTH + i];
            float y = (float)((g->square ? sum * sum : sum / (1 + exp(-sum))) + x[o]);
            g->y[r * WIDTH + o] = y;
            g->s[r * WIDTH + o] = (g->s[r * WIDTH + o] + y) / 2;
        }
    }
}

/* ---- Running --------------------------------------------------------------------------------------------- */

/* What is done on the submit thread: n times new inputs, a run, and (out) the result to the host. */
typedef struct t4_job {
    infer_hal_job job;
    t4 *g;
    infer_hal_exec *exec;
    const float *x;
    const int32_t *counts;
    float *out; /* [n][rows][WIDTH], or NULL */
    uint32_t n;
    infer_range rx, ry;
    int drain_each;
    infer_status s;
} t4_job;

static infer_status step(t4_job *j, uint32_t i)
{
    t4 *g = j->g;
    infer_hal_dev *d = g->c->dev;
    uint64_t bytes = g->row_bytes * (uint64_t)g->rows;
    infer_range counts = {g->range[SLOT_STEP].buffer, 0, sizeof(g->counts)}, x = {j->rx.buffer, j->rx.offset, bytes};
    INFER_TRY(infer_hal_update(d, &x, j->x + i * g->rows * WIDTH, bytes));
    INFER_TRY(infer_hal_update(d, &counts, j->counts + i * INFER_COUNT_MAX, sizeof(g->counts)));
    INFER_TRY(infer_hal_exec_submit(j->exec));
    if (j->out) {
        infer_copy_region r = {.src_offset = j->ry.offset, .bytes = bytes, .rows = 1};
        infer_copy_end to = {NULL, j->out + i * g->rows * WIDTH}, from = {j->ry.buffer, NULL};
        INFER_TRY(infer_hal_copy(d, &to, &from, &r, 1));
    }
    return j->drain_each ? infer_hal_drain(d) : INFER_OK;
}

static void run_job(infer_hal_job *job)
{
    t4_job *j = (t4_job *)(void *)job;
    for (uint32_t i = 0; i < j->n && !j->s; i++)
        j->s = step(j, i);
    infer_status s = infer_hal_drain(j->g->c->dev);
    j->s = j->s ? j->s : s;
}

static int near_enough(cts *c, const float *e, const float *g, uint64_t n, const char *what)
{
    double sum = 0;
    for (uint64_t i = 0; i < n; i++)
        sum += (double)e[i] * e[i];
    double rms = n ? sqrt(sum / (double)n) : 0;
    for (uint64_t i = 0; i < n; i++)
        if (!(fabs((double)g[i] - e[i]) <= 5e-5 * fabs(e[i]) + 5e-5 * rms)) {
            cts_fail(c, "%s: row %llu element %llu is %.9g, expected %.9g", what, (unsigned long long)(i / WIDTH),
                     (unsigned long long)(i % WIDTH), (double)g[i], (double)e[i]);
            return 0;
        }
    return 1;
}

/* n runs, each checked; `count` rows of each (0: a number that changes). Keeps the reference's state in step. */
static int runs(t4 *g, infer_hal_exec *exec, uint32_t n, int32_t count, int drain_each, const infer_range *rx,
                const infer_range *ry, const char *what)
{
    cts *c = g->c;
    uint64_t each = (uint64_t)g->rows * WIDTH;
    float *x = infer_calloc(2 * n * each, sizeof(*x)), *y = x + n * each;
    int32_t *counts = infer_calloc((uint64_t)n * INFER_COUNT_MAX, sizeof(*counts));
    int ok = 0;
    NEED(x && counts, "no host memory");
    for (uint64_t i = 0; i < n * each; i++)
        x[i] = number(c) * 2;
    for (uint32_t i = 0; i < n; i++)
        counts[i * INFER_COUNT_MAX] = count ? count : (int32_t)cts_below(c, (uint64_t)g->rows + 1);
    t4_job j = {.job.run = run_job,
                .g = g,
                .exec = exec,
                .x = x,
                .counts = counts,
                .out = y,
                .n = n,
                .rx = *rx,
                .ry = *ry,
                .drain_each = drain_each};
    infer_hal_run(c->dev, &j.job);
    NEED(cts_ok(c, j.s, what), "run");
    for (uint32_t i = 0; i < n; i++) {
        char text[96];
        memcpy(g->x, x + i * each, each * sizeof(*x));
        g->counts[INFER_COUNT_TOKENS] = counts[i * INFER_COUNT_MAX];
        reference(g); /* rows past the count keep what the run before left */
        snprintf(text, sizeof(text), "%s, run %u of %u with %d rows", what, i + 1, n, g->counts[INFER_COUNT_TOKENS]);
        if (!near_enough(c, g->y, y + i * each, each, text))
            goto out;
    }
    ok = 1;
out:
    infer_free(x);
    infer_free(counts);
    return ok;
}

static int state_is(t4 *g, const char *what)
{
    float s[MAX_ROWS * WIDTH];
    uint64_t bytes = g->row_bytes * (uint64_t)g->rows;
    return cts_read(g->c, g->range[SLOT_STATE].buffer, g->range[SLOT_STATE].offset, s, bytes) &&
           near_enough(g->c, g->s, s, (uint64_t)g->rows * WIDTH, what);
}

/* ---- Cases ----------------------------------------------------------------------------------------------- */

static void once(t4 *g)
{
    if (begin(g->c, g, 7, 1) && runs(g, g->exec, 1, 7, 1, &g->range[SLOT_X], &g->range[SLOT_Y], "one run"))
        state_is(g, "the state after one run");
}

static void counts(t4 *g)
{
    if (begin(g->c, g, 9, 1) && runs(g, g->exec, 60, 0, 1, &g->range[SLOT_X], &g->range[SLOT_Y], "changing counts"))
        state_is(g, "the state after changing counts");
}

static void thousand(t4 *g)
{
    if (!begin(g->c, g, 5, 1))
        return;
    for (int i = 0; i < 10; i++)
        if (!runs(g, g->exec, 100, 0, i % 2, &g->range[SLOT_X], &g->range[SLOT_Y], "a thousand runs") ||
            !state_is(g, "the state among a thousand runs"))
            return;
}

/* Many runs on their way at once, each with its own inputs. */
static void in_flight(t4 *g)
{
    if (begin(g->c, g, 33, 1) && runs(g, g->exec, 48, 0, 0, &g->range[SLOT_X], &g->range[SLOT_Y], "runs in flight"))
        state_is(g, "the state after runs in flight");
}

static void rebind(t4 *g)
{
    cts *c = g->c;
    infer_hal_buf other = {0};
    infer_error e = {0};
    uint8_t kept[4096];
    if (!begin(c, g, 7, 1))
        goto out; /* it failed and said so, or the device refuses an op: skipped */
    NEED(!infer_hal_buf_alloc(c->dev, 8 * g->part, INFER_LEDGER_WORKSPACE, &other, &e), "%s", e.text);
    NEED(cts_ok(c, cts_fill(c, c->queue, other.h, 0, 8 * g->part, 0, 1), "cmd_fill") && cts_sync(c), "fill");
    NEED(runs(g, g->exec, 2, 7, 1, &g->range[SLOT_X], &g->range[SLOT_Y], "before rebinding"), "run");
    for (uint32_t i = 0; i < 6; i++) {
        infer_range x = {other.h, (uint64_t)(i % 3) * g->part, g->part},
                    y = {other.h, (uint64_t)(4 + i % 4) * g->part, g->part};
        NEED(!infer_hal_exec_update(g->exec, SLOT_X, &x, &e), "rebinding: %s", e.text);
        if (i != 2)
            NEED(!infer_hal_exec_update(g->exec, SLOT_Y, &y, &e), "rebinding: %s", e.text);
        else
            y = (infer_range){other.h, (uint64_t)(4 + 1) * g->part, g->part}; /* as the run before */
        memset(kept, 0x3C, g->part);
        NEED(cts_write(c, g->range[SLOT_Y].buffer, 0, kept, g->part), "write");
        NEED(cts_write(c, g->range[SLOT_X].buffer, 0, kept, g->part), "write");
        NEED(runs(g, g->exec, 2, 7, 1, &x, &y, "after rebinding"), "run");
        NEED(cts_read(c, g->range[SLOT_Y].buffer, 0, kept, g->part), "read");
        for (uint64_t b = 0; b < g->part; b++)
            NEED(kept[b] == 0x3C, "after rebinding, byte %llu of the former output was written", (unsigned long long)b);
    }
    state_is(g, "the state after rebinding");
out:
    if (!c->run->dead[0]) {
        if (g->exec)
            infer_hal_exec_destroy(g->exec);
        g->exec = NULL;
        infer_hal_buf_free(&other);
    }
}

/* Two instances of one program: inputs, outputs and arenas of their own, one state. */
static void two_execs(t4 *g)
{
    cts *c = g->c;
    infer_hal_buf b[3] = {{0}};
    infer_hal_exec *second = NULL;
    infer_error e = {0};
    infer_range r[N_SLOTS];
    if (!begin(c, g, 7, 1))
        goto out; /* it failed and said so, or the device refuses an op: skipped */
    memcpy(r, g->range, sizeof(r));
    static const uint32_t own[3] = {SLOT_X, SLOT_Y, SLOT_ARENA};
    for (int i = 0; i < 3; i++) {
        NEED(!infer_hal_buf_alloc(c->dev, g->size[own[i]], INFER_LEDGER_WORKSPACE, &b[i], &e), "%s", e.text);
        r[own[i]].buffer = b[i].h;
        NEED(cts_ok(c, cts_fill(c, c->queue, b[i].h, 0, g->size[own[i]], 0, 1), "cmd_fill"), "fill");
    }
    NEED(cts_sync(c), "sync");
    NEED(!infer_hal_exec_create(g->prog, r, N_SLOTS, &second, &e), "a second instance: %s", e.text);
    for (int i = 0; i < 4; i++) {
        NEED(runs(g, g->exec, 3, 7, 0, &g->range[SLOT_X], &g->range[SLOT_Y], "the first of two instances"), "run");
        NEED(runs(g, second, 2, 7, 0, &r[SLOT_X], &r[SLOT_Y], "the second of two instances"), "run");
    }
    state_is(g, "the state of two instances");
    infer_hal_exec_destroy(g->exec); /* the other goes on */
    g->exec = NULL;
    NEED(runs(g, second, 2, 7, 1, &r[SLOT_X], &r[SLOT_Y], "after the first instance is gone"), "run");
out:
    if (!c->run->dead[0]) {
        if (second)
            infer_hal_exec_destroy(second);
        for (int i = 0; i < 3; i++)
            infer_hal_buf_free(&b[i]);
    }
}

/* Capacities side by side, used in turn; and many instances that come and go. */
static void buckets(t4 *g)
{
    static const int64_t rows[] = {1, 7, 33};
    cts *c = g->c;
    t4 *all = infer_calloc(3, sizeof(*all));
    int n = 0;
    NEED(all, "no host memory");
    for (; n < 3; n++)
        if (!begin(c, &all[n], rows[n], 1)) {
            n++;
            goto out;
        }
    for (int i = 0; i < 9; i++) {
        t4 *k = &all[i * 2 % 3];
        NEED(runs(k, k->exec, 4, 0, i % 2, &k->range[SLOT_X], &k->range[SLOT_Y], "capacities in turn"), "run");
    }
    for (int i = 0; i < 12; i++) {
        infer_hal_exec *x = NULL;
        infer_error e = {0};
        NEED(!infer_hal_exec_create(all[1].prog, all[1].range, N_SLOTS, &x, &e), "instance %d: %s", i, e.text);
        int ok = i % 3 || runs(&all[1], x, 1, 7, 1, &all[1].range[SLOT_X], &all[1].range[SLOT_Y], "many instances");
        infer_hal_exec_destroy(x);
        NEED(ok, "run");
    }
out:
    for (int i = n; all && i-- > 0;)
        end(&all[i]);
    infer_free(all);
}

/* The program does what the list of its ops does. */
static void as_list(t4 *g)
{
    cts *c = g->c;
    float y[2][MAX_ROWS * WIDTH];
    uint64_t bytes;
    if (!begin(c, g, 9, 1))
        goto out; /* it failed and said so, or the device refuses an op: skipped */
    bytes = g->row_bytes * (uint64_t)g->rows;
    NEED(runs(g, g->exec, 1, 9, 1, &g->range[SLOT_X], &g->range[SLOT_Y], "one run"), "run");
    NEED(cts_read(c, g->range[SLOT_Y].buffer, 0, y[0], bytes), "read");
    NEED(cts_ok(c, cts_fill(c, c->queue, g->range[SLOT_Y].buffer, 0, bytes, 0xFF, 1), "cmd_fill"), "fill");
    for (uint32_t i = 0; i < N_NODES; i++) {
        infer_range r[4];
        const infer_node *n = &g->nodes[i];
        for (uint32_t k = 0; k < n->op->n_in + n->op->n_out; k++)
            r[k] = (infer_range){g->range[n->operands[k].slot].buffer, n->operands[k].offset, n->operands[k].size};
        infer_op_args a = {.struct_size = sizeof(a),
                           .n_operands = n->op->n_in + n->op->n_out,
                           .operands = r,
                           .counts = {g->range[SLOT_STEP].buffer, 0, sizeof(g->counts)}};
        if (n->scratch.slot != INFER_SLOT_ABSENT)
            a.scratch = (infer_range){g->range[SLOT_ARENA].buffer, n->scratch.offset, n->scratch.size};
        NEED(cts_ok(c, cts_op(c, c->queue, n->op, &a), "cmd_op"), "op");
    }
    NEED(cts_read(c, g->range[SLOT_Y].buffer, 0, y[1], bytes), "read");
    if (!CTS_HAS(c, prog_build)) {
        int64_t at = cts_differ(y[0], y[1], bytes);
        NEED(at < 0, "the stock program and the list of its ops differ at byte %lld", (long long)at);
    }
    near_enough(c, y[1], y[0], (uint64_t)g->rows * WIDTH, "a program against the list of its ops");
out:;
}

static void claim(t4 *g)
{
    cts *c = g->c;
    int32_t set[N_NODES + 1], again[N_NODES];
    infer_error e = {0};
    if (!CTS_HAS(c, prog_claim)) {
        cts_skip(c, "prog_claim is absent");
        return;
    }
    if (!begin(c, g, 7, 0))
        goto out; /* it failed and said so, or the device refuses an op: skipped */
    set[N_NODES] = 0x5A5A;
    NEED(!infer_hal_prog_claim(c->dev, &g->view, set, &e), "%s", e.text);
    NEED(!infer_hal_prog_claim(c->dev, &g->view, again, &e), "%s", e.text);
    NEED(set[N_NODES] == 0x5A5A, "prog_claim writes past the last node");
    for (int i = 0; i < N_NODES; i++) {
        NEED(set[i] >= -1 && set[i] < N_NODES, "node %d is put into set %d", i, set[i]);
        NEED(set[i] == again[i], "node %d is in set %d, asked again in %d", i, set[i], again[i]);
    }
out:;
}

/* ---- Saved programs -------------------------------------------------------------------------------------- */

/* A program of the plugin's on the case's queue: one run, against the reference. */
static int run_raw(t4 *g, infer_program *p, const char *what)
{
    cts *c = g->c;
    infer_exec *x = NULL;
    float y[MAX_ROWS * WIDTH];
    uint64_t n = (uint64_t)g->rows * WIDTH, since = 0;
    int ok = 0;
    infer_status s;
    for (uint64_t i = 0; i < n; i++)
        g->x[i] = number(c);
    g->counts[INFER_COUNT_TOKENS] = (int32_t)g->rows;
    NEED(cts_write(c, g->range[SLOT_X].buffer, 0, g->x, n * sizeof(float)) &&
             cts_write(c, g->range[SLOT_STEP].buffer, 0, g->counts, sizeof(g->counts)),
         "write");
    NEED(cts_ok(c, c->ops->prog_instantiate(p, c->queue, g->range, N_SLOTS, &x), what), "instantiate");
    while ((s = c->ops->prog_submit(x, c->queue)) == INFER_AGAIN && since++ < 5000)
        cts_sleep_ms(1);
    NEED(cts_ok(c, s, what) && cts_read(c, g->range[SLOT_Y].buffer, 0, y, n * sizeof(float)), "submit");
    reference(g);
    ok = near_enough(c, g->y, y, n, what);
out:
    if (x && !c->run->dead[0])
        c->ops->exec_destroy(x);
    return ok;
}

static void save_load(t4 *g)
{
    cts *c = g->c;
    const infer_host *host = c->run->info.host;
    infer_program *p = NULL, *mark = (infer_program *)(void *)g, *loaded = mark;
    infer_program_info info = {.struct_size = sizeof(info)};
    void *data = NULL;
    uint64_t bytes = 0;
    if (!CTS_HAS(c, prog_save) || !CTS_HAS(c, prog_load) || !CTS_HAS(c, prog_build)) {
        cts_skip(c, "prog_save or prog_load is absent");
        return;
    }
    if (!begin(c, g, 7, 0))
        goto out; /* it failed and said so, or the device refuses an op: skipped */
    NEED(cts_ok(c, c->ops->prog_build(c->h, &g->view, &p, &info), "prog_build"), "build");
    infer_status s = c->ops->prog_save(p, &data, &bytes);
    if (s == INFER_E_UNSUPPORTED) {
        cts_skip(c, "prog_save answers UNSUPPORTED for this program");
        goto out;
    }
    NEED(cts_ok(c, s, "prog_save") && data && bytes, "prog_save gives nothing");
    NEED(run_raw(g, p, "the program that was saved"), "run");
    c->ops->prog_destroy(p);
    p = NULL;
    for (int i = 0; i < 2; i++) { /* the second without what the first may have left */
        NEED(cts_ok(c, c->ops->prog_load(c->h, data, bytes, &loaded), "prog_load") && loaded != mark, "load");
        NEED(run_raw(g, loaded, "a loaded program"), "run");
        c->ops->prog_destroy(loaded);
        loaded = mark;
    }
    /* what is not whole is refused */
    uint8_t *bad = infer_malloc(bytes);
    NEED(bad, "no host memory");
    for (int i = 0; i < 4; i++) {
        uint64_t n = i == 0 ? 0 : i == 1 ? bytes / 2 : i == 2 ? bytes - 1 : bytes;
        memcpy(bad, data, bytes);
        for (uint64_t b = 0; i == 3 && b < bytes && b < 16; b++)
            bad[b] = (uint8_t)~bad[b];
        s = c->ops->prog_load(c->h, bad, n, &loaded);
        if (!s)
            c->ops->prog_destroy(loaded);
        if (s >= 0 || loaded != mark)
            cts_fail(c, "prog_load of %llu of %llu bytes%s: %s", (unsigned long long)n, (unsigned long long)bytes,
                     i == 3 ? ", the first of them inverted" : "", infer_status_name(s));
        loaded = mark;
    }
    infer_free(bad);
out:
    if (loaded && loaded != mark && !c->run->dead[0])
        c->ops->prog_destroy(loaded);
    if (p)
        c->ops->prog_destroy(p);
    if (data)
        host->free(host->ctx, data);
}

/* ---- The list -------------------------------------------------------------------------------------------- */

typedef void (*t4_fn)(t4 *g);

static void t4_case(cts *c)
{
    const t4_fn *fn = c->arg;
    t4 *g = infer_calloc(1, sizeof(*g));
    if (!g) {
        cts_fail(c, "no host memory");
        return;
    }
    g->c = c;
    (*fn)(g);
    end(g);
    infer_free(g);
}

void cts_t4(cts_run *r)
{
    static const struct {
        const char *name;
        t4_fn fn;
    } cases[] = {{"t4.prog.once", once},           {"t4.prog.counts", counts},   {"t4.prog.thousand", thousand},
                 {"t4.prog.in_flight", in_flight}, {"t4.prog.rebind", rebind},   {"t4.prog.two_execs", two_execs},
                 {"t4.prog.buckets", buckets},     {"t4.prog.as_list", as_list}, {"t4.prog.claim", claim},
                 {"t4.prog.save_load", save_load}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        t4_fn fn = cases[i].fn;
        cts_case_run(r, 4, cases[i].name, t4_case, 1, &fn);
    }
}
