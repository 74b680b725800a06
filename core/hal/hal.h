/*
 * Devices as the core sees them: loads plugins, normalises their tables, merges devices seen twice, opens devices, and
 * gives each opened device one submit thread. Above this header nobody touches a plugin's table.
 *
 * Threads: functions marked [submit] only inside a job on that device's submit thread; the others from one thread at a
 * time per device, unless marked [any].
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_HAL_HAL_H
#define INFER_HAL_HAL_H

#include <infer/backend.h>

#include "base/error.h"
#include "base/log.h"
#include "topo/topo.h"

/* ---- Registry -------------------------------------------------------------------------------------------- */

typedef struct infer_hal infer_hal;
typedef struct infer_hal_dev infer_hal_dev;

typedef struct infer_hal_options {
    infer_log log;
    const char *backend_path; /* folders, colon-separated, searched before the built-in one; NULL: INFER_BACKEND_PATH's
                                 value as config gives it */
    const char *allow, *deny; /* comma-separated backend names, NULL: all / none */
    const char *topo_xml;     /* see infer_topo_create */
    /* A setting such as ("cpu", "threads") or NULL; borrowed until the hal is destroyed. May be NULL. */
    const char *(*config)(void *user, const char *backend, const char *key);
    void *user;
    int validate;          /* check every call's arguments (tests, porters) */
    const char *trace;     /* file that gets a line for each call of a slot, of four backends at most; NULL: none */
    unsigned module_check; /* INFER_MODULE_CHECK_* of module_check.h */
    /* Told before a module is loaded, asked, started, and probed ("load", "query", "start", "probe"). May be NULL. */
    void (*on_step)(void *user, const char *step);
} infer_hal_options;

/* Loads every module found (file name infer-NAME.so) and the built-in backends ("ref" always: the reference ops on host
 * memory, kind SOFTWARE, never chosen unasked). A module that does not load is listed with its reason, not an error.
 * Modules load only from folders and files that others cannot write. */
infer_status infer_hal_create(const infer_hal_options *opt, infer_hal **out, infer_error *err);
/* All devices must be closed. */
void infer_hal_destroy(infer_hal *h);
/* Adds a backend from its query function (built-in ones, tests); `path` is for display. */
infer_status infer_hal_add(infer_hal *h, infer_plugin_query_fn query, const char *path, infer_error *err);
/* Loads one module file. INFER_E_ABI when no common ABI. */
infer_status infer_hal_load(infer_hal *h, const char *file, infer_error *err);
const infer_topo *infer_hal_topo(const infer_hal *h);
const infer_log *infer_hal_log(const infer_hal *h);

typedef struct infer_hal_backend_info {
    const char *name; /* file name while the descriptor is not known */
    const char *path;
    const infer_plugin_desc *desc; /* NULL when it did not load */
    infer_status status;
    const char *reason;
    /* For the conformance kit only: the module's query function and the services it is given; NULL: not loaded. */
    infer_plugin_query_fn query;
    const infer_host *host;
} infer_hal_backend_info;
/* Every backend that was found, loaded or not, in order of finding. i below the number; strings live as long as h. */
uint32_t infer_hal_n_backends(const infer_hal *h);
void infer_hal_backend(const infer_hal *h, uint32_t i, infer_hal_backend_info *out);

typedef struct infer_hal_device_info {
    char id[32]; /* "cpu0" */
    uint32_t backend;
    infer_device_info info;
    int32_t same_as; /* another row that is the same physical device and is preferred; -1: none */
} infer_hal_device_info;
/* Probes every backend the first time (lazily), cached after. */
infer_status infer_hal_probe(infer_hal *h, infer_error *err);
uint32_t infer_hal_n_devices(const infer_hal *h);
const infer_hal_device_info *infer_hal_device(const infer_hal *h, uint32_t i);
/* Row of an id, PCI address or UUID; -1: none. */
int32_t infer_hal_find(const infer_hal *h, const char *id);

/* ---- An opened device ------------------------------------------------------------------------------------- */

/* Opens (or shares: counted) a device by id, creates its compute queue and starts its submit thread. */
infer_status infer_hal_open(infer_hal *h, const char *id, infer_hal_dev **out, infer_error *err);
void infer_hal_close(infer_hal_dev *d);
const char *infer_hal_dev_id(const infer_hal_dev *d);
const infer_hal_device_info *infer_hal_dev_row(const infer_hal_dev *d);
const infer_device_props *infer_hal_dev_props(const infer_hal_dev *d);
/* Heap 0's static description. */
const infer_heap_info *infer_hal_dev_heap(const infer_hal_dev *d);
infer_status infer_hal_dev_heap_stats(infer_hal_dev *d, infer_heap_stats *out);
infer_status infer_hal_dev_health(infer_hal_dev *d, infer_health *out); /* [any] */
/* The plugin's handle and table (absent slots filled where the default needs no context): for the conformance kit only.
 */
infer_device *infer_hal_dev_handle(const infer_hal_dev *d);
const infer_backend_ops *infer_hal_dev_ops(const infer_hal_dev *d);

/* Records `what` with the plugin's detail text in err; returns s. Marks the device lost for radius >= 3: an opened
 * device has one queue, so that it must be opened anew. After such a failure the device may still be at work until a
 * buffer, timeline or program of it is freed, or infer_hal_drain returned; only then free host memory that copies use.
 */
infer_status infer_hal_fail(infer_hal_dev *d, infer_status s, infer_error *err, const char *what);

/* ---- Memory, with its ledger ------------------------------------------------------------------------------ */

typedef enum infer_ledger_kind {
    INFER_LEDGER_WEIGHTS,
    INFER_LEDGER_KV,
    INFER_LEDGER_ACTIVATIONS,
    INFER_LEDGER_WORKSPACE,
    INFER_LEDGER_ADAPTERS,
    INFER_LEDGER_CONTEXT,
    INFER_LEDGER_RESERVE,
    INFER_LEDGER_KINDS
} infer_ledger_kind;
/* "weights", "kv", …; "?" for no kind. Static. */
const char *infer_ledger_kind_name(infer_ledger_kind k);

typedef struct infer_hal_buf {
    infer_hal_dev *dev;
    infer_buffer *h;
    uint64_t size;
    infer_ledger_kind kind;
    int imported; /* wraps memory that somebody else owns: not counted */
} infer_hal_buf;

/* What infer_hal_buf_alloc takes and books for that many bytes: rounded up to the heap's granularity. */
uint64_t infer_hal_buf_bytes(const infer_hal_dev *d, uint64_t bytes);
/* Allocates from heap 0 and books it. On NO_MEMORY the text has wanted and free bytes. */
infer_status infer_hal_buf_alloc(infer_hal_dev *d, uint64_t bytes, infer_ledger_kind kind, infer_hal_buf *out,
                                 infer_error *err);
/* Wraps host memory without a copy; INFER_E_UNSUPPORTED (no text) where the device cannot. */
infer_status infer_hal_buf_import(infer_hal_dev *d, void *p, uint64_t bytes, infer_ledger_kind kind, infer_hal_buf *out,
                                  infer_error *err);
/* Safe on a zeroed struct. */
void infer_hal_buf_free(infer_hal_buf *b);
/* Bytes booked on a device by kind. [any] */
uint64_t infer_hal_ledger(const infer_hal_dev *d, infer_ledger_kind kind);

/* ---- Queries ----------------------------------------------------------------------------------------------- */

/* Answers of n ops; every answer is filled (a plugin that fails the call: NO for all). [any] */
void infer_hal_op_query(infer_hal_dev *d, const infer_op_desc *const *ops, uint32_t n, infer_op_answer *out);
infer_status infer_hal_kv_query(infer_hal_dev *d, const infer_kv_spec *spec, infer_kv_answer *out, infer_error *err);
infer_status infer_hal_weight_plan(infer_hal_dev *d, const infer_weight_desc *desc, infer_weight_plan *out,
                                   infer_error *err);
/* Brings the planes of the whole tensor, less what desc.shard leaves out, to dst in chunks of at most 16 MiB: copied
 * where the planned image is canonical, else through weight_begin .. finish. May run on several threads for different
 * weights of a device. */
infer_status infer_hal_weight_load(infer_hal_dev *d, const infer_weight_desc *desc, const infer_weight_plan *plan,
                                   const infer_range *dst, const void *const planes[3], const uint64_t bytes[3],
                                   infer_error *err);
/* A whole tensor whose data plane lies nowhere: make writes its bytes [at, at + n), asked for in order, each once, n =
 * `piece` or what is left. The other planes are read when all of it is made, so make may fill them. */
typedef struct infer_weight_made {
    infer_status (*make)(void *user, uint64_t at, uint64_t n, void *dst);
    void *user;
    uint64_t piece;
    const void *planes[3]; /* [0] is not read */
    uint64_t bytes[3];
} infer_weight_made;
/* The same for that; with a part of a tensor (desc.shard) INFER_E_UNSUPPORTED. */
infer_status infer_hal_weight_make(infer_hal_dev *d, const infer_weight_desc *desc, const infer_weight_plan *plan,
                                   const infer_range *dst, const infer_weight_made *made, infer_error *err);
/* How bytes get from one device to another: what the plugin says of its peers, else STAGED. [any] */
infer_status infer_hal_edge(infer_hal_dev *from, infer_hal_dev *to, infer_edge_info *out);

/* ---- Timelines ---------------------------------------------------------------------------------------------- */

typedef struct infer_hal_tl infer_hal_tl;
/* On a device, or (d NULL) a software one that only the host advances. */
infer_status infer_hal_tl_create(infer_hal_dev *d, infer_hal_tl **out, infer_error *err);
void infer_hal_tl_destroy(infer_hal_tl *tl);
infer_status infer_hal_tl_query(infer_hal_tl *tl, uint64_t *value);                    /* [any] */
infer_status infer_hal_tl_wait(infer_hal_tl *tl, uint64_t value, uint64_t timeout_ns); /* [any] */
infer_status infer_hal_tl_signal_host(infer_hal_tl *tl, uint64_t value);               /* [any] */
/* What the plugin's queue functions take for it (its own object, or the host's): for the conformance kit only. */
infer_timeline *infer_hal_tl_handle(const infer_hal_tl *tl);

/* ---- Work --------------------------------------------------------------------------------------------------- */

/* A job runs once on the device's submit thread, in order of posting. The struct is the caller's and must live until it
 * ran. Posting never allocates and never blocks. */
typedef struct infer_hal_job {
    void (*run)(struct infer_hal_job *job);
    struct infer_hal_job *next;
} infer_hal_job;
void infer_hal_post(infer_hal_dev *d, infer_hal_job *job); /* [any] */
/* Posts and waits until it ran (set-up work). On the submit thread itself: runs it at once. */
void infer_hal_run(infer_hal_dev *d, infer_hal_job *job);

/* [submit] The next five enqueue on the device's compute queue. Ranges are checked against their buffers. */
infer_status infer_hal_update(infer_hal_dev *d, const infer_range *dst, const void *data, uint64_t bytes);
infer_status infer_hal_copy(infer_hal_dev *d, const infer_copy_end *dst, const infer_copy_end *src,
                            const infer_copy_region *regions, uint32_t n);
infer_status infer_hal_fill(infer_hal_dev *d, const infer_range *dst, uint32_t pattern, uint32_t pattern_bytes);
infer_status infer_hal_signal(infer_hal_dev *d, infer_hal_tl *tl, uint64_t value);
/* A timeline of another device: through the queue where it can, else waits on the host here. */
infer_status infer_hal_wait(infer_hal_dev *d, infer_hal_tl *tl, uint64_t value);
/* [submit] Signals a private timeline and waits on the host until all work so far is done. Whatever it returns, the
 * device touches no buffer and no host memory of earlier copies any more. */
infer_status infer_hal_drain(infer_hal_dev *d);

/* Set-up copies between a device range and host memory, complete on return; run on the submit thread by themselves. */
infer_status infer_hal_write(infer_hal_dev *d, const infer_range *dst, const void *data, uint64_t bytes,
                             infer_error *err);
infer_status infer_hal_read(infer_hal_dev *d, const infer_range *src, void *data, uint64_t bytes, infer_error *err);

/* ---- Programs ----------------------------------------------------------------------------------------------- */

typedef struct infer_hal_prog infer_hal_prog;
typedef struct infer_hal_exec infer_hal_exec;

/* Which nodes of a view the plugin wants to compile whole: set_of[i] = set number of node i, or -1. */
infer_status infer_hal_prog_claim(infer_hal_dev *d, const infer_graph_view *view, int32_t *set_of, infer_error *err);
/* The view is copied where the default keeps it. The plugin's prog_build, or the stock program. */
infer_status infer_hal_prog_build(infer_hal_dev *d, const infer_graph_view *view, infer_hal_prog **out,
                                  infer_program_info *info, infer_error *err);
void infer_hal_prog_destroy(infer_hal_prog *p);
/* Runs on the submit thread by itself. */
infer_status infer_hal_exec_create(infer_hal_prog *p, const infer_range *slots, uint32_t n_slots, infer_hal_exec **out,
                                   infer_error *err);
/* A rebindable slot's new range; instantiates anew where the plugin answers REBUILD. */
infer_status infer_hal_exec_update(infer_hal_exec *x, uint32_t slot, const infer_range *range, infer_error *err);
void infer_hal_exec_destroy(infer_hal_exec *x);
infer_status infer_hal_exec_submit(infer_hal_exec *x); /* [submit] no allocation */

#endif
