/* The tables: what filters, tests, functions and methods there are. A row more is a feature more.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TEXT_JINJA_TABLE_H
#define INFER_TEXT_JINJA_TABLE_H

#include "text/jinja_value.h"

/* Each table ends with a row without name. */
extern const infer_jrow infer_jrows_filter[];      /* jinja_filter.c */
extern const infer_jrow infer_jrows_filter_seq[];  /* jinja_filter_seq.c */
extern const infer_jrow infer_jrows_test[];        /* jinja_test.c; results are J_BOOL */
extern const infer_jrow infer_jrows_func[];        /* jinja_func.c */
extern const infer_jrow infer_jrows_method_str[];  /* jinja_str.c */
extern const infer_jrow infer_jrows_method_seek[]; /* jinja_str_seek.c */
extern const infer_jrow infer_jrows_method_obj[];  /* jinja_obj.c; params NULL: a property */

/* NULL where there is no such row. A row whose fn is NULL is known and not offered. */
const infer_jrow *infer_jrow_filter(const char *name, size_t n);
const infer_jrow *infer_jrow_test(const char *name, size_t n);
const infer_jrow *infer_jrow_func(const char *name, size_t n);
/* `on`: J_BIT of the kinds wanted, ~0u for any. */
const infer_jrow *infer_jrow_method(const char *name, size_t n, uint32_t on);

/* Binds the arguments to the row's parameters and calls it; a row that is not offered is INFER_E_UNSUPPORTED. `what`
 * is "filter", "test", "function" or "method", for messages. */
int infer_jrow_call(infer_jctx *c, const infer_jrow *row, const char *what, infer_jval self, const infer_jargs *args,
                    infer_jval *out);
/* Calls any value. */
int infer_jval_call(infer_jctx *c, infer_jval fn, const infer_jargs *args, infer_jval *out);

#endif
