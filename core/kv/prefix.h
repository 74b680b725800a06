/*
 * The prefix cache: a radix tree over blocks. A node is one block of the pool with the tokens that its keys and values
 * are of; its place in the tree says which tokens come before them. A child's whole block of tokens tells it from its
 * siblings; a block that is not full is a leaf. Node i is block i, so the tree needs no memory after creation.
 *
 * The tree holds one reference to each of its blocks. Whoever holds a node's block holds the blocks of all nodes above
 * it (match shares paths from the top, insert replaces duplicates by what the tree has): so a block that only the tree
 * holds has nothing but such blocks below it, every one of them can be given back, leaves first, and
 * infer_kv_pool_idle is what the tree can give.
 *
 * Costs, for n blocks of b tokens: a block of a path is found in O(b log siblings), a leaf given back in O(log n)
 * amortized. One thread (the engine's); knows no device and no request. SPDX-License-Identifier: Apache-2.0
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

/* An empty tree over a pool, which outlives it. even_at >= 1: the position at which attention to what comes before
 * costs a token as much as everything else it costs; it weighs what computing a block again would take. */
infer_status infer_prefix_create(infer_kv_pool *pool, uint64_t even_at, infer_prefix **out, infer_error *err);
/* Gives its references back. NULL is none. */
void infer_prefix_destroy(infer_prefix *t);

/* Fills an empty sequence with the longest known prefix of tokens[0 .. limit), to the token: whole blocks, and the
 * beginning of a last one where it ends inside a block, all shared (growing the sequence copies a shared last block).
 * The path counts as used now. Returns the length, at most the sequence's max_tokens. */
uint64_t infer_prefix_match(infer_prefix *t, const infer_prefix_key *key, const int32_t *tokens, uint64_t limit,
                            infer_kv_seq *s);

/* The length that a match would find. Nothing changes. */
uint64_t infer_prefix_known(infer_prefix *t, const infer_prefix_key *key, const int32_t *tokens, uint64_t limit);

/* Tells the tree of a sequence whose first n_tokens tokens lie computed in its blocks. Its first *n_known blocks are
 * the tree's already (after a match: its length / block size); the further full ones go in, and *n_known counts them.
 * Where the tree has such a block, the sequence takes that one and gives its own up. last: the sequence is about to be
 * given back, so its last block goes in too, however full, and the path counts as used now. */
void infer_prefix_insert(infer_prefix *t, const infer_prefix_key *key, const int32_t *tokens, uint64_t n_tokens,
                         infer_kv_seq *s, uint32_t *n_known, int last);

/* Gives back what only the tree holds, the cheapest to lose first, until the pool has n free blocks or there is none
 * left to give. Returns whether the pool has n.
 *
 * The order is GreedyDual (N. Young, 1994; P. Cao and S. Irani, "Cost-Aware WWW Proxy Caching Algorithms", 1997): a
 * leaf is worth its cost plus what the last one given back was worth when it was last used, and the least worth goes,
 * the least recently used among equals. The cost of a leaf of n tokens at position p is n (1 + p / even_at), in
 * proportion to the arithmetic of computing it again: per token 2 N for N weights and 4 d p a layer for attention (J.
 * Kaplan et al., "Scaling Laws for Neural Language Models", 2020, table 1). Equal costs make it the least recently
 * used. */
int infer_prefix_reclaim(infer_prefix *t, uint32_t n);

/* Nodes; and whether all that is promised above holds (for tests: walks everything). */
uint32_t infer_prefix_n_nodes(const infer_prefix *t);
int infer_prefix_check(const infer_prefix *t);

#endif
