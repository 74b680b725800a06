/* Arithmetic of the template engine and the text forms of numbers, as Python has them. Integers are 64-bit: a result
 * beyond is an error, never a wrapped value. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <ctype.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_format.h"
#include "text/jinja_ops.h"
#include "text/jinja_unicode.h"

#define MAX_DIGITS 4300 /* Python's own limit for integers as text */

static int overflow(infer_jctx *c)
{
    return infer_jctx_error(c, "integer overflow: the result does not fit 64 bits");
}

double infer_jval_as_double(infer_jval v)
{
    switch (v.kind) {
    case J_BOOL:
        return v.u.b;
    case J_INT:
        return (double)v.u.i;
    case J_FLOAT:
        return v.u.f;
    default: {
        char text[MAX_DIGITS + 2];
        size_t n = v.u.s->n < sizeof text ? v.u.s->n : sizeof text - 1;
        memcpy(text, v.u.s->p, n);
        text[n] = 0;
        return strtod(text, NULL);
    }
    }
}

/* ---- Integers ------------------------------------------------------------------------------------------------ */

static int int_pow(infer_jctx *c, int64_t base, int64_t exp, infer_jval *out)
{
    int64_t r = 1;
    while (exp) {
        if ((exp & 1) && __builtin_mul_overflow(r, base, &r))
            return overflow(c);
        exp >>= 1;
        if (exp && __builtin_mul_overflow(base, base, &base))
            return overflow(c);
    }
    *out = infer_jval_int(r);
    return 0;
}

static int int_binary(infer_jctx *c, infer_jop op, int64_t a, int64_t b, infer_jval *out)
{
    int64_t r = 0;
    bool over = false;
    if (b == 0 && (op == J_DIV || op == J_FLOORDIV || op == J_MOD))
        return infer_jctx_error(c, op == J_DIV ? "division by zero" : "integer division or modulo by zero");
    switch (op) {
    case J_ADD:
        over = __builtin_add_overflow(a, b, &r);
        break;
    case J_SUB:
        over = __builtin_sub_overflow(a, b, &r);
        break;
    case J_MUL:
        over = __builtin_mul_overflow(a, b, &r);
        break;
    case J_DIV:
        *out = infer_jval_float((double)a / (double)b);
        return 0;
    case J_FLOORDIV:
        over = b == -1 && a == INT64_MIN;
        if (!over) {
            r = a / b;
            r -= a % b != 0 && (a < 0) != (b < 0);
        }
        break;
    case J_MOD:
        r = b == -1 ? 0 : a % b;
        if (r && (r < 0) != (b < 0))
            r += b;
        break;
    default:
        if (b >= 0)
            return int_pow(c, a, b, out);
        if (!a)
            return infer_jctx_error(c, "0.0 cannot be raised to a negative power");
        *out = infer_jval_float(pow((double)a, (double)b));
        return 0;
    }
    if (over)
        return overflow(c);
    *out = infer_jval_int(r);
    return 0;
}

static int float_binary(infer_jctx *c, infer_jop op, double a, double b, infer_jval *out)
{
    double r;
    if (b == 0 && (op == J_DIV || op == J_FLOORDIV || op == J_MOD))
        return infer_jctx_error(c, op == J_DIV ? "float division by zero" : "float floor division or modulo by zero");
    switch (op) {
    case J_ADD:
        r = a + b;
        break;
    case J_SUB:
        r = a - b;
        break;
    case J_MUL:
        r = a * b;
        break;
    case J_DIV:
        r = a / b;
        break;
    case J_FLOORDIV:
    case J_MOD: {
        double mod = fmod(a, b), div = (a - mod) / b;
        if (mod) {
            if ((b < 0) != (mod < 0)) {
                mod += b;
                div -= 1;
            }
        } else {
            mod = copysign(0.0, b);
        }
        double whole = div ? floor(div) : copysign(0.0, a / b);
        if (div && div - whole > 0.5)
            whole += 1;
        r = op == J_MOD ? mod : whole;
        break;
    }
    default:
        if (a == 0 && b < 0)
            return infer_jctx_error(c, "0.0 cannot be raised to a negative power");
        r = pow(a, b);
        if (isnan(r) && !isnan(a) && !isnan(b))
            return infer_jctx_error(c, "a negative number to a fractional power is complex");
        if (isinf(r) && isfinite(a) && isfinite(b))
            return infer_jctx_error(c, "float overflow: the result is too large");
        break;
    }
    *out = infer_jval_float(r);
    return 0;
}

/* ---- Operators ------------------------------------------------------------------------------------------------- */

int infer_jstr_repeat(infer_jctx *c, const infer_jstr *s, int64_t n, infer_jval *out)
{
    if (n <= 0 || !s->n) {
        *out = infer_jval_str(&infer_jstr_empty);
        return 0;
    }
    size_t bytes;
    if (__builtin_mul_overflow(s->n, (uint64_t)n, &bytes) || bytes > J_MAX_STRING)
        return infer_jctx_fail(c, INFER_E_TOO_LARGE, "the string limit of %zu bytes is reached", J_MAX_STRING);
    char *p = infer_jctx_alloc(c, bytes);
    if (!p || infer_jctx_work(c, bytes))
        return -1;
    memcpy(p, s->p, s->n);
    for (size_t have = s->n; have < bytes; have *= 2)
        memcpy(p + have, p, have < bytes - have ? have : bytes - have);
    return infer_jstr_borrow(c, p, bytes, s->len * (size_t)n, out);
}

static int list_repeat(infer_jctx *c, infer_jval list, int64_t n, infer_jval *out)
{
    size_t total, len = list.u.list->n;
    if (n < 0)
        n = 0;
    if (__builtin_mul_overflow(len, (uint64_t)n, &total))
        total = SIZE_MAX / sizeof(infer_jval);
    if (infer_jlist_new(c, list.kind, total, out))
        return -1;
    for (size_t i = 0; i < total; i++)
        out->u.list->v[i] = list.u.list->v[i % len];
    return 0;
}

int infer_jval_binary(infer_jctx *c, infer_jop op, infer_jval a, infer_jval b, infer_jval *out)
{
    static const char *const signs[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};
    if (infer_jval_is_int(a) && infer_jval_is_int(b))
        return int_binary(c, op, a.kind == J_BOOL ? a.u.b : a.u.i, b.kind == J_BOOL ? b.u.b : b.u.i, out);
    if (infer_jval_is_number(a) && infer_jval_is_number(b)) {
        if (a.kind == J_FLOAT || b.kind == J_FLOAT)
            return float_binary(c, op, infer_jval_as_double(a), infer_jval_as_double(b), out);
        return overflow(c);
    }
    if (op == J_MOD && a.kind == J_STR)
        return infer_jformat_percent(c, a.u.s, b, out);
    if (a.kind == J_UNDEFINED || b.kind == J_UNDEFINED)
        return infer_jval_use_undefined(c, a.kind == J_UNDEFINED ? a : b);
    if (op == J_ADD && a.kind == b.kind) {
        if (a.kind == J_STR)
            return infer_jstr_concat(c, a.u.s, b.u.s, out);
        if (a.kind == J_LIST || a.kind == J_TUPLE)
            return infer_jlist_concat(c, a.kind, a.u.list, b.u.list, out);
    }
    if (op == J_MUL && (infer_jval_is_int(a) || infer_jval_is_int(b))) {
        infer_jval seq = infer_jval_is_int(a) ? b : a, by = infer_jval_is_int(a) ? a : b;
        int64_t n = by.kind == J_BOOL ? by.u.b : by.u.i;
        if (seq.kind == J_STR)
            return infer_jstr_repeat(c, seq.u.s, n, out);
        if (seq.kind == J_LIST || seq.kind == J_TUPLE)
            return list_repeat(c, seq, n, out);
    }
    if (op == J_ADD && (a.kind == J_STR || a.kind == J_LIST || a.kind == J_TUPLE))
        return infer_jctx_error(c, "can only concatenate %s (not \"%s\") to %s", infer_jval_type(a), infer_jval_type(b),
                                infer_jval_type(a));
    return infer_jctx_error(c, "unsupported operand type(s) for %s: '%s' and '%s'", signs[op], infer_jval_type(a),
                            infer_jval_type(b));
}

int infer_jval_negate(infer_jctx *c, infer_jval v, infer_jval *out)
{
    if (v.kind == J_UNDEFINED)
        return infer_jval_use_undefined(c, v);
    if (v.kind == J_FLOAT) {
        *out = infer_jval_float(-v.u.f);
        return 0;
    }
    if (v.kind == J_BIG) {
        bool neg = v.u.s->p[0] == '-';
        return infer_jval_int_of_digits(c, !neg, v.u.s->p + neg, v.u.s->n - neg, out);
    }
    if (!infer_jval_is_int(v))
        return infer_jctx_error(c, "bad operand type for unary -: '%s'", infer_jval_type(v));
    return int_binary(c, J_SUB, 0, v.kind == J_BOOL ? v.u.b : v.u.i, out);
}

int infer_jval_plus(infer_jctx *c, infer_jval v, infer_jval *out)
{
    if (v.kind == J_UNDEFINED)
        return infer_jval_use_undefined(c, v);
    if (!infer_jval_is_number(v))
        return infer_jctx_error(c, "bad operand type for unary +: '%s'", infer_jval_type(v));
    *out = v.kind == J_BOOL ? infer_jval_int(v.u.b) : v;
    return 0;
}

/* ---- Text of numbers ------------------------------------------------------------------------------------------- */

int infer_jval_int_of_digits(infer_jctx *c, bool negative, const char *digits, size_t n, infer_jval *out)
{
    while (n > 1 && *digits == '0') {
        digits++;
        n--;
    }
    uint64_t v = 0;
    bool over = n > 19;
    for (size_t i = 0; i < n && !over; i++)
        v = v * 10 + (uint64_t)(digits[i] - '0'); /* 19 digits fit */
    if (!over && v <= (uint64_t)INT64_MAX + negative) {
        *out = infer_jval_int(negative ? (int64_t)(0 - v) : (int64_t)v);
        return 0;
    }
    if (n > MAX_DIGITS)
        return infer_jctx_fail(c, INFER_E_TOO_LARGE, "an integer of more than %d digits", MAX_DIGITS);
    char *p = infer_jctx_alloc(c, n + 1);
    infer_jstr *s = p ? infer_jctx_alloc(c, sizeof *s) : NULL;
    if (!s)
        return -1;
    p[0] = '-';
    memcpy(p + 1, digits, n);
    *s = (infer_jstr){.p = p + !negative, .n = n + negative, .len = n + negative};
    *out = (infer_jval){.kind = J_BIG, .u.s = s};
    return 0;
}

int infer_jval_int_of_double(infer_jctx *c, double f, infer_jval *out)
{
    f = trunc(f);
    if (fabs(f) < 9223372036854775808.0) {
        *out = infer_jval_int((int64_t)f);
        return 0;
    }
    char text[512];
    int n = snprintf(text, sizeof text, "%.0f", fabs(f));
    return infer_jval_int_of_digits(c, f < 0, text, (size_t)n, out);
}

void infer_jfloat_repr(double f, char out[32])
{
    if (!isfinite(f)) {
        snprintf(out, 32, "%s", isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    /* The shortest text that reads back the same: 15 digits always survive in a normal number, fewer are those
     * without their trailing zeros. */
    char e[32];
    for (int digits = fabs(f) < DBL_MIN ? 1 : DBL_DIG; digits <= 17; digits++) {
        snprintf(e, sizeof e, "%.*e", digits - 1, f);
        if (strtod(e, NULL) == f)
            break;
    }
    char digit[20];
    int n = 0, neg = e[0] == '-';
    const char *p = e + neg;
    for (; *p && *p != 'e'; p++)
        if (isdigit((unsigned char)*p))
            digit[n++] = *p;
    int exp = *p ? atoi(p + 1) : 0;
    while (n > 1 && digit[n - 1] == '0')
        n--;
    char *o = out;
    if (neg)
        *o++ = '-';
    if (exp < -4 || exp >= 16) {
        *o++ = digit[0];
        if (n > 1)
            *o++ = '.';
        memcpy(o, digit + 1, (size_t)n - 1);
        o += n - 1;
        snprintf(o, 8, "e%c%02d", exp < 0 ? '-' : '+', (exp < 0 ? -exp : exp) % 1000);
        return;
    }
    if (exp < 0) {
        *o++ = '0';
        *o++ = '.';
        for (int i = -1; i > exp; i--)
            *o++ = '0';
        memcpy(o, digit, (size_t)n);
        o += n;
    } else {
        for (int i = 0; i <= exp; i++)
            *o++ = i < n ? digit[i] : '0';
        *o++ = '.';
        if (n > exp + 1) {
            memcpy(o, digit + exp + 1, (size_t)(n - exp - 1));
            o += n - exp - 1;
        } else {
            *o++ = '0';
        }
    }
    *o = 0;
}

/* The text without white space at its ends and without the underscores Python allows between digits, in tmp behind
 * mark, NUL-terminated; decimal digits of other scripts become ASCII. 0 where an underscore stands wrong, -1 failed. */
static int plain_number(infer_jctx *c, const infer_jstr *s, size_t mark)
{
    size_t a = 0, b = s->n;
    if (infer_jctx_work(c, s->n))
        return -1;
    for (size_t i = 0; a < b && infer_ju_isspace(infer_ju_next(s->p, &i));)
        a = i;
    while (b > a) {
        size_t at = infer_ju_back(s->p, b), i = at;
        if (!infer_ju_isspace(infer_ju_next(s->p, &i)))
            break;
        b = at;
    }
    char before = 0;
    for (size_t i = a; i < b;) {
        uint32_t cp = infer_ju_next(s->p, &i);
        if (cp >= 0x80 && infer_ju_isdecimal(cp)) {
            uint32_t zero = cp; /* decimal digits come in runs of ten */
            while (zero > cp - 9 && infer_ju_isdecimal(zero - 1))
                zero--;
            cp = '0' + (cp - zero) % 10;
        }
        if (cp == '_') {
            if (!isalnum((unsigned char)before) || i >= b || !isalnum((unsigned char)s->p[i]))
                return 0;
        } else {
            infer_buf_put_utf8(&c->tmp, cp);
        }
        before = cp < 0x80 ? (char)cp : 0;
    }
    infer_buf_putc(&c->tmp, 0);
    if (c->tmp.failed)
        return infer_jctx_buf_failed(c, &c->tmp);
    return c->tmp.n - mark > 1;
}

int infer_jstr_to_float(infer_jctx *c, const infer_jstr *s, double *out)
{
    size_t mark = infer_jctx_begin(c);
    int ok = plain_number(c, s, mark);
    if (ok == 1) {
        const char *p = c->tmp.p + mark, *q = p + (*p == '-' || *p == '+');
        static const char *const words[] = {"inf", "infinity", "nan"};
        bool word = false;
        for (size_t i = 0; i < 3; i++)
            word |= strcasecmp(q, words[i]) == 0;
        /* No hexadecimal, no "nan(…)", no embedded NUL. */
        bool plain = (isdigit((unsigned char)*q) || *q == '.') && strlen(p) == c->tmp.n - mark - 1 &&
                     strspn(q, "0123456789.eE+-") == strlen(q);
        char *end = NULL;
        *out = word || plain ? strtod(p, &end) : 0;
        ok = end && end != p && !*end;
    }
    c->tmp.n = mark;
    return ok;
}

int infer_jstr_to_int(infer_jctx *c, const infer_jstr *s, int base, infer_jval *out)
{
    size_t mark = infer_jctx_begin(c);
    int ok = plain_number(c, s, mark);
    if (ok == 1) {
        const char *p = c->tmp.p + mark;
        size_t n = c->tmp.n - mark - 1;
        bool neg = *p == '-', based = false;
        if (*p == '-' || *p == '+') {
            p++;
            n--;
        }
        static const char prefix[] = {'b', 2, 'o', 8, 'x', 16};
        for (size_t i = 0; i < sizeof prefix && n > 2 && p[0] == '0' && !based; i += 2)
            if ((p[1] | 32) == prefix[i] && (base == 0 || base == prefix[i + 1])) {
                base = prefix[i + 1];
                p += 2;
                n -= 2;
                based = true;
            }
        bool zeros = strspn(p, "0") == n;
        if (base == 0) {
            ok = n > 0 && (p[0] != '0' || zeros); /* a leading zero is refused, as in source text */
            base = 10;
        }
        for (size_t i = 0; i < n && ok; i++) {
            int d = isdigit((unsigned char)p[i])   ? p[i] - '0'
                    : isalpha((unsigned char)p[i]) ? (p[i] | 32) - 'a' + 10
                                                   : 99;
            ok = d < base;
        }
        ok = ok && n > 0;
        if (ok && base == 10) {
            ok = infer_jval_int_of_digits(c, neg, p, n, out) ? -1 : 1;
        } else if (ok) {
            int64_t v = 0;
            for (size_t i = 0; i < n; i++) {
                int d = isdigit((unsigned char)p[i]) ? p[i] - '0' : (p[i] | 32) - 'a' + 10;
                if (__builtin_mul_overflow(v, base, &v) || __builtin_add_overflow(v, neg ? -d : d, &v))
                    return overflow(c);
            }
            *out = infer_jval_int(v);
        }
    }
    c->tmp.n = mark;
    return ok;
}
