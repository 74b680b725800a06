/* Products of few rows with weights in blocks of 32: see matvec.cuh. SPDX-License-Identifier: Apache-2.0 */
#include "matvec.cuh"

MV_ALL(q4_0)
MV_ALL(q4_1)
MV_ALL(q5_0)
MV_ALL(q5_1)
MV_ALL(q8_0)
MV_ALL(mxfp4)
