/* Ops on single elements and on whole rows: arithmetic, copies, gathers. A work-item takes EPT elements of one vector
 * (dimension 0) of vector VECTOR(). SPDX-License-Identifier: Apache-2.0 */

#define FIRST   ((int)get_global_id(0) * EPT)
#define LAST(n) min((n), FIRST + EPT)

__kernel void each(const G uchar *a, const G uchar *b, G uchar *y, const G uchar *counts, const lp_each p)
{
    int k = VECTOR();
    if (k >= rows_of(counts, &p.rows) * p.per_row)
        return;
    a += at(&p.a, k);
    b += p.b.fmt ? at(&p.b, p.b_one ? 0 : k) : 0;
    y += at(&p.y, k);
    int first = FIRST, last = LAST(p.y.width);
    switch (p.op) {
    case LP_EACH_ADD:
        for (int i = first; i < last; i++)
            st(y, p.y.fmt, i, ld(a, p.a.fmt, i) + ld(b, p.b.fmt, i));
        break;
    case LP_EACH_MUL:
        for (int i = first; i < last; i++)
            st(y, p.y.fmt, i, ld(a, p.a.fmt, i) * ld(b, p.b.fmt, i));
        break;
    case LP_EACH_SCALE:
        for (int i = first; i < last; i++)
            st(y, p.y.fmt, i, fma(ld(a, p.a.fmt, i), p.scale, p.bias));
        break;
    case LP_EACH_COPY:
        for (int i = first; i < last; i++)
            st_plain(y, p.y.fmt, i, ld_plain(a, p.a.fmt, i));
        break;
    default:
        for (int i = first; i < last; i++) {
            float x = ld(a, p.a.fmt, i);
            st(y, p.y.fmt, i,
               p.op == LP_EACH_GLU ? gated(p.act, p.limit, x, ld(b, p.b.fmt, i))
                                   : activate(p.act, p.limit > 0 && x > p.limit ? p.limit : x));
        }
    }
}

/* A vector's bytes as they are; p.y.width counts bytes. */
__kernel void copy_bytes(const G uchar *a, G uchar *y, const G uchar *counts, const lp_each p)
{
    int k = VECTOR();
    if (k >= rows_of(counts, &p.rows) * p.per_row)
        return;
    a += at(&p.a, k);
    y += at(&p.y, k);
    for (int i = FIRST; i < LAST(p.y.width); i++)
        y[i] = a[i];
}

__kernel void fill_bytes(G uchar *y, const ulong off, const ulong n, const uint pattern, const uint step)
{
    ulong i = get_global_id(0);
    if (i < n)
        y[off + i] = (uchar)(pattern >> 8 * (i % step));
}

/* Groups of 32 in any format to a plain one: COPY, and GATHER_ROWS where ids are given. */
__kernel void unpack_rows(const G uchar *a, const G uchar *idx, G uchar *y, const G uchar *counts, const lp_select p)
{
    int k = VECTOR(), g = get_global_id(0), id = k;
    if (k >= rows_of(counts, &p.rows) * p.per_row)
        return;
    if (p.idx.fmt)
        id = *(const G int *)(idx + at(&p.idx, k));
    float v[32];
    float16 lo = 0, hi = 0;
    int have = id >= 0 && id < p.na;
    y += at(&p.y, k);
    int n = min(32, p.y.width - 32 * g);
    if (n < 32) { /* plain formats only */
        for (int i = 0; i < n; i++)
            st(y, p.y.fmt, 32 * g + i, have ? ld_plain(a + at(&p.a, id), p.a.fmt, 32 * g + i) : 0.0f);
        return;
    }
    if (have)
        unpack_any(p.a.fmt, a + at(&p.a, id), g, &lo, &hi);
    vstore16(lo, 0, v);
    vstore16(hi, 1, v);
    for (int i = 0; i < 32; i++)
        st(y, p.y.fmt, 32 * g + i, v[i]);
}

/* Plain to block format. */
__kernel void pack_rows(const G uchar *a, G uchar *y, const G uchar *counts, const lp_each p)
{
    int k = VECTOR(), g = get_global_id(0);
    if (k >= rows_of(counts, &p.rows) * p.per_row)
        return;
    float v[32];
    a += at(&p.a, k);
    for (int i = 0; i < 32; i++)
        v[i] = ld_plain(a, p.a.fmt, 32 * g + i);
    pack32(y + at(&p.y, k), p.y.fmt, g, v);
}

__kernel void concat_rows(const G uchar *a, const G uchar *b, G uchar *y, const G uchar *counts, const lp_select p)
{
    int k = VECTOR();
    if (k >= rows_of(counts, &p.rows))
        return;
    a += at(&p.a, k);
    b += at(&p.b, k);
    y += at(&p.y, k);
    for (int i = FIRST; i < LAST(p.y.width); i++)
        st(y, p.y.fmt, i, i < p.a.width ? ld(a, p.a.fmt, i) : ld(b, p.b.fmt, i - p.a.width));
}

__kernel void rows_select(const G uchar *a, const G uchar *b, const G uchar *idx, G uchar *y, const G uchar *counts,
                          const lp_select p)
{
    int k = VECTOR();
    if (k >= rows_of(counts, &p.rows))
        return;
    int from = *(const G int *)(idx + at(&p.idx, k));
    a += at(&p.a, k);
    b += at(&p.b, from >= 0 && from < p.nb ? from : 0);
    y += at(&p.y, k);
    for (int i = FIRST; i < LAST(p.y.width); i++)
        st(y, p.y.fmt, i, from < 0 ? ld(a, p.a.fmt, i) : from < p.nb ? ld(b, p.b.fmt, i) : 0.0f);
}

/* a: host ids, b: sampled, idx: from. */
__kernel void ids_select(const G uchar *a, const G uchar *b, const G uchar *idx, G uchar *y, const G uchar *counts,
                         const lp_select p)
{
    int i = get_global_id(0);
    if (i >= rows_of(counts, &p.rows))
        return;
    int from = ((const G int *)(idx + p.idx.off))[i];
    ((G int *)(y + p.y.off))[i] = from < 0      ? ((const G int *)(a + p.a.off))[i]
                                  : from < p.nb ? ((const G int *)(b + p.b.off))[from]
                                                : -1;
}
