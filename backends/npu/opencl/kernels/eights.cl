/* Groups of 8 neighbouring elements, as lanes read them: raw_F brings the bytes of group i of a row, eight_F makes them
 * floats, which are to be multiplied by d. Apart, so that the bytes of several groups are under way before the first is
 * needed. wide: the row begins at a multiple of 16 bytes. SPDX-License-Identifier: Apache-2.0 */
#if LANES > 1

/* What of it a format uses: bytes as they come, or numbers that need no more work; factor and summand of a block. */
typedef struct raw8 {
    uint4 q;
    float8 v;
    float d, m;
} raw8;

/* The four bytes of w as numbers, less a number. Set into floats of a magnitude at which a byte's place has the worth
 * 1, and that magnitude taken off: exact, where conversions of bytes are slow on many devices. The magnitude is added to
 * what no compiler knows to be 0, so that it lies in a register: one instruction takes one constant, not two. */
float4 bytes4(uint w, float less)
{
    uint h = w >> 16, zero = get_work_dim() >> 8, even = 0x4B000000u + zero, odd = 0x47000000u + zero;
    return (float4)(as_float((w & 0xFFu) | even), as_float((w & 0xFF00u) | odd), as_float((h & 0xFFu) | even),
                    as_float((h & 0xFF00u) | odd)) -
           (float4)(8388608.0f + less, 32768.0f + less, 8388608.0f + less, 32768.0f + less);
}

float8 bytes8(uint2 w, float less)
{
    return (float8)(bytes4(w.x, less), bytes4(w.y, less));
}

float8 signed8(uint2 w)
{
    return bytes8(w ^ 0x80808080u, 128);
}

/* 8 bytes at an even place. */
uint2 pairs8(const G uchar *p)
{
    return as_uint2(vload4(0, (const G ushort *)p));
}

/* Eight halves from 16 bytes: loaded at once whatever the compiler makes of vloada_half8. */
float8 halves(uint4 v)
{
    return vload_half8(0, (const half *)&v);
}

float8 bf16s(uint4 v)
{
    return as_float8((uint8)(v.x << 16, v.x & 0xFFFF0000u, v.y << 16, v.y & 0xFFFF0000u, v.z << 16, v.z & 0xFFFF0000u,
                             v.w << 16, v.w & 0xFFFF0000u));
}

/* ---- Plain formats, and blocks as the file has them ---- */

raw8 raw_eight_f32(const G uchar *row, int i, int wide)
{
    const G float *p = (const G float *)row + 8 * i;
    raw8 r;
    r.v = wide ? (float8)(((const G float4 *)p)[0], ((const G float4 *)p)[1]) : vload8(0, p);
    return r;
}

float8 eight_f32(raw8 r, int i, int wide, float *d)
{
    *d = 1;
    return r.v;
}

raw8 raw_eight_f16(const G uchar *row, int i, int wide)
{
    const G half *p = (const G half *)row + 8 * i;
    raw8 r;
    if (wide)
        r.q = *(const G uint4 *)p;
    else
        r.v = vload_half8(0, p);
    return r;
}

float8 eight_f16(raw8 r, int i, int wide, float *d)
{
    *d = 1;
    return wide ? halves(r.q) : r.v;
}

raw8 raw_eight_bf16(const G uchar *row, int i, int wide)
{
    const G ushort *p = (const G ushort *)row + 8 * i;
    raw8 r;
    r.q = wide ? *(const G uint4 *)p : as_uint4(vload8(0, p));
    return r;
}

float8 eight_bf16(raw8 r, int i, int wide, float *d)
{
    *d = 1;
    return bf16s(r.q);
}

raw8 raw_eight_e4m3(const G uchar *row, int i, int wide)
{
    raw8 r;
    r.q.xy = as_uint2(vload8(0, row + 8 * i));
    return r;
}

float8 eight_e4m3(raw8 r, int i, int wide, float *d)
{
    uchar8 b = as_uchar8(r.q.xy);
    *d = 1;
    return (float8)(from_e4m3(b.s0), from_e4m3(b.s1), from_e4m3(b.s2), from_e4m3(b.s3), from_e4m3(b.s4),
                    from_e4m3(b.s5), from_e4m3(b.s6), from_e4m3(b.s7));
}

raw8 raw_eight_q8_0(const G uchar *row, int i, int wide)
{
    const G uchar *p = row + 34 * (i / 4);
    raw8 r;
    r.q.xy = pairs8(p + 2 + i % 4 * 8);
    r.d = half_at(p);
    return r;
}

float8 eight_q8_0(raw8 r, int i, int wide, float *d)
{
    *d = r.d;
    return signed8(r.q.xy);
}

/* Blocks of 32 in 4 bits: elements 0 to 15 are the low halves of the 16 bytes. */
float8 nibbles(uint2 w, int i, float less)
{
    return bytes8((w >> (uint)(i % 4 / 2 * 4)) & 0x0F0F0F0Fu, less);
}

raw8 raw_eight_q4_0(const G uchar *row, int i, int wide)
{
    const G uchar *p = row + 18 * (i / 4);
    raw8 r;
    r.q.xy = pairs8(p + 2 + i % 2 * 8);
    r.d = half_at(p);
    return r;
}

float8 eight_q4_0(raw8 r, int i, int wide, float *d)
{
    *d = r.d;
    return nibbles(r.q.xy, i, 8);
}

raw8 raw_eight_q4_1(const G uchar *row, int i, int wide)
{
    const G uchar *p = row + 20 * (i / 4);
    raw8 r;
    r.q.xy = pairs8(p + 4 + i % 2 * 8);
    r.d = half_at(p);
    r.m = half_at(p + 2);
    return r;
}

float8 eight_q4_1(raw8 r, int i, int wide, float *d)
{
    *d = 1;
    return nibbles(r.q.xy, i, 0) * r.d + r.m;
}

/* A block of Q4_K is nine times 16 bytes. */
raw8 raw_eight_q4_k(const G uchar *row, int i, int wide)
{
    const G uchar *p = row + 144 * (i / 32), *q = p + 16 + i % 32 / 8 * 32 + i % 4 * 8;
    raw8 r;
    scales12(p, i % 32 / 4, &r.d, &r.m);
    r.q.xy = wide ? *(const G uint2 *)q : pairs8(q);
    return r;
}

float8 eight_q4_k(raw8 r, int i, int wide, float *d)
{
    *d = 1;
    return bytes8((r.q.xy >> (uint)(i / 4 % 2 * 4)) & 0x0F0F0F0Fu, 0) * r.d - r.m;
}

/* Six bits: four of low, two of high. s: which 32 of 256. */
float8 sixes(uint2 low, uint2 high, int s)
{
    low = (low >> (uint)(s % 4 / 2 * 4)) & 0x0F0F0F0Fu;
    high = (high >> (uint)(s % 4 * 2)) & 0x03030303u;
    return bytes8(low | high << 4u, 32);
}

raw8 raw_eight_q6_k(const G uchar *row, int i, int wide)
{
    const G uchar *p = row + 210 * (i / 32);
    int s = i % 32 / 4, q = i % 4 * 8;
    raw8 r;
    r.q.xy = pairs8(p + s / 4 * 64 + s % 2 * 32 + q);
    r.q.zw = pairs8(p + 128 + s / 4 * 32 + q);
    r.d = half_at(p + 208) * (float)((const G char *)p)[192 + 2 * s + q / 16];
    return r;
}

float8 eight_q6_k(raw8 r, int i, int wide, float *d)
{
    *d = r.d;
    return sixes(r.q.xy, r.q.zw, i % 32 / 4);
}

/* ---- Rows whose blocks are taken apart (../ocl_weight.c): k elements, codes first, each plane at a multiple of its
 * blocks' size ---- */

#ifdef PLANES
/* 16 elements, of which planes_q8_0 makes one half. */
raw8 raw_planes_q8_0(const G uchar *row, int i, int k)
{
    const G uint2 *p = (const G uint2 *)(row + 16 * i);
    raw8 r;
    r.q = WIDE ? *(const G uint4 *)p : (uint4)(p[0], p[1]);
    r.d = half_at(row + k + i / 2 * 2);
    return r;
}

float8 planes_q8_0(raw8 r, int i, int half_i, float *d)
{
    *d = r.d;
    return signed8(half_i ? r.q.zw : r.q.xy);
}

raw8 raw_planes_q4_0(const G uchar *row, int i, int k)
{
    raw8 r;
    r.q.xy = *(const G uint2 *)(row + i / 4 * 16 + i % 2 * 8);
    r.d = half_at(row + k / 2 + i / 4 * 2);
    return r;
}

float8 planes_q4_0(raw8 r, int i, int half_i, float *d)
{
    return eight_q4_0(r, i, 0, d);
}

raw8 raw_planes_q4_1(const G uchar *row, int i, int k)
{
    const G uchar *d = row + k / 2 + i / 4 * 4;
    raw8 r;
    r.q.xy = *(const G uint2 *)(row + i / 4 * 16 + i % 2 * 8);
    r.d = half_at(d);
    r.m = half_at(d + 2);
    return r;
}

float8 planes_q4_1(raw8 r, int i, int half_i, float *d)
{
    return eight_q4_1(r, i, 0, d);
}

raw8 raw_planes_q6_k(const G uchar *row, int i, int k)
{
    int b = i / 32, s = i % 32 / 4, q = i % 4 * 8;
    raw8 r;
    r.q.xy = *(const G uint2 *)(row + b * 128 + s / 4 * 64 + s % 2 * 32 + q);
    r.q.zw = *(const G uint2 *)(row + k / 2 + b * 64 + s / 4 * 32 + q);
    r.d = half_at(row + k / 16 * 13 + b * 2) * (float)((const G char *)row)[k / 4 * 3 + b * 16 + 2 * s + q / 16];
    return r;
}

float8 planes_q6_k(raw8 r, int i, int half_i, float *d)
{
    return eight_q6_k(r, i, 0, d);
}
#endif

float mac8(float8 a, float8 b, float s)
{
    s = fma(a.s0, b.s0, s);
    s = fma(a.s1, b.s1, s);
    s = fma(a.s2, b.s2, s);
    s = fma(a.s3, b.s3, s);
    s = fma(a.s4, b.s4, s);
    s = fma(a.s5, b.s5, s);
    s = fma(a.s6, b.s6, s);
    return fma(a.s7, b.s7, s);
}
#endif
