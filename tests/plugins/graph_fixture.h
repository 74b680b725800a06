/* Programs of a few nodes made by hand, on a device whose memory a test fills and reads: what a program's launches do
 * must be what its nodes do one by one. SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GRAPH_FIXTURE_H
#define TESTS_GRAPH_FIXTURE_H

#include "unit/unit.h"

#include "hal/hal.h"
#include "ops/ops.h"

enum { FX_SLOTS = 4, FX_NODES = 5 };

typedef struct fx_dev {
    infer_hal *hal;
    infer_hal_dev *d;
    infer_device *h;
    const infer_backend_ops *ops;
    infer_queue *q;
    infer_timeline *tl;
    uint32_t n_slots;
    uint64_t value, size[FX_SLOTS];
    infer_buffer *b[FX_SLOTS];
    uint8_t *was[FX_SLOTS], *one[FX_SLOTS], *all[FX_SLOTS]; /* at first; after node by node; after the program */
} fx_dev;

/* After hal and d are there: memory of so many bytes for each slot, and for its content at three times. */
static inline void fx_dev_make(fx_dev *d, const uint64_t *sizes, uint32_t n_slots)
{
    d->h = infer_hal_dev_handle(d->d);
    d->ops = infer_hal_dev_ops(d->d);
    d->n_slots = n_slots;
    assert_int_equal(d->ops->queue_create(d->h, INFER_QUEUE_COMPUTE, &d->q), INFER_OK);
    assert_int_equal(d->ops->tl_create(d->h, &d->tl), INFER_OK);
    for (uint32_t i = 0; i < n_slots; i++) {
        d->size[i] = sizes[i];
        assert_int_equal(d->ops->buf_alloc(d->h, 0, sizes[i], &d->b[i]), INFER_OK);
        d->was[i] = calloc(1, sizes[i]);
        d->one[i] = calloc(1, sizes[i]);
        d->all[i] = calloc(1, sizes[i]);
        assert_true(d->was[i] && d->one[i] && d->all[i]);
    }
}

static inline void fx_dev_close(fx_dev *d)
{
    for (uint32_t i = 0; i < d->n_slots; i++) {
        d->ops->buf_free(d->h, d->b[i]);
        free(d->was[i]);
        free(d->one[i]);
        free(d->all[i]);
    }
    d->ops->queue_destroy(d->h, d->q);
    d->ops->tl_destroy(d->h, d->tl);
    infer_hal_close(d->d);
    infer_hal_destroy(d->hal);
}

/* All of a slot, to host memory or from it. */
static inline void fx_copy(fx_dev *d, uint32_t slot, uint8_t *to, const uint8_t *from)
{
    const infer_copy_end mem = {d->b[slot], NULL}, host = {NULL, to ? to : (uint8_t *)(uintptr_t)from};
    const infer_copy_region g = {.bytes = d->size[slot], .rows = 1};
    assert_int_equal(d->ops->cmd_copy(d->q, to ? &host : &mem, to ? &mem : &host, &g, 1), INFER_OK);
    assert_int_equal(d->ops->queue_signal(d->q, d->tl, ++d->value), INFER_OK);
    assert_int_equal(d->ops->tl_wait(d->tl, d->value, 20000000000u), INFER_OK);
}

typedef struct fx_node {
    infer_op_desc op;
    infer_tensor_desc t[8];
    infer_operand at[8];
    infer_any_attrs attrs;
    infer_epilogue epi;
} fx_node;

/* counts: where step counts lie, which rows are then by; else .slot = INFER_SLOT_ABSENT. */
typedef struct fx_graph {
    fx_node node[FX_NODES];
    infer_node nodes[FX_NODES];
    uint32_t n_nodes;
    infer_operand counts;
} fx_graph;

/* One more node, without operands. */
static inline void fx_begin(fx_graph *g, infer_op_id op, const void *attrs, uint32_t size)
{
    fx_node *n = &g->node[g->n_nodes];
    memset(n, 0, sizeof *n);
    memcpy(&n->attrs, attrs ? attrs : "", size);
    n->op = (infer_op_desc){.struct_size = sizeof n->op,
                            .op = op,
                            .rows_from = g->counts.slot == INFER_SLOT_ABSENT ? INFER_ROWS_STATIC : INFER_COUNT_TOKENS,
                            .rows_mul = 1,
                            .tensor_size = sizeof n->t[0],
                            .tensors = n->t,
                            .attrs_size = size,
                            .attrs = size ? &n->attrs : NULL,
                            .epilogue_size = sizeof(infer_epilogue)};
    g->nodes[g->n_nodes++] =
        (infer_node){.op = &n->op, .operands = n->at, .counts = g->counts, .scratch.slot = INFER_SLOT_ABSENT};
}

/* The last node's next operand; outputs come behind inputs. */
static inline infer_operand *fx_operand(fx_graph *g, int output, infer_tensor_desc t, uint32_t slot, uint64_t offset)
{
    fx_node *n = &g->node[g->n_nodes - 1];
    uint32_t k = n->op.n_in + n->op.n_out;
    uint64_t bytes = 0;
    assert_int_equal(infer_tensor_bytes(&t, &bytes), INFER_OK);
    n->t[k] = t;
    n->at[k] = (infer_operand){.slot = slot, .offset = offset, .size = bytes};
    *(output ? &n->op.n_out : &n->op.n_in) += 1;
    return &n->at[k];
}

static inline infer_range fx_range(const fx_dev *d, const infer_operand *o)
{
    return o->slot == INFER_SLOT_ABSENT ? (infer_range){0} : (infer_range){d->b[o->slot], o->offset, o->size};
}

/* A node by itself. */
static inline void fx_run_node(const fx_dev *d, const fx_graph *g, uint32_t i)
{
    const fx_node *n = &g->node[i];
    infer_range at[8];
    for (uint32_t k = 0; k < n->op.n_in + n->op.n_out; k++)
        at[k] = fx_range(d, &n->at[k]);
    const infer_op_args args = {.struct_size = sizeof args,
                                .n_operands = n->op.n_in + n->op.n_out,
                                .operands = at,
                                .counts = fx_range(d, &g->nodes[i].counts),
                                .scratch = fx_range(d, &g->nodes[i].scratch)};
    assert_int_equal(d->ops->cmd_op(d->q, &n->op, &args), INFER_OK);
}

/* The program of all nodes. kinds: its slots but for their sizes; ranges: set to what they are bound to. */
static inline infer_program *fx_build(const fx_dev *d, const fx_graph *g, const infer_slot_desc *kinds, uint32_t bucket,
                                      infer_range *ranges)
{
    infer_slot_desc slots[FX_SLOTS];
    infer_program *p = NULL;
    infer_program_info info = {.struct_size = sizeof info};
    for (uint32_t i = 0; i < d->n_slots; i++) {
        slots[i] = kinds[i];
        slots[i].size = d->size[i];
        ranges[i] = (infer_range){d->b[i], 0, d->size[i]};
    }
    const infer_graph_view v = {.struct_size = sizeof v,
                                .nodes = g->nodes,
                                .slots = slots,
                                .n_nodes = g->n_nodes,
                                .node_size = sizeof g->nodes[0],
                                .n_slots = d->n_slots,
                                .slot_size = sizeof slots[0],
                                .bucket = bucket};
    assert_int_equal(d->ops->prog_build(d->h, &v, &p, &info), INFER_OK);
    return p;
}

#endif
