/* In-order queues: copies, fills, waits and signals. Nothing here waits for the device but copies
 * within the host and what meets bytes that are on their way.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "ocl_timeline.h"

infer_status ocl_queue_create(infer_device *dev, uint32_t classes, infer_queue **out)
{
    const infer_host *host = dev->host;
    cl_int e;
    if (!classes || classes & ~(INFER_QUEUE_COMPUTE | INFER_QUEUE_COPY))
        return ocl_fail(host, INFER_E_INVALID, "opencl: queue of classes %x", classes);
    infer_queue *q = host->alloc(host->ctx, sizeof *q, _Alignof(infer_queue));
    if (!q)
        return ocl_fail(host, INFER_E_NO_MEMORY, "opencl: no host memory for a queue");
    *q = (infer_queue){.dev = dev, .id = atomic_fetch_add(&dev->n_queues, 1)};
    q->q = dev->cl->CreateCommandQueue(dev->context, dev->id, 0, &e);
    if (e) {
        host->free(host->ctx, q);
        return ocl_status(dev, e, INFER_E_NO_MEMORY, "create a queue");
    }
    *out = q;
    return INFER_OK;
}

/* Waits for all of the queue's work. */
static cl_int settle(infer_queue *q)
{
    cl_int e = q->dev->cl->Finish(q->q);
    ocl_stage_land(q->dev, q->id, q->staged, !e);
    return e;
}

void ocl_queue_destroy(infer_device *dev, infer_queue *queue)
{
    (void)settle(queue); /* of a lost device: an error at once */
    while (queue->kernels) {
        ocl_kernel *k = queue->kernels;
        queue->kernels = k->next;
        dev->cl->ReleaseKernel(k->kernel);
        dev->host->free(dev->host->ctx, k);
    }
    dev->cl->ReleaseCommandQueue(queue->q);
    dev->host->free(dev->host->ctx, queue);
}

infer_status ocl_queue_wait(infer_queue *queue, infer_timeline *tl, uint64_t value)
{
    infer_device *dev = queue->dev;
    cl_event event;
    infer_status s = ocl_tl_event(tl, dev, value, &event);
    if (s != INFER_PENDING)
        return s;
    if (!event) /* the host's signal, or another device's: the core waits for those */
        return ocl_fail(dev->host, INFER_E_UNSUPPORTED, "opencl: no event of this device brings the value");
    cl_int e = dev->cl->EnqueueBarrierWithWaitList(queue->q, 1, &event, NULL);
    dev->cl->ReleaseEvent(event);
    return ocl_status(dev, e, INFER_E_QUEUE, "wait for another queue");
}

infer_status ocl_queue_signal(infer_queue *queue, infer_timeline *tl, uint64_t value)
{
    infer_device *dev = queue->dev;
    cl_event event = NULL;
    cl_int e = dev->cl->EnqueueMarkerWithWaitList(queue->q, 0, NULL, &event);
    if (!e)
        e = dev->cl->Flush(queue->q);
    infer_status s = ocl_status(dev, e, INFER_E_QUEUE, "signal");
    if (!s)
        s = ocl_tl_add(tl, queue, value, event);
    if (s && event)
        dev->cl->ReleaseEvent(event);
    return s;
}

/* ---- Copies ------------------------------------------------------------------------------------------------ */

typedef struct side {
    cl_mem mem;
    uint8_t *host;
} side;

/* Bytes within one buffer, source and destination overlapping: by way of a third. */
static cl_int copy_over(infer_queue *q, cl_mem mem, uint64_t from, uint64_t to, uint64_t bytes)
{
    const cl_api *cl = q->dev->cl;
    cl_int e;
    cl_mem between = cl->CreateBuffer(q->dev->context, CL_MEM_READ_WRITE, bytes, NULL, &e);
    if (e)
        return e;
    e = cl->EnqueueCopyBuffer(q->q, mem, between, from, 0, bytes, 0, NULL, NULL);
    if (!e)
        e = cl->EnqueueCopyBuffer(q->q, between, mem, 0, to, bytes, 0, NULL, NULL);
    cl->ReleaseMemObject(between); /* the driver keeps it until the copies are done */
    return e;
}

/* Before the driver writes to this memory, or reads it: what is on its way there by pinned memory lands. */
static cl_int make_room(infer_queue *q, const uint8_t *host, uint64_t bytes)
{
    return ocl_stage_meets(q, host, bytes) ? settle(q) : CL_SUCCESS;
}

static cl_int copy_run(infer_queue *q, const side *d, const side *s, uint64_t to, uint64_t from, uint64_t bytes)
{
    const cl_api *cl = q->dev->cl;
    if (d->mem && s->mem && d->mem == s->mem && from < to + bytes && to < from + bytes)
        return from == to ? CL_SUCCESS : copy_over(q, d->mem, from, to, bytes);
    if (d->mem && s->mem)
        return cl->EnqueueCopyBuffer(q->q, s->mem, d->mem, from, to, bytes, 0, NULL, NULL);
    cl_int e = CL_SUCCESS;
    if (d->mem) {
        e = make_room(q, s->host + from, bytes);
        return e ? e : cl->EnqueueWriteBuffer(q->q, d->mem, CL_FALSE, to, bytes, s->host + from, 0, NULL, NULL);
    }
    if (s->mem && ocl_stage_read(q, s->mem, from, d->host + to, bytes, &e))
        return e;
    if (s->mem) {
        e = make_room(q, d->host + to, bytes);
        return e ? e : cl->EnqueueReadBuffer(q->q, s->mem, CL_FALSE, from, bytes, d->host + to, 0, NULL, NULL);
    }
    e = settle(q);
    memmove(d->host + to, s->host + from, (size_t)bytes);
    return e;
}

/* A rectangle whose pitches OpenCL takes: no shorter than a row, and within one buffer apart. */
static int is_rect(const infer_copy_region *r, const side *d, const side *s)
{
    return r->src_pitch >= r->bytes && r->dst_pitch >= r->bytes && (d->mem || s->mem) && !(d->mem && d->mem == s->mem);
}

static cl_int copy_rect(infer_queue *q, const side *d, const side *s, const infer_copy_region *r)
{
    const cl_api *cl = q->dev->cl;
    const size_t extent[3] = {r->bytes, r->rows, 1};
    /* an origin is column, row, slice: the offset as a place in row 0 may be beyond a pitch, so it is split */
    const size_t to[3] = {r->dst_offset % r->dst_pitch, r->dst_offset / r->dst_pitch, 0};
    const size_t from[3] = {r->src_offset % r->src_pitch, r->src_offset / r->src_pitch, 0}, zero[3] = {0};
    if (d->mem && s->mem)
        return cl->EnqueueCopyBufferRect(q->q, s->mem, d->mem, from, to, extent, r->src_pitch, 0, r->dst_pitch, 0, 0,
                                         NULL, NULL);
    cl_int e = d->mem ? make_room(q, s->host + r->src_offset, (r->rows - 1) * r->src_pitch + r->bytes)
                      : make_room(q, d->host + r->dst_offset, (r->rows - 1) * r->dst_pitch + r->bytes);
    if (e)
        return e;
    if (d->mem)
        return cl->EnqueueWriteBufferRect(q->q, d->mem, CL_FALSE, to, zero, extent, r->dst_pitch, 0, r->src_pitch, 0,
                                          s->host + r->src_offset, 0, NULL, NULL);
    return cl->EnqueueReadBufferRect(q->q, s->mem, CL_FALSE, from, zero, extent, r->src_pitch, 0, r->dst_pitch, 0,
                                     d->host + r->dst_offset, 0, NULL, NULL);
}

infer_status ocl_cmd_copy(infer_queue *queue, const infer_copy_end *dst, const infer_copy_end *src,
                          const infer_copy_region *regions, uint32_t n)
{
    const side d = {dst->buffer ? dst->buffer->mem : NULL, dst->host};
    const side s = {src->buffer ? src->buffer->mem : NULL, src->host};
    for (uint32_t i = 0; i < n; i++) {
        const infer_copy_region *r = &regions[i];
        cl_int e = CL_SUCCESS;
        if (!r->bytes || !r->rows)
            continue;
        if (r->rows > 1 && is_rect(r, &d, &s))
            e = copy_rect(queue, &d, &s, r);
        else
            for (uint64_t j = 0; j < r->rows && !e; j++)
                e = copy_run(queue, &d, &s, r->dst_offset + j * r->dst_pitch, r->src_offset + j * r->src_pitch,
                             r->bytes);
        if (e)
            return ocl_status(queue->dev, e, INFER_E_QUEUE, "copy");
    }
    return INFER_OK;
}

/* OpenCL wants a fill to begin at a multiple of its pattern; others go by a kernel. */
infer_status ocl_cmd_fill(infer_queue *queue, const infer_range *dst, uint32_t pattern, uint32_t pattern_bytes)
{
    infer_device *dev = queue->dev;
    if ((pattern_bytes != 1 && pattern_bytes != 2 && pattern_bytes != 4) || dst->size % pattern_bytes)
        return ocl_fail(dev->host, INFER_E_INVALID, "opencl: fill of %llu bytes by %u", (unsigned long long)dst->size,
                        pattern_bytes);
    if (!dst->size)
        return INFER_OK;
    if (dst->offset % pattern_bytes == 0)
        return ocl_status(dev,
                          dev->cl->EnqueueFillBuffer(queue->q, dst->buffer->mem, &pattern, pattern_bytes, dst->offset,
                                                     dst->size, 0, NULL, NULL),
                          INFER_E_QUEUE, "fill");
    return ocl_fill_bytes(queue, dst, pattern, pattern_bytes);
}
