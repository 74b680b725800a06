/*
 * T7, speed: products for each native weight format at 1, 8, 64, 512 and 8192 rows, attention of one row and of
 * prompts, copies. Reports time, rates and the share of the read rate that the device declares (or, where it declares
 * none, that copies within it showed). Nothing fails here; what cannot be measured is skipped. Sizes grow until a run
 * takes some milliseconds, so that slow devices are done soon. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "cts.h"
#include "ops/ops.h"
#include "quant/quant.h"

#define ENOUGH_NS 4000000u  /* a measurement of this length will do */
#define LONGEST   60000000u /* sizes do not grow where a run took this long */

typedef struct t7 {
    infer_format format;
    uint32_t rows;
    uint32_t tokens, seqs, heads, kv_heads;
    int full;         /* the product with fewer rows was as large as they get */
    double read_rate; /* bytes a second: declared, or 0 */
    double measured;  /* by copies within the device, 0: not yet */
} t7;

/* Text of a result, which is no failure. */
static void say(cts *c, const char *fmt, ...) INFER_PRINTF(2, 3);
static void say(cts *c, const char *fmt, ...)
{
    va_list ap;
    if (c->failed)
        return;
    va_start(ap, fmt);
    vsnprintf(c->detail, sizeof(c->detail), fmt, ap);
    va_end(ap);
}

static void share(const t7 *t, double bytes_per_s, char *text, size_t size)
{
    double of = t->read_rate > 0 ? t->read_rate : t->measured;
    text[0] = 0;
    if (of > 0)
        snprintf(text, size, ", %.0f %% of the %s read rate", 100 * bytes_per_s / of,
                 t->read_rate > 0 ? "declared" : "measured");
}

/* Nanoseconds of n calls of f in a row; 0: it failed. */
static double time_run(cts *c, int (*f)(cts *c, void *arg), void *arg, uint32_t n)
{
    uint64_t begun = infer_clock_ns();
    for (uint32_t i = 0; i < n; i++)
        if (!f(c, arg))
            return 0;
    return cts_sync(c) ? (double)(infer_clock_ns() - begun) : 0;
}

/* Nanoseconds of one call of f: the best of three runs of enough calls; 0: it failed. */
static double time_of(cts *c, int (*f)(cts *c, void *arg), void *arg)
{
    uint32_t n = 1;
    double ns = time_run(c, f, arg, 1), best = 0; /* the first one is not measured */
    while (ns > 0 && (ns = time_run(c, f, arg, n)) > 0 && ns < ENOUGH_NS && n < 4096)
        n *= 2;
    for (int i = 0; i < 3 && ns > 0; i++) {
        best = !best || ns < best ? ns : best;
        ns = i < 2 ? time_run(c, f, arg, n) : ns;
    }
    return ns > 0 ? best / n : 0;
}

/* ---- Copies ---------------------------------------------------------------------------------------------- */

typedef struct copy_run {
    infer_copy_end dst, src;
    uint64_t bytes;
} copy_run;

static int copy_once(cts *c, void *arg)
{
    const copy_run *r = arg;
    infer_copy_region g = {.bytes = r->bytes, .rows = 1};
    return cts_ok(c, cts_copy(c, c->queue, r->dst, r->src, &g, 1), "cmd_copy");
}

static void copy_case(cts *c, int from_host, int to_host)
{
    t7 *t = c->arg;
    uint64_t bytes = c->heap->size / 8 < (32u << 20) ? c->heap->size / 8 : 32u << 20;
    uint8_t *host = infer_calloc(1, bytes);
    copy_run r = {.bytes = bytes};
    char text[96];
    if (from_host)
        r.src.host = host;
    else
        r.src.buffer = cts_buf(c, bytes);
    if (to_host)
        r.dst.host = host;
    else
        r.dst.buffer = cts_buf(c, bytes);
    double ns = host && (from_host || r.src.buffer) && (to_host || r.dst.buffer) ? time_of(c, copy_once, &r) : 0;
    double rate = ns > 0 ? (double)bytes * 1e9 / ns : 0;
    if (!from_host && !to_host) {
        rate *= 2; /* read and written */
        t->measured = rate;
    }
    share(t, rate, text, sizeof(text));
    say(c, "%.1f MB in %.0f us, %.2f GB/s%s%s", (double)bytes / 1e6, ns / 1e3, rate / 1e9,
        from_host || to_host ? "" : " read and written", from_host || to_host ? "" : text);
    cts_sync(c);
    infer_free(host);
}

static void copy_device(cts *c)
{
    copy_case(c, 0, 0);
}

static void copy_upload(cts *c)
{
    copy_case(c, 1, 0);
}

static void copy_download(cts *c)
{
    copy_case(c, 0, 1);
}

/* ---- Ops ------------------------------------------------------------------------------------------------- */

typedef struct op_run {
    infer_op_desc d;
    infer_tensor_desc t[INFER_OP_MAX_OPERANDS];
    infer_range r[INFER_OP_MAX_OPERANDS];
    infer_attrs_attn attn;
    infer_op_args args;
    infer_op_answer answer;
} op_run;

static void op_begin(op_run *o, infer_op_id op)
{
    memset(o, 0, sizeof(*o));
    o->d = (infer_op_desc){.struct_size = sizeof(o->d),
                           .op = op,
                           .rows_from = INFER_ROWS_STATIC,
                           .rows_mul = 1,
                           .tensor_size = sizeof(o->t[0]),
                           .epilogue_size = sizeof(infer_epilogue)};
    o->d.tensors = o->t;
}

/* An operand in a buffer of its own. data NULL: left as it is. */
static int op_operand(cts *c, op_run *o, int output, infer_tensor_desc t, uint64_t bytes, const void *data)
{
    uint32_t i = o->d.n_in + o->d.n_out;
    infer_buffer *b = cts_buf(c, bytes);
    o->t[i] = t;
    o->r[i] = (infer_range){b, 0, bytes};
    if (output)
        o->d.n_out++;
    else
        o->d.n_in++;
    return b && (!data || cts_write(c, b, 0, data, bytes));
}

/* 1: the device takes it, with scratch. */
static int op_ready(cts *c, op_run *o)
{
    o->answer = (infer_op_answer){.struct_size = sizeof(o->answer)};
    if (!cts_ok(c, c->ops->op_query(c->h, &o->d, sizeof(o->d), 1, &o->answer, sizeof(o->answer)), "op_query"))
        return 0;
    if (!o->answer.level) {
        cts_skip(c, "answered NO");
        return 0;
    }
    o->args = (infer_op_args){.struct_size = sizeof(o->args), .n_operands = o->d.n_in + o->d.n_out, .operands = o->r};
    if (o->answer.scratch_bytes) {
        infer_buffer *b = cts_buf(c, o->answer.scratch_bytes);
        o->args.scratch = (infer_range){b, 0, o->answer.scratch_bytes};
        return b != NULL;
    }
    return 1;
}

static int op_once(cts *c, void *arg)
{
    op_run *o = arg;
    return cts_ok(c, cts_op(c, c->queue, &o->d, &o->args), "cmd_op");
}

static void free_bufs(cts *c)
{
    cts_sync(c);
    while (c->n_bufs)
        cts_buf_free(c, c->bufs[c->n_bufs - 1]);
}

/* Rows of normal-like numbers in a format: one row, again and again. NULL: no host memory. */
static uint8_t *rows_of(cts *c, infer_format format, uint64_t rows, uint64_t width, uint64_t *bytes)
{
    const infer_format_info *f = infer_format_get(format);
    uint64_t row = width / f->block_elems * f->block_bytes;
    uint8_t *p = infer_malloc(rows * row);
    float *x = infer_realloc_array(NULL, width, sizeof(*x));
    for (uint64_t i = 0; x && i < width; i++)
        x[i] = ((float)(int32_t)(cts_rand(c) & 0xFFFF) / 32768.0f - 1) / sqrtf((float)width);
    for (uint64_t i = 0; p && x && i < rows; i++) {
        if (i == 0)
            f->pack(x, p, width);
        else
            memcpy(p + i * row, p, row);
    }
    *bytes = rows * row;
    infer_free(x);
    return p;
}

/* One product of k x k; ns of it, 0: skipped or failed. */
static double product(cts *c, const t7 *t, uint64_t k, uint64_t *weight_bytes)
{
    infer_weight_desc d = {.struct_size = sizeof(d),
                           .quant.format = t->format,
                           .rank = 2,
                           .use = INFER_OP_MATMUL,
                           .shape = {(int64_t)k, (int64_t)k, 1, 1}};
    infer_weight_plan p = {.struct_size = sizeof(p)};
    infer_error e = {0};
    infer_hal_buf w = {0};
    op_run o;
    double ns = 0;
    uint64_t xb, src;
    uint8_t *x = rows_of(c, INFER_FMT_F32, t->rows, k, &xb), *m = rows_of(c, t->format, k, k, &src);
    infer_tensor_desc wt = infer_tensor_make(t->format, 2, (int64_t)k, (int64_t)k, 1, 1);
    NEED(x && m, "no host memory");
    NEED(!infer_hal_weight_plan(c->dev, &d, &p, &e), "%s", e.text);
    NEED(!infer_hal_buf_alloc(c->dev, p.packed_bytes, INFER_LEDGER_WORKSPACE, &w, &e), "%s", e.text);
    infer_range dst = {w.h, 0, p.packed_bytes};
    const void *planes[3] = {m, NULL, NULL};
    const uint64_t bytes[3] = {src, 0, 0};
    NEED(!infer_hal_weight_load(c->dev, &d, &p, &dst, planes, bytes, &e), "%s", e.text);
    wt.flags = INFER_TENSOR_WEIGHT;
    wt.format = p.format;
    wt.layout = p.layout;
    op_begin(&o, INFER_OP_MATMUL);
    NEED(op_operand(c, &o, 0, infer_tensor_make(INFER_FMT_F32, 2, t->rows, (int64_t)k, 1, 1), xb, x), "x");
    o.t[1] = wt;
    o.r[1] = dst;
    o.d.n_in++;
    NEED(op_operand(c, &o, 1, infer_tensor_make(INFER_FMT_F32, 2, t->rows, (int64_t)k, 1, 1), xb, NULL), "y");
    if (op_ready(c, &o))
        ns = time_of(c, op_once, &o);
    *weight_bytes = p.packed_bytes;
out:
    free_bufs(c);
    infer_free(x);
    infer_free(m);
    if (!c->run->dead[0])
        infer_hal_buf_free(&w);
    return ns;
}

static void matmul_case(cts *c)
{
    t7 *t = c->arg;
    char text[96];
    double ns = 0;
    uint64_t k = 256, bytes = 0;
    if (t->rows > 512) { /* a slow device would be at it for minutes */
        k = 4096;
        if (!t->full) {
            cts_skip(c, "products of 512 rows and K 4096 take too long");
            return;
        }
    }
    for (;; k *= 2) {
        ns = product(c, t, k, &bytes);
        uint64_t next = bytes * 4 + 8 * k * t->rows * 4;
        if (ns <= 0 || ns > LONGEST / 16 || k >= 4096 || next > c->heap->size / 4)
            break;
    }
    t->full = ns > 0 && k >= 4096;
    if (ns <= 0)
        return;
    double read = (double)bytes * 1e9 / ns, flops = 2.0 * (double)k * (double)k * t->rows / ns;
    share(t, read, text, sizeof(text));
    say(c, "K and N %llu: %.1f us, weights at %.2f GB/s%s, %.1f GFLOP/s", (unsigned long long)k, ns / 1e3, read / 1e9,
        text, flops);
}

/* Attention over an F16 cache, heads of 128: the last `rows` of each sequence's tokens. */
typedef struct attn_shape {
    uint32_t heads, kv_heads, seqs, tokens, rows;
} attn_shape;

/* Numbers from -1 to 1 in F16, each its own. */
static void fill_f16(cts *c, uint16_t *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        p[i] = infer_f32_to_f16((float)(int32_t)(cts_rand(c) & 0xFFFF) / 32768.0f - 1);
}

/* ns of one call, 0: skipped or failed. *bytes: of keys and values. */
static double attention(cts *c, const attn_shape *s, uint64_t *bytes)
{
    enum { D = 128 };
    infer_error e = {0};
    infer_kv_spec spec = {.struct_size = sizeof(spec),
                          .kind = INFER_GROUP_FULL,
                          .n_layers = 1,
                          .n_heads = s->kv_heads,
                          .n_planes = 2,
                          .planes = {{INFER_FMT_F16, D, 1, 0}, {INFER_FMT_F16, D, 1, 0}}};
    infer_kv_answer a = {.struct_size = sizeof(a)};
    int32_t *table = NULL, *len = infer_calloc(s->seqs, 4), *start = infer_calloc(s->seqs + 1, 4);
    const uint32_t rows = s->seqs * s->rows;
    op_run o;
    double ns = 0;
    uint64_t qb;
    uint8_t *q = rows_of(c, INFER_FMT_F32, (uint64_t)rows * s->heads, D, &qb);
    uint16_t *pool = NULL;
    NEED(q && len && start, "no host memory");
    if (infer_hal_kv_query(c->dev, &spec, &a, &e) || !a.level) {
        cts_skip(c, "kv_query answers NO");
        goto out;
    }
    const uint32_t each = (s->tokens + a.block_best - 1) / a.block_best, n = each * s->seqs;
    const uint64_t plane = a.block_bytes[0] * n;
    table = infer_realloc_array(NULL, n, sizeof(*table));
    pool = infer_malloc(plane);
    NEED(table && pool, "no host memory");
    fill_f16(c, pool, plane / 2);
    for (uint32_t i = 0; i < n; i++)
        table[i] = (int32_t)((i * 7919ull) % n);
    for (uint32_t i = 0; i < s->seqs; i++) {
        len[i] = (int32_t)s->tokens;
        start[i + 1] = (int32_t)(s->rows * (i + 1));
    }
    op_begin(&o, INFER_OP_ATTN_PAGED);
    infer_tensor_desc pt = infer_tensor_make(INFER_FMT_F16, 4, n, s->kv_heads, a.block_best, D);
    pt.layout = a.layout;
    const infer_tensor_desc qt = infer_tensor_make(INFER_FMT_F32, 3, rows, s->heads, D, 1);
    NEED(op_operand(c, &o, 0, qt, qb, q) && op_operand(c, &o, 0, pt, plane, pool) &&
             op_operand(c, &o, 0, pt, plane, pool) &&
             op_operand(c, &o, 0, infer_tensor_make(INFER_FMT_I32, 2, s->seqs, each, 1, 1), n * 4ull, table) &&
             op_operand(c, &o, 0, infer_tensor_make(INFER_FMT_I32, 1, s->seqs, 1, 1, 1), s->seqs * 4ull, len) &&
             op_operand(c, &o, 0, infer_tensor_make(INFER_FMT_I32, 1, s->seqs + 1, 1, 1, 1), s->seqs * 4ull + 4,
                        start) &&
             op_operand(c, &o, 1, qt, qb, NULL),
         "operands");
    o.attn = (infer_attrs_attn){.struct_size = sizeof(o.attn),
                                .kind = s->rows > 1 ? INFER_ATTN_PREFILL : INFER_ATTN_DECODE,
                                .mask = INFER_MASK_CAUSAL,
                                .scale = 0.088f,
                                .n_heads = s->heads,
                                .kv = {.struct_size = sizeof(o.attn.kv),
                                       .layout = a.layout,
                                       .k_format = INFER_FMT_F16,
                                       .v_format = INFER_FMT_F16,
                                       .n_kv_heads = s->kv_heads,
                                       .k_width = D,
                                       .v_width = D,
                                       .block_size = a.block_best,
                                       .n_blocks = n}};
    o.d.attrs = &o.attn;
    o.d.attrs_size = sizeof(o.attn);
    ns = op_ready(c, &o) ? time_of(c, op_once, &o) : 0;
    *bytes = 2 * plane;
out:
    free_bufs(c);
    infer_free(q);
    infer_free(len);
    infer_free(start);
    infer_free(table);
    infer_free(pool);
    return ns;
}

static int cache_fits(const cts *c, const attn_shape *s)
{
    return 2ull * s->seqs * s->tokens * s->kv_heads * 128 * 2 < c->heap->size / 4;
}

/* Decoding: one row a sequence. Sequences grow, then their tokens, to what was asked. */
static void decode_case(cts *c)
{
    const t7 *t = c->arg;
    attn_shape s = {.heads = t->heads, .kv_heads = t->kv_heads, .seqs = 1, .tokens = t->tokens, .rows = 1};
    char text[96];
    uint64_t bytes = 0;
    double ns = 0;
    if (t->seqs > 1)
        s.tokens = 128;
    for (;;) {
        ns = attention(c, &s, &bytes);
        attn_shape next = s;
        if (s.seqs < t->seqs)
            next.seqs *= 4;
        else
            next.tokens *= 2;
        if (ns <= 0 || ns > LONGEST / 16 || next.tokens > t->tokens || !cache_fits(c, &next))
            break;
        s = next;
    }
    if (ns <= 0)
        return;
    double rate = (double)bytes * 1e9 / ns;
    share(t, rate, text, sizeof(text));
    say(c, "%u heads over %u of 128, %u times %u tokens: %.1f us, cache at %.2f GB/s%s", s.heads, s.kv_heads, s.seqs,
        s.tokens, ns / 1e3, rate / 1e9, text);
}

/* A prompt, all rows; the causal half of the products is counted. */
static void prompt_case(cts *c)
{
    const t7 *t = c->arg;
    attn_shape s = {.heads = t->heads, .kv_heads = t->kv_heads, .seqs = 1, .tokens = 32, .rows = 32};
    uint64_t bytes = 0;
    double ns = 0;
    for (;;) {
        ns = attention(c, &s, &bytes);
        if (ns <= 0 || ns > LONGEST / 16 || s.tokens >= t->tokens)
            break;
        s.tokens = s.rows = 2 * s.tokens;
    }
    if (ns > 0)
        say(c, "%u heads over %u of 128, %u tokens: %.1f us, %.1f GFLOP/s", s.heads, s.kv_heads, s.tokens, ns / 1e3,
            2.0 * 128 * s.heads * (double)s.tokens * s.tokens / ns);
}

/* Nothing fails: what could not be measured is skipped with its reason. */
static void unfailing(cts *c, cts_fn fn)
{
    fn(c);
    if (!c->failed)
        return;
    c->failed = 0;
    c->skipped = 1;
}

#define UNFAILING(name)                                                                                                \
    static void run_##name(cts *c)                                                                                     \
    {                                                                                                                  \
        unfailing(c, name);                                                                                            \
    }
UNFAILING(copy_device)
UNFAILING(copy_upload)
UNFAILING(copy_download)
UNFAILING(matmul_case)
UNFAILING(decode_case)
UNFAILING(prompt_case)

void cts_t7(cts_run *r)
{
    static const uint32_t rows[] = {1, 8, 64, 512, 8192}, tokens[] = {1024, 8192};
    t7 t = {.format = INFER_FMT_F16};
    char name[64];
    if (!r->dev)
        return;
    const infer_device_props *p = infer_hal_dev_props(r->dev);
    t.read_rate = isfinite(p->read_bytes_per_s) && p->read_bytes_per_s > 0 ? p->read_bytes_per_s : 0;
    cts_case_run(r, 7, "t7.copy.device", run_copy_device, 1, &t);
    cts_case_run(r, 7, "t7.copy.upload", run_copy_upload, 1, &t);
    cts_case_run(r, 7, "t7.copy.download", run_copy_download, 1, &t);
    t.heads = 8, t.kv_heads = 2, t.seqs = 1;
    for (size_t i = 0; i < 2; i++) {
        t.tokens = tokens[i];
        snprintf(name, sizeof(name), "t7.attn.%u", t.tokens);
        cts_case_run(r, 7, name, run_decode_case, 1, &t);
    }
    t.heads = 32, t.kv_heads = 8, t.seqs = 64; /* those of a model of 8 billion */
    for (size_t i = 0; i < 2; i++) {
        t.tokens = tokens[i];
        snprintf(name, sizeof(name), "t7.attn.64x%u", t.tokens);
        cts_case_run(r, 7, name, run_decode_case, 1, &t);
    }
    t.tokens = 16384;
    cts_case_run(r, 7, "t7.attn.prompt.16384", run_prompt_case, 1, &t);
    for (t.format = 1; t.format < INFER_FMT_COUNT; t.format++) {
        const infer_format_info *f = infer_format_get(t.format);
        if (!f || !f->pack || t.format == INFER_FMT_F64 || !(f->is_float || f->block_elems >= 32) ||
            !(p->formats >> t.format & 1))
            continue;
        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
            t.rows = rows[i];
            snprintf(name, sizeof(name), "t7.matmul.%s.%u", f->name, t.rows);
            cts_case_run(r, 7, name, run_matmul_case, 1, &t);
        }
    }
}
