/*
 * sim, what its files share: configuration, objects and the records of a command stream.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_SIM_H
#define INFER_SIM_H

#include <pthread.h>
#include <stddef.h>

#include <infer/backend.h>

#define SIM_ALIGN       256u /* of allocations */
#define SIM_BIND_ALIGN  64u  /* of offsets in bindings */
#define SIM_MAX_BUFFERS 65536u
#define SIM_MAX_EPI     8u
#define SIM_MAX_ATTRS   256u
#define SIM_PROF_RING   4096u
#define SIM_LAYOUT      0x51u /* of matrices: sim_weight.c */
#define SIM_SLOT        4096u /* addresses in the window that one buffer's handle stands for */

typedef struct sim_config {
    double bytes_per_s, link_bytes_per_s, flops, launch_ns;
    uint64_t heap_bytes, stream_bytes, scratch_bytes;
    uint32_t block_multiple, epilogues, pace, native, private_weights;
    uint8_t denied[INFER_OP_COUNT];
} sim_config;

typedef struct sim_buffer {
    uint8_t *data; /* NULL: a free slot */
    uint64_t size;
} sim_buffer;

struct infer_timeline {
    infer_device *dev;
    infer_timeline *next;
    uint64_t value;
    infer_status failed;
};

struct infer_device {
    const infer_host *host;
    sim_config cfg;
    uint32_t index;
    uint32_t n_queues;
    uint8_t *window;     /* address space without memory: a buffer's handle is an address in it */
    sim_buffer *buffers; /* buffer i's handle is window + i * SIM_SLOT */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a timeline moved */
    /* under lock: */
    uint64_t used;
    uint32_t n_buffers, hint;
    double now_ns; /* the virtual clock: one engine, so commands of all queues follow one another in it */
    infer_timeline *timelines;
    infer_prof_record *prof; /* ring, NULL while not recording */
    uint32_t prof_first, prof_n;
};

struct infer_queue {
    infer_device *dev;
    uint32_t number;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more, room;
    /* under lock: */
    uint8_t *stream;     /* ring of commands */
    uint64_t head, tail; /* bytes ever run, bytes ever written; positions are modulo the size */
    int stop;
    /* the worker's: */
    infer_status failed; /* sticky: the first failure of a command; every later signal fails its timeline */
};

enum { CMD_SKIP, CMD_COPY, CMD_FILL, CMD_OP, CMD_WAIT, CMD_SIGNAL };

/* A record of the stream. Handles are resolved to device memory when it is written. */
typedef struct sim_cmd {
    uint32_t kind;
    uint32_t reserved;
    uint64_t bytes; /* of the whole record; a multiple of 64 */
} sim_cmd;

typedef struct sim_copy {
    sim_cmd cmd;
    uint8_t *dst, *src;
    uint32_t n, host_side;
    infer_copy_region regions[];
} sim_copy;

typedef struct sim_fill {
    sim_cmd cmd;
    uint8_t *dst;
    uint64_t size;
    uint32_t pattern, pattern_bytes;
} sim_fill;

typedef struct sim_sync {
    sim_cmd cmd;
    infer_timeline *tl;
    uint64_t value;
} sim_sync;

/* An op with everything that its descriptor points to. */
typedef struct sim_op {
    sim_cmd cmd;
    infer_op_desc desc;
    infer_tensor_desc tensors[INFER_OP_MAX_OPERANDS];
    infer_epilogue epilogue[SIM_MAX_EPI];
    uint64_t attrs[SIM_MAX_ATTRS / 8];
    void *data[INFER_OP_MAX_OPERANDS];
    int32_t *counts;
    uint8_t *scratch;
    const uint8_t *packed; /* image of operand 1, to be unpacked to data[1]; NULL: it lies there already */
} sim_op;

/* ---- sim.c ---- */

/* Hands the cause of failure s to the host; returns s. */
infer_status sim_fail(const infer_host *host, infer_status s, const char *text);
/* Copies at most `have` bytes of a producer's struct into ours of `size` bytes; what it lacks is zero. */
void sim_take(void *dst, uint32_t size, const void *src, uint32_t have);
/* Fills an answer struct of the caller, who may know fewer fields (or more): its first word is its size. */
void sim_put(void *dst, void *src, uint32_t size);
/* The device memory behind [offset, offset + size) of a handle, or NULL where this is no such place. */
uint8_t *sim_resolve(infer_device *dev, const infer_buffer *handle, uint64_t offset, uint64_t size);
/* Moves the clock on by a command of queue q and records it. */
void sim_tick(infer_queue *q, const char *name, double ns);
/* Room for a command of at most a quarter of the stream. Where there is none: NULL (the caller answers AGAIN), or waits
 * for it with may_wait; only the submitting thread calls this, and it may block. The queue's lock is held until sim_end
 * publishes the record. */
void *sim_begin(infer_queue *q, uint32_t kind, uint64_t bytes, int may_wait);
void sim_end(infer_queue *q, const void *record);

/* ---- sim_weight.c ---- */

/* A matrix, or the matrices of the experts, in bytes. */
typedef struct sim_matrix {
    uint64_t experts, rows, row_bytes;
} sim_matrix;
/* Reads them off a weight's shape and format; 0: not what sim_weight.c has a layout for. */
int sim_matrix_of(const infer_tensor_desc *t, sim_matrix *out);
uint64_t sim_matrix_bytes(const sim_matrix *m);
/* From an image in SIM_LAYOUT to the canonical matrix at dst. */
void sim_unpack(const sim_matrix *m, const uint8_t *image, uint8_t *dst);
infer_status sim_weight_plan(infer_device *dev, const infer_weight_desc *desc, infer_weight_plan *out);
infer_status sim_weight_begin(infer_device *dev, const infer_weight_desc *desc, const infer_weight_plan *plan,
                              const infer_range *dst, infer_weight **out);
infer_status sim_weight_append(infer_weight *w, uint32_t plane, const void *data, uint64_t bytes);
infer_status sim_weight_finish(infer_weight *w);
void sim_weight_destroy(infer_weight *w);

/* ---- sim_ops.c ---- */

/* Number of the op of this name (n bytes), as "deny_ops" takes them; INFER_OP_NONE where sim has none. */
infer_op_id sim_op_by_name(const char *name, size_t n);
/* Bytes of 256 elements; 0: an unknown format. */
uint32_t sim_format_bytes(infer_format format);
infer_status sim_op_query(infer_device *dev, const infer_op_desc *ops, uint32_t op_size, uint32_t n,
                          infer_op_answer *out, uint32_t answer_size);
infer_status sim_cmd_op(infer_queue *q, const infer_op_desc *src, const infer_op_args *given);
/* The worker's side of cmd_op; not OK: the reference refused. */
infer_status sim_run_op(infer_queue *q, const sim_op *op);

#endif
