/* What unpacks packed weights (packed.h): bits, and pairs of f16. SPDX-License-Identifier: Apache-2.0 */
#ifndef PACKED_CUH
#define PACKED_CUH

#include "../packed.h"
#include "dev.cuh"

template <int FMT> struct packed_of;
#define X(ID, unit, bytes, codes)                                                                                      \
    template <> struct packed_of<INFER_FMT_##ID> {                                                                     \
        enum { UNIT = unit, BYTES = bytes, CODES = codes };                                                            \
    };
PACKED_FORMATS(X)
#undef X

/* a * b + c of pairs. */
DEV uint32_t half2_fma(uint32_t a, uint32_t b, uint32_t c)
{
#if defined(__CUDA_ARCH__)
    uint32_t d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
#else
    uint32_t d = 0;
    for (int i = 0; i < 32; i += 16)
        d |= (uint32_t)float_to_half(fmaf(half_to_float((uint16_t)(a >> i)), half_to_float((uint16_t)(b >> i)),
                                          half_to_float((uint16_t)(c >> i))))
             << i;
    return d;
#endif
}

DEV uint32_t half2_add(uint32_t a, uint32_t b)
{
#if defined(__CUDA_ARCH__)
    uint32_t d;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
#else
    return half2_fma(a, 0x3C003C00u, b);
#endif
}

DEV uint32_t half2_mul(uint32_t a, uint32_t b)
{
#if defined(__CUDA_ARCH__)
    uint32_t d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
#else
    return half2_fma(a, b, 0x80008000u);
#endif
}

/* Bytes of a and b (0 to 3, 4 to 7) by the nibbles of `which`, lowest first. */
DEV uint32_t bytes_of(uint32_t a, uint32_t b, uint32_t which)
{
#if defined(__CUDA_ARCH__)
    return __byte_perm(a, b, which);
#else
    uint64_t all = (uint64_t)b << 32 | a;
    uint32_t d = 0;
    for (int i = 0; i < 4; i++)
        d |= (uint32_t)(all >> 8 * (which >> 4 * i & 7u) & 255u) << 8 * i;
    return d;
#endif
}

/* (v & mask) | with, in one instruction where both are constants, too. */
DEV uint32_t and_or(uint32_t v, uint32_t mask, uint32_t with)
{
#if !defined(__CUDA_ARCH__)
    return (v & mask) | with;
#else
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(r) : "r"(v), "r"(mask), "r"(with));
    return r;
#endif
}

/* (v & mask) ^ with, likewise. */
DEV uint32_t and_xor(uint32_t v, uint32_t mask, uint32_t with)
{
#if !defined(__CUDA_ARCH__)
    return (v & mask) ^ with;
#else
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0x6A;" : "=r"(r) : "r"(v), "r"(mask), "r"(with));
    return r;
#endif
}

/* Two bytes of w, unsigned, as a pair: an f16 of 1024 to 2047 has its integer in the low ten bits. */
DEV uint32_t byte_pair(uint32_t w, int i, int j)
{
    return half2_add(bytes_of(w, 0x64646464u, 0x4040u | (uint32_t)i | (uint32_t)j << 8), 0xE400E400u);
}

/* The low two bytes as e4m3. */
DEV uint32_t e4m3_pair(uint32_t w)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint32_t d;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(d) : "h"((uint16_t)w));
    return d;
#else
    uint32_t d = 0;
    for (int i = 0; i < 2; i++) {
        uint32_t b = w >> 8 * i & 255u, e = b >> 3 & 15u, m = b & 7u;
        uint16_t v = (b & 127u) == 127u ? (uint16_t)0x7FFFu
                     : e                ? (uint16_t)((e + 8) << 10 | m << 7)
                                        : float_to_half((float)m * 0.001953125f);
        d |= (uint32_t)(v | (b & 128u) << 8) << 16 * i;
    }
    return d;
#endif
}

#endif
