/* clang-format off: the list stays a list. SPDX-License-Identifier: Apache-2.0 */
/*
 * How weights lie in device memory where kernels of sm_90 read them (infer_weight_plan's layout CUDA_LAYOUT_PACKED):
 * for host and kernels. Made at load by kernels/pack.cu.
 *
 * A matrix [N][K] is ceil(N / 16) panels of 16 rows, rows beyond N zero; matrices of experts follow each other. A panel
 * is ceil(K / unit) steps in K's order, elements beyond K zero, each packed_step bytes: what a bulk copy brings in one
 * piece, and a multiple of 16. So a panel is contiguous, and a run of its steps is. Zero is the code that means it,
 * with a scale of 0.
 *
 * Lane 4 g + t of a wave has rows g and g + 8 in the A fragment of m16n8k16: four numbers a row of 16 elements, as
 * pairs (2 t, 2 t + 1) and (2 t + 8, 2 t + 9). Of 32 elements those are pairs P0 P1 (the first 16) and P2 P3.
 *
 *   BF16 F16   unit 64: rows 0 to 7, then 8 to 15, each 8 lines of 128 bytes; 16-byte piece c of line r lies at piece
 *              c ^ r. That is the shared-memory layout "K-major, 128-byte swizzle" of wgmma, and free of bank conflicts
 *              for ldmatrix.
 *   F8_E4M3    the same, unit 128. A matrix with a scale a row has them behind its panels, f32, N of them.
 *   Q8_0       unit 64: two blocks of 512 bytes of codes, the lane's 16: row g P0 P1 P2 P3, row g + 8 the same; each
 *              code + 128. Then scales, f16: of g: block 0 rows g, g + 8, block 1 rows g, g + 8.
 *   Q4_0       unit 64: the lane's 16 bytes of codes: words of block 0 row g, row g + 8, block 1 row g, row g + 8.
 *              Nibbles of a word: the first of P0, P2, P1, P3, then their seconds; so the low nibbles of its bytes are
 *              of the first 16 elements. Then scales as Q8_0's.
 *   Q4_1       the same, then minima as the scales
 *   Q4_K       unit 256: codes of four times 64 elements as Q4_0's, 512 bytes each. Then for each of the four, 8 bytes
 *              of g: row g scale and minimum of its first 32 elements, of its second, row g + 8 the same. Then of each
 *              of the 16 rows d and dmin, f16.
 *   Q6_K       unit 256: low nibbles as Q4_K's codes. Then for each of the four, 8 bytes of the lane: words of block 0
 *              and block 1, of the two bits above, the upper one turned round; byte i has those of the low nibble of
 *              row g's byte i, of row g + 8's, of the high nibble of row g's, of row g + 8's. Then for each of the
 * four, 8 bytes of g: scales, of row g's four 16 elements, of row g + 8's. Then of each row d, f16.
 *   U4         in groups of 128, unit 256: codes as Q4_K's. Then of g: scales, f16, of rows g and g + 8 in the first
 *              group, in the second. Then of g a byte for either group: zero points, of row g its low nibble.
 */
/* clang-format on */
#ifndef CUDA_PACKED_H
#define CUDA_PACKED_H

#include <stdint.h>

#include <infer/quant.h>

#define CUDA_LAYOUT_PACKED 0x43550001u

#define PACKED_ROWS 16

/* X(id, elements of a step, its bytes, whether elements are integer codes with scales) */
#define PACKED_FORMATS(X)                                                                                              \
    X(BF16, 64, 2048, 0)                                                                                               \
    X(F16, 64, 2048, 0)                                                                                                \
    X(F8_E4M3, 128, 2048, 0)                                                                                           \
    X(Q8_0, 64, 1088, 1)                                                                                               \
    X(Q4_0, 64, 576, 1)                                                                                                \
    X(Q4_1, 64, 640, 1)                                                                                                \
    X(Q4_K, 256, 2368, 1)                                                                                              \
    X(Q6_K, 256, 3360, 1)                                                                                              \
    X(U4, 256, 2128, 1)

/* The same as constants. */
enum {
#define X(id, unit, bytes, codes) PACKED_UNIT_##id = unit, PACKED_STEP_##id = bytes,
    PACKED_FORMATS(X)
#undef X
};

#if defined(__CUDACC__)
#define PACKED_FN static __host__ __device__ __forceinline__
#else
#define PACKED_FN static inline
#endif

/* Elements of a step; 0: no packed format. */
PACKED_FN int32_t packed_unit(infer_format f)
{
    switch (f) {
#define X(id, unit, bytes, codes)                                                                                      \
    case INFER_FMT_##id:                                                                                               \
        return unit;
        PACKED_FORMATS(X)
#undef X
    default:
        return 0;
    }
}

/* Bytes of a step; 0: no packed format. */
PACKED_FN int32_t packed_step(infer_format f)
{
    switch (f) {
#define X(id, unit, bytes, codes)                                                                                      \
    case INFER_FMT_##id:                                                                                               \
        return bytes;
        PACKED_FORMATS(X)
#undef X
    default:
        return 0;
    }
}

PACKED_FN int64_t packed_panels(int64_t n)
{
    return n / PACKED_ROWS + (n % PACKED_ROWS != 0);
}

/* The rest of packed formats only. */
PACKED_FN int64_t packed_steps(infer_format f, int64_t k)
{
    return k / packed_unit(f) + (k % packed_unit(f) != 0);
}

PACKED_FN uint64_t packed_panel_bytes(infer_format f, int64_t k)
{
    return (uint64_t)packed_steps(f, k) * (uint64_t)packed_step(f);
}

/* Of a matrix without scales a row; n and k below 2^31, so that it is below 2^64. */
PACKED_FN uint64_t packed_bytes(infer_format f, int64_t n, int64_t k)
{
    return (uint64_t)packed_panels(n) * packed_panel_bytes(f, k);
}

/* What a kernel of pack.cu is told: rows, from the first of a panel on, of which the last panel may have fewer. */
typedef struct packed_job {
    int64_t row_bytes; /* of the source, rows dense; of scales and zero points: how many a row has */
    int32_t rows, steps;
    int32_t zero; /* of U4's scales: the zero point of all; -1: there are some to come */
} packed_job;

#define PACKED_GROUP 128 /* elements of U4 that have a scale */

#endif
