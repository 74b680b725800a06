/* The kernels' images: one module a file, so that a change of one file compiles that alone, and a file that is compiled
 * for one architecture only does not keep the others from a device. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "cuda.h"

/* The image has nothing for this device, or what it has is for a newer driver's compiler. */
static int no_code(cu_result e)
{
    return e == CU_E_NO_BINARY_FOR_GPU || e == CU_E_INVALID_IMAGE || e == CU_E_INVALID_PTX ||
           e == CU_E_JIT_COMPILER_NOT_FOUND || e == CU_E_UNSUPPORTED_PTX_VERSION || e == CU_E_JIT_DISABLED;
}

/* A kernel may take all the shared memory that a block can have beside its own. A driver that refuses shows in the
 * launch that asks for more than the usual 48 KiB. */
static void allow_shared(infer_device *dev, cu_function fn)
{
    int own = 0;
    if (!dev->cu->FuncGetAttribute(&own, CU_FUNC_SHARED_BYTES, fn) && (uint32_t)own < dev->tune.shared_per_block)
        (void)dev->cu->FuncSetAttribute(fn, CU_FUNC_MAX_DYNAMIC_SHARED, (int)dev->tune.shared_per_block - own);
}

static const struct {
    uint32_t file;
    const char *name;
} kernels[CUDA_N_KERNELS] = {
#define X(file, kernel)              [CUDA_K_##kernel] = {CUDA_FILE_##file, #kernel},
#define ALL(file, id, name)          CUDA_FORMAT_KERNELS(X, file, name)
#define MANY(file, id, name, unit)   CUDA_GEMM_KERNELS(X, file, name)
#define QUANT(file, id, name, panel) CUDA_GEMM_QUANT_KERNELS(X, file, name)
    CUDA_PLAIN_KERNELS(X) CUDA_FORMATS(ALL) CUDA_GEMM_FORMATS(MANY) CUDA_GEMM_QUANT_FORMATS(QUANT)
#undef QUANT
#undef MANY
#undef ALL
#undef X
};

int cuda_kernel_early(uint32_t kernel)
{
    static const uint8_t early[CUDA_N_FILES] = {
#define X(file, early) [CUDA_FILE_##file] = early,
        CUDA_FILES(X)
#undef X
    };
    return early[kernels[kernel].file];
}

infer_status cuda_kernels_load(infer_device *dev)
{
    static const struct {
        const char *name;
        const cuda_image *image;
    } files[CUDA_N_FILES] = {
#define X(file, early) [CUDA_FILE_##file] = {#file, &cuda_image_##file},
        CUDA_FILES(X)
#undef X
    };
    infer_status s = INFER_OK;
    char line[200];
    for (uint32_t i = 0; i < CUDA_N_FILES && !s; i++) {
        cu_result e = dev->cu->ModuleLoadData(&dev->modules[i], files[i].image->words);
        if (no_code(e)) {
            snprintf(line, sizeof line, "cuda: kernels %s have no code for %s (sm_%u): %s", files[i].name, dev->name,
                     dev->tune.cc, cu_error_name(dev->cu, e));
            dev->host->log(dev->host->ctx, 1, line);
            dev->modules[i] = NULL;
        } else if (e) {
            dev->modules[i] = NULL;
            s = cuda_status(dev, e, INFER_E_NO_MEMORY, "load kernels");
        }
    }
    for (uint32_t i = 0; i < CUDA_N_KERNELS && !s; i++) {
        cu_module m = dev->modules[kernels[i].file];
        cu_result e = m ? dev->cu->ModuleGetFunction(&dev->kernels[i], m, kernels[i].name) : CU_OK;
        if (e == CU_E_NOT_FOUND) { /* compiled for other architectures only */
            snprintf(line, sizeof line, "cuda: %s has no kernel %s", dev->name, kernels[i].name);
            dev->host->log(dev->host->ctx, 3, line);
            dev->kernels[i] = NULL;
        } else if (e)
            s = cuda_status(dev, e, INFER_E_NO_MEMORY, "look kernels up");
        else if (dev->kernels[i])
            allow_shared(dev, dev->kernels[i]);
    }
    if (s)
        cuda_kernels_unload(dev);
    return s;
}

void cuda_kernels_unload(infer_device *dev)
{
    for (uint32_t i = 0; i < CUDA_N_FILES; i++)
        if (dev->modules[i])
            (void)dev->cu->ModuleUnload(dev->modules[i]);
}
