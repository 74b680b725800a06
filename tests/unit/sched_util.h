/* Requests for the tests of core/sched. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TESTS_SCHED_UTIL_H
#define INFER_TESTS_SCHED_UTIL_H

#include "unit/unit.h"

#include "sched/private.h"

enum { VOCAB = 40, EMBD = 6 };

/* An on_row that keeps nothing. */
static inline void on_logits(void *user, uint64_t pos, const float *logits, uint32_t n_vocab)
{
    (void)user;
    (void)pos;
    (void)logits;
    (void)n_vocab;
}

static const int32_t some_prompt[] = {1, 2, 3};

static inline infer_request plain(void)
{
    return (infer_request){.struct_size = sizeof(infer_request), .prompt = some_prompt, .n_prompt = 3, .max_tokens = 5};
}

/* Must work. */
static inline infer_req *make(const infer_request *r, uint32_t ctx)
{
    infer_req *x = NULL;
    infer_error e = {0};
    if (infer_req_create(r, NULL, VOCAB, EMBD, ctx, &x, &e))
        fail_msg("%s", e.text);
    assert_int_equal(e.status, 0);
    return x;
}

#endif
