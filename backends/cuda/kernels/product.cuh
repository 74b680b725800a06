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

struct epi_bases {
    const uchar *e[LP_MAX_EPI];
};

/* Scale, bias and epilogue steps on one value of row `pair`, column c. */
DEV float finish(const lp_mm &p, float v, int pair, int c, const uchar *bias, const epi_bases &b)
{
    v = mul(v, p.scale);
    if (p.bias.fmt)
        v = add(v, ld(bias + p.bias.off, p.bias.fmt, c));
    UNROLL
    for (int s = 0; s < LP_MAX_EPI; s++) {
        const lp_epi &e = p.epi[s];
        if (s >= p.n_epi)
            break;
        switch (e.kind) {
        case INFER_EPI_BIAS:
            v = add(v, ld(b.e[s] + e.t.off, e.t.fmt, c));
            break;
        case INFER_EPI_RESIDUAL:
            v = add(v, ld(b.e[s] + at(e.t, pair), e.t.fmt, c));
            break;
        case INFER_EPI_MUL:
            v = mul(v, ld(b.e[s] + at(e.t, pair), e.t.fmt, c));
            break;
        case INFER_EPI_ACT:
            v = activate(e.arg, v);
            break;
        case INFER_EPI_SCALE:
            v = mul(v, e.factor);
            break;
        }
    }
    return v;
}

#endif
