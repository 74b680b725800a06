/*
 * skeleton: a complete small plugin, to copy (new-backend.sh NAME) and to change slot by slot. It includes the
 * installed plugin header and nothing else of infer. Read from the table at the end. PORTING.md says in which order to
 * replace what: "HERE" marks the places where a call of the vendor's runtime goes.
 *
 * What it shows: memory that the host does not map (everything comes and goes by cmd_copy), an in-order queue, the
 * host's timelines, a few ops. What it leaves to the core: all else.
 * Setting: heap_bytes, the size of the device's memory (a number of bytes; default: what the machine has).
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "skeleton.h"

enum { ALIGN = 64 };

/* Fills a caller's struct, who may know fewer fields than this file: the first word of dst is the size to respect. */
static void put(void *dst, void *src, uint32_t size)
{
    uint32_t n;
    memcpy(&n, dst, sizeof n);
    memcpy(src, &n, sizeof n);
    memcpy(dst, src, n < size ? n : size);
}

/* ---- Devices: which there are, open, close, what they are ----------------------------------------------------- */

static uint64_t memory_of(const infer_host *host)
{
    const char *s = host->config_get(host->ctx, "heap_bytes"); /* from infer-conform --set; never the environment */
    if (s)
        return strtoull(s, NULL, 10);
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 0;
}

/* HERE: dlopen the vendor's library (never link it: a machine without it must still load this file), count devices,
 * fill name, pci, uuid, driver. No context yet: this runs in every infer program, on every start. Without the library
 * return INFER_E_NO_DEVICE and say which file was looked for. */
static infer_status probe(const infer_host *host, infer_device_info *out, uint32_t cap, uint32_t *n)
{
    *n = 1;
    if (!cap)
        return INFER_OK;
    /* KIND_SOFTWARE: used when asked for by name only. A real device is INFER_KIND_NPU or INFER_KIND_GPU. */
    infer_device_info d = {.kind = INFER_KIND_SOFTWARE,
                           .index = 0,
                           .numa_node = -1,
                           .name = "skeleton: host memory as a device",
                           .driver = "skeleton " SKELETON_VERSION,
                           .memory_total = memory_of(host)};
    put(out, &d, sizeof d); /* with several devices: step through out by out[0].struct_size */
    return INFER_OK;
}

/* HERE: the context. */
static infer_status dev_open(const infer_host *host, uint32_t index, infer_device **out)
{
    if (index)
        return skeleton_fail(host, INFER_E_NO_DEVICE, "skeleton: there is only device 0");
    infer_device *dev = host->alloc(host->ctx, sizeof *dev, ALIGN);
    if (!dev)
        return skeleton_fail(host, INFER_E_NO_MEMORY, "skeleton: no host memory for the device");
    *dev = (infer_device){.host = host, .memory = memory_of(host)};
    *out = dev;
    return INFER_OK;
}

static void dev_close(infer_device *dev)
{
    dev->host->free(dev->host->ctx, dev);
}

/* Rates may stay 0, which means unknown. INFER_PROP_INLINE is true as long as queue work runs inside the call. */
static infer_status dev_props(infer_device *dev, infer_device_props *out)
{
    infer_device_props p = {.flags = INFER_PROP_INLINE | INFER_PROP_ROW_INVARIANT,
                            .buffer_align = ALIGN,
                            .n_queues = 1,
                            .formats = 1u << INFER_FMT_F32 | 1u << INFER_FMT_F16 | 1u << INFER_FMT_BF16,
                            .max_buffer = dev->memory,
                            .n_cores = 1};
    put(out, &p, sizeof p);
    return INFER_OK;
}

/* No HOST_VISIBLE flag: the core then never asks for a pointer and copies instead. */
static infer_status dev_heaps(infer_device *dev, infer_heap_info *out, uint32_t cap, uint32_t *n)
{
    *n = 1;
    if (!cap)
        return INFER_OK;
    infer_heap_info h = {
        .flags = INFER_HEAP_DEVICE_LOCAL, .size = dev->memory, .granularity = ALIGN, .align = ALIGN, .numa_node = -1};
    put(out, &h, sizeof h);
    return INFER_OK;
}

/* The cache is sized from `budget`. Say KNOWN_NOT where the driver does not tell; 0 would mean "none". */
static infer_status dev_heap_stats(infer_device *dev, uint32_t heap, infer_heap_stats *out)
{
    if (heap)
        return skeleton_fail(dev->host, INFER_E_INVALID, "skeleton: there is only heap 0");
    infer_heap_stats st = {.total = {.value = dev->memory, .quality = INFER_KNOWN_EXACT},
                           .budget = {.value = dev->memory, .quality = INFER_KNOWN_ESTIMATE},
                           .ours = {.value = dev->used, .quality = INFER_KNOWN_EXACT},
                           .others = {.quality = INFER_KNOWN_NOT},
                           .largest_free = {.quality = INFER_KNOWN_NOT}};
    put(out, &st, sizeof st);
    return INFER_OK;
}

/* ---- Memory --------------------------------------------------------------------------------------------------- */

/* HERE: the device allocator. A request that does not fit is NO_MEMORY, never a smaller or a shared block. */
static infer_status buf_alloc(infer_device *dev, uint32_t heap, uint64_t bytes, infer_buffer **out)
{
    const infer_host *host = dev->host;
    if (heap || !bytes)
        return skeleton_fail(host, INFER_E_INVALID, "skeleton: buf_alloc: heap 0 and at least one byte");
    if (bytes > dev->memory || dev->used > dev->memory - bytes)
        return skeleton_fail(host, INFER_E_NO_MEMORY, "skeleton: buf_alloc: more than the heap has free");
    infer_buffer *buf = host->alloc(host->ctx, sizeof *buf, ALIGN);
    uint8_t *p = host->alloc(host->ctx, bytes, ALIGN);
    if (!buf || !p) {
        host->free(host->ctx, buf);
        host->free(host->ctx, p);
        return skeleton_fail(host, INFER_E_NO_MEMORY, "skeleton: buf_alloc: no host memory");
    }
    *buf = (infer_buffer){.p = p, .bytes = bytes};
    dev->used += bytes;
    *out = buf;
    return INFER_OK;
}

static void buf_free(infer_device *dev, infer_buffer *buf)
{
    dev->used -= buf->bytes;
    dev->host->free(dev->host->ctx, buf->p);
    dev->host->free(dev->host->ctx, buf);
}

/* ---- Queue: in order, one submitting thread -------------------------------------------------------------------- */

/* HERE: the stream. */
static infer_status queue_create(infer_device *dev, uint32_t classes, infer_queue **out)
{
    if (!(classes & (INFER_QUEUE_COMPUTE | INFER_QUEUE_COPY)))
        return skeleton_fail(dev->host, INFER_E_INVALID, "skeleton: queue_create: no class of work that is known");
    infer_queue *q = dev->host->alloc(dev->host->ctx, sizeof *q, ALIGN);
    if (!q)
        return skeleton_fail(dev->host, INFER_E_NO_MEMORY, "skeleton: no host memory for the queue");
    q->dev = dev;
    *out = q;
    return INFER_OK;
}

static void queue_destroy(infer_device *dev, infer_queue *queue)
{
    dev->host->free(dev->host->ctx, queue);
}

/* Without tl_create every timeline is the host's: blocking here is right, this is the thread that may block. */
static infer_status queue_wait(infer_queue *queue, infer_timeline *tl, uint64_t value)
{
    const infer_host *host = queue->dev->host;
    return host->tl_wait(host->ctx, tl, value, UINT64_MAX);
}

/* HERE: synchronise the stream, then advance. That is correct and slow; next, let the runtime's completion callback or
 * a thread that waits for events advance the timeline. If the stream failed: tl_fail, and return INFER_E_QUEUE. */
static infer_status queue_signal(infer_queue *queue, infer_timeline *tl, uint64_t value)
{
    const infer_host *host = queue->dev->host;
    host->tl_advance(host->ctx, tl, value);
    return INFER_OK;
}

/* ---- Commands -------------------------------------------------------------------------------------------------- */

/* HERE: an asynchronous copy a region (2-D where rows > 1). Each end is one of our buffers or host memory, which stays
 * valid until the signal that follows. memmove: the two ends may be one buffer. */
static infer_status cmd_copy(infer_queue *queue, const infer_copy_end *dst, const infer_copy_end *src,
                             const infer_copy_region *regions, uint32_t n)
{
    uint8_t *to = dst->buffer ? dst->buffer->p : dst->host;
    const uint8_t *from = src->buffer ? src->buffer->p : src->host;
    (void)queue;
    for (const infer_copy_region *r = regions; r < regions + n; r++)
        for (uint64_t i = 0; i < r->rows; i++) /* rows is 1 where the pitches mean nothing */
            memmove(to + r->dst_offset + i * r->dst_pitch, from + r->src_offset + i * r->src_pitch, (size_t)r->bytes);
    return INFER_OK;
}

static infer_status cmd_fill(infer_queue *queue, const infer_range *dst, uint32_t pattern, uint32_t pattern_bytes)
{
    uint8_t *p = dst->buffer->p + dst->offset;
    (void)queue;
    for (uint64_t i = 0; i < dst->size; i++)
        p[i] = (uint8_t)(pattern >> 8 * (i % pattern_bytes));
    return INFER_OK;
}

/* ---- The table: required slots, then the others, absent, with what the core does instead ------------------------ */

static const infer_backend_ops table = {
    .struct_size = sizeof table,
    .probe = probe,
    .dev_open = dev_open,
    .dev_close = dev_close,
    .dev_props = dev_props,
    .dev_heaps = dev_heaps,
    .dev_heap_stats = dev_heap_stats,
    .buf_alloc = buf_alloc,
    .buf_free = buf_free,
    .queue_create = queue_create,
    .queue_destroy = queue_destroy,
    .queue_wait = queue_wait,
    .queue_signal = queue_signal,
    .cmd_copy = cmd_copy,
    .cmd_fill = cmd_fill,
    .op_query = skeleton_op_query,
    .cmd_op = skeleton_cmd_op,

    /* process-wide preparation: the core does nothing */
    .backend_init = NULL,
    .backend_fini = NULL,
    /* way to a peer of this backend: staged through host memory */
    .dev_edge = NULL,
    /* health: OK until a call returned a failure of device radius or more */
    .dev_health = NULL,

    /* (both or neither) host view of a buffer: the core stages through cmd_copy */
    .buf_map = NULL,
    .buf_unmap = NULL,
    /* host memory as a buffer without a copy: weights are copied into buffers of buf_alloc */
    .buf_import_host = NULL,
    /* sharing by handle: peers are reached through host memory */
    .buf_export = NULL,
    .buf_import = NULL,

    /* where and how a weight lies: canonical, in the format of the file */
    .weight_plan = NULL,
    /* (all four or none) conversion at load: none; bytes go in as they are, by cmd_copy */
    .weight_begin = NULL,
    .weight_append = NULL,
    .weight_finish = NULL,
    .weight_destroy = NULL,

    /* (all five or none) own timelines: the host's, which queue_wait and queue_signal are given */
    .tl_create = NULL,
    .tl_destroy = NULL,
    .tl_query = NULL,
    .tl_wait = NULL,
    .tl_signal_host = NULL,

    /* small updates of step data: inline devices by cmd_copy at once, others through a staging ring */
    .cmd_update = NULL,
    /* cache: canonical layout, any block size, F32, F16 and BF16 */
    .kv_query = NULL,

    /* nodes to compile whole: none */
    .prog_claim = NULL,
    /* (these six together) programs: the stock program, a list of cmd_op */
    .prog_build = NULL,
    .prog_instantiate = NULL,
    .prog_update = NULL,
    .prog_submit = NULL,
    .exec_destroy = NULL,
    .prog_destroy = NULL,
    /* compiled programs on disk: none are kept */
    .prog_save = NULL,
    .prog_load = NULL,

    /* collectives: devices of this backend are not grouped */
    .comm_unique_id = NULL,
    .comm_create = NULL,
    .comm_destroy = NULL,
    /* timings of ops: none; infer-bench still times whole steps */
    .prof_begin = NULL,
    .prof_read = NULL,
};

#ifndef SKELETON_BUILD_ID /* the Makefile gives a checksum of the sources */
#define SKELETON_BUILD_ID SKELETON_VERSION
#endif

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZER INFER_SANITIZER_ADDRESS
#elif defined(__SANITIZE_THREAD__)
#define SANITIZER INFER_SANITIZER_THREAD
#else
#define SANITIZER INFER_SANITIZER_NONE
#endif

const infer_plugin_desc *infer_plugin_query(const infer_host *host, const infer_abi_range *range)
{
    static const infer_plugin_desc desc = {
        .struct_size = sizeof desc,
        .abi_major = INFER_ABI_MAJOR,
        .abi_minor = INFER_ABI_MINOR,
        .min_host_minor = INFER_ABI_MINOR,
        .name = "skeleton", /* infer-conform --backend skeleton */
        .vendor = "your name",
        .version = SKELETON_VERSION,
        .build_id = SKELETON_BUILD_ID,
        .device_prefix = "skeleton", /* devices are skeleton0, skeleton1, … */
        .visibility = NULL,          /* "X_VISIBLE_DEVICES" where the vendor's library does not honour it itself */
        .rank = 0,
        .sanitizer = SANITIZER,
        .ops = &table,
    };
    if (range->major != INFER_ABI_MAJOR || range->minor_min > INFER_ABI_MINOR || range->minor_max < INFER_ABI_MINOR) {
        host->log(host->ctx, 0, "skeleton: built for another version of the plugin interface; build it anew");
        return NULL;
    }
    return &desc;
}
