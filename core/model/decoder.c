/* The graph of a decoder-only transformer, from the architecture's row and the model's numbers.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "model/arch.h"
#include "ops/ops.h"

infer_status infer_step_layout_make(infer_step_layout *l, infer_error *err)
{
    uint64_t at = 0, n;
    const struct {
        uint64_t *where;
        uint64_t count, size;
    } rows[] = {
        {&l->counts, INFER_COUNT_MAX, sizeof(int32_t)},
        {&l->ids, l->max_tokens, sizeof(int32_t)},
        {&l->pos, l->max_tokens, sizeof(int32_t)},
        {&l->slots, l->max_tokens, sizeof(int32_t)},
        {&l->adapter_row, l->max_tokens, sizeof(int32_t)},
        {&l->logit_rows, l->max_logits, sizeof(int32_t)},
        {&l->kv_len, l->max_seqs, sizeof(int32_t)},
        {&l->q_start, (uint64_t)l->max_seqs + 1, sizeof(int32_t)},
        {&l->sample_rows, l->max_logits, sizeof(infer_sample_row)},
        {&l->block_table, (uint64_t)l->max_seqs * l->max_blocks, sizeof(int32_t)},
        {&l->bias, l->max_bias, sizeof(infer_sample_bias)},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        *rows[i].where = at;
        if (!infer_mul_u64(rows[i].count, rows[i].size, &n) || !infer_add_u64(at, n, &at) ||
            !infer_round_up_u64(at, 256, &at))
            return infer_error_set(err, INFER_E_TOO_LARGE, "step block: %u sequences of %u blocks are too many",
                                   l->max_seqs, l->max_blocks);
    }
    l->bytes = at;
    return INFER_OK;
}

/* What the building functions share. */
typedef struct builder {
    const infer_hparams *hp;
    const infer_weight_list *w;
    const infer_decoder_options *opt;
    infer_graph *g;
    int32_t layer;
    infer_val pos, slots, inv_freq, block_table, kv_len, q_start;
    char missing[64]; /* the first weight that was not found */
} builder;

#define T INFER_COUNT_TOKENS

static infer_tensor_desc f32_2(int64_t n, int64_t d)
{
    return infer_tensor_make(INFER_FMT_F32, 2, n, d, 1, 1);
}

static infer_tensor_desc f32_3(int64_t n, int64_t h, int64_t d)
{
    return infer_tensor_make(INFER_FMT_F32, 3, n, h, d, 1);
}

static infer_val step_value(builder *b, uint64_t at, infer_format f, uint32_t rank, int64_t s0, int64_t s1,
                            uint32_t rows_from, const char *name)
{
    infer_tensor_desc d = infer_tensor_make(f, rank, s0, s1, 1, 1);
    return infer_graph_value(b->g, INFER_VAL_STEP, at, &d, rows_from, 1, name);
}

/* A weight's value by its full name; -1 where the model has none. */
static infer_val weight_named(builder *b, const char *name, int required)
{
    int32_t i = infer_weights_find(b->w, name);
    if (i < 0) {
        if (required && !b->missing[0])
            snprintf(b->missing, sizeof b->missing, "%s", name);
        return -1;
    }
    const infer_weight_src *s = &b->w->p[i];
    infer_tensor_desc d = infer_tensor_make(s->format, s->rank, s->shape[0], s->shape[1], s->shape[2], s->shape[3]);
    d.flags |= INFER_TENSOR_WEIGHT;
    return infer_graph_value(b->g, INFER_VAL_WEIGHT, (uint64_t)i, &d, INFER_ROWS_STATIC, 1, s->name);
}

static infer_val weight(builder *b, const char *field, int required)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s", b->layer, field);
    return weight_named(b, name, required);
}

/* The last axis of a norm's input decides its width; rank 2 or 3 alike. */
static infer_val rms_norm(builder *b, infer_val x, infer_val w, const char *name)
{
    infer_attrs_norm a = {.struct_size = sizeof a, .eps = b->hp->norm_eps};
    infer_val in[] = {x, w};
    if (x < 0)
        return -1;
    infer_tensor_desc d = b->g->vals[x].desc;
    uint32_t rows_from = b->g->vals[x].rows_from, rows_mul = b->g->vals[x].rows_mul;
    infer_graph_node(b->g, INFER_OP_RMS_NORM, b->layer, in, 2, &a, sizeof a);
    return infer_graph_out(b->g, &d, rows_from, rows_mul, name);
}

static infer_attrs_matmul product_attrs(const builder *b, infer_val w)
{
    const infer_attrs_matmul a = {.struct_size = sizeof a,
                                  .act_format =
                                      b->w->p[b->g->vals[w].ref].recodes ? b->opt->act_format : INFER_FMT_NONE};
    return a;
}

static infer_val matmul(builder *b, infer_val x, infer_val w, infer_val bias, const char *name)
{
    infer_val in[] = {x, w, bias};
    if (x < 0 || w < 0)
        return -1;
    const infer_attrs_matmul a = product_attrs(b, w);
    infer_tensor_desc d = f32_2(b->g->vals[x].desc.shape[0], b->g->vals[w].desc.shape[0]);
    uint32_t rows_from = b->g->vals[x].rows_from;
    infer_graph_node(b->g, INFER_OP_MATMUL, b->layer, in, 3, &a, sizeof a);
    return infer_graph_out(b->g, &d, rows_from, 1, name);
}

/* One op of same-shaped inputs and output. */
static infer_val same_shape(builder *b, infer_op_id op, infer_val x, infer_val y, const void *attrs,
                            uint32_t attrs_size, const char *name)
{
    infer_val in[] = {x, y};
    if (x < 0 || y < 0)
        return -1;
    infer_tensor_desc d = b->g->vals[x].desc;
    uint32_t rows_from = b->g->vals[x].rows_from, rows_mul = b->g->vals[x].rows_mul;
    infer_graph_node(b->g, op, b->layer, in, 2, attrs, attrs_size);
    return infer_graph_out(b->g, &d, rows_from, rows_mul, name);
}

static infer_val heads_of(builder *b, infer_val x, uint32_t n_heads, uint32_t width)
{
    infer_tensor_desc d = f32_3(b->opt->step.max_tokens, n_heads, width);
    return infer_graph_view_of(b->g, x, &d, T, 1);
}

static infer_val rope(builder *b, infer_val x, const char *name)
{
    infer_attrs_rope a = {.struct_size = sizeof a,
                          .kind = b->hp->arch->rope_kind,
                          .n_dims = b->hp->rope_dims,
                          .magnitude = b->hp->rope_magnitude,
                          .n_pos = 1};
    infer_val in[] = {x, b->pos, b->inv_freq};
    if (x < 0)
        return -1;
    infer_tensor_desc d = b->g->vals[x].desc;
    infer_graph_node(b->g, INFER_OP_ROPE, b->layer, in, 3, &a, sizeof a);
    return infer_graph_out(b->g, &d, T, 1, name);
}

static infer_val kv_plane(builder *b, uint32_t plane, infer_format f, uint32_t width)
{
    infer_tensor_desc d =
        infer_tensor_make(f, 4, (int64_t)b->opt->n_blocks, b->hp->n_kv_heads, b->opt->block_size, width);
    d.layout = b->opt->kv_layout ? b->opt->kv_layout[b->layer] : INFER_LAYOUT_CANONICAL;
    return infer_graph_value(b->g, INFER_VAL_KV, (uint64_t)b->layer * INFER_GRAPH_PLANES + plane, &d, INFER_ROWS_STATIC,
                             1, plane ? "v_pool" : "k_pool");
}

static infer_val attention(builder *b, infer_val x)
{
    const infer_hparams *hp = b->hp;
    infer_val h = rms_norm(b, x, weight(b, "attn_norm.weight", 1), "attn_norm");
    infer_val q = matmul(b, h, weight(b, "attn_q.weight", 1), weight(b, "attn_q.bias", 0), "q");
    infer_val k = matmul(b, h, weight(b, "attn_k.weight", 1), weight(b, "attn_k.bias", 0), "k");
    infer_val v = matmul(b, h, weight(b, "attn_v.weight", 1), weight(b, "attn_v.bias", 0), "v");
    q = heads_of(b, q, hp->n_heads, hp->head_k);
    k = heads_of(b, k, hp->n_kv_heads, hp->head_k);
    v = heads_of(b, v, hp->n_kv_heads, hp->head_v);
    if (hp->arch->qk_norm) {
        q = rms_norm(b, q, weight(b, "attn_q_norm.weight", 1), "q_norm");
        k = rms_norm(b, k, weight(b, "attn_k_norm.weight", 1), "k_norm");
    }
    q = rope(b, q, "q_rope");
    k = rope(b, k, "k_rope");
    infer_attrs_attn a = {
        .struct_size = sizeof a,
        .mask = hp->window ? INFER_MASK_WINDOW : INFER_MASK_CAUSAL,
        .window = hp->window,
        .scale = (float)(1.0 / sqrt((double)hp->head_k)),
        .n_heads = hp->n_heads,
        .kv = {.struct_size = sizeof a.kv,
               .layout = b->opt->kv_layout ? b->opt->kv_layout[b->layer] : INFER_LAYOUT_CANONICAL,
               .k_format = b->opt->k_format,
               .v_format = b->opt->v_format,
               .n_kv_heads = hp->n_kv_heads,
               .k_width = hp->head_k,
               .v_width = hp->head_v,
               .block_size = b->opt->block_size,
               .n_blocks = b->opt->n_blocks},
    };
    infer_val kp = kv_plane(b, 0, b->opt->k_format, hp->head_k), vp = kv_plane(b, 1, b->opt->v_format, hp->head_v);
    infer_val wr[] = {k, v, b->slots};
    if (infer_graph_node(b->g, INFER_OP_KV_WRITE, b->layer, wr, 3, &a.kv, sizeof a.kv)) {
        infer_graph_out_value(b->g, kp);
        infer_graph_out_value(b->g, vp);
        if (!b->g->failed)
            b->g->nodes[b->g->n_nodes - 1].rows_from = T;
    }
    infer_val at[] = {q, kp, vp, b->block_table, b->kv_len, b->q_start};
    infer_tensor_desc d = f32_3(b->opt->step.max_tokens, hp->n_heads, hp->head_v);
    infer_graph_node(b->g, INFER_OP_ATTN_PAGED, b->layer, at, 6, &a, sizeof a);
    infer_val y = infer_graph_out(b->g, &d, T, 1, "attn");
    infer_tensor_desc flat = f32_2(b->opt->step.max_tokens, (int64_t)hp->n_heads * hp->head_v);
    y = infer_graph_view_of(b->g, y, &flat, T, 1);
    y = matmul(b, y, weight(b, "attn_output.weight", 1), weight(b, "attn_output.bias", 0), "attn_out");
    return same_shape(b, INFER_OP_ADD, y, x, NULL, 0, "attn_sum");
}

static infer_val dense_mlp(builder *b, infer_val h)
{
    infer_attrs_act act = {.struct_size = sizeof act, .act = b->hp->arch->act};
    infer_val gate = matmul(b, h, weight(b, "ffn_gate.weight", 1), -1, "ffn_gate");
    infer_val up = matmul(b, h, weight(b, "ffn_up.weight", 1), -1, "ffn_up");
    infer_val y = same_shape(b, INFER_OP_GLU, gate, up, &act, sizeof act, "ffn_glu");
    return matmul(b, y, weight(b, "ffn_down.weight", 1), -1, "ffn_down");
}

static infer_val expert_matmul(builder *b, infer_val x, const char *field, infer_val ids, const char *name)
{
    infer_val w = weight(b, field, 1);
    infer_val in[] = {x, w, ids};
    if (x < 0 || w < 0 || ids < 0)
        return -1;
    const infer_attrs_matmul a = product_attrs(b, w);
    infer_tensor_desc d = f32_3(b->opt->step.max_tokens, b->hp->n_experts_used, b->g->vals[w].desc.shape[1]);
    infer_graph_node(b->g, INFER_OP_MOE_MATMUL, b->layer, in, 3, &a, sizeof a);
    return infer_graph_out(b->g, &d, T, 1, name);
}

static infer_val moe_mlp(builder *b, infer_val h)
{
    const infer_hparams *hp = b->hp;
    int64_t n = b->opt->step.max_tokens, k = hp->n_experts_used;
    infer_attrs_act act = {.struct_size = sizeof act, .act = hp->arch->act};
    infer_attrs_route route = {.struct_size = sizeof route,
                               .k = hp->n_experts_used,
                               .scoring = hp->arch->route_scoring,
                               .normalise = hp->arch->route_normalise};
    infer_val logits = matmul(b, h, weight(b, "ffn_gate_inp.weight", 1), -1, "route_logits");
    infer_tensor_desc di = infer_tensor_make(INFER_FMT_I32, 2, n, k, 1, 1), dw = f32_2(n, k);
    infer_graph_node(b->g, INFER_OP_MOE_ROUTE, b->layer, &logits, 1, &route, sizeof route);
    infer_val ids = infer_graph_out(b->g, &di, T, 1, "route_ids");
    infer_val weights = infer_graph_out(b->g, &dw, T, 1, "route_weights");
    infer_val gate = expert_matmul(b, h, "ffn_gate_exps.weight", ids, "ffn_gate");
    infer_val up = expert_matmul(b, h, "ffn_up_exps.weight", ids, "ffn_up");
    infer_val y = same_shape(b, INFER_OP_GLU, gate, up, &act, sizeof act, "ffn_glu");
    y = expert_matmul(b, y, "ffn_down_exps.weight", ids, "ffn_down");
    infer_val in[] = {y, weights};
    infer_tensor_desc d = f32_2(n, hp->n_embd);
    infer_graph_node(b->g, INFER_OP_MOE_COMBINE, b->layer, in, 2, NULL, 0);
    return infer_graph_out(b->g, &d, T, 1, "ffn_out");
}

static infer_val gather(builder *b, infer_val table, infer_val ids, uint32_t rows_from, int64_t rows, const char *name)
{
    infer_val in[] = {table, ids};
    infer_tensor_desc d = f32_2(rows, b->hp->n_embd);
    infer_graph_node(b->g, INFER_OP_GATHER_ROWS, b->layer, in, 2, NULL, 0);
    return infer_graph_out(b->g, &d, rows_from, 1, name);
}

static void sample(builder *b, infer_decoder_outputs *out)
{
    const infer_step_layout *l = &b->opt->step;
    int64_t m = l->max_logits, v = b->hp->n_vocab, top = b->opt->n_top;
    infer_attrs_sample a = {.struct_size = sizeof a, .n_top = b->opt->n_top};
    infer_tensor_desc dc = infer_tensor_make(INFER_FMT_U16, 2, l->max_seqs, v, 1, 1);
    infer_val in[] = {
        out->logits,
        step_value(b, l->sample_rows, INFER_FMT_U8, 2, m, sizeof(infer_sample_row), INFER_COUNT_LOGITS, "sample_rows"),
        infer_graph_value(b->g, INFER_VAL_STATE, 0, &dc, INFER_ROWS_STATIC, 1, "sample_counts"),
        step_value(b, l->bias, INFER_FMT_U8, 2, l->max_bias, sizeof(infer_sample_bias), INFER_ROWS_STATIC, "bias"),
    };
    infer_tensor_desc di = infer_tensor_make(INFER_FMT_I32, 1, m, 1, 1, 1);
    infer_tensor_desc df = infer_tensor_make(INFER_FMT_F32, 1, m, 1, 1, 1);
    infer_graph_node(b->g, INFER_OP_SAMPLE, b->layer, in, 4, &a, sizeof a);
    out->ids = infer_graph_out(b->g, &di, INFER_COUNT_LOGITS, 1, "sampled");
    out->logprobs = infer_graph_out(b->g, &df, INFER_COUNT_LOGITS, 1, "logprobs");
    out->top_ids = out->top_logprobs = -1;
    if (top) {
        infer_tensor_desc dti = infer_tensor_make(INFER_FMT_I32, 2, m, top, 1, 1), dtf = f32_2(m, top);
        out->top_ids = infer_graph_out(b->g, &dti, INFER_COUNT_LOGITS, 1, "top_ids");
        out->top_logprobs = infer_graph_out(b->g, &dtf, INFER_COUNT_LOGITS, 1, "top_logprobs");
    }
}

infer_status infer_decoder_build(const infer_hparams *hp, const infer_weight_list *w, const infer_decoder_options *opt,
                                 infer_graph *g, infer_decoder_outputs *out, infer_error *err)
{
    builder b = {.hp = hp, .w = w, .opt = opt, .g = g, .layer = -1};
    const infer_step_layout *l = &opt->step;
    int64_t n = l->max_tokens;
    g->program = INFER_PROGRAM_FORWARD;
    infer_val ids = step_value(&b, l->ids, INFER_FMT_I32, 1, n, 1, T, "ids");
    b.pos = step_value(&b, l->pos, INFER_FMT_I32, 2, n, 1, T, "pos");
    b.slots = step_value(&b, l->slots, INFER_FMT_I32, 1, n, 1, T, "slots");
    b.kv_len = step_value(&b, l->kv_len, INFER_FMT_I32, 1, l->max_seqs, 1, INFER_COUNT_SEQS, "kv_len");
    b.q_start = step_value(&b, l->q_start, INFER_FMT_I32, 1, (int64_t)l->max_seqs + 1, 1, INFER_COUNT_SEQS, "q_start");
    b.block_table =
        step_value(&b, l->block_table, INFER_FMT_I32, 2, l->max_seqs, l->max_blocks, INFER_COUNT_SEQS, "block_table");
    infer_val logit_rows =
        step_value(&b, l->logit_rows, INFER_FMT_I32, 1, l->max_logits, 1, INFER_COUNT_LOGITS, "logit_rows");
    b.inv_freq = weight_named(&b, "rope.inv_freq", 1);
    infer_val x = gather(&b, weight_named(&b, "token_embd.weight", 1), ids, T, n, "embd");
    for (b.layer = 0; b.layer < (int32_t)hp->n_layers; b.layer++) {
        x = attention(&b, x);
        infer_val h = rms_norm(&b, x, weight(&b, "ffn_norm.weight", 1), "ffn_norm");
        h = hp->arch->moe ? moe_mlp(&b, h) : dense_mlp(&b, h);
        x = same_shape(&b, INFER_OP_ADD, h, x, NULL, 0, "ffn_sum");
    }
    x = gather(&b, x, logit_rows, INFER_COUNT_LOGITS, l->max_logits, "last");
    out->hidden = rms_norm(&b, x, weight_named(&b, "output_norm.weight", 1), "output_norm");
    out->logits =
        matmul(&b, out->hidden, weight_named(&b, hp->tied ? "token_embd.weight" : "output.weight", 1), -1, "logits");
    g->program = INFER_PROGRAM_SAMPLE;
    sample(&b, out);
    if (b.missing[0])
        return infer_error_set(err, INFER_E_INTERNAL, "decoder: weight %s was not listed", b.missing);
    if (g->failed)
        return infer_error_set(err, INFER_E_NO_MEMORY, "decoder: no host memory for the graph");
    infer_val kept[] = {out->hidden, out->logits, out->ids, out->logprobs, out->top_ids, out->top_logprobs};
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
        if (kept[i] >= 0)
            g->vals[kept[i]].keep = 1;
    return INFER_OK;
}
