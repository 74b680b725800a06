/* Finds rows of the tables, binds arguments to them, and calls any value. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "text/jinja_eval.h"
#include "text/jinja_table.h"

static const infer_jrow *find(const infer_jrow *rows, const char *name, size_t n, uint32_t on)
{
    for (; rows->name; rows++)
        if ((!rows->on || (rows->on & on)) && strlen(rows->name) == n && memcmp(rows->name, name, n) == 0)
            return rows;
    return NULL;
}

const infer_jrow *infer_jrow_filter(const char *name, size_t n)
{
    const infer_jrow *r = find(infer_jrows_filter, name, n, ~0u);
    return r ? r : find(infer_jrows_filter_seq, name, n, ~0u);
}

const infer_jrow *infer_jrow_test(const char *name, size_t n)
{
    return find(infer_jrows_test, name, n, ~0u);
}

const infer_jrow *infer_jrow_func(const char *name, size_t n)
{
    return find(infer_jrows_func, name, n, ~0u);
}

const infer_jrow *infer_jrow_method(const char *name, size_t n, uint32_t on)
{
    static const infer_jrow *const tables[] = {infer_jrows_method_obj, infer_jrows_method_str, infer_jrows_method_seek};
    for (size_t i = 0; i < 3; i++) {
        const infer_jrow *r = find(tables[i], name, n, on);
        if (r)
            return r;
    }
    return NULL;
}

/* One parameter out of a row's list; NULL at the end. */
static const char *next_param(const char *p, const char **name, size_t *n, bool *optional)
{
    while (*p == ' ' || *p == '/')
        p++;
    if (!*p || *p == '*')
        return NULL;
    *name = p;
    *n = strcspn(p, " ?");
    p += *n;
    *optional = *p == '?';
    return p + *optional;
}

static int bind_error(infer_jctx *c, const infer_jrow *row, const char *what, const char *why, infer_jval name)
{
    if (name.kind == J_STR)
        return infer_jctx_error(c, "%s '%s' %s '%.*s'", what, row->name, why, (int)name.u.s->n, name.u.s->p);
    return infer_jctx_error(c, "%s '%s' %s", what, row->name, why);
}

int infer_jrow_call(infer_jctx *c, const infer_jrow *row, const char *what, infer_jval self, const infer_jargs *args,
                    infer_jval *out)
{
    infer_jval bound[J_MAX_PARAMS], none = {.kind = J_MISSING};
    infer_jargs more = {0};
    const char *p = row->params, *name;
    size_t n_params = 0, n, used = 0;
    bool optional, positional = *p == '/', star = strstr(p, "*") != NULL, star_star = strstr(p, "**") != NULL;
    if (!row->fn)
        return infer_jctx_fail(c, INFER_E_UNSUPPORTED, "unsupported %s '%s'", what, row->name);
    if (infer_jctx_step(c, 1))
        return -1;
    while ((p = next_param(p, &name, &n, &optional)) != NULL) {
        infer_jval *b = &bound[n_params];
        *b = n_params < args->n_pos ? args->pos[n_params] : none;
        n_params++;
        for (size_t i = 0; i < args->n_kw && !positional; i++) {
            const infer_jstr *k = args->kw_name[i].u.s;
            if (k->n != n || memcmp(k->p, name, n) != 0)
                continue;
            if (b->kind != J_MISSING)
                return bind_error(c, row, what, "got multiple values for argument", args->kw_name[i]);
            *b = args->kw[i];
            used++;
        }
        if (b->kind == J_MISSING && !optional)
            return bind_error(c, row, what, "misses a required argument", none);
    }
    if (args->n_pos > n_params) {
        if (!star)
            return bind_error(c, row, what, "takes fewer positional arguments", none);
        more.pos = args->pos + n_params;
        more.n_pos = args->n_pos - n_params;
    }
    if (args->n_kw > used) {
        if (!star_star || used)
            return bind_error(c, row, what, "takes no keyword argument", args->kw_name[0]);
        more.kw = args->kw;
        more.kw_name = args->kw_name;
        more.n_kw = args->n_kw;
    }
    return row->fn(c, self, bound, &more, out);
}

int infer_jval_call(infer_jctx *c, infer_jval fn, const infer_jargs *args, infer_jval *out)
{
    switch (fn.kind) {
    case J_FUNC:
        return infer_jrow_call(c, fn.u.row, "function", (infer_jval){.kind = J_MISSING}, args, out);
    case J_METHOD:
        return infer_jrow_call(c, fn.u.method->row, "method", fn.u.method->self, args, out);
    case J_MACRO:
        return infer_jmacro_call(c, fn.u.macro, args, out);
    case J_LOOP:
        return infer_jloop_call(c, fn.u.loop, args, out);
    case J_JOINER:
        if (args->n_pos || args->n_kw)
            return infer_jctx_error(c, "a joiner takes no arguments");
        *out = fn.u.joiner->used ? fn.u.joiner->sep : infer_jval_str(&infer_jstr_empty);
        fn.u.joiner->used = true;
        return 0;
    case J_UNDEFINED:
        return infer_jval_use_undefined(c, fn);
    default:
        return infer_jctx_error(c, "'%s' object is not callable", infer_jval_type(fn));
    }
}
