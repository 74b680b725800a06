/* Tokenizers against the ids and texts that the reference implementations computed (INFER_TEST_DATA/README.md): one row
 * a vocabulary and file of cases, counts printed. Skipped without the data; a vocabulary that is stored compressed is
 * left out, and said so, where there is no xz. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <infer/text.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/file.h"
#include "model/gguf.h"

enum source { JSON, GGUF, SPM };

/* Vocabulary under tokenizers/ or gguf-vocab/, and cases under INFER_TEST_DATA. plain: special tokens' texts in the
 * cases are plain text. */
static const struct row {
    enum source source;
    const char *name, *cases;
    int plain;
} rows[] = {
    {JSON, "llama3", "tokenizers/llama3/cases.jsonl", 0},
    {JSON, "llama3", "gguf-vocab/llama-bpe.cases.jsonl", 0},
    {JSON, "qwen3", "tokenizers/qwen3/cases.jsonl", 0},
    {JSON, "qwen3", "gguf-vocab/qwen2.cases.jsonl", 0},
    {JSON, "deepseek_v3", "tokenizers/deepseek_v3/cases.jsonl", 0},
    {JSON, "gptoss", "tokenizers/gptoss/cases.jsonl", 0},
    {JSON, "cl100k", "tokenizers/cl100k/cases.jsonl", 0},
    {JSON, "gpt2", "tokenizers/gpt2/cases.jsonl", 0},
    {JSON, "claude", "tokenizers/claude/cases.jsonl", 0},
    {JSON, "mistral_tekken", "tokenizers/mistral_tekken/cases.jsonl", 0},
    {JSON, "mistral_v1", "tokenizers/mistral_v1/cases.jsonl", 0},
    {JSON, "llama2", "tokenizers/llama2/cases.jsonl", 0},
    {JSON, "mistral_v3", "tokenizers/mistral_v3/cases.jsonl", 0},
    {JSON, "gemma3", "tokenizers/gemma3/cases.jsonl", 0},
    {JSON, "gemma2", "tokenizers/gemma2/cases.jsonl", 0},
    {SPM, "llama2", "tokenizers/llama2/cases.spm.jsonl", 1},
    {SPM, "mistral_v1", "tokenizers/mistral_v1/cases.spm.jsonl", 1},
    {SPM, "mistral_v3", "tokenizers/mistral_v3/cases.spm.jsonl", 1},
    {GGUF, "llama-spm", "gguf-vocab/llama-spm.cases.jsonl", 1},
    {GGUF, "llama-spm", "tokenizers/llama2/cases.spm.jsonl", 1},
    {GGUF, "phi-3", "gguf-vocab/phi-3.cases.jsonl", 1},
    {GGUF, "gpt-2", "gguf-vocab/gpt-2.cases.jsonl", 1},
    {GGUF, "gpt-2", "tokenizers/gpt2/cases.jsonl", 0},
    {GGUF, "deepseek-coder", "gguf-vocab/deepseek-coder.cases.jsonl", 1},
    {GGUF, "deepseek-coder", "gguf-vocab/deepseek-coder.more.jsonl", 1},
    {GGUF, "deepseek-llm", "gguf-vocab/deepseek-llm.cases.jsonl", 1},
    {GGUF, "falcon", "gguf-vocab/falcon.cases.jsonl", 1},
    {GGUF, "falcon", "gguf-vocab/falcon.more.jsonl", 1},
    {GGUF, "mpt", "gguf-vocab/mpt.cases.jsonl", 1},
    {GGUF, "mpt", "gguf-vocab/mpt.more.jsonl", 1},
    {GGUF, "refact", "gguf-vocab/refact.cases.jsonl", 1},
    {GGUF, "refact", "gguf-vocab/refact.more.jsonl", 1},
    {GGUF, "starcoder", "gguf-vocab/starcoder.cases.jsonl", 1},
    {GGUF, "starcoder", "gguf-vocab/starcoder.more.jsonl", 1},
};

static const char *root;

/* A file, or its .xz through xz: owned by b. 1, 0 where there is neither, -1 where there is no xz. */
static int slurp(const char *path, infer_buf *b)
{
    char name[600];
    *b = (infer_buf){0};
    snprintf(name, sizeof name, "%s/%s", root, path);
    char *p;
    size_t n;
    if (infer_file_read(name, (uint64_t)1 << 30, &p, &n, NULL) == INFER_OK) {
        b->p = p;
        b->n = n;
        return 1;
    }
    snprintf(name, sizeof name, "%s/%s.xz", root, path);
    FILE *f = fopen(name, "rb");
    if (!f)
        return 0;
    fclose(f);
    if (system("command -v xz >/dev/null 2>&1") != 0)
        return -1;
    snprintf(name, sizeof name, "xz -dc '%s/%s.xz'", root, path);
    f = popen(name, "r");
    while (f) {
        char *to = infer_buf_reserve(b, 1 << 20);
        size_t got = to ? fread(to, 1, 1 << 20, f) : 0;
        b->n += got;
        if (!got)
            break;
    }
    return f && pclose(f) == 0 && b->n ? 1 : 0;
}

/* ---- A vocabulary from SentencePiece's own file, as a converter to GGUF would state it ---- */

static size_t varint(const uint8_t *p, size_t n, uint64_t *v)
{
    *v = 0;
    for (size_t i = 0; i < n && i < 10; i++) {
        *v |= (uint64_t)(p[i] & 127) << 7 * i;
        if (!(p[i] & 128))
            return i + 1;
    }
    return 0;
}

/* Steps through a protobuf message: the next field's number, with its bytes or value. 0 at the end. */
static uint32_t next_field(const uint8_t **p, const uint8_t *end, infer_str *bytes, uint64_t *value)
{
    uint64_t tag, len;
    size_t k = varint(*p, (size_t)(end - *p), &tag);
    if (!k)
        return 0;
    *p += k;
    len = 4;
    if ((tag & 7) == 2 || (tag & 7) == 0) {
        *p += varint(*p, (size_t)(end - *p), (tag & 7) == 2 ? &len : value);
        if ((tag & 7) == 0)
            return (uint32_t)(tag >> 3);
    }
    if (len > (uint64_t)(end - *p))
        return 0;
    *bytes = infer_str_of((const char *)*p, (size_t)len);
    *p += len;
    return (uint32_t)(tag >> 3);
}

static infer_status create_spm(const infer_buf *model, infer_tokenizer **t, infer_error *err)
{
    enum { MAX = 65536 };
    infer_text *tokens = calloc(MAX, sizeof *tokens);
    float *scores = calloc(MAX, sizeof *scores);
    int32_t *types = calloc(MAX, sizeof *types);
    infer_vocab v = {.model = "llama", .bos = 1, .eos = 2, .unk = 0, .sep = -1, .pad = -1, .eot = -1};
    v.add_bos = v.add_eos = v.add_space_prefix = v.remove_extra_whitespaces = -1;
    const uint8_t *p = (const uint8_t *)model->p, *end = p + model->n;
    infer_str piece, s;
    uint64_t value;
    for (uint32_t field; (field = next_field(&p, end, &piece, &value)) && v.n_tokens < MAX;) {
        if (field != 1)
            continue;
        uint32_t i = v.n_tokens++;
        types[i] = INFER_TOKEN_NORMAL;
        const uint8_t *q = (const uint8_t *)piece.p, *q_end = q + piece.n;
        while ((field = next_field(&q, q_end, &s, &value))) {
            if (field == 1)
                tokens[i] = (infer_text){s.p, s.n};
            else if (field == 2)
                memcpy(&scores[i], s.p, 4);
            else if (field == 3)
                types[i] = (int32_t)value;
        }
    }
    v.tokens = tokens;
    v.scores = scores;
    v.types = types;
    infer_status st = infer_tokenizer_create_vocab(&v, t, err);
    free(tokens);
    free(scores);
    free(types);
    return st;
}

static infer_status create_gguf(const infer_buf *file, infer_tokenizer **t, infer_error *err)
{
    infer_gguf *g;
    infer_gguf_vocab v;
    infer_gguf_bytes bytes = {file->p, file->n};
    infer_status s = infer_gguf_open_bytes(&bytes, 1, &g, err);
    if (s != INFER_OK)
        return s;
    s = infer_gguf_vocab_load(g, &v, err);
    if (s == INFER_OK) {
        s = infer_tokenizer_create_vocab(&v.v, t, err);
        infer_gguf_vocab_free(&v);
    }
    infer_gguf_close(g);
    return s;
}

/* 1 with a tokenizer, 0 on a failure (said), -1 where it cannot be unpacked. */
static int create(const struct row *r, infer_tokenizer **t)
{
    char path[200];
    infer_buf a, b = {0};
    infer_error err = {0};
    snprintf(path, sizeof path, r->source == GGUF ? "gguf-vocab/%s.gguf" : "tokenizers/%s/tokenizer.%s", r->name,
             r->source == JSON ? "json" : "model");
    int ok = slurp(path, &a);
    if (ok == 1 && r->source == JSON) {
        snprintf(path, sizeof path, "tokenizers/%s/tokenizer_config.json", r->name);
        ok = slurp(path, &b);
    }
    infer_status s = INFER_E_NOT_FOUND;
    if (ok == 1)
        s = r->source == JSON   ? infer_tokenizer_create_json(a.p, a.n, b.p, b.n, t, &err)
            : r->source == GGUF ? create_gguf(&a, t, &err)
                                : create_spm(&a, t, &err);
    infer_buf_free(&a);
    infer_buf_free(&b);
    if (ok == 1 && s != INFER_OK)
        printf("  %s: %s\n", r->name, err.text);
    return ok < 0 ? -1 : s == INFER_OK;
}

/* The text that ids decode to is `want` (NULL: whatever), all at once and one by one. */
static int check_decode(const infer_tokenizer *t, const int32_t *ids, size_t n, uint32_t flags, const json_t *want)
{
    char *text = NULL;
    size_t len = 0;
    infer_buf streamed = {0};
    infer_detok *d = NULL;
    const char *part;
    size_t part_n;
    int ok = infer_tokenizer_decode(t, ids, n, flags, &text, &len, NULL) == INFER_OK &&
             infer_detok_create(t, flags, &d) == INFER_OK;
    uint64_t allocations = infer_alloc_count();
    for (size_t i = 0; ok && i <= n; i++) {
        ok = (i < n ? infer_detok_push(d, ids[i], &part, &part_n) : infer_detok_flush(d, &part, &part_n)) == INFER_OK;
        if (ok && infer_alloc_count() != allocations)
            ok = 0; /* pushing must not allocate */
        if (ok)
            infer_buf_append(&streamed, part, part_n);
        allocations = infer_alloc_count();
    }
    ok = ok && streamed.n == len && (len == 0 || memcmp(streamed.p, text, len) == 0);
    if (ok && want)
        ok = json_string_length(want) == len && memcmp(json_string_value(want), text, len) == 0;
    infer_detok_destroy(d);
    infer_buf_free(&streamed);
    infer_text_free(text);
    return ok;
}

/* show: how many failures are still printed. */
static int check_case(const infer_tokenizer *t, const json_t *c, int plain, int *show)
{
    const json_t *text = json_object_get(c, "text"), *want = json_object_get(c, "ids");
    uint32_t flags = (json_is_true(json_object_get(c, "add_special")) ? INFER_ENCODE_ADD_SPECIAL : 0) |
                     (plain ? 0 : INFER_ENCODE_PARSE_SPECIAL);
    int32_t *ids;
    size_t n;
    if (infer_tokenizer_encode(t, json_string_value(text), json_string_length(text), flags, &ids, &n, NULL) != INFER_OK)
        return 0;
    int ok = n == json_array_size(want);
    for (size_t i = 0; ok && i < n; i++)
        ok = ids[i] == json_integer_value(json_array_get(want, i));
    ok = ok && check_decode(t, ids, n, 0, json_object_get(c, "decoded")) &&
         check_decode(t, ids, n, INFER_DECODE_SKIP_SPECIAL, json_object_get(c, "decoded_skip_special"));
    if (!ok && (*show)-- > 0) {
        char *in = json_dumps(text, JSON_ENCODE_ANY), *expected = json_dumps(want, JSON_COMPACT);
        printf("  text %s\n  want %s\n  have ", in, expected);
        for (size_t i = 0; i < n; i++)
            printf("%c%d", i ? ',' : '[', ids[i]);
        printf("]\n");
        free(in);
        free(expected);
    }
    infer_ids_free(ids);
    return ok;
}

/* Cases that passed and all cases of a file. */
static void run_cases(const infer_tokenizer *t, const struct row *r, unsigned *pass, unsigned *total)
{
    infer_buf b;
    int show = 3;
    *pass = *total = 0;
    if (slurp(r->cases, &b) != 1)
        return;
    for (char *line = b.p, *end = b.p + b.n; line < end;) {
        char *eol = memchr(line, '\n', (size_t)(end - line));
        size_t n = eol ? (size_t)(eol - line) : (size_t)(end - line);
        json_t *c = json_loadb(line, n, JSON_ALLOW_NUL, NULL);
        int ok = c && check_case(t, c, r->plain, &show);
        *total += 1;
        *pass += (unsigned)ok;
        json_decref(c);
        line += n + 1;
    }
    infer_buf_free(&b);
}

int main(void)
{
    root = getenv("INFER_TEST_DATA");
    if (!root || !*root)
        return 77;
    unsigned failed = 0, all_pass = 0, all_total = 0;
    infer_tokenizer *t = NULL;
    int have = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct row *r = &rows[i];
        if (!i || r[-1].source != r->source || strcmp(r[-1].name, r->name) != 0) {
            infer_tokenizer_destroy(t);
            t = NULL;
            have = create(r, &t);
        }
        if (have < 0) {
            printf("%-16s %-42s left out: no xz\n", r->name, r->cases);
            continue;
        }
        unsigned pass = 0, total = 0;
        if (t)
            run_cases(t, r, &pass, &total);
        printf("%-16s %-42s %3u of %3u\n", r->name, r->cases, pass, total);
        failed += !total || pass != total;
        all_pass += pass;
        all_total += total;
    }
    infer_tokenizer_destroy(t);
    printf("%u of %u cases\n", all_pass, all_total);
    return failed ? 1 : 0;
}
