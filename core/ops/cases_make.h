/* What the generators of cases share. Internal to core/ops/cases*.c. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_OPS_CASES_MAKE_H
#define INFER_OPS_CASES_MAKE_H

#include "ops/cases.h"

/* Sizes and formats of a case; each generator says what they mean to it. */
typedef struct case_par {
    int64_t n, h, g, d, e, k;
    infer_format f0, f1, f2;
    uint32_t mode, flags;
} case_par;

#define CASE_DYN    1u  /* rows from the token count, below the capacity */
#define CASE_PAD    2u  /* strided operands: a gap after each row */
#define CASE_ABSENT 4u  /* optional operands left out */
#define CASE_EDGE   8u  /* index operands with entries out of range */
#define CASE_POISON 16u /* what must not be seen is NaN */
#define CASE_LAST   32u /* the first flag that a generator may define for itself */

/* A case in the making. Functions do nothing once `status` is a failure. */
typedef struct case_maker {
    infer_op_case *c;
    uint64_t rng;
    infer_status status;
} case_maker;

typedef void (*case_gen)(case_maker *m, const case_par *p);

/* A generator's cases: those of its list, then `more` further ones whose parameters `par` gives. */
typedef struct case_set {
    infer_op_id op;
    case_gen gen;
    const case_par *list;
    uint32_t n_list;
    uint32_t (*more)(void);
    void (*par)(uint32_t i, case_par *out);
} case_set;

extern const case_set infer_case_sets_rows[], infer_case_sets_cache[];
extern const uint32_t infer_case_n_sets_rows, infer_case_n_sets_cache;

/* Starts a case of one's own: no operands, static rows, the op's name as label, numbers from rng. The conformance kit
 * makes its own cases with it; the caller checks status at the end and frees the case, also after a failure. */
case_maker infer_op_case_begin(infer_op_case *out, infer_op_id op, uint64_t rng);

/* Numbers from the case's own seed, the same on every machine. */
uint64_t infer_case_random(case_maker *m);
float infer_case_uniform(case_maker *m);                       /* [0, 1) */
float infer_case_normal(case_maker *m);                        /* mean 0, variance 1, within +-3.5 */
int32_t infer_case_int(case_maker *m, int32_t lo, int32_t hi); /* lo..hi */
void infer_case_shuffle(case_maker *m, int32_t *v, int64_t n);

/* Adds an operand of uninitialised bytes (outputs: the pattern) and returns its index. pad: gap after each vector. */
uint32_t infer_case_in(case_maker *m, infer_format f, uint32_t pad, uint32_t rank, int64_t s0, int64_t s1, int64_t s2,
                       int64_t s3);
uint32_t infer_case_out(case_maker *m, infer_format f, uint32_t pad, uint32_t rank, int64_t s0, int64_t s1, int64_t s2,
                        int64_t s3);
void infer_case_absent(case_maker *m, int output);
/* An output that is the same range as operand `of`. */
void infer_case_out_same(case_maker *m, uint32_t of);
/* Normal numbers times scale in the operand's format, gaps included in its bytes zero. */
void infer_case_fill(case_maker *m, uint32_t i, float scale);
/* Normal numbers of variance 1 / k, so that a product has variance 1. */
uint32_t infer_case_weight(case_maker *m, infer_format f, const infer_quant *q, uint32_t rank, int64_t s0, int64_t s1,
                           int64_t s2);
/* An I32 operand of rank 1 with numbers lo..hi. */
uint32_t infer_case_ints(case_maker *m, int64_t n, int32_t lo, int32_t hi);
int32_t *infer_case_i32(case_maker *m, uint32_t i);
/* Attributes: p into the case's union (NULL: none). */
void infer_case_attrs(case_maker *m, const void *p, uint32_t size);
/* Rows from the token count: n less a few. */
void infer_case_dynamic(case_maker *m, const case_par *p);
/* Bounds: `base` for everything, plus one unit in the last place of the first output's format. */
void infer_case_tol_set(case_maker *m, double base, const char *why);
void infer_case_label(case_maker *m, const char *fmt, ...) INFER_PRINTF(2, 3);

#endif
