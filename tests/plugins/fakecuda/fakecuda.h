/*
 * A CUDA driver in host memory, for tests of backends/cuda without a card. It implements what cu_api.h lists, strictly:
 * device addresses are no host addresses and are checked against allocations, calls need the right current context,
 * streams run on threads of their own and read pinned memory when they get there, and a thread that records may not
 * call what the real driver forbids. What is left over at the end is reported and ends the process. Kernels are the
 * backend's own, emulated.
 *
 * Configured by INFER_FAKECUDA (read by cuInit) or fakecuda_configure: "key=value,..." of
 *   devices=N (2)  memory=BYTES each (256 MiB)  version=N (13000)  peer=0|1 (1)  memops=0|1 (1)
 *   alloc=N: the N-th allocation of device or pinned memory from now on is refused
 *   lose=N: the N-th launch of a kernel from now on faults, and takes its context along
 *   image=0|1 (1): whether images have code for the devices
 *   update=0|1 (1): whether a graph can be updated
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef FAKECUDA_H
#define FAKECUDA_H

#include <pthread.h>
#include <stdatomic.h>

#include "../../../backends/cuda/cu_api.h"
#include "fake_kernels.h"

#define FAKE_API __attribute__((visibility("default")))

#define X(field, symbol, params) FAKE_API cu_result symbol params;
CU_API_FUNCTIONS(X)
#undef X
FAKE_API void fakecuda_configure(const char *text);
/* Launches of graphs, and of kernels that were not in a graph, so far. */
FAKE_API void fakecuda_counts(unsigned *graphs, unsigned *kernels);
/* Runs so far of kernels whose names begin so, in graphs and not. */
FAKE_API unsigned fakecuda_runs(const char *begin);
/* The first bytes behind the pointers among the arguments of a kernel's last run; 0: it has not run. */
FAKE_API int fakecuda_params(const char *name, void *out, size_t bytes);

enum { FAKE_MAX_DEVICES = 8, FAKE_MAX_PTR = 16, FAKE_MAX_PARAMS = 1024 };
/* A device address is its host address with this bit. */
#define FAKE_DEVICE_BIT ((cu_deviceptr)1 << 60)

typedef struct fake_config {
    int devices, version, peer, memops, image, update;
    size_t memory;
    int alloc, lose;
} fake_config;
extern fake_config fake;
extern pthread_mutex_t fake_mu; /* of contexts, allocations, configuration */

struct CUctx_st {
    int device, retained;
    _Atomic cu_result lost;
    size_t used;
    int streams, events, modules, graphs, pinned; /* alive */
    unsigned peers;                               /* bits of devices that it has enabled */
};
extern _Thread_local cu_context fake_current;
extern _Thread_local int fake_recording; /* this thread has a stream in capture mode */

/* The calling thread's context or its failure; CU_E_INVALID_CONTEXT without one. */
cu_result fake_enter(cu_context *ctx);
/* As fake_enter, for calls that a recording forbids. */
cu_result fake_enter_safe(cu_context *ctx);
/* The host address of bytes at a device address; NULL: not all within one allocation of the process. */
void *fake_host(cu_deviceptr p, size_t bytes);
/* Whether p is in pinned memory, and how much follows it there. */
int fake_pinned(const void *p);
/* Counts down; 1: this one is to fail. Under fake_mu. */
int fake_due(int *counter);
void fake_die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

#endif
