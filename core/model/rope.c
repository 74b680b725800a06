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

infer_status infer_rope_table(const infer_gguf *g, const infer_hparams *hp, float *inv_freq, float *magnitude,
                              infer_error *err)
{
    char key[96];
    infer_str type = INFER_STR("none");
    float factor = 0, linear = 0;
    uint32_t orig = 0;
    uint32_t half = hp->rope_dims / 2;
    if (infer_gguf_find(g, key_of(hp, "rope.scaling.type", key)))
        INFER_TRY(infer_gguf_string(g, key, &type, err));
    INFER_TRY(infer_gguf_f32_or(g, key_of(hp, "rope.scaling.factor", key), 0, &factor, err));
    INFER_TRY(infer_gguf_f32_or(g, key_of(hp, "rope.scale_linear", key), 0, &linear, err));
    INFER_TRY(
        infer_gguf_u32_or(g, key_of(hp, "rope.scaling.original_context_length", key), hp->n_ctx_train, &orig, err));
    int yarn = infer_str_eq(type, INFER_STR("yarn"));
    int lin = infer_str_eq(type, INFER_STR("linear"));
    if (!yarn && !lin && !infer_str_eq(type, INFER_STR("none")))
        return infer_error_set(err, INFER_E_UNSUPPORTED, "rope.scaling.type \"%.*s\" is not known",
                               (int)(type.n > 64 ? 64 : type.n), type.p);
    if (!factor)
        factor = linear;
    double scale = (yarn || lin || linear) && factor > 0 ? factor : 1;
    double ramp_low = 0, ramp_high = 0;
    *magnitude = 1;
    if (yarn) {
        float fast, slow, attn;
        INFER_TRY(infer_gguf_f32_or(g, key_of(hp, "rope.scaling.yarn_beta_fast", key), 32, &fast, err));
        INFER_TRY(infer_gguf_f32_or(g, key_of(hp, "rope.scaling.yarn_beta_slow", key), 1, &slow, err));
        INFER_TRY(infer_gguf_f32_or(g, key_of(hp, "rope.scaling.attn_factor", key), 1, &attn, err));
        if (!(fast > 0 && slow > 0 && attn > 0 && orig > 0))
            return infer_error_set(err, INFER_E_BAD_FILE, "rope.scaling: YaRN's numbers must be positive");
        ramp_low = fmax(0, floor(yarn_pair(hp->rope_dims, hp->rope_base, orig, fast)));
        ramp_high = fmin(hp->rope_dims - 1, ceil(yarn_pair(hp->rope_dims, hp->rope_base, orig, slow)));
        if (ramp_high <= ramp_low)
            ramp_high = ramp_low + 0.001;
        *magnitude = (float)(attn * (scale > 1 ? 0.1 * log(scale) + 1 : 1));
    }
    for (uint32_t i = 0; i < half; i++) {
        double f = pow(hp->rope_base, -2.0 * i / hp->rope_dims);
        if (yarn) {
            double r = fmin(1, fmax(0, (i - ramp_low) / (ramp_high - ramp_low)));
            f = f / scale * r + f * (1 - r);
        } else {
            f /= scale;
        }
        inv_freq[i] = (float)f;
    }
    const infer_gguf_tensor *t = infer_gguf_tensor_find(g, "rope_freqs.weight");
    if (!t)
        return INFER_OK;
    if (t->format != INFER_FMT_F32 || t->rank != 1 || t->dims[0] != half)
        return infer_error_set(err, INFER_E_BAD_FILE, "rope_freqs.weight: must be f32[%u]", half);
    for (uint32_t i = 0; i < half; i++) {
        float d;
        memcpy(&d, t->data + 4 * (size_t)i, 4);
        if (!(d > 0 && d < 1e30f))
            return infer_error_set(err, INFER_E_BAD_FILE, "rope_freqs.weight: entry %u must be positive", i);
        inv_freq[i] = (float)(pow(hp->rope_base, -2.0 * i / hp->rope_dims) / scale / d);
    }
    return INFER_OK;
}
