/* What gguf.c (parser) and gguf_get.c (typed access) share. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_MODEL_GGUF_PRIVATE_H
#define INFER_MODEL_GGUF_PRIVATE_H

#include "base/file.h"
#include "model/gguf.h"

typedef struct gguf_part {
    char *name; /* path, or what stands for it in messages */
    infer_map map;
    const uint8_t *data;
    uint64_t size;
    uint32_t version, alignment, n_kv;
    infer_gguf_kv *kv;            /* in file order */
    const infer_gguf_kv **by_key; /* sorted */
} gguf_part;

struct infer_gguf {
    gguf_part *parts;
    infer_gguf_tensor *tensors;        /* in file order */
    const infer_gguf_tensor **by_name; /* sorted */
    uint64_t file_bytes;
    uint32_t n_parts, cap_parts, n_tensors, cap_tensors;
};

/* A name from a file for a message: printable, cut. */
enum { GGUF_SHOW = 68 };
const char *gguf_show(infer_str s, char buf[GGUF_SHOW]);

/* Of a metadata type, for messages; "unknown" where it is none. */
const char *gguf_type_name(uint32_t type);
/* Bytes of a scalar; 0 for strings, arrays and unknown types. */
uint32_t gguf_type_size(uint32_t type);
const infer_gguf_kv *gguf_part_find(const gguf_part *part, infer_str key);
/* A stored integer or bool as int64_t; 0 where the type is another or the value does not fit. */
int gguf_number_i64(uint32_t type, const uint8_t *p, int64_t *v);

#endif
