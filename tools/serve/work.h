/* A few threads that run calls' handlers. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_SERVE_WORK_H
#define INFER_SERVE_WORK_H

#include "server.h"

/* stop finishes what was pushed, then joins the threads. */
infer_status work_start(server *s, unsigned n_threads, infer_error *err);
void work_stop(server *s);
/* Runs fn(c) soon, counting the call meanwhile. 0, or -1 when there is no memory (fn is not run). Any thread. */
int work_push(server *s, void (*fn)(call *c), call *c);

#endif
