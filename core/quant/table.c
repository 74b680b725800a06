/* The table of storage formats. A new format is a row here and a pair of functions in the file of its family.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <strings.h>

#include "base/checked.h"
#include "quant/fmt.h"

#define BOTH(f) infer_unpack_##f, infer_pack_##f

/* Columns: id, name, block elements, block bytes, float, GGUF type, bound, conversions. The bounds are a tenth
 * above what 2^18 standard normal numbers give (test_quant.c measures them). Integers keep representable values: 0. */
static const infer_format_info formats[] = {
    {INFER_FMT_F32, "f32", 1, 4, 1, 0, 0, BOTH(f32)},
    {INFER_FMT_F16, "f16", 1, 2, 1, 1, 0.00023, BOTH(f16)},
    {INFER_FMT_BF16, "bf16", 1, 2, 1, 30, 0.00183, BOTH(bf16)},
    {INFER_FMT_F8_E4M3, "f8_e4m3", 1, 1, 1, -1, 0.0291, BOTH(e4m3)},
    {INFER_FMT_F8_E5M2, "f8_e5m2", 1, 1, 1, -1, 0.0582, BOTH(e5m2)},
    {INFER_FMT_F64, "f64", 1, 8, 1, 28, 0, BOTH(f64)},
    {INFER_FMT_I8, "i8", 1, 1, 0, 24, 0, BOTH(i8)},
    {INFER_FMT_U8, "u8", 1, 1, 0, -1, 0, BOTH(u8)},
    {INFER_FMT_I16, "i16", 1, 2, 0, 25, 0, BOTH(i16)},
    {INFER_FMT_I32, "i32", 1, 4, 0, 26, 0, BOTH(i32)},
    {INFER_FMT_I64, "i64", 1, 8, 0, 27, 0, NULL, NULL},
    {INFER_FMT_U16, "u16", 1, 2, 0, -1, 0, BOTH(u16)},
    {INFER_FMT_U32, "u32", 1, 4, 0, -1, 0, BOTH(u32)},
    {INFER_FMT_U4, "u4", 2, 1, 0, -1, 0, BOTH(u4)},
    {INFER_FMT_E8M0, "e8m0", 1, 1, 0, -1, 0, BOTH(e8m0)},
    {INFER_FMT_Q4_0, "q4_0", 32, 18, 0, 2, 0.0945, BOTH(q4_0)},
    {INFER_FMT_Q4_1, "q4_1", 32, 20, 0, 3, 0.0863, BOTH(q4_1)},
    {INFER_FMT_Q5_0, "q5_0", 32, 22, 0, 6, 0.047, BOTH(q5_0)},
    {INFER_FMT_Q5_1, "q5_1", 32, 24, 0, 7, 0.0417, BOTH(q5_1)},
    {INFER_FMT_Q8_0, "q8_0", 32, 34, 0, 8, 0.00589, BOTH(q8_0)},
    {INFER_FMT_Q2_K, "q2_k", 256, 84, 0, 10, 0.301, BOTH(q2_k)},
    {INFER_FMT_Q3_K, "q3_k", 256, 110, 0, 11, 0.16, BOTH(q3_k)},
    {INFER_FMT_Q4_K, "q4_k", 256, 144, 0, 12, 0.079, BOTH(q4_k)},
    {INFER_FMT_Q5_K, "q5_k", 256, 176, 0, 13, 0.0396, BOTH(q5_k)},
    {INFER_FMT_Q6_K, "q6_k", 256, 210, 0, 14, 0.0191, BOTH(q6_k)},
    {INFER_FMT_MXFP4, "mxfp4", 32, 17, 0, 39, 0.1266, BOTH(mxfp4)},
};

enum { N_FORMATS = sizeof formats / sizeof formats[0] };

const infer_format_info *infer_format_get(infer_format id)
{
    for (int i = 0; i < N_FORMATS; i++)
        if (formats[i].id == id)
            return &formats[i];
    return NULL;
}

const infer_format_info *infer_format_by_name(const char *name)
{
    for (int i = 0; i < N_FORMATS; i++)
        if (!strcasecmp(formats[i].name, name))
            return &formats[i];
    return NULL;
}

const infer_format_info *infer_format_by_gguf(uint32_t gguf_type)
{
    for (int i = 0; i < N_FORMATS; i++)
        if (formats[i].gguf_type >= 0 && (uint32_t)formats[i].gguf_type == gguf_type)
            return &formats[i];
    return NULL;
}

infer_status infer_format_bytes(infer_format id, uint64_t n, uint64_t *bytes)
{
    const infer_format_info *f = infer_format_get(id);
    if (!f || n % f->block_elems)
        return INFER_E_INVALID;
    return infer_mul_u64(n / f->block_elems, f->block_bytes, bytes) ? INFER_OK : INFER_E_TOO_LARGE;
}
