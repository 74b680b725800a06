/* Runs statements: output, control flow, loops, macros. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "text/jinja_eval.h"
#include "text/jinja_table.h"

/* ---- Assignment ---------------------------------------------------------------------------------------------- */

static int assign(infer_jctx *c, infer_jscope *s, const infer_jnode *target, infer_jval v);

static int assign_tuple(infer_jctx *c, infer_jscope *s, const infer_jnode *target, infer_jval v)
{
    infer_jiter it;
    infer_jval item;
    if (!infer_jval_is_iterable(v))
        return infer_jctx_error(c, "cannot unpack non-iterable %s object", infer_jval_type(v));
    if (infer_jval_iterate(c, v, &it))
        return -1;
    for (uint32_t i = 0; i < target->n; i++) {
        int more = it.next(c, &it, &item);
        if (more > 0)
            return infer_jctx_error(c, "not enough values to unpack (expected %u, got %u)", (unsigned)target->n,
                                    (unsigned)i);
        if (more < 0 || assign(c, s, target->list[i], item))
            return -1;
    }
    int more = it.next(c, &it, &item);
    if (more == 0)
        return infer_jctx_error(c, "too many values to unpack (expected %u)", (unsigned)target->n);
    return more < 0 ? -1 : 0;
}

static int assign(infer_jctx *c, infer_jscope *s, const infer_jnode *target, infer_jval v)
{
    infer_jval ns;
    switch (target->kind) {
    case N_NAME:
        return infer_jscope_set(c, s, target->name, v);
    case N_NSREF:
        if (infer_jscope_get(c, s, target->name, &ns))
            return -1;
        if (ns.kind != J_NAMESPACE)
            return infer_jctx_error(c, "cannot assign attribute on non-namespace object");
        return infer_jdict_put(c, ns.u.dict, target->val, v);
    default:
        return assign_tuple(c, s, target, v);
    }
}

/* ---- Captured output ------------------------------------------------------------------------------------------- */

/* Cuts what was written since mark off the output, as a string. */
static int take_output(infer_jctx *c, size_t mark, infer_jval *out)
{
    if (infer_jstr_copy(c, c->out.p ? c->out.p + mark : "", c->out.n - mark, out))
        return -1;
    c->out.n = mark;
    return 0;
}

/* Unbinds what the body's scope hides from its start. */
static int hide(infer_jctx *c, infer_jscope *s, const infer_jnode *body)
{
    for (uint32_t i = 1; body->u.hidden && i <= body->u.hidden[0]; i++)
        if (infer_jscope_set(c, s, body->u.hidden[i], (infer_jval){.kind = J_MISSING}))
            return -1;
    return 0;
}

/* A body in a scope of its own. */
static infer_jflow exec_body(infer_jctx *c, infer_jscope *s, const infer_jnode *body)
{
    return hide(c, s, body) ? J_FLOW_ERROR : infer_jexec(c, s, body);
}

/* ---- Loops ------------------------------------------------------------------------------------------------------ */

/* The iterable through the loop's condition. */
typedef struct filtered {
    infer_jiter base, in;
    const infer_jnode *node;
    infer_jscope *scope;
} filtered;

static int next_filtered(infer_jctx *c, infer_jiter *it, infer_jval *out)
{
    filtered *f = (filtered *)it;
    infer_jval v, keep;
    int more;
    while ((more = f->in.next(c, &f->in, &v)) == 0) {
        f->scope->n = 0;
        if (assign(c, f->scope, f->node->a, v) || infer_jeval(c, f->scope, f->node->list[1], &keep))
            return -1;
        if (!infer_jval_truth(keep))
            continue;
        *out = v;
        return 0;
    }
    return more;
}

static infer_jloop *new_loop(infer_jctx *c, infer_jscope *s, const infer_jnode *n, infer_jval iterable, uint32_t depth0)
{
    infer_jloop *l = infer_jctx_alloc(c, sizeof *l);
    if (!l)
        return NULL;
    *l = (infer_jloop){.iterable = iterable, .index0 = -1, .depth0 = depth0, .node = n, .scope = s};
    if (infer_jval_iterate(c, iterable, &l->it))
        return NULL;
    if (n->list[1]) {
        filtered *f = infer_jctx_alloc(c, sizeof *f);
        if (!f)
            return NULL;
        *f = (filtered){.base = {.next = next_filtered}, .in = l->it, .node = n, .scope = infer_jscope_new(c, s)};
        if (!f->scope)
            return NULL;
        infer_jval gen = {.kind = J_ITER, .u.iter = &f->base};
        l->iterable = gen;
        if (infer_jval_iterate(c, gen, &l->it))
            return NULL;
    }
    return l;
}

int infer_jloop_peek(infer_jctx *c, infer_jloop *l, infer_jval *out)
{
    if (l->after.kind == J_MISSING) {
        infer_jval v;
        int more = l->it.next(c, &l->it, &v);
        if (more < 0)
            return -1;
        if (!more)
            l->after = v;
    }
    *out = l->after;
    return 0;
}

int infer_jloop_length(infer_jctx *c, infer_jloop *l, size_t *n)
{
    if (!l->has_length) {
        if (infer_jval_has_len(l->iterable)) {
            if (infer_jval_len(c, l->iterable, &l->length))
                return -1;
        } else { /* count what is left by fetching it */
            infer_jval rest = {.kind = J_MISSING};
            infer_jlist list = {0}, *kept;
            size_t cap = 0;
            int more;
            while ((more = l->it.next(c, &l->it, &rest)) == 0)
                if (infer_jlist_append(c, &list, &cap, rest))
                    return -1;
            if (more < 0 || !(kept = infer_jctx_alloc(c, sizeof *kept)))
                return -1;
            *kept = list;
            if (infer_jval_iterate(c, infer_jval_of_list(J_LIST, kept), &l->it))
                return -1;
            l->length = list.n + (size_t)(l->index0 + 1) + (l->after.kind != J_MISSING);
        }
        l->has_length = true;
    }
    *n = l->length;
    return 0;
}

/* 0 and the next item, 1 at the end. */
static int loop_next(infer_jctx *c, infer_jloop *l)
{
    infer_jval v = l->after;
    if (v.kind == J_MISSING) {
        int more = l->it.next(c, &l->it, &v);
        if (more)
            return more;
    }
    l->after = (infer_jval){.kind = J_MISSING};
    l->index0++;
    l->before = l->current;
    l->current = v;
    return 0;
}

/* Runs the loop over an iterable, its output appended. */
static int run_loop(infer_jctx *c, infer_jscope *outer, const infer_jnode *n, infer_jval iterable, uint32_t depth0)
{
    infer_jscope *s = infer_jscope_new(c, outer);
    infer_jloop *l = s ? new_loop(c, outer, n, iterable, depth0) : NULL;
    bool ran = false;
    int more;
    if (!l)
        return -1;
    while ((more = loop_next(c, l)) == 0) {
        s->n = 0;
        if (infer_jctx_step(c, 1) || infer_jscope_set(c, s, J_NAME_LOOP, (infer_jval){.kind = J_LOOP, .u.loop = l}) ||
            assign(c, s, n->a, l->current))
            return -1;
        infer_jflow flow = exec_body(c, s, n->b);
        if (flow == J_FLOW_ERROR)
            return -1;
        if (flow == J_FLOW_BREAK)
            break;
        ran |= flow == J_FLOW_NEXT; /* as in Jinja2, an iteration cut short does not keep `else` from running */
        c->line = n->line;
    }
    if (more < 0)
        return -1;
    if (!ran && n->c) {
        infer_jscope *e = infer_jscope_new(c, outer);
        if (!e || exec_body(c, e, n->c) != J_FLOW_NEXT)
            return -1;
    }
    return 0;
}

int infer_jloop_call(infer_jctx *c, infer_jloop *l, const infer_jargs *args, infer_jval *out)
{
    if (!l->node->flag)
        return infer_jctx_error(c, "The loop must have the 'recursive' marker to be called recursively.");
    if (args->n_pos != 1 || args->n_kw)
        return infer_jctx_error(c, "loop() takes one iterable");
    size_t mark = c->out.n;
    if (infer_jctx_enter(c) || run_loop(c, l->scope, l->node, args->pos[0], l->depth0 + 1) || take_output(c, mark, out))
        return -1;
    infer_jctx_leave(c);
    return 0;
}

static infer_jflow exec_for(infer_jctx *c, infer_jscope *s, const infer_jnode *n)
{
    infer_jval iterable;
    if (infer_jeval(c, s, n->list[0], &iterable))
        return J_FLOW_ERROR;
    c->line = n->line;
    return run_loop(c, s, n, iterable, 0) ? J_FLOW_ERROR : J_FLOW_NEXT;
}

/* ---- Macros ------------------------------------------------------------------------------------------------------ */

/* What the arguments of one call still hold while parameters take theirs. */
static int take_keyword(infer_jctx *c, infer_jargs *a, infer_jval name, infer_jval *out)
{
    *out = (infer_jval){.kind = J_MISSING};
    for (size_t i = 0; i < a->n_kw; i++) {
        int same = infer_jval_eq(c, a->kw_name[i], name);
        if (same < 0)
            return -1;
        if (!same)
            continue;
        *out = a->kw[i];
        a->n_kw--;
        for (; i < a->n_kw; i++) { /* in order: kwargs may be looked at */
            a->kw_name[i] = a->kw_name[i + 1];
            a->kw[i] = a->kw[i + 1];
        }
    }
    return 0;
}

static int bind_caller(infer_jctx *c, infer_jscope *s, infer_jargs *a)
{
    infer_jval v;
    if (take_keyword(c, a, c->template->names[J_NAME_CALLER], &v))
        return -1;
    if ((v.kind == J_MISSING || v.kind == J_NONE) &&
        infer_jval_undefined(c, "No caller defined", (infer_jval){.kind = J_MISSING}, infer_jval_none(), &v))
        return -1;
    return infer_jscope_set(c, s, J_NAME_CALLER, v);
}

static int bind_kwargs(infer_jctx *c, infer_jscope *s, infer_jargs *a)
{
    infer_jval dict;
    if (infer_jdict_new(c, &dict))
        return -1;
    for (size_t i = 0; i < a->n_kw; i++)
        if (infer_jdict_put(c, dict.u.dict, a->kw_name[i], a->kw[i]))
            return -1;
    a->n_kw = 0;
    return infer_jscope_set(c, s, J_NAME_KWARGS, dict);
}

static int bind_varargs(infer_jctx *c, infer_jscope *s, const infer_jargs *a, size_t from)
{
    infer_jval tuple;
    size_t n = a->n_pos > from ? a->n_pos - from : 0;
    if (infer_jlist_new(c, J_TUPLE, n, &tuple))
        return -1;
    for (size_t i = 0; i < n; i++)
        tuple.u.list->v[i] = a->pos[from + i];
    return infer_jscope_set(c, s, J_NAME_VARARGS, tuple);
}

static int macro_error(infer_jctx *c, const infer_jmacro *m, const infer_jargs *a)
{
    const infer_jval name = m->node->val;
    int n = name.kind == J_STR ? (int)name.u.s->n : 9;
    const char *p = name.kind == J_STR ? name.u.s->p : "anonymous";
    if (!a->n_kw)
        return infer_jctx_error(c, "macro '%.*s' takes not more than %u argument(s)", n, p,
                                (unsigned)m->node->u.sig->n);
    const infer_jstr *k = a->kw_name[0].u.s;
    return infer_jctx_error(c, "macro '%.*s' takes no keyword argument '%.*s'", n, p, (int)k->n, k->p);
}

/* Jinja2's order: positions, keywords, then defaults in the macro's own scope, where all parameters shadow. */
static int bind(infer_jctx *c, infer_jscope *s, const infer_jmacro *m, infer_jargs *a)
{
    const infer_jsig *sig = m->node->u.sig;
    bool caller_given = a->n_pos >= sig->n && sig->own_caller;
    for (uint32_t i = 0; i < sig->n; i++) {
        infer_jval v = {.kind = J_MISSING};
        if (i < a->n_pos)
            v = a->pos[i];
        else if (take_keyword(c, a, sig->text[i], &v))
            return -1;
        if (i >= a->n_pos && sig->name[i] == J_NAME_CALLER)
            caller_given = true;
        if (infer_jscope_set(c, s, sig->name[i], v))
            return -1;
    }
    if ((sig->uses & J_USES_CALLER) && !caller_given && bind_caller(c, s, a))
        return -1;
    if ((sig->uses & J_USES_KWARGS) && bind_kwargs(c, s, a))
        return -1;
    if (a->n_kw)
        return macro_error(c, m, a);
    if ((sig->uses & J_USES_VARARGS) && bind_varargs(c, s, a, sig->n))
        return -1;
    if (!(sig->uses & J_USES_VARARGS) && a->n_pos > sig->n)
        return macro_error(c, m, a);
    for (uint32_t i = 0; i < sig->n; i++) {
        infer_jval v;
        if (infer_jscope_get(c, s, sig->name[i], &v))
            return -1;
        if (v.kind != J_MISSING)
            continue;
        if (sig->def[i] ? infer_jeval(c, s, sig->def[i], &v)
                        : infer_jval_undefined(c, "a parameter of the macro was not provided",
                                               (infer_jval){.kind = J_MISSING}, sig->text[i], &v))
            return -1;
        if (infer_jscope_set(c, s, sig->name[i], v))
            return -1;
    }
    return 0;
}

int infer_jmacro_call(infer_jctx *c, const infer_jmacro *m, const infer_jargs *args, infer_jval *out)
{
    infer_jscope *s = infer_jscope_new(c, m->scope);
    infer_jargs a = *args;
    size_t mark = c->out.n;
    if (!s || infer_jctx_enter(c) || infer_jeval_enter(c) || bind(c, s, m, &a) ||
        exec_body(c, s, m->node->b) != J_FLOW_NEXT || take_output(c, mark, out))
        return -1;
    c->depth--;
    infer_jctx_leave(c);
    return 0;
}

static int new_macro(infer_jctx *c, infer_jscope *s, const infer_jnode *n, infer_jval *out)
{
    infer_jmacro *m = infer_jctx_alloc(c, sizeof *m);
    if (!m)
        return -1;
    *m = (infer_jmacro){.node = n, .scope = s};
    *out = (infer_jval){.kind = J_MACRO, .u.macro = m};
    return 0;
}

static int exec_call_block(infer_jctx *c, infer_jscope *s, const infer_jnode *n)
{
    infer_jval caller, v;
    if (new_macro(c, s, n, &caller))
        return -1;
    if (n->a ? infer_jeval_call(c, s, n->a, caller, &v) : infer_jmacro_call(c, caller.u.macro, &(infer_jargs){0}, &v))
        return -1;
    return infer_jval_print(c, v);
}

/* ---- Statements -------------------------------------------------------------------------------------------------- */

static int exec_set(infer_jctx *c, infer_jscope *s, const infer_jnode *n)
{
    infer_jval v;
    if (infer_jeval(c, s, n->b, &v))
        return -1;
    c->line = n->line;
    return assign(c, s, n->a, v);
}

/* A body whose output is collected, in a scope of its own, through filters. A loop left inside drops it all. */
static infer_jflow exec_collected(infer_jctx *c, infer_jscope *s, const infer_jnode *body, const infer_jnode *filters,
                                  infer_jval *out)
{
    infer_jscope *inner = infer_jscope_new(c, s);
    size_t mark = c->out.n;
    infer_jflow flow = inner ? exec_body(c, inner, body) : J_FLOW_ERROR;
    if (flow == J_FLOW_ERROR || take_output(c, mark, out))
        return J_FLOW_ERROR;
    if (flow != J_FLOW_NEXT)
        return flow;
    return infer_jeval_filters(c, inner, filters, *out, out) ? J_FLOW_ERROR : J_FLOW_NEXT;
}

static infer_jflow exec_set_block(infer_jctx *c, infer_jscope *s, const infer_jnode *n)
{
    infer_jval v;
    infer_jflow flow = exec_collected(c, s, n->b, n->c, &v);
    return flow != J_FLOW_NEXT ? flow : assign(c, s, n->a, v) ? J_FLOW_ERROR : J_FLOW_NEXT;
}

static infer_jflow exec_filter_block(infer_jctx *c, infer_jscope *s, const infer_jnode *n)
{
    infer_jval v;
    infer_jflow flow = exec_collected(c, s, n->b, n->a, &v);
    return flow != J_FLOW_NEXT ? flow : infer_jval_print(c, v) ? J_FLOW_ERROR : J_FLOW_NEXT;
}

static infer_jflow exec_if(infer_jctx *c, infer_jscope *s, const infer_jnode *n)
{
    for (uint32_t i = 0; i < n->n; i += 2) {
        infer_jval test;
        if (i + 1 == n->n)
            return infer_jexec(c, s, n->list[i]);
        if (infer_jeval(c, s, n->list[i], &test))
            return J_FLOW_ERROR;
        if (infer_jval_truth(test))
            return infer_jexec(c, s, n->list[i + 1]);
    }
    return J_FLOW_NEXT;
}

static infer_jflow exec_with(infer_jctx *c, infer_jscope *s, const infer_jnode *n)
{
    infer_jscope *inner = infer_jscope_new(c, s);
    if (!inner)
        return J_FLOW_ERROR;
    for (uint32_t i = 0; i < n->n; i += 2) {
        infer_jval v;
        if (infer_jeval(c, s, n->list[i + 1], &v) || assign(c, inner, n->list[i], v))
            return J_FLOW_ERROR;
    }
    return exec_body(c, inner, n->b);
}

/* A block sees the globals only, or with `scoped` what is around it. */
static infer_jflow exec_scope(infer_jctx *c, infer_jscope *s, const infer_jnode *n)
{
    infer_jscope *inner = infer_jscope_new(c, n->flag ? s : c->root);
    return inner ? exec_body(c, inner, n->b) : J_FLOW_ERROR;
}

static infer_jflow exec_list(infer_jctx *c, infer_jscope *s, const infer_jnode *n)
{
    infer_jflow flow = J_FLOW_NEXT;
    for (uint32_t i = 0; i < n->n && flow == J_FLOW_NEXT; i++)
        flow = infer_jexec(c, s, n->list[i]);
    return flow;
}

static int exec_simple(infer_jctx *c, infer_jscope *s, const infer_jnode *n)
{
    infer_jval v;
    switch (n->kind) {
    case N_PRINT:
        return infer_jeval(c, s, n->a, &v) || infer_jval_print(c, v) ? -1 : 0;
    case N_SET:
        return exec_set(c, s, n);
    case N_MACRO:
        return new_macro(c, s, n, &v) || infer_jscope_set(c, s, n->name, v) ? -1 : 0;
    default:
        return exec_call_block(c, s, n);
    }
}

int infer_jexec_template(infer_jctx *c, const infer_jnode *body)
{
    return exec_body(c, c->root, body) == J_FLOW_NEXT ? 0 : -1;
}

infer_jflow infer_jexec(infer_jctx *c, infer_jscope *s, const infer_jnode *n)
{
    infer_jflow flow;
    if (n->kind == N_TEXT)
        return infer_jctx_step(c, 1) || infer_jctx_write(c, n->val.u.s->p, n->val.u.s->n) ? J_FLOW_ERROR : J_FLOW_NEXT;
    if (infer_jctx_step(c, 1) || infer_jeval_enter(c))
        return J_FLOW_ERROR;
    c->line = n->line;
    switch (n->kind) {
    case N_BLOCK:
        flow = exec_list(c, s, n);
        break;
    case N_IF:
        flow = exec_if(c, s, n);
        break;
    case N_FOR:
        flow = exec_for(c, s, n);
        break;
    case N_SET_BLOCK:
        flow = exec_set_block(c, s, n);
        break;
    case N_FILTER_BLOCK:
        flow = exec_filter_block(c, s, n);
        break;
    case N_WITH:
        flow = exec_with(c, s, n);
        break;
    case N_SCOPE:
        flow = exec_scope(c, s, n);
        break;
    case N_BREAK:
        flow = J_FLOW_BREAK;
        break;
    case N_CONTINUE:
        flow = J_FLOW_CONTINUE;
        break;
    default:
        flow = exec_simple(c, s, n) ? J_FLOW_ERROR : J_FLOW_NEXT;
    }
    c->depth--;
    return flow;
}
