/*
 * Copies, updates and fills. Between devices they are the driver's; what the host has is pageable as far as we know and
 * goes through the queue's ring of pinned memory: the driver would do the same, at 7 GB/s where pinned memory gives 55,
 * and would read or wait when it pleases. A large copy to the host returns when its bytes are there; a small one at
 * once. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <string.h>

#include "cuda.h"

enum { MAX_PITCH = 0x7FFFFFFF }; /* of device memory, as every device so far says */

/* ---- Between host and device: pieces that fit a segment -------------------------------------------------------- */

/* rows of width bytes: one row may be a part of the region's. */
typedef struct piece {
    uint8_t *host;
    cu_deviceptr at;
    uint64_t width, rows, host_pitch, pitch;
} piece;

/* A walk over a region, piece by piece. */
typedef struct walk {
    uint8_t *host;
    cu_deviceptr at;
    uint64_t bytes, rows, host_pitch, pitch;
    uint64_t row, col;
} walk;

static int next_piece(walk *w, piece *p)
{
    if (w->row == w->rows)
        return 0;
    *p = (piece){.host = w->host + w->row * w->host_pitch + w->col,
                 .at = w->at + w->row * w->pitch + w->col,
                 .width = w->bytes - w->col,
                 .rows = 1,
                 .host_pitch = w->host_pitch,
                 .pitch = w->pitch};
    if (p->width > CUDA_SEGMENT) {
        p->width = CUDA_SEGMENT;
        w->col += p->width;
        return 1;
    }
    if (!w->col && w->pitch >= w->bytes && w->pitch <= MAX_PITCH) { /* as many whole rows as fit */
        uint64_t fit = CUDA_SEGMENT / w->bytes, left = w->rows - w->row;
        p->rows = fit < left ? fit : left;
    }
    w->row += p->rows;
    w->col = 0;
    return 1;
}

static infer_status piece_copy(infer_queue *q, const piece *p, uint8_t *pinned, int up)
{
    const cu_api *cu = q->dev->cu;
    cu_result e;
    if (p->rows > 1 && p->pitch != p->width) {
        cu_memcpy2d c = {.width = p->width, .height = p->rows};
        if (up) {
            c.src_type = CU_MEMORY_HOST;
            c.src_host = pinned;
            c.src_pitch = p->width;
            c.dst_type = CU_MEMORY_DEVICE;
            c.dst_device = p->at;
            c.dst_pitch = p->pitch;
        } else {
            c.src_type = CU_MEMORY_DEVICE;
            c.src_device = p->at;
            c.src_pitch = p->pitch;
            c.dst_type = CU_MEMORY_HOST;
            c.dst_host = pinned;
            c.dst_pitch = p->width;
        }
        e = cu->Memcpy2DAsync(&c, q->stream);
    } else if (up)
        e = cu->MemcpyHtoDAsync(p->at, pinned, p->width * p->rows, q->stream);
    else
        e = cu->MemcpyDtoHAsync(pinned, p->at, p->width * p->rows, q->stream);
    return cuda_status(q->dev, e, INFER_E_QUEUE, "copy");
}

/* Between a piece's rows on the host and the pinned bytes, which are dense. */
static void piece_host(const piece *p, uint8_t *pinned, int up)
{
    uint64_t rows = p->host_pitch == p->width ? 1 : p->rows,
             width = p->host_pitch == p->width ? p->width * p->rows : p->width;
    for (uint64_t i = 0; i < rows; i++) {
        uint8_t *row = p->host + i * p->host_pitch, *dense = pinned + i * width;
        memcpy(up ? dense : row, up ? row : dense, (size_t)width);
    }
}

static infer_status upload(infer_queue *q, walk w)
{
    infer_status s = INFER_OK;
    piece p;
    while (!s && next_piece(&w, &p)) {
        uint8_t *pinned;
        s = cuda_ring_take(q, p.width * p.rows, &pinned);
        if (s)
            break;
        piece_host(&p, pinned, 1);
        s = piece_copy(q, &p, pinned, 1);
    }
    return s;
}

/* Up to half the ring is on its way while the oldest piece is copied out. */
static infer_status download(infer_queue *q, walk w)
{
    enum { AHEAD = CUDA_SEGMENTS / 2 };
    struct {
        piece p;
        uint8_t *pinned;
        uint32_t segment;
    } way[AHEAD];
    uint64_t put = 0, got = 0;
    infer_status s = INFER_OK;
    for (int more = 1; !s;) {
        while (more && !s && put - got < AHEAD) {
            uint64_t i = put % AHEAD;
            more = next_piece(&w, &way[i].p);
            if (!more)
                break;
            s = cuda_ring_take(q, way[i].p.width * way[i].p.rows, &way[i].pinned);
            s = s ? s : piece_copy(q, &way[i].p, way[i].pinned, 0);
            s = s ? s : cuda_ring_turn(q, &way[i].segment);
            put += !s;
        }
        if (s || put == got)
            break;
        uint64_t i = got++ % AHEAD;
        s = cuda_queue_await(q, q->ring.done[way[i].segment]);
        if (!s)
            piece_host(&way[i].p, way[i].pinned, 0);
    }
    return s;
}

/* A small copy to the host leaves its bytes in the ring. 0: it is not one. */
static int download_later(infer_queue *q, const walk *w, infer_status *s)
{
    uint8_t *pinned;
    if (w->rows != 1 || w->bytes > CUDA_LANDING || !cuda_land_room(q))
        return 0;
    *s = cuda_ring_take(q, w->bytes, &pinned);
    if (!*s)
        *s =
            cuda_status(q->dev, q->dev->cu->MemcpyDtoHAsync(pinned, w->at, w->bytes, q->stream), INFER_E_QUEUE, "copy");
    if (!*s)
        cuda_land_add(q, w->host, pinned, w->bytes);
    return 1;
}

/* ---- On devices -------------------------------------------------------------------------------------------------- */

static cu_result copy_run(infer_queue *q, const infer_buffer *d, const infer_buffer *s, uint64_t to, uint64_t from,
                          uint64_t bytes)
{
    const cu_api *cu = q->dev->cu;
    if (d->dev != s->dev)
        return cu->MemcpyPeerAsync(d->at + to, d->dev->context, s->at + from, s->dev->context, bytes, q->stream);
    if (d != s || from >= to + bytes || to >= from + bytes)
        return cu->MemcpyDtoDAsync(d->at + to, s->at + from, bytes, q->stream);
    cu_result e = CU_OK; /* onto itself: from the end that is overwritten last, each piece by way of a third place */
    for (uint64_t done = 0; done < bytes && !e && from != to;) {
        uint64_t n = bytes - done < CUDA_SEGMENT ? bytes - done : CUDA_SEGMENT;
        uint64_t at = to < from ? done : bytes - done - n;
        e = cu->MemcpyDtoDAsync(q->between, s->at + from + at, n, q->stream);
        e = e ? e : cu->MemcpyDtoDAsync(d->at + to + at, q->between, n, q->stream);
        done += n;
    }
    return e;
}

static cu_result copy_rows(infer_queue *q, const infer_buffer *d, const infer_buffer *s, const infer_copy_region *r)
{
    cu_result e = CU_OK;
    if (r->rows > 1 && d->dev == s->dev && d != s && r->src_pitch >= r->bytes && r->dst_pitch >= r->bytes &&
        r->src_pitch <= MAX_PITCH && r->dst_pitch <= MAX_PITCH) {
        const cu_memcpy2d c = {.src_type = CU_MEMORY_DEVICE,
                               .src_device = s->at + r->src_offset,
                               .src_pitch = r->src_pitch,
                               .dst_type = CU_MEMORY_DEVICE,
                               .dst_device = d->at + r->dst_offset,
                               .dst_pitch = r->dst_pitch,
                               .width = r->bytes,
                               .height = r->rows};
        return q->dev->cu->Memcpy2DAsync(&c, q->stream);
    }
    for (uint64_t j = 0; j < r->rows && !e; j++)
        e = copy_run(q, d, s, r->dst_offset + j * r->dst_pitch, r->src_offset + j * r->src_pitch, r->bytes);
    return e;
}

/* Waits for all of the queue's work. */
static infer_status settle(infer_queue *q)
{
    infer_status s = cuda_status(q->dev, q->dev->cu->EventRecord(q->settled, q->stream), INFER_E_QUEUE, "record");
    return s ? s : cuda_queue_await(q, q->settled);
}

/* Host memory is about to be read or written: what is on its way there comes first. */
static infer_status land_first(infer_queue *q, const void *host, const infer_copy_region *r, uint64_t pitch)
{
    if (!cuda_land_over(q, host, (r->rows - 1) * pitch + r->bytes))
        return INFER_OK;
    infer_status s = settle(q);
    if (!s)
        cuda_land_done(q, NULL, 0);
    return s;
}

infer_status cuda_cmd_copy(infer_queue *queue, const infer_copy_end *dst, const infer_copy_end *src,
                           const infer_copy_region *regions, uint32_t n)
{
    infer_status s = cuda_queue_enter(queue);
    for (uint32_t i = 0; i < n && !s; i++) {
        const infer_copy_region *r = &regions[i];
        if (!r->bytes || !r->rows)
            continue;
        walk w = {.bytes = r->bytes, .rows = r->rows};
        if (dst->buffer && src->buffer) {
            s = cuda_status(queue->dev, copy_rows(queue, dst->buffer, src->buffer, r), INFER_E_QUEUE, "copy");
        } else if (dst->buffer) {
            w.host = (uint8_t *)src->host + r->src_offset;
            w.host_pitch = r->src_pitch;
            w.at = dst->buffer->at + r->dst_offset;
            w.pitch = r->dst_pitch;
            s = land_first(queue, w.host, r, w.host_pitch);
            s = s ? s : upload(queue, w);
        } else if (src->buffer) {
            w.host = (uint8_t *)dst->host + r->dst_offset;
            w.host_pitch = r->dst_pitch;
            w.at = src->buffer->at + r->src_offset;
            w.pitch = r->src_pitch;
            if (!download_later(queue, &w, &s)) {
                s = land_first(queue, w.host, r, w.host_pitch);
                s = s ? s : download(queue, w);
            }
        } else {
            s = settle(queue);
            if (!s)
                cuda_land_done(queue, NULL, 0);
            for (uint64_t j = 0; j < r->rows && !s; j++)
                memmove((uint8_t *)dst->host + r->dst_offset + j * r->dst_pitch,
                        (const uint8_t *)src->host + r->src_offset + j * r->src_pitch, (size_t)r->bytes);
        }
    }
    return s;
}

infer_status cuda_cmd_update(infer_queue *queue, const infer_range *dst, const void *data, uint64_t bytes)
{
    infer_status s = cuda_queue_enter(queue);
    const walk w = {.host = (uint8_t *)(uintptr_t)data, .at = dst->buffer->at + dst->offset, .bytes = bytes, .rows = 1};
    return s || !bytes ? s : upload(queue, w);
}

/* ---- Fills --------------------------------------------------------------------------------------------------------
 */

/* The driver wants a fill to begin at a multiple of its pattern. One that does not has a few bytes before and behind,
 * and between them the pattern turned round. */
infer_status cuda_cmd_fill(infer_queue *queue, const infer_range *dst, uint32_t pattern, uint32_t pattern_bytes)
{
    infer_device *dev = queue->dev;
    const cu_api *cu = dev->cu;
    if ((pattern_bytes != 1 && pattern_bytes != 2 && pattern_bytes != 4) || dst->size % pattern_bytes)
        return cuda_fail(dev->host, INFER_E_INVALID, "cuda: fill of %llu bytes by %u", (unsigned long long)dst->size,
                         pattern_bytes);
    infer_status s = cuda_queue_enter(queue);
    if (s || !dst->size)
        return s;
    cu_deviceptr at = dst->buffer->at + dst->offset;
    uint32_t head = (uint32_t)(0 - at) & (pattern_bytes - 1), turned = 0;
    uint64_t words = (dst->size - head) / pattern_bytes;
    uint8_t byte[4];
    for (uint32_t i = 0; i < pattern_bytes; i++)
        byte[i] = (uint8_t)(pattern >> 8 * i);
    for (uint32_t i = 0; i < pattern_bytes; i++)
        turned |= (uint32_t)byte[(head + i) % pattern_bytes] << 8 * i;
    cu_result e = CU_OK;
    for (uint32_t i = 0; i < head && !e; i++)
        e = cu->MemsetD8Async(at + i, byte[i], 1, queue->stream);
    if (e || !words)
        ; /* nothing between */
    else if (pattern_bytes == 1)
        e = cu->MemsetD8Async(at, (uint8_t)turned, words, queue->stream);
    else if (pattern_bytes == 2)
        e = cu->MemsetD16Async(at + head, (uint16_t)turned, words, queue->stream);
    else
        e = cu->MemsetD32Async(at + head, turned, words, queue->stream);
    for (uint64_t i = head + words * pattern_bytes; i < dst->size && !e; i++)
        e = cu->MemsetD8Async(at + i, byte[i % pattern_bytes], 1, queue->stream);
    return cuda_status(dev, e, INFER_E_QUEUE, "fill");
}
