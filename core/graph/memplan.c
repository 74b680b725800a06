/* The memory plan: every activation's and scratch's place in its device's arena, by lifetime. Largest first, lowest
 * offset that is free over the whole lifetime. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "graph/compile.h"
#include "ops/ops.h"

/* One thing that needs memory on one device while positions [from, to] of the order run. */
typedef struct lease {
    int32_t dev;
    uint32_t from, to;
    uint64_t bytes, align, offset;
    uint64_t *where; /* receives the offset */
    uint32_t index;  /* keeps the sort stable */
} lease;

typedef struct lease_list {
    lease *p;
    uint32_t n, cap;
} lease_list;

static infer_status lease_add(lease_list *l, lease x)
{
    if (l->n == l->cap) {
        uint32_t cap = l->cap ? l->cap * 2 : 256;
        lease *p = infer_realloc_array(l->p, cap, sizeof *p);
        if (!p)
            return INFER_E_NO_MEMORY;
        l->p = p;
        l->cap = cap;
    }
    x.index = l->n;
    l->p[l->n++] = x;
    return INFER_OK;
}

static int by_size(const void *a, const void *b)
{
    const lease *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return x->index < y->index ? -1 : 1;
}

static int by_offset(const void *a, const void *b)
{
    const lease *x = *(const lease *const *)a, *y = *(const lease *const *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Places leases one by one; `near` is scratch for the earlier ones that overlap in time. */
static infer_status place_all(lease_list *l, lease **near, uint64_t *arena)
{
    qsort(l->p, l->n, sizeof *l->p, by_size);
    for (uint32_t i = 0; i < l->n; i++) {
        lease *x = &l->p[i];
        uint32_t m = 0;
        for (uint32_t j = 0; j < i; j++) {
            lease *y = &l->p[j];
            if (y->dev == x->dev && y->from <= x->to && x->from <= y->to)
                near[m++] = y;
        }
        qsort(near, m, sizeof *near, by_offset);
        uint64_t at = 0, end;
        for (uint32_t j = 0; j < m; j++) {
            if (!infer_add_u64(at, x->bytes, &end))
                return INFER_E_TOO_LARGE;
            if (end <= near[j]->offset)
                break;
            end = near[j]->offset + near[j]->bytes;
            if (end > at && !infer_round_up_u64(end, x->align, &at))
                return INFER_E_TOO_LARGE;
        }
        if (!infer_add_u64(at, x->bytes, &end))
            return INFER_E_TOO_LARGE;
        x->offset = at;
        *x->where = at;
        if (end > arena[x->dev])
            arena[x->dev] = end;
    }
    return INFER_OK;
}

static uint64_t at_least(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Until when what the node at `pos` reads stays: a device may leave rotations and cache writes to the attention right
 * behind them, or do them where the product right before them makes what they read. */
static uint32_t read_until(const infer_graph *g, const infer_compiled *c, uint32_t pos)
{
    uint32_t i = pos;
    const infer_gnode *n = &g->nodes[c->order[pos]], *m = n;
    while (i < c->n_order &&
           (m->op == INFER_OP_ROPE || m->op == INFER_OP_ROPE_KV_WRITE || (i == pos && m->op == INFER_OP_QKV))) {
        if (++i < c->n_order)
            m = &g->nodes[c->order[i]];
    }
    return i < c->n_order && m->op == INFER_OP_ATTN_PAGED && m->dev == n->dev ? i : pos;
}

infer_status infer_graph_memplan(const infer_graph *g, const infer_graph_target *t, infer_compiled *c, infer_error *err)
{
    infer_status s = INFER_E_NO_MEMORY;
    lease_list l = {0};
    lease **near = NULL;
    size_t n_places = (size_t)t->n_devs * g->n_vals;
    uint32_t *from = infer_malloc(n_places * sizeof *from), *to = infer_malloc(n_places * sizeof *to);
    c->place = infer_malloc(n_places * sizeof *c->place);
    c->scratch = infer_malloc((c->n_order ? c->n_order : 1) * sizeof *c->scratch);
    if (!from || !to || !c->place || !c->scratch)
        goto out;
    c->n_devs = t->n_devs;
    for (size_t i = 0; i < n_places; i++) {
        from[i] = UINT32_MAX;
        to[i] = 0;
        c->place[i] = UINT64_MAX;
    }
#define SPAN(dev, val, pos)                                                                                            \
    do {                                                                                                               \
        size_t k_ = (size_t)(dev)*g->n_vals + (size_t)(val);                                                           \
        if ((pos) < from[k_])                                                                                          \
            from[k_] = (pos);                                                                                          \
        if ((pos) > to[k_])                                                                                            \
            to[k_] = (pos);                                                                                            \
    } while (0)
    for (uint32_t pos = 0; pos < c->n_order; pos++) {
        const infer_gnode *n = &g->nodes[c->order[pos]];
        const uint32_t until = read_until(g, c, pos);
        for (uint32_t k = 0; k < (uint32_t)n->n_in + n->n_out; k++) {
            infer_val v = k < n->n_in ? n->in[k] : n->out[k - n->n_in];
            if (v < 0)
                continue;
            infer_val r = infer_graph_root(g, v);
            if (g->vals[r].kind != INFER_VAL_ACT)
                continue;
            SPAN(n->dev, r, pos);
            if (k < n->n_in)
                SPAN(n->dev, r, until);
            if (g->vals[r].keep || g->vals[v].keep)
                SPAN(n->dev, r, c->n_order);
        }
        c->scratch[pos] = UINT64_MAX;
        if (n->answer.scratch_bytes) {
            lease x = {.dev = n->dev,
                       .from = pos,
                       .to = pos,
                       .bytes = n->answer.scratch_bytes,
                       .align = at_least(n->answer.scratch_align, 64),
                       .where = &c->scratch[pos]};
            if ((s = lease_add(&l, x)) != INFER_OK)
                goto out;
        }
    }
    /* A value that crosses stays until its own part is copied out, and is there from the start of the part that reads
     * it. */
    for (uint32_t i = 0; i < c->n_xfers; i++) {
        const infer_transfer *x = &c->xfers[i];
        const infer_part *p = &c->parts[x->src_part];
        SPAN(x->src_dev, x->val, p->first + p->count - 1);
        SPAN(x->dst_dev, x->val, c->parts[x->dst_part].first);
    }
#undef SPAN
    for (size_t i = 0; i < n_places; i++) {
        if (from[i] == UINT32_MAX)
            continue;
        int32_t dev = (int32_t)(i / g->n_vals);
        lease x = {.dev = dev, .from = from[i], .to = to[i], .where = &c->place[i]};
        x.align = at_least(infer_hal_dev_props(t->devs[dev])->buffer_align, 64);
        if ((s = infer_tensor_bytes(&g->vals[i % g->n_vals].desc, &x.bytes)) != INFER_OK ||
            (s = lease_add(&l, x)) != INFER_OK)
            goto out;
    }
    near = infer_malloc((l.n ? l.n : 1) * sizeof(lease *));
    if (!near) {
        s = INFER_E_NO_MEMORY;
        goto out;
    }
    s = place_all(&l, near, c->arena_bytes);
    for (uint32_t i = 0; i < c->n_xfers; i++) {
        infer_transfer *x = &c->xfers[i];
        x->src_offset = c->place[(size_t)x->src_dev * g->n_vals + (size_t)x->val];
        x->dst_offset = c->place[(size_t)x->dst_dev * g->n_vals + (size_t)x->val];
    }
out:
    infer_free(near);
    infer_free(l.p);
    infer_free(from);
    infer_free(to);
    if (s != INFER_OK)
        infer_error_set(err, s, "memory plan: %s",
                        s == INFER_E_TOO_LARGE ? "an activation is larger than can be addressed" : "no host memory");
    return s;
}
