/* Shapes of published models out of the reference data's model-shapes.json. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "mkmodel.h"

/* Architectures of the list, and GGUF's for them. */
static const char *const arch_map[][2] = {
    {"llama", "llama"}, {"mistral", "llama"}, {"qwen2", "qwen2"}, {"qwen3", "qwen3"}, {"qwen3_moe", "qwen3moe"},
};

static const json_t *value(const json_t *model, const char *key)
{
    return json_object_get(json_object_get(json_object_get(model, "values"), key), "value");
}

static uint32_t whole(const json_t *model, const char *key)
{
    json_int_t v = json_integer_value(value(model, key));
    return v > 0 && v <= INT32_MAX ? (uint32_t)v : 0;
}

static const char *model_name(const json_t *model)
{
    const char *s = json_string_value(json_object_get(model, "model"));
    return s ? s : "?";
}

/* NULL where we have no such graph. Two rows of the list name no architecture. */
static const char *gguf_arch(const json_t *model)
{
    const char *s = json_string_value(value(model, "architecture"));
    if (!s)
        return strncmp(model_name(model), "Qwen2", 5) ? NULL : "qwen2";
    for (size_t i = 0; i < sizeof arch_map / sizeof arch_map[0]; i++)
        if (!strcmp(s, arch_map[i][0]))
            return arch_map[i][1];
    return NULL;
}

static infer_status fill(const json_t *model, model_shape *s, infer_error *err)
{
    const char *arch = gguf_arch(model);
    if (!arch)
        return infer_error_set(err, INFER_E_UNSUPPORTED, "%s has an architecture that is not supported",
                               model_name(model));
    snprintf(s->name, sizeof s->name, "%s", model_name(model));
    snprintf(s->arch, sizeof s->arch, "%s", arch);
    s->layers = whole(model, "layers");
    s->dim = whole(model, "hidden");
    s->heads = whole(model, "heads");
    s->kv_heads = whole(model, "kv_heads");
    s->head_dim = whole(model, "head_dim");
    s->ffn = whole(model, "ffn");
    s->vocab = whole(model, "vocab");
    s->max_position = whole(model, "max_position");
    s->experts = whole(model, "experts");
    s->experts_used = whole(model, "experts_per_token");
    s->moe_ffn = whole(model, "moe_ffn");
    s->rope_theta = json_number_value(value(model, "rope_theta"));
    s->norm_eps = json_number_value(value(model, "norm_eps"));
    s->tied = json_is_true(value(model, "tie_embeddings"));
    const json_t *r = value(model, "rope_scaling");
    const char *kind = json_string_value(json_object_get(r, "rope_type"));
    if (kind && !strcmp(kind, "llama3")) {
        s->rope_factor = json_number_value(json_object_get(r, "factor"));
        s->rope_low = json_number_value(json_object_get(r, "low_freq_factor"));
        s->rope_high = json_number_value(json_object_get(r, "high_freq_factor"));
        s->rope_original = json_number_value(json_object_get(r, "original_max_position_embeddings"));
    }
    return INFER_OK;
}

infer_status shape_find(const char *json_path, const char *name, model_shape *out, infer_error *err)
{
    json_error_t je;
    json_t *root = json_load_file(json_path, 0, &je);
    if (!root)
        return infer_error_set(err, INFER_E_IO, "read %s: %s", json_path, je.text);
    const json_t *models = json_object_get(root, "models"), *found = NULL;
    infer_status s = INFER_OK;
    size_t matches = 0;
    for (size_t i = 0; i < json_array_size(models); i++) {
        const json_t *m = json_array_get(models, i);
        if (!name)
            printf("%-28s %s\n", model_name(m), gguf_arch(m) ? gguf_arch(m) : "(not supported)");
        else if (!strcasecmp(model_name(m), name)) {
            found = m;
            matches = 1;
            break;
        } else if (!strncasecmp(model_name(m), name, strlen(name))) {
            found = m;
            matches++;
        }
    }
    if (name && matches == 1)
        s = fill(found, out, err);
    else if (name)
        s = infer_error_set(err, INFER_E_NOT_FOUND, "%s: %s model begins with '%s'; --list names them", json_path,
                            matches ? "more than one" : "no", name);
    json_decref(root);
    return s;
}
