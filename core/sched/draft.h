/*
 * What may come next in a text, told from the text alone: where its end was found before, what followed there may
 * follow again (prompt lookup, A. Saxena, "Prompt Lookup Decoding", 2023). A table has, for each run of 1 to
 * INFER_DRAFT_NGRAM tokens by its hash, the place where it was last read; a clash loses the older one, and a place
 * counts only if the tokens there are the same. A place that was right about a token stays: so the run that is known
 * to repeat itself grows with the text.
 *
 * A token costs a fixed number of looks (amortised: a run's length is looked up to INFER_DRAFT_LONG once a place).
 * Nothing is allocated after creation. Knows arrays of tokens alone. SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_SCHED_DRAFT_H
#define INFER_SCHED_DRAFT_H

#include <stdint.h>

#define INFER_DRAFT_NGRAM 4u
#define INFER_DRAFT_LONG  16u        /* a run's length is counted so far when it is found */
#define INFER_DRAFT_TABLE (1u << 18) /* entries at most: longer texts forget what was read long ago */

typedef struct infer_draft {
    uint32_t *last; /* by hash: place of a run's last token, and one; 0: none */
    uint32_t mask;
    uint32_t at, len; /* the text's last `len` tokens (0: none) end also at place `at` */
    uint64_t n;       /* tokens taken in */
} infer_draft;

/* For a text of at most n_max tokens (under 2^31). Returns 0 where there is no memory. */
int infer_draft_create(infer_draft *d, uint64_t n_max);
/* Safe on a zeroed struct. */
void infer_draft_destroy(infer_draft *d);
/* Takes tokens d->n .. n of a text in; those before are as they were. */
void infer_draft_take(infer_draft *d, const int32_t *tokens, uint64_t n);
/* The token that may come i after the text's end (0: next), where len is not 0. A place's text goes on into what it
 * proposes: what repeats itself with a period goes on so. */
int32_t infer_draft_token(const infer_draft *d, const int32_t *tokens, uint32_t i);

#endif
