/* Chat templates: Python's semantics on our own templates, errors by name and line, limits, threads, allocation
 * failures. The rendered cases of real models' templates are in test_template_cases.c.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "unit/unit.h"

#include <pthread.h>
#include <time.h>

#include <infer/text.h>

#include "base/alloc.h"
#include "unit/jinja_cases.h"

#define NOON 1752148800 /* 2025-07-10 12:00:00 UTC */

/* Compiles and renders once; *text is owned where the status is INFER_OK. */
static infer_status render(const char *src, const char *vars, const infer_template_options *opt, char **text, size_t *n,
                           infer_error *err)
{
    infer_template *t = NULL;
    infer_status s = infer_template_create(src, strlen(src), &t, err);
    if (s == INFER_OK)
        s = infer_template_render(t, vars, strlen(vars), opt, text, n, err);
    infer_template_destroy(t);
    return s;
}

static void expect(const char *src, const char *vars, const char *expected)
{
    const infer_template_options opt = {.now = NOON};
    infer_error err = {0};
    char *text = NULL;
    size_t n = 0;
    infer_status s = render(src, vars, &opt, &text, &n, &err);
    if (s != INFER_OK)
        fail_msg("%.300s\n  gave %s: %s", src, infer_status_name(s), err.text);
    if (n != strlen(text) || strcmp(text, expected) != 0)
        fail_msg("%.300s\n  gave     [%s]\n  expected [%s]", src, text, expected);
    infer_text_free(text);
}

static void test_semantics(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof jinja_cases / sizeof jinja_cases[0]; i++)
        expect(jinja_cases[i].src, jinja_case_vars, jinja_cases[i].expected);
}

static void expect_error(const char *src, const char *vars, infer_status status, const char *needle)
{
    infer_error err = {0};
    char *text = NULL;
    size_t n;
    infer_status s = render(src, vars, NULL, &text, &n, &err);
    if (s == INFER_OK)
        fail_msg("%.300s\n  gave [%s] instead of an error", src, text);
    if (s != status || !strstr(err.text, needle))
        fail_msg("%.300s\n  gave %s: %s\n  expected %s with \"%s\"", src, infer_status_name(s), err.text,
                 infer_status_name(status), needle);
    assert_int_equal(err.status, s);
}

/* What cannot be rendered is named, with its line, when the template is compiled. */
static void test_unknown_names(void **state)
{
    (void)state;
    static const struct {
        const char *src, *needle;
    } rows[] = {
        {"a\n{% do x %}", "line 2: unsupported tag 'do'"},
        {"{% include 'x' %}", "line 1: unsupported tag 'include'"},
        {"{% import 'x' as y %}", "unsupported tag 'import'"},
        {"{% from 'x' import y %}", "unsupported tag 'from'"},
        {"{% extends 'x' %}", "unsupported tag 'extends'"},
        {"{% frobnicate %}", "unknown tag 'frobnicate'"},
        {"\n\n{{ x|frob }}", "line 3: unknown filter 'frob'"},
        {"{{ x|pprint }}", "unsupported filter 'pprint'"},
        {"{% filter frob %}{% endfilter %}", "unknown filter 'frob'"},
        {"{{ x is frob }}", "unknown test 'frob'"},
        {"{{ x|map('frob')|list }}", "unknown filter 'frob'"},
        {"{{ x|select('frob')|list }}", "unknown test 'frob'"},
        {"{{ x|selectattr('a', 'frob')|list }}", "unknown test 'frob'"},
        {"{{ x|rejectattr('a', 'frob')|list }}", "unknown test 'frob'"},
        {"x\n{{ frob(1) }}", "line 2: unknown function 'frob'"},
        {"{{ x.frob() }}", "unknown method 'frob'"},
        {"{{ 'a'.frobnicate(1).upper() }}", "unknown method 'frobnicate'"},
        {"{{ '\\N{DASH}' }}", "\\N{...}"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        expect_error(rows[i].src, "{}", INFER_E_UNSUPPORTED, rows[i].needle);
    expect_error("{{ 'a'.encode() }}", "{}", INFER_E_UNSUPPORTED, "unsupported method 'encode'");
    expect_error("{{ x|map(y)|list }}", "{\"x\":[1],\"y\":\"frob\"}", INFER_E_UNSUPPORTED, "unknown filter 'frob'");
    expect_error("{{ strftime_now('%Q') }}", "{}", INFER_E_UNSUPPORTED, "%Q");
    /* What the template provides itself, or asks for, is no unknown name. */
    expect("{% set f = range %}{{ f(2)|list }}", "{}", "[0, 1]");
    expect("{% set ns = namespace() %}{% macro m() %}x{% endmacro %}{% set ns.f = m %}{{ ns.f() }}", "{}", "x");
    expect("{% if frob is defined %}{{ frob() }}{% endif %}.", "{}", ".");
}

static void test_syntax_errors(void **state)
{
    (void)state;
    static const struct {
        const char *src, *needle;
    } rows[] = {
        {"{% if x %}", "end of template"},
        {"{{ x", "end of template"},
        {"{% for x in y %}\n{% endif %}", "line 2: unexpected tag 'endif'"},
        {"{{ 1 + }}", "unexpected"},
        {"{{ (1 }}", "unexpected '}'"},
        {"{{ 'abc }}", "unterminated string"},
        {"{{ a ! b }}", "unexpected character"},
        {"{# x", "end of comment"},
        {"{% raw %} x", "end of raw"},
        {"{% set true = 1 %}", "cannot assign"},
        {"{% for x in [1] %}{% set loop = 1 %}{% endfor %}", "special variable 'loop'"},
        {"{% break %}", "'break' outside a loop"},
        {"{% for x in y %}{% macro m() %}{% continue %}{% endmacro %}{% endfor %}", "'continue' outside a loop"},
        {"{{ f(a=1, 2) }}", "invalid syntax for function call"},
        {"{{ f(a=1, a=2) }}", "'a' repeated"},
        {"{% macro m(a=1, b) %}{% endmacro %}", "non-default argument"},
        {"{% macro m(caller) %}{{ caller() }}{% endmacro %}", "'caller' needs a default"},
        {"{% call x %}{% endcall %}", "expected a call"},
        {"{{ }}", "expected an expression"},
        {"{{ '\\xZ' }}", "truncated escape"},
        {"\xff", "invalid UTF-8 at byte 0"},
        {"{% 1 %}", "expected a tag name"},
        {"{{ x is a is b }}", "unknown test"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        infer_error err = {0};
        infer_template *t = NULL;
        infer_status s = infer_template_create(rows[i].src, strlen(rows[i].src), &t, &err);
        if ((s != INFER_E_BAD_FILE && s != INFER_E_UNSUPPORTED) || !strstr(err.text, rows[i].needle))
            fail_msg("%.300s\n  gave %s: %s", rows[i].src, infer_status_name(s), err.text);
        assert_null(t);
    }
}

static void test_runtime_errors(void **state)
{
    (void)state;
    static const struct {
        const char *src, *needle;
    } rows[] = {
        {"\n{{ raise_exception('no such role: ' ~ x) }}", "line 2: the template refuses: no such role: 1"},
        {"{{ u + 1 }}", "'u' is undefined"},
        {"{{ u.a }}", "'u' is undefined"},
        {"{{ d.a.b }}", "'dict object' has no attribute 'a'"},
        {"{{ l[9].b }}", "list object has no element 9"},
        {"{{ 'a' + 1 }}", "can only concatenate str (not \"int\") to str"},
        {"{{ 1 < 'a' }}", "'<' not supported between instances of 'int' and 'str'"},
        {"{{ 1 in 2 }}", "argument of type 'int' is not iterable"},
        {"{% for x in 5 %}{% endfor %}", "'int' object is not iterable"},
        {"{% for a, b in [[1]] %}{% endfor %}", "not enough values to unpack"},
        {"{% for a, b in [[1, 2, 3]] %}{% endfor %}", "too many values to unpack"},
        {"{{ d.items(1) }}", "method 'items'"},
        {"{% set e = d %}{{ e() }}", "'dict' object is not callable"},
        {"{{ 1 // 0 }}", "division"},
        {"{{ {[]: 1} }}", "unhashable type: 'list'"},
        {"{{ namespace()|tojson }}", "not JSON serializable"},
        {"{{ l.append(1) }}", "unsafe"},
        {"{{ x.pop('a') }}", "'int object' has no attribute 'pop'"},
        {"{% set d.x = 1 %}", "non-namespace"},
        {"{{ 'x'|join('a', 'b', 'c') }}", "filter 'join'"},
        {"{{ 'x'|replace('a') }}", "filter 'replace' misses"},
        {"{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "takes not more than 1"},
        {"{% macro m(a) %}{% endmacro %}{{ m(b=2) }}", "no keyword argument 'b'"},
        {"{{ 9223372036854775807 + 1 }}", "integer overflow"},
        {"{{ 99999999999999999999 * 2 }}", "integer overflow"},
        {"{{ 2 ** 64 }}", "integer overflow"},
        {"{{ '%d' % 'x' }}", "number is required"},
        {"{{ '{} {}'.format(1) }}", "out of range"},
        {"{{ loop(1) }}{% for x in l %}{{ loop([]) }}{% endfor %}", "'loop' is undefined"},
        {"{% for x in l %}{{ loop([]) }}{% endfor %}", "'recursive' marker"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        expect_error(rows[i].src, "{\"x\":1,\"d\":{},\"l\":[1]}", INFER_E_INVALID, rows[i].needle);
}

static void test_json(void **state)
{
    (void)state;
    expect("{{ v|tojson }}", "{\"v\":{\"z\":1,\"a\":[1.0,-0.0,1e3,\"\\u00e9\\ud83d\\ude00\\ud800x\\u0000\"],\"z\":2}}",
           "{\"z\": 2, \"a\": [1.0, -0.0, 1000.0, \"\303\251\360\237\230\200\357\277\275x\\u0000\"]}");
    expect("{{ v }} {{ v|length }}", " {\"v\" : [ 18446744073709551615 , null , true ] } ",
           "[18446744073709551615, None, True] 3");
    static const char *const wrong[] = {"",
                                        "[",
                                        "{\"a\"}",
                                        "{\"a\":1,}",
                                        "[1 2]",
                                        "{\"a\":01}",
                                        "{\"a\":1.}",
                                        "{\"a\":\"\\x\"}",
                                        "{\"a\":\"\\u12\"}",
                                        "{\"a\":\"\n\"}",
                                        "{\"a\":\"",
                                        "{\"a\":nul}",
                                        "{} x",
                                        "{\"a\":\"\xC0\x80\"}",
                                        "[]",
                                        "{\"a\":-}"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        expect_error("x", wrong[i], INFER_E_INVALID, "JSON");
}

/* ---- Limits -------------------------------------------------------------------------------------------------- */

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static char *repeat(const char *head, const char *part, size_t n, const char *tail)
{
    size_t len = strlen(part), at = strlen(head);
    char *s = malloc(at + n * len + strlen(tail) + 1);
    assert_non_null(s);
    strcpy(s, head);
    for (size_t i = 0; i < n; i++, at += len)
        memcpy(s + at, part, len);
    strcpy(s + at, tail);
    return s;
}

static void expect_limit(const char *src, const char *vars, const char *needle)
{
    double start = seconds();
    expect_error(src, vars, INFER_E_TOO_LARGE, needle);
    if (seconds() - start > 60) /* the limits are steps: this only catches what counts none */
        fail_msg("%.80s took %.1f s", src, seconds() - start);
}

static void test_limits(void **state)
{
    (void)state;
    static const struct {
        const char *src, *needle;
    } rows[] = {
        {"{{ 'a' * 10**9 }}", "string limit"},
        {"{{ 'a' * 10**18 }}", "string limit"},
        {"{{ [0] * 10**9 }}", "memory limit"},
        {"{{ [0] * 10**18 }}", "memory limit"},
        {"{{ 'x'.center(10**9) }}", "string limit"},
        {"{{ 'x'.zfill(10**9) }}", "string limit"},
        {"{{ '%1000000000d' % 1 }}", "string limit"},
        {"{{ '{:1000000000}'.format(1) }}", "string limit"},
        {"{{ 'x'|indent(10**9, true) }}", "string limit"},
        {"{{ [1]|tojson(indent=10**9) }}", "string limit"},
        {"{{ '\t'.expandtabs(10**9) }}", "string limit"},
        {"{{ '%.100000f' % 1.0 }}", "precision"},
        {"{{ range(10**9)|list }}", "range"},
        {"{{ [1]|batch(10**9, 0)|list }}", "limit"},
        {"{{ [1]|slice(10**9)|list }}", "limit"},
        {"{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}", "steps"},
        {"{% for a in range(100000) %}{{ 'x' * 1000 }}{% endfor %}", "output limit"},
        {"{% set ns = namespace(s='x') %}{% for a in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
         "string limit"},
        {"{% set ns = namespace(l=[1]) %}{% for a in range(100) %}{% set ns.l = ns.l + ns.l %}{% endfor %}", "limit"},
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested deeper"},
        {"{% macro m() %}{{ caller }}{% call m() %}{% endcall %}{% endmacro %}{{ m() }}", "nested deeper"},
        {"{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "nested deeper"},
        {"{% set ns = namespace(l=[]) %}{% for a in range(1000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
         "nested deeper"},
        {"{% set ns = namespace(l=[]) %}{% for a in range(1000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l|tojson }}",
         "nested deeper"},
        {"{% set ns = namespace(l=[]) %}{% for a in range(1000) %}{% set ns.l = [ns.l] %}{% endfor %}"
         "{% set q = namespace(l=[]) %}{% for a in range(1000) %}{% set q.l = [q.l] %}{% endfor %}{{ q.l == ns.l }}",
         "nested deeper"},
        {"{% set ns = namespace(t=()) %}{% for a in range(1000) %}{% set ns.t = (ns.t,) %}{% endfor %}{{ {ns.t: 1} }}",
         "nested deeper"},
        {"{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}", "nested deeper"},
        {"{% set ns = namespace(g=[1]) %}{% for a in range(1000) %}{% set ns.g = ns.g|map('string') %}{% endfor %}"
         "{{ ns.g|list }}",
         "nested deeper"},
        {"{% set s = 'ab' * 1000000 %}{% set p = 'ab' * 400000 ~ 'c' %}{{ s.rfind(p) }}", "steps"},
        {"{% set s = 'ab' * 1000000 %}{% for i in range(100000) %}{{ s in 'x' ~ s }}{% endfor %}", "limit"},
        {"{% set s = '\303\251' * 1000000 %}{% for i in range(100000) %}{{ s[999999] }}{% endfor %}", "steps"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        expect_limit(rows[i].src, "{}", rows[i].needle);

    static const struct {
        const char *head, *part, *tail;
    } deep[] = {
        {"{{ ", "(", "1"},
        {"{{ ", "[", "1"},
        {"{{ ", "{1:", "1"},
        {"{{ ", "not ", "1 }}"},
        {"{{ ", "-", "1 }}"},
        {"{{ 1", "+1", " }}"},
        {"{{ x", ".a", " }}"},
        {"{{ x", "[0]", " }}"},
        {"{{ x", "|upper", " }}"},
        {"", "{% if 1 %}", ""},
        {"", "{% for x in y %}", ""},
        {"{{ 1", " if 1 else 1", " }}"},
        {"{{ 1", " and 1", " }}"},
        {"{{ x", "()", " }}"},
        {"{% for ", "(", "x"},
        {"{{ 1", " if 1", " }}"},
        {"", "{% macro m() %}", ""},
    };
    for (size_t i = 0; i < sizeof deep / sizeof deep[0]; i++) {
        char *src = repeat(deep[i].head, deep[i].part, 20000, deep[i].tail);
        expect_limit(src, "{}", "nested deeper");
        free(src);
    }
    char *json = repeat("{\"a\":", "[", 100000, "");
    expect_limit("x", json, "nested deeper");
    free(json);
    char *big = repeat("", "0123456789abcdef", 70000, "");
    expect_limit(big, "{}", "more than");
    free(big);
    /* Long but flat is fine. */
    char *flat = repeat("{{ 1", " ~ 1", 20000, " }}");
    char *ones = repeat("1", "1", 20000, "");
    expect(flat, "{}", ones);
    free(flat);
    free(ones);
}

static void test_options(void **state)
{
    (void)state;
    const infer_template_options small = {.max_steps = 100, .max_output = 10};
    infer_error err = {0};
    char *text = NULL;
    size_t n = 0;
    assert_int_equal(render("0123456789", "{}", &small, &text, &n, &err), INFER_OK);
    assert_int_equal(n, 10);
    infer_text_free(text);
    assert_int_equal(render("0123456789a", "{}", &small, &text, &n, &err), INFER_E_TOO_LARGE);
    assert_non_null(strstr(err.text, "output limit of 10 bytes"));
    assert_int_equal(render("{% for i in range(200) %}{% endfor %}", "{}", &small, &text, &n, &err), INFER_E_TOO_LARGE);
    assert_non_null(strstr(err.text, "line 1: the limit of evaluation steps"));
    /* Padding is paid for before it is made. */
    assert_int_equal(render("{{ '%4000000d' % 1 }}", "{}", &small, &text, &n, &err), INFER_E_TOO_LARGE);
    assert_non_null(strstr(err.text, "evaluation steps"));
    /* The clock: today's year in local time. */
    time_t now = time(NULL);
    struct tm tm;
    char year[32];
    localtime_r(&now, &tm);
    snprintf(year, sizeof year, "%d", tm.tm_year + 1900);
    assert_int_equal(render("{{ strftime_now('%Y') }}", "{}", NULL, &text, &n, &err), INFER_OK);
    assert_string_equal(text, year);
    infer_text_free(text);
    assert_int_equal(render("{{ 1 +", "{}", NULL, &text, &n, NULL), INFER_E_BAD_FILE); /* err may be NULL */
}

/* ---- Threads and stack ----------------------------------------------------------------------------------------- */

static const char *const deep_render[] = {
    /* the deepest evaluation that the limits allow: macros with expressions inside */
    "{% macro m(n) %}{% if true %}{% for x in [1] %}{% if true %}{{ (((1 + (2 + (m(n + 1)|string|upper)|length)))) }}"
    "{% endif %}{% endfor %}{% endif %}{% endmacro %}{{ m(1) }}",
    "{% for x in [1] recursive %}{% filter upper %}{% set y %}{{ loop([x])|trim }}{% endset %}{% endfilter %}{% endfor "
    "%}",
    "{% set ns = namespace(g=[1]) %}{% for a in range(1000) %}{% set ns.g = ns.g|select('eq', 1) %}{% endfor %}"
    "{{ ns.g|list }}",
    "{% set ns = namespace(l=[]) %}{% for a in range(1000) %}{% set ns.l = {'a': ns.l} %}{% endfor %}{{ ns.l }}",
};

static void *run_deep(void *arg)
{
    long failed = 0;
    (void)arg;
    for (size_t i = 0; i < sizeof deep_render / sizeof deep_render[0]; i++) {
        char *text;
        size_t n;
        failed += render(deep_render[i], "{}", NULL, &text, &n, NULL) != INFER_E_TOO_LARGE;
    }
    char *src = repeat("{{ ", "[", 199, ""), *close = repeat(src, "]", 199, " }}"), *text;
    size_t n;
    infer_status s = render(close, "{}", NULL, &text, &n, NULL);
    if (s == INFER_OK)
        infer_text_free(text);
    failed += s != INFER_OK;
    free(src);
    free(close);
    return (void *)failed;
}

/* What the documentation promises to fit into a thread's stack does. */
static void test_stack(void **state)
{
    (void)state;
    pthread_attr_t attr;
    pthread_t t;
    void *failed;
    size_t kib = strcmp(INFER_SANITIZER, "none") == 0 ? 512 : 8192; /* instrumented frames are larger */
    pthread_attr_init(&attr);
    assert_int_equal(pthread_attr_setstacksize(&attr, kib << 10), 0);
    assert_int_equal(pthread_create(&t, &attr, run_deep, NULL), 0);
    pthread_join(t, &failed);
    pthread_attr_destroy(&attr);
    assert_null(failed);
}

static void *run_shared(void *arg)
{
    long failed = 0;
    for (int i = 0; i < 200; i++) {
        char *text = NULL;
        size_t n;
        if (infer_template_render(arg, jinja_case_vars, strlen(jinja_case_vars), NULL, &text, &n, NULL) != INFER_OK ||
            strcmp(text, "1;HELLO WORLD 3;2;HELLO WORLD 1;3;HELLO WORLD 2;") != 0)
            failed++;
        infer_text_free(text);
    }
    return (void *)failed;
}

static void test_threads(void **state)
{
    (void)state;
    static const char src[] =
        "{% macro m(x) %}{{ s|upper }} {{ x }};{% endmacro %}{% for i in l %}{{ loop.index }};{{ m(i) }}{% endfor %}";
    infer_template *tmpl = NULL;
    pthread_t t[4];
    assert_int_equal(infer_template_create(src, strlen(src), &tmpl, NULL), INFER_OK);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, run_shared, tmpl), 0);
    for (int i = 0; i < 4; i++) {
        void *failed;
        pthread_join(t[i], &failed);
        assert_null(failed);
    }
    infer_template_destroy(tmpl);
}

/* ---- Allocation failures --------------------------------------------------------------------------------------- */

static void test_allocation_failures(void **state)
{
    (void)state;
    static const char src[] =
        "{% macro m(a, b=2) %}{{ a }}{{ varargs }}{{ kwargs }}{{ caller() }}{% endmacro %}"
        "{% call m(1, 2, 3, z=4) %}x{% endcall %}{% set big = s * 3000 %}{{ big|length }}{{ d|tojson(indent=2) }}"
        "{% for u in users|sort(attribute='age')|selectattr('name') if u %}{{ loop.length }}{{ u.name|upper }}{% "
        "endfor %}"
        "{% set l2 = l + l + l %}{{ l2|map('string')|join(',') }}{{ users|groupby('age') }}{{ '%s' % u }}{{ u.title() "
        "}}"
        "{% set ns = namespace(t='') %}{% for i in range(300) %}{% set ns.t = ns.t ~ 'abc' %}{% endfor %}{{ ns.t }}"
        "{{ dict(range(20)|map('string')|batch(2)) }}{{ ml|indent(2) }}{{ raise_exception('end') }}";
    uint64_t delivered = 0;
    for (int64_t at = 0;; at++) {
        char *text = NULL;
        size_t n;
        infer_error err = {0};
        infer_alloc_fail_after(at, 0);
        infer_status s = render(src, jinja_case_vars, NULL, &text, &n, &err);
        if (!infer_alloc_fail_after(-1, 0)) {
            assert_int_equal(s, INFER_E_INVALID);
            assert_non_null(strstr(err.text, "the template refuses: end"));
            break;
        }
        delivered++;
        if (s != INFER_E_NO_MEMORY)
            fail_msg("allocation %lld failed, and render gave %s: %s", (long long)at, infer_status_name(s), err.text);
    }
    assert_true(delivered > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_semantics),     cmocka_unit_test(test_unknown_names),
        cmocka_unit_test(test_syntax_errors), cmocka_unit_test(test_runtime_errors),
        cmocka_unit_test(test_json),          cmocka_unit_test(test_limits),
        cmocka_unit_test(test_options),       cmocka_unit_test(test_stack),
        cmocka_unit_test(test_threads),       cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
