/* Queues run each command inside the call that submits it; timelines are the host's software ones.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "cpu.h"

infer_status cpu_queue_create(infer_device *dev, uint32_t classes, infer_queue **out)
{
    const infer_host *host = dev->host;
    if (!(classes & (INFER_QUEUE_COMPUTE | INFER_QUEUE_COPY)) || classes & ~(INFER_QUEUE_COMPUTE | INFER_QUEUE_COPY))
        return cpu_fail(host, INFER_E_INVALID, "cpu: queue of classes %x", classes);
    infer_queue *q = host->alloc(host->ctx, sizeof *q, 64);
    if (!q)
        return cpu_fail(host, INFER_E_NO_MEMORY, "cpu: no memory for a queue");
    memset(q, 0, sizeof *q);
    q->dev = dev;
    q->rope.angles = host->alloc(host->ctx, sizeof(float) * 2 * CPU_ROPE_PAIRS * CPU_ROPE_SLOTS, 64);
    if (!q->rope.angles) {
        host->free(host->ctx, q);
        return cpu_fail(host, INFER_E_NO_MEMORY, "cpu: no memory for a queue");
    }
    *out = q;
    return INFER_OK;
}

void cpu_queue_destroy(infer_device *dev, infer_queue *queue)
{
    dev->host->free(dev->host->ctx, queue->rope.angles);
    dev->host->free(dev->host->ctx, queue);
}

infer_status cpu_queue_wait(infer_queue *queue, infer_timeline *tl, uint64_t value)
{
    const infer_host *host = queue->dev->host;
    return host->tl_wait(host->ctx, tl, value, UINT64_MAX);
}

infer_status cpu_queue_signal(infer_queue *queue, infer_timeline *tl, uint64_t value)
{
    const infer_host *host = queue->dev->host;
    host->tl_advance(host->ctx, tl, value);
    return INFER_OK;
}

/* ---- Copies ---------------------------------------------------------------------------------------------------- */

typedef struct copy_job {
    uint8_t *dst;
    const uint8_t *src;
    uint64_t bytes, piece;
} copy_job;

static void copy_chunk(void *ctx, int64_t chunk, uint32_t worker)
{
    const copy_job *j = ctx;
    uint64_t at = (uint64_t)chunk * j->piece, n = j->bytes - at < j->piece ? j->bytes - at : j->piece;
    (void)worker;
    memmove(j->dst + at, j->src + at, n);
}

static void copy_bytes(infer_device *dev, uint8_t *dst, const uint8_t *src, uint64_t bytes)
{
    enum { PIECE = 1 << 20 };
    int apart = dst + bytes <= src || src + bytes <= dst;
    if (bytes < 2 * PIECE || !apart) {
        if (bytes)
            memmove(dst, src, bytes);
        return;
    }
    copy_job j = {dst, src, bytes, PIECE};
    while ((bytes + j.piece - 1) / j.piece > 4096)
        j.piece *= 2;
    cpu_team_run(dev->team, (int64_t)((bytes + j.piece - 1) / j.piece), copy_chunk, &j);
}

infer_status cpu_cmd_copy(infer_queue *queue, const infer_copy_end *dst, const infer_copy_end *src,
                          const infer_copy_region *regions, uint32_t n)
{
    uint8_t *to = dst->buffer ? dst->buffer->p : dst->host;
    const uint8_t *from = src->buffer ? src->buffer->p : src->host;
    for (uint32_t i = 0; i < n; i++) {
        const infer_copy_region *r = &regions[i];
        uint64_t rows = r->rows;
        for (uint64_t j = 0; j < rows; j++)
            copy_bytes(queue->dev, to + r->dst_offset + j * r->dst_pitch, from + r->src_offset + j * r->src_pitch,
                       r->bytes);
    }
    return INFER_OK;
}

infer_status cpu_cmd_fill(infer_queue *queue, const infer_range *dst, uint32_t pattern, uint32_t pattern_bytes)
{
    uint8_t *p = dst->buffer->p + dst->offset;
    if (pattern_bytes != 1 && pattern_bytes != 2 && pattern_bytes != 4)
        return cpu_fail(queue->dev->host, INFER_E_INVALID, "cpu: fill pattern of %u bytes", pattern_bytes);
    if (dst->size % pattern_bytes)
        return cpu_fail(queue->dev->host, INFER_E_INVALID, "cpu: fill of a range that is no multiple of its pattern");
    uint8_t byte[4] = {(uint8_t)pattern, (uint8_t)(pattern >> 8), (uint8_t)(pattern >> 16), (uint8_t)(pattern >> 24)};
    if (pattern_bytes == 1) {
        memset(p, byte[0], dst->size);
        return INFER_OK;
    }
    for (uint64_t i = 0; i < dst->size; i += pattern_bytes)
        memcpy(p + i, byte, pattern_bytes);
    return INFER_OK;
}

infer_status cpu_cmd_update(infer_queue *queue, const infer_range *dst, const void *data, uint64_t bytes)
{
    (void)queue;
    if (bytes)
        memcpy(dst->buffer->p + dst->offset, data, bytes);
    return INFER_OK;
}
