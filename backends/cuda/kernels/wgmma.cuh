/* Products of a warpgroup (four waves): D += A B^T, 64 rows of A, N rows of B, 32 bytes of K at a time, float sums. A
 * and B lie in shared memory as atoms: 8 lines of 128 bytes at a multiple of 1024, 16-byte piece c of line r at piece
 * c ^ r, atoms of following rows 1024 bytes apart; or A is in registers, as mma.cuh has it. Products run beside the
 * threads: what they read and write is touched again after wgmma_wait. Hardware has them as sm_90a, and the emulation,
 * where they are done at once. WGMMA: they are there. SPDX-License-Identifier: Apache-2.0 */
#ifndef WGMMA_CUH
#define WGMMA_CUH

#include "async.cuh"
#include "unpack.cuh"

#if WAVE == 32 && (defined(SIMT_H) || defined(__CUDA_ARCH_FEAT_SM90_ALL))
#define WGMMA 1
#endif

#if defined(WGMMA)

/* Sums of a thread: d[4 j + i] is of row 16 w + l / 4 + i / 2 * 8 and column 8 j + l % 4 * 2 + i % 2, lane l of the
 * warpgroup's wave w. */
#define WG_SUMS(N) ((N) / 2)

/* Before the first product, and where registers that products use have been touched. */
DEV void wgmma_fence()
{
#if !defined(SIMT_H)
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#endif
}

DEV void wgmma_commit()
{
#if !defined(SIMT_H)
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
#endif
}

/* Until no more than the last LEFT committed groups run. */
template <int LEFT> DEV void wgmma_wait()
{
#if !defined(SIMT_H)
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(LEFT) : "memory");
#else
    wave_sync(); /* each thread makes its sums when it comes to them */
#endif
}

/* The compiler keeps what it does with the sums on its side of this. */
template <int N> DEV void wgmma_pin(float *d)
{
#if !defined(SIMT_H)
    UNROLL
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
#else
    (void)d;
#endif
}

/* Registers of a warpgroup's threads, of all four waves at once. */
template <int N> DEV void registers_grow()
{
#if !defined(SIMT_H)
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(N));
#endif
}

template <int N> DEV void registers_shrink()
{
#if !defined(SIMT_H)
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(N));
#endif
}

/* Counts up and gives what was there. What this thread's block wrote before its last barrier is seen by the blocks that
 * count later, after their next one. */
DEV uint32_t device_count(uint32_t *p)
{
#if defined(SIMT_H)
    return atomicAdd(p, 1u);
#else
    uint32_t was;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;\n" : "=r"(was) : "l"(p) : "memory");
    return was;
#endif
}

/* Shared memory that threads wrote is seen by products and copies after the next barrier. */
DEV void async_fence()
{
#if !defined(SIMT_H)
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
#endif
}

/* ---- Clusters: WG_CLUSTER blocks that run together and bring what they share once. The emulation runs one block at a
 * time: there it is one. ------------------------------------------------------------------------------------------- */

#if defined(SIMT_H)
#define WG_CLUSTER 1
#define CLUSTERED
#else
#if !defined(WG_CLUSTER)
#define WG_CLUSTER 2
#endif
#define CLUSTERED __cluster_dims__(WG_CLUSTER, 1, 1)
#endif

DEV int cluster_rank()
{
#if defined(SIMT_H)
    return 0;
#else
    uint32_t r;
    asm("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(r));
    return (int)r;
#endif
}

/* Of all threads of all blocks. */
DEV void cluster_sync()
{
#if defined(SIMT_H)
    __syncthreads();
#else
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;\n" ::: "memory");
#endif
}

/* Arrives at the barrier that is b in block `rank`: says that what this thread read is read, not that writes are seen
 * there (order among a cluster's writes costs a microsecond a time). */
DEV void cluster_arrive(mbar *b, int rank)
{
#if WG_CLUSTER == 1
    (void)rank;
    mbar_arrive(b);
#else
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(shared_at(b)),
                 "r"(rank)
                 : "memory");
#endif
}

/* A bulk copy to the same place of every block, which tells each one's b. */
DEV void cluster_copy(void *shared, const void *global, int bytes, mbar *b)
{
#if WG_CLUSTER == 1
    bulk_copy(shared, global, bytes, b, false);
#else
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, "
                 "[%3], %4;\n" ::"r"(shared_at(shared)),
                 "l"(global), "r"(bytes), "r"(shared_at(b)), "h"((uint16_t)((1 << WG_CLUSTER) - 1))
                 : "memory");
#endif
}

/* The line of 128 bytes there comes to the second-level cache. */
DEV void prefetch_line(const void *p)
{
#if defined(SIMT_H)
    (void)p;
#else
    asm volatile("prefetch.global.L2 [%0];\n" ::"l"(p));
#endif
}

/* ---- Products ------------------------------------------------------------------------------------------------------
 */

/* Where an operand lies; p: 32 bytes of K of its first row, at a multiple of 32 within an atom's first line. */
#if defined(SIMT_H)
typedef const uchar *wg_place;
DEV wg_place wg_at(const void *p)
{
    return (const uchar *)p;
}
DEV wg_place wg_next(wg_place p, int slices)
{
    return p + 32 * slices;
}

DEV float wg_element(const uchar *place, int fmt, int row, int k)
{
    uintptr_t p = (uintptr_t)place + (uintptr_t)(row / 8 * 1024 + row % 8 * 128) +
                  (uintptr_t)(fmt == INFER_FMT_F8_E4M3 ? k : 2 * k);
    const uchar *e = (const uchar *)(p ^ (p >> 7 & 7u) << 4);
    uint16_t h;
    if (fmt == INFER_FMT_F8_E4M3)
        return e4m3(*e);
    memcpy(&h, e, 2);
    return fmt == INFER_FMT_F16 ? half_to_float(h) : bf16_to_float(h);
}
template <int PANEL> DEV wg_place wg_turned_at(const void *p)
{
    return (const uchar *)p;
}
#else
typedef uint64_t wg_place;
template <int PANEL> DEV wg_place wg_turned_at(const void *p)
{
    return (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)(PANEL >> 4) << 16 |
           (shared_at(p) & 0x3FFFFu) >> 4;
}
DEV wg_place wg_at(const void *p)
{
    return (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 16 | (shared_at(p) & 0x3FFFFu) >> 4;
}
DEV wg_place wg_next(wg_place p, int slices)
{
    return p + (uint64_t)(2 * slices);
}
#endif

/* wgmma_shared<N, FMT>(d, a, b, more): D = A B^T + (more ? D : 0), K 16 elements, of F8_E4M3 32.
 * wgmma_regs<N>(d, a, b, more): the same in F16 with A's fragment in registers.
 * wgmma_turned<N, FMT, PANEL>(d, a, b, more): D = A B + ..., A in registers; B has its 16 rows of K as lines of 64
 * columns, the next 64 PANEL bytes on; b is of wg_turned_at<PANEL>, at a multiple of 8 lines. */
#if defined(SIMT_H)
template <int N, int FMT> DEV void wgmma_shared(float *d, wg_place a, wg_place b, int more)
{
    int l = thread_id() % 32, w = thread_id() / 32 % 4;
    for (int i = 0; i < WG_SUMS(N); i++) {
        int row = 16 * w + l / 4 + i % 4 / 2 * 8, col = i / 4 * 8 + l % 4 * 2 + i % 2;
        float s = more ? d[i] : 0;
        for (int k = 0; k < (FMT == INFER_FMT_F8_E4M3 ? 32 : 16); k++)
            s = fmaf(wg_element(a, FMT, row, k), wg_element(b, FMT, col, k), s);
        d[i] = s;
    }
}

template <int N> DEV void wgmma_regs(float *d, const uint32_t a[4], wg_place b, int more)
{
    const unsigned char *all = simt::exchange(a, 16, __LINE__);
    int l = thread_id() % 32;
    for (int i = 0; i < WG_SUMS(N); i++) {
        int row = l / 4 + i % 4 / 2 * 8, col = i / 4 * 8 + l % 4 * 2 + i % 2;
        float s = more ? d[i] : 0;
        for (int k = 0; k < 16; k++) {
            uint32_t v;
            memcpy(&v, all + 64 * (row % 8 * 4 + k % 8 / 2) + 4 * (row / 8 + k / 8 * 2), 4);
            s = fmaf(half_to_float((uint16_t)(v >> k % 2 * 16)), wg_element(b, INFER_FMT_F16, col, k), s);
        }
        d[i] = s;
    }
}
template <int N, int FMT, int PANEL> DEV void wgmma_turned(float *d, const uint32_t a[4], wg_place b, int more)
{
    const unsigned char *all = simt::exchange(a, 16, __LINE__);
    int l = thread_id() % 32;
    for (int i = 0; i < WG_SUMS(N); i++) {
        int row = l / 4 + i % 4 / 2 * 8, col = i / 4 * 8 + l % 4 * 2 + i % 2;
        float s = more ? d[i] : 0;
        for (int k = 0; k < 16; k++) {
            uint32_t v;
            memcpy(&v, all + 64 * (row % 8 * 4 + k % 8 / 2) + 4 * (row / 8 + k / 8 * 2), 4);
            uint16_t h = (uint16_t)(v >> k % 2 * 16);
            s = fmaf(FMT == INFER_FMT_F16 ? half_to_float(h) : bf16_to_float(h),
                     wg_element(b + col / 64 * PANEL, FMT, k, col % 64), s);
        }
        d[i] = s;
    }
}
#else
#define WG_D8(a, b, c, d, e, f, g, h) "%" #a ",%" #b ",%" #c ",%" #d ",%" #e ",%" #f ",%" #g ",%" #h
#define WG_L8                         WG_D8(0, 1, 2, 3, 4, 5, 6, 7)
#define WG_L16                        WG_L8 "," WG_D8(8, 9, 10, 11, 12, 13, 14, 15)
#define WG_L32                        WG_L16 "," WG_D8(16, 17, 18, 19, 20, 21, 22, 23) "," WG_D8(24, 25, 26, 27, 28, 29, 30, 31)
#define WG_L64                                                                                                         \
    WG_L32 "," WG_D8(32, 33, 34, 35, 36, 37, 38, 39) "," WG_D8(40, 41, 42, 43, 44, 45, 46, 47) "," WG_D8(              \
        48, 49, 50, 51, 52, 53, 54, 55) "," WG_D8(56, 57, 58, 59, 60, 61, 62, 63)
#define WG_L128                                                                                                        \
    WG_L64 "," WG_D8(64, 65, 66, 67, 68, 69, 70, 71) "," WG_D8(72, 73, 74, 75, 76, 77, 78, 79) "," WG_D8(              \
        80, 81, 82, 83, 84, 85, 86,                                                                                    \
        87) "," WG_D8(88, 89, 90, 91, 92, 93, 94,                                                                      \
                      95) "," WG_D8(96, 97, 98, 99, 100, 101, 102,                                                     \
                                    103) "," WG_D8(104, 105, 106, 107, 108, 109, 110,                                  \
                                                   111) "," WG_D8(112, 113, 114, 115, 116, 117, 118,                   \
                                                                  119) "," WG_D8(120, 121, 122, 123, 124, 125, 126,    \
                                                                                 127)
#define WG_O4(d, i)   "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WG_O8(d, i)   WG_O4(d, i), WG_O4(d, i + 4)
#define WG_O16(d, i)  WG_O8(d, i), WG_O8(d, i + 8)
#define WG_O32(d, i)  WG_O16(d, i), WG_O16(d, i + 16)
#define WG_O64(d, i)  WG_O32(d, i), WG_O32(d, i + 32)
#define WG_O128(d, i) WG_O64(d, i), WG_O64(d, i + 64)

template <int N> struct wg_asm;
/* N, its sums, and the numbers of the operands behind them. */
#define WG_SIZE(N, SUMS, A, B, C, D, E, F)                                                                             \
    template <> struct wg_asm<N> {                                                                                     \
        template <int FMT> DEV void shared(float *d, uint64_t a, uint64_t b, int more)                                 \
        {                                                                                                              \
            if (FMT == INFER_FMT_F8_E4M3)                                                                              \
                asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #C ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N      \
                             "k32.f32.e4m3.e4m3 {" WG_L##SUMS "}, %" #A ", %" #B ", p, 1, 1;\n}\n"                     \
                             : WG_O##SUMS(d, 0)                                                                        \
                             : "l"(a), "l"(b), "r"(more));                                                             \
            else if (FMT == INFER_FMT_F16)                                                                             \
                asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #C ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N      \
                             "k16.f32.f16.f16 {" WG_L##SUMS "}, %" #A ", %" #B ", p, 1, 1, 0, 0;\n}\n"                 \
                             : WG_O##SUMS(d, 0)                                                                        \
                             : "l"(a), "l"(b), "r"(more));                                                             \
            else                                                                                                       \
                asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #C ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N      \
                             "k16.f32.bf16.bf16 {" WG_L##SUMS "}, %" #A ", %" #B ", p, 1, 1, 0, 0;\n}\n"               \
                             : WG_O##SUMS(d, 0)                                                                        \
                             : "l"(a), "l"(b), "r"(more));                                                             \
        }                                                                                                              \
        DEV void regs(float *d, const uint32_t *a, uint64_t b, int more)                                               \
        {                                                                                                              \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #F ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N          \
                         "k16.f32.f16.f16 {" WG_L##SUMS "}, {%" #A ",%" #B ",%" #C ",%" #D "}, %" #E                   \
                                                        ", p, 1, 1, 0;\n}\n"                                           \
                         : WG_O##SUMS(d, 0)                                                                            \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));                             \
        }                                                                                                              \
        template <int FMT> DEV void turned(float *d, const uint32_t *a, uint64_t b, int more)                          \
        {                                                                                                              \
            if (FMT == INFER_FMT_F16)                                                                                  \
                asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #F ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N      \
                             "k16.f32.f16.f16 {" WG_L##SUMS "}, {%" #A ",%" #B ",%" #C ",%" #D "}, %" #E               \
                                                            ", p, 1, 1, 1;\n}\n"                                       \
                             : WG_O##SUMS(d, 0)                                                                        \
                             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));                         \
            else                                                                                                       \
                asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #F ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N      \
                             "k16.f32.bf16.bf16 {" WG_L##SUMS "}, {%" #A ",%" #B ",%" #C ",%" #D "}, %" #E             \
                                                              ", p, 1, 1, 1;\n}\n"                                     \
                             : WG_O##SUMS(d, 0)                                                                        \
                             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));                         \
        }                                                                                                              \
    };
WG_SIZE(16, 8, 8, 9, 10, 11, 12, 13)
WG_SIZE(32, 16, 16, 17, 18, 19, 20, 21)
WG_SIZE(64, 32, 32, 33, 34, 35, 36, 37)
WG_SIZE(128, 64, 64, 65, 66, 67, 68, 69)
WG_SIZE(256, 128, 128, 129, 130, 131, 132, 133)

template <int N, int FMT> DEV void wgmma_shared(float *d, wg_place a, wg_place b, int more)
{
    wg_asm<N>::template shared<FMT>(d, a, b, more);
}

template <int N> DEV void wgmma_regs(float *d, const uint32_t a[4], wg_place b, int more)
{
    wg_asm<N>::regs(d, a, b, more);
}

template <int N, int FMT, int PANEL> DEV void wgmma_turned(float *d, const uint32_t a[4], wg_place b, int more)
{
    wg_asm<N>::template turned<FMT>(d, a, b, more);
}
#endif

#endif
#endif
