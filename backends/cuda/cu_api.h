/*
 * The driver functions that the backend calls, found in libcuda.so.1 at run time: nothing is linked against it, so the
 * module loads on any machine. One list makes the table, the look-up, the check for what is missing, and the prototypes
 * of the driver that the tests use. SPDX-License-Identifier: Apache-2.0
 */
#ifndef CU_API_H
#define CU_API_H

#include "cu_types.h"

/* field, symbol (a versioned entry point is named with its version), parameters */
#define CU_API_FUNCTIONS(X)                                                                                            \
    X(Init, cuInit, (unsigned int flags))                                                                              \
    X(DriverGetVersion, cuDriverGetVersion, (int *version))                                                            \
    X(GetErrorName, cuGetErrorName, (cu_result e, const char **name))                                                  \
    X(DeviceGetCount, cuDeviceGetCount, (int *n))                                                                      \
    X(DeviceGet, cuDeviceGet, (cu_device * dev, int ordinal))                                                          \
    X(DeviceGetName, cuDeviceGetName, (char *name, int cap, cu_device dev))                                            \
    X(DeviceGetUuid, cuDeviceGetUuid_v2, (cu_uuid * uuid, cu_device dev))                                              \
    X(DeviceTotalMem, cuDeviceTotalMem_v2, (size_t * bytes, cu_device dev))                                            \
    X(DeviceGetAttribute, cuDeviceGetAttribute, (int *value, cu_attribute attribute, cu_device dev))                   \
    X(DeviceCanAccessPeer, cuDeviceCanAccessPeer, (int *can, cu_device dev, cu_device peer))                           \
    X(PrimaryCtxRetain, cuDevicePrimaryCtxRetain, (cu_context * ctx, cu_device dev))                                   \
    X(PrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (cu_device dev))                                                \
    X(CtxSetCurrent, cuCtxSetCurrent, (cu_context ctx))                                                                \
    X(CtxEnablePeerAccess, cuCtxEnablePeerAccess, (cu_context peer, unsigned int flags))                               \
    X(ModuleLoadData, cuModuleLoadData, (cu_module * module, const void *image))                                       \
    X(ModuleUnload, cuModuleUnload, (cu_module module))                                                                \
    X(ModuleGetFunction, cuModuleGetFunction, (cu_function * fn, cu_module module, const char *name))                  \
    X(FuncGetAttribute, cuFuncGetAttribute, (int *value, cu_func_attribute attribute, cu_function fn))                 \
    X(FuncSetAttribute, cuFuncSetAttribute, (cu_function fn, cu_func_attribute attribute, int value))                  \
    X(MemGetInfo, cuMemGetInfo_v2, (size_t * free, size_t * total))                                                    \
    X(MemAlloc, cuMemAlloc_v2, (cu_deviceptr * p, size_t bytes))                                                       \
    X(MemFree, cuMemFree_v2, (cu_deviceptr p))                                                                         \
    X(MemHostAlloc, cuMemHostAlloc, (void **p, size_t bytes, unsigned int flags))                                      \
    X(MemFreeHost, cuMemFreeHost, (void *p))                                                                           \
    X(MemHostGetDevicePointer, cuMemHostGetDevicePointer_v2, (cu_deviceptr * d, void *p, unsigned int flags))          \
    X(StreamCreate, cuStreamCreate, (cu_stream * s, unsigned int flags))                                               \
    X(StreamDestroy, cuStreamDestroy_v2, (cu_stream s))                                                                \
    X(StreamQuery, cuStreamQuery, (cu_stream s))                                                                       \
    X(StreamWriteValue64, cuStreamWriteValue64_v2, (cu_stream s, cu_deviceptr at, uint64_t value, unsigned int flags)) \
    X(StreamWaitValue64, cuStreamWaitValue64_v2, (cu_stream s, cu_deviceptr at, uint64_t value, unsigned int flags))   \
    X(StreamBeginCapture, cuStreamBeginCapture_v2, (cu_stream s, cu_capture_mode mode))                                \
    X(StreamEndCapture, cuStreamEndCapture, (cu_stream s, cu_graph * graph))                                           \
    X(EventCreate, cuEventCreate, (cu_event * event, unsigned int flags))                                              \
    X(EventDestroy, cuEventDestroy_v2, (cu_event event))                                                               \
    X(EventRecord, cuEventRecord, (cu_event event, cu_stream s))                                                       \
    X(EventQuery, cuEventQuery, (cu_event event))                                                                      \
    X(MemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, (cu_deviceptr to, const void *from, size_t bytes, cu_stream s))           \
    X(MemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, (void *to, cu_deviceptr from, size_t bytes, cu_stream s))                 \
    X(MemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, (cu_deviceptr to, cu_deviceptr from, size_t bytes, cu_stream s))          \
    X(MemcpyPeerAsync, cuMemcpyPeerAsync,                                                                              \
      (cu_deviceptr to, cu_context to_ctx, cu_deviceptr from, cu_context from_ctx, size_t bytes, cu_stream s))         \
    X(Memcpy2DAsync, cuMemcpy2DAsync_v2, (const cu_memcpy2d *copy, cu_stream s))                                       \
    X(MemsetD8Async, cuMemsetD8Async, (cu_deviceptr to, unsigned char value, size_t n, cu_stream s))                   \
    X(MemsetD16Async, cuMemsetD16Async, (cu_deviceptr to, unsigned short value, size_t n, cu_stream s))                \
    X(MemsetD32Async, cuMemsetD32Async, (cu_deviceptr to, unsigned int value, size_t n, cu_stream s))                  \
    X(LaunchKernel, cuLaunchKernel,                                                                                    \
      (cu_function fn, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,            \
       unsigned int block_y, unsigned int block_z, unsigned int shared, cu_stream s, void **args, void **extra))       \
    X(LaunchKernelEx, cuLaunchKernelEx, (const cu_launch_config *config, cu_function fn, void **args, void **extra))   \
    X(GraphInstantiate, cuGraphInstantiateWithFlags, (cu_graph_exec * exec, cu_graph graph, unsigned long long flags)) \
    X(GraphExecUpdate, cuGraphExecUpdate_v2, (cu_graph_exec exec, cu_graph graph, cu_graph_update * info))             \
    X(GraphUpload, cuGraphUpload, (cu_graph_exec exec, cu_stream s))                                                   \
    X(GraphLaunch, cuGraphLaunch, (cu_graph_exec exec, cu_stream s))                                                   \
    X(GraphExecDestroy, cuGraphExecDestroy, (cu_graph_exec exec))                                                      \
    X(GraphDestroy, cuGraphDestroy, (cu_graph graph))

typedef struct cu_api {
    void *library;
#define X(field, symbol, params) cu_result(*field) params;
    CU_API_FUNCTIONS(X)
#undef X
} cu_api;

/* The least version of the driver interface: cuGraphExecUpdate_v2 came with it. */
#define CU_API_VERSION 12000

/* Opens the library at path (NULL: libcuda.so.1), starts the driver and fills the table. CU_OK; CU_E_NO_DEVICE where
 * the driver has no device; else what is wrong, with the cause in why. A library that was opened stays loaded: drivers
 * keep threads. One caller at a time. */
cu_result cu_api_load(cu_api *api, const char *path, char *why, size_t cap);

/* "CUDA_ERROR_OUT_OF_MEMORY" and so on; never NULL. */
const char *cu_error_name(const cu_api *api, cu_result e);

#endif
