/* Rope frequencies with every scaling rule that a file can state. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/arch.h"
#include "quant/quant.h"

static const char *key_of(const infer_hparams *hp, const char *field, char buf[96])
{
    snprintf(buf, 96, "%s.%s", hp->arch->name, field);
    return buf;
}

/* The pair index at which a frequency turns `turns` times within the original context (Peng et al., eq. 23). */
static double yarn_pair(double dims, double base, double ctx, double turns)
{
    return dims * log(ctx / (turns * 2 * 3.14159265358979323846)) / (2 * log(base));
}

/* What the metadata says of scaling. */
typedef struct rope_scaling {
    int yarn;
    double factor;              /* positions are divided by it; 1: none */
    double ramp_low, ramp_high; /* YaRN: pairs between which its two rules are mixed */
} rope_scaling;

static infer_status read_yarn(const infer_gguf *g, const infer_hparams *hp, rope_scaling *s, float *magnitude,
                              infer_error *err)
{
    char key[96];
    float fast, slow, attn;
    uint32_t ctx;
    INFER_TRY(
        infer_gguf_u32_or(g, key_of(hp, "rope.scaling.original_context_length", key), hp->n_ctx_train, &ctx, err));
    INFER_TRY(infer_gguf_f32_or(g, key_of(hp, "rope.scaling.yarn_beta_fast", key), 32, &fast, err));
    INFER_TRY(infer_gguf_f32_or(g, key_of(hp, "rope.scaling.yarn_beta_slow", key), 1, &slow, err));
    INFER_TRY(infer_gguf_f32_or(g, key_of(hp, "rope.scaling.attn_factor", key), 1, &attn, err));
    if (!(fast > 0 && slow > 0 && attn > 0 && attn < 1e6f && ctx > 0) || hp->rope_base == 1)
        return infer_error_set(err, INFER_E_BAD_FILE, "%s.rope.scaling: YaRN's numbers must be positive",
                               hp->arch->name);
    s->ramp_low = fmax(0, floor(yarn_pair(hp->rope_dims, hp->rope_base, ctx, fast)));
    s->ramp_high = fmin(hp->rope_dims - 1, ceil(yarn_pair(hp->rope_dims, hp->rope_base, ctx, slow)));
    if (s->ramp_high <= s->ramp_low)
        s->ramp_high = s->ramp_low + 0.001;
    *magnitude = (float)((double)attn * (s->factor > 1 ? 0.1 * log(s->factor) + 1 : 1));
    return INFER_OK;
}

/* A factor without a type scales linearly; with the type "none" nothing is scaled. */
static infer_status read_scaling(const infer_gguf *g, const infer_hparams *hp, rope_scaling *s, float *magnitude,
                                 infer_error *err)
{
    char key[96];
    infer_str type = INFER_STR("linear");
    float factor, linear;
    INFER_TRY(infer_gguf_f32_or(g, key_of(hp, "rope.scale_linear", key), 0, &linear, err));
    INFER_TRY(infer_gguf_f32_or(g, key_of(hp, "rope.scaling.factor", key), linear, &factor, err));
    if (!(factor >= 0 && factor < 1e6f))
        return infer_error_set(err, INFER_E_BAD_FILE, "%s: must be a positive number", key);
    if (infer_gguf_find(g, key_of(hp, "rope.scaling.type", key)))
        INFER_TRY(infer_gguf_string(g, key, &type, err));
    *s = (rope_scaling){.factor = factor > 0 ? (double)factor : 1};
    *magnitude = 1;
    if (infer_str_eq(type, INFER_STR("linear")))
        return INFER_OK;
    if (infer_str_eq(type, INFER_STR("none"))) {
        s->factor = 1;
        return INFER_OK;
    }
    if (!infer_str_eq(type, INFER_STR("yarn")))
        return infer_error_set(err, INFER_E_UNSUPPORTED, "%s \"%.*s\" is not known (known: none, linear, yarn)", key,
                               (int)(type.n > 64 ? 64 : type.n), type.p);
    s->yarn = 1;
    return read_yarn(g, hp, s, magnitude, err);
}

infer_status infer_rope_table(const infer_gguf *g, const infer_hparams *hp, float *inv_freq, float *magnitude,
                              infer_error *err)
{
    uint32_t half = hp->rope_dims / 2;
    rope_scaling s = {0};
    INFER_TRY(read_scaling(g, hp, &s, magnitude, err));
    const infer_gguf_tensor *t = infer_gguf_tensor_find(g, "rope_freqs.weight");
    if (t && (t->format != INFER_FMT_F32 || t->rank != 1 || t->dims[0] != half))
        return infer_error_set(err, INFER_E_BAD_FILE, "rope_freqs.weight at byte %llu: must be f32[%u]",
                               (unsigned long long)t->offset, half);
    for (uint32_t i = 0; i < half; i++) {
        double f = pow(hp->rope_base, -2.0 * i / hp->rope_dims);
        float divisor = 1;
        if (t)
            memcpy(&divisor, t->data + 4 * (size_t)i, 4);
        if (!(divisor > 0 && divisor < 1e30f))
            return infer_error_set(err, INFER_E_BAD_FILE, "rope_freqs.weight: entry %u must be positive", i);
        f /= (double)divisor;
        double r = s.yarn ? fmin(1, fmax(0, (i - s.ramp_low) / (s.ramp_high - s.ramp_low))) : 1;
        inv_freq[i] = (float)(f / s.factor * r + f * (1 - r));
    }
    return INFER_OK;
}
