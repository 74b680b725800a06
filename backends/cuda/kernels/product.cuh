/* What kernels of matrix products share: a value's way to its place. SPDX-License-Identifier: Apache-2.0 */
#ifndef PRODUCT_CUH
#define PRODUCT_CUH

#include "unpack.cuh"

/* Four elements of a row of x. */
DEV void x4(const uchar *x, int fmt, int i, int wide, float v[4])
{
    if (!wide) {
        for (int k = 0; k < 4; k++)
            v[k] = ld(x, fmt, i + k);
    } else if (fmt == INFER_FMT_F32) {
        uint4 a = ld_16((const float *)x + i);
        v[0] = float_of(a.x), v[1] = float_of(a.y), v[2] = float_of(a.z), v[3] = float_of(a.w);
    } else {
        uint2 a = ld_8((const uint16_t *)x + i);
        two_floats(a.x, fmt, v);
        two_floats(a.y, fmt, v + 2);
    }
}

template <class T> DEV T third(int i, T a, T b, T c)
{
    return i == 0 ? a : i == 1 ? b : c;
}

struct epi_bases {
    const uchar *e[LP_MAX_EPI];
};

/* One epilogue step on a value; operand: what BIAS, RESIDUAL and MUL read. */
DEV float epi_step(int kind, int arg, float factor, float v, float operand)
{
    switch (kind) {
    case INFER_EPI_BIAS:
    case INFER_EPI_RESIDUAL:
        return add(v, operand);
    case INFER_EPI_MUL:
        return mul(v, operand);
    case INFER_EPI_ACT:
        return activate(arg, v);
    case INFER_EPI_SCALE:
        return mul(v, factor);
    }
    return v;
}

/* The steps on a value of row `pair`, column c; from: the bases of their operands. */
DEV float epi_steps(float v, const lp_epi *epi, int n, int pair, int c, const uchar *const *from)
{
    UNROLL
    for (int s = 0; s < LP_MAX_EPI; s++) {
        const lp_epi &e = epi[s];
        float operand = 0;
        if (s >= n)
            break;
        if (e.kind == INFER_EPI_BIAS)
            operand = ld(from[s] + e.t.off, e.t.fmt, c);
        else if (e.kind == INFER_EPI_RESIDUAL || e.kind == INFER_EPI_MUL)
            operand = ld(from[s] + at(e.t, pair), e.t.fmt, c);
        v = epi_step(e.kind, e.arg, e.factor, v, operand);
    }
    return v;
}

/* Scale, bias and epilogue steps on one value of row `pair`, column c. */
DEV float finish(const lp_mm &p, float v, int pair, int c, const uchar *bias, const epi_bases &b)
{
    v = mul(v, p.scale);
    if (p.bias.fmt)
        v = add(v, ld(bias + p.bias.off, p.bias.fmt, c));
    return epi_steps(v, p.epi, p.n_epi, pair, c, b.e);
}

#endif
