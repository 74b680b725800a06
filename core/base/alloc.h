/* Host memory: counted, with a seam that lets tests fail the n-th request. Thread-safe.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_BASE_ALLOC_H
#define INFER_BASE_ALLOC_H

#include <stddef.h>
#include <stdint.h>

/* As malloc and friends: NULL when there is no memory, or when n*size overflows. Sizes in bytes; size 0 gives a
 * unique pointer. Release with infer_free only (NULL is allowed). */
void *infer_malloc(size_t size);
void *infer_calloc(size_t n, size_t size);
void *infer_realloc(void *p, size_t size);
void *infer_realloc_array(void *p, size_t n, size_t size);
char *infer_strndup(const char *s, size_t n);
char *infer_strdup(const char *s);
void infer_free(void *p);

/* Memory at an alignment (power of two, at least sizeof(void *)); release with infer_free_aligned. */
void *infer_alloc_aligned(size_t size, size_t align);
void infer_free_aligned(void *p);

/* Number of requests made so far by the whole process: a step that makes none keeps it. */
uint64_t infer_alloc_count(void);

/* Test seam: after n further successful requests, every following one fails once `fail_all`, otherwise only
 * that one. n < 0 switches it off. Returns whether the previously armed failure was delivered. */
int infer_alloc_fail_after(int64_t n, int fail_all);

#endif
