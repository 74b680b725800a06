/*
 * The OpenCL functions that the backend calls, found in the ICD loader at run time: nothing is linked against it, so
 * the module loads on any machine. One list makes the table, the look-up and the check for what is missing.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef OCL_CL_API_H
#define OCL_CL_API_H

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include <stddef.h>

#define CL_API_FUNCTIONS(X)                                                                                            \
    X(GetPlatformIDs)                                                                                                  \
    X(GetPlatformInfo)                                                                                                 \
    X(GetDeviceIDs)                                                                                                    \
    X(GetDeviceInfo)                                                                                                   \
    X(CreateContext)                                                                                                   \
    X(ReleaseContext)                                                                                                  \
    X(CreateCommandQueue)                                                                                              \
    X(ReleaseCommandQueue)                                                                                             \
    X(CreateBuffer)                                                                                                    \
    X(ReleaseMemObject)                                                                                                \
    X(CreateProgramWithSource)                                                                                         \
    X(CreateProgramWithBinary)                                                                                         \
    X(BuildProgram)                                                                                                    \
    X(GetProgramInfo)                                                                                                  \
    X(GetProgramBuildInfo)                                                                                             \
    X(ReleaseProgram)                                                                                                  \
    X(CreateKernel)                                                                                                    \
    X(SetKernelArg)                                                                                                    \
    X(ReleaseKernel)                                                                                                   \
    X(CreateKernelsInProgram)                                                                                          \
    X(GetKernelWorkGroupInfo)                                                                                          \
    X(EnqueueNDRangeKernel)                                                                                            \
    X(EnqueueReadBuffer)                                                                                               \
    X(EnqueueWriteBuffer)                                                                                              \
    X(EnqueueReadBufferRect)                                                                                           \
    X(EnqueueWriteBufferRect)                                                                                          \
    X(EnqueueCopyBuffer)                                                                                               \
    X(EnqueueCopyBufferRect)                                                                                           \
    X(EnqueueFillBuffer)                                                                                               \
    X(EnqueueMapBuffer)                                                                                                \
    X(EnqueueUnmapMemObject)                                                                                           \
    X(EnqueueMarkerWithWaitList)                                                                                       \
    X(EnqueueBarrierWithWaitList)                                                                                      \
    X(GetEventInfo)                                                                                                    \
    X(RetainEvent)                                                                                                     \
    X(ReleaseEvent)                                                                                                    \
    X(Flush)                                                                                                           \
    X(Finish)

typedef struct cl_api {
    void *library;
#define X(name) __typeof__(&cl##name) name;
    CL_API_FUNCTIONS(X)
#undef X
} cl_api;

/* Opens libOpenCL.so.1 and fills the table. 1: good; 0: no loader, or one that lacks a function, with the cause in why.
 * The library stays loaded for the life of the process: drivers keep threads. One caller at a time. */
int cl_api_load(cl_api *api, char *why, size_t cap);

/* "CL_OUT_OF_RESOURCES" and so on; never NULL. */
const char *cl_error_name(cl_int e);

#endif
