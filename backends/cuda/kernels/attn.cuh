/* What the kernels of attention through matrix units share: powers of two, copies that may bring zeros, a row's end.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef ATTN_CUH
#define ATTN_CUH

#include "async.cuh"

#if defined(ASYNC) && WAVE == 32

#define LOG2E 1.4426950408889634f

DEV float two_to(float v)
{
#if defined(SIMT_H)
    return exp2f(v);
#else
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
#endif
}

/* What sums relative to m count relative to top, a maximum; nothing where there was no key. */
DEV float part_factor(float m, float top)
{
    return m == -INFINITY ? 0.0f : two_to(m - top);
}

/* 16 bytes into shared memory in the background, or as many zeros. */
DEV void copy_16_or_0(void *shared, const void *global, bool there)
{
#if defined(SIMT_H)
    memset(shared, 0, 16);
    if (there)
        memcpy(shared, global, 16);
#else
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(shared_at(shared)), "l"(global),
                 "r"(there ? 16 : 0)
                 : "memory");
#endif
}

/* The last factor of a row, the sink's share in it; 0: nothing was seen. most counts powers of two. */
DEV float last_of(const lp_attn &p, const uchar *sinks, int head, float most, float total)
{
    if (!(total > 0 || isnan(total)))
        return 0;
    if (!p.sinks.fmt)
        return 1.0f / total;
    float sink = ld(sinks + p.sinks.off, p.sinks.fmt, head) * LOG2E, m = fmaxf(most, sink), keep = two_to(most - m);
    return keep / (total * keep + two_to(sink - m));
}

DEV uchar *y_at(uchar *y, const lp_attn &p, int row, int head)
{
    return y + p.y.off + row * p.y.s0 + head * p.y.s1;
}

/* Element e of it: in a row, or in bf16 in panels, rounded as gemm_x_bf16 does. */
DEV void y_st(uchar *y, const lp_attn &p, int row, int head, int e, float v)
{
    uchar *to = y_at(y, p, row, head);
    if (p.panels.turn)
        ((uint16_t *)(to + panel_at(p.panels, row, e)))[panel_e(p.panels, row, e)] =
            (uint16_t)pack_two(v, 0.0f, INFER_FMT_BF16);
    else
        st(to, p.y.fmt, e, v);
}

#endif
#endif
