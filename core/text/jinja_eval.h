/* Evaluation: scopes, loops, macros. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TEXT_JINJA_EVAL_H
#define INFER_TEXT_JINJA_EVAL_H

#include "text/jinja_ast.h"
#include "text/jinja_ops.h"

/* Names bound at one level. A loop's scope is one for all its iterations, emptied before each. */
typedef struct infer_jscope {
    struct infer_jscope *parent; /* NULL: the root, where v is indexed by name id */
    uint32_t *name;
    infer_jval *v;
    uint32_t n, cap;
} infer_jscope;

/* The `loop` variable. */
typedef struct infer_jloop {
    infer_jiter it;
    infer_jval iterable;               /* what `length` asks; J_MISSING once it was counted */
    infer_jval after, current, before; /* J_MISSING: none */
    infer_jval changed;                /* what loop.changed saw last, J_MISSING: never called */
    int64_t index0;
    size_t length;
    bool has_length;
    uint32_t depth0;
    const infer_jnode *node; /* its N_FOR */
    infer_jscope *scope;     /* around the loop */
} infer_jloop;

typedef struct infer_jmacro {
    const infer_jnode *node; /* N_MACRO or N_CALL_BLOCK */
    infer_jscope *scope;     /* where it was defined */
} infer_jmacro;

/* How a statement ended. */
typedef enum infer_jflow { J_FLOW_ERROR = -1, J_FLOW_NEXT = 0, J_FLOW_BREAK, J_FLOW_CONTINUE } infer_jflow;

/* An empty scope inside `parent`, in the arena; NULL: failed. set binds a name here and nowhere else. As everywhere in
 * the engine: 0 good, -1 failed with the cause in c. */
infer_jscope *infer_jscope_new(infer_jctx *c, infer_jscope *parent);
int infer_jscope_set(infer_jctx *c, infer_jscope *s, uint32_t name, infer_jval v);
/* J_MISSING where the name is unbound, or bound to nothing yet. */
int infer_jscope_get(infer_jctx *c, const infer_jscope *s, uint32_t name, infer_jval *out);

/* Expressions: jinja_expr.c. */
int infer_jeval(infer_jctx *c, infer_jscope *s, const infer_jnode *n, infer_jval *out);
/* Calls through a node's arguments; `caller` (or J_MISSING) goes along as a keyword. */
int infer_jeval_call(infer_jctx *c, infer_jscope *s, const infer_jnode *n, infer_jval caller, infer_jval *out);
/* Applies a chain of N_FILTER nodes that ends in a NULL operand to v. */
int infer_jeval_filters(infer_jctx *c, infer_jscope *s, const infer_jnode *n, infer_jval v, infer_jval *out);
/* Counts one evaluator frame; leave undoes it. */
int infer_jeval_enter(infer_jctx *c);

/* Statements: jinja_eval.c. */
infer_jflow infer_jexec(infer_jctx *c, infer_jscope *s, const infer_jnode *n);
int infer_jexec_template(infer_jctx *c, const infer_jnode *body); /* in c->root */
int infer_jmacro_call(infer_jctx *c, const infer_jmacro *m, const infer_jargs *args, infer_jval *out);
/* loop(iterable) of a recursive loop. */
int infer_jloop_call(infer_jctx *c, infer_jloop *l, const infer_jargs *args, infer_jval *out);
int infer_jloop_length(infer_jctx *c, infer_jloop *l, size_t *n);
/* The item behind the current one; J_MISSING at the end. */
int infer_jloop_peek(infer_jctx *c, infer_jloop *l, infer_jval *out);

#endif
