/*
 * Weights in other codes than the file's, made while it is read (--quantization): which, and how.
 *
 * fp8: codes are E4M3 of the OCP specification "8-bit Floating Point (OFP8)" 1.0, rounded to nearest even, saturating;
 * a row's scale is its largest magnitude / 448, the largest that the format has. int4: of 128 elements along a row,
 * scale = (max - min) / 15 with 0 among them, rounded to f16, zero = round(-min / scale), code = round(w / scale +
 * zero) within 0..15. int8 is Q8_0 of the GGUF specification. Nothing is calibrated: rounding is to nearest.
 * With fp8, products by these weights may take x in E4M3 with a scale a row, where a device is quicker for it.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "model/plan.h"
#include "quant/quant.h"

static const struct {
    const char *name;
    infer_quant quant;
} recodes[] = {
    {"fp8", {INFER_FMT_F8_E4M3, INFER_FMT_F32, INFER_FMT_NONE, 0, 1, 0}},
    {"int8", {.format = INFER_FMT_Q8_0}},
    {"int4", {INFER_FMT_U4, INFER_FMT_F16, INFER_FMT_U4, 0, 1, 128}},
};

int infer_plan_recodes(const infer_plan *p, uint32_t ref)
{
    return p->recode.format && p->file->weights.p[ref].recodes;
}

/* Matrices, rows of each, elements of a row; bytes of the planes of one matrix. */
static infer_status planes_of(const infer_weight_src *w, const infer_quant *q, uint64_t dim[3], uint64_t bytes[3])
{
    dim[0] = w->rank > 2 ? (uint64_t)w->shape[0] : 1;
    dim[1] = (uint64_t)w->shape[w->rank - 2];
    dim[2] = (uint64_t)w->shape[w->rank - 1];
    return infer_quant_bytes(q, dim[1], dim[2], bytes);
}

uint64_t infer_plan_source_bytes(const infer_plan *p, uint32_t ref)
{
    const infer_weight_src *w = &p->file->weights.p[ref];
    uint64_t dim[3], bytes[3];
    if (!infer_plan_recodes(p, ref) || planes_of(w, &p->recode, dim, bytes))
        return w->tensor->bytes;
    return (bytes[0] + bytes[1] + bytes[2]) * dim[0];
}

infer_status infer_plan_recode(infer_plan *p, infer_error *err)
{
    const infer_weight_list *l = &p->file->weights;
    const char *name = p->opt.quantization;
    const infer_format_info *to = NULL;
    uint32_t from[INFER_FMT_COUNT] = {0};
    for (size_t i = 0; name && i < sizeof recodes / sizeof recodes[0]; i++)
        if (!strcmp(recodes[i].name, name)) {
            p->recode = recodes[i].quant;
            to = infer_format_get(p->recode.format);
        }
    if (name && !to)
        return infer_error_set(err, INFER_E_INVALID, "--quantization: \"%s\" is none of fp8, int8, int4", name);
    for (uint32_t i = 0; to && i < l->n; i++) {
        const infer_weight_src *w = &l->p[i];
        uint64_t dim[3], bytes[3];
        if (!w->recodes)
            continue;
        const infer_format_info *f = infer_format_get(w->format);
        if (w->format != INFER_FMT_F32 && w->format != INFER_FMT_F16 && w->format != INFER_FMT_BF16)
            return infer_error_set(
                err, INFER_E_INVALID,
                "--quantization %s: %s is %s already; weights are recoded from f32, f16 and bf16 only", name, w->name,
                f ? f->name : "of an unknown type");
        if (planes_of(w, &p->recode, dim, bytes))
            return infer_error_set(err, INFER_E_INVALID,
                                   "--quantization %s: %s has rows of %lld elements, no multiple of %u", name, w->name,
                                   (long long)dim[2], to->block_elems);
        from[w->format]++;
    }
    for (infer_format f = 0; f < INFER_FMT_COUNT; f++)
        if (from[f])
            infer_plan_reason(p, "%u matrices are recoded %s -> %s at load (--quantization %s)", from[f],
                              infer_format_get(f)->name, to->name, name);
    return INFER_OK;
}

/* ---- Loading ------------------------------------------------------------------------------------------------ */

enum {
    ROWS = 16,        /* at least, so that zero points of the rows of a piece are whole bytes */
    ELEMS = 256 << 10 /* about so many in a piece: their floats stay in a cache */
};

typedef struct maker {
    const infer_quant *q;
    const uint8_t *src;
    infer_unpack_fn unpack;
    uint64_t src_row, row_bytes;      /* bytes of a row of the file, and of codes */
    uint64_t rows, k, piece;          /* of a matrix; piece: rows */
    uint64_t scale_bytes, zero_bytes; /* of a matrix */
    uint64_t scale_entry, groups;     /* bytes of a scale; scales of a row */
    uint8_t *scale, *zero;
    float *floats;
} maker;

static infer_status make_rows(void *user, uint64_t at, uint64_t n, void *dst)
{
    const maker *m = user;
    uint8_t *to = dst;
    for (uint64_t row = at / m->row_bytes, end = (at + n) / m->row_bytes, count; row < end; row += count) {
        const uint64_t matrix = row / m->rows, r = row % m->rows;
        count = end - row < m->rows - r ? end - row : m->rows - r;                 /* of one matrix, */
        count = count < m->piece - r % m->piece ? count : m->piece - r % m->piece; /* from a multiple of ROWS on */
        m->unpack(m->src + row * m->src_row, m->floats, count * m->k);
        uint8_t *scale = m->scale ? m->scale + matrix * m->scale_bytes + r * m->groups * m->scale_entry : NULL;
        uint8_t *zero = m->zero ? m->zero + matrix * m->zero_bytes + r * m->groups / 2 : NULL;
        INFER_TRY(infer_quant_pack(m->q, m->floats, count, m->k, to, scale, zero));
        to += count * m->row_bytes;
    }
    return INFER_OK;
}

infer_status infer_plan_load_recoded(const infer_plan *p, const infer_weight_inst *x, const infer_weight_desc *d,
                                     const infer_range *dst, infer_error *err)
{
    const infer_weight_src *w = &p->file->weights.p[x->ref];
    const infer_quant *q = &p->recode;
    uint64_t dim[3], bytes[3], all[3];
    INFER_TRY(planes_of(w, q, dim, bytes));
    for (int i = 0; i < 3; i++)
        if (!infer_mul_u64(bytes[i], dim[0], &all[i]))
            return infer_error_set(err, INFER_E_TOO_LARGE, "its codes are larger than can be addressed");
    maker m = {.q = q,
               .src = w->tensor->data,
               .unpack = infer_format_get(w->format)->unpack,
               .src_row = w->tensor->bytes / (dim[0] * dim[1]),
               .row_bytes = bytes[0] / dim[1],
               .rows = dim[1],
               .k = dim[2],
               .scale_bytes = bytes[1],
               .zero_bytes = bytes[2],
               .groups = q->group_k ? (dim[2] - 1) / q->group_k + 1 : 1};
    m.piece = (ELEMS / m.k / ROWS + 1) * ROWS;
    m.scale_entry = bytes[1] / dim[1] / m.groups;
    m.floats = infer_realloc_array(NULL, (size_t)(m.piece * m.k), sizeof *m.floats);
    m.scale = all[1] ? infer_malloc((size_t)all[1]) : NULL;
    m.zero = all[2] ? infer_calloc(1, (size_t)all[2]) : NULL; /* entries share bytes */
    const infer_weight_made made = {.make = make_rows,
                                    .user = &m,
                                    .piece = m.piece * m.row_bytes,
                                    .planes = {NULL, m.scale, m.zero},
                                    .bytes = {all[0], all[1], all[2]}};
    infer_status s = !m.floats || (all[1] && !m.scale) || (all[2] && !m.zero)
                         ? infer_error_set(err, INFER_E_NO_MEMORY, "no host memory to recode it")
                         : infer_hal_weight_make(p->devs[x->dev].dev, d, &x->plan, dst, &made, err);
    infer_free(m.floats);
    infer_free(m.scale);
    infer_free(m.zero);
    return s;
}
