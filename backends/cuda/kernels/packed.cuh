/* Codes of packed weights (packed.h) as pairs of f16, exactly. SPDX-License-Identifier: Apache-2.0 */
#ifndef PACKED_CUH
#define PACKED_CUH

#include "../packed.h"
#include "dev.cuh"

template <int FMT> struct packed_of;
#define X(ID, unit, bytes)                                                                                             \
    template <> struct packed_of<INFER_FMT_##ID> {                                                                     \
        enum { UNIT = unit, BYTES = bytes };                                                                           \
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

/* An f16 of 1024 to 2047 has its integer in the low ten bits: 0x6400 | n is 1024 + n. A fragment's A of 32 elements:
 * rows g and g + 8 of P0, of P1; then of P2, P3. */

/* Lane's words of two rows; codes less 128. */
DEV void codes_8(const uint4 &c, uint32_t a[8])
{
    const uint32_t w[4] = {c.x, c.z, c.y, c.w}; /* row g, g + 8 of the first 16 elements; of the second */
    UNROLL
    for (int i = 0; i < 4; i++) {
        a[i / 2 * 4 + i % 2] = half2_add(bytes_of(w[i], 0x64646464u, 0x4140u), 0xE480E480u); /* - 1152 */
        a[i / 2 * 4 + i % 2 + 2] = half2_add(bytes_of(w[i], 0x64646464u, 0x4342u), 0xE480E480u);
    }
}

/* Row g's and row g + 8's word; codes less ZERO. In bits 4 to 7 a nibble counts sixteenfold. */
template <int ZERO> DEV void codes_4(uint32_t g, uint32_t h, uint32_t a[8])
{
    const uint32_t one = ZERO == 8 ? 0xE408E408u : 0xE400E400u;     /* - 1024 - ZERO */
    const uint32_t sixteen = ZERO == 8 ? 0xD480D480u : 0xD400D400u; /* - 64 - ZERO */
    UNROLL
    for (int i = 0; i < 2; i++) {
        uint32_t w = i ? h : g;
        a[i] = half2_add(and_or(w, 0x000F000Fu, 0x64006400u), one);
        a[i + 2] = half2_fma(and_or(w, 0x00F000F0u, 0x64006400u), 0x2C002C00u, sixteen);
        w >>= 8;
        a[i + 4] = half2_add(and_or(w, 0x000F000Fu, 0x64006400u), one);
        a[i + 6] = half2_fma(and_or(w, 0x00F000F0u, 0x64006400u), 0x2C002C00u, sixteen);
    }
}

/* The same of codes without a zero, times their row's scale, an integer of at most 63 (as an f16 in both halves):
 * exact, as products are below 1024. */
DEV void codes_4_by(uint32_t g, uint32_t h, uint32_t by_g, uint32_t by_h, uint32_t a[8])
{
    UNROLL
    for (int i = 0; i < 2; i++) {
        uint32_t w = i ? h : g, one = i ? by_h : by_g;
        uint32_t one_less = half2_mul(one, 0xE400E400u), by = half2_mul(one, 0x2C002C00u),
                 by_less = half2_mul(one, 0xD400D400u);
        a[i] = half2_fma(and_or(w, 0x000F000Fu, 0x64006400u), one, one_less);
        a[i + 2] = half2_fma(and_or(w, 0x00F000F0u, 0x64006400u), by, by_less);
        w >>= 8;
        a[i + 4] = half2_fma(and_or(w, 0x000F000Fu, 0x64006400u), one, one_less);
        a[i + 6] = half2_fma(and_or(w, 0x00F000F0u, 0x64006400u), by, by_less);
    }
}

/* The same with two high bits of each code in the halves of `high`; codes less 32. */
DEV void codes_6(uint32_t g, uint32_t h, uint32_t high, uint32_t a[8])
{
    UNROLL
    for (int i = 0; i < 2; i++) {
        uint32_t w = i ? h : g, b = bytes_of(high, 0, i ? 0x4342u : 0x4140u) << 4;
        UNROLL
        for (int k = 0; k < 4; k++) {
            uint32_t v = (w >> 4 * k & 0x000F000Fu) | 0x64006400u;
            v |= b >> 2 * k & 0x00300030u;
            a[i + (k % 2) * 2 + k / 2 * 4] = half2_add(v, 0xE420E420u); /* - 1056 */
        }
    }
}

/* Two bytes of w, unsigned, as a pair: a float's low bits, or f16s of 1024 and more. */
DEV uint32_t byte_pair(uint32_t w, int i, int j)
{
    return half2_add(bytes_of(w, 0x64646464u, 0x4040u | (uint32_t)i | (uint32_t)j << 8), 0xE400E400u);
}

/* Byte i, signed: 0x4B0000xx is 2^23 + xx. */
DEV float signed_float(uint32_t w, int i)
{
    return float_of(bytes_of(w ^ 0x80808080u, 0x4B000000u, 0x7650u | (uint32_t)i)) - 8388736.0f;
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
