/* Which ops there are, launches, and what the shared ops ask of a backend. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "cuda.h"

enum { EIGHT = 8, SIXTEEN = 16, WAVE = 32, THREADS = 128 };

#define OP(ID, name, rows_of)     [INFER_OP_##ID] = {cuda_check_##name, cuda_run_##name, rows_of},
#define SHARED(ID, name, rows_of) [INFER_OP_##ID] = {launch_check_##name, launch_run_##name, rows_of},
#define ROPE(ID, name, rows_of)   [INFER_OP_##ID] = {launch_check_##name, cuda_run_##name, rows_of},
#define OPS(X)                                                                                                         \
    X(MATMUL, matmul, 0)                                                                                               \
    X(MOE_ROUTE, route, 0)                                                                                             \
    X(MOE_MATMUL, matmul, 0)                                                                                           \
    X(GATED_MLP, gated_mlp, 0)                                                                                         \
    X(QKV, qkv, 0)                                                                                                     \
    X(ATTN_PAGED, attn, 0)                                                                                             \
    X(MLA_PAGED, attn, 0)                                                                                              \
    X(ATTN_DENSE, attn, 0)                                                                                             \
    X(SAMPLE, sample, 0)                                                                                               \
    X(LORA_SHRINK, matmul, 0)                                                                                          \
    X(LORA_EXPAND_ADD, matmul, 0)
static const launch_op table[INFER_OP_COUNT] = {LAUNCH_OPS(SHARED) LAUNCH_ROPES(ROPE) OPS(OP)};

infer_status cuda_op_query(infer_device *dev, const infer_op_desc *ops, uint32_t op_size, uint32_t n,
                           infer_op_answer *out, uint32_t answer_size)
{
    launch_query(dev, table, CUDA_BIND_ALIGN, ops, op_size, n, out, answer_size);
    return INFER_OK;
}

infer_status cuda_cmd_op(infer_queue *queue, const infer_op_desc *op, const infer_op_args *args)
{
    infer_status s = cuda_queue_enter(queue);
    s = s ? s : launch_op_run(queue->dev, table, op, args, queue);
    queue->op++;
    return s;
}

/* ---- Launches -------------------------------------------------------------------------------------------------- */

uint32_t cuda_div_up(int64_t a, int64_t b)
{
    return (uint32_t)((a + b - 1) / b);
}

uint32_t cuda_walked(int64_t n)
{
    return (uint32_t)(n < CUDA_MAX_YZ ? n : CUDA_MAX_YZ);
}

void cuda_launch_init(cuda_launch *l, const launch_call *c, uint32_t k, const int *which, uint32_t n,
                      const void *params, uint32_t bytes)
{
    void *mem[CUDA_MAX_PTR];
    *l = (cuda_launch){.kernel = k, .n_ptr = n, .params_bytes = bytes};
    launch_operands(c, which, n, mem);
    for (uint32_t i = 0; i < n; i++)
        l->ptr[i] = (cu_deviceptr)(uintptr_t)mem[i];
    memcpy(l->params, params, bytes);
}

infer_status cuda_emit(launch_call *c, cuda_launch *l, uint32_t g0, uint32_t g1, uint32_t g2, uint32_t b0, uint32_t b1,
                       uint32_t b2)
{
    const infer_queue *queue = c->to;
    void *args[CUDA_MAX_PTR + 1];
    uint32_t n = 0;
    cu_function fn = c->dev->kernels[l->kernel];
    if (!fn)
        return cuda_fail(c->dev->host, INFER_E_UNSUPPORTED, "cuda: %s has no kernel number %u", c->dev->name,
                         l->kernel);
    if (!g0 || !g1 || !g2)
        return INFER_OK;
    for (; n < l->n_ptr; n++)
        args[n] = &l->ptr[n];
    args[n] = l->params;
    const cu_launch_attribute early = {.id = CU_LAUNCH_EARLY, .value = {1}};
    const cu_launch_config config = {.grid = {g0, g1, g2},
                                     .block = {b0, b1, b2},
                                     .shared = l->shared,
                                     .stream = queue->stream,
                                     .attributes = &early,
                                     .n_attributes = c->dev->early && !l->late && cuda_kernel_early(l->kernel)};
    cu_result e = c->dev->cu->LaunchKernelEx(&config, fn, args, NULL);
    return cuda_status(c->dev, e, INFER_E_QUEUE, "launch a kernel");
}

/* ---- What the shared ops ask of a backend ---------------------------------------------------------------------- */

const char launch_backend[] = "cuda";

const infer_host *launch_host(const infer_device *dev)
{
    return dev->host;
}

void *launch_memory(const infer_buffer *buf)
{
    return (void *)(uintptr_t)buf->at;
}

void *launch_nothing(const infer_device *dev)
{
    (void)dev;
    return NULL;
}

#define X(name, work) [LAUNCH_K_##name] = CUDA_K_##name,
static const uint16_t kernel_of[LAUNCH_N_KERNELS] = {LAUNCH_KERNELS(X)};
#undef X

int launch_ready(infer_device *dev, launch_kernel k)
{
    return dev->kernels[kernel_of[k]] != NULL;
}

int launch_reads(const infer_device *dev, const infer_op_desc *op, uint32_t i)
{
    uint32_t weights = op->op == INFER_OP_MATMUL ? 1 : op->op == INFER_OP_QKV || op->op == INFER_OP_GATED_MLP ? 3 : 0;
    return i >= 1 && i <= weights && cuda_ring_takes(dev, op, i);
}

/* Threads of a block for `items` of them: whole waves, no more than needed. */
static uint32_t threads_for(int64_t items, uint32_t most)
{
    int64_t n = (items + WAVE - 1) / WAVE * WAVE;
    return (uint32_t)(n < WAVE ? WAVE : n < most ? n : most);
}

static int at_sixteens(const lp_tensor *t)
{
    return ((uint64_t)t->off | (uint64_t)t->s0 | (uint64_t)t->s1 | (uint64_t)t->s2) % SIXTEEN == 0;
}

/* The kernel for a norm as it mostly is (kernels/rows.cu); CUDA_K_norm_rows: it is none. The threads by the width. */
static uint32_t quick_norm(const infer_device *dev, const lp_norm *p, uint32_t *threads)
{
    enum { EACH = 16, MOST = 1024 };
    uint32_t k = p->x.fmt == INFER_FMT_F32 ? CUDA_K_norm_f32 : CUDA_K_norm_bf16;
    int add = p->kind == LP_NORM_ADD;
    if ((p->kind != LP_NORM_RMS && !add) || (p->x.fmt != INFER_FMT_F32 && p->x.fmt != INFER_FMT_BF16) ||
        p->w.fmt != INFER_FMT_F32 || (add && (p->b.fmt != p->x.fmt || p->s.fmt != p->x.fmt)) || p->x.width % EIGHT ||
        p->x.width > EACH * MOST || !at_sixteens(&p->x) || !at_sixteens(&p->y) || p->w.off % SIXTEEN ||
        (add && (!at_sixteens(&p->b) || !at_sixteens(&p->s))) || !dev->kernels[k])
        return CUDA_K_norm_rows;
    *threads = threads_for((p->x.width + EACH - 1) / EACH, MOST);
    return k;
}

infer_status launch_emit(launch_call *c, launch_kernel k, const int *which, uint32_t n, const void *params,
                         uint32_t bytes, int64_t s0, int64_t s1, int64_t s2)
{
    enum { GROUPS = THREADS / WAVE, ROW_THREADS = 1024 };
    infer_queue *queue = c->to;
    cuda_launch l;
    uint32_t each = threads_for((s0 + EIGHT - 1) / EIGHT, THREADS);
    cuda_launch_init(&l, c, kernel_of[k], which, n, params, bytes);
    if (k == LAUNCH_K_norm_rows && queue->joined && queue->joined[queue->op]) {
        queue->norm = (cuda_norm){.kept = queue->joined[queue->op], .x = l.ptr[0], .w = l.ptr[1]};
        memcpy(&queue->norm.p, params, sizeof queue->norm.p);
        return INFER_OK;
    }
    switch (launch_work[k]) {
    case LAUNCH_ELEMENTS:
        return cuda_emit(c, &l, cuda_div_up(s0, EIGHT * each), cuda_walked(s1), 1, each, 1, 1);
    case LAUNCH_GROUPS:
        return cuda_emit(c, &l, cuda_div_up(s0, GROUPS), cuda_walked(s1), 1, THREADS, 1, 1);
    case LAUNCH_VECTORS: /* the width alone decides: it is the order of the sums */
        each = threads_for((s1 + EIGHT - 1) / EIGHT, ROW_THREADS);
        if (k == LAUNCH_K_norm_rows)
            l.kernel = quick_norm(c->dev, params, &each);
        return cuda_emit(c, &l, (uint32_t)s0, 1, 1, each, 1, 1);
    case LAUNCH_BYTES:
        each = threads_for((s0 + SIXTEEN - 1) / SIXTEEN, THREADS);
        return cuda_emit(c, &l, cuda_div_up(s0, SIXTEEN * each), (uint32_t)s1, cuda_walked(s2), each, 1, 1);
    default:
        return cuda_emit(c, &l, cuda_div_up(s0, THREADS), 1, 1, THREADS, 1, 1);
    }
}
