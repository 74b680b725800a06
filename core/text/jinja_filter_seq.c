/* Filters of sequences. Those that are generators in Jinja2 are lazy here too: nothing is computed, and nothing can
 * fail, before someone asks for an item, and each item comes once. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "text/jinja_strlib.h"
#include "text/jinja_table.h"
#include "text/jinja_unicode.h"

#define FILTER(fn)                                                                                                     \
    static int fn(infer_jctx *c, infer_jval self, infer_jval *a, const infer_jargs *more, infer_jval *out)

static bool truthy(infer_jval v)
{
    return v.kind != J_MISSING && infer_jval_truth(v);
}

/* ---- Attribute paths
 * ------------------------------------------------------------------------------------------------- */

/* "a.b.0" as the keys to follow; none for no attribute. */
typedef struct path {
    infer_jval *part;
    size_t n;
    infer_jval dflt; /* what undefined becomes; J_MISSING: stays */
    bool fold;       /* strings compare without case */
} path;

static int parse_path(infer_jctx *c, infer_jval attr, path *p)
{
    *p = (path){.dflt = {.kind = J_MISSING}};
    if (attr.kind == J_MISSING || attr.kind == J_NONE)
        return 0;
    size_t parts = 1;
    if (attr.kind == J_STR)
        for (size_t i = 0; i < attr.u.s->n; i++)
            parts += attr.u.s->p[i] == '.';
    if (!(p->part = infer_jctx_array(c, parts, sizeof *p->part)))
        return -1;
    p->n = parts;
    if (attr.kind != J_STR) {
        p->part[0] = attr;
        return 0;
    }
    const infer_jstr *s = attr.u.s;
    for (size_t k = 0, from = 0; k < parts; k++) {
        const char *dot = memchr(s->p + from, '.', s->n - from);
        size_t to = dot ? (size_t)(dot - s->p) : s->n;
        bool digits = to > from;
        for (size_t i = from; i < to; i++)
            digits = digits && s->p[i] >= '0' && s->p[i] <= '9';
        if (digits ? infer_jval_int_of_digits(c, false, s->p + from, to - from, &p->part[k])
                   : infer_jstr_borrow(c, s->p + from, to - from, SIZE_MAX, &p->part[k]))
            return -1;
        from = to + 1;
    }
    return 0;
}

static int fold(infer_jctx *c, infer_jval *v)
{
    return v->kind == J_STR ? infer_jstr_map(c, v->u.s, infer_ju_lower, v) : 0;
}

static int follow(infer_jctx *c, const path *p, infer_jval v, infer_jval *out)
{
    for (size_t i = 0; i < p->n; i++) {
        if (infer_jval_getitem(c, v, p->part[i], &v))
            return -1;
        if (v.kind == J_UNDEFINED && p->dflt.kind != J_MISSING)
            v = p->dflt;
    }
    *out = v;
    return p->fold ? fold(c, out) : 0;
}

/* ---- Generators
 * ------------------------------------------------------------------------------------------------------ */

typedef struct generator {
    infer_jiter base, in;
    infer_jval source;
    bool started;
    bool falsy_ends; /* map and select give nothing for a false source, without iterating it */
    bool mapping;    /* the source is a mapping whose items are wanted */
    int (*item)(infer_jctx *c, struct generator *g, infer_jval v, infer_jval *out); /* 0, 1 to skip v, -1 */
    path path;
    const infer_jrow *row; /* filter or test to apply, or NULL */
    infer_jargs args;
    bool is_test, keep;   /* keep items for which the test gives this */
    infer_jval fill, set; /* batch's filler; unique's keys seen */
    size_t count;
} generator;

/* A mapping turns into its items; undefined stays, and gives none. */
static int items_of(infer_jctx *c, infer_jval *v)
{
    if (v->kind == J_UNDEFINED)
        return 0;
    if (v->kind != J_DICT)
        return infer_jctx_error(c, "Can only get item pairs from a mapping.");
    return infer_jrow_call(c, infer_jrow_method("items", 5, J_BIT(J_DICT)), "method", *v, &(infer_jargs){0}, v);
}

static int generator_next(infer_jctx *c, infer_jiter *it, infer_jval *out)
{
    generator *g = (generator *)it;
    if (!g->started) {
        g->started = true;
        if (g->falsy_ends && !infer_jval_truth(g->source))
            g->source = (infer_jval){.kind = J_UNDEFINED};
        if ((g->mapping && items_of(c, &g->source)) || infer_jval_iterate(c, g->source, &g->in))
            return -1;
    }
    infer_jval v;
    int more;
    while ((more = g->in.next(c, &g->in, &v)) == 0) {
        int skip = g->item(c, g, v, out);
        if (skip <= 0)
            return skip;
    }
    return more;
}

static generator *new_generator(infer_jctx *c, infer_jval source,
                                int (*item)(infer_jctx *c, generator *g, infer_jval v, infer_jval *out),
                                infer_jval *out)
{
    generator *g = infer_jctx_alloc(c, sizeof *g);
    if (!g)
        return NULL;
    *g = (generator){.base = {.next = generator_next}, .source = source, .item = item};
    *out = (infer_jval){.kind = J_ITER, .u.iter = &g->base};
    return g;
}

/* The filter or test named by a value, with the arguments behind position `at`. */
static int take_row(infer_jctx *c, generator *g, infer_jval name, const infer_jargs *more, size_t at)
{
    const infer_jstr *s;
    if (infer_jval_need_str(c, name, g->is_test ? "the test's name" : "the filter's name", &s))
        return -1;
    g->row = g->is_test ? infer_jrow_test(s->p, s->n) : infer_jrow_filter(s->p, s->n);
    if (!g->row || !g->row->fn)
        return infer_jctx_fail(c, INFER_E_UNSUPPORTED, "%s %s '%.*s'", g->row ? "unsupported" : "unknown",
                               g->is_test ? "test" : "filter", (int)s->n, s->p);
    g->args = *more;
    g->args.pos += at;
    g->args.n_pos -= at;
    return 0;
}

static int map_item(infer_jctx *c, generator *g, infer_jval v, infer_jval *out)
{
    if (g->row)
        return infer_jrow_call(c, g->row, "filter", v, &g->args, out);
    return follow(c, &g->path, v, out);
}

FILTER(filter_map)
{
    (void)a;
    generator *g = new_generator(c, self, map_item, out);
    infer_jval attr = {.kind = J_MISSING}, dflt = attr;
    if (!g)
        return -1;
    g->falsy_ends = true;
    if (more->n_pos)
        return take_row(c, g, more->pos[0], more, 1);
    for (size_t i = 0; i < more->n_kw; i++) {
        if (infer_jstr_is(more->kw_name[i].u.s, "attribute"))
            attr = more->kw[i];
        else if (infer_jstr_is(more->kw_name[i].u.s, "default"))
            dflt = more->kw[i];
        else
            return infer_jctx_error(c, "filter 'map' takes no keyword argument '%.*s'", (int)more->kw_name[i].u.s->n,
                                    more->kw_name[i].u.s->p);
    }
    if (attr.kind == J_MISSING)
        return infer_jctx_error(c, "map requires a filter argument");
    if (parse_path(c, attr, &g->path))
        return -1;
    if (dflt.kind != J_NONE)
        g->path.dflt = dflt;
    return 0;
}

static int select_item(infer_jctx *c, generator *g, infer_jval v, infer_jval *out)
{
    infer_jval x;
    if (follow(c, &g->path, v, &x) || (g->row && infer_jrow_call(c, g->row, "test", x, &g->args, &x)))
        return -1;
    *out = v;
    return infer_jval_truth(x) != g->keep;
}

static int select_or_reject(infer_jctx *c, infer_jval self, const infer_jargs *more, bool keep, bool attr,
                            infer_jval *out)
{
    generator *g = new_generator(c, self, select_item, out);
    if (!g)
        return -1;
    g->falsy_ends = g->is_test = true;
    g->keep = keep;
    if (attr && !more->n_pos)
        return infer_jctx_error(c, "Missing parameter for attribute name");
    if (attr && parse_path(c, more->pos[0], &g->path))
        return -1;
    return more->n_pos > attr ? take_row(c, g, more->pos[attr], more, 1 + (size_t)attr) : 0;
}

FILTER(filter_select)
{
    (void)a;
    return select_or_reject(c, self, more, true, false, out);
}

FILTER(filter_reject)
{
    (void)a;
    return select_or_reject(c, self, more, false, false, out);
}

FILTER(filter_selectattr)
{
    (void)a;
    return select_or_reject(c, self, more, true, true, out);
}

FILTER(filter_rejectattr)
{
    (void)a;
    return select_or_reject(c, self, more, false, true, out);
}

static int unique_item(infer_jctx *c, generator *g, infer_jval v, infer_jval *out)
{
    infer_jval key;
    if (follow(c, &g->path, v, &key))
        return -1;
    int seen = infer_jdict_get(c, g->set.u.dict, key, NULL);
    if (seen)
        return seen;
    *out = v;
    return infer_jdict_put(c, g->set.u.dict, key, key);
}

FILTER(filter_unique)
{
    (void)more;
    generator *g = new_generator(c, self, unique_item, out);
    if (!g || parse_path(c, a[1], &g->path) || infer_jdict_new(c, &g->set))
        return -1;
    g->path.fold = !truthy(a[0]);
    return 0;
}

static int same_item(infer_jctx *c, generator *g, infer_jval v, infer_jval *out)
{
    (void)c, (void)g;
    *out = v;
    return 0;
}

FILTER(filter_items)
{
    (void)a, (void)more;
    generator *g = new_generator(c, self, same_item, out);
    if (!g)
        return -1;
    g->mapping = true;
    return 0;
}

/* A batch takes several items for one. */
static int batch_item(infer_jctx *c, generator *g, infer_jval v, infer_jval *out)
{
    infer_jlist *l = infer_jctx_alloc(c, sizeof *l);
    size_t cap = 0;
    int more = 0;
    if (!l)
        return -1;
    *l = (infer_jlist){0};
    do
        if (infer_jlist_append(c, l, &cap, v))
            return -1;
    while (l->n < g->count && (more = g->in.next(c, &g->in, &v)) == 0);
    if (more < 0)
        return -1;
    while (more && l->n < g->count && g->fill.kind != J_NONE)
        if (infer_jctx_step(c, 1) || infer_jlist_append(c, l, &cap, g->fill))
            return -1;
    *out = infer_jval_of_list(J_LIST, l);
    return 0;
}

FILTER(filter_batch)
{
    (void)more;
    int64_t n;
    generator *g = new_generator(c, self, batch_item, out);
    if (!g || infer_jval_as_int(c, a[0], "linecount", &n))
        return -1;
    /* Jinja2 starts a new batch where the length equals linecount: never, for less than one. */
    g->count = n > 0 ? (size_t)n : SIZE_MAX;
    g->fill = a[1].kind == J_MISSING || n <= 0 ? infer_jval_none() : a[1];
    return 0;
}

FILTER(filter_slice)
{
    (void)more;
    int64_t slices;
    infer_jval seq, all;
    if (infer_jval_as_int(c, a[0], "slices", &slices) || infer_jval_to_list(c, self, &seq))
        return -1;
    if (!slices)
        return infer_jctx_error(c, "integer division or modulo by zero");
    if (infer_jlist_new(c, J_LIST, slices > 0 ? (size_t)slices : 0, &all))
        return -1;
    size_t len = seq.u.list->n, n = slices > 0 ? (size_t)slices : 0, from = 0;
    for (size_t i = 0; i < n; i++) {
        bool extra = i < len % n, fill = !extra && a[1].kind != J_MISSING && a[1].kind != J_NONE;
        size_t size = len / n + extra;
        if (infer_jctx_step(c, 1) || infer_jlist_new(c, J_LIST, size + fill, &all.u.list->v[i]))
            return -1;
        infer_jval *v = all.u.list->v[i].u.list->v;
        if (size)
            memcpy(v, seq.u.list->v + from, size * sizeof *v);
        if (fill)
            v[size] = a[1];
        from += size;
    }
    return new_generator(c, all, same_item, out) ? 0 : -1;
}

/* ---- Order
 * ----------------------------------------------------------------------------------------------------------- */

/* Stable merge sort of indices by key. */
static int sort_indices(infer_jctx *c, const infer_jval *key, size_t n, bool reverse, size_t **out)
{
    size_t *from = infer_jctx_array(c, n, 2 * sizeof *from), *to = from ? from + n : NULL;
    if (!from)
        return -1;
    for (size_t i = 0; i < n; i++)
        from[i] = i;
    for (size_t w = 1; w < n; w *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * w) {
            size_t mid = n - lo < w ? n : lo + w, hi = n - lo < 2 * w ? n : lo + 2 * w, i = lo, j = mid;
            for (size_t k = lo; k < hi; k++) {
                int right = j < hi;
                if (i < mid && j < hi) /* the right one first only where it is strictly before the left one */
                    right = reverse ? infer_jval_order(c, J_LT, key[from[i]], key[from[j]])
                                    : infer_jval_order(c, J_LT, key[from[j]], key[from[i]]);
                if (right < 0)
                    return -1;
                to[k] = right ? from[j++] : from[i++];
            }
        }
        size_t *swap = from;
        from = to;
        to = swap;
    }
    *out = from;
    return 0;
}

static int sorted(infer_jctx *c, const infer_jlist *items, const infer_jval *key, bool reverse, infer_jval *out)
{
    size_t *order;
    if (sort_indices(c, key, items->n, reverse, &order) || infer_jlist_new(c, J_LIST, items->n, out))
        return -1;
    for (size_t i = 0; i < items->n; i++)
        out->u.list->v[i] = items->v[order[i]];
    return 0;
}

/* Keys of all items by one path. */
static int keys_of(infer_jctx *c, const infer_jlist *items, const path *p, infer_jval **out)
{
    infer_jval *key = infer_jctx_array(c, items->n, sizeof *key);
    if (!key)
        return -1;
    for (size_t i = 0; i < items->n; i++)
        if (follow(c, p, items->v[i], &key[i]))
            return -1;
    *out = key;
    return 0;
}

FILTER(filter_sort)
{
    (void)more;
    infer_jval items, attrs = {.kind = J_MISSING};
    if (infer_jval_to_list(c, self, &items))
        return -1;
    size_t n_paths = 1, n = items.u.list->n;
    if (a[2].kind == J_STR) { /* several attributes, separated by commas */
        infer_jval comma;
        infer_jargs arg = {.pos = &comma, .n_pos = 1};
        if (infer_jstr_borrow(c, ",", 1, 1, &comma) ||
            infer_jrow_call(c, infer_jrow_method("split", 5, J_BIT(J_STR)), "method", a[2], &arg, &attrs))
            return -1;
        n_paths = attrs.u.list->n;
    }
    path *paths = infer_jctx_array(c, n_paths, sizeof *paths);
    infer_jval *key = paths ? infer_jctx_array(c, n, sizeof *key) : NULL;
    if (!key)
        return -1;
    for (size_t k = 0; k < n_paths; k++) {
        if (parse_path(c, attrs.kind == J_LIST ? attrs.u.list->v[k] : a[2], &paths[k]))
            return -1;
        paths[k].fold = !truthy(a[1]);
    }
    for (size_t i = 0; i < n; i++) {
        if (infer_jlist_new(c, J_LIST, n_paths, &key[i]))
            return -1;
        for (size_t k = 0; k < n_paths; k++)
            if (infer_jctx_step(c, 1) || follow(c, &paths[k], items.u.list->v[i], &key[i].u.list->v[k]))
                return -1;
    }
    return sorted(c, items.u.list, key, truthy(a[0]), out);
}

FILTER(filter_dictsort)
{
    (void)more;
    infer_jval view = self, items, *key;
    bool by_value = false;
    if (a[1].kind == J_STR)
        by_value = infer_jstr_is(a[1].u.s, "value");
    if (a[1].kind != J_MISSING && !by_value && !(a[1].kind == J_STR && infer_jstr_is(a[1].u.s, "key")))
        return infer_jctx_error(c, "You can only sort by either \"key\" or \"value\"");
    if (self.kind == J_UNDEFINED)
        return infer_jval_use_undefined(c, self);
    if (self.kind != J_DICT)
        return infer_jctx_error(c, "'%s' object has no attribute 'items'", infer_jval_type(self));
    if (items_of(c, &view) || infer_jval_to_list(c, view, &items) ||
        !(key = infer_jctx_array(c, items.u.list->n, sizeof *key)))
        return -1;
    for (size_t i = 0; i < items.u.list->n; i++) {
        key[i] = items.u.list->v[i].u.list->v[by_value];
        if (!truthy(a[0]) && fold(c, &key[i]))
            return -1;
    }
    return sorted(c, items.u.list, key, truthy(a[2]), out);
}

FILTER(filter_groupby)
{
    (void)more;
    path p;
    infer_jval items, groups, *key, *real;
    size_t *order, cap = 0;
    if (infer_jval_to_list(c, self, &items) || parse_path(c, a[0], &p))
        return -1;
    if (a[1].kind != J_NONE)
        p.dflt = a[1];
    p.fold = !truthy(a[2]);
    const infer_jlist *l = items.u.list;
    if (keys_of(c, l, &p, &key))
        return -1;
    p.fold = false;
    if (keys_of(c, l, &p, &real) || sort_indices(c, key, l->n, false, &order) || infer_jlist_new(c, J_LIST, 0, &groups))
        return -1;
    for (size_t i = 0; i < l->n;) {
        infer_jval group, members;
        size_t member_cap = 0, first = order[i];
        if (infer_jlist_new(c, J_TUPLE, 2, &group) || infer_jlist_new(c, J_LIST, 0, &members))
            return -1;
        int same = 1;
        for (; i < l->n && same == 1; i += same == 1) {
            same = infer_jval_eq(c, key[order[i]], key[first]);
            if (same < 0 || (same && infer_jlist_append(c, members.u.list, &member_cap, l->v[order[i]])))
                return -1;
        }
        if (!members.u.list->n) /* a key unequal to itself (NaN) */
            if (infer_jlist_append(c, members.u.list, &member_cap, l->v[order[i++]]))
                return -1;
        group.u.list->group = true;
        group.u.list->v[0] = real[first];
        group.u.list->v[1] = members;
        if (infer_jlist_append(c, groups.u.list, &cap, group))
            return -1;
    }
    *out = groups;
    return 0;
}

static int extreme(infer_jctx *c, infer_jval self, infer_jval *a, infer_jop op, infer_jval *out)
{
    path p;
    infer_jiter it;
    infer_jval v, key, best = {.kind = J_MISSING};
    if (infer_jval_iterate(c, self, &it) || parse_path(c, a[1], &p))
        return -1;
    p.fold = !truthy(a[0]);
    int rc;
    while ((rc = it.next(c, &it, &v)) == 0) {
        int better = 1;
        if (follow(c, &p, v, &key) || (best.kind != J_MISSING && (better = infer_jval_order(c, op, key, best)) < 0))
            return -1;
        if (better) {
            best = key;
            *out = v;
        }
    }
    if (rc < 0 || best.kind != J_MISSING)
        return rc < 0 ? -1 : 0;
    return infer_jval_undefined(c, "No aggregated item, sequence was empty.", (infer_jval){.kind = J_MISSING},
                                infer_jval_none(), out);
}

FILTER(filter_min)
{
    (void)more;
    return extreme(c, self, a, J_LT, out);
}

FILTER(filter_max)
{
    (void)more;
    return extreme(c, self, a, J_GT, out);
}

/* ---- The rest
 * -------------------------------------------------------------------------------------------------------- */

FILTER(filter_list)
{
    (void)a, (void)more;
    return infer_jval_to_list(c, self, out);
}

FILTER(filter_first)
{
    (void)a, (void)more;
    infer_jiter it;
    if (infer_jval_iterate(c, self, &it))
        return -1;
    int rc = it.next(c, &it, out);
    if (rc <= 0)
        return rc;
    return infer_jval_undefined(c, "No first item, sequence was empty.", (infer_jval){.kind = J_MISSING},
                                infer_jval_none(), out);
}

FILTER(filter_last)
{
    (void)a, (void)more;
    infer_jval list;
    if (self.kind == J_ITER || !infer_jval_is_iterable(self))
        return infer_jctx_error(c, "'%s' object is not reversible", infer_jval_type(self));
    if (self.kind == J_STR || self.kind == J_LIST || self.kind == J_TUPLE || self.kind == J_RANGE) {
        if (infer_jval_getitem(c, self, infer_jval_int(-1), out))
            return -1;
        if (out->kind != J_UNDEFINED || (self.kind != J_STR && infer_jval_truth(self)))
            return 0;
    } else {
        if (infer_jval_to_list(c, self, &list))
            return -1;
        if (list.u.list->n) {
            *out = list.u.list->v[list.u.list->n - 1];
            return 0;
        }
    }
    return infer_jval_undefined(c, "No last item, sequence was empty.", (infer_jval){.kind = J_MISSING},
                                infer_jval_none(), out);
}

FILTER(filter_reverse)
{
    (void)a, (void)more;
    infer_jval list, none = infer_jval_none();
    if (self.kind == J_STR)
        return infer_jval_slice(c, self, none, none, infer_jval_int(-1), out);
    if (infer_jval_to_list(c, self, &list))
        return -1;
    infer_jval *v = list.u.list->v;
    for (size_t i = 0, n = list.u.list->n; i < n / 2; i++) {
        infer_jval x = v[i];
        v[i] = v[n - 1 - i];
        v[n - 1 - i] = x;
    }
    if (self.kind != J_ITER)
        return new_generator(c, list, same_item, out) ? 0 : -1;
    *out = list;
    return 0;
}

FILTER(filter_sum)
{
    (void)more;
    path p;
    infer_jiter it;
    infer_jval v, total = a[1].kind == J_MISSING ? infer_jval_int(0) : a[1];
    if (total.kind == J_STR)
        return infer_jctx_error(c, "sum() can't sum strings [use ''.join(seq) instead]");
    if (infer_jval_iterate(c, self, &it) || parse_path(c, a[0], &p))
        return -1;
    int rc;
    while ((rc = it.next(c, &it, &v)) == 0)
        if (follow(c, &p, v, &v) || infer_jval_binary(c, J_ADD, total, v, &total))
            return -1;
    *out = total;
    return rc < 0 ? -1 : 0;
}

FILTER(filter_join)
{
    (void)more;
    const infer_jstr *sep = &infer_jstr_empty;
    infer_jval items = self;
    if (a[0].kind != J_MISSING && infer_jval_to_str(c, a[0], &sep))
        return -1;
    if (a[1].kind != J_MISSING && a[1].kind != J_NONE) {
        generator *g = new_generator(c, self, map_item, &items);
        if (!g || parse_path(c, a[1], &g->path))
            return -1;
    }
    return infer_jstr_join(c, sep, items, false, out);
}

const infer_jrow infer_jrows_filter_seq[] = {
    {"batch", filter_batch, "linecount fill_with?", 0},
    {"dictsort", filter_dictsort, "case_sensitive? by? reverse?", 0},
    {"first", filter_first, "/", 0},
    {"groupby", filter_groupby, "attribute default? case_sensitive?", 0},
    {"items", filter_items, "/", 0},
    {"join", filter_join, "d? attribute?", 0},
    {"last", filter_last, "/", 0},
    {"list", filter_list, "/", 0},
    {"map", filter_map, "* **", 0},
    {"max", filter_max, "case_sensitive? attribute?", 0},
    {"min", filter_min, "case_sensitive? attribute?", 0},
    {"reject", filter_reject, "* **", 0},
    {"rejectattr", filter_rejectattr, "* **", 0},
    {"reverse", filter_reverse, "/", 0},
    {"select", filter_select, "* **", 0},
    {"selectattr", filter_selectattr, "* **", 0},
    {"slice", filter_slice, "slices fill_with?", 0},
    {"sort", filter_sort, "reverse? case_sensitive? attribute?", 0},
    {"sum", filter_sum, "attribute? start?", 0},
    {"unique", filter_unique, "case_sensitive? attribute?", 0},
    {NULL, NULL, NULL, 0},
};
