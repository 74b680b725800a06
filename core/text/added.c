/* Leftmost-longest search for added tokens: sorted texts, narrowed byte by byte. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "text/added.h"

infer_status infer_added_put(infer_added *a, const infer_added_token *token, infer_error *err)
{
    if (!token->text.n)
        return INFER_OK;
    if (token->text.n > INFER_ADDED_MAX)
        return infer_error_set(err, INFER_E_TOO_LARGE, "added token %d: %zu bytes of text, the limit is %u", token->id,
                               token->text.n, INFER_ADDED_MAX);
    if (a->n == a->cap) {
        size_t cap = a->cap ? a->cap * 2 : 64;
        infer_added_token *p = infer_realloc_array(a->token, cap, sizeof *p);
        if (!p)
            return infer_error_set(err, INFER_E_NO_MEMORY, "added tokens: no memory");
        a->token = p;
        a->cap = cap;
    }
    a->token[a->n++] = *token;
    return INFER_OK;
}

static int by_text(const void *x, const void *y)
{
    const infer_added_token *a = x, *b = y;
    int c = memcmp(a->text.p, b->text.p, a->text.n < b->text.n ? a->text.n : b->text.n);
    if (c)
        return c;
    return a->text.n != b->text.n ? (a->text.n < b->text.n ? -1 : 1) : (a->id > b->id) - (a->id < b->id);
}

void infer_added_sort(infer_added *a)
{
    if (a->n)
        qsort(a->token, a->n, sizeof *a->token, by_text);
    size_t i = 0;
    for (unsigned b = 0; b <= 256; b++) {
        while (i < a->n && (uint8_t)a->token[i].text.p[0] < b)
            i++;
        a->first[b] = i;
    }
}

void infer_added_free(infer_added *a)
{
    infer_free(a->token);
    *a = (infer_added){0};
}

/* First token in [lo, hi), which share their first d bytes, whose byte d is at least b. */
static size_t lower_bound(const infer_added *a, size_t lo, size_t hi, size_t d, unsigned b)
{
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if ((uint8_t)a->token[mid].text.p[d] < b)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

const infer_added_token *infer_added_find(const infer_added *a, const char *text, size_t n, size_t from, size_t *start)
{
    if (!a->n)
        return NULL;
    for (size_t i = from; i < n; i++) {
        unsigned b = (uint8_t)text[i];
        size_t lo = a->first[b], hi = a->first[b + 1];
        const infer_added_token *best = NULL;
        for (size_t d = 1; lo < hi; d++) {
            while (lo < hi && a->token[lo].text.n == d)
                best = &a->token[lo++]; /* in sorted order what ends here comes first */
            if (i + d >= n)
                break;
            b = (uint8_t)text[i + d];
            lo = lower_bound(a, lo, hi, d, b);
            hi = lower_bound(a, lo, hi, d, b + 1);
        }
        if (best) {
            *start = i;
            return best;
        }
    }
    return NULL;
}
