/*
 * What the panel kernels of all instruction sets share (panel.h has the layout and the sum): the shapes of the formats
 * as constants, and the tables that are made of them. SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_CPU_KERN_PANEL_H
#define INFER_CPU_KERN_PANEL_H

#include <stddef.h>
#include <string.h>

#include "panel.h"

/* Shapes are to be constants in every loop: for speed only, and instrumented such copies take a compiler minutes. */
#ifdef __SANITIZE_ADDRESS__
#define INLINE static inline __attribute__((unused))
#else
#define INLINE static inline __attribute__((always_inline))
#endif

/* Before a loop of a few turns over vectors that must stay in registers: optimisation level 2 would leave it a loop. */
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* What a kernel is compiled for: constants after inlining, as in panel_format. */
typedef struct shape {
    int low, high;
    panel_scale scale;
    int sub, unit, head_bytes, scale_bytes, block_bytes;
    const int8_t *lut;
} shape;

#define SHAPE(low, high, kind, sub, unit, head, scales, lut)                                                           \
    {                                                                                                                  \
        low, high, kind, sub, unit, head, scales, (scales) + 64 * ((low) + (high)), lut                                \
    }

/* X(id, name, shape) for every format of panels; the test compares what comes out with panel_formats. */
#define PANEL_SHAPES_32_BELOW_8(X)                                                                                     \
    X(Q4_0, q4_0, SHAPE(4, 0, PANEL_F16, 32, 32, 0, 32, NULL))                                                         \
    X(Q4_1, q4_1, SHAPE(4, 0, PANEL_F16_MIN, 32, 32, 0, 64, NULL))                                                     \
    X(Q5_0, q5_0, SHAPE(4, 1, PANEL_F16, 32, 32, 0, 32, NULL))                                                         \
    X(Q5_1, q5_1, SHAPE(4, 1, PANEL_F16_MIN, 32, 32, 0, 64, NULL))                                                     \
    X(MXFP4, mxfp4, SHAPE(4, 0, PANEL_E8M0, 32, 32, 0, 16, panel_mxfp4))                                               \
    X(Q4_K, q4_k, SHAPE(4, 0, PANEL_K_MIN, 32, 256, 64, 32, NULL))                                                     \
    X(Q5_K, q5_k, SHAPE(4, 1, PANEL_K_MIN, 32, 256, 64, 32, NULL))
#define PANEL_SHAPES_32(X) X(Q8_0, q8_0, SHAPE(8, 0, PANEL_F16, 32, 32, 0, 32, NULL)) PANEL_SHAPES_32_BELOW_8(X)
/* With a scale for 16 elements. */
#define PANEL_SHAPES_16(X)                                                                                             \
    X(Q2_K, q2_k, SHAPE(2, 0, PANEL_K4_MIN, 16, 256, 64, 32, NULL))                                                    \
    X(Q3_K, q3_k, SHAPE(2, 1, PANEL_K_I8, 16, 256, 32, 32, NULL))                                                      \
    X(Q6_K, q6_k, SHAPE(4, 2, PANEL_K_I8, 16, 256, 32, 32, NULL))
#define PANEL_SHAPES_BELOW_8(X) PANEL_SHAPES_32_BELOW_8(X) PANEL_SHAPES_16(X)
#define PANEL_SHAPES(X)         PANEL_SHAPES_32(X) PANEL_SHAPES_16(X)

/* With a function `dot` of one panel that takes a shape first: a panel_dot_fn of it. */
#define PANEL_DOT(id, name, ...)                                                                                       \
    static void dot_##name(const uint8_t *panels, int64_t bytes, int64_t n_panels, const uint8_t *x, int64_t m,        \
                           int64_t b0, int64_t nb, int64_t row_blocks, float *c, int64_t ldc)                          \
    {                                                                                                                  \
        const shape f = __VA_ARGS__;                                                                                   \
        for (int64_t p = 0; p < n_panels; p++)                                                                         \
            dot(f, panels + p * bytes, x, m, b0, nb, row_blocks, c + PANEL_ROWS * p, ldc);                             \
    }

/* The same where `dot` is of several panels. */
#define PANEL_DOTS(id, name, ...)                                                                                      \
    static void dot_##name(const uint8_t *panels, int64_t bytes, int64_t n_panels, const uint8_t *x, int64_t m,        \
                           int64_t b0, int64_t nb, int64_t row_blocks, float *c, int64_t ldc)                          \
    {                                                                                                                  \
        const shape f = __VA_ARGS__;                                                                                   \
        dot(f, panels, bytes, n_panels, x, m, b0, nb, row_blocks, c, ldc);                                             \
    }
/* fn(f, R, ...) with R as a constant, for a tile of so many rows. */
#define PANEL_BY_ROWS(rows, fn, f, ...)                                                                                \
    do {                                                                                                               \
        switch (rows) {                                                                                                \
        case 12:                                                                                                       \
            fn(f, 12, __VA_ARGS__);                                                                                    \
            break;                                                                                                     \
        case 8:                                                                                                        \
            fn(f, 8, __VA_ARGS__);                                                                                     \
            break;                                                                                                     \
        default:                                                                                                       \
            PANEL_BY_FEW(rows, fn, f, __VA_ARGS__);                                                                    \
            break;                                                                                                     \
        }                                                                                                              \
    } while (0)
#define PANEL_BY_FEW(rows, fn, f, ...)                                                                                 \
    do {                                                                                                               \
        if ((rows) == 1)                                                                                               \
            fn(f, 1, __VA_ARGS__);                                                                                     \
        else if ((rows) == 2)                                                                                          \
            fn(f, 2, __VA_ARGS__);                                                                                     \
        else if ((rows) == 3)                                                                                          \
            fn(f, 3, __VA_ARGS__);                                                                                     \
        else                                                                                                           \
            fn(f, 4, __VA_ARGS__);                                                                                     \
    } while (0)

INLINE int has_min(const shape f)
{
    return panel_has_min(f.scale);
}

/* Where among a tile's numbers, for half h where scales are of 16 elements, those for the zero and for the minimum lie.
 */
INLINE int zero_at(const shape f, int h)
{
    return f.sub == 16 ? PANEL_X_N16 + 4 * h : PANEL_X_N;
}

INLINE int sum_at(const shape f, int h)
{
    return f.sub == 16 ? PANEL_X_DS16 + 4 * h : PANEL_X_DS;
}

/* First byte of block b0, the first of a unit. */
INLINE const uint8_t *unit_at(const shape f, const uint8_t *panel, int64_t b0)
{
    const int64_t per = f.unit / PANEL_BLOCK;
    return panel + b0 / per * (f.head_bytes + per * f.block_bytes);
}

#endif
