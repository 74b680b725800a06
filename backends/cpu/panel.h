/*
 * Products of 16-bit integer activations with weights in panels: the layout of both, which all instruction sets share,
 * and the portable code for it. Knows no operands and no threads.
 *
 * Weights. A panel is PANEL_ROWS rows of one matrix, all of K, as one stream of units (256 elements of K for formats
 * with super-blocks, else 32):
 *   unit  = head, blocks of 32 elements of K
 *   head  = f16 d[16], f16 dmin[16] (which of them: panel_scale)
 *   block = scales, low plane, high plane
 * A code has `low` bits in the low plane and `high` bits in the high one. In both, a 32-bit word holds four elements
 * 4t .. 4t+3 of one row, one a byte, and 16 words, one a row, make a vector of 64 bytes: vector t for 8 bits; for 4
 * bits vector j has t = j below and t = j + 4 above; for 2 bits vector j has t = j, j+2, j+4, j+6 from the lowest pair
 * up; for 1 bit the vector has t = 0 .. 7 from the lowest bit up. A last panel that N does not fill holds zeros.
 * weight = scale * (code - zero), or scale * code + min.
 *
 * Activations. A block of 32 becomes integers a = 256 hi + lo of 16 bits, x = d * a; d = (largest magnitude) / 32512,
 * rounded to nearest even; a block whose peak is below 1e-30 is zero, one with a NaN or an infinity is NaN. Rows lie in
 * tiles of R rows (panel_tile): block b of a tile is R * PANEL_X_BYTES bytes from b * R * PANEL_X_BYTES, of which
 * hi[8][R][4], lo[8][R][4] (or as its instruction set wants them), then R of each of: d, ds = d * sum(a), ds of either
 * half, n = -zero * sum(a), n of either half, one unused.
 *
 * The sum, in order of blocks (halves, where the scales are of 16 elements): acc = fma((float)(sum(code * a) + n),
 * scale * d, acc), then acc = fma(min, ds, acc) where there are minima. The integer sum is exact, so that every
 * instruction set and every batch gives the same bits.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_CPU_PANEL_H
#define INFER_CPU_PANEL_H

#include <stdint.h>
#include <string.h>

#include <infer/quant.h>

enum {
    PANEL_ROWS = 16,
    PANEL_BLOCK = 32,
    PANEL_STEPS = PANEL_BLOCK / 4, /* words of a row in a block */
    PANEL_CODE_BYTES = PANEL_ROWS * PANEL_BLOCK,
    PANEL_X_BYTES = 96,  /* of a row's block */
    PANEL_TILE = 12,     /* most rows of a tile where nothing else is said */
    PANEL_BLOCK_MAX = 96 /* most rows of an instruction set's block (kern_panels) */
};

/* Where in a tile's block the numbers of R rows start, in bytes over R. */
enum {
    PANEL_X_HI = 0,
    PANEL_X_LO = 32,
    PANEL_X_D = 64,
    PANEL_X_DS = 68,
    PANEL_X_DS16 = 72,
    PANEL_X_N = 80,
    PANEL_X_N16 = 84
};

typedef enum panel_scale {
    PANEL_F16,     /* block: f16 scale[16] */
    PANEL_F16_MIN, /* block: f16 scale[16], f16 min[16] */
    PANEL_E8M0,    /* block: 8-bit exponents e[16]; scale 2^(e - 128) */
    PANEL_K_MIN,   /* head: d, dmin; block: u8 s[16], u8 m[16]; scale d * s, min -dmin * m */
    PANEL_K4_MIN,  /* head: d, dmin; halves: u8 (s | m << 4)[16]; the same */
    PANEL_K_I8,    /* head: d; halves: i8 s[16]; scale d * s */
} panel_scale;

static inline int panel_has_min(panel_scale s)
{
    return s == PANEL_F16_MIN || s == PANEL_K_MIN || s == PANEL_K4_MIN;
}

typedef struct panel_format {
    uint32_t low, high; /* bits of a code; low 0: not a format of panels */
    panel_scale scale;
    uint32_t sub;                                  /* elements that a scale is for: 32 or 16 */
    int32_t zero;                                  /* 0 where there are minima */
    const int8_t *lut;                             /* [16] code of each nibble, NULL: itself */
    uint32_t unit;                                 /* elements of K in a unit */
    uint32_t head_bytes, scale_bytes, block_bytes; /* of a unit's head; of a block's scales; of a block with them */
} panel_format;

extern const panel_format panel_formats[INFER_FMT_COUNT];

/* Bytes of one panel of k elements; k a multiple of the unit. */
uint64_t panel_bytes(const panel_format *f, int64_t k);

/* n <= PANEL_ROWS rows of format `id` of k elements, `stride` bytes apart, into a panel. */
void panel_pack(infer_format id, const uint8_t *rows, uint64_t stride, int64_t n, int64_t k, uint8_t *dst);

/* The rows of a block of m rows lie in tiles of `most`, and what remains in tiles of 8, 4 and one of the rest. Gives
 * the tile that row i is in: its first row, and its number of rows. */
void panel_tile(int64_t most, int64_t m, int64_t i, int64_t *first, int64_t *rows);
/* Rows of a tile when so many are left. */
static inline int64_t panel_tile_rows(int64_t left, int64_t most)
{
    return left >= most ? most : left >= 8 ? 8 : left >= 4 ? 4 : left;
}

/* x[k] into row r of a tile of `rows`. k a multiple of PANEL_BLOCK. */
typedef void (*panel_quantize_fn)(const float *x, int64_t k, int32_t zero, uint8_t *tile, int64_t rows, int64_t r);
/* c[i * ldc + n] += the sum's blocks b0 .. b0 + nb, in order, for m rows x in tiles (of row_blocks blocks) and the
 * 16 n_panels rows n of panels that lie `bytes` apart; b0 and nb are whole units; ldc in floats. */
typedef void (*panel_dot_fn)(const uint8_t *panels, int64_t bytes, int64_t n_panels, const uint8_t *x, int64_t m,
                             int64_t b0, int64_t nb, int64_t row_blocks, float *c, int64_t ldc);

/* What an instruction set supplies. */
typedef struct kern_panels {
    int64_t tile;  /* rows of the largest tile */
    int64_t block; /* so many rows meet a panel together, so that caches hold what is read again: a multiple of `tile`
                      up to PANEL_BLOCK_MAX, the same for those below */
    int64_t few;   /* up to so many rows lie in tiles of PANEL_FEW_TILE and less */
    panel_quantize_fn quantize;
    const panel_dot_fn *dots;        /* [INFER_FMT_COUNT], NULL: not this format */
    const struct kern_panels *below; /* whose formats without a dot are; NULL: nobody's */
} kern_panels;

enum { PANEL_FEW_TILE = 8 };
/* Rows of the largest tile of a block of m. */
static inline int64_t kern_panels_tile(const kern_panels *p, int64_t m)
{
    return m <= p->few ? PANEL_FEW_TILE : p->tile;
}

/* Those for a format, of p or below it; NULL: there are none. p may be NULL. */
static inline const kern_panels *kern_panels_for(const kern_panels *p, infer_format f)
{
    while (p && !p->dots[f])
        p = p->below;
    return p;
}
extern const kern_panels kern_avx512_pair_panels, kern_avx2_panels, kern_avxvnni_panels, kern_avx512_panels,
    kern_amx_panels, kern_neon_panels, kern_i8mm_panels, kern_sve_panels, kern_svei8mm_panels;

/* The numbers of row r of a tile's block of R rows: its step and the sums of its halves. */
static inline void panel_put_numbers(uint8_t *tile, int64_t R, int64_t r, float d, int32_t first, int32_t second,
                                     int32_t zero)
{
    const float f[4] = {d, d * (float)(first + second), d * (float)first, d * (float)second};
    const int32_t n[4] = {-zero * (first + second), -zero * first, -zero * second, 0};
    for (int i = 0; i < 4; i++) {
        memcpy(tile + (PANEL_X_D + 4 * i) * R + 4 * r, &f[i], 4);
        memcpy(tile + (PANEL_X_N + 4 * i) * R + 4 * r, &n[i], 4);
    }
}

/* A block's step d and what values are multiplied with, from the largest of their magnitudes' bits: both 0 below 1e-30,
 * NaN and 0 where one is no finite number. */
static inline void panel_step(uint32_t bits, float *d, float *inverse)
{
    float peak;
    memcpy(&peak, &bits, sizeof peak);
    *d = bits >= 0x7F800000u ? __builtin_nanf("") : peak < 1e-30f ? 0 : peak / 32512.0f;
    *inverse = bits >= 0x7F800000u || peak < 1e-30f ? 0 : 32512.0f / peak;
}

extern const int8_t panel_mxfp4[16]; /* codes of MXFP4's nibbles: twice the value, and zero at 12 */
void panel_quantize(const float *x, int64_t k, int32_t zero, uint8_t *tile, int64_t rows, int64_t r);
extern const panel_dot_fn panel_generic_dots[INFER_FMT_COUNT];

/* Elements k0 .. k0 + n of the panel's rows as floats, ld apart; k0 and n are whole units. */
void panel_unpack(const panel_format *f, const uint8_t *panel, int64_t k0, int64_t n, float *dst, int64_t ld);
/* The codes of a block as bytes, [PANEL_STEPS][PANEL_ROWS][4]; `planes` follows the block's scales. */
void panel_codes(const panel_format *f, const uint8_t *planes, uint8_t *codes);
/* The scales and minima of half h of a block (h 0 where they are for all of it). */
void panel_scales(const panel_format *f, const uint8_t *head, const uint8_t *block, uint32_t h, float scale[PANEL_ROWS],
                  float min[PANEL_ROWS]);

#endif
