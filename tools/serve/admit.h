/* Before a request's body: who asks, from where, and for what? SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_SERVE_ADMIT_H
#define INFER_SERVE_ADMIT_H

#include "server.h"

/* Headers that matter here, each NULL when absent; valid during the call only. */
typedef struct admit_headers {
    const char *authorization, *x_api_key, *origin;
    const char *ask_method, *ask_headers; /* of a browser that asks before it asks */
    size_t n_bytes;                       /* of all headers, names and values */
} admit_headers;

/* Finds the call's route and its key. On refusal (also of what needs no body) the reply is set and call.route NULL. */
void admit(call *c, const admit_headers *h);

#endif
