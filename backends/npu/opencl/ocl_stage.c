/*
 * Small transfers between host and device go through pinned memory of the device's own. Of memory that it does not know
 * a driver may take a non-blocking transfer as a blocking one, or hold everything behind it back until its turn comes,
 * so that a step could not be in the queue behind the one that runs. Bytes for the host leave it when a signal behind
 * them is seen complete. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <string.h>

#include "ocl.h"

infer_status ocl_stage_open(infer_device *dev)
{
    ocl_stage *st = &dev->stage;
    cl_int e;
    st->mem = dev->cl->CreateBuffer(dev->context, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR,
                                    (size_t)OCL_STAGE_PLACES * OCL_STAGE_BYTES, NULL, &e);
    if (e)
        return ocl_status(dev, e, INFER_E_NO_MEMORY, "make pinned memory");
    st->at = dev->cl->EnqueueMapBuffer(dev->setup, st->mem, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0,
                                       (size_t)OCL_STAGE_PLACES * OCL_STAGE_BYTES, 0, NULL, NULL, &e);
    if (e) {
        dev->cl->ReleaseMemObject(st->mem);
        return ocl_status(dev, e, INFER_E_NO_MEMORY, "map pinned memory");
    }
    st->free = UINT64_MAX;
    pthread_mutex_init(&st->mu, NULL);
    return INFER_OK;
}

void ocl_stage_close(infer_device *dev)
{
    (void)dev->cl->EnqueueUnmapMemObject(dev->setup, dev->stage.mem, dev->stage.at, 0, NULL, NULL);
    (void)dev->cl->Finish(dev->setup);
    dev->cl->ReleaseMemObject(dev->stage.mem);
    pthread_mutex_destroy(&dev->stage.mu);
}

/* A place for a transfer of q, which a landing of q->staged gives back; NULL: fewer than `want` are free. */
static uint8_t *take(infer_queue *q, void *host, uint64_t bytes, uint64_t want)
{
    ocl_stage *st = &q->dev->stage;
    uint8_t *p = NULL;
    pthread_mutex_lock(&st->mu);
    if ((uint64_t)__builtin_popcountll(st->free) >= want) {
        uint32_t place = (uint32_t)__builtin_ctzll(st->free);
        st->free &= st->free - 1;
        st->way[st->n++] = (ocl_transfer){q->id, ++q->staged, host, (uint32_t)bytes, place};
        p = st->at + (size_t)place * OCL_STAGE_BYTES;
    }
    pthread_mutex_unlock(&st->mu);
    return p;
}

void ocl_stage_land(infer_device *dev, uint64_t queue, uint64_t staged, int good)
{
    ocl_stage *st = &dev->stage;
    uint32_t left = 0;
    pthread_mutex_lock(&st->mu);
    for (uint32_t i = 0; i < st->n; i++) {
        const ocl_transfer t = st->way[i];
        if (t.queue != queue || t.number > staged) {
            st->way[left++] = t;
            continue;
        }
        if (t.host && good)
            memcpy(t.host, st->at + (size_t)t.place * OCL_STAGE_BYTES, t.bytes);
        st->free |= UINT64_C(1) << t.place;
    }
    st->n = left;
    pthread_mutex_unlock(&st->mu);
}

int ocl_stage_read(infer_queue *q, cl_mem mem, uint64_t from, void *host, uint64_t bytes, cl_int *e)
{
    uint8_t *p = bytes <= OCL_STAGE_BYTES ? take(q, host, bytes, 1) : NULL;
    if (!p)
        return 0;
    *e = q->dev->cl->EnqueueReadBuffer(q->q, mem, CL_FALSE, from, (size_t)bytes, p, 0, NULL, NULL);
    if (*e) { /* nothing comes: its bytes go nowhere, its place is free with those before it */
        ocl_stage *st = &q->dev->stage;
        pthread_mutex_lock(&st->mu);
        for (uint32_t i = 0; i < st->n; i++)
            if (st->way[i].queue == q->id && st->way[i].number == q->staged)
                st->way[i].host = NULL;
        pthread_mutex_unlock(&st->mu);
    }
    return 1;
}

int ocl_stage_meets(const infer_queue *q, const uint8_t *host, uint64_t bytes)
{
    ocl_stage *st = &q->dev->stage;
    const uintptr_t from = (uintptr_t)host;
    int meets = 0;
    pthread_mutex_lock(&st->mu);
    for (uint32_t i = 0; i < st->n; i++) {
        const uintptr_t at = (uintptr_t)st->way[i].host;
        meets |= at && st->way[i].queue == q->id && at < from + bytes && from < at + st->way[i].bytes;
    }
    pthread_mutex_unlock(&st->mu);
    return meets;
}

infer_status ocl_cmd_update(infer_queue *queue, const infer_range *dst, const void *data, uint64_t bytes)
{
    infer_device *dev = queue->dev;
    const uint8_t *from = data;
    const uint64_t places = (bytes + OCL_STAGE_BYTES - 1) / OCL_STAGE_BYTES;
    cl_int e = CL_SUCCESS;
    if (places > OCL_STAGE_PLACES) /* no small one: waits */
        e = dev->cl->EnqueueWriteBuffer(queue->q, dst->buffer->mem, CL_TRUE, dst->offset, (size_t)bytes, data, 0, NULL,
                                        NULL);
    for (uint64_t i = 0; i < places && places <= OCL_STAGE_PLACES && !e; i++) {
        const uint64_t done = i * OCL_STAGE_BYTES, n = bytes - done < OCL_STAGE_BYTES ? bytes - done : OCL_STAGE_BYTES;
        uint8_t *p = take(queue, NULL, n, places - i);
        if (!p) /* of a device's queues one takes places at a time, or the same bytes are written once more */
            return INFER_AGAIN;
        memcpy(p, from + done, (size_t)n);
        e = dev->cl->EnqueueWriteBuffer(queue->q, dst->buffer->mem, CL_FALSE, dst->offset + done, (size_t)n, p, 0, NULL,
                                        NULL);
    }
    return ocl_status(dev, e, INFER_E_QUEUE, "update");
}
