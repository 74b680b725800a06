/*
 * Every case of core/ops/cases.h on the CPU backend, for each kernel table, with one thread and with more, within the
 * case's own bounds. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include "unit/cpu_fixture.h"

#include "base/alloc.h"
#include "ops/cases.h"

static infer_status check(void *ctx, const infer_op_desc *op)
{
    infer_error err = {0};
    (void)ctx;
    return infer_op_check(op, &err);
}

/* Runs one case; 0: the backend refused it. */
static int run_case(fixture *f, const infer_op_case *c)
{
    infer_range ranges[INFER_OP_MAX_OPERANDS] = {{0}};
    infer_buffer *buffers[INFER_OP_MAX_OPERANDS + 2] = {0};
    uint8_t *got[INFER_OP_MAX_OPERANDS] = {0};
    void *want[INFER_OP_MAX_OPERANDS] = {0};
    uint32_t n = c->desc.n_in + c->desc.n_out;
    infer_op_answer a = {.struct_size = sizeof a};
    assert_int_equal(f->ops->op_query(f->dev, &c->desc, sizeof c->desc, 1, &a, sizeof a), INFER_OK);
    if (a.level == INFER_LEVEL_NO)
        return 0;
    assert_int_equal(a.n_epilogue, c->desc.n_epilogue);
    assert_int_equal(infer_op_case_expect(c, want), INFER_OK);
    for (uint32_t i = 0; i < n; i++) {
        if (!c->data[i])
            continue;
        if (c->same_as[i] >= 0) {
            got[i] = got[c->same_as[i]];
        } else {
            got[i] = room(c->bytes[i]);
            memcpy(got[i], c->data[i], c->bytes[i]);
        }
        assert_int_equal(f->ops->buf_import_host(f->dev, got[i], c->bytes[i], &buffers[i]), INFER_OK);
        ranges[i] = (infer_range){buffers[i], 0, c->bytes[i]};
    }
    infer_op_args args = {.struct_size = sizeof args, .n_operands = n, .operands = ranges};
    int32_t counts[INFER_COUNT_MAX];
    memcpy(counts, c->counts, sizeof counts);
    assert_int_equal(f->ops->buf_import_host(f->dev, counts, sizeof counts, &buffers[n]), INFER_OK);
    if (c->desc.rows_from != INFER_ROWS_STATIC)
        args.counts = (infer_range){buffers[n], 0, sizeof counts};
    uint8_t *scratch = room(a.scratch_bytes + 1);
    assert_int_equal(f->ops->buf_import_host(f->dev, scratch, a.scratch_bytes, &buffers[n + 1]), INFER_OK);
    args.scratch = (infer_range){buffers[n + 1], 0, a.scratch_bytes};
    memset(scratch, 0xA5, a.scratch_bytes + 1);
    assert_int_equal(f->ops->cmd_op(f->queue, &c->desc, &args), INFER_OK);
    assert_int_equal(scratch[a.scratch_bytes], 0xA5);
    for (uint32_t i = 0; i < n; i++) {
        infer_case_diff diff;
        if (infer_op_case_writes(c, i) && c->data[i] && !infer_op_case_compare(c, i, want[i], got[i], &c->tol, &diff))
            fail_msg("%s, %s, %s threads: operand %u: %s", c->label, f->isa, f->threads, i, diff.text);
        int shared = infer_op_case_writes(c, i) || c->same_as[i] >= 0;
        for (uint32_t j = i + 1; j < n; j++)
            shared |= c->same_as[j] == (int32_t)i;
        if (!shared && c->data[i])
            assert_memory_equal(got[i], c->data[i], c->bytes[i]);
    }
    for (uint32_t i = 0; i < n; i++) {
        infer_free(want[i]);
        if (c->same_as[i] < 0)
            free(got[i]);
    }
    for (uint32_t i = 0; i < INFER_OP_MAX_OPERANDS + 2; i++)
        if (buffers[i])
            f->ops->buf_free(f->dev, buffers[i]);
    free(scratch);
    return 1;
}

static void run_all(const char *isa, const char *threads)
{
    fixture f;
    if (!fixture_open(&f, isa, threads))
        return;
    f.host.op_check = check;
    for (infer_op_id op = 1; op < INFER_OP_COUNT; op++)
        for (uint32_t i = 0; i < infer_op_case_count(op); i++) {
            infer_op_case c;
            assert_int_equal(infer_op_case_make(op, i, 1, &c), INFER_OK);
            if (!run_case(&f, &c))
                fail_msg("%s: refused", c.label);
            infer_op_case_free(&c);
        }
    fixture_close(&f);
}

static void test_generic(void **state)
{
    (void)state;
    run_all("generic", "1");
    run_all("generic", "3");
}

static void test_avx2(void **state)
{
    (void)state;
    run_all("avx2", "1");
    run_all("avx2", "3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_generic), cmocka_unit_test(test_avx2)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
