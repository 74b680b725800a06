/* The kernels of everything but products, for the emulation. SPDX-License-Identifier: Apache-2.0 */
#include "simt.h"

#include "../../backends/cuda/kernels/async.cuh"
#include "../../backends/cuda/kernels/each.cu"
#include "../../backends/cuda/kernels/rows.cu"
#include "../../backends/cuda/kernels/moe.cu"
#include "../../backends/cuda/kernels/sample.cu"
namespace kv
{
#include "../../backends/cuda/kernels/kv.cu"
}
namespace attn
{
#include "../../backends/cuda/kernels/attn.cu"
}
using namespace kv;
using namespace attn;

SIMT_KERNEL(each)
SIMT_KERNEL(copy_bytes)
SIMT_KERNEL(unpack_rows)
SIMT_KERNEL(pack_rows)
SIMT_KERNEL(concat_rows)
SIMT_KERNEL(rows_select)
SIMT_KERNEL(ids_select)
SIMT_KERNEL(moe_combine)
SIMT_KERNEL(norm_rows)
SIMT_KERNEL(norm_f32)
SIMT_KERNEL(norm_bf16)
SIMT_KERNEL(softmax)
SIMT_KERNEL(argmax)
SIMT_KERNEL(moe_route)
SIMT_KERNEL(rope_write)
SIMT_KERNEL(rope_writes)
SIMT_KERNEL(kv_move)
SIMT_KERNEL(state_copy)
SIMT_KERNEL(attention_1)
SIMT_KERNEL(attention_2)
SIMT_KERNEL(attention_4)
SIMT_KERNEL(attention_8)
SIMT_KERNEL(attention_join)
SIMT_KERNEL(sample_prepare)
SIMT_KERNEL(sample_pick)
SIMT_KERNEL(count_ids)
