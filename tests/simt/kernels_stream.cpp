/* Products of few rows through matrix units, for the emulation. SPDX-License-Identifier: Apache-2.0 */
#include "simt.h"

#include "../../backends/cuda/kernels/stream.cu"

#if SIMT_WAVE == 32
SIMT_KERNEL(stream4_bf16)
SIMT_KERNEL(stream8_bf16)
SIMT_KERNEL(streams4_bf16)
SIMT_KERNEL(streams8_bf16)
SIMT_KERNEL(streamg4_bf16)
SIMT_KERNEL(streamg8_bf16)
#endif
