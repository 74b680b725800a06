/* Weights from rows as files have them to panels (packed.h), at load. A wave a step of a panel: x steps, y panels,
 * walked; a lane makes what the lane of its number will read. Rows begin at a multiple of 16. SPDX-License-Identifier:
 * Apache-2.0 */
#include "dev.cuh"
#include "../packed.h"

#define LANES 32

DEV uint32_t pair(const uchar *p)
{
    return ld_u16(p);
}

/* A row of the panel, NULL: beyond the matrix. */
DEV const uchar *row_at(const uchar *rows, const packed_job &j, int panel, int r)
{
    int64_t i = (int64_t)panel * PACKED_ROWS + r;
    return i < j.rows ? rows + i * j.row_bytes : NULL;
}

DEV void put_u16(uchar *p, uint32_t v)
{
    *(uint16_t *)p = (uint16_t)v;
}

DEV void put_u32(uchar *p, uint32_t v)
{
    *(uint32_t *)p = v;
}

/* Nibbles of a word from P0 to P3, two bytes of 4 bits each. */
DEV uint32_t nibbles(uint32_t p0, uint32_t p1, uint32_t p2, uint32_t p3)
{
    uint32_t first = (p0 & 15u) | (p2 & 15u) << 4 | (p1 & 15u) << 8 | (p3 & 15u) << 12;
    uint32_t second = p0 >> 8 | p2 >> 8 << 4 | p1 >> 8 << 8 | p3 >> 8 << 12;
    return first | second << 16;
}

/* ---- Plain elements: 16-byte pieces, moved about ---------------------------------------------------------------- */

struct as_lines {
    DEV uint4 piece(const uchar *row, int64_t from, int64_t row_bytes)
    {
        uint4 v = {0, 0, 0, 0};
        if (row && row_bytes % 16 == 0) {
            if (from < row_bytes)
                v = ld_16(row + from);
        } else if (row) {
            uint32_t w[4] = {0, 0, 0, 0};
            for (int i = 0; i < 16 && from + i < row_bytes; i++)
                w[i / 4] |= (uint32_t)row[from + i] << i % 4 * 8;
            v.x = w[0], v.y = w[1], v.z = w[2], v.w = w[3];
        }
        return v;
    }
    static const infer_format ID = INFER_FMT_BF16;
    DEV void step(uchar *to, const uchar *rows, const packed_job &j, int panel, int step, int lane)
    {
        for (int i = lane; i < 128; i += LANES) {
            int r = i / 8, c = i % 8;
            uint4 v = piece(row_at(rows, j, panel, r), (int64_t)step * 128 + c * 16, j.row_bytes);
            st_16(to + r * 128 + (c ^ r % 8) * 16, v.x, v.y, v.z, v.w);
        }
    }
};

/* ---- Blocks of 32: BYTES each with the scale first; steps of two --------------------------------------------------
 */

template <int BYTES> struct as_blocks {
    /* Block b of a step; NULL: beyond the row or the matrix. */
    DEV const uchar *block(const uchar *rows, const packed_job &j, int panel, int step, int r, int b)
    {
        const uchar *row = row_at(rows, j, panel, r);
        int64_t at = (2 * (int64_t)step + b) * BYTES;
        return row && at < j.row_bytes ? row + at : NULL;
    }
    /* The f16 at `from` of each block, where a lane's part of scales or minima lies. */
    DEV void scales(uchar *to, const uchar *rows, const packed_job &j, int panel, int step, int lane, int from)
    {
        const uchar *p = block(rows, j, panel, step, lane / 4 + lane % 2 * 8, lane % 4 / 2);
        put_u16(to + 2 * lane, p ? pair(p + from) : 0u);
    }
};

struct as_q8_0 : as_blocks<34> {
    static const infer_format ID = INFER_FMT_Q8_0;
    DEV void step(uchar *to, const uchar *rows, const packed_job &j, int panel, int step, int lane)
    {
        int g = lane / 4, t = lane % 4;
        for (int b = 0; b < 2; b++) {
            uint32_t w[4];
            for (int h = 0; h < 2; h++) {
                const uchar *p = block(rows, j, panel, step, g + 8 * h, b);
                for (int i = 0; i < 2; i++)
                    w[2 * h + i] =
                        0x80808080u ^ (p ? pair(p + 2 + 2 * t + 16 * i) | pair(p + 10 + 2 * t + 16 * i) << 16 : 0u);
            }
            st_16(to + 512 * b + 16 * lane, w[0], w[1], w[2], w[3]);
        }
        scales(to + 1024, rows, j, panel, step, lane, 0);
    }
};

/* CODES: where they begin; ZERO: a word of codes that mean zero. */
template <int BYTES, int CODES, uint32_t ZERO> struct as_q4 : as_blocks<BYTES> {
    static const infer_format ID = CODES == 2 ? INFER_FMT_Q4_0 : INFER_FMT_Q4_1;
    DEV void step(uchar *to, const uchar *rows, const packed_job &j, int panel, int step, int lane)
    {
        int g = lane / 4, t = lane % 4;
        uint32_t w[4];
        for (int i = 0; i < 4; i++) {
            const uchar *p = as_blocks<BYTES>::block(rows, j, panel, step, g + i % 2 * 8, i / 2);
            w[i] = ZERO;
            if (p) {
                uint32_t a = pair(p + CODES + 2 * t), c = pair(p + CODES + 8 + 2 * t);
                w[i] = nibbles(a & 0x0F0Fu, c & 0x0F0Fu, a >> 4 & 0x0F0Fu, c >> 4 & 0x0F0Fu);
            }
        }
        st_16(to + 16 * lane, w[0], w[1], w[2], w[3]);
        as_blocks<BYTES>::scales(to + 512, rows, j, panel, step, lane, 0);
        if (CODES == 4)
            as_blocks<BYTES>::scales(to + 576, rows, j, panel, step, lane, 2);
    }
};
typedef as_q4<18, 2, 0x88888888u> as_q4_0;
typedef as_q4<20, 4, 0u> as_q4_1;

/* ---- Blocks of 256, a step each: four times 64 elements ------------------------------------------------------------
 */

struct as_q4_k {
    static const infer_format ID = INFER_FMT_Q4_K;
    DEV void step(uchar *to, const uchar *rows, const packed_job &j, int panel, int step, int lane)
    {
        int g = lane / 4, t = lane % 4;
        const uchar *p[2];
        for (int h = 0; h < 2; h++) {
            p[h] = row_at(rows, j, panel, g + 8 * h);
            p[h] = p[h] ? p[h] + 144 * (int64_t)step : NULL;
        }
        for (int s = 0; s < 4; s++) {
            uint32_t w[4] = {0, 0, 0, 0};
            for (int h = 0; h < 2; h++)
                for (int b = 0; b < 2 && p[h]; b++) {
                    const uchar *q = p[h] + 16 + 32 * s + 2 * t;
                    w[2 * b + h] = nibbles(pair(q) >> 4 * b & 0x0F0Fu, pair(q + 8) >> 4 * b & 0x0F0Fu,
                                           pair(q + 16) >> 4 * b & 0x0F0Fu, pair(q + 24) >> 4 * b & 0x0F0Fu);
                }
            st_16(to + 512 * s + 16 * lane, w[0], w[1], w[2], w[3]);
        }
        /* six bits each of sub-block k: bytes k, k + 4 of the twelve; from the fifth on with high bits of others */
        uint32_t two[2] = {0, 0}; /* lane t has the t-th 64 elements */
        for (int h = 0; h < 2; h++)
            for (int b = 0; b < 2 && p[h]; b++) {
                const uchar *q = p[h] + 4;
                int k = 2 * t + b;
                uint32_t sc = k < 4 ? q[k] & 63u : (q[k + 4] & 15u) | (uint32_t)(q[k - 4] >> 6) << 4;
                uint32_t mn = k < 4 ? q[k + 4] & 63u : (uint32_t)(q[k + 4] >> 4) | (uint32_t)(q[k] >> 6) << 4;
                two[h] |= (sc | mn << 8) << 16 * b;
            }
        put_u32(to + 2048 + 64 * t + 8 * g, two[0]);
        put_u32(to + 2048 + 64 * t + 8 * g + 4, two[1]);
        if (t < 2)
            put_u32(to + 2304 + 4 * (g + 8 * t), p[t] ? pair(p[t]) | pair(p[t] + 2) << 16 : 0u);
    }
};

/* Scales and zero points come by themselves. */
struct as_u4 {
    static const infer_format ID = INFER_FMT_U4;
    DEV void step(uchar *to, const uchar *rows, const packed_job &j, int panel, int step, int lane)
    {
        int g = lane / 4, t = lane % 4;
        for (int s = 0; s < 4; s++) {
            uint32_t w[4];
            for (int i = 0; i < 4; i++) { /* block i / 2, row g + i % 2 * 8 */
                const uchar *row = row_at(rows, j, panel, g + i % 2 * 8);
                int64_t from = 128 * (int64_t)step + 32 * s + 16 * (i / 2) + t;
                uint32_t p[4];
                for (int k = 0; k < 4; k++) { /* a pair is a byte */
                    uint32_t b = row && from + 4 * k < j.row_bytes ? row[from + 4 * k] : 0u;
                    p[k] = (b & 15u) | b >> 4 << 8;
                }
                w[i] = nibbles(p[0], p[1], p[2], p[3]);
            }
            st_16(to + 512 * s + 16 * lane, w[0], w[1], w[2], w[3]);
        }
    }
};

/* Entry of row r, group j of a step: its number among the source's, -1: there is none. */
DEV int64_t group_at(const packed_job &j, int panel, int step, int r, int group)
{
    int64_t row = (int64_t)panel * PACKED_ROWS + r, at = 2 * (int64_t)step + group;
    return row < j.rows && at < j.row_bytes ? row * j.row_bytes + at : -1;
}

struct as_u4_scales {
    static const infer_format ID = INFER_FMT_U4;
    DEV void step(uchar *to, const uchar *scales, const packed_job &j, int panel, int step, int lane)
    {
        int64_t i = group_at(j, panel, step, lane / 4 + lane % 2 * 8, lane % 4 / 2);
        put_u16(to + 2048 + 2 * lane, i >= 0 ? pair(scales + 2 * i) : 0u);
        if (lane < 16 && j.zero >= 0)
            to[2112 + lane] = (uchar)(j.zero * 17);
    }
};

struct as_u4_zeros {
    static const infer_format ID = INFER_FMT_U4;
    DEV void step(uchar *to, const uchar *zeros, const packed_job &j, int panel, int step, int lane)
    {
        uint32_t both = 0;
        if (lane >= 16)
            return;
        for (int h = 0; h < 2; h++) {
            int64_t i = group_at(j, panel, step, lane / 2 + 8 * h, lane % 2);
            both |= i >= 0 ? (uint32_t)(zeros[i / 2] >> i % 2 * 4 & 15) << 4 * h : 0u;
        }
        to[2112 + lane] = (uchar)both;
    }
};

struct as_q6_k {
    static const infer_format ID = INFER_FMT_Q6_K;
    DEV void step(uchar *to, const uchar *rows, const packed_job &j, int panel, int step, int lane)
    {
        int g = lane / 4, t = lane % 4;
        const uchar *p[2];
        for (int h = 0; h < 2; h++) {
            p[h] = row_at(rows, j, panel, g + 8 * h);
            p[h] = p[h] ? p[h] + 210 * (int64_t)step : NULL;
        }
        for (int s = 0; s < 4; s++) {
            uint32_t low[4] = {0, 0, 0, 0}, high[2] = {0, 0};
            for (int h = 0; h < 2; h++)
                for (int b = 0; b < 2 && p[h]; b++) {
                    const uchar *q = p[h] + 64 * (s / 2) + 32 * b + 2 * t, *u = p[h] + 128 + 32 * (s / 2) + 2 * t;
                    uint32_t l[4], two = 0;
                    for (int i = 0; i < 4; i++) {
                        l[i] = pair(q + 8 * i) >> 4 * (s % 2) & 0x0F0Fu;
                        /* P0 to bytes 0 and 2, P1 to 1 and 3, P2 and P3 above them */
                        uint32_t bits = pair(u + 8 * i) >> (4 * (s % 2) + 2 * b) & 0x0303u;
                        two |= ((bits & 3u) | bits >> 8 << 16) << (i % 2 * 8 + i / 2 * 4);
                    }
                    low[2 * b + h] = nibbles(l[0], l[1], l[2], l[3]);
                    high[b] |= (two ^ 0x22222222u) << 2 * h;
                }
            st_16(to + 512 * s + 16 * lane, low[0], low[1], low[2], low[3]);
            put_u32(to + 2048 + 256 * s + 8 * lane, high[0]);
            put_u32(to + 2048 + 256 * s + 8 * lane + 4, high[1]);
        }
        for (int h = 0; h < 2; h++)
            put_u32(to + 3072 + 64 * t + 8 * g + 4 * h,
                    p[h] ? pair(p[h] + 192 + 4 * t) | pair(p[h] + 194 + 4 * t) << 16 : 0u);
        if (t < 2)
            put_u16(to + 3328 + 2 * (g + 8 * t), p[t] ? pair(p[t] + 208) : 0u);
    }
};

template <class F> DEV void pack(const uchar *rows, uchar *image, const packed_job &j)
{
    int step = (int)(blockIdx.x * blockDim.y + threadIdx.y), panels = (int)packed_panels(j.rows);
    if (step >= j.steps)
        return;
    for (int panel = (int)blockIdx.y; panel < panels; panel += (int)gridDim.y)
        F::step(image + ((int64_t)panel * j.steps + step) * packed_step(F::ID), rows, j, panel, step, (int)threadIdx.x);
}

#define PACK(f)                                                                                                        \
    extern "C" __global__ void pack_##f(const uchar *rows, uchar *image, const packed_job j)                           \
    {                                                                                                                  \
        pack<as_##f>(rows, image, j);                                                                                  \
    }
PACK(lines)
PACK(q8_0)
PACK(q4_0)
PACK(q4_1)
PACK(q4_k)
PACK(q6_k)
PACK(u4)
PACK(u4_scales)
PACK(u4_zeros)
