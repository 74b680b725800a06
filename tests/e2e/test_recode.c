/* Weights that are recoded while they are loaded, on every device: logits are those of a file that holds what the codes
 * stand for, the books are exact before anything is loaded, and what cannot be recoded is refused by name.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "e2e/rig.h"
#include "model/gguf.h"
#include "model/gguf_write.h"
#include "quant/quant.h"

enum { N_PROMPT = 24 };

static const struct {
    const char *name, *to;
    infer_quant q;
} kinds[] = {
    {"fp8", "f8_e4m3", {INFER_FMT_F8_E4M3, INFER_FMT_F32, 0, 0, 1, 0}},
    {"int8", "q8_0", {.format = INFER_FMT_Q8_0}},
    {"int4", "u4", {INFER_FMT_U4, INFER_FMT_F16, INFER_FMT_U4, 0, 1, 128}},
};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

/* Rows end in the midst of a group, matrices have an odd number of groups, experts share planes. */
static const char *model_at(int i)
{
    switch (i) {
    case 0:
        return rig_made("--tiny --arch llama --type bf16 --dim 384 --heads 4 --kv-heads 2 --head-dim 64 --ffn 320 "
                        "--layers 2 --tied 0");
    case 1:
        return rig_made("--tiny --arch qwen2 --type f16 --dim 128 --heads 4 --kv-heads 2 --head-dim 32 --ffn 96 "
                        "--layers 1");
    default:
        return rig_golden("qwen3moe"); /* f32, 48 elements a row and 24: not for blocks of 32 */
    }
}
enum { N_MODELS = 3 };

static int fits(int model, int kind)
{
    return model < 2 || kinds[kind].q.scale_format;
}

static int is_recoded(const infer_gguf_tensor *t)
{
    static const char *const names[] = {"attn_q", "attn_k",   "attn_v",        "attn_output", "ffn_gate",
                                        "ffn_up", "ffn_down", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"};
    char name[80], want[80];
    snprintf(name, sizeof name, "%.*s", (int)t->name.n, t->name.p);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        for (int layer = 0; layer < 4; layer++) {
            snprintf(want, sizeof want, "blk.%d.%s.weight", layer, names[i]);
            if (!strcmp(name, want))
                return 1;
        }
    return 0;
}

/* What the codes of a tensor stand for, in floats; returns the bytes of its planes. */
static uint64_t dequantized(const infer_gguf_tensor *t, const infer_quant *q, float *y)
{
    const uint64_t k = t->dims[0], n = t->dims[1], e = t->rank > 2 ? t->dims[2] : 1;
    uint64_t bytes[3];
    infer_format_get(t->format)->unpack(t->data, y, e * n * k);
    assert_int_equal(infer_quant_bytes(q, n, k, bytes), INFER_OK);
    uint8_t *plane[3];
    for (int i = 0; i < 3; i++)
        plane[i] = calloc(1, bytes[i] + 1);
    for (uint64_t i = 0; i < e; i++) {
        const infer_quant_planes p = {plane[0], bytes[1] ? plane[1] : NULL, bytes[2] ? plane[2] : NULL};
        assert_int_equal(
            infer_quant_pack(q, y + i * n * k, n, k, plane[0], bytes[1] ? plane[1] : NULL, bytes[2] ? plane[2] : NULL),
            INFER_OK);
        for (uint64_t r = 0; r < n; r++)
            assert_int_equal(infer_quant_unpack_row(q, &p, n, k, r, y + (i * n + r) * k), INFER_OK);
    }
    for (int i = 0; i < 3; i++)
        free(plane[i]);
    return e * (bytes[0] + bytes[1] + bytes[2]);
}

/* A copy of a model in f32 whose recoded matrices have lost what they lose; *saved: bytes that their planes are less
 * than what the file has. */
static void write_reference(const char *from, const char *to, const infer_quant *q, int64_t *saved)
{
    infer_error err = {0};
    infer_gguf *g;
    infer_gguf_writer *w;
    if (infer_gguf_open(from, &g, &err) || infer_gguf_writer_create(to, &w, &err))
        fail_msg("%s", err.text);
    for (uint32_t i = 0; i < infer_gguf_n_kv(g); i++)
        infer_gguf_writer_copy(w, infer_gguf_kv_at(g, i));
    for (uint32_t i = 0; i < infer_gguf_n_tensors(g); i++) {
        const infer_gguf_tensor *t = infer_gguf_tensor_at(g, i);
        char name[80];
        snprintf(name, sizeof name, "%.*s", (int)t->name.n, t->name.p);
        assert_int_equal(infer_gguf_writer_tensor(w, name, INFER_FMT_F32, t->rank, t->dims, &err), INFER_OK);
    }
    uint32_t count = 0;
    *saved = 0;
    for (uint32_t i = 0; i < infer_gguf_n_tensors(g); i++) {
        const infer_gguf_tensor *t = infer_gguf_tensor_at(g, i);
        float *y = malloc(t->n_elems * sizeof *y);
        assert_non_null(y);
        if (is_recoded(t)) {
            *saved += (int64_t)t->bytes - (int64_t)dequantized(t, q, y);
            count++;
        } else {
            infer_format_get(t->format)->unpack(t->data, y, t->n_elems);
        }
        assert_int_equal(infer_gguf_writer_data(w, y, t->n_elems * sizeof *y, &err), INFER_OK);
        free(y);
    }
    assert_true(count >= 7);
    assert_int_equal(infer_gguf_writer_finish(w, &err), INFER_OK);
    infer_gguf_writer_destroy(w);
    infer_gguf_close(g);
}

typedef struct seen {
    uint64_t next;
    uint32_t width;
    float *rows;
} seen;

static void on_row(void *user, uint64_t pos, const float *row, uint32_t width)
{
    seen *s = user;
    assert_true(pos < N_PROMPT);
    if (!s->rows)
        s->rows = calloc(N_PROMPT, width * sizeof *row);
    memcpy(s->rows + pos * width, row, width * sizeof *row);
    s->width = width;
    s->next += pos == s->next;
}

static void check_books(const rig *r)
{
    infer_memory_row rows[64];
    uint32_t n = infer_model_memory(r->model, rows, 64);
    for (uint32_t i = 0; i < n; i++)
        if (rows[i].planned != rows[i].booked)
            fail_msg("%s %s: %llu planned, %llu booked", rows[i].device, rows[i].kind,
                     (unsigned long long)rows[i].planned, (unsigned long long)rows[i].booked);
}

static seen rows_of(const char *model, const char *device, const char *quantization, uint32_t chunk)
{
    static int32_t ids[N_PROMPT];
    seen s = {0};
    rig r;
    answer a, *list[] = {&a};
    rig_options o = {.model = model,
                     .devices = device,
                     .quantization = quantization,
                     .cache_type = "f32",
                     .ctx = 64,
                     .parallel = 2,
                     .logit_rows = N_PROMPT,
                     .chunk = chunk,
                     .validate = 1};
    for (int i = 0; i < N_PROMPT; i++)
        ids[i] = 5 + 37 * i % 200;
    rig_open(&r, &o);
    check_books(&r);
    infer_request q = {
        .flags = INFER_REQ_PROMPT_ROWS, .prompt = ids, .n_prompt = N_PROMPT, .on_row = on_row, .row_user = &s};
    rig_submit(&r, &q, &a);
    assert_int_equal(rig_collect(&r, list, 1), INFER_OK);
    assert_int_equal(s.next, N_PROMPT);
    answer_free(&a);
    rig_close(&r);
    return s;
}

/* The largest difference as a share of the largest number. */
static double distance(const seen *a, const seen *b)
{
    double most = 0, worst = 0;
    assert_int_equal(a->width, b->width);
    for (size_t i = 0; i < (size_t)N_PROMPT * a->width; i++) {
        double d = fabs((double)a->rows[i] - (double)b->rows[i]);
        most = fmax(most, fabs((double)b->rows[i]));
        worst = d > worst || isnan(d) ? d : worst;
    }
    return worst / most;
}

static char *scratch_file(const char *name)
{
    static char path[200];
    snprintf(path, sizeof path, "/tmp/infer-recode-%ld-%s.gguf", (long)getpid(), name);
    return path;
}

/* Bounds: the order of sums on ref0 and sim0; on cpu0 also activations of 16 bits where weights are codes, and of int4
 * minima in f16. And what is compared is not what the file has: that differs by more. */
static void test_logits(void **state)
{
    (void)state;
    static const struct {
        const char *device;
        double bound;
    } devices[] = {{"ref0", 1e-6}, {"sim0", 1e-5}, {"cpu0", 2e-4}};
    const int cpu = rig_has("cpu0");
    for (int m = 0; m < N_MODELS; m++) {
        seen plain = rows_of(model_at(m), "ref0", NULL, 0);
        for (int kind = 0; kind < N_KINDS; kind++) {
            int64_t saved;
            char *path = scratch_file(kinds[kind].name);
            if (!fits(m, kind))
                continue;
            write_reference(model_at(m), path, &kinds[kind].q, &saved);
            seen want = rows_of(path, "ref0", NULL, 0);
            unlink(path);
            const double lost = distance(&want, &plain);
            for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++)
                for (uint32_t chunk = 0; chunk < 2; chunk++) {
                    if (!cpu && !strcmp(devices[i].device, "cpu0"))
                        continue;
                    seen got = rows_of(model_at(m), devices[i].device, kinds[kind].name, chunk);
                    double d = distance(&got, &want);
                    printf("model %d %-4s %s %s: %.1e (rounding: %.1e)\n", m, kinds[kind].name, devices[i].device,
                           chunk ? "one row a step" : "many rows", d, lost);
                    const int halves = kinds[kind].q.zero_format && !strcmp(devices[i].device, "cpu0");
                    if (!(d < devices[i].bound * (halves ? 20 : 1) && d < lost / 4))
                        fail_msg("%s on %s: %g", kinds[kind].name, devices[i].device, d);
                    free(got.rows);
                }
            free(want.rows);
        }
        free(plain.rows);
    }
}

static uint64_t planned_weights(const char *model, const char *quantization, char *reason, size_t cap)
{
    infer_runtime *rt;
    infer_file *f;
    infer_plan *p;
    char *text;
    infer_plan_options po = {.struct_size = sizeof po, .devices = "sim0", .ctx_size = 64, .quantization = quantization};
    assert_int_equal(infer_runtime_create(NULL, &rt, NULL), INFER_OK);
    assert_int_equal(infer_file_open(model, &f, NULL), INFER_OK);
    assert_int_equal(infer_plan_create(rt, f, &po, &p, NULL), INFER_OK);
    assert_int_equal(infer_plan_json(p, &text, NULL), INFER_OK);
    const char *at = strstr(text, "\"weights\":"), *why = strstr(text, " matrices are recoded");
    assert_non_null(at);
    snprintf(reason, cap, "%.60s", why ? why : "");
    uint64_t bytes = strtoull(at + strlen("\"weights\":"), NULL, 10);
    infer_text_free(text);
    infer_plan_destroy(p);
    infer_file_destroy(f);
    infer_runtime_destroy(rt);
    return bytes;
}

/* A plan knows what recoding saves before it loads, and says what it does. */
static void test_ledger(void **state)
{
    (void)state;
    enum { ROUNDING = 40 * 4096 }; /* of places of weights */
    char reason[80], want[80];
    for (int kind = 0; kind < N_KINDS; kind++) {
        int64_t saved;
        char *path = scratch_file("ledger");
        write_reference(model_at(0), path, &kinds[kind].q, &saved);
        unlink(path);
        assert_true(saved > 4 * ROUNDING);
        const int64_t before = (int64_t)planned_weights(model_at(0), NULL, reason, sizeof reason);
        assert_string_equal(reason, "");
        const int64_t after = (int64_t)planned_weights(model_at(0), kinds[kind].name, reason, sizeof reason);
        snprintf(want, sizeof want, " matrices are recoded bf16 -> %s at load", kinds[kind].to);
        assert_memory_equal(reason, want, strlen(want));
        printf("%s: %lld bytes less, %lld by the planes\n", kinds[kind].name, (long long)(before - after),
               (long long)saved);
        if (llabs(before - after - saved) > ROUNDING)
            fail_msg("%s", kinds[kind].name);
    }
}

static void refused(const char *model, const char *quantization, const char *why)
{
    rig r;
    rig_options o = {.model = model, .devices = "ref0", .ctx = 64, .quantization = quantization};
    assert_int_equal(rig_try(&r, &o), INFER_E_INVALID);
    if (!strstr(r.err.text, why))
        fail_msg("\"%s\" does not say \"%s\"", r.err.text, why);
    rig_close(&r);
}

static void test_refusals(void **state)
{
    (void)state;
    refused(rig_golden("llama"), "fp4", "\"fp4\" is none of fp8, int8, int4");
    refused(rig_golden("llama"), "int8", "blk.0.attn_q.weight has rows of 48 elements, no multiple of 32");
    refused(rig_made("--tiny --arch llama --type q4_1"), "fp8", "blk.0.attn_q.weight is q4_1 already");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_logits), cmocka_unit_test(test_ledger),
                                       cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
