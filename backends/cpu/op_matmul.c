/*
 * Products of rows with weight matrices: MATMUL, MOE_MATMUL, LORA_SHRINK, LORA_EXPAND_ADD. All are one form: items
 * (rows of x), each with the matrix that it meets, grouped by matrix into blocks of at most BLOCK items; a chunk of
 * work is a block times a tile of weight rows. Every output is the canonical sum of kern.h, so neither grouping nor
 * tiling shows in the result. Few items, and weights of 16 bits: the format's dot kernel reads the weights as they
 * lie. More: 32 weight rows at a time are unpacked for one chunk of K and meet all items of the block. Weights in
 * panels: items become integers first, once for all weights, and the sums are those of panel.h.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include "op.h"

enum { BLOCK = PANEL_BLOCK_MAX, TILE = 64, FEW = 12 /* items for the dot kernels */ };

/* Items list[first .. first + m), all of matrix e. */
typedef struct block {
    int32_t e, first, m;
} block;

typedef struct product {
    const cpu_call *c;
    cpu_weight w;
    const cpu_view *x, *y, *bias;
    const float *xf;     /* x converted to float, [vectors][k]; NULL: x is F32 */
    uint8_t *xq;         /* items as integers, a block's in tiles (panel.h), where weights are in panels */
    int64_t x_div;       /* item i reads vector i / x_div of x */
    const int32_t *list; /* items in order of matrix; NULL: item i is the i-th, all of matrix 0 */
    const block *blocks; /* with list */
    int64_t n_blocks, block_rows, items;
    int64_t n_tiles, tile;
    float scale;
    int exact; /* activations stay floats */
    uint32_t n_epilogue;
    const cpu_view *base; /* added last (LORA_EXPAND_ADD), or NULL */
} product;

/* ---- Weights --------------------------------------------------------------------------------------------------- */

static int64_t groups(int64_t extent, uint32_t group)
{
    return group ? (extent - 1) / group + 1 : 1;
}

int cpu_weight_known(const infer_device *dev, const infer_tensor_desc *t)
{
    const infer_format f[3] = {t->format, t->quant.scale_format, t->quant.zero_format};
    if (t->layout != INFER_LAYOUT_CANONICAL)
        return t->layout == CPU_LAYOUT_PANELS && f[0] < INFER_FMT_COUNT && kern_panels_for(dev->kern->panel, f[0]);
    for (int i = 0; i < 3; i++)
        if ((i == 0 || f[i]) && (f[i] >= INFER_FMT_COUNT || !dev->kern->format[f[i]].unpack))
            return 0;
    return 1;
}

void cpu_weight_open(cpu_weight *w, const cpu_call *c, uint32_t operand)
{
    const infer_tensor_desc *t = cpu_tensor(c->op, operand);
    const cpu_view *v = &c->v[operand];
    uint32_t last = t->rank - 1;
    *w = (cpu_weight){.p = v->p, .f = &c->k->format[t->format], .quant = t->quant, .kern = c->k, .format = t->format};
    w->k = t->shape[last];
    w->n = t->shape[last - 1];
    w->e = t->rank == 3 ? t->shape[0] : 1;
    if (t->layout == CPU_LAYOUT_PANELS) {
        w->panel = &panel_formats[t->format];
        w->with = kern_panels_for(c->k->panel, t->format);
        w->panel_bytes = (int64_t)panel_bytes(w->panel, w->k);
        w->e_stride = (w->n + PANEL_ROWS - 1) / PANEL_ROWS * w->panel_bytes;
        return;
    }
    w->n_stride = v->stride[last - 1];
    w->e_stride = t->rank == 3 ? v->stride[0] : 0;
    if (!t->quant.scale_format)
        return;
    w->by_row = t->quant.group_n == 1 && !t->quant.group_k && !t->quant.zero_format && !t->quant.zero_value;
    int64_t entries = groups(w->n, t->quant.group_n) * groups(w->k, t->quant.group_k);
    const infer_format f[3] = {t->format, t->quant.scale_format, t->quant.zero_format};
    const int64_t elems[3] = {w->n * w->k, entries, entries};
    int64_t at = 0;
    for (int i = 0; i < 3; i++) {
        if (!f[i])
            continue;
        const kern_format *kf = &c->k->format[f[i]];
        at = (at + 255) / 256 * 256;
        w->plane[i] = v->p + at;
        w->plane_bytes[i] = (elems[i] + kf->block_elems - 1) / kf->block_elems * kf->block_bytes;
        at += w->plane_bytes[i] * w->e;
    }
}

/* Entry i of a scale or zero plane. */
static float plane_entry(const cpu_weight *w, int plane, infer_format f, int64_t e, int64_t i)
{
    const kern_format *kf = &w->kern->format[f];
    float v[2];
    kf->unpack(w->plane[plane] + e * w->plane_bytes[plane] + i / kf->block_elems * kf->block_bytes, v, kf->block_elems);
    return v[i % kf->block_elems];
}

/* Element k0 of a row's codes, where there are side planes. */
static const uint8_t *codes_at(const cpu_weight *w, int64_t e, int64_t r, int64_t k0)
{
    const int64_t blocks = r * (w->k / w->f->block_elems) + k0 / w->f->block_elems;
    return w->plane[0] + e * w->plane_bytes[0] + blocks * w->f->block_bytes;
}

void cpu_weight_part(const cpu_weight *w, int64_t e, int64_t r, int64_t k0, int64_t n, float *dst)
{
    const infer_quant *q = &w->quant;
    if (!q->scale_format) {
        w->f->unpack(w->p + e * w->e_stride + r * w->n_stride + k0 / w->f->block_elems * w->f->block_bytes, dst, n);
        return;
    }
    w->f->unpack(codes_at(w, e, r, k0), dst, n);
    int64_t width = q->group_k ? q->group_k : w->k,
            row_entry = (q->group_n ? r / q->group_n : 0) * groups(w->k, q->group_k);
    for (int64_t at = 0; at < n;) {
        int64_t g = (k0 + at) / width, end = (g + 1) * width - k0;
        float scale = plane_entry(w, 1, q->scale_format, e, row_entry + g);
        float zero = q->zero_format ? plane_entry(w, 2, q->zero_format, e, row_entry + g) : (float)q->zero_value;
        for (end = end < n ? end : n; at < end; at++)
            dst[at] = scale * (dst[at] - zero);
    }
}

/* ---- One chunk ------------------------------------------------------------------------------------------------- */

/* Sums of items with weight rows n0 .. n0 + nn, by the dot kernel: so many items at a time as a cache holds. */
static void sums_few(const product *p, int64_t e, const float *const *x, int64_t m, int64_t n0, int64_t nn, float *c)
{
    enum { GROUP = 24 };
    const cpu_weight *w = &p->w;
    const uint8_t *base = w->p + e * w->e_stride;
    const int64_t dot_rows = p->c->k->dot_rows;
    for (int64_t i0 = 0; i0 < m; i0 += GROUP)
        for (int64_t r = 0; r < nn; r += KERN_TILE) { /* past the end: the last row again; tiles are whole groups */
            const uint8_t *row[KERN_TILE];
            const int64_t end = m - i0 < GROUP ? m : i0 + GROUP;
            for (int64_t j = 0; j < KERN_TILE; j++)
                row[j] = base + (r + j < nn ? n0 + r + j : n0 + nn - 1) * w->n_stride;
            for (int64_t i = i0; i < end; i += dot_rows)
                w->f->dot(row, x + i, (int)(end - i < dot_rows ? end - i : dot_rows), w->k, c + i * TILE + r, TILE);
        }
}

/* So many weight rows become floats at a time, which the second-level cache holds; so many items meet them together,
 * whose part of x the first-level cache holds. */
enum { FLOAT_ROWS = 32, FLOAT_ITEMS = 6 };

/* Asks for parts of up to FLOAT_ROWS weight rows from n0 on: each is too short for the hardware to notice. Panels and
 * side planes lie otherwise. */
static inline __attribute__((always_inline)) void fetch_rows(const cpu_weight *w, int64_t e, int64_t n0, int64_t k0)
{
    const int64_t bytes = cpu_min(w->k - k0, KERN_CHUNK) / w->f->block_elems * w->f->block_bytes,
                  end = cpu_min(n0 + FLOAT_ROWS, w->n);
    const uint8_t *at = w->p + k0 / w->f->block_elems * w->f->block_bytes;
    for (int64_t r = n0; r < end && !w->quant.scale_format && !w->panel; r++)
        for (int64_t i = 0; i < bytes; i += 64)
            __builtin_prefetch(at + e * w->e_stride + r * w->n_stride + i, 0, 2);
}

/* Elements k0 .. k0 + kc of n weight rows from n0 on as floats, KERN_CHUNK from row to row, zeros behind them up to
 * whole groups of lanes. Gives how many rows there are then: up to whole panels, or tiles of zeros. */
static int64_t to_floats(const cpu_weight *w, int64_t e, int64_t n0, int64_t n, int64_t k0, int64_t kc, float *rows)
{
    const int64_t whole = (kc + KERN_LANES - 1) / KERN_LANES * KERN_LANES;
    int64_t r = 0;
    for (; r < n && w->panel; r += PANEL_ROWS)
        panel_unpack(w->panel, w->p + e * w->e_stride + (n0 + r) / PANEL_ROWS * w->panel_bytes, k0, kc,
                     rows + r * KERN_CHUNK, KERN_CHUNK);
    for (; r < n || r % KERN_TILE; r++) {
        float *row = rows + r * KERN_CHUNK;
        const int64_t got = r < n ? kc : 0;
        if (got && w->by_row)
            w->f->unpack(codes_at(w, e, n0 + r, k0), row, kc);
        else if (got)
            cpu_weight_part(w, e, n0 + r, k0, kc, row);
        if (got < whole)
            memset(row + got, 0, (size_t)(whole - got) * sizeof *row);
    }
    return r;
}

/* Items' parts of x with nn <= FLOAT_ROWS rows of weights as floats. */
static void meet(const product *p, const float *rows, const float *const *part, int64_t m, int64_t nn, int64_t kc,
                 float *c)
{
    for (int64_t i = 0; i < m; i += FLOAT_ITEMS)
        for (int64_t r = 0; r < nn; r += KERN_TILE)
            p->c->k->tile(rows + r * KERN_CHUNK, KERN_CHUNK, part + i, m - i < FLOAT_ITEMS ? m - i : FLOAT_ITEMS, kc,
                          c + i * TILE + r, TILE);
}

/* Sums of items with weight rows n0 .. n0 + nn, which become floats a few at a time. */
static void sums_floats(const product *p, int64_t e, const float *const *x, int64_t m, int64_t n0, int64_t nn, float *c)
{
    const cpu_weight *w = &p->w;
    _Alignas(64) float rows[FLOAT_ROWS * KERN_CHUNK];
    const float *part[BLOCK];
    memset(c, 0, (size_t)(m * TILE) * sizeof *c);
    for (int64_t k0 = 0; k0 < w->k; k0 += KERN_CHUNK) {
        int64_t kc = cpu_min(w->k - k0, KERN_CHUNK);
        for (int64_t i = 0; i < m; i++)
            part[i] = x[i] + k0;
        for (int64_t r0 = 0, have; r0 < nn; r0 += have) {
            have = cpu_min(nn - r0, FLOAT_ROWS);
            const int64_t tiled = to_floats(w, e, n0 + r0, have, k0, kc, rows);
            if (r0 + have < nn)
                fetch_rows(w, e, n0 + r0 + have, k0);
            else if (k0 + kc < w->k)
                fetch_rows(w, e, n0, k0 + kc);
            else
                fetch_rows(w, e, n0 + nn, 0);
            meet(p, rows, part, m, tiled, kc, c + r0);
        }
    }
}

/* Few items: all of K at once. More: parts of K, whose activations the panels of this tile find in the cache. */
static void sums_panels(const product *p, const block *blk, int64_t n0, int64_t nn, float *c)
{
    enum { FEW_PANEL = 4, PART = 512 / PANEL_BLOCK };
    const cpu_weight *w = &p->w;
    const panel_dot_fn dot = w->with->dots[w->format];
    const int64_t blocks = w->k / PANEL_BLOCK, part = blk->m <= FEW_PANEL ? blocks : PART;
    const uint8_t *panel = w->p + blk->e * w->e_stride + n0 / PANEL_ROWS * w->panel_bytes;
    const uint8_t *x = p->xq + blk->first * blocks * PANEL_X_BYTES;
    memset(c, 0, (size_t)(blk->m * TILE) * sizeof *c);
    for (int64_t b0 = 0; b0 < blocks; b0 += part)
        dot(panel, w->panel_bytes, (nn + PANEL_ROWS - 1) / PANEL_ROWS, x, blk->m, b0,
            blocks - b0 < part ? blocks - b0 : part, blocks, c, TILE);
}

static void finish(const product *p, int64_t item, int64_t n0, int64_t nn, float *v)
{
    const cpu_call *c = p->c;
    const kern_table *k = c->k;
    float buf[TILE];
    if (p->scale != 1)
        k->scale(v, p->scale, 0, v, nn);
    if (p->bias)
        k->add(v, cpu_load(c, p->bias, p->bias->p, n0, nn, buf), v, nn);
    for (uint32_t i = 0; i < p->n_epilogue; i++) {
        const infer_epilogue *s = cpu_epilogue(c->op, i);
        const cpu_view *o = s->kind <= INFER_EPI_MUL ? cpu_in(c, s->operand) : NULL;
        const float *with = o ? cpu_load(c, o, o->rank == 1 ? o->p : cpu_row(o, item), n0, nn, buf) : NULL;
        switch (s->kind) {
        case INFER_EPI_BIAS:
        case INFER_EPI_RESIDUAL:
            k->add(v, with, v, nn);
            break;
        case INFER_EPI_MUL:
            k->mul(v, with, v, nn);
            break;
        case INFER_EPI_ACT:
            k->act(s->arg, 0, v, NULL, v, nn);
            break;
        case INFER_EPI_SCALE:
            k->scale(v, s->factor, 0, v, nn);
            break;
        default: /* INFER_EPI_CONVERT: the store does it */
            break;
        }
    }
    if (p->base)
        k->add(cpu_load(c, p->base, cpu_row(p->base, item), n0, nn, buf), v, v, nn);
    cpu_store(c, p->y, cpu_row(p->y, item), n0, nn, v);
}

static const float *x_of(const product *p, int64_t item)
{
    int64_t r = item / p->x_div;
    return p->xf ? p->xf + r * p->w.k : (const float *)(const void *)cpu_row(p->x, r);
}

/* What a chunk is of: a block of items, a tile of weight rows. */
static block chunk_of(const product *p, int64_t chunk, int64_t *n0, int64_t *nn)
{
    const int64_t b = chunk / p->n_tiles;
    *n0 = chunk % p->n_tiles * p->tile;
    *nn = p->w.n - *n0 < p->tile ? p->w.n - *n0 : p->tile;
    if (p->blocks)
        return p->blocks[b];
    block blk = {0, (int32_t)(b * p->block_rows), 0};
    blk.m = (int32_t)(p->items - blk.first < p->block_rows ? p->items - blk.first : p->block_rows);
    return blk;
}

static int64_t item_at(const product *p, int64_t i)
{
    return p->list ? p->list[i] : i;
}

/* Sums of codes by their rows' scales. */
static void scale_rows(const cpu_weight *w, int64_t e, int64_t m, int64_t n0, int64_t nn, float *c)
{
    float by[TILE];
    for (int64_t r = 0; r < nn; r++)
        by[r] = plane_entry(w, 1, w->quant.scale_format, e, n0 + r);
    for (int64_t i = 0; i < m; i++)
        w->kern->mul(c + i * TILE, by, c + i * TILE, nn);
}

/* c[i * TILE + r]: item i of the block with weight row n0 + r. */
static void sums_of(const product *p, const block *of, int64_t n0, int64_t nn, float *c)
{
    const block blk = *of;
    const float *x[BLOCK];
    for (int64_t i = 0; i < blk.m && !p->xq; i++)
        x[i] = x_of(p, item_at(p, blk.first + i));
    int direct = !p->w.panel && p->w.f->dot && (!p->w.quant.scale_format || p->w.by_row) && p->w.k % KERN_LANES == 0;
    if (p->xq)
        sums_panels(p, &blk, n0, nn, c);
    else if (direct &&
             (blk.m <= FEW || p->w.f->block_bytes == 2)) /* 16 bits: as fast as tiles, without making floats */
        sums_few(p, blk.e, x, blk.m, n0, nn, c);
    else
        sums_floats(p, blk.e, x, blk.m, n0, nn, c);
    if (p->w.by_row)
        scale_rows(&p->w, blk.e, blk.m, n0, nn, c);
}

static void product_chunk(void *ctx, int64_t chunk, uint32_t worker)
{
    const product *p = ctx;
    int64_t n0, nn;
    const block blk = chunk_of(p, chunk, &n0, &nn);
    _Alignas(64) float c[BLOCK * TILE];
    (void)worker;
    sums_of(p, &blk, n0, nn, c);
    for (int64_t i = 0; i < blk.m; i++)
        finish(p, item_at(p, blk.first + i), n0, nn, c + i * TILE);
}

/* ---- Preparation ----------------------------------------------------------------------------------------------- */

typedef struct convert_ctx {
    const cpu_call *c;
    const cpu_view *x;
    float *to;
} convert_ctx;

static void convert_piece(void *ctx, int64_t first, int64_t end, uint32_t worker)
{
    const convert_ctx *v = ctx;
    (void)worker;
    for (int64_t r = first; r < end; r++)
        v->c->k->format[v->x->format].unpack(cpu_row(v->x, r), v->to + r * v->x->width, v->x->width);
}

static uint64_t align64(uint64_t n)
{
    return (n + 63) / 64 * 64;
}

/* Places [first, end) of the blocks' items into their tiles. */
static void quantize_piece(void *ctx, int64_t first, int64_t end, uint32_t worker)
{
    const product *p = ctx;
    const cpu_call *c = p->c;
    const int64_t row_blocks = p->w.k / PANEL_BLOCK;
    float buf[CPU_SEGMENT];
    (void)worker;
    for (int64_t i = first, b = p->blocks ? 0 : first / p->block_rows; i < end; i++) {
        int64_t at, m, tile, rows, item = p->list ? p->list[i] : i, r = item / p->x_div;
        if (p->blocks) {
            while (i >= p->blocks[b].first + p->blocks[b].m)
                b++;
            at = p->blocks[b].first;
            m = p->blocks[b].m;
        } else {
            b = i / p->block_rows;
            at = b * p->block_rows;
            m = p->items - at < p->block_rows ? p->items - at : p->block_rows;
        }
        panel_tile(kern_panels_tile(p->w.with, m), m, i - at, &tile, &rows);
        uint8_t *to = p->xq + (at + tile) * row_blocks * PANEL_X_BYTES;
        for (int64_t k = 0; k < p->w.k; k += CPU_SEGMENT, to += rows * (CPU_SEGMENT / PANEL_BLOCK) * PANEL_X_BYTES) {
            int64_t n = p->w.k - k < CPU_SEGMENT ? p->w.k - k : CPU_SEGMENT;
            p->w.with->quantize(cpu_load(c, p->x, cpu_row(p->x, r), k, n, buf), n, p->w.panel->zero, to, rows,
                                i - at - tile);
        }
    }
}

static void cut_tiles(const cpu_call *c, product *p)
{
    const int64_t threads = cpu_team_size(c->dev->team);
    p->tile = TILE;
    while (p->tile > 16 && (p->w.n + p->tile - 1) / p->tile * p->n_blocks < threads * 6)
        p->tile /= 2;
    p->n_tiles = (p->w.n + p->tile - 1) / p->tile;
}

static int integers(const product *p)
{
    return p->w.panel && !p->exact;
}

/* Cuts the items of n products of one x into the same blocks: then chunks of one fit the integers of another. Several
 * blocks of integers have whole tiles each, or, where tiles differ, are the block that all kinds of a table share. */
static void cut_blocks(product *p, int n)
{
    int64_t most = BLOCK, whole = 0, items = p->items;
    for (int i = 0; i < n; i++)
        if (integers(&p[i])) {
            const kern_panels *with = p[i].w.with;
            most = with->block;
            whole = whole && whole != with->tile ? most : with->tile;
        }
    int64_t n_blocks = (items + most - 1) / most, rows = (items + n_blocks - 1) / n_blocks;
    if (n_blocks > 1 && whole)
        rows = (rows + whole - 1) / whole * whole;
    for (int i = 0; i < n; i++) {
        p[i].block_rows = rows;
        p[i].n_blocks = (items + rows - 1) / rows;
    }
}

/* Makes of x what the sums need, floats or integers in the tiles of its blocks. Gives the end of what it took. */
static uint8_t *make_x(cpu_call *c, product *p, uint8_t *scratch)
{
    if (integers(p)) {
        const block *last = p->blocks ? &p->blocks[p->n_blocks - 1] : NULL;
        const int64_t met = last ? last->first + last->m : p->items;
        p->xq = scratch;
        cpu_split(c->dev, met, p->w.k * 2, quantize_piece, p);
        scratch += align64((uint64_t)(met * (p->w.k / PANEL_BLOCK)) * PANEL_X_BYTES);
    } else if (p->x->format != INFER_FMT_F32) {
        convert_ctx v = {c, p->x, (float *)(void *)scratch};
        cpu_split(c->dev, c->rows * p->x->per_row, p->w.k, convert_piece, &v);
        p->xf = v.to;
        scratch += align64((uint64_t)(c->rows * p->x->per_row * p->w.k) * sizeof(float));
    }
    return scratch;
}

/* Whether two products of one x need it in the same form. */
static int same_x(const product *a, const product *b)
{
    return a->w.with == b->w.with && (!a->w.panel || a->w.panel->zero == b->w.panel->zero);
}

/* Prepares n products of one x and its items: first the blocks, as their integers lie in tiles of these. scratch: of
 * the sum of their x_scratch. */
static void prepare(cpu_call *c, product *p, int n, uint8_t *scratch)
{
    if (!p->blocks)
        cut_blocks(p, n);
    for (int i = 0; i < n; i++) {
        int same = 0;
        while (same < i && !same_x(&p[same], &p[i]))
            same++;
        p[i].xf = p[same].xf;
        p[i].xq = p[same].xq;
        if (same == i)
            scratch = make_x(c, &p[i], scratch);
        cut_tiles(c, &p[i]);
    }
}

/* fn for each chunk of so much work, in products of two numbers. */
static void run_team(cpu_call *c, int64_t work, int64_t chunks, cpu_chunk_fn fn, void *ctx)
{
    if (work < 32768) { /* not worth waking anybody */
        for (int64_t i = 0; i < chunks; i++)
            fn(ctx, i, 0);
        return;
    }
    cpu_team_run(c->dev->team, chunks, fn, ctx);
}

/* All chunks of a prepared product. */
static void run_chunks(cpu_call *c, const product *p, cpu_chunk_fn fn, void *ctx)
{
    run_team(c, p->w.n * p->w.k * p->items, p->n_tiles * p->n_blocks, fn, ctx);
}

static void run_product(cpu_call *c, product *p, uint8_t *scratch)
{
    prepare(c, p, 1, scratch);
    run_chunks(c, p, product_chunk, p);
}

/* Of MATMUL and MOE_MATMUL. */
static infer_attrs_matmul attrs_of(const infer_op_desc *op)
{
    infer_attrs_matmul a;
    cpu_attrs(op, &a, sizeof a);
    a.scale = a.scale == 0 ? 1 : a.scale;
    return a;
}

/* Steps of the epilogue list that are known here, from the first. */
static uint32_t epilogues(const infer_op_desc *op)
{
    uint32_t n = 0;
    while (n < op->n_epilogue && cpu_epilogue(op, n)->kind >= INFER_EPI_BIAS &&
           cpu_epilogue(op, n)->kind <= INFER_EPI_CONVERT)
        n++;
    return n;
}

/* Room for x, [vectors] of the weight's K, as it must be to meet it `items` times: floats, or integers in tiles. */
static uint64_t x_scratch(const infer_tensor_desc *w, infer_format x_format, int exact, int64_t vectors, int64_t items)
{
    int64_t k = w->shape[w->rank - 1];
    if (w->layout == CPU_LAYOUT_PANELS && !exact)
        return align64((uint64_t)(items * (k / PANEL_BLOCK)) * PANEL_X_BYTES);
    return x_format == INFER_FMT_F32 ? 0 : align64((uint64_t)(vectors * k) * sizeof(float));
}

/* Whether `n` weights from operand `first` on are known. */
static int query_weights(const infer_device *dev, const infer_op_desc *op, uint32_t first, uint32_t n,
                         infer_op_answer *a)
{
    for (uint32_t i = first; i < first + n; i++)
        if (!cpu_weight_known(dev, cpu_tensor(op, i))) {
            a->level = INFER_LEVEL_NO;
            a->why = INFER_WHY_FORMAT;
            a->which = i;
            return 0;
        }
    return 1;
}

/* Common to all: a weight that is known, and room for x. */
static int query_product(const infer_device *dev, const infer_op_desc *op, int64_t items, infer_op_answer *a)
{
    const infer_tensor_desc *x = cpu_tensor(op, 0), *w = cpu_tensor(op, 1);
    if (!query_weights(dev, op, 1, 1, a))
        return 0;
    a->n_epilogue = epilogues(op);
    const int exact =
        (op->op == INFER_OP_MATMUL || op->op == INFER_OP_MOE_MATMUL) && attrs_of(op).act_format == INFER_FMT_F32;
    a->scratch_bytes += x_scratch(w, x->format, exact, x->shape[0] * (x->rank == 3 ? x->shape[1] : 1), items);
    a->est_bytes = (double)cpu_bytes(dev, w->format, w->shape[w->rank - 1]) * (double)w->shape[w->rank - 2];
    return 1;
}

/* ---- MATMUL ---------------------------------------------------------------------------------------------------- */

infer_status cpu_run_matmul(cpu_call *c)
{
    const cpu_view *bias = cpu_in(c, 2);
    product p = {.c = c, .x = cpu_in(c, 0), .y = cpu_out(c, 0), .bias = bias->p ? bias : NULL, .x_div = 1};
    p.items = c->rows;
    p.n_epilogue = c->op->n_epilogue;
    const infer_attrs_matmul a = attrs_of(c->op);
    p.scale = a.scale;
    p.exact = a.act_format == INFER_FMT_F32;
    cpu_weight_open(&p.w, c, 1);
    run_product(c, &p, c->scratch);
    return INFER_OK;
}

void cpu_query_matmul(const infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    query_product(dev, op, cpu_tensor(op, 0)->shape[0], a);
}

/* ---- GATED_MLP -------------------------------------------------------------------------------------------------- */

/* Both products of one tile, and their activation, by one thread; the hidden rows stay floats. A chunk of the one is a
 * chunk of the other: they have as many rows and the same blocks. */
enum { GATE, UP };
typedef struct gated {
    product of[2];
    infer_attrs_act a;
    float *hidden; /* [items][of[GATE].w.n] */
} gated;

/* Asks for the first part of a tile's panels, before another stream of weights ends: else the processor notices the new
 * one only after some misses. */
static inline __attribute__((always_inline)) void fetch_tile(const product *p, int64_t n0)
{
    enum { HEAD = 4096, LINE = 64 };
    if (!p->w.panel || n0 >= p->w.n)
        return;
    const uint8_t *at = p->w.p + n0 / PANEL_ROWS * p->w.panel_bytes;
    for (int64_t i = 0; i < HEAD && i < p->w.panel_bytes; i += LINE)
        __builtin_prefetch(at + i, 0, 2);
}

static void gated_chunk(void *ctx, int64_t chunk, uint32_t worker)
{
    const gated *g = ctx;
    int64_t n0, nn;
    const block blk = chunk_of(&g->of[GATE], chunk, &n0, &nn);
    _Alignas(64) float gate[BLOCK * TILE], up[BLOCK * TILE];
    (void)worker;
    if (blk.m <= FEW)
        fetch_tile(&g->of[UP], n0);
    sums_of(&g->of[GATE], &blk, n0, nn, gate);
    if (blk.m <= FEW)
        fetch_tile(&g->of[GATE], n0 + nn);
    sums_of(&g->of[UP], &blk, n0, nn, up);
    for (int64_t i = 0; i < blk.m; i++)
        g->of[GATE].c->k->act(g->a.act, g->a.limit, gate + i * TILE, up + i * TILE,
                              g->hidden + (blk.first + i) * g->of[GATE].w.n + n0, nn);
}

infer_status cpu_run_gated_mlp(cpu_call *c)
{
    const cpu_view *x = cpu_in(c, 0);
    const int64_t hidden = cpu_in(c, 1)->shape[0], rows = c->rows;
    uint8_t *scratch = c->scratch + align64((uint64_t)(rows * hidden) * sizeof(float));
    gated g = {.hidden = (float *)(void *)c->scratch};
    cpu_attrs(c->op, &g.a, sizeof g.a);
    for (uint32_t i = 0; i < 2; i++) {
        g.of[i] = (product){.c = c, .x = x, .x_div = 1, .items = rows, .scale = 1};
        cpu_weight_open(&g.of[i].w, c, 1 + i);
    }
    prepare(c, g.of, 2, scratch);
    run_chunks(c, &g.of[GATE], gated_chunk, &g);
    const cpu_view h = {.p = c->scratch,
                        .format = INFER_FMT_F32,
                        .rank = 2,
                        .shape = {rows, hidden, 1, 1},
                        .stride = {hidden * (int64_t)sizeof(float), 0, 0, 0},
                        .per_row = 1,
                        .width = hidden};
    product down = {.c = c, .x = &h, .y = cpu_out(c, 0), .x_div = 1, .items = rows, .scale = 1};
    down.n_epilogue = c->op->n_epilogue;
    cpu_weight_open(&down.w, c, 3);
    run_product(c, &down, scratch);
    return INFER_OK;
}

void cpu_query_gated_mlp(const infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    const infer_tensor_desc *x = cpu_tensor(op, 0);
    const int64_t rows = x->shape[0];
    if (!query_product(dev, op, rows, a) || !query_weights(dev, op, 2, 2, a))
        return;
    uint64_t first = a->scratch_bytes + x_scratch(cpu_tensor(op, 2), x->format, 0, rows, rows);
    uint64_t second = x_scratch(cpu_tensor(op, 3), INFER_FMT_F32, 0, rows, rows);
    a->scratch_bytes =
        align64((uint64_t)(rows * cpu_tensor(op, 1)->shape[0]) * sizeof(float)) + (first > second ? first : second);
}

/* ---- QKV ------------------------------------------------------------------------------------------------------- */

enum { QKV = 3 };

/* Chunks of the first product, then of the second, and so on. */
static void qkv_chunk(void *ctx, int64_t chunk, uint32_t worker)
{
    const product *p = ctx;
    while (chunk >= p->n_tiles * p->n_blocks) {
        chunk -= p->n_tiles * p->n_blocks;
        p++;
    }
    product_chunk((void *)(uintptr_t)p, chunk, worker);
}

infer_status cpu_run_qkv(cpu_call *c)
{
    product p[QKV];
    int64_t chunks = 0, work = 0;
    for (uint32_t i = 0; i < QKV; i++) {
        const cpu_view *bias = cpu_in(c, 4 + i);
        p[i] = (product){.c = c, .x = cpu_in(c, 0), .y = cpu_out(c, i), .x_div = 1, .items = c->rows, .scale = 1};
        p[i].bias = bias->p ? bias : NULL;
        cpu_weight_open(&p[i].w, c, 1 + i);
    }
    prepare(c, p, QKV, c->scratch);
    for (uint32_t i = 0; i < QKV; i++) {
        chunks += p[i].n_tiles * p[i].n_blocks;
        work += p[i].w.n * p[i].w.k * p[i].items;
    }
    run_team(c, work, chunks, qkv_chunk, p);
    return INFER_OK;
}

void cpu_query_qkv(const infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    const infer_tensor_desc *x = cpu_tensor(op, 0);
    query_weights(dev, op, 1, QKV, a);
    for (uint32_t i = 1; i <= QKV && a->level; i++) {
        const infer_tensor_desc *w = cpu_tensor(op, i);
        a->scratch_bytes += x_scratch(w, x->format, 0, x->shape[0], x->shape[0]);
        a->est_bytes += (double)cpu_bytes(dev, w->format, w->shape[1]) * (double)w->shape[0];
    }
}

/* ---- Items that choose their matrix ---------------------------------------------------------------------------- */

/* Scratch of the grouping: blocks, list, counts by matrix. */
static uint64_t grouping_bytes(int64_t items, int64_t e)
{
    return align64((uint64_t)(items / BLOCK + e) * sizeof(block)) + align64((uint64_t)items * sizeof(int32_t)) +
           align64((uint64_t)(e + 1) * sizeof(int32_t));
}

/* choice[i * step ..]: what item i meets, out of range: nothing, and `unmet` is called with it. */
typedef int32_t (*choice_fn)(const cpu_call *c, int64_t item);
typedef void (*unmet_fn)(const product *p, int64_t item);

static uint8_t *group_items(product *p, uint8_t *scratch, choice_fn choice, unmet_fn unmet)
{
    int64_t e = p->w.e, items = p->items;
    block *blocks = (block *)(void *)scratch;
    scratch += align64((uint64_t)(items / BLOCK + e) * sizeof *blocks);
    int32_t *list = (int32_t *)(void *)scratch;
    scratch += align64((uint64_t)items * sizeof *list);
    int32_t *start = (int32_t *)(void *)scratch;
    scratch += align64((uint64_t)(e + 1) * sizeof *start);
    memset(start, 0, (size_t)(e + 1) * sizeof *start);
    for (int64_t i = 0; i < items; i++) {
        int32_t k = choice(p->c, i);
        if (k >= 0 && k < e)
            start[k + 1]++;
        else
            unmet(p, i);
    }
    for (int64_t k = 0; k < e; k++) {
        int32_t n = start[k + 1];
        start[k + 1] += start[k];
        for (int32_t at = 0; at < n; at += BLOCK)
            blocks[p->n_blocks++] = (block){(int32_t)k, start[k] + at, n - at < BLOCK ? n - at : BLOCK};
    }
    for (int64_t i = 0; i < items; i++) {
        int32_t k = choice(p->c, i);
        if (k >= 0 && k < e)
            list[start[k]++] = (int32_t)i;
    }
    p->blocks = blocks;
    p->list = list;
    return scratch;
}

static int32_t expert_of(const cpu_call *c, int64_t item)
{
    const cpu_view *ids = cpu_in(c, 2);
    return ((const int32_t *)(const void *)cpu_row(ids, item / ids->width))[item % ids->width];
}

/* Zero sums, then the rest of the way. */
static void zero_item(const product *p, int64_t item)
{
    for (int64_t n0 = 0; n0 < p->w.n; n0 += TILE) {
        float v[TILE] = {0};
        finish(p, item, n0, p->w.n - n0 < TILE ? p->w.n - n0 : TILE, v);
    }
}

infer_status cpu_run_moe_matmul(cpu_call *c)
{
    const cpu_view *ids = cpu_in(c, 2), *x = cpu_in(c, 0);
    product p = {.c = c, .x = x, .y = cpu_out(c, 0), .x_div = x->rank == 3 ? 1 : ids->width};
    p.items = c->rows * ids->width;
    p.n_epilogue = c->op->n_epilogue;
    const infer_attrs_matmul a = attrs_of(c->op);
    p.scale = a.scale;
    p.exact = a.act_format == INFER_FMT_F32;
    cpu_weight_open(&p.w, c, 1);
    uint8_t *rest = group_items(&p, c->scratch, expert_of, zero_item);
    if (p.n_blocks)
        run_product(c, &p, rest);
    return INFER_OK;
}

void cpu_query_moe_matmul(const infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    const infer_tensor_desc *ids = cpu_tensor(op, 2);
    int64_t items = ids->shape[0] * ids->shape[1];
    if (!query_product(dev, op, items, a))
        return;
    if (items > INT32_MAX || cpu_tensor(op, 1)->shape[0] > INT32_MAX - 1) {
        a->level = INFER_LEVEL_NO;
        a->why = INFER_WHY_SHAPE;
        return;
    }
    a->scratch_bytes += grouping_bytes(items, cpu_tensor(op, 1)->shape[0]);
}

static int32_t adapter_of(const cpu_call *c, int64_t item)
{
    return ((const int32_t *)(const void *)cpu_in(c, 2)->p)[item];
}

infer_status cpu_run_lora(cpu_call *c)
{
    product p = {.c = c, .x = cpu_in(c, 0), .y = cpu_out(c, 0), .x_div = 1, .items = c->rows, .scale = 1};
    if (c->op->op == INFER_OP_LORA_EXPAND_ADD)
        p.base = cpu_in(c, 3);
    cpu_weight_open(&p.w, c, 1);
    uint8_t *rest = group_items(&p, c->scratch, adapter_of, zero_item);
    if (p.n_blocks)
        run_product(c, &p, rest);
    return INFER_OK;
}

void cpu_query_lora(const infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    if (!query_product(dev, op, cpu_tensor(op, 0)->shape[0], a))
        return;
    a->n_epilogue = 0; /* the sum with y comes first */
    a->scratch_bytes += grouping_bytes(cpu_tensor(op, 0)->shape[0], cpu_tensor(op, 1)->shape[0]);
}
