/* Methods of strings that search and split. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "text/jinja_strlib.h"
#include "text/jinja_table.h"
#include "text/jinja_unicode.h"

#define METHOD(fn)                                                                                                     \
    static int fn(infer_jctx *c, infer_jval self, infer_jval *a, const infer_jargs *more, infer_jval *out)

/* ---- Searching --------------------------------------------------------------------------------------------------- */

/* The part of s between the optional start and end arguments, as s[start:end] would clip them: byte offsets, and the
 * code points before it. 0 where start lies beyond the end of the part. */
static int part_of(infer_jctx *c, const infer_jstr *s, infer_jval vfrom, infer_jval vto, infer_jstr *part,
                   size_t *before)
{
    int64_t len = (int64_t)s->len, from = 0, to = len;
    if ((vfrom.kind != J_MISSING && vfrom.kind != J_NONE && infer_jval_as_int(c, vfrom, "slice indices", &from)) ||
        (vto.kind != J_MISSING && vto.kind != J_NONE && infer_jval_as_int(c, vto, "slice indices", &to)) ||
        infer_jctx_work(c, s->n))
        return -1;
    if (from < 0)
        from = from < -len ? 0 : from + len;
    if (to < 0)
        to = to < -len ? 0 : to + len;
    to = to > len ? len : to;
    if (from > to)
        return 0;
    size_t p = infer_jstr_offset(s, (size_t)from), q = infer_jstr_offset(s, (size_t)to);
    *part = (infer_jstr){.p = s->p + p, .n = q - p, .len = (size_t)(to - from)};
    *before = (size_t)from;
    return 1;
}

/* Steps for comparing b at every place in a: the right-hand searches have no linear algorithm here, so that two long
 * strings run into the limit instead of taking long. */
static int charge_right(infer_jctx *c, size_t a, size_t b)
{
    return infer_jctx_step(c, a / 16 + a / J_BYTES_A_STEP * (b / J_BYTES_A_STEP));
}

/* Last occurrence of b in a, SIZE_MAX if none. */
static size_t find_last(const infer_jstr *a, const infer_jstr *b)
{
    for (size_t i = a->n; i >= b->n; i--) {
        if (memcmp(a->p + i - b->n, b->p, b->n) == 0)
            return i - b->n;
        if (!i)
            break;
    }
    return SIZE_MAX;
}

static int seek(infer_jctx *c, infer_jval self, infer_jval *a, bool last, bool must, infer_jval *out)
{
    const infer_jstr *sub;
    infer_jstr part;
    size_t before = 0, hit = SIZE_MAX;
    if (infer_jval_need_str(c, a[0], "argument 1", &sub))
        return -1;
    int valid = part_of(c, self.u.s, a[1], a[2], &part, &before);
    if (valid < 0 || (valid && last && charge_right(c, part.n, sub->n)))
        return -1;
    if (valid)
        hit = last ? find_last(&part, sub) : infer_jstr_find(&part, sub, 0);
    if (hit == SIZE_MAX && must)
        return infer_jctx_error(c, "substring not found");
    *out = infer_jval_int(hit == SIZE_MAX ? -1 : (int64_t)(before + infer_jstr_index(&part, hit)));
    return 0;
}

METHOD(str_find)
{
    (void)more;
    return seek(c, self, a, false, false, out);
}

METHOD(str_rfind)
{
    (void)more;
    return seek(c, self, a, true, false, out);
}

METHOD(str_index)
{
    (void)more;
    return seek(c, self, a, false, true, out);
}

METHOD(str_rindex)
{
    (void)more;
    return seek(c, self, a, true, true, out);
}

METHOD(str_count)
{
    (void)more;
    const infer_jstr *sub;
    infer_jstr part;
    size_t before, at = 0;
    int64_t n = 0;
    if (infer_jval_need_str(c, a[0], "count() argument 1", &sub))
        return -1;
    int valid = part_of(c, self.u.s, a[1], a[2], &part, &before);
    if (valid < 0)
        return -1;
    if (valid && !sub->n)
        n = (int64_t)part.len + 1;
    else if (valid)
        while ((at = infer_jstr_find(&part, sub, at)) != SIZE_MAX) {
            n++;
            at += sub->n;
        }
    *out = infer_jval_int(n);
    return 0;
}

static int affix(infer_jctx *c, infer_jval self, infer_jval *a, bool end, infer_jval *out)
{
    infer_jstr part = {0};
    size_t before;
    int valid = part_of(c, self.u.s, a[1], a[2], &part, &before);
    infer_jval one[1] = {a[0]};
    const infer_jval *v = a[0].kind == J_TUPLE ? a[0].u.list->v : one;
    size_t n = a[0].kind == J_TUPLE ? a[0].u.list->n : 1;
    bool yes = false;
    if (valid < 0)
        return -1;
    for (size_t i = 0; i < n && !yes; i++) {
        const infer_jstr *x;
        if (infer_jval_need_str(c, v[i], end ? "endswith first arg" : "startswith first arg", &x) ||
            infer_jctx_step(c, 1))
            return -1;
        yes = valid && part.n >= x->n && memcmp(end ? part.p + part.n - x->n : part.p, x->p, x->n) == 0;
    }
    *out = infer_jval_bool(yes);
    return 0;
}

METHOD(str_startswith)
{
    (void)more;
    return affix(c, self, a, false, out);
}

METHOD(str_endswith)
{
    (void)more;
    return affix(c, self, a, true, out);
}

/* ---- Splitting --------------------------------------------------------------------------------------------------- */

/* Appends s[from, to) to the list being built. */
static int piece(infer_jctx *c, infer_jlist *l, size_t *cap, const infer_jstr *s, size_t from, size_t to)
{
    infer_jval v;
    if (infer_jctx_step(c, 1) || infer_jstr_borrow(c, s->p + from, to - from, SIZE_MAX, &v))
        return -1;
    return infer_jlist_append(c, l, cap, v);
}

static int finish(infer_jctx *c, const infer_jlist *l, infer_jval *out)
{
    infer_jlist *kept = infer_jctx_alloc(c, sizeof *kept);
    if (!kept)
        return -1;
    *kept = *l;
    *out = infer_jval_of_list(J_LIST, kept);
    return 0;
}

static size_t skip(const infer_jstr *s, size_t i, bool space)
{
    while (i < s->n) {
        size_t at = i;
        if (infer_ju_isspace(infer_ju_next(s->p, &i)) != space)
            return at;
    }
    return i;
}

static size_t skip_back(const infer_jstr *s, size_t i, bool space)
{
    while (i > 0) {
        size_t at = infer_ju_back(s->p, i), k = at;
        if (infer_ju_isspace(infer_ju_next(s->p, &k)) != space)
            return i;
        i = at;
    }
    return i;
}

static int split_space(infer_jctx *c, const infer_jstr *s, int64_t max, infer_jlist *l, size_t *cap)
{
    for (size_t i = skip(s, 0, true); i < s->n; i = skip(s, i, true)) {
        size_t end = max == 0 ? s->n : skip(s, i, false); /* the rest keeps the space at its end */
        if (piece(c, l, cap, s, i, end))
            return -1;
        max -= max > 0;
        i = end;
    }
    return 0;
}

/* From the right; pieces come out last first. */
static int rsplit_space(infer_jctx *c, const infer_jstr *s, int64_t max, infer_jlist *l, size_t *cap)
{
    for (size_t i = skip_back(s, s->n, true); i > 0; i = skip_back(s, i, true)) {
        size_t start = max-- == 0 ? 0 : skip_back(s, i, false);
        if (piece(c, l, cap, s, start, i))
            return -1;
        i = start;
    }
    return 0;
}

static int split_by(infer_jctx *c, const infer_jstr *s, const infer_jstr *sep, int64_t max, infer_jlist *l, size_t *cap)
{
    size_t at = 0, hit;
    for (; max != 0 && (hit = infer_jstr_find(s, sep, at)) != SIZE_MAX; max--) {
        if (piece(c, l, cap, s, at, hit))
            return -1;
        at = hit + sep->n;
    }
    return piece(c, l, cap, s, at, s->n);
}

static int rsplit_by(infer_jctx *c, const infer_jstr *s, const infer_jstr *sep, int64_t max, infer_jlist *l,
                     size_t *cap)
{
    size_t end = s->n, i = s->n;
    while (max != 0 && i >= sep->n) {
        if (memcmp(s->p + i - sep->n, sep->p, sep->n) != 0) {
            i--;
            continue;
        }
        if (piece(c, l, cap, s, i, end))
            return -1;
        end = i -= sep->n;
        max--;
    }
    return piece(c, l, cap, s, 0, end);
}

static int split(infer_jctx *c, infer_jval self, infer_jval *a, bool right, infer_jval *out)
{
    const infer_jstr *s = self.u.s, *sep = NULL;
    infer_jlist l = {0};
    size_t cap = 0;
    int64_t max = -1;
    int rc;
    if ((a[0].kind != J_MISSING && a[0].kind != J_NONE && infer_jval_need_str(c, a[0], "separator", &sep)) ||
        (a[1].kind != J_MISSING && infer_jval_as_int(c, a[1], "maxsplit", &max)) ||
        charge_right(c, s->n, right && sep ? sep->n : 0))
        return -1;
    if (sep && !sep->n)
        return infer_jctx_error(c, "empty separator");
    if (right)
        rc = sep ? rsplit_by(c, s, sep, max, &l, &cap) : rsplit_space(c, s, max, &l, &cap);
    else
        rc = sep ? split_by(c, s, sep, max, &l, &cap) : split_space(c, s, max, &l, &cap);
    if (rc)
        return -1;
    for (size_t i = 0; right && i < l.n / 2; i++) {
        infer_jval v = l.v[i];
        l.v[i] = l.v[l.n - 1 - i];
        l.v[l.n - 1 - i] = v;
    }
    return finish(c, &l, out);
}

METHOD(str_split)
{
    (void)more;
    return split(c, self, a, false, out);
}

METHOD(str_rsplit)
{
    (void)more;
    return split(c, self, a, true, out);
}

static bool line_end(uint32_t cp)
{
    return (cp >= 0x0A && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 || cp == 0x2029;
}

int infer_jstr_splitlines(infer_jctx *c, const infer_jstr *s, bool keep, infer_jval *out)
{
    infer_jlist l = {0};
    size_t cap = 0, from = 0;
    if (infer_jctx_step(c, s->n / 16))
        return -1;
    for (size_t i = 0; i < s->n;) {
        size_t at = i;
        uint32_t cp = infer_ju_next(s->p, &i);
        if (!line_end(cp))
            continue;
        if (cp == '\r' && i < s->n && s->p[i] == '\n')
            i++;
        if (piece(c, &l, &cap, s, from, keep ? i : at))
            return -1;
        from = i;
    }
    if (from < s->n && piece(c, &l, &cap, s, from, s->n))
        return -1;
    return finish(c, &l, out);
}

METHOD(str_splitlines)
{
    (void)more;
    int64_t keep = 0;
    if (a[0].kind != J_MISSING && infer_jval_as_int(c, a[0], "keepends", &keep))
        return -1;
    return infer_jstr_splitlines(c, self.u.s, keep != 0, out);
}

static int partition(infer_jctx *c, infer_jval self, infer_jval vsep, bool last, infer_jval *out)
{
    const infer_jstr *s = self.u.s, *sep;
    infer_jval empty = infer_jval_str(&infer_jstr_empty);
    if (infer_jval_need_str(c, vsep, "separator", &sep) || charge_right(c, s->n, last ? sep->n : 0))
        return -1;
    if (!sep->n)
        return infer_jctx_error(c, "empty separator");
    size_t hit = last ? find_last(s, sep) : infer_jstr_find(s, sep, 0);
    if (infer_jlist_new(c, J_TUPLE, 3, out))
        return -1;
    infer_jval *v = out->u.list->v;
    if (hit == SIZE_MAX) {
        v[0] = last ? empty : self;
        v[1] = empty;
        v[2] = last ? self : empty;
        return 0;
    }
    v[1] = vsep;
    size_t after = hit + sep->n;
    return infer_jstr_borrow(c, s->p, hit, SIZE_MAX, &v[0]) ||
                   infer_jstr_borrow(c, s->p + after, s->n - after, SIZE_MAX, &v[2])
               ? -1
               : 0;
}

METHOD(str_partition)
{
    (void)more;
    return partition(c, self, a[0], false, out);
}

METHOD(str_rpartition)
{
    (void)more;
    return partition(c, self, a[0], true, out);
}

#define ON_STR J_BIT(J_STR)

const infer_jrow infer_jrows_method_seek[] = {
    {"find", str_find, "/sub start? end?", ON_STR},
    {"rfind", str_rfind, "/sub start? end?", ON_STR},
    {"index", str_index, "/sub start? end?", ON_STR},
    {"rindex", str_rindex, "/sub start? end?", ON_STR},
    {"count", str_count, "/sub start? end?", ON_STR},
    {"startswith", str_startswith, "/prefix start? end?", ON_STR},
    {"endswith", str_endswith, "/suffix start? end?", ON_STR},
    {"split", str_split, "sep? maxsplit?", ON_STR},
    {"rsplit", str_rsplit, "sep? maxsplit?", ON_STR},
    {"splitlines", str_splitlines, "keepends?", ON_STR},
    {"partition", str_partition, "/sep", ON_STR},
    {"rpartition", str_rpartition, "/sep", ON_STR},
    {NULL, NULL, NULL, 0},
};
