/* What host and kernels share: the parameter blocks that kernels take by value. A copy of
 * backends/npu/opencl/kernels/params.h with additions; both are to become one file. SPDX-License-Identifier: Apache-2.0
 *
 * Kernels take base pointers, then the block, as OpenCL's do. What differs, for the host's side:
 *   any launch   gridDim.y and .z are at most 65535; where a kernel says "walks", fewer blocks do as well.
 *   local memory of OpenCL arguments is one dynamic allocation; only moe_route has any, as OpenCL counts it.
 *   ocl_attn     new at the end: split, parts, part_off, and a pointer `scratch` after counts (attn.cu).
 *   ocl_sample   z_off means a row of OCL_SAMPLE_ROW bytes; four kernels instead of two (sample.cu).
 *   ocl_mms      new: several weights of one format in one launch (matvec.cuh).
 *   ocl_mm       its kernels are mvR_F (R 1 2 4 8), tile_F_bf16 and tile_F_f16, F the format (matvec.cuh, tile.cu).
 *   norm         is norm_rows: the name is taken in CUDA.
 *   rope_write2  K and V in one launch, each with an ocl_rope (kv.cu).
 */
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

#define OCL_MMS_SIDE 0 /* up to three products of one x, columns numbered through */
#define OCL_MMS_GLU  1 /* y[0] = act(x W0^T) * (x W1^T): W0 is the gate */

/* Several products of one x by weights of one format. n[i] 0: absent. */
typedef struct ocl_mms {
    ocl_tensor x, y[3], bias[3];
    ocl_rows rows;
    ocl_u64 w_off[3];
    ocl_i64 w_row[3]; /* bytes */
    ocl_i32 n[3];
    ocl_i32 k, wide, kind, act;
    float limit;
    ocl_i32 reserved;
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
    /* The context is cut at multiples of split keys (at most OCL_ATTN_SPLIT). parts: how many partial results of a row
     * and head scratch has room for; 0: no scratch, a block walks all parts of its row. */
    ocl_u64 part_off;
    ocl_i32 split, parts;
} ocl_attn;

#define OCL_ATTN_SPLIT 256
/* Floats of one partial result: maximum, sum, two unused, the weighted sum. */
#define OCL_ATTN_PART(dv) (((dv) + 3) / 4 * 4 + 4)

typedef struct ocl_sample {
    ocl_tensor x, params, counts, bias, mask, top_ids, top_lp;
    ocl_rows rows;
    ocl_u64 ids_off, lp_off, z_off; /* z: scratch, f32 [n][V] */
    ocl_i32 n_top, n_counts, n_bias, lp_fmt;
} ocl_sample;

#define OCL_SAMPLE_CHUNK     4096 /* logits of a block */
#define OCL_SAMPLE_BINS      2048
#define OCL_SAMPLE_CHUNKS(v) (((v) + OCL_SAMPLE_CHUNK - 1) / OCL_SAMPLE_CHUNK)
/* Bytes of scratch of a row of v logits, at z_off, a multiple of 16: adjusted logits, bins (share, number), chunks. */
#define OCL_SAMPLE_ROW(v) (((ocl_u64)(v) + 3) / 4 * 16 + OCL_SAMPLE_BINS * 16 + (ocl_u64)OCL_SAMPLE_CHUNKS(v) * 16)

#endif
