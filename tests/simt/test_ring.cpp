/* Products of few rows by packed weights in emulation (kernels/ring.cu): every format and kind, norms, rows that are
 * held together or not, ends of panels, steps and rows, x that is long or no whole lines, against sums in double.
 * SPDX-License-Identifier: Apache-2.0 */
#include "packed_text.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "../../backends/cuda/ring.h"

namespace
{
int failures, passes;

struct format_row : packed_format {
    const char *name;
    double tol; /* of the norm of a row's terms: bf16 keeps 16 bits of x, the others more */
};
const format_row formats[] = {
    {{INFER_FMT_BF16, 64, 2048}, "bf16", 3e-5},     {{INFER_FMT_F16, 64, 2048}, "f16", 5e-6},
    {{INFER_FMT_F8_E4M3, 128, 2048}, "e4m3", 5e-6}, {{INFER_FMT_Q8_0, 64, 1088}, "q8_0", 5e-6},
    {{INFER_FMT_Q4_0, 64, 576}, "q4_0", 5e-6},      {{INFER_FMT_Q4_1, 64, 640}, "q4_1", 5e-6},
    {{INFER_FMT_Q4_K, 256, 2368}, "q4_k", 5e-6},    {{INFER_FMT_Q6_K, 256, 3360}, "q6_k", 5e-6},
    {{INFER_FMT_U4, 256, 2128}, "u4", 5e-6},
};

struct problem {
    int rows, cap, held, k, n[3];
    int kind, norm; /* norm: 0 none, 1 with weights, 2 without */
    int steps;      /* of the epilogue: 0 none, 1 residual, 2 bias, activation, factor, product; 3 biases */
    int grid, slots, x_fmt, gap;
    float size;     /* of x */
    int split = 0;  /* blocks for the first two weights; the third is Q6_K */
    int by_row = 0; /* E4M3 with a scale a row */
    int alone = 1;  /* where one row is held */
};

lp_line line(int64_t bytes, int fmt)
{
    lp_line l = {};
    l.step = bytes;
    l.fmt = fmt;
    return l;
}

double silu(double v)
{
    return v / (1 + std::exp(-v));
}

void check(const format_row &f, const problem &q)
{
    const format_row &last = q.split ? formats[7] : f;
    const int steps = (q.k + f.unit - 1) / f.unit, glu = q.kind == RING_GLU, outputs = q.kind == RING_SIDE ? 3 : 1;
    const int x_bytes = q.x_fmt == INFER_FMT_F32 ? 4 : 2;
    int count[3] = {-1, q.rows, -1};
    std::vector<unsigned char> w[3], x((size_t)q.cap * (q.k + q.gap) * x_bytes + 16);
    std::vector<double> xv((size_t)q.cap * q.k);
    std::vector<float> norm(q.k), other((size_t)q.cap * q.n[0]), bias[3], y[3][2];
    std::vector<float> by_row[3];
    lp_ring p = {};
    unsigned char *x0 = x.data() + (16 - (uintptr_t)x.data() % 16) % 16;
    for (int r = 0; r < q.cap; r++)
        for (int i = 0; i < q.k; i++) {
            float v = random_float() * q.size * (float)(1 + (random_bits() & 7));
            unsigned char *to = x0 + ((size_t)r * (q.k + q.gap) + i) * x_bytes;
            uint16_t h = simt_float_to_half(v);
            if (q.x_fmt == INFER_FMT_F16)
                v = simt_half_to_float(h);
            memcpy(to, q.x_fmt == INFER_FMT_F32 ? (void *)&v : (void *)&h, (size_t)x_bytes);
            xv[(size_t)r * q.k + i] = v;
        }
    for (float &v : norm)
        v = 1.0f + random_float() * 8;
    for (float &v : other)
        v = random_float();
    p.x = line((int64_t)(q.k + q.gap) * x_bytes, q.x_fmt);
    p.rows.cap = q.cap;
    p.rows.from = 1;
    p.rows.mul = 1;
    p.k = q.k;
    p.kind = q.kind;
    p.has_norm = q.norm != 0;
    if (q.norm == 1)
        p.norm = line(0, INFER_FMT_F32);
    p.eps = 1e-5f;
    p.offset = 0.5f;
    p.held = q.held;
    p.alone = q.held == 1 && q.alone;
    p.slots = q.slots;
    p.split = q.split;
    p.by_row = q.by_row;
    p.last_slots = q.slots + 1;
    p.act = INFER_ACT_SILU;
    p.scale = q.steps == 2 ? 2.0f : 1.0f;
    void *b[5] = {};
    for (int i = 0; i < 3 && q.n[i]; i++) {
        const format_row &mine = i == 2 ? last : f;
        w[i].resize((size_t)((q.n[i] + 15) / 16) * steps * mine.step);
        fill(mine, w[i]);
        for (int r = 0; q.by_row && r < q.n[i]; r++) {
            const float v = 0.5f + 0.125f * (float)(random_bits() % 13);
            by_row[i].push_back(v);
            w[i].insert(w[i].end(), (const unsigned char *)&v, (const unsigned char *)&v + 4);
        }
        p.n[i] = q.n[i];
        if (i < outputs) {
            p.y[i] = line(4 * (int64_t)(q.n[i] + 1), INFER_FMT_F32);
            for (auto &turn : y[i])
                turn.assign((size_t)q.cap * (q.n[i] + 1), 12345.0f);
        }
        bias[i].resize(q.n[i]);
        for (float &v : bias[i])
            v = random_float();
        if (q.steps == 3) {
            p.b[i] = line(0, INFER_FMT_F32);
            b[i] = bias[i].data();
        }
    }
    if (q.steps == 1 || q.steps == 2) {
        const int last = q.steps == 1 ? 0 : 3;
        p.b[1 + last] = line(4 * (int64_t)q.n[0], INFER_FMT_F32);
        p.epi_kind[last] = q.steps == 1 ? INFER_EPI_RESIDUAL : INFER_EPI_MUL;
        b[1 + last] = other.data();
        p.n_epi = last + 1;
    }
    if (q.steps == 2) {
        p.b[1] = line(0, INFER_FMT_F32);
        b[1] = bias[0].data();
        p.epi_kind[0] = INFER_EPI_BIAS;
        p.epi_kind[1] = INFER_EPI_ACT;
        p.epi_arg[1] = INFER_ACT_RELU;
        p.epi_kind[2] = INFER_EPI_SCALE;
        p.epi_factor[2] = 0.5f;
    }
    const size_t ring = std::max((size_t)q.slots * RING_STEPS((size_t)f.step) * (size_t)f.step,
                                 (size_t)(q.slots + 1) * RING_STEPS((size_t)last.step) * (size_t)last.step);
    const size_t shared = RING_FIXED + (size_t)q.held * (RING_SUMS + RING_SIZE((size_t)steps * f.unit / 32)) + ring;
    for (int turn = 0; turn < 2; turn++) {
        simt::reverse = turn;
        std::string name = std::string("ring_") + f.name + (q.split ? "_q6_k" : "");
        void *m[] = {x0,   w[0].data(),       w[1].data(),       w[2].data(),       b[0],        b[1], b[2], b[3],
                     b[4], y[0][turn].data(), y[1][turn].data(), y[2][turn].data(), norm.data(), count};
        simt::start({name.c_str(), m, &p, dim3((uint32_t)q.grid), dim3(RING_THREADS), shared});
    }
    int wrong = 0;
    for (int i = 0; i < outputs; i++) {
        if (memcmp(y[i][0].data(), y[i][1].data(), y[i][0].size() * 4) && !wrong++)
            printf("the order of threads shows\n");
        for (int r = 0; r < q.cap; r++) {
            double squares = 0;
            for (int k = 0; k < q.k; k++)
                squares += xv[(size_t)r * q.k + k] * xv[(size_t)r * q.k + k];
            const double inv = q.norm ? 1 / std::sqrt(squares / q.k + 1e-5) : 1;
            for (int c = 0; c <= q.n[i]; c++) {
                const float got = y[i][0][(size_t)r * (q.n[i] + 1) + c];
                if (r >= q.rows || c == q.n[i]) {
                    wrong += got != 12345.0f;
                    continue;
                }
                double v = 0, up = 0, terms = 0;
                for (int k = 0; k < q.k; k++) {
                    double x1 = xv[(size_t)r * q.k + k] * inv * (q.norm == 1 ? norm[k] + 0.5 : 1);
                    double t = x1 * element(i == 2 ? last : f, w[i], q.k, c, k) * (q.by_row ? by_row[i][c] : 1);
                    v += t;
                    terms += t * t;
                    if (glu)
                        up += x1 * element(f, w[1], q.k, c, k) * (q.by_row ? by_row[1][c] : 1);
                }
                double tol = f.tol * std::sqrt(terms) * p.scale + 1e-6;
                v *= p.scale;
                if (glu) {
                    tol *= 2 * (std::fabs(v) + std::fabs(up) + 1);
                    v = silu(v) * up;
                }
                if (q.steps == 3)
                    v += bias[i][c];
                if (q.steps == 1)
                    v += other[(size_t)r * q.n[0] + c];
                if (q.steps == 2)
                    v = std::fmax(v + bias[0][c], 0.0) * 0.5 * other[(size_t)r * q.n[0] + c];
                if (std::fabs(got - v) <= tol + 1e-6 * std::fabs(v)) {
                    passes++;
                } else if (!wrong++) {
                    printf("weight %d row %d column %d: %g, not %g (%g off at most)\n", i, r, c, got, v, tol);
                }
            }
        }
    }
    if (wrong) {
        printf("FAIL ring_%s rows %d of %d held %d k %d n %d %d %d kind %d norm %d steps %d grid %d: %d wrong\n",
               f.name, q.rows, q.cap, q.held, q.k, q.n[0], q.n[1], q.n[2], q.kind, q.norm, q.steps, q.grid, wrong);
        failures++;
    }
}
} // namespace

int main()
{
    const int one = RING_ONE, side = RING_SIDE, glu = RING_GLU, f32 = INFER_FMT_F32, f16 = INFER_FMT_F16;
    const problem problems[] = {
        /* one row; several panels a block, several copies a panel, rings that come round */
        {1, 1, 1, 1024, {100, 0, 0}, one, 0, 1, 3, 2, f32, 0, 1},
        {1, 1, 1, 2560, {80, 0, 0}, one, 0, 0, 2, 3, f32, 0, 1},
        {1, 1, 1, 512, {90, 90, 0}, glu, 1, 0, 2, 2, f32, 0, 1},
        {1, 1, 1, 768, {40, 20, 10}, side, 1, 3, 2, 2, f32, 0, 1},
        /* fewer rows than there is room for, more than are held together, none */
        {3, 4, 4, 512, {50, 34, 16}, side, 2, 3, 3, 2, f32, 0, 1},
        {7, 9, 2, 256, {40, 0, 0}, one, 0, 2, 2, 2, f32, 0, 1},
        {3, 3, 1, 512, {50, 20, 16}, side, 1, 3, 2, 2, f32, 0, 1},
        {2, 2, 1, 512, {20, 0, 0}, one, 1, 1, 1, 2, f16, 0, 1},
        {1, 1, 1, 256, {20, 0, 0}, one, 0, 0, 1, 2, f32, 0, 1e9f},
        {1, 1, 1, 256, {20, 0, 0}, one, 0, 0, 1, 2, f32, 0, 1e-12f},
        {4, 4, 3, 1280, {33, 33, 0}, glu, 0, 0, 1, 2, f32, 0, 1},
        {0, 2, 2, 1024, {40, 0, 0}, one, 0, 1, 2, 2, f32, 0, 1},
        {0, 1, 1, 1024, {200, 0, 0}, one, 0, 1, 2, 2, f32, 0, 1},
        {0, 2, 1, 512, {150, 150, 0}, glu, 1, 0, 2, 3, f32, 0, 1},
        {0, 1, 1, 256, {20, 0, 0}, one, 0, 0, 1, 4, f32, 0, 1},
        /* a block without work */
        {1, 1, 1, 256, {20, 0, 0}, one, 1, 1, 4, 2, f32, 0, 1},
        /* x no whole lines, of 16 bits, longer than a block keeps; small and large numbers */
        {2, 2, 2, 512, {20, 0, 0}, one, 1, 1, 1, 2, f32, 3, 1},
        {2, 2, 2, 512, {20, 0, 0}, one, 0, 0, 1, 2, f16, 0, 1},
        {1, 1, 1, 20480, {16, 0, 0}, one, 1, 0, 1, 2, f32, 0, 1},
        {2, 2, 2, 256, {20, 0, 0}, one, 0, 0, 1, 2, f32, 0, 1e9f},
        {2, 2, 2, 256, {20, 0, 0}, one, 0, 0, 1, 2, f32, 0, 1e-12f},
        {2, 2, 2, 256, {20, 0, 0}, one, 1, 0, 1, 2, f32, 0, 1e6f},
    };
    const problem mixed[] = {
        {1, 1, 1, 768, {40, 20, 50}, side, 1, 3, 3, 2, f32, 0, 1, 2},
        {3, 4, 4, 512, {150, 34, 16}, side, 2, 0, 3, 2, f32, 0, 1, 1},
        {0, 1, 1, 1024, {200, 100, 100}, side, 0, 0, 2, 2, f32, 0, 1, 1},
    };
    for (const problem &q : mixed)
        check(formats[6], q);
    for (const format_row &f : formats)
        for (problem q : problems) {
            check(f, q);
            q.alone = 0;
            if (q.held == 1 && RING_ALONE(f.f))
                check(f, q);
            q.alone = 1;
            q.by_row = f.f == INFER_FMT_F8_E4M3;
            if (q.by_row)
                check(f, q);
            q.k -= f.f == INFER_FMT_U4 ? 128 : f.unit == 256 ? 0 : 32; /* no whole step */
            if (f.unit > 32 && (f.unit < 256 || f.f == INFER_FMT_U4) && q.kind == one && q.k > 0)
                check(f, q);
        }
    printf("ring: %d results right, %d problems with wrong ones\n", passes, failures);
    return failures != 0;
}
