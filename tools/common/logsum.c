/* Numbers about a row of logits. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>

#include "logsum.h"

double logits_log_sum_exp(const float *x, uint32_t n)
{
    float best = x[0];
    for (uint32_t i = 1; i < n; i++)
        best = x[i] > best ? x[i] : best;
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - best);
    return best + log(sum);
}
