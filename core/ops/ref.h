/* What the reference implementations share: operands as strided rows of floats, weights as unpacked rows, a double dot
 * product. Internal to core/ops. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_OPS_REF_H
#define INFER_OPS_REF_H

#include "ops/ops.h"
#include "quant/quant.h"

/* An operand in memory. Its vectors (runs along the last axis) are numbered over the leading axes in order. */
typedef struct infer_view {
    uint8_t *p; /* NULL: absent */
    infer_format format;
    uint32_t rank;
    int64_t shape[4];
    int64_t stride[4]; /* bytes, never all zero */
    int64_t per_row;   /* vectors in one index of axis 0 (1 for rank 1) */
    int64_t width;     /* elements of a vector */
} infer_view;

/* Of a checked descriptor; p NULL gives an absent view. */
infer_view infer_view_of(const infer_tensor_desc *t, void *p);
/* Operand i of the inputs or outputs; p is NULL where it is absent. */
infer_view infer_ref_in(const infer_op_desc *op, void *const *data, uint32_t i);
infer_view infer_ref_out(const infer_op_desc *op, void *const *data, uint32_t i);
/* First byte of vector k. */
uint8_t *infer_view_at(const infer_view *v, int64_t k);

/* n vectors as floats: in place where the operand is F32, else in memory of their own. */
typedef struct infer_rows {
    float **p; /* p[k]: vector k; NULL for an absent operand */
    float *mem;
} infer_rows;

/* INFER_E_NO_MEMORY leaves r empty. Free with infer_rows_free in any case. */
infer_status infer_rows_load(infer_rows *r, const infer_view *v, int64_t n);   /* for reading */
infer_status infer_rows_target(infer_rows *r, const infer_view *v, int64_t n); /* for writing, then infer_rows_store */
infer_status infer_rows_scratch(infer_rows *r, int64_t n, int64_t width);      /* of no operand */
void infer_rows_store(const infer_rows *r, const infer_view *v, int64_t n);    /* converts into the operand */
void infer_rows_free(infer_rows *r);

/* n float values of a plain or block format (n a multiple of the block). */
void infer_ref_unpack(infer_format f, const void *src, float *dst, int64_t n);
void infer_ref_pack(infer_format f, const float *src, void *dst, int64_t n);

/* A weight [n][k], or [e][n][k], with or without side planes. */
typedef struct infer_ref_weight {
    infer_view v;
    infer_quant quant;
    const uint8_t *plane[3];
    uint64_t plane_bytes[3]; /* of one matrix */
    int64_t e, n, k;
} infer_ref_weight;

/* Of a checked descriptor of rank 2 or 3 at p. INFER_E_INVALID, INFER_E_TOO_LARGE: groups and shape do not fit. */
infer_status infer_ref_weight_open(infer_ref_weight *w, const infer_tensor_desc *t, void *p);
/* Row r of matrix e as k floats: in tmp, or where it lies. */
infer_status infer_ref_weight_row(const infer_ref_weight *w, int64_t e, int64_t r, float *tmp, const float **row);
/* y[j][r] = scale * (x[j] . W[e][r]) + bias[r] for j < m: each weight row is unpacked once. bias may be NULL. */
infer_status infer_ref_product(const infer_ref_weight *w, int64_t e, float *const *x, float *const *y, int64_t m,
                               double scale, const float *bias);

/* Offsets of planes data, scale, zero in a weight's image (ops.h, infer_tensor_desc.quant), the bytes of each plane of
 * one matrix (0: absent), and the image's size. */
infer_status infer_tensor_planes(const infer_tensor_desc *t, uint64_t offset[3], uint64_t each[3], uint64_t *bytes);

/* Sum of a[i] * b[i] in double, in an order that depends on n only. */
double infer_ref_dot(const float *a, const float *b, int64_t n);
/* INFER_ACT_*, in double. */
double infer_ref_act(uint32_t act, double x);
/* gate and up of GLU, or x of ACT (up NULL). */
double infer_ref_glu(const infer_attrs_act *a, double gate, const float *up);
/* Rotates one head (n_dims leading elements) by the angles whose sine and cosine are given, src -> dst of d. */
void infer_ref_rotate(const infer_attrs_rope *a, const double *sine, const double *cosine, const float *src, float *dst,
                      int64_t d);
/* Sine and cosine (times magnitude) of the n_dims / 2 angles of a row. */
void infer_ref_angles(const infer_attrs_rope *a, const int32_t *pos, const float *inv_freq, double *sine,
                      double *cosine);
/* Byte address of (block, head, offset) in a cache plane; NULL where the block is out of range. */
uint8_t *infer_ref_kv_at(const infer_view *pool, int64_t block, int64_t head, int64_t offset);
/* Bytes of one token of one head. */
uint64_t infer_ref_kv_bytes(const infer_view *pool);
/* Writes rows x (vectors of all heads, row by row) at their slots; a slot out of range is skipped. */
void infer_ref_kv_put(const infer_view *pool, const int32_t *slots, const infer_rows *x, int64_t rows);

/* Runs the epilogue list on `rows` rows of F32 values y (n vectors of width) and stores them in output 0. */
infer_status infer_ref_epilogue(const infer_op_desc *op, void *const *data, const infer_rows *y, int64_t n);

/* The table's functions, by file. */
#define INFER_REF(name) infer_status infer_ref_##name(const infer_op_desc *op, void *const *data, int64_t rows)
INFER_REF(copy);
INFER_REF(gather_rows);
INFER_REF(concat_rows);
INFER_REF(softmax);
INFER_REF(argmax);
INFER_REF(ids_select);
INFER_REF(rows_select);
INFER_REF(state_copy);
INFER_REF(add);
INFER_REF(mul);
INFER_REF(scale);
INFER_REF(glu_op);
INFER_REF(act_op);
INFER_REF(rms_norm);
INFER_REF(layer_norm);
INFER_REF(add_rms_norm);
INFER_REF(matmul);
INFER_REF(gated_mlp);
INFER_REF(qkv);
INFER_REF(lora_shrink);
INFER_REF(lora_expand_add);
INFER_REF(moe_route);
INFER_REF(moe_matmul);
INFER_REF(moe_combine);
INFER_REF(rope);
INFER_REF(rope_kv_write);
INFER_REF(kv_write);
INFER_REF(kv_pack);
INFER_REF(kv_unpack);
INFER_REF(kv_move);
INFER_REF(attn_paged);
INFER_REF(mla_paged);
INFER_REF(attn_dense);
INFER_REF(sample);

/* What the signatures do not say, by op (check_attrs.c). */
#define INFER_CHECK(name) infer_status infer_check_##name(const infer_op_desc *op, infer_error *err)
INFER_CHECK(copy);
INFER_CHECK(concat);
INFER_CHECK(scale);
INFER_CHECK(act);
INFER_CHECK(norm);
INFER_CHECK(matmul);
INFER_CHECK(qkv);
INFER_CHECK(gated_mlp);
INFER_CHECK(route);
INFER_CHECK(rope);
INFER_CHECK(kv_write);
INFER_CHECK(rope_kv_write);
INFER_CHECK(kv_plane);
INFER_CHECK(kv_move);
INFER_CHECK(state_copy);
INFER_CHECK(attn_paged);
INFER_CHECK(mla_paged);
INFER_CHECK(attn_dense);
INFER_CHECK(sample);
INFER_CHECK(all_gather);
INFER_CHECK(reduce_scatter);

#endif
