/* Cases: operands and their content, the reference's result, comparison. Which cases an op has is in cases_rows.c and
 * cases_cache.c. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "ops/cases_make.h"
#include "ops/ref.h"

#define PATTERN 0xA5 /* in outputs: a small number in every float format */

/* ---- Content ---------------------------------------------------------------------------------------------- */

uint64_t infer_case_random(case_maker *m)
{
    uint64_t x = m->rng += 0x9E3779B97F4A7C15u; /* splitmix64, as infer_sample_uniform */
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

float infer_case_uniform(case_maker *m)
{
    return (float)(infer_case_random(m) >> 40) * (1.0f / 16777216.0f);
}

float infer_case_normal(case_maker *m)
{
    float sum = -2; /* four uniform numbers have mean 2 and variance 1/3 */
    for (int i = 0; i < 4; i++)
        sum += infer_case_uniform(m);
    return sum * 1.7320508f;
}

int32_t infer_case_int(case_maker *m, int32_t lo, int32_t hi)
{
    return (int32_t)(lo + (int64_t)(infer_case_random(m) % (uint64_t)((int64_t)hi - lo + 1)));
}

void infer_case_shuffle(case_maker *m, int32_t *v, int64_t n)
{
    for (int64_t i = n - 1; i > 0; i--) {
        int32_t j = infer_case_int(m, 0, (int32_t)i), x = v[i];
        v[i] = v[j];
        v[j] = x;
    }
}

/* ---- Operands --------------------------------------------------------------------------------------------- */

/* The next operand's descriptor; inputs come first. */
static uint32_t append(case_maker *m, int output, const infer_tensor_desc *t)
{
    infer_op_case *c = m->c;
    uint32_t i = c->desc.n_in + c->desc.n_out;
    if (m->status == INFER_OK && i >= INFER_OP_MAX_OPERANDS)
        m->status = INFER_E_INTERNAL;
    if (m->status != INFER_OK)
        return 0;
    c->tensors[i] = *t;
    c->same_as[i] = -1;
    if (output)
        c->desc.n_out++;
    else
        c->desc.n_in++;
    return i;
}

static void allocate(case_maker *m, uint32_t i, int fill)
{
    infer_op_case *c = m->c;
    if (m->status != INFER_OK)
        return;
    m->status = infer_tensor_bytes(&c->tensors[i], &c->bytes[i]);
    if (m->status != INFER_OK)
        return;
    c->data[i] = infer_alloc_aligned(c->bytes[i], 64);
    if (c->data[i])
        memset(c->data[i], fill, c->bytes[i]);
    else
        m->status = INFER_E_NO_MEMORY;
}

static uint32_t operand(case_maker *m, int output, infer_format f, uint32_t pad, uint32_t rank, const int64_t s[4])
{
    infer_tensor_desc t = infer_tensor_make(f, rank, s[0], s[1], s[2], s[3]);
    uint64_t step = 0;
    if (pad && rank > 1 && infer_format_bytes(f, (uint64_t)s[rank - 1], &step) == INFER_OK) {
        for (uint32_t i = rank - 1; i-- > 0;) {
            step += pad * infer_format_get(f)->block_bytes;
            t.stride[i] = (int64_t)step;
            step *= (uint64_t)s[i];
        }
    }
    uint32_t i = append(m, output, &t);
    allocate(m, i, output ? PATTERN : 0);
    return i;
}

uint32_t infer_case_in(case_maker *m, infer_format f, uint32_t pad, uint32_t rank, int64_t s0, int64_t s1, int64_t s2,
                       int64_t s3)
{
    const int64_t s[4] = {s0, s1, s2, s3};
    return operand(m, 0, f, pad, rank, s);
}

uint32_t infer_case_out(case_maker *m, infer_format f, uint32_t pad, uint32_t rank, int64_t s0, int64_t s1, int64_t s2,
                        int64_t s3)
{
    const int64_t s[4] = {s0, s1, s2, s3};
    return operand(m, 1, f, pad, rank, s);
}

void infer_case_absent(case_maker *m, int output)
{
    const infer_tensor_desc t = {.flags = INFER_TENSOR_ABSENT};
    append(m, output, &t);
}

void infer_case_out_same(case_maker *m, uint32_t of)
{
    infer_op_case *c = m->c;
    uint32_t i = append(m, 1, &c->tensors[of]);
    if (m->status != INFER_OK)
        return;
    c->data[i] = c->data[of];
    c->bytes[i] = c->bytes[of];
    c->same_as[i] = (int32_t)of;
}

static int64_t n_vectors(const infer_view *v)
{
    return v->rank == 1 ? 1 : v->shape[0] * v->per_row;
}

void infer_case_fill(case_maker *m, uint32_t i, float scale)
{
    if (m->status != INFER_OK)
        return;
    infer_view v = infer_view_of(&m->c->tensors[i], m->c->data[i]);
    float *row = infer_realloc_array(NULL, (size_t)v.width, sizeof *row);
    if (!row) {
        m->status = INFER_E_NO_MEMORY;
        return;
    }
    for (int64_t k = 0; k < n_vectors(&v); k++) {
        for (int64_t j = 0; j < v.width; j++)
            row[j] = infer_case_normal(m) * scale;
        infer_ref_pack(v.format, row, infer_view_at(&v, k), v.width);
    }
    infer_free(row);
}

/* One matrix after the other into the planes of the image. */
static infer_status pack_planes(case_maker *m, uint32_t i, float scale)
{
    const infer_tensor_desc *t = &m->c->tensors[i];
    uint64_t offset[3], each[3], bytes, e = t->rank == 3 ? (uint64_t)t->shape[0] : 1;
    uint64_t n = (uint64_t)t->shape[t->rank - 2], k = (uint64_t)t->shape[t->rank - 1];
    INFER_TRY(infer_tensor_planes(t, offset, each, &bytes));
    float *w = infer_realloc_array(NULL, n * k, sizeof *w);
    infer_status st = w ? INFER_OK : INFER_E_NO_MEMORY;
    for (uint64_t x = 0; st == INFER_OK && x < e; x++) {
        uint8_t *at[3];
        for (uint64_t j = 0; j < n * k; j++)
            w[j] = infer_case_normal(m) * scale;
        for (int j = 0; j < 3; j++)
            at[j] = each[j] ? m->c->data[i] + offset[j] + x * each[j] : NULL;
        st = infer_quant_pack(&t->quant, w, n, k, at[0], at[1], at[2]);
    }
    infer_free(w);
    return st;
}

uint32_t infer_case_weight(case_maker *m, infer_format f, const infer_quant *q, uint32_t rank, int64_t s0, int64_t s1,
                           int64_t s2)
{
    infer_tensor_desc t = infer_tensor_make(f, rank, s0, s1, s2, 1);
    float scale = 1 / sqrtf((float)t.shape[rank - 1]);
    t.flags = INFER_TENSOR_WEIGHT;
    if (q)
        t.quant = *q;
    uint32_t i = append(m, 0, &t);
    allocate(m, i, 0);
    if (q && m->status == INFER_OK)
        m->status = pack_planes(m, i, scale);
    else
        infer_case_fill(m, i, scale);
    return i;
}

int32_t *infer_case_i32(case_maker *m, uint32_t i)
{
    return (int32_t *)(void *)m->c->data[i];
}

uint32_t infer_case_ints(case_maker *m, int64_t n, int32_t lo, int32_t hi)
{
    uint32_t i = infer_case_in(m, INFER_FMT_I32, 0, 1, n, 1, 1, 1);
    for (int64_t j = 0; m->status == INFER_OK && j < n; j++)
        infer_case_i32(m, i)[j] = infer_case_int(m, lo, hi);
    return i;
}

void infer_case_attrs(case_maker *m, const void *p, uint32_t size)
{
    memcpy(&m->c->attrs, p, size);
    m->c->desc.attrs = &m->c->attrs;
    m->c->desc.attrs_size = size;
}

void infer_case_dynamic(case_maker *m, const case_par *p)
{
    if (!(p->flags & CASE_DYN))
        return;
    int32_t cut = 1 + (int32_t)(p->n / 4), n = (int32_t)(p->n > cut ? p->n - cut : p->n);
    m->c->desc.rows_from = INFER_COUNT_TOKENS;
    m->c->counts[INFER_COUNT_TOKENS] = n;
    infer_case_label(m, " counts %d of %" PRId64, n, p->n);
}

void infer_case_tol_set(case_maker *m, double base, const char *why)
{
    infer_op_case *c = m->c;
    double ulp = 0x1p-23;
    if (c->tensors[c->desc.n_in].format == INFER_FMT_F16)
        ulp = 0x1p-10;
    else if (c->tensors[c->desc.n_in].format == INFER_FMT_BF16)
        ulp = 0x1p-7;
    /* numbers below the normal range of F16 have its smallest step, 2^-24, whatever their size */
    c->tol = (infer_case_tol){base + ulp, base + 0x1p-20, base + ulp / 2, why};
    c->tol_i8 = c->tol;
}

void infer_case_label(case_maker *m, const char *fmt, ...)
{
    char *s = m->c->label;
    size_t n = strlen(s);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(s + n, sizeof m->c->label - n, fmt, ap);
    va_end(ap);
}

/* ---- The list --------------------------------------------------------------------------------------------- */

static const case_set *set_of(infer_op_id op)
{
    for (uint32_t i = 0; i < infer_case_n_sets_rows; i++)
        if (infer_case_sets_rows[i].op == op)
            return &infer_case_sets_rows[i];
    for (uint32_t i = 0; i < infer_case_n_sets_cache; i++)
        if (infer_case_sets_cache[i].op == op)
            return &infer_case_sets_cache[i];
    return NULL;
}

uint32_t infer_op_case_count(infer_op_id op)
{
    const case_set *s = set_of(op);
    return s ? s->n_list + (s->more ? s->more() : 0) : 0;
}

case_maker infer_op_case_begin(infer_op_case *out, infer_op_id op, uint64_t rng)
{
    memset(out, 0, sizeof *out);
    out->desc = (infer_op_desc){.struct_size = sizeof out->desc,
                                .op = op,
                                .rows_from = INFER_ROWS_STATIC,
                                .rows_mul = 1,
                                .tensor_size = sizeof out->tensors[0],
                                .tensors = out->tensors,
                                .epilogue_size = sizeof out->epilogue[0],
                                .epilogue = out->epilogue};
    case_maker m = {.c = out, .rng = rng};
    infer_case_label(&m, "%s", infer_op_get(op)->name);
    return m;
}

infer_status infer_op_case_make(infer_op_id op, uint32_t index, uint64_t seed, infer_op_case *out)
{
    const case_set *s = set_of(op);
    case_par p = {0};
    if (index >= infer_op_case_count(op))
        return INFER_E_INVALID;
    if (index < s->n_list)
        p = s->list[index];
    else
        s->par(index - s->n_list, &p);
    case_maker m = infer_op_case_begin(out, op, seed * 0x2545F4914F6CDD1Du + op * 65537u + index);
    s->gen(&m, &p);
    infer_case_dynamic(&m, &p);
    if (m.status != INFER_OK)
        infer_op_case_free(out);
    return m.status;
}

void infer_op_case_free(infer_op_case *c)
{
    for (uint32_t i = 0; i < INFER_OP_MAX_OPERANDS; i++) {
        if (c->data[i] && c->same_as[i] < 0)
            infer_free_aligned(c->data[i]);
        c->data[i] = NULL;
    }
}

/* ---- Results ---------------------------------------------------------------------------------------------- */

int infer_op_case_writes(const infer_op_case *c, uint32_t i)
{
    if (!c->data[i])
        return 0;
    return i >= c->desc.n_in || (infer_op_get(c->desc.op)->writes_in >> i & 1);
}

infer_status infer_op_case_expect(const infer_op_case *c, void **result)
{
    void *data[INFER_OP_MAX_OPERANDS] = {0}, *copy[INFER_OP_MAX_OPERANDS] = {0};
    uint32_t n = c->desc.n_in + c->desc.n_out;
    infer_status st = INFER_OK;
    for (uint32_t i = 0; i < n; i++) {
        data[i] = c->data[i];
        if (!infer_op_case_writes(c, i))
            continue;
        copy[i] = infer_malloc(c->bytes[i]);
        if (!copy[i]) {
            st = INFER_E_NO_MEMORY;
            goto out;
        }
        memcpy(copy[i], c->data[i], c->bytes[i]);
        data[i] = copy[i];
        if (c->same_as[i] >= 0)
            data[c->same_as[i]] = copy[i];
    }
    st = infer_op_ref(&c->desc, data, c->counts);
out:
    for (uint32_t i = 0; i < INFER_OP_MAX_OPERANDS; i++) {
        if (st == INFER_OK)
            result[i] = copy[i];
        else
            infer_free(copy[i]);
    }
    return st;
}

/* A comparison under way. A vector is a run along the last axis; of rank 1, each element. */
typedef struct comparison {
    const infer_op_case *c;
    infer_view init, expect, got;
    uint64_t vec_bytes;
    int64_t n, width;
    float *e, *g;
    uint8_t *rest;             /* the result with every vector that was compared replaced by the expected one */
    const infer_case_tol *tol; /* NULL: integers, equal or wrong */
    double sum_e, sum_d;       /* squares */
    uint64_t count;
    double rms;
    infer_case_diff diff;
} comparison;

static uint8_t *vector(const comparison *x, const infer_view *v, int64_t k)
{
    return v->rank == 1 ? v->p + (uint64_t)k * x->vec_bytes : infer_view_at(v, k);
}

/* The reference left vector k as it was. */
static int untouched(const comparison *x, int64_t k)
{
    return !memcmp(vector(x, &x->expect, k), vector(x, &x->init, k), x->vec_bytes);
}

/* 1: vector k is to be compared as numbers, which are in e and g. */
static int load(comparison *x, int64_t k)
{
    if (untouched(x, k))
        return 0;
    infer_ref_unpack(x->expect.format, vector(x, &x->expect, k), x->e, x->width);
    infer_ref_unpack(x->got.format, vector(x, &x->got, k), x->g, x->width);
    return 1;
}

static void measure(comparison *x)
{
    for (int64_t k = 0; k < x->n; k++) {
        if (!load(x, k))
            continue;
        for (int64_t i = 0; i < x->width; i++) {
            double e = x->e[i], d = x->g[i] - e;
            if (!isfinite(e))
                continue;
            x->sum_e += e * e;
            x->sum_d += d * d;
            x->diff.max_abs = fmax(x->diff.max_abs, fabs(d));
            x->count++;
        }
    }
    x->rms = x->count ? sqrt(x->sum_e / (double)x->count) : 0;
    x->diff.nrms = x->sum_d > 0 ? sqrt(x->sum_d / x->sum_e) : 0;
}

static int close_enough(const comparison *x, double e, double g)
{
    if (isnan(e) || isinf(e))
        return isnan(e) ? isnan(g) : e == g;
    return fabs(g - e) <= x->tol->rel * fabs(e) + x->tol->abs * x->rms;
}

static int judge(comparison *x)
{
    for (int64_t k = 0; k < x->n; k++) {
        const uint8_t *e = vector(x, &x->expect, k);
        if (untouched(x, k)) {
            if (memcmp(vector(x, &x->got, k), e, x->vec_bytes)) {
                snprintf(x->diff.text, sizeof x->diff.text, "vector %" PRId64 " was to stay as it was", k);
                return 0;
            }
        } else if (!x->tol && memcmp(vector(x, &x->got, k), e, x->vec_bytes)) {
            snprintf(x->diff.text, sizeof x->diff.text, "vector %" PRId64 " differs", k);
            return 0;
        } else if (x->tol && load(x, k)) {
            for (int64_t i = 0; i < x->width; i++)
                if (!close_enough(x, x->e[i], x->g[i])) {
                    snprintf(x->diff.text, sizeof x->diff.text,
                             "vector %" PRId64 " element %" PRId64 " is %.9g, expected %.9g", k, i, (double)x->g[i],
                             (double)x->e[i]);
                    return 0;
                }
        }
        memcpy(x->rest + (e - x->expect.p), e, x->vec_bytes);
    }
    if (x->tol && x->diff.nrms > x->tol->nrms) {
        snprintf(x->diff.text, sizeof x->diff.text, "normalised RMS difference %.3g, at most %.3g", x->diff.nrms,
                 x->tol->nrms);
        return 0;
    }
    return 1;
}

int infer_op_case_compare(const infer_op_case *c, uint32_t i, const void *expect, const void *got,
                          const infer_case_tol *tol, infer_case_diff *diff)
{
    const infer_tensor_desc *t = &c->tensors[i];
    const infer_format_info *f = infer_format_get(t->format);
    comparison x = {.c = c,
                    .init = infer_view_of(t, c->data[i]),
                    .expect = infer_view_of(t, (void *)(uintptr_t)expect),
                    .got = infer_view_of(t, (void *)(uintptr_t)got),
                    .tol = f->is_float || f->block_elems > 1 ? tol : NULL};
    uint64_t block = 0;
    x.width = t->rank == 1 ? (int64_t)f->block_elems : x.init.width;
    x.n = t->rank == 1 ? x.init.width / x.width : n_vectors(&x.init);
    (void)infer_format_bytes(t->format, (uint64_t)x.width, &block); /* the descriptor passed its check */
    x.vec_bytes = block;
    x.e = infer_realloc_array(NULL, (size_t)x.width, sizeof *x.e);
    x.g = infer_realloc_array(NULL, (size_t)x.width, sizeof *x.g);
    x.rest = infer_malloc(c->bytes[i]);
    int ok = 0;
    if (!x.e || !x.g || !x.rest) {
        snprintf(x.diff.text, sizeof x.diff.text, "no host memory to compare");
    } else {
        memcpy(x.rest, got, c->bytes[i]);
        if (x.tol)
            measure(&x);
        ok = judge(&x);
        if (ok && memcmp(x.rest, expect, c->bytes[i])) {
            snprintf(x.diff.text, sizeof x.diff.text, "bytes between the rows were written");
            ok = 0;
        }
    }
    infer_free(x.e);
    infer_free(x.g);
    infer_free(x.rest);
    if (diff)
        *diff = x.diff;
    return ok;
}
