/* Whole models on the CUDA backend with the driver in host memory, whose kernels are emulated, against the reference:
 * weights packed at load, steps of one row, where products make norms by themselves, and of many, in the formats that
 * are packed. Both kinds of rows that a request may ask for: hidden ones are a norm's result that outlives the program.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#include "backends/launch/params.h"
#include "e2e/rig.h"

/* More than attention rotates by itself, also where the engine meets one of two prompts alone. */
enum { N_PROMPT = LP_FEW_ROPE_ROWS + 1, MOST_PROMPT = 66 };
static uint32_t n_prompt = N_PROMPT; /* of rows_of; one of MOST_PROMPT is more rows than reading bounds */
static char driver[600];
static unsigned (*runs_of)(const char *begin);
static int (*params_of)(const char *name, void *out, size_t bytes);

typedef struct seen {
    uint64_t next;
    uint32_t width;
    float *rows; /* [n_prompt][width] */
} seen;

static void on_row(void *user, uint64_t pos, const float *row, uint32_t width)
{
    seen *s = user;
    assert_true(pos < n_prompt);
    if (!s->rows)
        s->rows = calloc(n_prompt, width * sizeof *row);
    assert_non_null(s->rows);
    memcpy(s->rows + pos * width, row, width * sizeof *row);
    s->width = width;
    s->next += pos == s->next;
}

/* The rows of a prompt of two sequences at once, of one kind each. */
static void rows_of(const char *model, const char *device, const char *quantization, uint32_t chunk, seen s[2])
{
    static int32_t ids[MOST_PROMPT];
    const char *settings[] = {driver, NULL};
    rig r;
    answer a[2], *list[] = {&a[0], &a[1]};
    rig_options o = {.model = model,
                     .devices = device,
                     .quantization = quantization,
                     .settings = settings,
                     .cache_type = "f16",
                     .ctx = 96,
                     .parallel = 2,
                     .logit_rows = 2 * MOST_PROMPT,
                     .chunk = chunk,
                     .step_tokens = chunk ? chunk : 0,
                     .validate = 1};
    for (uint32_t i = 0; i < n_prompt; i++)
        ids[i] = 5 + (int32_t)(37 * i % 200);
    rig_open(&r, &o);
    for (uint32_t kind = 0; kind < 2; kind++) {
        s[kind] = (seen){0};
        infer_request q = {.flags = INFER_REQ_PROMPT_ROWS,
                           .prompt = ids,
                           .n_prompt = n_prompt,
                           .output = kind ? INFER_OUTPUT_HIDDEN : INFER_OUTPUT_LOGITS,
                           .on_row = on_row,
                           .row_user = &s[kind]};
        rig_submit(&r, &q, &a[kind]);
    }
    assert_int_equal(rig_collect(&r, list, 2), INFER_OK);
    for (int kind = 0; kind < 2; kind++) {
        assert_int_equal(s[kind].next, n_prompt);
        answer_free(&a[kind]);
    }
    rig_close(&r);
}

/* The largest difference as a share of the largest number. */
static double distance(const seen *a, const seen *b)
{
    double most = 0, worst = 0;
    assert_int_equal(a->width, b->width);
    for (size_t i = 0; i < (size_t)n_prompt * a->width; i++) {
        double d = fabs((double)a->rows[i] - (double)b->rows[i]);
        most = fmax(most, fabs((double)b->rows[i]));
        worst = d > worst || isnan(d) ? d : worst;
    }
    return worst / most;
}

static void check(const char *arch, const char *type, const char *quantization, double few, double many)
{
    char args[200];
    snprintf(args, sizeof args,
             "--tiny --arch %s --type %s --dim 256 --heads 4 --kv-heads 2 --head-dim 64 --ffn 512 --layers 2 --tied 0",
             arch, type);
    const char *model = rig_made(args);
    seen want[2], got[2];
    rows_of(model, "ref0", quantization, 0, want);
    for (uint32_t chunk = 0; chunk < 2; chunk++) {
        unsigned ropes = runs_of("rope_write"), one = runs_of("rope_writes"), all = runs_of("few_"),
                 makes = runs_of("few_rope_");
        rows_of(model, "cuda0", quantization, chunk, got);
        ropes = runs_of("rope_write") - ropes;
        one = runs_of("rope_writes") - one;
        all = runs_of("few_") - all;
        makes = runs_of("few_rope_") - makes;
        printf("%s: %u rotations and writes, %u of them at once, %u attentions, %u of them with both\n", arch, ropes,
               one, all, makes);
        assert_int_equal(ropes, one);                 /* never a launch for queries alone, */
        assert_int_equal(ropes + makes, all);         /* and none where attention does it, */
        assert_true(chunk ? ropes == 0 : makes == 0); /* which it does in steps of few rows */
        assert_true(all > 0);
        for (int kind = 0; kind < 2; kind++) {
            double d = distance(&got[kind], &want[kind]);
            printf("%-6s %s, %s: %.2e\n", quantization ? quantization : type, chunk ? "one row a step" : "many rows",
                   kind ? "hidden" : "logits", d);
            if (!(d < (chunk ? few : many)))
                fail_msg("%s: %g", type, d);
            free(got[kind].rows);
        }
    }
    free(want[0].rows);
    free(want[1].rows);
}

/* Bounds: x of many rows is rounded to 2^-9 (bf16) or 2^-12 (f16) of itself; few rows differ in the order of sums.
 * Measured: a seventh and a half of them. */
static void test_bf16(void **state)
{
    (void)state;
    check("llama", "bf16", NULL, 1e-4, 1e-2);
}

static void test_f16(void **state)
{
    (void)state;
    check("llama", "f16", NULL, 1e-4, 2e-3);
}

static void test_q8_0(void **state)
{
    (void)state;
    check("qwen2", "q8_0", NULL, 1e-4, 2e-3);
}

/* Weights recoded at load: few rows by the ring, many by the matrix units, nothing by kernels for weights as they come,
 * and nothing on the host. */
static void recoded(const char *arch, const char *quantization, const char *name, const char *products)
{
    static const char *const slow[] = {"mv", "tile", "stream"};
    unsigned before[3], ring, gemm;
    char few[40], two[40], alone[40];
    snprintf(few, sizeof few, "ring_%s", name);
    snprintf(two, sizeof two, "gemm64_%s", products);
    snprintf(alone, sizeof alone, "gemm32_%s", products); /* of each of two prompts that the engine met by itself */
    ring = runs_of(few);
    gemm = runs_of(two) + runs_of(alone);
    for (int i = 0; i < 3; i++)
        before[i] = runs_of(slow[i]);
    check(arch, "bf16", quantization, 1e-4, 1e-2); /* the head is bf16 */
    ring = runs_of(few) - ring;
    gemm = runs_of(two) + runs_of(alone) - gemm;
    printf("%s: %u of %s, %u of %s or %s\n", quantization, ring, few, gemm, two, alone);
    assert_true(ring > 0 && (gemm == 8 || gemm == 16)); /* two layers of four; twice, if prompts were met alone */
    for (int i = 0; i < 3; i++)
        assert_int_equal(runs_of(slow[i]), before[i]);
}

static void test_fp8(void **state)
{
    (void)state;
    recoded("llama", "fp8", "e4m3", "e4m3w");
    recoded("qwen2", "fp8", "e4m3", "e4m3w");
}

static unsigned narrow_runs(void)
{
    return runs_of("gemm128_e4m3") + runs_of("gemm256_e4m3");
}

/* So many rows that x goes in as e4m3 too: 2.6 % of a sum's terms. */
static void test_fp8_prompt(void **state)
{
    (void)state;
    const unsigned narrow = narrow_runs(), wide = runs_of("gemm128_e4m3w");
    const char *model = rig_made(
        "--tiny --arch llama --type bf16 --dim 256 --heads 4 --kv-heads 2 --head-dim 64 --ffn 512 --layers 2 --tied 0");
    seen want[2], got[2];
    n_prompt = MOST_PROMPT;
    rows_of(model, "ref0", "fp8", 0, want);
    rows_of(model, "cuda0", "fp8", 0, got);
    n_prompt = N_PROMPT;
    printf("fp8, prompts of %d rows: %u products\n", MOST_PROMPT, narrow_runs() - narrow);
    assert_int_equal(runs_of("gemm128_e4m3w"), wide);
    lp_tensor x; /* of the last one, a down product: as gate and up handed it over */
    assert_true(params_of("gemm_x_e4m3", &x, sizeof x));
    assert_int_equal(x.fmt, INFER_FMT_BF16);
    /* two layers: qkv, output, gate and up, down; twice, if one prompt was met alone */
    assert_true(narrow_runs() - narrow == 8 || narrow_runs() - narrow == 16);
    for (int kind = 0; kind < 2; kind++) {
        n_prompt = MOST_PROMPT;
        double d = distance(&got[kind], &want[kind]);
        n_prompt = N_PROMPT;
        printf("fp8    x in e4m3, %s: %.2e\n", kind ? "hidden" : "logits", d);
        if (!(d < 0.1 && d > 2e-3))
            fail_msg("%g", d);
        free(got[kind].rows);
        free(want[kind].rows);
    }
}

static void test_int4(void **state)
{
    (void)state;
    recoded("llama", "int4", "u4", "u4");
    recoded("qwen3", "int4", "u4", "u4");
}

static void test_q4_k_m(void **state)
{
    (void)state;
    check("qwen3", "q4_k_m", NULL, 1e-4, 2e-3);
}

/* What two sequences generate, each step submitted before the ids of the last one are known, is what their rows say
 * when they are read as prompts. */
static void test_tokens(void **state)
{
    (void)state;
    enum { FIRST = 3, MADE = N_PROMPT - FIRST };
    const char *model =
                   rig_made("--tiny --arch llama --type bf16 --dim 256 --heads 4 --kv-heads 2 --head-dim 64 --ffn 512 "
                            "--layers 2 --tied 0"),
               *settings[] = {driver, NULL};
    rig r;
    answer a[2], again, *list[] = {&a[0], &a[1]}, *one[] = {&again};
    int32_t ids[2][N_PROMPT];
    rig_options o = {.model = model,
                     .devices = "cuda0",
                     .settings = settings,
                     .ctx = 64,
                     .parallel = 2,
                     .logit_rows = N_PROMPT,
                     .no_prefix_cache = 1};
    rig_open(&r, &o);
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < FIRST; k++)
            ids[i][k] = 20 + 50 * i + k;
        infer_request q = {.flags = INFER_REQ_IGNORE_EOS,
                           .prompt = ids[i],
                           .n_prompt = FIRST,
                           .max_tokens = MADE,
                           .n_top_logprobs = 2};
        rig_submit(&r, &q, &a[i]);
    }
    assert_int_equal(rig_collect(&r, list, 2), INFER_OK);
    uint32_t same = 0;
    for (int i = 0; i < 2; i++) {
        seen s = {0};
        assert_int_equal(a[i].n, MADE);
        memcpy(ids[i] + FIRST, a[i].ids, MADE * sizeof *a[i].ids);
        infer_request q = {.flags = INFER_REQ_PROMPT_ROWS,
                           .prompt = ids[i],
                           .n_prompt = N_PROMPT,
                           .output = INFER_OUTPUT_LOGITS,
                           .on_row = on_row,
                           .row_user = &s};
        rig_submit(&r, &q, &again);
        assert_int_equal(rig_collect(&r, one, 1), INFER_OK);
        for (uint32_t k = 0; k < MADE; k++) {
            const float *row = s.rows + (FIRST + k - 1) * s.width;
            uint32_t best = 0;
            for (uint32_t v = 1; v < s.width; v++)
                best = row[v] > row[best] ? v : best;
            same += best == (uint32_t)a[i].ids[k];
        }
        free(s.rows);
        answer_free(&again);
        answer_free(&a[i]);
    }
    printf("%u of %u tokens are their rows' best\n", same, 2 * MADE);
    assert_true(same >= 2 * MADE - 2); /* two may be almost equal */
    rig_close(&r);
}

/* ---- x in the layout of the product that reads it -------------------------------------------------------------- */

/* Requests that are all there before any of them begins, so that steps are the same each time: short prompts, then long
 * ones, which come in chunks while the others decode. */
enum { SHORT = 8, LONG = 2, ALL = SHORT + LONG, LONG_PROMPT = 45 };

typedef struct told {
    answer a[ALL];
    seen rows[ALL];
    uint32_t n_steps, steps[64]; /* rows of each */
} told;

typedef struct gate {
    pthread_mutex_t mu;
    pthread_cond_t cond;
    int reached, open;
} gate;

static void on_gate(void *user, uint64_t pos, const float *row, uint32_t width)
{
    gate *g = user;
    (void)pos;
    (void)row;
    (void)width;
    pthread_mutex_lock(&g->mu);
    g->reached = 1;
    pthread_cond_broadcast(&g->cond);
    while (!g->open)
        pthread_cond_wait(&g->cond, &g->mu);
    pthread_mutex_unlock(&g->mu);
}

static void on_told_step(void *user, const infer_step_info *step)
{
    told *t = user;
    if (t->n_steps < sizeof t->steps / sizeof *t->steps)
        t->steps[t->n_steps++] = step->n_tokens;
}

static void tell(const char *model, const char *const *settings, int crowd, told *t)
{
    static int32_t ids[ALL][MOST_PROMPT];
    gate g = {.mu = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    rig r;
    answer first, *list[ALL], *before[] = {&first};
    const rig_options o = {.model = model,
                           .devices = "cuda0",
                           .settings = settings,
                           .cache_type = crowd ? "bf16" : "f16",
                           .ctx = 96,
                           .parallel = ALL,
                           .logit_rows = MOST_PROMPT,
                           .chunk = crowd ? 20 : 0,
                           .step_tokens = crowd ? 36 : 0,
                           .no_prefix_cache = 1,
                           .on_step = on_told_step,
                           .step_user = t};
    memset(t, 0, sizeof *t);
    rig_open(&r, &o);
    infer_request wait = {
        .flags = INFER_REQ_PROMPT_ROWS, .prompt = ids[0], .n_prompt = 1, .on_row = on_gate, .row_user = &g};
    rig_submit(&r, &wait, &first);
    pthread_mutex_lock(&g.mu);
    while (!g.reached)
        pthread_cond_wait(&g.cond, &g.mu);
    pthread_mutex_unlock(&g.mu);
    const int n = crowd ? ALL : 1;
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < MOST_PROMPT; k++)
            ids[i][k] = 5 + (29 * i + 37 * k) % 200;
        infer_request q = {.flags = INFER_REQ_PROMPT_ROWS | INFER_REQ_IGNORE_EOS,
                           .prompt = ids[i],
                           .n_prompt = !crowd      ? MOST_PROMPT
                                       : i < SHORT ? 2 + (uint64_t)i % 3
                                                   : LONG_PROMPT,
                           .max_tokens = crowd ? 8 : 1,
                           .on_row = on_row,
                           .row_user = &t->rows[i]};
        list[i] = &t->a[i];
        rig_submit(&r, &q, &t->a[i]);
    }
    pthread_mutex_lock(&g.mu);
    g.open = 1;
    pthread_cond_broadcast(&g.cond);
    pthread_mutex_unlock(&g.mu);
    assert_int_equal(rig_collect(&r, before, 1), INFER_OK);
    assert_int_equal(rig_collect(&r, list, (uint32_t)n), INFER_OK);
    answer_free(&first);
    rig_close(&r);
}

/* The same bits, whether who makes x puts it in the layout of the product or a launch of its own does. */
static void handed(const char *args, unsigned layers, int crowd)
{
    const char *model = rig_made(args), *with[] = {driver, NULL}, *without[] = {driver, "cuda.panels=0", NULL};
    static told one, two;
    unsigned x[3], products = 0; /* steps whose products are of more rows than the ring takes */
    n_prompt = MOST_PROMPT;
    x[0] = runs_of("gemm_x_");
    tell(model, without, crowd, &one);
    x[1] = runs_of("gemm_x_");
    tell(model, with, crowd, &two);
    x[2] = runs_of("gemm_x_");
    n_prompt = N_PROMPT;
    printf("%s\n  rows of steps:", args);
    for (uint32_t i = 0; i < one.n_steps; i++) {
        printf(" %u", one.steps[i]);
        products += one.steps[i] > 2;
    }
    printf("; %u launches for x alone, %u where it is handed over\n", x[1] - x[0], x[2] - x[1]);
    assert_int_equal(one.n_steps, two.n_steps);
    assert_memory_equal(one.steps, two.steps, sizeof one.steps);
    for (int i = 0; i < (crowd ? ALL : 1); i++) {
        const answer *a = &one.a[i], *b = &two.a[i];
        assert_int_equal(a->n, b->n);
        assert_memory_equal(a->ids, b->ids, a->n * sizeof *a->ids);
        assert_memory_equal(a->logprobs, b->logprobs, a->n * sizeof *a->logprobs);
        assert_int_equal(one.rows[i].next, a->n_prompt);
        assert_memory_equal(one.rows[i].rows, two.rows[i].rows, a->n_prompt * one.rows[i].width * sizeof(float));
        free(one.rows[i].rows);
        free(two.rows[i].rows);
        answer_free(&one.a[i]);
        answer_free(&two.a[i]);
    }
    assert_true(products >= (crowd ? 8 : 1));
    assert_int_equal((x[1] - x[0]) - (x[2] - x[1]), 2 * layers * products); /* of down and output */
}

static void test_handed(void **state)
{
    (void)state;
    static const struct {
        unsigned layers;
        const char *args;
    } models[] = {
        {2, "--tiny --arch llama --type bf16 --dim 256 --heads 4 --kv-heads 2 --head-dim 64 --ffn 512 --layers 2 "
            "--tied 0"},
        {2, "--tiny --arch qwen2 --type bf16 --dim 256 --heads 4 --kv-heads 1 --head-dim 128 --ffn 472 --layers 2 "
            "--tied 0"},
        {1, "--tiny --arch llama --type bf16 --dim 256 --heads 4 --kv-heads 4 --head-dim 64 --ffn 330 --layers 1 "
            "--tied 0"},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (int crowd = 0; crowd < 2; crowd++)
            handed(models[i].args, models[i].layers, crowd);
}

int main(void)
{
    char path[512];
    const char *build = getenv("INFER_BUILDDIR");
    snprintf(path, sizeof path, "%s/tests/plugins/fakecuda/.libs", build ? build : ".");
    snprintf(driver, sizeof driver, "cuda.driver=%s/libfakecuda.so", path);
    setenv("INFER_BACKEND_PATH", path, 1);
    void *lib = dlopen(driver + strlen("cuda.driver="), RTLD_NOW), *f = lib ? dlsym(lib, "fakecuda_runs") : NULL,
         *g = lib ? dlsym(lib, "fakecuda_params") : NULL;
    if (!f || !g) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    memcpy(&runs_of, &f, sizeof runs_of);
    memcpy(&params_of, &g, sizeof params_of);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16),   cmocka_unit_test(test_f16),    cmocka_unit_test(test_q8_0),
        cmocka_unit_test(test_q4_k_m), cmocka_unit_test(test_fp8),    cmocka_unit_test(test_fp8_prompt),
        cmocka_unit_test(test_int4),   cmocka_unit_test(test_tokens), cmocka_unit_test(test_handed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
