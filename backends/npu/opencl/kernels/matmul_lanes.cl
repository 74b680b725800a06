/* Products on devices with lanes (matmul.cl has what they share). mv1 and mvr: LK lanes take groups along K of one
 * column in turns, neighbours in memory by neighbouring lanes, so that a weight is read in whole lines: bound by those
 * bytes at few rows. A group is 8 elements where the format has an eight_*, else the 32 of UNPACK. tile: TILE x TILE
 * outputs a work-group through local memory, bound by float arithmetic. SPDX-License-Identifier: Apache-2.0 */
#if LANES > 1

/* Eight halves from 16 bytes: loaded at once whatever the compiler makes of vloada_half8. */
float8 halves(uint4 v)
{
    return vload_half8(0, (const half *)&v);
}

/* 8 elements of a row of x. p.wide: rows begin at multiples of 16 bytes, here and in the weight. */
float8 x8(const G uchar *p, int i, int wide)
{
    if (!wide)
        return ld8(p, XF, i);
#if XF == FMT_F32
    const G float4 *v = (const G float4 *)((const G float *)p + i);
    return (float8)(v[0], v[1]);
#elif XF == FMT_F16
    return halves(*(const G uint4 *)((const G half *)p + i));
#else
    return as_float8(convert_uint8(as_ushort8(*(const G uint4 *)((const G ushort *)p + i))) << 16);
#endif
}

/* Group i of 8 elements of a weight's row. */
float8 eight_f32(const G uchar *row, int i, int wide)
{
    const G float *p = (const G float *)row + 8 * i;
    return wide ? (float8)(((const G float4 *)p)[0], ((const G float4 *)p)[1]) : vload8(0, p);
}

float8 eight_f16(const G uchar *row, int i, int wide)
{
    const G half *p = (const G half *)row + 8 * i;
    return wide ? halves(*(const G uint4 *)p) : vload_half8(0, p);
}

float8 eight_bf16(const G uchar *row, int i, int wide)
{
    const G ushort *p = (const G ushort *)row + 8 * i;
    ushort8 v = wide ? as_ushort8(*(const G uint4 *)p) : vload8(0, p);
    return as_float8(convert_uint8(v) << 16);
}

uchar8 bytes8(const G uchar *p)
{
    return as_uchar8(vload4(0, (const G ushort *)p));
}

float8 eight_q8_0(const G uchar *row, int i, int wide)
{
    const G uchar *p = row + 34 * (i / 4);
    return convert_float8(as_char8(bytes8(p + 2 + i % 4 * 8))) * half_at(p);
}

/* Blocks of 32 in 4 bits: elements 0 to 15 are the low halves of the 16 bytes. */
uchar8 nibbles(const G uchar *p, int q)
{
    return (bytes8(p + q % 2 * 8) >> (uchar)(q / 2 * 4)) & (uchar)15;
}

float8 eight_q4_0(const G uchar *row, int i, int wide)
{
    const G uchar *p = row + 18 * (i / 4);
    return (convert_float8(nibbles(p + 2, i % 4)) - 8.0f) * half_at(p);
}

float8 eight_q4_1(const G uchar *row, int i, int wide)
{
    const G uchar *p = row + 20 * (i / 4);
    return convert_float8(nibbles(p + 4, i % 4)) * half_at(p) + half_at(p + 2);
}

/* A block of Q4_K is nine times 16 bytes. */
float8 eight_q4_k(const G uchar *row, int i, int wide)
{
    const G uchar *p = row + 144 * (i / 32), *q = p + 16 + i % 32 / 8 * 32 + i % 4 * 8;
    int s = i % 32 / 4;
    float d, m;
    scales12(p, s, &d, &m);
    uchar8 v = wide ? as_uchar8(*(const G uint2 *)q) : bytes8(q);
    return convert_float8((v >> (uchar)(s % 2 * 4)) & (uchar)15) * d - m;
}

float8 eight_q6_k(const G uchar *row, int i, int wide)
{
    const G uchar *p = row + 210 * (i / 32);
    int s = i % 32 / 4, q = i % 4 * 8;
    uchar8 low = bytes8(p + s / 4 * 64 + s % 2 * 32 + q) >> (uchar)(s % 4 / 2 * 4);
    uchar8 high = bytes8(p + 128 + s / 4 * 32 + q) >> (uchar)(s % 4 * 2);
    float8 v = convert_float8((low & (uchar)15) | (high & (uchar)3) << (uchar)4) - 32.0f;
    return v * (half_at(p + 208) * (float)((const G char *)p)[192 + 2 * s + q / 16]);
}

/* The same from rows whose blocks are taken apart (../ocl_weight.c): k elements, codes first, each plane at a multiple
 * of its blocks' size. */
uchar8 eight_bytes(const G uchar *p)
{
    return as_uchar8(*(const G uint2 *)p);
}

float8 planes_q8_0(const G uchar *row, int i, int k)
{
    return convert_float8(as_char8(eight_bytes(row + 8 * i))) * half_at(row + k + i / 4 * 2);
}

float8 planes_q4_0(const G uchar *row, int i, int k)
{
    uchar8 q = eight_bytes(row + i / 4 * 16 + i % 2 * 8) >> (uchar)(i % 4 / 2 * 4);
    return (convert_float8(q & (uchar)15) - 8.0f) * half_at(row + k / 2 + i / 4 * 2);
}

float8 planes_q4_1(const G uchar *row, int i, int k)
{
    uchar8 q = eight_bytes(row + i / 4 * 16 + i % 2 * 8) >> (uchar)(i % 4 / 2 * 4);
    const G uchar *d = row + k / 2 + i / 4 * 4;
    return convert_float8(q & (uchar)15) * half_at(d) + half_at(d + 2);
}

float8 planes_q6_k(const G uchar *row, int i, int k)
{
    int b = i / 32, s = i % 32 / 4, q = i % 4 * 8;
    uchar8 low = eight_bytes(row + b * 128 + s / 4 * 64 + s % 2 * 32 + q) >> (uchar)(s % 4 / 2 * 4);
    uchar8 high = eight_bytes(row + k / 2 + b * 64 + s / 4 * 32 + q) >> (uchar)(s % 4 * 2);
    float8 v = convert_float8((low & (uchar)15) | (high & (uchar)3) << (uchar)4) - 32.0f;
    float scale = (float)((const G char *)row)[k / 4 * 3 + b * 16 + 2 * s + q / 16];
    return v * (half_at(row + k / 16 * 13 + b * 2) * scale);
}

#ifdef PLANES
#define HOW p.k
void unpack_planes(const G uchar *row, int g, int k, float16 *a, float16 *b)
{
    *a = (float16)(EIGHT(row, 4 * g, k), EIGHT(row, 4 * g + 1, k));
    *b = (float16)(EIGHT(row, 4 * g + 2, k), EIGHT(row, 4 * g + 3, k));
}
#define TILE_UNPACK(row, g, a, b) unpack_planes(row, g, p.k, a, b)
#else
#define HOW                       p.wide
#define TILE_UNPACK(row, g, a, b) UNPACK(row, g, a, b)
#endif

float mac8(float8 a, float8 b, float s)
{
    s = fma(a.s0, b.s0, s);
    s = fma(a.s1, b.s1, s);
    s = fma(a.s2, b.s2, s);
    s = fma(a.s3, b.s3, s);
    s = fma(a.s4, b.s4, s);
    s = fma(a.s5, b.s5, s);
    s = fma(a.s6, b.s6, s);
    return fma(a.s7, b.s7, s);
}

#ifdef EIGHT
#define GROUP 8
#define STEP(R, H)                                                                                                     \
    float8 a[CI];                                                                                                      \
    for (int c = 0; c < CI; c++)                                                                                       \
        a[c] = EIGHT(row[c], g, HOW);                                                                                  \
    for (int r = 0; r < R; r++) {                                                                                      \
        float8 v = X8_##H(r, 8 * g);                                                                                   \
        for (int c = 0; c < CI; c++)                                                                                   \
            s[r][c] = mac8(a[c], v, s[r][c]);                                                                          \
    }
#else
#define GROUP 32
#define STEP(R, H)                                                                                                     \
    for (int c = 0; c < CI; c++) {                                                                                     \
        float16 a, b;                                                                                                  \
        UNPACK(row[c], g, &a, &b);                                                                                     \
        for (int r = 0; r < R; r++) {                                                                                  \
            s[r][c] = mac8(a.lo, X8_##H(r, 32 * g), s[r][c]);                                                          \
            s[r][c] = mac8(a.hi, X8_##H(r, 32 * g + 8), s[r][c]);                                                      \
            s[r][c] = mac8(b.lo, X8_##H(r, 32 * g + 16), s[r][c]);                                                     \
            s[r][c] = mac8(b.hi, X8_##H(r, 32 * g + 24), s[r][c]);                                                     \
        }                                                                                                              \
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

/* Where a kernel has its x from: rows as they are (ROWS), or one row that the group has normed in local memory (NORM).
 * There a group has several sets of columns one after the other, and red is free when all have read it. */
#define MEM_ROWS
#define BLOCK_ROWS
#define LOCAL_ROWS
#define X8_ROWS(r, i) x8(xr[r], i, p.wide)
#define X1_ROWS(r, k) ld(xr[r], XF, k)
#define BEGIN_ROWS    int block = get_group_id(0);
#define FREE_ROWS
#define MEM_NORM      const G uchar *nw,
#define BLOCK_NORM    , const lp_norm_of norm
#define LOCAL_NORM    , L float4 *normed
#define X8_NORM(r, i) (float8)(normed[(i) / 4], normed[(i) / 4 + 1])
#define X1_NORM(r, k) ((const L float *)normed)[k]
#define BEGIN_NORM                                                                                                     \
    norm_x(xr[0], p.x.fmt, p.k, &norm, nw + norm.w_off, (L float *)normed);                                            \
    for (int block = get_group_id(0); block * (LC * CI) < columns; block += get_num_groups(0))
#define FREE_NORM barrier(CLK_LOCAL_MEM_FENCE);

/* Of a kernel whose groups are of LC columns' lanes. */
#define GROUP_OF_COLUMNS __attribute__((reqd_work_group_size(LK * LC, 1, 1)))

/* A row of d elements as norm_rows makes it (rows.cl), by its order of additions: lane v of q->lanes sums every
 * q->lanes'th eight, then halves join. Behind the row, from a multiple of 8 on, y has room for the sums. */
void norm_x(const G uchar *x, int fmt, int d, const lp_norm_of *q, const G uchar *w, L float *y)
{
    int me = get_local_id(0), whole = d / 8 * 8;
    L float *sum = y + (d + 7) / 8 * 8;
    for (int v = me; v < q->lanes; v += LK * LC) {
        float8 t = 0;
        float rest = 0;
        for (int i = 8 * v; i < whole; i += 8 * q->lanes) {
            const G float4 *four = (const G float4 *)((const G float *)x + i);
            float8 u = q->wide ? (float8)(four[0], four[1]) : ld8(x, fmt, i);
            t = fma(u, u, t);
        }
        for (int i = whole + v; i < d; i += q->lanes) {
            float u = ld(x, fmt, i);
            rest = fma(u, u, rest);
        }
        sum[v] = sum8(t) + rest;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int s = q->lanes / 2; s > 0; s /= 2) {
        for (int v = me; v < s; v += LK * LC)
            sum[v] += sum[v + s];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    float scale = 1.0f / sqrt(sum[0] / (float)d + q->eps);
    for (int i = me; i < d / 4 && q->wide; i += LK * LC)
        ((L float4 *)y)[i] = ((const G float4 *)x)[i] * scale * (((const G float4 *)w)[i] + q->offset);
    for (int i = me; i < d && !q->wide; i += LK * LC) {
        float u = ld(x, fmt, i) * scale;
        y[i] = q->w_fmt ? u * (ld(w, q->w_fmt, i) + q->offset) : u;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

/* A lane's sums over its groups of columns row[..] by rows xr[..], brought to red; then r and column are what the lane
 * stores, red[r][mine] its terms. */
#define SUMS(R, H)                                                                                                     \
    float s[R][CI];                                                                                                    \
    for (int r = 0; r < R; r++)                                                                                        \
        for (int c = 0; c < CI; c++)                                                                                   \
            s[r][c] = 0;                                                                                               \
    if (have) {                                                                                                        \
        _Pragma("unroll 4") for (int g = lane; g < whole; g += LK)                                                     \
        {                                                                                                              \
            STEP(R, H)                                                                                                 \
        }                                                                                                              \
    }                                                                                                                  \
    TAIL(R, H)                                                                                                         \
    FREE_##H                                                                                                           \
    for (int r = 0; r < R; r++)                                                                                        \
        for (int c = 0; c < CI; c++)                                                                                   \
            red[r][c0 + c][lane] = s[r][c];                                                                            \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                                      \
    int me = get_local_id(0) % LK, r = me / CI, mine = get_local_id(0) / LK * CI + me % CI;                            \
    int column = block * (LC * CI) + mine;

/* The sum of a column's lanes. */
float joined(const L float *red)
{
    float16 v = vload16(0, red) + vload16(1, red);
    return sum8(v.lo + v.hi);
}

/* CI columns a lane, so that loads of several are under way. Lane r of a column's joins and stores row r. */
#define MV(NAME, ATTRIBUTE, R, H)                                                                                      \
    __kernel ATTRIBUTE void NAME(const G uchar *x, const G uchar *w, const G uchar *ids, const G uchar *bias,          \
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
        BEGIN_##H                                                                                                      \
        {                                                                                                              \
            for (int c = 0; c < CI; c++)                                                                               \
                row[c] = w + min(block * (LC * CI) + c0 + c, columns - 1) * p.w_row;                                   \
            SUMS(R, H)                                                                                                 \
            if (r < m && column < columns)                                                                             \
                st(y + at(&p.y, r0 + r), p.y.fmt, column,                                                              \
                   finish(&p, have ? joined(red[r][mine]) : 0.0f, r0 + r, column, bias, e0, e1, e2, e3));              \
        }                                                                                                              \
    }
#if LK != 32 || MVR * CI > LK
#error "the sum over lanes is for 32 and few rows"
#endif

MV(mv1, , 1, ROWS)
MV(mvr, , MVR, ROWS)
#if XF == FMT_F32 /* what launches of several nodes are for, so that programs for other rows are built sooner */
MV(mv1_norm, GROUP_OF_COLUMNS, 1, NORM)
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

#define MVS(NAME, ATTRIBUTE, R, H)                                                                                     \
    __kernel ATTRIBUTE void NAME(const G uchar *x, const G uchar *w0, const G uchar *w1, const G uchar *w2,            \
                                 const G uchar *b0, const G uchar *b1, const G uchar *b2, G uchar *y0, G uchar *y1,    \
                                 G uchar *y2, const G uchar *counts, MEM_##H const lp_mms p BLOCK_##H LOCAL_##H)       \
    {                                                                                                                  \
        OF_ONE_X(R, p.n[0] + p.n[1] + p.n[2])                                                                          \
        BEGIN_##H                                                                                                      \
        {                                                                                                              \
            for (int c = 0; c < CI; c++) {                                                                             \
                int column = min(block * (LC * CI) + c0 + c, columns - 1), i = weight_of(&p, &column);                 \
                row[c] = (i == 0 ? w0 : i == 1 ? w1 : w2) + p.w_off[i] + column * p.w_row[i];                          \
            }                                                                                                          \
            SUMS(R, H)                                                                                                 \
            if (r < m && column < columns) {                                                                           \
                int i = weight_of(&p, &column);                                                                        \
                float sum = joined(red[r][mine]);                                                                      \
                if (p.bias[i].fmt)                                                                                     \
                    sum += ld((i == 0 ? b0 : i == 1 ? b1 : b2) + p.bias[i].off, p.bias[i].fmt, column);                \
                st((i == 0 ? y0 : i == 1 ? y1 : y2) + at(&p.y[i], r0 + r), p.y[i].fmt, column, sum);                   \
            }                                                                                                          \
        }                                                                                                              \
    }
MVS(mvs1, , 1, ROWS)
MVS(mvsr, , MVR, ROWS)
#if XF == FMT_F32
MVS(mvs1_norm, GROUP_OF_COLUMNS, 1, NORM)
#endif

/* y = act(gate) * up: a lane has the same column of both, so that a group has all that its outputs are made from. */
#define MVG(NAME, R, H)                                                                                                \
    __kernel GROUP_OF_COLUMNS void NAME(const G uchar *x, const G uchar *w0, const G uchar *w1, G uchar *y,            \
                                        const G uchar *counts, MEM_##H const lp_mms p BLOCK_##H LOCAL_##H)             \
    {                                                                                                                  \
        OF_ONE_X(R, 2 * p.n[0])                                                                                        \
        BEGIN_##H                                                                                                      \
        {                                                                                                              \
            for (int c = 0; c < CI; c++) {                                                                             \
                int column = min((block * (LC * CI) + c0 + c) / 2, p.n[0] - 1);                                        \
                row[c] = (c % 2 ? w1 : w0) + p.w_off[c % 2] + column * p.w_row[c % 2];                                 \
            }                                                                                                          \
            SUMS(R, H)                                                                                                 \
            if (r < m && column % 2 == 0 && column < columns)                                                          \
                st(y + at(&p.y[0], r0 + r), p.y[0].fmt, column / 2,                                                    \
                   gated(p.act, p.limit, joined(red[r][mine]), joined(red[r][mine + 1])));                             \
        }                                                                                                              \
    }
#if CI % 2
#error "a lane has columns of gate and up by twos"
#endif
MVG(mvg1, 1, ROWS)
MVG(mvgr, MVR, ROWS)
#if XF == FMT_F32
MVG(mvg1_norm, 1, NORM)
#endif

/* Q, K and V with what follows them: Q and K rotated as `rope` says, Q to rows, K and V to the cache. A lane has both
 * elements of a pair, so that a group has all that a rotation mixes. y: where they go; heads have rope.dims elements. */
int paired(const lp_rope *rope, int turns, int pair, int second)
{
    int half_n = rope->dims / 2;
    return turns && rope->kind ? pair / half_n * rope->dims + pair % half_n + second * half_n : 2 * pair + second;
}

#define MVQ(NAME, R, H)                                                                                                \
    __kernel GROUP_OF_COLUMNS void NAME(const G uchar *x, const G uchar *w0, const G uchar *w1, const G uchar *w2,     \
                                        const G uchar *b0, const G uchar *b1, const G uchar *b2, G uchar *y0,          \
                                        G uchar *y1, G uchar *y2, const G uchar *counts, MEM_##H const G uchar *pos,   \
                                        const G uchar *freq, const G uchar *slots, const lp_mms p BLOCK_##H,           \
                                        const lp_rope rope LOCAL_##H)                                                  \
    {                                                                                                                  \
        OF_ONE_X(R, p.n[0] + p.n[1] + p.n[2])                                                                          \
        BEGIN_##H                                                                                                      \
        {                                                                                                              \
            for (int c = 0; c < CI; c++) {                                                                             \
                int column = min((block * (LC * CI) + c0 + c) / 2 * 2, columns - 2), i = weight_of(&p, &column);       \
                row[c] = (i == 0 ? w0 : i == 1 ? w1 : w2) + p.w_off[i] +                                               \
                         paired(&rope, i < 2, column / 2, c % 2) * p.w_row[i];                                         \
            }                                                                                                          \
            SUMS(R, H)                                                                                                 \
            if (r < m && column % 2 == 0 && column < columns) {                                                        \
                int i = weight_of(&p, &column), width = i < 2 ? rope.dims : p.y[2].width;                              \
                int a = paired(&rope, i < 2, column / 2, 0), b = paired(&rope, i < 2, column / 2, 1);                  \
                float2 v = (float2)(joined(red[r][mine]), joined(red[r][mine + 1]));                                   \
                if (p.bias[i].fmt) {                                                                                   \
                    const G uchar *bias = (i == 0 ? b0 : i == 1 ? b1 : b2) + p.bias[i].off;                            \
                    v += (float2)(ld(bias, p.bias[i].fmt, a), ld(bias, p.bias[i].fmt, b));                             \
                }                                                                                                      \
                if (i < 2)                                                                                             \
                    v = rotated(angle(&rope, pos + at(&rope.pos, r0 + r), freq + rope.freq.off,                        \
                                      rope.kind ? a % width : a % width / 2), v.x, v.y);                               \
                long to = goes_to(&rope, &p.y[i], i > 0, p.n[i] / width, slots, r0 + r, a / width);                    \
                if (to >= 0) {                                                                                         \
                    st_plain((i == 0 ? y0 : i == 1 ? y1 : y2) + to, p.y[i].fmt, a % width, v.x);                       \
                    st_plain((i == 0 ? y0 : i == 1 ? y1 : y2) + to, p.y[i].fmt, b % width, v.y);                       \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }
#if XF == FMT_F32
MVQ(mvq1, 1, ROWS)
MVQ(mvqr, MVR, ROWS)
MVQ(mvq1_norm, 1, NORM)
#endif

/* 256 lanes, each TILE / 16 by TILE / 16 outputs; 32 of K a turn. Columns and rows past the end compute on the last. */
#define TQ (TILE / 16)
__kernel void tile(const G uchar *x, const G uchar *w, const G uchar *ids, const G uchar *bias, const G uchar *e0,
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
