/* The event queue. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "sched/events.h"

void infer_events_init(infer_events *q)
{
    pthread_condattr_t attr;
    memset(q, 0, sizeof *q);
    pthread_mutex_init(&q->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&q->cond, &attr);
    pthread_condattr_destroy(&attr);
}

static void page_free(infer_event_page *page)
{
    infer_free(page->p);
    infer_buf_free(&page->bytes);
    *page = (infer_event_page){0};
}

void infer_events_destroy(infer_events *q)
{
    page_free(&q->pages[0]);
    page_free(&q->pages[1]);
    page_free(&q->spare);
    pthread_cond_destroy(&q->cond);
    pthread_mutex_destroy(&q->lock);
}

/* Room in a page for `n` more events and `bytes` more bytes. */
static int page_room(infer_event_page *page, uint32_t n, size_t bytes)
{
    uint32_t cap = page->cap ? page->cap : 64;
    while (cap < page->n + n)
        cap *= 2;
    if (cap != page->cap) {
        infer_event *p = infer_realloc_array(page->p, cap, sizeof *p);
        if (!p)
            return 0;
        page->p = p;
        page->cap = cap;
    }
    if (infer_buf_reserve(&page->bytes, bytes))
        return 1;
    page->bytes.failed = 0; /* what it holds is as it was */
    return 0;
}

static int page_is_small(const infer_event_page *page, uint32_t reserved)
{
    return page->cap < reserved || page->bytes.cap < (size_t)reserved * INFER_EVENT_DONE_BYTES + 1;
}

infer_status infer_events_reserve(infer_events *q)
{
    infer_status s = INFER_E_NO_MEMORY;
    pthread_mutex_lock(&q->lock);
    uint32_t n = q->reserved + 1;
    size_t bytes = (size_t)n * INFER_EVENT_DONE_BYTES;
    /* The front page is the polling thread's and may not move: a spare one stands ready for the next swap. */
    if (page_room(&q->pages[1 - q->front], n, bytes) &&
        (!page_is_small(&q->pages[q->front], n) || page_room(&q->spare, n, bytes))) {
        q->reserved = n;
        s = INFER_OK;
    }
    pthread_mutex_unlock(&q->lock);
    return s;
}

void infer_events_unreserve(infer_events *q)
{
    pthread_mutex_lock(&q->lock);
    q->reserved--;
    pthread_mutex_unlock(&q->lock);
}

/* Puts bytes and a 0 at an 8-byte boundary and gives their place, as an offset in pointer's clothing: the buffer may
 * move. There is room: n and PUT. */
enum { PUT = 8 };
static const void *put(infer_buf *b, const void *p, size_t n)
{
    const size_t at = b->n;
    memcpy(b->p + at, p, n);
    b->n = (at + n + PUT) / PUT * PUT;
    memset(b->p + at + n, 0, b->n - at - n);
    return (const void *)(uintptr_t)at;
}

infer_status infer_events_push(infer_events *q, const infer_event *ev)
{
    enum { PADDING = 4 * PUT };
    infer_status s = INFER_OK;
    uint64_t n_text = ev->n_text;
    size_t n_error = ev->error ? strlen(ev->error) : 0;
    const size_t top = ev->n_top * sizeof *ev->top, ids = ev->n_ids * sizeof *ev->ids;
    infer_event_page *page = &q->pages[1 - q->front];
    infer_buf *b = &page->bytes;
    if (ev->type == INFER_EVENT_DONE) {
        const size_t most = INFER_EVENT_DONE_BYTES - PADDING;
        q->reserved--;
        n_error = n_error < most ? n_error : most;
        n_text = n_text < most - n_error ? n_text : most - n_error;
    } else if (!page_room(page, 1 + q->reserved,
                          n_text + top + ids + PADDING + (size_t)q->reserved * INFER_EVENT_DONE_BYTES)) {
        s = INFER_E_NO_MEMORY;
    }
    if (s == INFER_OK) {
        infer_event *x = &page->p[page->n++];
        *x = *ev;
        if (!b->n) /* at 0 is what has no bytes */
            put(b, "", 0);
        x->n_text = n_text;
        x->text = n_text ? put(b, ev->text, n_text) : NULL;
        x->top = top ? put(b, ev->top, top) : NULL;
        x->ids = ids ? put(b, ev->ids, ids) : NULL;
        x->error = ev->error ? put(b, ev->error, n_error) : NULL;
    }
    return s;
}

void infer_events_hold(infer_events *q)
{
    pthread_mutex_lock(&q->lock);
}

void infer_events_tell(infer_events *q)
{
    const uint32_t n = q->pages[1 - q->front].n;
    pthread_mutex_unlock(&q->lock);
    if (n) /* not before: who wakes would wait for the lock */
        pthread_cond_signal(&q->cond);
}

void infer_events_fatal(infer_events *q, infer_status s)
{
    pthread_mutex_lock(&q->lock);
    if (q->fatal == INFER_OK)
        q->fatal = s;
    pthread_cond_broadcast(&q->cond);
    pthread_mutex_unlock(&q->lock);
}

void infer_events_wake(infer_events *q)
{
    pthread_mutex_lock(&q->lock);
    q->woken = 1;
    pthread_cond_broadcast(&q->cond);
    pthread_mutex_unlock(&q->lock);
}

static struct timespec deadline_in(int32_t ms)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += ms / 1000;
    t.tv_nsec += (long)(ms % 1000) * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

infer_status infer_events_poll(infer_events *q, int32_t timeout_ms, const infer_event **events, uint32_t *n)
{
    infer_status s = INFER_OK;
    int late = 0;
    struct timespec until = deadline_in(timeout_ms > 0 ? timeout_ms : 0);
    pthread_mutex_lock(&q->lock);
    infer_event_page *page = &q->pages[1 - q->front];
    while (!page->n && !q->woken && q->fatal == INFER_OK && timeout_ms != 0 && !late) {
        if (timeout_ms < 0)
            pthread_cond_wait(&q->cond, &q->lock);
        else
            late = pthread_cond_timedwait(&q->cond, &q->lock, &until) != 0;
    }
    q->woken = 0;
    if (page->n) {
        infer_event_page *old = &q->pages[q->front];
        old->n = 0;
        infer_buf_clear(&old->bytes);
        if (page_is_small(old, q->reserved)) { /* the reservation left one that is large enough */
            page_free(old);
            *old = q->spare;
            q->spare = (infer_event_page){0};
        }
        q->front = 1 - q->front;
        for (uint32_t i = 0; i < page->n; i++) {
            infer_event *e = &page->p[i];
            e->text = page->bytes.p + (uintptr_t)e->text;
            e->top = (const infer_logprob *)(page->bytes.p + (uintptr_t)e->top);
            e->ids = (const int32_t *)(page->bytes.p + (uintptr_t)e->ids);
            if (e->error)
                e->error = page->bytes.p + (uintptr_t)e->error;
        }
    } else {
        s = q->fatal;
    }
    *events = page->p;
    *n = page->n;
    pthread_mutex_unlock(&q->lock);
    return s;
}
