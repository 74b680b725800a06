/* What host and kernels share: the parameter blocks that kernels take by value, after the base pointers of their
 * buffers. Valid C, C++ and OpenCL C; the widest fields come first, so that all lay the structs out alike.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef LP_PARAMS_H
#define LP_PARAMS_H

#ifdef __OPENCL_VERSION__
typedef ulong lp_u64;
typedef long lp_i64;
typedef uint lp_u32;
typedef int lp_i32;
#else
#include <stdint.h>
typedef uint64_t lp_u64;
typedef int64_t lp_i64;
typedef uint32_t lp_u32;
typedef int32_t lp_i32;
#endif

#define LP_MAX_EPI 4

/* An operand as vectors (runs along the last axis), numbered over the leading axes: vector k lies at off +
 * i0 * s0 + i1 * s1 + i2 * s2, where k = (i0 * n1 + i1) * n2 + i2. Strides in bytes. */
typedef struct lp_tensor {
    lp_u64 off;
    lp_i64 s0, s1, s2;
    lp_i32 n1, n2;
    lp_i32 width; /* elements of a vector */
    lp_i32 fmt;   /* INFER_FMT_*; 0: absent */
} lp_tensor;

/* How many rows of axis 0 a run has: cap, or counts[from] * mul where from is not negative. */
typedef struct lp_rows {
    lp_u64 off; /* of the counts */
    lp_i32 cap, from;
    lp_u32 mul, reserved;
} lp_rows;

/* Rows of 16-bit numbers as products of many rows want their x (backends/cuda/gemm.h): tiles of 2^log rows, in a tile
 * K's steps of 64, in a step the rows, their pieces of 16 bytes turned round. Element e of row r lies at
 * r * s0 + (r >> log) * tile + e / 64 * step + (2 * e ^ 16 * (r & turn)). All 0: rows as they are. */
typedef struct lp_panels {
    lp_i64 tile;
    lp_i32 step, log, turn, reserved;
} lp_panels;

#define LP_EACH_ADD   0
#define LP_EACH_MUL   1
#define LP_EACH_SCALE 2
#define LP_EACH_GLU   3
#define LP_EACH_ACT   4
#define LP_EACH_COPY  5

/* each: y = op(a, b) element by element. b_one: b is one vector for all. */
typedef struct lp_each {
    lp_tensor a, b, y;
    lp_rows rows;
    lp_i32 op, act, b_one, per_row;
    float scale, bias, limit, reserved;
} lp_each;

/* Ops that choose rows: gather_rows (a: table), rows_select (a, b), concat_rows (a, b), ids_select. idx: the index
 * operand. any: a is read in groups of 32, in whatever format. */
typedef struct lp_select {
    lp_tensor a, b, idx, y;
    lp_rows rows;
    lp_i32 na, nb; /* rows of a, of b */
    lp_i32 per_row, reserved;
} lp_select;

#define LP_NORM_RMS   0
#define LP_NORM_LAYER 1
#define LP_NORM_ADD   2

typedef struct lp_norm {
    lp_tensor x, w, b, y, s; /* b: LAYER's bias, or ADD's second summand */
    lp_rows rows;
    lp_i32 kind, per_row;
    float eps, offset;
} lp_norm;

/* What a product takes of the norm that it makes of its x by itself. lanes: of the norm's own launch, whose order of
 * additions is kept; wide: x and w are f32 from multiples of 16 bytes on, whole groups of four. */
typedef struct lp_norm_of {
    lp_u64 w_off;
    lp_i32 w_fmt, lanes, wide, reserved;
    float eps, offset;
} lp_norm_of;

/* softmax, argmax */
typedef struct lp_row {
    lp_tensor x, y;
    lp_rows rows;
    lp_i32 per_row;
    float scale;
} lp_row;

typedef struct lp_epi {
    lp_tensor t; /* operand of BIAS, RESIDUAL, MUL */
    lp_i32 kind, arg;
    float factor, reserved;
} lp_epi;

/* Matrix products. Rows are numbered (row, choice): choice < choices. ids: which matrix a row takes, absent: the first.
 */
typedef struct lp_mm {
    lp_tensor x, y, ids, bias;
    lp_epi epi[LP_MAX_EPI];
    lp_rows rows;
    lp_u64 w_off;
    lp_i64 w_row, w_expert;                       /* bytes */
    lp_i32 k, n, choices, n_experts, n_epi, wide; /* wide: rows of x and w begin at multiples of 16 bytes */
    float scale;
    lp_i32 by_row; /* the weight has a scale for each row (a private layout says where) */
} lp_mm;

#define LP_MMS_SIDE 0 /* up to three products of one x, columns numbered through */
#define LP_MMS_GLU  1 /* y[0] = act(x W0^T) * (x W1^T): W0 is the gate */

/* Several products of one x by weights of one format. n[i] 0: absent. */
typedef struct lp_mms {
    lp_tensor x, y[3], bias[3];
    lp_rows rows;
    lp_u64 w_off[3];
    lp_i64 w_row[3]; /* bytes */
    lp_i32 n[3];
    lp_i32 k, wide, kind, act;
    float limit;
    lp_i32 by_row; /* as lp_mm's, all of them */
} lp_mms;

typedef struct lp_route {
    lp_tensor x, ids, w;
    lp_rows rows;
    lp_i32 k, scoring, normalise;
    float scale;
} lp_route;

typedef struct lp_combine {
    lp_tensor x, w, y;
    lp_rows rows;
    lp_i32 k, reserved;
} lp_combine;

typedef struct lp_rope {
    lp_tensor x, pos, freq, y, slots; /* slots present: y is a cache plane */
    lp_rows rows;
    lp_i32 heads, kind, dims, n_pos; /* dims 0: no rotation */
    lp_i32 section[4];
    lp_i32 block_size, n_blocks;
    float magnitude;
    lp_i32 reserved;
} lp_rope;

/* K, V and perhaps Q of the same rows. */
typedef struct lp_ropes {
    lp_rope of[3];
} lp_ropes;

/* The same where all say the same of rotation, slots and rows: K as k says, as many heads of V, perhaps Q to rows. */
typedef struct lp_rope_kvq {
    lp_rope k;
    lp_tensor v, v_to, q, q_to;
    lp_i32 q_heads, reserved;
} lp_rope_kvq;

/* Threads that a row of lp_rope takes where kernels write pairs of elements, a pair of up to four heads each; where
 * they write blocks of 32, one an element. */
#define LP_ROPE_PAIRS(heads, width)  (((heads) + 3) / 4 * (((width) + 1) / 2))
#define LP_ROPE_BLOCKS(heads, width) ((heads) * (((width) + 31) / 32 * 32))

/* Moves whole vectors. mode 0: pool blocks to image, 1: image to pool blocks, 2: slot to slot in list order. */
typedef struct lp_move {
    lp_tensor a, y, src, dst;
    lp_rows rows;
    lp_i32 mode, heads, block_size, n_blocks;
    lp_i32 bytes, reserved; /* of a vector */
} lp_move;

typedef struct lp_attn {
    lp_tensor q, k, v, y, table, tree, sinks;
    lp_rows rows;
    lp_u64 len_off, start_off;
    lp_i32 heads, kv_heads, block_size, n_blocks, n_seqs, table_width; /* table_width 0: dense keys */
    lp_i32 mask, window, dense_n, dense_m;
    float scale, soft_cap;
    /* The context is cut at multiples of split keys (at most LP_ATTN_SPLIT). parts: how many partial results of a row
     * and head scratch has room for; 0: no scratch, a block walks all parts of its row. */
    lp_u64 part_off;
    lp_panels panels; /* few_F_D_N, many_F_D: y in 16 bits goes out so */
    lp_i32 split, parts;
    lp_i32 many, reserved; /* sequences of so many rows and more are many_F_D's, others few_F_D_N's; 0: none */
} lp_attn;

#define LP_ATTN_SPLIT 256
/* Floats of one partial result: maximum, sum, two unused, the weighted sum. */
#define LP_ATTN_PART(dv) (((dv) + 3) / 4 * 4 + 4)
/* few_F_D_N: rows times sets of heads that a launch may have; its shared memory: a ring of keys and values for each of
 * four waves, their sums, queries, a record a sequence. */
#define LP_FEW_PAIRS         16384
#define LP_FEW_STAGES        2
#define LP_FEW_PITCH(d)      (2 * (d) + 16) /* an odd number of 16 bytes: eight rows in eight groups of banks */
#define LP_FEW_QUERIES(d, n) (8 * (n)*LP_FEW_PITCH(d))
#define LP_FEW_SHARED(d, n, n_seqs)                                                                                    \
    (4 * LP_FEW_STAGES * 32 * LP_FEW_PITCH(d) + 4 * 4 * (d)*4 + LP_FEW_QUERIES(d, n) + 16 * (n_seqs))

/* few_rope_F_D_N: attention whose queries are not rotated yet (attn.q), nor keys and values of the step's rows in the
 * cache: as f32, k.x and v. */
typedef struct lp_few_rope {
    lp_attn attn;
    lp_rope k;
    lp_tensor v;
} lp_few_rope;

#define LP_FEW_ROPE_ROWS                       16 /* that a launch may have */
#define LP_FEW_ROPE_SHARED(d, n, n_seqs, rows) (LP_FEW_SHARED(d, n, n_seqs) + (rows)*4 * (d)) /* sines and cosines */

/* many_F_D: query vectors of a block, keys that it takes at a time, places for them; shared memory: queries, keys and
 * values, barriers. */
#define LP_MANY_ROWS   128
#define LP_MANY_KEYS   128
#define LP_MANY_STAGES 3
#define LP_MANY_SHARED(d, keys, stages)                                                                                \
    (1024 + LP_MANY_ROWS * 2 * (d) + (stages)*2 * (keys)*2 * (d) + 8 * (4 * (stages) + 2) + 4 * (stages))

typedef struct lp_sample {
    lp_tensor x, params, counts, bias, mask, top_ids, top_lp;
    lp_rows rows;
    lp_u64 ids_off, lp_off, z_off; /* z: scratch, f32 [n][V] */
    lp_i32 n_top, n_counts, n_bias, lp_fmt;
} lp_sample;

#define LP_SAMPLE_CHUNK     1024 /* logits of a block */
#define LP_SAMPLE_BINS      2048
#define LP_SAMPLE_CHUNKS(v) (((v) + LP_SAMPLE_CHUNK - 1) / LP_SAMPLE_CHUNK)
/* Bytes of scratch of a row of v logits, at z_off, a multiple of 16: adjusted logits, bins (share, number), a counter,
 * chunks, each logit's bin. */
#define LP_SAMPLE_ROW(v)                                                                                               \
    (((lp_u64)(v) + 3) / 4 * 16 + LP_SAMPLE_BINS * 12 + 16 + (lp_u64)LP_SAMPLE_CHUNKS(v) * 16 +                        \
     ((lp_u64)(v) + 7) / 8 * 16)

#endif
