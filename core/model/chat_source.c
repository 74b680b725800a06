/* What a model file says for chats, whatever its architecture. Compiles nothing. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <infer/model.h>

#include "base/alloc.h"
#include "model/gguf.h"

static infer_status keep(const char *p, size_t n, char **out, size_t *out_n, infer_error *err)
{
    *out = infer_strndup(p, n);
    *out_n = n;
    return *out ? INFER_OK : infer_error_set(err, INFER_E_NO_MEMORY, "chat template: out of memory");
}

/* A template that may be absent. */
static infer_status keep_template(const infer_gguf *g, const char *name, char **out, size_t *n, infer_error *err)
{
    infer_str t;
    infer_status s = infer_gguf_chat_template(g, name, &t, err);
    if (s == INFER_E_NOT_FOUND)
        return INFER_OK;
    return s == INFER_OK ? keep(t.p, t.n, out, n, err) : s;
}

/* The text of a token that may be absent. */
static infer_status keep_token(const infer_vocab *v, int32_t id, char **out, size_t *n, infer_error *err)
{
    if (id < 0 || (uint32_t)id >= v->n_tokens)
        return INFER_OK;
    return keep(v->tokens[id].p, (size_t)v->tokens[id].n, out, n, err);
}

infer_status infer_chat_source_open(const char *path, infer_chat_source *out, infer_error *err)
{
    infer_chat_source c = {0};
    infer_gguf_vocab v;
    infer_gguf *g;
    infer_status s = infer_gguf_open(path, &g, err);
    if (s != INFER_OK)
        return s;
    s = keep_template(g, NULL, &c.source, &c.source_n, err);
    if (s == INFER_OK)
        s = keep_template(g, "tool_use", &c.tool_use, &c.tool_use_n, err);
    if (s == INFER_OK) {
        s = infer_gguf_vocab_load(g, &v, err);
        if (s == INFER_OK) {
            s = keep_token(&v.v, v.v.bos, &c.bos, &c.bos_n, err);
            if (s == INFER_OK)
                s = keep_token(&v.v, v.v.eos, &c.eos, &c.eos_n, err);
            infer_gguf_vocab_free(&v);
        } else if (s == INFER_E_NOT_FOUND) {
            s = INFER_OK;
        }
    }
    infer_gguf_close(g);
    if (s == INFER_OK)
        *out = c;
    else
        infer_chat_source_free(&c);
    return s == INFER_OK ? s : infer_error_prefix(err, s, "%s", path);
}

void infer_chat_source_free(infer_chat_source *s)
{
    infer_free(s->source);
    infer_free(s->tool_use);
    infer_free(s->bos);
    infer_free(s->eos);
    *s = (infer_chat_source){0};
}
