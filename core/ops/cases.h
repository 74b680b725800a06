/* Test cases of every op: descriptor, content of each operand, bounds on a device's result. They live beside the table
 * and not under tests/ because the conformance kit is installed with the library and runs where no source tree is.
 * Nothing here calls a device. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_OPS_CASES_H
#define INFER_OPS_CASES_H

#include "ops/ops.h"

/* What a result may differ by. With e the reference's value and rms that of all compared values of the operand:
 * |got - e| <= rel * |e| + abs * rms for each value, and RMS(got - e) <= nrms * rms. All zero: equal. */
typedef struct infer_case_tol {
    double rel, abs, nrms;
    const char *why; /* constant text: where the figures come from */
} infer_case_tol;

typedef struct infer_op_case {
    infer_op_desc desc; /* points into this struct: do not copy it */
    infer_tensor_desc tensors[INFER_OP_MAX_OPERANDS];
    infer_any_attrs attrs;
    infer_epilogue epilogue[4];
    int32_t counts[INFER_COUNT_MAX]; /* the step counts to bind; meant only where rows_from is not static */
    /* Content before the op, by operand (inputs, then outputs), NULL where absent. Outputs hold a pattern, or what a
     * pool or state held. Unseen cache tokens of some cases hold NaN: memory that nothing has written. */
    uint8_t *data[INFER_OP_MAX_OPERANDS];
    uint64_t bytes[INFER_OP_MAX_OPERANDS];
    int32_t same_as[INFER_OP_MAX_OPERANDS]; /* an earlier operand whose range this one is, -1: its own */
    infer_case_tol tol;                     /* for a device that accumulates in float */
    infer_case_tol tol_i8; /* for one that besides converts the activations of matrix products to 8 bits, as
                              act_format NONE lets it */
    char label[160];       /* "matmul n3 k256 n17 q4_k f32, counts 2 of 3" */
} infer_op_case;

/* How many cases an op has; 0 for ids without a reference. Any thread. */
uint32_t infer_op_case_count(infer_op_id op);
/* Makes case `index`; the same (op, index, seed) gives the same bytes. Its descriptor passes infer_op_check.
 * INFER_E_INVALID past the count, INFER_E_NO_MEMORY. Release with infer_op_case_free. */
infer_status infer_op_case_make(infer_op_id op, uint32_t index, uint64_t seed, infer_op_case *out);
void infer_op_case_free(infer_op_case *c);

/* Whether the op writes operand i (outputs, and the input that SAMPLE counts in). */
int infer_op_case_writes(const infer_op_case *c, uint32_t i);
/* Runs the reference on copies. result[i] (of INFER_OP_MAX_OPERANDS) is the content after it of each operand that is
 * written, NULL for the others; release each with infer_free. */
infer_status infer_op_case_expect(const infer_op_case *c, void **result);

typedef struct infer_case_diff {
    double max_abs, nrms;
    char text[160]; /* where and how the result is wrong; "" where it is not */
} infer_case_diff;

/* Compares a device's content of operand i with the reference's. What the reference left alone must be unchanged to the
 * byte: rows past the count, gaps of a strided operand, slots not written. 1: within the bounds. INFER_E_NO_MEMORY
 * counts as 0, with text. `diff` may be NULL. */
int infer_op_case_compare(const infer_op_case *c, uint32_t i, const void *expect, const void *got,
                          const infer_case_tol *tol, infer_case_diff *diff);

#endif
