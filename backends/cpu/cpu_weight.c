/* Weights in panels (panel.h): which, and making them. All others stay canonical, in place in the mapped file.
 *
 * U4 in groups along a row becomes Q4_1, a group's scale and minimum (-scale * zero, rounded to f16) with each 32 of
 * it: the codes come first and are packed as they come, scales and zero points are put to them when all are there.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "op.h"

struct infer_weight {
    infer_device *dev;
    infer_format format;
    int64_t n, k, matrices;
    uint64_t row_bytes, panel_bytes;
    uint8_t *dst;        /* next panel */
    int64_t matrix, row; /* of the next panel's first row */
    uint8_t *part;       /* rows of a panel that has not come whole */
    uint64_t have;       /* bytes of it */
    infer_quant quant;   /* of the source */
    uint8_t *image;
    uint8_t *side[3]; /* its planes, [1] and [2] if they are there */
    uint64_t side_bytes[3], side_have[3];
};

int cpu_reads_panels(infer_op_id op, uint32_t operand)
{
    if (op == INFER_OP_GATED_MLP || op == INFER_OP_QKV)
        return operand >= 1 && operand <= 3;
    return operand == 1 && (op == INFER_OP_MATMUL || op == INFER_OP_MOE_MATMUL);
}

/* The part of the tensor that comes: matrices, rows, elements of a row. */
static int extents(const infer_weight_desc *d, int64_t out[3])
{
    if (d->rank < 2 || d->rank > 3)
        return 0;
    out[0] = d->rank == 3 ? d->shape[0] : 1;
    out[1] = d->shape[d->rank - 2];
    out[2] = d->shape[d->rank - 1];
    const infer_shard *s = &d->shard;
    int64_t *cut = s->axis == 0 ? &out[1] : s->axis == 1 ? &out[2] : &out[0];
    if (s->of)
        *cut = *cut / s->of * s->count;
    return 1;
}

/* What a weight is in panels, NONE: not in panels. */
static infer_format panel_kind(const infer_device *dev, const infer_quant *q, int64_t k)
{
    infer_format f = q->format;
    if (q->scale_format) {
        const int halves = q->scale_format == INFER_FMT_F16 || q->scale_format == INFER_FMT_BF16;
        if (f != INFER_FMT_U4 || !halves || (q->zero_format && q->zero_format != INFER_FMT_U4) || q->group_n != 1 ||
            !q->group_k || q->group_k % PANEL_BLOCK)
            return INFER_FMT_NONE;
        f = INFER_FMT_Q4_1;
    }
    return f < INFER_FMT_COUNT && kern_panels_for(dev->kern->panel, f) && k % panel_formats[f].unit == 0
               ? f
               : INFER_FMT_NONE;
}

static int64_t panels(int64_t n)
{
    return (n + PANEL_ROWS - 1) / PANEL_ROWS;
}

infer_status cpu_weight_plan(infer_device *dev, const infer_weight_desc *d, infer_weight_plan *out)
{
    int64_t x[3];
    infer_format f;
    if (!cpu_reads_panels(d->use, 1) || !extents(d, x) || !(f = panel_kind(dev, &d->quant, x[2])))
        return INFER_E_UNSUPPORTED; /* canonical */
    out->flags = f == d->quant.format ? 0 : INFER_WEIGHT_DEQUANT;
    out->layout = CPU_LAYOUT_PANELS;
    out->align = 64;
    out->format = f;
    out->packed_bytes = (uint64_t)x[0] * (uint64_t)panels(x[1]) * panel_bytes(&panel_formats[f], x[2]);
    return INFER_OK;
}

static int64_t groups(int64_t k, const infer_quant *q)
{
    return (k - 1) / q->group_k + 1;
}

infer_status cpu_weight_begin(infer_device *dev, const infer_weight_desc *d, const infer_weight_plan *plan,
                              const infer_range *dst, infer_weight **out)
{
    const infer_host *host = dev->host;
    int64_t x[3];
    infer_format f;
    if (plan->layout != CPU_LAYOUT_PANELS || !extents(d, x) || !(f = panel_kind(dev, &d->quant, x[2])))
        return cpu_fail(host, INFER_E_INVALID, "cpu: no weight layout %u", plan->layout);
    const uint64_t row_bytes = cpu_bytes(dev, d->quant.format, x[2]), part = PANEL_ROWS * row_bytes;
    uint64_t side[3] = {0};
    if (d->quant.scale_format) {
        const uint64_t entries = (uint64_t)x[1] * (uint64_t)groups(x[2], &d->quant);
        side[1] = (uint64_t)x[0] * entries * 2;
        side[2] = d->quant.zero_format ? (uint64_t)x[0] * ((entries + 1) / 2) : 0;
    }
    infer_weight *w = host->alloc(host->ctx, sizeof *w + part + side[1] + side[2], 64);
    if (!w)
        return cpu_fail(host, INFER_E_NO_MEMORY, "cpu: no memory for %d rows of a weight", PANEL_ROWS);
    *w = (infer_weight){.dev = dev,
                        .format = f,
                        .quant = d->quant,
                        .matrices = x[0],
                        .n = x[1],
                        .k = x[2],
                        .row_bytes = row_bytes,
                        .panel_bytes = panel_bytes(&panel_formats[f], x[2]),
                        .dst = dst->buffer->p + dst->offset,
                        .image = dst->buffer->p + dst->offset,
                        .part = (uint8_t *)(w + 1)};
    w->side[1] = w->part + part;
    w->side[2] = w->side[1] + side[1];
    memcpy(w->side_bytes, side, sizeof side);
    *out = w;
    return INFER_OK;
}

/* ---- U4 in groups ---------------------------------------------------------------------------------------------- */

enum { PIECE = 256, Q4_1_BYTES = 20 };

/* Rows of U4 into a panel as Q4_1 without scales. */
static void pack_u4(const uint8_t *rows, uint64_t stride, int64_t n, int64_t k, uint8_t *panel)
{
    uint8_t blocks[PANEL_ROWS][PIECE / PANEL_BLOCK * Q4_1_BYTES];
    memset(blocks, 0, sizeof blocks);
    for (int64_t k0 = 0; k0 < k; k0 += PIECE) {
        const int64_t kc = k - k0 < PIECE ? k - k0 : PIECE;
        for (int64_t r = 0; r < n; r++) {
            const uint8_t *from = rows + (uint64_t)r * stride + k0 / 2;
            uint8_t *to = blocks[r] + 4;
            for (int64_t b = 0; b < kc / PANEL_BLOCK; b++, from += PANEL_BLOCK / 2, to += Q4_1_BYTES)
                for (int i = 0; i < PANEL_BLOCK / 4; i++) { /* elements 2 i, 2 i + 1, and 16 further on */
                    const uint8_t low = from[i], high = from[i + PANEL_BLOCK / 4];
                    to[2 * i] = (uint8_t)((low & 15) | high << 4);
                    to[2 * i + 1] = (uint8_t)(low >> 4 | (high & 0xF0));
                }
        }
        panel_pack(INFER_FMT_Q4_1, blocks[0], sizeof blocks[0], n, kc,
                   panel + panel_bytes(&panel_formats[INFER_FMT_Q4_1], k0));
    }
}

static float half_of(infer_format f, const uint8_t *p)
{
    const uint16_t u = (uint16_t)(p[0] | p[1] << 8);
    float v;
    const uint32_t bits = (uint32_t)u << 16;
    memcpy(&v, &bits, sizeof v);
    return f == INFER_FMT_BF16 ? v : kern_f16_to_f32(u);
}

static void put_half(uint8_t *p, float v)
{
    const uint16_t u = kern_f32_to_f16(v);
    p[0] = (uint8_t)u;
    p[1] = (uint8_t)(u >> 8);
}

/* Scales and minima of a row's blocks to their places in its panel. */
static void put_groups(const infer_weight *w, int64_t matrix, int64_t r)
{
    const int64_t n = groups(w->k, &w->quant), entries = w->n * n;
    const uint64_t block = panel_formats[INFER_FMT_Q4_1].block_bytes;
    const uint8_t *scales = w->side[1] + 2 * (matrix * entries + r * n),
                  *zeros = w->side[2] + matrix * ((entries + 1) / 2);
    uint8_t *at = w->image + (uint64_t)(matrix * panels(w->n) + r / PANEL_ROWS) * w->panel_bytes + r % PANEL_ROWS * 2;
    for (int64_t b = 0; b < w->k / PANEL_BLOCK; b++, at += block) {
        const int64_t g = b * PANEL_BLOCK / w->quant.group_k, i = r * n + g;
        const float scale = half_of(w->quant.scale_format, scales + 2 * g);
        const int zero = w->quant.zero_format ? zeros[i / 2] >> i % 2 * 4 & 15 : w->quant.zero_value;
        put_half(at, scale);
        put_half(at + 2 * PANEL_ROWS, -scale * (float)zero);
    }
}

/* ---- The stream ------------------------------------------------------------------------------------------------- */

typedef struct pack_job {
    const infer_weight *w;
    const uint8_t *rows;
    int64_t n; /* rows in all; the last panel may have fewer than PANEL_ROWS */
} pack_job;

static void pack_chunk(void *ctx, int64_t chunk, uint32_t worker)
{
    const pack_job *j = ctx;
    const infer_weight *w = j->w;
    int64_t left = j->n - chunk * PANEL_ROWS;
    const uint8_t *rows = j->rows + (uint64_t)chunk * PANEL_ROWS * w->row_bytes;
    uint8_t *to = w->dst + (uint64_t)chunk * w->panel_bytes;
    (void)worker;
    left = left < PANEL_ROWS ? left : PANEL_ROWS;
    if (w->quant.scale_format)
        pack_u4(rows, w->row_bytes, left, w->k, to);
    else
        panel_pack(w->format, rows, w->row_bytes, left, w->k, to);
}

/* n rows of one matrix, from the first of a panel: whole panels, or all that the matrix still has. */
static void take(infer_weight *w, const uint8_t *rows, int64_t n)
{
    pack_job j = {w, rows, n};
    cpu_team_run(w->dev->team, panels(n), pack_chunk, &j);
    w->dst += (uint64_t)panels(n) * w->panel_bytes;
    w->row += n;
    if (w->row == w->n) {
        w->row = 0;
        w->matrix++;
    }
}

infer_status cpu_weight_append(infer_weight *w, uint32_t plane, const void *data, uint64_t bytes)
{
    const uint8_t *p = data;
    if (plane > 2 || (plane && bytes > w->side_bytes[plane] - w->side_have[plane]))
        return cpu_fail(w->dev->host, INFER_E_INVALID, "cpu: plane %u of a weight has more bytes than it should",
                        plane);
    if (plane) {
        memcpy(w->side[plane] + w->side_have[plane], p, bytes);
        w->side_have[plane] += bytes;
        return INFER_OK;
    }
    while (bytes) {
        int64_t left = w->n - w->row, next = left < PANEL_ROWS ? left : PANEL_ROWS;
        if (w->matrix == w->matrices)
            return cpu_fail(w->dev->host, INFER_E_INVALID, "cpu: more bytes than the weight has");
        if (w->have || bytes < (uint64_t)next * w->row_bytes) {
            uint64_t want = (uint64_t)next * w->row_bytes - w->have, n = bytes < want ? bytes : want;
            memcpy(w->part + w->have, p, n);
            w->have += n;
            p += n;
            bytes -= n;
            if (n == want) {
                w->have = 0;
                take(w, w->part, next);
            }
            continue;
        }
        int64_t whole = (int64_t)(bytes / w->row_bytes);
        int64_t n = whole >= left ? left : whole / PANEL_ROWS * PANEL_ROWS;
        take(w, p, n);
        p += (uint64_t)n * w->row_bytes;
        bytes -= (uint64_t)n * w->row_bytes;
    }
    return INFER_OK;
}

infer_status cpu_weight_finish(infer_weight *w)
{
    if (w->matrix != w->matrices)
        return cpu_fail(w->dev->host, INFER_E_INVALID, "cpu: a weight ended at row %lld of matrix %lld",
                        (long long)w->row, (long long)w->matrix);
    if (w->side_have[1] != w->side_bytes[1] || w->side_have[2] != w->side_bytes[2])
        return cpu_fail(w->dev->host, INFER_E_INVALID, "cpu: a weight ended without all of its scales");
    for (int64_t i = 0; i < w->matrices && w->quant.scale_format; i++)
        for (int64_t r = 0; r < w->n; r++)
            put_groups(w, i, r);
    return INFER_OK;
}

void cpu_weight_destroy(infer_weight *w)
{
    w->dev->host->free(w->dev->host->ctx, w);
}
