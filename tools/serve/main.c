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
#include <time.h>
#include <unistd.h>

#include <sys/eventfd.h>
#include <sys/signalfd.h>

#include "gen.h"
#include "http.h"
#include "watch.h"
#include "work.h"

static const cli_program program = {
    .name = "infer-serve",
    .bit = PROG_SERVE,
    .usage = "infer-serve -m MODEL [--host 127.0.0.1] [--port 8080] [--api-key-file FILE]",
    .what = "Serves a model over HTTP with OpenAI's interface: chat and text completions, streams, metrics.",
};

#define SECOND UINT64_C(1000000000)

void server_wake(server *s)
{
    uint64_t one = 1;
    while (write(s->wake_fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

/* ---- Loading ----------------------------------------------------------------------------------------------- */

typedef struct loader {
    server *s;
    pthread_t thread;
    int started;
    _Atomic int done;
    int code; /* exit code of a failure */
    infer_error err;
} loader;

static infer_status load(loader *l)
{
    server *s = l->s;
    infer_status st = session_open(&s->session, s->o, NULL, SESSION_ENGINE, NULL, &l->code, &l->err);
    if (st < 0)
        return st;
    s->metrics.max_len = infer_engine_ctx_size(s->session.engine);
    s->adds_bos = chat_adds_bos(s->session.tokenizer);
    if ((st = chat_create(&s->chat, s->o, s->session.file, s->session.tokenizer, &l->err)) < 0)
        l->code = cli_exit_code(st);
    else if ((st = pump_start(s, &l->err)) < 0)
        l->code = EXIT_OTHER;
    return st;
}

static void *run_loader(void *arg)
{
    loader *l = arg;
    server *s = l->s;
    if (load(l) >= 0) {
        int loading = SERVER_LOADING;
        atomic_compare_exchange_strong(&s->state, &loading, SERVER_READY);
        if (!s->chat.tmpl)
            cli_log(1, "serve", "the model has no chat template: chat requests will be refused");
        cli_log(2, "serve", "ready: model=%s context=%u load=%.0f ms", s->model,
                infer_engine_ctx_size(s->session.engine), (double)s->session.load_ns / 1e6);
    } else if (!l->code) {
        l->code = EXIT_OTHER;
    }
    atomic_store(&l->done, 1);
    server_wake(s);
    return NULL;
}

/* The model's id: as asked, or the file's name without folder and ending. */
static char *model_id(const opts *o)
{
    int given = opt_set(o, OPT_SERVED_MODEL_NAME);
    const char *path = opt_str(o, OPT_MODEL), *slash = strrchr(path, '/');
    const char *base = given ? opt_str(o, OPT_SERVED_MODEL_NAME) : slash && slash[1] ? slash + 1 : path;
    size_t n = strlen(base);
    if (!given && n > 5 && !strcmp(base + n - 5, ".gguf"))
        n -= 5;
    sbuf b = {0};
    sbuf_add_utf8(&b, base, n);
    sbuf_add(&b, "", 0);
    return b.p;
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
        int code = look(w), timeout = -1;
        if (code >= 0)
            return code;
        if (w->deadline) {
            uint64_t now = infer_engine_now(), next = now < w->grace ? w->grace : w->deadline;
            timeout = now >= next ? 0 : (int)((next - now) / 1000000) + 1;
        }
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

static unsigned n_workers(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 2 ? 2 : n > 8 ? 8 : (unsigned)n;
}

static void log_address(const opts *o, unsigned port)
{
    const char *host = opt_str(o, OPT_HOST);
    if (!port)
        cli_log(2, "serve", "listening on %s", host);
    else if (strchr(host, ':'))
        cli_log(2, "serve", "listening on http://[%s]:%u", host, port);
    else
        cli_log(2, "serve", "listening on http://%s:%u", host, port);
}

static int serve(server *s, loader *l, int signal_fd)
{
    infer_error err = {0};
    unsigned port;
    if (work_start(s, n_workers(), &err) < 0 || watch_start(s, gen_client_gone, &err) < 0)
        return cli_fail_err(&err);
    if (http_start(s, opt_str(s->o, OPT_HOST), (unsigned)opt_int(s->o, OPT_PORT), &port, &err) < 0)
        return cli_fail(err.status == INFER_E_IO ? EXIT_BIND : EXIT_OTHER, "%s", err.text);
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
    server s = {.o = &o, .wake_fd = -1};
    loader l = {.s = &s};
    infer_error err = {0};
    int signal_fd = -1, code = cli_start(&program, &o, argc, argv);
    metrics_init(&s.metrics);
    pthread_mutex_init(&s.ready_lock, NULL);
    cli_log_level++; /* a server tells what it does */
    if (code < 0)
        code = session_preflight(&o);
    if (code < 0 && auth_read(&s.auth, &o, &err) < 0)
        code = cli_fail_err(&err);
    if (code >= 0)
        goto done;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL); /* before any thread: all inherit it */
    signal(SIGPIPE, SIG_IGN);
    signal_fd = signalfd(-1, &set, SFD_CLOEXEC);
    s.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s.model = model_id(&o);
    s.strict_model = opt_set(&o, OPT_SERVED_MODEL_NAME);
    s.created = (int64_t)time(NULL);
    if (signal_fd < 0 || s.wake_fd < 0 || !s.model)
        code = cli_fail(EXIT_OTHER, "starting: %s", strerror(errno));
    else
        code = serve(&s, &l, signal_fd);
    if (l.started)
        pthread_join(l.thread, NULL);
    /* A connection that still waits for its reply cannot be taken from the HTTP library in good order. */
    if (atomic_load(&s.n_live)) {
        http_leave(&s);
        _exit(code);
    }
    /* Nothing new comes; then the threads that may still hold calls, then what they use. */
    http_stop(&s);
    if (s.pump)
        pump_cancel_all(&s);
    pump_stop(&s);
    work_stop(&s);
    watch_stop(&s);
    chat_destroy(&s.chat);
    session_close(&s.session);
done:
    if (signal_fd >= 0)
        close(signal_fd);
    if (s.wake_fd >= 0)
        close(s.wake_fd);
    auth_free(&s.auth);
    metrics_destroy(&s.metrics);
    pthread_mutex_destroy(&s.ready_lock);
    free(s.model);
    opts_free(&o);
    return code;
}
