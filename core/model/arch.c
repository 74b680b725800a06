/* The table of architectures, and a model's numbers from its metadata. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "model/arch.h"

/* Keys that other members of these families use for things that no row here has. */
static const infer_refused_key refused_common[] = {
    {"attention.causal", {1, 1}},
    {"attention.clamp_kqv", {0, 0}},
    {"attention.kv_lora_rank", {0, 0}},
    {"attention.max_alibi_bias", {0, 0}},
    {"attention.q_lora_rank", {0, 0}},
    {"attention.scale", {0, 0}},
    {"attention.sliding_window_pattern", {0, 0}},
    {"attn_logit_softcapping", {0, 0}},
    {"embedding_scale", {0, 1}},
    {"expert_gating_func", {0, 1}}, /* softmax */
    {"expert_group_count", {0, 1}},
    {"expert_shared_count", {0, 0}},
    {"expert_shared_feed_forward_length", {0, 0}},
    {"expert_weights_norm", {1, 1}},
    {"expert_weights_scale", {0, 1}},
    {"final_logit_softcapping", {0, 0}},
    {"interleave_moe_layer_step", {0, 1}},
    {"leading_dense_block_count", {0, 0}},
    {"logit_scale", {0, 1}},
    {"pooling_type", {0, 0}},
    {"residual_scale", {0, 1}},
    {"rope.dimension_sections", {0, 0}},
    {"rope.scaling.alpha", {0, 1}},
    {"rope.scaling.yarn_attn_factor", {1, 1}},
    {"rope.scaling.yarn_ext_factor", {1, 1}},
    {"rope.scaling.yarn_log_multiplier", {0, 0}},
    {"use_parallel_residual", {0, 0}},
    {NULL, {0, 0}},
};

static const infer_arch rows[] = {
    {.name = "llama",
     .rope_kind = INFER_ROPE_PAIRS,
     .qkv_bias = INFER_OPTIONAL,
     .out_bias = INFER_OPTIONAL,
     .act = INFER_ACT_SILU,
     .refused = refused_common},
    {.name = "qwen2",
     .rope_kind = INFER_ROPE_HALVES,
     .qkv_bias = INFER_ALWAYS,
     .act = INFER_ACT_SILU,
     .refused = refused_common},
    {.name = "qwen3",
     .rope_kind = INFER_ROPE_HALVES,
     .qkv_bias = INFER_OPTIONAL,
     .qk_norm = INFER_ALWAYS,
     .act = INFER_ACT_SILU,
     .refused = refused_common},
    {.name = "qwen3moe",
     .rope_kind = INFER_ROPE_HALVES,
     .qkv_bias = INFER_OPTIONAL,
     .qk_norm = INFER_ALWAYS,
     .moe = INFER_ALWAYS,
     .route_scoring = INFER_ROUTE_SOFTMAX,
     .route_normalise = 1,
     .act = INFER_ACT_SILU,
     .refused = refused_common},
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

/* A number or bool as a double; 0 for any other value. */
static int number_of(const infer_gguf *g, const char *key, double *v)
{
    float f;
    uint32_t u;
    int b;
    if (infer_gguf_f32(g, key, &f, NULL) == INFER_OK)
        *v = (double)f;
    else if (infer_gguf_u32(g, key, &u, NULL) == INFER_OK)
        *v = u;
    else if (infer_gguf_bool(g, key, &b, NULL) == INFER_OK)
        *v = b;
    else
        return 0;
    return 1;
}

static infer_status check_refused(const infer_gguf *g, const infer_arch *a, infer_error *err)
{
    char key[96];
    for (const infer_refused_key *r = a->refused; r->key; r++) {
        const infer_gguf_kv *kv = infer_gguf_find(g, key_of(a, r->key, key));
        double v;
        if (!kv || (number_of(g, key, &v) && (v == r->neutral[0] || v == r->neutral[1])))
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
    if (!h->n_embd || !h->head_k)
        return bad(g, key_of(a, "embedding_length", key), h->n_embd, "width and head must be at least 1", err);
    if (!h->n_ctx_train)
        return bad(g, key_of(a, "context_length", key), h->n_ctx_train, "must be at least 1", err);
    if ((h->n_experts != 0) != (a->moe == INFER_ALWAYS))
        return infer_error_set(err, INFER_E_UNSUPPORTED, "%s.expert_count = %u: not known for this architecture",
                               a->name, h->n_experts);
    if (a->moe && (!h->n_experts_used || h->n_experts_used > h->n_experts))
        return bad(g, key_of(a, "expert_used_count", key), h->n_experts_used, "must be 1 to the expert count", err);
    if (a->moe ? !h->n_ff_expert : !h->n_ff)
        return bad(g, key_of(a, "feed_forward_length", key), h->n_ff, "must be at least 1", err);
    return INFER_OK;
}

/* What no model of these can do without is missing: the file is wrong. */
static infer_status needed(infer_status s, infer_error *err)
{
    if (s == INFER_E_NOT_FOUND && err)
        err->status = INFER_E_BAD_FILE;
    return s == INFER_E_NOT_FOUND ? INFER_E_BAD_FILE : s;
}

infer_status infer_hparams_load(const infer_gguf *g, infer_hparams *out, infer_error *err)
{
    infer_hparams h = {0};
    infer_str name;
    char key[96];
    INFER_TRY(needed(infer_gguf_string(g, "general.architecture", &name, err), err));
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
        INFER_TRY(fields[i].required ? needed(infer_gguf_u32(g, key, v, err), err)
                                     : infer_gguf_u32_or(g, key, 0, v, err));
        if (*v > fields[i].max)
            return bad(g, key, *v, "is out of range", err);
    }
    INFER_TRY(
        uniform_u32(g, key_of(h.arch, "attention.head_count_kv", key), h.n_layers, h.n_heads, &h.n_kv_heads, err));
    INFER_TRY(uniform_u32(g, key_of(h.arch, "feed_forward_length", key), h.n_layers, 0, &h.n_ff, err));
    if (h.n_ff > 1u << 24)
        return bad(g, key, h.n_ff, "is out of range", err);
    float base;
    INFER_TRY(
        needed(infer_gguf_f32(g, key_of(h.arch, "attention.layer_norm_rms_epsilon", key), &h.norm_eps, err), err));
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
