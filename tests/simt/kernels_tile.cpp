/* Products through matrix units, for the emulation. SPDX-License-Identifier: Apache-2.0 */
#include "simt.h"

#include "../../backends/cuda/kernels/tile.cu"

#define BOTH(F, f) SIMT_KERNEL(tile_##f##_bf16) SIMT_KERNEL(tile_##f##_f16)
FOR_FORMATS(BOTH)
