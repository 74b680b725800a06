/* Parser of expressions. Grammar and precedence are Jinja2's: a call may follow a filter or a test, `not` binds less
 * than comparisons, unary minus less than a filter, and a name may be any word where a value is expected.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "text/jinja_parse.h"
#include "text/jinja_table.h"

/* ---- Calls and filters --------------------------------------------------------------------------------------- */

static int parse_args(infer_jparser *p, infer_jcall_args **out)
{
    infer_jctx *c = p->c;
    infer_jcall_args *a = infer_jctx_alloc(c, sizeof *a);
    if (!a)
        return -1;
    *a = (infer_jcall_args){0};
    infer_jnodes pos = {0}, kw = {0};
    infer_jlist names = {0};
    size_t cap = 0;
    bool comma = false;
    if (infer_jparse_expect(p, T_LPAREN))
        return -1;
    while (!infer_jparse_is(p, T_RPAREN)) {
        if (comma && infer_jparse_expect(p, T_COMMA))
            return -1;
        if (comma && infer_jparse_is(p, T_RPAREN))
            break;
        infer_jnode *v;
        bool ok;
        if (infer_jparse_skip(p, T_MUL)) {
            ok = !a->star && !a->star_star;
            if (infer_jparse_expr(p, true, &a->star))
                return -1;
        } else if (infer_jparse_skip(p, T_POW)) {
            ok = !a->star_star;
            if (infer_jparse_expr(p, true, &a->star_star))
                return -1;
        } else if (infer_jparse_is(p, T_NAME) && p->tok[1].type == T_ASSIGN) {
            infer_jval name = p->tok->val;
            ok = !a->star_star;
            if (names.n == J_MAX_KEYWORDS)
                return infer_jparse_fail(p, "more than %d keyword arguments", J_MAX_KEYWORDS);
            for (size_t i = 0; i < names.n; i++)
                if (names.v[i].u.s->n == name.u.s->n && memcmp(names.v[i].u.s->p, name.u.s->p, name.u.s->n) == 0)
                    return infer_jparse_fail(p, "keyword argument '%.*s' repeated", (int)name.u.s->n, name.u.s->p);
            p->tok += 2;
            if (infer_jparse_note(p, name) || infer_jlist_append(c, &names, &cap, name) ||
                infer_jparse_expr(p, true, &v) || infer_jnodes_add(p, &kw, v))
                return -1;
        } else {
            ok = !a->star && !a->star_star && !kw.n;
            if (infer_jparse_expr(p, true, &v) || infer_jnodes_add(p, &pos, v))
                return -1;
        }
        if (!ok)
            return infer_jparse_fail(p, "invalid syntax for function call expression");
        comma = true;
    }
    *a = (infer_jcall_args){.pos = pos.v,
                            .n_pos = (uint32_t)pos.n,
                            .kw = kw.v,
                            .kw_name = names.v,
                            .n_kw = (uint32_t)kw.n,
                            .star = a->star,
                            .star_star = a->star_star};
    *out = a;
    return infer_jparse_expect(p, T_RPAREN);
}

/* Notes a call for the check at the end: a plain name or a method that nothing can provide is an error. */
static int note_call(infer_jparser *p, const infer_jnode *fn)
{
    if (fn->kind != N_NAME && fn->kind != N_GETATTR)
        return 0;
    infer_jcallee *k = infer_jctx_alloc(p->c, sizeof *k);
    if (!k)
        return -1;
    *k = (infer_jcallee){
        .next = p->callees, .line = fn->line, .name = fn->kind == N_NAME ? fn->name : UINT32_MAX, .text = fn->val};
    p->callees = k;
    return 0;
}

static int parse_call(infer_jparser *p, infer_jnode *fn, infer_jnode **out)
{
    infer_jnode *n = infer_jnode_new(p, N_CALL, p->tok->line);
    infer_jcall_args *args;
    if (!n || note_call(p, fn) || parse_args(p, &args))
        return -1;
    n->a = fn;
    n->args = args;
    *out = n;
    return infer_jnode_close(p, n);
}

/* map, select and their kin name another filter or test in an argument: known where that is written out. */
static int check_inner(infer_jparser *p, const infer_jnode *n)
{
    static const struct {
        const char *filter;
        uint32_t at;
        bool test;
    } inner[] = {
        {"map", 0, false}, {"select", 0, true}, {"reject", 0, true}, {"selectattr", 1, true}, {"rejectattr", 1, true}};
    for (size_t i = 0; i < sizeof inner / sizeof inner[0]; i++) {
        if (strcmp(n->u.row->name, inner[i].filter) != 0 || !n->args || n->args->n_pos <= inner[i].at)
            continue;
        const infer_jnode *arg = n->args->pos[inner[i].at];
        if (arg->kind != N_CONST || arg->val.kind != J_STR)
            continue;
        const infer_jstr *s = arg->val.u.s;
        const infer_jrow *row = inner[i].test ? infer_jrow_test(s->p, s->n) : infer_jrow_filter(s->p, s->n);
        if (!row || !row->fn)
            return infer_jparse_unsupported(p, n->line, "%s %s '%.*s'", row ? "unsupported" : "unknown",
                                            inner[i].test ? "test" : "filter", (int)s->n, s->p);
    }
    return 0;
}

/* The row that a filter or test name stands for. */
static int find_row(infer_jparser *p, bool test, infer_jval name, uint32_t line, const infer_jrow **out)
{
    const infer_jstr *s = name.u.s;
    *out = test ? infer_jrow_test(s->p, s->n) : infer_jrow_filter(s->p, s->n);
    if (*out && (*out)->fn)
        return 0;
    return infer_jparse_unsupported(p, line, "%s %s '%.*s'", *out ? "unsupported" : "unknown", test ? "test" : "filter",
                                    (int)s->n, s->p);
}

int infer_jparse_filters(infer_jparser *p, infer_jnode *a, bool inline_first, infer_jnode **out)
{
    while (inline_first || infer_jparse_skip(p, T_PIPE)) {
        infer_jnode *n = infer_jnode_new(p, N_FILTER, p->tok->line);
        infer_jcall_args *args = NULL;
        infer_jval name;
        if (!n || infer_jparse_any_name(p, &name) || find_row(p, false, name, n->line, &n->u.row))
            return -1;
        if (infer_jparse_is(p, T_LPAREN) && parse_args(p, &args))
            return -1;
        n->a = a;
        n->args = args;
        if (check_inner(p, n) || infer_jnode_close(p, n))
            return -1;
        a = n;
        inline_first = false;
    }
    *out = a;
    return 0;
}

/* ---- Postfix ------------------------------------------------------------------------------------------------- */

/* One subscript: an expression, or a slice as a node without its object. */
static int parse_subscript_one(infer_jparser *p, infer_jnode **out)
{
    infer_jnode *part[3] = {0}, *n;
    if (!infer_jparse_is(p, T_COLON)) {
        if (infer_jparse_expr(p, true, &part[0]))
            return -1;
        if (!infer_jparse_is(p, T_COLON)) {
            *out = part[0];
            return 0;
        }
    }
    for (int i = 1; i < 3 && infer_jparse_skip(p, T_COLON); i++)
        if (!infer_jparse_is(p, T_COLON) && !infer_jparse_is(p, T_RBRACKET) && !infer_jparse_is(p, T_COMMA) &&
            infer_jparse_expr(p, true, &part[i]))
            return -1;
    n = infer_jnode_new(p, N_SLICE, p->tok->line);
    if (!n || !(n->list = infer_jctx_array(p->c, 3, sizeof *n->list)))
        return -1;
    memcpy(n->list, part, sizeof part);
    n->n = 3;
    *out = n;
    return 0;
}

static int parse_brackets(infer_jparser *p, infer_jnode *obj, infer_jnode **out)
{
    infer_jnodes args = {0};
    uint32_t line = p->tok->line;
    p->tok++;
    while (!infer_jparse_is(p, T_RBRACKET)) {
        infer_jnode *v;
        if (args.n && infer_jparse_expect(p, T_COMMA))
            return -1;
        if (parse_subscript_one(p, &v) || infer_jnodes_add(p, &args, v))
            return -1;
        if (v->kind == N_SLICE && !v->a && (args.n > 1 || !infer_jparse_is(p, T_RBRACKET)))
            return infer_jparse_fail(p, "a slice among several subscripts");
    }
    p->tok++;
    if (args.n == 1 && args.v[0]->kind == N_SLICE && !args.v[0]->a) {
        args.v[0]->a = obj;
        *out = args.v[0];
        return infer_jnode_close(p, *out);
    }
    infer_jnode *n = infer_jnode_new(p, N_GETITEM, line), *tuple = NULL;
    if (!n)
        return -1;
    if (args.n != 1) {
        if (!(tuple = infer_jnode_new(p, N_TUPLE, line)))
            return -1;
        tuple->list = args.v;
        tuple->n = (uint32_t)args.n;
        if (infer_jnode_close(p, tuple))
            return -1;
    }
    n->a = obj;
    n->b = tuple ? tuple : args.v[0];
    *out = n;
    return infer_jnode_close(p, n);
}

static int parse_dot(infer_jparser *p, infer_jnode *obj, infer_jnode **out)
{
    infer_jnode *n = infer_jnode_new(p, N_GETATTR, p->tok->line);
    p->tok++;
    if (!n)
        return -1;
    n->a = obj;
    if (infer_jparse_is(p, T_INT)) {
        n->kind = N_GETITEM;
        if (!(n->b = infer_jnode_new(p, N_CONST, p->tok->line)))
            return -1;
        n->b->val = p->tok->val;
    } else if (infer_jparse_is(p, T_NAME)) {
        n->val = p->tok->val;
        n->flag = infer_jrow_method(n->val.u.s->p, n->val.u.s->n, ~0u) != NULL;
    } else {
        return infer_jparse_fail(p, "expected name or number behind '.'");
    }
    p->tok++;
    *out = n;
    return infer_jnode_close(p, n);
}

static int parse_postfix(infer_jparser *p, infer_jnode *a, infer_jnode **out)
{
    for (;;) {
        int rc;
        if (infer_jparse_is(p, T_DOT))
            rc = parse_dot(p, a, &a);
        else if (infer_jparse_is(p, T_LBRACKET))
            rc = parse_brackets(p, a, &a);
        else if (infer_jparse_is(p, T_LPAREN))
            rc = parse_call(p, a, &a);
        else
            break;
        if (rc)
            return -1;
    }
    *out = a;
    return 0;
}

/* ---- Primary ------------------------------------------------------------------------------------------------- */

static int parse_list(infer_jparser *p, infer_jnode **out)
{
    infer_jnode *n = infer_jnode_new(p, N_LIST, p->tok->line), *v;
    infer_jnodes items = {0};
    if (!n)
        return -1;
    p->tok++;
    while (!infer_jparse_is(p, T_RBRACKET)) {
        if (items.n && infer_jparse_expect(p, T_COMMA))
            return -1;
        if (items.n && infer_jparse_is(p, T_RBRACKET))
            break;
        if (infer_jparse_expr(p, true, &v) || infer_jnodes_add(p, &items, v))
            return -1;
    }
    p->tok++;
    n->list = items.v;
    n->n = (uint32_t)items.n;
    *out = n;
    return infer_jnode_close(p, n);
}

static int parse_dict(infer_jparser *p, infer_jnode **out)
{
    infer_jnode *n = infer_jnode_new(p, N_DICT, p->tok->line), *v;
    infer_jnodes items = {0};
    if (!n)
        return -1;
    p->tok++;
    while (!infer_jparse_is(p, T_RBRACE)) {
        if (items.n && infer_jparse_expect(p, T_COMMA))
            return -1;
        if (items.n && infer_jparse_is(p, T_RBRACE))
            break;
        if (infer_jparse_expr(p, true, &v) || infer_jnodes_add(p, &items, v) || infer_jparse_expect(p, T_COLON) ||
            infer_jparse_expr(p, true, &v) || infer_jnodes_add(p, &items, v))
            return -1;
    }
    p->tok++;
    n->list = items.v;
    n->n = (uint32_t)items.n;
    *out = n;
    return infer_jnode_close(p, n);
}

/* "a" "b" is one string. */
static int parse_string(infer_jparser *p, infer_jval *out)
{
    *out = p->tok->val;
    size_t mark = infer_jctx_begin(p->c);
    if (p->tok[1].type != T_STRING) {
        p->tok++;
        return infer_jparse_note(p, *out);
    }
    for (; infer_jparse_is(p, T_STRING); p->tok++)
        if (infer_jval_str_to_tmp(p->c, p->tok->val))
            return -1;
    return infer_jctx_end(p->c, mark, out) || infer_jparse_note(p, *out) ? -1 : 0;
}

static bool const_name(const infer_jtoken *t, infer_jval *out)
{
    if (infer_jparse_is_name(t, "true") || infer_jparse_is_name(t, "True"))
        *out = infer_jval_bool(true);
    else if (infer_jparse_is_name(t, "false") || infer_jparse_is_name(t, "False"))
        *out = infer_jval_bool(false);
    else if (infer_jparse_is_name(t, "none") || infer_jparse_is_name(t, "None"))
        *out = infer_jval_none();
    else
        return false;
    return true;
}

static int parse_name(infer_jparser *p, infer_jnode *n)
{
    static const uint32_t uses[J_NAMES_FIXED] = {
        [J_NAME_CALLER] = J_USES_CALLER, [J_NAME_KWARGS] = J_USES_KWARGS, [J_NAME_VARARGS] = J_USES_VARARGS};
    n->val = p->tok->val;
    if (infer_jparse_intern(p, n->val, &n->name))
        return -1;
    if (n->name < J_NAMES_FIXED)
        p->uses |= uses[n->name];
    p->tok++;
    return 0;
}

static int parse_parens(infer_jparser *p, infer_jnode **out)
{
    uint32_t line = p->tok->line;
    p->tok++;
    if (infer_jparse_skip(p, T_RPAREN)) {
        *out = infer_jnode_new(p, N_TUPLE, line);
        return *out ? 0 : -1;
    }
    return infer_jparse_tuple(p, true, NULL, out) || infer_jparse_expect(p, T_RPAREN) ? -1 : 0;
}

static int parse_primary(infer_jparser *p, infer_jnode **out)
{
    infer_jnode *n;
    switch (p->tok->type) {
    case T_LPAREN:
        return parse_parens(p, out);
    case T_LBRACKET:
        return parse_list(p, out);
    case T_LBRACE:
        return parse_dict(p, out);
    case T_NAME:
    case T_STRING:
    case T_INT:
    case T_FLOAT:
        break;
    default:
        return infer_jparse_fail(p, "unexpected %s", infer_jtok_name(p->tok->type));
    }
    if (!(n = infer_jnode_new(p, N_CONST, p->tok->line)))
        return -1;
    *out = n;
    if (infer_jparse_is(p, T_STRING))
        return parse_string(p, &n->val);
    if (infer_jparse_is(p, T_NAME) && !const_name(p->tok, &n->val)) {
        n->kind = N_NAME;
        return parse_name(p, n);
    }
    if (!infer_jparse_is(p, T_NAME))
        n->val = p->tok->val;
    p->tok++;
    return 0;
}

/* ---- Tests --------------------------------------------------------------------------------------------------- */

/* Whether a value written without parentheses follows a test's name. */
static bool starts_test_argument(const infer_jparser *p)
{
    switch (p->tok->type) {
    case T_STRING:
    case T_INT:
    case T_FLOAT:
    case T_LPAREN:
    case T_LBRACKET:
    case T_LBRACE:
        return true;
    case T_NAME:
        return !infer_jparse_is_name(p->tok, "else") && !infer_jparse_is_name(p->tok, "or") &&
               !infer_jparse_is_name(p->tok, "and");
    default:
        return false;
    }
}

static int parse_test(infer_jparser *p, infer_jnode *a, infer_jnode **out)
{
    infer_jnode *n = infer_jnode_new(p, N_TEST, p->tok->line);
    infer_jcall_args *args = NULL;
    infer_jval name;
    p->tok++;
    if (!n)
        return -1;
    n->flag = infer_jparse_skip_name(p, "not");
    n->a = a;
    if (infer_jparse_any_name(p, &name) || find_row(p, true, name, n->line, &n->u.row))
        return -1;
    if (a->kind == N_NAME && (infer_jstr_is(name.u.s, "defined") || infer_jstr_is(name.u.s, "undefined")))
        p->name_flags[a->name] |= NAME_GUARDED;
    if (infer_jparse_is(p, T_LPAREN)) {
        if (parse_args(p, &args))
            return -1;
    } else if (starts_test_argument(p)) {
        infer_jnode *arg;
        infer_jnodes pos = {0};
        if (infer_jparse_is_name(p->tok, "is"))
            return infer_jparse_fail(p, "tests cannot be chained with is");
        if (parse_primary(p, &arg) || parse_postfix(p, arg, &arg) || infer_jnodes_add(p, &pos, arg))
            return -1;
        if (!(args = infer_jctx_alloc(p->c, sizeof *args)))
            return -1;
        *args = (infer_jcall_args){.pos = pos.v, .n_pos = 1};
    }
    n->args = args;
    *out = n;
    return infer_jnode_close(p, n);
}

/* ---- Operators ----------------------------------------------------------------------------------------------- */

/* Precedence levels, loosest first. */
enum { L_OR = 1, L_AND, L_NOT, L_COMPARE, L_SUM, L_CONCAT, L_PRODUCT, L_POWER, L_UNARY };

static const struct {
    infer_jtok tok;
    uint8_t level, op;
} binary_ops[] = {
    {T_EQ, L_COMPARE, J_EQ},   {T_NE, L_COMPARE, J_NE},
    {T_LT, L_COMPARE, J_LT},   {T_LE, L_COMPARE, J_LE},
    {T_GT, L_COMPARE, J_GT},   {T_GE, L_COMPARE, J_GE},
    {T_ADD, L_SUM, J_ADD},     {T_SUB, L_SUM, J_SUB},
    {T_TILDE, L_CONCAT, 0},    {T_MUL, L_PRODUCT, J_MUL},
    {T_DIV, L_PRODUCT, J_DIV}, {T_MOD, L_PRODUCT, J_MOD},
    {T_POW, L_POWER, J_POW},   {T_FLOORDIV, L_PRODUCT, J_FLOORDIV},
};

/* Level of the binary operator at the current token, 0 if it is none; *tokens is how many it takes. */
static int operator_at(const infer_jparser *p, uint8_t *op, int *tokens)
{
    *tokens = 1;
    *op = 0;
    for (size_t i = 0; i < sizeof binary_ops / sizeof binary_ops[0]; i++)
        if (p->tok->type == binary_ops[i].tok) {
            *op = binary_ops[i].op;
            return binary_ops[i].level;
        }
    if (infer_jparse_is_name(p->tok, "or"))
        return L_OR;
    if (infer_jparse_is_name(p->tok, "and"))
        return L_AND;
    *op = J_IN;
    if (infer_jparse_is_name(p->tok, "in"))
        return L_COMPARE;
    if (infer_jparse_is_name(p->tok, "not") && infer_jparse_is_name(p->tok + 1, "in")) {
        *tokens = 2;
        *op = J_NOT_IN;
        return L_COMPARE;
    }
    return 0;
}

static int parse_unary(infer_jparser *p, bool filters, infer_jnode **out)
{
    infer_jnode *n;
    uint32_t line = p->tok->line;
    if (infer_jparse_is(p, T_SUB) || infer_jparse_is(p, T_ADD)) {
        n = infer_jnode_new(p, infer_jparse_is(p, T_SUB) ? N_NEG : N_POS, line);
        p->tok++;
        if (!n || infer_jctx_enter(p->c) || parse_unary(p, false, &n->a) || infer_jnode_close(p, n))
            return -1;
        infer_jctx_leave(p->c);
    } else if (parse_primary(p, &n)) {
        return -1;
    }
    if (parse_postfix(p, n, &n))
        return -1;
    while (filters) {
        int rc;
        if (infer_jparse_is(p, T_PIPE))
            rc = infer_jparse_filters(p, n, false, &n);
        else if (infer_jparse_is_name(p->tok, "is"))
            rc = parse_test(p, n, &n);
        else if (infer_jparse_is(p, T_LPAREN))
            rc = parse_call(p, n, &n);
        else
            break;
        if (rc)
            return -1;
    }
    *out = n;
    return 0;
}

static int parse_level(infer_jparser *p, int level, infer_jnode **out);

/* A chain of comparisons, or of ~, is one node with all its operands. */
static int parse_chain(infer_jparser *p, int level, infer_jnode *first, infer_jnode **out)
{
    infer_jnode *n = infer_jnode_new(p, level == L_CONCAT ? N_CONCAT : N_COMPARE, p->tok->line), *v;
    infer_jnodes items = {0};
    infer_buf *b = &p->c->tmp;
    size_t mark = infer_jctx_begin(p->c);
    infer_jval ops;
    uint8_t op;
    int tokens;
    if (!n || infer_jnodes_add(p, &items, first))
        return -1;
    while (operator_at(p, &op, &tokens) == level) {
        p->tok += tokens;
        infer_buf_putc(b, (char)op);
        if (parse_level(p, level + 1, &v) || infer_jnodes_add(p, &items, v))
            return -1;
    }
    if (infer_jctx_end(p->c, mark, &ops))
        return -1;
    n->list = items.v;
    n->n = (uint32_t)items.n;
    n->u.ops = (const uint8_t *)ops.u.s->p;
    *out = n;
    return infer_jnode_close(p, n);
}

/* Everything that binds at `level` or tighter. */
static int parse_level(infer_jparser *p, int level, infer_jnode **out)
{
    infer_jnode *left, *n;
    uint8_t op;
    int tokens, found;
    if (level <= L_NOT && infer_jparse_is_name(p->tok, "not")) {
        if (!(left = infer_jnode_new(p, N_NOT, p->tok->line)))
            return -1;
        p->tok++;
        if (infer_jctx_enter(p->c) || parse_level(p, L_NOT, &left->a) || infer_jnode_close(p, left))
            return -1;
        infer_jctx_leave(p->c);
    } else if (parse_unary(p, true, &left)) {
        return -1;
    }
    while ((found = operator_at(p, &op, &tokens)) >= level && found) {
        if (found == L_COMPARE || found == L_CONCAT) {
            if (parse_chain(p, found, left, &left))
                return -1;
            continue;
        }
        if (!(n = infer_jnode_new(p, found == L_OR ? N_OR : found == L_AND ? N_AND : N_BINARY, p->tok->line)))
            return -1;
        p->tok += tokens;
        n->op = op;
        n->a = left;
        if (parse_level(p, found + 1, &n->b) || infer_jnode_close(p, n))
            return -1;
        left = n;
    }
    *out = left;
    return 0;
}

int infer_jparse_expr(infer_jparser *p, bool cond, infer_jnode **out)
{
    infer_jnode *value, *n;
    if (infer_jctx_enter(p->c) || parse_level(p, L_OR, &value))
        return -1;
    while (cond && infer_jparse_is_name(p->tok, "if")) {
        if (!(n = infer_jnode_new(p, N_COND, p->tok->line)))
            return -1;
        p->tok++;
        n->b = value;
        if (parse_level(p, L_OR, &n->a))
            return -1;
        if (infer_jparse_skip_name(p, "else") && infer_jparse_expr(p, true, &n->c))
            return -1;
        if (infer_jnode_close(p, n))
            return -1;
        value = n;
    }
    infer_jctx_leave(p->c);
    *out = value;
    return 0;
}

int infer_jparse_tuple(infer_jparser *p, bool cond, const char *stop, infer_jnode **out)
{
    infer_jnodes items = {0};
    infer_jnode *v;
    uint32_t line = p->tok->line;
    bool tuple = false;
    for (;;) {
        if (infer_jparse_is(p, T_VAR_END) || infer_jparse_is(p, T_BLOCK_END) || infer_jparse_is(p, T_RPAREN) ||
            (stop && infer_jparse_is_name(p->tok, stop)))
            break;
        if (infer_jparse_expr(p, cond, &v) || infer_jnodes_add(p, &items, v))
            return -1;
        if (!infer_jparse_skip(p, T_COMMA))
            break;
        tuple = true;
    }
    if (!items.n)
        return infer_jparse_fail(p, "expected an expression, got %s", infer_jtok_name(p->tok->type));
    if (!tuple) {
        *out = items.v[0];
        return 0;
    }
    infer_jnode *n = infer_jnode_new(p, N_TUPLE, line);
    if (!n)
        return -1;
    n->list = items.v;
    n->n = (uint32_t)items.n;
    *out = n;
    return infer_jnode_close(p, n);
}

/* ---- Assignment targets ---------------------------------------------------------------------------------------- */

static int parse_one_target(infer_jparser *p, bool ns, infer_jnode **out)
{
    infer_jval word;
    infer_jnode *n;
    if (infer_jparse_skip(p, T_LPAREN)) {
        if (infer_jctx_enter(p->c) || infer_jparse_target(p, NULL, false, out))
            return -1;
        infer_jctx_leave(p->c);
        return infer_jparse_expect(p, T_RPAREN);
    }
    if (!infer_jparse_is(p, T_NAME) || const_name(p->tok, &word))
        return infer_jparse_fail(p, "cannot assign to %s", infer_jtok_name(p->tok->type));
    if (!(n = infer_jnode_new(p, N_NAME, p->tok->line)))
        return -1;
    n->val = p->tok->val;
    if (infer_jparse_intern(p, n->val, &n->name))
        return -1;
    p->tok++;
    *out = n;
    if (ns && infer_jparse_skip(p, T_DOT)) {
        n->kind = N_NSREF;
        return infer_jparse_any_name(p, &n->val) || infer_jparse_note(p, n->val) ? -1 : 0;
    }
    if (n->name == J_NAME_LOOP && p->loops)
        return infer_jparse_fail(p, "cannot assign to the special variable 'loop' in a loop");
    p->name_flags[n->name] |= NAME_STORED;
    return 0;
}

int infer_jparse_target(infer_jparser *p, const char *stop, bool ns, infer_jnode **out)
{
    infer_jnodes items = {0};
    infer_jnode *v;
    uint32_t line = p->tok->line;
    bool tuple = false;
    for (;;) {
        if (items.n && (infer_jparse_is(p, T_BLOCK_END) || infer_jparse_is(p, T_RPAREN) ||
                        (stop && infer_jparse_is_name(p->tok, stop))))
            break;
        if (parse_one_target(p, ns, &v) || infer_jnodes_add(p, &items, v))
            return -1;
        if (!infer_jparse_skip(p, T_COMMA))
            break;
        tuple = true;
    }
    if (!tuple) {
        *out = items.v[0];
        return 0;
    }
    infer_jnode *n = infer_jnode_new(p, N_TUPLE, line);
    if (!n)
        return -1;
    n->list = items.v;
    n->n = (uint32_t)items.n;
    *out = n;
    return infer_jnode_close(p, n);
}
