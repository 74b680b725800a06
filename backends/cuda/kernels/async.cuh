/* Copies that run beside the threads and say so at a barrier in shared memory; order between kernels. Hardware from
 * sm_90 on has them, and the emulation, where a copy is there at once. ASYNC: they are there. SPDX-License-Identifier:
 * Apache-2.0 */
#ifndef ASYNC_CUH
#define ASYNC_CUH

#include "mma.cuh"

#if defined(SIMT_H) || (defined(__CUDACC__) && (!defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900))
#define ASYNC 1
#endif

/* ---- Order between kernels: a launch that has the attribute may begin while its predecessor runs. -------------------
 */

/* Waits for the predecessor's end: before the first read of what it wrote and the first write. Every kernel that
 * cuda_kernels.h marks as early calls it, in every thread that touches such memory. */
DEV void grid_wait()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

/* The successor's blocks may come where there is room. */
DEV void grid_go()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

#if defined(SIMT_H)
#define GRID_CONSTANT
#else
#define GRID_CONSTANT __grid_constant__
#endif

#if defined(ASYNC)

/* ---- Barriers in shared memory: a phase ends when all arrivals and all announced bytes are there.
 * --------------------- */

typedef uint64_t mbar;

#if defined(SIMT_H)
/* bits 0..31 bytes outstanding (signed), 32..46 arrivals outstanding, 47..61 arrivals of a phase, 63 the phase */
struct mbar_bits {
    int32_t bytes;
    uint32_t left : 15, all : 15, unused : 1, phase : 1;
};
DEV void mbar_step(mbar *b, int arrivals, int bytes)
{
    mbar_bits m;
    memcpy(&m, b, sizeof m);
    m.bytes += bytes;
    m.left -= (uint32_t)arrivals;
    if (!m.left && !m.bytes) {
        m.left = m.all;
        m.phase ^= 1u;
        simt::moved();
    }
    memcpy(b, &m, sizeof m);
}
#else
DEV uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
#endif

/* One thread makes it; then mbar_made, then a barrier of the block. */
DEV void mbar_init(mbar *b, int arrivals)
{
#if defined(SIMT_H)
    mbar_bits m = {0, (uint32_t)arrivals, (uint32_t)arrivals, 0, 0};
    memcpy(b, &m, sizeof m);
#else
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(shared_at(b)), "r"(arrivals) : "memory");
#endif
}

DEV void mbar_made()
{
#if !defined(SIMT_H)
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
#endif
}

DEV void mbar_arrive(mbar *b)
{
#if defined(SIMT_H)
    mbar_step(b, 1, 0);
#else
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(shared_at(b)) : "memory");
#endif
}

/* Arrives, and announces bytes that bulk copies will bring. */
DEV void mbar_expect(mbar *b, int bytes)
{
#if defined(SIMT_H)
    mbar_step(b, 0, bytes);
    mbar_step(b, 1, 0);
#else
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_at(b)), "r"(bytes) : "memory");
#endif
}

/* Until the phase of that parity (0 first) has ended. */
DEV void mbar_wait(mbar *b, int parity)
{
#if defined(SIMT_H)
    for (;;) {
        mbar_bits m;
        memcpy(&m, b, sizeof m);
        if ((int)m.phase != parity)
            return;
        simt::yield(__LINE__);
    }
#else
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra over;\n"
                 "bra again;\n"
                 "over:\n"
                 "}\n" ::"r"(shared_at(b)),
                 "r"(parity)
                 : "memory");
#endif
}

/* ---- Bulk copies: both places and bytes multiples of 16
 * --------------------------------------------------------------- */

/* From global to shared memory; b is told of the bytes. Bytes that are read once: `once` keeps them from displacing
 * others in the second-level cache. */
DEV void bulk_copy(void *shared, const void *global, int bytes, mbar *b, bool once)
{
#if defined(SIMT_H)
    (void)once;
    memcpy(shared, global, (size_t)bytes);
    mbar_step(b, 0, -bytes);
#else
    if (once) {
        uint64_t policy;
        asm volatile("createpolicy.fractional.L2::evict_first.b64 %0;\n" : "=l"(policy));
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], "
            "%4;\n" ::"r"(shared_at(shared)),
            "l"(global), "r"(bytes), "r"(shared_at(b)), "l"(policy)
            : "memory");
    } else {
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(
                         shared_at(shared)),
                     "l"(global), "r"(bytes), "r"(shared_at(b))
                     : "memory");
    }
#endif
}

/* ---- Waves and parts of a block
 * -------------------------------------------------------------------------------------- */

/* A barrier of n threads, whole waves, by number 1 to 15. */
DEV void part_sync(int id, int n)
{
#if defined(SIMT_H)
    simt::part_barrier(id, n, __LINE__);
#else
    asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(n) : "memory");
#endif
}

/* Four 8 x 8 matrices of 16-bit numbers: lane l gives the row l % 8 of matrix l / 8 (16 bytes), and gets of matrix i
 * the pair (l % 4) of row l / 4. */
DEV void ldmatrix_4(uint32_t r[4], const void *row)
{
#if defined(SIMT_H)
    const unsigned char *all = simt::exchange(&row, sizeof row, __LINE__);
    int l = thread_id() % 32;
    for (int i = 0; i < 4; i++) {
        const unsigned char *p;
        memcpy(&p, all + 64 * (8 * i + l / 4), sizeof p);
        memcpy(&r[i], p + 4 * (l % 4), 4);
    }
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_at(row)));
#endif
}

/* The same turned round: of matrix i the column l / 4 of rows 2 (l % 4) and the next. */
DEV void ldmatrix_4t(uint32_t r[4], const void *row)
{
#if defined(SIMT_H)
    const unsigned char *all = simt::exchange(&row, sizeof row, __LINE__);
    int l = thread_id() % 32;
    for (int i = 0; i < 4; i++) {
        const unsigned char *a, *b;
        uint16_t two[2];
        memcpy(&a, all + 64 * (8 * i + l % 4 * 2), sizeof a);
        memcpy(&b, all + 64 * (8 * i + l % 4 * 2 + 1), sizeof b);
        memcpy(&two[0], a + 2 * (l / 4), 2);
        memcpy(&two[1], b + 2 * (l / 4), 2);
        r[i] = two[0] | (uint32_t)two[1] << 16;
    }
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_at(row)));
#endif
}

/* An 8 x 8 matrix of 16-bit numbers turned round, a pair (l % 4) of row l / 4 a lane. */
DEV uint32_t transposed_8x8(uint32_t v)
{
#if defined(SIMT_H)
    const unsigned char *all = simt::exchange(&v, sizeof v, __LINE__);
    int l = thread_id() % 32, column = l / 4;
    uint16_t two[2];
    for (int i = 0; i < 2; i++)
        memcpy(&two[i], all + 64 * (4 * (l % 4 * 2 + i) + column / 2) + 2 * (column % 2), 2);
    return two[0] | (uint32_t)two[1] << 16;
#else
    uint32_t r;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(r) : "r"(v));
    return r;
#endif
}

#endif
#endif
