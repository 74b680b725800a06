/* Small readers that the unpacking code of every instruction set shares. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_CPU_KERN_UNPACK_H
#define INFER_CPU_KERN_UNPACK_H

#include "kern.h"

/* X(id, name, elements of a block, bytes of a block) for every format: those that pack too, small numbers, others,
 * blocks. */
#define KERN_PACKED_FORMATS(X)                                                                                         \
    X(F32, f32, 1, 4)                                                                                                  \
    X(F16, f16, 1, 2)                                                                                                  \
    X(BF16, bf16, 1, 2)                                                                                                \
    X(Q8_0, q8_0, 32, 34)
#define KERN_SMALL_FORMATS(X) X(F8_E4M3, e4m3, 1, 1)
#define KERN_NUMBER_FORMATS(X)                                                                                         \
    X(F8_E5M2, e5m2, 1, 1)                                                                                             \
    X(F64, f64, 1, 8)                                                                                                  \
    X(I8, i8, 1, 1)                                                                                                    \
    X(U8, u8, 1, 1)                                                                                                    \
    X(I16, i16, 1, 2)                                                                                                  \
    X(U16, u16, 1, 2)                                                                                                  \
    X(I32, i32, 1, 4)                                                                                                  \
    X(U32, u32, 1, 4)                                                                                                  \
    X(U4, u4, 2, 1)                                                                                                    \
    X(E8M0, e8m0, 1, 1)
#define KERN_BLOCK32_FORMATS(X)                                                                                        \
    X(Q4_0, q4_0, 32, 18)                                                                                              \
    X(Q4_1, q4_1, 32, 20)                                                                                              \
    X(Q5_0, q5_0, 32, 22)                                                                                              \
    X(Q5_1, q5_1, 32, 24)                                                                                              \
    X(MXFP4, mxfp4, 32, 17)
#define KERN_BLOCK256_FORMATS(X)                                                                                       \
    X(Q2_K, q2_k, 256, 84)                                                                                             \
    X(Q3_K, q3_k, 256, 110)                                                                                            \
    X(Q4_K, q4_k, 256, 144)                                                                                            \
    X(Q5_K, q5_k, 256, 176)                                                                                            \
    X(Q6_K, q6_k, 256, 210)

#define KERN_DECLARE(id, name, elems, bytes) void kern_unpack_##name(const void *src, float *dst, int64_t n);
KERN_PACKED_FORMATS(KERN_DECLARE)
KERN_SMALL_FORMATS(KERN_DECLARE)
KERN_NUMBER_FORMATS(KERN_DECLARE)
KERN_BLOCK32_FORMATS(KERN_DECLARE)
KERN_BLOCK256_FORMATS(KERN_DECLARE)
#undef KERN_DECLARE
void kern_pack_f32(const float *src, void *dst, int64_t n);
void kern_pack_f16(const float *src, void *dst, int64_t n);
void kern_pack_bf16(const float *src, void *dst, int64_t n);
void kern_pack_q8_0(const float *src, void *dst, int64_t n);
extern const kern_format kern_generic_formats[INFER_FMT_COUNT];

static inline uint16_t kern_load_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static inline void kern_store_u16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static inline uint32_t kern_load_u32(const uint8_t *p)
{
    return kern_load_u16(p) | (uint32_t)kern_load_u16(p + 2) << 16;
}

static inline float kern_half(const uint8_t *p)
{
    return kern_f16_to_f32(kern_load_u16(p));
}

/* Head of a q4_k or q5_k block: f16 d, f16 dmin, then eight 6-bit scales and eight minima in 12 bytes (the first four
 * of each in the low six bits of bytes 0..3 and 4..7, the last four as nibbles of bytes 8..11 with their upper bits on
 * top of bytes 0..7). Gives d * scale and dmin * minimum, both exact. */
static inline void kern_scales12(const uint8_t *p, float scale[8], float min[8])
{
    float d = kern_half(p), dmin = kern_half(p + 2);
    p += 4;
    for (int i = 0; i < 4; i++) {
        scale[i] = d * (float)(p[i] & 63);
        min[i] = dmin * (float)(p[i + 4] & 63);
        scale[i + 4] = d * (float)((p[i + 8] & 15) | p[i] >> 6 << 4);
        min[i + 4] = dmin * (float)(p[i + 8] >> 4 | p[i + 4] >> 6 << 4);
    }
}

#endif
