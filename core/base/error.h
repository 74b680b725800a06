/* Forwarding header: the public error type, and the early-return macro that the core uses. SPDX-License-Identifier:
 * Apache-2.0 */
#ifndef INFER_BASE_ERROR_H
#define INFER_BASE_ERROR_H

#include <infer/error.h>

/* Returns from the enclosing function on a failure or a "not yet"; for functions with nothing to undo. */
#define INFER_TRY(expr)                                                                                                \
    do {                                                                                                               \
        infer_status infer_try_status_ = (expr);                                                                       \
        if (infer_try_status_ != INFER_OK)                                                                             \
            return infer_try_status_;                                                                                  \
    } while (0)

#endif
