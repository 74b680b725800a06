/* Unicode as Python's str sees it: classes, full case mapping, and walking valid UTF-8. Not normalisation, not
 * validation of file content beyond well-formedness. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TEXT_JINJA_UNICODE_H
#define INFER_TEXT_JINJA_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

/* Offset of the first byte that is not part of well-formed UTF-8; n if there is none. */
size_t infer_ju_invalid(const char *p, size_t n);
/* Code points in n bytes of valid UTF-8, and the byte offset of code point k (n if there are fewer). */
size_t infer_ju_count(const char *p, size_t n);
size_t infer_ju_offset(const char *p, size_t n, size_t k);
/* The code point at *i (< n) of valid UTF-8; *i moves past it. */
uint32_t infer_ju_next(const char *p, size_t *i);
/* Start of the code point that ends at byte i (> 0). */
size_t infer_ju_back(const char *p, size_t i);
/* Cuts an incomplete sequence off the end of a NUL-terminated text that was truncated. */
void infer_ju_trim(char *text, size_t n);

/* Appends `head` and v in `digits` lower-case hexadecimal digits: escapes come by the million. */
void infer_ju_put_hex(infer_buf *b, const char *head, uint32_t v, int digits);
/* Python's \x, \u or \U escape of a code point. */
void infer_ju_put_escape(infer_buf *b, uint32_t cp);

/* Predicates of one code point, named as Python's methods. */
bool infer_ju_isspace(uint32_t cp);
bool infer_ju_isalpha(uint32_t cp);
bool infer_ju_isdecimal(uint32_t cp);
bool infer_ju_isdigit(uint32_t cp);
bool infer_ju_isnumber(uint32_t cp); /* category N*: isnumeric without the CJK numerals */
bool infer_ju_islower(uint32_t cp);
bool infer_ju_isupper(uint32_t cp);
bool infer_ju_istitle(uint32_t cp); /* category Lt */
bool infer_ju_isprintable(uint32_t cp);
bool infer_ju_isword(uint32_t cp);  /* \w of re */
bool infer_ju_isident(uint32_t cp); /* may stand in an identifier, digits included */

/* Whole-text mappings, appended to b: full (one to many) mappings, final sigma included. */
void infer_ju_upper(infer_buf *b, const char *p, size_t n);
void infer_ju_lower(infer_buf *b, const char *p, size_t n);
void infer_ju_title(infer_buf *b, const char *p, size_t n);      /* str.title */
void infer_ju_capitalize(infer_buf *b, const char *p, size_t n); /* str.capitalize */
void infer_ju_swapcase(infer_buf *b, const char *p, size_t n);
void infer_ju_casefold(infer_buf *b, const char *p, size_t n);

#endif
