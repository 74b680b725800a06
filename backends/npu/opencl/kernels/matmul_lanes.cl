/* Products on devices with lanes (matmul.cl has what they share). mv1 and mvr: LK lanes take groups along K of one
 * column in turns, neighbours in memory by neighbouring lanes, so that a weight is read in whole lines: bound by those
 * bytes at few rows, where numbers made of them cost little. A group is 8 or 16 elements where the format has an eight_*
 * (eights.cl), else the 32 of UNPACK; mvs, mvg and mvq are the same for several weights, with what follows them. tile: TILE x TILE outputs a work-group through local memory, bound by float
 * arithmetic. A program has the kernels of one kind of op (MAKES_*). WIDE: rows of x, and of plain weights, begin at
 * multiples of 16 bytes. SPDX-License-Identifier: Apache-2.0 */
#if LANES > 1

/* 8 elements of a row of x. */
float8 x8(const G uchar *p, int i)
{
#if !WIDE
    return ld8(p, XF, i);
#elif XF == FMT_F32
    const G float4 *v = (const G float4 *)((const G float *)p + i);
    return (float8)(v[0], v[1]);
#elif XF == FMT_F16
    return halves(*(const G uint4 *)((const G half *)p + i));
#else
    return bf16s(*(const G uint4 *)((const G ushort *)p + i));
#endif
}

/* What raw_* and what eight_* want to know besides; eights that a raw8 has. */
#ifdef PLANES
#define RAW_HOW       p.k
#define EIGHT_HOW(h)  h
#else
#define RAW_HOW       WIDE
#define EIGHT_HOW(h)  WIDE
#endif
#ifndef EIGHTS
#define EIGHTS 1
#endif

#ifdef EIGHT
#define GROUP (8 * EIGHTS)
/* Groups of a lane that are under way at once. Written out: some compilers keep the bytes of a loop over them in memory;
 * the loops over the two columns they unroll. */
#if defined(PLAIN) && PLAIN == FMT_F32
#define TURNS      2
#define EACH(M, R, H) M(0, R, H) M(1, R, H)
#else
#define TURNS      4
#define EACH(M, R, H) M(0, R, H) M(1, R, H) M(2, R, H) M(3, R, H)
#endif
#define RAW_(f) raw_##f
#define RAW(f)  RAW_(f)
#define BYTES   raw8 raw[TURNS][CI];
/* Past the end of K the last group is read again, and not used. */
#define FETCH_TURN(U, R, H)                                                                                            \
    for (int c = 0; c < CI; c++)                                                                                       \
        raw[U][c] = RAW(EIGHT)(row[c], min(g0 + U * LK, whole - 1), RAW_HOW);
#define FETCH_FIRST                                                                                                    \
    if (have && whole) {                                                                                               \
        int g0 = lane;                                                                                                 \
        EACH(FETCH_TURN, , )                                                                                           \
    }
#define USE_TURN(U, R, H)                                                                                              \
    if (g0 + U * LK < whole) {                                                                                         \
        int g = g0 + U * LK;                                                                                           \
        USE_EIGHT(U, 0, R, H)                                                                                          \
        USE_SECOND(U, R, H)                                                                                            \
    }
#define USE_EIGHT(U, E, R, H)                                                                                          \
    {                                                                                                                  \
        float8 a[CI];                                                                                                  \
        float d[CI];                                                                                                   \
        for (int c = 0; c < CI; c++)                                                                                   \
            a[c] = EIGHT(raw[U][c], g, EIGHT_HOW(E), &d[c]);                                                           \
        for (int r = 0; r < R; r++) {                                                                                  \
            float8 v = X8_##H(r, GROUP * g + 8 * E);                                                                   \
            for (int c = 0; c < CI; c++)                                                                               \
                s[r][c] = fma(mac8(a[c], v, 0), d[c], s[r][c]);                                                        \
        }                                                                                                              \
    }
#if EIGHTS == 2
#define USE_SECOND(U, R, H) USE_EIGHT(U, 1, R, H)
#else
#define USE_SECOND(U, R, H)
#endif
#define GROUPS(R, H)                                                                                                   \
    for (int g0 = lane; g0 < whole;) {                                                                                 \
        EACH(USE_TURN, R, H)                                                                                           \
        g0 += TURNS * LK;                                                                                              \
        if (g0 < whole) {                                                                                              \
            EACH(FETCH_TURN, R, H)                                                                                     \
        }                                                                                                              \
    }
#else
#define GROUP 32
#define BYTES
#define FETCH_FIRST
#define GROUPS(R, H)                                                                                                   \
    for (int g = lane; g < whole; g += LK)                                                                             \
        for (int c = 0; c < CI; c++) {                                                                                 \
            float16 a, b;                                                                                              \
            UNPACK(row[c], g, &a, &b);                                                                                 \
            for (int r = 0; r < R; r++) {                                                                              \
                s[r][c] = mac8(a.lo, X8_##H(r, 32 * g), s[r][c]);                                                      \
                s[r][c] = mac8(a.hi, X8_##H(r, 32 * g + 8), s[r][c]);                                                  \
                s[r][c] = mac8(b.lo, X8_##H(r, 32 * g + 16), s[r][c]);                                                 \
                s[r][c] = mac8(b.hi, X8_##H(r, 32 * g + 24), s[r][c]);                                                 \
            }                                                                                                          \
        }
#endif

/* What is left of K after whole groups; only plain formats have any. */
#ifdef PLAIN
#define TAIL(R, H)                                                                                                     \
    for (int k = GROUP * whole + lane; k < p.k && have; k += LK)                                                       \
        for (int c = 0; c < CI; c++) {                                                                                 \
            float v = ld_plain(row[c], PLAIN, k);                                                                      \
            for (int r = 0; r < R; r++)                                                                                \
                s[r][c] = fma(v, X1_##H(r, k), s[r][c]);                                                               \
        }
#else
#define TAIL(R, H)
#endif

/* Where a kernel has its x from: rows as they are (ROWS), or one row that the group norms in local memory (NORM) while
 * its first weights are on their way. There a group has several sets of columns one after the other, and red is free
 * when all have read it. */
#define MEM_ROWS
#define BLOCK_ROWS
#define LOCAL_ROWS
#define X8_ROWS(r, i) x8(xr[r], i)
#define X1_ROWS(r, k) ld(xr[r], XF, k)
#define MAKE_X_ROWS
#define NEXT_ROWS     0
#define FREE_ROWS
#define MEM_NORM      const G uchar *nw,
#define BLOCK_NORM    , const lp_norm_of norm
#define LOCAL_NORM    , L float4 *normed
#define X8_NORM(r, i) (float8)(normed[(i) / 4], normed[(i) / 4 + 1])
#define X1_NORM(r, k) ((const L float *)normed)[k]
#define MAKE_X_NORM   norm_x(xr[0], p.x.fmt, p.k, &norm, nw + norm.w_off, (L float *)normed);
#define NEXT_NORM     (block += get_num_groups(0), block * (LC * CI) < columns)
#define FREE_NORM     barrier(CLK_LOCAL_MEM_FENCE);

/* Of a kernel whose groups are of LC columns' lanes. */
#define GROUP_OF_COLUMNS __attribute__((reqd_work_group_size(LK * LC, 1, 1)))

/* A row of d elements as norm_rows makes it (rows.cl), by its order of additions: lane v of q->lanes sums every
 * q->lanes'th eight, then halves join. Behind the row, from a multiple of 8 on, y has room for the sums. */
void norm_x(const G uchar *x, int fmt, int d, const lp_norm_of *q, const G uchar *w, L float *y)
{
    int me = get_local_id(0), whole = d / 8 * 8, n = d / 4;
    L float *sum = y + (d + 7) / 8 * 8;
    for (int v = me; v < q->lanes; v += 2 * LK * LC) { /* two of its lanes at once, so that their loads are */
        int v2 = v + LK * LC, have2 = v2 < q->lanes;
        float8 t = 0, t2 = 0;
        float rest = 0, rest2 = 0;
        for (int i = 8 * v; i < whole; i += 8 * q->lanes) {
            int in2 = have2 && i + 8 * LK * LC < whole, i2 = in2 ? i + 8 * LK * LC : i;
            const G float4 *four = (const G float4 *)((const G float *)x + i), *four2 = four + (i2 - i) / 4;
            float8 u = q->wide ? (float8)(four[0], four[1]) : ld8(x, fmt, i);
            float8 u2 = q->wide ? (float8)(four2[0], four2[1]) : ld8(x, fmt, i2);
            t = fma(u, u, t);
            t2 = in2 ? fma(u2, u2, t2) : t2;
        }
        for (int i = whole + v; i < d; i += q->lanes) {
            float u = ld(x, fmt, i);
            rest = fma(u, u, rest);
        }
        for (int i = whole + v2; i < d && have2; i += q->lanes) {
            float u = ld(x, fmt, i);
            rest2 = fma(u, u, rest2);
        }
        sum[v] = sum8(t) + rest;
        if (have2)
            sum[v2] = sum8(t2) + rest2;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int s = q->lanes / 2; s > 0; s /= 2) {
        for (int v = me; v < s; v += LK * LC)
            sum[v] += sum[v + s];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    float scale = 1.0f / sqrt(sum[0] / (float)d + q->eps);
    const G float4 *x4 = (const G float4 *)x, *w4 = (const G float4 *)w;
    L float4 *y4 = (L float4 *)y;
    for (int i = me; i < n && q->wide; i += 4 * LK * LC) {
        int i1 = min(i + LK * LC, n - 1), i2 = min(i + 2 * LK * LC, n - 1), i3 = min(i + 3 * LK * LC, n - 1);
        float4 w0 = w4[i], w1 = w4[i1], w2 = w4[i2], w3 = w4[i3];
        float4 a0 = x4[i], a1 = x4[i1], a2 = x4[i2], a3 = x4[i3];
        y4[i] = a0 * scale * (w0 + q->offset);
        y4[i1] = a1 * scale * (w1 + q->offset); /* the last one by several lanes, all the same */
        y4[i2] = a2 * scale * (w2 + q->offset);
        y4[i3] = a3 * scale * (w3 + q->offset);
    }
    for (int i = me; i < d && !q->wide; i += LK * LC) {
        float u = ld(x, fmt, i) * scale;
        y[i] = q->w_fmt ? u * (ld(w, q->w_fmt, i) + q->offset) : u;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

/* The sets of columns of a group: POINT sets row[..], the lane's columns of set `block`; the lane's sums over its groups
 * of those by rows xr[..] go to red; then r and column are what the lane stores, red[r][mine] its terms. While they are
 * joined the next set's first weights are on their way. */
#define SETS(R, H, POINT, STORE)                                                                                       \
    int block = get_group_id(0), more = 1;                                                                             \
    BYTES                                                                                                              \
    POINT                                                                                                              \
    FETCH_FIRST                                                                                                        \
    MAKE_X_##H                                                                                                         \
    while (more) {                                                                                                     \
        float s[R][CI];                                                                                                \
        for (int r = 0; r < R; r++)                                                                                    \
            for (int c = 0; c < CI; c++)                                                                               \
                s[r][c] = 0;                                                                                           \
        if (have) {                                                                                                    \
            GROUPS(R, H)                                                                                               \
        }                                                                                                              \
        TAIL(R, H)                                                                                                     \
        FREE_##H                                                                                                       \
        for (int r = 0; r < R; r++)                                                                                    \
            for (int c = 0; c < CI; c++)                                                                               \
                red[r][c0 + c][lane] = s[r][c];                                                                        \
        int me = get_local_id(0) % LK, r = me / CI, mine = get_local_id(0) / LK * CI + me % CI;                        \
        int column = block * (LC * CI) + mine;                                                                         \
        more = NEXT_##H;                                                                                               \
        if (more) {                                                                                                    \
            POINT                                                                                                      \
            FETCH_FIRST                                                                                                \
        }                                                                                                              \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                                  \
        STORE                                                                                                          \
    }

/* The sum of a column's lanes. */
float joined(const L float *red)
{
    float16 v = vload16(0, red) + vload16(1, red);
    return sum8(v.lo + v.hi);
}

#if LK != 32 || MVR * CI > LK
#error "the sum over lanes is for 32 and few rows"
#endif

#ifdef MAKES_MV
#define POINT_MV                                                                                                       \
    for (int c = 0; c < CI; c++)                                                                                       \
        row[c] = w + min(block * (LC * CI) + c0 + c, columns - 1) * p.w_row;
#define STORE_MV                                                                                                       \
    if (r < m && column < columns)                                                                                     \
        st(y + at(&p.y, r0 + r), p.y.fmt, column,                                                                      \
           finish(&p, have ? joined(red[r][mine]) : 0.0f, r0 + r, column, bias, e0, e1, e2, e3));

/* CI columns a lane, so that loads of several are under way. Lane r of a column's joins and stores row r. */
#define MV(NAME, R, H)                                                                                                 \
    __kernel GROUP_OF_COLUMNS void NAME(const G uchar *x, const G uchar *w, const G uchar *ids, const G uchar *bias,          \
                                 const G uchar *e0, const G uchar *e1, const G uchar *e2, const G uchar *e3, G uchar *y, \
                                 const G uchar *counts, MEM_##H const lp_mm p BLOCK_##H LOCAL_##H)                     \
    {                                                                                                                  \
        L float red[R][LC * CI][LK];                                                                                   \
        int lane = get_local_id(0) % LK, c0 = get_local_id(0) / LK * CI, r0 = (int)get_group_id(1) * R;                \
        int rows = rows_of(counts, &p.rows) * p.choices, columns = p.n;                                                \
        int m = clamp(rows - r0, 0, R), expert = m ? expert_of(&p, ids, r0) : -1, whole = p.k / GROUP;                 \
        int have = expert >= 0 && expert < p.n_experts;                                                                \
        const G uchar *xr[R], *row[CI];                                                                                \
        for (int r = 0; r < R; r++)                                                                                    \
            xr[r] = x + at(&p.x, r0 + max(0, min(r, m - 1)));                                                          \
        w += p.w_off + (have ? expert : 0) * p.w_expert;                                                               \
        SETS(R, H, POINT_MV, STORE_MV)                                                                                 \
    }

MV(mv1, 1, ROWS)
MV(mvr, MVR, ROWS)
#if XF == FMT_F32 /* what launches of several nodes are for, so that programs for other rows are built sooner */
MV(mv1_norm, 1, NORM)
#endif

/* 256 lanes, each TILE / 16 by TILE / 16 outputs; 32 of K a turn. Columns and rows past the end compute on the last. */
#ifdef PLANES
/* Eight i of a row of k elements. */
float8 eight_at(const G uchar *row, int i, int k)
{
    float d;
    float8 v = EIGHT(RAW(EIGHT)(row, i / EIGHTS, k), i / EIGHTS, i % EIGHTS, &d);
    return v * d;
}

void unpack_planes(const G uchar *row, int g, int k, float16 *a, float16 *b)
{
    *a = (float16)(eight_at(row, 4 * g, k), eight_at(row, 4 * g + 1, k));
    *b = (float16)(eight_at(row, 4 * g + 2, k), eight_at(row, 4 * g + 3, k));
}
#define TILE_UNPACK(row, g, a, b) unpack_planes(row, g, p.k, a, b)
#else
#define TILE_UNPACK(row, g, a, b) UNPACK(row, g, a, b)
#endif

#define TQ (TILE / 16)
__kernel __attribute__((reqd_work_group_size(256, 1, 1))) void tile(const G uchar *x, const G uchar *w, const G uchar *ids, const G uchar *bias, const G uchar *e0,
                   const G uchar *e1, const G uchar *e2, const G uchar *e3, G uchar *y, const G uchar *counts,
                   const lp_mm p)
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
                TILE_UNPACK(row, g, &a, &b);
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

/* Up to three weights and one x: mv1 and mvr over all their columns, without steps after it. */
int weight_of(const lp_mms *p, int *c)
{
    int i = 0;
    while (i < 2 && *c >= p->n[i])
        *c -= p->n[i++];
    return i;
}

/* What kernels of several weights begin with: a group's place among so many columns, its rows of x. */
#define OF_ONE_X(R, COLUMNS)                                                                                           \
    L float red[R][LC * CI][LK];                                                                                       \
    int lane = get_local_id(0) % LK, c0 = get_local_id(0) / LK * CI, r0 = (int)get_group_id(1) * R;                    \
    int m = clamp(rows_of(counts, &p.rows) - r0, 0, R), whole = p.k / GROUP, have = m > 0, columns = COLUMNS;          \
    const G uchar *xr[R], *row[CI];                                                                                    \
    for (int r = 0; r < R; r++)                                                                                        \
        xr[r] = x + at(&p.x, r0 + max(0, min(r, m - 1)));

#ifdef MAKES_MVS
#define POINT_MVS                                                                                                      \
    for (int c = 0; c < CI; c++) {                                                                                     \
        int of = min(block * (LC * CI) + c0 + c, columns - 1), i = weight_of(&p, &of);                                 \
        row[c] = (i == 0 ? w0 : i == 1 ? w1 : w2) + p.w_off[i] + of * p.w_row[i];                                      \
    }
#define STORE_MVS                                                                                                      \
    if (r < m && column < columns) {                                                                                   \
        int i = weight_of(&p, &column);                                                                                \
        float sum = joined(red[r][mine]);                                                                              \
        if (p.bias[i].fmt)                                                                                             \
            sum += ld((i == 0 ? b0 : i == 1 ? b1 : b2) + p.bias[i].off, p.bias[i].fmt, column);                        \
        st((i == 0 ? y0 : i == 1 ? y1 : y2) + at(&p.y[i], r0 + r), p.y[i].fmt, column, sum);                           \
    }

#define MVS(NAME, R, H)                                                                                                \
    __kernel GROUP_OF_COLUMNS void NAME(const G uchar *x, const G uchar *w0, const G uchar *w1, const G uchar *w2,            \
                                 const G uchar *b0, const G uchar *b1, const G uchar *b2, G uchar *y0, G uchar *y1,    \
                                 G uchar *y2, const G uchar *counts, MEM_##H const lp_mms p BLOCK_##H LOCAL_##H)       \
    {                                                                                                                  \
        OF_ONE_X(R, p.n[0] + p.n[1] + p.n[2])                                                                          \
        SETS(R, H, POINT_MVS, STORE_MVS)                                                                               \
    }
MVS(mvs1, 1, ROWS)
MVS(mvsr, MVR, ROWS)
#if XF == FMT_F32
MVS(mvs1_norm, 1, NORM)
#endif

/* Q, K and V with what follows them: Q and K rotated as `rope` says, Q to rows, K and V to the cache. A lane has both
 * elements of a pair, so that a group has all that a rotation mixes. y: where they go; heads have rope.dims elements. */
int paired(const lp_rope *rope, int turns, int pair, int second)
{
    int half_n = rope->dims / 2;
    return turns && rope->kind ? pair / half_n * rope->dims + pair % half_n + second * half_n : 2 * pair + second;
}

#define POINT_MVQ                                                                                                      \
    for (int c = 0; c < CI; c++) {                                                                                     \
        int of = min((block * (LC * CI) + c0 + c) / 2 * 2, columns - 2), i = weight_of(&p, &of);                       \
        row[c] = (i == 0 ? w0 : i == 1 ? w1 : w2) + p.w_off[i] + paired(&rope, i < 2, of / 2, c % 2) * p.w_row[i];     \
    }
#define STORE_MVQ                                                                                                      \
    if (r < m && column % 2 == 0 && column < columns) {                                                                \
        int i = weight_of(&p, &column), width = i < 2 ? rope.dims : p.y[2].width;                                      \
        int a = paired(&rope, i < 2, column / 2, 0), b = paired(&rope, i < 2, column / 2, 1);                          \
        float2 v = (float2)(joined(red[r][mine]), joined(red[r][mine + 1]));                                           \
        if (p.bias[i].fmt) {                                                                                           \
            const G uchar *bias = (i == 0 ? b0 : i == 1 ? b1 : b2) + p.bias[i].off;                                    \
            v += (float2)(ld(bias, p.bias[i].fmt, a), ld(bias, p.bias[i].fmt, b));                                     \
        }                                                                                                              \
        if (i < 2)                                                                                                     \
            v = rotated(angle(&rope, pos + at(&rope.pos, r0 + r), freq + rope.freq.off,                                \
                              rope.kind ? a % width : a % width / 2), v.x, v.y);                                       \
        long to = goes_to(&rope, &p.y[i], i > 0, p.n[i] / width, slots, r0 + r, a / width);                            \
        if (to >= 0) {                                                                                                 \
            st_plain((i == 0 ? y0 : i == 1 ? y1 : y2) + to, p.y[i].fmt, a % width, v.x);                               \
            st_plain((i == 0 ? y0 : i == 1 ? y1 : y2) + to, p.y[i].fmt, b % width, v.y);                               \
        }                                                                                                              \
    }

#define MVQ(NAME, R, H)                                                                                                \
    __kernel GROUP_OF_COLUMNS void NAME(const G uchar *x, const G uchar *w0, const G uchar *w1, const G uchar *w2,     \
                                        const G uchar *b0, const G uchar *b1, const G uchar *b2, G uchar *y0,          \
                                        G uchar *y1, G uchar *y2, const G uchar *counts, MEM_##H const G uchar *pos,   \
                                        const G uchar *freq, const G uchar *slots, const lp_mms p BLOCK_##H,           \
                                        const lp_rope rope LOCAL_##H)                                                  \
    {                                                                                                                  \
        OF_ONE_X(R, p.n[0] + p.n[1] + p.n[2])                                                                          \
        SETS(R, H, POINT_MVQ, STORE_MVQ)                                                                               \
    }
#if XF == FMT_F32
MVQ(mvq1, 1, ROWS)
MVQ(mvqr, MVR, ROWS)
MVQ(mvq1_norm, 1, NORM)
#endif
#endif

/* y = act(gate) * up: a lane has the same column of both, so that a group has all that its outputs are made from. */
#ifdef MAKES_MVG
#if CI % 2
#error "a lane has columns of gate and up by twos"
#endif
#define POINT_MVG                                                                                                      \
    for (int c = 0; c < CI; c++)                                                                                       \
        row[c] = (c % 2 ? w1 : w0) + p.w_off[c % 2] +                                                                  \
                 min((block * (LC * CI) + c0 + c) / 2, p.n[0] - 1) * p.w_row[c % 2];
#define STORE_MVG                                                                                                      \
    if (r < m && column % 2 == 0 && column < columns)                                                                  \
        st(y + at(&p.y[0], r0 + r), p.y[0].fmt, column / 2,                                                            \
           gated(p.act, p.limit, joined(red[r][mine]), joined(red[r][mine + 1])));

#define MVG(NAME, R, H)                                                                                                \
    __kernel GROUP_OF_COLUMNS void NAME(const G uchar *x, const G uchar *w0, const G uchar *w1, G uchar *y,            \
                                        const G uchar *counts, MEM_##H const lp_mms p BLOCK_##H LOCAL_##H)             \
    {                                                                                                                  \
        OF_ONE_X(R, 2 * p.n[0])                                                                                        \
        SETS(R, H, POINT_MVG, STORE_MVG)                                                                               \
    }
MVG(mvg1, 1, ROWS)
MVG(mvgr, MVR, ROWS)
#if XF == FMT_F32
MVG(mvg1_norm, 1, NORM)
#endif
#endif
#endif
