/* The backend's kernels for the fake driver: their own text, run by the emulation of tests/simt. For C and C++.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKE_KERNELS_H
#define FAKE_KERNELS_H

#include <stddef.h>

typedef struct fake_kernel fake_kernel;

/* NULL: there is no such kernel. */
const fake_kernel *fake_kernel_find(const char *name);
/* How many arguments it has, *n_ptr pointers before the rest; *bytes: of each. */
unsigned fake_kernel_args(const fake_kernel *k, unsigned *n_ptr, const size_t **bytes);
const char *fake_kernel_name(const fake_kernel *k);
/* Runs it, one launch at a time. ptr: host addresses (NULL: absent); params: the other arguments, one behind the other;
 * shared: bytes of dynamic shared memory. A fault that the emulation finds ends the process with a message. */
void fake_kernel_run(const fake_kernel *k, void *const *ptr, const void *params, const unsigned grid[3],
                     const unsigned block[3], unsigned shared);

#endif
