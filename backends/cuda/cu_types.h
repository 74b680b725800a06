/*
 * Types and constants of the CUDA driver interface that the backend uses, declared by us after the driver API's
 * documentation, so that no toolkit is needed to compile the host side. tests/plugins/fakecuda/check_types.c compares
 * them with the toolkit's own header where there is one. SPDX-License-Identifier: Apache-2.0
 */
#ifndef CU_TYPES_H
#define CU_TYPES_H

#include <stddef.h>
#include <stdint.h>

typedef unsigned int cu_result;
typedef unsigned int cu_attribute, cu_func_attribute, cu_capture_mode; /* enumerations there */
typedef int cu_device;
typedef unsigned long long cu_deviceptr;
typedef struct CUctx_st *cu_context;
typedef struct CUmod_st *cu_module;
typedef struct CUfunc_st *cu_function;
typedef struct CUstream_st *cu_stream;
typedef struct CUevent_st *cu_event;
typedef struct CUgraph_st *cu_graph;
typedef struct CUgraphExec_st *cu_graph_exec;

typedef struct cu_uuid {
    char bytes[16];
} cu_uuid;

/* A copy of rows between two places; arrays (textures) are not used. */
typedef struct cu_memcpy2d {
    size_t src_x, src_y;
    unsigned int src_type;
    const void *src_host;
    cu_deviceptr src_device;
    void *src_array;
    size_t src_pitch;
    size_t dst_x, dst_y;
    unsigned int dst_type;
    void *dst_host;
    cu_deviceptr dst_device;
    void *dst_array;
    size_t dst_pitch;
    size_t width, height;
} cu_memcpy2d;

typedef struct cu_graph_update {
    unsigned int result; /* 0: done */
    void *error_node, *error_from;
} cu_graph_update;

/* Results; the driver knows their names (cuGetErrorName). */
enum {
    CU_OK = 0,
    CU_E_INVALID_VALUE = 1,
    CU_E_OUT_OF_MEMORY = 2,
    CU_E_NOT_INITIALIZED = 3,
    CU_E_DEINITIALIZED = 4,
    CU_E_DEVICE_UNAVAILABLE = 46,
    CU_E_NO_DEVICE = 100,
    CU_E_INVALID_DEVICE = 101,
    CU_E_INVALID_IMAGE = 200,
    CU_E_INVALID_CONTEXT = 201,
    CU_E_NO_BINARY_FOR_GPU = 209,
    CU_E_ECC_UNCORRECTABLE = 214,
    CU_E_PEER_UNSUPPORTED = 217,
    CU_E_INVALID_PTX = 218,
    CU_E_NVLINK_UNCORRECTABLE = 220,
    CU_E_JIT_COMPILER_NOT_FOUND = 221,
    CU_E_UNSUPPORTED_PTX_VERSION = 222,
    CU_E_JIT_DISABLED = 223,
    CU_E_CONTAINED = 226,
    CU_E_INVALID_HANDLE = 400,
    CU_E_NOT_FOUND = 500,
    CU_E_NOT_READY = 600,
    CU_E_ILLEGAL_ADDRESS = 700,
    CU_E_LAUNCH_TIMEOUT = 702,
    CU_E_PEER_ALREADY_ENABLED = 704,
    CU_E_CONTEXT_IS_DESTROYED = 709,
    CU_E_ASSERT = 710,
    CU_E_HARDWARE_STACK_ERROR = 714,
    CU_E_ILLEGAL_INSTRUCTION = 715,
    CU_E_MISALIGNED_ADDRESS = 716,
    CU_E_INVALID_ADDRESS_SPACE = 717,
    CU_E_INVALID_PC = 718,
    CU_E_LAUNCH_FAILED = 719,
    CU_E_TENSOR_MEMORY_LEAK = 721,
    CU_E_NOT_SUPPORTED = 801,
    CU_E_SYSTEM_NOT_READY = 802,
    CU_E_CAPTURE_UNSUPPORTED = 900,
    CU_E_CAPTURE_INVALIDATED = 901,
    CU_E_GRAPH_UPDATE_FAILURE = 910,
    CU_E_EXTERNAL_DEVICE = 911,
    CU_E_UNKNOWN = 999
};

/* A launch with attributes. early: the kernel may begin while the one before it in its stream still runs. */
typedef struct cu_launch_attribute {
    unsigned int id, reserved;
    union {
        int early;
        char room[64];
    } value;
} cu_launch_attribute;
typedef struct cu_launch_config {
    unsigned int grid[3], block[3], shared;
    cu_stream stream;
    const cu_launch_attribute *attributes;
    unsigned int n_attributes;
} cu_launch_config;
enum {
    CU_LAUNCH_EARLY = 6,          /* CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION */
    CU_LAUNCH_EARLY_GRAPH = 12030 /* the least driver that records it in graphs */
};

/* Device attributes */
enum {
    CU_ATTR_WARP_SIZE = 10,
    CU_ATTR_SM_COUNT = 16,
    CU_ATTR_INTEGRATED = 18,
    CU_ATTR_COMPUTE_MODE = 20, /* 2: the device may not be used */
    CU_ATTR_PCI_BUS = 33,
    CU_ATTR_PCI_DEVICE = 34,
    CU_ATTR_MEMORY_CLOCK_KHZ = 36,
    CU_ATTR_MEMORY_BUS_BITS = 37,
    CU_ATTR_L2_BYTES = 38,
    CU_ATTR_THREADS_PER_SM = 39,
    CU_ATTR_UNIFIED_ADDRESSING = 41,
    CU_ATTR_PCI_DOMAIN = 50,
    CU_ATTR_CC_MAJOR = 75,
    CU_ATTR_CC_MINOR = 76,
    CU_ATTR_SHARED_PER_SM = 81,
    CU_ATTR_REGISTERS_PER_SM = 82,
    CU_ATTR_SHARED_PER_BLOCK_OPTIN = 97,
    CU_ATTR_STREAM_MEM_OPS_64 = 122
};

enum {
    CU_FUNC_SHARED_BYTES = 1,
    CU_FUNC_MAX_DYNAMIC_SHARED = 8,
    CU_HOST_ALLOC_PORTABLE = 1,
    CU_HOST_ALLOC_DEVICEMAP = 2,
    CU_STREAM_APART = 1,
    CU_EVENT_UNTIMED = 2,
    CU_STREAM_WAIT_GEQ = 0,      /* (int64_t)(word - value) >= 0 */
    CU_STREAM_WRITE_DEFAULT = 0, /* after a system-wide fence */
    CU_CAPTURE_THREAD_LOCAL = 1,
    CU_MEMORY_HOST = 1,
    CU_MEMORY_DEVICE = 2
};

#endif
