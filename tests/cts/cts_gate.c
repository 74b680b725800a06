/*
 * A queue that is held back while a case submits: what a plugin does at submission and what it does when the work runs
 * then lie apart. The host's signal comes from another thread and after a bound, so that a queue that blocks in
 * queue_wait, or in a later submission, goes on by itself. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include "base/clock.h"
#include "cts.h"

#define OPENS_NS   1000000000u /* by itself */
#define BUSY_BYTES (1u << 20)
#define BUSY_FILLS 64u

static void *gate_main(void *arg)
{
    cts_gate *g = arg;
    uint64_t start = infer_clock_ns();
    while (!atomic_load(&g->asked) && infer_clock_ns() - start < OPENS_NS)
        cts_sleep_ms(1);
    atomic_store(&g->opened, 1);
    g->s = infer_hal_tl_signal_host(g->tl, 1);
    return NULL;
}

/* Where the queue cannot be held back: work that takes longer than the few submissions to come. */
static int keep_busy(cts *c, cts_gate *g)
{
    g->busy = cts_buf(c, BUSY_BYTES);
    if (!g->busy)
        return 0;
    for (uint32_t i = 0; i < BUSY_FILLS; i++)
        if (!cts_ok(c, cts_fill(c, c->queue, g->busy, 0, BUSY_BYTES, i, 4), "cmd_fill"))
            return 0;
    return 1;
}

int cts_gate_close(cts *c, cts_gate *g)
{
    *g = (cts_gate){0};
    if (c->props->flags & INFER_PROP_INLINE)
        return 1; /* submitting is running */
    if (c->run->no_gate)
        return keep_busy(c, g);
    g->tl = cts_tl(c);
    if (!g->tl)
        return 0;
    g->running = !pthread_create(&g->thread, NULL, gate_main, g);
    if (!g->running) {
        cts_fail(c, "no thread");
        return 0;
    }
    infer_status s = cts_wait(c, c->queue, g->tl, 1);
    if (s && s != INFER_E_UNSUPPORTED)
        return cts_ok(c, s, "queue_wait");
    if (!s && !atomic_load(&g->opened))
        return 1;
    c->run->no_gate = 1; /* it does not wait for the host, or inside the call */
    return keep_busy(c, g);
}

void cts_gate_open(cts *c, cts_gate *g)
{
    atomic_store(&g->asked, 1);
    if (g->running) {
        pthread_join(g->thread, NULL);
        g->running = 0;
        cts_ok(c, g->s, "the host's signal");
    }
    if (g->busy && cts_sync(c))
        cts_buf_free(c, g->busy);
    g->busy = NULL;
}
