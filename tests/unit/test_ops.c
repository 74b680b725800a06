/* core/ops: the table, rows of a run, and the element-wise, row and norm ops on hand-computed numbers.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>

#include "unit/ops_util.h"

#include "base/alloc.h"
#include "quant/quant.h"

/* Counts of operands, the rows operand and the epilogue column say what the signature says. */
static void test_table(void **state)
{
    (void)state;
    int n = 0;
    for (infer_op_id id = 0; id < INFER_OP_COUNT + 4; id++) {
        const infer_op_info *info = infer_op_get(id);
        if (!info)
            continue;
        n++;
        assert_int_equal(info->id, id);
        assert_ptr_equal(infer_op_by_name(info->name), info);
        int side = 0, count[2] = {0}, required[2] = {0}, rows_of = -1;
        char first_out = 0;
        for (const char *c = info->sig; *c; c++) {
            if (c[0] == '-' && c[1] == '>')
                side = 1;
            if (*c == '[' && c[1] == 'n' && !side && rows_of < 0)
                rows_of = count[0];
            if (*c == ':') {
                count[side]++;
                required[side] += c[2] != '?';
                if (side && !first_out)
                    first_out = c[1];
            }
        }
        assert_int_equal(info->n_in_max, count[0]);
        assert_int_equal(info->n_out_max, count[1]);
        assert_int_equal(info->n_in_min, required[0]);
        assert_int_equal(info->n_out_min, required[1]);
        assert_true(rows_of >= 0);
        if (id != INFER_OP_KV_UNPACK)
            assert_int_equal(info->rows_of, rows_of);
        if (info->takes_epilogue)
            assert_int_equal(first_out, 'f');
        assert_true(info->n_in_max + info->n_out_max <= INFER_OP_MAX_OPERANDS);
    }
    assert_true(n >= 36);
    assert_null(infer_op_get(INFER_OP_NONE));
    assert_null(infer_op_by_name("no_such_op"));
}

static void test_tensor_bytes(void **state)
{
    (void)state;
    uint64_t bytes;
    infer_tensor_desc t = infer_tensor_make(INFER_FMT_F32, 3, 2, 3, 5, 0);
    assert_int_equal(infer_tensor_elems(&t), 30);
    assert_int_equal(infer_tensor_bytes(&t, &bytes), INFER_OK);
    assert_int_equal(bytes, 120);
    t.stride[0] = 100;
    t.stride[1] = 24;
    assert_int_equal(infer_tensor_bytes(&t, &bytes), INFER_OK);
    assert_int_equal(bytes, 100 + 2 * 24 + 20);
    t.stride[1] = 16; /* steps into its own row */
    assert_int_equal(infer_tensor_bytes(&t, &bytes), INFER_E_INVALID);
    t.stride[1] = 22; /* leaves the alignment of a float */
    assert_int_equal(infer_tensor_bytes(&t, &bytes), INFER_E_INVALID);
    t = infer_tensor_make(INFER_FMT_F32, 2, INT64_MAX / 8, 4, 0, 0);
    assert_int_equal(infer_tensor_bytes(&t, &bytes), INFER_E_TOO_LARGE);
    t = infer_tensor_make(INFER_FMT_Q4_0, 2, 3, 33, 0, 0);
    assert_int_equal(infer_tensor_bytes(&t, &bytes), INFER_E_INVALID);
    t = infer_tensor_make(INFER_FMT_Q4_0, 2, 3, 64, 0, 0);
    assert_int_equal(infer_tensor_bytes(&t, &bytes), INFER_OK);
    assert_int_equal(bytes, 3 * 36);
    t = infer_tensor_make(INFER_FMT_U4, 2, 3, 32, 0, 0);
    t.quant = (infer_quant){INFER_FMT_U4, INFER_FMT_F16, INFER_FMT_NONE, 8, 1, 16};
    assert_int_equal(infer_tensor_bytes(&t, &bytes), INFER_OK);
    assert_int_equal(bytes, 256 + 3 * 2 * 2); /* 48 bytes of data, then scales at the next 256 */
    t.shape[0] = 0;
    assert_int_equal(infer_tensor_bytes(&t, &bytes), INFER_E_INVALID);
}

static void test_rows(void **state)
{
    (void)state;
    float x[12] = {0}, y[12];
    op_build b;
    int32_t counts[INFER_COUNT_MAX] = {3, 2, -5};
    infer_attrs_scale a = {.struct_size = sizeof a, .scale = 1};
    op_begin(&b, INFER_OP_SCALE, &a, sizeof a);
    OP_IN2(&b, F32, x, 6, 2);
    OP_OUT2(&b, F32, y, 6, 2);
    assert_int_equal(infer_op_rows(&b.d, counts), 6);
    b.d.rows_from = INFER_COUNT_SEQS;
    assert_int_equal(infer_op_rows(&b.d, counts), 2);
    b.d.rows_mul = 2;
    assert_int_equal(infer_op_rows(&b.d, counts), 4);
    b.d.rows_mul = 0xFFFFFFFFu;
    assert_int_equal(infer_op_rows(&b.d, counts), 6);
    b.d.rows_from = INFER_COUNT_LOGITS;
    assert_int_equal(infer_op_rows(&b.d, counts), 0);
    assert_int_equal(infer_op_rows(&b.d, NULL), 6);
    assert_int_equal(infer_op_ref(&b.d, b.data, NULL), INFER_E_INVALID);
    /* rows past the count keep their bytes */
    b.d.rows_from = INFER_COUNT_TOKENS;
    b.d.rows_mul = 1;
    a.bias = 7;
    memset(y, 0x5A, sizeof y);
    op_run_counts(&b, counts);
    for (int i = 0; i < 6; i++)
        assert_true(y[i] == 7);
    float untouched;
    memset(&untouched, 0x5A, sizeof untouched);
    for (int i = 6; i < 12; i++)
        assert_memory_equal(&y[i], &untouched, sizeof untouched);
}

static void test_elementwise(void **state)
{
    (void)state;
    float x[4] = {1, -2, 3, -4}, r[4] = {10, 20, 30, 40}, bias[2] = {0.5f, -0.5f}, y[4];
    op_build b;
    op_begin(&b, INFER_OP_ADD, NULL, 0);
    OP_IN2(&b, F32, x, 2, 2);
    OP_IN2(&b, F32, r, 2, 2);
    OP_OUT2(&b, F32, y, 2, 2);
    op_run(&b);
    assert_memory_equal(y, ((float[]){11, 18, 33, 36}), sizeof y);
    b.t[1] = infer_tensor_make(INFER_FMT_F32, 1, 2, 1, 1, 1);
    b.data[1] = bias;
    op_run(&b);
    assert_memory_equal(y, ((float[]){1.5f, -2.5f, 3.5f, -4.5f}), sizeof y);
    b.d.op = INFER_OP_MUL;
    op_run(&b);
    assert_memory_equal(y, ((float[]){0.5f, 1, 1.5f, 2}), sizeof y);

    infer_attrs_scale s = {.struct_size = sizeof s, .scale = 2, .bias = 1};
    op_begin(&b, INFER_OP_SCALE, &s, sizeof s);
    OP_IN2(&b, F32, x, 2, 2);
    OP_OUT2(&b, F32, y, 2, 2);
    op_run(&b);
    assert_memory_equal(y, ((float[]){3, -3, 7, -7}), sizeof y);
    s.struct_size = 8; /* an older producer's struct ends before bias */
    op_run(&b);
    assert_memory_equal(y, ((float[]){2, -4, 6, -8}), sizeof y);
}

static void test_activations(void **state)
{
    (void)state;
    float x[2] = {1, -2}, up[2] = {3, 5}, y[2];
    /* from tables of the logistic and error functions */
    const double want[][2] = {{0.7310585786, -0.2384058440},
                              {0.8413447461, -0.0455002639},
                              {0.8411919906, -0.0454023059},
                              {1, 0},
                              {0.7310585786, 0.1192029220}};
    infer_attrs_act a = {.struct_size = sizeof a};
    op_build b;
    op_begin(&b, INFER_OP_ACT, &a, sizeof a);
    OP_IN2(&b, F32, x, 1, 2);
    OP_OUT2(&b, F32, y, 1, 2);
    for (a.act = 0; a.act < 5; a.act++) {
        op_run(&b);
        assert_true(fabs(y[0] - want[a.act][0]) < 1e-6 && fabs(y[1] - want[a.act][1]) < 1e-6);
    }
    assert_int_equal(op_status(&b), INFER_E_UNSUPPORTED);
    a.act = INFER_ACT_SILU;
    op_begin(&b, INFER_OP_GLU, &a, sizeof a);
    OP_IN2(&b, F32, x, 1, 2);
    OP_IN2(&b, F32, up, 1, 2);
    OP_OUT2(&b, F32, y, 1, 2);
    op_run(&b);
    assert_true(fabs(y[0] - 3 * want[0][0]) < 1e-6 && fabs(y[1] - 5 * want[0][1]) < 1e-6);
    a.limit = 0.5f; /* gate 0.5, up 0.5; gate -2 stays */
    op_run(&b);
    assert_true(fabs(y[0] - 0.5 * 0.3112296656) < 1e-6 && fabs(y[1] - 0.5 * want[0][1]) < 1e-6);
}

static void test_rows_ops(void **state)
{
    (void)state;
    float table[6] = {1, 2, 3, 4, 5, 6}, y[12];
    int32_t ids[4] = {2, -1, 0, 3}, out[3];
    op_build b;
    op_begin(&b, INFER_OP_GATHER_ROWS, NULL, 0);
    OP_IN2(&b, F32, table, 3, 2);
    OP_IN1(&b, I32, ids, 4);
    OP_OUT2(&b, F32, y, 4, 2);
    op_run(&b);
    assert_memory_equal(y, ((float[]){5, 6, 0, 0, 1, 2, 0, 0}), 8 * sizeof *y);

    op_begin(&b, INFER_OP_CONCAT_ROWS, NULL, 0);
    OP_IN2(&b, F32, table, 2, 2);
    OP_IN2(&b, F32, table + 4, 2, 1);
    OP_OUT2(&b, F32, y, 2, 3);
    op_run(&b);
    assert_memory_equal(y, ((float[]){1, 2, 5, 3, 4, 6}), 6 * sizeof *y);

    float z[9] = {1, 3, 3, NAN, -1, NAN, NAN, NAN, NAN};
    op_begin(&b, INFER_OP_ARGMAX, NULL, 0);
    OP_IN2(&b, F32, z, 3, 3);
    OP_OUT1(&b, I32, out, 3);
    op_run(&b);
    assert_memory_equal(out, ((int32_t[]){1, 1, -1}), sizeof out);

    int32_t host[4] = {7, 8, 9, 10}, from[4] = {-1, 1, 0, 2}, sampled[2] = {50, 51}, chosen[4];
    op_begin(&b, INFER_OP_IDS_SELECT, NULL, 0);
    OP_IN1(&b, I32, host, 4);
    OP_IN1(&b, I32, from, 4);
    OP_IN1(&b, I32, sampled, 2);
    OP_OUT1(&b, I32, chosen, 4);
    op_run(&b);
    assert_memory_equal(chosen, ((int32_t[]){7, 51, 50, -1}), sizeof chosen);

    float pool[8] = {0, 1, 10, 11, 20, 21, 30, 31};
    int32_t src[4] = {1, 2, 9, 0}, dst[4] = {0, 1, 0, -1};
    op_begin(&b, INFER_OP_STATE_COPY, NULL, 0);
    OP_IN2(&b, F32, pool, 4, 2);
    OP_IN1(&b, I32, src, 4);
    OP_IN1(&b, I32, dst, 4);
    OP_OUT2(&b, F32, pool, 4, 2);
    op_run(&b);
    assert_memory_equal(pool, ((float[]){10, 11, 20, 21, 20, 21, 30, 31}), sizeof pool);
}

static void test_softmax(void **state)
{
    (void)state;
    float x[2 * 7], y[2 * 7];
    op_build b;
    op_fill(x, 14, 1);
    x[3] = 1000; /* must not overflow */
    op_begin(&b, INFER_OP_SOFTMAX, NULL, 0);
    OP_IN2(&b, F32, x, 2, 7);
    OP_OUT2(&b, F32, y, 2, 7);
    op_run(&b);
    for (int i = 0; i < 2; i++) {
        double sum = 0;
        for (int j = 0; j < 7; j++)
            sum += y[i * 7 + j];
        assert_true(fabs(sum - 1) < 1e-6);
    }
    assert_true(y[3] == 1);
    float u[2] = {0, 1};
    infer_attrs_scale a = {.struct_size = sizeof a, .scale = 2};
    op_begin(&b, INFER_OP_SOFTMAX, &a, sizeof a);
    OP_IN2(&b, F32, u, 1, 2);
    OP_OUT2(&b, F32, y, 1, 2);
    op_run(&b);
    assert_true(fabs(y[1] - 1 / (1 + exp(-2))) < 1e-7);
    u[0] = u[1] = -INFINITY;
    op_run(&b);
    assert_true(y[0] == 0 && y[1] == 0);
}

static void test_norms(void **state)
{
    (void)state;
    float x[4] = {3, 4, 0, 0}, w[2] = {2, 1}, bias[2] = {1, 1}, y[4], s[4];
    infer_attrs_norm a = {.struct_size = sizeof a, .eps = 0.5f};
    op_build b;
    op_begin(&b, INFER_OP_RMS_NORM, &a, sizeof a);
    OP_IN2(&b, F32, x, 2, 2);
    OP_IN1(&b, F32, w, 2);
    OP_OUT2(&b, F32, y, 2, 2);
    op_run(&b); /* mean square 12.5, with eps 13 */
    assert_true(fabs(y[0] - 6 / sqrt(13)) < 1e-6 && fabs(y[1] - 4 / sqrt(13)) < 1e-6 && y[2] == 0 && y[3] == 0);
    a.weight_offset = 1;
    op_run(&b);
    assert_true(fabs(y[0] - 9 / sqrt(13)) < 1e-6 && fabs(y[1] - 8 / sqrt(13)) < 1e-6);
    b.t[1].flags = INFER_TENSOR_ABSENT;
    op_run(&b);
    assert_true(fabs(y[0] - 3 / sqrt(13)) < 1e-6);

    a = (infer_attrs_norm){.struct_size = sizeof a, .eps = 0.75f};
    op_begin(&b, INFER_OP_LAYER_NORM, &a, sizeof a);
    OP_IN2(&b, F32, x, 2, 2);
    OP_IN1(&b, F32, w, 2);
    OP_IN1(&b, F32, bias, 2);
    OP_OUT2(&b, F32, y, 2, 2);
    op_run(&b); /* mean 3.5, variance 0.25, with eps 1 */
    assert_memory_equal(y, ((float[]){0, 1.5f, 1, 1}), sizeof y);

    float r[4] = {1, 0, 2, -2};
    op_begin(&b, INFER_OP_ADD_RMS_NORM, &a, sizeof a);
    OP_IN2(&b, F32, x, 2, 2);
    OP_IN2(&b, F32, r, 2, 2);
    OP_IN1(&b, F32, w, 2);
    OP_OUT2(&b, F32, y, 2, 2);
    OP_OUT2(&b, F32, s, 2, 2);
    op_run(&b);
    assert_memory_equal(s, ((float[]){4, 4, 2, -2}), sizeof s);
    assert_true(fabs(y[0] - 8 / sqrt(16.75)) < 1e-6 && fabs(y[3] + 2 / sqrt(4.75)) < 1e-6);
}

/* Formats convert, strided views are read and written in place of copies. */
static void test_copy(void **state)
{
    (void)state;
    float x[2 * 32], y[2 * 32];
    uint8_t q[2 * 34];
    uint16_t h[2 * 32];
    op_build b;
    op_fill(x, 64, 3);
    op_begin(&b, INFER_OP_COPY, NULL, 0);
    OP_IN2(&b, F32, x, 2, 32);
    OP_OUT2(&b, Q8_0, q, 2, 32);
    op_run(&b);
    op_begin(&b, INFER_OP_COPY, NULL, 0);
    OP_IN2(&b, Q8_0, q, 2, 32);
    OP_OUT2(&b, F32, y, 2, 32);
    op_run(&b);
    for (int i = 0; i < 64; i++)
        assert_true(fabs(y[i] - x[i]) < 1.0 / 127);
    op_begin(&b, INFER_OP_COPY, NULL, 0);
    OP_IN2(&b, F32, x, 2, 32);
    OP_OUT2(&b, F16, h, 2, 32);
    op_run(&b);
    for (int i = 0; i < 64; i++)
        assert_int_equal(h[i], infer_f32_to_f16(x[i]));
    /* columns 8..15 of each row */
    op_begin(&b, INFER_OP_COPY, NULL, 0);
    OP_IN2(&b, F32, x + 8, 2, 8)->stride[0] = 128;
    OP_OUT2(&b, F32, y, 2, 8);
    op_run(&b);
    assert_memory_equal(y, x + 8, 32);
    assert_memory_equal(y + 8, x + 40, 32);
}

/* Steps in order; the list equals the same ops one by one. */
static void test_epilogue(void **state)
{
    (void)state;
    float x[4] = {1, 2, 3, 4}, r[4] = {1, 1, 1, -9}, bias[2] = {10, 20}, y[4];
    uint16_t h[4];
    infer_attrs_scale a = {.struct_size = sizeof a, .scale = 2};
    op_build b;
    op_begin(&b, INFER_OP_SCALE, &a, sizeof a);
    OP_IN2(&b, F32, x, 2, 2);
    OP_IN1(&b, F32, bias, 2);
    OP_IN2(&b, F32, r, 2, 2);
    OP_OUT2(&b, F32, y, 2, 2);
    assert_int_equal(op_status(&b), INFER_E_INVALID); /* operands that serve nothing */
    b.d.n_epilogue = 4;
    b.epi[0] = (infer_epilogue){.kind = INFER_EPI_BIAS, .operand = 1};
    b.epi[1] = (infer_epilogue){.kind = INFER_EPI_MUL, .operand = 2};
    b.epi[2] = (infer_epilogue){.kind = INFER_EPI_ACT, .arg = INFER_ACT_RELU};
    b.epi[3] = (infer_epilogue){.kind = INFER_EPI_SCALE, .factor = 0.5f};
    op_run(&b);
    assert_memory_equal(y, ((float[]){6, 12, 8, 0}), sizeof y);
    b.d.n_epilogue = 3;
    b.epi[1].kind = INFER_EPI_RESIDUAL;
    b.epi[2] = (infer_epilogue){.kind = INFER_EPI_CONVERT, .arg = INFER_FMT_F16};
    assert_int_equal(op_status(&b), INFER_E_INVALID); /* the output is F32 */
    b.t[3].format = INFER_FMT_F16;
    b.data[3] = h;
    op_run(&b);
    const float want[4] = {13, 25, 17, 19};
    for (int i = 0; i < 4; i++)
        assert_int_equal(h[i], infer_f32_to_f16(want[i]));
    b.epi[0].operand = 2;
    assert_int_equal(op_status(&b), INFER_E_INVALID); /* a bias of rank 2 */
    b.epi[0] = (infer_epilogue){.kind = 99};
    assert_int_equal(op_status(&b), INFER_E_UNSUPPORTED);
}

/* Every allocation of a run may fail; the run then says so and leaks nothing. */
static void test_no_memory(void **state)
{
    (void)state;
    uint16_t x[8] = {0}, w[4] = {0}, y[8], s[8];
    infer_attrs_norm a = {.struct_size = sizeof a, .eps = 1};
    op_build b;
    op_begin(&b, INFER_OP_ADD_RMS_NORM, &a, sizeof a);
    OP_IN2(&b, F16, x, 2, 4);
    OP_IN2(&b, F16, x, 2, 4);
    OP_IN1(&b, F16, w, 4);
    OP_OUT2(&b, F16, y, 2, 4);
    OP_OUT2(&b, F16, s, 2, 4);
    int n = 0;
    for (;; n++) {
        infer_alloc_fail_after(n, 0);
        infer_status st = infer_op_ref(&b.d, b.data, NULL);
        if (!infer_alloc_fail_after(-1, 0)) {
            assert_int_equal(st, INFER_OK);
            break;
        }
        assert_int_equal(st, INFER_E_NO_MEMORY);
    }
    assert_true(n >= 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),       cmocka_unit_test(test_tensor_bytes), cmocka_unit_test(test_rows),
        cmocka_unit_test(test_elementwise), cmocka_unit_test(test_activations),  cmocka_unit_test(test_rows_ops),
        cmocka_unit_test(test_softmax),     cmocka_unit_test(test_norms),        cmocka_unit_test(test_copy),
        cmocka_unit_test(test_epilogue),    cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
