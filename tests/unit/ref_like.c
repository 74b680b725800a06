/* The backend of ref_like.h: the reference backend's own table with some slots replaced.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "hal/internal.h"
#include "unit/ref_like.h"

ref_like_behaviour ref_like[REF_LIKE_DEVS];

static const infer_backend_ops *inner;
static infer_device *opened[REF_LIKE_DEVS];

static ref_like_behaviour *of(const infer_device *dev)
{
    for (int i = 0; i < REF_LIKE_DEVS; i++)
        if (opened[i] == dev)
            return &ref_like[i];
    return &ref_like[0];
}

void ref_like_reset(void)
{
    memset(ref_like, 0, sizeof ref_like);
    for (int i = 0; i < REF_LIKE_DEVS; i++)
        ref_like[i].max_epilogue = UINT32_MAX;
}

static infer_status probe(const infer_host *host, infer_device_info *out, uint32_t cap, uint32_t *n)
{
    (void)host;
    *n = REF_LIKE_DEVS;
    for (uint32_t i = 0; i < cap && i < REF_LIKE_DEVS; i++) {
        out[i].kind = INFER_KIND_NPU;
        out[i].index = i;
        out[i].numa_node = -1;
        snprintf(out[i].name, sizeof out[i].name, "reference %u", i);
    }
    return INFER_OK;
}

static infer_status dev_open(const infer_host *host, uint32_t index, infer_device **out)
{
    infer_status s = inner->dev_open(host, 0, out);
    if (!s)
        opened[index] = *out;
    return s;
}

static void dev_close(infer_device *dev)
{
    for (int i = 0; i < REF_LIKE_DEVS; i++)
        if (opened[i] == dev)
            opened[i] = NULL;
    inner->dev_close(dev);
}

static infer_status op_query(infer_device *dev, const infer_op_desc *ops, uint32_t op_size, uint32_t n,
                             infer_op_answer *out, uint32_t answer_size)
{
    const ref_like_behaviour *b = of(dev);
    infer_status s = inner->op_query(dev, ops, op_size, n, out, answer_size);
    for (uint32_t i = 0; i < n && !s; i++) {
        const infer_op_desc *op = (const infer_op_desc *)(const void *)((const char *)ops + (uint64_t)i * op_size);
        infer_op_answer *a = (infer_op_answer *)(void *)((char *)out + (uint64_t)i * answer_size);
        if (!a->level)
            continue;
        if (b->deny[op->op]) {
            a->level = INFER_LEVEL_NO;
            a->why = INFER_WHY_SHAPE;
            a->which = 2;
        }
        if (b->mingles[op->op])
            a->row_invariant = 0;
        if (a->n_epilogue > b->max_epilogue)
            a->n_epilogue = b->max_epilogue;
        a->scratch_bytes = b->scratch[op->op];
        a->scratch_align = 128;
    }
    return s;
}

/* Scribbles on its scratch, so that nobody else's values survive there. */
static infer_status cmd_op(infer_queue *queue, const infer_op_desc *op, const infer_op_args *args)
{
    if (args->scratch.buffer)
        inner->cmd_fill(queue, &args->scratch, 0xFFFFFFFF, 4);
    return inner->cmd_op(queue, op, args);
}

static infer_status prog_claim(infer_device *dev, const infer_graph_view *view, int32_t *set_of)
{
    ref_like_behaviour *b = of(dev);
    b->n_claims++;
    for (uint32_t i = 0; i < view->n_nodes; i++) {
        const infer_node *n =
            (const infer_node *)(const void *)((const char *)view->nodes + (size_t)i * view->node_size);
        set_of[i] = b->claim[n->op->op] - 1;
    }
    return b->claim_status;
}

const infer_plugin_desc *ref_like_query(const infer_host *host, const infer_abi_range *range)
{
    static infer_backend_ops ops;
    static infer_plugin_desc desc;
    const infer_plugin_desc *ref = infer_plugin_query_ref(host, range);
    if (!ref)
        return NULL;
    inner = ref->ops;
    ops = *ref->ops;
    ops.probe = probe;
    ops.dev_open = dev_open;
    ops.dev_close = dev_close;
    ops.op_query = op_query;
    ops.cmd_op = cmd_op;
    ops.prog_claim = prog_claim;
    desc = *ref;
    desc.name = "like";
    desc.device_prefix = "like";
    desc.ops = &ops;
    return &desc;
}
