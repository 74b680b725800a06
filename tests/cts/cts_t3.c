/*
 * T3, the paged cache as requests use it: written and read over several steps, in mixed batches, prompts in chunks,
 * prefixes shared and then parted, blocks copied, packed and moved, with NaN wherever nothing may look; for every cache
 * format that kv_query accepts, at its least and its best block size. Single ops on prepared pools are T1's.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "cts_t3.h"
#include "quant/quant.h"

typedef void (*t3_fn)(t3 *k, uint64_t seed);

typedef struct t3_arg {
    t3_shape s;
    t3_fn fn;
} t3_arg;

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        if (!(call))                                                                                                   \
            goto out;                                                                                                  \
    } while (0)

/* Tokens around the ends of blocks, whatever their size: a number below `most`. */
static int32_t odd_length(const t3 *k, int32_t blocks, int32_t plus)
{
    int32_t n = blocks * (int32_t)k->kv.block_size + plus;
    return n > 200 ? 200 - plus : n;
}

/* ---- What requests do ------------------------------------------------------------------------------------ */

static void prefill(t3 *k, uint64_t seed)
{
    int32_t rows[T3_SEQS] = {odd_length(k, 2, 5), 1, odd_length(k, 1, 0)};
    for (int i = 0; i < 3; i++)
        MUST(t3_write(k, &k->seq[i], rows[i], seed + (uint64_t)i, i == 1));
    MUST(t3_attend(k, rows, seed, INFER_ATTN_PREFILL, NULL, "prefill"));
out:;
}

static void decode(t3 *k, uint64_t seed)
{
    int32_t first[4] = {1, odd_length(k, 1, -1), odd_length(k, 2, 0), odd_length(k, 1, 1)};
    for (int i = 0; i < 4; i++)
        MUST(t3_write(k, &k->seq[i], first[i] > 0 ? first[i] : 1, seed + (uint64_t)i, 0));
    for (int step = 0; step < 4; step++) { /* the last without the second sequence, which has ended */
        int32_t rows[T3_SEQS] = {1, step < 3, 1, 1};
        for (int i = 0; i < 4; i++)
            if (rows[i])
                MUST(t3_write(k, &k->seq[i], 1, seed + (uint64_t)i, 0));
        MUST(t3_attend(k, rows, seed + 100u * (uint64_t)step, INFER_ATTN_DECODE, NULL, "decode"));
    }
out:;
}

/* A new prompt, a part of one, and single rows, in one op. */
static void mixed(t3 *k, uint64_t seed)
{
    int32_t old[4] = {0, odd_length(k, 1, 0), odd_length(k, 2, 3), 4}, rows[T3_SEQS] = {odd_length(k, 1, 4), 7, 1, 1};
    for (int i = 0; i < 4; i++) {
        if (old[i])
            MUST(t3_write(k, &k->seq[i], old[i], seed + (uint64_t)i, 0));
        MUST(t3_write(k, &k->seq[i], rows[i], seed + (uint64_t)i, 0));
    }
    MUST(t3_attend(k, rows, seed, INFER_ATTN_MIXED, NULL, "mixed batch"));
out:;
}

static int same_rows(t3 *k, const float *a, const float *b, uint64_t n, const char *what)
{
    int64_t at = k->invariant ? cts_differ(a, b, n * sizeof(*a)) : -1;
    if (at >= 0)
        cts_fail(k->c, "%s: byte %lld of the result is another, though the op is claimed row-invariant", what,
                 (long long)at);
    return at < 0;
}

/* One prompt in one pass and in chunks. */
static void chunked(t3 *k, uint64_t seed)
{
    const int32_t cuts[] = {1, 16, 7, 0, 1};
    int32_t total = odd_length(k, 2, 27), done = 0, rows[T3_SEQS] = {total};
    uint64_t width = (uint64_t)k->s.heads * k->s.dv;
    float *whole = infer_calloc(2 * (uint64_t)total * width, sizeof(*whole)), *part = whole + (uint64_t)total * width;
    if (!whole)
        cts_fail(k->c, "no host memory");
    MUST(whole && t3_write(k, &k->seq[0], total, seed, 0));
    MUST(t3_attend(k, rows, seed, INFER_ATTN_MIXED, whole, "one pass"));
    /* queries are by sequence and position: the second one stands in the first's place */
    k->seq[1] = k->seq[0];
    k->seq[0] = (t3_seq){.len = 0};
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        int32_t n = cuts[i] ? cuts[i] : total - done - 1;
        rows[0] = n;
        MUST(t3_write(k, &k->seq[0], n, seed, 0));
        MUST(t3_attend(k, rows, seed, INFER_ATTN_MIXED, part + (uint64_t)done * width, "a chunk"));
        done += n;
    }
    MUST(same_rows(k, whole, part, (uint64_t)total * width, "a prompt in chunks"));
out:
    infer_free(whole);
}

/* Two sequences on one prefix; they part inside a block, which the second then has a copy of. */
static void shared(t3 *k, uint64_t seed)
{
    int32_t size = (int32_t)k->kv.block_size, prefix = odd_length(k, 2, size > 2 ? 2 : 1), rows[T3_SEQS] = {1, 1};
    t3_seq *a = &k->seq[0], *b = &k->seq[1];
    MUST(t3_write(k, a, prefix, seed, 0));
    *b = *a;
    MUST(t3_attend(k, rows, seed, INFER_ATTN_DECODE, NULL, "a shared prefix"));
    if (prefix % size) {
        b->table[prefix / size] = k->order[k->next_block++];
        MUST(t3_copy_block(k, a->table[prefix / size], b->table[prefix / size]));
    }
    for (int i = 0; i < 3; i++) {
        MUST(t3_write(k, a, 1, seed + 5, 0));
        MUST(t3_write(k, b, 1, seed + 9, 0));
        MUST(t3_attend(k, rows, seed + (uint64_t)i, INFER_ATTN_DECODE, NULL, "after a copy on write"));
    }
out:;
}

/* Blocks of a sequence at other numbers, brought there by `bring`; what they leave is NaN. The same bits. */
static void elsewhere(t3 *k, uint64_t seed, int (*bring)(t3 *k, t3_seq *q, t3_seq *to, int32_t n))
{
    int32_t size = (int32_t)k->kv.block_size, len = odd_length(k, 3, 2), n = (len + size - 1) / size,
            rows[T3_SEQS] = {3};
    uint64_t width = 3 * (uint64_t)k->s.heads * k->s.dv;
    float *y = infer_calloc(2 * width, sizeof(*y));
    if (!y)
        cts_fail(k->c, "no host memory");
    MUST(y && t3_write(k, &k->seq[0], len, seed, 0));
    MUST(t3_attend(k, rows, seed, INFER_ATTN_MIXED, y, "at its place"));
    t3_seq from = k->seq[0], to = from;
    to.len = 0;
    MUST(t3_reserve(k, &to, len));
    to.len = len;
    MUST(bring(k, &from, &to, n));
    for (int32_t i = 0; i < n; i++)
        MUST(t3_poison(k, from.table[i]));
    k->seq[0] = to;
    MUST(t3_attend(k, rows, seed, INFER_ATTN_MIXED, y + width, "at another place"));
    int64_t at = cts_differ(y, y + width, width * sizeof(*y));
    if (at >= 0)
        cts_fail(k->c, "blocks at another place: byte %lld of the result is another", (long long)at);
out:
    infer_free(y);
}

static int bring_copy(t3 *k, t3_seq *from, t3_seq *to, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (!t3_copy_block(k, from->table[i], to->table[i]))
            return 0;
    return 1;
}

static void copied(t3 *k, uint64_t seed)
{
    elsewhere(k, seed, bring_copy);
}

/* Out to the canonical image and back in. */
static int bring_pack(t3 *k, t3_seq *from, t3_seq *to, int32_t n)
{
    for (uint32_t p = 0; p < k->n_planes; p++) {
        infer_attrs_kv a = t3_plane(k, p);
        uint64_t bytes = k->host_bytes[p] / k->kv.n_blocks * (uint64_t)n;
        infer_format f = p ? k->kv.v_format : k->kv.k_format;
        uint32_t width = p ? k->kv.v_width : k->kv.k_width;
        uint8_t *image = infer_calloc(2, bytes);
        t3_op o;
        int ok = image != NULL;
        t3_op_begin(&o, INFER_OP_KV_PACK, &a, sizeof(a));
        t3_pool(k, &o, p, 0);
        t3_operand(&o, 0, INFER_FMT_I32, 1, n, 1, 1, 1, from->table);
        t3_operand(&o, 1, f, 4, n, k->kv.n_kv_heads, k->kv.block_size, width, image);
        ok = ok && t3_run(k, &o);
        if (ok && !k->kv.layout && memcmp(image, image + bytes, bytes)) {
            cts_fail(k->c, "kv_pack: the image of plane %u is another than the blocks", p);
            ok = 0;
        }
        if (ok)
            memcpy(image, image + bytes, bytes);
        t3_op_begin(&o, INFER_OP_KV_UNPACK, &a, sizeof(a));
        t3_operand(&o, 0, f, 4, n, k->kv.n_kv_heads, k->kv.block_size, width, image);
        t3_operand(&o, 0, INFER_FMT_I32, 1, n, 1, 1, 1, to->table);
        t3_pool(k, &o, p, 1);
        ok = ok && t3_run(k, &o);
        infer_free(image);
        if (!ok)
            return 0;
    }
    return t3_settle(k, "kv_unpack");
}

static void packed(t3 *k, uint64_t seed)
{
    elsewhere(k, seed, bring_pack);
}

static int move_tokens(t3 *k, int32_t *src, int32_t *dst, int32_t n)
{
    for (uint32_t p = 0; p < k->n_planes; p++) {
        infer_attrs_kv a = t3_plane(k, p);
        t3_op o;
        t3_op_begin(&o, INFER_OP_KV_MOVE, &a, sizeof(a));
        t3_pool(k, &o, p, 0);
        t3_operand(&o, 0, INFER_FMT_I32, 1, n, 1, 1, 1, src);
        t3_operand(&o, 0, INFER_FMT_I32, 1, n, 1, 1, 1, dst);
        t3_pool(k, &o, p, 1);
        if (!t3_run(k, &o))
            return 0;
    }
    return t3_settle(k, "kv_move");
}

/* Accepted rows of a tree move together: tokens 2, 3 and 5 of the newest seven stay, in list order. */
static void moved(t3 *k, uint64_t seed)
{
    int32_t base = odd_length(k, 1, -1), keep[] = {2, 3, 5}, src[3], dst[3], rows[T3_SEQS] = {1};
    base = base < 1 ? 1 : base;
    MUST(t3_write(k, &k->seq[0], base + 7, seed, 0));
    for (int i = 0; i < 3; i++) {
        src[i] = t3_slot(k, &k->seq[0], base + keep[i]);
        dst[i] = t3_slot(k, &k->seq[0], base + i);
    }
    MUST(move_tokens(k, src, dst, 3));
    k->seq[0].len = base + 3;
    MUST(t3_attend(k, rows, seed, INFER_ATTN_DECODE, NULL, "after moving tokens together"));
    /* in list order: the second takes what the first brought */
    src[0] = t3_slot(k, &k->seq[0], base);
    src[1] = dst[0] = t3_slot(k, &k->seq[0], base + 1);
    dst[1] = t3_slot(k, &k->seq[0], base + 2);
    MUST(move_tokens(k, src, dst, 2));
    MUST(t3_attend(k, rows, seed, INFER_ATTN_DECODE, NULL, "after moving a token twice"));
out:;
}

/* Rejected tokens are written over; a block given up goes to another sequence. */
static void rewritten(t3 *k, uint64_t seed)
{
    int32_t len = odd_length(k, 1, 3), size = (int32_t)k->kv.block_size, rows[T3_SEQS] = {3, 2};
    MUST(t3_write(k, &k->seq[0], len + 5, seed, 0));
    MUST(t3_attend(k, (int32_t[T3_SEQS]){5}, seed, INFER_ATTN_MIXED, NULL, "guessed tokens"));
    k->seq[0].len = len - 1;
    /* blocks past the end are free again: the next ones to be given out */
    for (int32_t b = (len - 1 + size - 1) / size; b < (len + 5 + size - 1) / size; b++)
        k->order[--k->next_block] = k->seq[0].table[b];
    MUST(t3_write(k, &k->seq[1], size + 1, seed + 3, 1));
    MUST(t3_write(k, &k->seq[0], 3, seed + 4, 0));
    MUST(t3_attend(k, rows, seed + 2, INFER_ATTN_MIXED, NULL, "after rejected tokens"));
out:;
}

static void long_context(t3 *k, uint64_t seed)
{
    int32_t most = (int32_t)T3_TABLE * (int32_t)k->kv.block_size, len = most < 460 ? most : 460,
            rows[T3_SEQS] = {1, 1, 5};
    MUST(t3_write(k, &k->seq[0], len - 3, seed, 0));
    MUST(t3_write(k, &k->seq[1], 2, seed + 1, 0));
    MUST(t3_write(k, &k->seq[2], len / 3, seed + 2, 0));
    MUST(t3_attend(k, rows, seed, INFER_ATTN_MIXED, NULL, "a long context"));
out:;
}

/* Each kind of batch in turn, for the variants of attention. */
static void batches(t3 *k, uint64_t seed)
{
    int32_t rows[T3_SEQS] = {odd_length(k, 1, 4), 7, 1, 1};
    mixed(k, seed);
    if (k->c->failed || k->c->skipped)
        return;
    MUST(t3_attend(k, (int32_t[T3_SEQS]){0, 1, 1, 1}, seed + 1, INFER_ATTN_DECODE, NULL, "decode"));
    MUST(t3_attend(k, (int32_t[T3_SEQS]){rows[0]}, seed + 2, INFER_ATTN_PREFILL, NULL, "prefill"));
out:;
}

static void tree(t3 *k, uint64_t seed)
{
    MUST(t3_write(k, &k->seq[0], odd_length(k, 1, 9), seed, 0));
    MUST(t3_write(k, &k->seq[1], 6, seed, 0));
    MUST(t3_write(k, &k->seq[2], 47, seed, 0));
    MUST(t3_attend(k, (int32_t[T3_SEQS]){8, 6, 1}, seed, INFER_ATTN_MIXED, NULL, "trees of 8, 6 and 1"));
    MUST(t3_attend(k, (int32_t[T3_SEQS]){0, 0, 41}, seed, INFER_ATTN_MIXED, NULL, "a tree of more than one word"));
out:;
}

/* ---- The list -------------------------------------------------------------------------------------------- */

static void t3_case(cts *c)
{
    const t3_arg *a = c->arg;
    t3 *k = infer_calloc(1, sizeof(*k));
    if (!k) {
        cts_fail(c, "no host memory");
        return;
    }
    if (t3_begin(c, &a->s, k))
        a->fn(k, cts_rand(c));
    t3_end(k);
    infer_free(k);
}

static const struct {
    const char *name;
    t3_fn fn;
} flows[] = {{"prefill", prefill},   {"decode", decode},      {"mixed", mixed},   {"chunked", chunked},
             {"shared", shared},     {"copied", copied},      {"packed", packed}, {"moved", moved},
             {"long", long_context}, {"rewritten", rewritten}};

#define F32  INFER_FMT_F32
#define F16  INFER_FMT_F16
#define BF16 INFER_FMT_BF16

static const struct {
    const char *name;
    infer_format k, v;
} stores[] = {{"f32", F32, F32},
              {"f16", F16, F16},
              {"bf16", BF16, BF16},
              {"f8_e4m3", INFER_FMT_F8_E4M3, INFER_FMT_F8_E4M3},
              {"q8_0", INFER_FMT_Q8_0, INFER_FMT_Q8_0},
              {"q4_0", INFER_FMT_Q4_0, INFER_FMT_Q4_0},
              {"q8_0-q4_0", INFER_FMT_Q8_0, INFER_FMT_Q4_0},
              {"q4_0-f8_e4m3", INFER_FMT_Q4_0, INFER_FMT_F8_E4M3},
              {"f8_e4m3-bf16", INFER_FMT_F8_E4M3, BF16},
              {"f16-q8_0", F16, INFER_FMT_Q8_0}};

/* heads, KV heads, widths, activations, cache */
static const struct {
    const char *name;
    t3_fn fn;
    t3_shape s;
} variants[] = {
    {"mha", batches, {4, 4, 64, 64, F32, F16, F16, 1, 0, INFER_MASK_CAUSAL, 0, 0, 0}},
    {"gqa", batches, {9, 3, 64, 64, F32, F16, F16, 1, 0, INFER_MASK_CAUSAL, 0, 0, 0}},
    {"gqa_wide", batches, {16, 2, 128, 128, F32, F16, F16, 1, 0, INFER_MASK_CAUSAL, 0, 0, 0}},
    {"mqa", batches, {7, 1, 80, 80, F32, F16, F16, 1, 0, INFER_MASK_CAUSAL, 0, 0, 0}},
    {"widths", batches, {6, 2, 96, 64, F32, F16, F16, 1, 0, INFER_MASK_CAUSAL, 0, 0, 0}},
    {"window_1", batches, {4, 2, 64, 64, F32, F16, F16, 1, 0, INFER_MASK_WINDOW, 1, 0, 0}},
    {"window_5", batches, {4, 2, 64, 64, F32, F16, F16, 1, 0, INFER_MASK_WINDOW, 5, 0, 0}},
    {"window_33", batches, {4, 2, 64, 64, F32, F16, F16, 1, 0, INFER_MASK_WINDOW, 33, 0, 0}},
    {"window_far", batches, {4, 2, 64, 64, F32, F16, F16, 1, 0, INFER_MASK_WINDOW, 4096, 0, 0}},
    {"full", batches, {4, 2, 64, 64, F32, F16, F16, 1, 0, INFER_MASK_FULL, 0, 0, 0}},
    {"cap", batches, {4, 2, 64, 64, F32, F16, F16, 1, 0, INFER_MASK_CAUSAL, 0, 3, 0}},
    {"sinks", batches, {4, 2, 64, 64, F32, F16, F16, 1, 0, INFER_MASK_CAUSAL, 0, 0, 1}},
    {"window_sinks_cap", batches, {4, 2, 64, 64, F32, F16, F16, 1, 0, INFER_MASK_WINDOW, 9, 3, 1}},
    {"tree", tree, {4, 2, 64, 64, F32, F16, F16, 1, 0, INFER_MASK_TREE, 0, 0, 0}},
    {"tree_sinks", tree, {4, 2, 64, 64, F32, F16, F16, 1, 0, INFER_MASK_TREE, 0, 0, 1}},
    {"f16", batches, {4, 2, 64, 64, F16, F16, F16, 1, 0, INFER_MASK_CAUSAL, 0, 0, 0}},
    {"bf16", batches, {4, 2, 64, 64, BF16, BF16, BF16, 1, 0, INFER_MASK_CAUSAL, 0, 0, 0}},
    {"f32", batches, {4, 2, 64, 64, F32, F32, F32, 1, 0, INFER_MASK_CAUSAL, 0, 0, 0}},
    {"mla", batches, {4, 1, 96, 64, F32, F16, F16, 1, 1, INFER_MASK_CAUSAL, 0, 0, 0}},
    {"mla_f32", batches, {5, 1, 72, 64, F32, F32, F32, 1, 1, INFER_MASK_CAUSAL, 0, 0, 0}},
    {"mla_window", batches, {4, 1, 96, 64, F32, F16, F16, 1, 1, INFER_MASK_WINDOW, 9, 0, 0}},
    {"mla_cap", batches, {4, 1, 96, 64, F32, F16, F16, 1, 1, INFER_MASK_CAUSAL, 0, 3, 0}},
    {"mla_tree", tree, {4, 1, 96, 64, F32, F16, F16, 1, 1, INFER_MASK_TREE, 0, 0, 0}},
};

void cts_t3(cts_run *r)
{
    char name[64];
    for (size_t s = 0; s < sizeof(stores) / sizeof(stores[0]); s++)
        for (uint32_t best = 0; best < 2; best++)
            for (size_t i = 0; i < sizeof(flows) / sizeof(flows[0]); i++) {
                t3_arg a = {.fn = flows[i].fn,
                            .s = {.heads = 4,
                                  .kv_heads = 2,
                                  .dk = 64,
                                  .dv = 64,
                                  .act = F32,
                                  .k_format = stores[s].k,
                                  .v_format = stores[s].v,
                                  .best = best}};
                snprintf(name, sizeof(name), "t3.%s.%s.%s", stores[s].name, best ? "best" : "least", flows[i].name);
                cts_case_run(r, 3, name, t3_case, 1, &a);
            }
    for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++) {
        t3_arg a = {.fn = variants[i].fn, .s = variants[i].s};
        snprintf(name, sizeof(name), "t3.attn.%s", variants[i].name);
        cts_case_run(r, 3, name, t3_case, 1, &a);
    }
}
