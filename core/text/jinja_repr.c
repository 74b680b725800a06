/* str() and repr() of values. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "text/jinja_eval.h"
#include "text/jinja_ops.h"
#include "text/jinja_table.h"
#include "text/jinja_unicode.h"

static int repr_str(infer_jctx *c, const infer_jstr *s)
{
    infer_buf *b = &c->tmp;
    if (infer_jctx_work(c, s->n))
        return -1;
    char quote = memchr(s->p, '\'', s->n) && !memchr(s->p, '"', s->n) ? '"' : '\'';
    infer_buf_putc(b, quote);
    for (size_t i = 0; i < s->n;) {
        uint32_t cp = infer_ju_next(s->p, &i);
        if (cp == (uint32_t)quote || cp == '\\') {
            infer_buf_putc(b, '\\');
            infer_buf_putc(b, (char)cp);
        } else if (cp == '\n' || cp == '\r' || cp == '\t') {
            infer_buf_puts(b, cp == '\n' ? "\\n" : cp == '\r' ? "\\r" : "\\t");
        } else if (infer_ju_isprintable(cp)) {
            infer_buf_put_utf8(b, cp);
        } else {
            infer_ju_put_escape(b, cp);
        }
    }
    infer_buf_putc(b, quote);
    return b->failed ? infer_jctx_buf_failed(c, b) : 0;
}

/* Items between brackets; keys too where k is given. */
static int repr_items(infer_jctx *c, const char *open, const infer_jval *k, const infer_jval *v, size_t n,
                      const char *close)
{
    if (infer_jctx_enter(c))
        return -1;
    infer_buf_puts(&c->tmp, open);
    for (size_t i = 0; i < n; i++) {
        if (i)
            infer_buf_puts(&c->tmp, ", ");
        if (k) {
            if (infer_jval_repr(c, k[i]))
                return -1;
            infer_buf_puts(&c->tmp, ": ");
        }
        if (infer_jval_repr(c, v[i]))
            return -1;
    }
    infer_buf_puts(&c->tmp, close);
    infer_jctx_leave(c);
    return 0;
}

static int repr_view(infer_jctx *c, const infer_jview *v)
{
    infer_jval view = {.kind = J_VIEW, .u.view = (infer_jview *)v}, list;
    infer_buf_puts(&c->tmp, infer_jval_type(view));
    if (infer_jval_to_list(c, view, &list))
        return -1;
    infer_buf_putc(&c->tmp, '(');
    if (repr_items(c, "[", NULL, list.u.list->v, list.u.list->n, "]"))
        return -1;
    infer_buf_putc(&c->tmp, ')');
    return 0;
}

int infer_jval_repr(infer_jctx *c, infer_jval v)
{
    infer_buf *b = &c->tmp;
    char num[32];
    if (infer_jctx_step(c, 1))
        return -1;
    switch (v.kind) {
    case J_MISSING:
    case J_UNDEFINED:
        infer_buf_puts(b, "Undefined");
        break;
    case J_NONE:
        infer_buf_puts(b, "None");
        break;
    case J_BOOL:
        infer_buf_puts(b, v.u.b ? "True" : "False");
        break;
    case J_INT:
        infer_buf_printf(b, "%lld", (long long)v.u.i);
        break;
    case J_BIG:
        infer_buf_append(b, v.u.s->p, v.u.s->n);
        break;
    case J_FLOAT:
        if (infer_jctx_step(c, 20))
            return -1;
        infer_jfloat_repr(v.u.f, num);
        infer_buf_puts(b, num);
        break;
    case J_STR:
        infer_buf_puts(b, v.u.s->safe ? "Markup(" : "");
        if (repr_str(c, v.u.s))
            return -1;
        infer_buf_puts(b, v.u.s->safe ? ")" : "");
        break;
    case J_LIST:
        if (repr_items(c, "[", NULL, v.u.list->v, v.u.list->n, "]"))
            return -1;
        break;
    case J_TUPLE:
        if (repr_items(c, "(", NULL, v.u.list->v, v.u.list->n, v.u.list->n == 1 ? ",)" : ")"))
            return -1;
        break;
    case J_DICT:
        if (repr_items(c, "{", v.u.dict->k, v.u.dict->v, v.u.dict->n, "}"))
            return -1;
        break;
    case J_NAMESPACE:
        if (repr_items(c, "<Namespace {", v.u.dict->k, v.u.dict->v, v.u.dict->n, "}>"))
            return -1;
        break;
    case J_RANGE:
        infer_buf_printf(b, "range(%lld, %lld", (long long)v.u.range->start, (long long)v.u.range->stop);
        if (v.u.range->step != 1)
            infer_buf_printf(b, ", %lld", (long long)v.u.range->step);
        infer_buf_putc(b, ')');
        break;
    case J_VIEW:
        if (repr_view(c, v.u.view))
            return -1;
        break;
    case J_LOOP: {
        size_t n;
        if (infer_jloop_length(c, v.u.loop, &n))
            return -1;
        infer_buf_printf(b, "<LoopContext %lld/%zu>", (long long)v.u.loop->index0 + 1, n);
        break;
    }
    case J_MACRO:
        infer_buf_puts(b, "<Macro ");
        if (v.u.macro->node->val.kind != J_STR)
            infer_buf_puts(b, "anonymous");
        else if (repr_str(c, v.u.macro->node->val.u.s))
            return -1;
        infer_buf_putc(b, '>');
        break;
    case J_FUNC:
        infer_buf_printf(b, "<function %s>", v.u.row->name);
        break;
    case J_METHOD:
        infer_buf_printf(b, "<built-in method %s of %s object>", v.u.method->row->name,
                         infer_jval_type(v.u.method->self));
        break;
    default:
        infer_buf_printf(b, "<%s object>", infer_jval_type(v));
    }
    return b->failed ? infer_jctx_buf_failed(c, b) : 0;
}

int infer_jval_str_to_tmp(infer_jctx *c, infer_jval v)
{
    if (v.kind == J_UNDEFINED)
        return 0;
    if (v.kind != J_STR)
        return infer_jval_repr(c, v);
    infer_buf_append(&c->tmp, v.u.s->p, v.u.s->n);
    return c->tmp.failed ? infer_jctx_buf_failed(c, &c->tmp) : infer_jctx_work(c, v.u.s->n);
}

int infer_jval_to_str(infer_jctx *c, infer_jval v, const infer_jstr **out)
{
    if (v.kind == J_STR || v.kind == J_UNDEFINED) {
        *out = v.kind == J_STR ? v.u.s : &infer_jstr_empty;
        return 0;
    }
    infer_jval s;
    size_t mark = infer_jctx_begin(c);
    if (infer_jval_repr(c, v) || infer_jctx_end(c, mark, &s))
        return -1;
    *out = s.u.s;
    return 0;
}

int infer_jval_print(infer_jctx *c, infer_jval v)
{
    if (v.kind == J_STR)
        return infer_jctx_write(c, v.u.s->p, v.u.s->n);
    if (v.kind == J_UNDEFINED)
        return 0;
    size_t mark = infer_jctx_begin(c);
    if (infer_jval_repr(c, v) || infer_jctx_write(c, c->tmp.p + mark, c->tmp.n - mark))
        return -1;
    c->tmp.n = mark;
    return 0;
}
