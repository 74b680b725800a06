/* Matrices whose scales and zero points lie in planes of their own (struct infer_quant): sizes, unpack, reference
 * quantiser. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "base/checked.h"
#include "quant/fmt.h"

/* Codes that the quantiser uses: [lo, hi]. I8 leaves -128 out, so that a scale serves both signs alike. */
static const struct {
    infer_format format;
    float lo, hi;
} code_range[] = {
    {INFER_FMT_I8, -127, 127},          {INFER_FMT_U8, 0, 255}, {INFER_FMT_U4, 0, 15}, {INFER_FMT_F8_E4M3, -448, 448},
    {INFER_FMT_F8_E5M2, -57344, 57344},
};

static int range_of(infer_format format, float *lo, float *hi)
{
    for (size_t i = 0; i < sizeof code_range / sizeof code_range[0]; i++)
        if (code_range[i].format == format) {
            *lo = code_range[i].lo;
            *hi = code_range[i].hi;
            return 1;
        }
    return 0;
}

/* Whether q names formats with float conversions, plain ones where there are planes, and no field beside `format`
 * without a scale plane. */
static int quant_ok(const infer_quant *q)
{
    const infer_format_info *data = infer_format_get(q->format);
    if (!data || !data->unpack)
        return 0;
    if (q->scale_format == INFER_FMT_NONE)
        return q->zero_format == INFER_FMT_NONE && !q->zero_value && !q->group_n && !q->group_k;
    const infer_format_info *scale = infer_format_get(q->scale_format), *zero = infer_format_get(q->zero_format);
    if (data->block_elems > 2 || !scale || !scale->unpack || scale->block_elems != 1)
        return 0;
    return q->zero_format == INFER_FMT_NONE || (zero && zero->unpack && zero->block_elems <= 2);
}

static uint64_t groups(uint64_t extent, uint32_t group)
{
    return group && extent ? (extent - 1) / group + 1 : extent != 0;
}

/* Entry i of a packed plane. */
static float plane_get(infer_format format, const void *plane, uint64_t i)
{
    const infer_format_info *f = infer_format_get(format);
    float v[2];
    f->unpack((const uint8_t *)plane + i / f->block_elems * f->block_bytes, v, f->block_elems);
    return v[i % f->block_elems];
}

/* Stores entry i and returns what it reads back as. Of a two-entry byte, the other half is kept. */
static float plane_put(infer_format format, void *plane, uint64_t i, float value)
{
    const infer_format_info *f = infer_format_get(format);
    uint8_t *at = (uint8_t *)plane + i / f->block_elems * f->block_bytes;
    float v[2] = {0};
    if (f->block_elems > 1 && i % 2)
        f->unpack(at, v, 2);
    v[i % f->block_elems] = value;
    f->pack(v, at, f->block_elems);
    f->unpack(at, v, f->block_elems);
    return v[i % f->block_elems];
}

/* Bytes of a plane of n entries, the last byte padded. */
static infer_status plane_bytes(infer_format format, uint64_t n, uint64_t *bytes)
{
    const infer_format_info *f = infer_format_get(format);
    uint64_t blocks = n / f->block_elems + (n % f->block_elems != 0);
    return infer_mul_u64(blocks, f->block_bytes, bytes) ? INFER_OK : INFER_E_TOO_LARGE;
}

infer_status infer_quant_bytes(const infer_quant *q, uint64_t n, uint64_t k, uint64_t bytes[3])
{
    if (!quant_ok(q))
        return INFER_E_INVALID;
    uint64_t row, entries, out[3] = {0};
    INFER_TRY(infer_format_bytes(q->format, k, &row));
    if (!infer_mul_u64(row, n, &out[0]))
        return INFER_E_TOO_LARGE;
    if (q->scale_format != INFER_FMT_NONE) {
        if (!infer_mul_u64(groups(n, q->group_n), groups(k, q->group_k), &entries))
            return INFER_E_TOO_LARGE;
        INFER_TRY(plane_bytes(q->scale_format, entries, &out[1]));
        if (q->zero_format != INFER_FMT_NONE)
            INFER_TRY(plane_bytes(q->zero_format, entries, &out[2]));
    }
    memcpy(bytes, out, sizeof out);
    return INFER_OK;
}

infer_status infer_quant_unpack_row(const infer_quant *q, const infer_quant_planes *p, uint64_t n, uint64_t k,
                                    uint64_t row, float *dst)
{
    uint64_t bytes[3];
    INFER_TRY(infer_quant_bytes(q, n, k, bytes));
    if (row >= n || !p->data || (bytes[1] && !p->scale) || (bytes[2] && !p->zero))
        return INFER_E_INVALID;
    infer_format_get(q->format)->unpack((const uint8_t *)p->data + bytes[0] / n * row, dst, k);
    if (q->scale_format == INFER_FMT_NONE)
        return INFER_OK;
    uint64_t width = q->group_k ? q->group_k : k;
    uint64_t entry = (q->group_n ? row / q->group_n : 0) * groups(k, q->group_k);
    for (uint64_t from = 0; from < k; from += width, entry++) {
        uint64_t end = width < k - from ? from + width : k;
        float scale = plane_get(q->scale_format, p->scale, entry);
        float zero = q->zero_format ? plane_get(q->zero_format, p->zero, entry) : (float)q->zero_value;
        for (uint64_t i = from; i < end; i++)
            dst[i] = scale * (dst[i] - zero);
    }
    return INFER_OK;
}

/* One group: rows [r0, r1), columns [c0, c1) of an [.][k] matrix. */
typedef struct group {
    uint64_t r0, r1, c0, c1, k, entry;
} group;

/* Codes of n elements from element `at` of the data plane on: each times `inverse` plus `zero`, within [lo, hi]; a NaN
 * stays one where the format has it. Whole bytes are packed a piece at a time, which is what makes it quick. */
static void put_codes(infer_format format, const float *src, uint64_t n, float inverse, float zero, float lo, float hi,
                      void *data, uint64_t at)
{
    enum { PIECE = 256 };
    const infer_format_info *f = infer_format_get(format);
    float v[PIECE];
    for (uint64_t i = 0, m; i < n; i += m) {
        m = n - i < PIECE ? n - i : PIECE;
        for (uint64_t k = 0; k < m; k++) {
            float x = src[i + k] * inverse + zero;
            x = x < lo ? lo : x;
            v[k] = x > hi ? hi : x;
        }
        if ((at + i) % f->block_elems == 0 && m % f->block_elems == 0)
            f->pack(v, (uint8_t *)data + (at + i) / f->block_elems * f->block_bytes, m);
        else
            for (uint64_t k = 0; k < m; k++)
                plane_put(format, data, at + i + k, v[k]);
    }
}

/* min and max to those of n elements too. Several at a time, for one waits for the one before. */
static void widen(const float *src, uint64_t n, float *min, float *max)
{
    enum { LANES = 16 };
    float low[LANES], high[LANES];
    uint64_t i = 0;
    for (int k = 0; k < LANES; k++) {
        low[k] = *min;
        high[k] = *max;
    }
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++) {
            float x = src[i + (uint64_t)k];
            low[k] = x < low[k] ? x : low[k];
            high[k] = x > high[k] ? x : high[k];
        }
    for (; i < n; i++) {
        low[0] = src[i] < low[0] ? src[i] : low[0];
        high[0] = src[i] > high[0] ? src[i] : high[0];
    }
    for (int k = 0; k < LANES; k++) {
        *min = low[k] < *min ? low[k] : *min;
        *max = high[k] > *max ? high[k] : *max;
    }
}

static void pack_group(const infer_quant *q, const float *src, const group *g, void *data, void *scale_plane,
                       void *zero_plane)
{
    float lo = 0, hi = 0, min = 0, max = 0, zero = (float)q->zero_value;
    range_of(q->format, &lo, &hi);
    for (uint64_t r = g->r0; r < g->r1; r++)
        widen(src + r * g->k + g->c0, g->c1 - g->c0, &min, &max);
    float scale = zero_plane ? (max - min) / (hi - lo) : fmaxf(max, -min) / fminf(hi - zero, zero - lo);
    scale = plane_put(q->scale_format, scale_plane, g->entry, scale);
    float inverse = scale > 0 ? 1.0f / scale : 0;
    if (zero_plane)
        zero = plane_put(q->zero_format, zero_plane, g->entry, fminf(fmaxf(rintf(lo - min * inverse), lo), hi));
    for (uint64_t r = g->r0; r < g->r1; r++)
        put_codes(q->format, src + r * g->k + g->c0, g->c1 - g->c0, inverse, zero, lo, hi, data, r * g->k + g->c0);
}

infer_status infer_quant_pack(const infer_quant *q, const float *src, uint64_t n, uint64_t k, void *data, void *scale,
                              void *zero)
{
    uint64_t bytes[3];
    float lo, hi;
    INFER_TRY(infer_quant_bytes(q, n, k, bytes));
    const infer_format_info *f = infer_format_get(q->format);
    if (q->scale_format == INFER_FMT_NONE) {
        if (!f->pack)
            return INFER_E_UNSUPPORTED;
        f->pack(src, data, n * k);
        return INFER_OK;
    }
    if (!range_of(q->format, &lo, &hi) || (q->zero_format && f->is_float))
        return INFER_E_UNSUPPORTED;
    if (!q->zero_format && !(lo < (float)q->zero_value && (float)q->zero_value < hi))
        return INFER_E_INVALID;
    if ((bytes[1] && !scale) || (bytes[2] && !zero))
        return INFER_E_INVALID;
    uint64_t height = q->group_n ? q->group_n : n, width = q->group_k ? q->group_k : k, entry = 0;
    for (uint64_t r = 0; r < n; r += height)
        for (uint64_t c = 0; c < k; c += width, entry++) {
            group g = {r, height < n - r ? r + height : n, c, width < k - c ? c + width : k, k, entry};
            pack_group(q, src, &g, data, scale, bytes[2] ? zero : NULL);
        }
    return INFER_OK;
}
