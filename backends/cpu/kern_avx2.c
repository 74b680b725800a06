/* Kernels with AVX2. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"
#include "kern.h"
#include <stddef.h>
const kern_table *kern_avx2(void)
{
    return NULL;
}
