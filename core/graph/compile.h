/* The steps of infer_graph_compile, shared by the files of this folder only. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_GRAPH_COMPILE_H
#define INFER_GRAPH_COMPILE_H

#include "graph/graph.h"

/* Descriptor of a node as device `dev` will see it: weights in that device's layout. */
infer_status infer_graph_desc_on(const infer_graph *g, const infer_graph_target *t, const infer_gnode *n, int32_t dev,
                                 infer_op_desc *desc, infer_tensor_desc *tensors);
/* Asks one device about one node. */
infer_status infer_graph_ask(const infer_graph *g, const infer_graph_target *t, const infer_gnode *n, int32_t dev,
                             infer_op_answer *out);
/* Sets dev and answer of every node. */
infer_status infer_graph_partition(infer_graph *g, const infer_graph_target *t, infer_compiled *out, infer_error *err);
/* Rewrites nodes; marks those that went into others as removed. */
infer_status infer_graph_fuse(infer_graph *g, const infer_graph_target *t, infer_error *err);
/* Fills order, parts and xfers (their offsets come with the memory plan). */
infer_status infer_graph_cut(infer_graph *g, const infer_graph_target *t, infer_compiled *out, infer_error *err);
/* Fills place, scratch, arena_bytes and the transfers' offsets. */
infer_status infer_graph_memplan(const infer_graph *g, const infer_graph_target *t, infer_compiled *out,
                                 infer_error *err);

#endif
