/* Products of few rows with weights in blocks of 256: see matvec.cuh. SPDX-License-Identifier: Apache-2.0 */
#include "matvec.cuh"

MV_ALL(q2_k)
MV_ALL(q3_k)
MV_ALL(q4_k)
MV_ALL(q5_k)
MV_ALL(q6_k)
