/* Tokens that are found in the text itself, before the model sees it: special tokens and user-defined ones.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TEXT_ADDED_H
#define INFER_TEXT_ADDED_H

#include <stddef.h>
#include <stdint.h>

#include <infer/error.h>

#include "base/buf.h"

/* A longer text is not taken as such a token, so that the search stays linear in the text. */
#define INFER_ADDED_MAX 1024u

typedef struct infer_added_token {
    infer_str text; /* borrowed */
    int32_t id;
    uint8_t special, single_word, lstrip, rstrip;
} infer_added_token;

/* A set of such tokens. Zero-initialise; add all, then sort once. */
typedef struct infer_added {
    infer_added_token *token;
    size_t n, cap;
    size_t first[257]; /* tokens that begin with byte b are [first[b], first[b + 1]) */
} infer_added;

/* INFER_E_NO_MEMORY; INFER_E_TOO_LARGE over INFER_ADDED_MAX bytes. An empty text is left out. */
infer_status infer_added_put(infer_added *a, const infer_added_token *token, infer_error *err);
void infer_added_sort(infer_added *a);
void infer_added_free(infer_added *a);

/* The leftmost occurrence in text[from, n), of those that begin there the longest; NULL where there is none. *start
 * gets its place. */
const infer_added_token *infer_added_find(const infer_added *a, const char *text, size_t n, size_t from, size_t *start);

#endif
