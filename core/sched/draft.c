/* Proposals from a text's own past. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "base/alloc.h"
#include "sched/draft.h"

int infer_draft_create(infer_draft *d, uint64_t n_max)
{
    uint32_t size = 64;
    *d = (infer_draft){0};
    while (size < n_max * INFER_DRAFT_NGRAM && size < INFER_DRAFT_TABLE)
        size *= 2;
    d->mask = size - 1;
    d->last = infer_calloc(size, sizeof *d->last);
    return d->last != NULL;
}

void infer_draft_destroy(infer_draft *d)
{
    infer_free(d->last);
    *d = (infer_draft){0};
}

/* How many tokens before places a < b are the same, each included; at most `most`. */
static uint32_t common(const int32_t *tokens, uint32_t a, uint32_t b, uint32_t most)
{
    uint32_t n = 0;
    while (n < most && n <= a && tokens[a - n] == tokens[b - n])
        n++;
    return n;
}

/* Token i is the text's last one: what was known goes on or ends, and a longer run is looked for. */
static void take_one(infer_draft *d, const int32_t *tokens, uint32_t i)
{
    if (d->len && tokens[d->at + 1] == tokens[i]) {
        d->at++;
        d->len++;
    } else {
        d->len = 0;
    }
    uint64_t h = 0;
    uint32_t found = 0, longest = d->len;
    for (uint32_t n = 1; n <= INFER_DRAFT_NGRAM && n <= i + 1; n++) {
        h = (h ^ ((uint32_t)tokens[i + 1 - n] + 1u)) * 0x9E3779B97F4A7C15u;
        h ^= h >> 29;
        uint32_t *last = &d->last[(h >> 7) & d->mask];
        /* a shorter run may just have been noted there */
        if (n > longest && *last && *last <= i && common(tokens, *last - 1, i, n) == n) {
            found = *last;
            longest = n;
        }
        *last = i + 1;
    }
    if (!found)
        return;
    d->at = found - 1;
    d->len = common(tokens, d->at, i, INFER_DRAFT_LONG);
}

void infer_draft_take(infer_draft *d, const int32_t *tokens, uint64_t n)
{
    while (d->n < n)
        take_one(d, tokens, (uint32_t)d->n++);
}

int32_t infer_draft_token(const infer_draft *d, const int32_t *tokens, uint32_t i)
{
    const uint64_t period = d->n - 1 - d->at; /* what lies past the end is what was proposed a period earlier */
    return tokens[d->at + 1 + i % period];
}
