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

/* What the epilogue of a value at row `pair`, column c reads: bias, then each step's operand. */
struct epi_values {
    float bias, v[LP_MAX_EPI];
};

DEV void finish_read(epi_values &e, const lp_mm &p, int pair, int c, const uchar *bias, const epi_bases &b)
{
    e.bias = p.bias.fmt ? ld(bias + p.bias.off, p.bias.fmt, c) : 0.0f;
    UNROLL
    for (int s = 0; s < LP_MAX_EPI; s++) {
        const lp_epi &step = p.epi[s];
        e.v[s] = 0;
        if (s >= p.n_epi)
            continue;
        if (step.kind == INFER_EPI_BIAS)
            e.v[s] = ld_far(b.e[s] + step.t.off, step.t.fmt, c);
        else if (step.kind == INFER_EPI_RESIDUAL || step.kind == INFER_EPI_MUL)
            e.v[s] = ld_far(b.e[s] + at(step.t, pair), step.t.fmt, c);
    }
}

/* Scale, bias and epilogue steps on one value. */
DEV float finish_with(const epi_values &e, const lp_mm &p, float v)
{
    v = mul(v, p.scale);
    if (p.bias.fmt)
        v = add(v, e.bias);
    UNROLL
    for (int s = 0; s < LP_MAX_EPI; s++) {
        if (s >= p.n_epi)
            break;
        switch (p.epi[s].kind) {
        case INFER_EPI_BIAS:
        case INFER_EPI_RESIDUAL:
            v = add(v, e.v[s]);
            break;
        case INFER_EPI_MUL:
            v = mul(v, e.v[s]);
            break;
        case INFER_EPI_ACT:
            v = activate(p.epi[s].arg, v);
            break;
        case INFER_EPI_SCALE:
            v = mul(v, p.epi[s].factor);
            break;
        }
    }
    return v;
}

DEV float finish(const lp_mm &p, float v, int pair, int c, const uchar *bias, const epi_bases &b)
{
    epi_values e;
    finish_read(e, p, pair, c, bias, b);
    return finish_with(e, p, v);
}

#endif
