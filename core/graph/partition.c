/* Which device runs which node, and the cut into parts. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "graph/compile.h"
#include "ops/ops.h"

infer_status infer_graph_desc_on(const infer_graph *g, const infer_graph_target *t, const infer_gnode *n, int32_t dev,
                                 infer_op_desc *desc, infer_tensor_desc *tensors, infer_error *err)
{
    infer_graph_desc(g, n, desc, tensors);
    for (uint32_t i = 0; i < n->n_in; i++)
        if (n->in[i] >= 0 && g->vals[n->in[i]].kind == INFER_VAL_WEIGHT)
            INFER_TRY(t->weight_desc(t->user, dev, g->vals[n->in[i]].ref, n->op, &tensors[i], err));
    return INFER_OK;
}

infer_status infer_graph_ask(const infer_graph *g, const infer_graph_target *t, const infer_gnode *n, int32_t dev,
                             infer_op_answer *out, infer_error *err)
{
    infer_op_desc desc;
    infer_tensor_desc tensors[INFER_OP_MAX_OPERANDS + 4];
    INFER_TRY(infer_graph_desc_on(g, t, n, dev, &desc, tensors, err));
    const infer_op_desc *p = &desc;
    infer_hal_op_query(t->devs[dev], &p, 1, out);
    if (t->deterministic && out->level != INFER_LEVEL_NO && !out->row_invariant) {
        out->level = INFER_LEVEL_NO;
        out->why = INFER_GRAPH_WHY_ROWS;
    }
    return INFER_OK;
}

void infer_answer_reason(const infer_op_answer *a, char *buf, size_t cap)
{
    static const struct {
        uint32_t why;
        const char *text;
        int numbered;
    } rows[] = {
        {INFER_WHY_NONE, "no reason given", 0},     {INFER_WHY_OP, "no such op there", 0},
        {INFER_WHY_FORMAT, "format of operand", 1}, {INFER_WHY_SHAPE, "shape of operand", 1},
        {INFER_WHY_LAYOUT, "layout of operand", 1}, {INFER_WHY_ATTR, "attribute", 1},
        {INFER_WHY_EPILOGUE, "epilogue", 1},        {INFER_WHY_UNKNOWN_BITS, "attribute bits it does not know", 0},
        {INFER_WHY_MEMORY, "not enough memory", 0}, {INFER_GRAPH_WHY_ROWS, "a row's result depends on the batch", 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].why != a->why)
            continue;
        if (rows[i].numbered)
            snprintf(buf, cap, "%s %u", rows[i].text, a->which);
        else
            snprintf(buf, cap, "%s", rows[i].text);
        return;
    }
    snprintf(buf, cap, "reason %u", a->why);
}

static int touches_cache(infer_op_id op)
{
    switch (op) {
    case INFER_OP_KV_WRITE:
    case INFER_OP_ROPE_KV_WRITE:
    case INFER_OP_ATTN_PAGED:
    case INFER_OP_MLA_PAGED:
        return 1;
    default:
        return 0;
    }
}

static infer_status refuse(const infer_graph_target *t, const infer_gnode *n, int32_t dev, const infer_op_answer *a,
                           infer_error *err)
{
    char why[80];
    const infer_op_info *info = infer_op_get(n->op);
    infer_answer_reason(a, why, sizeof why);
    return infer_error_set(err, INFER_E_UNSUPPORTED, "layer %d: %s does not run %s (%s)", n->layer,
                           infer_hal_dev_id(t->devs[dev]), info ? info->name : "op", why);
}

infer_status infer_graph_partition(infer_graph *g, const infer_graph_target *t, infer_compiled *out, infer_error *err)
{
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        infer_gnode *n = &g->nodes[i];
        int cache = touches_cache(n->op);
        int32_t dev = cache ? t->kv_home[n->layer] : t->home[n->layer + 1];
        infer_op_answer a = {0};
        infer_status s = infer_graph_ask(g, t, n, dev, &a, err);
        if (s == INFER_OK && a.level == INFER_LEVEL_NO && dev != t->host) {
            if (cache)
                out->kv_refused_dev = dev;
            if (cache || t->host < 0)
                return refuse(t, n, dev, &a, err);
            dev = t->host;
            out->n_fallback++;
            s = infer_graph_ask(g, t, n, dev, &a, err);
        }
        if (s != INFER_OK)
            return infer_error_prefix(err, s, "layer %d", n->layer);
        if (a.level == INFER_LEVEL_NO)
            return refuse(t, n, dev, &a, err);
        n->dev = dev;
        n->answer = a;
    }
    return INFER_OK;
}

/* A value's transfer to a device, made once however many parts of it read the value. */
static infer_status need_on(const infer_graph *g, infer_compiled *c, infer_val v, uint32_t part, int32_t *made_by,
                            uint8_t *there, infer_error *err)
{
    infer_val r = infer_graph_root(g, v);
    int32_t dev = c->parts[part].dev;
    if (g->vals[r].kind != INFER_VAL_ACT || there[(size_t)dev * g->n_vals + (size_t)r])
        return INFER_OK;
    if (made_by[r] < 0)
        return infer_error_set(err, INFER_E_INTERNAL, "graph: value %d (%s) is read before it is made", r,
                               g->vals[r].name ? g->vals[r].name : "");
    infer_transfer *x = infer_realloc_array(c->xfers, c->n_xfers + 1, sizeof *x);
    if (!x)
        return infer_error_set(err, INFER_E_NO_MEMORY, "graph: no host memory for transfers");
    c->xfers = x;
    uint64_t bytes;
    INFER_TRY(infer_tensor_bytes(&g->vals[r].desc, &bytes));
    x = &c->xfers[c->n_xfers++];
    *x = (infer_transfer){.val = r,
                          .src_part = (uint32_t)made_by[r],
                          .dst_part = part,
                          .src_dev = c->parts[made_by[r]].dev,
                          .dst_dev = dev,
                          .row_bytes = bytes / (uint64_t)g->vals[r].desc.shape[0],
                          .max_bytes = bytes,
                          .rows_from = g->vals[r].rows_from,
                          .rows_mul = g->vals[r].rows_mul,
                          .stage_offset = c->stage_bytes};
    c->stage_bytes += (bytes + 63) / 64 * 64;
    there[(size_t)dev * g->n_vals + (size_t)r] = 1;
    return INFER_OK;
}

infer_status infer_graph_cut(const infer_graph *g, const infer_graph_target *t, infer_compiled *c, infer_error *err)
{
    c->order = infer_malloc(g->n_nodes * sizeof *c->order);
    c->parts = infer_malloc(g->n_nodes * sizeof *c->parts);
    if (!c->order || !c->parts)
        return infer_error_set(err, INFER_E_NO_MEMORY, "graph: no host memory for %u nodes", g->n_nodes);
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const infer_gnode *n = &g->nodes[i];
        if (n->removed)
            continue;
        int fallback = n->dev == t->host && t->home[n->layer + 1] != n->dev;
        infer_part *p = c->n_parts ? &c->parts[c->n_parts - 1] : NULL;
        if (!p || p->dev != n->dev || p->program != n->program) {
            p = &c->parts[c->n_parts++];
            *p = (infer_part){.dev = n->dev, .program = n->program, .first = c->n_order};
        }
        p->fallback |= fallback;
        c->order[c->n_order++] = i;
        p->count++;
    }
    return INFER_OK;
}

infer_status infer_graph_transfers(const infer_graph *g, const infer_graph_target *t, infer_compiled *c,
                                   infer_error *err)
{
    infer_status s = INFER_OK;
    int32_t *made_by = infer_malloc(g->n_vals * sizeof *made_by);
    uint8_t *there = infer_calloc((size_t)t->n_devs * g->n_vals, 1);
    if (!made_by || !there)
        s = infer_error_set(err, INFER_E_NO_MEMORY, "graph: no host memory for %u values", g->n_vals);
    for (uint32_t i = 0; i < g->n_vals && s == INFER_OK; i++)
        made_by[i] = -1;
    for (uint32_t p = 0; p < c->n_parts; p++) {
        for (uint32_t i = c->parts[p].first; i < c->parts[p].first + c->parts[p].count && s == INFER_OK; i++) {
            const infer_gnode *n = &g->nodes[c->order[i]];
            for (uint32_t k = 0; k < n->n_in && s == INFER_OK; k++)
                if (n->in[k] >= 0)
                    s = need_on(g, c, n->in[k], p, made_by, there, err);
            for (uint32_t k = 0; k < n->n_out && s == INFER_OK; k++) {
                infer_val r = infer_graph_root(g, n->out[k]);
                made_by[r] = (int32_t)p;
                there[(size_t)n->dev * g->n_vals + (size_t)r] = 1;
            }
        }
    }
    infer_free(made_by);
    infer_free(there);
    return s;
}
