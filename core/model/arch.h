/*
 * Decoder architectures as rows of facts, a model's numbers, and the graph builder that reads both. A new architecture
 * of the same family is a new row. SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_MODEL_ARCH_H
#define INFER_MODEL_ARCH_H

#include "graph/graph.h"
#include "model/gguf.h"

/* Whether a tensor stands in the file. */
enum { INFER_NEVER, INFER_OPTIONAL, INFER_ALWAYS };

/* A metadata key under "NAME." that would change the result if it were ignored, with up to two values that would not.
 * Numbers and bools; a list of the key's own says nothing neutral. */
typedef struct infer_refused_key {
    const char *key;
    double neutral[2];
} infer_refused_key;

typedef struct infer_arch {
    const char *name;       /* general.architecture */
    uint32_t rope_kind;     /* INFER_ROPE_*, as the file's rows are ordered */
    uint8_t qkv_bias;       /* INFER_NEVER … */
    uint8_t out_bias;       /* of attn_output */
    uint8_t qk_norm;        /* RMS norm of every q and k head before rope */
    uint8_t moe;            /* routed experts instead of the dense MLP */
    uint32_t route_scoring; /* INFER_ROUTE_* */
    uint8_t route_normalise;
    uint32_t act;                     /* INFER_ACT_* of the gated MLP */
    const infer_refused_key *refused; /* ends with a NULL key: a file with one at another value is refused by name */
} infer_arch;

/* NULL for an unknown name. */
const infer_arch *infer_arch_find(infer_str name);
/* Names of all rows, comma-separated, for messages. */
void infer_arch_names(char *buf, size_t cap);

typedef struct infer_hparams {
    const infer_arch *arch;
    uint32_t n_layers, n_embd, n_vocab, n_heads, n_kv_heads, head_k, head_v, n_ff, n_ctx_train;
    uint32_t n_experts, n_experts_used, n_ff_expert;
    uint32_t window; /* sliding window, 0: none */
    uint32_t rope_dims;
    float norm_eps;
    double rope_base;
    float rope_magnitude; /* on sine and cosine (YaRN); 1 otherwise */
    int tied;             /* the output matrix is the token table */
} infer_hparams;

/* Reads and checks the metadata. INFER_E_BAD_FILE for what is missing or out of range, INFER_E_UNSUPPORTED for an
 * unknown architecture or rope scaling, by name. */
infer_status infer_hparams_load(const infer_gguf *g, infer_hparams *out, infer_error *err);

/* rope_dims / 2 inverse frequencies with the file's scaling applied: base^(-2i/R) (Su et al., arXiv:2104.09864),
 * linear, YaRN (Peng et al., arXiv:2309.00071), and the factors of a rope_freqs tensor (Llama 3's rule as the file
 * states it). */
infer_status infer_rope_table(const infer_gguf *g, const infer_hparams *hp, float *inv_freq, float *magnitude,
                              infer_error *err);

/* One weight that the graph reads: a tensor of the file, or constants that the core computed. */
typedef struct infer_weight_src {
    const infer_gguf_tensor *tensor; /* NULL: data */
    const float *data;               /* f32[shape[0]], owned by the model's weight list */
    uint32_t rank;
    int64_t shape[4];
    infer_format format;
    int recodes; /* a matrix of a block whose codes may be others than the file's */
    char name[64];
} infer_weight_src;

typedef struct infer_weight_list {
    infer_weight_src *p;
    uint32_t n, cap;
} infer_weight_list;

/* Lists every weight of the model, checking presence and shape of each tensor; a tensor of the file that no row asks
 * for is INFER_E_UNSUPPORTED by name (silently ignoring it would give wrong text). Free with infer_weight_list_free. */
infer_status infer_weights_list(const infer_gguf *g, infer_hparams *hp, infer_weight_list *out, infer_error *err);
void infer_weight_list_free(infer_weight_list *l);
/* Index of a weight by name, -1: none. */
int32_t infer_weights_find(const infer_weight_list *l, const char *name);

/* The capacities that a graph is built for, and the layout of the step block (byte offsets; see decoder.c). */
typedef struct infer_step_layout {
    uint32_t max_tokens, max_seqs, max_logits, max_blocks, max_bias;
    uint64_t counts, ids, pos, slots, adapter_row, logit_rows, kv_len, q_start, block_table, sample_rows, bias, bytes;
} infer_step_layout;
/* Fills the offsets (each a multiple of 256) and `bytes` from the capacities. INFER_E_TOO_LARGE. */
infer_status infer_step_layout_make(infer_step_layout *l, infer_error *err);

typedef struct infer_decoder_options {
    infer_step_layout step;
    uint32_t block_size;
    uint64_t n_blocks;
    infer_format k_format, v_format;
    const uint32_t *kv_layout; /* of each layer's planes; NULL: canonical */
    uint32_t n_top;            /* log-probabilities a row, 0: none */
    infer_format act_format;   /* what x may become inside products of weights that are recoded; NONE: as usual */
} infer_decoder_options;

/* The values that the engine reads back. */
typedef struct infer_decoder_outputs {
    infer_val hidden, logits, ids, logprobs, top_ids, top_logprobs;
} infer_decoder_outputs;

/* Builds the graph of a decoder-only model: ids -> logits -> sampled ids. */
infer_status infer_decoder_build(const infer_hparams *hp, const infer_weight_list *w, const infer_decoder_options *opt,
                                 infer_graph *g, infer_decoder_outputs *out, infer_error *err);

#endif
