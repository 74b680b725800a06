/*
 * Blocks' content moved as a whole, over all layers and planes of a device: between blocks, and between a block and its
 * place in host memory, where it lies layer by layer, plane by plane. Which block goes where is others' affair.
 *
 * The copies are for the device's submit thread, a device's from one thread at a time. SPDX-License-Identifier:
 * Apache-2.0
 */
#ifndef INFER_SCHED_PLACES_H
#define INFER_SCHED_PLACES_H

#include "kv/kv.h"
#include "model/private.h"

typedef struct infer_places {
    const infer_plan *p;
    const infer_hal_buf *kv;              /* of each device; the runner's */
    uint8_t *mem[INFER_GRAPH_MAX_DEVS];   /* NULL: no places, or the device caches nothing */
    uint64_t bytes[INFER_GRAPH_MAX_DEVS]; /* of a place on its device's behalf */
    uint32_t n;
    infer_copy_region *regions; /* one a cached layer and plane; max_regions for each device, */
    uint32_t max_regions;       /* whose threads fill them at the same time */
} infer_places;

/* n places, touched where one is filled. kv: the devices' buffers, filled in before the first copy. Destroyed also
 * after a failure. */
infer_status infer_places_create(infer_places *w, const infer_plan *p, const infer_hal_buf *kv, uint32_t n,
                                 infer_error *err);
/* Safe on a zeroed struct. */
void infer_places_destroy(infer_places *w);
/* Blocks out of the pool; from block to block; into the pool. */
infer_status infer_places_out(const infer_places *w, infer_hal_dev *d, int32_t dev, const infer_kv_move *m, uint32_t n);
infer_status infer_places_copy(const infer_places *w, infer_hal_dev *d, int32_t dev, const infer_kv_copy *c,
                               uint32_t n);
infer_status infer_places_in(const infer_places *w, infer_hal_dev *d, int32_t dev, const infer_kv_move *m, uint32_t n);
/* Measures a block's way out and its way in, in nanoseconds, over the devices that hold parts of it, side by side. 0:
 * without places. Before the first step. */
infer_status infer_places_measure(const infer_places *w, double *out_ns, double *in_ns, infer_error *err);

#endif
