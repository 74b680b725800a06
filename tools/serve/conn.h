/*
 * Deadlines of connections: how long a client may take for a request, for taking a piece of its reply, and between
 * requests. Whoever takes longer is cut off. The HTTP library only knows how long nothing at all has come, which a byte
 * a minute escapes. SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_SERVE_CONN_H
#define INFER_SERVE_CONN_H

#include "server.h"

typedef struct conn {
    struct conn *prev, *next;
    int fd;
    _Atomic uint64_t deadline; /* 0: it waits for us */
    _Atomic int receives;      /* a request or a part of one is to come */
    int closed;                /* conn_reap's: the client had closed its side when it last looked */
} conn;

infer_status conn_start(server *s, infer_error *err);
void conn_stop(server *s);

/* A connection was accepted; NULL without memory (it then has no deadline). close: before its descriptor is closed.
 * Both on the HTTP thread; c may be NULL in all that follow. */
conn *conn_open(server *s, int fd);
void conn_close(server *s, conn *c);
/* A request is to come, or the rest of one whose headers came at `since`: the client has --client-timeout from then on,
 * and a second more for each 8 KiB of `bytes`. */
void conn_receive(server *s, conn *c, uint64_t since, uint64_t bytes);
/* A piece of the reply is to be taken: --client-timeout from now on. */
void conn_send(server *s, conn *c);
/* Nothing is expected of the client. */
void conn_wait(conn *c);

/* Shuts down those that are late, and those that end in the middle of a request, which the HTTP library would go on
 * waiting for: it then sees their end. The main thread, about once a second. */
void conn_reap(server *s, uint64_t now);
/* Open ones, and those that were shut down so far. */
void conn_counts(server *s, uint64_t *n_open, uint64_t *n_late);

#endif
