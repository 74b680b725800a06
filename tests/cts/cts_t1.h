/*
 * T1's job: one op with its operands laid into device memory between guard zones, run, and read back.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_CTS_T1_H
#define INFER_CTS_T1_H

#include "cts.h"
#include "ops/cases.h"

typedef struct cts_operand {
    const uint8_t *data; /* content before the op, borrowed; NULL: absent */
    uint64_t bytes;
    int32_t same_as; /* earlier operand whose range this is, -1: its own */
    int written;
    /* set by cts_job_plan: */
    int packed; /* lies as the plugin's weight_plan says; its bytes are not comparable */
    infer_weight_desc source;
    infer_weight_plan plan;
    /* set by cts_job_run: */
    uint32_t arena;
    uint64_t at; /* in its arena */
} cts_operand;

/* Inputs lie in arena 0, outputs and scratch in arena 1; every operand has a guard zone on both sides. */
typedef struct cts_job {
    infer_op_desc desc;
    infer_tensor_desc t[INFER_OP_MAX_OPERANDS];
    cts_operand o[INFER_OP_MAX_OPERANDS];
    uint32_t n;
    int32_t counts[INFER_COUNT_MAX];
    infer_op_answer answer;
    uint32_t scratch_fill; /* byte that scratch holds before the op */
    uint64_t counts_at, scratch_at;
    uint64_t size[2];
    uint8_t *before[2], *after[2]; /* the arenas around the op */
} cts_job;

/* A job of a case's operands, borrowing its data. */
void cts_job_from(cts_job *j, const infer_op_case *k);
/* How the plugin wants its weights, put into the descriptor. 1, or 0 with the case failed. */
int cts_job_plan(cts *c, cts_job *j);
/* Asks the device; 1: it takes the op, 0: it answers NO (answer.why) or the case failed. A list of epilogues is not cut
 * here. */
int cts_job_query(cts *c, cts_job *j);
/* Runs it and checks that nothing but the outputs (and scratch) changed. 1, or 0 with the case failed; `label` names
 * the op in texts. after[] holds the result. */
int cts_job_run(cts *c, cts_job *j, const char *label);
/* Content of operand i after the run. */
const uint8_t *cts_job_result(const cts_job *j, uint32_t i);
void cts_job_free(cts_job *j);

/* INFER_WHY_* as a word. */
const char *cts_why_name(uint32_t why);

#endif
