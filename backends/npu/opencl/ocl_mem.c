/* Buffers. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "ocl.h"

uint64_t ocl_host_memory_left(void)
{
    char line[128];
    unsigned long long kib = 0;
    int found = 0;
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && !found && fgets(line, sizeof line, f))
        found = sscanf(line, "MemAvailable: %llu kB", &kib) == 1;
    if (f)
        fclose(f);
    return found ? (uint64_t)kib * 1024 : UINT64_MAX;
}

/* Drivers allocate when a buffer is first used; a byte written at each end makes that now, while there is somebody to
 * tell. */
static cl_int touch(infer_device *dev, cl_mem mem, uint64_t bytes)
{
    const uint8_t zero = 0;
    cl_int e = dev->cl->EnqueueWriteBuffer(dev->setup, mem, CL_FALSE, 0, 1, &zero, 0, NULL, NULL);
    if (!e)
        e = dev->cl->EnqueueWriteBuffer(dev->setup, mem, CL_FALSE, bytes - 1, 1, &zero, 0, NULL, NULL);
    cl_int done = dev->cl->Finish(dev->setup);
    return e ? e : done;
}

infer_status ocl_buf_alloc(infer_device *dev, uint32_t heap, uint64_t bytes, infer_buffer **out)
{
    const infer_host *host = dev->host;
    cl_int e;
    if (heap || !bytes)
        return ocl_fail(host, INFER_E_INVALID, "opencl: %llu bytes from heap %u", (unsigned long long)bytes, heap);
    if (bytes > dev->max_buffer)
        return ocl_fail(host, INFER_E_NO_MEMORY, "opencl: %llu bytes in one buffer, %s takes %llu",
                        (unsigned long long)bytes, dev->name, (unsigned long long)dev->max_buffer);
    uint64_t used = atomic_fetch_add(&dev->used, bytes);
    if (used > dev->memory || bytes > dev->memory - used || (dev->is_cpu && bytes > ocl_host_memory_left())) {
        atomic_fetch_sub(&dev->used, bytes);
        return ocl_fail(host, INFER_E_NO_MEMORY, "opencl: %llu bytes wanted, %s has %llu of which %llu are used",
                        (unsigned long long)bytes, dev->name, (unsigned long long)dev->memory,
                        (unsigned long long)used);
    }
    infer_status s = INFER_E_NO_MEMORY;
    infer_buffer *b = host->alloc(host->ctx, sizeof *b, _Alignof(infer_buffer));
    if (!b) {
        ocl_fail(host, s, "opencl: no host memory for a buffer");
        goto err_used;
    }
    *b = (infer_buffer){.bytes = bytes};
    b->mem = dev->cl->CreateBuffer(dev->context, CL_MEM_READ_WRITE, bytes, NULL, &e);
    if (e) {
        s = ocl_status(dev, e, s, "allocate");
        goto err_buffer;
    }
    e = touch(dev, b->mem, bytes);
    if (e) {
        s = ocl_status(dev, e, s, "allocate");
        goto err_mem;
    }
    *out = b;
    return INFER_OK;
err_mem:
    dev->cl->ReleaseMemObject(b->mem);
err_buffer:
    host->free(host->ctx, b);
err_used:
    atomic_fetch_sub(&dev->used, bytes);
    return s;
}

void ocl_buf_free(infer_device *dev, infer_buffer *buf)
{
    dev->cl->ReleaseMemObject(buf->mem);
    atomic_fetch_sub(&dev->used, buf->bytes);
    dev->host->free(dev->host->ctx, buf);
}

infer_status ocl_kv_query(infer_device *dev, const infer_kv_spec *spec, infer_kv_answer *out)
{
    (void)dev;
    launch_kv_query(spec, OCL_BIND_ALIGN, out);
    return INFER_OK;
}
