/* The table of operations: a row is an op's name, shape rule, attributes, check and reference. Nothing else lists ops.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "ops/ops.h"
#include "ops/ref.h"

/* id, name, signature, inputs min..max, outputs min..max, rows_of, takes_epilogue, inout, writes_in */
#define ROW(ID, name, sig, i0, i1, o0, o1, rows_of, epi, inout, writes_in, attrs_size, check, ref)                     \
    [INFER_OP_##ID] = {INFER_OP_##ID, name, sig, i0, i1, o0, o1, rows_of, epi, inout, writes_in, attrs_size, check, ref}

#define ROWS(ID, name, sig, i0, i1, attrs, check, ref) ROW(ID, name, sig, i0, i1, 1, 1, 0, 1, 0, 0, attrs, check, ref)

#define POOLS "kpool[bgtd]:p vpool[bgte]:p"
#define SEQS  "block_table[SB]:i kv_len[S]:i q_start[s]:i"

static const infer_op_info table[INFER_OP_COUNT] = {
    ROW(COPY, "copy", "x[n...]:a -> y[n...]:a", 1, 1, 1, 1, 0, 0, 0, 0, 0, infer_check_copy, infer_ref_copy),
    ROW(GATHER_ROWS, "gather_rows", "table[vd]:w ids[n]:i -> y[nd]:f", 2, 2, 1, 1, 1, 1, 0, 0, 0, NULL,
        infer_ref_gather_rows),
    ROWS(CONCAT_ROWS, "concat_rows", "a[np]:f b[nq]:f -> y[ns]:f", 2, 2, 0, infer_check_concat, infer_ref_concat_rows),
    ROWS(ADD, "add", "a[n...d]:f b[n...d|d]:f -> y[n...d]:f", 2, 2, 0, NULL, infer_ref_add),
    ROWS(MUL, "mul", "a[n...d]:f b[n...d|d]:f -> y[n...d]:f", 2, 2, 0, NULL, infer_ref_mul),
    ROWS(SCALE, "scale", "x[n...d]:f -> y[n...d]:f", 1, 1, sizeof(infer_attrs_scale), infer_check_scale,
         infer_ref_scale),
    ROWS(GLU, "glu", "gate[n...f]:f up[n...f]:f -> y[n...f]:f", 2, 2, sizeof(infer_attrs_act), infer_check_act,
         infer_ref_glu_op),
    ROWS(ACT, "act", "x[n...f]:f -> y[n...f]:f", 1, 1, sizeof(infer_attrs_act), infer_check_act, infer_ref_act_op),
    ROWS(SOFTMAX, "softmax", "x[n...d]:f -> y[n...d]:f", 1, 1, sizeof(infer_attrs_scale), infer_check_scale,
         infer_ref_softmax),
    ROW(ARGMAX, "argmax", "x[nd]:f -> ids[n]:i", 1, 1, 1, 1, 0, 0, 0, 0, 0, NULL, infer_ref_argmax),

    ROWS(RMS_NORM, "rms_norm", "x[n...d]:f w[d]:f? -> y[n...d]:f", 1, 2, sizeof(infer_attrs_norm), infer_check_norm,
         infer_ref_rms_norm),
    ROWS(LAYER_NORM, "layer_norm", "x[n...d]:f w[d]:f? b[d]:f? -> y[n...d]:f", 1, 3, sizeof(infer_attrs_norm),
         infer_check_norm, infer_ref_layer_norm),
    ROW(ADD_RMS_NORM, "add_rms_norm", "x[nd]:f r[nd]:f w[d]:f -> y[nd]:f s[nd]:f", 3, 3, 2, 2, 0, 1, 0, 0,
        sizeof(infer_attrs_norm), infer_check_norm, infer_ref_add_rms_norm),

    ROWS(MATMUL, "matmul", "x[nK]:f W[NK]:w bias[N]:f? -> y[nN]:f", 2, 3, sizeof(infer_attrs_matmul),
         infer_check_matmul, infer_ref_matmul),
    ROW(MOE_ROUTE, "moe_route", "logits[nE]:f -> ids[nk]:i w[nk]:f", 1, 1, 2, 2, 0, 0, 0, 0, sizeof(infer_attrs_route),
        infer_check_route, infer_ref_moe_route),
    ROWS(MOE_MATMUL, "moe_matmul", "x[nK|nkK]:f W[ENK]:w ids[nk]:i -> y[nkN]:f", 3, 3, sizeof(infer_attrs_matmul),
         infer_check_matmul, infer_ref_moe_matmul),
    ROWS(MOE_COMBINE, "moe_combine", "x[nkD]:f w[nk]:f -> y[nD]:f", 2, 2, 0, NULL, infer_ref_moe_combine),
    ROWS(GATED_MLP, "gated_mlp", "x[nK]:f Wg[FK]:w Wu[FK]:w Wd[DF]:w -> y[nD]:f", 4, 4, sizeof(infer_attrs_act),
         infer_check_gated_mlp, infer_ref_gated_mlp),
    ROW(QKV, "qkv", "x[nK]:f Wq[AK]:w Wk[BK]:w Wv[CK]:w bq[A]:f? bk[B]:f? bv[C]:f? -> q[nA]:f k[nB]:f v[nC]:f", 4, 7, 3,
        3, 0, 0, 0, 0, sizeof(infer_attrs_matmul), infer_check_qkv, infer_ref_qkv),

    ROWS(ROPE, "rope", "x[nhd]:f pos[nP]:i inv_freq[r]:f -> y[nhd]:f", 3, 3, sizeof(infer_attrs_rope), infer_check_rope,
         infer_ref_rope),
    ROW(KV_WRITE, "kv_write", "k[ngd]:f v[nge]:f slots[n]:i -> " POOLS, 3, 3, 2, 2, 0, 0, 3, 0, sizeof(infer_attrs_kv),
        infer_check_kv_write, infer_ref_kv_write),
    ROW(ROPE_KV_WRITE, "rope_kv_write", "k[ngd]:f v[nge]:f pos[nP]:i inv_freq[r]:f slots[n]:i -> " POOLS, 5, 5, 2, 2, 0,
        0, 3, 0, sizeof(infer_attrs_rope_kv), infer_check_rope_kv_write, infer_ref_rope_kv_write),
    ROWS(ATTN_PAGED, "attn_paged", "q[nhd]:f " POOLS " " SEQS " sinks[h]:f? tree_mask[nm]:u? -> y[nhe]:f", 6, 8,
         sizeof(infer_attrs_attn), infer_check_attn_paged, infer_ref_attn_paged),
    ROWS(MLA_PAGED, "mla_paged", "q[nhd]:f pool[bgtd]:p " SEQS " tree_mask[nm]:u? -> y[nhe]:f", 5, 6,
         sizeof(infer_attrs_attn), infer_check_mla_paged, infer_ref_mla_paged),
    ROWS(ATTN_DENSE, "attn_dense", "q[nhd]:f k[mgd]:f v[mge]:f -> y[nhe]:f", 3, 3, sizeof(infer_attrs_attn),
         infer_check_attn_dense, infer_ref_attn_dense),
    ROW(KV_PACK, "kv_pack", "pool[bgtd]:p blocks[n]:i -> image[ngtd]:p", 2, 2, 1, 1, 1, 0, 0, 0, sizeof(infer_attrs_kv),
        infer_check_kv_plane, infer_ref_kv_pack),
    ROW(KV_UNPACK, "kv_unpack", "image[ngtd]:p blocks[n]:i -> pool[bgtd]:p", 2, 2, 1, 1, 1, 0, 1, 0,
        sizeof(infer_attrs_kv), infer_check_kv_plane, infer_ref_kv_unpack),
    ROW(KV_MOVE, "kv_move", "pool[bgtd]:p src[n]:i dst[n]:i -> pool[bgtd]:p", 3, 3, 1, 1, 1, 0, 1, 0,
        sizeof(infer_attrs_kv), infer_check_kv_move, infer_ref_kv_move),
    ROW(STATE_COPY, "state_copy", "state[S...w]:a src[n]:i dst[n]:i -> state[S...w]:a", 3, 3, 1, 1, 1, 0, 1, 0, 0,
        infer_check_state_copy, infer_ref_state_copy),

    ROW(SAMPLE, "sample",
        "logits[nV]:f params[np]:b counts[SV]:h? bias[Bq]:b? mask[nm]:u? -> ids[n]:i logprob[n]:f top_ids[nT]:i? "
        "top_logprobs[nT]:f?",
        2, 5, 2, 4, 0, 0, 0, 4, sizeof(infer_attrs_sample), infer_check_sample, infer_ref_sample),
    ROW(IDS_SELECT, "ids_select", "host_ids[n]:i from[n]:i sampled[m]:i -> ids[n]:i", 3, 3, 1, 1, 0, 0, 0, 0, 0, NULL,
        infer_ref_ids_select),
    ROWS(ROWS_SELECT, "rows_select", "a[nd]:f from[n]:i b[md]:f -> y[nd]:f", 3, 3, 0, NULL, infer_ref_rows_select),

    ROWS(LORA_SHRINK, "lora_shrink", "x[nK]:f A[LrK]:w adapter_row[n]:i -> t[nr]:f", 3, 3, 0, NULL,
         infer_ref_lora_shrink),
    ROWS(LORA_EXPAND_ADD, "lora_expand_add", "t[nr]:f B[LNr]:w adapter_row[n]:i y[nN]:f -> y[nN]:f", 4, 4, 0, NULL,
         infer_ref_lora_expand_add),

    ROWS(ALL_REDUCE, "all_reduce", "x[n...d]:f -> y[n...d]:f", 1, 1, 0, NULL, NULL),
    ROWS(ALL_GATHER, "all_gather", "x[nd]:f -> y[ne]:f", 1, 1, 0, infer_check_all_gather, NULL),
    ROWS(REDUCE_SCATTER, "reduce_scatter", "x[ne]:f -> y[nd]:f", 1, 1, 0, infer_check_reduce_scatter, NULL),
    ROWS(BROADCAST, "broadcast", "x[n...d]:f -> y[n...d]:f", 1, 1, 0, NULL, NULL),
};

const infer_op_info *infer_op_get(infer_op_id id)
{
    return id < INFER_OP_COUNT && table[id].name ? &table[id] : NULL;
}

const infer_op_info *infer_op_by_name(const char *name)
{
    for (uint32_t i = 0; i < INFER_OP_COUNT; i++)
        if (table[i].name && !strcmp(table[i].name, name))
            return &table[i];
    return NULL;
}
