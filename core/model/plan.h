/* What the files of a plan share: plan.c (devices, placement, the whole), plan_cache.c, plan_weights.c.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_MODEL_PLAN_H
#define INFER_MODEL_PLAN_H

#include <jansson.h>

#include "model/private.h"

/* Adds a line to the reasons that the plan gives, while there is room. */
void infer_plan_reason(infer_plan *p, const char *fmt, ...) INFER_PRINTF(2, 3);

/* What --quantization says, checked with every weight of the file; fills p->recode, and the reasons. */
infer_status infer_plan_recode(infer_plan *p, infer_error *err);
/* Bytes of a weight's planes as devices are given it. */
uint64_t infer_plan_source_bytes(const infer_plan *p, uint32_t ref);

/* Names of cache types to formats. */
infer_status infer_plan_cache_formats(infer_plan *p, infer_error *err);
/* Asks every device that would hold cache; a refusal moves its layers' cache to the host. Settles the block size: the
 * least common multiple of what the devices need, near what they prefer or what was asked; and each device's bytes of a
 * block. */
infer_status infer_plan_cache_negotiate(infer_plan *p, infer_error *err);
/* Blocks of one request's whole context. */
uint64_t infer_plan_cache_per_seq(const infer_plan *p);
/* Bytes of one block over all layers of all devices. */
infer_status infer_plan_cache_block_bytes(const infer_plan *p, uint64_t *bytes);
/* Settles the number of blocks: context x sequences, or as asked in bytes, and at most p->block_limit (0: none); never
 * less than one context, else INFER_E_NO_FIT. */
infer_status infer_plan_cache_size(infer_plan *p, infer_error *err);
/* Numbers the layers on each device and lays their planes out; fills the ledger's row. */
infer_status infer_plan_cache_lay_out(infer_plan *p, infer_error *err);

/* Keeps only the instances that remaining nodes read, and lays the packed ones out in one buffer a device; fills the
 * ledger's row and `mapped`. */
infer_status infer_plan_weights_lay_out(infer_plan *p, infer_error *err);
/* Bytes of weights that one token of one sequence reads on device `dev`: of a table of rows next to nothing, of experts
 * those that are chosen. After the layout. */
double infer_plan_token_bytes(const infer_plan *p, uint32_t dev);

/* What runs on the host for a device that refuses it: [{device, op, count, reason, moves, bytes_moved, time_us,
 * time_basis}], of one token of one sequence. With the plan option `measure` it runs each kind of op for a moment, 3
 * seconds in all. NULL without memory. */
json_t *infer_plan_fallbacks(const infer_plan *p);

#endif
