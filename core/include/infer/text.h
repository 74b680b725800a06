/*
 * Text in and out of a model: tokenizers and chat templates. Part of the engine API.
 * Objects are immutable after creation: any number of threads may use one at once.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_TEXT_H
#define INFER_TEXT_H

#include <stddef.h>
#include <stdint.h>

#include <infer/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Tokenizer ------------------------------------------------------------------------------------------- */

typedef struct infer_tokenizer infer_tokenizer;

/* What a vocabulary entry is (the values of GGUF's tokenizer.ggml.token_type). */
#define INFER_TOKEN_NORMAL       1
#define INFER_TOKEN_UNKNOWN      2
#define INFER_TOKEN_CONTROL      3
#define INFER_TOKEN_USER_DEFINED 4
#define INFER_TOKEN_UNUSED       5
#define INFER_TOKEN_BYTE         6

/* A string of n bytes, which may hold NUL. */
typedef struct infer_text {
    const char *p;
    uint64_t n;
} infer_text;

/* A vocabulary as a model file states it. Borrowed during infer_tokenizer_create_vocab only. Ids that are absent are
 * -1. */
typedef struct infer_vocab {
    const char *model;        /* "gpt2" (byte-level BPE) or "llama" (SentencePiece BPE) */
    const char *pre;          /* pre-tokenizer name such as "llama-bpe", "qwen2", "smollm"; NULL for SentencePiece */
    uint32_t n_tokens;        /* entries in tokens, scores and types */
    const infer_text *tokens; /* piece texts: byte-level alphabet for "gpt2", U+2581 as space for "llama" */
    const float *scores;      /* NULL, or one a token ("llama": higher merges first) */
    const int32_t *types;     /* NULL (all normal), or INFER_TOKEN_* */
    uint32_t n_merges;
    const infer_text *merges; /* "left right" in rank order; NULL for "llama" */
    int32_t bos, eos, unk, sep, pad, eot;
    int32_t add_bos, add_eos;         /* 0, 1, or -1: not stated (the kind's own default) */
    int32_t add_space_prefix;         /* "llama": 0, 1, or -1 (default 1) */
    int32_t remove_extra_whitespaces; /* "llama": 0, 1, or -1 (default 0) */
} infer_vocab;

/* INFER_E_UNSUPPORTED names an unknown model or pre-tokenizer (never a silent fallback); INFER_E_BAD_FILE an
 * inconsistent vocabulary: a special id or type out of range, a merge of what are no pieces, a score that is no number,
 * BOS or EOS to be added that there is not; INFER_E_TOO_LARGE; INFER_E_NO_MEMORY. Some 5 ms for 50,000 tokens. */
INFER_API infer_status infer_tokenizer_create_vocab(const infer_vocab *v, infer_tokenizer **out, infer_error *err);

/* From the text of a Hugging Face tokenizer.json, and tokenizer_config.json or NULL: of that, bos_token and eos_token,
 * and add_bos_token and add_eos_token where true and the post-processor adds none. INFER_E_BAD_FILE with the JSON path
 * of what is wrong; INFER_E_UNSUPPORTED names a component, or a construct in a pattern, that is not known. Memory is at
 * most a small multiple of n. */
INFER_API infer_status infer_tokenizer_create_json(const char *json, size_t n, const char *config, size_t config_n,
                                                   infer_tokenizer **out, infer_error *err);
INFER_API void infer_tokenizer_destroy(infer_tokenizer *t);

/* Flags of encode. */
#define INFER_ENCODE_ADD_SPECIAL   1u /* put BOS/EOS where the tokenizer says so */
#define INFER_ENCODE_PARSE_SPECIAL 2u /* special tokens' texts inside `text` become those tokens */

/* Encodes n bytes of UTF-8; each ill-formed sequence is read as U+FFFD. Without PARSE_SPECIAL the names of special
 * tokens are ordinary text; user-defined tokens are found in any case. *ids is an owned array (infer_ids_free) of
 * *n_ids. Time O(n log n) for any text with the pre-tokenizers of model files; a pattern of tokenizer.json that runs
 * away ends with INFER_E_TOO_LARGE, as does n over 2^30. INFER_E_NO_MEMORY. Any thread. */
INFER_API infer_status infer_tokenizer_encode(const infer_tokenizer *t, const char *text, size_t n, uint32_t flags,
                                              int32_t **ids, size_t *n_ids, infer_error *err);
INFER_API void infer_ids_free(int32_t *ids);

#define INFER_DECODE_SKIP_SPECIAL 1u /* control tokens give no text */
#define INFER_DECODE_CONTINUE     2u /* the ids go on from earlier text: a leading space is kept that would else go */

/* Decodes ids to an owned NUL-terminated string of *n bytes (infer_text_free), always valid UTF-8: an ill-formed
 * sequence of bytes becomes one U+FFFD, of byte-fallback tokens one for each (SentencePiece's way; the reference
 * library replaces also the well-formed neighbours in a run of them, which could not be streamed). A leading space that
 * the tokenizer adds when encoding goes again, unless CONTINUE. An id out of range is INFER_E_INVALID. */
INFER_API infer_status infer_tokenizer_decode(const infer_tokenizer *t, const int32_t *ids, size_t n_ids,
                                              uint32_t flags, char **text, size_t *n, infer_error *err);
INFER_API void infer_text_free(char *p);

/* Streaming decode: gives the text of each id as soon as it is complete UTF-8. What the pieces concatenate to equals
 * decode of all ids, whatever the cuts. One owner thread. */
typedef struct infer_detok infer_detok;
INFER_API infer_status infer_detok_create(const infer_tokenizer *t, uint32_t flags, infer_detok **out);
/* *text is borrowed until the next call, *n may be 0 (nothing complete yet). No allocation once warmed up. */
INFER_API infer_status infer_detok_push(infer_detok *d, int32_t id, const char **text, size_t *n);
/* What is still held back (an incomplete character as U+FFFD, one for each byte-fallback token); afterwards the object
 * is as new. */
INFER_API infer_status infer_detok_flush(infer_detok *d, const char **text, size_t *n);
INFER_API void infer_detok_destroy(infer_detok *d);

/* Ids are 0 .. n - 1. */
INFER_API uint32_t infer_tokenizer_n_tokens(const infer_tokenizer *t);
/* The piece's raw text (as in the vocabulary file), borrowed; NULL when out of range. */
INFER_API const char *infer_tokenizer_piece(const infer_tokenizer *t, int32_t id, size_t *n);
/* The bytes that this id stands for inside a text (nothing is stripped, a control token gives its name), in buf of cap
 * bytes; returns the length needed (may exceed cap), 0 out of range. */
INFER_API size_t infer_tokenizer_token_bytes(const infer_tokenizer *t, int32_t id, char *buf, size_t cap);
/* INFER_TOKEN_*; 0 when out of range. */
INFER_API int32_t infer_tokenizer_type(const infer_tokenizer *t, int32_t id);
/* The id of an exact piece text, -1 if there is none; of several, one that the model has, else an added one. */
INFER_API int32_t infer_tokenizer_find(const infer_tokenizer *t, const char *piece, size_t n);
INFER_API int32_t infer_tokenizer_bos(const infer_tokenizer *t); /* -1: none */
INFER_API int32_t infer_tokenizer_eos(const infer_tokenizer *t);
/* Whether generation ends at this id: EOS, EOT, and end-of-turn control tokens known by name (<|im_end|>, <|eot_id|>,
 * …). */
INFER_API int32_t infer_tokenizer_is_end(const infer_tokenizer *t, int32_t id);

/* ---- Chat templates (Jinja) ------------------------------------------------------------------------------- */

typedef struct infer_template infer_template;

/* Compiles a Jinja template as transformers sets Jinja2 up: trim_blocks and lstrip_blocks, loop controls, generation
 * blocks, raise_exception, strftime_now, tojson without HTML escapes, and the sandbox that lets nothing change a list
 * or dict. It renders as Python's Jinja2 3.1 does, with these differences: integers have 64 bits, and a result beyond
 * is an error (longer ones from the variables or the template keep their digits, to be printed and compared); |safe and
 * |escape mark no string for later escaping, as a prompt is no HTML; functions and bound methods print without an
 * address. An unknown tag, filter, test, function or method that the template names is INFER_E_UNSUPPORTED with its
 * name and line, even where it would never run (but not a function whose name the template tests with `is defined`); a
 * syntax error or invalid UTF-8 is INFER_E_BAD_FILE; more than 1 MiB, 10,000 names or 200 levels of nesting
 * INFER_E_TOO_LARGE. */
INFER_API infer_status infer_template_create(const char *src, size_t n, infer_template **out, infer_error *err);
INFER_API void infer_template_destroy(infer_template *t);

typedef struct infer_template_options {
    uint64_t max_steps;  /* evaluation steps allowed; 0: 10 million. Every 64 bytes copied or searched are one, too */
    uint64_t max_output; /* bytes allowed; 0: 16 MiB */
    int64_t now;         /* seconds since the epoch that strftime_now sees, as UTC; 0: the clock, local time */
} infer_template_options;

/* Renders with the variables of a JSON object in UTF-8 ("messages", "tools", "add_generation_prompt", "bos_token", …;
 * order of keys is kept, an unpaired surrogate is U+FFFD). *out is owned (infer_text_free), valid UTF-8, *out_n its
 * length. A raise_exception call is INFER_E_INVALID with "template line N: the template refuses: MESSAGE"; an operation
 * that Python refuses, and a wrong JSON text, INFER_E_INVALID with line and reason; a limit INFER_E_TOO_LARGE: of
 * steps, output, 64 MiB a string, 256 MiB of working memory, 200 levels of data and calls. Any number of threads may
 * render one template; 512 KiB of stack are enough. */
INFER_API infer_status infer_template_render(const infer_template *t, const char *vars_json, size_t vars_n,
                                             const infer_template_options *opt, char **out, size_t *out_n,
                                             infer_error *err);

#ifdef __cplusplus
}
#endif
#endif
