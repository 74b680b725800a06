/* Ops on elements and whole rows, norms and row reductions. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "ocl.h"

/* The program of the common ops, or NO. */
static void need_ops(infer_device *dev, infer_op_answer *a)
{
    const ocl_program *program;
    if (a->level && ocl_program_ops(dev, &program))
        ocl_no(a, INFER_WHY_OP, 0);
}

static int32_t per_row(const ocl_call *c, uint32_t i)
{
    return (int32_t)ocl_per_row(c->op, i);
}

/* ---- Elements ----------------------------------------------------------------------------------------------- */

void ocl_check_each(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    (void)op;
    need_ops(dev, a);
}

static int each_kind(infer_op_id op)
{
    return op == INFER_OP_ADD     ? OCL_EACH_ADD
           : op == INFER_OP_MUL   ? OCL_EACH_MUL
           : op == INFER_OP_SCALE ? OCL_EACH_SCALE
           : op == INFER_OP_GLU   ? OCL_EACH_GLU
                                  : OCL_EACH_ACT;
}

infer_status ocl_run_each(ocl_call *c)
{
    const infer_op_desc *op = c->op;
    int two = op->op == INFER_OP_ADD || op->op == INFER_OP_MUL || op->op == INFER_OP_GLU;
    uint32_t out = op->n_in;
    ocl_each p = {.a = c->t[0], .y = c->t[out], .rows = c->rows, .op = each_kind(op->op), .per_row = per_row(c, 0)};
    infer_attrs_scale scale;
    infer_attrs_act act;
    ocl_launch l;
    const ocl_program *program;
    ocl_attrs(op, &scale, sizeof scale);
    ocl_attrs(op, &act, sizeof act);
    if (op->op == INFER_OP_SCALE) {
        p.scale = scale.scale;
        p.bias = scale.bias;
    } else if (!two || op->op == INFER_OP_GLU) {
        p.act = (int32_t)act.act;
        p.limit = act.limit;
    }
    if (two) {
        p.b = c->t[1];
        p.b_one = ocl_tensor_desc(op, 1)->rank < ocl_tensor_desc(op, 0)->rank;
    }
    infer_status s = ocl_program_ops(c->dev, &program);
    if (s)
        return s;
    ocl_launch_init(&l, c, program, "each", (const int[]){0, two ? 1 : -2, (int)out, -1}, 4, &p, sizeof p);
    return ocl_emit_each(c, &l, p.y.width, (int64_t)p.rows.cap * p.per_row);
}

/* ---- Copies and choices of rows ------------------------------------------------------------------------------- */

/* COPY: the same format, to a plain one, or from a plain one. GATHER_ROWS: to a plain one. */
void ocl_check_copy(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    infer_format x = ocl_tensor_desc(op, 0)->format, y = ocl_tensor_desc(op, op->n_in)->format;
    int reads = ocl_format_block(x) != 0, simple = ocl_is_plain(x) || x == INFER_FMT_F8_E4M3;
    int writes = ocl_is_plain(y) || (op->op == INFER_OP_COPY && (y == INFER_FMT_F8_E4M3 ? simple : 0)) ||
                 (op->op == INFER_OP_COPY && simple && (y == INFER_FMT_Q8_0 || y == INFER_FMT_Q4_0));
    if (op->op == INFER_OP_COPY && x == y)
        reads = writes = 1;
    if (!reads || !writes)
        ocl_no(a, INFER_WHY_FORMAT, reads ? op->n_in : 0);
    need_ops(dev, a);
}

/* Rows of rank 1 are elements where their number is counted, else one vector. */
static void flat(ocl_call *c, ocl_tensor *t, infer_format f)
{
    if (ocl_tensor_desc(c->op, 0)->rank != 1)
        return;
    if (c->rows.from >= 0) {
        uint64_t bytes = ocl_format_bytes(f, 1);
        t->s0 = bytes ? (int64_t)bytes : 1;
        t->width = 1;
    } else {
        c->rows.cap = 1;
    }
}

static uint64_t bytes_of(infer_format f, uint64_t n)
{
    static const uint8_t wide[INFER_FMT_COUNT] = {[INFER_FMT_F64] = 8, [INFER_FMT_I64] = 8, [INFER_FMT_I32] = 4,
                                                  [INFER_FMT_U32] = 4, [INFER_FMT_I16] = 2, [INFER_FMT_U16] = 2};
    uint64_t known = ocl_format_bytes(f, n);
    return known ? known : f == INFER_FMT_U4 ? n / 2 : n * (wide[f] ? wide[f] : 1);
}

static infer_status copy_same(ocl_call *c, const ocl_program *program)
{
    infer_format f = ocl_tensor_desc(c->op, 0)->format;
    ocl_each p = {.a = c->t[0], .y = c->t[1], .per_row = per_row(c, 0)};
    ocl_launch l;
    if (ocl_tensor_desc(c->op, 0)->rank == 1 && c->rows.from >= 0) {
        p.a.s0 = p.y.s0 = (int64_t)bytes_of(f, 1);
        p.a.width = p.y.width = 1;
    } else if (ocl_tensor_desc(c->op, 0)->rank == 1) {
        c->rows.cap = 1;
    }
    p.rows = c->rows;
    p.y.width = (int32_t)bytes_of(f, (uint64_t)p.y.width);
    ocl_launch_init(&l, c, program, "copy_bytes", (const int[]){0, 1, -1}, 3, &p, sizeof p);
    return ocl_emit_each(c, &l, p.y.width, (int64_t)p.rows.cap * p.per_row);
}

infer_status ocl_run_copy(ocl_call *c)
{
    const infer_op_desc *op = c->op;
    const ocl_program *program;
    infer_status s = ocl_program_ops(c->dev, &program);
    int gather = op->op == INFER_OP_GATHER_ROWS;
    uint32_t out = op->n_in;
    infer_format x = ocl_tensor_desc(op, 0)->format, y = ocl_tensor_desc(op, out)->format;
    ocl_launch l;
    if (s)
        return s;
    if (!gather && x == y)
        return copy_same(c, program);
    if (!gather && (ocl_is_plain(x) || x == INFER_FMT_F8_E4M3)) {
        ocl_each p = {.a = c->t[0], .y = c->t[1], .op = OCL_EACH_COPY, .per_row = per_row(c, 0)};
        flat(c, &p.a, x);
        flat(c, &p.y, y);
        p.rows = c->rows;
        int64_t n = (int64_t)p.rows.cap * p.per_row;
        if (ocl_is_plain(y) || y == INFER_FMT_F8_E4M3) {
            ocl_launch_init(&l, c, program, "each", (const int[]){0, -2, 1, -1}, 4, &p, sizeof p);
            return ocl_emit_each(c, &l, p.y.width, n);
        }
        ocl_launch_init(&l, c, program, "pack_rows", (const int[]){0, 1, -1}, 3, &p, sizeof p);
        return ocl_emit(c, &l, (size_t)p.y.width / 32, (size_t)n, 1, 1, 1);
    }
    ocl_select p = {.a = c->t[0], .y = c->t[out], .per_row = 1};
    if (gather) {
        p.idx = c->t[1];
        p.idx.s0 = 4;
        p.na = (int32_t)ocl_tensor_desc(op, 0)->shape[0];
    } else {
        p.per_row = per_row(c, 0);
        flat(c, &p.a, x);
        flat(c, &p.y, y);
        p.na = INT32_MAX;
    }
    p.rows = c->rows;
    ocl_launch_init(&l, c, program, "unpack_rows", (const int[]){0, gather ? 1 : -2, (int)out, -1}, 4, &p, sizeof p);
    return ocl_emit(c, &l, ((size_t)p.y.width + 31) / 32, (size_t)p.rows.cap * (size_t)p.per_row, 1, 1, 1);
}

void ocl_check_select(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    (void)op;
    need_ops(dev, a);
}

infer_status ocl_run_select(ocl_call *c)
{
    const ocl_program *program;
    infer_status s = ocl_program_ops(c->dev, &program);
    infer_op_id op = c->op->op;
    ocl_select p = {.a = c->t[0], .b = c->t[1], .y = c->t[c->op->n_in], .rows = c->rows, .per_row = 1};
    ocl_launch l;
    if (s)
        return s;
    if (op == INFER_OP_CONCAT_ROWS) {
        ocl_launch_init(&l, c, program, "concat_rows", (const int[]){0, 1, 2, -1}, 4, &p, sizeof p);
        return ocl_emit_each(c, &l, p.y.width, p.rows.cap);
    }
    p.b = c->t[2];
    p.idx = c->t[1];
    p.idx.s0 = 4;
    p.nb = (int32_t)ocl_tensor_desc(c->op, 2)->shape[0];
    ocl_launch_init(&l, c, program, op == INFER_OP_IDS_SELECT ? "ids_select" : "rows_select",
                    (const int[]){0, 2, 1, 3, -1}, 5, &p, sizeof p);
    if (op == INFER_OP_IDS_SELECT)
        return ocl_emit(c, &l, (size_t)p.rows.cap, 1, 1, 1, 1);
    return ocl_emit_each(c, &l, p.y.width, p.rows.cap);
}

/* ---- A work-group a vector ------------------------------------------------------------------------------------ */

static void need_long(infer_device *dev, infer_op_answer *a)
{
    const ocl_program *program;
    if (a->level && ocl_program_long(dev, &program))
        ocl_no(a, INFER_WHY_OP, 0);
}

void ocl_check_norm(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    (void)op;
    need_long(dev, a);
}

infer_status ocl_run_norm(ocl_call *c)
{
    const infer_op_desc *op = c->op;
    const ocl_program *program;
    infer_status s = ocl_program_long(c->dev, &program);
    int add = op->op == INFER_OP_ADD_RMS_NORM, layer = op->op == INFER_OP_LAYER_NORM;
    uint32_t out = op->n_in, w = add ? 2 : 1;
    int b = add ? 1 : layer && ocl_present(op, 2) && op->n_in > 2 ? 2 : -2;
    infer_attrs_norm attrs;
    ocl_launch l;
    if (s)
        return s;
    ocl_attrs(op, &attrs, sizeof attrs);
    ocl_norm p = {.x = c->t[0],
                  .y = c->t[out],
                  .rows = c->rows,
                  .kind = add     ? OCL_NORM_ADD
                          : layer ? OCL_NORM_LAYER
                                  : OCL_NORM_RMS,
                  .per_row = per_row(c, 0),
                  .eps = attrs.eps,
                  .offset = attrs.weight_offset};
    int has_w = op->n_in > w && ocl_present(op, w);
    if (has_w)
        p.w = c->t[w];
    if (b >= 0)
        p.b = c->t[b];
    if (add)
        p.s = c->t[out + 1];
    const int which[] = {0, has_w ? (int)w : -2, b, (int)out, add ? (int)out + 1 : -2, -1};
    ocl_launch_init(&l, c, program, "norm", which, 6, &p, sizeof p);
    return ocl_emit(c, &l, (size_t)p.rows.cap * (size_t)p.per_row, 1, 1, c->dev->row_lanes, 1);
}

void ocl_check_row(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    (void)op;
    need_long(dev, a);
}

infer_status ocl_run_row(ocl_call *c)
{
    const ocl_program *program;
    infer_status s = ocl_program_long(c->dev, &program);
    infer_attrs_scale attrs;
    ocl_launch l;
    if (s)
        return s;
    ocl_attrs(c->op, &attrs, sizeof attrs);
    ocl_row p = {.x = c->t[0],
                 .y = c->t[1],
                 .rows = c->rows,
                 .per_row = per_row(c, 0),
                 .scale = attrs.scale == 0 ? 1 : attrs.scale};
    ocl_launch_init(&l, c, program, c->op->op == INFER_OP_ARGMAX ? "argmax" : "softmax", (const int[]){0, 1, -1}, 3, &p,
                    sizeof p);
    return ocl_emit(c, &l, (size_t)p.rows.cap * (size_t)p.per_row, 1, 1, c->dev->row_lanes, 1);
}
