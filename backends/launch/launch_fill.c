/* Parameter blocks of ops whose kernels differ between backends: which operand is what. SPDX-License-Identifier:
 * Apache-2.0 */
#include "config.h"

#include <string.h>

#include "launch.h"

/* ---- Attention, experts, sampling -------------------------------------------------------------------------------- */

void launch_fill_attn(const launch_call *c, lp_attn *p, int which[10])
{
    const infer_op_desc *op = c->op;
    int dense = op->op == INFER_OP_ATTN_DENSE, mla = op->op == INFER_OP_MLA_PAGED, out = (int)op->n_in;
    int v = mla ? 1 : 2, table = dense ? -2 : v + 1, sinks = dense || mla ? -2 : 6, tree = dense ? -2 : mla ? 5 : 7;
    const infer_tensor_desc *k = launch_tensor_desc(op, 1);
    infer_attrs_attn attrs;
    if (sinks >= 0 && (sinks >= out || !launch_present(op, (uint32_t)sinks)))
        sinks = -2;
    if (tree >= 0 && (tree >= out || !launch_present(op, (uint32_t)tree)))
        tree = -2;
    launch_attrs(op, &attrs, sizeof attrs);
    *p = (lp_attn){.q = c->t[0],
                   .k = c->t[1],
                   .v = c->t[v],
                   .y = c->t[out],
                   .rows = c->rows,
                   .heads = (int32_t)launch_tensor_desc(op, 0)->shape[1],
                   .kv_heads = (int32_t)k->shape[1],
                   .n_blocks = (int32_t)k->shape[0],
                   .block_size = 1,
                   .mask = (int32_t)attrs.mask,
                   .window = (int32_t)(attrs.window < INT32_MAX ? attrs.window : INT32_MAX),
                   .scale = attrs.scale,
                   .soft_cap = attrs.soft_cap};
    if (dense) {
        p->dense_n = (int32_t)launch_tensor_desc(op, 0)->shape[0];
        p->dense_m = (int32_t)k->shape[0];
    } else {
        p->block_size = (int32_t)k->shape[2];
        p->table = c->t[table];
        p->table_width = p->table.width;
        p->n_seqs = (int32_t)launch_tensor_desc(op, (uint32_t)table)->shape[0];
        p->len_off = c->t[table + 1].off;
        p->start_off = c->t[table + 2].off;
    }
    if (sinks >= 0)
        p->sinks = c->t[sinks];
    if (tree >= 0)
        p->tree = c->t[tree];
    const int list[10] = {0, 1, v, table, dense ? -2 : table + 1, dense ? -2 : table + 2, sinks, tree, out, -1};
    memcpy(which, list, sizeof list);
}

void launch_fill_route(const launch_call *c, lp_route *p)
{
    infer_attrs_route attrs;
    launch_attrs(c->op, &attrs, sizeof attrs);
    *p = (lp_route){.x = c->t[0],
                    .ids = c->t[1],
                    .w = c->t[2],
                    .rows = c->rows,
                    .k = (int32_t)attrs.k,
                    .scoring = (int32_t)attrs.scoring,
                    .normalise = (int32_t)attrs.normalise,
                    .scale = attrs.scale == 0 ? 1 : attrs.scale};
}

void launch_fill_sample(const launch_call *c, lp_sample *p, int which[11])
{
    const infer_op_desc *op = c->op;
    int out = (int)op->n_in, in[5];
    infer_attrs_sample attrs;
    launch_attrs(op, &attrs, sizeof attrs);
    for (int i = 0; i < 5; i++)
        in[i] = i < out && launch_present(op, (uint32_t)i) ? i : -2;
    *p = (lp_sample){.x = c->t[0],
                     .params = c->t[1],
                     .rows = c->rows,
                     .ids_off = c->t[out].off,
                     .lp_off = c->t[out + 1].off,
                     .lp_fmt = c->t[out + 1].fmt,
                     .z_off = c->scratch_off,
                     .n_top = (int32_t)attrs.n_top};
    if (in[2] >= 0) {
        p->counts = c->t[2];
        p->n_counts = (int32_t)launch_tensor_desc(op, 2)->shape[0];
    }
    if (in[3] >= 0) {
        p->bias = c->t[3];
        p->n_bias = (int32_t)launch_tensor_desc(op, 3)->shape[0];
    }
    if (in[4] >= 0)
        p->mask = c->t[4];
    if (p->n_top) {
        p->top_ids = c->t[out + 2];
        p->top_lp = c->t[out + 3];
    }
    const int list[11] = {0,  1, in[2], in[3], in[4], out, out + 1, p->n_top ? out + 2 : -2, p->n_top ? out + 3 : -2,
                          -3, -1};
    memcpy(which, list, sizeof list);
}

/* ---- Products -----------------------------------------------------------------------------------------------------
 */

static int takes(const infer_epilogue *e)
{
    return e->kind >= INFER_EPI_BIAS && e->kind <= INFER_EPI_CONVERT;
}

uint32_t launch_epilogue_prefix(const infer_op_desc *op)
{
    uint32_t n = 0, slots = 0;
    for (; n < op->n_epilogue; n++) {
        const infer_epilogue *e = launch_epilogue(op, n);
        if (!takes(e) || (e->kind != INFER_EPI_CONVERT && slots++ == LP_MAX_EPI))
            break;
    }
    return n;
}

static void put_epilogue(const launch_call *c, lp_mm *p, int mem[LP_MAX_EPI])
{
    if (c->op->op == INFER_OP_LORA_EXPAND_ADD) { /* y = base + t: its own last step */
        p->epi[p->n_epi] = (lp_epi){.kind = INFER_EPI_RESIDUAL, .t = c->t[3]};
        mem[p->n_epi++] = 3;
        return;
    }
    for (uint32_t i = 0; i < c->op->n_epilogue; i++) {
        const infer_epilogue *e = launch_epilogue(c->op, i);
        if (e->kind == INFER_EPI_CONVERT || p->n_epi == LP_MAX_EPI)
            break; /* the store converts */
        lp_epi *to = &p->epi[p->n_epi];
        *to = (lp_epi){.kind = (int32_t)e->kind, .arg = (int32_t)e->arg, .factor = e->factor};
        if (e->kind == INFER_EPI_BIAS || e->kind == INFER_EPI_RESIDUAL || e->kind == INFER_EPI_MUL) {
            to->t = c->t[e->operand];
            mem[p->n_epi] = (int)e->operand;
        }
        p->n_epi++;
    }
}

/* Whether every row of x begins at a multiple of 16 bytes; buffers do. */
static int wide(const lp_tensor *x)
{
    return !((x->off | (uint64_t)x->s0 | (uint64_t)x->s1 | (uint64_t)x->s2) % 16);
}

/* A scale for each row, or one for all, which is put as one for each. */
static int launch_by_row(const infer_tensor_desc *w)
{
    return w->quant.scale_format && !w->quant.group_k;
}

void launch_product_of(const launch_call *c, launch_product *m)
{
    const infer_op_desc *op = c->op;
    infer_attrs_matmul attrs;
    *m = (launch_product){.x = 0, .w = 1, .bias = -2, .ids = -2, .y = (int)op->n_in, .epilogue = 1, .scale = 1};
    if (op->op == INFER_OP_MATMUL || op->op == INFER_OP_MOE_MATMUL) {
        launch_attrs(op, &attrs, sizeof attrs);
        m->scale = attrs.scale == 0 ? 1 : attrs.scale;
    }
    if (op->op != INFER_OP_MATMUL)
        m->ids = 2;
    else if (op->n_in > 2 && launch_present(op, 2))
        m->bias = 2;
}

void launch_fill_product(const launch_call *c, const launch_product *m, lp_mm *p, int which[10])
{
    const infer_tensor_desc *w = launch_tensor_desc(c->op, (uint32_t)m->w);
    int epi[LP_MAX_EPI] = {-2, -2, -2, -2};
    *p = (lp_mm){.x = m->x >= 0 ? c->t[m->x] : m->xt,
                 .y = m->y >= 0 ? c->t[m->y] : m->yt,
                 .rows = c->rows,
                 .w_off = c->t[m->w].off,
                 .w_row = w->rank == 3 ? c->t[m->w].s1 : c->t[m->w].s0,
                 .w_expert = w->rank == 3 ? c->t[m->w].s0 : 0,
                 .k = (int32_t)w->shape[w->rank - 1],
                 .n = (int32_t)w->shape[w->rank - 2],
                 .choices = 1,
                 .n_experts = w->rank == 3 ? (int32_t)w->shape[0] : 1,
                 .scale = m->scale,
                 .by_row = launch_by_row(w)};
    if (m->bias >= 0)
        p->bias = c->t[m->bias];
    if (m->ids >= 0) {
        p->ids = c->t[m->ids];
        if (launch_tensor_desc(c->op, (uint32_t)m->ids)->rank == 1) {
            p->ids.s0 = 4; /* one a row */
        } else {
            p->choices = p->ids.width;
            if (launch_tensor_desc(c->op, 0)->rank == 2) /* one x for all choices of a row */
                p->x.n1 = p->choices;
        }
    }
    p->wide = wide(&p->x) && !((p->w_off | (uint64_t)p->w_row | (uint64_t)p->w_expert) % 16);
    if (m->epilogue)
        put_epilogue(c, p, epi);
    const int list[10] = {m->x, m->w, m->ids, m->bias, epi[0], epi[1], epi[2], epi[3], m->y, -1};
    memcpy(which, list, sizeof list);
}

void launch_fill_products(const launch_call *c, uint32_t n, int bias, int y, const lp_tensor *out, lp_mms *p,
                          int which[11])
{
    int list[11] = {0, -2, -2, -2, -2, -2, -2, -2, -2, -2, -1};
    *p = (lp_mms){.x = c->t[0],
                  .rows = c->rows,
                  .k = (int32_t)launch_tensor_desc(c->op, 1)->shape[1],
                  .wide = wide(&c->t[0]),
                  .by_row = launch_by_row(launch_tensor_desc(c->op, 1))};
    for (uint32_t i = 0; i < n; i++) {
        uint32_t b = (uint32_t)bias + i;
        list[1 + i] = 1 + (int)i;
        p->w_off[i] = c->t[1 + i].off;
        p->w_row[i] = c->t[1 + i].s0;
        p->n[i] = (int32_t)launch_tensor_desc(c->op, 1 + i)->shape[0];
        p->y[i] = y >= 0 ? c->t[y + (int)i] : out[i];
        p->wide &= !((p->w_off[i] | (uint64_t)p->w_row[i]) % 16);
        if (bias >= 0 && b < c->op->n_in && launch_present(c->op, b)) {
            p->bias[i] = c->t[b];
            list[4 + i] = (int)b;
        }
        list[7 + i] = y >= 0 ? y + (int)i : -3;
    }
    memcpy(which, list, sizeof list);
}
