/* A tokenizer from the vocabulary that a model file states. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "text/tokenizer.h"

#define METASPACE INFER_STR("\xE2\x96\x81") /* U+2581 */

static infer_status check_id(const infer_vocab *v, int32_t id, const char *name, infer_error *err)
{
    if (id < -1 || (id >= 0 && (uint32_t)id >= v->n_tokens))
        return infer_error_set(err, INFER_E_BAD_FILE, "vocabulary: %s token %d is not in [0, %u)", name, id,
                               v->n_tokens);
    return INFER_OK;
}

static infer_status fill_pieces(infer_tokenizer *t, const infer_vocab *v, infer_error *err)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < v->n_tokens; i++)
        if (!infer_add_u64(bytes, v->tokens[i].n, &bytes))
            return infer_error_set(err, INFER_E_BAD_FILE, "vocabulary: sizes of the pieces overflow");
    infer_status s = infer_pieces_init(&t->pieces, v->n_tokens, bytes, err);
    for (uint32_t i = 0; s == INFER_OK && i < v->n_tokens; i++) {
        int32_t type = v->types ? v->types[i] : INFER_TOKEN_NORMAL;
        if (type < INFER_TOKEN_NORMAL || type > INFER_TOKEN_BYTE)
            return infer_error_set(err, INFER_E_BAD_FILE, "vocabulary: token %u has the unknown type %d", i, type);
        infer_pieces_set(&t->pieces, i, v->tokens[i].p, (size_t)v->tokens[i].n, type, 1);
    }
    if (s == INFER_OK)
        infer_tokenizer_type_ends(t);
    return s;
}

/* Tokens that texts are searched for: special ones, to be parsed on request only, and user-defined ones, always. Some
 * files call even their EOS user-defined. */
static infer_status fill_added(infer_tokenizer *t, const infer_vocab *v, infer_error *err)
{
    infer_status s = INFER_OK;
    for (uint32_t i = 0; s == INFER_OK && i < t->pieces.n; i++) {
        int type = t->pieces.type[i];
        int32_t id = (int32_t)i;
        int special = type == INFER_TOKEN_CONTROL || type == INFER_TOKEN_UNKNOWN;
        if (!special && type != INFER_TOKEN_USER_DEFINED)
            continue;
        special |= id == v->bos || id == v->eos || id == v->eot || id == v->sep || id == v->pad;
        infer_added_token token = {.text = infer_pieces_get(&t->pieces, i), .id = id, .special = (uint8_t)special};
        s = infer_tokenizer_add_token(t, token, 0, err);
    }
    return s;
}

/* Byte-level BPE: row of the pre-tokenizer table, then merges. */
static infer_status fill_bpe(infer_tokenizer *t, const infer_vocab *v, int *add_bos, infer_error *err)
{
    if (!v->pre)
        return infer_error_set(err, INFER_E_UNSUPPORTED,
                               "vocabulary: no pre-tokenizer is named (tokenizer.ggml.pre); convert the model again");
    const infer_pre_row *row = infer_pre_row_find(v->pre);
    if (!row)
        return infer_error_set(err, INFER_E_UNSUPPORTED, "vocabulary: pre-tokenizer '%.100s' is not known", v->pre);
    *add_bos = row->flags & INFER_PRE_ADD_BOS ? 1 : 0;
    infer_status s = INFER_OK;
    if (row->flags & INFER_PRE_NFC)
        s = infer_tokenizer_add_norm(t, (infer_norm){.kind = INFER_NORM_NFC}, err);
    for (size_t i = 0; s == INFER_OK && i < sizeof row->patterns / sizeof *row->patterns && row->patterns[i]; i++)
        s = infer_tokenizer_add_split(t, row->patterns[i], strlen(row->patterns[i]), INFER_SPLIT_ISOLATED, 0, err);
    if (s == INFER_OK)
        s = infer_tokenizer_add_pre(t, (infer_pre_step){.kind = INFER_PRE_BYTES}, err);
    if (s != INFER_OK)
        return s;
    t->bpe.ignore_merges = row->flags & INFER_PRE_IGNORE_MERGES ? 1 : 0;
    t->bpe.unk = -1;
    t->decoder.byte_level = 1;
    infer_bpe_init(&t->bpe, &t->pieces, 0);
    uint32_t guess = 0;
    for (uint32_t i = 0; s == INFER_OK && i < v->n_merges; i++) {
        infer_text m = v->merges[i];
        const char *space = m.n > 1 ? memchr(m.p + 1, ' ', (size_t)m.n - 1) : NULL;
        if (!space)
            return infer_error_set(err, INFER_E_BAD_FILE, "vocabulary: merge %u is not two pieces", i);
        size_t left = (size_t)(space - m.p);
        s = infer_bpe_merge(&t->bpe, infer_str_of(m.p, left), infer_str_of(space + 1, (size_t)m.n - left - 1), &guess,
                            err);
    }
    return s == INFER_OK ? infer_bpe_merges_done(&t->bpe, err) : s;
}

/* SentencePiece BPE: spaces become U+2581, merges follow the scores. */
static infer_status fill_spm(infer_tokenizer *t, const infer_vocab *v, int *add_bos, infer_error *err)
{
    if (!v->scores)
        return infer_error_set(err, INFER_E_BAD_FILE, "vocabulary: no scores (tokenizer.ggml.scores)");
    *add_bos = 1;
    infer_status s = INFER_OK;
    if (v->remove_extra_whitespaces > 0)
        s = infer_tokenizer_add_norm(t, (infer_norm){.kind = INFER_NORM_SQUEEZE}, err);
    if (s == INFER_OK && v->add_space_prefix != 0) {
        s = infer_tokenizer_add_norm(t, (infer_norm){.kind = INFER_NORM_PREPEND, .to = METASPACE}, err);
        t->decoder.strip = 1;
    }
    if (s == INFER_OK)
        s = infer_tokenizer_add_norm(
            t, (infer_norm){.kind = INFER_NORM_REPLACE, .from = INFER_STR(" "), .to = METASPACE}, err);
    if (s != INFER_OK)
        return s;
    t->decoder.byte_fallback = 1;
    t->decoder.from = METASPACE;
    t->decoder.to = INFER_STR(" ");
    t->bpe.unk = v->unk;
    t->bpe.fuse_unk = 1;
    infer_bpe_init(&t->bpe, &t->pieces, 1);
    return infer_bpe_scores(&t->bpe, v->scores, err);
}

static const struct {
    const infer_tokenizer_kind *kind;
    infer_status (*fill)(infer_tokenizer *t, const infer_vocab *v, int *add_bos, infer_error *err);
} kinds[] = {
    {&infer_tokenizer_bpe, fill_bpe},
    {&infer_tokenizer_spm, fill_spm},
};

/* BOS or EOS, where the file or the kind wants it. A file that wants one which it does not have is wrong. */
static infer_status add_affix(int32_t stated, int by_default, int32_t id, const char *name, int32_t *list, size_t *n,
                              infer_error *err)
{
    if (stated > 0 && id < 0)
        return infer_error_set(err, INFER_E_BAD_FILE, "vocabulary: %s is to be added, but there is no such token",
                               name);
    if ((stated < 0 ? by_default : stated) && id >= 0)
        list[(*n)++] = id;
    return INFER_OK;
}

infer_status infer_tokenizer_create_vocab(const infer_vocab *v, infer_tokenizer **out, infer_error *err)
{
    infer_status s = INFER_OK;
    const struct {
        int32_t id;
        const char *name;
    } ids[] = {{v->bos, "BOS"}, {v->eos, "EOS"}, {v->unk, "unknown"},
               {v->sep, "SEP"}, {v->pad, "PAD"}, {v->eot, "EOT"}};
    for (size_t i = 0; s == INFER_OK && i < sizeof ids / sizeof *ids; i++)
        s = check_id(v, ids[i].id, ids[i].name, err);
    if (s != INFER_OK)
        return s;
    size_t kind = 0;
    while (kind < sizeof kinds / sizeof *kinds && (!v->model || strcmp(kinds[kind].kind->gguf, v->model) != 0))
        kind++;
    if (kind == sizeof kinds / sizeof *kinds)
        return infer_error_set(err, INFER_E_UNSUPPORTED, "vocabulary: tokenizer model '%.100s' is not known",
                               v->model ? v->model : "");
    infer_tokenizer *t = infer_calloc(1, sizeof *t);
    if (!t)
        return infer_error_set(err, INFER_E_NO_MEMORY, "tokenizer: no memory");
    t->kind = kinds[kind].kind;
    t->bos = v->bos;
    t->eos = v->eos;
    t->eot = v->eot;
    int add_bos = 0;
    s = fill_pieces(t, v, err);
    if (s == INFER_OK)
        s = kinds[kind].fill(t, v, &add_bos, err);
    if (s == INFER_OK)
        s = fill_added(t, v, err);
    if (s == INFER_OK)
        s = add_affix(v->add_bos, add_bos, v->bos, "BOS", t->prefix, &t->n_prefix, err);
    if (s == INFER_OK)
        s = add_affix(v->add_eos, 0, v->eos, "EOS", t->suffix, &t->n_suffix, err);
    if (s == INFER_OK)
        s = infer_tokenizer_finish(t, err);
    if (s != INFER_OK) {
        infer_tokenizer_destroy(t);
        return s;
    }
    *out = t;
    return INFER_OK;
}
