/* Products of many rows by packed weights in emulation: every tile, several cuts of K, ends of rows and columns that
 * are no whole tiles, counts from memory, gate and up, several weights, epilogues, against sums in double. Weights are
 * random images, and an element's value is found by the text of packed.h. SPDX-License-Identifier: Apache-2.0 */
#include "packed_text.h"

#include <cstdio>
#include <string>

#include "../../backends/cuda/gemm.h"

namespace
{
int failures, passes;
struct format_row : packed_format {
    const char *name, *x;
    double tol; /* of the norm of a row's terms, where x is rounded: five times the mean error */
};
const format_row formats[] = {
    {{INFER_FMT_BF16, 64, 2048}, "bf16", "bf16", 8e-3},       {{INFER_FMT_F16, 64, 2048}, "f16", "f16", 1.2e-3},
    {{INFER_FMT_F8_E4M3, 128, 2048}, "e4m3", "e4m3", 1.5e-1}, {{INFER_FMT_F8_E4M3, 128, 2048}, "e4m3w", "f16", 1.2e-3},
    {{INFER_FMT_Q8_0, 64, 1088}, "q8_0", "f16", 3e-3},        {{INFER_FMT_Q4_0, 64, 576}, "q4_0", "f16", 3e-3},
    {{INFER_FMT_Q4_1, 64, 640}, "q4_1", "f16", 3e-3},         {{INFER_FMT_Q4_K, 256, 2368}, "q4_k", "f16", 3e-3},
    {{INFER_FMT_Q6_K, 256, 3360}, "q6_k", "f16", 3e-3},       {{INFER_FMT_U4, 256, 2128}, "u4", "f16", 3e-3},
};

struct problem {
    const char *format;
    int tile, rows, k, n[3];
    int kind;  /* LP_MMS_* */
    int steps; /* of the epilogue: 0 none, 1 residual, 2 bias, activation, factor; 3 one with bias */
    int grid, cap, y_fmt, act;
    float scale;    /* of x; 0: numbers that every format has exactly, so that nothing is rounded but sums */
    int norm = 0;   /* of x: 1 with weights, 2 without */
    int by_row = 0; /* E4M3 with a scale a row */
    int panels = 0; /* gate and up, y as bf16: the tile of the product that reads it, in whose layout it goes out */
    int x_bf16 = 0; /* x comes in bf16, not in f32; only with scale 0 */
};

lp_tensor rows_at(int64_t row_bytes, int width, int fmt)
{
    lp_tensor t = {};
    t.s0 = row_bytes;
    t.n1 = t.n2 = 1;
    t.width = width;
    t.fmt = fmt;
    return t;
}

/* Where an element lies by the text of gemm.h: tiles of rows, in a tile the steps of 64, in a step atoms of 8 lines. */
size_t in_panels(const problem &q, int steps, int r, int c)
{
    const int tile = q.panels, line = r % tile;
    return ((size_t)(r / tile) * steps + c / 64) * 128 * tile + line / 8 * 1024 + line % 8 * 128 +
           (c % 64 / 8 ^ line % 8) * 16 + c % 8 * 2;
}

float activated(int act, double x)
{
    return (float)(act == INFER_ACT_SILU ? x / (1 + std::exp(-x)) : x > 0 ? x : 0);
}

void check(const problem &q)
{
    const format_row *f = formats;
    while (strcmp(f->name, q.format))
        f++;
    int quant = strcmp(f->name, f->x), steps = (q.k + f->unit - 1) / f->unit;
    int x_steps = quant ? (q.k + 255) / 256 * 4 : steps;
    int count[4] = {-1, q.rows, -1, -1}, glu = q.kind == LP_MMS_GLU, outputs = 0;
    std::vector<unsigned char> w[3], scratch;
    std::vector<float> x((size_t)q.cap * q.k), other((size_t)q.cap * q.n[0]), bias[3], weights((size_t)q.k);
    std::vector<unsigned char> y[3][2];
    for (size_t i = 0; i < x.size(); i++)
        x[i] = q.scale   ? random_float() * q.scale * (float)(1 + (random_bits() & 7))
               : i % q.k ? (float)(random_bits() % 15) - 7.0f
                         : 7.0f;
    for (float &v : other)
        v = random_float();
    gemm_x_block bx = {};
    gemm_block b = {};
    std::vector<float> by_row[3];
    b.by_row = q.by_row;
    bx.x = rows_at(4 * q.k, q.k, INFER_FMT_F32);
    std::vector<uint16_t> short_x;
    for (float v : x) {
        uint32_t u;
        memcpy(&u, &v, 4);
        short_x.push_back((uint16_t)(u >> 16)); /* has all of it */
    }
    if (q.x_bf16)
        bx.x = rows_at(2 * q.k, q.k, INFER_FMT_BF16);
    bx.rows.cap = q.cap;
    bx.rows.from = 1;
    bx.rows.mul = 1;
    uint64_t at = 0;
    bx.to_off = at;
    at += (uint64_t)((q.cap + q.tile - 1) / q.tile) * x_steps * 128 * q.tile;
    bx.scale_off = at;
    at += ((uint64_t)q.cap * 4 + 15) / 16 * 16;
    b.part_off = at;
    at += GEMM_PART_BYTES(q.grid, q.tile);
    bx.k = q.k;
    bx.steps = x_steps;
    bx.tile = q.tile;
    bx.mixed = quant && f->step == 2048;
    bx.has_norm = q.norm != 0;
    if (q.norm == 1)
        bx.norm = rows_at(0, q.k, INFER_FMT_F32);
    bx.eps = 1e-5f;
    bx.offset = 0.5f;
    for (float &v : weights)
        v = 1 + random_float();
    b.rows = bx.rows;
    b.x_off = bx.to_off;
    b.scale_off = bx.scale_off;
    b.k = q.k;
    b.kind = q.kind;
    b.act = q.act;
    b.scale = 1;
    /* rows a little apart, in whole lines or not */
    const int y_bytes = q.y_fmt == INFER_FMT_F32 ? 4 : 2, gap = q.grid % 2 ? 3 : 4;
    for (int i = 0; i < 3 && q.n[i]; i++) {
        w[i].resize((size_t)((q.n[i] + 15) / 16) * steps * f->step);
        fill(*f, w[i]);
        for (int r = 0; q.by_row && r < q.n[i]; r++) {
            const float v = 0.5f + 0.125f * (float)(random_bits() % 13);
            by_row[i].push_back(v);
            w[i].insert(w[i].end(), (const unsigned char *)&v, (const unsigned char *)&v + 4);
        }
        b.n[i] = q.n[i];
        if (!glu || i == 0) {
            outputs++;
            b.y[i] = rows_at((int64_t)y_bytes * (q.n[i] + gap), q.n[i], q.y_fmt);
            size_t bytes = (size_t)q.cap * (q.n[i] + gap) * y_bytes;
            if (q.panels) {
                const int next = (q.n[i] + 63) / 64;
                b.y[i].s0 = GEMM_LINE_BYTES;
                b.panels = gemm_panels(q.panels, next);
                bytes = GEMM_X_BYTES(q.cap, q.panels, next);
            }
            for (int k = 0; k < 2; k++)
                y[i][k].assign(bytes, 0x5C);
        }
        if (!glu && (q.kind == LP_MMS_SIDE && q.steps == 3)) {
            bias[i].resize(q.n[i]);
            for (float &v : bias[i])
                v = random_float();
            b.bias[i] = rows_at(0, q.n[i], INFER_FMT_F32);
        }
    }
    std::vector<float> step_bias(q.n[0]);
    for (float &v : step_bias)
        v = random_float();
    void *s[4] = {};
    if (q.steps == 1) {
        b.n_epi = 1;
        b.epi[0].kind = INFER_EPI_RESIDUAL;
        b.epi[0].t = rows_at(4 * q.n[0], q.n[0], INFER_FMT_F32);
        s[0] = other.data();
    } else if (q.steps == 2) {
        b.n_epi = 4;
        b.epi[0].kind = INFER_EPI_BIAS;
        b.epi[0].t = rows_at(0, q.n[0], INFER_FMT_F32);
        s[0] = step_bias.data();
        b.epi[1].kind = INFER_EPI_ACT;
        b.epi[1].arg = INFER_ACT_RELU;
        b.epi[2].kind = INFER_EPI_SCALE;
        b.epi[2].factor = 0.5f;
        b.epi[3].kind = INFER_EPI_MUL;
        b.epi[3].t = rows_at(4 * q.n[0], q.n[0], INFER_FMT_F32);
        s[3] = other.data();
    }
    int panel = f->step * 256 / f->unit;
    size_t shared = (size_t)(quant ? GEMM_QUANT_SHARED(q.tile, panel) : GEMM_SHARED(q.tile));
    for (int turn = 0; turn < 2; turn++) {
        simt::reverse = turn;
        scratch.assign(at + 16, 0xFF);
        unsigned char *base = scratch.data() + (16 - (uintptr_t)scratch.data() % 16) % 16;
        void *xm[] = {q.x_bf16 ? (void *)short_x.data() : x.data(), weights.data(), base, count};
        bool plain = f->f == INFER_FMT_BF16 && !q.norm;
        std::string name = std::string(f->f == INFER_FMT_BF16 && q.norm ? "gemm_xn_" : "gemm_x_") + f->x;
        dim3 grid = plain ? dim3((uint32_t)(8 * x_steps + 63) / 64, (uint32_t)(q.cap + 7) / 8) : dim3((uint32_t)q.cap);
        simt::start({name.c_str(), xm, &bx, grid, dim3(plain ? 256 : 512), 0});
        name = "gemm" + std::to_string(q.tile) + "_" + f->name;
        for (int i = 1; i < 3; i++) {
            if (!bias[i].empty())
                s[i - 1] = bias[i].data();
            if (!y[i][turn].empty())
                s[i + 1] = y[i][turn].data();
        }
        void *m[] = {w[0].data(),       w[1].data(), w[2].data(), bias[0].data(), s[0], s[1],
                     y[0][turn].data(), s[2],        s[3],        base,           base, count};
        simt::start({name.c_str(), m, &b, dim3((uint32_t)q.grid), dim3(GEMM_THREADS), shared});
    }
    int wrong = 0;
    for (int i = 0; i < outputs; i++) {
        if (y[i][0] != y[i][1]) {
            printf("the order of threads shows\n");
            wrong++;
        }
        for (int r = 0; r < q.cap; r++) {
            double squares = 0;
            for (int k = 0; k < q.k; k++)
                squares += (double)x[(size_t)r * q.k + k] * x[(size_t)r * q.k + k];
            const double inv = q.norm ? 1 / std::sqrt(squares / q.k + 1e-5) : 1;
            const int columns = q.panels ? (q.n[i] + 63) / 64 * 64 : q.n[i] + gap;
            for (int c = 0; c < columns; c++) {
                const unsigned char *p =
                    &y[i][0][q.panels ? in_panels(q, columns / 64, r, c) : ((size_t)r * (q.n[i] + gap) + c) * y_bytes];
                if (r >= q.rows || c >= q.n[i]) { /* beyond K, x of the next product is 0 */
                    for (int e = 0; e < y_bytes; e++)
                        wrong += p[e] != (q.panels && r < q.rows ? 0 : 0x5C);
                    continue;
                }
                double v = 0, up = 0, norm = 0;
                for (int k = 0; k < q.k; k++) {
                    double xv = x[(size_t)r * q.k + k] * inv * (q.norm == 1 ? weights[k] + 0.5 : 1);
                    double t = xv * element(*f, w[i], q.k, c, k) * (q.by_row ? by_row[i][c] : 1);
                    v += t;
                    norm += t * t;
                    if (glu)
                        up += xv * element(*f, w[1], q.k, c, k) * (q.by_row ? by_row[1][c] : 1);
                }
                double tol = (q.scale || f->step != 2048 ? f->tol : 3e-6) * std::sqrt(norm) + 1e-6;
                if (glu) {
                    tol = tol * (std::fabs(up) + std::fabs(v) + 1) * 1.5;
                    v = activated(q.act, v) * up;
                }
                if (!bias[i].empty())
                    v += bias[i][c];
                if (q.steps == 1)
                    v += other[(size_t)r * q.n[0] + c];
                if (q.steps == 2)
                    v = activated(INFER_ACT_RELU, v + step_bias[c]) * 0.5 * other[(size_t)r * q.n[0] + c];
                float got;
                const uint32_t high = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 24;
                if (q.y_fmt == INFER_FMT_F32)
                    memcpy(&got, p, 4);
                else if (q.y_fmt == INFER_FMT_F16)
                    got = simt_half_to_float((uint16_t)(p[0] | p[1] << 8));
                else
                    memcpy(&got, &high, 4);
                if (q.y_fmt != INFER_FMT_F32)
                    tol += std::fabs(v) * (q.y_fmt == INFER_FMT_F16 ? 1e-3 : 4e-3);
                if (!(std::fabs(got - v) <= tol)) {
                    if (!wrong++)
                        printf("weight %d row %d column %d: %g, not %g (%g off at most)\n", i, r, c, got, v, tol);
                } else {
                    passes++;
                }
            }
        }
    }
    if (wrong) {
        printf("FAIL gemm%d_%s rows %d of %d k %d n %d %d %d kind %d steps %d grid %d: %d wrong\n", q.tile, q.format,
               q.rows, q.cap, q.k, q.n[0], q.n[1], q.n[2], q.kind, q.steps, q.grid, wrong);
        failures++;
    }
}
} // namespace

int main()
{
    const int side = LP_MMS_SIDE, glu = LP_MMS_GLU, f32 = INFER_FMT_F32, f16 = INFER_FMT_F16, bf16 = INFER_FMT_BF16,
              silu = INFER_ACT_SILU;
    const problem problems[] = {
        /* a piece a block, several pieces a tile, several tiles a block, whole tiles and pieces */
        {"bf16", 16, 5, 256, {256, 0, 0}, side, 0, 2, 5, f32, 0, 0},
        {"bf16", 16, 16, 1024, {128, 0, 0}, side, 1, 4, 16, f32, 0, 0},
        {"bf16", 32, 30, 320, {400, 0, 0}, side, 1, 3, 32, f32, 0, 0},
        {"bf16", 64, 50, 128, {700, 0, 0}, side, 0, 2, 64, f16, 0, 0},
        /* ends that are no whole steps or panels, fewer rows than there is room for, none */
        {"bf16", 64, 33, 200, {100, 0, 0}, side, 2, 3, 64, f32, 0, 0},
        {"bf16", 16, 0, 64, {64, 0, 0}, side, 0, 2, 16, f32, 0, 0},
        {"bf16", 16, 20, 130, {30, 0, 0}, side, 1, 2, 40, f32, 0, 0},
        {"bf16", 128, 140, 192, {150, 0, 0}, side, 1, 2, 260, f32, 0, 0},
        {"bf16", 256, 257, 64, {136, 0, 0}, side, 1, 1, 300, f32, 0, 0},
        /* several weights, gate and up */
        {"bf16", 32, 17, 640, {200, 72, 40}, side, 3, 4, 32, f32, 0, 0},
        {"bf16", 32, 20, 512, {100, 100, 0}, glu, 0, 3, 32, f32, silu, 0},
        {"bf16", 16, 9, 256, {64, 64, 0}, glu, 0, 2, 16, f16, INFER_ACT_RELU, 0},
        /* and their result in the layout of the next product, with the tile of this one and others */
        {"bf16", 32, 20, 512, {128, 128, 0}, glu, 0, 3, 32, bf16, silu, 0, 0, 0, 32},
        {"bf16", 64, 40, 256, {100, 100, 0}, glu, 0, 2, 40, bf16, silu, 0, 0, 0, 16},
        {"bf16", 16, 9, 256, {75, 75, 0}, glu, 0, 2, 16, bf16, silu, 0, 0, 0, 16},
        {"bf16", 64, 50, 128, {72, 72, 0}, glu, 0, 2, 64, bf16, INFER_ACT_RELU, 0, 0, 0, 64},
        {"bf16", 256, 257, 64, {136, 136, 0}, glu, 0, 1, 300, bf16, silu, 0, 0, 0, 128},
        {"bf16", 128, 140, 192, {64, 64, 0}, glu, 0, 1, 260, bf16, silu, 0, 0, 0, 256},
        {"f16", 16, 9, 192, {72, 0, 0}, side, 1, 2, 16, f32, 0, 0},
        {"f16", 64, 40, 256, {130, 130, 0}, glu, 0, 2, 64, f32, silu, 0},
        {"e4m3", 16, 9, 300, {72, 0, 0}, side, 0, 2, 16, f32, 0, 0},
        {"e4m3", 32, 17, 512, {200, 72, 40}, side, 3, 4, 32, f32, 0, 0},
        {"q8_0", 16, 9, 256, {72, 0, 0}, side, 1, 2, 16, f32, 0, 0},
        {"q8_0", 64, 40, 832, {130, 0, 0}, side, 0, 4, 64, f32, 0, 0},
        {"q4_0", 16, 16, 64, {128, 0, 0}, side, 0, 2, 16, f32, 0, 0},
        {"q4_0", 32, 20, 1120, {260, 0, 0}, side, 1, 6, 32, f32, 0, 0},
        {"q4_1", 16, 9, 576, {40, 40, 0}, glu, 0, 2, 16, f32, silu, 0},
        {"q4_k", 16, 9, 512, {72, 0, 0}, side, 1, 2, 16, f32, 0, 0},
        {"q4_k", 128, 130, 768, {140, 20, 0}, side, 3, 2, 200, f32, 0, 0},
        {"q6_k", 32, 30, 1280, {200, 0, 0}, side, 1, 8, 32, f32, 0, 1.0f},
        {"e4m3w", 16, 9, 300, {72, 0, 0}, side, 1, 2, 16, f32, 0, 0},
        {"e4m3w", 64, 40, 640, {130, 130, 0}, glu, 0, 4, 64, f32, silu, 0},
        {"e4m3w", 128, 100, 900, {136, 0, 0}, side, 0, 4, 128, f32, 0, 1.0f},
        {"u4", 16, 9, 512, {72, 0, 0}, side, 1, 2, 16, f32, 0, 0},
        {"u4", 64, 40, 896, {130, 130, 0}, glu, 0, 4, 64, f32, silu, 0},
        {"u4", 128, 130, 640, {140, 20, 9}, side, 3, 2, 200, f32, 0, 1.0f},
        /* a scale a row: ways out of all kinds */
        {"e4m3w", 16, 9, 300, {72, 0, 0}, side, 1, 2, 16, f32, 0, 0, 0, 1},
        {"e4m3w", 64, 40, 640, {130, 130, 0}, glu, 0, 4, 64, f32, silu, 0, 0, 1},
        {"e4m3w", 32, 20, 512, {100, 100, 0}, glu, 0, 3, 32, f32, INFER_ACT_RELU, 0, 0, 1},
        {"e4m3w", 32, 17, 512, {200, 72, 41}, side, 3, 4, 32, f32, 0, 0, 0, 1},
        {"e4m3w", 64, 33, 200, {101, 0, 0}, side, 2, 3, 64, f32, 0, 0, 0, 1},
        {"e4m3", 16, 9, 300, {72, 0, 0}, side, 1, 2, 16, f32, 0, 0, 0, 1},
        {"e4m3", 256, 257, 128, {136, 20, 9}, side, 3, 1, 300, f32, 0, 0, 0, 1},
        /* x in bf16, as gate and up give it to the down product; theirs in bf16 */
        {"e4m3", 32, 20, 512, {200, 0, 0}, side, 1, 3, 32, f32, 0, 0, 0, 1, 0, 1},
        {"e4m3", 128, 100, 300, {75, 0, 0}, side, 0, 2, 128, f32, 0, 0, 0, 0, 0, 1},
        {"e4m3", 128, 140, 256, {130, 130, 0}, glu, 0, 2, 140, bf16, silu, 0, 0, 1},
        /* x is rounded, and has numbers that the format has no room for */
        {"bf16", 16, 6, 400, {40, 0, 0}, side, 0, 2, 16, f32, 0, 1e6f},
        {"f16", 16, 6, 400, {40, 0, 0}, side, 0, 2, 16, f32, 0, 1e6f},
        {"f16", 16, 6, 400, {40, 0, 0}, side, 0, 2, 16, f32, 0, 1e-9f},
        {"e4m3", 16, 6, 400, {40, 0, 0}, side, 0, 2, 16, f32, 0, 1e6f},
        /* norms before */
        {"bf16", 16, 9, 384, {72, 0, 0}, side, 1, 2, 16, f32, 0, 1.0f, 1},
        {"bf16", 64, 40, 300, {64, 64, 0}, glu, 0, 2, 64, f32, silu, 1e3f, 2},
        {"f16", 32, 20, 200, {72, 40, 8}, side, 3, 2, 32, f32, 0, 1e4f, 1},
        {"e4m3", 16, 9, 300, {72, 0, 0}, side, 0, 2, 16, f32, 0, 1.0f, 1},
        {"q4_k", 16, 9, 512, {72, 0, 0}, side, 1, 2, 16, f32, 0, 1.0f, 1},
        {"e4m3w", 16, 9, 300, {72, 0, 0}, side, 1, 2, 16, f32, 0, 1.0f, 1},
    };
    for (const problem &p : problems)
        check(p);
    printf("gemm: %d results right, %d problems wrong\n", passes, failures);
    return failures != 0;
}
