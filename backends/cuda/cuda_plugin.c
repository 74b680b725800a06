/* The CUDA backend's descriptor and function table, and how failures become statuses. SPDX-License-Identifier:
 * Apache-2.0 */
#include "config.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cuda.h"

infer_status cuda_fail(const infer_host *host, infer_status s, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    host->status_detail(host->ctx, s, text);
    return s;
}

/* What a result says is gone. A fault in a kernel takes the context along: every later call gives the same result until
 * the context is destroyed. Without the driver itself no device is left. */
static infer_status gone(cu_result e)
{
    switch (e) {
    case CU_E_DEINITIALIZED:
    case CU_E_NOT_INITIALIZED:
    case CU_E_SYSTEM_NOT_READY:
        return INFER_E_BACKEND_LOST;
    case CU_E_DEVICE_UNAVAILABLE:
    case CU_E_INVALID_CONTEXT:
    case CU_E_ECC_UNCORRECTABLE:
    case CU_E_NVLINK_UNCORRECTABLE:
    case CU_E_CONTAINED:
    case CU_E_ILLEGAL_ADDRESS:
    case CU_E_LAUNCH_TIMEOUT:
    case CU_E_CONTEXT_IS_DESTROYED:
    case CU_E_ASSERT:
    case CU_E_HARDWARE_STACK_ERROR:
    case CU_E_ILLEGAL_INSTRUCTION:
    case CU_E_MISALIGNED_ADDRESS:
    case CU_E_INVALID_ADDRESS_SPACE:
    case CU_E_INVALID_PC:
    case CU_E_LAUNCH_FAILED:
    case CU_E_TENSOR_MEMORY_LEAK:
    case CU_E_EXTERNAL_DEVICE:
    case CU_E_UNKNOWN:
        return INFER_E_DEVICE_LOST;
    default:
        return INFER_OK;
    }
}

infer_status cuda_status(infer_device *dev, cu_result e, infer_status s, const char *what)
{
    if (e == CU_OK)
        return INFER_OK;
    infer_status lost = gone(e);
    if (lost && !atomic_flag_test_and_set(&dev->has_cause)) {
        snprintf(dev->cause, sizeof dev->cause, "%s on %s: %s (%u)", what, dev->name, cu_error_name(dev->cu, e), e);
        atomic_store(&dev->failed, lost);
    }
    return cuda_fail(dev->host, lost ? lost : s, "%s on %s: %s (%u)", what, dev->name, cu_error_name(dev->cu, e), e);
}

infer_status cuda_failed_before(infer_device *dev, infer_status s)
{
    if (atomic_load(&dev->failed))
        return cuda_fail(dev->host, s, "%s", dev->cause);
    return cuda_fail(dev->host, s, "cuda: work on %s was given up, as what it waited for has failed", dev->name);
}

/* A context that is gone shows in the call that follows. */
void cuda_enter(const infer_device *dev)
{
    (void)dev->cu->CtxSetCurrent(dev->context);
}

static const infer_backend_ops ops = {
    .struct_size = sizeof ops,
    .probe = cuda_probe,
    .dev_open = cuda_dev_open,
    .dev_close = cuda_dev_close,
    .dev_props = cuda_dev_props,
    .dev_heaps = cuda_dev_heaps,
    .dev_heap_stats = cuda_dev_heap_stats,
    .buf_alloc = cuda_buf_alloc,
    .buf_free = cuda_buf_free,
    .queue_create = cuda_queue_create,
    .queue_destroy = cuda_queue_destroy,
    .queue_wait = cuda_queue_wait,
    .queue_signal = cuda_queue_signal,
    .cmd_copy = cuda_cmd_copy,
    .cmd_fill = cuda_cmd_fill,
    .op_query = cuda_op_query,
    .cmd_op = cuda_cmd_op,
    .dev_edge = cuda_dev_edge,
    .dev_health = cuda_dev_health,
    .weight_plan = cuda_weight_plan,
    .weight_begin = cuda_weight_begin,
    .weight_append = cuda_weight_append,
    .weight_finish = cuda_weight_finish,
    .weight_destroy = cuda_weight_destroy,
    .tl_create = cuda_tl_create,
    .tl_destroy = cuda_tl_destroy,
    .tl_query = cuda_tl_query,
    .tl_wait = cuda_tl_wait,
    .tl_signal_host = cuda_tl_signal_host,
    .cmd_update = cuda_cmd_update,
    .kv_query = cuda_kv_query,
    .prog_build = cuda_prog_build,
    .prog_instantiate = cuda_prog_instantiate,
    .prog_update = cuda_prog_update,
    .prog_submit = cuda_prog_submit,
    .exec_destroy = cuda_exec_destroy,
    .prog_destroy = cuda_prog_destroy,
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
    .name = "cuda",
    .vendor = "infer",
    .version = INFER_VERSION_STRING,
    .build_id = CUDA_BUILD_ID,
    .device_prefix = "cuda",
    .rank = 10, /* the maker's own interface; CUDA_VISIBLE_DEVICES is honoured by the driver */
    .sanitizer = SANITIZER,
    .ops = &ops,
};

const infer_plugin_desc *infer_plugin_query(const infer_host *host, const infer_abi_range *range)
{
    if (range->major != INFER_ABI_MAJOR || range->minor_max < INFER_ABI_MINOR || range->minor_min > INFER_ABI_MINOR) {
        host->log(host->ctx, 1, "cuda: the host does not speak ABI 0.1");
        return NULL;
    }
    return &desc;
}
