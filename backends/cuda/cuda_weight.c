/* Weights: which are packed (packed.h), and bringing them. Bytes go through pinned memory, those of canonical images to
 * their place, others in batches of whole panels to memory from where a kernel packs them into the image.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "cuda.h"
#include "packed.h"

enum { BATCH = 2 << 20, LANES_X = 32, WAVES = 4 }; /* bytes of a lane at least; threads of a block */

struct infer_weight {
    infer_device *dev;
    uint32_t kernel; /* CUDA_N_KERNELS: the image is the bytes as they come */
    int32_t steps;
    uint64_t row_bytes, panel_bytes;
    uint64_t left;    /* bytes to come */
    uint64_t batch;   /* bytes of whole panels that a lane takes */
    uint64_t have;    /* bytes in the lane being filled */
    cu_deviceptr dst; /* the next panel */
    cuda_packer *packer;
    uint32_t lane;
};

/* ---- Which ------------------------------------------------------------------------------------------------------- */

static const uint16_t kernel_of[INFER_FMT_COUNT] = {
    [INFER_FMT_BF16] = CUDA_K_pack_lines, [INFER_FMT_F16] = CUDA_K_pack_lines, [INFER_FMT_F8_E4M3] = CUDA_K_pack_lines,
    [INFER_FMT_Q8_0] = CUDA_K_pack_q8_0,  [INFER_FMT_Q4_0] = CUDA_K_pack_q4_0, [INFER_FMT_Q4_1] = CUDA_K_pack_q4_1,
    [INFER_FMT_Q4_K] = CUDA_K_pack_q4_k,  [INFER_FMT_Q6_K] = CUDA_K_pack_q6_k,
};

int cuda_packs(const infer_device *dev, infer_format f)
{
    return dev->tune.cc == 90 && f < INFER_FMT_COUNT && packed_unit(f) && dev->kernels[kernel_of[f]] &&
           cuda_rings(dev, f);
}

/* Whether a weight is packed: one matrix that a product reads. */
static int packs(const infer_device *dev, const infer_weight_desc *d, const int64_t x[3])
{
    return dev->packed && (d->use == INFER_OP_MATMUL || d->use == INFER_OP_QKV || d->use == INFER_OP_GATED_MLP) &&
           d->rank == 2 && x[1] <= INT32_MAX && cuda_packs(dev, d->quant.format) &&
           cuda_ring_fits(dev, d->quant.format, x[2]);
}

infer_status cuda_weight_plan(infer_device *dev, const infer_weight_desc *d, infer_weight_plan *out)
{
    const infer_format f = d->quant.format;
    int64_t x[3];
    infer_weight_plan p = {.layout = CUDA_LAYOUT_PACKED,
                           .align = CUDA_BIND_ALIGN,
                           .packed_bytes = launch_weight_extents(d, x),
                           .format = f};
    if (!p.packed_bytes)
        return INFER_E_UNSUPPORTED; /* canonical, by the core's copies */
    if (packs(dev, d, x)) {
        p.packed_bytes = packed_bytes(f, x[1], x[2]);
    } else {
        p.layout = INFER_LAYOUT_CANONICAL;
        p.flags = INFER_WEIGHT_STREAM;
    }
    launch_put(out, &p, sizeof p);
    return INFER_OK;
}

/* ---- Lanes ------------------------------------------------------------------------------------------------------- */

static void packer_free(infer_device *dev, cuda_packer *p)
{
    const cu_api *cu = dev->cu;
    for (uint32_t i = 0; i < CUDA_LANES; i++) {
        cuda_lane *l = &p->lanes[i];
        if (l->stream)
            (void)cu->StreamDestroy(l->stream);
        if (l->done)
            (void)cu->EventDestroy(l->done);
        if (l->rows)
            (void)cu->MemFree(l->rows);
        if (l->pinned)
            (void)cu->MemFreeHost(l->pinned);
    }
    dev->host->free(dev->host->ctx, p);
}

static void free_all(infer_device *dev, cuda_packer *p)
{
    while (p) {
        cuda_packer *next = p->next;
        packer_free(dev, p);
        p = next;
    }
}

void cuda_packers_free(infer_device *dev)
{
    free_all(dev, dev->packers);
    dev->packers = NULL;
}

/* Gives a packer back. Where no weight is under way any more one is kept for the next: after a model's weights the
 * memory of the others is the device's again. */
static void packer_give(infer_device *dev, cuda_packer *p)
{
    cuda_packer *others = NULL;
    pthread_mutex_lock(&dev->mu);
    if (--dev->n_weights) {
        p->next = dev->packers;
    } else {
        others = dev->packers;
        p->next = NULL;
    }
    dev->packers = p;
    pthread_mutex_unlock(&dev->mu);
    free_all(dev, others);
}

static infer_status packer_make(infer_device *dev, uint64_t bytes, cuda_packer **out)
{
    const infer_host *host = dev->host;
    const cu_api *cu = dev->cu;
    cu_result e = CU_OK;
    cuda_packer *p = host->alloc(host->ctx, sizeof *p, _Alignof(cuda_packer));
    if (!p)
        return cuda_fail(host, INFER_E_NO_MEMORY, "cuda: no host memory for a stream of weights");
    *p = (cuda_packer){.bytes = bytes};
    for (uint32_t i = 0; i < CUDA_LANES && !e; i++) {
        cuda_lane *l = &p->lanes[i];
        void *pinned = NULL;
        e = cu->MemHostAlloc(&pinned, (size_t)bytes, CU_HOST_ALLOC_PORTABLE);
        l->pinned = e ? NULL : pinned;
        e = e ? e : cu->MemAlloc(&l->rows, bytes);
        e = e ? e : cu->EventCreate(&l->done, CU_EVENT_UNTIMED);
        e = e ? e : cu->StreamCreate(&l->stream, CU_STREAM_APART);
    }
    infer_status s = cuda_status(dev, e, INFER_E_NO_MEMORY, "make a stream of weights");
    if (s)
        packer_free(dev, p);
    else
        *out = p;
    return s;
}

/* One that is free, or a new one; lanes of at least that many bytes. */
static infer_status packer_take(infer_device *dev, uint64_t bytes, cuda_packer **out)
{
    infer_status s = INFER_OK;
    pthread_mutex_lock(&dev->mu);
    cuda_packer *p = dev->packers;
    if (p)
        dev->packers = p->next;
    dev->n_weights++;
    pthread_mutex_unlock(&dev->mu);
    if (p && p->bytes < bytes) {
        packer_free(dev, p);
        p = NULL;
    }
    if (!p && (s = packer_make(dev, bytes, &p))) {
        pthread_mutex_lock(&dev->mu);
        dev->n_weights--;
        pthread_mutex_unlock(&dev->mu);
    }
    *out = p;
    return s;
}

/* Until the lane's last batch is done. */
static infer_status lane_wait(infer_device *dev, cuda_lane *l)
{
    const infer_host *host = dev->host;
    uint64_t start = host->clock_ns(host->ctx);
    cu_result e = CU_E_NOT_READY;
    while (l->busy && (e = dev->cu->EventQuery(l->done)) == CU_E_NOT_READY)
        cuda_pause(host, start, UINT64_MAX);
    infer_status s = l->busy ? cuda_status(dev, e, INFER_E_QUEUE, "load weights") : INFER_OK;
    l->busy = 0;
    return s;
}

/* ---- The stream of a weight ----------------------------------------------------------------------------------------
 */

infer_status cuda_weight_begin(infer_device *dev, const infer_weight_desc *d, const infer_weight_plan *plan,
                               const infer_range *dst, infer_weight **out)
{
    const infer_host *host = dev->host;
    const infer_format f = d->quant.format;
    int64_t x[3];
    uint64_t bytes = launch_weight_extents(d, x);
    int pack = plan->layout == CUDA_LAYOUT_PACKED;
    if (!bytes || (pack ? !packs(dev, d, x) : plan->layout != INFER_LAYOUT_CANONICAL || plan->format != f))
        return cuda_fail(host, INFER_E_INVALID, "cuda: no weight layout %u", plan->layout);
    uint64_t want = pack ? packed_bytes(f, x[1], x[2]) : bytes;
    if (dst->size < want || (dst->buffer->at + dst->offset) % CUDA_BIND_ALIGN)
        return cuda_fail(host, INFER_E_INVALID, "cuda: a weight of %llu bytes into %llu at %llu",
                         (unsigned long long)want, (unsigned long long)dst->size, (unsigned long long)dst->offset);
    infer_weight *w = host->alloc(host->ctx, sizeof *w, _Alignof(infer_weight));
    if (!w)
        return cuda_fail(host, INFER_E_NO_MEMORY, "cuda: no host memory for a weight");
    *w = (infer_weight){
        .dev = dev, .kernel = CUDA_N_KERNELS, .left = bytes, .batch = BATCH, .dst = dst->buffer->at + dst->offset};
    if (pack) {
        w->kernel = kernel_of[f];
        w->steps = (int32_t)packed_steps(f, x[2]);
        w->row_bytes = launch_format_bytes(f, (uint64_t)x[2]);
        w->panel_bytes = packed_panel_bytes(f, x[2]);
        uint64_t panel = PACKED_ROWS * w->row_bytes;
        w->batch = panel < BATCH ? BATCH / panel * panel : panel;
    }
    cuda_enter(dev);
    infer_status s = packer_take(dev, w->batch > BATCH ? w->batch : BATCH, &w->packer);
    if (s)
        host->free(host->ctx, w);
    else
        *out = w;
    return s;
}

/* Copies the lane's rows, and packs them. */
static cu_result send_rows(infer_weight *w, cuda_lane *l)
{
    const cu_api *cu = w->dev->cu;
    packed_job job = {.row_bytes = (int64_t)w->row_bytes, .rows = (int32_t)(w->have / w->row_bytes), .steps = w->steps};
    uint32_t panels = (uint32_t)packed_panels(job.rows);
    cu_deviceptr to = w->dst;
    void *args[] = {&l->rows, &to, &job};
    w->dst += panels * w->panel_bytes;
    cu_result e = cu->MemcpyHtoDAsync(l->rows, l->pinned, w->have, l->stream);
    return e ? e
             : cu->LaunchKernel(w->dev->kernels[w->kernel], cuda_div_up(job.steps, WAVES), cuda_walked(panels), 1,
                                LANES_X, WAVES, 1, 0, l->stream, args, NULL);
}

static infer_status send(infer_weight *w)
{
    const cu_api *cu = w->dev->cu;
    cuda_lane *l = &w->packer->lanes[w->lane];
    cu_result e;
    l->busy = 1;
    if (w->kernel < CUDA_N_KERNELS) {
        e = send_rows(w, l);
    } else {
        e = cu->MemcpyHtoDAsync(w->dst, l->pinned, w->have, l->stream);
        w->dst += w->have;
    }
    cu_result recorded = cu->EventRecord(l->done, l->stream); /* also behind what did not come about whole */
    w->have = 0;
    w->lane = (w->lane + 1) % CUDA_LANES;
    return cuda_status(w->dev, e ? e : recorded, INFER_E_QUEUE, "load weights");
}

infer_status cuda_weight_append(infer_weight *w, uint32_t plane, const void *data, uint64_t bytes)
{
    const uint8_t *p = data;
    infer_status s = INFER_OK;
    if (plane != 0 || bytes > w->left)
        return cuda_fail(w->dev->host, INFER_E_INVALID, "cuda: plane %u has %llu bytes more, a weight %llu", plane,
                         (unsigned long long)bytes, (unsigned long long)w->left);
    cuda_enter(w->dev);
    while (bytes && !s) {
        cuda_lane *l = &w->packer->lanes[w->lane];
        uint64_t n = w->batch - w->have < bytes ? w->batch - w->have : bytes;
        s = lane_wait(w->dev, l);
        if (s)
            break;
        memcpy(l->pinned + w->have, p, (size_t)n);
        w->have += n;
        w->left -= n;
        p += n;
        bytes -= n;
        if (w->have == w->batch || !w->left)
            s = send(w);
    }
    return s;
}

infer_status cuda_weight_finish(infer_weight *w)
{
    infer_status s = INFER_OK;
    if (w->left)
        return cuda_fail(w->dev->host, INFER_E_INVALID, "cuda: a weight ended %llu bytes early",
                         (unsigned long long)w->left);
    cuda_enter(w->dev);
    for (uint32_t i = 0; i < CUDA_LANES && !s; i++)
        s = lane_wait(w->dev, &w->packer->lanes[i]);
    return s;
}

void cuda_weight_destroy(infer_weight *w)
{
    infer_device *dev = w->dev;
    cuda_enter(dev);
    for (uint32_t i = 0; i < CUDA_LANES; i++)
        (void)lane_wait(dev, &w->packer->lanes[i]);
    packer_give(dev, w->packer);
    dev->host->free(dev->host->ctx, w);
}
