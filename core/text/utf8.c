/* UTF-8 validation and character classes. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>
#include <utf8proc.h>

#include "text/utf8.h"

/* Length of the leading run of ASCII bytes. */
static size_t ascii_run(const char *p, size_t n)
{
    size_t i = 0;
    for (; n - i >= 8; i += 8) {
        uint64_t w;
        memcpy(&w, p + i, 8);
        if (w & 0x8080808080808080u)
            break;
    }
    while (i < n && !(p[i] & 0x80))
        i++;
    return i;
}

int infer_utf8_valid(const char *p, size_t n)
{
    for (size_t i = ascii_run(p, n); i < n;) {
        uint32_t cp;
        int k = infer_utf8_next(p + i, n - i, &cp);
        if (k <= 0)
            return 0;
        i += (size_t)k;
        if (i < n && !(p[i] & 0x80))
            i += ascii_run(p + i, n - i);
    }
    return 1;
}

void infer_utf8_append_lossy(infer_buf *out, const char *p, size_t n)
{
    size_t from = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int k = infer_utf8_next(p + i, n - i, &cp);
        if (k > 0) {
            i += (size_t)k;
            continue;
        }
        infer_buf_append(out, p + from, i - from);
        infer_buf_puts(out, INFER_UTF8_REPLACEMENT);
        i += k ? (size_t)-k : n - i;
        from = i;
    }
    infer_buf_append(out, p + from, n - from);
}

int infer_utf8_is_space(uint32_t cp)
{
    if (cp < 0x80)
        return cp == ' ' || (cp >= 9 && cp <= 13);
    if (cp == 0x85)
        return 1;
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_ZS || c == UTF8PROC_CATEGORY_ZL || c == UTF8PROC_CATEGORY_ZP;
}

int infer_utf8_is_word(uint32_t cp)
{
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return 1;
    case UTF8PROC_CATEGORY_SO: /* Other_Alphabetic among the symbols: circled and squared letters */
        return (cp >= 0x24B6 && cp <= 0x24E9) || (cp >= 0x1F130 && cp <= 0x1F149) || (cp >= 0x1F150 && cp <= 0x1F169) ||
               (cp >= 0x1F170 && cp <= 0x1F189);
    default:
        return cp == 0x200C || cp == 0x200D; /* Join_Control */
    }
}
