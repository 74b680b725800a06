/* Syntax tree of a template, and what parsing gives. Immutable once parsed: any number of renders walk one tree.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TEXT_JINJA_AST_H
#define INFER_TEXT_JINJA_AST_H

#include "text/jinja_ops.h"
#include "text/jinja_value.h"

typedef enum infer_jnode_kind {
    /* expressions */
    N_CONST,   /* val */
    N_NAME,    /* name; val: its text */
    N_TUPLE,   /* list */
    N_LIST,    /* list */
    N_DICT,    /* list: key, value, key, value, … */
    N_GETATTR, /* a . val; flag: some type has a method or property of that name */
    N_GETITEM, /* a [ b ] */
    N_SLICE,   /* a [ list[0] : list[1] : list[2] ], NULL where left out */
    N_CALL,    /* a ( args ) */
    N_FILTER,  /* a | row ( args ); a NULL: applied to a block's text */
    N_TEST,    /* a is row ( args ); flag: not */
    N_NEG,
    N_POS,
    N_NOT,
    N_AND,
    N_OR,
    N_BINARY,  /* a op b */
    N_COMPARE, /* list[0] ops[0] list[1] ops[1] … */
    N_CONCAT,  /* list */
    N_COND,    /* b if a else c; c may be NULL */
    /* assignment targets: N_NAME, N_TUPLE, N_NSREF */
    N_NSREF, /* name . val */
    /* statements */
    N_BLOCK,        /* list, in order */
    N_TEXT,         /* val */
    N_PRINT,        /* a */
    N_IF,           /* list: test, body, test, body, …, and an else body where the count is odd */
    N_FOR,          /* a target, list[0] iterable, list[1] condition or NULL, b body, c else or NULL; flag: recursive */
    N_SET,          /* a target = b */
    N_SET_BLOCK,    /* a target, b body, c filter or NULL */
    N_MACRO,        /* name, val, sig, b body */
    N_CALL_BLOCK,   /* a call, sig, b body */
    N_FILTER_BLOCK, /* a filter, b body */
    N_WITH,         /* list: target, value, …; b body */
    N_SCOPE,        /* b body, in a scope of its own over the globals (a block) */
    N_BREAK,
    N_CONTINUE
} infer_jnode_kind;

#define J_USES_CALLER  1u
#define J_USES_KWARGS  2u
#define J_USES_VARARGS 4u

typedef struct infer_jnode infer_jnode;

typedef struct infer_jcall_args {
    infer_jnode **pos;
    infer_jval *kw_name;
    infer_jnode **kw;
    infer_jnode *star, *star_star; /* NULL where absent */
    uint32_t n_pos, n_kw;
} infer_jcall_args;

/* Parameters of a macro or a call block. */
typedef struct infer_jsig {
    uint32_t *name;    /* ids */
    infer_jval *text;  /* the names */
    infer_jnode **def; /* defaults, NULL where there is none */
    uint32_t n;
    uint32_t uses;   /* J_USES_*: which of the special names the body reads */
    bool own_caller; /* "caller" is one of the parameters */
} infer_jsig;

struct infer_jnode {
    infer_jnode_kind kind;
    uint32_t line;
    uint32_t name;
    uint32_t n;     /* of list */
    uint16_t depth; /* of the tree below */
    bool flag;
    uint8_t op; /* infer_jop of N_BINARY */
    infer_jnode *a, *b, *c;
    infer_jnode **list;
    infer_jval val;
    union {
        const infer_jrow *row;
        const uint8_t *ops;
        const infer_jsig *sig;
        const uint32_t *hidden; /* N_BLOCK of a scope: a count, then names unbound at its start; or NULL */
    } u;
    const infer_jcall_args *args;
};

/* Ids of names that the engine itself binds. */
enum { J_NAME_LOOP, J_NAME_CALLER, J_NAME_KWARGS, J_NAME_VARARGS, J_NAMES_FIXED };

struct infer_template {
    infer_jarena arena;
    infer_jnode *body;
    infer_jval *names; /* texts of the name ids */
    uint32_t n_names;
};

/* Fills *t (its arena owns everything). c carries the error and, for the time of parsing, scratch memory. */
int infer_jparse(infer_jctx *c, const char *src, size_t n, struct infer_template *t);

#endif
