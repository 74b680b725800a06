/*
 * T3's cache: pools of one layer on the device beside the reference's on the host, sequences with block tables, and the
 * verbs that cases write, move and read them with. SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_CTS_T3_H
#define INFER_CTS_T3_H

#include "cts.h"
#include "ops/ops.h"

#define T3_SEQS   5u
#define T3_TABLE  40u  /* blocks of a sequence at most */
#define T3_TOKENS 512u /* tokens of a sequence at most */

/* What an attention is like. */
typedef struct t3_shape {
    uint32_t heads, kv_heads, dk, dv;
    infer_format act, k_format, v_format;
    uint32_t best;   /* block size: 1 block_best, 0 the least multiple */
    uint32_t latent; /* MLA: one plane for all heads, values are the first dv of the keys */
    uint32_t mask, window;
    float soft_cap;
    int sinks;
} t3_shape;

/* One op under way: operands on the host, or (on) pools that stay on the device. */
typedef struct t3_op {
    infer_op_desc d;
    infer_tensor_desc t[INFER_OP_MAX_OPERANDS];
    infer_any_attrs attrs;
    void *data[INFER_OP_MAX_OPERANDS]; /* host side; of a pool the reference's */
    infer_buffer *on[INFER_OP_MAX_OPERANDS];
    uint64_t bytes[INFER_OP_MAX_OPERANDS];
    int32_t counts[INFER_COUNT_MAX];
    infer_op_answer answer;
} t3_op;

typedef struct t3_seq {
    int32_t table[T3_TABLE];
    int32_t len; /* tokens written */
} t3_seq;

typedef struct t3 {
    cts *c;
    t3_shape s;
    infer_attrs_kv kv; /* as the device holds it */
    uint32_t n_planes;
    infer_buffer *pool[2];
    uint64_t pool_bytes[2], block_bytes[2]; /* on the device */
    uint8_t *host[2];                       /* canonical; what the reference reads */
    uint64_t host_bytes[2];
    int32_t next_block; /* in `order` */
    int32_t order[256]; /* blocks, shuffled */
    t3_seq seq[T3_SEQS];
    uint32_t tree_rows; /* with a tree mask: words of a row come from this many random bits */
    int invariant;      /* every attention so far was answered as row-invariant */
} t3;

/* Asks kv_query, makes the pools and fills them with bytes 0xFF, which is NaN in every format. 1: ready; 0: the case is
 * skipped (the device does not hold or compute this) or failed. End with t3_end in every case. */
int t3_begin(cts *c, const t3_shape *s, t3 *k);
void t3_end(t3 *k);
/* Blocks for a sequence's tokens up to len, from those that nobody has. */
int t3_reserve(t3 *k, t3_seq *q, int32_t len);
int32_t t3_slot(const t3 *k, const t3_seq *q, int32_t token);
/* n new tokens behind those of the sequence, from numbers of `seed` by position: the same seed and positions give the
 * same keys. `skip`: a row with a negative slot goes first. Checks the pools against the reference's. */
int t3_write(t3 *k, t3_seq *q, int32_t n, uint64_t seed, int skip);
/* Attention of the newest rows[i] tokens of each sequence, queries of `seed` by position; y (NULL, or floats
 * [sum of rows][heads][dv]) gets the device's result, which is compared with the reference's. */
int t3_attend(t3 *k, const int32_t rows[T3_SEQS], uint64_t seed, uint32_t kind, float *y, const char *what);
/* Block `from` of every plane to block `to`, by cmd_copy; on the host too. */
int t3_copy_block(t3 *k, int32_t from, int32_t to);
/* NaN over a block. */
int t3_poison(t3 *k, int32_t block);
/* Runs an op on the device, and by the reference on the host side of its operands. An output that is no pool needs room
 * for twice its bytes: the reference's result, then the device's. 1: done; 0: the case is skipped or failed. */
int t3_run(t3 *k, t3_op *o);
/* An op of these attributes (NULL: none); operands are added in the descriptor's order. */
void t3_op_begin(t3_op *o, infer_op_id op, const void *attrs, uint32_t size);
void t3_operand(t3_op *o, int output, infer_format f, uint32_t rank, int64_t s0, int64_t s1, int64_t s2, int64_t s3,
                void *data);
void t3_absent(t3_op *o);
void t3_pool(t3 *k, t3_op *o, uint32_t plane, int output);
/* KV_PACK, KV_UNPACK and KV_MOVE work on one plane: the attributes for it. */
infer_attrs_kv t3_plane(const t3 *k, uint32_t plane);
/* The device's pools, where they are canonical, become the reference's, after a comparison. */
int t3_settle(t3 *k, const char *what);

#endif
