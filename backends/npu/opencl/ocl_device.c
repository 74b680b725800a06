/* Opening a device, what it says of itself, and the table of how kernels are cut for it. SPDX-License-Identifier:
 * Apache-2.0 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ocl.h"

/* Work-groups along a launch's second axis that every driver takes; some GPUs have 16 bits for them. */
#define MAX_FOLD 65535u

/* Elements of a query that attention's local memory is to have room for where a work-group could be smaller. */
#define WIDE_HEAD 576

/* A CPU's driver runs a work-item as a loop: few and long ones. GPUs and the rest: 64 to 512 lanes. */
static const ocl_tune tune_cpu = {.lanes = 1,
                                  .row_lanes = 1,
                                  .attn_lanes = 1,
                                  .each = 512,
                                  .chunk = 32,
                                  .mv_lanes = 1,
                                  .mv_columns = 1,
                                  .mv_serial = 8,
                                  .mv_rows = 8};
static const ocl_tune tune_gpu = {.lanes = 128,
                                  .row_lanes = 512,
                                  .attn_lanes = 512,
                                  .each = 1,
                                  .mv_lanes = 32,
                                  .mv_columns = 4,
                                  .mv_serial = 2,
                                  .mv_rows = 4,
                                  .mv_groups = 8,
                                  .tile = 64,
                                  .tile_from = 9};

/* The table's row, as the setting "tune" says; of themselves CPUs get long items, all else lanes. */
static infer_status choose_tune(infer_device *dev)
{
    const char *want = dev->host->config_get(dev->host->ctx, "tune");
    dev->tune = dev->is_cpu ? &tune_cpu : &tune_gpu;
    if (!want || !strcmp(want, "auto"))
        return INFER_OK;
    dev->tune = !strcmp(want, "items") ? &tune_cpu : &tune_gpu;
    return !strcmp(want, "items") || !strcmp(want, "lanes")
               ? INFER_OK
               : ocl_fail(dev->host, INFER_E_INVALID, "opencl: setting tune: \"%.20s\" is none of auto, items, lanes",
                          want);
}

/* A figure, or what a setting lowers it to. */
static infer_status lower(infer_device *dev, const char *key, uint32_t *figure)
{
    const char *text = dev->host->config_get(dev->host->ctx, key);
    char *end = NULL;
    unsigned long v = text ? strtoul(text, &end, 10) : *figure;
    if (!v || (text && (*end || *text == '-')))
        return ocl_fail(dev->host, INFER_E_INVALID, "opencl: setting %s: \"%.20s\" is no number above 0", key, text);
    *figure = v < *figure ? (uint32_t)v : *figure;
    return INFER_OK;
}

void ocl_text(const cl_api *cl, cl_device_id id, cl_device_info what, char *out, size_t cap)
{
    char text[512];
    size_t got = 0;
    out[0] = 0;
    if (cl->GetDeviceInfo(id, what, sizeof text, text, &got) == CL_SUCCESS && got && got <= sizeof text) {
        text[got - 1] = 0;
        const char *begin = text + strspn(text, " ");
        snprintf(out, cap, "%s", begin);
    }
}

uint64_t ocl_number(const cl_api *cl, cl_device_id id, cl_device_info what)
{
    uint64_t v = 0; /* little-endian hosts: a shorter answer fills the low bytes */
    return cl->GetDeviceInfo(id, what, sizeof v, &v, NULL) == CL_SUCCESS ? v : 0;
}

infer_status ocl_dev_open(const infer_host *host, uint32_t index, infer_device **out)
{
    char why[200] = "";
    cl_int e;
    const cl_api *cl = ocl_api(why, sizeof why);
    if (!cl)
        return ocl_fail(host, INFER_E_NO_DEVICE, "%s", why);
    cl_device_id id = ocl_device_at(cl, index);
    if (!id)
        return ocl_fail(host, INFER_E_NO_DEVICE, "opencl: there is no device %u", index);
    infer_device *dev = host->alloc(host->ctx, sizeof *dev, _Alignof(infer_device));
    if (!dev)
        return ocl_fail(host, INFER_E_NO_MEMORY, "opencl: no host memory for the device");
    memset(dev, 0, sizeof *dev);
    dev->host = host;
    dev->cl = cl;
    dev->id = id;
    ocl_text(cl, id, CL_DEVICE_NAME, dev->name, sizeof dev->name);
    ocl_text(cl, id, CL_DRIVER_VERSION, dev->driver, sizeof dev->driver);
    dev->is_cpu = (ocl_number(cl, id, CL_DEVICE_TYPE) & CL_DEVICE_TYPE_CPU) != 0;
    dev->unified = ocl_number(cl, id, CL_DEVICE_HOST_UNIFIED_MEMORY) != 0;
    dev->memory = ocl_number(cl, id, CL_DEVICE_GLOBAL_MEM_SIZE);
    dev->max_buffer = ocl_number(cl, id, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
    dev->local_bytes = ocl_number(cl, id, CL_DEVICE_LOCAL_MEM_SIZE);
    dev->units = (uint32_t)ocl_number(cl, id, CL_DEVICE_MAX_COMPUTE_UNITS);
    dev->units += !dev->units; /* it did not say */
    dev->cache_dir = host->config_get(host->ctx, "cache_dir");
    pthread_mutex_init(&dev->mu, NULL);
    infer_status s = choose_tune(dev);
    if (s)
        goto err_dev;
    const char *planes = host->config_get(host->ctx, "planes"), *merge = host->config_get(host->ctx, "merge");
    dev->planes = !planes || strcmp(planes, "0") != 0;
    dev->merge = !merge || strcmp(merge, "0") != 0;
    const char *same = host->config_get(host->ctx, "deterministic");
    dev->tile_from = same && strcmp(same, "0") ? INT32_MAX : (int32_t)dev->tune->tile_from;
    dev->row_lanes = dev->tune->row_lanes;
    dev->max_group = (uint32_t)ocl_number(cl, id, CL_DEVICE_MAX_WORK_GROUP_SIZE);
    dev->fold = MAX_FOLD;
    if ((s = lower(dev, "max_group", &dev->max_group)) || (s = lower(dev, "fold", &dev->fold)))
        goto err_dev;
    while (dev->row_lanes > dev->max_group && dev->row_lanes > 1)
        dev->row_lanes /= 2;
    if (dev->row_lanes < 256 && dev->tune->lanes > 1) {
        s = ocl_fail(host, INFER_E_UNSUPPORTED, "opencl: %s takes work-groups of less than 256", dev->name);
        goto err_dev;
    }
    dev->attn_lanes = dev->tune->attn_lanes < dev->row_lanes ? dev->tune->attn_lanes : dev->row_lanes;
    while (dev->attn_lanes > OCL_LEAST_LANES && ocl_attn_local(dev, dev->attn_lanes, WIDE_HEAD, 0) > dev->local_bytes)
        dev->attn_lanes /= 2;
    dev->context = cl->CreateContext(NULL, 1, &id, NULL, NULL, &e);
    if (e) {
        s = ocl_status(dev, e, INFER_E_NO_DEVICE, "create a context");
        goto err_dev;
    }
    dev->setup = cl->CreateCommandQueue(dev->context, id, 0, &e);
    if (e) {
        s = ocl_status(dev, e, INFER_E_NO_DEVICE, "create a queue");
        goto err_context;
    }
    dev->dummy = cl->CreateBuffer(dev->context, CL_MEM_READ_WRITE, 256, NULL, &e);
    if (e) {
        s = ocl_status(dev, e, INFER_E_NO_MEMORY, "allocate 256 bytes");
        goto err_queue;
    }
    s = ocl_stage_open(dev);
    if (s)
        goto err_dummy;
    *out = dev;
    return INFER_OK;
err_dummy:
    cl->ReleaseMemObject(dev->dummy);
err_queue:
    cl->ReleaseCommandQueue(dev->setup);
err_context:
    cl->ReleaseContext(dev->context);
err_dev:
    pthread_mutex_destroy(&dev->mu);
    host->free(host->ctx, dev);
    return s;
}

void ocl_dev_close(infer_device *dev)
{
    const infer_host *host = dev->host;
    ocl_programs_free(dev);
    ocl_stage_close(dev);
    dev->cl->ReleaseMemObject(dev->dummy);
    dev->cl->ReleaseCommandQueue(dev->setup);
    dev->cl->ReleaseContext(dev->context);
    pthread_mutex_destroy(&dev->mu);
    host->free(host->ctx, dev);
}

infer_status ocl_dev_props(infer_device *dev, infer_device_props *out)
{
    infer_device_props p = {.flags = INFER_PROP_ROW_INVARIANT | INFER_PROP_WANTS_BUCKETS,
                            .buffer_align = OCL_BIND_ALIGN,
                            .n_queues = 2,
                            .max_buffer = dev->max_buffer,
                            .n_cores = dev->units,
                            .simd_width = dev->tune->lanes};
    for (uint32_t f = 0; f < INFER_FMT_COUNT; f++)
        p.formats |= (uint64_t)(launch_format_bytes(f, 256) != 0) << f;
    snprintf(p.isa, sizeof p.isa, "OpenCL C 1.2, %s", dev->tune->lanes == 1 ? "long work-items" : "lanes");
    launch_put(out, &p, sizeof p);
    return INFER_OK;
}

infer_status ocl_dev_heaps(infer_device *dev, infer_heap_info *out, uint32_t cap, uint32_t *n)
{
    if (cap) {
        infer_heap_info h = {.flags = INFER_HEAP_DEVICE_LOCAL,
                             .size = dev->memory,
                             .granularity = OCL_BIND_ALIGN,
                             .align = OCL_BIND_ALIGN,
                             .numa_node = -1};
        launch_put(out, &h, sizeof h);
    }
    *n = 1;
    return INFER_OK;
}

/* OpenCL tells what there is, not what others use. */
infer_status ocl_dev_heap_stats(infer_device *dev, uint32_t heap, infer_heap_stats *out)
{
    if (heap)
        return ocl_fail(dev->host, INFER_E_INVALID, "opencl: there is only heap 0");
    uint64_t used = atomic_load(&dev->used), left = dev->memory > used ? dev->memory - used : 0;
    if (dev->is_cpu && ocl_host_memory_left() < left)
        left = ocl_host_memory_left();
    infer_heap_stats st = {.total = {.value = dev->memory, .quality = INFER_KNOWN_EXACT},
                           .budget = {.value = used + left, .quality = INFER_KNOWN_ESTIMATE},
                           .ours = {.value = used, .quality = INFER_KNOWN_EXACT},
                           .others = {.quality = INFER_KNOWN_NOT},
                           .largest_free = {.quality = INFER_KNOWN_NOT}};
    launch_put(out, &st, sizeof st);
    return INFER_OK;
}

infer_status ocl_dev_health(infer_device *dev, infer_health *out)
{
    infer_status s = atomic_load(&dev->failed);
    infer_health h = {.state = s ? INFER_HEALTH_LOST : INFER_HEALTH_OK, .status = s};
    if (s)
        snprintf(h.reason, sizeof h.reason, "the driver has given the device's context up");
    launch_put(out, &h, sizeof h);
    return INFER_OK;
}
