/* Attention that rotates its queries and makes a step's own keys and values (few_rope_F_D_N) in emulation: the same
 * bytes as rotation, cache write and attention one after the other, in the result and in the cache, for both kinds of
 * pairs, parts of heads, several positions a row, sequences of one row and of several, over edges of blocks and turns,
 * windows, slots that are none, twice used blocks, rows of no sequence, and however work is cut. And the same numbers,
 * rounded, where the result goes out in the layout of a product.
 * SPDX-License-Identifier: Apache-2.0 */
#include "simt.h"

#include <cstdio>
#include <string>
#include <vector>

#include <infer/ops.h>

#include "../../backends/cuda/gemm.h"

namespace
{
int failures, passes;
uint32_t seed = 1;

uint32_t bits()
{
    return seed = seed * 1664525u + 1013904223u;
}

float number()
{
    return (float)(int32_t)(bits() >> 8) / 8388608.0f - 1;
}

struct problem {
    const char *what;
    int kind, dims, n_pos;
    std::vector<int> rows, len; /* of sequences */
    int cap, count;             /* rows there is room for; as the counts say, -1: no counts */
    int block, mask, window;
    float soft_cap;
    int sinks;
    int odd; /* slots: 1 some negative or past the end, 2 two sequences share their blocks, 3 rows into others' blocks
              */
};

/* Whether y in panels of `tile` rows is `want`, rounded, and nothing where that was not written. */
bool handed(const std::vector<unsigned char> &y, const std::vector<float> &want, int tile, int width)
{
    std::vector<unsigned char> all(y.size(), 0x5C);
    for (int i = 0; i < (int)want.size(); i++) {
        const int r = i / width, e = i % width, line = r % tile;
        uint32_t u;
        memcpy(&u, &want[(size_t)i], 4);
        const uint16_t h = (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
        if (want[(size_t)i] != 77.0f) /* tiles of rows, in a tile the steps of 64, in a step atoms of 8 lines */
            memcpy(&all[((size_t)(r / tile) * (size_t)(width / 64) + (size_t)(e / 64)) * 128 * (size_t)tile +
                        (size_t)(line / 8 * 1024 + line % 8 * 128 + (e % 64 / 8 ^ line % 8) * 16 + e % 8 * 2)],
                   &h, 2);
    }
    return all == y;
}

struct cut {
    int parts, split; /* spans a row at most; 0 or the length of spans as a power of two */
    int grid;
};

template <class T> std::vector<T> randoms(size_t n)
{
    std::vector<T> v(n);
    for (T &x : v)
        x = (T)number();
    return v;
}

/* What memory holds before: finite numbers of 16 bits. */
std::vector<uint16_t> cache_of(size_t n)
{
    std::vector<uint16_t> v(n);
    for (uint16_t &x : v)
        x = (uint16_t)(0x3000 + (bits() >> 20) % 0xC00 + (bits() >> 31 << 15));
    return v;
}

lp_tensor vectors(int width, int heads, int fmt)
{
    lp_tensor t = {};
    t.s1 = 4 * width;
    t.s0 = (int64_t)heads * t.s1;
    t.n1 = heads;
    t.n2 = 1;
    t.width = width;
    t.fmt = fmt;
    return t;
}

void check(const problem &q, int fmt, int d, int heads, int kv, int n, const cut &how)
{
    const int seqs = (int)q.rows.size(), blocks = 40, table_width = 400 / q.block, half = q.dims / 2;
    std::vector<int> table((size_t)seqs * table_width), start(1), pos((size_t)q.cap * q.n_pos),
        slots((size_t)q.cap, -1);
    for (int i = 0; i < seqs * table_width; i++)
        table[(size_t)i] = (i * 7 + 3) % blocks;
    if (q.odd == 2) /* the same history */
        for (int i = 0; i < q.len[0] / q.block; i++)
            table[(size_t)(table_width + i)] = table[(size_t)i];
    int row = q.odd == 3 ? 1 : 0; /* the first one is nobody's */
    start[0] = row;
    for (int s = 0; s < seqs; s++) {
        for (int r = 0; r < q.rows[(size_t)s]; r++, row++) {
            int at = q.len[(size_t)s] - q.rows[(size_t)s] + r;
            for (int i = 0; i < q.n_pos; i++)
                pos[(size_t)(row * q.n_pos + i)] = at + 1000 * i;
            slots[(size_t)row] = table[(size_t)(s * table_width + at / q.block)] * q.block + at % q.block;
            if (q.odd == 1 && r % 2 == 0)
                slots[(size_t)row] = s % 2 ? -1 - r : blocks * q.block + r;
        }
        start.push_back(row);
    }
    if (q.odd == 3) /* into what the last sequence sees of old */
        slots[0] = table[(size_t)((seqs - 1) * table_width)] * q.block + 5;
    std::vector<float> x = randoms<float>((size_t)q.cap * heads * d), k = randoms<float>((size_t)q.cap * kv * d),
                       v = randoms<float>((size_t)q.cap * kv * d), freq = randoms<float>((size_t)half + 1),
                       sinks = randoms<float>((size_t)heads), rotated(x.size());
    const std::vector<uint16_t> pool = cache_of((size_t)blocks * kv * q.block * d), pool2 = cache_of(pool.size());
    std::vector<uint16_t> kp[2] = {pool, pool}, vp[2] = {pool2, pool2};
    std::vector<float> y[2], scratch((size_t)q.cap * heads * how.parts * LP_ATTN_PART(d) + 4, NAN);
    for (auto &o : y)
        o.assign(x.size(), 77.0f);
    int counts[2] = {-5, q.count};

    lp_rows rows = {};
    rows.off = 4;
    rows.cap = q.cap;
    rows.from = q.count < 0 ? -1 : 0;
    rows.mul = 1;
    lp_tensor cache = {}, list = {};
    cache.s2 = 2 * d;
    cache.s1 = q.block * cache.s2;
    cache.s0 = kv * cache.s1;
    cache.width = d;
    cache.fmt = fmt;
    list.s0 = 4 * q.n_pos;
    list.n1 = list.n2 = 1;
    list.width = q.n_pos;
    list.fmt = INFER_FMT_I32;
    lp_rope rope = {};
    rope.x = rope.y = vectors(d, heads, INFER_FMT_F32);
    rope.pos = list;
    rope.freq.width = half;
    rope.freq.fmt = INFER_FMT_F32;
    rope.rows = rows;
    rope.heads = heads;
    rope.kind = q.kind;
    rope.dims = q.dims;
    rope.n_pos = q.n_pos;
    rope.section[0] = half / 4;
    rope.section[1] = half - half / 4;
    rope.magnitude = 1.25f;
    lp_ropes both = {};
    lp_rope &kr = both.of[0], &vr = both.of[1];
    kr = rope;
    kr.x = vectors(d, kv, INFER_FMT_F32);
    kr.y = cache;
    kr.heads = kv;
    kr.slots = list;
    kr.slots.s0 = 4;
    kr.block_size = q.block;
    kr.n_blocks = blocks;
    vr = kr;
    vr.dims = 0;
    lp_attn attn = {};
    attn.q = rope.y;
    attn.k = attn.v = cache;
    attn.y = rope.y;
    attn.table.s0 = 4 * table_width;
    attn.table.width = table_width;
    attn.rows = rows;
    attn.heads = heads;
    attn.kv_heads = kv;
    attn.block_size = q.block;
    attn.n_blocks = blocks;
    attn.n_seqs = seqs;
    attn.table_width = table_width;
    attn.mask = q.mask;
    attn.window = q.window;
    attn.scale = 0.3f;
    attn.soft_cap = q.soft_cap;
    attn.parts = how.parts;
    attn.split = how.split;
    attn.part_off = 0;
    if (q.sinks) {
        attn.sinks.width = heads;
        attn.sinks.fmt = INFER_FMT_F32;
    }
    lp_few_rope all = {attn, kr, vr.x};
    void *c = counts, *t = table.data(), *l = (void *)q.len.data(), *s0 = start.data(), *si = sinks.data();
    void *pm = pos.data(), *fm = freq.data(), *sm = slots.data();
    const std::string suffix =
        std::string(fmt == INFER_FMT_F16 ? "f16_" : "bf16_") + std::to_string(d) + "_" + std::to_string(n);

    void *m1[] = {x.data(), pm, fm, nullptr, rotated.data(), c};
    simt::start({"rope_write", m1, &rope, dim3(2, (uint32_t)q.cap), dim3(128), 0});
    void *m2[] = {k.data(), pm, fm, sm, kp[0].data(), v.data(), vp[0].data(), nullptr, nullptr, c};
    simt::start({"rope_writes", m2, &both, dim3(2, (uint32_t)q.cap, 2), dim3(128), 0});
    void *m3[] = {rotated.data(), kp[0].data(), vp[0].data(), t, l, s0, si, nullptr, y[0].data(), c, scratch.data()};
    simt::start(
        {("few_" + suffix).c_str(), m3, &attn, dim3((uint32_t)how.grid), dim3(128), (size_t)LP_FEW_SHARED(d, n, seqs)});
    std::vector<float> joined(x.size());
    both.of[2] = rope;
    std::vector<uint16_t> kj = pool, vj = pool2;
    void *m5[] = {k.data(), pm, fm, sm, kj.data(), v.data(), vj.data(), x.data(), joined.data(), c};
    simt::start({"rope_writes", m5, &both, dim3(8, (uint32_t)q.cap, 3), dim3(64), 0});
    scratch.assign(scratch.size(), NAN);
    simt::reverse = !simt::reverse;
    void *m4[] = {x.data(), kp[1].data(),   vp[1].data(), t,        l,  s0, si, y[1].data(),
                  c,        scratch.data(), k.data(),     v.data(), pm, fm, sm};
    simt::start({("few_rope_" + suffix).c_str(), m4, &all, dim3((uint32_t)how.grid), dim3(128),
                 (size_t)LP_FEW_ROPE_SHARED(d, n, seqs, q.cap)});
    /* in panels, by both */
    const int tile = how.grid % 2 ? 16 : 32;
    std::vector<unsigned char> panels[2];
    for (auto &o : panels)
        o.assign(GEMM_X_BYTES(q.cap, tile, heads * d / 64), 0x5C);
    for (lp_attn *p : {&attn, &all.attn}) {
        p->y.fmt = INFER_FMT_BF16;
        p->y.s0 = GEMM_LINE_BYTES;
        p->y.s1 = 2 * d * tile;
        p->panels = gemm_panels(tile, heads * d / 64);
    }
    scratch.assign(scratch.size(), NAN);
    m3[8] = panels[0].data();
    simt::start(
        {("few_" + suffix).c_str(), m3, &attn, dim3((uint32_t)how.grid), dim3(128), (size_t)LP_FEW_SHARED(d, n, seqs)});
    scratch.assign(scratch.size(), NAN);
    m4[7] = panels[1].data();
    simt::start({("few_rope_" + suffix).c_str(), m4, &all, dim3((uint32_t)how.grid), dim3(128),
                 (size_t)LP_FEW_ROPE_SHARED(d, n, seqs, q.cap)});
    bool wrote = memcmp(kp[0].data(), pool.data(), 2 * pool.size()) != 0;
    const char *wrong = memcmp(y[0].data(), y[1].data(), 4 * x.size())              ? "results"
                        : memcmp(kp[0].data(), kp[1].data(), 2 * pool.size())       ? "keys in the cache"
                        : memcmp(vp[0].data(), vp[1].data(), 2 * pool.size())       ? "values in the cache"
                        : memcmp(kj.data(), kp[0].data(), 2 * pool.size())          ? "keys of three at once"
                        : memcmp(vj.data(), vp[0].data(), 2 * pool.size())          ? "values of three at once"
                        : memcmp(joined.data(), rotated.data(), 4 * rotated.size()) ? "queries of three at once"
                        : !handed(panels[0], y[0], tile, heads * d)                 ? "results in panels"
                        : !handed(panels[1], y[0], tile, heads * d) ? "results in panels, with rotations"
                        : !wrote                                    ? "nothing was written"
                                                                    : nullptr;
    for (float f : y[0])
        if (std::isnan(f))
            wrong = "NaN";
    passes += !wrong;
    failures += wrong != nullptr;
    if (wrong)
        printf("FAIL %s: %s, few_rope_%s heads %d of %d, spans %d by 2^%d, %d blocks\n", wrong, q.what, suffix.c_str(),
               heads, kv, how.parts, how.split, how.grid);
}
} // namespace

int main()
{
    const int causal = INFER_MASK_CAUSAL, window = INFER_MASK_WINDOW, full = INFER_MASK_FULL;
    /* kind 0 pairs are neighbours, 1 halves; -1 for dims: the whole head */
    const problem problems[] = {
        {"one row", 0, -1, 1, {1}, {300}, 1, -1, 16, causal, 0, 0, 0, 0},
        {"one row", 1, -1, 1, {1}, {385}, 1, -1, 16, causal, 0, 0, 0, 0},
        {"the first row of all", 1, -1, 1, {1}, {1}, 1, -1, 16, causal, 0, 0, 0, 0},
        {"rows over an edge of blocks and turns", 0, -1, 1, {4, 3, 1}, {66, 34, 16}, 8, -1, 16, causal, 0, 0, 0, 0},
        {"rows over an edge of blocks and turns", 1, -1, 1, {4, 3, 2}, {131, 17, 129}, 12, 9, 32, causal, 0, 0, 0, 0},
        {"fewer rows than the last sequence has", 1, -1, 1, {2, 3}, {40, 50}, 8, 4, 16, causal, 0, 0, 0, 0},
        {"all rows of a long step", 0, -1, 1, {16}, {16}, 16, -1, 16, causal, 0, 0, 0, 0},
        {"a window, a cap, sinks", 0, -1, 1, {2, 1}, {200, 90}, 3, -1, 16, window, 40, 20, 1, 0},
        {"a window shorter than the rows", 1, -1, 1, {4, 1}, {90, 33}, 5, -1, 16, window, 2, 0, 0, 0},
        {"all keys seen", 1, -1, 1, {3, 1}, {60, 21}, 4, -1, 64, full, 0, 0, 0, 0},
        {"part of a head", 0, 34, 1, {2, 1}, {70, 35}, 3, -1, 16, causal, 0, 0, 0, 0},
        {"part of a head", 1, 34, 1, {2, 1}, {70, 35}, 3, -1, 16, causal, 0, 0, 0, 0},
        {"part of a head", 1, 48, 1, {1, 1}, {70, 35}, 2, -1, 16, causal, 0, 0, 0, 0},
        {"two positions a row", 1, -1, 2, {2, 1}, {70, 35}, 3, -1, 16, causal, 0, 0, 0, 0},
        {"two positions a row", 0, 20, 2, {2, 1}, {70, 35}, 3, -1, 16, causal, 0, 0, 0, 0},
        {"slots that are none", 1, -1, 1, {4, 4}, {70, 35}, 8, -1, 16, causal, 0, 0, 0, 1},
        {"sequences that share blocks", 0, -1, 1, {1, 1}, {64, 150}, 2, -1, 16, causal, 0, 0, 0, 2},
        {"a row of no sequence into another's block", 1, -1, 1, {1, 2}, {64, 150}, 6, 5, 16, causal, 0, 0, 0, 3},
    };
    const struct {
        int fmt, d, heads, kv, n;
    } shapes[] = {{INFER_FMT_F16, 128, 8, 2, 1},
                  {INFER_FMT_BF16, 64, 4, 2, 1},
                  {INFER_FMT_F16, 64, 12, 2, 2},
                  {INFER_FMT_BF16, 128, 6, 1, 2},
                  {INFER_FMT_F16, 128, 16, 1, 4}};
    const cut cuts[] = {{16, 0, 30}, {4, 0, 5}, {1, 0, 3}, {64, 7, 9}};
    int number_of = 0;
    for (const auto &s : shapes)
        for (problem q : problems) {
            q.dims = q.dims < 0 ? s.d : q.dims;
            const cut &how = cuts[number_of++ % 4];
            if (!how.split || s.n <= 2)
                check(q, s.fmt, s.d, s.heads, s.kv, s.n, how);
            if (&s == shapes)
                for (const cut &other : cuts)
                    check(q, s.fmt, s.d, s.heads, s.kv, s.n, other);
        }
    printf("own rows: %d problems right, %d wrong\n", passes, failures);
    return failures != 0;
}
