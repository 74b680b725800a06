/* Matrix products: which kernel for how many rows, and the ops that are several products. Few rows stream the weights
 * (kernels/matvec.cuh), many go through matrix units in tiles (kernels/tile.cu). SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "cuda.h"
#include "gemm.h"
#include "ring.h"

enum { WAVE = 32, WAVES = 4, TILE = 128, TILE_THREADS = 256, FEW = 32 /* rows; more go in tiles */ };

/* Kernels of a format of weights: for 1, 2, 4 and 8 rows, of one weight and of several; tiles in bf16 and f16. */
typedef struct product_row {
    uint16_t one[4], several[4], tile[2];
    uint8_t there, blocks;
} product_row;
#define ROW(file, id, f)                                                                                               \
    [INFER_FMT_##id] = {{CUDA_K_mv1_##f, CUDA_K_mv2_##f, CUDA_K_mv4_##f, CUDA_K_mv8_##f},                              \
                        {CUDA_K_mvs1_##f, CUDA_K_mvs2_##f, CUDA_K_mvs4_##f, CUDA_K_mvs8_##f},                          \
                        {CUDA_K_tile_##f##_bf16, CUDA_K_tile_##f##_f16},                                               \
                        1,                                                                                             \
                        CUDA_FILE_##file != CUDA_FILE_matvec_plain},
static const product_row rows_of[INFER_FMT_COUNT] = {CUDA_FORMATS(ROW)};

static int product_ok(infer_device *dev, const infer_op_desc *op, uint32_t weight, infer_op_answer *a)
{
    infer_format w = launch_tensor_desc(op, weight)->format;
    if (cuda_ring_takes(dev, op, weight) ||
        (w < INFER_FMT_COUNT && rows_of[w].there && dev->kernels[rows_of[w].one[0]]))
        return 1;
    launch_no(a, INFER_WHY_FORMAT, weight);
    return 0;
}

/* The index of a kernel for that many rows, and how many it takes. */
static uint32_t rung(int64_t rows, uint32_t *r)
{
    uint32_t i = 0;
    for (*r = 1; *r < rows && *r < 8; *r *= 2)
        i++;
    return i;
}

/* A block of four waves: parts of K, which K alone decides, by groups of columns. */
static uint32_t parts_of(int64_t k)
{
    return k < 2048 ? 1 : k < 4096 ? 2 : 4;
}

static uint32_t columns_of(infer_format f, uint32_t r)
{
    return rows_of[f].blocks && r <= 2 ? 4 : 2;
}

/* Whether products of up to `cap` rows run in tiles: x is then rounded to 8 bits (11 with F16 weights). Products by F32
 * weights keep their accuracy. Where a row may not depend on its company, none do: few rows could not without loss. */
static int in_tiles(const infer_device *dev, infer_format w, int64_t cap)
{
    return !dev->deterministic && cap > FEW && w != INFER_FMT_F32 && dev->kernels[rows_of[w].tile[w == INFER_FMT_F16]];
}

/* Kernels of kernels/stream.cu, for up to 4 and up to 8 rows: one weight, several, gate and up. */
enum { STREAM_K = 32, STREAM_EDGE = 16, STREAM_WAVES = 8 };
static const uint16_t stream_of[3][2] = {{CUDA_K_stream4_bf16, CUDA_K_stream8_bf16},
                                         {CUDA_K_streams4_bf16, CUDA_K_streams8_bf16},
                                         {CUDA_K_streamg4_bf16, CUDA_K_streamg8_bf16}};

/* Whether few rows go through matrix units: a matter of the weight alone, so that a row's sums do not depend on its
 * company. */
static int streams(const infer_device *dev, infer_format w, int32_t k, int32_t whole_lines)
{
    return w == INFER_FMT_BF16 && whole_lines && k % STREAM_K == 0 && dev->kernels[CUDA_K_stream4_bf16];
}

static infer_status emit_stream(launch_call *c, cuda_launch *l, int64_t tiles, int64_t rows)
{
    return cuda_emit(c, l, (uint32_t)tiles, cuda_walked(cuda_div_up(rows, rows > 4 ? 8 : 4)), 1, WAVE, STREAM_WAVES, 1);
}

/* Rows of the hidden width, in scratch: gate (then act(gate) * up), and up where it is made apart. */
static uint64_t hidden_bytes(const infer_op_desc *op)
{
    uint64_t bytes = (uint64_t)launch_tensor_desc(op, 0)->shape[0] * (uint64_t)launch_tensor_desc(op, 1)->shape[0] * 4;
    return (bytes + CUDA_BIND_ALIGN - 1) / CUDA_BIND_ALIGN * CUDA_BIND_ALIGN;
}

/* Where an op's scratch is free for cuda_gemm.c. */
static uint64_t gemm_at(const infer_op_desc *op)
{
    return op->op == INFER_OP_GATED_MLP ? 2 * hidden_bytes(op) : 0;
}

int cuda_is_exact(const infer_op_desc *op)
{
    infer_attrs_matmul attrs;
    launch_attrs(op, &attrs, sizeof attrs);
    return op->op == INFER_OP_MATMUL && attrs.act_format == INFER_FMT_F32;
}

static infer_status multiply(launch_call *c, const launch_product *m)
{
    infer_format w = launch_tensor_desc(c->op, (uint32_t)m->w)->format;
    cuda_launch l;
    lp_mm p;
    int which[10];
    uint32_t r;
    launch_fill_product(c, m, &p, which);
    int64_t rows = (int64_t)p.rows.cap * p.choices;
    int exact = cuda_is_exact(c->op);
    if (m->ids < 0 && !exact && cuda_gemm_takes(c->dev, c->op, (uint32_t)m->w, rows))
        return cuda_gemm_one(c, w, &p, which, gemm_at(c->op));
    if (m->ids < 0 && cuda_ring_takes(c->dev, c->op, (uint32_t)m->w))
        return cuda_ring_one(c, w, &p, which);
    if (m->ids < 0 && !exact && in_tiles(c->dev, w, rows)) {
        cuda_launch_init(&l, c, rows_of[w].tile[w == INFER_FMT_F16], which, 10, &p, sizeof p);
        return cuda_emit(c, &l, cuda_div_up(p.n, TILE), cuda_walked(cuda_div_up(rows, TILE)), 1, TILE_THREADS, 1, 1);
    }
    if (m->ids < 0 && streams(c->dev, w, p.k, p.wide)) {
        cuda_launch_init(&l, c, stream_of[0][rows > 4], which, 10, &p, sizeof p);
        return emit_stream(c, &l, cuda_div_up(p.n, STREAM_EDGE), rows);
    }
    uint32_t i = rung(m->ids >= 0 ? 1 : rows, &r), parts = parts_of(p.k);
    cuda_launch_init(&l, c, rows_of[w].one[i], which, 10, &p, sizeof p);
    return cuda_emit(c, &l, cuda_div_up(p.n, columns_of(w, r) * (WAVES / parts)), cuda_walked(cuda_div_up(rows, r)), 1,
                     WAVE, parts, WAVES / parts);
}

/* Several products of operand 0 in one launch; act: of gate and up, whose activated product is stored (out[0]), perhaps
 * in panels. */
static infer_status multiply_several(launch_call *c, uint32_t n, int bias, int y, const lp_tensor *out,
                                     const infer_attrs_act *act, const lp_panels *panels)
{
    infer_format w = launch_tensor_desc(c->op, 1)->format;
    cuda_launch l;
    lp_mms p;
    int which[11];
    uint32_t r, i, parts;
    launch_fill_products(c, n, bias, y, out, &p, which);
    int64_t columns = (int64_t)p.n[0] + p.n[1] + p.n[2];
    if (act) {
        p.kind = LP_MMS_GLU;
        p.act = (int32_t)act->act;
        p.limit = act->limit;
    }
    if (cuda_gemm_takes(c->dev, c->op, 1, p.rows.cap))
        return cuda_gemm_several(c, w, &p, which, gemm_at(c->op), panels);
    if (cuda_ring_takes(c->dev, c->op, 1))
        return cuda_ring_several(c, w, n > 2 ? launch_tensor_desc(c->op, 3)->format : w, &p, which);
    if (streams(c->dev, w, p.k, p.wide)) {
        int64_t tiles = 0;
        for (uint32_t k = 0; k < (act ? 1 : n); k++)
            tiles += cuda_div_up(p.n[k], STREAM_EDGE);
        cuda_launch_init(&l, c, stream_of[act ? 2 : 1][p.rows.cap > 4], which, 11, &p, sizeof p);
        return emit_stream(c, &l, tiles, p.rows.cap);
    }
    i = rung(p.rows.cap, &r);
    parts = parts_of(p.k);
    cuda_launch_init(&l, c, rows_of[w].several[i], which, 11, &p, sizeof p);
    return cuda_emit(c, &l, cuda_div_up(columns, columns_of(w, r) * (WAVES / parts)),
                     cuda_walked(cuda_div_up(p.rows.cap, r)), 1, WAVE, parts, WAVES / parts);
}

/* Whether one launch takes the n weights from operand 1 on: they are of one format and layout, or nearly. */
static int joins(const infer_device *dev, const infer_op_desc *op, uint32_t n)
{
    const infer_tensor_desc *first = launch_tensor_desc(op, 1);
    infer_format w = first->format;
    int64_t rows = launch_tensor_desc(op, 0)->shape[0];
    if (n > 2 && w != launch_tensor_desc(op, 3)->format && cuda_ring_mixes(dev, op) &&
        !cuda_gemm_takes(dev, op, 1, rows))
        return 1;
    for (uint32_t i = 2; i <= n; i++)
        if (launch_tensor_desc(op, i)->format != w || launch_tensor_desc(op, i)->layout != first->layout ||
            launch_tensor_desc(op, i)->quant.scale_format != first->quant.scale_format)
            return 0;
    return cuda_gemm_takes(dev, op, 1, rows) || cuda_ring_takes(dev, op, 1) || !in_tiles(dev, w, rows);
}

/* Tiles add along K in another order than the kernels for few rows, and programs for few rows take those; so do one row
 * and several of some formats; not so with `deterministic`. Also asks for the scratch of products of many rows. */
static void invariance(const infer_device *dev, const infer_op_desc *op, uint32_t weight, infer_op_answer *a)
{
    const infer_format f = launch_tensor_desc(op, weight)->format;
    uint64_t scratch = cuda_gemm_scratch(dev, op, weight);
    if (a->level && !dev->deterministic && RING_ALONE(f) && cuda_ring_takes(dev, op, weight))
        a->row_invariant = 0;
    if (!a->level || cuda_is_exact(op))
        return;
    if (in_tiles(dev, f, launch_tensor_desc(op, 0)->shape[0]) || (scratch && !dev->deterministic))
        a->row_invariant = 0;
    if (scratch > a->scratch_bytes)
        a->scratch_bytes = scratch;
}

/* How many of n weights, from the first on, go in one launch; 0: each by itself. Files with several formats often
 * differ in V alone. */
static uint32_t joined(const infer_device *dev, const infer_op_desc *op, uint32_t n)
{
    while (n > 1 && !joins(dev, op, n))
        n--;
    return n > 1 ? n : 0;
}

void cuda_check_matmul(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    if (!product_ok(dev, op, 1, a))
        return;
    a->n_epilogue = op->op == INFER_OP_LORA_EXPAND_ADD ? 0 : launch_epilogue_prefix(op);
    if (op->op == INFER_OP_MATMUL)
        invariance(dev, op, 1, a);
}

infer_status cuda_run_matmul(launch_call *c)
{
    launch_product m;
    launch_product_of(c, &m);
    return multiply(c, &m);
}

void cuda_check_qkv(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    for (uint32_t i = 1; i <= 3 && a->level; i++)
        if (product_ok(dev, op, i, a))
            invariance(dev, op, i, a);
}

infer_status cuda_run_qkv(launch_call *c)
{
    const int n = (int)joined(c->dev, c->op, 3);
    infer_status s = n ? multiply_several(c, (uint32_t)n, 4, (int)c->op->n_in, NULL, NULL, NULL) : INFER_OK;
    for (int i = n; i < 3 && !s; i++) {
        int bias = 4 + i;
        int biased = bias < (int)c->op->n_in && launch_present(c->op, (uint32_t)bias);
        const launch_product m = {
            .x = 0, .w = 1 + i, .bias = biased ? bias : -2, .ids = -2, .y = (int)c->op->n_in + i, .scale = 1};
        s = multiply(c, &m);
    }
    return s;
}

void cuda_check_gated_mlp(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    for (uint32_t i = 1; i <= 3 && a->level; i++)
        if (product_ok(dev, op, i, a))
            invariance(dev, op, i, a);
    if (!a->level)
        return;
    launch_need(dev, a, LAUNCH_K_each);
    a->scratch_bytes += 2 * hidden_bytes(op);
    a->n_epilogue = launch_epilogue_prefix(op);
}

/* Whether what gate and up make may come to the last product in bf16. */
static int comes_in_bf16(const infer_device *dev, const infer_op_desc *op)
{
    const int64_t rows = launch_tensor_desc(op, 0)->shape[0];
    return cuda_gemm_takes(dev, op, 1, rows) && cuda_gemm_rounds(dev, op, 3, rows);
}

infer_status cuda_run_gated_mlp(launch_call *c)
{
    const infer_op_desc *op = c->op;
    int32_t width = (int32_t)launch_tensor_desc(op, 1)->shape[0];
    lp_tensor gate = {
        .off = c->scratch_off, .s0 = (int64_t)width * 4, .n1 = 1, .n2 = 1, .width = width, .fmt = INFER_FMT_F32};
    lp_tensor up = gate;
    infer_attrs_act act;
    infer_queue *queue = c->to;
    lp_panels panels;
    int handed = 0;
    infer_status s;
    up.off += hidden_bytes(op);
    launch_attrs(op, &act, sizeof act);
    if (joins(c->dev, op, 2)) {
        if (comes_in_bf16(c->dev, op)) {
            gate.s0 = (int64_t)width * 2;
            gate.fmt = INFER_FMT_BF16;
            handed = launch_tensor_desc(op, 1)->format == INFER_FMT_BF16 &&
                     cuda_gemm_panels(c->dev, op, 3, c->rows.cap, 2 * hidden_bytes(op), &panels);
        }
        if (handed)
            gate.s0 = GEMM_LINE_BYTES;
        s = multiply_several(c, 2, -2, -3, (const lp_tensor[]){gate, up}, &act, handed ? &panels : NULL);
        queue->handed = handed && !s;
    } else {
        const launch_product first = {.x = 0, .w = 1, .bias = -2, .ids = -2, .y = -3, .yt = gate, .scale = 1};
        const launch_product second = {.x = 0, .w = 2, .bias = -2, .ids = -2, .y = -3, .yt = up, .scale = 1};
        lp_each p = {.a = gate,
                     .b = up,
                     .y = gate,
                     .rows = c->rows,
                     .op = LP_EACH_GLU,
                     .per_row = 1,
                     .act = (int32_t)act.act,
                     .limit = act.limit};
        s = multiply(c, &first);
        if (!s)
            s = multiply(c, &second);
        if (!s)
            s = launch_emit(c, LAUNCH_K_each, (const int[]){-3, -3, -3, -1}, 4, &p, sizeof p, width, c->rows.cap, 1);
    }
    const launch_product last = {
        .x = -3, .w = 3, .bias = -2, .ids = -2, .y = (int)op->n_in, .xt = gate, .epilogue = 1, .scale = 1};
    return s ? s : multiply(c, &last);
}

uint32_t cuda_makes_norm(infer_device *dev, const infer_op_desc *norm, const infer_op_desc *next)
{
    uint32_t n = next->op == INFER_OP_MATMUL      ? 1
                 : next->op == INFER_OP_QKV       ? 3
                 : next->op == INFER_OP_GATED_MLP ? 2
                                                  : 0;
    if (!n || launch_tensor_desc(norm, 0)->rank != 2)
        return 0;
    const int64_t rows = launch_tensor_desc(norm, 0)->shape[0];
    for (uint32_t i = 1; i <= n; i++)
        if (!cuda_ring_takes(dev, next, i) && !cuda_gemm_takes(dev, next, i, rows))
            return 0;
    const uint32_t first = joined(dev, next, n);
    return first ? 1 + n - first : n;
}
