/*
 * A run, whoever drives it: conversations grow by their answers, records and pacer are kept in step.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "load.h"

infer_status load_run_create(load_run *run, const load_list *l, uint32_t concurrency, infer_error *err)
{
    run->list = l;
    run->pacer = load_pacer_create(l, concurrency);
    run->records = calloc(l->n, sizeof *run->records);
    run->dialogs = calloc(l->n_conversations, sizeof *run->dialogs);
    if (run->pacer && run->records && run->dialogs)
        return INFER_OK;
    load_run_destroy(run);
    return infer_error_set(err, INFER_E_NO_MEMORY, "%u requests: out of memory", l->n);
}

void load_run_destroy(load_run *run)
{
    for (uint32_t i = 0; run->dialogs && i < run->list->n_conversations; i++)
        load_dialog_clear(&run->dialogs[i]);
    free(run->dialogs);
    load_pacer_destroy(run->pacer);
    load_records_free(run->records, run->list ? run->list->n : 0);
    free(run->warmup.gaps);
    *run = (load_run){0};
}

static uint64_t cpu_now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

void load_run_start(load_run *run)
{
    run->cpu_ns = cpu_now();
    run->t_start = infer_engine_now();
}

void load_run_stop(load_run *run)
{
    run->t_end = infer_engine_now();
    run->cpu_ns = cpu_now() - run->cpu_ns;
}

int load_dialog_say(load_dialog *d, int chat, const char *role, const char *text, size_t n)
{
    if (chat) {
        if (!d->messages && !(d->messages = json_array()))
            return 0;
        return json_array_append_new(d->messages,
                                     json_pack("{s:s, s:o}", "role", role, "content", utf8_json_n(text, n))) == 0;
    }
    if (d->text.n && !strcmp(role, "user"))
        sbuf_add(&d->text, "\n", 1);
    sbuf_add_utf8(&d->text, text, n);
    return !d->text.failed;
}

void load_dialog_clear(load_dialog *d)
{
    json_decref(d->messages);
    sbuf_free(&d->text);
    *d = (load_dialog){0};
}

int64_t load_run_next(load_run *run, uint64_t *wait)
{
    uint64_t due;
    int64_t i = load_pacer_next(run->pacer, infer_engine_now() - run->t_start, &due, wait);
    if (i < 0)
        return i;
    const load_request *r = &run->list->r[i];
    load_record *rec = &run->records[i];
    rec->t_due = run->t_start + due;
    if (!load_dialog_say(&run->dialogs[r->conversation], run->chat, "user", r->text, strlen(r->text)))
        load_record_fail(rec, "client", "out of memory");
    return i;
}

void load_run_ended(load_run *run, uint32_t index, const char *text, size_t n)
{
    const load_request *r = &run->list->r[index];
    load_record *rec = &run->records[index];
    load_dialog *d = &run->dialogs[r->conversation];
    const int last = index + 1 == run->list->n || !run->list->r[index + 1].turn;
    if (!*rec->kind && !last && !load_dialog_say(d, run->chat, "assistant", text ? text : "", n))
        load_record_fail(rec, "client", "out of memory");
    uint32_t given_up = load_pacer_ended(run->pacer, index, !*rec->kind, rec->t_end - run->t_start);
    for (uint32_t i = 1; i <= given_up; i++)
        load_record_fail(&run->records[index + i], "not sent", "an earlier turn of its conversation failed");
    if (last || given_up)
        load_dialog_clear(d);
    run->n_ended += 1 + given_up;
}
