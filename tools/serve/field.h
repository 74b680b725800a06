/* Typed fields of a request's JSON object, by a table. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_SERVE_FIELD_H
#define INFER_SERVE_FIELD_H

#include <stdint.h>

#include <jansson.h>

#include "server.h"

enum field_type { FIELD_NUMBER, FIELD_INT, FIELD_BOOL };

typedef struct field {
    const char *name;
    enum field_type type;
    double min, max;
    size_t offset; /* of a double, int64_t or int in the target */
} field;

/* Reads every field of the table that the object has (null is absent) into the target; others keep their value. On a
 * wrong type or a value out of range: -1 with the error reply set, in OpenAI's words and with `param`. */
int fields_read(call *c, const json_t *object, const field *table, size_t n, void *target);

/* A value that must be absent, null or of the JSON type; *out is NULL when absent. The same -1. */
int field_get(call *c, const json_t *object, const char *name, json_type type, json_t **out);

/* Sets the reply for a value of a wrong type. Returns -1. */
int field_wrong_type(call *c, const char *name, const char *expected, const json_t *got);

#endif
