/* Products of few rows by packed weights, for the emulation. SPDX-License-Identifier: Apache-2.0 */
#include "simt.h"

#include "../../backends/cuda/kernels/ring.cu"

#if SIMT_WAVE == 32
SIMT_KERNEL(ring_bf16)
SIMT_KERNEL(ring_f16)
SIMT_KERNEL(ring_e4m3)
SIMT_KERNEL(ring_q8_0)
SIMT_KERNEL(ring_q4_0)
SIMT_KERNEL(ring_q4_1)
SIMT_KERNEL(ring_q4_k)
SIMT_KERNEL(ring_q6_k)
SIMT_KERNEL(ring_u4)
SIMT_KERNEL(ring_q4_k_q6_k)
#endif
