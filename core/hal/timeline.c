/*
 * Timelines: the software one (a mutex, a condition and a 64-bit value) that stands in for plugins without their own,
 * and the core's handle for both. A failed software timeline stays failed; waits for values that it had reached before
 * still succeed.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <errno.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "hal/internal.h"

typedef struct sw_timeline {
    pthread_mutex_t mu;
    pthread_cond_t moved;
    uint64_t value;
    infer_status failed;
} sw_timeline;

static sw_timeline *sw(infer_timeline *tl)
{
    return (sw_timeline *)(void *)tl;
}

infer_status hal_sw_create(infer_device *dev, infer_timeline **out)
{
    (void)dev;
    sw_timeline *t = infer_calloc(1, sizeof *t);
    if (!t)
        return INFER_E_NO_MEMORY;
    pthread_mutex_init(&t->mu, NULL);
    hal_cond_init(&t->moved);
    *out = (infer_timeline *)(void *)t;
    return INFER_OK;
}

void hal_sw_destroy(infer_device *dev, infer_timeline *tl)
{
    (void)dev;
    sw_timeline *t = sw(tl);
    pthread_cond_destroy(&t->moved);
    pthread_mutex_destroy(&t->mu);
    infer_free(t);
}

infer_status hal_sw_query(infer_timeline *tl, uint64_t *value)
{
    sw_timeline *t = sw(tl);
    pthread_mutex_lock(&t->mu);
    infer_status s = t->failed;
    if (!s)
        *value = t->value;
    pthread_mutex_unlock(&t->mu);
    return s;
}

infer_status hal_sw_wait(infer_timeline *tl, uint64_t value, uint64_t timeout_ns)
{
    sw_timeline *t = sw(tl);
    infer_status s = INFER_OK;
    struct timespec until = {0};
    uint64_t now = infer_clock_ns();
    int forever = timeout_ns > UINT64_MAX - now;
    if (!forever && timeout_ns) {
        until.tv_sec = (time_t)((now + timeout_ns) / 1000000000u);
        until.tv_nsec = (long)((now + timeout_ns) % 1000000000u);
    }
    pthread_mutex_lock(&t->mu);
    while (t->value < value && !t->failed) {
        int rc = forever ? pthread_cond_wait(&t->moved, &t->mu)
                         : (timeout_ns ? pthread_cond_timedwait(&t->moved, &t->mu, &until) : ETIMEDOUT);
        if (rc == ETIMEDOUT && t->value < value && !t->failed) {
            s = INFER_PENDING;
            break;
        }
    }
    if (s == INFER_OK && t->value < value)
        s = t->failed;
    pthread_mutex_unlock(&t->mu);
    return s;
}

infer_status hal_sw_signal(infer_timeline *tl, uint64_t value)
{
    sw_timeline *t = sw(tl);
    pthread_mutex_lock(&t->mu);
    infer_status s = t->failed;
    if (!s && value < t->value)
        s = INFER_E_INVALID;
    if (!s) {
        t->value = value;
        pthread_cond_broadcast(&t->moved);
    }
    pthread_mutex_unlock(&t->mu);
    return s;
}

void hal_sw_fail(infer_timeline *tl, infer_status s)
{
    sw_timeline *t = sw(tl);
    pthread_mutex_lock(&t->mu);
    if (!t->failed)
        t->failed = s < 0 ? s : INFER_E_INTERNAL;
    pthread_cond_broadcast(&t->moved);
    pthread_mutex_unlock(&t->mu);
}

/* ---- The core's handle ------------------------------------------------------------------------------------- */

static const infer_backend_ops software_ops = {
    .struct_size = sizeof software_ops,
    .tl_create = hal_sw_create,
    .tl_destroy = hal_sw_destroy,
    .tl_query = hal_sw_query,
    .tl_wait = hal_sw_wait,
    .tl_signal_host = hal_sw_signal,
};

infer_status infer_hal_tl_create(infer_hal_dev *d, infer_hal_tl **out, infer_error *err)
{
    infer_hal_tl *tl = infer_calloc(1, sizeof *tl);
    if (!tl)
        return infer_error_set(err, INFER_E_NO_MEMORY, "timeline: no memory");
    tl->dev = d;
    tl->ops = d ? d->ops : &software_ops;
    tl->software = !d || !(d->b->has & HAL_HAS_TIMELINE);
    infer_status s = d ? hal_lost(d) : INFER_OK;
    if (!s) {
        if (d)
            pthread_mutex_lock(&d->setup_mu);
        s = tl->ops->tl_create(d ? d->h : NULL, &tl->h);
        if (d)
            pthread_mutex_unlock(&d->setup_mu);
    }
    if (s) {
        infer_free(tl);
        return d ? infer_hal_fail(d, s, err, "create timeline")
                 : infer_error_set(err, s, "timeline: %s", infer_status_name(s));
    }
    if (d) {
        pthread_mutex_lock(&d->obj_mu);
        tl->next = d->tls;
        tl->prev = &d->tls;
        if (d->tls)
            d->tls->prev = &tl->next;
        d->tls = tl;
        pthread_mutex_unlock(&d->obj_mu);
    }
    *out = tl;
    return INFER_OK;
}

void infer_hal_tl_destroy(infer_hal_tl *tl)
{
    if (!tl)
        return;
    infer_hal_dev *d = tl->dev;
    if (d) {
        if (tl != d->private_tl)
            hal_settle(d);
        pthread_mutex_lock(&d->obj_mu);
        *tl->prev = tl->next;
        if (tl->next)
            tl->next->prev = tl->prev;
        pthread_mutex_unlock(&d->obj_mu);
        pthread_mutex_lock(&d->setup_mu);
        tl->ops->tl_destroy(d->h, tl->h);
        pthread_mutex_unlock(&d->setup_mu);
    } else {
        tl->ops->tl_destroy(NULL, tl->h);
    }
    infer_free(tl);
}

infer_timeline *infer_hal_tl_handle(const infer_hal_tl *tl)
{
    return tl->h;
}

static infer_status note(infer_hal_tl *tl, infer_status s)
{
    return tl->dev ? hal_note(tl->dev, s) : s;
}

infer_status infer_hal_tl_query(infer_hal_tl *tl, uint64_t *value)
{
    return note(tl, tl->ops->tl_query(tl->h, value));
}

infer_status infer_hal_tl_wait(infer_hal_tl *tl, uint64_t value, uint64_t timeout_ns)
{
    if (tl->software)
        return note(tl, tl->ops->tl_wait(tl->h, value, timeout_ns));
    /* A device that is lost meanwhile may never signal: look up now and then. */
    const uint64_t slice = 50000000u;
    uint64_t start = infer_clock_ns();
    for (;;) {
        uint64_t gone = infer_clock_ns() - start;
        uint64_t left = timeout_ns > gone ? timeout_ns - gone : 0;
        infer_status s = tl->ops->tl_wait(tl->h, value, left < slice ? left : slice);
        if (s != INFER_PENDING)
            return note(tl, s);
        if (hal_lost(tl->dev))
            return hal_lost(tl->dev);
        if (left <= slice)
            return INFER_PENDING;
    }
}

infer_status infer_hal_tl_signal_host(infer_hal_tl *tl, uint64_t value)
{
    return note(tl, tl->ops->tl_signal_host(tl->h, value));
}

void hal_tl_fail_all(infer_hal_dev *d, infer_status s)
{
    for (infer_hal_tl *tl = d->tls; tl; tl = tl->next)
        if (tl->software)
            hal_sw_fail(tl->h, s);
}
