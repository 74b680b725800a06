/* printf-style and brace-style formatting as Python does both. Not the locale's forms ("n"), not zero padding across
 * group separators: those are refused by name. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_format.h"
#include "text/jinja_ops.h"
#include "text/jinja_unicode.h"

#define MAX_PRECISION 1000

/* What both kinds of directives come down to. */
typedef struct spec {
    uint32_t fill; /* 0: not given */
    char align, sign, group, type;
    bool alt, zero;
    int64_t width, prec; /* prec -1: not given */
} spec;

int infer_jformat_pad(infer_jctx *c, const char *p, size_t n, size_t head, char align, uint32_t fill, int64_t width)
{
    int64_t len = (int64_t)infer_ju_count(p, n), pad = width > len ? width - len : 0;
    int64_t left = align == '<' ? 0 : align == '^' ? pad / 2 : pad;
    if (align != '=')
        head = 0;
    infer_buf_append(&c->tmp, p, head);
    if (infer_jctx_fill(c, fill, left))
        return -1;
    infer_buf_append(&c->tmp, p + head, n - head);
    if (infer_jctx_fill(c, fill, pad - left))
        return -1;
    return c->tmp.failed ? infer_jctx_buf_failed(c, &c->tmp) : infer_jctx_work(c, n);
}

/* Cuts the text built behind mark off tmp and appends it padded. `head` bytes are sign and base. */
static int pad_built(infer_jctx *c, size_t mark, size_t head, const spec *s, char align)
{
    infer_jval text;
    if (infer_jctx_end(c, mark, &text))
        return -1;
    return infer_jformat_pad(c, text.u.s->p, text.u.s->n, head, align, s->fill ? s->fill : ' ', s->width);
}

static char number_align(const spec *s)
{
    return s->align ? s->align : '>';
}

/* Inserts a separator each `every` digits from the right of the digits behind `from` in tmp. */
static void group_digits(infer_jctx *c, size_t from, size_t n, char sep, size_t every)
{
    size_t seps = n ? (n - 1) / every : 0;
    if (!seps || !infer_buf_reserve(&c->tmp, seps))
        return;
    char *p = c->tmp.p + from, *tail = p + n;
    memmove(tail + seps, tail, c->tmp.n - from - n);
    c->tmp.n += seps;
    for (size_t i = n, o = n + seps, k = 0; i > 0; i--) {
        if (k && k % every == 0)
            p[--o] = sep;
        p[--o] = p[i - 1];
        k++;
    }
    c->tmp.p[c->tmp.n] = 0;
}

static int format_int(infer_jctx *c, infer_jval v, const spec *s)
{
    size_t mark = infer_jctx_begin(c);
    infer_buf *b = &c->tmp;
    char digits[80];
    const char *p = digits;
    size_t n;
    bool neg;
    unsigned base = s->type == 'x' || s->type == 'X' ? 16 : s->type == 'o' ? 8 : s->type == 'b' ? 2 : 10;
    if (v.kind == J_BIG) {
        if (base != 10)
            return infer_jctx_error(c, "integer overflow: the number does not fit 64 bits");
        neg = v.u.s->p[0] == '-';
        p = v.u.s->p + neg;
        n = v.u.s->n - neg;
    } else {
        int64_t i = v.kind == J_BOOL ? v.u.b : v.u.i;
        neg = i < 0;
        uint64_t u = neg ? 0 - (uint64_t)i : (uint64_t)i;
        char *o = digits + sizeof digits;
        do {
            *--o = (s->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[u % base];
            u /= base;
        } while (u);
        p = o;
        n = (size_t)(digits + sizeof digits - o);
    }
    if (neg || s->sign)
        infer_buf_putc(b, neg ? '-' : s->sign);
    if (s->alt && base != 10) {
        infer_buf_putc(b, '0');
        infer_buf_putc(b, s->type);
    }
    size_t head = b->n - mark;
    if (infer_jctx_fill(c, '0', s->prec - (int64_t)n))
        return -1;
    infer_buf_append(b, p, n);
    if (s->group && !b->failed)
        group_digits(c, mark + head, n, s->group, base == 10 ? 3 : 4);
    return pad_built(c, mark, head, s, number_align(s));
}

/* A float by Python's rule for no type letter: repr, or with a precision like %g but never an integer's look. */
static void put_plain_float(infer_buf *b, double f, int64_t prec)
{
    char num[MAX_PRECISION + 16];
    if (prec < 0) {
        infer_jfloat_repr(f, num);
        infer_buf_puts(b, num);
        return;
    }
    if (!prec)
        prec = 1;
    snprintf(num, sizeof num, "%.*e", (int)prec - 1, f);
    int exp = atoi(strchr(num, 'e') + 1);
    if (exp < -4 || exp + 1 > prec - 1) {
        char *e = strchr(num, 'e'), *end = e;
        if (memchr(num, '.', (size_t)(e - num))) {
            while (end[-1] == '0')
                end--;
            end -= end[-1] == '.';
        }
        infer_buf_append(b, num, (size_t)(end - num));
        infer_buf_puts(b, e);
        return;
    }
    snprintf(num, sizeof num, "%.*g", (int)prec, f);
    infer_buf_puts(b, num);
    if (!strchr(num, '.'))
        infer_buf_puts(b, ".0");
}

static int format_float(infer_jctx *c, double f, const spec *s)
{
    size_t mark = infer_jctx_begin(c);
    infer_buf *b = &c->tmp;
    char type = s->type == '%' ? 'f' : s->type;
    if (s->prec > MAX_PRECISION)
        return infer_jctx_fail(c, INFER_E_TOO_LARGE, "a precision above %d", MAX_PRECISION);
    if (infer_jctx_step(c, 20 + (s->prec > 0 ? (uint64_t)s->prec / 2 : 0)))
        return -1;
    if (s->type == '%')
        f *= 100;
    if (signbit(f) && !isnan(f))
        infer_buf_putc(b, '-');
    else if (s->sign)
        infer_buf_putc(b, s->sign);
    size_t head = b->n - mark;
    f = fabs(f);
    if (!isfinite(f)) {
        bool upper = type == 'E' || type == 'F' || type == 'G';
        infer_buf_puts(b, isnan(f) ? (upper ? "NAN" : "nan") : upper ? "INF" : "inf");
    } else if (!type) {
        put_plain_float(b, f, s->prec);
    } else {
        char pattern[] = {'%', '#', '.', '*', type, 0};
        if (!s->alt)
            memmove(pattern + 1, pattern + 2, 4);
        infer_buf_printf(b, pattern, s->prec < 0 ? 6 : (int)s->prec, f);
    }
    if (s->group && !b->failed && isfinite(f))
        group_digits(c, mark + head, strspn(b->p + mark + head, "0123456789"), s->group, 3);
    if (s->type == '%')
        infer_buf_putc(b, '%');
    return pad_built(c, mark, head, s, number_align(s));
}

static int format_text(infer_jctx *c, const infer_jstr *t, const spec *s)
{
    size_t n = t->n;
    if (s->prec >= 0 && (uint64_t)s->prec < t->len)
        n = infer_jstr_offset(t, (size_t)s->prec);
    return infer_jformat_pad(c, t->p, n, 0, s->align ? s->align : '<', s->fill ? s->fill : ' ', s->width);
}

static int format_char(infer_jctx *c, infer_jval v, const spec *s)
{
    if (v.kind == J_STR && v.u.s->len == 1)
        return format_text(c, v.u.s, &(spec){.prec = -1, .width = s->width, .align = s->align, .fill = s->fill});
    int64_t cp;
    if (v.kind == J_STR || infer_jval_as_int(c, v, "%c argument", &cp))
        return infer_jctx_error(c, "%%c requires int or char");
    if (cp < 0 || cp > 0x10FFFF)
        return infer_jctx_error(c, "%%c arg not in range(0x110000)");
    size_t mark = infer_jctx_begin(c);
    infer_buf_put_utf8(&c->tmp, (uint32_t)cp);
    return pad_built(c, mark, 0, s, s->align ? s->align : '<');
}

/* str, repr or ascii of v by conversion letter. */
static int convert(infer_jctx *c, infer_jval v, char how, infer_jval *out)
{
    size_t mark = infer_jctx_begin(c);
    if (how == 's' ? infer_jval_str_to_tmp(c, v) : infer_jval_repr(c, v))
        return -1;
    if (infer_jctx_end(c, mark, out))
        return -1;
    if (how != 'a')
        return 0;
    for (size_t i = 0; i < out->u.s->n;) {
        uint32_t cp = infer_ju_next(out->u.s->p, &i);
        if (cp < 0x80)
            infer_buf_putc(&c->tmp, (char)cp);
        else
            infer_ju_put_escape(&c->tmp, cp);
    }
    return infer_jctx_end(c, mark, out);
}

/* Decimal digits at *i: 1 and *out, 0 if there are none, -1 out of range. */
static int number_at(infer_jctx *c, const infer_jstr *s, size_t *i, int64_t *out)
{
    size_t from = *i;
    int64_t v = 0;
    for (; *i < s->n && s->p[*i] >= '0' && s->p[*i] <= '9'; ++*i) {
        v = v * 10 + (s->p[*i] - '0');
        if (v > INT32_MAX)
            return infer_jctx_error(c, "a width or precision is too big");
    }
    *out = v;
    return *i > from;
}

/* ---- fmt % arg ------------------------------------------------------------------------------------------------- */

typedef struct percent {
    const infer_jstr *fmt;
    infer_jval arg;
    size_t i, next; /* in fmt; in the tuple */
} percent;

static int next_argument(infer_jctx *c, percent *p, infer_jval *out)
{
    bool tuple = p->arg.kind == J_TUPLE;
    if (p->next >= (tuple ? p->arg.u.list->n : 1))
        return infer_jctx_error(c, "not enough arguments for format string");
    *out = tuple ? p->arg.u.list->v[p->next] : p->arg;
    p->next++;
    return 0;
}

/* A number or "*" (from the arguments). */
static int percent_number(infer_jctx *c, percent *p, int64_t *out)
{
    if (p->i < p->fmt->n && p->fmt->p[p->i] == '*') {
        infer_jval v;
        p->i++;
        if (next_argument(c, p, &v) || infer_jval_as_int(c, v, "* width", out))
            return -1;
        return *out > INT32_MAX || *out < -INT32_MAX ? infer_jctx_error(c, "a width or precision is too big") : 0;
    }
    return number_at(c, p->fmt, &p->i, out) < 0 ? -1 : 0;
}

static int percent_one(infer_jctx *c, percent *p)
{
    const infer_jstr *f = p->fmt;
    spec s = {.prec = -1};
    infer_jval v = {.kind = J_MISSING};
    if (p->i < f->n && f->p[p->i] == '(') {
        size_t from = ++p->i;
        int depth = 1;
        while (p->i < f->n && depth) {
            depth += (f->p[p->i] == '(') - (f->p[p->i] == ')');
            p->i++;
        }
        if (depth)
            return infer_jctx_error(c, "incomplete format key");
        if (p->arg.kind != J_DICT)
            return infer_jctx_error(c, "format requires a mapping");
        int found = infer_jdict_get_text(c, p->arg.u.dict, f->p + from, p->i - 1 - from, &v);
        if (found <= 0)
            return found < 0 ? -1 : infer_jctx_error(c, "no key '%.*s'", (int)(p->i - 1 - from), f->p + from);
    }
    for (; p->i < f->n && f->p[p->i] && strchr("-+ #0", f->p[p->i]); p->i++) {
        char flag = f->p[p->i];
        if (flag == '-')
            s.align = '<';
        else if (flag == '#')
            s.alt = true;
        else if (flag == '0')
            s.zero = true;
        else if (s.sign != '+')
            s.sign = flag;
    }
    if (percent_number(c, p, &s.width))
        return -1;
    if (s.width < 0) {
        s.align = '<';
        s.width = -s.width;
    }
    if (p->i < f->n && f->p[p->i] == '.') {
        p->i++;
        if (percent_number(c, p, &s.prec))
            return -1;
        s.prec = s.prec < 0 ? 0 : s.prec;
    }
    while (p->i < f->n && f->p[p->i] && strchr("hlL", f->p[p->i]))
        p->i++;
    if (p->i >= f->n)
        return infer_jctx_error(c, "incomplete format");
    s.type = f->p[p->i++];
    if (s.type == '%') {
        infer_buf_putc(&c->tmp, '%');
        return 0;
    }
    if (!s.type || !strchr("diuoxXeEfFgGcrsa", s.type))
        return infer_jctx_error(c, "unsupported format character '%c'", s.type);
    if (v.kind == J_MISSING && next_argument(c, p, &v))
        return -1;
    if (strchr("rsa", s.type)) {
        infer_jval text;
        s.align = s.align ? s.align : '>';
        return convert(c, v, s.type, &text) ? -1 : format_text(c, text.u.s, &s);
    }
    if (s.type == 'c') {
        s.align = s.align ? s.align : '>';
        return format_char(c, v, &s);
    }
    if (v.kind == J_UNDEFINED)
        return infer_jval_use_undefined(c, v);
    if (!infer_jval_is_number(v))
        return infer_jctx_error(c, "%%%c format: a number is required, not %s", s.type, infer_jval_type(v));
    if (s.zero && !s.align) {
        s.align = '=';
        s.fill = '0';
    }
    if (strchr("eEfFgG", s.type))
        return format_float(c, infer_jval_as_double(v), &s);
    if (v.kind == J_FLOAT) {
        if (!strchr("diu", s.type))
            return infer_jctx_error(c, "%%%c format: an integer is required, not float", s.type);
        if (!isfinite(v.u.f))
            return infer_jctx_error(c, "cannot convert float to integer");
        if (infer_jval_int_of_double(c, v.u.f, &v))
            return -1;
    }
    return format_int(c, v, &s);
}

int infer_jformat_percent(infer_jctx *c, const infer_jstr *fmt, infer_jval arg, infer_jval *out)
{
    percent p = {.fmt = fmt, .arg = arg};
    size_t mark = infer_jctx_begin(c);
    while (p.i < fmt->n) {
        const char *at = memchr(fmt->p + p.i, '%', fmt->n - p.i);
        size_t plain = at ? (size_t)(at - fmt->p) - p.i : fmt->n - p.i;
        infer_buf_append(&c->tmp, fmt->p + p.i, plain);
        p.i += plain;
        if (!at)
            break;
        p.i++;
        if (infer_jctx_step(c, 1) || percent_one(c, &p))
            return -1;
    }
    /* Python lets what can be subscripted stay unused. */
    bool mapping = arg.kind == J_DICT || arg.kind == J_LIST || arg.kind == J_RANGE || arg.kind == J_UNDEFINED;
    if (!mapping && p.next < (arg.kind == J_TUPLE ? arg.u.list->n : 1))
        return infer_jctx_error(c, "not all arguments converted during string formatting");
    return infer_jctx_end(c, mark, out);
}

/* ---- fmt.format(…) --------------------------------------------------------------------------------------------- */

typedef struct braces {
    const infer_jargs *args;
    int64_t next; /* automatic numbering; -1 once a number was written out */
} braces;

static int parse_spec(infer_jctx *c, const infer_jstr *t, spec *s)
{
    *s = (spec){.prec = -1};
    size_t i = 0, after = 0;
    uint32_t first = t->n ? infer_ju_next(t->p, &after) : 0;
    if (after < t->n && strchr("<>=^", t->p[after]) && t->p[after]) {
        s->fill = first;
        s->align = t->p[after];
        i = after + 1;
    } else if (t->n && first && first < 0x80 && strchr("<>=^", (int)first)) {
        s->align = (char)first;
        i = 1;
    }
    if (i < t->n && (t->p[i] == '+' || t->p[i] == '-' || t->p[i] == ' ')) {
        s->sign = t->p[i] == '-' ? 0 : t->p[i];
        i++;
    }
    if (i < t->n && t->p[i] == '#') {
        s->alt = true;
        i++;
    }
    if (i < t->n && t->p[i] == '0') {
        s->zero = true;
        i++;
    }
    if (number_at(c, t, &i, &s->width) < 0)
        return -1;
    if (i < t->n && (t->p[i] == ',' || t->p[i] == '_'))
        s->group = t->p[i++];
    if (i < t->n && t->p[i] == '.') {
        i++;
        int got = number_at(c, t, &i, &s->prec);
        if (got <= 0)
            return got < 0 ? -1 : infer_jctx_error(c, "Format specifier missing precision");
    }
    if (i < t->n)
        s->type = t->p[i++];
    if (i < t->n)
        return infer_jctx_error(c, "Invalid format specifier '%.*s'", (int)(t->n > 100 ? 100 : t->n), t->p);
    return 0;
}

/* format(v, text). */
static int format_value(infer_jctx *c, infer_jval v, const infer_jstr *text)
{
    spec s;
    if (!text->n)
        return infer_jval_str_to_tmp(c, v);
    if (v.kind != J_STR && !infer_jval_is_number(v))
        return infer_jctx_error(c, "unsupported format string passed to %s.__format__", infer_jval_type(v));
    if (parse_spec(c, text, &s))
        return -1;
    if (v.kind == J_STR) {
        if ((s.type && s.type != 's') || s.align == '=' || s.group || s.alt)
            return infer_jctx_error(c, "invalid format specifier for 'str'");
        if (s.zero && !s.fill)
            s.fill = '0';
        return format_text(c, v.u.s, &s);
    }
    if (s.zero && !s.fill) {
        s.fill = '0';
        s.align = s.align ? s.align : '=';
    }
    if (s.group && s.fill == '0' && s.align == '=')
        return infer_jctx_fail(c, INFER_E_UNSUPPORTED, "format: zero padding with group separators is not offered");
    bool real = v.kind == J_FLOAT || (s.type && strchr("eEfFgG%", s.type));
    if (s.type && (!strchr(real ? "eEfFgG%" : "bcdoxX", s.type) || (!real && s.prec >= 0)))
        return infer_jctx_error(c, "Unknown format code '%c' for object of type '%s'", s.type, infer_jval_type(v));
    if (s.type == 'c')
        return format_char(c, v, &s);
    return real ? format_float(c, infer_jval_as_double(v), &s) : format_int(c, v, &s);
}

/* The value of a replacement field such as "0", "name.attr" or "rows[2]". */
static int field_value(infer_jctx *c, braces *br, const char *p, size_t n, infer_jval *out)
{
    size_t i = 0;
    infer_jval key;
    while (i < n && p[i] != '.' && p[i] != '[')
        i++;
    if (infer_jstr_borrow(c, p, i, SIZE_MAX, &key))
        return -1;
    size_t digits = 0;
    while (digits < i && p[digits] >= '0' && p[digits] <= '9')
        digits++;
    if (digits == i) { /* a number, or nothing */
        int64_t at = br->next;
        size_t k = 0;
        if ((i == 0) != (br->next >= 0) && br->next != 0)
            return infer_jctx_error(c, "cannot mix automatic and manual field numbering");
        if (i && number_at(c, key.u.s, &k, &at) < 0)
            return -1;
        br->next = i ? -1 : br->next + 1;
        if ((uint64_t)at >= br->args->n_pos)
            return infer_jctx_error(c, "Replacement index %lld out of range for positional args tuple", (long long)at);
        *out = br->args->pos[at];
    } else {
        size_t k = 0;
        while (k < br->args->n_kw && infer_jval_eq(c, br->args->kw_name[k], key) != 1)
            k++;
        if (k == br->args->n_kw)
            return infer_jctx_error(c, "no argument '%.*s' to format", (int)(i > 100 ? 100 : i), p);
        *out = br->args->kw[k];
    }
    while (i < n) {
        bool item = p[i++] == '[';
        size_t from = i;
        while (i < n && (item ? p[i] != ']' : p[i] != '.' && p[i] != '['))
            i++;
        if (i == from || (item && i >= n))
            return infer_jctx_error(c, "malformed field name in format string");
        if (infer_jstr_borrow(c, p + from, i - from, SIZE_MAX, &key))
            return -1;
        size_t k = 0;
        int64_t at = 0;
        int number = item ? number_at(c, key.u.s, &k, &at) : 0;
        infer_jval obj = *out;
        if (number < 0)
            return -1;
        if (number && k == key.u.s->n)
            key = infer_jval_int(at);
        if (item ? infer_jval_getitem(c, obj, key, out) : infer_jval_getattr(c, obj, key, true, out))
            return -1;
        i += item;
        if (item && i < n && p[i] != '.' && p[i] != '[')
            return infer_jctx_error(c, "Only '.' or '[' may follow ']' in format field specifier");
    }
    return 0;
}

static int format_braces(infer_jctx *c, braces *br, const infer_jstr *f, int level)
{
    if (level > 2)
        return infer_jctx_error(c, "Max string recursion exceeded");
    for (size_t i = 0; i < f->n; i++) {
        char ch = f->p[i];
        if (ch != '{' && ch != '}') {
            infer_buf_putc(&c->tmp, ch);
            continue;
        }
        if (i + 1 < f->n && f->p[i + 1] == ch) {
            infer_buf_putc(&c->tmp, ch);
            i++;
            continue;
        }
        if (ch == '}')
            return infer_jctx_error(c, "Single '}' encountered in format string");
        size_t from = ++i, open = 1;
        size_t bang = SIZE_MAX, colon = SIZE_MAX;
        bool bracket = false;
        for (; i < f->n && open; i++) {
            ch = f->p[i];
            if (ch == '[' && colon == SIZE_MAX)
                bracket = true;
            else if (ch == ']')
                bracket = false;
            open += ch == '{';
            open -= ch == '}';
            if (open == 1 && !bracket && colon == SIZE_MAX && ch == '!' && bang == SIZE_MAX)
                bang = i;
            if (open == 1 && !bracket && colon == SIZE_MAX && ch == ':')
                colon = i;
        }
        if (open)
            return infer_jctx_error(c, "expected '}' before end of string");
        size_t end = --i; /* at the closing brace */
        size_t name_end = bang != SIZE_MAX ? bang : colon != SIZE_MAX ? colon : end;
        infer_jval v, text = infer_jval_str(&infer_jstr_empty);
        if (infer_jctx_step(c, 1) || field_value(c, br, f->p + from, name_end - from, &v))
            return -1;
        if (bang != SIZE_MAX) {
            size_t stop = colon != SIZE_MAX ? colon : end;
            char how = stop - bang == 2 ? f->p[bang + 1] : 0;
            if (!how || !strchr("rsa", how))
                return infer_jctx_error(c, "Unknown conversion specifier in format string");
            if (convert(c, v, how, &v))
                return -1;
        }
        if (colon != SIZE_MAX) {
            infer_jstr inner = {.p = f->p + colon + 1, .n = end - colon - 1};
            inner.len = infer_ju_count(inner.p, inner.n);
            size_t mark = infer_jctx_begin(c);
            if (format_braces(c, br, &inner, level + 1) || infer_jctx_end(c, mark, &text))
                return -1;
        }
        if (format_value(c, v, text.u.s))
            return -1;
    }
    return c->tmp.failed ? infer_jctx_buf_failed(c, &c->tmp) : 0;
}

int infer_jformat_braces(infer_jctx *c, const infer_jstr *fmt, const infer_jargs *args, infer_jval *out)
{
    braces br = {.args = args};
    size_t mark = infer_jctx_begin(c);
    if (infer_jctx_work(c, fmt->n) || format_braces(c, &br, fmt, 1) || infer_jctx_end(c, mark, out))
        return -1;
    return 0;
}
