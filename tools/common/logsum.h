/* Numbers about a row of logits. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TOOLS_LOGSUM_H
#define INFER_TOOLS_LOGSUM_H

#include <stdint.h>

/* log of the sum of exp(x[i]) over n >= 1 logits: a logit less this is its log-probability. */
double logits_log_sum_exp(const float *x, uint32_t n);

#endif
