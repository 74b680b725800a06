/* libFuzzer target: a vocabulary as a hostile model file could state it. An input is eight bytes of settings, then
 * strings that end with NUL: pieces (a byte of type and one of score before the text) up to an empty one, merges up to
 * an empty one, and what is left is the text to encode. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include <infer/text.h>

#include "text/pretokenize.h"
#include "text/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_TOKENS = 512, MAX_MERGES = 256 };

static const char *const pres[] = {"gpt-2",      "llama-bpe", "qwen2", "gpt-4o",  "tekken",
                                   "kimi-k2",    "tiny_aya",  "afmoe", "falcon",  "deepseek-llm",
                                   "exaone-moe", "chameleon", "bloom", "nonesuch"};

/* The next string of the input; 0 where it is empty or there is none. */
static int next(const uint8_t **p, const uint8_t *end, infer_text *out)
{
    const uint8_t *nul = *p < end ? memchr(*p, 0, (size_t)(end - *p)) : NULL;
    if (!nul)
        return 0;
    *out = (infer_text){(const char *)*p, (uint64_t)(nul - *p)};
    *p = nul + 1;
    return out->n > 0;
}

static void encode(const infer_tokenizer *t, const char *text, size_t n, uint32_t flags)
{
    int32_t *ids;
    size_t n_ids, len;
    char *back;
    if (infer_tokenizer_encode(t, text, n, flags, &ids, &n_ids, NULL) != INFER_OK)
        return;
    if (infer_tokenizer_decode(t, ids, n_ids, 0, &back, &len, NULL) != INFER_OK || !infer_utf8_valid(back, len))
        abort();
    infer_text_free(back);
    infer_ids_free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static infer_text tokens[MAX_TOKENS], merges[MAX_MERGES];
    static int32_t types[MAX_TOKENS];
    static float scores[MAX_TOKENS];
    static char alphabet[256][4];
    if (size < 8)
        return 0;
    const uint8_t *p = data + 8, *end = data + size;
    infer_vocab v = {.model = data[0] & 1 ? "llama" : "gpt2", .pre = pres[data[1] % (sizeof pres / sizeof *pres)]};
    v.bos = (int8_t)data[2];
    v.eos = (int8_t)data[3];
    v.unk = (int8_t)data[4];
    v.sep = v.pad = v.eot = (int8_t)data[5];
    v.add_bos = data[6] % 3 - 1;
    v.add_eos = data[6] / 3 % 3 - 1;
    v.add_space_prefix = data[6] / 9 % 3 - 1;
    v.remove_extra_whitespaces = data[6] / 27 % 3 - 1;
    for (infer_text s; v.n_tokens < 256 && next(&p, end, &s); v.n_tokens++) {
        types[v.n_tokens] = (int32_t)((uint8_t)s.p[0] % 8);
        scores[v.n_tokens] = s.n > 1 ? (float)(int8_t)s.p[1] : 0;
        tokens[v.n_tokens] = s.n > 2 ? (infer_text){s.p + 2, s.n - 2} : (infer_text){"", 0};
    }
    for (unsigned b = 0; data[7] & 1 && b < 256; b++, v.n_tokens++) { /* the byte alphabet, so that something merges */
        tokens[v.n_tokens] = (infer_text){alphabet[b], infer_utf8_put(infer_byte_to_char((uint8_t)b), alphabet[b])};
        types[v.n_tokens] = INFER_TOKEN_NORMAL;
        scores[v.n_tokens] = -1;
    }
    for (infer_text s; v.n_merges < MAX_MERGES && next(&p, end, &s); v.n_merges++)
        merges[v.n_merges] = s;
    v.tokens = tokens;
    v.types = data[7] & 2 ? NULL : types;
    v.scores = data[7] & 4 ? NULL : scores;
    v.merges = merges;
    infer_tokenizer *t;
    infer_error err;
    if (infer_tokenizer_create_vocab(&v, &t, &err) != INFER_OK)
        return 0;
    size_t n = (size_t)(end - p) < 512 ? (size_t)(end - p) : 512;
    encode(t, (const char *)p, n, 0);
    encode(t, (const char *)p, n, INFER_ENCODE_ADD_SPECIAL | INFER_ENCODE_PARSE_SPECIAL);
    infer_tokenizer_destroy(t);
    return 0;
}
