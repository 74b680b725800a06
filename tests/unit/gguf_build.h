/* A builder of GGUF bytes, right or wrong, for the reader's test and fuzzer seeds. SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_TESTS_GGUF_BUILD_H
#define INFER_TESTS_GGUF_BUILD_H

#include <string.h>

#include "base/buf.h"
#include "model/gguf.h"

static inline void put32(infer_buf *b, uint32_t v)
{
    infer_buf_append(b, &v, 4);
}

static inline void put64(infer_buf *b, uint64_t v)
{
    infer_buf_append(b, &v, 8);
}

static inline void put_text(infer_buf *b, const char *s)
{
    put64(b, strlen(s));
    infer_buf_puts(b, s);
}

static inline void put_head(infer_buf *b, uint32_t version, uint64_t tensors, uint64_t keys)
{
    infer_buf_puts(b, "GGUF");
    put32(b, version);
    put64(b, tensors);
    put64(b, keys);
}

static inline void put_key(infer_buf *b, const char *key, uint32_t type)
{
    put_text(b, key);
    put32(b, type);
}

static inline void put_key_u32(infer_buf *b, const char *key, uint32_t v)
{
    put_key(b, key, INFER_GGUF_U32);
    put32(b, v);
}

static inline void put_key_i32(infer_buf *b, const char *key, int32_t v)
{
    put_key(b, key, INFER_GGUF_I32);
    put32(b, (uint32_t)v);
}

static inline void put_key_u16(infer_buf *b, const char *key, uint16_t v)
{
    put_key(b, key, INFER_GGUF_U16);
    infer_buf_append(b, &v, 2);
}

static inline void put_key_text(infer_buf *b, const char *key, const char *v)
{
    put_key(b, key, INFER_GGUF_STRING);
    put_text(b, v);
}

static inline void put_key_array(infer_buf *b, const char *key, uint32_t type, uint64_t n)
{
    put_key(b, key, INFER_GGUF_ARRAY);
    put32(b, type);
    put64(b, n);
}

static inline void put_tensor(infer_buf *b, const char *name, uint32_t rank, const uint64_t *dims, uint32_t type,
                              uint64_t offset)
{
    put_text(b, name);
    put32(b, rank);
    for (uint32_t i = 0; i < rank; i++)
        put64(b, dims[i]);
    put32(b, type);
    put64(b, offset);
}

static inline void put_zeros(infer_buf *b, size_t n)
{
    while (n--)
        infer_buf_putc(b, 0);
}

static inline void put_align(infer_buf *b, size_t align)
{
    put_zeros(b, (align - b->n % align) % align);
}

/* A small good file with every value type, a vocabulary, and two tensors (f32 [3][4], q4_0 [2][64]). */
static inline void build_good(infer_buf *b, uint32_t version)
{
    static const char *const tokens[] = {"<s>", "</s>", "a", "b", "ab"};
    put_head(b, version, 2, 23);
    put_key_text(b, "general.architecture", "llama");
    put_key_u32(b, "general.alignment", 64);
    put_key(b, "x.u8", INFER_GGUF_U8);
    infer_buf_putc(b, 8);
    put_key(b, "x.i8", INFER_GGUF_I8);
    infer_buf_putc(b, (char)-8);
    put_key_u16(b, "x.u16", 1600);
    put_key(b, "x.i16", INFER_GGUF_I16);
    infer_buf_append(b, &(int16_t){-16}, 2);
    put_key_u32(b, "x.u32", 32);
    put_key_i32(b, "x.i32", -32);
    put_key(b, "x.u64", INFER_GGUF_U64);
    put64(b, UINT64_MAX);
    put_key(b, "x.i64", INFER_GGUF_I64);
    put64(b, 77);
    put_key(b, "x.f32", INFER_GGUF_F32);
    infer_buf_append(b, &(float){1.5f}, 4);
    put_key(b, "x.f64", INFER_GGUF_F64);
    infer_buf_append(b, &(double){2.5}, 8);
    put_key(b, "x.bool", INFER_GGUF_BOOL);
    infer_buf_putc(b, 1);
    put_key_array(b, "x.list", INFER_GGUF_I16, 3);
    infer_buf_append(b, (const int16_t[]){1, 2, 3}, 6);
    put_key_array(b, "x.bools", INFER_GGUF_BOOL, 2);
    infer_buf_append(b, "\0\1", 2);
    put_key_array(b, "x.empty", INFER_GGUF_STRING, 0);
    put_key_text(b, "tokenizer.ggml.model", "gpt2");
    put_key_text(b, "tokenizer.ggml.pre", "smollm");
    put_key_array(b, "tokenizer.ggml.tokens", INFER_GGUF_STRING, 5);
    for (int i = 0; i < 5; i++)
        put_text(b, tokens[i]);
    put_key_array(b, "tokenizer.ggml.token_type", INFER_GGUF_I32, 5);
    infer_buf_append(b, (const int32_t[]){3, 3, 1, 1, 1}, 20);
    put_key_array(b, "tokenizer.ggml.merges", INFER_GGUF_STRING, 1);
    put_text(b, "a b");
    put_key_u32(b, "tokenizer.ggml.eos_token_id", 1);
    put_key_text(b, "tokenizer.chat_template", "{{ messages }}");
    put_tensor(b, "a.weight", 2, (const uint64_t[]){4, 3}, 0, 0);
    put_tensor(b, "b.weight", 2, (const uint64_t[]){64, 2}, 2, 64);
    put_align(b, 64);
    for (int i = 0; i < 12; i++)
        infer_buf_append(b, &(float){(float)i}, 4);
    put_zeros(b, 16 + 72);
}

/* Part `no` of `count` of a split model: part 0 has a key and no tensor, the others one tensor each. */
static inline void build_part(infer_buf *b, uint16_t no, uint16_t count, const char *tensor, int32_t total)
{
    put_head(b, 3, tensor != NULL, no ? 3 : 4);
    if (!no)
        put_key_text(b, "general.architecture", "llama");
    put_key_u16(b, "split.no", no);
    put_key_u16(b, "split.count", count);
    put_key_i32(b, "split.tensors.count", total);
    if (!tensor)
        return;
    put_tensor(b, tensor, 1, (const uint64_t[]){8}, 0, 0);
    put_align(b, 32);
    put_zeros(b, 31);
    infer_buf_putc(b, (char)no);
}

#endif
