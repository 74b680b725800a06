/* What the two halves of attention share: op_attn.c (ops, items of work, threads) and op_attn_tile.c (one split of one
 * item, tile by tile). SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_CPU_OP_ATTN_H
#define INFER_CPU_OP_ATTN_H

#include "op.h"

enum {
    ATTN_SPLIT = 512 /* keys, at fixed positions */,
    ATTN_ROWS = 64 /* vectors of an item, unless a group has more */
};

/* Rows first .. first + n of a sequence, and the range of keys that any of them sees. */
typedef struct attn_item {
    int32_t seq, first, n;
    int32_t key_lo, key_end;
    int32_t heads;    /* KV heads that are done together: side by side, they are read in one stream */
    int64_t chunk;    /* its first chunk of work */
    uint64_t partial; /* its results of splits, in floats from the start */
} attn_item;

typedef struct attn_call {
    const cpu_call *c;
    infer_attrs_attn a;
    const cpu_view *q, *y, *k, *v, *table, *sinks, *tree; /* v NULL: inside k; table NULL: dense */
    const int32_t *kv_len, *q_start;
    int64_t heads, kv_heads, group, dk, dv;
    int64_t dk_pad, ldo, ldv;  /* floats from vector to vector: keys and queries, results, unpacked values */
    uint64_t k_bytes, v_bytes; /* of one key */
    int64_t v_block;           /* elements of a block of values */
    float (*exp)(float x);     /* largest scores are kept times log_e, the logarithm of e to this function's base */
    float log_e;
    int64_t n_seqs, block_rows;
    attn_item *items;
    int64_t n_items, n_shared; /* items of which each split is a chunk of its own come first */
    float *partials;           /* [shared item][heads done together][split]{o, m, l} of their vectors */
    uint8_t *work;             /* of worker 0 */
    uint64_t work_bytes;       /* of one worker */
} attn_call;

/* A worker's memory. Vectors lie in the order of KV heads done together, rows of the item, heads of the group. */
typedef struct attn_work {
    float *k, *v, *s, *o, *total, *m, *l, *total_m, *total_l, *q, *rows;
    const float **x, **part;
    uint64_t *seen, *row_sees;
} attn_work;

/* Running softmax of n vectors: largest score, sum of exponentials, weighted sum of values. */
typedef struct attn_state {
    float *m, *l, *o;
} attn_state;

/* Where so many bytes lie that come next, on a line of their own. */
static inline uint64_t attn_take(uint64_t *at, uint64_t bytes)
{
    uint64_t here = *at;
    *at += (bytes + 63) / 64 * 64;
    return here;
}

static inline int64_t attn_clamp(int64_t x, int64_t lo, int64_t hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

static inline int64_t attn_round_up(int64_t x, int64_t to)
{
    return (x + to - 1) / to * to;
}

/* Most vectors of an item that are done together. */
static inline int64_t attn_vectors_max(const attn_call *t)
{
    return t->group > ATTN_ROWS ? t->group : ATTN_ROWS / t->group * t->group;
}

/* Bytes of a worker's memory; where base is not NULL, its parts to *w. */
uint64_t attn_lay_out(const attn_call *t, uint8_t *base, attn_work *w);
/* Query vectors of an item for `heads` KV heads from `head` as floats, to w->x. */
void attn_load_queries(const attn_call *t, const attn_work *w, const attn_item *it, int64_t head, int64_t heads);
/* One split of an item for these heads, into st. */
void attn_run_split(const attn_call *t, const attn_work *w, const attn_item *it, int64_t head, int64_t heads,
                    int64_t split, const attn_state *st);

#endif
