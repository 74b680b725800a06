/*
 * How many rows a step may have so that those who read along wait no longer than they were promised: a model of a
 * step's time against its rows, from the times of the steps that were. Points stand at half octaves of rows, with the
 * mean of what was measured near them; between two the time is linear, beyond them in proportion. Points above the
 * present load are forgotten after a while, so that what slowed a step down once is come up to again, from below.
 *
 * Plain data without memory of its own; one thread (the engine's). SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_SCHED_BUDGET_H
#define INFER_SCHED_BUDGET_H

#include <stdint.h>

#define INFER_BUDGET_POINTS 48u

typedef struct infer_budget {
    uint64_t target_ns; /* of a step, 0: none */
    uint32_t max_rows;  /* of a step */
    uint32_t least;     /* prompt rows that a step may always have: prompts go on, whatever the target */
    uint64_t n_notes;
    struct {
        double rows, ns; /* means; rows 0: nothing known */
        uint64_t seen;   /* the last note that counted */
    } points[INFER_BUDGET_POINTS];
} infer_budget;

void infer_budget_init(infer_budget *b, uint64_t target_ns, uint32_t max_rows);
/* A step of so many rows took so long. */
void infer_budget_note(infer_budget *b, uint32_t rows, uint64_t ns);
/* What a step of so many rows would take; INFINITY: more than twice as many as were ever measured. */
double infer_budget_predict(const infer_budget *b, uint32_t rows);
/* The fewest and the most rows that a time is known of, as means; INFINITY and 0: none is. */
double infer_budget_least(const infer_budget *b);
double infer_budget_most(const infer_budget *b);
/* The most rows of a step in which `decodes` sequences make a token: decodes + least .. max_rows. */
uint32_t infer_budget_rows(const infer_budget *b, uint32_t decodes);
/* Nanoseconds that a prompt's row adds to a step, in steps of many rows; 0: not known yet. */
double infer_budget_row_ns(const infer_budget *b);

#endif
