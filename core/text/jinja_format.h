/* Python's two ways to format values into text, and strftime. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TEXT_JINJA_FORMAT_H
#define INFER_TEXT_JINJA_FORMAT_H

#include "text/jinja_value.h"

/* fmt % arg: arg is a tuple of values, a dict for %(name)s, or one value. */
int infer_jformat_percent(infer_jctx *c, const infer_jstr *fmt, infer_jval arg, infer_jval *out);
/* fmt.format(*pos, **kw). */
int infer_jformat_braces(infer_jctx *c, const infer_jstr *fmt, const infer_jargs *args, infer_jval *out);
/* Appends text to c->tmp, filled to width code points: align '<', '>', '^', or '=' (fill goes behind the first `head`
 * bytes: sign and base). */
int infer_jformat_pad(infer_jctx *c, const char *p, size_t n, size_t head, char align, uint32_t fill, int64_t width);
/* datetime.strftime(fmt) in the C locale at `now` seconds of the epoch: UTC, or local time where now is 0 (the clock).
 * INFER_E_UNSUPPORTED names an unknown directive. */
int infer_jformat_time(infer_jctx *c, const infer_jstr *fmt, int64_t now, infer_jval *out);

#endif
