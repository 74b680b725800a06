/*
 * What runs elsewhere: one row for each device, op and reason, with how often it runs for a token, what has to be moved
 * for it, and, where the plan was made to be measured, how long it takes on the host. Changes nothing in the plan.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <string.h>

#include <jansson.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "graph/compile.h"
#include "model/plan.h"
#include "ops/ops.h"
#include "quant/quant.h"

/* For measuring: memory of one op's operands, time of one op and of all, different ops. */
enum { MOST_BYTES = 1 << 30, MOST_TIMES = 64, ONE_NS = 50 * 1000 * 1000 };
#define ALL_NS (UINT64_C(3) * 1000 * 1000 * 1000)

/* One op's time, found once for all nodes that are alike. */
typedef struct timing {
    infer_op_desc desc;
    infer_tensor_desc tensors[INFER_OP_MAX_OPERANDS + 4];
    infer_any_attrs attrs;
    double ns; /* 0: not known */
} timing;

typedef struct row {
    uint32_t count, moves;
    double bytes, ns;
    int timed;      /* every one of them so far */
    int measured;   /* else declared */
    int32_t device; /* index in the plan */
    infer_op_id op;
    char why[112];
} row;

typedef struct table {
    const infer_plan *p;
    row *rows;
    uint32_t n;
    uint32_t *row_of; /* by index in the order; UINT32_MAX: none */
    timing *times;    /* NULL: nothing is measured */
    uint32_t n_times;
    uint64_t spent_ns;
} table;

/* ---- Time ----------------------------------------------------------------------------------------------------- */

/* What its indices say decides how much they read, or they have no reference to run. */
static int depends_on_content(infer_op_id op)
{
    switch (op) {
    case INFER_OP_KV_WRITE:
    case INFER_OP_ROPE_KV_WRITE:
    case INFER_OP_ATTN_PAGED:
    case INFER_OP_MLA_PAGED:
    case INFER_OP_SAMPLE:
    case INFER_OP_MOE_MATMUL:
        return 1;
    default:
        return 0;
    }
}

/* Runs the reference for one row (which is what a token of one sequence has), with zeros for content. */
static double run_once(table *t, const infer_op_desc *d)
{
    void *data[INFER_OP_MAX_OPERANDS + 4] = {NULL};
    int32_t counts[INFER_COUNT_MAX];
    uint64_t bytes, all = 0, best = 0;
    uint32_t n = d->n_in + d->n_out;
    int ok = n <= sizeof data / sizeof data[0];
    for (uint32_t i = 0; i < INFER_COUNT_MAX; i++)
        counts[i] = 1;
    for (uint32_t i = 0; i < n && ok; i++) {
        if (d->tensors[i].flags & INFER_TENSOR_ABSENT)
            continue;
        ok = !infer_tensor_bytes(&d->tensors[i], &bytes) && bytes <= MOST_BYTES && (all += bytes) <= MOST_BYTES &&
             (data[i] = infer_calloc(1, (size_t)bytes)) != NULL;
    }
    for (int i = 0; i < 3 && ok && (!i || best < ONE_NS); i++) {
        uint64_t begin = infer_clock_ns();
        ok = infer_op_ref(d, data, counts) == INFER_OK;
        uint64_t took = infer_clock_ns() - begin;
        t->spent_ns += took;
        best = !i || took < best ? took : best;
    }
    for (uint32_t i = 0; i < n && i < sizeof data / sizeof data[0]; i++)
        infer_free(data[i]);
    return ok ? (double)best : 0;
}

static double measured_ns(table *t, const infer_gnode *n)
{
    timing x;
    memset(&x, 0, sizeof x); /* compared byte by byte */
    if (!t->times || depends_on_content(n->op) ||
        infer_graph_desc_on(&t->p->graph, &t->p->target, n, t->p->target.host, &x.desc, x.tensors, NULL))
        return 0;
    x.attrs = n->attrs;
    const infer_op_desc d = x.desc;
    x.desc.tensors = NULL;
    x.desc.attrs = NULL;
    x.desc.epilogue = NULL;
    for (uint32_t i = 0; i < t->n_times; i++)
        if (!memcmp(&x.desc, &t->times[i].desc, sizeof x.desc) &&
            !memcmp(x.tensors, t->times[i].tensors, sizeof x.tensors) &&
            !memcmp(&x.attrs, &t->times[i].attrs, n->attrs_size))
            return t->times[i].ns;
    if (t->n_times == MOST_TIMES || t->spent_ns > ALL_NS)
        return 0;
    infer_op_desc at = d;
    at.tensors = x.tensors;
    x.ns = run_once(t, &at);
    t->times[t->n_times++] = x;
    return x.ns;
}

/* ---- Rows ----------------------------------------------------------------------------------------------------- */

static int falls_back(const infer_plan *p, const infer_gnode *n)
{
    return n->dev == p->target.host && p->home[n->layer + 1] != n->dev;
}

static int touches(const infer_graph *g, const infer_val *vals, uint32_t n, infer_val root)
{
    for (uint32_t i = 0; i < n; i++)
        if (vals[i] >= 0 && infer_graph_root(g, vals[i]) == root)
            return 1;
    return 0;
}

/* A node may have been made on the host from several that the device refused: one of those, which reads a weight of
 * its. */
static const infer_gnode *part_of(const infer_plan *p, const infer_gnode *n)
{
    for (uint32_t i = 0; i < p->graph.n_nodes; i++) {
        const infer_gnode *m = &p->graph.nodes[i];
        for (uint32_t k = 1; m->removed && m->layer == n->layer && k < m->n_in; k++)
            if (m->in[k] >= 0 && p->graph.vals[m->in[k]].kind == INFER_VAL_WEIGHT &&
                touches(&p->graph, n->in, n->n_in, m->in[k]))
                return m;
    }
    return NULL;
}

/* The device's reason, with the format or shape that it is about. */
static void reason(const infer_plan *p, const infer_gnode *n, int32_t home, char *buf, size_t cap)
{
    infer_op_answer a = {0};
    infer_op_desc d;
    infer_tensor_desc tensors[INFER_OP_MAX_OPERANDS + 4];
    snprintf(buf, cap, "its cache lies on the host");
    if (infer_graph_ask(&p->graph, &p->target, n, home, &a, NULL) || a.level != INFER_LEVEL_NO)
        return;
    const infer_gnode *m = a.why == INFER_WHY_OP ? part_of(p, n) : NULL;
    infer_op_answer of_part = {0};
    size_t len = 0;
    if (m && !infer_graph_ask(&p->graph, &p->target, m, home, &of_part, NULL) && of_part.level == INFER_LEVEL_NO) {
        const infer_op_info *info = infer_op_get(m->op);
        len = (size_t)snprintf(buf, cap, "%s in it: ", info ? info->name : "op");
        a = of_part;
        n = m;
    }
    infer_answer_reason(&a, buf + len, cap - len);
    if ((a.why != INFER_WHY_FORMAT && a.why != INFER_WHY_SHAPE) || a.which >= (uint32_t)n->n_in + n->n_out ||
        infer_graph_desc_on(&p->graph, &p->target, n, home, &d, tensors, NULL))
        return;
    const infer_tensor_desc *t = &tensors[a.which];
    const infer_format_info *f = infer_format_get(t->format);
    len = strlen(buf);
    if (a.why == INFER_WHY_FORMAT)
        snprintf(buf + len, cap - len, ": %s", f ? f->name : "?");
    for (uint32_t i = 0; a.why == INFER_WHY_SHAPE && i < t->rank && len < cap; i++) {
        snprintf(buf + len, cap - len, "%s%lld", i ? "x" : ": ", (long long)t->shape[i]);
        len = strlen(buf);
    }
}

static void count_nodes(table *t)
{
    const infer_plan *p = t->p;
    const infer_compiled *c = &p->compiled;
    for (uint32_t i = 0; i < c->n_order; i++) {
        const infer_gnode *n = &p->graph.nodes[c->order[i]];
        t->row_of[i] = UINT32_MAX;
        if (!falls_back(p, n))
            continue;
        row r = {.count = 0, .device = p->home[n->layer + 1], .op = n->op, .timed = 1};
        reason(p, n, r.device, r.why, sizeof r.why);
        uint32_t k = 0;
        while (k < t->n && (t->rows[k].device != r.device || t->rows[k].op != r.op || strcmp(t->rows[k].why, r.why)))
            k++;
        if (k == t->n)
            t->rows[t->n++] = r;
        row *to = &t->rows[k];
        double ns = measured_ns(t, n);
        to->measured |= ns > 0;
        ns = ns > 0 ? ns : n->answer.est_ns;
        to->timed &= ns > 0;
        to->ns += ns;
        to->count++;
        t->row_of[i] = k;
    }
}

/* The row of the node of a part that makes (or first reads) a value; UINT32_MAX: it is at home there. */
static uint32_t row_in_part(const table *t, uint32_t part, infer_val root, int reads)
{
    const infer_compiled *c = &t->p->compiled;
    const infer_part *q = &c->parts[part];
    uint32_t found = UINT32_MAX;
    for (uint32_t i = q->first; i < q->first + q->count; i++) {
        const infer_gnode *n = &t->p->graph.nodes[c->order[i]];
        if (reads ? touches(&t->p->graph, n->in, n->n_in, root) : touches(&t->p->graph, n->out, n->n_out, root)) {
            found = t->row_of[i];
            if (reads)
                break;
        }
    }
    return found;
}

/* A value's way belongs to the op that made it elsewhere, else to the one that reads it elsewhere. */
static void count_moves(table *t)
{
    const infer_compiled *c = &t->p->compiled;
    for (uint32_t i = 0; i < c->n_xfers; i++) {
        const infer_transfer *x = &c->xfers[i];
        uint32_t k = row_in_part(t, x->src_part, x->val, 0);
        if (k == UINT32_MAX)
            k = row_in_part(t, x->dst_part, x->val, 1);
        if (k == UINT32_MAX)
            continue;
        t->rows[k].moves++;
        t->rows[k].bytes +=
            x->rows_from == INFER_ROWS_STATIC ? (double)x->max_bytes : (double)x->row_bytes * (double)x->rows_mul;
    }
}

static json_t *as_json(const table *t)
{
    json_t *a = json_array();
    for (uint32_t i = 0; i < t->n; i++) {
        const row *r = &t->rows[i];
        const infer_op_info *info = infer_op_get(r->op);
        json_array_append_new(a, json_pack("{s:s,s:s,s:i,s:o,s:i,s:I,s:o,s:s}", "device",
                                           infer_hal_dev_id(t->p->devs[r->device].dev), "op", info ? info->name : "?",
                                           "count", (int)r->count, "reason", infer_json_text(r->why), "moves",
                                           (int)r->moves, "bytes_moved", (json_int_t)r->bytes, "time_us",
                                           r->timed ? json_real(r->ns / 1000) : json_null(), "time_basis",
                                           !r->timed     ? "not known"
                                           : r->measured ? "measured with one row of zeros"
                                                         : "declared, not measured"));
    }
    return a;
}

json_t *infer_plan_fallbacks(const infer_plan *p)
{
    const uint32_t n = p->compiled.n_order ? p->compiled.n_order : 1;
    table t = {.p = p};
    json_t *a = NULL;
    t.rows = infer_calloc(n, sizeof *t.rows);
    t.row_of = infer_calloc(n, sizeof *t.row_of);
    t.times = p->opt.measure ? infer_calloc(MOST_TIMES, sizeof *t.times) : NULL;
    if (t.rows && t.row_of) {
        count_nodes(&t);
        count_moves(&t);
        a = as_json(&t);
    }
    infer_free(t.rows);
    infer_free(t.row_of);
    infer_free(t.times);
    return a;
}
