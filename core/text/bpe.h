/* Byte-pair encoding of one word: by a list of merges (GPT-2, Llama 3, and what Hugging Face makes of SentencePiece
 * models) or by the pieces' scores (SentencePiece). SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TEXT_BPE_H
#define INFER_TEXT_BPE_H

#include <stddef.h>
#include <stdint.h>

#include <infer/error.h>

#include "base/buf.h"
#include "text/pieces.h"

/* The model's tables. Zero-initialise, set the flags, then infer_bpe_init, and either infer_bpe_merge for each merge
 * and infer_bpe_merges_done, or infer_bpe_scores. Immutable afterwards. */
typedef struct infer_bpe {
    const infer_pieces *pieces;
    int by_score;         /* merge any two neighbours whose joint text is a piece, by priority[] */
    int ignore_merges;    /* a word that is a piece is that piece */
    int cut;              /* no merge spans the place before a U+2581 that follows another character */
    int fuse_unk;         /* neighbouring unknown characters give one unknown token */
    int32_t unk;          /* -1: unknown characters give nothing */
    int has_bytes;        /* some byte_id is set */
    int32_t byte_id[256]; /* the pieces "<0x00>" …, -1 where there is none: what unknown characters are spelled with */
    int32_t char_id[512]; /* of single characters below U+0200, -1 where there is none */
    struct bpe_merge {
        int32_t left, right; /* left -1: an empty slot */
        uint32_t rank;
        int32_t id;
    } * merge, *list; /* hash table, open addressing; the merges until they are all in */
    uint32_t n_slots, n_merges, list_cap;
    uint32_t *priority; /* by_score: rank of each piece, UINT32_MAX: never made */
} infer_bpe;

/* Fills the tables of characters and bytes; byte_fallback: unknown characters are spelled in byte pieces. */
void infer_bpe_init(infer_bpe *b, const infer_pieces *pieces, int byte_fallback);
/* The next merge, in order of rank. *guess is any number at first, then left to this function: new pieces tend to
 * follow one another in the vocabulary. INFER_E_BAD_FILE where a part or the result is no piece; INFER_E_NO_MEMORY. */
infer_status infer_bpe_merge(infer_bpe *b, infer_str left, infer_str right, uint32_t *guess, infer_error *err);
/* After the last merge. Of a repeated pair the later rank counts, as in the reference. INFER_E_NO_MEMORY. */
infer_status infer_bpe_merges_done(infer_bpe *b, infer_error *err);
/* Scores, one a piece, higher first. INFER_E_BAD_FILE for one that is not a number. Only pieces that are normal or
 * user-defined are ever made. */
infer_status infer_bpe_scores(infer_bpe *b, const float *scores, infer_error *err);
void infer_bpe_free(infer_bpe *b);

/* Working memory of one thread. Zero-initialise. */
typedef struct infer_bpe_scratch {
    struct bpe_symbol *symbol;
    size_t symbol_cap;
    struct bpe_candidate *heap;
    size_t heap_n, heap_cap;
} infer_bpe_scratch;
void infer_bpe_scratch_free(infer_bpe_scratch *s);

/* A growing list of ids; `failed` as in infer_buf. */
typedef struct infer_id_list {
    int32_t *p;
    size_t n, cap;
    int failed;
} infer_id_list;
void infer_id_list_push(infer_id_list *l, int32_t id);

/* Appends the ids of a word of n bytes of valid UTF-8. Time O(n log n). INFER_E_NO_MEMORY, INFER_E_TOO_LARGE (2 GiB).
 */
infer_status infer_bpe_encode(const infer_bpe *b, infer_bpe_scratch *s, const char *word, size_t n, infer_id_list *out,
                              infer_error *err);

#endif
