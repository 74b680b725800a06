/* Tokenizer keys of a made model. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "mkmodel.h"

static const char *const special[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
/* Merges, in rank order; each joins two tokens that exist by then. "\xC4\xA0" is the byte-level alphabet's space. */
#define SP "\xC4\xA0"
static const char *const merges[] = {
    SP " t", SP " a",  "h e", "i n", "r e",    SP "t he", "o n",    "e r",    SP " s", "a t",   SP " w",   SP " o",
    "e n",   SP " c",  "i t", "i s", "a n",    "o r",     "e s",    SP " b",  "e d",   SP " f", "in g",    SP " p",
    "o u",   SP "a n", "a l", "a r", SP "t o", SP " m",   SP "o f", SP " in", SP " d", SP " h", SP "an d", "i c",
};

enum { N_SPECIAL = sizeof special / sizeof special[0], N_MERGES = sizeof merges / sizeof merges[0] };

/* Texts and types in growing buffers; the texts' positions are offsets until the buffer stands. */
typedef struct list {
    infer_buf text, at, types; /* at: uint64_t offset and length of each */
    uint32_t n;
} list;

static void add(list *l, const char *s, size_t n, int32_t type)
{
    const uint64_t at[2] = {l->text.n, n};
    infer_buf_append(&l->text, s, n);
    infer_buf_append(&l->at, at, sizeof at);
    infer_buf_append(&l->types, &type, sizeof type);
    l->n++;
}

/* The GPT-2 alphabet: printable Latin-1 stands for itself, every other byte for the next code point from 256. */
static void add_bytes(list *l)
{
    uint32_t shifted = 256;
    for (uint32_t b = 0; b < 256; b++) {
        int same = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        infer_buf one = {0};
        infer_buf_put_utf8(&one, same ? b : shifted++);
        add(l, one.p ? one.p : "", one.n, INFER_TOKEN_NORMAL);
        infer_buf_free(&one);
    }
}

static void pad(list *l, uint32_t n_vocab)
{
    char name[24];
    while (l->n < n_vocab) {
        int n = snprintf(name, sizeof name, "[PAD%u]", l->n);
        add(l, name, (size_t)n, INFER_TOKEN_UNUSED);
    }
}

static infer_status write_lists(infer_gguf_writer *w, const list *l, infer_error *err)
{
    infer_text *t = infer_realloc_array(NULL, l->n, sizeof *t);
    if (!t || l->text.failed || l->at.failed || l->types.failed) {
        infer_free(t);
        return infer_error_set(err, INFER_E_NO_MEMORY, "no memory for %u tokens", l->n);
    }
    for (uint32_t i = 0; i < l->n; i++) {
        uint64_t at[2];
        memcpy(at, l->at.p + i * sizeof at, sizeof at);
        t[i] = (infer_text){l->text.p + at[0], at[1]};
    }
    infer_gguf_writer_strings(w, "tokenizer.ggml.tokens", t, l->n);
    infer_gguf_writer_array(w, "tokenizer.ggml.token_type", INFER_GGUF_I32, l->types.p, l->n);
    infer_free(t);
    return INFER_OK;
}

static void make_own(infer_gguf_writer *w, const char *arch, uint32_t n_vocab, list *l)
{
    infer_text texts[N_MERGES];
    uint32_t n_merges = 0;
    for (int i = 0; i < N_SPECIAL; i++)
        add(l, special[i], strlen(special[i]), INFER_TOKEN_CONTROL);
    add_bytes(l);
    for (int i = 0; i < N_MERGES && l->n < n_vocab; i++) {
        char joined[32];
        const char *space = strchr(merges[i], ' ');
        int n = snprintf(joined, sizeof joined, "%.*s%s", (int)(space - merges[i]), merges[i], space + 1);
        add(l, joined, (size_t)n, INFER_TOKEN_NORMAL);
        texts[n_merges++] = (infer_text){merges[i], strlen(merges[i])};
    }
    infer_gguf_writer_string(w, "tokenizer.ggml.model", INFER_STR("gpt2"));
    infer_gguf_writer_string(w, "tokenizer.ggml.pre", arch[0] == 'q' ? INFER_STR("qwen2") : INFER_STR("llama-bpe"));
    infer_gguf_writer_strings(w, "tokenizer.ggml.merges", texts, n_merges);
    infer_gguf_writer_u32(w, "tokenizer.ggml.bos_token_id", 0);
    infer_gguf_writer_u32(w, "tokenizer.ggml.eos_token_id", 2);
    infer_gguf_writer_bool(w, "tokenizer.ggml.add_bos_token", 0);
    infer_gguf_writer_string(w, "tokenizer.chat_template",
                             INFER_STR("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
                                       "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if "
                                       "add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"));
}

/* Every tokenizer key of `from`, with tokens, types and scores lengthened. */
static infer_status copy_other(infer_gguf_writer *w, const infer_gguf *from, uint32_t n_vocab, list *l,
                               infer_error *err)
{
    infer_gguf_vocab v;
    INFER_TRY(infer_gguf_vocab_load(from, &v, err));
    for (uint32_t i = 0; i < v.v.n_tokens; i++)
        add(l, v.tokens[i].p, (size_t)v.tokens[i].n, v.types ? v.types[i] : INFER_TOKEN_NORMAL);
    infer_buf scores = {0};
    for (uint32_t i = 0; v.scores && i < (n_vocab > l->n ? n_vocab : l->n); i++)
        infer_buf_append(&scores, i < v.v.n_tokens ? &v.scores[i] : &(float){-1e9f}, sizeof(float));
    infer_status s = INFER_OK;
    if (l->n > n_vocab)
        s = infer_error_set(err, INFER_E_INVALID, "the vocabulary has %u tokens, the shape only %u", l->n, n_vocab);
    else if (scores.failed)
        s = infer_error_set(err, INFER_E_NO_MEMORY, "no memory for %u scores", n_vocab);
    else if (v.scores)
        infer_gguf_writer_array(w, "tokenizer.ggml.scores", INFER_GGUF_F32, scores.p, n_vocab);
    infer_buf_free(&scores);
    infer_gguf_vocab_free(&v);
    for (uint32_t i = 0; s == INFER_OK && i < infer_gguf_n_kv(from); i++) {
        const infer_gguf_kv *kv = infer_gguf_kv_at(from, i);
        if (kv->key.n > 10 && !memcmp(kv->key.p, "tokenizer.", 10) &&
            !infer_str_eq(kv->key, INFER_STR("tokenizer.ggml.tokens")) &&
            !infer_str_eq(kv->key, INFER_STR("tokenizer.ggml.token_type")) &&
            !infer_str_eq(kv->key, INFER_STR("tokenizer.ggml.scores")))
            infer_gguf_writer_copy(w, kv);
    }
    return s;
}

infer_status vocab_write(infer_gguf_writer *w, const infer_gguf *from, const char *arch, uint32_t n_vocab,
                         infer_error *err)
{
    list l = {{0}, {0}, {0}, 0};
    infer_status s = INFER_OK;
    if (from)
        s = copy_other(w, from, n_vocab, &l, err);
    else if (n_vocab < N_SPECIAL + 256)
        s = infer_error_set(err, INFER_E_INVALID, "a vocabulary of %u is too small, the least is %d", n_vocab,
                            N_SPECIAL + 256);
    else
        make_own(w, arch, n_vocab, &l);
    if (s == INFER_OK) {
        pad(&l, n_vocab);
        s = write_lists(w, &l, err);
    }
    infer_buf_free(&l.text);
    infer_buf_free(&l.at);
    infer_buf_free(&l.types);
    return s;
}
