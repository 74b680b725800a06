/* Parameter block of kernels/ring.cu, for host and kernels. SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_RING_H
#define CUDA_RING_H

#include "../launch/params.h"
#include "packed.h"

#define RING_WAVES   16 /* that add */
#define RING_ENDS    2  /* waves that put sums to their places, in turn */
#define RING_THREADS ((RING_WAVES + RING_ENDS + 1) * 32)
#define RING_ROWS    4 /* of x, at a time */
#define RING_SLOTS   16

/* Of a step of so many bytes: waves that share it; steps of a copy, which all waves have alike. */
#define RING_PARTS(bytes) ((bytes) > 3000 ? 2 : 1)
#define RING_STEPS(bytes) ((40960 / (bytes)) / (RING_WAVES / RING_PARTS(bytes)) * (RING_WAVES / RING_PARTS(bytes)))

#define RING_ONE  0 /* one weight, with an epilogue */
#define RING_SIDE 1 /* up to three of one x, each with its bias */
#define RING_GLU  2 /* act(gate) * up: the first two */

/* Formats whose products of one row have a way of their own, where it is faster: sums are added in another order. */
#define RING_ALONE(format)                                                                                             \
    ((format) == INFER_FMT_Q4_0 || (format) == INFER_FMT_Q4_1 || (format) == INFER_FMT_Q4_K ||                         \
     (format) == INFER_FMT_Q6_K || (format) == INFER_FMT_U4)

/* Vectors: number r lies at off + r * step of its base. fmt 0: absent. */
typedef struct lp_line {
    lp_u64 off;
    lp_i64 step;
    lp_i32 fmt, reserved;
} lp_line;

/* b: a bias for each weight; or one, then operands of the epilogue's steps. */
typedef struct lp_ring {
    lp_line x, norm, y[3], b[5];
    lp_u64 w_off[3];
    lp_rows rows;
    lp_i32 n[3], k, kind;
    lp_i32 has_norm;          /* x passes an RMS norm, whose weights (norm) may be absent */
    lp_i32 held, slots;       /* rows of x that there is room for; copies of the ring */
    lp_i32 split, last_slots; /* the third weight is of another format: blocks of the others, copies of its ring */
    lp_i32 alone;             /* one row at a time, of a format of RING_ALONE: as ring_alone.cuh has it */
    lp_i32 by_row;            /* E4M3: a row's sums are multiplied by what stands behind the panels */
    lp_i32 act, n_epi, epi_kind[LP_MAX_EPI], epi_arg[LP_MAX_EPI];
    float epi_factor[LP_MAX_EPI], scale, limit, eps, offset;
} lp_ring;

/* Shared memory: barriers, the waves' sums, rows of x, the ring of slots of RING_STEPS(bytes) * bytes, to which copies
 * are only fast at multiples of 128. RING_FIXED: barriers; from 512 on what waves leave of rows (squares of RING_ROWS,
 * magnitudes of two, as one row's may be read while the next one's are written) and rows' scales; zeros. A row of k32
 * blocks of 32 elements: two planes of 16 bits or four of bytes; of codes then sums of blocks and scales of 256
 * elements. */
#define RING_FIXED       2048
#define RING_ZEROS       1024                                  /* the second half of it */
#define RING_SUMS        (2 * RING_ENDS * RING_WAVES * 16 * 4) /* of a row of x */
#define RING_X(k32)      (128 * (k32))
#define RING_SCALES(k32) (132 * (k32))
#define RING_SIZE(k32)   ((RING_SCALES(k32) + ((k32) + 7) / 8 * 4 + 127) / 128 * 128)

/* What codes are in ring_step.cuh, times what they stand for. */
#define RING_CODE_UNIT(format) ((format) == INFER_FMT_Q4_0 ? 16.0f : (format) == INFER_FMT_Q6_K ? 4.0f : 1.0f)

#endif
