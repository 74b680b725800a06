/* Encoding, and what can be asked of a tokenizer. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "base/alloc.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

/* ---- Building -------------------------------------------------------------------------------------------------- */

const char *infer_tokenizer_keep(infer_tokenizer *t, const char *p, size_t n)
{
    if ((t->n_text & (t->n_text - 1)) == 0) { /* full at each power of two */
        char **list = infer_realloc_array(t->text, t->n_text ? t->n_text * 2 : 1, sizeof *list);
        if (!list)
            return NULL;
        t->text = list;
    }
    char *copy = infer_strndup(p, n);
    if (copy)
        t->text[t->n_text++] = copy;
    return copy;
}

infer_status infer_tokenizer_add_norm(infer_tokenizer *t, infer_norm step, infer_error *err)
{
    if (t->n_norm == INFER_TOKENIZER_MAX_NORMS) {
        infer_regex_destroy(step.regex);
        return infer_error_set(err, INFER_E_TOO_LARGE, "tokenizer: more than %u normalizer steps",
                               INFER_TOKENIZER_MAX_NORMS);
    }
    t->norm[t->n_norm++] = step;
    return INFER_OK;
}

infer_status infer_tokenizer_add_pre(infer_tokenizer *t, infer_pre_step step, infer_error *err)
{
    if (t->n_pre == INFER_PRE_MAX_STEPS) {
        infer_regex_destroy(step.regex);
        return infer_error_set(err, INFER_E_TOO_LARGE, "tokenizer: more than %u pre-tokenizer steps",
                               INFER_PRE_MAX_STEPS);
    }
    t->pre[t->n_pre++] = step;
    return INFER_OK;
}

infer_status infer_tokenizer_add_split(infer_tokenizer *t, const char *pattern, size_t n, infer_split how, int invert,
                                       infer_error *err)
{
    infer_pre_step step = {.kind = INFER_PRE_SPLIT, .split = how, .invert = invert};
    infer_status s = infer_regex_compile(pattern, n, &step.regex, err);
    return s == INFER_OK ? infer_tokenizer_add_pre(t, step, err) : s;
}

infer_status infer_tokenizer_add_token(infer_tokenizer *t, infer_added_token token, int normalized, infer_error *err)
{
    if (!normalized)
        return infer_added_put(&t->added, &token, err);
    infer_norm_scratch scratch = {.max_text = token.text.n};
    infer_status s = infer_normalize(t->norm, t->n_norm, &scratch, token.text, &token.text, err);
    if (s == INFER_OK) {
        token.text.p = infer_tokenizer_keep(t, token.text.p, token.text.n);
        s = token.text.p ? infer_added_put(&t->added_normalized, &token, err)
                         : infer_error_set(err, INFER_E_NO_MEMORY, "added tokens: no memory");
    }
    infer_norm_scratch_free(&scratch);
    return s;
}

/* Pieces that end a turn or the text, whatever a file says of EOS and EOT. `unless`: only where that piece is absent,
 * as with it the name has another meaning (in gpt-oss, <|end|> ends one of several messages of a turn). */
static const struct end_name {
    const char *name, *unless;
} end_names[] = {
    {"<|eot_id|>", NULL},
    {"<|im_end|>", NULL},
    {"<|end|>", "<|return|>"},
    {"<|return|>", NULL},
    {"<|call|>", NULL},
    {"<end_of_turn>", NULL},
    {"<turn|>", NULL},
    {"<|endoftext|>", NULL},
    {"<|end_of_text|>", NULL},
    {"<|eom_id|>", NULL},
    {"<|eot|>", NULL},
    {"<EOT>", NULL},
    {"<|END_OF_TURN_TOKEN|>", NULL},
    {"<|end_of_turn|>", NULL},
    {"<|endofturn|>", NULL},
    {"<end_of_utterance>", NULL},
    {"<|user_end|>", NULL},
    {"<eos>", NULL},
    {"<｜end▁of▁sentence｜>", NULL},
    {"<|end_of_sentence|>", NULL},
    {"[EOS]", NULL},
    {"[|endofturn|]", NULL},
};

void infer_tokenizer_type_ends(infer_tokenizer *t)
{
    for (size_t i = 0; i < sizeof end_names / sizeof *end_names; i++) {
        int32_t id = infer_pieces_find(&t->pieces, end_names[i].name, strlen(end_names[i].name));
        if (id >= 0 && t->pieces.type[id] == INFER_TOKEN_NORMAL)
            t->pieces.type[id] = INFER_TOKEN_CONTROL;
    }
}

infer_status infer_tokenizer_finish(infer_tokenizer *t, infer_error *err)
{
    infer_added_sort(&t->added);
    infer_added_sort(&t->added_normalized);
    size_t n = sizeof end_names / sizeof *end_names;
    t->end = infer_malloc(n * sizeof *t->end);
    if (!t->end)
        return infer_error_set(err, INFER_E_NO_MEMORY, "tokenizer: no memory");
    for (size_t i = 0; i < n; i++) {
        const struct end_name *e = &end_names[i];
        int32_t id = infer_tokenizer_find(t, e->name, strlen(e->name));
        if (id < 0 || (e->unless && infer_tokenizer_find(t, e->unless, strlen(e->unless)) >= 0))
            continue;
        if (t->pieces.type[id] == INFER_TOKEN_CONTROL || t->pieces.type[id] == INFER_TOKEN_USER_DEFINED)
            t->end[t->n_end++] = id;
    }
    return infer_tokenizer_make_whole(t) == INFER_OK ? INFER_OK
                                                     : infer_error_set(err, INFER_E_NO_MEMORY, "tokenizer: no memory");
}

void infer_tokenizer_destroy(infer_tokenizer *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->n_norm; i++)
        infer_regex_destroy(t->norm[i].regex);
    for (size_t i = 0; i < t->n_pre; i++)
        infer_regex_destroy(t->pre[i].regex);
    for (size_t i = 0; i < t->n_text; i++)
        infer_free(t->text[i]);
    infer_free(t->text);
    infer_free(t->end);
    infer_added_free(&t->added);
    infer_added_free(&t->added_normalized);
    infer_bpe_free(&t->bpe);
    infer_pieces_free(&t->pieces);
    infer_free_aligned(t->whole);
    infer_free(t);
}

/* ---- Encoding -------------------------------------------------------------------------------------------------- */

static infer_status bpe_word(infer_encoder *e, const char *p, size_t n)
{
    return infer_bpe_encode(&e->t->bpe, &e->bpe, p, n, &e->ids, e->err);
}

const infer_tokenizer_kind infer_tokenizer_bpe = {"gpt2", "BPE", bpe_word};
const infer_tokenizer_kind infer_tokenizer_spm = {"llama", NULL, bpe_word};

static infer_status encode_word(void *user, const char *p, size_t n)
{
    infer_encoder *e = user;
    return e->t->kind->encode_word(e, p, n);
}

/* Text between added tokens goes to the next stage: first normalisation, then the words. */
typedef infer_status (*stage_fn)(infer_encoder *e, infer_str text, int at_start);

static infer_status encode_plain(infer_encoder *e, infer_str text, int at_start)
{
    return infer_pretokenize(e->t->pre, e->t->n_pre, &e->norm, &e->pre, text, at_start, encode_word, e, e->err);
}

static int word_before(infer_str text, size_t at)
{
    if (!at)
        return 0;
    size_t i = at - 1;
    while (i && ((uint8_t)text.p[i] & 0xC0) == 0x80)
        i--;
    uint32_t cp;
    infer_utf8_get(text.p + i, at - i, &cp);
    return infer_utf8_is_word(cp);
}

static int word_after(infer_str text, size_t at)
{
    uint32_t cp;
    if (at == text.n)
        return 0;
    infer_utf8_get(text.p + at, text.n - at, &cp);
    return infer_utf8_is_word(cp);
}

static size_t spaces_before(infer_str text, size_t at, size_t from)
{
    while (at > from) {
        size_t i = at - 1;
        while (i > from && ((uint8_t)text.p[i] & 0xC0) == 0x80)
            i--;
        uint32_t cp;
        infer_utf8_get(text.p + i, at - i, &cp);
        if (!infer_utf8_is_space(cp))
            break;
        at = i;
    }
    return at;
}

static size_t spaces_after(infer_str text, size_t at)
{
    while (at < text.n) {
        uint32_t cp;
        size_t k = infer_utf8_get(text.p + at, text.n - at, &cp);
        if (!infer_utf8_is_space(cp))
            break;
        at += k;
    }
    return at;
}

/* Emits the added tokens in the text and hands what lies between them on. */
static infer_status split_added(infer_encoder *e, const infer_added *added, infer_str text, int at_start, stage_fn next)
{
    size_t done = 0, from = 0;
    infer_status s = INFER_OK;
    while (s == INFER_OK) {
        size_t start;
        const infer_added_token *tok = infer_added_find(added, text.p, text.n, from, &start);
        if (!tok)
            break;
        size_t end = from = start + tok->text.n;
        if (tok->special && !(e->flags & INFER_ENCODE_PARSE_SPECIAL))
            continue;
        if (tok->single_word && (word_before(text, start) || word_after(text, end)))
            continue;
        if (tok->rstrip)
            end = spaces_after(text, end);
        if (tok->lstrip) {
            start = spaces_before(text, start, done);
            if (start < done)
                start = done;
            if (start >= end) /* nothing but blanks, which the token before took */
                continue;
        }
        if (start > done)
            s = next(e, infer_str_of(text.p + done, start - done), at_start && done == 0);
        infer_id_list_push(&e->ids, tok->id);
        done = end;
    }
    if (s == INFER_OK && done < text.n)
        s = next(e, infer_str_of(text.p + done, text.n - done), at_start && done == 0);
    return s;
}

static infer_status encode_raw(infer_encoder *e, infer_str text, int at_start)
{
    infer_status s = infer_normalize(e->t->norm, e->t->n_norm, &e->norm, text, &text, e->err);
    if (s != INFER_OK)
        return s;
    return split_added(e, &e->t->added_normalized, text, at_start && !e->norm.lost_start, encode_plain);
}

infer_status infer_tokenizer_encode(const infer_tokenizer *t, const char *text, size_t n, uint32_t flags, int32_t **ids,
                                    size_t *n_ids, infer_error *err)
{
    if (n > (size_t)1 << 30)
        return infer_error_set(err, INFER_E_TOO_LARGE, "encode: text of %zu bytes, the limit is 1 GiB", n);
    infer_encoder e = {.t = t, .err = err, .flags = flags};
    infer_buf valid = {0};
    infer_str in = {text, n};
    infer_status s = INFER_OK;
    if (!infer_utf8_valid(text, n)) {
        infer_utf8_append_lossy(&valid, text, n);
        if (valid.failed) {
            s = infer_buf_error(&valid, err, "encode");
            goto out;
        }
        in = infer_str_of(valid.p, valid.n);
    }
    e.norm.max_text = in.n;
    if (flags & INFER_ENCODE_ADD_SPECIAL)
        for (size_t i = 0; i < t->n_prefix; i++)
            infer_id_list_push(&e.ids, t->prefix[i]);
    s = split_added(&e, &t->added, in, 1, encode_raw);
    if (flags & INFER_ENCODE_ADD_SPECIAL)
        for (size_t i = 0; i < t->n_suffix; i++)
            infer_id_list_push(&e.ids, t->suffix[i]);
    if (s == INFER_OK && !e.ids.p && !e.ids.failed) { /* no ids at all: still an array of the caller's */
        e.ids.p = infer_malloc(sizeof *e.ids.p);
        e.ids.failed = !e.ids.p;
    }
    if (s == INFER_OK && e.ids.failed)
        s = infer_error_set(err, INFER_E_NO_MEMORY, "encode: no memory for the ids");
    if (s != INFER_OK)
        goto out;
    *ids = e.ids.p;
    *n_ids = e.ids.n;
    e.ids.p = NULL;
out:
    infer_free(e.ids.p);
    infer_buf_free(&valid);
    infer_norm_scratch_free(&e.norm);
    infer_pre_scratch_free(&e.pre);
    infer_bpe_scratch_free(&e.bpe);
    return s;
}

void infer_ids_free(int32_t *ids)
{
    infer_free(ids);
}

/* ---- Questions ------------------------------------------------------------------------------------------------- */

uint32_t infer_tokenizer_n_tokens(const infer_tokenizer *t)
{
    return t->pieces.n;
}

static int in_range(const infer_tokenizer *t, int32_t id)
{
    return id >= 0 && (uint32_t)id < t->pieces.n;
}

const char *infer_tokenizer_piece(const infer_tokenizer *t, int32_t id, size_t *n)
{
    if (!in_range(t, id))
        return NULL;
    infer_str s = infer_pieces_get(&t->pieces, (uint32_t)id);
    *n = s.n;
    return s.p;
}

int32_t infer_tokenizer_type(const infer_tokenizer *t, int32_t id)
{
    return in_range(t, id) ? t->pieces.type[id] : 0;
}

int32_t infer_tokenizer_find(const infer_tokenizer *t, const char *piece, size_t n)
{
    const infer_added *sets[] = {&t->added, &t->added_normalized};
    int32_t id = infer_pieces_find(&t->pieces, piece, n);
    for (int k = 0; id < 0 && k < 2; k++)
        for (size_t i = 0; id < 0 && i < sets[k]->n; i++)
            if (infer_str_eq(infer_pieces_get(&t->pieces, (uint32_t)sets[k]->token[i].id), infer_str_of(piece, n)))
                id = sets[k]->token[i].id;
    return id;
}

int32_t infer_tokenizer_bos(const infer_tokenizer *t)
{
    return t->bos;
}

int32_t infer_tokenizer_eos(const infer_tokenizer *t)
{
    return t->eos;
}

int32_t infer_tokenizer_is_end(const infer_tokenizer *t, int32_t id)
{
    if (id < 0)
        return 0;
    int end = id == t->eos || id == t->eot;
    for (size_t i = 0; i < t->n_end; i++)
        end |= id == t->end[i];
    return end;
}
