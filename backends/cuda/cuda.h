/*
 * The CUDA backend, what its files share: objects, the launch record between ops and queues, and who does what. See
 * docs/design/cuda.md. SPDX-License-Identifier: Apache-2.0
 */
#ifndef CUDA_H
#define CUDA_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <infer/backend.h>

#include "cu_api.h"
#include "cuda_kernels.h"
#include "launch/launch.h"

enum {
    CUDA_BIND_ALIGN = 256,  /* of offsets in bindings, and what every allocation is aligned to */
    CUDA_MAX_PTR = 16,      /* pointers that a kernel takes */
    CUDA_MAX_PARAMS = 1024, /* bytes of a kernel's parameter block; with the pointers well below the 4 KiB of all */
    CUDA_MAX_WAITS = 16,    /* waits of a queue that may be unreached at a time */
    CUDA_LOOK_NS = 1000000  /* how often a wait asks for failures, which costs microseconds */
};

/* What the device says of itself, for who cuts kernels. */
typedef struct cuda_tune {
    uint32_t sms, warp, l2_bytes;
    uint32_t cc; /* compute capability: 90 for 9.0 */
    uint32_t shared_per_block, shared_per_sm, registers_per_sm, threads_per_sm;
} cuda_tune;

/* ---- Pinned staging (cuda_mem.c) ---- */

/* A ring of pinned segments that bytes on their way between device and pageable memory pass. A segment is given again
 * when the event behind its last use is complete. */
enum { CUDA_SEGMENT = 1 << 20, CUDA_SEGMENTS = 8 };
typedef struct cuda_ring {
    uint8_t *base;
    uint32_t at, used; /* the segment that is being filled */
    cu_event done[CUDA_SEGMENTS];
    uint8_t busy[CUDA_SEGMENTS];
} cuda_ring;

/* Bytes of a small copy to the host, on their way through the ring: they leave it once somebody has seen reached what
 * the queue signalled behind the copy. So such a copy need not wait for its bytes. */
enum { CUDA_LANDING = 64 << 10, CUDA_LANDINGS = 32 };
typedef struct cuda_landing {
    uint8_t *host;
    const uint8_t *pinned;
    uint64_t bytes, value;
    infer_timeline *tl; /* NULL: nothing is signalled behind it yet */
} cuda_landing;

/* What a stream of weights goes through (cuda_weight.c): two lanes, each a stream with pinned and device memory for a
 * batch of rows, so that a batch is filled while the other is copied and packed. A lane is free when its event is
 * complete. */
typedef struct cuda_lane {
    cu_stream stream;
    cu_event done;
    uint8_t *pinned;
    cu_deviceptr rows;
    int busy;
} cuda_lane;

enum { CUDA_LANES = 2 };
typedef struct cuda_packer {
    struct cuda_packer *next; /* of those that no weight uses */
    uint64_t bytes;           /* of a lane */
    cuda_lane lanes[CUDA_LANES];
} cuda_packer;

/* ---- Launches ---- */

/* One kernel run: what an op emits. The kernel's arguments are n_ptr device pointers, then the parameter block by value
 * (none where params_bytes is 0). */
typedef struct cuda_launch {
    uint32_t kernel; /* CUDA_K_* */
    uint32_t n_ptr, params_bytes, shared;
    uint32_t late; /* it begins after its predecessor's end, also where its kernel could earlier */
    uint32_t grid[3], block[3];
    cu_deviceptr ptr[CUDA_MAX_PTR];
    uint64_t params[CUDA_MAX_PARAMS / 8];
} cuda_launch;

/* ---- Objects ---- */

/* 64 timelines' words in one page of pinned memory, a cache line each. */
typedef struct cuda_words {
    struct cuda_words *next;
    uint8_t *host;
    cu_deviceptr at;
    uint64_t used; /* bits */
} cuda_words;

/* A norm that so many of the next launches make by themselves. */
typedef struct cuda_norm {
    uint32_t kept;
    lp_norm p;
    cu_deviceptr x, w;
} cuda_norm;

/* Rotations and cache writes that a later op's launch is to do, too. */
typedef struct cuda_ropes {
    uint32_t kept; /* ops: 1 a rotation, 2 the write behind it too */
    cuda_launch l; /* theirs */
} cuda_ropes;

/* A value that a stream was told to wait for. */
typedef struct cuda_wait {
    infer_timeline *tl;
    uint64_t value;
} cuda_wait;

struct infer_queue {
    infer_queue *next; /* of all queues of the process */
    uint64_t serial;
    infer_device *dev;
    cu_stream stream;
    cuda_ring ring;
    cu_event settled;     /* for the few waits that are not a segment's */
    cu_deviceptr between; /* a segment of device memory for copies onto themselves */
    _Atomic infer_status failed;
    uint32_t n_waits;
    cuda_wait waits[CUDA_MAX_WAITS]; /* perhaps unreached; under the lock of cuda_timeline.c */
    uint32_t n_landings;
    cuda_landing landings[CUDA_LANDINGS]; /* in order of their copies; under the same lock */
    const uint8_t *joined;                /* recording: of each op, as in cuda_prog.c */
    uint32_t op;                          /* number of the op that is recorded */
    cuda_norm norm;
    cuda_ropes ropes;
    int handed; /* the next product by cuda_gemm.c finds its x in panels */
};

struct infer_device {
    infer_device *next; /* of all open devices */
    const infer_host *host;
    const cu_api *cu;
    cu_device id;
    uint32_t index;
    cu_context context;  /* the primary one */
    infer_queue capture; /* a bare stream for recording programs */
    cu_module modules[CUDA_N_FILES];
    cu_function kernels[CUDA_N_KERNELS]; /* NULL: this device has no code for it */
    cuda_tune tune;
    uint64_t memory;
    double read_bytes_per_s;
    char name[96];
    _Atomic uint64_t used;
    _Atomic infer_status failed; /* a failure of device radius or more */
    atomic_flag has_cause;
    char cause[200];    /* what failed, once `failed` is set */
    pthread_mutex_t mu; /* of words and packers */
    cuda_words *words;
    cuda_packer *packers;
    uint32_t n_weights; /* streams under way */
    int attn_many;      /* prompts by kernels/attn_many.cu */
    int packed;         /* weights are packed where they can be */
    int panels;         /* x of products of many rows comes in their layout where it can */
    int early;          /* kernels may begin before their predecessor ends */
    int deterministic;  /* a row's result may not depend on which other rows run with it */
};

struct infer_buffer {
    infer_device *dev;
    cu_deviceptr at;
    uint64_t bytes;
};

struct infer_timeline {
    infer_device *dev;
    _Atomic uint64_t *word; /* pinned; the device writes it too */
    cu_deviceptr at;
    cuda_words *page;
    uint32_t bit;
    _Atomic uint64_t by;        /* serial of the queue that signals last */
    _Atomic uint64_t submitted; /* the highest value that a queue will bring */
    _Atomic uint64_t looked_ns; /* when its queue was last asked for a failure */
    uint64_t kept;              /* what it had reached when it failed */
    _Atomic infer_status failed;
};

/* ---- cuda_plugin.c ---- */

/* Reports a failure's cause, formatted, and returns s. */
infer_status cuda_fail(const infer_host *host, infer_status s, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The status of a driver's result met while doing `what`: otherwise s, or the radius of what the result says is gone
 * (marked in the device). CU_OK gives INFER_OK. */
infer_status cuda_status(infer_device *dev, cu_result e, infer_status s, const char *what);
/* Reports again why the device failed, or that a queue did, and returns s. */
infer_status cuda_failed_before(infer_device *dev, infer_status s);
/* Makes the device's context the calling thread's. Before every other call of the driver. */
void cuda_enter(const infer_device *dev);

/* ---- cuda_probe.c ---- */

infer_status cuda_probe(const infer_host *host, infer_device_info *out, uint32_t cap, uint32_t *n);
/* The loaded functions, or NULL with the result in *e and the cause in why. [setup] */
const cu_api *cuda_api(const infer_host *host, cu_result *e, char *why, size_t cap);
/* An attribute; 0 where the driver does not say. */
int cuda_attribute(const cu_api *cu, cu_device id, cu_attribute what);
/* Why the backend cannot use a device; NULL: it can. */
const char *cuda_unusable(const cu_api *cu, cu_device id);

/* ---- cuda_device.c ---- */

infer_status cuda_dev_open(const infer_host *host, uint32_t index, infer_device **out);
void cuda_dev_close(infer_device *dev);
infer_status cuda_dev_props(infer_device *dev, infer_device_props *out);
infer_status cuda_dev_heaps(infer_device *dev, infer_heap_info *out, uint32_t cap, uint32_t *n);
infer_status cuda_dev_heap_stats(infer_device *dev, uint32_t heap, infer_heap_stats *out);
infer_status cuda_dev_health(infer_device *dev, infer_health *out);
infer_status cuda_dev_edge(infer_device *dev, uint32_t peer, infer_edge_info *out);

/* ---- cuda_module.c ---- */

/* Loads every file's image and looks the kernels up. A file without code for this device leaves its kernels NULL. */
infer_status cuda_kernels_load(infer_device *dev);
void cuda_kernels_unload(infer_device *dev);
/* Whether a kernel may begin before its predecessor ends. */
int cuda_kernel_early(uint32_t kernel);

/* ---- cuda_mem.c ---- */

infer_status cuda_buf_alloc(infer_device *dev, uint32_t heap, uint64_t bytes, infer_buffer **out);
void cuda_buf_free(infer_device *dev, infer_buffer *buf);
infer_status cuda_kv_query(infer_device *dev, const infer_kv_spec *spec, infer_kv_answer *out);
infer_status cuda_ring_open(infer_queue *q);
void cuda_ring_close(infer_queue *q);
/* bytes (at most a segment) of pinned memory, whose next use is on q. Waits for the device where all is in use. */
infer_status cuda_ring_take(infer_queue *q, uint64_t bytes, uint8_t **out);
/* Ends the segment being filled: its event comes behind the work so far. *segment: which it was. */
infer_status cuda_ring_turn(infer_queue *q, uint32_t *segment);

/* ---- cuda_queue.c, cuda_copy.c ---- */

infer_status cuda_queue_create(infer_device *dev, uint32_t classes, infer_queue **out);
void cuda_queue_destroy(infer_device *dev, infer_queue *queue);
infer_status cuda_queue_wait(infer_queue *queue, infer_timeline *tl, uint64_t value);
infer_status cuda_queue_signal(infer_queue *queue, infer_timeline *tl, uint64_t value);
/* Before a submission: the thread's context, and the queue's failure if it has one. */
infer_status cuda_queue_enter(infer_queue *queue);
/* Waits until event is complete, or the queue fails. */
infer_status cuda_queue_await(infer_queue *queue, cu_event event);
infer_status cuda_cmd_copy(infer_queue *queue, const infer_copy_end *dst, const infer_copy_end *src,
                           const infer_copy_region *regions, uint32_t n);
infer_status cuda_cmd_update(infer_queue *queue, const infer_range *dst, const void *data, uint64_t bytes);
infer_status cuda_cmd_fill(infer_queue *queue, const infer_range *dst, uint32_t pattern, uint32_t pattern_bytes);

/* ---- cuda_timeline.c ---- */

infer_status cuda_tl_create(infer_device *dev, infer_timeline **out);
void cuda_tl_destroy(infer_device *dev, infer_timeline *tl);
infer_status cuda_tl_query(infer_timeline *tl, uint64_t *value);
infer_status cuda_tl_wait(infer_timeline *tl, uint64_t value, uint64_t timeout_ns);
infer_status cuda_tl_signal_host(infer_timeline *tl, uint64_t value);
/* Frees the pages; all timelines of the device are gone. */
void cuda_words_free(infer_device *dev);
/* OK: reached, no stream need wait. PENDING: noted as a wait of q, whose stream is to wait on tl->at. Else the
 * timeline's failure, or UNSUPPORTED where q has too many waits. */
infer_status cuda_wait_note(infer_queue *q, infer_timeline *tl, uint64_t value);
/* A queue enters and leaves the list that timelines look for failures in. */
void cuda_queue_list(infer_queue *q);
void cuda_queue_unlist(infer_queue *q);
/* Whether the queue's stream, or what it waits for, has failed. Asks the driver. */
infer_status cuda_queue_state(infer_queue *q);
/* Whether one more landing has room. It is added by the thread that submits to q. */
int cuda_land_room(infer_queue *q);
void cuda_land_add(infer_queue *q, void *host, const uint8_t *pinned, uint64_t bytes);
/* A signal was submitted to q: what has none behind it has this one. */
void cuda_land_signal(infer_queue *q, infer_timeline *tl, uint64_t value);
/* Whether bytes of host memory are a landing's of q. */
int cuda_land_over(infer_queue *q, const void *host, uint64_t bytes);
/* q's copies from these bytes of the ring are done: they land. NULL: all of q's copies. */
void cuda_land_done(infer_queue *q, const uint8_t *pinned, uint64_t bytes);
/* Lets a stream run out that waits for what will not come. 1: the stream is done, or lost. */
int cuda_queue_release(infer_queue *q);
/* Between two looks at something that started at start_ns: returns at once, or sleeps for at most left_ns. */
void cuda_pause(const infer_host *host, uint64_t start_ns, uint64_t left_ns);

/* ---- cuda_weight.c ---- */

/* Whether this device packs weights of a format, and has the kernels that read them. */
int cuda_packs(const infer_device *dev, infer_format f);
infer_status cuda_weight_plan(infer_device *dev, const infer_weight_desc *desc, infer_weight_plan *out);
infer_status cuda_weight_begin(infer_device *dev, const infer_weight_desc *desc, const infer_weight_plan *plan,
                               const infer_range *dst, infer_weight **out);
infer_status cuda_weight_append(infer_weight *w, uint32_t plane, const void *data, uint64_t bytes);
infer_status cuda_weight_finish(infer_weight *w);
void cuda_weight_destroy(infer_weight *w);
/* Frees what weights went through; none is under way. */
void cuda_packers_free(infer_device *dev);

/* ---- cuda_ops.c ---- */

infer_status cuda_op_query(infer_device *dev, const infer_op_desc *ops, uint32_t op_size, uint32_t n,
                           infer_op_answer *out, uint32_t answer_size);
infer_status cuda_cmd_op(infer_queue *queue, const infer_op_desc *op, const infer_op_args *args);
/* A launch of kernel k with the operands `which` (as launch_operands reads them) and a parameter block. */
void cuda_launch_init(cuda_launch *l, const launch_call *c, uint32_t k, const int *which, uint32_t n,
                      const void *params, uint32_t bytes);
/* Puts it on the call's stream: it runs, or is recorded where the stream is being captured. An empty grid is nothing.
 */
infer_status cuda_emit(launch_call *c, cuda_launch *l, uint32_t g0, uint32_t g1, uint32_t g2, uint32_t b0, uint32_t b1,
                       uint32_t b2);
/* ceil(a / b) as a grid's edge; those in y and z are at most CUDA_MAX_YZ, kernels walk the rest. */
enum { CUDA_MAX_YZ = 65535 };
uint32_t cuda_div_up(int64_t a, int64_t b);
uint32_t cuda_walked(int64_t n);

/* ---- ops by subject ---- */

#define CUDA_OP(name)                                                                                                  \
    void cuda_check_##name(infer_device *dev, const infer_op_desc *op, infer_op_answer *a);                            \
    infer_status cuda_run_##name(launch_call *c)
CUDA_OP(matmul); /* matmul, moe_matmul, lora: cuda_matmul.c */
CUDA_OP(qkv);
/* How many launches of the next op read its x; 0: not all of them, or not that norm, make a norm by themselves. */
uint32_t cuda_makes_norm(infer_device *dev, const infer_op_desc *norm, const infer_op_desc *next);
CUDA_OP(gated_mlp);
CUDA_OP(attn);   /* paged, latent, dense: cuda_attn.c */
CUDA_OP(sample); /* cuda_rows.c */
CUDA_OP(route);
infer_status cuda_run_rope(launch_call *c);
/* Emits the rotations that the call's queue keeps, if any. */
infer_status cuda_emit_ropes(launch_call *c);
/* Whether the launch of attention does a rotation of its queries and the write behind it, by their descriptors. */
int cuda_makes_ropes(infer_device *dev, const infer_op_desc *rope, const infer_op_desc *write,
                     const infer_op_desc *attn);
/* Whether attention may write its result as x of the product behind it, in `room` bytes, by their descriptors: the tile
 * of panels as a power of two, 0: no. */
uint32_t cuda_hands_over(infer_device *dev, const infer_op_desc *attn, const infer_op_desc *product, uint64_t room);

/* cuda_matmul.c: whether x of a product keeps all its bits. */
int cuda_is_exact(const infer_op_desc *op);

/* ---- cuda_gemm.c: products of many rows by packed weights ---- */

/* Whether a product of so many rows by that operand is its. */
int cuda_gemm_takes(const infer_device *dev, const infer_op_desc *op, uint32_t weight, int64_t rows);
/* Bytes of scratch for operand 0's rows and that weight; 0: not its. */
uint64_t cuda_gemm_scratch(const infer_device *dev, const infer_op_desc *op, uint32_t weight);
/* Whether that product keeps no more of x than bf16 has, by far (E4M3) or at all (BF16). */
int cuda_gemm_rounds(const infer_device *dev, const infer_op_desc *op, uint32_t weight, int64_t rows);
/* Whether who makes the x of that product may write it in panels, in `room` bytes, and which: where a row needs no
 * scale, which is known when all of it is. */
int cuda_gemm_panels(const infer_device *dev, const infer_op_desc *op, uint32_t weight, int64_t rows, uint64_t room,
                     lp_panels *out);
/* The launches of a product, or of several, as launch_fill_product and launch_fill_products have filled them in. at:
 * where the call's scratch is free. Where the queue says that x was handed over, it lies where its rows would, in
 * panels. panels: gate and up hand their result over so; NULL: rows. */
infer_status cuda_gemm_one(launch_call *c, infer_format f, const lp_mm *m, const int which[10], uint64_t at);
infer_status cuda_gemm_several(launch_call *c, infer_format f, const lp_mms *m, const int which[11], uint64_t at,
                               const lp_panels *panels);

/* ---- cuda_ring.c: products of few rows by packed weights ---- */

/* Whether there is a kernel for weights of that format. */
int cuda_rings(const infer_device *dev, infer_format f);
/* Whether rows of k elements fit what a block can hold. */
int cuda_ring_fits(const infer_device *dev, infer_format f, int64_t k);
/* Whether that operand is a packed weight. */
int cuda_ring_takes(const infer_device *dev, const infer_op_desc *op, uint32_t weight);
/* The launch of a product, or of several, as launch_fill_product and launch_fill_products have filled them in; with the
 * norm that the call's queue keeps, if it does. */
infer_status cuda_ring_one(launch_call *c, infer_format f, const lp_mm *m, const int which[10]);
/* g: the format of a third weight, as cuda_ring_mixes allows; else f. */
infer_status cuda_ring_several(launch_call *c, infer_format f, infer_format g, const lp_mms *m, const int which[11]);
/* Whether one launch takes the weights of a QKV of which only the third has another format. */
int cuda_ring_mixes(const infer_device *dev, const infer_op_desc *op);

/* ---- cuda_prog.c ---- */

infer_status cuda_prog_build(infer_device *dev, const infer_graph_view *view, infer_program **out,
                             infer_program_info *info);
infer_status cuda_prog_instantiate(infer_program *prog, infer_queue *queue, const infer_range *slots, uint32_t n_slots,
                                   infer_exec **out);
infer_status cuda_prog_update(infer_exec *exec, uint32_t slot, const infer_range *range);
infer_status cuda_prog_submit(infer_exec *exec, infer_queue *queue);
void cuda_exec_destroy(infer_exec *exec);
void cuda_prog_destroy(infer_program *prog);

#endif
