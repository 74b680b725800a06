/*
 * Attention: ATTN_PAGED, MLA_PAGED, ATTN_DENSE. An item of work is up to ROWS query vectors that read one KV head (the
 * heads of a group and neighbouring rows of a sequence), against one split of the keys.
 *
 * A row's result depends on nothing but the row and its keys: keys are taken in tiles of KEYS and splits of SPLIT that
 * start at fixed positions; inside a split the usual running softmax (Milakov and Gimelshein 2018, arXiv:1805.02867;
 * Dao et al. 2022, arXiv:2205.14135); splits are merged in order, whoever computed them. Keys that a row does not see
 * are never added, not even with weight 0. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <math.h>

#include "op.h"

enum { KEYS = 64, SPLIT = 512, ROWS = 64, DIRECT = 6 /* vectors that read keys and values as they lie */ };
#define PARTIAL_MAX ((uint64_t)16 << 20) /* bytes of split results; above, splits run one after the other */

/* Rows first .. first + n of a sequence, and the range of keys that any of them sees. */
typedef struct item {
    int32_t seq, first, n;
    int32_t key_lo, key_end;
} item;

typedef struct attn {
    const cpu_call *c;
    infer_attrs_attn a;
    const cpu_view *q, *y, *k, *v, *table, *sinks, *tree; /* v NULL: inside k; table NULL: dense */
    const int32_t *kv_len, *q_start;
    int64_t heads, kv_heads, group, dk, dv, dk_pad;
    uint64_t k_bytes, v_bytes; /* of one key */
    int64_t n_seqs, block_rows;
    item *items;
    int64_t n_items, n_splits; /* n_splits > 1: in parallel, through partials */
    float *partials;           /* [item][kv head][split]{m, l, o} of ROWS or group vectors */
    uint8_t *work;             /* of worker 0 */
    uint64_t work_bytes;       /* of one worker */
} attn;

/* A worker's memory. n vectors = rows of the item times heads of the group. */
typedef struct work {
    float *k, *v, *s, *o, *total, *m, *l, *total_m, *total_l, *q;
    const float **x, **part;
    uint64_t *seen;
} work;

/* Running softmax of n vectors: largest score, sum of exponentials, weighted sum of values. */
typedef struct state {
    float *m, *l, *o;
} state;

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t clamp64(int64_t x, int64_t lo, int64_t hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

/* ---- Memory ---------------------------------------------------------------------------------------------------- */

static int64_t vectors_max(int64_t group)
{
    return group > ROWS ? group : ROWS / group * group;
}

static uint64_t take(uint64_t *at, uint64_t bytes)
{
    uint64_t here = *at;
    *at += (bytes + 63) / 64 * 64;
    return here;
}

static uint64_t lay_out(const attn *t, uint8_t *base, work *w)
{
    enum { FLOATS = 10, PARTS = 13 };
    uint64_t n = (uint64_t)vectors_max(t->group), at = 0, dk = (uint64_t)t->dk_pad, dv = (uint64_t)t->dv;
    const uint64_t bytes[PARTS] = {KEYS * dk * 4, t->v ? KEYS * dv * 4 : 0,
                                   n * KEYS * 4,  n * dv * 4,
                                   n * dv * 4,    n * 4,
                                   n * 4,         n * 4,
                                   n * 4,         t->q->format == INFER_FMT_F32 ? 0 : n * dk * 4,
                                   n * 8,         n * 8,
                                   n * 8};
    uint8_t *p[PARTS];
    for (int i = 0; i < PARTS; i++) {
        uint64_t here = take(&at, bytes[i]);
        p[i] = base ? base + here : NULL;
    }
    if (w) {
        float **f[FLOATS] = {&w->k, &w->v, &w->s, &w->o, &w->total, &w->m, &w->l, &w->total_m, &w->total_l, &w->q};
        for (int i = 0; i < FLOATS; i++)
            *f[i] = (float *)(void *)p[i];
        w->x = (const float **)(void *)p[10];
        w->part = (const float **)(void *)p[11];
        w->seen = (uint64_t *)(void *)p[12];
    }
    return at;
}

static uint64_t partial_floats(const attn *t)
{
    return (uint64_t)vectors_max(t->group) * (uint64_t)(t->dv + 2);
}

static state partial_state(const attn *t, int64_t chunk)
{
    float *p = t->partials + (uint64_t)chunk * partial_floats(t);
    int64_t n = vectors_max(t->group);
    return (state){p, p + n, p + 2 * n};
}

/* ---- Keys ------------------------------------------------------------------------------------------------------ */

/* Where the tokens of a tile lie in the planes of keys and values; NULL: the token's block is out of range. */
typedef struct places {
    const uint8_t *k[KEYS], *v[KEYS];
    uint64_t have; /* bit i: token i exists */
    int64_t n;
} places;

/* Tokens at .. at + n of a head. */
static void find_keys(const attn *t, const item *it, int64_t head, int64_t at, int64_t n, places *p)
{
    const cpu_view *kp = t->k, *vp = t->v ? t->v : t->k;
    p->n = n;
    if (!t->table) {
        for (int64_t i = 0; i < n; i++) {
            p->k[i] = cpu_row(kp, (at + i) * t->kv_heads + head);
            p->v[i] = cpu_row(vp, (at + i) * t->kv_heads + head);
        }
        p->have = n == 64 ? UINT64_MAX : (UINT64_C(1) << n) - 1;
        return;
    }
    const int32_t *block = (const int32_t *)(const void *)cpu_row(t->table, it->seq);
    int64_t size = kp->shape[2], offset = at % size;
    block += at / size;
    p->have = 0;
    for (int64_t i = 0; i < n;) {
        int64_t run = min64(n - i, size - offset);
        if (*block >= 0 && *block < kp->shape[0]) {
            const uint8_t *k = kp->p + *block * kp->stride[0] + head * kp->stride[1];
            const uint8_t *v = vp->p + *block * vp->stride[0] + head * vp->stride[1];
            for (int64_t j = 0; j < run; j++) {
                p->k[i + j] = k + (offset + j) * kp->stride[2];
                p->v[i + j] = v + (offset + j) * vp->stride[2];
                p->have |= UINT64_C(1) << (i + j);
            }
        } else {
            for (int64_t j = 0; j < run; j++)
                p->k[i + j] = p->v[i + j] = NULL;
        }
        i += run;
        block++;
        offset = 0;
    }
}

/* Asks for tokens j .. j + KERN_TILE of a tile that comes up. */
static void fetch_keys(const uint8_t *const *where, int64_t n, int64_t j, int64_t bytes)
{
    for (int64_t i = j; i < n && i < j + KERN_TILE; i++)
        for (int64_t b = 0; where[i] && b < bytes; b += 64)
            __builtin_prefetch(where[i] + b, 0, 2);
}

static void unpack_keys(const attn *t, const cpu_view *plane, const uint8_t *const *where, int64_t n, int64_t width,
                        float *out, int64_t ld)
{
    kern_unpack_fn unpack = t->c->k->format[plane->format].unpack;
    for (int64_t i = 0; i < n; i++) {
        if (where[i])
            unpack(where[i], out + i * ld, width);
        else
            memset(out + i * ld, 0, (size_t)width * sizeof *out);
        for (int64_t j = width; j < ld; j++)
            out[i * ld + j] = 0;
    }
}

/* Bit i: the row sees key at + i, of those that exist. newest: position of the sequence's first row in this op. */
static uint64_t sees(const attn *t, int64_t row, int64_t pos, int64_t newest, int64_t at, uint64_t have)
{
    uint64_t seen = have;
    if (t->a.mask == INFER_MASK_CAUSAL || t->a.mask == INFER_MASK_WINDOW) {
        int64_t n = pos - at + 1;
        seen = n <= 0 ? 0 : n >= 64 ? seen : seen & ((UINT64_C(1) << n) - 1);
    }
    if (t->a.mask == INFER_MASK_WINDOW) {
        int64_t skip = pos - (int64_t)t->a.window + 1 - at; /* keys of the tile before the window */
        if (skip > 0)
            seen = skip >= 64 ? 0 : seen >> skip << skip;
    }
    if (t->a.mask == INFER_MASK_TREE) {
        const uint32_t *tree = (const uint32_t *)(const void *)cpu_row(t->tree, row);
        for (int64_t i = newest > at ? newest - at : 0; i < 64; i++) {
            int64_t bit = at + i - newest;
            if (bit >= 32 * t->tree->width || !(tree[bit / 32] >> (bit % 32) & 1))
                seen &= ~(UINT64_C(1) << i);
        }
    }
    return seen;
}

/* ---- One tile -------------------------------------------------------------------------------------------------- */

/* s[i][key] = q . key for the keys of a tile; the rest of the KEYS columns is left as it is. */
static void scores(const attn *t, const work *w, const places *here, const places *next, int64_t vectors)
{
    const uint8_t *const *where = here->k;
    int64_t n = here->n;
    const kern_format *f = &t->c->k->format[t->k->format];
    const int64_t dot_rows = t->c->k->dot_rows;
    if (t->v && vectors <= DIRECT && f->dot && t->dk % KERN_LANES == 0) {
        const uint8_t *any = NULL;
        for (int64_t j = 0; j < n && !any; j++)
            any = where[j];
        for (int64_t j = 0; any && j < n; j += KERN_TILE) {
            const uint8_t *row[KERN_TILE];
            for (int64_t r = 0; r < KERN_TILE; r++) /* a missing key is masked later */
                row[r] = j + r < n && where[j + r] ? where[j + r] : any;
            fetch_keys(next->k, next->n, j, (int64_t)t->k_bytes);
            for (int64_t i = 0; i < vectors; i += dot_rows)
                f->dot(row, w->x + i, (int)min64(dot_rows, vectors - i), t->dk, w->s + i * KEYS + j, KEYS);
        }
        return;
    }
    unpack_keys(t, t->k, where, n, t->dk, w->k, t->dk_pad);
    for (int64_t j = n; j % KERN_TILE; j++) /* a tile reads whole groups */
        memset(w->k + j * t->dk_pad, 0, (size_t)t->dk_pad * sizeof(float));
    memset(w->s, 0, (size_t)(vectors * KEYS) * sizeof(float));
    for (int64_t k0 = 0; k0 < t->dk; k0 += KERN_CHUNK) {
        for (int64_t i = 0; i < vectors; i++)
            w->part[i] = w->x[i] + k0;
        for (int64_t j = 0; j < n; j += KERN_TILE)
            t->c->k->tile(w->k + j * t->dk_pad + k0, t->dk_pad, w->part, vectors, min64(KERN_CHUNK, t->dk - k0),
                          w->s + j, KEYS);
    }
}

/* Turns one vector's scores into exponentials and moves its state on. */
static void soften(const attn *t, float *s, uint64_t *seen, float *m, float *l, float *o)
{
    const kern_table *k = t->c->k;
    float scale = t->a.scale;
    if (t->a.soft_cap > 0 || scale < 0) { /* else the exponential takes the factor along */
        k->scale(s, scale, 0, s, KEYS);
        for (int i = 0; t->a.soft_cap > 0 && i < KEYS; i++)
            s[i] = t->a.soft_cap * tanhf(s[i] / t->a.soft_cap);
        scale = 1;
    }
    for (uint64_t hidden = ~*seen; hidden; hidden &= hidden - 1)
        s[__builtin_ctzll(hidden)] = -INFINITY;
    float most = k->max(s, KEYS) * scale;
    if (most == -INFINITY) { /* nothing seen, or nothing but -INFINITY and NaN */
        for (uint64_t bits = *seen; bits; bits &= bits - 1)
            if (s[__builtin_ctzll(bits)] != s[__builtin_ctzll(bits)])
                *l = NAN;
        *seen = 0;
        return;
    }
    if (most > *m) {
        float shrink = expf(*m - most);
        *m = most;
        *l *= shrink;
        k->scale(o, shrink, 0, o, t->dv);
    }
    *l += k->exp_sum(s, scale, *m, KEYS);
}

/* o[i] += p V for vectors i .. i + rows, over keys first .. first + n. v NULL: as they lie at `where`. */
static void weigh_run(const attn *t, const work *w, const uint8_t *const *where, const float *v, int64_t ldv, int64_t i,
                      int64_t rows, int64_t first, int64_t n, float *o)
{
    const float *p = w->s + i * KEYS + first;
    if (v) {
        t->c->k->weighted(p, KEYS, rows, v + first * ldv, ldv, n, o + i * t->dv, t->dv, t->dv);
        return;
    }
    kern_weigh_fn weigh = t->c->k->format[t->v->format].weigh;
    const int64_t dot_rows = t->c->k->dot_rows;
    for (int64_t j = 0; j < rows; j += dot_rows)
        weigh(where + first, n, p + j * KEYS, KEYS, (int)min64(dot_rows, rows - j), o + (i + j) * t->dv, t->dv, t->dv);
}

/* Vectors that see all n keys together, the others each over its runs of seen keys. */
static void weigh(const attn *t, const work *w, const uint8_t *const *where, const float *v, int64_t ldv,
                  int64_t vectors, int64_t n, float *o)
{
    uint64_t all = n == 64 ? UINT64_MAX : (UINT64_C(1) << n) - 1;
    for (int64_t i = 0; i < vectors;) {
        int64_t same = i;
        while (same < vectors && w->seen[same] == all)
            same++;
        if (same > i) {
            weigh_run(t, w, where, v, ldv, i, same - i, 0, n, o);
            i = same;
            continue;
        }
        for (uint64_t bits = w->seen[i]; bits;) {
            int first = __builtin_ctzll(bits);
            uint64_t rest = ~(bits >> first);
            int run = rest ? __builtin_ctzll(rest) : 64 - first;
            weigh_run(t, w, where, v, ldv, i, 1, first, run, o);
            bits = first + run >= 64 ? 0 : bits >> (first + run) << (first + run);
        }
        i++;
    }
}

/* One split of an item for one KV head, into st. */
static void attend(const attn *t, const work *w, const item *it, int64_t head, int64_t split, const state *st)
{
    int64_t vectors = it->n * t->group, newest = 0, pos = 0;
    places tiles[2], *here = &tiles[0], *next = &tiles[1];
    for (int64_t i = 0; i < vectors; i++) {
        st->m[i] = -INFINITY;
        st->l[i] = 0;
    }
    memset(st->o, 0, (size_t)(vectors * t->dv) * sizeof(float));
    if (t->table) {
        newest = (int64_t)t->kv_len[it->seq] - ((int64_t)t->q_start[it->seq + 1] - t->q_start[it->seq]);
        pos = newest + it->first - t->q_start[it->seq];
    } else {
        newest = t->k->shape[0];
        pos = t->k->shape[0] - t->q->shape[0] + it->first;
    }
    int64_t at = split * SPLIT, end = min64(at + SPLIT, it->key_end);
    if (at < it->key_lo / KEYS * KEYS)
        at = it->key_lo / KEYS * KEYS;
    find_keys(t, it, head, at, min64(KEYS, end - at), next);
    for (; at < end; at += KEYS) {
        places *done = here;
        uint64_t any = 0;
        here = next;
        next = done;
        find_keys(t, it, head, at + KEYS, clamp64(end - at - KEYS, 0, KEYS), next);
        for (int64_t i = 0; i < vectors; i++)
            any |= w->seen[i] = sees(t, it->first + i / t->group, pos + i / t->group, newest, at, here->have);
        if (!any)
            continue;
        scores(t, w, here, next, vectors);
        for (int64_t i = 0; i < vectors; i++) {
            if (vectors <= DIRECT) /* they pass so fast that memory must be asked in time */
                for (int64_t j = i * KEYS / vectors; j < (i + 1) * KEYS / vectors; j += KERN_TILE)
                    fetch_keys(next->v, next->n, j, (int64_t)t->v_bytes);
            soften(t, w->s + i * KEYS, &w->seen[i], &st->m[i], &st->l[i], st->o + i * t->dv);
        }
        if (!t->v) {
            weigh(t, w, here->v, w->k, t->dk_pad, vectors, here->n, st->o);
        } else if (vectors <= DIRECT && t->c->k->format[t->v->format].weigh && t->dv % KERN_LANES == 0) {
            weigh(t, w, here->v, NULL, 0, vectors, here->n, st->o);
        } else {
            unpack_keys(t, t->v, here->v, here->n, t->dv, w->v, t->dv);
            weigh(t, w, here->v, w->v, t->dv, vectors, here->n, st->o);
        }
    }
}

/* ---- Items ----------------------------------------------------------------------------------------------------- */

static work work_of(const attn *t, uint32_t worker)
{
    work w;
    lay_out(t, t->work + worker * t->work_bytes, &w);
    return w;
}

/* Query vectors of an item as floats. */
static void load_queries(const attn *t, const work *w, const item *it, int64_t head)
{
    for (int64_t i = 0; i < it->n * t->group; i++) {
        const uint8_t *q = cpu_row(t->q, (it->first + i / t->group) * t->heads + head * t->group + i % t->group);
        w->x[i] = cpu_load(t->c, t->q, q, 0, t->dk, w->q + i * t->dk_pad);
    }
}

/* Adds a later split to the total. */
static void merge(const attn *t, int64_t vectors, const state *total, const state *st)
{
    const kern_table *k = t->c->k;
    for (int64_t i = 0; i < vectors; i++) {
        float *o = total->o + i * t->dv;
        if (st->l[i] != st->l[i])
            total->l[i] = NAN;
        if (st->m[i] == -INFINITY)
            continue;
        if (total->m[i] == -INFINITY) {
            total->m[i] = st->m[i];
            total->l[i] += st->l[i];
            memcpy(o, st->o + i * t->dv, (size_t)t->dv * sizeof *o);
            continue;
        }
        float most = st->m[i] > total->m[i] ? st->m[i] : total->m[i];
        float old = expf(total->m[i] - most), new = expf(st->m[i] - most);
        total->m[i] = most;
        total->l[i] = total->l[i] * old + st->l[i] * new;
        k->scale(o, old, 0, o, t->dv);
        k->axpy(new, st->o + i * t->dv, o, t->dv);
    }
}

static void store(const attn *t, const item *it, int64_t head, const state *total)
{
    for (int64_t i = 0; i < it->n * t->group; i++) {
        int64_t h = head * t->group + i % t->group;
        float *o = total->o + i * t->dv, m = total->m[i], l = total->l[i];
        if (t->sinks->p && m > -INFINITY) { /* a score with no value */
            float sink = cpu_float_at(t->c, t->sinks, h), most = sink > m ? sink : m;
            l = l * expf(m - most) + expf(sink - most);
            t->c->k->scale(o, expf(m - most), 0, o, t->dv);
        }
        t->c->k->scale(o, l == 0 ? 0 : 1 / l, 0, o, t->dv);
        cpu_store(t->c, t->y, cpu_row(t->y, (it->first + i / t->group) * t->heads + h), 0, t->dv, o);
    }
}

static int64_t first_split(const item *it)
{
    return it->key_lo / SPLIT;
}

static int64_t end_split(const item *it)
{
    return (it->key_end + SPLIT - 1) / SPLIT;
}

/* A whole item for one head: its splits one after the other. */
static void whole_chunk(void *ctx, int64_t chunk, uint32_t worker)
{
    const attn *t = ctx;
    const item *it = &t->items[t->n_items - 1 - chunk / t->kv_heads]; /* the longest come last, and start first */
    int64_t head = chunk % t->kv_heads;
    work w = work_of(t, worker);
    state total = {w.total_m, w.total_l, w.total}, st = {w.m, w.l, w.o};
    load_queries(t, &w, it, head);
    for (int64_t s = first_split(it); s < end_split(it); s++) {
        attend(t, &w, it, head, s, s == first_split(it) ? &total : &st);
        if (s > first_split(it))
            merge(t, it->n * t->group, &total, &st);
    }
    store(t, it, head, &total);
}

static void split_chunk(void *ctx, int64_t chunk, uint32_t worker)
{
    const attn *t = ctx;
    int64_t split = chunk % t->n_splits, head = chunk / t->n_splits % t->kv_heads;
    const item *it = &t->items[chunk / t->n_splits / t->kv_heads];
    if (split < first_split(it) || split >= end_split(it))
        return;
    work w = work_of(t, worker);
    state st = partial_state(t, chunk);
    load_queries(t, &w, it, head);
    attend(t, &w, it, head, split, &st);
}

static void merge_chunk(void *ctx, int64_t chunk, uint32_t worker)
{
    const attn *t = ctx;
    const item *it = &t->items[chunk / t->kv_heads];
    state total = partial_state(t, chunk * t->n_splits + first_split(it));
    (void)worker;
    for (int64_t s = first_split(it) + 1; s < end_split(it); s++) {
        state st = partial_state(t, chunk * t->n_splits + s);
        merge(t, it->n * t->group, &total, &st);
    }
    store(t, it, chunk % t->kv_heads, &total);
}

static void zero_rows(const attn *t, int64_t first, int64_t end)
{
    for (int64_t r = first * t->heads; r < end * t->heads; r++)
        memset(cpu_row(t->y, r), 0, cpu_bytes(t->c->dev, t->y->format, t->dv));
}

/* Cuts rows first .. end of a sequence into items. */
static void add_items(attn *t, int64_t seq, int64_t first, int64_t end, int64_t first_pos, int64_t len)
{
    for (int64_t r = first; r < end; r += t->block_rows) {
        int64_t n = min64(t->block_rows, end - r), pos = first_pos + r - first, lo = 0, key_end = len;
        if (t->a.mask == INFER_MASK_CAUSAL || t->a.mask == INFER_MASK_WINDOW)
            key_end = clamp64(pos + n, 0, len);
        if (t->a.mask == INFER_MASK_WINDOW)
            lo = clamp64(pos - (int64_t)t->a.window + 1, 0, len);
        if (lo >= key_end)
            zero_rows(t, r, r + n);
        else
            t->items[t->n_items++] = (item){(int32_t)seq, (int32_t)r, (int32_t)n, (int32_t)lo, (int32_t)key_end};
    }
}

/* Items of all sequences; rows that none owns get zeros. */
static void make_items(attn *t)
{
    int64_t rows = t->c->rows, at = 0;
    if (!t->table) {
        add_items(t, 0, 0, rows, t->k->shape[0] - t->q->shape[0], t->k->shape[0]);
        return;
    }
    int64_t held = t->table->shape[1] * t->k->shape[2];
    for (int64_t s = 0; s < t->n_seqs; s++) {
        int64_t first = clamp64(t->q_start[s], at, rows), end = clamp64(t->q_start[s + 1], first, rows);
        int64_t len = t->kv_len[s], newest = len - ((int64_t)t->q_start[s + 1] - t->q_start[s]);
        zero_rows(t, at, first);
        add_items(t, s, first, end, newest + first - t->q_start[s], clamp64(len, 0, held));
        at = end;
    }
    zero_rows(t, at, rows);
}

static int64_t items_max(int64_t rows, int64_t block_rows, int64_t seqs)
{
    return rows / block_rows + seqs + 1;
}

/* Fills in what the descriptor says; views may be without memory. */
static void describe(attn *t, const infer_op_desc *op, const cpu_view *in, const cpu_view *out, uint32_t n_in)
{
    static const cpu_view none;
    cpu_attrs(op, &t->a, sizeof t->a);
    int mla = op->op == INFER_OP_MLA_PAGED, dense = op->op == INFER_OP_ATTN_DENSE;
    uint32_t table = mla ? 2 : 3;
    t->q = &in[0];
    t->k = &in[1];
    t->v = mla ? NULL : &in[2];
    t->y = out;
    t->table = dense ? NULL : &in[table];
    t->sinks = !mla && !dense && n_in > 6 ? &in[6] : &none;
    t->tree = !dense && n_in > (mla ? 5u : 7u) ? &in[mla ? 5 : 7] : &none;
    if (!dense) {
        t->kv_len = (const int32_t *)(const void *)in[table + 1].p;
        t->q_start = (const int32_t *)(const void *)in[table + 2].p;
    }
    t->heads = t->q->shape[1];
    t->kv_heads = t->k->shape[1];
    t->group = t->heads / t->kv_heads;
    t->dk = t->q->shape[2];
    t->dv = t->y->shape[2];
    t->dk_pad = (t->dk + KERN_LANES - 1) / KERN_LANES * KERN_LANES;
    t->n_seqs = dense ? 1 : t->table->shape[0];
    t->block_rows = vectors_max(t->group) / t->group;
    t->work_bytes = lay_out(t, NULL, NULL);
}

infer_status cpu_run_attention(cpu_call *c)
{
    attn t = {.c = c};
    infer_device *dev = c->dev;
    int64_t threads = cpu_team_size(dev->team), most = 0;
    describe(&t, c->op, c->v, cpu_out(c, 0), c->op->n_in);
    t.k_bytes = cpu_bytes(dev, t.k->format, t.dk);
    t.v_bytes = t.v ? cpu_bytes(dev, t.v->format, t.dv) : 0;
    uint64_t at = 0, cap = (uint64_t)items_max(t.q->shape[0], t.block_rows, t.n_seqs);
    t.items = (item *)(void *)(c->scratch + take(&at, cap * sizeof *t.items));
    t.work = c->scratch + take(&at, t.work_bytes * (uint64_t)threads);
    t.partials = (float *)(void *)(c->scratch + at);
    make_items(&t);
    if (t.n_items == 0)
        return INFER_OK;
    for (int64_t i = 0; i < t.n_items; i++)
        most = end_split(&t.items[i]) > most ? end_split(&t.items[i]) : most;
    int64_t wholes = t.n_items * t.kv_heads;
    if (threads > 1 && most > 1 && wholes < 2 * threads &&
        (uint64_t)(wholes * most) * partial_floats(&t) * sizeof(float) <= c->scratch_bytes - at) {
        t.n_splits = most;
        cpu_team_run(dev->team, wholes * most, split_chunk, &t);
        cpu_team_run(dev->team, wholes, merge_chunk, &t);
        return INFER_OK;
    }
    int64_t keys = 0;
    for (int64_t i = 0; i < t.n_items; i++)
        keys += (t.items[i].key_end - t.items[i].key_lo) * (int64_t)t.items[i].n;
    if (keys * t.heads * (t.dk + t.dv) < 32768) { /* not worth waking anybody */
        for (int64_t i = 0; i < wholes; i++)
            whole_chunk(&t, i, 0);
        return INFER_OK;
    }
    cpu_team_run(dev->team, wholes, whole_chunk, &t);
    return INFER_OK;
}

void cpu_query_attention(const infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    cpu_view v[INFER_OP_MAX_OPERANDS] = {{0}};
    attn t = {0};
    for (uint32_t i = 0; i < op->n_in + op->n_out; i++) {
        const infer_tensor_desc *d = cpu_tensor(op, i);
        v[i].format = d->format;
        v[i].rank = d->rank;
        memcpy(v[i].shape, d->shape, sizeof v[i].shape);
    }
    describe(&t, op, v, &v[op->n_in], op->n_in);
    for (uint32_t i = 1; i <= (t.v ? 2u : 1u); i++)
        if (!cpu_weight_known(dev, cpu_tensor(op, i))) {
            a->level = INFER_LEVEL_NO;
            a->why = INFER_WHY_FORMAT;
            a->which = i;
            return;
        }
    if (t.q->shape[0] > INT32_MAX) {
        a->level = INFER_LEVEL_NO;
        a->why = INFER_WHY_SHAPE;
        return;
    }
    uint64_t threads = cpu_team_size(dev->team), at = 0;
    take(&at, (uint64_t)items_max(t.q->shape[0], t.block_rows, t.n_seqs) * sizeof(item));
    take(&at, t.work_bytes * threads);
    if (threads > 1) {
        uint64_t held = (uint64_t)(t.table ? t.table->shape[1] * t.k->shape[2] : t.k->shape[0]);
        uint64_t splits = (held + SPLIT - 1) / SPLIT, one = partial_floats(&t) * sizeof(float);
        uint64_t wholes = 2 * threads;
        /* In a product without overflow: what would go over the limit is the limit. */
        uint64_t bytes = splits > PARTIAL_MAX / one / wholes ? PARTIAL_MAX : splits * one * wholes;
        take(&at, splits > 1 ? bytes : 0);
    }
    a->scratch_bytes = at;
}
