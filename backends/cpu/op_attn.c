/*
 * Attention: ATTN_PAGED, MLA_PAGED, ATTN_DENSE. An item of work is up to ATTN_ROWS query vectors that read one KV head
 * (the heads of a group and neighbouring rows of a sequence). Its keys are taken in splits of ATTN_SPLIT at fixed
 * positions, merged in order whoever computed them, so a row's result depends on nothing but the row and its keys. What
 * happens inside a split: op_attn_tile.c. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <math.h>

#include "op_attn.h"

#define PARTIAL_MAX ((uint64_t)16 << 20) /* bytes of split results; above, splits run one after the other */
enum {
    SHARES = 4 /* a chunk of work is at most this part of a thread's, if it can be cut */,
    KEY_COST = 4,
    WORTH_SHARING = 32768
};

/* ---- Results --------------------------------------------------------------------------------------------------- */

/* Adds a later split to the total. */
static void merge(const attn_call *t, int64_t vectors, const attn_state *total, const attn_state *st)
{
    const kern_table *k = t->c->k;
    for (int64_t i = 0; i < vectors; i++) {
        float *o = total->o + i * t->ldo;
        if (st->l[i] != st->l[i])
            total->l[i] = NAN;
        if (st->m[i] == -INFINITY)
            continue;
        if (total->m[i] == -INFINITY) {
            total->m[i] = st->m[i];
            total->l[i] += st->l[i];
            memcpy(o, st->o + i * t->ldo, (size_t)t->dv * sizeof *o);
            continue;
        }
        float most = st->m[i] > total->m[i] ? st->m[i] : total->m[i];
        float old = t->exp(total->m[i] - most), new = t->exp(st->m[i] - most);
        total->m[i] = most;
        total->l[i] = total->l[i] * old + st->l[i] * new;
        k->scale(o, old, 0, o, t->dv);
        k->axpy(new, st->o + i * t->ldo, o, t->dv);
    }
}

/* Vectors of one head. */
static void store(const attn_call *t, const attn_item *it, int64_t head, const attn_state *total)
{
    for (int64_t i = 0; i < it->n * t->group; i++) {
        int64_t h = head * t->group + i % t->group;
        float *o = total->o + i * t->ldo, m = total->m[i], l = total->l[i];
        if (t->sinks->p && m > -INFINITY) { /* a score with no value */
            float sink = cpu_float_at(t->c, t->sinks, h) * t->log_e, most = sink > m ? sink : m;
            l = l * t->exp(m - most) + t->exp(sink - most);
            t->c->k->scale(o, t->exp(m - most), 0, o, t->dv);
        }
        t->c->k->scale(o, l == 0 ? 0 : 1 / l, 0, o, t->dv);
        cpu_store(t->c, t->y, cpu_row(t->y, (it->first + i / t->group) * t->heads + h), 0, t->dv, o);
    }
}

/* ---- Chunks of work -------------------------------------------------------------------------------------------- */

static int64_t first_split(const attn_item *it)
{
    return it->key_lo / ATTN_SPLIT;
}

static int64_t n_splits(const attn_item *it)
{
    return (it->key_end + ATTN_SPLIT - 1) / ATTN_SPLIT - first_split(it);
}

/* Floats of the results of one split. */
static uint64_t partial_floats(const attn_call *t, const attn_item *it)
{
    return (uint64_t)attn_round_up(it->n * it->heads * t->group * (t->ldo + 2), KERN_LANES);
}

/* Units of heads that are done together. */
static int64_t n_units(const attn_call *t, const attn_item *it)
{
    return (t->kv_heads + it->heads - 1) / it->heads;
}

static int64_t unit_heads(const attn_call *t, const attn_item *it, int64_t unit)
{
    return cpu_min(it->heads, t->kv_heads - unit * it->heads);
}

/* What belongs to the h-th head of those done together. */
static attn_state of_head(const attn_call *t, const attn_item *it, const attn_state *st, int64_t h)
{
    int64_t i = h * it->n * t->group;
    return (attn_state){st->m + i, st->l + i, st->o + i * t->ldo};
}

/* Where the results of the i-th split of a shared item lie. */
static attn_state partial_state(const attn_call *t, const attn_item *it, int64_t unit, int64_t i)
{
    float *p = t->partials + it->partial + (uint64_t)(unit * n_splits(it) + i) * partial_floats(t, it);
    int64_t n = it->n * it->heads * t->group;
    return (attn_state){p + n * t->ldo, p + n * (t->ldo + 1), p};
}

static attn_work work_of(const attn_call *t, uint32_t worker)
{
    attn_work w;
    attn_lay_out(t, t->work + worker * t->work_bytes, &w);
    return w;
}

/* A whole item for some heads: its splits one after the other. */
static void run_whole(const attn_call *t, const attn_item *it, int64_t unit, uint32_t worker)
{
    attn_work w = work_of(t, worker);
    attn_state total = {w.total_m, w.total_l, w.total}, st = {w.m, w.l, w.o};
    int64_t head = unit * it->heads, heads = unit_heads(t, it, unit);
    attn_load_queries(t, &w, it, head, heads);
    for (int64_t i = 0; i < n_splits(it); i++) {
        attn_run_split(t, &w, it, head, heads, first_split(it) + i, i ? &st : &total);
        if (i)
            merge(t, heads * it->n * t->group, &total, &st);
    }
    for (int64_t h = 0; h < heads; h++) {
        attn_state own = of_head(t, it, &total, h);
        store(t, it, head + h, &own);
    }
}

static void run_chunk(void *ctx, int64_t chunk, uint32_t worker)
{
    const attn_call *t = ctx;
    int64_t lo = 0, hi = t->n_items;
    while (hi - lo > 1) { /* the last item that starts at or before it */
        int64_t mid = lo + (hi - lo) / 2;
        if (t->items[mid].chunk <= chunk)
            lo = mid;
        else
            hi = mid;
    }
    const attn_item *it = &t->items[lo];
    chunk -= it->chunk;
    if (lo >= t->n_shared) {
        run_whole(t, it, chunk, worker);
        return;
    }
    int64_t i = chunk / n_units(t, it), unit = chunk % n_units(t, it);
    int64_t head = unit * it->heads, heads = unit_heads(t, it, unit);
    attn_work w = work_of(t, worker);
    attn_state st = partial_state(t, it, unit, i);
    attn_load_queries(t, &w, it, head, heads);
    attn_run_split(t, &w, it, head, heads, first_split(it) + i, &st);
}

/* One head of a shared item. */
static void merge_chunk(void *ctx, int64_t chunk, uint32_t worker)
{
    const attn_call *t = ctx;
    const attn_item *it = &t->items[chunk / t->kv_heads];
    int64_t head = chunk % t->kv_heads, unit = head / it->heads;
    attn_state all = partial_state(t, it, unit, 0), total = of_head(t, it, &all, head % it->heads);
    (void)worker;
    for (int64_t i = 1; i < n_splits(it); i++) {
        all = partial_state(t, it, unit, i);
        attn_state st = of_head(t, it, &all, head % it->heads);
        merge(t, it->n * t->group, &total, &st);
    }
    store(t, it, head, &total);
}

/* About the time of an item for one head: arithmetic, and bringing keys in. */
static int64_t cost(const attn_call *t, const attn_item *it)
{
    return ((int64_t)it->key_end - it->key_lo) * (it->n * t->group + KEY_COST);
}

/* Costly items first (Shell's sort: they are few, and often in order). */
static void sort_items(attn_call *t)
{
    for (int64_t gap = t->n_items / 2; gap > 0; gap /= 2)
        for (int64_t i = gap; i < t->n_items; i++) {
            attn_item it = t->items[i];
            int64_t j = i;
            for (; j >= gap && cost(t, &t->items[j - gap]) < cost(t, &it); j -= gap)
                t->items[j] = t->items[j - gap];
            t->items[j] = it;
        }
}

/* How many of an item's heads are done together: as many as there is memory for, and as keeps the part of one split in
 * `of` within `most`. */
static int32_t heads_together(const attn_call *t, const attn_item *it, int64_t of, int64_t most)
{
    int64_t n = attn_clamp(attn_vectors_max(t) / (it->n * t->group), 1, t->kv_heads);
    n = attn_clamp(most / (cost(t, it) / of + 1), 1, n);
    int64_t units = (t->kv_heads + n - 1) / n;
    return (int32_t)((t->kv_heads + units - 1) / units); /* units of about one size */
}

/* Numbers the chunks and returns how many there are. Items that would keep one thread busy for long are shared, as far
 * as there is room for their splits' results. */
static int64_t make_chunks(attn_call *t, int64_t threads, uint64_t room)
{
    int64_t total = 0, chunks = 0, most = INT64_MAX;
    uint64_t used = 0;
    for (int64_t i = 0; i < t->n_items; i++)
        total += cost(t, &t->items[i]) * t->kv_heads;
    if (threads > 1)
        most = total / (threads * SHARES) + 1;
    sort_items(t);
    t->n_shared = 0;
    for (int64_t i = 0; i < t->n_items; i++) {
        attn_item *it = &t->items[i];
        it->chunk = chunks;
        it->partial = used;
        it->heads = heads_together(t, it, n_splits(it), most);
        uint64_t floats = (uint64_t)(n_units(t, it) * n_splits(it)) * partial_floats(t, it);
        if (t->n_shared == i && n_splits(it) > 1 && cost(t, it) * it->heads > most && floats <= room - used) {
            t->n_shared++;
            used += floats;
            chunks += n_units(t, it) * n_splits(it);
        } else {
            it->heads = heads_together(t, it, 1, most);
            chunks += n_units(t, it);
        }
    }
    return chunks;
}

/* ---- Items ----------------------------------------------------------------------------------------------------- */

static void zero_rows(const attn_call *t, int64_t first, int64_t end)
{
    for (int64_t r = first * t->heads; r < end * t->heads; r++)
        memset(cpu_row(t->y, r), 0, cpu_bytes(t->c->dev, t->y->format, t->dv));
}

/* Cuts rows first .. end of a sequence into items. */
static void add_items(attn_call *t, int64_t seq, int64_t first, int64_t end, int64_t first_pos, int64_t len)
{
    for (int64_t r = first; r < end; r += t->block_rows) {
        int64_t n = cpu_min(t->block_rows, end - r), pos = first_pos + r - first, lo = 0, key_end = len;
        if (t->a.mask == INFER_MASK_CAUSAL || t->a.mask == INFER_MASK_WINDOW)
            key_end = attn_clamp(pos + n, 0, len);
        if (t->a.mask == INFER_MASK_WINDOW)
            lo = attn_clamp(pos - (int64_t)t->a.window + 1, 0, len);
        if (lo >= key_end)
            zero_rows(t, r, r + n);
        else
            t->items[t->n_items++] = (attn_item){.seq = (int32_t)seq,
                                                 .first = (int32_t)r,
                                                 .n = (int32_t)n,
                                                 .key_lo = (int32_t)lo,
                                                 .key_end = (int32_t)key_end};
    }
}

/* Items of all sequences; rows that none owns get zeros. */
static void make_items(attn_call *t)
{
    int64_t rows = t->c->rows, at = 0;
    if (!t->table) {
        add_items(t, 0, 0, rows, t->k->shape[0] - t->q->shape[0], t->k->shape[0]);
        return;
    }
    int64_t held = t->table->shape[1] * t->k->shape[2];
    for (int64_t s = 0; s < t->n_seqs; s++) {
        int64_t first = attn_clamp(t->q_start[s], at, rows), end = attn_clamp(t->q_start[s + 1], first, rows);
        int64_t len = t->kv_len[s], newest = len - ((int64_t)t->q_start[s + 1] - t->q_start[s]);
        zero_rows(t, at, first);
        add_items(t, s, first, end, newest + first - t->q_start[s], attn_clamp(len, 0, held));
        at = end;
    }
    zero_rows(t, at, rows);
}

static int64_t items_max(int64_t rows, int64_t block_rows, int64_t seqs)
{
    return rows / block_rows + seqs + 1;
}

/* Fills in what the descriptor says; views may be without memory. */
static void describe(attn_call *t, const infer_op_desc *op, const cpu_view *in, const cpu_view *out, uint32_t n_in)
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
    infer_format values = (t->v ? t->v : t->k)->format;
    t->v_block = values < INFER_FMT_COUNT ? kern_generic_table.format[values].block_elems : 0;
    if (t->v_block < 1) /* the query refuses it */
        t->v_block = 1;
    t->dk_pad = attn_round_up(t->dk, KERN_LANES);
    t->ldo = attn_round_up(t->dv, KERN_LANES);
    /* A step of its own, so that rows do not fall on the same lines of the cache. */
    t->ldv = attn_round_up(t->dv, t->v_block > KERN_LANES ? t->v_block : KERN_LANES) + KERN_LANES;
    t->n_seqs = dense ? 1 : t->table->shape[0];
    t->block_rows = attn_vectors_max(t) / t->group;
    t->work_bytes = attn_lay_out(t, NULL, NULL);
}

infer_status cpu_run_attention(cpu_call *c)
{
    attn_call t = {.c = c};
    infer_device *dev = c->dev;
    int64_t threads = cpu_team_size(dev->team), pairs = 0;
    describe(&t, c->op, c->v, cpu_out(c, 0), c->op->n_in);
    t.k_bytes = cpu_bytes(dev, t.k->format, t.dk);
    t.v_bytes = t.v ? cpu_bytes(dev, t.v->format, t.dv) : 0;
    uint64_t at = 0, cap = (uint64_t)items_max(t.q->shape[0], t.block_rows, t.n_seqs);
    t.items = (attn_item *)(void *)(c->scratch + attn_take(&at, cap * sizeof *t.items));
    t.work = c->scratch + attn_take(&at, t.work_bytes * (uint64_t)threads);
    t.partials = (float *)(void *)(c->scratch + at);
    t.exp = c->k->attn ? c->k->attn->exp : expf;
    t.log_e = c->k->attn ? c->k->attn->log_e : 1;
    make_items(&t);
    int64_t chunks = make_chunks(&t, threads, (c->scratch_bytes - at) / sizeof(float));
    for (int64_t i = 0; i < t.n_items; i++)
        pairs += (t.items[i].key_end - t.items[i].key_lo) * (int64_t)t.items[i].n;
    if (pairs * t.heads * (t.dk + t.dv) < WORTH_SHARING) {
        for (int64_t i = 0; i < t.n_items; i++)
            for (int64_t unit = 0; unit < n_units(&t, &t.items[i]); unit++)
                run_whole(&t, &t.items[i], unit, 0);
        return INFER_OK;
    }
    cpu_team_run(dev->team, chunks, run_chunk, &t);
    cpu_team_run(dev->team, t.n_shared * t.kv_heads, merge_chunk, &t);
    return INFER_OK;
}

void cpu_query_attention(const infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    cpu_view v[INFER_OP_MAX_OPERANDS] = {{0}};
    attn_call t = {0};
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
    attn_take(&at, (uint64_t)items_max(t.q->shape[0], t.block_rows, t.n_seqs) * sizeof(attn_item));
    attn_take(&at, t.work_bytes * threads);
    if (threads > 1) { /* for as many whole items as can be shared, in a product without overflow */
        uint64_t held = (uint64_t)(t.table ? t.table->shape[1] * t.k->shape[2] : t.k->shape[0]);
        const attn_item most = {.n = (int32_t)t.block_rows, .heads = 1};
        uint64_t one = partial_floats(&t, &most) * sizeof(float), wholes = 2 * SHARES * threads;
        uint64_t splits = (held + ATTN_SPLIT - 1) / ATTN_SPLIT;
        uint64_t bytes = splits > PARTIAL_MAX / one / wholes ? PARTIAL_MAX : splits * one * wholes;
        attn_take(&at, splits > 1 ? bytes : 0);
    }
    a->scratch_bytes = at;
}
