/* Ops on elements and whole rows, norms and row reductions. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "launch.h"

static int32_t per_row(const launch_call *c, uint32_t i)
{
    return (int32_t)launch_per_row(c->op, i);
}

/* ---- Elements ----------------------------------------------------------------------------------------------- */

void launch_check_each(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    (void)op;
    launch_need(dev, a, LAUNCH_K_each);
}

static int each_kind(infer_op_id op)
{
    return op == INFER_OP_ADD     ? LP_EACH_ADD
           : op == INFER_OP_MUL   ? LP_EACH_MUL
           : op == INFER_OP_SCALE ? LP_EACH_SCALE
           : op == INFER_OP_GLU   ? LP_EACH_GLU
                                  : LP_EACH_ACT;
}

infer_status launch_run_each(launch_call *c)
{
    const infer_op_desc *op = c->op;
    int two = op->op == INFER_OP_ADD || op->op == INFER_OP_MUL || op->op == INFER_OP_GLU;
    uint32_t out = op->n_in;
    lp_each p = {.a = c->t[0], .y = c->t[out], .rows = c->rows, .op = each_kind(op->op), .per_row = per_row(c, 0)};
    infer_attrs_scale scale;
    infer_attrs_act act;
    launch_attrs(op, &scale, sizeof scale);
    launch_attrs(op, &act, sizeof act);
    if (op->op == INFER_OP_SCALE) {
        p.scale = scale.scale;
        p.bias = scale.bias;
    } else if (!two || op->op == INFER_OP_GLU) {
        p.act = (int32_t)act.act;
        p.limit = act.limit;
    }
    if (two) {
        p.b = c->t[1];
        p.b_one = launch_tensor_desc(op, 1)->rank < launch_tensor_desc(op, 0)->rank;
    }
    return launch_emit(c, LAUNCH_K_each, (const int[]){0, two ? 1 : -2, (int)out, -1}, 4, &p, sizeof p, p.y.width,
                       (int64_t)p.rows.cap * p.per_row, 1);
}

/* ---- Copies and choices of rows ------------------------------------------------------------------------------- */

/* COPY: the same format, to a plain one, or from a plain one. GATHER_ROWS: to a plain one. */
void launch_check_copy(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    infer_format x = launch_tensor_desc(op, 0)->format, y = launch_tensor_desc(op, op->n_in)->format;
    int reads = launch_format_block(x) != 0, simple = launch_is_plain(x) || x == INFER_FMT_F8_E4M3;
    int writes = launch_is_plain(y) || (op->op == INFER_OP_COPY && (y == INFER_FMT_F8_E4M3 ? simple : 0)) ||
                 (op->op == INFER_OP_COPY && simple && (y == INFER_FMT_Q8_0 || y == INFER_FMT_Q4_0));
    if (op->op == INFER_OP_COPY && x == y)
        reads = writes = 1;
    if (!reads || !writes)
        launch_no(a, INFER_WHY_FORMAT, reads ? op->n_in : 0);
    launch_need(dev, a,
                x == y && op->op == INFER_OP_COPY                              ? LAUNCH_K_copy_bytes
                : launch_format_block(x) > 1 || op->op == INFER_OP_GATHER_ROWS ? LAUNCH_K_unpack_rows
                : launch_is_plain(y) || y == INFER_FMT_F8_E4M3                 ? LAUNCH_K_each
                                                                               : LAUNCH_K_pack_rows);
}

/* Rows of rank 1 are elements where their number is counted, else one vector. */
static void flat(launch_call *c, lp_tensor *t, infer_format f)
{
    if (launch_tensor_desc(c->op, 0)->rank != 1)
        return;
    if (c->rows.from >= 0) {
        uint64_t bytes = launch_format_bytes(f, 1);
        t->s0 = bytes ? (int64_t)bytes : 1;
        t->width = 1;
    } else {
        c->rows.cap = 1;
    }
}

static infer_status copy_same(launch_call *c)
{
    infer_format f = launch_tensor_desc(c->op, 0)->format;
    lp_each p = {.a = c->t[0], .y = c->t[1], .per_row = per_row(c, 0)};
    if (launch_tensor_desc(c->op, 0)->rank == 1 && c->rows.from >= 0) {
        p.a.s0 = p.y.s0 = (int64_t)launch_any_bytes(f, 1);
        p.a.width = p.y.width = 1;
    } else if (launch_tensor_desc(c->op, 0)->rank == 1) {
        c->rows.cap = 1;
    }
    p.rows = c->rows;
    p.y.width = (int32_t)launch_any_bytes(f, (uint64_t)p.y.width);
    return launch_emit(c, LAUNCH_K_copy_bytes, (const int[]){0, 1, -1}, 3, &p, sizeof p, p.y.width,
                       (int64_t)p.rows.cap * p.per_row, 1);
}

infer_status launch_run_copy(launch_call *c)
{
    const infer_op_desc *op = c->op;
    int gather = op->op == INFER_OP_GATHER_ROWS;
    uint32_t out = op->n_in;
    infer_format x = launch_tensor_desc(op, 0)->format, y = launch_tensor_desc(op, out)->format;
    if (!gather && x == y)
        return copy_same(c);
    if (!gather && (launch_is_plain(x) || x == INFER_FMT_F8_E4M3)) {
        lp_each p = {.a = c->t[0], .y = c->t[1], .op = LP_EACH_COPY, .per_row = per_row(c, 0)};
        flat(c, &p.a, x);
        flat(c, &p.y, y);
        p.rows = c->rows;
        int64_t n = (int64_t)p.rows.cap * p.per_row;
        if (launch_is_plain(y) || y == INFER_FMT_F8_E4M3) {
            return launch_emit(c, LAUNCH_K_each, (const int[]){0, -2, 1, -1}, 4, &p, sizeof p, p.y.width, n, 1);
        }
        return launch_emit(c, LAUNCH_K_pack_rows, (const int[]){0, 1, -1}, 3, &p, sizeof p, p.y.width / 32, n, 1);
    }
    lp_select p = {.a = c->t[0], .y = c->t[out], .per_row = 1};
    if (gather) {
        p.idx = c->t[1];
        p.idx.s0 = 4;
        p.na = (int32_t)launch_tensor_desc(op, 0)->shape[0];
    } else {
        p.per_row = per_row(c, 0);
        flat(c, &p.a, x);
        flat(c, &p.y, y);
        p.na = INT32_MAX;
    }
    p.rows = c->rows;
    return launch_emit(c, LAUNCH_K_unpack_rows, (const int[]){0, gather ? 1 : -2, (int)out, -1}, 4, &p, sizeof p,
                       ((int64_t)p.y.width + 31) / 32, (int64_t)p.rows.cap * p.per_row, 1);
}

void launch_check_select(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    (void)op;
    launch_need(dev, a,
                op->op == INFER_OP_CONCAT_ROWS  ? LAUNCH_K_concat_rows
                : op->op == INFER_OP_IDS_SELECT ? LAUNCH_K_ids_select
                                                : LAUNCH_K_rows_select);
}

infer_status launch_run_select(launch_call *c)
{
    infer_op_id op = c->op->op;
    lp_select p = {.a = c->t[0], .b = c->t[1], .y = c->t[c->op->n_in], .rows = c->rows, .per_row = 1};
    if (op == INFER_OP_CONCAT_ROWS) {
        return launch_emit(c, LAUNCH_K_concat_rows, (const int[]){0, 1, 2, -1}, 4, &p, sizeof p, p.y.width, p.rows.cap,
                           1);
    }
    p.b = c->t[2];
    p.idx = c->t[1];
    p.idx.s0 = 4;
    p.nb = (int32_t)launch_tensor_desc(c->op, 2)->shape[0];
    const int which[] = {0, 2, 1, 3, -1};
    if (op == INFER_OP_IDS_SELECT)
        return launch_emit(c, LAUNCH_K_ids_select, which, 5, &p, sizeof p, p.rows.cap, 1, 1);
    return launch_emit(c, LAUNCH_K_rows_select, which, 5, &p, sizeof p, p.y.width, p.rows.cap, 1);
}

/* ---- A work-group a vector ------------------------------------------------------------------------------------ */

void launch_check_norm(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    (void)op;
    launch_need(dev, a, LAUNCH_K_norm_rows);
}

infer_status launch_run_norm(launch_call *c)
{
    const infer_op_desc *op = c->op;
    int add = op->op == INFER_OP_ADD_RMS_NORM, layer = op->op == INFER_OP_LAYER_NORM;
    uint32_t out = op->n_in, w = add ? 2 : 1;
    int b = add ? 1 : layer && launch_present(op, 2) && op->n_in > 2 ? 2 : -2;
    infer_attrs_norm attrs;
    launch_attrs(op, &attrs, sizeof attrs);
    lp_norm p = {.x = c->t[0],
                 .y = c->t[out],
                 .rows = c->rows,
                 .kind = add     ? LP_NORM_ADD
                         : layer ? LP_NORM_LAYER
                                 : LP_NORM_RMS,
                 .per_row = per_row(c, 0),
                 .eps = attrs.eps,
                 .offset = attrs.weight_offset};
    int has_w = op->n_in > w && launch_present(op, w);
    if (has_w)
        p.w = c->t[w];
    if (b >= 0)
        p.b = c->t[b];
    if (add)
        p.s = c->t[out + 1];
    const int which[] = {0, has_w ? (int)w : -2, b, (int)out, add ? (int)out + 1 : -2, -1};
    return launch_emit(c, LAUNCH_K_norm_rows, which, 6, &p, sizeof p, (int64_t)p.rows.cap * p.per_row, p.x.width, 1);
}

void launch_check_row(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    (void)op;
    launch_need(dev, a, op->op == INFER_OP_ARGMAX ? LAUNCH_K_argmax : LAUNCH_K_softmax);
}

infer_status launch_run_row(launch_call *c)
{
    infer_attrs_scale attrs;
    launch_attrs(c->op, &attrs, sizeof attrs);
    lp_row p = {.x = c->t[0],
                .y = c->t[1],
                .rows = c->rows,
                .per_row = per_row(c, 0),
                .scale = attrs.scale == 0 ? 1 : attrs.scale};
    return launch_emit(c, c->op->op == INFER_OP_ARGMAX ? LAUNCH_K_argmax : LAUNCH_K_softmax, (const int[]){0, 1, -1}, 3,
                       &p, sizeof p, (int64_t)p.rows.cap * p.per_row, p.x.width, 1);
}

/* ---- Experts ---------------------------------------------------------------------------------------------------- */

void launch_check_combine(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    (void)op;
    launch_need(dev, a, LAUNCH_K_moe_combine);
}

infer_status launch_run_combine(launch_call *c)
{
    lp_combine p = {.x = c->t[0], .w = c->t[1], .y = c->t[2], .rows = c->rows, .k = per_row(c, 0)};
    return launch_emit(c, LAUNCH_K_moe_combine, (const int[]){0, 1, 2, -1}, 4, &p, sizeof p, p.y.width, p.rows.cap, 1);
}
