/* Our declarations of the driver's interface against the toolkit's header: compiled, not run, where there is one.
 * SPDX-License-Identifier: Apache-2.0 */
#include <cuda.h>
#include <stddef.h>

#include "../../../backends/cuda/cu_types.h"

/* ---- Constants ---- */

#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #theirs)
SAME(CU_OK, CUDA_SUCCESS);
SAME(CU_E_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
SAME(CU_E_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME(CU_E_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
SAME(CU_E_DEINITIALIZED, CUDA_ERROR_DEINITIALIZED);
SAME(CU_E_DEVICE_UNAVAILABLE, CUDA_ERROR_DEVICE_UNAVAILABLE);
SAME(CU_E_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME(CU_E_INVALID_DEVICE, CUDA_ERROR_INVALID_DEVICE);
SAME(CU_E_INVALID_IMAGE, CUDA_ERROR_INVALID_IMAGE);
SAME(CU_E_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT);
SAME(CU_E_NO_BINARY_FOR_GPU, CUDA_ERROR_NO_BINARY_FOR_GPU);
SAME(CU_E_ECC_UNCORRECTABLE, CUDA_ERROR_ECC_UNCORRECTABLE);
SAME(CU_E_PEER_UNSUPPORTED, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
SAME(CU_E_INVALID_PTX, CUDA_ERROR_INVALID_PTX);
SAME(CU_E_NVLINK_UNCORRECTABLE, CUDA_ERROR_NVLINK_UNCORRECTABLE);
SAME(CU_E_JIT_COMPILER_NOT_FOUND, CUDA_ERROR_JIT_COMPILER_NOT_FOUND);
SAME(CU_E_UNSUPPORTED_PTX_VERSION, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
SAME(CU_E_JIT_DISABLED, CUDA_ERROR_JIT_COMPILATION_DISABLED);
SAME(CU_E_INVALID_HANDLE, CUDA_ERROR_INVALID_HANDLE);
SAME(CU_E_NOT_FOUND, CUDA_ERROR_NOT_FOUND);
SAME(CU_E_NOT_READY, CUDA_ERROR_NOT_READY);
SAME(CU_E_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS);
SAME(CU_E_LAUNCH_TIMEOUT, CUDA_ERROR_LAUNCH_TIMEOUT);
SAME(CU_E_PEER_ALREADY_ENABLED, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
SAME(CU_E_CONTEXT_IS_DESTROYED, CUDA_ERROR_CONTEXT_IS_DESTROYED);
SAME(CU_E_ASSERT, CUDA_ERROR_ASSERT);
SAME(CU_E_HARDWARE_STACK_ERROR, CUDA_ERROR_HARDWARE_STACK_ERROR);
SAME(CU_E_ILLEGAL_INSTRUCTION, CUDA_ERROR_ILLEGAL_INSTRUCTION);
SAME(CU_E_MISALIGNED_ADDRESS, CUDA_ERROR_MISALIGNED_ADDRESS);
SAME(CU_E_INVALID_ADDRESS_SPACE, CUDA_ERROR_INVALID_ADDRESS_SPACE);
SAME(CU_E_INVALID_PC, CUDA_ERROR_INVALID_PC);
SAME(CU_E_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_FAILED);
SAME(CU_E_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
SAME(CU_E_SYSTEM_NOT_READY, CUDA_ERROR_SYSTEM_NOT_READY);
SAME(CU_E_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
SAME(CU_E_CAPTURE_INVALIDATED, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
SAME(CU_E_GRAPH_UPDATE_FAILURE, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
SAME(CU_E_EXTERNAL_DEVICE, CUDA_ERROR_EXTERNAL_DEVICE);
SAME(CU_E_UNKNOWN, CUDA_ERROR_UNKNOWN);
#if CUDA_VERSION >= 13000 /* newer results; an older driver does not give them */
SAME(CU_E_CONTAINED, CUDA_ERROR_CONTAINED);
SAME(CU_E_TENSOR_MEMORY_LEAK, CUDA_ERROR_TENSOR_MEMORY_LEAK);
#endif
SAME(CU_ATTR_WARP_SIZE, CU_DEVICE_ATTRIBUTE_WARP_SIZE);
SAME(CU_ATTR_SM_COUNT, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(CU_ATTR_INTEGRATED, CU_DEVICE_ATTRIBUTE_INTEGRATED);
SAME(CU_ATTR_COMPUTE_MODE, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
SAME(2, CU_COMPUTEMODE_PROHIBITED);
SAME(CU_ATTR_PCI_BUS, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
SAME(CU_ATTR_PCI_DEVICE, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
SAME(CU_ATTR_PCI_DOMAIN, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
SAME(CU_ATTR_MEMORY_CLOCK_KHZ, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
SAME(CU_ATTR_MEMORY_BUS_BITS, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
SAME(CU_ATTR_L2_BYTES, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
SAME(CU_ATTR_THREADS_PER_SM, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
SAME(CU_ATTR_UNIFIED_ADDRESSING, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
SAME(CU_ATTR_CC_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(CU_ATTR_CC_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(CU_ATTR_SHARED_PER_SM, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
SAME(CU_ATTR_REGISTERS_PER_SM, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
SAME(CU_ATTR_SHARED_PER_BLOCK_OPTIN, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
SAME(CU_ATTR_STREAM_MEM_OPS_64, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
SAME(CU_FUNC_SHARED_BYTES, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
SAME(CU_FUNC_MAX_DYNAMIC_SHARED, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME(CU_HOST_ALLOC_PORTABLE, CU_MEMHOSTALLOC_PORTABLE);
SAME(CU_HOST_ALLOC_DEVICEMAP, CU_MEMHOSTALLOC_DEVICEMAP);
SAME(CU_EVENT_UNTIMED, CU_EVENT_DISABLE_TIMING);
SAME(CU_STREAM_APART, CU_STREAM_NON_BLOCKING);
SAME(CU_STREAM_WAIT_GEQ, CU_STREAM_WAIT_VALUE_GEQ);
SAME(CU_STREAM_WRITE_DEFAULT, CU_STREAM_WRITE_VALUE_DEFAULT);
SAME(CU_CAPTURE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
SAME(CU_MEMORY_HOST, CU_MEMORYTYPE_HOST);
SAME(CU_MEMORY_DEVICE, CU_MEMORYTYPE_DEVICE);

/* ---- Structs ---- */

#define FIELD(ours, field, theirs, name)                                                                               \
    _Static_assert(offsetof(ours, field) == offsetof(theirs, name) &&                                                  \
                       sizeof(((ours *)0)->field) == sizeof(((theirs *)0)->name),                                      \
                   #name)
_Static_assert(sizeof(cu_memcpy2d) == sizeof(CUDA_MEMCPY2D), "CUDA_MEMCPY2D");
FIELD(cu_memcpy2d, src_x, CUDA_MEMCPY2D, srcXInBytes);
FIELD(cu_memcpy2d, src_y, CUDA_MEMCPY2D, srcY);
FIELD(cu_memcpy2d, src_type, CUDA_MEMCPY2D, srcMemoryType);
FIELD(cu_memcpy2d, src_host, CUDA_MEMCPY2D, srcHost);
FIELD(cu_memcpy2d, src_device, CUDA_MEMCPY2D, srcDevice);
FIELD(cu_memcpy2d, src_pitch, CUDA_MEMCPY2D, srcPitch);
FIELD(cu_memcpy2d, dst_x, CUDA_MEMCPY2D, dstXInBytes);
FIELD(cu_memcpy2d, dst_y, CUDA_MEMCPY2D, dstY);
FIELD(cu_memcpy2d, dst_type, CUDA_MEMCPY2D, dstMemoryType);
FIELD(cu_memcpy2d, dst_host, CUDA_MEMCPY2D, dstHost);
FIELD(cu_memcpy2d, dst_device, CUDA_MEMCPY2D, dstDevice);
FIELD(cu_memcpy2d, dst_pitch, CUDA_MEMCPY2D, dstPitch);
FIELD(cu_memcpy2d, width, CUDA_MEMCPY2D, WidthInBytes);
FIELD(cu_memcpy2d, height, CUDA_MEMCPY2D, Height);
_Static_assert(sizeof(cu_graph_update) == sizeof(CUgraphExecUpdateResultInfo), "CUgraphExecUpdateResultInfo");
FIELD(cu_graph_update, result, CUgraphExecUpdateResultInfo, result);
_Static_assert(sizeof(cu_uuid) == sizeof(CUuuid), "CUuuid");
_Static_assert(sizeof(cu_result) == sizeof(CUresult) && sizeof(cu_attribute) == sizeof(CUdevice_attribute) &&
                   sizeof(cu_func_attribute) == sizeof(CUfunction_attribute) &&
                   sizeof(cu_capture_mode) == sizeof(CUstreamCaptureMode),
               "enumerations are passed as unsigned int");

/* ---- Functions: the list's parameters with the toolkit's types ---- */

_Static_assert(sizeof(cu_launch_config) == sizeof(CUlaunchConfig), "CUlaunchConfig");
FIELD(cu_launch_config, grid[0], CUlaunchConfig, gridDimX);
FIELD(cu_launch_config, block[2], CUlaunchConfig, blockDimZ);
FIELD(cu_launch_config, shared, CUlaunchConfig, sharedMemBytes);
FIELD(cu_launch_config, stream, CUlaunchConfig, hStream);
FIELD(cu_launch_config, attributes, CUlaunchConfig, attrs);
FIELD(cu_launch_config, n_attributes, CUlaunchConfig, numAttrs);
_Static_assert(sizeof(cu_launch_attribute) == sizeof(CUlaunchAttribute), "CUlaunchAttribute");
FIELD(cu_launch_attribute, id, CUlaunchAttribute, id);
FIELD(cu_launch_attribute, value.early, CUlaunchAttribute, value.programmaticStreamSerializationAllowed);
SAME(CU_LAUNCH_EARLY, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);

#define cu_memcpy2d       CUDA_MEMCPY2D
#define cu_launch_config  CUlaunchConfig
#define cu_graph_update   CUgraphExecUpdateResultInfo
#define cu_uuid           CUuuid
#define cu_result         CUresult
#define cu_attribute      CUdevice_attribute
#define cu_func_attribute CUfunction_attribute
#define cu_capture_mode   CUstreamCaptureMode
#include "../../../backends/cuda/cu_api.h"
#define X(field, symbol, params)                                                                                       \
    _Static_assert(__builtin_types_compatible_p(__typeof__(((cu_api *)0)->field), __typeof__(&symbol)), #symbol);
CU_API_FUNCTIONS(X)
