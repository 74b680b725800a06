/* The table of storage formats, with reference conversion to and from float. The reference is the definition: a
 * backend's own conversion is tested against it. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_QUANT_QUANT_H
#define INFER_QUANT_QUANT_H

#include <stddef.h>
#include <stdint.h>

#include <infer/quant.h>

#include "base/error.h"

/* unpack: n elements (a multiple of block_elems) from src to floats, exact where the format's values are.
 * pack: nearest representable block by the format's own rule, deterministic; n as above. */
typedef void (*infer_unpack_fn)(const void *src, float *dst, uint64_t n);
typedef void (*infer_pack_fn)(const float *src, void *dst, uint64_t n);

typedef struct infer_format_info {
    infer_format id;
    const char *name;       /* lower case, such as "q4_0", "bf16" */
    uint32_t block_elems;   /* 1 for plain types; 2 for u4 */
    uint32_t block_bytes;   /* bytes of one block */
    uint32_t is_float;      /* a plain floating type */
    int32_t gguf_type;      /* tensor type number in GGUF, -1: none */
    double max_rel_rms;     /* bound on RMS(x - unpack(pack(x))) / RMS(x) for normal x; 0: exact for representable x */
    infer_unpack_fn unpack; /* NULL where float is not meant (i64) */
    infer_pack_fn pack;     /* NULL: unpack only */
} infer_format_info;

/* NULL for an unknown id. Any thread, constant data. */
const infer_format_info *infer_format_get(infer_format id);
const infer_format_info *infer_format_by_name(const char *name); /* any case */
const infer_format_info *infer_format_by_gguf(uint32_t gguf_type);

/* Bytes of n elements; INFER_E_INVALID where n is no multiple of the block, INFER_E_TOO_LARGE on overflow. */
infer_status infer_format_bytes(infer_format id, uint64_t n, uint64_t *bytes);

/* Scalar conversions, round to nearest even; NaN stays NaN, overflow goes to infinity (E4M3: to NaN-free saturation at
 * 448, as the OCP specification's saturating mode). */
float infer_f16_to_f32(uint16_t h);
uint16_t infer_f32_to_f16(float f);
float infer_bf16_to_f32(uint16_t h);
uint16_t infer_f32_to_bf16(float f);
float infer_e4m3_to_f32(uint8_t v);
uint8_t infer_f32_to_e4m3(float f);

/* One matrix with its side planes, all borrowed. scale and zero may be NULL as q says. The planes' entries follow each
 * other without padding between rows: entry i of a U4 zero plane is a nibble of byte i / 2. */
typedef struct infer_quant_planes {
    const void *data, *scale, *zero;
} infer_quant_planes;

/* Sizes in bytes of the three planes of an [n][k] matrix (0 for an absent one). INFER_E_INVALID: q is none of the
 * kinds that quant.h lists (planes beside a self-scaled format, a scale in a block format, an unknown id), or k is no
 * multiple of the block; INFER_E_TOO_LARGE. */
infer_status infer_quant_bytes(const infer_quant *q, uint64_t n, uint64_t k, uint64_t bytes[3]);
/* Unpacks row `row` of an [n][k] matrix to k floats: scale * (code - zero), rounded once after the subtraction.
 * INFER_E_INVALID as above, for row >= n, and for a missing plane. */
infer_status infer_quant_unpack_row(const infer_quant *q, const infer_quant_planes *p, uint64_t n, uint64_t k,
                                    uint64_t row, float *dst);
/* Quantises an [n][k] float matrix into planes that the caller allocated by infer_quant_bytes: symmetric absmax
 * scales (INFER_E_INVALID where zero_value leaves no room on one side), or min-max with zero points where q has them.
 * Data I8, U8, U4 or fp8 (zero points: integers), else INFER_E_UNSUPPORTED. Round to nearest, nothing is searched:
 * some 2 ns an element where groups are whole bytes. Rows may be given a part at a time where group_n is 1. */
infer_status infer_quant_pack(const infer_quant *q, const float *src, uint64_t n, uint64_t k, void *data, void *scale,
                              void *zero);

#endif
