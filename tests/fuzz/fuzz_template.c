/* libFuzzer target: a chat template and its variables as a stranger may send them. An input is the template, optionally
 * a NUL and a JSON object. Rendering twice must give the same, in valid UTF-8, within the limits. Seeds:
 * tests/fuzz/corpus/template, words: tests/fuzz/template.dict. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include <infer/text.h>

#include "text/jinja_unicode.h"

#define MAX_OUTPUT 65536

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char usual[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\"H\\u00e9! <x>\"},"
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1.5}}}"
    "]}],"
    "\"tools\":[{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}],\"add_generation_prompt\":true,\"bos_token\":\"<"
    "s>\","
    "\"n\":3,\"s\":\"a b,c\",\"l\":[3,1,2],\"d\":{\"k\":1,\"items\":2}}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const infer_template_options opt = {.max_steps = 20000, .max_output = MAX_OUTPUT, .now = 1752148800};
    const char *src = (const char *)data, *nul = size ? memchr(src, 0, size) : NULL;
    const char *vars = nul ? nul + 1 : usual;
    size_t src_n = nul ? (size_t)(nul - src) : size, vars_n = nul ? size - src_n - 1 : sizeof usual - 1;
    infer_template *t = NULL;
    infer_error err = {0};
    if (infer_template_create(src, src_n, &t, &err) != INFER_OK) {
        if (t || !err.text[0])
            abort();
        return 0;
    }
    char *text[2] = {NULL, NULL};
    size_t n[2];
    infer_status s[2];
    for (int i = 0; i < 2; i++)
        s[i] = infer_template_render(t, vars, vars_n, &opt, &text[i], &n[i], &err);
    if (s[0] != s[1] || (s[0] != INFER_OK && !err.text[0]))
        abort();
    if (s[0] == INFER_OK && (n[0] != n[1] || memcmp(text[0], text[1], n[0]) != 0 || n[0] > MAX_OUTPUT ||
                             infer_ju_invalid(text[0], n[0]) != n[0]))
        abort();
    infer_text_free(text[0]);
    infer_text_free(text[1]);
    infer_template_destroy(t);
    return 0;
}
