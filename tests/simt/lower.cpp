/* Launches by op. SPDX-License-Identifier: Apache-2.0 */
#include "simt.h"

#include <cstdio>
#include <string>
#include <vector>

#include "lower.h"
extern "C" {
#include "ops/ops.h"
#include "quant/quant.h"
}
#include "../../backends/launch/params.h"

namespace
{
/* 0xFF: a NaN where a kernel reads what it has not written. */
struct scratch {
    std::vector<uint64_t> mem;
    unsigned char *base;
    explicit scratch(uint64_t bytes) : mem(bytes / 8 + 2, ~(uint64_t)0)
    {
        base = (unsigned char *)mem.data();
        base += (16 - (uintptr_t)base % 16) % 16;
    }
};

struct call {
    const infer_op_desc *op;
    const lower_how *how;
    lp_tensor t[INFER_OP_MAX_OPERANDS];
    unsigned char *mem[INFER_OP_MAX_OPERANDS], *counts;
    lp_rows rows;
};

const infer_tensor_desc *desc(const call &c, int i)
{
    return &c.op->tensors[i];
}

int present(const call &c, int i)
{
    return i >= 0 && i < (int)(c.op->n_in + c.op->n_out) && !(desc(c, i)->flags & INFER_TENSOR_ABSENT);
}

int out(const call &c, int i)
{
    return (int)c.op->n_in + i;
}

int64_t per_row(const call &c, int i)
{
    int64_t n = 1;
    for (uint32_t a = 1; a + 1 < desc(c, i)->rank; a++)
        n *= desc(c, i)->shape[a];
    return n;
}

uint64_t bytes_of(infer_format f, int64_t n)
{
    uint64_t b = 0;
    infer_format_bytes(f, (uint64_t)n, &b);
    return b;
}

int is_plain(infer_format f)
{
    return f == INFER_FMT_F32 || f == INFER_FMT_F16 || f == INFER_FMT_BF16;
}

const char *name_of(infer_format f)
{
    static const struct {
        infer_format f;
        const char *name;
    } names[] = {
        {INFER_FMT_F32, "f32"},      {INFER_FMT_F16, "f16"},   {INFER_FMT_BF16, "bf16"},   {INFER_FMT_F8_E4M3, "e4m3"},
        {INFER_FMT_F8_E5M2, "e5m2"}, {INFER_FMT_Q4_0, "q4_0"}, {INFER_FMT_Q4_1, "q4_1"},   {INFER_FMT_Q5_0, "q5_0"},
        {INFER_FMT_Q5_1, "q5_1"},    {INFER_FMT_Q8_0, "q8_0"}, {INFER_FMT_MXFP4, "mxfp4"}, {INFER_FMT_Q2_K, "q2_k"},
        {INFER_FMT_Q3_K, "q3_k"},    {INFER_FMT_Q4_K, "q4_k"}, {INFER_FMT_Q5_K, "q5_k"},   {INFER_FMT_Q6_K, "q6_k"}};
    for (auto &n : names)
        if (n.f == f)
            return n.name;
    return nullptr;
}

void place(const infer_tensor_desc *t, uint64_t off, lp_tensor *o)
{
    int dense = 1;
    uint64_t span = bytes_of(t->format, t->shape[t->rank - 1]);
    int64_t stride[3] = {0};
    for (uint32_t i = 0; i + 1 < t->rank; i++)
        dense &= !t->stride[i];
    for (int i = (int)t->rank - 2; i >= 0; i--) {
        stride[i] = dense ? (int64_t)span : t->stride[i];
        span *= (uint64_t)t->shape[i];
    }
    *o = lp_tensor{off,
                   stride[0],
                   stride[1],
                   stride[2],
                   t->rank > 2 ? (int32_t)t->shape[1] : 1,
                   t->rank > 3 ? (int32_t)t->shape[2] : 1,
                   (int32_t)t->shape[t->rank - 1],
                   (int32_t)t->format};
}

uint32_t div_up(int64_t a, int64_t b)
{
    return (uint32_t)((a + b - 1) / b);
}

/* which: operand indices, -1: counts, -2: none. */
template <class P>
void go(const call &c, const std::string &name, std::vector<int> which, const P &p, dim3 grid, dim3 block,
        size_t dyn = 0, const std::vector<std::pair<int, unsigned char *>> &also = {})
{
    void *mem[16];
    int n = 0;
    for (int w : which)
        mem[n++] = w >= 0 ? c.mem[w] : w == -1 ? c.counts : nullptr;
    for (auto &a : also)
        mem[a.first] = a.second;
    if (grid.x && grid.y && grid.z)
        simt::start(simt::launch{name.c_str(), mem, &p, grid, block, dyn});
}

/* A grid over elements that is too small, so that it is walked. */
dim3 few(int64_t width, int64_t vectors)
{
    uint32_t x = div_up(width, 8 * 64), y = (uint32_t)vectors;
    return dim3(x > 2 ? 2 : x, y > 3 ? 3 : y);
}

int run_each(call &c)
{
    infer_op_id id = c.op->op;
    int two = id == INFER_OP_ADD || id == INFER_OP_MUL || id == INFER_OP_GLU, o = out(c, 0);
    lp_each p = {};
    p.a = c.t[0];
    p.y = c.t[o];
    p.rows = c.rows;
    p.per_row = (int32_t)per_row(c, 0);
    p.op = id == INFER_OP_ADD     ? LP_EACH_ADD
           : id == INFER_OP_MUL   ? LP_EACH_MUL
           : id == INFER_OP_SCALE ? LP_EACH_SCALE
           : id == INFER_OP_GLU   ? LP_EACH_GLU
                                  : LP_EACH_ACT;
    infer_attrs_scale scale;
    infer_attrs_act act;
    infer_op_attrs(c.op, &scale, sizeof scale);
    infer_op_attrs(c.op, &act, sizeof act);
    if (id == INFER_OP_SCALE) {
        p.scale = scale.scale;
        p.bias = scale.bias;
    } else if (id == INFER_OP_GLU || id == INFER_OP_ACT) {
        p.act = (int32_t)act.act;
        p.limit = act.limit;
    }
    if (two) {
        p.b = c.t[1];
        p.b_one = desc(c, 1)->rank < desc(c, 0)->rank;
    }
    go(c, "each", {0, two ? 1 : -2, o, -1}, p, few(p.y.width, (int64_t)p.rows.cap * p.per_row), 64);
    return 1;
}

/* Rows of rank 1 are elements where their number is counted, else one vector. */
void flat(call &c, lp_tensor *t, infer_format f)
{
    if (desc(c, 0)->rank != 1)
        return;
    if (c.rows.from >= 0) {
        t->s0 = (int64_t)bytes_of(f, 1);
        t->width = 1;
    } else {
        c.rows.cap = 1;
    }
}

int run_copy(call &c)
{
    int gather = c.op->op == INFER_OP_GATHER_ROWS, o = out(c, 0);
    infer_format x = desc(c, 0)->format, y = desc(c, o)->format;
    int simple = is_plain(x) || x == INFER_FMT_F8_E4M3;
    if (!gather && x == y) {
        lp_each p = {};
        p.a = c.t[0];
        p.y = c.t[1];
        p.per_row = (int32_t)per_row(c, 0);
        if (desc(c, 0)->rank == 1 && c.rows.from >= 0) {
            p.a.s0 = p.y.s0 = (int64_t)bytes_of(x, 1);
            p.a.width = p.y.width = 1;
        } else if (desc(c, 0)->rank == 1) {
            c.rows.cap = 1;
        }
        p.rows = c.rows;
        p.y.width = (int32_t)bytes_of(x, p.y.width);
        go(c, "copy_bytes", {0, 1, -1}, p, few(p.y.width / 2 + 1, (int64_t)p.rows.cap * p.per_row), 64);
        return 1;
    }
    if (!gather && simple && (is_plain(y) || y == INFER_FMT_F8_E4M3 || y == INFER_FMT_Q8_0 || y == INFER_FMT_Q4_0)) {
        lp_each p = {};
        p.a = c.t[0];
        p.y = c.t[1];
        p.op = LP_EACH_COPY;
        p.per_row = (int32_t)per_row(c, 0);
        flat(c, &p.a, x);
        flat(c, &p.y, y);
        p.rows = c.rows;
        dim3 grid = few(p.y.width, (int64_t)p.rows.cap * p.per_row);
        if (is_plain(y) || y == INFER_FMT_F8_E4M3)
            go(c, "each", {0, -2, 1, -1}, p, grid, 64);
        else
            go(c, "pack_rows", {0, 1, -1}, p, grid, 64);
        return 1;
    }
    if (!name_of(x) || !is_plain(y))
        return 0;
    lp_select p = {};
    p.a = c.t[0];
    p.y = c.t[o];
    p.per_row = gather ? 1 : (int32_t)per_row(c, 0);
    p.na = gather ? (int32_t)desc(c, 0)->shape[0] : INT32_MAX;
    if (gather) {
        p.idx = c.t[1];
        p.idx.s0 = 4;
    } else {
        flat(c, &p.a, x);
        flat(c, &p.y, y);
    }
    p.rows = c.rows;
    go(c, "unpack_rows", {0, gather ? 1 : -2, o, -1}, p, few(p.y.width, (int64_t)p.rows.cap * p.per_row), 64);
    return 1;
}

int run_select(call &c)
{
    infer_op_id id = c.op->op;
    lp_select p = {};
    p.a = c.t[0];
    p.b = c.t[1];
    p.y = c.t[out(c, 0)];
    p.rows = c.rows;
    p.per_row = 1;
    if (id == INFER_OP_CONCAT_ROWS) {
        go(c, "concat_rows", {0, 1, 2, -1}, p, few(p.y.width, p.rows.cap), 64);
        return 1;
    }
    p.b = c.t[2];
    p.idx = c.t[1];
    p.idx.s0 = 4;
    p.nb = (int32_t)desc(c, 2)->shape[0];
    if (id == INFER_OP_IDS_SELECT)
        go(c, "ids_select", {0, 2, 1, 3, -1}, p, 1, 64);
    else
        go(c, "rows_select", {0, 2, 1, 3, -1}, p, few(p.y.width, p.rows.cap), 64);
    return 1;
}

int run_norm(call &c)
{
    int add = c.op->op == INFER_OP_ADD_RMS_NORM, layer = c.op->op == INFER_OP_LAYER_NORM, o = out(c, 0);
    int w = add ? 2 : 1, b = add ? 1 : layer && (int)c.op->n_in > 2 && present(c, 2) ? 2 : -2;
    infer_attrs_norm attrs;
    infer_op_attrs(c.op, &attrs, sizeof attrs);
    lp_norm p = {};
    p.x = c.t[0];
    p.y = c.t[o];
    p.rows = c.rows;
    p.kind = add ? LP_NORM_ADD : layer ? LP_NORM_LAYER : LP_NORM_RMS;
    p.per_row = (int32_t)per_row(c, 0);
    p.eps = attrs.eps;
    p.offset = attrs.weight_offset;
    int has_w = (int)c.op->n_in > w && present(c, w);
    if (has_w)
        p.w = c.t[w];
    if (b >= 0)
        p.b = c.t[b];
    if (add)
        p.s = c.t[o + 1];
    if (c.how->fused) { /* the kernel for the usual case */
        uint64_t places = p.x.off | (uint64_t)p.x.s0 | (uint64_t)p.x.s1 | (uint64_t)p.x.s2 | p.y.off |
                          (uint64_t)p.y.s0 | (uint64_t)p.y.s1 | (uint64_t)p.y.s2 | p.w.off;
        if (add)
            places |= p.b.off | (uint64_t)p.b.s0 | (uint64_t)p.b.s1 | (uint64_t)p.b.s2 | p.s.off | (uint64_t)p.s.s0 |
                      (uint64_t)p.s.s1 | (uint64_t)p.s.s2;
        int32_t f = p.x.fmt;
        if (layer || (f != INFER_FMT_F32 && f != INFER_FMT_BF16) || p.w.fmt != INFER_FMT_F32 || places % 16 ||
            (add && (p.b.fmt != f || p.s.fmt != f)) || p.x.width % 8 || p.x.width > 16384)
            return 0;
        uint32_t threads = (uint32_t)(p.x.width + 16 * SIMT_WAVE - 1) / (16 * SIMT_WAVE) * SIMT_WAVE;
        go(c, f == INFER_FMT_F32 ? "norm_f32" : "norm_bf16", {0, w, b, o, add ? o + 1 : -2, -1}, p,
           (uint32_t)(p.rows.cap * p.per_row), threads);
        return 1;
    }
    go(c, "norm_rows", {0, has_w ? w : -2, b, o, add ? o + 1 : -2, -1}, p, (uint32_t)(p.rows.cap * p.per_row),
       (uint32_t)c.how->threads);
    return 1;
}

int run_row(call &c)
{
    infer_attrs_scale attrs;
    infer_op_attrs(c.op, &attrs, sizeof attrs);
    lp_row p = {};
    p.x = c.t[0];
    p.y = c.t[1];
    p.rows = c.rows;
    p.per_row = (int32_t)per_row(c, 0);
    p.scale = attrs.scale == 0 ? 1 : attrs.scale;
    go(c, c.op->op == INFER_OP_ARGMAX ? "argmax" : "softmax", {0, 1, -1}, p, (uint32_t)(p.rows.cap * p.per_row),
       (uint32_t)c.how->threads);
    return 1;
}

/* ---- Products ---- */

struct product {
    int x, w, bias, ids, y;
    lp_tensor xt, yt; /* where x or y is -3: in scratch */
    unsigned char *xm, *ym;
    int epilogue;
    float scale;
};

dim3 mv_block(int64_t k)
{
    uint32_t parts = k < 2048 ? 1 : k < 4096 ? 2 : 4;
    return dim3(SIMT_WAVE, parts, 4 / parts);
}

int aligned(uint64_t v)
{
    return v % 16 == 0;
}

int wide_x(const lp_tensor &x)
{
    return aligned(x.off | (uint64_t)x.s0 | (uint64_t)x.s1 | (uint64_t)x.s2);
}

uint32_t columns_of(infer_format f, int r)
{
    int block = strchr(name_of(f), '_') || f == INFER_FMT_MXFP4;
    return block && r <= 2 ? 4 : 2;
}

int multiply(call &c, const product &m)
{
    const infer_tensor_desc *w = desc(c, m.w);
    if (!name_of(w->format) || w->quant.scale_format)
        return 0;
    lp_mm p = {};
    p.x = m.x >= 0 ? c.t[m.x] : m.xt;
    p.y = m.y >= 0 ? c.t[m.y] : m.yt;
    p.rows = c.rows;
    p.w_off = c.t[m.w].off;
    p.w_row = w->rank == 3 ? c.t[m.w].s1 : c.t[m.w].s0;
    p.w_expert = w->rank == 3 ? c.t[m.w].s0 : 0;
    p.k = (int32_t)w->shape[w->rank - 1];
    p.n = (int32_t)w->shape[w->rank - 2];
    p.choices = 1;
    p.n_experts = w->rank == 3 ? (int32_t)w->shape[0] : 1;
    p.scale = m.scale;
    if (m.bias >= 0)
        p.bias = c.t[m.bias];
    if (m.ids >= 0) {
        p.ids = c.t[m.ids];
        if (desc(c, m.ids)->rank == 1) {
            p.ids.s0 = 4;
        } else {
            p.choices = p.ids.width;
            if (desc(c, 0)->rank == 2)
                p.x.n1 = p.choices;
        }
    }
    p.wide = wide_x(p.x) && aligned(p.w_off | (uint64_t)p.w_row | (uint64_t)p.w_expert);
    int epi[LP_MAX_EPI] = {-2, -2, -2, -2};
    for (uint32_t i = 0; m.epilogue && i < c.op->n_epilogue; i++) {
        const infer_epilogue *e = &c.op->epilogue[i];
        if (e->kind == INFER_EPI_CONVERT)
            break;
        if (p.n_epi == LP_MAX_EPI)
            return 0;
        lp_epi *to = &p.epi[p.n_epi];
        to->kind = (int32_t)e->kind;
        to->arg = (int32_t)e->arg;
        to->factor = e->factor;
        if (e->kind == INFER_EPI_BIAS || e->kind == INFER_EPI_RESIDUAL || e->kind == INFER_EPI_MUL) {
            to->t = c.t[e->operand];
            epi[p.n_epi] = (int)e->operand;
        }
        p.n_epi++;
    }
    std::vector<std::pair<int, unsigned char *>> also;
    if (m.x < 0)
        also.push_back({0, m.xm});
    if (m.y < 0)
        also.push_back({8, m.ym});
    std::vector<int> which = {m.x >= 0 ? m.x : -2, m.w, m.ids, m.bias, epi[0], epi[1], epi[2], epi[3],
                              m.y >= 0 ? m.y : -2, -1};
    std::string f = name_of(w->format);
    int64_t rows = (int64_t)p.rows.cap * p.choices;
    if (!c.how->rows && m.ids < 0) {
        go(c, "tile_" + f + (c.how->tile_f16 ? "_f16" : "_bf16"), which, p, dim3(div_up(p.n, 128), 1), 256, 0, also);
        return 1;
    }
    int r = m.ids >= 0 ? 1 : c.how->rows ? c.how->rows : 8;
    dim3 block = mv_block(p.k);
    uint32_t y = div_up(rows, r);
    go(c, "mv" + std::to_string(r) + "_" + f, which, p,
       dim3(div_up(p.n, columns_of(w->format, r) * block.z), y > 2 ? 2 : y), block, 0, also);
    return 1;
}

int run_matmul(call &c)
{
    infer_attrs_matmul attrs;
    product m = {0, 1, -2, -2, out(c, 0), {}, {}, nullptr, nullptr, 1, 1};
    if (c.op->op == INFER_OP_MATMUL || c.op->op == INFER_OP_MOE_MATMUL) {
        infer_op_attrs(c.op, &attrs, sizeof attrs);
        m.scale = attrs.scale == 0 ? 1 : attrs.scale;
    }
    if (c.op->op == INFER_OP_MATMUL) {
        if (c.op->n_in > 2 && present(c, 2))
            m.bias = 2;
        return multiply(c, m);
    }
    m.ids = 2;
    if (c.op->op != INFER_OP_LORA_EXPAND_ADD)
        return multiply(c, m);
    infer_epilogue add = {};
    add.kind = INFER_EPI_RESIDUAL;
    add.operand = 3;
    infer_op_desc with = *c.op;
    with.n_epilogue = 1;
    with.epilogue = &add;
    const infer_op_desc *was = c.op;
    c.op = &with;
    int done = multiply(c, m);
    c.op = was;
    return done;
}

/* Weights w.. of one format in one launch; 0: they are not. */
int multiply_several(call &c, int w, int n, int kind, const lp_tensor *y, unsigned char *const *ym, int bias, int act,
                     float limit)
{
    lp_mms p = {};
    infer_format f = desc(c, w)->format;
    p.x = c.t[0];
    p.rows = c.rows;
    p.kind = kind;
    p.act = act;
    p.limit = limit;
    p.k = (int32_t)desc(c, w)->shape[1];
    p.wide = wide_x(p.x);
    void *mem[12] = {c.mem[0]};
    int64_t columns = 0;
    for (int i = 0; i < n; i++) {
        if (desc(c, w + i)->format != f || !name_of(f) || desc(c, w + i)->quant.scale_format)
            return 0;
        p.w_off[i] = c.t[w + i].off;
        p.w_row[i] = c.t[w + i].s0;
        p.n[i] = (int32_t)desc(c, w + i)->shape[0];
        p.wide = p.wide && aligned(p.w_off[i] | (uint64_t)p.w_row[i]);
        columns += p.n[i];
        mem[1 + i] = c.mem[w + i];
        if (bias && (int)c.op->n_in > bias + i && present(c, bias + i)) {
            p.bias[i] = c.t[bias + i];
            mem[4 + i] = c.mem[bias + i];
        }
        if (kind == LP_MMS_SIDE || i == 0) {
            p.y[i] = y[i];
            mem[7 + i] = ym[i];
        }
    }
    mem[10] = c.counts;
    dim3 block = mv_block(p.k);
    int r = c.how->rows ? c.how->rows : 8;
    std::string name = "mvs" + std::to_string(r) + "_" + name_of(f);
    simt::start(simt::launch{name.c_str(), mem, &p,
                             dim3(div_up(columns, columns_of(f, r) * block.z), div_up(p.rows.cap, r)), block, 0});
    return 1;
}

int run_qkv(call &c)
{
    int o = out(c, 0);
    if (c.how->fused && multiply_several(c, 1, 3, LP_MMS_SIDE, &c.t[o], &c.mem[o], 4, 0, 0))
        return 1;
    for (int i = 0; i < 3; i++) {
        int biased = (int)c.op->n_in > 4 + i && present(c, 4 + i);
        product m = {0, 1 + i, biased ? 4 + i : -2, -2, o + i, {}, {}, nullptr, nullptr, 0, 1};
        if (!multiply(c, m))
            return 0;
    }
    return 1;
}

int run_gated_mlp(call &c)
{
    int64_t width = desc(c, 1)->shape[0], n = desc(c, 0)->shape[0];
    scratch mem((uint64_t)(2 * n * width * 4 + 64));
    lp_tensor gate = {0, width * 4, 0, 0, 1, 1, (int32_t)width, (int32_t)INFER_FMT_F32}, up = gate;
    infer_attrs_act act;
    infer_op_attrs(c.op, &act, sizeof act);
    up.off = (uint64_t)((n * width * 4 + 15) / 16 * 16);
    product first = {0, 1, -2, -2, -3, {}, gate, nullptr, mem.base, 0, 1};
    product second = {0, 2, -2, -2, -3, {}, up, nullptr, mem.base, 0, 1};
    product last = {-3, 3, -2, -2, out(c, 0), gate, {}, mem.base, nullptr, 1, 1};
    if (!c.how->fused || !multiply_several(c, 1, 2, LP_MMS_GLU, &gate, &mem.base, 0, (int)act.act, act.limit)) {
        if (!multiply(c, first) || !multiply(c, second))
            return 0;
        lp_each p = {};
        p.a = p.y = gate;
        p.b = up;
        p.rows = c.rows;
        p.op = LP_EACH_GLU;
        p.per_row = 1;
        p.act = (int32_t)act.act;
        p.limit = act.limit;
        go(c, "each", {-2, -2, -2, -1}, p, few(width, n), 64, 0, {{0, mem.base}, {1, mem.base}, {2, mem.base}});
    }
    return multiply(c, last);
}

/* ---- Experts ---- */

int run_route(call &c)
{
    infer_attrs_route attrs;
    infer_op_attrs(c.op, &attrs, sizeof attrs);
    lp_route p = {};
    p.x = c.t[0];
    p.ids = c.t[1];
    p.w = c.t[2];
    p.rows = c.rows;
    p.k = (int32_t)attrs.k;
    p.scoring = (int32_t)attrs.scoring;
    p.normalise = (int32_t)attrs.normalise;
    p.scale = attrs.scale == 0 ? 1 : attrs.scale;
    go(c, "moe_route", {0, 1, 2, -1}, p, (uint32_t)p.rows.cap, SIMT_WAVE, (size_t)(p.x.width + p.k) * 4);
    return 1;
}

int run_combine(call &c)
{
    lp_combine p = {};
    p.x = c.t[0];
    p.w = c.t[1];
    p.y = c.t[2];
    p.rows = c.rows;
    p.k = (int32_t)per_row(c, 0);
    go(c, "moe_combine", {0, 1, 2, -1}, p, few(p.y.width, p.rows.cap), 64);
    return 1;
}

/* ---- Cache ---- */

lp_rope heads_of(call &c, int x, int y, int slots, int pos, const infer_attrs_rope *rope)
{
    lp_rope p = {};
    p.x = c.t[x];
    p.y = c.t[y];
    p.rows = c.rows;
    p.heads = (int32_t)desc(c, x)->shape[1];
    if (rope) {
        p.pos = c.t[pos];
        p.freq = c.t[pos + 1];
        p.kind = (int32_t)rope->kind;
        p.dims = (int32_t)rope->n_dims;
        p.n_pos = (int32_t)rope->n_pos;
        p.magnitude = rope->magnitude == 0 ? 1 : rope->magnitude;
        for (int i = 0; i < 4; i++)
            p.section[i] = (int32_t)rope->section[i];
    }
    if (slots >= 0) {
        p.slots = c.t[slots];
        p.slots.s0 = 4;
        p.n_blocks = (int32_t)desc(c, y)->shape[0];
        p.block_size = (int32_t)desc(c, y)->shape[2];
    }
    return p;
}

dim3 rope_grid(const lp_rope &p, uint32_t z)
{
    int blocks = p.y.fmt == INFER_FMT_Q8_0 || p.y.fmt == INFER_FMT_Q4_0, width = p.x.width;
    return dim3(div_up(blocks ? LP_ROPE_BLOCKS(p.heads, width) : LP_ROPE_PAIRS(p.heads, width), 64),
                p.rows.cap > 3 ? 3 : (uint32_t)p.rows.cap, z);
}

void write_heads(call &c, int x, int y, int slots, int pos, const infer_attrs_rope *rope)
{
    lp_rope p = heads_of(c, x, y, slots, pos, rope);
    go(c, "rope_write", {x, rope ? pos : -2, rope ? pos + 1 : -2, slots >= 0 ? slots : -2, y, -1}, p, rope_grid(p, 1),
       64);
}

int run_rope(call &c)
{
    infer_attrs_rope rope;
    infer_attrs_rope_kv both;
    int o = out(c, 0), k = c.op->op == INFER_OP_ROPE_KV_WRITE;
    infer_op_attrs(c.op, &rope, sizeof rope);
    infer_op_attrs(c.op, &both, sizeof both);
    if (c.op->op == INFER_OP_ROPE) {
        write_heads(c, 0, o, -1, 1, &rope);
        return 1;
    }
    for (int i = 0; i < 2; i++) {
        infer_format f = desc(c, o + i)->format;
        if (!is_plain(f) && f != INFER_FMT_F8_E4M3 && f != INFER_FMT_Q8_0 && f != INFER_FMT_Q4_0)
            return 0;
    }
    if (!c.how->fused) {
        write_heads(c, 0, o, k ? 4 : 2, 2, k ? &both.rope : nullptr);
        write_heads(c, 1, o + 1, k ? 4 : 2, -1, nullptr);
        return 1;
    }
    lp_ropes p = {};
    p.of[0] = heads_of(c, 0, o, k ? 4 : 2, 2, k ? &both.rope : nullptr);
    p.of[1] = heads_of(c, 1, o + 1, k ? 4 : 2, -1, nullptr);
    dim3 a = rope_grid(p.of[0], 2), b = rope_grid(p.of[1], 2);
    go(c, "rope_writes", {0, k ? 2 : -2, k ? 3 : -2, k ? 4 : 2, o, 1, o + 1, -2, -2, -1}, p, a.x > b.x ? a : b, 64);
    return 1;
}

int run_move(call &c)
{
    int o = out(c, 0), move = c.op->op == INFER_OP_KV_MOVE;
    lp_move p = {};
    p.src = c.t[1];
    p.dst = move || c.op->op == INFER_OP_STATE_COPY ? c.t[2] : c.t[1];
    p.rows = c.rows;
    p.y = c.t[o];
    if (c.op->op == INFER_OP_STATE_COPY) {
        const infer_tensor_desc *t = desc(c, 0);
        p.heads = (int32_t)t->shape[0];
        p.block_size = (int32_t)per_row(c, 0);
        p.bytes = (int32_t)bytes_of(t->format, t->rank == 1 ? 1 : t->shape[t->rank - 1]);
        if (t->rank == 1)
            p.y.s0 = p.bytes;
        go(c, "state_copy", {o, 1, 2, -1}, p, dim3(1, p.block_size > 3 ? 3 : (uint32_t)p.block_size), 64);
        return 1;
    }
    const infer_tensor_desc *pool = desc(c, c.op->op == INFER_OP_KV_PACK ? 0 : o);
    p.a = move ? c.t[o] : c.t[0];
    p.mode = c.op->op == INFER_OP_KV_PACK ? 0 : c.op->op == INFER_OP_KV_UNPACK ? 1 : 2;
    p.heads = (int32_t)pool->shape[1];
    p.block_size = (int32_t)pool->shape[2];
    p.n_blocks = (int32_t)pool->shape[0];
    p.bytes = (int32_t)bytes_of(pool->format, pool->shape[3]);
    uint32_t z = (uint32_t)(p.rows.cap * p.block_size);
    go(c, "kv_move", {move ? o : 0, o, 1, move ? 2 : 1, -1}, p,
       dim3(1, (uint32_t)p.heads,
            move    ? 1
            : z > 5 ? 5
                    : z),
       64);
    return 1;
}

/* 0: the kernels for few rows do not take it. */
int run_few(call &c, lp_attn &p, int o)
{
    int d = p.k.width, size = p.block_size, n = c.how->few;
    if (c.op->op != INFER_OP_ATTN_PAGED || p.tree.fmt || p.k.fmt != p.v.fmt || p.y.width != d ||
        (p.k.fmt != INFER_FMT_F16 && p.k.fmt != INFER_FMT_BF16) || (d != 64 && d != 128) || size < 16 ||
        size & (size - 1) || SIMT_WAVE != 32)
        return 0;
    p.parts = c.how->split;
    p.split = 0;
    p.part_off = 16;
    p.many = c.how->many;
    scratch mem((uint64_t)p.rows.cap * (uint64_t)p.heads * (uint64_t)p.parts * LP_ATTN_PART(d) * 4 + 64);
    std::string name = (p.k.fmt == INFER_FMT_F16 ? "f16_" : "bf16_") + std::to_string(d);
    go(c, "few_" + name + "_" + std::to_string(n), {0, 1, 2, 3, 4, 5, p.sinks.fmt ? 6 : -2, -2, o, -1, -2}, p,
       dim3((uint32_t)c.how->parts), 128, LP_FEW_SHARED(d, n, p.n_seqs), {{10, mem.base}});
    if (p.many)
        go(c, "many_" + name, {0, 1, 2, 3, 4, 5, p.sinks.fmt ? 6 : -2, -2, o, -1}, p, dim3((uint32_t)c.how->parts), 384,
           LP_MANY_SHARED(d, LP_MANY_KEYS, LP_MANY_STAGES));
    return 1;
}

int run_attn(call &c)
{
    int dense = c.op->op == INFER_OP_ATTN_DENSE, mla = c.op->op == INFER_OP_MLA_PAGED, o = out(c, 0);
    int v = mla ? 1 : 2, table = dense ? -2 : v + 1, sinks = dense || mla ? -2 : 6, tree = dense ? -2 : mla ? 5 : 7;
    infer_attrs_attn attrs;
    for (int i = 1; i <= v; i++) {
        infer_format f = desc(c, i)->format;
        if (!is_plain(f) && f != INFER_FMT_F8_E4M3 && f != INFER_FMT_Q8_0 && f != INFER_FMT_Q4_0)
            return 0;
    }
    if (sinks >= 0 && (sinks >= o || !present(c, sinks)))
        sinks = -2;
    if (tree >= 0 && (tree >= o || !present(c, tree)))
        tree = -2;
    infer_op_attrs(c.op, &attrs, sizeof attrs);
    lp_attn p = {};
    p.q = c.t[0];
    p.k = c.t[1];
    p.v = c.t[v];
    p.y = c.t[o];
    p.rows = c.rows;
    p.heads = (int32_t)desc(c, 0)->shape[1];
    p.kv_heads = (int32_t)desc(c, 1)->shape[1];
    p.n_blocks = (int32_t)desc(c, 1)->shape[0];
    p.block_size = 1;
    p.mask = (int32_t)attrs.mask;
    p.window = (int32_t)(attrs.window < INT32_MAX ? attrs.window : INT32_MAX);
    p.scale = attrs.scale;
    p.soft_cap = attrs.soft_cap;
    p.split = c.how->split;
    int64_t keys;
    if (dense) {
        p.dense_n = (int32_t)desc(c, 0)->shape[0];
        p.dense_m = (int32_t)desc(c, 1)->shape[0];
        keys = p.dense_m;
    } else {
        p.block_size = (int32_t)desc(c, 1)->shape[2];
        p.table = c.t[table];
        p.table_width = p.table.width;
        p.n_seqs = (int32_t)desc(c, table)->shape[0];
        p.len_off = c.t[table + 1].off;
        p.start_off = c.t[table + 2].off;
        keys = (int64_t)p.table_width * p.block_size;
    }
    if (sinks >= 0)
        p.sinks = c.t[sinks];
    if (tree >= 0)
        p.tree = c.t[tree];
    if (c.how->few)
        return run_few(c, p, o);
    int group = p.heads / p.kv_heads, gt = 1;
    while (gt < group && gt < c.how->heads)
        gt *= 2;
    uint32_t threads = (uint32_t)c.how->threads < 256 ? (uint32_t)c.how->threads : 256;
    int d = p.k.width, dv = p.y.width;
    while ((int)threads * 8 < dv)
        threads *= 2;
    size_t dyn = 4 * (size_t)(gt * ((d + 7) / 8 * 8 + p.split + dv + 2) + 4 * p.split) + 32 * threads;
    p.parts = c.how->parts ? (int)div_up(keys, p.split) : 0;
    scratch mem((uint64_t)p.rows.cap * (uint64_t)p.heads * (uint64_t)p.parts * LP_ATTN_PART(dv) * 4 + 64);
    p.part_off = 16;
    dim3 grid(c.how->parts ? (uint32_t)c.how->parts : 1, (uint32_t)(p.kv_heads * (int)div_up(group, gt)),
              p.rows.cap > 3 ? 3 : (uint32_t)p.rows.cap);
    int len = dense ? -2 : table + 1, start = dense ? -2 : table + 2;
    go(c, "attention_" + std::to_string(gt), {0, 1, v, dense ? -2 : table, len, start, sinks, tree, o, -1, -2}, p, grid,
       threads, dyn, {{10, mem.base}});
    if (p.parts)
        go(c, "attention_join", {dense ? -2 : table, len, start, sinks, o, -1, -2}, p,
           dim3((uint32_t)p.heads, p.rows.cap > 3 ? 3 : (uint32_t)p.rows.cap), 64, 0, {{6, mem.base}});
    return 1;
}

int run_sample(call &c)
{
    int o = out(c, 0), in[5];
    infer_attrs_sample attrs;
    infer_op_attrs(c.op, &attrs, sizeof attrs);
    for (int i = 0; i < 5; i++)
        in[i] = i < o && present(c, i) ? i : -2;
    lp_sample p = {};
    p.x = c.t[0];
    p.params = c.t[1];
    p.rows = c.rows;
    p.ids_off = c.t[o].off;
    p.lp_off = c.t[o + 1].off;
    p.lp_fmt = c.t[o + 1].fmt;
    p.z_off = 32;
    p.n_top = (int32_t)attrs.n_top;
    if (in[2] >= 0) {
        p.counts = c.t[2];
        p.n_counts = (int32_t)desc(c, 2)->shape[0];
    }
    if (in[3] >= 0) {
        p.bias = c.t[3];
        p.n_bias = (int32_t)desc(c, 3)->shape[0];
    }
    if (in[4] >= 0)
        p.mask = c.t[4];
    if (p.n_top) {
        p.top_ids = c.t[o + 2];
        p.top_lp = c.t[o + 3];
    }
    scratch mem((uint64_t)p.rows.cap * LP_SAMPLE_ROW(p.x.width) + 64);
    std::vector<int> which = {0, 1, in[2], in[3], in[4], o, o + 1, p.n_top ? o + 2 : -2, p.n_top ? o + 3 : -2, -2, -1};
    dim3 grid(LP_SAMPLE_CHUNKS((uint32_t)p.x.width), p.rows.cap > 3 ? 3 : (uint32_t)p.rows.cap);
    go(c, "sample_prepare", which, p, grid, 256, 0, {{9, mem.base}});
    /* a block for some chunks, so that one is the last of several */
    grid.x = (grid.x + 2) / 3;
    go(c, "sample_pick", which, p, grid, 512, 0, {{9, mem.base}});
    if (in[2] >= 0)
        go(c, "count_ids", {1, 2, o, -1}, p, div_up(p.rows.cap, 64), 64);
    return 1;
}

const struct {
    infer_op_id id;
    int (*run)(call &c);
    int rows_of;
} table[] = {
    {INFER_OP_COPY, run_copy, 0},
    {INFER_OP_GATHER_ROWS, run_copy, 1},
    {INFER_OP_CONCAT_ROWS, run_select, 0},
    {INFER_OP_ADD, run_each, 0},
    {INFER_OP_MUL, run_each, 0},
    {INFER_OP_SCALE, run_each, 0},
    {INFER_OP_GLU, run_each, 0},
    {INFER_OP_ACT, run_each, 0},
    {INFER_OP_SOFTMAX, run_row, 0},
    {INFER_OP_ARGMAX, run_row, 0},
    {INFER_OP_RMS_NORM, run_norm, 0},
    {INFER_OP_LAYER_NORM, run_norm, 0},
    {INFER_OP_ADD_RMS_NORM, run_norm, 0},
    {INFER_OP_MATMUL, run_matmul, 0},
    {INFER_OP_MOE_ROUTE, run_route, 0},
    {INFER_OP_MOE_MATMUL, run_matmul, 0},
    {INFER_OP_MOE_COMBINE, run_combine, 0},
    {INFER_OP_GATED_MLP, run_gated_mlp, 0},
    {INFER_OP_QKV, run_qkv, 0},
    {INFER_OP_ROPE, run_rope, 0},
    {INFER_OP_KV_WRITE, run_rope, 0},
    {INFER_OP_ROPE_KV_WRITE, run_rope, 0},
    {INFER_OP_ATTN_PAGED, run_attn, 0},
    {INFER_OP_MLA_PAGED, run_attn, 0},
    {INFER_OP_ATTN_DENSE, run_attn, 0},
    {INFER_OP_KV_PACK, run_move, 1},
    {INFER_OP_KV_UNPACK, run_move, 1},
    {INFER_OP_KV_MOVE, run_move, 1},
    {INFER_OP_STATE_COPY, run_move, 1},
    {INFER_OP_SAMPLE, run_sample, 0},
    {INFER_OP_IDS_SELECT, run_select, 0},
    {INFER_OP_ROWS_SELECT, run_select, 0},
    {INFER_OP_LORA_SHRINK, run_matmul, 0},
    {INFER_OP_LORA_EXPAND_ADD, run_matmul, 0},
};
} // namespace

int lower_run(const infer_op_desc *op, const lower_place *data, const lower_place *counts, const lower_how *how)
{
    call c = {};
    c.op = op;
    c.how = how;
    for (uint32_t i = 0; i < op->n_in + op->n_out; i++)
        if (data[i].base) {
            c.mem[i] = data[i].base;
            place(&op->tensors[i], data[i].off, &c.t[i]);
        }
    c.counts = counts->base;
    for (auto &row : table) {
        if (row.id != op->op)
            continue;
        c.rows = lp_rows{0, (int32_t)op->tensors[row.rows_of].shape[0], -1, op->rows_mul, 0};
        if (op->rows_from < INFER_COUNT_MAX) {
            c.rows.from = (int32_t)op->rows_from;
            c.rows.off = counts->off;
        }
        return row.run(c);
    }
    return 0;
}
