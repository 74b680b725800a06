/* Where layers go: facts about the model and the devices in, a device for each layer out. Knows no model and no
 * request. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_PLACE_PLACE_H
#define INFER_PLACE_PLACE_H

#include <stdint.h>

#include "base/error.h"

typedef struct infer_place_dev {
    uint64_t budget; /* bytes that layers may use */
    double share;    /* asked share of layers, 0: by what fits */
    int accelerator;
} infer_place_dev;

typedef struct infer_place_facts {
    uint32_t n_layers;
    const uint64_t *layer_bytes; /* weights and cache of each layer */
    uint64_t first_bytes;        /* what stands before the first layer */
    uint64_t last_bytes;         /* what stands after the last */
    int32_t max_accelerated;     /* layers that accelerators may take, -1: all; the last layers go to them */
} infer_place_facts;

/* Contiguous ranges in the order of devs. home has n_layers + 2 entries: before the first layer, each layer, after the
 * last. Shares given: by largest remainder. Otherwise each device takes layers in proportion to its budget.
 * INFER_E_NO_FIT with the numbers where a device's range does not fit its budget. */
infer_status infer_place_layers(const infer_place_facts *f, const infer_place_dev *devs, uint32_t n_devs, int32_t *home,
                                infer_error *err);

#endif
