/* Programs: kernel sources put together, built once for each set of sources and options, kept as binaries in a cache.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ocl.h"
#include "ocl_sources.h"

enum { MAX_PARTS = 16, MAX_KERNELS = 64, MAX_OPTIONS = 2048 };

uint64_t ocl_hash(uint64_t h, const void *p, uint64_t n)
{
    const uint8_t *b = p;
    for (uint64_t i = 0; i < n; i++)
        h = (h ^ b[i]) * 0x100000001B3u;
    return h;
}

/* Numbers that kernels know by name. */
static const struct {
    const char *name;
    uint32_t value;
} constants[] = {
#define FMT(name)                                                                                                      \
    {                                                                                                                  \
        "FMT_" #name, INFER_FMT_##name                                                                                 \
    }
    FMT(F32),
    FMT(F16),
    FMT(BF16),
    FMT(F8_E4M3),
    FMT(Q4_0),
    FMT(Q4_1),
    FMT(Q5_0),
    FMT(Q5_1),
    FMT(Q8_0),
    FMT(MXFP4),
    FMT(Q2_K),
    FMT(Q3_K),
    FMT(Q4_K),
    FMT(Q5_K),
    FMT(Q6_K),
#undef FMT
#define SAME(name)                                                                                                     \
    {                                                                                                                  \
#name, INFER_##name                                                                                            \
    }
    SAME(ACT_SILU),
    SAME(ACT_GELU),
    SAME(ACT_GELU_TANH),
    SAME(ACT_RELU),
    SAME(ACT_SIGMOID),
    SAME(ROUTE_SOFTMAX),
    SAME(ROUTE_SOFTMAX_TOPK),
    SAME(ROUTE_SIGMOID),
    SAME(MASK_CAUSAL),
    SAME(MASK_WINDOW),
    SAME(EPI_BIAS),
    SAME(EPI_RESIDUAL),
    SAME(EPI_MUL),
    SAME(EPI_ACT),
    SAME(EPI_SCALE),
    SAME(SAMPLE_MASKED),
    SAME(SAMPLE_NO_TOP),
#undef SAME
};

static void common_options(const infer_device *dev, uint32_t lanes, const char *more, char *out, size_t cap)
{
    const ocl_tune *t = dev->tune;
    size_t n = (size_t)snprintf(
        out, cap, "-cl-std=CL1.2 -DLANES=%u -DEPT=%u -DTK=%u -DLK=%u -DLC=%u -DCI=%u -DMVR=%u -DTILE=%u", lanes,
        t->each, t->chunk, t->mv_lanes, t->mv_columns, t->mv_serial, t->mv_rows, t->tile);
    for (size_t i = 0; i < sizeof constants / sizeof constants[0] && n < cap; i++)
        n += (size_t)snprintf(out + n, cap - n, " -D%s=%u", constants[i].name, constants[i].value);
    if (n < cap)
        snprintf(out + n, cap - n, " %s", more);
}

/* The texts of a program in order. */
static cl_uint parts_of(uint32_t sources, const char **text, size_t *bytes)
{
    const struct {
        uint32_t when; /* with any of these; 0: always */
        const ocl_source *source;
    } all[] = {
#define PART(when, name) {when, &ocl_source_##name}
        PART(0, params),
        PART(0, common),
        PART(0, unpack),
        PART(0, pack),
        PART(OCL_SOURCE_EACH, each),
        PART(OCL_SOURCE_ROWS, rows),
        PART(OCL_SOURCE_KV | OCL_SOURCE_MATMUL, rope),
        PART(OCL_SOURCE_KV, kv),
        PART(OCL_SOURCE_ATTN | OCL_SOURCE_MATMUL, eights),
        PART(OCL_SOURCE_ATTN, attn),
        PART(OCL_SOURCE_ATTN, attn_lanes),
        PART(OCL_SOURCE_MOE, moe),
        PART(OCL_SOURCE_MATMUL, matmul),
        PART(OCL_SOURCE_MATMUL, matmul_lanes),
        PART(OCL_SOURCE_SAMPLE, sample),
#undef PART
    };
    cl_uint n = 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (!all[i].when || sources & all[i].when) {
            text[n] = all[i].source->text;
            bytes[n++] = all[i].source->bytes;
        }
    return n;
}

static void log_build(infer_device *dev, cl_program p)
{
    size_t got = 0;
    if (dev->cl->GetProgramBuildInfo(p, dev->id, CL_PROGRAM_BUILD_LOG, 0, NULL, &got) || !got)
        return;
    char *all = dev->host->alloc(dev->host->ctx, got + 1, 1);
    if (!all)
        return;
    memset(all, 0, got + 1);
    (void)dev->cl->GetProgramBuildInfo(p, dev->id, CL_PROGRAM_BUILD_LOG, got, all, NULL);
    for (char *line = strtok(all, "\n"); line; line = strtok(NULL, "\n"))
        dev->host->log(dev->host->ctx, 0, line);
    dev->host->free(dev->host->ctx, all);
}

static cl_program from_cache(infer_device *dev, const char *key, const char *options)
{
    void *data = NULL;
    uint64_t bytes;
    cl_int e, state = CL_SUCCESS;
    if (!ocl_cache_read(dev, key, &data, &bytes))
        return NULL;
    const unsigned char *image = data;
    size_t size = (size_t)bytes;
    cl_program p = dev->cl->CreateProgramWithBinary(dev->context, 1, &dev->id, &size, &image, &state, &e);
    dev->host->free(dev->host->ctx, data);
    if (e || state) {
        if (!e)
            dev->cl->ReleaseProgram(p);
        return NULL;
    }
    if (dev->cl->BuildProgram(p, 1, &dev->id, options, NULL, NULL)) {
        dev->cl->ReleaseProgram(p);
        return NULL;
    }
    return p;
}

static void to_cache(infer_device *dev, const char *key, cl_program p)
{
    size_t bytes = 0;
    if (!dev->cache_dir || dev->cl->GetProgramInfo(p, CL_PROGRAM_BINARY_SIZES, sizeof bytes, &bytes, NULL) || !bytes)
        return;
    unsigned char *image = dev->host->alloc(dev->host->ctx, bytes, 16);
    if (!image)
        return;
    if (!dev->cl->GetProgramInfo(p, CL_PROGRAM_BINARIES, sizeof image, &image, NULL))
        ocl_cache_write(dev, key, image, bytes);
    dev->host->free(dev->host->ctx, image);
}

/* What a program that cannot be is answered with, for good; a shortage passes. */
static infer_status refusal(cl_int e)
{
    return e == CL_OUT_OF_RESOURCES || e == CL_OUT_OF_HOST_MEMORY || e == CL_MEM_OBJECT_ALLOCATION_FAILURE
               ? INFER_E_NO_MEMORY
               : INFER_E_UNSUPPORTED;
}

static infer_status from_source(infer_device *dev, cl_uint n, const char **text, const size_t *bytes,
                                const char *options, cl_program *out)
{
    cl_int e;
    cl_program p = dev->cl->CreateProgramWithSource(dev->context, n, text, bytes, &e);
    if (e)
        return ocl_status(dev, e, INFER_E_NO_MEMORY, "create a program");
    e = dev->cl->BuildProgram(p, 1, &dev->id, options, NULL, NULL);
    if (e) {
        log_build(dev, p);
        dev->cl->ReleaseProgram(p);
        return ocl_status(dev, e, refusal(e), "compile kernels");
    }
    *out = p;
    return INFER_OK;
}

/* Whether each kernel of a program takes work-groups as large as its launches have: a kernel that needs many registers
 * may take fewer items than the device does. Some say themselves how large those are. */
static infer_status check_groups(infer_device *dev, uint32_t sources, cl_program p)
{
    const ocl_tune *t = dev->tune;
    const size_t others = sources & OCL_SOURCE_LONG        ? 1
                          : !(sources & OCL_SOURCE_MATMUL) ? t->lanes
                                                           : t->mv_lanes * t->mv_columns;
    infer_status s = INFER_OK;
    cl_kernel k[MAX_KERNELS];
    cl_uint n = 0;
    cl_int e = dev->cl->CreateKernelsInProgram(p, MAX_KERNELS, k, &n);
    if (e)
        return ocl_status(dev, e, refusal(e), "create the kernels of a program");
    for (cl_uint i = 0; i < n; i++) {
        size_t takes = dev->max_group, own[3] = {0}, kernel;
        if (!dev->cl->GetKernelWorkGroupInfo(k[i], dev->id, CL_KERNEL_WORK_GROUP_SIZE, sizeof kernel, &kernel, NULL) &&
            kernel < takes)
            takes = kernel;
        if (dev->cl->GetKernelWorkGroupInfo(k[i], dev->id, CL_KERNEL_COMPILE_WORK_GROUP_SIZE, sizeof own, own, NULL) ||
            !own[0])
            own[0] = others;
        if (takes < own[0] && !s)
            s = ocl_fail(dev->host, INFER_E_UNSUPPORTED,
                         "opencl: %s takes work-groups of %zu for a kernel that wants %zu", dev->name, takes, own[0]);
        dev->cl->ReleaseKernel(k[i]);
    }
    return s;
}

/* Under mu. */
static infer_status build(infer_device *dev, uint32_t sources, const char *more, ocl_program *out)
{
    char options[MAX_OPTIONS], key[sizeof dev->name + sizeof dev->driver + MAX_OPTIONS + 64];
    const char *text[MAX_PARTS];
    size_t bytes[MAX_PARTS];
    uint64_t hash = OCL_HASH_START, start = dev->host->clock_ns(dev->host->ctx);
    cl_uint n = parts_of(sources, text, bytes);
    for (cl_uint i = 0; i < n; i++)
        hash = ocl_hash(hash, text[i], bytes[i]);
    common_options(dev, out->lanes, more, options, sizeof options);
    snprintf(key, sizeof key, "%s|%s|%s|%016llx|%s", dev->name, dev->driver, OCL_BUILD_ID, (unsigned long long)hash,
             options);
    out->program = from_cache(dev, key, options);
    int cached = out->program != NULL;
    if (!cached) {
        infer_status s = from_source(dev, n, text, bytes, options, &out->program);
        if (s)
            return s;
        to_cache(dev, key, out->program);
    }
    infer_status fits = check_groups(dev, sources, out->program);
    if (fits) {
        dev->cl->ReleaseProgram(out->program);
        out->program = NULL;
        return fits;
    }
    char line[256];
    snprintf(line, sizeof line, "kernels %s in %.0f ms%s", out->key,
             (double)(dev->host->clock_ns(dev->host->ctx) - start) * 1e-6, cached ? " from the cache" : "");
    dev->host->log(dev->host->ctx, 3, line);
    return INFER_OK;
}

infer_status ocl_program_get(infer_device *dev, uint32_t sources, const char *options, const ocl_program **out)
{
    const infer_host *host = dev->host;
    char key[sizeof((ocl_program *)0)->key];
    infer_status s = INFER_OK;
    if (snprintf(key, sizeof key, "%x %s", sources, options) >= (int)sizeof key)
        return ocl_fail(host, INFER_E_INVALID, "opencl: too many options for a program");
    pthread_mutex_lock(&dev->mu);
    ocl_program *p = dev->programs;
    while (p && strcmp(p->key, key) != 0)
        p = p->next;
    if (!p) {
        p = host->alloc(host->ctx, sizeof *p, _Alignof(ocl_program));
        if (!p) {
            s = ocl_fail(host, INFER_E_NO_MEMORY, "opencl: no host memory for a program");
            goto out_lock;
        }
        *p = (ocl_program){.next = dev->programs, .lanes = dev->tune->lanes};
        memcpy(p->key, key, sizeof key);
        if (sources & OCL_SOURCE_LONG)
            p->lanes = sources & OCL_SOURCE_ATTN ? dev->attn_lanes : dev->row_lanes;
        /* where a kernel takes smaller groups, it has some; what cannot be built is not tried again */
        while ((p->status = build(dev, sources, options, p)) == INFER_E_UNSUPPORTED && sources & OCL_SOURCE_LONG &&
               p->lanes > OCL_LEAST_LANES)
            p->lanes /= 2;
        if (p->status && p->status != INFER_E_UNSUPPORTED) {
            s = p->status;
            host->free(host->ctx, p);
            goto out_lock;
        }
        dev->programs = p;
    }
    s = p->status;
    *out = p;
out_lock:
    pthread_mutex_unlock(&dev->mu);
    return s;
}

infer_status ocl_program_ops(infer_device *dev, const ocl_program **out)
{
    return ocl_program_get(dev, OCL_SOURCE_OPS, "", out);
}

infer_status ocl_program_rows(infer_device *dev, const ocl_program **out)
{
    return ocl_program_get(dev, OCL_SOURCE_ROWS, "", out);
}

infer_status ocl_program_sample(infer_device *dev, const ocl_program **out)
{
    return ocl_program_get(dev, OCL_SOURCE_SAMPLE, "", out);
}

void ocl_programs_free(infer_device *dev)
{
    while (dev->programs) {
        ocl_program *p = dev->programs;
        dev->programs = p->next;
        if (p->program)
            dev->cl->ReleaseProgram(p->program);
        dev->host->free(dev->host->ctx, p);
    }
}
