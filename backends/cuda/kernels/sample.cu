/* Sampling without a sort. Candidates have a 64-bit key that rises in their order (falling logit, then rising id); a
 * cut is the place where a number or a sum of shares over the keys below it reaches its mark. Shares are integers
 * (units of 2^-44 of the best one's), so that sums are exact in whatever order they are made. Bound by reading the
 * logits: many blocks a row adjust and reduce them and count them into bins of equal width in logit / temperature; one
 * block a row then finds each cut's bin in the bins' sums and looks through that bin alone.
 *
 * All take the same arguments. Scratch: rows * LP_SAMPLE_ROW(V) bytes at z_off, a multiple of 16.
 *   sample_prepare  grid x LP_SAMPLE_CHUNKS(V), y rows (walked), 256 threads
 *   sample_bins     as sample_prepare; does nothing for greedy rows without top_ids, but is to be launched
 *   sample_pick     grid x rows, 1024 threads
 *   count_ids       where counts are given: grid x ceil(rows / 128), 128 threads
 * SPDX-License-Identifier: Apache-2.0 */
#include <float.h>

#include "dev.cuh"

typedef unsigned long long u64;
#define THREADS 1024              /* of sample_pick */
#define LIST    1024              /* keys of a bin that are looked through at once */
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
    u64 *share, *number; /* [LP_SAMPLE_BINS] */
    chunk_sum *chunk;
};

DEV sample_scratch scratch_of(uchar *scratch, const lp_sample &p, int row)
{
    int64_t n = p.x.width;
    uchar *base = scratch + p.z_off + (int64_t)row * (int64_t)LP_SAMPLE_ROW(n);
    sample_scratch s;
    s.z = (float *)base;
    s.share = (u64 *)(base + (n + 3) / 4 * 16);
    s.number = s.share + LP_SAMPLE_BINS;
    s.chunk = (chunk_sum *)(s.number + LP_SAMPLE_BINS);
    return s;
}

DEV infer_sample_row row_of(const uchar *params, const lp_sample &p, int row)
{
    return *(const infer_sample_row *)(params + at(p.params, row));
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

extern "C" __global__ void __launch_bounds__(256)
    sample_prepare(const uchar *x, const uchar *params, const uchar *counts_p, const uchar *bias, const uchar *mask_p,
                   uchar *, uchar *, uchar *, uchar *, uchar *scratch, const uchar *step, const lp_sample p)
{
    SHARED(float, z, LP_SAMPLE_CHUNK);
    int t = thread_id(), threads = block_threads(), first = (int)blockIdx.x * LP_SAMPLE_CHUNK;
    int n = p.x.width - first < LP_SAMPLE_CHUNK ? p.x.width - first : LP_SAMPLE_CHUNK, rows = rows_of(step, p.rows);
    FOR_VECTORS(row, rows)
    {
        sample_scratch s = scratch_of(scratch, p, row);
        infer_sample_row r = row_of(params, p, row);
        const uint16_t *counts = 0;
        const uint32_t *mask = 0;
        const uchar *from = x + at(p.x, row);
        if (p.counts.fmt && r.counts_row >= 0 && r.counts_row < p.n_counts)
            counts = (const uint16_t *)(counts_p + at(p.counts, r.counts_row));
        if (p.mask.fmt && r.flags & INFER_SAMPLE_MASKED)
            mask = (const uint32_t *)(mask_p + at(p.mask, row));
        __syncthreads();
        for (int i = t; i < n; i += threads) {
            float v = ld(from, p.x.fmt, first + i);
            if (counts) {
                uint32_t entry = counts[first + i], times = entry & 0x7FFFu;
                float rep = r.repetition_penalty;
                if (entry && rep > 0 && rep != 1)
                    v = v > 0 ? v / rep : mul(v, rep);
                if (times)
                    v -= add(r.presence_penalty, mul(r.frequency_penalty, (float)times));
            }
            z[i] = v;
        }
        for (int i = (int)blockIdx.x * threads + t; i < LP_SAMPLE_BINS; i += (int)gridDim.x * threads)
            s.share[i] = s.number[i] = 0;
        __syncthreads();
        for (u64 i = 0; p.bias.fmt && i < r.bias_count && t == 0; i++) { /* in order: an id may come twice */
            u64 which = (u64)r.bias_first + i;
            if (which >= (u64)p.n_bias)
                break;
            const infer_sample_bias *b = (const infer_sample_bias *)(bias + at(p.bias, (int64_t)which));
            if (b->id >= first && b->id - first < n)
                z[b->id - first] += b->bias;
        }
        __syncthreads();
        float most = 0, sum = 0;
        int best = -1;
        for (int i = t; i < n; i += threads) {
            int id = first + i, forbidden = mask && !(mask[id / 32] >> (id % 32) & 1u);
            float v = forbidden || isnan(z[i]) ? -INFINITY : fminf(z[i], FLT_MAX);
            s.z[id] = z[i] = v;
            if (v != -INFINITY)
                better(most, best, v, id);
        }
        block_best(most, best);
        for (int i = t; i < n && best >= 0; i += threads)
            sum += z[i] == -INFINITY ? 0.0f : expf(z[i] - most);
        sum = block_sum(sum);
        if (t == 0) {
            chunk_sum c = {most, best, sum, 0};
            s.chunk[blockIdx.x] = c;
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
    sample_bins(const uchar *, const uchar *params, const uchar *, const uchar *, const uchar *, uchar *, uchar *,
                uchar *, uchar *, uchar *scratch, const uchar *step, const lp_sample p)
{
    SHARED(u64, share, LP_SAMPLE_BINS);
    SHARED(uint32_t, number, LP_SAMPLE_BINS);
    int t = thread_id(), threads = block_threads(), first = (int)blockIdx.x * LP_SAMPLE_CHUNK;
    int n = p.x.width - first < LP_SAMPLE_CHUNK ? p.x.width - first : LP_SAMPLE_CHUNK, rows = rows_of(step, p.rows);
    FOR_VECTORS(row, rows)
    {
        sample_scratch s = scratch_of(scratch, p, row);
        infer_sample_row r = row_of(params, p, row);
        if (!(r.temperature > 0) && !p.n_top)
            continue;
        float top;
        int top_id;
        best_of(s, LP_SAMPLE_CHUNKS(p.x.width), top, top_id);
        for (int i = t; i < LP_SAMPLE_BINS; i += threads) {
            share[i] = 0;
            number[i] = 0;
        }
        __syncthreads();
        for (int i = t; i < n && top_id >= 0; i += threads) {
            float v = s.z[first + i];
            if (v == -INFINITY)
                continue;
            float far = distance(r, top, v);
            atomicAdd(&share[bin_of(far)], share_of(far));
            atomicAdd(&number[bin_of(far)], (uint32_t)1);
        }
        __syncthreads();
        for (int i = t; i < LP_SAMPLE_BINS; i += threads)
            if (number[i]) {
                atomicAdd(&s.share[i], share[i]);
                atomicAdd(&s.number[i], (u64)number[i]);
            }
        __syncthreads();
    }
}

/* What sample_pick's block shares. share and number are sums up to and with each bin. */
struct pick {
    infer_sample_row r;
    const float *z;
    u64 *share, *number, *list;
    int *listed;
    float top;
    int n;
};

/* The keys of bin b, as far as LIST holds them; returns how many there are. */
DEV int list_bin(const pick &k, int b)
{
    __syncthreads();
    if (thread_id() == 0)
        *k.listed = 0;
    __syncthreads();
    for (int i = thread_id(); i < k.n; i += THREADS)
        if (k.z[i] != -INFINITY && bin_of(distance(k.r, k.top, k.z[i])) == b) {
            int to = atomicAdd(k.listed, 1);
            if (to < LIST)
                k.list[to] = key_of(k.z[i], i);
        }
    __syncthreads();
    return *k.listed;
}

DEV float logit_of(u64 key)
{
    uint32_t u = (uint32_t)(key >> 32);
    return float_of(u & 0x80000000u ? u : ~u & 0x7FFFFFFFu);
}

/* Numbers and shares of bin b's keys below `key`, read from all logits. */
DEV void below(const pick &k, int b, u64 key, u64 &number, u64 &share)
{
    u64 m = 0, s = 0;
    for (int i = thread_id(); i < k.n; i += THREADS) {
        if (k.z[i] == -INFINITY || key_of(k.z[i], i) >= key)
            continue;
        float far = distance(k.r, k.top, k.z[i]);
        if (bin_of(far) == b) {
            m++;
            s += share_of(far);
        }
    }
    number = block_sum(m);
    share = block_sum(s);
}

/* The least key below which the measure (shares or numbers) reaches mark, 1 <= mark <= all; total: the shares below. */
DEV u64 cut(const pick &k, int by_share, u64 mark, u64 &total)
{
    SHARED(u64, found, 2);
    const u64 *sums = by_share ? k.share : k.number;
    int lo = 0, hi = LP_SAMPLE_BINS - 1;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (sums[mid] >= mark)
            hi = mid;
        else
            lo = mid + 1;
    }
    if (thread_id() == 0)
        found[0] = found[1] = 0;
    u64 need = mark - (lo ? sums[lo - 1] : 0), base = lo ? k.share[lo - 1] : 0, m, s;
    int listed = list_bin(k, lo);
    if (listed <= LIST) { /* a key a thread: what lies up to it */
        u64 mine = thread_id() < listed ? k.list[thread_id()] : 0, reach = 0, own = 0;
        m = s = 0;
        for (int i = 0; i < listed; i++) {
            u64 w = share_of(distance(k.r, k.top, logit_of(k.list[i])));
            if (k.list[i] <= mine) {
                s += w;
                m++;
            }
            own = k.list[i] == mine ? w : own;
        }
        reach = by_share ? s : m;
        if (thread_id() < listed && reach >= need && reach - (by_share ? own : 1) < need) {
            found[0] = mine + 1;
            found[1] = base + s;
        }
        __syncthreads();
        total = found[1];
        u64 key = found[0];
        __syncthreads();
        return key;
    }
    u64 from = 0, to = ~(u64)0;
    while (to - from > 1) {
        u64 mid = from + (to - from) / 2;
        below(k, lo, mid, m, s);
        if ((by_share ? s : m) >= need)
            to = mid;
        else
            from = mid;
    }
    below(k, lo, to, m, s);
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

DEV int draw(const pick &k, int top_id)
{
    u64 all = k.share[LP_SAMPLE_BINS - 1], total = all, number = k.number[LP_SAMPLE_BINS - 1];
    u64 end = ~(u64)0, first = key_of(k.top, top_id);
    if (k.r.top_k > 0 && (u64)k.r.top_k < number)
        end = cut(k, 0, (u64)k.r.top_k, total);
    if (k.r.top_p < 1) {
        double mark = ceil((double)k.r.top_p * (double)total);
        if (mark >= 1) {
            u64 m = mark < (double)total ? (u64)mark : total;
            end = cut(k, 1, m, total);
        } else {
            end = first + 1;
            total = share_of(0);
        }
    }
    if (k.r.min_p > 0) {
        u64 last = first;
        for (int i = thread_id(); i < k.n; i += THREADS)
            if (k.z[i] != -INFINITY && expf(-distance(k.r, k.top, k.z[i])) >= k.r.min_p && key_of(k.z[i], i) > last)
                last = key_of(k.z[i], i);
        last = block_max(last);
        if (last + 1 < end) {
            int b = bin_of(distance(k.r, k.top, logit_of(last)));
            u64 m, s;
            below(k, b, last + 1, m, s);
            total = s + (b ? k.share[b - 1] : 0);
        }
    }
    u64 unused;
    int id = (int)(uint32_t)(cut(k, 1, uniform_times(k.r, total) + 1, unused) - 1);
    return id >= 0 && id < k.n ? id : top_id; /* a compiler that gave two kernels two exponentials would miss the cut */
}

/* The n_top best in order: those below the cut at their number, each at the place that its rank says. */
DEV void write_top(const pick &k, int want, float lse, int *ids, uchar *lps, int lp_fmt)
{
    u64 number = k.number[LP_SAMPLE_BINS - 1], unused;
    int have = number < (u64)want ? (int)number : want;
    u64 end = have ? cut(k, 0, (u64)have, unused) : 0;
    if (thread_id() == 0)
        *k.listed = 0;
    __syncthreads();
    for (int i = thread_id(); i < k.n && have; i += THREADS)
        if (k.z[i] != -INFINITY && key_of(k.z[i], i) < end)
            k.list[atomicAdd(k.listed, 1)] = key_of(k.z[i], i);
    __syncthreads();
    for (int i = thread_id(); i < want; i += THREADS) {
        int rank = i;
        if (i < have) {
            rank = 0;
            for (int j = 0; j < have; j++)
                rank += k.list[j] < k.list[i];
        }
        ids[rank] = i < have ? (int)(uint32_t)k.list[i] : -1;
        st(lps, lp_fmt, rank, i < have ? logit_of(k.list[i]) - k.top - lse : QUIET_NAN);
    }
    __syncthreads();
}

/* Sums up to and with each bin. */
DEV void sum_up(u64 *v)
{
    int t = thread_id();
    const int each = LP_SAMPLE_BINS / THREADS;
    for (int step = 1; step < LP_SAMPLE_BINS; step *= 2) {
        u64 add_to[each];
        __syncthreads();
        for (int j = 0; j < each; j++)
            add_to[j] = t + j * THREADS >= step ? v[t + j * THREADS - step] : 0;
        __syncthreads();
        for (int j = 0; j < each; j++)
            v[t + j * THREADS] += add_to[j];
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS)
    sample_pick(const uchar *, const uchar *params, const uchar *, const uchar *, const uchar *, uchar *ids, uchar *lp,
                uchar *top_ids, uchar *top_lp, uchar *scratch, const uchar *step, const lp_sample p)
{
    SHARED(u64, share, LP_SAMPLE_BINS);
    SHARED(u64, number, LP_SAMPLE_BINS);
    SHARED(u64, list, LIST);
    SHARED(int, listed, 1);
    int row = (int)blockIdx.x, t = thread_id(), chunks = LP_SAMPLE_CHUNKS(p.x.width), id;
    if (row >= rows_of(step, p.rows))
        return;
    sample_scratch s = scratch_of(scratch, p, row);
    pick k = {row_of(params, p, row), s.z, share, number, list, listed, 0, p.x.width};
    best_of(s, chunks, k.top, id);
    float lse = 0;
    for (int c = t; c < chunks && id >= 0; c += THREADS)
        lse += s.chunk[c].id < 0 ? 0.0f : s.chunk[c].sum * expf(s.chunk[c].most - k.top);
    lse = logf(block_sum(lse));
    int draws = k.r.temperature > 0 && id >= 0;
    if (draws || p.n_top) {
        for (int i = t; i < LP_SAMPLE_BINS; i += THREADS) {
            share[i] = s.share[i];
            number[i] = s.number[i];
        }
        sum_up(share);
        sum_up(number);
    }
    if (p.n_top)
        write_top(k, p.n_top, lse, (int *)(top_ids + at(p.top_ids, row)), top_lp + at(p.top_lp, row), p.top_lp.fmt);
    if (draws)
        id = draw(k, id);
    if (t == 0) {
        ((int *)(ids + p.ids_off))[row] = id;
        st(lp + p.lp_off, p.lp_fmt, row, id < 0 ? QUIET_NAN : s.z[id] - k.top - lse);
    }
}

/* After all rows: rows may share a counts row. The first of those that chose the same id there counts them all. */
extern "C" __global__ void count_ids(const uchar *params, uchar *counts_p, const uchar *ids, const uchar *step,
                                     const lp_sample p)
{
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
