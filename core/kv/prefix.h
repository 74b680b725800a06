/*
 * The prefix cache: a radix tree over blocks. A node is a block's worth of tokens; its place in the tree says which
 * tokens come before them. A child's whole block of tokens tells it from its siblings; a block that is not full is a
 * leaf. The tree has records for all that its tiers can hold, and needs no memory after creation.
 *
 * A node's keys and values lie in a block of the pool; or, when they had to leave it, in a place in host memory; or in
 * a slot of a file. The first of these that it has is its tier. A child is in its parent's tier or in a lower one: so
 * what is in the pool stands above what is not, and a match goes through the pool's, then through the others.
 *
 * The tree holds one reference to each of its blocks. Whoever holds a node's block holds the blocks of all nodes above
 * it (match shares paths from the top, insert replaces duplicates by what the tree has): so a block that only the tree
 * holds has, in the pool, nothing but such blocks below it, every one of them can be given back, leaves first, and
 * infer_kv_pool_idle is what the tree can give.
 *
 * This is the book: who has the memory makes the copies that the tree asks for, and tells it when they are done. Blocks
 * that are not full never leave the pool but for good.
 *
 * Costs, for n nodes of b tokens: a node of a path is found in O(b log siblings), a leaf given back in O(log n)
 * amortized. One thread (the engine's); knows no device, no file and no request. SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_KV_PREFIX_H
#define INFER_KV_PREFIX_H

#include "kv/kv.h"

typedef struct infer_prefix infer_prefix;

/* What besides tokens decides what keys and values are (an adapter), and who may share them (a tenant's salt). Equal
 * tokens under different keys share nothing. */
typedef struct infer_prefix_key {
    uint64_t w[2];
} infer_prefix_key;

/* Tiers, in order. */
enum { INFER_TIER_POOL, INFER_TIER_HOST, INFER_TIER_FILE, INFER_TIER_COUNT };

typedef struct infer_prefix_options {
    uint64_t even_at; /* >= 1: the position at which attention to what comes before costs a token as much as everything
                       * else it costs; it weighs what computing a block again would take */
    int32_t first_place;
    uint32_t n_places; /* in host memory, from first_place on; 0: what leaves the pool is lost */
    uint32_t n_stage;  /* places that are kept free, or on their way to be, by writing to the file; 0 without one */
    uint32_t n_slots;  /* of the file */
} infer_prefix_options;

/* What became of blocks so far, by tier (those of the pool are not counted). */
typedef struct infer_prefix_counts {
    uint32_t nodes;
    uint64_t stored;  /* came to be there by a copy */
    uint64_t hits;    /* came back into the pool from there */
    uint64_t evicted; /* left it for good, as others were worth more */
    uint64_t lost;    /* could not be stored or read, or stood below one that was lost */
} infer_prefix_counts;

/* An empty tree over a pool, which outlives it. */
infer_status infer_prefix_create(infer_kv_pool *pool, const infer_prefix_options *o, infer_prefix **out,
                                 infer_error *err);
/* Gives its references back. NULL is none. */
void infer_prefix_destroy(infer_prefix *t);

/* A step is about to be built: what comes into the pool with earlier ones can be copied from. */
void infer_prefix_step(infer_prefix *t);

/* Fills an empty sequence with the longest prefix of tokens[0 .. limit) that is in the pool, to the token: whole
 * blocks, and the beginning of a last one where it ends inside a block (but not inside one that comes in with this very
 * step), all shared (growing the sequence copies a shared last block). The path counts as used now. Returns the length,
 * at most the sequence's max_tokens. */
uint64_t infer_prefix_match(infer_prefix *t, const infer_prefix_key *key, const int32_t *tokens, uint64_t limit,
                            infer_kv_seq *s);

/* The length that is known in any tier. Nothing changes. */
uint64_t infer_prefix_known(infer_prefix *t, const infer_prefix_key *key, const int32_t *tokens, uint64_t limit);

/* Tells the tree of a sequence whose first n_tokens tokens lie computed in its blocks. Its first *n_known blocks are
 * the tree's already (after a match: its length / block size); the further full ones go in, and *n_known counts them.
 * Where the tree has such a block in the pool, the sequence takes that one and gives its own up; where it has it in a
 * lower tier, the sequence's becomes the tree's. last: the sequence is about to be given back, so its last block goes
 * in too, however full, and the path counts as used now. */
void infer_prefix_insert(infer_prefix *t, const infer_prefix_key *key, const int32_t *tokens, uint64_t n_tokens,
                         infer_kv_seq *s, uint32_t *n_known, int last);

/* Gives back what only the tree holds, the cheapest to lose first, until the pool has n free blocks or there is none
 * left to give. Returns whether the pool has n. What goes to host memory is added to outs (room for n_places more): it
 * is to be copied before the blocks are written. outs NULL: nothing is kept.
 *
 * The order is GreedyDual (N. Young, 1994; P. Cao and S. Irani, "Cost-Aware WWW Proxy Caching Algorithms", 1997), in
 * each tier by itself: a leaf is worth its cost plus what the last one given back was worth when it was last used, and
 * the least worth goes, the least recently used among equals. The cost of a leaf of n tokens at position p is
 * n (1 + p / even_at), in proportion to the arithmetic of computing it again: per token 2 N for N weights and 4 d p a
 * layer for attention (J. Kaplan et al., "Scaling Laws for Neural Language Models", 2020, table 1). Equal costs make it
 * the least recently used. */
int infer_prefix_reclaim(infer_prefix *t, uint32_t n, infer_kv_move *outs, uint32_t *n_outs);

/* ---- Tiers below the pool ---------------------------------------------------------------------------------------- */

/* A node, as long as it is the same. */
typedef struct infer_prefix_ref {
    int32_t node;
    uint64_t id;
} infer_prefix_ref;

/* What can be done with a node. */
enum { INFER_PREFIX_GONE, INFER_PREFIX_IN_POOL, INFER_PREFIX_IN_HOST, INFER_PREFIX_IN_FILE, INFER_PREFIX_BUSY };

/* The nodes after a match (s: what it filled), of whole blocks of tokens[.. limit), at most `max`: how many. They count
 * as used now. */
uint32_t infer_prefix_path(infer_prefix *t, const infer_prefix_key *key, const int32_t *tokens, uint64_t limit,
                           const infer_kv_seq *s, infer_prefix_ref *path, uint32_t max);
/* INFER_PREFIX_*; BUSY: its content is on its way to host memory, from the pool or from the file. */
int infer_prefix_state(const infer_prefix *t, infer_prefix_ref ref);
/* Whether its content is being read from the file. */
int infer_prefix_is_read(const infer_prefix *t, infer_prefix_ref ref);
/* A node in a lower tier is not given up, but with what stands above it or by a failure, until it is let go as often
 * as it was held. */
void infer_prefix_hold(infer_prefix *t, infer_prefix_ref ref);
void infer_prefix_let_go(infer_prefix *t, infer_prefix_ref ref);
/* A node in host memory, with its parent in the pool, comes into a block that a sequence has just taken, with the step
 * that is built: *m is the copy. */
void infer_prefix_in(infer_prefix *t, infer_prefix_ref ref, int32_t block, infer_kv_move *m);

/* The step with these copies is done, or failed: what it was to bring out or in is nowhere. Of two that fail the later
 * one first. */
void infer_prefix_out_done(infer_prefix *t, const infer_kv_move *m, int ok);
void infer_prefix_in_done(infer_prefix *t, const infer_kv_move *m, int ok);

/* The next block that is to be written to the file; 0: none. */
int infer_prefix_write(infer_prefix *t, infer_kv_io *io);
/* A node in the file is to be read into host memory. 0: there is no place for it. */
int infer_prefix_read(infer_prefix *t, infer_prefix_ref ref, infer_kv_io *io);
/* Either is done. What could not be written or read is lost. */
void infer_prefix_io_done(infer_prefix *t, const infer_kv_io *io);

void infer_prefix_get_counts(const infer_prefix *t, uint32_t tier, infer_prefix_counts *out);
/* Nodes of all tiers; and whether all that is promised above holds (for tests: walks everything). */
uint32_t infer_prefix_n_nodes(const infer_prefix *t);
int infer_prefix_check(const infer_prefix *t);

#endif
