/* core/quant: every format against what the reference libraries unpack and pack (tests/golden/quant.bin), the bounds of
 * the table, side planes, odd values. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>

#include "unit/unit.h"

#include "base/alloc.h"
#include "base/file.h"
#include "quant/quant.h"

static char *golden;
static size_t golden_size;

static int same_float(float a, float b)
{
    return (isnan(a) && isnan(b)) || memcmp(&a, &b, sizeof a) == 0;
}

static int setup(void **state)
{
    (void)state;
    char path[4096];
    infer_error err = {0};
    const char *root = getenv("INFER_SRCDIR");
    snprintf(path, sizeof path, "%s/tests/golden/quant.bin", root ? root : ".");
    if (infer_file_read(path, 1 << 20, &golden, &golden_size, &err) == INFER_OK)
        return 0;
    fprintf(stderr, "%s\n", err.text);
    return -1;
}

static int teardown(void **state)
{
    (void)state;
    infer_free(golden);
    return 0;
}

static void test_golden(void **state)
{
    (void)state;
    size_t at = 0;
    int records = 0;
    while (at < golden_size) {
        char name[17] = {0};
        uint32_t head[4];
        memcpy(name, golden + at, 16);
        memcpy(head, golden + at + 16, sizeof head);
        const char *packed = golden + at + 32, *want = packed + head[1];
        const infer_format_info *f = infer_format_by_name(name);
        assert_non_null(f);
        uint64_t bytes;
        assert_int_equal(infer_format_bytes(f->id, head[0], &bytes), INFER_OK);
        assert_int_equal(bytes, head[1]);
        float *got = infer_malloc(head[0] * sizeof(float));
        f->unpack(packed, got, head[0]);
        for (uint32_t i = 0; i < head[0]; i++) {
            float w;
            memcpy(&w, want + 4 * i, 4);
            if (!same_float(got[i], w))
                fail_msg("%s element %u: %.9g, expected %.9g", name, i, (double)got[i], (double)w);
        }
        infer_free(got);
        at += 32 + head[1] + (size_t)head[0] * 4;
        if (head[2]) {
            assert_int_equal(infer_format_bytes(f->id, head[2], &bytes), INFER_OK);
            float *src = infer_malloc(head[2] * sizeof(float));
            uint8_t *out = infer_malloc((size_t)bytes);
            memcpy(src, golden + at, head[2] * sizeof(float));
            at += head[2] * sizeof(float);
            f->pack(src, out, head[2]);
            for (uint64_t i = 0; i < bytes; i++)
                if (out[i] != (uint8_t)golden[at + i])
                    fail_msg("%s pack: byte %d is %02x, expected %02x", name, (int)i, out[i], (uint8_t)golden[at + i]);
            infer_free(src);
            infer_free(out);
            at += (size_t)bytes;
        }
        records++;
    }
    assert_int_equal(at, golden_size);
    assert_int_equal(records, 16);
}

/* Standard normal numbers (Box and Muller 1958), the same in every run. */
static void fill_normal(float *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i += 2) {
        double u[2];
        for (int j = 0; j < 2; j++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            u[j] = ((double)(seed >> 11) + 0.5) * 0x1p-53;
        }
        double r = sqrt(-2 * log(u[0]));
        x[i] = (float)(r * cos(6.283185307179586 * u[1]));
        if (i + 1 < n)
            x[i + 1] = (float)(r * sin(6.283185307179586 * u[1]));
    }
}

static double rel_rms(const float *x, const float *y, size_t n)
{
    double e = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        e += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
        s += (double)x[i] * (double)x[i];
    }
    return sqrt(e / s);
}

static void test_bounds(void **state)
{
    (void)state;
    enum { N = 1 << 18 };
    float *x = infer_malloc(N * sizeof *x), *y = infer_malloc(N * sizeof *y);
    uint8_t *p = infer_malloc(N * 8), *p2 = infer_malloc(N * 8);
    fill_normal(x, N, 7);
    for (infer_format id = 1; id < INFER_FMT_COUNT; id++) {
        const infer_format_info *f = infer_format_get(id);
        if (!f || !f->pack || (f->max_rel_rms == 0 && !f->is_float))
            continue;
        uint64_t bytes;
        assert_int_equal(infer_format_bytes(id, N, &bytes), INFER_OK);
        f->pack(x, p, N);
        f->unpack(p, y, N);
        double e = rel_rms(x, y, N);
        print_message("%-8s %.5f of %.5f\n", f->name, e, f->max_rel_rms);
        if (e > f->max_rel_rms || e < 0.8 * f->max_rel_rms)
            fail_msg("%s: relative error %.6f, bound %.6f", f->name, e, f->max_rel_rms);
        f->pack(x, p2, N);
        assert_memory_equal(p, p2, (size_t)bytes);
        if (f->is_float)
            continue;
        /* Small weights as models have them keep the same relative error: no scale is lost to f16. */
        for (size_t i = 0; i < N; i++)
            y[i] = x[i] * 0.02f;
        f->pack(y, p, N);
        float *z = infer_malloc(N * sizeof *z);
        f->unpack(p, z, N);
        assert_true(rel_rms(y, z, N) <= f->max_rel_rms);
        infer_free(z);
    }
    infer_free(x);
    infer_free(y);
    infer_free(p);
    infer_free(p2);
}

/* Zero, constant, huge, infinite and NaN blocks give no crash; zero and constants come back. */
static void test_odd_blocks(void **state)
{
    (void)state;
    const float kinds[] = {0, 1, -1, 1e-7f, 3e38f, INFINITY, NAN};
    float x[512], y[512];
    uint8_t p[4096];
    for (infer_format id = 1; id < INFER_FMT_COUNT; id++) {
        const infer_format_info *f = infer_format_get(id);
        if (!f || !f->pack)
            continue;
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            for (int i = 0; i < 512; i++)
                x[i] = i % 2 && k > 2 ? -kinds[k] : kinds[k];
            f->pack(x, p, 512);
            f->unpack(p, y, 512);
            int can_be_negative =
                id != INFER_FMT_U8 && id != INFER_FMT_U16 && id != INFER_FMT_U32 && id != INFER_FMT_U4;
            if (k == 0 && id != INFER_FMT_E8M0)
                for (int i = 0; i < 512; i++)
                    assert_true(y[i] == 0);
            if ((k == 1 || (k == 2 && can_be_negative)) && id != INFER_FMT_E8M0)
                for (int i = 0; i < 512; i++)
                    if (fabsf(y[i] - x[i]) > 2e-3f)
                        fail_msg("%s: constant %g became %g", f->name, (double)x[i], (double)y[i]);
        }
    }
}

static void test_lookup(void **state)
{
    (void)state;
    uint64_t b;
    assert_null(infer_format_get(INFER_FMT_NONE));
    assert_null(infer_format_get(7));
    assert_null(infer_format_get(UINT32_MAX));
    assert_null(infer_format_by_name("q4"));
    assert_int_equal(infer_format_by_name("Q4_K")->id, INFER_FMT_Q4_K);
    assert_int_equal(infer_format_by_gguf(12)->id, INFER_FMT_Q4_K);
    assert_int_equal(infer_format_by_gguf(0)->id, INFER_FMT_F32);
    assert_null(infer_format_by_gguf(9));
    assert_null(infer_format_by_gguf(UINT32_MAX));
    assert_int_equal(infer_format_bytes(INFER_FMT_Q4_K, 255, &b), INFER_E_INVALID);
    assert_int_equal(infer_format_bytes(INFER_FMT_F64, UINT64_MAX / 4, &b), INFER_E_TOO_LARGE);
    assert_int_equal(infer_format_bytes(99, 1, &b), INFER_E_INVALID);
    for (infer_format id = 1; id < INFER_FMT_COUNT; id++) {
        const infer_format_info *f = infer_format_get(id);
        if (!f)
            continue;
        assert_ptr_equal(infer_format_by_name(f->name), f);
        if (f->gguf_type >= 0)
            assert_ptr_equal(infer_format_by_gguf((uint32_t)f->gguf_type), f);
    }
}

/* Every 16-bit code goes to float and back. */
/* Rows to E4M3 and U4 are made without branches: the same codes as one by one, at every edge of rounding, and U4's
 * halves to even. */
static void test_packs_at_once(void **state)
{
    (void)state;
    static const uint32_t low[] = {0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF};
    enum { N = 65536 };
    float *x = infer_malloc(N * sizeof *x);
    uint8_t *code = infer_malloc(N);
    for (size_t l = 0; l < sizeof low / sizeof low[0]; l++) {
        for (uint32_t i = 0; i < N; i++) {
            uint32_t u = i << 16 | low[l];
            memcpy(&x[i], &u, 4);
        }
        infer_format_get(INFER_FMT_F8_E4M3)->pack(x, code, N);
        for (uint32_t i = 0; i < N; i++)
            if (code[i] != infer_f32_to_e4m3(x[i]))
                fail_msg("%a: %02x, wanted %02x", (double)x[i], code[i], infer_f32_to_e4m3(x[i]));
    }
    const float y[] = {-1, 0.5f, 1.5f, 2.5f, 2.51f, 14.5f, 15.5f, NAN, INFINITY, -INFINITY};
    const uint8_t want[] = {0x00, 0x22, 0xE3, 0x0F, 0x0F};
    infer_format_get(INFER_FMT_U4)->pack(y, code, sizeof y / sizeof y[0]);
    assert_memory_equal(code, want, sizeof want);
    infer_free(x);
    infer_free(code);
}

static void test_half_round_trip(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = infer_f16_to_f32((uint16_t)h), b = infer_bf16_to_f32((uint16_t)h);
        if (!isnan(f))
            assert_int_equal(infer_f32_to_f16(f), h);
        else
            assert_true(isnan(infer_f16_to_f32(infer_f32_to_f16(f))));
        if (!isnan(b))
            assert_int_equal(infer_f32_to_bf16(b), h);
        else
            assert_true(isnan(infer_bf16_to_f32(infer_f32_to_bf16(b))));
    }
    assert_int_equal(infer_f32_to_e4m3(INFINITY), 0x7E);
    assert_int_equal(infer_f32_to_e4m3(-1e9f), 0xFE);
    assert_true(isnan(infer_e4m3_to_f32(infer_f32_to_e4m3(NAN))));
}

static void test_integers(void **state)
{
    (void)state;
    const float x[8] = {0.5f, 1.5f, -1.5f, 1e10f, -1e10f, NAN, 200, -129};
    int8_t a[8];
    int32_t c[8];
    uint8_t u[8], n[4];
    infer_format_get(INFER_FMT_I8)->pack(x, a, 8);
    const int8_t want_a[8] = {0, 2, -2, 127, -128, 0, 127, -128};
    assert_memory_equal(a, want_a, sizeof a);
    infer_format_get(INFER_FMT_I32)->pack(x, c, 8);
    assert_int_equal(c[3], INT32_MAX);
    assert_int_equal(c[4], INT32_MIN);
    infer_format_get(INFER_FMT_U8)->pack(x, u, 8);
    const uint8_t want_u[8] = {0, 2, 0, 255, 0, 0, 200, 0};
    assert_memory_equal(u, want_u, sizeof u);
    infer_format_get(INFER_FMT_U4)->pack(x, n, 8);
    const uint8_t want_n[4] = {0x20, 0xF0, 0x00, 0x0F};
    assert_memory_equal(n, want_n, sizeof n);
    float e[6];
    uint8_t codes[6];
    const float scales[6] = {1, 1.5f, 3, 1.4f, 0, 5.9e-39f};
    infer_format_get(INFER_FMT_E8M0)->pack(scales, codes, 6);
    const uint8_t want_codes[6] = {127, 128, 128, 127, 0, 0};
    assert_memory_equal(codes, want_codes, sizeof codes);
    infer_format_get(INFER_FMT_E8M0)->unpack(codes, e, 6);
    assert_true(e[0] == 1 && e[1] == 2 && e[4] == 0x1p-127f);
}

static const struct plane_case {
    const char *name;
    infer_quant q;
    double bound;
} plane_cases[] = {
    {"fp8 per tensor", {INFER_FMT_F8_E4M3, INFER_FMT_F32, INFER_FMT_NONE, 0, 0, 0}, 0.03},
    {"fp8 per channel", {INFER_FMT_F8_E4M3, INFER_FMT_F32, INFER_FMT_NONE, 0, 1, 0}, 0.03},
    {"fp8 block", {INFER_FMT_F8_E4M3, INFER_FMT_BF16, INFER_FMT_NONE, 0, 128, 128}, 0.03},
    {"e5m2 per channel", {INFER_FMT_F8_E5M2, INFER_FMT_F32, INFER_FMT_NONE, 0, 1, 0}, 0.06},
    {"int8 a channel", {INFER_FMT_I8, INFER_FMT_F32, INFER_FMT_NONE, 0, 1, 0}, 0.01},
    {"4-bit groups, zeros", {INFER_FMT_U4, INFER_FMT_F16, INFER_FMT_U4, 0, 1, 128}, 0.12},
    {"4-bit groups", {INFER_FMT_U4, INFER_FMT_F16, INFER_FMT_NONE, 8, 1, 128}, 0.12},
    {"4-bit groups of 32", {INFER_FMT_U4, INFER_FMT_F32, INFER_FMT_U8, 0, 1, 32}, 0.09},
    {"uint8, zeros per tensor", {INFER_FMT_U8, INFER_FMT_F32, INFER_FMT_U8, 0, 0, 0}, 0.012},
};

/* Pack, read rows back, and check each value against scale * (code - zero) computed here from the raw planes. */
static void test_planes(void **state)
{
    (void)state;
    enum { N = 133, K = 322 };
    float *x = infer_malloc(N * K * sizeof *x), *y = infer_malloc(N * K * sizeof *y);
    fill_normal(x, N * K, 3);
    for (size_t c = 0; c < sizeof plane_cases / sizeof plane_cases[0]; c++) {
        const infer_quant *q = &plane_cases[c].q;
        uint64_t bytes[3];
        assert_int_equal(infer_quant_bytes(q, N, K, bytes), INFER_OK);
        uint64_t gn = q->group_n ? q->group_n : N, gk = q->group_k ? q->group_k : K;
        uint64_t per_row = (K + gk - 1) / gk, entries = (N + gn - 1) / gn * per_row;
        int z4 = q->zero_format == INFER_FMT_U4;
        assert_int_equal(bytes[0], q->format == INFER_FMT_U4 ? N * K / 2 : N * K);
        assert_int_equal(bytes[1], entries * infer_format_get(q->scale_format)->block_bytes);
        assert_int_equal(bytes[2], !q->zero_format ? 0 : z4 ? (entries + 1) / 2 : entries);
        uint8_t *data = infer_malloc(bytes[0]), *scale = infer_malloc(bytes[1]);
        uint8_t *zero = bytes[2] ? infer_malloc(bytes[2]) : NULL;
        assert_int_equal(infer_quant_pack(q, x, N, K, data, scale, zero), INFER_OK);
        const infer_quant_planes p = {data, scale, zero};
        for (uint64_t r = 0; r < N; r++) {
            assert_int_equal(infer_quant_unpack_row(q, &p, N, K, r, y + r * K), INFER_OK);
            for (uint64_t k = 0; k < K; k++) {
                uint64_t e = r / gn * per_row + k / gk, i = r * K + k;
                float code[2], s, z = (float)q->zero_value;
                if (q->format == INFER_FMT_U4)
                    code[0] = (float)(data[i / 2] >> (i % 2 * 4) & 15);
                else
                    infer_format_get(q->format)->unpack(data + i, code, 1);
                infer_format_get(q->scale_format)->unpack(scale + e * (bytes[1] / entries), &s, 1);
                if (zero)
                    z = (float)(z4 ? zero[e / 2] >> (e % 2 * 4) & 15 : zero[e]);
                assert_true(y[i] == s * (code[0] - z));
            }
        }
        double err = rel_rms(x, y, N * K);
        print_message("%-24s %.5f of %.5f\n", plane_cases[c].name, err, plane_cases[c].bound);
        if (err > plane_cases[c].bound || err < plane_cases[c].bound / 3)
            fail_msg("%s: relative error %.5f, bound %.5f", plane_cases[c].name, err, plane_cases[c].bound);
        float row[K];
        const infer_quant_planes missing = {data, NULL, zero};
        assert_int_equal(infer_quant_unpack_row(q, &missing, N, K, 0, row), INFER_E_INVALID);
        assert_int_equal(infer_quant_unpack_row(q, &p, N, K, N, row), INFER_E_INVALID);
        infer_free(data);
        infer_free(scale);
        infer_free(zero);
    }
    infer_free(x);
    infer_free(y);
}

static void test_plane_errors(void **state)
{
    (void)state;
    uint64_t b[3];
    infer_quant q = {INFER_FMT_Q4_0, 0, 0, 0, 0, 0};
    assert_int_equal(infer_quant_bytes(&q, 3, 64, b), INFER_OK);
    assert_true(b[0] == 3 * 36 && !b[1] && !b[2]);
    assert_int_equal(infer_quant_bytes(&q, 3, 63, b), INFER_E_INVALID);
    assert_int_equal(infer_quant_bytes(&q, UINT64_MAX / 2, 64, b), INFER_E_TOO_LARGE);
    q.group_k = 32; /* a field beside a self-scaled format */
    assert_int_equal(infer_quant_bytes(&q, 3, 64, b), INFER_E_INVALID);
    q = (infer_quant){INFER_FMT_Q4_0, INFER_FMT_F32, 0, 0, 1, 0};
    assert_int_equal(infer_quant_bytes(&q, 3, 64, b), INFER_E_INVALID);
    q = (infer_quant){INFER_FMT_I8, INFER_FMT_Q8_0, 0, 0, 1, 0};
    assert_int_equal(infer_quant_bytes(&q, 3, 64, b), INFER_E_INVALID);
    q = (infer_quant){99, 0, 0, 0, 0, 0};
    assert_int_equal(infer_quant_bytes(&q, 3, 64, b), INFER_E_INVALID);
    float x[4] = {1, 2, 3, 4}, scale[4];
    uint8_t data[4];
    q = (infer_quant){INFER_FMT_U4, INFER_FMT_F32, 0, 0, 1, 0}; /* zero point 0 cannot be symmetric */
    assert_int_equal(infer_quant_pack(&q, x, 1, 4, data, scale, NULL), INFER_E_INVALID);
    q = (infer_quant){INFER_FMT_F8_E4M3, INFER_FMT_F32, INFER_FMT_U8, 0, 1, 0};
    assert_int_equal(infer_quant_pack(&q, x, 1, 4, data, scale, data), INFER_E_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),          cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_odd_blocks),      cmocka_unit_test(test_lookup),
        cmocka_unit_test(test_integers),        cmocka_unit_test(test_planes),
        cmocka_unit_test(test_half_round_trip), cmocka_unit_test(test_plane_errors),
        cmocka_unit_test(test_packs_at_once),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
