/* The table of architectures, and a model's numbers from its metadata. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "model/arch.h"

/* Keys that other members of these families use for things that no row here has. */
static const char *const refused_common[] = {"attention.scale",
                                             "attn_logit_softcapping",
                                             "final_logit_softcapping",
                                             "logit_scale",
                                             "residual_scale",
                                             "embedding_scale",
                                             "attention.clamp_kqv",
                                             "attention.max_alibi_bias",
                                             "attention.sliding_window_pattern",
                                             "expert_shared_count",
                                             "expert_weights_scale",
                                             "expert_gating_func",
                                             "leading_dense_block_count",
                                             "attention.kv_lora_rank",
                                             "interleave_moe_layer_step",
                                             NULL};

static const infer_arch rows[] = {
    {.name = "llama",
     .rope_kind = INFER_ROPE_PAIRS,
     .qkv_bias = INFER_OPTIONAL,
     .out_bias = INFER_OPTIONAL,
     .act = INFER_ACT_SILU,
     .refused_keys = refused_common},
    {.name = "qwen2",
     .rope_kind = INFER_ROPE_HALVES,
     .qkv_bias = INFER_ALWAYS,
     .act = INFER_ACT_SILU,
     .refused_keys = refused_common},
    {.name = "qwen3",
     .rope_kind = INFER_ROPE_HALVES,
     .qkv_bias = INFER_OPTIONAL,
     .qk_norm = INFER_ALWAYS,
     .act = INFER_ACT_SILU,
     .refused_keys = refused_common},
    {.name = "qwen3moe",
     .rope_kind = INFER_ROPE_HALVES,
     .qkv_bias = INFER_OPTIONAL,
     .qk_norm = INFER_ALWAYS,
     .moe = INFER_ALWAYS,
     .route_scoring = INFER_ROUTE_SOFTMAX,
     .route_normalise = 1,
     .act = INFER_ACT_SILU,
     .refused_keys = refused_common},
};

const infer_arch *infer_arch_find(infer_str name)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (infer_str_eq(name, infer_str_of(rows[i].name, strlen(rows[i].name))))
            return &rows[i];
    return NULL;
}

void infer_arch_names(char *buf, size_t cap)
{
    size_t at = 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && at < cap; i++) {
        int n = snprintf(buf + at, cap - at, "%s%s", i ? ", " : "", rows[i].name);
        at += n > 0 ? (size_t)n : 0;
    }
}

/* "llama.block_count"; the buffer is the caller's. */
static const char *key_of(const infer_arch *a, const char *field, char buf[96])
{
    snprintf(buf, 96, "%s.%s", a->name, field);
    return buf;
}

typedef struct u32_field {
    const char *key;
    size_t at;
    uint32_t max;
    int required;
} u32_field;

#define FIELD(k, m, mx, req)                                                                                           \
    {                                                                                                                  \
        k, offsetof(infer_hparams, m), mx, req                                                                         \
    }
static const u32_field fields[] = {
    FIELD("block_count", n_layers, 4096, 1),
    FIELD("embedding_length", n_embd, 1u << 20, 1),
    FIELD("attention.head_count", n_heads, 65536, 1),
    FIELD("context_length", n_ctx_train, UINT32_MAX, 1),
    FIELD("attention.key_length", head_k, 65536, 0),
    FIELD("attention.value_length", head_v, 65536, 0),
    FIELD("rope.dimension_count", rope_dims, 65536, 0),
    FIELD("attention.sliding_window", window, UINT32_MAX, 0),
    FIELD("expert_count", n_experts, 65536, 0),
    FIELD("expert_used_count", n_experts_used, 65536, 0),
    FIELD("expert_feed_forward_length", n_ff_expert, 1u << 24, 0),
};

static infer_status bad(const infer_gguf *g, const char *key, uint32_t v, const char *why, infer_error *err)
{
    const infer_gguf_kv *kv = infer_gguf_find(g, key);
    return infer_error_set(err, INFER_E_BAD_FILE, "%s = %u at byte %llu: %s", key, v,
                           (unsigned long long)(kv ? kv->offset : 0), why);
}

/* A scalar, or an array whose entries are all equal: no row here varies by layer. */
static infer_status uniform_u32(const infer_gguf *g, const char *key, uint32_t n_layers, uint32_t fallback, uint32_t *v,
                                infer_error *err)
{
    const infer_gguf_kv *kv = infer_gguf_find(g, key);
    if (!kv || kv->type != INFER_GGUF_ARRAY)
        return infer_gguf_u32_or(g, key, fallback, v, err);
    int64_t first = 0, x = 0;
    for (uint64_t i = 0; i < kv->n; i++) {
        if (!infer_gguf_array_i64(kv, i, &x) || x < 0 || x > UINT32_MAX)
            return bad(g, key, 0, "an entry is no 32-bit number", err);
        if (i == 0)
            first = x;
        else if (x != first)
            return infer_error_set(err, INFER_E_UNSUPPORTED, "%s differs between layers", key);
    }
    if (kv->n != n_layers)
        return bad(g, key, (uint32_t)kv->n, "an array must have one entry a layer", err);
    *v = (uint32_t)first;
    return INFER_OK;
}

/* Refuses metadata that would change the result and that no row knows. Zero, one and false are neutral. */
static infer_status check_refused(const infer_gguf *g, const infer_arch *a, infer_error *err)
{
    char key[96];
    for (const char *const *k = a->refused_keys; *k; k++) {
        const infer_gguf_kv *kv = infer_gguf_find(g, key_of(a, *k, key));
        float f = 0;
        if (!kv)
            continue;
        if (kv->type == INFER_GGUF_F32 && infer_gguf_f32(g, key, &f, NULL) == INFER_OK && (f == 0 || f == 1))
            continue;
        uint32_t u = 1;
        if (infer_gguf_u32(g, key, &u, NULL) == INFER_OK && u == 0)
            continue;
        return infer_error_set(err, INFER_E_UNSUPPORTED, "%s at byte %llu: this model feature is not known here", key,
                               (unsigned long long)kv->offset);
    }
    return INFER_OK;
}

static infer_status check_numbers(const infer_gguf *g, infer_hparams *h, infer_error *err)
{
    char key[96];
    const infer_arch *a = h->arch;
    if (!h->n_layers)
        return bad(g, key_of(a, "block_count", key), h->n_layers, "must be at least 1", err);
    if (!h->n_heads)
        return bad(g, key_of(a, "attention.head_count", key), h->n_heads, "must be at least 1", err);
    if (!h->n_kv_heads || h->n_heads % h->n_kv_heads)
        return bad(g, key_of(a, "attention.head_count_kv", key), h->n_kv_heads, "must divide the head count", err);
    if (!h->head_k && h->n_embd % h->n_heads)
        return bad(g, key_of(a, "embedding_length", key), h->n_embd, "is no multiple of the head count", err);
    if (!h->head_k)
        h->head_k = h->n_embd / h->n_heads;
    if (!h->head_v)
        h->head_v = h->head_k;
    if (!h->rope_dims)
        h->rope_dims = h->head_k;
    if (h->rope_dims % 2 || h->rope_dims > h->head_k)
        return bad(g, key_of(a, "rope.dimension_count", key), h->rope_dims, "must be even and at most a head", err);
    if (!h->n_embd || !h->head_k || !h->n_ctx_train)
        return bad(g, key_of(a, "embedding_length", key), h->n_embd, "width, head and context must be positive", err);
    if ((h->n_experts != 0) != (a->moe == INFER_ALWAYS))
        return infer_error_set(err, INFER_E_UNSUPPORTED, "%s.expert_count = %u: not known for this architecture",
                               a->name, h->n_experts);
    if (a->moe && (!h->n_experts_used || h->n_experts_used > h->n_experts))
        return bad(g, key_of(a, "expert_used_count", key), h->n_experts_used, "must be 1 to the expert count", err);
    if (a->moe ? !h->n_ff_expert : !h->n_ff)
        return bad(g, key_of(a, "feed_forward_length", key), h->n_ff, "must be at least 1", err);
    return INFER_OK;
}

infer_status infer_hparams_load(const infer_gguf *g, infer_hparams *out, infer_error *err)
{
    infer_hparams h = {0};
    infer_str name;
    char key[96];
    INFER_TRY(infer_gguf_string(g, "general.architecture", &name, err));
    h.arch = infer_arch_find(name);
    if (!h.arch) {
        char known[160];
        infer_arch_names(known, sizeof known);
        return infer_error_set(err, INFER_E_UNSUPPORTED, "architecture \"%.*s\" is not known (known: %s)",
                               (int)(name.n > 64 ? 64 : name.n), name.p, known);
    }
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        uint32_t *v = (uint32_t *)((char *)&h + fields[i].at);
        key_of(h.arch, fields[i].key, key);
        INFER_TRY(fields[i].required ? infer_gguf_u32(g, key, v, err) : infer_gguf_u32_or(g, key, 0, v, err));
        if (*v > fields[i].max)
            return bad(g, key, *v, "is out of range", err);
    }
    INFER_TRY(
        uniform_u32(g, key_of(h.arch, "attention.head_count_kv", key), h.n_layers, h.n_heads, &h.n_kv_heads, err));
    INFER_TRY(uniform_u32(g, key_of(h.arch, "feed_forward_length", key), h.n_layers, 0, &h.n_ff, err));
    if (h.n_ff > 1u << 24)
        return bad(g, key, h.n_ff, "is out of range", err);
    float base;
    INFER_TRY(infer_gguf_f32(g, key_of(h.arch, "attention.layer_norm_rms_epsilon", key), &h.norm_eps, err));
    if (!(h.norm_eps > 0 && h.norm_eps < 1))
        return infer_error_set(err, INFER_E_BAD_FILE, "%s: must lie between 0 and 1", key);
    INFER_TRY(infer_gguf_f32_or(g, key_of(h.arch, "rope.freq_base", key), 10000.0f, &base, err));
    if (!(base > 0 && base < 1e30f))
        return infer_error_set(err, INFER_E_BAD_FILE, "%s: must be a positive number", key);
    h.rope_base = base;
    h.rope_magnitude = 1;
    INFER_TRY(check_refused(g, h.arch, err));
    INFER_TRY(check_numbers(g, &h, err));
    const infer_gguf_tensor *embd = infer_gguf_tensor_find(g, "token_embd.weight");
    if (!embd || embd->rank != 2 || embd->dims[0] != h.n_embd || embd->dims[1] > INT32_MAX)
        return infer_error_set(err, INFER_E_BAD_FILE, "token_embd.weight: must be a matrix of rows of %u", h.n_embd);
    h.n_vocab = (uint32_t)embd->dims[1];
    h.tied = infer_gguf_tensor_find(g, "output.weight") == NULL;
    *out = h;
    return INFER_OK;
}
