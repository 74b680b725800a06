/* Operations between values, with Python's rules. Return conventions as in jinja_value.h; predicates that can fail
 * give 1, 0 or -1. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TEXT_JINJA_OPS_H
#define INFER_TEXT_JINJA_OPS_H

#include "text/jinja_value.h"

typedef enum infer_jop {
    J_ADD,
    J_SUB,
    J_MUL,
    J_DIV,
    J_FLOORDIV,
    J_MOD,
    J_POW,
    J_EQ,
    J_NE,
    J_LT,
    J_LE,
    J_GT,
    J_GE,
    J_IN,
    J_NOT_IN
} infer_jop;

/* Bounds recursion over data (and of calls): enter fails beyond J_MAX_NESTING, leave undoes it. */
int infer_jctx_enter(infer_jctx *c);
static inline void infer_jctx_leave(infer_jctx *c)
{
    c->nesting--;
}

/* Python's name of the type, as in its messages. */
const char *infer_jval_type(infer_jval v);
bool infer_jval_truth(infer_jval v);
int infer_jval_eq(infer_jctx *c, infer_jval a, infer_jval b);
/* a op b for J_LT to J_GE. */
int infer_jval_order(infer_jctx *c, infer_jop op, infer_jval a, infer_jval b);
int infer_jval_hash(infer_jctx *c, infer_jval v, uint64_t *hash);
bool infer_jval_same(infer_jval a, infer_jval b); /* Python's `is` */
int infer_jval_len(infer_jctx *c, infer_jval v, size_t *n);
bool infer_jval_has_len(infer_jval v);
int infer_jval_in(infer_jctx *c, infer_jval item, infer_jval in);
/* op from J_ADD to J_POW. */
int infer_jval_binary(infer_jctx *c, infer_jop op, infer_jval a, infer_jval b, infer_jval *out);
int infer_jval_negate(infer_jctx *c, infer_jval v, infer_jval *out);
int infer_jval_plus(infer_jctx *c, infer_jval v, infer_jval *out);
/* n copies of s's bytes. */
int infer_jstr_repeat(infer_jctx *c, const infer_jstr *s, int64_t n, infer_jval *out);

/* A bool or int as int64; another type fails with "what must be an integer". */
int infer_jval_as_int(infer_jctx *c, infer_jval v, const char *what, int64_t *out);
bool infer_jval_is_int(infer_jval v); /* bool or int */
bool infer_jval_is_number(infer_jval v);
double infer_jval_as_double(infer_jval v); /* of a number */

/* Jinja2's obj.name (attribute first, then item) and obj[key] (item first); absent gives undefined. `methods` false
 * skips the search for a method or property: for names that no type has. */
int infer_jval_getattr(infer_jctx *c, infer_jval obj, infer_jval name, bool methods, infer_jval *out);
int infer_jval_getitem(infer_jctx *c, infer_jval obj, infer_jval key, infer_jval *out);
/* obj[from:to:step], J_NONE where left out. */
int infer_jval_slice(infer_jctx *c, infer_jval obj, infer_jval from, infer_jval to, infer_jval step, infer_jval *out);

/* Starts an iteration; TypeError where v cannot be iterated. The state may be copied while unused only. */
int infer_jval_iterate(infer_jctx *c, infer_jval v, infer_jiter *it);
bool infer_jval_is_iterable(infer_jval v);
/* list(v). */
int infer_jval_to_list(infer_jctx *c, infer_jval v, infer_jval *out);

/* repr(v) and str(v) appended to c->tmp. */
int infer_jval_repr(infer_jctx *c, infer_jval v);
int infer_jval_str_to_tmp(infer_jctx *c, infer_jval v);
/* str(v): v's own string where it is one. */
int infer_jval_to_str(infer_jctx *c, infer_jval v, const infer_jstr **out);
/* str(v) to the output. */
int infer_jval_print(infer_jctx *c, infer_jval v);
/* repr of a double in Python, in at most 32 bytes with the NUL. */
void infer_jfloat_repr(double f, char out[32]);
/* Text of an integer of arbitrary size: J_INT where it fits, else J_BIG (without leading zeros; the bytes are
 * borrowed). digits without sign; at most 4300 of them. */
int infer_jval_int_of_digits(infer_jctx *c, bool negative, const char *digits, size_t n, infer_jval *out);
/* float(text) and int(text, base) of Python: 1 and *out, 0 where it is not a number, -1 failed. */
int infer_jstr_to_float(infer_jctx *c, const infer_jstr *s, double *out);
int infer_jstr_to_int(infer_jctx *c, const infer_jstr *s, int base, infer_jval *out);
/* int(f) of a finite double. */
int infer_jval_int_of_double(infer_jctx *c, double f, infer_jval *out);

#endif
