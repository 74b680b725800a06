/*
 * Weights into device memory: the default plan (canonical image), the cut of a shard out of the whole tensor, and the
 * stream of its bytes in bounded chunks to the plugin's packer or, for a canonical image, straight to its place. Does
 * not convert formats. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "hal/internal.h"
#include "quant/quant.h"

#define CHUNK_MAX   ((uint64_t)16 << 20) /* bytes of one append */
#define GATHER_LESS ((uint64_t)64 << 10) /* runs shorter than this are gathered first */
#define PLANE_ALIGN 256u                 /* of scale and zero planes inside an image (ops.h) */

/* ---- The cut ------------------------------------------------------------------------------------------------ */

/* One plane seen along the cut axis: outer x len x inner bytes, of which [first, first + count) of len is wanted. */
typedef struct plane_cut {
    uint64_t outer, len, inner, first, count;
    uint64_t whole, bytes; /* of the source plane; of the part */
} plane_cut;

static uint64_t groups(uint64_t n, uint32_t size)
{
    return size ? (n + size - 1) / size : 1;
}

/* A unit of the cut must hold whole blocks of the format and whole groups of the quantisation. */
static infer_status cut_plane(const infer_weight_desc *w, uint32_t plane, plane_cut *out)
{
    const infer_quant *q = &w->quant;
    uint64_t k = (uint64_t)w->shape[w->rank - 1], n = w->rank > 1 ? (uint64_t)w->shape[w->rank - 2] : 1, e = 1;
    for (uint32_t i = 0; i + 2 < w->rank; i++)
        if (!infer_mul_u64(e, (uint64_t)w->shape[i], &e))
            return INFER_E_TOO_LARGE;
    infer_format format = plane == 0 ? q->format : plane == 1 ? q->scale_format : q->zero_format;
    if (format == INFER_FMT_NONE) {
        *out = (plane_cut){0};
        return INFER_OK;
    }
    uint64_t all[3];
    INFER_TRY(infer_quant_bytes(q, n, k, all));
    plane_cut c = {.outer = 1, .len = 1, .count = 1};
    if (!infer_mul_u64(all[plane], e, &c.whole))
        return INFER_E_TOO_LARGE;
    c.inner = c.bytes = c.whole;
    const infer_shard *s = &w->shard;
    if (!s->of || s->count == s->of) {
        *out = c;
        return INFER_OK;
    }
    const infer_format_info *f = infer_format_get(format);
    uint64_t rows = plane ? groups(n, q->group_n) : n, cols = plane ? groups(k, q->group_k) : k;
    uint64_t row_bytes = 0, group = 1;
    if (s->axis != 1)
        INFER_TRY(infer_format_bytes(format, cols, &row_bytes));
    switch (s->axis) {
    case 0:
        c = (plane_cut){.outer = e, .len = rows, .inner = row_bytes, .whole = c.whole};
        group = q->scale_format && q->group_n ? q->group_n : 1;
        break;
    case 1:
        c = (plane_cut){.outer = e * rows, .len = cols / f->block_elems, .inner = f->block_bytes, .whole = c.whole};
        group = q->scale_format && q->group_k ? q->group_k : 1;
        if (cols % f->block_elems)
            return INFER_E_INVALID;
        break;
    default:
        c = (plane_cut){.outer = 1, .len = e, .inner = rows * row_bytes, .whole = c.whole};
        break;
    }
    uint64_t axis_len = s->axis == 0 ? n : s->axis == 1 ? k : e;
    if (axis_len % s->of || axis_len / s->of % group)
        return INFER_E_INVALID;
    if (plane && ((s->axis == 0 && !q->group_n) || (s->axis == 1 && !q->group_k))) {
        c.count = c.len; /* one entry for the whole axis: every part has it */
    } else {
        if (c.len % s->of)
            return INFER_E_INVALID;
        c.first = c.len / s->of * s->first;
        c.count = c.len / s->of * s->count;
    }
    if (!infer_mul_u64(c.outer, c.count, &c.bytes) || !infer_mul_u64(c.bytes, c.inner, &c.bytes))
        return INFER_E_TOO_LARGE;
    *out = c;
    return INFER_OK;
}

static infer_status cut(const infer_weight_desc *w, plane_cut out[3])
{
    if (w->rank < 1 || w->rank > 4 || !infer_format_get(w->quant.format))
        return INFER_E_INVALID;
    for (uint32_t i = 0; i < w->rank; i++)
        if (w->shape[i] <= 0)
            return INFER_E_INVALID;
    const infer_shard *s = &w->shard;
    if (s->of && (s->axis > 2 || !s->count || s->first >= s->of || s->count > s->of - s->first))
        return INFER_E_INVALID;
    for (uint32_t i = 0; i < 3; i++)
        INFER_TRY(cut_plane(w, i, &out[i]));
    return INFER_OK;
}

/* Where the planes of a canonical image lie; at[3] is its size. */
static infer_status image_layout(const plane_cut c[3], uint64_t at[4])
{
    uint64_t end = 0;
    for (int i = 0; i < 3; i++) {
        if (c[i].bytes && !infer_round_up_u64(end, PLANE_ALIGN, &end))
            return INFER_E_TOO_LARGE;
        at[i] = end;
        if (!infer_add_u64(end, c[i].bytes, &end))
            return INFER_E_TOO_LARGE;
    }
    at[3] = end;
    return INFER_OK;
}

/* ---- The plan ----------------------------------------------------------------------------------------------- */

static infer_status default_plan(const infer_hal_dev *d, const infer_weight_desc *w, const plane_cut c[3],
                                 infer_weight_plan *out)
{
    uint64_t at[4];
    INFER_TRY(image_layout(c, at));
    infer_weight_plan p = {.struct_size = sizeof p,
                           .layout = INFER_LAYOUT_CANONICAL,
                           .align = d->props.buffer_align ? d->props.buffer_align : 1,
                           .packed_bytes = at[3],
                           .format = w->quant.format};
    if (p.align < PLANE_ALIGN && c[1].bytes)
        p.align = PLANE_ALIGN;
    /* Side planes would have to follow the data at 256 bytes, which no file promises. */
    if ((d->b->has & HAL_HAS_IMPORT) && !c[1].bytes && c[0].bytes == c[0].whole)
        p.flags |= INFER_WEIGHT_IN_PLACE;
    *out = p;
    return INFER_OK;
}

/* Whether the image is the source's planes as they are. */
static int canonical(const infer_weight_desc *w, const infer_weight_plan *p)
{
    return p->layout == INFER_LAYOUT_CANONICAL && p->format == w->quant.format;
}

infer_status infer_hal_weight_plan(infer_hal_dev *d, const infer_weight_desc *desc, infer_weight_plan *out,
                                   infer_error *err)
{
    infer_status s = hal_lost(d);
    if (s)
        return infer_hal_fail(d, s, err, "plan weight");
    plane_cut c[3];
    infer_weight_plan p = {.struct_size = sizeof p};
    if ((s = cut(desc, c)))
        return infer_error_set(err, s, "plan weight on %s: shape, format and shard do not fit (axis %u, %u+%u of %u)",
                               d->row->id, desc->shard.axis, desc->shard.first, desc->shard.count, desc->shard.of);
    s = d->b->has & HAL_HAS_PLAN ? hal_note(d, d->ops->weight_plan(d->h, desc, &p)) : INFER_E_UNSUPPORTED;
    if (s == INFER_E_UNSUPPORTED)
        s = default_plan(d, desc, c, &p);
    uint64_t at[4];
    if (s || (s = image_layout(c, at)))
        return infer_hal_fail(d, s, err, "plan weight");
    int same = canonical(desc, &p);
    if ((!same || (p.flags & INFER_WEIGHT_STREAM)) && !(d->b->has & HAL_HAS_WEIGHT))
        return infer_error_set(err, INFER_E_ABI, "plan weight on %s: a private layout, but no weight_begin to make it",
                               d->row->id);
    if (!p.packed_bytes || (p.align & (p.align - 1)) || (same && p.packed_bytes != at[3]))
        return infer_error_set(err, INFER_E_ABI, "plan weight on %s: the plugin answers %llu bytes aligned to %u",
                               d->row->id, (unsigned long long)p.packed_bytes, p.align);
    *out = p;
    return INFER_OK;
}

/* ---- The stream --------------------------------------------------------------------------------------------- */

/* Where the bytes go: the plugin's packer, or (w NULL) the image itself. */
typedef struct stream {
    infer_hal_dev *d;
    infer_weight *w;
    const infer_range *dst;
    uint64_t at; /* next byte of the image */
    infer_error *err;
} stream;

static void lock_setup(infer_hal_dev *d)
{
    if (!(d->props.flags & INFER_PROP_PARALLEL_LOAD))
        pthread_mutex_lock(&d->setup_mu);
}

static void unlock_setup(infer_hal_dev *d)
{
    if (!(d->props.flags & INFER_PROP_PARALLEL_LOAD))
        pthread_mutex_unlock(&d->setup_mu);
}

static infer_status append(stream *st, uint32_t plane, const uint8_t *data, uint64_t bytes)
{
    infer_hal_dev *d = st->d;
    for (uint64_t done = 0; done < bytes;) {
        uint64_t n = bytes - done < CHUNK_MAX ? bytes - done : CHUNK_MAX;
        infer_status s;
        if (st->w) {
            lock_setup(d);
            s = hal_note(d, d->ops->weight_append(st->w, plane, data + done, n));
            unlock_setup(d);
            if (s)
                return infer_hal_fail(d, s, st->err, "load weight");
        } else {
            infer_range r = {.buffer = st->dst->buffer, .offset = st->dst->offset + st->at, .size = n};
            INFER_TRY(infer_hal_write(d, &r, data + done, n, st->err));
            st->at += n;
        }
        done += n;
    }
    return INFER_OK;
}

static infer_status send_plane(stream *st, uint32_t plane, const plane_cut *c, const uint8_t *src)
{
    uint64_t run = c->count * c->inner, step = c->len * c->inner;
    src += c->first * c->inner;
    if (run == step)
        return append(st, plane, src, c->bytes);
    if (run >= GATHER_LESS) {
        for (uint64_t i = 0; i < c->outer; i++)
            INFER_TRY(append(st, plane, src + i * step, run));
        return INFER_OK;
    }
    uint64_t per = CHUNK_MAX / run, cap = per < c->outer ? per : c->outer;
    uint8_t *buf = infer_malloc((size_t)(cap * run));
    if (!buf)
        return infer_error_set(st->err, INFER_E_NO_MEMORY, "load weight on %s: no host memory", st->d->row->id);
    infer_status s = INFER_OK;
    for (uint64_t i = 0; i < c->outer && !s;) {
        uint64_t n = 0;
        for (; n < cap && i < c->outer; n++, i++)
            memcpy(buf + n * run, src + i * step, (size_t)run);
        s = append(st, plane, buf, n * run);
    }
    infer_free(buf);
    return s;
}

/* The data plane as it is made. */
static infer_status send_made(stream *st, const infer_weight_made *made, uint64_t bytes)
{
    const uint64_t cap = made->piece < bytes ? made->piece : bytes;
    uint8_t *buf = infer_malloc((size_t)cap);
    if (!buf)
        return infer_error_set(st->err, INFER_E_NO_MEMORY, "load weight on %s: no host memory", st->d->row->id);
    infer_status s = INFER_OK;
    for (uint64_t at = 0, n; at < bytes && !s; at += n) {
        n = bytes - at < cap ? bytes - at : cap;
        s = made->make(made->user, at, n, buf);
        if (s)
            infer_error_set(st->err, s, "load weight on %s: its codes could not be made", st->d->row->id);
        else
            s = append(st, 0, buf, n);
    }
    infer_free(buf);
    return s;
}

static infer_status load(infer_hal_dev *d, const infer_weight_desc *desc, const infer_weight_plan *plan,
                         const infer_range *dst, const void *const planes[3], const uint64_t bytes[3],
                         const infer_weight_made *made, infer_error *err)
{
    plane_cut c[3];
    uint64_t at[4];
    infer_status s = hal_lost(d);
    if (s)
        return infer_hal_fail(d, s, err, "load weight");
    if ((s = cut(desc, c)) || (s = image_layout(c, at)))
        return infer_error_set(err, s, "load weight on %s: shape, format and shard do not fit", d->row->id);
    for (int i = 0; i < 3; i++)
        if (bytes[i] != c[i].whole || (c[i].whole && !planes[i] && !(made && i == 0)))
            return infer_error_set(err, INFER_E_INVALID, "load weight on %s: plane %d has %llu bytes, wanted %llu",
                                   d->row->id, i, (unsigned long long)bytes[i], (unsigned long long)c[i].whole);
    if (dst->size < plan->packed_bytes || (plan->align && dst->offset % plan->align))
        return infer_error_set(err, INFER_E_INVALID,
                               "load weight on %s: image of %llu bytes aligned to %u into %llu at "
                               "%llu",
                               d->row->id, (unsigned long long)plan->packed_bytes, plan->align,
                               (unsigned long long)dst->size, (unsigned long long)dst->offset);
    if ((s = hal_check_range(d, dst, "weight image")))
        return infer_hal_fail(d, s, err, "load weight");
    stream st = {.d = d, .dst = dst, .err = err};
    if (!canonical(desc, plan) || (plan->flags & INFER_WEIGHT_STREAM)) {
        lock_setup(d);
        s = hal_note(d, d->ops->weight_begin(d->h, desc, plan, dst, &st.w));
        unlock_setup(d);
        if (s)
            return infer_hal_fail(d, s, err, "load weight");
    }
    for (uint32_t i = 0; i < 3 && !s; i++) {
        st.at = at[i];
        if (c[i].bytes)
            s = made && i == 0 ? send_made(&st, made, c[0].bytes) : send_plane(&st, i, &c[i], planes[i]);
    }
    if (st.w) {
        lock_setup(d);
        if (!s && (s = hal_note(d, d->ops->weight_finish(st.w))))
            infer_hal_fail(d, s, err, "load weight");
        d->ops->weight_destroy(st.w);
        unlock_setup(d);
    }
    return s;
}

infer_status infer_hal_weight_load(infer_hal_dev *d, const infer_weight_desc *desc, const infer_weight_plan *plan,
                                   const infer_range *dst, const void *const planes[3], const uint64_t bytes[3],
                                   infer_error *err)
{
    return load(d, desc, plan, dst, planes, bytes, NULL, err);
}

infer_status infer_hal_weight_make(infer_hal_dev *d, const infer_weight_desc *desc, const infer_weight_plan *plan,
                                   const infer_range *dst, const infer_weight_made *made, infer_error *err)
{
    if (desc->shard.of && desc->shard.count != desc->shard.of)
        return infer_error_set(err, INFER_E_UNSUPPORTED, "load weight on %s: a part of what is made as it comes",
                               d->row->id);
    return load(d, desc, plan, dst, made->planes, made->bytes, made, err);
}
