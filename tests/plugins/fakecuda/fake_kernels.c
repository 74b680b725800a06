/* The backend's kernels as C, as far as the fake driver has them. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>
#include <stddef.h>

#include "../../../backends/cuda/kernels/probe.h"
#include "fakecuda.h"

static void probe_add(void *const *ptr, const void *params, const unsigned grid[3], const unsigned block[3])
{
    const probe_params *p = params;
    const float *a = ptr[0], *b = ptr[1];
    float *y = ptr[2];
    int64_t rows = p->cap, threads = (int64_t)grid[0] * block[0];
    if (p->from >= 0) {
        int64_t want = (int64_t)((const int32_t *)ptr[3])[p->from] * p->mul;
        rows = want < 0 ? 0 : want < rows ? want : rows;
    }
    for (int64_t i = 0; i < threads && i < rows * p->row; i++)
        y[i] = fmaf(a[i], p->scale, b ? b[i % p->b_row] : p->bias);
}

const fake_kernel fake_kernels[] = {
    {"probe_add", 4, sizeof(probe_params), probe_add},
    {NULL, 0, 0, NULL},
};
