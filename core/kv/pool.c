/* Block pool and sequences' page tables. Knows no device: ids only. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "base/alloc.h"
#include "kv/kv.h"

struct infer_kv_pool {
    uint32_t n_blocks, block_size;
    uint32_t n_free;
    int32_t *free_list; /* a stack: the most recently freed block is reused first, its memory is warm */
    uint32_t *refs;
    uint8_t *kept;    /* one of the references is the prefix tree's */
    uint32_t n_idle;  /* kept, with no other reference */
    uint64_t slack;   /* slots of sequences' last blocks that hold none of their tokens */
    uint64_t edition; /* the last one given */
};

infer_status infer_kv_pool_create(uint32_t n_blocks, uint32_t block_size, infer_kv_pool **out, infer_error *err)
{
    if (!n_blocks || n_blocks > INT32_MAX || !block_size || (uint64_t)n_blocks * block_size > INT32_MAX)
        return infer_error_set(err, INFER_E_INVALID, "cache pool: %u blocks of %u tokens are out of range", n_blocks,
                               block_size);
    infer_kv_pool *p = infer_calloc(1, sizeof *p);
    if (!p)
        goto no_memory;
    p->n_blocks = n_blocks;
    p->block_size = block_size;
    p->free_list = infer_calloc(n_blocks, sizeof *p->free_list);
    p->refs = infer_calloc(n_blocks, sizeof *p->refs);
    p->kept = infer_calloc(n_blocks, 1);
    if (!p->free_list || !p->refs || !p->kept)
        goto no_memory;
    for (uint32_t i = 0; i < n_blocks; i++)
        p->free_list[i] = (int32_t)(n_blocks - 1 - i);
    p->n_free = n_blocks;
    *out = p;
    return INFER_OK;
no_memory:
    infer_kv_pool_destroy(p);
    return infer_error_set(err, INFER_E_NO_MEMORY, "cache pool: no host memory for %u block records", n_blocks);
}

void infer_kv_pool_destroy(infer_kv_pool *p)
{
    if (!p)
        return;
    infer_free(p->free_list);
    infer_free(p->refs);
    infer_free(p->kept);
    infer_free(p);
}

uint32_t infer_kv_pool_block_size(const infer_kv_pool *p)
{
    return p->block_size;
}

uint32_t infer_kv_pool_total(const infer_kv_pool *p)
{
    return p->n_blocks;
}

uint32_t infer_kv_pool_free(const infer_kv_pool *p)
{
    return p->n_free;
}

uint32_t infer_kv_pool_refs(const infer_kv_pool *p, int32_t block)
{
    return block >= 0 && (uint32_t)block < p->n_blocks ? p->refs[block] : 0;
}

static int32_t take(infer_kv_pool *p)
{
    int32_t b = p->free_list[--p->n_free];
    p->refs[b] = 1;
    return b;
}

static void drop(infer_kv_pool *p, int32_t b)
{
    if (--p->refs[b] == 0)
        p->free_list[p->n_free++] = b;
    else
        p->n_idle += p->kept[b] && p->refs[b] == 1;
}

static void share(infer_kv_pool *p, int32_t b)
{
    p->n_idle -= p->kept[b] && p->refs[b] == 1;
    p->refs[b]++;
}

void infer_kv_pool_keep(infer_kv_pool *p, int32_t block)
{
    p->refs[block]++;
    p->kept[block] = 1;
}

void infer_kv_pool_unkeep(infer_kv_pool *p, int32_t block)
{
    p->n_idle -= p->refs[block] == 1;
    p->kept[block] = 0;
    drop(p, block);
}

int infer_kv_pool_is_kept(const infer_kv_pool *p, int32_t block)
{
    return block >= 0 && (uint32_t)block < p->n_blocks && p->kept[block];
}

uint32_t infer_kv_pool_idle(const infer_kv_pool *p)
{
    return p->n_idle;
}

uint64_t infer_kv_pool_slack(const infer_kv_pool *p)
{
    return p->slack;
}

infer_status infer_kv_seq_init(const infer_kv_pool *p, infer_kv_seq *s, uint64_t max_tokens, infer_error *err)
{
    uint64_t cap = max_tokens / p->block_size + (max_tokens % p->block_size != 0);
    memset(s, 0, sizeof *s);
    if (cap > INT32_MAX)
        return infer_error_set(err, INFER_E_TOO_LARGE, "sequence: %llu tokens are out of range",
                               (unsigned long long)max_tokens);
    s->blocks = infer_calloc(cap ? (size_t)cap : 1, sizeof *s->blocks);
    if (!s->blocks)
        return infer_error_set(err, INFER_E_NO_MEMORY, "sequence: no host memory for its block table");
    s->max_tokens = max_tokens;
    return INFER_OK;
}

/* Slots of its last block behind its tokens. */
static uint64_t slack_of(const infer_kv_pool *p, const infer_kv_seq *s)
{
    return (uint64_t)s->n_blocks * p->block_size - s->n_tokens;
}

static void append(infer_kv_pool *p, infer_kv_seq *s, int32_t block)
{
    if (!s->n_blocks)
        s->edition = ++p->edition;
    s->blocks[s->n_blocks++] = s->last = block;
}

static void replace(infer_kv_pool *p, infer_kv_seq *s, uint32_t i, int32_t block)
{
    drop(p, s->blocks[i]);
    s->blocks[i] = block;
    s->last = s->blocks[s->n_blocks - 1];
    s->edition = ++p->edition;
}

void infer_kv_seq_free(infer_kv_pool *p, infer_kv_seq *s)
{
    for (uint32_t i = 0; i < s->n_blocks; i++)
        drop(p, s->blocks[i]);
    p->slack -= slack_of(p, s);
    infer_free(s->blocks);
    memset(s, 0, sizeof *s);
}

/* Whether the next token would be written into a block that somebody else also holds. */
static int tail_is_shared(const infer_kv_pool *p, const infer_kv_seq *s)
{
    return slack_of(p, s) && p->refs[s->last] > 1;
}

uint32_t infer_kv_seq_need(const infer_kv_pool *p, const infer_kv_seq *s, uint64_t n_more)
{
    if (!n_more)
        return 0;
    const uint64_t slack = slack_of(p, s), more = n_more > slack ? n_more - slack : 0;
    uint64_t need = (uint64_t)tail_is_shared(p, s);
    if (more) /* most often there is room */
        need += more / p->block_size + (more % p->block_size != 0);
    return need > UINT32_MAX ? UINT32_MAX : (uint32_t)need;
}

infer_status infer_kv_seq_grow(infer_kv_pool *p, infer_kv_seq *s, uint64_t n_more, infer_kv_copy *copy,
                               uint32_t *n_copy)
{
    *n_copy = 0;
    if (n_more > s->max_tokens - s->n_tokens)
        return INFER_E_TOO_LARGE;
    if (infer_kv_seq_need(p, s, n_more) > p->n_free)
        return INFER_E_NO_MEMORY;
    if (n_more && tail_is_shared(p, s)) {
        *copy = (infer_kv_copy){s->last, take(p)};
        *n_copy = 1;
        replace(p, s, s->n_blocks - 1, copy->dst);
    }
    p->slack -= slack_of(p, s);
    s->n_tokens += n_more;
    while ((uint64_t)s->n_blocks * p->block_size < s->n_tokens)
        append(p, s, take(p));
    p->slack += slack_of(p, s);
    return INFER_OK;
}

void infer_kv_seq_truncate(infer_kv_pool *p, infer_kv_seq *s, uint64_t n_tokens)
{
    if (n_tokens >= s->n_tokens)
        return;
    p->slack -= slack_of(p, s);
    s->n_tokens = n_tokens;
    if (slack_of(p, s) >= p->block_size) {
        while (slack_of(p, s) >= p->block_size)
            drop(p, s->blocks[--s->n_blocks]);
        s->last = s->n_blocks ? s->blocks[s->n_blocks - 1] : -1;
        s->edition = ++p->edition;
    }
    p->slack += slack_of(p, s);
}

void infer_kv_seq_foresee(const infer_kv_pool *p, const infer_kv_seq *s)
{
    if (s->n_blocks)
        __builtin_prefetch(&p->refs[s->last]);
}

infer_status infer_kv_seq_fork(infer_kv_pool *p, const infer_kv_seq *parent, infer_kv_seq *child)
{
    if (child->n_blocks || child->n_tokens || child->max_tokens < parent->n_tokens)
        return INFER_E_INVALID;
    for (uint32_t i = 0; i < parent->n_blocks; i++) {
        share(p, parent->blocks[i]);
        append(p, child, parent->blocks[i]);
    }
    child->n_tokens = parent->n_tokens;
    p->slack += slack_of(p, child);
    return INFER_OK;
}

int infer_kv_seq_share(infer_kv_pool *p, infer_kv_seq *s, int32_t block, uint32_t n_tokens)
{
    if (!n_tokens || s->n_tokens % p->block_size || n_tokens > p->block_size || n_tokens > s->max_tokens - s->n_tokens)
        return 0;
    share(p, block);
    append(p, s, block);
    s->n_tokens += n_tokens;
    p->slack += p->block_size - n_tokens;
    return 1;
}

void infer_kv_seq_swap(infer_kv_pool *p, infer_kv_seq *s, uint32_t i, int32_t block)
{
    share(p, block);
    replace(p, s, i, block);
}

int32_t infer_kv_seq_slot(const infer_kv_pool *p, const infer_kv_seq *s, uint64_t t)
{
    const uint32_t at = (uint32_t)t, i = at / p->block_size; /* a pool holds so many at most */
    return (i + 1 == s->n_blocks ? s->last : s->blocks[i]) * (int32_t)p->block_size + (int32_t)(at % p->block_size);
}
