/*
 * How a cache group lies in memory where a plugin does not say: canonical, any block size, plain float formats. Also
 * the byte counts of the canonical layout. Which of several devices' block sizes is used is not decided here.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include "base/checked.h"
#include "hal/internal.h"
#include "quant/quant.h"

/* Tokens a block where any number would do: small enough that a short last block wastes little, large enough that
 * block tables stay short. */
enum { BLOCK_BEST = 32 };

infer_status hal_kv_canonical_bytes(const infer_kv_spec *spec, infer_kv_answer *out)
{
    if (spec->n_planes > 4)
        return INFER_E_INVALID;
    for (uint32_t i = 0; i < 4; i++) {
        out->block_bytes[i] = 0;
        if (i >= spec->n_planes)
            continue;
        const infer_kv_plane *p = &spec->planes[i];
        uint64_t row, n;
        INFER_TRY(infer_format_bytes(p->format, p->width, &row));
        if (!infer_mul_u64(p->per_head ? spec->n_heads : 1, out->block_best, &n) || !infer_mul_u64(n, row, &n))
            return INFER_E_TOO_LARGE;
        out->block_bytes[i] = n;
    }
    return INFER_OK;
}

infer_status hal_default_kv_query(infer_device *dev, const infer_kv_spec *spec, infer_kv_answer *out)
{
    (void)dev;
    infer_kv_answer a = {.struct_size = out->struct_size, .block_multiple = 1, .align = 1};
    a.block_best = spec->kind == INFER_GROUP_RECURRENT ? 1 : BLOCK_BEST;
    if (spec->kind < INFER_GROUP_FULL || spec->kind > INFER_GROUP_ENCODER) {
        a.why = INFER_WHY_ATTR;
        a.which = 1;
        *out = a;
        return INFER_OK;
    }
    for (uint32_t i = 0; i < spec->n_planes && i < 4; i++) {
        const infer_format_info *f = infer_format_get(spec->planes[i].format);
        if (!f || !f->is_float || f->block_elems != 1 || f->block_bytes > 4 || f->block_bytes < 2) {
            a.why = INFER_WHY_FORMAT;
            a.which = i;
            *out = a;
            return INFER_OK;
        }
        if (a.align < f->block_bytes)
            a.align = f->block_bytes;
    }
    INFER_TRY(hal_kv_canonical_bytes(spec, &a));
    a.level = INFER_LEVEL_NATIVE;
    *out = a;
    return INFER_OK;
}
