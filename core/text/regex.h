/* Regular expressions as tokenizer files write them (Oniguruma's Ruby syntax over UTF-8), run by PCRE2.
 * Constructs that mean something else, or nothing, in PCRE2 are translated; what cannot be is refused by name.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TEXT_REGEX_H
#define INFER_TEXT_REGEX_H

#include <stddef.h>

#include <infer/error.h>

/* A compiled pattern. Immutable: any number of threads may match with it, each with its own scratch. */
typedef struct infer_regex infer_regex;
/* What one matching thread needs. */
typedef struct infer_regex_scratch infer_regex_scratch;

/* Patterns are at most this long. */
#define INFER_REGEX_MAX_PATTERN 65536u

/* Compiles n bytes of pattern. INFER_E_UNSUPPORTED names a construct that is not known or a pattern that PCRE2 does
 * not take; INFER_E_NO_MEMORY. */
infer_status infer_regex_compile(const char *pattern, size_t n, infer_regex **out, infer_error *err);
void infer_regex_destroy(infer_regex *r);

/* Scratch for texts of up to max_text bytes: the work of one search is bounded by a limit derived from it, the memory
 * by 64 MiB. */
infer_status infer_regex_scratch_create(size_t max_text, infer_regex_scratch **out);
void infer_regex_scratch_destroy(infer_regex_scratch *s);

/* The leftmost match in text[from, n), text being valid UTF-8 that the pattern sees from its start (for lookbehind).
 * *found 1 with [*start, *end), else 0. INFER_E_TOO_LARGE where a limit was reached. */
infer_status infer_regex_search(const infer_regex *r, infer_regex_scratch *s, const char *text, size_t n, size_t from,
                                int *found, size_t *start, size_t *end, infer_error *err);

#endif
