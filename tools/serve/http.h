/* HTTP connections over libmicrohttpd. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_SERVE_HTTP_H
#define INFER_SERVE_HTTP_H

#include "server.h"

/* Binds the address and starts to answer. *port is the one in use (0: a Unix socket). A name that cannot be resolved or
 * bound is INFER_E_IO. */
infer_status http_start(server *s, const char *host, unsigned port, unsigned *used_port, infer_error *err);
/* Takes no more connections; those that are open go on. */
void http_quiesce(server *s);
/* No call may be under way. */
void http_stop(server *s);
/* Before leaving the process without http_stop. */
void http_leave(server *s);

/* The reply (or stream) of a call is ready, or a stream has news: the connection goes on. Any thread. */
void http_ready(call *c);
/* With the call's lock held: its stream has news. Before http_ready it does nothing. */
void http_resume_locked(call *c);

#endif
