/*
 * A link: a one-way path for rows between two devices, as a ring of places. Where the sender's queue can copy into the
 * receiver's memory, the places lie there; else they lie in host memory, which works for any two devices. Two
 * timelines, one a side, keep the ring in order, so neither side waits for more than it must.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "hal/internal.h"

enum { HOST_ALIGN = 4096 };

struct infer_hal_link {
    infer_hal_dev *from, *to;
    infer_edge_info edge;
    uint64_t bytes, place; /* the largest transfer; bytes of one place */
    uint32_t depth;
    uint8_t *host;         /* the ring, where staged */
    infer_hal_buf landing; /* the ring, where the sender writes the receiver's memory */
    infer_hal_tl *sent, *taken;
    _Atomic uint64_t moved;
};

infer_status infer_hal_link_create(infer_hal_dev *from, infer_hal_dev *to, uint64_t bytes, uint32_t depth,
                                   infer_hal_link **out, infer_error *err)
{
    infer_hal_link *l = infer_calloc(1, sizeof *l);
    if (!l)
        return infer_error_set(err, INFER_E_NO_MEMORY, "link %s to %s: no memory", from->row->id, to->row->id);
    uint64_t ring;
    infer_status s = INFER_OK;
    l->from = from;
    l->to = to;
    l->depth = depth;
    l->bytes = bytes;
    if (!bytes || !depth || !infer_round_up_u64(bytes, HOST_ALIGN, &l->place) ||
        !infer_mul_u64(l->place, depth, &ring)) {
        s = infer_error_set(err, INFER_E_INVALID, "link %s to %s: %u places of %llu bytes", from->row->id, to->row->id,
                            depth, (unsigned long long)bytes);
        goto fail;
    }
    if ((s = infer_hal_edge(from, to, &l->edge))) {
        infer_hal_fail(from, s, err, "link");
        goto fail;
    }
    if (l->edge.mode == INFER_EDGE_NATIVE || l->edge.mode == INFER_EDGE_DMA) {
        if ((s = infer_hal_buf_alloc(to, ring, INFER_LEDGER_WORKSPACE, &l->landing, err)))
            goto fail;
    } else if (!(l->host = infer_alloc_aligned((size_t)ring, HOST_ALIGN))) {
        s = infer_error_set(err, INFER_E_NO_MEMORY, "link %s to %s: no host memory for %llu bytes", from->row->id,
                            to->row->id, (unsigned long long)ring);
        goto fail;
    }
    if ((s = infer_hal_tl_create(from, &l->sent, err)) || (s = infer_hal_tl_create(to, &l->taken, err)))
        goto fail;
    *out = l;
    return INFER_OK;
fail:
    infer_hal_link_destroy(l);
    return s;
}

void infer_hal_link_destroy(infer_hal_link *l)
{
    if (!l)
        return;
    infer_hal_tl_destroy(l->taken);
    infer_hal_tl_destroy(l->sent);
    infer_hal_buf_free(&l->landing);
    infer_free_aligned(l->host);
    infer_free(l);
}

const infer_edge_info *infer_hal_link_edge(const infer_hal_link *l)
{
    return &l->edge;
}

uint64_t infer_hal_link_moved(const infer_hal_link *l)
{
    return atomic_load_explicit(&l->moved, memory_order_relaxed);
}

/* One copy between a device range and place number `at`, then the side's own signal. */
static infer_status pass(infer_hal_link *l, infer_hal_dev *d, const infer_range *r, uint64_t number, infer_hal_tl *tl)
{
    int out = tl == l->sent;
    infer_copy_end dev = {.buffer = r->buffer};
    infer_copy_end place = {.buffer = l->landing.h, .host = l->host};
    uint64_t at = (number - 1) % l->depth * l->place;
    infer_copy_region c = {
        .src_offset = out ? r->offset : at, .dst_offset = out ? at : r->offset, .bytes = r->size, .rows = 1};
    if (r->size > l->bytes) {
        hal_detail(d->b, INFER_E_INVALID, "link: %llu bytes, made for %llu", (unsigned long long)r->size,
                   (unsigned long long)l->bytes);
        return INFER_E_INVALID;
    }
    INFER_TRY(hal_lost(d));
    INFER_TRY(hal_check_range(d, r, "link"));
    INFER_TRY(hal_copy(d, out ? &place : &dev, out ? &dev : &place, &c, 1));
    return infer_hal_signal(d, tl, number);
}

/* The other side must not wait for what never comes; earlier transfers end first. */
static void give_up(infer_hal_dev *d, infer_hal_tl *tl, uint64_t number)
{
    (void)infer_hal_drain(d);
    (void)infer_hal_tl_signal_host(tl, number);
}

infer_status infer_hal_link_send(infer_hal_link *l, const infer_range *src, uint64_t number)
{
    infer_status s = INFER_OK;
    if (number > l->depth)
        s = infer_hal_wait(l->from, l->taken, number - l->depth);
    if (!s)
        s = pass(l, l->from, src, number, l->sent);
    if (!s)
        atomic_fetch_add_explicit(&l->moved, src->size, memory_order_relaxed);
    else
        give_up(l->from, l->sent, number);
    return s;
}

infer_status infer_hal_link_recv(infer_hal_link *l, const infer_range *dst, uint64_t number)
{
    infer_status s = infer_hal_wait(l->to, l->sent, number);
    if (!s)
        s = pass(l, l->to, dst, number, l->taken);
    if (s)
        give_up(l->to, l->taken, number);
    return s;
}
