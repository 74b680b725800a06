/* Typed access to an open GGUF file: values, arrays, tokenizer vocabulary, chat template.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "model/gguf_private.h"

uint32_t infer_gguf_version(const infer_gguf *g)
{
    return g->parts[0].version;
}

uint32_t infer_gguf_n_parts(const infer_gguf *g)
{
    return g->n_parts;
}

void infer_gguf_part_bytes(const infer_gguf *g, uint32_t part, const uint8_t **p, uint64_t *n)
{
    *p = g->parts[part].data;
    *n = g->parts[part].size;
}

uint64_t infer_gguf_file_bytes(const infer_gguf *g)
{
    return g->file_bytes;
}

uint32_t infer_gguf_n_kv(const infer_gguf *g)
{
    return g->parts[0].n_kv;
}

const infer_gguf_kv *infer_gguf_kv_at(const infer_gguf *g, uint32_t i)
{
    return i < g->parts[0].n_kv ? &g->parts[0].kv[i] : NULL;
}

const infer_gguf_kv *infer_gguf_find(const infer_gguf *g, const char *key)
{
    return gguf_part_find(&g->parts[0], infer_str_of(key, strlen(key)));
}

uint32_t infer_gguf_n_tensors(const infer_gguf *g)
{
    return g->n_tensors;
}

const infer_gguf_tensor *infer_gguf_tensor_at(const infer_gguf *g, uint32_t i)
{
    return i < g->n_tensors ? &g->tensors[i] : NULL;
}

void infer_gguf_tensor_drop(const infer_gguf *g, const infer_gguf_tensor *t)
{
    infer_map_drop(&g->parts[t->part].map, t->offset, t->bytes);
}

/* ---- Numbers ------------------------------------------------------------------------------------------------- */

#define AS(type)                                                                                                       \
    do {                                                                                                               \
        type x;                                                                                                        \
        memcpy(&x, p, sizeof x);                                                                                       \
        *v = x;                                                                                                        \
    } while (0)

int gguf_number_i64(uint32_t type, const uint8_t *p, int64_t *v)
{
    uint64_t u;
    switch (type) {
    case INFER_GGUF_U8:
    case INFER_GGUF_BOOL:
        AS(uint8_t);
        return 1;
    case INFER_GGUF_I8:
        AS(int8_t);
        return 1;
    case INFER_GGUF_U16:
        AS(uint16_t);
        return 1;
    case INFER_GGUF_I16:
        AS(int16_t);
        return 1;
    case INFER_GGUF_U32:
        AS(uint32_t);
        return 1;
    case INFER_GGUF_I32:
        AS(int32_t);
        return 1;
    case INFER_GGUF_I64:
        AS(int64_t);
        return 1;
    case INFER_GGUF_U64:
        memcpy(&u, p, sizeof u);
        if (u > INT64_MAX)
            return 0;
        *v = (int64_t)u;
        return 1;
    default:
        return 0;
    }
}

static int number_f64(uint32_t type, const uint8_t *p, double *v)
{
    int64_t i;
    switch (type) {
    case INFER_GGUF_F32:
        AS(float);
        return 1;
    case INFER_GGUF_F64:
        AS(double);
        return 1;
    default:
        if (!gguf_number_i64(type, p, &i))
            return 0;
        *v = (double)i;
        return 1;
    }
}

static const uint8_t *element(const infer_gguf_kv *kv, uint64_t i)
{
    if (kv->type != INFER_GGUF_ARRAY || i >= kv->n)
        return NULL;
    return kv->value + i * gguf_type_size(kv->elem_type);
}

int infer_gguf_array_i64(const infer_gguf_kv *kv, uint64_t i, int64_t *v)
{
    const uint8_t *p = element(kv, i);
    return p && gguf_number_i64(kv->elem_type, p, v);
}

int infer_gguf_array_f64(const infer_gguf_kv *kv, uint64_t i, double *v)
{
    const uint8_t *p = element(kv, i);
    return p && number_f64(kv->elem_type, p, v);
}

/* ---- Typed values -------------------------------------------------------------------------------------------- */

/* The key, or NOT_FOUND with a text. */
static infer_status get(const infer_gguf *g, const char *key, const infer_gguf_kv **kv, infer_error *err)
{
    *kv = infer_gguf_find(g, key);
    return *kv ? INFER_OK : infer_error_set(err, INFER_E_NOT_FOUND, "no key '%s'", key);
}

static infer_status wrong(const infer_gguf_kv *kv, const char *want, infer_error *err)
{
    char show[GGUF_SHOW];
    return infer_error_set(err, INFER_E_BAD_FILE, "byte %llu: '%s' is %s%s%s, expected %s",
                           (unsigned long long)kv->offset, gguf_show(kv->key, show), gguf_type_name(kv->type),
                           kv->type == INFER_GGUF_ARRAY ? " of " : "",
                           kv->type == INFER_GGUF_ARRAY ? gguf_type_name(kv->elem_type) : "", want);
}

/* A scalar integer in [lo, hi]. */
static infer_status get_int(const infer_gguf *g, const char *key, int64_t lo, int64_t hi, int64_t *v, infer_error *err)
{
    const infer_gguf_kv *kv;
    INFER_TRY(get(g, key, &kv, err));
    if (kv->type == INFER_GGUF_BOOL || !gguf_number_i64(kv->type, kv->value, v))
        return wrong(kv, "an integer", err);
    if (*v < lo || *v > hi)
        return infer_error_set(err, INFER_E_BAD_FILE, "byte %llu: '%s' is %lld, allowed are %lld to %lld",
                               (unsigned long long)kv->offset, key, (long long)*v, (long long)lo, (long long)hi);
    return INFER_OK;
}

infer_status infer_gguf_u32(const infer_gguf *g, const char *key, uint32_t *v, infer_error *err)
{
    int64_t i;
    INFER_TRY(get_int(g, key, 0, UINT32_MAX, &i, err));
    *v = (uint32_t)i;
    return INFER_OK;
}

infer_status infer_gguf_f32(const infer_gguf *g, const char *key, float *v, infer_error *err)
{
    const infer_gguf_kv *kv;
    double d;
    INFER_TRY(get(g, key, &kv, err));
    if ((kv->type != INFER_GGUF_F32 && kv->type != INFER_GGUF_F64) || !number_f64(kv->type, kv->value, &d))
        return wrong(kv, "f32", err);
    *v = (float)d;
    return INFER_OK;
}

infer_status infer_gguf_bool(const infer_gguf *g, const char *key, int *v, infer_error *err)
{
    const infer_gguf_kv *kv;
    INFER_TRY(get(g, key, &kv, err));
    if (kv->type != INFER_GGUF_BOOL)
        return wrong(kv, "bool", err);
    *v = kv->value[0];
    return INFER_OK;
}

infer_status infer_gguf_string(const infer_gguf *g, const char *key, infer_str *v, infer_error *err)
{
    const infer_gguf_kv *kv;
    INFER_TRY(get(g, key, &kv, err));
    if (kv->type != INFER_GGUF_STRING)
        return wrong(kv, "string", err);
    *v = infer_str_of((const char *)kv->value, (size_t)kv->n);
    return INFER_OK;
}

#define WITH_FALLBACK(name, type)                                                                                      \
    infer_status infer_gguf_##name##_or(const infer_gguf *g, const char *key, type fallback, type *v,                  \
                                        infer_error *err)                                                              \
    {                                                                                                                  \
        if (infer_gguf_find(g, key))                                                                                   \
            return infer_gguf_##name(g, key, v, err);                                                                  \
        *v = fallback;                                                                                                 \
        return INFER_OK;                                                                                               \
    }

WITH_FALLBACK(u32, uint32_t)
WITH_FALLBACK(f32, float)
WITH_FALLBACK(bool, int)

infer_status infer_gguf_u32_list(const infer_gguf *g, const char *key, uint32_t n, uint32_t *v, infer_error *err)
{
    const infer_gguf_kv *kv;
    INFER_TRY(get(g, key, &kv, err));
    uint32_t one = 0;
    if (kv->type != INFER_GGUF_ARRAY)
        INFER_TRY(infer_gguf_u32(g, key, &one, err));
    else if (kv->n != n)
        return infer_error_set(err, INFER_E_BAD_FILE, "byte %llu: array '%s' has %llu elements, expected %u",
                               (unsigned long long)kv->offset, key, (unsigned long long)kv->n, n);
    int64_t x = one;
    if (kv->type == INFER_GGUF_ARRAY) /* checked before the first is written */
        for (uint32_t i = 0; i < n; i++)
            if (!infer_gguf_array_i64(kv, i, &x) || x < 0 || x > UINT32_MAX)
                return wrong(kv, "integers from 0 to 4294967295", err);
    for (uint32_t i = 0; i < n; i++) {
        if (kv->type == INFER_GGUF_ARRAY)
            infer_gguf_array_i64(kv, i, &x);
        v[i] = (uint32_t)x;
    }
    return INFER_OK;
}

infer_status infer_gguf_strings(const infer_gguf *g, const char *key, infer_text **v, uint32_t *n, infer_error *err)
{
    const infer_gguf_kv *kv;
    INFER_TRY(get(g, key, &kv, err));
    if (kv->type != INFER_GGUF_ARRAY || kv->elem_type != INFER_GGUF_STRING)
        return wrong(kv, "array of string", err);
    if (kv->n > INT32_MAX)
        return infer_error_set(err, INFER_E_TOO_LARGE, "byte %llu: '%s' has %llu strings, the limit is %d",
                               (unsigned long long)kv->offset, key, (unsigned long long)kv->n, INT32_MAX);
    infer_text *t = infer_realloc_array(NULL, (size_t)kv->n, sizeof *t);
    if (!t)
        return infer_error_set(err, INFER_E_NO_MEMORY, "no memory for the %llu strings of '%s'",
                               (unsigned long long)kv->n, key);
    const uint8_t *p = kv->value;
    for (uint64_t i = 0; i < kv->n; i++) { /* lengths were checked at open */
        memcpy(&t[i].n, p, 8);
        t[i].p = (const char *)p + 8;
        p += 8 + t[i].n;
    }
    *v = t;
    *n = (uint32_t)kv->n;
    return INFER_OK;
}

/* ---- Tokenizer ----------------------------------------------------------------------------------------------- */

/* An owned, NUL-terminated copy. Names with NUL inside are no names. */
static infer_status copy_string(const infer_gguf *g, const char *key, char **out, infer_error *err)
{
    infer_str s;
    INFER_TRY(infer_gguf_string(g, key, &s, err));
    if (s.n && memchr(s.p, 0, s.n))
        return infer_error_set(err, INFER_E_BAD_FILE, "'%s' holds a NUL byte", key);
    *out = infer_strndup(s.p, s.n);
    return *out ? INFER_OK : infer_error_set(err, INFER_E_NO_MEMORY, "no memory for '%s'", key);
}

/* An array of numbers, one a token, checked for count and converted; *out stays NULL where absent. */
static infer_status token_numbers(const infer_gguf *g, const char *key, uint32_t n, int floats, void **out,
                                  infer_error *err)
{
    const infer_gguf_kv *kv = infer_gguf_find(g, key);
    if (!kv)
        return INFER_OK;
    int is_float = kv->elem_type == INFER_GGUF_F32 || kv->elem_type == INFER_GGUF_F64;
    if (kv->type != INFER_GGUF_ARRAY || kv->elem_type == INFER_GGUF_STRING || is_float != floats)
        return wrong(kv, floats ? "array of f32" : "array of i32", err);
    if (kv->n != n)
        return infer_error_set(err, INFER_E_BAD_FILE, "byte %llu: '%s' has %llu entries for %u tokens",
                               (unsigned long long)kv->offset, key, (unsigned long long)kv->n, n);
    union {
        float f;
        int32_t i;
    } *v = infer_realloc_array(NULL, n, sizeof *v);
    if (!v)
        return infer_error_set(err, INFER_E_NO_MEMORY, "no memory for '%s'", key);
    for (uint32_t i = 0; i < n; i++) {
        double d = 0;
        int64_t x = 0;
        if (floats) {
            infer_gguf_array_f64(kv, i, &d);
            v[i].f = (float)d;
        } else {
            if (!infer_gguf_array_i64(kv, i, &x) || x < INT32_MIN || x > INT32_MAX)
                x = 0;
            v[i].i = (int32_t)x;
        }
    }
    *out = v;
    return INFER_OK;
}

static infer_status load_special(const infer_gguf *g, infer_vocab *v, infer_error *err)
{
    const struct {
        const char *key;
        int32_t *id;
        int needed; /* generation relies on it */
    } ids[] = {
        {"tokenizer.ggml.bos_token_id", &v->bos, 1},       {"tokenizer.ggml.eos_token_id", &v->eos, 1},
        {"tokenizer.ggml.eot_token_id", &v->eot, 1},       {"tokenizer.ggml.unknown_token_id", &v->unk, 0},
        {"tokenizer.ggml.seperator_token_id", &v->sep, 0}, {"tokenizer.ggml.padding_token_id", &v->pad, 0},
    };
    const struct {
        const char *key;
        int32_t *flag;
    } flags[] = {
        {"tokenizer.ggml.add_bos_token", &v->add_bos},
        {"tokenizer.ggml.add_eos_token", &v->add_eos},
        {"tokenizer.ggml.add_space_prefix", &v->add_space_prefix},
        {"tokenizer.ggml.remove_extra_whitespaces", &v->remove_extra_whitespaces},
    };
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        int64_t id = -1;
        *ids[i].id = -1;
        if (!infer_gguf_find(g, ids[i].key))
            continue;
        infer_status s = get_int(g, ids[i].key, -1, (int64_t)v->n_tokens - 1, &id, ids[i].needed ? err : NULL);
        if (s != INFER_OK && ids[i].needed)
            return s;
        *ids[i].id = s == INFER_OK ? (int32_t)id : -1;
    }
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        int b;
        INFER_TRY(infer_gguf_bool_or(g, flags[i].key, -1, &b, err));
        *flags[i].flag = b;
    }
    return INFER_OK;
}

static infer_status load_vocab(const infer_gguf *g, infer_gguf_vocab *o, infer_error *err)
{
    INFER_TRY(copy_string(g, "tokenizer.ggml.model", &o->model, err));
    if (infer_gguf_find(g, "tokenizer.ggml.pre"))
        INFER_TRY(copy_string(g, "tokenizer.ggml.pre", &o->pre, err));
    INFER_TRY(infer_gguf_strings(g, "tokenizer.ggml.tokens", &o->tokens, &o->v.n_tokens, err));
    if (infer_gguf_find(g, "tokenizer.ggml.merges"))
        INFER_TRY(infer_gguf_strings(g, "tokenizer.ggml.merges", &o->merges, &o->v.n_merges, err));
    void *scores = NULL, *types = NULL;
    infer_status s = token_numbers(g, "tokenizer.ggml.scores", o->v.n_tokens, 1, &scores, err);
    o->scores = scores;
    INFER_TRY(s);
    s = token_numbers(g, "tokenizer.ggml.token_type", o->v.n_tokens, 0, &types, err);
    o->types = types;
    INFER_TRY(s);
    o->v.model = o->model;
    o->v.pre = strcmp(o->model, "llama") ? o->pre : NULL; /* SentencePiece has none, files say "default" */
    o->v.tokens = o->tokens;
    o->v.merges = o->merges;
    o->v.scores = o->scores;
    o->v.types = o->types;
    return load_special(g, &o->v, err);
}

infer_status infer_gguf_vocab_load(const infer_gguf *g, infer_gguf_vocab *out, infer_error *err)
{
    infer_gguf_vocab o = {0};
    infer_status s = load_vocab(g, &o, err);
    if (s == INFER_OK)
        *out = o;
    else
        infer_gguf_vocab_free(&o);
    return s;
}

void infer_gguf_vocab_free(infer_gguf_vocab *v)
{
    infer_free(v->tokens);
    infer_free(v->merges);
    infer_free(v->scores);
    infer_free(v->types);
    infer_free(v->model);
    infer_free(v->pre);
    *v = (infer_gguf_vocab){0};
}

infer_status infer_gguf_chat_template(const infer_gguf *g, const char *name, infer_str *v, infer_error *err)
{
    char key[256];
    int n = snprintf(key, sizeof key, "tokenizer.chat_template%s%s", name ? "." : "", name ? name : "");
    if (n < 0 || (size_t)n >= sizeof key)
        return infer_error_set(err, INFER_E_NOT_FOUND, "no chat template of so long a name");
    return infer_gguf_string(g, key, v, err);
}
