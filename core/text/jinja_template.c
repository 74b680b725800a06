/* The public calls: compiling and rendering a chat template. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <locale.h>
#include <string.h>

#include <infer/text.h>

#include "base/alloc.h"
#include "text/jinja_eval.h"
#include "text/jinja_json.h"
#include "text/jinja_table.h"

/* Numbers are read and written by the C library: in the C locale, for this thread, whatever the program chose. */
static locale_t enter_c_locale(locale_t *c)
{
    *c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    return *c ? uselocale(*c) : (locale_t)0;
}

static void leave_c_locale(locale_t old, locale_t c)
{
    if (old)
        uselocale(old);
    if (c)
        freelocale(c);
}

infer_status infer_template_create(const char *src, size_t n, infer_template **out, infer_error *err)
{
    infer_jctx c = {.err = err, .steps = UINT64_MAX, .tmp = {.limit = J_MAX_STRING}};
    infer_template *t = infer_calloc(1, sizeof *t);
    if (!t)
        return infer_error_set(err, INFER_E_NO_MEMORY, "template: out of memory");
    locale_t clocale, old = enter_c_locale(&clocale);
    infer_jparse(&c, src, n, t);
    leave_c_locale(old, clocale);
    t->arena = c.arena;
    infer_buf_free(&c.tmp);
    if (c.status != INFER_OK) {
        infer_template_destroy(t);
        return c.status;
    }
    *out = t;
    return INFER_OK;
}

void infer_template_destroy(infer_template *t)
{
    if (!t)
        return;
    infer_jarena_free(&t->arena);
    infer_free(t);
}

/* The root scope: functions, then the variables that the template mentions. */
static int make_root(infer_jctx *c, const infer_template *t, infer_jval vars)
{
    infer_jscope *root = infer_jscope_new(c, NULL);
    infer_jval *v = root ? infer_jctx_array(c, t->n_names, sizeof *v) : NULL;
    if (!v)
        return -1;
    for (uint32_t i = 0; i < t->n_names; i++) {
        const infer_jstr *name = t->names[i].u.s;
        const infer_jrow *row = infer_jrow_func(name->p, name->n);
        v[i] = row ? (infer_jval){.kind = J_FUNC, .u.row = row} : (infer_jval){.kind = J_MISSING};
        if (infer_jdict_get_text(c, vars.u.dict, name->p, name->n, &v[i]) < 0)
            return -1;
    }
    root->v = v;
    c->root = root;
    return 0;
}

infer_status infer_template_render(const infer_template *t, const char *vars_json, size_t vars_n,
                                   const infer_template_options *opt, char **out, size_t *out_n, infer_error *err)
{
    infer_jctx c = {.err = err, .template = t, .tmp = {.limit = J_MAX_STRING}};
    infer_jval vars;
    uint64_t max_output = opt && opt->max_output ? opt->max_output : J_MAX_OUTPUT;
    c.steps = opt && opt->max_steps ? opt->max_steps : J_MAX_STEPS;
    c.out.limit = max_output > SIZE_MAX ? SIZE_MAX : (size_t)max_output;
    c.now = opt ? opt->now : 0;
    locale_t clocale, old = enter_c_locale(&clocale);
    if (infer_jjson_read(&c, vars_json, vars_n, &vars) == 0) {
        if (vars.kind != J_DICT)
            infer_jctx_record(&c, INFER_E_INVALID, "template variables must be a JSON object");
        else if (make_root(&c, t, vars) == 0)
            infer_jexec_template(&c, t->body);
    }
    leave_c_locale(old, clocale);
    size_t n = c.out.n;
    char *text = c.status == INFER_OK ? infer_buf_detach(&c.out) : NULL;
    if (c.status == INFER_OK && !text)
        infer_jctx_record(&c, INFER_E_NO_MEMORY, "out of memory");
    infer_buf_free(&c.out);
    infer_buf_free(&c.tmp);
    infer_jarena_free(&c.arena);
    if (c.status != INFER_OK)
        return c.status;
    *out = text;
    *out_n = n;
    return INFER_OK;
}
