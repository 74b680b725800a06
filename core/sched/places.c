/* Whole blocks between the pool and host memory. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "sched/places.h"
#include "sched/private.h"

/* Bytes of a block of all layers and planes of a device. */
static uint64_t block_bytes(const infer_plan *p, uint32_t dev)
{
    const infer_kv_layout *l = &p->devs[dev].kv;
    uint64_t n = 0;
    for (uint32_t i = 0; i < l->spec.n_planes; i++)
        n += l->plane_bytes[i] / l->n_blocks;
    return l->spec.n_layers ? n * l->spec.n_layers : 0;
}

uint64_t infer_plan_block_bytes(const infer_plan *p)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < p->n_devs; i++)
        n += block_bytes(p, i);
    return n;
}

infer_status infer_places_create(infer_places *w, const infer_plan *p, const infer_hal_buf *kv, uint32_t n,
                                 infer_error *err)
{
    *w = (infer_places){.p = p, .kv = kv, .n = n};
    for (uint32_t i = 0; i < p->n_devs; i++)
        if (p->devs[i].kv.spec.n_layers * p->devs[i].kv.spec.n_planes > w->max_regions)
            w->max_regions = p->devs[i].kv.spec.n_layers * p->devs[i].kv.spec.n_planes;
    if (!(w->regions = infer_calloc((size_t)p->n_devs * w->max_regions, sizeof *w->regions)))
        return infer_error_set(err, INFER_E_NO_MEMORY, "engine: no host memory for the step's blocks");
    for (uint32_t i = 0; n && i < p->n_devs; i++) {
        w->bytes[i] = block_bytes(p, i);
        if (w->bytes[i] && !(w->mem[i] = infer_alloc_aligned(w->bytes[i] * n, 256)))
            return infer_error_set(err, INFER_E_NO_MEMORY, "engine: no host memory for %u blocks of the cache", n);
    }
    return INFER_OK;
}

void infer_places_destroy(infer_places *w)
{
    for (uint32_t i = 0; i < INFER_GRAPH_MAX_DEVS; i++)
        infer_free_aligned(w->mem[i]);
    infer_free(w->regions);
    memset(w, 0, sizeof *w);
}

infer_status infer_places_copy(const infer_places *w, infer_hal_dev *d, int32_t dev, const infer_kv_copy *c, uint32_t n)
{
    const infer_kv_layout *l = &w->p->devs[dev].kv;
    if (!l->spec.n_layers)
        return INFER_OK;
    infer_copy_end end = {w->kv[dev].h, NULL};
    infer_copy_region *regions = w->regions + (size_t)dev * w->max_regions;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = 0;
        for (uint32_t layer = 0; layer < l->spec.n_layers; layer++) {
            for (uint32_t plane = 0; plane < l->spec.n_planes; plane++) {
                uint64_t at, bytes;
                infer_kv_layout_plane(l, layer, plane, &at, &bytes);
                uint64_t block = bytes / l->n_blocks;
                regions[k++] = (infer_copy_region){.src_offset = at + block * (uint64_t)c[i].src,
                                                   .dst_offset = at + block * (uint64_t)c[i].dst,
                                                   .bytes = block,
                                                   .rows = 1};
            }
        }
        INFER_TRY(infer_hal_copy(d, &end, &end, regions, k));
    }
    return INFER_OK;
}

/* A block to its place, or back. */
static infer_status move(const infer_places *w, infer_hal_dev *d, int32_t dev, const infer_kv_move *m, int out)
{
    const infer_kv_layout *l = &w->p->devs[dev].kv;
    infer_copy_region *regions = w->regions + (size_t)dev * w->max_regions;
    uint64_t host = 0;
    uint32_t n = 0;
    for (uint32_t layer = l->spec.layer_first; layer < l->spec.layer_first + l->spec.n_layers; layer++) {
        for (uint32_t plane = 0; plane < l->spec.n_planes; plane++) {
            uint64_t at, bytes;
            infer_kv_layout_plane(l, layer, plane, &at, &bytes);
            bytes /= l->n_blocks;
            at += bytes * (uint64_t)m->block;
            regions[n++] = (infer_copy_region){
                .src_offset = out ? at : host, .dst_offset = out ? host : at, .bytes = bytes, .rows = 1};
            host += bytes;
        }
    }
    infer_copy_end kv = {w->kv[dev].h, NULL}, mem = {NULL, w->mem[dev] + host * (uint64_t)m->place};
    return infer_hal_copy(d, out ? &mem : &kv, out ? &kv : &mem, regions, n);
}

infer_status infer_places_out(const infer_places *w, infer_hal_dev *d, int32_t dev, const infer_kv_move *m, uint32_t n)
{
    for (uint32_t i = 0; w->mem[dev] && i < n; i++)
        INFER_TRY(move(w, d, dev, &m[i], 1));
    return INFER_OK;
}

infer_status infer_places_in(const infer_places *w, infer_hal_dev *d, int32_t dev, const infer_kv_move *m, uint32_t n)
{
    for (uint32_t i = 0; w->mem[dev] && i < n; i++)
        INFER_TRY(move(w, d, dev, &m[i], 0));
    return INFER_OK;
}

typedef struct trial {
    infer_hal_job job;
    const infer_places *w;
    int32_t dev, out;
    infer_status status;
} trial;

enum { TRIAL_BLOCKS = 8 };

static void run_trial(infer_hal_job *job)
{
    trial *t = (trial *)job;
    infer_hal_dev *d = t->w->p->devs[t->dev].dev;
    for (int32_t i = 0; t->status == INFER_OK && i < TRIAL_BLOCKS; i++) {
        const infer_kv_move m = {.place = i % (int32_t)t->w->n};
        t->status = move(t->w, d, t->dev, &m, t->out);
    }
    const infer_status s = infer_hal_drain(d);
    t->status = t->status == INFER_OK ? s : t->status;
}

infer_status infer_places_measure(const infer_places *w, double *out_ns, double *in_ns, infer_error *err)
{
    double ns[2] = {0, 0};
    for (uint32_t i = 0; i < w->p->n_devs; i++) {
        if (!w->mem[i])
            continue;
        for (int k = 0; k < 4; k++) { /* the first two touch the memory */
            trial t = {.job.run = run_trial, .w = w, .dev = (int32_t)i, .out = k % 2 == 0};
            const uint64_t t0 = infer_clock_ns();
            infer_hal_run(w->p->devs[i].dev, &t.job);
            const double took = (double)(infer_clock_ns() - t0) / TRIAL_BLOCKS;
            if (t.status != INFER_OK)
                return infer_hal_fail(w->p->devs[i].dev, t.status, err, "copying a block to host memory and back");
            if (k >= 2 && took > ns[k - 2])
                ns[k - 2] = took;
        }
    }
    *out_ns = ns[0];
    *in_ns = ns[1];
    return INFER_OK;
}
