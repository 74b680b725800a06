/*
 * Storage formats of tensors: one id space for plain element types and block formats. Part of the plugin ABI:
 * self-contained, valid C11 and C++11. The table that gives each id its name, block and reference pack and unpack is
 * core/quant; no plugin defines a storage format, only private layouts (infer_weight_layout in backend.h).
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_QUANT_H
#define INFER_QUANT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A format's value never changes and is never reused. Elements are little-endian; a row of K elements of a block
 * format is K / block_elems blocks of block_bytes, K a multiple of block_elems. Block formats are those of the GGUF
 * specification, byte for byte. */
typedef uint32_t infer_format;

#define INFER_FMT_NONE    0u
#define INFER_FMT_F32     1u
#define INFER_FMT_F16     2u /* IEEE 754 binary16 */
#define INFER_FMT_BF16    3u /* upper half of binary32 */
#define INFER_FMT_F8_E4M3 4u /* OCP FP8 E4M3: no infinity, 0x7F and 0xFF are NaN, largest 448 */
#define INFER_FMT_F8_E5M2 5u /* OCP FP8 E5M2 */
#define INFER_FMT_F64     6u
#define INFER_FMT_I8      8u
#define INFER_FMT_U8      9u
#define INFER_FMT_I16     10u
#define INFER_FMT_I32     11u
#define INFER_FMT_I64     12u
#define INFER_FMT_U16     13u
#define INFER_FMT_U32     14u
#define INFER_FMT_U4      16u /* two a byte, element 2i in the low nibble; value 0..15 */
#define INFER_FMT_E8M0    17u /* OCP MX scale: 2^(v-127), 255 is NaN */

#define INFER_FMT_Q4_0  32u
#define INFER_FMT_Q4_1  33u
#define INFER_FMT_Q5_0  34u
#define INFER_FMT_Q5_1  35u
#define INFER_FMT_Q8_0  36u
#define INFER_FMT_Q2_K  40u
#define INFER_FMT_Q3_K  41u
#define INFER_FMT_Q4_K  42u
#define INFER_FMT_Q5_K  43u
#define INFER_FMT_Q6_K  44u
#define INFER_FMT_MXFP4 48u /* 32 x FP4 E2M1 with one E8M0 scale */

#define INFER_FMT_COUNT 64u /* one more than the largest id */

/* How a matrix [n][k] is quantised beside its data plane. Plain and self-scaled block formats have every field but
 * `format` zero. value = scale * (q - zero): scale and zero are matrices of ceil(n / group_n) x ceil(k / group_k)
 * entries, row-major; a group size of 0 means the whole axis.
 *   fp8 per tensor  {F8_E4M3, scale F32, group_n 0, group_k 0}   per channel {…, group_n 1, group_k 0}
 *   fp8 block       {F8_E4M3, scale F32, group_n 128, group_k 128}
 *   int8 a channel  {I8, scale F32, group_n 1, group_k 0}
 *   4-bit groups    {U4, scale F16, zero U4, group_n 1, group_k 128}; symmetric: zero_format NONE and zero_value 8 */
typedef struct infer_quant {
    infer_format format;       /* of the data plane */
    infer_format scale_format; /* NONE: no scale plane */
    infer_format zero_format;  /* NONE: every zero is zero_value */
    int32_t zero_value;
    uint32_t group_n;
    uint32_t group_k;
} infer_quant;

#ifdef __cplusplus
}
#endif
#endif
