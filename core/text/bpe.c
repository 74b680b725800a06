/* The merge loop: symbols in a linked list, candidate pairs in a heap by rank, then by place. A candidate whose pair
 * has changed is recognised when it comes up, by what it would have made. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include <infer/text.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "text/bpe.h"
#include "text/utf8.h"

#define MARK "\xE2\x96\x81" /* U+2581, SentencePiece's space */

/* ---- Tables ---------------------------------------------------------------------------------------------------- */

void infer_bpe_init(infer_bpe *b, const infer_pieces *pieces, int byte_fallback)
{
    static const char hex[] = "0123456789ABCDEF";
    b->pieces = pieces;
    b->has_bytes = 0;
    for (unsigned i = 0; i < 256; i++) {
        const char name[] = {'<', '0', 'x', hex[i >> 4], hex[i & 15], '>'};
        b->byte_id[i] = byte_fallback ? infer_pieces_find(pieces, name, sizeof name) : -1;
        b->has_bytes |= b->byte_id[i] >= 0;
    }
    for (uint32_t cp = 0; cp < 512; cp++) {
        char text[4];
        b->char_id[cp] = infer_pieces_find(pieces, text, infer_utf8_put(cp, text));
    }
}

/* Where the search for a pair begins. */
static uint32_t merge_slot(const infer_bpe *b, int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9E3779B97F4A7C15u;
    h ^= h >> 32;
    h *= 0xBF58476D1CE4E5B9u;
    return (uint32_t)((h >> 32) * b->n_slots >> 32); /* the hash's high half, scaled to the table */
}

/* The pair's slot, or the empty one where it belongs. */
static struct bpe_merge *find_merge(const infer_bpe *b, int32_t left, int32_t right)
{
    for (uint32_t i = merge_slot(b, left, right);; i = i + 1 == b->n_slots ? 0 : i + 1) {
        struct bpe_merge *m = &b->merge[i];
        if (m->left < 0 || (m->left == left && m->right == right))
            return m;
    }
}

/* Whether a piece that merging makes has another character before a U+2581. */
static int spans_mark(infer_str s)
{
    size_t i = 0;
    while (s.n - i >= 3 && memcmp(s.p + i, MARK, 3) == 0)
        i += 3;
    return s.n > i && memmem(s.p + i, s.n - i, MARK, 3) != NULL;
}

/* Sets b->cut: texts of one word, as SentencePiece's are, then fall into many short parts. */
static void find_cut(infer_bpe *b)
{
    const infer_pieces *p = b->pieces;
    b->cut = infer_pieces_find(p, MARK, 3) >= 0;
    for (uint32_t i = 0; b->cut && !b->by_score && i < b->n_merges; i++)
        b->cut = !spans_mark(infer_pieces_get(p, (uint32_t)b->list[i].id));
    for (uint32_t i = 0; b->cut && b->by_score && i < p->n; i++)
        b->cut = b->priority[i] == UINT32_MAX || !spans_mark(infer_pieces_get(p, i));
}

infer_status infer_bpe_merges_done(infer_bpe *b, infer_error *err)
{
    enum { AHEAD = 16 }; /* slots asked for before they are needed: nearly each is a cache miss */
    uint64_t slots = (uint64_t)b->n_merges * 5 / 3 + 16; /* load of at most 0.6 */
    b->merge = slots > INT32_MAX ? NULL : infer_malloc((size_t)slots * sizeof *b->merge);
    if (!b->merge)
        return infer_error_set(err, INFER_E_NO_MEMORY, "vocabulary: no memory for %u merges", b->n_merges);
    memset(b->merge, 0xFF, (size_t)slots * sizeof *b->merge);
    b->n_slots = (uint32_t)slots;
    for (uint32_t i = 0; i < b->n_merges; i++) {
        if (i + AHEAD < b->n_merges)
            __builtin_prefetch(&b->merge[merge_slot(b, b->list[i + AHEAD].left, b->list[i + AHEAD].right)], 1);
        *find_merge(b, b->list[i].left, b->list[i].right) = b->list[i];
    }
    find_cut(b);
    infer_free(b->list);
    b->list = NULL;
    return INFER_OK;
}

static int joins_to(infer_str whole, infer_str left, infer_str right)
{
    return whole.n == left.n + right.n && memcmp(whole.p, left.p, left.n) == 0 &&
           memcmp(whole.p + left.n, right.p, right.n) == 0;
}

/* The piece that is left and right in one. */
static int32_t find_joined(const infer_pieces *p, infer_str left, infer_str right)
{
    char text[256];
    size_t n = left.n + right.n;
    if (n > p->longest)
        return -1;
    char *joined = n <= sizeof text ? text : infer_malloc(n);
    if (!joined)
        return -2;
    memcpy(joined, left.p, left.n);
    memcpy(joined + left.n, right.p, right.n);
    int32_t id = infer_pieces_find(p, joined, n);
    if (joined != text)
        infer_free(joined);
    return id;
}

infer_status infer_bpe_merge(infer_bpe *b, infer_str left, infer_str right, uint32_t *guess, infer_error *err)
{
    const infer_pieces *p = b->pieces;
    int32_t l = infer_pieces_find(p, left.p, left.n), r = infer_pieces_find(p, right.p, right.n), id = -1;
    for (uint32_t k = 0; id < 0 && k < 2; k++)
        if (*guess + k < p->n && joins_to(infer_pieces_get(p, *guess + k), left, right))
            id = (int32_t)(*guess + k);
    if (id < 0)
        id = find_joined(p, left, right);
    if (id == -2)
        return infer_error_set(err, INFER_E_NO_MEMORY, "vocabulary: no memory for merge %u", b->n_merges);
    if (l < 0 || r < 0 || id < 0)
        return infer_error_set(err, INFER_E_BAD_FILE, "merge %u ('%.*s' and '%.*s'): %s is not in the vocabulary",
                               b->n_merges, left.n > 100 ? 100 : (int)left.n, left.p,
                               right.n > 100 ? 100 : (int)right.n, right.p,
                               l < 0   ? "the left part"
                               : r < 0 ? "the right part"
                                       : "the result");
    if (b->n_merges == b->list_cap) {
        size_t cap = b->list_cap ? (size_t)b->list_cap * 2 : 4096;
        struct bpe_merge *list = cap > INT32_MAX ? NULL : infer_realloc_array(b->list, cap, sizeof *list);
        if (!list)
            return infer_error_set(err, INFER_E_NO_MEMORY, "vocabulary: no memory for merge %u", b->n_merges);
        b->list = list;
        b->list_cap = (uint32_t)cap;
    }
    b->list[b->n_merges] = (struct bpe_merge){l, r, b->n_merges, id};
    b->n_merges++;
    *guess = (uint32_t)id;
    return INFER_OK;
}

typedef struct scored {
    float score;
    uint32_t id;
} scored;

static int by_score_down(const void *x, const void *y)
{
    const scored *a = x, *b = y;
    return (a->score < b->score) - (a->score > b->score);
}

infer_status infer_bpe_scores(infer_bpe *b, const float *scores, infer_error *err)
{
    const infer_pieces *p = b->pieces;
    scored *s = infer_malloc((p->n ? p->n : 1) * sizeof *s);
    b->priority = infer_malloc((p->n ? p->n : 1) * sizeof *b->priority);
    infer_status st = INFER_OK;
    uint32_t n = 0;
    if (!s || !b->priority) {
        st = infer_error_set(err, INFER_E_NO_MEMORY, "vocabulary: no memory for scores");
        goto out;
    }
    for (uint32_t id = 0; id < p->n; id++) {
        b->priority[id] = UINT32_MAX;
        if (p->type[id] != INFER_TOKEN_NORMAL && p->type[id] != INFER_TOKEN_USER_DEFINED)
            continue;
        if (scores[id] != scores[id]) {
            st = infer_error_set(err, INFER_E_BAD_FILE, "vocabulary: score of token %u is not a number", id);
            goto out;
        }
        s[n++] = (scored){scores[id], id};
    }
    /* Files list the pieces by falling score, so there is little to sort. Equals share a rank: then the place counts.
     */
    int sorted = 1;
    for (uint32_t i = 1; i < n; i++)
        sorted &= s[i - 1].score >= s[i].score;
    if (!sorted)
        qsort(s, n, sizeof *s, by_score_down);
    for (uint32_t i = 0, rank = 0; i < n; i++) {
        rank += i && s[i].score != s[i - 1].score;
        b->priority[s[i].id] = rank;
    }
    b->by_score = 1;
    find_cut(b);
out:
    infer_free(s);
    return st;
}

void infer_bpe_free(infer_bpe *b)
{
    infer_free(b->merge);
    infer_free(b->list);
    infer_free(b->priority);
    *b = (infer_bpe){0};
}

/* ---- One word -------------------------------------------------------------------------------------------------- */

struct bpe_symbol {
    uint32_t at, n;      /* its bytes in the word; n 0: merged into its left neighbour */
    uint32_t prev, next; /* NONE at the ends */
    int32_t id;          /* by_score: -1 for a character that is no piece */
};

struct bpe_candidate {
    uint64_t key; /* rank, then place: the smallest is merged first */
    int32_t id;   /* what it makes */
};

#define NONE UINT32_MAX

void infer_bpe_scratch_free(infer_bpe_scratch *s)
{
    infer_free(s->symbol);
    infer_free(s->heap);
    *s = (infer_bpe_scratch){0};
}

void infer_id_list_push(infer_id_list *l, int32_t id)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 64;
        int32_t *p = l->failed ? NULL : infer_realloc_array(l->p, cap, sizeof *p);
        if (!p) {
            l->failed = 1;
            return;
        }
        l->p = p;
        l->cap = cap;
    }
    l->p[l->n++] = id;
}

/* The array with room for n elements; NULL, and the old one still there, without memory. */
static void *grow(void *p, size_t *cap, size_t n, size_t size)
{
    if (n <= *cap)
        return p;
    size_t want = n < 64 ? 64 : n + n / 2;
    void *q = infer_realloc_array(p, want, size);
    if (q)
        *cap = want;
    return q;
}

/* What two neighbours make: 1 with *rank and *id, else 0. */
static int pair(const infer_bpe *b, const char *word, const struct bpe_symbol *l, const struct bpe_symbol *r,
                uint32_t *rank, int32_t *id)
{
    if (b->by_score) {
        int32_t k = infer_pieces_find(b->pieces, word + l->at, (size_t)l->n + r->n);
        if (k < 0 || b->priority[k] == UINT32_MAX)
            return 0;
        *rank = b->priority[k];
        *id = k;
        return 1;
    }
    if (!b->n_merges)
        return 0;
    const struct bpe_merge *m = find_merge(b, l->id, r->id);
    if (m->left < 0)
        return 0;
    *rank = m->rank;
    *id = m->id;
    return 1;
}

static void heap_down(struct bpe_candidate *h, size_t n, size_t i)
{
    struct bpe_candidate c = h[i];
    for (size_t k; (k = 2 * i + 1) < n; i = k) {
        k += k + 1 < n && h[k + 1].key < h[k].key;
        if (h[k].key >= c.key)
            break;
        h[i] = h[k];
    }
    h[i] = c;
}

static void heap_up(struct bpe_candidate *h, size_t i)
{
    struct bpe_candidate c = h[i];
    for (; i && h[(i - 1) / 2].key > c.key; i = (i - 1) / 2)
        h[i] = h[(i - 1) / 2];
    h[i] = c;
}

/* The id of one character in the vocabulary, or -1. */
static int32_t character(const infer_bpe *b, const char *p, size_t n)
{
    if (n > 2)
        return infer_pieces_find(b->pieces, p, n);
    uint32_t cp;
    infer_utf8_get(p, n, &cp);
    return cp < 512 ? b->char_id[cp] : infer_pieces_find(b->pieces, p, n);
}

static int spelled_in_bytes(const infer_bpe *b, const char *p, size_t n)
{
    for (size_t i = 0; b->has_bytes && i < n; i++)
        if (b->byte_id[(uint8_t)p[i]] < 0)
            return 0;
    return b->has_bytes;
}

/* The word's characters as symbols; their number. by_score keeps unknown characters for the end, as they may yet be
 * part of a piece; else they become byte or unknown tokens here. */
static size_t first_symbols(const infer_bpe *b, struct bpe_symbol *sym, const char *word, size_t n)
{
    size_t count = 0, unknown_at = 0, unknown_n = 0; /* a held back unknown token */
    for (size_t i = 0; i < n;) {
        size_t k = infer_utf8_len(word[i]);
        k = k < n - i ? k : n - i;
        int32_t id = character(b, word + i, k);
        if (id >= 0 || b->by_score) {
            if (unknown_n)
                sym[count++] = (struct bpe_symbol){(uint32_t)unknown_at, (uint32_t)unknown_n, 0, 0, b->unk};
            unknown_n = 0;
            sym[count++] = (struct bpe_symbol){(uint32_t)i, (uint32_t)k, 0, 0, id};
        } else if (spelled_in_bytes(b, word + i, k)) {
            for (size_t j = 0; j < k; j++)
                sym[count++] = (struct bpe_symbol){(uint32_t)(i + j), 1, 0, 0, b->byte_id[(uint8_t)word[i + j]]};
        } else if (b->unk >= 0) {
            if (unknown_n && !b->fuse_unk) {
                sym[count++] = (struct bpe_symbol){(uint32_t)unknown_at, (uint32_t)unknown_n, 0, 0, b->unk};
                unknown_n = 0;
            }
            if (!unknown_n)
                unknown_at = i;
            unknown_n += k;
        }
        i += k;
    }
    if (unknown_n)
        sym[count++] = (struct bpe_symbol){(uint32_t)unknown_at, (uint32_t)unknown_n, 0, 0, b->unk};
    for (size_t i = 0; i < count; i++) {
        sym[i].prev = i ? (uint32_t)(i - 1) : NONE;
        sym[i].next = i + 1 < count ? (uint32_t)(i + 1) : NONE;
    }
    return count;
}

static infer_status consider(const infer_bpe *b, infer_bpe_scratch *s, const char *word, uint32_t left)
{
    const struct bpe_symbol *l = &s->symbol[left];
    uint32_t rank;
    int32_t id;
    if (l->next == NONE || !pair(b, word, l, &s->symbol[l->next], &rank, &id))
        return INFER_OK;
    struct bpe_candidate *heap = grow(s->heap, &s->heap_cap, s->heap_n + 1, sizeof *heap);
    if (!heap)
        return INFER_E_NO_MEMORY;
    s->heap = heap;
    s->heap[s->heap_n] = (struct bpe_candidate){(uint64_t)rank << 32 | left, id};
    heap_up(s->heap, s->heap_n++);
    return INFER_OK;
}

static infer_status merge_all(const infer_bpe *b, infer_bpe_scratch *s, const char *word, size_t count)
{
    infer_status st = INFER_OK;
    s->heap_n = 0;
    for (size_t i = 0; st == INFER_OK && i + 1 < count; i++)
        st = consider(b, s, word, (uint32_t)i);
    while (st == INFER_OK && s->heap_n) {
        struct bpe_candidate c = s->heap[0];
        s->heap[0] = s->heap[--s->heap_n];
        if (s->heap_n)
            heap_down(s->heap, s->heap_n, 0);
        uint32_t left = (uint32_t)c.key, rank;
        struct bpe_symbol *l = &s->symbol[left];
        int32_t id;
        if (!l->n || l->next == NONE)
            continue;
        struct bpe_symbol *r = &s->symbol[l->next];
        if (!pair(b, word, l, r, &rank, &id) || id != c.id)
            continue;
        l->n += r->n;
        l->id = id;
        l->next = r->next;
        r->n = 0;
        if (l->next != NONE)
            s->symbol[l->next].prev = left;
        if (l->prev != NONE)
            st = consider(b, s, word, l->prev);
        if (st == INFER_OK)
            st = consider(b, s, word, left);
    }
    return st;
}

/* What is still no piece after all merges (by_score only). */
static void spell(const infer_bpe *b, const char *p, size_t n, infer_id_list *out)
{
    if (spelled_in_bytes(b, p, n)) {
        for (size_t i = 0; i < n; i++)
            infer_id_list_push(out, b->byte_id[(uint8_t)p[i]]);
    } else if (b->unk >= 0) {
        infer_id_list_push(out, b->unk);
    }
}

static infer_status encode_part(const infer_bpe *b, infer_bpe_scratch *s, const char *word, size_t n,
                                infer_id_list *out, infer_error *err)
{
    struct bpe_symbol *symbol = grow(s->symbol, &s->symbol_cap, n, sizeof *symbol);
    if (!symbol)
        goto no_memory;
    s->symbol = symbol;
    size_t count = first_symbols(b, s->symbol, word, n);
    if (!count)
        return INFER_OK;
    if (merge_all(b, s, word, count) != INFER_OK)
        goto no_memory;
    int unknown = 0;
    for (uint32_t i = 0; i != NONE; i = s->symbol[i].next) {
        const struct bpe_symbol *y = &s->symbol[i];
        if (y->id >= 0) {
            infer_id_list_push(out, y->id);
            unknown = 0;
        } else if (!unknown || b->has_bytes) {
            spell(b, word + y->at, y->n, out);
            unknown = 1;
        }
    }
    return INFER_OK;
no_memory:
    return infer_error_set(err, INFER_E_NO_MEMORY, "encode: no memory for a word of %zu bytes", n);
}

/* Up to the next place that no merge spans. */
static size_t part_length(const infer_bpe *b, const char *p, size_t n)
{
    size_t i = 0;
    if (!b->cut)
        return n;
    while (n - i >= 3 && memcmp(p + i, MARK, 3) == 0)
        i += 3;
    const char *at = n > i ? memmem(p + i, n - i, MARK, 3) : NULL;
    return at ? (size_t)(at - p) : n;
}

infer_status infer_bpe_encode(const infer_bpe *b, infer_bpe_scratch *s, const char *word, size_t n, infer_id_list *out,
                              infer_error *err)
{
    if (n > INT32_MAX)
        return infer_error_set(err, INFER_E_TOO_LARGE, "encode: a word of %zu bytes is over the limit", n);
    if (b->ignore_merges) {
        int32_t id = infer_pieces_find(b->pieces, word, n);
        if (id >= 0 && b->pieces->type[id] != INFER_TOKEN_CONTROL) {
            infer_id_list_push(out, id);
            return INFER_OK;
        }
    }
    infer_status st = INFER_OK;
    for (size_t i = 0, k; st == INFER_OK && i < n; i += k) {
        k = part_length(b, word + i, n - i);
        st = encode_part(b, s, word + i, k, out, err);
    }
    return st;
}
