/* The panel layout (panel.h): packing, the portable product. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "kern_unpack.h"
#include "panel.h"

const int8_t panel_mxfp4[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

#define BITS(n) ((n)*PANEL_CODE_BYTES / 8)
#define ROW(id, low_, high_, kind, sub_, zero_, lut_, unit_, head, scales)                                             \
    [INFER_FMT_##id] = {.low = low_,                                                                                   \
                        .high = high_,                                                                                 \
                        .scale = kind,                                                                                 \
                        .sub = sub_,                                                                                   \
                        .zero = zero_,                                                                                 \
                        .lut = lut_,                                                                                   \
                        .unit = unit_,                                                                                 \
                        .head_bytes = head,                                                                            \
                        .scale_bytes = scales,                                                                         \
                        .block_bytes = scales + BITS(low_ + high_)}
const panel_format panel_formats[INFER_FMT_COUNT] = {
    ROW(Q8_0, 8, 0, PANEL_F16, 32, 128, NULL, 32, 0, 32),
    ROW(Q4_0, 4, 0, PANEL_F16, 32, 8, NULL, 32, 0, 32),
    ROW(Q4_1, 4, 0, PANEL_F16_MIN, 32, 0, NULL, 32, 0, 64),
    ROW(Q5_0, 4, 1, PANEL_F16, 32, 16, NULL, 32, 0, 32),
    ROW(Q5_1, 4, 1, PANEL_F16_MIN, 32, 0, NULL, 32, 0, 64),
    ROW(MXFP4, 4, 0, PANEL_E8M0, 32, 12, panel_mxfp4, 32, 0, 16),
    ROW(Q2_K, 2, 0, PANEL_K4_MIN, 16, 0, NULL, 256, 64, 32),
    ROW(Q3_K, 2, 1, PANEL_K_I8, 16, 4, NULL, 256, 32, 32),
    ROW(Q4_K, 4, 0, PANEL_K_MIN, 32, 0, NULL, 256, 64, 32),
    ROW(Q5_K, 4, 1, PANEL_K_MIN, 32, 0, NULL, 256, 64, 32),
    ROW(Q6_K, 4, 2, PANEL_K_I8, 16, 32, NULL, 256, 32, 32),
};

uint64_t panel_bytes(const panel_format *f, int64_t k)
{
    return (uint64_t)(k / f->unit) * (f->head_bytes + (uint64_t)(f->unit / PANEL_BLOCK) * f->block_bytes);
}

/* ---- Packing: one row's unit into codes and scales, then 16 rows together -------------------------------------- */

/* One row's unit as bytes. */
typedef struct unit {
    uint8_t code[256];
    uint8_t d[4]; /* f16 d and dmin, or scale and min of the block */
    uint8_t s[16], m[16];
} unit;

/* Eight codes at a time, in a word: little- or big-endian, each byte stays where it was. */
static uint64_t load8(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static void store8(uint8_t *p, uint64_t v)
{
    memcpy(p, &v, sizeof v);
}

enum { EIGHT = 8 };
#define BYTES(v) ((uint64_t)(v)*0x0101010101010101u)

static inline void nibbles(const uint8_t *q, int n, uint8_t *low, uint8_t *high)
{
    for (int i = 0; i < n; i += EIGHT) {
        uint64_t v = load8(q + i);
        store8(low + i, v & BYTES(15));
        store8(high + i, v >> 4 & BYTES(15));
    }
}

/* 32 codes' bits [from, from + n) of the bytes at q, at bit `to` of the codes. */
static inline void add_bits(const uint8_t *q, int from, int n, int to, uint8_t *code)
{
    for (int i = 0; i < PANEL_BLOCK; i += EIGHT)
        store8(code + i, load8(code + i) | (load8(q + i) >> from & BYTES((1 << n) - 1)) << to);
}

static void fifth_bits(uint32_t bits, uint8_t *code)
{
    for (int i = 0; i < 32; i++)
        code[i] |= (uint8_t)((bits >> i & 1) << 4);
}

/* The eight 6-bit scales and minima of q4_k and q5_k, in 12 bytes. */
static void scales12(const uint8_t *p, uint8_t *s, uint8_t *m)
{
    for (int i = 0; i < 4; i++) {
        s[i] = p[i] & 63;
        m[i] = p[i + 4] & 63;
        s[i + 4] = (uint8_t)((p[i + 8] & 15) | p[i] >> 6 << 4);
        m[i + 4] = (uint8_t)(p[i + 8] >> 4 | p[i + 4] >> 6 << 4);
    }
}

static void split_q8_0(const uint8_t *p, unit *u)
{
    memcpy(u->d, p, 2);
    for (int i = 0; i < 32; i += EIGHT)
        store8(u->code + i, load8(p + 2 + i) ^ BYTES(128));
}

static void split_q4_0(const uint8_t *p, unit *u)
{
    memcpy(u->d, p, 2);
    nibbles(p + 2, 16, u->code, u->code + 16);
}

static void split_q4_1(const uint8_t *p, unit *u)
{
    memcpy(u->d, p, 4);
    nibbles(p + 4, 16, u->code, u->code + 16);
}

static void split_q5_0(const uint8_t *p, unit *u)
{
    memcpy(u->d, p, 2);
    nibbles(p + 6, 16, u->code, u->code + 16);
    fifth_bits(kern_load_u32(p + 2), u->code);
}

static void split_q5_1(const uint8_t *p, unit *u)
{
    memcpy(u->d, p, 4);
    nibbles(p + 8, 16, u->code, u->code + 16);
    fifth_bits(kern_load_u32(p + 4), u->code);
}

static void split_mxfp4(const uint8_t *p, unit *u)
{
    u->s[0] = p[0];
    nibbles(p + 1, 16, u->code, u->code + 16);
}

static void split_q2_k(const uint8_t *p, unit *u)
{
    memcpy(u->d, p + 80, 4);
    memcpy(u->s, p, 16);
    memset(u->code, 0, sizeof u->code);
    for (int c = 0; c < 8; c++) /* 32 elements */
        add_bits(p + 16 + c / 4 * 32, c % 4 * 2, 2, 0, u->code + 32 * c);
}

static void split_q3_k(const uint8_t *p, unit *u)
{
    const uint8_t *s = p + 96;
    memcpy(u->d, p + 108, 2);
    for (int g = 0; g < 16; g++)
        u->s[g] = (uint8_t)(((s[g % 8] >> (g / 8 * 4) & 15) | (s[8 + g % 4] >> (g / 4 * 2) & 3) << 4) - 32);
    memset(u->code, 0, sizeof u->code);
    for (int c = 0; c < 8; c++) {
        add_bits(p + 32 + c / 4 * 32, c % 4 * 2, 2, 0, u->code + 32 * c);
        add_bits(p, c, 1, 2, u->code + 32 * c);
    }
}

static void split_q4_k(const uint8_t *p, unit *u)
{
    memcpy(u->d, p, 4);
    scales12(p + 4, u->s, u->m);
    for (int c = 0; c < 4; c++)
        nibbles(p + 16 + 32 * c, 32, u->code + 64 * c, u->code + 64 * c + 32);
}

static void split_q5_k(const uint8_t *p, unit *u)
{
    memcpy(u->d, p, 4);
    scales12(p + 4, u->s, u->m);
    for (int c = 0; c < 4; c++)
        nibbles(p + 48 + 32 * c, 32, u->code + 64 * c, u->code + 64 * c + 32);
    for (int c = 0; c < 8; c++)
        add_bits(p + 16, c, 1, 4, u->code + 32 * c);
}

static void split_q6_k(const uint8_t *p, unit *u)
{
    memcpy(u->d, p + 208, 2);
    memcpy(u->s, p + 192, 16);
    for (int h = 0; h < 2; h++) {
        uint8_t *c = u->code + 128 * h;
        nibbles(p + 64 * h, 64, c, c + 64);
        for (int j = 0; j < 4; j++)
            add_bits(p + 128 + 32 * h, 2 * j, 2, 4, c + 32 * j);
    }
}

static void (*const splits[INFER_FMT_COUNT])(const uint8_t *, unit *) = {
    [INFER_FMT_Q8_0] = split_q8_0, [INFER_FMT_Q4_0] = split_q4_0, [INFER_FMT_Q4_1] = split_q4_1,
    [INFER_FMT_Q5_0] = split_q5_0, [INFER_FMT_Q5_1] = split_q5_1, [INFER_FMT_MXFP4] = split_mxfp4,
    [INFER_FMT_Q2_K] = split_q2_k, [INFER_FMT_Q3_K] = split_q3_k, [INFER_FMT_Q4_K] = split_q4_k,
    [INFER_FMT_Q5_K] = split_q5_k, [INFER_FMT_Q6_K] = split_q6_k,
};

static uint32_t word(const uint8_t *p)
{
    uint32_t w;
    memcpy(&w, p, sizeof w);
    return w;
}

static uint8_t *put(uint8_t *to, uint32_t w)
{
    memcpy(to, &w, sizeof w);
    return to + sizeof w;
}

/* Bits [from, from + n) of the block's codes as a plane. */
static inline uint8_t *plane(const unit *u, uint32_t b, uint32_t from, uint32_t n, uint8_t *to)
{
    const uint32_t per = 8 / n, mask = ((1u << n) - 1) * 0x01010101u;
    for (uint32_t j = 0; j < n; j++)
        for (int r = 0; r < PANEL_ROWS; r++) {
            const uint8_t *code = u[r].code + PANEL_BLOCK * b + 4 * j;
            uint32_t w = 0;
            for (uint32_t s = 0; s < per; s++)
                w |= (word(code + 4 * n * s) >> from & mask) << (n * s);
            to = put(to, w);
        }
    return to;
}

/* The same, with what is not known before made constant: packing costs as much as this loop. */
static uint8_t *put_plane(const unit *u, uint32_t b, uint32_t from, uint32_t n, uint8_t *to)
{
    switch (n) {
    case 8:
        return plane(u, b, 0, 8, to);
    case 4:
        return plane(u, b, 0, 4, to);
    case 2:
        return plane(u, b, from, 2, to);
    case 1:
        return plane(u, b, from, 1, to);
    default:
        return to;
    }
}

static inline uint8_t *put_bytes(const unit *u, size_t at, size_t n, uint8_t *to)
{
    for (int r = 0; r < PANEL_ROWS; r++, to += n)
        memcpy(to, (const uint8_t *)&u[r] + at, n);
    return to;
}

static uint8_t *put_scales(const panel_format *f, const unit *u, uint32_t b, uint8_t *to)
{
    switch (f->scale) {
    case PANEL_F16:
        return put_bytes(u, offsetof(unit, d), 2, to);
    case PANEL_F16_MIN:
        return put_bytes(u, offsetof(unit, d) + 2, 2, put_bytes(u, offsetof(unit, d), 2, to));
    case PANEL_E8M0:
        return put_bytes(u, offsetof(unit, s), 1, to);
    case PANEL_K_MIN:
        return put_bytes(u, offsetof(unit, m) + b, 1, put_bytes(u, offsetof(unit, s) + b, 1, to));
    default:
        return put_bytes(u, offsetof(unit, s) + 2 * b + 1, 1, put_bytes(u, offsetof(unit, s) + 2 * b, 1, to));
    }
}

void panel_pack(infer_format id, const uint8_t *rows, uint64_t stride, int64_t n, int64_t k, uint8_t *dst)
{
    const panel_format *f = &panel_formats[id];
    const uint32_t bytes = kern_generic_formats[id].block_bytes;
    unit u[PANEL_ROWS] = {0};
    for (int64_t i = 0; i < k / f->unit; i++) {
        for (int64_t r = 0; r < n; r++)
            splits[id](rows + (uint64_t)r * stride + (uint64_t)i * bytes, &u[r]);
        if (f->head_bytes)
            dst = put_bytes(u, offsetof(unit, d), 2, dst);
        if (f->head_bytes > 2 * PANEL_ROWS)
            dst = put_bytes(u, offsetof(unit, d) + 2, 2, dst);
        for (uint32_t b = 0; b < f->unit / PANEL_BLOCK; b++) {
            dst = put_scales(f, u, b, dst);
            dst = put_plane(u, b, 0, f->low, dst);
            dst = put_plane(u, b, f->low, f->high, dst);
        }
    }
}

/* ---- Activations ------------------------------------------------------------------------------------------------- */

void panel_tile(int64_t most, int64_t m, int64_t i, int64_t *first, int64_t *rows)
{
    int64_t at = i / most * most, n;
    while (at + (n = panel_tile_rows(m - at, most)) <= i)
        at += n;
    *first = at;
    *rows = n;
}

void panel_quantize(const float *x, int64_t k, int32_t zero, uint8_t *tile, int64_t rows, int64_t r)
{
    for (int64_t b = 0; b < k / PANEL_BLOCK; b++, x += PANEL_BLOCK, tile += rows * PANEL_X_BYTES) {
        float d, inverse;
        uint32_t most = 0;
        int32_t sum[2] = {0, 0};
        for (int i = 0; i < PANEL_BLOCK; i++) {
            uint32_t bits;
            memcpy(&bits, &x[i], sizeof bits);
            bits &= 0x7FFFFFFFu;
            most = bits > most ? bits : most;
        }
        panel_step(most, &d, &inverse);
        for (int i = 0; i < PANEL_BLOCK; i++) {
            int32_t a = inverse == 0 ? 0 : (int32_t)lrintf(x[i] * inverse), hi = (a + 128 + 32768) / 256 - 128;
            int64_t at = (i / 4 * rows + r) * 4 + i % 4;
            tile[PANEL_X_HI * rows + at] = (uint8_t)hi;
            tile[PANEL_X_LO * rows + at] = (uint8_t)(a - 256 * hi);
            sum[i / 16] += a;
        }
        panel_put_numbers(tile, rows, r, d, sum[0], sum[1], zero);
    }
}

/* ---- The portable product ---------------------------------------------------------------------------------------- */

/* Plane of n bits, added to the codes above bit `to`. */
static void add_plane(const uint8_t *p, uint32_t n, uint32_t to, uint8_t *codes)
{
    uint32_t per = n ? 8 / n : 0;
    for (uint32_t j = 0; j < n; j++)
        for (uint32_t s = 0; s < per; s++)
            for (int i = 0; i < 4 * PANEL_ROWS; i++)
                codes[4 * PANEL_ROWS * (j + n * s) + (uint32_t)i] |=
                    (uint8_t)((p[4 * PANEL_ROWS * j + (uint32_t)i] >> (n * s) & ((1u << n) - 1)) << to);
}

void panel_codes(const panel_format *f, const uint8_t *planes, uint8_t *codes)
{
    memset(codes, 0, PANEL_CODE_BYTES);
    add_plane(planes, f->low, 0, codes);
    add_plane(planes + BITS(f->low), f->high, f->low, codes);
    for (int i = 0; f->lut && i < PANEL_CODE_BYTES; i++)
        codes[i] = (uint8_t)f->lut[codes[i]];
}

void panel_scales(const panel_format *f, const uint8_t *head, const uint8_t *block, uint32_t h, float scale[PANEL_ROWS],
                  float min[PANEL_ROWS])
{
    const uint8_t *half = block + PANEL_ROWS * h;
    for (int r = 0; r < PANEL_ROWS; r++) {
        float d = f->head_bytes ? kern_half(head + 2 * r) : 0;
        float dmin = f->head_bytes > 2 * PANEL_ROWS ? kern_half(head + 2 * (PANEL_ROWS + r)) : 0;
        min[r] = 0;
        switch (f->scale) {
        case PANEL_F16_MIN:
            min[r] = kern_half(block + 2 * (PANEL_ROWS + r)); /* fallthrough */
        case PANEL_F16:
            scale[r] = kern_half(block + 2 * r);
            break;
        case PANEL_E8M0:
            scale[r] = block[r] == 255 ? NAN : ldexpf(1, block[r] - 128);
            break;
        case PANEL_K_MIN:
            scale[r] = d * (float)block[r];
            min[r] = -(dmin * (float)block[PANEL_ROWS + r]);
            break;
        case PANEL_K4_MIN:
            scale[r] = d * (float)(half[r] & 15);
            min[r] = -(dmin * (float)(half[r] >> 4));
            break;
        default:
            scale[r] = d * (float)(int8_t)half[r];
            break;
        }
    }
}

void panel_unpack(const panel_format *f, const uint8_t *panel, int64_t k0, int64_t n, float *dst, int64_t ld)
{
    const int64_t per = f->unit / PANEL_BLOCK, unit_bytes = (int64_t)f->head_bytes + per * f->block_bytes;
    uint8_t codes[PANEL_CODE_BYTES];
    for (int64_t k = 0; k < n; k += PANEL_BLOCK) {
        const int64_t b = (k0 + k) / PANEL_BLOCK;
        const uint8_t *head = panel + b / per * unit_bytes, *block = head + f->head_bytes + b % per * f->block_bytes;
        panel_codes(f, block + f->scale_bytes, codes);
        for (uint32_t e0 = 0; e0 < PANEL_BLOCK; e0 += f->sub) {
            float scale[PANEL_ROWS], min[PANEL_ROWS];
            panel_scales(f, head, block, e0 / f->sub, scale, min);
            for (int r = 0; r < PANEL_ROWS; r++)
                for (uint32_t e = e0; e < e0 + f->sub; e++)
                    dst[r * ld + k + e] =
                        scale[r] * (float)(codes[(e / 4 * PANEL_ROWS + (uint32_t)r) * 4 + e % 4] - f->zero) + min[r];
        }
    }
}

/* Row r of a tile of R against the 16 rows of one block's codes, halves [h0, h1) of it as one sum. */
static void add_rows(const uint8_t *codes, const uint8_t *tile, int64_t R, int64_t r, int t0, int t1,
                     int32_t sum[PANEL_ROWS])
{
    for (int t = t0; t < t1; t++) {
        const int8_t *hi = (const int8_t *)tile + PANEL_X_HI * R + (t * R + r) * 4;
        const int8_t *lo = (const int8_t *)tile + PANEL_X_LO * R + (t * R + r) * 4;
        const uint8_t *q = codes + 4 * PANEL_ROWS * t;
        int32_t a[4];
        for (int i = 0; i < 4; i++)
            a[i] = 256 * hi[i] + lo[i];
        for (int n = 0; n < PANEL_ROWS; n++, q += 4)
            sum[n] += q[0] * a[0] + q[1] * a[1] + q[2] * a[2] + q[3] * a[3];
    }
}

static float float_at(const uint8_t *p)
{
    float v;
    memcpy(&v, p, sizeof v);
    return v;
}

static void dot(infer_format id, const uint8_t *panel, const uint8_t *x, int64_t m, int64_t b0, int64_t nb,
                int64_t row_blocks, float *c, int64_t ldc)
{
    const panel_format *f = &panel_formats[id];
    const int64_t per = f->unit / PANEL_BLOCK, unit_bytes = (int64_t)f->head_bytes + per * f->block_bytes;
    const int halves = f->sub == 16 ? 2 : 1, steps = PANEL_STEPS / halves;
    uint8_t codes[PANEL_CODE_BYTES];
    for (int64_t b = b0; b < b0 + nb; b++) {
        const uint8_t *head = panel + b / per * unit_bytes, *block = head + f->head_bytes + b % per * f->block_bytes;
        panel_codes(f, block + f->scale_bytes, codes);
        for (int h = 0; h < halves; h++) {
            float scale[PANEL_ROWS], min[PANEL_ROWS];
            panel_scales(f, head, block, (uint32_t)h, scale, min);
            for (int64_t i = 0, rows; i < m; i += rows) {
                rows = panel_tile_rows(m - i, PANEL_TILE);
                const uint8_t *tile = x + (i * row_blocks + b * rows) * PANEL_X_BYTES;
                for (int64_t r = 0; r < rows; r++) {
                    const uint8_t *own = tile + 4 * r;
                    int32_t sum[PANEL_ROWS] = {0}, n;
                    float d = float_at(own + PANEL_X_D * rows), *to = c + (i + r) * ldc;
                    float ds = float_at(own + (halves == 1 ? PANEL_X_DS : PANEL_X_DS16 + 4 * h) * rows);
                    memcpy(&n, own + (halves == 1 ? PANEL_X_N : PANEL_X_N16 + 4 * h) * rows, sizeof n);
                    add_rows(codes, tile, rows, r, h * steps, (h + 1) * steps, sum);
                    for (int j = 0; j < PANEL_ROWS; j++) {
                        to[j] = fmaf((float)(sum[j] + n), scale[j] * d, to[j]);
                        if (panel_has_min(f->scale))
                            to[j] = fmaf(min[j], ds, to[j]);
                    }
                }
            }
        }
    }
}

#define DOT(id, name)                                                                                                  \
    static void dot_##name(const uint8_t *panels, int64_t bytes, int64_t n_panels, const uint8_t *x, int64_t m,        \
                           int64_t b0, int64_t nb, int64_t row_blocks, float *c, int64_t ldc)                          \
    {                                                                                                                  \
        for (int64_t p = 0; p < n_panels; p++)                                                                         \
            dot(INFER_FMT_##id, panels + p * bytes, x, m, b0, nb, row_blocks, c + PANEL_ROWS * p, ldc);                \
    }
DOT(Q8_0, q8_0)
DOT(Q4_0, q4_0)
DOT(Q4_1, q4_1)
DOT(Q5_0, q5_0)
DOT(Q5_1, q5_1)
DOT(MXFP4, mxfp4)
DOT(Q2_K, q2_k)
DOT(Q3_K, q3_k)
DOT(Q4_K, q4_k)
DOT(Q5_K, q5_k)
DOT(Q6_K, q6_k)

const panel_dot_fn panel_generic_dots[INFER_FMT_COUNT] = {
    [INFER_FMT_Q8_0] = dot_q8_0, [INFER_FMT_Q4_0] = dot_q4_0, [INFER_FMT_Q4_1] = dot_q4_1,
    [INFER_FMT_Q5_0] = dot_q5_0, [INFER_FMT_Q5_1] = dot_q5_1, [INFER_FMT_MXFP4] = dot_mxfp4,
    [INFER_FMT_Q2_K] = dot_q2_k, [INFER_FMT_Q3_K] = dot_q3_k, [INFER_FMT_Q4_K] = dot_q4_k,
    [INFER_FMT_Q5_K] = dot_q5_k, [INFER_FMT_Q6_K] = dot_q6_k,
};
