/* Sampling, one work-group a row, without a sort: candidates have a 64-bit key that rises in their order (falling logit,
 * then rising id), and every cut is the place where a count or a sum over the keys below it reaches its mark, found by
 * halving. Sums are taken in the same order each time, so that they rise with the key. SPDX-License-Identifier: Apache-2.0
 */

typedef struct sample_row {
    float temperature, top_p, min_p;
    int top_k;
    float repetition, presence, frequency;
    int counts_row;
    ulong seed, position;
    uint bias_first, bias_count, flags, reserved;
} sample_row;

#if LANES == 1
#define SYNC()
#else
#define SYNC() barrier(CLK_GLOBAL_MEM_FENCE | CLK_LOCAL_MEM_FENCE)
#endif

/* AHEAD values of a lane, LANES apart, all under way at once; past the end none is a candidate. */
#define AHEAD 16
#define LOAD_AHEAD(v, z, b, n)                                                                                         \
    for (int k = 0; k < AHEAD; k++)                                                                                    \
        v[k] = (b) + k * LANES < (n) ? (z)[(b) + k * LANES] : -INFINITY;

/* Larger logits have smaller keys; +0 and -0 are one number. */
ulong key_of(float z, int id)
{
    uint u = as_uint(z == 0 ? 0.0f : z);
    u = u & 0x80000000u ? u : ~(u | 0x80000000u);
    return (ulong)u << 32 | (uint)id;
}

/* Numbers or shares of the candidates below a key, by all lanes; long sums in parts of AHEAD terms. */
float below(const G float *z, const G float *p, int n, ulong key, L float *tmp)
{
    float sum = 0;
    for (int b = get_local_id(0); b < n; b += AHEAD * LANES) {
        float v[AHEAD], w[AHEAD], part = 0;
        LOAD_AHEAD(v, z, b, n)
        for (int k = 0; k < AHEAD; k++)
            w[k] = !p ? 1.0f : b + k * LANES < n ? p[b + k * LANES] : 0.0f;
        for (int k = 0; k < AHEAD; k++)
            part += v[k] != -INFINITY && key_of(v[k], b + k * LANES) < key ? w[k] : 0.0f;
        sum += part;
    }
    return group_sum(sum, tmp);
}

/* The least key below which the measure reaches mark (strict: exceeds it), between lo, which does not, and hi. */
ulong cut(const G float *z, const G float *p, int n, ulong lo, ulong hi, float mark, int strict, L float *tmp)
{
    while (hi - lo > 1) {
        ulong mid = lo + (hi - lo) / 2;
        float m = below(z, p, n, mid, tmp);
        if (strict ? m > mark : m >= mark)
            hi = mid;
        else
            lo = mid;
    }
    return hi;
}

float uniform_of(ulong seed, ulong position)
{
    ulong x = seed + (position + 1) * 0x9E3779B97F4A7C15UL;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9UL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBUL;
    x ^= x >> 31;
    return (float)(x >> 40) * (1.0f / 16777216.0f);
}

/* The best candidate whose key is above `after` (0: the best of all); -1: none. */
int best_after(const G float *z, int n, ulong after, L float *tmp, L int *tmi)
{
    int best = -1;
    float most = 0;
    for (int b = get_local_id(0); b < n; b += AHEAD * LANES) {
        float v[AHEAD];
        LOAD_AHEAD(v, z, b, n)
        for (int k = 0; k < AHEAD; k++) {
            int i = b + k * LANES;
            if (v[k] != -INFINITY && (best < 0 || v[k] > most) && (!after || key_of(v[k], i) > after)) {
                most = v[k];
                best = i;
            }
        }
    }
    return group_best(most, best, tmp, tmi);
}

/* All of z's candidates are candidates; top: the best of them. */
int draw(const sample_row *r, const G float *z, G float *p, int n, int top, L float *tmp, L int *tmi)
{
    ulong none = key_of(-INFINITY, 0), first = key_of(z[top], top), end = none;
    for (int i = get_local_id(0); i < n; i += LANES)
        p[i] = z[i] == -INFINITY ? 0.0f : exp((z[i] - z[top]) / r->temperature);
    SYNC();
    if (r->top_k > 0 && r->top_k < n && below(z, 0, n, none, tmp) > (float)r->top_k)
        end = cut(z, 0, n, first, none, (float)r->top_k, 0, tmp);
    if (r->top_p < 1) {
        float mark = r->top_p * below(z, p, n, end, tmp);
        end = mark > 0 ? cut(z, p, n, first, end, mark, 0, tmp) : first + 1;
    }
    if (r->min_p > 0) { /* a share's order is the key's: leave what is too small out of all sums */
        for (int i = get_local_id(0); i < n; i += LANES)
            if (p[i] < r->min_p && i != top)
                p[i] = 0;
        SYNC();
    }
    float mark = uniform_of(r->seed, r->position) * below(z, p, n, end, tmp);
    if (below(z, p, n, end, tmp) > mark)
        return (int)(uint)(cut(z, p, n, first, end, mark, 1, tmp) - 1);
    /* rounding only: the last one kept */
    int last = -1;
    float least = 0;
    for (int i = get_local_id(0); i < n; i += LANES)
        if (p[i] > 0 && key_of(z[i], i) < end && (last < 0 || z[i] <= least)) {
            least = z[i];
            last = i;
        }
    return group_best(-least, last, tmp, tmi);
}

/* A logit as candidates have it: forbidden ones and NaN are none. */
float candidate(float v, const G uint *mask, int i)
{
    int forbidden = mask && !(mask[i / 32] >> (i % 32) & 1u);
    return forbidden || isnan(v) ? -INFINITY : fmin(v, FLT_MAX);
}

/* The best of a row as it is, in one pass with the logarithm of the sum of exp(logit - best): a lane has the best of its
 * own elements and their sum, which is scaled whenever it meets a better one. */
int best_of(const G uchar *x, int fmt, int n, float *lse, L float *tmp, L int *tmi)
{
    int best = -1;
    float most = -INFINITY, sum = 0;
    for (int b = get_local_id(0); b < n; b += AHEAD * LANES) {
        float v[AHEAD], high = -INFINITY;
        _Pragma("unroll") for (int k = 0; k < AHEAD; k++)
            v[k] = b + k * LANES < n ? candidate(ld(x, fmt, b + k * LANES), 0, 0) : -INFINITY;
        _Pragma("unroll") for (int k = 0; k < AHEAD; k++)
            high = fmax(high, v[k]);
        if (high > most) {
            sum = best < 0 ? 0.0f : sum * exp(most - high);
            most = high;
            _Pragma("unroll") for (int k = AHEAD - 1; k >= 0; k--)
                best = v[k] == high ? b + k * LANES : best;
        }
        _Pragma("unroll") for (int k = 0; k < AHEAD; k++)
            sum += v[k] == -INFINITY ? 0.0f : exp(v[k] - most);
    }
    int top = group_best(most, best, tmp, tmi);
    float all = top < 0 ? 0.0f : candidate(ld(x, fmt, top), 0, 0);
    *lse = log(group_sum(best < 0 ? 0.0f : sum * exp(most - all), tmp));
    return top;
}

/* An id that was chosen, counted for later penalties. */
void count_id(const lp_sample *p, G uchar *counts, int which, int id)
{
    if (which < 0 || which >= p->n_counts || id < 0)
        return;
    G ushort *c = (G ushort *)(counts + at(&p->counts, which)) + id;
    if ((*c & 0x7FFFu) < 0x7FFFu)
        (*c)++;
}

__kernel GROUP_OF_LANES void sample(const G uchar *x, const G uchar *params, G uchar *counts_p, const G uchar *bias,
                     const G uchar *mask_p, G uchar *ids, G uchar *lp, G uchar *top_ids, G uchar *top_lp, G uchar *scratch,
                     const G uchar *step, const lp_sample p)
{
    SCRATCH_F(tmp);
    SCRATCH_I(tmi);
    int row = get_group_id(0), lane = get_local_id(0), n = p.x.width;
    if (row >= rows_of(step, &p.rows))
        return;
    G float *z = (G float *)(scratch + p.z_off) + (long)row * 2 * n, *share = z + n;
    const sample_row r = *(const G sample_row *)(params + at(&p.params, row));
    const G ushort *counts = 0;
    const G uint *mask = 0;
    if (p.counts.fmt && r.counts_row >= 0 && r.counts_row < p.n_counts)
        counts = (const G ushort *)(counts_p + at(&p.counts, r.counts_row));
    if (p.mask.fmt && r.flags & SAMPLE_MASKED)
        mask = (const G uint *)(mask_p + at(&p.mask, row));
    x += at(&p.x, row);
    int biased = p.bias.fmt && r.bias_count, listed = p.n_top && !(r.flags & SAMPLE_NO_TOP);
    /* the best of the logits as they are needs no copy of them */
    int plain = !counts && !mask && !biased && !listed && !(r.temperature > 0), top = -1, id = -1;
    float lse = 0;
    if (plain)
        top = id = best_of(x, p.x.fmt, n, &lse, tmp, tmi);
    for (int b = lane; b < n && !plain; b += AHEAD * LANES) {
        float v[AHEAD];
        for (int k = 0; k < AHEAD; k++)
            v[k] = b + k * LANES < n ? ld(x, p.x.fmt, b + k * LANES) : 0.0f;
        for (int k = 0, i = b; k < AHEAD && i < n; k++, i += LANES) {
            if (counts) {
                uint entry = counts[i], times = entry & 0x7FFFu;
                if (entry && r.repetition > 0 && r.repetition != 1)
                    v[k] = v[k] > 0 ? v[k] / r.repetition : v[k] * r.repetition;
                if (times)
                    v[k] -= r.presence + r.frequency * (float)times;
            }
            z[i] = biased ? v[k] : candidate(v[k], mask, i);
        }
    }
    SYNC();
    for (ulong i = 0; biased && i < r.bias_count && lane == 0; i++) {
        ulong which = (ulong)r.bias_first + i;
        if (which >= (ulong)p.n_bias)
            break;
        const G uchar *b = bias + at(&p.bias, which);
        int id = *(const G int *)b;
        if (id >= 0 && id < n)
            z[id] += *(const G float *)(b + 4);
    }
    SYNC();
    for (int i = lane; biased && i < n; i += LANES)
        z[i] = candidate(z[i], mask, i);
    SYNC();
    if (!plain) {
        top = id = best_after(z, n, 0, tmp, tmi);
        float most = top < 0 ? 0.0f : z[top];
        for (int b = lane; b < n; b += AHEAD * LANES) {
            float v[AHEAD], part = 0;
            LOAD_AHEAD(v, z, b, n)
            for (int k = 0; k < AHEAD; k++)
                part += v[k] == -INFINITY ? 0.0f : exp(v[k] - most);
            lse += part;
        }
        lse = log(group_sum(lse, tmp));
    }
    for (int t = 0, c = listed ? top : -1; t < p.n_top; t++) {
        if (lane == 0) {
            ((G int *)(top_ids + at(&p.top_ids, row)))[t] = c;
            st(top_lp + at(&p.top_lp, row), p.top_lp.fmt, t, c < 0 ? NAN : z[c] - z[top] - lse);
        }
        c = c < 0 ? -1 : best_after(z, n, key_of(z[c], c), tmp, tmi);
    }
    if (top >= 0 && r.temperature > 0)
        id = draw(&r, z, share, n, top, tmp, tmi);
    if (lane == 0) {
        ((G int *)(ids + p.ids_off))[row] = id;
        st(lp + p.lp_off, p.lp_fmt, row, id < 0 ? NAN : plain ? -lse : z[id] - z[top] - lse);
        if (p.counts.fmt && p.rows.cap == 1)
            count_id(&p, counts_p, r.counts_row, id);
    }
}

/* After all rows, where there are several: they may share a counts row. One work-item. */
__kernel void count_ids(const G uchar *params, G uchar *counts_p, const G uchar *ids, const G uchar *step,
                        const lp_sample p)
{
    int rows = rows_of(step, &p.rows);
    for (int i = 0; i < rows; i++)
        count_id(&p, counts_p, ((const G sample_row *)(params + at(&p.params, i)))->counts_row,
                 ((const G int *)(ids + p.ids_off))[i]);
}
