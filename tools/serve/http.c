/*
 * Connections: takes requests in whole, hands them to the work threads, sends replies and streams. Everything about
 * libmicrohttpd is here; nothing about any route is.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include <sys/random.h>
#include <sys/resource.h>

#include <microhttpd.h>

#include "admit.h"
#include "conn.h"
#include "gen.h"
#include "http.h"
#include "listen.h"
#include "respond.h"
#include "route.h"
#include "secret.h"
#include "watch.h"
#include "work.h"

/* So many times the limit of a body are read to be dropped. */
#define TOO_MUCH 4

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
    free(c->cors_headers);
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
    info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    c->conn = info ? info->socket_context : NULL;
    conn_receive(s, c->conn, c->start_ns, 0); /* its body */
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

/* Both readers are called when the client has taken what they gave before. */
static ssize_t read_reply(void *p, uint64_t at, char *buf, size_t max)
{
    const call *c = p;
    conn_send(c->server, c->conn);
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
            conn_wait(c->conn);
            MHD_suspend_connection(c->connection);
        }
    }
    if (!c->suspended)
        conn_send(c->server, c->conn);
    if (!n && c->out_at < c->out.n) {
        size_t k = c->out.n - c->out_at < max ? c->out.n - c->out_at : max;
        memcpy(buf, c->out.p + c->out_at, k);
        c->out_at += k;
        n = (ssize_t)k;
    }
    pthread_mutex_unlock(&c->lock);
    return n;
}

static void add_cors_headers(const call *c, struct MHD_Response *r)
{
    MHD_add_response_header(r, "Access-Control-Allow-Origin", c->cors);
    MHD_add_response_header(r, "Vary", "Origin");
    if (!c->cors_headers) {
        MHD_add_response_header(r, "Access-Control-Expose-Headers", "x-request-id, retry-after");
        return;
    }
    MHD_add_response_header(r, "Access-Control-Allow-Methods", "GET, POST");
    MHD_add_response_header(r, "Access-Control-Allow-Headers", c->cors_headers);
    MHD_add_response_header(r, "Access-Control-Max-Age", "600");
}

static enum MHD_Result send_reply(call *c)
{
    struct MHD_Response *r;
    call_ref(c);
    conn_send(c->server, c->conn);
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
    if (c->cors)
        add_cors_headers(c, r);
    if (c->ambiguous || atomic_load(&c->server->state) >= SERVER_DRAINING)
        MHD_add_response_header(r, MHD_HTTP_HEADER_CONNECTION, "close");
    enum MHD_Result ok = MHD_queue_response(c->connection, c->status, r);
    MHD_destroy_response(r);
    return ok;
}

/* ---- Receiving --------------------------------------------------------------------------------------------- */

typedef struct header_counts {
    size_t n_bytes;
    unsigned n_lengths, n_encodings, n_unknown; /* what says how long the body is */
} header_counts;

static enum MHD_Result count_header(void *cls, enum MHD_ValueKind kind, const char *name, const char *value)
{
    header_counts *n = cls;
    (void)kind;
    n->n_bytes += strlen(name) + (value ? strlen(value) : 0);
    n->n_lengths += !strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH);
    if (!strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING)) {
        n->n_encodings++;
        n->n_unknown += !value || strcasecmp(value, "chunked") != 0;
    }
    return MHD_YES;
}

/* Before the body. A refusal sets the reply; the body is then read and dropped. */
static void admit_connection(call *c)
{
    struct MHD_Connection *m = c->connection;
    header_counts n = {0};
    MHD_get_connection_values(m, MHD_HEADER_KIND, count_header, &n);
    admit_headers h = {.authorization = header(m, MHD_HTTP_HEADER_AUTHORIZATION),
                       .x_api_key = header(m, "x-api-key"),
                       .origin = header(m, MHD_HTTP_HEADER_ORIGIN),
                       .ask_method = header(m, "Access-Control-Request-Method"),
                       .ask_headers = header(m, "Access-Control-Request-Headers"),
                       .n_bytes = n.n_bytes};
    admit(c, &h);
    /* Where a proxy in front reads another length than we do, the rest would be a request of somebody else's. */
    if (n.n_lengths + n.n_encodings > 1 || n.n_unknown) {
        c->ambiguous = 1;
        c->route = NULL;
        respond_error(c, 400, "ambiguous_length", NULL,
                      "State the length of the body once: by Content-Length, or by Transfer-Encoding: chunked.");
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
    conn_wait(c->conn);
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
        admit_connection(c);
        const char *length = header(connection, MHD_HTTP_HEADER_CONTENT_LENGTH);
        if (c->ambiguous)
            return dispatch(c);
        uint64_t stated = length ? strtoull(length, NULL, 10) : 0;
        c->body_too_large = stated > limit;
        /* An answer before the body closes the connection, and many clients only see that: so a body that is not much
         * too large is read and dropped, unless the client asked first. */
        if (stated > limit && (stated > TOO_MUCH * limit || header(connection, MHD_HTTP_HEADER_EXPECT)))
            return dispatch(c);
        return MHD_YES;
    }
    if (*n_data) {
        if (c->dispatched)
            return MHD_NO;
        if (c->body.n + *n_data > limit)
            c->body_too_large = 1;
        else if (c->route && !c->body_too_large)
            sbuf_add(&c->body, data, *n_data);
        c->received += *n_data;
        conn_receive(s, c->conn, c->start_ns, c->received);
        c->dropped += c->body_too_large ? *n_data : 0;
        if (c->dropped > TOO_MUCH * limit) /* an endless body: leave it */
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

static void log_call(call *c, unsigned status)
{
    char text[256];
    uint64_t prompt, made;
    int generated = gen_counts(c, &prompt, &made);
    snprintf(text, sizeof text, "%s %s", c->method ? c->method : "?", c->path ? c->path : "?");
    cli_field f[6] = {{"status", NULL, status},
                      {"ms", NULL, round((double)(infer_engine_now() - c->start_ns) / 1e3) / 1e3},
                      {"id", c->request_id, 0}};
    size_t n = 3;
    if (c->key && *c->key->name)
        f[n++] = (cli_field){"user", c->key->name, 0};
    if (generated) {
        f[n++] = (cli_field){"prompt", NULL, (double)prompt};
        f[n++] = (cli_field){"generated", NULL, (double)made};
    }
    /* What only asks how the server is would drown the rest. */
    cli_log_fields(c->route && c->route->flags & ROUTE_LIGHT ? 3 : 2, "http", text, f, n);
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
    conn_receive(s, c->conn, infer_engine_now(), 0); /* another request, or the end */
    unsigned status = why == MHD_REQUEST_TERMINATED_COMPLETED_OK ? c->status : 499;
    metrics_http(&s->metrics, status);
    log_call(c, status);
    trace_call(s->trace, c->method ? c->method : "?", c->path ? c->path : "?", c->request_id, status, c->start_ns,
               infer_engine_now());
    int dispatched = c->dispatched;
    call_unref(c);
    atomic_fetch_sub(dispatched ? &s->n_live : &s->n_incoming, 1);
    if (atomic_load(&s->state) >= SERVER_DRAINING)
        server_wake(s);
}

static void on_connection(void *cls, struct MHD_Connection *connection, void **slot,
                          enum MHD_ConnectionNotificationCode what)
{
    server *s = cls;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        *slot = info ? conn_open(s, (int)info->connect_fd) : NULL;
    } else {
        conn_close(s, *slot);
        *slot = NULL;
    }
}

/* ---- Start and stop ---------------------------------------------------------------------------------------- */

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

/* What the library is told beside the rest for TLS; files is what it reads meanwhile. */
static infer_status tls_options(const opts *o, sbuf files[2], struct MHD_OptionItem *items, infer_error *err)
{
    const char *cert = opt_str(o, OPT_TLS_CERT), *key = opt_str(o, OPT_TLS_KEY);
    items[0] = (struct MHD_OptionItem){MHD_OPTION_END, 0, NULL};
    if (!cert && !key)
        return INFER_OK;
    if (!cert || !key)
        return infer_error_set(err, INFER_E_INVALID, "--tls-cert and --tls-key go together");
    if (MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES)
        return infer_error_set(err, INFER_E_UNSUPPORTED, "--tls-cert: the HTTP library was built without TLS");
    infer_status st = sbuf_read_file(&files[0], cert, err);
    if (st < 0 || (st = secret_read("--tls-key", key, &files[1], err)) < 0)
        return st;
    if (!files[0].n || !files[1].n)
        return infer_error_set(err, INFER_E_INVALID, "--tls-cert, --tls-key: a file is empty");
    items[0] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_MEM_CERT, 0, files[0].p};
    items[1] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_MEM_KEY, 0, files[1].p};
    items[2] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_PRIORITIES, 0,
                                       (void *)(uintptr_t) "SECURE128:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2"};
    items[3] = (struct MHD_OptionItem){MHD_OPTION_END, 0, NULL};
    return INFER_OK;
}

static infer_status start_daemon(server *s, struct http *h, int fd, infer_error *err)
{
    sbuf files[2] = {{0}, {0}};
    struct MHD_OptionItem tls[4];
    infer_status st = tls_options(s->o, files, tls, err);
    unsigned flags = MHD_USE_EPOLL | MHD_USE_INTERNAL_POLLING_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC |
                     MHD_USE_ERROR_LOG | (files[1].n ? MHD_USE_TLS : 0);
    if (st >= 0)
        h->daemon = MHD_start_daemon(flags, 0, NULL, NULL, on_request, s, MHD_OPTION_EXTERNAL_LOGGER, log_library, NULL,
                                     MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_NOTIFY_COMPLETED, on_completed, s,
                                     MHD_OPTION_NOTIFY_CONNECTION, on_connection, s, MHD_OPTION_CONNECTION_LIMIT,
                                     connection_limit(), MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)65536,
                                     MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_ARRAY, tls, MHD_OPTION_END);
    if (st >= 0 && !h->daemon)
        st = infer_error_set(err, files[1].n ? INFER_E_INVALID : INFER_E_INTERNAL, "%s",
                             files[1].n ? "--tls-cert, --tls-key: the HTTP library takes no such certificate and key"
                                        : "the HTTP library does not start");
    sbuf_free(&files[0]);
    secret_wipe(&files[1]); /* the library has made its own form of it */
    return st;
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
    infer_status st = fd < 0 ? INFER_E_IO : conn_start(s, err);
    s->http = h;
    if (st >= 0 && (st = start_daemon(s, h, fd, err)) >= 0)
        return INFER_OK;
    if (fd >= 0)
        close(fd);
    http_leave(s);
    conn_stop(s);
    free(h->socket_path);
    free(h);
    s->http = NULL;
    return st;
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
    conn_stop(s);
    free(h->socket_path);
    free(h);
    s->http = NULL;
}
