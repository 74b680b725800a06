/* API keys: what each may do, and how much a minute. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_SERVE_AUTH_H
#define INFER_SERVE_AUTH_H

#include <pthread.h>

#include <infer/error.h>

#include "limit.h"
#include "opt.h"

#define AUTH_KEY_MAX 256

/* Scopes. */
#define AUTH_INFER   1u /* ask the model */
#define AUTH_METRICS 2u /* see how the server is */
#define AUTH_ADMIN   4u /* change the server */
#define AUTH_ALL     7u

typedef struct auth_key {
    char name[64]; /* for logs; the key itself is in none */
    unsigned scopes;
    bucket requests, tokens; /* under auth.lock */
    size_t n;
    unsigned char secret[AUTH_KEY_MAX]; /* padded with zeros */
} auth_key;

typedef struct auth {
    auth_key *keys; /* constant but for their buckets */
    size_t n;
    auth_key anyone; /* what all clients share when there are no keys */
    pthread_mutex_t lock;
} auth;

/* Keys of --api-key and --api-key-file. In the file a line is "KEY [name=NAME] [scope=infer,metrics,admin]
 * [requests=N] [tokens=N]"; empty lines and those that begin with # are none. A file without a key is an error, as are
 * an empty, overlong or doubled key and an unknown word. auth_free in every case. */
infer_status auth_read(auth *a, const opts *o, infer_error *err);
void auth_free(auth *a);

/* The key that one of the headers (each may be NULL) shows, `anyone` when no keys are set, else NULL. The time depends
 * neither on which key fits nor on how much of one. */
auth_key *auth_find(auth *a, const char *authorization, const char *x_api_key);

/* Counts a request against the key's limits. 0: it may go on; else seconds to wait (at least 1), and *what was too
 * many: "requests" or "tokens". Any thread. */
unsigned auth_admit(auth *a, auth_key *k, uint64_t now, const char **what);
/* Tokens read or made for a key (NULL: for none). They are counted as they come, so the balance may fall below 0; it is
 * positive again before the next request is admitted. Any thread. */
void auth_spend(auth *a, auth_key *k, double tokens, uint64_t now);

#endif
