/* The table of operations and the reference implementation of each: the specification that every backend is tested
 * against. Plain C on host memory, double accumulation, readable before fast. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_OPS_OPS_H
#define INFER_OPS_OPS_H

#include <infer/ops.h>

#include "base/error.h"

/* Room for the attributes of any op. */
typedef union infer_any_attrs {
    infer_attrs_scale scale;
    infer_attrs_act act;
    infer_attrs_norm norm;
    infer_attrs_matmul matmul;
    infer_attrs_route route;
    infer_attrs_rope rope;
    infer_attrs_kv kv;
    infer_attrs_rope_kv rope_kv;
    infer_attrs_attn attn;
    infer_attrs_sample sample;
} infer_any_attrs;

/* A reference, for a descriptor that passed infer_op_check. data[i] is operand i in the descriptor's order, NULL where
 * absent, aligned as the format's scalars need; rows of axis 0 are to be done. */
typedef infer_status (*infer_ref_fn)(const infer_op_desc *op, void *const *data, int64_t rows);

/* A row of the table. `sig` is the shape rule that check.c enforces, also the text for documentation: operands
 * "name[axes]:class" with "?" for an optional one, inputs -> outputs. An axis letter has one size throughout; "n" is
 * the rows axis; "..." any further axes, the same wherever it stands; "|" separates alternatives of different rank.
 * Classes: f plain float, w weight of any storage format (side planes allowed), p cache plane, i i32, u u32, h u16, b
 * records (bytes), a any. */
typedef struct infer_op_info {
    infer_op_id id;
    const char *name; /* lower case, such as "attn_paged" */
    const char *sig;
    uint8_t n_in_min, n_in_max, n_out_min, n_out_max;
    uint8_t rows_of;                                                  /* operand whose axis 0 rows_from bounds */
    uint8_t takes_epilogue;                                           /* the first output is plain float rows */
    uint8_t inout;                                                    /* bit i: output i keeps what it is not given */
    uint8_t writes_in;                                                /* bit i: input i is also written */
    uint32_t attrs_size;                                              /* of the attribute struct, 0: none */
    infer_status (*check)(const infer_op_desc *op, infer_error *err); /* what sig does not say; may be NULL */
    infer_ref_fn ref;                                                 /* NULL: a collective, nothing alone */
} infer_op_info;

/* NULL for an unknown id. */
const infer_op_info *infer_op_get(infer_op_id id);
const infer_op_info *infer_op_by_name(const char *name);

/* Validates a descriptor completely: operand count, ranks, shapes, formats, attribute ranges, must_understand and
 * revision. INFER_E_UNSUPPORTED for what the reference does not know, INFER_E_INVALID otherwise; the text names the
 * operand. */
infer_status infer_op_check(const infer_op_desc *op, infer_error *err);

/* Operand i of the inputs or outputs; NULL where it is absent or not listed. */
const infer_tensor_desc *infer_op_in(const infer_op_desc *op, uint32_t i);
const infer_tensor_desc *infer_op_out(const infer_op_desc *op, uint32_t i);
/* Copies the attribute struct into out (size bytes of it), zero-filling what the descriptor's lacks. */
void infer_op_attrs(const infer_op_desc *op, void *out, uint32_t size);

/* Rows of axis 0 that a run processes (ops.h, "Step counts"); the capacity where counts is NULL. */
int64_t infer_op_rows(const infer_op_desc *op, const int32_t *counts);

/* Runs the reference, then the whole epilogue list. data as for infer_ref_fn; counts: the step counts block, or NULL
 * where rows_from is static. Allocates scratch from the host; thread-safe. The descriptor must have passed
 * infer_op_check. INFER_E_UNSUPPORTED where the op has no reference, INFER_E_INVALID where an operand or
 * the counts are missing, INFER_E_NO_MEMORY; outputs are then undefined. */
infer_status infer_op_ref(const infer_op_desc *op, void *const *data, const int32_t *counts);

/* Bytes from the first to one past the last byte of a contiguous or strided operand, side planes included.
 * INFER_E_TOO_LARGE on overflow or past INT64_MAX, INFER_E_INVALID for a wrong rank, size, block or stride (an axis
 * must not step into the one below it), INFER_E_UNSUPPORTED for an unknown format. */
infer_status infer_tensor_bytes(const infer_tensor_desc *t, uint64_t *bytes);
/* Elements; 0 on overflow. */
uint64_t infer_tensor_elems(const infer_tensor_desc *t);
/* A contiguous descriptor; sizes past `rank` are ignored. */
infer_tensor_desc infer_tensor_make(infer_format format, uint32_t rank, int64_t s0, int64_t s1, int64_t s2, int64_t s3);

#endif
