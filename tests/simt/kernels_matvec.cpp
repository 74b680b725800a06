/* Products of few rows, for the emulation. SPDX-License-Identifier: Apache-2.0 */
#include "simt.h"

#include "../../backends/cuda/kernels/matvec_block.cu"
#include "../../backends/cuda/kernels/matvec_plain.cu"
#include "../../backends/cuda/kernels/matvec_super.cu"

#define EACH(f, R)                                                                                                     \
    SIMT_KERNEL(mv##R##_##f)                                                                                           \
    SIMT_KERNEL(mvs##R##_##f)
#define ALL(F, f) EACH(f, 1) EACH(f, 2) EACH(f, 4) EACH(f, 8)
FOR_FORMATS(ALL)
