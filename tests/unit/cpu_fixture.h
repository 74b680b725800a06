/* A host of the plainest kind for tests of the CPU backend, and shorthand to run one op on it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TESTS_CPU_FIXTURE_H
#define INFER_TESTS_CPU_FIXTURE_H

#include "unit/unit.h"

#include <infer/backend.h>

#include "quant/quant.h"

typedef struct fixture {
    infer_host host;
    const infer_backend_ops *ops;
    infer_device *dev;
    infer_queue *queue;
    const char *isa, *threads;
} fixture;

/* Opens the device with these settings; 0 where the isa is not to be had. */
int fixture_open(fixture *f, const char *isa, const char *threads);
void fixture_close(fixture *f);

/* A host array as operand: its descriptor, and the memory wrapped without a copy. */
typedef struct operand {
    infer_tensor_desc desc;
    void *data;
} operand;
operand tensor(infer_format format, void *data, uint32_t rank, int64_t s0, int64_t s1, int64_t s2, int64_t s3);
operand absent(void);

/* Queries (the answer must be NATIVE and row-invariant) and runs; rows < 0: all of them. */
void run_op(fixture *f, infer_op_id id, const void *attrs, uint32_t attrs_size, const operand *operands, uint32_t n_in,
            uint32_t n_out, int32_t rows);

/* Deterministic numbers: uniform in [-1, 1). */
float noise(uint64_t *state);
void fill_noise(float *x, size_t n, uint64_t seed);
/* n random elements of a format, all finite. Release with free. */
void *random_weights(infer_format format, int64_t n, uint64_t seed);
void *room(size_t bytes);

#endif
