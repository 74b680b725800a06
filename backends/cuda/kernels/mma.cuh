/* 16 x 8 outputs of a wave from shared memory: D += A B^T, A [16][k], B [8][k], both with k the fast axis, 16 of k at a
 * time, in bf16 or f16 with float sums. SPDX-License-Identifier: Apache-2.0 */
#ifndef MMA_CUH
#define MMA_CUH

#include "dev.cuh"

/* Outputs of a lane, and where output i lies. */
#define FRAG (128 / WAVE)

DEV int frag_row(int i)
{
    int l = thread_id() % WAVE;
    return WAVE == 32 ? l / 4 + i / 2 * 8 : l / 8 + i * 8;
}

DEV int frag_col(int i)
{
    int l = thread_id() % WAVE;
    return WAVE == 32 ? l % 4 * 2 + i % 2 : l % 8;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750
#define MMA_F16 1
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define MMA_BF16 1
#endif

/* Operands in registers where the hardware has them there, places in shared memory elsewhere. */
template <int FMT> struct frag_a {
#if WAVE == 32
    uint32_t v[4];
#endif
    const uint16_t *p;
    int stride;
};
template <int FMT> struct frag_b {
#if WAVE == 32
    uint32_t v[2];
#endif
    const uint16_t *p;
    int stride;
};

/* p: element [0][0] of the 16 (8) rows, stride in elements, both even. */
template <int FMT> DEV void frag_load(frag_a<FMT> &f, const uint16_t *p, int stride)
{
    f.p = p;
    f.stride = stride;
#if WAVE == 32
    int l = thread_id() % 32;
    p += l / 4 * stride + l % 4 * 2;
    f.v[0] = *(const uint32_t *)p;
    f.v[1] = *(const uint32_t *)(p + 8 * stride);
    f.v[2] = *(const uint32_t *)(p + 8);
    f.v[3] = *(const uint32_t *)(p + 8 * stride + 8);
#endif
}

template <int FMT> DEV void frag_load(frag_b<FMT> &f, const uint16_t *p, int stride)
{
    f.p = p;
    f.stride = stride;
#if WAVE == 32
    int l = thread_id() % 32;
    p += l / 4 * stride + l % 4 * 2;
    f.v[0] = *(const uint32_t *)p;
    f.v[1] = *(const uint32_t *)(p + 8);
#endif
}

template <int FMT> DEV float frag_float(uint16_t h)
{
    return FMT == INFER_FMT_F16 ? half_to_float(h) : bf16_to_float(h);
}

#if defined(SIMT_H) && WAVE == 32
/* From the registers as the instruction takes them, so that the emulation tests their layout. */
template <int FMT> DEV void mma_emulated(float d[FRAG], const uint32_t *a, const uint32_t *b)
{
    const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    const unsigned char *all = simt::exchange(mine, sizeof mine, __LINE__);
    float x[2][16], y[2][16]; /* the two rows and the two columns of this thread's four */
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 16; k++) {
            const int r = frag_row(2 * i), c = frag_col(i);
            uint16_t av, bv;
            memcpy(&av, all + 64 * (r % 8 * 4 + k % 8 / 2) + 4 * (r / 8 + k / 8 * 2) + 2 * (k % 2), 2);
            memcpy(&bv, all + 64 * (c * 4 + k % 8 / 2) + 16 + 4 * (k / 8) + 2 * (k % 2), 2);
            x[i][k] = frag_float<FMT>(av);
            y[i][k] = frag_float<FMT>(bv);
        }
    for (int i = 0; i < FRAG; i++)
        for (int k = 0; k < 16; k++) /* the product of two halves is exact */
            d[i] = FMT == INFER_FMT_F16 ? d[i] + x[i / 2][k] * y[i % 2][k] : fmaf(x[i / 2][k], y[i % 2][k], d[i]);
}
#endif

template <int FMT> DEV void mma(float d[FRAG], const frag_a<FMT> &a, const frag_b<FMT> &b);

/* D = A B^T. */
template <int FMT> DEV void mma_first(float d[FRAG], const frag_a<FMT> &a, const frag_b<FMT> &b)
{
#if defined(MMA_BF16)
    if (FMT == INFER_FMT_F16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%10,%10,%10,%10};\n"
            : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
            : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b.v[0]), "r"(b.v[1]), "f"(0.0f));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%10,%10,%10,%10};\n"
            : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
            : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b.v[0]), "r"(b.v[1]), "f"(0.0f));
#else
    for (int i = 0; i < FRAG; i++)
        d[i] = 0;
    mma(d, a, b);
#endif
}

template <int FMT> DEV void mma(float d[FRAG], const frag_a<FMT> &a, const frag_b<FMT> &b)
{
#if defined(MMA_BF16)
    if (FMT == INFER_FMT_F16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b.v[0]), "r"(b.v[1]));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};\n"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b.v[0]), "r"(b.v[1]));
#elif defined(SIMT_H) && WAVE == 32
    mma_emulated<FMT>(d, a.v, b.v);
#else
#if defined(MMA_F16)
    if (FMT == INFER_FMT_F16) { /* sm_75 has half the depth, and no bf16 */
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};\n"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a.v[0]), "r"(a.v[1]), "r"(b.v[0]));
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};\n"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a.v[2]), "r"(a.v[3]), "r"(b.v[1]));
        return;
    }
#endif
    for (int i = 0; i < FRAG; i++) {
        const uint16_t *ra = a.p + frag_row(i) * a.stride, *rb = b.p + frag_col(i) * b.stride;
        for (int k = 0; k < 16; k++)
            d[i] = fmaf(frag_float<FMT>(ra[k]), frag_float<FMT>(rb[k]), d[i]);
    }
#endif
}

/* Products of bytes, for waves of 32. */
#if WAVE == 32
#if defined(SIMT_H)
/* D += A B^T: each lane gives its registers to all. */
template <int K, bool UNSIGNED> DEV void mma_bytes_emulated(int d[FRAG], const uint32_t *a, const uint32_t *b)
{
    uint32_t mine[6] = {0, 0, 0, 0, 0, 0};
    for (int i = 0; i < K / 8; i++)
        mine[i] = a[i];
    for (int i = 0; i < K / 16; i++)
        mine[4 + i] = b[i];
    const unsigned char *all = simt::exchange(mine, sizeof mine, __LINE__);
    for (int i = 0; i < FRAG; i++)
        for (int k = 0; k < K; k++) {
            int r = frag_row(i), c = frag_col(i);
            const unsigned char *ra = all + 64 * (r % 8 * 4 + k % 16 / 4) + 4 * (r / 8 + k / 16 * 2) + k % 4;
            const unsigned char *rb = all + 64 * (c * 4 + k % 16 / 4) + 16 + 4 * (k / 16) + k % 4;
            d[i] += (UNSIGNED ? (int)*ra : (signed char)*ra) * (signed char)*rb;
        }
}
#endif

/* D = A B^T of signed bytes in whole numbers, K 16 or 32: a[0] and a[1] are four bytes of rows l / 4 and 8 more, from
 * 4 (l % 4) on, a[2] and a[3] the same 16 further on; b of column l / 4 likewise. D as frag_row and frag_col say. */
template <int K> DEV void mma_bytes(int d[FRAG], const uint32_t *a, const uint32_t *b)
{
#if defined(MMA_BF16)
    if (K == 32)
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%10,%10,%10,%10};\n"
            : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2 % (K / 8)]), "r"(a[3 % (K / 8)]), "r"(b[0]), "r"(b[1 % (K / 16)]), "r"(0));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};\n"
            : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(0));
#elif defined(SIMT_H)
    for (int i = 0; i < FRAG; i++)
        d[i] = 0;
    mma_bytes_emulated<K, false>(d, a, b);
#endif
}

/* D += A B^T, K 32; UNSIGNED: A's bytes are. */
template <bool UNSIGNED = false> DEV void mma_bytes_on(int d[FRAG], const uint32_t a[4], const uint32_t b[2])
{
#if defined(MMA_BF16)
    if (UNSIGNED)
        asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
            : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
            : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#elif defined(SIMT_H)
    mma_bytes_emulated<32, UNSIGNED>(d, a, b);
#endif
}
#endif

#endif
