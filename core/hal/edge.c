/*
 * How bytes get from one opened device to another. What a plugin says of its own peers is taken; every other pair is
 * staged through host memory by the core. Measures nothing.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include "hal/internal.h"

infer_status infer_hal_edge(infer_hal_dev *from, infer_hal_dev *to, infer_edge_info *out)
{
    infer_edge_info e = {.struct_size = sizeof e, .mode = INFER_EDGE_STAGED};
    INFER_TRY(hal_lost(from));
    INFER_TRY(hal_lost(to));
    if (from == to)
        e = (infer_edge_info){
            .struct_size = sizeof e, .mode = INFER_EDGE_NATIVE, .bytes_per_s = from->props.read_bytes_per_s / 2};
    else if (from->b == to->b)
        INFER_TRY(hal_note(from, from->ops->dev_edge(from->h, to->row->info.index, &e)));
    if (e.mode == INFER_EDGE_NONE || e.mode > INFER_EDGE_STAGED)
        e.mode = INFER_EDGE_STAGED;
    *out = e;
    return INFER_OK;
}
