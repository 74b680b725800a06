/* The steps of infer_graph_compile, shared by the files of this folder only. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_GRAPH_COMPILE_H
#define INFER_GRAPH_COMPILE_H

#include "graph/graph.h"

/* Descriptor of a node as device `dev` will see it: weights in that device's layout. */
infer_status infer_graph_desc_on(const infer_graph *g, const infer_graph_target *t, const infer_gnode *n, int32_t dev,
                                 infer_op_desc *desc, infer_tensor_desc *tensors, infer_error *err);
/* Asks one device about one node; a target that is deterministic takes no answer without row_invariant. */
infer_status infer_graph_ask(const infer_graph *g, const infer_graph_target *t, const infer_gnode *n, int32_t dev,
                             infer_op_answer *out, infer_error *err);
/* Sets dev and answer of every node. */
infer_status infer_graph_partition(infer_graph *g, const infer_graph_target *t, infer_compiled *out, infer_error *err);
/* Rewrites nodes; marks those that went into others as removed. */
infer_status infer_graph_fuse(infer_graph *g, const infer_graph_target *t, infer_error *err);
/* Fills order and parts: runs of nodes of one device and program. */
infer_status infer_graph_cut(const infer_graph *g, const infer_graph_target *t, infer_compiled *out, infer_error *err);
/* Cuts parts further into runs that their device claims as one. */
infer_status infer_graph_claim(const infer_graph *g, const infer_graph_target *t, infer_compiled *out,
                               infer_error *err);
/* Fills xfers (their offsets come with the memory plan). */
infer_status infer_graph_transfers(const infer_graph *g, const infer_graph_target *t, infer_compiled *out,
                                   infer_error *err);
/* Fills place, scratch, arena_bytes and the transfers' offsets. */
infer_status infer_graph_memplan(const infer_graph *g, const infer_graph_target *t, infer_compiled *out,
                                 infer_error *err);

/* ---- A part as a plugin sees it ------------------------------------------------------------------------------ */

/* Arrays of one part's view. */
typedef struct infer_view_store {
    infer_op_desc *ops;
    infer_tensor_desc *tensors;
    infer_operand *operands;
    infer_node *nodes;
} infer_view_store;

/* Says where value v, given to node n with a descriptor, lies. */
typedef infer_status (*infer_operand_fn)(void *user, const infer_gnode *n, infer_val v, const infer_tensor_desc *desc,
                                         infer_operand *out);
/* Fills the arrays for a capacity of `bucket` tokens; scratch only after the memory plan. Free with infer_view_free. */
infer_status infer_graph_view_build(const infer_compiled *c, const infer_graph_target *t, uint32_t part,
                                    uint32_t bucket, infer_operand_fn operand, void *user, infer_view_store *out,
                                    infer_error *err);
void infer_view_free(infer_view_store *st);
/* INFER_SLOT_* of slot number i. */
uint32_t infer_graph_slot_kind(uint32_t i);

#endif
