/* The order of the steps from graph to plan, and its printed form. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "base/alloc.h"
#include "graph/compile.h"
#include "ops/ops.h"
#include "quant/quant.h"

void infer_compiled_free(infer_compiled *c)
{
    infer_free(c->order);
    infer_free(c->parts);
    infer_free(c->xfers);
    infer_free(c->place);
    infer_free(c->scratch);
    memset(c, 0, sizeof *c);
    c->kv_refused_dev = -1;
}

infer_status infer_graph_compile(infer_graph *g, const infer_graph_target *t, infer_compiled *out, infer_error *err)
{
    infer_compiled c = {.g = g, .kv_refused_dev = -1};
    if (g->failed)
        return infer_error_set(err, INFER_E_NO_MEMORY, "graph: no host memory while building");
    if (!g->n_nodes || !t->n_devs || t->n_devs > INFER_GRAPH_MAX_DEVS)
        return infer_error_set(err, INFER_E_INVALID, "graph: %u nodes on %u devices", g->n_nodes, t->n_devs);
    for (uint32_t i = 0; i < g->n_nodes; i++)
        g->nodes[i].removed = 0;
    infer_status s = infer_graph_partition(g, t, &c, err);
    if (s == INFER_OK)
        s = infer_graph_fuse(g, t, err);
    if (s == INFER_OK)
        s = infer_graph_cut(g, t, &c, err);
    if (s == INFER_OK)
        s = infer_graph_claim(g, t, &c, err);
    if (s == INFER_OK)
        s = infer_graph_transfers(g, t, &c, err);
    if (s == INFER_OK)
        s = infer_graph_memplan(g, t, &c, err);
    if (s != INFER_OK) {
        int32_t refused = c.kv_refused_dev;
        infer_compiled_free(&c);
        out->kv_refused_dev = refused;
        return s;
    }
    *out = c;
    return INFER_OK;
}

void infer_compiled_print(const infer_compiled *c, const infer_graph_target *t, infer_buf *out)
{
    for (uint32_t p = 0; p < c->n_parts; p++) {
        const infer_part *part = &c->parts[p];
        infer_buf_printf(out, "part %u on %s%s%s%s\n", p, infer_hal_dev_id(t->devs[part->dev]),
                         part->program == INFER_PROGRAM_SAMPLE ? ", sample" : "", part->fallback ? ", fallback" : "",
                         part->claimed ? ", claimed" : "");
        for (uint32_t i = part->first; i < part->first + part->count; i++) {
            const infer_gnode *n = &c->g->nodes[c->order[i]];
            const infer_op_info *info = infer_op_get(n->op);
            infer_buf_printf(out, "%4u %-14s layer %d %s", i, info ? info->name : "?", n->layer,
                             n->answer.level == INFER_LEVEL_NATIVE ? "native" : "composed");
            if (n->n_epilogue)
                infer_buf_printf(out, " +%u", n->n_epilogue);
            for (uint32_t k = 0; k < n->n_out; k++) {
                const infer_value *v = &c->g->vals[n->out[k]];
                const infer_format_info *f = infer_format_get(v->desc.format);
                infer_buf_printf(out, " %s %s", v->name ? v->name : "-", f ? f->name : "?");
                for (uint32_t a = 0; a < v->desc.rank; a++)
                    infer_buf_printf(out, "[%lld]", (long long)v->desc.shape[a]);
            }
            infer_buf_puts(out, "\n");
        }
    }
}
