/* y = x W^T with weights in the format that UNPACK names, rows in format XF. mv1 and mvr: a work-group has LK lanes along
 * K for each of LC columns, and CI columns a lane; each unpacked group of 32 serves up to MVR rows. Both add in the same
 * order, so that a row's result does not depend on its company. tile (GPU-like devices): TILE x TILE outputs a
 * work-group through local memory. SPDX-License-Identifier: Apache-2.0 */

/* Epilogue steps on one value of row (i, j), column c. */
float finish(const ocl_mm *p, float v, int pair, int c, const G uchar *bias, const G uchar *e0, const G uchar *e1,
             const G uchar *e2, const G uchar *e3)
{
    v *= p->scale;
    if (p->bias.fmt)
        v += ld(bias + p->bias.off, p->bias.fmt, c);
    for (int s = 0; s < p->n_epi; s++) {
        const ocl_epi *e = &p->epi[s];
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

/* Sums along K by lane: on CPUs a vector, on GPUs a number. */
#if LANES == 1
typedef float16 acc_t;
#define MAC(s, a, b) s = fma(a, b, s)
float total(acc_t s)
{
    return sum8(s.lo + s.hi);
}
#else
typedef float acc_t;
#define MAC1(S, A, B, i) S = fma((A).s##i, (B).s##i, S);
#define MAC(S, A, B)                                                                                                   \
    MAC1(S, A, B, 0) MAC1(S, A, B, 1) MAC1(S, A, B, 2) MAC1(S, A, B, 3) MAC1(S, A, B, 4) MAC1(S, A, B, 5)              \
    MAC1(S, A, B, 6) MAC1(S, A, B, 7) MAC1(S, A, B, 8) MAC1(S, A, B, 9) MAC1(S, A, B, a) MAC1(S, A, B, b)              \
    MAC1(S, A, B, c) MAC1(S, A, B, d) MAC1(S, A, B, e) MAC1(S, A, B, f)
#define total(s) (s)
#endif

#define MV(NAME, R)                                                                                                    \
    __kernel void NAME(const G uchar *x, const G uchar *w, const G uchar *ids, const G uchar *bias, const G uchar *e0, \
                       const G uchar *e1, const G uchar *e2, const G uchar *e3, G uchar *y, const G uchar *counts,     \
                       const ocl_mm p)                                                                                 \
    {                                                                                                                  \
        RED(R);                                                                                                        \
        int lane = get_local_id(0) % LK, part = get_local_id(0) / LK, r0 = (int)get_group_id(1) * R;                   \
        int rows = rows_of(counts, &p.rows) * p.choices;                                                               \
        if (r0 >= rows)                                                                                                \
            return;                                                                                                    \
        int m = min(R, rows - r0), expert = 0, whole = p.k / 32;                                                       \
        if (p.ids.fmt)                                                                                                 \
            expert = ((const G int *)(ids + at(&p.ids, r0 / p.choices)))[r0 % p.choices];                              \
        int have = expert >= 0 && expert < p.n_experts;                                                                \
        const G uchar *xr[R];                                                                                          \
        for (int r = 0; r < R; r++)                                                                                    \
            xr[r] = x + at(&p.x, r0 + min(r, m - 1));                                                                  \
        w += p.w_off + (have ? expert : 0) * p.w_expert;                                                               \
        COLUMNS                                                                                                        \
        {                                                                                                              \
            int c = ((int)get_group_id(0) * LC + part) * CI + ci;                                                      \
            const G uchar *row = w + min(c, p.n - 1) * p.w_row;                                                        \
            acc_t s[R];                                                                                                \
            float rest[R];                                                                                             \
            for (int r = 0; r < R; r++) {                                                                              \
                s[r] = 0;                                                                                              \
                rest[r] = 0;                                                                                           \
            }                                                                                                          \
            for (int g = lane; g < whole && have; g += LK) {                                                           \
                float16 a, b;                                                                                          \
                UNPACK(row, g, &a, &b);                                                                                \
                for (int r = 0; r < R; r++) {                                                                          \
                    float16 xa = ld16(xr[r], 32 * g), xb = ld16(xr[r], 32 * g + 16);                                   \
                    MAC(s[r], a, xa);                                                                                  \
                    MAC(s[r], b, xb);                                                                                  \
                }                                                                                                      \
            }                                                                                                          \
            TAIL(R)                                                                                                    \
            for (int r = 0; r < R; r++)                                                                                \
                rest[r] += total(s[r]);                                                                                \
            REDUCE(R)                                                                                                  \
            for (int r = 0; r < R && lane == 0 && c < p.n; r++)                                                        \
                if (r < m)                                                                                             \
                    st(y + at(&p.y, r0 + r), p.y.fmt, c,                                                               \
                       finish(&p, have ? rest[r] : 0.0f, r0 + r, c, bias, e0, e1, e2, e3));                            \
        }                                                                                                              \
    }

/* What is left of K after whole groups; only plain formats have any. */
#ifdef PLAIN
#define TAIL(R)                                                                                                        \
    for (int k = 32 * whole + lane; k < p.k && have; k += LK) {                                                        \
        float v = ld_plain(row, PLAIN, k);                                                                             \
        for (int r = 0; r < R; r++)                                                                                    \
            rest[r] = fma(v, ld(xr[r], XF, k), rest[r]);                                                               \
    }
#else
#define TAIL(R)
#endif

#if LK == 1
#define COLUMNS for (int ci = 0; ci < CI; ci++)
#define RED(R)
#define REDUCE(R)
#else
#define COLUMNS const int ci = 0; /* a barrier in a loop of one turn is more than some compilers bear */
#define RED(R) L float red[R][LC][LK]
#define HALVE(R, h)                                                                                                    \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                                      \
    if (lane < h)                                                                                                      \
        for (int r = 0; r < R; r++)                                                                                    \
            red[r][part][lane] += red[r][part][lane + h];
#define REDUCE(R)                                                                                                      \
    for (int r = 0; r < R; r++)                                                                                        \
        red[r][part][lane] = rest[r];                                                                                  \
    HALVE(R, 16)                                                                                                       \
    HALVE(R, 8)                                                                                                        \
    HALVE(R, 4)                                                                                                        \
    HALVE(R, 2)                                                                                                        \
    HALVE(R, 1)                                                                                                        \
    if (lane == 0)                                                                                                     \
        for (int r = 0; r < R; r++)                                                                                    \
            rest[r] = red[r][part][0];
#if LK != 32
#error "the tree of HALVE is for 32 lanes"
#endif
#endif

MV(mv1, 1)
MV(mvr, MVR)

#if TILE
/* 256 lanes, each TILE / 16 by TILE / 16 outputs; 32 of K a turn. Columns and rows past the end compute on the last. */
#define TQ (TILE / 16)
__kernel void tile(const G uchar *x, const G uchar *w, const G uchar *ids, const G uchar *bias, const G uchar *e0,
                   const G uchar *e1, const G uchar *e2, const G uchar *e3, G uchar *y, const G uchar *counts,
                   const ocl_mm p)
{
    L float wt[32][TILE + 1], xt[32][TILE + 1];
    int l = get_local_id(0), lc = l % 16, lr = l / 16, c0 = (int)get_group_id(0) * TILE, r0 = (int)get_group_id(1) * TILE;
    int rows = rows_of(counts, &p.rows);
    if (r0 >= rows)
        return;
    float s[TQ][TQ];
    for (int i = 0; i < TQ; i++)
        for (int j = 0; j < TQ; j++)
            s[i][j] = 0;
    w += p.w_off;
    int whole = p.k / 32;
    for (int g = 0; g < (p.k + 31) / 32; g++) {
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int j = l; j < TILE; j += 256) {
            const G uchar *row = w + min(c0 + j, p.n - 1) * p.w_row;
            float16 a = 0, b = 0;
            if (g < whole)
                UNPACK(row, g, &a, &b);
#ifdef PLAIN
            else {
                float v[32];
                for (int k = 0; k < 32; k++)
                    v[k] = 32 * g + k < p.k ? ld_plain(row, PLAIN, 32 * g + k) : 0.0f;
                a = vload16(0, v);
                b = vload16(1, v);
            }
#endif
            float v[32];
            vstore16(a, 0, v);
            vstore16(b, 1, v);
            for (int k = 0; k < 32; k++)
                wt[k][j] = v[k];
        }
        for (int i = l; i < TILE * 32; i += 256) {
            int r = i / 32, k = i % 32;
            xt[k][r] = 32 * g + k < p.k ? ld(x + at(&p.x, min(r0 + r, rows - 1)), XF, 32 * g + k) : 0.0f;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int k = 0; k < 32; k++) {
            float a[TQ], b[TQ];
            for (int i = 0; i < TQ; i++) {
                a[i] = xt[k][lr + 16 * i];
                b[i] = wt[k][lc + 16 * i];
            }
            for (int i = 0; i < TQ; i++)
                for (int j = 0; j < TQ; j++)
                    s[i][j] = fma(a[i], b[j], s[i][j]);
        }
    }
    for (int i = 0; i < TQ; i++)
        for (int j = 0; j < TQ; j++) {
            int r = r0 + lr + 16 * i, c = c0 + lc + 16 * j;
            if (r < rows && c < p.n)
                st(y + at(&p.y, r), p.y.fmt, c, finish(&p, s[i][j], r, c, bias, e0, e1, e2, e3));
        }
}
#endif
