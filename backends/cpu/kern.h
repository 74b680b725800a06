/*
 * Kernels of the CPU backend: one table of functions per instruction set, over plain float rows in memory. Knows no
 * operands, threads or descriptors.
 *
 * The canonical sum. Every product of a weight row with an activation row, whichever function computes it and however
 * many rows run together, is taken in one order, so that a result does not depend on its company:
 *   K is cut into chunks of KERN_CHUNK elements from element 0; inside a chunk element k goes to lane k % lanes, which
 *   is 8 or 16 for all products of a table; each lane adds its products in order of k (fused or not: as the instruction
 *   set has it, always the same); a last partial group is filled up with zeros; of sixteen lanes l and l + 8 are added
 *   first; eight are added as ((0+1)+(2+3)) + ((4+5)+(6+7)); chunk sums are added in order to 0.
 * Rows of weights are used as floats: the format's exact values, rounded once where they need more than 24 bits.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_CPU_KERN_H
#define INFER_CPU_KERN_H

#include <stdint.h>

#include <infer/ops.h>
#include <infer/quant.h>

#include "panel.h"

enum { KERN_LANES = 16 /* at most */, KERN_CHUNK = 512, KERN_TILE = 4 };
enum { KERN_KEYS = 64 /* a tile of attention */, KERN_PANEL_KEYS = 16, KERN_DIRECT = 4 /* most vectors of `direct` */ };

/* n elements, a multiple of the format's block, of unaligned source bytes to floats, or back. */
typedef void (*kern_unpack_fn)(const void *src, float *dst, int64_t n);
typedef void (*kern_pack_fn)(const float *src, void *dst, int64_t n);
/* out[i * ld + r] = canonical sum over k elements of weight row w[r], as it lies, and row x[i], for i < rows, rows 1 to
 * dot_rows; k a multiple of KERN_LANES and of the block. Fetches what lies 4 (w[1] - w[0]) bytes further on. */
typedef void (*kern_dot_fn)(const uint8_t *const w[KERN_TILE], const float *const *x, int rows, int64_t k, float *out,
                            int64_t ld);
/* As `weighted` below with the keys' values as they lie at where[t]; rows 1 to dot_rows, dv a multiple of KERN_LANES
 * and of the block. */
typedef void (*kern_weigh_fn)(const uint8_t *const *where, int64_t n, const float *p, int64_t ldp, int rows, float *o,
                              int64_t ldo, int64_t dv);

typedef struct kern_format {
    uint32_t block_elems, block_bytes; /* 0: a format that these kernels do not know */
    kern_unpack_fn unpack;
    kern_pack_fn pack;   /* NULL: none */
    kern_dot_fn dot;     /* NULL: unpack into a tile and use `tile` */
    kern_weigh_fn weigh; /* NULL: unpack and use `weighted` */
} kern_format;

/* What a tile's scores become: times `scale`, through soft_cap * tanh(x / soft_cap) where that is above 0, exponentials
 * of what they lie below their row's largest. */
typedef struct kern_softmax {
    float scale, soft_cap;
    int64_t ldo; /* of o, a multiple of KERN_LANES; o is zero behind its width */
} kern_softmax;

/*
 * Attention on tiles of KERN_KEYS keys for any number of vectors; p and s have KERN_KEYS floats a vector. Whatever the
 * number of vectors and wherever keys and values lie, one vector's result has the same bits. A score is summed so:
 * element k goes to lane k % 4, each lane adds its fused products in order of k, then (0+2)+(1+3).
 */
typedef struct kern_attn {
    int64_t rows; /* vectors that share registers: masks are best equal in groups of these */
    /* Largest scores are kept times log_e, and exponentials are those of this function: of base 2, say. */
    float (*exp)(float x);
    float log_e;
    /* In all that reads rows as they lie, next[i] is the row that will be wanted in place of where[i] a tile later: it
     * is fetched meanwhile. It may be any address. NULL: nothing is fetched. */
    /* Sixteen rows of dk elements to a panel, for k / 4, key, k % 4 in this order; dk a multiple of 16, of
     * 4 for F32, and of the block. NULL: unpack to floats first. */
    void (*keys[INFER_FMT_COUNT])(const uint8_t *const *where, const uint8_t *const *next, int64_t dk, float *panel);
    /* `scores` for up to KERN_DIRECT vectors with sixteen keys as they lie, dk as for `keys`. */
    void (*direct[INFER_FMT_COUNT])(const uint8_t *const *where, const uint8_t *const *next, const float *const *x,
                                    int64_t vectors, int64_t dk, float *s);
    /* s[i * KERN_KEYS + key] = score of vector x[i] with each key of a panel; dk a multiple of 4. */
    void (*scores)(const float *panel, const float *const *x, int64_t vectors, int64_t dk, float *s);
    /* Turns the scores of a tile into exponentials, 0 where bit `key` of seen[i] is not set, and moves a vector's
     * largest score m, sum of exponentials l and output o on. Where all that it sees is -INFINITY or NaN: seen[i]
     * becomes 0. */
    void (*soften)(const kern_softmax *t, int64_t vectors, float *s, uint64_t *seen, float *m, float *l, float *o);
    /* o[i] += sum over n keys in order of p[i * KERN_KEYS + key] times the ldo values at where[key]; ldo a multiple of
     * KERN_LANES and of the block. NULL: unpack to floats first. */
    void (*weigh[INFER_FMT_COUNT])(const uint8_t *const *where, const uint8_t *const *next, int64_t n, const float *p,
                                   int64_t vectors, float *o, int64_t ldo);
    /* n rows of `width` values to floats, row by row ld apart; width as ldo for `weigh`. NULL: as the format has it. */
    void (*unpack[INFER_FMT_COUNT])(const uint8_t *const *where, const uint8_t *const *next, int64_t n, int64_t width,
                                    float *out, int64_t ld);
} kern_attn;

typedef void (*kern_tile_fn)(const float *w, int64_t ldw, const float *const *x, int64_t m, int64_t kc, float *c,
                             int64_t ldc);

typedef struct kern_table {
    const char *isa;
    uint32_t simd_bytes;
    int dot_rows;              /* most rows of a call of a format's dot or weigh */
    const kern_format *format; /* [INFER_FMT_COUNT] */

    /* c[i * ldc + r] += chunk sum of w[r * ldw ..] and x[i][..] for i < m, r < KERN_TILE; kc <= KERN_CHUNK elements.
     * Elements of w from kc to the next multiple of KERN_LANES exist and are zero. */
    kern_tile_fn tile;

    const kern_attn *attn; /* NULL: attention uses `tile`, `dot`, `weigh` and `weighted` */

    const kern_panels *panel; /* products with weights in panels; NULL: weights stay as the file has them */

    /* y may be an input of the same call in all of these. */
    void (*add)(const float *a, const float *b, float *y, int64_t n);
    void (*mul)(const float *a, const float *b, float *y, int64_t n);
    void (*scale)(const float *x, float scale, float bias, float *y, int64_t n); /* y = x * scale + bias */
    /* y = act(min(x, limit)), and times clamp(up) where up is not NULL; limit 0: none (infer_attrs_act). */
    void (*act)(uint32_t act, float limit, const float *x, const float *up, float *y, int64_t n);
    /* y += a * x, each element one product and one sum. */
    void (*axpy)(float a, const float *x, float *y, int64_t n);
    /* y = (x - mean) * factor * (w + offset) + b; w, b may be NULL. */
    void (*norm)(const float *x, float mean, float factor, const float *w, float offset, const float *b, float *y,
                 int64_t n);
    double (*sum)(const float *x, int64_t n);
    double (*sum_squares)(const float *x, double mean, int64_t n); /* of x - mean */
    float (*max)(const float *x, int64_t n);                       /* -INFINITY for n = 0; NaNs are passed over */
    /* x = exp(x * scale - shift) in place; returns the sum in a fixed order. */
    float (*exp_sum)(float *x, float scale, float shift, int64_t n);
    /* Sum of exp((x - most) / t), and that in place; -INFINITY gives 0. In double, to about 1e-15. */
    double (*exp_total)(const double *x, double most, double t, int64_t n);
    void (*exp_all)(double *x, double most, double t, int64_t n);
    /* o[i][0..dv) += sum over keys t < n, in order, of p[i * ldp + t] * v[t * ldv ..]; i < rows. An element's result
     * does not depend on the other rows. */
    void (*weighted)(const float *p, int64_t ldp, int64_t rows, const float *v, int64_t ldv, int64_t n, float *o,
                     int64_t ldo, int64_t dv);
    /* Rotates r pairs: (x[i * step], x[i * step + gap]) by the angle with cosine c[i] and sine s[i]. */
    void (*rotate)(const float *x, const float *c, const float *s, float *y, int64_t r, int64_t step, int64_t gap);
} kern_table;

/* Portable C, also what the other tables fall back on. */
extern const kern_table kern_generic_table;
const kern_table *kern_generic(void);
/* AVX2, FMA and F16C; NULL where the processor or the build lacks them. */
const kern_table *kern_avx2(void);
/* That with AVX-VNNI for panels. */
const kern_table *kern_avxvnni(void);
/* AVX2 with AVX-512 F, BW, VL and VNNI for panels, float products and attention. */
const kern_table *kern_avx512(void);
/* That with AMX for panels: 8-bit integer tiles, which the system must let this process use. */
const kern_table *kern_amx(void);
/* Portable C with NEON dot products for panels. */
const kern_table *kern_neon(void);
/* Those with NEON's products of 8-bit matrices, */
const kern_table *kern_i8mm(void);
/* with SVE's dot products, */
const kern_table *kern_sve(void);
/* and with SVE's products of 8-bit matrices. */
const kern_table *kern_svei8mm(void);

/* An instruction set's own float products, with sixteen lanes and up to four rows; formats without are unpacked. */
typedef struct kern_floats {
    kern_tile_fn tile; /* NULL: it is not in this build */
    kern_dot_fn dot[INFER_FMT_COUNT];
    kern_dot_fn streams[INFER_FMT_COUNT]; /* the same sums, always by four rows of weights at once */
} kern_floats;
extern const kern_floats kern_avx512_floats;
extern const kern_attn kern_avx512_attn;

float kern_f16_to_f32(uint16_t h);
uint16_t kern_f32_to_f16(float f);
uint16_t kern_f32_to_bf16(float f);

#endif
