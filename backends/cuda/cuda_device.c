/* Opening a device, what it says of itself and of its peers. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "cuda.h"

static pthread_mutex_t open_mu = PTHREAD_MUTEX_INITIALIZER;
static infer_device *open_devices;

static uint32_t figure(const infer_device *dev, cu_attribute what)
{
    int v = cuda_attribute(dev->cu, dev->id, what);
    return v > 0 ? (uint32_t)v : 0;
}

static void facts(infer_device *dev)
{
    size_t bytes = 0;
    if (dev->cu->DeviceGetName(dev->name, (int)sizeof dev->name, dev->id))
        snprintf(dev->name, sizeof dev->name, "cuda device %u", dev->index);
    if (!dev->cu->DeviceTotalMem(&bytes, dev->id))
        dev->memory = bytes;
    dev->tune = (cuda_tune){.sms = figure(dev, CU_ATTR_SM_COUNT),
                            .warp = figure(dev, CU_ATTR_WARP_SIZE),
                            .l2_bytes = figure(dev, CU_ATTR_L2_BYTES),
                            .cc = 10 * figure(dev, CU_ATTR_CC_MAJOR) + figure(dev, CU_ATTR_CC_MINOR),
                            .shared_per_block = figure(dev, CU_ATTR_SHARED_PER_BLOCK_OPTIN),
                            .shared_per_sm = figure(dev, CU_ATTR_SHARED_PER_SM),
                            .registers_per_sm = figure(dev, CU_ATTR_REGISTERS_PER_SM),
                            .threads_per_sm = figure(dev, CU_ATTR_THREADS_PER_SM)};
    /* two transfers a clock */
    dev->read_bytes_per_s = 2e3 * figure(dev, CU_ATTR_MEMORY_CLOCK_KHZ) * (figure(dev, CU_ATTR_MEMORY_BUS_BITS) / 8.0);
}

infer_status cuda_dev_open(const infer_host *host, uint32_t index, infer_device **out)
{
    char why[200] = "";
    cu_result e;
    cu_device id;
    const cu_api *cu = cuda_api(host, &e, why, sizeof why);
    if (!cu)
        return cuda_fail(host, INFER_E_NO_DEVICE, "%s", why);
    if (cu->DeviceGet(&id, (int)index))
        return cuda_fail(host, INFER_E_NO_DEVICE, "cuda: there is no device %u", index);
    const char *no = cuda_unusable(cu, id);
    if (no)
        return cuda_fail(host, INFER_E_UNSUPPORTED, "cuda: device %u cannot be used: %s", index, no);
    infer_device *dev = host->alloc(host->ctx, sizeof *dev, _Alignof(infer_device));
    if (!dev)
        return cuda_fail(host, INFER_E_NO_MEMORY, "cuda: no host memory for the device");
    memset(dev, 0, sizeof *dev);
    dev->host = host;
    dev->cu = cu;
    dev->id = id;
    dev->index = index;
    dev->capture.dev = dev;
    const char *packed = host->config_get(host->ctx, "packed");
    const char *many = host->config_get(host->ctx, "attn_many");
    const char *panels = host->config_get(host->ctx, "panels");
    dev->packed = !packed || strcmp(packed, "0");
    dev->panels = !panels || strcmp(panels, "0");
    const char *same = host->config_get(host->ctx, "deterministic");
    dev->deterministic = same && strcmp(same, "0") != 0;
    dev->attn_many = !(many && !strcmp(many, "0")) && !dev->deterministic; /* takes rows by how many a sequence has */
    pthread_mutex_init(&dev->mu, NULL);
    facts(dev);
    int version = 0;
    dev->early = dev->tune.cc >= 90 && !cu->DriverGetVersion(&version) && version >= CU_LAUNCH_EARLY_GRAPH;
    infer_status s = cuda_status(dev, cu->PrimaryCtxRetain(&dev->context, id), INFER_E_NO_DEVICE, "make a context");
    if (s)
        goto err_dev;
    cuda_enter(dev);
    s = cuda_status(dev, cu->StreamCreate(&dev->capture.stream, CU_STREAM_APART), INFER_E_NO_MEMORY, "make a stream");
    if (s)
        goto err_context;
    s = cuda_kernels_load(dev);
    if (s)
        goto err_stream;
    pthread_mutex_lock(&open_mu);
    dev->next = open_devices;
    open_devices = dev;
    pthread_mutex_unlock(&open_mu);
    *out = dev;
    return INFER_OK;
err_stream:
    (void)cu->StreamDestroy(dev->capture.stream);
err_context:
    (void)cu->PrimaryCtxRelease(id);
err_dev:
    pthread_mutex_destroy(&dev->mu);
    host->free(host->ctx, dev);
    return s;
}

void cuda_dev_close(infer_device *dev)
{
    const infer_host *host = dev->host;
    pthread_mutex_lock(&open_mu);
    infer_device **at = &open_devices;
    while (*at != dev)
        at = &(*at)->next;
    *at = dev->next;
    pthread_mutex_unlock(&open_mu);
    cuda_enter(dev);
    cuda_words_free(dev);
    cuda_packers_free(dev);
    cuda_kernels_unload(dev);
    (void)dev->cu->StreamDestroy(dev->capture.stream);
    (void)dev->cu->PrimaryCtxRelease(dev->id);
    (void)dev->cu->CtxSetCurrent(NULL); /* nothing of it stays with this thread */
    pthread_mutex_destroy(&dev->mu);
    host->free(host->ctx, dev);
}

/* Formats of weights whose kernels are there. */
static uint64_t formats_of(const infer_device *dev)
{
    uint64_t formats = 0;
#define X(file, id, name) formats |= (uint64_t)(dev->kernels[CUDA_K_mv1_##name] != NULL) << INFER_FMT_##id;
    CUDA_FORMATS(X)
#undef X
    return formats;
}

infer_status cuda_dev_props(infer_device *dev, infer_device_props *out)
{
    infer_device_props p = {.flags = INFER_PROP_ROW_INVARIANT | INFER_PROP_WANTS_BUCKETS | INFER_PROP_PARALLEL_LOAD,
                            .buffer_align = CUDA_BIND_ALIGN,
                            .formats = formats_of(dev),
                            .n_queues = 2,
                            .max_buffer = dev->memory,
                            .read_bytes_per_s = dev->read_bytes_per_s,
                            .n_cores = dev->tune.sms,
                            .simd_width = dev->tune.warp};
    snprintf(p.isa, sizeof p.isa, "sm_%u", dev->tune.cc);
    launch_put(out, &p, sizeof p);
    return INFER_OK;
}

infer_status cuda_dev_heaps(infer_device *dev, infer_heap_info *out, uint32_t cap, uint32_t *n)
{
    if (cap) {
        infer_heap_info h = {.flags = INFER_HEAP_DEVICE_LOCAL,
                             .size = dev->memory,
                             .granularity = CUDA_BIND_ALIGN,
                             .align = CUDA_BIND_ALIGN,
                             .numa_node = -1};
        launch_put(out, &h, sizeof h);
    }
    *n = 1;
    return INFER_OK;
}

/* What is free shrinks by more than what we take: memory goes out in pages of 2 MiB, and graphs and the kernels' stacks
 * come from it later. A 64th of it all, at most 256 MiB, is left for that. */
infer_status cuda_dev_heap_stats(infer_device *dev, uint32_t heap, infer_heap_stats *out)
{
    size_t free_bytes = 0, total = 0;
    if (heap)
        return cuda_fail(dev->host, INFER_E_INVALID, "cuda: there is only heap 0");
    cuda_enter(dev);
    infer_status s = cuda_status(dev, dev->cu->MemGetInfo(&free_bytes, &total), INFER_E_DEVICE_LOST, "ask for memory");
    if (s)
        return s;
    uint64_t used = atomic_load(&dev->used), keep = dev->memory / 64, left = free_bytes;
    keep = keep < (256u << 20) ? keep : 256u << 20;
    left = left > keep ? left - keep : 0;
    uint64_t budget = used + left < dev->memory ? used + left : dev->memory;
    infer_heap_stats st = {
        .total = {.value = dev->memory, .quality = INFER_KNOWN_EXACT},
        .budget = {.value = budget, .quality = INFER_KNOWN_ESTIMATE},
        .ours = {.value = used, .quality = INFER_KNOWN_EXACT},
        .others = {.value = total > free_bytes + used ? total - free_bytes - used : 0, .quality = INFER_KNOWN_ESTIMATE},
        .largest_free = {.value = free_bytes, .quality = INFER_KNOWN_ESTIMATE}};
    launch_put(out, &st, sizeof st);
    return INFER_OK;
}

infer_status cuda_dev_health(infer_device *dev, infer_health *out)
{
    infer_status s = atomic_load(&dev->failed);
    infer_health h = {.state = s ? INFER_HEALTH_LOST : INFER_HEALTH_OK, .status = s};
    if (s)
        snprintf(h.reason, sizeof h.reason, "the driver has given the device's context up");
    launch_put(out, &h, sizeof h);
    return INFER_OK;
}

/* The driver copies between any two devices, but where they do not reach each other it goes through the host, as the
 * core does too. */
infer_status cuda_dev_edge(infer_device *dev, uint32_t peer, infer_edge_info *out)
{
    infer_edge_info edge = {.mode = INFER_EDGE_STAGED};
    cu_device id;
    int can = 0;
    if (!dev->cu->DeviceGet(&id, (int)peer) && id != dev->id && !dev->cu->DeviceCanAccessPeer(&can, dev->id, id) &&
        can) {
        pthread_mutex_lock(&open_mu);
        const infer_device *other = open_devices;
        while (other && other->index != peer)
            other = other->next;
        if (other) {
            cuda_enter(dev);
            cu_result e = dev->cu->CtxEnablePeerAccess(other->context, 0);
            if (!e || e == CU_E_PEER_ALREADY_ENABLED)
                edge.mode = INFER_EDGE_DMA;
        }
        pthread_mutex_unlock(&open_mu);
    }
    launch_put(out, &edge, sizeof edge);
    return INFER_OK;
}
