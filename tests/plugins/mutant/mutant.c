/*
 * Mutants: the table, and the mistakes of ops. sim computes by the host's reference, so that a mistake bends what the
 * reference gets or what it has written; the right result is computed beside it, so that a mutant that changes nothing
 * is known. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mutant.h"
#include "ops/ops.h"
#include "ops/ref.h"
#include "quant/quant.h"

const infer_plugin_desc *infer_sim_query(const infer_host *host, const infer_abi_range *range);

const infer_mutant *mutant_chosen;
infer_backend_ops mutant_inner;
static atomic_ullong changes;
static const infer_host *real;
static infer_host host;

void mutant_changed(void)
{
    atomic_fetch_add(&changes, 1);
}

uint64_t infer_mutant_changes(void)
{
    return atomic_load(&changes);
}

/* ---- The table -------------------------------------------------------------------------------------------- */

/* id, what; each for every op that it can mean something to */
#define OP_KINDS(X)                                                                                                    \
    X(drop_scale, "the first output is a fifth too large")                                                             \
    X(swap_pair, "the first two elements of a vector change places")                                                   \
    X(swap_last, "the last two elements of a vector change places")                                                    \
    X(last_row, "the last row is not done")                                                                            \
    X(next_row, "one row more than the count is done")                                                                 \
    X(all_rows, "the count is not looked at")                                                                          \
    X(last_col, "the last element of a vector is not done")                                                            \
    X(stale_input, "the first input as it was at the call before")                                                     \
    X(stale_index, "the first index operand as it was at the call before")                                             \
    X(in_stride, "the first input's stride is left out")                                                               \
    X(out_stride, "the first output's stride is left out")                                                             \
    X(wrong_plane, "two inputs of one size change places")                                                             \
    X(past_end, "a byte behind the first output")                                                                      \
    X(before, "a byte before the first output")                                                                        \
    X(input_write, "the first input's last byte changes")                                                              \
    X(variant, "a row's last bits depend on how many run with it")                                                     \
    X(index_plus, "index operands count from one")                                                                     \
    X(wrong_output, "the last output is not written")

#define FORMAT_KINDS(X)                                                                                                \
    X(flush, "subnormal scales are zero")                                                                              \
    X(abs_scale, "scales have no sign")                                                                                \
    X(first_scale, "the first block's scale for all")                                                                  \
    X(no_minimum, "the minimum or zero point is left out")                                                             \
    X(clip, "the extreme code is the one beside it")                                                                   \
    X(nibbles, "halves of a byte change places")

/* What only a flow of several steps, a larger table or a longer K shows. */
#define FLOW_KINDS(X)                                                                                                  \
    X(attn_stale_table, ATTN_PAGED, "t3.f32.*", "the block table of the call before")                                  \
    X(attn_stale_len, ATTN_PAGED, "t3.f32.*", "the lengths of the call before")                                        \
    X(attn_masked_nan, ATTN_PAGED, "t3.f32.*", "unseen keys count with weight zero")                                   \
    X(attn_head_mod, ATTN_PAGED, "t3.attn.gqa", "KV heads in turn instead of in groups")                               \
    X(attn_tree_word, ATTN_PAGED, "t3.attn.tree", "only the first word of a tree mask")                                \
    X(attn_table_16, ATTN_PAGED, "t3.*.least.*", "only the first 16 blocks of a sequence")                             \
    X(attn_decode_all, ATTN_PAGED, "t3.f16.*", "every batch is taken for one row a sequence")                          \
    X(attn_prefill_all, ATTN_PAGED, "t3.f16.*", "rows are taken for the whole sequence")                               \
    X(attn_cap_sinks, ATTN_PAGED, "t3.attn.*", "sinks are capped")                                                     \
    X(attn_window_plus, ATTN_PAGED, "t3.attn.window*", "a window is one key too wide")                                 \
    X(attn_values, ATTN_PAGED, "t3.attn.*", "values are read from the plane of keys")                                  \
    X(write_first, KV_WRITE, "t3.f16.*", "a slot keeps what was written first")                                        \
    X(write_order, KV_WRITE, "t3.bf16.*", "keys and values change places")                                             \
    X(write_block, KV_WRITE, "t3.f16.*", "all rows go to the first row's block")                                       \
    X(move_order, KV_MOVE, "t3.*.moved", "pairs from the last to the first")                                           \
    X(move_back, KV_MOVE, "t3.*.moved", "sources and destinations change places")                                      \
    X(pack_order, KV_PACK, "t3.*.packed", "blocks in the order of the pool")                                           \
    X(unpack_order, KV_UNPACK, "t3.*.packed", "blocks to the first places of the pool")                                \
    X(product_cut, MATMUL, "t2.*.company", "a row's last bits depend on how many there is room for, from K 1024 on")

enum {
#define X(id, what) OPK_##id,
    OP_KINDS(X) OPK_attr, /* arg: which word of the attributes is zero */
#undef X
#define X(id, what) FMT_##id,
    FORMAT_KINDS(X)
#undef X
#define X(id, op, only, what) FLOW_##id,
        FLOW_KINDS(X)
#undef X
};

/* Formats with the places of their F16 scales, by the name that T2 has for them. Schemes have no place. */
static const struct {
    const char *name;
    infer_format f;
    infer_format scale; /* of a scheme */
    int at[2];
} formats[] = {{"f16", INFER_FMT_F16, 0, {-1, -1}},
               {"f8_e4m3", INFER_FMT_F8_E4M3, 0, {-1, -1}},
               {"q4_0", INFER_FMT_Q4_0, 0, {0, -1}},
               {"q4_1", INFER_FMT_Q4_1, 0, {0, 2}},
               {"q5_0", INFER_FMT_Q5_0, 0, {0, -1}},
               {"q5_1", INFER_FMT_Q5_1, 0, {0, 2}},
               {"q8_0", INFER_FMT_Q8_0, 0, {0, -1}},
               {"q2_k", INFER_FMT_Q2_K, 0, {80, 82}},
               {"q3_k", INFER_FMT_Q3_K, 0, {108, -1}},
               {"q4_k", INFER_FMT_Q4_K, 0, {0, 2}},
               {"q5_k", INFER_FMT_Q5_K, 0, {0, 2}},
               {"q6_k", INFER_FMT_Q6_K, 0, {208, -1}},
               {"f8_channel", INFER_FMT_F8_E4M3, INFER_FMT_F32, {-1, -1}},
               {"i8_channel", INFER_FMT_I8, INFER_FMT_F32, {-1, -1}},
               {"u4_zero", INFER_FMT_U4, INFER_FMT_F16, {-1, -1}}};

static infer_mutant table[MUTANT_MAX];
static uint32_t n_table;

static infer_mutant *add(uint32_t group, uint32_t tier, uint32_t target, uint32_t kind, const char *what)
{
    if (n_table == MUTANT_MAX)
        abort();
    infer_mutant *m = &table[n_table++];
    *m = (infer_mutant){.tier = tier, .group = group, .target = target, .kind = kind, .what = what};
    return m;
}

/* Whether the op has what the mistake is about, by its signature ("x[nd]:f ids[n]:i -> y[nd]:f"). */
static int op_can(const infer_op_info *info, uint32_t kind)
{
    const char *arrow = strstr(info->sig, "->"), *index = strstr(info->sig, ":i");
    switch (kind) {
    case OPK_wrong_output:
        return info->n_out_min > 1;
    case OPK_stale_index:
    case OPK_index_plus:
        return index && index < arrow;
    case OPK_drop_scale:
    case OPK_variant: /* last bits of numbers */
        return strchr(arrow, ':')[1] != 'i';
    default:
        return 1;
    }
}

/* Words of the attributes that mean something by themselves: sizes of the cache do not. */
static uint32_t attr_words(const infer_op_info *info)
{
    switch (info->id) {
    case INFER_OP_KV_WRITE:
    case INFER_OP_KV_PACK:
    case INFER_OP_KV_UNPACK:
    case INFER_OP_KV_MOVE:
        return 0;
    case INFER_OP_ROPE_KV_WRITE:
        return offsetof(infer_attrs_rope_kv, kv) / 4;
    case INFER_OP_ATTN_PAGED:
    case INFER_OP_MLA_PAGED:
    case INFER_OP_ATTN_DENSE:
        return offsetof(infer_attrs_attn, n_heads) / 4;
    default:
        return info->attrs_size / 4;
    }
}

/* Whether a format has what the mistake is about. */
static int format_can(uint32_t f, uint32_t kind)
{
    int scheme = formats[f].scale != 0, block = infer_format_get(formats[f].f)->block_elems > 1 && !scheme;
    switch (kind) {
    case FMT_no_minimum:
        return block ? formats[f].at[1] >= 0 : !strcmp(formats[f].name, "u4_zero");
    case FMT_flush:
        return !scheme || formats[f].scale == INFER_FMT_F16;
    case FMT_first_scale:
        return block || scheme;
    case FMT_clip:
    case FMT_nibbles:
        return formats[f].f != INFER_FMT_F16;
    default:
        return 1;
    }
}

uint32_t infer_mutants(const infer_mutant **out)
{
    static const struct {
        const char *name, *what;
    } ops[] =
        {
#define X(id, what) {#id, what},
            OP_KINDS(X)
#undef X
        },
      fmts[] = {
#define X(id, what) {#id, what},
          FORMAT_KINDS(X)
#undef X
      };
    static const struct {
        const char *name, *only, *what;
        infer_op_id op;
    } flow[] = {
#define X(id, op, only, what) {#id, only, what, INFER_OP_##op},
        FLOW_KINDS(X)
#undef X
    };
    *out = table;
    if (n_table)
        return n_table;
    for (infer_op_id op = 1; op < INFER_OP_COUNT; op++) {
        const infer_op_info *info = infer_op_get(op);
        if (!info || !info->ref)
            continue;
        for (uint32_t k = 0; k < OPK_attr; k++) {
            if (!op_can(info, k))
                continue;
            infer_mutant *m = add(MUTANT_OP, 1, op, k, ops[k].what);
            snprintf(m->name, sizeof(m->name), "%s.%s", info->name, ops[k].name);
            snprintf(m->only, sizeof(m->only), "t1.%s.*", info->name);
        }
        for (uint32_t w = 1; w < attr_words(info); w++) {
            infer_mutant *m = add(MUTANT_OP, 1, op, OPK_attr, "a word of the attributes is left out");
            m->arg = w;
            snprintf(m->name, sizeof(m->name), "%s.attr_%u", info->name, w);
            snprintf(m->only, sizeof(m->only), "t1.%s.*", info->name);
        }
    }
    for (uint32_t f = 0; f < sizeof(formats) / sizeof(formats[0]); f++)
        for (uint32_t k = 0; k < sizeof(fmts) / sizeof(fmts[0]); k++) {
            if (!format_can(f, FMT_flush + k))
                continue;
            infer_mutant *m = add(MUTANT_FORMAT, 2, f, FMT_flush + k, fmts[k].what);
            snprintf(m->name, sizeof(m->name), "%s.%s", formats[f].name, fmts[k].name);
            snprintf(m->only, sizeof(m->only), "t2.%s.*", formats[f].name);
        }
    for (uint32_t k = 0; k < sizeof(flow) / sizeof(flow[0]); k++) {
        infer_mutant *m =
            add(MUTANT_FLOW, (uint32_t)(flow[k].only[1] - '0'), flow[k].op, FLOW_attn_stale_table + k, flow[k].what);
        snprintf(m->name, sizeof(m->name), "flow.%s", flow[k].name);
        snprintf(m->only, sizeof(m->only), "%s", flow[k].only);
    }
    n_table += mutant_slots_list(table + n_table, MUTANT_MAX - n_table);
    return n_table;
}

/* ---- What an op is given ---------------------------------------------------------------------------------- */

/* One op as the mistake has it. */
typedef struct bent {
    infer_op_desc d;
    infer_tensor_desc t[INFER_OP_MAX_OPERANDS];
    infer_any_attrs attrs;
    void *data[INFER_OP_MAX_OPERANDS];
    void *own[INFER_OP_MAX_OPERANDS]; /* changed copies of inputs */
    uint64_t bytes[INFER_OP_MAX_OPERANDS];
    int32_t counts[INFER_COUNT_MAX];
    int64_t rows; /* that are right */
} bent;

/* What the call before had, by operand, of one op. */
static struct {
    pthread_mutex_t lock;
    uint8_t *data;
    uint64_t bytes;
} before = {.lock = PTHREAD_MUTEX_INITIALIZER};

void infer_mutant_choose(const infer_mutant *m)
{
    mutant_chosen = m;
    atomic_store(&changes, 0);
    free(before.data);
    before.data = NULL;
    before.bytes = 0;
}

/* A copy of operand i that may be changed, in its place. */
static void *own(bent *b, uint32_t i)
{
    if (!b->data[i] || !b->bytes[i])
        return NULL;
    b->own[i] = malloc(b->bytes[i]);
    if (!b->own[i])
        return NULL;
    memcpy(b->own[i], b->data[i], b->bytes[i]);
    return b->data[i] = b->own[i];
}

static void stale(bent *b, uint32_t i)
{
    uint8_t *now = own(b, i);
    if (!now)
        return;
    pthread_mutex_lock(&before.lock);
    uint8_t *keep = malloc(b->bytes[i]);
    if (keep)
        memcpy(keep, now, b->bytes[i]);
    if (before.data)
        memcpy(now, before.data, before.bytes < b->bytes[i] ? before.bytes : b->bytes[i]);
    free(before.data);
    before.data = keep;
    before.bytes = keep ? b->bytes[i] : 0;
    pthread_mutex_unlock(&before.lock);
}

/* The first input of 32-bit integers, or n_in. */
static uint32_t index_of(const bent *b)
{
    uint32_t i = 0;
    while (i < b->d.n_in && (!b->data[i] || b->t[i].format != INFER_FMT_I32))
        i++;
    return i;
}

static void swap_inputs(bent *b)
{
    for (uint32_t i = 0; i < b->d.n_in; i++)
        for (uint32_t k = i + 1; k < b->d.n_in; k++)
            if (b->data[i] && b->data[k] && b->bytes[i] == b->bytes[k] && b->t[i].format == b->t[k].format) {
                void *p = b->data[i];
                b->data[i] = b->data[k];
                b->data[k] = p;
                return;
            }
}

/* Ops whose outputs are pools: their rows are entries of a list of slots, the last of which is not there. */
static int list_op(const bent *b)
{
    return infer_op_get(b->d.op)->inout != 0;
}

static void drop_last_entry(bent *b)
{
    uint32_t i = index_of(b);
    if (b->d.op == INFER_OP_ROPE_KV_WRITE)
        i = 4;
    int32_t *v = i < b->d.n_in ? own(b, i) : NULL;
    if (v && b->rows > 0)
        v[b->rows - 1] = -1;
}

static void bend_op(bent *b, const infer_mutant *m)
{
    int32_t *v;
    uint32_t i;
    switch (m->kind) {
    case OPK_last_row:
        if (list_op(b))
            drop_last_entry(b);
        break;
    case OPK_next_row:
        if (b->d.rows_from != INFER_ROWS_STATIC)
            b->counts[b->d.rows_from]++;
        break;
    case OPK_all_rows:
        if (b->d.rows_from != INFER_ROWS_STATIC)
            b->counts[b->d.rows_from] = INT32_MAX / 64;
        break;
    case OPK_stale_input:
        stale(b, 0);
        break;
    case OPK_stale_index:
        if ((i = index_of(b)) < b->d.n_in)
            stale(b, i);
        break;
    case OPK_in_stride:
        memset(b->t[0].stride, 0, sizeof(b->t[0].stride));
        break;
    case OPK_out_stride:
        memset(b->t[b->d.n_in].stride, 0, sizeof(b->t[0].stride));
        break;
    case OPK_wrong_plane:
        swap_inputs(b);
        break;
    case OPK_index_plus:
        for (i = 0; i < b->d.n_in; i++)
            if (b->data[i] && b->t[i].format == INFER_FMT_I32 && (v = own(b, i)) != NULL)
                for (uint64_t k = 0; k < b->bytes[i] / 4; k++)
                    v[k] += v[k] != INT32_MAX;
        break;
    case OPK_attr:
        if (b->d.attrs_size >= 4 * (m->arg + 1))
            memset((uint8_t *)&b->attrs + 4 * m->arg, 0, 4);
        break;
    default:
        break;
    }
}

/* ---- Formats ---------------------------------------------------------------------------------------------- */

static void bend_half(uint8_t *p, uint32_t kind, const uint8_t *first)
{
    uint16_t h = (uint16_t)(p[0] | p[1] << 8);
    if (kind == FMT_flush && !(h & 0x7C00))
        h = 0;
    if (kind == FMT_abs_scale)
        h &= 0x7FFF;
    if (kind == FMT_first_scale)
        h = (uint16_t)(first[0] | first[1] << 8);
    p[0] = (uint8_t)h;
    p[1] = (uint8_t)(h >> 8);
}

static uint8_t bend_code(uint8_t c, uint32_t kind, infer_format f)
{
    if (kind == FMT_nibbles)
        return (uint8_t)(c << 4 | c >> 4);
    if (f == INFER_FMT_Q8_0 || f == INFER_FMT_I8)
        return c == 0x80 ? 0x81 : c;
    if (f == INFER_FMT_F8_E4M3)
        return (c & 0x7F) == 0x7E ? (uint8_t)(c - 1) : c;
    return c == 0 ? 0x11 : c;
}

static void bend_planes(bent *b, uint32_t i, uint32_t kind, uint8_t *w)
{
    const infer_tensor_desc *t = &b->t[i];
    uint64_t at[3], each[3], bytes, e = t->rank == 3 ? (uint64_t)t->shape[0] : 1;
    if (infer_tensor_planes(t, at, each, &bytes))
        return;
    uint32_t step = infer_format_get(t->quant.scale_format)->block_bytes;
    for (uint64_t k = 0; k + step <= e * each[1]; k += step) {
        uint8_t *s = w + at[1] + k;
        if (kind == FMT_flush && t->quant.scale_format == INFER_FMT_F16)
            bend_half(s, kind, s);
        else if (kind == FMT_abs_scale)
            s[step - 1] &= 0x7F;
        else if (kind == FMT_first_scale)
            memcpy(s, w + at[1], step);
    }
    if (kind == FMT_no_minimum)
        memset(w + at[2], 0, e * each[2]);
    for (uint64_t k = 0; (kind == FMT_clip || kind == FMT_nibbles) && k < e * each[0]; k++)
        w[at[0] + k] = bend_code(w[at[0] + k], kind, t->quant.format);
}

static void bend_format(bent *b, const infer_mutant *m)
{
    uint32_t i = b->d.op == INFER_OP_GATHER_ROWS ? 0 : 1, kind = m->kind;
    const infer_format_info *f = infer_format_get(formats[m->target].f);
    if ((b->d.op != INFER_OP_MATMUL && b->d.op != INFER_OP_MOE_MATMUL && i) || b->t[i].format != f->id ||
        b->t[i].quant.scale_format != formats[m->target].scale || b->t[i].stride[0])
        return;
    if (b->t[i].quant.format && formats[m->target].scale == INFER_FMT_F32 && b->t[i].quant.group_n != 1)
        return;
    uint8_t *w = own(b, i);
    if (!w)
        return;
    if (formats[m->target].scale) {
        bend_planes(b, i, kind, w);
        return;
    }
    for (uint64_t k = 0; k + f->block_bytes <= b->bytes[i]; k += f->block_bytes) {
        uint8_t *p = w + k;
        const int *at = formats[m->target].at;
        if (f->id == INFER_FMT_F16 && kind < FMT_no_minimum)
            bend_half(p, kind, w);
        else if (f->id == INFER_FMT_F8_E4M3 && kind == FMT_flush)
            p[0] &= p[0] & 0x78 ? 0xFF : 0x80;
        else if (f->id == INFER_FMT_F8_E4M3 && kind == FMT_abs_scale)
            p[0] &= 0x7F;
        for (int s = 0; s < 2 && f->block_elems > 1; s++)
            if (at[s] >= 0)
                bend_half(p + at[s], kind, w + at[s]);
        if (kind == FMT_no_minimum && f->block_elems > 1 && at[1] >= 0)
            memset(p + at[1], 0, 2);
        for (int c = 0; (kind == FMT_clip || kind == FMT_nibbles) && c < (int)f->block_bytes; c++)
            if (f->id != INFER_FMT_F16 && (at[0] < 0 || c < at[0] || c > at[0] + 1) &&
                (at[1] < 0 || c < at[1] || c > at[1] + 1))
                p[c] = bend_code(p[c], kind, f->id);
    }
}

/* ---- Flows ------------------------------------------------------------------------------------------------ */

static void each_i32(bent *b, uint32_t i, int32_t (*f)(int32_t old, uint64_t at, const bent *b))
{
    int32_t *v = own(b, i);
    for (uint64_t k = 0; v && k < b->bytes[i] / 4; k++)
        v[k] = f(v[k], k, b);
}

static int32_t near_blocks(int32_t old, uint64_t at, const bent *b)
{
    return at % (uint64_t)b->t[3].shape[1] < 16 ? old : -1;
}

static int32_t first_block(int32_t old, uint64_t at, const bent *b)
{
    int32_t size = (int32_t)b->attrs.kv.block_size, *all = b->data[2], first = all[0] < 0 ? all[1] : all[0];
    return old < 0 || !at ? old : first / size * size + old % size;
}

static int32_t in_order(int32_t old, uint64_t at, const bent *b)
{
    (void)old;
    (void)b;
    return (int32_t)at;
}

/* Rows of one sequence become as many sequences as there are... of the kind that `decode` has: one row each. */
static void bend_batches(bent *b, int decode)
{
    int32_t *start = own(b, 5), *len = own(b, 4);
    int64_t n = b->t[4].shape[0];
    for (int64_t s = 0; start && len && s < n; s++) {
        if (decode && start[s + 1] > start[s]) /* the first of its rows sees all */
            start[s + 1] = start[s] + 1 > start[s + 1] ? start[s + 1] : start[s] + 1;
        else if (!decode && start[s + 1] - start[s] < len[s])
            len[s] = start[s + 1] - start[s];
    }
}

/* What is in a pool's slots already, of any block: slots with a number that is not NaN keep it. */
static void keep_first(bent *b)
{
    int32_t *slots = own(b, 2);
    uint32_t o = b->d.n_in;
    uint64_t row = 0;
    if (!slots || infer_format_bytes(b->t[o].format, (uint64_t)b->t[o].shape[3], &row))
        return;
    int64_t size = b->t[o].shape[2], heads = b->t[o].shape[1];
    for (uint64_t k = 0; k < b->bytes[2] / 4; k++) {
        if (slots[k] < 0 || slots[k] >= b->t[o].shape[0] * size)
            continue;
        const uint8_t *p = (uint8_t *)b->data[o] +
                           ((uint64_t)(slots[k] / size) * (uint64_t)(heads * size) + (uint64_t)(slots[k] % size)) * row;
        if (p[0] != 0xFF || p[1] != 0xFF)
            slots[k] = -1;
    }
}

static void bend_flow(bent *b, const infer_mutant *m)
{
    int32_t *v, *w;
    switch (m->kind) {
    case FLOW_attn_stale_table:
        stale(b, 3);
        break;
    case FLOW_attn_stale_len:
        stale(b, 4);
        break;
    case FLOW_attn_tree_word:
        if (b->d.n_in > 7 && b->data[7] && (v = own(b, 7)) != NULL)
            for (uint64_t k = 0; k < b->bytes[7] / 4; k++)
                v[k] = k % (uint64_t)b->t[7].shape[1] ? 0 : v[k];
        break;
    case FLOW_attn_table_16:
        each_i32(b, 3, near_blocks);
        break;
    case FLOW_attn_decode_all:
        bend_batches(b, 1);
        break;
    case FLOW_attn_prefill_all:
        bend_batches(b, 0);
        break;
    case FLOW_attn_cap_sinks:
        if (b->data[6] && b->attrs.attn.soft_cap > 0) {
            float *s = own(b, 6), cap = b->attrs.attn.soft_cap;
            for (uint64_t k = 0; s && k < b->bytes[6] / 4; k++)
                s[k] = cap * tanhf(s[k] / cap);
        }
        break;
    case FLOW_attn_window_plus:
        b->attrs.attn.window++;
        break;
    case FLOW_attn_values:
        if (b->bytes[1] == b->bytes[2] && b->t[1].format == b->t[2].format)
            b->data[2] = b->data[1];
        break;
    case FLOW_write_first:
        keep_first(b);
        break;
    case FLOW_write_order:
        if (b->bytes[0] == b->bytes[1]) {
            void *p = b->data[0];
            b->data[0] = b->data[1];
            b->data[1] = p;
        }
        break;
    case FLOW_write_block:
        each_i32(b, 2, first_block);
        break;
    case FLOW_move_order:
        for (uint32_t i = 1; i < 3; i++)
            if ((v = own(b, i)) != NULL)
                for (int64_t k = 0; k < b->rows / 2; k++) {
                    int32_t x = v[k];
                    v[k] = v[b->rows - 1 - k];
                    v[b->rows - 1 - k] = x;
                }
        break;
    case FLOW_move_back:
        v = b->data[1], w = b->data[2];
        b->data[1] = w;
        b->data[2] = v;
        break;
    case FLOW_pack_order:
    case FLOW_unpack_order:
        each_i32(b, 1, in_order);
        break;
    default:
        break;
    }
}

/* ---- What an op has written -------------------------------------------------------------------------------- */

static int plain(infer_format f)
{
    const infer_format_info *i = infer_format_get(f);
    return i && i->block_elems == 1;
}

/* Vector k of the first output as bytes; elements of `size`. */
static void spoil_vector(uint8_t *p, const uint8_t *was, int64_t width, uint32_t size, infer_format f, uint32_t kind)
{
    uint8_t tmp[8];
    uint8_t *x = p, *y = p + size, *last = p + (uint64_t)(width - 1) * size;
    if (kind == OPK_swap_last && width > 1) {
        x = last - size;
        y = last;
    }
    if ((kind == OPK_swap_pair || kind == OPK_swap_last) && width > 1) {
        memcpy(tmp, x, size);
        memcpy(x, y, size);
        memcpy(y, tmp, size);
    }
    if (kind == OPK_last_col)
        memcpy(last, was + (uint64_t)(width - 1) * size, size);
    const infer_format_info *info = infer_format_get(f);
    for (int64_t i = 0; (kind == OPK_drop_scale || kind == OPK_variant) && info->is_float && i < width; i++) {
        float v;
        if (kind == OPK_variant) {
            p[(uint64_t)i * size] ^= 1;
            continue;
        }
        info->unpack(p + (uint64_t)i * size, &v, 1);
        v *= 1.2f;
        info->pack(&v, p + (uint64_t)i * size, 1);
    }
}

static void spoil_rows(const bent *b, const uint8_t *was, uint32_t kind)
{
    uint32_t o = b->d.n_in;
    infer_view v = infer_view_of(&b->t[o], b->data[o]), w = infer_view_of(&b->t[o], (void *)(uintptr_t)was);
    uint32_t size = infer_format_get(b->t[o].format)->block_bytes;
    int64_t rows = list_op(b) ? b->t[o].shape[0] : b->rows;
    int64_t from = kind == OPK_last_row ? rows - 1 : 0;
    if (kind == OPK_variant && rows < 2)
        return;
    for (int64_t r = from < 0 ? 0 : from; r < rows; r++) {
        if (v.rank == 1) {
            if (kind == OPK_last_row)
                memcpy(v.p + (uint64_t)r * size, w.p + (uint64_t)r * size, size);
            else if (kind == OPK_drop_scale || kind == OPK_variant)
                spoil_vector(v.p + (uint64_t)r * size, w.p, 1, size, v.format, kind);
            continue;
        }
        for (int64_t k = 0; k < v.per_row; k++) {
            uint8_t *p = infer_view_at(&v, r * v.per_row + k), *q = infer_view_at(&w, r * v.per_row + k);
            if (kind == OPK_last_row)
                memcpy(p, q, (uint64_t)v.width * size);
            else
                spoil_vector(p, q, v.width, size, v.format, kind);
        }
    }
    if (v.rank == 1 && rows > 1 && (kind == OPK_swap_pair || kind == OPK_swap_last || kind == OPK_last_col))
        spoil_vector(v.p, w.p, rows, size, v.format, kind);
}

/* saved: the first output before the op. */
static void spoil(const bent *b, const infer_mutant *m, void *const *saved)
{
    uint32_t o = b->d.n_in, last = b->d.n_in + b->d.n_out - 1;
    uint8_t *y = b->data[o];
    if (m->group == MUTANT_OP && m->kind == OPK_past_end)
        y[b->bytes[o]] ^= 1;
    else if (m->group == MUTANT_OP && m->kind == OPK_before)
        y[-1] ^= 1;
    else if (m->group == MUTANT_OP && m->kind == OPK_input_write && b->data[0])
        ((uint8_t *)b->data[0])[b->bytes[0] - 1] ^= 1;
    else if (m->group == MUTANT_OP && m->kind == OPK_wrong_output && last > o && b->data[last])
        memcpy(b->data[last], saved[last], b->bytes[last]);
    else if (m->group == MUTANT_OP && plain(b->t[o].format) && !(m->kind == OPK_last_row && list_op(b)))
        spoil_rows(b, saved[o], m->kind);
    if (m->group != MUTANT_FLOW || !b->t[o].shape[0])
        return;
    if (m->kind == FLOW_product_cut && b->rows > 0 && b->t[0].shape[0] > 1 && b->t[1].shape[1] >= 1024)
        y[0] ^= 1;
    if (m->kind == FLOW_attn_masked_nan) { /* NaN in a block that a sequence has, seen or not */
        const int32_t *t = b->data[3];
        uint64_t block = b->bytes[1] / (uint64_t)b->t[1].shape[0];
        for (uint64_t k = 0; k < b->bytes[3] / 4; k++)
            if (t[k] >= 0 && t[k] < b->t[1].shape[0]) {
                const uint8_t *p = (uint8_t *)b->data[1] + (uint64_t)t[k] * block;
                if (p[block - 1] == 0xFF && p[block - 2] == 0xFF && b->rows > 0)
                    memset(y, 0xFF, 4);
            }
    }
}

/* Grouped heads in turn: query head h of the result is another's. */
static void turn_heads(const bent *b)
{
    uint32_t o = b->d.n_in, g = b->attrs.attn.kv.n_kv_heads, h = b->attrs.attn.n_heads;
    uint64_t bytes = (uint64_t)b->t[o].shape[2] * infer_format_get(b->t[o].format)->block_bytes;
    if (g < 2 || g == h || b->t[o].stride[0])
        return;
    for (int64_t r = 0; r < b->rows; r++) {
        uint8_t *p = (uint8_t *)b->data[o] + (uint64_t)r * h * bytes, tmp[2048];
        if (bytes > sizeof(tmp))
            return;
        memcpy(tmp, p + bytes, bytes);
        memcpy(p + bytes, p + (uint64_t)(h - 1) * bytes, bytes);
        memcpy(p + (uint64_t)(h - 1) * bytes, tmp, bytes);
    }
}

/* ---- Running ---------------------------------------------------------------------------------------------- */

static int concerns(const infer_mutant *m, infer_op_id op)
{
    if (!m || m->group == MUTANT_SLOT)
        return 0;
    return m->group == MUTANT_FORMAT || m->target == op;
}

static int writes(const bent *b, uint32_t i)
{
    return b->data[i] && (i >= b->d.n_in || (infer_op_get(b->d.op)->writes_in >> i & 1));
}

/* The right result on copies: right[i] of each operand that is written; saved[i]: what was there before. */
static int run_right(const bent *b, const infer_op_desc *op, void *const *data, const int32_t *counts, void **right,
                     void **saved)
{
    void *d[INFER_OP_MAX_OPERANDS];
    memcpy(d, data, (op->n_in + op->n_out) * sizeof(*d));
    for (uint32_t i = 0; i < op->n_in + op->n_out; i++) {
        if (!writes(b, i))
            continue;
        right[i] = malloc(b->bytes[i]);
        saved[i] = malloc(b->bytes[i]);
        if (!right[i] || !saved[i])
            return 0;
        memcpy(right[i], data[i], b->bytes[i]);
        memcpy(saved[i], data[i], b->bytes[i]);
        for (uint32_t k = 0; k < i; k++) /* an input of the same range */
            if (d[k] == data[i])
                d[k] = right[i];
        d[i] = right[i];
    }
    return !real->ref_op(real->ctx, op, d, counts);
}

static infer_status mutant_ref_op(void *ctx, const infer_op_desc *op, void *const *data, const int32_t *counts)
{
    const infer_mutant *m = mutant_chosen;
    void *right[INFER_OP_MAX_OPERANDS] = {NULL}, *saved[INFER_OP_MAX_OPERANDS] = {NULL};
    infer_status s = INFER_E_NO_MEMORY;
    infer_error e = {0};
    (void)ctx;
    if (mutant_early())
        return mutant_early_run(real, op, data, counts);
    if (!concerns(m, op->op))
        return real->ref_op(real->ctx, op, data, counts);
    bent *b = calloc(1, sizeof(*b));
    uint32_t n = op->n_in + op->n_out;
    if (!b)
        return s;
    b->d = *op;
    memcpy(b->t, op->tensors, n * sizeof(b->t[0]));
    b->d.tensors = b->t;
    memcpy(b->data, data, n * sizeof(*data));
    if (op->attrs && op->attrs_size <= sizeof(b->attrs)) {
        memcpy(&b->attrs, op->attrs, op->attrs_size);
        b->d.attrs = &b->attrs;
    }
    if (counts && op->rows_from != INFER_ROWS_STATIC)
        b->counts[op->rows_from] = counts[op->rows_from];
    b->rows = infer_op_rows(op, op->rows_from == INFER_ROWS_STATIC ? NULL : counts);
    for (uint32_t i = 0; i < n; i++)
        if (b->data[i] && infer_tensor_bytes(&b->t[i], &b->bytes[i]))
            b->bytes[i] = 0;
    if (!run_right(b, op, data, counts, right, saved))
        goto out;
    if (m->group == MUTANT_OP)
        bend_op(b, m);
    else if (m->group == MUTANT_FORMAT)
        bend_format(b, m);
    else
        bend_flow(b, m);
    if (infer_op_check(&b->d, &e)) { /* what cannot even be said is no mistake that a device makes */
        s = real->ref_op(real->ctx, op, data, counts);
        goto out;
    }
    s = real->ref_op(real->ctx, &b->d, b->data, b->counts);
    if (!s && m->group == MUTANT_FLOW && m->kind == FLOW_attn_head_mod)
        turn_heads(b);
    if (!s)
        spoil(b, m, saved);
    for (uint32_t i = 0; i < n; i++)
        if (right[i] && memcmp(right[i], data[i], b->bytes[i]))
            mutant_changed();
    if (m->group == MUTANT_OP && (m->kind == OPK_past_end || m->kind == OPK_before || m->kind == OPK_input_write))
        mutant_changed();
out:
    for (uint32_t i = 0; i < n; i++) {
        free(right[i]);
        free(saved[i]);
        free(b->own[i]);
    }
    free(b);
    return s;
}

int mutant_is(uint32_t slot_mistake)
{
    return mutant_chosen && mutant_chosen->group == MUTANT_SLOT && mutant_chosen->target == slot_mistake;
}

const infer_host *mutant_host(const infer_host *given)
{
    real = given;
    host = *given;
    host.ref_op = mutant_ref_op;
    mutant_host_slots(&host, given);
    return &host;
}

/* A descriptor for each mutant, as the core keeps to one table a descriptor. */
const infer_plugin_desc *infer_mutant_query(const infer_host *given, const infer_abi_range *range)
{
    static infer_plugin_desc desc;
    static infer_backend_ops outer;
    static const infer_mutant *made_for;
    static const infer_plugin_desc *made_of; /* sim has one with timelines of its own, and one without */
    const infer_plugin_desc *sim = infer_sim_query(given, range);
    if (!sim)
        return NULL;
    if (made_of == sim && made_for == mutant_chosen)
        return &desc;
    made_of = sim;
    made_for = mutant_chosen;
    mutant_inner = outer = *sim->ops;
    mutant_slots_install(&outer);
    mutant_prog_install(&outer);
    desc = *sim;
    desc.name = desc.device_prefix = "mutant";
    desc.ops = &outer;
    return &desc;
}
