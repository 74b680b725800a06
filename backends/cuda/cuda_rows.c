/* Sampling, routing, rotation: scratch and launches. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "cuda.h"

enum { WAVE = 32, PICK_THREADS = 512, COUNT_THREADS = 128, ROPE_THREADS = 128 };

void cuda_check_sample(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    const infer_tensor_desc *x = launch_tensor_desc(op, 0);
    if (!dev->kernels[CUDA_K_sample_prepare] || !dev->kernels[CUDA_K_sample_pick])
        launch_no(a, INFER_WHY_OP, 0);
    else
        a->scratch_bytes = (uint64_t)x->shape[0] * LP_SAMPLE_ROW(x->shape[1]);
}

infer_status cuda_run_sample(launch_call *c)
{
    cuda_launch l;
    lp_sample p;
    int which[11], out = (int)c->op->n_in;
    launch_fill_sample(c, &p, which);
    uint32_t chunks = (uint32_t)LP_SAMPLE_CHUNKS(p.x.width), rows = cuda_walked(p.rows.cap);
    uint32_t each = c->dev->tune.sms / rows; /* blocks of a row, so that all run at a time */
    cuda_launch_init(&l, c, CUDA_K_sample_prepare, which, 11, &p, sizeof p);
    infer_status s = cuda_emit(c, &l, chunks, rows, 1, LP_SAMPLE_CHUNK / 4, 1, 1);
    l.kernel = CUDA_K_sample_pick;
    if (!s)
        s = cuda_emit(c, &l, chunks < each ? chunks : each ? each : 1, rows, 1, PICK_THREADS, 1, 1);
    if (s || !p.counts.fmt)
        return s;
    cuda_launch_init(&l, c, CUDA_K_count_ids, (const int[]){1, 2, out, -1}, 4, &p, sizeof p);
    return cuda_emit(c, &l, cuda_div_up(p.rows.cap, COUNT_THREADS), 1, 1, COUNT_THREADS, 1, 1);
}

static uint64_t route_bytes(int64_t experts, int64_t k)
{
    return (uint64_t)(experts + k) * 4;
}

void cuda_check_route(infer_device *dev, const infer_op_desc *op, infer_op_answer *a)
{
    if (!dev->kernels[CUDA_K_moe_route])
        launch_no(a, INFER_WHY_OP, 0);
    else if (route_bytes(launch_tensor_desc(op, 0)->shape[1], launch_tensor_desc(op, op->n_in)->shape[1]) >
             dev->tune.shared_per_block)
        launch_no(a, INFER_WHY_SHAPE, 0);
}

infer_status cuda_run_route(launch_call *c)
{
    cuda_launch l;
    lp_route p;
    launch_fill_route(c, &p);
    cuda_launch_init(&l, c, CUDA_K_moe_route, (const int[]){0, 1, 2, -1}, 4, &p, sizeof p);
    l.shared = (uint32_t)route_bytes(p.x.width, p.k);
    return cuda_emit(c, &l, (uint32_t)p.rows.cap, 1, 1, WAVE, 1, 1);
}

/* Threads of a row. */
static int64_t rope_threads(const lp_rope *p)
{
    int blocks = p->y.fmt == INFER_FMT_Q8_0 || p->y.fmt == INFER_FMT_Q4_0;
    int64_t heads = p->heads, width = p->x.width;
    return blocks ? LP_ROPE_BLOCKS(heads, width) : LP_ROPE_PAIRS(heads, width);
}

static infer_status rope_emit(launch_call *c, cuda_launch *l)
{
    return cuda_emit(c, l, l->grid[0], l->grid[1], l->grid[2], ROPE_THREADS, 1, 1);
}

infer_status cuda_emit_ropes(launch_call *c)
{
    infer_queue *queue = c->to;
    if (!queue->ropes.kept)
        return INFER_OK;
    queue->ropes.kept = 0;
    return rope_emit(c, &queue->ropes.l);
}

/* K and V, with the queries' rotation that is kept, if one is. */
static void ropes_init(cuda_launch *l, launch_call *c, const lp_rope kv[2], const int which[2][6])
{
    infer_queue *queue = c->to;
    const int *k = which[0], *v = which[1], all[] = {k[0], k[1], k[2], k[3], k[4], v[0], v[4], -2, -2, -1};
    lp_ropes p = {{kv[0], kv[1]}};
    uint32_t n = 2;
    if (queue->ropes.kept)
        memcpy(&p.of[n++], queue->ropes.l.params, sizeof *p.of);
    int64_t threads = 0;
    for (uint32_t i = 0; i < n; i++)
        threads = threads < rope_threads(&p.of[i]) ? rope_threads(&p.of[i]) : threads;
    cuda_launch_init(l, c, CUDA_K_rope_writes, all, 10, &p, sizeof p);
    if (queue->ropes.kept) {
        l->ptr[7] = queue->ropes.l.ptr[0];
        l->ptr[8] = queue->ropes.l.ptr[4];
    }
    l->grid[0] = cuda_div_up(threads, ROPE_THREADS);
    l->grid[2] = n;
}

infer_status cuda_run_rope(launch_call *c)
{
    infer_queue *queue = c->to;
    cuda_launch l;
    lp_rope p[2];
    int which[2][6];
    const int one = launch_fill_rope(c, p, which) == 1;
    if (one) {
        cuda_launch_init(&l, c, CUDA_K_rope_write, which[0], 6, p, sizeof p[0]);
        l.grid[0] = cuda_div_up(rope_threads(&p[0]), ROPE_THREADS);
        l.grid[2] = 1;
    } else {
        ropes_init(&l, c, p, which);
    }
    l.grid[1] = cuda_walked(p[0].rows.cap);
    queue->ropes.kept = 0;
    if (!queue->joined || !queue->joined[queue->op])
        return rope_emit(c, &l);
    queue->ropes = (cuda_ropes){one ? 1 : 2, l};
    return INFER_OK;
}
