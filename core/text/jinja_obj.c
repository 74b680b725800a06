/* Methods and properties of everything but strings. What would change a list or a dict is known and refused, as in the
 * sandbox that transformers renders in. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>

#include "text/jinja_eval.h"
#include "text/jinja_table.h"

#define METHOD(fn)                                                                                                     \
    static int fn(infer_jctx *c, infer_jval self, infer_jval *a, const infer_jargs *more, infer_jval *out)

/* ---- dict -------------------------------------------------------------------------------------------------------- */

METHOD(dict_get)
{
    (void)more;
    int found = infer_jdict_get(c, self.u.dict, a[0], out);
    if (!found)
        *out = a[1].kind == J_MISSING ? infer_jval_none() : a[1];
    return found < 0 ? -1 : 0;
}

static int view(infer_jctx *c, infer_jval self, char what, infer_jval *out)
{
    infer_jview *v = infer_jctx_alloc(c, sizeof *v);
    if (!v)
        return -1;
    *v = (infer_jview){.dict = self.u.dict, .what = what};
    *out = (infer_jval){.kind = J_VIEW, .u.view = v};
    return 0;
}

METHOD(dict_keys)
{
    (void)a, (void)more;
    return view(c, self, 'k', out);
}

METHOD(dict_values)
{
    (void)a, (void)more;
    return view(c, self, 'v', out);
}

METHOD(dict_items)
{
    (void)a, (void)more;
    return view(c, self, 'i', out);
}

/* Values do not change, so a copy is the thing itself. */
METHOD(copy)
{
    (void)c, (void)a, (void)more;
    *out = self;
    return 0;
}

METHOD(refuse_change)
{
    (void)a, (void)more, (void)out;
    return infer_jctx_error(c, "access to a method that changes a '%s' is unsafe", infer_jval_type(self));
}

/* ---- list, tuple, range --------------------------------------------------------------------------------------------
 */

METHOD(seq_count)
{
    (void)more;
    infer_jiter it;
    infer_jval v;
    int64_t n = 0;
    int rc;
    if (infer_jval_iterate(c, self, &it))
        return -1;
    while ((rc = it.next(c, &it, &v)) == 0) {
        int same = infer_jval_eq(c, v, a[0]);
        if (same < 0)
            return -1;
        n += same;
    }
    *out = infer_jval_int(n);
    return rc < 0 ? -1 : 0;
}

METHOD(seq_index)
{
    (void)more;
    infer_jiter it;
    infer_jval v;
    size_t len;
    int64_t from = 0, to;
    if (infer_jval_len(c, self, &len) || infer_jval_iterate(c, self, &it))
        return -1;
    to = (int64_t)len;
    if ((a[1].kind != J_MISSING && infer_jval_as_int(c, a[1], "slice indices", &from)) ||
        (a[2].kind != J_MISSING && infer_jval_as_int(c, a[2], "slice indices", &to)))
        return -1;
    if (from < 0)
        from = from < -(int64_t)len ? 0 : from + (int64_t)len;
    if (to < 0)
        to += (int64_t)len;
    for (int64_t i = 0; i < to; i++) {
        int rc = it.next(c, &it, &v), same = 0;
        if (rc)
            break;
        if (i >= from && (same = infer_jval_eq(c, v, a[0])) < 0)
            return -1;
        if (!same)
            continue;
        *out = infer_jval_int(i);
        return 0;
    }
    return infer_jctx_error(c, "the value is not in the %s", infer_jval_type(self));
}

METHOD(range_start)
{
    (void)c, (void)a, (void)more;
    *out = infer_jval_int(self.u.range->start);
    return 0;
}

METHOD(range_stop)
{
    (void)c, (void)a, (void)more;
    *out = infer_jval_int(self.u.range->stop);
    return 0;
}

METHOD(range_step)
{
    (void)c, (void)a, (void)more;
    *out = infer_jval_int(self.u.range->step);
    return 0;
}

/* ---- loop ----------------------------------------------------------------------------------------------------------
 */

METHOD(loop_index)
{
    (void)c, (void)a, (void)more;
    *out = infer_jval_int(self.u.loop->index0 + 1);
    return 0;
}

METHOD(loop_index0)
{
    (void)c, (void)a, (void)more;
    *out = infer_jval_int(self.u.loop->index0);
    return 0;
}

METHOD(loop_length)
{
    (void)a, (void)more;
    size_t n;
    if (infer_jloop_length(c, self.u.loop, &n))
        return -1;
    *out = infer_jval_int((int64_t)n);
    return 0;
}

METHOD(loop_revindex0)
{
    if (loop_length(c, self, a, more, out))
        return -1;
    out->u.i -= self.u.loop->index0 + 1;
    return 0;
}

METHOD(loop_revindex)
{
    if (loop_length(c, self, a, more, out))
        return -1;
    out->u.i -= self.u.loop->index0;
    return 0;
}

METHOD(loop_first)
{
    (void)c, (void)a, (void)more;
    *out = infer_jval_bool(self.u.loop->index0 == 0);
    return 0;
}

METHOD(loop_last)
{
    (void)a, (void)more;
    infer_jval v;
    if (infer_jloop_peek(c, self.u.loop, &v))
        return -1;
    *out = infer_jval_bool(v.kind == J_MISSING);
    return 0;
}

METHOD(loop_depth)
{
    (void)c, (void)a, (void)more;
    *out = infer_jval_int((int64_t)self.u.loop->depth0 + 1);
    return 0;
}

METHOD(loop_depth0)
{
    (void)c, (void)a, (void)more;
    *out = infer_jval_int(self.u.loop->depth0);
    return 0;
}

METHOD(loop_previtem)
{
    (void)a, (void)more;
    *out = self.u.loop->before;
    if (self.u.loop->index0 > 0)
        return 0;
    return infer_jval_undefined(c, "there is no previous item", (infer_jval){.kind = J_MISSING}, infer_jval_none(),
                                out);
}

METHOD(loop_nextitem)
{
    (void)a, (void)more;
    if (infer_jloop_peek(c, self.u.loop, out))
        return -1;
    if (out->kind != J_MISSING)
        return 0;
    return infer_jval_undefined(c, "there is no next item", (infer_jval){.kind = J_MISSING}, infer_jval_none(), out);
}

METHOD(loop_cycle)
{
    (void)a;
    if (!more->n_pos)
        return infer_jctx_error(c, "no items for cycling given");
    *out = more->pos[(size_t)self.u.loop->index0 % more->n_pos];
    return 0;
}

METHOD(loop_changed)
{
    (void)a;
    infer_jval now;
    if (infer_jlist_new(c, J_TUPLE, more->n_pos, &now))
        return -1;
    for (size_t i = 0; i < more->n_pos; i++)
        now.u.list->v[i] = more->pos[i];
    int same = infer_jval_eq(c, self.u.loop->changed, now);
    if (same < 0)
        return -1;
    self.u.loop->changed = now;
    *out = infer_jval_bool(!same);
    return 0;
}

/* ---- cycler, macro, float
 * -------------------------------------------------------------------------------------------- */

METHOD(cycler_current)
{
    (void)c, (void)a, (void)more;
    *out = self.u.cycler->items->v[self.u.cycler->pos];
    return 0;
}

METHOD(cycler_next)
{
    (void)c, (void)a, (void)more;
    infer_jcycler *y = self.u.cycler;
    *out = y->items->v[y->pos];
    y->pos = (y->pos + 1) % y->items->n;
    return 0;
}

METHOD(cycler_reset)
{
    (void)c, (void)a, (void)more;
    self.u.cycler->pos = 0;
    *out = infer_jval_none();
    return 0;
}

METHOD(macro_name)
{
    (void)c, (void)a, (void)more;
    *out = self.u.macro->node->val.kind == J_STR ? self.u.macro->node->val : infer_jval_none();
    return 0;
}

METHOD(macro_arguments)
{
    (void)a, (void)more;
    const infer_jsig *sig = self.u.macro->node->u.sig;
    if (infer_jlist_new(c, J_TUPLE, sig->n, out))
        return -1;
    for (uint32_t i = 0; i < sig->n; i++)
        out->u.list->v[i] = sig->text[i];
    return 0;
}

static int uses(infer_jval self, uint32_t what, infer_jval *out)
{
    *out = infer_jval_bool(self.u.macro->node->u.sig->uses & what);
    return 0;
}

METHOD(macro_caller)
{
    (void)c, (void)a, (void)more;
    return uses(self, J_USES_CALLER, out);
}

METHOD(macro_kwargs)
{
    (void)c, (void)a, (void)more;
    return uses(self, J_USES_KWARGS, out);
}

METHOD(macro_varargs)
{
    (void)c, (void)a, (void)more;
    return uses(self, J_USES_VARARGS, out);
}

METHOD(float_is_integer)
{
    (void)c, (void)a, (void)more;
    *out = infer_jval_bool(isfinite(self.u.f) && self.u.f == floor(self.u.f));
    return 0;
}

#define ON_SEQ   (J_BIT(J_LIST) | J_BIT(J_TUPLE) | J_BIT(J_RANGE))
#define ON_LIST  J_BIT(J_LIST)
#define ON_DICT  J_BIT(J_DICT)
#define ON_LOOP  J_BIT(J_LOOP)
#define ON_MACRO J_BIT(J_MACRO)

const infer_jrow infer_jrows_method_obj[] = {
    {"get", dict_get, "/key default?", ON_DICT},
    {"items", dict_items, "/", ON_DICT},
    {"keys", dict_keys, "/", ON_DICT},
    {"values", dict_values, "/", ON_DICT},
    {"copy", copy, "/", ON_DICT | ON_LIST},
    {"clear", refuse_change, "* **", ON_DICT | ON_LIST},
    {"pop", refuse_change, "* **", ON_DICT | ON_LIST},
    {"popitem", refuse_change, "* **", ON_DICT},
    {"setdefault", refuse_change, "* **", ON_DICT},
    {"update", refuse_change, "* **", ON_DICT},
    {"append", refuse_change, "* **", ON_LIST},
    {"extend", refuse_change, "* **", ON_LIST},
    {"insert", refuse_change, "* **", ON_LIST},
    {"remove", refuse_change, "* **", ON_LIST},
    {"reverse", refuse_change, "* **", ON_LIST},
    {"sort", refuse_change, "* **", ON_LIST},
    {"fromkeys", NULL, "* **", ON_DICT},
    {"count", seq_count, "/value", ON_SEQ},
    {"index", seq_index, "/value start? end?", ON_SEQ},
    {"start", range_start, NULL, J_BIT(J_RANGE)},
    {"stop", range_stop, NULL, J_BIT(J_RANGE)},
    {"step", range_step, NULL, J_BIT(J_RANGE)},
    {"index", loop_index, NULL, ON_LOOP},
    {"index0", loop_index0, NULL, ON_LOOP},
    {"revindex", loop_revindex, NULL, ON_LOOP},
    {"revindex0", loop_revindex0, NULL, ON_LOOP},
    {"first", loop_first, NULL, ON_LOOP},
    {"last", loop_last, NULL, ON_LOOP},
    {"length", loop_length, NULL, ON_LOOP},
    {"depth", loop_depth, NULL, ON_LOOP},
    {"depth0", loop_depth0, NULL, ON_LOOP},
    {"previtem", loop_previtem, NULL, ON_LOOP},
    {"nextitem", loop_nextitem, NULL, ON_LOOP},
    {"cycle", loop_cycle, "*", ON_LOOP},
    {"changed", loop_changed, "*", ON_LOOP},
    {"current", cycler_current, NULL, J_BIT(J_CYCLER)},
    {"next", cycler_next, "/", J_BIT(J_CYCLER)},
    {"reset", cycler_reset, "/", J_BIT(J_CYCLER)},
    {"name", macro_name, NULL, ON_MACRO},
    {"arguments", macro_arguments, NULL, ON_MACRO},
    {"caller", macro_caller, NULL, ON_MACRO},
    {"catch_kwargs", macro_kwargs, NULL, ON_MACRO},
    {"catch_varargs", macro_varargs, NULL, ON_MACRO},
    {"is_integer", float_is_integer, "/", J_BIT(J_FLOAT)},
    {NULL, NULL, NULL, 0},
};
