/* Arena, context, strings, lists and dicts of the template engine. Not operations between values: jinja_ops.c.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "text/jinja_ops.h"
#include "text/jinja_unicode.h"
#include "text/jinja_value.h"

/* ---- Arena ------------------------------------------------------------------------------------------------- */

#define CHUNK_MIN ((size_t)8 << 10)
#define CHUNK_MAX ((size_t)1 << 20)
#define ALIGN     16

typedef struct infer_jchunk {
    struct infer_jchunk *next;
    size_t size;
} infer_jchunk;

void *infer_jarena_alloc(infer_jarena *a, size_t n)
{
    size_t limit = a->limit ? a->limit : J_MAX_MEMORY;
    a->over = n > limit;
    if (a->over)
        return NULL;
    n = (n + ALIGN - 1) / ALIGN * ALIGN;
    if (a->p && n <= (size_t)(a->end - a->p)) {
        char *p = a->p;
        a->p += n;
        return p;
    }
    size_t head = (sizeof(infer_jchunk) + ALIGN - 1) / ALIGN * ALIGN;
    size_t size = a->used < CHUNK_MIN ? CHUNK_MIN : a->used > CHUNK_MAX ? CHUNK_MAX : a->used;
    bool own = n + head > size / 2; /* large: a chunk of its own, the current one stays current */
    if (own)
        size = n + head;
    a->over = size > limit || a->used > limit - size;
    if (a->over)
        return NULL;
    infer_jchunk *k = infer_malloc(size);
    if (!k)
        return NULL;
    k->size = size;
    a->used += size;
    k->next = a->chunks;
    a->chunks = k;
    char *p = (char *)k + head;
    if (!own || !a->p) {
        a->p = p + n;
        a->end = (char *)k + size;
    }
    return p;
}

void infer_jarena_free(infer_jarena *a)
{
    for (infer_jchunk *k = a->chunks, *next; k; k = next) {
        next = k->next;
        infer_free(k);
    }
    *a = (infer_jarena){.limit = a->limit};
}

/* ---- Context ----------------------------------------------------------------------------------------------- */

void infer_jctx_record(infer_jctx *c, infer_status status, const char *fmt, ...)
{
    if (c->status != INFER_OK)
        return;
    c->status = status;
    char text[INFER_ERROR_TEXT];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text - 32, fmt, ap);
    va_end(ap);
    if (n < 0)
        text[0] = 0;
    infer_ju_trim(text, strlen(text));
    if (c->line)
        infer_error_set(c->err, status, "template line %u: %s", (unsigned)c->line, text);
    else
        infer_error_set(c->err, status, "%s", text);
}

int infer_jctx_step(infer_jctx *c, uint64_t n)
{
    if (c->steps < n) {
        c->steps = 0;
        return infer_jctx_fail(c, INFER_E_TOO_LARGE, "the limit of evaluation steps is reached");
    }
    c->steps -= n;
    return 0;
}

int infer_jctx_work(infer_jctx *c, size_t n)
{
    return infer_jctx_step(c, n / J_BYTES_A_STEP);
}

void *infer_jctx_alloc(infer_jctx *c, size_t n)
{
    void *p = infer_jarena_alloc(&c->arena, n);
    if (!p && c->arena.over)
        infer_jctx_record(c, INFER_E_TOO_LARGE, "the memory limit of %zu MiB is reached", J_MAX_MEMORY >> 20);
    else if (!p)
        infer_jctx_record(c, INFER_E_NO_MEMORY, "out of memory");
    return p;
}

void *infer_jctx_array(infer_jctx *c, size_t n, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes))
        bytes = SIZE_MAX;
    return infer_jctx_alloc(c, bytes);
}

int infer_jctx_buf_failed(infer_jctx *c, const infer_buf *b)
{
    if (b->failed != 2)
        return infer_jctx_fail(c, INFER_E_NO_MEMORY, "out of memory");
    return infer_jctx_fail(c, INFER_E_TOO_LARGE, "the %s limit of %zu bytes is reached",
                           b == &c->out ? "output" : "string", b->limit);
}

int infer_jctx_write(infer_jctx *c, const char *p, size_t n)
{
    infer_buf_append(&c->out, p, n);
    if (c->out.failed)
        return infer_jctx_buf_failed(c, &c->out);
    return infer_jctx_work(c, n);
}

int infer_jctx_end(infer_jctx *c, size_t mark, infer_jval *out)
{
    if (c->tmp.failed)
        return infer_jctx_buf_failed(c, &c->tmp);
    if (infer_jstr_copy(c, c->tmp.p ? c->tmp.p + mark : "", c->tmp.n - mark, out))
        return -1;
    c->tmp.n = mark;
    return 0;
}

int infer_jctx_fill(infer_jctx *c, uint32_t cp, int64_t n)
{
    infer_buf *b = &c->tmp;
    size_t start = b->n;
    if (n <= 0)
        return 0;
    if (n > (int64_t)J_MAX_STRING)
        return infer_jctx_fail(c, INFER_E_TOO_LARGE, "the string limit of %zu bytes is reached", J_MAX_STRING);
    if (infer_jctx_work(c, (size_t)n))
        return -1;
    infer_buf_put_utf8(b, cp);
    size_t unit = b->n - start, total = unit * (size_t)n;
    if (!b->failed && infer_buf_reserve(b, total - unit)) {
        for (size_t have = unit; have < total; have *= 2)
            memcpy(b->p + start + have, b->p + start, have < total - have ? have : total - have);
        b->n = start + total;
        b->p[b->n] = 0;
    }
    return b->failed ? infer_jctx_buf_failed(c, b) : 0;
}

/* ---- Strings ----------------------------------------------------------------------------------------------- */

const infer_jstr infer_jstr_empty = {.p = ""};

/* Bytes behind a string that was appended to, so that a loop of appends copies each byte O(1) times. A string that ends
 * where the used part ends may be extended in place: others that share it do not see further than their own n. */
struct infer_jgrow {
    char *p;
    size_t used, cap;
};

int infer_jstr_borrow(infer_jctx *c, const char *p, size_t n, size_t len, infer_jval *out)
{
    if (len == SIZE_MAX) {
        len = infer_ju_count(p, n);
        if (infer_jctx_work(c, n))
            return -1;
    }
    infer_jstr *s = infer_jctx_alloc(c, sizeof *s);
    if (!s)
        return -1;
    *s = (infer_jstr){.p = p, .n = n, .len = len};
    *out = infer_jval_str(s);
    return 0;
}

int infer_jstr_copy(infer_jctx *c, const char *p, size_t n, infer_jval *out)
{
    char *d = infer_jctx_alloc(c, n ? n : 1);
    if (!d)
        return -1;
    if (n)
        memcpy(d, p, n);
    return infer_jstr_borrow(c, d, n, SIZE_MAX, out);
}

int infer_jstr_concat(infer_jctx *c, const infer_jstr *a, const infer_jstr *b, infer_jval *out)
{
    if (a->n > J_MAX_STRING || b->n > J_MAX_STRING - a->n)
        return infer_jctx_fail(c, INFER_E_TOO_LARGE, "the string limit of %zu bytes is reached", J_MAX_STRING);
    size_t n = a->n + b->n;
    struct infer_jgrow *g = a->grow;
    if (infer_jctx_work(c, b->n))
        return -1;
    if (g && a->p + a->n == g->p + g->used && b->n <= g->cap - g->used) {
        memcpy(g->p + g->used, b->p, b->n);
        g->used += b->n;
    } else {
        if (infer_jctx_work(c, a->n))
            return -1;
        size_t cap = n < 256 ? n : n * 2;
        g = n < 256 ? NULL : infer_jctx_alloc(c, sizeof *g);
        char *p = n < 256 || g ? infer_jctx_alloc(c, cap ? cap : 1) : NULL;
        if (!p)
            return -1;
        memcpy(p, a->p, a->n);
        memcpy(p + a->n, b->p, b->n);
        if (g)
            *g = (struct infer_jgrow){p, n, cap};
        infer_jstr *s = infer_jctx_alloc(c, sizeof *s);
        if (!s)
            return -1;
        *s = (infer_jstr){.p = p, .n = n, .len = a->len + b->len, .grow = g};
        *out = infer_jval_str(s);
        return 0;
    }
    infer_jstr *s = infer_jctx_alloc(c, sizeof *s);
    if (!s)
        return -1;
    *s = (infer_jstr){.p = a->p, .n = n, .len = a->len + b->len, .grow = g};
    *out = infer_jval_str(s);
    return 0;
}

size_t infer_jstr_offset(const infer_jstr *s, size_t at)
{
    return s->n == s->len ? at : infer_ju_offset(s->p, s->n, at);
}

size_t infer_jstr_index(const infer_jstr *s, size_t at)
{
    return s->n == s->len ? at : infer_ju_count(s->p, at);
}

int infer_jstr_sub(infer_jctx *c, const infer_jstr *s, size_t from, size_t to, infer_jval *out)
{
    if (infer_jctx_work(c, s->n == s->len ? 0 : s->n))
        return -1;
    size_t a = infer_jstr_offset(s, from);
    size_t b = a + (s->n == s->len ? to - from : infer_ju_offset(s->p + a, s->n - a, to - from));
    return infer_jstr_borrow(c, s->p + a, b - a, to - from, out);
}

bool infer_jstr_is(const infer_jstr *s, const char *text)
{
    size_t n = strlen(text);
    return s->n == n && memcmp(s->p, text, n) == 0;
}

size_t infer_jstr_find(const infer_jstr *a, const infer_jstr *b, size_t from)
{
    if (from > a->n || b->n > a->n - from)
        return SIZE_MAX;
    if (!b->n)
        return from;
    const char *hit = memmem(a->p + from, a->n - from, b->p, b->n);
    return hit ? (size_t)(hit - a->p) : SIZE_MAX;
}

/* ---- Undefined --------------------------------------------------------------------------------------------- */

int infer_jval_undefined(infer_jctx *c, const char *hint, infer_jval obj, infer_jval name, infer_jval *out)
{
    infer_jundef *u = infer_jctx_alloc(c, sizeof *u);
    if (!u)
        return -1;
    *u = (infer_jundef){.hint = hint, .obj = obj, .name = name};
    *out = (infer_jval){.kind = J_UNDEFINED, .u.undef = u};
    return 0;
}

int infer_jval_use_undefined(infer_jctx *c, infer_jval v)
{
    const infer_jundef *u = v.u.undef;
    if (u->hint)
        return infer_jctx_error(c, "%s", u->hint);
    infer_jval name;
    size_t mark = infer_jctx_begin(c);
    if (u->obj.kind == J_MISSING && u->name.kind == J_STR)
        return infer_jctx_error(c, "'%.*s' is undefined", (int)u->name.u.s->n, u->name.u.s->p);
    if (infer_jval_repr(c, u->name) || infer_jctx_end(c, mark, &name))
        return -1;
    const char *type = u->obj.kind == J_NONE ? "None" : infer_jval_type(u->obj);
    const char *object = u->obj.kind == J_NONE ? "" : " object";
    int n = name.u.s->n > 200 ? 200 : (int)name.u.s->n;
    if (u->name.kind == J_STR)
        return infer_jctx_error(c, "'%s%s' has no attribute %.*s", type, object, n, name.u.s->p);
    return infer_jctx_error(c, "%s%s has no element %.*s", type, object, n, name.u.s->p);
}

/* ---- Lists ------------------------------------------------------------------------------------------------- */

/* As infer_jgrow, for lists. */
struct infer_jroom {
    infer_jval *v;
    size_t used, cap;
};

int infer_jlist_new(infer_jctx *c, infer_jkind kind, size_t n, infer_jval *out)
{
    infer_jlist *l = infer_jctx_alloc(c, sizeof *l);
    infer_jval *v = l ? infer_jctx_array(c, n, sizeof *v) : NULL;
    if (!v || infer_jctx_step(c, n / 4))
        return -1;
    *l = (infer_jlist){.v = v, .n = n};
    *out = infer_jval_of_list(kind, l);
    return 0;
}

int infer_jlist_concat(infer_jctx *c, infer_jkind kind, const infer_jlist *a, const infer_jlist *b, infer_jval *out)
{
    struct infer_jroom *r = a->room;
    infer_jlist *l = infer_jctx_alloc(c, sizeof *l);
    if (!l || infer_jctx_step(c, b->n / 4))
        return -1;
    size_t n = a->n + b->n; /* both lie in an arena: no overflow */
    if (r && a->v + a->n == r->v + r->used && b->n <= r->cap - r->used) {
        memcpy(r->v + r->used, b->v, b->n * sizeof *b->v);
        r->used += b->n;
        *l = (infer_jlist){.v = a->v, .n = n, .room = r};
        *out = infer_jval_of_list(kind, l);
        return 0;
    }
    if (infer_jctx_step(c, a->n / 4))
        return -1;
    r = n < 8 ? NULL : infer_jctx_alloc(c, sizeof *r);
    size_t cap = n < 8 ? n : n * 2;
    infer_jval *v = n < 8 || r ? infer_jctx_array(c, cap, sizeof *v) : NULL;
    if (!v)
        return -1;
    memcpy(v, a->v, a->n * sizeof *v);
    memcpy(v + a->n, b->v, b->n * sizeof *v);
    if (r)
        *r = (struct infer_jroom){v, n, cap};
    *l = (infer_jlist){.v = v, .n = n, .room = r};
    *out = infer_jval_of_list(kind, l);
    return 0;
}

int infer_jlist_append(infer_jctx *c, infer_jlist *l, size_t *cap, infer_jval v)
{
    if (l->n == *cap) {
        size_t more = *cap ? *cap * 2 : 8;
        infer_jval *w = infer_jctx_array(c, more, sizeof *w);
        if (!w || infer_jctx_step(c, l->n / 4))
            return -1;
        if (l->n)
            memcpy(w, l->v, l->n * sizeof *w);
        l->v = w;
        *cap = more;
    }
    l->v[l->n++] = v;
    return 0;
}

/* ---- Dicts ------------------------------------------------------------------------------------------------- */

#define SMALL_DICT 8

int infer_jdict_new(infer_jctx *c, infer_jval *out)
{
    infer_jdict *d = infer_jctx_alloc(c, sizeof *d);
    if (!d)
        return -1;
    *d = (infer_jdict){0};
    *out = infer_jval_of_dict(d);
    return 0;
}

/* Position of a text key, -1 absent, -2 failed; *slot is where the index would take it. */
static int64_t find_text(infer_jctx *c, const infer_jdict *d, const char *p, size_t n, uint64_t hash, uint32_t *slot)
{
    if (!d->index) {
        for (uint32_t i = 0; i < d->n; i++)
            if (d->k[i].kind == J_STR && d->k[i].u.s->n == n && memcmp(d->k[i].u.s->p, p, n) == 0)
                return i;
        return -1;
    }
    uint32_t mask = d->index_cap - 1, at = (uint32_t)hash & mask;
    uint64_t probes = 0;
    for (; d->index[at]; at = (at + 1) & mask, probes++) {
        uint32_t i = d->index[at] - 1;
        if (d->k[i].kind == J_STR && d->k[i].u.s->n == n && memcmp(d->k[i].u.s->p, p, n) == 0)
            return infer_jctx_step(c, probes / 8) ? -2 : (int64_t)i;
    }
    *slot = at;
    return infer_jctx_step(c, probes / 8) ? -2 : -1;
}

/* The same for any key. */
static int64_t find_any(infer_jctx *c, const infer_jdict *d, infer_jval key, uint64_t hash, uint32_t *slot)
{
    if (key.kind == J_STR)
        return find_text(c, d, key.u.s->p, key.u.s->n, hash, slot);
    if (!d->index) {
        for (uint32_t i = 0; i < d->n; i++) {
            int same = infer_jval_eq(c, d->k[i], key);
            if (same)
                return same < 0 ? -2 : (int64_t)i;
        }
        return -1;
    }
    uint32_t mask = d->index_cap - 1, at = (uint32_t)hash & mask;
    for (; d->index[at]; at = (at + 1) & mask) {
        uint32_t i = d->index[at] - 1;
        int same = infer_jval_eq(c, d->k[i], key);
        if (same)
            return same < 0 ? -2 : (int64_t)i;
    }
    *slot = at;
    return -1;
}

static int reindex(infer_jctx *c, infer_jdict *d, uint32_t cap)
{
    uint32_t *index = infer_jctx_array(c, cap, sizeof *index);
    if (!index || infer_jctx_step(c, cap / 16))
        return -1;
    memset(index, 0, cap * sizeof *index);
    for (uint32_t i = 0; i < d->n; i++) {
        uint64_t hash;
        if (infer_jval_hash(c, d->k[i], &hash))
            return -1;
        uint32_t at = (uint32_t)hash & (cap - 1);
        uint64_t probes = 0;
        for (; index[at]; at = (at + 1) & (cap - 1))
            probes++;
        if (infer_jctx_step(c, probes / 8))
            return -1;
        index[at] = i + 1;
    }
    d->index = index;
    d->index_cap = cap;
    return 0;
}

int infer_jdict_get_text(infer_jctx *c, const infer_jdict *d, const char *p, size_t n, infer_jval *v)
{
    uint32_t slot;
    int64_t i = find_text(c, d, p, n, d->index ? infer_hash_bytes(p, n, 0) : 0, &slot);
    if (i >= 0 && v)
        *v = d->v[i];
    return i == -2 ? -1 : i >= 0;
}

int infer_jdict_get(infer_jctx *c, const infer_jdict *d, infer_jval key, infer_jval *v)
{
    uint64_t hash = 0;
    uint32_t slot;
    if ((d->index || key.kind != J_STR) && infer_jval_hash(c, key, &hash))
        return -1;
    int64_t i = find_any(c, d, key, hash, &slot);
    if (i >= 0 && v)
        *v = d->v[i];
    return i == -2 ? -1 : i >= 0;
}

int infer_jdict_put(infer_jctx *c, infer_jdict *d, infer_jval key, infer_jval v)
{
    uint64_t hash;
    uint32_t slot = 0;
    if (infer_jval_hash(c, key, &hash))
        return -1;
    int64_t i = find_any(c, d, key, hash, &slot);
    if (i == -2)
        return -1;
    if (i >= 0) {
        d->v[i] = v;
        return 0;
    }
    if (d->n == d->cap) {
        uint32_t cap = d->cap ? d->cap * 2 : 4; /* the arena's limit comes long before 2^31 */
        infer_jval *k = infer_jctx_array(c, cap, 2 * sizeof *k);
        if (!k || infer_jctx_step(c, d->n / 4))
            return -1;
        if (d->n) {
            memcpy(k, d->k, d->n * sizeof *k);
            memcpy(k + cap, d->v, d->n * sizeof *k);
        }
        d->k = k;
        d->v = k + cap;
        d->cap = cap;
    }
    d->k[d->n] = key;
    d->v[d->n++] = v;
    if (d->n > SMALL_DICT && (!d->index || d->n * 2 > d->index_cap))
        return reindex(c, d, d->index ? d->index_cap * 2 : SMALL_DICT * 4);
    if (d->index)
        d->index[slot] = d->n;
    return 0;
}
