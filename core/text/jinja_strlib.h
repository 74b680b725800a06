/* What filters and methods of strings share. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TEXT_JINJA_STRLIB_H
#define INFER_TEXT_JINJA_STRLIB_H

#include "text/jinja_ops.h"

/* One of infer_ju_upper and its kin over a whole string. */
int infer_jstr_map(infer_jctx *c, const infer_jstr *s, void (*fn)(infer_buf *b, const char *p, size_t n),
                   infer_jval *out);
#define J_STRIP_LEFT  1u
#define J_STRIP_RIGHT 2u
/* Without the characters in `chars` (NULL: white space) at the chosen ends. */
int infer_jstr_strip(infer_jctx *c, const infer_jstr *s, const infer_jstr *chars, unsigned sides, infer_jval *out);
/* With the first `count` (negative: all) occurrences replaced. */
int infer_jstr_replace(infer_jctx *c, const infer_jstr *s, const infer_jstr *from, const infer_jstr *to, int64_t count,
                       infer_jval *out);
int infer_jstr_splitlines(infer_jctx *c, const infer_jstr *s, bool keep, infer_jval *out);
/* left and right copies of fill around s. */
int infer_jstr_fill(infer_jctx *c, const infer_jstr *s, int64_t left, int64_t right, uint32_t fill, infer_jval *out);
int infer_jstr_center(infer_jctx *c, const infer_jstr *s, int64_t width, uint32_t fill, infer_jval *out);
/* str(item) of each item, joined. strict: items that are no strings are an error (str.join). */
int infer_jstr_join(infer_jctx *c, const infer_jstr *sep, infer_jval items, bool strict, infer_jval *out);

/* An argument that must be a string. */
int infer_jval_need_str(infer_jctx *c, infer_jval v, const char *what, const infer_jstr **out);

#endif
