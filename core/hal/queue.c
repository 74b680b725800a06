/*
 * Work on a device's compute queue. Every function checks its ranges, passes back-pressure (AGAIN) by waiting for
 * earlier work, and remembers a lost device. Does not decide what work there is. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "hal/internal.h"

/* One half of the staging area of the default update; a longer update takes several turns. */
enum { STAGE_HALF = 64 * 1024, STAGE_ALIGN = 64 };
/* Turns of about 0.1 ms that a full queue gets before it counts as stuck. */
enum { AGAIN_MAX = 100000 };

static infer_status entry(infer_hal_dev *d, const char *what)
{
    infer_status s = hal_lost(d);
    return s || !d->hal->validate ? s : hal_validate_thread(d, what);
}

/* Waits a little; gives up on a queue that stays full. */
static infer_status pause_queue(infer_hal_dev *d, uint32_t tries)
{
    if (tries >= AGAIN_MAX) {
        hal_detail(d->b, INFER_E_QUEUE, "the queue stays full");
        return INFER_E_QUEUE;
    }
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    return hal_lost(d);
}

infer_status hal_again(infer_hal_dev *d, uint32_t *tries)
{
    infer_status s = hal_note(d, d->ops->queue_signal(d->queue, d->private_tl->h, d->private_value + 1));
    if (s == INFER_AGAIN)
        return pause_queue(d, (*tries)++);
    INFER_TRY(s);
    d->private_value++;
    INFER_TRY(infer_hal_tl_wait(d->private_tl, d->private_value, UINT64_MAX));
    return pause_queue(d, (*tries)++);
}

/* Runs a slot call until it says something else than AGAIN. */
#define RETRY(d, s, call)                                                                                              \
    do {                                                                                                               \
        uint32_t tries_ = 0;                                                                                           \
        while (((s) = hal_note((d), (call))) == INFER_AGAIN && ((s) = hal_again((d), &tries_)) == INFER_OK) {          \
        }                                                                                                              \
    } while (0)

/* cmd_copy without checks. */
static infer_status copy_regions(infer_hal_dev *d, const infer_copy_end *dst, const infer_copy_end *src,
                                 const infer_copy_region *regions, uint32_t n)
{
    infer_status s;
    RETRY(d, s, d->ops->cmd_copy(d->queue, dst, src, regions, n));
    return s;
}

/* ---- Small updates ----------------------------------------------------------------------------------------- */

static infer_status update_plugin(infer_hal_dev *d, const infer_range *dst, const void *data, uint64_t bytes)
{
    infer_status s;
    RETRY(d, s, d->ops->cmd_update(d->queue, dst, data, bytes));
    return s;
}

static infer_status copy_in(infer_hal_dev *d, const infer_range *dst, uint64_t offset, const void *data, uint64_t bytes)
{
    infer_copy_end to = {.buffer = dst->buffer}, from = {.host = (void *)(uintptr_t)data};
    infer_copy_region r = {.dst_offset = dst->offset + offset, .bytes = bytes, .rows = 1};
    return copy_regions(d, &to, &from, &r, 1);
}

/* The device copies inside the call: the caller's memory may be its source. */
static infer_status update_inline(infer_hal_dev *d, const infer_range *dst, const void *data, uint64_t bytes)
{
    return copy_in(d, dst, 0, data, bytes);
}

/* cmd_copy reads later, so the bytes are kept in one of two halves until the timeline says that it has read them. */
static infer_status update_staged(infer_hal_dev *d, const infer_range *dst, const void *data, uint64_t bytes)
{
    for (uint64_t done = 0; done < bytes;) {
        if (d->stage_used == STAGE_HALF) {
            INFER_TRY(infer_hal_signal(d, d->private_tl, d->private_value + 1));
            d->stage_busy[d->stage_half] = ++d->private_value;
            d->stage_half ^= 1;
            d->stage_used = 0;
            INFER_TRY(infer_hal_tl_wait(d->private_tl, d->stage_busy[d->stage_half], UINT64_MAX));
        }
        uint64_t n = STAGE_HALF - d->stage_used;
        if (n > bytes - done)
            n = bytes - done;
        uint8_t *at = d->stage + d->stage_half * STAGE_HALF + d->stage_used;
        memcpy(at, (const uint8_t *)data + done, (size_t)n);
        INFER_TRY(copy_in(d, dst, done, at, n));
        d->stage_used += (n + STAGE_ALIGN - 1) / STAGE_ALIGN * STAGE_ALIGN;
        done += n;
    }
    return INFER_OK;
}

infer_status hal_queue_open(infer_hal_dev *d, infer_error *err)
{
    INFER_TRY(infer_hal_tl_create(d, &d->private_tl, err));
    if (d->b->has & HAL_HAS_UPDATE) {
        d->update = update_plugin;
    } else if (d->props.flags & INFER_PROP_INLINE) {
        d->update = update_inline;
    } else {
        d->update = update_staged;
        d->stage = infer_alloc_aligned(2 * STAGE_HALF, STAGE_ALIGN);
        if (!d->stage)
            return infer_error_set(err, INFER_E_NO_MEMORY, "open %s: no memory", d->row->id);
    }
    return INFER_OK;
}

void hal_queue_stop(infer_hal_dev *d)
{
    if (!d->queue || !hal_lost(d))
        return;
    pthread_mutex_lock(&d->setup_mu);
    d->ops->queue_destroy(d->h, d->queue);
    pthread_mutex_unlock(&d->setup_mu);
    d->queue = NULL;
}

struct stop_job {
    infer_hal_job job;
    infer_hal_dev *d;
};

static void run_stop(infer_hal_job *job)
{
    struct stop_job *j = (struct stop_job *)(void *)job;
    hal_queue_stop(j->d);
}

void hal_settle(infer_hal_dev *d)
{
    struct stop_job j = {.job.run = run_stop, .d = d};
    if (hal_lost(d) && d->started)
        infer_hal_run(d, &j.job);
}

void hal_queue_close(infer_hal_dev *d)
{
    infer_hal_tl_destroy(d->private_tl);
    infer_free_aligned(d->stage);
}

/* ---- Commands ---------------------------------------------------------------------------------------------- */

infer_status infer_hal_update(infer_hal_dev *d, const infer_range *dst, const void *data, uint64_t bytes)
{
    INFER_TRY(entry(d, "update"));
    if (!bytes)
        return INFER_OK;
    infer_range r = {.buffer = dst->buffer, .offset = dst->offset, .size = bytes};
    if (bytes > dst->size) {
        hal_detail(d->b, INFER_E_INVALID, "update: %llu bytes into a range of %llu", (unsigned long long)bytes,
                   (unsigned long long)dst->size);
        return INFER_E_INVALID;
    }
    INFER_TRY(hal_check_range(d, &r, "update"));
    return d->update(d, &r, data, bytes);
}

/* From the first byte of a list of regions to one past its last, on one side. */
static int extent(const infer_copy_region *regions, uint32_t n, int dst, uint64_t *end)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < n; i++) {
        const infer_copy_region *r = &regions[i];
        uint64_t rows = r->rows ? r->rows - 1 : 0, pitch = dst ? r->dst_pitch : r->src_pitch, last, stop;
        if (__builtin_mul_overflow(rows, rows ? pitch : 0, &last) ||
            __builtin_add_overflow(last, dst ? r->dst_offset : r->src_offset, &last) ||
            __builtin_add_overflow(last, r->bytes, &stop))
            return 0;
        if (r->rows && r->bytes && stop > most)
            most = stop;
    }
    *end = most;
    return 1;
}

infer_status infer_hal_copy(infer_hal_dev *d, const infer_copy_end *dst, const infer_copy_end *src,
                            const infer_copy_region *regions, uint32_t n)
{
    INFER_TRY(entry(d, "copy"));
    uint64_t to, from;
    if (!extent(regions, n, 1, &to) || !extent(regions, n, 0, &from)) {
        hal_detail(d->b, INFER_E_INVALID, "copy: a region's end overflows");
        return INFER_E_INVALID;
    }
    if (dst->buffer)
        INFER_TRY(hal_check_buffer(d, dst->buffer, 0, to, "copy destination"));
    if (src->buffer)
        INFER_TRY(hal_check_buffer(d, src->buffer, 0, from, "copy source"));
    if (d->hal->validate)
        INFER_TRY(hal_validate_copy(d, dst, src, regions, n));
    return to ? copy_regions(d, dst, src, regions, n) : INFER_OK;
}

infer_status infer_hal_fill(infer_hal_dev *d, const infer_range *dst, uint32_t pattern, uint32_t pattern_bytes)
{
    INFER_TRY(entry(d, "fill"));
    INFER_TRY(hal_check_range(d, dst, "fill"));
    if ((pattern_bytes != 1 && pattern_bytes != 2 && pattern_bytes != 4) || dst->size % pattern_bytes) {
        hal_detail(d->b, INFER_E_INVALID, "fill: pattern of %u bytes over %llu", pattern_bytes,
                   (unsigned long long)dst->size);
        return INFER_E_INVALID;
    }
    if (!dst->size)
        return INFER_OK;
    infer_status s;
    RETRY(d, s, d->ops->cmd_fill(d->queue, dst, pattern, pattern_bytes));
    return s;
}

/* Whether the plugin's queue knows what this timeline is: its backend's own, or the host's where it has none. */
static int known_to_queue(const infer_hal_dev *d, const infer_hal_tl *tl)
{
    return tl->software ? !(d->b->has & HAL_HAS_TIMELINE) : tl->dev->b == d->b;
}

infer_status infer_hal_signal(infer_hal_dev *d, infer_hal_tl *tl, uint64_t value)
{
    INFER_TRY(entry(d, "signal"));
    if (!known_to_queue(d, tl)) {
        INFER_TRY(infer_hal_drain(d));
        return infer_hal_tl_signal_host(tl, value);
    }
    for (uint32_t tries = 0;; tries++) {
        infer_status s = hal_note(d, d->ops->queue_signal(d->queue, tl->h, value));
        if (s != INFER_AGAIN)
            return s;
        INFER_TRY(pause_queue(d, tries));
    }
}

infer_status infer_hal_wait(infer_hal_dev *d, infer_hal_tl *tl, uint64_t value)
{
    INFER_TRY(entry(d, "wait"));
    if (known_to_queue(d, tl)) {
        infer_status s;
        RETRY(d, s, d->ops->queue_wait(d->queue, tl->h, value));
        if (s != INFER_E_UNSUPPORTED)
            return s;
    }
    return infer_hal_tl_wait(tl, value, UINT64_MAX);
}

infer_status infer_hal_drain(infer_hal_dev *d)
{
    infer_status s = entry(d, "drain");
    if (!s) {
        s = infer_hal_signal(d, d->private_tl, d->private_value + 1);
        if (!s)
            s = infer_hal_tl_wait(d->private_tl, ++d->private_value, UINT64_MAX);
        if (s && !hal_lost(d)) /* nobody knows any more when its work is done */
            s = hal_note(d, INFER_E_QUEUE);
    }
    hal_queue_stop(d); /* where it is lost */
    return s;
}

/* ---- Set-up copies ----------------------------------------------------------------------------------------- */

typedef struct transfer {
    infer_hal_job job;
    infer_hal_dev *d;
    infer_range range;
    void *host;
    uint64_t bytes;
    int write;
    infer_status status;
    infer_error *err;
} transfer;

static void run_transfer(infer_hal_job *job)
{
    transfer *t = (transfer *)(void *)job;
    infer_copy_end dev = {.buffer = t->range.buffer}, host = {.host = t->host};
    infer_copy_region r = {.bytes = t->bytes, .rows = 1};
    if (t->write)
        r.dst_offset = t->range.offset;
    else
        r.src_offset = t->range.offset;
    t->status = infer_hal_copy(t->d, t->write ? &dev : &host, t->write ? &host : &dev, &r, 1);
    if (!t->status)
        t->status = infer_hal_drain(t->d);
    if (t->status) /* here, on the thread that has the detail */
        infer_hal_fail(t->d, t->status, t->err, t->write ? "write" : "read");
}

static infer_status move(infer_hal_dev *d, const infer_range *range, void *host, uint64_t bytes, int write,
                         infer_error *err)
{
    if (bytes > range->size)
        return infer_error_set(err, INFER_E_INVALID, "%s %s: %llu bytes with a range of %llu", write ? "write" : "read",
                               d->row->id, (unsigned long long)bytes, (unsigned long long)range->size);
    transfer t = {
        .job.run = run_transfer, .d = d, .range = *range, .host = host, .bytes = bytes, .write = write, .err = err};
    infer_hal_run(d, &t.job);
    return t.status;
}

infer_status infer_hal_write(infer_hal_dev *d, const infer_range *dst, const void *data, uint64_t bytes,
                             infer_error *err)
{
    return move(d, dst, (void *)(uintptr_t)data, bytes, 1, err);
}

infer_status infer_hal_read(infer_hal_dev *d, const infer_range *src, void *data, uint64_t bytes, infer_error *err)
{
    return move(d, src, data, bytes, 0, err);
}
