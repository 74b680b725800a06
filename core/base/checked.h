/* Arithmetic that says when it overflowed: for every number that comes from a file or a socket.
 * Each returns 1 and writes *out when the true result fits, else 0. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_BASE_CHECKED_H
#define INFER_BASE_CHECKED_H

#include <stdint.h>

static inline int infer_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

static inline int infer_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

/* Rounds up to a multiple of align (> 0, any value). */
static inline int infer_round_up_u64(uint64_t a, uint64_t align, uint64_t *out)
{
    uint64_t rest = a % align;
    if (!rest) {
        *out = a;
        return 1;
    }
    return infer_add_u64(a, align - rest, out);
}

/* Whether the range [offset, offset + size) lies within [0, total). */
static inline int infer_range_ok(uint64_t offset, uint64_t size, uint64_t total)
{
    return offset <= total && size <= total - offset;
}

#endif
