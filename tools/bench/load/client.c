/*
 * HTTP/1.1 requests over kept connections, one epoll, one thread. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include <infer/engine.h>

#include "client.h"

#define SECOND UINT64_C(1000000000)

enum conn_state { FREE, IDLE, CONNECTING, SENDING, READING, FAILED };

typedef struct conn {
    enum conn_state state;
    int fd, err;   /* err: of FAILED */
    int kept;      /* has served an exchange before this one */
    int writing;   /* epoll waits for room to send */
    uint64_t last; /* when something moved */
    void *user;
    sbuf out;
    size_t sent;
    http_answer in;
} conn;

struct client {
    struct sockaddr_storage addr;
    socklen_t addr_n;
    client_calls calls;
    uint64_t timeout, next_look; /* ns; when to look for exchanges that stand still */
    int epoll_fd, timer_fd;
    conn **conns;
    uint32_t n, cap, n_failed; /* n_failed: in state FAILED, to be told at the next poll */
    uint32_t *idle, n_idle;
    uint32_t n_reconnects;
    char buf[65536];
};

/* ---- Addresses --------------------------------------------------------------------------------------------- */

infer_status client_url_parse(const char *text, client_url *out, infer_error *err)
{
    *out = (client_url){.port = "80"};
    if (!strncmp(text, "https://", 8))
        return infer_error_set(err, INFER_E_INVALID, "--url: https is not known here; give the server's http address");
    if (strncmp(text, "http://", 7))
        return infer_error_set(err, INFER_E_INVALID, "--url: \"%s\" does not begin with http://", text);
    for (const char *p = text; *p; p++)
        if ((unsigned char)*p <= ' ' || *p == 127 || *p == '#' || *p == '?' || *p == '@')
            return infer_error_set(err, INFER_E_INVALID, "--url: \"%s\" has a character that does not belong there",
                                   text);
    const char *at = text + 7, *host = at, *path = at + strcspn(at, "/"), *end;
    if (*at == '[') {
        host = at + 1;
        end = memchr(host, ']', (size_t)(path - host));
        at = end ? end + 1 : path;
    } else {
        end = at = memchr(host, ':', (size_t)(path - host)) ? strchr(host, ':') : path;
    }
    size_t n = end ? (size_t)(end - host) : 0, n_port = at < path ? (size_t)(path - at - 1) : 0, n_path = strlen(path);
    if (!n || n >= sizeof out->host || (at < path && (*at != ':' || !n_port || n_port > 5)))
        return infer_error_set(err, INFER_E_INVALID, "--url: \"%s\" is not http://HOST[:PORT][/PATH]", text);
    memcpy(out->host, host, n);
    if (n_port) {
        memcpy(out->port, at + 1, n_port);
        out->port[n_port] = 0;
        if (strspn(out->port, "0123456789") != n_port || atoi(out->port) > 65535 || atoi(out->port) < 1)
            return infer_error_set(err, INFER_E_INVALID, "--url: \"%s\": no such port", out->port);
    }
    while (n_path && path[n_path - 1] == '/')
        n_path--;
    if (n_path >= sizeof out->path)
        return infer_error_set(err, INFER_E_INVALID, "--url: the path is too long");
    memcpy(out->path, path, n_path);
    snprintf(out->authority, sizeof out->authority, strchr(out->host, ':') ? "[%s]:%s" : "%s:%s", out->host, out->port);
    return INFER_OK;
}

/* ---- Connections ------------------------------------------------------------------------------------------- */

static int open_socket(const struct sockaddr *addr, socklen_t n)
{
    const int on = 1;
    int fd = socket(addr->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(fd, addr, n) < 0 && errno != EINPROGRESS) {
        int cause = errno;
        close(fd);
        errno = cause;
        return -1;
    }
    return fd;
}

static int socket_error(int fd)
{
    int cause = 0;
    socklen_t n = sizeof cause;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &cause, &n) < 0 ? errno : cause;
}

/* A place for a connection, UINT32_MAX without memory. */
static uint32_t new_place(client *c)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (c->conns[i]->state == FREE)
            return i;
    if (c->n == c->cap) {
        uint32_t cap = c->cap ? 2 * c->cap : 16;
        conn **p = realloc(c->conns, cap * sizeof *p);
        if (p)
            c->conns = p;
        uint32_t *q = realloc(c->idle, cap * sizeof *q);
        if (q)
            c->idle = q;
        if (!p || !q)
            return UINT32_MAX;
        c->cap = cap;
    }
    conn *k = calloc(1, sizeof *k);
    if (!k)
        return UINT32_MAX;
    k->fd = -1;
    c->conns[c->n] = k;
    return c->n++;
}

static void watch(client *c, uint32_t i, int op, int writing)
{
    struct epoll_event e = {.events = EPOLLIN | (writing ? EPOLLOUT : 0), .data.u32 = i};
    c->conns[i]->writing = writing;
    epoll_ctl(c->epoll_fd, op, c->conns[i]->fd, &e);
}

static void fail_later(client *c, conn *k, int cause)
{
    k->state = FAILED;
    k->err = cause;
    c->n_failed++;
}

static void begin_connect(client *c, uint32_t i)
{
    conn *k = c->conns[i];
    k->kept = 0;
    k->sent = 0;
    k->state = CONNECTING;
    http_answer_reset(&k->in);
    k->last = infer_engine_now();
    k->fd = open_socket((const struct sockaddr *)&c->addr, c->addr_n);
    if (k->fd < 0)
        fail_later(c, k, errno);
    else
        watch(c, i, EPOLL_CTL_ADD, 1);
}

static void close_conn(conn *k)
{
    if (k->fd >= 0)
        close(k->fd); /* leaves the epoll set by that */
    k->fd = -1;
    k->state = FREE;
}

static void end_exchange(client *c, uint32_t i, enum client_end how, const char *why, uint64_t now)
{
    conn *k = c->conns[i];
    void *user = k->user;
    const int keep = how == CLIENT_DONE && k->in.keep_alive;
    k->user = NULL;
    if (keep) {
        k->state = IDLE;
        k->kept = 1;
        c->idle[c->n_idle++] = i;
    } else {
        close_conn(k);
    }
    c->calls.end(user, &k->in, how, how == CLIENT_DONE ? NULL : why, now);
}

/* It broke. A kept connection may have been closed just as it was used: then once more on a new one. */
static void broken(client *c, uint32_t i, enum client_end how, const char *why, uint64_t now)
{
    conn *k = c->conns[i];
    if (k->kept && how == CLIENT_CUT && k->in.state == HTTP_STATUS && !k->in.n_line) {
        close_conn(k);
        c->n_reconnects++;
        begin_connect(c, i);
        return;
    }
    end_exchange(c, i, how, why, now);
}

static void send_more(client *c, uint32_t i)
{
    conn *k = c->conns[i];
    while (k->sent < k->out.n) {
        ssize_t n = send(k->fd, k->out.p + k->sent, k->out.n - k->sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (n < 0) {
            /* What the server said before it closed may still be there: the reader finds out. */
            k->sent = k->out.n;
            break;
        }
        k->sent += (size_t)n;
        k->last = infer_engine_now();
    }
    k->state = k->sent < k->out.n ? SENDING : READING;
    if (k->writing != (k->state == SENDING))
        watch(c, i, EPOLL_CTL_MOD, k->state == SENDING);
}

typedef struct body_call {
    client *c;
    conn *k;
    uint64_t now;
} body_call;

static void pass_body(void *user, const char *p, size_t n)
{
    const body_call *b = user;
    b->c->calls.body(b->k->user, &b->k->in, p, n, b->now);
}

static void read_more(client *c, uint32_t i)
{
    conn *k = c->conns[i];
    for (;;) {
        ssize_t n = recv(k->fd, c->buf, sizeof c->buf, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        const uint64_t now = infer_engine_now();
        if (n < 0) {
            broken(c, i, CLIENT_CUT, strerror(errno), now);
            return;
        }
        k->last = now;
        if (!n) {
            http_answer_eof(&k->in);
            if (k->in.state == HTTP_DONE)
                end_exchange(c, i, CLIENT_DONE, NULL, now);
            else {
                const int nothing = !k->in.status && !k->in.n_head;
                k->in.state = nothing ? HTTP_STATUS : k->in.state;
                broken(c, i, CLIENT_CUT, k->in.why, now);
            }
            return;
        }
        body_call b = {c, k, now};
        size_t used = http_answer_push(&k->in, c->buf, (size_t)n, pass_body, &b);
        if (k->in.state == HTTP_BAD) {
            end_exchange(c, i, CLIENT_PROTOCOL, k->in.why, now);
            return;
        }
        if (k->in.state == HTTP_DONE) {
            if (used < (size_t)n || k->sent < k->out.n)
                k->in.keep_alive = 0; /* more than an answer, or before the question was out */
            end_exchange(c, i, CLIENT_DONE, NULL, now);
            return;
        }
        if ((size_t)n < sizeof c->buf)
            return; /* level-triggered: what came since is told again */
    }
}

static void forget_idle(client *c, uint32_t i)
{
    for (uint32_t k = 0; k < c->n_idle; k++) {
        if (c->idle[k] == i) {
            c->idle[k] = c->idle[--c->n_idle];
            break;
        }
    }
    close_conn(c->conns[i]);
}

static void on_event(client *c, uint32_t i, uint32_t events)
{
    conn *k = c->conns[i];
    if (k->state == IDLE) { /* closed, or it says what nobody asked */
        forget_idle(c, i);
        return;
    }
    if (k->state == CONNECTING) {
        int cause = socket_error(k->fd);
        if (cause) {
            end_exchange(c, i, CLIENT_CONNECT, strerror(cause), infer_engine_now());
            return;
        }
        if (!(events & EPOLLOUT))
            return;
        send_more(c, i);
    } else if (k->state == SENDING && events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) {
        send_more(c, i);
    }
    if ((k->state == SENDING || k->state == READING) && events & (EPOLLIN | EPOLLERR | EPOLLHUP))
        read_more(c, i);
}

/* ---- The client -------------------------------------------------------------------------------------------- */

/* Connects with a bound on the wait; the descriptor, or -1 with errno. */
static int connect_now(const struct addrinfo *a, uint64_t timeout)
{
    int fd = open_socket(a->ai_addr, a->ai_addrlen), cause;
    if (fd < 0)
        return -1;
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    int n = poll(&p, 1, (int)(timeout / 1000000));
    cause = n > 0 ? socket_error(fd) : n ? errno : ETIMEDOUT;
    if (!cause)
        return fd;
    close(fd);
    errno = cause;
    return -1;
}

static infer_status find_address(client *c, const client_url *url, infer_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *all;
    int rc = getaddrinfo(url->host, url->port, &hints, &all), fd = -1;
    if (rc)
        return infer_error_set(err, INFER_E_IO, "%s: %s", url->authority, gai_strerror(rc));
    const uint64_t most = 10 * SECOND;
    for (const struct addrinfo *a = all; a && fd < 0; a = a->ai_next) {
        if (a->ai_addrlen > sizeof c->addr)
            continue;
        if ((fd = connect_now(a, c->timeout < most ? c->timeout : most)) >= 0) {
            memcpy(&c->addr, a->ai_addr, a->ai_addrlen);
            c->addr_n = a->ai_addrlen;
        }
    }
    int cause = errno;
    freeaddrinfo(all);
    if (fd < 0)
        return infer_error_set(err, INFER_E_IO, "connecting to %s: %s", url->authority, strerror(cause));
    close(fd);
    return INFER_OK;
}

infer_status client_create(const client_url *url, uint32_t timeout_s, const client_calls *calls, client **out,
                           infer_error *err)
{
    client *c = calloc(1, sizeof *c);
    struct rlimit r;
    if (!c)
        return infer_error_set(err, INFER_E_NO_MEMORY, "starting the client: out of memory");
    c->calls = *calls;
    c->timeout = timeout_s * SECOND;
    /* Hundreds of connections are more than many systems allow until one asks. */
    if (!getrlimit(RLIMIT_NOFILE, &r) && r.rlim_cur < r.rlim_max) {
        r.rlim_cur = r.rlim_max;
        setrlimit(RLIMIT_NOFILE, &r);
    }
    c->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    c->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN, .data.u32 = UINT32_MAX};
    infer_status st = INFER_OK;
    if (c->epoll_fd < 0 || c->timer_fd < 0 || epoll_ctl(c->epoll_fd, EPOLL_CTL_ADD, c->timer_fd, &e) < 0)
        st = infer_error_set(err, INFER_E_IO, "starting the client: %s", strerror(errno));
    else
        st = find_address(c, url, err);
    if (st < 0) {
        client_destroy(c);
        return st;
    }
    *out = c;
    return INFER_OK;
}

void client_destroy(client *c)
{
    if (!c)
        return;
    for (uint32_t i = 0; i < c->n; i++) {
        close_conn(c->conns[i]);
        sbuf_free(&c->conns[i]->out);
        free(c->conns[i]);
    }
    if (c->epoll_fd >= 0)
        close(c->epoll_fd);
    if (c->timer_fd >= 0)
        close(c->timer_fd);
    free(c->conns);
    free(c->idle);
    free(c);
}

int client_send(client *c, const char *bytes, size_t n, void *user)
{
    const uint32_t kept = c->n_idle, i = kept ? c->idle[kept - 1] : new_place(c);
    if (i == UINT32_MAX)
        return -1;
    conn *k = c->conns[i];
    k->out.n = k->sent = 0;
    sbuf_add(&k->out, bytes, n);
    if (k->out.failed)
        return -1;
    k->user = user;
    http_answer_reset(&k->in);
    k->last = infer_engine_now();
    if (kept) {
        c->n_idle--;
        send_more(c, i);
    } else {
        begin_connect(c, i);
    }
    return 0;
}

static void look_for_stalled(client *c, uint64_t now)
{
    for (uint32_t i = 0; i < c->n; i++) {
        const conn *k = c->conns[i];
        if (k->state >= CONNECTING && k->state <= READING && now - k->last > c->timeout)
            end_exchange(c, i, CLIENT_TIMEOUT, "nothing came for too long", now);
    }
    c->next_look = now + SECOND / 2;
}

static void tell_failed(client *c)
{
    for (uint32_t i = 0; i < c->n && c->n_failed; i++) {
        if (c->conns[i]->state == FAILED) {
            c->n_failed--;
            end_exchange(c, i, CLIENT_CONNECT, strerror(c->conns[i]->err), infer_engine_now());
        }
    }
}

int client_poll(client *c, uint64_t timeout_ns)
{
    enum { MANY = 256 };
    struct epoll_event events[MANY];
    const uint64_t now = infer_engine_now();
    if (now >= c->next_look)
        look_for_stalled(c, now);
    if (c->n_failed) {
        tell_failed(c);
        return 0;
    }
    /* epoll counts in milliseconds, which is coarse for arrivals: the timer wakes it. */
    const uint64_t t = timeout_ns > SECOND / 2 ? SECOND / 2 : timeout_ns;
    struct itimerspec when = {.it_value = {.tv_nsec = (long)t}};
    if (t)
        timerfd_settime(c->timer_fd, 0, &when, NULL);
    int n = epoll_wait(c->epoll_fd, events, MANY, t ? -1 : 0);
    if (n < 0)
        return errno == EINTR ? 0 : -1;
    for (int i = 0; i < n; i++) {
        uint64_t ticks;
        if (events[i].data.u32 != UINT32_MAX)
            on_event(c, events[i].data.u32, events[i].events);
        else if (read(c->timer_fd, &ticks, sizeof ticks) < 0)
            continue;
    }
    return 0;
}

uint32_t client_n_reconnects(const client *c)
{
    return c->n_reconnects;
}
