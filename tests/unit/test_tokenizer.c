/* core/text, tokenizers: small vocabularies made here, so that it always runs. What the parts do alone (patterns,
 * normalisation, words) is in test_text_parts.c. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>
#include <pthread.h>

#include <infer/text.h>

#include "unit/unit.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "text/pretokenize.h"
#include "text/utf8.h"

#define MARK "\xE2\x96\x81"

/* ---- Vocabularies ---------------------------------------------------------------------------------------------- */

enum { MAX_TOKENS = 600, MAX_MERGES = 64 };

typedef struct fixture {
    infer_vocab v;
    char text[MAX_TOKENS][16];
    infer_text tokens[MAX_TOKENS], merges[MAX_MERGES];
    float scores[MAX_TOKENS];
    int32_t types[MAX_TOKENS];
} fixture;

static int32_t add(fixture *f, const char *text, int32_t type, float score)
{
    uint32_t i = f->v.n_tokens++;
    snprintf(f->text[i], sizeof f->text[i], "%s", text);
    f->tokens[i] = (infer_text){f->text[i], strlen(f->text[i])};
    f->types[i] = type;
    f->scores[i] = score;
    return (int32_t)i;
}

static void add_merge(fixture *f, const char *merge)
{
    f->merges[f->v.n_merges++] = (infer_text){merge, strlen(merge)};
}

static void fixture_init(fixture *f, const char *model, const char *pre)
{
    memset(f, 0, sizeof *f);
    f->v = (infer_vocab){.model = model, .pre = pre, .bos = -1, .eos = -1, .unk = -1, .sep = -1, .pad = -1, .eot = -1};
    f->v.add_bos = f->v.add_eos = f->v.add_space_prefix = f->v.remove_extra_whitespaces = -1;
    f->v.tokens = f->tokens;
    f->v.types = f->types;
}

/* Ids 0..255 are the bytes; then a few merged pieces and three special tokens. */
enum { HE = 256, LL, HELL, HELLO, SP_HELLO, BOS, EOS, IM_END, TAG };
static void byte_level(fixture *f, const char *pre)
{
    fixture_init(f, "gpt2", pre);
    for (unsigned b = 0; b < 256; b++) {
        char c[5] = {0};
        infer_utf8_put(infer_byte_to_char((uint8_t)b), c);
        add(f, c, INFER_TOKEN_NORMAL, 0);
    }
    add(f, "he", INFER_TOKEN_NORMAL, 0);
    add(f, "ll", INFER_TOKEN_NORMAL, 0);
    add(f, "hell", INFER_TOKEN_NORMAL, 0);
    add(f, "hello", INFER_TOKEN_NORMAL, 0);
    add(f, "\xC4\xA0hello", INFER_TOKEN_NORMAL, 0);
    f->v.bos = add(f, "<bos>", INFER_TOKEN_CONTROL, 0);
    f->v.eos = add(f, "<eos>", INFER_TOKEN_CONTROL, 0);
    add(f, "<|im_end|>", INFER_TOKEN_NORMAL, 0); /* a file's mistake, put right by the name */
    add(f, "<tag>", INFER_TOKEN_USER_DEFINED, 0);
    f->v.merges = f->merges;
    add_merge(f, "h e");
    add_merge(f, "l l");
    add_merge(f, "he ll");
    add_merge(f, "hell o");
    add_merge(f, "\xC4\xA0 hello");
}

/* SentencePiece: 0..2 special, 3..258 bytes, then pieces. */
enum { S_A = 259, S_B, S_MARK, S_AB, S_MARK_A, S_MARK_AB, S_AA, S_RUN, S_USER };
static void sentence_piece(fixture *f)
{
    fixture_init(f, "llama", NULL);
    f->v.unk = add(f, "<unk>", INFER_TOKEN_UNKNOWN, 0);
    f->v.bos = add(f, "<s>", INFER_TOKEN_CONTROL, 0);
    f->v.eos = add(f, "</s>", INFER_TOKEN_CONTROL, 0);
    for (int b = 0; b < 256; b++) {
        char c[8];
        snprintf(c, sizeof c, "<0x%02X>", b);
        add(f, c, INFER_TOKEN_BYTE, 0);
    }
    add(f, "a", INFER_TOKEN_NORMAL, -10);
    add(f, "b", INFER_TOKEN_NORMAL, -11);
    add(f, MARK, INFER_TOKEN_NORMAL, -12);
    add(f, "ab", INFER_TOKEN_NORMAL, -2);
    add(f, MARK "a", INFER_TOKEN_NORMAL, -1);
    add(f, MARK "ab", INFER_TOKEN_NORMAL, -3);
    add(f, "aa", INFER_TOKEN_NORMAL, -4);
    add(f, MARK MARK, INFER_TOKEN_NORMAL, -5);
    add(f, "<u>", INFER_TOKEN_USER_DEFINED, -6);
    f->v.scores = f->scores;
}

static infer_tokenizer *make(const fixture *f)
{
    infer_tokenizer *t = NULL;
    infer_error err = {0};
    if (infer_tokenizer_create_vocab(&f->v, &t, &err) != INFER_OK)
        fail_msg("%s", err.text);
    return t;
}

/* Ids that a text must give; the list ends with -1. */
static void expect(const infer_tokenizer *t, const char *text, size_t n, uint32_t flags, const int32_t *want)
{
    int32_t *ids = NULL;
    size_t n_ids = 0, i = 0;
    assert_int_equal(infer_tokenizer_encode(t, text, n, flags, &ids, &n_ids, NULL), INFER_OK);
    for (; i < n_ids && want[i] >= 0; i++)
        assert_int_equal(ids[i], want[i]);
    assert_int_equal(i, n_ids);
    assert_int_equal(want[i], -1);
    infer_ids_free(ids);
}
#define EXPECT(t, text, flags, ...) expect(t, text, sizeof(text) - 1, flags, (const int32_t[]){__VA_ARGS__, -1})
#define SPECIAL                     (INFER_ENCODE_PARSE_SPECIAL)
#define ADD                         (INFER_ENCODE_ADD_SPECIAL)

/* What ids decode to, at once and streamed. */
static void expect_text(const infer_tokenizer *t, const int32_t *ids, size_t n, uint32_t flags, const char *want,
                        size_t want_n)
{
    char *text;
    size_t len, part_n;
    const char *part;
    infer_buf all = {0};
    infer_detok *d;
    assert_int_equal(infer_tokenizer_decode(t, ids, n, flags, &text, &len, NULL), INFER_OK);
    assert_int_equal(len, want_n);
    assert_memory_equal(text, want, want_n + 1);
    assert_int_equal(infer_detok_create(t, flags, &d), INFER_OK);
    for (int round = 0; round < 2; round++) { /* after a flush the stream is as new */
        infer_buf_clear(&all);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(infer_detok_push(d, ids[i], &part, &part_n), INFER_OK);
            assert_true(infer_utf8_valid(part, part_n));
            infer_buf_append(&all, part, part_n);
        }
        assert_int_equal(infer_detok_flush(d, &part, &part_n), INFER_OK);
        infer_buf_append(&all, part, part_n);
        assert_int_equal(all.n, want_n);
        if (want_n)
            assert_memory_equal(all.p, want, want_n);
    }
    infer_detok_destroy(d);
    infer_buf_free(&all);
    infer_text_free(text);
}
#define EXPECT_TEXT(t, flags, want, ...)                                                                               \
    expect_text(t, (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t), flags,    \
                want, sizeof(want) - 1)

/* ---- Byte-level BPE -------------------------------------------------------------------------------------------- */

static void test_byte_level(void **state)
{
    (void)state;
    fixture f;
    byte_level(&f, "gpt-2");
    infer_tokenizer *t = make(&f);
    EXPECT(t, "hello hello", 0, HELLO, SP_HELLO);
    EXPECT(t, "hell", 0, HELL);
    EXPECT(t, "hel", 0, HE, 'l');
    EXPECT(t, "\x00\xC3\xA9", 0, 0, 0xC3, 0xA9);
    EXPECT(t, "lll", 0, LL, 'l'); /* the leftmost of equals */
    expect(t, "", 0, 0, (const int32_t[]){-1});
    expect(t, NULL, 0, SPECIAL | ADD, (const int32_t[]){-1}); /* the gpt-2 row adds nothing */
    /* Special tokens only when asked for; user-defined ones always. */
    EXPECT(t, "<eos>", SPECIAL, EOS);
    EXPECT(t, "<eos>", 0, '<', 'e', 'o', 's', '>');
    EXPECT(t, "a<tag><eos>hello", SPECIAL, 'a', TAG, EOS, HELLO);
    EXPECT(t, "a<tag>b", 0, 'a', TAG, 'b');
    /* Ill-formed bytes are U+FFFD, one for each maximal part. */
    EXPECT(t, "a\xFF\xE2\x82", 0, 'a', 0xEF, 0xBF, 0xBD, 0xEF, 0xBF, 0xBD);
    EXPECT_TEXT(t, 0, "hello hello<eos>", HELLO, SP_HELLO, EOS);
    EXPECT_TEXT(t, INFER_DECODE_SKIP_SPECIAL, "hello hello<tag>", BOS, HELLO, SP_HELLO, EOS, TAG);
    EXPECT_TEXT(t, 0, "\xE2\x82\xAC", 0xE2, 0x82, 0xAC);
    EXPECT_TEXT(t, 0, "\xEF\xBF\xBDx\xEF\xBF\xBD", 0xE2, 0x82, 'x', 0xF0, 0x9F);
    EXPECT_TEXT(t, 0, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", 0xED, 0xA0, 0x80);
    infer_tokenizer_destroy(t);
}

static void test_questions(void **state)
{
    (void)state;
    fixture f;
    byte_level(&f, "llama-bpe");
    f.v.eot = TAG;
    infer_tokenizer *t = make(&f);
    size_t n;
    char buf[4] = "....";
    EXPECT(t, "hello", ADD, BOS, HELLO); /* the llama-bpe row adds BOS */
    assert_int_equal(infer_tokenizer_n_tokens(t), TAG + 1);
    assert_int_equal(infer_tokenizer_bos(t), BOS);
    assert_int_equal(infer_tokenizer_eos(t), EOS);
    assert_int_equal(infer_tokenizer_find(t, "hello", 5), HELLO);
    assert_int_equal(infer_tokenizer_find(t, "hellx", 5), -1);
    assert_int_equal(infer_tokenizer_find(t, "", 0), -1);
    assert_memory_equal(infer_tokenizer_piece(t, SP_HELLO, &n), "\xC4\xA0hello", 7);
    assert_int_equal(n, 7);
    assert_null(infer_tokenizer_piece(t, -1, &n));
    assert_null(infer_tokenizer_piece(t, TAG + 1, &n));
    assert_int_equal(infer_tokenizer_type(t, TAG), INFER_TOKEN_USER_DEFINED);
    assert_int_equal(infer_tokenizer_type(t, IM_END), INFER_TOKEN_CONTROL);
    EXPECT(t, "<|im_end|>", SPECIAL, IM_END);
    assert_int_equal(infer_tokenizer_type(t, TAG + 1), 0);
    assert_int_equal(infer_tokenizer_token_bytes(t, SP_HELLO, buf, 4), 6);
    assert_memory_equal(buf, " hel", 4);
    assert_int_equal(infer_tokenizer_token_bytes(t, 0xFF, buf, 4), 1);
    assert_int_equal((uint8_t)buf[0], 0xFF);
    assert_int_equal(infer_tokenizer_token_bytes(t, -5, NULL, 0), 0);
    assert_true(infer_tokenizer_is_end(t, EOS));
    assert_true(infer_tokenizer_is_end(t, IM_END));
    assert_true(infer_tokenizer_is_end(t, TAG));
    assert_false(infer_tokenizer_is_end(t, HELLO));
    assert_false(infer_tokenizer_is_end(t, -1));
    infer_error err = {0};
    char *text;
    assert_int_equal(infer_tokenizer_decode(t, (const int32_t[]){5, 100000}, 2, 0, &text, &n, &err), INFER_E_INVALID);
    assert_non_null(strstr(err.text, "100000"));
    infer_detok *d;
    const char *part;
    assert_int_equal(infer_detok_create(t, 0, &d), INFER_OK);
    assert_int_equal(infer_detok_push(d, -1, &part, &n), INFER_E_INVALID);
    infer_detok_destroy(d);
    infer_tokenizer_destroy(t);
    infer_tokenizer_destroy(NULL);
}

/* Every named pre-tokenizer keeps every byte of a text. */
static void test_all_rows(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt-2",        "phi-2",          "gigachat",       "mellum",
                                        "jais",         "trillion",       "exaone4",        "mpt",
                                        "olmo",         "starcoder",      "refact",         "command-r",
                                        "smollm",       "codeshell",      "exaone",         "minerva-7b",
                                        "mellum2",      "llama-bpe",      "llama3",         "llama-v3",
                                        "falcon3",      "falcon-h1",      "pixtral",        "midm-2.0",
                                        "lfm2",         "dbrx",           "smaug-bpe",      "glm4",
                                        "minicpm5",     "chatglm-bpe",    "qwen2",          "megrez",
                                        "kormo",        "stablelm2",      "hunyuan",        "grok-2",
                                        "solar-open",   "laguna",         "qwen35",         "gpt-4o",
                                        "llama4",       "kanana2",        "talkie",         "minimax-m2",
                                        "tekken",       "tiny_aya",       "cohere2moe",     "youtu",
                                        "kimi-k2",      "joyai-llm",      "deepseek-v3",    "hunyuan-dense",
                                        "deepseek-llm", "afmoe",          "deepseek-coder", "falcon",
                                        "bailingmoe",   "bailingmoe2",    "llada-moe",      "seed-coder",
                                        "exaone-moe",   "poro-chat",      "bloom",          "gpt3-finnish",
                                        "viking",       "chameleon",      "default",        "deepseek-r1-qwen",
                                        "a.x-4.0",      "granite-docling"};
    static const char text[] = "It's  1234567 \xC3\xA9t\xC3\xA9s\n\n\tx=42;\r\n  \xE4\xB8\xAD\xE6\x96\x87\xE3\x81\x82 "
                               "\xF0\x9F\x98\x80 'LL DON'T HTTPServer \xC2\xBD \xD9\xA3\xD9\xA4 end   ";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        fixture f;
        byte_level(&f, names[i]);
        infer_tokenizer *t = make(&f);
        int32_t *ids;
        size_t n, len;
        char *back;
        assert_int_equal(infer_tokenizer_encode(t, text, sizeof text - 1, 0, &ids, &n, NULL), INFER_OK);
        assert_int_equal(infer_tokenizer_decode(t, ids, n, 0, &back, &len, NULL), INFER_OK);
        if (strcmp(back, text) != 0)
            fail_msg("%s: '%s'", names[i], back);
        infer_ids_free(ids);
        infer_text_free(back);
        infer_tokenizer_destroy(t);
    }
}

static void expect_bad_vocab(const fixture *f, infer_status status, const char *part)
{
    infer_error err = {0};
    infer_tokenizer *t = NULL;
    assert_int_equal(infer_tokenizer_create_vocab(&f->v, &t, &err), status);
    assert_null(t);
    if (!strstr(err.text, part))
        fail_msg("'%s' does not say '%s'", err.text, part);
}

static void test_bad_vocab(void **state)
{
    (void)state;
    fixture f;
    byte_level(&f, "no-such-pre");
    expect_bad_vocab(&f, INFER_E_UNSUPPORTED, "no-such-pre");
    byte_level(&f, NULL);
    expect_bad_vocab(&f, INFER_E_UNSUPPORTED, "no pre-tokenizer");
    byte_level(&f, "gpt-2");
    f.v.model = "rwkv";
    expect_bad_vocab(&f, INFER_E_UNSUPPORTED, "rwkv");
    f.v.model = NULL;
    expect_bad_vocab(&f, INFER_E_UNSUPPORTED, "tokenizer model");
    byte_level(&f, "gpt-2");
    add_merge(&f, "hello he");
    expect_bad_vocab(&f, INFER_E_BAD_FILE, "merge 5 ('hello' and 'he'): the result");
    byte_level(&f, "gpt-2");
    add_merge(&f, "hello");
    expect_bad_vocab(&f, INFER_E_BAD_FILE, "merge 5 is not two pieces");
    byte_level(&f, "gpt-2");
    f.types[7] = 9;
    expect_bad_vocab(&f, INFER_E_BAD_FILE, "token 7 has the unknown type 9");
    byte_level(&f, "gpt-2");
    f.v.eot = 5000;
    expect_bad_vocab(&f, INFER_E_BAD_FILE, "EOT token 5000");
    byte_level(&f, "gpt-2");
    f.v.bos = -2;
    expect_bad_vocab(&f, INFER_E_BAD_FILE, "BOS token -2");
    f.v.bos = -1;
    f.v.add_bos = 1;
    expect_bad_vocab(&f, INFER_E_BAD_FILE, "BOS is to be added");
    sentence_piece(&f);
    f.v.scores = NULL;
    expect_bad_vocab(&f, INFER_E_BAD_FILE, "no scores");
    sentence_piece(&f);
    f.scores[S_AB] = (float)NAN;
    expect_bad_vocab(&f, INFER_E_BAD_FILE, "score of token 262");
}

/* ---- SentencePiece BPE ----------------------------------------------------------------------------------------- */

static void test_sentence_piece(void **state)
{
    (void)state;
    fixture f;
    sentence_piece(&f);
    infer_tokenizer *t = make(&f);
    EXPECT(t, "a", 0, S_MARK_A);
    EXPECT(t, "ab", 0, S_MARK_AB); /* by way of the mark with a: that score is higher */
    EXPECT(t, "bab", 0, S_MARK, S_B, S_AB);
    EXPECT(t, "aaa", 0, S_MARK_A, S_AA);
    EXPECT(t, " a  b", 0, S_MARK, S_MARK_A, S_RUN, S_B);
    EXPECT(t, "a", ADD, 1, S_MARK_A); /* BOS by default */
    EXPECT(t, "\xC3\xA9", 0, S_MARK, 3 + 0xC3, 3 + 0xA9);
    EXPECT(t, "<s>", 0, S_MARK, 3 + '<', 3 + 's', 3 + '>');
    EXPECT(t, "<s>a</s>", SPECIAL, 1, S_MARK_A, 2);
    EXPECT(t, "a<u>a", 0, S_MARK_A, S_USER, S_MARK_A);
    expect(t, "", 0, 0, (const int32_t[]){-1});
    EXPECT_TEXT(t, 0, "a b", S_MARK_A, S_MARK, S_B);
    EXPECT_TEXT(t, 0, "<s> a", 1, S_MARK_A); /* only what leads the whole text goes */
    EXPECT_TEXT(t, INFER_DECODE_SKIP_SPECIAL, "a", 0, 1, S_MARK_A, 2);
    EXPECT_TEXT(t, INFER_DECODE_CONTINUE, " a", S_MARK_A);
    EXPECT_TEXT(t, 0, " a", S_RUN, S_A);
    EXPECT_TEXT(t, 0, "\xC3\xA9", 3 + 0xC3, 3 + 0xA9);
    /* One U+FFFD for each byte token that is part of no character. */
    EXPECT_TEXT(t, 0,
                "\xEF\xBF\xBD\xEF\xBF\xBD"
                "a",
                3 + 0xE2, 3 + 0x82, S_A);
    EXPECT_TEXT(t, 0, "\xEF\xBF\xBD", 3 + 0xE2);
    infer_tokenizer_destroy(t);

    f.v.add_space_prefix = 0;
    f.v.remove_extra_whitespaces = 1;
    f.v.add_bos = 0;
    f.v.add_eos = 1;
    t = make(&f);
    EXPECT(t, "  a   b ", ADD, S_A, S_MARK, S_B, 2);
    EXPECT_TEXT(t, 0, " a", S_MARK_A);
    infer_tokenizer_destroy(t);

    /* Without byte pieces what is unknown is one unknown token; without that, nothing. */
    for (int b = 3; b < 259; b++)
        f.tokens[b] = (infer_text){"", 0};
    t = make(&f);
    EXPECT(t,
           "a\xC3\xA9\xC3\xA9"
           "b",
           0, S_A, 0, S_B);
    infer_tokenizer_destroy(t);
    f.v.unk = -1;
    t = make(&f);
    EXPECT(t,
           "a\xC3\xA9\xC3\xA9"
           "b",
           0, S_A, S_B);
    infer_tokenizer_destroy(t);
}

/* A word of a megabyte and a run of a megabyte of marks take moments, not hours. */
static void test_long(void **state)
{
    (void)state;
    enum { N = 1 << 20 };
    fixture f;
    byte_level(&f, "qwen2");
    infer_tokenizer *t = make(&f);
    char *text = malloc(N);
    int32_t *ids;
    size_t n;
    memset(text, 'l', N);
    assert_int_equal(infer_tokenizer_encode(t, text, N, 0, &ids, &n, NULL), INFER_OK);
    assert_int_equal(n, N / 2);
    infer_ids_free(ids);
    for (size_t i = 0; i < N; i += 2) /* U+0316 has class 220, U+0300 has 230: all must change places */
        memcpy(text + i, i < N / 2 ? "\xCC\x80" : "\xCC\x96", 2);
    assert_int_equal(infer_tokenizer_encode(t, text, N, 0, &ids, &n, NULL), INFER_OK);
    assert_int_equal(n, N);
    assert_int_equal(ids[1], 0x96);
    assert_int_equal(ids[N - 1], 0x80);
    infer_ids_free(ids);
    infer_tokenizer_destroy(t);
    sentence_piece(&f);
    t = make(&f);
    memset(text, 'a', N);
    assert_int_equal(infer_tokenizer_encode(t, text, N, 0, &ids, &n, NULL), INFER_OK);
    assert_int_equal(n, N / 2 + 1);
    infer_ids_free(ids);
    assert_int_equal(infer_tokenizer_encode(t, text, ((size_t)1 << 30) + 1, 0, &ids, &n, NULL), INFER_E_TOO_LARGE);
    infer_tokenizer_destroy(t);
    free(text);
}

/* ---- One text after another ------------------------------------------------------------------------------------ */

/* Every id by itself and behind another, streamed, is what decoding makes of it, which goes the long way. */
static void expect_every_text(const infer_tokenizer *t, int32_t other)
{
    for (int32_t id = 0; id < (int32_t)infer_tokenizer_n_tokens(t); id++) {
        for (uint32_t k = 0; k < 4; k++) {
            const int32_t ids[] = {other, id}, *at = &ids[k % 2];
            const uint32_t flags = k < 2 ? 0 : INFER_DECODE_SKIP_SPECIAL;
            char *text;
            size_t n;
            assert_int_equal(infer_tokenizer_decode(t, at, 2 - k % 2, flags, &text, &n, NULL), INFER_OK);
            expect_text(t, at, 2 - k % 2, flags, text, n);
            infer_text_free(text);
        }
    }
}

static void test_every_text(void **state)
{
    (void)state;
    static const int32_t bytes_others[] = {'a', ' ', 0xE2, 0xA9, BOS, TAG},
                         others[] = {0, 1, 3 + 'a', 3 + 0xE2, S_A, S_MARK, S_MARK_A, S_RUN};
    char half[16] = "ab";
    fixture f;
    byte_level(&f, "gpt-2");
    add(&f, "abcdefghijklmn", INFER_TOKEN_NORMAL, 0);
    add(&f, "abcdefghijklmno", INFER_TOKEN_NORMAL, 0);
    infer_utf8_put(infer_byte_to_char(0xE2), half + 2);
    add(&f, half, INFER_TOKEN_NORMAL, 0); /* ends within a character */
    add(&f, "", INFER_TOKEN_NORMAL, 0);
    infer_tokenizer *t = make(&f);
    for (size_t i = 0; i < sizeof bytes_others / sizeof *bytes_others; i++)
        expect_every_text(t, bytes_others[i]);
    infer_tokenizer_destroy(t);
    sentence_piece(&f);
    add(&f, MARK MARK MARK "aaaaaa", INFER_TOKEN_NORMAL, -7);
    t = make(&f);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        expect_every_text(t, others[i]);
    infer_tokenizer_destroy(t);
}

/* ---- tokenizer.json -------------------------------------------------------------------------------------------- */

/* A document with every part; the tests change one line at a time. */
static const char document[] =
    "{\"version\": \"1.0\", \"truncation\": null,\n"
    "\"added_tokens\": [{\"id\": 0, \"content\": \"<unk>\", \"special\": true, \"normalized\": false},"
    "{\"id\": 9, \"content\": \"<s>\", \"special\": true, \"normalized\": false},"
    "{\"id\": 10, \"content\": \"[W]\", \"special\": false, \"single_word\": true, \"normalized\": false},"
    "{\"id\": 11, \"content\": \"[L]\", \"special\": false, \"lstrip\": true, \"normalized\": false},"
    "{\"id\": 12, \"content\": \"[R]\", \"special\": false, \"rstrip\": true, \"normalized\": true}],\n"
    "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Lowercase\"}]},\n"
    "\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"\\u2581\", \"prepend_scheme\": \"first\"},\n"
    "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\"}},"
    "{\"Sequence\": {\"id\": \"A\"}}], \"special_tokens\": {\"<s>\": {\"ids\": [9]}}},\n"
    "\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", \"pattern\": {\"String\": "
    "\"\\u2581\"}, \"content\": \" \"}, {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}, {\"type\": \"Strip\", "
    "\"content\": \" \", \"start\": 1, \"stop\": 0}]},\n"
    "\"model\": {\"type\": \"BPE\", \"unk_token\": \"<unk>\", \"fuse_unk\": true, \"byte_fallback\": true,"
    "\"vocab\": {\"<unk>\": 0, \"a\": 1, \"b\": 2, \"\\u2581\": 3, \"ab\": 4, \"\\u2581a\": 5, \"\\\"\": 6,"
    "\"<0xC3>\": 7, \"<0xA9>\": 8},\n"
    "\"merges\": [\"a b\", [\"\\u2581\", \"a\"]]}}";

static infer_status create(const char *json, size_t n, const char *config, infer_tokenizer **t, infer_error *err)
{
    return infer_tokenizer_create_json(json, n, config, config ? strlen(config) : 0, t, err);
}

static void test_json(void **state)
{
    (void)state;
    infer_tokenizer *t = NULL;
    infer_error err = {0};
    if (create(document, sizeof document - 1, NULL, &t, &err) != INFER_OK)
        fail_msg("%s", err.text);
    EXPECT(t, "ab a", 0, 3, 4, 5); /* rank of "a b" is lower */
    EXPECT(t, "AB", 0, 3, 4);
    EXPECT(t, "b\"", ADD, 9, 3, 2, 6);
    EXPECT(t, "\xC3\xA9", 0, 3, 7, 8);
    EXPECT(t, "zz", 0, 3, 0);
    EXPECT(t, "<s>a", SPECIAL, 9, 1); /* "first": no mark behind a token */
    EXPECT(t, "b[W]", 0, 3, 2, 0);    /* not a word by itself, so unknown characters */
    EXPECT(t, " [W] ", 0, 3, 10, 3);
    EXPECT(t, "b  [L]b", 0, 3, 2, 11, 2);
    EXPECT(t, "b[r]  b", 0, 3, 2, 12, 2);
    EXPECT_TEXT(t, 0, "ab a", 3, 4, 5);
    EXPECT_TEXT(t, INFER_DECODE_SKIP_SPECIAL, "\xC3\xA9", 9, 0, 7, 8);
    assert_int_equal(infer_tokenizer_bos(t), 9);
    assert_int_equal(infer_tokenizer_eos(t), -1);
    assert_int_equal(infer_tokenizer_type(t, 0), INFER_TOKEN_UNKNOWN);
    assert_int_equal(infer_tokenizer_type(t, 7), INFER_TOKEN_BYTE);
    infer_tokenizer_destroy(t);
    assert_int_equal(create(document, sizeof document - 1,
                            "{\"bos_token\": {\"content\": \"<s>\"}, \"eos_token\": \"[W]\", \"add_bos_token\": true,"
                            "\"add_eos_token\": true, \"model_max_length\": 1000000000000000019884624838656}",
                            &t, &err),
                     INFER_OK);
    EXPECT(t, "b", ADD, 9, 3, 2, 10);
    assert_int_equal(infer_tokenizer_eos(t), 10);
    infer_tokenizer_destroy(t);
}

/* Replaces one part of the document. */
static char *with(const char *from, const char *to, size_t *n)
{
    const char *at = strstr(document, from);
    assert_non_null(at);
    infer_buf b = {0};
    infer_buf_append(&b, document, (size_t)(at - document));
    infer_buf_puts(&b, to);
    infer_buf_puts(&b, at + strlen(from));
    *n = b.n;
    return infer_buf_detach(&b);
}

static void test_bad_json(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
        infer_status status;
        const char *says;
    } rows[] = {
        {"\"BPE\"", "\"Unigrams\"", INFER_E_UNSUPPORTED, "model.type: 'Unigrams'"},
        {"\"BPE\"", "7", INFER_E_BAD_FILE, "model.type"},
        {"\"Lowercase\"", "\"Shout\"", INFER_E_UNSUPPORTED, "normalizer.normalizers[0].type: 'Shout'"},
        {"\"Metaspace\"", "\"Chop\"", INFER_E_UNSUPPORTED, "pre_tokenizer.type: 'Chop'"},
        {"\"TemplateProcessing\"", "\"Wrap\"", INFER_E_UNSUPPORTED, "post_processor.type: 'Wrap'"},
        {"\"ByteFallback\"", "\"CTC\"", INFER_E_UNSUPPORTED, "decoder.decoders[1].type: 'CTC'"},
        {"\"stop\": 0", "\"stop\": 1", INFER_E_UNSUPPORTED, "decoder.decoders[3]"},
        {"\"first\"", "\"second\"", INFER_E_UNSUPPORTED, "pre_tokenizer.prepend_scheme"},
        {"\"normalizers\": [{", "\"normalizers\": {\"x\":[{", INFER_E_BAD_FILE, ""},
        {"[{\"type\": \"Lowercase\"}]", "7", INFER_E_BAD_FILE, "normalizer.normalizers: not a list"},
        {"[{\"type\": \"Lowercase\"}]", "[null]", INFER_E_BAD_FILE, "normalizer.normalizers[0]: not an object"},
        {"{\"type\": \"Lowercase\"}", "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"[[a]b]\"},\"content\":\"\"}",
         INFER_E_UNSUPPORTED, "[[a]b]"},
        {"\"id\": 9", "\"id\": 99999999", INFER_E_BAD_FILE, "far beyond"},
        {"\"id\": 9", "\"id\": 3", INFER_E_BAD_FILE, "added_tokens[1].id"},
        {"\"id\": 9", "\"id\": -1", INFER_E_BAD_FILE, "added_tokens[1].id"},
        {"\"id\": 9", "\"id\": 9.5", INFER_E_BAD_FILE, "added_tokens[1].id"},
        {"\"id\": 9", "\"di\": 9", INFER_E_BAD_FILE, "added_tokens[1].id"},
        {"\"content\": \"<s>\"", "\"content\": 5", INFER_E_BAD_FILE, "added_tokens[1].content"},
        {"\"special\": true", "\"special\": 1", INFER_E_BAD_FILE, "added_tokens[0].special"},
        {"\"ids\": [9]", "\"ids\": [13]", INFER_E_BAD_FILE, "post_processor.special_tokens"},
        {"\"ids\": [9]", "\"ids\": 9", INFER_E_BAD_FILE, "post_processor.special_tokens"},
        {"{\"Sequence\": {\"id\": \"A\"}}", "{\"Sequence\": {\"id\": \"B\"}}", INFER_E_UNSUPPORTED, "single"},
        {"\"a\": 1", "\"a\": 2", INFER_E_BAD_FILE, "model.vocab: an id given twice"},
        {"\"a\": 1", "\"a\": -1", INFER_E_BAD_FILE, "model.vocab: malformed"},
        {"\"a\": 1", "\"a\": 1e1", INFER_E_BAD_FILE, "model.vocab: malformed"},
        {"\"a\": 1", "\"a\": 99999999999", INFER_E_BAD_FILE, "model.vocab: malformed"},
        {"\"a\": 1", "\"\\ud800\": 1", INFER_E_BAD_FILE, "model.vocab: malformed"},
        {"\"a\": 1", "\"\xFF\": 1", INFER_E_BAD_FILE, "model.vocab: malformed"},
        {"\"a b\"", "\"a\"", INFER_E_BAD_FILE, "model.merges: malformed"},
        {"\"a b\"", "\"a b b\"", INFER_E_BAD_FILE, "model.merges: malformed"},
        {"\"a b\"", "\"a c\"", INFER_E_BAD_FILE, "merge 0 ('a' and 'c'): the right part"},
        {"\"a b\"", "[\"a\"]", INFER_E_BAD_FILE, "model.merges: malformed"},
        {"\"a b\"", "[\"a\", \"b\", \"b\"]", INFER_E_BAD_FILE, "model.merges: malformed"},
        {"\"a b\"", "3", INFER_E_BAD_FILE, "model.merges: malformed"},
        {"\"merges\": [", "\"m\": [", INFER_E_BAD_FILE, "model.merges: not a list"},
        {"\"unk_token\": \"<unk>\"", "\"unk_token\": \"?\"", INFER_E_BAD_FILE, "unk_token"},
        {"\"fuse_unk\": true", "\"dropout\": 0.1", INFER_E_UNSUPPORTED, "model.dropout"},
        {"\"fuse_unk\": true", "\"end_of_word_suffix\": \"</w>\"", INFER_E_UNSUPPORTED, "end_of_word_suffix"},
        {"\"fuse_unk\": true", "\"continuing_subword_prefix\": \"##\"", INFER_E_UNSUPPORTED, "continuing"},
        {"\"fuse_unk\": true", "\"vocab\": {}", INFER_E_BAD_FILE, "expected shape"},
        {"\"version\"", "version", INFER_E_BAD_FILE, "tokenizer.json"},
        {"\"model\"", "\"mod\\u0065l\"", INFER_E_BAD_FILE, "given twice"},
        {"\"model\"", "\"modell\"", INFER_E_BAD_FILE, "model: not an object"},
    };
    infer_tokenizer *t = NULL;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t n;
        char *json = with(rows[i].from, rows[i].to, &n);
        infer_error err = {0};
        infer_status s = create(json, n, NULL, &t, &err);
        if (s != rows[i].status || !strstr(err.text, rows[i].says))
            fail_msg("row %zu (%s): %d '%s'", i, rows[i].to, (int)s, err.text);
        infer_free(json);
    }
    for (size_t n = 0; n < sizeof document - 1; n++) { /* no prefix of it is a document */
        infer_error err = {0};
        assert_int_equal(create(document, n, NULL, &t, &err), INFER_E_BAD_FILE);
    }
    infer_error err = {0};
    assert_int_equal(create(document, sizeof document - 1, "[]", &t, &err), INFER_E_BAD_FILE);
    assert_int_equal(create(document, sizeof document - 1, "{\"bos_token\": 1}", &t, &err), INFER_E_BAD_FILE);
}

/* ---- Memory, threads ------------------------------------------------------------------------------------------- */

/* Everything that a tokenizer does once, with what it allocates released again. The JSON parser's own requests are not
 * made to fail: it ends the process on some. */
static infer_status life(const fixture *f, const char *text, size_t n)
{
    infer_tokenizer *t = NULL;
    infer_status s = f ? infer_tokenizer_create_vocab(&f->v, &t, NULL)
                       : create(document, sizeof document - 1, "{\"eos_token\": \"<s>\"}", &t, NULL);
    if (s != INFER_OK)
        return s;
    int32_t *ids = NULL;
    size_t n_ids = 0, len;
    char *back = NULL;
    s = infer_tokenizer_encode(t, text, n, SPECIAL | ADD, &ids, &n_ids, NULL);
    if (s == INFER_OK)
        s = infer_tokenizer_decode(t, ids, n_ids, 0, &back, &len, NULL);
    if (s == INFER_OK && f)
        assert_memory_equal(back + (strncmp(back, "<s> ", 4) == 0 ? 4 : strncmp(back, "<s>", 3) == 0 ? 3 : 0), text, n);
    infer_ids_free(ids);
    infer_text_free(back);
    infer_tokenizer_destroy(t);
    return s;
}

static void test_allocation_failures(void **state)
{
    (void)state;
    static const char text[] = "hello e\xCC\x81 ab  1234567 \xE4\xB8\xAD\xE6\x96\x87 <s> aaaa";
    static const char composed[] = "hello \xC3\xA9 ab  1234567 \xE4\xB8\xAD\xE6\x96\x87 aaaa";
    fixture bytes, sp;
    byte_level(&bytes, "deepseek-v3");
    sentence_piece(&sp);
    for (int which = 0; which < 3; which++) {
        const fixture *f = which == 0 ? &bytes : which == 1 ? &sp : NULL;
        const char *in = which == 1 ? composed : text;
        for (int all = 0; all < 2; all++) {
            infer_status s = INFER_E_NO_MEMORY;
            for (int64_t k = 0; s != INFER_OK; k++) {
                infer_alloc_fail_after(k, all);
                s = life(f, in, strlen(in));
                int failed = infer_alloc_fail_after(-1, 0);
                /* A failure that is not reported can only be one that does not matter (a scan without JIT). */
                if (s != INFER_OK)
                    assert_int_equal(s, INFER_E_NO_MEMORY);
                if (s == INFER_OK && failed)
                    s = INFER_E_NO_MEMORY;
                assert_true(k < 100000);
            }
        }
    }
}

static void *encode_often(void *arg)
{
    for (int i = 0; i < 200; i++)
        EXPECT(arg, "hello hello<eos>12 x", SPECIAL, HELLO, SP_HELLO, EOS, '1', '2', ' ', 'x');
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    fixture f;
    byte_level(&f, "smollm");
    infer_tokenizer *t = make(&f);
    pthread_t thread[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, encode_often, t), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    infer_tokenizer_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_byte_level),     cmocka_unit_test(test_questions),
        cmocka_unit_test(test_all_rows),       cmocka_unit_test(test_bad_vocab),
        cmocka_unit_test(test_sentence_piece), cmocka_unit_test(test_long),
        cmocka_unit_test(test_every_text),     cmocka_unit_test(test_json),
        cmocka_unit_test(test_bad_json),       cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
