/* Filters of text, numbers and single values. Filters of sequences: jinja_filter_seq.c. What is not offered is a row
 * without function. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_format.h"
#include "text/jinja_json.h"
#include "text/jinja_strlib.h"
#include "text/jinja_table.h"
#include "text/jinja_unicode.h"

#define FILTER(fn)                                                                                                     \
    static int fn(infer_jctx *c, infer_jval self, infer_jval *a, const infer_jargs *more, infer_jval *out)

static bool given(infer_jval v)
{
    return v.kind != J_MISSING;
}

static bool truthy(infer_jval v)
{
    return v.kind != J_MISSING && infer_jval_truth(v);
}

/* ---- Text ----------------------------------------------------------------------------------------------------------
 */

#define MAP_FILTER(fn, how)                                                                                            \
    FILTER(fn)                                                                                                         \
    {                                                                                                                  \
        (void)a, (void)more;                                                                                           \
        const infer_jstr *s;                                                                                           \
        return infer_jval_to_str(c, self, &s) || infer_jstr_map(c, s, how, out) ? -1 : 0;                              \
    }

MAP_FILTER(filter_upper, infer_ju_upper)
MAP_FILTER(filter_lower, infer_ju_lower)
MAP_FILTER(filter_capitalize, infer_ju_capitalize)

/* Words begin after white space and any of - ( { [ <. */
static void title_words(infer_buf *b, const char *p, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t from = i, first, end;
        uint32_t cp = infer_ju_next(p, &i);
        if (infer_ju_isspace(cp) || (cp < 0x80 && strchr("-({[<", (int)cp) && cp)) {
            infer_buf_append(b, p + from, i - from);
            continue;
        }
        first = end = i;
        while (end < n) {
            cp = infer_ju_next(p, &i);
            if (infer_ju_isspace(cp) || (cp < 0x80 && strchr("-({[<", (int)cp) && cp))
                break;
            end = i;
        }
        infer_ju_upper(b, p + from, first - from);
        infer_ju_lower(b, p + first, end - first);
        i = end;
    }
}
MAP_FILTER(filter_title, title_words)

FILTER(filter_string)
{
    (void)a, (void)more;
    const infer_jstr *s;
    if (infer_jval_to_str(c, self, &s))
        return -1;
    *out = infer_jval_str(s);
    return 0;
}

FILTER(filter_trim)
{
    (void)more;
    const infer_jstr *s, *chars = NULL;
    if (infer_jval_to_str(c, self, &s) ||
        (given(a[0]) && a[0].kind != J_NONE && infer_jval_need_str(c, a[0], "trim argument", &chars)))
        return -1;
    return infer_jstr_strip(c, s, chars, J_STRIP_LEFT | J_STRIP_RIGHT, out);
}

FILTER(filter_replace)
{
    (void)more;
    const infer_jstr *s, *from, *to;
    int64_t count = -1;
    if (infer_jval_to_str(c, self, &s) || infer_jval_to_str(c, a[0], &from) || infer_jval_to_str(c, a[1], &to) ||
        (given(a[2]) && a[2].kind != J_NONE && infer_jval_as_int(c, a[2], "count", &count)))
        return -1;
    return infer_jstr_replace(c, s, from, to, count, out);
}

FILTER(filter_center)
{
    (void)more;
    const infer_jstr *s;
    int64_t width = 80;
    if (infer_jval_to_str(c, self, &s) || (given(a[0]) && infer_jval_as_int(c, a[0], "width", &width)))
        return -1;
    return infer_jstr_center(c, s, width, ' ', out);
}

FILTER(filter_indent)
{
    (void)more;
    const infer_jstr *s, *by;
    infer_jval pad, lines;
    int64_t width = 4;
    if (infer_jval_need_str(c, self, "the value to indent", &s))
        return -1;
    if (a[0].kind == J_STR) {
        by = a[0].u.s;
    } else {
        infer_jstr space = {.p = " ", .n = 1, .len = 1};
        if ((given(a[0]) && infer_jval_as_int(c, a[0], "width", &width)) || infer_jstr_repeat(c, &space, width, &pad))
            return -1;
        by = pad.u.s;
    }
    bool first = truthy(a[1]), blank = truthy(a[2]);
    /* Jinja2 appends a newline first, so that the last line counts even where it is empty. */
    infer_jval text;
    infer_jstr newline = {.p = "\n", .n = 1, .len = 1};
    if (infer_jstr_concat(c, s, &newline, &text) || infer_jstr_splitlines(c, text.u.s, false, &lines))
        return -1;
    size_t mark = infer_jctx_begin(c);
    if (first)
        infer_buf_append(&c->tmp, by->p, by->n);
    for (size_t i = 0; i < lines.u.list->n; i++) {
        const infer_jstr *line = lines.u.list->v[i].u.s;
        if (i) {
            infer_buf_putc(&c->tmp, '\n');
            if (blank || line->n)
                infer_buf_append(&c->tmp, by->p, by->n);
        }
        infer_buf_append(&c->tmp, line->p, line->n);
    }
    return infer_jctx_end(c, mark, out);
}

FILTER(filter_truncate)
{
    (void)more;
    infer_jstr dots = {.p = "...", .n = 3, .len = 3};
    const infer_jstr *s, *end = &dots;
    int64_t length = 255, leeway = 5;
    size_t len;
    infer_jval head;
    if (infer_jval_len(c, self, &len) || (given(a[0]) && infer_jval_as_int(c, a[0], "length", &length)) ||
        (given(a[2]) && infer_jval_need_str(c, a[2], "end", &end)) ||
        (given(a[3]) && a[3].kind != J_NONE && infer_jval_as_int(c, a[3], "leeway", &leeway)))
        return -1;
    if (length < (int64_t)end->len || leeway < 0)
        return infer_jctx_error(c, "truncate: length must be at least that of the end, leeway not negative");
    if ((int64_t)len - leeway <= length) {
        *out = self;
        return 0;
    }
    if (infer_jval_need_str(c, self, "the value to truncate", &s))
        return -1;
    if (infer_jstr_sub(c, s, 0, (size_t)length - end->len, &head))
        return -1;
    const infer_jstr *h = head.u.s;
    if (!truthy(a[1])) { /* back to the last space */
        const char *space = memrchr(h->p, ' ', h->n);
        if (space && infer_jstr_borrow(c, h->p, (size_t)(space - h->p), SIZE_MAX, &head))
            return -1;
    }
    return infer_jstr_concat(c, head.u.s, end, out);
}

FILTER(filter_wordcount)
{
    (void)a, (void)more;
    const infer_jstr *s;
    int64_t n = 0;
    bool in_word = false;
    if (infer_jval_to_str(c, self, &s) || infer_jctx_step(c, s->n / 16))
        return -1;
    for (size_t i = 0; i < s->n;) {
        bool word = infer_ju_isword(infer_ju_next(s->p, &i));
        n += word && !in_word;
        in_word = word;
    }
    *out = infer_jval_int(n);
    return 0;
}

FILTER(filter_format)
{
    (void)a;
    const infer_jstr *s;
    infer_jval arg;
    if (infer_jval_to_str(c, self, &s))
        return -1;
    if (more->n_pos && more->n_kw)
        return infer_jctx_error(c, "can't handle positional and keyword arguments at the same time");
    if (more->n_kw) {
        if (infer_jdict_new(c, &arg))
            return -1;
        for (size_t i = 0; i < more->n_kw; i++)
            if (infer_jdict_put(c, arg.u.dict, more->kw_name[i], more->kw[i]))
                return -1;
    } else {
        if (infer_jlist_new(c, J_TUPLE, more->n_pos, &arg))
            return -1;
        for (size_t i = 0; i < more->n_pos; i++)
            arg.u.list->v[i] = more->pos[i];
    }
    return infer_jformat_percent(c, s, arg, out);
}

/* ---- HTML and URLs
 * --------------------------------------------------------------------------------------------------- */

static int mark_safe(infer_jctx *c, const infer_jstr *s, infer_jval *out)
{
    infer_jstr *copy = infer_jctx_alloc(c, sizeof *copy);
    if (!copy)
        return -1;
    *copy = *s;
    copy->safe = true;
    *out = infer_jval_str(copy);
    return 0;
}

/* Prompts are not HTML: the mark only keeps |escape from escaping twice. Jinja2 would also escape what is added to
 * such a string by +, which spoils prompts of templates written for renderers that do not. */
FILTER(filter_safe)
{
    (void)a, (void)more;
    const infer_jstr *s;
    return infer_jval_to_str(c, self, &s) || mark_safe(c, s, out) ? -1 : 0;
}

FILTER(filter_forceescape)
{
    (void)a, (void)more;
    static const char from[] = "&<>\"'";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    const infer_jstr *s;
    size_t mark = infer_jctx_begin(c);
    infer_jval text;
    if (infer_jval_to_str(c, self, &s))
        return -1;
    for (size_t i = 0; i < s->n; i++) {
        const char *e = s->p[i] ? strchr(from, s->p[i]) : NULL;
        if (e)
            infer_buf_puts(&c->tmp, to[e - from]);
        else
            infer_buf_putc(&c->tmp, s->p[i]);
    }
    return infer_jctx_end(c, mark, &text) || mark_safe(c, text.u.s, out) ? -1 : 0;
}

FILTER(filter_escape)
{
    if (self.kind == J_STR && self.u.s->safe) {
        *out = self;
        return 0;
    }
    return filter_forceescape(c, self, a, more, out);
}

static void quote_byte(infer_buf *b, unsigned char byte)
{
    static const char hex[] = "0123456789ABCDEF";
    const char text[] = {'%', hex[byte >> 4], hex[byte & 15]};
    infer_buf_append(b, text, 3);
}

static int quote_url(infer_jctx *c, infer_jval v, bool query)
{
    const infer_jstr *s;
    if (infer_jval_to_str(c, v, &s) || infer_jctx_work(c, s->n))
        return -1;
    for (size_t i = 0; i < s->n; i++) {
        unsigned char ch = (unsigned char)s->p[i];
        if (ch < 0x80 && (infer_ju_isalpha(ch) || infer_ju_isdecimal(ch) || strchr("_.-~", ch)) && ch)
            infer_buf_putc(&c->tmp, (char)ch);
        else if (ch == '/' && !query)
            infer_buf_putc(&c->tmp, '/');
        else if (ch == ' ' && query)
            infer_buf_putc(&c->tmp, '+');
        else
            quote_byte(&c->tmp, ch);
    }
    return 0;
}

FILTER(filter_urlencode)
{
    (void)a, (void)more;
    size_t mark = infer_jctx_begin(c);
    infer_jiter it;
    infer_jval pair, items = self, k, v;
    if (self.kind == J_STR || !infer_jval_is_iterable(self))
        return quote_url(c, self, false) || infer_jctx_end(c, mark, out) ? -1 : 0;
    if (self.kind == J_DICT) {
        const infer_jrow *row = infer_jrow_method("items", 5, J_BIT(J_DICT));
        if (infer_jrow_call(c, row, "method", self, &(infer_jargs){0}, &items))
            return -1;
    }
    if (infer_jval_iterate(c, items, &it))
        return -1;
    int rc;
    for (bool first = true; (rc = it.next(c, &it, &pair)) == 0; first = false) {
        if (!infer_jval_is_iterable(pair) || infer_jval_to_list(c, pair, &pair) || pair.u.list->n != 2)
            return infer_jctx_error(c, "urlencode needs pairs");
        k = pair.u.list->v[0];
        v = pair.u.list->v[1];
        if (!first)
            infer_buf_putc(&c->tmp, '&');
        if (quote_url(c, k, true))
            return -1;
        infer_buf_putc(&c->tmp, '=');
        if (quote_url(c, v, true))
            return -1;
    }
    return rc < 0 || infer_jctx_end(c, mark, out) ? -1 : 0;
}

/* ---- JSON
 * ------------------------------------------------------------------------------------------------------------ */

FILTER(filter_tojson)
{
    (void)more;
    infer_jval pair[2], text;
    infer_jjson_style st = {.indent = given(a[1]) ? a[1] : infer_jval_none()};
    if (st.indent.kind == J_BOOL)
        st.indent = infer_jval_int(st.indent.u.b);
    if (st.indent.kind != J_NONE && st.indent.kind != J_INT && st.indent.kind != J_STR)
        return infer_jctx_error(c, "tojson: indent must be an integer, a string or none");
    if (infer_jstr_borrow(c, st.indent.kind == J_NONE ? ", " : ",", st.indent.kind == J_NONE ? 2 : 1, SIZE_MAX,
                          &pair[0]) ||
        infer_jstr_borrow(c, ": ", 2, 2, &pair[1]))
        return -1;
    if (given(a[2]) && a[2].kind != J_NONE) {
        infer_jval list;
        if (infer_jval_to_list(c, a[2], &list))
            return -1;
        if (list.u.list->n != 2 || list.u.list->v[0].kind != J_STR || list.u.list->v[1].kind != J_STR)
            return infer_jctx_error(c, "tojson: separators must be two strings");
        pair[0] = list.u.list->v[0];
        pair[1] = list.u.list->v[1];
    }
    st.item = pair[0].u.s;
    st.key = pair[1].u.s;
    st.ascii = truthy(a[0]);
    st.sort = truthy(a[3]);
    size_t mark = infer_jctx_begin(c);
    if (infer_jjson_write(c, self, &st) || infer_jctx_end(c, mark, &text))
        return -1;
    *out = text;
    return 0;
}

/* ---- Numbers
 * --------------------------------------------------------------------------------------------------------- */

FILTER(filter_int)
{
    (void)more;
    int64_t base = 10;
    double f;
    int ok = 0;
    if (self.kind == J_UNDEFINED)
        return infer_jval_use_undefined(c, self);
    if (given(a[1]) && infer_jval_as_int(c, a[1], "base", &base))
        return -1;
    *out = given(a[0]) ? a[0] : infer_jval_int(0);
    if (self.kind == J_STR) {
        if (base == 0 || (base >= 2 && base <= 36))
            ok = infer_jstr_to_int(c, self.u.s, (int)base, out);
        if (!ok)
            ok = infer_jstr_to_float(c, self.u.s, &f) == 1 && isfinite(f) ? infer_jval_int_of_double(c, f, out) : 0;
        return ok < 0 || c->status ? -1 : 0;
    }
    if (self.kind == J_FLOAT) {
        if (isinf(self.u.f))
            return infer_jctx_error(c, "cannot convert float infinity to integer");
        return isnan(self.u.f) ? 0 : infer_jval_int_of_double(c, self.u.f, out);
    }
    if (self.kind == J_INT || self.kind == J_BIG)
        *out = self;
    else if (self.kind == J_BOOL)
        *out = infer_jval_int(self.u.b);
    return 0;
}

FILTER(filter_float)
{
    (void)more;
    double f;
    if (self.kind == J_UNDEFINED)
        return infer_jval_use_undefined(c, self);
    *out = given(a[0]) ? a[0] : infer_jval_float(0);
    if (self.kind == J_STR) {
        int ok = infer_jstr_to_float(c, self.u.s, &f);
        if (ok == 1)
            *out = infer_jval_float(f);
        return ok < 0 ? -1 : 0;
    }
    if (infer_jval_is_number(self))
        *out = infer_jval_float(infer_jval_as_double(self));
    return 0;
}

FILTER(filter_abs)
{
    (void)a, (void)more;
    if (self.kind == J_FLOAT) {
        *out = infer_jval_float(fabs(self.u.f));
        return 0;
    }
    if (self.kind == J_UNDEFINED)
        return infer_jval_use_undefined(c, self);
    if (!infer_jval_is_number(self))
        return infer_jctx_error(c, "bad operand type for abs(): '%s'", infer_jval_type(self));
    int negative = infer_jval_order(c, J_LT, self, infer_jval_int(0));
    if (negative)
        return negative < 0 ? -1 : infer_jval_negate(c, self, out);
    return infer_jval_plus(c, self, out);
}

/* round() of Python: exact decimal, ties to even. */
static int round_common(infer_jctx *c, infer_jval v, int64_t places, infer_jval *out)
{
    if (v.kind == J_BIG)
        return infer_jctx_error(c, "integer overflow: the number does not fit 64 bits");
    if (v.kind != J_FLOAT) { /* stays an integer */
        int64_t i = v.kind == J_BOOL ? v.u.b : v.u.i, unit = 1;
        for (int64_t k = places; k < 0; k++)
            if (__builtin_mul_overflow(unit, 10, &unit)) { /* beyond 10^18 */
                if (places == -19 && (i >= 5000000000000000000 || i <= -5000000000000000000))
                    return infer_jctx_error(c, "integer overflow: the result does not fit 64 bits");
                *out = infer_jval_int(0);
                return 0;
            }
        int64_t rest = i % unit, half = unit / 2;
        if (rest < 0)
            rest += unit; /* distance to the multiple below */
        int64_t low = 0;
        if (__builtin_sub_overflow(i, rest, &low))
            return infer_jctx_error(c, "integer overflow: the result does not fit 64 bits");
        bool up = rest > half || (unit > 1 && rest == half && (low / unit) % 2 != 0);
        if (up && __builtin_add_overflow(low, unit, &low))
            return infer_jctx_error(c, "integer overflow: the result does not fit 64 bits");
        *out = infer_jval_int(low);
        return 0;
    }
    double f = v.u.f;
    if (!isfinite(f) || places > 323 || f == 0) {
        *out = v;
        return 0;
    }
    if (places < -308) {
        *out = infer_jval_float(copysign(0.0, f));
        return 0;
    }
    char text[700];
    if (places >= 0) {
        snprintf(text, sizeof text, "%.*f", (int)places, f);
    } else { /* round the digits left of the point: of the exact decimal, through %e */
        int exp = (int)floor(log10(fabs(f)));
        double unit = pow(10, (double)-places);
        if (exp + (int)places < -1) {
            *out = infer_jval_float(copysign(0.0, f));
            return 0;
        }
        snprintf(text, sizeof text, "%.0f", f / unit);
        snprintf(text + strlen(text), 16, "e%d", (int)-places);
    }
    f = strtod(text, NULL);
    if (isinf(f))
        return infer_jctx_error(c, "rounded value too large to represent");
    *out = infer_jval_float(f);
    return 0;
}

FILTER(filter_round)
{
    (void)more;
    int64_t places = 0;
    if (given(a[0]) && infer_jval_as_int(c, a[0], "precision", &places))
        return -1;
    const infer_jstr *method = NULL;
    if (given(a[1]) && infer_jval_need_str(c, a[1], "method", &method))
        return -1;
    bool up = method && infer_jstr_is(method, "ceil"), down = method && infer_jstr_is(method, "floor");
    if (method && !up && !down && !infer_jstr_is(method, "common"))
        return infer_jctx_error(c, "method must be common, ceil or floor");
    if (self.kind == J_UNDEFINED)
        return infer_jval_use_undefined(c, self);
    if (!infer_jval_is_number(self))
        return infer_jctx_error(c, "type %s doesn't define __round__ method", infer_jval_type(self));
    if (!up && !down)
        return round_common(c, self, places, out);
    infer_jval unit, v;
    if (infer_jval_binary(c, J_POW, infer_jval_int(10), infer_jval_int(places), &unit) ||
        infer_jval_binary(c, J_MUL, self, unit, &v))
        return -1;
    if (v.kind == J_FLOAT) {
        if (!isfinite(v.u.f))
            return infer_jctx_error(c, "cannot convert float to integer");
        if (infer_jval_int_of_double(c, up ? ceil(v.u.f) : floor(v.u.f), &v))
            return -1;
    }
    return infer_jval_binary(c, J_DIV, v, unit, out);
}

FILTER(filter_filesizeformat)
{
    (void)more;
    static const char prefixes[] = "kMGTPEZY";
    bool binary = truthy(a[0]);
    double base = binary ? 1024 : 1000, unit = base * base;
    size_t mark = infer_jctx_begin(c);
    double bytes = 0;
    int ok = 1;
    if (self.kind == J_STR)
        ok = infer_jstr_to_float(c, self.u.s, &bytes);
    else if (infer_jval_is_number(self))
        bytes = infer_jval_as_double(self);
    else
        return infer_jctx_error(c, "float() argument must be a string or a number, not '%s'", infer_jval_type(self));
    if (ok != 1)
        return ok < 0 ? -1 : infer_jctx_error(c, "could not convert string to float");
    if (!(bytes < base) && !isfinite(bytes))
        return infer_jctx_error(c, "cannot convert float %s to a size", isnan(bytes) ? "NaN" : "infinity");
    if (bytes == 1) {
        infer_buf_puts(&c->tmp, "1 Byte");
    } else if (bytes < base) {
        infer_buf_printf(&c->tmp, "%.0f Bytes", trunc(bytes));
    } else {
        size_t i = 0;
        for (; i + 1 < strlen(prefixes) && bytes >= unit; i++)
            unit *= base;
        char prefix = binary && i == 0 ? 'K' : prefixes[i];
        infer_buf_printf(&c->tmp, "%.1f %c%sB", base * bytes / unit, prefix, binary ? "i" : "");
    }
    return infer_jctx_end(c, mark, out);
}

/* ---- Values
 * ---------------------------------------------------------------------------------------------------------- */

FILTER(filter_default)
{
    (void)c, (void)more;
    bool use = self.kind == J_UNDEFINED || (truthy(a[1]) && !infer_jval_truth(self));
    *out = !use ? self : given(a[0]) ? a[0] : infer_jval_str(&infer_jstr_empty);
    return 0;
}

FILTER(filter_length)
{
    (void)a, (void)more;
    size_t n;
    if (infer_jval_len(c, self, &n))
        return -1;
    *out = infer_jval_int((int64_t)n);
    return 0;
}

FILTER(filter_attr)
{
    (void)more;
    const infer_jstr *name;
    if (infer_jval_need_str(c, a[0], "attribute name", &name))
        return -1;
    if (self.kind == J_DICT && !infer_jrow_method(name->p, name->n, J_BIT(J_DICT)))
        return infer_jval_undefined(c, NULL, self, a[0], out); /* attributes only, no items */
    return infer_jval_getattr(c, self, a[0], true, out);
}

const infer_jrow infer_jrows_filter[] = {
    {"abs", filter_abs, "/", 0},
    {"attr", filter_attr, "name", 0},
    {"capitalize", filter_capitalize, "/", 0},
    {"center", filter_center, "width?", 0},
    {"count", filter_length, "/", 0},
    {"d", filter_default, "default_value? boolean?", 0},
    {"default", filter_default, "default_value? boolean?", 0},
    {"e", filter_escape, "/", 0},
    {"escape", filter_escape, "/", 0},
    {"filesizeformat", filter_filesizeformat, "binary?", 0},
    {"float", filter_float, "default?", 0},
    {"forceescape", filter_forceescape, "/", 0},
    {"format", filter_format, "* **", 0},
    {"indent", filter_indent, "width? first? blank?", 0},
    {"int", filter_int, "default? base?", 0},
    {"length", filter_length, "/", 0},
    {"lower", filter_lower, "/", 0},
    {"replace", filter_replace, "old new count?", 0},
    {"round", filter_round, "precision? method?", 0},
    {"safe", filter_safe, "/", 0},
    {"string", filter_string, "/", 0},
    {"title", filter_title, "/", 0},
    {"tojson", filter_tojson, "ensure_ascii? indent? separators? sort_keys?", 0}, /* transformers' order */
    {"trim", filter_trim, "chars?", 0},
    {"truncate", filter_truncate, "length? killwords? end? leeway?", 0},
    {"upper", filter_upper, "/", 0},
    {"urlencode", filter_urlencode, "/", 0},
    {"wordcount", filter_wordcount, "/", 0},
    {"pprint", NULL, "/", 0},
    {"random", NULL, "/", 0},
    {"striptags", NULL, "/", 0},
    {"urlize", NULL, "* **", 0},
    {"wordwrap", NULL, "* **", 0},
    {"xmlattr", NULL, "* **", 0},
    {NULL, NULL, NULL, 0},
};
