/* A decoding step allocates nothing, on any thread: malloc and its relatives are counted in the whole process,
 * libraries included, while four requests of every kind run. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>

#include "e2e/rig.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
int main(void)
{
    return 77; /* a sanitizer's own allocator cannot be counted so */
}
#else

/* ---- The counted allocator ------------------------------------------------------------------------------------ */

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t align, size_t n);
extern void __libc_free(void *p);

static _Atomic int counting;
static _Atomic uint64_t allocations, releases, bytes;

static void count(size_t n)
{
    if (!atomic_load(&counting))
        return;
    atomic_fetch_add(&allocations, 1);
    atomic_fetch_add(&bytes, n);
}

/* The C library's and every module's calls come here: the program's symbols are found first. */
#define EXPORT __attribute__((visibility("default")))

EXPORT void *malloc(size_t n)
{
    count(n);
    return __libc_malloc(n);
}

EXPORT void *calloc(size_t n, size_t size)
{
    count(n * size);
    return __libc_calloc(n, size);
}

EXPORT void *realloc(void *p, size_t n)
{
    count(n);
    return __libc_realloc(p, n);
}

EXPORT void free(void *p)
{
    if (p && atomic_load(&counting))
        atomic_fetch_add(&releases, 1);
    __libc_free(p);
}

EXPORT void *memalign(size_t align, size_t n)
{
    count(n);
    return __libc_memalign(align, n);
}

EXPORT void *aligned_alloc(size_t align, size_t n)
{
    count(n);
    return __libc_memalign(align, n);
}

EXPORT int posix_memalign(void **p, size_t align, size_t n)
{
    count(n);
    *p = __libc_memalign(align, n);
    return *p ? 0 : ENOMEM;
}

static void test_counter(void **state)
{
    (void)state;
    atomic_store(&counting, 1);
    uint64_t before = atomic_load(&allocations), freed = atomic_load(&releases);
    char *volatile a = malloc(10), *volatile b = strdup("the C library's own call");
    void *volatile c;
    assert_int_equal(posix_memalign((void **)(uintptr_t)&c, 64, 100), 0);
    free(a);
    free(b);
    free(c);
    atomic_store(&counting, 0);
    assert_int_equal(atomic_load(&allocations) - before, 3);
    assert_int_equal(atomic_load(&releases) - freed, 3);
}

/* ---- Steps ---------------------------------------------------------------------------------------------------- */

enum { REQUESTS = 4, STEPS = 60, CTX = 200 };

static void poll_until(rig *r, uint64_t steps)
{
    while (rig_stats(r).steps < steps) {
        const infer_event *ev;
        uint32_t n;
        assert_int_equal(infer_engine_poll(r->engine, 1, &ev, &n), INFER_OK);
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(ev[i].type, INFER_EVENT_TOKEN);
    }
}

/* Allocations in STEPS decoding steps. */
static uint64_t measure(const char *model, const char *devices, const char *split)
{
    static const int32_t prompt[] = {10, 20, 30, 40, 50};
    static const infer_sample_bias bias[] = {{7, 0.5f}};
    static const char *const stops[] = {"a string that will not come"};
    static const infer_sampling kinds[REQUESTS] = {
        {.temperature = 0},
        {.temperature = 1, .top_k = 40, .top_p = 0.9f, .min_p = 0.01f, .seed = 1},
        {.temperature = 0.8f, .repetition_penalty = 1.1f, .frequency_penalty = 0.1f, .seed = 2},
        {.temperature = 1, .seed = 3, .n_bias = 1, .bias = bias},
    };
    rig r;
    rig_options o = {
        .model = model, .devices = devices, .split = split, .ctx = CTX, .parallel = REQUESTS, .batched = 32};
    rig_open(&r, &o);
    for (int i = 0; i < REQUESTS; i++) {
        uint64_t id;
        infer_request q = {.struct_size = sizeof q,
                           .prompt = prompt,
                           .n_prompt = 5,
                           .max_tokens = -1,
                           .flags = INFER_REQ_IGNORE_EOS,
                           .sampling = kinds[i],
                           .stop = stops,
                           .n_stop = 1,
                           .n_top_logprobs = i == 1 ? 20 : 0};
        assert_int_equal(infer_engine_submit(r.engine, &q, &id, NULL), INFER_OK);
    }
    poll_until(&r, 80); /* all buffers have grown: each character of the longest kind came by */
    infer_engine_stats before = rig_stats(&r);
    assert_int_equal(before.n_running, REQUESTS);
    uint64_t freed = atomic_load(&releases), made = atomic_load(&allocations), size = atomic_load(&bytes);
    atomic_store(&counting, 1);
    poll_until(&r, before.steps + STEPS);
    atomic_store(&counting, 0);
    infer_engine_stats after = rig_stats(&r);
    made = atomic_load(&allocations) - made;
    freed = atomic_load(&releases) - freed;
    uint64_t steps = after.steps - before.steps;
    printf("%-10s %llu allocations of %llu bytes, %llu releases in %llu steps of %d requests\n", devices,
           (unsigned long long)made, (unsigned long long)(atomic_load(&bytes) - size), (unsigned long long)freed,
           (unsigned long long)steps, REQUESTS);
    assert_true(steps >= STEPS);
    assert_int_equal(after.generated_tokens - before.generated_tokens, steps * REQUESTS);
    rig_close(&r);
    return made;
}

static void test_cpu(void **state)
{
    (void)state;
    if (!rig_has("cpu0"))
        skip();
    assert_int_equal(measure(rig_golden("llama"), "cpu0", NULL), 0);
    assert_int_equal(measure(rig_golden("qwen3moe"), "cpu0", NULL), 0);
}

/* The reference ops take scratch from the heap (they are there to be read), and sim runs those: printed, not judged. */
static void test_reference(void **state)
{
    (void)state;
    measure(rig_golden("llama"), "ref0", NULL);
    measure(rig_golden("llama"), "sim0", NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counter),
        cmocka_unit_test(test_cpu),
        cmocka_unit_test(test_reference),
    };
    rig_watchdog(120);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
