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
    /* How a weight comes to the device (T2); data and bytes are the whole source then: */
    infer_shard shard; /* of = 0: whole */
    int64_t whole[4];  /* with a shard: shape of the whole tensor; the descriptor has that of the part */
    uint64_t piece;    /* bytes of one weight_append, 0: any */
    int moved;         /* packed elsewhere, then copied to its place */
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
    int late; /* operands (but weights) and counts are written by commands that wait when it is submitted */
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

/* What a case is asked besides its result: the same again, a row alone, the counts at both ends. */
#define CTS_CHECK_REPEAT 1u
#define CTS_CHECK_ROWS   2u
#define CTS_CHECK_COUNTS 4u
#define CTS_CHECK_ALL    7u
/* Plans, asks, runs and compares a case. 1: the device took it (it may have failed); 0: answered NO, *why says for what
 * (the case is not marked as skipped), or failed before it ran. Cuts the case's epilogue to what is taken. */
int cts_op_check(cts *c, infer_op_case *k, uint32_t checks, uint32_t *why);
/* Bounds on a job of the case: those of tol_i8, and what a conversion of its weights at load may lose. */
infer_case_tol cts_bounds(const infer_op_case *k, const cts_job *j);
/* Compares all that the op wrote with the reference's result. 1: within the bounds, 0: the case is failed. */
int cts_compare(cts *c, const infer_op_case *k, const cts_job *j, const char *what);

/* INFER_WHY_* as a word. */
const char *cts_why_name(uint32_t why);

#endif
