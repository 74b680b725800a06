/* A growable byte buffer with a sticky failure, so that a builder checks once at the end.
 * One owner, no locking. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_BASE_BUF_H
#define INFER_BASE_BUF_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <infer/error.h>

/* Borrowed bytes, not NUL-terminated. */
typedef struct infer_str {
    const char *p;
    size_t n;
} infer_str;

#define INFER_STR(lit) ((infer_str){(lit), sizeof(lit) - 1})

static inline infer_str infer_str_of(const char *p, size_t n)
{
    return (infer_str){p, n};
}

/* Byte equality. */
int infer_str_eq(infer_str a, infer_str b);

/* Zero-initialise before use. p is NUL-terminated after every successful append (n excludes it). `limit` (0: none)
 * bounds n; going past it (failed 2), or running out of memory (failed 1), drops the append and all later ones. */
typedef struct infer_buf {
    char *p;
    size_t n, cap, limit;
    int failed;
} infer_buf;

/* Append bytes, a NUL-terminated string, a byte, formatted text. Failures are in b->failed: check once at the end. */
void infer_buf_append(infer_buf *b, const void *p, size_t n);
void infer_buf_puts(infer_buf *b, const char *s);
void infer_buf_putc(infer_buf *b, char c);
void infer_buf_printf(infer_buf *b, const char *fmt, ...) INFER_PRINTF(2, 3);
/* Appends the UTF-8 form of a code point; one that is not a scalar value becomes U+FFFD. */
void infer_buf_put_utf8(infer_buf *b, uint32_t cp);
/* Makes room for n more bytes; returns where they go (NULL on failure). Add to b->n what was written. */
char *infer_buf_reserve(infer_buf *b, size_t n);
/* Records why b failed ("what: …"): INFER_E_TOO_LARGE for its limit, else INFER_E_NO_MEMORY. */
infer_status infer_buf_error(const infer_buf *b, infer_error *err, const char *what);
void infer_buf_clear(infer_buf *b); /* keeps the memory, resets failed */
void infer_buf_free(infer_buf *b);
/* The content as an owned NUL-terminated string (infer_free), leaving b empty; NULL if it failed. */
char *infer_buf_detach(infer_buf *b);

#endif
