/* core/model: the GGUF reader and writer. Broken files must give the right error and nothing else; run it under
 * AddressSanitizer, where every file here ends at the end of its allocation. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <unistd.h>

#include <sys/stat.h>

#include "unit/gguf_build.h"
#include "unit/unit.h"

#include "base/alloc.h"
#include "model/gguf_write.h"

/* Opens an exact copy of the bytes, tries everything on what opens, returns the status. */
static infer_status open_copy(const infer_buf *b, infer_error *err)
{
    uint8_t *copy = malloc(b->n ? b->n : 1);
    assert_non_null(copy);
    if (b->n)
        memcpy(copy, b->p, b->n);
    infer_gguf *g = NULL;
    err->text[0] = 0;
    infer_status s = infer_gguf_open_bytes(&(infer_gguf_bytes){copy, b->n}, 1, &g, err);
    if (s == INFER_OK) {
        infer_gguf_vocab v;
        if (infer_gguf_vocab_load(g, &v, NULL) == INFER_OK)
            infer_gguf_vocab_free(&v);
        unsigned sum = 0;
        for (uint32_t i = 0; i < infer_gguf_n_kv(g); i++)
            for (uint64_t j = 0; j < infer_gguf_kv_at(g, i)->value_bytes; j++)
                sum += infer_gguf_kv_at(g, i)->value[j];
        for (uint32_t i = 0; i < infer_gguf_n_tensors(g); i++)
            for (uint64_t j = 0; j < infer_gguf_tensor_at(g, i)->bytes; j++)
                sum += infer_gguf_tensor_at(g, i)->data[j];
        assert_true(sum != 0);
        infer_gguf_close(g);
    } else {
        assert_null(g);
        assert_int_equal(err->status, s);
        assert_non_null(strstr(err->text, "byte "));
    }
    free(copy);
    return s;
}

static void expect(infer_buf *b, infer_status want, const char *text)
{
    infer_error err = {0};
    assert_false(b->failed);
    infer_status s = open_copy(b, &err);
    if (s != want || (text && !strstr(err.text, text)))
        fail_msg("status %s, expected %s; text '%s', expected '%s'", infer_status_name(s), infer_status_name(want),
                 err.text, text ? text : "");
    infer_buf_free(b);
}

static void test_good(void **state)
{
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        infer_buf b = {0};
        infer_error err = {0};
        infer_gguf *g;
        build_good(&b, version);
        assert_int_equal(infer_gguf_open_bytes(&(infer_gguf_bytes){b.p, b.n}, 1, &g, &err), INFER_OK);
        assert_int_equal(infer_gguf_version(g), version);
        assert_int_equal(infer_gguf_n_kv(g), 23);
        assert_null(infer_gguf_kv_at(g, 23));
        assert_int_equal(infer_gguf_n_tensors(g), 2);
        assert_int_equal(infer_gguf_n_parts(g), 1);
        assert_int_equal(infer_gguf_file_bytes(g), b.n);
        const infer_gguf_tensor *t = infer_gguf_tensor_find(g, "b.weight");
        assert_ptr_equal(t, infer_gguf_tensor_at(g, 1));
        assert_int_equal(t->format, INFER_FMT_Q4_0);
        assert_int_equal(t->bytes, 72);
        assert_int_equal(t->dims[0], 64);
        assert_int_equal(t->dims[1], 2);
        assert_int_equal(t->dims[3], 1);
        assert_ptr_equal(t->data + t->bytes, b.p + b.n);
        t = infer_gguf_tensor_find(g, "a.weight");
        assert_int_equal(t->n_elems, 12);
        assert_int_equal(t->offset % 64, 0);
        float x;
        memcpy(&x, t->data + 44, 4);
        assert_true(x == 11);
        assert_null(infer_gguf_tensor_find(g, "c.weight"));
        assert_null(infer_gguf_tensor_find(g, ""));
        assert_null(infer_gguf_tensor_at(g, 2));
        infer_gguf_tensor_drop(g, t);
        infer_gguf_close(g);
        infer_buf_free(&b);
    }
    infer_gguf_close(NULL);
}

static void test_getters(void **state)
{
    (void)state;
    infer_buf b = {0};
    infer_error err = {0};
    infer_gguf *g;
    build_good(&b, 3);
    assert_int_equal(infer_gguf_open_bytes(&(infer_gguf_bytes){b.p, b.n}, 1, &g, &err), INFER_OK);
    const struct {
        const char *key;
        infer_status status;
        uint32_t value;
        const char *text;
    } ints[] = {
        {"x.u8", INFER_OK, 8, NULL},
        {"x.u16", INFER_OK, 1600, NULL},
        {"x.u32", INFER_OK, 32, NULL},
        {"x.i64", INFER_OK, 77, NULL},
        {"x.i32", INFER_E_BAD_FILE, 0, "'x.i32' is -32, allowed are 0 to"},
        {"x.i8", INFER_E_BAD_FILE, 0, "'x.i8' is -8"},
        {"x.i16", INFER_E_BAD_FILE, 0, "'x.i16' is -16"},
        {"x.u64", INFER_E_BAD_FILE, 0, "'x.u64' is u64, expected an integer"},
        {"x.f32", INFER_E_BAD_FILE, 0, "'x.f32' is f32, expected an integer"},
        {"x.bool", INFER_E_BAD_FILE, 0, "'x.bool' is bool, expected an integer"},
        {"x.list", INFER_E_BAD_FILE, 0, "'x.list' is array of i16, expected an integer"},
        {"x.none", INFER_E_NOT_FOUND, 0, "no key 'x.none'"},
    };
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++) {
        uint32_t v = 4711;
        assert_int_equal(infer_gguf_u32(g, ints[i].key, &v, &err), ints[i].status);
        assert_int_equal(v, ints[i].status == INFER_OK ? ints[i].value : 4711);
        if (ints[i].text)
            assert_non_null(strstr(err.text, ints[i].text));
    }
    uint32_t u, list[3];
    float f;
    int t;
    infer_str s;
    assert_int_equal(infer_gguf_u32_or(g, "x.none", 5, &u, &err), INFER_OK);
    assert_int_equal(u, 5);
    assert_int_equal(infer_gguf_u32_or(g, "x.f32", 5, &u, &err), INFER_E_BAD_FILE);
    assert_int_equal(infer_gguf_f32(g, "x.f64", &f, &err), INFER_OK);
    assert_true(f == 2.5f);
    assert_int_equal(infer_gguf_f32_or(g, "x.none", 0.5f, &f, &err), INFER_OK);
    assert_true(f == 0.5f);
    assert_int_equal(infer_gguf_f32(g, "x.u8", &f, &err), INFER_E_BAD_FILE);
    assert_int_equal(infer_gguf_bool(g, "x.bool", &t, &err), INFER_OK);
    assert_int_equal(t, 1);
    assert_int_equal(infer_gguf_bool_or(g, "x.u8", 0, &t, &err), INFER_E_BAD_FILE);
    assert_int_equal(infer_gguf_string(g, "general.architecture", &s, &err), INFER_OK);
    assert_true(infer_str_eq(s, INFER_STR("llama")));
    assert_int_equal(infer_gguf_string(g, "x.u8", &s, &err), INFER_E_BAD_FILE);
    assert_int_equal(infer_gguf_u32_list(g, "x.list", 3, list, &err), INFER_OK);
    assert_int_equal(list[2], 3);
    assert_int_equal(infer_gguf_u32_list(g, "x.u8", 3, list, &err), INFER_OK);
    assert_int_equal(list[2], 8);
    assert_int_equal(infer_gguf_u32_list(g, "x.list", 2, list, &err), INFER_E_BAD_FILE);
    assert_int_equal(infer_gguf_u32_list(g, "x.empty", 0, list, &err), INFER_OK);
    assert_int_equal(infer_gguf_u32_list(g, "tokenizer.ggml.merges", 1, list, &err), INFER_E_BAD_FILE);
    int64_t i;
    double d;
    assert_true(infer_gguf_array_i64(infer_gguf_find(g, "x.bools"), 1, &i) && i == 1);
    assert_true(infer_gguf_array_f64(infer_gguf_find(g, "x.list"), 1, &d) && d == 2);
    assert_false(infer_gguf_array_i64(infer_gguf_find(g, "x.list"), 3, &i));
    assert_false(infer_gguf_array_i64(infer_gguf_find(g, "x.u8"), 0, &i));
    assert_false(infer_gguf_array_f64(infer_gguf_find(g, "tokenizer.ggml.tokens"), 0, &d));
    infer_text *texts;
    assert_int_equal(infer_gguf_strings(g, "tokenizer.ggml.tokens", &texts, &u, &err), INFER_OK);
    assert_int_equal(u, 5);
    assert_memory_equal(texts[4].p, "ab", 2);
    assert_int_equal(texts[4].n, 2);
    infer_free(texts);
    assert_int_equal(infer_gguf_strings(g, "x.empty", &texts, &u, &err), INFER_OK);
    assert_int_equal(u, 0);
    infer_free(texts);
    assert_int_equal(infer_gguf_strings(g, "x.list", &texts, &u, &err), INFER_E_BAD_FILE);
    assert_int_equal(infer_gguf_chat_template(g, NULL, &s, &err), INFER_OK);
    assert_int_equal(s.n, 14);
    assert_int_equal(infer_gguf_chat_template(g, "tool_use", &s, &err), INFER_E_NOT_FOUND);
    infer_gguf_close(g);
    infer_buf_free(&b);
}

static infer_status vocab_of(infer_buf *b, infer_gguf_vocab *v, infer_gguf **g, infer_error *err)
{
    assert_int_equal(infer_gguf_open_bytes(&(infer_gguf_bytes){b->p, b->n}, 1, g, err), INFER_OK);
    return infer_gguf_vocab_load(*g, v, err);
}

static void test_vocab(void **state)
{
    (void)state;
    infer_buf b = {0};
    infer_error err = {0};
    infer_gguf *g;
    infer_gguf_vocab v;
    build_good(&b, 3);
    assert_int_equal(vocab_of(&b, &v, &g, &err), INFER_OK);
    assert_string_equal(v.v.model, "gpt2");
    assert_string_equal(v.v.pre, "smollm");
    assert_int_equal(v.v.n_tokens, 5);
    assert_int_equal(v.v.n_merges, 1);
    assert_memory_equal(v.v.merges[0].p, "a b", 3);
    assert_int_equal(v.v.types[1], INFER_TOKEN_CONTROL);
    assert_null(v.v.scores);
    assert_int_equal(v.v.bos, -1);
    assert_int_equal(v.v.eos, 1);
    assert_int_equal(v.v.add_bos, -1);
    infer_gguf_vocab_free(&v);
    infer_gguf_close(g);
    infer_buf_clear(&b);

    /* SentencePiece: scores, flags; an unusable padding id counts as absent. */
    put_head(&b, 3, 0, 8);
    put_key_text(&b, "tokenizer.ggml.model", "llama");
    put_key_text(&b, "tokenizer.ggml.pre", "default");
    put_key_array(&b, "tokenizer.ggml.tokens", INFER_GGUF_STRING, 2);
    put_text(&b, "a");
    put_text(&b, "");
    put_key_array(&b, "tokenizer.ggml.scores", INFER_GGUF_F32, 2);
    infer_buf_append(&b, (const float[]){-1.5f, 0}, 8);
    put_key(&b, "tokenizer.ggml.add_bos_token", INFER_GGUF_BOOL);
    infer_buf_putc(&b, 0);
    put_key_u32(&b, "tokenizer.ggml.padding_token_id", 99);
    put_key_u32(&b, "tokenizer.ggml.bos_token_id", 0);
    put_key_i32(&b, "tokenizer.ggml.eos_token_id", -1);
    assert_int_equal(vocab_of(&b, &v, &g, &err), INFER_OK);
    assert_null(v.v.pre);
    assert_true(v.v.scores[0] == -1.5f);
    assert_int_equal(v.v.add_bos, 0);
    assert_int_equal(v.v.pad, -1);
    assert_int_equal(v.v.bos, 0);
    assert_int_equal(v.v.eos, -1);
    infer_gguf_vocab_free(&v);
    infer_gguf_close(g);
    infer_buf_free(&b);
}

static void test_bad_vocab(void **state)
{
    (void)state;
    const struct {
        int kind;
        infer_status status;
        const char *text;
    } cases[] = {
        {0, INFER_E_BAD_FILE, "'tokenizer.ggml.scores' has 1 entries for 2 tokens"},
        {1, INFER_E_BAD_FILE, "'tokenizer.ggml.bos_token_id' is 2, allowed are -1 to 1"},
        {2, INFER_E_BAD_FILE, "'tokenizer.ggml.token_type' is array of f32, expected array of i32"},
        {3, INFER_E_BAD_FILE, "'tokenizer.ggml.merges' is u32, expected array of string"},
        {4, INFER_E_BAD_FILE, "holds a NUL byte"},
        {5, INFER_E_BAD_FILE, "'tokenizer.ggml.add_bos_token' is u32, expected bool"},
        {6, INFER_E_NOT_FOUND, "no key 'tokenizer.ggml.tokens'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        infer_buf b = {0};
        infer_error err = {0};
        infer_gguf *g;
        infer_gguf_vocab v;
        int kind = cases[i].kind;
        put_head(&b, 3, 0, 3);
        put_key(&b, "tokenizer.ggml.model", INFER_GGUF_STRING);
        put64(&b, 4);
        infer_buf_append(&b, kind == 4 ? "g\0t2" : "gpt2", 4);
        put_key_array(&b, kind == 6 ? "x" : "tokenizer.ggml.tokens", INFER_GGUF_STRING, 2);
        put_text(&b, "a");
        put_text(&b, "b");
        if (kind == 0) {
            put_key_array(&b, "tokenizer.ggml.scores", INFER_GGUF_F32, 1);
            put32(&b, 0);
        } else if (kind == 2) {
            put_key_array(&b, "tokenizer.ggml.token_type", INFER_GGUF_F32, 2);
            put64(&b, 0);
        } else
            put_key_u32(&b,
                        kind == 1   ? "tokenizer.ggml.bos_token_id"
                        : kind == 3 ? "tokenizer.ggml.merges"
                        : kind == 5 ? "tokenizer.ggml.add_bos_token"
                                    : "y",
                        2);
        assert_int_equal(vocab_of(&b, &v, &g, &err), cases[i].status);
        assert_non_null(strstr(err.text, cases[i].text));
        infer_gguf_close(g);
        infer_buf_free(&b);
    }
}

static void test_bad_header(void **state)
{
    (void)state;
    infer_buf b = {0};
    expect(&b, INFER_E_BAD_FILE, "byte 0: magic needs 4 bytes");
    infer_buf_puts(&b, "GGML\3\0\0\0");
    expect(&b, INFER_E_BAD_FILE, "byte 0: not a GGUF file: it begins with 47 47 4d 4c");
    put_head(&b, 1, 0, 0);
    expect(&b, INFER_E_UNSUPPORTED, "byte 4: GGUF version 1");
    put_head(&b, 4, 0, 0);
    expect(&b, INFER_E_UNSUPPORTED, "GGUF version 4");
    put_head(&b, 0, 0, 0);
    expect(&b, INFER_E_UNSUPPORTED, "GGUF version 0");
    put_head(&b, 0x03000000, 0, 0);
    expect(&b, INFER_E_UNSUPPORTED, "big-endian GGUF");
    put_head(&b, 3, 1, 0);
    expect(&b, INFER_E_BAD_FILE, "byte 8: a tensor count of 1 does not fit into the 0 bytes left");
    put_head(&b, 3, 0, UINT64_MAX);
    expect(&b, INFER_E_BAD_FILE, "byte 16: a key count of 18446744073709551615");
    put_head(&b, 3, 0, INFER_GGUF_MAX_KV + 1);
    put_zeros(&b, 15 * (INFER_GGUF_MAX_KV + 1));
    expect(&b, INFER_E_TOO_LARGE, "65537 keys, the limit is 65536");
    put_head(&b, 3, INFER_GGUF_MAX_TENSORS + 1, 0);
    put_zeros(&b, 34 * (INFER_GGUF_MAX_TENSORS + 1));
    expect(&b, INFER_E_TOO_LARGE, "1048577 tensors, the limit is 1048576");
}

static void test_bad_keys(void **state)
{
    (void)state;
    infer_buf b = {0};
    put_head(&b, 3, 0, 1);
    put_key_u32(&b, "", 0);
    expect(&b, INFER_E_BAD_FILE, "byte 24: key has a length of 0");
    put_head(&b, 3, 0, 1);
    put64(&b, UINT64_MAX);
    put_zeros(&b, 32);
    expect(&b, INFER_E_BAD_FILE, "byte 24: key has a length of 18446744073709551615");
    put_head(&b, 3, 0, 1);
    put64(&b, 60000);
    put_zeros(&b, 32);
    expect(&b, INFER_E_BAD_FILE, "byte 32: key needs 60000 bytes, the file has 32 left");
    put_head(&b, 3, 0, 2);
    put_key_u32(&b, "twice", 1);
    put_key_u32(&b, "twice", 1);
    expect(&b, INFER_E_BAD_FILE, "key 'twice' appears twice");
    put_head(&b, 3, 0, 1);
    put_key(&b, "k\n\x7f", 13);
    put_zeros(&b, 8);
    expect(&b, INFER_E_BAD_FILE, "byte 35: value of 'k\?\?' has unknown type 13");
    put_head(&b, 3, 0, 1);
    put_key(&b, "k", INFER_GGUF_BOOL);
    infer_buf_putc(&b, 2);
    expect(&b, INFER_E_BAD_FILE, "byte 37: 'k' is a bool of value 2");
    put_head(&b, 3, 0, 1);
    put_key_array(&b, "k", INFER_GGUF_BOOL, 2);
    infer_buf_append(&b, "\1\7", 2);
    expect(&b, INFER_E_BAD_FILE, "byte 50: 'k' is a bool of value 7");
    put_head(&b, 3, 0, 1);
    put_key(&b, "k", INFER_GGUF_STRING);
    put64(&b, UINT64_MAX - 4);
    expect(&b, INFER_E_BAD_FILE, "byte 45: value of 'k' needs 18446744073709551611 bytes, the file has 0 left");
    put_head(&b, 3, 0, 1);
    put_key_array(&b, "k", INFER_GGUF_ARRAY, 1);
    put_zeros(&b, 20);
    expect(&b, INFER_E_UNSUPPORTED, "array 'k' holds arrays");
    put_head(&b, 3, 0, 1);
    put_key_array(&b, "k", 99, 1);
    expect(&b, INFER_E_BAD_FILE, "array 'k' has unknown element type 99");
    put_head(&b, 3, 0, 1);
    put_key_array(&b, "k", INFER_GGUF_U64, UINT64_MAX / 4);
    expect(&b, INFER_E_BAD_FILE, "too many to address");
    put_head(&b, 3, 0, 1);
    put_key_array(&b, "k", INFER_GGUF_U16, 1u << 30);
    expect(&b, INFER_E_BAD_FILE, "array 'k' needs 2147483648 bytes");
    put_head(&b, 3, 0, 1);
    put_key_array(&b, "k", INFER_GGUF_STRING, UINT64_MAX);
    put_text(&b, "one");
    expect(&b, INFER_E_BAD_FILE, "array 'k' needs 8 bytes, the file has 0 left");
    put_head(&b, 3, 0, 1);
    put_key_array(&b, "k", INFER_GGUF_STRING, 1);
    put64(&b, UINT64_MAX);
    expect(&b, INFER_E_BAD_FILE, "array 'k' needs 18446744073709551615 bytes");
    const int32_t alignments[] = {0, 1, 4, 48, -32, INT32_MIN};
    for (size_t i = 0; i < sizeof alignments / sizeof alignments[0]; i++) {
        put_head(&b, 3, 0, 1);
        put_key_i32(&b, "general.alignment", alignments[i]);
        expect(&b, INFER_E_BAD_FILE, "not a power of two");
    }
    put_head(&b, 3, 0, 1);
    put_key_text(&b, "general.alignment", "32");
    expect(&b, INFER_E_BAD_FILE, "'general.alignment' is string, not an integer");
}

/* One f32 tensor of the given shape at the given offset, with data bytes behind it. */
static void one_tensor(infer_buf *b, uint32_t rank, const uint64_t *dims, uint32_t type, uint64_t offset, size_t data)
{
    put_head(b, 3, 1, 0);
    put_tensor(b, "t", rank, dims, type, offset);
    put_align(b, 32);
    put_zeros(b, data);
    if (data)
        b->p[b->n - 1] = 1;
}

static void test_bad_tensors(void **state)
{
    (void)state;
    infer_buf b = {0};
    const uint64_t d4[] = {8, 1, 1, 1}, zero[] = {8, 0}, huge[] = {UINT64_MAX / 2, 4}, wide[] = {1u << 31, 1u << 31, 4};
    const uint64_t top[] = {INT64_MAX / 8 * 8, 1}, row[] = {31}, many[] = {8, 2};
    one_tensor(&b, 4, d4, 0, 0, 32);
    expect(&b, INFER_OK, NULL);
    one_tensor(&b, 0, d4, 0, 0, 32);
    expect(&b, INFER_E_BAD_FILE, "tensor 't' has 0 dimensions");
    one_tensor(&b, 5, (const uint64_t[]){1, 1, 1, 1, 1}, 0, 0, 32);
    expect(&b, INFER_E_BAD_FILE, "tensor 't' has 5 dimensions");
    one_tensor(&b, 2, zero, 0, 0, 32);
    expect(&b, INFER_E_BAD_FILE, "dimension 1 of 0 gives");
    one_tensor(&b, 2, huge, 0, 0, 32);
    expect(&b, INFER_E_BAD_FILE, "dimension 1 of 4 gives no possible element count");
    one_tensor(&b, 3, wide, 0, 0, 32);
    expect(&b, INFER_E_BAD_FILE, "dimension 2 of 4 gives");
    one_tensor(&b, 2, top, 0, 0, 32);
    expect(&b, INFER_E_BAD_FILE, "tensor 't' is too large to address");
    one_tensor(&b, 1, row, 2, 0, 32);
    expect(&b, INFER_E_BAD_FILE, "rows of 31 elements are no multiple of q4_0's block of 32");
    one_tensor(&b, 1, d4, 16, 0, 32);
    expect(&b, INFER_E_UNSUPPORTED, "tensor 't' has type IQ2_XXS, which is not supported");
    one_tensor(&b, 1, d4, 9, 0, 32);
    expect(&b, INFER_E_UNSUPPORTED, "type Q8_1");
    one_tensor(&b, 1, d4, 1234, 0, 32);
    expect(&b, INFER_E_BAD_FILE, "tensor 't' has unknown type 1234");
    one_tensor(&b, 1, d4, 0, 16, 64);
    expect(&b, INFER_E_BAD_FILE, "offset 16 is no multiple of the alignment 32");
    one_tensor(&b, 1, d4, 0, 32, 63);
    expect(&b, INFER_E_BAD_FILE, "tensor 't' needs 32 bytes at offset 32 of the data, the file ends at");
    one_tensor(&b, 1, d4, 0, UINT64_MAX - 31, 64);
    expect(&b, INFER_E_BAD_FILE, "tensor 't' needs 32 bytes at offset 18446744073709551584");
    put_head(&b, 3, 2, 0);
    put_tensor(&b, "t", 1, d4, 0, 0);
    put_tensor(&b, "t", 1, d4, 0, 32);
    put_align(&b, 32);
    put_zeros(&b, 64);
    expect(&b, INFER_E_BAD_FILE, "tensor 't' appears twice");
    put_head(&b, 3, 2, 0);
    put_tensor(&b, "t", 1, d4, 0, 32);
    put_tensor(&b, "u", 2, many, 0, 0);
    put_align(&b, 32);
    put_zeros(&b, 64);
    expect(&b, INFER_E_BAD_FILE, "tensors 'u' and 't' overlap");
}

static void test_truncated(void **state)
{
    (void)state;
    infer_buf b = {0};
    build_good(&b, 3);
    size_t whole = b.n;
    infer_error err = {0};
    assert_int_equal(open_copy(&b, &err), INFER_OK);
    for (size_t n = 0; n < whole; n++) {
        b.n = n;
        if (open_copy(&b, &err) != INFER_E_BAD_FILE)
            fail_msg("%d of %d bytes: %s", (int)n, (int)whole, err.text);
    }
    infer_buf_free(&b);
}

/* Every byte and every 32- and 64-bit field replaced by values that hurt: no crash (and no leak under ASan), a
 * located error or a file that can be read through. */
static void test_corrupted(void **state)
{
    (void)state;
    static const uint64_t bad[] = {0,          1,          0x7F,      0x80,       0xFF,     0x7FFFFFFF,    0x80000000,
                                   0xFFFFFFFF, UINT64_MAX, INT64_MAX, 1ull << 63, 1u << 24, UINT64_MAX - 7};
    infer_buf b = {0};
    infer_error err = {0};
    build_good(&b, 3);
    int opened = 0, refused = 0;
    for (size_t at = 0; at < b.n; at++)
        for (size_t width = 1; width <= 8; width *= 2)
            for (size_t k = 0; k < sizeof bad / sizeof bad[0] && at + width <= b.n; k++) {
                char saved[8];
                memcpy(saved, b.p + at, width);
                memcpy(b.p + at, &bad[k], width);
                infer_status s = open_copy(&b, &err);
                opened += s == INFER_OK;
                refused += s != INFER_OK;
                if (s != INFER_OK && s != INFER_E_BAD_FILE && s != INFER_E_UNSUPPORTED)
                    fail_msg("byte %d: %s", (int)at, err.text);
                memcpy(b.p + at, saved, width);
            }
    print_message("%d variants opened, %d refused\n", opened, refused);
    assert_true(opened > 1000 && refused > 1000);
    infer_buf_free(&b);
}

/* Memory follows what is read: a header that promises the most a file of its size could hold costs next to nothing. */
static void test_bounded_memory(void **state)
{
    (void)state;
    infer_buf b = {0};
    infer_error err = {0};
    put_head(&b, 3, 60000, 60000);
    put_zeros(&b, 4 << 20);
    uint64_t before = infer_alloc_count();
    assert_int_equal(open_copy(&b, &err), INFER_E_BAD_FILE);
    assert_true(infer_alloc_count() - before < 8);
    infer_buf_free(&b);
}

static void test_no_memory(void **state)
{
    (void)state;
    infer_buf b = {0}, p[3] = {{0}};
    build_good(&b, 3);
    build_part(&p[0], 0, 3, NULL, 2);
    build_part(&p[1], 1, 3, "a", 2);
    build_part(&p[2], 2, 3, "b", 2);
    const infer_gguf_bytes one[1] = {{b.p, b.n}};
    const infer_gguf_bytes three[3] = {{p[0].p, p[0].n}, {p[1].p, p[1].n}, {p[2].p, p[2].n}};
    for (int split = 0; split < 2; split++)
        for (int all = 0; all < 2; all++) {
            int64_t n = 0;
            for (int delivered = 1; delivered; n++) {
                infer_error err = {0};
                infer_gguf *g = NULL;
                infer_gguf_vocab v = {{0}, NULL, NULL, NULL, NULL, NULL, NULL};
                infer_alloc_fail_after(n, all);
                infer_status s = infer_gguf_open_bytes(split ? three : one, split ? 3 : 1, &g, &err);
                if (s == INFER_OK && !split)
                    s = infer_gguf_vocab_load(g, &v, &err);
                delivered = infer_alloc_fail_after(-1, 0);
                assert_int_equal(s, delivered ? INFER_E_NO_MEMORY : INFER_OK);
                assert_true(!delivered || strstr(err.text, "no memory"));
                infer_gguf_vocab_free(&v);
                infer_gguf_close(g);
            }
            assert_true(n > 6);
        }
    infer_buf_free(&b);
    for (int i = 0; i < 3; i++)
        infer_buf_free(&p[i]);
}

static void test_split_errors(void **state)
{
    (void)state;
    const struct {
        uint16_t no[2], count[2];
        int32_t total;
        const char *names[2];
        infer_status status;
        const char *text;
    } cases[] = {
        {{0, 1}, {2, 2}, 2, {"a", "b"}, INFER_OK, ""},
        {{0, 1}, {2, 2}, 3, {"a", "b"}, INFER_E_BAD_FILE, "'split.tensors.count' is 3, the parts have 2"},
        {{0, 1}, {2, 2}, -1, {"a", "b"}, INFER_OK, ""},
        {{0, 0}, {2, 2}, 2, {"a", "b"}, INFER_E_BAD_FILE, "'split.no' is 0, expected 1"},
        {{1, 1}, {2, 2}, 2, {"a", "b"}, INFER_E_UNSUPPORTED, "this is part 2 of 2; open the first part"},
        {{0, 1}, {2, 3}, 2, {"a", "b"}, INFER_E_BAD_FILE, "'split.count' is 3, in the first part 2"},
        {{0, 1}, {3, 3}, 2, {"a", "b"}, INFER_E_BAD_FILE, "'split.count' is 3, given were 2 parts"},
        {{0, 1}, {2, 2}, 2, {"a", "a"}, INFER_E_BAD_FILE, "tensor 'a' appears twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        infer_buf p[2] = {{0}};
        infer_gguf_bytes bytes[2];
        for (int j = 0; j < 2; j++) {
            build_part(&p[j], cases[i].no[j], cases[i].count[j], cases[i].names[j], cases[i].total);
            bytes[j] = (infer_gguf_bytes){p[j].p, p[j].n};
        }
        infer_error err = {0};
        infer_gguf *g = NULL;
        assert_int_equal(infer_gguf_open_bytes(bytes, 2, &g, &err), cases[i].status);
        if (!strstr(err.text, cases[i].text))
            fail_msg("'%s' lacks '%s'", err.text, cases[i].text);
        infer_gguf_close(g);
        infer_buf_free(&p[0]);
        infer_buf_free(&p[1]);
    }
    infer_gguf *g = NULL;
    assert_int_equal(infer_gguf_open_bytes(NULL, 0, &g, NULL), INFER_E_INVALID);
}

static void save(const char *path, const void *p, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void test_files(void **state)
{
    (void)state;
    char dir[] = "/tmp/infer-gguf-XXXXXX", path[4][64];
    assert_non_null(mkdtemp(dir));
    for (int i = 0; i < 3; i++) {
        infer_buf b = {0};
        build_part(&b, (uint16_t)i, 3, i ? (i == 1 ? "a" : "b") : NULL, 2);
        snprintf(path[i], sizeof path[i], "%s/m-%05d-of-00003.gguf", dir, i + 1);
        save(path[i], b.p, b.n);
        if (i == 0) {
            snprintf(path[3], sizeof path[3], "%s/renamed.gguf", dir);
            save(path[3], b.p, b.n);
        }
        infer_buf_free(&b);
    }
    infer_error err = {0};
    infer_gguf *g = NULL;
    assert_int_equal(infer_gguf_open(path[0], &g, &err), INFER_OK);
    assert_int_equal(infer_gguf_n_parts(g), 3);
    const infer_gguf_tensor *t = infer_gguf_tensor_find(g, "b");
    assert_int_equal(t->part, 2);
    assert_int_equal(t->data[31], 2);
    assert_int_equal((uintptr_t)t->data % 32, 0);
    infer_gguf_tensor_drop(g, t);
    assert_int_equal(t->data[31], 2);
    infer_gguf_close(g);
    assert_int_equal(infer_gguf_open(path[1], &g, &err), INFER_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "this is part 2 of 3; open the first part"));
    assert_int_equal(infer_gguf_open(path[3], &g, &err), INFER_E_BAD_FILE);
    assert_non_null(strstr(err.text, "must be named NAME-00001-of-00003.gguf"));
    unlink(path[2]);
    assert_int_equal(infer_gguf_open(path[0], &g, &err), INFER_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "m-00003-of-00003.gguf"));
    save(path[2], "", 0);
    assert_int_equal(infer_gguf_open(path[0], &g, &err), INFER_E_BAD_FILE);
    assert_int_equal(infer_gguf_open(dir, &g, &err), INFER_E_IO);
    for (int i = 0; i < 4; i++)
        unlink(path[i]);
    assert_int_equal(infer_gguf_open(path[0], &g, &err), INFER_E_NOT_FOUND);
    assert_int_equal(rmdir(dir), 0);
}

static infer_status write_small(const char *path, const infer_gguf *from, int skip_data, infer_error *err)
{
    infer_gguf_writer *w = NULL;
    const infer_text texts[2] = {{"x", 1}, {"", 0}};
    const float scores[2] = {1, 2};
    uint8_t data[200];
    for (int i = 0; i < 200; i++)
        data[i] = (uint8_t)(i + 1);
    INFER_TRY(infer_gguf_writer_create(path, &w, err));
    infer_gguf_writer_string(w, "general.architecture", INFER_STR("llama"));
    infer_gguf_writer_u32(w, "n", 7);
    infer_gguf_writer_f32(w, "f", 0.5f);
    infer_gguf_writer_bool(w, "b", 1);
    infer_gguf_writer_strings(w, "s", texts, 2);
    infer_gguf_writer_array(w, "a", INFER_GGUF_F32, scores, 2);
    for (uint32_t i = 0; i < infer_gguf_n_kv(from); i++)
        if (!infer_str_eq(infer_gguf_kv_at(from, i)->key, INFER_STR("general.architecture")) &&
            !infer_str_eq(infer_gguf_kv_at(from, i)->key, INFER_STR("general.alignment")))
            infer_gguf_writer_copy(w, infer_gguf_kv_at(from, i));
    infer_status s = infer_gguf_writer_tensor(w, "t", INFER_FMT_F16, 2, (const uint64_t[]){5, 2}, err);
    if (s == INFER_OK)
        s = infer_gguf_writer_tensor(w, "u", INFER_FMT_Q8_0, 1, (const uint64_t[]){160}, err);
    for (size_t at = 0; s == INFER_OK && at < 190 && !skip_data; at += 19) /* pieces that straddle the tensors */
        s = infer_gguf_writer_data(w, data + at, 19, err);
    if (s == INFER_OK)
        s = infer_gguf_writer_finish(w, err);
    infer_gguf_writer_destroy(w);
    return s;
}

static void test_writer(void **state)
{
    (void)state;
    char dir[] = "/tmp/infer-gguf-XXXXXX", path[64], part[80];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/w.gguf", dir);
    snprintf(part, sizeof part, "%s.part", path);
    infer_buf b = {0};
    infer_error err = {0};
    infer_gguf *from, *g;
    build_good(&b, 3);
    assert_int_equal(infer_gguf_open_bytes(&(infer_gguf_bytes){b.p, b.n}, 1, &from, &err), INFER_OK);
    assert_int_equal(write_small(path, from, 1, &err), INFER_E_INVALID);
    assert_int_equal(access(part, F_OK), -1);
    assert_int_equal(access(path, F_OK), -1);
    int64_t n = 0;
    for (int delivered = 1; delivered; n++) {
        infer_alloc_fail_after(n, 0);
        infer_status s = write_small(path, from, 0, &err);
        delivered = infer_alloc_fail_after(-1, 0);
        assert_int_equal(s, delivered ? INFER_E_NO_MEMORY : INFER_OK);
        assert_int_equal(access(part, F_OK), -1);
        assert_int_equal(access(path, F_OK), delivered ? -1 : 0);
    }
    assert_true(n > 6);
    assert_int_equal(infer_gguf_open(path, &g, &err), INFER_OK);
    uint32_t u;
    assert_int_equal(infer_gguf_u32(g, "n", &u, &err), INFER_OK);
    assert_int_equal(u, 7);
    infer_text *texts;
    assert_int_equal(infer_gguf_strings(g, "s", &texts, &u, &err), INFER_OK);
    assert_int_equal(texts[0].n, 1);
    infer_free(texts);
    double d;
    assert_true(infer_gguf_array_f64(infer_gguf_find(g, "a"), 1, &d) && d == 2);
    for (uint32_t i = 0; i < infer_gguf_n_kv(from); i++) {
        char key[64];
        const infer_gguf_kv *x = infer_gguf_kv_at(from, i);
        snprintf(key, sizeof key, "%.*s", (int)x->key.n, x->key.p);
        const infer_gguf_kv *y = infer_gguf_find(g, key);
        if (!strcmp(key, "general.alignment"))
            continue;
        assert_int_equal(x->type, y->type);
        assert_int_equal(x->n, y->n);
        assert_memory_equal(x->value, y->value, x->value_bytes);
    }
    const infer_gguf_tensor *t = infer_gguf_tensor_find(g, "u");
    assert_int_equal(t->bytes, 170);
    assert_int_equal(t->data[0], 21);
    assert_int_equal(t->data[169], 190);
    assert_int_equal(infer_gguf_tensor_find(g, "t")->data[19], 20);
    infer_gguf_close(g);
    infer_gguf_writer *w = NULL;
    assert_int_equal(infer_gguf_writer_create("/nonexistent/x", &w, &err), INFER_E_IO);
    char folder[] = "/tmp/infer-gguf-XXXXXX", special[64];
    struct stat st;
    assert_non_null(mkdtemp(folder));
    snprintf(special, sizeof special, "%s/fifo", folder);
    assert_int_equal(mkfifo(special, 0600), 0); /* what is no file is not replaced by one */
    assert_int_equal(infer_gguf_writer_create(special, &w, &err), INFER_E_IO);
    assert_non_null(strstr(err.text, "not a regular file"));
    assert_true(stat(special, &st) == 0 && S_ISFIFO(st.st_mode));
    assert_int_equal(unlink(special), 0);
    assert_int_equal(rmdir(folder), 0);
    assert_int_equal(infer_gguf_writer_create(path, &w, &err), INFER_OK);
    assert_int_equal(infer_gguf_writer_tensor(w, "t", INFER_FMT_Q8_0, 1, (const uint64_t[]){33}, &err),
                     INFER_E_INVALID);
    assert_int_equal(infer_gguf_writer_tensor(w, "t", INFER_FMT_U4, 1, (const uint64_t[]){32}, &err), INFER_E_INVALID);
    assert_int_equal(infer_gguf_writer_tensor(w, "t", INFER_FMT_F32, 1, (const uint64_t[]){1}, &err), INFER_OK);
    assert_int_equal(infer_gguf_writer_total(w), 4);
    assert_int_equal(infer_gguf_writer_data(w, "12345", 5, &err), INFER_E_INVALID);
    infer_gguf_writer_destroy(w);
    assert_int_equal(access(path, F_OK), 0); /* the earlier file stays */
    infer_gguf_close(from);
    infer_buf_free(&b);
    unlink(path);
    assert_int_equal(rmdir(dir), 0);
}

/* Vocabularies that llama.cpp publishes, where the reference data are at hand. */
static void test_published(void **state)
{
    (void)state;
    static const struct {
        const char *file, *model;
        uint32_t n;
    } files[] = {{"llama-spm", "llama", 32000}, {"phi-3", "llama", 32064}, {"bert-bge", "bert", 30522}};
    const char *root = getenv("INFER_TEST_DATA");
    for (size_t i = 0; root && i < sizeof files / sizeof files[0]; i++) {
        char path[4096];
        infer_error err = {0};
        infer_gguf *g;
        infer_gguf_vocab v;
        snprintf(path, sizeof path, "%s/gguf-vocab/%s.gguf", root, files[i].file);
        if (infer_gguf_open(path, &g, &err) != INFER_OK || infer_gguf_vocab_load(g, &v, &err) != INFER_OK)
            fail_msg("%s", err.text);
        assert_string_equal(v.v.model, files[i].model);
        assert_int_equal(v.v.n_tokens, files[i].n);
        infer_gguf_vocab_free(&v);
        infer_gguf_close(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),         cmocka_unit_test(test_getters),    cmocka_unit_test(test_vocab),
        cmocka_unit_test(test_bad_vocab),    cmocka_unit_test(test_bad_header), cmocka_unit_test(test_bad_keys),
        cmocka_unit_test(test_bad_tensors),  cmocka_unit_test(test_truncated),  cmocka_unit_test(test_corrupted),
        cmocka_unit_test(test_no_memory),    cmocka_unit_test(test_files),      cmocka_unit_test(test_bounded_memory),
        cmocka_unit_test(test_split_errors), cmocka_unit_test(test_writer),     cmocka_unit_test(test_published),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
