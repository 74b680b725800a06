/*
 * Drives an engine of this process through its C API: the same prompts, encoded as infer-serve encodes them, when a
 * request's turn comes. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "chat.h"
#include "cli.h"
#include "load.h"

typedef struct engine_drive {
    load_run *run;
    infer_engine *engine;
    const infer_tokenizer *tok;
    const chat_format *chat;
    sbuf *texts;   /* answers so far, of conversations that go on */
    int warm_over; /* the request outside the list has ended */
} engine_drive;

/* What becomes of a request: its record, and its index or -1 outside the list. */
static load_record *record_of(engine_drive *d, const infer_event *e, int64_t *index)
{
    *index = (int64_t)(intptr_t)e->user - 1;
    return *index < 0 ? &d->run->warmup : &d->run->records[*index];
}

static infer_status encode(const engine_drive *d, const load_dialog *dialog, int32_t **ids, size_t *n, infer_error *err)
{
    if (!d->run->chat)
        return chat_encode(d->tok, dialog->text.p, dialog->text.n, 1, 0, ids, n, err);
    char *text;
    size_t n_text;
    infer_status st = chat_render(d->chat, dialog->messages, NULL, 1, NULL, &text, &n_text, err);
    if (st < 0)
        return st;
    st = chat_encode(d->tok, text, n_text, 1, 1, ids, n, err);
    infer_text_free(text);
    return st;
}

static infer_status submit(const engine_drive *d, const load_dialog *dialog, uint32_t n_out, int64_t index,
                           infer_error *err)
{
    int32_t *ids = NULL;
    size_t n = 0;
    uint64_t id;
    infer_status st = encode(d, dialog, &ids, &n, err);
    if (st < 0)
        return st;
    infer_request r = {.struct_size = sizeof r, .user = (void *)(intptr_t)(index + 1), .prompt = ids, .n_prompt = n};
    r.flags = d->run->ignore_eos ? INFER_REQ_IGNORE_EOS : 0;
    r.max_tokens = n_out;
    r.min_tokens = d->run->ignore_eos ? n_out : 0;
    r.sampling.temperature = (float)d->run->temperature;
    st = infer_engine_submit(d->engine, &r, &id, err);
    infer_ids_free(ids);
    return st;
}

static void take_done(load_record *r, const infer_event *e, uint64_t now)
{
    r->n_prompt = e->n_prompt;
    r->n_cached = e->n_cached;
    r->n_out = e->n_generated;
    r->counted = LOAD_BY_ENGINE;
    if (e->finish == INFER_FINISH_STOP || e->finish == INFER_FINISH_LENGTH)
        snprintf(r->finish, sizeof r->finish, e->finish == INFER_FINISH_STOP ? "stop" : "length");
    else
        load_record_fail(r, e->finish == INFER_FINISH_CANCELLED ? "cancelled" : infer_status_name(e->status), "%s",
                         e->error && *e->error ? e->error : infer_status_name(e->status));
    load_record_end(r, now);
}

static void take(engine_drive *d, const infer_event *e, uint64_t now)
{
    int64_t i;
    load_record *r = record_of(d, e, &i);
    if (e->type == INFER_EVENT_TOKEN)
        load_record_piece(r, now);
    sbuf *text = i >= 0 ? &d->texts[i] : NULL;
    if (text && e->n_text && (uint32_t)i + 1 < d->run->list->n && d->run->list->r[i + 1].turn)
        sbuf_add(text, e->text, e->n_text);
    if (e->type != INFER_EVENT_DONE)
        return;
    take_done(r, e, now);
    if (i < 0) {
        d->warm_over = 1;
        return;
    }
    if (text->failed)
        load_record_fail(r, "client", "out of memory");
    load_run_ended(d->run, (uint32_t)i, text->p, text->n);
    sbuf_free(text);
}

static infer_status poll_once(engine_drive *d, uint64_t wait, infer_error *err)
{
    const uint64_t most = 500, ms = wait / 1000000 + (wait % 1000000 != 0);
    const infer_event *events;
    uint32_t n = 0;
    infer_status st = infer_engine_poll(d->engine, (int32_t)(ms > most ? most : ms), &events, &n);
    const uint64_t now = infer_engine_now();
    if (st < 0)
        return infer_error_set(err, st, "the engine failed: %s", infer_status_name(st));
    for (uint32_t i = 0; i < n; i++)
        take(d, &events[i], now);
    return INFER_OK;
}

static infer_status warm_up(engine_drive *d, infer_error *err)
{
    enum { N_OUT = 4 };
    load_dialog dialog = {0};
    infer_status st = INFER_OK;
    d->run->warmup.t_sent = infer_engine_now();
    if (!load_dialog_say(&dialog, d->run->chat, "user", "Hello", 5))
        st = infer_error_set(err, INFER_E_NO_MEMORY, "starting: out of memory");
    if (st >= 0)
        st = submit(d, &dialog, N_OUT, -1, err);
    load_dialog_clear(&dialog);
    while (st >= 0 && !d->warm_over)
        st = poll_once(d, UINT64_MAX, err);
    return st;
}

static void start(engine_drive *d, uint32_t i)
{
    load_run *run = d->run;
    load_record *rec = &run->records[i];
    infer_error err = {0};
    rec->t_sent = infer_engine_now();
    if (!*rec->kind) {
        const load_request *r = &run->list->r[i];
        infer_status st = submit(d, &run->dialogs[r->conversation], r->n_out, i, &err);
        if (st >= 0)
            return;
        load_record_fail(rec, infer_status_name(st), "%s", err.text);
    }
    load_record_end(rec, infer_engine_now());
    load_run_ended(run, i, NULL, 0);
}

infer_status load_drive_engine(load_run *run, infer_engine *engine, const infer_tokenizer *tok,
                               const struct chat_format *chat, infer_error *err)
{
    engine_drive d = {.run = run, .engine = engine, .tok = tok, .chat = chat};
    cli_progress progress;
    if (!(d.texts = calloc(run->list->n, sizeof *d.texts)))
        return infer_error_set(err, INFER_E_NO_MEMORY, "%u requests: out of memory", run->list->n);
    run->sent_ignore_eos = run->ignore_eos;
    infer_status st = warm_up(&d, err);
    if (st >= 0) {
        cli_progress_begin(&progress, "requests", 0);
        load_run_start(run);
        while (st >= 0 && !load_pacer_done(run->pacer)) {
            uint64_t wait;
            int64_t i;
            while ((i = load_run_next(run, &wait)) >= 0)
                start(&d, (uint32_t)i);
            if (!load_pacer_done(run->pacer))
                st = poll_once(&d, wait, err);
            cli_progress_update(&progress, run->n_ended, run->list->n);
        }
        load_run_stop(run);
        cli_progress_end(&progress);
    }
    for (uint32_t i = 0; i < run->list->n; i++)
        sbuf_free(&d.texts[i]);
    free(d.texts);
    return st;
}
