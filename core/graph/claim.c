/* Which runs of nodes a device's plugin compiles whole: each becomes a part, and so a program, of its own.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "base/alloc.h"
#include "graph/compile.h"
#include "ops/ops.h"

/* Before the memory plan operands have no place: distinct offsets tell the values apart. */
typedef struct names {
    const infer_graph *g;
    uint64_t *at; /* of each value */
} names;

static uint32_t slot_of(infer_val_kind kind)
{
    switch (kind) {
    case INFER_VAL_WEIGHT:
        return INFER_SLOT_I_WEIGHT0;
    case INFER_VAL_KV:
        return INFER_SLOT_I_KV;
    case INFER_VAL_STEP:
        return INFER_SLOT_I_STEP;
    case INFER_VAL_STATE:
        return INFER_SLOT_I_STATE;
    default:
        return INFER_SLOT_I_ARENA;
    }
}

static infer_status name_of(void *user, const infer_gnode *n, infer_val v, const infer_tensor_desc *desc,
                            infer_operand *out)
{
    const names *x = user;
    (void)n;
    (void)desc;
    infer_val r = infer_graph_root(x->g, v);
    *out = (infer_operand){.slot = slot_of(x->g->vals[r].kind), .offset = x->at[r], .size = x->at[r + 1] - x->at[r]};
    return INFER_OK;
}

/* Lays all values out one after the other; at has one entry more than there are values. */
static infer_status lay_out(const infer_graph *g, uint64_t *at)
{
    at[0] = 0;
    for (uint32_t i = 0; i < g->n_vals; i++) {
        uint64_t bytes;
        INFER_TRY(infer_tensor_bytes(&g->vals[i].desc, &bytes));
        at[i + 1] = at[i] + (bytes + 63) / 64 * 64;
        if (at[i + 1] < at[i])
            return INFER_E_TOO_LARGE;
    }
    return INFER_OK;
}

static infer_status ask(const infer_graph_target *t, const infer_compiled *c, uint32_t part, names *x, int32_t *set_of,
                        infer_error *err)
{
    enum { N_SLOTS = INFER_SLOT_I_WEIGHT0 + 1 };
    infer_slot_desc slots[N_SLOTS];
    infer_view_store st;
    uint32_t rows = 0;
    for (uint32_t i = 0; i < N_SLOTS; i++)
        slots[i] = (infer_slot_desc){.kind = infer_graph_slot_kind(i), .size = x->at[x->g->n_vals]};
    for (uint32_t i = 0; i < x->g->n_vals; i++)
        if (x->g->vals[i].rows_from == INFER_COUNT_TOKENS && x->g->vals[i].rows_mul == 1 &&
            x->g->vals[i].desc.shape[0] > rows)
            rows = (uint32_t)x->g->vals[i].desc.shape[0];
    INFER_TRY(infer_graph_view_build(c, t, part, rows, name_of, x, &st, err));
    infer_graph_view view = {.struct_size = sizeof view,
                             .nodes = st.nodes,
                             .slots = slots,
                             .n_nodes = c->parts[part].count,
                             .node_size = sizeof *st.nodes,
                             .n_slots = N_SLOTS,
                             .slot_size = sizeof *slots,
                             .bucket = rows};
    infer_status s = infer_hal_prog_claim(t->devs[c->parts[part].dev], &view, set_of, err);
    infer_view_free(&st);
    return s;
}

infer_status infer_graph_claim(const infer_graph *g, const infer_graph_target *t, infer_compiled *c, infer_error *err)
{
    infer_status s = INFER_OK;
    names x = {.g = g, .at = infer_malloc(((size_t)g->n_vals + 1) * sizeof *x.at)};
    infer_part *parts = infer_malloc(c->n_order * sizeof *parts);
    int32_t *set_of = infer_malloc(c->n_order * sizeof *set_of);
    uint32_t n = 0;
    if (!x.at || !parts || !set_of) {
        s = infer_error_set(err, INFER_E_NO_MEMORY, "graph: no host memory for %u nodes", c->n_order);
        goto out;
    }
    if ((s = lay_out(g, x.at)) != INFER_OK) {
        infer_error_set(err, s, "graph: its values are larger than can be addressed");
        goto out;
    }
    for (uint32_t p = 0; p < c->n_parts; p++) {
        const infer_part *old = &c->parts[p];
        if ((s = ask(t, c, p, &x, set_of, err)) != INFER_OK)
            goto out;
        for (uint32_t i = 0; i < old->count; i++) {
            if (i == 0 || set_of[i] != set_of[i - 1]) {
                parts[n] = *old;
                parts[n].first = old->first + i;
                parts[n].count = 0;
                parts[n].claimed = set_of[i] >= 0;
                n++;
            }
            parts[n - 1].count++;
        }
    }
    infer_free(c->parts);
    c->parts = parts;
    c->n_parts = n;
    parts = NULL;
out:
    infer_free(x.at);
    infer_free(parts);
    infer_free(set_of);
    return s;
}
