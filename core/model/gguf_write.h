/*
 * Writer of GGUF version 3 files, for tools: keys, then the tensor table, then the data as a stream in the table's
 * order. Memory used is the metadata's. The file appears under its name only when finished (written as PATH.part
 * before). One owner thread. SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_MODEL_GGUF_WRITE_H
#define INFER_MODEL_GGUF_WRITE_H

#include "model/gguf.h"

typedef struct infer_gguf_writer infer_gguf_writer;

/* Opens PATH.part for writing, truncating it. INFER_E_IO with path and cause, INFER_E_NO_MEMORY. */
infer_status infer_gguf_writer_create(const char *path, infer_gguf_writer **out, infer_error *err);
/* Gives up: removes PATH.part. After a finish, only releases. NULL is allowed. */
void infer_gguf_writer_destroy(infer_gguf_writer *w);

/* Keys, before the first data. Failures (no memory, a key or tensor after data began) are kept and reported by the
 * first infer_gguf_writer_data or _finish. */
void infer_gguf_writer_u32(infer_gguf_writer *w, const char *key, uint32_t v);
void infer_gguf_writer_f32(infer_gguf_writer *w, const char *key, float v);
void infer_gguf_writer_bool(infer_gguf_writer *w, const char *key, int v);
void infer_gguf_writer_string(infer_gguf_writer *w, const char *key, infer_str v);
void infer_gguf_writer_strings(infer_gguf_writer *w, const char *key, const infer_text *v, uint64_t n);
/* n elements of a fixed-size type, packed as in memory. */
void infer_gguf_writer_array(infer_gguf_writer *w, const char *key, uint32_t type, const void *v, uint64_t n);
/* A key of another file, unchanged. */
void infer_gguf_writer_copy(infer_gguf_writer *w, const infer_gguf_kv *kv);

/* The next row of the tensor table. dims[0] is the row length, a multiple of the format's block; rank 1..4. */
infer_status infer_gguf_writer_tensor(infer_gguf_writer *w, const char *name, infer_format format, uint32_t rank,
                                      const uint64_t *dims, infer_error *err);

/* The next n bytes of data: tensors follow each other in the table's order, padding is added between them. The first
 * call writes the metadata. INFER_E_INVALID past the last tensor, INFER_E_IO, INFER_E_NO_MEMORY. */
infer_status infer_gguf_writer_data(infer_gguf_writer *w, const void *p, size_t n, infer_error *err);
/* Writes what is left of padding and renames PATH.part to PATH. INFER_E_INVALID where data are missing. */
infer_status infer_gguf_writer_finish(infer_gguf_writer *w, infer_error *err);

/* Bytes of data that the table asks for, without padding: for progress. */
uint64_t infer_gguf_writer_total(const infer_gguf_writer *w);

#endif
