/* JSON in and out of template values. Own reader: values go straight to the arena, 64-bit integers and longer ones
 * survive, NUL and every limit are handled. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "text/jinja_json.h"
#include "text/jinja_ops.h"
#include "text/jinja_unicode.h"

/* ---- Reading ------------------------------------------------------------------------------------------------- */

typedef struct reader {
    infer_jctx *c;
    const char *p;
    size_t i, n;
} reader;

static int bad(reader *r, const char *what)
{
    return infer_jctx_fail(r->c, INFER_E_INVALID, "JSON at byte %zu: %s", r->i, what);
}

static void skip_space(reader *r)
{
    while (r->i < r->n && (r->p[r->i] == ' ' || r->p[r->i] == '\n' || r->p[r->i] == '\r' || r->p[r->i] == '\t'))
        r->i++;
}

static bool take(reader *r, char ch)
{
    if (r->i >= r->n || r->p[r->i] != ch)
        return false;
    r->i++;
    return true;
}

static int hex4(reader *r, uint32_t *out)
{
    *out = 0;
    if (r->n - r->i < 4)
        return bad(r, "\\u needs four hexadecimal digits");
    for (int k = 0; k < 4; k++) {
        char ch = r->p[r->i++];
        int d = ch >= '0' && ch <= '9' ? ch - '0' : (ch | 32) >= 'a' && (ch | 32) <= 'f' ? (ch | 32) - 'a' + 10 : -1;
        if (d < 0)
            return bad(r, "\\u needs four hexadecimal digits");
        *out = *out * 16 + (uint32_t)d;
    }
    return 0;
}

static int read_escape(reader *r)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char ch = r->i < r->n ? r->p[r->i++] : 0;
    const char *at = ch ? strchr(from, ch) : NULL;
    if (at) {
        infer_buf_putc(&r->c->tmp, to[at - from]);
        return 0;
    }
    uint32_t cp, low;
    if (ch != 'u')
        return bad(r, "unknown escape");
    if (hex4(r, &cp))
        return -1;
    if (cp >= 0xD800 && cp < 0xDC00 && r->n - r->i >= 6 && r->p[r->i] == '\\' && r->p[r->i + 1] == 'u') {
        size_t back = r->i;
        r->i += 2;
        if (hex4(r, &low))
            return -1;
        if (low >= 0xDC00 && low < 0xE000)
            cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
        else
            r->i = back;
    }
    infer_buf_put_utf8(&r->c->tmp, cp);
    return 0;
}

/* After the opening quote. */
static int read_string(reader *r, infer_jval *out)
{
    infer_jctx *c = r->c;
    size_t start = r->i, mark = infer_jctx_begin(c);
    bool escaped = false;
    while (r->i < r->n && r->p[r->i] != '"') {
        if ((unsigned char)r->p[r->i] < 0x20)
            return bad(r, "control character in a string");
        if (r->p[r->i] != '\\') {
            r->i++;
            continue;
        }
        infer_buf_append(&c->tmp, r->p + start, r->i - start);
        r->i++;
        if (read_escape(r))
            return -1;
        start = r->i;
        escaped = true;
    }
    if (r->i >= r->n)
        return bad(r, "unterminated string");
    size_t end = r->i++;
    if (!escaped)
        return infer_jstr_borrow(c, r->p + start, end - start, SIZE_MAX, out);
    infer_buf_append(&c->tmp, r->p + start, end - start);
    return infer_jctx_end(c, mark, out);
}

static size_t digits(reader *r)
{
    size_t from = r->i;
    while (r->i < r->n && r->p[r->i] >= '0' && r->p[r->i] <= '9')
        r->i++;
    return r->i - from;
}

static int read_number(reader *r, infer_jval *out)
{
    size_t start = r->i;
    bool neg = take(r, '-'), whole = true;
    size_t first = r->i, n = digits(r);
    if (!n || (n > 1 && r->p[first] == '0'))
        return bad(r, "malformed number");
    if (take(r, '.')) {
        whole = false;
        if (!digits(r))
            return bad(r, "malformed number");
    }
    if (r->i < r->n && (r->p[r->i] | 32) == 'e') {
        whole = false;
        r->i++;
        if (!take(r, '+'))
            take(r, '-');
        if (!digits(r))
            return bad(r, "malformed number");
    }
    if (whole)
        return infer_jval_int_of_digits(r->c, neg, r->p + first, n, out);
    size_t mark = infer_jctx_begin(r->c);
    infer_buf_append(&r->c->tmp, r->p + start, r->i - start);
    if (r->c->tmp.failed)
        return infer_jctx_buf_failed(r->c, &r->c->tmp);
    *out = infer_jval_float(strtod(r->c->tmp.p + mark, NULL));
    r->c->tmp.n = mark;
    return 0;
}

static int read_value(reader *r, infer_jval *out);

static int read_array(reader *r, infer_jval *out)
{
    infer_jval list, item;
    size_t cap = 0;
    if (infer_jlist_new(r->c, J_LIST, 0, &list))
        return -1;
    skip_space(r);
    if (!take(r, ']'))
        do {
            if (read_value(r, &item) || infer_jlist_append(r->c, list.u.list, &cap, item))
                return -1;
            skip_space(r);
            if (take(r, ']'))
                break;
            if (!take(r, ','))
                return bad(r, "expected ',' or ']'");
        } while (1);
    *out = list;
    return 0;
}

static int read_object(reader *r, infer_jval *out)
{
    infer_jval dict, key, item;
    if (infer_jdict_new(r->c, &dict))
        return -1;
    skip_space(r);
    if (!take(r, '}'))
        do {
            skip_space(r);
            if (!take(r, '"'))
                return bad(r, "expected a key");
            if (read_string(r, &key))
                return -1;
            skip_space(r);
            if (!take(r, ':'))
                return bad(r, "expected ':'");
            if (read_value(r, &item) || infer_jdict_put(r->c, dict.u.dict, key, item))
                return -1;
            skip_space(r);
            if (take(r, '}'))
                break;
            if (!take(r, ','))
                return bad(r, "expected ',' or '}'");
        } while (1);
    *out = dict;
    return 0;
}

static int read_value(reader *r, infer_jval *out)
{
    static const struct {
        const char *text;
        infer_jval v;
    } words[] = {{"true", {.kind = J_BOOL, .u.b = true}}, {"false", {.kind = J_BOOL}}, {"null", {.kind = J_NONE}}};
    skip_space(r);
    if (r->i >= r->n)
        return bad(r, "unexpected end");
    if (take(r, '"'))
        return read_string(r, out);
    if (r->p[r->i] == '[' || r->p[r->i] == '{') {
        if (infer_jctx_enter(r->c))
            return -1;
        if (r->p[r->i++] == '[' ? read_array(r, out) : read_object(r, out))
            return -1;
        infer_jctx_leave(r->c);
        return 0;
    }
    for (size_t k = 0; k < sizeof words / sizeof words[0]; k++) {
        size_t len = strlen(words[k].text);
        if (r->n - r->i >= len && memcmp(r->p + r->i, words[k].text, len) == 0) {
            r->i += len;
            *out = words[k].v;
            return 0;
        }
    }
    if (r->p[r->i] == '-' || (r->p[r->i] >= '0' && r->p[r->i] <= '9'))
        return read_number(r, out);
    return bad(r, "unexpected character");
}

int infer_jjson_read(infer_jctx *c, const char *p, size_t n, infer_jval *out)
{
    reader r = {.c = c, .p = p, .n = n};
    size_t good = infer_ju_invalid(p, n);
    if (good < n)
        return infer_jctx_fail(c, INFER_E_INVALID, "JSON at byte %zu: invalid UTF-8", good);
    if (read_value(&r, out))
        return -1;
    skip_space(&r);
    return r.i < r.n ? bad(&r, "text behind the value") : 0;
}

/* ---- Writing ------------------------------------------------------------------------------------------------- */

static int write_string(infer_jctx *c, const infer_jstr *s, bool ascii)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    infer_buf *b = &c->tmp;
    if (infer_jctx_work(c, s->n))
        return -1;
    infer_buf_putc(b, '"');
    size_t plain = 0; /* bytes from here on are still to be copied as they are */
    for (size_t i = 0; i < s->n;) {
        size_t at = i;
        uint32_t cp = infer_ju_next(s->p, &i);
        if (cp >= 0x20 && cp != '"' && cp != '\\' && (cp < 0x7F || !ascii))
            continue;
        infer_buf_append(b, s->p + plain, at - plain);
        plain = i;
        const char *e = cp && cp < 0x80 ? strchr(from, (int)cp) : NULL;
        if (e) {
            infer_buf_putc(b, '\\');
            infer_buf_putc(b, to[e - from]);
        } else if (cp < 0x10000) {
            infer_ju_put_hex(b, "\\u", cp, 4);
        } else {
            infer_ju_put_hex(b, "\\u", 0xD800 + ((cp - 0x10000) >> 10), 4);
            infer_ju_put_hex(b, "\\u", 0xDC00 + (cp & 0x3FF), 4);
        }
    }
    infer_buf_append(b, s->p + plain, s->n - plain);
    infer_buf_putc(b, '"');
    return b->failed ? infer_jctx_buf_failed(c, b) : 0;
}

static void write_float(infer_buf *b, double f)
{
    char num[32];
    infer_jfloat_repr(f, num);
    infer_buf_puts(b, strcmp(num, "nan") == 0    ? "NaN"
                      : strcmp(num, "inf") == 0  ? "Infinity"
                      : strcmp(num, "-inf") == 0 ? "-Infinity"
                                                 : num);
}

static int new_line(infer_jctx *c, const infer_jjson_style *st, uint32_t level)
{
    if (st->indent.kind == J_NONE)
        return 0;
    infer_buf_putc(&c->tmp, '\n');
    for (uint32_t i = 0; i < level; i++) {
        if (st->indent.kind == J_INT && infer_jctx_fill(c, ' ', st->indent.u.i))
            return -1;
        if (st->indent.kind != J_STR)
            continue;
        infer_buf_append(&c->tmp, st->indent.u.s->p, st->indent.u.s->n);
        if (infer_jctx_work(c, st->indent.u.s->n))
            return -1;
    }
    return c->tmp.failed ? infer_jctx_buf_failed(c, &c->tmp) : 0;
}

static int write_value(infer_jctx *c, infer_jval v, const infer_jjson_style *st, uint32_t level);

static int write_key(infer_jctx *c, infer_jval k, const infer_jjson_style *st)
{
    if (k.kind == J_STR)
        return write_string(c, k.u.s, st->ascii);
    if (k.kind != J_NONE && !infer_jval_is_number(k))
        return infer_jctx_error(c, "keys must be str, int, float, bool or None, not %s", infer_jval_type(k));
    infer_buf_putc(&c->tmp, '"');
    if (write_value(c, k, st, 0))
        return -1;
    infer_buf_putc(&c->tmp, '"');
    return 0;
}

/* Order of sort_keys: as Python's sorted() over the items, which compares keys. */
static int sorted_keys(infer_jctx *c, const infer_jdict *d, uint32_t **out)
{
    uint32_t *order = infer_jctx_array(c, (size_t)d->n * 2, sizeof *order), *from = order;
    if (!order)
        return -1;
    uint32_t *to = order + d->n;
    for (uint32_t i = 0; i < d->n; i++)
        from[i] = i;
    for (uint32_t w = 1; w < d->n; w *= 2) {
        for (uint32_t lo = 0; lo < d->n; lo += 2 * w) {
            uint32_t mid = d->n - lo < w ? d->n : lo + w, hi = d->n - lo < 2 * w ? d->n : lo + 2 * w;
            uint32_t i = lo, j = mid;
            for (uint32_t k = lo; k < hi; k++) {
                int less = i < mid && j < hi ? infer_jval_order(c, J_LT, d->k[from[j]], d->k[from[i]]) : j < hi;
                if (less < 0)
                    return -1;
                to[k] = less ? from[j++] : from[i++];
            }
        }
        uint32_t *swap = from;
        from = to;
        to = swap;
    }
    *out = from;
    return 0;
}

static int write_items(infer_jctx *c, infer_jval v, const infer_jjson_style *st, uint32_t level)
{
    bool dict = v.kind == J_DICT;
    size_t n = dict ? v.u.dict->n : v.u.list->n;
    uint32_t *order = NULL;
    if (!n) {
        infer_buf_puts(&c->tmp, dict ? "{}" : "[]");
        return 0;
    }
    if (infer_jctx_enter(c) || (dict && st->sort && sorted_keys(c, v.u.dict, &order)))
        return -1;
    infer_buf_putc(&c->tmp, dict ? '{' : '[');
    for (size_t i = 0; i < n; i++) {
        size_t at = order ? order[i] : i;
        if (i)
            infer_buf_append(&c->tmp, st->item->p, st->item->n);
        if (new_line(c, st, level + 1))
            return -1;
        if (dict) {
            if (write_key(c, v.u.dict->k[at], st))
                return -1;
            infer_buf_append(&c->tmp, st->key->p, st->key->n);
        }
        if (write_value(c, dict ? v.u.dict->v[at] : v.u.list->v[at], st, level + 1))
            return -1;
    }
    if (new_line(c, st, level))
        return -1;
    infer_buf_putc(&c->tmp, dict ? '}' : ']');
    infer_jctx_leave(c);
    return 0;
}

static int write_value(infer_jctx *c, infer_jval v, const infer_jjson_style *st, uint32_t level)
{
    if (infer_jctx_step(c, 1))
        return -1;
    switch (v.kind) {
    case J_NONE:
        infer_buf_puts(&c->tmp, "null");
        return 0;
    case J_BOOL:
        infer_buf_puts(&c->tmp, v.u.b ? "true" : "false");
        return 0;
    case J_INT:
    case J_BIG:
        return infer_jval_repr(c, v);
    case J_FLOAT:
        write_float(&c->tmp, v.u.f);
        return infer_jctx_step(c, 20);
    case J_STR:
        return write_string(c, v.u.s, st->ascii);
    case J_LIST:
    case J_TUPLE:
    case J_DICT:
        return write_items(c, v, st, level);
    default:
        return infer_jctx_error(c, "Object of type %s is not JSON serializable", infer_jval_type(v));
    }
}

int infer_jjson_write(infer_jctx *c, infer_jval v, const infer_jjson_style *style)
{
    if (write_value(c, v, style, 0))
        return -1;
    return c->tmp.failed ? infer_jctx_buf_failed(c, &c->tmp) : 0;
}
