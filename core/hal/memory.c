/*
 * Device memory with its ledger: what is allocated is booked, by kind, rounded as the heap rounds. Keeps the list of
 * live buffers against which ranges are checked.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "hal/internal.h"

const char *infer_ledger_kind_name(infer_ledger_kind k)
{
    static const char *const names[INFER_LEDGER_KINDS] = {"weights",  "kv",      "activations", "workspace",
                                                          "adapters", "context", "reserve"};
    return (unsigned)k < INFER_LEDGER_KINDS ? names[k] : "?";
}

void hal_book(infer_hal_dev *d, infer_ledger_kind kind, int64_t bytes)
{
    atomic_fetch_add_explicit(&d->ledger[kind], (uint64_t)bytes, memory_order_relaxed);
}

uint64_t infer_hal_ledger(const infer_hal_dev *d, infer_ledger_kind kind)
{
    return atomic_load_explicit(&d->ledger[kind], memory_order_relaxed);
}

/* ---- Live buffers ------------------------------------------------------------------------------------------ */

/* Where h is or would be. obj_mu is held. */
static uint32_t span_find(const infer_hal_dev *d, const infer_buffer *h)
{
    uint32_t lo = 0, hi = d->n_spans;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if ((uintptr_t)d->spans[mid].h < (uintptr_t)h)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Room for one more, so that adding after a successful allocation cannot fail. */
static infer_status span_reserve(infer_hal_dev *d)
{
    infer_status s = INFER_OK;
    pthread_mutex_lock(&d->obj_mu);
    if (d->n_spans == d->cap_spans) {
        uint32_t cap = d->cap_spans ? 2 * d->cap_spans : 16;
        hal_span *more = infer_realloc_array(d->spans, cap, sizeof *more);
        if (more) {
            d->spans = more;
            d->cap_spans = cap;
        } else {
            s = INFER_E_NO_MEMORY;
        }
    }
    pthread_mutex_unlock(&d->obj_mu);
    return s;
}

static void span_add(infer_hal_dev *d, const infer_buffer *h, uint64_t size)
{
    pthread_mutex_lock(&d->obj_mu);
    uint32_t i = span_find(d, h);
    memmove(&d->spans[i + 1], &d->spans[i], (d->n_spans - i) * sizeof *d->spans);
    d->spans[i] = (hal_span){.h = h, .size = size};
    d->n_spans++;
    pthread_mutex_unlock(&d->obj_mu);
}

static void span_remove(infer_hal_dev *d, const infer_buffer *h)
{
    pthread_mutex_lock(&d->obj_mu);
    uint32_t i = span_find(d, h);
    if (i < d->n_spans && d->spans[i].h == h) {
        d->n_spans--;
        memmove(&d->spans[i], &d->spans[i + 1], (d->n_spans - i) * sizeof *d->spans);
    }
    pthread_mutex_unlock(&d->obj_mu);
}

infer_status hal_check_buffer(infer_hal_dev *d, const infer_buffer *h, uint64_t offset, uint64_t bytes,
                              const char *what)
{
    uint64_t size = 0;
    pthread_mutex_lock(&d->obj_mu);
    uint32_t i = span_find(d, h);
    int known = i < d->n_spans && d->spans[i].h == h;
    if (known)
        size = d->spans[i].size;
    pthread_mutex_unlock(&d->obj_mu);
    if (known && infer_range_ok(offset, bytes, size))
        return INFER_OK;
    if (known)
        hal_detail(d->b, INFER_E_INVALID, "%s: %llu bytes at %llu of a buffer of %llu", what, (unsigned long long)bytes,
                   (unsigned long long)offset, (unsigned long long)size);
    else
        hal_detail(d->b, INFER_E_INVALID, "%s: no buffer of this device", what);
    return INFER_E_INVALID;
}

infer_status hal_check_range(infer_hal_dev *d, const infer_range *r, const char *what)
{
    return hal_check_buffer(d, r->buffer, r->offset, r->size, what);
}

/* ---- Buffers ----------------------------------------------------------------------------------------------- */

uint64_t infer_hal_buf_bytes(const infer_hal_dev *d, uint64_t bytes)
{
    uint64_t rounded;
    return infer_round_up_u64(bytes, d->heap.granularity ? d->heap.granularity : 1, &rounded) ? rounded : UINT64_MAX;
}

infer_status infer_hal_buf_alloc(infer_hal_dev *d, uint64_t bytes, infer_ledger_kind kind, infer_hal_buf *out,
                                 infer_error *err)
{
    infer_status s = hal_lost(d);
    if (s)
        return infer_hal_fail(d, s, err, "allocate");
    uint64_t size = infer_hal_buf_bytes(d, bytes);
    if (!bytes || (unsigned)kind >= INFER_LEDGER_KINDS)
        return infer_error_set(err, INFER_E_INVALID, "allocate on %s: nothing is wanted, or for no known use",
                               d->row->id);
    if (d->props.max_buffer && size > d->props.max_buffer)
        return infer_error_set(err, INFER_E_TOO_LARGE, "allocate %s on %s: %llu bytes, one buffer has at most %llu",
                               infer_ledger_kind_name(kind), d->row->id, (unsigned long long)size,
                               (unsigned long long)d->props.max_buffer);
    if ((s = span_reserve(d)))
        return infer_error_set(err, s, "allocate on %s: no host memory", d->row->id);
    infer_buffer *h = NULL;
    pthread_mutex_lock(&d->setup_mu);
    s = hal_note(d, d->ops->buf_alloc(d->h, 0, size, &h));
    pthread_mutex_unlock(&d->setup_mu);
    if (s == INFER_E_NO_MEMORY) {
        infer_heap_stats st = {.struct_size = sizeof st};
        const char *why = hal_detail_get(d->b, s, 0);
        char text[200];
        strncpy(text, why, sizeof text - 1);
        text[sizeof text - 1] = 0;
        int known = !d->ops->dev_heap_stats(d->h, 0, &st) && st.budget.quality != INFER_KNOWN_NOT;
        uint64_t used = st.ours.quality == INFER_KNOWN_NOT ? 0 : st.ours.value;
        uint64_t free_bytes = st.budget.value > used ? st.budget.value - used : 0;
        if (known)
            return infer_error_set(err, s, "allocate %s on %s: wanted %llu bytes, about %llu are free%s%s",
                                   infer_ledger_kind_name(kind), d->row->id, (unsigned long long)size,
                                   (unsigned long long)free_bytes, *text ? ": " : "", text);
        return infer_error_set(err, s, "allocate %s on %s: wanted %llu bytes, free unknown%s%s",
                               infer_ledger_kind_name(kind), d->row->id, (unsigned long long)size, *text ? ": " : "",
                               text);
    }
    if (s)
        return infer_hal_fail(d, s, err, "allocate");
    span_add(d, h, size);
    hal_book(d, kind, (int64_t)size);
    *out = (infer_hal_buf){.dev = d, .h = h, .size = size, .kind = kind};
    return INFER_OK;
}

infer_status infer_hal_buf_import(infer_hal_dev *d, void *p, uint64_t bytes, infer_ledger_kind kind, infer_hal_buf *out,
                                  infer_error *err)
{
    if (!(d->b->has & HAL_HAS_IMPORT))
        return INFER_E_UNSUPPORTED;
    infer_status s = hal_lost(d);
    if (s)
        return infer_hal_fail(d, s, err, "import");
    if ((s = span_reserve(d)))
        return infer_error_set(err, s, "import on %s: no host memory", d->row->id);
    infer_buffer *h = NULL;
    pthread_mutex_lock(&d->setup_mu);
    s = hal_note(d, d->ops->buf_import_host(d->h, p, bytes, &h));
    pthread_mutex_unlock(&d->setup_mu);
    if (s == INFER_E_UNSUPPORTED)
        return s;
    if (s)
        return infer_hal_fail(d, s, err, "import host memory");
    span_add(d, h, bytes);
    *out = (infer_hal_buf){.dev = d, .h = h, .size = bytes, .kind = kind, .imported = 1};
    return INFER_OK;
}

void infer_hal_buf_free(infer_hal_buf *b)
{
    infer_hal_dev *d = b->dev;
    if (!d)
        return;
    hal_settle(d);
    span_remove(d, b->h);
    pthread_mutex_lock(&d->setup_mu);
    d->ops->buf_free(d->h, b->h);
    pthread_mutex_unlock(&d->setup_mu);
    if (!b->imported)
        hal_book(d, b->kind, -(int64_t)b->size);
    *b = (infer_hal_buf){0};
}
