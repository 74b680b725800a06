/*
 * A backend with one chosen mistake: the simulated accelerator with a slot or a reference op bent. For the test that
 * the conformance kit finds each. SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_BAD_H
#define INFER_BAD_H

#include <infer/backend.h>

typedef struct infer_bad_bug {
    const char *name;
    const char *what;
    uint32_t tier;     /* the tier that must find it; lower ones must not */
    const char *found; /* shell pattern: cases of which one must fail */
    int races;         /* the mistake is that something happens too early */
} infer_bad_bug;

/* The list; the first is no bug at all. */
extern const infer_bad_bug infer_bad_bugs[];
extern const uint32_t infer_bad_n_bugs;

/* Chooses a bug (index into the list) for devices opened from now on. Not while one is open. */
void infer_bad_choose(uint32_t index);
const infer_plugin_desc *infer_bad_query(const infer_host *host, const infer_abi_range *range);

#endif
