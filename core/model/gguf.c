/* Reader of GGUF files: header, keys, tensor table, split parts. Typed access is in gguf_get.c. It reads no tensor
 * data. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "model/gguf_private.h"
#include "quant/quant.h"

/* Smallest records: key length, key of one byte, type, value of one byte; name length, name of one byte, rank, one
 * dim, type, offset. */
enum { MIN_KV = 8 + 1 + 4 + 1, MIN_TENSOR = 8 + 1 + 4 + 8 + 4 + 8, MAX_NAME = 65535 };

/* A position in one part, with where to report. */
typedef struct cursor {
    const gguf_part *part;
    uint64_t at;
    infer_error *err;
} cursor;

INFER_PRINTF(4, 5) static infer_status fail(const cursor *c, infer_status s, uint64_t at, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    infer_error_setv(c->err, s, fmt, ap);
    va_end(ap);
    infer_error_prefix(c->err, s, "%s: byte %llu", c->part->name, (unsigned long long)at);
    return s;
}

#define BAD(c, at, ...) fail((c), INFER_E_BAD_FILE, (at), __VA_ARGS__)

static infer_status no_memory(const cursor *c)
{
    return fail(c, INFER_E_NO_MEMORY, c->at, "no memory for the file's index");
}

/* The next n bytes, or BAD_FILE naming the field. */
static infer_status take(cursor *c, uint64_t n, const char *field, const uint8_t **p)
{
    if (!infer_range_ok(c->at, n, c->part->size))
        return BAD(c, c->at, "%s needs %llu bytes, the file has %llu left", field, (unsigned long long)n,
                   (unsigned long long)(c->part->size - c->at));
    *p = c->part->data + c->at;
    c->at += n;
    return INFER_OK;
}

static infer_status take_u32(cursor *c, const char *field, uint32_t *v)
{
    const uint8_t *p = NULL;
    INFER_TRY(take(c, 4, field, &p));
    memcpy(v, p, 4);
    return INFER_OK;
}

static infer_status take_u64(cursor *c, const char *field, uint64_t *v)
{
    const uint8_t *p = NULL;
    INFER_TRY(take(c, 8, field, &p));
    memcpy(v, p, 8);
    return INFER_OK;
}

static infer_status take_name(cursor *c, const char *what, infer_str *name)
{
    uint64_t n = 0, at = c->at;
    const uint8_t *p = NULL;
    INFER_TRY(take_u64(c, what, &n));
    if (!n || n > MAX_NAME)
        return BAD(c, at, "%s has a length of %llu, allowed are 1 to %d", what, (unsigned long long)n, MAX_NAME);
    INFER_TRY(take(c, n, what, &p));
    *name = infer_str_of((const char *)p, (size_t)n);
    return INFER_OK;
}

const char *gguf_show(infer_str s, char buf[GGUF_SHOW])
{
    size_t n = 0;
    for (; n < s.n && n < GGUF_SHOW - 4; n++)
        buf[n] = s.p[n] >= 32 && s.p[n] < 127 ? s.p[n] : '?';
    if (n < s.n)
        for (int i = 0; i < 3; i++)
            buf[n++] = '.';
    buf[n] = 0;
    return buf;
}

static int compare_str(infer_str a, infer_str b)
{
    int c = memcmp(a.p, b.p, a.n < b.n ? a.n : b.n);
    return c ? c : (a.n > b.n) - (a.n < b.n);
}

/* ---- Keys ---------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    uint32_t size; /* 0: not of fixed size */
} value_types[INFER_GGUF_TYPE_COUNT] = {
    [INFER_GGUF_U8] = {"u8", 1},   [INFER_GGUF_I8] = {"i8", 1},     [INFER_GGUF_U16] = {"u16", 2},
    [INFER_GGUF_I16] = {"i16", 2}, [INFER_GGUF_U32] = {"u32", 4},   [INFER_GGUF_I32] = {"i32", 4},
    [INFER_GGUF_F32] = {"f32", 4}, [INFER_GGUF_BOOL] = {"bool", 1}, [INFER_GGUF_STRING] = {"string", 0},
    [INFER_GGUF_U64] = {"u64", 8}, [INFER_GGUF_I64] = {"i64", 8},   [INFER_GGUF_ARRAY] = {"array", 0},
    [INFER_GGUF_F64] = {"f64", 8},
};

const char *gguf_type_name(uint32_t type)
{
    return type < INFER_GGUF_TYPE_COUNT ? value_types[type].name : "unknown";
}

uint32_t gguf_type_size(uint32_t type)
{
    return type < INFER_GGUF_TYPE_COUNT ? value_types[type].size : 0;
}

static infer_status check_bools(const cursor *c, const infer_gguf_kv *kv, uint64_t n)
{
    char show[GGUF_SHOW];
    for (uint64_t i = 0; i < n; i++)
        if (kv->value[i] > 1)
            return BAD(c, (uint64_t)(kv->value - c->part->data) + i, "'%s' is a bool of value %u",
                       gguf_show(kv->key, show), kv->value[i]);
    return INFER_OK;
}

static infer_status parse_array(cursor *c, infer_gguf_kv *kv)
{
    char show[GGUF_SHOW], field[GGUF_SHOW + 16];
    snprintf(field, sizeof field, "array '%s'", gguf_show(kv->key, show));
    uint64_t bytes;
    INFER_TRY(take_u32(c, field, &kv->elem_type));
    INFER_TRY(take_u64(c, field, &kv->n));
    if (kv->elem_type == INFER_GGUF_ARRAY)
        return fail(c, INFER_E_UNSUPPORTED, kv->offset, "%s holds arrays, which are not supported", field);
    if (kv->elem_type >= INFER_GGUF_TYPE_COUNT)
        return BAD(c, kv->offset, "%s has unknown element type %u", field, kv->elem_type);
    uint64_t start = c->at;
    if (kv->elem_type == INFER_GGUF_STRING) {
        kv->value = c->part->data + start;
        for (uint64_t i = 0; i < kv->n; i++) {
            const uint8_t *p = NULL;
            INFER_TRY(take_u64(c, field, &bytes));
            INFER_TRY(take(c, bytes, field, &p));
        }
        kv->value_bytes = c->at - start;
        return INFER_OK;
    }
    if (!infer_mul_u64(kv->n, gguf_type_size(kv->elem_type), &bytes))
        return BAD(c, kv->offset, "%s has %llu elements, too many to address", field, (unsigned long long)kv->n);
    INFER_TRY(take(c, bytes, field, &kv->value));
    kv->value_bytes = bytes;
    return kv->elem_type == INFER_GGUF_BOOL ? check_bools(c, kv, kv->n) : INFER_OK;
}

static infer_status parse_kv(cursor *c, infer_gguf_kv *kv)
{
    char show[GGUF_SHOW], field[GGUF_SHOW + 16];
    *kv = (infer_gguf_kv){0};
    INFER_TRY(take_name(c, "key", &kv->key));
    snprintf(field, sizeof field, "value of '%s'", gguf_show(kv->key, show));
    uint64_t at = c->at;
    INFER_TRY(take_u32(c, field, &kv->type));
    if (kv->type >= INFER_GGUF_TYPE_COUNT)
        return BAD(c, at, "%s has unknown type %u", field, kv->type);
    kv->offset = c->at;
    if (kv->type == INFER_GGUF_ARRAY)
        return parse_array(c, kv);
    if (kv->type == INFER_GGUF_STRING)
        INFER_TRY(take_u64(c, field, &kv->n));
    kv->value_bytes = kv->type == INFER_GGUF_STRING ? kv->n : gguf_type_size(kv->type);
    INFER_TRY(take(c, kv->value_bytes, field, &kv->value));
    return kv->type == INFER_GGUF_BOOL ? check_bools(c, kv, 1) : INFER_OK;
}

static int compare_kv(const void *a, const void *b)
{
    return compare_str((*(const infer_gguf_kv *const *)a)->key, (*(const infer_gguf_kv *const *)b)->key);
}

const infer_gguf_kv *gguf_part_find(const gguf_part *part, infer_str key)
{
    uint32_t lo = 0, hi = part->n_kv;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        int c = compare_str(part->by_key[mid]->key, key);
        if (!c)
            return part->by_key[mid];
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

/* Room for one more record, doubling: memory follows what was really read, not what the header claims. */
static void *grow(void *array, uint32_t n, uint32_t *cap, size_t size)
{
    if (n < *cap)
        return array;
    uint32_t want = *cap ? *cap * 2 : 16;
    void *p = infer_realloc_array(array, want, size);
    if (p)
        *cap = want;
    return p;
}

static infer_status parse_kvs(cursor *c, gguf_part *part, uint64_t n)
{
    char show[GGUF_SHOW];
    uint32_t cap = 0;
    for (uint64_t i = 0; i < n; i++) {
        infer_gguf_kv *p = grow(part->kv, part->n_kv, &cap, sizeof *p);
        if (!p)
            return no_memory(c);
        part->kv = p;
        INFER_TRY(parse_kv(c, &part->kv[part->n_kv]));
        part->n_kv++;
    }
    part->by_key = infer_realloc_array(NULL, part->n_kv, sizeof *part->by_key);
    if (!part->by_key)
        return no_memory(c);
    for (uint32_t i = 0; i < part->n_kv; i++)
        part->by_key[i] = &part->kv[i];
    qsort(part->by_key, part->n_kv, sizeof *part->by_key, compare_kv);
    for (uint32_t i = 1; i < part->n_kv; i++)
        if (!compare_kv(&part->by_key[i - 1], &part->by_key[i])) {
            const infer_gguf_kv *a = part->by_key[i - 1], *b = part->by_key[i];
            return BAD(c, a->offset > b->offset ? a->offset : b->offset, "key '%s' appears twice",
                       gguf_show(a->key, show));
        }
    return INFER_OK;
}

/* An integer key of a part, `fallback` where absent. */
static infer_status part_int(const cursor *c, const char *key, int64_t fallback, int64_t *v, uint64_t *at)
{
    const infer_gguf_kv *kv = gguf_part_find(c->part, infer_str_of(key, strlen(key)));
    *v = fallback;
    *at = kv ? kv->offset : 0;
    if (kv && (kv->type == INFER_GGUF_ARRAY || !gguf_number_i64(kv->type, kv->value, v)))
        return BAD(c, kv->offset, "'%s' is %s, not an integer", key, gguf_type_name(kv->type));
    return INFER_OK;
}

/* ---- Tensors ------------------------------------------------------------------------------------------------- */

/* Types of the specification (and of older files) that core/quant has no format for. */
static const char *const refused_types[] = {
    [4] = "Q4_2",        [5] = "Q4_3",        [9] = "Q8_1",        [15] = "Q8_K",     [16] = "IQ2_XXS", [17] = "IQ2_XS",
    [18] = "IQ3_XXS",    [19] = "IQ1_S",      [20] = "IQ4_NL",     [21] = "IQ3_S",    [22] = "IQ2_S",   [23] = "IQ4_XS",
    [29] = "IQ1_M",      [31] = "Q4_0_4_4",   [32] = "Q4_0_4_8",   [33] = "Q4_0_8_8", [34] = "TQ1_0",   [35] = "TQ2_0",
    [36] = "IQ4_NL_4_4", [37] = "IQ4_NL_4_8", [38] = "IQ4_NL_8_8", [40] = "NVFP4",    [41] = "Q1_0",
};

static infer_status tensor_format(const cursor *c, const char *name, uint32_t type, uint64_t at, infer_format *format)
{
    const infer_format_info *f = infer_format_by_gguf(type);
    if (!f) {
        const char *known = type < sizeof refused_types / sizeof refused_types[0] ? refused_types[type] : NULL;
        if (!known)
            return BAD(c, at, "tensor '%s' has unknown type %u", name, type);
        return fail(c, INFER_E_UNSUPPORTED, at, "tensor '%s' has type %s, which is not supported; convert the file",
                    name, known);
    }
    *format = f->id;
    return INFER_OK;
}

/* One row of the tensor table; t->offset is still relative to the data. */
static infer_status parse_tensor(cursor *c, infer_gguf_tensor *t)
{
    char name[GGUF_SHOW], field[GGUF_SHOW + 16];
    uint32_t type;
    *t = (infer_gguf_tensor){.dims = {1, 1, 1, 1}, .n_elems = 1};
    INFER_TRY(take_name(c, "tensor name", &t->name));
    snprintf(field, sizeof field, "tensor '%s'", gguf_show(t->name, name));
    uint64_t at = c->at;
    INFER_TRY(take_u32(c, field, &t->rank));
    if (t->rank < 1 || t->rank > 4)
        return BAD(c, at, "%s has %u dimensions, allowed are 1 to 4", field, t->rank);
    for (uint32_t i = 0; i < t->rank; i++) {
        at = c->at;
        INFER_TRY(take_u64(c, field, &t->dims[i]));
        if (!t->dims[i] || !infer_mul_u64(t->n_elems, t->dims[i], &t->n_elems) || t->n_elems > INT64_MAX)
            return BAD(c, at, "%s: dimension %u of %llu gives no possible element count", field, i,
                       (unsigned long long)t->dims[i]);
    }
    at = c->at;
    INFER_TRY(take_u32(c, field, &type));
    INFER_TRY(tensor_format(c, name, type, at, &t->format));
    if (t->dims[0] % infer_format_get(t->format)->block_elems)
        return BAD(c, at, "%s: rows of %llu elements are no multiple of %s's block of %u", field,
                   (unsigned long long)t->dims[0], infer_format_get(t->format)->name,
                   infer_format_get(t->format)->block_elems);
    if (infer_format_bytes(t->format, t->n_elems, &t->bytes) != INFER_OK)
        return BAD(c, at, "%s is too large to address", field);
    at = c->at;
    INFER_TRY(take_u64(c, field, &t->offset));
    if (t->offset % c->part->alignment)
        return BAD(c, at, "%s: offset %llu is no multiple of the alignment %u", field, (unsigned long long)t->offset,
                   c->part->alignment);
    return INFER_OK;
}

static infer_status parse_tensors(cursor *c, infer_gguf *g, uint32_t part, uint64_t n)
{
    char name[GGUF_SHOW];
    uint32_t first = g->n_tensors;
    for (uint64_t i = 0; i < n; i++) {
        infer_gguf_tensor *p = grow(g->tensors, g->n_tensors, &g->cap_tensors, sizeof *p);
        if (!p)
            return no_memory(c);
        g->tensors = p;
        INFER_TRY(parse_tensor(c, &g->tensors[g->n_tensors]));
        g->tensors[g->n_tensors++].part = part;
    }
    uint64_t start;
    if (!infer_round_up_u64(c->at, c->part->alignment, &start))
        return BAD(c, c->at, "the data cannot be aligned to %u", c->part->alignment);
    for (uint32_t i = first; i < g->n_tensors; i++) {
        infer_gguf_tensor *t = &g->tensors[i];
        uint64_t at;
        if (!infer_add_u64(start, t->offset, &at) || !infer_range_ok(at, t->bytes, c->part->size))
            return BAD(c, start, "tensor '%s' needs %llu bytes at offset %llu of the data, the file ends at %llu",
                       gguf_show(t->name, name), (unsigned long long)t->bytes, (unsigned long long)t->offset,
                       (unsigned long long)c->part->size);
        t->offset = at;
        t->data = c->part->data + at;
    }
    return INFER_OK;
}

static int compare_place(const void *a, const void *b)
{
    const infer_gguf_tensor *x = *(const infer_gguf_tensor *const *)a, *y = *(const infer_gguf_tensor *const *)b;
    if (x->part != y->part)
        return x->part < y->part ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static int compare_tensor(const void *a, const void *b)
{
    return compare_str((*(const infer_gguf_tensor *const *)a)->name, (*(const infer_gguf_tensor *const *)b)->name);
}

/* No two tensors share bytes or a name; leaves the index sorted by name. */
static infer_status index_tensors(infer_gguf *g, infer_error *err)
{
    char x[GGUF_SHOW], y[GGUF_SHOW];
    cursor c = {&g->parts[0], 0, err};
    g->by_name = infer_realloc_array(NULL, g->n_tensors, sizeof *g->by_name);
    if (!g->by_name)
        return no_memory(&c);
    for (uint32_t i = 0; i < g->n_tensors; i++)
        g->by_name[i] = &g->tensors[i];
    qsort(g->by_name, g->n_tensors, sizeof *g->by_name, compare_place);
    for (uint32_t i = 1; i < g->n_tensors; i++) {
        const infer_gguf_tensor *a = g->by_name[i - 1], *b = g->by_name[i];
        c.part = &g->parts[b->part];
        if (a->part == b->part && a->offset + a->bytes > b->offset)
            return BAD(&c, b->offset, "tensors '%s' and '%s' overlap", gguf_show(a->name, x), gguf_show(b->name, y));
    }
    qsort(g->by_name, g->n_tensors, sizeof *g->by_name, compare_tensor);
    for (uint32_t i = 1; i < g->n_tensors; i++) {
        const infer_gguf_tensor *a = g->by_name[i - 1], *b = g->by_name[i];
        if (compare_tensor(&g->by_name[i - 1], &g->by_name[i]))
            continue;
        if (compare_place(&g->by_name[i - 1], &g->by_name[i]) > 0)
            b = a;
        c.part = &g->parts[b->part];
        return BAD(&c, b->offset, "tensor '%s' appears twice", gguf_show(b->name, x));
    }
    return INFER_OK;
}

/* ---- Parts --------------------------------------------------------------------------------------------------- */

static infer_status parse_header(cursor *c, gguf_part *part, uint64_t *n_tensors, uint64_t *n_kv)
{
    const uint8_t *magic;
    INFER_TRY(take(c, 4, "magic", &magic));
    if (memcmp(magic, "GGUF", 4))
        return BAD(c, 0, "not a GGUF file: it begins with %02x %02x %02x %02x", magic[0], magic[1], magic[2], magic[3]);
    INFER_TRY(take_u32(c, "version", &part->version));
    if (part->version && !(part->version & 0xFFFFu))
        return fail(c, INFER_E_UNSUPPORTED, 4, "big-endian GGUF is not supported; convert the file to little-endian");
    if (part->version < 2 || part->version > 3)
        return fail(c, INFER_E_UNSUPPORTED, 4, "GGUF version %u, supported are 2 and 3", part->version);
    INFER_TRY(take_u64(c, "tensor count", n_tensors));
    INFER_TRY(take_u64(c, "key count", n_kv));
    uint64_t left = part->size - c->at;
    if (*n_tensors > left / MIN_TENSOR)
        return BAD(c, 8, "a tensor count of %llu does not fit into the %llu bytes left", (unsigned long long)*n_tensors,
                   (unsigned long long)left);
    if (*n_kv > left / MIN_KV)
        return BAD(c, 16, "a key count of %llu does not fit into the %llu bytes left", (unsigned long long)*n_kv,
                   (unsigned long long)left);
    if (*n_kv > INFER_GGUF_MAX_KV)
        return fail(c, INFER_E_TOO_LARGE, 16, "%llu keys, the limit is %u", (unsigned long long)*n_kv,
                    INFER_GGUF_MAX_KV);
    return INFER_OK;
}

static infer_status parse_part(infer_gguf *g, uint32_t index, infer_error *err)
{
    gguf_part *part = &g->parts[index];
    cursor c = {part, 0, err};
    uint64_t n_tensors, n_kv, at;
    int64_t alignment;
    INFER_TRY(parse_header(&c, part, &n_tensors, &n_kv));
    if (n_tensors > INFER_GGUF_MAX_TENSORS - g->n_tensors)
        return fail(&c, INFER_E_TOO_LARGE, 8, "%llu tensors, the limit is %u", (unsigned long long)n_tensors,
                    INFER_GGUF_MAX_TENSORS);
    INFER_TRY(parse_kvs(&c, part, n_kv));
    INFER_TRY(part_int(&c, "general.alignment", 32, &alignment, &at));
    if (alignment < 8 || alignment > INT32_MAX || (alignment & (alignment - 1)))
        return BAD(&c, at, "'general.alignment' is %lld, not a power of two from 8", (long long)alignment);
    part->alignment = (uint32_t)alignment;
    return parse_tensors(&c, g, index, n_tensors);
}

static infer_status add_part(infer_gguf *g, const infer_gguf_bytes *bytes, const char *path, infer_error *err)
{
    gguf_part *p = grow(g->parts, g->n_parts, &g->cap_parts, sizeof *p);
    if (!p)
        return infer_error_set(err, INFER_E_NO_MEMORY, "%s: no memory for the file's index", path);
    g->parts = p;
    p = &g->parts[g->n_parts];
    *p = (gguf_part){0};
    p->name = infer_strdup(path);
    if (!p->name)
        return infer_error_set(err, INFER_E_NO_MEMORY, "%s: no memory for the file's index", path);
    g->n_parts++;
    if (bytes) {
        p->data = bytes->p;
        p->size = bytes->n;
    } else {
        INFER_TRY(infer_map_open(path, &p->map, err));
        p->data = p->map.data;
        p->size = p->map.size;
    }
    g->file_bytes += p->size;
    return parse_part(g, g->n_parts - 1, err);
}

/* Where NAME-00001-of-0000N.gguf has its part number; NULL where path is not named so for n parts. */
static char *part_digits(char *path, uint32_t n)
{
    char tail[32];
    int length = snprintf(tail, sizeof tail, "-00001-of-%05u.gguf", n);
    size_t have = strlen(path);
    if (have < (size_t)length || strcmp(path + have - length, tail))
        return NULL;
    return path + have - length + 1;
}

/* The other parts of a split model, and that all belong together. bytes: the n_bytes parts in memory, or NULL. */
static infer_status add_other_parts(infer_gguf *g, const infer_gguf_bytes *bytes, uint32_t n_bytes, char *path,
                                    infer_error *err)
{
    cursor c = {&g->parts[0], 0, err};
    int64_t count, no, total;
    uint64_t at_count, at_no, at_total;
    INFER_TRY(part_int(&c, "split.count", 1, &count, &at_count));
    INFER_TRY(part_int(&c, "split.no", 0, &no, &at_no));
    INFER_TRY(part_int(&c, "split.tensors.count", -1, &total, &at_total));
    if (count == 0) /* as some writers mark a file that is not split */
        count = 1;
    if (count < 1 || count > UINT16_MAX)
        return BAD(&c, at_count, "'split.count' is %lld, allowed are 1 to %d", (long long)count, UINT16_MAX);
    if (no != 0)
        return fail(&c, INFER_E_UNSUPPORTED, at_no, "this is part %lld of %lld; open the first part, -00001-of-%05lld",
                    (long long)no + 1, (long long)count, (long long)count);
    char *digits = NULL;
    if (bytes && n_bytes != count)
        return BAD(&c, at_count, "'split.count' is %lld, given were %u parts", (long long)count, n_bytes);
    if (!bytes && count > 1 && !(digits = part_digits(path, (uint32_t)count)))
        return BAD(&c, at_count, "the first of %lld parts must be named NAME-00001-of-%05lld.gguf", (long long)count,
                   (long long)count);
    for (uint32_t i = 1; i < count; i++) {
        if (digits) {
            char number[16];
            snprintf(number, sizeof number, "%05u", i + 1);
            memcpy(digits, number, 5);
        }
        INFER_TRY(add_part(g, bytes ? &bytes[i] : NULL, path, err));
        int64_t part_no, part_count;
        uint64_t at;
        c.part = &g->parts[i];
        INFER_TRY(part_int(&c, "split.count", 1, &part_count, &at));
        if (part_count != count)
            return BAD(&c, at, "'split.count' is %lld, in the first part %lld", (long long)part_count,
                       (long long)count);
        INFER_TRY(part_int(&c, "split.no", 0, &part_no, &at));
        if (part_no != i)
            return BAD(&c, at, "'split.no' is %lld, expected %u", (long long)part_no, i);
    }
    c.part = &g->parts[0];
    if (count > 1 && total >= 0 && total != g->n_tensors)
        return BAD(&c, at_total, "'split.tensors.count' is %lld, the parts have %u tensors", (long long)total,
                   g->n_tensors);
    return INFER_OK;
}

static infer_status open_parts(const infer_gguf_bytes *bytes, uint32_t n_bytes, const char *path, infer_gguf **out,
                               infer_error *err)
{
    char *name = infer_strdup(path);
    infer_gguf *g = infer_calloc(1, sizeof *g);
    infer_status s = INFER_E_NO_MEMORY;
    if (!name || !g)
        infer_error_set(err, s, "%s: no memory for the file's index", path);
    else
        s = add_part(g, bytes, path, err);
    if (s == INFER_OK)
        s = add_other_parts(g, bytes, n_bytes, name, err);
    if (s == INFER_OK)
        s = index_tensors(g, err);
    infer_free(name);
    if (s == INFER_OK)
        *out = g;
    else
        infer_gguf_close(g);
    return s;
}

infer_status infer_gguf_open(const char *path, infer_gguf **out, infer_error *err)
{
    return open_parts(NULL, 0, path, out, err);
}

infer_status infer_gguf_open_bytes(const infer_gguf_bytes *parts, uint32_t n_parts, infer_gguf **out, infer_error *err)
{
    if (!n_parts)
        return infer_error_set(err, INFER_E_INVALID, "open GGUF from memory: no part given");
    return open_parts(parts, n_parts, "GGUF in memory", out, err);
}

void infer_gguf_close(infer_gguf *g)
{
    if (!g)
        return;
    for (uint32_t i = 0; i < g->n_parts; i++) {
        infer_map_close(&g->parts[i].map);
        infer_free(g->parts[i].kv);
        infer_free(g->parts[i].by_key);
        infer_free(g->parts[i].name);
    }
    infer_free(g->parts);
    infer_free(g->tensors);
    infer_free(g->by_name);
    infer_free(g);
}

const infer_gguf_tensor *infer_gguf_tensor_find(const infer_gguf *g, const char *name)
{
    infer_str key = infer_str_of(name, strlen(name));
    uint32_t lo = 0, hi = g->n_tensors;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        int c = compare_str(g->by_name[mid]->name, key);
        if (!c)
            return g->by_name[mid];
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}
