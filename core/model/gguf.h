/*
 * Reader of GGUF model files, versions 2 and 3, one file or split into parts (GGUF specification, ggml/docs/gguf.md;
 * split keys as llama.cpp's gguf-split writes them). It knows the container, not what a model's keys mean; the
 * tokenizer keys are the exception (infer_gguf_vocab).
 *
 * Everything is checked before it is used: afterwards every view lies inside its file. Names, strings and arrays are
 * views into the mapping; host memory used is bounded by a small multiple (about 13) of the bytes of metadata that were
 * read, whatever counts the file claims. An opened file is immutable: any thread may read it.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_MODEL_GGUF_H
#define INFER_MODEL_GGUF_H

#include <stddef.h>
#include <stdint.h>

#include <infer/quant.h>
#include <infer/text.h>

#include "base/buf.h"
#include "base/error.h"

/* Types of values, as the specification numbers them. */
enum {
    INFER_GGUF_U8 = 0,
    INFER_GGUF_I8 = 1,
    INFER_GGUF_U16 = 2,
    INFER_GGUF_I16 = 3,
    INFER_GGUF_U32 = 4,
    INFER_GGUF_I32 = 5,
    INFER_GGUF_F32 = 6,
    INFER_GGUF_BOOL = 7,
    INFER_GGUF_STRING = 8,
    INFER_GGUF_ARRAY = 9,
    INFER_GGUF_U64 = 10,
    INFER_GGUF_I64 = 11,
    INFER_GGUF_F64 = 12,
    INFER_GGUF_TYPE_COUNT = 13
};

/* Stated limits: beyond them a file is refused with INFER_E_TOO_LARGE. */
#define INFER_GGUF_MAX_KV      65536u
#define INFER_GGUF_MAX_TENSORS 1048576u /* of all parts */

typedef struct infer_gguf infer_gguf;

/* One key with its value, in file order. `value` is unaligned: a scalar's bytes, a string's bytes (n of them), or an
 * array's elements (n of them, of elem_type; strings each as u64 length and bytes). */
typedef struct infer_gguf_kv {
    infer_str key;
    uint32_t type, elem_type;
    uint64_t n;
    const uint8_t *value;
    uint64_t value_bytes; /* as stored, with the length or element header that precedes `value` left out */
    uint64_t offset;      /* of the value in its file, for messages */
} infer_gguf_kv;

/* dims[0] is the row length (the fastest axis), absent dims are 1: a weight [n][k] has dims {k, n}. */
typedef struct infer_gguf_tensor {
    infer_str name;
    infer_format format;
    uint32_t rank; /* 1..4 */
    uint64_t dims[4];
    uint64_t n_elems, bytes;
    const uint8_t *data; /* aligned to general.alignment where the file's start is */
    uint64_t offset;     /* of data in its file */
    uint32_t part;       /* which file, from 0 */
} infer_gguf_tensor;

/* A file's bytes in memory. */
typedef struct infer_gguf_bytes {
    const void *p;
    uint64_t n;
} infer_gguf_bytes;

/* Opens path, and where it is NAME-00001-of-0000N.gguf of a split model, the N - 1 others beside it. Errors name file,
 * field and byte: INFER_E_BAD_FILE (wrong content), INFER_E_UNSUPPORTED (version 1, big-endian, arrays of arrays, a
 * tensor type that core/quant has not, a part of a split model that is not the first), INFER_E_TOO_LARGE (the limits
 * above), INFER_E_NOT_FOUND and INFER_E_IO (also for a missing part), INFER_E_NO_MEMORY. */
infer_status infer_gguf_open(const char *path, infer_gguf **out, infer_error *err);
/* The same from memory, borrowed until close: all parts of a model in order. */
infer_status infer_gguf_open_bytes(const infer_gguf_bytes *parts, uint32_t n_parts, infer_gguf **out, infer_error *err);
/* NULL is allowed. Every view obtained from g ends here. */
void infer_gguf_close(infer_gguf *g);

/* 2 or 3; files of a split model. */
uint32_t infer_gguf_version(const infer_gguf *g);
uint32_t infer_gguf_n_parts(const infer_gguf *g);
/* Bytes of all parts together. */
uint64_t infer_gguf_file_bytes(const infer_gguf *g);
/* A part's bytes: the whole mapping, page-aligned where it was opened by path. */
void infer_gguf_part_bytes(const infer_gguf *g, uint32_t part, const uint8_t **p, uint64_t *n);

/* Keys of the first part, by index in file order (NULL past the end) or by name (NULL where absent). */
uint32_t infer_gguf_n_kv(const infer_gguf *g);
const infer_gguf_kv *infer_gguf_kv_at(const infer_gguf *g, uint32_t i);
const infer_gguf_kv *infer_gguf_find(const infer_gguf *g, const char *key);

/* Typed values. INFER_E_NOT_FOUND where the key is absent; INFER_E_BAD_FILE where it has another type or a value out
 * of range: the text names key, offset and both types. Any integer type will do for u32, f64 for f32. The *_or forms
 * give `fallback` where the key is absent. *v is written on success only. */
infer_status infer_gguf_u32(const infer_gguf *g, const char *key, uint32_t *v, infer_error *err);
infer_status infer_gguf_u32_or(const infer_gguf *g, const char *key, uint32_t fallback, uint32_t *v, infer_error *err);
infer_status infer_gguf_f32(const infer_gguf *g, const char *key, float *v, infer_error *err);
infer_status infer_gguf_f32_or(const infer_gguf *g, const char *key, float fallback, float *v, infer_error *err);
infer_status infer_gguf_bool(const infer_gguf *g, const char *key, int *v, infer_error *err);
infer_status infer_gguf_bool_or(const infer_gguf *g, const char *key, int fallback, int *v, infer_error *err);
/* A view, not NUL-terminated. */
infer_status infer_gguf_string(const infer_gguf *g, const char *key, infer_str *v, infer_error *err);
/* n integers from an array of exactly n, or from one scalar that stands for all (per-layer settings). */
infer_status infer_gguf_u32_list(const infer_gguf *g, const char *key, uint32_t n, uint32_t *v, infer_error *err);

/* Element i of an array of numbers; 0 where i or the type is out of range, else 1. Integers and bools for _i64, these
 * and floats for _f64. */
int infer_gguf_array_i64(const infer_gguf_kv *kv, uint64_t i, int64_t *v);
int infer_gguf_array_f64(const infer_gguf_kv *kv, uint64_t i, double *v);
/* The strings of an array of strings, as an owned index (infer_free) of *n views. Errors as for typed values,
 * INFER_E_NO_MEMORY. */
infer_status infer_gguf_strings(const infer_gguf *g, const char *key, infer_text **v, uint32_t *n, infer_error *err);

/* Tensors of all parts, in file order (NULL past the end), or by name (NULL where absent; O(log n)). */
uint32_t infer_gguf_n_tensors(const infer_gguf *g);
const infer_gguf_tensor *infer_gguf_tensor_at(const infer_gguf *g, uint32_t i);
const infer_gguf_tensor *infer_gguf_tensor_find(const infer_gguf *g, const char *name);
/* Tells the kernel that the tensor's data will not be read again (its whole pages leave the process). */
void infer_gguf_tensor_drop(const infer_gguf *g, const infer_gguf_tensor *t);

/* The vocabulary as infer_tokenizer_create_vocab takes it. `v` points into the arrays here and into g. */
typedef struct infer_gguf_vocab {
    infer_vocab v;
    infer_text *tokens, *merges;
    float *scores;
    int32_t *types;
    char *model, *pre;
} infer_gguf_vocab;

/* From tokenizer.ggml.*. INFER_E_NOT_FOUND where the file has no tokenizer model or tokens; INFER_E_BAD_FILE where
 * counts differ or bos, eos or eot lies outside the vocabulary (other special ids outside it count as absent, as
 * published files have such); INFER_E_NO_MEMORY. On success release with infer_gguf_vocab_free before g is closed. */
infer_status infer_gguf_vocab_load(const infer_gguf *g, infer_gguf_vocab *out, infer_error *err);
void infer_gguf_vocab_free(infer_gguf_vocab *v);

/* The chat template: the default one (name NULL) or tokenizer.chat_template.NAME. A view; INFER_E_NOT_FOUND. */
infer_status infer_gguf_chat_template(const infer_gguf *g, const char *name, infer_str *v, infer_error *err);

#endif
