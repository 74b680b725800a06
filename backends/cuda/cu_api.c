/* Looks the driver's functions up. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "cu_api.h"

static int find(void *library, const char *name, void *to, size_t size, char *why, size_t cap)
{
    void *p = dlsym(library, name);
    if (!p) {
        snprintf(why, cap, "the driver has no %s: CUDA %d.%d or newer is needed", name, CU_API_VERSION / 1000,
                 CU_API_VERSION % 1000 / 10);
        return 0;
    }
    memcpy(to, &p, size);
    return 1;
}

cu_result cu_api_load(cu_api *api, const char *path, char *why, size_t cap)
{
    void *library = dlopen(path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    int version = 0;
    if (!library) {
        const char *text = dlerror();
        snprintf(why, cap, "no CUDA driver: %s", text ? text : "libcuda.so.1");
        return CU_E_NOT_INITIALIZED;
    }
    cu_api found = {.library = library};
#define X(field, symbol, params)                                                                                       \
    if (!find(library, #symbol, &found.field, sizeof found.field, why, cap)) {                                         \
        dlclose(library);                                                                                              \
        return CU_E_NOT_FOUND;                                                                                         \
    }
    CU_API_FUNCTIONS(X)
#undef X
    cu_result e = found.DriverGetVersion(&version);
    if (!e && version < CU_API_VERSION) {
        snprintf(why, cap, "the driver speaks CUDA %d.%d: %d.%d or newer is needed", version / 1000,
                 version % 1000 / 10, CU_API_VERSION / 1000, CU_API_VERSION % 1000 / 10);
        return CU_E_NOT_SUPPORTED;
    }
    e = e ? e : found.Init(0);
    if (e) {
        snprintf(why, cap, "the CUDA driver does not start: %s (%u)", cu_error_name(&found, e), e);
        return e;
    }
    *api = found;
    return CU_OK;
}

const char *cu_error_name(const cu_api *api, cu_result e)
{
    const char *name = NULL;
    return !api->GetErrorName(e, &name) && name ? name : "an unknown CUDA error";
}
