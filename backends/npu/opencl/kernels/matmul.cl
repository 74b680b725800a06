/* y = x W^T with weights in the format that UNPACK names, rows in format XF. Here what all kernels of a product share,
 * and those for devices that run a work-item as a loop: CI columns an item, one (mv1) or MVR rows for each group of 32
 * that is unpacked. Both add in the same order, so that a row's result does not depend on its company.
 * SPDX-License-Identifier: Apache-2.0 */

/* Epilogue steps on one value of row (i, j), column c. */
float finish(const lp_mm *p, float v, int pair, int c, const G uchar *bias, const G uchar *e0, const G uchar *e1,
             const G uchar *e2, const G uchar *e3)
{
    v *= p->scale;
    if (p->bias.fmt)
        v += ld(bias + p->bias.off, p->bias.fmt, c);
    for (int s = 0; s < p->n_epi; s++) {
        const lp_epi *e = &p->epi[s];
        const G uchar *b = s == 0 ? e0 : s == 1 ? e1 : s == 2 ? e2 : e3;
        switch (e->kind) {
        case EPI_BIAS:
            v += ld(b + e->t.off, e->t.fmt, c);
            break;
        case EPI_RESIDUAL:
            v += ld(b + at(&e->t, pair), e->t.fmt, c);
            break;
        case EPI_MUL:
            v *= ld(b + at(&e->t, pair), e->t.fmt, c);
            break;
        case EPI_ACT:
            v = activate(e->arg, v);
            break;
        case EPI_SCALE:
            v *= e->factor;
            break;
        }
    }
    return v;
}

/* What a product is of: the rows of a work-group, their expert, whether there is one. */
int expert_of(const lp_mm *p, const G uchar *ids, int r0)
{
    return p->ids.fmt ? ((const G int *)(ids + at(&p->ids, r0 / p->choices)))[r0 % p->choices] : 0;
}

#if LANES == 1

float16 ld16(const G uchar *p, long i)
{
#if XF == FMT_F32
    return vload16(0, (const G float *)p + i);
#elif XF == FMT_F16
    return vload_half16(0, (const G half *)p + i);
#else
    return as_float16(convert_uint16(vload16(0, (const G ushort *)p + i)) << 16);
#endif
}

#define MV(NAME, R)                                                                                                    \
    __kernel void NAME(const G uchar *x, const G uchar *w, const G uchar *ids, const G uchar *bias, const G uchar *e0, \
                       const G uchar *e1, const G uchar *e2, const G uchar *e3, G uchar *y, const G uchar *counts,     \
                       const lp_mm p)                                                                                 \
    {                                                                                                                  \
        int r0 = (int)get_group_id(1) * R, rows = rows_of(counts, &p.rows) * p.choices;                                \
        if (r0 >= rows)                                                                                                \
            return;                                                                                                    \
        int m = min(R, rows - r0), expert = expert_of(&p, ids, r0), whole = p.k / 32;                                  \
        int have = expert >= 0 && expert < p.n_experts;                                                                \
        const G uchar *xr[R];                                                                                          \
        for (int r = 0; r < R; r++)                                                                                    \
            xr[r] = x + at(&p.x, r0 + min(r, m - 1));                                                                  \
        w += p.w_off + (have ? expert : 0) * p.w_expert;                                                               \
        for (int ci = 0; ci < CI; ci++) {                                                                              \
            int c = (int)get_group_id(0) * CI + ci;                                                                    \
            const G uchar *row = w + min(c, p.n - 1) * p.w_row;                                                        \
            float16 s[R];                                                                                              \
            float rest[R];                                                                                             \
            for (int r = 0; r < R; r++) {                                                                              \
                s[r] = 0;                                                                                              \
                rest[r] = 0;                                                                                           \
            }                                                                                                          \
            for (int g = 0; g < whole && have; g++) {                                                                  \
                float16 a, b;                                                                                          \
                UNPACK(row, g, &a, &b);                                                                                \
                for (int r = 0; r < R; r++) {                                                                          \
                    s[r] = fma(a, ld16(xr[r], 32 * g), s[r]);                                                          \
                    s[r] = fma(b, ld16(xr[r], 32 * g + 16), s[r]);                                                     \
                }                                                                                                      \
            }                                                                                                          \
            TAIL(R)                                                                                                    \
            for (int r = 0; r < m && c < p.n; r++)                                                                     \
                st(y + at(&p.y, r0 + r), p.y.fmt, c,                                                                   \
                   finish(&p, have ? rest[r] + sum8(s[r].lo + s[r].hi) : 0.0f, r0 + r, c, bias, e0, e1, e2, e3));      \
        }                                                                                                              \
    }

/* What is left of K after whole groups; only plain formats have any. */
#ifdef PLAIN
#define TAIL(R)                                                                                                        \
    for (int k = 32 * whole; k < p.k && have; k++) {                                                                   \
        float v = ld_plain(row, PLAIN, k);                                                                             \
        for (int r = 0; r < R; r++)                                                                                    \
            rest[r] = fma(v, ld(xr[r], XF, k), rest[r]);                                                               \
    }
#else
#define TAIL(R)
#endif

MV(mv1, 1)
MV(mvr, MVR)

#endif
