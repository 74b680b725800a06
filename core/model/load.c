/* Weights onto the devices of a plan, and where programs find them. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "base/alloc.h"
#include "model/private.h"

/* Binds a file part in place on a device, once. */
static infer_status import_part(infer_model *m, int32_t dev, uint32_t part, infer_error *err)
{
    infer_hal_buf *b = &m->parts[dev][part];
    if (b->h)
        return INFER_OK;
    const uint8_t *p;
    uint64_t n;
    infer_gguf_part_bytes(m->plan->file->gguf, part, &p, &n);
    infer_hal_dev *d = m->plan->devs[dev].dev;
    infer_status s = infer_hal_buf_import(d, (void *)(uintptr_t)p, n, INFER_LEDGER_WEIGHTS, b, err);
    if (s == INFER_E_UNSUPPORTED) /* it comes without a text */
        return infer_error_set(err, s, "binding the model file in place on %s: the device does not take it",
                               infer_hal_dev_id(d));
    return s == INFER_OK ? s : infer_error_prefix(err, s, "binding the model file in place");
}

static infer_status load_packed(infer_model *m, const infer_weight_inst *x, infer_error *err)
{
    infer_plan *p = m->plan;
    const infer_weight_src *w = &p->file->weights.p[x->ref];
    infer_weight_desc d;
    infer_plan_weight_source(p, x, &d);
    const void *planes[3] = {w->tensor ? (const void *)w->tensor->data : w->data, NULL, NULL};
    uint64_t bytes[3] = {w->tensor ? w->tensor->bytes : (uint64_t)w->shape[0] * sizeof(float), 0, 0};
    infer_range dst = {m->packed[x->dev].h, x->offset, x->plan.packed_bytes};
    infer_status s = infer_hal_weight_load(p->devs[x->dev].dev, &d, &x->plan, &dst, planes, bytes, err);
    return s == INFER_OK ? s : infer_error_prefix(err, s, "load %s", w->name);
}

infer_status infer_model_alloc(infer_model *m, uint32_t dev, uint64_t bytes, infer_ledger_kind kind, infer_hal_buf *out,
                               infer_error *err)
{
    if (!bytes)
        return INFER_OK;
    INFER_TRY(infer_hal_buf_alloc(m->plan->devs[dev].dev, bytes, kind, out, err));
    atomic_fetch_add(&m->booked[dev][kind], out->size);
    return INFER_OK;
}

void infer_model_free(infer_model *m, uint32_t dev, infer_hal_buf *b)
{
    if (b->h)
        atomic_fetch_sub(&m->booked[dev][b->kind], b->size);
    infer_hal_buf_free(b);
}

infer_status infer_model_load(infer_plan *p, void (*progress)(void *user, uint64_t done, uint64_t total), void *user,
                              infer_model **out, infer_error *err)
{
    infer_status s = INFER_OK;
    uint64_t done = 0, total = 0;
    infer_model *m = infer_calloc(1, sizeof *m);
    if (!m)
        return infer_error_set(err, INFER_E_NO_MEMORY, "load: no host memory");
    m->plan = p;
    for (uint32_t i = 0; i < p->n_devs; i++) {
        if ((s = infer_model_alloc(m, i, p->devs[i].ledger[INFER_LEDGER_WEIGHTS], INFER_LEDGER_WEIGHTS, &m->packed[i],
                                   err)) != INFER_OK)
            goto fail;
    }
    for (uint32_t i = 0; i < p->n_insts; i++)
        if (p->insts[i].used && p->insts[i].shares < 0 && !p->insts[i].in_place)
            total += p->insts[i].plan.packed_bytes;
    for (uint32_t i = 0; i < p->n_insts; i++) {
        const infer_weight_inst *x = &p->insts[i];
        if (!x->used || x->shares >= 0)
            continue;
        s = x->in_place ? import_part(m, x->dev, x->part, err) : load_packed(m, x, err);
        if (s != INFER_OK)
            goto fail;
        /* What was copied need not stay resident; who reads it in place too will fault in the pages that it touches. */
        if (!x->in_place && p->file->weights.p[x->ref].tensor)
            infer_gguf_tensor_drop(p->file->gguf, p->file->weights.p[x->ref].tensor);
        if (!x->in_place && progress)
            progress(user, done += x->plan.packed_bytes, total);
    }
    *out = m;
    return INFER_OK;
fail:
    infer_model_destroy(m);
    return s;
}

void infer_model_destroy(infer_model *m)
{
    if (!m)
        return;
    for (uint32_t i = 0; i < m->plan->n_devs; i++) {
        infer_model_free(m, i, &m->packed[i]);
        for (uint32_t j = 0; j < INFER_MODEL_MAX_PARTS; j++)
            infer_hal_buf_free(&m->parts[i][j]);
    }
    infer_free(m);
}

infer_file *infer_model_file(const infer_model *m)
{
    return m->plan->file;
}

uint32_t infer_model_memory(const infer_model *m, infer_memory_row *rows, uint32_t cap)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->plan->n_devs; i++) {
        const infer_plan_dev *d = &m->plan->devs[i];
        for (infer_ledger_kind k = 0; k < INFER_LEDGER_KINDS; k++, n++) {
            if (n >= cap)
                continue;
            rows[n] = (infer_memory_row){.planned = d->ledger[k], .booked = atomic_load(&m->booked[i][k])};
            strncpy(rows[n].device, infer_hal_dev_id(d->dev), sizeof rows[n].device - 1);
            strncpy(rows[n].kind, infer_ledger_kind_name(k), sizeof rows[n].kind - 1);
        }
    }
    return n;
}

/* ---- Binding ------------------------------------------------------------------------------------------------ */

static infer_status bind_weight(void *user, int32_t dev, uint64_t ref, infer_op_id use, infer_operand *out)
{
    infer_model *m = user;
    const infer_weight_inst *x = infer_plan_weight(m->plan, dev, ref, use);
    if (!x || !x->used)
        return INFER_E_NOT_FOUND;
    uint32_t slot = INFER_SLOT_I_WEIGHT0 + (x->in_place ? 1 + x->part : 0);
    *out = (infer_operand){.slot = slot, .offset = x->offset, .size = x->plan.packed_bytes};
    return INFER_OK;
}

static infer_status bind_kv(void *user, int32_t dev, uint64_t ref, infer_operand *out)
{
    infer_model *m = user;
    const infer_plan *p = m->plan;
    uint64_t layer = ref / INFER_GRAPH_PLANES;
    if (p->kv_home[layer] != dev)
        return INFER_E_NOT_FOUND;
    *out = (infer_operand){.slot = INFER_SLOT_I_KV};
    infer_kv_layout_plane(&p->devs[dev].kv, (uint32_t)p->kv_index[layer], (uint32_t)(ref % INFER_GRAPH_PLANES),
                          &out->offset, &out->size);
    return INFER_OK;
}

infer_status infer_model_bind(infer_model *m, int32_t dev, infer_graph_binding *b, infer_error *err)
{
    (void)err;
    b->n_slots = INFER_SLOT_I_WEIGHT0 + 1 + INFER_MODEL_MAX_PARTS;
    b->ranges[INFER_SLOT_I_WEIGHT0] = (infer_range){m->packed[dev].h, 0, m->packed[dev].size};
    for (uint32_t j = 0; j < INFER_MODEL_MAX_PARTS; j++)
        b->ranges[INFER_SLOT_I_WEIGHT0 + 1 + j] = (infer_range){m->parts[dev][j].h, 0, m->parts[dev][j].size};
    b->weight = bind_weight;
    b->kv = bind_kv;
    b->user = m;
    return INFER_OK;
}
