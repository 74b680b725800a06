/*
 * sim, weights: matrices for MATMUL and MOE_MATMUL lie in a layout of sim's own, every other weight as the core lays it
 * out. The layout is one that nobody would choose, so that what takes the image for the canonical one goes wrong at
 * once: a matrix of N rows of R bytes is stored as its R columns of N bytes. Experts follow one another.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include "sim.h"

struct infer_weight {
    infer_device *dev;
    uint8_t *image;
    sim_matrix m;
    uint64_t at; /* source bytes taken so far */
};

int sim_matrix_of(const infer_tensor_desc *t, sim_matrix *out)
{
    if (t->rank < 2 || t->rank > 3 || t->quant.format)
        return 0;
    for (uint32_t i = 0; i < t->rank; i++)
        if (t->shape[i] <= 0)
            return 0;
    *out = (sim_matrix){.experts = t->rank == 3 ? (uint64_t)t->shape[0] : 1,
                        .rows = (uint64_t)t->shape[t->rank - 2],
                        .row_bytes = (uint64_t)t->shape[t->rank - 1] * sim_format_bytes(t->format) / 256};
    return out->row_bytes != 0;
}

uint64_t sim_matrix_bytes(const sim_matrix *m)
{
    return m->experts * m->rows * m->row_bytes;
}

/* Where byte `at` of the canonical matrix lies in the image. */
static uint64_t sim_place(const sim_matrix *m, uint64_t at)
{
    uint64_t each = m->rows * m->row_bytes, in = at % each;
    return at - in + in % m->row_bytes * m->rows + in / m->row_bytes;
}

void sim_unpack(const sim_matrix *m, const uint8_t *image, uint8_t *dst)
{
    for (uint64_t i = 0, n = sim_matrix_bytes(m); i < n; i++)
        dst[i] = image[sim_place(m, i)];
}

/* The part of a weight that this device is to have; 0: not one for the private layout. */
static int sim_part(const infer_device *dev, const infer_weight_desc *given, sim_matrix *out)
{
    infer_weight_desc d;
    sim_take(&d, sizeof(d), given, given->struct_size);
    infer_tensor_desc t = {.format = d.quant.format, .rank = d.rank};
    if (!dev->cfg.private_weights || (d.use != INFER_OP_MATMUL && d.use != INFER_OP_MOE_MATMUL) || d.rank < 2 ||
        d.rank > 3 || d.quant.scale_format)
        return 0;
    for (uint32_t i = 0; i < d.rank; i++)
        t.shape[i] = d.shape[i];
    if (d.shard.of) {
        uint32_t axis = d.shard.axis == 2 ? 0 : d.rank - 2 + d.shard.axis;
        t.shape[axis] = t.shape[axis] / d.shard.of * d.shard.count;
    }
    return sim_matrix_of(&t, out);
}

infer_status sim_weight_plan(infer_device *dev, const infer_weight_desc *desc, infer_weight_plan *out)
{
    sim_matrix m;
    if (!sim_part(dev, desc, &m))
        return INFER_E_UNSUPPORTED; /* the core's canonical plan will do */
    infer_weight_plan p = {.layout = SIM_LAYOUT,
                           .align = SIM_BIND_ALIGN,
                           .packed_bytes = sim_matrix_bytes(&m),
                           .format = desc->quant.format};
    sim_put(out, &p, sizeof(p));
    return INFER_OK;
}

infer_status sim_weight_begin(infer_device *dev, const infer_weight_desc *desc, const infer_weight_plan *plan,
                              const infer_range *dst, infer_weight **out)
{
    const infer_host *host = dev->host;
    infer_weight w = {.dev = dev};
    if (plan->layout != SIM_LAYOUT || !sim_part(dev, desc, &w.m))
        return sim_fail(host, INFER_E_INVALID, "sim: weight_begin: not the layout that weight_plan answered");
    w.image = sim_resolve(dev, dst->buffer, dst->offset, sim_matrix_bytes(&w.m));
    if (!w.image || dst->offset % SIM_BIND_ALIGN)
        return sim_fail(host, INFER_E_INVALID, "sim: weight_begin: the image has no place there");
    infer_weight *p = host->alloc(host->ctx, sizeof(*p), 64);
    if (!p)
        return sim_fail(host, INFER_E_NO_MEMORY, "sim: weight_begin: no host memory");
    *p = w;
    *out = p;
    return INFER_OK;
}

infer_status sim_weight_append(infer_weight *w, uint32_t plane, const void *data, uint64_t bytes)
{
    const uint8_t *src = data;
    if (plane != 0 || bytes > sim_matrix_bytes(&w->m) - w->at)
        return sim_fail(w->dev->host, INFER_E_INVALID, "sim: weight_append: more than the weight has");
    for (uint64_t i = 0; i < bytes; i++)
        w->image[sim_place(&w->m, w->at + i)] = src[i];
    w->at += bytes;
    return INFER_OK;
}

infer_status sim_weight_finish(infer_weight *w)
{
    if (w->at != sim_matrix_bytes(&w->m))
        return sim_fail(w->dev->host, INFER_E_INVALID, "sim: weight_finish: the weight is not complete");
    return INFER_OK;
}

void sim_weight_destroy(infer_weight *w)
{
    w->dev->host->free(w->dev->host->ctx, w);
}
