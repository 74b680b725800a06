/* The vocabulary's texts and their hash table. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include <infer/text.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/hash.h"
#include "text/pieces.h"

/* Up to eight bytes as a number; together with n it tells them all apart. */
static uint64_t load_tail(const char *p, size_t n)
{
    if (n >= 4) {
        uint32_t a, b;
        memcpy(&a, p, 4);
        memcpy(&b, p + n - 4, 4);
        return a | (uint64_t)b << 32;
    }
    const uint8_t *b = (const uint8_t *)p;
    return n ? b[0] | (uint64_t)b[n / 2] << 8 | (uint64_t)b[n - 1] << 16 : 0;
}

/* Eight bytes a step; pieces are short and a vocabulary has a quarter of a million of them. */
static uint64_t hash_text(const char *p, size_t n)
{
    uint64_t h = n * 0x9E3779B97F4A7C15u, w;
    for (; n > 8; p += 8, n -= 8) {
        memcpy(&w, p, 8);
        h = (h ^ w) * 0xBF58476D1CE4E5B9u;
        h ^= h >> 32;
    }
    return infer_hash_u64(h ^ load_tail(p, n));
}

infer_status infer_pieces_init(infer_pieces *p, uint32_t n, uint64_t bytes, infer_error *err)
{
    if (n > INT32_MAX / 4 || bytes > UINT32_MAX)
        return infer_error_set(err, INFER_E_TOO_LARGE, "vocabulary of %u pieces with %llu bytes: over the limit", n,
                               (unsigned long long)bytes);
    uint32_t cap = 16;
    while (cap / 2 < n)
        cap *= 2;
    infer_pieces q = {.n = n, .mask = cap - 1};
    q.text = infer_malloc((size_t)bytes + 1);
    q.piece = infer_calloc(n ? n : 1, sizeof *q.piece);
    q.type = infer_malloc(n ? n : 1);
    q.slot = infer_malloc(sizeof *q.slot * cap);
    if (!q.text || !q.piece || !q.type || !q.slot) {
        infer_pieces_free(&q);
        return infer_error_set(err, INFER_E_NO_MEMORY, "vocabulary of %u pieces: no memory", n);
    }
    memset(q.slot, 0xFF, sizeof *q.slot * cap);
    memset(q.type, INFER_TOKEN_UNUSED, n);
    *p = q;
    return INFER_OK;
}

void infer_pieces_free(infer_pieces *p)
{
    infer_free(p->text);
    infer_free(p->piece);
    infer_free(p->type);
    infer_free(p->slot);
    *p = (infer_pieces){0};
}

/* The slot that holds the text, or the empty one where it belongs. */
static uint32_t find_slot(const infer_pieces *p, const char *text, size_t n, uint32_t *tag)
{
    uint64_t h = hash_text(text, n);
    *tag = (uint32_t)(h >> 32);
    uint32_t i = (uint32_t)h & p->mask;
    for (; p->slot[i].id >= 0; i = (i + 1) & p->mask) {
        if (p->slot[i].tag != *tag)
            continue;
        struct infer_piece q = p->piece[p->slot[i].id];
        if (q.n == n && memcmp(p->text + q.at, text, n) == 0)
            break;
    }
    return i;
}

void infer_pieces_set(infer_pieces *p, uint32_t id, const char *text, size_t n, int32_t type, int model)
{
    uint32_t at = p->used, tag;
    if (n)
        memcpy(p->text + at, text, n);
    p->used += (uint32_t)n;
    p->piece[id] = (struct infer_piece){at, (uint32_t)n};
    p->type[id] = (uint8_t)type;
    if (n > p->longest)
        p->longest = (uint32_t)n;
    if (!n || !model)
        return;
    uint32_t i = find_slot(p, text, n, &tag);
    p->slot[i] = (struct piece_slot){tag, (int32_t)id};
}

int32_t infer_pieces_find(const infer_pieces *p, const char *text, size_t n)
{
    if (!n || n > p->longest)
        return -1;
    uint32_t tag;
    return p->slot[find_slot(p, text, n, &tag)].id;
}
