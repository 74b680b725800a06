/*
 * libFuzzer target: the way from a client's bytes through the HTTP library, the handlers and the engine to a reply. The
 * server runs in this process on a Unix socket, with a tiny model on the reference path. An input is
 *   '!' and bytes that are sent as they are, or
 *   a letter that chooses a route, one that chooses how (keys, chunks, when the client leaves), and the body.
 * Checked: every reply is whole, has a documented status and is the JSON or the stream that it says it is; nothing
 * takes long; and clients that left leave no request and no cache block behind. Seeds: tests/fuzz/corpus/http, words:
 * tests/fuzz/http.dict. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <jansson.h>

#include "serve/conn.h"
#include "serve/pulse.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define SECOND      UINT64_C(1000000000)
#define PATIENCE    60 /* seconds until a silent server is a finding */
#define CHECK_EVERY 256

static server s;
static opts o;
static pulse heart;
static char folder[] = "/tmp/infer-fuzz-XXXXXX";
static struct sockaddr_un address = {.sun_family = AF_UNIX};

static const char *const routes[] = {
    "POST /v1/completions", "POST /v1/chat/completions", "POST /tokenize", "POST /detokenize", "POST /apply-template",
    "GET /v1/models",       "GET /v1/models/x%00y",      "GET /metrics",   "GET /ready",       "GET /props",
    "POST /v1/embeddings",  "OPTIONS /v1/completions",   "DELETE /x?y=z",  "GET /version",     "HEAD /health",
};
#define N_ROUTES (sizeof routes / sizeof routes[0])

enum { READS_ALL = 5, LEAVES_AT_ONCE = 5, LEAVES_IN_BODY, LEAVES_IN_REPLY };
#define HOW_CHUNKED 8u
#define HOW_NO_KEY  16u
#define HOW_OLD     32u

static void finding(const char *what, const char *text, size_t n)
{
    fprintf(stderr, "finding: %s\n%.*s\n", what, (int)(n < 4000 ? n : 4000), text ? text : "");
    abort();
}

static void leave(void)
{
    server_close(&s);
    opts_free(&o);
    rmdir(folder);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static char model[4096], host[64];
    static char line[] =
        "infer-serve -c 32 -np 16 --max-queue 16 -dev ref0 --api-key k --api-key l --max-body-size 64K "
        "--seed 1 --cors-origin http://a.b --metrics-compat vllm --client-timeout 5";
    static char *args[64];
    int n = 0;
    for (char *save, *w = strtok_r(line, " ", &save); w; w = strtok_r(NULL, " ", &save))
        args[n++] = w;
    char *none[] = {NULL};
    infer_error err = {0};
    int code;
    unsigned port;
    (void)argc;
    (void)argv;
    const char *given = getenv("INFER_FUZZ_MODEL");
    snprintf(model, sizeof model, "%s", given ? given : FUZZ_MODEL);
    if (!mkdtemp(folder))
        finding("no folder for a socket", "", 0);
    snprintf(host, sizeof host, "%s/s.sock", folder);
    memcpy(address.sun_path, host, strlen(host) + 1);
    args[n++] = "-m";
    args[n++] = model;
    args[n++] = "--host";
    args[n++] = host;
    cli_log_level = -1;
    if (opts_parse(&o, PROG_SERVE, n, args, none, &err) < 0 || server_init(&s, &o, &code, &err) < 0 ||
        server_listen(&s, &port, &code, &err) < 0 || server_load(&s, &code, &err) < 0)
        finding("the server does not start", err.text, strlen(err.text));
    atexit(leave);
    return 0;
}

/* ---- The client -------------------------------------------------------------------------------------------- */

static void send_all(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
        if (k <= 0)
            return; /* the server may have refused it already */
        p += k;
        n -= (size_t)k;
    }
}

/* The request's bytes; *body is where its body begins. */
static void make_request(sbuf *b, const uint8_t *data, size_t size, unsigned how, size_t *body)
{
    size_t n = size - 2;
    sbuf_printf(b, "%s HTTP/1.%d\r\nHost: x\r\nOrigin: http://a.b\r\nConnection: close\r\n", routes[data[0] % N_ROUTES],
                how & HOW_OLD ? 0 : 1);
    if (!(how & HOW_NO_KEY))
        sbuf_puts(b, "Authorization: Bearer k\r\n");
    if (how & HOW_CHUNKED && !(how & HOW_OLD)) {
        sbuf_puts(b, "Transfer-Encoding: chunked\r\n\r\n");
        *body = b->n;
        size_t half = n / 2;
        if (half)
            sbuf_printf(b, "%zx\r\n", half);
        sbuf_add(b, (const char *)data + 2, half);
        if (half)
            sbuf_puts(b, "\r\n");
        sbuf_printf(b, "%zx\r\n", n - half);
        sbuf_add(b, (const char *)data + 2 + half, n - half);
        sbuf_puts(b, n - half ? "\r\n0\r\n\r\n" : "\r\n");
        return;
    }
    sbuf_printf(b, "Content-Length: %zu\r\n\r\n", n);
    *body = b->n;
    sbuf_add(b, (const char *)data + 2, n);
}

/* 0: the connection was reset, as it may be when a body that nobody wants is still on its way. */
static int read_reply(int fd, sbuf *b, size_t most)
{
    while (b->n < most) {
        char *p = sbuf_reserve(b, 65536);
        ssize_t k = p ? recv(fd, p, 65536, 0) : 0;
        if (k < 0 && errno == EINTR) /* the fuzzer's clock */
            continue;
        if (k < 0 && errno != ECONNRESET)
            finding("no reply and no end", b->p, b->n);
        if (k <= 0)
            return !k;
        b->n += (size_t)k;
        p[k] = 0;
    }
    return 1;
}

/* ---- The reply --------------------------------------------------------------------------------------------- */

static int documented(long status)
{
    static const int all[] = {100, 200, 204, 400, 401, 404, 405, 413, 414, 429, 431, 501, 505};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i] == status)
            return 1;
    return 0;
}

/* The body without its chunks' frames, in place. 0: it is cut short. */
static int unchunk(char *p, size_t *n)
{
    char *to = p, *from = p, *end = p + *n;
    for (;;) {
        char *after;
        unsigned long k = strtoul(from, &after, 16);
        if (after == from || end - after < 2 || memcmp(after, "\r\n", 2))
            return 0;
        from = after + 2;
        if (!k)
            break;
        if ((size_t)(end - from) < k + 2)
            return 0;
        memmove(to, from, k);
        to += k;
        from += k + 2;
    }
    *n = (size_t)(to - p);
    *to = 0;
    return 1;
}

static void check_json(const char *p, size_t n, const char *what)
{
    json_error_t e;
    json_t *v = json_loadb(p, n, JSON_ALLOW_NUL | JSON_DECODE_ANY, &e);
    if (!v)
        finding(what, p, n);
    json_decref(v);
}

static void check_stream(const char *p, size_t n)
{
    int done = 0;
    for (const char *end = p + n; p < end;) {
        const char *nl = memmem(p, (size_t)(end - p), "\n\n", 2);
        if (!nl || strncmp(p, "data: ", 6) || done)
            finding("a stream's event", p, (size_t)(end - p));
        done = nl - p == 12 && !memcmp(p, "data: [DONE]", 12);
        if (!done)
            check_json(p + 6, (size_t)(nl - p - 6), "a stream's JSON");
        p = nl + 2;
    }
    if (!done)
        finding("a stream without its end", "", 0);
}

/* One whole reply from a connection that was closed after it. `head`: it has no body. */
static void check_reply(sbuf *b, int head)
{
    char *body = b->n ? strstr(b->p, "\r\n\r\n") : NULL;
    if (!body || strncmp(b->p, "HTTP/1.", 7) || !documented(strtol(b->p + 9, NULL, 10)))
        finding("no reply, or an undocumented status", b->p, b->n);
    *body = 0; /* the headers are text now */
    body += 4;
    size_t n = b->n - (size_t)(body - b->p);
    const char *length = strstr(b->p, "Content-Length: ");
    if (head)
        return;
    if (strstr(b->p, "Transfer-Encoding: chunked") && !unchunk(body, &n))
        finding("a reply that is cut short", body, n);
    if (length && strtoul(length + 16, NULL, 10) != n)
        finding("a reply of another length than stated", b->p, b->n);
    if (strstr(b->p, "application/json"))
        check_json(body, n, "a reply's JSON");
    else if (strstr(b->p, "text/event-stream"))
        check_stream(body, n);
}

/* Whoever left has left nothing behind. */
static void check_idle(void)
{
    infer_engine_stats st = {.struct_size = sizeof st};
    uint64_t end = infer_engine_now() + PATIENCE * SECOND, n_open, n_late;
    for (;;) {
        infer_engine_get_stats(s.session.engine, &st);
        conn_counts(&s, &n_open, &n_late);
        if (!st.n_running && !st.n_waiting && !st.blocks_used && !n_open && !atomic_load(&s.n_live) &&
            !atomic_load(&s.n_incoming))
            return;
        if (st.fatal < 0)
            finding("the engine failed", "", 0);
        if (infer_engine_now() > end)
            finding("requests, blocks or connections are left", "", 0);
        usleep(200);
        pulse_beat(&s, &heart, infer_engine_now());
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static unsigned n;
    if (size < 2 || size > 100000)
        return 0;
    int raw = data[0] == '!';
    unsigned how = raw ? 0 : data[1], when = raw ? data[1] & 7u : how & 7u;
    sbuf out = {0}, in = {0};
    size_t body = 0;
    if (raw)
        sbuf_add(&out, (const char *)data + 2, size - 2);
    else
        make_request(&out, data, size, how, &body);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval patience = {.tv_sec = PATIENCE};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        finding("nobody listens", "", 0);
    send_all(fd, out.p, when == LEAVES_IN_BODY ? body + (out.n - body) / 2 : out.n);
    if (raw) { /* it may be the half of a request, which the library keeps until --client-timeout */
        struct pollfd p = {.fd = fd, .events = POLLIN};
        shutdown(fd, SHUT_WR);
        if (poll(&p, 1, (int)when) > 0)
            read_reply(fd, &in, 1);
    } else if (when == LEAVES_IN_REPLY) {
        read_reply(fd, &in, 1);
    } else if (when < READS_ALL) {
        if (read_reply(fd, &in, SIZE_MAX))
            check_reply(&in, !strncmp(out.p, "HEAD", 4));
    }
    close(fd);
    sbuf_free(&out);
    sbuf_free(&in);
    pulse_beat(&s, &heart, infer_engine_now());
    if (++n % CHECK_EVERY == 0)
        check_idle();
    return 0;
}
