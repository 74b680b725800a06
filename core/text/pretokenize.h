/* Cutting normalised text into the words that a model merges within. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TEXT_PRETOKENIZE_H
#define INFER_TEXT_PRETOKENIZE_H

#include <stddef.h>
#include <stdint.h>

#include <infer/error.h>

#include "base/buf.h"
#include "text/normalize.h"
#include "text/regex.h"

typedef enum infer_pre_kind {
    INFER_PRE_SPLIT,     /* cut at what the pattern (or the plain string) matches */
    INFER_PRE_PREFIX,    /* put the string in front unless it is there; `first_only`: at the text's start only */
    INFER_PRE_METASPACE, /* U+0020 becomes the string */
    INFER_PRE_BYTES,     /* each byte becomes a character of GPT-2's alphabet */
} infer_pre_kind;

/* What happens to a match (and with `invert`, to what lies between matches). */
typedef enum infer_split {
    INFER_SPLIT_ISOLATED, /* its own word */
    INFER_SPLIT_REMOVED,
    INFER_SPLIT_PREVIOUS,   /* joined to what is before it */
    INFER_SPLIT_NEXT,       /* joined to what follows */
    INFER_SPLIT_CONTIGUOUS, /* adjacent matches form one word */
} infer_split;

/* One step. Steps run in order on each word that the step before gives. Owned by the tokenizer. */
typedef struct infer_pre_step {
    infer_pre_kind kind;
    infer_split split;
    int invert, first_only;
    infer_regex *regex;
    infer_str string;
} infer_pre_step;

#define INFER_PRE_MAX_STEPS 16u

/* Receives a word, valid during the call. */
typedef infer_status (*infer_word_fn)(void *user, const char *p, size_t n);

typedef struct infer_pre_scratch {
    infer_buf buf[INFER_PRE_MAX_STEPS];
} infer_pre_scratch;

/* Gives fn every word of valid UTF-8, in order; none is empty. at_start: the text is the beginning of the whole input.
 * Stops at fn's first failure. No recursion but over the steps. */
infer_status infer_pretokenize(const infer_pre_step *steps, size_t n_steps, infer_norm_scratch *norm,
                               infer_pre_scratch *scratch, infer_str text, int at_start, infer_word_fn fn, void *user,
                               infer_error *err);
void infer_pre_scratch_free(infer_pre_scratch *s);

/* GPT-2's byte alphabet: the 188 printable bytes of Latin-1 stand for themselves, the others follow from U+0100. */
static inline uint32_t infer_byte_to_char(uint8_t b)
{
    if (b <= 32)
        return 256u + b;
    if (b >= 127 && b <= 160)
        return 162u + b;
    return b == 173 ? 323u : b;
}

/* The inverse; -1 for a character outside of the alphabet. */
static inline int infer_char_to_byte(uint32_t cp)
{
    if (cp >= 256)
        return cp <= 288 ? (int)cp - 256 : cp <= 322 ? (int)cp - 162 : cp == 323 ? 173 : -1;
    return (cp > 32 && cp < 127) || (cp > 160 && cp != 173) ? (int)cp : -1;
}

/* ---- Pre-tokenizers by the name that model files give (tokenizer.ggml.pre) ---- */

#define INFER_PRE_IGNORE_MERGES 1u /* a word that is in the vocabulary is one token */
#define INFER_PRE_ADD_BOS       2u /* BOS in front unless the file says otherwise */
#define INFER_PRE_NFC           4u /* normalise first */

typedef struct infer_pre_row {
    const char *names[16]; /* ends with NULL */
    unsigned flags;
    const char *patterns[6]; /* cut at each in turn, matches isolated; then the byte alphabet */
} infer_pre_row;

/* The row with that name, or NULL. */
const infer_pre_row *infer_pre_row_find(const char *name);

/* The pattern of GPT-2, which byte-level tokenizers use where they name none. */
extern const char infer_pre_gpt2[];

#endif
