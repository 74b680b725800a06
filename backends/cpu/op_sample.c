/*
 * SAMPLE. The choices are the reference's: candidates in falling order of the logit, probabilities and their running
 * sum in double. Only as many candidates are ordered as the draw needs. A greedy row whose logits nothing changes is
 * done in float, where comparing gives the same; log-probabilities take float exponentials. SPDX-License-Identifier:
 * Apache-2.0
 */
#include "config.h"

#include <float.h>
#include <math.h>

#include "op.h"

enum { TIMES = 0x7FFF, TOP_MAX = 64, FIRST_GUESS = 256 };

typedef struct candidate {
    double z; /* logit after penalties, bias and mask */
    int64_t id;
} candidate;

typedef struct sample_ctx {
    const cpu_call *c;
    infer_attrs_sample a;
    int64_t n_vocab;
    uint64_t work_bytes; /* of one worker */
} sample_ctx;

/* One row with its inputs and its worker's memory. */
typedef struct row {
    infer_sample_row p;
    const float *logits;
    const uint16_t *counts; /* NULL: none */
    const uint32_t *mask;   /* NULL: none */
    const cpu_view *bias;   /* NULL: none */
    int64_t n;
    double *z;         /* [n] */
    candidate *choice; /* [n] */
} row;

/* ---- Order ----------------------------------------------------------------------------------------------------- */

static int before(const candidate *a, const candidate *b)
{
    return a->z != b->z ? a->z > b->z : a->id < b->id;
}

static void swap(candidate *a, candidate *b)
{
    candidate t = *a;
    *a = *b;
    *b = t;
}

/* Lets c[at] sink until nobody below it stands after it. */
static void sink(candidate *c, int64_t at, int64_t n)
{
    for (int64_t k = 2 * at + 1; k < n; at = k, k = 2 * at + 1) {
        if (k + 1 < n && before(&c[k], &c[k + 1]))
            k++;
        if (!before(&c[at], &c[k]))
            return;
        swap(&c[at], &c[k]);
    }
}

/* Heap sort: the C library's sort allocates. */
static void sort(candidate *c, int64_t n)
{
    for (int64_t i = n / 2; i-- > 0;)
        sink(c, i, n);
    for (int64_t end = n - 1; end > 0; end--) {
        swap(&c[0], &c[end]);
        sink(c, 0, end);
    }
}

/* Moves the `want` first of n candidates to the front, in no order (Hoare's selection). */
static void select_first(candidate *c, int64_t n, int64_t want)
{
    int64_t lo = 0, hi = n - 1;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2, i = lo, j = hi;
        if (before(&c[mid], &c[lo]))
            swap(&c[mid], &c[lo]);
        if (before(&c[hi], &c[lo]))
            swap(&c[hi], &c[lo]);
        if (before(&c[hi], &c[mid]))
            swap(&c[hi], &c[mid]);
        candidate pivot = c[mid];
        while (i <= j) {
            while (before(&c[i], &pivot))
                i++;
            while (before(&pivot, &c[j]))
                j--;
            if (i <= j)
                swap(&c[i++], &c[j--]);
        }
        if (want - 1 <= j)
            hi = j;
        else if (want - 1 >= i)
            lo = i;
        else
            return;
    }
}

/* The `want` first candidates of the row in order, into r->choice; returns how many there are. */
static int64_t first_candidates(const row *r, int64_t want)
{
    candidate *c = r->choice;
    int64_t have = 0, room = want > r->n / 2 ? r->n : 2 * want;
    double bound = -INFINITY; /* only what is above can still be among the first: the scan is in order of id */
    for (int64_t i = 0; i < r->n; i++) {
        if (!(r->z[i] > bound))
            continue;
        c[have++] = (candidate){r->z[i], i};
        if (have < room || want >= have)
            continue;
        select_first(c, have, want);
        have = want;
        bound = c[0].z;
        for (int64_t j = 1; j < want; j++)
            bound = c[j].z < bound ? c[j].z : bound;
    }
    if (have > want) {
        select_first(c, have, want);
        have = want;
    }
    sort(c, have);
    return have;
}

/* ---- Logits ---------------------------------------------------------------------------------------------------- */

static void penalise(const row *r)
{
    double rep = (double)r->p.repetition_penalty;
    for (int64_t i = 0; i < r->n; i++) {
        uint64_t four;
        while (i + 4 <= r->n && (memcpy(&four, r->counts + i, sizeof four), four == 0))
            i += 4; /* most ids never occurred */
        if (i >= r->n)
            break;
        uint32_t entry = r->counts[i], times = entry & TIMES;
        double *z = &r->z[i];
        if (entry && rep > 0 && rep != 1)
            *z = *z > 0 ? *z / rep : *z * rep;
        if (times)
            *z -= (double)r->p.presence_penalty + (double)r->p.frequency_penalty * times;
    }
}

/* The logits after penalties, bias and mask; what cannot be chosen is -INFINITY. Returns how many can. */
static int64_t adjust(const row *r, double *most)
{
    int64_t have = 0;
    double top = -INFINITY;
    for (int64_t i = 0; i < r->n; i++)
        r->z[i] = (double)r->logits[i];
    if (r->counts)
        penalise(r);
    for (uint64_t i = 0; r->bias && i < r->p.bias_count; i++) {
        infer_sample_bias b;
        uint64_t at = r->p.bias_first + i;
        if (at >= (uint64_t)r->bias->shape[0])
            break;
        memcpy(&b, cpu_row(r->bias, (int64_t)at), sizeof b);
        if (b.id >= 0 && b.id < r->n)
            r->z[b.id] += (double)b.bias;
    }
    for (int64_t i = 0; r->mask && i < r->n; i++) {
        uint32_t word = r->mask[i / 32];
        if (i % 32 == 0 && word == UINT32_MAX)
            i += 31;
        else if (!(word >> (i % 32) & 1))
            r->z[i] = -INFINITY;
    }
    for (int64_t i = 0; i < r->n; i++) {
        double z = r->z[i];
        z = z != z ? -INFINITY : z < DBL_MAX ? z : DBL_MAX; /* so that differences stay numbers */
        r->z[i] = z;
        have += z != -INFINITY;
        top = z > top ? z : top;
    }
    *most = top;
    return have;
}

/* log of the sum of exp(z - most) */
static double log_sum(const sample_ctx *x, const row *r, double most)
{
    double sum = 0;
    for (int64_t at = 0; at < r->n; at += CPU_SEGMENT) {
        float buf[CPU_SEGMENT];
        int64_t n = r->n - at < CPU_SEGMENT ? r->n - at : CPU_SEGMENT;
        for (int64_t i = 0; i < n; i++)
            buf[i] = (float)(r->z[at + i] - most);
        sum += (double)x->c->k->exp_sum(buf, 1, 0, n);
    }
    return log(sum);
}

/* ---- Draw ------------------------------------------------------------------------------------------------------ */

/* The first candidate in order at which the running weight is above `limit`, or reaches it where `reach` is set; the
 * last one where none does. weight[id] of each. Moves all that stand before it to its left (selection by weight instead
 * of by count), and gives its index. */
static int64_t crossing(candidate *c, int64_t n, const double *weight, double limit, int reach)
{
    int64_t lo = 0, hi = n - 1;
    double left = 0; /* weight of what is known to stand before lo */
    while (lo < hi) {
        candidate pivot = c[lo + (hi - lo) / 2];
        int64_t i = lo, j = hi;
        double sum = left;
        while (i <= j) {
            while (before(&c[i], &pivot))
                i++;
            while (before(&pivot, &c[j]))
                j--;
            if (i <= j)
                swap(&c[i++], &c[j--]);
        }
        for (int64_t k = lo; k <= j; k++)
            sum += weight[c[k].id];
        if (reach ? sum >= limit : sum > limit) {
            hi = j;
            continue;
        }
        if (i - j == 2) { /* the pivot stands alone between the two sides */
            double with = sum + weight[c[j + 1].id];
            if (reach ? with >= limit : with > limit)
                return j + 1;
            sum = with;
        }
        left = sum;
        lo = i;
    }
    return lo < n ? lo : n - 1;
}

/* The draw when the ordered candidates at hand do not suffice: all of them with their weights, which take the place of
 * the logits. */
static candidate draw_among_all(const sample_ctx *x, const row *r, double most, double total)
{
    const infer_sample_row *p = &r->p;
    candidate *c = r->choice;
    int64_t n = 0, likely = 0;
    double sum = 0;
    for (int64_t i = 0; i < r->n; i++)
        if (r->z[i] != -INFINITY)
            c[n++] = (candidate){r->z[i], i};
    x->c->k->exp_all(r->z, most, (double)p->temperature, r->n);
    for (int64_t i = 0; i < n; i++) /* the largest weight is exp(0) = 1 */
        if (r->z[c[i].id] >= (double)p->min_p)
            c[likely++] = c[i];
    n = likely;
    if (p->top_p < 1)
        n = crossing(c, n, r->z, (double)p->top_p * total, 1) + 1;
    for (int64_t i = 0; i < n; i++)
        sum += r->z[c[i].id];
    return c[crossing(c, n, r->z, (double)infer_sample_uniform(p->seed, p->position) * sum, 0)];
}

/* Draws among the `have` ids that can be chosen. */
static candidate draw(const sample_ctx *x, const row *r, int64_t have, double most)
{
    const infer_sample_row *p = &r->p;
    double t = (double)p->temperature, total = 0, sum = 0, run = 0, weight[FIRST_GUESS];
    double uniform = (double)infer_sample_uniform(p->seed, p->position);
    int cut = p->top_p<1, by_k = p->top_k> 0 && p->top_k < have, all = !cut && !(p->min_p > 0) && !by_k;
    int64_t ready = first_candidates(r, by_k ? p->top_k : FIRST_GUESS), kept = 0, i = 0;
    double *e = ready <= FIRST_GUESS ? weight : r->z; /* of the ordered ones; as many as that need no logits after */
    for (i = 0; i < ready; i++) {
        e[i] = exp((r->choice[i].z - most) / t);
        total += e[i];
    }
    if (ready < have && !by_k && (cut || all))
        total = x->c->k->exp_total(r->z, most, t, r->n);
    for (; !all && kept < ready; kept++) {
        if (kept && ((cut && sum >= (double)p->top_p * total) || e[kept] < (double)p->min_p * e[0]))
            break;
        sum += e[kept];
    }
    if (!all && kept == ready && ready < have && !by_k) /* more are kept than are ordered */
        return draw_among_all(x, r, most, total);
    if (all) {
        kept = ready;
        sum = total;
    }
    for (i = 0; i < kept; i++) {
        run += e[i];
        if (run > uniform * sum)
            return r->choice[i];
    }
    return all && ready < have ? draw_among_all(x, r, most, total) : r->choice[kept - 1];
}

/* ---- Rows ------------------------------------------------------------------------------------------------------ */

static void put_float(const cpu_call *c, const cpu_view *v, uint8_t *at_row, int64_t i, double value)
{
    float f = (float)value;
    cpu_store(c, v, at_row, i, 1, &f);
}

/* Greedy, nothing changes the logits, no list of the best: float does. 0: something is odd, take the long way. */
static int choose_plain(const sample_ctx *x, const row *r, int32_t *id, double *lp)
{
    const kern_table *k = x->c->k;
    float most = -INFINITY;
    int64_t best = -1;
    double sum = 0;
    for (int64_t at = 0; at < r->n; at += CPU_SEGMENT) {
        int64_t n = r->n - at < CPU_SEGMENT ? r->n - at : CPU_SEGMENT;
        float m = k->max(r->logits + at, n);
        if (m > most) {
            most = m;
            best = at;
        }
    }
    if (best < 0 || most == INFINITY)
        return 0;
    while (r->logits[best] != most)
        best++;
    for (int64_t at = 0; at < r->n; at += CPU_SEGMENT) {
        float buf[CPU_SEGMENT];
        int64_t n = r->n - at < CPU_SEGMENT ? r->n - at : CPU_SEGMENT;
        memcpy(buf, r->logits + at, (size_t)n * sizeof *buf);
        float s = k->exp_sum(buf, 1, most, n);
        if (s != s)
            return 0;
        sum += (double)s;
    }
    *id = (int32_t)best;
    *lp = -log(sum);
    return 1;
}

static uint16_t *counts_at(const cpu_view *counts, int32_t which)
{
    if (!counts->p || which < 0 || which >= counts->shape[0])
        return NULL;
    return (uint16_t *)(void *)cpu_row(counts, which);
}

static void choose(const sample_ctx *x, row *r, int64_t i)
{
    const cpu_call *c = x->c;
    const cpu_view *lp_view = cpu_out(c, 1), *top_ids = cpu_out(c, 2), *top_lps = cpu_out(c, 3);
    int32_t *id = (int32_t *)(void *)cpu_out(c, 0)->p + i;
    int64_t n_top = r->p.flags & INFER_SAMPLE_NO_TOP ? 0 : x->a.n_top;
    double most, lp = 0;
    for (int64_t t = n_top; t < x->a.n_top; t++) {
        ((int32_t *)(void *)cpu_row(top_ids, i))[t] = -1;
        put_float(c, top_lps, cpu_row(top_lps, i), t, (double)NAN);
    }
    if (!(r->p.temperature > 0) && !r->counts && !r->mask && !r->bias && !n_top && choose_plain(x, r, id, &lp)) {
        put_float(c, lp_view, lp_view->p, i, lp);
        return;
    }
    int64_t have = adjust(r, &most), listed = have ? first_candidates(r, n_top ? n_top : 1) : 0;
    double lse = have ? log_sum(x, r, most) : 0;
    for (int64_t t = 0; t < n_top; t++) {
        ((int32_t *)(void *)cpu_row(top_ids, i))[t] = t < listed ? (int32_t)r->choice[t].id : -1;
        put_float(c, top_lps, cpu_row(top_lps, i), t, t < listed ? r->choice[t].z - most - lse : (double)NAN);
    }
    candidate chosen = {NAN, -1};
    if (have)
        chosen = r->p.temperature > 0 ? draw(x, r, have, most) : r->choice[0];
    *id = (int32_t)chosen.id;
    put_float(c, lp_view, lp_view->p, i, chosen.z - most - lse);
}

static void sample_row(const sample_ctx *x, int64_t i, uint32_t worker)
{
    const cpu_call *c = x->c;
    const cpu_view *logits = cpu_in(c, 0), *mask = cpu_in(c, 4), *bias = cpu_in(c, 3);
    uint8_t *work = c->scratch + worker * x->work_bytes;
    row r = {.n = x->n_vocab};
    r.z = (double *)(void *)work;
    r.choice = (candidate *)(void *)(work + sizeof *r.z * (size_t)r.n);
    memcpy(&r.p, cpu_row(cpu_in(c, 1), i), sizeof r.p);
    /* Converted logits stand behind; the room is asked for where the format needs it. */
    r.logits = cpu_load(c, logits, cpu_row(logits, i), 0, r.n, (float *)(void *)(r.choice + r.n));
    r.counts = counts_at(cpu_in(c, 2), r.p.counts_row);
    if (mask->p && r.p.flags & INFER_SAMPLE_MASKED)
        r.mask = (const uint32_t *)(const void *)cpu_row(mask, i);
    if (bias->p && r.p.bias_count)
        r.bias = bias;
    choose(x, &r, i);
}

static void sample_chunk(void *ctx, int64_t chunk, uint32_t worker)
{
    sample_row(ctx, chunk, worker);
}

infer_status cpu_run_sample(cpu_call *c)
{
    sample_ctx x = {.c = c, .n_vocab = cpu_in(c, 0)->width};
    const int32_t *ids = (const int32_t *)(const void *)cpu_out(c, 0)->p;
    cpu_attrs(c->op, &x.a, sizeof x.a);
    x.work_bytes = c->scratch_bytes / cpu_team_size(c->dev->team) / 64 * 64;
    cpu_team_run(c->dev->team, c->rows, sample_chunk, &x);
    for (int64_t i = 0; i < c->rows; i++) { /* only now: rows may share a counts row */
        infer_sample_row p;
        memcpy(&p, cpu_row(cpu_in(c, 1), i), sizeof p);
        uint16_t *counts = counts_at(cpu_in(c, 2), p.counts_row);
        if (counts && ids[i] >= 0 && (counts[ids[i]] & TIMES) < TIMES)
            counts[ids[i]]++;
    }
    return INFER_OK;
}

void cpu_query_sample(const infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    const infer_tensor_desc *logits = cpu_tensor(op, 0);
    uint64_t one = (uint64_t)logits->shape[1] * (sizeof(double) + sizeof(candidate));
    if (logits->format != INFER_FMT_F32)
        one += (uint64_t)logits->shape[1] * sizeof(float);
    a->scratch_bytes = (one + 127) / 64 * 64 * cpu_team_size(dev->team);
}
