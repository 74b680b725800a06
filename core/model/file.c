/* A model file as the API shows it: checked metadata, tokenizer, template. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "model/private.h"
#include "quant/quant.h"

/* The commonest format among matrices by elements, upper case. */
static char *type_of(const infer_gguf *g)
{
    uint64_t elems[INFER_FMT_COUNT] = {0};
    infer_format best = INFER_FMT_F32;
    for (uint32_t i = 0; i < infer_gguf_n_tensors(g); i++) {
        const infer_gguf_tensor *t = infer_gguf_tensor_at(g, i);
        if (t->rank >= 2 && t->format < INFER_FMT_COUNT)
            elems[t->format] += t->n_elems;
    }
    for (infer_format f = 0; f < INFER_FMT_COUNT; f++)
        if (elems[f] > elems[best])
            best = f;
    const infer_format_info *info = infer_format_get(best);
    char *s = infer_strdup(info ? info->name : "?");
    for (char *p = s; p && *p; p++)
        *p = (char)toupper((unsigned char)*p);
    return s;
}

infer_status infer_file_open(const char *path, infer_file **out, infer_error *err)
{
    infer_file *f = infer_calloc(1, sizeof *f);
    infer_status s = INFER_E_NO_MEMORY;
    if (!f)
        return infer_error_set(err, s, "%s: no host memory", path);
    pthread_mutex_init(&f->lock, NULL);
    if ((s = infer_gguf_open(path, &f->gguf, err)) != INFER_OK)
        goto fail;
    if ((s = infer_hparams_load(f->gguf, &f->hp, err)) != INFER_OK ||
        (s = infer_weights_list(f->gguf, &f->hp, &f->weights, err)) != INFER_OK) {
        infer_error_prefix(err, s, "%s", path);
        goto fail;
    }
    for (uint32_t i = 0; i < infer_gguf_n_tensors(f->gguf); i++) {
        const infer_gguf_tensor *t = infer_gguf_tensor_at(f->gguf, i);
        f->tensor_bytes += t->bytes;
        f->n_params += t->n_elems;
    }
    const char *base = strrchr(path, '/');
    infer_str name;
    f->path = infer_strdup(path);
    f->type = type_of(f->gguf);
    f->name = infer_gguf_string(f->gguf, "general.name", &name, NULL) == INFER_OK && name.n && name.n < 256
                  ? infer_strndup(name.p, name.n)
                  : infer_strdup(base ? base + 1 : path);
    if (!f->path || !f->name || !f->type) {
        s = infer_error_set(err, INFER_E_NO_MEMORY, "%s: no host memory", path);
        goto fail;
    }
    *out = f;
    return INFER_OK;
fail:
    infer_file_destroy(f);
    return s;
}

void infer_file_destroy(infer_file *f)
{
    if (!f)
        return;
    infer_tokenizer_destroy(f->tokenizer);
    infer_weight_list_free(&f->weights);
    infer_gguf_close(f->gguf);
    infer_free(f->path);
    infer_free(f->name);
    infer_free(f->type);
    pthread_mutex_destroy(&f->lock);
    infer_free(f);
}

void infer_file_get_info(const infer_file *f, infer_file_info *out)
{
    const infer_hparams *h = &f->hp;
    *out = (infer_file_info){.path = f->path,
                             .arch = h->arch->name,
                             .name = f->name,
                             .type = f->type,
                             .bytes = infer_gguf_file_bytes(f->gguf),
                             .tensor_bytes = f->tensor_bytes,
                             .n_params = f->n_params,
                             .n_tensors = infer_gguf_n_tensors(f->gguf),
                             .n_layers = h->n_layers,
                             .n_vocab = h->n_vocab,
                             .n_embd = h->n_embd,
                             .n_heads = h->n_heads,
                             .n_kv_heads = h->n_kv_heads,
                             .head_dim = h->head_k,
                             .n_ff = h->n_ff,
                             .n_experts = h->n_experts,
                             .n_experts_used = h->n_experts_used,
                             .n_ctx_train = h->n_ctx_train};
}

static infer_status create_tokenizer(const infer_gguf *g, const char *path, infer_tokenizer **out, infer_error *err)
{
    infer_gguf_vocab v;
    infer_status s = infer_gguf_vocab_load(g, &v, err);
    if (s == INFER_OK) {
        s = infer_tokenizer_create_vocab(&v.v, out, err);
        infer_gguf_vocab_free(&v);
    }
    if (s != INFER_OK)
        infer_error_prefix(err, s, "%s", path);
    return s;
}

infer_status infer_tokenizer_open(const char *path, infer_tokenizer **out, infer_error *err)
{
    infer_gguf *g;
    infer_status s = infer_gguf_open(path, &g, err);
    if (s != INFER_OK)
        return s;
    s = create_tokenizer(g, path, out, err);
    infer_gguf_close(g);
    if (s == INFER_E_NOT_FOUND) { /* there is a file, but it is none of what was asked for */
        s = INFER_E_BAD_FILE;
        if (err)
            err->status = s;
    }
    return s;
}

infer_status infer_file_tokenizer(infer_file *f, const infer_tokenizer **out, infer_error *err)
{
    infer_status s = INFER_OK;
    pthread_mutex_lock(&f->lock);
    if (!f->tokenizer)
        s = create_tokenizer(f->gguf, f->path, &f->tokenizer, err);
    if (s == INFER_OK && infer_tokenizer_n_tokens(f->tokenizer) > f->hp.n_vocab)
        s = infer_error_set(err, INFER_E_BAD_FILE, "%s: the tokenizer has %u tokens, token_embd.weight only %u rows",
                            f->path, infer_tokenizer_n_tokens(f->tokenizer), f->hp.n_vocab);
    if (s == INFER_OK)
        *out = f->tokenizer;
    pthread_mutex_unlock(&f->lock);
    return s;
}

const char *infer_file_chat_template(const infer_file *f, const char *name, size_t *n)
{
    infer_str t;
    if (infer_gguf_chat_template(f->gguf, name, &t, NULL) != INFER_OK)
        return NULL;
    *n = t.n;
    return t.p;
}
