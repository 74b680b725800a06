/* Any format read in groups, and packing into the formats of cache planes. SPDX-License-Identifier: Apache-2.0 */

/* Group g of a row in any format that unpack.cl knows. */
void unpack_any(int fmt, const G uchar *row, int g, float16 *a, float16 *b)
{
    switch (fmt) {
#define CASE(F, f)                                                                                                     \
    case FMT_##F:                                                                                                      \
        unpack_##f(row, g, a, b);                                                                                      \
        break;
        CASE(F32, f32)
        CASE(F16, f16)
        CASE(BF16, bf16)
        CASE(F8_E4M3, e4m3)
        CASE(Q4_0, q4_0)
        CASE(Q4_1, q4_1)
        CASE(Q5_0, q5_0)
        CASE(Q5_1, q5_1)
        CASE(Q8_0, q8_0)
        CASE(MXFP4, mxfp4)
        CASE(Q2_K, q2_k)
        CASE(Q3_K, q3_k)
        CASE(Q4_K, q4_k)
        CASE(Q5_K, q5_k)
        CASE(Q6_K, q6_k)
#undef CASE
    }
}

float from_e4m3(uint u)
{
    uint body = u & 0x7Fu;
    float f = body == 0x7F ? as_float(0x7FC00000u)
              : body >= 8  ? as_float((body << 20) + (120u << 23))
                           : (float)body * (1.0f / 512.0f);
    return as_float(as_uint(f) | (u & 0x80u) << 24);
}

/* One element of a plain format. */
float ld_plain(const G uchar *p, int fmt, long i)
{
    return fmt == FMT_F8_E4M3 ? from_e4m3(p[i]) : ld(p, fmt, i);
}

/* Saturates at 448; round to nearest even. */
uchar e4m3_of(float v)
{
    uint u = as_uint(v), sign = u >> 24 & 0x80u;
    float m = fabs(v);
    if (isnan(v))
        return (uchar)(sign | 0x7Fu);
    if (m >= 448.0f)
        return (uchar)(sign | 0x7Eu);
    if (m < 0x1p-6f)
        return (uchar)(sign | (uint)rint(m * 512.0f));
    uint b = as_uint(m);
    b += 0x7FFFFu + (b >> 20 & 1u);
    return (uchar)(sign | ((min(b, 0x43E00000u) - (120u << 23)) >> 20));
}

void st_plain(G uchar *p, int fmt, long i, float v)
{
    if (fmt == FMT_F8_E4M3)
        p[i] = e4m3_of(v);
    else
        st(p, fmt, i, v);
}

int code_of(float v, int low, int high)
{
    return v > (float)low ? v < (float)high ? (int)v : high : low;
}

/* 32 floats to a block of Q8_0 or Q4_0, by the reference's rules. */
void pack32(G uchar *row, int fmt, int g, const float *x)
{
    if (fmt == FMT_Q8_0) {
        G uchar *p = row + 34 * g;
        float peak = 0;
        for (int i = 0; i < 32; i++)
            peak = fabs(x[i]) > peak ? fabs(x[i]) : peak;
        float d = peak / 127.0f, inverse = d != 0 ? 1.0f / d : 0.0f;
        vstore_half_rte(d, 0, (G half *)p);
        for (int i = 0; i < 32; i++) {
            float v = fabs(x[i]) * inverse;
            int q = v > 0 ? v < 127 ? (int)v : 127 : 0;
            q += q < 127 && v - (float)q >= 0.5f;
            p[2 + i] = (uchar)(x[i] < 0 ? -q : q);
        }
    } else {
        G uchar *p = row + 18 * g;
        float peak = x[0];
        for (int i = 1; i < 32; i++)
            peak = fabs(x[i]) > fabs(peak) ? x[i] : peak;
        float d = peak / -8.0f, inverse = d != 0 ? 1.0f / d : 0.0f;
        vstore_half_rte(d, 0, (G half *)p);
        for (int i = 0; i < 16; i++) {
            int lo = code_of(x[i] * inverse + 8.5f, 0, 15), hi = code_of(x[i + 16] * inverse + 8.5f, 0, 15);
            p[2 + i] = (uchar)(lo | hi << 4);
        }
    }
}
