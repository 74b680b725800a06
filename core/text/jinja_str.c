/* Methods of strings that make other strings, and predicates. Searching and splitting: jinja_str_seek.c.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "text/jinja_format.h"
#include "text/jinja_strlib.h"
#include "text/jinja_table.h"
#include "text/jinja_unicode.h"

int infer_jval_need_str(infer_jctx *c, infer_jval v, const char *what, const infer_jstr **out)
{
    if (v.kind != J_STR)
        return infer_jctx_error(c, "%s must be str, not %s", what, infer_jval_type(v));
    *out = v.u.s;
    return 0;
}

/* ---- Shared with filters --------------------------------------------------------------------------------------- */

int infer_jstr_map(infer_jctx *c, const infer_jstr *s, void (*fn)(infer_buf *b, const char *p, size_t n),
                   infer_jval *out)
{
    size_t mark = infer_jctx_begin(c);
    if (infer_jctx_step(c, s->n == s->len ? s->n / 16 : s->n / 2)) /* properties are looked up for each letter */
        return -1;
    fn(&c->tmp, s->p, s->n);
    return infer_jctx_end(c, mark, out);
}

/* Whether the code point at p[from, to) is to be stripped. */
static bool strips(const infer_jstr *s, size_t from, size_t to, const infer_jstr *chars)
{
    if (chars) /* UTF-8: a whole sequence matches only at a character */
        return memmem(chars->p, chars->n, s->p + from, to - from) != NULL;
    return infer_ju_isspace(infer_ju_next(s->p, &from));
}

int infer_jstr_strip(infer_jctx *c, const infer_jstr *s, const infer_jstr *chars, unsigned sides, infer_jval *out)
{
    size_t a = 0, b = s->n, cut = 0, each = 1 + (chars ? chars->n / J_BYTES_A_STEP : 0);
    while ((sides & J_STRIP_LEFT) && a < b) {
        size_t next = a;
        infer_ju_next(s->p, &next);
        if (!strips(s, a, next, chars))
            break;
        a = next;
        cut++;
        if (infer_jctx_step(c, cut % 4 ? each - 1 : each))
            return -1;
    }
    while ((sides & J_STRIP_RIGHT) && b > a) {
        size_t at = infer_ju_back(s->p, b);
        if (!strips(s, at, b, chars))
            break;
        b = at;
        cut++;
        if (infer_jctx_step(c, cut % 4 ? each - 1 : each))
            return -1;
    }
    return infer_jstr_borrow(c, s->p + a, b - a, s->len - cut, out);
}

int infer_jstr_replace(infer_jctx *c, const infer_jstr *s, const infer_jstr *from, const infer_jstr *to, int64_t count,
                       infer_jval *out)
{
    size_t at = 0, mark = infer_jctx_begin(c);
    if (infer_jctx_work(c, s->n))
        return -1;
    for (; count != 0; count -= count > 0) {
        size_t hit = infer_jstr_find(s, from, at);
        if (hit == SIZE_MAX || c->tmp.failed)
            break;
        infer_buf_append(&c->tmp, s->p + at, hit - at);
        infer_buf_append(&c->tmp, to->p, to->n);
        at = hit + from->n;
        if (from->n)
            continue;
        if (at >= s->n) { /* nothing is found before each character and once at the end */
            at = s->n;
            break;
        }
        size_t next = at;
        infer_ju_next(s->p, &next);
        infer_buf_append(&c->tmp, s->p + at, next - at);
        at = next;
    }
    infer_buf_append(&c->tmp, s->p + at, s->n - at);
    return infer_jctx_end(c, mark, out);
}

int infer_jstr_fill(infer_jctx *c, const infer_jstr *s, int64_t left, int64_t right, uint32_t fill, infer_jval *out)
{
    size_t mark = infer_jctx_begin(c);
    if (infer_jctx_fill(c, fill, left))
        return -1;
    infer_buf_append(&c->tmp, s->p, s->n);
    return infer_jctx_fill(c, fill, right) || infer_jctx_end(c, mark, out) ? -1 : 0;
}

int infer_jstr_center(infer_jctx *c, const infer_jstr *s, int64_t width, uint32_t fill, infer_jval *out)
{
    int64_t pad = width > (int64_t)s->len ? width - (int64_t)s->len : 0;
    int64_t left = pad / 2 + (pad & width & 1); /* CPython's choice for an odd rest */
    return infer_jstr_fill(c, s, left, pad - left, fill, out);
}

int infer_jstr_join(infer_jctx *c, const infer_jstr *sep, infer_jval items, bool strict, infer_jval *out)
{
    infer_jiter it;
    infer_jval v;
    if (infer_jval_iterate(c, items, &it))
        return -1;
    size_t mark = infer_jctx_begin(c);
    int more;
    for (size_t i = 0; (more = it.next(c, &it, &v)) == 0; i++) {
        if (strict && v.kind != J_STR)
            return infer_jctx_error(c, "sequence item %zu: expected str instance, %s found", i, infer_jval_type(v));
        if (i)
            infer_buf_append(&c->tmp, sep->p, sep->n);
        if (infer_jval_str_to_tmp(c, v))
            return -1;
    }
    return more < 0 ? -1 : infer_jctx_end(c, mark, out);
}

/* ---- Methods ----------------------------------------------------------------------------------------------------- */

#define METHOD(fn)                                                                                                     \
    static int fn(infer_jctx *c, infer_jval self, infer_jval *a, const infer_jargs *more, infer_jval *out)

#define MAP_METHOD(fn, how)                                                                                            \
    METHOD(fn)                                                                                                         \
    {                                                                                                                  \
        (void)a, (void)more;                                                                                           \
        return infer_jstr_map(c, self.u.s, how, out);                                                                  \
    }

MAP_METHOD(str_upper, infer_ju_upper)
MAP_METHOD(str_lower, infer_ju_lower)
MAP_METHOD(str_title, infer_ju_title)
MAP_METHOD(str_capitalize, infer_ju_capitalize)
MAP_METHOD(str_swapcase, infer_ju_swapcase)
MAP_METHOD(str_casefold, infer_ju_casefold)

static int strip(infer_jctx *c, infer_jval self, infer_jval chars, unsigned sides, infer_jval *out)
{
    const infer_jstr *set = NULL;
    if (chars.kind != J_MISSING && chars.kind != J_NONE && infer_jval_need_str(c, chars, "strip argument", &set))
        return -1;
    return infer_jstr_strip(c, self.u.s, set, sides, out);
}

METHOD(str_strip)
{
    (void)more;
    return strip(c, self, a[0], J_STRIP_LEFT | J_STRIP_RIGHT, out);
}

METHOD(str_lstrip)
{
    (void)more;
    return strip(c, self, a[0], J_STRIP_LEFT, out);
}

METHOD(str_rstrip)
{
    (void)more;
    return strip(c, self, a[0], J_STRIP_RIGHT, out);
}

METHOD(str_replace)
{
    (void)more;
    const infer_jstr *from, *to;
    int64_t count = -1;
    if (infer_jval_need_str(c, a[0], "replace() argument 1", &from) ||
        infer_jval_need_str(c, a[1], "replace() argument 2", &to) ||
        (a[2].kind != J_MISSING && infer_jval_as_int(c, a[2], "replace() count", &count)))
        return -1;
    return infer_jstr_replace(c, self.u.s, from, to, count, out);
}

METHOD(str_join)
{
    (void)more;
    return infer_jstr_join(c, self.u.s, a[0], true, out);
}

/* The fill character argument of the justifying methods. */
static int fill_of(infer_jctx *c, infer_jval v, uint32_t *fill)
{
    size_t i = 0;
    *fill = ' ';
    if (v.kind == J_MISSING)
        return 0;
    if (v.kind != J_STR || v.u.s->len != 1)
        return infer_jctx_error(c, "The fill character must be exactly one character long");
    *fill = infer_ju_next(v.u.s->p, &i);
    return 0;
}

static int justify(infer_jctx *c, infer_jval self, infer_jval *a, char how, infer_jval *out)
{
    int64_t width;
    uint32_t fill;
    if (infer_jval_as_int(c, a[0], "width", &width) || fill_of(c, a[1], &fill))
        return -1;
    int64_t pad = width > (int64_t)self.u.s->len ? width - (int64_t)self.u.s->len : 0;
    if (how == '^')
        return infer_jstr_center(c, self.u.s, width, fill, out);
    return infer_jstr_fill(c, self.u.s, how == '>' ? pad : 0, how == '<' ? pad : 0, fill, out);
}

METHOD(str_center)
{
    (void)more;
    return justify(c, self, a, '^', out);
}

METHOD(str_ljust)
{
    (void)more;
    return justify(c, self, a, '<', out);
}

METHOD(str_rjust)
{
    (void)more;
    return justify(c, self, a, '>', out);
}

METHOD(str_zfill)
{
    (void)more;
    const infer_jstr *s = self.u.s;
    int64_t width;
    size_t mark = infer_jctx_begin(c);
    if (infer_jval_as_int(c, a[0], "width", &width) ||
        infer_jformat_pad(c, s->p, s->n, s->n && (s->p[0] == '-' || s->p[0] == '+'), '=', '0', width))
        return -1;
    return infer_jctx_end(c, mark, out);
}

METHOD(str_expandtabs)
{
    (void)more;
    int64_t size = 8, column = 0;
    size_t mark = infer_jctx_begin(c);
    if (a[0].kind != J_MISSING && infer_jval_as_int(c, a[0], "tabsize", &size))
        return -1;
    for (size_t i = 0; i < self.u.s->n;) {
        uint32_t cp = infer_ju_next(self.u.s->p, &i);
        if (cp == '\t') {
            int64_t gap = size > 0 ? size - column % size : 0;
            if (infer_jctx_step(c, 1) || infer_jctx_fill(c, ' ', gap))
                return -1;
            column += gap;
            continue;
        }
        column = cp == '\n' || cp == '\r' ? 0 : column + 1;
        infer_buf_put_utf8(&c->tmp, cp);
    }
    return infer_jctx_end(c, mark, out);
}

METHOD(str_removeprefix)
{
    (void)more;
    const infer_jstr *s = self.u.s, *x;
    if (infer_jval_need_str(c, a[0], "removeprefix() argument", &x))
        return -1;
    size_t cut = s->n >= x->n && memcmp(s->p, x->p, x->n) == 0;
    return infer_jstr_borrow(c, s->p + cut * x->n, s->n - cut * x->n, s->len - cut * x->len, out);
}

METHOD(str_removesuffix)
{
    (void)more;
    const infer_jstr *s = self.u.s, *x;
    if (infer_jval_need_str(c, a[0], "removesuffix() argument", &x))
        return -1;
    size_t cut = s->n >= x->n && memcmp(s->p + s->n - x->n, x->p, x->n) == 0;
    return infer_jstr_borrow(c, s->p, s->n - cut * x->n, s->len - cut * x->len, out);
}

METHOD(str_format)
{
    (void)a;
    return infer_jformat_braces(c, self.u.s, more, out);
}

/* ---- Predicates -------------------------------------------------------------------------------------------------- */

/* True where `is` holds for all characters; `empty` is the answer for none. */
static int all(infer_jctx *c, infer_jval self, bool (*is)(uint32_t), bool empty, infer_jval *out)
{
    const infer_jstr *s = self.u.s;
    bool yes = s->n ? true : empty;
    for (size_t i = 0; i < s->n && yes;)
        yes = is(infer_ju_next(s->p, &i));
    *out = infer_jval_bool(yes);
    return infer_jctx_work(c, s->n);
}

static bool is_alnum(uint32_t cp)
{
    return infer_ju_isalpha(cp) || infer_ju_isnumber(cp);
}

static bool is_ascii(uint32_t cp)
{
    return cp < 0x80;
}

#define ALL_METHOD(fn, is, empty)                                                                                      \
    METHOD(fn)                                                                                                         \
    {                                                                                                                  \
        (void)a, (void)more;                                                                                           \
        return all(c, self, is, empty, out);                                                                           \
    }

ALL_METHOD(str_isalpha, infer_ju_isalpha, false)
ALL_METHOD(str_isalnum, is_alnum, false)
ALL_METHOD(str_isascii, is_ascii, true)
ALL_METHOD(str_isdecimal, infer_ju_isdecimal, false)
ALL_METHOD(str_isdigit, infer_ju_isdigit, false)
ALL_METHOD(str_isspace, infer_ju_isspace, false)
ALL_METHOD(str_isprintable, infer_ju_isprintable, true)

METHOD(str_isidentifier)
{
    (void)a, (void)more;
    const infer_jstr *s = self.u.s;
    size_t i = 0;
    uint32_t first = s->n ? infer_ju_next(s->p, &i) : 0;
    bool yes = s->n && infer_ju_isword(first) && !infer_ju_isdecimal(first);
    while (yes && i < s->n)
        yes = infer_ju_isident(infer_ju_next(s->p, &i));
    *out = infer_jval_bool(yes);
    return infer_jctx_work(c, s->n);
}

/* Some letter of the wanted case, and none of the other. */
static int one_case(infer_jctx *c, infer_jval self, bool lower, infer_jval *out)
{
    const infer_jstr *s = self.u.s;
    bool some = false, other = false;
    for (size_t i = 0; i < s->n && !other;) {
        uint32_t cp = infer_ju_next(s->p, &i);
        bool is_lower = infer_ju_islower(cp), is_upper = infer_ju_isupper(cp);
        other = (lower ? is_upper : is_lower) || infer_ju_istitle(cp);
        some |= lower ? is_lower : is_upper;
    }
    *out = infer_jval_bool(some && !other);
    return infer_jctx_work(c, s->n);
}

METHOD(str_islower)
{
    (void)a, (void)more;
    return one_case(c, self, true, out);
}

METHOD(str_isupper)
{
    (void)a, (void)more;
    return one_case(c, self, false, out);
}

METHOD(str_istitle)
{
    (void)a, (void)more;
    const infer_jstr *s = self.u.s;
    bool some = false, yes = true, in_word = false;
    for (size_t i = 0; i < s->n && yes;) {
        uint32_t cp = infer_ju_next(s->p, &i);
        bool upper = infer_ju_isupper(cp) || infer_ju_istitle(cp), lower = infer_ju_islower(cp);
        yes = !(upper && in_word) && !(lower && !in_word);
        in_word = upper || lower;
        some |= in_word;
    }
    *out = infer_jval_bool(some && yes);
    return infer_jctx_work(c, s->n);
}

#define ON_STR J_BIT(J_STR)

const infer_jrow infer_jrows_method_str[] = {
    {"upper", str_upper, "/", ON_STR},
    {"lower", str_lower, "/", ON_STR},
    {"title", str_title, "/", ON_STR},
    {"capitalize", str_capitalize, "/", ON_STR},
    {"swapcase", str_swapcase, "/", ON_STR},
    {"casefold", str_casefold, "/", ON_STR},
    {"strip", str_strip, "/chars?", ON_STR},
    {"lstrip", str_lstrip, "/chars?", ON_STR},
    {"rstrip", str_rstrip, "/chars?", ON_STR},
    {"replace", str_replace, "/old new count?", ON_STR},
    {"join", str_join, "/iterable", ON_STR},
    {"center", str_center, "/width fill?", ON_STR},
    {"ljust", str_ljust, "/width fill?", ON_STR},
    {"rjust", str_rjust, "/width fill?", ON_STR},
    {"zfill", str_zfill, "/width", ON_STR},
    {"expandtabs", str_expandtabs, "tabsize?", ON_STR},
    {"removeprefix", str_removeprefix, "/prefix", ON_STR},
    {"removesuffix", str_removesuffix, "/suffix", ON_STR},
    {"format", str_format, "* **", ON_STR},
    {"isalpha", str_isalpha, "/", ON_STR},
    {"isalnum", str_isalnum, "/", ON_STR},
    {"isascii", str_isascii, "/", ON_STR},
    {"isdecimal", str_isdecimal, "/", ON_STR},
    {"isdigit", str_isdigit, "/", ON_STR},
    {"isidentifier", str_isidentifier, "/", ON_STR},
    {"islower", str_islower, "/", ON_STR},
    {"isupper", str_isupper, "/", ON_STR},
    {"istitle", str_istitle, "/", ON_STR},
    {"isspace", str_isspace, "/", ON_STR},
    {"isprintable", str_isprintable, "/", ON_STR},
    {"isnumeric", NULL, "/", ON_STR},
    {"encode", NULL, "* **", ON_STR},
    {"format_map", NULL, "*", ON_STR},
    {"maketrans", NULL, "*", ON_STR},
    {"translate", NULL, "*", ON_STR},
    {NULL, NULL, NULL, 0},
};
