/* Evaluates expressions. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "text/jinja_eval.h"
#include "text/jinja_table.h"

/* ---- Scopes -------------------------------------------------------------------------------------------------- */

infer_jscope *infer_jscope_new(infer_jctx *c, infer_jscope *parent)
{
    infer_jscope *s = infer_jctx_alloc(c, sizeof *s);
    if (s)
        *s = (infer_jscope){.parent = parent};
    return s;
}

int infer_jscope_set(infer_jctx *c, infer_jscope *s, uint32_t name, infer_jval v)
{
    if (!s->parent) {
        s->v[name] = v;
        return 0;
    }
    uint32_t i = 0;
    while (i < s->n && s->name[i] != name)
        i++;
    if (infer_jctx_step(c, i / 8))
        return -1;
    if (i == s->cap) {
        uint32_t cap = s->cap ? s->cap * 2 : 4;
        infer_jval *w = infer_jctx_array(c, cap, sizeof *w);
        uint32_t *names = w ? infer_jctx_array(c, cap, sizeof *names) : NULL;
        if (!names)
            return -1;
        if (s->n) {
            memcpy(w, s->v, s->n * sizeof *w);
            memcpy(names, s->name, s->n * sizeof *names);
        }
        s->v = w;
        s->name = names;
        s->cap = cap;
    }
    s->name[i] = name;
    s->v[i] = v;
    if (i == s->n)
        s->n++;
    return 0;
}

int infer_jscope_get(infer_jctx *c, const infer_jscope *s, uint32_t name, infer_jval *out)
{
    uint64_t seen = 0;
    for (; s->parent; s = s->parent) {
        seen += s->n;
        for (uint32_t i = 0; i < s->n; i++)
            if (s->name[i] == name) {
                *out = s->v[i];
                return infer_jctx_step(c, seen / 8);
            }
    }
    *out = s->v[name];
    return infer_jctx_step(c, seen / 8);
}

/* ---- Calls --------------------------------------------------------------------------------------------------- */

static int add_keyword(infer_jctx *c, infer_jargs *a, infer_jval name, infer_jval v)
{
    if (name.kind != J_STR)
        return infer_jctx_error(c, "keywords must be strings");
    for (size_t i = 0; i < a->n_kw; i++) {
        int same = infer_jval_eq(c, a->kw_name[i], name);
        if (same)
            return same < 0 ? -1
                            : infer_jctx_error(c, "got multiple values for keyword argument '%.*s'", (int)name.u.s->n,
                                               name.u.s->p);
    }
    a->kw_name[a->n_kw] = name;
    a->kw[a->n_kw++] = v;
    return 0;
}

/* Evaluates the arguments of a call, with *args and **kwargs spread. */
static int eval_args(infer_jctx *c, infer_jscope *s, const infer_jcall_args *g, infer_jval caller, infer_jargs *a)
{
    infer_jval star = {.kind = J_MISSING}, map = {.kind = J_MISSING};
    size_t n_star = 0, n_map = 0;
    *a = (infer_jargs){0};
    if (!g && caller.kind == J_MISSING)
        return 0;
    if (g && g->star) {
        if (infer_jeval(c, s, g->star, &star) || infer_jval_to_list(c, star, &star))
            return -1;
        n_star = star.u.list->n;
    }
    if (g && g->star_star) {
        if (infer_jeval(c, s, g->star_star, &map))
            return -1;
        if (map.kind != J_DICT)
            return infer_jctx_error(c, "argument after ** must be a mapping, not %s", infer_jval_type(map));
        n_map = map.u.dict->n;
    }
    size_t n_pos = (g ? g->n_pos : 0) + n_star, n_kw = (g ? g->n_kw : 0) + n_map + 1;
    infer_jval *v = infer_jctx_array(c, n_pos + 2 * n_kw, sizeof *v);
    if (!v)
        return -1;
    *a = (infer_jargs){.pos = v, .kw_name = v + n_pos, .kw = v + n_pos + n_kw};
    for (uint32_t i = 0; g && i < g->n_pos; i++)
        if (infer_jeval(c, s, g->pos[i], &a->pos[a->n_pos++]))
            return -1;
    if (n_star)
        memcpy(a->pos + a->n_pos, star.u.list->v, n_star * sizeof *v);
    a->n_pos += n_star;
    for (uint32_t i = 0; g && i < g->n_kw; i++) {
        if (infer_jeval(c, s, g->kw[i], &a->kw[i]))
            return -1;
        a->kw_name[i] = g->kw_name[i];
        a->n_kw++;
    }
    for (size_t i = 0; i < n_map; i++)
        if (add_keyword(c, a, map.u.dict->k[i], map.u.dict->v[i]))
            return -1;
    if (caller.kind == J_MISSING)
        return 0;
    return add_keyword(c, a, c->template->names[J_NAME_CALLER], caller);
}

int infer_jeval_call(infer_jctx *c, infer_jscope *s, const infer_jnode *n, infer_jval caller, infer_jval *out)
{
    infer_jval fn;
    infer_jargs args;
    if (infer_jeval(c, s, n->a, &fn) || eval_args(c, s, n->args, caller, &args))
        return -1;
    c->line = n->line;
    return infer_jval_call(c, fn, &args, out);
}

static int eval_row(infer_jctx *c, infer_jscope *s, const infer_jnode *n, const char *what, infer_jval v,
                    infer_jval *out)
{
    infer_jargs args = {0};
    if (n->args && eval_args(c, s, n->args, (infer_jval){.kind = J_MISSING}, &args))
        return -1;
    c->line = n->line;
    return infer_jrow_call(c, n->u.row, what, v, &args, out);
}

int infer_jeval_filters(infer_jctx *c, infer_jscope *s, const infer_jnode *n, infer_jval v, infer_jval *out)
{
    if (!n) {
        *out = v;
        return 0;
    }
    if (infer_jeval_enter(c) || infer_jeval_filters(c, s, n->a, v, &v))
        return -1;
    c->depth--;
    return eval_row(c, s, n, "filter", v, out);
}

/* ---- Nodes --------------------------------------------------------------------------------------------------- */

int infer_jeval_enter(infer_jctx *c)
{
    if (c->depth >= J_MAX_DEPTH)
        return infer_jctx_fail(c, INFER_E_TOO_LARGE, "evaluation nested deeper than %d", J_MAX_DEPTH);
    c->depth++;
    return 0;
}

static int eval_name(infer_jctx *c, infer_jscope *s, const infer_jnode *n, infer_jval *out)
{
    if (infer_jscope_get(c, s, n->name, out))
        return -1;
    if (out->kind != J_MISSING)
        return 0;
    return infer_jval_undefined(c, NULL, (infer_jval){.kind = J_MISSING}, n->val, out);
}

static int eval_list(infer_jctx *c, infer_jscope *s, const infer_jnode *n, infer_jval *out)
{
    infer_jval list;
    if (infer_jlist_new(c, n->kind == N_TUPLE ? J_TUPLE : J_LIST, n->n, &list))
        return -1;
    for (uint32_t i = 0; i < n->n; i++)
        if (infer_jeval(c, s, n->list[i], &list.u.list->v[i]))
            return -1;
    *out = list;
    return 0;
}

static int eval_dict(infer_jctx *c, infer_jscope *s, const infer_jnode *n, infer_jval *out)
{
    infer_jval dict, k, v;
    if (infer_jdict_new(c, &dict))
        return -1;
    for (uint32_t i = 0; i < n->n; i += 2)
        if (infer_jeval(c, s, n->list[i], &k) || infer_jeval(c, s, n->list[i + 1], &v) ||
            infer_jdict_put(c, dict.u.dict, k, v))
            return -1;
    *out = dict;
    return 0;
}

static int eval_slice(infer_jctx *c, infer_jscope *s, const infer_jnode *n, infer_jval *out)
{
    infer_jval obj, part[3] = {{.kind = J_NONE}, {.kind = J_NONE}, {.kind = J_NONE}};
    if (infer_jeval(c, s, n->a, &obj))
        return -1;
    for (int i = 0; i < 3; i++)
        if (n->list[i] && infer_jeval(c, s, n->list[i], &part[i]))
            return -1;
    c->line = n->line;
    return infer_jval_slice(c, obj, part[0], part[1], part[2], out);
}

static int eval_compare(infer_jctx *c, infer_jscope *s, const infer_jnode *n, infer_jval *out)
{
    infer_jval left, right;
    if (infer_jeval(c, s, n->list[0], &left))
        return -1;
    for (uint32_t i = 1; i < n->n; i++) {
        infer_jop op = (infer_jop)n->u.ops[i - 1];
        if (infer_jeval(c, s, n->list[i], &right))
            return -1;
        c->line = n->line;
        int is = op == J_EQ || op == J_NE       ? infer_jval_eq(c, left, right)
                 : op == J_IN || op == J_NOT_IN ? infer_jval_in(c, left, right)
                                                : infer_jval_order(c, op, left, right);
        if (is < 0)
            return -1;
        if (op == J_NE || op == J_NOT_IN)
            is = !is;
        *out = infer_jval_bool(is);
        if (!is)
            break;
        left = right;
    }
    return 0;
}

static int eval_concat(infer_jctx *c, infer_jscope *s, const infer_jnode *n, infer_jval *out)
{
    infer_jval v;
    const infer_jstr *all = NULL, *part;
    for (uint32_t i = 0; i < n->n; i++) {
        if (infer_jeval(c, s, n->list[i], &v) || infer_jval_to_str(c, v, &part))
            return -1;
        c->line = n->line;
        if (i && infer_jstr_concat(c, all, part, &v))
            return -1;
        all = i ? v.u.s : part;
    }
    *out = infer_jval_str(all);
    return 0;
}

static int eval_cond(infer_jctx *c, infer_jscope *s, const infer_jnode *n, infer_jval *out)
{
    infer_jval test;
    if (infer_jeval(c, s, n->a, &test))
        return -1;
    if (infer_jval_truth(test))
        return infer_jeval(c, s, n->b, out);
    if (n->c)
        return infer_jeval(c, s, n->c, out);
    return infer_jval_undefined(c, "the inline if-expression evaluated to false and no else section was defined",
                                (infer_jval){.kind = J_MISSING}, infer_jval_none(), out);
}

/* Operators of one and two operands, attributes and items: all evaluate their operands first. */
static int eval_operator(infer_jctx *c, infer_jscope *s, const infer_jnode *n, infer_jval *out)
{
    infer_jval a, b = {.kind = J_MISSING};
    if (infer_jeval(c, s, n->a, &a))
        return -1;
    if (n->kind == N_AND || n->kind == N_OR) {
        if (infer_jval_truth(a) == (n->kind == N_AND))
            return infer_jeval(c, s, n->b, out);
        *out = a;
        return 0;
    }
    if (n->b && infer_jeval(c, s, n->b, &b))
        return -1;
    c->line = n->line;
    switch (n->kind) {
    case N_GETATTR:
        return infer_jval_getattr(c, a, n->val, n->flag, out);
    case N_GETITEM:
        return infer_jval_getitem(c, a, b, out);
    case N_NEG:
        return infer_jval_negate(c, a, out);
    case N_POS:
        return infer_jval_plus(c, a, out);
    case N_NOT:
        *out = infer_jval_bool(!infer_jval_truth(a));
        return 0;
    default:
        return infer_jval_binary(c, (infer_jop)n->op, a, b, out);
    }
}

static int eval_applied(infer_jctx *c, infer_jscope *s, const infer_jnode *n, infer_jval *out)
{
    infer_jval v;
    if (infer_jeval(c, s, n->a, &v) || eval_row(c, s, n, n->kind == N_TEST ? "test" : "filter", v, out))
        return -1;
    if (n->kind == N_TEST)
        *out = infer_jval_bool(infer_jval_truth(*out) != n->flag);
    return 0;
}

int infer_jeval(infer_jctx *c, infer_jscope *s, const infer_jnode *n, infer_jval *out)
{
    int rc;
    if (n->kind == N_CONST) {
        *out = n->val;
        return 0;
    }
    if (infer_jctx_step(c, 1) || infer_jeval_enter(c))
        return -1;
    switch (n->kind) {
    case N_NAME:
        rc = eval_name(c, s, n, out);
        break;
    case N_TUPLE:
    case N_LIST:
        rc = eval_list(c, s, n, out);
        break;
    case N_DICT:
        rc = eval_dict(c, s, n, out);
        break;
    case N_SLICE:
        rc = eval_slice(c, s, n, out);
        break;
    case N_CALL:
        rc = infer_jeval_call(c, s, n, (infer_jval){.kind = J_MISSING}, out);
        break;
    case N_FILTER:
    case N_TEST:
        rc = eval_applied(c, s, n, out);
        break;
    case N_COMPARE:
        rc = eval_compare(c, s, n, out);
        break;
    case N_CONCAT:
        rc = eval_concat(c, s, n, out);
        break;
    case N_COND:
        rc = eval_cond(c, s, n, out);
        break;
    default:
        rc = eval_operator(c, s, n, out);
    }
    c->depth--;
    return rc;
}
