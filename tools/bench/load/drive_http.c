/*
 * Drives a server: bodies of requests, one exchange each. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "answer.h"
#include "cli.h"
#include "client.h"
#include "load.h"

#define SECOND UINT64_C(1000000000)

typedef struct http_drive {
    load_run *run;
    client *client;
    const client_url *url;
    char *model;           /* or NULL */
    const char *api_key;   /* or NULL */
    load_answer *answers;  /* of the requests */
    load_answer alone;     /* of an exchange outside the list */
    unsigned alone_status; /* and what came of it */
    int alone_over;
} http_drive;

/* ---- Requests ---------------------------------------------------------------------------------------------- */

static void put_head(const http_drive *d, const char *method, const char *path, size_t body, sbuf *to)
{
    sbuf_printf(to, "%s %s%s HTTP/1.1\r\nHost: %s\r\nUser-Agent: infer-bench/" INFER_VERSION_STRING "\r\n", method,
                *d->url->path ? d->url->path : "/v1", path, d->url->authority);
    if (d->api_key)
        sbuf_printf(to, "Authorization: Bearer %s\r\n", d->api_key);
    if (*method == 'P')
        sbuf_printf(to, "Accept: text/event-stream\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n", body);
    sbuf_puts(to, "\r\n");
}

/* The whole request for a dialog's next answer; 0 without memory. */
static int make_request(const http_drive *d, const load_dialog *dialog, uint32_t n_out, sbuf *to)
{
    const load_run *run = d->run;
    sbuf body = {0};
    json_t *o = json_object();
    int ok = o != NULL;
    if (d->model)
        ok &= !json_object_set_new(o, "model", json_string(d->model));
    if (run->chat)
        ok &= !json_object_set(o, "messages", dialog->messages);
    else
        ok &= !json_object_set_new(o, "prompt", json_stringn(dialog->text.p, dialog->text.n));
    ok &= !json_object_set_new(o, "max_tokens", json_integer(n_out));
    ok &= !json_object_set_new(o, "temperature", json_real(run->temperature));
    ok &= !json_object_set_new(o, "stream", json_true());
    if (run->sent_usage)
        ok &= !json_object_set_new(o, "stream_options", json_pack("{s:b}", "include_usage", 1));
    if (run->sent_ignore_eos) {
        ok &= !json_object_set_new(o, "ignore_eos", json_true());
        ok &= !json_object_set_new(o, "min_tokens", json_integer(n_out));
    }
    ok = ok && json_dump_callback(o, sbuf_json, &body, JSON_COMPACT | JSON_REAL_PRECISION(9)) == 0 && !body.failed;
    json_decref(o);
    to->n = 0;
    if (ok) {
        put_head(d, "POST", run->chat ? "/chat/completions" : "/completions", body.n, to);
        sbuf_add(to, body.p, body.n);
    }
    sbuf_free(&body);
    return ok && !to->failed;
}

/* ---- Answers ----------------------------------------------------------------------------------------------- */

static void on_body(void *user, const http_answer *in, const char *p, size_t n, uint64_t now)
{
    load_answer_body(user, in->status, in->event_stream, p, n, now);
}

static const char *kind_of(enum client_end how)
{
    static const char *const kinds[] = {"", "connect", LOAD_KIND_CUT, "protocol", "timeout"};
    return kinds[how];
}

static void on_end(void *user, const http_answer *in, enum client_end how, const char *why, uint64_t now)
{
    load_answer *a = user;
    http_drive *d = a->owner;
    if (a->record)
        load_answer_end(a, in->status, in->event_stream, kind_of(how), why, now);
    if (a == &d->alone) {
        d->alone_status = how == CLIENT_DONE || a->done ? in->status : 0;
        d->alone_over = 1;
        return;
    }
    load_run_ended(d->run, (uint32_t)(a - d->answers), a->text.p, a->text.n);
    load_answer_free(a);
}

/* ---- Before the list --------------------------------------------------------------------------------------- */

/* One exchange outside the list; its status, 0 where none came, with d->alone and its record filled. */
static infer_status exchange(http_drive *d, const sbuf *request, load_record *record, infer_error *err)
{
    load_answer_free(&d->alone);
    d->alone = (load_answer){.record = record, .owner = d};
    d->alone_over = 0;
    if (client_send(d->client, request->p, request->n, &d->alone) < 0)
        return infer_error_set(err, INFER_E_NO_MEMORY, "asking the server: out of memory");
    while (!d->alone_over)
        if (client_poll(d->client, UINT64_MAX) < 0)
            return infer_error_set(err, INFER_E_IO, "asking the server: %s", strerror(errno));
    return INFER_OK;
}

/* The first model that the server lists, if it does. */
static infer_status ask_model(http_drive *d, infer_error *err)
{
    sbuf request = {0};
    put_head(d, "GET", "/models", 0, &request);
    infer_status st = request.failed ? infer_error_set(err, INFER_E_NO_MEMORY, "asking the server: out of memory")
                                     : exchange(d, &request, NULL, err);
    sbuf_free(&request);
    if (st < 0 || d->alone_status != 200)
        return st;
    json_t *o = json_loadb(d->alone.body.p ? d->alone.body.p : "", d->alone.body.n, 0, NULL);
    const char *id = json_string_value(json_object_get(json_array_get(json_object_get(o, "data"), 0), "id"));
    d->model = id ? strdup(id) : NULL;
    json_decref(o);
    return INFER_OK;
}

/* A request that is not counted. What the server refuses is left out, last what makes counts true. */
static infer_status warm_up(http_drive *d, infer_error *err)
{
    enum { N_OUT = 4, N_WAYS = 3 };
    load_run *run = d->run;
    load_record *rec = &run->warmup;
    load_dialog dialog = {0};
    sbuf request = {0};
    infer_status st = INFER_OK;
    int went_well = 0;
    if (!load_dialog_say(&dialog, run->chat, "user", "Hello", 5))
        st = infer_error_set(err, INFER_E_NO_MEMORY, "asking the server: out of memory");
    for (int way = 0; way < N_WAYS && st >= 0 && !went_well; way++) {
        if (way == 1 && !run->ignore_eos)
            continue;
        run->sent_ignore_eos = run->ignore_eos && way == 0;
        run->sent_usage = way < 2;
        free(rec->gaps);
        *rec = (load_record){.t_sent = infer_engine_now()};
        if (!make_request(d, &dialog, N_OUT, &request))
            st = infer_error_set(err, INFER_E_NO_MEMORY, "asking the server: out of memory");
        else
            st = exchange(d, &request, rec, err);
        went_well = !*rec->kind || !strcmp(rec->kind, "empty");
        if (d->alone_status != 400 && d->alone_status != 422)
            break;
    }
    if (st >= 0 && !went_well)
        st = infer_error_set(err, d->alone_status ? INFER_E_UNSUPPORTED : INFER_E_IO,
                             "%s: the first request failed: %s: %s", d->url->authority, rec->kind, rec->why);
    if (st >= 0 && run->ignore_eos && !run->sent_ignore_eos)
        cli_log(1, "bench", "the server refuses ignore_eos and min_tokens: answers may be shorter than asked for");
    if (st >= 0 && !run->sent_usage)
        cli_log(1, "bench", "the server refuses stream_options: pieces of the stream are counted as tokens");
    load_dialog_clear(&dialog);
    sbuf_free(&request);
    return st;
}

/* ---- The list ---------------------------------------------------------------------------------------------- */

/* Sends request i; its record fails where that cannot be. */
static void start(http_drive *d, uint32_t i, sbuf *request)
{
    load_run *run = d->run;
    const load_request *r = &run->list->r[i];
    load_record *rec = &run->records[i];
    load_answer *a = &d->answers[i];
    const int last = i + 1 == run->list->n || !run->list->r[i + 1].turn;
    *a = (load_answer){.record = rec, .owner = d, .keep_text = !last};
    int ok = !*rec->kind && make_request(d, &run->dialogs[r->conversation], r->n_out, request);
    rec->t_sent = infer_engine_now();
    if (ok && client_send(d->client, request->p, request->n, a) == 0)
        return;
    load_record_fail(rec, "client", "out of memory");
    load_record_end(rec, rec->t_sent);
    load_run_ended(run, i, NULL, 0);
}

static infer_status run_list(http_drive *d, infer_error *err)
{
    load_run *run = d->run;
    sbuf request = {0};
    cli_progress progress;
    infer_status st = INFER_OK;
    cli_progress_begin(&progress, "requests", 0);
    load_run_start(run);
    while (st >= 0 && !load_pacer_done(run->pacer)) {
        uint64_t wait;
        int64_t i;
        while ((i = load_run_next(run, &wait)) >= 0)
            start(d, (uint32_t)i, &request);
        if (!load_pacer_done(run->pacer) && client_poll(d->client, wait) < 0)
            st = infer_error_set(err, INFER_E_IO, "waiting for the server: %s", strerror(errno));
        cli_progress_update(&progress, run->n_ended, run->list->n);
    }
    load_run_stop(run);
    cli_progress_end(&progress);
    run->n_reconnects = client_n_reconnects(d->client);
    sbuf_free(&request);
    return st;
}

static infer_status check_key(const char *key, infer_error *err)
{
    for (const char *p = key; p && *p; p++)
        if ((unsigned char)*p < ' ' || *p == 127)
            return infer_error_set(err, INFER_E_INVALID, "the API key holds a control character");
    return INFER_OK;
}

infer_status load_drive_http(load_run *run, const load_target *t, infer_error *err)
{
    const client_calls calls = {on_body, on_end};
    client_url url;
    http_drive d = {.run = run, .url = &url, .api_key = t->api_key};
    infer_status st = client_url_parse(t->url, &url, err);
    if (st >= 0)
        st = check_key(t->api_key, err);
    if (st >= 0)
        st = client_create(&url, t->timeout_s, &calls, &d.client, err);
    if (st >= 0 && !(d.answers = calloc(run->list->n, sizeof *d.answers)))
        st = infer_error_set(err, INFER_E_NO_MEMORY, "%u requests: out of memory", run->list->n);
    if (st >= 0 && t->model && !(d.model = strdup(t->model)))
        st = infer_error_set(err, INFER_E_NO_MEMORY, "starting the client: out of memory");
    else if (st >= 0 && !t->model)
        st = ask_model(&d, err);
    if (st >= 0)
        st = warm_up(&d, err);
    if (st >= 0)
        st = run_list(&d, err);
    client_destroy(d.client);
    for (uint32_t i = 0; d.answers && i < run->list->n; i++)
        load_answer_free(&d.answers[i]);
    load_answer_free(&d.alone);
    free(d.answers);
    free(d.model);
    return st;
}
