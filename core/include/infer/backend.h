/*
 * The plugin interface: what a backend implements and what the host offers it. With status.h, quant.h and ops.h it is
 * all that a plugin needs; valid C11 and C++11.
 *
 * Rules common to everything here
 *  - Tables and argument structs start with their size; they only ever grow at the end. A slot exists when the table is
 *    long enough and the pointer is not NULL. The core copies a plugin's table and fills every absent slot, so it never
 *    tests a slot on a hot path.
 *  - Where a plugin fills a struct or a list of structs, the caller has set struct_size in each and zeroed the rest:
 *    write no field beyond it, and step through the list by it.
 *  - Fixed-width integers only; natural alignment with explicit padding.
 *  - Status values carry the blast radius (status.h). Text about a failure goes to host->status_detail by the first
 *    function that knows the cause. Output arguments are written only on success.
 *  - Objects are created once and destroyed once, after their last use completed; the core counts references.
 *  - Threads: [setup] one caller at a time per device; [submit] the queue's one submitting thread, the only thread that
 *    may block on the device; [query] any thread, concurrently. Nothing is called from a device callback.
 *  - A plugin reads no environment, prints nothing, installs no signal handler, never exits or aborts.
 *  - ABI 0.x promises nothing between minors.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_BACKEND_H
#define INFER_BACKEND_H

#include <stdint.h>

#include <infer/ops.h>
#include <infer/quant.h>
#include <infer/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define INFER_ABI_MAJOR 0u
#define INFER_ABI_MINOR 1u

#if defined(__GNUC__)
#define INFER_PLUGIN_EXPORT __attribute__((visibility("default")))
#else
#define INFER_PLUGIN_EXPORT
#endif

/* The plugin's own objects; the core only passes them back. infer_timeline may also be the host's (see tl_create). */
typedef struct infer_device infer_device;
typedef struct infer_buffer infer_buffer;
typedef struct infer_queue infer_queue;
typedef struct infer_timeline infer_timeline;
typedef struct infer_weight infer_weight;
typedef struct infer_program infer_program;
typedef struct infer_exec infer_exec;
typedef struct infer_comm infer_comm;

/* A place in device memory. Never a bare pointer: a buffer's memory may have no address on the host. */
typedef struct infer_range {
    infer_buffer *buffer;
    uint64_t offset;
    uint64_t size;
} infer_range;

/* ---- Devices --------------------------------------------------------------------------------------------- */

#define INFER_KIND_CPU      1u
#define INFER_KIND_GPU      2u
#define INFER_KIND_IGPU     3u
#define INFER_KIND_NPU      4u
#define INFER_KIND_SOFTWARE 5u /* an accelerator API on the CPU, or a simulation: never chosen unasked */

/* One device as probing sees it. Absent strings are "". */
typedef struct infer_device_info {
    uint32_t struct_size;
    uint32_t kind;
    uint32_t index;    /* what dev_open takes */
    int32_t numa_node; /* -1: unknown */
    char name[96];
    char pci[24];    /* "0000:3b:00.0" */
    char uuid[48];   /* lower case, with dashes */
    char driver[48]; /* driver and its version */
    char arch[48];
    uint64_t memory_total; /* bytes; 0: unknown before dev_open */
    infer_status status;   /* INFER_OK: usable; else why not */
    uint32_t reserved;
    char reason[160]; /* text for status */
} infer_device_info;

#define INFER_PROP_ROW_INVARIANT 1u  /* every op that op_query calls row-invariant is so by default */
#define INFER_PROP_HOST_MEMORY   2u  /* buffers are ordinary host memory: buf_map is free */
#define INFER_PROP_WANTS_BUCKETS 4u  /* programs should be built for several capacities (captured graphs) */
#define INFER_PROP_INLINE        8u  /* queue work runs inside the submitting call */
#define INFER_PROP_PARALLEL_LOAD 16u /* weight streams of different weights may run on several threads at once */

typedef struct infer_device_props {
    uint32_t struct_size;
    uint32_t flags;        /* INFER_PROP_* */
    uint32_t buffer_align; /* of offsets in bindings, bytes, a power of two */
    uint32_t n_queues;
    uint64_t formats;                    /* bit i: INFER_FMT_ id i computes natively as an activation or weight. A
                                            summary: op_query decides, and the core does not read this */
    uint64_t max_buffer;                 /* bytes of the largest buffer */
    double read_bytes_per_s;             /* declared memory read rate, 0: unknown */
    double f32_flops, f16_flops, i8_ops; /* declared peak matrix rates a second, 0: unknown */
    double launch_ns;                    /* fixed cost of one op in a program, 0: unknown */
    uint32_t n_cores;                    /* independent workers or units */
    uint32_t simd_width;                 /* bytes of a vector, or lanes of a wave */
    char isa[48];                        /* the kernel variant in use, such as "avx2" */
} infer_device_props;

#define INFER_HEAP_HOST_VISIBLE 1u
#define INFER_HEAP_COHERENT     2u
#define INFER_HEAP_DEVICE_LOCAL 4u

typedef struct infer_heap_info {
    uint32_t struct_size;
    uint32_t flags; /* INFER_HEAP_* */
    uint64_t size;
    uint64_t granularity; /* of an allocation, bytes */
    uint32_t align;
    int32_t numa_node;
} infer_heap_info;

#define INFER_KNOWN_EXACT    0u
#define INFER_KNOWN_ESTIMATE 1u
#define INFER_KNOWN_NOT      2u

/* A figure and how well it is known; unknown is not zero. */
typedef struct infer_known {
    uint64_t value;
    uint32_t quality; /* INFER_KNOWN_* */
    uint32_t reserved;
} infer_known;

typedef struct infer_heap_stats {
    uint32_t struct_size;
    uint32_t reserved;
    infer_known total, budget, ours, others, largest_free;
} infer_heap_stats;

#define INFER_EDGE_NONE   0u
#define INFER_EDGE_NATIVE 1u /* the device addresses the peer's buffer */
#define INFER_EDGE_IMPORT 2u /* after buf_export on the peer and buf_import here */
#define INFER_EDGE_DMA    3u /* cmd_copy takes the peer's buffer */
#define INFER_EDGE_STAGED 4u /* through host memory, by the core */

typedef struct infer_edge_info {
    uint32_t struct_size;
    uint32_t mode;      /* INFER_EDGE_* */
    double bytes_per_s; /* 0: unknown */
    double latency_ns;
    uint32_t handle_kinds; /* bits: 1 << INFER_HANDLE_* */
    uint32_t reserved;
} infer_edge_info;

#define INFER_HANDLE_DMABUF    0u
#define INFER_HANDLE_OPAQUE_FD 1u
#define INFER_HANDLE_IPC       2u

#define INFER_HEALTH_OK        0u
#define INFER_HEALTH_THROTTLED 1u
#define INFER_HEALTH_DEGRADED  2u
#define INFER_HEALTH_LOST      3u

typedef struct infer_health {
    uint32_t struct_size;
    uint32_t state;      /* INFER_HEALTH_* */
    infer_status status; /* with its blast radius */
    uint32_t reserved;
    char reason[160];
} infer_health;

/* ---- Commands -------------------------------------------------------------------------------------------- */

/* What is handed to a [submit] slot (descriptors, arguments, ranges, lists of regions) is valid during the call only; a
 * queue that runs later keeps copies. Counts and all other data in device memory are read when the op runs, after what
 * was submitted before it. A full queue answers INFER_AGAIN, with nothing enqueued, rather than wait: the core awaits
 * earlier work and asks again. */

/* One side of a copy: a buffer of this device, an imported peer buffer, or (buffer NULL) host memory at `host`, which
 * must stay valid and untouched until the timeline value that covers the copy. */
typedef struct infer_copy_end {
    infer_buffer *buffer;
    void *host;
} infer_copy_end;

/* rows rows of bytes each; pitches are ignored when rows is 1. Regions of one list do not overlap in dst. */
typedef struct infer_copy_region {
    uint64_t src_offset, dst_offset;
    uint64_t bytes, rows;
    uint64_t src_pitch, dst_pitch;
} infer_copy_region;

/* Where an op's operands lie, in the descriptor's order (inputs, then outputs; an absent one has buffer NULL). */
typedef struct infer_op_args {
    uint32_t struct_size;
    uint32_t n_operands;
    const infer_range *operands;
    infer_range counts;  /* the step counts (ops.h); may be absent where rows_from is static */
    infer_range scratch; /* as op_query asked */
    infer_comm *comm;    /* collectives only */
} infer_op_args;

/* ---- What a device says of an op ------------------------------------------------------------------------- */

#define INFER_LEVEL_NO       0u
#define INFER_LEVEL_COMPOSED 1u /* done, from several kernels */
#define INFER_LEVEL_NATIVE   2u

#define INFER_WHY_NONE         0u
#define INFER_WHY_OP           1u /* this op id */
#define INFER_WHY_FORMAT       2u /* the format of operand `which` */
#define INFER_WHY_SHAPE        3u /* the shape of operand `which` */
#define INFER_WHY_LAYOUT       4u
#define INFER_WHY_ATTR         5u /* attribute number `which` (in order of the struct's fields) */
#define INFER_WHY_EPILOGUE     6u
#define INFER_WHY_UNKNOWN_BITS 7u
#define INFER_WHY_MEMORY       8u

typedef struct infer_op_answer {
    uint32_t struct_size;
    uint32_t level; /* INFER_LEVEL_* */
    uint32_t why;   /* INFER_WHY_*, for NO */
    uint32_t which;
    uint32_t n_epilogue;    /* how many steps of the list, from the first, are done */
    uint32_t row_invariant; /* a row's result does not depend on which other rows run with it */
    uint64_t scratch_bytes;
    uint32_t scratch_align;
    uint32_t reserved;
    double est_ns;    /* predicted time at full capacity, 0: unknown */
    double est_bytes; /* memory traffic, 0: unknown */
} infer_op_answer;

/* ---- Weights --------------------------------------------------------------------------------------------- */

/* A tensor-parallel cut: parts [first, first + count) of `of` equal units along `axis` (0 rows, 1 columns; 2 experts).
 * Cuts along columns fall on whole format blocks; counts may differ between devices. of = 0: whole. */
typedef struct infer_shard {
    uint32_t axis, first, count, of;
} infer_shard;

typedef struct infer_weight_desc {
    uint32_t struct_size;
    uint32_t flags;
    const infer_ext *next;
    infer_quant quant; /* how the source is stored; plain formats: only .format */
    uint32_t rank;
    uint32_t use;     /* op id that will read it */
    int64_t shape[4]; /* of the whole tensor; [N][K], or [E][N][K] for experts */
    infer_shard shard;
} infer_weight_desc;

#define INFER_WEIGHT_IN_PLACE                                                                                          \
    1u                          /* the source bytes are the packed image: an imported mapping may be bound as it is    \
                                 */
#define INFER_WEIGHT_DEQUANT 2u /* converted to another format at load */
#define INFER_WEIGHT_STREAM                                                                                            \
    4u /* with a canonical image in the source's format: weight_begin takes it all the same (it has ways of its own)   \
        */

typedef struct infer_weight_plan {
    uint32_t struct_size;
    uint32_t flags;  /* INFER_WEIGHT_* */
    uint32_t layout; /* INFER_LAYOUT_CANONICAL or private */
    uint32_t align;  /* of the image, bytes */
    uint64_t packed_bytes;
    infer_format format; /* what the image holds */
    uint32_t reserved;
} infer_weight_plan;

/* ---- Cache groups ---------------------------------------------------------------------------------------- */

#define INFER_GROUP_FULL      1u
#define INFER_GROUP_WINDOW    2u
#define INFER_GROUP_LATENT    3u
#define INFER_GROUP_RECURRENT 4u
#define INFER_GROUP_ENCODER   5u

/* What one token (paged) or one slot (recurrent) stores in one layer. */
typedef struct infer_kv_plane {
    infer_format format;
    uint32_t width;    /* elements a head (or in all, when shared) */
    uint32_t per_head; /* 1: each KV head has its own; 0: one for all heads */
    uint32_t reserved;
} infer_kv_plane;

typedef struct infer_kv_spec {
    uint32_t struct_size;
    uint32_t kind; /* INFER_GROUP_* */
    uint32_t layer_first, n_layers;
    uint32_t head_first, n_heads; /* this device's slice; heads repeat when there are more ranks than heads */
    uint32_t n_planes;
    uint32_t window;
    infer_kv_plane planes[4];
} infer_kv_spec;

typedef struct infer_kv_answer {
    uint32_t struct_size;
    uint32_t level; /* INFER_LEVEL_NO: this kind or these formats cannot be held */
    uint32_t why, which;
    uint32_t block_multiple; /* a block's tokens must be a multiple of this */
    uint32_t block_best;     /* preferred; a multiple of block_multiple */
    uint32_t block_max;      /* 0: no bound */
    uint32_t layout;         /* 0: canonical (ops.h, infer_attrs_kv) */
    uint32_t align;          /* of a plane's start, bytes */
    uint32_t reserved;
    uint64_t block_bytes[4]; /* of one block of one layer, for each plane, at block_best; in proportion for others */
} infer_kv_answer;

/* ---- Programs -------------------------------------------------------------------------------------------- */

#define INFER_SLOT_ARENA  1u /* activations and scratch */
#define INFER_SLOT_WEIGHT 2u
#define INFER_SLOT_KV     3u
#define INFER_SLOT_STEP   4u /* step parameters: ids, positions, tables, counts */
#define INFER_SLOT_IO     5u /* rows that cross to another part: inputs and outputs of this one */
#define INFER_SLOT_STATE  6u /* lasting state besides KV: sampling counts */
#define INFER_SLOT_PEER   7u

/* A buffer that a program touches; its actual range is given at instantiation. */
typedef struct infer_slot_desc {
    uint32_t kind;
    uint32_t rebindable; /* prog_update may change it */
    uint64_t size;
} infer_slot_desc;

/* An operand: `size` bytes at `offset` of slot `slot`; slot 0xFFFFFFFF: absent. */
typedef struct infer_operand {
    uint32_t slot;
    uint32_t flags; /* INFER_OPERAND_* */
    uint64_t offset, size;
} infer_operand;

#define INFER_SLOT_ABSENT   0xFFFFFFFFu
#define INFER_OPERAND_INNER 1u /* an output that nobody reads but nodes of this view */

typedef struct infer_node {
    const infer_op_desc *op;
    const infer_operand *operands; /* n_in + n_out */
    infer_operand counts;
    infer_operand scratch;
    infer_comm *comm; /* collectives only: of this device, alive as long as the program */
} infer_node;

/* A part of the model's graph in the order of execution, all on one device. Valid during the call only. */
typedef struct infer_graph_view {
    uint32_t struct_size;
    uint32_t flags;
    const infer_ext *next;
    const infer_node *nodes;
    const infer_slot_desc *slots;
    uint32_t n_nodes, node_size;
    uint32_t n_slots, slot_size;
    uint32_t bucket; /* the capacity in rows that this program is for */
    uint32_t reserved;
} infer_graph_view;

typedef struct infer_program_info {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t scratch_bytes; /* beyond the view's own */
    uint64_t code_bytes;    /* device memory that code and capture take */
    double est_ns;          /* one run at full capacity, 0: unknown */
} infer_program_info;

typedef struct infer_prof_record {
    char name[48];
    uint64_t begin_ns, end_ns;
    uint32_t queue;
    uint32_t reserved;
} infer_prof_record;

/* ---- Host services --------------------------------------------------------------------------------------- */

/* Offered to the plugin; same table rules. Valid until the backend's last device is closed. All functions may be called
 * from any thread unless noted; `ctx` is this struct's. */
typedef struct infer_host {
    uint32_t struct_size;
    uint32_t abi_major, abi_minor;
    uint32_t reserved;
    void *ctx;

    /* level 0 error, 1 warning, 2 information, 3 debug. One line, copied. */
    void (*log)(void *ctx, int32_t level, const char *text);
    /* The cause of a failure that is about to be returned: native error name, object, numbers. Copied, kept for the
     * calling thread until its next failure. */
    void (*status_detail)(void *ctx, infer_status status, const char *text);
    /* Host memory; align a power of two. NULL: none. */
    void *(*alloc)(void *ctx, uint64_t bytes, uint32_t align);
    void (*free)(void *ctx, void *p);
    /* A setting of this backend ("threads", "isa", …) or NULL. Borrowed until the backend is closed. "cache_dir" is a
     * folder of the backend's own, with mode 0700, for what it compiles; NULL: it goes without. */
    const char *(*config_get)(void *ctx, const char *key);
    uint64_t (*clock_ns)(void *ctx);
    /* Processors (as operating-system numbers) near a NUMA node (-1: all allowed), in binding order: first one thread
     * of each core, then siblings. Writes up to cap, returns how many there are; *n_cores: how many cores. */
    uint32_t (*cpu_list)(void *ctx, int32_t numa_node, uint32_t *cpus, uint32_t cap, uint32_t *n_cores);
    /* The NUMA node near a PCI device, -1: unknown. */
    int32_t (*pci_numa_node)(void *ctx, const char *pci);
    /* Software timelines (those a plugin without tl_create is given). Advance to a value not below the present one, or
     * fail for good; wait blocks up to timeout_ns (UINT64_MAX: for ever) and gives OK, PENDING or the failure. */
    void (*tl_advance)(void *ctx, infer_timeline *tl, uint64_t value);
    void (*tl_fail)(void *ctx, infer_timeline *tl, infer_status status);
    infer_status (*tl_wait)(void *ctx, infer_timeline *tl, uint64_t value, uint64_t timeout_ns);
    /* The reference implementation of an op on host memory: data[i] is operand i (inputs, then outputs; NULL: absent).
     */
    infer_status (*ref_op)(void *ctx, const infer_op_desc *op, void *const *data, const int32_t *counts);
    /* n elements of a format to or from float (quant.h; n a multiple of the block). UNSUPPORTED: unknown format. */
    infer_status (*unpack)(void *ctx, infer_format format, const void *src, float *dst, uint64_t n);
    infer_status (*pack)(void *ctx, infer_format format, const float *src, void *dst, uint64_t n);
    /* Replays a view's ops (see view_keep) through the plugin's own cmd_op onto a queue: for capture inside
     * prog_instantiate. */
    infer_status (*replay)(void *ctx, const infer_graph_view *view, const infer_range *slots, infer_queue *queue);
    /* Whether ref_op takes this descriptor: OK, UNSUPPORTED (op id, revision, an unknown bit, a format) or INVALID
     * (shapes or attributes disagree). For plugins that answer op_query on the strength of ref_op. */
    infer_status (*op_check)(void *ctx, const infer_op_desc *op);
    /* A copy of a view with all that it points to (but for communicators), which stays after prog_build: for replay
     * later. The plugin owns it until view_drop (NULL is fine). NULL: no memory. */
    const infer_graph_view *(*view_keep)(void *ctx, const infer_graph_view *view);
    void (*view_drop)(void *ctx, const infer_graph_view *view);
} infer_host;

/* ---- The backend's table --------------------------------------------------------------------------------- */

/* Need: R required; D the core has a default; O optional, absent means "no". Required slots first. */
typedef struct infer_backend_ops {
    uint32_t struct_size;
    uint32_t reserved;

    /* R [setup] Devices that exist, cheaply and without creating a context. Writes up to cap elements, *n: how many
     * there are. "None" is n = 0 and OK; a missing vendor library is INFER_E_NO_DEVICE with detail. */
    infer_status (*probe)(const infer_host *host, infer_device_info *out, uint32_t cap, uint32_t *n);
    /* R [setup] Opens a device of probe's list. Close after everything made on it is destroyed. */
    infer_status (*dev_open)(const infer_host *host, uint32_t index, infer_device **out);
    void (*dev_close)(infer_device *dev);
    /* R [query] The caller sets struct_size; fields beyond it must not be written. */
    infer_status (*dev_props)(infer_device *dev, infer_device_props *out);
    /* R [query] Heap 0 is the one for weights, KV and activations. */
    infer_status (*dev_heaps)(infer_device *dev, infer_heap_info *out, uint32_t cap, uint32_t *n);
    infer_status (*dev_heap_stats)(infer_device *dev, uint32_t heap, infer_heap_stats *out);

    /* R [setup] bytes > 0, from a heap of dev_heaps; content undefined. NO_MEMORY when there is not enough: never
     * aborts, never over-commits in silence. */
    infer_status (*buf_alloc)(infer_device *dev, uint32_t heap, uint64_t bytes, infer_buffer **out);
    void (*buf_free)(infer_device *dev, infer_buffer *buf);

#define INFER_QUEUE_COMPUTE 1u
#define INFER_QUEUE_COPY    2u
    /* R [setup] An in-order queue for a class of work (bits). Work is left on a queue that is destroyed only after a
     * failure of its radius or more: destroy then ends that work or waits for it, and returns also where the device is
     * lost. Buffers, timelines and host memory that it used are freed after that. Ops and programs of an opened device
     * go to one queue at a time (the core makes one): what they share in the device needs no guard. */
    infer_status (*queue_create)(infer_device *dev, uint32_t classes, infer_queue **out);
    void (*queue_destroy)(infer_device *dev, infer_queue *queue);
    /* R [submit] Later work of the queue waits until tl reaches value, whose signal is already submitted or is the
     * host's. tl was made by this backend (perhaps for another device), or by the host where the table has no
     * tl_create. UNSUPPORTED for a timeline that the queue cannot wait on: the core then waits on the host. */
    infer_status (*queue_wait)(infer_queue *queue, infer_timeline *tl, uint64_t value);
    /* R [submit] Starts all work so far and sets tl to value when it is done. May simply wait for the work here. */
    infer_status (*queue_signal)(infer_queue *queue, infer_timeline *tl, uint64_t value);

    /* R [submit] Copies regions from src to dst. Ranges are checked by the core. What goes to host memory is there when
     * a signal that the queue was given later is seen reached, or before. */
    infer_status (*cmd_copy)(infer_queue *queue, const infer_copy_end *dst, const infer_copy_end *src,
                             const infer_copy_region *regions, uint32_t n);
    /* R [submit] Repeats a pattern of 1, 2 or 4 bytes (low bytes of `pattern`) over a range of a multiple of that. */
    infer_status (*cmd_fill)(infer_queue *queue, const infer_range *dst, uint32_t pattern, uint32_t pattern_bytes);
    /* R [query] One answer for each descriptor; elements are op_size and answer_size bytes apart. */
    infer_status (*op_query)(infer_device *dev, const infer_op_desc *ops, uint32_t op_size, uint32_t n,
                             infer_op_answer *out, uint32_t answer_size);
    /* R [submit] Runs one op that op_query did not refuse; op->n_epilogue is at most what it answered, and operands of
     * steps that were left off may still be listed. No allocation. */
    infer_status (*cmd_op)(infer_queue *queue, const infer_op_desc *op, const infer_op_args *args);

    /* ---- from here on a NULL entry is fine ---- */

    /* D [setup] Process-wide preparation, before the first probe and after the last close. */
    infer_status (*backend_init)(const infer_host *host);
    void (*backend_fini)(void);
    /* D [query] How this device reaches another of the same backend (peer index of probe). Default: STAGED. */
    infer_status (*dev_edge)(infer_device *dev, uint32_t peer, infer_edge_info *out);
    /* D [query] Default: OK until a call returned a failure of device radius or more. */
    infer_status (*dev_health)(infer_device *dev, infer_health *out);

    /* D [submit] A host view of a range of a host-visible heap; valid until unmap, which makes writes visible. Default:
     * UNSUPPORTED, the core stages. */
    infer_status (*buf_map)(infer_device *dev, const infer_range *range, void **out);
    void (*buf_unmap)(infer_device *dev, const infer_range *range, void *p);
    /* O [setup] Makes host memory (a file mapping, say; read-only allowed) a buffer without a copy. */
    infer_status (*buf_import_host)(infer_device *dev, void *p, uint64_t bytes, infer_buffer **out);
    /* O [setup] Shares a buffer by a handle of one of INFER_HANDLE_*. */
    infer_status (*buf_export)(infer_device *dev, infer_buffer *buf, uint32_t kind, int64_t *handle);
    infer_status (*buf_import)(infer_device *dev, uint32_t kind, int64_t handle, uint64_t bytes, infer_buffer **out);

    /* D [query] How a weight will lie in memory. Default, also for a weight that is answered UNSUPPORTED: canonical, in
     * place where buf_import_host exists. */
    infer_status (*weight_plan)(infer_device *dev, const infer_weight_desc *desc, infer_weight_plan *out);
    /* D [setup] Makes images that are not canonical (a canonical one in the source's format is copied by the core,
     * where the plan does not say STREAM; without weight_begin there are no others). Streams the source (planes data,
     * scale, zero of the shard, which the core has cut; each in order of its bytes, in pieces that may end anywhere)
     * into the image at dst, which has plan.packed_bytes; conversion may wait until finish. The image is
     * position-independent: it may be copied to another aligned place and bound there. finish completes it on return;
     * destroy ends the stream in any state. */
    infer_status (*weight_begin)(infer_device *dev, const infer_weight_desc *desc, const infer_weight_plan *plan,
                                 const infer_range *dst, infer_weight **out);
    infer_status (*weight_append)(infer_weight *w, uint32_t plane, const void *data, uint64_t bytes);
    infer_status (*weight_finish)(infer_weight *w);
    void (*weight_destroy)(infer_weight *w);

    /* D [setup] A 64-bit timeline, starting at 0. Default: the host's software timelines. */
    infer_status (*tl_create)(infer_device *dev, infer_timeline **out);
    void (*tl_destroy)(infer_device *dev, infer_timeline *tl);
    infer_status (*tl_query)(infer_timeline *tl, uint64_t *value); /* [query] a failed one returns its failure */
    infer_status (*tl_wait)(infer_timeline *tl, uint64_t value, uint64_t timeout_ns); /* [query] OK, PENDING, failure */
    infer_status (*tl_signal_host)(infer_timeline *tl, uint64_t value);               /* [query] the host's signal */

    /* D [submit] Copies bytes, read during the call, into a range. Default: through cmd_copy. */
    infer_status (*cmd_update)(infer_queue *queue, const infer_range *dst, const void *data, uint64_t bytes);

    /* D [query] How this device holds a cache group. Default: canonical, any block size, plain float formats. */
    infer_status (*kv_query)(infer_device *dev, const infer_kv_spec *spec, infer_kv_answer *out);

    /* O [setup] Marks the node sets to be compiled whole: set_of[i] = set number of node i, or -1. Memory is planned
     * afterwards: here a slot and an offset only tell which operands are the same. A run of nodes of one set becomes
     * one prog_build, and so does each run between. */
    infer_status (*prog_claim)(infer_device *dev, const infer_graph_view *view, int32_t *set_of);
    /* D [setup] Builds a part for a bucket. Default: the stock program, a list of cmd_op. */
    infer_status (*prog_build)(infer_device *dev, const infer_graph_view *view, infer_program **out,
                               infer_program_info *info);
    /* D [setup] Fixes the slots' ranges and captures; all slow work is here. */
    infer_status (*prog_instantiate)(infer_program *prog, infer_queue *queue, const infer_range *slots,
                                     uint32_t n_slots, infer_exec **out);
    /* D [setup] Changes a rebindable slot; INFER_REBUILD: instantiate anew. */
    infer_status (*prog_update)(infer_exec *exec, uint32_t slot, const infer_range *range);
    /* D [submit] Enqueues one run. No allocation, no compilation, no waiting. */
    infer_status (*prog_submit)(infer_exec *exec, infer_queue *queue);
    void (*exec_destroy)(infer_exec *exec);
    void (*prog_destroy)(infer_program *prog);
    /* O [setup] The compiled form as bytes (host memory by host->alloc), and back; load refuses another device or
     * driver. */
    infer_status (*prog_save)(infer_program *prog, void **data, uint64_t *bytes);
    infer_status (*prog_load)(infer_device *dev, const void *data, uint64_t bytes, infer_program **out);

    /* O [setup] Groups of same-backend devices for collectives; the id (128 bytes) is made by one rank. */
    infer_status (*comm_unique_id)(infer_device *dev, uint8_t id[128]);
    infer_status (*comm_create)(infer_device *dev, const uint8_t id[128], uint32_t rank, uint32_t n, infer_comm **out);
    void (*comm_destroy)(infer_comm *comm);

    /* O [query] Timings of ops; a second begin drops what was not read. */
    infer_status (*prof_begin)(infer_device *dev);
    infer_status (*prof_read)(infer_device *dev, infer_prof_record *out, uint32_t cap, uint32_t *n);
} infer_backend_ops;

/* ---- The plugin ------------------------------------------------------------------------------------------ */

#define INFER_SANITIZER_NONE    0u
#define INFER_SANITIZER_ADDRESS 1u
#define INFER_SANITIZER_THREAD  2u

typedef struct infer_plugin_desc {
    uint32_t struct_size;
    uint32_t abi_major, abi_minor; /* what it was written for */
    uint32_t min_host_minor;       /* least host minor it can run with */
    const char *name;              /* "cpu"; also --enable-NAME */
    const char *vendor;
    const char *version;
    const char *build_id;      /* changes whenever results or speed may */
    const char *device_prefix; /* device ids are PREFIX0, PREFIX1, … */
    const char *visibility; /* environment variable that the host is to honour, or NULL (the vendor's library does) */
    uint64_t features;
    int32_t rank;       /* preference when two backends show one device: the higher wins */
    uint32_t sanitizer; /* INFER_SANITIZER_* */
    const infer_backend_ops *ops;
    uint64_t reserved[8];
} infer_plugin_desc;

/* The host's supported range. */
typedef struct infer_abi_range {
    uint32_t struct_size;
    uint32_t major;
    uint32_t minor_min, minor_max;
} infer_abi_range;

/* The one symbol that a module exports. Pure: touches no hardware, may be called often. NULL: no common ABI; the reason
 * goes to host->log. The descriptor lives as long as the module. */
typedef const infer_plugin_desc *(*infer_plugin_query_fn)(const infer_host *host, const infer_abi_range *range);
INFER_PLUGIN_EXPORT const infer_plugin_desc *infer_plugin_query(const infer_host *host, const infer_abi_range *range);

#ifdef __cplusplus
}
#endif
#endif
