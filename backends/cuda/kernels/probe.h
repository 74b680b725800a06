/* What host and kernels of probe.cu share. SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_PROBE_H
#define CUDA_PROBE_H

#include <stdint.h>

/* y = a * scale + b (or + bias) over the first rows of dense F32 operands. Rows: cap, or counts[from] * mul where from
 * is not negative. */
typedef struct probe_params {
    int64_t row, b_row; /* elements of a row; of b, which repeats */
    int32_t cap, from;
    uint32_t mul;
    float scale, bias;
    uint32_t reserved;
} probe_params;

#endif
