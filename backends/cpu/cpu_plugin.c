/* The CPU backend's descriptor and function table. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stddef.h>

#include "cpu.h"

static const infer_backend_ops ops = {
    .struct_size = sizeof ops,
    .probe = cpu_probe,
    .dev_open = cpu_dev_open,
    .dev_close = cpu_dev_close,
    .dev_props = cpu_dev_props,
    .dev_heaps = cpu_dev_heaps,
    .dev_heap_stats = cpu_dev_heap_stats,
    .buf_alloc = cpu_buf_alloc,
    .buf_free = cpu_buf_free,
    .queue_create = cpu_queue_create,
    .queue_destroy = cpu_queue_destroy,
    .queue_wait = cpu_queue_wait,
    .queue_signal = cpu_queue_signal,
    .cmd_copy = cpu_cmd_copy,
    .cmd_fill = cpu_cmd_fill,
    .op_query = cpu_op_query,
    .cmd_op = cpu_cmd_op,
    .buf_map = cpu_buf_map,
    .buf_unmap = cpu_buf_unmap,
    .buf_import_host = cpu_buf_import_host,
    .cmd_update = cpu_cmd_update,
    .kv_query = cpu_kv_query,
    .weight_plan = cpu_weight_plan,
    .weight_begin = cpu_weight_begin,
    .weight_append = cpu_weight_append,
    .weight_finish = cpu_weight_finish,
    .weight_destroy = cpu_weight_destroy,
};

#if defined(__SANITIZE_THREAD__)
#define SANITIZER INFER_SANITIZER_THREAD
#elif defined(__SANITIZE_ADDRESS__)
#define SANITIZER INFER_SANITIZER_ADDRESS
#else
#define SANITIZER INFER_SANITIZER_NONE
#endif

static const infer_plugin_desc desc = {
    .struct_size = sizeof desc,
    .abi_major = INFER_ABI_MAJOR,
    .abi_minor = INFER_ABI_MINOR,
    .min_host_minor = 1,
    .name = "cpu",
    .vendor = "infer",
    .version = INFER_VERSION_STRING,
    .build_id = "1",
    .device_prefix = "cpu",
    .rank = 0,
    .sanitizer = SANITIZER,
    .ops = &ops,
};

const infer_plugin_desc *infer_plugin_query(const infer_host *host, const infer_abi_range *range)
{
    if (range->major != INFER_ABI_MAJOR || range->minor_max < INFER_ABI_MINOR || range->minor_min > INFER_ABI_MINOR) {
        host->log(host->ctx, 1, "cpu: the host does not speak ABI 0.1");
        return NULL;
    }
    return &desc;
}
