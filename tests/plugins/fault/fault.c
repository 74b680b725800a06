/*
 * fault: a decorator that passes every call on to another backend and, when told, fails the n-th of a class, delays, or
 * loses the device for good. Objects are the inner backend's own; slots that it lacks stay absent. It has no memory and
 * no queue, and it never fails a destroying slot.
 *
 * Settings (host->config_get; all others are read by the inner backend through it):
 *   wrap PATH             module file of the backend to decorate (or infer_fault_control()->wrap)
 *   fail CLASS:N[:STATUS] see infer_fault_api.arm; STATUS a number of status.h
 *   delay CLASS:NS[:N]    see infer_fault_api.delay; with N only one call, after N others
 * Read when a device is opened. Without a backend to wrap the plugin declines.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fault.h"

static const char *const class_names[INFER_FAULT_N] = {
#define X(id, name) name,
    INFER_FAULT_CLASSES(X)
#undef X
};

typedef struct fault_class {
    uint64_t calls;
    uint64_t armed; /* 1: the next call fails, 2: the one after, …; 0: none */
    infer_status status;
    uint64_t delay_ns;
    uint64_t delay_at; /* only this call; 0: each */
} fault_class;

/* All of the decorator's state. */
static struct {
    pthread_mutex_t lock;
    infer_plugin_query_fn query;
    const infer_plugin_desc *decorated;
    infer_backend_ops inner; /* the decorated table, zero beyond its end */
    infer_backend_ops outer;
    infer_plugin_desc desc;
    const infer_host *real; /* the services as the core offers them */
    infer_host host;        /* as the inner backend sees them */
    uint64_t injected;
    infer_status queue_failed, lost; /* sticky */
    fault_class cls[INFER_FAULT_N];
} st = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- Deciding -------------------------------------------------------------------------------------------- */

static int in_any(uint32_t c)
{
    return c != INFER_FAULT_QUERY && c != INFER_FAULT_TIMELINE && c != INFER_FAULT_HOST && c != INFER_FAULT_DONE;
}

static int is_command(uint32_t c)
{
    return c == INFER_FAULT_COPY || c == INFER_FAULT_OP || c == INFER_FAULT_WAIT || c == INFER_FAULT_SIGNAL ||
           c == INFER_FAULT_RUN || c == INFER_FAULT_DONE;
}

/* Counts a call down; whether this is the one that fails. The lock is held. */
static int due(uint32_t c)
{
    fault_class *f = &st.cls[c];
    f->calls++;
    return f->armed > 0 && --f->armed == 0;
}

/* What a call of class c returns instead of reaching the inner backend, or INFER_OK. */
static infer_status decide(uint32_t c)
{
    pthread_mutex_lock(&st.lock);
    uint32_t by = INFER_FAULT_N;
    if (due(c))
        by = c;
    if (in_any(c) && due(INFER_FAULT_ANY))
        by = INFER_FAULT_ANY;
    infer_status s = st.lost ? st.lost : is_command(c) ? st.queue_failed : INFER_OK;
    if (by < INFER_FAULT_N && !s) {
        s = st.cls[by].status;
        if (!s)
            s = is_command(c) ? INFER_E_QUEUE : INFER_E_NO_MEMORY;
        st.injected++;
        if (infer_status_radius(s) >= 4)
            st.lost = s;
        else if (infer_status_radius(s) == 3)
            st.queue_failed = s;
    }
    const fault_class *f = &st.cls[c];
    uint64_t n = f->calls, ns = f->delay_at && f->delay_at != n ? 0 : f->delay_ns;
    const infer_host *host = st.real;
    pthread_mutex_unlock(&st.lock);
    if (ns) {
        struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
        nanosleep(&t, NULL);
    }
    if (s && host) {
        char text[96];
        snprintf(text, sizeof(text), "fault: injected at call %" PRIu64 " of class %s", n, class_names[c]);
        host->status_detail(host->ctx, s, text);
    }
    return s;
}

/* ---- Host services as the inner backend sees them -------------------------------------------------------- */

static void *host_alloc(void *ctx, uint64_t bytes, uint32_t align)
{
    return decide(INFER_FAULT_HOST) ? NULL : st.real->alloc(ctx, bytes, align);
}

static void host_tl_advance(void *ctx, infer_timeline *tl, uint64_t value)
{
    infer_status s = decide(INFER_FAULT_DONE);
    if (s)
        st.real->tl_fail(ctx, tl, s);
    else
        st.real->tl_advance(ctx, tl, value);
}

static void take_host(const infer_host *host)
{
    pthread_mutex_lock(&st.lock);
    if (st.real != host) {
        st.real = host;
        memset(&st.host, 0, sizeof(st.host));
        memcpy(&st.host, host, host->struct_size < sizeof(st.host) ? host->struct_size : sizeof(st.host));
        st.host.alloc = host_alloc;
        st.host.tl_advance = host_tl_advance;
    }
    pthread_mutex_unlock(&st.lock);
}

/* ---- Control --------------------------------------------------------------------------------------------- */

static void ctl_reset(void)
{
    pthread_mutex_lock(&st.lock);
    st.injected = 0;
    st.queue_failed = st.lost = INFER_OK;
    memset(st.cls, 0, sizeof(st.cls));
    pthread_mutex_unlock(&st.lock);
}

static void ctl_wrap(infer_plugin_query_fn query)
{
    pthread_mutex_lock(&st.lock);
    st.query = query;
    pthread_mutex_unlock(&st.lock);
}

static void ctl_arm(uint32_t cls, int64_t n, infer_status status)
{
    pthread_mutex_lock(&st.lock);
    st.cls[cls].armed = n < 0 ? 0 : (uint64_t)n + 1;
    st.cls[cls].status = status;
    pthread_mutex_unlock(&st.lock);
}

static void ctl_delay(uint32_t cls, uint64_t ns)
{
    pthread_mutex_lock(&st.lock);
    st.cls[cls].delay_ns = ns;
    st.cls[cls].delay_at = 0;
    pthread_mutex_unlock(&st.lock);
}

static uint64_t ctl_calls(uint32_t cls)
{
    pthread_mutex_lock(&st.lock);
    uint64_t n = st.cls[cls].calls;
    pthread_mutex_unlock(&st.lock);
    return n;
}

static uint64_t ctl_injected(void)
{
    pthread_mutex_lock(&st.lock);
    uint64_t n = st.injected;
    pthread_mutex_unlock(&st.lock);
    return n;
}

const infer_fault_api *infer_fault_control(void)
{
    static const infer_fault_api api = {
        .reset = ctl_reset,
        .wrap = ctl_wrap,
        .arm = ctl_arm,
        .delay = ctl_delay,
        .calls = ctl_calls,
        .injected = ctl_injected,
    };
    return &api;
}

/* CLASS:N[:M] of a setting. */
static infer_status setting(const infer_host *host, const char *key, uint32_t *cls, int64_t *n, int64_t *m)
{
    const char *s = host->config_get(host->ctx, key);
    *cls = INFER_FAULT_N;
    *m = 0;
    if (!s)
        return INFER_OK;
    size_t len = strcspn(s, ":");
    for (uint32_t i = 0; i < INFER_FAULT_N; i++)
        if (strlen(class_names[i]) == len && !strncmp(class_names[i], s, len))
            *cls = i;
    char *end = NULL;
    if (*cls < INFER_FAULT_N && s[len] == ':') {
        *n = strtoll(s + len + 1, &end, 10);
        if (*end == ':')
            *m = strtoll(end + 1, &end, 10);
    }
    if (!end || *end || end == s + len + 1) {
        host->status_detail(host->ctx, INFER_E_INVALID, "fault: settings fail and delay are CLASS:NUMBER[:NUMBER]");
        return INFER_E_INVALID;
    }
    return INFER_OK;
}

static infer_status take_settings(const infer_host *host)
{
    uint32_t cls;
    int64_t n = 0, m;
    infer_status s = setting(host, "fail", &cls, &n, &m);
    if (!s && cls < INFER_FAULT_N)
        ctl_arm(cls, n, (infer_status)m);
    if (!s)
        s = setting(host, "delay", &cls, &n, &m);
    if (!s && cls < INFER_FAULT_N)
        ctl_delay(cls, n < 0 ? 0 : (uint64_t)n);
    if (!s && cls < INFER_FAULT_N && m > 0) {
        pthread_mutex_lock(&st.lock);
        st.cls[cls].delay_at = (uint64_t)m + 1;
        pthread_mutex_unlock(&st.lock);
    }
    return s;
}

/* ---- Slots ----------------------------------------------------------------------------------------------- */

static infer_status f_probe(const infer_host *host, infer_device_info *out, uint32_t cap, uint32_t *n)
{
    take_host(host);
    return st.inner.probe(&st.host, out, cap, n);
}

static infer_status f_backend_init(const infer_host *host)
{
    take_host(host);
    infer_status s = decide(INFER_FAULT_OPEN);
    return s ? s : st.inner.backend_init(&st.host);
}

static infer_status f_dev_open(const infer_host *host, uint32_t index, infer_device **out)
{
    take_host(host);
    infer_status s = take_settings(host);
    if (!s)
        s = decide(INFER_FAULT_OPEN);
    return s ? s : st.inner.dev_open(&st.host, index, out);
}

static infer_status f_dev_health(infer_device *dev, infer_health *out)
{
    pthread_mutex_lock(&st.lock);
    infer_status lost = st.lost;
    pthread_mutex_unlock(&st.lock);
    if (!lost)
        return st.inner.dev_health(dev, out);
    infer_health h = {.struct_size = out->struct_size,
                      .state = INFER_HEALTH_LOST,
                      .status = lost,
                      .reason = "lost by the fault decorator"};
    memcpy(out, &h, h.struct_size < sizeof(h) ? h.struct_size : sizeof(h));
    return INFER_OK;
}

/* name, class, parameters, arguments: the slots that only count, fail or pass on. */
#define DEV infer_device *dev
#define SLOTS(X)                                                                                                       \
    X(dev_props, QUERY, (DEV, infer_device_props * out), (dev, out))                                                   \
    X(dev_heaps, QUERY, (DEV, infer_heap_info * out, uint32_t cap, uint32_t * n), (dev, out, cap, n))                  \
    X(dev_heap_stats, QUERY, (DEV, uint32_t heap, infer_heap_stats * out), (dev, heap, out))                           \
    X(dev_edge, QUERY, (DEV, uint32_t peer, infer_edge_info * out), (dev, peer, out))                                  \
    X(op_query, QUERY,                                                                                                 \
      (DEV, const infer_op_desc *ops, uint32_t op_size, uint32_t n, infer_op_answer *out, uint32_t answer_size),       \
      (dev, ops, op_size, n, out, answer_size))                                                                        \
    X(kv_query, QUERY, (DEV, const infer_kv_spec *spec, infer_kv_answer *out), (dev, spec, out))                       \
    X(weight_plan, QUERY, (DEV, const infer_weight_desc *d, infer_weight_plan *out), (dev, d, out))                    \
    X(prof_begin, QUERY, (DEV), (dev))                                                                                 \
    X(prof_read, QUERY, (DEV, infer_prof_record * out, uint32_t cap, uint32_t * n), (dev, out, cap, n))                \
    X(buf_alloc, ALLOC, (DEV, uint32_t heap, uint64_t bytes, infer_buffer * *out), (dev, heap, bytes, out))            \
    X(buf_import_host, ALLOC, (DEV, void *p, uint64_t bytes, infer_buffer **out), (dev, p, bytes, out))                \
    X(buf_import, ALLOC, (DEV, uint32_t kind, int64_t handle, uint64_t bytes, infer_buffer * *out),                    \
      (dev, kind, handle, bytes, out))                                                                                 \
    X(buf_map, MAP, (DEV, const infer_range *range, void **out), (dev, range, out))                                    \
    X(buf_export, MAP, (DEV, infer_buffer * buf, uint32_t kind, int64_t * handle), (dev, buf, kind, handle))           \
    X(queue_create, OPEN, (DEV, uint32_t classes, infer_queue * *out), (dev, classes, out))                            \
    X(tl_create, OPEN, (DEV, infer_timeline * *out), (dev, out))                                                       \
    X(comm_unique_id, OPEN, (DEV, uint8_t id[128]), (dev, id))                                                         \
    X(comm_create, OPEN, (DEV, const uint8_t id[128], uint32_t rank, uint32_t n, infer_comm **out),                    \
      (dev, id, rank, n, out))                                                                                         \
    X(queue_wait, WAIT, (infer_queue * q, infer_timeline * tl, uint64_t value), (q, tl, value))                        \
    X(queue_signal, SIGNAL, (infer_queue * q, infer_timeline * tl, uint64_t value), (q, tl, value))                    \
    X(cmd_copy, COPY,                                                                                                  \
      (infer_queue * q, const infer_copy_end *dst, const infer_copy_end *src, const infer_copy_region *r, uint32_t n), \
      (q, dst, src, r, n))                                                                                             \
    X(cmd_update, COPY, (infer_queue * q, const infer_range *dst, const void *data, uint64_t n), (q, dst, data, n))    \
    X(cmd_fill, COPY, (infer_queue * q, const infer_range *dst, uint32_t pattern, uint32_t n), (q, dst, pattern, n))   \
    X(cmd_op, OP, (infer_queue * q, const infer_op_desc *op, const infer_op_args *args), (q, op, args))                \
    X(weight_begin, WEIGHT,                                                                                            \
      (DEV, const infer_weight_desc *d, const infer_weight_plan *p, const infer_range *dst, infer_weight **out),       \
      (dev, d, p, dst, out))                                                                                           \
    X(weight_append, WEIGHT, (infer_weight * w, uint32_t plane, const void *data, uint64_t n), (w, plane, data, n))    \
    X(weight_finish, WEIGHT, (infer_weight * w), (w))                                                                  \
    X(tl_query, TIMELINE, (infer_timeline * tl, uint64_t * value), (tl, value))                                        \
    X(tl_wait, TIMELINE, (infer_timeline * tl, uint64_t value, uint64_t ns), (tl, value, ns))                          \
    X(tl_signal_host, TIMELINE, (infer_timeline * tl, uint64_t value), (tl, value))                                    \
    X(prog_claim, BUILD, (DEV, const infer_graph_view *view, int32_t *set_of), (dev, view, set_of))                    \
    X(prog_build, BUILD, (DEV, const infer_graph_view *view, infer_program **out, infer_program_info *info),           \
      (dev, view, out, info))                                                                                          \
    X(prog_save, BUILD, (infer_program * p, void **data, uint64_t *bytes), (p, data, bytes))                           \
    X(prog_load, BUILD, (DEV, const void *data, uint64_t bytes, infer_program **out), (dev, data, bytes, out))         \
    X(prog_instantiate, INSTANTIATE,                                                                                   \
      (infer_program * p, infer_queue * q, const infer_range *slots, uint32_t n, infer_exec **out),                    \
      (p, q, slots, n, out))                                                                                           \
    X(prog_update, INSTANTIATE, (infer_exec * x, uint32_t slot, const infer_range *range), (x, slot, range))           \
    X(prog_submit, RUN, (infer_exec * x, infer_queue * q), (x, q))

#define X(name, cls, params, args)                                                                                     \
    static infer_status f_##name params                                                                                \
    {                                                                                                                  \
        infer_status s = decide(INFER_FAULT_##cls);                                                                    \
        return s ? s : st.inner.name args;                                                                             \
    }
SLOTS(X)
#undef X

/* ---- The plugin ------------------------------------------------------------------------------------------ */

static infer_plugin_query_fn load(const infer_host *host, const char *path)
{
    char text[256];
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    infer_plugin_query_fn query = NULL;
    if (lib)
        *(void **)(void *)&query = dlsym(lib, "infer_plugin_query");
    if (!query) {
        snprintf(text, sizeof(text), "fault: %.200s", dlerror());
        host->log(host->ctx, 1, text);
    }
    return query;
}

const infer_plugin_desc *infer_plugin_query(const infer_host *host, const infer_abi_range *range)
{
    const char *path = host->config_get(host->ctx, "wrap");
    pthread_mutex_lock(&st.lock);
    if (!st.query && path)
        st.query = load(host, path);
    infer_plugin_query_fn query = st.query;
    pthread_mutex_unlock(&st.lock);
    if (!query) {
        host->log(host->ctx, 2, "fault: nothing to decorate (setting wrap)");
        return NULL;
    }
    const infer_plugin_desc *inner = query(host, range);
    if (!inner)
        return NULL; /* it said why */
    pthread_mutex_lock(&st.lock);
    if (st.decorated == inner)
        goto done;
    st.decorated = inner;
    memset(&st.inner, 0, sizeof(st.inner));
    memcpy(&st.inner, inner->ops,
           inner->ops->struct_size < sizeof(st.inner) ? inner->ops->struct_size : sizeof(st.inner));
    infer_backend_ops t = st.inner;
    t.struct_size = sizeof(t);
    t.probe = f_probe;
    t.dev_open = f_dev_open;
    t.backend_init = t.backend_init ? f_backend_init : NULL;
    t.dev_health = t.dev_health ? f_dev_health : NULL;
#define X(name, cls, params, args) t.name = t.name ? f_##name : NULL;
    SLOTS(X)
#undef X
    st.outer = t;
    infer_plugin_desc d = {0};
    memcpy(&d, inner, inner->struct_size < sizeof(d) ? inner->struct_size : sizeof(d));
    d.struct_size = sizeof(d);
    d.name = d.device_prefix = "fault";
    d.vendor = "infer";
    d.rank = -100;
    d.ops = &st.outer;
    st.desc = d;
done:
    pthread_mutex_unlock(&st.lock);
    return &st.desc;
}
