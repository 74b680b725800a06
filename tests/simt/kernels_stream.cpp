/* Products of few rows through matrix units, and packed weights, for the emulation. SPDX-License-Identifier: Apache-2.0
 */
#include "simt.h"

#include "../../backends/cuda/kernels/stream.cu"
namespace packed
{
#include "../../backends/cuda/kernels/pack.cu"
}
using namespace packed;

#if SIMT_WAVE == 32
SIMT_KERNEL(stream4_bf16)
SIMT_KERNEL(stream8_bf16)
SIMT_KERNEL(streams4_bf16)
SIMT_KERNEL(streams8_bf16)
SIMT_KERNEL(streamg4_bf16)
SIMT_KERNEL(streamg8_bf16)
#endif
SIMT_KERNEL(pack_lines)
SIMT_KERNEL(pack_q8_0)
SIMT_KERNEL(pack_q4_0)
SIMT_KERNEL(pack_q4_1)
SIMT_KERNEL(pack_q4_k)
SIMT_KERNEL(pack_q6_k)
SIMT_KERNEL(pack_u4)
SIMT_KERNEL(pack_u4_scales)
SIMT_KERNEL(pack_u4_zeros)
