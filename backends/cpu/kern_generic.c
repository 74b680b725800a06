/*
 * Portable kernels: C with vectors of four floats, which compilers for every target lower to what they have. Products
 * and sums are separate operations, so that every machine gives the same bits.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kern_unpack.h"

typedef float v4 __attribute__((vector_size(16)));

static inline v4 load4(const float *p)
{
    v4 v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void store4(float *p, v4 v)
{
    memcpy(p, &v, sizeof v);
}

static inline v4 splat4(float x)
{
    return (v4){x, x, x, x};
}

/* Up to four floats, the rest zero. */
static inline v4 part4(const float *p, int64_t n)
{
    v4 v = {0, 0, 0, 0};
    memcpy(&v, p, (size_t)n * sizeof *p);
    return v;
}

/* ((0+1)+(2+3)) + ((4+5)+(6+7)) */
static inline float sum8(v4 lo, v4 hi)
{
    return ((lo[0] + lo[1]) + (lo[2] + lo[3])) + ((hi[0] + hi[1]) + (hi[2] + hi[3]));
}

static inline void tile1(const float *w, int64_t ldw, const float *x, int64_t kc, float *c)
{
    v4 lo[KERN_TILE] = {{0}}, hi[KERN_TILE] = {{0}};
    int64_t k = 0;
    for (; k + 8 <= kc; k += 8) {
        v4 x0 = load4(x + k), x1 = load4(x + k + 4);
        for (int r = 0; r < KERN_TILE; r++) {
            lo[r] += load4(w + r * ldw + k) * x0;
            hi[r] += load4(w + r * ldw + k + 4) * x1;
        }
    }
    if (k < kc) {
        int64_t n = kc - k;
        v4 x0 = part4(x + k, n < 4 ? n : 4), x1 = part4(x + k + 4, n < 4 ? 0 : n - 4);
        for (int r = 0; r < KERN_TILE; r++) {
            lo[r] += load4(w + r * ldw + k) * x0;
            hi[r] += load4(w + r * ldw + k + 4) * x1;
        }
    }
    for (int r = 0; r < KERN_TILE; r++)
        c[r] += sum8(lo[r], hi[r]);
}

static void tile(const float *w, int64_t ldw, const float *const *x, int64_t m, int64_t kc, float *c, int64_t ldc)
{
    for (int64_t i = 0; i < m; i++)
        tile1(w, ldw, x[i], kc, c + i * ldc);
}

/* ---- Element by element ---------------------------------------------------------------------------------------- */

static void add(const float *a, const float *b, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = a[i] + b[i];
}

static void mul(const float *a, const float *b, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = a[i] * b[i];
}

static void scale(const float *x, float s, float bias, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * s + bias;
}

static void axpy(float a, const float *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += a * x[i];
}

static void norm(const float *x, float mean, float factor, const float *w, float offset, const float *b, float *y,
                 int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float v = (x[i] - mean) * factor;
        if (w)
            v *= w[i] + offset;
        y[i] = b ? v + b[i] : v;
    }
}

/* Gelu and its form by tanh, 0.5 x (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3): Hendrycks and Gimpel 2016,
 * arXiv:1606.08415. Written with erfc and as x / (1 + exp(-2u)), which lose no digits on the negative side. */
static inline float act1(uint32_t kind, float x)
{
    switch (kind) {
    case INFER_ACT_SILU:
        return x / (1.0f + expf(-x));
    case INFER_ACT_GELU:
        return 0.5f * x * erfcf(x * -0.70710678118654752f);
    case INFER_ACT_GELU_TANH:
        return x / (1.0f + expf(-1.59576912160573072f * (x + 0.044715f * x * x * x)));
    case INFER_ACT_RELU:
        return x > 0 || x != x ? x : 0;
    default:
        return 1.0f / (1.0f + expf(-x));
    }
}

static void act(uint32_t kind, float limit, const float *x, const float *up, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float v = x[i], u = up ? up[i] : 1;
        if (limit > 0) {
            v = v > limit ? limit : v;
            u = u > limit ? limit : u < -limit ? -limit : u;
        }
        v = act1(kind, v);
        y[i] = up ? v * u : v;
    }
}

static void rotate(const float *x, const float *c, const float *s, float *y, int64_t r, int64_t step, int64_t gap)
{
    for (int64_t i = 0; i < r; i++) {
        float a = x[i * step], b = x[i * step + gap];
        y[i * step] = a * c[i] - b * s[i];
        y[i * step + gap] = a * s[i] + b * c[i];
    }
}

/* ---- Over a row ------------------------------------------------------------------------------------------------ */

static double sum(const float *x, int64_t n)
{
    double s[4] = {0, 0, 0, 0};
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int l = 0; l < 4; l++)
            s[l] += (double)x[i + l];
    for (; i < n; i++)
        s[0] += (double)x[i];
    return (s[0] + s[1]) + (s[2] + s[3]);
}

static double sum_squares(const float *x, double mean, int64_t n)
{
    double s[4] = {0, 0, 0, 0};
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int l = 0; l < 4; l++) {
            double v = (double)x[i + l] - mean;
            s[l] += v * v;
        }
    for (; i < n; i++) {
        double v = (double)x[i] - mean;
        s[0] += v * v;
    }
    return (s[0] + s[1]) + (s[2] + s[3]);
}

static float max(const float *x, int64_t n)
{
    float m = -INFINITY;
    for (int64_t i = 0; i < n; i++)
        m = x[i] > m ? x[i] : m;
    return m;
}

static float exp_sum(float *x, float s, float shift, int64_t n)
{
    float lane[8] = {0};
    for (int64_t i = 0; i < n; i++) {
        x[i] = expf(x[i] * s - shift);
        lane[i % 8] += x[i];
    }
    return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

static double exp_total(const double *x, double most, double t, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += exp((x[i] - most) / t);
    return sum;
}

static void exp_all(double *x, double most, double t, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = exp((x[i] - most) / t);
}

static void weighted(const float *p, int64_t ldp, int64_t rows, const float *v, int64_t ldv, int64_t n, float *o,
                     int64_t ldo, int64_t dv)
{
    for (int64_t i = 0; i < rows; i++) {
        int64_t j = 0;
        for (; j + 16 <= dv; j += 16) {
            v4 acc[4];
            for (int q = 0; q < 4; q++)
                acc[q] = load4(o + i * ldo + j + 4 * q);
            for (int64_t t = 0; t < n; t++) {
                v4 w = splat4(p[i * ldp + t]);
                for (int q = 0; q < 4; q++)
                    acc[q] += w * load4(v + t * ldv + j + 4 * q);
            }
            for (int q = 0; q < 4; q++)
                store4(o + i * ldo + j + 4 * q, acc[q]);
        }
        for (int64_t t = 0; t < n; t++)
            for (int64_t q = j; q < dv; q++)
                o[i * ldo + q] += p[i * ldp + t] * v[t * ldv + q];
    }
}

const kern_table kern_generic_table = {
    .isa = "generic",
    .simd_bytes = 16,
    .dot_rows = 3,
    .format = kern_generic_formats,
    .tile = tile,
    .add = add,
    .mul = mul,
    .scale = scale,
    .act = act,
    .axpy = axpy,
    .norm = norm,
    .sum = sum,
    .sum_squares = sum_squares,
    .max = max,
    .exp_sum = exp_sum,
    .exp_total = exp_total,
    .exp_all = exp_all,
    .weighted = weighted,
    .rotate = rotate,
};
