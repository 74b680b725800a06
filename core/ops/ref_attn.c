/* Reference of attention (Vaswani et al. 2017, arXiv:1706.03762) with grouped heads, over a paged cache or dense keys:
 * all scores of a row, their maximum, exponentials, weighted sum. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "ops/ops.h"
#include "ops/ref.h"

/* The keys of one KV head of one sequence, unpacked. */
typedef struct keys {
    float *k, *v;  /* [n][dk], [n][dv]; with one shared plane v == k and its stride is dk */
    uint8_t *have; /* [n]: the key's block exists */
    uint8_t *seen; /* [n]: and the row at hand sees it */
    double *score; /* [n] */
    double *sum;   /* [dv] */
    int64_t n, dk, dv, v_stride;
} keys;

static void keys_free(keys *c)
{
    if (c->v != c->k)
        infer_free(c->v);
    infer_free(c->k);
    infer_free(c->have);
    infer_free(c->seen);
    infer_free(c->score);
    infer_free(c->sum);
    *c = (keys){0};
}

/* Room for `cap` keys; shared: values lie inside the keys. */
static infer_status keys_make(keys *out, int64_t cap, int64_t dk, int64_t dv, int shared)
{
    keys c = {.dk = dk, .dv = dv, .v_stride = shared ? dk : dv};
    if (cap > INT64_MAX / 8 / (dk + dv))
        return INFER_E_NO_MEMORY;
    c.k = infer_realloc_array(NULL, (size_t)(cap * dk), sizeof *c.k);
    c.v = shared ? c.k : infer_realloc_array(NULL, (size_t)(cap * dv), sizeof *c.v);
    c.have = infer_malloc((size_t)cap);
    c.seen = infer_malloc((size_t)cap);
    c.score = infer_realloc_array(NULL, (size_t)cap, sizeof *c.score);
    c.sum = infer_realloc_array(NULL, (size_t)dv, sizeof *c.sum);
    if (!c.k || !c.v || !c.have || !c.seen || !c.score || !c.sum) {
        keys_free(&c);
        return INFER_E_NO_MEMORY;
    }
    *out = c;
    return INFER_OK;
}

/* One row of one head: softmax over the seen keys, and over the sink, which has no value. */
static void attend(keys *c, const infer_attrs_attn *a, const float *q, const float *sink, float *y)
{
    double most = sink ? *sink : -INFINITY, total = 0;
    for (int64_t t = 0; t < c->n; t++) {
        if (!c->seen[t])
            continue;
        double s = infer_ref_dot(q, c->k + t * c->dk, c->dk) * a->scale;
        if (a->soft_cap > 0)
            s = a->soft_cap * tanh(s / a->soft_cap);
        c->score[t] = s;
        most = fmax(most, s);
    }
    memset(c->sum, 0, (size_t)c->dv * sizeof *c->sum);
    for (int64_t t = 0; t < c->n; t++) {
        if (!c->seen[t])
            continue;
        double p = exp(c->score[t] - most);
        const float *v = c->v + t * c->v_stride;
        total += p;
        for (int64_t i = 0; i < c->dv; i++)
            c->sum[i] += p * v[i];
    }
    int any = total > 0;
    if (sink)
        total += exp(*sink - most);
    for (int64_t i = 0; i < c->dv; i++)
        y[i] = any || isnan(total) ? (float)(c->sum[i] / total) : 0;
}

/* Which keys the row at position `at` sees. newest: index of the first key that is a row of this op, for trees. */
static void look(keys *c, const infer_attrs_attn *a, int64_t at, int64_t newest, const uint32_t *tree, int64_t words)
{
    for (int64_t t = 0; t < c->n; t++) {
        int see = c->have[t];
        int64_t bit = t - newest;
        if (a->mask == INFER_MASK_CAUSAL)
            see &= t <= at;
        else if (a->mask == INFER_MASK_WINDOW)
            see &= t <= at && t > at - (int64_t)a->window;
        else if (a->mask == INFER_MASK_TREE && bit >= 0)
            see &= bit / 32 < words && (tree[bit / 32] >> (bit % 32) & 1);
        c->seen[t] = (uint8_t)see;
    }
}

/* Keys and values of one head, through the sequence's row of the block table. */
static void gather(keys *c, const infer_view *kpool, const infer_view *vpool, const int32_t *table, int64_t head)
{
    int64_t size = kpool->shape[2];
    for (int64_t t = 0; t < c->n; t++) {
        const uint8_t *k = infer_ref_kv_at(kpool, table[t / size], head, t % size);
        c->have[t] = k != NULL;
        if (!k)
            continue;
        infer_ref_unpack(kpool->format, k, c->k + t * c->dk, c->dk);
        if (vpool)
            infer_ref_unpack(vpool->format, infer_ref_kv_at(vpool, table[t / size], head, t % size), c->v + t * c->dv,
                             c->dv);
    }
}

/* Operands of the two paged ops, however they are numbered. */
typedef struct paged {
    infer_view kpool, vpool; /* vpool.p NULL: values are the first elements of the keys */
    infer_view table, tree, sinks;
    const int32_t *kv_len, *q_start;
} paged;

static int64_t clamp(int64_t x, int64_t lo, int64_t hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

static infer_status paged_attention(const infer_op_desc *op, void *const *data, int64_t rows, const paged *p)
{
    infer_view qv = infer_ref_in(op, data, 0), yv = infer_ref_out(op, data, 0);
    infer_rows q = {0}, y = {0}, sinks = {0};
    keys c = {0};
    infer_attrs_attn a;
    int64_t heads = qv.shape[1], kv_heads = p->kpool.shape[1], group = heads / kv_heads, cap = 0;
    int64_t n_seqs = p->table.shape[0], held = p->table.shape[1] * p->kpool.shape[2];
    infer_op_attrs(op, &a, sizeof a);
    for (int64_t s = 0; s < n_seqs; s++)
        cap = p->kv_len[s] > cap ? p->kv_len[s] : cap;
    cap = clamp(cap, 0, held);
    infer_status st = keys_make(&c, cap, qv.width, yv.width, !p->vpool.p);
    if (st == INFER_OK)
        st = infer_rows_load(&q, &qv, rows * heads);
    if (st == INFER_OK)
        st = infer_rows_load(&sinks, &p->sinks, 1);
    if (st == INFER_OK)
        st = infer_rows_target(&y, &yv, rows * heads);
    if (st != INFER_OK)
        goto out;
    for (int64_t k = 0; k < rows * heads; k++)
        memset(y.p[k], 0, (size_t)yv.width * sizeof(float));
    for (int64_t s = 0; s < n_seqs; s++) {
        int64_t first = p->q_start[s], end = p->q_start[s + 1], len = p->kv_len[s];
        int64_t newest = len - (end - first); /* position of the sequence's first row */
        c.n = clamp(len, 0, held);
        if (clamp(first, 0, rows) >= clamp(end, 0, rows))
            continue;
        for (int64_t g = 0; g < kv_heads; g++) {
            gather(&c, &p->kpool, p->vpool.p ? &p->vpool : NULL,
                   (const int32_t *)(const void *)infer_view_at(&p->table, s), g);
            for (int64_t i = clamp(first, 0, rows); i < clamp(end, 0, rows); i++) {
                const uint32_t *tree = p->tree.p ? (const uint32_t *)(const void *)infer_view_at(&p->tree, i) : NULL;
                look(&c, &a, newest + i - first, newest, tree, p->tree.width);
                for (int64_t h = g * group; h < (g + 1) * group; h++)
                    attend(&c, &a, q.p[i * heads + h], sinks.p ? sinks.p[0] + h : NULL, y.p[i * heads + h]);
            }
        }
    }
    infer_rows_store(&y, &yv, rows * heads);
out:
    keys_free(&c);
    infer_rows_free(&q);
    infer_rows_free(&y);
    infer_rows_free(&sinks);
    return st;
}

INFER_REF(attn_paged)
{
    paged p = {.kpool = infer_ref_in(op, data, 1),
               .vpool = infer_ref_in(op, data, 2),
               .table = infer_ref_in(op, data, 3),
               .kv_len = data[4],
               .q_start = data[5],
               .sinks = infer_ref_in(op, data, 6),
               .tree = infer_ref_in(op, data, 7)};
    return paged_attention(op, data, rows, &p);
}

INFER_REF(mla_paged)
{
    paged p = {.kpool = infer_ref_in(op, data, 1),
               .table = infer_ref_in(op, data, 2),
               .kv_len = data[3],
               .q_start = data[4],
               .tree = infer_ref_in(op, data, 5)};
    return paged_attention(op, data, rows, &p);
}

INFER_REF(attn_dense)
{
    infer_view qv = infer_ref_in(op, data, 0), kv = infer_ref_in(op, data, 1), vv = infer_ref_in(op, data, 2);
    infer_view yv = infer_ref_out(op, data, 0);
    infer_rows q = {0}, y = {0};
    keys c = {0};
    infer_attrs_attn a;
    int64_t n = qv.shape[0], heads = qv.shape[1], m = kv.shape[0], kv_heads = kv.shape[1], group = heads / kv_heads;
    infer_op_attrs(op, &a, sizeof a);
    infer_status st = keys_make(&c, m, kv.width, vv.width, 0);
    if (st == INFER_OK)
        st = infer_rows_load(&q, &qv, rows * heads);
    if (st == INFER_OK)
        st = infer_rows_target(&y, &yv, rows * heads);
    if (st != INFER_OK)
        goto out;
    c.n = m;
    memset(c.have, 1, (size_t)m);
    for (int64_t g = 0; g < kv_heads; g++) {
        for (int64_t t = 0; t < m; t++) {
            infer_ref_unpack(kv.format, infer_view_at(&kv, t * kv_heads + g), c.k + t * c.dk, c.dk);
            infer_ref_unpack(vv.format, infer_view_at(&vv, t * kv_heads + g), c.v + t * c.dv, c.dv);
        }
        for (int64_t i = 0; i < rows; i++) {
            look(&c, &a, m - n + i, m, NULL, 0);
            for (int64_t h = g * group; h < (g + 1) * group; h++)
                attend(&c, &a, q.p[i * heads + h], NULL, y.p[i * heads + h]);
        }
    }
    infer_rows_store(&y, &yv, rows * heads);
out:
    keys_free(&c);
    infer_rows_free(&q);
    infer_rows_free(&y);
    return st;
}
