/* The little that kernels need of a device: waves, reductions in a fixed order, 16-byte access, conversions, matrix
 * fragments. A second vendor's compiler provides the part under its own #if. Whatever is not marked so is plain C++,
 * also for the emulation of tests/simt. SPDX-License-Identifier: Apache-2.0 */
#ifndef DEV_CUH
#define DEV_CUH

#include <math.h>
#include <stdint.h>

#if defined(__HIPCC__)
#include <hip/hip_runtime.h>
#include <hip/hip_fp16.h>
#elif defined(__CUDACC__)
#include <cuda_fp16.h>
#elif !defined(SIMT_H)
#error "a kernel's source: for nvcc, hipcc or after tests/simt/simt.h"
#endif

#include <infer/ops.h>
#include "../../launch/params.h"

#define DEV static __device__ __forceinline__
#if defined(SIMT_H)
#define NOT_INLINED static
#else
#define NOT_INLINED static __device__ __noinline__
#endif
#if defined(SIMT_H)
#define UNROLL
#define NO_UNROLL
#else
#define UNROLL    _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
#endif
typedef unsigned char uchar;

/* ---- Waves ---------------------------------------------------------------------------------------------------- */

#if defined(SIMT_H)
#define WAVE SIMT_WAVE
#define SHARED(T, name, n)                                                                                             \
    static simt::shared_region<T[n]> name##_region;                                                                    \
    T(&name)[n] = name##_region.get()
#define SHARED_DYN(name)   unsigned char *name = simt::dynamic()
#define wave_xor(v, mask)  simt_from(v, (simt::self->lane ^ (mask)), __LINE__)
#define wave_from(v, lane) simt_from(v, lane, __LINE__)
#define wave_ballot(pred)  simt_ballot((pred) != 0, __LINE__)
#define wave_sync()        ((void)simt::exchange("", 1, __LINE__))
typedef uint64_t wave_bits;
#elif defined(__HIPCC__)
#if defined(__AMDGCN_WAVEFRONT_SIZE) && __AMDGCN_WAVEFRONT_SIZE == 32
#define WAVE 32
#else
#define WAVE 64
#endif
#define SHARED(T, name, n) __shared__ __attribute__((aligned(16))) T name[n]
#define SHARED_DYN(name)   extern __shared__ __attribute__((aligned(16))) unsigned char name[]
#define wave_xor(v, mask)  __shfl_xor(v, mask)
#define wave_from(v, lane) __shfl(v, lane)
#define wave_ballot(pred)  __ballot(pred)
#define wave_sync()        __builtin_amdgcn_wave_barrier()
typedef uint64_t wave_bits;
#else
#define WAVE               32
#define SHARED(T, name, n) __shared__ __align__(16) T name[n]
#define SHARED_DYN(name)   extern __shared__ __align__(16) unsigned char name[]
#define wave_xor(v, mask)  __shfl_xor_sync(0xFFFFFFFFu, v, mask)
#define wave_from(v, lane) __shfl_sync(0xFFFFFFFFu, v, lane)
#define wave_ballot(pred)  __ballot_sync(0xFFFFFFFFu, pred)
#define wave_sync()        __syncwarp()
typedef uint32_t wave_bits;
#endif

DEV int thread_id()
{
    return (int)(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
}

DEV int block_threads()
{
    return (int)(blockDim.x * blockDim.y * blockDim.z);
}

DEV float wave_sum(float v)
{
    for (int m = WAVE / 2; m > 0; m >>= 1)
        v += wave_xor(v, m);
    return v;
}

DEV float wave_max(float v)
{
    for (int m = WAVE / 2; m > 0; m >>= 1)
        v = fmaxf(v, wave_xor(v, m));
    return v;
}

/* The larger value, the lower index among equals; index -1: no candidate. */
DEV void better(float &v, int &i, float ov, int oi)
{
    if (oi >= 0 && (i < 0 || ov > v || (ov == v && oi < i))) {
        v = ov;
        i = oi;
    }
}

DEV void wave_best(float &v, int &i)
{
    for (int m = WAVE / 2; m > 0; m >>= 1) {
        float ov = wave_xor(v, m);
        int oi = wave_xor(i, m);
        better(v, i, ov, oi);
    }
}

/* ---- Blocks: every thread gets the result; waves are joined in their order -----------------------------------------
 */

#define MAX_WAVES (1024 / WAVE)

template <class T, class F> DEV T block_join(T v, F join)
{
    SHARED(T, part, MAX_WAVES);
    int t = thread_id(), waves = block_threads() / WAVE;
    for (int m = WAVE / 2; m > 0; m >>= 1)
        v = join(v, wave_xor(v, m));
    if (waves == 1)
        return v;
    __syncthreads();
    if (t % WAVE == 0)
        part[t / WAVE] = v;
    __syncthreads();
    v = part[0];
    for (int i = 1; i < waves; i++)
        v = join(v, part[i]);
    return v;
}

struct join_sum {
    template <class T> __device__ T operator()(T a, T b) const
    {
        return a + b;
    }
};
struct join_max {
    __device__ float operator()(float a, float b) const
    {
        return fmaxf(a, b);
    }
    __device__ unsigned long long operator()(unsigned long long a, unsigned long long b) const
    {
        return a > b ? a : b;
    }
};

DEV float block_sum(float v)
{
    return block_join(v, join_sum());
}

DEV unsigned long long block_sum(unsigned long long v)
{
    return block_join(v, join_sum());
}

DEV float block_max(float v)
{
    return block_join(v, join_max());
}

DEV unsigned long long block_max(unsigned long long v)
{
    return block_join(v, join_max());
}

DEV void block_best(float &v, int &i)
{
    SHARED(float, tv, MAX_WAVES);
    SHARED(int, ti, MAX_WAVES);
    int t = thread_id(), waves = block_threads() / WAVE;
    wave_best(v, i);
    if (waves == 1)
        return;
    __syncthreads();
    if (t % WAVE == 0) {
        tv[t / WAVE] = v;
        ti[t / WAVE] = i;
    }
    __syncthreads();
    v = tv[0];
    i = ti[0];
    for (int w = 1; w < waves; w++)
        better(v, i, tv[w], ti[w]);
}

/* ---- Numbers ------------------------------------------------------------------------------------------------------
 */

DEV uint32_t bits_of(float v)
{
    return __float_as_uint(v);
}

DEV float float_of(uint32_t u)
{
    return __uint_as_float(u);
}

#define QUIET_NAN float_of(0x7FC00000u)

DEV float half_to_float(uint16_t h)
{
#if defined(SIMT_H)
    return simt_half_to_float(h);
#else
    return __half2float(__ushort_as_half(h));
#endif
}

DEV uint16_t float_to_half(float v)
{
#if defined(SIMT_H)
    return simt_float_to_half(v);
#else
    return __half_as_ushort(__float2half_rn(v));
#endif
}

/* Round to nearest even; a NaN stays one. */
DEV uint16_t float_to_bf16(float v)
{
    uint32_t u = bits_of(v);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7FFFu + (u >> 16 & 1u)) >> 16);
}

DEV float bf16_to_float(uint16_t h)
{
    return float_of((uint32_t)h << 16);
}

/* Never contracted: what must equal the reference's value. */
DEV float mul(float a, float b)
{
    return __fmul_rn(a, b);
}

DEV float add(float a, float b)
{
    return __fadd_rn(a, b);
}

/* c + the four products of signed bytes. */
DEV int dot4(uint32_t a, uint32_t b, int c)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 610
    return __dp4a((int)a, (int)b, c);
#else
    for (int i = 0; i < 32; i += 8)
        c += (int)(int8_t)(a >> i) * (int)(int8_t)(b >> i);
    return c;
#endif
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

DEV int is_aligned(const void *p, int n)
{
    return (uintptr_t)p % n == 0;
}

DEV uint32_t ld_u16(const uchar *p)
{
    return *(const uint16_t *)p;
}

/* Four bytes at an even place. */
DEV uint32_t ld_even4(const uchar *p)
{
    return ld_u16(p) | ld_u16(p + 2) << 16;
}

DEV uint32_t ld_u32(const uchar *p)
{
    return *(const uint32_t *)p;
}

DEV uint4 ld_16(const void *p)
{
    return *(const uint4 *)p;
}

DEV uint2 ld_8(const void *p)
{
    return *(const uint2 *)p;
}

DEV void st_16(void *p, uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    uint4 v;
    v.x = x;
    v.y = y;
    v.z = z;
    v.w = w;
    *(uint4 *)p = v;
}

/* p += v in shared memory, which has no such instruction for 64 bits: the low half's carry goes along with the high. */
DEV void shared_add(unsigned long long *p, unsigned long long v)
{
#if defined(SIMT_H)
    atomicAdd(p, v);
#else
    uint32_t low = (uint32_t)v, high = (uint32_t)(v >> 32), old = atomicAdd((uint32_t *)p, low);
    high += (uint32_t)(old + low) < low;
    if (high)
        atomicAdd((uint32_t *)p + 1, high);
#endif
}

DEV int first_bit(unsigned long long v)
{
#if defined(SIMT_H)
    return __builtin_ctzll(v);
#else
    return __ffsll((long long)v) - 1;
#endif
}

DEV int bits_in(unsigned long long v)
{
#if defined(SIMT_H)
    return __builtin_popcountll(v);
#else
    return __popcll(v);
#endif
}

/* Orders this thread's accesses to device memory as other blocks see them. */
DEV void device_fence()
{
#if !defined(SIMT_H)
    __threadfence();
#endif
}

/* What another block of the same launch has written. */
template <class T> DEV T ld_fresh(const T *p)
{
#if defined(__CUDA_ARCH__)
    return __ldcg(p);
#else
    return *p;
#endif
}

/* Brings the line to the second-level cache, where it stays what other kernels make of it. */
DEV void fetch_ahead(const void *p)
{
#if defined(__CUDA_ARCH__)
    asm volatile("prefetch.global.L2 [%0];\n" ::"l"(p));
#else
    (void)p;
#endif
}

/* 16 bytes from global to shared memory, in the background until copy_wait(0): all groups but the last n are there. */
DEV void copy_16(void *shared, const void *global)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to), "l"(global) : "memory");
#else
    *(uint4 *)shared = *(const uint4 *)global;
#endif
}

DEV void copy_commit()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;\n" ::: "memory");
#endif
}

template <int N> DEV void copy_wait()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;\n" ::"n"(N) : "memory");
#endif
}

/* ---- Elements of plain formats --------------------------------------------------------------------------------------
 */

DEV float ld(const uchar *p, int fmt, int64_t i)
{
    if (fmt == INFER_FMT_F32)
        return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    return fmt == INFER_FMT_F16 ? half_to_float(h) : bf16_to_float(h);
}

DEV void st(uchar *p, int fmt, int64_t i, float v)
{
    if (fmt == INFER_FMT_F32)
        ((float *)p)[i] = v;
    else
        ((uint16_t *)p)[i] = fmt == INFER_FMT_F16 ? float_to_half(v) : float_to_bf16(v);
}

DEV int plain_bytes(int fmt)
{
    return fmt == INFER_FMT_F32 ? 4 : 2;
}

/* Two numbers of 16 bits. */
DEV void two_floats(uint32_t u, int fmt, float *v)
{
    if (fmt == INFER_FMT_F16) {
        v[0] = half_to_float((uint16_t)u);
        v[1] = half_to_float((uint16_t)(u >> 16));
    } else {
        v[0] = float_of(u << 16);
        v[1] = float_of(u & 0xFFFF0000u);
    }
}

/* Eight elements from element i, a multiple of 8. wide: p is a multiple of 16. */
DEV void ld8(const uchar *p, int fmt, int64_t i, int wide, float v[8])
{
    if (!wide) {
        for (int k = 0; k < 8; k++)
            v[k] = ld(p, fmt, i + k);
    } else if (fmt == INFER_FMT_F32) {
        uint4 a = ld_16((const float *)p + i), b = ld_16((const float *)p + i + 4);
        v[0] = float_of(a.x), v[1] = float_of(a.y), v[2] = float_of(a.z), v[3] = float_of(a.w);
        v[4] = float_of(b.x), v[5] = float_of(b.y), v[6] = float_of(b.z), v[7] = float_of(b.w);
    } else {
        uint4 a = ld_16((const uint16_t *)p + i);
        two_floats(a.x, fmt, v);
        two_floats(a.y, fmt, v + 2);
        two_floats(a.z, fmt, v + 4);
        two_floats(a.w, fmt, v + 6);
    }
}

DEV uint32_t pack_two(float a, float b, int fmt)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint32_t both;
    if (fmt == INFER_FMT_F16)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(b), "f"(a));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(b), "f"(a));
    return both;
#endif
    return fmt == INFER_FMT_F16 ? float_to_half(a) | (uint32_t)float_to_half(b) << 16
                                : float_to_bf16(a) | (uint32_t)float_to_bf16(b) << 16;
}

DEV void st8(uchar *p, int fmt, int64_t i, int wide, const float v[8])
{
    if (!wide) {
        for (int k = 0; k < 8; k++)
            st(p, fmt, i + k, v[k]);
    } else if (fmt == INFER_FMT_F32) {
        st_16((float *)p + i, bits_of(v[0]), bits_of(v[1]), bits_of(v[2]), bits_of(v[3]));
        st_16((float *)p + i + 4, bits_of(v[4]), bits_of(v[5]), bits_of(v[6]), bits_of(v[7]));
    } else {
        st_16((uint16_t *)p + i, pack_two(v[0], v[1], fmt), pack_two(v[2], v[3], fmt), pack_two(v[4], v[5], fmt),
              pack_two(v[6], v[7], fmt));
    }
}

/* ---- Operands ------------------------------------------------------------------------------------------------------
 */

/* Where vector k of an operand begins. */
DEV int64_t at(const lp_tensor &t, int64_t k)
{
    int64_t i1 = 0, i2 = 0;
    if (t.n2 > 1) {
        i2 = k % t.n2;
        k /= t.n2;
    }
    if (t.n1 > 1) {
        i1 = k % t.n1;
        k /= t.n1;
    }
    return (int64_t)t.off + k * t.s0 + i1 * t.s1 + i2 * t.s2;
}

/* Element e of row r in panels: what it lies behind the row's place, as element number panel_e. */
DEV int64_t panel_at(const lp_panels &p, int r, int e)
{
    return (r >> p.log) * p.tile + (e >> 6) * p.step;
}

DEV int panel_e(const lp_panels &p, int r, int e)
{
    return e ^ (r & p.turn) * 8;
}

/* The count that rows are by, and what it makes of them: apart, so that other reads may be under way between. */
DEV int count_of(const uchar *counts, const lp_rows &r)
{
    return r.from < 0 ? 0 : ((const int *)(counts + r.off))[r.from];
}

DEV int rows_of_count(int count, const lp_rows &r)
{
    int64_t n = count > 0 ? count * (int64_t)r.mul : 0;
    return r.from < 0 || n > r.cap ? r.cap : (int)n;
}

DEV int rows_of(const uchar *counts, const lp_rows &r)
{
    return rows_of_count(count_of(counts, r), r);
}

DEV float activate(int act, float x)
{
    switch (act) {
    case INFER_ACT_SILU:
        return x / (1.0f + expf(-x));
    case INFER_ACT_GELU:
        return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    case INFER_ACT_GELU_TANH:
        return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    case INFER_ACT_RELU:
        return x > 0 ? x : x < 0 ? 0.0f : x;
    default:
        return 1.0f / (1.0f + expf(-x));
    }
}

/* act(x) * u, or act(x) alone, limited first where limit is above 0. */
DEV float gated(int act, float limit, float x, int has_u, float u)
{
    if (limit > 0) {
        x = x > limit ? limit : x;
        u = u > limit ? limit : u < -limit ? -limit : u;
    }
    x = activate(act, x);
    return has_u ? mul(x, u) : x;
}

/* A block's place in a grid over width elements (x, eight a thread) of n vectors (y), both walked. */
#define FOR_EIGHTS(e, width)                                                                                           \
    for (int e = 8 * (int)(blockIdx.x * blockDim.x + threadIdx.x); e < (width); e += 8 * (int)(gridDim.x * blockDim.x))
#define FOR_VECTORS(k, n) for (int k = (int)blockIdx.y; k < (n); k += (int)gridDim.y)

#endif
