/* Chat templates against what Jinja2 rendered: every case of the reference data, counted. Skipped where INFER_TEST_DATA
 * is unset. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "unit/unit.h"

#include <jansson.h>

#include <infer/text.h>

#include "base/alloc.h"
#include "base/file.h"

#define FROZEN 1752148800 /* 2025-07-10 12:00:00 UTC, the clock of the reference */

typedef struct counts {
    unsigned templates, texts, refused, python_errors, lenient, failed;
} counts;

static json_t *load_lines(const char *path)
{
    char *data = NULL;
    size_t size;
    json_t *lines = json_array();
    assert_int_equal(infer_file_read(path, (uint64_t)64 << 20, &data, &size, NULL), INFER_OK);
    for (char *p = data, *end; *p; p = end + 1) {
        end = strchr(p, '\n');
        if (!end)
            end = p + strlen(p) - 1;
        json_t *line = json_loadb(p, (size_t)(end - p) + 1, JSON_ALLOW_NUL, NULL);
        assert_non_null(line);
        json_array_append_new(lines, line);
    }
    infer_free(data);
    return lines;
}

static char *variables(const json_t *info, const json_t *c)
{
    json_t *v = json_object();
    static const char *const from_case[] = {"messages", "tools", "add_generation_prompt"};
    for (size_t i = 0; i < 3; i++)
        json_object_set(v, from_case[i], json_object_get(c, from_case[i]));
    json_object_set_new(v, "documents", json_null());
    json_object_set(v, "bos_token", json_object_get(info, "bos_token"));
    json_object_set(v, "eos_token", json_object_get(info, "eos_token"));
    json_object_update(v, json_object_get(c, "extra"));
    char *text = json_dumps(v, JSON_COMPACT);
    json_decref(v);
    assert_non_null(text);
    return text;
}

/* A failure is printed and counted, so that one run shows them all. */
static void run_case(const infer_template *t, const json_t *info, const json_t *c, const char *name, size_t i,
                     counts *n)
{
    const infer_template_options opt = {.now = FROZEN};
    const char *kind = json_string_value(json_object_get(c, "error_kind"));
    const char *message = json_string_value(json_object_get(c, "error_message"));
    json_t *expected = json_object_get(c, "expected");
    char *vars = variables(info, c), *text = NULL;
    size_t len = 0;
    infer_error err = {0};
    infer_status s = infer_template_render(t, vars, strlen(vars), &opt, &text, &len, &err);
    int good;
    if (!json_is_true(json_object_get(c, "error"))) {
        good =
            s == INFER_OK && len == json_string_length(expected) && memcmp(text, json_string_value(expected), len) == 0;
        n->texts += good;
    } else if (strcmp(kind, "raise_exception") == 0) {
        good = s == INFER_E_INVALID && strstr(err.text, message);
        n->refused += good;
    } else { /* Python's type rules: an engine may be lenient, this one is not known to be */
        good = 1;
        n->python_errors++;
        n->lenient += s == INFER_OK;
    }
    if (!good) {
        n->failed++;
        print_message("%s case %zu: %s\n  got      %.300s\n  expected %.300s\n", name, i, infer_status_name(s),
                      s == INFER_OK ? text : err.text, expected ? json_string_value(expected) : message);
    }
    infer_text_free(text);
    free(vars);
}

static void test_cases(void **state)
{
    const char *dir = *state, *name;
    char path[4096];
    json_t *info, *c;
    size_t i;
    counts n = {0};
    snprintf(path, sizeof path, "%s/chat-templates/index.json", dir);
    json_t *index = json_load_file(path, 0, NULL);
    assert_non_null(index);
    json_object_foreach (json_object_get(index, "templates"), name, info) {
        char *src;
        size_t size;
        infer_error err = {0};
        infer_template *t = NULL;
        snprintf(path, sizeof path, "%s/chat-templates/%s", dir, json_string_value(json_object_get(info, "template")));
        assert_int_equal(infer_file_read(path, 1 << 20, &src, &size, NULL), INFER_OK);
        if (infer_template_create(src, size, &t, &err) != INFER_OK)
            fail_msg("%s: %s", name, err.text);
        infer_free(src);
        snprintf(path, sizeof path, "%s/chat-templates/%s.jsonl", dir, name);
        json_t *lines = load_lines(path);
        json_array_foreach (lines, i, c) {
            run_case(t, info, c, name, i, &n);
        }
        json_decref(lines);
        infer_template_destroy(t);
        n.templates++;
    }
    json_decref(index);
    print_message("%u templates: %u texts equal, %u refusals are errors, %u type errors of Python (%u rendered here), "
                  "%u failed\n",
                  n.templates, n.texts, n.refused, n.python_errors, n.lenient, n.failed);
    assert_true(n.templates > 0 && n.texts > 0);
    assert_int_equal(n.failed, 0);
}

int main(void)
{
    char *dir = getenv("INFER_TEST_DATA");
    if (!dir || !*dir)
        return 77;
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(test_cases, dir)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
