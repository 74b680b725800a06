/*
 * API keys: reading, comparing, counting. Knows no routes.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <infer/infer.h>

#include "auth.h"
#include "secret.h"

/* ---- Reading ----------------------------------------------------------------------------------------------- */

static auth_key *add_key(auth *a, const opts *o, const char *where, const char *key, size_t n, infer_error *err)
{
    if (!n || n > AUTH_KEY_MAX) {
        infer_error_set(err, INFER_E_INVALID, "%s: %s", where, n ? "a key has at most 256 bytes" : "is empty");
        return NULL;
    }
    auth_key *keys = realloc(a->keys, (a->n + 1) * sizeof *keys);
    if (!keys) {
        infer_error_set(err, INFER_E_NO_MEMORY, "reading keys: out of memory");
        return NULL;
    }
    a->keys = keys;
    auth_key *k = &keys[a->n];
    uint64_t now = infer_engine_now();
    memset(k, 0, sizeof *k);
    snprintf(k->name, sizeof k->name, "#%zu", a->n + 1);
    k->scopes = AUTH_ALL;
    k->n = n;
    memcpy(k->secret, key, n);
    bucket_init(&k->requests, (double)opt_int(o, OPT_LIMIT_REQUESTS), now);
    bucket_init(&k->tokens, (double)opt_int(o, OPT_LIMIT_TOKENS), now);
    for (size_t i = 0; i < a->n; i++) {
        if (keys[i].n == n && !memcmp(keys[i].secret, k->secret, n)) {
            infer_error_set(err, INFER_E_INVALID, "%s: a key is given twice", where);
            return NULL;
        }
    }
    a->n++;
    return k;
}

static int read_scopes(const char *v, size_t n, unsigned *scopes)
{
    static const char *const names[] = {"infer", "metrics", "admin"};
    *scopes = 0;
    while (n) {
        size_t k = 0, i = 0;
        while (k < n && v[k] != ',')
            k++;
        while (i < 3 && (strlen(names[i]) != k || memcmp(names[i], v, k)))
            i++;
        if (i == 3)
            return 0;
        *scopes |= 1u << i;
        k += k < n;
        v += k;
        n -= k;
    }
    return *scopes != 0;
}

/* A whole number from 0 to 10^12. */
static int read_count(const char *v, size_t n, double *out)
{
    *out = 0;
    for (size_t i = 0; i < n; i++) {
        if (v[i] < '0' || v[i] > '9' || n > 12)
            return 0;
        *out = *out * 10 + (v[i] - '0');
    }
    return n > 0;
}

static int read_word(auth_key *k, const char *w, size_t n)
{
    const char *v = memchr(w, '=', n);
    double count;
    unsigned scopes;
    if (!v++)
        return 0;
    size_t name = (size_t)(v - w), n_v = n - name;
    if (name == 5 && !memcmp(w, "name=", 5)) {
        if (!n_v || n_v >= sizeof k->name || !utf8_valid(v, n_v))
            return 0;
        memcpy(k->name, v, n_v);
        k->name[n_v] = 0;
    } else if (name == 6 && !memcmp(w, "scope=", 6) && read_scopes(v, n_v, &scopes)) {
        k->scopes = scopes;
    } else if (name == 9 && !memcmp(w, "requests=", 9) && read_count(v, n_v, &count)) {
        bucket_init(&k->requests, count, infer_engine_now());
    } else if (name == 7 && !memcmp(w, "tokens=", 7) && read_count(v, n_v, &count)) {
        bucket_init(&k->tokens, count, infer_engine_now());
    } else {
        return 0;
    }
    return 1;
}

/* One line without its newline. The error names the line, never what is in it. */
static infer_status read_line(auth *a, const opts *o, const char *path, size_t number, const char *p, size_t n,
                              infer_error *err)
{
    char where[512];
    auth_key *k = NULL;
    snprintf(where, sizeof where, "--api-key-file %.400s line %zu", path, number);
    for (size_t i = 0, len; i < n; i += len) {
        for (len = 0; i + len < n && p[i + len] && !strchr(" \t\r", p[i + len]); len++)
            ;
        if (!len) {
            len = 1; /* a blank */
        } else if (p[i] == '#') {
            break;
        } else if (!k) {
            if (!(k = add_key(a, o, where, p + i, len, err)))
                return err->status;
        } else if (!read_word(k, p + i, len)) {
            return infer_error_set(
                err, INFER_E_INVALID,
                "%s: after the key come name=, scope=infer,metrics,admin, requests= or tokens=", where);
        }
    }
    return INFER_OK;
}

static infer_status read_file(auth *a, const opts *o, const char *path, infer_error *err)
{
    sbuf text = {0};
    size_t before = a->n, number = 1;
    infer_status st = secret_read("--api-key-file", path, &text, err);
    for (const char *p = text.p, *end = p ? p + text.n : p; p < end && st >= 0; number++) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        size_t n = (size_t)((nl ? nl : end) - p);
        st = read_line(a, o, path, number, p, n, err);
        p += n + (nl != NULL);
    }
    secret_wipe(&text);
    if (st >= 0 && a->n == before)
        st = infer_error_set(err, INFER_E_INVALID, "--api-key-file %s: holds no key", path);
    return st;
}

infer_status auth_read(auth *a, const opts *o, infer_error *err)
{
    const opt_value *list = &o->v[OPT_API_KEY];
    const char *path = opt_str(o, OPT_API_KEY_FILE);
    uint64_t now = infer_engine_now();
    memset(a, 0, sizeof *a);
    pthread_mutex_init(&a->lock, NULL);
    a->anyone.scopes = AUTH_ALL;
    bucket_init(&a->anyone.requests, (double)opt_int(o, OPT_LIMIT_REQUESTS), now);
    bucket_init(&a->anyone.tokens, (double)opt_int(o, OPT_LIMIT_TOKENS), now);
    for (size_t i = 0; i < list->n; i++)
        if (!add_key(a, o, "--api-key", list->list[i], strlen(list->list[i]), err))
            return err->status;
    return path ? read_file(a, o, path, err) : INFER_OK;
}

void auth_free(auth *a)
{
    if (a->keys) {
        explicit_bzero(a->keys, a->n * sizeof *a->keys);
        free(a->keys);
    }
    pthread_mutex_destroy(&a->lock);
    memset(a, 0, sizeof *a);
}

/* ---- Comparing --------------------------------------------------------------------------------------------- */

/* Both padded with zeros: every byte is looked at, whatever the lengths are and wherever they differ. */
static unsigned same(const auth_key *k, const unsigned char *given, size_t n)
{
    volatile unsigned differ = (unsigned)(k->n ^ n);
    for (size_t i = 0; i < AUTH_KEY_MAX; i++)
        differ |= (unsigned)(k->secret[i] ^ given[i]);
    return differ == 0;
}

auth_key *auth_find(auth *a, const char *authorization, const char *x_api_key)
{
    auth_key *found = NULL;
    if (!a->n)
        return &a->anyone;
    const char *given[2] = {NULL, x_api_key};
    if (authorization && !strncasecmp(authorization, "Bearer ", 7))
        given[0] = authorization + 7 + strspn(authorization + 7, " ");
    for (size_t g = 0; g < 2; g++) {
        unsigned char padded[AUTH_KEY_MAX] = {0};
        size_t n = given[g] ? strlen(given[g]) : 0;
        if (!n || n > AUTH_KEY_MAX)
            continue;
        memcpy(padded, given[g], n);
        for (size_t i = 0; i < a->n; i++)
            if (same(&a->keys[i], padded, n))
                found = &a->keys[i];
        explicit_bzero(padded, sizeof padded);
    }
    return found;
}

/* ---- Counting ---------------------------------------------------------------------------------------------- */

unsigned auth_admit(auth *a, auth_key *k, uint64_t now, const char **what)
{
    pthread_mutex_lock(&a->lock);
    double requests = bucket_wait(&k->requests, 1, now), tokens = bucket_wait(&k->tokens, 1, now);
    double wait = requests > tokens ? requests : tokens;
    if (wait <= 0)
        bucket_take(&k->requests, 1, now);
    pthread_mutex_unlock(&a->lock);
    *what = requests >= tokens ? "requests" : "tokens";
    return wait <= 0 ? 0 : wait > 86400 ? 86400 : (unsigned)ceil(wait);
}

void auth_spend(auth *a, auth_key *k, double tokens, uint64_t now)
{
    if (!k || k->tokens.size <= 0) /* the size never changes */
        return;
    pthread_mutex_lock(&a->lock);
    bucket_take(&k->tokens, tokens, now);
    pthread_mutex_unlock(&a->lock);
}
