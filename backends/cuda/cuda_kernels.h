/* The kernels: files of kernels/ and what each has. One list makes the table of handles, the look-up at dev_open, and
 * the images' names. SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_KERNELS_H
#define CUDA_KERNELS_H

#include <stdint.h>

/* One image a file: kernels/NAME.cu, made into cuda_images.c by embed.sh. X(file, early): whether each of its kernels
 * waits for its predecessor by itself (grid_wait, async.cuh), so that it may begin before that ends. */
#define CUDA_FILES(X)                                                                                                  \
    X(attn, 1)                                                                                                         \
    X(attn_few, 1)                                                                                                     \
    X(attn_many, 1)                                                                                                    \
    X(each, 1)                                                                                                         \
    X(gemm, 1)                                                                                                         \
    X(gemm_block, 1)                                                                                                   \
    X(gemm_super, 1)                                                                                                   \
    X(kv, 1)                                                                                                           \
    X(matvec_block, 0)                                                                                                 \
    X(matvec_plain, 0)                                                                                                 \
    X(matvec_super, 0)                                                                                                 \
    X(moe, 0)                                                                                                          \
    X(pack, 0)                                                                                                         \
    X(ring, 1)                                                                                                         \
    X(rows, 1)                                                                                                         \
    X(sample, 1)                                                                                                       \
    X(stream, 0)                                                                                                       \
    X(tile, 0)

/* Formats of weights: X(file of the kernels for few rows, id, name in kernels). */
#define CUDA_FORMATS(X)                                                                                                \
    X(matvec_plain, F32, f32)                                                                                          \
    X(matvec_plain, F16, f16)                                                                                          \
    X(matvec_plain, BF16, bf16)                                                                                        \
    X(matvec_plain, F8_E4M3, e4m3)                                                                                     \
    X(matvec_plain, F8_E5M2, e5m2)                                                                                     \
    X(matvec_block, Q4_0, q4_0)                                                                                        \
    X(matvec_block, Q4_1, q4_1)                                                                                        \
    X(matvec_block, Q5_0, q5_0)                                                                                        \
    X(matvec_block, Q5_1, q5_1)                                                                                        \
    X(matvec_block, Q8_0, q8_0)                                                                                        \
    X(matvec_block, MXFP4, mxfp4)                                                                                      \
    X(matvec_super, Q2_K, q2_k)                                                                                        \
    X(matvec_super, Q3_K, q3_k)                                                                                        \
    X(matvec_super, Q4_K, q4_k)                                                                                        \
    X(matvec_super, Q5_K, q5_k)                                                                                        \
    X(matvec_super, Q6_K, q6_k)

/* Packed weights for many rows: X(file, id of the row in cuda_gemm.c, name in kernels, elements of a step); and those
 * that become f16 in registers: X(file, id, name in kernels, bytes of 256 elements of 16 rows). */
#define CUDA_GEMM_FORMATS(X)                                                                                           \
    X(gemm, BF16, bf16, 64)                                                                                            \
    X(gemm, F16, f16, 64)                                                                                              \
    X(gemm, F8_E4M3, e4m3, 128)
#define CUDA_GEMM_QUANT_FORMATS(X)                                                                                     \
    X(gemm_block, F8_WIDE, e4m3w, 4096)                                                                                \
    X(gemm_block, Q8_0, q8_0, 4 * 1088)                                                                                \
    X(gemm_block, Q4_0, q4_0, 4 * 576)                                                                                 \
    X(gemm_block, Q4_1, q4_1, 4 * 640)                                                                                 \
    X(gemm_super, Q4_K, q4_k, 2368)                                                                                    \
    X(gemm_super, Q6_K, q6_k, 3360)                                                                                    \
    X(gemm_super, U4, u4, 2128)

/* Formats of packed weights: X(id, name in kernels). */
#define CUDA_RING_FORMATS(X)                                                                                           \
    X(BF16, bf16)                                                                                                      \
    X(F16, f16)                                                                                                        \
    X(F8_E4M3, e4m3)                                                                                                   \
    X(Q8_0, q8_0)                                                                                                      \
    X(Q4_0, q4_0)                                                                                                      \
    X(Q4_1, q4_1)                                                                                                      \
    X(Q4_K, q4_k)                                                                                                      \
    X(Q6_K, q6_k)                                                                                                      \
    X(U4, u4)

/* X(file, kernel): those that are there once, and those of one format. */
#define CUDA_PLAIN_KERNELS(X)                                                                                          \
    X(ring, ring_bf16)                                                                                                 \
    X(ring, ring_f16)                                                                                                  \
    X(ring, ring_e4m3)                                                                                                 \
    X(ring, ring_q8_0)                                                                                                 \
    X(ring, ring_q4_0)                                                                                                 \
    X(ring, ring_q4_1)                                                                                                 \
    X(ring, ring_q4_k)                                                                                                 \
    X(ring, ring_q4_k_q6_k)                                                                                            \
    X(ring, ring_q6_k)                                                                                                 \
    X(ring, ring_u4)                                                                                                   \
    X(attn, attention_1)                                                                                               \
    X(attn, attention_2)                                                                                               \
    X(attn, attention_4)                                                                                               \
    X(attn, attention_8)                                                                                               \
    X(attn, attention_join)                                                                                            \
    X(attn_few, few_f16_64_1)                                                                                          \
    X(attn_few, few_f16_64_2)                                                                                          \
    X(attn_few, few_f16_64_4)                                                                                          \
    X(attn_few, few_f16_128_1)                                                                                         \
    X(attn_few, few_f16_128_2)                                                                                         \
    X(attn_few, few_f16_128_4)                                                                                         \
    X(attn_few, few_bf16_64_1)                                                                                         \
    X(attn_few, few_bf16_64_2)                                                                                         \
    X(attn_few, few_bf16_64_4)                                                                                         \
    X(attn_few, few_bf16_128_1)                                                                                        \
    X(attn_few, few_bf16_128_2)                                                                                        \
    X(attn_few, few_bf16_128_4)                                                                                        \
    X(attn_few, few_rope_f16_64_1)                                                                                     \
    X(attn_few, few_rope_f16_64_2)                                                                                     \
    X(attn_few, few_rope_f16_64_4)                                                                                     \
    X(attn_few, few_rope_f16_128_1)                                                                                    \
    X(attn_few, few_rope_f16_128_2)                                                                                    \
    X(attn_few, few_rope_f16_128_4)                                                                                    \
    X(attn_few, few_rope_bf16_64_1)                                                                                    \
    X(attn_few, few_rope_bf16_64_2)                                                                                    \
    X(attn_few, few_rope_bf16_64_4)                                                                                    \
    X(attn_few, few_rope_bf16_128_1)                                                                                   \
    X(attn_few, few_rope_bf16_128_2)                                                                                   \
    X(attn_few, few_rope_bf16_128_4)                                                                                   \
    X(attn_many, many_f16_64)                                                                                          \
    X(attn_many, many_f16_128)                                                                                         \
    X(attn_many, many_bf16_64)                                                                                         \
    X(attn_many, many_bf16_128)                                                                                        \
    X(each, each)                                                                                                      \
    X(each, copy_bytes)                                                                                                \
    X(each, pack_rows)                                                                                                 \
    X(each, unpack_rows)                                                                                               \
    X(each, concat_rows)                                                                                               \
    X(each, rows_select)                                                                                               \
    X(each, ids_select)                                                                                                \
    X(each, moe_combine)                                                                                               \
    X(gemm, gemm_x_bf16)                                                                                               \
    X(gemm, gemm_xn_bf16)                                                                                              \
    X(gemm, gemm_x_f16)                                                                                                \
    X(gemm, gemm_x_e4m3)                                                                                               \
    X(kv, rope_write)                                                                                                  \
    X(kv, rope_writes)                                                                                                 \
    X(kv, kv_move)                                                                                                     \
    X(kv, state_copy)                                                                                                  \
    X(moe, moe_route)                                                                                                  \
    X(pack, pack_lines)                                                                                                \
    X(pack, pack_q8_0)                                                                                                 \
    X(pack, pack_q4_0)                                                                                                 \
    X(pack, pack_q4_1)                                                                                                 \
    X(pack, pack_q4_k)                                                                                                 \
    X(pack, pack_q6_k)                                                                                                 \
    X(pack, pack_u4)                                                                                                   \
    X(pack, pack_u4_scales)                                                                                            \
    X(pack, pack_u4_zeros)                                                                                             \
    X(rows, norm_rows)                                                                                                 \
    X(rows, norm_f32)                                                                                                  \
    X(rows, norm_bf16)                                                                                                 \
    X(rows, softmax)                                                                                                   \
    X(rows, argmax)                                                                                                    \
    X(sample, sample_prepare)                                                                                          \
    X(sample, sample_pick)                                                                                             \
    X(sample, count_ids)                                                                                               \
    X(stream, stream4_bf16)                                                                                            \
    X(stream, stream8_bf16)                                                                                            \
    X(stream, streams4_bf16)                                                                                           \
    X(stream, streams8_bf16)                                                                                           \
    X(stream, streamg4_bf16)                                                                                           \
    X(stream, streamg8_bf16)
#define CUDA_FORMAT_KERNELS(X, file, f)                                                                                \
    X(file, mv1_##f)                                                                                                   \
    X(file, mv2_##f)                                                                                                   \
    X(file, mv4_##f)                                                                                                   \
    X(file, mv8_##f)                                                                                                   \
    X(file, mvs1_##f)                                                                                                  \
    X(file, mvs2_##f)                                                                                                  \
    X(file, mvs4_##f)                                                                                                  \
    X(file, mvs8_##f)                                                                                                  \
    X(tile, tile_##f##_bf16)                                                                                           \
    X(tile, tile_##f##_f16)
#define CUDA_GEMM_QUANT_KERNELS(X, file, f)                                                                            \
    X(file, gemm16_##f)                                                                                                \
    X(file, gemm32_##f)                                                                                                \
    X(file, gemm64_##f)                                                                                                \
    X(file, gemm128_##f)
#define CUDA_GEMM_KERNELS(X, file, f) CUDA_GEMM_QUANT_KERNELS(X, file, f) X(file, gemm256_##f)

enum {
#define X(file, early) CUDA_FILE_##file,
    CUDA_FILES(X)
#undef X
        CUDA_N_FILES
};
enum {
#define X(file, kernel)              CUDA_K_##kernel,
#define ALL(file, id, name)          CUDA_FORMAT_KERNELS(X, file, name)
#define MANY(file, id, name, unit)   CUDA_GEMM_KERNELS(X, file, name)
#define QUANT(file, id, name, panel) CUDA_GEMM_QUANT_KERNELS(X, file, name)
    CUDA_PLAIN_KERNELS(X) CUDA_FORMATS(ALL) CUDA_GEMM_FORMATS(MANY) CUDA_GEMM_QUANT_FORMATS(QUANT)
#undef QUANT
#undef MANY
#undef ALL
#undef X
        CUDA_N_KERNELS
};

/* A fat binary, aligned to 8 bytes and filled up to a multiple of them. */
typedef struct cuda_image {
    const uint64_t *words;
    uint64_t bytes;
} cuda_image;

#define X(file, early) extern const cuda_image cuda_image_##file;
CUDA_FILES(X)
#undef X

#endif
