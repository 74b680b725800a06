/* Which devices exist: accelerators of all platforms in the loader's order, then devices of the CPU type. No context is
 * made. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ocl.h"

enum { MAX_PLATFORMS = 16, MAX_DEVICES = 64 };

/* Of extensions that Debian's headers may lack: cl_khr_device_uuid, cl_khr_pci_bus_info, cl_nv_device_attribute_query.
 */
#define DEVICE_UUID_KHR         0x106A
#define DEVICE_PCI_BUS_INFO_KHR 0x410F
#define DEVICE_PCI_BUS_ID_NV    0x4008
#define DEVICE_PCI_SLOT_ID_NV   0x4009
#define DEVICE_PCI_DOMAIN_ID_NV 0x400A

const cl_api *ocl_api(char *why, size_t cap)
{
    static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
    static cl_api api;
    pthread_mutex_lock(&mu);
    int good = api.library || cl_api_load(&api, why, cap);
    pthread_mutex_unlock(&mu);
    return good ? &api : NULL;
}

/* A driver for CPUs may be the first of the loader's; whoever names the first device means the card. */
static uint32_t all_devices(const cl_api *cl, cl_device_id out[MAX_DEVICES])
{
    static const cl_device_type types[] = {CL_DEVICE_TYPE_GPU | CL_DEVICE_TYPE_ACCELERATOR, CL_DEVICE_TYPE_CPU};
    cl_platform_id platforms[MAX_PLATFORMS];
    cl_uint n_platforms = 0;
    uint32_t have = 0;
    if (cl->GetPlatformIDs(MAX_PLATFORMS, platforms, &n_platforms) != CL_SUCCESS)
        return 0;
    if (n_platforms > MAX_PLATFORMS)
        n_platforms = MAX_PLATFORMS;
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++)
        for (cl_uint i = 0; i < n_platforms; i++) {
            cl_device_id of[MAX_DEVICES];
            cl_uint n = 0;
            if (cl->GetDeviceIDs(platforms[i], types[t], MAX_DEVICES, of, &n) != CL_SUCCESS)
                continue; /* a platform without devices says so by an error */
            for (cl_uint k = 0; k < n && k < MAX_DEVICES && have < MAX_DEVICES; k++) {
                uint32_t known = 0; /* a device may be of both types */
                while (known < have && out[known] != of[k])
                    known++;
                if (known == have)
                    out[have++] = of[k];
            }
        }
    return have;
}

cl_device_id ocl_device_at(const cl_api *cl, uint32_t index)
{
    cl_device_id ids[MAX_DEVICES];
    return index < all_devices(cl, ids) ? ids[index] : NULL;
}

static uint32_t kind_of(const cl_api *cl, cl_device_id id)
{
    uint64_t type = ocl_number(cl, id, CL_DEVICE_TYPE);
    if (type & CL_DEVICE_TYPE_CPU)
        return INFER_KIND_SOFTWARE;
    if (type & CL_DEVICE_TYPE_GPU)
        return ocl_number(cl, id, CL_DEVICE_HOST_UNIFIED_MEMORY) ? INFER_KIND_IGPU : INFER_KIND_GPU;
    return INFER_KIND_NPU;
}

/* Identity, as far as the driver tells. A device of the CPU type has none: it is no card. */
static void identify(const cl_api *cl, cl_device_id id, infer_device_info *d)
{
    uint8_t uuid[16] = {0};
    cl_uint bus[4] = {0};
    size_t got = 0;
    if (cl->GetDeviceInfo(id, DEVICE_UUID_KHR, sizeof uuid, uuid, &got) == CL_SUCCESS && got == sizeof uuid) {
        int any = 0;
        char *at = d->uuid;
        for (int i = 0; i < 16; i++)
            any |= uuid[i];
        for (int i = 0; i < 16 && any; i++)
            at += snprintf(at, 4, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
    }
    if (cl->GetDeviceInfo(id, DEVICE_PCI_BUS_INFO_KHR, sizeof bus, bus, &got) == CL_SUCCESS && got == sizeof bus) {
        snprintf(d->pci, sizeof d->pci, "%04x:%02x:%02x.%x", bus[0], bus[1], bus[2], bus[3]);
    } else if (cl->GetDeviceInfo(id, DEVICE_PCI_BUS_ID_NV, sizeof bus[1], &bus[1], &got) == CL_SUCCESS) {
        (void)cl->GetDeviceInfo(id, DEVICE_PCI_SLOT_ID_NV, sizeof bus[2], &bus[2], NULL);
        (void)cl->GetDeviceInfo(id, DEVICE_PCI_DOMAIN_ID_NV, sizeof bus[0], &bus[0], NULL);
        /* the slot holds device and function */
        snprintf(d->pci, sizeof d->pci, "%04x:%02x:%02x.%x", bus[0], bus[1], bus[2] >> 3 & 31u, bus[2] & 7u);
    }
}

/* "OpenCL C 1.2 vendor text" or later. */
static int speaks(const char *version)
{
    int major = 0, minor = 0;
    return sscanf(version, "OpenCL C %d.%d", &major, &minor) == 2 && (major > 1 || (major == 1 && minor >= 2));
}

static void describe(const infer_host *host, const cl_api *cl, cl_device_id id, infer_device_info *d)
{
    char version[96], driver[40];
    ocl_text(cl, id, CL_DEVICE_NAME, d->name, sizeof d->name);
    ocl_text(cl, id, CL_DEVICE_OPENCL_C_VERSION, version, sizeof version);
    ocl_text(cl, id, CL_DRIVER_VERSION, driver, sizeof driver);
    snprintf(d->driver, sizeof d->driver, "OpenCL %s", driver);
    snprintf(d->arch, sizeof d->arch, "%.47s", version);
    d->kind = kind_of(cl, id);
    d->numa_node = -1;
    d->memory_total = ocl_number(cl, id, CL_DEVICE_GLOBAL_MEM_SIZE);
    if (d->kind != INFER_KIND_SOFTWARE)
        identify(cl, id, d);
    if (d->pci[0])
        d->numa_node = host->pci_numa_node(host->ctx, d->pci);
    const char *why = !ocl_number(cl, id, CL_DEVICE_AVAILABLE)            ? "the driver says that it is not available"
                      : !ocl_number(cl, id, CL_DEVICE_COMPILER_AVAILABLE) ? "the driver has no compiler"
                      : !ocl_number(cl, id, CL_DEVICE_ENDIAN_LITTLE)      ? "a big-endian device"
                      : !speaks(version)                                  ? "OpenCL C 1.2 is needed"
                                                                          : NULL;
    if (why) {
        d->status = INFER_E_UNSUPPORTED;
        snprintf(d->reason, sizeof d->reason, "%s", why);
    }
}

infer_status ocl_probe(const infer_host *host, infer_device_info *out, uint32_t cap, uint32_t *n)
{
    char why[200] = "";
    /* drivers look for their hardware there, and some end the process where they find nothing (PoCL 3.1) */
    if (access("/sys/devices/system", R_OK))
        return ocl_fail(host, INFER_E_NO_DEVICE, "opencl: /sys is not there, drivers are not asked");
    const cl_api *cl = ocl_api(why, sizeof why);
    if (!cl)
        return ocl_fail(host, INFER_E_NO_DEVICE, "%s", why);
    cl_device_id ids[MAX_DEVICES];
    uint32_t have = all_devices(cl, ids);
    uint64_t stride = cap ? out->struct_size : 0;
    for (uint32_t i = 0; i < have && i < cap; i++) {
        infer_device_info d = {.index = i};
        infer_device_info *to = (void *)((char *)out + i * stride);
        describe(host, cl, ids[i], &d);
        to->struct_size = (uint32_t)stride;
        launch_put(to, &d, sizeof d);
    }
    *n = have;
    return INFER_OK;
}
