/* Looks the OpenCL functions up in the ICD loader. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "cl_api.h"

static int find(void *library, const char *name, void *to, size_t size, char *why, size_t cap)
{
    void *p = dlsym(library, name);
    if (!p) {
        snprintf(why, cap, "the OpenCL loader has no %s", name);
        return 0;
    }
    memcpy(to, &p, size);
    return 1;
}

int cl_api_load(cl_api *api, char *why, size_t cap)
{
    void *library = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *text = dlerror();
        snprintf(why, cap, "no OpenCL loader: %s", text ? text : "libOpenCL.so.1");
        return 0;
    }
    cl_api found = {.library = library};
#define X(name)                                                                                                        \
    if (!find(library, "cl" #name, &found.name, sizeof found.name, why, cap)) {                                        \
        dlclose(library);                                                                                              \
        return 0;                                                                                                      \
    }
    CL_API_FUNCTIONS(X)
#undef X
    *api = found;
    return 1;
}

const char *cl_error_name(cl_int e)
{
    static const struct {
        cl_int e;
        const char *name;
    } names[] = {
#define E(name) {name, #name}
        E(CL_DEVICE_NOT_FOUND),
        E(CL_DEVICE_NOT_AVAILABLE),
        E(CL_COMPILER_NOT_AVAILABLE),
        E(CL_MEM_OBJECT_ALLOCATION_FAILURE),
        E(CL_OUT_OF_RESOURCES),
        E(CL_OUT_OF_HOST_MEMORY),
        E(CL_MEM_COPY_OVERLAP),
        E(CL_BUILD_PROGRAM_FAILURE),
        E(CL_MAP_FAILURE),
        E(CL_INVALID_VALUE),
        E(CL_INVALID_DEVICE),
        E(CL_INVALID_CONTEXT),
        E(CL_INVALID_COMMAND_QUEUE),
        E(CL_INVALID_MEM_OBJECT),
        E(CL_INVALID_BINARY),
        E(CL_INVALID_BUILD_OPTIONS),
        E(CL_INVALID_PROGRAM),
        E(CL_INVALID_PROGRAM_EXECUTABLE),
        E(CL_INVALID_KERNEL_NAME),
        E(CL_INVALID_KERNEL),
        E(CL_INVALID_ARG_INDEX),
        E(CL_INVALID_ARG_VALUE),
        E(CL_INVALID_ARG_SIZE),
        E(CL_INVALID_KERNEL_ARGS),
        E(CL_INVALID_WORK_GROUP_SIZE),
        E(CL_INVALID_WORK_ITEM_SIZE),
        E(CL_INVALID_GLOBAL_WORK_SIZE),
        E(CL_INVALID_EVENT),
        E(CL_INVALID_OPERATION),
        E(CL_INVALID_BUFFER_SIZE),
#undef E
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].e == e)
            return names[i].name;
    return "an OpenCL error";
}
