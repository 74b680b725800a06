/*
 * Operations: ids, descriptors, attributes, and the meaning of each operand. Part of the plugin ABI: self-contained
 * (with status.h and quant.h), valid C11 and C++11. The reference code in core/ops is the specification of every op;
 * the table in core/ops/table.c lists name, operand count and shape rule of each.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_OPS_H
#define INFER_OPS_H

#include <stdint.h>

#include <infer/quant.h>
#include <infer/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Extension record: a chain of {id, size, next} that argument structs carry. A reader skips ids that it does not
 * know, unless a must-understand bit of the carrying struct says otherwise. */
typedef struct infer_ext {
    uint32_t id;
    uint32_t size; /* bytes of the whole record */
    const struct infer_ext *next;
} infer_ext;

/* ---- Tensors --------------------------------------------------------------------------------------------- */

/* Private layouts start here; 0 is the canonical layout (row-major, last axis dense). */
#define INFER_LAYOUT_CANONICAL 0u

/* Shape and encoding of one operand, without its place. Axis 0 is the slowest; the last axis is dense. Unused axes
 * are 1. For a block format the last axis counts elements. stride[i]: bytes from one index of axis i to the next;
 * stride[rank-1] is ignored; all zero means contiguous. */
typedef struct infer_tensor_desc {
    infer_format format;
    uint32_t rank;   /* 1..4 */
    uint32_t layout; /* INFER_LAYOUT_CANONICAL, or what weight_plan / kv_query answered */
    uint32_t flags;  /* INFER_TENSOR_* */
    int64_t shape[4];
    int64_t stride[4];
    infer_quant quant; /* weights with side planes; quant.format 0 otherwise, else equal to format. The image is then
                          data, scale, zero, each aligned to 256 bytes, in one range; with rank 3 each of the three
                          holds those of [0], [1], … one after the other */
} infer_tensor_desc;

#define INFER_TENSOR_WEIGHT 1u /* immutable after load; its layout was answered by weight_plan */
#define INFER_TENSOR_ABSENT 2u /* an optional operand that is not given; no range is bound */

/* ---- Step counts ----------------------------------------------------------------------------------------- */

/* A program is built for a capacity (its bucket); how much of it a run uses stands in a small block of int32 in device
 * memory, bound with every op as infer_op_args.counts. An op whose `rows_from` names an entry processes
 * min(shape[0], counts[entry] * rows_mul) rows of axis 0 and leaves the rest untouched. */
#define INFER_COUNT_TOKENS 0u  /* input rows of this step */
#define INFER_COUNT_SEQS   1u  /* sequences of this step */
#define INFER_COUNT_LOGITS 2u  /* rows for which logits are wanted */
#define INFER_COUNT_MAX    16u /* entries in the block */
#define INFER_ROWS_STATIC  0xFFFFFFFFu

/* ---- Ids ------------------------------------------------------------------------------------------------- */

/* "[n]" marks the axis that rows_from bounds. f32 stands for any plain float format (F32, F16, BF16) unless said
 * otherwise; accumulation is at least float. In order of operands: inputs -> outputs. "[n][...]": any further axes, the
 * same for all operands so marked.
 * Optional operands are flagged ABSENT, or left off at the end of the inputs or outputs. An array of records is a U8
 * tensor [n][bytes of a record]; a longer record is one of a newer producer. Outputs overlap no input unless said.
 * Index operands come from device memory and may be wrong: an op never touches memory outside its operands. An id out
 * of range gives zeros; a slot or block out of range is skipped. */
typedef uint32_t infer_op_id;

#define INFER_OP_NONE 0u

/* Rows and elements */
#define INFER_OP_COPY 1u /* x[n][...] -> y[n][...]: same shape, converts the format (also dequantises) */
#define INFER_OP_GATHER_ROWS                                                                                           \
    2u                          /* table[v][d] (any format), ids i32[n] -> y[n][d]; an id outside 0..v-1 gives zeros   \
                                 */
#define INFER_OP_CONCAT_ROWS 3u /* a[n][da], b[n][db] -> y[n][da+db] */
#define INFER_OP_ADD         4u /* a[n][...][d], b[n][...][d] or b[d] -> y[n][...][d] */
#define INFER_OP_MUL         5u /* as ADD */
#define INFER_OP_SCALE       6u /* x[n][...][d] -> y = x * attrs.scale + attrs.bias (infer_attrs_scale) */
#define INFER_OP_GLU         7u /* gate[n][...][f], up[n][...][f] -> y = act(gate) * up (infer_attrs_act) */
#define INFER_OP_ACT         8u /* x[n][...][f] -> y = act(x) (infer_attrs_act) */
#define INFER_OP_SOFTMAX                                                                                               \
    9u /* x[n][...][d] -> y, over the last axis (infer_attrs_scale: softmax(x * scale), scale 0 means 1) */
#define INFER_OP_ARGMAX 10u /* x[n][d] -> i32[n]; the lowest index wins a tie; NaN never wins */

/* Normalisation */
#define INFER_OP_RMS_NORM                                                                                              \
    16u                         /* x[n][...][d], w[d] or absent -> y (infer_attrs_norm), over the last axis, so that   \
                                   every head of x[n][h][d] stands alone */
#define INFER_OP_LAYER_NORM 17u /* x[n][...][d], w[d] or absent, b[d] or absent -> y (infer_attrs_norm) */
#define INFER_OP_ADD_RMS_NORM                                                                                          \
    18u /* x[n][d], r[n][d], w[d] -> y[n][d], s[n][d]: s = x + r, y = rms_norm(s as stored) * w                        \
           (infer_attrs_norm) */

/* Matrix products. W is [N][K], a row an output: y = x W^T */
#define INFER_OP_MATMUL 24u /* x[n][K], W[N][K], bias[N] or absent -> y[n][N] (infer_attrs_matmul) */
#define INFER_OP_MOE_ROUTE                                                                                             \
    25u /* logits[n][E] -> ids i32[n][k], w f32[n][k] (infer_attrs_route); ties: lowest id. A NaN logit counts as      \
           -INFINITY. An expert whose score is NaN (logit +INFINITY, softmax over all: the other shares are then 0) is \
           not chosen; where none is left, the choice is id -1 with weight 0 */
#define INFER_OP_MOE_MATMUL                                                                                            \
    26u /* x[n][K] or x[n][k][K], W[E][N][K], ids i32[n][k] -> y[n][k][N] (infer_attrs_matmul) */
#define INFER_OP_MOE_COMBINE 27u /* x[n][k][D], w f32[n][k] -> y[n][D] = sum over k in order of w * x */
#define INFER_OP_GATED_MLP                                                                                             \
    28u /* x[n][K], Wg[F][K], Wu[F][K], Wd[D][F] -> y[n][D] (infer_attrs_act): MATMUL twice, GLU, MATMUL */
#define INFER_OP_QKV                                                                                                   \
    29u /* x[n][K], Wq[A][K], Wk[B][K], Wv[C][K], biases [A], [B], [C] or absent ->                                    \
           q[n][A], k[n][B], v[n][C]: three times MATMUL of one x (infer_attrs_matmul, scale 0 or                      \
           1, act_format never F32) */

/* Positions, cache and attention. kpool, vpool: one layer's planes of a paged group (infer_attrs_kv) */
#define INFER_OP_ROPE 32u /* x[n][h][d], pos i32[n][P], inv_freq f32[R/2] -> y[n][h][d] (infer_attrs_rope) */
#define INFER_OP_KV_WRITE                                                                                              \
    33u /* k[n][hkv][dk], v[n][hkv][dv], slots i32[n] -> kpool, vpool; slot = block *                                  \
           block_size + offset, negative: skip the row */
#define INFER_OP_ROPE_KV_WRITE                                                                                         \
    34u /* k[n][hkv][d], v[n][hkv][dv], pos i32[n][P], inv_freq f32[R/2], slots i32[n] ->                              \
           kpool, vpool (infer_attrs_rope_kv) */
#define INFER_OP_ATTN_PAGED                                                                                            \
    35u /* q[n][h][d], kpool, vpool, block_table i32[S][B], kv_len i32[S], q_start i32[S+1],                           \
           sinks f32[h] or absent, tree_mask or absent -> y[n][h][dv] (infer_attrs_attn) */
#define INFER_OP_MLA_PAGED                                                                                             \
    36u /* latent attention over one plane that all heads share: q[n][h][d], pool [..][1][..][d],                      \
           block_table, kv_len, q_start, tree_mask or absent -> y[n][h][dv]: a key's value is its                      \
           first dv = kv.v_width elements (infer_attrs_attn) */
#define INFER_OP_ATTN_DENSE                                                                                            \
    37u /* q[n][h][d], k[m][hkv][d], v[m][hkv][dv] -> y[n][h][dv]: row i sees the keys                                 \
           0 .. m - n + i */
/* The next three work on one plane: infer_attrs_kv with k_format and k_width given for a K plane, v_format and v_width
 * for a V plane, the other pair zero. Where a pool or state is input and output, both are the same range. */
#define INFER_OP_KV_PACK    38u /* pool, blocks i32[n] -> canonical image of those blocks, axis 0 [n] */
#define INFER_OP_KV_UNPACK  39u /* canonical image, blocks i32[n] -> pool */
#define INFER_OP_KV_MOVE    40u /* pool, src slots i32[n], dst slots i32[n] -> pool: copies tokens, in list order */
#define INFER_OP_STATE_COPY 41u /* state [S][...], src i32[n], dst i32[n] -> state: whole slots, in list order */

/* Sampling */
#define INFER_OP_SAMPLE                                                                                                \
    48u /* logits f32[n][V], params infer_sample_row[n], counts u16[S][V] or absent, bias                              \
           infer_sample_bias[B] or absent, mask u32[n][ceil(V/32)] or absent -> ids i32[n],                            \
           logprob f32[n], top_ids i32[n][T] or absent, top_logprobs f32[n][T] or absent                               \
           (infer_attrs_sample). Also counts the chosen id where a counts row is given (the one input that an op       \
           writes); rows that share a counts row all see it as it was before the op */
#define INFER_OP_IDS_SELECT                                                                                            \
    49u /* host_ids i32[n], from i32[n], sampled i32[m] -> i32[n]: from[i] < 0 takes host_ids[i], from[i] >= m         \
           gives -1 */
#define INFER_OP_ROWS_SELECT                                                                                           \
    50u /* a[n][d], from i32[n], b[m][d] -> y[n][d]: from[i] < 0 takes row i of a, else row from[i] of b (an input     \
           that is an embedding instead of an id); from[i] >= m gives zeros */

/* Adapters, selected by row: adapter_row i32[n], -1 = none */
#define INFER_OP_LORA_SHRINK 56u /* x[n][K], A[L][r][K], adapter_row -> t[n][r] */
#define INFER_OP_LORA_EXPAND_ADD                                                                                       \
    57u /* t[n][r], B[L][N][r], adapter_row, y[n][N] -> y[n][N], which may be the same range */

/* Collectives over the communicator of R ranks bound in infer_op_args.comm: x[n][...][d] -> y, the same shape for
 * ALL_REDUCE and BROADCAST; x[n][d] -> y[n][R*d] and x[n][R*d] -> y[n][d] for the others */
#define INFER_OP_ALL_REDUCE     64u
#define INFER_OP_ALL_GATHER     65u
#define INFER_OP_REDUCE_SCATTER 66u
#define INFER_OP_BROADCAST      67u

#define INFER_OP_COUNT 80u /* one more than the largest id */

/* ---- Attributes ------------------------------------------------------------------------------------------ */

/* Each starts with struct_size; a shorter struct from an older producer means zero in the fields it lacks. */

typedef struct infer_attrs_scale {
    uint32_t struct_size;
    float scale;
    float bias;
    uint32_t reserved;
} infer_attrs_scale;

#define INFER_ACT_SILU      0u
#define INFER_ACT_GELU      1u /* exact, by erf */
#define INFER_ACT_GELU_TANH 2u
#define INFER_ACT_RELU      3u
#define INFER_ACT_SIGMOID   4u

typedef struct infer_attrs_act {
    uint32_t struct_size;
    uint32_t act;
    float limit; /* 0: none; else, before the activation, x or gate is at most limit and up within -limit..limit */
    infer_format act_format; /* GATED_MLP: infer_attrs_matmul's, of all three, never F32; others: NONE */
} infer_attrs_act;

typedef struct infer_attrs_norm {
    uint32_t struct_size;
    float eps;
    float weight_offset; /* y = norm(x) * (w + weight_offset); without w: y = norm(x) */
    uint32_t reserved;
} infer_attrs_norm;

typedef struct infer_attrs_matmul {
    uint32_t struct_size;
    infer_format act_format; /* what x may be converted to inside: NONE = the backend's choice, F32 = not at all */
    float scale;             /* y = scale * (x W^T) + bias; 0 means 1 */
    uint32_t reserved;
} infer_attrs_matmul;

#define INFER_ROUTE_SOFTMAX      0u /* softmax over all experts, then the k largest */
#define INFER_ROUTE_SOFTMAX_TOPK 1u /* the k largest, then softmax over those */
#define INFER_ROUTE_SIGMOID      2u

typedef struct infer_attrs_route {
    uint32_t struct_size;
    uint32_t k;
    uint32_t scoring;   /* INFER_ROUTE_* */
    uint32_t normalise; /* divide the k weights by their sum */
    float scale;        /* applied last; 0 means 1 */
    uint32_t reserved;
} infer_attrs_route;

#define INFER_ROPE_PAIRS  0u /* rotates elements (2i, 2i+1) */
#define INFER_ROPE_HALVES 1u /* rotates elements (i, i + R/2) */

/* Angle of pair i at position p: p * inv_freq[i]; every scaling rule is in the table that the core computes. */
typedef struct infer_attrs_rope {
    uint32_t struct_size;
    uint32_t kind;
    uint32_t n_dims;     /* R: leading elements of a head that rotate, even */
    float magnitude;     /* factor on sine and cosine; 0 means 1 */
    uint32_t n_pos;      /* P: positions a row (1..4) */
    uint32_t section[4]; /* with P > 1: how many pairs, in order, use each position; P numbers of sum R/2 */
    uint32_t reserved;
} infer_attrs_rope;

/* A paged group's planes as one layer sees them. Canonical layout of a plane: [n_blocks][n_kv_heads][block_size][width]
 * elements of `format` (a block format runs along width). */
typedef struct infer_attrs_kv {
    uint32_t struct_size;
    uint32_t layout; /* INFER_LAYOUT_CANONICAL or what kv_query answered */
    infer_format k_format, v_format;
    uint32_t n_kv_heads;
    uint32_t k_width, v_width;
    uint32_t block_size; /* tokens */
    uint64_t n_blocks;
} infer_attrs_kv;

typedef struct infer_attrs_rope_kv {
    uint32_t struct_size;
    uint32_t reserved;
    infer_attrs_rope rope; /* the struct_size of a struct inside another is ignored */
    infer_attrs_kv kv;
} infer_attrs_rope_kv;

#define INFER_MASK_CAUSAL 0u
#define INFER_MASK_WINDOW 1u /* causal, and only the last `window` keys (the row itself included) */
#define INFER_MASK_FULL   2u
#define INFER_MASK_TREE                                                                                                \
    3u /* tree_mask u32[n][ceil(M/32)]: bit t%32 of word t/32 says whether a row sees row t (its own included) of the  \
          sequence's rows in this op; all older keys are seen */
#define INFER_MASK_SPANS 4u /* rows of one span see one another; spans come in an extension record */

#define INFER_ATTN_MIXED   0u
#define INFER_ATTN_PREFILL 1u
#define INFER_ATTN_DECODE  2u /* every sequence has exactly one row */

/* Sequence s owns rows q_start[s] .. q_start[s+1]-1, its newest; its keys are kv_len[s] tokens, these rows included.
 * Row j of the sequence stands at position kv_len[s] - (q_start[s+1] - q_start[s]) + j. Token t of it lies in block
 * block_table[s][t / block_size] at offset t % block_size. Past the step's last sequence q_start repeats its end, so
 * that those sequences own no row. A row that no sequence owns, or that sees no key, gets zeros; a key whose block is
 * out of range is not seen. Head h reads KV head h / (n_heads / n_kv_heads). A sink is a score with no value. */
typedef struct infer_attrs_attn {
    uint32_t struct_size;
    uint32_t mask; /* INFER_MASK_* */
    uint32_t kind; /* INFER_ATTN_* */
    uint32_t window;
    float scale;    /* on q.k; must be given */
    float soft_cap; /* 0: none; else scores become cap * tanh(score / cap) */
    uint32_t n_heads;
    uint32_t reserved;
    infer_attrs_kv kv;
} infer_attrs_attn;

typedef struct infer_attrs_sample {
    uint32_t struct_size;
    uint32_t n_top; /* T: log-probabilities wanted a row, at most 64 */
    uint32_t flags;
    uint32_t reserved;
} infer_attrs_sample;

/* One row's parameters, in device memory. Order of work: penalties (repetition, then presence and frequency), bias,
 * mask, (log-probabilities and greedy choice here), temperature, top_k, top_p, min_p, draw. Log-probabilities are those
 * of the logits after bias and mask, hence with penalties.
 * Candidates stand in order of falling logit, the lower id first among equals. top_p keeps the fewest leading ones
 * whose share of what top_k kept reaches it, min_p those with at least min_p times the largest probability; one is
 * always kept. The draw takes the first candidate at which the running sum of kept probabilities exceeds uniform *
 * their sum. NaN counts as -INFINITY, which is never chosen. Where nothing can be chosen the id is -1 and its
 * log-probability NaN, as in the unused places of top_ids and top_logprobs. */
typedef struct infer_sample_row {
    float temperature;        /* 0 or less: greedy */
    float top_p;              /* 1 or more: off */
    float min_p;              /* 0: off */
    int32_t top_k;            /* 0: off */
    float repetition_penalty; /* 1, or 0 or less: off; over prompt and output (Keskar et al. 2019, arXiv:1909.05858) */
    float presence_penalty;   /* 0: off; over the output */
    float frequency_penalty;  /* 0: off; over the output */
    int32_t counts_row; /* row of the counts table, -1: none. Bit 15 of an entry: in the prompt; others: times in the
                           output, at most 32767 */
    uint64_t seed;      /* the draw is infer_sample_uniform(seed, position) */
    uint64_t position;
    uint32_t bias_first, bias_count; /* this row's range in the bias list */
    uint32_t flags;                  /* INFER_SAMPLE_* */
    uint32_t reserved;
} infer_sample_row;

#define INFER_SAMPLE_MASKED 1u /* the row's mask is in force: a clear bit forbids the id */
#define INFER_SAMPLE_NO_TOP 2u /* top_ids and top_logprobs are not asked for: all the row's places are -1 and NaN */

typedef struct infer_sample_bias {
    int32_t id;
    float bias; /* -INFINITY forbids the id */
} infer_sample_bias;

/* The uniform number in [0,1) of a draw: 24 bits of a counter-based generator (splitmix64's finaliser, Steele, Lea and
 * Flood 2014), so that a row's choice depends on its seed and position only. */
static inline float infer_sample_uniform(uint64_t seed, uint64_t position)
{
    uint64_t x = seed + (position + 1) * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    x ^= x >> 31;
    return (float)(x >> 40) * (1.0f / 16777216.0f);
}

/* ---- Epilogues ------------------------------------------------------------------------------------------- */

#define INFER_EPI_BIAS     1u /* + operand[N] */
#define INFER_EPI_RESIDUAL 2u /* + operand[n][N] */
#define INFER_EPI_MUL      3u /* * operand[n][N] */
#define INFER_EPI_ACT      4u /* activation `arg` */
#define INFER_EPI_SCALE    5u /* * factor */
#define INFER_EPI_CONVERT  6u /* to format `arg` */

/* One step applied to the op's first output before it is stored. Values are float between steps, so that a fused list
 * equals the same steps as ops of their own on F32 rows. The operands of steps stand after the op's own inputs, all of
 * which are then listed (absent ones flagged). CONVERT is the last step and names the output's format. Ops whose first
 * output is not plain float rows take no epilogue. */
typedef struct infer_epilogue {
    uint32_t kind;
    uint32_t arg;
    float factor;
    uint32_t operand; /* index into the op's inputs, for the kinds that take one */
} infer_epilogue;

/* ---- The op descriptor ----------------------------------------------------------------------------------- */

#define INFER_OP_MAX_OPERANDS 12u

/* What is to be computed, without where. Arrays carry their element size (a producer may know longer elements). */
typedef struct infer_op_desc {
    uint32_t struct_size;
    uint32_t flags;
    const infer_ext *next;
    infer_op_id op;
    uint32_t revision; /* of the op's meaning; 0 so far */
    uint64_t
        must_understand; /* attribute bits that change the result; a bit that the reader does not know: answer NO */
    uint32_t rows_from;  /* INFER_COUNT_* or INFER_ROWS_STATIC */
    uint32_t rows_mul;   /* rows of axis 0 for each count (1 mostly) */
    uint32_t n_in, n_out;
    uint32_t tensor_size; /* bytes of one element of `tensors` */
    uint32_t attrs_size;
    const infer_tensor_desc *tensors; /* n_in inputs, then n_out outputs */
    const void *attrs;                /* the op's attribute struct, or NULL */
    uint32_t n_epilogue;
    uint32_t epilogue_size;
    const infer_epilogue *epilogue;
} infer_op_desc;

#ifdef __cplusplus
}
#endif
#endif
