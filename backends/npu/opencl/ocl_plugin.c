/* The OpenCL backend's descriptor and function table, and how failures become statuses. SPDX-License-Identifier:
 * Apache-2.0 */
#include "config.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ocl.h"

infer_status ocl_fail(const infer_host *host, infer_status s, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    host->status_detail(host->ctx, s, text);
    return s;
}

/* Errors after which nothing of the device's context works. The last three are NVIDIA's for a fault in a kernel. */
static int is_lost(cl_int e)
{
    return e == CL_INVALID_COMMAND_QUEUE || e == CL_INVALID_CONTEXT || e == CL_DEVICE_NOT_AVAILABLE || e == -9999 ||
           e == -9998 || e == -9997;
}

infer_status ocl_status(infer_device *dev, cl_int e, infer_status s, const char *what)
{
    if (e == CL_SUCCESS)
        return INFER_OK;
    if (is_lost(e)) {
        s = INFER_E_DEVICE_LOST;
        atomic_store(&dev->failed, s);
    }
    return ocl_fail(dev->host, s, "%s on %s: %s (%d)", what, dev->name, cl_error_name(e), e);
}

static const infer_backend_ops ops = {
    .struct_size = sizeof ops,
    .probe = ocl_probe,
    .dev_open = ocl_dev_open,
    .dev_close = ocl_dev_close,
    .dev_props = ocl_dev_props,
    .dev_heaps = ocl_dev_heaps,
    .dev_heap_stats = ocl_dev_heap_stats,
    .buf_alloc = ocl_buf_alloc,
    .buf_free = ocl_buf_free,
    .queue_create = ocl_queue_create,
    .queue_destroy = ocl_queue_destroy,
    .queue_wait = ocl_queue_wait,
    .queue_signal = ocl_queue_signal,
    .cmd_copy = ocl_cmd_copy,
    .cmd_fill = ocl_cmd_fill,
    .op_query = ocl_op_query,
    .cmd_op = ocl_cmd_op,
    .dev_health = ocl_dev_health,
    .kv_query = ocl_kv_query,
    .weight_plan = ocl_weight_plan,
    .weight_begin = ocl_weight_begin,
    .weight_append = ocl_weight_append,
    .weight_finish = ocl_weight_finish,
    .weight_destroy = ocl_weight_destroy,
    .tl_create = ocl_tl_create,
    .tl_destroy = ocl_tl_destroy,
    .tl_query = ocl_tl_query,
    .tl_wait = ocl_tl_wait,
    .tl_signal_host = ocl_tl_signal_host,
    .cmd_update = ocl_cmd_update,
    .prog_build = ocl_prog_build,
    .prog_instantiate = ocl_prog_instantiate,
    .prog_update = ocl_prog_update,
    .prog_submit = ocl_prog_submit,
    .exec_destroy = ocl_exec_destroy,
    .prog_destroy = ocl_prog_destroy,
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
    .name = "opencl",
    .vendor = "infer",
    .version = INFER_VERSION_STRING,
    .build_id = OCL_BUILD_ID,
    .device_prefix = "opencl",
    .rank = -10, /* a maker's own interface to the same device is better */
    .sanitizer = SANITIZER,
    .ops = &ops,
};

const infer_plugin_desc *infer_plugin_query(const infer_host *host, const infer_abi_range *range)
{
    if (range->major != INFER_ABI_MAJOR || range->minor_max < INFER_ABI_MINOR || range->minor_min > INFER_ABI_MINOR) {
        host->log(host->ctx, 1, "opencl: the host does not speak ABI 0.1");
        return NULL;
    }
    return &desc;
}
