/*
 * SVE: products with weights in panels (panel.h), for vectors of any length: as many of a panel's rows at a time as a
 * vector holds words; what is not here is portable C. Compiled twice. With SVE alone codes become signed bytes for sdot
 * and a row's activations lie together. With products of 8-bit matrices (FEAT_I8MM) two rows at a time take usmmla, a
 * row alone usdot. Vectors of unknown length cannot be in arrays: hence codes by name, and sums in memory.
 * Run in emulation only so far: right, its speed is not known. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stddef.h>

#include "kern.h"

#ifdef INFER_SVE_I8MM
#define PANELS kern_svei8mm_panels
#else
#define PANELS kern_sve_panels
#endif

#include <arm_sve.h>

#include "kern_neon.h"

enum { WHOLE = 4 * PANEL_ROWS /* bytes of a panel's vector */ };

/* The lanes of the part of a panel's vector that starts at a byte of it. */
typedef struct part {
    int64_t at, row;
} part;

INLINE svbool_t bytes_of(const part p)
{
    return svwhilelt_b8_s64(p.at, WHOLE);
}

INLINE svbool_t rows_of(const part p)
{
    return svwhilelt_b32_s64(p.row, PANEL_ROWS);
}

/* ---- Codes and scales -------------------------------------------------------------------------------------------- */

/* Bits of step t in a plane of n bits. */
INLINE svuint8_t plane(const part p, const uint8_t *planes, int n, int t)
{
    const svbool_t on = bytes_of(p);
    const int from = t / n * n;
    svuint8_t v = svld1_u8(on, planes + WHOLE * (t % n) + p.at);
    if (from > 0)
        v = svlsr_n_u8_x(on, v, (uint8_t)from);
    return from + n < 8 ? svand_n_u8_x(on, v, (uint8_t)((1 << n) - 1)) : v;
}

/* The codes of step t. */
INLINE svuint8_t code(const shape f, const part p, const uint8_t *planes, int t)
{
    const svbool_t on = bytes_of(p);
    svuint8_t q = plane(p, planes, f.low, t);
    if (f.high)
        q = svorr_u8_x(on, q, svlsl_n_u8_x(on, plane(p, planes + WHOLE * f.low, f.high, t), (uint8_t)f.low));
    if (f.lut)
        q = svtbl_u8(svreinterpret_u8_s8(svld1_s8(svwhilelt_b8_s32(0, 16), f.lut)), q);
    return q;
}

INLINE svfloat32_t halves(const part p, const uint8_t *h)
{
    const svbool_t on = rows_of(p);
    return svcvt_f32_f16_x(on, svreinterpret_f16_u32(svld1uh_u32(on, (const void *)(h + 2 * p.row))));
}

INLINE svuint32_t bytes(const part p, const uint8_t *b)
{
    return svld1ub_u32(rows_of(p), b + p.row);
}

/* As panel_scales, for the part's rows: the same operations. Values and not by address: gcc 12's address sanitizer
 * cannot have vectors of unknown length in memory. */
INLINE svfloat32_t scale_of(const shape f, const part p, const uint8_t *head, const uint8_t *block, int h)
{
    const svbool_t on = rows_of(p);
    const uint8_t *half = block + PANEL_ROWS * h;
    if (f.scale == PANEL_E8M0) {
        const svuint32_t e = bytes(p, half);
        svuint32_t v = svlsl_n_u32_x(on, svsub_n_u32_x(on, e, 1), 23); /* subnormal: 2^(e - 128) is bit 21 + e */
        v = svsel_u32(svcmple_n_u32(on, e, 1), svlsl_u32_x(on, svdup_n_u32(1 << 21), e), v);
        return svreinterpret_f32_u32(svsel_u32(svcmpeq_n_u32(on, e, 255), svdup_n_u32(0x7FC00000), v));
    }
    if (f.scale == PANEL_F16 || f.scale == PANEL_F16_MIN)
        return halves(p, block);
    if (f.scale == PANEL_K_I8)
        return svmul_f32_x(on, halves(p, head), svcvt_f32_s32_x(on, svld1sb_s32(on, (const int8_t *)half + p.row)));
    const svuint32_t s = f.scale == PANEL_K_MIN ? bytes(p, block) : svand_n_u32_x(on, bytes(p, half), 15);
    return svmul_f32_x(on, halves(p, head), svcvt_f32_u32_x(on, s));
}

INLINE svfloat32_t min_of(const shape f, const part p, const uint8_t *head, const uint8_t *block, int h)
{
    const svbool_t on = rows_of(p);
    if (!has_min(f))
        return svdup_n_f32(0);
    if (f.scale == PANEL_F16_MIN)
        return halves(p, block + 2 * PANEL_ROWS);
    const svuint32_t m =
        f.scale == PANEL_K_MIN ? bytes(p, block + PANEL_ROWS) : svlsr_n_u32_x(on, bytes(p, block + PANEL_ROWS * h), 4);
    return svneg_f32_x(on, svmul_f32_x(on, halves(p, head + 2 * PANEL_ROWS), svcvt_f32_u32_x(on, m)));
}

/* ---- The sum ----------------------------------------------------------------------------------------------------- */

/* Row r's sums of 4 elements' or 8 elements' products into its sums of weight rows, as panel.h has it. */
INLINE void to_floats(const shape f, const int R, const part p, int64_t r, const uint8_t *tile, int h, svint32_t s,
                      svfloat32_t scale, svfloat32_t min, float *c)
{
    const svbool_t on = rows_of(p);
    svfloat32_t acc = svld1_f32(on, c + p.row);
    acc =
        svmla_f32_x(on, acc, svcvt_f32_s32_x(on, s), svmul_n_f32_x(on, scale, float_at(tile + PANEL_X_D * R + 4 * r)));
    if (has_min(f))
        acc = svmla_n_f32_x(on, acc, min, float_at(tile + sum_at(f, h) * R + 4 * r));
    svst1_f32(on, c + p.row, acc);
}

INLINE svint32_t joined(svint32_t hi, svint32_t lo)
{
    return svadd_s32_x(svptrue_b32(), svlsl_n_s32_x(svptrue_b32(), hi, 8), lo);
}

INLINE svint8_t sixteen(const uint8_t *x)
{
    return svreinterpret_s8_u8(svld1rq_u8(svptrue_b8(), x));
}

#ifdef INFER_SVE_I8MM

enum { GROUP = 8, SIGNED_CODES = 0 };
typedef svuint8_t code_bytes;
#define DOT_LANE svusdot_lane_s32

INLINE code_bytes arranged(const shape f, svuint8_t q)
{
    (void)f;
    return q;
}

/* s and the products of two vectors, of 8 elements each, with two rows' next 16 elements. */
INLINE svint32_t two(svint32_t s, const uint8_t *x, const int R, svuint8_t a, svuint8_t b)
{
    s = svusmmla_s32(s, a, sixteen(x));
    return svusmmla_s32(s, b, sixteen(x + GROUP * R));
}

/* As `add` below for R > 1, with codes in the order that `add_block` brings them into. An odd number of rows ends with
 * a pair whose first row is left alone. */
INLINE void add_pairs(const shape f, const int R, const part p, const uint8_t *tile, int h, svfloat32_t scale,
                      svfloat32_t min, float *c, int64_t ldc, svuint8_t q0, svuint8_t q1, svuint8_t q2, svuint8_t q3,
                      svuint8_t q4, svuint8_t q5, svuint8_t q6, svuint8_t q7)
{
    for (int64_t i = 0; i < R; i += 2) {
        const int64_t r = i + 2 > R ? R - 2 : i;
        const uint8_t *x = tile + (2 * h * R + r) * GROUP;
        svint32_t hi0 = svdup_n_s32(0), hi1 = hi0, lo0 = hi0, lo1;
        if (!has_min(f)) {
            uint64_t n;
            memcpy(&n, tile + zero_at(f, h) * R + 4 * r, sizeof n);
            lo0 = svreinterpret_s32_u64(svdup_n_u64(n));
        }
        lo1 = lo0;
        const uint8_t *hi = x + PANEL_X_HI * R, *lo = x + PANEL_X_LO * R;
        hi0 = two(hi0, hi, R, q0, q2);
        hi1 = two(hi1, hi, R, q1, q3);
        lo0 = two(lo0, lo, R, q0, q2);
        lo1 = two(lo1, lo, R, q1, q3);
        if (f.sub == 32) {
            hi += 2 * GROUP * R;
            lo += 2 * GROUP * R;
            hi0 = two(hi0, hi, R, q4, q6);
            hi1 = two(hi1, hi, R, q5, q7);
            lo0 = two(lo0, lo, R, q4, q6);
            lo1 = two(lo1, lo, R, q5, q7);
        }
        const svint32_t a = joined(hi0, lo0), b = joined(hi1, lo1);
        if (r == i)
            to_floats(f, R, p, r, tile, h, svuzp1_s32(a, b), scale, min, c + r * ldc);
        to_floats(f, R, p, r + 1, tile, h, svuzp2_s32(a, b), scale, min, c + (r + 1) * ldc);
    }
}

#else

enum { GROUP = PANEL_BLOCK, SIGNED_CODES = 1 };
typedef svint8_t code_bytes;
#define DOT_LANE svdot_lane_s32

/* Codes of 8 bits less 128, which is their zero, the others as they are. */
INLINE code_bytes arranged(const shape f, svuint8_t q)
{
    return svreinterpret_s8_u8(f.low == 8 ? sveor_n_u8_x(svptrue_b8(), q, 128) : q);
}

#endif

/* s and four vectors' products with a row's next 16 bytes. */
INLINE svint32_t four(svint32_t s, const uint8_t *x, code_bytes a, code_bytes b, code_bytes c, code_bytes d)
{
    const svint8_t v = sixteen(x);
    s = DOT_LANE(s, a, v, 0);
    s = DOT_LANE(s, b, v, 1);
    s = DOT_LANE(s, c, v, 2);
    return DOT_LANE(s, d, v, 3);
}

/* R rows, each with its bytes together, of half h of a block into their sums; or all of a block, then with q4 to q7. */
INLINE void add(const shape f, const int R, const part p, const uint8_t *tile, int h, svfloat32_t scale,
                svfloat32_t min, float *c, int64_t ldc, svuint8_t q0, svuint8_t q1, svuint8_t q2, svuint8_t q3,
                svuint8_t q4, svuint8_t q5, svuint8_t q6, svuint8_t q7)
{
    const code_bytes a0 = arranged(f, q0), a1 = arranged(f, q1), a2 = arranged(f, q2), a3 = arranged(f, q3);
    const code_bytes a4 = arranged(f, q4), a5 = arranged(f, q5), a6 = arranged(f, q6), a7 = arranged(f, q7);
    for (int64_t r = 0; r < R; r++) {
        const uint8_t *x = tile + PANEL_BLOCK * r + 16 * h;
        const int no_zero = has_min(f) || (SIGNED_CODES && f.low == 8);
        svint32_t hi = four(svdup_n_s32(0), x + PANEL_X_HI * R, a0, a1, a2, a3);
        svint32_t lo = svdup_n_s32(no_zero ? 0 : int_at(tile + zero_at(f, h) * R + 4 * r));
        lo = four(lo, x + PANEL_X_LO * R, a0, a1, a2, a3);
        if (f.sub == 32) {
            hi = four(hi, x + PANEL_X_HI * R + 16, a4, a5, a6, a7);
            lo = four(lo, x + PANEL_X_LO * R + 16, a4, a5, a6, a7);
        }
        to_floats(f, R, p, r, tile, h, joined(hi, lo), scale, min, c + r * ldc);
    }
}

/* One block, one part of the panel's rows and R rows. */
INLINE void block_part(const shape f, const int R, const part p, const uint8_t *head, const uint8_t *block,
                       const uint8_t *tile, float *c, int64_t ldc)
{
    const uint8_t *planes = block + f.scale_bytes;
    svuint8_t q0 = code(f, p, planes, 0), q1 = code(f, p, planes, 1), q2 = code(f, p, planes, 2);
    svuint8_t q3 = code(f, p, planes, 3), q4 = code(f, p, planes, 4), q5 = code(f, p, planes, 5);
    svuint8_t q6 = code(f, p, planes, 6), q7 = code(f, p, planes, 7);
#ifdef INFER_SVE_I8MM
#define ADD(...)                                                                                                       \
    do {                                                                                                               \
        if (R > 1)                                                                                                     \
            add_pairs(__VA_ARGS__);                                                                                    \
        else                                                                                                           \
            add(__VA_ARGS__);                                                                                          \
    } while (0)
    /* For pairs of rows: four elements of all rows, and the next four, become eight of half the rows each. */
#define ZIP(a, b)                                                                                                      \
    do {                                                                                                               \
        const svuint32_t u = svreinterpret_u32_u8(a), v = svreinterpret_u32_u8(b);                                     \
        a = svreinterpret_u8_u32(svzip1_u32(u, v));                                                                    \
        b = svreinterpret_u8_u32(svzip2_u32(u, v));                                                                    \
    } while (0)
    if (R > 1) {
        ZIP(q0, q1);
        ZIP(q2, q3);
        ZIP(q4, q5);
        ZIP(q6, q7);
    }
#else
#define ADD add
#endif
    ADD(f, R, p, tile, 0, scale_of(f, p, head, block, 0), min_of(f, p, head, block, 0), c, ldc, q0, q1, q2, q3, q4, q5,
        q6, q7);
    if (f.sub == 16)
        ADD(f, R, p, tile, 1, scale_of(f, p, head, block, 1), min_of(f, p, head, block, 1), c, ldc, q4, q5, q6, q7, q4,
            q5, q6, q7);
}

/* R rows of a tile against n blocks as they lie. */
INLINE void rows(const shape f, const int R, const uint8_t *w, const uint8_t *x, int64_t n, float *c, int64_t ldc)
{
    const int64_t per = f.unit / PANEL_BLOCK, step = (int64_t)svcntb();
    for (int64_t b = 0; b < n;) {
        const uint8_t *head = w;
        w += f.head_bytes;
        for (int64_t i = 0; i < per; i++, b++, w += f.block_bytes, x += R * PANEL_X_BYTES)
            for (part p = {0, 0}; p.at < WHOLE; p.at += step, p.row = p.at / 4)
                block_part(f, R, p, head, w, x, c, ldc);
    }
}

PANEL_SHAPES(PANEL_DOT)
#define ROW(id, name, ...) [INFER_FMT_##id] = dot_##name,
static const panel_dot_fn dots[INFER_FMT_COUNT] = {PANEL_SHAPES(ROW)};

static void quantize(const float *x, int64_t k, int32_t zero, uint8_t *tile, int64_t rows_, int64_t r)
{
    quantize_rows(x, k, zero, tile, rows_, r, GROUP);
}

const kern_panels PANELS = {PANEL_TILE, 96, 0, quantize, dots, NULL};
