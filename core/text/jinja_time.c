/* datetime.strftime of Python in the C locale, for strftime_now. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>
#include <time.h>

#include "text/jinja_format.h"

int infer_jformat_time(infer_jctx *c, const infer_jstr *fmt, int64_t now, infer_jval *out)
{
    struct timespec ts = {.tv_sec = (time_t)now};
    struct tm tm;
    if (!now)
        clock_gettime(CLOCK_REALTIME, &ts);
    if (!(now ? gmtime_r(&ts.tv_sec, &tm) : localtime_r(&ts.tv_sec, &tm)))
        return infer_jctx_error(c, "strftime_now: the time is out of range");
    size_t mark = infer_jctx_begin(c);
    infer_buf *b = &c->tmp;
    for (size_t i = 0; i < fmt->n; i++) {
        char ch = fmt->p[i];
        if (ch != '%' || i + 1 >= fmt->n) {
            infer_buf_putc(b, ch);
            continue;
        }
        char directive[4] = {'%'}, text[128];
        size_t n = 1;
        if (strchr("-_0^#", fmt->p[i + 1]) && fmt->p[i + 1] && i + 2 < fmt->n) /* the C library's flags */
            directive[n++] = fmt->p[++i];
        ch = directive[n] = fmt->p[++i];
        if (ch == 'f')
            infer_buf_printf(b, "%06ld", ts.tv_nsec / 1000);
        else if (ch && strchr("aAbBcCdDeFgGhHIjklmMnpPrRStTuUVwWxXyY%", ch))
            infer_buf_append(b, text, strftime(text, sizeof text, directive, &tm));
        else if (ch != 'z' && ch != 'Z') /* a date without time zone gives nothing for these */
            return infer_jctx_fail(c, INFER_E_UNSUPPORTED, "strftime_now: unknown directive '%%%c'",
                                   ch > 0x20 && ch < 0x7F ? ch : '?');
        if (infer_jctx_step(c, 1))
            return -1;
    }
    return infer_jctx_end(c, mark, out);
}
