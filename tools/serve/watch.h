/* Notices clients that close their connection while it is suspended. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_SERVE_WATCH_H
#define INFER_SERVE_WATCH_H

#include "server.h"

/* gone is called once, on the watching thread, with a counted call. */
infer_status watch_start(server *s, void (*gone)(call *c), infer_error *err);
void watch_stop(server *s);
/* Both on the HTTP thread; the call's descriptor is open in between. */
void watch_add(call *c);
void watch_remove(call *c);

#endif
