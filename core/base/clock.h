/* Monotonic time. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_BASE_CLOCK_H
#define INFER_BASE_CLOCK_H

#include <stdint.h>

/* Nanoseconds since an arbitrary start; never goes back. */
uint64_t infer_clock_ns(void);

#endif
