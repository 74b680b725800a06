/* Buffers, and the ring of pinned memory through which pageable memory and device exchange bytes.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "cuda.h"

infer_status cuda_buf_alloc(infer_device *dev, uint32_t heap, uint64_t bytes, infer_buffer **out)
{
    const infer_host *host = dev->host;
    if (heap || !bytes)
        return cuda_fail(host, INFER_E_INVALID, "cuda: %llu bytes from heap %u", (unsigned long long)bytes, heap);
    uint64_t used = atomic_load(&dev->used);
    if (used > dev->memory || bytes > dev->memory - used) /* the driver rounds up, and sizes near 2^64 wrap */
        return cuda_fail(host, INFER_E_NO_MEMORY, "cuda: %llu bytes wanted, %s has %llu of which %llu are used",
                         (unsigned long long)bytes, dev->name, (unsigned long long)dev->memory,
                         (unsigned long long)used);
    infer_buffer *b = host->alloc(host->ctx, sizeof *b, _Alignof(infer_buffer));
    if (!b)
        return cuda_fail(host, INFER_E_NO_MEMORY, "cuda: no host memory for a buffer");
    *b = (infer_buffer){.dev = dev, .bytes = bytes};
    cuda_enter(dev);
    infer_status s = cuda_status(dev, dev->cu->MemAlloc(&b->at, bytes), INFER_E_NO_MEMORY, "allocate");
    if (s) {
        host->free(host->ctx, b);
        return s;
    }
    atomic_fetch_add(&dev->used, bytes);
    *out = b;
    return INFER_OK;
}

void cuda_buf_free(infer_device *dev, infer_buffer *buf)
{
    cuda_enter(dev);
    (void)dev->cu->MemFree(buf->at); /* of a lost context: it goes with the context */
    atomic_fetch_sub(&dev->used, buf->bytes);
    dev->host->free(dev->host->ctx, buf);
}

infer_status cuda_kv_query(infer_device *dev, const infer_kv_spec *spec, infer_kv_answer *out)
{
    (void)dev;
    launch_kv_query(spec, CUDA_BIND_ALIGN, out);
    return INFER_OK;
}

/* ---- The ring ----------------------------------------------------------------------------------------------- */

infer_status cuda_ring_open(infer_queue *q)
{
    const cu_api *cu = q->dev->cu;
    void *p = NULL;
    cu_result e = cu->MemHostAlloc(&p, (size_t)CUDA_SEGMENT * CUDA_SEGMENTS, CU_HOST_ALLOC_PORTABLE);
    q->ring.base = e ? NULL : p;
    for (uint32_t i = 0; i < CUDA_SEGMENTS && !e; i++)
        e = cu->EventCreate(&q->ring.done[i], CU_EVENT_UNTIMED);
    infer_status s = cuda_status(q->dev, e, INFER_E_NO_MEMORY, "make pinned memory");
    if (s)
        cuda_ring_close(q);
    return s;
}

void cuda_ring_close(infer_queue *q)
{
    for (uint32_t i = 0; i < CUDA_SEGMENTS; i++)
        if (q->ring.done[i])
            (void)q->dev->cu->EventDestroy(q->ring.done[i]);
    if (q->ring.base)
        (void)q->dev->cu->MemFreeHost(q->ring.base);
}

infer_status cuda_ring_turn(infer_queue *q, uint32_t *segment)
{
    cuda_ring *r = &q->ring;
    infer_status s = cuda_status(q->dev, q->dev->cu->EventRecord(r->done[r->at], q->stream), INFER_E_QUEUE, "record");
    *segment = r->at;
    r->busy[r->at] = 1;
    r->at = (r->at + 1) % CUDA_SEGMENTS;
    r->used = 0;
    return s;
}

infer_status cuda_ring_take(infer_queue *q, uint64_t bytes, uint8_t **out)
{
    cuda_ring *r = &q->ring;
    infer_status s = INFER_OK;
    uint32_t full;
    if (bytes > CUDA_SEGMENT - r->used)
        s = cuda_ring_turn(q, &full);
    if (!s && r->busy[r->at]) {
        s = cuda_queue_await(q, r->done[r->at]);
        r->busy[r->at] = s != INFER_OK;
        if (!s)
            cuda_land_done(q, r->base + (uint64_t)r->at * CUDA_SEGMENT, CUDA_SEGMENT);
    }
    if (s)
        return s;
    *out = r->base + (uint64_t)r->at * CUDA_SEGMENT + r->used;
    r->used += (uint32_t)((bytes + 63) / 64 * 64);
    return INFER_OK;
}
