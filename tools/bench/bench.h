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
    /* of a tg test: steps between what was polled with its first and its last token, and the engine thread's processor
     * time for them, but for waiting; 0: too short to tell */
    uint64_t steps, host_ns;
    double mean, sd;         /* sample standard deviation, 0 with one sample */
    double read, read_limit; /* of a tg test: bytes a second of weights and cache, and what a plain read loop got
                                just before and after; 0: not known, as for several sequences of a model with experts */
} bench_result;

/* What a plain read loop over host memory gets with so many threads. NULL: no memory for it. */
typedef struct bench_ceiling bench_ceiling;
bench_ceiling *bench_ceiling_create(uint32_t n_threads);
void bench_ceiling_destroy(bench_ceiling *c);
/* Bytes a second, the best of three passes: some tens of milliseconds. */
double bench_ceiling_read(const bench_ceiling *c);

/* What the plan says that a token reads, and where: bytes of weights, bytes of cache for each token in it. */
typedef struct bench_reads {
    double weights, kv;
    int host; /* all of it from host memory, by n_threads workers */
    uint32_t n_threads;
} bench_reads;
void bench_get_reads(const session *s, bench_reads *out);

/* Tokens that a request of this test may hold. */
uint64_t bench_ctx(const bench_test *t, uint32_t step_tokens);
/* Measures one repetition of r->test: tokens a second at *rate. count: its steps are added to r's. */
infer_status bench_measure(session *s, bench_result *r, uint64_t *random, int count, double *rate, infer_error *err);

/* "pp512", "tg128 @ d4096", "tg128 x 8". */
void bench_name(const bench_test *t, char *buf, size_t cap);
enum bench_form { BENCH_MD, BENCH_JSON, BENCH_CSV };
void bench_print_head(enum bench_form form, FILE *f);
void bench_print_row(enum bench_form form, const session *s, const opts *o, const bench_result *r, int first, FILE *f);
void bench_print_foot(enum bench_form form, FILE *f);

#endif
