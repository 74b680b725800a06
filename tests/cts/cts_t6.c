/*
 * T6, faults that can be provoked from outside: host memory that is refused at the n-th call, a heap that is full, a
 * timeline that fails under a waiting queue, a timeline that is slow, objects destroyed in any order. The first cases
 * open the device by themselves, with services of their own. What only the plugin could provoke (a lost device) is
 * skipped with that reason; tests/plugins/fault does it for our own.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "cts.h"
#include "ops/ops.h"

#define MS       1000000u
#define WALK_MAX 4000u                                                           /* refusals tried at most, */
#define WALK_NS  20000000000u                                                    /* and for how long */
#define WAIT_NS  (CTS_TIMEOUT_NS < 10000000000u ? CTS_TIMEOUT_NS : 10000000000u) /* a queue that hangs */

/* ---- Host services that fail ------------------------------------------------------------------------------ */

/* One at a time, as a plugin may keep the pointer until its last device is closed. */
static struct {
    const infer_host *real;
    infer_host host;
    atomic_llong blocks; /* allocated and not freed */
    atomic_llong calls;
    atomic_llong fail_at; /* the call that gets nothing; 0: none */
} faulty;

static void *faulty_alloc(void *ctx, uint64_t bytes, uint32_t align)
{
    if (atomic_fetch_add(&faulty.calls, 1) + 1 == atomic_load(&faulty.fail_at))
        return NULL;
    void *p = faulty.real->alloc(ctx, bytes, align);
    if (p)
        atomic_fetch_add(&faulty.blocks, 1);
    return p;
}

static void faulty_free(void *ctx, void *p)
{
    if (p)
        atomic_fetch_sub(&faulty.blocks, 1);
    faulty.real->free(ctx, p);
}

static const infer_host *faulty_begin(const cts *c, long long fail_at)
{
    faulty.real = c->run->info.host;
    faulty.host = *faulty.real;
    faulty.host.alloc = faulty_alloc;
    faulty.host.free = faulty_free;
    atomic_store(&faulty.blocks, 0);
    atomic_store(&faulty.calls, 0);
    atomic_store(&faulty.fail_at, fail_at);
    return &faulty.host;
}

/* ---- A life of a device ----------------------------------------------------------------------------------- */

enum { BYTES = 4096, COLS = 64, PART = COLS * COLS * 4 };

/* All that a run makes, and what failed first. */
typedef struct life {
    cts *c;
    const infer_backend_ops *t;
    infer_device *dev;
    infer_queue *q;
    infer_buffer *a, *b, *image;
    infer_timeline *own;
    infer_hal_tl *core;
    infer_weight *w;
    infer_program *prog;
    infer_exec *exec;
    uint64_t value;
    long long in_steps; /* calls of the allocator inside commands of the second round */
    infer_status s;
    const char *where; /* slot that failed first */
    int setup;         /* it is one of set-up, which is to say NO_MEMORY */
} life;

static int note(life *l, infer_status s, const char *where, int setup)
{
    if (!s)
        return 1;
    if (!l->s) {
        l->s = s;
        l->where = where;
        l->setup = setup;
    }
    return 0;
}

/* A failing slot leaves its output alone. `out` was set to the mark before. */
static int made(life *l, infer_status s, const char *where, void *out, void *mark)
{
    if (s && out != mark)
        cts_fail(l->c, "a failing %s wrote its output", where);
    if (!s && (out == mark || !out))
        cts_fail(l->c, "%s: OK without an object", where);
    return note(l, s, where, 1) && !l->c->failed;
}

#define MAKE(l, slot, field, ...)                                                                                      \
    do {                                                                                                               \
        void *mark_ = (void *)&(l)->s;                                                                                 \
        (l)->field = mark_;                                                                                            \
        infer_status s_ = (l)->t->slot(__VA_ARGS__, &(l)->field);                                                      \
        void *out_ = (l)->field;                                                                                       \
        if (s_ || out_ == mark_)                                                                                       \
            (l)->field = NULL;                                                                                         \
        if (!made(l, s_, #slot, out_, mark_))                                                                          \
            return;                                                                                                    \
    } while (0)

static infer_timeline *line_of(const life *l)
{
    return l->core ? infer_hal_tl_handle(l->core) : l->own;
}

#define RETRY(l, call, slot)                                                                                           \
    do {                                                                                                               \
        infer_status s_;                                                                                               \
        for (uint32_t i_ = 0; (s_ = (call)) == INFER_AGAIN && i_ < 5000; i_++)                                         \
            cts_sleep_ms(1);                                                                                           \
        if (!note(l, s_, slot, 0))                                                                                     \
            return;                                                                                                    \
    } while (0)

/* Waits for all submitted work. */
static void settle(life *l)
{
    RETRY(l, l->t->queue_signal(l->q, line_of(l), ++l->value), "queue_signal");
    infer_status s = l->core ? infer_hal_tl_wait(l->core, l->value, WAIT_NS) : l->t->tl_wait(l->own, l->value, WAIT_NS);
    if (s == INFER_PENDING)
        cts_fail(l->c, "after a refused allocation the queue never signals");
    note(l, s, "the queue", 0);
}

/* [COLS][COLS] in F32 twice over `a`, the sum into b. */
static infer_op_desc sum_op(infer_tensor_desc t[3])
{
    for (int i = 0; i < 3; i++)
        t[i] = infer_tensor_make(INFER_FMT_F32, 2, COLS, COLS, 1, 1);
    return (infer_op_desc){.struct_size = sizeof(infer_op_desc),
                           .op = INFER_OP_ADD,
                           .rows_from = INFER_ROWS_STATIC,
                           .rows_mul = 1,
                           .n_in = 2,
                           .n_out = 1,
                           .tensor_size = sizeof(t[0]),
                           .tensors = t,
                           .epilogue_size = sizeof(infer_epilogue)};
}

/* Fill, copies, an op; the result is checked where nothing was refused. */
static void commands(life *l, int round)
{
    static uint8_t back[PART];
    static float ones[COLS * COLS];
    infer_tensor_desc t[3];
    infer_op_desc op = sum_op(t);
    infer_op_answer ans = {.struct_size = sizeof(ans)};
    infer_copy_region r = {.bytes = PART, .rows = 1};
    infer_copy_end a = {l->a, NULL}, host = {NULL, ones};
    infer_range all = {l->b, 0, PART}, o[3] = {{l->a, 0, PART}, {l->a, 0, PART}, {l->b, 0, PART}};
    for (int i = 0; i < COLS * COLS; i++)
        ones[i] = (float)(i % 7 + round);
    long long before = atomic_load(&faulty.calls);
    RETRY(l, l->t->cmd_fill(l->q, &all, 0x7F, 1), "cmd_fill");
    RETRY(l, l->t->cmd_copy(l->q, &a, &host, &r, 1), "cmd_copy");
    if (!note(l, l->t->op_query(l->dev, &op, sizeof(op), 1, &ans, sizeof(ans)), "op_query", 1))
        return;
    int op_runs = ans.level && ans.scratch_bytes <= PART;
    if (op_runs) {
        infer_op_args args = {.struct_size = sizeof(args), .n_operands = 3, .operands = o};
        if (ans.scratch_bytes)
            args.scratch = (infer_range){l->image, 0, ans.scratch_bytes};
        RETRY(l, l->t->cmd_op(l->q, &op, &args), "cmd_op");
    }
    l->in_steps = atomic_load(&faulty.calls) - before;
    infer_copy_end b = {op_runs ? l->b : l->a, NULL}, to = {NULL, back};
    RETRY(l, l->t->cmd_copy(l->q, &to, &b, &r, 1), "cmd_copy");
    settle(l);
    for (int i = 0; i < COLS * COLS && !l->s && !l->c->failed; i++) {
        float want = ones[i] * (op_runs ? 2 : 1), got;
        memcpy(&got, back + 4 * i, 4);
        if (got != want)
            cts_fail(l->c, "no slot failed, but element %d is %g, not %g", i, (double)got, (double)want);
    }
}

/* A weight that the plugin makes itself, where it does. */
static void weight(life *l)
{
    static const uint8_t source[COLS * COLS / 32 * 34];
    infer_weight_desc d = {.struct_size = sizeof(d),
                           .quant.format = INFER_FMT_Q8_0,
                           .rank = 2,
                           .use = INFER_OP_MATMUL,
                           .shape = {COLS, COLS, 1, 1}};
    infer_weight_plan p = {.struct_size = sizeof(p)};
    if (!cts_has(l->c, offsetof(infer_backend_ops, weight_plan)) ||
        !cts_has(l->c, offsetof(infer_backend_ops, weight_begin)))
        return;
    infer_status s = l->t->weight_plan(l->dev, &d, &p);
    if (s == INFER_E_UNSUPPORTED ||
        (!s && ((p.layout == INFER_LAYOUT_CANONICAL && !(p.flags & INFER_WEIGHT_STREAM)) || p.packed_bytes > 4 * PART)))
        return;
    if (!note(l, s, "weight_plan", 1))
        return;
    infer_range dst = {l->image, 0, p.packed_bytes};
    MAKE(l, weight_begin, w, l->dev, &d, &p, &dst);
    for (uint64_t at = 0, n; at < sizeof(source); at += n) {
        n = sizeof(source) - at < 1000 ? sizeof(source) - at : 1000;
        if (!note(l, l->t->weight_append(l->w, 0, source + at, n), "weight_append", 1))
            return;
    }
    note(l, l->t->weight_finish(l->w), "weight_finish", 1);
}

/* A program of one node, where the plugin has programs. */
static void program(life *l)
{
    infer_tensor_desc t[3];
    infer_op_desc op = sum_op(t);
    infer_op_answer ans = {.struct_size = sizeof(ans)};
    infer_operand at[3] = {{.slot = 0, .size = PART}, {.slot = 0, .size = PART}, {.slot = 1, .size = PART}};
    infer_node n = {.op = &op, .operands = at, .counts.slot = INFER_SLOT_ABSENT, .scratch.slot = INFER_SLOT_ABSENT};
    infer_slot_desc slots[3] = {{INFER_SLOT_IO, 1, PART}, {INFER_SLOT_IO, 1, PART}, {INFER_SLOT_ARENA, 0, PART}};
    infer_range r[3] = {{l->a, 0, PART}, {l->b, 0, PART}, {l->image, 0, PART}};
    infer_program_info info = {.struct_size = sizeof(info)};
    if (!cts_has(l->c, offsetof(infer_backend_ops, prog_build)) ||
        l->t->op_query(l->dev, &op, sizeof(op), 1, &ans, sizeof(ans)) || !ans.level || ans.scratch_bytes > PART)
        return;
    if (ans.scratch_bytes)
        n.scratch = (infer_operand){.slot = 2, .size = ans.scratch_bytes};
    infer_graph_view v = {.struct_size = sizeof(v),
                          .nodes = &n,
                          .slots = slots,
                          .n_nodes = 1,
                          .node_size = sizeof(n),
                          .n_slots = 3,
                          .slot_size = sizeof(slots[0]),
                          .bucket = COLS};
    infer_program *mark = (infer_program *)(void *)&l->s;
    l->prog = mark;
    infer_status s = l->t->prog_build(l->dev, &v, &l->prog, &info);
    infer_program *out = l->prog;
    if (s || out == mark)
        l->prog = NULL;
    if (!made(l, s, "prog_build", out, mark))
        return;
    MAKE(l, prog_instantiate, exec, l->prog, l->q, r, 3);
    long long before = atomic_load(&faulty.calls);
    RETRY(l, l->t->prog_submit(l->exec, l->q), "prog_submit");
    l->in_steps += atomic_load(&faulty.calls) - before;
    settle(l);
}

/* Everything in order until a slot fails. */
static void live(life *l, const infer_host *host)
{
    infer_error e = {0};
    MAKE(l, dev_open, dev, host, l->c->run->row->info.index);
    MAKE(l, queue_create, q, l->dev, INFER_QUEUE_COMPUTE | INFER_QUEUE_COPY);
    if (cts_has(l->c, offsetof(infer_backend_ops, tl_create)))
        MAKE(l, tl_create, own, l->dev);
    else if (infer_hal_tl_create(NULL, &l->core, &e)) {
        cts_fail(l->c, "%s", e.text);
        return;
    }
    MAKE(l, buf_alloc, a, l->dev, 0, PART);
    MAKE(l, buf_alloc, b, l->dev, 0, PART);
    MAKE(l, buf_alloc, image, l->dev, 0, 4 * PART);
    for (int round = 0; round < 2 && !l->s && !l->c->failed; round++)
        commands(l, round);
    if (!l->s && !l->c->failed)
        weight(l);
    if (!l->s && !l->c->failed)
        program(l);
}

/* Everything back, in the order that the contract asks for after a failure: the queue before what its work used. */
static void die(life *l)
{
    if (l->exec)
        l->t->exec_destroy(l->exec);
    if (l->prog)
        l->t->prog_destroy(l->prog);
    if (l->w)
        l->t->weight_destroy(l->w);
    if (l->q)
        l->t->queue_destroy(l->dev, l->q);
    infer_buffer *const b[] = {l->image, l->a, l->b};
    for (int i = 0; i < 3; i++)
        if (b[i])
            l->t->buf_free(l->dev, b[i]);
    if (l->own)
        l->t->tl_destroy(l->dev, l->own);
    if (l->core)
        infer_hal_tl_destroy(l->core);
    if (l->dev)
        l->t->dev_close(l->dev);
}

static life start(cts *c)
{
    return (life){.c = c, .t = c->run->raw};
}

/* ---- Host memory ------------------------------------------------------------------------------------------ */

/* The n-th allocation is refused, for n = 1, 2, … until none is. Only the very first life may keep something. */
static void alloc_walk(cts *c)
{
    uint64_t begun = infer_clock_ns();
    long long n = 0, calls = 0;
    for (int twice = 0; twice < 2; twice++) {
        life l = start(c);
        live(&l, faulty_begin(c, 0));
        die(&l);
        NEED(!l.s, "without any refusal, %s: %s", l.where, infer_status_name(l.s));
        NEED(!twice || atomic_load(&faulty.blocks) <= 0, "a device's life loses %lld blocks of host memory",
             (long long)atomic_load(&faulty.blocks));
    }
    for (n = 1; n < WALK_MAX && infer_clock_ns() - begun < WALK_NS && !c->failed; n++) {
        life l = start(c);
        live(&l, faulty_begin(c, n));
        die(&l);
        long long left = atomic_load(&faulty.blocks);
        calls = atomic_load(&faulty.calls);
        NEED(left <= 0, "allocation %lld refused (%s failed): %lld blocks of host memory are lost", n,
             l.where ? l.where : "nothing", left);
        NEED(!l.setup || l.s == INFER_E_NO_MEMORY, "allocation %lld refused: %s answers %s instead of no memory", n,
             l.where, infer_status_name(l.s));
        if (calls < n)
            break;
    }
    life l = start(c);
    live(&l, faulty_begin(c, 0));
    die(&l);
    NEED(!l.s, "after %lld refusals, %s: %s", n, l.where, infer_status_name(l.s));
    if (!calls)
        cts_skip(c, "the plugin takes no memory from the host");
out:;
}

/* cmd_op and prog_submit allocate nothing; copies and fills may not either once they have run. */
static void alloc_in_steps(cts *c)
{
    life l = start(c);
    live(&l, faulty_begin(c, 0));
    die(&l);
    NEED(!l.s, "%s: %s", l.where, infer_status_name(l.s));
    NEED(l.in_steps == 0, "commands that had run before take host memory %lld times", l.in_steps);
out:;
}

/* ---- Closing ---------------------------------------------------------------------------------------------- */

/* What was used and is done goes in any order, queues among buffers; all host memory comes back. */
static void close_orders(cts *c)
{
    enum { N_BUFS = 6, N_QUEUES = 2, N = N_BUFS + N_QUEUES };
    const infer_backend_ops *t = c->run->raw;
    for (int round = 0; round < 12 && !c->failed; round++) {
        const infer_host *host = faulty_begin(c, 0);
        infer_device *dev = NULL;
        infer_buffer *b[N_BUFS] = {NULL};
        infer_queue *q[N_QUEUES] = {NULL};
        infer_timeline *own = NULL;
        infer_hal_tl *core = NULL;
        infer_error e = {0};
        uint32_t order[N];
        infer_status s = t->dev_open(host, c->run->row->info.index, &dev);
        NEED(!s, "dev_open: %s", infer_status_name(s));
        for (int i = 0; i < N_QUEUES && !s; i++)
            s = t->queue_create(dev, INFER_QUEUE_COMPUTE | INFER_QUEUE_COPY, &q[i]);
        for (int i = 0; i < N_BUFS && !s; i++)
            s = t->buf_alloc(dev, 0, BYTES * (uint64_t)(i + 1), &b[i]);
        if (!s && cts_has(c, offsetof(infer_backend_ops, tl_create)))
            s = t->tl_create(dev, &own);
        else if (!s)
            s = infer_hal_tl_create(NULL, &core, &e);
        for (uint32_t i = 0; i < 8 && !s; i++) {
            infer_range r = {b[i % N_BUFS], 0, BYTES};
            s = t->cmd_fill(q[i % N_QUEUES], &r, i, 1);
        }
        for (uint64_t i = 0; i < N_QUEUES && !s; i++) {
            s = t->queue_signal(q[i], core ? infer_hal_tl_handle(core) : own, i + 1);
            if (!s)
                s = core ? infer_hal_tl_wait(core, i + 1, WAIT_NS) : t->tl_wait(own, i + 1, WAIT_NS);
        }
        for (uint32_t i = 0; i < N; i++)
            order[i] = i;
        for (uint32_t i = N - 1; i > 0; i--) {
            uint32_t j = (uint32_t)cts_below(c, i + 1), x = order[i];
            order[i] = order[j];
            order[j] = x;
        }
        int tl_first = (int)cts_below(c, 2);
        for (int pass = 0; pass < 2; pass++) {
            if (own && pass != tl_first)
                t->tl_destroy(dev, own), own = NULL;
            for (uint32_t i = 0; i < N && !pass; i++) {
                if (order[i] < N_BUFS && b[order[i]])
                    t->buf_free(dev, b[order[i]]);
                else if (order[i] >= N_BUFS && q[order[i] - N_BUFS])
                    t->queue_destroy(dev, q[order[i] - N_BUFS]);
            }
        }
        if (own)
            t->tl_destroy(dev, own);
        if (core)
            infer_hal_tl_destroy(core);
        t->dev_close(dev);
        NEED(!s, "round %d: %s", round, infer_status_name(s));
        NEED(!round || atomic_load(&faulty.blocks) <= 0, "round %d loses %lld blocks of host memory", round,
             (long long)atomic_load(&faulty.blocks));
    }
out:;
}

/* ---- Timelines that fail or are slow ----------------------------------------------------------------------- */

typedef struct breaker {
    const infer_host *host;
    infer_hal_tl *tl;
    uint32_t ms;
    int advance; /* reaches 1 instead of failing */
    pthread_t thread;
    int running;
} breaker;

static void *break_later(void *arg)
{
    breaker *b = arg;
    cts_sleep_ms(b->ms);
    if (b->advance)
        (void)infer_hal_tl_signal_host(b->tl, 1);
    else
        b->host->tl_fail(b->host->ctx, infer_hal_tl_handle(b->tl), INFER_E_QUEUE);
    return NULL;
}

static void break_start(cts *c, breaker *b)
{
    b->running = !pthread_create(&b->thread, NULL, break_later, b);
    if (!b->running)
        cts_fail(c, "no thread");
}

static void break_join(breaker *b)
{
    if (b->running)
        pthread_join(b->thread, NULL);
    b->running = 0;
}

/* A queue waits on a timeline, which then fails: everything behind the wait fails too, nobody hangs, the queue with its
 * work can be destroyed, and a new one works. */
static void failed_timeline(cts *c)
{
    infer_hal_tl *gate = NULL, *done = NULL; /* of no device: the core does not take their failure for its loss */
    infer_error e = {0};
    infer_buffer *b = cts_buf(c, BYTES);
    breaker br = {.host = c->run->info.host, .ms = 30};
    uint8_t back[BYTES];
    infer_queue *q = NULL;
    if (CTS_HAS(c, tl_create)) {
        cts_skip(c, "timelines are the plugin's own: they cannot be failed from outside");
        return;
    }
    NEED(b && !infer_hal_tl_create(NULL, &gate, &e) && !infer_hal_tl_create(NULL, &done, &e), "objects");
    br.tl = gate;
    NEED(cts_ok(c, c->ops->queue_create(c->h, INFER_QUEUE_COMPUTE | INFER_QUEUE_COPY, &q), "queue_create"), "queue");
    NEED(cts_ok(c, cts_fill(c, c->queue, b, 0, BYTES, 0x11, 1), "cmd_fill") && cts_sync(c), "fill");
    break_start(c, &br);
    infer_status s = cts_wait(c, q, gate, 1);
    if (s == INFER_E_UNSUPPORTED) {
        cts_skip(c, "queue_wait answers UNSUPPORTED for this timeline");
        goto out;
    }
    if (!s)
        s = cts_fill(c, q, b, 0, BYTES, 0x22, 1);
    if (!s)
        s = cts_signal(c, q, done, 1);
    if (!s)
        s = infer_hal_tl_wait(done, 1, WAIT_NS);
    break_join(&br);
    NEED(s != INFER_PENDING, "a queue whose timeline failed neither fails nor goes on");
    NEED(s != INFER_OK, "a queue went past a wait on a timeline that failed");
    c->ops->queue_destroy(c->h, q);
    q = NULL;
    NEED(cts_read(c, b, 0, back, BYTES), "another queue after that");
    NEED(back[0] == 0x11 && back[BYTES - 1] == 0x11, "work behind a failed wait was done");
    NEED(cts_ok(c, cts_fill(c, c->queue, b, 0, BYTES, 0x33, 1), "cmd_fill") && cts_read(c, b, 0, back, BYTES) &&
             back[BYTES / 2] == 0x33,
         "another queue after that");
out:
    break_join(&br);
    if (q && !c->run->dead[0])
        c->ops->queue_destroy(c->h, q);
    if (!c->run->dead[0] && gate)
        infer_hal_tl_destroy(gate);
    if (!c->run->dead[0] && done)
        infer_hal_tl_destroy(done);
}

/* Destroying a queue whose work waits for what has failed: it ends. */
static void left_work(cts *c)
{
    infer_hal_tl *gate = cts_tl(c), *done = cts_tl(c);
    infer_buffer *b = cts_buf(c, 1 << 16);
    breaker br = {.host = c->run->info.host, .tl = gate, .ms = 20};
    if (CTS_HAS(c, tl_create)) {
        cts_skip(c, "timelines are the plugin's own: they cannot be failed from outside");
        return;
    }
    NEED(gate && done && b, "objects");
    for (int round = 0; round < 3; round++) {
        infer_queue *q = NULL;
        NEED(cts_ok(c, c->ops->queue_create(c->h, INFER_QUEUE_COMPUTE | INFER_QUEUE_COPY, &q), "queue_create"),
             "queue");
        if (round == 0)
            break_start(c, &br);
        infer_status s = cts_wait(c, q, gate, 1);
        for (uint32_t i = 0; i < 40 && !s; i++)
            s = cts_fill(c, q, b, 0, 1 << 16, i, 1);
        if (!s)
            s = cts_signal(c, q, done, (uint64_t)round + 1);
        uint64_t begun = infer_clock_ns();
        c->ops->queue_destroy(c->h, q);
        uint64_t ms = (infer_clock_ns() - begun) / MS;
        break_join(&br);
        NEED(ms < 10000, "queue_destroy took %llu ms", (unsigned long long)ms);
    }
out:
    break_join(&br);
}

/* Work behind a timeline that takes its time: waits say PENDING meanwhile, and what comes is right. */
static void slow(cts *c)
{
    enum { N = 1 << 16 };
    infer_hal_tl *gate = cts_tl(c), *done = cts_tl(c);
    infer_buffer *b = cts_buf(c, N), *d = cts_buf(c, N);
    breaker br = {.host = c->run->info.host, .tl = gate, .ms = 250, .advance = 1};
    infer_copy_region r = {.bytes = N, .rows = 1};
    uint8_t *back = infer_malloc(N);
    uint32_t pending = 0;
    uint64_t begun = infer_clock_ns();
    NEED(gate && done && b && d && back, "objects");
    NEED(cts_ok(c, cts_fill(c, c->queue, d, 0, N, 0, 1), "cmd_fill") && cts_sync(c), "fill");
    break_start(c, &br);
    infer_status s = cts_wait(c, c->queue, gate, 1);
    if (s == INFER_E_UNSUPPORTED) {
        cts_skip(c, "queue_wait answers UNSUPPORTED for this timeline");
        goto out;
    }
    NEED(cts_ok(c, s, "queue_wait"), "wait");
    for (uint32_t i = 1; i <= 30; i++)
        NEED(cts_ok(c, cts_fill(c, c->queue, b, 0, N, i, 1), "cmd_fill") &&
                 cts_ok(c, cts_copy(c, c->queue, (infer_copy_end){d, NULL}, (infer_copy_end){b, NULL}, &r, 1),
                        "cmd_copy"),
             "submit");
    NEED(cts_ok(c, cts_signal(c, c->queue, done, 1), "queue_signal"), "signal");
    while ((s = infer_hal_tl_wait(done, 1, 5 * MS)) == INFER_PENDING && pending < 4000)
        pending++;
    break_join(&br);
    NEED(cts_ok(c, s, "tl_wait for slow work"), "wait");
    /* a queue may also block its submitting thread in queue_wait, as T0 lets it: then nothing was pending */
    NEED(pending || infer_clock_ns() - begun >= 200 * (uint64_t)MS, "work behind a slow timeline was done at once");
    NEED(cts_read(c, d, 0, back, N) && back[0] == 30 && back[N - 1] == 30, "slow work is wrong");
out:
    break_join(&br);
    cts_sync(c);
    infer_free(back);
}

/* ---- A full heap ------------------------------------------------------------------------------------------- */

static void heap_full(cts *c)
{
    enum { N = 1 << 16 };
    infer_buffer *b = cts_buf(c, N), *mark = (infer_buffer *)(void *)c, *x;
    uint64_t bytes = c->heap->size / 64 + 1, got = 0;
    uint8_t back[256];
    infer_status s = INFER_OK;
    if (c->props->flags & INFER_PROP_HOST_MEMORY) {
        cts_skip(c, "the heap is this machine's memory");
        return;
    }
    NEED(b, "buffer");
    for (uint32_t i = 1; !s && c->n_bufs < CTS_MAX_BUFS - 1; i++) { /* with work on its way all the time */
        NEED(cts_ok(c, cts_fill(c, c->queue, b, 0, N, i, 1), "cmd_fill"), "fill");
        x = mark;
        s = c->ops->buf_alloc(c->h, 0, bytes, &x);
        if (!s)
            c->bufs[c->n_bufs++] = x;
        got += s ? 0 : bytes;
        if (s && bytes > 4096) {
            bytes /= 4;
            s = s == INFER_E_NO_MEMORY ? INFER_OK : s;
        }
    }
    NEED(s == INFER_E_NO_MEMORY || got > c->heap->size / 2, "a heap of %llu bytes after %llu: %s",
         (unsigned long long)c->heap->size, (unsigned long long)got, infer_status_name(s));
    NEED(got <= c->heap->size, "a heap of %llu bytes gave %llu", (unsigned long long)c->heap->size,
         (unsigned long long)got);
    for (uint32_t i = 0; i < 3; i++) { /* what is there works */
        NEED(cts_ok(c, cts_fill(c, c->queue, b, 0, N, 0x40 + i, 1), "cmd_fill, with a full heap") &&
                 cts_read(c, b, N - 256, back, sizeof(back)) && back[0] == 0x40 + i && back[255] == 0x40 + i,
             "with a full heap");
    }
    while (c->n_bufs > 1)
        cts_buf_free(c, c->bufs[c->n_bufs - 1] == b ? c->bufs[0] : c->bufs[c->n_bufs - 1]);
    bytes = c->heap->size / 2;
    if (c->props->max_buffer && bytes > c->props->max_buffer)
        bytes = c->props->max_buffer;
    NEED(cts_buf(c, bytes) != NULL, "half the heap, or the largest buffer, after everything was freed");
out:;
}

/* ---- Loss ------------------------------------------------------------------------------------------------- */

typedef struct loss_job {
    infer_hal_job job;
    infer_hal_dev *dev;
    infer_hal_tl *tl;
    infer_status s;
} loss_job;

static void lose(infer_hal_job *job)
{
    loss_job *j = (loss_job *)(void *)job;
    j->s = infer_hal_wait(j->dev, j->tl, 1);
    if (!j->s)
        j->s = infer_hal_drain(j->dev);
}

/* A queue lost by a failed timeline: the core says so with every call, and opening anew is a fresh start. */
static void lost_queue(cts *c)
{
    cts_run *r = c->run;
    const infer_host *host = r->info.host;
    infer_hal_dev *dev = NULL;
    infer_hal_tl *tl = NULL;
    infer_hal_buf b = {0}, more = {0};
    infer_health h = {.struct_size = sizeof(h)};
    infer_error e = {0};
    if (cts_has(c, offsetof(infer_backend_ops, tl_create))) {
        cts_skip(c, "timelines are the plugin's own: they cannot be failed from outside");
        return;
    }
    NEED(!infer_hal_open(r->hal, r->row->id, &dev, &e), "%s", e.text);
    NEED(!infer_hal_tl_create(dev, &tl, &e), "%s", e.text);
    NEED(!infer_hal_buf_alloc(dev, BYTES, INFER_LEDGER_WORKSPACE, &b, &e), "%s", e.text);
    host->tl_fail(host->ctx, infer_hal_tl_handle(tl), INFER_E_QUEUE);
    loss_job j = {.job.run = lose, .dev = dev, .tl = tl};
    infer_hal_run(dev, &j.job);
    NEED(j.s == INFER_E_QUEUE, "waiting on a failed timeline, then draining: %s", infer_status_name(j.s));
    NEED(infer_hal_dev_health(dev, &h) || h.state == INFER_HEALTH_LOST || h.status, "the device says that it is well");
    for (int i = 0; i < 3; i++) {
        infer_status s = infer_hal_buf_alloc(dev, BYTES, INFER_LEDGER_WORKSPACE, &more, &e);
        if (!s)
            infer_hal_buf_free(&more);
        NEED(s == INFER_E_QUEUE, "an allocation on a lost device: %s", infer_status_name(s));
    }
    infer_hal_buf_free(&b);
    infer_hal_tl_destroy(tl);
    tl = NULL;
    infer_hal_close(dev);
    dev = NULL;
    NEED(!infer_hal_open(r->hal, r->row->id, &dev, &e), "opening anew: %s", e.text);
    NEED(!infer_hal_buf_alloc(dev, BYTES, INFER_LEDGER_WORKSPACE, &b, &e), "opened anew: %s", e.text);
    uint8_t data[BYTES], back[BYTES];
    infer_range all = {b.h, 0, BYTES};
    cts_bytes(c, data, BYTES);
    NEED(!infer_hal_write(dev, &all, data, BYTES, &e) && !infer_hal_read(dev, &all, back, BYTES, &e), "%s", e.text);
    NEED(cts_differ(data, back, BYTES) < 0, "opened anew: bytes are wrong");
out:
    infer_hal_buf_free(&b);
    if (tl)
        infer_hal_tl_destroy(tl);
    if (dev)
        infer_hal_close(dev);
}

static void lost_device(cts *c)
{
    cts_skip(c, "only the plugin can lose its device: wrap it in the fault decorator (docs/conformance.md)");
}

void cts_t6_closed(cts_run *r)
{
    static const cts_case cases[] = {
        {"t6.alloc.walk", alloc_walk}, {"t6.alloc.in_steps", alloc_in_steps}, {"t6.close.orders", close_orders},
        {"t6.lost.queue", lost_queue}, {"t6.lost.device", lost_device},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        cts_case_run(r, 6, cases[i].name, cases[i].fn, 0, NULL);
}

void cts_t6(cts_run *r)
{
    static const cts_case cases[] = {
        {"t6.heap.full", heap_full},
        {"t6.timeline.slow", slow},
        {"t6.timeline.failed", failed_timeline},
        {"t6.timeline.left_work", left_work},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        cts_case_run(r, 6, cases[i].name, cases[i].fn, 1, NULL);
}
