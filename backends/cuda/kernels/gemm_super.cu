/* Products of many rows by packed weights in blocks of 256: gemmN_F as in gemm.cu. SPDX-License-Identifier: Apache-2.0
 */
#include "gemm_quant.cuh"

#if defined(WGMMA)
GEMM_QUANT_ALL(q4_k)
GEMM_QUANT_ALL(q6_k)
GEMM_QUANT_ALL(u4)
#endif
