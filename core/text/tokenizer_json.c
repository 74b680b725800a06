/* A tokenizer from Hugging Face's tokenizer.json: the model, its vocabulary and merges, added tokens, and what
 * tokenizer_config.json says of BOS and EOS. Everything is checked; truncation and padding are the caller's business
 * and not read. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "text/json_scan.h"
#include "text/tokenizer_json.h"

/* The two large members, and the rest of the document with null in their place. */
typedef struct document {
    infer_str vocab, merges; /* p NULL: absent */
    infer_buf rest;
} document;

static infer_status bad_at(infer_tj *j, const infer_json_cursor *c, const infer_str *base, const char *what)
{
    char text[120];
    snprintf(text, sizeof text, "%s at byte %zu", what, (size_t)(c->p + c->i - base->p));
    return infer_tj_bad(j, NULL, text);
}

/* Walks an object: for each member calls it with its raw key and the cursor at the value, which it must step over. */
static int walk_object(infer_json_cursor *c, int (*member)(void *user, infer_str key, infer_json_cursor *c), void *user)
{
    if (!infer_json_char(c, '{'))
        return 0;
    if (infer_json_char(c, '}'))
        return 1;
    do {
        size_t at, n;
        if (!infer_json_peek(c, '"') || !infer_json_skip(c, &at, &n) || !infer_json_char(c, ':') ||
            !member(user, infer_str_of(c->p + at, n), c))
            return 0;
    } while (infer_json_char(c, ','));
    return infer_json_char(c, '}');
}

static int model_member(void *user, infer_str key, infer_json_cursor *c)
{
    document *d = user;
    infer_str *slot = infer_str_eq(key, INFER_STR("\"vocab\""))    ? &d->vocab
                      : infer_str_eq(key, INFER_STR("\"merges\"")) ? &d->merges
                                                                   : NULL;
    size_t at, n;
    if (!infer_json_skip(c, &at, &n))
        return 0;
    if (slot && (c->p[at] == '{' || c->p[at] == '[')) {
        if (slot->p)
            return 0;
        *slot = infer_str_of(c->p + at, n);
    }
    return 1;
}

static int root_member(void *user, infer_str key, infer_json_cursor *c)
{
    size_t at, n;
    if (infer_str_eq(key, INFER_STR("\"model\"")) && infer_json_peek(c, '{'))
        return walk_object(c, model_member, user);
    return infer_json_skip(c, &at, &n);
}

/* Finds the large members and cuts them out. What is cut is parsed on its own, the rest by the general parser, so that
 * nothing goes unchecked. */
static infer_status cut_document(infer_tj *j, infer_str text, document *d)
{
    infer_json_cursor c = {text.p, text.n, 0};
    if (!walk_object(&c, root_member, d))
        return bad_at(j, &c, &text, "not a JSON document of the expected shape");
    infer_str cut[2] = {d->vocab, d->merges};
    if (cut[0].p && cut[1].p && cut[1].p < cut[0].p) {
        cut[0] = d->merges;
        cut[1] = d->vocab;
    }
    const char *from = text.p, *end = text.p + text.n;
    for (int i = 0; i < 2; i++) {
        if (!cut[i].p)
            continue;
        infer_buf_append(&d->rest, from, (size_t)(cut[i].p - from));
        infer_buf_puts(&d->rest, "null");
        from = cut[i].p + cut[i].n;
    }
    infer_buf_append(&d->rest, from, (size_t)(end - from));
    return d->rest.failed ? infer_error_set(j->err, INFER_E_NO_MEMORY, "tokenizer.json: no memory") : INFER_OK;
}

static infer_status parse_json(infer_tj *j, const char *file, const char *p, size_t n, json_t **out)
{
    json_error_t e;
    *out = json_loadb(p, n, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &e);
    if (*out && json_is_object(*out))
        return INFER_OK;
    /* The parser gives some failed allocations no code, others that of a syntax error: these cannot be told apart. */
    int memory =
        !*out && (json_error_code(&e) == json_error_unknown || json_error_code(&e) == json_error_out_of_memory);
    return infer_error_set(j->err, memory ? INFER_E_NO_MEMORY : INFER_E_BAD_FILE, "%s: %s", file,
                           *out     ? "not an object"
                           : memory ? "no memory"
                                    : e.text);
}

/* ---- Vocabulary ------------------------------------------------------------------------------------------------ */

typedef struct added_entry {
    infer_str content;
    int32_t id;
    int special, normalized, single_word, lstrip, rstrip;
} added_entry;

static infer_status read_added(infer_tj *j, json_t *list, added_entry **out, size_t *n)
{
    *out = NULL;
    *n = 0;
    if (!list || json_is_null(list))
        return INFER_OK;
    if (!json_is_array(list))
        return infer_tj_bad(j, "added_tokens", "not a list");
    size_t count = json_array_size(list), i;
    *out = infer_calloc(count ? count : 1, sizeof **out);
    if (!*out)
        return infer_error_set(j->err, INFER_E_NO_MEMORY, "tokenizer.json: no memory for %zu added tokens", count);
    json_t *o;
    json_array_foreach (list, i, o) {
        added_entry *a = &(*out)[i];
        a->id = -1;
        a->normalized = 1;
        snprintf(j->path, sizeof j->path, "added_tokens[%zu]", i);
        infer_status s = infer_tj_text(j, o, "content", &a->content);
        if (s == INFER_OK && !a->content.p)
            s = infer_tj_bad(j, "content", "missing");
        if (s == INFER_OK)
            s = infer_tj_int(j, o, "id", INT32_MAX - 1, &a->id);
        if (s == INFER_OK && a->id < 0)
            s = infer_tj_bad(j, "id", "missing");
        const struct {
            const char *key;
            int *value;
        } flags[] = {{"special", &a->special},
                     {"normalized", &a->normalized},
                     {"single_word", &a->single_word},
                     {"lstrip", &a->lstrip},
                     {"rstrip", &a->rstrip}};
        for (size_t k = 0; s == INFER_OK && k < sizeof flags / sizeof *flags; k++)
            s = infer_tj_bool(j, o, flags[k].key, flags[k].value);
        if (s != INFER_OK)
            return s;
    }
    j->path[0] = 0;
    *n = count;
    return INFER_OK;
}

/* Steps over `"text": id` and what follows; *more: another entry is next. key NULL: the text is not wanted. */
static int vocab_entry(infer_json_cursor *c, infer_buf *key, uint32_t *id, int *more)
{
    size_t at, n;
    if (key)
        infer_buf_clear(key);
    if (key ? !infer_json_string(c, key) : !infer_json_peek(c, '"') || !infer_json_skip(c, &at, &n))
        return 0;
    if (!infer_json_char(c, ':') || !infer_json_uint(c, id))
        return 0;
    *more = infer_json_char(c, ',');
    return *more || infer_json_char(c, '}');
}

/* The pieces: first the size, then the texts. */
static infer_status read_vocab(infer_tj *j, infer_str span, const added_entry *added, size_t n_added)
{
    infer_tokenizer *t = j->t;
    snprintf(j->path, sizeof j->path, "model.vocab");
    if (!span.p || span.p[0] != '{')
        return infer_tj_bad(j, NULL, "not an object");
    infer_json_cursor c = {span.p, span.n, 1};
    uint64_t count = 0, bytes = span.n, largest = 0;
    uint32_t id;
    int more = !infer_json_char(&c, '}');
    for (; more; count++) {
        if (!vocab_entry(&c, NULL, &id, &more))
            return bad_at(j, &c, &span, "malformed entry");
        largest = id > largest ? id : largest;
    }
    for (size_t i = 0; i < n_added; i++) {
        bytes += added[i].content.n;
        largest = (uint64_t)added[i].id > largest ? (uint64_t)added[i].id : largest;
    }
    if (largest >= (count + n_added) * 2 + 65536)
        return infer_tj_bad(j, NULL, "ids far beyond the number of entries");
    infer_status s = infer_pieces_init(&t->pieces, (uint32_t)(count + n_added ? largest + 1 : 0), bytes, j->err);
    if (s != INFER_OK)
        return s;
    infer_buf key = {0};
    c = (infer_json_cursor){span.p, span.n, 1};
    for (more = count > 0; more && s == INFER_OK;) {
        if (!vocab_entry(&c, &key, &id, &more))
            s = bad_at(j, &c, &span, "malformed entry");
        else if (key.failed)
            s = infer_buf_error(&key, j->err, "tokenizer.json");
        else if (t->pieces.type[id] != INFER_TOKEN_UNUSED)
            s = bad_at(j, &c, &span, "an id given twice");
        else
            infer_pieces_set(&t->pieces, id, key.p, key.n, INFER_TOKEN_NORMAL, 1);
    }
    infer_buf_free(&key);
    j->path[0] = 0;
    return s;
}

/* Gives the added tokens their place among the pieces. One whose text the model has keeps the model's id, as in the
 * reference. */
static infer_status place_added(infer_tj *j, added_entry *added, size_t n)
{
    infer_pieces *p = &j->t->pieces;
    for (size_t i = 0; i < n; i++) {
        added_entry *a = &added[i];
        int32_t type = a->special ? INFER_TOKEN_CONTROL : INFER_TOKEN_USER_DEFINED;
        int32_t known = infer_pieces_find(p, a->content.p, a->content.n);
        if (known >= 0) {
            a->id = known;
            p->type[known] = (uint8_t)type;
        } else if (p->type[a->id] != INFER_TOKEN_UNUSED) {
            snprintf(j->path, sizeof j->path, "added_tokens[%zu]", i);
            return infer_tj_bad(j, "id", "belongs to another token");
        } else {
            infer_pieces_set(p, (uint32_t)a->id, a->content.p, a->content.n, type, 0);
        }
    }
    return INFER_OK;
}

static infer_status match_added(infer_tj *j, const added_entry *added, size_t n)
{
    infer_status s = INFER_OK;
    for (size_t i = 0; s == INFER_OK && i < n; i++) {
        const added_entry *a = &added[i];
        infer_added_token token = {.text = infer_pieces_get(&j->t->pieces, (uint32_t)a->id),
                                   .id = a->id,
                                   .special = (uint8_t)a->special,
                                   .single_word = (uint8_t)a->single_word,
                                   .lstrip = (uint8_t)a->lstrip,
                                   .rstrip = (uint8_t)a->rstrip};
        s = infer_tokenizer_add_token(j->t, token, a->normalized, j->err);
    }
    return s;
}

/* ---- Model ----------------------------------------------------------------------------------------------------- */

/* One merge at the cursor, either ["a", "b"] or "a b", into two texts that lie in buf. */
static int merge_entry(infer_json_cursor *c, infer_buf *buf, infer_str *left, infer_str *right)
{
    infer_buf_clear(buf);
    size_t cut;
    if (infer_json_char(c, '[')) {
        if (!infer_json_string(c, buf))
            return 0;
        cut = buf->n;
        if (!infer_json_char(c, ',') || !infer_json_string(c, buf) || !infer_json_char(c, ']'))
            return 0;
        *right = infer_str_of(buf->p + cut, buf->n - cut);
    } else {
        if (!infer_json_string(c, buf))
            return 0;
        const char *space = buf->n ? memchr(buf->p, ' ', buf->n) : NULL;
        if (!space || memchr(space + 1, ' ', buf->n - (size_t)(space + 1 - buf->p)))
            return 0;
        cut = (size_t)(space - buf->p);
        *right = infer_str_of(space + 1, buf->n - cut - 1);
    }
    *left = infer_str_of(buf->p, cut);
    return 1;
}

static infer_status read_merges(infer_tj *j, infer_str span)
{
    infer_tokenizer *t = j->t;
    snprintf(j->path, sizeof j->path, "model.merges");
    if (!span.p || span.p[0] != '[')
        return infer_tj_bad(j, NULL, "not a list");
    infer_json_cursor c = {span.p, span.n, 1};
    infer_buf buf = {0};
    infer_status s = INFER_OK;
    uint32_t guess = 0;
    for (int more = !infer_json_char(&c, ']'); s == INFER_OK && more;) {
        infer_str left = {0}, right = {0};
        int ok = merge_entry(&c, &buf, &left, &right);
        if (buf.failed) {
            s = infer_buf_error(&buf, j->err, "tokenizer.json");
            break;
        }
        more = ok && infer_json_char(&c, ',');
        if (!ok || (!more && !infer_json_char(&c, ']')))
            s = bad_at(j, &c, &span, "malformed entry");
        else
            s = infer_bpe_merge(&t->bpe, left, right, &guess, j->err);
    }
    if (s == INFER_OK)
        s = infer_bpe_merges_done(&t->bpe, j->err);
    infer_buf_free(&buf);
    j->path[0] = 0;
    return s;
}

/* Settings of the model besides its tables. */
typedef struct model_flags {
    int byte_fallback, fuse_unk, ignore_merges;
    infer_str unk;
} model_flags;

static infer_status read_model(infer_tj *j, json_t *o, model_flags *m)
{
    snprintf(j->path, sizeof j->path, "model");
    if (!json_is_object(o))
        return infer_tj_bad(j, NULL, "not an object");
    infer_str type = INFER_STR("BPE"), prefix = {0}, suffix = {0}; /* old files name no type, and are BPE */
    infer_status s = infer_tj_text(j, o, "type", &type);
    if (s == INFER_OK &&
        !infer_str_eq(type, infer_str_of(infer_tokenizer_bpe.json, strlen(infer_tokenizer_bpe.json)))) {
        char what[120];
        snprintf(what, sizeof what, "'%.80s' is not supported", type.p);
        return infer_tj_unsupported(j, "type", what);
    }
    j->t->kind = &infer_tokenizer_bpe;
    if (s == INFER_OK)
        s = infer_tj_text(j, o, "unk_token", &m->unk);
    if (s == INFER_OK)
        s = infer_tj_text(j, o, "continuing_subword_prefix", &prefix);
    if (s == INFER_OK)
        s = infer_tj_text(j, o, "end_of_word_suffix", &suffix);
    if (s == INFER_OK)
        s = infer_tj_bool(j, o, "byte_fallback", &m->byte_fallback);
    if (s == INFER_OK)
        s = infer_tj_bool(j, o, "fuse_unk", &m->fuse_unk);
    if (s == INFER_OK)
        s = infer_tj_bool(j, o, "ignore_merges", &m->ignore_merges);
    if (s != INFER_OK)
        return s;
    if (prefix.n)
        return infer_tj_unsupported(j, "continuing_subword_prefix", "not supported");
    if (suffix.n)
        return infer_tj_unsupported(j, "end_of_word_suffix", "not supported");
    const json_t *dropout = json_object_get(o, "dropout");
    if (dropout && !json_is_null(dropout) && json_number_value(dropout) != 0)
        return infer_tj_unsupported(j, "dropout", "not supported");
    if (json_is_object(json_object_get(o, "vocab")) || json_is_array(json_object_get(o, "merges")))
        return infer_tj_bad(j, NULL, "vocab or merges given twice");
    j->path[0] = 0;
    return INFER_OK;
}

/* ---- tokenizer_config.json ------------------------------------------------------------------------------------- */

/* A token given as text, or as an object with "content"; -1 where it is absent or not in the vocabulary. */
static infer_status config_token(infer_tj *j, const json_t *config, const char *key, int32_t *id)
{
    const json_t *o = json_object_get(config, key);
    infer_str text = {0};
    infer_status s = json_is_object(o) ? infer_tj_text(j, o, "content", &text) : infer_tj_text(j, config, key, &text);
    *id = s == INFER_OK && text.p ? infer_tokenizer_find(j->t, text.p, text.n) : -1;
    return s;
}

/* BOS and EOS; where the file wants one of them added and the post-processor does not, it is. */
static infer_status apply_config(infer_tj *j, const json_t *config)
{
    infer_tokenizer *t = j->t;
    int add_bos = 0, add_eos = 0;
    snprintf(j->path, sizeof j->path, "(tokenizer_config.json)");
    infer_status s = config_token(j, config, "bos_token", &t->bos);
    if (s == INFER_OK)
        s = config_token(j, config, "eos_token", &t->eos);
    if (s == INFER_OK)
        s = infer_tj_bool(j, config, "add_bos_token", &add_bos);
    if (s == INFER_OK)
        s = infer_tj_bool(j, config, "add_eos_token", &add_eos);
    if (s != INFER_OK)
        return s;
    if (add_bos && t->bos >= 0 && !t->n_prefix)
        t->prefix[t->n_prefix++] = t->bos;
    if (add_eos && t->eos >= 0 && !t->n_suffix)
        t->suffix[t->n_suffix++] = t->eos;
    j->path[0] = 0;
    return INFER_OK;
}

/* ---- The whole ------------------------------------------------------------------------------------------------- */

static infer_status build(infer_tj *j, const document *d, json_t *root, json_t *config)
{
    infer_tokenizer *t = j->t;
    model_flags m = {0};
    added_entry *added = NULL;
    size_t n_added = 0;
    infer_status s = read_model(j, json_object_get(root, "model"), &m);
    if (s == INFER_OK)
        s = read_added(j, json_object_get(root, "added_tokens"), &added, &n_added);
    if (s == INFER_OK)
        s = read_vocab(j, d->vocab, added, n_added);
    if (s == INFER_OK)
        s = place_added(j, added, n_added);
    if (s != INFER_OK)
        goto out;
    t->bpe.ignore_merges = m.ignore_merges;
    t->bpe.fuse_unk = m.fuse_unk;
    t->bpe.unk = -1;
    if (m.unk.n) {
        t->bpe.unk = infer_pieces_find(&t->pieces, m.unk.p, m.unk.n);
        if (t->bpe.unk < 0) {
            s = infer_tj_bad(j, "model.unk_token", "not in the vocabulary");
            goto out;
        }
        if (t->pieces.type[t->bpe.unk] == INFER_TOKEN_CONTROL)
            t->pieces.type[t->bpe.unk] = INFER_TOKEN_UNKNOWN;
    }
    infer_bpe_init(&t->bpe, &t->pieces, m.byte_fallback);
    for (int b = 0; b < 256; b++)
        if (t->bpe.byte_id[b] >= 0 && t->pieces.type[t->bpe.byte_id[b]] == INFER_TOKEN_NORMAL)
            t->pieces.type[t->bpe.byte_id[b]] = INFER_TOKEN_BYTE;
    s = read_merges(j, d->merges);
    if (s == INFER_OK)
        s = infer_tj_normalizer(j, json_object_get(root, "normalizer"));
    if (s == INFER_OK)
        s = infer_tj_pre_tokenizer(j, json_object_get(root, "pre_tokenizer"));
    if (s == INFER_OK)
        s = infer_tj_post_processor(j, json_object_get(root, "post_processor"));
    if (s == INFER_OK)
        s = infer_tj_decoder(j, json_object_get(root, "decoder"));
    if (s == INFER_OK)
        s = match_added(j, added, n_added);
    if (s == INFER_OK && config)
        s = apply_config(j, config);
    else if (s == INFER_OK && t->n_prefix)
        t->bos = t->prefix[0];
    if (s == INFER_OK)
        s = infer_tokenizer_finish(t, j->err);
out:
    infer_free(added);
    return s;
}

infer_status infer_tokenizer_create_json(const char *json, size_t n, const char *config, size_t config_n,
                                         infer_tokenizer **out, infer_error *err)
{
    document d = {0};
    json_t *root = NULL, *config_root = NULL;
    infer_tj j = {.t = infer_calloc(1, sizeof *j.t), .err = err};
    infer_status s;
    if (!j.t)
        return infer_error_set(err, INFER_E_NO_MEMORY, "tokenizer: no memory");
    j.t->bos = j.t->eos = j.t->eot = -1;
    s = cut_document(&j, infer_str_of(json, n), &d);
    if (s == INFER_OK)
        s = parse_json(&j, "tokenizer.json", d.rest.p, d.rest.n, &root);
    if (s == INFER_OK && config)
        s = parse_json(&j, "tokenizer_config.json", config, config_n, &config_root);
    if (s == INFER_OK)
        s = build(&j, &d, root, config_root);
    json_decref(root);
    json_decref(config_root);
    infer_buf_free(&d.rest);
    if (s != INFER_OK) {
        infer_tokenizer_destroy(j.t);
        return s;
    }
    *out = j.t;
    return INFER_OK;
}
