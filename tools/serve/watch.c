/*
 * A suspended connection is in no poll set of the HTTP library; this one holds its descriptor meanwhile and tells when
 * the client hangs up. Reads nothing from it.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "watch.h"

struct watch {
    pthread_mutex_t lock;
    call **calls;       /* by descriptor */
    uint32_t *versions; /* by descriptor: tells a late event for an earlier call from one for the present one */
    size_t n;
    int epoll, stop_fd;
    void (*gone)(call *c);
    pthread_t thread;
};

#define STOP UINT64_MAX

static void *run(void *arg)
{
    struct watch *w = arg;
    for (;;) {
        struct epoll_event events[64];
        int n = epoll_wait(w->epoll, events, 64, -1);
        if (n < 0 && errno != EINTR)
            return NULL;
        for (int i = 0; i < n; i++) {
            uint64_t key = events[i].data.u64;
            if (key == STOP)
                return NULL;
            size_t fd = (size_t)(key & UINT32_MAX);
            pthread_mutex_lock(&w->lock);
            call *c = fd < w->n && w->versions[fd] == (uint32_t)(key >> 32) ? w->calls[fd] : NULL;
            if (c)
                call_ref(c);
            pthread_mutex_unlock(&w->lock);
            if (c) {
                w->gone(c);
                call_unref(c);
            }
        }
    }
}

infer_status watch_start(server *s, void (*gone)(call *c), infer_error *err)
{
    struct watch *w = calloc(1, sizeof *w);
    if (!w)
        return infer_error_set(err, INFER_E_NO_MEMORY, "watching connections: out of memory");
    w->gone = gone;
    pthread_mutex_init(&w->lock, NULL);
    w->epoll = epoll_create1(EPOLL_CLOEXEC);
    w->stop_fd = eventfd(0, EFD_CLOEXEC);
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = STOP};
    int cause = 0;
    if (w->epoll < 0 || w->stop_fd < 0 || epoll_ctl(w->epoll, EPOLL_CTL_ADD, w->stop_fd, &e) < 0)
        cause = errno;
    else
        cause = pthread_create(&w->thread, NULL, run, w);
    if (cause) {
        if (w->epoll >= 0)
            close(w->epoll);
        if (w->stop_fd >= 0)
            close(w->stop_fd);
        pthread_mutex_destroy(&w->lock);
        free(w);
        return infer_error_set(err, INFER_E_IO, "watching connections: %s", strerror(cause));
    }
    s->watch = w;
    return INFER_OK;
}

void watch_stop(server *s)
{
    struct watch *w = s->watch;
    if (!w)
        return;
    uint64_t one = 1;
    while (write(w->stop_fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
    pthread_join(w->thread, NULL);
    close(w->epoll);
    close(w->stop_fd);
    pthread_mutex_destroy(&w->lock);
    free(w->calls);
    free(w->versions);
    free(w);
    s->watch = NULL;
}

static int make_room(struct watch *w, size_t fd)
{
    if (fd < w->n)
        return 1;
    size_t n = w->n ? w->n : 64;
    while (n <= fd)
        n *= 2;
    call **calls = realloc(w->calls, n * sizeof *calls);
    if (calls)
        w->calls = calls;
    uint32_t *versions = realloc(w->versions, n * sizeof *versions);
    if (versions)
        w->versions = versions;
    if (!calls || !versions)
        return 0;
    memset(calls + w->n, 0, (n - w->n) * sizeof *calls);
    memset(versions + w->n, 0, (n - w->n) * sizeof *versions);
    w->n = n;
    return 1;
}

/* Without memory or room the call is simply not watched: it then ends when its reply cannot be written. */
void watch_add(call *c)
{
    struct watch *w = c->server->watch;
    if (c->fd < 0)
        return;
    size_t fd = (size_t)c->fd;
    pthread_mutex_lock(&w->lock);
    if (make_room(w, fd)) {
        struct epoll_event e = {.events = EPOLLRDHUP | EPOLLONESHOT};
        w->versions[fd]++;
        w->calls[fd] = c;
        e.data.u64 = (uint64_t)w->versions[fd] << 32 | fd;
        epoll_ctl(w->epoll, EPOLL_CTL_ADD, c->fd, &e);
    }
    pthread_mutex_unlock(&w->lock);
}

void watch_remove(call *c)
{
    struct watch *w = c->server->watch;
    size_t fd = (size_t)c->fd;
    if (c->fd < 0)
        return;
    pthread_mutex_lock(&w->lock);
    if (fd < w->n && w->calls[fd] == c) {
        w->calls[fd] = NULL;
        epoll_ctl(w->epoll, EPOLL_CTL_DEL, c->fd, NULL);
    }
    pthread_mutex_unlock(&w->lock);
}
