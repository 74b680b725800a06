/*
 * The services that a plugin gets: each a thin call into the core. One table a backend, so that settings and log lines
 * carry its name.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cache.h"
#include "base/clock.h"
#include "hal/internal.h"
#include "ops/ops.h"
#include "quant/quant.h"

/* The latest failure's cause, by thread: a slot that fails reports it before it returns, on the same thread. */
static _Thread_local struct {
    const hal_backend *b;
    infer_status status;
    char text[256];
} detail;

static void set_detail(const hal_backend *b, infer_status s, const char *text)
{
    detail.b = b;
    detail.status = s;
    snprintf(detail.text, sizeof detail.text, "%.255s", text ? text : "");
    for (char *c = detail.text; *c; c++)
        if ((unsigned char)*c < ' ')
            *c = ' ';
}

void hal_detail(hal_backend *b, infer_status s, const char *fmt, ...)
{
    char text[sizeof detail.text];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    set_detail(b, s, text);
}

const char *hal_detail_get(hal_backend *b, infer_status s, int take)
{
    if (detail.b != b || detail.status != s)
        return "";
    if (take)
        detail.b = NULL;
    return detail.text;
}

static void host_log(void *ctx, int32_t level, const char *text)
{
    hal_backend *b = ctx;
    if (!b->loaded) /* being asked, by one thread: the line says why it declines */
        snprintf(b->reason, sizeof b->reason, "%s", text);
    infer_log_write(&b->hal->log, level, b->name, "%s", text);
}

static void host_status_detail(void *ctx, infer_status status, const char *text)
{
    set_detail(ctx, status, text);
}

static void *host_alloc(void *ctx, uint64_t bytes, uint32_t align)
{
    (void)ctx;
    if (bytes > SIZE_MAX / 2 || (align & (align - 1)))
        return NULL;
    return infer_alloc_aligned((size_t)bytes, align);
}

static void host_free(void *ctx, void *p)
{
    (void)ctx;
    infer_free_aligned(p);
}

/* Where nobody says otherwise a backend's "cache_dir" is a folder of its own in the user's cache. */
static const char *cache_dir(hal_backend *b)
{
    static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&mu);
    if (!b->cache_dir[0] && !infer_cache_folder(b->name, b->cache_dir, sizeof b->cache_dir))
        b->cache_dir[0] = 0;
    pthread_mutex_unlock(&mu);
    return b->cache_dir[0] ? b->cache_dir : NULL;
}

static const char *host_config_get(void *ctx, const char *key)
{
    hal_backend *b = ctx;
    const char *v = b->hal->config ? b->hal->config(b->hal->user, b->name, key) : NULL;
    return v || strcmp(key, "cache_dir") != 0 ? v : cache_dir(b);
}

static uint64_t host_clock_ns(void *ctx)
{
    (void)ctx;
    return infer_clock_ns();
}

static uint32_t host_cpu_list(void *ctx, int32_t numa_node, uint32_t *cpus, uint32_t cap, uint32_t *n_cores)
{
    hal_backend *b = ctx;
    return infer_topo_cpus(b->hal->topo, numa_node, cpus, cap, n_cores);
}

static int32_t host_pci_numa_node(void *ctx, const char *pci)
{
    hal_backend *b = ctx;
    return infer_topo_pci_node(b->hal->topo, pci);
}

static void host_tl_advance(void *ctx, infer_timeline *tl, uint64_t value)
{
    (void)ctx;
    (void)hal_sw_signal(tl, value); /* a lower value is ignored */
}

static void host_tl_fail(void *ctx, infer_timeline *tl, infer_status status)
{
    (void)ctx;
    hal_sw_fail(tl, status);
}

static infer_status host_tl_wait(void *ctx, infer_timeline *tl, uint64_t value, uint64_t timeout_ns)
{
    (void)ctx;
    return hal_sw_wait(tl, value, timeout_ns);
}

static infer_status host_ref_op(void *ctx, const infer_op_desc *op, void *const *data, const int32_t *counts)
{
    infer_status s = infer_op_ref(op, data, counts);
    if (s < 0) {
        const infer_op_info *info = infer_op_get(op->op);
        hal_detail(ctx, s, "reference op %s: %s", info ? info->name : "?", infer_status_name(s));
    }
    return s;
}

static infer_status convert(void *ctx, infer_format format, uint64_t n, const infer_format_info **out, int pack)
{
    const infer_format_info *f = infer_format_get(format);
    if (!f || (pack ? !f->pack : !f->unpack)) {
        hal_detail(ctx, INFER_E_UNSUPPORTED, "%s: format %u has no conversion", pack ? "pack" : "unpack", format);
        return INFER_E_UNSUPPORTED;
    }
    if (n % f->block_elems) {
        hal_detail(ctx, INFER_E_INVALID, "%s %s: %llu elements are no whole blocks", pack ? "pack" : "unpack", f->name,
                   (unsigned long long)n);
        return INFER_E_INVALID;
    }
    *out = f;
    return INFER_OK;
}

static infer_status host_unpack(void *ctx, infer_format format, const void *src, float *dst, uint64_t n)
{
    const infer_format_info *f;
    INFER_TRY(convert(ctx, format, n, &f, 0));
    f->unpack(src, dst, n);
    return INFER_OK;
}

static infer_status host_pack(void *ctx, infer_format format, const float *src, void *dst, uint64_t n)
{
    const infer_format_info *f;
    INFER_TRY(convert(ctx, format, n, &f, 1));
    f->pack(src, dst, n);
    return INFER_OK;
}

static infer_status host_replay(void *ctx, const infer_graph_view *view, const infer_range *slots, infer_queue *queue)
{
    return hal_replay(ctx, view, slots, queue);
}

static infer_status host_op_check(void *ctx, const infer_op_desc *op)
{
    infer_error e = {0};
    infer_status s = infer_op_check(op, &e);
    if (s < 0)
        set_detail(ctx, s, e.text);
    const infer_op_info *info = infer_op_get(op->op);
    return s ? s : info && info->ref ? INFER_OK : INFER_E_UNSUPPORTED;
}

static const infer_graph_view *host_view_keep(void *ctx, const infer_graph_view *view)
{
    (void)ctx;
    return hal_view_keep(view);
}

static void host_view_drop(void *ctx, const infer_graph_view *view)
{
    (void)ctx;
    infer_free((void *)(uintptr_t)view);
}

void hal_host_init(hal_backend *b)
{
    b->host = (infer_host){
        .struct_size = sizeof b->host,
        .abi_major = INFER_ABI_MAJOR,
        .abi_minor = INFER_ABI_MINOR,
        .ctx = b,
        .log = host_log,
        .status_detail = host_status_detail,
        .alloc = host_alloc,
        .free = host_free,
        .config_get = host_config_get,
        .clock_ns = host_clock_ns,
        .cpu_list = host_cpu_list,
        .pci_numa_node = host_pci_numa_node,
        .tl_advance = host_tl_advance,
        .tl_fail = host_tl_fail,
        .tl_wait = host_tl_wait,
        .ref_op = host_ref_op,
        .unpack = host_unpack,
        .pack = host_pack,
        .replay = host_replay,
        .op_check = host_op_check,
        .view_keep = host_view_keep,
        .view_drop = host_view_drop,
    };
}
