/*
 * The verbs that conformance cases are written with: queues, buffers, timelines, transfers that wait. Calls go to the
 * plugin's table directly, from the thread of the case, which is the queue's one submitting thread.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/hash.h"
#include "cts.h"

uint64_t cts_rand(cts *c)
{
    c->rng += 0x9E3779B97F4A7C15u;
    return infer_hash_u64(c->rng);
}

uint64_t cts_below(cts *c, uint64_t n)
{
    return cts_rand(c) % n;
}

void cts_bytes(cts *c, void *p, uint64_t n)
{
    uint8_t *b = p;
    for (uint64_t i = 0; i < n;) {
        uint64_t x = cts_rand(c);
        for (int k = 0; k < 8 && i < n; k++, i++, x >>= 8)
            b[i] = (uint8_t)x;
    }
}

void cts_sleep_ms(uint32_t ms)
{
    struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

int64_t cts_differ(const void *a, const void *b, uint64_t n)
{
    const uint8_t *x = a, *y = b;
    if (!memcmp(x, y, n))
        return -1;
    int64_t i = 0;
    while (x[i] == y[i])
        i++;
    return i;
}

int cts_has(const cts *c, size_t offset)
{
    void (*slot)(void) = NULL;
    const infer_backend_ops *raw = c->run->raw;
    if (offset + sizeof(slot) > raw->struct_size)
        return 0;
    memcpy(&slot, (const char *)raw + offset, sizeof(slot));
    return slot != NULL;
}

int cts_ok(cts *c, infer_status s, const char *what)
{
    if (s == INFER_OK)
        return 1;
    if (s > 0 || !c->dev) {
        cts_fail(c, "%s: returned %s", what, infer_status_name(s));
        return 0;
    }
    infer_error e = {0};
    infer_hal_fail(c->dev, s, &e, what);
    cts_fail(c, "%s", e.text);
    return 0;
}

/* ---- Objects --------------------------------------------------------------------------------------------- */

infer_buffer *cts_buf(cts *c, uint64_t bytes)
{
    infer_buffer *b = NULL;
    if (c->n_bufs == CTS_MAX_BUFS) {
        cts_fail(c, "the case uses too many buffers");
        return NULL;
    }
    char what[64];
    snprintf(what, sizeof(what), "buf_alloc of %llu bytes", (unsigned long long)bytes);
    if (!cts_ok(c, c->ops->buf_alloc(c->h, 0, bytes, &b), what))
        return NULL;
    if (!b)
        cts_fail(c, "%s: OK without a buffer", what);
    else
        c->bufs[c->n_bufs++] = b;
    return b;
}

void cts_buf_free(cts *c, infer_buffer *b)
{
    for (uint32_t i = 0; i < c->n_bufs && !c->run->dead[0]; i++)
        if (c->bufs[i] == b) {
            c->bufs[i] = c->bufs[--c->n_bufs];
            c->ops->buf_free(c->h, b);
            return;
        }
}

infer_hal_tl *cts_tl(cts *c)
{
    infer_error e = {0};
    infer_hal_tl *tl = NULL;
    if (c->n_tls == CTS_MAX_TLS || infer_hal_tl_create(c->dev, &tl, &e)) {
        cts_fail(c, "timeline: %s", e.text);
        return NULL;
    }
    c->tls[c->n_tls++] = tl;
    return tl;
}

int cts_open_queue(cts *c)
{
    c->tl = cts_tl(c);
    if (!c->tl)
        return 0;
    return cts_ok(c, c->ops->queue_create(c->h, INFER_QUEUE_COMPUTE | INFER_QUEUE_COPY, &c->queue), "queue_create");
}

void cts_close_queue(cts *c)
{
    if (c->queue)
        cts_sync(c);
    if (c->run->dead[0])
        return; /* what may still be in use is better leaked */
    for (uint32_t i = 0; i < c->n_bufs; i++)
        c->ops->buf_free(c->h, c->bufs[i]);
    if (c->queue)
        c->ops->queue_destroy(c->h, c->queue);
    for (uint32_t i = 0; i < c->n_tls; i++)
        infer_hal_tl_destroy(c->tls[i]);
}

/* ---- Submitting ------------------------------------------------------------------------------------------ */

/* Whether to call again: after AGAIN, for a while. */
static int again(infer_status s, uint64_t *since)
{
    if (s != INFER_AGAIN)
        return 0;
    uint64_t now = infer_clock_ns();
    if (!*since)
        *since = now;
    if (now - *since > CTS_TIMEOUT_NS)
        return 0;
    cts_sleep_ms(1);
    return 1;
}

#define RETRY(call)                                                                                                    \
    infer_status s;                                                                                                    \
    uint64_t since = 0;                                                                                                \
    if (!q)                                                                                                            \
        return INFER_E_QUEUE; /* it was given up */                                                                    \
    do {                                                                                                               \
        s = (call);                                                                                                    \
    } while (again(s, &since));                                                                                        \
    return s

infer_status cts_copy(cts *c, infer_queue *q, infer_copy_end dst, infer_copy_end src, const infer_copy_region *r,
                      uint32_t n)
{
    RETRY(c->ops->cmd_copy(q, &dst, &src, r, n));
}

infer_status cts_fill(cts *c, infer_queue *q, infer_buffer *b, uint64_t offset, uint64_t bytes, uint32_t pattern,
                      uint32_t pattern_bytes)
{
    infer_range r = {b, offset, bytes};
    RETRY(c->ops->cmd_fill(q, &r, pattern, pattern_bytes));
}

infer_status cts_update(cts *c, infer_queue *q, const infer_range *dst, const void *data, uint64_t bytes)
{
    RETRY(c->ops->cmd_update(q, dst, data, bytes));
}

infer_status cts_op(cts *c, infer_queue *q, const infer_op_desc *op, const infer_op_args *args)
{
    RETRY(c->ops->cmd_op(q, op, args));
}

infer_status cts_signal(cts *c, infer_queue *q, infer_hal_tl *tl, uint64_t value)
{
    RETRY(c->ops->queue_signal(q, infer_hal_tl_handle(tl), value));
}

infer_status cts_wait(cts *c, infer_queue *q, infer_hal_tl *tl, uint64_t value)
{
    RETRY(c->ops->queue_wait(q, infer_hal_tl_handle(tl), value));
}

int cts_sync(cts *c)
{
    if (c->run->dead[0] || !c->queue)
        return 0;
    infer_status s = cts_signal(c, c->queue, c->tl, ++c->value);
    if (!s)
        s = infer_hal_tl_wait(c->tl, c->value, CTS_TIMEOUT_NS);
    if (s == INFER_PENDING) {
        cts_fail(c, "submitted work did not complete within %g s", (double)CTS_TIMEOUT_NS / 1e9);
        cts_hung(c);
        return 0;
    }
    if (s) { /* what is still at work ends with the queue, before the case frees what it uses */
        cts_ok(c, s, "submitted work");
        c->ops->queue_destroy(c->h, c->queue);
        c->queue = NULL;
    }
    return !s;
}

int cts_write(cts *c, infer_buffer *b, uint64_t offset, const void *data, uint64_t bytes)
{
    infer_copy_region r = {.dst_offset = offset, .bytes = bytes, .rows = 1};
    infer_copy_end dst = {b, NULL}, src = {NULL, (void *)(uintptr_t)data};
    return cts_ok(c, cts_copy(c, c->queue, dst, src, &r, 1), "cmd_copy from the host") && cts_sync(c);
}

int cts_read(cts *c, infer_buffer *b, uint64_t offset, void *data, uint64_t bytes)
{
    infer_copy_region r = {.src_offset = offset, .bytes = bytes, .rows = 1};
    infer_copy_end dst = {NULL, data}, src = {b, NULL};
    return cts_ok(c, cts_copy(c, c->queue, dst, src, &r, 1), "cmd_copy to the host") && cts_sync(c);
}
