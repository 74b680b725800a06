/* A small deterministic generator for random tests (splitmix64). SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TESTS_RNG_H
#define INFER_TESTS_RNG_H

#include <stdint.h>

typedef struct rng {
    uint64_t x;
} rng;

static inline uint64_t rng_next(rng *r)
{
    uint64_t z = r->x += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* 0 .. n-1 */
static inline uint32_t rng_below(rng *r, uint32_t n)
{
    return (uint32_t)(rng_next(r) % n);
}

#endif
