/* Attention: how the context is cut (kernels/attn.cu), and whether the kernels for few and many rows serve
 * (attn_few.cu, attn_many.cu). SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "cuda.h"
#include "gemm.h"

/* SPLIT: keys of a part. With one sequence of 1,000 tokens and 8 KV heads that makes 64 blocks; a join costs one read
 * of the results. PART_ROWS, PART_BYTES: more rows fill a device without parts of their own, and have no scratch. */
enum { SPLIT = 128, THREADS = 128, WIDE_THREADS = 256, PART_ROWS = 64 };
#define PART_BYTES ((uint64_t)256 << 20)

static int64_t parts_of(const lp_attn *p)
{
    return cuda_div_up((int64_t)p->table_width * p->block_size, SPLIT);
}

/* Bytes of one row's partial results. */
static uint64_t row_bytes(int64_t heads, int64_t parts, int64_t dv)
{
    return (uint64_t)heads * (uint64_t)parts * (uint64_t)LP_ATTN_PART(dv) * 4;
}

static int64_t rows_in_parts(int64_t cap, uint64_t bytes)
{
    int64_t fit = bytes ? (int64_t)(PART_BYTES / bytes) : 0;
    fit = fit < PART_ROWS ? fit : PART_ROWS;
    return cap < fit ? cap : fit;
}

static uint32_t threads_for(int64_t dv)
{
    return dv > 256 ? WIDE_THREADS : THREADS;
}

static uint64_t shared_for(int gt, int64_t d, int64_t dv)
{
    return 4 * (uint64_t)((int64_t)gt * ((d + 7) / 8 * 8 + SPLIT + dv + 2) + 4 * SPLIT + 8 * (int64_t)threads_for(dv));
}

/* Query heads of a block: all that share a KV head, 8 at most, as many as shared memory has room for; 0: not one. */
static int heads_of_block(const infer_device *dev, int64_t group, int64_t d, int64_t dv)
{
    int gt = 1;
    while (gt < group && gt < 8)
        gt *= 2;
    while (gt && shared_for(gt, d, dv) > dev->tune.shared_per_block)
        gt /= 2;
    return gt;
}

/* ---- Through matrix units: few rows a sequence, and many ---- */

/* SPANS: of a row. FEW_ROWS: more have no scratch, and a row is one block's. Where a row may not depend on its company,
 * spans are as long as the longest sequence that there may be wants them: there are more of them then, of fewer rows.
 * MANY: rows from which a sequence's go through kernels/attn_many.cu, which reads keys once for 128 query vectors, but
 * has one block for them. */
enum {
    SPANS = 16,
    FEW_ROWS = 256,
    FIXED_SPANS = 64,
    FIXED_ROWS = 64,
    FEW_THREADS = 128,
    FEW_EDGE = 4,
    FEW_LEAST = 7,
    MANY = 17,
    MANY_THREADS = 384
};

static int64_t rows_in_spans(const infer_device *dev)
{
    return dev->deterministic ? FIXED_ROWS : FEW_ROWS;
}

static int32_t spans_of(const infer_device *dev)
{
    return dev->deterministic ? FIXED_SPANS : SPANS;
}

static const struct few_kernel {
    uint16_t format, width, n, kernel, rope, many;
} few_kernels[] = {
#define FEW(F, f, width, n)                                                                                            \
    {                                                                                                                  \
        INFER_FMT_##F, width, n, CUDA_K_few_##f##_##width##_##n, CUDA_K_few_rope_##f##_##width##_##n,                  \
            CUDA_K_many_##f##_##width                                                                                  \
    }
#define FEWS(F, f, width) FEW(F, f, width, 1), FEW(F, f, width, 2), FEW(F, f, width, 4)
    FEWS(F16, f16, 64),
    FEWS(F16, f16, 128),
    FEWS(BF16, bf16, 64),
    FEWS(BF16, bf16, 128),
#undef FEWS
#undef FEW
};

/* The kernel that serves an op, by its descriptor; NULL: none. Where a row may not depend on its company, whatever the
 * number of rows. */
static const struct few_kernel *few_of(const infer_device *dev, const infer_op_desc *op, int64_t rows)
{
    const infer_tensor_desc *q = launch_tensor_desc(op, 0), *k = launch_tensor_desc(op, 1),
                            *v = launch_tensor_desc(op, 2), *y = launch_tensor_desc(op, op->n_in);
    if (op->op != INFER_OP_ATTN_PAGED || (op->n_in > 7 && launch_present(op, 7)) || k->format != v->format)
        return NULL;
    int64_t d = q->shape[2], size = k->shape[2], group = q->shape[1] / k->shape[1];
    int64_t seqs = launch_tensor_desc(op, 3)->shape[0], n = group <= FEW_EDGE ? 1 : group <= 2 * FEW_EDGE ? 2 : 4;
    int64_t sets = k->shape[1] * cuda_div_up(group, n * FEW_EDGE);
    rows = dev->deterministic ? FIXED_ROWS : rows; /* no more of them have scratch */
    if (y->shape[2] != d || size < 16 || size & (size - 1) ||
        ((rows <= FEW_ROWS || !dev->attn_many) && rows * sets > LP_FEW_PAIRS) || (dev->deterministic && n > 2) ||
        LP_FEW_SHARED(d, n, seqs) + 1024 > dev->tune.shared_per_block)
        return NULL;
    for (size_t i = 0; i < sizeof few_kernels / sizeof *few_kernels; i++)
        if (few_kernels[i].format == k->format && few_kernels[i].width == d && few_kernels[i].n == n &&
            dev->kernels[few_kernels[i].kernel])
            return &few_kernels[i];
    return NULL;
}

static int lies(const lp_tensor *t, int64_t multiple)
{
    return !(((int64_t)t->off | t->s0 | t->s1 | t->s2) % multiple);
}

/* Whether rotations are kept whose queries the kernel can read. */
static int kept_lies(const launch_call *c)
{
    const infer_queue *queue = c->to;
    lp_ropes r;
    memcpy(&r, queue->ropes.l.params, sizeof r);
    return queue->ropes.kept && lies(&r.of[2].x, 8);
}

/* Blocks: as many as fit at a time (by registers), or one for each span that there can be. */
static uint32_t few_grid(const launch_call *c, const lp_attn *p, const struct few_kernel *k)
{
    uint32_t most = c->dev->tune.sms * (k->width > 64 ? 2 : 3);
    int64_t sets = (int64_t)p->kv_heads * cuda_div_up(p->heads / p->kv_heads, k->n * FEW_EDGE);
    int64_t all = sets * p->rows.cap * p->parts;
    return all < most ? (uint32_t)all : most;
}

/* Whether the kernel for many rows is launched too. */
static int is_many(const launch_call *c, const lp_attn *p, const struct few_kernel *k)
{
    infer_attrs_attn attrs;
    launch_attrs(c->op, &attrs, sizeof attrs);
    return c->dev->attn_many && attrs.kind != INFER_ATTN_DECODE && p->rows.cap >= MANY && c->dev->kernels[k->many] &&
           lies(&p->q, 16) && lies(&p->y, p->y.fmt == INFER_FMT_F32 ? 8 : 4) &&
           (uint32_t)LP_MANY_SHARED(k->width, LP_MANY_KEYS, LP_MANY_STAGES) <= c->dev->tune.shared_per_block;
}

/* Blocks: one a multiprocessor, or one for each tile that there can be. */
static uint32_t many_grid(const launch_call *c, const lp_attn *p)
{
    int64_t vectors = (int64_t)p->rows.cap * (p->heads / p->kv_heads);
    int64_t all = (cuda_div_up(vectors, LP_MANY_ROWS) + p->n_seqs - 1) * p->kv_heads;
    return all < c->dev->tune.sms ? (uint32_t)all : c->dev->tune.sms;
}

/* The kernel that does the kept rotations and writes, too: where these are is in their launch's record. */
static void few_rope_init(cuda_launch *l, launch_call *c, const struct few_kernel *k, const lp_attn *p,
                          const int which[11])
{
    enum { K, POS, FREQ, SLOTS, V = 5, Q = 7 }; /* pointers of rope_writes */
    infer_queue *queue = c->to;
    const cu_deviceptr *at = queue->ropes.l.ptr;
    const int list[15] = {which[0], which[1],  which[2], which[3], which[4], which[5], which[6], which[8],
                          which[9], which[10], -2,       -2,       -2,       -2,       -2};
    lp_ropes r;
    memcpy(&r, queue->ropes.l.params, sizeof r);
    lp_few_rope all = {.attn = *p, .k = r.of[0], .v = r.of[1].x};
    all.attn.q = r.of[2].x;
    cuda_launch_init(l, c, k->rope, list, 15, &all, sizeof all);
    l->ptr[0] = at[Q];
    l->ptr[10] = at[K];
    l->ptr[11] = at[V];
    l->ptr[12] = at[POS];
    l->ptr[13] = at[FREQ];
    l->ptr[14] = at[SLOTS];
    l->shared = (uint32_t)LP_FEW_ROPE_SHARED(k->width, k->n, p->n_seqs, p->rows.cap);
    queue->ropes.kept = 0;
}

/* Whether y goes out as x of the product behind it (cuda_prog.c), where there is a place for it; then that is said. */
static void hand_over(launch_call *c, const struct few_kernel *k, lp_attn *p)
{
    infer_queue *queue = c->to;
    const uint32_t log = queue->joined ? queue->joined[queue->op] : 0;
    if (!log || p->y.off % GEMM_LINE_BYTES)
        return;
    p->panels = gemm_panels(1 << log, p->heads * k->width / GEMM_STEP_WIDTH);
    p->y.fmt = INFER_FMT_BF16;
    p->y.s0 = GEMM_LINE_BYTES;
    p->y.s1 = ((int64_t)k->width * 2) << log;
    queue->handed = 1;
}

static infer_status few_run(launch_call *c, const struct few_kernel *k, lp_attn *p, const int which[11])
{
    const infer_queue *queue = c->to;
    cuda_launch l;
    hand_over(c, k, p);
    int many = is_many(c, p, k);
    p->many = many ? MANY : 0;
    p->parts = p->rows.cap <= rows_in_spans(c->dev) ? spans_of(c->dev) : 1;
    if (c->dev->deterministic)
        for (p->split = FEW_LEAST; (int64_t)p->table_width * p->block_size > (int64_t)FIXED_SPANS << p->split;)
            p->split++;
    p->part_off = c->scratch_off;
    if (queue->ropes.kept) {
        few_rope_init(&l, c, k, p, which);
    } else {
        cuda_launch_init(&l, c, k->kernel, which, 11, p, sizeof *p);
        l.shared = (uint32_t)LP_FEW_SHARED(k->width, k->n, p->n_seqs);
    }
    infer_status s = cuda_emit(c, &l, few_grid(c, p, k), 1, 1, FEW_THREADS, 1, 1);
    if (s || !many)
        return s;
    cuda_launch_init(&l, c, k->many, which, 10, p, sizeof *p);
    l.shared = LP_MANY_SHARED(k->width, LP_MANY_KEYS, LP_MANY_STAGES);
    return cuda_emit(c, &l, many_grid(c, p), 1, 1, MANY_THREADS, 1, 1);
}

static int alike(const infer_tensor_desc *a, const infer_tensor_desc *b)
{
    return a->format == b->format && a->rank == b->rank && a->layout == b->layout &&
           !memcmp(a->shape, b->shape, a->rank * sizeof *a->shape) &&
           !memcmp(a->stride, b->stride, a->rank * sizeof *a->stride);
}

int cuda_makes_ropes(infer_device *dev, const infer_op_desc *rope, const infer_op_desc *write,
                     const infer_op_desc *attn)
{
    const infer_tensor_desc *q = launch_tensor_desc(rope, 0);
    const int64_t rows = q->shape[0], seqs = launch_tensor_desc(attn, 3)->shape[0];
    if (attn->op != INFER_OP_ATTN_PAGED || rows > LP_FEW_ROPE_ROWS || launch_tensor_desc(attn, 0)->shape[0] != rows ||
        attn->rows_from != write->rows_from || attn->rows_mul != write->rows_mul)
        return 0;
    const struct few_kernel *k = few_of(dev, attn, rows);
    return k && dev->kernels[k->rope] &&
           LP_FEW_ROPE_SHARED(k->width, k->n, seqs, rows) + 1024 <= dev->tune.shared_per_block &&
           q->format == INFER_FMT_F32 && launch_tensor_desc(write, 0)->format == INFER_FMT_F32 &&
           launch_tensor_desc(write, 1)->format == INFER_FMT_F32 &&
           launch_tensor_desc(rope, 3)->format == INFER_FMT_F32 && /* nothing is rounded between */
           alike(launch_tensor_desc(rope, 3), launch_tensor_desc(attn, 0)) &&
           alike(launch_tensor_desc(write, 5), launch_tensor_desc(attn, 1)) &&
           alike(launch_tensor_desc(write, 6), launch_tensor_desc(attn, 2));
}

uint32_t cuda_hands_over(infer_device *dev, const infer_op_desc *attn, const infer_op_desc *product, uint64_t room)
{
    const infer_tensor_desc *y = launch_tensor_desc(attn, attn->n_in), *x = launch_tensor_desc(product, 0);
    lp_panels p;
    return product->op == INFER_OP_MATMUL && few_of(dev, attn, y->shape[0]) && y->format == INFER_FMT_F32 &&
                   x->format == INFER_FMT_F32 && launch_is_dense(y) && launch_is_dense(x) && x->rank == 2 &&
                   x->shape[0] == y->shape[0] && x->shape[1] == y->shape[1] * y->shape[2] &&
                   attn->rows_from == product->rows_from && attn->rows_mul == product->rows_mul &&
                   cuda_gemm_panels(dev, product, 1, x->shape[0], room, &p)
               ? (uint32_t)p.log
               : 0;
}

/* ---- The op ---- */

void cuda_check_attn(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    const infer_tensor_desc *q = launch_tensor_desc(op, 0), *k = launch_tensor_desc(op, 1),
                            *y = launch_tensor_desc(op, op->n_in);
    int mla = op->op == INFER_OP_MLA_PAGED;
    for (uint32_t i = 1; i < (mla ? 2u : 3u); i++) {
        infer_format f = launch_tensor_desc(op, i)->format;
        if (!launch_is_cache(f)) {
            launch_no(a, INFER_WHY_FORMAT, i);
            return;
        }
    }
    int64_t d = q->shape[2], dv = y->shape[2];
    if (!dev->kernels[CUDA_K_attention_1] || !dev->kernels[CUDA_K_attention_join])
        launch_no(a, INFER_WHY_OP, 0);
    else if (dv > 8 * (int64_t)threads_for(dv) || !heads_of_block(dev, q->shape[1] / k->shape[1], d, dv))
        launch_no(a, INFER_WHY_SHAPE, 0);
    else if (op->op != INFER_OP_ATTN_DENSE) {
        const infer_tensor_desc *table = launch_tensor_desc(op, mla ? 2 : 3);
        uint64_t bytes = row_bytes(q->shape[1], cuda_div_up(table->shape[1] * k->shape[2], SPLIT), dv);
        a->scratch_bytes = bytes * (uint64_t)rows_in_parts(q->shape[0], bytes);
        /* programs for fewer rows have this scratch, too */
        int64_t rows = q->shape[0] < rows_in_spans(dev) ? q->shape[0] : rows_in_spans(dev);
        if (few_of(dev, op, rows)) {
            bytes = row_bytes(q->shape[1], spans_of(dev), dv) * (uint64_t)rows;
            a->scratch_bytes = a->scratch_bytes > bytes ? a->scratch_bytes : bytes;
            /* spans go by the whole sequence, and by whether there is scratch */
            a->row_invariant = (uint32_t)dev->deterministic;
        }
    }
}

infer_status cuda_run_attn(launch_call *c)
{
    cuda_launch l;
    lp_attn p;
    int list[10];
    launch_fill_attn(c, &p, list);
    int64_t group = p.heads / p.kv_heads, d = p.k.width, dv = p.y.width, all = parts_of(&p);
    const struct few_kernel *few = few_of(c->dev, c->op, p.rows.cap);
    int gt = heads_of_block(c->dev, group, d, dv), which[11];
    memcpy(which, list, sizeof list);
    which[10] = -3;
    int runs = few && lies(&p.k, 16) && lies(&p.v, 16) && lies(&p.q, p.q.fmt == INFER_FMT_F32 ? 8 : 4);
    infer_status s = runs && kept_lies(c) ? INFER_OK : cuda_emit_ropes(c);
    if (s)
        return s;
    if (runs)
        return few_run(c, few, &p, which);
    uint64_t bytes = row_bytes(p.heads, all, dv);
    p.split = SPLIT;
    if (all > 1 && p.rows.cap <= rows_in_parts(p.rows.cap, bytes)) {
        p.parts = (int32_t)all;
        p.part_off = c->scratch_off;
    }
    uint32_t k = gt == 1   ? CUDA_K_attention_1
                 : gt == 2 ? CUDA_K_attention_2
                 : gt == 4 ? CUDA_K_attention_4
                           : CUDA_K_attention_8;
    cuda_launch_init(&l, c, k, which, 11, &p, sizeof p);
    l.shared = (uint32_t)shared_for(gt, d, dv);
    s = cuda_emit(c, &l, p.parts ? (uint32_t)p.parts : 1, (uint32_t)p.kv_heads * cuda_div_up(group, gt),
                  cuda_walked(p.rows.cap), threads_for(dv), 1, 1);
    if (s || !p.parts)
        return s;
    const int join[] = {list[3], list[4], list[5], list[6], list[8], -1, -3};
    cuda_launch_init(&l, c, CUDA_K_attention_join, join, 7, &p, sizeof p);
    return cuda_emit(c, &l, (uint32_t)p.heads, cuda_walked(p.rows.cap), 1, THREADS, 1, 1);
}
