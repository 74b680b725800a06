/* Products of many rows by packed weights, for the emulation. SPDX-License-Identifier: Apache-2.0 */
#include "simt.h"

#include "../../backends/cuda/kernels/gemm.cu"
#include "../../backends/cuda/kernels/gemm_block.cu"
#include "../../backends/cuda/kernels/gemm_super.cu"

#if SIMT_WAVE == 32
SIMT_KERNEL(gemm_x_bf16)
SIMT_KERNEL(gemm_xn_bf16)
SIMT_KERNEL(gemm_x_f16)
SIMT_KERNEL(gemm_x_e4m3)
#define QUANT(f)                                                                                                       \
    SIMT_KERNEL(gemm16_##f)                                                                                            \
    SIMT_KERNEL(gemm32_##f)                                                                                            \
    SIMT_KERNEL(gemm64_##f)                                                                                            \
    SIMT_KERNEL(gemm128_##f)
#define ALL(f) QUANT(f) SIMT_KERNEL(gemm256_##f)
ALL(bf16)
ALL(f16)
ALL(e4m3)
QUANT(e4m3w)
QUANT(q8_0)
QUANT(q4_0)
QUANT(q4_1)
QUANT(q4_k)
QUANT(q6_k)
QUANT(u4)
#endif
