/* Products of few rows with weights in plain formats: see matvec.cuh. SPDX-License-Identifier: Apache-2.0 */
#include "matvec.cuh"

MV_ALL(f32)
MV_ALL(f16)
MV_ALL(bf16)
MV_ALL(e4m3)
MV_ALL(e5m2)
