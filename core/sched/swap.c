/* Places in host memory for blocks. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "base/alloc.h"
#include "sched/private.h"

infer_status infer_swap_create(infer_swap *w, uint32_t n_places, uint32_t mode, infer_error *err)
{
    memset(w, 0, sizeof *w);
    w->mode = mode;
    if (!n_places)
        return INFER_OK;
    if (!(w->free_places = infer_calloc(n_places, sizeof *w->free_places)))
        return infer_error_set(err, INFER_E_NO_MEMORY, "scheduler: no host memory for %u records of blocks", n_places);
    w->n_places = w->n_free = n_places;
    for (uint32_t i = 0; i < n_places; i++)
        w->free_places[i] = (int32_t)(n_places - 1 - i);
    return INFER_OK;
}

void infer_swap_destroy(infer_swap *w)
{
    infer_free(w->free_places);
    memset(w, 0, sizeof *w);
}

static uint32_t blocks_of(const infer_sched *s, uint64_t n_tokens)
{
    const uint32_t size = infer_kv_pool_block_size(s->pool);
    return (uint32_t)((n_tokens + size - 1) / size);
}

void infer_swap_out(infer_sched *s, infer_step *st, infer_req *r)
{
    infer_swap *w = &s->swap;
    const uint32_t n = blocks_of(s, r->n_computed);
    infer_swap_forget(s, r);
    if (!n || n > w->n_free || !r->places || r->tainted || w->mode == INFER_PREEMPTION_RECOMPUTE)
        return;
    /* Both are known only once they were measured; then to compute again is what always works. */
    const double again = infer_budget_row_ns(&s->budget) * (double)r->n_computed;
    if (w->mode == INFER_PREEMPTION_AUTO && !((w->out_ns + w->in_ns) * n < again))
        return;
    for (uint32_t i = 0; i < n; i++) {
        r->places[i] = w->free_places[--w->n_free];
        st->x.outs[st->x.n_outs++] = (infer_kv_move){r->seq.blocks[i], r->places[i], -1, r->id};
    }
    r->n_places = n;
    r->n_swapped = r->n_computed;
    w->n_out += n;
}

uint64_t infer_swap_tokens(const infer_req *r)
{
    return r->n_places ? r->n_swapped : 0;
}

void infer_swap_in(infer_sched *s, infer_step *st, infer_req *r, uint32_t first, uint64_t n_tokens)
{
    const uint32_t end = blocks_of(s, n_tokens);
    for (uint32_t i = first; i < end; i++)
        st->x.ins[st->x.n_ins++] = (infer_kv_move){r->seq.blocks[i], r->places[i], -1, r->id};
    s->swap.n_in += end - first;
    infer_swap_forget(s, r);
}

void infer_swap_forget(infer_sched *s, infer_req *r)
{
    while (r->n_places)
        s->swap.free_places[s->swap.n_free++] = r->places[--r->n_places];
}

void infer_swap_failed(infer_sched *s, infer_step *st)
{
    for (uint32_t i = 0; i < st->x.n_outs; i++) {
        infer_req *r = st->x.outs[i].node < 0 ? infer_queue_find(&s->queue, st->x.outs[i].id) : NULL;
        if (r)
            infer_swap_forget(s, r);
    }
}
