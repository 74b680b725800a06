/* Logits of the tiny models, on every device, against those of the reference implementation (tests/golden/README.md).
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>

#include "e2e/rig.h"
#include "model/gguf.h"

typedef struct golden {
    uint32_t n_ids, n_rows, n_vocab;
    int32_t *ids;
    uint32_t *rows;
    float *logits;
} golden;

static void *take(FILE *f, size_t n, size_t size)
{
    void *p = calloc(n, size);
    assert_int_equal(fread(p, size, n, f), n);
    return p;
}

static golden golden_open(const char *name)
{
    golden g = {0};
    char path[512], magic[4];
    snprintf(path, sizeof path, "%s", rig_golden(name));
    strcpy(strrchr(path, '.'), ".logits.bin");
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("%s", path);
    assert_int_equal(fread(magic, 1, 4, f), 4);
    assert_memory_equal(magic, "LGT1", 4);
    assert_int_equal(fread(&g, 4, 3, f), 3);
    g.ids = take(f, g.n_ids, 4);
    g.rows = take(f, g.n_rows, 4);
    g.logits = take(f, (size_t)g.n_rows * g.n_vocab, 4);
    fclose(f);
    return g;
}

static void golden_free(golden *g)
{
    free(g->ids);
    free(g->rows);
    free(g->logits);
}

/* Every position's logits as the engine gives them. */
typedef struct seen {
    uint32_t n_vocab;
    uint64_t next;
    float *logits;
} seen;

static void on_logits(void *user, uint64_t pos, const float *logits, uint32_t n_vocab)
{
    seen *s = user;
    s->logits = realloc(s->logits, (pos + 1) * n_vocab * sizeof(float));
    memcpy(s->logits + pos * n_vocab, logits, n_vocab * sizeof(float));
    if (pos == s->next)
        s->next++;
    s->n_vocab = n_vocab;
}

static double measure(const golden *g, rig_options o)
{
    rig r;
    seen s = {0};
    answer a, *list[] = {&a};
    rig_open(&r, &o);
    infer_request q = {
        .flags = INFER_REQ_PROMPT_ROWS, .prompt = g->ids, .n_prompt = g->n_ids, .on_row = on_logits, .row_user = &s};
    rig_submit(&r, &q, &a);
    assert_int_equal(rig_collect(&r, list, 1), INFER_OK);
    assert_int_equal(a.finish, INFER_FINISH_LENGTH);
    assert_int_equal(a.n, 0);
    assert_int_equal(s.next, g->n_ids); /* each position once, in order */
    assert_int_equal(s.n_vocab, g->n_vocab);
    double most = 0, worst = 0;
    for (size_t i = 0; i < (size_t)g->n_rows * g->n_vocab; i++)
        most = fmax(most, fabs((double)g->logits[i]));
    for (uint32_t k = 0; k < g->n_rows; k++) {
        const float *got = s.logits + (size_t)g->rows[k] * g->n_vocab, *want = g->logits + (size_t)k * g->n_vocab;
        uint32_t top_got = 0, top_want = 0;
        for (uint32_t v = 0; v < g->n_vocab; v++) {
            double d = fabs((double)got[v] - (double)want[v]);
            worst = d > worst || isnan(d) ? d : worst;
            top_got = got[v] > got[top_got] ? v : top_got;
            top_want = want[v] > want[top_want] ? v : top_want;
        }
        assert_int_equal(top_got, top_want);
    }
    free(s.logits);
    answer_free(&a);
    rig_close(&r);
    return worst / most;
}

static const char *const archs[] = {"llama", "qwen2", "qwen3", "qwen3moe"};

/* With the cache in f32 nothing is rounded but sums: 1e-5 (tests/golden/README.md); f16 rounds keys and values to
 * 2^-11 of themselves: measured 1.04e-3 of the largest logit. */
static void check(const char *devices, const char *split)
{
    static const char *const types[] = {"f32", "f16"};
    static const double bounds[] = {1e-5, 2e-3};
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++) {
        golden g = golden_open(archs[i]);
        for (int t = 0; t < 2; t++) {
            for (uint32_t chunk = 0; chunk <= 7; chunk += 7) {
                rig_options o = {.model = rig_golden(archs[i]),
                                 .devices = devices,
                                 .split = split,
                                 .cache_type = types[t],
                                 .ctx = 64,
                                 .parallel = 2,
                                 .logit_rows = chunk ? 2 : 64,
                                 .chunk = chunk,
                                 .validate = 1};
                double d = measure(&g, o);
                printf("%-9s %-10s cache %s chunk %u: %.2e\n", archs[i], devices, types[t], chunk, d);
                if (!(d < bounds[t]))
                    fail_msg("%s on %s: %g", archs[i], devices, d);
            }
        }
        golden_free(&g);
    }
}

static void test_ref(void **state)
{
    (void)state;
    check("ref0", NULL);
}

static void test_sim(void **state)
{
    (void)state;
    check("sim0", NULL);
}

static void test_cpu(void **state)
{
    (void)state;
    if (!rig_has("cpu0"))
        skip();
    check("cpu0", NULL);
}

static void test_opencl(void **state)
{
    (void)state;
    if (!rig_has("opencl0"))
        skip();
    check("opencl0", NULL);
}

static void test_split(void **state)
{
    (void)state;
    check("ref0,sim0", "1,1");
    if (rig_has("cpu0"))
        check("cpu0,sim0", "1,1");
    if (rig_has("cpu0") && rig_has("opencl0"))
        check("cpu0,opencl0", "1,1");
}

/* ---- Kinds of output ---------------------------------------------------------------------------------------- */

/* The three kinds at once, from a model whose output matrix is its embedding: the hidden row times the matrix are the
 * logits, to what sums in another order differ; the pooled row is the mean of the hidden ones, bit for bit. */
static void check_outputs(const golden *g, const float *matrix, const char *devices, const char *split, uint32_t chunk)
{
    rig r;
    rig_options o = {.model = rig_golden("qwen2"),
                     .devices = devices,
                     .split = split,
                     .cache_type = "f32",
                     .ctx = 64,
                     .parallel = 3,
                     .logit_rows = chunk ? 5 : 200,
                     .chunk = chunk};
    seen s[3] = {{0}};
    answer a[3], *list[] = {&a[0], &a[1], &a[2]};
    rig_open(&r, &o);
    for (uint32_t kind = 0; kind < 3; kind++) {
        infer_request q = {.flags = INFER_REQ_PROMPT_ROWS,
                           .prompt = g->ids,
                           .n_prompt = g->n_ids,
                           .output = kind,
                           .on_row = on_logits,
                           .row_user = &s[kind]};
        rig_submit(&r, &q, &a[kind]);
    }
    assert_int_equal(rig_collect(&r, list, 3), INFER_OK);
    assert_int_equal(s[INFER_OUTPUT_LOGITS].next, g->n_ids);
    assert_int_equal(s[INFER_OUTPUT_HIDDEN].next, g->n_ids);
    assert_int_equal(s[INFER_OUTPUT_POOLED].next, 0); /* only the last position was given */
    const float *logits = s[0].logits, *hidden = s[1].logits, *pooled = s[2].logits;
    uint32_t d = s[1].n_vocab, v = s[0].n_vocab;
    assert_int_equal(d, 48);
    assert_int_equal(s[2].n_vocab, d);
    assert_int_equal(v, g->n_vocab);
    double most = 0, worst = 0;
    for (uint64_t i = 0; i < (uint64_t)g->n_ids * v; i++) {
        double sum = 0;
        for (uint32_t k = 0; k < d; k++)
            sum += (double)hidden[i / v * d + k] * (double)matrix[i % v * d + k];
        most = fmax(most, fabs(sum));
        worst = fmax(worst, fabs(sum - (double)logits[i]));
    }
    assert_true(most > 0 && worst < 1e-5 * most);
    for (uint32_t k = 0; k < d; k++) {
        double sum = 0;
        for (uint32_t i = 0; i < g->n_ids; i++)
            sum += (double)hidden[(size_t)i * d + k];
        float mean = (float)(sum / g->n_ids);
        assert_memory_equal(&mean, &pooled[(size_t)(g->n_ids - 1) * d + k], sizeof mean);
    }
    for (int i = 0; i < 3; i++) {
        free(s[i].logits);
        answer_free(&a[i]);
    }
    rig_close(&r);
}

static void test_outputs(void **state)
{
    (void)state;
    golden g = golden_open("qwen2");
    infer_gguf *f = NULL;
    infer_error e = {0};
    assert_int_equal(infer_gguf_open(rig_golden("qwen2"), &f, &e), INFER_OK);
    const infer_gguf_tensor *t = infer_gguf_tensor_find(f, "token_embd.weight");
    assert_int_equal(t->format, INFER_FMT_F32);
    const float *matrix = (const float *)(const void *)t->data;
    check_outputs(&g, matrix, "ref0", NULL, 0);
    check_outputs(&g, matrix, "sim0", NULL, 7);
    check_outputs(&g, matrix, "sim0,ref0", "1,1", 1);
    if (rig_has("cpu0"))
        check_outputs(&g, matrix, "cpu0", NULL, 7);
    infer_gguf_close(f);
    golden_free(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ref),    cmocka_unit_test(test_sim),   cmocka_unit_test(test_cpu),
        cmocka_unit_test(test_opencl), cmocka_unit_test(test_split), cmocka_unit_test(test_outputs),
    };
    rig_watchdog(300);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
