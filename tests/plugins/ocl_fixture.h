/* What files of the OpenCL backend need of the others, for tests that have a driver of their own.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef OCL_FIXTURE_H
#define OCL_FIXTURE_H

#include <stdarg.h>
#include <time.h>

#include "ocl.h"

static int complaints; /* causes that were told */

infer_status ocl_fail(const infer_host *host, infer_status s, const char *fmt, ...)
{
    (void)host, (void)fmt;
    complaints++;
    return s;
}

infer_status ocl_status(infer_device *dev, cl_int e, infer_status s, const char *what)
{
    (void)dev, (void)what;
    return e ? s : INFER_OK;
}

static void *host_alloc(void *ctx, uint64_t bytes, uint32_t align)
{
    (void)ctx, (void)align;
    return malloc((size_t)bytes);
}

static void host_free(void *ctx, void *p)
{
    (void)ctx;
    free(p);
}

static uint64_t host_clock(void *ctx)
{
    struct timespec t;
    (void)ctx;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void host_log(void *ctx, int32_t level, const char *text)
{
    (void)ctx, (void)level, (void)text;
}

static const infer_host ocl_host = {.alloc = host_alloc, .free = host_free, .clock_ns = host_clock, .log = host_log};

#endif
