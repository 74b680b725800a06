/* The table of operations and the reference implementation of each: the specification that every backend is tested
 * against. Plain C on host memory, double accumulation, readable before fast. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_OPS_OPS_H
#define INFER_OPS_OPS_H

#include <infer/ops.h>

#include "base/error.h"

/* One call of a reference op. data[i] is operand i in the descriptor's order, NULL where absent; counts is the step
 * counts block or NULL (then rows_from must be static). Host pointers aligned as the format's scalars need. */
typedef infer_status (*infer_ref_fn)(const infer_op_desc *op, void *const *data, int64_t rows);

typedef struct infer_op_info {
    infer_op_id id;
    const char *name; /* lower case, such as "attn_paged" */
    uint8_t n_in_min, n_in_max, n_out_min, n_out_max;
    uint32_t attrs_size;                                              /* of the attribute struct, 0: none */
    uint64_t inout;                                                   /* bit i: output i also holds input (KV pools) */
    infer_status (*check)(const infer_op_desc *op, infer_error *err); /* shapes, formats and attributes agree */
    infer_ref_fn ref;                                                 /* NULL: id reserved, no reference yet */
} infer_op_info;

/* NULL for an unknown or reserved id. */
const infer_op_info *infer_op_get(infer_op_id id);
const infer_op_info *infer_op_by_name(const char *name);

/* Validates a descriptor completely: operand count, ranks, shapes, formats, attribute ranges, must_understand and
 * revision. INFER_E_UNSUPPORTED for what the reference does not know, INFER_E_INVALID otherwise; the text names the
 * operand. */
infer_status infer_op_check(const infer_op_desc *op, infer_error *err);

/* Rows of axis 0 that a run processes (ops.h, "Step counts"). */
int64_t infer_op_rows(const infer_op_desc *op, const int32_t *counts);

/* Runs the reference, then the whole epilogue list. Allocates scratch from the host; thread-safe. The descriptor must
 * have passed infer_op_check. */
infer_status infer_op_ref(const infer_op_desc *op, void *const *data, const int32_t *counts);

/* Bytes from the first to one past the last byte of a contiguous or strided operand. INFER_E_TOO_LARGE on overflow. */
infer_status infer_tensor_bytes(const infer_tensor_desc *t, uint64_t *bytes);
/* Elements; 0 on overflow. */
uint64_t infer_tensor_elems(const infer_tensor_desc *t);
/* A contiguous descriptor. */
infer_tensor_desc infer_tensor_make(infer_format format, uint32_t rank, int64_t s0, int64_t s1, int64_t s2, int64_t s3);

#endif
