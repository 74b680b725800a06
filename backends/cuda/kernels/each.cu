/* Ops on elements and on whole rows: arithmetic, copies, gathers, choices, joining experts. A thread takes eight
 * neighbouring elements, in 16-byte accesses where the vectors lie so. Grid: x over the elements of a vector, y over
 * vectors; both are walked, so that any grid is right. Bound by memory; at few rows by the launch.
 * SPDX-License-Identifier: Apache-2.0 */
#include "async.cuh"
#include "unpack.cuh"

/* Eight elements at e, fewer at a vector's end. */
DEV void ld_some(const uchar *p, int fmt, int e, int n, float v[8])
{
    if (n >= 8) {
        ld8(p, fmt, e, is_aligned(p, 16), v);
        return;
    }
    for (int i = 0; i < 8; i++)
        v[i] = i < n ? ld(p, fmt, e + i) : 0.0f;
}

DEV void st_some(uchar *p, int fmt, int e, int n, const float v[8])
{
    if (n >= 8) {
        st8(p, fmt, e, is_aligned(p, 16), v);
        return;
    }
    for (int i = 0; i < 8; i++)
        if (i < n)
            st(p, fmt, e + i, v[i]);
}

DEV float one_of(const lp_each &p, float x, float u)
{
    switch (p.op) {
    case LP_EACH_ADD:
        return add(x, u);
    case LP_EACH_MUL:
        return mul(x, u);
    case LP_EACH_SCALE:
        return fmaf(x, p.scale, p.bias);
    default:
        return gated(p.act, p.limit, x, p.op == LP_EACH_GLU, u);
    }
}

extern "C" __global__ void each(const uchar *a, const uchar *b, uchar *y, const uchar *counts, const lp_each p)
{
    grid_go();
    grid_wait();
    int n = rows_of(counts, p.rows) * p.per_row;
    FOR_VECTORS(k, n)
    {
        const uchar *av = a + at(p.a, k), *bv = p.b.fmt ? b + at(p.b, p.b_one ? 0 : k) : 0;
        uchar *yv = y + at(p.y, k);
        FOR_EIGHTS(e, p.y.width)
        {
            int left = p.y.width - e;
            float v[8], u[8];
            if (p.op == LP_EACH_COPY) { /* F8 among them */
                for (int i = 0; i < 8 && i < left; i++)
                    st_plain(yv, p.y.fmt, e + i, ld_plain(av, p.a.fmt, e + i));
                continue;
            }
            ld_some(av, p.a.fmt, e, left, v);
            for (int i = 0; i < 8; i++)
                u[i] = 0;
            if (p.b.fmt)
                ld_some(bv, p.b.fmt, e, left, u);
            for (int i = 0; i < 8; i++)
                v[i] = one_of(p, v[i], u[i]);
            st_some(yv, p.y.fmt, e, left, v);
        }
    }
}

/* A vector's bytes as they are; p.y.width counts bytes. A thread takes 16. */
extern "C" __global__ void copy_bytes(const uchar *a, uchar *y, const uchar *counts, const lp_each p)
{
    grid_go();
    grid_wait();
    int n = rows_of(counts, p.rows) * p.per_row;
    FOR_VECTORS(k, n)
    {
        const uchar *av = a + at(p.a, k);
        uchar *yv = y + at(p.y, k);
        int wide = is_aligned(av, 16) && is_aligned(yv, 16), step = 16 * (int)(gridDim.x * blockDim.x);
        for (int e = 16 * (int)(blockIdx.x * blockDim.x + threadIdx.x); e < p.y.width; e += step) {
            if (wide && e + 16 <= p.y.width) {
                uint4 v = ld_16(av + e);
                st_16(yv + e, v.x, v.y, v.z, v.w);
            } else {
                for (int i = e; i < e + 16 && i < p.y.width; i++)
                    yv[i] = av[i];
            }
        }
    }
}

/* Groups of 8 in any format to a plain one: COPY, and GATHER_ROWS where ids are given. */
extern "C" __global__ void unpack_rows(const uchar *a, const uchar *idx, uchar *y, const uchar *counts,
                                       const lp_select p)
{
    grid_go();
    grid_wait();
    int n = rows_of(counts, p.rows) * p.per_row;
    FOR_VECTORS(k, n)
    {
        int id = p.idx.fmt ? *(const int *)(idx + at(p.idx, k)) : k, have = id >= 0 && id < p.na;
        const uchar *av = a + (have ? at(p.a, id) : 0);
        uchar *yv = y + at(p.y, k);
        FOR_EIGHTS(e, p.y.width)
        {
            float v[8];
            int first = e, second = e + 4;
            if (e + 8 > p.y.width) { /* plain formats only */
                for (int i = e; i < p.y.width; i++)
                    st(yv, p.y.fmt, i, have ? ld_plain(av, p.a.fmt, i) : 0.0f);
                continue;
            }
            for (int i = 0; i < 8; i++)
                v[i] = 0;
            if (have)
                group_any(p.a.fmt, av, e / 8, is_aligned(av, 16), v, first, second);
            for (int i = 0; i < 4; i++) {
                st(yv, p.y.fmt, first + i, v[i]);
                st(yv, p.y.fmt, second + i, v[4 + i]);
            }
        }
    }
}

/* Plain to block format: 32 lanes a block. Grid: x over the blocks of a vector, blockDim.x / 32 each. */
extern "C" __global__ void pack_rows(const uchar *a, uchar *y, const uchar *counts, const lp_each p)
{
    grid_go();
    grid_wait();
    int n = rows_of(counts, p.rows) * p.per_row, lane = (int)threadIdx.x % 32, groups = p.y.width / 32;
    int step = (int)(gridDim.x * blockDim.x / 32), first = (int)(blockIdx.x * blockDim.x / 32);
    FOR_VECTORS(k, n)
    {
        const uchar *av = a + at(p.a, k);
        uchar *yv = y + at(p.y, k);
        for (int g0 = first; g0 < groups; g0 += step) {
            int g = g0 + (int)threadIdx.x / 32, have = g < groups;
            pack32(yv, p.y.fmt, g, have ? ld_plain(av, p.a.fmt, 32 * (int64_t)g + lane) : 0.0f, have);
        }
    }
}

extern "C" __global__ void concat_rows(const uchar *a, const uchar *b, uchar *y, const uchar *counts, const lp_select p)
{
    grid_go();
    grid_wait();
    int n = rows_of(counts, p.rows);
    FOR_VECTORS(k, n)
    {
        const uchar *av = a + at(p.a, k), *bv = b + at(p.b, k);
        uchar *yv = y + at(p.y, k);
        FOR_EIGHTS(e, p.y.width)
        {
            for (int i = e; i < e + 8 && i < p.y.width; i++)
                st(yv, p.y.fmt, i, i < p.a.width ? ld(av, p.a.fmt, i) : ld(bv, p.b.fmt, i - p.a.width));
        }
    }
}

extern "C" __global__ void rows_select(const uchar *a, const uchar *b, const uchar *idx, uchar *y, const uchar *counts,
                                       const lp_select p)
{
    grid_go();
    grid_wait();
    int n = rows_of(counts, p.rows);
    FOR_VECTORS(k, n)
    {
        int from = *(const int *)(idx + at(p.idx, k)), fmt = from < 0 ? p.a.fmt : p.b.fmt;
        const uchar *v = from < 0 ? a + at(p.a, k) : b + at(p.b, from < p.nb ? from : 0);
        uchar *yv = y + at(p.y, k);
        FOR_EIGHTS(e, p.y.width)
        {
            float x[8];
            int left = p.y.width - e;
            for (int i = 0; i < 8; i++)
                x[i] = 0;
            if (from < p.nb)
                ld_some(v, fmt, e, left, x);
            st_some(yv, p.y.fmt, e, left, x);
        }
    }
}

/* a: host ids, b: sampled, idx: from. */
extern "C" __global__ void ids_select(const uchar *a, const uchar *b, const uchar *idx, uchar *y, const uchar *counts,
                                      const lp_select p)
{
    grid_go();
    grid_wait();
    int n = rows_of(counts, p.rows), step = (int)(gridDim.x * blockDim.x);
    for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < n; i += step) {
        int from = ((const int *)(idx + p.idx.off))[i];
        ((int *)(y + p.y.off))[i] = from < 0      ? ((const int *)(a + p.a.off))[i]
                                    : from < p.nb ? ((const int *)(b + p.b.off))[from]
                                                  : -1;
    }
}

extern "C" __global__ void moe_combine(const uchar *x, const uchar *w, uchar *y, const uchar *counts,
                                       const lp_combine p)
{
    grid_go();
    grid_wait();
    int n = rows_of(counts, p.rows);
    FOR_VECTORS(k, n)
    {
        const uchar *wv = w + at(p.w, k);
        uchar *yv = y + at(p.y, k);
        FOR_EIGHTS(e, p.y.width)
        {
            int left = p.y.width - e;
            float s[8], v[8];
            for (int i = 0; i < 8; i++)
                s[i] = 0;
            for (int j = 0; j < p.k; j++) {
                float f = ld(wv, p.w.fmt, j);
                ld_some(x + at(p.x, (int64_t)k * p.k + j), p.x.fmt, e, left, v);
                for (int i = 0; i < 8; i++)
                    s[i] = fmaf(f, v[i], s[i]);
            }
            st_some(yv, p.y.fmt, e, left, s);
        }
    }
}
