/* The event queue. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "sched/events.h"

infer_status infer_events_init(infer_events *q)
{
    pthread_condattr_t attr;
    memset(q, 0, sizeof *q);
    pthread_mutex_init(&q->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&q->cond, &attr);
    pthread_condattr_destroy(&attr);
    return INFER_OK;
}

void infer_events_destroy(infer_events *q)
{
    for (int i = 0; i < 2; i++) {
        infer_free(q->pages[i].p);
        infer_buf_free(&q->pages[i].bytes);
    }
    pthread_cond_destroy(&q->cond);
    pthread_mutex_destroy(&q->lock);
}

/* Appends bytes at an 8-byte boundary and gives their place, as an offset in pointer's clothing: the buffer may move.
 */
static const void *put(infer_buf *b, const void *p, size_t n)
{
    static const char pad[8] = {0};
    infer_buf_append(b, pad, (8 - b->n % 8) % 8);
    size_t at = b->n;
    infer_buf_append(b, p, n);
    infer_buf_append(b, pad, 1);
    return (const void *)(uintptr_t)at;
}

static int has_room(infer_event_page *page)
{
    if (page->n < page->cap)
        return 1;
    uint32_t cap = page->cap ? page->cap * 2 : 64;
    infer_event *p = infer_realloc_array(page->p, cap, sizeof *p);
    if (!p)
        return 0;
    page->p = p;
    page->cap = cap;
    return 1;
}

void infer_events_push(infer_events *q, const infer_event *ev)
{
    pthread_mutex_lock(&q->lock);
    infer_event_page *page = &q->pages[1 - q->front];
    if (has_room(page)) {
        infer_event *e = &page->p[page->n];
        *e = *ev;
        e->text = put(&page->bytes, ev->text, ev->n_text);
        e->top = put(&page->bytes, ev->top, ev->n_top * sizeof *ev->top);
        if (ev->error)
            e->error = put(&page->bytes, ev->error, strlen(ev->error));
        if (page->bytes.failed)
            q->fatal = INFER_E_NO_MEMORY;
        else
            page->n++;
    } else {
        q->fatal = INFER_E_NO_MEMORY;
    }
    pthread_cond_signal(&q->cond);
    pthread_mutex_unlock(&q->lock);
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
        q->front = 1 - q->front;
        for (uint32_t i = 0; i < page->n; i++) {
            infer_event *e = &page->p[i];
            e->text = page->bytes.p + (uintptr_t)e->text;
            e->top = (const infer_logprob *)(page->bytes.p + (uintptr_t)e->top);
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
