/*
 * Positions and cache planes: ROPE, KV_WRITE, ROPE_KV_WRITE, KV_PACK, KV_UNPACK, KV_MOVE. Sines and cosines are taken
 * in double once a position and kept with the queue (cpu_rope_cache), since all layers of a step use the same.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <math.h>

#include "op.h"

/* ---- Angles ---------------------------------------------------------------------------------------------------- */

/* Cosines to out[0 .. n), sines to out[CPU_ROPE_PAIRS ..]. */
static void angles(const infer_attrs_rope *a, const float *inv_freq, const int32_t *pos, float *out)
{
    double magnitude = a->magnitude == 0 ? 1 : (double)a->magnitude;
    uint32_t which = 0, left = a->section[0];
    for (uint32_t i = 0; i < a->n_dims / 2; i++) {
        while (a->n_pos > 1 && !left)
            left = a->section[++which];
        left -= a->n_pos > 1;
        double angle = (double)pos[which] * (double)inv_freq[i];
        out[i] = (float)(cos(angle) * magnitude);
        out[CPU_ROPE_PAIRS + i] = (float)(sin(angle) * magnitude);
    }
}

typedef struct rope_ctx {
    const cpu_call *c;
    infer_attrs_rope a;
    const cpu_view *x, *pos;
    float inv_freq[CPU_ROPE_PAIRS];
    _Atomic infer_status fail;
    /* ROPE: y; the writing op: pool and slots */
    const cpu_view *y, *pool;
    const int32_t *slots;
} rope_ctx;

static const int32_t *position_of(const rope_ctx *x, int64_t row)
{
    return (const int32_t *)(const void *)cpu_row(x->pos, row);
}

/* Makes the cache fit the op's frequencies and fills in what the rows need, on the submitting thread. A row whose slot
 * another row takes is computed on the spot later. */
static void prepare(rope_ctx *x, const cpu_view *freq)
{
    const cpu_call *c = x->c;
    cpu_rope_cache *cache = &c->queue->rope;
    uint32_t n = x->a.n_dims / 2;
    memmove(x->inv_freq, cpu_load(c, freq, freq->p, 0, n, x->inv_freq), n * sizeof(float));
    if (x->a.n_pos != 1)
        return;
    if (cache->n_pairs != n || cache->magnitude != x->a.magnitude ||
        memcmp(cache->inv_freq, x->inv_freq, n * sizeof(float)) != 0) {
        cache->n_pairs = n;
        cache->magnitude = x->a.magnitude;
        memcpy(cache->inv_freq, x->inv_freq, n * sizeof(float));
        memset(cache->position, 0xFF, sizeof cache->position);
    }
    for (int64_t r = 0; r < c->rows; r++) {
        int32_t p = position_of(x, r)[0];
        uint32_t slot = (uint32_t)p % CPU_ROPE_SLOTS;
        if (p >= 0 && cache->position[slot] != p) {
            angles(&x->a, x->inv_freq, &p, cache->angles + (size_t)slot * 2 * CPU_ROPE_PAIRS);
            cache->position[slot] = p;
        }
    }
}

static const float *angles_of(const rope_ctx *x, int64_t row, float buf[2 * CPU_ROPE_PAIRS])
{
    const cpu_rope_cache *cache = &x->c->queue->rope;
    const int32_t *p = position_of(x, row);
    uint32_t slot = (uint32_t)p[0] % CPU_ROPE_SLOTS;
    if (x->a.n_pos == 1 && p[0] >= 0 && cache->position[slot] == p[0])
        return cache->angles + (size_t)slot * 2 * CPU_ROPE_PAIRS;
    angles(&x->a, x->inv_freq, p, buf);
    return buf;
}

static void turn(const rope_ctx *x, const float *angle, const float *from, float *to)
{
    const infer_attrs_rope *a = &x->a;
    int64_t pairs = a->n_dims / 2, d = x->x->width;
    int halves = a->kind == INFER_ROPE_HALVES;
    x->c->k->rotate(from, angle, angle + CPU_ROPE_PAIRS, to, pairs, halves ? 1 : 2, halves ? pairs : 1);
    if (from != to && d > a->n_dims)
        memcpy(to + a->n_dims, from + a->n_dims, (size_t)(d - a->n_dims) * sizeof *to);
}

/* ---- Cache planes ---------------------------------------------------------------------------------------------- */

/* Where token `slot` of a head lies; NULL: out of range. */
static uint8_t *slot_at(const cpu_view *pool, int64_t slot, int64_t head)
{
    int64_t size = pool->shape[2], b = slot / size;
    if (slot < 0 || b >= pool->shape[0])
        return NULL;
    return pool->p + b * pool->stride[0] + head * pool->stride[1] + slot % size * pool->stride[2];
}

/* Widths up to this pass over the stack. */
enum { HEAD_MAX = 2048 };

static void rope_piece(void *ctx, int64_t first, int64_t end, uint32_t worker)
{
    rope_ctx *x = ctx;
    const cpu_call *c = x->c;
    int64_t heads = x->x->per_row, d = x->x->width;
    float own[2 * CPU_ROPE_PAIRS], from_buf[HEAD_MAX], to_buf[HEAD_MAX];
    (void)worker;
    for (int64_t r = first; r < end; r++) {
        const float *angle = angles_of(x, r, own);
        for (int64_t h = 0; h < heads; h++) {
            const float *from = cpu_load(c, x->x, cpu_row(x->x, r * heads + h), 0, d, from_buf);
            infer_status s;
            if (x->pool) {
                uint8_t *to = slot_at(x->pool, x->slots[r], h);
                if (!to)
                    continue;
                turn(x, angle, from, to_buf);
                s = cpu_pack(c->dev, x->pool->format, to_buf, to, d);
            } else {
                uint8_t *row = cpu_row(x->y, r * heads + h);
                float *to = cpu_target(x->y, row, 0, to_buf);
                turn(x, angle, from, to);
                s = cpu_store(c, x->y, row, 0, d, to);
            }
            if (s != INFER_OK)
                x->fail = s;
        }
    }
}

infer_status cpu_run_rope(cpu_call *c)
{
    rope_ctx x = {.c = c, .x = cpu_in(c, 0), .pos = cpu_in(c, 1), .y = cpu_out(c, 0)};
    cpu_attrs(c->op, &x.a, sizeof x.a);
    prepare(&x, cpu_in(c, 2));
    cpu_split(c->dev, c->rows, x.x->per_row * x.x->width * 2, rope_piece, &x);
    return x.fail;
}

static void limit_rope(const infer_attrs_rope *r, const infer_tensor_desc *x, infer_op_answer *a)
{
    if (r->n_dims / 2 > CPU_ROPE_PAIRS || x->shape[2] > HEAD_MAX) {
        a->level = INFER_LEVEL_NO;
        a->why = INFER_WHY_SHAPE;
    }
}

void cpu_query_rope(const infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    infer_attrs_rope r;
    (void)dev;
    cpu_attrs(op, &r, sizeof r);
    limit_rope(&r, cpu_tensor(op, 0), a);
}

typedef struct write_ctx {
    const cpu_call *c;
    const int32_t *slots;
    const cpu_view *x, *pool;
    _Atomic infer_status fail;
} write_ctx;

static void write_piece(void *ctx, int64_t first, int64_t end, uint32_t worker)
{
    write_ctx *w = ctx;
    const cpu_call *c = w->c;
    int64_t heads = w->x->per_row, d = w->x->width;
    float buf[HEAD_MAX];
    (void)worker;
    for (int64_t r = first; r < end; r++)
        for (int64_t h = 0; h < heads; h++) {
            uint8_t *to = slot_at(w->pool, w->slots[r], h);
            if (!to)
                continue;
            const float *from = cpu_load(c, w->x, cpu_row(w->x, r * heads + h), 0, d, buf);
            infer_status s = cpu_pack(c->dev, w->pool->format, from, to, d);
            if (s != INFER_OK)
                w->fail = s;
        }
}

/* Input `which` into output `which`. */
static infer_status write_plane(cpu_call *c, uint32_t which, uint32_t slots)
{
    write_ctx w = {.c = c, .x = cpu_in(c, which), .pool = cpu_out(c, which)};
    w.slots = (const int32_t *)(const void *)cpu_in(c, slots)->p;
    cpu_split(c->dev, c->rows, w.x->per_row * w.x->width, write_piece, &w);
    return w.fail;
}

infer_status cpu_run_kv_write(cpu_call *c)
{
    infer_status s = write_plane(c, 0, 2);
    return s != INFER_OK ? s : write_plane(c, 1, 2);
}

/* Two rows of one op never name one slot, so rows may be written in any order. */
infer_status cpu_run_rope_kv_write(cpu_call *c)
{
    infer_attrs_rope_kv a;
    rope_ctx x = {.c = c, .x = cpu_in(c, 0), .pos = cpu_in(c, 2), .pool = cpu_out(c, 0)};
    cpu_attrs(c->op, &a, sizeof a);
    x.a = a.rope;
    x.slots = (const int32_t *)(const void *)cpu_in(c, 4)->p;
    prepare(&x, cpu_in(c, 3));
    cpu_split(c->dev, c->rows, x.x->per_row * x.x->width * 2, rope_piece, &x);
    return x.fail != INFER_OK ? x.fail : write_plane(c, 1, 4);
}

/* Whether the pool's format can be written: plain ones here, others through the host. */
static void limit_write(const infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    for (uint32_t i = 0; i < 2; i++) {
        const infer_tensor_desc *t = cpu_tensor(op, op->n_in + i);
        if (cpu_tensor(op, i)->shape[2] > HEAD_MAX) {
            a->level = INFER_LEVEL_NO;
            a->why = INFER_WHY_SHAPE;
        } else if (t->format >= INFER_FMT_COUNT || !dev->kern->format[t->format].unpack) {
            a->level = INFER_LEVEL_NO;
            a->why = INFER_WHY_FORMAT;
        }
    }
}

void cpu_query_kv_write(const infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    limit_write(dev, op, a);
}

void cpu_query_rope_kv_write(const infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    infer_attrs_rope_kv r;
    cpu_attrs(op, &r, sizeof r);
    limit_write(dev, op, a);
    limit_rope(&r.rope, cpu_tensor(op, 0), a);
}

/* ---- Blocks and slots as bytes --------------------------------------------------------------------------------- */

typedef struct blocks_ctx {
    const cpu_call *c;
    const cpu_view *pool, *image;
    const int32_t *blocks;
    uint64_t bytes; /* of one token of one head */
    int unpack;
} blocks_ctx;

static void blocks_piece(void *ctx, int64_t first, int64_t end, uint32_t worker)
{
    const blocks_ctx *x = ctx;
    int64_t heads = x->pool->shape[1], size = x->pool->shape[2];
    (void)worker;
    for (int64_t i = first; i < end; i++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t t = 0; t < size; t++) {
                uint8_t *p = x->blocks[i] < 0 ? NULL : slot_at(x->pool, x->blocks[i] * size + t, h);
                uint8_t *q = slot_at(x->image, i * size + t, h);
                if (x->unpack && p)
                    memcpy(p, q, x->bytes);
                else if (!x->unpack && p)
                    memcpy(q, p, x->bytes);
                else if (!x->unpack)
                    memset(q, 0, x->bytes);
            }
}

infer_status cpu_run_kv_blocks(cpu_call *c)
{
    int unpack = c->op->op == INFER_OP_KV_UNPACK;
    blocks_ctx x = {.c = c, .unpack = unpack};
    x.pool = unpack ? cpu_out(c, 0) : cpu_in(c, 0);
    x.image = unpack ? cpu_in(c, 0) : cpu_out(c, 0);
    x.blocks = (const int32_t *)(const void *)cpu_in(c, 1)->p;
    x.bytes = cpu_bytes(c->dev, x.pool->format, x.pool->width);
    if (unpack) /* a block may be named twice: the last one counts */
        blocks_piece(&x, 0, c->rows, 0);
    else
        cpu_split(c->dev, c->rows, x.pool->shape[1] * x.pool->shape[2] * x.pool->width, blocks_piece, &x);
    return INFER_OK;
}

void cpu_query_kv_blocks(const infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    (void)dev;
    (void)op;
    (void)a;
}

/* In list order, so not split. */
infer_status cpu_run_kv_move(cpu_call *c)
{
    const cpu_view *pool = cpu_out(c, 0);
    const int32_t *src = (const int32_t *)(const void *)cpu_in(c, 1)->p;
    const int32_t *dst = (const int32_t *)(const void *)cpu_in(c, 2)->p;
    uint64_t bytes = cpu_bytes(c->dev, pool->format, pool->width);
    for (int64_t i = 0; i < c->rows; i++)
        for (int64_t h = 0; h < pool->shape[1]; h++) {
            uint8_t *from = slot_at(pool, src[i], h), *to = slot_at(pool, dst[i], h);
            if (from && to)
                memmove(to, from, bytes);
        }
    return INFER_OK;
}

void cpu_query_kv_move(const infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    (void)dev;
    (void)op;
    (void)a;
}
