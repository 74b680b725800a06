/* What host and kernels share: the parameter blocks that kernels take by value. Valid C and OpenCL C; the widest
 * fields come first, so that both lay the structs out alike. SPDX-License-Identifier: Apache-2.0 */
#ifndef OCL_PARAMS_H
#define OCL_PARAMS_H

#ifdef __OPENCL_VERSION__
typedef ulong ocl_u64;
typedef long ocl_i64;
typedef uint ocl_u32;
typedef int ocl_i32;
#else
#include <stdint.h>
typedef uint64_t ocl_u64;
typedef int64_t ocl_i64;
typedef uint32_t ocl_u32;
typedef int32_t ocl_i32;
#endif

#define OCL_MAX_EPI 4

/* An operand as vectors (runs along the last axis), numbered over the leading axes: vector k lies at off +
 * i0 * s0 + i1 * s1 + i2 * s2, where k = (i0 * n1 + i1) * n2 + i2. Strides in bytes. */
typedef struct ocl_tensor {
    ocl_u64 off;
    ocl_i64 s0, s1, s2;
    ocl_i32 n1, n2;
    ocl_i32 width; /* elements of a vector */
    ocl_i32 fmt;   /* INFER_FMT_*; 0: absent */
} ocl_tensor;

/* How many rows of axis 0 a run has: cap, or counts[from] * mul where from is not negative. */
typedef struct ocl_rows {
    ocl_u64 off; /* of the counts */
    ocl_i32 cap, from;
    ocl_u32 mul, reserved;
} ocl_rows;

#define OCL_EACH_ADD   0
#define OCL_EACH_MUL   1
#define OCL_EACH_SCALE 2
#define OCL_EACH_GLU   3
#define OCL_EACH_ACT   4
#define OCL_EACH_COPY  5

/* each: y = op(a, b) element by element. b_one: b is one vector for all. */
typedef struct ocl_each {
    ocl_tensor a, b, y;
    ocl_rows rows;
    ocl_i32 op, act, b_one, per_row;
    float scale, bias, limit, reserved;
} ocl_each;

/* Ops that choose rows: gather_rows (a: table), rows_select (a, b), concat_rows (a, b), ids_select. idx: the index
 * operand. any: a is read in groups of 32, in whatever format. */
typedef struct ocl_select {
    ocl_tensor a, b, idx, y;
    ocl_rows rows;
    ocl_i32 na, nb; /* rows of a, of b */
    ocl_i32 per_row, reserved;
} ocl_select;

#define OCL_NORM_RMS   0
#define OCL_NORM_LAYER 1
#define OCL_NORM_ADD   2

typedef struct ocl_norm {
    ocl_tensor x, w, b, y, s; /* b: LAYER's bias, or ADD's second summand */
    ocl_rows rows;
    ocl_i32 kind, per_row;
    float eps, offset;
} ocl_norm;

/* softmax, argmax */
typedef struct ocl_row {
    ocl_tensor x, y;
    ocl_rows rows;
    ocl_i32 per_row;
    float scale;
} ocl_row;

typedef struct ocl_epi {
    ocl_tensor t; /* operand of BIAS, RESIDUAL, MUL */
    ocl_i32 kind, arg;
    float factor, reserved;
} ocl_epi;

/* Matrix products. Rows are numbered (row, choice): choice < choices. ids: which matrix a row takes, absent: the first.
 */
typedef struct ocl_mm {
    ocl_tensor x, y, ids, bias;
    ocl_epi epi[OCL_MAX_EPI];
    ocl_rows rows;
    ocl_u64 w_off;
    ocl_i64 w_row, w_expert;                       /* bytes */
    ocl_i32 k, n, choices, n_experts, n_epi, wide; /* wide: rows of x and w begin at multiples of 16 bytes */
    float scale;
    ocl_i32 reserved;
} ocl_mm;

/* Several products of one x, columns numbered through. */
typedef struct ocl_mms {
    ocl_tensor x, y[3], bias[3];
    ocl_rows rows;
    ocl_u64 w_off[3];
    ocl_i64 w_row[3];
    ocl_i32 n[3]; /* 0: not there */
    ocl_i32 k, wide, reserved;
} ocl_mms;

typedef struct ocl_route {
    ocl_tensor x, ids, w;
    ocl_rows rows;
    ocl_i32 k, scoring, normalise;
    float scale;
} ocl_route;

typedef struct ocl_combine {
    ocl_tensor x, w, y;
    ocl_rows rows;
    ocl_i32 k, reserved;
} ocl_combine;

typedef struct ocl_rope {
    ocl_tensor x, pos, freq, y, slots; /* slots present: y is a cache plane */
    ocl_rows rows;
    ocl_i32 heads, kind, dims, n_pos; /* dims 0: no rotation */
    ocl_i32 section[4];
    ocl_i32 block_size, n_blocks;
    float magnitude;
    ocl_i32 reserved;
} ocl_rope;

/* Moves whole vectors. mode 0: pool blocks to image, 1: image to pool blocks, 2: slot to slot in list order. */
typedef struct ocl_move {
    ocl_tensor a, y, src, dst;
    ocl_rows rows;
    ocl_i32 mode, heads, block_size, n_blocks;
    ocl_i32 bytes, reserved; /* of a vector */
} ocl_move;

typedef struct ocl_attn {
    ocl_tensor q, k, v, y, table, tree, sinks;
    ocl_rows rows;
    ocl_u64 len_off, start_off;
    ocl_i32 heads, kv_heads, block_size, n_blocks, n_seqs, table_width; /* table_width 0: dense keys */
    ocl_i32 mask, window, dense_n, dense_m;
    float scale, soft_cap;
} ocl_attn;

typedef struct ocl_sample {
    ocl_tensor x, params, counts, bias, mask, top_ids, top_lp;
    ocl_rows rows;
    ocl_u64 ids_off, lp_off, z_off; /* z: scratch, f32 [n][V] */
    ocl_i32 n_top, n_counts, n_bias, lp_fmt;
} ocl_sample;

#endif
