/*
 * The model as a list of ops in execution order, and its way to programs on devices:
 *
 *   build (core/model/decoder.c) -> partition -> fuse -> claim -> plan memory -> programs
 *
 * Forward and sample are one graph, so that memory is planned over both; a part never spans the two.
 *
 * A graph is built for capacities (tokens, sequences, logit rows); how much of them a step uses stands in the step's
 * counts (ops.h). One graph object belongs to one thread until infer_graph_compile is done; afterwards it is constant.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_GRAPH_GRAPH_H
#define INFER_GRAPH_GRAPH_H

#include <infer/ops.h>

#include "base/buf.h"
#include "base/error.h"
#include "hal/hal.h"
#include "ops/ops.h"

typedef int32_t infer_val; /* index of a value; -1: absent */

typedef enum infer_val_kind {
    INFER_VAL_ACT,    /* made by a node; lives in the arena */
    INFER_VAL_WEIGHT, /* ref: index in the owner's weight list */
    INFER_VAL_KV,     /* ref: layer * INFER_GRAPH_PLANES + plane */
    INFER_VAL_STEP,   /* ref: byte offset in the step block */
    INFER_VAL_STATE,  /* ref: byte offset in the state block of the device that runs the sampler */
} infer_val_kind;

#define INFER_GRAPH_PLANES 2 /* K and V */

typedef struct infer_value {
    infer_tensor_desc desc; /* axis 0 at capacity */
    infer_val_kind kind;
    uint64_t ref;
    uint32_t rows_from, rows_mul; /* how many rows of axis 0 a step fills */
    const char *name;             /* constant or owned by the model; for people */
    infer_val alias;              /* another value whose memory this one names in another shape; -1: none */
    int keep;                     /* an output of the graph: its memory is not reused */
} infer_value;

enum { INFER_PROGRAM_FORWARD, INFER_PROGRAM_SAMPLE };

typedef struct infer_gnode {
    infer_op_id op;
    uint32_t rows_from, rows_mul;
    uint8_t n_in, n_out, n_epilogue;
    infer_val in[INFER_OP_MAX_OPERANDS];
    infer_val out[4];
    infer_epilogue epilogue[4];
    uint32_t attrs_size;
    infer_any_attrs attrs;
    int32_t layer;   /* -1 before the first, n_layers after the last */
    int32_t program; /* INFER_PROGRAM_* */
    /* filled by partition and query */
    int32_t dev;
    infer_op_answer answer;
    int removed; /* fused into another node */
} infer_gnode;

typedef struct infer_graph {
    infer_value *vals;
    uint32_t n_vals, cap_vals;
    infer_gnode *nodes;
    uint32_t n_nodes, cap_nodes;
    int32_t program; /* that new nodes belong to */
    int failed;      /* sticky: an allocation failed while building */
} infer_graph;

/* Frees the lists, not g; names and descriptors are copied or the caller's. Safe on a zeroed struct. */
void infer_graph_free(infer_graph *g);
/* Adds a value; -1 and sticky failure without memory. */
infer_val infer_graph_value(infer_graph *g, infer_val_kind kind, uint64_t ref, const infer_tensor_desc *desc,
                            uint32_t rows_from, uint32_t rows_mul, const char *name);
/* Adds a node with its inputs (-1: absent) and returns it, or NULL (sticky failure, also for more inputs or attributes
 * than a node has room for). The pointer is valid until the next call. rows_from and rows_mul are taken from its first
 * output once infer_graph_out added it. */
infer_gnode *infer_graph_node(infer_graph *g, infer_op_id op, int32_t layer, const infer_val *in, uint32_t n_in,
                              const void *attrs, uint32_t attrs_size);
/* A new activation as next output of the newest node. */
infer_val infer_graph_out(infer_graph *g, const infer_tensor_desc *desc, uint32_t rows_from, uint32_t rows_mul,
                          const char *name);
/* An existing value (a KV plane, a state) as next output of the newest node. */
void infer_graph_out_value(infer_graph *g, infer_val v);
/* The memory of an activation under another contiguous shape with as many bytes; its rows follow rows_from and
 * rows_mul. */
infer_val infer_graph_view_of(infer_graph *g, infer_val v, const infer_tensor_desc *desc, uint32_t rows_from,
                              uint32_t rows_mul);
/* The value whose memory v names. */
infer_val infer_graph_root(const infer_graph *g, infer_val v);
/* Fills a descriptor (and its tensor array of at least INFER_OP_MAX_OPERANDS entries) of a node for queries and
 * programs. */
void infer_graph_desc(const infer_graph *g, const infer_gnode *n, infer_op_desc *desc, infer_tensor_desc *tensors);

/* ---- Compilation ------------------------------------------------------------------------------------------- */

#define INFER_GRAPH_MAX_DEVS 16
/* Beside INFER_WHY_*: the device would, but a row's result depends on its company. */
#define INFER_GRAPH_WHY_ROWS 0x10000u

/* What compile needs to know of the devices. home[layer + 1] is the index of the device that a layer's nodes run on
 * (entry 0: before the first layer, entry n_layers + 1: after the last). kv_home[layer]: where its cache lies, and so
 * its cache ops run. Device `host` runs what a home refuses. */
typedef struct infer_graph_target {
    infer_hal_dev *devs[INFER_GRAPH_MAX_DEVS];
    uint32_t n_devs;
    int32_t host;      /* index in devs, -1: a refused op is an error */
    int deterministic; /* an op whose rows depend on each other is refused, too */
    const int32_t *home;
    const int32_t *kv_home;
    uint32_t n_layers;
    /* Completes the descriptor of weight `ref` as it lies on a device when op `use` reads it (format, layout). */
    infer_status (*weight_desc)(void *user, int32_t dev, uint64_t ref, infer_op_id use, infer_tensor_desc *desc,
                                infer_error *err);
    void *user;
} infer_graph_target;

/* A value that crosses to another device: copied out when the part that made it is done, in before the first part of
 * the other device that reads it. */
typedef struct infer_transfer {
    infer_val val;
    uint32_t src_part, dst_part;
    int32_t src_dev, dst_dev;
    uint64_t src_offset, dst_offset; /* in the two arenas */
    uint64_t row_bytes, max_bytes;   /* of one counted row; of the whole value */
    uint32_t rows_from, rows_mul;
    uint64_t stage_offset; /* in the host staging block */
} infer_transfer;

/* A run of nodes on one device: one program. */
typedef struct infer_part {
    int32_t dev;
    int32_t program;       /* INFER_PROGRAM_* */
    uint32_t first, count; /* range in infer_compiled.order */
    int fallback;          /* runs on the host for another device */
    int claimed;           /* the device's plugin compiles it whole */
} infer_part;

typedef struct infer_compiled {
    infer_graph *g;
    uint32_t *order; /* node indices that remain, in order */
    uint32_t n_order;
    infer_part *parts;
    uint32_t n_parts;
    infer_transfer *xfers; /* in order of dst_part */
    uint32_t n_xfers;
    uint32_t n_devs;
    uint64_t *place;   /* [dev * n_vals + val] offset in that device's arena, UINT64_MAX: not there (roots only) */
    uint64_t *scratch; /* [order index] offset of the node's scratch in its device's arena, UINT64_MAX: none */
    uint64_t arena_bytes[INFER_GRAPH_MAX_DEVS];
    uint64_t stage_bytes;   /* host memory for staged transfers */
    uint32_t n_fallback;    /* nodes that run on the host for a device that refused them */
    int32_t kv_refused_dev; /* on INFER_E_UNSUPPORTED: the device that refused a cache op, -1: it was another op */
} infer_compiled;

/* Assigns devices, asks them, fuses, cuts into parts and plans memory. A refused op without a host, and a cache op
 * refused by its home, are INFER_E_UNSUPPORTED naming op, device and reason (`out` then holds kv_refused_dev only). `g`
 * is borrowed by `out`. */
infer_status infer_graph_compile(infer_graph *g, const infer_graph_target *t, infer_compiled *out, infer_error *err);
void infer_compiled_free(infer_compiled *c);

/* Which buffers the values live in, on one device. Slot numbers of the programs follow this order. */
enum { INFER_SLOT_I_ARENA, INFER_SLOT_I_STEP, INFER_SLOT_I_STATE, INFER_SLOT_I_KV, INFER_SLOT_I_WEIGHT0 };
#define INFER_GRAPH_MAX_SLOTS 64

/* What a part's operands bind to. The callbacks say where a weight or a cache plane lies on the part's device. */
typedef struct infer_graph_binding {
    infer_range ranges[INFER_GRAPH_MAX_SLOTS]; /* by slot; buffer NULL: not used */
    uint32_t n_slots;
    infer_status (*weight)(void *user, int32_t dev, uint64_t ref, infer_op_id use, infer_operand *out);
    infer_status (*kv)(void *user, int32_t dev, uint64_t ref, infer_operand *out);
    void *user;
} infer_graph_binding;

/* Builds and instantiates the program of part `part` for a capacity of `bucket` tokens (at most the graph's). */
infer_status infer_graph_program(const infer_compiled *c, const infer_graph_target *t, uint32_t part, uint32_t bucket,
                                 const infer_graph_binding *b, infer_hal_prog **prog, infer_hal_exec **exec,
                                 infer_error *err);

/* One line a part and one a node, for people: "  12 matmul         layer 0 native q f32[512][576]". */
void infer_compiled_print(const infer_compiled *c, const infer_graph_target *t, infer_buf *out);
/* A refusal in words: "shape of operand 2". */
void infer_answer_reason(const infer_op_answer *a, char *buf, size_t cap);

#endif
