/* tools/mkmodel and the recipes: what it writes opens, has the right names, formats and finite weights of the promised
 * size, for every architecture and type. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit/unit.h"

#include "base/alloc.h"
#include "base/file.h"
#include "model/gguf.h"
#include "model/gguf_recipe.h"
#include "quant/quant.h"

static char dir[] = "/tmp/infer-mkmodel-XXXXXX";
static char out[64];

static int make(const char *args)
{
    char command[4096];
    const char *build = getenv("INFER_BUILDDIR");
    snprintf(command, sizeof command, "'%s/tools/mkmodel' %s %s >/dev/null 2>&1", build ? build : ".", args, out);
    int rc = system(command);
    return WIFEXITED(rc) ? WEXITSTATUS(rc) : -1;
}

static infer_gguf *open_made(const char *args)
{
    infer_error err = {0};
    infer_gguf *g = NULL;
    int rc = make(args);
    if (rc || infer_gguf_open(out, &g, &err) != INFER_OK)
        fail_msg("mkmodel %s: exit %d; %s", args, rc, err.text);
    return g;
}

/* Mean and RMS of a tensor; fails on what is not finite. */
static void measure(const infer_gguf_tensor *t, double *mean, double *rms)
{
    float *x = infer_malloc((size_t)t->n_elems * sizeof *x);
    double sum = 0, square = 0;
    infer_format_get(t->format)->unpack(t->data, x, t->n_elems);
    for (uint64_t i = 0; i < t->n_elems; i++) {
        assert_true(isfinite(x[i]));
        sum += (double)x[i];
        square += (double)x[i] * (double)x[i];
    }
    infer_free(x);
    *mean = sum / (double)t->n_elems;
    *rms = sqrt(square / (double)t->n_elems);
}

static void test_every_type(void **state)
{
    (void)state;
    const infer_gguf_recipe *r;
    for (uint32_t i = 0; (r = infer_gguf_recipe_at(i)); i++) {
        char args[256];
        assert_ptr_equal(infer_gguf_recipe_by_name(infer_gguf_recipe_name(r)), r);
        snprintf(args, sizeof args, "--tiny --arch qwen3moe --dim 256 --ffn 256 --moe-ffn 256 --layers 3 --type %s",
                 infer_gguf_recipe_name(r));
        infer_gguf *g = open_made(args);
        uint32_t type;
        assert_int_equal(infer_gguf_u32(g, "general.file_type", &type, NULL), INFER_OK);
        assert_int_equal(type, infer_gguf_recipe_file_type(r));
        for (uint32_t k = 0; k < infer_gguf_n_tensors(g); k++) {
            const infer_gguf_tensor *t = infer_gguf_tensor_at(g, k);
            double mean, rms;
            measure(t, &mean, &rms);
            int norm = memmem(t->name.p, t->name.n, "norm", 4) != NULL;
            if (norm ? mean != 1 : fabs(mean) > 0.004 || rms < 0.017 || rms > 0.023)
                fail_msg("%s %.*s: mean %g rms %g", infer_gguf_recipe_name(r), (int)t->name.n, t->name.p, mean, rms);
        }
        infer_gguf_close(g);
    }
    assert_null(infer_gguf_recipe_by_name("q4"));
}

static void test_architectures(void **state)
{
    (void)state;
    static const struct {
        const char *args, *name;
        uint32_t n;
        uint64_t dims[3];
    } cases[] = {
        {"--arch llama", "blk.1.ffn_down.weight", 21, {128, 64, 1}},
        {"--arch llama --tied 1 --rope-llama3 8", "rope_freqs.weight", 21, {8, 1, 1}},
        {"--arch qwen2", "blk.0.attn_k.bias", 27, {32, 1, 1}},
        {"--arch qwen3 --head-dim 32", "blk.0.attn_q.weight", 25, {64, 128, 1}},
        {"--arch qwen3moe --experts 6", "blk.1.ffn_up_exps.weight", 27, {64, 64, 6}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char args[256];
        snprintf(args, sizeof args, "--tiny --type f32 %s", cases[i].args);
        infer_gguf *g = open_made(args);
        assert_int_equal(infer_gguf_n_tensors(g), cases[i].n);
        const infer_gguf_tensor *t = infer_gguf_tensor_find(g, cases[i].name);
        assert_non_null(t);
        for (int d = 0; d < 3; d++)
            assert_int_equal(t->dims[d], cases[i].dims[d]);
        infer_gguf_vocab v;
        assert_int_equal(infer_gguf_vocab_load(g, &v, NULL), INFER_OK);
        assert_int_equal(v.v.n_tokens, 320);
        assert_int_equal(v.v.eos, 2);
        infer_gguf_vocab_free(&v);
        infer_gguf_close(g);
    }
}

static void test_repeats(void **state)
{
    (void)state;
    char *data[3];
    size_t n[3];
    const char *args[] = {"--tiny --type q4_k_m", "--tiny --type q4_k_m", "--tiny --type q4_k_m --seed 2"};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(make(args[i]), 0);
        assert_int_equal(infer_file_read(out, 1 << 20, &data[i], &n[i], NULL), INFER_OK);
    }
    assert_true(n[0] == n[1] && !memcmp(data[0], data[1], n[0]));
    assert_true(n[0] == n[2] && memcmp(data[0], data[2], n[0]));
    for (int i = 0; i < 3; i++)
        infer_free(data[i]);
}

static void test_vocabulary_of_a_file(void **state)
{
    (void)state;
    char from[80], args[256];
    assert_int_equal(make("--tiny --vocab-size 300"), 0);
    snprintf(from, sizeof from, "%s.from", out);
    assert_int_equal(rename(out, from), 0);
    snprintf(args, sizeof args, "--tiny --arch qwen2 --vocab-size 310 --vocab %s", from);
    infer_gguf *g = open_made(args);
    infer_gguf_vocab v;
    infer_str s;
    assert_int_equal(infer_gguf_vocab_load(g, &v, NULL), INFER_OK);
    assert_int_equal(v.v.n_tokens, 310);
    assert_memory_equal(v.tokens[293].p,
                        "\xC4\xA0"
                        "and",
                        3);
    assert_int_equal(v.types[309], INFER_TOKEN_UNUSED);
    assert_string_equal(v.v.pre, "llama-bpe");
    assert_int_equal(infer_gguf_chat_template(g, NULL, &s, NULL), INFER_OK);
    infer_gguf_vocab_free(&v);
    infer_gguf_close(g);
    snprintf(args, sizeof args, "--tiny --vocab-size 290 --vocab %s", from);
    unlink(out);
    assert_int_equal(make(args), 1);
    assert_int_equal(access(out, F_OK), -1);
    unlink(from);
}

static void test_published_shape(void **state)
{
    (void)state;
    if (!getenv("INFER_TEST_DATA"))
        return;
    infer_gguf *g = open_made("--shape smollm2 --type q4_1");
    assert_int_equal(infer_gguf_n_tensors(g), 272);
    const infer_gguf_tensor *t = infer_gguf_tensor_find(g, "token_embd.weight");
    assert_int_equal(t->format, INFER_FMT_Q8_0); /* rows of 576 do not fit q6_k */
    assert_int_equal(t->dims[1], 49152);
    float theta;
    assert_int_equal(infer_gguf_f32(g, "llama.rope.freq_base", &theta, NULL), INFER_OK);
    assert_true(theta == 100000);
    infer_gguf_close(g);
}

static void test_refused(void **state)
{
    (void)state;
    static const char *const args[] = {
        "--tiny --heads 3",
        "--tiny --type q9",
        "--tiny --arch bert",
        "--tiny --vocab-size 100",
        "--tiny --layers 0",
        "--tiny --vocab /nowhere",
        "--shape",
        "--tiny --shape x",
    };
    for (size_t i = 0; i < sizeof args / sizeof args[0]; i++) {
        unlink(out);
        assert_int_not_equal(make(args[i]), 0);
        assert_int_equal(access(out, F_OK), -1);
    }
}

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(dir))
        return -1;
    snprintf(out, sizeof out, "%s/m.gguf", dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(out);
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type),      cmocka_unit_test(test_architectures),
        cmocka_unit_test(test_repeats),         cmocka_unit_test(test_vocabulary_of_a_file),
        cmocka_unit_test(test_published_shape), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
