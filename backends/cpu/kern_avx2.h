/* What the AVX2 files share. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_CPU_KERN_AVX2_H
#define INFER_CPU_KERN_AVX2_H

#include <immintrin.h>

#include "kern.h"
#include "kern_panel.h"

/* The sums ((0+1)+(2+3)) + ((4+5)+(6+7)) of four vectors. */
static inline __m128 kern_avx2_reduce(__m256 a, __m256 b, __m256 c, __m256 d)
{
    __m256 s = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}

extern const kern_format kern_avx2_formats[INFER_FMT_COUNT];

#endif
