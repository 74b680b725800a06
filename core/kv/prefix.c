/* The prefix cache's tree: siblings in a treap by their tokens, leaves in a heap by their worth.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "kv/prefix.h"

#define NONE      (-1)
#define NO_PLACE  UINT32_MAX
#define COST_UNIT 1024u /* of a token at position 0 */

typedef struct node {
    int32_t parent;      /* NONE: at the top */
    int32_t children;    /* root of the treap of its children */
    int32_t left, right; /* in its siblings' treap */
    uint32_t depth;      /* blocks above it */
    uint32_t n_tokens;   /* 0: no node */
    uint32_t place;      /* in the heap; NO_PLACE: it has children */
    uint64_t worth, used;
    infer_prefix_key key; /* its path's */
} node;

struct infer_prefix {
    infer_kv_pool *pool;
    uint32_t n_blocks, block_size, n_nodes;
    node *nodes;     /* by block */
    int32_t *tokens; /* block_size for each block */
    int32_t top;     /* treap of those without a parent */
    int32_t *heap;   /* leaves, the least worth first */
    uint32_t n_heap;
    uint64_t clock, base, even_at, max_cost;
};

static uint64_t cost_of(const infer_prefix *t, uint64_t n_tokens, uint64_t pos)
{
    return n_tokens * (COST_UNIT + COST_UNIT * pos / t->even_at);
}

infer_status infer_prefix_create(infer_kv_pool *pool, uint64_t even_at, infer_prefix **out, infer_error *err)
{
    const uint32_t n = infer_kv_pool_total(pool), size = infer_kv_pool_block_size(pool);
    infer_prefix *t = infer_calloc(1, sizeof *t);
    if (!t)
        goto no_memory;
    t->pool = pool;
    t->n_blocks = n;
    t->block_size = size;
    t->even_at = even_at ? even_at : 1;
    t->max_cost = cost_of(t, size, (uint64_t)n * size);
    t->top = NONE;
    t->nodes = infer_calloc(n, sizeof *t->nodes);
    t->heap = infer_calloc(n, sizeof *t->heap);
    t->tokens = infer_calloc((size_t)n * size, sizeof *t->tokens);
    if (!t->nodes || !t->heap || !t->tokens)
        goto no_memory;
    *out = t;
    return INFER_OK;
no_memory:
    infer_prefix_destroy(t);
    return infer_error_set(err, INFER_E_NO_MEMORY, "prefix cache: no host memory for %u block records", n);
}

void infer_prefix_destroy(infer_prefix *t)
{
    if (!t)
        return;
    for (uint32_t i = 0; t->nodes && i < t->n_blocks; i++)
        if (t->nodes[i].n_tokens)
            infer_kv_pool_unkeep(t->pool, (int32_t)i);
    infer_free(t->nodes);
    infer_free(t->heap);
    infer_free(t->tokens);
    infer_free(t);
}

uint32_t infer_prefix_n_nodes(const infer_prefix *t)
{
    return t->n_nodes;
}

/* ---- The heap of leaves ------------------------------------------------------------------------------------------ */

static int worth_less(const node *a, const node *b)
{
    return a->worth != b->worth ? a->worth < b->worth : a->used < b->used;
}

static void heap_put(infer_prefix *t, uint32_t at, int32_t b)
{
    t->heap[at] = b;
    t->nodes[b].place = at;
}

/* Brings what stands at a place to where it belongs. */
static void heap_settle(infer_prefix *t, uint32_t at)
{
    const int32_t b = t->heap[at];
    const node *x = &t->nodes[b];
    while (at && worth_less(x, &t->nodes[t->heap[(at - 1) / 2]])) {
        heap_put(t, at, t->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (uint32_t c; (c = 2 * at + 1) < t->n_heap; at = c) {
        c += c + 1 < t->n_heap && worth_less(&t->nodes[t->heap[c + 1]], &t->nodes[t->heap[c]]);
        if (!worth_less(&t->nodes[t->heap[c]], x))
            break;
        heap_put(t, at, t->heap[c]);
    }
    heap_put(t, at, b);
}

static void heap_add(infer_prefix *t, int32_t b)
{
    heap_put(t, t->n_heap++, b);
    heap_settle(t, t->n_heap - 1);
}

static void heap_remove(infer_prefix *t, int32_t b)
{
    const uint32_t at = t->nodes[b].place;
    t->nodes[b].place = NO_PLACE;
    if (at == --t->n_heap)
        return;
    heap_put(t, at, t->heap[t->n_heap]);
    heap_settle(t, at);
}

/* The node is used now. */
static void touch(infer_prefix *t, int32_t b)
{
    node *x = &t->nodes[b];
    x->worth = t->base + cost_of(t, x->n_tokens, (uint64_t)x->depth * t->block_size);
    x->used = ++t->clock;
    if (x->place != NO_PLACE)
        heap_settle(t, x->place);
}

/* ---- Siblings: a treap in order of key (at the top) and tokens --------------------------------------------------- */

/* What is looked for among the children of `parent`: n tokens. */
typedef struct wanted {
    int32_t parent;
    const infer_prefix_key *key;
    const int32_t *tokens;
    uint32_t n;
} wanted;

/* Order of a wanted run of tokens against a node's; a run comes before its extensions. *common: equal tokens that both
 * begin with. */
static int compare(const infer_prefix *t, const wanted *w, int32_t b, uint32_t *common)
{
    const node *x = &t->nodes[b];
    *common = 0;
    if (w->parent == NONE) {
        for (int i = 0; i < 2; i++)
            if (w->key->w[i] != x->key.w[i])
                return w->key->w[i] < x->key.w[i] ? -1 : 1;
    }
    const int32_t *y = t->tokens + (size_t)b * t->block_size;
    uint32_t n = w->n < x->n_tokens ? w->n : x->n_tokens, i = 0;
    while (i < n && w->tokens[i] == y[i])
        i++;
    *common = i;
    if (i < n)
        return w->tokens[i] < y[i] ? -1 : 1;
    return w->n == x->n_tokens ? 0 : w->n < x->n_tokens ? -1 : 1;
}

static int32_t *children_of(infer_prefix *t, int32_t parent)
{
    return parent == NONE ? &t->top : &t->nodes[parent].children;
}

/* The child that has the most tokens in common with those wanted, and how many; NONE without any. It is a neighbour in
 * their order, so that it lies on the way to where they belong. */
static int32_t closest(infer_prefix *t, const wanted *w, uint32_t *common)
{
    int32_t best = NONE;
    *common = 0;
    for (int32_t at = *children_of(t, w->parent); at != NONE;) {
        uint32_t n;
        int order = compare(t, w, at, &n);
        if (n > *common) {
            *common = n;
            best = at;
        }
        if (!order)
            break;
        at = order < 0 ? t->nodes[at].left : t->nodes[at].right;
    }
    return best;
}

/* A node's priority: fixed, and unlike its neighbours'. */
static uint64_t priority(int32_t b)
{
    return infer_hash_u64((uint64_t)(uint32_t)b);
}

static void treap_insert(infer_prefix *t, const wanted *w, int32_t b)
{
    int32_t *link = children_of(t, w->parent);
    uint32_t n;
    while (*link != NONE && priority(*link) > priority(b))
        link = compare(t, w, *link, &n) < 0 ? &t->nodes[*link].left : &t->nodes[*link].right;
    /* what stood here is parted into what comes before it and what comes after */
    int32_t rest = *link, *before = &t->nodes[b].left, *after = &t->nodes[b].right;
    *link = b;
    while (rest != NONE) {
        if (compare(t, w, rest, &n) < 0) {
            *after = rest;
            after = &t->nodes[rest].left;
            rest = *after;
        } else {
            *before = rest;
            before = &t->nodes[rest].right;
            rest = *before;
        }
    }
    *before = *after = NONE;
}

static void treap_remove(infer_prefix *t, int32_t b)
{
    const node *x = &t->nodes[b];
    const wanted w = {x->parent, &x->key, t->tokens + (size_t)b * t->block_size, x->n_tokens};
    int32_t *link = children_of(t, x->parent), l = x->left, r = x->right;
    uint32_t n;
    while (*link != b)
        link = compare(t, &w, *link, &n) < 0 ? &t->nodes[*link].left : &t->nodes[*link].right;
    while (l != NONE && r != NONE) {
        if (priority(l) > priority(r)) {
            *link = l;
            link = &t->nodes[l].right;
            l = *link;
        } else {
            *link = r;
            link = &t->nodes[r].left;
            r = *link;
        }
    }
    *link = l != NONE ? l : r;
}

/* ---- Nodes ------------------------------------------------------------------------------------------------------- */

static void add_node(infer_prefix *t, const wanted *w, int32_t b)
{
    node *x = &t->nodes[b];
    *x = (node){.parent = w->parent,
                .children = NONE,
                .left = NONE,
                .right = NONE,
                .depth = w->parent == NONE ? 0 : t->nodes[w->parent].depth + 1,
                .n_tokens = w->n,
                .place = NO_PLACE,
                .key = *w->key};
    memcpy(t->tokens + (size_t)b * t->block_size, w->tokens, w->n * sizeof *w->tokens);
    if (w->parent != NONE && t->nodes[w->parent].place != NO_PLACE)
        heap_remove(t, w->parent);
    treap_insert(t, w, b);
    infer_kv_pool_keep(t->pool, b);
    t->n_nodes++;
    touch(t, b);
    heap_add(t, b);
}

/* Takes a leaf out; its parent may become one. */
static void remove_leaf(infer_prefix *t, int32_t b)
{
    const int32_t parent = t->nodes[b].parent;
    heap_remove(t, b);
    treap_remove(t, b);
    t->nodes[b].n_tokens = 0;
    t->n_nodes--;
    infer_kv_pool_unkeep(t->pool, b);
    if (parent != NONE && t->nodes[parent].children == NONE)
        heap_add(t, parent);
}

/* ---- Match, insert, give back ------------------------------------------------------------------------------------ */

uint64_t infer_prefix_match(infer_prefix *t, const infer_prefix_key *key, const int32_t *tokens, uint64_t limit,
                            infer_kv_seq *s)
{
    const uint32_t size = t->block_size;
    wanted w = {.parent = NONE, .key = key};
    uint32_t common = size;
    if (limit > s->max_tokens)
        limit = s->max_tokens;
    for (uint64_t at = 0; at < limit && common == size; at += common) {
        w.tokens = tokens + at;
        w.n = limit - at < size ? (uint32_t)(limit - at) : size;
        const int32_t b = closest(t, &w, &common);
        if (b == NONE || !infer_kv_seq_share(t->pool, s, b, common))
            break;
        touch(t, b);
        w.parent = b;
    }
    return s->n_tokens;
}

uint64_t infer_prefix_known(infer_prefix *t, const infer_prefix_key *key, const int32_t *tokens, uint64_t limit)
{
    wanted w = {.parent = NONE, .key = key};
    uint32_t common = t->block_size;
    uint64_t at = 0;
    for (; at < limit && common == t->block_size; at += common) {
        w.tokens = tokens + at;
        w.n = limit - at < t->block_size ? (uint32_t)(limit - at) : t->block_size;
        if ((w.parent = closest(t, &w, &common)) == NONE)
            break;
    }
    return at;
}

void infer_prefix_insert(infer_prefix *t, const infer_prefix_key *key, const int32_t *tokens, uint64_t n_tokens,
                         infer_kv_seq *s, uint32_t *n_known, int last)
{
    const uint32_t size = t->block_size;
    for (uint32_t i = 0; last && i < *n_known; i++)
        touch(t, s->blocks[i]);
    for (uint32_t i = *n_known;; i++) {
        const uint64_t at = (uint64_t)i * size;
        const uint32_t n = n_tokens - at < size ? (uint32_t)(n_tokens - at) : size;
        if (!n || (n < size && !last))
            return;
        const wanted w = {i ? s->blocks[i - 1] : NONE, key, tokens + at, n};
        uint32_t common;
        const int32_t b = closest(t, &w, &common);
        if (common == n && n < size) { /* the tree has that and perhaps more */
            touch(t, b);
            return;
        }
        if (common == size) {
            touch(t, b);
            if (b != s->blocks[i])
                infer_kv_seq_swap(t->pool, s, i, b);
        } else {
            if (b != NONE && common == t->nodes[b].n_tokens) /* a leaf that this one goes on from */
                remove_leaf(t, b);
            add_node(t, &w, s->blocks[i]);
        }
        if (n < size)
            return;
        *n_known = i + 1;
    }
}

int infer_prefix_reclaim(infer_prefix *t, uint32_t n)
{
    /* Leaves in use are set behind every other as they come up, each once before one that can go. */
    uint32_t in_use = 0;
    while (infer_kv_pool_free(t->pool) < n && infer_kv_pool_idle(t->pool) && in_use < t->n_heap) {
        const int32_t b = t->heap[0];
        node *x = &t->nodes[b];
        if (infer_kv_pool_refs(t->pool, b) > 1) {
            x->worth = t->base + t->max_cost + 1;
            x->used = ++t->clock; /* also behind those that were set so before */
            heap_settle(t, 0);
            in_use++;
            continue;
        }
        in_use = 0;
        if (x->worth > t->base)
            t->base = x->worth;
        remove_leaf(t, b);
    }
    return infer_kv_pool_free(t->pool) >= n;
}

/* ---- For tests --------------------------------------------------------------------------------------------------- */

/* Whether node b stands where its tokens belong, and its links agree. */
static int node_is_right(const infer_prefix *t, int32_t b)
{
    const node *x = &t->nodes[b];
    const wanted w = {x->parent, &x->key, t->tokens + (size_t)b * t->block_size, x->n_tokens};
    int32_t at = x->parent == NONE ? t->top : t->nodes[x->parent].children;
    uint32_t n, depth = 0;
    while (at != NONE && at != b) {
        if (priority(at) < priority(b))
            return 0;
        int order = compare(t, &w, at, &n);
        if (n == w.n || n == t->nodes[at].n_tokens) /* a sibling goes on from the other */
            return 0;
        at = order < 0 ? t->nodes[at].left : t->nodes[at].right;
    }
    for (int32_t up = x->parent; up != NONE; up = t->nodes[up].parent, depth++) {
        const node *a = &t->nodes[up];
        if (a->n_tokens != t->block_size || a->place != NO_PLACE || memcmp(&a->key, &x->key, sizeof x->key) ||
            infer_kv_pool_refs(t->pool, up) < infer_kv_pool_refs(t->pool, b))
            return 0;
    }
    const int leaf = x->children == NONE;
    return at == b && depth == x->depth && x->n_tokens <= t->block_size && infer_kv_pool_is_kept(t->pool, b) &&
           (leaf ? x->place < t->n_heap && t->heap[x->place] == b : x->place == NO_PLACE) &&
           (!leaf || !x->place || !worth_less(x, &t->nodes[t->heap[(x->place - 1) / 2]]));
}

int infer_prefix_check(const infer_prefix *t)
{
    uint32_t n = 0, leaves = 0, idle = 0;
    for (uint32_t i = 0; i < t->n_blocks; i++) {
        const int32_t b = (int32_t)i;
        if (!t->nodes[i].n_tokens) {
            if (infer_kv_pool_is_kept(t->pool, b))
                return 0;
            continue;
        }
        if (!node_is_right(t, b))
            return 0;
        n++;
        leaves += t->nodes[i].children == NONE;
        idle += infer_kv_pool_refs(t->pool, b) == 1;
    }
    return n == t->n_nodes && leaves == t->n_heap && idle == infer_kv_pool_idle(t->pool);
}
