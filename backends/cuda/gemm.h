/* Products of many rows by packed weights, for host and kernels: parameter blocks, and what lies in scratch.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_GEMM_H
#define CUDA_GEMM_H

#include "../launch/params.h"

#define GEMM_THREADS 384 /* a warpgroup that brings, two that multiply */

/* gemm_x_F: rows of x as the products want them: tiles of `tile` rows, in a tile K's steps of 128 bytes, in a step the
 * rows in atoms (kernels/wgmma.cuh). Elements beyond K are zero, rows that are not there are not written. scale_off: a
 * float a row, where the format has no room for x as it is. */
typedef struct gemm_x_block {
    lp_tensor x, norm;
    lp_rows rows;
    lp_u64 to_off, scale_off; /* in scratch */
    lp_i32 k, steps, tile, reserved;
    lp_i32 mixed;    /* F16: elements in the order in which gemm_e4m3w has weights (kernels/gemm_quant.cuh) */
    lp_i32 has_norm; /* x passes an RMS norm, whose weights (norm) may be absent */
    float eps, offset;
} gemm_x_block;

/* The same layout in bf16, for who writes it in the first place: `tile` a power of two, GEMM_LINE_BYTES from row to
 * row, bytes of so many rows. Elements beyond K are theirs to set to 0. */
#define GEMM_STEP_WIDTH                 64 /* elements of a line */
#define GEMM_LINE_BYTES                 128
#define GEMM_X_BYTES(rows, tile, steps) ((lp_u64)(((rows) + (tile)-1) / (tile)) * (lp_u64)(steps)*128 * (lp_u64)(tile))
static inline lp_panels gemm_panels(lp_i32 tile, lp_i32 steps)
{
    lp_panels p = {(lp_i64)(steps - 1) * 128 * tile, 128 * (tile - 1), 0, 7, 0};
    while (1 << p.log < tile)
        p.log++;
    return p;
}

/* gemmN_F: up to three weights of one x (LP_MMS_SIDE), of one with an epilogue; or gate and up (LP_MMS_GLU), whose
 * result by weights in bf16 may go out as x of the next product (panels; y[0] is in bf16 then). */
typedef struct gemm_block {
    lp_tensor y[3], bias[3];
    lp_epi epi[LP_MAX_EPI];
    lp_rows rows;
    lp_u64 w_off[3];
    lp_u64 x_off;               /* from x's base */
    lp_u64 scale_off, part_off; /* in scratch */
    lp_panels panels;
    lp_i32 n[3]; /* 0: absent */
    lp_i32 k, kind, act, n_epi;
    float scale, limit;
    lp_i32 by_row; /* E4M3: a row's sums are multiplied by what stands behind the panels */
    lp_i32 whole;  /* no tile is cut along K: sums do not depend on how many tiles there are */
} gemm_block;

/* Shared memory: stages of a tile's weights and x, lines of what goes out (of at most 32 columns, 64 rows and a few
 * more), two barriers a stage and a word. Weights of 16 and 8 bits: a stage is 128 bytes of K. */
#define GEMM_LINE           68
#define GEMM_LEAST_OF(a, b) ((a) < (b) ? (a) : (b))
#define GEMM_A_BYTES        16384
#define GEMM_STAGE(n)       (GEMM_A_BYTES + 128 * (n))
#define GEMM_STAGES(n)      GEMM_LEAST_OF(10, 196608 / GEMM_STAGE(n))
#define GEMM_LINES(n)       (GEMM_LEAST_OF(n, 32) * GEMM_LINE) /* floats of a warpgroup */
#define GEMM_SHARED(n)      (1024 + GEMM_STAGE(n) * GEMM_STAGES(n) + 8 * GEMM_LINES(n) + 16 * GEMM_STAGES(n) + 16)

/* Weights of fewer bits, `panel` bytes for 16 rows and 256 of K: stages of 64 of K of x, of 256 of weights. */
#define GEMM_X_STAGES(n) GEMM_LEAST_OF(16, 98304 / (128 * (n)))
#define GEMM_W_STAGES(n, panel)                                                                                        \
    GEMM_LEAST_OF(6, (231000 - 128 * (n)*GEMM_X_STAGES(n) - 8 * GEMM_LINES(n)) / (8 * (panel)))
#define GEMM_QUANT_SHARED(n, panel)                                                                                    \
    (1024 + 128 * (n)*GEMM_X_STAGES(n) + 8 * (panel)*GEMM_W_STAGES(n, panel) + 8 * GEMM_LINES(n) +                     \
     16 * (GEMM_X_STAGES(n) + GEMM_W_STAGES(n, panel)) + 16)

/* Blocks of a grid at most, and so counters of pieces (kernels/gemm.cuh); bytes of partial sums for so many blocks and
 * rows of a tile of x. */
#define GEMM_BLOCKS              1024
#define GEMM_PART_BYTES(grid, n) ((lp_u64)(grid)*2 * 128 * (lp_u64)(n)*4)

#endif
