/* Runs the text of a CUDA kernel on the CPU: one fiber a thread, blocks one after the other, waves of SIMT_WAVE. Shared
 * memory is NaN at a block's start; a barrier or a wave exchange that some of its threads do not reach, or reach at
 * another place, ends the program with a message. Threads run in rising or in falling order (simt_reverse), so that a
 * missing barrier shows. The state is the process's: one launch at a time. Include it before the .cu files; simt.cpp
 * has the machinery. SPDX-License-Identifier: Apache-2.0 */
#ifndef SIMT_H
#define SIMT_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <type_traits>

#ifndef SIMT_WAVE
#define SIMT_WAVE 32
#endif

#if defined(__SANITIZE_ADDRESS__)
#define SIMT_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIMT_ASAN 1
#endif
#endif

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct uint2 {
    alignas(8) uint32_t x;
    uint32_t y;
};
struct uint4 {
    alignas(16) uint32_t x;
    uint32_t y, z, w;
};
struct float4 {
    alignas(16) float x;
    float y, z, w;
};
struct dim3 {
    uint32_t x, y, z;
    dim3(uint32_t a = 1, uint32_t b = 1, uint32_t c = 1) : x(a), y(b), z(c)
    {
    }
};

namespace simt
{
struct thread {
    dim3 tid;
    int lane, wave;
};
extern const thread *self; /* the running thread */
extern dim3 block_idx, block_dim, grid_dim;
extern int reverse;

/* Runs body once a thread. dyn: bytes of dynamic shared memory. */
void run(dim3 grid, dim3 block, size_t dyn, void (*body)(void *), void *ctx, const char *name);
unsigned char *dynamic();
void barrier(int line);
/* Every thread of the wave publishes n bytes (at most 64) and sees all of them, the bytes of lane l at 64 * l, until
 * its next exchange. */
const unsigned char *exchange(const void *mine, size_t n, int line);
/* Lets the other threads run: of a thread that waits for what one of them writes. */
void yield(int line);
/* Something that threads wait for has come about. */
void moved();
/* A barrier of n threads of the block, by number. */
void part_barrier(int id, int n, int line);
/* Fills memory with NaN. */
void poison(void *p, size_t bytes);
extern uint64_t block_number; /* of the running block, among all of the process */

/* Shared memory of static size, NaN where a block first comes to it. */
template <class T> struct shared_region {
    alignas(16) T v;
    uint64_t block;
    T &get()
    {
        if (block != block_number) {
            block = block_number;
            poison(&v, sizeof v);
        }
        return v;
    }
};

/* A launch by name, as a host records it: pointers first, then what is taken by value. */
struct launch {
    const char *name;
    void *const *mem;
    const void *params;
    dim3 grid, block;
    size_t dyn;
};

template <class A> struct fetch {
    static A get(const launch &l, size_t &, size_t &at)
    {
        A v;
        memcpy(&v, (const char *)l.params + at, sizeof v);
        at += sizeof v;
        return v;
    }
};
template <class P> struct fetch<P *> {
    static P *get(const launch &l, size_t &i, size_t &)
    {
        return (P *)l.mem[i++];
    }
};

template <class... A> void invoke(void (*f)(A...), const launch &l)
{
    size_t i = 0, at = 0;
    std::tuple<void (*)(A...), std::tuple<A...>> call{f, std::tuple<A...>{fetch<A>::get(l, i, at)...}};
    run(
        l.grid, l.block, l.dyn,
        [](void *c) {
            auto *t = (decltype(call) *)c;
            std::apply(std::get<0>(*t), std::get<1>(*t));
        },
        &call, l.name);
}

/* A kernel by its name. Of its n_args arguments the first n_ptr are pointers; bytes: of each. */
struct kernel {
    kernel *next;
    const char *name;
    void (*go)(const launch &l);
    unsigned n_args, n_ptr;
    const size_t *bytes;
    static kernel *all;
    template <class... A>
    kernel(const char *n, void (*)(A...), void (*g)(const launch &))
        : next(all), name(n), go(g), n_args(sizeof...(A)), n_ptr((0 + ... + std::is_pointer<A>::value))
    {
        static const size_t sizes[] = {sizeof(A)...};
        bytes = sizes;
        all = this;
    }
};
/* NULL: there is none. */
const kernel *find(const char *name);
/* Ends the program where there is no such kernel. */
void start(const launch &l);
} // namespace simt

/* Makes a kernel known by its name. */
#define SIMT_KERNEL(k) static simt::kernel simt_kernel_##k(#k, k, [](const simt::launch &l) { simt::invoke(k, l); });

#define threadIdx (simt::self->tid)
#define blockIdx  simt::block_idx
#define blockDim  simt::block_dim
#define gridDim   simt::grid_dim

#define __syncthreads() simt::barrier(__LINE__)

template <class T> static inline T simt_from(T v, int lane, int line)
{
    const unsigned char *all = simt::exchange(&v, sizeof v, line);
    memcpy(&v, all + 64 * (lane % SIMT_WAVE), sizeof v);
    return v;
}

static inline uint64_t simt_ballot(int pred, int line)
{
    const unsigned char *all = simt::exchange(&pred, sizeof pred, line);
    uint64_t bits = 0;
    for (int l = 0; l < SIMT_WAVE; l++)
        bits |= (uint64_t)(all[64 * l] != 0) << l;
    return bits;
}

/* Threads run one at a time: nothing tears. */
template <class T> static inline T atomicAdd(T *p, T v)
{
    T old = *p;
    *p = old + v;
    return old;
}
template <class T> static inline T atomicCAS(T *p, T want, T v)
{
    T old = *p;
    if (old == want)
        *p = v;
    return old;
}

static inline float __uint_as_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static inline uint32_t __float_as_uint(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}
/* A build without contraction gives these their meaning. */
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline uint64_t __umul64hi(uint64_t a, uint64_t b)
{
    return (uint64_t)((unsigned __int128)a * b >> 64);
}

extern const float *const simt_halves; /* of all 65536 */
static inline float simt_half_to_float(uint16_t h)
{
    return simt_halves[h];
}
uint16_t simt_float_to_half(float f);

#endif
