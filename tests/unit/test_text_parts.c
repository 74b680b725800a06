/* core/text: patterns, normalisation and pre-tokenizers by themselves. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <infer/text.h>

#include "unit/unit.h"

#include "base/buf.h"
#include "text/normalize.h"
#include "text/pretokenize.h"
#include "text/regex.h"
#include "text/utf8.h"

/* ---- Patterns -------------------------------------------------------------------------------------------------- */

/* All matches of a pattern, each in brackets. */
static char *matches(const char *pattern, const char *text, size_t n)
{
    infer_regex *r;
    infer_regex_scratch *s;
    infer_error err = {0};
    infer_buf b = {0};
    if (infer_regex_compile(pattern, strlen(pattern), &r, &err) != INFER_OK)
        fail_msg("%s", err.text);
    assert_int_equal(infer_regex_scratch_create(n, &s), INFER_OK);
    infer_buf_puts(&b, "");
    for (size_t from = 0, start, end; from <= n;) {
        int found;
        assert_int_equal(infer_regex_search(r, s, text, n, from, &found, &start, &end, &err), INFER_OK);
        if (!found)
            break;
        infer_buf_putc(&b, '[');
        infer_buf_append(&b, text + start, end - start);
        infer_buf_putc(&b, ']');
        from = end > start ? end : end < n ? end + infer_utf8_len(text[end]) : n + 1;
    }
    infer_regex_scratch_destroy(s);
    infer_regex_destroy(r);
    return infer_buf_detach(&b);
}

static void test_regex(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *text, *want;
    } rows[] = {
        {"a+", "aabaaa", "[aa][aaa]"},
        {"\\s",
         "a\xE1\xA0\x8E"
         "b\xC2\x85"
         "c\xC2\xA0",
         "[\xC2\x85][\xC2\xA0]"}, /* U+180E is none */
        {"\\S+",
         "a\xE1\xA0\x8E"
         "b c",
         "[a\xE1\xA0\x8E"
         "b][c]"},
        {"[^\\S\\n]+", "a \t\n b", "[ \t][ ]"},
        {"[\\s-]+", "a- b", "[- ]"},
        {"[\\w.]+", "a_\xC3\xA9.\xE2\x80\xBF!", "[a_\xC3\xA9.\xE2\x80\xBF]"},
        {"\\W", "a!b", "[!]"},
        {"\\bb",
         "ab b \xC3\xA9"
         "b",
         "[b]"},
        {"a\\B", "ab a", "[a]"},
        {"\\h+", "x1F g", "[1F]"},
        {"\\v", "\x0b\n", "[\x0b]"},
        {"\\d+", "12\xD9\xA3x", "[12\xD9\xA3]"},
        {"\\u0061", "xa", "[a]"},
        {"\\x{e9}", "\xC3\xA9", "[\xC3\xA9]"},
        {"x{,2}y", "xxxy", "[xxy]"},
        {"x{", "x{", "[x{]"},
        {"^b", "a\nb", "[b]"},
        {"a$", "a\nb", "[a]"},
        {"a.b", "a\nb", ""},
        {"(?m:a.b)", "a\nb", "[a\nb]"},
        {"(?i:k)", "k\xE2\x84\xAA", "[k][\xE2\x84\xAA]"},
        {"(?i)A|b", "aB", "[a][B]"},
        {"(?<=a)b", "abb", "[b]"},
        {"(a|b)\\1", "abb", "[bb]"},
        {"a?+a", "aa", "[aa]"},
        {"(?#any ] [ text)a", "a", "[a]"},
        {"[]a]+", "a]", "[a]]"},
        {"(?=b)", "abab", "[][]"},
        {"\\p{Han}+|\\p{^L}",
         "\xE4\xB8\xAD"
         "a1",
         "[\xE4\xB8\xAD][1]"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *got = matches(rows[i].pattern, rows[i].text, strlen(rows[i].text));
        if (strcmp(got, rows[i].want) != 0)
            fail_msg("%s: '%s', not '%s'", rows[i].pattern, got, rows[i].want);
        free(got);
    }
    /* What is not known is refused, with the place. */
    static const char *const refused[] = {"[a&&b]",  "[a[b]]", "[[:alpha:]]", "\\g<1>", "\\y",    "(?~a)",
                                          "(?x)a",   "a{2}+",  "a{1,2}{3}",   "a{2}?",  "a(?i)b", "(*F)a",
                                          "[a-\\d]", "[\\W]",  "\\xC3",       "\\u12",  "\\p",    "a\\",
                                          "[a",      "(a",     "\\Kx",        "(?<a",   "a**",    "\\p{Nonsense}"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        infer_regex *r;
        infer_error err = {0};
        if (infer_regex_compile(refused[i], strlen(refused[i]), &r, &err) != INFER_E_UNSUPPORTED)
            fail_msg("%s was not refused", refused[i]);
        assert_non_null(strstr(err.text, refused[i]));
    }
}

/* A pattern that runs away ends with an error, in bounded time. */
static void test_regex_limit(void **state)
{
    (void)state;
    enum { N = 4000 };
    char text[N];
    memset(text, 'a', N);
    infer_regex *r;
    infer_regex_scratch *s;
    infer_error err = {0};
    int found;
    size_t start, end;
    assert_int_equal(infer_regex_compile("(a|a)*(a|aa)*[^a]", 17, &r, &err), INFER_OK);
    assert_int_equal(infer_regex_scratch_create(N, &s), INFER_OK);
    assert_int_equal(infer_regex_search(r, s, text, N, 0, &found, &start, &end, &err), INFER_E_TOO_LARGE);
    infer_regex_scratch_destroy(s);
    infer_regex_destroy(r);
}

/* ---- Normalisation --------------------------------------------------------------------------------------------- */

static void expect_normal(const infer_norm *steps, size_t n_steps, const char *in, const char *want)
{
    infer_norm_scratch s = {.max_text = strlen(in)};
    infer_str out;
    infer_error err = {0};
    assert_int_equal(infer_normalize(steps, n_steps, &s, infer_str_of(in, strlen(in)), &out, &err), INFER_OK);
    if (out.n != strlen(want) || memcmp(out.p, want, out.n) != 0)
        fail_msg("'%s' became '%.*s', not '%s'", in, (int)out.n, out.p, want);
    infer_norm_scratch_free(&s);
}

static void test_normalize(void **state)
{
    (void)state;
    static const struct {
        infer_norm step;
        const char *in, *want;
    } rows[] = {
        {{.kind = INFER_NORM_NFC}, "e\xCC\x81", "\xC3\xA9"},
        {{.kind = INFER_NORM_NFC}, "\xEF\xAC\x81", "\xEF\xAC\x81"},
        {{.kind = INFER_NORM_NFC}, "a\xCC\x80\xCC\x96", "\xC3\xA0\xCC\x96"}, /* ordered, then the first composes */
        {{.kind = INFER_NORM_NFC}, "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", "\xEA\xB0\x81"},
        {{.kind = INFER_NORM_NFD}, "\xC3\xA9\xEA\xB0\x81", "e\xCC\x81\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8"},
        {{.kind = INFER_NORM_NFKC}, "\xEF\xAC\x81\xC2\xA0\xE2\x85\xA7", "fi VIII"},
        {{.kind = INFER_NORM_NFKD}, "\xEF\xAC\x81\xC3\xA9", "fie\xCC\x81"},
        {{.kind = INFER_NORM_NFKD}, "plain", "plain"},
        {{.kind = INFER_NORM_LOWERCASE},
         "\xC3\x84"
         "B\xC4\xB0",
         "\xC3\xA4"
         "bi\xCC\x87"},
        {{.kind = INFER_NORM_STRIP_ACCENTS}, "e\xCC\x81x", "ex"},
        {{.kind = INFER_NORM_STRIP, .strip_left = 1}, " \xE3\x80\x80 a ", "a "},
        {{.kind = INFER_NORM_STRIP, .strip_right = 1}, " a\t\n", " a"},
        {{.kind = INFER_NORM_STRIP, .strip_right = 1}, "  ", ""},
        {{.kind = INFER_NORM_STRIP}, "  ", "  "},
        {{.kind = INFER_NORM_PREPEND, .to = {"_", 1}}, "a", "_a"},
        {{.kind = INFER_NORM_PREPEND, .to = {"_", 1}}, "", ""},
        {{.kind = INFER_NORM_REPLACE, .from = {"ab", 2}, .to = {"", 0}}, "xababa", "xa"},
        {{.kind = INFER_NORM_REPLACE, .from = {"a", 1}, .to = {"bb", 2}}, "aca", "bbcbb"},
        {{.kind = INFER_NORM_SQUEEZE}, "  a   b ", "a b"},
        {{.kind = INFER_NORM_SQUEEZE}, "   ", ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_normal(&rows[i].step, 1, rows[i].in, rows[i].want);
    const infer_norm chain[] = {rows[10].step, rows[8].step, rows[14].step, rows[0].step};
    expect_normal(chain, 4, " E\xCC\x81", "_\xC3\xA9");
    infer_norm regex = {.kind = INFER_NORM_REPLACE, .to = {"-", 1}};
    assert_int_equal(infer_regex_compile("\\s+|(?=c)", 9, &regex.regex, NULL), INFER_OK);
    expect_normal(&regex, 1, "a  bc\n", "a-b-c-");
    infer_regex_destroy(regex.regex);
    /* Growth has an end. */
    char big[2000];
    memset(big, 'x', sizeof big);
    infer_norm grow = {.kind = INFER_NORM_REPLACE, .from = {"a", 1}, .to = {big, sizeof big}};
    infer_norm_scratch s = {.max_text = 1000};
    infer_str out;
    infer_error err = {0};
    char as[1000];
    memset(as, 'a', sizeof as);
    assert_int_equal(infer_normalize(&grow, 1, &s, infer_str_of(as, sizeof as), &out, &err), INFER_E_TOO_LARGE);
    infer_norm_scratch_free(&s);
}

/* ---- Words ----------------------------------------------------------------------------------------------------- */

static infer_status collect(void *user, const char *p, size_t n)
{
    infer_buf *b = user;
    assert_int_not_equal(n, 0);
    if (b->n)
        infer_buf_putc(b, '|');
    infer_buf_append(b, p, n);
    return INFER_OK;
}

static void expect_words(const infer_pre_step *steps, size_t n, const char *text, int at_start, const char *want)
{
    infer_norm_scratch norm = {.max_text = strlen(text)};
    infer_pre_scratch pre = {0};
    infer_buf b = {0};
    infer_error err = {0};
    infer_buf_puts(&b, "");
    assert_int_equal(
        infer_pretokenize(steps, n, &norm, &pre, infer_str_of(text, strlen(text)), at_start, collect, &b, &err),
        INFER_OK);
    if (strcmp(b.p, want) != 0)
        fail_msg("'%s' became '%s', not '%s'", text, b.p, want);
    infer_norm_scratch_free(&norm);
    infer_pre_scratch_free(&pre);
    infer_buf_free(&b);
}

static void test_split(void **state)
{
    (void)state;
    static const struct {
        infer_split split;
        int invert;
        const char *want;
    } rows[] = {
        {INFER_SPLIT_ISOLATED, 0, "x|-|-|y|-|z"},  {INFER_SPLIT_REMOVED, 0, "x|y|z"},
        {INFER_SPLIT_PREVIOUS, 0, "x-|-|y-|z"},    {INFER_SPLIT_NEXT, 0, "x|-|-y|-z"},
        {INFER_SPLIT_CONTIGUOUS, 0, "x|--|y|-|z"}, {INFER_SPLIT_REMOVED, 1, "-|-|-"},
        {INFER_SPLIT_ISOLATED, 1, "x|-|-|y|-|z"},  {INFER_SPLIT_PREVIOUS, 1, "x|-|-y|-z"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        infer_pre_step step = {.kind = INFER_PRE_SPLIT, .split = rows[i].split, .invert = rows[i].invert};
        step.string = INFER_STR("-");
        expect_words(&step, 1, "x--y-z", 1, rows[i].want);
    }
    infer_pre_step meta[] = {{.kind = INFER_PRE_METASPACE, .string = INFER_STR("_")},
                             {.kind = INFER_PRE_PREFIX, .string = INFER_STR("_"), .first_only = 1},
                             {.kind = INFER_PRE_SPLIT, .split = INFER_SPLIT_NEXT, .string = INFER_STR("_")}};
    expect_words(meta, 3, "a b  c", 1, "_a|_b|_|_c");
    expect_words(meta, 3, " a", 1, "_a");
    expect_words(meta, 3, "a b", 0, "a|_b");
    infer_pre_step bytes = {.kind = INFER_PRE_BYTES};
    expect_words(&bytes, 1, "a \xC3\xA9\n", 0, "a\xC4\xA0\xC3\x83\xC2\xA9\xC4\x8A");
    for (unsigned b = 0; b < 256; b++)
        assert_int_equal(infer_char_to_byte(infer_byte_to_char((uint8_t)b)), b);
    for (uint32_t cp = 0; cp < 1000; cp++) {
        int b = infer_char_to_byte(cp);
        assert_true(b < 0 || infer_byte_to_char((uint8_t)b) == cp);
    }
}

/* What named pre-tokenizers cut, where they differ from each other. */
static void test_rows(void **state)
{
    (void)state;
    static const struct {
        const char *name, *text, *want;
    } rows[] = {
        {"gpt-2", "it's  a 1234", "it|'s| | a| 1234"},
        {"smollm", "a 123", "a| |1|2|3"},
        {"llama-bpe", "I'LL  1234567\n\nx", "I|'LL| | |123|456|7|\n\n|x"},
        {"qwen2", "a1234", "a|1|2|3|4"},
        {"gpt-4o", "HTTPServer don'T 1234/\n", "HTTPServer| don'T| |123|4|/\n"},
        {"tekken", "fooBar don't", "foo|Bar| don|'t"},
        {"deepseek-v3", "1234 abc\xE4\xB8\xAD\xE6\x96\x87", "123|4| abc|\xE4\xB8\xAD\xE6\x96\x87"},
        {"tiny_aya", "1234567 x1234y", "1|234|567| x|123|4|y"},
        {"afmoe", "12345", "12|345"},
        {"afmoe", "123456", "123|456"},
        {"falcon", "a!!b 1234", "a|!!|b| |123|4"},
        {"kimi-k2",
         "ab\xE4\xB8\xAD\xE6\x96\x87"
         "Cd",
         "ab|\xE4\xB8\xAD\xE6\x96\x87|Cd"},
        {"bloom", "a b, c", "a| b|,| c"},
        {"deepseek-coder", "a\r\nb 12", "a|\r|\n|b| |1|2"},
        {"exaone-moe", "a b c.d", "a b c|.d"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const infer_pre_row *row = infer_pre_row_find(rows[i].name);
        infer_pre_step steps[6];
        size_t n = 0;
        assert_non_null(row);
        for (; n < 6 && row->patterns[n]; n++) {
            steps[n] = (infer_pre_step){.kind = INFER_PRE_SPLIT};
            assert_int_equal(infer_regex_compile(row->patterns[n], strlen(row->patterns[n]), &steps[n].regex, NULL),
                             INFER_OK);
        }
        expect_words(steps, n, rows[i].text, 1, rows[i].want);
        while (n--)
            infer_regex_destroy(steps[n].regex);
    }
    assert_null(infer_pre_row_find("gpt-3"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_regex), cmocka_unit_test(test_regex_limit), cmocka_unit_test(test_normalize),
        cmocka_unit_test(test_split), cmocka_unit_test(test_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
