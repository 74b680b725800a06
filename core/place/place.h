/* Where layers go: facts about the model and the devices in, a device for each layer out. Knows no model and no
 * request. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_PLACE_PLACE_H
#define INFER_PLACE_PLACE_H

#include <stdint.h>

#include "base/error.h"

typedef struct infer_place_dev {
    const char *id;  /* for messages */
    uint64_t budget; /* bytes that layers may use */
    double share;    /* asked share of layers; all 0: by what fits */
    int accelerator;
} infer_place_dev;

typedef struct infer_place_facts {
    uint32_t n_layers;           /* at least 1 */
    const uint64_t *layer_bytes; /* weights and cache of each layer */
    uint64_t first_bytes;        /* what stands before the first layer */
    uint64_t last_bytes;         /* what stands after the last */
    int32_t max_accelerated;     /* layers that accelerators may take, -1: all */
} infer_place_facts;

#define INFER_PLACE_MAX_DEVS 16u

/* Contiguous ranges in the order of devs. home has n_layers + 2 entries: before the first layer, each layer, after the
 * last. Shares given: layers by largest remainder, as asked. Otherwise each device takes layers in proportion to its
 * budget, then those that do not fit move to whoever has most room. INFER_E_NO_FIT with the numbers where that cannot
 * be; INFER_E_INVALID for no or too many devices. */
infer_status infer_place_layers(const infer_place_facts *f, const infer_place_dev *devs, uint32_t n_devs, int32_t *home,
                                infer_error *err);

#endif
