/* The kernels: files of kernels/ and what each has. One list makes the table of handles, the look-up at dev_open, and
 * the images' names. SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_KERNELS_H
#define CUDA_KERNELS_H

#include <stdint.h>

/* One image a file: kernels/NAME.cu, made into cuda_images.c by embed.sh. */
#define CUDA_FILES(X) X(probe)
/* X(file, kernel) */
#define CUDA_KERNELS(X) X(probe, probe_add)

enum {
#define X(file) CUDA_FILE_##file,
    CUDA_FILES(X)
#undef X
        CUDA_N_FILES
};
enum {
#define X(file, kernel) CUDA_K_##kernel,
    CUDA_KERNELS(X)
#undef X
        CUDA_N_KERNELS
};

/* A fat binary, aligned to 8 bytes and filled up to a multiple of them. */
typedef struct cuda_image {
    const uint64_t *words;
    uint64_t bytes;
} cuda_image;

#define X(file) extern const cuda_image cuda_image_##file;
CUDA_FILES(X)
#undef X

#endif
