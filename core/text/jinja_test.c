/* Tests ("x is …"). SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "text/jinja_ops.h"
#include "text/jinja_table.h"
#include "text/jinja_unicode.h"

/* Predicates on the kind alone: a bit mask each. */
#define KIND_TEST(fn, mask)                                                                                            \
    static int fn(infer_jctx *c, infer_jval self, infer_jval *a, const infer_jargs *more, infer_jval *out)             \
    {                                                                                                                  \
        (void)c, (void)a, (void)more;                                                                                  \
        *out = infer_jval_bool((J_BIT(self.kind) & (mask)) != 0);                                                      \
        return 0;                                                                                                      \
    }

KIND_TEST(is_undefined, J_BIT(J_UNDEFINED))
KIND_TEST(is_defined, ~J_BIT(J_UNDEFINED))
KIND_TEST(is_none, J_BIT(J_NONE))
KIND_TEST(is_boolean, J_BIT(J_BOOL))
KIND_TEST(is_integer, J_BIT(J_INT) | J_BIT(J_BIG))
KIND_TEST(is_float, J_BIT(J_FLOAT))
KIND_TEST(is_number, J_BIT(J_BOOL) | J_BIT(J_INT) | J_BIT(J_BIG) | J_BIT(J_FLOAT))
KIND_TEST(is_string, J_BIT(J_STR))
KIND_TEST(is_mapping, J_BIT(J_DICT))
KIND_TEST(is_sequence,
          J_BIT(J_STR) | J_BIT(J_LIST) | J_BIT(J_TUPLE) | J_BIT(J_DICT) | J_BIT(J_RANGE) | J_BIT(J_UNDEFINED))
KIND_TEST(is_callable,
          J_BIT(J_FUNC) | J_BIT(J_METHOD) | J_BIT(J_MACRO) | J_BIT(J_LOOP) | J_BIT(J_JOINER) | J_BIT(J_UNDEFINED))

static int is_iterable(infer_jctx *c, infer_jval self, infer_jval *a, const infer_jargs *more, infer_jval *out)
{
    (void)c, (void)a, (void)more;
    *out = infer_jval_bool(infer_jval_is_iterable(self) || self.kind == J_LOOP);
    return 0;
}

static int is_true(infer_jctx *c, infer_jval self, infer_jval *a, const infer_jargs *more, infer_jval *out)
{
    (void)c, (void)a, (void)more;
    *out = infer_jval_bool(self.kind == J_BOOL && self.u.b);
    return 0;
}

static int is_false(infer_jctx *c, infer_jval self, infer_jval *a, const infer_jargs *more, infer_jval *out)
{
    (void)c, (void)a, (void)more;
    *out = infer_jval_bool(self.kind == J_BOOL && !self.u.b);
    return 0;
}

static int is_escaped(infer_jctx *c, infer_jval self, infer_jval *a, const infer_jargs *more, infer_jval *out)
{
    (void)c, (void)a, (void)more;
    *out = infer_jval_bool(self.kind == J_STR && self.u.s->safe);
    return 0;
}

static int is_sameas(infer_jctx *c, infer_jval self, infer_jval *a, const infer_jargs *more, infer_jval *out)
{
    (void)c, (void)more;
    *out = infer_jval_bool(infer_jval_same(self, a[0]));
    return 0;
}

static int is_in(infer_jctx *c, infer_jval self, infer_jval *a, const infer_jargs *more, infer_jval *out)
{
    (void)more;
    int r = infer_jval_in(c, self, a[0]);
    *out = infer_jval_bool(r == 1);
    return r < 0 ? -1 : 0;
}

static int is_equal(infer_jctx *c, infer_jval self, infer_jval *a, const infer_jargs *more, infer_jval *out)
{
    (void)more;
    int r = infer_jval_eq(c, self, a[0]);
    *out = infer_jval_bool(r == 1);
    return r < 0 ? -1 : 0;
}

static int is_unequal(infer_jctx *c, infer_jval self, infer_jval *a, const infer_jargs *more, infer_jval *out)
{
    (void)more;
    int r = infer_jval_eq(c, self, a[0]);
    *out = infer_jval_bool(r == 0);
    return r < 0 ? -1 : 0;
}

static int ordered(infer_jctx *c, infer_jop op, infer_jval self, infer_jval other, infer_jval *out)
{
    int r = infer_jval_order(c, op, self, other);
    *out = infer_jval_bool(r == 1);
    return r < 0 ? -1 : 0;
}

static int is_less(infer_jctx *c, infer_jval self, infer_jval *a, const infer_jargs *more, infer_jval *out)
{
    (void)more;
    return ordered(c, J_LT, self, a[0], out);
}

static int is_less_equal(infer_jctx *c, infer_jval self, infer_jval *a, const infer_jargs *more, infer_jval *out)
{
    (void)more;
    return ordered(c, J_LE, self, a[0], out);
}

static int is_greater(infer_jctx *c, infer_jval self, infer_jval *a, const infer_jargs *more, infer_jval *out)
{
    (void)more;
    return ordered(c, J_GT, self, a[0], out);
}

static int is_greater_equal(infer_jctx *c, infer_jval self, infer_jval *a, const infer_jargs *more, infer_jval *out)
{
    (void)more;
    return ordered(c, J_GE, self, a[0], out);
}

static int remainder_is(infer_jctx *c, infer_jval self, infer_jval by, int64_t wanted, infer_jval *out)
{
    infer_jval rest;
    if (infer_jval_binary(c, J_MOD, self, by, &rest))
        return -1;
    int r = infer_jval_eq(c, rest, infer_jval_int(wanted));
    *out = infer_jval_bool(r == 1);
    return r < 0 ? -1 : 0;
}

static int is_odd(infer_jctx *c, infer_jval self, infer_jval *a, const infer_jargs *more, infer_jval *out)
{
    (void)a, (void)more;
    return remainder_is(c, self, infer_jval_int(2), 1, out);
}

static int is_even(infer_jctx *c, infer_jval self, infer_jval *a, const infer_jargs *more, infer_jval *out)
{
    (void)a, (void)more;
    return remainder_is(c, self, infer_jval_int(2), 0, out);
}

static int is_divisible(infer_jctx *c, infer_jval self, infer_jval *a, const infer_jargs *more, infer_jval *out)
{
    (void)more;
    return remainder_is(c, self, a[0], 0, out);
}

static int cased_as(infer_jctx *c, infer_jval self, const char *method, infer_jval *out)
{
    const infer_jstr *s;
    infer_jval text;
    if (infer_jval_to_str(c, self, &s))
        return -1;
    text = infer_jval_str(s);
    const infer_jrow *row = infer_jrow_method(method, 7, J_BIT(J_STR));
    return infer_jrow_call(c, row, "method", text, &(infer_jargs){0}, out);
}

static int is_lower(infer_jctx *c, infer_jval self, infer_jval *a, const infer_jargs *more, infer_jval *out)
{
    (void)a, (void)more;
    return cased_as(c, self, "islower", out);
}

static int is_upper(infer_jctx *c, infer_jval self, infer_jval *a, const infer_jargs *more, infer_jval *out)
{
    (void)a, (void)more;
    return cased_as(c, self, "isupper", out);
}

static int is_filter(infer_jctx *c, infer_jval self, infer_jval *a, const infer_jargs *more, infer_jval *out)
{
    (void)a, (void)more;
    uint64_t hash;
    if (infer_jval_hash(c, self, &hash)) /* the name is looked up in a dict */
        return -1;
    const infer_jrow *r = self.kind == J_STR ? infer_jrow_filter(self.u.s->p, self.u.s->n) : NULL;
    *out = infer_jval_bool(r && r->fn);
    return 0;
}

static int is_test(infer_jctx *c, infer_jval self, infer_jval *a, const infer_jargs *more, infer_jval *out)
{
    (void)a, (void)more;
    uint64_t hash;
    if (infer_jval_hash(c, self, &hash))
        return -1;
    *out = infer_jval_bool(self.kind == J_STR && infer_jrow_test(self.u.s->p, self.u.s->n));
    return 0;
}

const infer_jrow infer_jrows_test[] = {
    {"odd", is_odd, "/", 0},
    {"even", is_even, "/", 0},
    {"divisibleby", is_divisible, "num", 0},
    {"defined", is_defined, "/", 0},
    {"undefined", is_undefined, "/", 0},
    {"filter", is_filter, "/", 0},
    {"test", is_test, "/", 0},
    {"none", is_none, "/", 0},
    {"boolean", is_boolean, "/", 0},
    {"false", is_false, "/", 0},
    {"true", is_true, "/", 0},
    {"integer", is_integer, "/", 0},
    {"float", is_float, "/", 0},
    {"lower", is_lower, "/", 0},
    {"upper", is_upper, "/", 0},
    {"string", is_string, "/", 0},
    {"mapping", is_mapping, "/", 0},
    {"number", is_number, "/", 0},
    {"sequence", is_sequence, "/", 0},
    {"iterable", is_iterable, "/", 0},
    {"callable", is_callable, "/", 0},
    {"sameas", is_sameas, "other", 0},
    {"escaped", is_escaped, "/", 0},
    {"in", is_in, "seq", 0},
    {"==", is_equal, "/other", 0},
    {"eq", is_equal, "/other", 0},
    {"equalto", is_equal, "/other", 0},
    {"!=", is_unequal, "/other", 0},
    {"ne", is_unequal, "/other", 0},
    {">", is_greater, "/other", 0},
    {"gt", is_greater, "/other", 0},
    {"greaterthan", is_greater, "/other", 0},
    {"ge", is_greater_equal, "/other", 0},
    {">=", is_greater_equal, "/other", 0},
    {"<", is_less, "/other", 0},
    {"lt", is_less, "/other", 0},
    {"lessthan", is_less, "/other", 0},
    {"<=", is_less_equal, "/other", 0},
    {"le", is_less_equal, "/other", 0},
    {NULL, NULL, NULL, 0},
};
