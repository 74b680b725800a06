/* Growable byte buffer. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"

int infer_str_eq(infer_str a, infer_str b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

char *infer_buf_reserve(infer_buf *b, size_t n)
{
    if (b->failed)
        return NULL;
    size_t need;
    if (__builtin_add_overflow(b->n, n, &need) || need == SIZE_MAX || (b->limit && need > b->limit)) {
        b->failed = 2;
        return NULL;
    }
    if (need + 1 > b->cap) {
        size_t cap = b->cap ? b->cap : 64;
        while (cap < need + 1)
            cap = cap > SIZE_MAX / 2 ? need + 1 : cap * 2;
        char *p = infer_realloc(b->p, cap);
        if (!p) {
            b->failed = 1;
            return NULL;
        }
        b->p = p;
        b->cap = cap;
    }
    return b->p + b->n;
}

infer_status infer_buf_error(const infer_buf *b, infer_error *err, const char *what)
{
    if (b->failed == 2)
        return infer_error_set(err, INFER_E_TOO_LARGE, "%s: over the limit of %zu bytes", what, b->limit);
    return infer_error_set(err, INFER_E_NO_MEMORY, "%s: no memory", what);
}

void infer_buf_append(infer_buf *b, const void *p, size_t n)
{
    char *d = infer_buf_reserve(b, n);
    if (!d)
        return;
    if (n)
        memcpy(d, p, n);
    b->n += n;
    b->p[b->n] = 0;
}

void infer_buf_puts(infer_buf *b, const char *s)
{
    infer_buf_append(b, s, strlen(s));
}

void infer_buf_putc(infer_buf *b, char c)
{
    infer_buf_append(b, &c, 1);
}

void infer_buf_printf(infer_buf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *d = n < 0 ? NULL : infer_buf_reserve(b, (size_t)n);
    if (d) {
        vsnprintf(d, (size_t)n + 1, fmt, again);
        b->n += (size_t)n;
    } else {
        b->failed = 1;
    }
    va_end(again);
}

void infer_buf_put_utf8(infer_buf *b, uint32_t cp)
{
    unsigned char u[4];
    size_t n;
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000))
        cp = 0xFFFD;
    if (cp < 0x80) {
        u[0] = (unsigned char)cp;
        n = 1;
    } else if (cp < 0x800) {
        u[0] = (unsigned char)(0xC0 | cp >> 6);
        u[1] = (unsigned char)(0x80 | (cp & 63));
        n = 2;
    } else if (cp < 0x10000) {
        u[0] = (unsigned char)(0xE0 | cp >> 12);
        u[1] = (unsigned char)(0x80 | (cp >> 6 & 63));
        u[2] = (unsigned char)(0x80 | (cp & 63));
        n = 3;
    } else {
        u[0] = (unsigned char)(0xF0 | cp >> 18);
        u[1] = (unsigned char)(0x80 | (cp >> 12 & 63));
        u[2] = (unsigned char)(0x80 | (cp >> 6 & 63));
        u[3] = (unsigned char)(0x80 | (cp & 63));
        n = 4;
    }
    infer_buf_append(b, u, n);
}

void infer_buf_clear(infer_buf *b)
{
    b->n = 0;
    b->failed = 0;
    if (b->p)
        b->p[0] = 0;
}

void infer_buf_free(infer_buf *b)
{
    infer_free(b->p);
    *b = (infer_buf){.limit = b->limit};
}

char *infer_buf_detach(infer_buf *b)
{
    if (!b->failed && !b->p)
        infer_buf_append(b, "", 0);
    char *p = b->failed ? NULL : b->p;
    if (b->failed)
        infer_free(b->p);
    *b = (infer_buf){.limit = b->limit};
    return p;
}
