/* Kernel sources as embed.sh puts them into ocl_sources.c. SPDX-License-Identifier: Apache-2.0 */
#ifndef OCL_SOURCES_H
#define OCL_SOURCES_H

#include <stddef.h>

/* A file of kernels/, without a terminating NUL. */
typedef struct ocl_source {
    const char *text;
    size_t bytes;
} ocl_source;

extern const ocl_source ocl_source_params, ocl_source_common, ocl_source_unpack, ocl_source_pack, ocl_source_eights,
    ocl_source_each, ocl_source_rows, ocl_source_rope, ocl_source_kv, ocl_source_attn, ocl_source_attn_lanes,
    ocl_source_moe, ocl_source_matmul, ocl_source_matmul_lanes, ocl_source_sample;

#endif
