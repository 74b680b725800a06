/* A cursor over JSON text for the two members of tokenizer.json that have hundreds of thousands of elements; all the
 * rest is left to a general parser, which a document of 30 MB would keep busy for half a second.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TEXT_JSON_SCAN_H
#define INFER_TEXT_JSON_SCAN_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

typedef struct infer_json_cursor {
    const char *p;
    size_t n, i;
} infer_json_cursor;

/* Each steps over leading white space; 1 and past what it names, else 0 with the cursor where the trouble is. */

/* The character c. */
int infer_json_char(infer_json_cursor *c, char what);
/* Whether c is next, without stepping over it. */
int infer_json_peek(infer_json_cursor *c, char what);
/* A string, unescaped onto the end of out (whose failure is the caller's to see): valid UTF-8, surrogates paired. */
int infer_json_string(infer_json_cursor *c, infer_buf *out);
/* An integer in [0, INT32_MAX]. */
int infer_json_uint(infer_json_cursor *c, uint32_t *v);
/* Any value, seen as strings and brackets only: *at and *n its text. No recursion. */
int infer_json_skip(infer_json_cursor *c, size_t *at, size_t *n);

#endif
