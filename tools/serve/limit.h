/* A token bucket. The owner locks. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_SERVE_LIMIT_H
#define INFER_SERVE_LIMIT_H

#include <stdint.h>

typedef struct bucket {
    double size;      /* what a minute fills; 0: no limit */
    double level;     /* may be below 0: a debt, which the time pays back first */
    uint64_t seen_ns; /* when level was right */
} bucket;

/* Full, of what a minute brings (0: no limit). Times are of one clock in nanoseconds, and rise. */
void bucket_init(bucket *b, double per_minute, uint64_t now);
/* Seconds until it holds `need` (at most its size), 0 when it does now. */
double bucket_wait(bucket *b, double need, uint64_t now);
/* Takes n out, whether it holds that or not. */
void bucket_take(bucket *b, double n, uint64_t now);

#endif
