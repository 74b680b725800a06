/*
 * The list of open connections and their deadlines.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <poll.h>
#include <stdlib.h>

#include <sys/socket.h>

#include "conn.h"

/* A body must come at this many bytes a second at least, once its time is up. */
#define SLOWEST 8192

struct conns {
    pthread_mutex_t lock;
    conn *first;
    uint64_t n_open, n_late;
    uint64_t patience; /* nanoseconds */
};

infer_status conn_start(server *s, infer_error *err)
{
    struct conns *l = calloc(1, sizeof *l);
    if (!l)
        return infer_error_set(err, INFER_E_NO_MEMORY, "starting to listen: out of memory");
    pthread_mutex_init(&l->lock, NULL);
    l->patience = (uint64_t)opt_int(s->o, OPT_CLIENT_TIMEOUT) * UINT64_C(1000000000);
    s->conns = l;
    return INFER_OK;
}

void conn_stop(server *s)
{
    struct conns *l = s->conns;
    if (!l)
        return;
    pthread_mutex_destroy(&l->lock);
    free(l);
    s->conns = NULL;
}

conn *conn_open(server *s, int fd)
{
    struct conns *l = s->conns;
    conn *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->fd = fd;
    conn_receive(s, c, infer_engine_now(), 0);
    pthread_mutex_lock(&l->lock);
    if ((c->next = l->first))
        l->first->prev = c;
    l->first = c;
    l->n_open++;
    pthread_mutex_unlock(&l->lock);
    return c;
}

void conn_close(server *s, conn *c)
{
    struct conns *l = s->conns;
    if (!c)
        return;
    pthread_mutex_lock(&l->lock);
    if (c->next)
        c->next->prev = c->prev;
    *(c->prev ? &c->prev->next : &l->first) = c->next;
    l->n_open--;
    pthread_mutex_unlock(&l->lock);
    free(c);
}

void conn_receive(server *s, conn *c, uint64_t since, uint64_t bytes)
{
    if (!c)
        return;
    atomic_store(&c->deadline, since + s->conns->patience + bytes * (UINT64_C(1000000000) / SLOWEST));
    atomic_store(&c->receives, 1);
}

void conn_send(server *s, conn *c)
{
    if (!c)
        return;
    atomic_store(&c->deadline, infer_engine_now() + s->conns->patience);
    atomic_store(&c->receives, 0);
}

void conn_wait(conn *c)
{
    if (!c)
        return;
    atomic_store(&c->deadline, 0);
    atomic_store(&c->receives, 0);
}

/* Whether the client closed its side while a request was to come, now and at the last look: what it had sent before it
 * did is long read. */
static int ended(conn *c)
{
    struct pollfd p = {.fd = c->fd, .events = POLLRDHUP};
    int was = c->closed;
    c->closed = atomic_load(&c->receives) && poll(&p, 1, 0) == 1;
    return was && c->closed;
}

void conn_reap(server *s, uint64_t now)
{
    struct conns *l = s->conns;
    pthread_mutex_lock(&l->lock);
    for (conn *c = l->first; c; c = c->next) {
        uint64_t deadline = atomic_load(&c->deadline);
        if (ended(c))
            shutdown(c->fd, SHUT_RDWR);
        /* Its owner may have met the deadline just now: then it is not ours to cut off. */
        if (deadline && now >= deadline && atomic_compare_exchange_strong(&c->deadline, &deadline, 0)) {
            shutdown(c->fd, SHUT_RDWR);
            l->n_late++;
        }
    }
    pthread_mutex_unlock(&l->lock);
}

void conn_counts(server *s, uint64_t *n_open, uint64_t *n_late)
{
    struct conns *l = s->conns;
    pthread_mutex_lock(&l->lock);
    *n_open = l->n_open;
    *n_late = l->n_late;
    pthread_mutex_unlock(&l->lock);
}
