/* Logits of the tiny models, on every device, against those of the reference implementation (tests/golden/README.md).
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>

#include "e2e/rig.h"

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
    infer_request q = {.flags = INFER_REQ_PROMPT_LOGITS,
                       .prompt = g->ids,
                       .n_prompt = g->n_ids,
                       .on_logits = on_logits,
                       .logits_user = &s};
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

static void test_split(void **state)
{
    (void)state;
    check("ref0,sim0", "1,1");
    if (rig_has("cpu0"))
        check("cpu0,sim0", "1,1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ref),
        cmocka_unit_test(test_sim),
        cmocka_unit_test(test_cpu),
        cmocka_unit_test(test_split),
    };
    rig_watchdog(300);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
