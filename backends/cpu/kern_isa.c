/* Kernel tables that are put together from others, and whether they run here. Compiled for every processor, unlike the
 * kernels themselves. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <pthread.h>
#include <stddef.h>

#include "kern.h"

const kern_table *kern_generic(void)
{
    return &kern_generic_table;
}

static int has_avx512(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
#else
    return 0;
#endif
}

static kern_table avx512;
static int has_table;

static void make_avx512(void)
{
    const kern_table *below = kern_avx2();
    if (!below || !kern_avx512_panels.dots || !has_avx512())
        return;
    avx512 = *below;
    avx512.isa = "avx512";
    avx512.simd_bytes = 64;
    avx512.panel = &kern_avx512_panels;
    has_table = 1;
}

const kern_table *kern_avx512(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_avx512);
    return has_table ? &avx512 : NULL;
}
