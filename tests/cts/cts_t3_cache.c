/*
 * T3's cache: see cts_t3.h. The reference's pools are brought to what the device wrote after each write, when that lies
 * within a step of the format, so that attention itself is held to the bounds of float. In a layout of the device's own
 * this cannot be done, and the bounds have the format's step besides. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "cts_t1.h"
#include "cts_t3.h"
#include "quant/quant.h"

/* ---- Ops ------------------------------------------------------------------------------------------------- */

void t3_op_begin(t3_op *o, infer_op_id op, const void *attrs, uint32_t size)
{
    memset(o, 0, sizeof(*o));
    if (size)
        memcpy(&o->attrs, attrs, size);
    o->d = (infer_op_desc){.struct_size = sizeof(o->d),
                           .op = op,
                           .rows_from = INFER_ROWS_STATIC,
                           .rows_mul = 1,
                           .tensor_size = sizeof(o->t[0]),
                           .attrs_size = size,
                           .attrs = size ? &o->attrs : NULL,
                           .epilogue_size = sizeof(infer_epilogue)};
    o->d.tensors = o->t;
}

static uint32_t add(t3_op *o, int output)
{
    uint32_t i = o->d.n_in + o->d.n_out;
    if (output)
        o->d.n_out++;
    else
        o->d.n_in++;
    return i;
}

void t3_operand(t3_op *o, int output, infer_format f, uint32_t rank, int64_t s0, int64_t s1, int64_t s2, int64_t s3,
                void *data)
{
    uint32_t i = add(o, output);
    o->t[i] = infer_tensor_make(f, rank, s0, s1, s2, s3);
    o->data[i] = data;
    if (infer_tensor_bytes(&o->t[i], &o->bytes[i]))
        o->bytes[i] = 0;
}

void t3_absent(t3_op *o)
{
    o->t[add(o, 0)].flags = INFER_TENSOR_ABSENT;
}

void t3_pool(t3 *k, t3_op *o, uint32_t plane, int output)
{
    uint32_t i = o->d.n_in + o->d.n_out;
    t3_operand(o, output, plane ? k->kv.v_format : k->kv.k_format, 4, (int64_t)k->kv.n_blocks, k->kv.n_kv_heads,
               k->kv.block_size, plane ? k->kv.v_width : k->kv.k_width, k->host[plane]);
    o->t[i].layout = k->kv.layout;
    o->on[i] = k->pool[plane];
    o->bytes[i] = k->pool_bytes[plane];
}

infer_attrs_kv t3_plane(const t3 *k, uint32_t plane)
{
    infer_attrs_kv a = k->kv;
    if (plane) {
        a.k_format = INFER_FMT_NONE;
        a.k_width = 0;
    } else {
        a.v_format = INFER_FMT_NONE;
        a.v_width = 0;
    }
    return a;
}

/* The reference's view of the op: canonical layouts. */
static infer_status reference(const t3_op *o)
{
    t3_op h = *o;
    h.d.tensors = h.t;
    if (h.d.attrs)
        h.d.attrs = &h.attrs;
    for (uint32_t i = 0; i < h.d.n_in + h.d.n_out; i++)
        h.t[i].layout = INFER_LAYOUT_CANONICAL;
    if (h.d.op == INFER_OP_ATTN_PAGED || h.d.op == INFER_OP_MLA_PAGED)
        h.attrs.attn.kv.layout = INFER_LAYOUT_CANONICAL;
    else if (h.d.attrs)
        h.attrs.kv.layout = INFER_LAYOUT_CANONICAL;
    infer_error e = {0};
    infer_status s = infer_op_check(&h.d, &e);
    return s ? s : infer_op_ref(&h.d, h.data, h.counts);
}

static int ask(t3 *k, t3_op *o)
{
    cts *c = k->c;
    o->answer = (infer_op_answer){.struct_size = sizeof(o->answer)};
    if (!cts_ok(c, c->ops->op_query(c->h, &o->d, sizeof(o->d), 1, &o->answer, sizeof(o->answer)), "op_query"))
        return 0;
    if (!o->answer.level)
        cts_skip(c, "%s: answered NO for %s (%u)", infer_op_get(o->d.op)->name, cts_why_name(o->answer.why),
                 o->answer.which);
    return o->answer.level != INFER_LEVEL_NO;
}

/* One buffer for all that is not a pool: small operands, counts, scratch. */
int t3_run(t3 *k, t3_op *o)
{
    cts *c = k->c;
    uint32_t n = o->d.n_in + o->d.n_out;
    uint64_t align = c->props->buffer_align > 256 ? c->props->buffer_align : 256, at[INFER_OP_MAX_OPERANDS],
             end = align;
    infer_range r[INFER_OP_MAX_OPERANDS] = {{0}};
    uint8_t *image = NULL;
    int ok = 0;
    if (!ask(k, o))
        return 0;
    for (uint32_t i = 0; i < n; i++) {
        at[i] = end;
        if (o->data[i] && !o->on[i])
            end += (o->bytes[i] + 2 * align - 1) / align * align;
    }
    uint64_t counts_at = end, scratch_at = end + align;
    if (o->answer.scratch_align > align)
        scratch_at = (scratch_at + o->answer.scratch_align - 1) / o->answer.scratch_align * o->answer.scratch_align;
    end = scratch_at + o->answer.scratch_bytes + align;
    infer_buffer *b = cts_buf(c, end);
    image = infer_malloc(end);
    NEED(b && image, "buffers");
    memset(image, 0xFF, end);
    for (uint32_t i = 0; i < n; i++) {
        if (!o->data[i])
            continue;
        r[i] = o->on[i] ? (infer_range){o->on[i], 0, o->bytes[i]} : (infer_range){b, at[i], o->bytes[i]};
        if (!o->on[i])
            memcpy(image + at[i], o->data[i], o->bytes[i]);
    }
    memcpy(image + counts_at, o->counts, sizeof(o->counts));
    NEED(cts_write(c, b, 0, image, end), "write");
    infer_op_args args = {.struct_size = sizeof(args), .n_operands = n, .operands = r};
    if (o->d.rows_from != INFER_ROWS_STATIC)
        args.counts = (infer_range){b, counts_at, sizeof(o->counts)};
    if (o->answer.scratch_bytes)
        args.scratch = (infer_range){b, scratch_at, o->answer.scratch_bytes};
    NEED(cts_ok(c, cts_op(c, c->queue, &o->d, &args), infer_op_get(o->d.op)->name) && cts_read(c, b, 0, image, end),
         "run");
    infer_status s = reference(o);
    NEED(!s, "the reference of %s: %s", infer_op_get(o->d.op)->name, infer_status_name(s));
    /* the reference wrote the host side: hand the device's result out beside it, behind the reference's */
    for (uint32_t i = o->d.n_in; i < n; i++)
        if (o->data[i] && !o->on[i])
            memcpy((uint8_t *)o->data[i] + o->bytes[i], image + at[i], o->bytes[i]);
    ok = 1;
out:
    infer_free(image);
    if (b)
        cts_buf_free(c, b);
    return ok;
}

/* ---- The pools ------------------------------------------------------------------------------------------- */

static int kv_ask(t3 *k, infer_kv_answer *a)
{
    cts *c = k->c;
    const t3_shape *s = &k->s;
    infer_error e = {0};
    infer_kv_spec spec = {.struct_size = sizeof(spec),
                          .kind = s->latent                      ? INFER_GROUP_LATENT
                                  : s->mask == INFER_MASK_WINDOW ? INFER_GROUP_WINDOW
                                                                 : INFER_GROUP_FULL,
                          .n_layers = 1,
                          .n_heads = s->kv_heads,
                          .n_planes = k->n_planes,
                          .window = s->mask == INFER_MASK_WINDOW ? s->window : 0,
                          .planes = {{s->k_format, s->dk, !s->latent, 0}, {s->v_format, s->dv, 1, 0}}};
    *a = (infer_kv_answer){.struct_size = sizeof(*a)};
    infer_status st = infer_hal_kv_query(c->dev, &spec, a, &e);
    if (st || !a->level) {
        if (st)
            cts_fail(c, "kv_query: %s", e.text);
        else
            cts_skip(c, "kv_query answers NO for %s (%u)", cts_why_name(a->why), a->which);
        return 0;
    }
    if (!a->block_multiple || !a->block_best || a->block_best % a->block_multiple ||
        (a->block_max && a->block_best > a->block_max))
        cts_fail(c, "kv_query: blocks of a multiple of %u, best %u, at most %u", a->block_multiple, a->block_best,
                 a->block_max);
    return !c->failed;
}

/* The block size of the case: the best, or the least multiple of at least two tokens. */
static uint32_t block_size(const t3_shape *s, const infer_kv_answer *a)
{
    uint32_t b = a->block_multiple;
    if (s->best)
        return a->block_best;
    return b < 2 && (!a->block_max || a->block_max >= 3) ? 3 : b;
}

int t3_begin(cts *c, const t3_shape *s, t3 *k)
{
    infer_kv_answer a;
    memset(k, 0, sizeof(*k));
    k->c = c;
    k->s = *s;
    k->n_planes = s->latent ? 1 : 2;
    k->invariant = 1;
    if (!kv_ask(k, &a))
        return 0;
    uint32_t block = block_size(s, &a), n = 6 + 800 / block;
    n = n > 200 ? 200 : n;
    k->kv = (infer_attrs_kv){.struct_size = sizeof(k->kv),
                             .layout = a.layout,
                             .k_format = s->k_format,
                             .v_format = s->latent ? INFER_FMT_NONE : s->v_format,
                             .n_kv_heads = s->latent ? 1 : s->kv_heads,
                             .k_width = s->dk,
                             .v_width = s->dv,
                             .block_size = block,
                             .n_blocks = n};
    for (uint32_t p = 0; p < k->n_planes; p++) {
        uint64_t row;
        NEED(!infer_format_bytes(p ? s->v_format : s->k_format, p ? s->dv : s->dk, &row), "a width of whole blocks");
        uint64_t canonical = row * block * k->kv.n_kv_heads;
        k->host_bytes[p] = canonical * n;
        k->block_bytes[p] = a.block_bytes[p] * block / a.block_best;
        NEED(a.layout || k->block_bytes[p] == canonical, "kv_query: %llu bytes a block of plane %u, canonical are %llu",
             (unsigned long long)k->block_bytes[p], p, (unsigned long long)canonical);
        k->pool_bytes[p] = k->block_bytes[p] * n;
        k->pool[p] = cts_buf(c, k->pool_bytes[p]);
        k->host[p] = infer_malloc(k->host_bytes[p]);
        NEED(k->pool[p] && k->host[p], "pools");
        memset(k->host[p], 0xFF, k->host_bytes[p]);
        NEED(cts_ok(c, cts_fill(c, c->queue, k->pool[p], 0, k->pool_bytes[p], 0xFF, 1), "cmd_fill"), "fill");
    }
    for (uint32_t i = 0; i < n; i++)
        k->order[i] = (int32_t)i;
    for (uint32_t i = n - 1; i > 0; i--) {
        uint32_t j = (uint32_t)cts_below(c, i + 1);
        int32_t x = k->order[i];
        k->order[i] = k->order[j];
        k->order[j] = x;
    }
    return cts_sync(c);
out:
    return 0;
}

void t3_end(t3 *k)
{
    infer_free(k->host[0]);
    infer_free(k->host[1]);
}

int t3_reserve(t3 *k, t3_seq *q, int32_t len)
{
    int32_t size = (int32_t)k->kv.block_size, have = (q->len + size - 1) / size, want = (len + size - 1) / size;
    if (want > (int32_t)T3_TABLE || k->next_block + want - have > (int32_t)k->kv.n_blocks) {
        cts_fail(k->c, "the case needs more blocks than it has");
        return 0;
    }
    for (int32_t i = have; i < want; i++)
        q->table[i] = k->order[k->next_block++];
    return 1;
}

int32_t t3_slot(const t3 *k, const t3_seq *q, int32_t token)
{
    int32_t size = (int32_t)k->kv.block_size;
    return q->table[token / size] * size + token % size;
}

/* Numbers of about variance 1 in the activations' format, by (seed, row). */
static void numbers(const t3 *k, uint64_t seed, int32_t row, uint32_t n, uint8_t *out)
{
    const infer_format_info *f = infer_format_get(k->s.act);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t h = infer_hash_u64(seed * 0x9E3779B97F4A7C15u + (uint64_t)row * 65536u + i);
        float x = (float)(int32_t)((h & 0xFFFF) + (h >> 16 & 0xFFFF) + (h >> 32 & 0xFFFF)) / 37837.0f - 2.598f;
        f->pack(&x, out + (uint64_t)i * f->block_bytes, 1);
    }
}

static double step_of(infer_format f)
{
    switch (f) {
    case INFER_FMT_F16:
        return 0x1p-10;
    case INFER_FMT_BF16:
        return 0x1p-7;
    case INFER_FMT_F8_E4M3:
        return 0x1p-3;
    case INFER_FMT_F8_E5M2:
        return 0x1p-2;
    case INFER_FMT_Q8_0:
        return 0.04;
    case INFER_FMT_F32:
        return 0;
    default:
        return 0.6;
    }
}

int t3_settle(t3 *k, const char *what)
{
    cts *c = k->c;
    if (k->kv.layout)
        return 1;
    for (uint32_t p = 0; p < k->n_planes; p++) {
        infer_format f = p ? k->kv.v_format : k->kv.k_format;
        const infer_format_info *info = infer_format_get(f);
        uint8_t *got = infer_malloc(k->pool_bytes[p]);
        int exact = f == k->s.act;
        float e[256], g[256];
        NEED(got && cts_read(c, k->pool[p], 0, got, k->pool_bytes[p]), "read");
        for (uint64_t at = 0; at < k->pool_bytes[p] && !c->failed; at += info->block_bytes) {
            if (!memcmp(got + at, k->host[p] + at, info->block_bytes))
                continue;
            info->unpack(got + at, g, info->block_elems);
            info->unpack(k->host[p] + at, e, info->block_elems);
            for (uint32_t i = 0; i < info->block_elems; i++)
                if (exact || !(fabsf(g[i] - e[i]) <= step_of(f) * (fabsf(e[i]) > 1 ? fabsf(e[i]) : 1)))
                    cts_fail(c, "%s: byte %llu of plane %u holds %g, expected %g", what, (unsigned long long)at, p,
                             (double)g[i], (double)e[i]);
        }
        memcpy(k->host[p], got, k->pool_bytes[p]);
        infer_free(got);
        continue;
    out:
        infer_free(got);
        return 0;
    }
    return !c->failed;
}

/* ---- Sequences ------------------------------------------------------------------------------------------- */

/* Latent planes have no writing op of their own: rows go to their slots as the format has them. */
static int write_latent(t3 *k, t3_seq *q, int32_t n, const uint8_t *rows)
{
    cts *c = k->c;
    const infer_format_info *f = infer_format_get(k->kv.k_format), *a = infer_format_get(k->s.act);
    uint64_t bytes = (uint64_t)k->s.dk / f->block_elems * f->block_bytes;
    float *x = infer_realloc_array(NULL, k->s.dk, sizeof(*x));
    if (k->kv.layout) {
        cts_skip(c, "latent blocks in a layout of the device's own");
        infer_free(x);
        return 0;
    }
    NEED(x, "no host memory");
    for (int32_t i = 0; i < n; i++) {
        uint64_t at = (uint64_t)t3_slot(k, q, q->len + i) * bytes;
        a->unpack(rows + (uint64_t)i * k->s.dk * a->block_bytes, x, k->s.dk);
        f->pack(x, k->host[0] + at, k->s.dk);
        NEED(cts_write(c, k->pool[0], at, k->host[0] + at, bytes), "write");
    }
out:
    infer_free(x);
    return !c->failed;
}

int t3_write(t3 *k, t3_seq *q, int32_t n, uint64_t seed, int skip)
{
    cts *c = k->c;
    uint32_t g = k->kv.n_kv_heads, elem = infer_format_get(k->s.act)->block_bytes, extra = skip ? 1 : 0;
    uint64_t kb = (uint64_t)g * k->s.dk * elem, vb = (uint64_t)g * k->s.dv * elem;
    uint8_t *rows = infer_calloc((uint64_t)n + extra, kb + vb);
    int32_t slots[T3_TOKENS + 1] = {-1};
    t3_op o;
    int ok = 0;
    NEED(rows, "no host memory");
    NEED(n + (int32_t)extra <= (int32_t)T3_TOKENS && t3_reserve(k, q, q->len + n), "blocks");
    uint8_t *v = rows + kb * ((uint64_t)n + extra);
    for (int32_t i = 0; i < n; i++) {
        numbers(k, seed, q->len + i, g * k->s.dk, rows + kb * ((uint64_t)i + extra));
        numbers(k, seed + 7777, q->len + i, g * k->s.dv, v + vb * ((uint64_t)i + extra));
        slots[(uint32_t)i + extra] = t3_slot(k, q, q->len + i);
    }
    if (k->s.latent) {
        ok = write_latent(k, q, n, rows + kb * extra);
    } else {
        t3_op_begin(&o, INFER_OP_KV_WRITE, &k->kv, sizeof(k->kv));
        t3_operand(&o, 0, k->s.act, 3, n + extra, g, k->s.dk, 1, rows);
        t3_operand(&o, 0, k->s.act, 3, n + extra, g, k->s.dv, 1, v);
        t3_operand(&o, 0, INFER_FMT_I32, 1, n + extra, 1, 1, 1, slots);
        t3_pool(k, &o, 0, 1);
        t3_pool(k, &o, 1, 1);
        ok = t3_run(k, &o) && t3_settle(k, "kv_write");
    }
    q->len += n;
out:
    infer_free(rows);
    return ok && !c->failed;
}

int t3_copy_block(t3 *k, int32_t from, int32_t to)
{
    cts *c = k->c;
    for (uint32_t p = 0; p < k->n_planes; p++) {
        uint64_t b = k->block_bytes[p], h = k->host_bytes[p] / k->kv.n_blocks;
        infer_copy_region r = {.src_offset = (uint64_t)from * b, .dst_offset = (uint64_t)to * b, .bytes = b, .rows = 1};
        infer_copy_end end = {k->pool[p], NULL};
        if (!cts_ok(c, cts_copy(c, c->queue, end, end, &r, 1), "cmd_copy of a block"))
            return 0;
        memcpy(k->host[p] + (uint64_t)to * h, k->host[p] + (uint64_t)from * h, h);
    }
    return cts_sync(c);
}

int t3_poison(t3 *k, int32_t block)
{
    cts *c = k->c;
    for (uint32_t p = 0; p < k->n_planes; p++) {
        uint64_t b = k->block_bytes[p], h = k->host_bytes[p] / k->kv.n_blocks;
        if (!cts_ok(c, cts_fill(c, c->queue, k->pool[p], (uint64_t)block * b, b, 0xFF, 1), "cmd_fill"))
            return 0;
        memset(k->host[p] + (uint64_t)block * h, 0xFF, h);
    }
    return cts_sync(c);
}

/* ---- Attention ------------------------------------------------------------------------------------------- */

/* |got - e| against the bounds that T1 has for attention (cases_cache.c). */
static int compare_rows(t3 *k, const uint8_t *e, const uint8_t *g, uint64_t n, const char *what)
{
    const infer_format_info *f = infer_format_get(k->s.act);
    int f32 = k->s.act == INFER_FMT_F32, f16 = k->s.act == INFER_FMT_F16;
    int plain = f32 && k->kv.k_format == INFER_FMT_F32 && (k->s.latent || k->kv.v_format == INFER_FMT_F32);
    int bf16 = k->s.act == INFER_FMT_BF16 || k->kv.k_format == INFER_FMT_BF16 || k->kv.v_format == INFER_FMT_BF16;
    double base = plain ? 1e-5 : bf16 ? 4e-3 : 1e-3, ulp = f32 ? 0x1p-23 : f16 ? 0x1p-10 : 0x1p-7;
    double loose = k->kv.layout ? fmax(step_of(k->kv.k_format), k->s.latent ? 0 : step_of(k->kv.v_format)) : 0;
    double sum_e = 0, sum_d = 0;
    for (uint64_t i = 0; i < n; i++) {
        float x, y;
        f->unpack(e + i * f->block_bytes, &x, 1);
        f->unpack(g + i * f->block_bytes, &y, 1);
        sum_e += (double)x * x;
        sum_d += ((double)y - x) * ((double)y - x);
    }
    double rms = n ? sqrt(sum_e / (double)n) : 0;
    for (uint64_t i = 0; i < n; i++) {
        float x, y;
        f->unpack(e + i * f->block_bytes, &x, 1);
        f->unpack(g + i * f->block_bytes, &y, 1);
        if (!(fabs((double)y - x) <= (base + ulp) * fabs(x) + (5 * base + 4 * loose) * rms)) {
            cts_fail(k->c, "%s: row %llu element %llu is %.9g, expected %.9g", what,
                     (unsigned long long)(i / (k->s.heads * k->s.dv)), (unsigned long long)(i % (k->s.heads * k->s.dv)),
                     (double)y, (double)x);
            return 0;
        }
    }
    double nrms = sum_d > 0 ? sqrt(sum_d / sum_e) : 0;
    if (!(nrms <= base + ulp / 2 + loose / 4)) {
        cts_fail(k->c, "%s: normalised RMS difference %.3g, at most %.3g", what, nrms, base + ulp / 2 + loose / 4);
        return 0;
    }
    return 1;
}

static infer_attrs_attn attn_attrs(const t3 *k, uint32_t kind)
{
    return (infer_attrs_attn){.struct_size = sizeof(infer_attrs_attn),
                              .mask = k->s.mask,
                              .kind = kind,
                              .window = k->s.mask == INFER_MASK_WINDOW ? k->s.window : 0,
                              .scale = 1.5f / sqrtf((float)k->s.dk),
                              .soft_cap = k->s.soft_cap,
                              .n_heads = k->s.heads,
                              .kv = k->kv};
}

int t3_attend(t3 *k, const int32_t rows[T3_SEQS], uint64_t seed, uint32_t kind, float *y, const char *what)
{
    enum { SPARE = 3 }; /* rows of the capacity that the count leaves out */
    cts *c = k->c;
    const infer_format_info *f = infer_format_get(k->s.act);
    uint64_t qb = (uint64_t)k->s.heads * k->s.dk * f->block_bytes, yb = (uint64_t)k->s.heads * k->s.dv * f->block_bytes;
    int32_t n = 0, table[T3_SEQS][T3_TABLE], len[T3_SEQS], start[T3_SEQS + 1] = {0};
    uint32_t n_seqs = 0;
    float sinks[64];
    infer_attrs_attn a = attn_attrs(k, kind);
    t3_op o;
    int ok = 0;
    for (uint32_t s = 0; s < T3_SEQS; s++) { /* those without rows do not run */
        const t3_seq *q = &k->seq[s];
        if (!rows[s])
            continue;
        int32_t used = (q->len + (int32_t)k->kv.block_size - 1) / (int32_t)k->kv.block_size;
        for (int32_t b = 0; b < (int32_t)T3_TABLE; b++)
            table[n_seqs][b] = b < used ? q->table[b] : b % 2 ? -1 : INT32_MAX; /* entries that no key needs */
        len[n_seqs] = q->len;
        n += rows[s];
        start[++n_seqs] = n;
    }
    for (uint32_t s = n_seqs; s < T3_SEQS; s++) {
        memset(table[s], 0xFF, sizeof(table[s]));
        len[s] = 0;
        start[s + 1] = n;
    }
    int32_t words = (n + 31) / 32;
    uint8_t *q = infer_calloc((uint64_t)n + SPARE, qb), *out = infer_malloc(2 * ((uint64_t)n + SPARE) * yb);
    uint32_t *tree = infer_calloc((uint64_t)n + SPARE, (uint64_t)words * 4);
    NEED(q && out && tree, "no host memory");
    for (uint32_t s = 0, i = 0; s < T3_SEQS; s++)
        for (int32_t r = 0; r < rows[s]; r++, i++)
            numbers(k, seed + 31u * s, k->seq[s].len - rows[s] + r, k->s.heads * k->s.dk, q + i * qb);
    for (int32_t i = 0; i < (n + SPARE) * words; i++)
        tree[i] = (uint32_t)cts_rand(c);
    memset(out, 0xA5, 2 * ((uint64_t)n + SPARE) * yb);
    for (uint32_t h = 0; h < k->s.heads && h < 64; h++)
        sinks[h] = (float)(int)(h % 5) - 1.5f;
    t3_op_begin(&o, k->s.latent ? INFER_OP_MLA_PAGED : INFER_OP_ATTN_PAGED, &a, sizeof(a));
    t3_operand(&o, 0, k->s.act, 3, n + SPARE, k->s.heads, k->s.dk, 1, q);
    for (uint32_t p = 0; p < k->n_planes; p++)
        t3_pool(k, &o, p, 0);
    t3_operand(&o, 0, INFER_FMT_I32, 2, T3_SEQS, T3_TABLE, 1, 1, table);
    t3_operand(&o, 0, INFER_FMT_I32, 1, T3_SEQS, 1, 1, 1, len);
    t3_operand(&o, 0, INFER_FMT_I32, 1, T3_SEQS + 1, 1, 1, 1, start);
    if (k->s.sinks)
        t3_operand(&o, 0, INFER_FMT_F32, 1, k->s.heads, 1, 1, 1, sinks);
    else if (!k->s.latent)
        t3_absent(&o);
    if (k->s.mask == INFER_MASK_TREE)
        t3_operand(&o, 0, INFER_FMT_U32, 2, n + SPARE, words, 1, 1, tree);
    else
        t3_absent(&o);
    t3_operand(&o, 1, k->s.act, 3, n + SPARE, k->s.heads, k->s.dv, 1, out);
    o.d.rows_from = INFER_COUNT_TOKENS;
    o.counts[INFER_COUNT_TOKENS] = n;
    o.counts[INFER_COUNT_SEQS] = (int32_t)n_seqs;
    if (!t3_run(k, &o))
        goto out;
    k->invariant &= o.answer.row_invariant != 0;
    const uint8_t *got = out + ((uint64_t)n + SPARE) * yb;
    if (!compare_rows(k, out, got, (uint64_t)n * k->s.heads * k->s.dv, what))
        goto out;
    for (uint64_t i = (uint64_t)n * yb; i < ((uint64_t)n + SPARE) * yb; i++)
        NEED(got[i] == 0xA5, "%s: a row past the count was written", what);
    for (uint64_t i = 0; y && i < (uint64_t)n * k->s.heads * k->s.dv; i++)
        f->unpack(got + i * f->block_bytes, y + i, 1);
    ok = 1;
out:
    infer_free(q);
    infer_free(out);
    infer_free(tree);
    return ok;
}
