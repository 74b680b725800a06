/*
 * Attention, one split of one item: where its keys lie, which vectors see them, and the running softmax over tiles of
 * KERN_KEYS keys (Milakov and Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135). Tables with
 * kernels of their own for it (kern_attn) do a tile in panels of sixteen keys; others multiply as weights are. Keys
 * that a row does not see are never added, not even with weight 0. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <math.h>

#include "op_attn.h"

enum { KEYS = KERN_KEYS, PANEL = KERN_PANEL_KEYS };
enum { DIRECT = 6, DIRECT_VALUES = 8 }; /* vectors that read them as they lie */

/* ---- Memory ---------------------------------------------------------------------------------------------------- */

uint64_t attn_lay_out(const attn_call *t, uint8_t *base, attn_work *w)
{
    enum { FLOATS = 11, PARTS = 15 };
    uint64_t n = (uint64_t)attn_vectors_max(t), at = 0, dk = (uint64_t)t->dk_pad, ldo = (uint64_t)t->ldo;
    const uint64_t bytes[PARTS] = {KEYS * dk * 4,
                                   KEYS * (uint64_t)t->ldv * 4,
                                   n * KEYS * 4,
                                   n * ldo * 4,
                                   n * ldo * 4,
                                   n * 4,
                                   n * 4,
                                   n * 4,
                                   n * 4,
                                   n * dk * 4,
                                   PANEL * dk * 4,
                                   n * sizeof(float *),
                                   n * sizeof(float *),
                                   n * sizeof(uint64_t),
                                   n * sizeof(uint64_t)};
    uint8_t *p[PARTS];
    for (int i = 0; i < PARTS; i++) {
        uint64_t here = attn_take(&at, bytes[i]);
        p[i] = base ? base + here : NULL;
    }
    if (w) {
        float **f[FLOATS] = {&w->k, &w->v,       &w->s,       &w->o, &w->total, &w->m,
                             &w->l, &w->total_m, &w->total_l, &w->q, &w->rows};
        for (int i = 0; i < FLOATS; i++)
            *f[i] = (float *)(void *)p[i];
        w->x = (const float **)(void *)p[FLOATS];
        w->part = (const float **)(void *)p[FLOATS + 1];
        w->seen = (uint64_t *)(void *)p[FLOATS + 2];
        w->row_sees = (uint64_t *)(void *)p[FLOATS + 3];
    }
    return at;
}

void attn_load_queries(const attn_call *t, const attn_work *w, const attn_item *it, int64_t head, int64_t heads)
{
    int64_t i = 0;
    for (int64_t h = head; h < head + heads; h++)
        for (int64_t r = it->first; r < it->first + it->n; r++)
            for (int64_t g = 0; g < t->group; g++, i++) {
                const uint8_t *q = cpu_row(t->q, r * t->heads + h * t->group + g);
                float *own = w->q + i * t->dk_pad;
                w->x[i] = cpu_load(t->c, t->q, q, 0, t->dk, own);
                if (t->dk % 4) { /* kernels read whole quads */
                    memmove(own, w->x[i], (size_t)t->dk * sizeof *own);
                    memset(own + t->dk, 0, (size_t)(t->dk_pad - t->dk) * sizeof *own);
                    w->x[i] = own;
                }
            }
}

/* ---- Keys ------------------------------------------------------------------------------------------------------ */

/* Where the tokens of a tile lie in the planes of keys and values; NULL: the token's block is out of range. */
typedef struct places {
    const uint8_t *k[KEYS], *v[KEYS];
    uint64_t have; /* bit i: token i exists */
    int64_t n;
} places;

/* Tokens at .. at + n of a head. */
static void find_keys(const attn_call *t, const attn_item *it, int64_t head, int64_t at, int64_t n, places *p)
{
    const cpu_view *kp = t->k, *vp = t->v ? t->v : t->k;
    p->n = n;
    for (int64_t i = n; i < KEYS; i++) /* nothing, to be fetched in vain */
        p->k[i] = p->v[i] = NULL;
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
        int64_t run = cpu_min(n - i, size - offset);
        if (*block >= 0 && *block < kp->shape[0]) {
            const uint8_t *k = kp->p + *block * kp->stride[0] + head * kp->stride[1];
            const uint8_t *v = vp->p + *block * vp->stride[0] + head * vp->stride[1];
            k += offset * kp->stride[2];
            v += offset * vp->stride[2];
            for (int64_t j = 0; j < run; j++, k += kp->stride[2], v += vp->stride[2]) {
                p->k[i + j] = k;
                p->v[i + j] = v;
            }
            p->have |= UINT64_MAX >> (KEYS - run) << i;
        } else {
            for (int64_t j = 0; j < run; j++)
                p->k[i + j] = p->v[i + j] = NULL;
        }
        i += run;
        block++;
        offset = 0;
    }
}

/* Asks for tokens j .. j + count of a tile that comes up. Always inlined: GCC takes a function that does nothing but
 * this for one without effect, and drops its calls. */
static inline __attribute__((always_inline)) void fetch_keys(const uint8_t *const *where, int64_t n, int64_t j,
                                                             int64_t count, int64_t bytes)
{
    for (int64_t i = j; i < n && i < j + count; i++)
        for (int64_t b = 0; where[i] && b < bytes; b += 64)
            __builtin_prefetch(where[i] + b, 0, 2);
}

/* Rows of `width` floats, zeros behind them up to `padded`, and `ld` from row to row. */
static void unpack_keys(const attn_call *t, const cpu_view *plane, const uint8_t *const *where, int64_t n,
                        int64_t width, int64_t padded, float *out, int64_t ld)
{
    kern_unpack_fn unpack = t->c->k->format[plane->format].unpack;
    for (int64_t i = 0; i < n; i++, out += ld) {
        if (where[i])
            unpack(where[i], out, width);
        else
            memset(out, 0, (size_t)width * sizeof *out);
        if (width < padded)
            memset(out + width, 0, (size_t)(padded - width) * sizeof *out);
    }
}

/* Bit i: the row sees key at + i, of those that exist. newest: position of the sequence's first row in this op. */
static uint64_t sees(const attn_call *t, int64_t row, int64_t pos, int64_t newest, int64_t at, uint64_t have)
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
static void scores(const attn_call *t, const attn_work *w, const places *here, const places *next, int64_t vectors)
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
            fetch_keys(next->k, next->n, j, KERN_TILE, (int64_t)t->k_bytes);
            for (int64_t i = 0; i < vectors; i += dot_rows)
                f->dot(row, w->x + i, (int)cpu_min(dot_rows, vectors - i), t->dk, w->s + i * KEYS + j, KEYS);
        }
        return;
    }
    unpack_keys(t, t->k, where, n, t->dk, t->dk_pad, w->k, t->dk_pad);
    for (int64_t j = n; j % KERN_TILE; j++) /* a tile reads whole groups */
        memset(w->k + j * t->dk_pad, 0, (size_t)t->dk_pad * sizeof(float));
    memset(w->s, 0, (size_t)(vectors * KEYS) * sizeof(float));
    for (int64_t k0 = 0; k0 < t->dk; k0 += KERN_CHUNK) {
        for (int64_t i = 0; i < vectors; i++)
            w->part[i] = w->x[i] + k0;
        for (int64_t j = 0; j < n; j += KERN_TILE)
            t->c->k->tile(w->k + j * t->dk_pad + k0, t->dk_pad, w->part, vectors, cpu_min(KERN_CHUNK, t->dk - k0),
                          w->s + j, KEYS);
    }
}

/* Turns one vector's scores into exponentials and moves its state on. */
static void soften(const attn_call *t, float *s, uint64_t *seen, float *m, float *l, float *o)
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
static void weigh_run(const attn_call *t, const attn_work *w, const uint8_t *const *where, const float *v, int64_t ldv,
                      int64_t i, int64_t rows, int64_t first, int64_t n, float *o)
{
    const float *p = w->s + i * KEYS + first;
    if (v) {
        t->c->k->weighted(p, KEYS, rows, v + first * ldv, ldv, n, o + i * t->ldo, t->ldo, t->dv);
        return;
    }
    kern_weigh_fn weigh = t->c->k->format[t->v->format].weigh;
    const int64_t dot_rows = t->c->k->dot_rows;
    for (int64_t j = 0; j < rows; j += dot_rows)
        weigh(where + first, n, p + j * KEYS, KEYS, (int)cpu_min(dot_rows, rows - j), o + (i + j) * t->ldo, t->ldo,
              t->dv);
}

/* Vectors that see all n keys together, the others each over its runs of seen keys. */
static void weigh(const attn_call *t, const attn_work *w, const uint8_t *const *where, const float *v, int64_t ldv,
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

/* A tile with the products that weights use. */
static void do_tile(const attn_call *t, const attn_work *w, const places *here, const places *next, int64_t vectors,
                    const attn_state *st)
{
    scores(t, w, here, next, vectors);
    for (int64_t i = 0; i < vectors; i++) {
        if (vectors <= DIRECT) /* they pass so fast that memory must be asked in time */
            for (int64_t j = i * KEYS / vectors; j < (i + 1) * KEYS / vectors; j += KERN_TILE)
                fetch_keys(next->v, next->n, j, KERN_TILE, (int64_t)t->v_bytes);
        soften(t, w->s + i * KEYS, &w->seen[i], &st->m[i], &st->l[i], st->o + i * t->ldo);
    }
    if (!t->v) {
        weigh(t, w, here->v, w->k, t->dk_pad, vectors, here->n, st->o);
    } else if (vectors <= DIRECT && t->c->k->format[t->v->format].weigh && t->dv % KERN_LANES == 0) {
        weigh(t, w, here->v, NULL, 0, vectors, here->n, st->o);
    } else {
        unpack_keys(t, t->v, here->v, here->n, t->dv, t->dv, w->v, t->ldv);
        weigh(t, w, here->v, w->v, t->ldv, vectors, here->n, st->o);
    }
}

/* ---- One tile, with attention's own kernels -------------------------------------------------------------------- */

/* Scores of the vectors that see keys g .. g + PANEL of a tile with them, through a panel in w->k. */
static void panel_scores(const attn_call *t, const attn_work *w, const places *here, const places *next, int64_t g,
                         int64_t vectors)
{
    const kern_attn *f = t->c->k->attn;
    const uint64_t bits = ((UINT64_C(1) << PANEL) - 1) << g;
    const uint8_t *found[PANEL], *any = here->k[g + __builtin_ctzll((here->have & bits) >> g)];
    const uint8_t *const *row = here->k + g, *const *from = next->k + g;
    int64_t first = 0, end = vectors, dk = t->dk;
    while (first < end && !(w->seen[first] & bits))
        first++;
    while (end > first && !(w->seen[end - 1] & bits))
        end--;
    if (first == end)
        return;
    if (~here->have & bits) { /* what is missing is masked later */
        for (int64_t j = 0; j < PANEL; j++)
            found[j] = here->have >> (g + j) & 1 ? here->k[g + j] : any;
        row = found;
    }
    infer_format format = t->k->format;
    if (end - first <= KERN_DIRECT && f->direct[format] && dk % KERN_LANES == 0) {
        f->direct[format](row, next->k + g, w->x + first, end - first, dk, w->s + first * KEYS + g);
        return;
    }
    if (!f->keys[format] || dk % (format == INFER_FMT_F32 ? 4 : KERN_LANES)) {
        unpack_keys(t, t->k, row, PANEL, dk, t->dk_pad, w->rows, t->dk_pad);
        from = NULL; /* not as they lie */
        for (int64_t j = 0; j < PANEL; j++)
            found[j] = (const uint8_t *)(w->rows + j * t->dk_pad);
        row = found;
        format = INFER_FMT_F32;
        dk = attn_round_up(dk, 4);
    }
    f->keys[format](row, from, dk, w->k);
    f->scores(w->k, w->x + first, end - first, dk, w->s + first * KEYS + g);
}

/* How many keys from `at` on the vectors agree on, each for itself: it sees all of them or none. */
static int64_t agreed(const uint64_t *seen, int64_t vectors, int64_t at)
{
    int64_t n = KEYS - at;
    for (int64_t i = 0; i < vectors; i++) {
        uint64_t change = seen[i] >> at ^ (seen[i] >> at & 1 ? UINT64_MAX >> at : 0);
        if (change)
            n = cpu_min(n, __builtin_ctzll(change));
    }
    return n;
}

/* Adds the values of a tile: vectors that see all of it together, others in small groups over the runs of keys that the
 * same ones of them see. */
static void panel_weigh(const attn_call *t, const attn_work *w, const uint8_t *const *where, const uint8_t *const *next,
                        infer_format format, int64_t vectors, int64_t n, float *o)
{
    const kern_attn *f = t->c->k->attn;
    const uint64_t all = UINT64_MAX >> (KEYS - n);
    for (int64_t i = 0, size; i < vectors; i += size) {
        for (size = 0; i + size < vectors && w->seen[i + size] == all;)
            size++;
        if (size) {
            f->weigh[format](where, i ? NULL : next, n, w->s + i * KEYS, size, o + i * t->ldo, t->ldo);
            continue;
        }
        while (i + size < vectors && size < f->rows && w->seen[i + size] != all)
            size++;
        for (int64_t at = 0, run; at < n; at += run) {
            run = agreed(w->seen + i, size, at);
            for (int64_t j = i, end; j < i + size; j = end + 1) {
                for (end = j; end < i + size && w->seen[end] >> at & 1;)
                    end++;
                if (end > j)
                    f->weigh[format](where + at, NULL, run, w->s + j * KEYS + at, end - j, o + j * t->ldo, t->ldo);
            }
        }
    }
}

static void do_panels(const attn_call *t, const attn_work *w, const places *here, const places *next, int64_t vectors,
                      const attn_state *st)
{
    const kern_attn *f = t->c->k->attn;
    const kern_softmax softmax = {t->a.scale, t->a.soft_cap, t->ldo};
    const cpu_view *plane = t->v ? t->v : t->k;
    const int whole = t->dv == t->ldo && t->dv % t->v_block == 0; /* a latent's values may end inside a block */
    for (int64_t g = 0; g < KEYS; g += PANEL) {
        if (here->have >> g & ((1 << PANEL) - 1))
            panel_scores(t, w, here, next, g, vectors);
    }
    f->soften(&softmax, vectors, w->s, w->seen, st->m, st->l, st->o);
    if (vectors <= DIRECT_VALUES && f->weigh[plane->format] && whole) {
        panel_weigh(t, w, here->v, next->v, plane->format, vectors, here->n, st->o);
        return;
    }
    const uint8_t *row[KEYS];
    if (f->unpack[plane->format] && whole && ~here->have << (KEYS - here->n) == 0)
        f->unpack[plane->format](here->v, next->v, here->n, t->dv, w->v, t->ldv);
    else
        unpack_keys(t, plane, here->v, here->n, attn_round_up(t->dv, t->v_block), t->ldo, w->v, t->ldv);
    for (int64_t j = 0; j < here->n; j++)
        row[j] = (const uint8_t *)(w->v + j * t->ldv);
    panel_weigh(t, w, row, NULL, INFER_FMT_F32, vectors, here->n, st->o);
}

/* ---- One split ------------------------------------------------------------------------------------------------- */

/* The part of a work that belongs to vectors i and later. */
static attn_work from_vector(const attn_call *t, const attn_work *w, int64_t i)
{
    attn_work part = *w;
    part.x += i;
    part.q += i * t->dk_pad;
    return part;
}

void attn_run_split(const attn_call *t, const attn_work *w, const attn_item *it, int64_t head, int64_t heads,
                    int64_t split, const attn_state *st)
{
    int64_t vectors = it->n * t->group, newest = 0, pos = 0;
    places tiles[2], *here = &tiles[0], *next = &tiles[1];
    for (int64_t i = 0; i < vectors * heads; i++) {
        st->m[i] = -INFINITY;
        st->l[i] = 0;
    }
    memset(st->o, 0, (size_t)(vectors * heads * t->ldo) * sizeof(float));
    if (t->table) {
        newest = (int64_t)t->kv_len[it->seq] - ((int64_t)t->q_start[it->seq + 1] - t->q_start[it->seq]);
        pos = newest + it->first - t->q_start[it->seq];
    } else {
        newest = t->k->shape[0];
        pos = t->k->shape[0] - t->q->shape[0] + it->first;
    }
    int64_t at = split * ATTN_SPLIT, end = cpu_min(at + ATTN_SPLIT, it->key_end);
    if (at < it->key_lo / KEYS * KEYS)
        at = it->key_lo / KEYS * KEYS;
    find_keys(t, it, head, at, cpu_min(KEYS, end - at), next);
    for (; at < end; at += KEYS) {
        uint64_t any = 0;
        for (int64_t r = 0; r < it->n; r++)
            any |= w->row_sees[r] = sees(t, it->first + r, pos + r, newest, at, next->have);
        for (int64_t h = 0; h < heads; h++) {
            const attn_work part = from_vector(t, w, h * vectors);
            const attn_state own = {st->m + h * vectors, st->l + h * vectors, st->o + h * vectors * t->ldo};
            places *done = here;
            here = next;
            next = done;
            if (h + 1 < heads)
                find_keys(t, it, head + h + 1, at, here->n, next);
            else
                find_keys(t, it, head, at + KEYS, attn_clamp(it->key_end - at - KEYS, 0, KEYS), next);
            if (!any)
                continue;
            for (int64_t i = 0; i < vectors; i++)
                w->seen[i] = w->row_sees[i / t->group];
            (t->c->k->attn ? do_panels : do_tile)(t, &part, here, next, vectors, &own);
        }
    }
}
