/* The parser's state, shared by its two files: statements (jinja_parse.c) and expressions (jinja_parse_expr.c).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TEXT_JINJA_PARSE_H
#define INFER_TEXT_JINJA_PARSE_H

#include "base/hash.h"
#include "text/jinja_ast.h"
#include "text/jinja_lex.h"

/* A call whose target may turn out not to exist once the whole template is read. */
typedef struct infer_jcallee {
    struct infer_jcallee *next;
    uint32_t line, name; /* name: id of a plain name; UINT32_MAX: a method */
    infer_jval text;
} infer_jcallee;

typedef struct infer_jparser {
    infer_jctx *c; /* its arena is the template's: nodes and tokens lie there */
    infer_jtoken *tok;
    infer_strmap ids;
    infer_jval *names;
    uint8_t *name_flags; /* NAME_* */
    size_t n_names, names_cap;
    infer_strmap strings; /* every name or text that could become an attribute */
    infer_jcallee *callees;
    uint32_t loops; /* loops around the current statement, within the innermost macro */
    uint32_t uses;  /* special names read in the innermost macro's body so far */
} infer_jparser;

#define NAME_STORED  1u /* some statement binds it */
#define NAME_GUARDED 2u /* the template asks whether it is defined */

/* Syntax errors at the current token (INFER_E_BAD_FILE), and what is not offered (INFER_E_UNSUPPORTED). */
#define infer_jparse_fail(p, ...)                                                                                      \
    ((p)->c->line = (p)->tok->line, infer_jctx_fail((p)->c, INFER_E_BAD_FILE, __VA_ARGS__))
#define infer_jparse_unsupported(p, at, ...)                                                                           \
    ((p)->c->line = (at), infer_jctx_fail((p)->c, INFER_E_UNSUPPORTED, __VA_ARGS__))

static inline bool infer_jparse_is(const infer_jparser *p, infer_jtok type)
{
    return p->tok->type == type;
}
/* Whether the token is this name. */
bool infer_jparse_is_name(const infer_jtoken *t, const char *name);
/* Consumes the token where it is the wanted one. */
bool infer_jparse_skip(infer_jparser *p, infer_jtok type);
bool infer_jparse_skip_name(infer_jparser *p, const char *name);
int infer_jparse_expect(infer_jparser *p, infer_jtok type);
int infer_jparse_expect_name(infer_jparser *p, const char *name);
int infer_jparse_any_name(infer_jparser *p, infer_jval *out);

/* A zeroed node at a line, NULL without memory. */
infer_jnode *infer_jnode_new(infer_jparser *p, infer_jnode_kind kind, uint32_t line);
/* Sets the node's depth from its children; fails where it passes the limit. Call when the node is complete. */
int infer_jnode_close(infer_jparser *p, infer_jnode *n);

/* A growing list of nodes. */
typedef struct infer_jnodes {
    infer_jnode **v;
    size_t n, cap;
} infer_jnodes;
/* Appends; -1 without memory. */
int infer_jnodes_add(infer_jparser *p, infer_jnodes *l, infer_jnode *n);

/* The id of a name. */
int infer_jparse_intern(infer_jparser *p, infer_jval text, uint32_t *id);
/* Notes that a text could name an attribute that holds something callable. */
int infer_jparse_note(infer_jparser *p, infer_jval text);

/* An expression; with a conditional at its top only where `cond`. */
int infer_jparse_expr(infer_jparser *p, bool cond, infer_jnode **out);
/* As an expression, or a tuple without parentheses; ends before the name `stop` (or NULL). */
int infer_jparse_tuple(infer_jparser *p, bool cond, const char *stop, infer_jnode **out);
/* What can stand left of "=": `stop` as above; attributes of namespaces where `ns`; one name only where `single`. */
int infer_jparse_target(infer_jparser *p, const char *stop, bool ns, infer_jnode **out);
/* | filter | filter … applied to `a` (NULL: to a block's text); `inline_first` starts without the bar. */
int infer_jparse_filters(infer_jparser *p, infer_jnode *a, bool inline_first, infer_jnode **out);

/* Fills in which names each scope hides from its start (jinja_scope.c). */
int infer_jparse_scopes(infer_jparser *p, infer_jnode *body);

#endif
