/* Sockets to listen on. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_SERVE_LISTEN_H
#define INFER_SERVE_LISTEN_H

#include <infer/error.h>

/* Both return a listening descriptor, or -1 with INFER_E_IO in err. A name that a dead server left is taken over; *kept
 * is a copy of it (owned by the caller), to be unlinked at the end. */
int listen_unix(const char *path, char **kept, infer_error *err);
/* *used_port is the one in use, also where `port` is 0. */
int listen_tcp(const char *host, unsigned port, unsigned *used_port, infer_error *err);

#endif
