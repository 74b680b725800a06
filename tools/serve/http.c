/*
 * Connections: takes requests in whole, hands them to the work threads, sends replies and streams. Everything about
 * libmicrohttpd is here; nothing about any route is.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <microhttpd.h>

#include "gen.h"
#include "http.h"
#include "respond.h"
#include "route.h"
#include "watch.h"
#include "work.h"

struct http {
    struct MHD_Daemon *daemon;
    char *socket_path; /* of a Unix socket */
};

/* ---- Calls ------------------------------------------------------------------------------------------------- */

void call_ref(call *c)
{
    atomic_fetch_add(&c->refs, 1);
}

void call_unref(call *c)
{
    if (atomic_fetch_sub(&c->refs, 1) != 1)
        return;
    gen_free(c);
    pthread_mutex_destroy(&c->lock);
    sbuf_free(&c->body);
    sbuf_free(&c->reply);
    sbuf_free(&c->out);
    free(c->method);
    free(c->path);
    free(c);
}

/* The client's x-request-id if it is short and printable, else an own one. */
static void name_request(call *c, const char *given)
{
    size_t n = given ? strlen(given) : 0, i = 0;
    while (i < n && (isalnum((unsigned char)given[i]) || strchr("-_.:/+=", given[i])))
        i++;
    if (n && n < sizeof c->request_id && i == n) {
        memcpy(c->request_id, given, n + 1);
        return;
    }
    uint64_t r[2] = {0, 0};
    if (getrandom(r, sizeof r, GRND_NONBLOCK) != sizeof r)
        r[0] = infer_engine_now();
    snprintf(c->request_id, sizeof c->request_id, "req-%016llx%016llx", (unsigned long long)r[0],
             (unsigned long long)r[1]);
}

static const char *header(struct MHD_Connection *connection, const char *name)
{
    return MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
}

const char *http_key(const call *c)
{
    const char *key = c->server->auth.n ? header(c->connection, MHD_HTTP_HEADER_AUTHORIZATION) : NULL;
    return key || !c->server->auth.n ? key : header(c->connection, "x-api-key");
}

static call *new_call(server *s, struct MHD_Connection *connection, const char *method, const char *url)
{
    call *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    pthread_mutex_init(&c->lock, NULL);
    c->server = s;
    c->refs = 1;
    c->connection = connection;
    c->start_ns = infer_engine_now();
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    c->fd = info ? (int)info->connect_fd : -1;
    c->method = strdup(strcmp(method, "HEAD") ? method : "GET");
    c->path = strdup(url);
    name_request(c, header(connection, "x-request-id"));
    atomic_fetch_add(&s->n_incoming, 1);
    return c;
}

/* ---- Ready calls go on ------------------------------------------------------------------------------------- */

void http_resume_locked(call *c)
{
    if (c->ready && c->suspended) {
        c->suspended = 0;
        MHD_resume_connection(c->connection);
    }
}

void http_ready(call *c)
{
    pthread_mutex_lock(&c->lock);
    c->ready = 1;
    http_resume_locked(c);
    pthread_mutex_unlock(&c->lock);
}

/* ---- Sending ----------------------------------------------------------------------------------------------- */

static void release_reply(void *p)
{
    call_unref(p);
}

static ssize_t read_reply(void *p, uint64_t at, char *buf, size_t max)
{
    const call *c = p;
    if (at >= c->reply.n)
        return MHD_CONTENT_READER_END_OF_STREAM;
    size_t n = c->reply.n - at < max ? c->reply.n - at : max;
    memcpy(buf, c->reply.p + at, n);
    return (ssize_t)n;
}

/* The next bytes of a stream. Without news the connection sleeps until http_resume_locked. */
static ssize_t read_stream(void *p, uint64_t at, char *buf, size_t max)
{
    call *c = p;
    (void)at;
    ssize_t n = 0;
    pthread_mutex_lock(&c->lock);
    if (c->out_at == c->out.n) {
        c->out.n = c->out_at = 0;
        int more = c->stream_next(c);
        if (c->out.failed)
            n = MHD_CONTENT_READER_END_WITH_ERROR;
        else if (more < 0)
            n = MHD_CONTENT_READER_END_OF_STREAM;
        else if (!more) {
            c->suspended = 1;
            MHD_suspend_connection(c->connection);
        }
    }
    if (!n && c->out_at < c->out.n) {
        size_t k = c->out.n - c->out_at < max ? c->out.n - c->out_at : max;
        memcpy(buf, c->out.p + c->out_at, k);
        c->out_at += k;
        n = (ssize_t)k;
    }
    pthread_mutex_unlock(&c->lock);
    return n;
}

static enum MHD_Result send_reply(call *c)
{
    struct MHD_Response *r;
    call_ref(c);
    if (c->streams)
        r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, read_stream, c, release_reply);
    else
        r = MHD_create_response_from_callback(c->reply.n, 65536, read_reply, c, release_reply);
    if (!r) {
        call_unref(c);
        return MHD_NO;
    }
    char retry[16];
    MHD_add_response_header(r, "x-request-id", c->request_id);
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, c->content_type ? c->content_type : "application/json");
    if (c->streams) {
        MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
        MHD_add_response_header(r, "X-Accel-Buffering", "no");
    }
    if (c->retry_after) {
        snprintf(retry, sizeof retry, "%u", c->retry_after);
        MHD_add_response_header(r, MHD_HTTP_HEADER_RETRY_AFTER, retry);
    }
    if (c->status == MHD_HTTP_UNAUTHORIZED)
        MHD_add_response_header(r, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (c->allow)
        MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, c->allow);
    if (atomic_load(&c->server->state) >= SERVER_DRAINING)
        MHD_add_response_header(r, MHD_HTTP_HEADER_CONNECTION, "close");
    enum MHD_Result ok = MHD_queue_response(c->connection, c->status, r);
    MHD_destroy_response(r);
    return ok;
}

/* ---- Receiving --------------------------------------------------------------------------------------------- */

/* Before the body: who asks, and for what? A refusal sets the reply; the body is then read and dropped. */
static void admit(call *c)
{
    server *s = c->server;
    struct MHD_Connection *m = c->connection;
    c->route = route_find(c);
    int public = c->route && c->route->flags & ROUTE_PUBLIC;
    if (!public && !auth_allows(&s->auth, header(m, MHD_HTTP_HEADER_AUTHORIZATION), header(m, "x-api-key"))) {
        c->route = NULL;
        c->allow = NULL;
        respond_error(c, 401, "invalid_api_key", NULL,
                      "Incorrect or missing API key: send it as \"Authorization: Bearer KEY\".");
        return;
    }
    if (!c->route)
        return;
    int state = atomic_load(&s->state);
    if (!c->route->run) {
        c->route = NULL;
        respond_error(c, 501, "not_built", NULL, "%s %s is not built yet.", c->method, c->path);
    } else if (c->route->flags & ROUTE_MODEL && state != SERVER_READY) {
        static const char *const what[] = {"The model is still loading.", "", "The server is shutting down.",
                                           "The engine has failed."};
        c->retry_after = state == SERVER_FAILED ? 0 : 1;
        respond_error(c, 503, state == SERVER_LOADING ? "loading" : "unavailable", NULL, "%s", what[state]);
        c->route = NULL;
    }
}

static void run_handler(call *c)
{
    if (c->route->run(c) == ROUTE_REPLY)
        http_ready(c);
}

/* The request is complete: runs it here or on a work thread. */
static enum MHD_Result dispatch(call *c)
{
    server *s = c->server;
    c->dispatched = 1;
    atomic_fetch_add(&s->n_live, 1);
    atomic_fetch_sub(&s->n_incoming, 1);
    if (c->body.failed) {
        respond_error(c, 500, NULL, NULL, "out of memory");
        c->route = NULL;
    } else if (c->body_too_large) {
        respond_error(c, 413, "body_too_large", NULL, "The body of the request exceeds %lld bytes.",
                      (long long)opt_int(s->o, OPT_MAX_BODY_SIZE));
        c->route = NULL;
    }
    if (!c->route)
        return send_reply(c);
    if (c->route->flags & ROUTE_LIGHT) {
        c->route->run(c);
        return send_reply(c);
    }
    pthread_mutex_lock(&c->lock);
    c->suspended = 1;
    MHD_suspend_connection(c->connection);
    pthread_mutex_unlock(&c->lock);
    watch_add(c);
    if (work_push(s, run_handler, c) < 0) {
        respond_error(c, 500, NULL, NULL, "out of memory");
        http_ready(c);
    }
    return MHD_YES;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *connection, const char *url, const char *method,
                                  const char *version, const char *data, size_t *n_data, void **slot)
{
    server *s = cls;
    call *c = *slot;
    uint64_t limit = (uint64_t)opt_int(s->o, OPT_MAX_BODY_SIZE);
    (void)version;
    if (!c) {
        if (!(c = new_call(s, connection, method, url)))
            return MHD_NO;
        *slot = c;
        if (!c->method || !c->path)
            return MHD_NO;
        admit(c);
        const char *length = header(connection, MHD_HTTP_HEADER_CONTENT_LENGTH);
        if (length && strtoull(length, NULL, 10) > limit) {
            c->body_too_large = 1;
            return dispatch(c); /* before the body is read, which closes the connection */
        }
        return MHD_YES;
    }
    if (*n_data) {
        if (c->dispatched)
            return MHD_NO;
        if (c->body.n + *n_data > limit)
            c->body_too_large = 1;
        else if (c->route && !c->body_too_large)
            sbuf_add(&c->body, data, *n_data);
        c->dropped += c->body_too_large ? *n_data : 0;
        if (c->dropped > 4 * limit) /* an endless body: leave it */
            return MHD_NO;
        *n_data = 0;
        return MHD_YES;
    }
    if (!c->dispatched)
        return dispatch(c);
    pthread_mutex_lock(&c->lock);
    int ready = c->ready;
    pthread_mutex_unlock(&c->lock);
    return ready ? send_reply(c) : MHD_NO;
}

static void on_completed(void *cls, struct MHD_Connection *connection, void **slot, enum MHD_RequestTerminationCode why)
{
    server *s = cls;
    call *c = *slot;
    (void)connection;
    if (!c)
        return;
    *slot = NULL;
    watch_remove(c);
    gen_client_gone(c);
    unsigned status = why == MHD_REQUEST_TERMINATED_COMPLETED_OK ? c->status : 499;
    metrics_http(&s->metrics, status);
    char tokens[64];
    gen_counts(c, tokens, sizeof tokens);
    /* What only asks how the server is would drown the rest. */
    cli_log(c->route && c->route->flags & ROUTE_LIGHT ? 3 : 2, "http", "%s %s %u %.1f ms id=%s%s",
            c->method ? c->method : "?", c->path ? c->path : "?", status,
            (double)(infer_engine_now() - c->start_ns) / 1e6, c->request_id, tokens);
    int dispatched = c->dispatched;
    call_unref(c);
    atomic_fetch_sub(dispatched ? &s->n_live : &s->n_incoming, 1);
    if (atomic_load(&s->state) >= SERVER_DRAINING)
        server_wake(s);
}

/* ---- Start and stop ---------------------------------------------------------------------------------------- */

static int listen_unix(const char *path, char **kept, infer_error *err)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct stat st;
    if (strlen(path) >= sizeof a.sun_path) {
        infer_error_set(err, INFER_E_IO, "listen on %s: the name is too long for a socket", path);
        return -1;
    }
    memcpy(a.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    /* A socket that nobody listens on is left over: take its place. */
    if (fd >= 0 && !lstat(path, &st) && S_ISSOCK(st.st_mode)) {
        if (connect(fd, (struct sockaddr *)&a, sizeof a) < 0 && errno == ECONNREFUSED)
            unlink(path);
        close(fd);
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    }
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || listen(fd, 1024) < 0) {
        infer_error_set(err, INFER_E_IO, "listen on %s: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return -1;
    }
    *kept = strdup(path);
    return fd;
}

static int listen_tcp(const char *host, unsigned port, unsigned *used_port, infer_error *err)
{
    char service[16];
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    snprintf(service, sizeof service, "%u", port);
    int why = getaddrinfo(host, service, &hints, &list), fd = -1, cause = 0, on = 1;
    if (why) {
        infer_error_set(err, INFER_E_IO, "listen on %s: %s", host, gai_strerror(why));
        return -1;
    }
    for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
        if (fd < 0) {
            cause = errno;
            continue;
        }
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(fd, a->ai_addr, a->ai_addrlen) < 0 || listen(fd, 1024) < 0) {
            cause = errno;
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    if (fd < 0) {
        infer_error_set(err, INFER_E_IO, "listen on %s port %u: %s", host, port, strerror(cause));
        return -1;
    }
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    *used_port = port;
    if (!getsockname(fd, (struct sockaddr *)&a, &n))
        *used_port = ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port
                                                   : ((struct sockaddr_in *)&a)->sin_port);
    return fd;
}

/* Connections that the descriptor limit leaves room for. */
static unsigned connection_limit(void)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) < 0 || r.rlim_cur == RLIM_INFINITY || r.rlim_cur > 16384 + 64)
        return 16384;
    return r.rlim_cur > 128 ? (unsigned)r.rlim_cur - 64 : 64;
}

static void log_library(void *cls, const char *fmt, va_list ap) INFER_PRINTF(2, 0);
static void log_library(void *cls, const char *fmt, va_list ap)
{
    char text[512];
    (void)cls;
    vsnprintf(text, sizeof text, fmt, ap);
    text[strcspn(text, "\r\n")] = 0;
    cli_log(3, "http", "%s", text);
}

infer_status http_start(server *s, const char *host, unsigned port, unsigned *used_port, infer_error *err)
{
    struct http *h = calloc(1, sizeof *h);
    if (!h)
        return infer_error_set(err, INFER_E_NO_MEMORY, "starting to listen: out of memory");
    size_t n = strlen(host);
    *used_port = 0;
    int fd = n > 5 && !strcmp(host + n - 5, ".sock") ? listen_unix(host, &h->socket_path, err)
                                                     : listen_tcp(host, port, used_port, err);
    if (fd < 0) {
        free(h);
        return INFER_E_IO;
    }
    s->http = h;
    h->daemon = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_USE_INTERNAL_POLLING_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC | MHD_USE_ERROR_LOG, 0,
        NULL, NULL, on_request, s, MHD_OPTION_EXTERNAL_LOGGER, log_library, NULL, MHD_OPTION_LISTEN_SOCKET, fd,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, s, MHD_OPTION_CONNECTION_LIMIT, connection_limit(),
        MHD_OPTION_CONNECTION_TIMEOUT, 120u, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)65536,
        MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_END);
    if (!h->daemon) {
        close(fd);
        free(h->socket_path);
        free(h);
        s->http = NULL;
        return infer_error_set(err, INFER_E_IO, "listen on %s port %u: the HTTP library does not start", host, port);
    }
    return INFER_OK;
}

void http_quiesce(server *s)
{
    if (s->http) {
        int fd = (int)MHD_quiesce_daemon(s->http->daemon);
        if (fd >= 0)
            close(fd);
    }
}

void http_leave(server *s)
{
    if (s->http && s->http->socket_path)
        unlink(s->http->socket_path);
}

void http_stop(server *s)
{
    struct http *h = s->http;
    if (!h)
        return;
    MHD_stop_daemon(h->daemon);
    http_leave(s);
    free(h->socket_path);
    free(h);
    s->http = NULL;
}
