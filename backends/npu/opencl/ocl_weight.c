/* Weights for lanes: rows whose blocks are taken apart, so that neighbouring lanes read neighbouring bytes at places of
 * their size. A block of 34 or 18 bytes is read two bytes at a time; its codes alone by eights. A row keeps its length.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "ocl.h"

enum { BATCH = 1 << 20, MOST_PARTS = 4, EIGHT = 8 }; /* bytes that are sent at a time, at least a row */

/* Parts of a block, in the order in which a row has them: all blocks' first parts, then all second ones
 * (kernels/eights.cl, planes_*). */
static const struct {
    struct {
        uint8_t from, bytes;
    } part[MOST_PARTS];
} parts_of[INFER_FMT_COUNT] = {
    [INFER_FMT_Q8_0] = {{{2, 32}, {0, 2}}},
    [INFER_FMT_Q4_0] = {{{2, 16}, {0, 2}}},
    [INFER_FMT_Q4_1] = {{{4, 16}, {0, 4}}},
    [INFER_FMT_Q6_K] = {{{0, 128}, {128, 64}, {192, 16}, {208, 2}}},
};

struct infer_weight {
    infer_device *dev;
    cl_mem mem;
    uint64_t at, left;        /* where the next row goes; bytes to come */
    uint64_t row_bytes, have; /* bytes of the row that has begun */
    uint64_t room, full;      /* of `out`, bytes */
    infer_format format;
    uint8_t *row, *out; /* one that has begun; rows that are ready, behind it */
};

/* Whether a weight of this format and row length is taken apart, for the op that reads it. */
static int takes(const infer_device *dev, const infer_weight_desc *d, int64_t k)
{
    infer_format f = d->quant.format;
    int reads = d->use == INFER_OP_MATMUL || d->use == INFER_OP_QKV || d->use == INFER_OP_GATED_MLP ||
                d->use == INFER_OP_MOE_MATMUL;
    return dev->tune->mv_lanes > 1 && dev->planes && reads && !d->quant.scale_format && d->rank >= 2 &&
           f < INFER_FMT_COUNT && parts_of[f].part[0].bytes && launch_format_bytes(f, (uint64_t)k) % EIGHT == 0;
}

infer_status ocl_weight_plan(infer_device *dev, const infer_weight_desc *d, infer_weight_plan *out)
{
    int64_t x[3];
    infer_weight_plan p = {.layout = OCL_LAYOUT_PLANES,
                           .align = OCL_BIND_ALIGN,
                           .packed_bytes = launch_weight_extents(d, x),
                           .format = d->quant.format};
    if (!p.packed_bytes || !takes(dev, d, x[2]))
        return INFER_E_UNSUPPORTED; /* canonical, by the core's copies */
    launch_put(out, &p, sizeof p);
    return INFER_OK;
}

infer_status ocl_weight_begin(infer_device *dev, const infer_weight_desc *d, const infer_weight_plan *plan,
                              const infer_range *dst, infer_weight **out)
{
    const infer_host *host = dev->host;
    int64_t x[3];
    uint64_t bytes = launch_weight_extents(d, x);
    if (plan->layout != OCL_LAYOUT_PLANES || !bytes || !takes(dev, d, x[2]))
        return ocl_fail(host, INFER_E_INVALID, "opencl: no weight layout %u", plan->layout);
    if (dst->size < bytes || dst->offset % OCL_BIND_ALIGN)
        return ocl_fail(host, INFER_E_INVALID, "opencl: a weight of %llu bytes into %llu at %llu",
                        (unsigned long long)bytes, (unsigned long long)dst->size, (unsigned long long)dst->offset);
    uint64_t row = launch_format_bytes(d->quant.format, (uint64_t)x[2]);
    uint64_t room = row < BATCH ? BATCH / row * row : row;
    infer_weight *w = host->alloc(host->ctx, sizeof *w + row + room, _Alignof(infer_weight));
    if (!w)
        return ocl_fail(host, INFER_E_NO_MEMORY, "opencl: no host memory for a weight");
    *w = (infer_weight){.dev = dev,
                        .mem = dst->buffer->mem,
                        .at = dst->offset,
                        .left = bytes,
                        .row_bytes = row,
                        .room = room,
                        .format = d->quant.format};
    w->row = (uint8_t *)(w + 1);
    w->out = w->row + row;
    *out = w;
    return INFER_OK;
}

static void take_apart(const infer_weight *w, uint8_t *to)
{
    const uint64_t block = launch_format_bytes(w->format, launch_format_block(w->format)), n = w->row_bytes / block;
    for (int i = 0; i < MOST_PARTS && parts_of[w->format].part[i].bytes; i++) {
        const uint8_t *from = w->row + parts_of[w->format].part[i].from;
        const size_t bytes = parts_of[w->format].part[i].bytes;
        for (uint64_t b = 0; b < n; b++, to += bytes)
            memcpy(to, from + b * block, bytes);
    }
}

/* What is ready goes to its place. */
static infer_status send(infer_weight *w)
{
    cl_int e =
        w->dev->cl->EnqueueWriteBuffer(w->dev->setup, w->mem, CL_TRUE, w->at, (size_t)w->full, w->out, 0, NULL, NULL);
    w->at += w->full;
    w->full = 0;
    return ocl_status(w->dev, e, INFER_E_QUEUE, "load weights");
}

infer_status ocl_weight_append(infer_weight *w, uint32_t plane, const void *data, uint64_t bytes)
{
    const uint8_t *p = data;
    infer_status s = INFER_OK;
    if (plane != 0 || bytes > w->left)
        return ocl_fail(w->dev->host, INFER_E_INVALID, "opencl: plane %u has %llu bytes more, a weight %llu", plane,
                        (unsigned long long)bytes, (unsigned long long)w->left);
    w->left -= bytes;
    while (bytes && !s) {
        uint64_t n = w->row_bytes - w->have < bytes ? w->row_bytes - w->have : bytes;
        memcpy(w->row + w->have, p, (size_t)n);
        w->have += n;
        p += n;
        bytes -= n;
        if (w->have < w->row_bytes)
            break;
        take_apart(w, w->out + w->full);
        w->full += w->row_bytes;
        w->have = 0;
        if (w->full == w->room)
            s = send(w);
    }
    return s;
}

infer_status ocl_weight_finish(infer_weight *w)
{
    if (w->left)
        return ocl_fail(w->dev->host, INFER_E_INVALID, "opencl: a weight ended %llu bytes early",
                        (unsigned long long)w->left);
    return w->full ? send(w) : INFER_OK;
}

void ocl_weight_destroy(infer_weight *w)
{
    w->dev->host->free(w->dev->host->ctx, w);
}
