/* Cases beyond the conformance kit's. SPDX-License-Identifier: Apache-2.0 */
#ifndef SIMT_MORE_H
#define SIMT_MORE_H

extern "C" {
#include "ops/cases.h"
}

/* Makes case i; 0: there is none, -1: it could not be made. Free it with infer_op_case_free in any case. */
int more_case(uint32_t i, infer_op_case *c);

#endif
