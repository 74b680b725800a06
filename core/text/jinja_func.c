/* Global functions of the template language. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "text/jinja_format.h"
#include "text/jinja_ops.h"
#include "text/jinja_table.h"

static int make_range(infer_jctx *c, infer_jval self, infer_jval *a, const infer_jargs *more, infer_jval *out)
{
    (void)self, (void)more;
    infer_jrange r = {.step = 1};
    if (infer_jval_as_int(c, a[0], "range() argument", a[1].kind == J_MISSING ? &r.stop : &r.start) ||
        (a[1].kind != J_MISSING && infer_jval_as_int(c, a[1], "range() argument", &r.stop)) ||
        (a[2].kind != J_MISSING && infer_jval_as_int(c, a[2], "range() argument", &r.step)))
        return -1;
    if (!r.step)
        return infer_jctx_error(c, "range() arg 3 must not be zero");
    uint64_t span = 0, step = r.step > 0 ? (uint64_t)r.step : 0 - (uint64_t)r.step;
    if (r.step > 0 && r.start < r.stop)
        span = (uint64_t)r.stop - (uint64_t)r.start;
    else if (r.step < 0 && r.start > r.stop)
        span = (uint64_t)r.start - (uint64_t)r.stop;
    uint64_t n = span ? (span - 1) / step + 1 : 0;
    if (n > J_MAX_RANGE)
        return infer_jctx_fail(c, INFER_E_TOO_LARGE, "a range of more than %d items", J_MAX_RANGE);
    infer_jrange *p = infer_jctx_alloc(c, sizeof *p);
    if (!p)
        return -1;
    r.n = (size_t)n;
    *p = r;
    *out = (infer_jval){.kind = J_RANGE, .u.range = p};
    return 0;
}

/* Puts the pairs of a mapping, or of an iterable of pairs, into d. */
static int put_pairs(infer_jctx *c, infer_jdict *d, infer_jval from)
{
    infer_jiter it;
    infer_jval pair;
    if (from.kind == J_DICT) {
        for (uint32_t i = 0; i < from.u.dict->n; i++)
            if (infer_jctx_step(c, 1) || infer_jdict_put(c, d, from.u.dict->k[i], from.u.dict->v[i]))
                return -1;
        return 0;
    }
    if (from.kind == J_UNDEFINED)
        return infer_jval_use_undefined(c, from);
    if (infer_jval_iterate(c, from, &it))
        return -1;
    int more;
    while ((more = it.next(c, &it, &pair)) == 0) {
        if (!infer_jval_is_iterable(pair) || infer_jval_to_list(c, pair, &pair))
            return infer_jctx_error(c, "cannot convert dictionary update sequence element to a sequence");
        if (pair.u.list->n != 2)
            return infer_jctx_error(c, "dictionary update sequence element has length %zu; 2 is required",
                                    pair.u.list->n);
        if (infer_jdict_put(c, d, pair.u.list->v[0], pair.u.list->v[1]))
            return -1;
    }
    return more < 0 ? -1 : 0;
}

static int make_dict(infer_jctx *c, infer_jval self, infer_jval *a, const infer_jargs *more, infer_jval *out)
{
    (void)self, (void)a;
    if (more->n_pos > 1)
        return infer_jctx_error(c, "dict expected at most 1 argument, got %zu", more->n_pos);
    if (infer_jdict_new(c, out) || (more->n_pos && put_pairs(c, out->u.dict, more->pos[0])))
        return -1;
    for (size_t i = 0; i < more->n_kw; i++)
        if (infer_jdict_put(c, out->u.dict, more->kw_name[i], more->kw[i]))
            return -1;
    return 0;
}

static int make_namespace(infer_jctx *c, infer_jval self, infer_jval *a, const infer_jargs *more, infer_jval *out)
{
    if (make_dict(c, self, a, more, out))
        return -1;
    out->kind = J_NAMESPACE;
    return 0;
}

static int make_cycler(infer_jctx *c, infer_jval self, infer_jval *a, const infer_jargs *more, infer_jval *out)
{
    (void)self, (void)a;
    infer_jcycler *y = infer_jctx_alloc(c, sizeof *y);
    infer_jval items;
    if (!more->n_pos)
        return infer_jctx_error(c, "at least one item has to be provided");
    if (!y || infer_jlist_new(c, J_TUPLE, more->n_pos, &items))
        return -1;
    for (size_t i = 0; i < more->n_pos; i++)
        items.u.list->v[i] = more->pos[i];
    *y = (infer_jcycler){.items = items.u.list};
    *out = (infer_jval){.kind = J_CYCLER, .u.cycler = y};
    return 0;
}

static int make_joiner(infer_jctx *c, infer_jval self, infer_jval *a, const infer_jargs *more, infer_jval *out)
{
    (void)self, (void)more;
    infer_jjoiner *j = infer_jctx_alloc(c, sizeof *j);
    infer_jval sep = a[0];
    if (!j || (sep.kind == J_MISSING && infer_jstr_borrow(c, ", ", 2, 2, &sep)))
        return -1;
    *j = (infer_jjoiner){.sep = sep};
    *out = (infer_jval){.kind = J_JOINER, .u.joiner = j};
    return 0;
}

static int raise_exception(infer_jctx *c, infer_jval self, infer_jval *a, const infer_jargs *more, infer_jval *out)
{
    (void)self, (void)more, (void)out;
    const infer_jstr *text;
    if (infer_jval_to_str(c, a[0], &text))
        return -1;
    return infer_jctx_error(c, "the template refuses: %.*s", (int)text->n, text->p);
}

static int strftime_now(infer_jctx *c, infer_jval self, infer_jval *a, const infer_jargs *more, infer_jval *out)
{
    (void)self, (void)more;
    if (a[0].kind != J_STR)
        return infer_jctx_error(c, "strftime_now() argument must be a string, not '%s'", infer_jval_type(a[0]));
    return infer_jformat_time(c, a[0].u.s, c->now, out);
}

const infer_jrow infer_jrows_func[] = {
    {"range", make_range, "/start stop? step?", 0},
    {"dict", make_dict, "* **", 0},
    {"namespace", make_namespace, "* **", 0},
    {"cycler", make_cycler, "*", 0},
    {"joiner", make_joiner, "sep?", 0},
    {"raise_exception", raise_exception, "message", 0},
    {"strftime_now", strftime_now, "format", 0},
    {"lipsum", NULL, "* **", 0},
    {NULL, NULL, NULL, 0},
};
