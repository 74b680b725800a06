/* Products of many rows by packed weights in blocks of 32, or in E4M3 with x in f16: gemmN_F as in gemm.cu.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "gemm_quant.cuh"

#if defined(WGMMA)
GEMM_QUANT_ALL(q8_0)
GEMM_QUANT_ALL(q4_0)
GEMM_QUANT_ALL(q4_1)
GEMM_QUANT_ALL(e4m3w)
#endif
