/* Products of many rows by packed weights (kernels/gemm.cu): which tile, what lies in scratch, the launches: x as the
 * products want it, unless whoever made it has written it so, then the products. SPDX-License-Identifier:
 * Apache-2.0 */
#include "config.h"

#include <string.h>

#include "cuda.h"
#include "gemm.h"
#include "packed.h"

enum {
    /* Rows; more come here, where results may depend on the batch. A ring has no room for three long rows of x. */
    FEW = 2,
    READ_BOUND = 64, /* up to so many, reading the weights takes longer than products of 16 bits */
    CLUSTER = 2,
    EDGE = 128 * CLUSTER, /* rows of a tile's weights */
    X_THREADS = 256,
    X_PIECES = 64,
    ROW_THREADS = 512,
    TILES = 5
};

/* Rows of the table: formats of weights, and E4M3 with x in f16, which keeps to what an op may round. */
enum { INFER_FMT_F8_WIDE = INFER_FMT_COUNT, ROWS };

/* Kernels of a format: of x, of tiles of 16 to 256 rows (0: not there), with their shared memory. */
typedef struct gemm_row {
    uint16_t x, tile[TILES];
    uint16_t unit, x_unit; /* elements of K that are made together; of 128 bytes of x */
    uint32_t shared[TILES];
} gemm_row;
#define ROW(file, id, f, step)                                                                                         \
    [INFER_FMT_##                                                                                                      \
        id] = {CUDA_K_gemm_x_##f,                                                                                      \
               {CUDA_K_gemm16_##f, CUDA_K_gemm32_##f, CUDA_K_gemm64_##f, CUDA_K_gemm128_##f, CUDA_K_gemm256_##f},      \
               step,                                                                                                   \
               step,                                                                                                   \
               {GEMM_SHARED(16), GEMM_SHARED(32), GEMM_SHARED(64), GEMM_SHARED(128), GEMM_SHARED(256)}},
#define QUANT(file, id, f, panel)                                                                                      \
    [INFER_FMT_##id] = {CUDA_K_gemm_x_f16,                                                                             \
                        {CUDA_K_gemm16_##f, CUDA_K_gemm32_##f, CUDA_K_gemm64_##f, CUDA_K_gemm128_##f},                 \
                        256,                                                                                           \
                        64,                                                                                            \
                        {GEMM_QUANT_SHARED(16, panel), GEMM_QUANT_SHARED(32, panel), GEMM_QUANT_SHARED(64, panel),     \
                         GEMM_QUANT_SHARED(128, panel)}},
static const gemm_row kernels_of[ROWS] = {CUDA_GEMM_FORMATS(ROW) CUDA_GEMM_QUANT_FORMATS(QUANT)};

static infer_format act_format_of(const infer_op_desc *op)
{
    infer_attrs_matmul product;
    infer_attrs_act gated;
    launch_attrs(op, &product, sizeof product);
    launch_attrs(op, &gated, sizeof gated);
    return op->op == INFER_OP_MATMUL || op->op == INFER_OP_QKV ? product.act_format
           : op->op == INFER_OP_GATED_MLP                      ? gated.act_format
                                                               : INFER_FMT_NONE;
}

/* The row for a weight of an op: x in E4M3 only where the op says so and rows are so many that arithmetic bounds them
 * (or none may show how many there are). */
static uint32_t row_of(const infer_device *dev, const infer_op_desc *op, infer_format f, int64_t rows)
{
    if (f != INFER_FMT_F8_E4M3)
        return f;
    const int narrow = act_format_of(op) == INFER_FMT_F8_E4M3 && (rows > READ_BOUND || dev->deterministic);
    return narrow ? f : (uint32_t)INFER_FMT_F8_WIDE;
}

/* The tile for so many rows, by number: 16 << number. Of the two large ones the smaller where it leaves less empty. */
static uint32_t tile_of(uint32_t f, int64_t rows)
{
    uint32_t i = 0;
    while (i < 3 && (16 << i) < rows)
        i++;
    return kernels_of[f].tile[4] && rows > 128 && ((rows + 127) / 128 % 2 == 0 || rows > 1024) ? 4 : i;
}

static uint32_t grid_of(const infer_device *dev)
{
    uint32_t n = dev->tune.sms / CLUSTER * CLUSTER;
    return !n ? CLUSTER : n < GEMM_BLOCKS ? n : GEMM_BLOCKS;
}

/* The same for `tm` tiles along the weights' rows. Tiles that are not cut along K may leave clusters without work:
 * there are more of them where they are smaller. A sum's order is one for all sizes. */
static uint32_t tile_among(const infer_device *dev, uint32_t f, int64_t rows, int64_t tm)
{
    uint32_t i = tile_of(f, rows), clusters = grid_of(dev) / CLUSTER;
    while (dev->deterministic && i && tm * cuda_div_up(rows, 16 << (i - 1)) <= clusters)
        i--;
    return i;
}

/* Steps of x, 128 bytes each. */
static uint32_t x_steps(uint32_t f, int64_t k)
{
    return cuda_div_up(k, kernels_of[f].unit) * (kernels_of[f].unit / kernels_of[f].x_unit);
}

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + CUDA_BIND_ALIGN - 1) / CUDA_BIND_ALIGN * CUDA_BIND_ALIGN;
}

/* What lies in scratch from `at` on. */
typedef struct gemm_places {
    uint64_t x, scale, part, end;
} gemm_places;

/* tile: by number; a smaller one takes no more room. */
static gemm_places places_of(const infer_device *dev, uint32_t f, int64_t k, int64_t rows, uint32_t number, uint64_t at)
{
    uint32_t tile = 16u << number, grid = grid_of(dev);
    gemm_places p = {.x = at};
    p.scale = p.x + GEMM_X_BYTES(rows, tile, x_steps(f, k));
    p.part = aligned(p.scale + (uint64_t)rows * 4);
    p.end = dev->deterministic ? p.part : aligned(p.part + GEMM_PART_BYTES(grid, tile));
    return p;
}

int cuda_gemm_takes(const infer_device *dev, const infer_op_desc *op, uint32_t weight, int64_t rows)
{
    const infer_tensor_desc *w = launch_tensor_desc(op, weight);
    return (rows > FEW || dev->deterministic) && w->layout == CUDA_LAYOUT_PACKED && w->rank == 2 &&
           w->format < INFER_FMT_COUNT && kernels_of[w->format].unit && dev->kernels[kernels_of[w->format].tile[0]];
}

uint64_t cuda_gemm_scratch(const infer_device *dev, const infer_op_desc *op, uint32_t weight)
{
    const infer_tensor_desc *w = launch_tensor_desc(op, weight);
    int64_t rows = launch_tensor_desc(op, 0)->shape[0];
    if (!cuda_gemm_takes(dev, op, weight, rows))
        return 0;
    uint32_t f = row_of(dev, op, w->format, rows); /* the largest tile of any number of rows up to these */
    uint32_t tile = kernels_of[f].tile[4] && rows > 128 ? 4 : tile_of(f, rows);
    return places_of(dev, f, w->shape[1], rows, tile, 0).end;
}

int cuda_gemm_rounds(const infer_device *dev, const infer_op_desc *op, uint32_t weight, int64_t rows)
{
    const infer_format w = launch_tensor_desc(op, weight)->format;
    const uint32_t f = row_of(dev, op, w, rows);
    return (f == INFER_FMT_BF16 || f == INFER_FMT_F8_E4M3) && cuda_gemm_takes(dev, op, weight, rows);
}

int cuda_gemm_panels(const infer_device *dev, const infer_op_desc *op, uint32_t weight, int64_t rows, uint64_t room,
                     lp_panels *out)
{
    const infer_tensor_desc *w = launch_tensor_desc(op, weight);
    if (!dev->panels || w->format != INFER_FMT_BF16 || !cuda_gemm_takes(dev, op, weight, rows) || cuda_is_exact(op))
        return 0;
    const int32_t steps = (int32_t)x_steps(w->format, w->shape[1]);
    const int32_t tile = 16 << tile_among(dev, w->format, rows, cuda_div_up(w->shape[0], EDGE));
    *out = gemm_panels(tile, steps);
    return GEMM_X_BYTES(rows, tile, steps) <= room;
}

/* The launch that puts x in its place, with the norm before that if the queue keeps one. */
static infer_status emit_x(launch_call *c, uint32_t f, const gemm_block *p, const gemm_places *places, int32_t tile,
                           const lp_tensor *x, int x_operand)
{
    gemm_x_block px = {.x = *x,
                       .rows = p->rows,
                       .to_off = places->x,
                       .scale_off = places->scale,
                       .k = p->k,
                       .steps = (int32_t)x_steps(f, p->k),
                       .tile = tile,
                       .mixed = f == INFER_FMT_F8_WIDE};
    const uint32_t rows = (uint32_t)p->rows.cap;
    uint32_t kernel = kernels_of[f].x;
    cuda_norm *norm = &((infer_queue *)c->to)->norm;
    cuda_launch l;
    if (norm->kept && x_operand == 0) {
        px.x = norm->p.x;
        px.norm = norm->p.w;
        px.has_norm = 1;
        px.eps = norm->p.eps;
        px.offset = norm->p.offset;
        kernel = kernel == CUDA_K_gemm_x_bf16 ? CUDA_K_gemm_xn_bf16 : kernel;
    }
    cuda_launch_init(&l, c, kernel, (const int[]){x_operand, -2, -3, -1}, 4, &px, sizeof px);
    if (px.has_norm) {
        l.ptr[0] = norm->x;
        l.ptr[1] = norm->w;
        norm->kept--;
    }
    if (kernel == CUDA_K_gemm_x_bf16)
        return cuda_emit(c, &l, cuda_div_up(8 * (int64_t)px.steps, X_PIECES), cuda_walked(cuda_div_up(rows, 8)), 1,
                         X_THREADS, 1, 1);
    return cuda_emit(c, &l, rows, 1, 1, ROW_THREADS, 1, 1);
}

static infer_status gemm(launch_call *c, infer_format w, gemm_block *p, const int which[9], const lp_tensor *x,
                         int x_operand, uint64_t at)
{
    const uint32_t f = row_of(c->dev, c->op, w, p->rows.cap);
    const gemm_row *row = &kernels_of[f];
    const int64_t edge = p->kind == LP_MMS_GLU ? EDGE / 2 : EDGE;
    uint32_t grid = grid_of(c->dev), rows = (uint32_t)p->rows.cap, tm = 0;
    for (int i = 0; i < (p->kind == LP_MMS_GLU ? 1 : 3); i++)
        tm += cuda_div_up(p->n[i], edge);
    uint32_t tile = tile_among(c->dev, f, rows, tm);
    gemm_places places = places_of(c->dev, f, p->k, rows, tile, c->scratch_off + at);
    cuda_launch l;
    infer_queue *queue = c->to;
    int list[12];
    const int handed = queue->handed;
    queue->handed = 0;
    const infer_status s = handed ? INFER_OK : emit_x(c, f, p, &places, 16 << tile, x, x_operand);
    memcpy(list, which, 9 * sizeof *list);
    list[9] = handed ? x_operand : -3;
    list[10] = -3;
    list[11] = -1;
    p->x_off = handed ? x->off : places.x;
    p->scale_off = places.scale;
    p->part_off = places.part;
    p->whole = c->dev->deterministic;
    cuda_launch_init(&l, c, row->tile[tile], list, 12, p, sizeof *p);
    l.shared = row->shared[tile];
    l.late =
        tile >= 3; /* blocks that come early are in the way of large products: 3.27 ms instead of 2.87 at 8192 rows */
    return s ? s : cuda_emit(c, &l, grid, 1, 1, GEMM_THREADS, 1, 1);
}

infer_status cuda_gemm_one(launch_call *c, infer_format f, const lp_mm *m, const int which[10], uint64_t at)
{
    gemm_block p = {.y = {m->y},
                    .bias = {m->bias},
                    .rows = m->rows,
                    .w_off = {m->w_off},
                    .n = {m->n},
                    .k = m->k,
                    .kind = LP_MMS_SIDE,
                    .n_epi = m->n_epi,
                    .scale = m->scale,
                    .by_row = m->by_row};
    const int list[9] = {which[1], -2, -2, which[3], which[4], which[5], which[8], which[6], which[7]};
    memcpy(p.epi, m->epi, sizeof p.epi);
    return gemm(c, f, &p, list, &m->x, which[0], at);
}

infer_status cuda_gemm_several(launch_call *c, infer_format f, const lp_mms *m, const int which[11], uint64_t at,
                               const lp_panels *panels)
{
    gemm_block p = {
        .rows = m->rows, .k = m->k, .kind = m->kind, .act = m->act, .limit = m->limit, .scale = 1, .by_row = m->by_row};
    memcpy(p.y, m->y, sizeof p.y);
    memcpy(p.bias, m->bias, sizeof p.bias);
    memcpy(p.w_off, m->w_off, sizeof p.w_off);
    memcpy(p.n, m->n, sizeof p.n);
    if (panels)
        p.panels = *panels;
    return gemm(c, f, &p, which + 1, &m->x, which[0], at);
}
