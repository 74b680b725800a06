/* Comparing, looking into and iterating over values, with Python's rules. Arithmetic: jinja_num.c; text forms:
 * jinja_repr.c. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "text/jinja_eval.h"
#include "text/jinja_ops.h"
#include "text/jinja_table.h"
#include "text/jinja_unicode.h"

int infer_jctx_enter(infer_jctx *c)
{
    if (c->nesting >= J_MAX_NESTING)
        return infer_jctx_fail(c, INFER_E_TOO_LARGE, "nested deeper than %d", J_MAX_NESTING);
    c->nesting++;
    return 0;
}

const char *infer_jval_type(infer_jval v)
{
    static const char *const names[J_N_KINDS] = {
        [J_MISSING] = "missing",
        [J_UNDEFINED] = "Undefined",
        [J_NONE] = "NoneType",
        [J_BOOL] = "bool",
        [J_INT] = "int",
        [J_BIG] = "int",
        [J_FLOAT] = "float",
        [J_STR] = "str",
        [J_LIST] = "list",
        [J_TUPLE] = "tuple",
        [J_DICT] = "dict",
        [J_RANGE] = "range",
        [J_VIEW] = "dict_items",
        [J_ITER] = "generator",
        [J_NAMESPACE] = "Namespace",
        [J_CYCLER] = "Cycler",
        [J_JOINER] = "Joiner",
        [J_LOOP] = "LoopContext",
        [J_MACRO] = "Macro",
        [J_FUNC] = "function",
        [J_METHOD] = "builtin_function_or_method",
    };
    if (v.kind == J_VIEW && v.u.view->what != 'i')
        return v.u.view->what == 'k' ? "dict_keys" : "dict_values";
    return names[v.kind];
}

bool infer_jval_truth(infer_jval v)
{
    switch (v.kind) {
    case J_MISSING:
    case J_UNDEFINED:
    case J_NONE:
        return false;
    case J_BOOL:
        return v.u.b;
    case J_INT:
        return v.u.i != 0;
    case J_FLOAT:
        return v.u.f != 0;
    case J_STR:
        return v.u.s->n != 0;
    case J_LIST:
    case J_TUPLE:
        return v.u.list->n != 0;
    case J_DICT:
        return v.u.dict->n != 0;
    case J_RANGE:
        return v.u.range->n != 0;
    case J_VIEW:
        return v.u.view->dict->n != 0;
    default:
        return true;
    }
}

bool infer_jval_same(infer_jval a, infer_jval b)
{
    if (a.kind != b.kind)
        return false;
    switch (a.kind) {
    case J_NONE:
    case J_MISSING:
        return true;
    case J_BOOL:
        return a.u.b == b.u.b;
    case J_INT:
        return a.u.i == b.u.i;
    case J_FLOAT:
        return memcmp(&a.u.f, &b.u.f, sizeof a.u.f) == 0;
    case J_STR:
    case J_BIG:
        return a.u.s == b.u.s || (a.u.s->n == b.u.s->n && a.u.s->n <= 1 && memcmp(a.u.s->p, b.u.s->p, a.u.s->n) == 0);
    default:
        return a.u.ptr == b.u.ptr;
    }
}

bool infer_jval_is_int(infer_jval v)
{
    return v.kind == J_INT || v.kind == J_BOOL;
}

bool infer_jval_is_number(infer_jval v)
{
    return v.kind == J_INT || v.kind == J_BOOL || v.kind == J_FLOAT || v.kind == J_BIG;
}

int infer_jval_as_int(infer_jctx *c, infer_jval v, const char *what, int64_t *out)
{
    if (v.kind == J_UNDEFINED)
        return infer_jval_use_undefined(c, v);
    if (!infer_jval_is_int(v))
        return infer_jctx_error(c, "%s must be an integer, not '%s'", what, infer_jval_type(v));
    *out = v.kind == J_BOOL ? v.u.b : v.u.i;
    return 0;
}

/* ---- Order of numbers, exact across kinds -------------------------------------------------------------------- */

/* An integer's sign and decimal digits. */
static int int_text(infer_jval v, char buf[24], const char **digits, size_t *n)
{
    if (v.kind == J_BIG) {
        int neg = v.u.s->p[0] == '-';
        *digits = v.u.s->p + neg;
        *n = v.u.s->n - (size_t)neg;
        return neg ? -1 : 1;
    }
    int64_t i = v.kind == J_BOOL ? v.u.b : v.u.i;
    *n = (size_t)snprintf(buf, 24, "%lld", (long long)i);
    *digits = buf + (i < 0);
    *n -= i < 0;
    return i < 0 ? -1 : i > 0;
}

static int sign_of(int64_t d)
{
    return (d > 0) - (d < 0);
}

static int int_int(infer_jval a, infer_jval b)
{
    if (a.kind != J_BIG && b.kind != J_BIG) {
        int64_t x = a.kind == J_BOOL ? a.u.b : a.u.i, y = b.kind == J_BOOL ? b.u.b : b.u.i;
        return (x > y) - (x < y);
    }
    char ba[24], bb[24];
    const char *pa, *pb;
    size_t na, nb;
    int sa = int_text(a, ba, &pa, &na), sb = int_text(b, bb, &pb, &nb);
    if (sa != sb)
        return sign_of(sa - sb);
    int by_size = na != nb ? (na > nb ? 1 : -1) : sign_of(memcmp(pa, pb, na));
    return sa * by_size;
}

static int int_float(infer_jval a, double f)
{
    if (isinf(f))
        return f > 0 ? -1 : 1;
    if (fabs(f) < 9223372036854775808.0) {
        if (a.kind == J_BIG)
            return a.u.s->p[0] == '-' ? -1 : 1;
        int64_t x = a.kind == J_BOOL ? a.u.b : a.u.i, t = (int64_t)f;
        if (x != t)
            return x > t ? 1 : -1;
        double rest = f - (double)t;
        return (rest < 0) - (rest > 0);
    }
    char text[512]; /* a double has at most 309 digits */
    int n = snprintf(text, sizeof text, "%.0f", f);
    infer_jstr s = {.p = text, .n = (size_t)n};
    return int_int(a, (infer_jval){.kind = J_BIG, .u.s = &s});
}

/* -1, 0, 1, or 2 where a NaN is involved. */
static int number_order(infer_jval a, infer_jval b)
{
    if ((a.kind == J_FLOAT && isnan(a.u.f)) || (b.kind == J_FLOAT && isnan(b.u.f)))
        return 2;
    if (a.kind == J_FLOAT && b.kind == J_FLOAT)
        return (a.u.f > b.u.f) - (a.u.f < b.u.f);
    if (a.kind == J_FLOAT)
        return -int_float(b, a.u.f);
    if (b.kind == J_FLOAT)
        return int_float(a, b.u.f);
    return int_int(a, b);
}

/* ---- Equality ------------------------------------------------------------------------------------------------ */

static int list_eq(infer_jctx *c, const infer_jlist *a, const infer_jlist *b)
{
    if (a->n != b->n)
        return 0;
    if (infer_jctx_enter(c))
        return -1;
    int same = 1;
    for (size_t i = 0; i < a->n && same == 1; i++)
        same = infer_jval_eq(c, a->v[i], b->v[i]);
    infer_jctx_leave(c);
    return same;
}

static int dict_eq(infer_jctx *c, const infer_jdict *a, const infer_jdict *b, bool values)
{
    if (a->n != b->n)
        return 0;
    if (infer_jctx_enter(c))
        return -1;
    int same = 1;
    for (size_t i = 0; i < a->n && same == 1; i++) {
        infer_jval v;
        same = infer_jdict_get(c, b, a->k[i], &v);
        if (same == 1 && values)
            same = infer_jval_eq(c, a->v[i], v);
    }
    infer_jctx_leave(c);
    return same;
}

int infer_jval_eq(infer_jctx *c, infer_jval a, infer_jval b)
{
    if (infer_jctx_step(c, a.kind == J_BIG || b.kind == J_BIG ? 100 : 1))
        return -1;
    if (infer_jval_is_number(a) && infer_jval_is_number(b))
        return number_order(a, b) == 0;
    if (a.kind != b.kind)
        return 0;
    switch (a.kind) {
    case J_MISSING:
    case J_UNDEFINED:
    case J_NONE:
        return 1;
    case J_STR:
        if (a.u.s->n != b.u.s->n)
            return 0;
        return infer_jctx_work(c, a.u.s->n) ? -1 : memcmp(a.u.s->p, b.u.s->p, a.u.s->n) == 0;
    case J_LIST:
    case J_TUPLE:
        return a.u.list == b.u.list ? 1 : list_eq(c, a.u.list, b.u.list);
    case J_DICT:
        return a.u.dict == b.u.dict ? 1 : dict_eq(c, a.u.dict, b.u.dict, true);
    case J_RANGE: {
        const infer_jrange *x = a.u.range, *y = b.u.range;
        return x->n == y->n && (!x->n || (x->start == y->start && (x->n == 1 || x->step == y->step)));
    }
    case J_VIEW:
        if (a.u.view->what != b.u.view->what || a.u.view->what == 'v')
            return a.u.ptr == b.u.ptr;
        return dict_eq(c, a.u.view->dict, b.u.view->dict, a.u.view->what == 'i');
    case J_METHOD:
        return a.u.method->row == b.u.method->row && infer_jval_same(a.u.method->self, b.u.method->self);
    default:
        return a.u.ptr == b.u.ptr;
    }
}

/* ---- Order ----------------------------------------------------------------------------------------------------- */

static int decide(infer_jop op, int order)
{
    switch (op) {
    case J_LT:
        return order == -1;
    case J_LE:
        return order == -1 || order == 0;
    case J_GT:
        return order == 1;
    default:
        return order == 1 || order == 0;
    }
}

static int list_order(infer_jctx *c, infer_jop op, const infer_jlist *a, const infer_jlist *b)
{
    if (infer_jctx_enter(c))
        return -1;
    size_t n = a->n < b->n ? a->n : b->n;
    int result = -2;
    for (size_t i = 0; i < n && result == -2; i++) {
        int same = infer_jval_eq(c, a->v[i], b->v[i]);
        if (same < 0)
            result = -1;
        else if (!same)
            result = infer_jval_order(c, op, a->v[i], b->v[i]);
    }
    infer_jctx_leave(c);
    return result != -2 ? result : decide(op, (a->n > b->n) - (a->n < b->n));
}

int infer_jval_order(infer_jctx *c, infer_jop op, infer_jval a, infer_jval b)
{
    static const char *const signs[] = {[J_LT] = "<", [J_LE] = "<=", [J_GT] = ">", [J_GE] = ">="};
    if (infer_jctx_step(c, a.kind == J_BIG || b.kind == J_BIG ? 100 : 1))
        return -1;
    if (infer_jval_is_number(a) && infer_jval_is_number(b))
        return decide(op, number_order(a, b));
    if (a.kind == J_STR && b.kind == J_STR) {
        /* Byte order of UTF-8 is code point order. */
        size_t n = a.u.s->n < b.u.s->n ? a.u.s->n : b.u.s->n;
        int order = sign_of(memcmp(a.u.s->p, b.u.s->p, n));
        if (!order)
            order = (a.u.s->n > b.u.s->n) - (a.u.s->n < b.u.s->n);
        return infer_jctx_work(c, n) ? -1 : decide(op, order);
    }
    if (a.kind == b.kind && (a.kind == J_LIST || a.kind == J_TUPLE))
        return list_order(c, op, a.u.list, b.u.list);
    if (a.kind == J_UNDEFINED || b.kind == J_UNDEFINED)
        return infer_jval_use_undefined(c, a.kind == J_UNDEFINED ? a : b);
    return infer_jctx_error(c, "'%s' not supported between instances of '%s' and '%s'", signs[op], infer_jval_type(a),
                            infer_jval_type(b));
}

/* ---- Hash ------------------------------------------------------------------------------------------------------ */

int infer_jval_hash(infer_jctx *c, infer_jval v, uint64_t *hash)
{
    switch (v.kind) {
    case J_STR:
    case J_BIG:
        if (infer_jctx_work(c, v.u.s->n))
            return -1;
        *hash = infer_hash_bytes(v.u.s->p, v.u.s->n, 0);
        return 0;
    case J_BOOL:
    case J_INT:
        *hash = infer_hash_u64((uint64_t)(v.kind == J_BOOL ? v.u.b : v.u.i));
        return 0;
    case J_FLOAT: {
        infer_jval whole; /* equal numbers hash alike */
        if (isfinite(v.u.f) && v.u.f == floor(v.u.f))
            return infer_jval_int_of_double(c, v.u.f, &whole) ? -1 : infer_jval_hash(c, whole, hash);
        uint64_t bits;
        memcpy(&bits, &v.u.f, sizeof bits);
        *hash = infer_hash_u64(bits);
        return 0;
    }
    case J_TUPLE: {
        uint64_t h = v.u.list->n;
        if (infer_jctx_enter(c) || infer_jctx_step(c, v.u.list->n))
            return -1;
        for (size_t i = 0; i < v.u.list->n; i++) {
            uint64_t e;
            if (infer_jval_hash(c, v.u.list->v[i], &e))
                return -1;
            h = infer_hash_u64(h * 31 + e);
        }
        infer_jctx_leave(c);
        *hash = h;
        return 0;
    }
    case J_LIST:
    case J_DICT:
    case J_VIEW:
        return infer_jctx_error(c, "unhashable type: '%s'", infer_jval_type(v));
    case J_RANGE:
        *hash = infer_hash_u64(v.u.range->n);
        return 0;
    case J_MISSING:
    case J_UNDEFINED:
    case J_NONE:
        *hash = infer_hash_u64((uint64_t)v.kind);
        return 0;
    default:
        *hash = infer_hash_u64((uint64_t)(uintptr_t)v.u.ptr);
        return 0;
    }
}

/* ---- Length and membership ------------------------------------------------------------------------------------- */

bool infer_jval_has_len(infer_jval v)
{
    return (J_BIT(v.kind) & (J_BIT(J_STR) | J_BIT(J_LIST) | J_BIT(J_TUPLE) | J_BIT(J_DICT) | J_BIT(J_RANGE) |
                             J_BIT(J_VIEW) | J_BIT(J_UNDEFINED) | J_BIT(J_LOOP))) != 0;
}

int infer_jval_len(infer_jctx *c, infer_jval v, size_t *n)
{
    switch (v.kind) {
    case J_UNDEFINED:
        *n = 0;
        return 0;
    case J_STR:
        *n = v.u.s->len;
        return 0;
    case J_LIST:
    case J_TUPLE:
        *n = v.u.list->n;
        return 0;
    case J_DICT:
        *n = v.u.dict->n;
        return 0;
    case J_VIEW:
        *n = v.u.view->dict->n;
        return 0;
    case J_RANGE:
        *n = v.u.range->n;
        return 0;
    case J_LOOP:
        return infer_jloop_length(c, v.u.loop, n);
    default:
        return infer_jctx_error(c, "object of type '%s' has no len()", infer_jval_type(v));
    }
}

int infer_jval_in(infer_jctx *c, infer_jval item, infer_jval in)
{
    if (in.kind == J_STR) {
        if (item.kind == J_UNDEFINED)
            return infer_jval_use_undefined(c, item);
        if (item.kind != J_STR)
            return infer_jctx_error(c, "'in <string>' requires string as left operand, not %s", infer_jval_type(item));
        if (infer_jctx_work(c, in.u.s->n))
            return -1;
        return infer_jstr_find(in.u.s, item.u.s, 0) != SIZE_MAX;
    }
    if (in.kind == J_DICT || (in.kind == J_VIEW && in.u.view->what == 'k'))
        return infer_jdict_get(c, in.kind == J_DICT ? in.u.dict : in.u.view->dict, item, NULL);
    if (!infer_jval_is_iterable(in))
        return infer_jctx_error(c, "argument of type '%s' is not iterable", infer_jval_type(in));
    infer_jiter it;
    infer_jval v;
    if (infer_jval_iterate(c, in, &it))
        return -1;
    int more;
    while ((more = it.next(c, &it, &v)) == 0) {
        int same = infer_jval_eq(c, v, item);
        if (same)
            return same;
    }
    return more < 0 ? -1 : 0;
}

/* ---- Attributes and items ---------------------------------------------------------------------------------------- */

/* A method or property of obj: 1 found, 0 none, -1 failed. */
static int find_attribute(infer_jctx *c, infer_jval obj, const infer_jstr *name, infer_jval *out)
{
    if (obj.kind == J_NAMESPACE)
        return infer_jdict_get_text(c, obj.u.dict, name->p, name->n, out);
    if (obj.kind == J_TUPLE && obj.u.list->group && (infer_jstr_is(name, "grouper") || infer_jstr_is(name, "list"))) {
        *out = obj.u.list->v[name->n == 4];
        return 1;
    }
    const infer_jrow *row = infer_jrow_method(name->p, name->n, J_BIT(obj.kind));
    if (!row)
        return 0;
    if (!row->params) /* a property */
        return row->fn(c, obj, NULL, NULL, out) ? -1 : 1;
    infer_jmethod *m = infer_jctx_alloc(c, sizeof *m);
    if (!m)
        return -1;
    *m = (infer_jmethod){.row = row, .self = obj};
    *out = (infer_jval){.kind = J_METHOD, .u.method = m};
    return 1;
}

int infer_jval_getattr(infer_jctx *c, infer_jval obj, infer_jval name, bool methods, infer_jval *out)
{
    if (obj.kind == J_UNDEFINED)
        return infer_jval_use_undefined(c, obj);
    int found = methods || obj.kind == J_NAMESPACE || obj.kind == J_TUPLE ? find_attribute(c, obj, name.u.s, out) : 0;
    if (!found && obj.kind == J_DICT)
        found = infer_jdict_get_text(c, obj.u.dict, name.u.s->p, name.u.s->n, out);
    if (found)
        return found < 0 ? -1 : 0;
    return infer_jval_undefined(c, NULL, obj, name, out);
}

/* Index i counted from the end where negative; whether it lies within n. */
static bool in_bounds(int64_t i, size_t n, size_t *at)
{
    if (i < 0)
        i += (int64_t)n;
    *at = (size_t)i;
    return i >= 0 && (uint64_t)i < n;
}

/* Whether v could be a key; no is what deeper nesting than any is worth. */
static bool hashable(infer_jval v, int depth)
{
    if (v.kind != J_TUPLE)
        return v.kind != J_LIST && v.kind != J_DICT && v.kind != J_VIEW;
    for (size_t i = 0; i < v.u.list->n; i++)
        if (!depth || !hashable(v.u.list->v[i], depth - 1))
            return false;
    return true;
}

int infer_jval_getitem(infer_jctx *c, infer_jval obj, infer_jval key, infer_jval *out)
{
    if (obj.kind == J_UNDEFINED)
        return infer_jval_use_undefined(c, obj);
    if (obj.kind == J_DICT && hashable(key, 8)) {
        int found = infer_jdict_get(c, obj.u.dict, key, out);
        if (found)
            return found < 0 ? -1 : 0;
    } else if (infer_jval_is_int(key)) {
        int64_t i = key.kind == J_BOOL ? key.u.b : key.u.i;
        size_t at;
        if ((obj.kind == J_LIST || obj.kind == J_TUPLE) && in_bounds(i, obj.u.list->n, &at)) {
            *out = obj.u.list->v[at];
            return 0;
        }
        if (obj.kind == J_STR && in_bounds(i, obj.u.s->len, &at))
            return infer_jstr_sub(c, obj.u.s, at, at + 1, out);
        if (obj.kind == J_RANGE && in_bounds(i, obj.u.range->n, &at)) {
            *out = infer_jval_int(obj.u.range->start + (int64_t)at * obj.u.range->step);
            return 0;
        }
    }
    if (key.kind == J_STR) {
        int found = find_attribute(c, obj, key.u.s, out);
        if (found)
            return found < 0 ? -1 : 0;
    }
    return infer_jval_undefined(c, NULL, obj, key, out);
}

/* Python's slice.indices: both ends clipped, and the number of items. */
static int slice_indices(infer_jctx *c, infer_jval vfrom, infer_jval vto, infer_jval vstep, size_t len, int64_t *from,
                         int64_t *to, int64_t *step, size_t *n)
{
    int64_t a = 0, b = 0, s = 1, size = (int64_t)len;
    if ((vstep.kind != J_NONE && infer_jval_as_int(c, vstep, "slice indices", &s)) ||
        (vfrom.kind != J_NONE && infer_jval_as_int(c, vfrom, "slice indices", &a)) ||
        (vto.kind != J_NONE && infer_jval_as_int(c, vto, "slice indices", &b)))
        return -1;
    if (!s)
        return infer_jctx_error(c, "slice step cannot be zero");
    if (s == INT64_MIN)
        s++;
    int64_t low = s < 0 ? -1 : 0, high = s < 0 ? size - 1 : size;
    int64_t *ends[2] = {&a, &b};
    for (int i = 0; i < 2; i++) {
        int64_t *e = ends[i];
        if ((i ? vto : vfrom).kind == J_NONE)
            *e = (i == 0) == (s > 0) ? low : high;
        else if (*e < 0)
            *e = *e < -size ? low : *e + size < low ? low : *e + size;
        else if (*e > high)
            *e = high;
    }
    *from = a;
    *to = b;
    *step = s;
    *n = 0;
    if (s > 0 && a < b)
        *n = (size_t)((b - a - 1) / s) + 1;
    else if (s < 0 && b < a)
        *n = (size_t)((a - b - 1) / -s) + 1;
    return 0;
}

int infer_jval_slice(infer_jctx *c, infer_jval obj, infer_jval from, infer_jval to, infer_jval step, infer_jval *out)
{
    if (obj.kind == J_UNDEFINED)
        return infer_jval_use_undefined(c, obj);
    int64_t a, b, s;
    size_t len, n;
    if (obj.kind != J_STR && obj.kind != J_LIST && obj.kind != J_TUPLE && obj.kind != J_RANGE)
        return infer_jctx_error(c, "'%s' object cannot be sliced", infer_jval_type(obj));
    if (infer_jval_len(c, obj, &len) || slice_indices(c, from, to, step, len, &a, &b, &s, &n))
        return -1;
    if (obj.kind == J_STR) {
        if (s == 1)
            return infer_jstr_sub(c, obj.u.s, n ? (size_t)a : 0, n ? (size_t)a + n : 0, out);
        size_t mark = infer_jctx_begin(c);
        const infer_jstr *str = obj.u.s;
        size_t at = infer_jstr_offset(str, n ? (size_t)a : 0);
        if (infer_jctx_step(c, str->n / 8))
            return -1;
        for (size_t i = 0; i < n; i++) {
            size_t end = at;
            uint32_t cp = infer_ju_next(str->p, &end);
            infer_buf_put_utf8(&c->tmp, cp);
            for (int64_t k = 0; k < (s > 0 ? s : -s) && i + 1 < n; k++) {
                if (s < 0)
                    at = infer_ju_back(str->p, at);
                else
                    infer_ju_next(str->p, &at);
            }
        }
        return infer_jctx_end(c, mark, out);
    }
    if (obj.kind == J_RANGE) {
        infer_jrange *r = infer_jctx_alloc(c, sizeof *r);
        if (!r)
            return -1;
        const infer_jrange *o = obj.u.range;
        int64_t stop;
        *r = (infer_jrange){.n = n};
        /* Only ends beside the items can leave 64 bits: they are then not looked at again. */
        if (__builtin_mul_overflow(o->step, s, &r->step))
            r->step = s > 0 ? INT64_MAX : -INT64_MAX;
        if (__builtin_mul_overflow(a, o->step, &r->start) || __builtin_add_overflow(r->start, o->start, &r->start))
            r->start = o->start;
        if (__builtin_mul_overflow(b, o->step, &stop) || __builtin_add_overflow(stop, o->start, &r->stop))
            r->stop = o->stop;
        *out = (infer_jval){.kind = J_RANGE, .u.range = r};
        return 0;
    }
    if (infer_jlist_new(c, obj.kind, n, out))
        return -1;
    for (size_t i = 0; i < n; i++)
        out->u.list->v[i] = obj.u.list->v[a + (int64_t)i * s];
    return 0;
}

/* ---- Iteration --------------------------------------------------------------------------------------------------- */

static int next_none(infer_jctx *c, infer_jiter *it, infer_jval *out)
{
    (void)c, (void)it, (void)out;
    return 1;
}

static int next_list(infer_jctx *c, infer_jiter *it, infer_jval *out)
{
    if (it->pos >= it->src.u.list->n)
        return 1;
    *out = it->src.u.list->v[it->pos++];
    return infer_jctx_step(c, 1);
}

static int next_str(infer_jctx *c, infer_jiter *it, infer_jval *out)
{
    const infer_jstr *s = it->src.u.s;
    if (it->pos >= s->n)
        return 1;
    size_t from = it->pos;
    infer_ju_next(s->p, &it->pos);
    if (infer_jctx_step(c, 1))
        return -1;
    return infer_jstr_borrow(c, s->p + from, it->pos - from, 1, out);
}

static int next_range(infer_jctx *c, infer_jiter *it, infer_jval *out)
{
    if (it->pos >= it->src.u.range->n)
        return 1;
    *out = infer_jval_int(it->src.u.range->start + (int64_t)it->pos++ * it->src.u.range->step);
    return infer_jctx_step(c, 1);
}

static int next_view(infer_jctx *c, infer_jiter *it, infer_jval *out)
{
    const infer_jdict *d = it->src.kind == J_DICT ? it->src.u.dict : it->src.u.view->dict;
    char what = it->src.kind == J_DICT ? 'k' : it->src.u.view->what;
    if (it->pos >= d->n)
        return 1;
    size_t i = it->pos++;
    if (infer_jctx_step(c, 1))
        return -1;
    if (what != 'i') {
        *out = what == 'k' ? d->k[i] : d->v[i];
        return 0;
    }
    if (infer_jlist_new(c, J_TUPLE, 2, out))
        return -1;
    out->u.list->v[0] = d->k[i];
    out->u.list->v[1] = d->v[i];
    return 0;
}

/* An iterator's own state moves, whoever asks. */
static int next_iter(infer_jctx *c, infer_jiter *it, infer_jval *out)
{
    infer_jiter *inner = it->src.u.iter;
    if (infer_jctx_step(c, 1) || infer_jctx_enter(c))
        return -1;
    int more = inner->next(c, inner, out);
    infer_jctx_leave(c);
    return more;
}

static int (*const nexts[J_N_KINDS])(infer_jctx *, infer_jiter *, infer_jval *) = {
    [J_UNDEFINED] = next_none, [J_STR] = next_str,     [J_LIST] = next_list, [J_TUPLE] = next_list,
    [J_DICT] = next_view,      [J_RANGE] = next_range, [J_VIEW] = next_view, [J_ITER] = next_iter,
};

bool infer_jval_is_iterable(infer_jval v)
{
    return nexts[v.kind] != NULL;
}

int infer_jval_iterate(infer_jctx *c, infer_jval v, infer_jiter *it)
{
    if (!nexts[v.kind])
        return infer_jctx_error(c, "'%s' object is not iterable", infer_jval_type(v));
    *it = (infer_jiter){.next = nexts[v.kind], .src = v};
    return 0;
}

int infer_jval_to_list(infer_jctx *c, infer_jval v, infer_jval *out)
{
    infer_jiter it;
    infer_jval item, list;
    size_t cap = 0;
    if (infer_jval_iterate(c, v, &it))
        return -1;
    if (infer_jval_has_len(v) && infer_jval_len(c, v, &cap))
        return -1;
    if (infer_jlist_new(c, J_LIST, cap, &list))
        return -1;
    list.u.list->n = 0;
    int more;
    while ((more = it.next(c, &it, &item)) == 0)
        if (infer_jlist_append(c, list.u.list, &cap, item))
            return -1;
    if (more < 0)
        return -1;
    *out = list;
    return 0;
}
