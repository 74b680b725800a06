/* What the files of core/hal share. Nothing outside the folder includes this.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_HAL_INTERNAL_H
#define INFER_HAL_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>

#include "hal/hal.h"

/* ABI minors that this host can load; the present one is INFER_ABI_MINOR. */
#define HAL_ABI_MINOR_MIN 1u

/* Groups of slots that only make sense together; which of them a plugin supplies. */
#define HAL_HAS_TIMELINE 1u
#define HAL_HAS_WEIGHT   2u
#define HAL_HAS_PROGRAM  4u
#define HAL_HAS_MAP      8u
#define HAL_HAS_IMPORT   16u /* buf_import_host */
#define HAL_HAS_UPDATE   32u
#define HAL_HAS_COMM     64u
#define HAL_HAS_PROFILE  128u
#define HAL_HAS_PLAN     256u /* weight_plan, which may stand without a stream: then every image is canonical */

typedef struct hal_backend {
    infer_hal *hal;
    char *name, *path;
    infer_plugin_query_fn query;
    infer_plugin_desc desc; /* full-size copy; valid where status is OK or probing failed */
    int loaded;
    infer_status status;
    char reason[256];    /* for status; while the plugin is asked: its last log line */
    char cache_dir[512]; /* what the setting of this name says where the user does not; "": not looked up, or none */
    infer_host host;     /* what this plugin sees; ctx is this struct */
    infer_backend_ops ops;
    uint32_t has;
    int inited, probed;
    uint32_t n_open;
    _Atomic int32_t lost; /* status of a failure that took all devices */
} hal_backend;

struct infer_hal {
    infer_log log;
    const char *(*config)(void *user, const char *backend, const char *key);
    void *user;
    int validate;
    FILE *trace; /* a line for each call of a slot, or NULL */
    uint64_t trace_ns;
    unsigned module_check;
    void (*on_step)(void *user, const char *step);
    infer_topo *topo;
    pthread_mutex_t mu; /* lists below, opening and closing */
    hal_backend **backends;
    uint32_t n_backends;
    infer_hal_device_info **devices;
    uint32_t n_devices;
    pthread_mutex_t open_mu; /* the list of open devices; taken after mu, before a device's obj_mu */
    infer_hal_dev *open;     /* by next */
};

/* A live buffer of a device, for range checks. */
typedef struct hal_span {
    const infer_buffer *h;
    uint64_t size;
} hal_span;

struct infer_hal_dev {
    infer_hal *hal;
    hal_backend *b;
    const infer_backend_ops *ops;
    infer_hal_device_info *row;
    infer_device *h;
    infer_queue *queue;
    infer_device_props props;
    infer_heap_info heap;
    infer_hal_dev *next;
    uint32_t refs;

    _Atomic int32_t lost; /* a failure of device radius or more: sticky */
    char lost_text[256];  /* written once, before lost */

    pthread_mutex_t setup_mu; /* one caller at a time in [setup] slots */
    pthread_mutex_t obj_mu;   /* spans, timelines, lost_text */
    hal_span *spans;          /* sorted by h */
    uint32_t n_spans, cap_spans;
    infer_hal_tl *tls;

    _Atomic uint64_t ledger[INFER_LEDGER_KINDS];

    /* The submit thread. */
    pthread_mutex_t mu;
    pthread_cond_t posted, ran;
    infer_hal_job *head, *tail;
    pthread_t thread;
    int stop, started;

    infer_hal_tl *private_tl; /* drain, back-pressure, staged updates */
    uint64_t private_value;
    infer_status (*update)(infer_hal_dev *d, const infer_range *dst, const void *data, uint64_t bytes);
    uint8_t *stage; /* two halves for the default update; NULL where it needs none */
    uint64_t stage_used;
    uint32_t stage_half;
    uint64_t stage_busy[2]; /* private timeline value after which a half is free */
};

struct infer_hal_tl {
    infer_hal_dev *dev;           /* NULL: the host's own */
    const infer_backend_ops *ops; /* tl_* slots */
    infer_timeline *h;
    int software;
    infer_hal_tl *next, **prev;
};

/* ---- normalize.c ---- */
/* Copies a plugin's table into a full-size one and fills every slot whose default needs no device. The groups weight_*
 * and prog_* stay NULL where the plugin has none (weight.c, default_prog.c); HAL_HAS_* say so. INFER_E_ABI names the
 * missing slot. */
infer_status hal_normalize(const infer_backend_ops *in, infer_backend_ops *out, uint32_t *has, const char *name,
                           infer_error *err);

/* ---- host.c ---- */
void hal_host_init(hal_backend *b);
/* Keeps a failure's cause for the calling thread, as status_detail does. */
void hal_detail(hal_backend *b, infer_status s, const char *fmt, ...) INFER_PRINTF(3, 4);
/* The kept text of this thread for this backend and status, "" when there is none; `take` forgets it. */
const char *hal_detail_get(hal_backend *b, infer_status s, int take);

/* ---- device.c ---- */
/* The sticky failure of a device or its backend, or INFER_OK. */
static inline infer_status hal_lost(const infer_hal_dev *d)
{
    infer_status s = atomic_load_explicit(&d->lost, memory_order_acquire);
    return s ? s : atomic_load_explicit(&d->b->lost, memory_order_acquire);
}
/* Passes a slot's status through; a failure of device radius or more is remembered with the thread's detail. */
infer_status hal_note(infer_hal_dev *d, infer_status s);

/* ---- registry.c ---- */
/* backend_init, unless it was done. hal->mu is held. */
infer_status hal_backend_start(hal_backend *b, infer_error *err);

/* ---- identity.c ---- */
/* Sets same_as of all rows. */
void hal_identity_merge(infer_hal *h);

/* ---- timeline.c: software timelines, with the signatures of the slots ---- */
infer_status hal_sw_create(infer_device *dev, infer_timeline **out);
void hal_sw_destroy(infer_device *dev, infer_timeline *tl);
infer_status hal_sw_query(infer_timeline *tl, uint64_t *value);
infer_status hal_sw_wait(infer_timeline *tl, uint64_t value, uint64_t timeout_ns);
infer_status hal_sw_signal(infer_timeline *tl, uint64_t value);
void hal_sw_fail(infer_timeline *tl, infer_status s);
/* Wakes every waiter on the device's timelines with s. obj_mu is held. */
void hal_tl_fail_all(infer_hal_dev *d, infer_status s);

/* ---- submit.c ---- */
infer_status hal_submit_start(infer_hal_dev *d, infer_error *err);
void hal_submit_stop(infer_hal_dev *d);
int hal_on_submit_thread(const infer_hal_dev *d);
/* A condition variable that waits by the monotonic clock. */
void hal_cond_init(pthread_cond_t *c);

/* ---- queue.c ---- */
/* Picks the update path, makes the private timeline. */
infer_status hal_queue_open(infer_hal_dev *d, infer_error *err);
void hal_queue_close(infer_hal_dev *d);
/* [submit] Destroys the queue of a device that is lost, which ends or awaits all that it still runs: afterwards nothing
 * touches buffers, timelines or the host's side of a copy. */
void hal_queue_stop(infer_hal_dev *d);
/* The same from any thread, before something that the queue may use goes; nothing while the device works. */
void hal_settle(infer_hal_dev *d);
/* After a slot answered AGAIN: starts and awaits earlier work; OK: try again. */
infer_status hal_again(infer_hal_dev *d, uint32_t *tries);

/* ---- memory.c ---- */
/* Whether r lies in a live buffer of d; else INFER_E_INVALID with detail. */
infer_status hal_check_range(infer_hal_dev *d, const infer_range *r, const char *what);
infer_status hal_check_buffer(infer_hal_dev *d, const infer_buffer *h, uint64_t offset, uint64_t bytes,
                              const char *what);
void hal_book(infer_hal_dev *d, infer_ledger_kind kind, int64_t bytes);

/* ---- default_kv.c ---- */
infer_status hal_default_kv_query(infer_device *dev, const infer_kv_spec *spec, infer_kv_answer *out);
/* Fills block_bytes for out->block_best by the canonical layout; INFER_E_INVALID, INFER_E_TOO_LARGE. */
infer_status hal_kv_canonical_bytes(const infer_kv_spec *spec, infer_kv_answer *out);

/* ---- validate.c ---- */
infer_status hal_validate_copy(infer_hal_dev *d, const infer_copy_end *dst, const infer_copy_end *src,
                               const infer_copy_region *regions, uint32_t n);
infer_status hal_validate_thread(infer_hal_dev *d, const char *what);
infer_status hal_validate_view(infer_hal_dev *d, const infer_graph_view *view, infer_error *err);

/* ---- trace.c ---- */
/* Begins a trace where path is not NULL. */
infer_status hal_trace_open(infer_hal *h, const char *path, infer_error *err);
/* The table to use instead of the plugin's: the same without a trace, or where four backends have one. Valid until
 * hal_trace_close. */
const infer_backend_ops *hal_trace_table(hal_backend *b, const infer_backend_ops *in);
void hal_trace_close(infer_hal *h); /* nothing of its backends is called any more */

/* ---- default_prog.c: the stock program ---- */
typedef struct hal_stock hal_stock;           /* a copied view */
typedef struct hal_stock_exec hal_stock_exec; /* the same, bound */
infer_status hal_stock_build(const infer_graph_view *view, hal_stock **out);
void hal_stock_destroy(hal_stock *p);
infer_status hal_stock_bind(const hal_stock *p, const infer_range *slots, hal_stock_exec **out);
void hal_stock_rebind(hal_stock_exec *x, uint32_t slot, const infer_range *range);
infer_status hal_stock_submit(infer_hal_dev *d, const hal_stock_exec *x);
void hal_stock_unbind(hal_stock_exec *x);
/* host->replay */
/* A copy of a view in one block of infer_malloc; NULL without memory. */
infer_graph_view *hal_view_keep(const infer_graph_view *view);
infer_status hal_replay(hal_backend *b, const infer_graph_view *view, const infer_range *slots, infer_queue *queue);

/* ---- ref_backend.c ---- */
const infer_plugin_desc *infer_plugin_query_ref(const infer_host *host, const infer_abi_range *range);

#endif
