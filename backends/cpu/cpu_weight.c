/* Weights in panels (panel.h): which, and making them. All others stay canonical, in place in the mapped file.
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

static int64_t panels(int64_t n)
{
    return (n + PANEL_ROWS - 1) / PANEL_ROWS;
}

infer_status cpu_weight_plan(infer_device *dev, const infer_weight_desc *d, infer_weight_plan *out)
{
    int64_t x[3];
    const infer_format f = d->quant.format;
    if (f >= INFER_FMT_COUNT || !kern_panels_for(dev->kern->panel, f) || d->quant.scale_format ||
        !cpu_reads_panels(d->use, 1) || !extents(d, x) || x[2] % panel_formats[f].unit)
        return INFER_E_UNSUPPORTED; /* canonical */
    out->layout = CPU_LAYOUT_PANELS;
    out->align = 64;
    out->format = f;
    out->packed_bytes = (uint64_t)x[0] * (uint64_t)panels(x[1]) * panel_bytes(&panel_formats[f], x[2]);
    return INFER_OK;
}

infer_status cpu_weight_begin(infer_device *dev, const infer_weight_desc *d, const infer_weight_plan *plan,
                              const infer_range *dst, infer_weight **out)
{
    const infer_host *host = dev->host;
    int64_t x[3];
    if (plan->layout != CPU_LAYOUT_PANELS || !extents(d, x))
        return cpu_fail(host, INFER_E_INVALID, "cpu: no weight layout %u", plan->layout);
    uint64_t row_bytes = cpu_bytes(dev, d->quant.format, x[2]);
    infer_weight *w = host->alloc(host->ctx, sizeof *w + PANEL_ROWS * row_bytes, 64);
    if (!w)
        return cpu_fail(host, INFER_E_NO_MEMORY, "cpu: no memory for %d rows of a weight", PANEL_ROWS);
    *w = (infer_weight){.dev = dev,
                        .format = d->quant.format,
                        .matrices = x[0],
                        .n = x[1],
                        .k = x[2],
                        .row_bytes = row_bytes,
                        .panel_bytes = panel_bytes(&panel_formats[d->quant.format], x[2]),
                        .dst = dst->buffer->p + dst->offset,
                        .part = (uint8_t *)(w + 1)};
    *out = w;
    return INFER_OK;
}

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
    (void)worker;
    panel_pack(w->format, j->rows + (uint64_t)chunk * PANEL_ROWS * w->row_bytes, w->row_bytes,
               left < PANEL_ROWS ? left : PANEL_ROWS, w->k, w->dst + (uint64_t)chunk * w->panel_bytes);
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
    if (plane != 0)
        return cpu_fail(w->dev->host, INFER_E_INVALID, "cpu: plane %u of a weight without side planes", plane);
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
    return INFER_OK;
}

void cpu_weight_destroy(infer_weight *w)
{
    w->dev->host->free(w->dev->host->ctx, w);
}
