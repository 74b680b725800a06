/* What the op implementations share: one call's operands as strided rows, float segments, splitting over the team.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_CPU_OP_H
#define INFER_CPU_OP_H

#include <string.h>

#include "cpu.h"

/* Elements that row code converts at a time, on the stack: a multiple of every format's block. */
enum { CPU_SEGMENT = 512 };

/* An operand in memory; p NULL: absent. Its vectors (runs along the last axis) are numbered over the leading axes. */
typedef struct cpu_view {
    uint8_t *p;
    infer_format format;
    uint32_t rank;
    int64_t shape[4];
    int64_t stride[4]; /* bytes, filled in */
    int64_t per_row;   /* vectors in one index of axis 0 (1 for rank 1) */
    int64_t width;     /* elements of a vector */
} cpu_view;

typedef struct cpu_call {
    infer_device *dev;
    infer_queue *queue;
    const kern_table *k;
    const infer_op_desc *op;
    int64_t rows; /* of axis 0, in this run */
    uint8_t *scratch;
    uint64_t scratch_bytes;
    cpu_view v[INFER_OP_MAX_OPERANDS]; /* inputs, then outputs */
} cpu_call;

typedef infer_status (*cpu_op_fn)(cpu_call *c);
/* Lowers or completes an answer that starts as NATIVE, row-invariant, without scratch. op has passed the host's check.
 */
typedef void (*cpu_query_fn)(const infer_device *dev, const infer_op_desc *op, infer_op_answer *a);

static inline int64_t cpu_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline const infer_tensor_desc *cpu_tensor(const infer_op_desc *op, uint32_t i)
{
    return (const infer_tensor_desc *)(const void *)((const uint8_t *)op->tensors + (size_t)i * op->tensor_size);
}

static inline const infer_epilogue *cpu_epilogue(const infer_op_desc *op, uint32_t i)
{
    return (const infer_epilogue *)(const void *)((const uint8_t *)op->epilogue + (size_t)i * op->epilogue_size);
}

static inline int cpu_present(const infer_op_desc *op, uint32_t i)
{
    return i < op->n_in + op->n_out && !(cpu_tensor(op, i)->flags & INFER_TENSOR_ABSENT);
}

/* The attribute struct, zero where the producer's is shorter. */
static inline void cpu_attrs(const infer_op_desc *op, void *out, uint32_t size)
{
    uint32_t have = 0;
    memset(out, 0, size);
    if (op->attrs && op->attrs_size >= sizeof have)
        memcpy(&have, op->attrs, sizeof have);
    if (have > op->attrs_size)
        have = op->attrs_size;
    if (have)
        memcpy(out, op->attrs, have < size ? have : size);
}

static inline const cpu_view *cpu_in(const cpu_call *c, uint32_t i)
{
    static const cpu_view none;
    return i < c->op->n_in ? &c->v[i] : &none;
}

static inline const cpu_view *cpu_out(const cpu_call *c, uint32_t i)
{
    static const cpu_view none;
    return i < c->op->n_out ? &c->v[c->op->n_in + i] : &none;
}

/* First byte of vector r. */
static inline uint8_t *cpu_row(const cpu_view *v, int64_t r)
{
    if (v->rank == 2)
        return v->p + r * v->stride[0];
    if (v->rank == 1)
        return v->p;
    int64_t offset = 0;
    for (uint32_t i = v->rank - 2; i > 0; i--) {
        offset += r % v->shape[i] * v->stride[i];
        r /= v->shape[i];
    }
    return v->p + offset + r * v->stride[0];
}

/* Bytes of n elements, n a multiple of the block. */
uint64_t cpu_bytes(const infer_device *dev, infer_format f, int64_t n);

/* n elements from `at` of a vector as floats: where they lie, or in buf. `at` is a multiple of the block. */
const float *cpu_load(const cpu_call *c, const cpu_view *v, const uint8_t *row, int64_t at, int64_t n, float *buf);
/* Where to put n floats of an output vector: there, or in buf, which cpu_store then converts. */
float *cpu_target(const cpu_view *v, uint8_t *row, int64_t at, float *buf);
infer_status cpu_store(const cpu_call *c, const cpu_view *v, uint8_t *row, int64_t at, int64_t n, const float *from);
/* Element i of a rank-1 float operand. */
float cpu_float_at(const cpu_call *c, const cpu_view *v, int64_t i);
/* n floats to a format, by own code or the host's. */
infer_status cpu_pack(const infer_device *dev, infer_format f, const float *src, void *dst, int64_t n);

/* fn over pieces [first, end) of [0, n). A piece has about CPU_PIECE_COST units of work where an item has `cost`
 * (about one per element touched); little work stays on the calling thread. */
typedef void (*cpu_piece_fn)(void *ctx, int64_t first, int64_t end, uint32_t worker);
void cpu_split(infer_device *dev, int64_t n, int64_t cost, cpu_piece_fn fn, void *ctx);

/* ---- Weights --------------------------------------------------------------------------------------------------- */

typedef struct cpu_weight {
    const uint8_t *p;
    const kern_format *f;
    infer_quant quant; /* scale_format 0: no planes */
    int64_t e, n, k, e_stride, n_stride;
    const uint8_t *plane[3]; /* data, scale, zero */
    int64_t plane_bytes[3];  /* of one matrix */
    int by_row;              /* a row's scale is all that its codes want: sums are multiplied by it, not elements */
    const kern_table *kern;
    infer_format format;
    const panel_format *panel; /* NULL: as the file has it; else only p, n, k, e, e_stride and these count */
    const kern_panels *with;   /* who multiplies with them; NULL without panels */
    int64_t panel_bytes;
} cpu_weight;

/* Whether an op reads this operand in CPU_LAYOUT_PANELS: the weights of products. */
int cpu_reads_panels(infer_op_id op, uint32_t operand);
/* 0 where a format is unknown. */
int cpu_weight_known(const infer_device *dev, const infer_tensor_desc *t);
void cpu_weight_open(cpu_weight *w, const cpu_call *c, uint32_t operand);
/* Elements k0 .. k0 + n of row r of matrix e; k0 a multiple of KERN_CHUNK. */
void cpu_weight_part(const cpu_weight *w, int64_t e, int64_t r, int64_t k0, int64_t n, float *dst);

/* ---- The ops --------------------------------------------------------------------------------------------------- */

#define CPU_OP(name)                                                                                                   \
    infer_status cpu_run_##name(cpu_call *c);                                                                          \
    void cpu_query_##name(const infer_device *dev, const infer_op_desc *op, infer_op_answer *a)

CPU_OP(copy);
CPU_OP(gather_rows);
CPU_OP(concat_rows);
CPU_OP(elementwise); /* add, mul, scale, glu, act */
CPU_OP(softmax);
CPU_OP(argmax);
CPU_OP(ids_select);
CPU_OP(rows_select);
CPU_OP(state_copy);
CPU_OP(norm); /* rms, layer, add + rms */
CPU_OP(matmul);
CPU_OP(gated_mlp);
CPU_OP(qkv);
CPU_OP(moe_matmul);
CPU_OP(lora);
CPU_OP(moe_route);
CPU_OP(moe_combine);
CPU_OP(rope);
CPU_OP(kv_write);
CPU_OP(rope_kv_write);
CPU_OP(kv_blocks); /* pack, unpack */
CPU_OP(kv_move);
CPU_OP(attention); /* paged, latent, dense */
CPU_OP(sample);

#endif
