/*
 * Token buckets. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include "limit.h"

void bucket_init(bucket *b, double per_minute, uint64_t now)
{
    *b = (bucket){.size = per_minute, .level = per_minute, .seen_ns = now};
}

static void fill(bucket *b, uint64_t now)
{
    if (now <= b->seen_ns) /* threads read the clock before they lock */
        return;
    b->level += b->size / 60 * ((double)(now - b->seen_ns) / 1e9);
    if (b->level > b->size)
        b->level = b->size;
    b->seen_ns = now;
}

double bucket_wait(bucket *b, double need, uint64_t now)
{
    if (b->size <= 0)
        return 0;
    fill(b, now);
    if (need > b->size)
        need = b->size;
    return b->level >= need ? 0 : (need - b->level) / (b->size / 60);
}

void bucket_take(bucket *b, double n, uint64_t now)
{
    if (b->size <= 0)
        return;
    fill(b, now);
    b->level -= n;
}
