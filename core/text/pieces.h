/* The vocabulary's texts and the way from a text to its id. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TEXT_PIECES_H
#define INFER_TEXT_PIECES_H

#include <stddef.h>
#include <stdint.h>

#include <infer/error.h>

#include "base/buf.h"

/* Ids are [0, n). Texts are copied. One owner while it is filled, then any number of readers. Zero-initialise. */
typedef struct infer_pieces {
    uint32_t n;
    uint32_t longest; /* bytes of the longest text */
    uint32_t used;    /* bytes of text in use */
    char *text;       /* all texts, one behind the other */
    struct infer_piece {
        uint32_t at, n;
    } * piece;
    uint8_t *type;      /* INFER_TOKEN_* of each */
    struct piece_slot { /* hash table, open addressing; id -1: empty */
        uint32_t tag;   /* the hash's other half, so that few texts are compared in vain */
        int32_t id;
    } * slot;
    uint32_t mask;
} infer_pieces;

/* Room for n ids (all empty, INFER_TOKEN_UNUSED) and `bytes` bytes of text. INFER_E_NO_MEMORY, INFER_E_TOO_LARGE. */
infer_status infer_pieces_init(infer_pieces *p, uint32_t n, uint64_t bytes, infer_error *err);
void infer_pieces_free(infer_pieces *p);

/* Gives id its text, from the room asked for. `model`: the model's own, found by infer_pieces_find; of two ids with one
 * text, the later call's. An empty text is never found. */
void infer_pieces_set(infer_pieces *p, uint32_t id, const char *text, size_t n, int32_t type, int model);

static inline infer_str infer_pieces_get(const infer_pieces *p, uint32_t id)
{
    return infer_str_of(p->text + p->piece[id].at, p->piece[id].n);
}

/* The model's id with this text, or -1. */
int32_t infer_pieces_find(const infer_pieces *p, const char *text, size_t n);

#endif
