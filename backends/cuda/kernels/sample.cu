/* Sampling without a sort. Candidates have a 64-bit key that rises in their order (falling logit, then rising id); a
 * cut is the place where a number or a sum of shares over the keys below it reaches its mark. Shares are integers
 * (units of 2^-44 of the best one's), so that sums are exact in whatever order they are made. Many blocks a row adjust
 * and reduce the logits, then count them into bins of equal width in logit / temperature. The block that is the last of
 * its row at that finds each cut's bin in the bins' sums, and looks at that bin's keys alone: it finds them by the bin
 * that each logit's was noted to be, and keeps them where they are not many.
 *
 * All take the same arguments. Scratch: rows * LP_SAMPLE_ROW(V) bytes at z_off, a multiple of 16.
 *   sample_prepare  grid x LP_SAMPLE_CHUNKS(V), y rows (walked), 256 threads
 *   sample_pick     grid x as many blocks a row as there is room for, at most LP_SAMPLE_CHUNKS(V), y rows (walked),
 *                   512 threads; a row that takes the best is done by the first
 *   count_ids       where counts are given: grid x ceil(rows / 128), 128 threads
 * SPDX-License-Identifier: Apache-2.0 */
#include <float.h>

#include "async.cuh"

typedef unsigned long long u64;
#define THREADS 512               /* of sample_pick */
#define LIST    2048              /* keys that its block holds */
#define FEW     128               /* keys that are ranked by looking at each pair */
#define SUBS    256               /* parts of a bin */
#define NO_BIN  0xFFFFu           /* of what cannot be chosen */
#define ONE     17592186044416.0f /* 2^44 */

/* Larger logits have smaller keys; +0 and -0 are one number. */
DEV u64 key_of(float z, int id)
{
    uint32_t u = bits_of(z == 0 ? 0.0f : z);
    u = u & 0x80000000u ? u : ~(u | 0x80000000u);
    return (u64)u << 32 | (uint32_t)id;
}

struct chunk_sum {
    float most;
    int id; /* -1: nothing can be chosen */
    float sum;
    int unused;
};

/* A row's scratch. */
struct sample_scratch {
    float *z;
    u64 *share;       /* [LP_SAMPLE_BINS] */
    uint32_t *number; /* [LP_SAMPLE_BINS] */
    uint32_t *done;   /* blocks that have counted */
    uint16_t *bin;    /* of each logit, up to a multiple of 8 */
    chunk_sum *chunk;
};

DEV sample_scratch scratch_of(uchar *scratch, const lp_sample &p, int row)
{
    int64_t n = p.x.width;
    uchar *base = scratch + p.z_off + (int64_t)row * (int64_t)LP_SAMPLE_ROW(n);
    sample_scratch s;
    s.z = (float *)base;
    s.share = (u64 *)(base + (n + 3) / 4 * 16);
    s.number = (uint32_t *)(s.share + LP_SAMPLE_BINS);
    s.done = s.number + LP_SAMPLE_BINS;
    s.chunk = (chunk_sum *)(s.done + 4);
    s.bin = (uint16_t *)(s.chunk + LP_SAMPLE_CHUNKS(n));
    return s;
}

DEV infer_sample_row row_of(const uchar *params, const lp_sample &p, int row)
{
    return *(const infer_sample_row *)(params + at(p.params, row));
}

/* Best ones that a row asks for. */
DEV int tops_of(const infer_sample_row &r, const lp_sample &p)
{
    return r.flags & INFER_SAMPLE_NO_TOP ? 0 : p.n_top;
}

/* Distance from the best in units of the temperature: falls with the logit, 0 for the best. */
DEV float distance(const infer_sample_row &r, float top, float z)
{
    return (top - z) / (r.temperature > 0 ? r.temperature : 1.0f);
}

DEV int bin_of(float distance)
{
    float b = mul(distance, 32.0f);
    return b < (float)(LP_SAMPLE_BINS - 1) ? (int)b : LP_SAMPLE_BINS - 1;
}

DEV u64 share_of(float distance)
{
    return (u64)mul(expf(-distance), ONE);
}

/* The best of a row, from its chunks; index -1: none. */
DEV void best_of(const sample_scratch &s, int chunks, float &most, int &id)
{
    most = 0;
    id = -1;
    for (int c = thread_id(); c < chunks; c += block_threads())
        better(most, id, s.chunk[c].most, s.chunk[c].id);
    block_best(most, id);
}

/* Four logits from `first` on, -INFINITY past the end. */
DEV void ld_logits(const uchar *x, int fmt, int first, int n, float v[4])
{
    if (fmt == INFER_FMT_F32 && first + 4 <= n && is_aligned(x, 16)) {
        uint4 u = ld_16(x + 4 * (int64_t)first);
        v[0] = float_of(u.x), v[1] = float_of(u.y), v[2] = float_of(u.z), v[3] = float_of(u.w);
        return;
    }
    for (int j = 0; j < 4; j++)
        v[j] = first + j < n ? ld(x, fmt, first + j) : -INFINITY;
}

extern "C" __global__ void __launch_bounds__(LP_SAMPLE_CHUNK / 4, 6)
    sample_prepare(const uchar *x, const uchar *params, const uchar *counts_p, const uchar *bias, const uchar *mask_p,
                   uchar *, uchar *, uchar *, uchar *, uchar *scratch, const uchar *step, const lp_sample p)
{
    SHARED(float, z, LP_SAMPLE_CHUNK);
    SHARED(chunk_sum, part, LP_SAMPLE_CHUNK / 4 / WAVE);
    int t = thread_id(), chunk = (int)blockIdx.x * LP_SAMPLE_CHUNK, n = p.x.width, first = chunk + 4 * t;
    grid_go();
    grid_wait();
    int rows = rows_of(step, p.rows);
    FOR_VECTORS(row, rows)
    {
        sample_scratch s = scratch_of(scratch, p, row);
        float v[4];
        ld_logits(x + at(p.x, row), p.x.fmt, first, n, v);
        infer_sample_row r = row_of(params, p, row);
        if (r.temperature > 0 || tops_of(r, p)) /* bins will be counted */
            for (int i = (int)blockIdx.x * block_threads() + t; i < LP_SAMPLE_BINS;
                 i += (int)gridDim.x * block_threads()) {
                s.share[i] = 0;
                s.number[i] = 0;
                if (i == 0)
                    *s.done = 0;
            }
        if (p.counts.fmt && r.counts_row >= 0 && r.counts_row < p.n_counts) {
            const uint16_t *counts = (const uint16_t *)(counts_p + at(p.counts, r.counts_row));
            for (int j = 0; j < 4 && first + j < n; j++) {
                uint32_t entry = counts[first + j], times = entry & 0x7FFFu;
                float rep = r.repetition_penalty;
                if (entry && rep > 0 && rep != 1)
                    v[j] = v[j] > 0 ? v[j] / rep : mul(v[j], rep);
                if (times)
                    v[j] -= add(r.presence_penalty, mul(r.frequency_penalty, (float)times));
            }
        }
        if (p.bias.fmt && r.bias_count) {
            __syncthreads();
            for (int j = 0; j < 4; j++)
                z[4 * t + j] = v[j];
            __syncthreads();
            for (u64 i = 0; i < r.bias_count && t == 0; i++) { /* in order: an id may come twice */
                u64 which = (u64)r.bias_first + i;
                if (which >= (u64)p.n_bias)
                    break;
                const infer_sample_bias *b = (const infer_sample_bias *)(bias + at(p.bias, (int64_t)which));
                if (b->id >= chunk && b->id - chunk < LP_SAMPLE_CHUNK)
                    z[b->id - chunk] += b->bias;
            }
            __syncthreads();
            for (int j = 0; j < 4; j++)
                v[j] = z[4 * t + j];
        }
        uint32_t allowed = 15;
        if (p.mask.fmt && r.flags & INFER_SAMPLE_MASKED && first < n)
            allowed = ((const uint32_t *)(mask_p + at(p.mask, row)))[first / 32] >> first % 32;
        float most = 0, sum = 0;
        int best = -1;
        for (int j = 0; j < 4; j++) {
            v[j] = first + j >= n || !(allowed >> j & 1u) || isnan(v[j]) ? -INFINITY : fminf(v[j], FLT_MAX);
            if (v[j] != -INFINITY)
                better(most, best, v[j], first + j);
        }
        if (first < n && (r.temperature > 0 || tops_of(r, p))) /* else nobody reads them */
            st_16(s.z + first, bits_of(v[0]), bits_of(v[1]), bits_of(v[2]), bits_of(v[3]));
        /* each wave by its own best, then the first thread joins them: one barrier */
        wave_best(most, best);
        for (int j = 0; j < 4 && best >= 0; j++)
            sum += v[j] == -INFINITY ? 0.0f : expf(v[j] - most);
        sum = wave_sum(sum);
        if (row >= (int)gridDim.y)
            __syncthreads(); /* the row before has been joined */
        if (t % WAVE == 0) {
            chunk_sum c = {most, best, sum, 0};
            part[t / WAVE] = c;
        }
        __syncthreads();
        if (t == 0) {
            chunk_sum c = part[0];
            for (int w = 1; w < block_threads() / WAVE; w++)
                better(c.most, c.id, part[w].most, part[w].id);
            c.sum = 0;
            for (int w = 0; w < block_threads() / WAVE; w++)
                c.sum += part[w].id < 0 ? 0.0f : part[w].sum * expf(part[w].most - c.most);
            s.chunk[blockIdx.x] = c;
        }
    }
}

/* What sample_pick's block shares. share and number are sums up to and with each bin. */
struct pick {
    infer_sample_row r;
    sample_scratch s;
    u64 *share, *list, *few, *few_share, *sub_share, *found;
    uint32_t *number, *sub_number;
    int *count;
    float top;
    int n;
    int listed, from, to; /* list holds the keys of bins from .. to; none: to -1 */
};

DEV float logit_of(u64 key)
{
    uint32_t u = (uint32_t)(key >> 32);
    return float_of(u & 0x80000000u ? u : ~u & 0x7FFFFFFFu);
}

DEV float distance_of(const pick &k, u64 key)
{
    return distance(k.r, k.top, logit_of(key));
}

/* Where in its bin a key lies: rises with it. */
DEV int sub_of(const pick &k, u64 key, int b)
{
    float in = (mul(distance_of(k, key), 32.0f) - (float)b) * (float)SUBS;
    return in < (float)(SUBS - 1) ? (int)in : SUBS - 1;
}

/* Gives f all logits of bins lo .. hi, in any order, by all threads: a bit each of 64 from group g on (id_of). The
 * tests come first and together: what f waits for is waited for once for several. */
template <class F> DEV void each_hits(const pick &k, int lo, int hi, F f)
{
    const int ahead = 8;
    const uint4 none = {0xFFFFFFFFu, 0xFFFFFFFFu, 0xFFFFFFFFu, 0xFFFFFFFFu};
    int groups = (k.n + 7) / 8;
    for (int g = thread_id(); g < groups; g += ahead * THREADS) {
        uint4 u[ahead];
        u64 hits = 0;
        UNROLL
        for (int a = 0; a < ahead; a++)
            u[a] = g + a * THREADS < groups ? ld_fresh((const uint4 *)k.s.bin + g + a * THREADS) : none;
        UNROLL
        for (int half = 0; half < 2; half++) {
            uint32_t bits = 0;
            UNROLL
            for (int a = 0; a < 4; a++) {
                const uint4 &v = u[4 * half + a];
                const uint32_t w[4] = {v.x, v.y, v.z, v.w};
                UNROLL
                for (int i = 0; i < 8; i++) {
                    uint32_t b = (i % 2 ? w[i / 2] >> 16 : w[i / 2] & 0xFFFFu) - (uint32_t)lo;
                    bits |= (uint32_t)(b <= (uint32_t)(hi - lo)) << (8 * a + i);
                }
            }
            hits |= (u64)bits << 32 * half;
        }
        if (hits)
            f(hits, g);
    }
}

DEV int id_of(u64 hits, int g)
{
    int i = first_bit(hits);
    return 8 * (g + i / 8 * THREADS) + i % 8;
}

/* Does f(key) for all keys of bins lo .. hi. */
template <class F> DEV void each_key(const pick &k, int lo, int hi, F f)
{
    if (lo < k.from || hi > k.to) {
        each_hits(k, lo, hi, [&](u64 hits, int g) {
            for (; hits; hits &= hits - 1) {
                int id = id_of(hits, g);
                f(key_of(k.s.z[id], id));
            }
        });
        return;
    }
    int all = lo == k.from && hi == k.to;
    for (int i = thread_id(); i < k.listed; i += THREADS) {
        u64 key = k.list[i];
        int b = all ? lo : bin_of(distance_of(k, key));
        if (b >= lo && b <= hi)
            f(key);
    }
}

/* The first of n rising sums that reaches the mark, the last if none does. */
template <class T> DEV int reaches(const T *sums, int n, u64 mark)
{
    int lo = 0, hi = n - 1;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if ((u64)sums[mid] >= mark)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

DEV uint32_t keys_in(const pick &k, int b)
{
    return k.number[b] - (b ? k.number[b - 1] : 0);
}

/* Puts the keys that f takes into a list; returns how many. */
template <class F> DEV int list_keys(const pick &k, int lo, int hi, u64 *list, int most, F f)
{
    __syncthreads();
    if (thread_id() == 0)
        *k.count = 0;
    __syncthreads();
    each_key(k, lo, hi, [&](u64 key) {
        if (f(key)) {
            int to = atomicAdd(k.count, 1);
            if (to < most)
                list[to] = key;
        }
    });
    __syncthreads();
    return *k.count;
}

/* Holds the keys of bin b if they are few enough; with those of the bins before it, if they are. */
DEV void hold(pick &k, int b)
{
    if (b >= k.from && b <= k.to)
        return;
    int from = k.number[b] <= LIST ? 0 : b;
    if (keys_in(k, b) > LIST)
        return;
    k.to = -1;
    __syncthreads();
    if (thread_id() == 0)
        *k.count = 0;
    __syncthreads();
    each_hits(k, from, b, [&](u64 hits, int g) {
        for (int to = atomicAdd(k.count, bits_in(hits)); hits && to < LIST; hits &= hits - 1)
            k.list[to++] = (u64)id_of(hits, g);
    });
    __syncthreads();
    k.listed = *k.count;
    for (int i = thread_id(); i < k.listed; i += THREADS)
        k.list[i] = key_of(k.s.z[k.list[i]], (int)k.list[i]);
    __syncthreads();
    k.from = from;
    k.to = b;
}

/* Sums over the threads up to and with each. */
DEV void scan(u64 &a, uint32_t &b)
{
    SHARED(u64, as, MAX_WAVES);
    SHARED(uint32_t, bs, MAX_WAVES);
    int t = thread_id(), lane = t % WAVE;
    for (int m = 1; m < WAVE; m *= 2) {
        u64 x = wave_from(a, lane >= m ? lane - m : lane);
        uint32_t y = wave_from(b, lane >= m ? lane - m : lane);
        a += lane >= m ? x : 0;
        b += lane >= m ? y : 0;
    }
    __syncthreads();
    if (lane == WAVE - 1) {
        as[t / WAVE] = a;
        bs[t / WAVE] = b;
    }
    __syncthreads();
    for (int w = 0; w < t / WAVE; w++) {
        a += as[w];
        b += bs[w];
    }
}

/* The key behind the one with which numbers (or shares) reach the mark; *total: the shares up to there. */
DEV u64 cut(pick &k, int by_share, u64 mark, u64 &total)
{
    int t = thread_id(),
        b = by_share ? reaches(k.share, LP_SAMPLE_BINS, mark) : reaches(k.number, LP_SAMPLE_BINS, mark);
    u64 base = b ? k.share[b - 1] : 0, need = mark - (by_share ? base : b ? (u64)k.number[b - 1] : 0);
    int keys = (int)keys_in(k, b), sub = -1;
    hold(k, b);
    if (keys > FEW) {
        __syncthreads();
        for (int i = t; i < SUBS; i += THREADS) {
            k.sub_share[i] = 0;
            k.sub_number[i] = 0;
        }
        __syncthreads();
        each_key(k, b, b, [&](u64 key) {
            int to = sub_of(k, key, b);
            shared_add(&k.sub_share[to], share_of(distance_of(k, key)));
            atomicAdd(&k.sub_number[to], (uint32_t)1);
        });
        __syncthreads();
        u64 shares = t < SUBS ? k.sub_share[t] : 0;
        uint32_t numbers = t < SUBS ? k.sub_number[t] : 0;
        scan(shares, numbers);
        if (t < SUBS) {
            k.sub_share[t] = shares;
            k.sub_number[t] = numbers;
        }
        __syncthreads();
        sub = by_share ? reaches(k.sub_share, SUBS, need) : reaches(k.sub_number, SUBS, need);
        keys = (int)k.sub_number[sub];
        if (sub) {
            keys -= (int)k.sub_number[sub - 1];
            need -= by_share ? k.sub_share[sub - 1] : (u64)k.sub_number[sub - 1];
            base += k.sub_share[sub - 1];
        }
    }
    auto inside = [&](u64 key) { return sub < 0 || sub_of(k, key, b) == sub; };
    if (keys <= FEW) { /* a key a thread: what lies up to it */
        list_keys(k, b, b, k.few, FEW, inside);
        if (t < keys)
            k.few_share[t] = share_of(distance_of(k, k.few[t]));
        __syncthreads();
        if (t < keys) {
            u64 mine = k.few[t], m = 0, s = 0, own = by_share ? k.few_share[t] : 1;
            for (int i = 0; i < keys; i++)
                if (k.few[i] <= mine) {
                    s += k.few_share[i];
                    m++;
                }
            u64 reach = by_share ? s : m;
            if (reach >= need && reach - own < need) {
                k.found[0] = mine + 1;
                k.found[1] = base + s;
            }
        }
        __syncthreads();
        total = k.found[1];
        u64 key = k.found[0];
        __syncthreads();
        return key;
    }
    /* many that are nearly equal: halve what lies between the first and the last */
    u64 low = 0, high = 0;
    each_key(k, b, b, [&](u64 key) {
        if (inside(key)) {
            low = ~key > low ? ~key : low;
            high = key > high ? key : high;
        }
    });
    u64 from = ~block_max(low), to = block_max(high) + 1, m, s;
    for (;;) {
        u64 mid = to - from > 1 ? from + (to - from) / 2 : to;
        m = s = 0;
        each_key(k, b, b, [&](u64 key) {
            if (key < mid && inside(key)) {
                m++;
                s += share_of(distance_of(k, key));
            }
        });
        m = block_sum(m);
        s = block_sum(s);
        if (to - from <= 1)
            break;
        if ((by_share ? s : m) >= need)
            to = mid;
        else
            from = mid;
    }
    total = base + s;
    return to;
}

/* floor(u * s) for the row's uniform number u, which has 24 bits. */
DEV u64 uniform_times(const infer_sample_row &r, u64 s)
{
    u64 x = r.seed + (r.position + 1) * 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    x ^= x >> 31;
    x >>= 40;
    return x * (s >> 24) + (x * (s & 0xFFFFFFu) >> 24);
}

/* The shares of all that has at least min_p times the best one's probability. Bins beside the border's are all in or
 * out. */
DEV u64 likely(const pick &k, float min_p)
{
    if (min_p > 1)
        return share_of(0);
    int b = bin_of(-logf(min_p)), lo = b > 1 ? b - 1 : 0, hi = b + 1 < LP_SAMPLE_BINS ? b + 1 : LP_SAMPLE_BINS - 1;
    u64 s = 0;
    each_key(k, lo, hi, [&](u64 key) {
        float far = distance_of(k, key);
        s += expf(-far) >= min_p ? share_of(far) : 0;
    });
    return block_sum(s) + (lo ? k.share[lo - 1] : 0);
}

DEV int draw(pick &k, int top_id)
{
    u64 total = k.share[LP_SAMPLE_BINS - 1], number = k.number[LP_SAMPLE_BINS - 1];
    if (k.r.top_k > 0 && (u64)k.r.top_k < number)
        cut(k, 0, (u64)k.r.top_k, total);
    if (k.r.top_p < 1) {
        double mark = ceil((double)k.r.top_p * (double)total);
        if (mark >= 1)
            cut(k, 1, mark < (double)total ? (u64)mark : total, total);
        else
            total = share_of(0);
    }
    if (k.r.min_p > 0) { /* what is left is always the first keys */
        u64 s = likely(k, k.r.min_p);
        total = s < total ? s : total;
    }
    u64 unused;
    int id = (int)(uint32_t)(cut(k, 1, uniform_times(k.r, total) + 1, unused) - 1);
    return id >= 0 && id < k.n ? id : top_id; /* a compiler that gave two kernels two exponentials would miss the cut */
}

/* The n_top best in order: those below the cut at their number, each at the place that its rank says. */
DEV void write_top(pick &k, int want, float lse, int *ids, uchar *lps, int lp_fmt)
{
    u64 number = k.number[LP_SAMPLE_BINS - 1], unused;
    int have = number < (u64)want ? (int)number : want, t = thread_id();
    if (have) {
        u64 end = cut(k, 0, (u64)have, unused);
        list_keys(k, 0, reaches(k.number, LP_SAMPLE_BINS, (u64)have), k.few, FEW, [=](u64 key) { return key < end; });
    }
    for (int i = t; i < want; i += THREADS) {
        int rank = i;
        if (i < have) {
            rank = 0;
            for (int j = 0; j < have; j++)
                rank += k.few[j] < k.few[i];
        }
        ids[rank] = i < have ? (int)(uint32_t)k.few[i] : -1;
        st(lps, lp_fmt, rank, i < have ? logit_of(k.few[i]) - k.top - lse : QUIET_NAN);
    }
    __syncthreads();
}

/* Counts this block's chunks into the row's bins. 1: it is the last to do so, and all are there. */
DEV int count_bins(const pick &k, int chunks)
{
    int t = thread_id(), padded = (k.n + 7) / 8 * 8;
    __syncthreads();
    for (int i = t; i < LP_SAMPLE_BINS; i += THREADS) {
        k.share[i] = 0;
        k.number[i] = 0;
    }
    __syncthreads();
    const int ahead = 4;
    int from = chunks * (int)blockIdx.x / (int)gridDim.x * LP_SAMPLE_CHUNK;
    int to = chunks * ((int)blockIdx.x + 1) / (int)gridDim.x * LP_SAMPLE_CHUNK;
    to = to < padded ? to : padded;
    for (int first = from + t; first < to; first += ahead * THREADS) {
        float v[ahead];
        UNROLL
        for (int j = 0; j < ahead; j++)
            v[j] = first + j * THREADS < to && first + j * THREADS < k.n ? k.s.z[first + j * THREADS] : -INFINITY;
        UNROLL
        for (int j = 0; j < ahead; j++) {
            uint32_t b = NO_BIN;
            if (v[j] != -INFINITY) {
                float far = distance(k.r, k.top, v[j]);
                b = (uint32_t)bin_of(far);
                shared_add(&k.share[b], share_of(far));
                atomicAdd(&k.number[b], (uint32_t)1);
            }
            if (first + j * THREADS < to)
                k.s.bin[first + j * THREADS] = (uint16_t)b;
        }
    }
    __syncthreads();
    for (int i = t; i < LP_SAMPLE_BINS; i += THREADS)
        if (k.number[i]) {
            if (k.share[i])
                atomicAdd(&k.s.share[i], k.share[i]);
            atomicAdd(&k.s.number[i], k.number[i]);
        }
    device_fence();
    __syncthreads();
    if (t == 0)
        *k.count = atomicAdd(k.s.done, (uint32_t)1) == gridDim.x - 1;
    __syncthreads();
    if (!*k.count)
        return 0;
    device_fence();
    const int each = LP_SAMPLE_BINS / THREADS; /* neighbours */
    u64 share[each], shares = 0;
    uint32_t number[each], numbers = 0;
    UNROLL
    for (int j = 0; j < each; j++) {
        share[j] = shares += ld_fresh(&k.s.share[each * t + j]);
        number[j] = numbers += ld_fresh(&k.s.number[each * t + j]);
    }
    scan(shares, numbers);
    UNROLL
    for (int j = 0; j < each; j++) {
        k.share[each * t + j] = shares - share[each - 1] + share[j];
        k.number[each * t + j] = numbers - number[each - 1] + number[j];
    }
    __syncthreads();
    return 1;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    sample_pick(const uchar *, const uchar *params, const uchar *, const uchar *, const uchar *, uchar *ids, uchar *lp,
                uchar *top_ids, uchar *top_lp, uchar *scratch, const uchar *step, const lp_sample p)
{
    SHARED(u64, share, LP_SAMPLE_BINS);
    SHARED(uint32_t, number, LP_SAMPLE_BINS);
    SHARED(u64, list, LIST);
    SHARED(u64, few, FEW);
    SHARED(u64, few_share, FEW);
    SHARED(u64, sub_share, SUBS);
    SHARED(uint32_t, sub_number, SUBS);
    SHARED(u64, found, 2);
    SHARED(int, count, 1);
    int t = thread_id(), chunks = LP_SAMPLE_CHUNKS(p.x.width), id;
    grid_go();
    grid_wait();
    int rows = rows_of(step, p.rows);
    FOR_VECTORS(row, rows)
    {
        pick k = {row_of(params, p, row),
                  scratch_of(scratch, p, row),
                  share,
                  list,
                  few,
                  few_share,
                  sub_share,
                  found,
                  number,
                  sub_number,
                  count,
                  0,
                  p.x.width,
                  0,
                  0,
                  -1};
        int draws = k.r.temperature > 0, tops = tops_of(k.r, p);
        if (blockIdx.x && !draws && !tops)
            continue;
        best_of(k.s, chunks, k.top, id);
        draws = draws && id >= 0;
        if (id >= 0 && (draws || tops)) {
            if (!count_bins(k, chunks))
                continue;
        } else if (blockIdx.x) {
            continue;
        }
        float lse = 0;
        for (int c = t; c < chunks && id >= 0; c += THREADS)
            lse += k.s.chunk[c].id < 0 ? 0.0f : k.s.chunk[c].sum * expf(k.s.chunk[c].most - k.top);
        lse = logf(block_sum(lse));
        if (tops && id >= 0) {
            write_top(k, tops, lse, (int *)(top_ids + at(p.top_ids, row)), top_lp + at(p.top_lp, row), p.top_lp.fmt);
        } else if (p.n_top) {
            for (int i = t; i < p.n_top; i += THREADS) {
                ((int *)(top_ids + at(p.top_ids, row)))[i] = -1;
                st(top_lp + at(p.top_lp, row), p.top_lp.fmt, i, QUIET_NAN);
            }
        }
        if (draws)
            id = draw(k, id);
        if (t == 0) {
            ((int *)(ids + p.ids_off))[row] = id;
            st(lp + p.lp_off, p.lp_fmt, row, id < 0 ? QUIET_NAN : (draws ? k.s.z[id] : k.top) - k.top - lse);
        }
    }
}

/* After all rows: rows may share a counts row. The first of those that chose the same id there counts them all. */
extern "C" __global__ void count_ids(const uchar *params, uchar *counts_p, const uchar *ids, const uchar *step,
                                     const lp_sample p)
{
    grid_go();
    grid_wait();
    int rows = rows_of(step, p.rows), i = (int)(blockIdx.x * blockDim.x + threadIdx.x), times = 0;
    if (i >= rows)
        return;
    const int *chosen = (const int *)(ids + p.ids_off);
    int which = row_of(params, p, i).counts_row, id = chosen[i];
    if (which < 0 || which >= p.n_counts || id < 0)
        return;
    for (int j = 0; j < rows; j++)
        if (chosen[j] == id && row_of(params, p, j).counts_row == which) {
            if (j < i)
                return;
            times++;
        }
    uint16_t *c = (uint16_t *)(counts_p + at(p.counts, which)) + id;
    uint32_t now = *c & 0x7FFFu, next = now + (uint32_t)times;
    *c = (uint16_t)((*c & 0x8000u) | (next < 0x7FFFu ? next : 0x7FFFu));
}
