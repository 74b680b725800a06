/* The JSON cursor. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "text/json_scan.h"
#include "text/utf8.h"

static void skip_space(infer_json_cursor *c)
{
    while (c->i < c->n && (c->p[c->i] == ' ' || c->p[c->i] == '\n' || c->p[c->i] == '\t' || c->p[c->i] == '\r'))
        c->i++;
}

int infer_json_peek(infer_json_cursor *c, char what)
{
    skip_space(c);
    return c->i < c->n && c->p[c->i] == what;
}

int infer_json_char(infer_json_cursor *c, char what)
{
    if (!infer_json_peek(c, what))
        return 0;
    c->i++;
    return 1;
}

int infer_json_uint(infer_json_cursor *c, uint32_t *v)
{
    skip_space(c);
    uint64_t x = 0;
    size_t digits = 0;
    for (; c->i < c->n && c->p[c->i] >= '0' && c->p[c->i] <= '9' && digits < 11; c->i++, digits++)
        x = x * 10 + (uint64_t)(c->p[c->i] - '0');
    if (!digits || x > INT32_MAX)
        return 0;
    *v = (uint32_t)x;
    return 1;
}

static int hex4(const char *p, uint32_t *v)
{
    *v = 0;
    for (int i = 0; i < 4; i++) {
        char h = p[i];
        uint32_t d;
        if (h >= '0' && h <= '9')
            d = (uint32_t)(h - '0');
        else if ((h >= 'a' && h <= 'f') || (h >= 'A' && h <= 'F'))
            d = (uint32_t)((h | 32) - 'a') + 10;
        else
            return 0;
        *v = *v << 4 | d;
    }
    return 1;
}

/* At the character behind a backslash. */
static int escape(infer_json_cursor *c, infer_buf *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (c->i >= c->n)
        return 0;
    char e = c->p[c->i];
    const char *at = e ? strchr(from, e) : NULL;
    if (at) {
        infer_buf_putc(out, to[at - from]);
        c->i++;
        return 1;
    }
    uint32_t hi, lo;
    if (e != 'u' || c->n - c->i < 5 || !hex4(c->p + c->i + 1, &hi))
        return 0;
    c->i += 5;
    if (hi >= 0xD800 && hi < 0xE000) {
        if (hi >= 0xDC00 || c->n - c->i < 6 || c->p[c->i] != '\\' || c->p[c->i + 1] != 'u' ||
            !hex4(c->p + c->i + 2, &lo) || lo < 0xDC00 || lo > 0xDFFF)
            return 0;
        c->i += 6;
        hi = 0x10000 + ((hi - 0xD800) << 10) + (lo - 0xDC00);
    }
    infer_buf_put_utf8(out, hi);
    return 1;
}

int infer_json_string(infer_json_cursor *c, infer_buf *out)
{
    if (!infer_json_char(c, '"'))
        return 0;
    size_t start = out->n;
    for (;;) {
        size_t from = c->i;
        while (c->i < c->n && (uint8_t)c->p[c->i] >= 0x20 && c->p[c->i] != '"' && c->p[c->i] != '\\')
            c->i++;
        infer_buf_append(out, c->p + from, c->i - from);
        if (c->i >= c->n || (uint8_t)c->p[c->i] < 0x20)
            return 0;
        if (c->p[c->i++] == '"')
            break;
        if (!escape(c, out))
            return 0;
    }
    return out->failed || infer_utf8_valid(out->p + start, out->n - start);
}

/* Past a string whose content does not matter here. */
static int skip_string(infer_json_cursor *c)
{
    for (size_t from = c->i + 1; from < c->n;) {
        const char *quote = memchr(c->p + from, '"', c->n - from);
        if (!quote)
            break;
        size_t at = (size_t)(quote - c->p), slashes = 0;
        while (at - slashes > c->i + 1 && c->p[at - slashes - 1] == '\\')
            slashes++;
        if (slashes % 2 == 0) {
            c->i = at + 1;
            return 1;
        }
        from = at + 1;
    }
    c->i = c->n;
    return 0;
}

int infer_json_skip(infer_json_cursor *c, size_t *at, size_t *n)
{
    skip_space(c);
    size_t start = c->i, depth = 0;
    do {
        char b = c->i < c->n ? c->p[c->i] : 0;
        switch (b) {
        case 0:
            return 0;
        case '"':
            if (!skip_string(c))
                return 0;
            break;
        case '[':
        case '{':
            depth++;
            c->i++;
            break;
        case ']':
        case '}':
            if (!depth)
                return 0;
            depth--;
            c->i++;
            break;
        default: /* inside brackets anything goes by; alone, up to what ends a scalar */
            if (depth)
                c->i++;
            else
                while (c->i < c->n && !strchr(",]} \n\t\r", c->p[c->i]))
                    c->i++;
        }
    } while (depth);
    *at = start;
    *n = c->i - start;
    return c->i > start;
}
