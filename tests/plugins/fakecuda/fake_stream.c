/* Streams, events, copies, launches and graphs of the fake driver. A stream is a thread with a list of operations.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fakecuda.h"

typedef enum op_kind { OP_COPY, OP_SET, OP_WRITE, OP_WAIT, OP_EVENT, OP_KERNEL, OP_GRAPH } op_kind;

/* One side of a copy: host memory, or a device address. */
typedef struct place {
    uint8_t *host;
    cu_deviceptr at;
    size_t pitch;
} place;

typedef struct op {
    struct op *next;
    op_kind kind;
    place dst, src; /* COPY, SET: dst */
    size_t width, rows;
    uint8_t *own;   /* COPY: pageable bytes, read when the copy was called */
    uint64_t value; /* SET: pattern; WRITE, WAIT: of the word at dst; EVENT: which record */
    size_t elem;
    cu_event event;
    const fake_kernel *kernel;
    cu_deviceptr ptr[FAKE_MAX_PTR];
    unsigned n_ptr, grid[3], block[3], shared;
    uint64_t params[FAKE_MAX_PARAMS / 8];
    struct op *list; /* GRAPH */
} op;

struct CUstream_st {
    cu_context ctx;
    pthread_t thread;
    pthread_mutex_t mu;
    pthread_cond_t moved;
    op *first, *last;
    int running, stop;
    cu_graph recording;
    int recording_bad;
};

struct CUevent_st {
    cu_context ctx;
    _Atomic uint64_t recorded, done;
};

struct CUgraph_st {
    cu_context ctx;
    op *first, *last;
};

struct CUgraphExec_st {
    cu_context ctx;
    op *list;
};

static atomic_uint n_graphs, n_kernels;

void fakecuda_counts(unsigned *graphs, unsigned *kernels)
{
    *graphs = atomic_load(&n_graphs);
    *kernels = atomic_load(&n_kernels);
}

/* Of each kernel that has run; under fake_mu. */
static struct {
    const fake_kernel *kernel;
    unsigned n;
    uint8_t params[FAKE_MAX_PARAMS]; /* of the last run */
} runs[512];

static void note_run(const op *o)
{
    size_t i = 0;
    while (runs[i].kernel && runs[i].kernel != o->kernel)
        if (++i == sizeof runs / sizeof *runs)
            fake_die("more kernels than are counted");
    runs[i].kernel = o->kernel;
    runs[i].n++;
    memcpy(runs[i].params, o->params, sizeof runs[i].params);
}

int fakecuda_params(const char *name, void *out, size_t bytes)
{
    int found = 0;
    pthread_mutex_lock(&fake_mu);
    for (size_t i = 0; i < sizeof runs / sizeof *runs && runs[i].kernel && bytes <= FAKE_MAX_PARAMS; i++)
        if (!strcmp(fake_kernel_name(runs[i].kernel), name)) {
            memcpy(out, runs[i].params, bytes);
            found = 1;
        }
    pthread_mutex_unlock(&fake_mu);
    return found;
}

unsigned fakecuda_runs(const char *begin)
{
    unsigned n = 0;
    pthread_mutex_lock(&fake_mu);
    for (size_t i = 0; i < sizeof runs / sizeof *runs && runs[i].kernel; i++)
        if (!strncmp(fake_kernel_name(runs[i].kernel), begin, strlen(begin)))
            n += runs[i].n;
    pthread_mutex_unlock(&fake_mu);
    return n;
}

static void count(int *what, int by)
{
    pthread_mutex_lock(&fake_mu);
    *what += by;
    pthread_mutex_unlock(&fake_mu);
}

/* ---- Operations ----------------------------------------------------------------------------------------------- */

static void op_free(op *o)
{
    while (o) {
        op *next = o->next;
        op_free(o->list);
        free(o->own);
        free(o);
        o = next;
    }
}

static op *list_copy(const op *from)
{
    op *first = NULL, **at = &first;
    for (; from; from = from->next) {
        op *o = malloc(sizeof *o);
        if (!o)
            abort();
        *o = *from;
        o->next = NULL;
        *at = o;
        at = &o->next;
    }
    return first;
}

static uint8_t *row_of(const place *p, size_t row, size_t bytes)
{
    return p->host ? p->host + row * p->pitch : fake_host(p->at + row * p->pitch, bytes);
}

static cu_result run_kernel(const op *o)
{
    void *ptr[FAKE_MAX_PTR] = {NULL};
    pthread_mutex_lock(&fake_mu);
    int due = fake_due(&fake.lose);
    note_run(o);
    pthread_mutex_unlock(&fake_mu);
    if (due)
        return CU_E_ILLEGAL_ADDRESS;
    for (unsigned i = 0; i < o->n_ptr; i++) {
        ptr[i] = o->ptr[i] ? fake_host(o->ptr[i], 1) : NULL;
        if (o->ptr[i] && !ptr[i])
            return CU_E_ILLEGAL_ADDRESS;
    }
    fake_kernel_run(o->kernel, ptr, o->params, o->grid, o->block, o->shared);
    return CU_OK;
}

static cu_result run(cu_stream s, const op *o)
{
    _Atomic uint64_t *word;
    cu_result e = CU_OK;
    switch (o->kind) {
    case OP_COPY:
    case OP_SET:
        for (size_t i = 0; i < o->rows; i++) {
            uint8_t *to = row_of(&o->dst, i, o->width);
            const uint8_t *from = o->kind == OP_COPY ? row_of(&o->src, i, o->width) : to;
            if (!to || !from)
                return CU_E_ILLEGAL_ADDRESS;
            if (o->kind == OP_COPY)
                memcpy(to, from, o->width); /* not memmove: the driver promises nothing for overlaps */
            for (size_t k = 0; o->kind == OP_SET && k < o->width; k += o->elem)
                memcpy(to + k, &o->value, o->elem);
        }
        return CU_OK;
    case OP_WRITE:
        word = fake_host(o->dst.at, 8);
        if (!word)
            return CU_E_ILLEGAL_ADDRESS;
        atomic_store(word, o->value);
        return CU_OK;
    case OP_WAIT:
        word = fake_host(o->dst.at, 8);
        while (word && (int64_t)(atomic_load(word) - o->value) < 0) {
            pthread_mutex_lock(&s->mu);
            int stop = s->stop;
            pthread_mutex_unlock(&s->mu);
            if (stop || atomic_load(&s->ctx->lost))
                return CU_OK;
            nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
        }
        return word ? CU_OK : CU_E_ILLEGAL_ADDRESS;
    case OP_EVENT:
        atomic_store(&o->event->done, o->value);
        return CU_OK;
    case OP_KERNEL:
        return run_kernel(o);
    case OP_GRAPH:
        for (const op *k = o->list; k && !e; k = k->next)
            e = run(s, k);
        return e;
    }
    return CU_OK;
}

static void *work(void *arg)
{
    cu_stream s = arg;
    pthread_mutex_lock(&s->mu);
    for (uint32_t i = 0;; i++) {
        while (!s->first && !s->stop)
            pthread_cond_wait(&s->moved, &s->mu);
        op *o = s->first;
        if (!o)
            break;
        s->first = o->next;
        s->running = 1;
        pthread_mutex_unlock(&s->mu);
        if (i % 16 == 0) /* what is read too late shows */
            sched_yield();
        o->next = NULL;
        cu_result e = atomic_load(&s->ctx->lost) ? CU_OK : run(s, o), ok = CU_OK;
        if (e)
            atomic_compare_exchange_strong(&s->ctx->lost, &ok, e);
        op_free(o);
        pthread_mutex_lock(&s->mu);
        s->running = 0;
        pthread_cond_broadcast(&s->moved);
    }
    pthread_mutex_unlock(&s->mu);
    return NULL;
}

/* The stream's context is the current one and well. */
static cu_result of_stream(cu_stream s)
{
    cu_context ctx;
    cu_result e = fake_enter(&ctx);
    return e ? e : ctx == s->ctx ? CU_OK : CU_E_INVALID_HANDLE;
}

/* Appends a copy of o to the stream, or to what it records. */
static cu_result put(cu_stream s, const op *o)
{
    op *copy = malloc(sizeof *copy);
    if (!copy)
        return CU_E_OUT_OF_MEMORY;
    *copy = *o;
    copy->next = NULL;
    if (s->recording) {
        if (o->kind != OP_KERNEL && o->kind != OP_SET && (o->kind != OP_COPY || o->own)) {
            s->recording_bad = 1;
            free(copy);
            return CU_E_CAPTURE_UNSUPPORTED;
        }
        if (s->recording->last)
            s->recording->last->next = copy;
        else
            s->recording->first = copy;
        s->recording->last = copy;
        return CU_OK;
    }
    pthread_mutex_lock(&s->mu);
    if (s->first)
        s->last->next = copy;
    else
        s->first = copy;
    s->last = copy;
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->mu);
    return CU_OK;
}

/* ---- Streams and events --------------------------------------------------------------------------------------- */

cu_result cuStreamCreate(cu_stream *out, unsigned int flags)
{
    cu_context ctx;
    cu_result e = fake_enter_safe(&ctx);
    if (e || flags != CU_STREAM_APART)
        return e ? e : CU_E_INVALID_VALUE;
    cu_stream s = calloc(1, sizeof *s);
    if (!s)
        return CU_E_OUT_OF_MEMORY;
    s->ctx = ctx;
    pthread_mutex_init(&s->mu, NULL);
    pthread_cond_init(&s->moved, NULL);
    if (pthread_create(&s->thread, NULL, work, s)) {
        free(s);
        return CU_E_OUT_OF_MEMORY;
    }
    count(&ctx->streams, 1);
    *out = s;
    return CU_OK;
}

cu_result cuStreamDestroy_v2(cu_stream s)
{
    cu_result e = of_stream(s);
    pthread_mutex_lock(&s->mu);
    if (!atomic_load(&s->ctx->lost) && (s->first || s->running || s->recording))
        fake_die("a stream is destroyed with work on it");
    s->stop = 1;
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->mu);
    pthread_join(s->thread, NULL);
    op_free(s->first);
    count(&s->ctx->streams, -1);
    pthread_cond_destroy(&s->moved);
    pthread_mutex_destroy(&s->mu);
    free(s);
    return e;
}

cu_result cuStreamQuery(cu_stream s)
{
    cu_result e = of_stream(s);
    if (e || s->recording)
        return e ? e : CU_E_CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&s->mu);
    int busy = s->first || s->running;
    pthread_mutex_unlock(&s->mu);
    return busy ? CU_E_NOT_READY : of_stream(s);
}

static cu_result word(cu_stream s, op_kind kind, cu_deviceptr at, uint64_t value)
{
    cu_result e = of_stream(s);
    const op o = {.kind = kind, .dst.at = at, .value = value};
    return e ? e : !fake_host(at, 8) || at % 8 ? CU_E_INVALID_VALUE : put(s, &o);
}

cu_result cuStreamWriteValue64_v2(cu_stream s, cu_deviceptr at, uint64_t value, unsigned int flags)
{
    return flags != CU_STREAM_WRITE_DEFAULT ? CU_E_INVALID_VALUE : word(s, OP_WRITE, at, value);
}

cu_result cuStreamWaitValue64_v2(cu_stream s, cu_deviceptr at, uint64_t value, unsigned int flags)
{
    return flags != CU_STREAM_WAIT_GEQ ? CU_E_INVALID_VALUE : word(s, OP_WAIT, at, value);
}

cu_result cuEventCreate(cu_event *out, unsigned int flags)
{
    cu_context ctx;
    cu_result e = fake_enter_safe(&ctx);
    if (e || flags != CU_EVENT_UNTIMED)
        return e ? e : CU_E_INVALID_VALUE;
    cu_event event = calloc(1, sizeof *event);
    if (!event)
        return CU_E_OUT_OF_MEMORY;
    event->ctx = ctx;
    count(&ctx->events, 1);
    *out = event;
    return CU_OK;
}

cu_result cuEventDestroy_v2(cu_event event)
{
    count(&event->ctx->events, -1);
    free(event);
    return CU_OK;
}

cu_result cuEventRecord(cu_event event, cu_stream s)
{
    cu_result e = of_stream(s);
    if (e || event->ctx != s->ctx)
        return e ? e : CU_E_INVALID_HANDLE;
    return put(s, &(op){.kind = OP_EVENT, .event = event, .value = atomic_fetch_add(&event->recorded, 1) + 1});
}

cu_result cuEventQuery(cu_event event)
{
    cu_context ctx;
    cu_result e = fake_enter(&ctx);
    return e ? e : atomic_load(&event->done) >= atomic_load(&event->recorded) ? CU_OK : CU_E_NOT_READY;
}

/* ---- Copies and fills ------------------------------------------------------------------------------------------- */

static cu_result bounds(const place *p, size_t width, size_t rows)
{
    return p->host || fake_host(p->at, (rows - 1) * p->pitch + width) ? CU_OK : CU_E_INVALID_VALUE;
}

/* Pageable memory is read at once; to it the call returns when the bytes are there. */
static cu_result copy(cu_stream s, place dst, place src, size_t width, size_t rows)
{
    cu_result e = of_stream(s);
    op o = {.kind = OP_COPY, .dst = dst, .src = src, .width = width, .rows = rows};
    if (!e && (!width || !rows))
        return CU_OK;
    e = e ? e : bounds(&dst, width, rows);
    e = e ? e : bounds(&src, width, rows);
    if (e)
        return e;
    if (src.host && !fake_pinned(src.host)) {
        size_t bytes = (rows - 1) * src.pitch + width;
        o.own = malloc(bytes);
        if (!o.own)
            return CU_E_OUT_OF_MEMORY;
        memcpy(o.own, src.host, bytes);
        o.src.host = o.own;
    }
    e = put(s, &o);
    if (e)
        free(o.own);
    if (!e && dst.host && !fake_pinned(dst.host))
        while ((e = cuStreamQuery(s)) == CU_E_NOT_READY)
            nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    return e;
}

cu_result cuMemcpyHtoDAsync_v2(cu_deviceptr to, const void *from, size_t bytes, cu_stream s)
{
    return copy(s, (place){.at = to}, (place){.host = (uint8_t *)(uintptr_t)from}, bytes, 1);
}

cu_result cuMemcpyDtoHAsync_v2(void *to, cu_deviceptr from, size_t bytes, cu_stream s)
{
    return copy(s, (place){.host = to}, (place){.at = from}, bytes, 1);
}

cu_result cuMemcpyDtoDAsync_v2(cu_deviceptr to, cu_deviceptr from, size_t bytes, cu_stream s)
{
    if (to < from + bytes && from < to + bytes)
        fake_die("a copy onto itself");
    return copy(s, (place){.at = to}, (place){.at = from}, bytes, 1);
}

cu_result cuMemcpyPeerAsync(cu_deviceptr to, cu_context to_ctx, cu_deviceptr from, cu_context from_ctx, size_t bytes,
                            cu_stream s)
{
    if (s->ctx != to_ctx && s->ctx != from_ctx)
        return CU_E_INVALID_HANDLE;
    return copy(s, (place){.at = to}, (place){.at = from}, bytes, 1);
}

cu_result cuMemcpy2DAsync_v2(const cu_memcpy2d *c, cu_stream s)
{
    place dst = {.pitch = c->dst_pitch}, src = {.pitch = c->src_pitch};
    if (c->src_x || c->src_y || c->dst_x || c->dst_y || c->src_pitch < c->width || c->dst_pitch < c->width ||
        c->src_pitch > INT32_MAX || c->dst_pitch > INT32_MAX)
        return CU_E_INVALID_VALUE;
    if (c->dst_type == CU_MEMORY_HOST)
        dst.host = c->dst_host;
    else
        dst.at = c->dst_device;
    if (c->src_type == CU_MEMORY_HOST)
        src.host = (uint8_t *)(uintptr_t)c->src_host;
    else
        src.at = c->src_device;
    return copy(s, dst, src, c->width, c->height);
}

static cu_result set(cu_stream s, cu_deviceptr to, uint64_t value, size_t elem, size_t n)
{
    cu_result e = of_stream(s);
    const op o = {.kind = OP_SET, .dst.at = to, .width = n * elem, .rows = 1, .value = value, .elem = elem};
    if (!e && (to % elem || !fake_host(to, n * elem)))
        e = CU_E_INVALID_VALUE;
    return e || !n ? e : put(s, &o);
}

cu_result cuMemsetD8Async(cu_deviceptr to, unsigned char value, size_t n, cu_stream s)
{
    return set(s, to, value, 1, n);
}

cu_result cuMemsetD16Async(cu_deviceptr to, unsigned short value, size_t n, cu_stream s)
{
    return set(s, to, value, 2, n);
}

cu_result cuMemsetD32Async(cu_deviceptr to, unsigned int value, size_t n, cu_stream s)
{
    return set(s, to, value, 4, n);
}

/* ---- Launches and graphs ------------------------------------------------------------------------------------------
 */

cu_result cuLaunchKernel(cu_function fn, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                         unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,
                         cu_stream s, void **args, void **extra)
{
    const fake_kernel *k = (const fake_kernel *)(const void *)fn;
    op o = {.kind = OP_KERNEL,
            .kernel = k,
            .grid = {grid_x, grid_y, grid_z},
            .block = {block_x, block_y, block_z},
            .shared = shared};
    const size_t *bytes;
    size_t used = 0;
    unsigned n_args = fake_kernel_args(k, &o.n_ptr, &bytes);
    cu_result e = of_stream(s);
    if (e || extra || !grid_x || !grid_y || !grid_z || block_x * block_y * block_z - 1 > 1023 ||
        shared > (228u << 10) - 1024 || grid_x > INT32_MAX || grid_y > 65535 || grid_z > 65535)
        return e ? e : CU_E_INVALID_VALUE;
    for (unsigned i = 0; i < n_args; i++) {
        if (i < o.n_ptr ? i >= FAKE_MAX_PTR : bytes[i] > sizeof o.params - used)
            fake_die("argument %u does not fit", i);
        memcpy(i < o.n_ptr ? (uint8_t *)&o.ptr[i] : (uint8_t *)o.params + used, args[i], bytes[i]);
        used += i < o.n_ptr ? 0 : bytes[i];
    }
    if (!s->recording)
        atomic_fetch_add(&n_kernels, 1);
    return put(s, &o);
}

/* Runs as any other: what a kernel does early it may do late. */
cu_result cuLaunchKernelEx(const cu_launch_config *c, cu_function fn, void **args, void **extra)
{
    for (unsigned i = 0; i < c->n_attributes; i++)
        if (c->attributes[i].id != CU_LAUNCH_EARLY || c->attributes[i].value.early != 1)
            return CU_E_INVALID_VALUE;
    return cuLaunchKernel(fn, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2], c->shared,
                          c->stream, args, extra);
}

cu_result cuStreamBeginCapture_v2(cu_stream s, cu_capture_mode mode)
{
    cu_result e = of_stream(s);
    if (e || mode != CU_CAPTURE_THREAD_LOCAL || s->recording)
        return e ? e : CU_E_INVALID_VALUE;
    s->recording = calloc(1, sizeof *s->recording);
    if (!s->recording)
        return CU_E_OUT_OF_MEMORY;
    s->recording->ctx = s->ctx;
    s->recording_bad = 0;
    fake_recording++;
    count(&s->ctx->graphs, 1);
    return CU_OK;
}

cu_result cuStreamEndCapture(cu_stream s, cu_graph *graph)
{
    cu_result e = of_stream(s);
    if (!s->recording || !fake_recording)
        return CU_E_INVALID_VALUE;
    cu_graph g = s->recording;
    s->recording = NULL;
    fake_recording--;
    if (e || s->recording_bad) {
        cuGraphDestroy(g);
        *graph = NULL;
        return e ? e : CU_E_CAPTURE_INVALIDATED;
    }
    *graph = g;
    return CU_OK;
}

cu_result cuGraphInstantiateWithFlags(cu_graph_exec *exec, cu_graph graph, unsigned long long flags)
{
    cu_context ctx;
    cu_result e = fake_enter_safe(&ctx);
    pthread_mutex_lock(&fake_mu);
    e = !e && fake_due(&fake.alloc) ? CU_E_OUT_OF_MEMORY : e;
    pthread_mutex_unlock(&fake_mu);
    if (e || flags)
        return e ? e : CU_E_INVALID_VALUE;
    *exec = calloc(1, sizeof **exec);
    if (!*exec)
        return CU_E_OUT_OF_MEMORY;
    (*exec)->ctx = ctx;
    (*exec)->list = list_copy(graph->first);
    count(&ctx->graphs, 1);
    return CU_OK;
}

cu_result cuGraphExecUpdate_v2(cu_graph_exec exec, cu_graph graph, cu_graph_update *info)
{
    cu_context ctx;
    cu_result e = fake_enter_safe(&ctx);
    if (e)
        return e;
    const op *a = exec->list, *b = graph->first;
    while (a && b && a->kind == b->kind && a->kernel == b->kernel)
        a = a->next, b = b->next;
    info->result = !fake.update ? 6 : a || b ? 2 : 0;
    if (info->result)
        return CU_E_GRAPH_UPDATE_FAILURE;
    op_free(exec->list);
    exec->list = list_copy(graph->first);
    return CU_OK;
}

cu_result cuGraphUpload(cu_graph_exec exec, cu_stream s)
{
    cu_result e = of_stream(s);
    return e ? e : exec->ctx == s->ctx ? CU_OK : CU_E_INVALID_HANDLE;
}

cu_result cuGraphLaunch(cu_graph_exec exec, cu_stream s)
{
    cu_result e = of_stream(s);
    if (e || exec->ctx != s->ctx)
        return e ? e : CU_E_INVALID_HANDLE;
    atomic_fetch_add(&n_graphs, 1);
    return put(s, &(op){.kind = OP_GRAPH, .list = list_copy(exec->list)});
}

cu_result cuGraphExecDestroy(cu_graph_exec exec)
{
    count(&exec->ctx->graphs, -1);
    op_free(exec->list);
    free(exec);
    return CU_OK;
}

cu_result cuGraphDestroy(cu_graph graph)
{
    count(&graph->ctx->graphs, -1);
    op_free(graph->first);
    free(graph);
    return CU_OK;
}
