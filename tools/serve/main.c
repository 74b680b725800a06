/*
 * infer-serve: listens, loads the model meanwhile, serves until a signal, drains and leaves.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/signalfd.h>

#include "gen.h"
#include "http.h"
#include "pulse.h"

static const cli_program program = {
    .name = "infer-serve",
    .bit = PROG_SERVE,
    .usage = "infer-serve -m MODEL [--host 127.0.0.1] [--port 8080] [--api-key-file FILE]",
    .what = "Serves a model over HTTP with OpenAI's interface: chat and text completions, streams, metrics.",
};

#define SECOND UINT64_C(1000000000)

/* ---- Loading ----------------------------------------------------------------------------------------------- */

typedef struct loader {
    server *s;
    pthread_t thread;
    int started;
    _Atomic int done;
    int code; /* exit code of a failure */
    infer_error err;
} loader;

static void *run_loader(void *arg)
{
    loader *l = arg;
    if (server_load(l->s, &l->code, &l->err) < 0 && !l->code)
        l->code = EXIT_OTHER;
    atomic_store(&l->done, 1);
    server_wake(l->s);
    return NULL;
}

/* ---- The main thread's wait -------------------------------------------------------------------------------- */

typedef struct waiter {
    server *s;
    loader *l;
    int signal_fd;
    int signal;        /* the one that began the drain; 0: none yet */
    uint64_t deadline; /* of the drain */
    uint64_t grace;    /* until when requests that are not all here yet are waited for */
    int cancelled;     /* the deadline has passed: what ran was cancelled */
    pulse pulse;
} waiter;

static void begin_drain(waiter *w, int sig)
{
    server *s = w->s;
    w->signal = sig;
    w->deadline = infer_engine_now() + (uint64_t)opt_int(s->o, OPT_DRAIN_TIMEOUT) * SECOND;
    w->grace = infer_engine_now() + 2 * SECOND;
    if (w->grace > w->deadline)
        w->grace = w->deadline;
    int state = SERVER_READY;
    atomic_compare_exchange_strong(&s->state, &state, SERVER_DRAINING);
    cli_log(2, "serve", "%s: finishing %llu requests", sig == SIGINT ? "SIGINT" : "SIGTERM",
            (unsigned long long)atomic_load(&s->n_live));
    http_quiesce(s);
}

/* -1 to go on waiting, else the exit code. */
static int look(waiter *w)
{
    server *s = w->s;
    int loaded = atomic_load(&w->l->done);
    if (loaded && w->l->code)
        return cli_fail(w->l->code, "%s", w->l->err.text);
    if (atomic_load(&s->fatal) < 0 && !w->deadline) {
        /* Every request was ended with the cause; give their replies a moment to leave. */
        w->deadline = infer_engine_now() + 2 * SECOND;
        http_quiesce(s);
    }
    int failed = atomic_load(&s->fatal) < 0;
    if (!w->deadline)
        return -1;
    /* A client that stopped in the middle of its request, or left there, is not to hold up the end. */
    int incoming = atomic_load(&s->n_incoming) && infer_engine_now() < w->grace;
    if ((!incoming && !atomic_load(&s->n_live)) || (failed && infer_engine_now() >= w->deadline))
        return failed ? cli_exit_code(atomic_load(&s->fatal)) : w->cancelled ? 128 + w->signal : EXIT_DONE;
    if (infer_engine_now() < w->deadline)
        return -1;
    if (w->cancelled)
        return 128 + w->signal;
    cli_log(1, "serve", "the deadline has passed: cancelling what runs");
    w->cancelled = 1;
    w->deadline = infer_engine_now() + 2 * SECOND;
    pump_cancel_all(s);
    return -1;
}

static int wait_for_end(waiter *w)
{
    for (;;) {
        pulse_beat(w->s, &w->pulse, infer_engine_now());
        int code = look(w);
        if (code >= 0)
            return code;
        uint64_t now = infer_engine_now(), next = w->pulse.next_ns, end = now < w->grace ? w->grace : w->deadline;
        if (w->deadline && end < next)
            next = end;
        int timeout = now >= next ? 0 : (int)((next - now) / 1000000) + 1;
        struct pollfd fds[2] = {{.fd = w->signal_fd, .events = POLLIN}, {.fd = w->s->wake_fd, .events = POLLIN}};
        if (poll(fds, 2, timeout) < 0 && errno != EINTR)
            return cli_fail(EXIT_OTHER, "waiting: %s", strerror(errno));
        uint64_t n;
        struct signalfd_siginfo info;
        if (fds[1].revents & POLLIN && read(w->s->wake_fd, &n, sizeof n) < 0)
            continue;
        if (!(fds[0].revents & POLLIN) || read(w->signal_fd, &info, sizeof info) != sizeof info)
            continue;
        if (w->signal) { /* a second one: at once */
            cli_log(1, "serve", "second signal: leaving at once");
            _exit(128 + (int)info.ssi_signo);
        }
        int loading = SERVER_LOADING;
        if (atomic_compare_exchange_strong(&w->s->state, &loading, SERVER_DRAINING)) {
            http_leave(w->s); /* nothing to drain yet, and a load cannot be stopped half-way */
            _exit(EXIT_DONE);
        }
        begin_drain(w, (int)info.ssi_signo);
    }
}

/* ---- Start and end ----------------------------------------------------------------------------------------- */

static void log_address(const opts *o, unsigned port)
{
    const char *host = opt_str(o, OPT_HOST);
    if (!port)
        cli_log(2, "serve", "listening on %s", host);
    else
        cli_log(2, "serve", strchr(host, ':') ? "listening on %s://[%s]:%u" : "listening on %s://%s:%u",
                opt_set(o, OPT_TLS_CERT) ? "https" : "http", host, port);
}

static int serve(server *s, loader *l, int signal_fd)
{
    infer_error err = {0};
    unsigned port;
    int code;
    if (server_listen(s, &port, &code, &err) < 0)
        return cli_fail(code, "%s", err.text);
    log_address(s->o, port);
    int cause = pthread_create(&l->thread, NULL, run_loader, l);
    if (cause)
        return cli_fail(EXIT_OTHER, "starting to load: %s", strerror(cause));
    l->started = 1;
    waiter w = {.s = s, .l = l, .signal_fd = signal_fd};
    return wait_for_end(&w);
}

int main(int argc, char **argv)
{
    opts o;
    server s;
    loader l = {.s = &s};
    infer_error err = {0};
    int signal_fd = -1, ready = 0, code = cli_start(&program, &o, argc, argv), why = EXIT_OTHER;
    cli_log_level++; /* a server tells what it does */
    if (code < 0)
        code = session_preflight(&o);
    if (code >= 0)
        goto done;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL); /* before any thread: all inherit it */
    signal(SIGPIPE, SIG_IGN);
    ready = 1;
    signal_fd = signalfd(-1, &set, SFD_CLOEXEC);
    if (server_init(&s, &o, &why, &err) < 0)
        code = cli_fail(why, "%s", err.text);
    else if (signal_fd < 0)
        code = cli_fail(EXIT_OTHER, "starting: %s", strerror(errno));
    else
        code = serve(&s, &l, signal_fd);
    if (l.started)
        pthread_join(l.thread, NULL);
    /* A connection that still waits for its reply cannot be taken from the HTTP library in good order, nor a step that
     * hangs from a device. */
    if (atomic_load(&s.n_live) || atomic_load(&s.stall) == STALL_HUNG) {
        http_leave(&s);
        trace_finish(s.trace);
        _exit(code);
    }
done:
    if (ready)
        server_close(&s);
    if (signal_fd >= 0)
        close(signal_fd);
    opts_free(&o);
    return code;
}
