/* Parser of statements, and the checks over a whole template: every call of a function or method that nothing can
 * provide is found here, not at a user's request. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "text/jinja_parse.h"
#include "text/jinja_table.h"

bool infer_jparse_is_name(const infer_jtoken *t, const char *name)
{
    return t->type == T_NAME && infer_jstr_is(t->val.u.s, name);
}

bool infer_jparse_skip(infer_jparser *p, infer_jtok type)
{
    bool is = infer_jparse_is(p, type);
    p->tok += is;
    return is;
}

bool infer_jparse_skip_name(infer_jparser *p, const char *name)
{
    bool is = infer_jparse_is_name(p->tok, name);
    p->tok += is;
    return is;
}

int infer_jparse_expect(infer_jparser *p, infer_jtok type)
{
    if (infer_jparse_skip(p, type))
        return 0;
    return infer_jparse_fail(p, "expected %s, got %s", infer_jtok_name(type), infer_jtok_name(p->tok->type));
}

int infer_jparse_expect_name(infer_jparser *p, const char *name)
{
    if (infer_jparse_skip_name(p, name))
        return 0;
    return infer_jparse_fail(p, "expected '%s', got %s", name, infer_jtok_name(p->tok->type));
}

int infer_jparse_any_name(infer_jparser *p, infer_jval *out)
{
    *out = p->tok->val;
    return infer_jparse_expect(p, T_NAME);
}

infer_jnode *infer_jnode_new(infer_jparser *p, infer_jnode_kind kind, uint32_t line)
{
    infer_jnode *n = infer_jctx_alloc(p->c, sizeof *n);
    if (n)
        *n = (infer_jnode){.kind = kind, .line = line};
    return n;
}

int infer_jnode_close(infer_jparser *p, infer_jnode *n)
{
    unsigned depth = n->depth; /* of parts that are no children: defaults of parameters */
    const infer_jnode *kids[] = {n->a, n->b, n->c, n->args ? n->args->star : NULL, n->args ? n->args->star_star : NULL};
    for (size_t i = 0; i < sizeof kids / sizeof kids[0]; i++)
        if (kids[i] && kids[i]->depth > depth)
            depth = kids[i]->depth;
    for (size_t i = 0; i < n->n; i++)
        if (n->list[i] && n->list[i]->depth > depth)
            depth = n->list[i]->depth;
    for (size_t i = 0; n->args && i < n->args->n_pos; i++)
        if (n->args->pos[i]->depth > depth)
            depth = n->args->pos[i]->depth;
    for (size_t i = 0; n->args && i < n->args->n_kw; i++)
        if (n->args->kw[i]->depth > depth)
            depth = n->args->kw[i]->depth;
    if (depth >= J_MAX_TREE) {
        p->c->line = n->line;
        return infer_jctx_fail(p->c, INFER_E_TOO_LARGE, "syntax nested deeper than %d levels", J_MAX_TREE);
    }
    n->depth = (uint16_t)(depth + 1);
    return 0;
}

int infer_jnodes_add(infer_jparser *p, infer_jnodes *l, infer_jnode *n)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4;
        infer_jnode **v = infer_jctx_array(p->c, cap, sizeof *v);
        if (!v)
            return -1;
        if (l->n)
            memcpy(v, l->v, l->n * sizeof *v);
        l->v = v;
        l->cap = cap;
    }
    l->v[l->n++] = n;
    return 0;
}

static int no_memory(infer_jparser *p)
{
    return infer_jctx_fail(p->c, INFER_E_NO_MEMORY, "out of memory");
}

int infer_jparse_intern(infer_jparser *p, infer_jval text, uint32_t *id)
{
    infer_str key = infer_str_of(text.u.s->p, text.u.s->n);
    if (infer_strmap_get(&p->ids, key, id))
        return 0;
    if (p->n_names >= J_MAX_NAMES)
        return infer_jctx_fail(p->c, INFER_E_TOO_LARGE, "more than %d names in a template", J_MAX_NAMES);
    if (p->n_names == p->names_cap) {
        size_t cap = p->names_cap ? p->names_cap * 2 : 64;
        infer_jval *names = infer_jctx_array(p->c, cap, sizeof *names);
        uint8_t *flags = names ? infer_jctx_array(p->c, cap, 1) : NULL;
        if (!flags)
            return -1;
        if (p->n_names) {
            memcpy(names, p->names, p->n_names * sizeof *names);
            memcpy(flags, p->name_flags, p->n_names);
        }
        p->names = names;
        p->name_flags = flags;
        p->names_cap = cap;
    }
    if (infer_strmap_put(&p->ids, key, (uint32_t)p->n_names))
        return no_memory(p);
    *id = (uint32_t)p->n_names;
    p->names[p->n_names] = text;
    p->name_flags[p->n_names++] = 0;
    return 0;
}

int infer_jparse_note(infer_jparser *p, infer_jval text)
{
    if (p->strings.count >= J_MAX_NAMES)
        return 0; /* check_callees then takes any method for known */
    return infer_strmap_put(&p->strings, infer_str_of(text.u.s->p, text.u.s->n), 1) ? no_memory(p) : 0;
}

/* ---- Statements ---------------------------------------------------------------------------------------------- */

/* Statements up to one of the tags in `ends` (NULL-terminated), which stays the current token. The tag that opened
 * the body is still to be closed. */
static int parse_body(infer_jparser *p, const char *const *ends, infer_jnode **out);

static bool is_any(const infer_jparser *p, const char *const *names)
{
    for (; names && *names; names++)
        if (infer_jparse_is_name(p->tok, *names))
            return true;
    return false;
}

static int parse_statements(infer_jparser *p, const char *const *ends, infer_jnode **out)
{
    infer_jparse_skip(p, T_COLON);
    if (infer_jparse_expect(p, T_BLOCK_END))
        return -1;
    return parse_body(p, ends, out);
}

static int parse_if(infer_jparser *p, infer_jnode *n)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    infer_jnodes parts = {0};
    infer_jnode *v;
    do {
        if (infer_jparse_tuple(p, false, NULL, &v) || infer_jnodes_add(p, &parts, v) || parse_statements(p, ends, &v) ||
            infer_jnodes_add(p, &parts, v))
            return -1;
    } while (infer_jparse_skip_name(p, "elif"));
    if (infer_jparse_skip_name(p, "else") && (parse_statements(p, ends + 2, &v) || infer_jnodes_add(p, &parts, v)))
        return -1;
    n->list = parts.v;
    n->n = (uint32_t)parts.n;
    return infer_jparse_expect_name(p, "endif");
}

static int parse_for(infer_jparser *p, infer_jnode *n)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    if (!(n->list = infer_jctx_array(p->c, 2, sizeof *n->list)))
        return -1;
    n->list[1] = NULL;
    n->n = 2;
    p->loops++;
    if (infer_jparse_target(p, "in", false, &n->a) || infer_jparse_expect_name(p, "in") ||
        infer_jparse_tuple(p, false, "recursive", &n->list[0]))
        return -1;
    if (infer_jparse_skip_name(p, "if") && infer_jparse_expr(p, true, &n->list[1]))
        return -1;
    n->flag = infer_jparse_skip_name(p, "recursive");
    if (parse_statements(p, ends, &n->b))
        return -1;
    p->loops--;
    if (infer_jparse_skip_name(p, "else") && parse_statements(p, ends + 1, &n->c))
        return -1;
    return infer_jparse_expect_name(p, "endfor");
}

static int parse_set(infer_jparser *p, infer_jnode *n)
{
    static const char *const ends[] = {"endset", NULL};
    if (infer_jparse_target(p, NULL, true, &n->a))
        return -1;
    if (infer_jparse_skip(p, T_ASSIGN))
        return infer_jparse_tuple(p, true, NULL, &n->b);
    n->kind = N_SET_BLOCK;
    if (infer_jparse_filters(p, NULL, false, &n->c) || parse_statements(p, ends, &n->b))
        return -1;
    return infer_jparse_expect_name(p, "endset");
}

static int parse_signature(infer_jparser *p, infer_jsig *sig)
{
    infer_jnodes defs = {0};
    infer_jlist names = {0};
    size_t cap = 0;
    bool optional = false;
    if (infer_jparse_expect(p, T_LPAREN))
        return -1;
    while (!infer_jparse_is(p, T_RPAREN)) {
        infer_jnode *def = NULL;
        if (names.n && infer_jparse_expect(p, T_COMMA))
            return -1;
        infer_jval name = p->tok->val;
        if (infer_jparse_expect(p, T_NAME) || infer_jlist_append(p->c, &names, &cap, name))
            return -1;
        if (names.n > J_MAX_KEYWORDS)
            return infer_jparse_fail(p, "more than %d parameters", J_MAX_KEYWORDS);
        if (infer_jparse_skip(p, T_ASSIGN)) {
            optional = true;
            if (infer_jparse_expr(p, true, &def))
                return -1;
        } else if (optional) {
            return infer_jparse_fail(p, "non-default argument follows default argument");
        }
        if (infer_jnodes_add(p, &defs, def))
            return -1;
    }
    p->tok++;
    sig->n = (uint32_t)names.n;
    sig->text = names.v;
    sig->def = defs.v;
    if (!(sig->name = infer_jctx_array(p->c, names.n, sizeof *sig->name)))
        return -1;
    for (uint32_t i = 0; i < sig->n; i++) {
        if (infer_jparse_intern(p, names.v[i], &sig->name[i]))
            return -1;
        for (uint32_t k = 0; k < i; k++)
            if (sig->name[k] == sig->name[i])
                return infer_jparse_fail(p, "parameter '%.*s' repeated", (int)names.v[i].u.s->n, names.v[i].u.s->p);
        p->name_flags[sig->name[i]] |= NAME_STORED;
        sig->own_caller |= sig->name[i] == J_NAME_CALLER;
    }
    return 0;
}

/* The body of a macro or of a call block, where loops outside cannot be left and special names may be read. */
static int parse_callable(infer_jparser *p, infer_jnode *n, infer_jsig *sig, const char *const *ends)
{
    uint32_t loops = p->loops, uses = p->uses;
    p->loops = p->uses = 0;
    if (parse_statements(p, ends, &n->b))
        return -1;
    sig->uses = p->uses;
    for (uint32_t i = 0; i < sig->n; i++) /* a parameter of that name is an ordinary one */
        sig->uses &= ~(sig->name[i] == J_NAME_KWARGS    ? J_USES_KWARGS
                       : sig->name[i] == J_NAME_VARARGS ? J_USES_VARARGS
                                                        : 0u);
    if (sig->own_caller && (sig->uses & J_USES_CALLER))
        for (uint32_t i = 0; i < sig->n; i++)
            if (sig->name[i] == J_NAME_CALLER && !sig->def[i])
                return infer_jparse_fail(p, "the special parameter 'caller' needs a default");
    for (uint32_t i = 0; i < sig->n; i++)
        if (sig->def[i] && sig->def[i]->depth > n->depth)
            n->depth = sig->def[i]->depth;
    p->loops = loops;
    p->uses |= uses;
    n->u.sig = sig;
    return infer_jparse_expect_name(p, ends[0]);
}

static infer_jsig *new_sig(infer_jparser *p)
{
    infer_jsig *sig = infer_jctx_alloc(p->c, sizeof *sig);
    if (sig)
        *sig = (infer_jsig){0};
    return sig;
}

static int parse_macro(infer_jparser *p, infer_jnode *n)
{
    static const char *const ends[] = {"endmacro", NULL};
    infer_jsig *sig = new_sig(p);
    if (!sig || infer_jparse_any_name(p, &n->val) || infer_jparse_intern(p, n->val, &n->name))
        return -1;
    p->name_flags[n->name] |= NAME_STORED;
    return parse_signature(p, sig) ? -1 : parse_callable(p, n, sig, ends);
}

static int parse_call_block(infer_jparser *p, infer_jnode *n)
{
    static const char *const ends[] = {"endcall", NULL};
    infer_jsig *sig = new_sig(p);
    if (!sig || (infer_jparse_is(p, T_LPAREN) && parse_signature(p, sig)) || infer_jparse_expr(p, true, &n->a))
        return -1;
    if (n->a->kind != N_CALL)
        return infer_jparse_fail(p, "expected a call behind 'call'");
    return parse_callable(p, n, sig, ends);
}

/* What transformers adds: the text of a generated turn. It renders as it stands, in a call block's scope. */
static int parse_generation(infer_jparser *p, infer_jnode *n)
{
    static const char *const ends[] = {"endgeneration", NULL};
    infer_jsig *sig = new_sig(p);
    return sig ? parse_callable(p, n, sig, ends) : -1;
}

static int parse_filter_block(infer_jparser *p, infer_jnode *n)
{
    static const char *const ends[] = {"endfilter", NULL};
    if (infer_jparse_filters(p, NULL, true, &n->a) || parse_statements(p, ends, &n->b))
        return -1;
    return infer_jparse_expect_name(p, ends[0]);
}

static int parse_with(infer_jparser *p, infer_jnode *n)
{
    static const char *const ends[] = {"endwith", NULL};
    infer_jnodes parts = {0};
    infer_jnode *v;
    while (!infer_jparse_is(p, T_BLOCK_END)) {
        if (parts.n && infer_jparse_expect(p, T_COMMA))
            return -1;
        if (infer_jparse_target(p, NULL, false, &v) || infer_jnodes_add(p, &parts, v) ||
            infer_jparse_expect(p, T_ASSIGN) || infer_jparse_expr(p, true, &v) || infer_jnodes_add(p, &parts, v))
            return -1;
    }
    n->list = parts.v;
    n->n = (uint32_t)parts.n;
    return parse_statements(p, ends, &n->b) ? -1 : infer_jparse_expect_name(p, ends[0]);
}

static int parse_block_tag(infer_jparser *p, infer_jnode *n)
{
    static const char *const ends[] = {"endblock", NULL};
    infer_jval name;
    uint32_t loops = p->loops;
    if (infer_jparse_any_name(p, &name))
        return -1;
    n->flag = infer_jparse_skip_name(p, "scoped");
    if (infer_jparse_is_name(p->tok, "required"))
        return infer_jparse_unsupported(p, n->line, "unsupported tag 'block ... required'");
    p->loops = 0;
    if (parse_statements(p, ends, &n->b) || infer_jparse_expect_name(p, ends[0]))
        return -1;
    p->loops = loops;
    if (infer_jparse_is(p, T_NAME) && p->tok->val.u.s->n == name.u.s->n &&
        memcmp(p->tok->val.u.s->p, name.u.s->p, name.u.s->n) == 0)
        p->tok++;
    return 0;
}

static int parse_print(infer_jparser *p, infer_jnode *n)
{
    infer_jnodes items = {0};
    infer_jnode *v;
    while (!infer_jparse_is(p, T_BLOCK_END)) {
        if (items.n && infer_jparse_expect(p, T_COMMA))
            return -1;
        infer_jnode *one = infer_jnode_new(p, N_PRINT, p->tok->line);
        if (!one || infer_jparse_expr(p, true, &v))
            return -1;
        one->a = v;
        if (infer_jnode_close(p, one) || infer_jnodes_add(p, &items, one))
            return -1;
    }
    n->list = items.v;
    n->n = (uint32_t)items.n;
    return 0;
}

static int parse_loop_control(infer_jparser *p, infer_jnode *n)
{
    if (!p->loops)
        return infer_jparse_fail(p, "'%s' outside a loop", n->kind == N_BREAK ? "break" : "continue");
    return 0;
}

static const struct {
    const char *name;
    infer_jnode_kind kind;
    int (*parse)(infer_jparser *p, infer_jnode *n); /* NULL: known and not offered */
} tags[] = {
    {"if", N_IF, parse_if},
    {"for", N_FOR, parse_for},
    {"set", N_SET, parse_set},
    {"macro", N_MACRO, parse_macro},
    {"call", N_CALL_BLOCK, parse_call_block},
    {"generation", N_CALL_BLOCK, parse_generation},
    {"filter", N_FILTER_BLOCK, parse_filter_block},
    {"with", N_WITH, parse_with},
    {"block", N_SCOPE, parse_block_tag},
    {"print", N_BLOCK, parse_print},
    {"break", N_BREAK, parse_loop_control},
    {"continue", N_CONTINUE, parse_loop_control},
    {"include", N_TEXT, NULL},
    {"import", N_TEXT, NULL},
    {"from", N_TEXT, NULL},
    {"extends", N_TEXT, NULL},
    {"autoescape", N_TEXT, NULL},
    {"trans", N_TEXT, NULL},
    {"do", N_TEXT, NULL},
    {"debug", N_TEXT, NULL},
};

static int parse_tag(infer_jparser *p, infer_jnode **out)
{
    static const char *const inner[] = {"elif", "else", NULL};
    if (!infer_jparse_is(p, T_NAME))
        return infer_jparse_fail(p, "expected a tag name, got %s", infer_jtok_name(p->tok->type));
    const infer_jstr *name = p->tok->val.u.s;
    for (size_t i = 0; i < sizeof tags / sizeof tags[0]; i++) {
        if (!infer_jstr_is(name, tags[i].name))
            continue;
        if (!tags[i].parse)
            return infer_jparse_unsupported(p, p->tok->line, "unsupported tag '%s'", tags[i].name);
        infer_jnode *n = infer_jnode_new(p, tags[i].kind, p->tok->line);
        p->tok++;
        if (!n || infer_jctx_enter(p->c) || tags[i].parse(p, n) || infer_jnode_close(p, n))
            return -1;
        infer_jctx_leave(p->c);
        *out = n;
        return 0;
    }
    if (is_any(p, inner) || (name->n > 3 && memcmp(name->p, "end", 3) == 0))
        return infer_jparse_fail(p, "unexpected tag '%.*s'", (int)name->n, name->p);
    return infer_jparse_unsupported(p, p->tok->line, "unknown tag '%.*s'", (int)name->n, name->p);
}

static int parse_body(infer_jparser *p, const char *const *ends, infer_jnode **out)
{
    infer_jnode *body = infer_jnode_new(p, N_BLOCK, p->tok->line), *n = NULL;
    infer_jnodes list = {0};
    if (!body)
        return -1;
    for (;;) {
        if (infer_jparse_is(p, T_EOF)) {
            if (ends)
                return infer_jparse_fail(p, "unexpected end of template, looking for '%s'", ends[0]);
            break;
        }
        if (infer_jparse_is(p, T_DATA)) {
            if (!(n = infer_jnode_new(p, N_TEXT, p->tok->line)))
                return -1;
            n->val = p->tok->val;
            p->tok++;
        } else if (infer_jparse_is(p, T_VAR_BEGIN)) {
            if (!(n = infer_jnode_new(p, N_PRINT, p->tok->line)))
                return -1;
            p->tok++;
            if (infer_jparse_tuple(p, true, NULL, &n->a) || infer_jparse_expect(p, T_VAR_END) ||
                infer_jnode_close(p, n))
                return -1;
        } else {
            p->tok++; /* the only other token between tags begins a block */
            if (is_any(p, ends))
                break;
            if (parse_tag(p, &n) || infer_jparse_expect(p, T_BLOCK_END))
                return -1;
        }
        if (infer_jnodes_add(p, &list, n))
            return -1;
    }
    body->list = list.v;
    body->n = (uint32_t)list.n;
    *out = body;
    return infer_jnode_close(p, body);
}

/* ---- The whole ----------------------------------------------------------------------------------------------- */

static int check_callees(infer_jparser *p)
{
    const infer_jcallee *worst = NULL;
    for (const infer_jcallee *k = p->callees; k; k = k->next) {
        const infer_jstr *s = k->text.u.s;
        uint32_t seen;
        bool known;
        if (k->name != UINT32_MAX)
            known = k->name < J_NAMES_FIXED || p->name_flags[k->name] || infer_jrow_func(s->p, s->n);
        else
            known = p->strings.count >= J_MAX_NAMES || infer_jrow_method(s->p, s->n, ~0u) ||
                    infer_strmap_get(&p->strings, infer_str_of(s->p, s->n), &seen);
        if (!known)
            worst = k; /* the list runs backwards: the last one found is the first in the text */
    }
    if (!worst)
        return 0;
    return infer_jparse_unsupported(p, worst->line, "unknown %s '%.*s'",
                                    worst->name == UINT32_MAX ? "method" : "function", (int)worst->text.u.s->n,
                                    worst->text.u.s->p);
}

int infer_jparse(infer_jctx *c, const char *src, size_t n, struct infer_template *t)
{
    static const char *const fixed[J_NAMES_FIXED] = {
        [J_NAME_LOOP] = "loop", [J_NAME_CALLER] = "caller", [J_NAME_KWARGS] = "kwargs", [J_NAME_VARARGS] = "varargs"};
    infer_jparser p = {.c = c};
    int rc = -1;
    infer_jnode *body;
    if (n > J_MAX_SOURCE) {
        infer_jctx_record(c, INFER_E_TOO_LARGE, "a template of more than %zu bytes", J_MAX_SOURCE);
        goto out;
    }
    for (uint32_t i = 0; i < J_NAMES_FIXED; i++) {
        infer_jval text;
        uint32_t id;
        if (infer_jstr_borrow(c, fixed[i], strlen(fixed[i]), SIZE_MAX, &text) || infer_jparse_intern(&p, text, &id))
            goto out;
    }
    if (infer_jlex(c, src, n, &p.tok) || parse_body(&p, NULL, &body) || check_callees(&p) ||
        infer_jparse_scopes(&p, body))
        goto out;
    t->body = body;
    t->names = p.names;
    t->n_names = (uint32_t)p.n_names;
    rc = 0;
out:
    infer_strmap_free(&p.ids);
    infer_strmap_free(&p.strings);
    return rc;
}
