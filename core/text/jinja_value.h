/* Values of the template engine, and the state of one render. Not the language: that is parsing (jinja_ast.h) and
 * evaluation (jinja_eval.h). Everything a render makes lies in its arena and goes with it; nothing is counted or freed
 * alone. Values are immutable, but for namespaces, cyclers, joiners, iterators and loops.
 * Functions that can fail return 0, or -1 after setting the context's status and error text; outputs are then unset.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TEXT_JINJA_VALUE_H
#define INFER_TEXT_JINJA_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <infer/error.h>

#include "base/buf.h"

/* ---- Limits ------------------------------------------------------------------------------------------------ */

#define J_MAX_SOURCE   ((size_t)1 << 20)   /* bytes of a template */
#define J_MAX_MEMORY   ((size_t)256 << 20) /* bytes of arena a render, and a compiled template, may take */
#define J_MAX_STRING   ((size_t)64 << 20)  /* bytes of one string */
#define J_MAX_NESTING  200                 /* of brackets and blocks, of data, of calls inside calls */
#define J_MAX_TREE     400                 /* levels of a syntax tree, long operator chains included */
#define J_MAX_NAMES    10000               /* different names in a template */
#define J_MAX_KEYWORDS 255                 /* parameters, and keyword arguments written out */
#define J_MAX_DEPTH    2000                /* evaluator frames: keeps a render within 512 KiB of C stack */
#define J_MAX_RANGE    100000              /* items of range(), as in Jinja2's sandbox */
#define J_MAX_OUTPUT   ((uint64_t)16 << 20)
#define J_MAX_STEPS    UINT64_C(10000000)
#define J_BYTES_A_STEP 64 /* bytes copied, compared or scanned that count as one step */

/* ---- Arena ------------------------------------------------------------------------------------------------- */

typedef struct infer_jarena {
    struct infer_jchunk *chunks;
    char *p, *end;
    size_t used, limit; /* bytes taken from the system; limit 0: J_MAX_MEMORY */
    bool over;          /* the last refusal was the limit's, not the system's */
} infer_jarena;

/* Uninitialised bytes aligned for any object; NULL when the limit or the system refuses. */
void *infer_jarena_alloc(infer_jarena *a, size_t n);
void infer_jarena_free(infer_jarena *a);

/* ---- Values ------------------------------------------------------------------------------------------------ */

typedef enum infer_jkind {
    J_MISSING = 0, /* no value at all: an argument not given, an unbound name */
    J_UNDEFINED,
    J_NONE,
    J_BOOL,
    J_INT,
    J_BIG, /* an integer beyond 64 bits: kept as decimal text, printed and compared, refused by arithmetic */
    J_FLOAT,
    J_STR,
    J_LIST,
    J_TUPLE,
    J_DICT,
    J_RANGE,
    J_VIEW, /* dict.keys(), values(), items() */
    J_ITER, /* a generator: consumed once, no length, always true */
    J_NAMESPACE,
    J_CYCLER,
    J_JOINER,
    J_LOOP,
    J_MACRO,
    J_FUNC,
    J_METHOD,
    J_N_KINDS
} infer_jkind;

#define J_BIT(kind) (1u << (kind))

typedef struct infer_jctx infer_jctx;
typedef struct infer_jiter infer_jiter;
typedef struct infer_jrow infer_jrow;

/* UTF-8 text, always valid. */
typedef struct infer_jstr {
    const char *p;
    size_t n;   /* bytes */
    size_t len; /* code points */
    struct infer_jgrow *grow;
    bool safe; /* went through |safe or |escape: |escape leaves it alone. Nothing else looks at it */
} infer_jstr;

typedef struct infer_jval {
    infer_jkind kind;
    union {
        bool b;
        int64_t i;
        double f;
        const infer_jstr *s; /* J_STR, J_BIG */
        struct infer_jundef *undef;
        struct infer_jlist *list; /* J_LIST, J_TUPLE */
        struct infer_jdict *dict; /* J_DICT, J_NAMESPACE (its attributes) */
        struct infer_jrange *range;
        struct infer_jview *view;
        infer_jiter *iter;
        struct infer_jcycler *cycler;
        struct infer_jjoiner *joiner;
        struct infer_jloop *loop;
        struct infer_jmacro *macro;
        const infer_jrow *row; /* J_FUNC */
        struct infer_jmethod *method;
        const void *ptr;
    } u;
} infer_jval;

typedef struct infer_jundef {
    const char *hint; /* a whole message, or NULL: made of obj and name */
    infer_jval obj;   /* J_MISSING for a plain name */
    infer_jval name;
} infer_jundef;

typedef struct infer_jlist {
    infer_jval *v;
    size_t n;
    struct infer_jroom *room; /* shared spare capacity behind v, or NULL */
    bool group;               /* a tuple of groupby: has .grouper and .list */
} infer_jlist;

typedef struct infer_jdict {
    infer_jval *k, *v; /* in insertion order */
    uint32_t n, cap;
    uint32_t *index; /* open addressing, position + 1, once n passes a few; NULL before */
    uint32_t index_cap;
} infer_jdict;

typedef struct infer_jrange {
    int64_t start, stop, step;
    size_t n;
} infer_jrange;

typedef struct infer_jview {
    infer_jdict *dict;
    char what; /* 'k', 'v' or 'i' */
} infer_jview;

typedef struct infer_jcycler {
    infer_jlist *items;
    size_t pos;
} infer_jcycler;

typedef struct infer_jjoiner {
    infer_jval sep;
    bool used;
} infer_jjoiner;

typedef struct infer_jmethod {
    const infer_jrow *row;
    infer_jval self;
} infer_jmethod;

/* Arguments of a call as given. Keyword names are J_STR and unique. */
typedef struct infer_jargs {
    infer_jval *pos;
    size_t n_pos;
    infer_jval *kw_name, *kw;
    size_t n_kw;
} infer_jargs;

/* A filter, test, function or method. self is what it is applied to (J_MISSING for a function); a has one value per
 * name in `params` (J_MISSING where not given); more holds what a "*" or "**" row took beyond them. */
typedef int (*infer_jfn)(infer_jctx *c, infer_jval self, infer_jval *a, const infer_jargs *more, infer_jval *out);

struct infer_jrow {
    const char *name;
    infer_jfn fn; /* NULL: known, and not offered here */
    /* Parameter names separated by spaces: "a b? c?" — "?" optional; a leading "/" makes all positional only; "*"
     * takes further positional arguments and "**" further keywords. */
    const char *params;
    uint32_t on; /* methods: J_BIT of the kinds that have it */
};

#define J_MAX_PARAMS 6

/* ---- Iteration --------------------------------------------------------------------------------------------- */

/* One step of an iteration: 0 and *out; 1 at the end, -1 failed (*out is then unset). */
struct infer_jiter {
    int (*next)(infer_jctx *c, infer_jiter *it, infer_jval *out);
    infer_jval src;
    size_t pos;
};

/* ---- Context ----------------------------------------------------------------------------------------------- */

struct infer_jctx {
    infer_jarena arena;
    infer_status status;
    infer_error *err;
    uint32_t line; /* of the construct being evaluated, 0 outside a template */
    uint32_t depth, nesting;
    uint64_t steps; /* left */
    infer_buf out;  /* the output; what a macro or a block collects is cut off its end */
    infer_buf tmp;  /* strings being built, as a stack */
    uint64_t max_output;
    int64_t now; /* as in infer_template_options */
    const struct infer_template *template;
    struct infer_jscope *root;
};

/* Records the failure unless one is recorded; the text gets "template line N: " in front. */
void infer_jctx_record(infer_jctx *c, infer_status status, const char *fmt, ...) INFER_PRINTF(3, 4);
/* The same, as the value of a failed function (a macro, so that the compiler sees that it is -1); and an error as
 * Python raises it. */
#define infer_jctx_fail(c, status, ...) (infer_jctx_record(c, status, __VA_ARGS__), -1)
#define infer_jctx_error(c, ...)        infer_jctx_fail(c, INFER_E_INVALID, __VA_ARGS__)
/* Takes n steps off the budget. */
int infer_jctx_step(infer_jctx *c, uint64_t n);
/* Steps for work on n bytes. */
int infer_jctx_work(infer_jctx *c, size_t n);
/* Arena memory; NULL after recording the failure. */
void *infer_jctx_alloc(infer_jctx *c, size_t n);
void *infer_jctx_array(infer_jctx *c, size_t n, size_t size);

/* Strings built piece by piece: mark = begin, append to &c->tmp, then end makes the arena string. Nests. */
static inline size_t infer_jctx_begin(const infer_jctx *c)
{
    return c->tmp.n;
}
int infer_jctx_end(infer_jctx *c, size_t mark, infer_jval *out);
/* Appends n copies of a character to the string being built, charged before they are made. */
int infer_jctx_fill(infer_jctx *c, uint32_t cp, int64_t n);
/* Reports what made a buffer fail: its limit, or memory. */
int infer_jctx_buf_failed(infer_jctx *c, const infer_buf *b);
/* Appends to the output, charging steps. */
int infer_jctx_write(infer_jctx *c, const char *p, size_t n);

/* ---- Making values ----------------------------------------------------------------------------------------- */

static inline infer_jval infer_jval_none(void)
{
    return (infer_jval){.kind = J_NONE};
}
static inline infer_jval infer_jval_bool(bool b)
{
    return (infer_jval){.kind = J_BOOL, .u.b = b};
}
static inline infer_jval infer_jval_int(int64_t i)
{
    return (infer_jval){.kind = J_INT, .u.i = i};
}
static inline infer_jval infer_jval_float(double f)
{
    return (infer_jval){.kind = J_FLOAT, .u.f = f};
}
static inline infer_jval infer_jval_str(const infer_jstr *s)
{
    return (infer_jval){.kind = J_STR, .u.s = s};
}
static inline infer_jval infer_jval_of_list(infer_jkind kind, infer_jlist *l)
{
    return (infer_jval){.kind = kind, .u.list = l};
}
static inline infer_jval infer_jval_of_dict(infer_jdict *d)
{
    return (infer_jval){.kind = J_DICT, .u.dict = d};
}

extern const infer_jstr infer_jstr_empty;

/* A string over bytes that outlive the render (an input, another string's). len: code points, SIZE_MAX: count. */
int infer_jstr_borrow(infer_jctx *c, const char *p, size_t n, size_t len, infer_jval *out);
int infer_jstr_copy(infer_jctx *c, const char *p, size_t n, infer_jval *out);
int infer_jstr_concat(infer_jctx *c, const infer_jstr *a, const infer_jstr *b, infer_jval *out);
/* Code points [from, to) with 0 <= from <= to <= len, sharing the bytes. */
int infer_jstr_sub(infer_jctx *c, const infer_jstr *s, size_t from, size_t to, infer_jval *out);
/* Byte offset of code point `at` (<= len); and code points before byte offset `at`. */
size_t infer_jstr_offset(const infer_jstr *s, size_t at);
size_t infer_jstr_index(const infer_jstr *s, size_t at);
bool infer_jstr_is(const infer_jstr *s, const char *text);
/* First position of b in a at or after byte `from`, SIZE_MAX if none; linear time. */
size_t infer_jstr_find(const infer_jstr *a, const infer_jstr *b, size_t from);

/* An undefined value, and what its use is to say: `hint` (static), else that `name`, or obj's `name`, is not there. */
int infer_jval_undefined(infer_jctx *c, const char *hint, infer_jval obj, infer_jval name, infer_jval *out);
/* Fails as the use of an undefined value does in Jinja2, with its message. */
int infer_jval_use_undefined(infer_jctx *c, infer_jval v);

/* A list with room for n values, n set, contents unset. */
int infer_jlist_new(infer_jctx *c, infer_jkind kind, size_t n, infer_jval *out);
int infer_jlist_concat(infer_jctx *c, infer_jkind kind, const infer_jlist *a, const infer_jlist *b, infer_jval *out);
/* Builds a list of unknown length: zero-initialise the list, append, then wrap. */
int infer_jlist_append(infer_jctx *c, infer_jlist *l, size_t *cap, infer_jval v);

int infer_jdict_new(infer_jctx *c, infer_jval *out);
/* 1 found and *v, 0 not, -1 failed (unhashable key). v may be NULL. */
int infer_jdict_get(infer_jctx *c, const infer_jdict *d, infer_jval key, infer_jval *v);
int infer_jdict_get_text(infer_jctx *c, const infer_jdict *d, const char *p, size_t n, infer_jval *v);
/* Inserts, or replaces the value and keeps the place. */
int infer_jdict_put(infer_jctx *c, infer_jdict *d, infer_jval key, infer_jval v);

#endif
