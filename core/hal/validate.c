/*
 * Argument checks that cost more than a comparison: made when options.validate is set, by tests and porters. Each
 * failure's text names the argument. Checks the caller, not the plugin.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include "hal/internal.h"
#include "ops/ops.h"

infer_status hal_validate_thread(infer_hal_dev *d, const char *what)
{
    if (hal_on_submit_thread(d))
        return INFER_OK;
    hal_detail(d->b, INFER_E_INVALID, "%s: not on the device's submit thread", what);
    return INFER_E_INVALID;
}

static int overlap(uint64_t a, uint64_t an, uint64_t b, uint64_t bn)
{
    return a < b + bn && b < a + an;
}

/* Rows of two regions are compared one by one only where their whole extents meet. */
static int regions_meet(const infer_copy_region *a, const infer_copy_region *b)
{
    uint64_t ae = (a->rows - 1) * a->dst_pitch + a->bytes, be = (b->rows - 1) * b->dst_pitch + b->bytes;
    if (!overlap(a->dst_offset, ae, b->dst_offset, be))
        return 0;
    for (uint64_t i = 0; i < a->rows; i++)
        for (uint64_t j = 0; j < b->rows; j++)
            if (overlap(a->dst_offset + i * a->dst_pitch, a->bytes, b->dst_offset + j * b->dst_pitch, b->bytes))
                return 1;
    return 0;
}

infer_status hal_validate_copy(infer_hal_dev *d, const infer_copy_end *dst, const infer_copy_end *src,
                               const infer_copy_region *regions, uint32_t n)
{
    const char *wrong = NULL;
    uint32_t at = 0;
    if (!dst->buffer == !dst->host)
        wrong = "the destination is neither a buffer nor host memory, or both";
    else if (!src->buffer == !src->host)
        wrong = "the source is neither a buffer nor host memory, or both";
    else if (!dst->buffer && !src->buffer)
        wrong = "no side is a buffer";
    for (uint32_t i = 0; i < n && !wrong; i++) {
        at = i;
        if (!regions[i].bytes || !regions[i].rows)
            wrong = "a region is empty";
        else if (regions[i].rows > 1 && regions[i].dst_pitch < regions[i].bytes)
            wrong = "the destination pitch is less than a row";
        for (uint32_t j = 0; j < i && !wrong; j++)
            if (regions_meet(&regions[i], &regions[j]))
                wrong = "two regions overlap in the destination";
    }
    if (!wrong)
        return INFER_OK;
    hal_detail(d->b, INFER_E_INVALID, "copy: %s (region %u)", wrong, at);
    return INFER_E_INVALID;
}

infer_status hal_validate_view(infer_hal_dev *d, const infer_graph_view *view, infer_error *err)
{
    for (uint32_t i = 0; i < view->n_nodes; i++) {
        const infer_node *node =
            (const infer_node *)(const void *)((const char *)view->nodes + (uint64_t)i * view->node_size);
        infer_error why = {0};
        infer_status s = infer_op_check(node->op, &why);
        if (s && s != INFER_E_UNSUPPORTED) /* what the reference does not know (a private layout), the device may */
            return infer_error_set(err, s, "program for %s, node %u: %s", d->row->id, i, why.text);
        for (uint32_t k = 0; k < node->op->n_in + node->op->n_out; k++) {
            const infer_tensor_desc *t = (const infer_tensor_desc *)(const void *)((const char *)node->op->tensors +
                                                                                   (uint64_t)k * node->op->tensor_size);
            if (t->flags & INFER_TENSOR_ABSENT || node->operands[k].slot == INFER_SLOT_ABSENT ||
                t->layout != INFER_LAYOUT_CANONICAL)
                continue;
            uint64_t need;
            if (node->operands[k].offset % d->props.buffer_align)
                return infer_error_set(err, INFER_E_INVALID, "program for %s, node %u: operand %u is not aligned to %u",
                                       d->row->id, i, k, d->props.buffer_align);
            INFER_TRY(infer_tensor_bytes(t, &need));
            if (node->operands[k].size < need)
                return infer_error_set(
                    err, INFER_E_INVALID, "program for %s, node %u: operand %u has %llu bytes, its tensor needs %llu",
                    d->row->id, i, k, (unsigned long long)node->operands[k].size, (unsigned long long)need);
        }
        infer_op_answer a;
        const infer_op_desc *op = node->op;
        infer_hal_op_query(d, &op, 1, &a);
        if (a.level == INFER_LEVEL_NO)
            return infer_error_set(err, INFER_E_UNSUPPORTED, "program for %s, node %u: the device refuses op %u",
                                   d->row->id, i, op->op);
    }
    return INFER_OK;
}
