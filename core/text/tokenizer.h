/* A tokenizer put together: added tokens, normalisation, pre-tokenizer, model, what is put around a text, decoding.
 * The creators (from a model file's vocabulary, from tokenizer.json) fill it; the rest only reads.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TEXT_TOKENIZER_H
#define INFER_TEXT_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include <infer/text.h>

#include "text/added.h"
#include "text/bpe.h"
#include "text/normalize.h"
#include "text/pieces.h"
#include "text/pretokenize.h"

#define INFER_TOKENIZER_MAX_NORMS 16u
#define INFER_TOKENIZER_MAX_AFFIX 8u

struct infer_encoder;

/* A kind of model. The pipeline around it is the same for all. */
typedef struct infer_tokenizer_kind {
    const char *gguf; /* tokenizer.ggml.model, or NULL */
    const char *json; /* model.type in tokenizer.json, or NULL */
    /* Appends the ids of one word to the encoder's list. */
    infer_status (*encode_word)(struct infer_encoder *e, const char *p, size_t n);
} infer_tokenizer_kind;

extern const infer_tokenizer_kind infer_tokenizer_bpe, infer_tokenizer_spm;

/* How ids become text. */
typedef struct infer_decoder {
    int byte_level;     /* pieces are spelled in GPT-2's byte alphabet */
    int byte_fallback;  /* "<0xNN>" pieces are that byte */
    infer_str from, to; /* every `from` inside a piece becomes `to`; from.n 0: nothing does. Owned */
    uint32_t strip;     /* leading spaces of the whole text that go, at most */
    int spaced;         /* a space between any two tokens */
} infer_decoder;

/* What an id gives where that is whole characters, few bytes and always the same: a quarter of a cache line, where the
 * long way reads several. */
typedef struct infer_whole {
    char text[15]; /* 0-terminated */
    uint8_t n;     /* its bytes, or INFER_WHOLE_NOT */
} infer_whole;

#define INFER_WHOLE_NOT 255u /* go the long way */

struct infer_tokenizer {
    const infer_tokenizer_kind *kind;
    infer_pieces pieces;
    infer_whole *whole; /* one an id; NULL: what an id gives depends on others */
    infer_bpe bpe;
    infer_added added;            /* found in the text as it comes, first */
    infer_added added_normalized; /* found in the normalised text; texts are in `text` */
    infer_norm norm[INFER_TOKENIZER_MAX_NORMS];
    size_t n_norm;
    infer_pre_step pre[INFER_PRE_MAX_STEPS];
    size_t n_pre;
    infer_decoder decoder;
    int32_t prefix[INFER_TOKENIZER_MAX_AFFIX], suffix[INFER_TOKENIZER_MAX_AFFIX]; /* with INFER_ENCODE_ADD_SPECIAL */
    size_t n_prefix, n_suffix;
    int32_t bos, eos, eot;
    int32_t *end; /* further ids that end a turn */
    size_t n_end;
    char **text; /* owned strings that others borrow */
    size_t n_text;
};

/* ---- For the creators ---- */

/* Owns a copy of p (NUL-terminated besides). NULL without memory. */
const char *infer_tokenizer_keep(infer_tokenizer *t, const char *p, size_t n);
/* Appends a step; the regex, if any, is taken over even on failure. INFER_E_TOO_LARGE, INFER_E_NO_MEMORY. */
infer_status infer_tokenizer_add_norm(infer_tokenizer *t, infer_norm step, infer_error *err);
infer_status infer_tokenizer_add_pre(infer_tokenizer *t, infer_pre_step step, infer_error *err);
/* The same with the cut at a pattern. */
infer_status infer_tokenizer_add_split(infer_tokenizer *t, const char *pattern, size_t n, infer_split how, int invert,
                                       infer_error *err);
/* Adds a token to be found in the text: `normalized` in its normalised form. Call after all norms are in. */
infer_status infer_tokenizer_add_token(infer_tokenizer *t, infer_added_token token, int normalized, infer_error *err);
/* Pieces with a name that ends a turn become control tokens where a file calls them normal, as some do: else a model's
 * turn would have no end. Call before anything looks at the types. */
void infer_tokenizer_type_ends(infer_tokenizer *t);
/* Sorts what was added and finds the tokens that end a turn. The last call of a creator. */
infer_status infer_tokenizer_finish(infer_tokenizer *t, infer_error *err);

/* ---- Encoding ---- */

/* One call's working memory. */
typedef struct infer_encoder {
    const infer_tokenizer *t;
    infer_error *err;
    uint32_t flags;
    infer_norm_scratch norm;
    infer_pre_scratch pre;
    infer_bpe_scratch bpe;
    infer_id_list ids;
} infer_encoder;

/* Whether skipping special tokens leaves this id out. */
static inline int infer_tokenizer_is_special(const infer_tokenizer *t, int32_t id)
{
    return t->pieces.type[id] == INFER_TOKEN_CONTROL || t->pieces.type[id] == INFER_TOKEN_UNKNOWN;
}

/* Fills `whole`. Called by infer_tokenizer_finish. INFER_E_NO_MEMORY. */
infer_status infer_tokenizer_make_whole(infer_tokenizer *t);

/* For who pushes ids of many texts by turns: asks memory for what a push will read of an id, and of a detok, so that it
 * does not wait there. */
void infer_tokenizer_foresee(const infer_tokenizer *t, int32_t id);
void infer_detok_foresee(const infer_detok *d);

#endif
