/*
 * Every case of core/ops/cases.h on the CPU backend, for each kernel table, with one thread and with more, within the
 * case's own bounds. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include "unit/cpu_fixture.h"

#include "base/alloc.h"
#include "cpu.h"
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

/* Draws from vocabularies too large and too flat for the first guess at how many candidates must be ordered: the same
 * ids as the reference's. */
static void draws(const char *isa)
{
    enum { N = 240, V = 3001 };
    static const float temperatures[] = {0.3f, 1, 2.5f}, top_p[] = {1, 0.2f, 0.9f, 0.999f, 0},
                       min_p[] = {0, 0.01f, 0.6f};
    static const int32_t top_k[] = {0, 1, 40, 700};
    static float logits[N * V], lp[N], want_lp[N];
    static int32_t ids[N], want[N];
    static infer_sample_row p[N];
    fixture f;
    if (!fixture_open(&f, isa, "2"))
        return;
    f.host.op_check = check;
    fill_noise(logits, (size_t)N * V, 77);
    for (int i = 0; i < N; i++) {
        p[i] = (infer_sample_row){.temperature = temperatures[i % 3],
                                  .top_p = top_p[i % 5],
                                  .min_p = min_p[i / 15 % 3],
                                  .top_k = top_k[i / 45 % 4],
                                  .repetition_penalty = 1,
                                  .counts_row = -1,
                                  .seed = 5,
                                  .position = (uint64_t)i};
        for (int j = 0; j < V; j++) { /* flat rows, steep ones, and ties */
            float *z = &logits[i * V + j];
            *z = i % 4 == 0 ? *z : i % 4 == 1 ? *z * 8 : i % 4 == 2 ? (float)(int)(*z * 3) : *z * *z * *z * 30;
        }
    }
    const infer_attrs_sample a = {.struct_size = sizeof a};
    const operand o[7] = {tensor(INFER_FMT_F32, logits, 2, N, V, 1, 1),
                          tensor(INFER_FMT_U8, p, 2, N, sizeof p[0], 1, 1),
                          absent(),
                          absent(),
                          absent(),
                          tensor(INFER_FMT_I32, ids, 1, N, 1, 1, 1),
                          tensor(INFER_FMT_F32, lp, 1, N, 1, 1, 1)};
    run_op(&f, INFER_OP_SAMPLE, &a, sizeof a, o, 5, 2, -1);
    infer_tensor_desc tensors[7];
    for (int i = 0; i < 7; i++)
        tensors[i] = o[i].desc;
    const infer_op_desc op = {.struct_size = sizeof op,
                              .op = INFER_OP_SAMPLE,
                              .rows_from = INFER_ROWS_STATIC,
                              .n_in = 5,
                              .n_out = 2,
                              .tensor_size = sizeof tensors[0],
                              .attrs_size = sizeof a,
                              .tensors = tensors,
                              .attrs = &a};
    void *data[7] = {logits, p, NULL, NULL, NULL, want, want_lp};
    assert_int_equal(infer_op_ref(&op, data, NULL), INFER_OK);
    for (int i = 0; i < N; i++) {
        assert_int_equal(ids[i], want[i]);
        assert_true(lp[i] - want_lp[i] < 1e-5f && want_lp[i] - lp[i] < 1e-5f);
    }
    fixture_close(&f);
}

/* Only products read weights in panels, and only as weights: any other operand in that layout is refused. */
static void test_layouts(void **state)
{
    enum { N = 64, K = 256, M = 2 };
    static const struct {
        infer_op_id op;
        uint32_t operand, n_in, n_out;
        int reads;
    } asked[] = {
        {INFER_OP_MATMUL, 1, 3, 1, 1}, {INFER_OP_MATMUL, 0, 3, 1, 0},      {INFER_OP_GATHER_ROWS, 0, 2, 1, 0},
        {INFER_OP_COPY, 0, 1, 1, 0},   {INFER_OP_LORA_SHRINK, 1, 3, 1, 0},
    };
    fixture f;
    (void)state;
    assert_true(fixture_open(&f, "auto", "1"));
    f.host.op_check = check;
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
        for (uint32_t layout = 0; layout <= CPU_LAYOUT_PANELS; layout++) {
            const infer_tensor_desc x = tensor(INFER_FMT_F32, NULL, 2, M, K, 1, 1).desc,
                                    y = tensor(INFER_FMT_F32, NULL, 2, M, N, 1, 1).desc,
                                    w = tensor(INFER_FMT_Q4_0, NULL, 2, N, K, 1, 1).desc,
                                    rows = tensor(INFER_FMT_F32, NULL, 2, N, K, 1, 1).desc,
                                    ids = tensor(INFER_FMT_I32, NULL, 1, M, 1, 1, 1).desc,
                                    each = tensor(INFER_FMT_Q4_0, NULL, 3, 3, N, K, 1).desc;
            infer_tensor_desc t[INFER_OP_COUNT][4] = {
                [INFER_OP_MATMUL] = {x, w, absent().desc, y},
                [INFER_OP_GATHER_ROWS] = {w, ids, x},
                [INFER_OP_COPY] = {w, rows},
                [INFER_OP_LORA_SHRINK] = {x, each, ids, y},
            };
            const infer_attrs_matmul a = {.struct_size = sizeof a};
            const int product = asked[i].op == INFER_OP_MATMUL;
            infer_op_desc op = {.struct_size = sizeof op,
                                .op = asked[i].op,
                                .rows_from = INFER_ROWS_STATIC,
                                .n_in = asked[i].n_in,
                                .n_out = asked[i].n_out,
                                .tensor_size = sizeof t[0][0],
                                .attrs_size = product ? sizeof a : 0,
                                .tensors = t[asked[i].op],
                                .attrs = product ? &a : NULL};
            infer_op_answer answer = {.struct_size = sizeof answer};
            t[asked[i].op][asked[i].operand].layout = layout;
            assert_int_equal(f.ops->op_query(f.dev, &op, sizeof op, 1, &answer, sizeof answer), INFER_OK);
            const int reads = layout == INFER_LAYOUT_CANONICAL || (asked[i].reads && f.dev->kern->panel);
            if (answer.level != (reads ? INFER_LEVEL_NATIVE : INFER_LEVEL_NO))
                fail_msg("op %u, operand %u in layout %u: level %u", asked[i].op, asked[i].operand, layout,
                         answer.level);
            if (!reads)
                assert_int_equal(answer.why, INFER_WHY_FORMAT);
        }
    fixture_close(&f);
}

static void test_draws(void **state)
{
    (void)state;
    draws("generic");
    draws("avx2");
}

static void test_generic(void **state)
{
    (void)state;
    run_all("generic", "1");
    run_all("generic", "3");
}

/* Those that run here. */
static void test_isas(void **state)
{
    static const char *const isas[] = {"avxvnni", "avx512", "amx", "neon", "i8mm", "sve", "svei8mm"};
    (void)state;
    run_all("avx2", "1");
    run_all("avx2", "3");
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++)
        run_all(isas[i], "2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_generic), cmocka_unit_test(test_isas),
                                       cmocka_unit_test(test_draws), cmocka_unit_test(test_layouts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
