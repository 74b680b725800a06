/*
 * Many HTTP/1.1 requests at once over one epoll on one thread; connections are kept and used again. Plain TCP only.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_TOOLS_BENCH_CLIENT_H
#define INFER_TOOLS_BENCH_CLIENT_H

#include <infer/error.h>

#include "http.h"

typedef struct client client;

/* How an exchange ended. */
enum client_end {
    CLIENT_DONE,     /* a whole answer */
    CLIENT_CONNECT,  /* no connection */
    CLIENT_CUT,      /* it broke before the answer's end */
    CLIENT_PROTOCOL, /* the answer is no HTTP */
    CLIENT_TIMEOUT
};

/* Called from client_poll. `now` is when the bytes were read from the socket. */
typedef struct client_calls {
    /* A part of the body; a is valid during the call. */
    void (*body)(void *user, const http_answer *a, const char *p, size_t n, uint64_t now);
    /* The last call for user; why is NULL with DONE. a->status is 0 where none came. */
    void (*end)(void *user, const http_answer *a, enum client_end how, const char *why, uint64_t now);
} client_calls;

typedef struct client_url {
    char host[256], port[8], path[512]; /* path without a last slash; "" where the address has none */
    char authority[280];                /* for the Host header */
} client_url;

/* http://HOST[:PORT][/PATH], IPv6 in brackets. INFER_E_INVALID says what is wrong with it. */
infer_status client_url_parse(const char *text, client_url *out, infer_error *err);

/* Looks the host up and keeps the first address that takes a connection. INFER_E_IO, INFER_E_NO_MEMORY. */
infer_status client_create(const client_url *url, uint32_t timeout_s, const client_calls *calls, client **out,
                           infer_error *err);
/* Open exchanges end without a call. */
void client_destroy(client *c);
/* Starts an exchange; bytes are the whole request, head and body, and are copied. 0, or -1 without memory. A failure to
 * connect comes by calls->end, not during this call. */
int client_send(client *c, const char *bytes, size_t n, void *user);
/* Waits up to timeout_ns (UINT64_MAX: until something happens) and makes the calls. 0, or -1 with errno. */
int client_poll(client *c, uint64_t timeout_ns);
/* Requests sent a second time, as a kept connection turned out to be closed before any byte of the answer. */
uint32_t client_n_reconnects(const client *c);

#endif
