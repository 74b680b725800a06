/* The least module that loads: every required slot, and no device. SPDX-License-Identifier: Apache-2.0 */
#include <infer/backend.h>

static infer_status probe(const infer_host *host, infer_device_info *out, uint32_t cap, uint32_t *n)
{
    (void)host;
    (void)out;
    (void)cap;
    *n = 0;
    return INFER_OK;
}

static infer_status dev_open(const infer_host *host, uint32_t index, infer_device **out)
{
    (void)host;
    (void)index;
    (void)out;
    return INFER_E_NO_DEVICE;
}

static void dev_close(infer_device *dev)
{
    (void)dev;
}

static infer_status dev_props(infer_device *dev, infer_device_props *out)
{
    (void)dev;
    (void)out;
    return INFER_E_NO_DEVICE;
}

static infer_status dev_heaps(infer_device *dev, infer_heap_info *out, uint32_t cap, uint32_t *n)
{
    (void)dev;
    (void)out;
    (void)cap;
    (void)n;
    return INFER_E_NO_DEVICE;
}

static infer_status dev_heap_stats(infer_device *dev, uint32_t heap, infer_heap_stats *out)
{
    (void)dev;
    (void)heap;
    (void)out;
    return INFER_E_NO_DEVICE;
}

static infer_status buf_alloc(infer_device *dev, uint32_t heap, uint64_t bytes, infer_buffer **out)
{
    (void)dev;
    (void)heap;
    (void)bytes;
    (void)out;
    return INFER_E_NO_DEVICE;
}

static void buf_free(infer_device *dev, infer_buffer *buf)
{
    (void)dev;
    (void)buf;
}

static infer_status queue_create(infer_device *dev, uint32_t classes, infer_queue **out)
{
    (void)dev;
    (void)classes;
    (void)out;
    return INFER_E_NO_DEVICE;
}

static void queue_destroy(infer_device *dev, infer_queue *queue)
{
    (void)dev;
    (void)queue;
}

static infer_status queue_timeline(infer_queue *queue, infer_timeline *tl, uint64_t value)
{
    (void)queue;
    (void)tl;
    (void)value;
    return INFER_E_NO_DEVICE;
}

static infer_status cmd_copy(infer_queue *queue, const infer_copy_end *dst, const infer_copy_end *src,
                             const infer_copy_region *regions, uint32_t n)
{
    (void)queue;
    (void)dst;
    (void)src;
    (void)regions;
    (void)n;
    return INFER_E_NO_DEVICE;
}

static infer_status cmd_fill(infer_queue *queue, const infer_range *dst, uint32_t pattern, uint32_t pattern_bytes)
{
    (void)queue;
    (void)dst;
    (void)pattern;
    (void)pattern_bytes;
    return INFER_E_NO_DEVICE;
}

static infer_status op_query(infer_device *dev, const infer_op_desc *ops, uint32_t op_size, uint32_t n,
                             infer_op_answer *out, uint32_t answer_size)
{
    (void)dev;
    (void)ops;
    (void)op_size;
    (void)n;
    (void)out;
    (void)answer_size;
    return INFER_E_NO_DEVICE;
}

static infer_status cmd_op(infer_queue *queue, const infer_op_desc *op, const infer_op_args *args)
{
    (void)queue;
    (void)op;
    (void)args;
    return INFER_E_NO_DEVICE;
}

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
    .queue_wait = queue_timeline,
    .queue_signal = queue_timeline,
    .cmd_copy = cmd_copy,
    .cmd_fill = cmd_fill,
    .op_query = op_query,
    .cmd_op = cmd_op,
};

const infer_plugin_desc *infer_plugin_query(const infer_host *host, const infer_abi_range *range)
{
    static const infer_plugin_desc desc = {
        .struct_size = sizeof desc,
        .abi_major = INFER_ABI_MAJOR,
        .abi_minor = INFER_ABI_MINOR,
        .name = "tiny",
        .vendor = "test",
        .version = "1",
        .build_id = "1",
        .device_prefix = "tiny",
        .ops = &table,
    };
    (void)host;
    return range->major == INFER_ABI_MAJOR ? &desc : 0;
}
