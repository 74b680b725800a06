/* API keys. Immutable after reading. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_SERVE_AUTH_H
#define INFER_SERVE_AUTH_H

#include <infer/error.h>

#include "opt.h"

typedef struct auth {
    char **keys;
    size_t n;
} auth;

/* Keys of --api-key and --api-key-file. A file without a key is an error, as is an empty key. */
infer_status auth_read(auth *a, const opts *o, infer_error *err);
void auth_free(auth *a);
/* 1: no key is needed, or one of the headers shows one. The time does not depend on which or how much fits. */
int auth_allows(const auth *a, const char *authorization, const char *x_api_key);

#endif
