/*
 * One submit thread a device: an intrusive list of jobs, run in order of posting. The list is unbounded, its length is
 * bounded by who posts (one job a step in flight). Knows nothing of what jobs do.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "hal/internal.h"

void hal_cond_init(pthread_cond_t *c)
{
    pthread_condattr_t a;
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(c, &a);
    pthread_condattr_destroy(&a);
}

static void *submit_main(void *arg)
{
    infer_hal_dev *d = arg;
    pthread_mutex_lock(&d->mu);
    for (;;) {
        while (!d->head && !d->stop)
            pthread_cond_wait(&d->posted, &d->mu);
        infer_hal_job *job = d->head;
        if (!job)
            break; /* told to stop, and nothing is left */
        d->head = job->next;
        if (!d->head)
            d->tail = NULL;
        pthread_mutex_unlock(&d->mu);
        job->run(job); /* the job may be gone afterwards */
        pthread_mutex_lock(&d->mu);
    }
    pthread_mutex_unlock(&d->mu);
    return NULL;
}

infer_status hal_submit_start(infer_hal_dev *d, infer_error *err)
{
    /* Signals are the program's: its own threads take them. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&d->thread, NULL, submit_main, d);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc)
        return infer_error_set(err, INFER_E_NO_MEMORY, "submit thread of %s: %s", d->row->id, strerror(rc));
    char name[16];
    snprintf(name, sizeof name, "sub:%.11s", d->row->id);
    pthread_setname_np(d->thread, name);
    d->started = 1;
    return INFER_OK;
}

void hal_submit_stop(infer_hal_dev *d)
{
    if (!d->started)
        return;
    pthread_mutex_lock(&d->mu);
    d->stop = 1;
    pthread_cond_signal(&d->posted);
    pthread_mutex_unlock(&d->mu);
    pthread_join(d->thread, NULL);
    d->started = 0;
}

int hal_on_submit_thread(const infer_hal_dev *d)
{
    return pthread_equal(pthread_self(), d->thread) != 0;
}

void infer_hal_post(infer_hal_dev *d, infer_hal_job *job)
{
    job->next = NULL;
    pthread_mutex_lock(&d->mu);
    if (d->tail)
        d->tail->next = job;
    else
        d->head = job;
    d->tail = job;
    pthread_cond_signal(&d->posted);
    pthread_mutex_unlock(&d->mu);
}

typedef struct awaited {
    infer_hal_job job; /* first: the thread gets a pointer to it */
    infer_hal_job *inner;
    infer_hal_dev *d;
    int done;
} awaited;

static void run_awaited(infer_hal_job *job)
{
    awaited *a = (awaited *)(void *)job;
    a->inner->run(a->inner);
    pthread_mutex_lock(&a->d->mu);
    a->done = 1;
    pthread_cond_broadcast(&a->d->ran);
    pthread_mutex_unlock(&a->d->mu);
}

void infer_hal_run(infer_hal_dev *d, infer_hal_job *job)
{
    if (hal_on_submit_thread(d)) {
        job->run(job);
        return;
    }
    awaited a = {.job.run = run_awaited, .inner = job, .d = d};
    infer_hal_post(d, &a.job);
    pthread_mutex_lock(&d->mu);
    while (!a.done)
        pthread_cond_wait(&d->ran, &d->mu);
    pthread_mutex_unlock(&d->mu);
}
