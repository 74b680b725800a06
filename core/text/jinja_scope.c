/* Finds the names that hide an outer value from the start of their scope. Jinja2 decides at compile time where a name
 * lives: one whose first use in a scope is an unconditional assignment, and that no enclosing scope mentions, is
 * unbound there until that assignment runs, even if the template was given a variable of that name. (A use inside an
 * `if`, or one that reads first, makes it start with the outer value.) The evaluator looks names up through the
 * enclosing scopes, so that this is all that it needs to be told. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "text/jinja_parse.h"

typedef struct scoping {
    infer_jctx *c;
    uint32_t *outer; /* by name: how many enclosing scopes mention it */
    uint32_t *seen;  /* by name: number of the last scope that mentioned it */
    uint32_t scopes;
    infer_jnodes blocks; /* N_SCOPE: their bodies know no enclosing scope, and come last */
    infer_jparser *p;
} scoping;

/* One scope while it is walked. */
typedef struct scope {
    scoping *g;
    uint32_t number, ifs;
    infer_jlist own, hidden; /* names as J_INT */
    size_t own_cap, hidden_cap;
    infer_jnodes inner; /* statements with scopes of their own */
} scope;

static int mention(scope *s, uint32_t name, bool store)
{
    scoping *g = s->g;
    if (g->seen[name] == s->number || g->outer[name])
        return 0;
    g->seen[name] = s->number;
    if (infer_jlist_append(g->c, &s->own, &s->own_cap, infer_jval_int(name)))
        return -1;
    if (!store || s->ifs)
        return 0;
    return infer_jlist_append(g->c, &s->hidden, &s->hidden_cap, infer_jval_int(name));
}

/* All names that an expression reads. */
static int walk_expr(scope *s, const infer_jnode *n)
{
    if (!n)
        return 0;
    if (n->kind == N_NAME)
        return mention(s, n->name, false);
    if (walk_expr(s, n->a) || walk_expr(s, n->b) || walk_expr(s, n->c))
        return -1;
    for (uint32_t i = 0; i < n->n; i++)
        if (walk_expr(s, n->list[i]))
            return -1;
    if (!n->args)
        return 0;
    for (uint32_t i = 0; i < n->args->n_pos; i++)
        if (walk_expr(s, n->args->pos[i]))
            return -1;
    for (uint32_t i = 0; i < n->args->n_kw; i++)
        if (walk_expr(s, n->args->kw[i]))
            return -1;
    return walk_expr(s, n->args->star) || walk_expr(s, n->args->star_star) ? -1 : 0;
}

/* Names that a target binds; `store` false: as parameters, which are never unbound. */
static int walk_target(scope *s, const infer_jnode *n, bool store)
{
    if (n->kind == N_NAME)
        return mention(s, n->name, store);
    if (n->kind == N_NSREF)
        return mention(s, n->name, false);
    for (uint32_t i = 0; i < n->n; i++)
        if (walk_target(s, n->list[i], store))
            return -1;
    return 0;
}

/* What a statement mentions in the scope that it stands in. */
static int walk(scope *s, infer_jnode *n)
{
    switch (n->kind) {
    case N_TEXT:
    case N_BREAK:
    case N_CONTINUE:
        return 0;
    case N_BLOCK:
        for (uint32_t i = 0; i < n->n; i++)
            if (walk(s, n->list[i]))
                return -1;
        return 0;
    case N_PRINT:
        return walk_expr(s, n->a);
    case N_IF:
        for (uint32_t i = 0; i < n->n; i++) {
            bool body = i % 2 == 1 || i + 1 == n->n;
            s->ifs += i > 0; /* later tests are read in a branch, too */
            if (body ? (s->ifs++, walk(s, n->list[i])) : walk_expr(s, n->list[i]))
                return -1;
            s->ifs -= (i > 0) + body;
        }
        return 0;
    case N_SET:
        return walk_expr(s, n->b) || walk_target(s, n->a, true) ? -1 : 0;
    case N_SET_BLOCK:
        if (walk_target(s, n->a, true))
            return -1;
        break;
    case N_MACRO:
        if (mention(s, n->name, true))
            return -1;
        break;
    case N_FOR:
        if (walk_expr(s, n->list[0]))
            return -1;
        break;
    case N_WITH:
        for (uint32_t i = 1; i < n->n; i += 2)
            if (walk_expr(s, n->list[i]))
                return -1;
        break;
    case N_SCOPE:
        return infer_jnodes_add(s->g->p, &s->g->blocks, n);
    default: /* call and filter blocks */
        if (walk_expr(s, n->a))
            return -1;
    }
    return infer_jnodes_add(s->g->p, &s->inner, n);
}

static int walk_scope(scoping *g, const infer_jnode *owner, infer_jnode *body);

/* Parameters of the scope that `owner` opens: bound from the start. */
static int walk_owner(scope *s, const infer_jnode *owner)
{
    if (!owner)
        return 0;
    if (owner->kind == N_FOR)
        return mention(s, J_NAME_LOOP, false) || walk_target(s, owner->a, false) ? -1 : 0;
    if (owner->kind == N_WITH) {
        for (uint32_t i = 0; i < owner->n; i += 2)
            if (walk_target(s, owner->list[i], false))
                return -1;
        return 0;
    }
    if (owner->kind == N_SET_BLOCK)
        return walk_expr(s, owner->c);
    if (owner->kind != N_MACRO && owner->kind != N_CALL_BLOCK)
        return 0;
    const infer_jsig *sig = owner->u.sig;
    for (uint32_t i = 0; i < sig->n; i++)
        if (mention(s, sig->name[i], false) || walk_expr(s, sig->def[i]))
            return -1;
    return mention(s, J_NAME_CALLER, false) || mention(s, J_NAME_KWARGS, false) || mention(s, J_NAME_VARARGS, false)
               ? -1
               : 0;
}

static int walk_inner(scoping *g, const infer_jnode *n)
{
    if (walk_scope(g, n, n->b))
        return -1;
    /* The else branch of a loop is a scope without the loop's names. */
    return n->kind == N_FOR && n->c ? walk_scope(g, NULL, n->c) : 0;
}

static int walk_scope(scoping *g, const infer_jnode *owner, infer_jnode *body)
{
    scope s = {.g = g, .number = ++g->scopes};
    if (walk_owner(&s, owner) || walk(&s, body))
        return -1;
    if (s.hidden.n) {
        uint32_t *ids = infer_jctx_array(g->c, s.hidden.n + 1, sizeof *ids);
        if (!ids)
            return -1;
        ids[0] = (uint32_t)s.hidden.n;
        for (size_t i = 0; i < s.hidden.n; i++)
            ids[i + 1] = (uint32_t)s.hidden.v[i].u.i;
        body->u.hidden = ids;
    }
    for (size_t i = 0; i < s.own.n; i++)
        g->outer[s.own.v[i].u.i]++;
    for (size_t i = 0; i < s.inner.n; i++)
        if (walk_inner(g, s.inner.v[i]))
            return -1;
    for (size_t i = 0; i < s.own.n; i++)
        g->outer[s.own.v[i].u.i]--;
    return 0;
}

int infer_jparse_scopes(infer_jparser *p, infer_jnode *body)
{
    scoping g = {.c = p->c, .p = p};
    g.outer = infer_jctx_array(p->c, p->n_names, 2 * sizeof *g.outer);
    if (!g.outer)
        return -1;
    g.seen = g.outer + p->n_names;
    memset(g.outer, 0, p->n_names * 2 * sizeof *g.outer);
    if (walk_scope(&g, NULL, body))
        return -1;
    for (size_t i = 0; i < g.blocks.n; i++) /* grows while blocks in blocks are found */
        if (walk_scope(&g, NULL, g.blocks.v[i]->b))
            return -1;
    return 0;
}
