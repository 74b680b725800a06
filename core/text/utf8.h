/* UTF-8 decoding that tells ill-formed from unfinished, and the classes of characters that tokenizers ask for.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TEXT_UTF8_H
#define INFER_TEXT_UTF8_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define INFER_UTF8_REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD */

/* Reads one character of n > 0 bytes. Returns its length (1 to 4) with *cp set; -k where the first k bytes are
 * ill-formed (k is the "maximal subpart" of Unicode's section 3.9, so that k bytes become one U+FFFD); 0 where all n
 * bytes are the beginning of a character that may still be finished. */
static inline int infer_utf8_next(const char *text, size_t n, uint32_t *cp)
{
    const uint8_t *p = (const uint8_t *)text;
    uint32_t c = p[0];
    if (c < 0x80) {
        *cp = c;
        return 1;
    }
    if (c < 0xC2 || c > 0xF4)
        return -1;
    size_t len = c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
    /* The second byte's range excludes overlong forms, surrogates and what lies past U+10FFFF. */
    uint32_t low = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80, high = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
    uint32_t v = c & (0x7Fu >> len);
    for (size_t i = 1; i < len; i++) {
        if (i == n)
            return 0;
        if (p[i] < low || p[i] > high)
            return -(int)i;
        v = v << 6 | (p[i] & 0x3Fu);
        low = 0x80;
        high = 0xBF;
    }
    *cp = v;
    return (int)len;
}

/* The same for text known to be valid: never reports an error (what is not valid would be single U+FFFD). */
static inline size_t infer_utf8_get(const char *p, size_t n, uint32_t *cp)
{
    *cp = 0xFFFD;
    int k = infer_utf8_next(p, n, cp);
    return k > 0 ? (size_t)k : 1;
}

/* Bytes of the first character of valid text. */
static inline size_t infer_utf8_len(char first)
{
    uint8_t c = (uint8_t)first;
    return c < 0xC0 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

/* Writes cp (a scalar value) to out[4]; returns the length. */
static inline size_t infer_utf8_put(uint32_t cp, char *out)
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    size_t len = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = len; i-- > 1; cp >>= 6)
        out[i] = (char)(0x80 | (cp & 0x3F));
    out[0] = (char)((0xF00u >> len & 0xFFu) | cp);
    return len;
}

/* Whether all n bytes are valid UTF-8. */
int infer_utf8_valid(const char *p, size_t n);
/* Appends p with every ill-formed sequence (maximal subpart) replaced by U+FFFD. */
void infer_utf8_append_lossy(infer_buf *out, const char *p, size_t n);

/* Unicode's White_Space. */
int infer_utf8_is_space(uint32_t cp);
/* A word character of regular expressions: letters, marks, decimal digits, connectors, and what else is Alphabetic. */
int infer_utf8_is_word(uint32_t cp);

#endif
