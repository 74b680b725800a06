/* Mixtures of formats by file type. Facts as of llama.cpp's quantizer in 2025. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "model/gguf_recipe.h"
#include "quant/quant.h"

/* Layers that a rule is for. SPREAD: the first and last eighth, and every third between. */
enum { NEVER, ALWAYS, FIRST_2, FIRST_4, FIRST_8TH, FIRST_16TH, SPREAD };

typedef struct rule {
    int when;
    infer_format then, otherwise; /* NONE: the recipe's base */
} rule;

struct infer_gguf_recipe {
    const char *name;
    uint32_t file_type;
    infer_format base;
    rule v, down, o; /* attn_v, ffn_down, attn_output */
};

#define K(n) INFER_FMT_Q##n##_K

static const infer_gguf_recipe recipes[] = {
    {"f32", 0, INFER_FMT_F32, {0}, {0}, {0}},
    {"f16", 1, INFER_FMT_F16, {0}, {0}, {0}},
    {"bf16", 32, INFER_FMT_BF16, {0}, {0}, {0}},
    {"q4_0", 2, INFER_FMT_Q4_0, {0}, {0}, {0}},
    {"q4_1", 3, INFER_FMT_Q4_1, {0}, {0}, {0}},
    {"q5_0", 8, INFER_FMT_Q5_0, {0}, {0}, {0}},
    {"q5_1", 9, INFER_FMT_Q5_1, {0}, {0}, {0}},
    {"q8_0", 7, INFER_FMT_Q8_0, {0}, {0}, {0}},
    {"q2_k", 10, K(2), {ALWAYS, K(3), 0}, {ALWAYS, K(3), 0}, {ALWAYS, K(3), 0}},
    {"q3_k_s", 11, K(3), {0}, {0}, {0}},
    {"q3_k_m", 12, K(3), {FIRST_2, K(5), K(4)}, {FIRST_16TH, K(5), K(4)}, {ALWAYS, K(4), 0}},
    {"q3_k_l", 13, K(3), {ALWAYS, K(5), 0}, {ALWAYS, K(5), 0}, {ALWAYS, K(5), 0}},
    {"q4_k_s", 14, K(4), {FIRST_4, K(5), 0}, {FIRST_8TH, K(5), 0}, {0}},
    {"q4_k_m", 15, K(4), {SPREAD, K(6), 0}, {SPREAD, K(6), 0}, {0}},
    {"q5_k_s", 16, K(5), {0}, {0}, {0}},
    {"q5_k_m", 17, K(5), {SPREAD, K(6), 0}, {SPREAD, K(6), 0}, {0}},
    {"q6_k", 18, K(6), {0}, {0}, {0}},
    {"mxfp4_moe", 38, INFER_FMT_MXFP4, {0}, {0}, {0}},
};

/* Where a row is no multiple of 256. */
static const infer_format fallbacks[][2] = {
    {K(2), INFER_FMT_Q4_0}, {K(3), INFER_FMT_Q4_0}, {K(4), INFER_FMT_Q5_0},
    {K(5), INFER_FMT_Q5_1}, {K(6), INFER_FMT_Q8_0},
};

const infer_gguf_recipe *infer_gguf_recipe_at(uint32_t i)
{
    return i < sizeof recipes / sizeof recipes[0] ? &recipes[i] : NULL;
}

const infer_gguf_recipe *infer_gguf_recipe_by_name(const char *name)
{
    for (uint32_t i = 0; infer_gguf_recipe_at(i); i++)
        if (!strcasecmp(recipes[i].name, name))
            return &recipes[i];
    return NULL;
}

const char *infer_gguf_recipe_name(const infer_gguf_recipe *r)
{
    return r->name;
}

uint32_t infer_gguf_recipe_file_type(const infer_gguf_recipe *r)
{
    return r->file_type;
}

static int rule_applies(int when, uint32_t layer, uint32_t n)
{
    switch (when) {
    case ALWAYS:
        return 1;
    case FIRST_2:
        return layer < 2;
    case FIRST_4:
        return layer < 4;
    case FIRST_8TH:
        return layer < n / 8;
    case FIRST_16TH:
        return layer < n / 16;
    case SPREAD:
        return layer < n / 8 || layer >= 7 * n / 8 || (layer - n / 8) % 3 == 2;
    default:
        return 0;
    }
}

static infer_format apply(const rule *r, infer_format base, uint32_t layer, uint32_t n)
{
    infer_format f = rule_applies(r->when, layer, n) ? r->then : r->otherwise;
    return f != INFER_FMT_NONE ? f : base;
}

static infer_format pick_value(const infer_gguf_recipe *r, const infer_gguf_recipe_facts *m, uint32_t layer)
{
    uint32_t sharing = m->n_kv_heads ? m->n_heads / m->n_kv_heads : 1;
    infer_format f = apply(&r->v, r->base, layer, m->n_layers);
    if (r->base == K(2) && sharing >= 4)
        f = K(4);
    if (m->n_layers == 80 && sharing > 1 && (f == K(3) || f == K(4))) /* the 70B models: attn_v is small there */
        f = K(5);
    return m->n_experts == 8 ? INFER_FMT_Q8_0 : f;
}

/* The mixture's choice for a matrix, before the fallback for odd rows. */
static infer_format pick(const infer_gguf_recipe *r, const infer_gguf_recipe_facts *m, const char *name, uint32_t rank,
                         uint64_t row)
{
    uint32_t layer = 0;
    int is_output = !strcmp(name, "output.weight") || (m->tied && !strcmp(name, "token_embd.weight"));
    if (r->base == INFER_FMT_MXFP4)
        return rank > 2 && !is_output ? INFER_FMT_MXFP4 : INFER_FMT_Q8_0;
    if (is_output) {
        if (row % infer_format_get(r->base)->block_elems)
            return INFER_FMT_Q8_0;
        return r->base == INFER_FMT_Q8_0 ? r->base : K(6);
    }
    const char *dot = sscanf(name, "blk.%u.", &layer) == 1 ? strchr(name + 4, '.') : NULL;
    const char *part = dot ? dot + 1 : name;
    if (!strcmp(part, "attn_v.weight"))
        return pick_value(r, m, layer);
    if (!strcmp(part, "attn_k.weight") && m->n_experts == 8)
        return INFER_FMT_Q8_0;
    if (!strncmp(part, "ffn_down", 8))
        return apply(&r->down, r->base, layer, m->n_layers);
    if (!strcmp(part, "attn_output.weight")) {
        if (m->n_experts == 8) /* q3_k_l has no such rule */
            return (r->base == K(2) || r->base == K(3) || r->base == K(4)) && r->o.then != K(5) ? K(5) : r->base;
        return apply(&r->o, r->base, layer, m->n_layers);
    }
    return r->base;
}

infer_format infer_gguf_recipe_format(const infer_gguf_recipe *r, const infer_gguf_recipe_facts *m, const char *name,
                                      uint32_t rank, const uint64_t *dims)
{
    size_t n = strlen(name);
    if (rank < 2 || n < 6 || strcmp(name + n - 6, "weight") || strstr(name, "_norm.weight") ||
        strstr(name, "ffn_gate_inp.weight"))
        return INFER_FMT_F32;
    if (infer_format_get(r->base)->is_float)
        return r->base;
    infer_format f = pick(r, m, name, rank, dims[0]);
    for (size_t i = 0; i < sizeof fallbacks / sizeof fallbacks[0]; i++)
        if (f == fallbacks[i][0] && dims[0] % 256) {
            f = fallbacks[i][1];
            break;
        }
    return dims[0] % infer_format_get(f)->block_elems ? INFER_FMT_F16 : f;
}
