/*
 * A growing string and UTF-8 checks. Formats no JSON.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "sbuf.h"

char *sbuf_reserve(sbuf *b, size_t n)
{
    if (b->failed)
        return NULL;
    if (b->cap - b->n <= n || !b->p) {
        size_t cap = b->cap ? b->cap : 256;
        while (cap - b->n <= n) {
            if (cap > SIZE_MAX / 4) {
                b->failed = 1;
                return NULL;
            }
            cap *= 2;
        }
        char *p = realloc(b->p, cap);
        if (!p) {
            b->failed = 1;
            return NULL;
        }
        b->p = p;
        b->cap = cap;
    }
    return b->p + b->n;
}

void sbuf_add(sbuf *b, const char *s, size_t n)
{
    char *to = sbuf_reserve(b, n);
    if (!to)
        return;
    if (n)
        memcpy(to, s, n);
    b->n += n;
    b->p[b->n] = 0;
}

void sbuf_puts(sbuf *b, const char *s)
{
    sbuf_add(b, s, strlen(s));
}

void sbuf_printf(sbuf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *to = n >= 0 ? sbuf_reserve(b, (size_t)n + 1) : NULL;
    if (to) {
        vsnprintf(to, (size_t)n + 1, fmt, again);
        b->n += (size_t)n;
    } else {
        b->failed = 1;
    }
    va_end(again);
}

void sbuf_free(sbuf *b)
{
    free(b->p);
    memset(b, 0, sizeof *b);
}

int sbuf_json(const char *s, size_t n, void *user)
{
    sbuf *b = user;
    sbuf_add(b, s, n);
    return b->failed ? -1 : 0;
}

int sbuf_read(sbuf *b, FILE *f)
{
    for (;;) {
        char *to = sbuf_reserve(b, 65536);
        if (!to) {
            errno = ENOMEM;
            return -1;
        }
        size_t n = fread(to, 1, 65536, f);
        b->n += n;
        b->p[b->n] = 0;
        if (n < 65536)
            return ferror(f) ? -1 : 0;
    }
}

infer_status sbuf_read_file(sbuf *b, const char *path, infer_error *err)
{
    int standard = !strcmp(path, "-");
    FILE *f = standard ? stdin : fopen(path, "re");
    if (!f)
        return infer_error_set(err, INFER_E_IO, "open %s: %s", path, strerror(errno));
    int bad = sbuf_read(b, f), cause = errno;
    if (!standard)
        fclose(f);
    if (!bad)
        return INFER_OK;
    sbuf_free(b);
    return infer_error_set(err, cause == ENOMEM ? INFER_E_NO_MEMORY : INFER_E_IO, "read %s: %s", path, strerror(cause));
}

/* ---- UTF-8 (Unicode standard, table 3-7) ------------------------------------------------------------------- */

/* How many bytes of s begin a well-formed character, up to *want, its length by the first byte (0: none can begin). */
static size_t utf8_prefix(const unsigned char *s, size_t n, size_t *want)
{
    unsigned char lo = 0x80, hi = 0xBF;
    *want = 0;
    if (s[0] < 0x80)
        return *want = 1;
    if (s[0] < 0xC2 || s[0] > 0xF4)
        return 0;
    *want = s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
    if (s[0] == 0xE0)
        lo = 0xA0;
    else if (s[0] == 0xED)
        hi = 0x9F;
    else if (s[0] == 0xF0)
        lo = 0x90;
    else if (s[0] == 0xF4)
        hi = 0x8F;
    size_t i = 1;
    for (; i < *want && i < n; i++) {
        if (s[i] < lo || s[i] > hi)
            break;
        lo = 0x80;
        hi = 0xBF;
    }
    return i;
}

size_t utf8_char(const char *s, size_t n)
{
    size_t want, have = utf8_prefix((const unsigned char *)s, n, &want);
    return want && have == want ? want : 0;
}

int utf8_valid(const char *s, size_t n)
{
    for (size_t i = 0, k; i < n; i += k)
        if (!(k = utf8_char(s + i, n - i)))
            return 0;
    return 1;
}

void sbuf_add_utf8(sbuf *b, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t want, have = utf8_prefix((const unsigned char *)s + i, n - i, &want);
        if (want && have == want) {
            sbuf_add(b, s + i, want);
            i += want;
        } else {
            sbuf_puts(b, "\xEF\xBF\xBD");
            i += have ? have : 1;
        }
    }
}

json_t *utf8_json_n(const char *s, size_t n)
{
    sbuf b = {0};
    sbuf_add_utf8(&b, s, n);
    json_t *v = b.failed ? NULL : json_stringn(b.p ? b.p : "", b.n);
    sbuf_free(&b);
    return v;
}

json_t *utf8_json(const char *s)
{
    return utf8_json_n(s, strlen(s));
}
