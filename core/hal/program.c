/*
 * Programs: the plugin's own, or the stock program where it has none; and their instances bound to memory. The choice
 * is made when a program is built, so that a submission is one indirect call.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "hal/internal.h"

struct infer_hal_prog {
    infer_hal_dev *dev;
    infer_program *h; /* the plugin's, or NULL */
    hal_stock *stock;
    infer_slot_desc *slots;
    uint32_t n_slots;
    uint64_t booked;
};

struct infer_hal_exec {
    infer_hal_prog *prog;
    infer_status (*submit)(infer_hal_exec *x);
    infer_exec *h;
    hal_stock_exec *stock;
    infer_range *slots;
};

/* ---- Building ---------------------------------------------------------------------------------------------- */

static infer_status check_operand(const infer_operand *o, const infer_slot_desc *slots, uint32_t n_slots)
{
    if (o->slot == INFER_SLOT_ABSENT)
        return INFER_OK;
    return o->slot < n_slots && infer_range_ok(o->offset, o->size, slots[o->slot].size) ? INFER_OK : INFER_E_INVALID;
}

static infer_status check_view(infer_hal_dev *d, const infer_graph_view *view, const infer_slot_desc *slots,
                               infer_error *err)
{
    for (uint32_t i = 0; i < view->n_nodes; i++) {
        const infer_node *n =
            (const infer_node *)(const void *)((const char *)view->nodes + (uint64_t)i * view->node_size);
        uint32_t count = n->op->n_in + n->op->n_out;
        if (count > INFER_OP_MAX_OPERANDS)
            return infer_error_set(err, INFER_E_INVALID, "program for %s, node %u: %u operands, at most %u", d->row->id,
                                   i, count, INFER_OP_MAX_OPERANDS);
        int wrong = check_operand(&n->counts, slots, view->n_slots) || check_operand(&n->scratch, slots, view->n_slots);
        uint32_t k = 0;
        for (; k < count && !wrong; k++)
            wrong = check_operand(&n->operands[k], slots, view->n_slots) != INFER_OK;
        if (wrong)
            return infer_error_set(err, INFER_E_INVALID, "program for %s, node %u: operand %d lies outside its slot",
                                   d->row->id, i, k ? (int)k - 1 : -1);
    }
    return d->hal->validate ? hal_validate_view(d, view, err) : INFER_OK;
}

infer_status infer_hal_prog_claim(infer_hal_dev *d, const infer_graph_view *view, int32_t *set_of, infer_error *err)
{
    infer_status s = hal_lost(d);
    for (uint32_t i = 0; i < view->n_nodes; i++)
        set_of[i] = -1;
    if (!s) {
        pthread_mutex_lock(&d->setup_mu);
        s = hal_note(d, d->ops->prog_claim(d->h, view, set_of));
        pthread_mutex_unlock(&d->setup_mu);
    }
    return s ? infer_hal_fail(d, s, err, "claim nodes") : INFER_OK;
}

infer_status infer_hal_prog_build(infer_hal_dev *d, const infer_graph_view *view, infer_hal_prog **out,
                                  infer_program_info *info, infer_error *err)
{
    infer_status s = hal_lost(d);
    if (s)
        return infer_hal_fail(d, s, err, "build program");
    infer_hal_prog *p = infer_calloc(1, sizeof *p);
    infer_slot_desc *slots = infer_calloc(view->n_slots, sizeof *slots);
    infer_program_info in = {.struct_size = sizeof in};
    if (!p || !slots) {
        s = infer_error_set(err, INFER_E_NO_MEMORY, "build program for %s: no memory", d->row->id);
        goto fail;
    }
    for (uint32_t i = 0; i < view->n_slots; i++)
        memcpy(&slots[i], (const char *)view->slots + (uint64_t)i * view->slot_size,
               view->slot_size < sizeof *slots ? view->slot_size : sizeof *slots);
    if ((s = check_view(d, view, slots, err)))
        goto fail;
    p->dev = d;
    p->slots = slots;
    p->n_slots = view->n_slots;
    if (d->b->has & HAL_HAS_PROGRAM) {
        pthread_mutex_lock(&d->setup_mu);
        s = hal_note(d, d->ops->prog_build(d->h, view, &p->h, &in));
        pthread_mutex_unlock(&d->setup_mu);
    } else {
        s = hal_stock_build(view, &p->stock);
    }
    if (s) {
        s = infer_hal_fail(d, s, err, "build program");
        goto fail;
    }
    if (!infer_add_u64(in.scratch_bytes, in.code_bytes, &p->booked))
        p->booked = 0;
    hal_book(d, INFER_LEDGER_CONTEXT, (int64_t)p->booked);
    *out = p;
    if (info)
        *info = in;
    return INFER_OK;
fail:
    infer_free(slots);
    infer_free(p);
    return s;
}

void infer_hal_prog_destroy(infer_hal_prog *p)
{
    if (!p)
        return;
    infer_hal_dev *d = p->dev;
    if (p->stock) {
        hal_stock_destroy(p->stock);
    } else {
        pthread_mutex_lock(&d->setup_mu);
        d->ops->prog_destroy(p->h);
        pthread_mutex_unlock(&d->setup_mu);
    }
    hal_book(d, INFER_LEDGER_CONTEXT, -(int64_t)p->booked);
    infer_free(p->slots);
    infer_free(p);
}

/* ---- Instances --------------------------------------------------------------------------------------------- */

static infer_status submit_plugin(infer_hal_exec *x)
{
    infer_hal_dev *d = x->prog->dev;
    uint32_t tries = 0;
    infer_status s;
    while ((s = hal_note(d, d->ops->prog_submit(x->h, d->queue))) == INFER_AGAIN)
        INFER_TRY(hal_again(d, &tries));
    return s;
}

static infer_status submit_stock(infer_hal_exec *x)
{
    return hal_stock_submit(x->prog->dev, x->stock);
}

static infer_status check_slot(const infer_hal_prog *p, uint32_t i, const infer_range *r)
{
    infer_hal_dev *d = p->dev;
    const infer_slot_desc *slot = &p->slots[i];
    if (!slot->size && !r->buffer)
        return INFER_OK;
    if (r->size < slot->size || (d->props.buffer_align && r->offset % d->props.buffer_align)) {
        hal_detail(d->b, INFER_E_INVALID, "slot %u: %llu bytes at %llu, wanted %llu aligned to %u", i,
                   (unsigned long long)r->size, (unsigned long long)r->offset, (unsigned long long)slot->size,
                   d->props.buffer_align);
        return INFER_E_INVALID;
    }
    return hal_check_range(d, r, "slot");
}

typedef struct instantiate_job {
    infer_hal_job job;
    infer_hal_exec *x;
    uint32_t slot;            /* of an update */
    const infer_range *range; /* of an update; NULL: instantiate */
    infer_status status;
    infer_error *err;
} instantiate_job;

static infer_status instantiate(infer_hal_exec *x, infer_exec **out)
{
    infer_hal_dev *d = x->prog->dev;
    pthread_mutex_lock(&d->setup_mu);
    infer_status s = hal_note(d, d->ops->prog_instantiate(x->prog->h, d->queue, x->slots, x->prog->n_slots, out));
    pthread_mutex_unlock(&d->setup_mu);
    return s;
}

static void run_create(infer_hal_job *job)
{
    instantiate_job *j = (instantiate_job *)(void *)job;
    infer_hal_exec *x = j->x;
    infer_hal_dev *d = x->prog->dev;
    infer_status s = hal_lost(d);
    for (uint32_t i = 0; !s && i < x->prog->n_slots; i++)
        s = check_slot(x->prog, i, &x->slots[i]);
    if (!s)
        s = x->prog->stock ? hal_stock_bind(x->prog->stock, x->slots, &x->stock) : instantiate(x, &x->h);
    if (s)
        infer_hal_fail(d, s, j->err, "instantiate program");
    j->status = s;
}

infer_status infer_hal_exec_create(infer_hal_prog *p, const infer_range *slots, uint32_t n_slots, infer_hal_exec **out,
                                   infer_error *err)
{
    if (n_slots != p->n_slots)
        return infer_error_set(err, INFER_E_INVALID, "instantiate program on %s: %u slots given, it has %u",
                               p->dev->row->id, n_slots, p->n_slots);
    infer_hal_exec *x = infer_calloc(1, sizeof *x);
    infer_range *own = infer_calloc(n_slots, sizeof *own);
    infer_status s = INFER_OK;
    if (!x || !own) {
        s = infer_error_set(err, INFER_E_NO_MEMORY, "instantiate program on %s: no memory", p->dev->row->id);
        goto fail;
    }
    if (n_slots)
        memcpy(own, slots, n_slots * sizeof *own);
    x->prog = p;
    x->slots = own;
    x->submit = p->stock ? submit_stock : submit_plugin;
    instantiate_job j = {.job.run = run_create, .x = x, .err = err};
    infer_hal_run(p->dev, &j.job);
    if ((s = j.status))
        goto fail;
    *out = x;
    return INFER_OK;
fail:
    infer_free(own);
    infer_free(x);
    return s;
}

static infer_status update_plugin(infer_hal_exec *x, uint32_t slot, const infer_range *range)
{
    infer_hal_dev *d = x->prog->dev;
    pthread_mutex_lock(&d->setup_mu);
    infer_status s = hal_note(d, d->ops->prog_update(x->h, slot, range));
    pthread_mutex_unlock(&d->setup_mu);
    if (s != INFER_REBUILD) {
        if (!s)
            x->slots[slot] = *range;
        return s;
    }
    infer_range old = x->slots[slot];
    infer_exec *fresh = NULL;
    x->slots[slot] = *range;
    s = instantiate(x, &fresh);
    if (s) {
        x->slots[slot] = old;
        return s;
    }
    s = infer_hal_drain(d); /* the old one may still run */
    pthread_mutex_lock(&d->setup_mu);
    d->ops->exec_destroy(x->h);
    pthread_mutex_unlock(&d->setup_mu);
    x->h = fresh;
    return s;
}

static void run_update(infer_hal_job *job)
{
    instantiate_job *j = (instantiate_job *)(void *)job;
    infer_hal_exec *x = j->x;
    infer_hal_dev *d = x->prog->dev;
    infer_status s = hal_lost(d);
    if (!s)
        s = check_slot(x->prog, j->slot, j->range);
    if (!s && x->stock) {
        hal_stock_rebind(x->stock, j->slot, j->range);
        x->slots[j->slot] = *j->range;
    } else if (!s) {
        s = update_plugin(x, j->slot, j->range);
    }
    if (s)
        infer_hal_fail(d, s, j->err, "update program");
    j->status = s;
}

infer_status infer_hal_exec_update(infer_hal_exec *x, uint32_t slot, const infer_range *range, infer_error *err)
{
    if (slot >= x->prog->n_slots || !x->prog->slots[slot].rebindable)
        return infer_error_set(err, INFER_E_INVALID, "update program on %s: slot %u is not rebindable",
                               x->prog->dev->row->id, slot);
    instantiate_job j = {.job.run = run_update, .x = x, .slot = slot, .range = range, .err = err};
    infer_hal_run(x->prog->dev, &j.job);
    return j.status;
}

void infer_hal_exec_destroy(infer_hal_exec *x)
{
    if (!x)
        return;
    infer_hal_dev *d = x->prog->dev;
    hal_settle(d);
    if (x->stock) {
        hal_stock_unbind(x->stock);
    } else {
        pthread_mutex_lock(&d->setup_mu);
        d->ops->exec_destroy(x->h);
        pthread_mutex_unlock(&d->setup_mu);
    }
    infer_free(x->slots);
    infer_free(x);
}

infer_status infer_hal_exec_submit(infer_hal_exec *x)
{
    infer_hal_dev *d = x->prog->dev;
    INFER_TRY(hal_lost(d));
    if (d->hal->validate)
        INFER_TRY(hal_validate_thread(d, "submit"));
    return x->submit(x);
}
