/*
 * A thread that watches the clock: a case may call a plugin's slot that never returns, and then only another thread can
 * still say which case it was. Not there without a time-out. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "cts.h"

#define SECOND 1000000000u

/* The run's thread is in the case meanwhile: it writes nothing of the verdict, and waits where it leaves the case. */
static void tell(cts_run *r)
{
    const infer_conform_options *opt = r->opt;
    infer_conform_verdict v = r->verdict;
    char detail[96];
    int was = r->failed_tier[r->watch.tier];
    snprintf(detail, sizeof(detail), "still running after %u s: a call or a wait does not end", opt->case_timeout_s);
    infer_conform_case c = {.struct_size = sizeof(c),
                            .outcome = INFER_CONFORM_FAIL,
                            .tier = r->watch.tier,
                            .seed = opt->seed,
                            .name = r->watch.name,
                            .detail = detail};
    r->failed_tier[r->watch.tier] = 1;
    v.struct_size = sizeof(v);
    v.level = cts_level(r);
    v.n_fail++;
    snprintf(v.hung, sizeof(v.hung), "%s", r->watch.name);
    opt->hang(opt->user, &c, &v);
    r->failed_tier[r->watch.tier] = was;
}

static void *watch_main(void *arg)
{
    cts_run *r = arg;
    cts_watch *w = &r->watch;
    pthread_mutex_lock(&w->mu);
    while (!w->stop) {
        if (!w->name) {
            pthread_cond_wait(&w->changed, &w->mu);
        } else if (infer_clock_ns() < w->due_ns) {
            struct timespec until = {(time_t)(w->due_ns / SECOND), (long)(w->due_ns % SECOND)};
            pthread_cond_timedwait(&w->changed, &w->mu, &until);
        } else {
            tell(r);
            w->name = NULL; /* once */
        }
    }
    pthread_mutex_unlock(&w->mu);
    return NULL;
}

infer_status cts_watch_start(cts_run *r, infer_error *err)
{
    cts_watch *w = &r->watch;
    pthread_condattr_t a;
    sigset_t all, old;
    if (!r->opt->case_timeout_s || !r->opt->hang)
        return INFER_OK;
    pthread_mutex_init(&w->mu, NULL);
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &a);
    pthread_condattr_destroy(&a);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    w->running = !pthread_create(&w->thread, NULL, watch_main, r);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return w->running ? INFER_OK : infer_error_set(err, INFER_E_NO_MEMORY, "conformance: no thread to watch the clock");
}

void cts_watch_stop(cts_run *r)
{
    cts_watch *w = &r->watch;
    if (!w->running)
        return;
    pthread_mutex_lock(&w->mu);
    w->stop = 1;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->mu);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->mu);
    w->running = 0;
}

void cts_watch_enter(cts_run *r, uint32_t tier, const char *name)
{
    cts_watch *w = &r->watch;
    if (!w->running)
        return;
    pthread_mutex_lock(&w->mu);
    w->name = name;
    w->tier = tier;
    w->due_ns = infer_clock_ns() + r->opt->case_timeout_s * (uint64_t)SECOND;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->mu);
}

void cts_watch_leave(cts_run *r)
{
    cts_watch *w = &r->watch;
    if (!w->running)
        return;
    pthread_mutex_lock(&w->mu);
    w->name = NULL;
    pthread_mutex_unlock(&w->mu);
}
