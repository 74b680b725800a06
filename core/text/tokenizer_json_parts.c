/* The components of tokenizer.json that are rows here: normalizers, pre-tokenizers, post-processors, decoders. A type
 * that has no row, or a setting that no row can express, is refused by name. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "text/tokenizer_json.h"
#include "text/utf8.h"

/* ---- Members --------------------------------------------------------------------------------------------------- */

static infer_status report(infer_tj *j, infer_status s, const char *key, const char *what)
{
    return infer_error_set(j->err, s, "tokenizer.json: %s%s%s%s%s", j->path, key && *j->path ? "." : "", key ? key : "",
                           key || *j->path ? ": " : "", what);
}

infer_status infer_tj_bad(infer_tj *j, const char *key, const char *what)
{
    return report(j, INFER_E_BAD_FILE, key, what);
}

infer_status infer_tj_unsupported(infer_tj *j, const char *key, const char *what)
{
    return report(j, INFER_E_UNSUPPORTED, key, what);
}

static infer_status no_memory(infer_tj *j)
{
    return infer_error_set(j->err, INFER_E_NO_MEMORY, "tokenizer.json: no memory");
}

infer_status infer_tj_bool(infer_tj *j, const json_t *o, const char *key, int *out)
{
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v))
        return INFER_OK;
    if (!json_is_boolean(v))
        return infer_tj_bad(j, key, "not true or false");
    *out = json_is_true(v);
    return INFER_OK;
}

infer_status infer_tj_text(infer_tj *j, const json_t *o, const char *key, infer_str *out)
{
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v))
        return INFER_OK;
    if (!json_is_string(v))
        return infer_tj_bad(j, key, "not a string");
    *out = infer_str_of(json_string_value(v), json_string_length(v));
    return INFER_OK;
}

static int as_int(const json_t *v, int32_t max, int32_t *out)
{
    double d = json_is_number(v) ? json_number_value(v) : -1;
    if (!(d >= 0 && d <= max) || d != (double)(int32_t)d)
        return 0;
    *out = (int32_t)d;
    return 1;
}

infer_status infer_tj_int(infer_tj *j, const json_t *o, const char *key, int32_t max, int32_t *out)
{
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v))
        return INFER_OK;
    return as_int(v, max, out) ? INFER_OK : infer_tj_bad(j, key, "not an integer in range");
}

static infer_status keep_text(infer_tj *j, infer_str *s)
{
    const char *p = infer_tokenizer_keep(j->t, s->p, s->n);
    if (!p)
        return no_memory(j);
    s->p = p;
    return INFER_OK;
}

/* ---- Dispatch by type ------------------------------------------------------------------------------------------ */

typedef struct component {
    const char *type;
    infer_status (*read)(infer_tj *j, json_t *o, int arg);
    int arg;
} component;

/* A family of components; a Sequence of them is the list under `list_key`. */
typedef struct family {
    const char *list_key;
    const component *rows;
    size_t n;
} family;

#define FAMILY(key, rows)                                                                                              \
    {                                                                                                                  \
        key, rows, sizeof rows / sizeof *rows                                                                          \
    }

#define MAX_DEPTH 8 /* sequences in sequences */

static infer_status read_one(infer_tj *j, const family *f, json_t *o, int depth);

static infer_status read_list(infer_tj *j, const family *f, json_t *o, int depth)
{
    json_t *list = json_object_get(o, f->list_key), *v;
    if (!json_is_array(list))
        return infer_tj_bad(j, f->list_key, "not a list");
    if (depth == MAX_DEPTH)
        return infer_tj_unsupported(j, NULL, "sequences nested too deeply");
    size_t len = strlen(j->path), i;
    json_array_foreach (list, i, v) {
        snprintf(j->path + len, sizeof j->path - len, ".%s[%zu]", f->list_key, i);
        infer_status s = read_one(j, f, v, depth + 1);
        if (s != INFER_OK)
            return s;
        j->path[len] = 0;
    }
    return INFER_OK;
}

static infer_status read_one(infer_tj *j, const family *f, json_t *o, int depth)
{
    if (!json_is_object(o))
        return infer_tj_bad(j, NULL, "not an object");
    infer_str type = {0};
    infer_status s = infer_tj_text(j, o, "type", &type);
    if (s != INFER_OK)
        return s;
    if (!type.p)
        return infer_tj_bad(j, "type", "missing");
    if (infer_str_eq(type, INFER_STR("Sequence")))
        return read_list(j, f, o, depth);
    for (size_t i = 0; i < f->n; i++)
        if (infer_str_eq(type, infer_str_of(f->rows[i].type, strlen(f->rows[i].type))))
            return f->rows[i].read(j, o, f->rows[i].arg);
    char what[120];
    snprintf(what, sizeof what, "'%.80s' is not supported", type.p);
    return infer_tj_unsupported(j, "type", what);
}

static infer_status read_family(infer_tj *j, const family *f, const char *name, json_t *o)
{
    if (!o || json_is_null(o))
        return INFER_OK;
    snprintf(j->path, sizeof j->path, "%s", name);
    infer_status s = read_one(j, f, o, 0);
    j->path[0] = 0;
    return s;
}

/* {"String": "…"} or {"Regex": "…"} under "pattern". */
static infer_status read_pattern(infer_tj *j, json_t *o, infer_str *string, infer_str *regex)
{
    json_t *p = json_object_get(o, "pattern");
    if (!json_is_object(p))
        return infer_tj_bad(j, "pattern", "not an object");
    infer_status s = infer_tj_text(j, p, "String", string);
    if (s == INFER_OK)
        s = infer_tj_text(j, p, "Regex", regex);
    if (s != INFER_OK)
        return s;
    if (!string->p == !regex->p)
        return infer_tj_bad(j, "pattern", "neither one String nor one Regex");
    return string->p && !string->n ? infer_tj_bad(j, "pattern", "empty") : INFER_OK;
}

/* ---- Normalizers ----------------------------------------------------------------------------------------------- */

static infer_status norm_plain(infer_tj *j, json_t *o, int kind)
{
    (void)o;
    return infer_tokenizer_add_norm(j->t, (infer_norm){.kind = (infer_norm_kind)kind}, j->err);
}

static infer_status norm_prepend(infer_tj *j, json_t *o, int arg)
{
    (void)arg;
    infer_norm step = {.kind = INFER_NORM_PREPEND};
    infer_status s = infer_tj_text(j, o, "prepend", &step.to);
    if (s == INFER_OK && !step.to.p)
        s = infer_tj_bad(j, "prepend", "missing");
    if (s == INFER_OK)
        s = keep_text(j, &step.to);
    return s == INFER_OK ? infer_tokenizer_add_norm(j->t, step, j->err) : s;
}

static infer_status norm_strip(infer_tj *j, json_t *o, int arg)
{
    (void)arg;
    infer_norm step = {.kind = INFER_NORM_STRIP, .strip_left = 1, .strip_right = 1};
    infer_status s = infer_tj_bool(j, o, "strip_left", &step.strip_left);
    if (s == INFER_OK)
        s = infer_tj_bool(j, o, "strip_right", &step.strip_right);
    return s == INFER_OK ? infer_tokenizer_add_norm(j->t, step, j->err) : s;
}

static infer_status norm_replace(infer_tj *j, json_t *o, int arg)
{
    (void)arg;
    infer_norm step = {.kind = INFER_NORM_REPLACE};
    infer_str regex = {0};
    infer_status s = read_pattern(j, o, &step.from, &regex);
    if (s == INFER_OK)
        s = infer_tj_text(j, o, "content", &step.to);
    if (s == INFER_OK && !step.to.p)
        s = infer_tj_bad(j, "content", "missing");
    if (s == INFER_OK)
        s = keep_text(j, &step.to);
    if (s == INFER_OK && step.from.p)
        s = keep_text(j, &step.from);
    if (s == INFER_OK && regex.p)
        s = infer_regex_compile(regex.p, regex.n, &step.regex, j->err);
    return s == INFER_OK ? infer_tokenizer_add_norm(j->t, step, j->err) : s;
}

static const component norm_rows[] = {
    {"NFC", norm_plain, INFER_NORM_NFC},
    {"NFD", norm_plain, INFER_NORM_NFD},
    {"NFKC", norm_plain, INFER_NORM_NFKC},
    {"NFKD", norm_plain, INFER_NORM_NFKD},
    {"Lowercase", norm_plain, INFER_NORM_LOWERCASE},
    {"StripAccents", norm_plain, INFER_NORM_STRIP_ACCENTS},
    {"Strip", norm_strip, 0},
    {"Prepend", norm_prepend, 0},
    {"Replace", norm_replace, 0},
};

infer_status infer_tj_normalizer(infer_tj *j, json_t *o)
{
    static const family f = FAMILY("normalizers", norm_rows);
    return read_family(j, &f, "normalizer", o);
}

/* ---- Pre-tokenizers -------------------------------------------------------------------------------------------- */

static infer_status read_behavior(infer_tj *j, json_t *o, infer_split *out)
{
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    infer_str name = {0};
    infer_status s = infer_tj_text(j, o, "behavior", &name);
    if (s != INFER_OK || !name.p)
        return s;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (infer_str_eq(name, infer_str_of(names[i], strlen(names[i])))) {
            *out = (infer_split)i;
            return INFER_OK;
        }
    return infer_tj_unsupported(j, "behavior", "unknown value");
}

static infer_status pre_split(infer_tj *j, json_t *o, int arg)
{
    (void)arg;
    infer_pre_step step = {.kind = INFER_PRE_SPLIT};
    infer_str regex = {0};
    infer_status s = read_pattern(j, o, &step.string, &regex);
    if (s == INFER_OK)
        s = read_behavior(j, o, &step.split);
    if (s == INFER_OK)
        s = infer_tj_bool(j, o, "invert", &step.invert);
    if (s != INFER_OK)
        return s;
    if (regex.p)
        return infer_tokenizer_add_split(j->t, regex.p, regex.n, step.split, step.invert, j->err);
    s = keep_text(j, &step.string);
    return s == INFER_OK ? infer_tokenizer_add_pre(j->t, step, j->err) : s;
}

static infer_status pre_byte_level(infer_tj *j, json_t *o, int arg)
{
    (void)arg;
    int prefix = 1, regex = 1;
    infer_status s = infer_tj_bool(j, o, "add_prefix_space", &prefix);
    if (s == INFER_OK)
        s = infer_tj_bool(j, o, "use_regex", &regex);
    if (s == INFER_OK && prefix)
        s = infer_tokenizer_add_pre(j->t, (infer_pre_step){.kind = INFER_PRE_PREFIX, .string = INFER_STR(" ")}, j->err);
    if (s == INFER_OK && regex)
        s = infer_tokenizer_add_split(j->t, infer_pre_gpt2, strlen(infer_pre_gpt2), INFER_SPLIT_ISOLATED, 0, j->err);
    return s == INFER_OK ? infer_tokenizer_add_pre(j->t, (infer_pre_step){.kind = INFER_PRE_BYTES}, j->err) : s;
}

/* "always", "first" or "never", or the older add_prefix_space. */
static infer_status read_prepend_scheme(infer_tj *j, json_t *o, int *prepend, int *first_only)
{
    infer_str scheme = {0};
    int prefix = 1;
    infer_status s = infer_tj_bool(j, o, "add_prefix_space", &prefix);
    if (s == INFER_OK)
        s = infer_tj_text(j, o, "prepend_scheme", &scheme);
    if (s != INFER_OK)
        return s;
    *first_only = scheme.p && infer_str_eq(scheme, INFER_STR("first"));
    if (!scheme.p)
        *prepend = prefix;
    else if (*first_only || infer_str_eq(scheme, INFER_STR("always")))
        *prepend = 1;
    else if (infer_str_eq(scheme, INFER_STR("never")))
        *prepend = 0;
    else
        return infer_tj_unsupported(j, "prepend_scheme", "unknown value");
    return INFER_OK;
}

static infer_status pre_metaspace(infer_tj *j, json_t *o, int arg)
{
    (void)arg;
    infer_str mark = INFER_STR("\xE2\x96\x81");
    int prepend = 1, first_only = 0, split = 1;
    infer_status s = infer_tj_text(j, o, "replacement", &mark);
    if (s == INFER_OK && (!mark.n || infer_utf8_len(mark.p[0]) != mark.n))
        s = infer_tj_bad(j, "replacement", "not one character");
    if (s == INFER_OK)
        s = keep_text(j, &mark);
    if (s == INFER_OK)
        s = read_prepend_scheme(j, o, &prepend, &first_only);
    if (s == INFER_OK)
        s = infer_tj_bool(j, o, "split", &split);
    if (s == INFER_OK)
        s = infer_tokenizer_add_pre(j->t, (infer_pre_step){.kind = INFER_PRE_METASPACE, .string = mark}, j->err);
    if (s == INFER_OK && prepend)
        s = infer_tokenizer_add_pre(
            j->t, (infer_pre_step){.kind = INFER_PRE_PREFIX, .string = mark, .first_only = first_only}, j->err);
    if (s == INFER_OK && split)
        s = infer_tokenizer_add_pre(
            j->t, (infer_pre_step){.kind = INFER_PRE_SPLIT, .split = INFER_SPLIT_NEXT, .string = mark}, j->err);
    return s;
}

static infer_status pre_digits(infer_tj *j, json_t *o, int arg)
{
    (void)arg;
    int individual = 0;
    infer_status s = infer_tj_bool(j, o, "individual_digits", &individual);
    if (s != INFER_OK)
        return s;
    const char *pattern = individual ? "\\p{N}" : "\\p{N}+";
    return infer_tokenizer_add_split(j->t, pattern, strlen(pattern), INFER_SPLIT_ISOLATED, 0, j->err);
}

/* Word characters as the reference's own library sees them (with Join_Control, without superscript digits). */
#define RUST_WORD                                                                                                      \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{200c}\\x{200d}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-"           \
    "\\x{1f169}\\x{1f170}-\\x{1f189}"

/* Pre-tokenizers that are one or two cuts at fixed patterns. */
static const struct fixed_cut {
    const char *pattern[2];
    infer_split split[2];
    int invert;
} fixed_cuts[] = {
    {{"[" RUST_WORD "]+|[^\\s" RUST_WORD "]+"}, {INFER_SPLIT_REMOVED}, 1},
    {{"\\s"}, {INFER_SPLIT_REMOVED}, 0},
    {{"\\s", "[!-/:-@\\[-`{-~\\p{P}]"}, {INFER_SPLIT_REMOVED, INFER_SPLIT_ISOLATED}, 0},
    {{"[!-/:-@\\[-`{-~\\p{P}]"}, {INFER_SPLIT_ISOLATED}, 0},
};

static infer_status pre_fixed(infer_tj *j, json_t *o, int which)
{
    const struct fixed_cut *f = &fixed_cuts[which];
    infer_split split = f->split[0];
    infer_status s = read_behavior(j, o, &split); /* only Punctuation has one */
    for (size_t i = 0; s == INFER_OK && i < 2 && f->pattern[i]; i++)
        s = infer_tokenizer_add_split(j->t, f->pattern[i], strlen(f->pattern[i]), i ? f->split[i] : split, f->invert,
                                      j->err);
    return s;
}

static const component pre_rows[] = {
    {"Split", pre_split, 0},
    {"ByteLevel", pre_byte_level, 0},
    {"Metaspace", pre_metaspace, 0},
    {"Digits", pre_digits, 0},
    {"Whitespace", pre_fixed, 0},
    {"WhitespaceSplit", pre_fixed, 1},
    {"BertPreTokenizer", pre_fixed, 2},
    {"Punctuation", pre_fixed, 3},
};

infer_status infer_tj_pre_tokenizer(infer_tj *j, json_t *o)
{
    static const family f = FAMILY("pretokenizers", pre_rows);
    return read_family(j, &f, "pre_tokenizer", o);
}

/* ---- Post-processors: what stands before and behind one text --------------------------------------------------- */

static infer_status post_nothing(infer_tj *j, json_t *o, int arg)
{
    (void)j;
    (void)o;
    (void)arg;
    return INFER_OK;
}

/* Puts ids in front of the prefix, or behind the suffix: a later processor wraps what earlier ones made. */
static infer_status add_affix(infer_tj *j, const int32_t *ids, size_t n, int behind)
{
    infer_tokenizer *t = j->t;
    int32_t *list = behind ? t->suffix : t->prefix;
    size_t *count = behind ? &t->n_suffix : &t->n_prefix;
    if (n > INFER_TOKENIZER_MAX_AFFIX - *count)
        return infer_tj_unsupported(j, NULL, "more special tokens around a text than there is room for");
    if (!behind)
        memmove(list + n, list, *count * sizeof *list);
    memcpy(list + (behind ? *count : 0), ids, n * sizeof *ids);
    *count += n;
    return INFER_OK;
}

static infer_status post_template(infer_tj *j, json_t *o, int arg)
{
    (void)arg;
    json_t *single = json_object_get(o, "single"), *special = json_object_get(o, "special_tokens"), *item, *v;
    if (!json_is_array(single))
        return infer_tj_bad(j, "single", "not a list");
    int32_t ids[2][INFER_TOKENIZER_MAX_AFFIX];
    size_t n[2] = {0, 0}, i, k;
    int behind = 0;
    json_array_foreach (single, i, item) {
        json_t *sequence = json_object_get(item, "Sequence"), *token = json_object_get(item, "SpecialToken");
        infer_str id = {0};
        infer_status s = infer_tj_text(j, sequence ? sequence : token, "id", &id);
        if (s != INFER_OK)
            return s;
        if (!id.p)
            return infer_tj_bad(j, "single", "an item is neither Sequence nor SpecialToken with an id");
        if (sequence) {
            if (!infer_str_eq(id, INFER_STR("A")) || behind)
                return infer_tj_unsupported(j, "single", "a template that is not one sequence A");
            behind = 1;
            continue;
        }
        json_t *list = json_object_get(json_object_getn(special, id.p, id.n), "ids");
        if (!json_is_array(list))
            return infer_tj_bad(j, "special_tokens", "a token of the template has no list of ids");
        json_array_foreach (list, k, v) {
            int32_t x;
            if (n[behind] == INFER_TOKENIZER_MAX_AFFIX)
                return infer_tj_unsupported(j, "single", "a template this long");
            if (!j->t->pieces.n || !as_int(v, (int32_t)j->t->pieces.n - 1, &x))
                return infer_tj_bad(j, "special_tokens", "an id is not in the vocabulary");
            ids[behind][n[behind]++] = x;
        }
    }
    if (!behind)
        return infer_tj_unsupported(j, "single", "a template without its sequence");
    infer_status s = add_affix(j, ids[0], n[0], 0);
    return s == INFER_OK ? add_affix(j, ids[1], n[1], 1) : s;
}

/* {"sep": ["[SEP]", 102], "cls": ["[CLS]", 101]}: cls text sep. */
static infer_status post_cls_sep(infer_tj *j, json_t *o, int arg)
{
    (void)arg;
    static const char *const keys[] = {"cls", "sep"};
    for (int i = 0; i < 2; i++) {
        int32_t id;
        if (!j->t->pieces.n ||
            !as_int(json_array_get(json_object_get(o, keys[i]), 1), (int32_t)j->t->pieces.n - 1, &id))
            return infer_tj_bad(j, keys[i], "not a token with its id");
        infer_status s = add_affix(j, &id, 1, i);
        if (s != INFER_OK)
            return s;
    }
    return INFER_OK;
}

static const component post_rows[] = {
    {"ByteLevel", post_nothing, 0}, /* trims offsets, which we do not report */
    {"TemplateProcessing", post_template, 0},
    {"BertProcessing", post_cls_sep, 0},
    {"RobertaProcessing", post_cls_sep, 0},
};

infer_status infer_tj_post_processor(infer_tj *j, json_t *o)
{
    static const family f = FAMILY("processors", post_rows);
    return read_family(j, &f, "post_processor", o);
}

/* ---- Decoders -------------------------------------------------------------------------------------------------- */

static infer_status decode_flag(infer_tj *j, json_t *o, int which)
{
    (void)o;
    *(which == 0 ? &j->t->decoder.byte_level : which == 1 ? &j->t->decoder.byte_fallback : &j->decoder_fused) = 1;
    return INFER_OK;
}

static infer_status decode_replace(infer_tj *j, json_t *o, int arg)
{
    (void)arg;
    infer_decoder *d = &j->t->decoder;
    infer_str from = {0}, to = {0}, regex = {0};
    infer_status s = read_pattern(j, o, &from, &regex);
    if (s == INFER_OK)
        s = infer_tj_text(j, o, "content", &to);
    if (s == INFER_OK && !to.p)
        s = infer_tj_bad(j, "content", "missing");
    if (s != INFER_OK)
        return s;
    if (regex.p || d->from.n || j->decoder_fused)
        return infer_tj_unsupported(j, NULL, "a decoder that replaces more than one plain string in each token");
    if (to.n > 16)
        return infer_tj_unsupported(j, "content", "a replacement this long");
    s = keep_text(j, &from);
    if (s == INFER_OK)
        s = keep_text(j, &to);
    if (s == INFER_OK) {
        d->from = from;
        d->to = to;
    }
    return s;
}

static infer_status decode_strip(infer_tj *j, json_t *o, int arg)
{
    (void)arg;
    infer_str content = {0};
    int32_t start = 0, stop = 0;
    infer_status s = infer_tj_text(j, o, "content", &content);
    if (s == INFER_OK)
        s = infer_tj_int(j, o, "start", INT32_MAX, &start);
    if (s == INFER_OK)
        s = infer_tj_int(j, o, "stop", INT32_MAX, &stop);
    if (s != INFER_OK)
        return s;
    if (!content.p || !infer_str_eq(content, INFER_STR(" ")) || stop || !j->decoder_fused || j->t->decoder.strip)
        return infer_tj_unsupported(j, NULL, "stripping other than leading spaces of the whole text");
    j->t->decoder.strip = (uint32_t)start;
    return INFER_OK;
}

static const component decoder_rows[] = {
    {"ByteLevel", decode_flag, 0},  {"ByteFallback", decode_flag, 1}, {"Fuse", decode_flag, 2},
    {"Replace", decode_replace, 0}, {"Strip", decode_strip, 0},
};

infer_status infer_tj_decoder(infer_tj *j, json_t *o)
{
    static const family f = FAMILY("decoders", decoder_rows);
    j->t->decoder.spaced = !o || json_is_null(o); /* the reference's way without a decoder */
    infer_status s = read_family(j, &f, "decoder", o);
    const infer_decoder *d = &j->t->decoder;
    if (s == INFER_OK && d->byte_level && (d->byte_fallback || d->from.n || d->strip))
        return infer_tj_unsupported(j, "decoder", "ByteLevel together with other decoders");
    return s;
}
