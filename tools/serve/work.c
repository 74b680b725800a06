/*
 * A queue of calls and a few threads. The queue is bounded by the connections there may be.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "work.h"

typedef struct job {
    struct job *next;
    void (*fn)(call *c);
    call *c;
} job;

struct work {
    pthread_mutex_t lock;
    pthread_cond_t more;
    job *first, **last;
    int stop;
    unsigned n_threads;
    pthread_t threads[16];
};

static void *run(void *arg)
{
    struct work *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->first && !w->stop)
            pthread_cond_wait(&w->more, &w->lock);
        job *j = w->first;
        if (!j)
            break;
        if (!(w->first = j->next))
            w->last = &w->first;
        pthread_mutex_unlock(&w->lock);
        j->fn(j->c);
        call_unref(j->c);
        free(j);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

infer_status work_start(server *s, unsigned n_threads, infer_error *err)
{
    struct work *w = calloc(1, sizeof *w);
    if (!w)
        return infer_error_set(err, INFER_E_NO_MEMORY, "starting work threads: out of memory");
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->more, NULL);
    w->last = &w->first;
    s->work = w;
    while (w->n_threads < n_threads && w->n_threads < 16) {
        int cause = pthread_create(&w->threads[w->n_threads], NULL, run, w);
        if (cause) {
            work_stop(s);
            return infer_error_set(err, INFER_E_NO_MEMORY, "starting work threads: %s", strerror(cause));
        }
        w->n_threads++;
    }
    return INFER_OK;
}

void work_stop(server *s)
{
    struct work *w = s->work;
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = 1;
    pthread_cond_broadcast(&w->more);
    pthread_mutex_unlock(&w->lock);
    for (unsigned i = 0; i < w->n_threads; i++)
        pthread_join(w->threads[i], NULL);
    pthread_cond_destroy(&w->more);
    pthread_mutex_destroy(&w->lock);
    free(w);
    s->work = NULL;
}

int work_push(server *s, void (*fn)(call *c), call *c)
{
    struct work *w = s->work;
    job *j = malloc(sizeof *j);
    if (!j)
        return -1;
    *j = (job){.fn = fn, .c = c};
    call_ref(c);
    pthread_mutex_lock(&w->lock);
    *w->last = j;
    w->last = &j->next;
    pthread_cond_signal(&w->more);
    pthread_mutex_unlock(&w->lock);
    return 0;
}
