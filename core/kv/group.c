/* Cache groups: bytes and places of planes in the canonical layout. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "base/checked.h"
#include "kv/kv.h"
#include "quant/quant.h"

infer_status infer_kv_block_bytes(const infer_kv_spec *spec, uint32_t block_size, uint64_t planes[4], uint64_t *total)
{
    if (spec->n_planes > 4 || !block_size)
        return INFER_E_INVALID;
    *total = 0;
    for (uint32_t i = 0; i < spec->n_planes; i++) {
        const infer_kv_plane *pl = &spec->planes[i];
        uint64_t row, rows, bytes;
        INFER_TRY(infer_format_bytes(pl->format, pl->width, &row));
        if (!infer_mul_u64(pl->per_head ? spec->n_heads : 1, block_size, &rows) || !infer_mul_u64(row, rows, &bytes) ||
            !infer_add_u64(*total, bytes, total))
            return INFER_E_TOO_LARGE;
        planes[i] = bytes;
    }
    return INFER_OK;
}

infer_status infer_kv_layout_make(const infer_kv_spec *spec, uint32_t block_size, uint64_t n_blocks, uint32_t align,
                                  const uint64_t block_bytes[4], infer_kv_layout *out)
{
    infer_kv_layout l = {.spec = *spec, .block_size = block_size, .n_blocks = n_blocks};
    uint64_t block[4] = {0}, total;
    if (spec->n_planes > 4)
        return INFER_E_INVALID;
    if (block_bytes)
        memcpy(block, block_bytes, sizeof block);
    else
        INFER_TRY(infer_kv_block_bytes(spec, block_size, block, &total));
    for (uint32_t i = 0; i < spec->n_planes; i++) {
        l.plane_offset[i] = l.layer_bytes;
        if (!infer_mul_u64(block[i], n_blocks, &l.plane_bytes[i]) ||
            !infer_add_u64(l.layer_bytes, l.plane_bytes[i], &l.layer_bytes) ||
            !infer_round_up_u64(l.layer_bytes, align ? align : 1, &l.layer_bytes))
            return INFER_E_TOO_LARGE;
    }
    if (!infer_mul_u64(l.layer_bytes, spec->n_layers, &l.total_bytes))
        return INFER_E_TOO_LARGE;
    *out = l;
    return INFER_OK;
}

void infer_kv_layout_plane(const infer_kv_layout *l, uint32_t layer, uint32_t plane, uint64_t *offset, uint64_t *bytes)
{
    *offset = (layer - l->spec.layer_first) * l->layer_bytes + l->plane_offset[plane];
    *bytes = l->plane_bytes[plane];
}

uint64_t infer_kv_group_serves(const infer_kv_spec *spec, uint64_t n)
{
    return spec->kind == INFER_GROUP_FULL || spec->kind == INFER_GROUP_LATENT || spec->kind == INFER_GROUP_WINDOW ? n
                                                                                                                  : 0;
}
