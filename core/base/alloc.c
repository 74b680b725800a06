/* Host memory. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

static _Atomic uint64_t alloc_count;
static _Atomic int64_t fail_countdown = -1;
static _Atomic int fail_forever;
static _Atomic int fail_delivered;

static int should_fail(void)
{
    atomic_fetch_add_explicit(&alloc_count, 1, memory_order_relaxed);
    if (atomic_load_explicit(&fail_countdown, memory_order_relaxed) < 0)
        return 0;
    int64_t left = atomic_fetch_sub(&fail_countdown, 1);
    if (left > 0)
        return 0;
    if (left == 0 || atomic_load(&fail_forever)) {
        if (atomic_load(&fail_forever))
            atomic_store(&fail_countdown, 0);
        atomic_store(&fail_delivered, 1);
        return 1;
    }
    return 0;
}

int infer_alloc_fail_after(int64_t n, int fail_all)
{
    int was = atomic_exchange(&fail_delivered, 0);
    atomic_store(&fail_forever, fail_all);
    atomic_store(&fail_countdown, n);
    return was;
}

uint64_t infer_alloc_count(void)
{
    return atomic_load_explicit(&alloc_count, memory_order_relaxed);
}

void *infer_malloc(size_t size)
{
    return should_fail() ? NULL : malloc(size ? size : 1);
}

void *infer_calloc(size_t n, size_t size)
{
    return should_fail() ? NULL : calloc(n ? n : 1, size ? size : 1);
}

void *infer_realloc(void *p, size_t size)
{
    return should_fail() ? NULL : realloc(p, size ? size : 1);
}

void *infer_realloc_array(void *p, size_t n, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes))
        return NULL;
    return infer_realloc(p, bytes);
}

char *infer_strndup(const char *s, size_t n)
{
    char *d = n == SIZE_MAX ? NULL : infer_malloc(n + 1);
    if (d) {
        if (n)
            memcpy(d, s, n);
        d[n] = 0;
    }
    return d;
}

char *infer_strdup(const char *s)
{
    return infer_strndup(s, strlen(s));
}

void infer_free(void *p)
{
    free(p);
}

void *infer_alloc_aligned(size_t size, size_t align)
{
    void *p = NULL;
    if (should_fail() || posix_memalign(&p, align < sizeof(void *) ? sizeof(void *) : align, size ? size : 1))
        return NULL;
    return p;
}

void infer_free_aligned(void *p)
{
    free(p);
}
