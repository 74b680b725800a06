/*
 * The server's shared state and one HTTP request on its way through it.
 *
 *   http.c      connections: a request comes in whole, its reply or stream goes out          the HTTP thread
 *   watch.c     notices clients that leave while nothing is sent to them                      a thread
 *   work.c      runs route handlers: parsing, templates, tokenizing, building replies         a few threads
 *   gen.c       engine requests of a call; the pump hands the engine's events to their calls  a thread
 *   route.c     which handler a path has
 *
 * A call is counted: by its connection until that is done with it, by its work, by its stream and by each engine
 * request under way.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_SERVE_SERVER_H
#define INFER_SERVE_SERVER_H

#include <pthread.h>
#include <stdatomic.h>

#include <infer/infer.h>

#include "auth.h"
#include "chat.h"
#include "metrics.h"
#include "opt.h"
#include "sbuf.h"
#include "session.h"

enum server_state { SERVER_LOADING, SERVER_READY, SERVER_DRAINING, SERVER_FAILED };

typedef struct server {
    const opts *o;
    _Atomic int state; /* enum server_state */
    /* Written by the loader before the state becomes READY. */
    session session;
    chat_format chat;
    char *model;      /* its id for clients */
    int strict_model; /* refuse requests for another */
    int64_t created;  /* seconds since the epoch */
    int adds_bos;

    auth auth;
    metrics metrics;
    struct http *http;
    struct work *work;
    struct watch *watch;
    struct pump *pump;
    _Atomic uint64_t n_live; /* calls in the hands of a connection, from their last byte in to their last byte out */
    _Atomic uint64_t n_incoming; /* those whose body is still on its way */
    _Atomic int fatal;           /* the engine's fatal status */
    int wake_fd;                 /* written to when the main thread should look */
    /* What /ready saw last (under ready_lock). */
    pthread_mutex_t ready_lock;
    uint64_t ready_steps, ready_seen_ns;
} server;

/* Wakes the main thread. */
void server_wake(server *s);

struct MHD_Connection;
struct route;
struct gen_group;

typedef struct call {
    server *server;
    _Atomic int refs;
    struct MHD_Connection *connection;
    int fd;
    uint64_t start_ns;

    /* The request, whole and constant once dispatched. */
    char *method, *path;
    const char *path_rest; /* of a route that takes more */
    char request_id[132];
    sbuf body;
    const struct route *route;

    /* The reply; the handler's until it is ready, then the connection's. */
    unsigned status;
    sbuf reply;
    const char *content_type;
    unsigned retry_after; /* seconds; 0: no header */
    const char *allow;    /* methods, for 405 */
    int streams;          /* the reply is a stream: stream_next makes its pieces */
    sbuf out;             /* a piece and how much of it went out */
    size_t out_at;
    /* Makes the next piece in `out`: 1 made, 0 nothing yet, -1 the end. Called with the lock held. */
    int (*stream_next)(struct call *c);
    /* Builds the reply when the last engine request of a call without stream is done; on a work thread. */
    void (*finish)(struct call *c);

    pthread_mutex_t lock;
    /* Under the lock: */
    int suspended, ready, gone;
    struct gen_group *gens; /* owned; NULL: no generation */

    /* The connection's own. */
    int dispatched, body_too_large;
    uint64_t dropped; /* bytes of a body beyond the limit */
} call;

/* A call lives while somebody holds it: the connection, its work, its generations. Any thread. */
void call_ref(call *c);
void call_unref(call *c);

#endif
