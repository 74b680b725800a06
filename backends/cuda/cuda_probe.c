/* Which devices exist, in the driver's order. No context is made. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "cuda.h"

const cu_api *cuda_api(const infer_host *host, cu_result *e, char *why, size_t cap)
{
    static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
    static cu_api api;
    pthread_mutex_lock(&mu);
    *e = api.library ? CU_OK : cu_api_load(&api, host->config_get(host->ctx, "driver"), why, cap);
    pthread_mutex_unlock(&mu);
    return *e ? NULL : &api;
}

int cuda_attribute(const cu_api *cu, cu_device id, cu_attribute what)
{
    int v = 0;
    return cu->DeviceGetAttribute(&v, what, id) ? 0 : v;
}

const char *cuda_unusable(const cu_api *cu, cu_device id)
{
    if (cuda_attribute(cu, id, CU_ATTR_COMPUTE_MODE) == 2)
        return "its compute mode forbids use";
    if (!cuda_attribute(cu, id, CU_ATTR_UNIFIED_ADDRESSING))
        return "it has no unified addressing";
    if (!cuda_attribute(cu, id, CU_ATTR_STREAM_MEM_OPS_64))
        return "it has no 64-bit stream memory operations";
    return NULL;
}

static void identify(const cu_api *cu, cu_device id, infer_device_info *d)
{
    cu_uuid uuid;
    char *at = d->uuid;
    if (!cu->DeviceGetUuid(&uuid, id))
        for (int i = 0; i < 16; i++)
            at += snprintf(at, 4, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                           (unsigned)(uint8_t)uuid.bytes[i]);
    snprintf(d->pci, sizeof d->pci, "%04x:%02x:%02x.0", (unsigned)cuda_attribute(cu, id, CU_ATTR_PCI_DOMAIN),
             (unsigned)cuda_attribute(cu, id, CU_ATTR_PCI_BUS), (unsigned)cuda_attribute(cu, id, CU_ATTR_PCI_DEVICE));
}

static void describe(const infer_host *host, const cu_api *cu, cu_device id, infer_device_info *d)
{
    int version = 0;
    size_t bytes = 0;
    if (cu->DeviceGetName(d->name, (int)sizeof d->name, id))
        snprintf(d->name, sizeof d->name, "a CUDA device");
    if (!cu->DriverGetVersion(&version))
        snprintf(d->driver, sizeof d->driver, "CUDA %d.%d", version / 1000, version % 1000 / 10);
    snprintf(d->arch, sizeof d->arch, "sm_%d%d", cuda_attribute(cu, id, CU_ATTR_CC_MAJOR),
             cuda_attribute(cu, id, CU_ATTR_CC_MINOR));
    d->kind = cuda_attribute(cu, id, CU_ATTR_INTEGRATED) ? INFER_KIND_IGPU : INFER_KIND_GPU;
    d->memory_total = cu->DeviceTotalMem(&bytes, id) ? 0 : bytes;
    identify(cu, id, d);
    d->numa_node = host->pci_numa_node(host->ctx, d->pci);
    const char *why = cuda_unusable(cu, id);
    if (why) {
        d->status = INFER_E_UNSUPPORTED;
        snprintf(d->reason, sizeof d->reason, "%s", why);
    }
}

infer_status cuda_probe(const infer_host *host, infer_device_info *out, uint32_t cap, uint32_t *n)
{
    char why[200] = "";
    cu_result e;
    int have = 0;
    const cu_api *cu = cuda_api(host, &e, why, sizeof why);
    if (!cu && e != CU_E_NO_DEVICE)
        return cuda_fail(host, INFER_E_NO_DEVICE, "%s", why);
    if (cu && cu->DeviceGetCount(&have))
        have = 0;
    uint64_t stride = cap ? out->struct_size : 0;
    for (uint32_t i = 0; i < (uint32_t)have && i < cap; i++) {
        infer_device_info d = {.index = i};
        infer_device_info *to = (void *)((char *)out + i * stride);
        cu_device id = 0;
        if (cu->DeviceGet(&id, (int)i)) {
            d.status = INFER_E_NO_DEVICE;
            snprintf(d.reason, sizeof d.reason, "the driver does not give it out");
        } else
            describe(host, cu, id, &d);
        to->struct_size = (uint32_t)stride;
        launch_put(to, &d, sizeof d);
    }
    *n = (uint32_t)have;
    return INFER_OK;
}
