/* A backend inside the test program: four devices that run the reference ops, each of which a test may let refuse ops,
 * ask for scratch, take epilogues or not, and claim nodes. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TESTS_REF_LIKE_H
#define INFER_TESTS_REF_LIKE_H

#include <infer/backend.h>

enum { REF_LIKE_DEVS = 4 };

typedef struct ref_like_behaviour {
    uint8_t deny[INFER_OP_COUNT];    /* op ids answered NO */
    uint8_t mingles[INFER_OP_COUNT]; /* op ids whose rows are said to depend on each other */
    uint32_t max_epilogue;           /* steps of a list that it takes */
    uint64_t scratch[INFER_OP_COUNT];
    /* prog_claim: the set of each op id, 0: none */
    int32_t claim[INFER_OP_COUNT];
    infer_status claim_status;
    /* seen */
    uint32_t n_claims;
} ref_like_behaviour;

extern ref_like_behaviour ref_like[REF_LIKE_DEVS];

/* Ids "like0" … "like3". */
const infer_plugin_desc *ref_like_query(const infer_host *host, const infer_abi_range *range);
/* Every device takes everything, with any epilogue, without scratch. */
void ref_like_reset(void);

#endif
