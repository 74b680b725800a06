/*
 * Trace events as lines of text, and the thread that writes them out.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"
#include "sbuf.h"
#include "trace.h"

#define BUFFER  (256u << 10) /* twice: one fills while the other is written */
#define LINE    1024u
#define DEVICES 32u

enum { TID_ENGINE = 1, TID_ASYNC = 2, TID_SCHEDULE = 3, TID_DEVICES = 10 };

struct trace {
    int fd;
    uint64_t t0;
    _Atomic uint64_t n_calls;
    const char *devices[DEVICES]; /* the engine thread's */
    uint32_t n_devices;
    pthread_t thread;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t more;
    char *fill, *spare;
    size_t n;
    uint64_t dropped;
    int stop, broken;
};

/* ---- Lines ------------------------------------------------------------------------------------------------- */

typedef struct line {
    char p[LINE];
    size_t n;
} line;

static void put(line *l, const char *fmt, ...) INFER_PRINTF(2, 3);
static void put(line *l, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int k = vsnprintf(l->p + l->n, LINE - l->n, fmt, ap);
    va_end(ap);
    l->n = k < 0 || (size_t)k >= LINE - l->n ? LINE : l->n + (size_t)k; /* LINE: does not fit */
}

/* The inside of a JSON string, at most 200 bytes of s. */
static void put_text(line *l, const char *s)
{
    size_t left = strlen(s), k;
    for (left = left > 200 ? 200 : left; left; s += k, left -= k) {
        k = utf8_char(s, left);
        if (!k || (unsigned char)*s < 32 || *s == '"' || *s == '\\') {
            k = 1;
            put(l, "?");
        } else {
            put(l, "%.*s", (int)k, s);
        }
    }
}

/* The beginning of every event, up to its own members. */
static void begin(const trace *t, line *l, const char *name, const char *cat, const char *ph, uint32_t tid, uint64_t at)
{
    uint64_t ns = at > t->t0 ? at - t->t0 : 0;
    l->n = 0;
    put(l, "{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"%s\",\"pid\":1,\"tid\":%" PRIu32 ",\"ts\":%" PRIu64 ".%03" PRIu64,
        name, cat, ph, tid, ns / 1000, ns % 1000);
}

static void add(trace *t, const line *l)
{
    if (l->n >= LINE)
        return;
    pthread_mutex_lock(&t->lock);
    if (t->broken) {
        /* nowhere to go */
    } else if (t->n + l->n > BUFFER) {
        t->dropped++;
    } else {
        memcpy(t->fill + t->n, l->p, l->n);
        if (!t->n || (t->n < BUFFER / 2 && t->n + l->n >= BUFFER / 2))
            pthread_cond_signal(&t->more);
        t->n += l->n;
    }
    pthread_mutex_unlock(&t->lock);
}

static void end(trace *t, line *l)
{
    put(l, "},\n");
    add(t, l);
}

static void put_duration(line *l, uint64_t from, uint64_t to)
{
    uint64_t ns = to > from ? to - from : 0;
    put(l, ",\"dur\":%" PRIu64 ".%03" PRIu64, ns / 1000, ns % 1000);
}

static void name_thread(trace *t, uint32_t tid, const char *name)
{
    line l;
    begin(t, &l, "thread_name", "__metadata", "M", tid, 0);
    put(&l, ",\"args\":{\"name\":\"");
    put_text(&l, name);
    put(&l, "\"}");
    end(t, &l);
}

/* ---- Steps ------------------------------------------------------------------------------------------------- */

static uint32_t tid_of(trace *t, const char *device)
{
    uint32_t i = 0;
    while (i < t->n_devices && strcmp(t->devices[i], device))
        i++;
    if (i == t->n_devices && i < DEVICES) {
        t->devices[t->n_devices++] = device; /* the engine's, which outlives the trace */
        name_thread(t, TID_DEVICES + i, device);
    }
    return TID_DEVICES + i;
}

static void slice(trace *t, const char *name, const char *cat, uint32_t tid, uint64_t from, uint64_t to, uint64_t bytes)
{
    line l;
    begin(t, &l, name, cat, "X", tid, from);
    put_duration(&l, from, to);
    if (bytes)
        put(&l, ",\"args\":{\"bytes\":%" PRIu64 "}", bytes);
    end(t, &l);
}

static void copy_slices(trace *t, const infer_step_copy *c)
{
    line name;
    uint32_t src = tid_of(t, c->src), dst = tid_of(t, c->dst);
    name.n = 0;
    put(&name, "send to %.40s", c->dst);
    slice(t, name.p, "copy", src, c->t_send, c->t_sent, c->bytes);
    name.n = 0;
    put(&name, "wait for %.40s", c->src);
    slice(t, name.p, "copy", dst, c->t_wait, c->t_receive, 0);
    name.n = 0;
    put(&name, "receive from %.40s", c->src);
    slice(t, name.p, "copy", dst, c->t_receive, c->t_received, c->bytes);
}

void trace_step(trace *t, const infer_step_info *s)
{
    if (!t)
        return;
    line l;
    begin(t, &l, "step", "step", "X", TID_ENGINE, s->t_begin);
    put_duration(&l, s->t_begin, s->t_end);
    put(&l,
        ",\"args\":{\"number\":%" PRIu64
        ",\"sequences\":%u,\"tokens\":%u,\"sampled\":%u,\"block_copies\":%u,\"status\":%d}",
        s->number, s->n_seqs, s->n_tokens, s->n_sampled, s->n_block_copies, s->status);
    end(t, &l);
    /* while the step before runs, or ends: a row of its own, as slices of one nest */
    slice(t, "schedule", "step", TID_SCHEDULE, s->t_build, s->t_built, 0);
    begin(t, &l, "requests", "step", "C", TID_ENGINE, s->t_end);
    put(&l, ",\"args\":{\"running\":%u,\"waiting\":%u}", s->n_running, s->n_waiting);
    end(t, &l);
    if (s->status < 0) /* its parts' times are not all of this step */
        return;
    for (uint32_t i = 0; i < s->n_parts; i++)
        slice(t, s->parts[i].sample ? "sample" : "forward", "part", tid_of(t, s->parts[i].device), s->parts[i].t_begin,
              s->parts[i].t_end, 0);
    for (uint32_t i = 0; i < s->n_copies; i++)
        if (s->copies[i].bytes)
            copy_slices(t, &s->copies[i]);
}

/* ---- Requests and calls ------------------------------------------------------------------------------------ */

/* One phase of something asynchronous; without a beginning or an end it was not reached. */
static void phase(trace *t, const char *name, const char *cat, uint64_t id, uint64_t from, uint64_t to)
{
    line l;
    if (!from || to < from)
        return;
    begin(t, &l, name, cat, "b", TID_ASYNC, from);
    put(&l, ",\"id\":\"0x%" PRIx64 "\"", id);
    end(t, &l);
    begin(t, &l, name, cat, "e", TID_ASYNC, to);
    put(&l, ",\"id\":\"0x%" PRIx64 "\"", id);
    end(t, &l);
}

void trace_request(trace *t, const infer_event *e, const char *request_id, uint32_t index)
{
    static const char *const finish[] = {"", "stop", "length", "cancelled", "error"};
    if (!t || !e->t_submit)
        return;
    line l;
    uint64_t id = e->id ? e->id : atomic_fetch_add(&t->n_calls, 1) | UINT64_C(1) << 63;
    begin(t, &l, "request", "request", "b", TID_ASYNC, e->t_submit);
    put(&l, ",\"id\":\"0x%" PRIx64 "\",\"args\":{\"request_id\":\"", id);
    put_text(&l, request_id);
    put(&l,
        "\",\"choice\":%u,\"prompt\":%" PRIu64 ",\"cached\":%" PRIu64 ",\"generated\":%" PRIu64 ",\"finish\":\"%s\"}",
        index, e->n_prompt, e->n_cached, e->n_generated, finish[e->finish <= 4 ? e->finish : 0]);
    end(t, &l);
    uint64_t run = e->t_first_run ? e->t_first_run : e->t_end, token = e->t_first_token ? e->t_first_token : e->t_end;
    phase(t, "queue", "request", id, e->t_submit, run);
    if (e->t_first_run)
        phase(t, "prefill", "request", id, run, token);
    phase(t, "decode", "request", id, e->t_first_token, e->t_end);
    begin(t, &l, "request", "request", "e", TID_ASYNC, e->t_end);
    put(&l, ",\"id\":\"0x%" PRIx64 "\"", id);
    end(t, &l);
}

void trace_call(trace *t, const char *method, const char *path, const char *request_id, unsigned status, uint64_t start,
                uint64_t end_ns)
{
    if (!t)
        return;
    line l;
    uint64_t id = atomic_fetch_add(&t->n_calls, 1);
    begin(t, &l, "call", "http", "b", TID_ASYNC, start);
    put(&l, ",\"id\":\"0x%" PRIx64 "\",\"args\":{\"request_id\":\"", id);
    put_text(&l, request_id);
    put(&l, "\",\"method\":\"");
    put_text(&l, method);
    put(&l, "\",\"path\":\"");
    put_text(&l, path);
    put(&l, "\",\"status\":%u}", status);
    end(t, &l);
    begin(t, &l, "call", "http", "e", TID_ASYNC, end_ns);
    put(&l, ",\"id\":\"0x%" PRIx64 "\"", id);
    end(t, &l);
}

/* ---- Writing ----------------------------------------------------------------------------------------------- */

static int write_all(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t k = write(fd, p, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return -1;
        p += k;
        n -= (size_t)k;
    }
    return 0;
}

/* Hands the full buffer out: its size, 0 when there is nothing and the end is near. Waits a little for more. */
static size_t take(trace *t, char **p, uint64_t *dropped)
{
    pthread_mutex_lock(&t->lock);
    while (!t->n && !t->stop)
        pthread_cond_wait(&t->more, &t->lock);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 100000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    while (t->n < BUFFER / 2 && !t->stop && pthread_cond_timedwait(&t->more, &t->lock, &until) != ETIMEDOUT)
        ;
    size_t n = t->n;
    *p = t->fill;
    t->fill = t->spare;
    t->spare = *p;
    t->n = 0;
    *dropped = t->dropped;
    t->dropped = 0;
    pthread_mutex_unlock(&t->lock);
    return n;
}

static void *run(void *arg)
{
    trace *t = arg;
    char *p;
    size_t n;
    uint64_t dropped;
    while ((n = take(t, &p, &dropped))) {
        line l;
        l.n = 0;
        if (dropped) {
            begin(t, &l, "events dropped", "trace", "i", TID_ENGINE, infer_engine_now());
            put(&l, ",\"s\":\"g\",\"args\":{\"count\":%" PRIu64 "}},\n", dropped);
        }
        if (write_all(t->fd, p, n) < 0 || write_all(t->fd, l.p, l.n) < 0) {
            cli_log(1, "trace", "writing the trace: %s; it ends here", strerror(errno));
            pthread_mutex_lock(&t->lock);
            t->broken = 1;
            t->n = 0;
            pthread_mutex_unlock(&t->lock);
            break;
        }
    }
    return NULL;
}

infer_status trace_open(const char *path, trace **out, infer_error *err)
{
    *out = NULL;
    if (!path)
        return INFER_OK;
    trace *t = calloc(1, sizeof *t);
    if (!t || !(t->fill = malloc(BUFFER)) || !(t->spare = malloc(BUFFER))) {
        if (t)
            free(t->fill);
        free(t);
        return infer_error_set(err, INFER_E_NO_MEMORY, "--trace: out of memory");
    }
    static const char head[] =
        "[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,\"args\":{\"name\":\"infer-serve\"}},\n";
    int cause = 0;
    t->t0 = infer_engine_now();
    t->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (t->fd < 0 || write_all(t->fd, head, sizeof head - 1) < 0)
        cause = errno;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->more, NULL);
    if (!cause)
        cause = pthread_create(&t->thread, NULL, run, t);
    if (cause) {
        if (t->fd >= 0)
            close(t->fd);
        pthread_cond_destroy(&t->more);
        pthread_mutex_destroy(&t->lock);
        free(t->fill);
        free(t->spare);
        free(t);
        return infer_error_set(err, INFER_E_IO, "--trace %s: %s", path, strerror(cause));
    }
    name_thread(t, TID_ENGINE, "engine");
    name_thread(t, TID_SCHEDULE, "scheduler");
    name_thread(t, TID_ASYNC, "requests");
    *out = t;
    return INFER_OK;
}

void trace_finish(trace *t)
{
    if (!t || t->stop)
        return;
    pthread_mutex_lock(&t->lock);
    t->stop = 1;
    pthread_cond_signal(&t->more);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->thread, NULL);
    pthread_mutex_lock(&t->lock);
    int broken = t->broken;
    t->broken = 1;
    pthread_mutex_unlock(&t->lock);
    line l;
    begin(t, &l, "end", "trace", "i", TID_ENGINE, infer_engine_now());
    put(&l, ",\"s\":\"g\"}\n]\n");
    if (!broken && write_all(t->fd, l.p, l.n) < 0)
        cli_log(1, "trace", "writing the trace: %s", strerror(errno));
}

void trace_close(trace *t)
{
    if (!t)
        return;
    trace_finish(t);
    close(t->fd);
    pthread_cond_destroy(&t->more);
    pthread_mutex_destroy(&t->lock);
    free(t->fill);
    free(t->spare);
    free(t);
}
