/* Paths and their handlers. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_SERVE_ROUTE_H
#define INFER_SERVE_ROUTE_H

#include "server.h"

/* What a handler leaves behind. */
enum route_result {
    ROUTE_REPLY, /* the reply is complete, or the stream may begin */
    ROUTE_WAIT   /* engine requests are under way; call->finish makes the reply */
};

#define ROUTE_PUBLIC  1u  /* needs no key */
#define ROUTE_PREFIX  2u  /* the path may go on after it */
#define ROUTE_MODEL   4u  /* needs a loaded model: 503 before */
#define ROUTE_LIGHT   8u  /* runs on the HTTP thread */
#define ROUTE_METRICS 16u /* exists only with --metrics */
#define ROUTE_COUNTED 32u /* against the limits of its key */

typedef struct route {
    const char *method, *path;
    unsigned flags;
    unsigned scope;                    /* AUTH_* that a key must have */
    enum route_result (*run)(call *c); /* NULL: not built yet, 501 */
} route;

/* Finds the call's route. On refusal (unknown path, wrong method) the reply is set and NULL returned. */
const route *route_find(call *c);

/* Handlers. */
enum route_result api_chat_completions(call *c);
enum route_result api_completions(call *c);
enum route_result api_models(call *c);
enum route_result api_model(call *c);
enum route_result api_health(call *c);
enum route_result api_ready(call *c);
enum route_result api_version(call *c);
enum route_result api_props(call *c);
enum route_result api_metrics(call *c);
enum route_result api_tokenize(call *c);
enum route_result api_detokenize(call *c);
enum route_result api_apply_template(call *c);

#endif
