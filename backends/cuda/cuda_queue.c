/* In-order queues: streams, what they wait for and signal. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "cuda.h"

infer_status cuda_queue_create(infer_device *dev, uint32_t classes, infer_queue **out)
{
    const infer_host *host = dev->host;
    const cu_api *cu = dev->cu;
    if (!classes || classes & ~(INFER_QUEUE_COMPUTE | INFER_QUEUE_COPY))
        return cuda_fail(host, INFER_E_INVALID, "cuda: queue of classes %x", classes);
    infer_queue *q = host->alloc(host->ctx, sizeof *q, _Alignof(infer_queue));
    if (!q)
        return cuda_fail(host, INFER_E_NO_MEMORY, "cuda: no host memory for a queue");
    memset(q, 0, sizeof *q);
    q->dev = dev;
    cuda_enter(dev);
    infer_status s = cuda_ring_open(q);
    if (s)
        goto err_queue;
    s = cuda_status(dev, cu->EventCreate(&q->settled, CU_EVENT_UNTIMED), INFER_E_NO_MEMORY, "make an event");
    if (s)
        goto err_ring;
    s = cuda_status(dev, cu->MemAlloc(&q->between, CUDA_SEGMENT), INFER_E_NO_MEMORY, "allocate");
    if (s)
        goto err_event;
    s = cuda_status(dev, cu->StreamCreate(&q->stream, CU_STREAM_APART), INFER_E_NO_MEMORY, "make a stream");
    if (s)
        goto err_between;
    cuda_queue_list(q);
    *out = q;
    return INFER_OK;
err_between:
    (void)cu->MemFree(q->between);
err_event:
    (void)cu->EventDestroy(q->settled);
err_ring:
    cuda_ring_close(q);
err_queue:
    host->free(host->ctx, q);
    return s;
}

void cuda_queue_destroy(infer_device *dev, infer_queue *queue)
{
    const infer_host *host = dev->host;
    uint64_t start = host->clock_ns(host->ctx);
    cuda_enter(dev);
    while (!cuda_queue_release(queue))
        cuda_pause(host, start, UINT64_MAX);
    cuda_queue_unlist(queue);
    (void)dev->cu->StreamDestroy(queue->stream);
    (void)dev->cu->MemFree(queue->between);
    (void)dev->cu->EventDestroy(queue->settled);
    cuda_ring_close(queue);
    host->free(host->ctx, queue);
}

infer_status cuda_queue_enter(infer_queue *queue)
{
    infer_status s = atomic_load(&queue->failed);
    s = s ? s : atomic_load(&queue->dev->failed);
    if (s)
        return cuda_failed_before(queue->dev, s);
    cuda_enter(queue->dev);
    return INFER_OK;
}

infer_status cuda_queue_await(infer_queue *queue, cu_event event)
{
    const infer_host *host = queue->dev->host;
    uint64_t start = host->clock_ns(host->ctx), looked = start;
    for (;;) {
        cu_result e = queue->dev->cu->EventQuery(event);
        if (e != CU_E_NOT_READY)
            return cuda_status(queue->dev, e, INFER_E_QUEUE, "work on a queue");
        cuda_pause(host, start, UINT64_MAX);
        uint64_t now = host->clock_ns(host->ctx);
        if (now - looked < CUDA_LOOK_NS) /* the event tells the stream's failure, not that of what it waits for */
            continue;
        looked = now;
        infer_status s = cuda_queue_state(queue);
        if (s)
            return s;
    }
}

infer_status cuda_queue_wait(infer_queue *queue, infer_timeline *tl, uint64_t value)
{
    infer_status s = cuda_queue_enter(queue);
    s = s ? s : cuda_wait_note(queue, tl, value);
    if (s != INFER_PENDING)
        return s;
    cu_result e = queue->dev->cu->StreamWaitValue64(queue->stream, tl->at, value, CU_STREAM_WAIT_GEQ);
    return cuda_status(queue->dev, e, INFER_E_QUEUE, "wait");
}

infer_status cuda_queue_signal(infer_queue *queue, infer_timeline *tl, uint64_t value)
{
    infer_status s = cuda_queue_enter(queue);
    if (s)
        return s;
    cu_result e = queue->dev->cu->StreamWriteValue64(queue->stream, tl->at, value, CU_STREAM_WRITE_DEFAULT);
    s = cuda_status(queue->dev, e, INFER_E_QUEUE, "signal");
    if (!s) {
        atomic_store(&tl->by, queue->serial);
        atomic_store(&tl->submitted, value);
        cuda_land_signal(queue, tl, value);
    }
    return s;
}
