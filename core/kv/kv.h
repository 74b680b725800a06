/*
 * The paged cache manager: one logical page table over all devices. A block id means the same tokens on every device;
 * what lies where is the devices' affair (planes of the layers that live there). Reference counts, copy-on-write,
 * truncation. One thread (the engine's); no allocation after creation except where said. SPDX-License-Identifier:
 * Apache-2.0
 */
#ifndef INFER_KV_KV_H
#define INFER_KV_KV_H

#include <stdint.h>

#include <infer/backend.h>

#include "base/error.h"

typedef struct infer_kv_pool infer_kv_pool;

/* n_blocks >= 1 ids of block_size tokens each. */
infer_status infer_kv_pool_create(uint32_t n_blocks, uint32_t block_size, infer_kv_pool **out, infer_error *err);
void infer_kv_pool_destroy(infer_kv_pool *p);
uint32_t infer_kv_pool_block_size(const infer_kv_pool *p);
uint32_t infer_kv_pool_total(const infer_kv_pool *p);
uint32_t infer_kv_pool_free(const infer_kv_pool *p);
/* References to a block (0: free). */
uint32_t infer_kv_pool_refs(const infer_kv_pool *p, int32_t block);
/* For the prefix tree: takes a reference of its own to a block in use, at most one to each, and gives it back. Idle
 * blocks are those that nobody else holds. */
void infer_kv_pool_keep(infer_kv_pool *p, int32_t block);
void infer_kv_pool_unkeep(infer_kv_pool *p, int32_t block);
int infer_kv_pool_is_kept(const infer_kv_pool *p, int32_t block);
uint32_t infer_kv_pool_idle(const infer_kv_pool *p);
/* Slots of sequences' last blocks that hold none of their tokens, summed over all sequences. */
uint64_t infer_kv_pool_slack(const infer_kv_pool *p);

/* One sequence's pages: token t lies in blocks[t / block_size]; there is no block without a token. */
typedef struct infer_kv_seq {
    int32_t *blocks;
    uint32_t n_blocks;
    int32_t last; /* the last of them, here as most steps look at no other */
    uint64_t n_tokens, max_tokens;
    uint64_t edition; /* no two sequences that hold blocks have the same, and another one comes with every change but
                         blocks that are appended: a copy of the table of the same edition lacks those at most */
} infer_kv_seq;

/* A block whose content must be copied (all layers and planes) before the step that reads or writes `dst`. */
typedef struct infer_kv_copy {
    int32_t src, dst;
} infer_kv_copy;

/* A block's content on its way out of the pool to a place in host memory, or back. */
typedef struct infer_kv_move {
    int32_t block, place;
    int32_t node; /* of the prefix tree; -1: a request's */
    uint64_t id;  /* the node's serial number, or the request's */
} infer_kv_move;

/* A place's content on its way to a file, or back. */
typedef struct infer_kv_io {
    uint32_t is_write;
    int32_t place, slot; /* in host memory; in the file */
    int32_t node;        /* of the prefix tree */
    uint64_t id;         /* its serial number */
    int ok;              /* when it is done */
    uint64_t ns;         /* that it took */
} infer_kv_io;

/* Makes room for a table of max_tokens tokens; the only allocation of a sequence. */
infer_status infer_kv_seq_init(const infer_kv_pool *p, infer_kv_seq *s, uint64_t max_tokens, infer_error *err);
/* Gives all blocks back and frees the table. Safe on a zeroed struct. */
void infer_kv_seq_free(infer_kv_pool *p, infer_kv_seq *s);
/* Blocks that growing by n_more tokens would take from the pool (fresh ones and one for copy-on-write). */
uint32_t infer_kv_seq_need(const infer_kv_pool *p, const infer_kv_seq *s, uint64_t n_more);
/* Grows the sequence by n_more tokens. A last block that is shared is replaced by a fresh one, reported in *copy with
 * *n_copy = 1. INFER_E_NO_MEMORY leaves everything as it was; INFER_E_TOO_LARGE: over max_tokens. */
infer_status infer_kv_seq_grow(infer_kv_pool *p, infer_kv_seq *s, uint64_t n_more, infer_kv_copy *copy,
                               uint32_t *n_copy);
/* Forgets tokens from n_tokens on and gives back blocks that hold none. */
void infer_kv_seq_truncate(infer_kv_pool *p, infer_kv_seq *s, uint64_t n_tokens);
/* For who grows many sequences by turns: asks memory for what growing this one will read. */
void infer_kv_seq_foresee(const infer_kv_pool *p, const infer_kv_seq *s);
/* Makes `child` (initialised, empty) share all of `parent`'s blocks. INFER_E_INVALID: it is not empty, or too short. */
infer_status infer_kv_seq_fork(infer_kv_pool *p, const infer_kv_seq *parent, infer_kv_seq *child);
/* Appends a block in use, the first n_tokens (at least one) of whose tokens become the sequence's; it must end on a
 * block's edge. 0: its table is full, or its max_tokens too few, and nothing changed. */
int infer_kv_seq_share(infer_kv_pool *p, infer_kv_seq *s, int32_t block, uint32_t n_tokens);
/* Puts another block in use, which holds the same, in place of block i. */
void infer_kv_seq_swap(infer_kv_pool *p, infer_kv_seq *s, uint32_t i, int32_t block);
/* The cache slot of token t: block * block_size + offset. */
int32_t infer_kv_seq_slot(const infer_kv_pool *p, const infer_kv_seq *s, uint64_t t);

/* ---- Groups: how the planes of some layers lie in a device's KV buffer ------------------------------------------ */

/* Byte layout on one device: for each of its layers, in order, K plane then V plane, each n_blocks blocks. */
typedef struct infer_kv_layout {
    infer_kv_spec spec;
    uint32_t block_size;
    uint64_t n_blocks;
    uint64_t plane_bytes[4];  /* of one layer */
    uint64_t plane_offset[4]; /* within a layer */
    uint64_t layer_bytes;
    uint64_t total_bytes;
} infer_kv_layout;

/* Bytes of one block of one layer, all planes, at a block size (canonical layout). */
infer_status infer_kv_block_bytes(const infer_kv_spec *spec, uint32_t block_size, uint64_t planes[4], uint64_t *total);
/* block_bytes: of a block of each plane, as the device's kv_query has it; NULL: the canonical layout's. */
infer_status infer_kv_layout_make(const infer_kv_spec *spec, uint32_t block_size, uint64_t n_blocks, uint32_t align,
                                  const uint64_t block_bytes[4], infer_kv_layout *out);
/* The longest beginning of n computed tokens that a sequence can go on from, where all blocks of those tokens are kept.
 * Full, latent and window groups: all n (a window's rows are among the blocks kept). Recurrent: 0, as its state after
 * those tokens is kept nowhere. Encoder: 0, as its rows are of another input than the tokens. */
uint64_t infer_kv_group_serves(const infer_kv_spec *spec, uint64_t n);
/* Offset and size of a plane of a layer (absolute layer number, within spec's range). */
void infer_kv_layout_plane(const infer_kv_layout *l, uint32_t layer, uint32_t plane, uint64_t *offset, uint64_t *bytes);

#endif
