/*
 * Start and end of the server's parts.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <sys/eventfd.h>

#include "gen.h"
#include "http.h"
#include "watch.h"
#include "work.h"

void server_wake(server *s)
{
    uint64_t one = 1;
    while (write(s->wake_fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
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

infer_status server_init(server *s, const opts *o, int *code, infer_error *err)
{
    *s = (server){.o = o, .wake_fd = -1};
    metrics_init(&s->metrics);
    infer_status st = auth_read(&s->auth, o, err);
    if (st < 0) {
        *code = cli_exit_code(st);
        return st;
    }
    if ((st = trace_open(opt_str(o, OPT_TRACE), &s->trace, err)) < 0) {
        *code = EXIT_OTHER;
        return st;
    }
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->model = model_id(o);
    s->strict_model = opt_set(o, OPT_SERVED_MODEL_NAME);
    s->created = (int64_t)time(NULL);
    if (s->wake_fd >= 0 && s->model)
        return INFER_OK;
    *code = EXIT_OTHER;
    return infer_error_set(err, INFER_E_NO_MEMORY, "starting: %s", strerror(errno));
}

static unsigned n_workers(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 2 ? 2 : n > 8 ? 8 : (unsigned)n;
}

infer_status server_listen(server *s, unsigned *port, int *code, infer_error *err)
{
    infer_status st = work_start(s, n_workers(), err);
    if (st >= 0)
        st = watch_start(s, gen_client_gone, err);
    *code = cli_exit_code(st);
    if (st < 0)
        return st;
    st = http_start(s, opt_str(s->o, OPT_HOST), (unsigned)opt_int(s->o, OPT_PORT), port, err);
    *code = st == INFER_E_IO ? EXIT_BIND : cli_exit_code(st);
    return st;
}

static void on_step(void *user, const infer_step_info *step)
{
    server *s = user;
    metrics_step(&s->metrics, step);
    trace_step(s->trace, step);
}

infer_status server_load(server *s, int *code, infer_error *err)
{
    infer_status st = session_open(&s->session, s->o, &(session_wish){.on_step = on_step, .step_user = s},
                                   SESSION_ENGINE, NULL, code, err);
    if (st < 0)
        return st;
    s->metrics.max_len = infer_engine_ctx_size(s->session.engine);
    s->adds_bos = chat_adds_bos(s->session.tokenizer);
    if ((st = chat_create(&s->chat, s->o, s->session.file, s->session.tokenizer, err)) < 0)
        *code = cli_exit_code(st);
    else if ((st = pump_start(s, err)) < 0)
        *code = EXIT_OTHER;
    if (st < 0)
        return st;
    int loading = SERVER_LOADING;
    atomic_compare_exchange_strong(&s->state, &loading, SERVER_READY);
    if (!s->chat.tmpl)
        cli_log(1, "serve", "the model has no chat template: chat requests will be refused");
    cli_log(2, "serve", "ready: model=%s context=%u load=%.0f ms", s->model, infer_engine_ctx_size(s->session.engine),
            (double)s->session.load_ns / 1e6);
    return INFER_OK;
}

void server_close(server *s)
{
    /* Nothing new comes; then the threads that may still hold calls, then what they use. */
    http_stop(s);
    if (s->pump)
        pump_cancel_all(s);
    pump_stop(s);
    work_stop(s);
    watch_stop(s);
    chat_destroy(&s->chat);
    session_close(&s->session);
    trace_close(s->trace);
    if (s->wake_fd >= 0)
        close(s->wake_fd);
    auth_free(&s->auth);
    metrics_destroy(&s->metrics);
    free(s->model);
}
