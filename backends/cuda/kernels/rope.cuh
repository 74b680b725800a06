/* Rotation: angles and pairs, the same arithmetic wherever it is done. SPDX-License-Identifier: Apache-2.0 */
#ifndef ROPE_CUH
#define ROPE_CUH

#include "dev.cuh"

/* Sine and cosine of pos * freq: the product's error and two parts of 2 pi keep the angle exact to a float's last
 * bits however far the position. */
DEV void turn(int pos, float freq, float &sine, float &cosine)
{
    float hi = mul((float)pos, freq), lo = fmaf((float)pos, freq, -hi);
    float n = rintf(mul(hi, 0.15915494309189535f));
    float r = fmaf(-n, 6.28318548202514648f, hi);
    r = add(fmaf(n, 1.74845553146e-7f, r), lo);
#if defined(__CUDA_ARCH__)
    sincospif(mul(r, 0.31830988618379067f), &sine, &cosine); /* has no way for large arguments: little to fetch */
#else
    sine = sinf(r);
    cosine = cosf(r);
#endif
}

/* The position that pair i uses: sections in order. */
DEV int which_pos(const lp_rope &p, int i)
{
    int which = 0;
    if (p.n_pos > 1)
        for (int end = p.section[0]; which < p.n_pos - 1 && i >= end; end += p.section[which])
            which++;
    return which;
}

DEV void turn_pair(float u, float v, float sine, float cosine, float &a, float &b)
{
    a = fmaf(u, cosine, -mul(v, sine));
    b = fmaf(u, sine, mul(v, cosine));
}

#endif
