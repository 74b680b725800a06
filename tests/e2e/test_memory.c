/* The books are true: what a plan says is what is booked, on every device and for every kind; a plan that does not fit
 * names a change that does; and a real model takes no more of the process than its books say, and answers soon.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <ctype.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "e2e/rig.h"
#include "plugins/fault/fault.h"

enum { ROWS = 64 };

#define MIB ((uint64_t)1 << 20)

static uint64_t books(const rig *r, const char *kind)
{
    infer_memory_row rows[ROWS];
    uint64_t sum = 0;
    uint32_t n = infer_model_memory(r->model, rows, ROWS);
    assert_true(n > 0 && n <= ROWS);
    for (uint32_t i = 0; i < n; i++)
        sum += !kind || !strcmp(rows[i].kind, kind) ? rows[i].booked : 0;
    return sum;
}

static void check_books(const rig *r, const char *what)
{
    infer_memory_row rows[ROWS];
    uint32_t n = infer_model_memory(r->model, rows, ROWS);
    for (uint32_t i = 0; i < n; i++)
        if (rows[i].planned != rows[i].booked)
            fail_msg("%s: %s %s: %llu planned, %llu booked", what, rows[i].device, rows[i].kind,
                     (unsigned long long)rows[i].planned, (unsigned long long)rows[i].booked);
    assert_true(books(r, "kv") > 0 && books(r, "activations") > 0 && books(r, "workspace") > 0);
}

static void test_ledger(void **state)
{
    (void)state;
    static const char *const models[] = {"llama", "qwen2", "qwen3", "qwen3moe"};
    static const char *const refuses[] = {"sim.deny_ops=rms_norm,add_rms_norm,attn_paged", NULL};
    static const struct {
        const char *devices, *split;
        const char *const *settings;
    } rows[] = {
        {"ref0", NULL, NULL},          {"sim0", NULL, NULL}, {"ref0,sim0", "1,1", NULL}, {"sim0", NULL, refuses},
        {"sim0,ref0", "1,1", refuses}, {"cpu0", NULL, NULL}, {"cpu0,sim0", "1,1", NULL},
    };
    int cpu = rig_has("cpu0");
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            rig r;
            rig_options o = {.model = rig_golden(models[m]),
                             .devices = rows[i].devices,
                             .split = rows[i].split,
                             .settings = rows[i].settings,
                             .ctx = 100,
                             .parallel = 3,
                             .batched = 37};
            if (!cpu && strstr(o.devices, "cpu"))
                continue;
            rig_open(&r, &o);
            check_books(&r, rows[i].devices);
            infer_engine_destroy(r.engine);
            r.engine = NULL;
            assert_int_equal(books(&r, "kv") + books(&r, "activations") + books(&r, "workspace"), 0);
            rig_close(&r);
        }
    }
}

/* ---- What fits ------------------------------------------------------------------------------------------------ */

static uint64_t number_after(const char *text, const char *word)
{
    const char *at = strstr(text, word);
    if (!at)
        fail_msg("\"%s\" has no %s", text, word);
    return strtoull(at + strlen(word), NULL, 10);
}

static const char *heap(uint64_t bytes)
{
    static char text[64];
    snprintf(text, sizeof text, "sim.heap_bytes=%llu", (unsigned long long)bytes);
    return text;
}

static infer_status try_heap(rig_options o, uint64_t bytes, rig *r)
{
    const char *settings[] = {heap(bytes), NULL};
    o.settings = settings;
    return rig_try(r, &o);
}

/* For heaps from far too small to large: the pool shrinks to what fits; where not even one context does, the context
 * that the error names works, and one block more does not. */
static void test_fit(void **state)
{
    (void)state;
    enum { CTX = 2048, PARALLEL = 4 };
    rig_options o = {.model = rig_golden("llama"), .devices = "sim0", .ctx = CTX, .parallel = PARALLEL, .batched = 16};
    uint32_t whole = 0, shrunk = 0, advised = 0, hopeless = 0;
    uint64_t last = 0;
    for (uint64_t bytes = 64 << 10; bytes < 16 * MIB; bytes += bytes / 5) {
        rig r;
        infer_status s = try_heap(o, bytes, &r);
        if (!s) {
            infer_engine_stats st = rig_stats(&r);
            uint64_t tokens = st.blocks_total * st.block_size;
            check_books(&r, "sim0");
            assert_true(books(&r, NULL) <= bytes);
            assert_true(tokens >= CTX && tokens <= CTX * PARALLEL && tokens >= last);
            last = tokens;
            *(tokens == CTX * PARALLEL ? &whole : &shrunk) += 1;
            rig_close(&r);
            continue;
        }
        assert_int_equal(s, INFER_E_NO_FIT);
        assert_int_equal(last, 0);
        if (!strstr(r.err.text, "-c ")) {
            assert_true(strstr(r.err.text, "no context is small enough") || strstr(r.err.text, "needs"));
            rig_close(&r);
            hopeless++;
            continue;
        }
        uint32_t ctx = (uint32_t)number_after(r.err.text, "-c ");
        rig_close(&r);
        rig_options less = o;
        less.ctx = ctx;
        if (try_heap(less, bytes, &r))
            fail_msg("-c %u was said to fit in %llu: %s", ctx, (unsigned long long)bytes, r.err.text);
        uint32_t block = rig_stats(&r).block_size;
        rig_close(&r);
        less.ctx = ctx + block;
        assert_int_equal(try_heap(less, bytes, &r), INFER_E_NO_FIT);
        rig_close(&r);
        advised++;
    }
    printf("heaps: %u too small, %u with a smaller context, %u with a smaller pool, %u whole\n", hopeless, advised,
           shrunk, whole);
    assert_true(whole && shrunk && advised && hopeless);
}

/* An asked cache size is never made smaller in silence: the size that the error names works, and a byte less does not
 * hold a request. */
static void test_asked_cache(void **state)
{
    (void)state;
    rig r;
    rig_options o = {.model = rig_golden("llama"), .devices = "sim0", .ctx = 256, .parallel = 2, .batched = 16};
    o.kv_memory = 5000;
    assert_int_equal(rig_try(&r, &o), INFER_E_NO_FIT);
    uint64_t need = number_after(r.err.text, "give ");
    rig_close(&r);
    o.kv_memory = need;
    rig_open(&r, &o);
    assert_true(rig_stats(&r).blocks_total * rig_stats(&r).block_size >= 256);
    rig_close(&r);
    o.kv_memory = need - 1;
    assert_int_equal(rig_try(&r, &o), INFER_E_NO_FIT);
    uint32_t ctx = (uint32_t)number_after(r.err.text, "-c ");
    rig_close(&r);
    o.ctx = ctx;
    rig_open(&r, &o);
    rig_close(&r);
    /* more than the device has */
    o.ctx = 256;
    o.kv_memory = 64 * MIB;
    assert_int_equal(try_heap(o, 4 * MIB, &r), INFER_E_NO_FIT);
    uint64_t fits = number_after(r.err.text, "--kv-cache-memory ");
    rig_close(&r);
    o.kv_memory = fits;
    if (try_heap(o, 4 * MIB, &r))
        fail_msg("--kv-cache-memory %llu: %s", (unsigned long long)fits, r.err.text);
    rig_close(&r);
}

/* ---- A real model --------------------------------------------------------------------------------------------- */

/* A line of /proc/self/status or smaps_rollup, in bytes. */
static uint64_t proc(const char *file, const char *name)
{
    char line[256];
    uint64_t v = 0;
    FILE *f = fopen(file, "r");
    if (!f)
        fail_msg("%s", file);
    while (fgets(line, sizeof line, f))
        if (!strncmp(line, name, strlen(name)))
            v = strtoull(line + strlen(name), NULL, 10) << 10;
    fclose(f);
    return v;
}

/* Resident bytes of the mappings of one file. */
static uint64_t resident_of(const char *path)
{
    char line[512], real[4096];
    uint64_t sum = 0;
    int in = 0;
    FILE *f = fopen("/proc/self/smaps", "r");
    if (!f || !realpath(path, real))
        fail_msg("%s", path);
    while (fgets(line, sizeof line, f)) {
        if (isxdigit((unsigned char)line[0]) && strchr(line, '-') && !strstr(line, " kB"))
            in = strstr(line, real) != NULL;
        else if (in && !strncmp(line, "Rss:", 4))
            sum += strtoull(line + 4, NULL, 10) << 10;
    }
    fclose(f);
    return sum;
}

static const char *real_model(void)
{
    static char path[4096];
    const char *given = getenv("INFER_TEST_MODEL");
    snprintf(path, sizeof path, "%s", given ? given : "");
    return given && access(path, R_OK) == 0 ? path : NULL;
}

static double ms(uint64_t a, uint64_t b)
{
    return (double)(b - a) / 1e6;
}

static void test_real_model(void **state)
{
    (void)state;
    const char *path = real_model();
    if (!path || !rig_has("cpu0"))
        skip();
    rig r = {0};
    infer_error e = {0};
    infer_file_info info;
    const infer_tokenizer *tok;
    uint64_t t0 = infer_engine_now(), t1, t2, t3, t4, t5;
    infer_plan_options po = {.struct_size = sizeof po, .devices = "cpu0", .n_parallel = 1, .ctx_size = 2048};
    assert_int_equal(infer_runtime_create(NULL, &r.rt, &e), INFER_OK);
    t1 = infer_engine_now();
    if (infer_file_open(path, &r.file, &e) || infer_file_tokenizer(r.file, &tok, &e))
        fail_msg("%s", e.text);
    infer_file_get_info(r.file, &info);
    t2 = infer_engine_now();
    assert_int_equal(infer_plan_create(r.rt, r.file, &po, &r.plan, &e), INFER_OK);
    t3 = infer_engine_now();
    assert_int_equal(infer_model_load(r.plan, NULL, NULL, &r.model, &e), INFER_OK);
    t4 = infer_engine_now();
    assert_int_equal(infer_engine_create(r.model, NULL, &r.engine, &e), INFER_OK);
    t5 = infer_engine_now();
    answer a, *list[] = {&a};
    int32_t *ids;
    size_t n;
    static const char text[] = "The capital of France is";
    assert_int_equal(infer_tokenizer_encode(tok, text, sizeof text - 1, INFER_ENCODE_ADD_SPECIAL, &ids, &n, &e),
                     INFER_OK);
    infer_request q = {.prompt = ids, .n_prompt = n, .max_tokens = 24, .flags = INFER_REQ_IGNORE_EOS};
    rig_submit(&r, &q, &a);
    assert_int_equal(rig_collect(&r, list, 1), INFER_OK);
    infer_ids_free(ids);
    printf(
        "runtime %.0f ms, file and tokenizer %.0f, plan %.0f, load %.0f, engine %.0f, first token %.0f; in all %.0f\n",
        ms(t0, t1), ms(t1, t2), ms(t2, t3), ms(t3, t4), ms(t4, t5), ms(t5, a.t_first_token), ms(t0, a.t_first_token));
    check_books(&r, "cpu0");
    uint64_t packed = books(&r, "weights"), mapped = resident_of(path);
    uint64_t own = proc("/proc/self/status", "RssAnon:") + proc("/proc/self/status", "RssShmem:");
    uint64_t allowed = books(&r, NULL) + 64 * MIB;
    printf("own memory %.1f MiB of %.1f allowed; packed %.1f + mapped %.1f MiB of %.1f in the file (%.3f)\n",
           (double)own / MIB, (double)allowed / MIB, (double)packed / MIB, (double)mapped / MIB,
           (double)info.bytes / MIB, (double)(packed + mapped) / (double)info.bytes);
    assert_true(strstr(a.text, "Paris") != NULL);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* whose shadow is the process's too */
    assert_true(own <= allowed);
#endif
    assert_true((double)(packed + mapped) <= 1.05 * (double)info.bytes);
    answer_free(&a);
    rig_close(&r);
}

/* ---- Loading ------------------------------------------------------------------------------------------------- */

typedef struct told {
    pthread_t caller;
    uint64_t done, total;
    uint32_t calls;
} told;

static void tell(void *user, uint64_t done, uint64_t total)
{
    told *t = user;
    assert_true(pthread_equal(t->caller, pthread_self()));
    assert_true(done >= t->done && done <= total && (!t->calls || total == t->total));
    t->done = done;
    t->total = total;
    t->calls++;
}

/* Weights come by several threads and the largest first: progress is the caller's, and rises to the end; of several
 * that fail the first in the plan's order is told, and all are given back. */
static void test_load(void **state)
{
    (void)state;
    const infer_fault_api *fault = rig_fault();
    const char *settings[] = {rig_wrap("sim"), NULL};
    const infer_runtime_options ro = {.struct_size = sizeof ro, .settings = settings, .n_settings = 1};
    const infer_plan_options po = {.struct_size = sizeof po, .devices = "fault0", .n_parallel = 1, .ctx_size = 64};
    rig r = {0};
    infer_error e = {0};
    told t = {.caller = pthread_self()};
    assert_int_equal(infer_runtime_create(&ro, &r.rt, &e), INFER_OK);
    if (infer_file_open(rig_made("--tiny --layers 3 --ffn 2048 --type q8_0"), &r.file, &e) ||
        infer_plan_create(r.rt, r.file, &po, &r.plan, &e) || infer_model_load(r.plan, tell, &t, &r.model, &e))
        fail_msg("%s", e.text);
    assert_true(t.calls > 0 && t.total > 0);
    assert_int_equal(t.done, t.total);
    infer_model_destroy(r.model);
    r.model = NULL;
    uint64_t calls = fault->calls(INFER_FAULT_WEIGHT);
    assert_true(calls >= 6);
    for (uint64_t n = 0; n < 3; n++) {
        fault->reset();
        fault->arm(INFER_FAULT_WEIGHT, (int64_t)n, INFER_E_NO_MEMORY);
        t = (told){.caller = pthread_self()};
        assert_int_equal(infer_model_load(r.plan, tell, &t, &r.model, &e), INFER_E_NO_MEMORY);
        if (!strstr(e.text, "load ") || !strstr(e.text, "injected"))
            fail_msg("\"%s\"", e.text);
        assert_true(!t.calls || t.done < t.total);
    }
    fault->reset();
    assert_int_equal(infer_model_load(r.plan, NULL, NULL, &r.model, &e), INFER_OK);
    infer_model_destroy(r.model);
    r.model = NULL;
    fault->arm(INFER_FAULT_COPY, 0, INFER_E_DEVICE_LOST); /* every later call fails too */
    assert_int_equal(infer_model_load(r.plan, NULL, NULL, &r.model, &e), INFER_E_DEVICE_LOST);
    if (!strstr(e.text, "load token_embd.weight"))
        fail_msg("not the first weight: \"%s\"", e.text);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger), cmocka_unit_test(test_fit),        cmocka_unit_test(test_asked_cache),
        cmocka_unit_test(test_load),   cmocka_unit_test(test_real_model),
    };
    rig_watchdog(300);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
