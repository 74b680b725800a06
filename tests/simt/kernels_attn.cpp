/* Attention through matrix units, for the emulation. SPDX-License-Identifier: Apache-2.0 */
#include "simt.h"

#include "../../backends/cuda/kernels/attn_few.cu"
#include "../../backends/cuda/kernels/attn_many.cu"

#if SIMT_WAVE == 32
SIMT_KERNEL(few_f16_64_1)
SIMT_KERNEL(few_f16_64_2)
SIMT_KERNEL(few_f16_64_4)
SIMT_KERNEL(few_f16_128_1)
SIMT_KERNEL(few_f16_128_2)
SIMT_KERNEL(few_f16_128_4)
SIMT_KERNEL(few_bf16_64_1)
SIMT_KERNEL(few_bf16_64_2)
SIMT_KERNEL(few_bf16_64_4)
SIMT_KERNEL(few_bf16_128_1)
SIMT_KERNEL(few_bf16_128_2)
SIMT_KERNEL(few_bf16_128_4)
SIMT_KERNEL(few_rope_f16_64_1)
SIMT_KERNEL(few_rope_f16_64_2)
SIMT_KERNEL(few_rope_f16_64_4)
SIMT_KERNEL(few_rope_f16_128_1)
SIMT_KERNEL(few_rope_f16_128_2)
SIMT_KERNEL(few_rope_f16_128_4)
SIMT_KERNEL(few_rope_bf16_64_1)
SIMT_KERNEL(few_rope_bf16_64_2)
SIMT_KERNEL(few_rope_bf16_64_4)
SIMT_KERNEL(few_rope_bf16_128_1)
SIMT_KERNEL(few_rope_bf16_128_2)
SIMT_KERNEL(few_rope_bf16_128_4)
SIMT_KERNEL(many_f16_64)
SIMT_KERNEL(many_f16_128)
SIMT_KERNEL(many_bf16_64)
SIMT_KERNEL(many_bf16_128)
#endif
