/* What prefix.c (the tree) and tiers.c (where its nodes' content lies) share. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_KV_PREFIX_PRIVATE_H
#define INFER_KV_PREFIX_PRIVATE_H

#include "kv/prefix.h"

#define NONE      (-1)
#define NO_RANK   UINT32_MAX
#define COST_UNIT 1024u /* of a token at position 0 */

/* On its way; each counts as a hold. A write's slot is the node's once it is done. */
enum { BUSY_NOT, BUSY_OUT, BUSY_READ, BUSY_WRITE };

typedef struct node {
    int32_t parent;      /* NONE: at the top */
    int32_t children;    /* root of the treap of its children */
    int32_t left, right; /* in its siblings' treap */
    uint32_t depth;      /* blocks above it */
    uint32_t n_tokens;   /* 0: no node */
    uint32_t kids[INFER_TIER_COUNT];
    uint32_t holds;
    uint32_t rank; /* in its tier's heap; NO_RANK: it is no leaf of its tier, or is held */
    uint8_t tier, busy;
    uint8_t was_read;           /* what lies in its place came from the file */
    int32_t block, place, slot; /* NONE: not there. A node in the pool has no place, but may have a slot */
    uint64_t id, worth, used;
    uint64_t came;        /* the step that brings it into the pool */
    infer_prefix_key key; /* its path's */
} node;

typedef struct heap {
    int32_t *at; /* leaves of a tier, the least worth first */
    uint32_t n;
    uint64_t base; /* what the last one that was given up was worth */
} heap;

struct infer_prefix {
    infer_kv_pool *pool;
    uint32_t n_blocks, block_size, cap, n_nodes;
    node *nodes;         /* cap */
    int32_t *tokens;     /* block_size for each */
    int32_t *free_nodes; /* a stack */
    int32_t *node_of;    /* by block */
    int32_t top;         /* treap of those without a parent */
    heap heaps[INFER_TIER_COUNT];
    uint64_t clock, step, last_id, even_at, max_cost;
    int32_t first_place, *free_places;
    uint32_t n_places, n_stage, n_free_places, n_writes; /* n_writes: under way */
    uint8_t *place_refs;                                 /* the node's, and of each copy under way */
    int32_t *free_slots;
    uint32_t n_slots, n_free_slots;
    infer_prefix_counts counts[INFER_TIER_COUNT];
};

static inline uint64_t cost_of(const infer_prefix *t, uint64_t n_tokens, uint64_t pos)
{
    return n_tokens * (COST_UNIT + COST_UNIT * pos / t->even_at);
}

/* Brings what stands at a rank to where it belongs. */
void prefix_settle(infer_prefix *t, heap *h, uint32_t at);
/* After its kids or holds changed: into its tier's heap, or out of it. */
void prefix_rank(infer_prefix *t, int32_t x);
/* The node is used now. */
void prefix_touch(infer_prefix *t, int32_t x);
/* Into another tier; its worth is that of one used now. */
void prefix_set_tier(infer_prefix *t, int32_t x, uint32_t tier);
/* Takes a node out with all that is below it: how many of the tiers below the pool. */
uint32_t prefix_remove(infer_prefix *t, int32_t x);

/* The node's block, place and slot go back. */
void tiers_release(infer_prefix *t, int32_t x);
/* A node of a lower tier has its content in a block that somebody holds. */
void tiers_to_pool(infer_prefix *t, int32_t x, int32_t block);

#endif
