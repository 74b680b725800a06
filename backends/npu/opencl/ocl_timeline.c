/*
 * Timelines: a value, and the events of signals that are under way. Whoever looks at a timeline takes the events that
 * are complete off the list. An event that ended with an error fails the timeline; what it had reached stays reached.
 * No driver callback is used. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "ocl_timeline.h"

static void next_free(infer_timeline *tl)
{
    tl_signal *s = tl->first;
    tl->first = s->next;
    if (!tl->first)
        tl->last = NULL;
    tl->dev->cl->ReleaseEvent(s->event);
    tl->dev->host->free(tl->dev->host->ctx, s);
}

/* Under mu. */
static void take_complete(infer_timeline *tl)
{
    while (tl->first && !tl->failed) {
        cl_int state = CL_QUEUED;
        cl_int e =
            tl->dev->cl->GetEventInfo(tl->first->event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL);
        if (!e && state > CL_COMPLETE)
            return;
        const tl_signal *s = tl->first;
        ocl_stage_land(s->dev, s->queue, s->staged, !e && state == CL_COMPLETE);
        if (e || state < 0) {
            tl->failed = ocl_status(tl->dev, e ? e : state, INFER_E_QUEUE, "work before a signal");
            return;
        }
        if (tl->first->value > tl->value)
            tl->value = tl->first->value;
        next_free(tl);
        pthread_cond_broadcast(&tl->moved);
    }
}

infer_status ocl_tl_create(infer_device *dev, infer_timeline **out)
{
    infer_timeline *tl = dev->host->alloc(dev->host->ctx, sizeof *tl, _Alignof(infer_timeline));
    if (!tl)
        return ocl_fail(dev->host, INFER_E_NO_MEMORY, "opencl: no host memory for a timeline");
    memset(tl, 0, sizeof *tl);
    tl->dev = dev;
    pthread_mutex_init(&tl->mu, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&tl->moved, &attr);
    pthread_condattr_destroy(&attr);
    *out = tl;
    return INFER_OK;
}

void ocl_tl_destroy(infer_device *dev, infer_timeline *tl)
{
    while (tl->first)
        next_free(tl);
    pthread_cond_destroy(&tl->moved);
    pthread_mutex_destroy(&tl->mu);
    dev->host->free(dev->host->ctx, tl);
}

infer_status ocl_tl_query(infer_timeline *tl, uint64_t *value)
{
    pthread_mutex_lock(&tl->mu);
    take_complete(tl);
    infer_status s = tl->failed;
    if (!s)
        *value = tl->value;
    pthread_mutex_unlock(&tl->mu);
    return s;
}

/* Looks again after a sixteenth of the time waited so far, between 5 us and 500 us: late by at most as much. */
static struct timespec next_look(const infer_host *host, uint64_t start, uint64_t left)
{
    struct timespec now;
    uint64_t gone = host->clock_ns(host->ctx) - start, nap = gone / 16;
    nap = nap < 5000 ? 5000 : nap > 500000 ? 500000 : nap;
    nap = nap < left ? nap : left;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t ns = (uint64_t)now.tv_nsec + nap;
    return (struct timespec){.tv_sec = now.tv_sec + (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
}

infer_status ocl_tl_wait(infer_timeline *tl, uint64_t value, uint64_t timeout_ns)
{
    const infer_host *host = tl->dev->host;
    uint64_t start = host->clock_ns(host->ctx);
    infer_status s = INFER_PENDING;
    pthread_mutex_lock(&tl->mu);
    for (;;) {
        take_complete(tl);
        if (tl->value >= value || tl->failed) {
            s = tl->value >= value ? INFER_OK : tl->failed;
            break;
        }
        uint64_t gone = host->clock_ns(host->ctx) - start;
        if (gone >= timeout_ns)
            break;
        struct timespec until = next_look(host, start, timeout_ns - gone);
        pthread_cond_timedwait(&tl->moved, &tl->mu, &until);
    }
    pthread_mutex_unlock(&tl->mu);
    return s;
}

infer_status ocl_tl_signal_host(infer_timeline *tl, uint64_t value)
{
    pthread_mutex_lock(&tl->mu);
    take_complete(tl);
    infer_status s = tl->failed;
    if (!s && value < tl->value)
        s = ocl_fail(tl->dev->host, INFER_E_INVALID, "opencl: a timeline does not go back");
    if (!s) {
        tl->value = value;
        pthread_cond_broadcast(&tl->moved);
    }
    pthread_mutex_unlock(&tl->mu);
    return s;
}

infer_status ocl_tl_add(infer_timeline *tl, const infer_queue *queue, uint64_t value, cl_event event)
{
    infer_device *dev = queue->dev;
    tl_signal *s = dev->host->alloc(dev->host->ctx, sizeof *s, _Alignof(tl_signal));
    if (!s)
        return ocl_fail(dev->host, INFER_E_NO_MEMORY, "opencl: no host memory for a signal");
    *s = (tl_signal){.value = value, .event = event, .dev = dev, .queue = queue->id, .staged = queue->staged};
    pthread_mutex_lock(&tl->mu);
    if (tl->last)
        tl->last->next = s;
    else
        tl->first = s;
    tl->last = s;
    pthread_mutex_unlock(&tl->mu);
    return INFER_OK;
}

infer_status ocl_tl_event(infer_timeline *tl, infer_device *dev, uint64_t value, cl_event *event)
{
    infer_status s = INFER_PENDING;
    *event = NULL;
    pthread_mutex_lock(&tl->mu);
    take_complete(tl);
    if (tl->value >= value || tl->failed)
        s = tl->value >= value ? INFER_OK : tl->failed;
    for (const tl_signal *i = tl->first; s == INFER_PENDING && i; i = i->next)
        if (i->value >= value) {
            if (i->dev == dev && !dev->cl->RetainEvent(i->event))
                *event = i->event;
            break;
        }
    pthread_mutex_unlock(&tl->mu);
    return s;
}
