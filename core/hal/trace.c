/*
 * Writes one line for each call of a plugin's slots: for porters. The table of a traced backend is replaced by
 * wrappers before it is normalised, so that the core, what replays, and the conformance kit call them without knowing.
 * Slots get no context that is ours, so each traced backend has wrappers of its own: a few sets, made from one list.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "hal/internal.h"
#include "ops/ops.h"
#include "quant/quant.h"

enum { N_SETS = 8 }; /* all backends of one process with some to spare */

static struct {
    const hal_backend *b; /* NULL: free */
    infer_backend_ops in; /* the plugin's, zero where it has none */
    infer_backend_ops out;
} sets[N_SETS];
static pthread_mutex_t sets_mu = PTHREAD_MUTEX_INITIALIZER;

/* ---- Text -------------------------------------------------------------------------------------------------- */

static _Thread_local char text[640]; /* of an op, for the line of this thread's call */

static size_t put(size_t at, const char *fmt, ...) INFER_PRINTF(2, 3);
static size_t put(size_t at, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = at < sizeof text ? vsnprintf(text + at, sizeof text - at, fmt, ap) : 0;
    va_end(ap);
    return at + (n > 0 ? (size_t)n : 0);
}

static size_t put_tensor(size_t at, const infer_tensor_desc *t)
{
    const infer_format_info *f = infer_format_get(t->format);
    if (t->flags & INFER_TENSOR_ABSENT)
        return put(at, " -");
    at = put(at, " %s", f ? f->name : "?");
    for (uint32_t i = 0; i < t->rank && i < 4; i++)
        at = put(at, "%c%" PRId64, i ? ',' : '[', t->shape[i]);
    at = put(at, "]");
    return t->layout ? put(at, "~%u", t->layout) : at;
}

/* "matmul f32[7,64] q4_0[96,64] -> f32[7,96] rows 0*1" */
static const char *op_text(const infer_op_desc *op)
{
    const infer_op_info *info = infer_op_get(op->op);
    size_t at = info ? put(0, "%s", info->name) : put(0, "op %u", op->op);
    for (uint32_t i = 0; op->tensors && i < op->n_in + op->n_out && i < INFER_OP_MAX_OPERANDS; i++) {
        if (i == op->n_in)
            at = put(at, " ->");
        at = put_tensor(at, (const void *)((const char *)op->tensors + (uint64_t)i * op->tensor_size));
    }
    if (op->rows_from != INFER_ROWS_STATIC)
        at = put(at, " rows %u*%u", op->rows_from, op->rows_mul);
    if (op->n_epilogue)
        put(at, " epilogue %u", op->n_epilogue);
    return text;
}

static const char *weight_text(const infer_weight_desc *w, const infer_weight_plan *plan)
{
    const infer_format_info *f = infer_format_get(w->quant.format), *to = plan ? infer_format_get(plan->format) : NULL;
    size_t at = put(0, "%s", f ? f->name : "?");
    for (uint32_t i = 0; i < w->rank && i < 4; i++)
        at = put(at, "%c%" PRId64, i ? ',' : '[', w->shape[i]);
    at = put(at, "] shard %u,%u+%u/%u", w->shard.axis, w->shard.first, w->shard.count, w->shard.of);
    if (plan)
        put(at, " as %s~%u %" PRIu64 " bytes", to ? to->name : "?", plan->layout, plan->packed_bytes);
    return text;
}

static uint64_t bytes_of(const infer_copy_region *r, uint32_t n)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += r[i].bytes * r[i].rows;
    return sum;
}

/* One call, which began at t0. */
static void say(int set, const char *slot, uint64_t t0, infer_status s, const char *fmt, ...) INFER_PRINTF(5, 6);
static void say(int set, const char *slot, uint64_t t0, infer_status s, const char *fmt, ...)
{
    char line[800];
    uint64_t now = infer_clock_ns();
    const hal_backend *b = sets[set].b;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    fprintf(b->hal->trace, "%.6f %s %s %s = %s %.1f us\n", (double)(t0 - b->hal->trace_ns) / 1e9, b->name, slot, line,
            s ? infer_status_name(s) : "ok", (double)(now - t0) / 1e3);
}

/* ---- The slots --------------------------------------------------------------------------------------------- */

#define P(x) ((void *)(uintptr_t)(x))

/* S or V (returns nothing): set, slot, parameters, arguments, text. s is the status, in texts too. */
#define SLOTS(S, V, n)                                                                                                 \
    S(n, probe, (const infer_host *h, infer_device_info *o, uint32_t cap, uint32_t *k), (h, o, cap, k),                \
      "room for %u: %u", cap, s ? 0 : *k)                                                                              \
    S(n, dev_open, (const infer_host *h, uint32_t i, infer_device **o), (h, i, o), "index %u: dev %p", i,              \
      s ? NULL : P(*o))                                                                                                \
    V(n, dev_close, (infer_device * d), (d), "dev %p", P(d))                                                           \
    S(n, dev_props, (infer_device * d, infer_device_props * o), (d, o), "dev %p", P(d))                                \
    S(n, dev_heaps, (infer_device * d, infer_heap_info * o, uint32_t cap, uint32_t * k), (d, o, cap, k),               \
      "dev %p room for %u", P(d), cap)                                                                                 \
    S(n, dev_heap_stats, (infer_device * d, uint32_t i, infer_heap_stats * o), (d, i, o), "dev %p heap %u", P(d), i)   \
    S(n, buf_alloc, (infer_device * d, uint32_t i, uint64_t b, infer_buffer * *o), (d, i, b, o),                       \
      "dev %p heap %u %" PRIu64 " bytes: buf %p", P(d), i, b, s ? NULL : P(*o))                                        \
    V(n, buf_free, (infer_device * d, infer_buffer * b), (d, b), "dev %p buf %p", P(d), P(b))                          \
    S(n, queue_create, (infer_device * d, uint32_t c, infer_queue * *o), (d, c, o), "dev %p classes %u: queue %p",     \
      P(d), c, s ? NULL : P(*o))                                                                                       \
    V(n, queue_destroy, (infer_device * d, infer_queue * q), (d, q), "dev %p queue %p", P(d), P(q))                    \
    S(n, queue_wait, (infer_queue * q, infer_timeline * t, uint64_t v), (q, t, v), "queue %p tl %p %" PRIu64, P(q),    \
      P(t), v)                                                                                                         \
    S(n, queue_signal, (infer_queue * q, infer_timeline * t, uint64_t v), (q, t, v), "queue %p tl %p %" PRIu64, P(q),  \
      P(t), v)                                                                                                         \
    S(n, cmd_copy,                                                                                                     \
      (infer_queue * q, const infer_copy_end *to, const infer_copy_end *from, const infer_copy_region *r, uint32_t k), \
      (q, to, from, r, k), "queue %p %s %p <- %s %p, %u regions, %" PRIu64 " bytes", P(q),                             \
      to->buffer ? "buf" : "host", to->buffer ? P(to->buffer) : to->host, from->buffer ? "buf" : "host",               \
      from->buffer ? P(from->buffer) : from->host, k, bytes_of(r, k))                                                  \
    S(n, cmd_fill, (infer_queue * q, const infer_range *r, uint32_t v, uint32_t w), (q, r, v, w),                      \
      "queue %p buf %p+%" PRIu64 " %" PRIu64 " bytes of %#x/%u", P(q), P(r->buffer), r->offset, r->size, v, w)         \
    S(n, op_query,                                                                                                     \
      (infer_device * d, const infer_op_desc *op, uint32_t size, uint32_t k, infer_op_answer *o, uint32_t osize),      \
      (d, op, size, k, o, osize), "dev %p %u: %s: level %u why %u", P(d), k, k ? op_text(op) : "", k ? o->level : 0,   \
      k ? o->why : 0)                                                                                                  \
    S(n, cmd_op, (infer_queue * q, const infer_op_desc *op, const infer_op_args *a), (q, op, a), "queue %p %s", P(q),  \
      op_text(op))                                                                                                     \
    S(n, backend_init, (const infer_host *h), (h), "%s", "")                                                           \
    V(n, backend_fini, (void), (), "%s", "")                                                                           \
    S(n, dev_edge, (infer_device * d, uint32_t i, infer_edge_info * o), (d, i, o), "dev %p peer %u", P(d), i)          \
    S(n, dev_health, (infer_device * d, infer_health * o), (d, o), "dev %p", P(d))                                     \
    S(n, buf_map, (infer_device * d, const infer_range *r, void **o), (d, r, o),                                       \
      "dev %p buf %p+%" PRIu64 " %" PRIu64 " bytes", P(d), P(r->buffer), r->offset, r->size)                           \
    V(n, buf_unmap, (infer_device * d, const infer_range *r, void *p), (d, r, p), "dev %p buf %p", P(d), P(r->buffer)) \
    S(n, buf_import_host, (infer_device * d, void *p, uint64_t b, infer_buffer **o), (d, p, b, o),                     \
      "dev %p host %p %" PRIu64 " bytes: buf %p", P(d), p, b, s ? NULL : P(*o))                                        \
    S(n, buf_export, (infer_device * d, infer_buffer * b, uint32_t k, int64_t * h), (d, b, k, h),                      \
      "dev %p buf %p kind %u", P(d), P(b), k)                                                                          \
    S(n, buf_import, (infer_device * d, uint32_t k, int64_t h, uint64_t b, infer_buffer * *o), (d, k, h, b, o),        \
      "dev %p kind %u %" PRIu64 " bytes: buf %p", P(d), k, b, s ? NULL : P(*o))                                        \
    S(n, weight_plan, (infer_device * d, const infer_weight_desc *w, infer_weight_plan *o), (d, w, o), "dev %p %s",    \
      P(d), weight_text(w, s ? NULL : o))                                                                              \
    S(n, weight_begin,                                                                                                 \
      (infer_device * d, const infer_weight_desc *w, const infer_weight_plan *p, const infer_range *r,                 \
       infer_weight **o),                                                                                              \
      (d, w, p, r, o), "dev %p %s buf %p+%" PRIu64 ": weight %p", P(d), weight_text(w, p), P(r->buffer), r->offset,    \
      s ? NULL : P(*o))                                                                                                \
    S(n, weight_append, (infer_weight * w, uint32_t p, const void *x, uint64_t b), (w, p, x, b),                       \
      "weight %p plane %u %" PRIu64 " bytes", P(w), p, b)                                                              \
    S(n, weight_finish, (infer_weight * w), (w), "weight %p", P(w))                                                    \
    V(n, weight_destroy, (infer_weight * w), (w), "weight %p", P(w))                                                   \
    S(n, tl_create, (infer_device * d, infer_timeline * *o), (d, o), "dev %p: tl %p", P(d), s ? NULL : P(*o))          \
    V(n, tl_destroy, (infer_device * d, infer_timeline * t), (d, t), "dev %p tl %p", P(d), P(t))                       \
    S(n, tl_query, (infer_timeline * t, uint64_t * v), (t, v), "tl %p: %" PRIu64, P(t), s ? 0 : *v)                    \
    S(n, tl_wait, (infer_timeline * t, uint64_t v, uint64_t ns), (t, v, ns), "tl %p %" PRIu64 " for %" PRIu64 " ns",   \
      P(t), v, ns)                                                                                                     \
    S(n, tl_signal_host, (infer_timeline * t, uint64_t v), (t, v), "tl %p %" PRIu64, P(t), v)                          \
    S(n, cmd_update, (infer_queue * q, const infer_range *r, const void *x, uint64_t b), (q, r, x, b),                 \
      "queue %p buf %p+%" PRIu64 " %" PRIu64 " bytes", P(q), P(r->buffer), r->offset, b)                               \
    S(n, kv_query, (infer_device * d, const infer_kv_spec *k, infer_kv_answer *o), (d, k, o),                          \
      "dev %p kind %u heads %u: level %u best %u", P(d), k->kind, k->n_heads, s ? 0 : o->level, s ? 0 : o->block_best) \
    S(n, prog_claim, (infer_device * d, const infer_graph_view *g, int32_t *o), (d, g, o), "dev %p %u nodes", P(d),    \
      g->n_nodes)                                                                                                      \
    S(n, prog_build, (infer_device * d, const infer_graph_view *g, infer_program **o, infer_program_info *i),          \
      (d, g, o, i), "dev %p %u nodes %u rows: prog %p", P(d), g->n_nodes, g->bucket, s ? NULL : P(*o))                 \
    S(n, prog_instantiate, (infer_program * p, infer_queue * q, const infer_range *r, uint32_t k, infer_exec **o),     \
      (p, q, r, k, o), "prog %p queue %p %u slots: exec %p", P(p), P(q), k, s ? NULL : P(*o))                          \
    S(n, prog_update, (infer_exec * x, uint32_t i, const infer_range *r), (x, i, r), "exec %p slot %u buf %p", P(x),   \
      i, P(r->buffer))                                                                                                 \
    S(n, prog_submit, (infer_exec * x, infer_queue * q), (x, q), "exec %p queue %p", P(x), P(q))                       \
    V(n, exec_destroy, (infer_exec * x), (x), "exec %p", P(x))                                                         \
    V(n, prog_destroy, (infer_program * p), (p), "prog %p", P(p))                                                      \
    S(n, prog_save, (infer_program * p, void **o, uint64_t *b), (p, o, b), "prog %p", P(p))                            \
    S(n, prog_load, (infer_device * d, const void *x, uint64_t b, infer_program **o), (d, x, b, o),                    \
      "dev %p %" PRIu64 " bytes: prog %p", P(d), b, s ? NULL : P(*o))                                                  \
    S(n, comm_unique_id, (infer_device * d, uint8_t id[128]), (d, id), "dev %p", P(d))                                 \
    S(n, comm_create, (infer_device * d, const uint8_t id[128], uint32_t r, uint32_t k, infer_comm **o),               \
      (d, id, r, k, o), "dev %p rank %u of %u: comm %p", P(d), r, k, s ? NULL : P(*o))                                 \
    V(n, comm_destroy, (infer_comm * k), (k), "comm %p", P(k))                                                         \
    S(n, prof_begin, (infer_device * d), (d), "dev %p", P(d))                                                          \
    S(n, prof_read, (infer_device * d, infer_prof_record * o, uint32_t cap, uint32_t * k), (d, o, cap, k),             \
      "dev %p room for %u", P(d), cap)

#define CALL(n, slot, params, args, ...)                                                                               \
    static infer_status slot##_##n params                                                                              \
    {                                                                                                                  \
        uint64_t t0 = infer_clock_ns();                                                                                \
        infer_status s = sets[n].in.slot args;                                                                         \
        say(n, #slot, t0, s, __VA_ARGS__);                                                                             \
        return s;                                                                                                      \
    }
/* What is destroyed is named before. */
#define CALL_VOID(n, slot, params, args, ...)                                                                          \
    static void slot##_##n params                                                                                      \
    {                                                                                                                  \
        uint64_t t0 = infer_clock_ns();                                                                                \
        sets[n].in.slot args;                                                                                          \
        say(n, #slot, t0, INFER_OK, __VA_ARGS__);                                                                      \
    }
#define ENTRY(n, slot, ...) .slot = slot##_##n,

SLOTS(CALL, CALL_VOID, 0)
SLOTS(CALL, CALL_VOID, 1)
SLOTS(CALL, CALL_VOID, 2)
SLOTS(CALL, CALL_VOID, 3)
SLOTS(CALL, CALL_VOID, 4)
SLOTS(CALL, CALL_VOID, 5)
SLOTS(CALL, CALL_VOID, 6)
SLOTS(CALL, CALL_VOID, 7)
static const infer_backend_ops wrappers[N_SETS] = {
    {SLOTS(ENTRY, ENTRY, 0)}, {SLOTS(ENTRY, ENTRY, 1)}, {SLOTS(ENTRY, ENTRY, 2)}, {SLOTS(ENTRY, ENTRY, 3)},
    {SLOTS(ENTRY, ENTRY, 4)}, {SLOTS(ENTRY, ENTRY, 5)}, {SLOTS(ENTRY, ENTRY, 6)}, {SLOTS(ENTRY, ENTRY, 7)}};

/* ---- Beginning and end -------------------------------------------------------------------------------------- */

infer_status hal_trace_open(infer_hal *h, const char *path, infer_error *err)
{
    if (!path)
        return INFER_OK;
    h->trace = fopen(path, "w");
    if (!h->trace)
        return infer_error_set(err, INFER_E_IO, "trace calls to %s: %s", path, strerror(errno));
    setvbuf(h->trace, NULL, _IOLBF, 0); /* whole up to the last call, whatever becomes of the process */
    h->trace_ns = infer_clock_ns();
    return INFER_OK;
}

const infer_backend_ops *hal_trace_table(hal_backend *b, const infer_backend_ops *in)
{
    enum { FIRST = offsetof(infer_backend_ops, probe), EACH = sizeof(void (*)(void)) };
    static const char none[EACH];
    int n = 0;
    if (!b->hal->trace || !in)
        return in;
    pthread_mutex_lock(&sets_mu);
    while (n < N_SETS && sets[n].b)
        n++;
    if (n < N_SETS)
        sets[n].b = b;
    pthread_mutex_unlock(&sets_mu);
    if (n == N_SETS) {
        infer_log_write(&b->hal->log, INFER_LOG_WARN, "hal", "calls of %s are not traced: %d backends are", b->name, n);
        return in;
    }
    uint32_t size = in->struct_size < sizeof *in ? in->struct_size : (uint32_t)sizeof *in;
    sets[n].in = sets[n].out = (infer_backend_ops){0};
    memcpy(&sets[n].in, in, size);
    memcpy(&sets[n].out, in, size);
    sets[n].out.struct_size = size;
    for (size_t at = FIRST; at + EACH <= size; at += EACH)
        if (memcmp((const char *)in + at, none, EACH))
            memcpy((char *)&sets[n].out + at, (const char *)&wrappers[n] + at, EACH);
    return &sets[n].out;
}

void hal_trace_close(infer_hal *h)
{
    pthread_mutex_lock(&sets_mu);
    for (int i = 0; i < N_SETS; i++)
        if (sets[i].b && sets[i].b->hal == h)
            sets[i].b = NULL;
    pthread_mutex_unlock(&sets_mu);
    if (h->trace)
        fclose(h->trace);
}
