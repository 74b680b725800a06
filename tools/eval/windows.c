/*
 * Windows of text through an engine.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "chat.h"
#include "eval.h"

infer_status windows_from_text(windows *w, const infer_tokenizer *tok, const char *text, size_t n, uint32_t n_ctx,
                               int64_t max_windows, infer_error *err)
{
    int32_t *ids = NULL;
    size_t n_ids = 0;
    memset(w, 0, sizeof *w);
    infer_status st = infer_tokenizer_encode(tok, text, n, INFER_ENCODE_ADD_SPECIAL, &ids, &n_ids, err);
    if (st < 0)
        return st;
    uint64_t count = n_ids / n_ctx;
    if (max_windows >= 0 && (uint64_t)max_windows < count)
        count = (uint64_t)max_windows;
    if (!count || count > UINT32_MAX) {
        st = infer_error_set(err, INFER_E_INVALID, "the text has %zu tokens: too %s for windows of %u", n_ids,
                             count ? "many" : "few", n_ctx);
        goto done;
    }
    w->n_ctx = n_ctx;
    w->n = (uint32_t)count;
    w->first = n_ctx / 2;
    w->n_counted = n_ctx - w->first - 1;
    if (!(w->ids = malloc(count * n_ctx * sizeof *w->ids))) {
        st = infer_error_set(err, INFER_E_NO_MEMORY, "keeping %zu tokens: out of memory", n_ids);
        goto done;
    }
    memcpy(w->ids, ids, count * n_ctx * sizeof *w->ids);
    if (chat_adds_bos(tok))
        for (uint64_t i = 0; i < count; i++)
            w->ids[i * n_ctx] = infer_tokenizer_bos(tok);
done:
    infer_ids_free(ids);
    return st;
}

void windows_free(windows *w)
{
    free(w->ids);
    memset(w, 0, sizeof *w);
}

typedef struct running {
    const windows *w;
    const int32_t *ids;
    uint32_t next; /* the counted position that is due; an earlier one comes again after a preemption */
    window_fn fn;
    void *user;
    infer_status st;
    infer_error err;
} running;

static void on_logits(void *user, uint64_t pos, const float *logits, uint32_t n_vocab)
{
    running *r = user;
    if (r->st < 0 || pos != r->w->first + r->next || r->next == r->w->n_counted)
        return;
    r->st = r->fn(r->user, r->next, logits, n_vocab, r->ids[pos + 1], &r->err);
    r->next++;
}

infer_status windows_run(const session *s, const windows *w, uint32_t window, window_fn fn, void *user,
                         infer_error *err)
{
    running r = {.w = w, .ids = w->ids + (size_t)window * w->n_ctx, .fn = fn, .user = user};
    infer_request req = {.struct_size = sizeof req, .flags = INFER_REQ_PROMPT_ROWS};
    req.prompt = r.ids;
    req.n_prompt = w->n_ctx;
    req.on_row = on_logits;
    req.row_user = &r;
    uint64_t id;
    infer_status st = infer_engine_submit(s->engine, &req, &id, err);
    for (int done = 0; st >= 0 && !done;) {
        const infer_event *events;
        uint32_t n;
        if ((st = infer_engine_poll(s->engine, -1, &events, &n)) < 0)
            return infer_error_set(err, st, "evaluating: the engine failed: %s", infer_status_name(st));
        for (uint32_t i = 0; i < n; i++) {
            const infer_event *e = &events[i];
            if (e->id != id || e->type != INFER_EVENT_DONE)
                continue;
            done = 1;
            if (e->finish == INFER_FINISH_ERROR)
                st = infer_error_set(err, e->status < 0 ? e->status : INFER_E_INTERNAL, "evaluating: %s",
                                     e->error && *e->error ? e->error : infer_status_name(e->status));
        }
    }
    if (st >= 0 && r.st < 0) {
        st = r.st;
        if (err)
            *err = r.err;
    }
    if (st >= 0 && r.next != w->n_counted)
        st = infer_error_set(err, INFER_E_INTERNAL, "evaluating: logits of %u positions came instead of %u", r.next,
                             w->n_counted);
    return st;
}
