/* Attention of many rows a sequence (prompts) over a paged cache, through a warpgroup's products; bound by the matrix
 * units. A block takes 128 query vectors of one KV head: rows of a sequence, of each the query heads that share it, so
 * that keys are read once for all of them. A warpgroup brings keys and values to shared memory, each in a ring, and two
 * take 64 queries each: scores of the next keys and the sum over the last values are one after the other on the matrix
 * units, shares are made of the scores meanwhile, and the two warpgroups give their products by turns, so that one's
 * run while the other makes shares (Shah et al. 2024, arXiv:2407.08608). Queries and shares are rounded to the cache's
 * format, sums are floats.
 *
 * many_F_D: keys and values of format F (16 bits), D wide both; block_size a power of two from 16 on, vectors of the
 *          cache at multiples of 16 bytes, of y at two elements, no tree. Sequences of p.many rows and more: the rest
 *          and rows of no sequence are few_F_D_N's.
 *   threads  384
 *   grid     any in x, walked: work is found from the lengths in device memory, rows that see most first
 *   dynamic shared memory: LP_MANY_SHARED(D, LP_MANY_KEYS, LP_MANY_STAGES)
 * SPDX-License-Identifier: Apache-2.0 */
#include "attn.cuh"
#include "wgmma.cuh"

#if defined(WGMMA)

#define MANY_BRING 128 /* threads that bring */
#define MANY_GROUP 16  /* keys that lie in one block */

/* 128 query vectors. They are numbered (row, head) in a sequence and KV head. */
struct many_item {
    int seq, kv_head, first, count; /* the first one's number, how many the sequence has */
    int start, where;               /* the sequence's first row in the batch, its position */
    int n, t, end;                  /* keys that there are; those that these see: t a multiple of KEYS */
};

/* Where a block is in its work; a wave keeps its own. */
struct many_work {
    int turn, seq, before; /* items of the sequences before seq, a multiple of 32 */
};

/* The next of a block's items, taken to and fro over the blocks, as an item is longer than the next one; 0: that was
 * all. */
template <int KEYS>
DEV int many_next(many_work &w, many_item &it, const lp_attn &p, const int *q_start, const int *lens, int rows)
{
    int l = thread_id() % 32, group = p.heads / p.kv_heads, blocks = (int)gridDim.x, me = (int)blockIdx.x;
    int item = w.turn * blocks + (w.turn % 2 ? blocks - 1 - me : me);
    w.turn++;
    for (; w.seq < p.n_seqs; w.seq += 32) {
        int s = w.seq + l, start = 0, all = 0, count = 0, sum;
        if (s < p.n_seqs) {
            int stop = q_start[s + 1];
            start = q_start[s];
            all = stop - start;
            count = all >= p.many ? ((stop < rows ? stop : rows) - start) * group : 0;
        }
        int tiles = count > 0 ? (count + LP_MANY_ROWS - 1) / LP_MANY_ROWS : 0;
        sum = tiles * p.kv_heads;
        for (int m = 1; m < 32; m *= 2) {
            int other = wave_from(sum, l >= m ? l - m : l);
            sum += l >= m ? other : 0;
        }
        int total = wave_from(sum, 31);
        if (item >= w.before + total) {
            w.before += total;
            continue;
        }
        int from = 0; /* the lane that has it: the first whose sum is beyond the item */
        for (int m = 16; m > 0; m /= 2)
            from += w.before + wave_from(sum, from + m - 1) <= item ? m : 0;
        int i = item - w.before - (wave_from(sum, from) - wave_from(tiles, from) * p.kv_heads);
        it.seq = w.seq + from;
        it.kv_head = i % p.kv_heads;
        it.first = (wave_from(tiles, from) - 1 - i / p.kv_heads) * LP_MANY_ROWS;
        it.count = wave_from(count, from);
        it.start = wave_from(start, from);
        all = wave_from(all, from);
        int64_t most = (int64_t)p.table_width * p.block_size;
        int len = lens[it.seq], last = it.first + LP_MANY_ROWS < it.count ? it.first + LP_MANY_ROWS : it.count;
        it.where = len - all;
        it.n = it.end = len < 0 ? 0 : len > most ? (int)most : len;
        it.t = 0;
        int stop = it.where + (last - 1) / group + 1;
        if (p.mask != INFER_MASK_FULL && stop < it.n)
            it.end = stop < 0 ? 0 : stop;
        if (p.mask == INFER_MASK_WINDOW) {
            int lo = it.where + it.first / group + 1 - p.window;
            it.t = lo > 0 ? lo / KEYS * KEYS : 0;
        }
        return 1;
    }
    return 0;
}

struct many_ring {
    int stage, phase;
};

template <int RING> DEV void many_step(many_ring &r)
{
    if (++r.stage == RING) {
        r.stage = 0;
        r.phase ^= 1;
    }
}

/* ---- Keys and values ------------------------------------------------------------------------------------------------
 */

/* Sends for KEYS vectors of a plane from key t on, `there` of them, the rest zeros; ids: lane l's is the block of group
 * id0 + l; ALL: all are there. In shared memory they lie in panels of 64 elements as wgmma.cuh has them. */
template <int D, int KEYS, int ALL>
DEV void many_copies(uchar *to, const uchar *from, const lp_tensor &plane, const lp_attn &p, int ids, int t, int id0,
                     int there)
{
    const int LANES = D / 8, AT_ONCE = MANY_BRING / LANES; /* lanes a vector, vectors at once: 8 or 16 */
    int me = thread_id(), row = me / LANES, c = me % LANES, mask = p.block_size - 1;
    to += c / 8 * (KEYS * 128) + row * 128 + (c % 8 ^ row % 8) * 16;
    from += row * plane.s2 + 16 * c;
    UNROLL
    for (int g = 0; g < KEYS; g += MANY_GROUP) {
        int id = wave_from(ids, t / MANY_GROUP - id0 + g / MANY_GROUP);
        bool ok = ALL || (unsigned)id < (unsigned)p.n_blocks;
        const uchar *group = from + (ok ? id : 0) * plane.s0 + ((t + g) & mask) * plane.s2;
        UNROLL
        for (int r = 0; r < MANY_GROUP; r += AT_ONCE)
            copy_16_or_0(to + (g + r) * 128, group + r * plane.s2, ALL || (ok && row + g + r < there));
    }
}

template <int D, int KEYS>
DEV void many_bring(uchar *to, const uchar *from, const lp_tensor &plane, const lp_attn &p, int ids, int t, int id0,
                    int there, bool all)
{
    if (all)
        many_copies<D, KEYS, 1>(to, from, plane, p, ids, t, id0, there);
    else
        many_copies<D, KEYS, 0>(to, from, plane, p, ids, t, id0, there);
    copy_commit();
}

/* What this thread's copies have brought, all but the last LATE groups, is seen by products after `full`. */
template <int LATE> DEV void many_tell(mbar *full)
{
    copy_wait<LATE>();
    async_fence();
    wave_sync();
    if (thread_id() % 32 == 0)
        mbar_arrive(full);
}

/* ---- Queries, scores ------------------------------------------------------------------------------------------------
 */

/* 64 queries of a warpgroup, from number `first` on, into shared memory; past the last one that again. All loads are on
 * their way at once. */
template <int FMT, int D>
DEV void many_queries(uchar *to, const uchar *q, const lp_attn &p, const many_item &it, int first, float factor)
{
    const int LANES = D / 8, TURNS = 64 * LANES / 128, AT_ONCE = 128 / LANES;
    int me = thread_id() % 128, c = me % LANES, group = p.heads / p.kv_heads;
    uint4 a[TURNS], b[TURNS];
    UNROLL
    for (int i = 0; i < TURNS; i++) {
        int f = first + me / LANES + i * AT_ONCE;
        f = f < it.count ? f : it.count - 1;
        int row = f / group;
        const uchar *from = q + p.q.off + (it.start + row) * p.q.s0 + (it.kv_head * group + f - row * group) * p.q.s1;
        from += 8 * c * plain_bytes(p.q.fmt);
        a[i] = ld_16(from);
        b[i] = ld_16(p.q.fmt == INFER_FMT_F32 ? from + 16 : from);
    }
    UNROLL
    for (int i = 0; i < TURNS; i++) {
        int r = me / LANES + i * AT_ONCE;
        const uint32_t w[8] = {a[i].x, a[i].y, a[i].z, a[i].w, b[i].x, b[i].y, b[i].z, b[i].w};
        float v[8];
        UNROLL
        for (int k = 0; k < 8; k += 2) {
            v[k] = float_of(w[k]);
            v[k + 1] = float_of(w[k + 1]);
            if (p.q.fmt != INFER_FMT_F32)
                two_floats(w[k / 2], p.q.fmt, v + k);
            v[k] *= factor;
            v[k + 1] *= factor;
        }
        st8(to + c / 8 * (LP_MANY_ROWS * 128) + r * 128 + (c % 8 ^ r % 8) * 16, FMT, 0, 1, v);
    }
}

DEV float one_over(float v)
{
#if defined(SIMT_H)
    return 1.0f / v;
#else
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
#endif
}

/* What a thread's two queries see: keys first .. end. */
struct many_seen {
    int first[2], end[2];
};

/* Scores become shares: s of keys t .. t + KEYS, groups of `bad` not there. factor: what earlier sums count now. */
template <int KEYS>
DEV void many_shares(float *s, const lp_attn &p, int t, uint32_t bad, bool all, const many_seen &seen, float most[2],
                     float total[2], float factor[2])
{
    int l = thread_id() % 32;
    if (p.soft_cap > 0) { /* cap tanh(x / cap), s is 2 x / cap: both in powers of two */
        float cap = p.soft_cap * LOG2E;
        UNROLL
        for (int i = 0; i < KEYS / 2; i++)
            s[i] = fmaf(-2.0f * cap, one_over(two_to(s[i]) + 1.0f), cap);
    }
    if (!all) {
        UNROLL
        for (int i = 0; i < KEYS / 2; i++) {
            int key = i / 4 * 8 + l % 4 * 2 + i % 2;
            if (t + key < seen.first[i / 2 % 2] || t + key >= seen.end[i / 2 % 2] || bad >> key / MANY_GROUP & 1)
                s[i] = -INFINITY;
        }
    }
    float top[2] = {most[0], most[1]};
    UNROLL
    for (int i = 0; i < KEYS / 2; i++)
        top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);
    UNROLL
    for (int r = 0; r < 2; r++) {
        top[r] = fmaxf(top[r], wave_xor(top[r], 1));
        top[r] = fmaxf(top[r], wave_xor(top[r], 2));
        factor[r] = part_factor(most[r], top[r]);
        most[r] = top[r];
        top[r] = top[r] == -INFINITY ? 0.0f : top[r];
    }
    float sum[2] = {0, 0};
    UNROLL
    for (int i = 0; i < KEYS / 2; i++) {
        s[i] = two_to(s[i] - top[i / 2 % 2]);
        sum[i / 2 % 2] += s[i];
    }
    for (int r = 0; r < 2; r++)
        total[r] = fmaf(total[r], factor[r], sum[r]);
}

/* Products of 64 queries and KEYS keys, of shares and values; both are on their way afterwards. */
template <int FMT, int D, int KEYS> DEV void many_scores(float *s, const uchar *queries, const uchar *keys)
{
    UNROLL
    for (int i = 0; i < D / 16; i++)
        wgmma_shared<KEYS, FMT>(s, wg_next(wg_at(queries + i / 4 * (LP_MANY_ROWS * 128)), i % 4),
                                wg_next(wg_at(keys + i / 4 * (KEYS * 128)), i % 4), i > 0);
    wgmma_commit();
}

template <int FMT, int D, int KEYS> DEV void many_values(float *o, const uint32_t *shares, const uchar *values)
{
    UNROLL
    for (int i = 0; i < KEYS / 16; i++)
        wgmma_turned<D, FMT, KEYS * 128>(o, shares + 4 * i, wg_turned_at<KEYS * 128>(values + i * 2048), 1);
    wgmma_commit();
}

/* Two queries of a thread to y. */
template <int D>
DEV void many_out(uchar *y, const uchar *sinks, const lp_attn &p, const many_item &it, int first, const float *o,
                  const float most[2], const float total[2])
{
    int l = thread_id() % 32, group = p.heads / p.kv_heads;
    UNROLL
    for (int r = 0; r < 2; r++) {
        float sum = total[r];
        sum += wave_xor(sum, 1);
        sum += wave_xor(sum, 2);
        int f = first + l / 4 + 8 * r, row = f / group, head = it.kv_head * group + f - row * group;
        if (f >= it.count)
            continue;
        float factor = last_of(p, sinks, head, most[r], sum);
        uchar *to = y_at(y, p, it.start + row, head);
        float v[D / 4];
        UNROLL
        for (int i = 0; i < D / 4; i++) /* 0: nothing was seen */
            v[i] = factor == 0 ? 0.0f : o[i / 2 * 4 + 2 * r + i % 2] * factor;
        if (p.y.fmt == INFER_FMT_F32) {
            UNROLL
            for (int i = 0; i < D / 8; i++) {
                uint2 u;
                u.x = bits_of(v[2 * i]);
                u.y = bits_of(v[2 * i + 1]);
                ((uint2 *)to)[4 * i + l % 4] = u;
            }
        } else {
            const int turn = (it.start + row) & p.panels.turn; /* panel_e of a piece's elements */
            to += panel_at(p.panels, it.start + row, 0) + l % 4 * 4;
            UNROLL
            for (int i = 0; i < D / 8; i++)
                *(uint32_t *)(to + i / 8 * p.panels.step + (i ^ turn) * 16) = pack_two(v[2 * i], v[2 * i + 1], p.y.fmt);
        }
    }
}

template <int N> DEV void many_hold(uint32_t *v)
{
#if !defined(SIMT_H)
    UNROLL
    for (int i = 0; i < N; i++)
        asm volatile("" : "+r"(v[i])::"memory");
#else
    (void)v;
#endif
}

/* TURNS: the warpgroups give their products one after the other. */
template <int FMT, int D, int KEYS, int RING, int TURNS>
DEV void many(const uchar *q, const uchar *kp, const uchar *vp, const uchar *table, const uchar *len_p,
              const uchar *start_p, const uchar *sinks, uchar *y, const uchar *counts, const lp_attn &p)
{
    const int TILE = KEYS * 2 * D, LATE = 2;
    SHARED_DYN(raw);
    uchar *mem = raw + (1024 - (uintptr_t)raw % 1024) % 1024;
    uchar *keys = mem + LP_MANY_ROWS * 2 * D, *values = keys + RING * TILE;
    mbar *k_full = (mbar *)(values + RING * TILE), *v_full = k_full + RING, *k_empty = v_full + RING,
         *v_empty = k_empty + RING, *turns = v_empty + RING;
    uint32_t *bad = (uint32_t *)(turns + 2);
    const int *q_start = (const int *)(start_p + p.start_off), *lens = (const int *)(len_p + p.len_off);
    int wave = wave_from(thread_id() / 32, 0), lane = thread_id() % 32;
    if (thread_id() == 0) {
        for (int i = 0; i < RING; i++) {
            mbar_init(k_full + i, MANY_BRING / 32);
            mbar_init(v_full + i, MANY_BRING / 32);
            mbar_init(k_empty + i, 8);
            mbar_init(v_empty + i, 8);
        }
        mbar_init(turns, 4);
        mbar_init(turns + 1, 4);
        mbar_made();
    }
    grid_go();
    __syncthreads();
    grid_wait();
    int rows = rows_of(counts, p.rows);
    many_work w = {0, 0, 0};
    many_item it;
    if (wave < MANY_BRING / 32) {
        registers_shrink<56>();
        many_ring r = {0, 1}, told = {0, 0};
        int ahead = 0; /* tiles whose copies are on their way */
        NO_UNROLL
        while (many_next<KEYS>(w, it, p, q_start, lens, rows)) {
            const int *blocks = (const int *)(table + p.table.off + it.seq * p.table.s0);
            const uchar *k_from = kp + p.k.off + it.kv_head * p.k.s1, *v_from = vp + p.v.off + it.kv_head * p.v.s1;
            int log = 31 - __builtin_clz((unsigned)p.block_size), ids = 0, id0 = -32;
            NO_UNROLL
            for (int t = it.t; t < it.end; t += KEYS) {
                int there = it.end - t;
                if (t / MANY_GROUP >= id0 + 32) {
                    id0 = t / MANY_GROUP / 32 * 32;
                    int key = (id0 + lane) * MANY_GROUP;
                    ids = key < it.end ? blocks[key >> log] : 0;
                }
                mbar_wait(k_empty + r.stage, r.phase);
                uint32_t none = (uint32_t)wave_ballot((unsigned)ids >= (unsigned)p.n_blocks) >> (t / MANY_GROUP - id0);
                none &= (1u << KEYS / MANY_GROUP) - 1;
                bool all = !none && there >= KEYS;
                if (thread_id() == 0)
                    bad[r.stage] = none;
                many_bring<D, KEYS>(keys + r.stage * TILE, k_from, p.k, p, ids, t, id0, there, all);
                if (ahead)
                    many_tell<LATE>(k_full + told.stage);
                mbar_wait(v_empty + r.stage, r.phase);
                many_bring<D, KEYS>(values + r.stage * TILE, v_from, p.v, p, ids, t, id0, there, all);
                if (ahead) {
                    many_tell<LATE>(v_full + told.stage);
                    many_step<RING>(told);
                }
                ahead = 1;
                many_step<RING>(r);
            }
        }
        if (ahead) {
            many_tell<1>(k_full + told.stage);
            many_tell<0>(v_full + told.stage);
        }
    } else {
        registers_grow<224>();
        int half = wave / 4 - 1, group = p.heads / p.kv_heads, turn = half == 0;
        float factor = p.soft_cap > 0 ? 2.0f * LOG2E * p.scale / p.soft_cap : p.scale * LOG2E;
        uchar *queries = mem + half * (64 * 128);
        many_ring k = {0, 0}, v = {0, 0};
        float s[WG_SUMS(KEYS)], o[WG_SUMS(D)];
        uint32_t shares[KEYS / 4];
        NO_UNROLL
        while (many_next<KEYS>(w, it, p, q_start, lens, rows)) {
            int first = it.first + 64 * half, mine = first + wave % 4 * 16; /* of the warpgroup, of the wave */
            float most[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0}, was[2];
            many_seen seen;
            for (int r = 0; r < 2; r++) {
                int where = it.where + (mine + lane / 4 + 8 * r) / group;
                seen.first[r] = p.mask == INFER_MASK_WINDOW ? where + 1 - p.window : 0;
                seen.end[r] = p.mask != INFER_MASK_FULL && where + 1 < it.n ? where + 1 : it.n;
            }
            /* keys that all of a wave's queries see */
            int all0 = p.mask == INFER_MASK_WINDOW ? it.where + (mine + 15) / group + 1 - p.window : 0;
            int all1 = it.where + mine / group + 1;
            all1 = p.mask != INFER_MASK_FULL && all1 < it.n ? all1 : it.n;
            part_sync(1 + half, 128); /* all waves are done with the queries before */
            many_queries<FMT, D>(queries, q, p, it, first, factor);
            async_fence();
            part_sync(1 + half, 128);
            UNROLL
            for (int i = 0; i < WG_SUMS(D); i++)
                o[i] = 0;
            UNROLL
            for (int i = 0; i < WG_SUMS(KEYS); i++)
                s[i] = 0;
            if (it.t < it.end) {
                mbar_wait(k_full + k.stage, k.phase);
                if (TURNS) {
                    mbar_wait(turns + half, turn);
                    turn ^= 1;
                }
                wgmma_fence();
                many_scores<FMT, D, KEYS>(s, queries, keys + k.stage * TILE);
                if (TURNS && lane == 0)
                    mbar_arrive(turns + (half ^ 1));
                uint32_t none = bad[k.stage];
                wgmma_wait<0>();
                wgmma_pin<WG_SUMS(KEYS)>(s);
                if (lane == 0)
                    mbar_arrive(k_empty + k.stage);
                many_step<RING>(k);
                many_shares<KEYS>(s, p, it.t, none, !none && it.t >= all0 && it.t + KEYS <= all1, seen, most, total,
                                  was);
                UNROLL
                for (int i = 0; i < KEYS / 4; i++)
                    shares[i] = pack_two(s[2 * i], s[2 * i + 1], FMT);
                if (it.t + KEYS < it.end)
                    mbar_wait(k_full + k.stage, k.phase);
                NO_UNROLL
                for (int t = it.t + KEYS; t < it.end; t += KEYS) {
                    mbar_wait(v_full + v.stage, v.phase);
                    if (TURNS) {
                        mbar_wait(turns + half, turn);
                        turn ^= 1;
                    }
                    wgmma_pin<WG_SUMS(KEYS)>(s);
                    wgmma_pin<WG_SUMS(D)>(o);
                    many_hold<KEYS / 4>(shares);
                    wgmma_fence();
                    many_scores<FMT, D, KEYS>(s, queries, keys + k.stage * TILE);
                    many_values<FMT, D, KEYS>(o, shares, values + v.stage * TILE);
                    if (TURNS && lane == 0)
                        mbar_arrive(turns + (half ^ 1));
                    none = bad[k.stage];
                    wgmma_wait<1>();
                    wgmma_pin<WG_SUMS(KEYS)>(s);
                    if (lane == 0)
                        mbar_arrive(k_empty + k.stage);
                    many_step<RING>(k);
                    many_shares<KEYS>(s, p, t, none, !none && t >= all0 && t + KEYS <= all1, seen, most, total, was);
                    wgmma_pin<WG_SUMS(KEYS)>(s);
                    /* here, so that the assembler does not move the wait for sums before the shares, beside which they
                     * are to be made: it does not across a branch */
                    if (t + KEYS < it.end)
                        mbar_wait(k_full + k.stage, k.phase);
                    wgmma_wait<0>();
                    wgmma_pin<WG_SUMS(D)>(o);
                    many_hold<KEYS / 4>(shares);
                    if (lane == 0)
                        mbar_arrive(v_empty + v.stage);
                    many_step<RING>(v);
                    UNROLL
                    for (int i = 0; i < WG_SUMS(D); i++)
                        o[i] *= was[i / 2 % 2];
                    UNROLL
                    for (int i = 0; i < KEYS / 4; i++)
                        shares[i] = pack_two(s[2 * i], s[2 * i + 1], FMT);
                }
                mbar_wait(v_full + v.stage, v.phase);
                wgmma_pin<WG_SUMS(D)>(o);
                many_hold<KEYS / 4>(shares);
                wgmma_fence();
                many_values<FMT, D, KEYS>(o, shares, values + v.stage * TILE);
                wgmma_wait<0>();
                wgmma_pin<WG_SUMS(D)>(o);
                many_hold<KEYS / 4>(shares);
                if (lane == 0)
                    mbar_arrive(v_empty + v.stage);
                many_step<RING>(v);
            }
            many_out<D>(y, sinks, p, it, mine, o, most, total);
        }
    }
}

#define MANY(F, f, D)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(MANY_BRING + 256, 1) many_##f##_##D(                                  \
        const uchar *q, const uchar *kp, const uchar *vp, const uchar *table, const uchar *len_p,                      \
        const uchar *start_p, const uchar *sinks, const uchar *, uchar *y, const uchar *counts, const lp_attn p)       \
    {                                                                                                                  \
        many<INFER_FMT_##F, D, LP_MANY_KEYS, LP_MANY_STAGES, 1>(q, kp, vp, table, len_p, start_p, sinks, y, counts,    \
                                                                p);                                                    \
    }
MANY(F16, f16, 64)
MANY(F16, f16, 128)
MANY(BF16, bf16, 64)
MANY(BF16, bf16, 128)

#endif
