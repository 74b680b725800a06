/*
 * T5, two devices of the backend side by side: what they say of each other, copies through the host and directly, waits
 * on each other's timelines, work at the same time, one closed while the other works, collectives. With one device all
 * of it is skipped. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "cts_t1.h"
#include "ops/ops.h"

/* The other device, and the case's own view of it: all verbs work on `d` as on the case. */
typedef struct t5 {
    const infer_hal_device_info *row;
    infer_hal_dev *dev;
    void (*fn)(cts *c, cts *d);
} t5;

static void view_of(cts *d, const cts *c, infer_hal_dev *dev)
{
    *d = (cts){.run = c->run, .name = c->name, .rng = c->rng ^ 0xD1B54A32D192ED03u, .dev = dev};
    d->h = infer_hal_dev_handle(dev);
    d->ops = infer_hal_dev_ops(dev);
    d->props = infer_hal_dev_props(dev);
    d->heap = infer_hal_dev_heap(dev);
}

static void take_over(cts *c, const cts *d)
{
    if (d->failed)
        cts_fail(c, "on the second device: %s", d->detail);
}

static void t5_case(cts *c)
{
    t5 *t = c->arg;
    cts d;
    infer_error e = {0};
    if (!t->row) {
        cts_skip(c, "the backend shows no second device");
        return;
    }
    if (!t->dev && infer_hal_open(c->run->hal, t->row->id, &t->dev, &e)) {
        cts_fail(c, "opening %s beside %s: %s", t->row->id, c->run->row->id, e.text);
        return;
    }
    view_of(&d, c, t->dev);
    if (cts_open_queue(&d))
        t->fn(c, &d);
    take_over(c, &d);
    cts_close_queue(&d);
    take_over(c, &d);
}

/* ---- What they say --------------------------------------------------------------------------------------- */

static void edges(cts *c, cts *d)
{
    infer_hal_dev *const pair[2] = {c->dev, d->dev};
    for (int i = 0; i < 2; i++) {
        infer_edge_info e = {.struct_size = sizeof(e)};
        NEED(cts_ok(c, infer_hal_edge(pair[i], pair[!i], &e), "dev_edge"), "edge");
        NEED(e.mode >= INFER_EDGE_NATIVE && e.mode <= INFER_EDGE_STAGED, "dev_edge: mode %u is unknown", e.mode);
        NEED(isfinite(e.bytes_per_s) && e.bytes_per_s >= 0 && isfinite(e.latency_ns) && e.latency_ns >= 0,
             "dev_edge: a figure that is negative or not finite");
        NEED(e.mode != INFER_EDGE_IMPORT || e.handle_kinds, "dev_edge: by import, but by no kind of handle");
        NEED(!(e.handle_kinds >> 3), "dev_edge: kinds of handles 0x%x are unknown", e.handle_kinds);
        NEED(e.mode != INFER_EDGE_IMPORT || (CTS_HAS(c, buf_export) && CTS_HAS(c, buf_import)),
             "dev_edge: by import, but buf_export or buf_import is absent");
    }
    NEED(c->h != d->h, "both devices have one handle");
out:;
}

/* ---- Copies ---------------------------------------------------------------------------------------------- */

static void staged(cts *c, cts *d)
{
    enum { N = 300007 };
    uint8_t *x = infer_malloc(3 * N), *host = x ? x + N : NULL, *back = x ? x + 2 * N : NULL;
    cts *const way[2][2] = {{c, d}, {d, c}};
    NEED(x, "no host memory");
    for (int i = 0; i < 2; i++) {
        infer_buffer *a = cts_buf(way[i][0], N), *b = cts_buf(way[i][1], N);
        NEED(a && b, "buffers");
        cts_bytes(c, x, N);
        memset(host, 0, 2 * N);
        NEED(cts_write(way[i][0], a, 0, x, N) && cts_read(way[i][0], a, 0, host, N), "out");
        NEED(cts_write(way[i][1], b, 0, host, N) && cts_read(way[i][1], b, 0, back, N), "in");
        int64_t at = cts_differ(x, back, N);
        NEED(at < 0, "through the host %s: byte %lld is 0x%02x, not 0x%02x", i ? "back" : "across", (long long)at,
             back[at], x[at]);
    }
out:
    take_over(c, d);
    infer_free(x);
}

/* A buffer of d's as c's queue takes it; NULL: skipped or failed. *import: to be freed by c. */
static infer_buffer *reach(cts *c, cts *d, infer_buffer *b, uint64_t bytes, infer_buffer **import)
{
    infer_edge_info e = {.struct_size = sizeof(e)};
    *import = NULL;
    if (!cts_ok(c, infer_hal_edge(c->dev, d->dev, &e), "dev_edge"))
        return NULL;
    if (e.mode == INFER_EDGE_NATIVE || e.mode == INFER_EDGE_DMA)
        return b;
    if (e.mode == INFER_EDGE_STAGED) {
        cts_skip(c, "the devices reach each other through the host only");
        return NULL;
    }
    uint32_t kind = e.handle_kinds & 1   ? INFER_HANDLE_DMABUF
                    : e.handle_kinds & 2 ? INFER_HANDLE_OPAQUE_FD
                                         : INFER_HANDLE_IPC;
    int64_t handle = -1;
    if (!cts_ok(d, d->ops->buf_export(d->h, b, kind, &handle), "buf_export") ||
        !cts_ok(c, c->ops->buf_import(c->h, kind, handle, bytes, import), "buf_import"))
        return NULL;
    return *import;
}

static void direct(cts *c, cts *d)
{
    enum { N = 300007 };
    uint8_t *x = infer_malloc(2 * N), *back = x ? x + N : NULL;
    infer_buffer *import = NULL, *far = cts_buf(d, N), *near = cts_buf(c, N);
    infer_copy_region r = {.src_offset = 3, .dst_offset = 5, .bytes = N - 5, .rows = 1};
    NEED(x && far && near, "buffers");
    infer_buffer *peer = reach(c, d, far, N, &import);
    if (!peer)
        goto out;
    for (int out_to = 0; out_to < 2; out_to++) { /* from the peer, then to it */
        cts *from = out_to ? c : d, *to = out_to ? d : c;
        cts_bytes(c, x, N);
        memset(back, 0, N);
        NEED(cts_write(from, out_to ? near : far, 0, x, N) && cts_write(to, out_to ? far : near, 0, back, N), "write");
        NEED(cts_ok(c,
                    cts_copy(c, c->queue, (infer_copy_end){out_to ? peer : near, NULL},
                             (infer_copy_end){out_to ? near : peer, NULL}, &r, 1),
                    "cmd_copy with a peer's buffer") &&
                 cts_sync(c),
             "copy");
        NEED(cts_read(to, out_to ? far : near, 0, back, N), "read");
        int64_t at = cts_differ(x + 3, back + 5, N - 5);
        NEED(at < 0 && !back[4], "%s the peer: byte %lld of a copy is wrong", out_to ? "to" : "from", (long long)at);
    }
out:
    take_over(c, d);
    if (import && !c->run->dead[0])
        c->ops->buf_free(c->h, import);
    infer_free(x);
}

/* ---- Order ----------------------------------------------------------------------------------------------- */

/* c waits on its queue for d's work, whose result it then takes; twenty times, without the host between. */
static void waits(cts *c, cts *d)
{
    enum { N = 1 << 18, ROUNDS = 20 };
    uint8_t *mid = infer_malloc((uint64_t)N * ROUNDS), *back = infer_malloc(N);
    infer_buffer *far = cts_buf(d, N), *near = cts_buf(c, N);
    infer_copy_region r = {.bytes = N, .rows = 1};
    int began = 0;
    NEED(mid && back && far && near, "buffers");
    memset(mid, 0, (uint64_t)N * ROUNDS);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        infer_copy_end host = {NULL, mid + (uint64_t)i * N};
        began = 1;
        NEED(cts_ok(d, cts_fill(d, d->queue, far, 0, N, i + 1, 1), "cmd_fill"), "fill");
        NEED(cts_ok(d, cts_copy(d, d->queue, host, (infer_copy_end){far, NULL}, &r, 1), "cmd_copy"), "copy");
        NEED(cts_ok(d, cts_signal(d, d->queue, d->tl, ++d->value), "queue_signal"), "signal");
        infer_status s = cts_wait(c, c->queue, d->tl, d->value);
        if (s == INFER_E_UNSUPPORTED) {
            cts_skip(c, "a queue cannot wait on another device's timeline: the core waits on the host");
            goto out;
        }
        NEED(cts_ok(c, s, "queue_wait on another device's timeline"), "wait");
        NEED(cts_ok(c, cts_copy(c, c->queue, (infer_copy_end){near, NULL}, host, &r, 1), "cmd_copy"), "copy");
    }
    NEED(cts_sync(c) && cts_read(c, near, 0, back, N), "read");
    for (uint32_t i = 0; i < N; i++)
        NEED(back[i] == ROUNDS, "byte %u is %u, not %u: the queue did not wait for the other device", i, back[i],
             ROUNDS);
out:
    take_over(c, d);
    if (began) {
        cts_sync(d);
        cts_sync(c);
    }
    infer_free(mid);
    infer_free(back);
}

typedef struct worker {
    cts *c;
    uint8_t salt;
    pthread_t thread;
} worker;

static void *work(void *arg)
{
    enum { N = 60000 };
    worker *w = arg;
    cts *c = w->c;
    infer_buffer *a = cts_buf(c, N), *b = cts_buf(c, N);
    uint8_t *back = infer_malloc(N);
    NEED(a && b && back, "buffers");
    for (uint32_t i = 0; i < 60; i++) {
        infer_copy_region r = {.bytes = N, .rows = 1};
        uint8_t want = (uint8_t)(i * 3 + w->salt);
        NEED(cts_ok(c, cts_fill(c, c->queue, a, 0, N, want, 1), "cmd_fill"), "fill");
        NEED(cts_ok(c, cts_copy(c, c->queue, (infer_copy_end){b, NULL}, (infer_copy_end){a, NULL}, &r, 1), "cmd_copy"),
             "copy");
        NEED(cts_read(c, b, 0, back, N), "read");
        NEED(back[0] == want && back[N / 2] == want && back[N - 1] == want && !memcmp(back, back + 1, N - 1),
             "round %u: another device's work shows in this one's", i);
    }
out:
    infer_free(back);
    return NULL;
}

/* Both at work at once, each from its own thread. */
static void at_once(cts *c, cts *d)
{
    worker w = {.c = d, .salt = 100};
    int running = !pthread_create(&w.thread, NULL, work, &w);
    work(&(worker){.c = c, .salt = 7});
    if (running)
        pthread_join(w.thread, NULL);
    else
        cts_fail(c, "no thread");
    take_over(c, d);
}

/* One op on both: the same bits, as they are devices of one kind. */
static void same_bits(cts *c, cts *d)
{
    static const infer_op_id ops[] = {INFER_OP_MATMUL, INFER_OP_RMS_NORM, INFER_OP_ATTN_PAGED};
    if (strcmp(infer_hal_dev_row(c->dev)->info.name, infer_hal_dev_row(d->dev)->info.name) &&
        strcmp(infer_hal_dev_row(c->dev)->info.arch, infer_hal_dev_row(d->dev)->info.arch)) {
        cts_skip(c, "the devices are not of one kind");
        return;
    }
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]) && !c->failed; i++) {
        infer_op_case k;
        cts_job a, b;
        if (infer_op_case_make(ops[i], 1, c->run->opt->seed, &k))
            continue;
        cts_job_from(&a, &k);
        cts_job_from(&b, &k);
        if (cts_job_plan(c, &a) && cts_job_query(c, &a) && cts_job_plan(d, &b) && cts_job_query(d, &b) &&
            cts_job_run(c, &a, k.label) && cts_job_run(d, &b, k.label)) {
            int64_t at =
                cts_differ(cts_job_result(&a, k.desc.n_in), cts_job_result(&b, k.desc.n_in), k.bytes[k.desc.n_in]);
            if (at >= 0)
                cts_fail(c, "%s: two devices of one kind differ at byte %lld", k.label, (long long)at);
        }
        take_over(c, d);
        cts_job_free(&a);
        cts_job_free(&b);
        infer_op_case_free(&k);
    }
}

/* The other device comes and goes while this one works. */
static void comes_and_goes(cts *c)
{
    enum { N = 1 << 20 };
    t5 *t = c->arg;
    infer_buffer *a = cts_buf(c, N);
    uint8_t *back = infer_malloc(N);
    infer_error e = {0};
    if (!t->row) {
        cts_skip(c, "the backend shows no second device");
        goto out;
    }
    NEED(a && back, "buffers");
    if (t->dev)
        infer_hal_close(t->dev);
    t->dev = NULL;
    for (uint32_t i = 1; i <= 4; i++) {
        for (int k = 0; k < 8; k++)
            NEED(cts_ok(c, cts_fill(c, c->queue, a, 0, N, i * 16 + (uint32_t)k, 1), "cmd_fill"), "fill");
        NEED(!infer_hal_open(c->run->hal, t->row->id, &t->dev, &e), "%s", e.text);
        infer_hal_close(t->dev);
        t->dev = NULL;
        NEED(cts_read(c, a, 0, back, N), "read");
        NEED(back[0] == i * 16 + 7 && !memcmp(back, back + 1, N - 1), "work of one device is lost with another");
    }
out:
    cts_sync(c);
    infer_free(back);
}

/* ---- Collectives ----------------------------------------------------------------------------------------- */

typedef struct rank {
    cts *c;
    uint32_t number;
    const uint8_t *id;
    infer_comm *comm;
    const infer_op_desc *op;
    const float *x;
    float *y;
    uint64_t nx, ny;
    infer_status s;
    pthread_t thread;
} rank;

static void *join_group(void *arg)
{
    rank *r = arg;
    r->s = r->c->ops->comm_create(r->c->h, r->id, r->number, 2, &r->comm);
    cts_ok(r->c, r->s, "comm_create");
    return NULL;
}

static void *collect(void *arg)
{
    rank *r = arg;
    cts *c = r->c;
    infer_op_answer a = {.struct_size = sizeof(a)};
    infer_buffer *x = cts_buf(c, r->nx * 4), *y = cts_buf(c, r->ny * 4), *scratch = NULL;
    NEED(x && y, "buffers");
    NEED(cts_ok(c, c->ops->op_query(c->h, r->op, sizeof(*r->op), 1, &a, sizeof(a)), "op_query"), "query");
    if (a.scratch_bytes)
        NEED((scratch = cts_buf(c, a.scratch_bytes)) != NULL, "scratch");
    infer_range o[2] = {{x, 0, r->nx * 4}, {y, 0, r->ny * 4}};
    infer_op_args args = {.struct_size = sizeof(args), .n_operands = 2, .operands = o, .comm = r->comm};
    args.scratch = (infer_range){scratch, 0, a.scratch_bytes};
    NEED(cts_write(c, x, 0, r->x, r->nx * 4), "write");
    NEED(cts_ok(c, cts_op(c, c->queue, r->op, &args), "a collective") && cts_read(c, y, 0, r->y, r->ny * 4), "run");
out:
    return NULL;
}

/* f on both ranks, the second on a thread. */
static int both(cts *c, rank r[2], void *(*f)(void *))
{
    int running = !pthread_create(&r[1].thread, NULL, f, &r[1]);
    if (running) {
        f(&r[0]);
        pthread_join(r[1].thread, NULL);
    } else {
        cts_fail(c, "no thread");
    }
    take_over(c, r[1].c);
    return !c->failed;
}

enum { ROWS = 5, COLS = 34 };

/* What rank i is to hold at [row][col] after the op. */
static float wanted(infer_op_id op, float x[2][2 * ROWS * COLS], uint32_t i, uint32_t row, uint32_t col)
{
    switch (op) {
    case INFER_OP_ALL_REDUCE:
        return x[0][row * COLS + col] + x[1][row * COLS + col];
    case INFER_OP_BROADCAST:
        return x[0][row * COLS + col];
    case INFER_OP_ALL_GATHER:
        return x[col / COLS][row * COLS + col % COLS];
    default:
        return x[0][row * 2 * COLS + i * COLS + col] + x[1][row * 2 * COLS + i * COLS + col];
    }
}

static void collective(cts *c, rank r[2], infer_op_id op, uint32_t *taken)
{
    static float x[2][2 * ROWS * COLS], y[2][2 * ROWS * COLS];
    uint32_t in = op == INFER_OP_REDUCE_SCATTER ? 2 : 1, out = op == INFER_OP_ALL_GATHER ? 2 : 1;
    infer_tensor_desc t[2] = {infer_tensor_make(INFER_FMT_F32, 2, ROWS, in * COLS, 1, 1),
                              infer_tensor_make(INFER_FMT_F32, 2, ROWS, out * COLS, 1, 1)};
    infer_op_desc d = {.struct_size = sizeof(d),
                       .op = op,
                       .rows_from = INFER_ROWS_STATIC,
                       .rows_mul = 1,
                       .n_in = 1,
                       .n_out = 1,
                       .tensor_size = sizeof(t[0]),
                       .tensors = t,
                       .epilogue_size = sizeof(infer_epilogue)};
    infer_op_answer a = {.struct_size = sizeof(a)};
    if (!cts_ok(c, c->ops->op_query(c->h, &d, sizeof(d), 1, &a, sizeof(a)), "op_query") || !a.level)
        return;
    ++*taken;
    for (uint32_t i = 0; i < 2; i++) {
        r[i].op = &d;
        r[i].x = x[i];
        r[i].y = y[i];
        r[i].nx = (uint64_t)in * ROWS * COLS;
        r[i].ny = (uint64_t)out * ROWS * COLS;
        for (uint64_t k = 0; k < r[i].nx; k++)
            x[i][k] = (float)(int32_t)(cts_rand(c) & 0xFFF) - 2048;
    }
    if (!both(c, r, collect))
        return;
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t row = 0; row < ROWS; row++)
            for (uint32_t col = 0; col < out * COLS; col++) {
                float e = wanted(op, x, i, row, col), g = y[i][row * out * COLS + col];
                if (g != e) {
                    cts_fail(c, "%s: rank %u has %g at [%u][%u], expected %g", infer_op_get(op)->name, i, (double)g,
                             row, col, (double)e);
                    return;
                }
            }
}

static void collectives(cts *c, cts *d)
{
    static const infer_op_id ops[] = {INFER_OP_ALL_REDUCE, INFER_OP_ALL_GATHER, INFER_OP_REDUCE_SCATTER,
                                      INFER_OP_BROADCAST};
    uint8_t id[128] = {0};
    uint32_t taken = 0;
    rank r[2] = {{.c = c, .number = 0, .id = id}, {.c = d, .number = 1, .id = id}};
    if (!CTS_HAS(c, comm_create) || !CTS_HAS(c, comm_unique_id)) {
        cts_skip(c, "comm_create is absent: the core adds through the host");
        return;
    }
    NEED(cts_ok(c, c->ops->comm_unique_id(c->h, id), "comm_unique_id"), "id");
    NEED(both(c, r, join_group), "join");
    for (int round = 0; round < 3 && !c->failed; round++)
        for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]) && !c->failed; i++)
            collective(c, r, ops[i], &taken);
    if (!taken)
        cts_fail(c, "comm_create is there, but no collective is taken");
out:
    for (int i = 0; i < 2; i++)
        if (r[i].comm && !c->run->dead[0])
            c->ops->comm_destroy(r[i].comm);
}

void cts_t5(cts_run *r)
{
    static const struct {
        const char *name;
        void (*fn)(cts *c, cts *d);
    } cases[] = {{"t5.edge", edges},      {"t5.copy.staged", staged},  {"t5.copy.direct", direct}, {"t5.wait", waits},
                 {"t5.at_once", at_once}, {"t5.same_bits", same_bits}, {"t5.comm", collectives}};
    t5 t = {.row = NULL};
    for (uint32_t i = 0; i < infer_hal_n_devices(r->hal); i++) {
        const infer_hal_device_info *d = infer_hal_device(r->hal, i);
        if (d->backend == r->backend && d != r->row && !d->info.status && !t.row)
            t.row = d;
    }
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        t.fn = cases[i].fn;
        cts_case_run(r, 5, cases[i].name, t5_case, 1, &t);
    }
    cts_case_run(r, 5, "t5.comes_and_goes", comes_and_goes, 1, &t);
    if (t.dev)
        cts_close(r, t.dev);
}
