/*
 * Admission: routes, keys with their scopes and limits, the server's state, other sites' pages (CORS).
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "admit.h"
#include "respond.h"
#include "route.h"

static const char *scope_name(unsigned scope)
{
    return scope == AUTH_METRICS ? "metrics" : scope == AUTH_ADMIN ? "admin" : "infer";
}

/* The origin to answer to, or NULL: as --cors-origin says. */
static const char *allowed_origin(const server *s, const char *origin)
{
    const opt_value *list = &s->o->v[OPT_CORS_ORIGIN];
    for (size_t i = 0; origin && i < list->n; i++)
        if (!strcmp(list->list[i], "*") || !strcmp(list->list[i], origin))
            return list->list[i];
    return NULL;
}

/* A list of header names and nothing else: it goes into our reply. */
static int is_name_list(const char *s)
{
    size_t n = strlen(s);
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)s[i]) && !strchr("-_, ", s[i]))
            return 0;
    return n < 1024;
}

/* A browser asks whether a page of another site may send what it wants to. 1: answered. */
static int preflight(call *c, const admit_headers *h)
{
    if (strcmp(c->method, "OPTIONS") || !c->cors || !h->ask_method)
        return 0;
    const char *names = h->ask_headers && is_name_list(h->ask_headers) ? h->ask_headers : "authorization, content-type";
    c->cors_headers = strdup(names);
    c->status = 204;
    c->content_type = "text/plain";
    return 1;
}

static void refuse_state(call *c, int state)
{
    static const char *const what[] = {"The model is still loading.", "", "The server is shutting down.",
                                       "The engine has failed."};
    c->retry_after = state == SERVER_FAILED ? 0 : 1;
    respond_error(c, 503, state == SERVER_LOADING ? "loading" : "unavailable", NULL, "%s", what[state]);
}

/* 1: it may go on. */
static int within_limits(call *c)
{
    const char *what;
    unsigned wait = auth_admit(&c->server->auth, c->key, infer_engine_now(), &what);
    if (!wait)
        return 1;
    c->retry_after = wait;
    metrics_rejected(&c->server->metrics, REJECTED_LIMIT);
    respond_error(c, 429, "rate_limit_exceeded", NULL, "Too many %s a minute; try again in %u s.", what, wait);
    return 0;
}

/* 1: it may go on. */
static int allowed(call *c, const route *r)
{
    server *s = c->server;
    int state = atomic_load(&s->state);
    if (!(r->flags & ROUTE_PUBLIC) && !(c->key->scopes & r->scope)) {
        metrics_rejected(&s->metrics, REJECTED_SCOPE);
        respond_error(c, 403, "insufficient_scope", NULL, "This API key lacks the scope '%s'.", scope_name(r->scope));
    } else if (!r->run) {
        respond_error(c, 501, "not_built", NULL, "%s %s is not built yet.", c->method, c->path);
    } else if (r->flags & ROUTE_MODEL && state != SERVER_READY) {
        metrics_rejected(&s->metrics, REJECTED_STATE);
        refuse_state(c, state);
    } else if (r->flags & ROUTE_COUNTED && atomic_load(&s->stall) == STALL_HUNG) {
        metrics_rejected(&s->metrics, REJECTED_STATE);
        c->retry_after = 5;
        respond_error(c, 503, "stalled", NULL, "The device hangs: a step takes longer than --step-timeout.");
    } else if (r->flags & ROUTE_COUNTED) {
        return within_limits(c);
    } else {
        return 1;
    }
    return 0;
}

void admit(call *c, const admit_headers *h)
{
    server *s = c->server;
    c->cors = allowed_origin(s, h->origin);
    c->route = NULL;
    if (preflight(c, h))
        return;
    const route *r = route_find(c);
    int public = r && r->flags & ROUTE_PUBLIC;
    if (!public && !(c->key = auth_find(&s->auth, h->authorization, h->x_api_key))) {
        c->allow = NULL;
        metrics_rejected(&s->metrics, REJECTED_KEY);
        respond_error(c, 401, "invalid_api_key", NULL,
                      "Incorrect or missing API key: send it as \"Authorization: Bearer KEY\".");
    } else if (h->n_bytes > (size_t)opt_int(s->o, OPT_MAX_HEADER_SIZE)) {
        respond_error(c, 431, "headers_too_large", NULL, "The headers of the request exceed %lld bytes.",
                      (long long)opt_int(s->o, OPT_MAX_HEADER_SIZE));
    } else if (r && allowed(c, r)) {
        c->route = r;
    }
}
