/*
 * The server's shared state and one HTTP request on its way through it.
 *
 *   http.c      connections: a request comes in whole, its reply or stream goes out          the HTTP thread
 *   admit.c     who may ask what, and how often                                              the HTTP thread
 *   conn.c      how long clients may take                                                    HTTP and main threads
 *   watch.c     notices clients that leave while nothing is sent to them                      a thread
 *   work.c      runs route handlers: parsing, templates, tokenizing, building replies         a few threads
 *   gen.c       engine requests of a call; the pump hands the engine's events to their calls  a thread
 *   route.c     which handler a path has
 *   pulse.c     once a second: late clients, steps that hang, statistics                     the main thread
 *   server.c    start and end of all of it
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
#include "trace.h"

enum server_state { SERVER_LOADING, SERVER_READY, SERVER_DRAINING, SERVER_FAILED };
/* Requests wait and no step ends: for longer than usual; for so long that they were failed. */
enum server_stall { STALL_NONE, STALL_SLOW, STALL_HUNG };

typedef struct server {
    const opts *o;
    _Atomic int state; /* enum server_state */
    _Atomic int stall; /* enum server_stall */
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
    struct conns *conns;
    trace *trace; /* NULL: off */
    struct work *work;
    struct watch *watch;
    struct pump *pump;
    _Atomic uint64_t n_live; /* calls in the hands of a connection, from their last byte in to their last byte out */
    _Atomic uint64_t n_incoming; /* those whose body is still on its way */
    _Atomic int fatal;           /* the engine's fatal status */
    int wake_fd;                 /* written to when the main thread should look */
} server;

/* Wakes the main thread. */
void server_wake(server *s);

/* The parts in their order. init takes options that were read and checks what belongs to them (keys); *code is the exit
 * code of a failure. close in every case once init was called: no call may be under way. */
infer_status server_init(server *s, const opts *o, int *code, infer_error *err);
/* Answers from now on; *port is the one in use (0: a Unix socket). */
infer_status server_listen(server *s, unsigned *port, int *code, infer_error *err);
/* Loads the model and takes requests. May run on another thread than the others. */
infer_status server_load(server *s, int *code, infer_error *err);
void server_close(server *s);

struct MHD_Connection;
struct conn;
struct route;
struct gen_group;

typedef struct call {
    server *server;
    _Atomic int refs;
    struct MHD_Connection *connection;
    struct conn *conn; /* its connection's deadline; NULL: none */
    int fd;
    uint64_t start_ns; /* when its headers were in */

    /* The request, whole and constant once dispatched. */
    char *method, *path;
    const char *path_rest; /* of a route that takes more */
    char request_id[132];
    sbuf body;
    const struct route *route;
    auth_key *key;      /* who asks; NULL on public routes and for refused ones */
    const char *cors;   /* the origin that a browser may show the reply to; NULL: none */
    char *cors_headers; /* the reply to a browser's question: headers it may send */

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
    int dispatched, body_too_large, ambiguous;
    uint64_t received, dropped; /* bytes of a body; those beyond the limit */
} call;

/* A call lives while somebody holds it: the connection, its work, its generations. Any thread. */
void call_ref(call *c);
void call_unref(call *c);

#endif
