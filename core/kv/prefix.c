/* The prefix cache's tree: siblings in a treap by their tokens, leaves of each tier in a heap by their worth.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "kv/prefix_private.h"

static infer_status allocate(infer_prefix *t)
{
    const uint32_t per_tier[] = {t->n_blocks, t->n_places, t->n_slots};
    t->nodes = infer_calloc(t->cap, sizeof *t->nodes);
    t->free_nodes = infer_calloc(t->cap, sizeof *t->free_nodes);
    t->tokens = infer_calloc((size_t)t->cap * t->block_size, sizeof *t->tokens);
    t->node_of = infer_calloc(t->n_blocks, sizeof *t->node_of);
    t->free_places = infer_calloc(t->n_places, sizeof *t->free_places);
    t->place_refs = infer_calloc(t->n_places, 1);
    t->free_slots = infer_calloc(t->n_slots, sizeof *t->free_slots);
    if (!t->nodes || !t->free_nodes || !t->tokens || !t->node_of || !t->free_places || !t->place_refs || !t->free_slots)
        return INFER_E_NO_MEMORY;
    for (uint32_t i = 0; i < INFER_TIER_COUNT; i++)
        if (!(t->heaps[i].at = infer_calloc(per_tier[i], sizeof *t->heaps[i].at)))
            return INFER_E_NO_MEMORY;
    return INFER_OK;
}

/* A stack of n numbers from `first` on, the least on top. */
static uint32_t fill_stack(int32_t *stack, int32_t first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        stack[i] = first + (int32_t)(n - 1 - i);
    return n;
}

infer_status infer_prefix_create(infer_kv_pool *pool, const infer_prefix_options *o, infer_prefix **out,
                                 infer_error *err)
{
    const uint32_t n = infer_kv_pool_total(pool), size = infer_kv_pool_block_size(pool);
    const uint64_t cap = (uint64_t)n + o->n_places + o->n_slots;
    if (cap > INT32_MAX)
        return infer_error_set(err, INFER_E_TOO_LARGE, "prefix cache: %llu blocks are too many",
                               (unsigned long long)cap);
    infer_prefix *t = infer_calloc(1, sizeof *t);
    if (!t)
        goto no_memory;
    t->pool = pool;
    t->n_blocks = n;
    t->block_size = size;
    t->cap = (uint32_t)cap;
    t->even_at = o->even_at ? o->even_at : 1;
    t->max_cost = cost_of(t, size, (uint64_t)n * size);
    t->top = NONE;
    t->step = 1; /* after what no step brought */
    t->first_place = o->first_place;
    t->n_places = o->n_places;
    t->n_stage = o->n_slots ? o->n_stage : 0;
    t->n_slots = o->n_places ? o->n_slots : 0;
    if (allocate(t) != INFER_OK)
        goto no_memory;
    fill_stack(t->free_nodes, 0, t->cap);
    t->n_free_places = fill_stack(t->free_places, t->first_place, t->n_places);
    t->n_free_slots = fill_stack(t->free_slots, 0, t->n_slots);
    for (uint32_t i = 0; i < n; i++)
        t->node_of[i] = NONE;
    *out = t;
    return INFER_OK;
no_memory:
    infer_prefix_destroy(t);
    return infer_error_set(err, INFER_E_NO_MEMORY, "prefix cache: no host memory for %llu block records",
                           (unsigned long long)cap);
}

void infer_prefix_destroy(infer_prefix *t)
{
    if (!t)
        return;
    for (uint32_t i = 0; t->nodes && t->node_of && i < t->cap; i++)
        if (t->nodes[i].n_tokens && t->nodes[i].block != NONE)
            infer_kv_pool_unkeep(t->pool, t->nodes[i].block);
    for (uint32_t i = 0; i < INFER_TIER_COUNT; i++)
        infer_free(t->heaps[i].at);
    infer_free(t->nodes);
    infer_free(t->free_nodes);
    infer_free(t->tokens);
    infer_free(t->node_of);
    infer_free(t->free_places);
    infer_free(t->place_refs);
    infer_free(t->free_slots);
    infer_free(t);
}

uint32_t infer_prefix_n_nodes(const infer_prefix *t)
{
    return t->n_nodes;
}

void infer_prefix_step(infer_prefix *t)
{
    t->step++;
}

/* ---- The heaps of leaves ----------------------------------------------------------------------------------------- */

static int worth_less(const node *a, const node *b)
{
    return a->worth != b->worth ? a->worth < b->worth : a->used < b->used;
}

static void heap_put(infer_prefix *t, heap *h, uint32_t at, int32_t b)
{
    h->at[at] = b;
    t->nodes[b].rank = at;
}

void prefix_settle(infer_prefix *t, heap *h, uint32_t at)
{
    const int32_t b = h->at[at];
    const node *x = &t->nodes[b];
    while (at && worth_less(x, &t->nodes[h->at[(at - 1) / 2]])) {
        heap_put(t, h, at, h->at[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (uint32_t c; (c = 2 * at + 1) < h->n; at = c) {
        c += c + 1 < h->n && worth_less(&t->nodes[h->at[c + 1]], &t->nodes[h->at[c]]);
        if (!worth_less(&t->nodes[h->at[c]], x))
            break;
        heap_put(t, h, at, h->at[c]);
    }
    heap_put(t, h, at, b);
}

/* Whether nothing but its worth decides whether it leaves its tier next. In the pool references do the holding. */
static int is_loose(const node *x)
{
    return !x->kids[x->tier] && (x->tier == INFER_TIER_POOL || !x->holds);
}

void prefix_rank(infer_prefix *t, int32_t b)
{
    node *x = &t->nodes[b];
    heap *h = &t->heaps[x->tier];
    if (is_loose(x) == (x->rank != NO_RANK))
        return;
    if (x->rank == NO_RANK) {
        heap_put(t, h, h->n++, b);
        prefix_settle(t, h, h->n - 1);
        return;
    }
    const uint32_t at = x->rank;
    x->rank = NO_RANK;
    if (at == --h->n)
        return;
    heap_put(t, h, at, h->at[h->n]);
    prefix_settle(t, h, at);
}

void prefix_touch(infer_prefix *t, int32_t b)
{
    node *x = &t->nodes[b];
    x->worth = t->heaps[x->tier].base + cost_of(t, x->n_tokens, (uint64_t)x->depth * t->block_size);
    x->used = ++t->clock;
    if (x->rank != NO_RANK)
        prefix_settle(t, &t->heaps[x->tier], x->rank);
}

/* A node's parent has one kid more, or one less, in a tier. */
static void count_kid(infer_prefix *t, int32_t parent, uint32_t tier, int by)
{
    if (parent == NONE)
        return;
    t->nodes[parent].kids[tier] += (uint32_t)by;
    prefix_rank(t, parent);
}

/* Into the book of a tier, or out of it. */
static void enter_tier(infer_prefix *t, int32_t b, uint32_t tier)
{
    node *x = &t->nodes[b];
    x->tier = (uint8_t)tier;
    t->counts[tier].nodes++;
    count_kid(t, x->parent, tier, 1);
    prefix_touch(t, b);
    prefix_rank(t, b);
}

static void leave_tier(infer_prefix *t, int32_t b)
{
    node *x = &t->nodes[b];
    x->kids[x->tier]++; /* as if: out of the heap */
    prefix_rank(t, b);
    x->kids[x->tier]--;
    t->counts[x->tier].nodes--;
    count_kid(t, x->parent, x->tier, -1);
}

void prefix_set_tier(infer_prefix *t, int32_t b, uint32_t tier)
{
    leave_tier(t, b);
    enter_tier(t, b, tier);
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

static void add_node(infer_prefix *t, const wanted *w, int32_t block)
{
    /* There is a record: what is in use is in the pool, in a place or in a slot, and there are as many as of these. */
    const int32_t b = t->free_nodes[t->cap - ++t->n_nodes];
    node *x = &t->nodes[b];
    *x = (node){.parent = w->parent,
                .children = NONE,
                .left = NONE,
                .right = NONE,
                .depth = w->parent == NONE ? 0 : t->nodes[w->parent].depth + 1,
                .n_tokens = w->n,
                .rank = NO_RANK,
                .block = block,
                .place = NONE,
                .slot = NONE,
                .id = ++t->last_id,
                .key = *w->key};
    memcpy(t->tokens + (size_t)b * t->block_size, w->tokens, w->n * sizeof *w->tokens);
    treap_insert(t, w, b);
    infer_kv_pool_keep(t->pool, block);
    t->node_of[block] = b;
    enter_tier(t, b, INFER_TIER_POOL);
}

/* Takes out a node with nothing below it. */
static void remove_leaf(infer_prefix *t, int32_t b)
{
    leave_tier(t, b);
    treap_remove(t, b);
    tiers_release(t, b);
    t->nodes[b].n_tokens = 0;
    t->free_nodes[t->cap - t->n_nodes--] = b;
}

uint32_t prefix_remove(infer_prefix *t, int32_t b)
{
    uint32_t n = 0;
    for (int32_t at = b;;) {
        while (t->nodes[at].children != NONE)
            at = t->nodes[at].children;
        const int32_t up = t->nodes[at].parent;
        n += t->nodes[at].tier != INFER_TIER_POOL;
        remove_leaf(t, at);
        if (at == b)
            return n;
        at = up;
    }
}

/* ---- Match and insert -------------------------------------------------------------------------------------------- */

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
        if (b == NONE || t->nodes[b].tier != INFER_TIER_POOL)
            break;
        /* a step's copies of shared blocks come before those from host memory */
        if (common < size && t->nodes[b].came == t->step)
            break;
        if (!infer_kv_seq_share(t->pool, s, t->nodes[b].block, common))
            break;
        prefix_touch(t, b);
        w.parent = b;
    }
    return s->n_tokens;
}

uint32_t infer_prefix_path(infer_prefix *t, const infer_prefix_key *key, const int32_t *tokens, uint64_t limit,
                           const infer_kv_seq *s, infer_prefix_ref *path, uint32_t max)
{
    const uint32_t size = t->block_size;
    wanted w = {.parent = s->n_blocks ? t->node_of[s->blocks[s->n_blocks - 1]] : NONE, .key = key, .n = size};
    uint32_t common, n = 0;
    if (s->n_tokens % size || (s->n_blocks && w.parent == NONE))
        return 0;
    for (uint64_t at = s->n_tokens; n < max && limit - at >= size; at += size) {
        w.tokens = tokens + at;
        w.parent = closest(t, &w, &common);
        if (w.parent == NONE || common < size || t->nodes[w.parent].tier == INFER_TIER_POOL)
            break;
        prefix_touch(t, w.parent);
        path[n++] = (infer_prefix_ref){w.parent, t->nodes[w.parent].id};
    }
    return n;
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
        if (t->node_of[s->blocks[i]] != NONE)
            prefix_touch(t, t->node_of[s->blocks[i]]);
    for (uint32_t i = *n_known;; i++) {
        const uint64_t at = (uint64_t)i * size;
        const uint32_t n = n_tokens - at < size ? (uint32_t)(n_tokens - at) : size;
        if (!n || (n < size && !last))
            return;
        const wanted w = {i ? t->node_of[s->blocks[i - 1]] : NONE, key, tokens + at, n};
        if (i && w.parent == NONE) /* a failure took it out of the tree */
            return;
        uint32_t common;
        const int32_t b = closest(t, &w, &common);
        if (common == n && n < size) { /* the tree has that and perhaps more */
            prefix_touch(t, b);
            return;
        }
        if (common == size) {
            if (t->nodes[b].tier != INFER_TIER_POOL)
                tiers_to_pool(t, b, s->blocks[i]);
            prefix_touch(t, b);
            if (t->nodes[b].block != s->blocks[i])
                infer_kv_seq_swap(t->pool, s, i, t->nodes[b].block);
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
        if (a->n_tokens != t->block_size || a->tier > x->tier || memcmp(&a->key, &x->key, sizeof x->key))
            return 0;
        if (x->tier == INFER_TIER_POOL && infer_kv_pool_refs(t->pool, a->block) < infer_kv_pool_refs(t->pool, x->block))
            return 0;
    }
    const heap *h = &t->heaps[x->tier];
    const int loose = is_loose(x);
    return at == b && depth == x->depth && x->n_tokens <= t->block_size &&
           (x->n_tokens == t->block_size || x->tier == INFER_TIER_POOL) &&
           (loose ? x->rank < h->n && h->at[x->rank] == b : x->rank == NO_RANK) &&
           (!loose || !x->rank || !worth_less(x, &t->nodes[h->at[(x->rank - 1) / 2]]));
}

/* Whether a node's content lies where its tier says. */
static int content_is_right(const infer_prefix *t, int32_t b)
{
    const node *x = &t->nodes[b];
    if ((x->tier == INFER_TIER_POOL) != (x->block != NONE) || x->holds < (x->busy != BUSY_NOT))
        return 0;
    if (x->place != NONE && !t->place_refs[x->place - t->first_place])
        return 0;
    switch (x->tier) {
    case INFER_TIER_POOL:
        return t->node_of[x->block] == b && infer_kv_pool_is_kept(t->pool, x->block) && x->place == NONE;
    case INFER_TIER_HOST:
        return x->place != NONE && x->busy != BUSY_READ;
    default:
        return x->slot != NONE && (x->place != NONE) == (x->busy == BUSY_READ);
    }
}

int infer_prefix_check(const infer_prefix *t)
{
    uint32_t n = 0, idle = 0, kept = 0, places = 0, slots = 0, loose[INFER_TIER_COUNT] = {0},
             in[INFER_TIER_COUNT] = {0}, kids = 0, below = 0;
    for (uint32_t i = 0; i < t->n_blocks; i++)
        kept += (uint32_t)infer_kv_pool_is_kept(t->pool, (int32_t)i);
    for (uint32_t i = 0; i < t->n_places; i++)
        places += t->place_refs[i] == 0;
    if (places != t->n_free_places)
        return 0;
    for (uint32_t i = 0; i < t->cap; i++) {
        const node *x = &t->nodes[i];
        if (!x->n_tokens)
            continue;
        if (!node_is_right(t, (int32_t)i) || !content_is_right(t, (int32_t)i))
            return 0;
        n++;
        in[x->tier]++;
        loose[x->tier] += (uint32_t)is_loose(x);
        for (uint32_t k = 0; k < INFER_TIER_COUNT; k++)
            kids += x->kids[k];
        below += x->parent != NONE;
        slots += x->slot != NONE;
        idle += x->tier == INFER_TIER_POOL && infer_kv_pool_refs(t->pool, x->block) == 1;
    }
    for (uint32_t i = 0; i < INFER_TIER_COUNT; i++)
        if (loose[i] != t->heaps[i].n || in[i] != t->counts[i].nodes)
            return 0;
    return n == t->n_nodes && kids == below && in[INFER_TIER_POOL] == kept && idle == infer_kv_pool_idle(t->pool) &&
           slots + t->n_free_slots + t->n_writes == t->n_slots;
}
