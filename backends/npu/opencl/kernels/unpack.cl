/* From stored formats to float, 32 elements at a time: element i of the group in a (i < 16) or b. Values equal the
 * reference's bit for bit (hence no contraction). Also packing for cache planes. SPDX-License-Identifier: Apache-2.0 */

float half_at(const G uchar *p)
{
    return vload_half(0, (const G half *)p);
}

/* 16 bytes at an even place. */
uchar16 bytes16(const G uchar *p)
{
    return as_uchar16(vload8(0, (const G ushort *)p));
}

void unpack_f32(const G uchar *row, int g, float16 *a, float16 *b)
{
    const G float *p = (const G float *)row + 32 * g;
    *a = vload16(0, p);
    *b = vload16(1, p);
}

void unpack_f16(const G uchar *row, int g, float16 *a, float16 *b)
{
    const G half *p = (const G half *)row + 32 * g;
    *a = vload_half16(0, p);
    *b = vload_half16(1, p);
}

void unpack_bf16(const G uchar *row, int g, float16 *a, float16 *b)
{
    const G ushort *p = (const G ushort *)row + 32 * g;
    *a = as_float16(convert_uint16(vload16(0, p)) << 16);
    *b = as_float16(convert_uint16(vload16(1, p)) << 16);
}

float16 e4m3(uchar16 v)
{
    uint16 u = convert_uint16(v), body = u & 0x7Fu, sign = (u & 0x80u) << 24;
    float16 f = as_float16((body << 20) + (120u << 23));
    f = select(f, convert_float16(body) * (1.0f / 512.0f), as_int16(body) < 8);
    f = select(f, (float16)(as_float(0x7FC00000u)), as_int16(body) == 0x7F);
    return as_float16(as_uint16(f) | sign);
}

void unpack_e4m3(const G uchar *row, int g, float16 *a, float16 *b)
{
    *a = e4m3(vload16(0, row + 32 * g));
    *b = e4m3(vload16(1, row + 32 * g));
}

void unpack_q4_0(const G uchar *row, int g, float16 *a, float16 *b)
{
    const G uchar *p = row + 18 * g;
    float d = half_at(p);
    uchar16 q = bytes16(p + 2);
    *a = (convert_float16(q & (uchar)15) - 8.0f) * d;
    *b = (convert_float16(q >> (uchar)4) - 8.0f) * d;
}

void unpack_q4_1(const G uchar *row, int g, float16 *a, float16 *b)
{
    const G uchar *p = row + 20 * g;
    float d = half_at(p), m = half_at(p + 2);
    uchar16 q = bytes16(p + 4);
    *a = convert_float16(q & (uchar)15) * d + m;
    *b = convert_float16(q >> (uchar)4) * d + m;
}

/* Bit i of the low and of the high half-word as 16 in element i. */
ushort16 fifth(uint half_word)
{
    const ushort16 bit = (ushort16)(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768);
    return select((ushort16)(0), (ushort16)(16), ((ushort16)((ushort)half_word) & bit) != (ushort16)(0));
}

void unpack_q5_0(const G uchar *row, int g, float16 *a, float16 *b)
{
    const G uchar *p = row + 22 * g;
    float d = half_at(p);
    const G ushort *h = (const G ushort *)(p + 2);
    ushort16 q = convert_ushort16(bytes16(p + 6));
    *a = (convert_float16((q & (ushort)15) | fifth(h[0])) - 16.0f) * d;
    *b = (convert_float16((q >> (ushort)4) | fifth(h[1])) - 16.0f) * d;
}

void unpack_q5_1(const G uchar *row, int g, float16 *a, float16 *b)
{
    const G uchar *p = row + 24 * g;
    float d = half_at(p), m = half_at(p + 2);
    const G ushort *h = (const G ushort *)(p + 4);
    ushort16 q = convert_ushort16(bytes16(p + 8));
    *a = convert_float16((q & (ushort)15) | fifth(h[0])) * d + m;
    *b = convert_float16((q >> (ushort)4) | fifth(h[1])) * d + m;
}

void unpack_q8_0(const G uchar *row, int g, float16 *a, float16 *b)
{
    const G uchar *p = row + 34 * g;
    float d = half_at(p);
    *a = convert_float16(as_char16(bytes16(p + 2))) * d;
    *b = convert_float16(as_char16(bytes16(p + 18))) * d;
}

float16 e2m1(uchar16 code)
{
    /* twice the value: 0 1 2 3 4 6 8 12 */
    int16 c = convert_int16(code & (uchar)7), s = convert_int16(code & (uchar)8) << 28;
    int16 v = select(select(c, 2 * c - 4, c >= 4), (int16)(12), c == 7);
    return as_float16(as_int16(convert_float16(v) * 0.5f) | s);
}

void unpack_mxfp4(const G uchar *row, int g, float16 *a, float16 *b)
{
    const G uchar *p = row + 17 * g;
    uint e = p[0];
    float d = as_float(e == 255 ? 0x7FC00000u : e == 0 ? 0x00400000u : e << 23);
    uchar16 q = vload16(0, p + 1);
    *a = e2m1(q & (uchar)15) * d;
    *b = e2m1(q >> (uchar)4) * d;
}

void unpack_q2_k(const G uchar *row, int g, float16 *a, float16 *b)
{
    const G uchar *p = row + 84 * (g / 8);
    int s = g % 8;
    const G uchar *q = p + 16 + s / 4 * 32;
    uchar shift = (uchar)(s % 4 * 2);
    float d = half_at(p + 80), m = half_at(p + 82);
    int s0 = p[2 * s], s1 = p[2 * s + 1];
    *a = convert_float16((bytes16(q) >> shift) & (uchar)3) * (d * (float)(s0 & 15)) - m * (float)(s0 >> 4);
    *b = convert_float16((bytes16(q + 16) >> shift) & (uchar)3) * (d * (float)(s1 & 15)) - m * (float)(s1 >> 4);
}

int scale_q3_k(const G uchar *s, int g)
{
    return ((s[g % 8] >> (g / 8 * 4) & 15) | (s[8 + g % 4] >> (g / 4 * 2) & 3) << 4) - 32;
}

void unpack_q3_k(const G uchar *row, int g, float16 *a, float16 *b)
{
    const G uchar *p = row + 110 * (g / 8);
    int s = g % 8;
    const G uchar *q = p + 32 + s / 4 * 32;
    uchar shift = (uchar)(s % 4 * 2), bit = (uchar)s;
    float d = half_at(p + 108);
    char16 x = as_char16((bytes16(q) >> shift) & (uchar)3) - as_char16((((bytes16(p) >> bit) & (uchar)1) ^ (uchar)1) << (uchar)2);
    char16 y = as_char16((bytes16(q + 16) >> shift) & (uchar)3) - as_char16((((bytes16(p + 16) >> bit) & (uchar)1) ^ (uchar)1) << (uchar)2);
    *a = convert_float16(x) * (d * (float)scale_q3_k(p + 96, 2 * s));
    *b = convert_float16(y) * (d * (float)scale_q3_k(p + 96, 2 * s + 1));
}

/* Scale and minimum of sub-block s of Q4_K and Q5_K, six bits each. */
void scales12(const G uchar *p, int s, float *d, float *m)
{
    const G uchar *q = p + 4;
    int sc = s < 4 ? q[s] & 63 : (q[s + 4] & 15) | (q[s - 4] >> 6) << 4;
    int mn = s < 4 ? q[s + 4] & 63 : q[s + 4] >> 4 | (q[s] >> 6) << 4;
    *d = half_at(p) * (float)sc;
    *m = half_at(p + 2) * (float)mn;
}

void unpack_q4_k(const G uchar *row, int g, float16 *a, float16 *b)
{
    const G uchar *p = row + 144 * (g / 8);
    int s = g % 8;
    const G uchar *q = p + 16 + s / 2 * 32;
    uchar shift = (uchar)(s % 2 * 4);
    float d, m;
    scales12(p, s, &d, &m);
    *a = convert_float16((bytes16(q) >> shift) & (uchar)15) * d - m;
    *b = convert_float16((bytes16(q + 16) >> shift) & (uchar)15) * d - m;
}

void unpack_q5_k(const G uchar *row, int g, float16 *a, float16 *b)
{
    const G uchar *p = row + 176 * (g / 8);
    int s = g % 8;
    const G uchar *q = p + 48 + s / 2 * 32;
    uchar shift = (uchar)(s % 2 * 4), bit = (uchar)s;
    float d, m;
    scales12(p, s, &d, &m);
    *a = convert_float16(((bytes16(q) >> shift) & (uchar)15) | ((bytes16(p + 16) >> bit) & (uchar)1) << (uchar)4) * d - m;
    *b = convert_float16(((bytes16(q + 16) >> shift) & (uchar)15) | ((bytes16(p + 32) >> bit) & (uchar)1) << (uchar)4) * d - m;
}

void unpack_q6_k(const G uchar *row, int g, float16 *a, float16 *b)
{
    const G uchar *p = row + 210 * (g / 8);
    int s = g % 8;
    const G uchar *low = p + s / 4 * 64 + s % 2 * 32, *high = p + 128 + s / 4 * 32;
    uchar sl = (uchar)(s % 4 / 2 * 4), sh = (uchar)(s % 4 * 2);
    float d = half_at(p + 208);
    const G char *sc = (const G char *)(p + 192 + 2 * s);
    uchar16 x = ((bytes16(low) >> sl) & (uchar)15) | ((bytes16(high) >> sh) & (uchar)3) << (uchar)4;
    uchar16 y = ((bytes16(low + 16) >> sl) & (uchar)15) | ((bytes16(high + 16) >> sh) & (uchar)3) << (uchar)4;
    *a = (convert_float16(x) - 32.0f) * (d * (float)sc[0]);
    *b = (convert_float16(y) - 32.0f) * (d * (float)sc[1]);
}
