/*
 * Ops as kernel launches: what backends whose devices run kernels have in common, in whatever language these are. An op
 * becomes launches of named kernels, each with buffers by index and a parameter block by value (params.h). Here are
 * access to descriptors, operands in place, dispatch, and the ops whose launches are the same everywhere; how a launch
 * is cut and enqueued is the backend's, which gives the functions of the last part and its own rows of the op table.
 * Sources of this folder are compiled into each module. SPDX-License-Identifier: Apache-2.0
 */
#ifndef LAUNCH_H
#define LAUNCH_H

#include <stdint.h>

#include <infer/backend.h>

#include "params.h"

/* One op with its operands in place. */
typedef struct launch_call {
    infer_device *dev;
    const infer_op_desc *op;
    void *to;                           /* the backend's: where its launches go */
    void *mem[INFER_OP_MAX_OPERANDS];   /* of launch_memory; absent: of launch_nothing */
    lp_tensor t[INFER_OP_MAX_OPERANDS]; /* fmt 0: absent */
    lp_rows rows;
    void *counts, *scratch;
    uint64_t scratch_off;
} launch_call;

/* Lowers or completes an answer that starts as NATIVE and row-invariant, without scratch or epilogue; op has passed the
 * host's check. Whatever the op needs is built here, so that nothing is compiled in a step. [query] */
typedef void (*launch_check_fn)(infer_device *dev, const infer_op_desc *op, infer_op_answer *a);
/* Emits the launches. It looks at descriptors and places only, so that recorded launches serve every fill. */
typedef infer_status (*launch_run_fn)(launch_call *c);

typedef struct launch_op {
    launch_check_fn check; /* NULL: the backend has no such op */
    launch_run_fn run;
    uint32_t rows_of; /* the operand whose axis 0 is [n] */
} launch_op;

/* ---- Kernels that every backend has, and the work of a launch ---- */

#define LAUNCH_ELEMENTS 0u /* size: elements of a vector, vectors */
#define LAUNCH_GROUPS   1u /* size: groups of 32 elements of a vector, vectors */
#define LAUNCH_VECTORS  2u /* size: vectors, elements of each; all threads of a block share one */
#define LAUNCH_HEADS    3u /* size: groups of 32 elements of a head, heads, rows */
#define LAUNCH_BYTES    4u /* size: bytes of a head, heads, list entries */
#define LAUNCH_ITEMS    5u /* size: items */

/* X(name, work): the kernel's name, and how its work is counted. */
#define LAUNCH_KERNELS(X)                                                                                              \
    X(each, ELEMENTS)                                                                                                  \
    X(copy_bytes, ELEMENTS)                                                                                            \
    X(pack_rows, GROUPS)                                                                                               \
    X(unpack_rows, GROUPS)                                                                                             \
    X(concat_rows, ELEMENTS)                                                                                           \
    X(rows_select, ELEMENTS)                                                                                           \
    X(ids_select, ITEMS)                                                                                               \
    X(moe_combine, ELEMENTS)                                                                                           \
    X(norm_rows, VECTORS)                                                                                              \
    X(softmax, VECTORS)                                                                                                \
    X(argmax, VECTORS)                                                                                                 \
    X(rope_write, HEADS)                                                                                               \
    X(kv_move, BYTES)                                                                                                  \
    X(state_copy, ELEMENTS)

typedef enum launch_kernel {
#define X(name, work) LAUNCH_K_##name,
    LAUNCH_KERNELS(X)
#undef X
        LAUNCH_N_KERNELS
} launch_kernel;

/* Name and work of a kernel. */
extern const char *const launch_name[LAUNCH_N_KERNELS];
extern const uint8_t launch_work[LAUNCH_N_KERNELS];

/* ---- launch_ops.c ---- */

/* op_query over a table of INFER_OP_COUNT rows. align: of scratch, bytes. */
void launch_query(infer_device *dev, const launch_op *table, uint32_t align, const infer_op_desc *ops, uint32_t op_size,
                  uint32_t n, infer_op_answer *out, uint32_t answer_size);
/* Puts operands in place and runs the op's row of the table; to goes into the call. */
infer_status launch_op_run(infer_device *dev, const launch_op *table, const infer_op_desc *op,
                           const infer_op_args *args, void *to);

/* Access to a descriptor's arrays, by the strides that it states. */
const infer_tensor_desc *launch_tensor_desc(const infer_op_desc *op, uint32_t i);
const infer_epilogue *launch_epilogue(const infer_op_desc *op, uint32_t i);
int launch_present(const infer_op_desc *op, uint32_t i);
/* The attribute struct, zero where the producer's is shorter. */
void launch_attrs(const infer_op_desc *op, void *out, uint32_t size);
/* Vectors of one row of operand i. */
int64_t launch_per_row(const infer_op_desc *op, uint32_t i);
/* Bytes of n elements, n a multiple of the block; 0: a format that no kernel reads. */
uint64_t launch_format_bytes(infer_format f, uint64_t n);
uint32_t launch_format_block(infer_format f); /* elements of a block; 0: unknown */
/* The same of any format: integers are indices, or moved as they are. */
uint64_t launch_any_bytes(infer_format f, uint64_t n);
int launch_is_plain(infer_format f); /* F32, F16 or BF16 */
int launch_is_cache(infer_format f); /* what a cache can be in: attention reads it, writes make it */
/* Answers NO. */
void launch_no(infer_op_answer *a, uint32_t why, uint32_t which);
/* The same where a kernel is not there. */
void launch_need(infer_device *dev, infer_op_answer *a, launch_kernel k);
/* Answers kv_query: caches lie canonically, in blocks of any size. align: of a plane's start. */
void launch_kv_query(const infer_kv_spec *spec, uint32_t align, infer_kv_answer *out);
/* The part of a weight that comes: matrices, rows, elements of a row. Returns the bytes of its data plane as they
 * come, scales beside it or not; 0: a format that no kernel reads, not whole blocks, too large. */
uint64_t launch_weight_extents(const infer_weight_desc *d, int64_t x[3]);
/* Fills a caller's struct, whose first word is the size that the caller knows. */
void launch_put(void *dst, void *src, uint32_t size);

/* The ops that are the same everywhere, and X(op, function, rows_of) for a backend's table. */
#define LAUNCH_OP(name)                                                                                                \
    void launch_check_##name(infer_device *dev, const infer_op_desc *op, infer_op_answer *a);                          \
    infer_status launch_run_##name(launch_call *c)
LAUNCH_OP(each);    /* add, mul, scale, glu, act: launch_rows.c */
LAUNCH_OP(copy);    /* copy, gather_rows */
LAUNCH_OP(select);  /* concat_rows, rows_select, ids_select */
LAUNCH_OP(norm);    /* rms, layer, add + rms */
LAUNCH_OP(row);     /* softmax, argmax */
LAUNCH_OP(combine); /* moe_combine */
LAUNCH_OP(rope);    /* rope, kv_write, rope_kv_write: launch_kv.c */
LAUNCH_OP(move);    /* kv_pack, kv_unpack, kv_move, state_copy */
#define LAUNCH_OPS(X)                                                                                                  \
    X(COPY, copy, 0)                                                                                                   \
    X(GATHER_ROWS, copy, 1)                                                                                            \
    X(CONCAT_ROWS, select, 0)                                                                                          \
    X(ADD, each, 0)                                                                                                    \
    X(MUL, each, 0)                                                                                                    \
    X(SCALE, each, 0)                                                                                                  \
    X(GLU, each, 0)                                                                                                    \
    X(ACT, each, 0)                                                                                                    \
    X(SOFTMAX, row, 0)                                                                                                 \
    X(ARGMAX, row, 0)                                                                                                  \
    X(RMS_NORM, norm, 0)                                                                                               \
    X(LAYER_NORM, norm, 0)                                                                                             \
    X(ADD_RMS_NORM, norm, 0)                                                                                           \
    X(MOE_COMBINE, combine, 0)                                                                                         \
    X(KV_PACK, move, 1)                                                                                                \
    X(KV_UNPACK, move, 1)                                                                                              \
    X(KV_MOVE, move, 1)                                                                                                \
    X(STATE_COPY, move, 1)                                                                                             \
    X(IDS_SELECT, select, 0)                                                                                           \
    X(ROWS_SELECT, select, 0)
/* A backend may have a launch of its own for these. */
#define LAUNCH_ROPES(X)                                                                                                \
    X(ROPE, rope, 0)                                                                                                   \
    X(KV_WRITE, rope, 0)                                                                                               \
    X(ROPE_KV_WRITE, rope, 0)

/* Parameter blocks of ops whose kernels differ between backends, filled from the call (launch_fill.c). which: operands
 * in the kernels' order, for launch_operands; -2: absent. */
void launch_fill_attn(const launch_call *c, lp_attn *p, int which[10]);
/* Rotation and writes: how many operands of heads there are, 1 or 2, and each one's. */
uint32_t launch_fill_rope(const launch_call *c, lp_rope p[2], int which[2][6]);
void launch_fill_sample(const launch_call *c, lp_sample *p, int which[11]);
void launch_fill_route(const launch_call *c, lp_route *p);

/* Where the things of a product are: operand indices, -2 for none. */
typedef struct launch_product {
    int x, w, bias, ids, y;
    lp_tensor xt, yt; /* places of x and y where they are rows of scratch (x or y -3) */
    int epilogue;     /* whether the op's steps follow */
    float scale;
} launch_product;
void launch_fill_product(const launch_call *c, const launch_product *m, lp_mm *p, int which[10]);
/* The product that a MATMUL, MOE_MATMUL or LORA op is; LORA_EXPAND_ADD's addition is its one step. */
void launch_product_of(const launch_call *c, launch_product *m);
/* n products of operand 0 by operands 1 and on, of one format, columns numbered through. bias: operand of the first,
 * -2: none. y: operand of the first output, or -3: rows of scratch at out[i]. */
void launch_fill_products(const launch_call *c, uint32_t n, int bias, int y, const lp_tensor *out, lp_mms *p,
                          int which[11]);
/* How many steps of the list, from the first, the kernels do. */
uint32_t launch_epilogue_prefix(const infer_op_desc *op);
/* The memory of each operand of a list `which`: -1 the counts, -2 nothing, -3 scratch. */
void launch_operands(const launch_call *c, const int *which, uint32_t n, void **mem);

/* ---- launch_view.c: nodes of a program in one launch, by their operands alone ---- */

const infer_node *launch_node(const infer_graph_view *v, uint32_t i);
/* Whether two operands have bytes in common; whether they are one. */
int launch_overlap(const infer_operand *a, const infer_operand *b);
int launch_same(const infer_operand *a, const infer_operand *b);
/* Whether nobody reads an output's memory after node i before it is written anew. What is not written anew may be a
 * result of the program's, unless it is said not to be. */
int launch_last_read(const infer_graph_view *v, uint32_t i, const infer_operand *a);
/* Whether memory ends with the program; whether it is not written in this program. */
int launch_in_arena(const infer_graph_view *v, const infer_operand *a);
int launch_is_given(const infer_graph_view *v, const infer_operand *a);
/* Whether an operand's elements lie one behind the other in order. */
int launch_is_dense(const infer_tensor_desc *t);
/* Whether one launch may write what node i writes and read what node k reads, in no order. */
int launch_apart(const infer_node *i, const infer_node *k);
/* Whether launches of node i + 1 may make by themselves what node i makes: an RMS norm of whole rows whose result is
 * the x of the next node alone, in memory that ends with the program, while its own x stays until they have ended. Its
 * weights are nothing that the program writes. Of a GATED_MLP only the launches before its last one may. */
int launch_norm_goes(const infer_graph_view *v, uint32_t i);
/* Whether a rotation and the write behind it may be one launch: other heads of the same rows, rotated in the same way,
 * and neither writes what the other reads or writes. */
int launch_ropes_join(const infer_node *rope, const infer_node *write);
/* Whether the launch of a QKV may do what the two nodes behind it do, of which that holds: they read its results,
 * nobody else does, and what they write lies on nothing that it reads. norm: the node whose norm of x it makes, NULL: x
 * is there. */
int launch_qkv_goes(const infer_graph_view *v, uint32_t i, const infer_node *norm);

/* ---- Given by the backend ---- */

extern const char launch_backend[]; /* its name, for messages */
const infer_host *launch_host(const infer_device *dev);
/* What stands for a buffer in a launch: its handle or address. The places in lp_tensor are offsets from it. */
void *launch_memory(const infer_buffer *buf);
void *launch_nothing(const infer_device *dev);
/* Whether a kernel is there; builds it where it is built at run time. [query] */
int launch_ready(infer_device *dev, launch_kernel k);
/* Whether there are kernels for an op that read operand i in the private layout that its descriptor names. */
int launch_reads(const infer_device *dev, const infer_op_desc *op, uint32_t i);
/* Enqueues or records a launch: operands which[0 .. n), as launch_operands reads them, then the block. */
infer_status launch_emit(launch_call *c, launch_kernel k, const int *which, uint32_t n, const void *params,
                         uint32_t bytes, int64_t s0, int64_t s1, int64_t s2);

#endif
