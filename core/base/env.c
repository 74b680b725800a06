/* The environment. Does not interpret values: who asks knows the type. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdlib.h>

#include "base/env.h"

const char *infer_env_get(const char *name)
{
    const char *v = secure_getenv(name);
    return v && *v ? v : NULL;
}
