/* From stored formats to float. A format is a struct: `raw` holds what memory has of group g of 8 elements of a row,
 * `load` fetches it (nothing else, so that loads of several groups are under way together), `unpack` gives the 8
 * floats; v[0..3] are elements first(g)..+3 and v[4..7] second(g)..+3, chosen so that a group's codes lie together. A
 * block's groups follow one another. Values equal the reference's bit for bit. SPDX-License-Identifier: Apache-2.0 */
#ifndef UNPACK_CUH
#define UNPACK_CUH

#include "dev.cuh"

DEV float byte_of(uint32_t u, int k)
{
    return (float)(u >> (8 * k) & 255u);
}

DEV float e4m3(uint32_t u)
{
    uint32_t body = u & 0x7Fu;
    float f = body == 0x7F ? QUIET_NAN
              : body >= 8  ? float_of((body << 20) + (120u << 23))
                           : mul((float)body, 1.0f / 512.0f);
    return float_of(bits_of(f) | (u & 0x80u) << 24);
}

/* Groups of 8 that lie side by side; `one`: a single element, wherever the row lies. */
struct fmt_plain {
    static const int PLAIN = 1;
    DEV int first(int g)
    {
        return 8 * g;
    }
    DEV int second(int g)
    {
        return 8 * g + 4;
    }
};

struct fmt_f32 : fmt_plain {
    static const int ID = INFER_FMT_F32;
    struct raw {
        uint4 a, b;
    };
    DEV raw load(const uchar *row, int g)
    {
        raw r = {ld_16(row + 32 * (int64_t)g), ld_16(row + 32 * (int64_t)g + 16)};
        return r;
    }
    DEV void unpack(const raw &r, int, float v[8])
    {
        v[0] = float_of(r.a.x), v[1] = float_of(r.a.y), v[2] = float_of(r.a.z), v[3] = float_of(r.a.w);
        v[4] = float_of(r.b.x), v[5] = float_of(r.b.y), v[6] = float_of(r.b.z), v[7] = float_of(r.b.w);
    }
    DEV float one(const uchar *row, int i)
    {
        return ((const float *)row)[i];
    }
};

template <int FMT> struct fmt_16 : fmt_plain {
    static const int ID = FMT;
    struct raw {
        uint4 a;
    };
    DEV raw load(const uchar *row, int g)
    {
        raw r = {ld_16(row + 16 * (int64_t)g)};
        return r;
    }
    DEV void unpack(const raw &r, int, float v[8])
    {
        two_floats(r.a.x, FMT, v);
        two_floats(r.a.y, FMT, v + 2);
        two_floats(r.a.z, FMT, v + 4);
        two_floats(r.a.w, FMT, v + 6);
    }
    DEV float one(const uchar *row, int i)
    {
        return ld(row, FMT, i);
    }
};
typedef fmt_16<INFER_FMT_F16> fmt_f16;
typedef fmt_16<INFER_FMT_BF16> fmt_bf16;

template <int FMT> struct fmt_8 : fmt_plain {
    static const int ID = FMT;
    struct raw {
        uint2 a;
    };
    DEV raw load(const uchar *row, int g)
    {
        raw r = {ld_8(row + 8 * (int64_t)g)};
        return r;
    }
    DEV float value(uint32_t u)
    {
        return FMT == INFER_FMT_F8_E4M3 ? e4m3(u & 255u) : half_to_float((uint16_t)(u << 8));
    }
    DEV void unpack(const raw &r, int, float v[8])
    {
        for (int k = 0; k < 4; k++) {
            v[k] = value(r.a.x >> 8 * k & 255u);
            v[4 + k] = value(r.a.y >> 8 * k & 255u);
        }
    }
    DEV float one(const uchar *row, int i)
    {
        return value(row[i]);
    }
};
typedef fmt_8<INFER_FMT_F8_E4M3> fmt_e4m3;
typedef fmt_8<INFER_FMT_F8_E5M2> fmt_e5m2;

/* Blocks of 32 whose byte k holds elements k and k + 16. */
struct fmt_block {
    static const int PLAIN = 0;
    DEV int first(int g)
    {
        return g / 4 * 32 + g % 4 * 4;
    }
    DEV int second(int g)
    {
        return g / 4 * 32 + g % 4 * 4 + 16;
    }
    DEV float one(const uchar *, int)
    {
        return 0; /* rows are whole blocks */
    }
};

struct fmt_q4_0 : fmt_block {
    static const int ID = INFER_FMT_Q4_0;
    struct raw {
        uint32_t q;
        uint32_t d;
    };
    DEV raw load(const uchar *row, int g)
    {
        const uchar *p = row + 18 * (int64_t)(g / 4);
        raw r = {ld_even4(p + 2 + g % 4 * 4), ld_u16(p)};
        return r;
    }
    DEV void unpack(const raw &r, int, float v[8])
    {
        float d = half_to_float((uint16_t)r.d);
        for (int k = 0; k < 4; k++) {
            v[k] = mul(byte_of(r.q & 0x0F0F0F0Fu, k) - 8.0f, d);
            v[4 + k] = mul(byte_of(r.q >> 4 & 0x0F0F0F0Fu, k) - 8.0f, d);
        }
    }
};

struct fmt_q4_1 : fmt_block {
    static const int ID = INFER_FMT_Q4_1;
    struct raw {
        uint32_t q;
        uint32_t dm;
    };
    DEV raw load(const uchar *row, int g)
    {
        const uchar *p = row + 20 * (int64_t)(g / 4);
        raw r = {ld_u32(p + 4 + g % 4 * 4), ld_u32(p)};
        return r;
    }
    DEV void unpack(const raw &r, int, float v[8])
    {
        float d = half_to_float((uint16_t)r.dm), m = half_to_float((uint16_t)(r.dm >> 16));
        for (int k = 0; k < 4; k++) {
            v[k] = add(mul(byte_of(r.q & 0x0F0F0F0Fu, k), d), m);
            v[4 + k] = add(mul(byte_of(r.q >> 4 & 0x0F0F0F0Fu, k), d), m);
        }
    }
};

/* The codes' low bits with bit s of h as bit 4 of the first, s + 1 of the second, and so on. */
DEV uint32_t fifth(uint32_t low, uint32_t h)
{
    h &= 15u;
    return low | (h & 1u) << 4 | (h & 2u) << 11 | (h & 4u) << 18 | (h & 8u) << 25;
}

struct fmt_q5_0 : fmt_block {
    static const int ID = INFER_FMT_Q5_0;
    struct raw {
        uint32_t q, h, d;
    };
    DEV raw load(const uchar *row, int g)
    {
        const uchar *p = row + 22 * (int64_t)(g / 4);
        raw r = {ld_even4(p + 6 + g % 4 * 4), ld_even4(p + 2), ld_u16(p)};
        return r;
    }
    DEV void unpack(const raw &r, int g, float v[8])
    {
        float d = half_to_float((uint16_t)r.d);
        uint32_t lo = fifth(r.q & 0x0F0F0F0Fu, r.h >> g % 4 * 4);
        uint32_t hi = fifth(r.q >> 4 & 0x0F0F0F0Fu, r.h >> (g % 4 * 4 + 16));
        for (int k = 0; k < 4; k++) {
            v[k] = mul(byte_of(lo, k) - 16.0f, d);
            v[4 + k] = mul(byte_of(hi, k) - 16.0f, d);
        }
    }
};

struct fmt_q5_1 : fmt_block {
    static const int ID = INFER_FMT_Q5_1;
    struct raw {
        uint32_t q, h, dm;
    };
    DEV raw load(const uchar *row, int g)
    {
        const uchar *p = row + 24 * (int64_t)(g / 4);
        raw r = {ld_u32(p + 8 + g % 4 * 4), ld_u32(p + 4), ld_u32(p)};
        return r;
    }
    DEV void unpack(const raw &r, int g, float v[8])
    {
        float d = half_to_float((uint16_t)r.dm), m = half_to_float((uint16_t)(r.dm >> 16));
        uint32_t lo = fifth(r.q & 0x0F0F0F0Fu, r.h >> g % 4 * 4);
        uint32_t hi = fifth(r.q >> 4 & 0x0F0F0F0Fu, r.h >> (g % 4 * 4 + 16));
        for (int k = 0; k < 4; k++) {
            v[k] = add(mul(byte_of(lo, k), d), m);
            v[4 + k] = add(mul(byte_of(hi, k), d), m);
        }
    }
};

struct fmt_q8_0 : fmt_block {
    static const int ID = INFER_FMT_Q8_0;
    struct raw {
        uint32_t a, b, d;
    };
    DEV int first(int g)
    {
        return 8 * g;
    }
    DEV int second(int g)
    {
        return 8 * g + 4;
    }
    DEV raw load(const uchar *row, int g)
    {
        const uchar *p = row + 34 * (int64_t)(g / 4);
        raw r = {ld_even4(p + 2 + g % 4 * 8), ld_even4(p + 6 + g % 4 * 8), ld_u16(p)};
        return r;
    }
    DEV void unpack(const raw &r, int, float v[8])
    {
        float d = half_to_float((uint16_t)r.d);
        for (int k = 0; k < 4; k++) {
            v[k] = mul((float)(int8_t)(r.a >> 8 * k), d);
            v[4 + k] = mul((float)(int8_t)(r.b >> 8 * k), d);
        }
    }
};

/* Twice the value by three bits: 0 1 2 3 4 6 8 12. */
DEV float e2m1(uint32_t code)
{
    uint32_t c = code & 7u, v = c < 4 ? c : c == 7 ? 12 : 2 * c - 4;
    return float_of(bits_of((float)v * 0.5f) | (code & 8u) << 28);
}

struct fmt_mxfp4 : fmt_block {
    static const int ID = INFER_FMT_MXFP4;
    struct raw {
        uint32_t q, e;
    };
    DEV raw load(const uchar *row, int g)
    {
        const uchar *p = row + 17 * (int64_t)(g / 4), *q = p + 1 + g % 4 * 4;
        raw r = {q[0] | (uint32_t)q[1] << 8 | (uint32_t)q[2] << 16 | (uint32_t)q[3] << 24, p[0]};
        return r;
    }
    DEV void unpack(const raw &r, int, float v[8])
    {
        float d = float_of(r.e == 255 ? 0x7FC00000u : r.e == 0 ? 0x00400000u : r.e << 23);
        for (int k = 0; k < 4; k++) {
            v[k] = mul(e2m1(r.q >> 8 * k & 15u), d);
            v[4 + k] = mul(e2m1(r.q >> (8 * k + 4) & 15u), d);
        }
    }
};

/* Super-blocks of 256: sub-block s of 32 elements, halves of 16 with a scale each in Q2_K, Q3_K, Q6_K. */

struct fmt_q2_k : fmt_block {
    static const int ID = INFER_FMT_Q2_K;
    struct raw {
        uint32_t q, s, dm;
    };
    DEV int first(int g) /* four bytes hold four sub-blocks' elements: a group takes two of them */
    {
        return g / 16 * 128 + g % 16 / 8 * 64 + g % 8 * 4;
    }
    DEV int second(int g)
    {
        return first(g) + 32;
    }
    DEV raw load(const uchar *row, int g)
    {
        const uchar *p = row + 84 * (int64_t)(g / 32);
        int s = g % 32 / 8 * 2, half = g % 8 / 4;
        raw r = {ld_u32(p + 16 + g % 32 / 16 * 32 + g % 8 * 4), p[2 * s + half] | (uint32_t)p[2 * s + 2 + half] << 8,
                 ld_u32(p + 80)};
        return r;
    }
    DEV void unpack(const raw &r, int g, float v[8])
    {
        float d = half_to_float((uint16_t)r.dm), m = half_to_float((uint16_t)(r.dm >> 16));
        uint32_t q = r.q >> g % 16 / 8 * 4;
        float d0 = mul(d, (float)(r.s & 15u)), m0 = mul(m, (float)(r.s >> 4 & 15u));
        float d1 = mul(d, (float)(r.s >> 8 & 15u)), m1 = mul(m, (float)(r.s >> 12));
        for (int k = 0; k < 4; k++) {
            v[k] = add(mul(byte_of(q & 0x03030303u, k), d0), -m0);
            v[4 + k] = add(mul(byte_of(q >> 2 & 0x03030303u, k), d1), -m1);
        }
    }
};

struct fmt_q3_k : fmt_block {
    static const int ID = INFER_FMT_Q3_K;
    struct raw {
        uint32_t q, h, s, d; /* s: four bytes of scales, as they are used */
    };
    DEV int first(int g)
    {
        return fmt_q2_k::first(g);
    }
    DEV int second(int g)
    {
        return first(g) + 32;
    }
    DEV raw load(const uchar *row, int g)
    {
        const uchar *p = row + 110 * (int64_t)(g / 32), *s = p + 96;
        int a = g % 32 / 8 * 4 + g % 8 / 4, b = a + 2;
        raw r = {ld_even4(p + 32 + g % 32 / 16 * 32 + g % 8 * 4), ld_even4(p + g % 8 * 4),
                 s[a % 8] | (uint32_t)s[8 + a % 4] << 8 | (uint32_t)s[b % 8] << 16 | (uint32_t)s[8 + b % 4] << 24,
                 ld_u16(p + 108)};
        return r;
    }
    DEV float scale(uint32_t s, int i)
    {
        return (float)((int)((s >> (i / 8 * 4) & 15u) | (s >> 8 >> (i / 4 * 2) & 3u) << 4) - 32);
    }
    DEV void unpack(const raw &r, int g, float v[8])
    {
        float d = half_to_float((uint16_t)r.d);
        int a = g % 32 / 8 * 4 + g % 8 / 4, s = g % 32 / 8 * 2;
        uint32_t q = r.q >> g % 16 / 8 * 4, h = r.h >> s;
        float d0 = mul(d, scale(r.s, a)), d1 = mul(d, scale(r.s >> 16, a + 2));
        for (int k = 0; k < 4; k++) {
            v[k] = mul((float)((int)(q >> 8 * k & 3u) - (h >> 8 * k & 1u ? 0 : 4)), d0);
            v[4 + k] = mul((float)((int)(q >> (8 * k + 2) & 3u) - (h >> (8 * k + 1) & 1u ? 0 : 4)), d1);
        }
    }
};

/* Q4_K and Q5_K: sub-blocks s and s + 1, s even, with six bits each for scale and minimum. */
struct k_scales {
    uint32_t dm, w[3];
};

DEV uint32_t scale_byte(const k_scales &k, int i)
{
    return (i < 4 ? k.w[0] : i < 8 ? k.w[1] : k.w[2]) >> i % 4 * 8 & 255u;
}

DEV void scale_min(const k_scales &k, int s, float &d, float &m)
{
    uint32_t sc = s < 4 ? scale_byte(k, s) & 63u : (scale_byte(k, s + 4) & 15u) | (scale_byte(k, s - 4) >> 6) << 4;
    uint32_t mn = s < 4 ? scale_byte(k, s + 4) & 63u : scale_byte(k, s + 4) >> 4 | (scale_byte(k, s) >> 6) << 4;
    d = mul(half_to_float((uint16_t)k.dm), (float)sc);
    m = mul(half_to_float((uint16_t)(k.dm >> 16)), (float)mn);
}

DEV k_scales ld_scales(const uchar *p)
{
    k_scales k = {ld_u32(p), {ld_u32(p + 4), ld_u32(p + 8), ld_u32(p + 12)}};
    return k;
}

struct fmt_q4_k : fmt_block {
    static const int ID = INFER_FMT_Q4_K;
    struct raw {
        k_scales k;
        uint32_t q;
    };
    DEV int first(int g)
    {
        return g / 8 * 64 + g % 8 * 4;
    }
    DEV int second(int g)
    {
        return first(g) + 32;
    }
    DEV raw load(const uchar *row, int g)
    {
        const uchar *p = row + 144 * (int64_t)(g / 32);
        raw r = {ld_scales(p), ld_u32(p + 16 + g % 32 * 4)};
        return r;
    }
    DEV void values(const k_scales &k, int g, uint32_t lo, uint32_t hi, float v[8])
    {
        float d0, m0, d1, m1;
        int s = g % 32 / 8 * 2;
        scale_min(k, s, d0, m0);
        scale_min(k, s + 1, d1, m1);
        for (int i = 0; i < 4; i++) {
            v[i] = add(mul(byte_of(lo, i), d0), -m0);
            v[4 + i] = add(mul(byte_of(hi, i), d1), -m1);
        }
    }
    DEV void unpack(const raw &r, int g, float v[8])
    {
        values(r.k, g, r.q & 0x0F0F0F0Fu, r.q >> 4 & 0x0F0F0F0Fu, v);
    }
};

struct fmt_q5_k : fmt_block {
    static const int ID = INFER_FMT_Q5_K;
    struct raw {
        k_scales k;
        uint32_t q, h;
    };
    DEV int first(int g)
    {
        return fmt_q4_k::first(g);
    }
    DEV int second(int g)
    {
        return first(g) + 32;
    }
    DEV raw load(const uchar *row, int g)
    {
        const uchar *p = row + 176 * (int64_t)(g / 32);
        raw r = {ld_scales(p), ld_u32(p + 48 + g % 32 * 4), ld_u32(p + 16 + g % 8 * 4)};
        return r;
    }
    DEV void unpack(const raw &r, int g, float v[8])
    {
        uint32_t h = r.h >> g % 32 / 8 * 2;
        fmt_q4_k::values(r.k, g, (r.q & 0x0F0F0F0Fu) | (h & 0x01010101u) << 4,
                         (r.q >> 4 & 0x0F0F0F0Fu) | (h >> 1 & 0x01010101u) << 4, v);
    }
};

struct fmt_q6_k : fmt_block {
    static const int ID = INFER_FMT_Q6_K;
    struct raw {
        uint32_t q, h, s, d;
    };
    DEV int first(int g) /* low and high halves of a byte are sub-blocks s and s + 2 */
    {
        return g / 16 * 128 + g % 16 * 4;
    }
    DEV int second(int g)
    {
        return first(g) + 64;
    }
    DEV raw load(const uchar *row, int g)
    {
        const uchar *p = row + 210 * (int64_t)(g / 32);
        int high = g % 32 / 16, sc = 192 + 8 * high + g % 16 / 4;
        raw r = {ld_even4(p + 64 * high + g % 16 * 4), ld_even4(p + 128 + 32 * high + g % 8 * 4),
                 p[sc] | (uint32_t)p[sc + 4] << 8, ld_u16(p + 208)};
        return r;
    }
    DEV void unpack(const raw &r, int g, float v[8])
    {
        float d = half_to_float((uint16_t)r.d);
        uint32_t h = r.h >> g % 16 / 8 * 2;
        uint32_t lo = (r.q & 0x0F0F0F0Fu) | (h & 0x03030303u) << 4;
        uint32_t hi = (r.q >> 4 & 0x0F0F0F0Fu) | (h >> 4 & 0x03030303u) << 4;
        float d0 = mul(d, (float)(int8_t)r.s), d1 = mul(d, (float)(int8_t)(r.s >> 8));
        for (int k = 0; k < 4; k++) {
            v[k] = mul(byte_of(lo, k) - 32.0f, d0);
            v[4 + k] = mul(byte_of(hi, k) - 32.0f, d1);
        }
    }
};

/* All formats: X(F, f). */
#define FOR_FORMATS(X)                                                                                                 \
    X(F32, f32)                                                                                                        \
    X(F16, f16)                                                                                                        \
    X(BF16, bf16)                                                                                                      \
    X(F8_E4M3, e4m3)                                                                                                   \
    X(F8_E5M2, e5m2)                                                                                                   \
    X(Q4_0, q4_0)                                                                                                      \
    X(Q4_1, q4_1)                                                                                                      \
    X(Q5_0, q5_0)                                                                                                      \
    X(Q5_1, q5_1)                                                                                                      \
    X(Q8_0, q8_0)                                                                                                      \
    X(MXFP4, mxfp4)                                                                                                    \
    X(Q2_K, q2_k)                                                                                                      \
    X(Q3_K, q3_k)                                                                                                      \
    X(Q4_K, q4_k)                                                                                                      \
    X(Q5_K, q5_k)                                                                                                      \
    X(Q6_K, q6_k)

template <class F> DEV void group_of(const uchar *row, int g, int wide, float v[8], int &first, int &second)
{
    first = F::first(g);
    second = F::second(g);
    if (F::PLAIN && !wide) {
        for (int k = 0; k < 8; k++)
            v[k] = F::one(row, 8 * g + k);
        return;
    }
    typename F::raw r = F::load(row, g);
    F::unpack(r, g, v);
}

/* Group g of a row in whatever format. wide: the row begins at a multiple of 16. */
DEV void group_any(int fmt, const uchar *row, int g, int wide, float v[8], int &first, int &second)
{
    switch (fmt) {
#define CASE(F, f)                                                                                                     \
    case INFER_FMT_##F:                                                                                                \
        group_of<fmt_##f>(row, g, wide, v, first, second);                                                             \
        break;
        FOR_FORMATS(CASE)
#undef CASE
    }
}

/* One element of a plain format, F8_E4M3 and F8_E5M2 among them. */
DEV float ld_plain(const uchar *p, int fmt, int64_t i)
{
    if (fmt == INFER_FMT_F8_E4M3)
        return e4m3(p[i]);
    if (fmt == INFER_FMT_F8_E5M2)
        return half_to_float((uint16_t)(p[i] << 8));
    return ld(p, fmt, i);
}

/* Saturates at 448; round to nearest even. */
DEV uchar e4m3_of(float v)
{
    uint32_t u = bits_of(v), sign = u >> 24 & 0x80u;
    float m = fabsf(v);
    if (isnan(v))
        return (uchar)(sign | 0x7Fu);
    if (m >= 448.0f)
        return (uchar)(sign | 0x7Eu);
    if (m < 0.015625f)
        return (uchar)(sign | (uint32_t)rintf(m * 512.0f));
    uint32_t b = bits_of(m);
    b += 0x7FFFFu + (b >> 20 & 1u);
    b = b < 0x43E00000u ? b : 0x43E00000u;
    return (uchar)(sign | ((b - (120u << 23)) >> 20));
}

DEV void st_plain(uchar *p, int fmt, int64_t i, float v)
{
    if (fmt == INFER_FMT_F8_E4M3)
        p[i] = e4m3_of(v);
    else
        st(p, fmt, i, v);
}

DEV int code_of(float v, int low, int high)
{
    return v > (float)low ? v < (float)high ? (int)v : high : low;
}

/* Element `lane` of 32 that neighbouring lanes hold, to block g of a row of Q8_0 or Q4_0, by the reference's rules.
 * All lanes of the wave call it; keep: whether these 32 are to be stored. */
DEV void pack32(uchar *row, int fmt, int g, float x, int keep)
{
    int lane = thread_id() % 32;
    float best = fabsf(x), v = x;
    int who = lane;
    if (isnan(best)) /* what the reference's comparisons make of it */
        best = fmt == INFER_FMT_Q4_0 && lane == 0 ? INFINITY : 0.0f;
    for (int m = 16; m > 0; m >>= 1) { /* the first of the largest */
        float ob = wave_xor(best, m), ov = wave_xor(v, m);
        int ow = wave_xor(who, m);
        if (ob > best || (ob == best && ow < who)) {
            best = ob;
            v = ov;
            who = ow;
        }
    }
    if (fmt == INFER_FMT_Q8_0) {
        float d = best / 127.0f, inverse = d != 0 ? 1.0f / d : 0.0f;
        float a = mul(fabsf(x), inverse);
        int q = a > 0 ? a < 127 ? (int)a : 127 : 0;
        q += q < 127 && a - (float)q >= 0.5f;
        uchar *p = row + 34 * (int64_t)g;
        if (keep) {
            if (lane == 0)
                *(uint16_t *)p = float_to_half(d);
            p[2 + lane] = (uchar)(x < 0 ? -q : q);
        }
        return;
    }
    float d = v / -8.0f, inverse = d != 0 ? 1.0f / d : 0.0f;
    int q = code_of(add(mul(x, inverse), 8.5f), 0, 15), other = wave_xor(q, 16);
    uchar *p = row + 18 * (int64_t)g;
    if (keep && lane < 16) {
        if (lane == 0)
            *(uint16_t *)p = float_to_half(d);
        p[2 + lane] = (uchar)(q | other << 4);
    }
}

#endif
