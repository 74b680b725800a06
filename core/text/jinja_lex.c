/* Lexer of the template language. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_lex.h"
#include "text/jinja_ops.h"
#include "text/jinja_unicode.h"

typedef struct lexer {
    infer_jctx *c;
    const char *p; /* newlines are all \n */
    size_t i, n;
    uint32_t line;
    bool line_start; /* the last thing matched ended a line, or nothing was yet */
    infer_jtoken *v;
    size_t count, cap;
    char closing[J_MAX_NESTING]; /* brackets still open */
    size_t open;
} lexer;

static const struct {
    char text[3];
    infer_jtok type;
} operators[] = {
    {"**", T_POW},     {"//", T_FLOORDIV}, {"==", T_EQ},    {"!=", T_NE},    {">=", T_GE},    {"<=", T_LE},
    {"+", T_ADD},      {"-", T_SUB},       {"/", T_DIV},    {"*", T_MUL},    {"%", T_MOD},    {"~", T_TILDE},
    {"[", T_LBRACKET}, {"]", T_RBRACKET},  {"(", T_LPAREN}, {")", T_RPAREN}, {"{", T_LBRACE}, {"}", T_RBRACE},
    {">", T_GT},       {"<", T_LT},        {"=", T_ASSIGN}, {".", T_DOT},    {":", T_COLON},  {"|", T_PIPE},
    {",", T_COMMA},    {";", T_SEMICOLON},
};

const char *infer_jtok_name(infer_jtok t)
{
    static const char *const names[] = {
        [T_EOF] = "end of template", [T_DATA] = "template text", [T_VAR_BEGIN] = "'{{'", [T_VAR_END] = "'}}'",
        [T_BLOCK_BEGIN] = "'{%'",    [T_BLOCK_END] = "'%}'",     [T_NAME] = "a name",    [T_STRING] = "a string",
        [T_INT] = "an integer",      [T_FLOAT] = "a float",
    };
    if (t < sizeof names / sizeof names[0])
        return names[t];
    for (size_t i = 0; i < sizeof operators / sizeof operators[0]; i++)
        if (operators[i].type == t)
            return operators[i].text;
    return "?";
}

static int bad(lexer *x, const char *what)
{
    x->c->line = x->line;
    return infer_jctx_fail(x->c, INFER_E_BAD_FILE, "%s", what);
}

static int emit(lexer *x, infer_jtok type, infer_jval val)
{
    if (x->count == x->cap) {
        size_t cap = x->cap ? x->cap * 2 : 256;
        infer_jtoken *v = infer_jctx_array(x->c, cap, sizeof *v);
        if (!v)
            return -1;
        if (x->count)
            memcpy(v, x->v, x->count * sizeof *v);
        x->v = v;
        x->cap = cap;
    }
    x->v[x->count++] = (infer_jtoken){.type = type, .line = x->line, .val = val};
    return 0;
}

static int emit_text(lexer *x, infer_jtok type, const char *p, size_t n)
{
    infer_jval v;
    return infer_jstr_borrow(x->c, p, n, SIZE_MAX, &v) || emit(x, type, v) ? -1 : 0;
}

static void advance(lexer *x, size_t to)
{
    for (; x->i < to; x->i++)
        x->line += x->p[x->i] == '\n';
}

static size_t skip_space(const lexer *x, size_t i)
{
    while (i < x->n) {
        size_t at = i;
        if (!infer_ju_isspace(infer_ju_next(x->p, &i)))
            return at;
    }
    return i;
}

static bool at(const lexer *x, size_t i, const char *text)
{
    size_t n = strlen(text);
    return x->n - i >= n && memcmp(x->p + i, text, n) == 0;
}

/* Where the tag's end that starts at i stops: `-` takes the white space behind it, `+` nothing, else `trim` takes one
 * newline. 0 if no end starts here. */
static size_t tag_end(const lexer *x, size_t i, const char *end, bool trim)
{
    bool minus = at(x, i, "-"), plus = trim && at(x, i, "+");
    size_t stop = i + (minus || plus);
    if (!at(x, stop, end))
        return 0;
    stop += 2;
    if (minus)
        return skip_space(x, stop);
    return stop + (trim && !plus && at(x, stop, "\n"));
}

/* Emits the data [from, to) before a tag with the given sign. */
static int emit_data(lexer *x, size_t from, size_t to, char sign, bool lstrip)
{
    size_t end = to;
    if (sign == '-') {
        while (end > from) {
            size_t i = infer_ju_back(x->p, end), k = i;
            if (!infer_ju_isspace(infer_ju_next(x->p, &k)))
                break;
            end = i;
        }
    } else if (sign != '+' && lstrip) {
        size_t line = to;
        while (line > from && x->p[line - 1] != '\n')
            line--;
        if ((line > from || x->line_start) && skip_space(x, line) >= to)
            end = line;
    }
    return end > from && emit_text(x, T_DATA, x->p + from, end - from) ? -1 : 0;
}

static char sign_at(const lexer *x, size_t i)
{
    return i < x->n && (x->p[i] == '-' || x->p[i] == '+') ? x->p[i] : 0;
}

/* `{% raw %}` at i, with its sign: where it stops, 0 if it is not one. */
static size_t raw_begin(const lexer *x, size_t i)
{
    i += 2 + (sign_at(x, i + 2) != 0);
    i = skip_space(x, i);
    if (!at(x, i, "raw"))
        return 0;
    return tag_end(x, skip_space(x, i + 3), "%}", false);
}

static int lex_raw(lexer *x, size_t from)
{
    advance(x, from);
    x->line_start = x->p[from - 1] == '\n';
    for (size_t i = from; i + 1 < x->n; i++) {
        if (!at(x, i, "{%"))
            continue;
        char sign = sign_at(x, i + 2);
        size_t k = skip_space(x, i + 2 + (sign != 0));
        if (!at(x, k, "endraw"))
            continue;
        size_t stop = tag_end(x, skip_space(x, k + 6), "%}", true);
        if (!stop)
            continue;
        if (emit_data(x, from, i, sign, true))
            return -1;
        advance(x, stop);
        x->line_start = x->p[stop - 1] == '\n';
        return 0;
    }
    return bad(x, "Missing end of raw directive");
}

static int lex_comment(lexer *x, size_t i)
{
    for (; i < x->n; i++) {
        size_t stop = x->p[i] == '#' || x->p[i] == '-' || x->p[i] == '+' ? tag_end(x, i, "#}", true) : 0;
        if (stop) {
            advance(x, stop);
            x->line_start = x->p[stop - 1] == '\n';
            return 0;
        }
    }
    return bad(x, "Missing end of comment tag");
}

/* ---- Inside a tag ---------------------------------------------------------------------------------------------- */

static size_t digits_at(const lexer *x, size_t i, int base)
{
    size_t from = i;
    for (; i < x->n; i++) {
        char ch = x->p[i];
        int d = isdigit((unsigned char)ch) ? ch - '0' : isalpha((unsigned char)ch) ? (ch | 32) - 'a' + 10 : 99;
        if (d < base)
            continue;
        if (ch != '_' || i == from || x->p[i - 1] == '_' || i + 1 >= x->n)
            break;
        ch = x->p[i + 1];
        d = isdigit((unsigned char)ch) ? ch - '0' : isalpha((unsigned char)ch) ? (ch | 32) - 'a' + 10 : 99;
        if (d >= base)
            break;
    }
    return i - from;
}

/* Length of a float at i, 0 if none. */
static size_t float_at(const lexer *x, size_t i)
{
    size_t n = digits_at(x, i, 10), from = i;
    bool is_float = false;
    if (!n || (i && x->p[i - 1] == '.'))
        return 0;
    i += n;
    if (i < x->n && x->p[i] == '.' && (n = digits_at(x, i + 1, 10))) {
        i += 1 + n;
        is_float = true;
    }
    if (i < x->n && (x->p[i] | 32) == 'e') {
        size_t k = i + 1 + (sign_at(x, i + 1) != 0);
        if ((n = digits_at(x, k, 10))) {
            i = k + n;
            is_float = true;
        }
    }
    return is_float ? i - from : 0;
}

static size_t int_at(const lexer *x, size_t i)
{
    static const char prefix[] = {'b', 2, 'o', 8, 'x', 16};
    if (x->p[i] != '0')
        return digits_at(x, i, 10);
    for (size_t k = 0; k < sizeof prefix && i + 1 < x->n; k += 2)
        if ((x->p[i + 1] | 32) == prefix[k]) {
            size_t skip = i + 2 < x->n && x->p[i + 2] == '_', n = digits_at(x, i + 2 + skip, prefix[k + 1]);
            if (n)
                return 2 + skip + n;
        }
    return digits_at(x, i, 1); /* zeros only */
}

static int lex_number(lexer *x)
{
    size_t n = float_at(x, x->i), mark = infer_jctx_begin(x->c);
    bool is_float = n != 0;
    infer_jval v;
    if (!n)
        n = int_at(x, x->i);
    for (size_t k = 0; k < n; k++)
        if (x->p[x->i + k] != '_')
            infer_buf_putc(&x->c->tmp, x->p[x->i + k]);
    infer_buf_putc(&x->c->tmp, 0);
    if (x->c->tmp.failed)
        return infer_jctx_buf_failed(x->c, &x->c->tmp);
    const char *text = x->c->tmp.p + mark;
    if (is_float) {
        v = infer_jval_float(strtod(text, NULL));
    } else {
        infer_jstr s = {.p = text, .n = strlen(text)};
        char digits[32]; /* tmp moves below */
        bool plain = !isalpha((unsigned char)text[s.n > 1]);
        if (plain ? infer_jval_int_of_digits(x->c, false, text, s.n, &v) != 0 : s.n >= sizeof digits)
            return plain ? -1 : bad(x, "integer literal is too large");
        if (!plain) {
            memcpy(digits, text, s.n);
            s.p = digits;
            if (infer_jstr_to_int(x->c, &s, 0, &v) != 1)
                return bad(x, "integer literal is too large");
        }
    }
    x->c->tmp.n = mark;
    if (emit(x, is_float ? T_FLOAT : T_INT, v))
        return -1;
    advance(x, x->i + n);
    return 0;
}

static int hex_escape(lexer *x, const char *p, size_t n, size_t *i, size_t len, uint32_t *out)
{
    *out = 0;
    for (size_t k = 0; k < len; k++) {
        char ch = *i < n ? p[*i] : 0;
        if (!isxdigit((unsigned char)ch))
            return bad(x, "truncated escape in a string");
        *out = *out * 16 + (uint32_t)(isdigit((unsigned char)ch) ? ch - '0' : (ch | 32) - 'a' + 10);
        ++*i;
    }
    return *out > 0x10FFFF ? bad(x, "escape beyond Unicode in a string") : 0;
}

/* Python's escapes: what follows a backslash at p[*i - 1]. */
static int unescape(lexer *x, const char *p, size_t n, size_t *i)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    infer_buf *b = &x->c->tmp;
    char ch = p[*i];
    const char *e = ch ? strchr(from, ch) : NULL;
    uint32_t cp;
    if (e || ch == '\n') {
        ++*i;
        if (e)
            infer_buf_putc(b, to[e - from]);
        return 0;
    }
    if (ch == 'x' || ch == 'u' || ch == 'U') {
        ++*i;
        if (hex_escape(x, p, n, i, ch == 'x' ? 2 : ch == 'u' ? 4 : 8, &cp))
            return -1;
        infer_buf_put_utf8(b, cp);
        return 0;
    }
    if (ch >= '0' && ch <= '7') {
        cp = 0;
        for (int k = 0; k < 3 && *i < n && p[*i] >= '0' && p[*i] <= '7'; k++)
            cp = cp * 8 + (uint32_t)(p[(*i)++] - '0');
        infer_buf_put_utf8(b, cp);
        return 0;
    }
    if (ch == 'N' && *i + 1 < n && p[*i + 1] == '{') {
        x->c->line = x->line;
        return infer_jctx_fail(x->c, INFER_E_UNSUPPORTED, "the escape \\N{...} in a string is not offered");
    }
    infer_buf_putc(b, '\\');
    if (!((unsigned char)ch & 0x80))
        return 0;
    /* Jinja2 turns a non-ASCII character into its escape first, which the backslash then takes the head off. */
    cp = infer_ju_next(p, i);
    infer_buf_printf(b, cp < 0x100 ? "x%02x" : cp < 0x10000 ? "u%04x" : "U%08x", (unsigned)cp);
    return 0;
}

static int lex_string(lexer *x)
{
    char quote = x->p[x->i];
    size_t from = x->i + 1, end = from, mark = infer_jctx_begin(x->c);
    while (end < x->n && x->p[end] != quote)
        end += x->p[end] == '\\' ? 2 : 1;
    if (end >= x->n)
        return bad(x, "unterminated string");
    infer_jval v;
    if (!memchr(x->p + from, '\\', end - from)) {
        if (infer_jstr_borrow(x->c, x->p + from, end - from, SIZE_MAX, &v))
            return -1;
    } else {
        for (size_t i = from; i < end;) {
            char ch = x->p[i++];
            if (ch != '\\')
                infer_buf_putc(&x->c->tmp, ch);
            else if (unescape(x, x->p, end, &i))
                return -1;
        }
        if (infer_jctx_end(x->c, mark, &v))
            return -1;
    }
    if (emit(x, T_STRING, v))
        return -1;
    advance(x, end + 1);
    return 0;
}

static int lex_operator(lexer *x)
{
    size_t k = 0, n = sizeof operators / sizeof operators[0];
    while (k < n && !at(x, x->i, operators[k].text))
        k++;
    if (k == n)
        return bad(x, "unexpected character");
    char ch = operators[k].text[0];
    if (ch == '(' || ch == '[' || ch == '{') {
        if (x->open == sizeof x->closing) {
            x->c->line = x->line;
            return infer_jctx_fail(x->c, INFER_E_TOO_LARGE, "nested deeper than %d", J_MAX_NESTING);
        }
        x->closing[x->open++] = ch == '(' ? ')' : ch == '[' ? ']' : '}';
    } else if (ch == ')' || ch == ']' || ch == '}') {
        if (!x->open || x->closing[--x->open] != ch)
            return bad(x, ch == ')' ? "unexpected ')'" : ch == ']' ? "unexpected ']'" : "unexpected '}'");
    }
    if (emit(x, operators[k].type, infer_jval_none()))
        return -1;
    x->i += strlen(operators[k].text);
    return 0;
}

/* From behind the tag's start to behind its end. */
static int lex_tag(lexer *x, bool block)
{
    x->open = 0;
    for (;;) {
        size_t space = skip_space(x, x->i);
        size_t stop = x->open ? 0 : tag_end(x, x->i, block ? "%}" : "}}", block);
        if (stop) {
            if (emit(x, block ? T_BLOCK_END : T_VAR_END, infer_jval_none()))
                return -1;
            advance(x, stop);
            x->line_start = x->p[stop - 1] == '\n';
            return 0;
        }
        if (space > x->i) {
            advance(x, space);
            continue;
        }
        if (x->i >= x->n)
            return 0; /* the parser meets the end of the template */
        size_t i = x->i;
        uint32_t cp = infer_ju_next(x->p, &i);
        int rc;
        if (cp < 0x80 && isdigit((int)cp)) {
            rc = lex_number(x);
        } else if (infer_ju_isword(cp)) {
            for (size_t k = i; k < x->n && infer_ju_isident(infer_ju_next(x->p, &k));)
                i = k;
            rc = emit_text(x, T_NAME, x->p + x->i, i - x->i);
            x->i = i;
        } else if (cp == '"' || cp == '\'') {
            rc = lex_string(x);
        } else {
            rc = lex_operator(x);
        }
        if (rc)
            return -1;
    }
}

int infer_jlex(infer_jctx *c, const char *src, size_t n, infer_jtoken **out)
{
    lexer x = {.c = c, .line = 1, .line_start = true};
    size_t good = infer_ju_invalid(src, n), len = 0;
    if (good < n)
        return infer_jctx_fail(c, INFER_E_BAD_FILE, "invalid UTF-8 at byte %zu", good);
    char *p = infer_jctx_alloc(c, n + 1);
    if (!p)
        return -1;
    for (size_t i = 0; i < n; i++) {
        if (src[i] == '\r' && i + 1 < n && src[i + 1] == '\n')
            continue;
        p[len++] = src[i] == '\r' ? '\n' : src[i];
    }
    p[len] = 0;
    if (len && p[len - 1] == '\n')
        len--; /* one newline at the end is dropped */
    x.p = p;
    x.n = len;
    while (x.i < x.n) {
        size_t from = x.i, i = from;
        while (i < x.n && !(x.p[i] == '{' && i + 1 < x.n && strchr("{%#", x.p[i + 1]) && x.p[i + 1]))
            i++;
        if (i >= x.n) {
            if (emit_text(&x, T_DATA, x.p + from, x.n - from))
                return -1;
            break;
        }
        char kind = x.p[i + 1], sign = sign_at(&x, i + 2);
        if (emit_data(&x, from, i, sign, kind != '{'))
            return -1;
        size_t raw = kind == '%' ? raw_begin(&x, i) : 0;
        if (raw) {
            if (lex_raw(&x, raw))
                return -1;
            continue;
        }
        advance(&x, i + 2 + (sign != 0));
        if (kind == '#') {
            if (lex_comment(&x, x.i))
                return -1;
            continue;
        }
        if (emit(&x, kind == '{' ? T_VAR_BEGIN : T_BLOCK_BEGIN, infer_jval_none()) || lex_tag(&x, kind == '%'))
            return -1;
    }
    if (emit(&x, T_EOF, infer_jval_none()))
        return -1;
    *out = x.v;
    return 0;
}
