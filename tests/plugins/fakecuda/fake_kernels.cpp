/* Between the fake driver, in C, and the emulation. SPDX-License-Identifier: Apache-2.0 */
#include "../../simt/simt.h"

#include <mutex>

extern "C" {
#include "fake_kernels.h"
}

static std::mutex one;

static const simt::kernel *of(const fake_kernel *k)
{
    return (const simt::kernel *)k;
}

const fake_kernel *fake_kernel_find(const char *name)
{
    return (const fake_kernel *)simt::find(name);
}

const char *fake_kernel_name(const fake_kernel *k)
{
    return of(k)->name;
}

unsigned fake_kernel_args(const fake_kernel *k, unsigned *n_ptr, const size_t **bytes)
{
    *n_ptr = of(k)->n_ptr;
    *bytes = of(k)->bytes;
    return of(k)->n_args;
}

void fake_kernel_run(const fake_kernel *k, void *const *ptr, const void *params, const unsigned grid[3],
                     const unsigned block[3], unsigned shared)
{
    std::lock_guard<std::mutex> lock(one);
    of(k)->go({of(k)->name, ptr, params, dim3(grid[0], grid[1], grid[2]), dim3(block[0], block[1], block[2]), shared});
}
