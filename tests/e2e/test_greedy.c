/* The real model along what the reference implementation wrote (tests/golden/README.md, smollm-greedy.bin): fed that
 * text, every device's largest logit is the reference's wherever the reference is sure, by four times the measured
 * error. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>

#include "e2e/rig.h"

enum { MAX_TOP = 8, MAX_IDS = 256 };

typedef struct story {
    uint32_t n_prompt, n_ids;
    int32_t ids[MAX_IDS];
    int32_t (*top)[MAX_TOP]; /* of the token after ids[n_prompt - 1 + i] */
    float (*logit)[MAX_TOP];
} story;

typedef struct book {
    uint32_t n, n_gen, n_top;
    story *stories;
} book;

static void take(FILE *f, void *p, size_t n)
{
    assert_int_equal(fread(p, 4, n, f), n);
}

static book book_open(void)
{
    book b = {0};
    char path[512], magic[4];
    snprintf(path, sizeof path, "%s", rig_golden("llama"));
    strcpy(strstr(path, "tiny-llama"), "smollm-greedy.bin");
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("%s", path);
    assert_int_equal(fread(magic, 1, 4, f), 4);
    assert_memory_equal(magic, "GRD1", 4);
    take(f, &b, 3);
    assert_in_range(b.n_top, 2, MAX_TOP);
    b.stories = calloc(b.n, sizeof *b.stories);
    for (uint32_t i = 0; i < b.n; i++) {
        story *s = &b.stories[i];
        take(f, &s->n_prompt, 1);
        s->n_ids = s->n_prompt + b.n_gen;
        assert_in_range(s->n_ids, 2, MAX_IDS);
        take(f, s->ids, s->n_ids);
        s->top = calloc(b.n_gen, sizeof *s->top);
        s->logit = calloc(b.n_gen, sizeof *s->logit);
        for (uint32_t k = 0; k < b.n_gen; k++) {
            take(f, s->top[k], b.n_top);
            take(f, s->logit[k], b.n_top);
        }
    }
    fclose(f);
    return b;
}

static void book_free(book *b)
{
    for (uint32_t i = 0; i < b->n; i++) {
        free(b->stories[i].top);
        free(b->stories[i].logit);
    }
    free(b->stories);
}

/* One story being read: what the device's logits say of each place. */
typedef struct reader {
    const book *b;
    const story *s;
    uint32_t seen;
    double sum_sq;
    uint64_t n;
    int32_t *best; /* [n_gen] */
} reader;

static void on_logits(void *user, uint64_t pos, const float *logits, uint32_t n_vocab)
{
    reader *r = user;
    if (pos + 1 < r->s->n_prompt || pos + 1 - r->s->n_prompt >= r->b->n_gen)
        return;
    const uint32_t k = (uint32_t)pos + 1 - r->s->n_prompt;
    int32_t best = 0;
    for (uint32_t v = 1; v < n_vocab; v++)
        best = logits[v] > logits[best] ? (int32_t)v : best;
    r->best[k] = best;
    for (uint32_t t = 0; t < r->b->n_top; t++) {
        const double d = (double)logits[r->s->top[k][t]] - (double)r->s->logit[k][t];
        r->sum_sq += d * d;
        r->n++;
    }
    r->seen++;
}

static void check(const char *model, const char *devices, const char *split)
{
    rig r;
    rig_options o = {.model = model,
                     .devices = devices,
                     .split = split,
                     .ctx = MAX_IDS,
                     .parallel = 1,
                     .logit_rows = 64,
                     .validate = 1};
    book b = book_open();
    const uint32_t n = b.n * b.n_gen;
    int32_t *best = calloc(n, sizeof *best);
    double sum_sq = 0;
    uint64_t n_sq = 0;
    rig_open(&r, &o);
    for (uint32_t i = 0; i < b.n; i++) {
        const story *s = &b.stories[i];
        reader rd = {.b = &b, .s = s, .best = best + (size_t)i * b.n_gen};
        answer a, *list[] = {&a};
        infer_request q = {.flags = INFER_REQ_PROMPT_ROWS,
                           .prompt = s->ids,
                           .n_prompt = s->n_ids,
                           .on_row = on_logits,
                           .row_user = &rd};
        rig_submit(&r, &q, &a);
        assert_int_equal(rig_collect(&r, list, 1), INFER_OK);
        assert_int_equal(rd.seen, b.n_gen);
        sum_sq += rd.sum_sq;
        n_sq += rd.n;
        answer_free(&a);
    }
    rig_close(&r);
    const double error = sqrt(sum_sq / (double)n_sq);
    uint32_t other = 0, sure = 0, wrong = 0;
    for (uint32_t i = 0; i < n; i++) {
        const story *s = &b.stories[i / b.n_gen];
        const uint32_t k = i % b.n_gen;
        const double margin = (double)s->logit[k][0] - (double)s->logit[k][1];
        sure += margin > 4 * error;
        if (best[i] == s->top[k][0])
            continue;
        other++;
        wrong += margin > 4 * error;
        printf("  text %u, token %u: %d, the reference's is %d by %.4f\n", i / b.n_gen, k, best[i], s->top[k][0],
               margin);
    }
    printf("%s: error of a logit %.4f (root mean square), %u of %u places sure, %u others differ\n", devices, error,
           sure, n, other);
    assert_true(error < 0.25); /* a logit's own spread is about 3 */
    assert_true(sure > n / 2);
    assert_int_equal(wrong, 0);
    assert_true(other * 50 <= n);
    free(best);
    book_free(&b);
}

static const char *the_model;

static void test_cpu(void **state)
{
    (void)state;
    if (!rig_has("cpu0"))
        skip();
    check(the_model, "cpu0", NULL);
}

static void test_opencl(void **state)
{
    (void)state;
    if (!rig_has("opencl0"))
        skip();
    check(the_model, "opencl0", NULL);
}

static void test_mixed(void **state)
{
    (void)state;
    if (!rig_has("opencl0") || !rig_has("cpu0"))
        skip();
    check(the_model, "opencl0,cpu0", "1,1");
}

static void test_cuda(void **state)
{
    (void)state;
    if (!rig_has("cuda0"))
        skip();
    check(the_model, "cuda0", NULL);
}

static void test_mixed_cuda(void **state)
{
    (void)state;
    if (!rig_has("cuda0") || !rig_has("cpu0"))
        skip();
    check(the_model, "cuda0,cpu0", "1,1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu),  cmocka_unit_test(test_opencl),     cmocka_unit_test(test_mixed),
        cmocka_unit_test(test_cuda), cmocka_unit_test(test_mixed_cuda),
    };
    the_model = getenv("INFER_TEST_MODEL");
    if (!the_model || !*the_model || strcmp(INFER_SANITIZER, "none") != 0 || getenv("INFER_TEST_SLOW"))
        return 77;
    rig_watchdog(600);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
