/* Replies and errors in OpenAI's shape. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_SERVE_RESPOND_H
#define INFER_SERVE_RESPOND_H

#include <jansson.h>

#include "server.h"

/* Sets the reply to a JSON text; takes the reference. NULL or no memory gives a 500. */
void respond_json(call *c, unsigned status, json_t *body);

/* {"error": {message, type, code, param}} as an object; code and param may be NULL. */
json_t *respond_error_object(const char *type, const char *code, const char *param, const char *message);

/* Sets an error reply. The type follows from the status. */
void respond_error(call *c, unsigned status, const char *code, const char *param, const char *fmt, ...)
    INFER_PRINTF(5, 6);
/* The same from an engine or text error: the HTTP status follows from the error's. */
void respond_status(call *c, const infer_error *err, const char *param);
unsigned respond_http_status(infer_status s);
const char *respond_type(unsigned http_status);

/* The request's body as a JSON object (owned), or NULL with the error reply set. */
json_t *respond_parse(call *c);

#endif
