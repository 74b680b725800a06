/*
 * Which format each tensor of a model file gets when the file as a whole is "q4_k_m" and the like: the mixtures that
 * llama.cpp's quantizer makes by default (without an importance matrix), so that files of the same name are comparable.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_MODEL_GGUF_RECIPE_H
#define INFER_MODEL_GGUF_RECIPE_H

#include <stdint.h>

#include <infer/quant.h>

typedef struct infer_gguf_recipe infer_gguf_recipe;

/* What a mixture depends on. */
typedef struct infer_gguf_recipe_facts {
    uint32_t n_layers, n_heads, n_kv_heads, n_experts;
    int tied; /* the file has no output.weight */
} infer_gguf_recipe_facts;

/* By name, any case: f32 f16 bf16 q4_0 q4_1 q5_0 q5_1 q8_0 q2_k q3_k_s q3_k_m q3_k_l q4_k_s q4_k_m q5_k_s q5_k_m q6_k
 * mxfp4_moe; NULL for others. Constant data. infer_gguf_recipe_at lists them, NULL past the end. */
const infer_gguf_recipe *infer_gguf_recipe_by_name(const char *name);
const infer_gguf_recipe *infer_gguf_recipe_at(uint32_t i);
const char *infer_gguf_recipe_name(const infer_gguf_recipe *r);
/* The number for general.file_type. */
uint32_t infer_gguf_recipe_file_type(const infer_gguf_recipe *r);

/* The format of the tensor with this GGUF name and shape: F32 for vectors, norms and expert routers, otherwise by the
 * mixture, and where a row is no multiple of the block, by its fallback (in the end F16). */
infer_format infer_gguf_recipe_format(const infer_gguf_recipe *r, const infer_gguf_recipe_facts *m, const char *name,
                                      uint32_t rank, const uint64_t *dims);

#endif
