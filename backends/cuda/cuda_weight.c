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
    infer_quant quant;
    int64_t n, k;
    cu_deviceptr image;
    uint64_t panel_bytes; /* of the image; 0: it is the bytes as they come */
    packed_job job;       /* without its rows */
    /* Of the plane that comes: */
    uint32_t plane, kernel; /* CUDA_N_KERNELS: its bytes go to their place as they are */
    uint64_t rows_bytes;    /* of 16 rows */
    uint64_t left;          /* bytes to come */
    uint64_t batch;         /* bytes of whole panels that a lane takes */
    uint64_t have;          /* bytes in the lane being filled */
    cu_deviceptr dst;       /* the next panel */
    cuda_packer *packer;
    uint32_t lane;
    uint8_t for_all[4]; /* E4M3's one scale, which may come in pieces */
    uint32_t for_all_n;
};

/* ---- Which ------------------------------------------------------------------------------------------------------- */

static const uint16_t kernel_of[INFER_FMT_COUNT] = {
    [INFER_FMT_BF16] = CUDA_K_pack_lines, [INFER_FMT_F16] = CUDA_K_pack_lines, [INFER_FMT_F8_E4M3] = CUDA_K_pack_lines,
    [INFER_FMT_Q8_0] = CUDA_K_pack_q8_0,  [INFER_FMT_Q4_0] = CUDA_K_pack_q4_0, [INFER_FMT_Q4_1] = CUDA_K_pack_q4_1,
    [INFER_FMT_Q4_K] = CUDA_K_pack_q4_k,  [INFER_FMT_Q6_K] = CUDA_K_pack_q6_k, [INFER_FMT_U4] = CUDA_K_pack_u4,
};

int cuda_packs(const infer_device *dev, infer_format f)
{
    return dev->tune.cc == 90 && f < INFER_FMT_COUNT && packed_unit(f) && dev->kernels[kernel_of[f]] &&
           cuda_rings(dev, f);
}

/* Whether scales and zero points are among those that images have: of E4M3 one a row, or one in all; of U4 in groups.
 */
static int scales_fit(const infer_quant *q)
{
    if (!q->scale_format)
        return q->format != INFER_FMT_U4;
    if (q->format == INFER_FMT_F8_E4M3)
        return q->scale_format == INFER_FMT_F32 && !q->zero_format && !q->zero_value && q->group_n <= 1 && !q->group_k;
    return q->format == INFER_FMT_U4 && q->scale_format == INFER_FMT_F16 && q->group_n == 1 &&
           q->group_k == PACKED_GROUP &&
           (q->zero_format ? q->zero_format == INFER_FMT_U4 : q->zero_value >= 0 && q->zero_value <= 15);
}

/* Bytes of a matrix's image. */
static uint64_t image_bytes(const infer_quant *q, int64_t n, int64_t k)
{
    const uint64_t bytes = packed_bytes(q->format, n, k);
    return bytes + (q->format == INFER_FMT_F8_E4M3 && q->scale_format ? 4 * (uint64_t)n : 0);
}

/* Whether a weight is packed: one matrix that a product reads. */
static int packs(const infer_device *dev, const infer_weight_desc *d, const int64_t x[3])
{
    return scales_fit(&d->quant) && dev->packed &&
           (d->use == INFER_OP_MATMUL || d->use == INFER_OP_QKV || d->use == INFER_OP_GATED_MLP) && d->rank == 2 &&
           x[1] <= INT32_MAX && cuda_packs(dev, d->quant.format) && cuda_ring_fits(dev, d->quant.format, x[2]);
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
        p.packed_bytes = image_bytes(&d->quant, x[1], x[2]);
    } else if (d->quant.scale_format || !launch_format_block(f)) {
        return INFER_E_UNSUPPORTED;
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

/* Makes ready for a plane. Of an image as it comes there is one; of E4M3 scales go behind the panels. */
static void plane_begin(infer_weight *w, uint32_t plane)
{
    const uint64_t groups = ((uint64_t)w->k + PACKED_GROUP - 1) / PACKED_GROUP;
    w->plane = plane;
    w->dst = w->image;
    w->kernel = CUDA_N_KERNELS;
    w->batch = BATCH;
    if (!w->panel_bytes)
        return;
    if (plane == 0) {
        const uint64_t row = launch_any_bytes(w->quant.format, (uint64_t)w->k);
        w->kernel = kernel_of[w->quant.format];
        w->rows_bytes = PACKED_ROWS * row;
        w->job.row_bytes = (int64_t)row;
    } else if (w->quant.format == INFER_FMT_F8_E4M3) {
        w->left = 4 * (uint64_t)w->n;
        w->dst += packed_bytes(w->quant.format, w->n, w->k);
        return;
    } else {
        w->kernel = plane == 1 ? CUDA_K_pack_u4_scales : CUDA_K_pack_u4_zeros;
        w->rows_bytes = PACKED_ROWS * groups * 2 / (plane == 1 ? 1 : 4);
        w->left = plane == 1 ? 2 * groups * (uint64_t)w->n : (groups * (uint64_t)w->n + 1) / 2;
        w->job.row_bytes = (int64_t)groups;
    }
    w->batch = w->rows_bytes < BATCH ? BATCH / w->rows_bytes * w->rows_bytes : w->rows_bytes;
}

static uint32_t last_plane(const infer_quant *q)
{
    return !q->scale_format ? 0 : q->zero_format ? 2 : 1;
}

infer_status cuda_weight_begin(infer_device *dev, const infer_weight_desc *d, const infer_weight_plan *plan,
                               const infer_range *dst, infer_weight **out)
{
    const infer_host *host = dev->host;
    const infer_format f = d->quant.format;
    int64_t x[3];
    uint64_t bytes = launch_weight_extents(d, x);
    int pack = plan->layout == CUDA_LAYOUT_PACKED;
    if (!bytes || (pack ? !packs(dev, d, x)
                        : plan->layout != INFER_LAYOUT_CANONICAL || plan->format != f || d->quant.scale_format))
        return cuda_fail(host, INFER_E_INVALID, "cuda: no weight layout %u", plan->layout);
    uint64_t want = pack ? image_bytes(&d->quant, x[1], x[2]) : bytes;
    if (dst->size < want || (dst->buffer->at + dst->offset) % CUDA_BIND_ALIGN)
        return cuda_fail(host, INFER_E_INVALID, "cuda: a weight of %llu bytes into %llu at %llu",
                         (unsigned long long)want, (unsigned long long)dst->size, (unsigned long long)dst->offset);
    infer_weight *w = host->alloc(host->ctx, sizeof *w, _Alignof(infer_weight));
    if (!w)
        return cuda_fail(host, INFER_E_NO_MEMORY, "cuda: no host memory for a weight");
    *w = (infer_weight){
        .dev = dev, .quant = d->quant, .n = x[1], .k = x[2], .image = dst->buffer->at + dst->offset, .left = bytes};
    if (pack) {
        w->job.steps = (int32_t)packed_steps(f, x[2]);
        w->job.zero = d->quant.zero_format ? -1 : d->quant.zero_value;
        w->panel_bytes = packed_panel_bytes(f, x[2]);
    }
    plane_begin(w, 0);
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
    w->job.rows = (int32_t)(w->have * PACKED_ROWS / w->rows_bytes);
    uint32_t panels = (uint32_t)packed_panels(w->job.rows);
    cu_deviceptr to = w->dst;
    void *args[] = {&l->rows, &to, &w->job};
    w->dst += panels * w->panel_bytes;
    cu_result e = cu->MemcpyHtoDAsync(l->rows, l->pinned, w->have, l->stream);
    return e ? e
             : cu->LaunchKernel(w->dev->kernels[w->kernel], cuda_div_up(w->job.steps, WAVES), cuda_walked(panels), 1,
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

static infer_status take(infer_weight *w, const uint8_t *p, uint64_t bytes)
{
    infer_status s = INFER_OK;
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

/* One scale for all rows becomes one for each. */
static infer_status take_for_all(infer_weight *w, const uint8_t *p, uint64_t bytes)
{
    enum { MANY = 64, BYTES = sizeof w->for_all };
    uint8_t many[BYTES * MANY];
    infer_status s = INFER_OK;
    memcpy(w->for_all + w->for_all_n, p, (size_t)bytes);
    w->for_all_n += (uint32_t)bytes;
    if (w->for_all_n < BYTES)
        return INFER_OK;
    for (int i = 0; i < MANY; i++)
        memcpy(many + BYTES * i, w->for_all, BYTES);
    while (w->left && !s)
        s = take(w, many, w->left < sizeof many ? w->left : sizeof many);
    return s;
}

infer_status cuda_weight_append(infer_weight *w, uint32_t plane, const void *data, uint64_t bytes)
{
    if (plane == w->plane + 1 && plane <= last_plane(&w->quant) && !w->left)
        plane_begin(w, plane);
    const int for_all = plane == 1 && w->quant.format == INFER_FMT_F8_E4M3 && !w->quant.group_n;
    const uint64_t left = for_all ? sizeof w->for_all - w->for_all_n : w->left;
    if (plane != w->plane || bytes > left)
        return cuda_fail(w->dev->host, INFER_E_INVALID, "cuda: plane %u has %llu bytes more, a weight %llu", plane,
                         (unsigned long long)bytes, (unsigned long long)left);
    cuda_enter(w->dev);
    return for_all ? take_for_all(w, data, bytes) : take(w, data, bytes);
}

infer_status cuda_weight_finish(infer_weight *w)
{
    infer_status s = INFER_OK;
    if (w->left || w->plane != last_plane(&w->quant))
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
