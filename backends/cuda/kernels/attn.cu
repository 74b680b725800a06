/* Attention over a paged cache or dense keys. A block takes one row, one KV head and up to GT of the query heads that
 * share it, and one part of the context after the other or one of many: parts begin at multiples of p.split whatever
 * the batch, and their results (maximum, sum, weighted sum) are joined in order by one formula, so that a row's result
 * depends on its own keys only. Bound by reading keys and values, each once for its query heads, 16 bytes a lane
 * (softmax by parts: Milakov and Gimelshein 2018, arXiv:1805.02867).
 *
 * attention_GT: GT 1, 2, 4, 8, the least that holds heads / kv_heads, or 8 and several blocks a KV head.
 *   threads  whole waves, at most 256, 8 * threads >= dv; may depend on the op's shape only (128; 256 above 256 wide)
 *   grid     x parts (walked), y kv_heads * ceil(heads / kv_heads / GT), z rows (walked)
 *   dynamic shared memory: floats GT * (ceil(d / 8) * 8 + split + dv + 2) + 4 * split + 8 * threads, GT lowered until
 *            it fits the device
 *   scratch  parts > 0: rows * heads * parts * LP_ATTN_PART(dv) floats at part_off; parts at least ceil(table_width *
 *            block_size / split) or a row's block walks. Then attention_join: grid x heads, y rows (walked), 128
 * threads. One part at most (short tables, windows) or many rows (a prompt): parts 0 and no join.
 * SPDX-License-Identifier: Apache-2.0 */
#include "async.cuh"
#include "unpack.cuh"

/* The sequence that owns a row, -1: none. q_start rises. */
DEV int owner(const int *q_start, int n_seqs, int row)
{
    int lo = 0, hi = n_seqs;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (q_start[mid + 1] > row)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo < n_seqs && q_start[lo] <= row ? lo : -1;
}

/* The keys of a row: first <= t < end, of which the mask may leave out some from `newest` on. */
struct row_keys {
    int64_t first, end, newest;
    const int *blocks; /* NULL: dense */
    const uint32_t *tree;
    int first_part, parts;
};

DEV row_keys keys_of(const lp_attn &p, const uchar *table, const uchar *len_p, const uchar *start_p,
                     const uchar *tree_p, int row)
{
    row_keys k;
    int64_t n, where; /* keys, this row's position */
    k.blocks = 0;
    if (p.table_width) {
        const int *q_start = (const int *)(start_p + p.start_off);
        int s = owner(q_start, p.n_seqs, row);
        int64_t most = (int64_t)p.table_width * p.block_size;
        n = s < 0 ? 0 : ((const int *)(len_p + p.len_off))[s];
        k.newest = s < 0 ? 0 : n - (q_start[s + 1] - q_start[s]);
        where = s < 0 ? -1 : k.newest + row - q_start[s];
        n = n < 0 ? 0 : n > most ? most : n;
        k.blocks = (const int *)(table + at(p.table, s < 0 ? 0 : s));
    } else {
        n = k.newest = p.dense_m;
        where = (int64_t)p.dense_m - p.dense_n + row;
    }
    k.first = 0;
    k.end = n;
    if ((p.mask == INFER_MASK_CAUSAL || p.mask == INFER_MASK_WINDOW) && where + 1 < n)
        k.end = where + 1;
    if (p.mask == INFER_MASK_WINDOW && where + 1 - p.window > 0)
        k.first = where + 1 - p.window;
    k.tree = p.tree.fmt && tree_p ? (const uint32_t *)(tree_p + at(p.tree, row)) : 0; /* the join needs none */
    k.first_part = k.first < k.end ? (int)(k.first / p.split) : 0;
    k.parts = k.first < k.end ? (int)((k.end - 1) / p.split) + 1 - k.first_part : 0;
    return k;
}

/* Joins a part (m, s) to what came before (most, total): the factors of both sums. */
DEV void join_part(float &most, float &total, float m, float s, float &old_factor, float &new_factor)
{
    float top = fmaxf(most, m);
    old_factor = most == -INFINITY ? 0.0f : expf(most - top);
    new_factor = m == -INFINITY ? 0.0f : expf(m - top);
    total = fmaf(total, old_factor, mul(s, new_factor));
    most = top;
}

DEV float join_value(float acc, float old_factor, float v, float new_factor)
{
    return fmaf(acc, old_factor, mul(v, new_factor));
}

/* The last factor, the sink's share in it; 0: nothing was seen. */
DEV float last_factor(const lp_attn &p, const uchar *sinks, int head, float most, float total)
{
    if (!(total > 0 || isnan(total)))
        return 0;
    if (!p.sinks.fmt)
        return 1.0f / total;
    float sink = ld(sinks + p.sinks.off, p.sinks.fmt, head), m = fmaxf(most, sink), keep = expf(most - m);
    return keep / (total * keep + expf(sink - m));
}

DEV int64_t token(const lp_tensor &t, int n_blocks, int block, int offset, int head)
{
    if (block < 0 || block >= n_blocks)
        return -1;
    return (int64_t)t.off + block * t.s0 + head * t.s1 + offset * t.s2;
}

DEV int pow2_from(int n, int most)
{
    int v = 1;
    while (v < n && v < most)
        v *= 2;
    return v;
}

/* Whether planes are read as 16 bytes of 16-bit numbers. */
DEV int is_fast(const uchar *base, const lp_tensor &t)
{
    int two = t.fmt == INFER_FMT_F16 || t.fmt == INFER_FMT_BF16;
    return two && t.width % 8 == 0 && is_aligned(base + t.off, 16) && !((t.s0 | t.s1 | t.s2) & 15);
}

/* A group of 8 of a key or value; the last one may be short where the format is plain. */
DEV void group_at(const uchar *row, const lp_tensor &t, int g, float v[8], int &first, int &second)
{
    int wide = is_aligned(row, 16);
    if (8 * g + 8 <= t.width) {
        switch (t.fmt) { /* the formats of caches */
#define CASE(F, f)                                                                                                     \
    case INFER_FMT_##F:                                                                                                \
        group_of<fmt_##f>(row, g, wide, v, first, second);                                                             \
        return;
            CASE(F32, f32)
            CASE(F16, f16)
            CASE(BF16, bf16)
            CASE(F8_E4M3, e4m3)
            CASE(Q4_0, q4_0)
            CASE(Q8_0, q8_0)
#undef CASE
        }
    }
    first = 8 * g;
    second = 8 * g + 4;
    for (int i = 0; i < 8; i++)
        v[i] = 8 * g + i < t.width ? ld_plain(row, t.fmt, 8 * g + i) : 0.0f;
}

/* What a block shares, in this order in its dynamic memory. */
struct attn_shared {
    float *q;         /* [GT][2][groups][4]: halves of groups apart, so that lanes read without conflicts */
    float *score;     /* [GT][split] */
    float *acc;       /* [GT][dv] */
    float *most;      /* [GT] */
    float *total;     /* [GT] */
    int64_t *k_place; /* [split], -1: not seen */
    int64_t *v_place;
    float *red; /* [threads * 8] */
};

/* Keys a lane group takes at a time, so that their loads are under way together. */
template <bool FAST> struct at_once {
    static const int KEYS = FAST ? 4 : 1;
};

template <int GT, bool FAST>
DEV void scores(const attn_shared &sh, const lp_attn &p, const uchar *kp, int n, int groups)
{
    const int KEYS = at_once<FAST>::KEYS;
    int t = thread_id(), lanes = pow2_from(groups, WAVE), l = t % lanes, slots = block_threads() / lanes;
    for (int j0 = t / WAVE * (WAVE / lanes); j0 < n; j0 += KEYS * slots) { /* whole waves together */
        float dot[KEYS][GT];
        int64_t place[KEYS];
        for (int u = 0; u < KEYS; u++) {
            int j = j0 + t % WAVE / lanes + u * slots;
            place[u] = j < n ? sh.k_place[j] : -1;
            for (int g = 0; g < GT; g++)
                dot[u][g] = 0;
        }
        for (int e = l; e < groups; e += lanes) {
            float k[KEYS][8];
            if (FAST) {
                uint4 raw[KEYS];
                for (int u = 0; u < KEYS; u++) {
                    uint4 none = {0, 0, 0, 0};
                    raw[u] = place[u] < 0 ? none : ld_16(kp + place[u] + 16 * e);
                }
                for (int u = 0; u < KEYS; u++) {
                    two_floats(raw[u].x, p.k.fmt, k[u]);
                    two_floats(raw[u].y, p.k.fmt, k[u] + 2);
                    two_floats(raw[u].z, p.k.fmt, k[u] + 4);
                    two_floats(raw[u].w, p.k.fmt, k[u] + 6);
                }
            } else {
                for (int u = 0; u < KEYS; u++) {
                    int first, second;
                    for (int i = 0; i < 8; i++)
                        k[u][i] = 0;
                    if (place[u] >= 0)
                        group_at(kp + place[u], p.k, e, k[u], first, second);
                }
            }
            for (int g = 0; g < GT; g++) {
                const float4 a = *(const float4 *)(sh.q + ((2 * g) * groups + e) * 4);
                const float4 b = *(const float4 *)(sh.q + ((2 * g + 1) * groups + e) * 4);
                for (int u = 0; u < KEYS; u++) {
                    float s = dot[u][g];
                    s = fmaf(a.x, k[u][0], s);
                    s = fmaf(a.y, k[u][1], s);
                    s = fmaf(a.z, k[u][2], s);
                    s = fmaf(a.w, k[u][3], s);
                    s = fmaf(b.x, k[u][4], s);
                    s = fmaf(b.y, k[u][5], s);
                    s = fmaf(b.z, k[u][6], s);
                    dot[u][g] = fmaf(b.w, k[u][7], s);
                }
            }
        }
        for (int m = lanes / 2; m > 0; m >>= 1)
            for (int u = 0; u < KEYS; u++)
                for (int g = 0; g < GT; g++)
                    dot[u][g] += wave_xor(dot[u][g], m);
        for (int u = 0; u < KEYS; u++) {
            int j = j0 + t % WAVE / lanes + u * slots;
            for (int g = 0; g < GT; g++)
                if (j < n && l == g % lanes) {
                    float s = dot[u][g] * p.scale;
                    if (p.soft_cap > 0)
                        s = p.soft_cap * tanhf(s / p.soft_cap);
                    sh.score[g * p.split + j] = place[u] < 0 ? -INFINITY : s;
                }
        }
    }
}

/* acc[g] += sum of score * value over every slots-th key, one group of 8 of the values' width. */
template <int GT, bool FAST>
DEV void values(const attn_shared &sh, const lp_attn &p, const uchar *vp, int n, int e, int slot, int slots,
                float acc[GT][8], int &first, int &second)
{
    const int KEYS = at_once<FAST>::KEYS;
    for (int j0 = slot; j0 < n; j0 += KEYS * slots) {
        float v[KEYS][8];
        int64_t place[KEYS];
        for (int u = 0; u < KEYS; u++) {
            int j = j0 + u * slots;
            place[u] = j < n ? sh.v_place[j] : -1;
        }
        if (FAST) {
            uint4 raw[KEYS];
            for (int u = 0; u < KEYS; u++) {
                uint4 none = {0, 0, 0, 0};
                raw[u] = place[u] < 0 ? none : ld_16(vp + place[u] + 16 * e);
            }
            for (int u = 0; u < KEYS; u++) {
                two_floats(raw[u].x, p.v.fmt, v[u]);
                two_floats(raw[u].y, p.v.fmt, v[u] + 2);
                two_floats(raw[u].z, p.v.fmt, v[u] + 4);
                two_floats(raw[u].w, p.v.fmt, v[u] + 6);
            }
        } else {
            for (int u = 0; u < KEYS; u++) {
                for (int i = 0; i < 8; i++)
                    v[u][i] = 0;
                if (place[u] >= 0)
                    group_at(vp + place[u], p.v, e, v[u], first, second);
            }
        }
        for (int u = 0; u < KEYS; u++) {
            int j = j0 + u * slots;
            for (int g = 0; g < GT; g++) {
                float w = j < n ? sh.score[g * p.split + j] : 0.0f;
                for (int i = 0; i < 8; i++)
                    acc[g][i] = fmaf(w, v[u][i], acc[g][i]);
            }
        }
    }
}

template <int GT>
DEV void attention(const uchar *q, const uchar *kp, const uchar *vp, const uchar *table, const uchar *len_p,
                   const uchar *start_p, const uchar *sinks, const uchar *tree_p, uchar *y, const uchar *counts,
                   uchar *scratch, const lp_attn &p)
{
    SHARED_DYN(dyn);
    grid_go();
    grid_wait();
    int t = thread_id(), threads = block_threads(), waves = threads / WAVE, d = p.k.width, dv = p.y.width;
    int groups = (d + 7) / 8, v_groups = (dv + 7) / 8, per_kv = p.heads / p.kv_heads, sets = (per_kv + GT - 1) / GT;
    int kv_head = (int)blockIdx.y / sets, head0 = kv_head * per_kv + (int)blockIdx.y % sets * GT;
    int n_heads = per_kv - (int)blockIdx.y % sets * GT, rows = rows_of(counts, p.rows);
    attn_shared sh;
    n_heads = n_heads < GT ? n_heads : GT;
    sh.k_place = (int64_t *)dyn;
    sh.v_place = sh.k_place + p.split;
    sh.q = (float *)(sh.v_place + p.split);
    sh.score = sh.q + GT * groups * 8;
    sh.red = sh.score + GT * p.split;
    sh.acc = sh.red + 8 * threads;
    sh.most = sh.acc + GT * dv;
    sh.total = sh.most + GT;
    int v_lanes = pow2_from(v_groups, threads), v_slot = t / v_lanes, v_slots = threads / v_lanes, e = t % v_lanes;
    int k_fast = is_fast(kp, p.k), v_fast = is_fast(vp, p.v);
    for (int row = (int)blockIdx.z; row < rows; row += (int)gridDim.z) {
        row_keys k = keys_of(p, table, len_p, start_p, tree_p, row);
        int walk = k.parts < 2 || k.parts > p.parts;
        if (walk && blockIdx.x)
            continue;
        __syncthreads();
        for (int i = t; i < GT * groups * 8; i += threads) {
            int g = i / (groups * 8), o = i % (groups * 8), group = o % (groups * 4) / 4, first = 8 * group;
            int second = first + 4;
            if (p.k.fmt == INFER_FMT_Q4_0) { /* the one cache format whose groups are not eight neighbours */
                first = fmt_q4_0::first(group);
                second = fmt_q4_0::second(group);
            }
            int at_e = (o < groups * 4 ? first : second) + o % 4;
            sh.q[i] =
                g < n_heads && at_e < d ? ld(q + at(p.q, (int64_t)row * p.heads + head0 + g), p.q.fmt, at_e) : 0.0f;
        }
        for (int i = t; i < GT * dv; i += threads)
            sh.acc[i] = 0;
        for (int i = t; i < GT; i += threads) {
            sh.most[i] = -INFINITY;
            sh.total[i] = 0;
        }
        for (int part = walk ? 0 : (int)blockIdx.x; part < k.parts; part += walk ? 1 : (int)gridDim.x) {
            int64_t t0 = (int64_t)(k.first_part + part) * p.split;
            int n = (int)(k.end - t0 < p.split ? k.end - t0 : p.split);
            __syncthreads();
            for (int j = t; j < n; j += threads) {
                int64_t where = t0 + j, kk = -1, vv = -1;
                int see = where >= k.first;
                if (see && k.tree && where >= k.newest) {
                    int64_t bit = where - k.newest;
                    see = bit / 32 < p.tree.width && (k.tree[bit / 32] >> (bit % 32) & 1u);
                }
                if (see) {
                    int block = k.blocks ? k.blocks[where / p.block_size] : (int)where;
                    int offset = k.blocks ? (int)(where % p.block_size) : 0;
                    kk = token(p.k, p.n_blocks, block, offset, kv_head);
                    vv = kk < 0 ? -1 : token(p.v, p.n_blocks, block, offset, kv_head);
                }
                sh.k_place[j] = kk;
                sh.v_place[j] = vv;
            }
            __syncthreads();
            if (k_fast)
                scores<GT, true>(sh, p, kp, n, groups);
            else
                scores<GT, false>(sh, p, kp, n, groups);
            __syncthreads();
            /* a wave a head: the part's maximum and sum */
            float m = -INFINITY, sum = 0, old_f = 0, new_f = 0;
            for (int g = t / WAVE; g < n_heads; g += waves) {
                float *s = sh.score + g * p.split;
                m = -INFINITY;
                sum = 0;
                for (int j = t % WAVE; j < n; j += WAVE)
                    m = fmaxf(m, s[j]);
                m = wave_max(m);
                for (int j = t % WAVE; j < n; j += WAVE) {
                    float f = sh.v_place[j] < 0 ? 0.0f : expf(s[j] - m);
                    s[j] = f;
                    sum += f;
                }
                sum = wave_sum(sum);
                if (t % WAVE == 0) { /* kept where the scores' own sums are: read before the next part's */
                    sh.red[2 * g] = m;
                    sh.red[2 * g + 1] = sum;
                }
            }
            __syncthreads();
            float part_m[GT], part_s[GT];
            for (int g = 0; g < GT; g++) {
                part_m[g] = g < n_heads ? sh.red[2 * g] : -INFINITY;
                part_s[g] = g < n_heads ? sh.red[2 * g + 1] : 0.0f;
            }
            float acc[GT][8];
            int first = 8 * e, second = 8 * e + 4;
            for (int g = 0; g < GT; g++)
                for (int i = 0; i < 8; i++)
                    acc[g][i] = 0;
            if (e < v_groups) {
                if (v_fast)
                    values<GT, true>(sh, p, vp, n, e, v_slot, v_slots, acc, first, second);
                else
                    values<GT, false>(sh, p, vp, n, e, v_slot, v_slots, acc, first, second);
            }
            if (p.v.fmt == INFER_FMT_Q4_0) { /* also where this slot had no key */
                first = fmt_q4_0::first(e);
                second = fmt_q4_0::second(e);
            }
            UNROLL
            for (int g = 0; g < GT; g++) {
                if (g >= n_heads)
                    break;
                __syncthreads();
                if (e < v_groups)
                    for (int i = 0; i < 4; i++) {
                        sh.red[v_slot * v_lanes * 8 + first + i] = acc[g][i];
                        sh.red[v_slot * v_lanes * 8 + second + i] = acc[g][4 + i];
                    }
                __syncthreads();
                float most = sh.most[g], total = sh.total[g];
                float *to = (float *)(scratch + p.part_off) +
                            (((int64_t)row * p.heads + head0 + g) * p.parts + part) * LP_ATTN_PART(dv);
                join_part(most, total, part_m[g], part_s[g], old_f, new_f);
                for (int i = t; i < dv; i += threads) {
                    float v = 0;
                    for (int s = 0; s < v_slots; s++)
                        v += sh.red[s * v_lanes * 8 + i];
                    if (walk)
                        sh.acc[g * dv + i] = join_value(sh.acc[g * dv + i], old_f, v, new_f);
                    else
                        to[4 + i] = v;
                }
                __syncthreads();
                if (t == 0) {
                    if (walk) {
                        sh.most[g] = most;
                        sh.total[g] = total;
                    } else {
                        to[0] = part_m[g];
                        to[1] = part_s[g];
                    }
                }
            }
        }
        __syncthreads();
        for (int g = 0; g < n_heads && walk; g++) {
            float f = last_factor(p, sinks, head0 + g, sh.most[g], sh.total[g]);
            uchar *out = y + at(p.y, (int64_t)row * p.heads + head0 + g);
            for (int i = t; i < dv; i += threads)
                st(out, p.y.fmt, i, f == 0 ? 0.0f : sh.acc[g * dv + i] * f);
        }
    }
}

#define ATTENTION(GT)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256)                                                                  \
        attention_##GT(const uchar *q, const uchar *kp, const uchar *vp, const uchar *table, const uchar *len_p,       \
                       const uchar *start_p, const uchar *sinks, const uchar *tree_p, uchar *y, const uchar *counts,   \
                       uchar *scratch, const lp_attn p)                                                                \
    {                                                                                                                  \
        attention<GT>(q, kp, vp, table, len_p, start_p, sinks, tree_p, y, counts, scratch, p);                         \
    }
ATTENTION(1)
ATTENTION(2)
ATTENTION(4)
ATTENTION(8)

/* The results of a row's parts, in their order: the factors of 64 parts at a time, then all of them along the width. */
#define AT_ONCE 64
extern "C" __global__ void __launch_bounds__(256)
    attention_join(const uchar *table, const uchar *len_p, const uchar *start_p, const uchar *sinks, uchar *y,
                   const uchar *counts, const uchar *scratch, const lp_attn p)
{
    SHARED(float, m, AT_ONCE);
    SHARED(float, s, AT_ONCE);
    SHARED(float, old_f, AT_ONCE);
    SHARED(float, new_f, AT_ONCE);
    grid_go();
    grid_wait();
    int head = (int)blockIdx.x, t = (int)threadIdx.x, threads = (int)blockDim.x, dv = p.y.width;
    int rows = rows_of(counts, p.rows);
    FOR_VECTORS(row, rows)
    {
        row_keys k = keys_of(p, table, len_p, start_p, 0, row);
        if (k.parts < 2 || k.parts > p.parts)
            continue;
        const float *from =
            (const float *)(scratch + p.part_off) + ((int64_t)row * p.heads + head) * p.parts * LP_ATTN_PART(dv);
        uchar *out = y + at(p.y, (int64_t)row * p.heads + head);
        for (int i0 = 0; i0 < dv; i0 += threads) {
            int i = i0 + t;
            float acc = 0, most = -INFINITY, total = 0;
            for (int part0 = 0; part0 < k.parts; part0 += AT_ONCE) {
                int n = k.parts - part0 < AT_ONCE ? k.parts - part0 : AT_ONCE;
                const float *at0 = from + (int64_t)part0 * LP_ATTN_PART(dv);
                __syncthreads();
                for (int j = t; j < n; j += threads) {
                    m[j] = at0[(int64_t)j * LP_ATTN_PART(dv)];
                    s[j] = at0[(int64_t)j * LP_ATTN_PART(dv) + 1];
                }
                __syncthreads();
                for (int j = t; j < n; j += threads) {
                    float before = most, unused = 0, a, b;
                    for (int o = 0; o < j; o++)
                        before = fmaxf(before, m[o]);
                    join_part(before, unused, m[j], s[j], a, b);
                    old_f[j] = a;
                    new_f[j] = b;
                }
                __syncthreads();
                for (int j = 0; j < n; j++) {
                    most = fmaxf(most, m[j]);
                    total = fmaf(total, old_f[j], mul(s[j], new_f[j]));
                    if (i < dv)
                        acc = join_value(acc, old_f[j], at0[(int64_t)j * LP_ATTN_PART(dv) + 4 + i], new_f[j]);
                }
            }
            float f = last_factor(p, sinks, head, most, total);
            if (i < dv)
                st(out, p.y.fmt, i, f == 0 ? 0.0f : acc * f);
        }
    }
}
