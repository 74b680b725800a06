/* Speed tests on an engine and their table. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TOOLS_BENCH_H
#define INFER_TOOLS_BENCH_H

#include <stdio.h>

#include "session.h"

/* One row: n_prompt > 0 measures prompt processing, else n_gen tokens made, both with `depth` tokens already there and
 * n_seq sequences at once. */
typedef struct bench_test {
    uint32_t n_prompt, n_gen, depth, n_seq;
} bench_test;

typedef struct bench_result {
    bench_test test;
    double *samples; /* tokens a second over all sequences, one a repetition; owned */
    uint32_t n;
    double mean, sd; /* sample standard deviation, 0 with one sample */
} bench_result;

/* Tokens that a request of this test may hold. */
uint32_t bench_ctx(const bench_test *t, uint32_t step_tokens);
/* Measures one repetition: tokens a second at *rate. */
infer_status bench_measure(session *s, const bench_test *t, uint64_t *random, double *rate, infer_error *err);

/* "pp512", "tg128 @ d4096", "tg128 x 8". */
void bench_name(const bench_test *t, char *buf, size_t cap);
enum bench_form { BENCH_MD, BENCH_JSON, BENCH_CSV };
void bench_print_head(enum bench_form form, FILE *f);
void bench_print_row(enum bench_form form, const session *s, const opts *o, const bench_result *r, int first, FILE *f);
void bench_print_foot(enum bench_form form, FILE *f);

#endif
