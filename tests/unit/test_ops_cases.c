/* core/ops/cases: every case is valid, repeatable, and judged as it should be; the reference's rows stand alone.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>

#include "unit/unit.h"

#include "base/alloc.h"
#include "ops/cases.h"
#include "quant/quant.h"

#define SEED 7

static void release(void **r)
{
    for (uint32_t i = 0; i < INFER_OP_MAX_OPERANDS; i++) {
        infer_free(r[i]);
        r[i] = NULL;
    }
}

typedef void (*visit_fn)(infer_op_id op, uint32_t index, infer_op_case *c);

static void for_each_case(visit_fn visit)
{
    for (infer_op_id op = 0; op < INFER_OP_COUNT; op++)
        for (uint32_t i = 0; i < infer_op_case_count(op); i++) {
            infer_op_case c;
            assert_int_equal(infer_op_case_make(op, i, SEED, &c), INFER_OK);
            visit(op, i, &c);
            infer_op_case_free(&c);
        }
}

/* Every op with a reference has cases: odd ones, dynamic rows, and nothing else does. */
static void test_all_ops(void **state)
{
    (void)state;
    infer_op_case c;
    for (infer_op_id op = 0; op < INFER_OP_COUNT; op++) {
        const infer_op_info *info = infer_op_get(op);
        uint32_t n = infer_op_case_count(op), dynamic = 0;
        assert_int_equal(n > 0, info && info->ref);
        assert_int_equal(infer_op_case_make(op, n, SEED, &c), INFER_E_INVALID);
        for (uint32_t i = 0; i < n; i++) {
            assert_int_equal(infer_op_case_make(op, i, SEED, &c), INFER_OK);
            dynamic += c.desc.rows_from != INFER_ROWS_STATIC;
            infer_op_case_free(&c);
        }
        assert_true(!n || (n >= 3 && (dynamic || op == INFER_OP_GATED_MLP)));
    }
}

static void valid(infer_op_id op, uint32_t index, infer_op_case *c)
{
    infer_error err = {0};
    infer_op_case again;
    if (infer_op_check(&c->desc, &err) != INFER_OK)
        fail_msg("%s: %s", c->label, err.text);
    assert_int_equal(infer_op_case_make(op, index, SEED, &again), INFER_OK);
    for (uint32_t i = 0; i < c->desc.n_in + c->desc.n_out; i++)
        if (c->data[i])
            assert_memory_equal(c->data[i], again.data[i], c->bytes[i]);
    infer_op_case_free(&again);
}

static void test_valid(void **state)
{
    (void)state;
    for_each_case(valid);
}

/* The reference passes against itself, twice the same; one wrong value, one byte past the count or a NaN does not. */
static void judged(infer_op_id op, uint32_t index, infer_op_case *c)
{
    void *a[INFER_OP_MAX_OPERANDS] = {0}, *b[INFER_OP_MAX_OPERANDS] = {0};
    (void)index;
    int written = 0;
    assert_int_equal(infer_op_case_expect(c, a), INFER_OK);
    assert_int_equal(infer_op_case_expect(c, b), INFER_OK);
    for (uint32_t i = 0; i < INFER_OP_MAX_OPERANDS; i++) {
        infer_case_diff d;
        if (!a[i])
            continue;
        assert_memory_equal(a[i], b[i], c->bytes[i]);
        if (!infer_op_case_compare(c, i, a[i], b[i], &c->tol, &d))
            fail_msg("%s: operand %u: %s", c->label, i, d.text);
        /* what no row may see is NaN in some cases: it must not have come through */
        for (uint64_t k = 0; c->tensors[i].format == INFER_FMT_F32 && op != INFER_OP_SAMPLE && k < c->bytes[i] / 4; k++)
            assert_true(isfinite(((float *)a[i])[k]));
        written += memcmp(a[i], c->data[i], c->bytes[i]) != 0;
        /* a wrong bit in the last byte that the op left alone, or in the highest byte of the first value */
        uint8_t *p = b[i];
        uint64_t last = c->bytes[i] - 1;
        p[last] ^= 0x40;
        assert_false(infer_op_case_compare(c, i, a[i], b[i], &c->tol, &d));
        assert_true(d.text[0]);
        p[last] ^= 0x40;
        if (c->tensors[i].format == INFER_FMT_F32) {
            float keep = *(float *)b[i];
            *(float *)b[i] = NAN;
            if (!isnan(keep))
                assert_false(infer_op_case_compare(c, i, a[i], b[i], &c->tol_i8, &d));
        }
    }
    assert_true(written > 0);
    release(a);
    release(b);
}

static void test_judged(void **state)
{
    (void)state;
    for_each_case(judged);
}

/* With fewer rows, the rows that remain have the same bytes. */
static void alone(infer_op_id op, uint32_t index, infer_op_case *c)
{
    void *all[INFER_OP_MAX_OPERANDS] = {0}, *few[INFER_OP_MAX_OPERANDS] = {0};
    const infer_op_info *info = infer_op_get(op);
    (void)index;
    if (info->inout || info->writes_in || c->same_as[c->desc.n_in] >= 0)
        return;
    assert_int_equal(infer_op_case_expect(c, all), INFER_OK);
    int64_t rows = infer_op_rows(&c->desc, c->counts);
    for (int64_t n = rows - 1; n > 0; n /= 3) {
        infer_op_case part = *c;
        part.desc.rows_from = INFER_COUNT_MAX - 1;
        part.desc.rows_mul = 1;
        part.counts[INFER_COUNT_MAX - 1] = (int32_t)n;
        assert_int_equal(infer_op_case_expect(&part, few), INFER_OK);
        for (uint32_t i = 0; i < INFER_OP_MAX_OPERANDS; i++) {
            if (!few[i])
                continue;
            uint64_t row = 0;
            infer_tensor_desc t = c->tensors[i];
            t.shape[0] = n;
            if (t.rank == 1)
                row = (uint64_t)n * infer_format_get(t.format)->block_bytes;
            else
                assert_int_equal(infer_tensor_bytes(&t, &row), INFER_OK);
            assert_memory_equal(all[i], few[i], row);
            assert_memory_equal((uint8_t *)few[i] + row, c->data[i] + row, c->bytes[i] - row);
        }
        release(few);
    }
    release(all);
}

static void test_alone(void **state)
{
    (void)state;
    for_each_case(alone);
}

/* A device that converts x to 8 bits passes the wide bound and fails the narrow one. */
static void test_eight_bits(void **state)
{
    (void)state;
    int n = 0;
    for (uint32_t index = 0; index < infer_op_case_count(INFER_OP_MATMUL); index++) {
        infer_op_case c;
        void *want[INFER_OP_MAX_OPERANDS] = {0}, *got[INFER_OP_MAX_OPERANDS] = {0};
        infer_case_diff d;
        assert_int_equal(infer_op_case_make(INFER_OP_MATMUL, index, SEED, &c), INFER_OK);
        const infer_tensor_desc *x = &c.tensors[0];
        if (x->format != INFER_FMT_F32 || x->stride[0] || x->shape[1] < 32 || c.tol_i8.rel != 0 || c.desc.n_epilogue) {
            infer_op_case_free(&c);
            continue;
        }
        assert_int_equal(infer_op_case_expect(&c, want), INFER_OK);
        float *v = (float *)(void *)c.data[0];
        for (int64_t i = 0; i < x->shape[0]; i++) {
            float most = 0;
            for (int64_t j = 0; j < x->shape[1]; j++)
                most = fmaxf(most, fabsf(v[i * x->shape[1] + j]));
            for (int64_t j = 0; j < x->shape[1]; j++)
                v[i * x->shape[1] + j] = roundf(v[i * x->shape[1] + j] / most * 127) * most / 127;
        }
        assert_int_equal(infer_op_case_expect(&c, got), INFER_OK);
        uint32_t y = c.desc.n_in;
        if (!infer_op_case_compare(&c, y, want[y], got[y], &c.tol_i8, &d))
            fail_msg("%s: %s", c.label, d.text);
        assert_false(infer_op_case_compare(&c, y, want[y], got[y], &c.tol, NULL));
        n++;
        release(want);
        release(got);
        infer_op_case_free(&c);
    }
    assert_true(n > 40);
}

/* A product whose sums run in float, one after the other, passes the narrow bound. */
static void test_float_sums(void **state)
{
    (void)state;
    int n = 0;
    for (uint32_t index = 0; index < infer_op_case_count(INFER_OP_MATMUL); index++) {
        infer_op_case c;
        void *want[INFER_OP_MAX_OPERANDS] = {0};
        infer_case_diff d;
        assert_int_equal(infer_op_case_make(INFER_OP_MATMUL, index, SEED, &c), INFER_OK);
        const infer_tensor_desc *x = &c.tensors[0], *w = &c.tensors[1];
        uint32_t out = c.desc.n_in;
        if (x->format == INFER_FMT_F32 && !x->stride[0] && !w->quant.format && c.tensors[out].format == INFER_FMT_F32 &&
            !c.desc.n_epilogue && !c.data[2] && !c.desc.attrs && c.desc.rows_from == INFER_ROWS_STATIC) {
            assert_int_equal(infer_op_case_expect(&c, want), INFER_OK);
            int64_t k = x->shape[1], rows = x->shape[0], cols = w->shape[0];
            const infer_format_info *f = infer_format_get(w->format);
            float *row = infer_malloc((size_t)k * sizeof *row), *got = infer_malloc(c.bytes[out]);
            const float *v = (const float *)(const void *)c.data[0];
            for (int64_t r = 0; r < cols; r++) {
                f->unpack(c.data[1] + (uint64_t)r * (uint64_t)(k / f->block_elems) * f->block_bytes, row, (uint64_t)k);
                for (int64_t i = 0; i < rows; i++) {
                    float s = 0;
                    for (int64_t j = 0; j < k; j++)
                        s += v[i * k + j] * row[j];
                    got[i * cols + r] = s;
                }
            }
            if (!infer_op_case_compare(&c, out, want[out], got, &c.tol, &d))
                fail_msg("%s: %s", c.label, d.text);
            infer_free(row);
            infer_free(got);
            n++;
        }
        release(want);
        infer_op_case_free(&c);
    }
    assert_true(n > 20);
}

/* Another seed gives other data; a case survives any failing allocation. */
static void test_seeds_and_memory(void **state)
{
    (void)state;
    infer_op_case a, b;
    assert_int_equal(infer_op_case_make(INFER_OP_ATTN_PAGED, 4, 1, &a), INFER_OK);
    assert_int_equal(infer_op_case_make(INFER_OP_ATTN_PAGED, 4, 2, &b), INFER_OK);
    assert_memory_not_equal(a.data[0], b.data[0], a.bytes[0]);
    infer_op_case_free(&a);
    infer_op_case_free(&b);
    for (infer_op_id op = 0; op < INFER_OP_COUNT; op++)
        for (uint32_t i = 0; i < infer_op_case_count(op); i += 3)
            for (int n = 0;; n++) {
                infer_alloc_fail_after(n, 0);
                infer_status st = infer_op_case_make(op, i, SEED, &a);
                if (st == INFER_OK) {
                    infer_alloc_fail_after(-1, 0);
                    infer_op_case_free(&a);
                    break;
                }
                assert_int_equal(st, INFER_E_NO_MEMORY);
                infer_alloc_fail_after(-1, 0);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_ops),          cmocka_unit_test(test_valid),
        cmocka_unit_test(test_judged),           cmocka_unit_test(test_alone),
        cmocka_unit_test(test_eight_bits),       cmocka_unit_test(test_float_sums),
        cmocka_unit_test(test_seeds_and_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
