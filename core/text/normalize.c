/* The normalisation steps. Unicode's data come from utf8proc; canonical ordering is done here, as there it takes time
 * quadratic in the length of a run of marks. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>
#include <utf8proc.h>

#include "base/alloc.h"
#include "text/normalize.h"
#include "text/utf8.h"

static unsigned combining_class(int32_t cp)
{
    return cp < 0x300 ? 0 : (unsigned)utf8proc_get_property(cp)->combining_class;
}

/* Sorts a run of marks by combining class, keeping the order of equals. tmp has room for n. */
static void order_marks(int32_t *p, size_t n, int32_t *tmp)
{
    if (n <= 16) {
        for (size_t i = 1; i < n; i++) {
            int32_t cp = p[i];
            size_t j = i;
            for (; j && combining_class(p[j - 1]) > combining_class(cp); j--)
                p[j] = p[j - 1];
            p[j] = cp;
        }
        return;
    }
    size_t at[257] = {0};
    for (size_t i = 0; i < n; i++)
        at[combining_class(p[i]) + 1]++;
    for (size_t c = 1; c < 257; c++)
        at[c] += at[c - 1];
    for (size_t i = 0; i < n; i++)
        tmp[at[combining_class(p[i])]++] = p[i];
    memcpy(p, tmp, n * sizeof *p);
}

/* A normalisation form (Unicode Standard Annex 15): decompose, order the marks, compose. */
static void unicode_form(infer_norm_scratch *s, infer_norm_kind kind, infer_str in, infer_buf *out)
{
    int compose = kind == INFER_NORM_NFC || kind == INFER_NORM_NFKC;
    utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    if (kind == INFER_NORM_NFKC || kind == INFER_NORM_NFKD)
        options |= UTF8PROC_COMPAT;
    infer_buf *b = &s->points;
    infer_buf_clear(b);
    b->limit = out->limit * sizeof(int32_t);
    int boundary = 0;
    for (size_t i = 0; i < in.n;) {
        uint32_t cp;
        i += infer_utf8_get(in.p + i, in.n - i, &cp);
        int32_t part[32]; /* the longest decomposition has 18 */
        utf8proc_ssize_t k = 1;
        if (cp < 0x80)
            part[0] = (int32_t)cp;
        else
            k = utf8proc_decompose_char((utf8proc_int32_t)cp, part, 32, options, &boundary);
        if (k < 1 || k > 32) { /* no character of valid text does that */
            part[0] = 0xFFFD;
            k = 1;
        }
        infer_buf_append(b, part, (size_t)k * sizeof *part);
    }
    size_t n = b->n / sizeof(int32_t), longest = 0;
    int32_t *p = (int32_t *)(void *)b->p, *tmp = NULL;
    for (size_t i = 0, run = 0; i < n; i++) {
        run = combining_class(p[i]) ? run + 1 : 0;
        longest = run > longest ? run : longest;
    }
    if (longest > 16) {
        tmp = (int32_t *)(void *)infer_buf_reserve(b, longest * sizeof *tmp);
        p = (int32_t *)(void *)b->p;
    }
    if (b->failed) {
        out->failed = b->failed;
        return;
    }
    for (size_t i = 0; longest > 1 && i < n;) {
        size_t run = 0;
        while (i + run < n && combining_class(p[i + run]))
            run++;
        if (run > 1)
            order_marks(p + i, run, tmp);
        i += run + 1;
    }
    if (compose && n) {
        utf8proc_ssize_t k = utf8proc_normalize_utf32(p, (utf8proc_ssize_t)n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        n = k < 0 ? 0 : (size_t)k;
    }
    for (size_t i = 0; i < n; i++)
        infer_buf_put_utf8(out, (uint32_t)p[i]);
}

/* Whether text below this code point is left alone by a form; what is above may still be. */
static uint32_t stable_below(infer_norm_kind kind)
{
    return kind == INFER_NORM_NFC ? 0x300 : kind == INFER_NORM_NFD ? 0xC0 : 0xA0;
}

static int is_stable(infer_norm_kind kind, infer_str in)
{
    uint32_t below = stable_below(kind), cp;
    for (size_t i = 0; i < in.n;) {
        i += infer_utf8_get(in.p + i, in.n - i, &cp);
        if (cp >= below)
            return 0;
    }
    return 1;
}

static infer_status replace(const infer_norm *step, infer_norm_scratch *s, infer_str in, infer_buf *out,
                            infer_error *err)
{
    infer_regex_scratch *scratch = NULL;
    if (step->regex) {
        infer_status st = infer_norm_scratch_regex(s, &scratch, err);
        if (st != INFER_OK)
            return st;
    }
    size_t done = 0;
    for (size_t from = 0; from <= in.n && !out->failed;) {
        size_t start = 0, end = 0;
        int found = 0;
        if (step->regex) {
            infer_status st = infer_regex_search(step->regex, scratch, in.p, in.n, from, &found, &start, &end, err);
            if (st != INFER_OK)
                return st;
        } else {
            const char *at = in.n - from ? memmem(in.p + from, in.n - from, step->from.p, step->from.n) : NULL;
            found = at != NULL;
            start = found ? (size_t)(at - in.p) : 0;
            end = start + step->from.n;
        }
        if (!found)
            break;
        infer_buf_append(out, in.p + done, start - done);
        infer_buf_append(out, step->to.p, step->to.n);
        s->lost_start |= !out->n && end;
        done = end;
        from = end > start ? end : end < in.n ? end + infer_utf8_len(in.p[end]) : in.n + 1;
    }
    infer_buf_append(out, in.p + done, in.n - done);
    return INFER_OK;
}

static void per_character(infer_norm_kind kind, infer_str in, infer_buf *out)
{
    for (size_t i = 0; i < in.n;) {
        uint32_t cp;
        i += infer_utf8_get(in.p + i, in.n - i, &cp);
        if (kind == INFER_NORM_STRIP_ACCENTS) {
            utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
            if (c != UTF8PROC_CATEGORY_MN && c != UTF8PROC_CATEGORY_MC && c != UTF8PROC_CATEGORY_ME)
                infer_buf_put_utf8(out, cp);
        } else if (cp == 0x130) {
            infer_buf_puts(out, "i\xCC\x87"); /* the one lower case of two characters */
        } else {
            infer_buf_put_utf8(out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp));
        }
    }
}

static infer_str strip(const infer_norm *step, infer_str in)
{
    size_t from = 0, to = 0;
    int inside = 0; /* past the leading white space */
    for (size_t i = 0; i < in.n;) {
        uint32_t cp;
        size_t k = infer_utf8_get(in.p + i, in.n - i, &cp);
        if (!infer_utf8_is_space(cp)) {
            if (!inside)
                from = i;
            inside = 1;
            to = i + k;
        }
        i += k;
    }
    if (!inside)
        return step->strip_left || step->strip_right ? infer_str_of(in.p, 0) : in;
    if (!step->strip_left)
        from = 0;
    if (!step->strip_right)
        to = in.n;
    return infer_str_of(in.p + from, to - from);
}

static void squeeze(infer_str in, infer_buf *out)
{
    size_t from = 0, to = in.n;
    while (from < to && in.p[from] == ' ')
        from++;
    while (to > from && in.p[to - 1] == ' ')
        to--;
    for (size_t i = from; i < to; i++)
        if (in.p[i] != ' ' || in.p[i - 1] != ' ')
            infer_buf_putc(out, in.p[i]);
}

infer_status infer_normalize(const infer_norm *steps, size_t n_steps, infer_norm_scratch *s, infer_str in,
                             infer_str *out, infer_error *err)
{
    infer_str text = in;
    size_t limit = s->max_text * 32 + 4096;
    s->lost_start = 0;
    int holder = 0; /* the buffer that holds the text, once one does */
    for (size_t i = 0; i < n_steps; i++) {
        const infer_norm *step = &steps[i];
        infer_buf *b = &s->buf[!holder];
        infer_buf_clear(b);
        b->limit = limit;
        infer_buf_append(b, "", 0);
        infer_status st = INFER_OK;
        infer_str kept;
        switch (step->kind) {
        case INFER_NORM_NFC:
        case INFER_NORM_NFD:
        case INFER_NORM_NFKC:
        case INFER_NORM_NFKD:
            if (is_stable(step->kind, text))
                continue;
            unicode_form(s, step->kind, text, b);
            break;
        case INFER_NORM_REPLACE:
            st = replace(step, s, text, b, err);
            break;
        case INFER_NORM_PREPEND:
            if (!text.n)
                continue;
            infer_buf_append(b, step->to.p, step->to.n);
            infer_buf_append(b, text.p, text.n);
            break;
        case INFER_NORM_LOWERCASE:
        case INFER_NORM_STRIP_ACCENTS:
            per_character(step->kind, text, b);
            break;
        case INFER_NORM_STRIP:
            kept = strip(step, text);
            s->lost_start |= kept.p != text.p;
            text = kept;
            continue;
        case INFER_NORM_SQUEEZE:
            squeeze(text, b);
            break;
        }
        if (st != INFER_OK)
            return st;
        if (b->failed || !b->p)
            return infer_buf_error(b, err, "normalise text");
        text = infer_str_of(b->p, b->n);
        holder = !holder;
    }
    *out = text;
    return INFER_OK;
}

void infer_norm_scratch_free(infer_norm_scratch *s)
{
    infer_buf_free(&s->buf[0]);
    infer_buf_free(&s->buf[1]);
    infer_buf_free(&s->points);
    infer_regex_scratch_destroy(s->regex);
    *s = (infer_norm_scratch){0};
}

infer_status infer_norm_scratch_regex(infer_norm_scratch *s, infer_regex_scratch **out, infer_error *err)
{
    if (!s->regex && infer_regex_scratch_create(s->max_text, &s->regex) != INFER_OK)
        return infer_error_set(err, INFER_E_NO_MEMORY, "regular expressions: no memory");
    *out = s->regex;
    return INFER_OK;
}
