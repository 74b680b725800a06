/* The weights of a plan: how each lies on each device, and where. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "model/plan.h"

/* Instances of one weight on one device are a short list: as many as there are ops that read it. */
static int32_t *head_of(const infer_plan *p, int32_t dev, uint64_t ref)
{
    return &p->inst_of[(size_t)dev * p->file->weights.n + ref];
}

infer_weight_inst *infer_plan_weight(const infer_plan *p, int32_t dev, uint64_t ref, infer_op_id use)
{
    int32_t i = *head_of(p, dev, ref);
    while (i >= 0 && p->insts[i].use != use)
        i = p->insts[i].next;
    return i < 0 ? NULL : &p->insts[i];
}

void infer_plan_weight_source(const infer_plan *p, const infer_weight_inst *x, infer_weight_desc *d)
{
    const infer_weight_src *w = &p->file->weights.p[x->ref];
    *d = (infer_weight_desc){.struct_size = sizeof *d, .quant = {.format = w->format}, .rank = w->rank, .use = x->use};
    if (infer_plan_recodes(p, x->ref))
        d->quant = p->recode;
    memcpy(d->shape, w->shape, sizeof d->shape);
}

static infer_status make(infer_plan *p, int32_t dev, uint64_t ref, infer_op_id use, infer_weight_inst **out,
                         infer_error *err)
{
    const infer_weight_src *w = &p->file->weights.p[ref];
    infer_weight_inst x = {.dev = dev, .ref = (uint32_t)ref, .use = use, .shares = -1};
    infer_weight_desc d;
    infer_plan_weight_source(p, &x, &d);
    x.plan.struct_size = sizeof x.plan;
    infer_status s = infer_hal_weight_plan(p->devs[dev].dev, &d, &x.plan, err);
    if (s != INFER_OK)
        return infer_error_prefix(err, s, "weight %s", w->name);
    x.in_place = (x.plan.flags & INFER_WEIGHT_IN_PLACE) && w->tensor && !infer_plan_recodes(p, x.ref) && x.plan.align &&
                 w->tensor->part < INFER_MODEL_MAX_PARTS && (uintptr_t)w->tensor->data % x.plan.align == 0;
    if (x.in_place) {
        const uint8_t *base;
        uint64_t n;
        infer_gguf_part_bytes(p->file->gguf, w->tensor->part, &base, &n);
        x.part = w->tensor->part;
        x.offset = (uint64_t)(w->tensor->data - base);
    }
    if (p->n_insts == p->cap_insts) {
        uint32_t cap = p->cap_insts ? p->cap_insts * 2 : 512;
        infer_weight_inst *q = infer_realloc_array(p->insts, cap, sizeof *q);
        if (!q)
            return infer_error_set(err, INFER_E_NO_MEMORY, "plan: no host memory for the weight list");
        p->insts = q;
        p->cap_insts = cap;
    }
    int32_t *head = head_of(p, dev, ref);
    x.next = *head;
    *head = (int32_t)p->n_insts;
    p->insts[p->n_insts] = x;
    *out = &p->insts[p->n_insts++];
    return INFER_OK;
}

infer_status infer_plan_weight_desc(void *user, int32_t dev, uint64_t ref, infer_op_id use, infer_tensor_desc *desc,
                                    infer_error *err)
{
    infer_weight_inst *x = infer_plan_weight(user, dev, ref, use);
    infer_weight_desc d;
    if (!x)
        INFER_TRY(make(user, dev, ref, use, &x, err));
    infer_plan_weight_source(user, x, &d);
    desc->format = x->plan.format;
    desc->layout = x->plan.layout;
    desc->quant = (infer_quant){0};
    if (d.quant.scale_format && d.quant.format == x->plan.format) /* else the device keeps it in another way */
        desc->quant = d.quant;
    return INFER_OK;
}

/* An earlier used instance on the same device that is the same image, -1: none. */
static int32_t same_image(const infer_plan *p, const infer_weight_inst *x)
{
    for (int32_t i = *head_of(p, x->dev, x->ref); i >= 0; i = p->insts[i].next) {
        const infer_weight_inst *y = &p->insts[i];
        if (y < x && y->used && y->shares < 0 && y->plan.layout == x->plan.layout && y->plan.format == x->plan.format &&
            y->in_place == x->in_place)
            return i;
    }
    return -1;
}

infer_status infer_plan_weights_lay_out(infer_plan *p, infer_error *err)
{
    const infer_compiled *c = &p->compiled;
    for (uint32_t i = 0; i < p->n_insts; i++)
        p->insts[i].used = 0;
    for (uint32_t i = 0; i < c->n_order; i++) {
        const infer_gnode *n = &p->graph.nodes[c->order[i]];
        for (uint32_t k = 0; k < n->n_in; k++) {
            const infer_value *v = n->in[k] < 0 ? NULL : &p->graph.vals[n->in[k]];
            if (v && v->kind == INFER_VAL_WEIGHT)
                infer_plan_weight(p, n->dev, v->ref, n->op)->used = 1; /* partition asked for it */
        }
    }
    for (uint32_t i = 0; i < p->n_devs; i++)
        p->devs[i].ledger[INFER_LEDGER_WEIGHTS] = p->devs[i].mapped = 0;
    for (uint32_t i = 0; i < p->n_insts; i++) {
        infer_weight_inst *x = &p->insts[i];
        infer_plan_dev *d = &p->devs[x->dev];
        if (!x->used)
            continue;
        x->shares = same_image(p, x);
        if (x->shares >= 0) {
            x->offset = p->insts[x->shares].offset;
            continue;
        }
        if (x->in_place) {
            d->mapped += x->plan.packed_bytes;
            continue;
        }
        uint64_t at, align = x->plan.align > 256 ? x->plan.align : 256;
        if (!infer_round_up_u64(d->ledger[INFER_LEDGER_WEIGHTS], align, &at) ||
            !infer_add_u64(at, x->plan.packed_bytes, &d->ledger[INFER_LEDGER_WEIGHTS]))
            return infer_error_set(err, INFER_E_TOO_LARGE, "plan: weights are larger than can be addressed");
        x->offset = at;
    }
    return INFER_OK;
}

double infer_plan_token_bytes(const infer_plan *p, uint32_t dev)
{
    const infer_hparams *hp = &p->file->hp;
    double bytes = 0;
    for (uint32_t i = 0; i < p->n_insts; i++) {
        const infer_weight_inst *x = &p->insts[i];
        if (!x->used || x->dev != (int32_t)dev || x->use == INFER_OP_GATHER_ROWS)
            continue;
        double share = x->use == INFER_OP_MOE_MATMUL ? (double)hp->n_experts_used / hp->n_experts : 1;
        bytes += share * (double)x->plan.packed_bytes;
    }
    return bytes;
}
