/* A growing string of bytes, and UTF-8 checks. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TOOLS_SBUF_H
#define INFER_TOOLS_SBUF_H

#include <stddef.h>
#include <stdio.h>

#include <infer/error.h>

/* All zero is an empty one. After a failed allocation `failed` stays set and writes are dropped: check once at the end.
 */
typedef struct sbuf {
    char *p; /* NUL-terminated when not NULL */
    size_t n, cap;
    int failed;
} sbuf;

/* Append bytes, a NUL-terminated string, formatted text. */
void sbuf_add(sbuf *b, const char *s, size_t n);
void sbuf_puts(sbuf *b, const char *s);
void sbuf_printf(sbuf *b, const char *fmt, ...) INFER_PRINTF(2, 3);
/* Room for n more bytes at the returned place (then add to b->n), NULL when there is no memory. */
char *sbuf_reserve(sbuf *b, size_t n);
void sbuf_free(sbuf *b);
/* A json_dump_callback (user is the sbuf). */
int sbuf_json(const char *s, size_t n, void *user);

/* All of a stream; 0, or -1 with errno set. Owned by b. */
int sbuf_read(sbuf *b, FILE *f);
/* All of a file, "-" for standard input. INFER_E_IO with its name and reason; b then holds nothing. */
infer_status sbuf_read_file(sbuf *b, const char *path, infer_error *err);

/* Bytes of the well-formed UTF-8 character at s (n > 0 bytes there), 0 when there is none. */
size_t utf8_char(const char *s, size_t n);
/* 1 when all n bytes are well-formed. */
int utf8_valid(const char *s, size_t n);
/* Adds s with each maximal ill-formed part as U+FFFD. */
void sbuf_add_utf8(sbuf *b, const char *s, size_t n);
/* The same as a JSON string (json_t, jansson's). What comes from outside (a file's name, a message with one) goes into
 * JSON by this: jansson makes nothing of text that is not UTF-8. NULL without memory. */
struct json_t *utf8_json_n(const char *s, size_t n);
struct json_t *utf8_json(const char *s);

#endif
