/*
 * The OpenCL backend, what its files share: objects, the launch record between ops and queues, and who does what. See
 * docs/design/opencl.md. SPDX-License-Identifier: Apache-2.0
 */
#ifndef OCL_H
#define OCL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <infer/backend.h>

#include "cl_api.h"
#include "launch/launch.h"

enum {
    OCL_BIND_ALIGN = 64, /* of offsets in bindings */
    OCL_MAX_MEM = 16,    /* buffers of a kernel */
    OCL_MAX_BLOCKS = 3,  /* parameter blocks of a kernel */
    OCL_MAX_LOCAL = 2,   /* local-memory arguments of a kernel */
    OCL_MAX_PARAMS = 800 /* bytes of a kernel's parameter blocks; with buffers every driver takes 1024 */
};

/* How kernels are cut, by type of device. Kernels get these as build options; what a GPU's work-group does with lanes,
 * a CPU's work-item does in a loop. */
typedef struct ocl_tune {
    uint32_t lanes;      /* of a work-group */
    uint32_t row_lanes;  /* of one that reduces a long row: norms, softmax, sampling */
    uint32_t attn_lanes; /* of one that walks a row's keys */
    uint32_t each;       /* elements of a work-item that works on elements */
    uint32_t chunk;      /* keys that it takes at a time, if it is one work-item; else as many as lanes */
    uint32_t mv_lanes;   /* along K */
    uint32_t mv_columns; /* side by side in a work-group */
    uint32_t mv_serial;  /* columns an item or lane */
    uint32_t mv_rows;    /* rows that share an unpacked weight */
    uint32_t mv_groups;  /* work-groups of a compute unit where each makes a norm first */
    uint32_t tile;       /* edge of an output tile, 0: no tiles */
    uint32_t tile_from;  /* rows from which tiles are used, where results may depend on the batch */
} ocl_tune;

/* A built program; programs of one device form a list that only grows until the device is closed. */
typedef struct ocl_program {
    struct ocl_program *next;
    cl_program program;  /* NULL: it cannot be */
    infer_status status; /* of the build; UNSUPPORTED is kept, so that it is tried once */
    uint32_t lanes;      /* LANES it is built for: of long rows what the driver gives */
    char key[192];
} ocl_program;

/* Pinned memory for small transfers, and those that are under way, in order (ocl_stage.c). */
enum { OCL_STAGE_BYTES = 16 << 10, OCL_STAGE_PLACES = 64 };
typedef struct ocl_transfer {
    uint64_t queue, number; /* which of the queue's */
    void *host;             /* where the bytes go once they are there; NULL: nowhere, they went to the device */
    uint32_t bytes, place;
} ocl_transfer;

typedef struct ocl_stage {
    cl_mem mem;
    uint8_t *at; /* mapped while the device is open */
    pthread_mutex_t mu;
    /* under mu: */
    uint64_t free; /* a bit for each place */
    uint32_t n;
    ocl_transfer way[OCL_STAGE_PLACES];
} ocl_stage;

struct infer_device {
    const infer_host *host;
    const cl_api *cl;
    cl_device_id id;
    cl_context context;
    cl_command_queue setup; /* for allocation and mapping */
    cl_mem dummy;           /* stands for absent operands */
    const ocl_tune *tune;
    int is_cpu, unified, planes, merge; /* planes: weights are taken apart; merge: launches of several nodes */
    uint64_t memory, max_buffer, local_bytes;
    uint32_t units;
    uint32_t row_lanes, attn_lanes; /* as tune says, or what the device takes */
    int32_t tile_from;              /* rows from which tiles are used */
    uint32_t fold, max_group;       /* groups of a launch along its second axis; work-items of a group, of any kernel */
    char name[96], driver[96];
    const char *cache_dir;           /* NULL: no cache */
    _Atomic uint64_t used, n_queues; /* bytes; queues that there were */
    ocl_stage stage;
    pthread_mutex_t mu; /* of programs */
    ocl_program *programs;
    _Atomic infer_status failed; /* a failure of device radius */
};

struct infer_buffer {
    cl_mem mem;
    uint64_t bytes;
    int imported;
};

/* A kernel object with its arguments: one for each user, as setting arguments is not thread-safe. */
typedef struct ocl_kernel {
    struct ocl_kernel *next;
    const ocl_program *program;
    const char *name;
    cl_kernel kernel;
} ocl_kernel;

struct infer_queue {
    infer_device *dev;
    cl_command_queue q;
    uint64_t id, staged; /* the latter: transfers by way of pinned memory so far */
    ocl_kernel *kernels; /* those that cmd_op has used */
};

/* One kernel run: what an op's launch function emits. Arguments in order: buffers, parameter blocks, local memory. */
typedef struct ocl_launch {
    const ocl_program *program;
    const char *name;
    uint32_t n_mem, n_local, n_blocks, dims;
    uint32_t block_bytes[OCL_MAX_BLOCKS]; /* they lie one behind the other in params */
    cl_mem mem[OCL_MAX_MEM];
    size_t local[OCL_MAX_LOCAL];
    size_t global[3], group[3];
    uint64_t params[OCL_MAX_PARAMS / 8];
} ocl_launch;

/* Where launches go: enqueued now, or kept. */
typedef struct ocl_sink {
    infer_status (*take)(void *ctx, const ocl_launch *l);
    void *ctx;
    /* Launches of the node before and of the one before that which this node's launches do; NULL: none. */
    const ocl_launch *held, *held2;
} ocl_sink;

/* ---- ocl_plugin.c ---- */

/* Reports a failure's cause, formatted, and returns s. */
infer_status ocl_fail(const infer_host *host, infer_status s, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The status of an OpenCL error met while doing `what`: otherwise s, or the device's radius where the device is gone.
 * CL_SUCCESS gives INFER_OK. */
infer_status ocl_status(infer_device *dev, cl_int e, infer_status s, const char *what);

/* ---- ocl_probe.c ---- */

/* The device of a probe index; NULL: there is none. */
cl_device_id ocl_device_at(const cl_api *cl, uint32_t index);
infer_status ocl_probe(const infer_host *host, infer_device_info *out, uint32_t cap, uint32_t *n);
/* The loaded functions, or NULL with the cause in why. [setup] */
const cl_api *ocl_api(char *why, size_t cap);

/* ---- ocl_device.c ---- */

infer_status ocl_dev_open(const infer_host *host, uint32_t index, infer_device **out);
void ocl_dev_close(infer_device *dev);
infer_status ocl_dev_props(infer_device *dev, infer_device_props *out);
infer_status ocl_dev_heaps(infer_device *dev, infer_heap_info *out, uint32_t cap, uint32_t *n);
infer_status ocl_dev_heap_stats(infer_device *dev, uint32_t heap, infer_heap_stats *out);
infer_status ocl_dev_health(infer_device *dev, infer_health *out);
/* A string or a 64-bit figure of a device; "" or 0 where the driver does not say. */
void ocl_text(const cl_api *cl, cl_device_id id, cl_device_info what, char *out, size_t cap);
uint64_t ocl_number(const cl_api *cl, cl_device_id id, cl_device_info what);

/* ---- ocl_mem.c ---- */

infer_status ocl_buf_alloc(infer_device *dev, uint32_t heap, uint64_t bytes, infer_buffer **out);
void ocl_buf_free(infer_device *dev, infer_buffer *buf);
infer_status ocl_kv_query(infer_device *dev, const infer_kv_spec *spec, infer_kv_answer *out);
/* Bytes that a CPU-type device may still take without the host running out; UINT64_MAX: unknown. */
uint64_t ocl_host_memory_left(void);

/* ---- ocl_stage.c ---- */

infer_status ocl_stage_open(infer_device *dev);
void ocl_stage_close(infer_device *dev);
/* A non-blocking read by way of pinned memory. 0: it is not small, or there is no place. [submit] */
int ocl_stage_read(infer_queue *q, cl_mem mem, uint64_t from, void *host, uint64_t bytes, cl_int *e);
/* The queue's transfers up to a number have ended: their bytes go to the host where good, their places are free. */
void ocl_stage_land(infer_device *dev, uint64_t queue, uint64_t staged, int good);
/* Whether bytes of the queue are on their way to this memory. */
int ocl_stage_meets(const infer_queue *q, const uint8_t *host, uint64_t bytes);
infer_status ocl_cmd_update(infer_queue *queue, const infer_range *dst, const void *data, uint64_t bytes);

/* ---- ocl_weight.c ---- */

/* The layout of a weight whose rows have their blocks' parts apart. */
#define OCL_LAYOUT_PLANES 0x4F430001u
infer_status ocl_weight_plan(infer_device *dev, const infer_weight_desc *d, infer_weight_plan *out);
infer_status ocl_weight_begin(infer_device *dev, const infer_weight_desc *d, const infer_weight_plan *plan,
                              const infer_range *dst, infer_weight **out);
infer_status ocl_weight_append(infer_weight *w, uint32_t plane, const void *data, uint64_t bytes);
infer_status ocl_weight_finish(infer_weight *w);
void ocl_weight_destroy(infer_weight *w);

/* ---- ocl_queue.c, ocl_timeline.c ---- */

infer_status ocl_queue_create(infer_device *dev, uint32_t classes, infer_queue **out);
void ocl_queue_destroy(infer_device *dev, infer_queue *queue);
infer_status ocl_queue_wait(infer_queue *queue, infer_timeline *tl, uint64_t value);
infer_status ocl_queue_signal(infer_queue *queue, infer_timeline *tl, uint64_t value);
infer_status ocl_cmd_copy(infer_queue *queue, const infer_copy_end *dst, const infer_copy_end *src,
                          const infer_copy_region *regions, uint32_t n);
infer_status ocl_cmd_fill(infer_queue *queue, const infer_range *dst, uint32_t pattern, uint32_t pattern_bytes);
infer_status ocl_tl_create(infer_device *dev, infer_timeline **out);
void ocl_tl_destroy(infer_device *dev, infer_timeline *tl);
infer_status ocl_tl_query(infer_timeline *tl, uint64_t *value);
infer_status ocl_tl_wait(infer_timeline *tl, uint64_t value, uint64_t timeout_ns);
infer_status ocl_tl_signal_host(infer_timeline *tl, uint64_t value);

/* ---- ocl_build.c ---- */

/* The program of these sources (a bit for each OCL_SOURCE_*) and options, built once; thread-safe. */
#define OCL_LEAST_LANES   64u /* of a work-group, where a kernel gets less than it is to have */
#define OCL_SOURCE_EACH   1u
#define OCL_SOURCE_ROWS   2u
#define OCL_SOURCE_KV     4u
#define OCL_SOURCE_ATTN   8u
#define OCL_SOURCE_MOE    16u
#define OCL_SOURCE_MATMUL 32u
#define OCL_SOURCE_SAMPLE 64u
#define OCL_SOURCE_OPS    (OCL_SOURCE_EACH | OCL_SOURCE_KV | OCL_SOURCE_MOE)
#define OCL_SOURCE_LONG   (OCL_SOURCE_ROWS | OCL_SOURCE_SAMPLE | OCL_SOURCE_ATTN) /* with row_lanes, attn_lanes */
infer_status ocl_program_get(infer_device *dev, uint32_t sources, const char *options, const ocl_program **out);
void ocl_programs_free(infer_device *dev);
/* The program of the ops that have no build options of their own, and those of long rows, with row_lanes: reductions
 * and sampling, apart, as some drivers do not get the latter done. */
infer_status ocl_program_ops(infer_device *dev, const ocl_program **out);
infer_status ocl_program_rows(infer_device *dev, const ocl_program **out);
infer_status ocl_program_sample(infer_device *dev, const ocl_program **out);
/* A cache of compiled programs: one file a key (ocl_cache.c). Reading gives memory of host->alloc; 0: there is none, or
 * a broken one. Writing fails in silence. */
int ocl_cache_read(infer_device *dev, const char *key, void **data, uint64_t *bytes);
void ocl_cache_write(infer_device *dev, const char *key, const void *data, uint64_t bytes);
/* 64-bit FNV-1a of a string or of bytes, from a previous value or OCL_HASH_START. */
#define OCL_HASH_START 0xCBF29CE484222325u
uint64_t ocl_hash(uint64_t h, const void *p, uint64_t n);

/* ---- ocl_ops.c ---- */

infer_status ocl_op_query(infer_device *dev, const infer_op_desc *ops, uint32_t op_size, uint32_t n,
                          infer_op_answer *out, uint32_t answer_size);
infer_status ocl_cmd_op(infer_queue *queue, const infer_op_desc *op, const infer_op_args *args);
/* Emits an op's launches into sink. */
infer_status ocl_op_emit(infer_device *dev, const infer_op_desc *op, const infer_op_args *args, const ocl_sink *sink);
/* A kernel object for a launch, and its arguments. */
infer_status ocl_kernel_make(infer_device *dev, const ocl_launch *l, cl_kernel *out);
infer_status ocl_kernel_bind(infer_device *dev, cl_kernel k, const ocl_launch *l);
infer_status ocl_kernel_run(infer_queue *queue, cl_kernel k, const ocl_launch *l);

/* A fill that begins at no multiple of its pattern. */
infer_status ocl_fill_bytes(infer_queue *queue, const infer_range *dst, uint32_t pattern, uint32_t pattern_bytes);

/* A launch with the operands `which` (as launch_operands reads them) and a parameter block. */
void ocl_launch_init(ocl_launch *l, const launch_call *c, const ocl_program *program, const char *name,
                     const int *which, uint32_t n, const void *params, uint32_t bytes);
/* Another parameter block. */
void ocl_launch_block(ocl_launch *l, const void *params, uint32_t bytes);
/* Emits l over a range of work-groups. */
infer_status ocl_emit(launch_call *c, ocl_launch *l, size_t g0, size_t g1, size_t g2, size_t l0, size_t l1);
/* ---- ops by subject ---- */

#define OCL_OP(name)                                                                                                   \
    void ocl_check_##name(infer_device *dev, const infer_op_desc *op, infer_op_answer *a);                             \
    infer_status ocl_run_##name(launch_call *c)
OCL_OP(matmul); /* matmul, moe_matmul, lora: ocl_matmul.c */
OCL_OP(qkv);
OCL_OP(gated_mlp);
/* Whether the launches of a product make the norm of its x by themselves, which is the launch that the sink holds. */
int ocl_makes_norm(infer_device *dev, const infer_op_desc *norm, const infer_op_desc *product);
/* Whether three products are one launch; whether that launch can rotate and write what it makes, as these two ops
 * behind it do (ocl_rope.c). */
int ocl_joins_qkv(const infer_device *dev, const infer_op_desc *qkv);
int ocl_makes_ropes(infer_device *dev, const infer_op_desc *qkv, const infer_op_desc *rope, const infer_op_desc *write);
OCL_OP(route); /* moe_route: ocl_moe.c */
OCL_OP(ropes); /* kv_write, rope_kv_write: ocl_rope.c */
OCL_OP(attn);  /* paged, latent, dense: ocl_attn.c */
/* Local memory of a work-group of so many lanes, for queries of d elements and values of dv. */
uint64_t ocl_attn_local(const infer_device *dev, uint32_t lanes, int64_t d, int64_t dv);
OCL_OP(sample); /* ocl_sample.c */

/* ---- ocl_prog.c ---- */

infer_status ocl_prog_build(infer_device *dev, const infer_graph_view *view, infer_program **out,
                            infer_program_info *info);
infer_status ocl_prog_instantiate(infer_program *prog, infer_queue *queue, const infer_range *slots, uint32_t n_slots,
                                  infer_exec **out);
infer_status ocl_prog_update(infer_exec *exec, uint32_t slot, const infer_range *range);
infer_status ocl_prog_submit(infer_exec *exec, infer_queue *queue);
void ocl_exec_destroy(infer_exec *exec);
void ocl_prog_destroy(infer_program *prog);

#endif
