/* Building the list of values and nodes. Decides nothing. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "base/alloc.h"
#include "graph/graph.h"

void infer_graph_free(infer_graph *g)
{
    infer_free(g->vals);
    infer_free(g->nodes);
    memset(g, 0, sizeof *g);
}

/* Doubles an array of `size`-byte elements when it is full. */
static int grow(void **p, uint32_t n, uint32_t *cap, size_t size)
{
    if (n < *cap)
        return 1;
    uint32_t want = *cap ? *cap * 2 : 256;
    void *q = infer_realloc_array(*p, want, size);
    if (!q)
        return 0;
    *p = q;
    *cap = want;
    return 1;
}

infer_val infer_graph_value(infer_graph *g, infer_val_kind kind, uint64_t ref, const infer_tensor_desc *desc,
                            uint32_t rows_from, uint32_t rows_mul, const char *name)
{
    void *p = g->vals;
    if (g->failed || !grow(&p, g->n_vals, &g->cap_vals, sizeof *g->vals)) {
        g->failed = 1;
        return -1;
    }
    g->vals = p;
    g->vals[g->n_vals] = (infer_value){.alias = -1,
                                       .desc = *desc,
                                       .kind = kind,
                                       .ref = ref,
                                       .rows_from = rows_from,
                                       .rows_mul = rows_mul,
                                       .name = name};
    return (infer_val)g->n_vals++;
}

infer_gnode *infer_graph_node(infer_graph *g, infer_op_id op, int32_t layer, const infer_val *in, uint32_t n_in,
                              const void *attrs, uint32_t attrs_size)
{
    void *p = g->nodes;
    if (g->failed || n_in > INFER_OP_MAX_OPERANDS || attrs_size > sizeof g->nodes->attrs ||
        !grow(&p, g->n_nodes, &g->cap_nodes, sizeof *g->nodes)) {
        g->failed = 1;
        return NULL;
    }
    g->nodes = p;
    infer_gnode *n = &g->nodes[g->n_nodes++];
    memset(n, 0, sizeof *n);
    n->op = op;
    n->layer = layer;
    n->program = g->program;
    n->rows_from = INFER_ROWS_STATIC;
    n->rows_mul = 1;
    n->n_in = (uint8_t)n_in;
    if (n_in)
        memcpy(n->in, in, n_in * sizeof *in);
    n->attrs_size = attrs_size;
    if (attrs_size)
        memcpy(&n->attrs, attrs, attrs_size);
    return n;
}

void infer_graph_out_value(infer_graph *g, infer_val v)
{
    if (g->failed || v < 0) {
        g->failed = 1;
        return;
    }
    infer_gnode *n = &g->nodes[g->n_nodes - 1];
    if (n->n_out == sizeof n->out / sizeof *n->out)
        g->failed = 1;
    else
        n->out[n->n_out++] = v;
}

infer_val infer_graph_out(infer_graph *g, const infer_tensor_desc *desc, uint32_t rows_from, uint32_t rows_mul,
                          const char *name)
{
    infer_val v = infer_graph_value(g, INFER_VAL_ACT, 0, desc, rows_from, rows_mul, name);
    infer_graph_out_value(g, v);
    if (!g->failed) {
        infer_gnode *n = &g->nodes[g->n_nodes - 1];
        if (n->n_out == 1) {
            n->rows_from = rows_from;
            n->rows_mul = rows_mul;
        }
    }
    return v;
}

infer_val infer_graph_root(const infer_graph *g, infer_val v)
{
    while (g->vals[v].alias >= 0)
        v = g->vals[v].alias;
    return v;
}

infer_val infer_graph_view_of(infer_graph *g, infer_val v, const infer_tensor_desc *desc, uint32_t rows_from,
                              uint32_t rows_mul)
{
    if (g->failed || v < 0) {
        g->failed = 1;
        return -1;
    }
    infer_val w = infer_graph_value(g, INFER_VAL_ACT, 0, desc, rows_from, rows_mul, g->vals[v].name);
    if (w >= 0)
        g->vals[w].alias = v;
    return w;
}

void infer_graph_desc(const infer_graph *g, const infer_gnode *n, infer_op_desc *desc, infer_tensor_desc *tensors)
{
    uint32_t k = 0;
    for (uint32_t i = 0; i < (uint32_t)n->n_in + n->n_out; i++, k++) {
        infer_val v = i < n->n_in ? n->in[i] : n->out[i - n->n_in];
        if (v < 0) {
            memset(&tensors[k], 0, sizeof tensors[k]);
            tensors[k].flags = INFER_TENSOR_ABSENT;
        } else {
            tensors[k] = g->vals[v].desc;
        }
    }
    *desc = (infer_op_desc){
        .struct_size = sizeof *desc,
        .op = n->op,
        .rows_from = n->rows_from,
        .rows_mul = n->rows_mul,
        .n_in = n->n_in,
        .n_out = n->n_out,
        .tensor_size = sizeof *tensors,
        .attrs_size = n->attrs_size,
        .tensors = tensors,
        .attrs = n->attrs_size ? &n->attrs : NULL,
        .n_epilogue = n->n_epilogue,
        .epilogue_size = sizeof(infer_epilogue),
        .epilogue = n->n_epilogue ? n->epilogue : NULL,
    };
}
