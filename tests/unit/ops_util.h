/* A descriptor under construction with its operands, for tests of core/ops. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TESTS_OPS_UTIL_H
#define INFER_TESTS_OPS_UTIL_H

#include "unit/unit.h"

#include "ops/ops.h"

/* Inputs must all be added before the first output. */
typedef struct op_build {
    infer_op_desc d;
    infer_tensor_desc t[INFER_OP_MAX_OPERANDS];
    void *data[INFER_OP_MAX_OPERANDS];
    infer_epilogue epi[4];
} op_build;

static inline void op_begin(op_build *b, infer_op_id op, const void *attrs, uint32_t attrs_size)
{
    memset(b, 0, sizeof *b);
    b->d = (infer_op_desc){.struct_size = sizeof b->d,
                           .op = op,
                           .rows_from = INFER_ROWS_STATIC,
                           .rows_mul = 1,
                           .tensor_size = sizeof b->t[0],
                           .attrs_size = attrs_size,
                           .tensors = b->t,
                           .attrs = attrs,
                           .epilogue_size = sizeof b->epi[0],
                           .epilogue = b->epi};
}

static inline infer_tensor_desc *op_add(op_build *b, int output, infer_format f, void *p, uint32_t rank, int64_t s0,
                                        int64_t s1, int64_t s2, int64_t s3)
{
    uint32_t i = b->d.n_in + b->d.n_out;
    b->t[i] = infer_tensor_make(f, rank, s0, s1, s2, s3);
    if (!p)
        b->t[i].flags = INFER_TENSOR_ABSENT;
    b->data[i] = p;
    if (output)
        b->d.n_out++;
    else
        b->d.n_in++;
    return &b->t[i];
}

#define OP_IN1(b, f, p, s0)              op_add(b, 0, INFER_FMT_##f, p, 1, s0, 1, 1, 1)
#define OP_IN2(b, f, p, s0, s1)          op_add(b, 0, INFER_FMT_##f, p, 2, s0, s1, 1, 1)
#define OP_IN3(b, f, p, s0, s1, s2)      op_add(b, 0, INFER_FMT_##f, p, 3, s0, s1, s2, 1)
#define OP_IN4(b, f, p, s0, s1, s2, s3)  op_add(b, 0, INFER_FMT_##f, p, 4, s0, s1, s2, s3)
#define OP_OUT1(b, f, p, s0)             op_add(b, 1, INFER_FMT_##f, p, 1, s0, 1, 1, 1)
#define OP_OUT2(b, f, p, s0, s1)         op_add(b, 1, INFER_FMT_##f, p, 2, s0, s1, 1, 1)
#define OP_OUT3(b, f, p, s0, s1, s2)     op_add(b, 1, INFER_FMT_##f, p, 3, s0, s1, s2, 1)
#define OP_OUT4(b, f, p, s0, s1, s2, s3) op_add(b, 1, INFER_FMT_##f, p, 4, s0, s1, s2, s3)

/* Checks and runs; the test fails where either does. */
static inline void op_run_counts(op_build *b, const int32_t *counts)
{
    infer_error err = {0};
    if (infer_op_check(&b->d, &err) != INFER_OK)
        fail_msg("%s", err.text);
    assert_int_equal(infer_op_ref(&b->d, b->data, counts), INFER_OK);
}

static inline void op_run(op_build *b)
{
    op_run_counts(b, NULL);
}

/* The check's answer, for descriptors that must be refused. */
static inline infer_status op_status(const op_build *b)
{
    infer_error err = {0};
    infer_status st = infer_op_check(&b->d, &err);
    assert_true(st == INFER_OK || (err.text[0] && err.status == st));
    return st;
}

/* Numbers in [-1, 1) from a counter. */
static inline float op_random(uint64_t *seed)
{
    return infer_sample_uniform(42, (*seed)++) * 2 - 1;
}

static inline void op_fill(float *p, size_t n, uint64_t seed)
{
    seed *= 1000003;
    for (size_t i = 0; i < n; i++)
        p[i] = op_random(&seed);
}

#endif
