/* Translation of tokenizer patterns to PCRE2's syntax, compilation and search. Not a general Oniguruma front end: set
 * operations, nested classes, subexpression calls and extended mode are refused.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "text/regex.h"

struct infer_regex {
    pcre2_code *code;
};

struct infer_regex_scratch {
    pcre2_general_context *general;
    pcre2_match_context *context;
    pcre2_match_data *data;
};

/* Members of a class. Oniguruma's \s is Unicode's White_Space (PCRE2's would add U+180E); its complement can only be
 * spelled out, as PCRE2 knows no set difference. \w is Alphabetic, marks, decimal digits and connectors. */
#define SPACE "\\x{85}\\x09-\\x0d\\p{Z}"
#define NOT_SPACE                                                                                                      \
    "\\x{0}-\\x08\\x0e-\\x1f\\x21-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}"       \
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"
#define WORD                                                                                                           \
    "\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}\\x{b2}\\x{b3}\\x{b9}"          \
    "\\x{bc}-\\x{be}\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}"
#define HEX "a-fA-F0-9"

/* What an escape becomes inside and outside of a class; NULL: refused there. Letters that are not listed are refused.
 * "" stands for the escape itself. */
static const struct escape {
    char letter;
    const char *in_class, *outside;
} escapes[] = {
    {'s', SPACE, "[" SPACE "]"},
    {'S', NOT_SPACE, "[^" SPACE "]"},
    {'w', WORD, "[" WORD "]"},
    {'W', NULL, "[^" WORD "]"},
    {'d', "\\p{Nd}", "\\p{Nd}"},
    {'D', "\\P{Nd}", "\\P{Nd}"},
    {'h', HEX, "[" HEX "]"},
    {'H', NULL, "[^" HEX "]"},
    {'b', "\\x08", "(?:(?<=[" WORD "])(?![" WORD "])|(?<![" WORD "])(?=[" WORD "]))"},
    {'B', NULL, "(?:(?<=[" WORD "])(?=[" WORD "])|(?<![" WORD "])(?![" WORD "]))"},
    {'v', "\\x0b", "\\x0b"},
    {'n', "", ""},
    {'r', "", ""},
    {'t', "", ""},
    {'f', "", ""},
    {'a', "", ""},
    {'e', "", ""},
    {'A', NULL, ""},
    {'z', NULL, ""},
    {'Z', NULL, ""},
    {'R', NULL, ""},
};

typedef struct translation {
    const char *p;
    size_t n, i;
    infer_buf out;
    infer_error *err;
} translation;

static infer_status refuse(translation *t, const char *what)
{
    return infer_error_set(t->err, INFER_E_UNSUPPORTED, "pattern '%.*s': %s at byte %zu is not supported",
                           t->n > 200 ? 200 : (int)t->n, t->p, what, t->i);
}

static int is_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* At a backslash: writes its translation and steps over it; *is_set tells that it was a set of characters. */
static infer_status translate_escape(translation *t, int in_class, int *is_set)
{
    const char *p = t->p + t->i;
    size_t left = t->n - t->i;
    *is_set = 0;
    if (left < 2)
        return refuse(t, "a trailing backslash");
    char c = p[1];
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c))) {
        infer_buf_append(&t->out, p, 2); /* an escaped literal (its later bytes, if any, follow as they are) */
        t->i += 2;
        return INFER_OK;
    }
    if (c == 'p' || c == 'P') {
        const char *close = left > 3 && p[2] == '{' ? memchr(p, '}', left) : NULL;
        if (!close)
            return refuse(t, "\\p without {name}");
        infer_buf_append(&t->out, p, (size_t)(close - p) + 1);
        t->i += (size_t)(close - p) + 1;
        *is_set = 1;
        return INFER_OK;
    }
    if (c == 'u') {
        if (left < 6 || !is_hex(p[2]) || !is_hex(p[3]) || !is_hex(p[4]) || !is_hex(p[5]))
            return refuse(t, "\\u without four hexadecimal digits");
        infer_buf_printf(&t->out, "\\x{%.4s}", p + 2);
        t->i += 6;
        return INFER_OK;
    }
    if (c == 'x') {
        size_t len = 2;
        if (left > 2 && p[2] == '{') {
            const char *close = memchr(p, '}', left);
            if (!close)
                return refuse(t, "\\x{ without }");
            len = (size_t)(close - p) + 1;
        } else {
            while (len < 4 && len < left && is_hex(p[len]))
                len++;
            if (len == 2 || (len == 4 && p[2] >= '8'))
                return refuse(t, "\\x of a single byte");
        }
        infer_buf_append(&t->out, p, len);
        t->i += len;
        return INFER_OK;
    }
    if (c >= '1' && c <= '9' && !in_class) { /* back reference */
        infer_buf_append(&t->out, p, 2);
        t->i += 2;
        return INFER_OK;
    }
    for (size_t k = 0; k < sizeof escapes / sizeof *escapes; k++) {
        if (escapes[k].letter != c)
            continue;
        const char *to = in_class ? escapes[k].in_class : escapes[k].outside;
        if (!to)
            break;
        infer_buf_append(&t->out, *to ? to : p, *to ? strlen(to) : 2);
        t->i += 2;
        *is_set = strchr("sSwWdDhH", c) != NULL;
        return INFER_OK;
    }
    char what[] = "\\? here";
    what[1] = c;
    return refuse(t, what);
}

/* At a '[': a whole class. */
static infer_status translate_class(translation *t)
{
    infer_buf_putc(&t->out, '[');
    t->i++;
    if (t->i < t->n && t->p[t->i] == '^') {
        infer_buf_putc(&t->out, '^');
        t->i++;
    }
    int after_set = 0, after_dash = 0; /* the last item was a set; the last byte was a '-' that may begin a range */
    for (int first = 1;; first = 0) {
        if (t->i >= t->n)
            return refuse(t, "a class without its ]");
        char c = t->p[t->i];
        if (c == ']' && !first) {
            infer_buf_putc(&t->out, ']');
            t->i++;
            return INFER_OK;
        }
        if (c == '[')
            return refuse(t, "a class inside a class");
        if (c == '&' && t->i + 1 < t->n && t->p[t->i + 1] == '&')
            return refuse(t, "&& inside a class");
        int is_set = 0;
        if (c == '\\') {
            int range = after_dash;
            infer_status s = translate_escape(t, 1, &is_set);
            if (s != INFER_OK)
                return s;
            if (is_set && range)
                return refuse(t, "a range that ends in a set");
            after_dash = 0;
        } else if (c == '-' && (first || after_set)) {
            infer_buf_puts(&t->out, "\\-"); /* a plain hyphen, which PCRE2 wants to be told */
            t->i++;
            after_dash = 0;
        } else {
            infer_buf_putc(&t->out, c);
            t->i++;
            after_dash = c == '-';
        }
        after_set = is_set;
    }
}

/* At a '(': the group's opening. */
static infer_status translate_group(translation *t)
{
    const char *p = t->p + t->i;
    size_t left = t->n - t->i;
    if (left < 2 || (p[1] != '?' && p[1] != '*')) {
        infer_buf_puts(&t->out, "(");
        t->i++;
        return INFER_OK;
    }
    static const char *const as_is[] = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?#"};
    for (size_t k = 0; k < sizeof as_is / sizeof *as_is; k++) {
        size_t len = strlen(as_is[k]);
        if (left < len || memcmp(p, as_is[k], len) != 0)
            continue;
        if (p[2] == '#') { /* a comment holds no syntax */
            const char *close = memchr(p, ')', left);
            if (!close)
                return refuse(t, "an open comment");
            t->i += (size_t)(close - p) + 1;
            return INFER_OK;
        }
        infer_buf_append(&t->out, p, len);
        t->i += len;
        return INFER_OK;
    }
    if (left > 3 && p[2] == '<') { /* (?<name> */
        infer_buf_puts(&t->out, "(?<");
        t->i += 3;
        return INFER_OK;
    }
    size_t k = 2; /* (?i), (?i-m:…) and the like; Ruby's m is PCRE2's s */
    infer_buf_puts(&t->out, "(?");
    for (; k < left && p[1] == '?' && (p[k] == 'i' || p[k] == 'm' || p[k] == '-'); k++)
        infer_buf_putc(&t->out, p[k] == 'm' ? 's' : p[k]);
    /* (?i) in mid-pattern also groups the alternatives that follow it, in Ruby's syntax only. */
    if (k == 2 || k >= left || (p[k] != ':' && (p[k] != ')' || t->i != 0)))
        return refuse(t, "this kind of group");
    infer_buf_putc(&t->out, p[k]);
    t->i += k + 1;
    return INFER_OK;
}

/* At a '{': an interval, or a literal brace. */
static infer_status translate_brace(translation *t)
{
    const char *p = t->p + t->i;
    size_t left = t->n - t->i, k = 1, low = 0, high = 0;
    while (k < left && is_digit(p[k]))
        k++, low++;
    int comma = k < left && p[k] == ',';
    if (comma)
        for (k++; k < left && is_digit(p[k]); k++)
            high++;
    if (k >= left || p[k] != '}' || (!low && !high)) {
        infer_buf_puts(&t->out, "\\{");
        t->i++;
        return INFER_OK;
    }
    infer_buf_puts(&t->out, low ? "{" : "{0"); /* {,n} begins at nought */
    infer_buf_append(&t->out, p + 1, k);
    t->i += k + 1;
    /* There {n,m}+ repeats the repetition and {n}? makes it optional; in PCRE2 they are possessive and lazy. */
    if (k + 1 < left && (p[k + 1] == '+' || p[k + 1] == '*' || p[k + 1] == '{' || (p[k + 1] == '?' && !comma)))
        return refuse(t, "a repeated repetition");
    return INFER_OK;
}

static infer_status translate(translation *t)
{
    while (t->i < t->n) {
        infer_status s = INFER_OK;
        int is_set;
        switch (t->p[t->i]) {
        case '\\':
            s = translate_escape(t, 0, &is_set);
            break;
        case '[':
            s = translate_class(t);
            break;
        case '(':
            s = translate_group(t);
            break;
        case '{':
            s = translate_brace(t);
            break;
        default:
            infer_buf_putc(&t->out, t->p[t->i++]);
        }
        if (s != INFER_OK)
            return s;
    }
    return t->out.failed ? infer_error_set(t->err, INFER_E_NO_MEMORY, "pattern: no memory") : INFER_OK;
}

static void *pcre_malloc(size_t n, void *user)
{
    (void)user;
    return infer_malloc(n);
}

static void pcre_free(void *p, void *user)
{
    (void)user;
    infer_free(p);
}

infer_status infer_regex_compile(const char *pattern, size_t n, infer_regex **out, infer_error *err)
{
    if (n > INFER_REGEX_MAX_PATTERN)
        return infer_error_set(err, INFER_E_UNSUPPORTED, "pattern of %zu bytes: the limit is %u", n,
                               INFER_REGEX_MAX_PATTERN);
    translation t = {.p = pattern, .n = n, .err = err};
    infer_regex *r = NULL;
    pcre2_general_context *general = NULL;
    pcre2_compile_context *context = NULL;
    infer_status s = translate(&t);
    if (s != INFER_OK)
        goto out;
    s = INFER_E_NO_MEMORY;
    r = infer_calloc(1, sizeof *r);
    general = pcre2_general_context_create(pcre_malloc, pcre_free, NULL);
    context = general ? pcre2_compile_context_create(general) : NULL;
    if (!r || !context) {
        infer_error_set(err, s, "pattern: no memory");
        goto out;
    }
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    int code;
    PCRE2_SIZE at;
    /* Ruby's ^ and $ are at every line. */
    r->code = pcre2_compile((PCRE2_SPTR)(t.out.p ? t.out.p : ""), t.out.n, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE,
                            &code, &at, context);
    if (!r->code) {
        PCRE2_UCHAR text[120];
        pcre2_get_error_message(code, text, sizeof text);
        s = code == PCRE2_ERROR_HEAP_FAILED ? INFER_E_NO_MEMORY : INFER_E_UNSUPPORTED;
        infer_error_set(err, s, "pattern '%.*s': %s", n > 200 ? 200 : (int)n, pattern, (const char *)text);
        goto out;
    }
    pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE); /* without it the interpreter serves */
    *out = r;
    r = NULL;
    s = INFER_OK;
out:
    pcre2_compile_context_free(context);
    pcre2_general_context_free(general);
    infer_regex_destroy(r);
    infer_buf_free(&t.out);
    return s;
}

void infer_regex_destroy(infer_regex *r)
{
    if (!r)
        return;
    pcre2_code_free(r->code);
    infer_free(r);
}

infer_status infer_regex_scratch_create(size_t max_text, infer_regex_scratch **out)
{
    infer_regex_scratch *s = infer_calloc(1, sizeof *s);
    if (!s)
        return INFER_E_NO_MEMORY;
    s->general = pcre2_general_context_create(pcre_malloc, pcre_free, NULL);
    s->context = s->general ? pcre2_match_context_create(s->general) : NULL;
    s->data = s->context ? pcre2_match_data_create(1, s->general) : NULL;
    if (!s->data) {
        infer_regex_scratch_destroy(s);
        return INFER_E_NO_MEMORY;
    }
    size_t steps = max_text < UINT32_MAX / 32 ? max_text * 32 : UINT32_MAX;
    pcre2_set_match_limit(s->context, steps > 10000000 ? (uint32_t)steps : 10000000);
    pcre2_set_heap_limit(s->context, 65536);
    *out = s;
    return INFER_OK;
}

void infer_regex_scratch_destroy(infer_regex_scratch *s)
{
    if (!s)
        return;
    pcre2_match_data_free(s->data);
    pcre2_match_context_free(s->context);
    pcre2_general_context_free(s->general);
    infer_free(s);
}

infer_status infer_regex_search(const infer_regex *r, infer_regex_scratch *s, const char *text, size_t n, size_t from,
                                int *found, size_t *start, size_t *end, infer_error *err)
{
    uint32_t options = PCRE2_NO_UTF_CHECK;
    int rc = pcre2_match(r->code, (PCRE2_SPTR)text, n, from, options, s->data, s->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(r->code, (PCRE2_SPTR)text, n, from, options | PCRE2_NO_JIT, s->data, s->context);
    if (rc == PCRE2_ERROR_NOMATCH) {
        *found = 0;
        return INFER_OK;
    }
    if (rc < 0) {
        PCRE2_UCHAR what[120];
        pcre2_get_error_message(rc, what, sizeof what);
        return infer_error_set(err, rc == PCRE2_ERROR_NOMEMORY ? INFER_E_NO_MEMORY : INFER_E_TOO_LARGE,
                               "search of a pre-tokenizer pattern in %zu bytes: %s", n, (const char *)what);
    }
    const PCRE2_SIZE *o = pcre2_get_ovector_pointer(s->data);
    *found = 1;
    *start = o[0];
    *end = o[1];
    return INFER_OK;
}
