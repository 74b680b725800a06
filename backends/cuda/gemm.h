/* Products of many rows by packed weights, for host and kernels: parameter blocks, and what lies in scratch.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_GEMM_H
#define CUDA_GEMM_H

#include "../launch/params.h"

#define GEMM_THREADS 384 /* a warpgroup that brings, two that multiply */

/* gemm_x_F: rows of x as the products want them: tiles of `tile` rows, in a tile K's steps of 128 bytes, in a step the
 * rows in atoms (kernels/wgmma.cuh). Elements beyond K are zero, rows that are not there are not written. Also sets the
 * products' counters to 0. scale_off: a float a row, where the format has no room for x as it is. */
typedef struct gemm_x_block {
    lp_tensor x;
    lp_rows rows;
    lp_u64 to_off, scale_off, count_off; /* in scratch */
    lp_i32 k, tile, counters, reserved;
} gemm_x_block;

/* gemmN_F: up to three weights of one x (LP_MMS_SIDE), of one with an epilogue; or gate and up (LP_MMS_GLU). */
typedef struct gemm_block {
    lp_tensor y[3], bias[3];
    lp_epi epi[LP_MAX_EPI];
    lp_rows rows;
    lp_u64 w_off[3];
    lp_u64 x_off, scale_off, count_off, part_off; /* in scratch */
    lp_i32 n[3];                                  /* 0: absent */
    lp_i32 k, kind, act, n_epi;
    float scale, limit;
    lp_i32 reserved;
} gemm_block;

/* Counters (32 bits each) and bytes of partial sums for a grid of so many blocks and outputs of a tile. */
#define GEMM_COUNTERS(grid)            (2 * (grid))
#define GEMM_PART_BYTES(grid, outputs) ((lp_u64)(grid) * 2 * (lp_u64)(outputs) * 4)

#endif
