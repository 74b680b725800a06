/* Attention of few rows a sequence over a paged cache, through matrix units; bound by reading keys and values. Keys are
 * the 16 rows of a fragment, queries its columns: four query heads that share a KV head (or heads of rows that follow
 * each other in a sequence), each as two numbers of 16 bits, as are the shares of keys; sums are floats. A row's keys
 * are cut into spans by its sequence's length and the op's shape alone, a span into turns of 16 keys that four waves
 * take round about; spans are joined in their order by one formula, whoever computes them. So a row's bits do not
 * depend on other sequences; with p.split, which says how long spans are, not on the sequence's other rows either:
 * spans that a row does not see add nothing.
 *
 * few_F_D_N: keys and values of format F (16 bits), D wide both, 4 N queries at once; block_size a power of two from 16
 *          on, vectors at multiples of 16 bytes, no tree.
 *   threads  128
 *   grid     any in x, walked: work is found from the lengths in device memory
 *   dynamic shared memory: LP_FEW_SHARED(D, N, n_seqs)
 *   scratch  p.parts (spans of a row at most, 1 without scratch): rows * heads * parts * LP_ATTN_PART(D) floats at
 *            part_off. The block that ends a row's last span joins them.
 *   p.split  0, or spans are of 2^split keys, from FEW_LEAST on, with N 1 or 2: a block that has all spans of a row
 *            needs no scratch
 * few_rope_F_D_N: the same before rotations and cache writes, which it does on the way (attn_own.cuh); at most
 *          LP_FEW_ROPE_ROWS rows. Shared memory: LP_FEW_ROPE_SHARED. The same bits as the launches that it stands for.
 * SPDX-License-Identifier: Apache-2.0 */
#include "attn_own.cuh"

#if defined(ASYNC) && WAVE == 32

#ifndef FEW_LEAST
#define FEW_LEAST 7 /* keys of the shortest span, as a power of two */
#endif
#ifndef FEW_ITEMS
#define FEW_ITEMS 4 /* pieces of work a block is to have, where there is enough of it */
#endif
#ifndef FEW_EVEN
#define FEW_EVEN 0.85f /* share of the blocks' time that whole rows have to fill */
#endif
#ifndef FEW_JOIN
#define FEW_JOIN 8 /* spans read at a time */
#endif
#define WAVES  4
#define ROUND  (TURN * WAVES)
#define EDGE   4 /* queries of a fragment */
#define STAGES LP_FEW_STAGES

/* Spans that are done, of each (row, set of heads). All 0 between launches, of which an opened device runs one after the
 * other (backend.h, queue_create). */
#if defined(SIMT_H)
static uint32_t few_done[LP_FEW_PAIRS];
#define publish()
#define ld_new(p) (*(p))
#else
__device__ uint32_t few_done[LP_FEW_PAIRS];
#define publish() __threadfence()
#define ld_new(p) __ldcg(p)
#endif

/* A sequence in shared memory. */
struct few_seq {
    int start, rows, len; /* first row, rows, keys as said */
    int end;              /* pieces of the sequences up to this one */
};

/* How a sequence is cut: spans first .. first + count of 2^log keys. */
struct few_cut {
    int n, lo, log, first, count;
};

DEV few_cut cut_of(const lp_attn &p, int len, int rows)
{
    few_cut c;
    int64_t most = (int64_t)p.table_width * p.block_size;
    c.n = len < 0 ? 0 : len > most ? (int)most : len;
    c.lo = 0;
    if (p.mask == INFER_MASK_WINDOW) {
        int64_t lo = (int64_t)len - rows + 1 - p.window;
        c.lo = lo < 0 ? 0 : lo > c.n ? c.n : (int)lo;
    }
    for (c.log = p.split ? p.split : FEW_LEAST;; c.log++) {
        c.first = c.lo >> c.log;
        c.count = (int)(((int64_t)c.n + (1 << c.log) - 1) >> c.log) - c.first;
        if (c.count <= p.parts || c.count < 2 || p.split)
            break;
    }
    c.count = c.count < 1 ? 1 : c.count;
    return c;
}

/* What is the same for all work of a launch. */
struct few_all {
    const few_seq *seq;
    int sets, heads, rows_at_once; /* sets of heads a KV head, heads of a set, rows taken together */
    int quota;                     /* keys of a piece */
    int items, block_log;
};

/* Spans that a piece of a sequence takes, as a power of two. */
DEV int spans_log(const few_cut &c, int quota)
{
    int g = 0;
    while ((1 << g) < c.count && (int64_t)(2 << g) << c.log <= quota)
        g++;
    return g;
}

/* A piece: spans span0 .. span0 + spans of some rows and heads, of whose keys t .. end are seen. */
struct few_item {
    few_cut cut;
    int seq, kv_head, head0, heads;
    int row0, rows, where; /* rows of the batch, the first one's position */
    int span0, spans;
    int t, end;
};

DEV few_item item_at(const few_all &a, const lp_attn &p, int i)
{
    few_item it;
    int lo = 0, hi = p.n_seqs - 1;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (a.seq[mid].end > i)
            hi = mid;
        else
            lo = mid + 1;
    }
    const few_seq &s = a.seq[lo];
    it.seq = lo;
    i -= lo ? a.seq[lo - 1].end : 0;
    it.cut = cut_of(p, s.len, s.rows);
    int g = spans_log(it.cut, a.quota), pieces = (it.cut.count + (1 << g) - 1) >> g, n_sets = p.kv_heads * a.sets;
    int group = p.heads / p.kv_heads, set = i % n_sets, part = 0;
    i /= n_sets;
    if (pieces > 1) {
        part = i % pieces;
        i /= pieces;
    }
    it.kv_head = set;
    it.head0 = set * group;
    it.heads = group;
    if (a.sets > 1) {
        it.kv_head = set / a.sets;
        it.head0 = it.kv_head * group + set % a.sets * a.heads;
        it.heads = group - set % a.sets * a.heads;
        it.heads = it.heads < a.heads ? it.heads : a.heads;
    }
    it.span0 = part << g;
    it.spans = it.cut.count - it.span0 < 1 << g ? it.cut.count - it.span0 : 1 << g;
    int r0 = i * a.rows_at_once, last = it.cut.n;
    it.row0 = s.start + r0;
    it.rows = s.rows - r0 < a.rows_at_once ? s.rows - r0 : a.rows_at_once;
    it.where = s.len - s.rows + r0;
    int64_t t0 = (int64_t)(it.cut.first + it.span0) << it.cut.log, t1 = t0 + ((int64_t)it.spans << it.cut.log);
    if (p.mask != INFER_MASK_FULL && it.where + it.rows < last)
        last = it.where + it.rows;
    it.t = t0 < it.cut.lo ? it.cut.lo / ROUND * ROUND : t0 < last ? (int)t0 : last;
    it.end = t1 < last ? (int)t1 : last;
    return it;
}

/* Where a wave's next keys are: it runs ahead of the sums, from piece to piece. */
struct few_ahead {
    int item, t, end, kv_head;
    const int *blocks;
    int ids, ids_at; /* a lane's: the block of the turn that is `lane` rounds from ids_at on */
};

/* The first turn of a piece; 0: the wave has none. */
DEV bool ahead_at(few_ahead &h, const few_item &it, const lp_attn &p, const uchar *table, int wave)
{
    h.t = it.t + TURN * wave;
    h.end = it.end;
    h.kv_head = it.kv_head;
    h.blocks = (const int *)(table + p.table.off + it.seq * p.table.s0);
    h.ids_at = -1;
    return h.t < h.end;
}

DEV void ahead_enter(few_ahead &h, const few_all &a, const lp_attn &p, const uchar *table, int wave)
{
    NO_UNROLL
    for (; h.item < a.items; h.item += (int)gridDim.x)
        if (ahead_at(h, item_at(a, p, h.item), p, table, wave))
            return;
}

#define SLOT(D) (2 * TURN * PITCH(D)) /* TURN keys, then as many values */

/* 16 vectors, `there` of them, but for those of the bits `own`; the rest zeros, so that what nobody wrote does no harm.
 */
template <int D> DEV void bring_plane(uchar *to, const uchar *from, int64_t step, int there, uint32_t own)
{
    const int LANES = D / 8, AT_ONCE = 32 / LANES; /* lanes a vector, vectors at once */
    int l = (int)threadIdx.x % 32, row = l / LANES, c = l % LANES;
    from += row * step + 16 * c;
    to += row * PITCH(D) + 16 * c;
    own >>= row;
    UNROLL
    for (int i = 0; i < TURN / AT_ONCE; i++) {
        if (!(own & 1u << i * AT_ONCE))
            copy_16_or_0(to + i * AT_ONCE * PITCH(D), from, row + i * AT_ONCE < there);
        from += AT_ONCE * step;
    }
}

/* The blocks of the turns from the next one on, where the lane has them no more. */
DEV void ahead_ids(few_ahead &h, const few_all &a)
{
    if (h.item < a.items && (h.ids_at < 0 || h.t >= h.ids_at + 32 * ROUND)) {
        int t = h.t + (int)threadIdx.x % 32 * ROUND;
        h.ids_at = h.t;
        h.ids = t < h.end ? h.blocks[t >> a.block_log] : -1;
    }
}

/* Sends for the next turn; a group of copies even where there is none. */
template <int D, class OWN>
DEV void bring(few_ahead &h, const few_all &a, const lp_attn &p, const uchar *kp, const uchar *vp, const uchar *table,
               uchar *slot, int *valid, int wave, OWN &own)
{
    int l = (int)threadIdx.x % 32;
    ahead_ids(h, a);
    if (h.item < a.items) {
        int id = wave_from(h.ids, (h.t - h.ids_at) / ROUND), n = h.end - h.t < TURN ? h.end - h.t : TURN;
        if ((unsigned)id >= (unsigned)p.n_blocks)
            id = n = 0;
        if (l == 0)
            *valid = n;
        int in = h.t & (p.block_size - 1);
        uint32_t mine = own_keys(own, id * p.block_size + in, n, h.kv_head);
        bring_plane<D>(slot, kp + p.k.off + id * p.k.s0 + h.kv_head * p.k.s1 + in * p.k.s2, p.k.s2, n, mine);
        bring_plane<D>(slot + TURN * PITCH(D), vp + p.v.off + id * p.v.s0 + h.kv_head * p.v.s1 + in * p.v.s2, p.v.s2, n,
                       mine);
        h.t += ROUND;
        if (h.t >= h.end) {
            h.item += (int)gridDim.x;
            ahead_enter(h, a, p, table, wave);
        }
    }
    copy_commit();
}

/* Two numbers as 16 bits each, or what is left of them after that. */
template <int FMT> DEV uint32_t plane_of(float a, float b, int rest)
{
    float v[2];
    uint32_t both = pack_two(a, b, FMT), left;
    two_floats(both, FMT, v);
    left = pack_two(a - v[0], b - v[1], FMT);
    return rest ? left : both;
}

template <int FMT> DEV void mma_of(float d[FRAG], const uint32_t a[4], const uint32_t b[2])
{
    frag_a<FMT> fa;
    frag_b<FMT> fb;
    for (int i = 0; i < 4; i++)
        fa.v[i] = a[i];
    fb.v[0] = b[0];
    fb.v[1] = b[1];
    mma(d, fa, fb);
}

/* Of a lane's two columns a fragment, over the keys so far. Columns 0 to 3 and 4 to 7 are both parts of four queries.
 */
template <int D, int N> struct few_sums {
    float most[N][2], total[N][2]; /* total: of this lane's keys */
    float acc[N][D / 16][FRAG];
};

template <int D, int N> DEV void sums_start(few_sums<D, N> &s)
{
    UNROLL
    for (int n = 0; n < N; n++) {
        s.most[n][0] = s.most[n][1] = -INFINITY;
        s.total[n][0] = s.total[n][1] = 0;
        UNROLL
        for (int m = 0; m < D / 16; m++)
            for (int i = 0; i < FRAG; i++)
                s.acc[n][m][i] = 0;
    }
}

/* What a lane's columns see: keys first .. end. */
template <int N> struct few_seen {
    int first[N][2], end[N][2];
};

/* 16 keys from t on, `there` of them; all: every column sees them. */
template <int FMT, int D, int N>
DEV void turn_of(few_sums<D, N> &s, const uchar *slot, const uint32_t (*q)[D / 16][2], const lp_attn &p, int t,
                 int there, const few_seen<N> &seen, bool all)
{
    int l = (int)threadIdx.x % 32;
    float sc[N][2][FRAG] = {};
    const uchar *k = slot + l % 16 * PITCH(D) + l / 16 * 16;
    const uchar *v = slot + (TURN + l % 8 + l / 16 * 8) * PITCH(D) + l / 8 % 2 * 16;
    UNROLL
    for (int c = 0; c < D / 16; c++) {
        uint32_t a[4];
        ldmatrix_4(a, k + 32 * c);
        UNROLL
        for (int n = 0; n < N; n++)
            mma_of<FMT>(sc[n][c % 2], a, q[n][c]);
    }
    uint32_t share[N][2];
    float factor[N][2];
    bool same = true;
    UNROLL
    for (int n = 0; n < N; n++) {
        float x[FRAG];
        UNROLL
        for (int i = 0; i < FRAG; i++) {
            x[i] = sc[n][0][i] + sc[n][1][i];
            x[i] += wave_xor(x[i], 2); /* both parts of the query */
        }
        if (p.soft_cap > 0)
            for (int i = 0; i < FRAG; i++)
                x[i] = p.soft_cap * LOG2E * tanhf(x[i]);
        if (!all)
            UNROLL
        for (int i = 0; i < FRAG; i++) {
            int key = l / 4 + i / 2 * 8;
            if (key >= there || t + key < seen.first[n][i % 2] || t + key >= seen.end[n][i % 2])
                x[i] = -INFINITY;
        }
        UNROLL
        for (int i = 0; i < 2; i++) {
            float m = fmaxf(x[i], x[i + 2]);
            m = fmaxf(m, wave_xor(m, 4));
            m = fmaxf(m, wave_xor(m, 8));
            m = fmaxf(m, wave_xor(m, 16));
            m = fmaxf(m, s.most[n][i]);
            factor[n][i] = part_factor(s.most[n][i], m);
            same = same && factor[n][i] == 1.0f;
            s.most[n][i] = m;
            float base = m == -INFINITY ? 0.0f : m;
            x[i] = two_to(x[i] - base);
            x[i + 2] = two_to(x[i + 2] - base);
            s.total[n][i] = fmaf(s.total[n][i], factor[n][i], x[i] + x[i + 2]);
        }
        share[n][0] = transposed_8x8(plane_of<FMT>(x[0], x[1], l & 2));
        share[n][1] = transposed_8x8(plane_of<FMT>(x[2], x[3], l & 2));
    }
    if (wave_ballot(!same)) {
        UNROLL
        for (int n = 0; n < N; n++)
            UNROLL
        for (int m = 0; m < D / 16; m++)
            for (int i = 0; i < FRAG; i++)
                s.acc[n][m][i] *= factor[n][i % 2];
    }
    UNROLL
    for (int m = 0; m < D / 16; m++) {
        uint32_t a[4];
        ldmatrix_4t(a, v + 32 * m);
        UNROLL
        for (int n = 0; n < N; n++)
            mma_of<FMT>(s.acc[n][m], a, share[n]);
    }
}

/* A thread's pairs of a piece's queries, as they are in memory. */
template <int D, int N> struct few_queries {
    float a[EDGE * N * (D / 2) / (32 * WAVES)], b[EDGE * N * (D / 2) / (32 * WAVES)];
};

/* Queries of a piece are numbered (row, head): the row of number j. The usual number of heads needs no division. */
DEV int query_row(const few_item &it, int j)
{
    return it.heads == EDGE ? j / EDGE : j / it.heads;
}

template <int D, int N, class OWN>
DEV void queries_ld(few_queries<D, N> &to, const uchar *q, const lp_attn &p, const few_item &it, const OWN &own)
{
    UNROLL
    for (int k = 0; k < EDGE * N * (D / 2) / (32 * WAVES); k++) {
        const int i = k * (32 * WAVES) + (int)threadIdx.x, j = i / (D / 2), r = query_row(it, j), there = r < it.rows;
        const uchar *from =
            q + p.q.off + (it.row0 + (there ? r : 0)) * p.q.s0 + (it.head0 + (there ? j - r * it.heads : 0)) * p.q.s1;
        own_query_ld(own, from, p.q.fmt, i % (D / 2), to.a[k], to.b[k]);
    }
}

/* Times the factor, as the products' columns: rows of shared memory, of each fragment four of what 16 bits hold and
 * four of what is left. */
template <int FMT, int D, int N, class OWN>
DEV void queries_put(uchar *to, const few_queries<D, N> &q, const few_item &it, float factor, const OWN &own)
{
    UNROLL
    for (int k = 0; k < EDGE * N * (D / 2) / (32 * WAVES); k++) {
        const int i = k * (32 * WAVES) + (int)threadIdx.x, j = i / (D / 2);
        const int r = query_row(it, j), there = r < it.rows;
        uchar *at = to + (j / EDGE * 8 + j % EDGE) * PITCH(D);
        float x = q.a[k], y = q.b[k], v[2];
        int a, b;
        own_query_turn(own, it.row0 + (there ? r : 0), i % (D / 2), a, b, x, y);
        x = there ? x * factor : 0.0f;
        y = there ? y * factor : 0.0f;
        uint32_t both = pack_two(x, y, FMT);
        two_floats(both, FMT, v);
        uint32_t left = pack_two(x - v[0], y - v[1], FMT);
        ((uint16_t *)at)[a] = (uint16_t)both;
        ((uint16_t *)at)[b] = (uint16_t)(both >> 16);
        at += EDGE * PITCH(D);
        ((uint16_t *)at)[a] = (uint16_t)left;
        ((uint16_t *)at)[b] = (uint16_t)(left >> 16);
    }
}

/* A lane's columns of them. */
template <int D, int N> DEV void queries_get(uint32_t (*to)[D / 16][2], const uchar *from)
{
    int l = (int)threadIdx.x % 32;
    from += l % 8 * PITCH(D) + l / 8 * 16;
    UNROLL
    for (int n = 0; n < N; n++)
        UNROLL
    for (int c = 0; c < D / 32; c++) {
        uint32_t v[4];
        ldmatrix_4(v, from + n * 8 * PITCH(D) + 64 * c);
        to[n][2 * c][0] = v[0];
        to[n][2 * c][1] = v[1];
        to[n][2 * c + 1][0] = v[2];
        to[n][2 * c + 1][1] = v[3];
    }
}

/* Joins a span (m, s) to what came before: the factors of both. */
DEV void join_span(float &most, float &total, float m, float s, float &was, float &is)
{
    float top = fmaxf(most, m);
    was = part_factor(most, top);
    is = part_factor(m, top);
    total = fmaf(total, was, mul(s, is));
    most = top;
}

/* A result of the four waves, from their sums and statistics, each wave's behind the last one's. */
template <int D, int N> DEV float join_waves(const float *red, const float *stats, float &top, float &total)
{
    float most[WAVES], v = 0;
    top = -INFINITY;
    total = 0;
    UNROLL
    for (int w = 0; w < WAVES; w++) {
        most[w] = stats[w * N * EDGE * 2];
        top = fmaxf(top, most[w]);
    }
    UNROLL
    for (int w = 0; w < WAVES; w++) {
        float f = part_factor(most[w], top);
        total = fmaf(stats[w * N * EDGE * 2 + 1], f, total);
        v = fmaf(red[w * EDGE * D], f, v);
    }
    return v;
}

DEV float *part_at(uchar *scratch, const lp_attn &p, int row, int head)
{
    return (float *)(scratch + p.part_off) + ((int64_t)row * p.heads + head) * p.parts * LP_ATTN_PART(p.y.width);
}

/* The results of all spans, in their order: a wave a row, several spans on their way together. */
template <int D> DEV void join_spans(const lp_attn &p, const few_item &it, const uchar *sinks, uchar *y, uchar *scratch)
{
    int l = (int)threadIdx.x % 32, used = it.rows * it.heads;
    if (4 * l >= D)
        return;
    for (int j = (int)threadIdx.x / 32; j < used; j += WAVES) {
        int r = j / it.heads, head = it.head0 + j - r * it.heads;
        const float *from = part_at(scratch, p, it.row0 + r, head);
        for (int e = 4 * l; e < D; e += 128) {
            float most = -INFINITY, total = 0, acc[4] = {};
            NO_UNROLL
            for (int s0 = 0; s0 < it.cut.count; s0 += FEW_JOIN) {
                const float *f = from + s0 * LP_ATTN_PART(D);
                uint2 sums[FEW_JOIN];
                uint4 v[FEW_JOIN];
                int n = it.cut.count - s0;
                UNROLL
                for (int s = 0; s < FEW_JOIN; s++)
                    if (s < n) {
                        sums[s] = ld_new((const uint2 *)(f + s * LP_ATTN_PART(D)));
                        v[s] = ld_new((const uint4 *)(f + s * LP_ATTN_PART(D) + 4 + e));
                    }
                UNROLL
                for (int s = 0; s < FEW_JOIN; s++)
                    if (s < n) {
                        float was, is;
                        join_span(most, total, float_of(sums[s].x), float_of(sums[s].y), was, is);
                        acc[0] = fmaf(acc[0], was, mul(float_of(v[s].x), is));
                        acc[1] = fmaf(acc[1], was, mul(float_of(v[s].y), is));
                        acc[2] = fmaf(acc[2], was, mul(float_of(v[s].z), is));
                        acc[3] = fmaf(acc[3], was, mul(float_of(v[s].w), is));
                    }
            }
            float f = last_of(p, sinks, head, most, total);
            for (int i = 0; i < 4; i++)
                acc[i] = f == 0 ? 0.0f : acc[i] * f;
            uchar *out = y_at(y, p, it.row0 + r, head) + panel_at(p.panels, it.row0 + r, e);
            const int first = panel_e(p.panels, it.row0 + r, e); /* the others behind it, in rows and in panels */
            for (int i = 0; i < 4; i++)
                st(out, p.y.fmt, first + i, acc[i]);
        }
    }
}

/* The work of a launch, from the lengths in device memory: pieces of all sequences, numbered through. */
DEV void plan(few_all &a, few_seq *seq, const lp_attn &p, const int *q_start, const int *lens, int rows)
{
    SHARED(int, quota, 1);
    int t = (int)threadIdx.x, l = t % 32, n_sets = p.kv_heads * a.sets, mine = 0;
    float keys = 0, rows_of_keys = 0, longest = 0;
    if (t < 32) {
        few_cut c = {};
        for (int s = l; s < p.n_seqs; s += 32) {
            few_seq x;
            int stop = q_start[s + 1], there;
            x.start = q_start[s];
            x.len = lens[s];
            x.rows = stop - x.start;
            there = (stop < rows ? stop : rows) - x.start;
            if (p.many && x.rows >= p.many)
                there = 0;                                                         /* attn_many.cu's */
            x.end = there < 1 ? 0 : (there + a.rows_at_once - 1) / a.rows_at_once; /* made into pieces below */
            c = cut_of(p, x.len, x.rows);
            keys += (float)x.end * (float)((int64_t)c.count << c.log);
            rows_of_keys += (float)x.end;
            longest = fmaxf(longest, x.end ? (float)((int64_t)c.count << c.log) : 0.0f);
            mine = x.end;
            seq[s] = x;
        }
        keys = wave_sum(keys) * (float)n_sets / (float)gridDim.x; /* of a block, if all had as many */
        rows_of_keys = ceilf(wave_sum(rows_of_keys) * (float)n_sets / (float)gridDim.x) * wave_max(longest);
        /* whole rows, which need no join, where they are even enough */
        keys = p.parts < 2 || keys >= FEW_EVEN * rows_of_keys ? 1e9f : keys / FEW_ITEMS;
        a.quota = keys < 1e9f ? (int)keys : 1000000000;
        int before = 0;
        for (int s0 = 0; s0 < p.n_seqs; s0 += 32) {
            int n = 0, s = s0 + l;
            if (s < p.n_seqs) {
                if (p.n_seqs > 32) {
                    c = cut_of(p, seq[s].len, seq[s].rows);
                    mine = seq[s].end;
                }
                int g = spans_log(c, a.quota);
                n = mine * ((c.count + (1 << g) - 1) >> g) * n_sets;
            }
            for (int m = 1; m < 32; m *= 2) {
                int other = wave_from(n, l >= m ? l - m : l);
                n += l >= m ? other : 0;
            }
            if (s < p.n_seqs)
                seq[s].end = before + n;
            before += wave_from(n, 31);
        }
        if (l == 0)
            *quota = a.quota;
    }
    __syncthreads();
    a.quota = *quota;
    a.seq = seq;
    a.items = p.n_seqs ? seq[p.n_seqs - 1].end : 0;
}

template <int FMT, int D, int N, class OWN>
DEV void few(const uchar *q, uchar *kp, uchar *vp, const uchar *table, const uchar *len_p, const uchar *start_p,
             const uchar *sinks, uchar *y, const uchar *counts, uchar *scratch, const lp_attn &p, OWN &own)
{
    const int PER = EDGE * D / (32 * WAVES); /* results of a thread, of a fragment of queries */
    SHARED_DYN(dyn);
    SHARED(float, stats, WAVES *EDGE *N * 2);
    SHARED(int, valid, WAVES *STAGES);
    SHARED(int, last, 1);
    int t = (int)threadIdx.x, wave = t / 32, l = t % 32, group = p.heads / p.kv_heads;
    uchar *ring = dyn + wave * STAGES * SLOT(D);
    float *red = (float *)(dyn + WAVES * STAGES * SLOT(D)); /* [wave][EDGE][D] */
    uchar *queries = (uchar *)(red + WAVES * EDGE * D);
    few_seq *seq = (few_seq *)(queries + LP_FEW_QUERIES(D, N));
    int *my_valid = valid + wave * STAGES;
    const int *q_start = (const int *)(start_p + p.start_off);
    few_all a;
    a.heads = group < EDGE * N ? group : EDGE * N;
    a.sets = (group + EDGE * N - 1) / (EDGE * N);
    a.rows_at_once = EDGE * N / a.heads;
    a.block_log = 0;
    while (1 << a.block_log < p.block_size)
        a.block_log++;
    grid_go();
    if (!OWN::EARLY)
        grid_wait();
    int rows = rows_of(counts, p.rows), owned0 = q_start[0], owned1 = q_start[p.n_seqs];
    own_begin(own, (uchar *)(seq + p.n_seqs), rows);
    plan(a, seq, p, q_start, (const int *)(len_p + p.len_off), rows);
    own_slots(own, rows, a.block_log);

    /* The first piece is worked out once: instructions that run for the first time come from memory. */
    few_ahead h;
    few_item it = {};
    h.item = (int)blockIdx.x;
    if (h.item < a.items) {
        it = item_at(a, p, h.item);
        if (!ahead_at(h, it, p, table, wave)) {
            h.item += (int)gridDim.x;
            ahead_enter(h, a, p, table, wave);
        }
    }
    ahead_ids(h, a);
    if (OWN::EARLY)
        grid_wait();
    few_queries<D, N> qr; /* before keys are sent for: a load stands behind the block's own copies */
    if ((int)blockIdx.x < a.items)
        queries_ld(qr, q, p, it, own);
    own_first(own);
    int in = 0, out = 0; /* places in the ring */
    NO_UNROLL
    for (; in < STAGES - 1; in++)
        bring<D>(h, a, p, kp, vp, table, ring + in * SLOT(D), my_valid + in, wave, own);
    own_write<FMT>(own, kp, vp, rows, a.block_log);
    NO_UNROLL
    for (int item = (int)blockIdx.x; item < a.items; item += (int)gridDim.x) {
        if (item != (int)blockIdx.x) {
            it = item_at(a, p, item);
            queries_ld(qr, q, p, it, own);
        }
        uint32_t qf[N][D / 16][2];
        few_seen<N> seen;
        it.rows = it.row0 + it.rows > rows ? rows - it.row0
                                           : it.rows; /* rows past the count are not there, their queries go nowhere */
        int used = it.rows * it.heads;
        queries_put<FMT, D, N>(queries, qr, it, p.soft_cap > 0 ? p.scale / p.soft_cap : p.scale * LOG2E, own);
        __syncthreads(); /* those of the piece before have been read: its sums were joined */
        queries_get<D, N>(qf, queries);
        UNROLL
        for (int n = 0; n < N; n++)
            for (int i = 0; i < 2; i++) {
                int where = it.where + (EDGE * n + (l % 4 * 2 + i) % EDGE) / it.heads;
                seen.first[n][i] = p.mask == INFER_MASK_WINDOW ? where + 1 - p.window : 0;
                seen.end[n][i] = p.mask != INFER_MASK_FULL && where + 1 < it.cut.n ? where + 1 : it.cut.n;
            }
        /* keys that all rows see */
        int all0 = p.mask == INFER_MASK_WINDOW ? it.where + a.rows_at_once - p.window : 0;
        int all1 = p.mask != INFER_MASK_FULL && it.where + 1 < it.cut.n ? it.where + 1 : it.cut.n;
        float run[N][PER], run_most[N][PER], run_total[N][PER]; /* of a thread's results so far */
        UNROLL
        for (int n = 0; n < N; n++)
            for (int k = 0; k < PER; k++) {
                run[n][k] = run_total[n][k] = 0;
                run_most[n][k] = -INFINITY;
            }
        bool whole = it.spans == it.cut.count && (N <= 2 || it.spans == 1); /* registers are few */
        NO_UNROLL
        for (int sp = it.span0; sp < it.span0 + it.spans; sp++) {
            few_sums<D, N> s;
            sums_start(s);
            int64_t t0 = (int64_t)(it.cut.first + sp) << it.cut.log, t1 = t0 + (1 << it.cut.log);
            int from = t0 < it.t ? it.t : (int)t0, to = t1 < it.end ? (int)t1 : it.end;
            NO_UNROLL
            for (int key = from + TURN * wave; key < to; key += ROUND) {
                wave_sync(); /* all lanes are done with the place that is filled now */
                own_fill<FMT>(own, ring + out * SLOT(D));
                bring<D>(h, a, p, kp, vp, table, ring + in * SLOT(D), my_valid + in, wave, own);
                copy_wait<STAGES - 1>();
                wave_sync();
                int there = my_valid[out];
                turn_of<FMT, D, N>(s, ring + out * SLOT(D), qf, p, key, there, seen,
                                   there == TURN && key >= all0 && key + TURN <= all1);
                in = in + 1 < STAGES ? in + 1 : 0;
                out = out + 1 < STAGES ? out + 1 : 0;
            }
            /* the four waves' sums */
            UNROLL
            for (int n = 0; n < N; n++)
                for (int i = 0; i < 2; i++) {
                    float total = s.total[n][i];
                    total += wave_xor(total, 4);
                    total += wave_xor(total, 8);
                    total += wave_xor(total, 16);
                    if (l < 2) {
                        float *to_stats = stats + ((wave * N + n) * EDGE + 2 * l + i) * 2;
                        to_stats[0] = s.most[n][i];
                        to_stats[1] = total;
                    }
                }
            UNROLL
            for (int n = 0; n < N; n++) {
                if (n * EDGE >= used)
                    break;
                /* both parts of a query: a lane has one half of the rows of a fragment, its neighbour the other */
                float *mine = red + (wave * EDGE + l % 2 * 2) * D + l / 4 + (l & 2) * 4;
                UNROLL
                for (int m = 0; m < D / 16; m++)
                    for (int i = 0; i < 2; i++) {
                        float give = l & 2 ? s.acc[n][m][i] : s.acc[n][m][i + 2];
                        float keep = l & 2 ? s.acc[n][m][i + 2] : s.acc[n][m][i];
                        mine[i * D + 16 * m] = keep + wave_xor(give, 2);
                    }
                __syncthreads();
                if (it.cut.count == 1) { /* short rows: few instructions, as they are fetched anew in each launch */
                    NO_UNROLL
                    for (int i = t, j = n * EDGE + i / D; i < EDGE * D && j < used;
                         i += 32 * WAVES, j = n * EDGE + i / D) {
                        const int r = query_row(it, j), head = it.head0 + j - r * it.heads;
                        float top, total;
                        const float v = join_waves<D, N>(red + i, stats + j * 2, top, total);
                        const float f = last_of(p, sinks, head, top, total);
                        y_st(y, p, it.row0 + r, head, i % D, f == 0 ? 0.0f : v * f);
                    }
                    __syncthreads();
                    continue;
                }
                UNROLL
                for (int k = 0; k < PER; k++) {
                    int i = k * (32 * WAVES) + t, j = n * EDGE + i / D, e = i % D;
                    if (j >= used)
                        break;
                    int r = query_row(it, j), row = it.row0 + r, head = it.head0 + j - r * it.heads;
                    float top, total, v = join_waves<D, N>(red + i, stats + j * 2, top, total);
                    if (N <= 2 && whole) {
                        float was, is;
                        join_span(run_most[n][k], run_total[n][k], top, total, was, is);
                        run[n][k] = fmaf(run[n][k], was, mul(v, is));
                        if (sp + 1 == it.span0 + it.spans) {
                            float f = last_of(p, sinks, head, run_most[n][k], run_total[n][k]);
                            y_st(y, p, row, head, e, f == 0 ? 0.0f : run[n][k] * f);
                        }
                    } else {
                        float *part = part_at(scratch, p, row, head) + sp * LP_ATTN_PART(D);
                        part[4 + e] = v;
                        if (e == 0) {
                            part[0] = top;
                            part[1] = total;
                        }
                    }
                }
                __syncthreads();
            }
        }
        if (whole)
            continue;
        publish();
        __syncthreads();
        if (t == 0) {
            uint32_t *done = few_done + it.row0 * (p.kv_heads * a.sets) + it.kv_head * a.sets +
                             (it.head0 - it.kv_head * group) / a.heads;
            int n = (int)atomicAdd(done, (uint32_t)it.spans) + it.spans;
            *last = n == it.cut.count;
            if (n == it.cut.count)
                *done = 0;
            publish();
        }
        __syncthreads();
        if (*last)
            join_spans<D>(p, it, sinks, y, scratch);
    }
    /* rows of no sequence */
    NO_UNROLL
    for (int row = (int)blockIdx.x; row < rows; row += (int)gridDim.x)
        if (row < owned0 || row >= owned1)
            for (int i = t; i < p.heads * D; i += 32 * WAVES)
                y_st(y, p, row, i / D, i % D, 0.0f);
}

#define FEW(F, f, D, N)                                                                                                \
    extern "C" __global__ void __launch_bounds__(128) few_##f##_##D##_##N(                                             \
        const uchar *q, uchar *kp, uchar *vp, const uchar *table, const uchar *len_p, const uchar *start_p,            \
        const uchar *sinks, const uchar *, uchar *y, const uchar *counts, uchar *scratch, const lp_attn p)             \
    {                                                                                                                  \
        own_none own;                                                                                                  \
        few<INFER_FMT_##F, D, N>(q, kp, vp, table, len_p, start_p, sinks, y, counts, scratch, p, own);                 \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(128) few_rope_##f##_##D##_##N(                                        \
        const uchar *q, uchar *kp, uchar *vp, const uchar *table, const uchar *len_p, const uchar *start_p,            \
        const uchar *sinks, uchar *y, const uchar *counts, uchar *scratch, const uchar *k, const uchar *v,             \
        const uchar *pos, const uchar *freq, const uchar *slots, const lp_few_rope p)                                  \
    {                                                                                                                  \
        own_rows<D> own(p, k, v, pos, freq, slots);                                                                    \
        few<INFER_FMT_##F, D, N>(q, kp, vp, table, len_p, start_p, sinks, y, counts, scratch, p.attn, own);            \
    }
#define FEW_ALL(F, f)                                                                                                  \
    FEW(F, f, 64, 1)                                                                                                   \
    FEW(F, f, 64, 2)                                                                                                   \
    FEW(F, f, 64, 4)                                                                                                   \
    FEW(F, f, 128, 1)                                                                                                  \
    FEW(F, f, 128, 2)                                                                                                  \
    FEW(F, f, 128, 4)
FEW_ALL(F16, f16)
FEW_ALL(BF16, bf16)

#endif
