/* Private to mkmodel. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TOOLS_MKMODEL_H
#define INFER_TOOLS_MKMODEL_H

#include "model/gguf_write.h"

/* What the file will be; the names are those of a transformers configuration. */
typedef struct model_shape {
    char name[64];
    char arch[16]; /* GGUF's: llama, qwen2, qwen3, qwen3moe */
    uint32_t layers, dim, heads, kv_heads, head_dim, ffn, vocab, max_position;
    uint32_t experts, experts_used, moe_ffn;
    double rope_theta, norm_eps;
    int tied;
    /* Llama 3 rope scaling; factor 0: none */
    double rope_factor, rope_low, rope_high, rope_original;
} model_shape;

/* Fills a shape from the list of published shapes (JSON, see --data). name: a model's name, any case, or an unambiguous
 * beginning; NULL prints the names with their architecture. */
infer_status shape_find(const char *json_path, const char *name, model_shape *out, infer_error *err);

/* Tokenizer keys. A byte-level BPE vocabulary made here, or (from != NULL) that of another file, both padded with
 * unused tokens to n_vocab. INFER_E_INVALID where n_vocab is too small. */
infer_status vocab_write(infer_gguf_writer *w, const infer_gguf *from, const char *arch, uint32_t n_vocab,
                         infer_error *err);

/* Random bits, xorshift128+ (Vigna 2014). */
typedef struct random_bits {
    uint64_t s[2];
} random_bits;

/* The same seed gives the same bits everywhere; every seed is good. */
void random_seed(random_bits *r, uint64_t seed);

/* Writes n elements of random weights, mean 0 (0.1 sigma for the formats that cannot) and RMS 0.02, as valid blocks.
 * n is a multiple of the block. INFER_E_UNSUPPORTED for formats without a rule. */
infer_status fill_random(infer_format format, random_bits *r, void *dst, uint64_t n);

#endif
