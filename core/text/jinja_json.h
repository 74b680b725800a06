/* JSON in and out of template values. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TEXT_JINJA_JSON_H
#define INFER_TEXT_JINJA_JSON_H

#include "text/jinja_value.h"

/* Reads one JSON text (RFC 8259, UTF-8), keeping the order of keys; of equal keys the last value stands, in the first
 * one's place. Strings without escapes stay in `p`, which must outlive the values. An unpaired surrogate becomes
 * U+FFFD. INFER_E_INVALID names the byte offset. */
int infer_jjson_read(infer_jctx *c, const char *p, size_t n, infer_jval *out);

typedef struct infer_jjson_style {
    infer_jval indent; /* J_NONE: one line; a number of spaces, or a string */
    const infer_jstr *item, *key;
    bool ascii, sort;
} infer_jjson_style;

/* Appends to c->tmp what Python's json.dumps gives. TypeError for what is no JSON value. */
int infer_jjson_write(infer_jctx *c, infer_jval v, const infer_jjson_style *style);

#endif
