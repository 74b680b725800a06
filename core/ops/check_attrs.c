/* Per-op rules that a signature cannot say: attribute ranges, sums and multiples of axes. The operands have already
 * been matched with the signature. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "ops/ops.h"
#include "ops/ref.h"
#include "quant/quant.h"

static infer_status wrong(const infer_op_desc *op, infer_error *err, const char *what)
{
    return infer_error_set(err, INFER_E_INVALID, "%s: %s", infer_op_get(op->op)->name, what);
}

static int64_t last_axis(const infer_tensor_desc *t)
{
    return t->shape[t->rank - 1];
}

INFER_CHECK(copy)
{
    const infer_tensor_desc *x = infer_op_in(op, 0), *y = infer_op_out(op, 0);
    const infer_format_info *fx = infer_format_get(x->format), *fy = infer_format_get(y->format);
    if (x->rank != y->rank)
        return wrong(op, err, "operands x and y differ in rank");
    if (x->rank == 1 && op->rows_from != INFER_ROWS_STATIC && (fx->block_elems > 1 || fy->block_elems > 1))
        return wrong(op, err, "a count of elements may end inside a block");
    if (y->quant.format)
        return infer_error_set(err, INFER_E_UNSUPPORTED, "copy: operand y: side planes are not written");
    if (x->quant.format ? fy->pack != NULL : x->format == y->format || (fx->unpack && fy->pack))
        return INFER_OK;
    return infer_error_set(err, INFER_E_UNSUPPORTED, "copy: no conversion from %s to %s", fx->name, fy->name);
}

INFER_CHECK(concat)
{
    if (infer_op_out(op, 0)->shape[1] - infer_op_in(op, 0)->shape[1] != infer_op_in(op, 1)->shape[1])
        return wrong(op, err, "operand y: a row is not as long as those of a and b");
    return INFER_OK;
}

INFER_CHECK(scale)
{
    infer_attrs_scale a;
    infer_op_attrs(op, &a, sizeof a);
    if (!isfinite(a.scale) || !isfinite(a.bias))
        return wrong(op, err, "scale or bias is not finite");
    return INFER_OK;
}

INFER_CHECK(act)
{
    infer_attrs_act a;
    infer_op_attrs(op, &a, sizeof a);
    if (a.act > INFER_ACT_SIGMOID)
        return infer_error_set(err, INFER_E_UNSUPPORTED, "%s: activation %u is unknown", infer_op_get(op->op)->name,
                               a.act);
    if (!(a.limit >= 0) || !isfinite(a.limit))
        return wrong(op, err, "limit must be a finite number, not below 0");
    return INFER_OK;
}

INFER_CHECK(norm)
{
    infer_attrs_norm a;
    infer_op_attrs(op, &a, sizeof a);
    if (!(a.eps >= 0) || !isfinite(a.eps) || !isfinite(a.weight_offset))
        return wrong(op, err, "eps must be a finite number, not below 0, and weight_offset finite");
    return INFER_OK;
}

static infer_status act_format_ok(const infer_op_desc *op, infer_format f, infer_error *err)
{
    switch (f) {
    case INFER_FMT_NONE:
    case INFER_FMT_F32:
    case INFER_FMT_F16:
    case INFER_FMT_BF16:
    case INFER_FMT_F8_E4M3:
    case INFER_FMT_I8:
    case INFER_FMT_Q8_0:
        return INFER_OK;
    default:
        return infer_error_set(err, INFER_E_UNSUPPORTED, "%s: activations as format %u", infer_op_get(op->op)->name, f);
    }
}

INFER_CHECK(matmul)
{
    infer_attrs_matmul a;
    infer_op_attrs(op, &a, sizeof a);
    if (!isfinite(a.scale))
        return wrong(op, err, "scale is not finite");
    return act_format_ok(op, a.act_format, err);
}

INFER_CHECK(qkv)
{
    infer_attrs_matmul a;
    infer_op_attrs(op, &a, sizeof a);
    if ((a.scale != 0 && a.scale != 1) || a.act_format == INFER_FMT_F32)
        return wrong(op, err, "scale must be 0 or 1, and act_format not f32");
    return act_format_ok(op, a.act_format, err);
}

INFER_CHECK(gated_mlp)
{
    infer_attrs_act a;
    infer_op_attrs(op, &a, sizeof a);
    INFER_TRY(infer_check_act(op, err));
    if (a.act_format == INFER_FMT_F32)
        return wrong(op, err, "act_format must not be f32");
    return act_format_ok(op, a.act_format, err);
}

INFER_CHECK(route)
{
    infer_attrs_route a;
    infer_op_attrs(op, &a, sizeof a);
    int64_t n_experts = infer_op_in(op, 0)->shape[1];
    if (a.scoring > INFER_ROUTE_SIGMOID)
        return infer_error_set(err, INFER_E_UNSUPPORTED, "moe_route: scoring %u is unknown", a.scoring);
    if (a.k != infer_op_out(op, 0)->shape[1] || a.k > n_experts || n_experts > INT32_MAX)
        return wrong(op, err, "k is not the width of operand ids, or there are fewer experts");
    if (a.normalise > 1 || !isfinite(a.scale))
        return wrong(op, err, "normalise must be 0 or 1 and scale finite");
    return INFER_OK;
}

static infer_status rope_rule(const infer_op_desc *op, const infer_attrs_rope *a, uint32_t pos, infer_error *err)
{
    int64_t d = infer_op_in(op, 0)->shape[2], n_pos = infer_op_in(op, pos)->shape[1];
    if (a->kind > INFER_ROPE_HALVES)
        return infer_error_set(err, INFER_E_UNSUPPORTED, "%s: rope kind %u is unknown", infer_op_get(op->op)->name,
                               a->kind);
    if (!a->n_dims || a->n_dims % 2 || a->n_dims > d)
        return wrong(op, err, "n_dims must be even, from 2 to the width of a head");
    if (infer_op_in(op, pos + 1)->shape[0] != a->n_dims / 2)
        return wrong(op, err, "operand inv_freq does not have n_dims / 2 elements");
    if (a->n_pos < 1 || a->n_pos > 4 || a->n_pos != n_pos)
        return wrong(op, err, "n_pos must be 1..4 and the width of operand pos");
    if (!isfinite(a->magnitude))
        return wrong(op, err, "magnitude is not finite");
    uint64_t pairs = 0;
    for (uint32_t i = 0; i < a->n_pos; i++)
        pairs += a->section[i];
    if (a->n_pos > 1 && pairs != a->n_dims / 2)
        return wrong(op, err, "the sections do not sum to n_dims / 2");
    return INFER_OK;
}

INFER_CHECK(rope)
{
    infer_attrs_rope a;
    infer_op_attrs(op, &a, sizeof a);
    return rope_rule(op, &a, 1, err);
}

/* Planes against attributes; v may be NULL (one shared plane). Slots are i32, so a pool has at most 2^31 tokens. */
static infer_status kv_rule(const infer_op_desc *op, const infer_attrs_kv *a, const infer_tensor_desc *k,
                            const infer_tensor_desc *v, infer_error *err)
{
    if (a->layout != INFER_LAYOUT_CANONICAL)
        return infer_error_set(err, INFER_E_UNSUPPORTED, "%s: cache layout %u is a device's own",
                               infer_op_get(op->op)->name, a->layout);
    if ((uint64_t)k->shape[0] != a->n_blocks || k->shape[1] != a->n_kv_heads || k->shape[2] != a->block_size ||
        k->shape[3] != a->k_width || k->format != a->k_format)
        return wrong(op, err, "the pool of keys is not what the attributes say");
    if (v && (v->shape[3] != a->v_width || v->format != a->v_format))
        return wrong(op, err, "operand vpool is not what the attributes say");
    if (k->shape[0] > INT32_MAX || k->shape[0] * k->shape[2] > INT32_MAX)
        return wrong(op, err, "a pool has more tokens than a slot number can name");
    return INFER_OK;
}

INFER_CHECK(kv_write)
{
    infer_attrs_kv a;
    infer_op_attrs(op, &a, sizeof a);
    return kv_rule(op, &a, infer_op_out(op, 0), infer_op_out(op, 1), err);
}

INFER_CHECK(rope_kv_write)
{
    infer_attrs_rope_kv a;
    infer_op_attrs(op, &a, sizeof a);
    INFER_TRY(rope_rule(op, &a.rope, 2, err));
    return kv_rule(op, &a.kv, infer_op_out(op, 0), infer_op_out(op, 1), err);
}

/* One plane: the k pair or the v pair of the attributes is given, the other is zero. */
static infer_status plane_rule(const infer_op_desc *op, const infer_tensor_desc *pool, infer_error *err)
{
    infer_attrs_kv a;
    infer_op_attrs(op, &a, sizeof a);
    int is_v = !a.k_format && !a.k_width;
    if (is_v) {
        a.k_format = a.v_format;
        a.k_width = a.v_width;
    } else if (a.v_format || a.v_width) {
        return wrong(op, err, "the attributes name both a K and a V plane");
    }
    return kv_rule(op, &a, pool, NULL, err);
}

INFER_CHECK(kv_plane)
{
    const infer_tensor_desc *x = infer_op_in(op, 0), *y = infer_op_out(op, 0);
    if (x->format != y->format)
        return wrong(op, err, "the image and the pool differ in format");
    return plane_rule(op, op->op == INFER_OP_KV_PACK ? x : y, err);
}

/* Input 0 and output 0 are one range, described alike. */
static infer_status same_tensor(const infer_op_desc *op, infer_error *err)
{
    const infer_tensor_desc *x = infer_op_in(op, 0), *y = infer_op_out(op, 0);
    if (x->format != y->format || x->rank != y->rank || memcmp(x->shape, y->shape, sizeof x->shape) ||
        memcmp(x->stride, y->stride, sizeof x->stride) || x->quant.format || y->quant.format)
        return wrong(op, err, "output 0 is not described as input 0, which it is");
    return INFER_OK;
}

INFER_CHECK(kv_move)
{
    INFER_TRY(same_tensor(op, err));
    return plane_rule(op, infer_op_in(op, 0), err);
}

INFER_CHECK(state_copy)
{
    return same_tensor(op, err);
}

static infer_status attn_rule(const infer_op_desc *op, const infer_attrs_attn *a, int64_t kv_heads,
                              const infer_tensor_desc *tree, infer_error *err)
{
    int64_t heads = infer_op_in(op, 0)->shape[1];
    if (a->mask == INFER_MASK_SPANS)
        return infer_error_set(err, INFER_E_UNSUPPORTED, "%s: the record for mask spans is not defined in revision 0",
                               infer_op_get(op->op)->name);
    if (a->mask > INFER_MASK_SPANS || a->kind > INFER_ATTN_DECODE)
        return infer_error_set(err, INFER_E_UNSUPPORTED, "%s: mask %u or kind %u is unknown",
                               infer_op_get(op->op)->name, a->mask, a->kind);
    if (a->mask == INFER_MASK_WINDOW && !a->window)
        return wrong(op, err, "mask window needs a window");
    if ((a->mask == INFER_MASK_TREE) != (tree != NULL))
        return wrong(op, err, "operand tree_mask goes with mask tree, and only with it");
    if (!isfinite(a->scale) || a->scale == 0)
        return wrong(op, err, "scale must be given");
    if (!(a->soft_cap >= 0) || !isfinite(a->soft_cap))
        return wrong(op, err, "soft_cap must be a finite number, not below 0");
    if (a->n_heads != heads || heads % kv_heads)
        return wrong(op, err, "n_heads is not that of operand q, or no multiple of the KV heads");
    return INFER_OK;
}

static infer_status seq_rule(const infer_op_desc *op, uint32_t table, infer_error *err)
{
    if (infer_op_in(op, table + 2)->shape[0] - 1 != infer_op_in(op, table + 1)->shape[0])
        return wrong(op, err, "operand q_start does not have one element more than kv_len");
    return INFER_OK;
}

INFER_CHECK(attn_paged)
{
    infer_attrs_attn a;
    infer_op_attrs(op, &a, sizeof a);
    INFER_TRY(seq_rule(op, 3, err));
    INFER_TRY(kv_rule(op, &a.kv, infer_op_in(op, 1), infer_op_in(op, 2), err));
    return attn_rule(op, &a, a.kv.n_kv_heads, infer_op_in(op, 7), err);
}

INFER_CHECK(mla_paged)
{
    infer_attrs_attn a;
    infer_op_attrs(op, &a, sizeof a);
    INFER_TRY(seq_rule(op, 2, err));
    INFER_TRY(kv_rule(op, &a.kv, infer_op_in(op, 1), NULL, err));
    if (a.kv.n_kv_heads != 1 || a.kv.v_format || a.kv.v_width > a.kv.k_width ||
        last_axis(infer_op_out(op, 0)) != a.kv.v_width)
        return wrong(op, err, "the plane is not shared, or v_width is not the width of operand y");
    return attn_rule(op, &a, 1, infer_op_in(op, 5), err);
}

INFER_CHECK(attn_dense)
{
    infer_attrs_attn a;
    infer_op_attrs(op, &a, sizeof a);
    return attn_rule(op, &a, infer_op_in(op, 1)->shape[1], NULL, err);
}

INFER_CHECK(sample)
{
    infer_attrs_sample a;
    infer_op_attrs(op, &a, sizeof a);
    const infer_tensor_desc *logits = infer_op_in(op, 0), *params = infer_op_in(op, 1), *bias = infer_op_in(op, 3);
    const infer_tensor_desc *mask = infer_op_in(op, 4), *ids = infer_op_out(op, 2), *lp = infer_op_out(op, 3);
    int64_t n_vocab = logits->shape[1];
    if (n_vocab > INT32_MAX)
        return wrong(op, err, "operand logits has more columns than an id can name");
    if (params->shape[1] < (int64_t)sizeof(infer_sample_row) || params->shape[1] % 8 || params->stride[0] % 8)
        return wrong(op, err, "operand params: records too short or not a multiple of 8 bytes");
    if (bias && (bias->shape[1] < (int64_t)sizeof(infer_sample_bias) || bias->shape[1] % 4 || bias->stride[0] % 4))
        return wrong(op, err, "operand bias: records too short or not a multiple of 4 bytes");
    if (mask && mask->shape[1] != n_vocab / 32 + (n_vocab % 32 != 0))
        return wrong(op, err, "operand mask does not have ceil(V/32) words a row");
    if (a.n_top > 64)
        return infer_error_set(err, INFER_E_TOO_LARGE, "sample: %u log-probabilities a row, at most 64", a.n_top);
    if (!ids != !lp || (a.n_top != 0) != (ids != NULL) || (ids && ids->shape[1] != a.n_top))
        return wrong(op, err, "operands top_ids and top_logprobs go with n_top, which is their width");
    return INFER_OK;
}

INFER_CHECK(all_gather)
{
    if (infer_op_out(op, 0)->shape[1] % infer_op_in(op, 0)->shape[1])
        return wrong(op, err, "operand y: a row is no multiple of one of x");
    return INFER_OK;
}

INFER_CHECK(reduce_scatter)
{
    if (infer_op_in(op, 0)->shape[1] % infer_op_out(op, 0)->shape[1])
        return wrong(op, err, "operand x: a row is no multiple of one of y");
    return INFER_OK;
}
