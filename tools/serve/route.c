/*
 * The table of paths. A path of the interface that has no handler yet answers 501.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <string.h>

#include "respond.h"
#include "route.h"

#define GET  "GET"
#define POST "POST"
#define M    ROUTE_MODEL
#define ML   (ROUTE_MODEL | ROUTE_LIGHT)
#define MC   (ROUTE_MODEL | ROUTE_COUNTED)
#define INF  AUTH_INFER
#define ADM  AUTH_ADMIN
#define MET  AUTH_METRICS

static const route routes[] = {
    {POST, "/v1/chat/completions", MC, INF, api_chat_completions},
    {POST, "/v1/completions", MC, INF, api_completions},
    {GET, "/v1/models", ML, INF, api_models},
    {GET, "/v1/models/", ML | ROUTE_PREFIX, INF, api_model},
    {GET, "/health", ROUTE_PUBLIC | ROUTE_LIGHT, INF, api_health},
    {GET, "/ready", ROUTE_PUBLIC | ROUTE_LIGHT, INF, api_ready},
    {GET, "/version", ROUTE_LIGHT, INF, api_version},
    {GET, "/props", M, INF, api_props},
    {GET, "/metrics", M | ROUTE_METRICS, MET, api_metrics},
    {POST, "/tokenize", MC, INF, api_tokenize},
    {POST, "/detokenize", MC, INF, api_detokenize},
    {POST, "/apply-template", MC, INF, api_apply_template},
    {POST, "/v1/embeddings", 0, INF, 0},
    {POST, "/v1/rerank", 0, INF, 0},
    {POST, "/v1/responses", 0, INF, 0},
    {POST, "/v1/messages", 0, INF, 0},
    {POST, "/v1/messages/count_tokens", 0, INF, 0},
    {POST, "/v1/load_lora_adapter", 0, ADM, 0},
    {POST, "/v1/unload_lora_adapter", 0, ADM, 0},
    {POST, "/api/chat", 0, INF, 0},
    {POST, "/api/generate", 0, INF, 0},
    {GET, "/api/tags", 0, INF, 0},
    {POST, "/api/show", 0, INF, 0},
    {GET, "/api/ps", 0, INF, 0},
    {POST, "/api/embed", 0, INF, 0},
    {GET, "/api/version", 0, INF, 0},
    {GET, "/slots", 0, MET, 0},
    {GET, "/", ROUTE_PUBLIC, INF, 0},
};

static int matches(const route *r, const char *path)
{
    size_t n = strlen(r->path);
    return r->flags & ROUTE_PREFIX ? !strncmp(path, r->path, n) && path[n] : !strcmp(path, r->path);
}

const route *route_find(call *c)
{
    const char *allow = NULL;
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        const route *r = &routes[i];
        if (!matches(r, c->path) || (r->flags & ROUTE_METRICS && !opt_int(c->server->o, OPT_METRICS)))
            continue;
        if (!strcmp(r->method, c->method)) {
            c->path_rest = c->path + strlen(r->path);
            return r;
        }
        allow = r->method;
    }
    if (allow) {
        c->allow = allow;
        respond_error(c, 405, "method_not_supported", NULL, "Not allowed to %s on %s. Use %s.", c->method, c->path,
                      allow);
    } else {
        respond_error(c, 404, NULL, NULL, "Invalid URL (%s %s)", c->method, c->path);
    }
    return NULL;
}
