/*
 * An opened device: opening, closing, its failures, and the questions it answers. Failures of queue radius or more are
 * sticky: every later call fails fast with the same status and the first text. What the device may still be running
 * then is ended by destroying its queue, before any memory that it could touch is freed. SPDX-License-Identifier:
 * Apache-2.0
 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "hal/internal.h"

/* ---- Failures ----------------------------------------------------------------------------------------------- */

static void mark_device(infer_hal_dev *d, infer_status s, const char *text)
{
    pthread_mutex_lock(&d->obj_mu);
    if (!atomic_load(&d->lost)) {
        snprintf(d->lost_text, sizeof d->lost_text, "%s", text);
        atomic_store_explicit(&d->lost, s, memory_order_release);
        hal_tl_fail_all(d, s);
    }
    pthread_mutex_unlock(&d->obj_mu);
}

static void mark_lost(infer_hal_dev *d, infer_status s)
{
    const char *text = hal_detail_get(d->b, s, 0);
    if (hal_lost(d))
        return;
    if (!*text)
        text = infer_status_name(s);
    infer_log_write(&d->hal->log, INFER_LOG_ERROR, "hal", "%s is lost%s: %s", d->row->id,
                    infer_status_radius(s) == 3 ? " until it is opened anew" : "", text);
    mark_device(d, s, text);
    if (infer_status_radius(s) < 5)
        return;
    pthread_mutex_lock(&d->hal->open_mu);
    for (infer_hal_dev *o = d->hal->open; o; o = o->next)
        if (o->b == d->b)
            mark_device(o, s, text);
    atomic_store(&d->b->lost, s); /* devices opened later */
    pthread_mutex_unlock(&d->hal->open_mu);
}

infer_status hal_note(infer_hal_dev *d, infer_status s)
{
    if (infer_status_radius(s) >= 3) /* an opened device has one queue */
        mark_lost(d, s);
    return s;
}

infer_status infer_hal_fail(infer_hal_dev *d, infer_status s, infer_error *err, const char *what)
{
    hal_note(d, s);
    const char *text = hal_detail_get(d->b, s, 1);
    infer_status lost = hal_lost(d);
    if (lost && lost == s)
        return infer_error_set(err, s, "%s on %s: the device was lost: %s", what, d->row->id,
                               atomic_load(&d->lost) ? d->lost_text : "with its backend");
    return infer_error_set(err, s, "%s on %s: %s", what, d->row->id, *text ? text : infer_status_name(s));
}

/* ---- Opening ------------------------------------------------------------------------------------------------ */

static void unlink_dev(infer_hal_dev *d)
{
    pthread_mutex_lock(&d->hal->open_mu);
    for (infer_hal_dev **p = &d->hal->open; *p; p = &(*p)->next)
        if (*p == d) {
            *p = d->next;
            break;
        }
    pthread_mutex_unlock(&d->hal->open_mu);
}

struct drain_job {
    infer_hal_job job;
    infer_hal_dev *d;
};

static void run_drain(infer_hal_job *job)
{
    struct drain_job *j = (struct drain_job *)(void *)job;
    (void)infer_hal_drain(j->d);
}

/* Undoes any prefix of create. hal->mu is held. */
static void destroy(infer_hal_dev *d)
{
    struct drain_job j = {.job.run = run_drain, .d = d};
    if (d->started && !hal_lost(d))
        infer_hal_run(d, &j.job);
    hal_submit_stop(d);
    if (d->queue)
        d->ops->queue_destroy(d->h, d->queue);
    hal_queue_close(d); /* after the queue, which may still have used it */
    unlink_dev(d);
    if (d->h)
        d->ops->dev_close(d->h);
    infer_free(d->spans);
    pthread_cond_destroy(&d->ran);
    pthread_cond_destroy(&d->posted);
    pthread_mutex_destroy(&d->mu);
    pthread_mutex_destroy(&d->obj_mu);
    pthread_mutex_destroy(&d->setup_mu);
    infer_free(d);
}

static infer_status ask(infer_hal_dev *d, infer_error *err)
{
    infer_status s;
    d->props = (infer_device_props){.struct_size = sizeof d->props};
    if ((s = hal_note(d, d->ops->dev_props(d->h, &d->props))))
        return infer_hal_fail(d, s, err, "properties");
    d->props.isa[sizeof d->props.isa - 1] = 0;
    if (!d->props.buffer_align)
        d->props.buffer_align = 1;
    if (d->props.buffer_align & (d->props.buffer_align - 1))
        return infer_error_set(err, INFER_E_ABI, "open %s: buffer_align %u is no power of two", d->row->id,
                               d->props.buffer_align);
    uint32_t n = 0;
    d->heap = (infer_heap_info){.struct_size = sizeof d->heap, .numa_node = -1};
    if ((s = hal_note(d, d->ops->dev_heaps(d->h, &d->heap, 1, &n))))
        return infer_hal_fail(d, s, err, "heaps");
    if (!n)
        return infer_error_set(err, INFER_E_ABI, "open %s: the device has no heap", d->row->id);
    return INFER_OK;
}

static infer_status create(infer_hal *h, infer_hal_device_info *row, infer_hal_dev **out, infer_error *err)
{
    if (atomic_load(&h->backends[row->backend]->lost))
        return infer_error_set(err, h->backends[row->backend]->lost, "open %s: its backend was lost; start anew",
                               row->id);
    INFER_TRY(hal_backend_start(h->backends[row->backend], err));
    infer_hal_dev *d = infer_calloc(1, sizeof *d);
    if (!d)
        return infer_error_set(err, INFER_E_NO_MEMORY, "open %s: no memory", row->id);
    d->hal = h;
    d->b = h->backends[row->backend];
    d->ops = &d->b->ops;
    d->row = row;
    d->refs = 1;
    pthread_mutex_init(&d->setup_mu, NULL);
    pthread_mutex_init(&d->obj_mu, NULL);
    pthread_mutex_init(&d->mu, NULL);
    hal_cond_init(&d->posted);
    hal_cond_init(&d->ran);
    pthread_mutex_lock(&h->open_mu);
    d->next = h->open;
    h->open = d;
    pthread_mutex_unlock(&h->open_mu);

    infer_status s = d->ops->dev_open(&d->b->host, row->info.index, &d->h);
    if (s) {
        s = infer_hal_fail(d, s, err, "open");
        goto fail;
    }
    if ((s = ask(d, err)))
        goto fail;
    if ((s = d->ops->queue_create(d->h, INFER_QUEUE_COMPUTE | INFER_QUEUE_COPY, &d->queue))) {
        s = infer_hal_fail(d, s, err, "create queue");
        goto fail;
    }
    if ((s = hal_queue_open(d, err)) || (s = hal_submit_start(d, err)))
        goto fail;
    d->b->n_open++;
    infer_log_write(&h->log, INFER_LOG_INFO, "hal", "opened %s (%s)", row->id, row->info.name);
    *out = d;
    return INFER_OK;
fail:
    destroy(d);
    return s;
}

static infer_status unknown_id(infer_hal *h, const char *id, infer_error *err)
{
    char list[256] = "";
    size_t n = 0;
    for (uint32_t i = 0; i < h->n_devices && n + 34 < sizeof list; i++)
        n += (size_t)snprintf(list + n, sizeof list - n, " %s", h->devices[i]->id);
    for (uint32_t i = 0; i < h->n_backends; i++) {
        const hal_backend *b = h->backends[i];
        size_t len = strlen(b->name);
        if (b->status && !strncmp(id, b->name, len))
            return infer_error_set(err, INFER_E_NO_DEVICE, "no device %s: backend %s: %s", id, b->name, b->reason);
    }
    return infer_error_set(err, INFER_E_NO_DEVICE, "no device %s; there are:%s", id, *list ? list : " none");
}

infer_status infer_hal_open(infer_hal *h, const char *id, infer_hal_dev **out, infer_error *err)
{
    INFER_TRY(infer_hal_probe(h, err));
    int32_t i = infer_hal_find(h, id);
    if (i < 0)
        return unknown_id(h, id, err);
    infer_hal_device_info *row = h->devices[i];
    if (row->info.status)
        return infer_error_set(err, INFER_E_NO_DEVICE, "device %s is not usable: %s", row->id, row->info.reason);
    infer_status s = INFER_OK;
    pthread_mutex_lock(&h->mu);
    infer_hal_dev *d = h->open;
    while (d && d->row != row)
        d = d->next;
    if (d)
        d->refs++;
    else
        s = create(h, row, &d, err);
    pthread_mutex_unlock(&h->mu);
    if (!s)
        *out = d;
    return s;
}

void infer_hal_close(infer_hal_dev *d)
{
    if (!d)
        return;
    infer_hal *h = d->hal;
    pthread_mutex_lock(&h->mu);
    if (!--d->refs) {
        hal_backend *b = d->b;
        destroy(d);
        if (!--b->n_open && b->inited) {
            b->ops.backend_fini();
            b->inited = 0;
        }
    }
    pthread_mutex_unlock(&h->mu);
}

/* ---- Facts -------------------------------------------------------------------------------------------------- */

const char *infer_hal_dev_id(const infer_hal_dev *d)
{
    return d->row->id;
}

const infer_hal_device_info *infer_hal_dev_row(const infer_hal_dev *d)
{
    return d->row;
}

const infer_device_props *infer_hal_dev_props(const infer_hal_dev *d)
{
    return &d->props;
}

const infer_heap_info *infer_hal_dev_heap(const infer_hal_dev *d)
{
    return &d->heap;
}

infer_device *infer_hal_dev_handle(const infer_hal_dev *d)
{
    return d->h;
}

const infer_backend_ops *infer_hal_dev_ops(const infer_hal_dev *d)
{
    return d->ops;
}

infer_status infer_hal_dev_heap_stats(infer_hal_dev *d, infer_heap_stats *out)
{
    INFER_TRY(hal_lost(d));
    infer_heap_stats st = {.struct_size = sizeof st};
    INFER_TRY(hal_note(d, d->ops->dev_heap_stats(d->h, 0, &st)));
    *out = st;
    return INFER_OK;
}

infer_status infer_hal_dev_health(infer_hal_dev *d, infer_health *out)
{
    infer_health health = {.struct_size = sizeof health};
    infer_status lost = hal_lost(d);
    if (lost) {
        health.state = infer_status_radius(lost) >= 4 ? INFER_HEALTH_LOST : INFER_HEALTH_DEGRADED;
        health.status = lost;
        snprintf(health.reason, sizeof health.reason, "%.150s", atomic_load(&d->lost) ? d->lost_text : d->b->name);
    } else {
        INFER_TRY(d->ops->dev_health(d->h, &health));
        health.reason[sizeof health.reason - 1] = 0;
        if (health.state == INFER_HEALTH_LOST) {
            infer_status s = infer_status_radius(health.status) >= 4 ? health.status : INFER_E_DEVICE_LOST;
            hal_detail(d->b, s, "%s", health.reason);
            hal_note(d, s);
        }
    }
    *out = health;
    return INFER_OK;
}

/* ---- Queries ------------------------------------------------------------------------------------------------ */

void infer_hal_op_query(infer_hal_dev *d, const infer_op_desc *const *ops, uint32_t n, infer_op_answer *out)
{
    enum { BATCH = 16 };
    for (uint32_t first = 0; first < n; first += BATCH) {
        infer_op_desc desc[BATCH];
        infer_op_answer answer[BATCH];
        uint32_t m = n - first < BATCH ? n - first : BATCH;
        for (uint32_t i = 0; i < m; i++) {
            desc[i] = *ops[first + i];
            answer[i] = (infer_op_answer){.struct_size = sizeof answer[i]};
        }
        infer_status s = hal_lost(d);
        if (!s)
            s = hal_note(d, d->ops->op_query(d->h, desc, sizeof desc[0], m, answer, sizeof answer[0]));
        for (uint32_t i = 0; i < m; i++) {
            infer_op_answer *a = &out[first + i];
            *a = s ? (infer_op_answer){.struct_size = sizeof *a, .why = INFER_WHY_OP} : answer[i];
            if (a->level > INFER_LEVEL_NATIVE)
                a->level = INFER_LEVEL_NO;
            if (a->n_epilogue > desc[i].n_epilogue)
                a->n_epilogue = desc[i].n_epilogue;
        }
    }
}

infer_status infer_hal_kv_query(infer_hal_dev *d, const infer_kv_spec *spec, infer_kv_answer *out, infer_error *err)
{
    infer_status s = hal_lost(d);
    infer_kv_answer a = {.struct_size = sizeof a};
    if (!s && (spec->n_planes < 1 || spec->n_planes > 4))
        return infer_error_set(err, INFER_E_INVALID, "cache group on %s: %u planes, at most 4", d->row->id,
                               spec->n_planes);
    if (!s)
        s = hal_note(d, d->ops->kv_query(d->h, spec, &a));
    if (s)
        return infer_hal_fail(d, s, err, "cache group");
    if (a.level != INFER_LEVEL_NO && (!a.block_multiple || !a.block_best || a.block_best % a.block_multiple))
        return infer_error_set(err, INFER_E_ABI, "cache group on %s: the plugin answers blocks of %u in steps of %u",
                               d->row->id, a.block_best, a.block_multiple);
    if (!a.align)
        a.align = 1;
    *out = a;
    return INFER_OK;
}
