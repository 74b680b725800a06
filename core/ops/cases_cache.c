/* Cases of the ops on positions, the paged cache and attention, and of sampling. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "ops/cases_make.h"
#include "quant/quant.h"

#define F32  INFER_FMT_F32
#define F16  INFER_FMT_F16
#define BF16 INFER_FMT_BF16
#define F8   INFER_FMT_F8_E4M3
#define Q8   INFER_FMT_Q8_0
#define Q4   INFER_FMT_Q4_0

static const infer_case_tol exact = {0, 0, 0, "moves values only"};

static const char *name(infer_format f)
{
    const infer_format_info *i = infer_format_get(f);
    return i ? i->name : "none";
}

/* ---- Rotation --------------------------------------------------------------------------------------------- */

#define CASE_PAIRS   (CASE_LAST << 0)
#define CASE_PARTIAL (CASE_LAST << 1) /* only half of a head rotates */
#define CASE_FAR     (CASE_LAST << 2) /* positions up to 100000 */

static infer_attrs_rope rope_attrs(const case_par *p)
{
    uint32_t dims = (uint32_t)(p->flags & CASE_PARTIAL ? p->d / 4 * 2 : p->d);
    infer_attrs_rope a = {.struct_size = sizeof a,
                          .kind = p->flags & CASE_PAIRS ? INFER_ROPE_PAIRS : INFER_ROPE_HALVES,
                          .n_dims = dims,
                          .magnitude = p->mode > 1 ? 1.25f : 0,
                          .n_pos = p->mode ? p->mode : 1};
    for (uint32_t i = 0; i < a.n_pos; i++) /* as even as it goes, the rest to the last */
        a.section[i] = i + 1 < a.n_pos ? dims / 2 / a.n_pos : dims / 2 - (a.n_pos - 1) * (dims / 2 / a.n_pos);
    return a;
}

/* Operands pos and inv_freq. */
static void rope_operands(case_maker *m, const case_par *p, const infer_attrs_rope *a)
{
    int32_t most = p->flags & CASE_FAR ? 100000 : 4000;
    uint32_t pos = infer_case_in(m, INFER_FMT_I32, 0, 2, p->n, a->n_pos, 1, 1);
    uint32_t freq = infer_case_in(m, F32, 0, 1, a->n_dims / 2, 1, 1, 1);
    if (m->status != INFER_OK)
        return;
    for (int64_t i = 0; i < p->n * a->n_pos; i++)
        infer_case_i32(m, pos)[i] = infer_case_int(m, 0, most);
    float *f = (float *)(void *)m->c->data[freq];
    for (uint32_t i = 0; i < a->n_dims / 2; i++)
        f[i] = (float)pow(10000, -2.0 * i / a->n_dims);
    infer_case_label(m, " n%" PRId64 " h%" PRId64 " d%" PRId64 "/%u %s %s positions %u to %d", p->n, p->h, p->d,
                     a->n_dims, a->kind == INFER_ROPE_PAIRS ? "pairs" : "halves", name(p->f0), a->n_pos, most);
}

/* An angle of the first pair is the position itself. */
static void tol_rope(case_maker *m, const case_par *p)
{
    infer_case_tol_set(m, p->flags & CASE_FAR ? 0.012 : 5e-4,
                       "an angle as float is off by up to 2^-24 of the position; twice that");
}

static void gen_rope(case_maker *m, const case_par *p)
{
    infer_attrs_rope a = rope_attrs(p);
    uint32_t pad = p->flags & CASE_PAD ? 7 : 0;
    infer_case_fill(m, infer_case_in(m, p->f0, pad, 3, p->n, p->h, p->d, 1), 1);
    rope_operands(m, p, &a);
    infer_case_out(m, p->f0, pad, 3, p->n, p->h, p->d, 1);
    infer_case_attrs(m, &a, sizeof a);
    tol_rope(m, p);
}

static const case_par rope_list[] = {
    {.n = 1, .h = 1, .d = 2, .f0 = F32},
    {.n = 7, .h = 3, .d = 64, .f0 = F32, .flags = CASE_DYN | CASE_PAD},
    {.n = 7, .h = 3, .d = 64, .f0 = F32, .flags = CASE_PAIRS},
    {.n = 3, .h = 7, .d = 100, .f0 = F32, .flags = CASE_PARTIAL},
    {.n = 17, .h = 1, .d = 34, .f0 = F32, .flags = CASE_PAIRS | CASE_PARTIAL | CASE_DYN},
    {.n = 3, .h = 3, .d = 128, .f0 = F32, .flags = CASE_FAR},
    {.n = 3, .h = 3, .d = 128, .f0 = F32, .mode = 3},
    {.n = 3, .h = 2, .d = 64, .f0 = F32, .mode = 4, .flags = CASE_PAIRS},
    {.n = 3, .h = 3, .d = 64, .f0 = F16},
    {.n = 3, .h = 3, .d = 64, .f0 = BF16, .flags = CASE_DYN},
};

/* ---- Cache ------------------------------------------------------------------------------------------------ */

enum { N_BLOCKS = 9 };

/* A pool of random content as input, or as output that keeps it. */
static uint32_t pool(case_maker *m, int output, infer_format f, int64_t blocks, int64_t heads, int64_t size,
                     int64_t width)
{
    uint32_t i = output ? infer_case_out(m, f, 0, 4, blocks, heads, size, width)
                        : infer_case_in(m, f, 0, 4, blocks, heads, size, width);
    infer_case_fill(m, i, 1);
    return i;
}

static infer_attrs_kv kv_attrs(const case_par *p, int64_t blocks)
{
    return (infer_attrs_kv){.struct_size = sizeof(infer_attrs_kv),
                            .k_format = p->f1,
                            .v_format = p->f2,
                            .n_kv_heads = (uint32_t)p->g,
                            .k_width = (uint32_t)p->d,
                            .v_width = (uint32_t)p->e,
                            .block_size = (uint32_t)p->k,
                            .n_blocks = (uint64_t)blocks};
}

/* n different slots of the pool; CASE_EDGE: some negative or past its end. */
static void slots(case_maker *m, const case_par *p)
{
    int32_t all[1024], n_slots = (int32_t)(N_BLOCKS * p->k);
    uint32_t i = infer_case_in(m, INFER_FMT_I32, 0, 1, p->n, 1, 1, 1);
    for (int32_t j = 0; j < n_slots; j++)
        all[j] = j;
    infer_case_shuffle(m, all, n_slots);
    if (m->status != INFER_OK)
        return;
    memcpy(infer_case_i32(m, i), all, (size_t)p->n * sizeof all[0]);
    if (p->flags & CASE_EDGE) {
        infer_case_i32(m, i)[0] = -1;
        infer_case_i32(m, i)[p->n - 1] = n_slots;
    }
}

/* A value stored in a coarse format may fall to either side of a tie: one step of the coarser of both planes. */
static void tol_store(case_maker *m, const case_par *p, double base)
{
    double step = 0;
    const infer_format formats[] = {p->f1, p->f2};
    for (int i = 0; i < 2; i++) {
        infer_format f = formats[i];
        double s = f == F16 ? 0x1p-10 : f == BF16 ? 0x1p-7 : f == F8 ? 0x1p-3 : f == Q8 ? 0.04 : f == Q4 ? 0.6 : 0;
        step = fmax(step, s);
    }
    m->c->tol =
        (infer_case_tol){base + step, base + step, base + step / 10, "one step of the cache's format, for few values"};
    m->c->tol_i8 = m->c->tol;
}

static void label_kv(case_maker *m, const case_par *p)
{
    infer_case_label(m, " n%" PRId64 " kv heads %" PRId64 " widths %" PRId64 " %" PRId64 " block %" PRId64 " %s %s",
                     p->n, p->g, p->d, p->e, p->k, name(p->f1), name(p->f2));
}

/* k, v of f0 into pools of f1, f2 */
static void gen_kv_write(case_maker *m, const case_par *p)
{
    infer_attrs_kv kv = kv_attrs(p, N_BLOCKS);
    infer_attrs_rope_kv both = {.struct_size = sizeof both, .rope = rope_attrs(p), .kv = kv};
    int turn = m->c->desc.op == INFER_OP_ROPE_KV_WRITE;
    uint32_t pad = p->flags & CASE_PAD ? 3 : 0;
    infer_case_fill(m, infer_case_in(m, p->f0, pad, 3, p->n, p->g, p->d, 1), 1);
    infer_case_fill(m, infer_case_in(m, p->f0, pad, 3, p->n, p->g, p->e, 1), 1);
    if (turn)
        rope_operands(m, p, &both.rope);
    slots(m, p);
    pool(m, 1, p->f1, N_BLOCKS, p->g, p->k, p->d);
    pool(m, 1, p->f2, N_BLOCKS, p->g, p->k, p->e);
    if (turn)
        infer_case_attrs(m, &both, sizeof both);
    else
        infer_case_attrs(m, &kv, sizeof kv);
    label_kv(m, p);
    tol_store(m, p, turn ? 5e-4 : 0);
    if (!turn && p->f1 == p->f0 && p->f2 == p->f0)
        m->c->tol = m->c->tol_i8 = exact;
}

static const case_par kv_write_list[] = {
    {.n = 1, .g = 1, .d = 2, .e = 2, .k = 1, .f0 = F32, .f1 = F32, .f2 = F32},
    {.n = 7, .g = 3, .d = 32, .e = 32, .k = 16, .f0 = F32, .f1 = F32, .f2 = F32, .flags = CASE_EDGE | CASE_PAD},
    {.n = 17, .g = 1, .d = 64, .e = 32, .k = 16, .f0 = F32, .f1 = F16, .f2 = F16, .flags = CASE_DYN},
    {.n = 7, .g = 2, .d = 64, .e = 64, .k = 32, .f0 = F32, .f1 = BF16, .f2 = BF16, .flags = CASE_EDGE},
    {.n = 7, .g = 2, .d = 64, .e = 64, .k = 16, .f0 = F32, .f1 = Q8, .f2 = Q8, .flags = CASE_DYN},
    {.n = 7, .g = 2, .d = 64, .e = 64, .k = 16, .f0 = F32, .f1 = Q8, .f2 = Q4},
    {.n = 7, .g = 2, .d = 64, .e = 64, .k = 16, .f0 = F16, .f1 = F8, .f2 = F8},
    {.n = 3, .g = 3, .d = 34, .e = 34, .k = 16, .f0 = F16, .f1 = F16, .f2 = F16},
};

/* f1: the plane's format; mode 1: a V plane */
static infer_attrs_kv plane_attrs(const case_par *p)
{
    infer_attrs_kv a = kv_attrs(p, N_BLOCKS);
    a.v_format = p->mode ? p->f1 : INFER_FMT_NONE;
    a.v_width = p->mode ? a.k_width : 0;
    a.k_format = p->mode ? INFER_FMT_NONE : p->f1;
    a.k_width = p->mode ? 0 : a.k_width;
    return a;
}

static void gen_kv_plane(case_maker *m, const case_par *p)
{
    infer_attrs_kv a = plane_attrs(p);
    infer_op_id op = m->c->desc.op;
    int32_t all[N_BLOCKS];
    for (int32_t i = 0; i < N_BLOCKS; i++)
        all[i] = i;
    infer_case_shuffle(m, all, N_BLOCKS);
    pool(m, 0, p->f1, op == INFER_OP_KV_UNPACK ? p->n : N_BLOCKS, p->g, p->k, p->d);
    if (op == INFER_OP_KV_MOVE) {
        slots(m, p);
        slots(m, p);
        infer_case_out_same(m, 0);
    } else {
        uint32_t i = infer_case_in(m, INFER_FMT_I32, 0, 1, p->n, 1, 1, 1);
        if (m->status == INFER_OK) {
            memcpy(infer_case_i32(m, i), all, (size_t)p->n * sizeof all[0]);
            if (p->flags & CASE_EDGE)
                infer_case_i32(m, i)[0] = N_BLOCKS;
        }
        if (op == INFER_OP_KV_PACK)
            infer_case_out(m, p->f1, 0, 4, p->n, p->g, p->k, p->d);
        else
            pool(m, 1, p->f1, N_BLOCKS, p->g, p->k, p->d);
    }
    infer_case_attrs(m, &a, sizeof a);
    label_kv(m, p);
    m->c->tol = m->c->tol_i8 = exact;
}

static const case_par kv_plane_list[] = {
    {.n = 1, .g = 1, .d = 2, .k = 1, .f1 = F32},
    {.n = 7, .g = 3, .d = 33, .k = 16, .f1 = F32, .flags = CASE_EDGE},
    {.n = 7, .g = 2, .d = 64, .k = 16, .f1 = F16, .mode = 1, .flags = CASE_DYN},
    {.n = 3, .g = 2, .d = 64, .k = 32, .f1 = Q8},
    {.n = 5, .g = 1, .d = 64, .k = 16, .f1 = Q4, .mode = 1, .flags = CASE_EDGE},
    {.n = 5, .g = 1, .d = 100, .k = 16, .f1 = F8},
};

/* ---- Attention -------------------------------------------------------------------------------------------- */

#define CASE_SINKS  (CASE_LAST << 0)
#define CASE_CAP    (CASE_LAST << 1)
#define CASE_WINDOW (CASE_LAST << 2)
#define CASE_FULL   (CASE_LAST << 3)
#define CASE_TREE   (CASE_LAST << 4)
#define CASE_COUNT  (CASE_LAST << 5) /* the rows of the sequences are the count; without it rows of nobody follow */

enum { MAX_SEQS = 5, TABLE = 6 };

/* Rows and length of each sequence; those past n are padding. */
static const struct {
    int64_t n, rows[MAX_SEQS], len[MAX_SEQS];
} batches[] = {
    {1, {1}, {1}},
    {1, {1}, {65}},
    {3, {1, 1, 1}, {5, 33, 17}},
    {1, {17}, {17}},
    {4, {1, 7, 3, 1}, {33, 7, 20, 1}},
    {2, {1, 1}, {0, 7}},
    {2, {7, 4}, {40, 4}},
    {2, {5, 2}, {2050, 9}}, /* a device may cut keys by the sequence's length, */
    {2, {70, 1}, {300, 9}}, /* or by the number of rows */
};

static int64_t blocks_of(int64_t len, int64_t size)
{
    return (len + size - 1) / size;
}

/* Operands block_table, kv_len, q_start. The blocks of a sequence are scattered; table entries that no key needs are
 * out of range. Returns in used[b] how many tokens of pool block b may be seen. */
static void sequences(case_maker *m, const case_par *p, int64_t n_blocks, int64_t *used)
{
    int32_t order[MAX_SEQS * TABLE * 4];
    int64_t next = 0, start = 0, width = 1;
    for (int i = 0; i < MAX_SEQS; i++)
        width = blocks_of(batches[p->mode].len[i], p->k) > width ? blocks_of(batches[p->mode].len[i], p->k) : width;
    uint32_t table = infer_case_in(m, INFER_FMT_I32, 0, 2, MAX_SEQS, width + 1, 1, 1);
    uint32_t kv_len = infer_case_in(m, INFER_FMT_I32, 0, 1, MAX_SEQS, 1, 1, 1);
    uint32_t q_start = infer_case_in(m, INFER_FMT_I32, 0, 1, MAX_SEQS + 1, 1, 1, 1);
    if (m->status != INFER_OK)
        return;
    for (int32_t i = 0; i < (int32_t)n_blocks; i++)
        order[i] = i;
    infer_case_shuffle(m, order, n_blocks);
    for (int64_t s = 0; s < MAX_SEQS; s++) {
        int64_t len = batches[p->mode].len[s];
        int32_t *row = infer_case_i32(m, table) + s * (width + 1);
        infer_case_i32(m, kv_len)[s] = (int32_t)len;
        infer_case_i32(m, q_start)[s] = (int32_t)start;
        start += batches[p->mode].rows[s];
        for (int64_t b = 0; b <= width; b++) {
            row[b] = -1 - (int32_t)b;
            if (b >= blocks_of(len, p->k))
                continue;
            row[b] = order[next++];
            used[row[b]] = len - b * p->k < p->k ? len - b * p->k : p->k;
        }
        if (p->flags & CASE_EDGE && blocks_of(len, p->k) > 1) { /* a hole: its keys are not seen */
            used[row[0]] = 0;
            row[0] = s % 2 ? -7 : (int32_t)n_blocks;
        }
    }
    infer_case_i32(m, q_start)[MAX_SEQS] = (int32_t)start;
    m->c->counts[INFER_COUNT_SEQS] = (int32_t)batches[p->mode].n;
    m->c->counts[INFER_COUNT_TOKENS] = (int32_t)start;
}

/* Fills with NaN what no row may see. */
static void poison(case_maker *m, uint32_t i, const int64_t *used)
{
    const infer_tensor_desc *t = &m->c->tensors[i];
    uint64_t bytes = m->c->bytes[i] / (uint64_t)(t->shape[0] * t->shape[1] * t->shape[2]);
    for (int64_t b = 0; b < t->shape[0]; b++)
        for (int64_t h = 0; h < t->shape[1]; h++)
            for (int64_t o = used[b]; o < t->shape[2]; o++) /* all bits set: NaN, or a block whose scale is */
                memset(m->c->data[i] + (uint64_t)((b * t->shape[1] + h) * t->shape[2] + o) * bytes, 0xFF, bytes);
}

static infer_attrs_attn attn_attrs(const case_par *p, int64_t n_blocks)
{
    uint32_t mask = p->flags & CASE_WINDOW ? INFER_MASK_WINDOW
                    : p->flags & CASE_FULL ? INFER_MASK_FULL
                    : p->flags & CASE_TREE ? INFER_MASK_TREE
                                           : INFER_MASK_CAUSAL;
    return (infer_attrs_attn){.struct_size = sizeof(infer_attrs_attn),
                              .mask = mask,
                              .window = mask == INFER_MASK_WINDOW ? 5 : 0,
                              .scale = 1.5f / sqrtf((float)p->d),
                              .soft_cap = p->flags & CASE_CAP ? 2 : 0,
                              .n_heads = (uint32_t)p->h,
                              .kv = kv_attrs(p, n_blocks)};
}

static void tol_attn(case_maker *m, const case_par *p)
{
    int plain = p->f1 == F32 && (p->f2 == F32 || !p->f2) && p->f0 == F32;
    int bf16 = p->f1 == BF16 || p->f2 == BF16 || p->f0 == BF16;
    double base = plain ? 1e-5 : bf16 ? 4e-3 : 1e-3;
    infer_case_tol_set(m, base,
                       plain ? "scores, exponentials and sums in float"
                             : "queries and probabilities rounded to the 16 bits of the cache's values");
    m->c->tol.abs = m->c->tol_i8.abs = 5 * base;
}

/* q [n][h][d] of f0 over pools of f1, f2 with g heads, widths d and e, block k; mode: the batch */
static void gen_attn(case_maker *m, const case_par *p)
{
    int mla = m->c->desc.op == INFER_OP_MLA_PAGED;
    int64_t rows = 0, n_blocks = 2, used[MAX_SEQS * TABLE * 4] = {0};
    for (int i = 0; i < MAX_SEQS; i++) {
        rows += batches[p->mode].rows[i];
        n_blocks += blocks_of(batches[p->mode].len[i], p->k);
    }
    int64_t n = rows + (p->flags & CASE_COUNT ? 5 : 2);
    infer_attrs_attn a = attn_attrs(p, n_blocks);
    infer_case_fill(m, infer_case_in(m, p->f0, p->flags & CASE_PAD ? 8 : 0, 3, n, p->h, p->d, 1), 1);
    uint32_t kpool = pool(m, 0, p->f1, n_blocks, p->g, p->k, p->d);
    uint32_t vpool = mla ? kpool : pool(m, 0, p->f2, n_blocks, p->g, p->k, p->e);
    sequences(m, p, n_blocks, used);
    if (p->flags & CASE_POISON && m->status == INFER_OK) {
        poison(m, kpool, used);
        poison(m, vpool, used);
    }
    if (p->flags & CASE_SINKS)
        infer_case_fill(m, infer_case_in(m, F32, 0, 1, p->h, 1, 1, 1), 1);
    else if (!mla)
        infer_case_absent(m, 0);
    if (p->flags & CASE_TREE) {
        uint32_t tree = infer_case_in(m, INFER_FMT_U32, 0, 2, n, 1, 1, 1);
        for (int64_t i = 0; m->status == INFER_OK && i < n; i++) /* what is no row of the sequence is set too */
            ((uint32_t *)(void *)m->c->data[tree])[i] = (uint32_t)infer_case_random(m);
    } else {
        infer_case_absent(m, 0);
    }
    infer_case_out(m, p->f0, 0, 3, n, p->h, p->e, 1);
    if (p->flags & CASE_COUNT)
        m->c->desc.rows_from = INFER_COUNT_TOKENS;
    if (rows == batches[p->mode].n && p->mode != 0)
        a.kind = INFER_ATTN_DECODE;
    infer_case_attrs(m, &a, sizeof a);
    infer_case_label(m, " batch %u h%" PRId64 "/%" PRId64 " widths %" PRId64 " %" PRId64 " block %" PRId64 " %s %s %s",
                     p->mode, p->h, p->g, p->d, p->e, p->k, name(p->f0), name(p->f1), name(p->f2));
    infer_case_label(m, " mask %u%s%s%s%s", a.mask, p->flags & CASE_SINKS ? " sinks" : "",
                     p->flags & CASE_CAP ? " cap" : "", p->flags & CASE_POISON ? " poisoned" : "",
                     p->flags & CASE_EDGE ? " holes" : "");
    tol_attn(m, p);
}

static const case_par attn_list[] = {
    {.mode = 0, .h = 1, .g = 1, .d = 2, .e = 2, .k = 1, .f0 = F32, .f1 = F32, .f2 = F32},
    {.mode = 1, .h = 9, .g = 3, .d = 64, .e = 64, .k = 16, .f0 = F32, .f1 = F32, .f2 = F32, .flags = CASE_POISON},
    {.mode = 2, .h = 4, .g = 2, .d = 64, .e = 64, .k = 16, .f0 = F32, .f1 = F32, .f2 = F32, .flags = CASE_COUNT},
    {.mode = 3, .h = 3, .g = 1, .d = 33, .e = 17, .k = 16, .f0 = F32, .f1 = F32, .f2 = F32, .flags = CASE_POISON},
    {.mode = 4,
     .h = 4,
     .g = 4,
     .d = 64,
     .e = 32,
     .k = 16,
     .f0 = F32,
     .f1 = F32,
     .f2 = F32,
     .flags = CASE_COUNT | CASE_POISON | CASE_PAD},
    {.mode = 5, .h = 2, .g = 1, .d = 32, .e = 32, .k = 16, .f0 = F32, .f1 = F32, .f2 = F32},
    {.mode = 4, .h = 6, .g = 2, .d = 64, .e = 64, .k = 32, .f0 = F32, .f1 = F32, .f2 = F32, .flags = CASE_WINDOW},
    {.mode = 4, .h = 6, .g = 2, .d = 64, .e = 64, .k = 16, .f0 = F32, .f1 = F32, .f2 = F32, .flags = CASE_FULL},
    {.mode = 6,
     .h = 4,
     .g = 2,
     .d = 64,
     .e = 64,
     .k = 16,
     .f0 = F32,
     .f1 = F32,
     .f2 = F32,
     .flags = CASE_TREE | CASE_COUNT},
    {.mode = 4, .h = 4, .g = 2, .d = 64, .e = 64, .k = 16, .f0 = F32, .f1 = F32, .f2 = F32, .flags = CASE_SINKS},
    {.mode = 4,
     .h = 4,
     .g = 2,
     .d = 64,
     .e = 64,
     .k = 16,
     .f0 = F32,
     .f1 = F32,
     .f2 = F32,
     .flags = CASE_CAP | CASE_WINDOW | CASE_SINKS | CASE_COUNT},
    {.mode = 4,
     .h = 4,
     .g = 2,
     .d = 64,
     .e = 64,
     .k = 16,
     .f0 = F32,
     .f1 = F32,
     .f2 = F32,
     .flags = CASE_EDGE | CASE_POISON},
    {.mode = 4,
     .h = 9,
     .g = 3,
     .d = 64,
     .e = 64,
     .k = 16,
     .f0 = F32,
     .f1 = F16,
     .f2 = F16,
     .flags = CASE_COUNT | CASE_POISON},
    {.mode = 1, .h = 8, .g = 1, .d = 128, .e = 128, .k = 16, .f0 = F16, .f1 = F16, .f2 = F16},
    {.mode = 7, .h = 2, .g = 1, .d = 64, .e = 64, .k = 128, .f0 = F32, .f1 = F16, .f2 = F16, .flags = CASE_COUNT},
    {.mode = 8, .h = 2, .g = 1, .d = 64, .e = 64, .k = 16, .f0 = F32, .f1 = F16, .f2 = F16, .flags = CASE_COUNT},
    {.mode = 4, .h = 4, .g = 2, .d = 64, .e = 64, .k = 16, .f0 = BF16, .f1 = BF16, .f2 = BF16},
    {.mode = 2, .h = 4, .g = 2, .d = 64, .e = 64, .k = 16, .f0 = F32, .f1 = F8, .f2 = F8, .flags = CASE_POISON},
    {.mode = 4, .h = 4, .g = 2, .d = 64, .e = 64, .k = 16, .f0 = F32, .f1 = Q8, .f2 = Q8, .flags = CASE_POISON},
    {.mode = 2, .h = 4, .g = 2, .d = 64, .e = 64, .k = 16, .f0 = F32, .f1 = Q8, .f2 = Q4, .flags = CASE_COUNT},
};

static const case_par mla_list[] = {
    {.mode = 0, .h = 1, .g = 1, .d = 8, .e = 6, .k = 1, .f0 = F32, .f1 = F32},
    {.mode = 4, .h = 4, .g = 1, .d = 72, .e = 64, .k = 16, .f0 = F32, .f1 = F32, .flags = CASE_COUNT | CASE_POISON},
    {.mode = 6, .h = 3, .g = 1, .d = 72, .e = 64, .k = 16, .f0 = F32, .f1 = F32, .flags = CASE_TREE},
    {.mode = 2, .h = 4, .g = 1, .d = 96, .e = 64, .k = 16, .f0 = F32, .f1 = F16, .flags = CASE_COUNT},
    {.mode = 4, .h = 4, .g = 1, .d = 96, .e = 64, .k = 16, .f0 = F32, .f1 = Q8},
    {.mode = 4, .h = 4, .g = 1, .d = 64, .e = 48, .k = 16, .f0 = F32, .f1 = Q8}, /* values end inside a block */
    {.mode = 4, .h = 4, .g = 1, .d = 64, .e = 44, .k = 16, .f0 = F32, .f1 = Q8}, /* and inside eight elements */
    {.mode = 4, .h = 4, .g = 1, .d = 72, .e = 64, .k = 16, .f0 = F32, .f1 = F32, .flags = CASE_CAP},
    {.mode = 4, .h = 4, .g = 1, .d = 72, .e = 64, .k = 16, .f0 = F32, .f1 = F32, .flags = CASE_WINDOW},
};

/* q [n], keys [k] of f1 */
static void gen_attn_dense(case_maker *m, const case_par *p)
{
    infer_attrs_attn a = attn_attrs(p, 1);
    infer_case_fill(m, infer_case_in(m, p->f0, p->flags & CASE_PAD ? 8 : 0, 3, p->n, p->h, p->d, 1), 1);
    infer_case_fill(m, infer_case_in(m, p->f1, 0, 3, p->k, p->g, p->d, 1), 1);
    infer_case_fill(m, infer_case_in(m, p->f2, 0, 3, p->k, p->g, p->e, 1), 1);
    infer_case_out(m, p->f0, 0, 3, p->n, p->h, p->e, 1);
    infer_case_attrs(m, &a, sizeof a);
    infer_case_label(m,
                     " n%" PRId64 " m%" PRId64 " h%" PRId64 "/%" PRId64 " widths %" PRId64 " %" PRId64 " %s %s mask %u",
                     p->n, p->k, p->h, p->g, p->d, p->e, name(p->f0), name(p->f1), a.mask);
    tol_attn(m, p);
}

static const case_par attn_dense_list[] = {
    {.n = 1, .k = 1, .h = 1, .g = 1, .d = 2, .e = 2, .f0 = F32, .f1 = F32, .f2 = F32},
    {.n = 7, .k = 33, .h = 9, .g = 3, .d = 64, .e = 64, .f0 = F32, .f1 = F32, .f2 = F32, .flags = CASE_DYN},
    {.n = 17, .k = 17, .h = 3, .g = 1, .d = 33, .e = 17, .f0 = F32, .f1 = F32, .f2 = F32, .flags = CASE_PAD},
    {.n = 7, .k = 3, .h = 2, .g = 2, .d = 32, .e = 32, .f0 = F32, .f1 = F32, .f2 = F32},
    {.n = 17, .k = 33, .h = 4, .g = 2, .d = 64, .e = 64, .f0 = F32, .f1 = F32, .f2 = F32, .flags = CASE_WINDOW},
    {.n = 17,
     .k = 33,
     .h = 4,
     .g = 2,
     .d = 64,
     .e = 64,
     .f0 = F32,
     .f1 = F32,
     .f2 = F32,
     .flags = CASE_FULL | CASE_CAP},
    {.n = 7, .k = 17, .h = 4, .g = 2, .d = 64, .e = 64, .f0 = F16, .f1 = F16, .f2 = F16},
};

/* ---- Sampling --------------------------------------------------------------------------------------------- */

#define CASE_COUNTS (CASE_LAST << 0)
#define CASE_BIAS   (CASE_LAST << 1)
#define CASE_MASK   (CASE_LAST << 2)
#define CASE_GRID   (CASE_LAST << 3) /* logits on a coarse grid: ties */
#define CASE_NO_TOP (CASE_LAST << 4) /* some rows do not ask for the best ones */

/* Row i's parameters; mode 0: all greedy, 1: every kind in turn. */
static infer_sample_row sample_row(case_maker *m, const case_par *p, int64_t i)
{
    infer_sample_row r = {.top_p = 1, .repetition_penalty = 1, .counts_row = -1};
    r.seed = infer_case_random(m);
    r.position = (uint64_t)infer_case_int(m, 0, 5000);
    if (p->mode)
        r.temperature = i % 5 == 4 ? 0 : 0.5f + 0.5f * (float)(i % 3);
    if (p->mode && i % 5 == 1)
        r.top_k = 1 + (int32_t)(i * 7 % 40);
    if (p->mode && i % 5 >= 2)
        r.top_p = i % 2 ? 0.9f : 0.4f;
    if (p->mode && i % 5 == 3)
        r.min_p = 0.05f;
    if (p->flags & CASE_COUNTS && i % 3 != 2) {
        r.counts_row = (int32_t)(p->n - i); /* the first is past the table's end: none */
        r.repetition_penalty = i % 2 ? 1.3f : 1;
        r.presence_penalty = 0.25f;
        r.frequency_penalty = i % 2 ? 0 : 0.5f;
    }
    if (p->flags & CASE_BIAS) {
        r.bias_first = (uint32_t)i;
        r.bias_count = (uint32_t)(i % 4);
    }
    if (p->flags & CASE_MASK && i % 2 == 0)
        r.flags = INFER_SAMPLE_MASKED;
    if (p->flags & CASE_NO_TOP && i % 3 == 1)
        r.flags |= INFER_SAMPLE_NO_TOP;
    return r;
}

/* The ids that the reference chooses with every threshold of the case multiplied by f; the case stays as it is. */
static infer_status choices(const infer_op_case *c, int64_t n, float f, int32_t *ids)
{
    infer_op_case changed = *c;
    void *result[INFER_OP_MAX_OPERANDS] = {0};
    infer_sample_row *row = infer_malloc(c->bytes[1]);
    if (!row)
        return INFER_E_NO_MEMORY;
    memcpy(row, c->data[1], c->bytes[1]);
    for (int64_t i = 0; i < n; i++) {
        row[i].temperature *= f;
        row[i].top_p = row[i].top_p < 1 ? row[i].top_p * f : row[i].top_p;
        row[i].min_p *= f;
    }
    changed.data[1] = (uint8_t *)row;
    infer_status st = infer_op_case_expect(&changed, result);
    if (st == INFER_OK)
        memcpy(ids, result[c->desc.n_in], (size_t)n * sizeof *ids);
    for (uint32_t i = 0; i < INFER_OP_MAX_OPERANDS; i++)
        infer_free(result[i]);
    infer_free(row);
    return st;
}

/* Moves the positions of drawing rows until no row's choice hangs on a figure's last digits: slightly other
 * temperatures and thresholds must choose the same. */
static infer_status settle(infer_op_case *c, int64_t n)
{
    infer_sample_row *row = (infer_sample_row *)(void *)c->data[1];
    int32_t ids[3][64];
    for (int attempt = 0, moved = 1; attempt < 100 && moved; attempt++) {
        INFER_TRY(choices(c, n, 1, ids[0]));
        INFER_TRY(choices(c, n, 1.0005f, ids[1]));
        INFER_TRY(choices(c, n, 0.9995f, ids[2]));
        moved = 0;
        for (int64_t i = 0; i < n; i++)
            if (ids[0][i] != ids[1][i] || ids[0][i] != ids[2][i]) {
                row[i].position++;
                moved = 1;
            }
    }
    return INFER_OK;
}

/* logits [n][k] of f0, d: n_top; CASE_EDGE: NaN, infinities, a row with nothing to choose */
static void gen_sample(case_maker *m, const case_par *p)
{
    infer_attrs_sample a = {.struct_size = sizeof a, .n_top = (uint32_t)p->d};
    uint32_t x = infer_case_in(m, p->f0, 0, 2, p->n, p->k, 1, 1);
    infer_case_fill(m, x, 3);
    if (m->status != INFER_OK)
        return;
    float *v = (float *)(void *)m->c->data[x];
    for (int64_t i = 0; i < p->n * p->k && p->flags & CASE_GRID; i++)
        v[i] = roundf(v[i] * 2) / 2;
    if (p->flags & CASE_EDGE) {
        v[0] = v[p->k / 2] = NAN;
        v[p->k] = -INFINITY;
        for (int64_t j = 0; j < p->k && p->n > 2; j++)
            v[2 * p->k + j] = j % 2 ? NAN : -INFINITY;
    }
    uint32_t params = infer_case_in(m, INFER_FMT_U8, 0, 2, p->n, sizeof(infer_sample_row), 1, 1);
    for (int64_t i = 0; i < p->n && m->status == INFER_OK; i++)
        ((infer_sample_row *)(void *)m->c->data[params])[i] = sample_row(m, p, i);
    if (p->flags & CASE_COUNTS) {
        uint32_t counts = infer_case_in(m, INFER_FMT_U16, 0, 2, p->n, p->k, 1, 1);
        for (int64_t i = 0; i < p->n * p->k && m->status == INFER_OK; i++) {
            uint32_t r = (uint32_t)infer_case_random(m);
            ((uint16_t *)(void *)m->c->data[counts])[i] =
                (uint16_t)((r & 7 ? 0 : 0x8000u) | (r & 0x38 ? 0 : 1 + (r >> 6) % 3));
        }
    } else {
        infer_case_absent(m, 0);
    }
    if (p->flags & CASE_BIAS) {
        uint32_t bias = infer_case_in(m, INFER_FMT_U8, 0, 2, p->n, sizeof(infer_sample_bias), 1, 1);
        for (int64_t i = 0; i < p->n && m->status == INFER_OK; i++) {
            infer_sample_bias b = {infer_case_int(m, -1, (int32_t)p->k), i % 3 == 2 ? -INFINITY : 4.5f};
            ((infer_sample_bias *)(void *)m->c->data[bias])[i] = b;
        }
    } else {
        infer_case_absent(m, 0);
    }
    if (p->flags & CASE_MASK) {
        uint32_t mask = infer_case_in(m, INFER_FMT_U32, 0, 2, p->n, (p->k + 31) / 32, 1, 1);
        for (uint64_t i = 0; m->status == INFER_OK && i < m->c->bytes[mask] / 4; i++)
            ((uint32_t *)(void *)m->c->data[mask])[i] = (uint32_t)infer_case_random(m);
    } else {
        infer_case_absent(m, 0);
    }
    infer_case_out(m, INFER_FMT_I32, 0, 1, p->n, 1, 1, 1);
    infer_case_out(m, F32, 0, 1, p->n, 1, 1, 1);
    if (p->d) {
        infer_case_out(m, INFER_FMT_I32, 0, 2, p->n, p->d, 1, 1);
        infer_case_out(m, F32, 0, 2, p->n, p->d, 1, 1);
    }
    infer_case_attrs(m, &a, sizeof a);
    infer_case_label(m, " n%" PRId64 " v%" PRId64 " top %" PRId64 " %s%s%s%s%s%s%s%s", p->n, p->k, p->d, name(p->f0),
                     p->mode ? " drawing" : " greedy", p->flags & CASE_COUNTS ? " counts" : "",
                     p->flags & CASE_BIAS ? " bias" : "", p->flags & CASE_MASK ? " mask" : "",
                     p->flags & CASE_GRID ? " ties" : "", p->flags & CASE_EDGE ? " NaN" : "",
                     p->flags & CASE_NO_TOP ? " some without" : "");
    m->c->tol = m->c->tol_i8 = (infer_case_tol){1e-5, 2e-5, 1e-5, "a logarithm of a sum of exponentials in float"};
    if (m->status == INFER_OK && p->mode)
        m->status = settle(m->c, p->n);
}

static const case_par sample_list[] = {
    {.n = 1, .k = 1, .f0 = F32},
    {.n = 7, .k = 1000, .f0 = F32, .flags = CASE_DYN},
    {.n = 3, .k = 65, .f0 = F32, .d = 5, .flags = CASE_GRID},
    {.n = 7, .k = 100, .f0 = F32, .d = 20, .flags = CASE_COUNTS | CASE_BIAS | CASE_MASK},
    {.n = 3, .k = 33, .f0 = F32, .d = 64, .flags = CASE_EDGE},
    {.n = 17, .k = 1000, .f0 = F32, .mode = 1},
    {.n = 7, .k = 33, .f0 = F32, .mode = 1, .d = 3, .flags = CASE_GRID | CASE_DYN},
    {.n = 17, .k = 333, .f0 = F32, .mode = 1, .flags = CASE_COUNTS | CASE_BIAS | CASE_MASK | CASE_DYN},
    {.n = 7, .k = 100, .f0 = F32, .mode = 1, .flags = CASE_EDGE | CASE_COUNTS},
    {.n = 3, .k = 100, .f0 = F16, .mode = 1},
    {.n = 7, .k = 1000, .f0 = F32, .d = 20, .flags = CASE_NO_TOP},
    {.n = 7, .k = 333, .f0 = F32, .mode = 1, .d = 5, .flags = CASE_NO_TOP | CASE_MASK | CASE_DYN},
};

/* ---- The list --------------------------------------------------------------------------------------------- */

#define SET(OP, gen, list)                                                                                             \
    {                                                                                                                  \
        INFER_OP_##OP, gen, list, sizeof list / sizeof list[0], NULL, NULL                                             \
    }

const case_set infer_case_sets_cache[] = {
    SET(ROPE, gen_rope, rope_list),
    SET(KV_WRITE, gen_kv_write, kv_write_list),
    SET(ROPE_KV_WRITE, gen_kv_write, kv_write_list),
    SET(KV_PACK, gen_kv_plane, kv_plane_list),
    SET(KV_UNPACK, gen_kv_plane, kv_plane_list),
    SET(KV_MOVE, gen_kv_plane, kv_plane_list),
    SET(ATTN_PAGED, gen_attn, attn_list),
    SET(MLA_PAGED, gen_attn, mla_list),
    SET(ATTN_DENSE, gen_attn_dense, attn_dense_list),
    SET(SAMPLE, gen_sample, sample_list),
};
const uint32_t infer_case_n_sets_cache = sizeof infer_case_sets_cache / sizeof infer_case_sets_cache[0];
